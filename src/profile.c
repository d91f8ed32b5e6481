// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

/* -----------------------------------------------------------
  A sampling heap profiler. This file owns the session (what is
  on, since when, at which rate), the public functions and the
  slow paths of the hooks that `mimalloc/profile-hooks.h` puts
  into the allocator. The parts below own

    profile-sampler.c    which allocations are sampled, and what one stands for
    profile-prim.c       what each operating system does in its own way
    profile-capture.c    who captures a stack, and how
    profile-config.c     what the options say
    profile-stats.c      counters
    profile-memory.c     memory
    profile-label.c      names of threads and heaps
    profile-stack.c      call stacks, and what was allocated with them
    profile-record.c     live samples
    profile-snapshot.c   a consistent copy of all samples
    profile-limit.c      how near the process is to its memory limit
    profile-peak.c       the one of the highest estimate
    profile-pprof.c      the output formats
    profile-dump.c       a snapshot, written to a file
    profile-trigger.c    when that happens by itself, and under which name
    profile-watch.c      a signal, and a thread that waits for it or for the time
    profile-leak.c       what is left at exit, as text

  Locks, outermost first: control (start, stop and snapshots),
  session (its parameters), a stack shard, a record shard, labels.
  No lock is held while foreign code runs or a file is written.
----------------------------------------------------------- */

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "mimalloc.h"
#include "mimalloc/internal.h"
#include "mimalloc/atomic.h"
#include "mimalloc/prim.h"
#include "mimalloc/profile.h"
#include "profile-internal.h"

#include <errno.h>

_Atomic(size_t) _mi_prof_epoch;

static mi_lock_t mi_prof_control_lock = MI_LOCK_INITIALIZER;
static mi_lock_t mi_prof_session_lock = MI_LOCK_INITIALIZER;

static struct mi_prof_s {
  // read by all threads; a sample of an earlier session is rejected when it is recorded
  _Atomic(size_t)   session;          // the number of the session; 0 if there is none
  _Atomic(size_t)   rate;             // mean bytes between samples
  // with the session lock
  mi_prof_config_t  config;           // written with the control lock too
  size_t            thread_count;     // threads that took part
  size_t            last_session;
  size_t            last_epoch;
  // with the control lock
  int64_t           start_nanos;      // Unix time
  // who has the control lock: a thread id or 0
  _Atomic(uintptr_t) control_owner;
} mi_prof;

static bool mi_prof_session_is(size_t session) {
  return (mi_atomic_load_relaxed(&mi_prof.session) == session);
}

static size_t mi_prof_rate(void) {
  return mi_atomic_load_relaxed(&mi_prof.rate);
}

// Seconds on a clock that only goes forward; never 0.
static size_t mi_prof_seconds(void) {
  return (size_t)(_mi_clock_now()/1000) + 1;
}

static bool mi_prof_control_is_ours(void) {
  return (mi_atomic_load_relaxed(&mi_prof.control_owner) == (uintptr_t)_mi_prim_thread_id());
}

// Take the control lock. Returns false in a nested call: from the program's function for warnings, say, while the lock is held.
static bool mi_prof_control_enter(void) {
  if (mi_prof_control_is_ours()) return false;
  mi_lock_acquire(&mi_prof_control_lock);
  mi_atomic_store_relaxed(&mi_prof.control_owner, (uintptr_t)_mi_prim_thread_id());
  return true;
}

static void mi_prof_control_leave(void) {
  mi_atomic_store_relaxed(&mi_prof.control_owner, (uintptr_t)0);
  mi_lock_release(&mi_prof_control_lock);
}

#define MI_IN_PROFILE_C
#include "profile-sampler.c"
#include "profile-prim.c"
#include "profile-capture.c"
#include "profile-config.c"
#include "profile-stats.c"
#include "profile-memory.c"
#include "profile-label.c"
#include "profile-stack.c"
#include "profile-record.c"
#include "profile-snapshot.c"
#include "profile-peak.c"
#include "profile-pprof.c"
#include "profile-dump.c"
#include "profile-limit.c"
#include "profile-trigger.c"
#include "profile-watch.c"
#include "profile-leak.c"
#undef MI_IN_PROFILE_C


/* -----------------------------------------------------------
  Drawing: which of the blocks in `page->free` are sampled
----------------------------------------------------------- */

// The calling thread sees a new epoch: forget what earlier ones drew, and take its blocks away from the fast path.
static void mi_prof_thread_join(mi_tld_t* tld) {
  for (mi_heap_t* heap = tld->heaps; heap != NULL; heap = heap->next) {
    for (size_t i = 0; i <= MI_BIN_FULL; i++) {
      for (mi_page_t* page = heap->pages[i].first; page != NULL; page = page->next) { _mi_prof_page_park(page); }
    }
  }
  mi_prof_tld_t* const prof = &tld->prof;
  mi_lock(&mi_prof_session_lock) {
    if (prof->session != mi_prof.last_session) {
      prof->session = mi_prof.last_session;
      mi_prof_random_init(prof, mi_prof.config.seed, mi_prof.thread_count++);
    }
    prof->epoch = mi_prof.last_epoch;
    prof->rate = mi_prof_rate();
    prof->bt_max = (uint8_t)mi_prof.config.bt_max;
    prof->features = mi_prof_features(&mi_prof.config);
  }
  prof->countdown = mi_prof_interval(prof, prof->rate);
}

// Draw for the first `n` blocks in `free`. If a later one than the first is chosen, the list is cut before it.
static void mi_prof_page_draw_first(mi_prof_tld_t* tld, mi_page_t* page, size_t n) {
  const size_t i = mi_prof_draw(tld, n, mi_page_block_size(page), tld->rate);
  if (i == 0) {
    page->prof_state = MI_PROF_DUE;
  }
  else if (i < n) {
    _mi_prof_page_cut(page, i);
    page->prof_state = MI_PROF_CUT;
  }
}

// Does the thread draw for the current epoch?
static bool mi_prof_is_current(const mi_prof_tld_t* tld, size_t epoch) {
  return (tld->epoch == (epoch & ~MI_PROF_ATTENTION));
}

// See `_mi_prof_page_is_due`.
bool _mi_prof_page_draw(mi_heap_t* heap, mi_page_t* page) {
  const size_t epoch = mi_atomic_load_relaxed(&_mi_prof_epoch);
  const bool attention = ((epoch & MI_PROF_ATTENTION) != 0);
  if ((epoch & ~MI_PROF_ATTENTION) == 0) {    // nothing is sampled now
    page->prof_state = MI_PROF_UNDRAWN;
    return attention;
  }
  if mi_unlikely(!mi_prof_is_current(&heap->tld->prof, epoch)) {
    mi_prof_thread_join(heap->tld);
    _mi_prof_page_unpark(page);
  }
  if (page->prof_state == MI_PROF_UNDRAWN) {
    page->prof_state = MI_PROF_DRAWN;
    mi_prof_page_draw_first(&heap->tld->prof, page, _mi_prof_page_free_count(page));
  }
  mi_assert_internal(page->free != NULL);
  return (page->prof_state == MI_PROF_DUE || attention);
}

// See `_mi_prof_page_extended`. What was drawn for the blocks behind stays: to draw them anew here, but never a sample
// that is due, would be biased.
void _mi_prof_page_draw_new(mi_heap_t* heap, mi_page_t* page, size_t count) {
  if (!mi_prof_is_current(&heap->tld->prof, mi_atomic_load_relaxed(&_mi_prof_epoch))) return;   // all is drawn anew soon
  if (page->prof_state == MI_PROF_UNDRAWN || page->prof_state == MI_PROF_DUE) return;
  mi_prof_page_draw_first(&heap->tld->prof, page, count);
}

// Draw for the blocks after one that was sampled. The fast path comes next, so if the first is chosen, `free` is left empty.
static void mi_prof_page_draw_rest(mi_prof_tld_t* tld, mi_page_t* page) {
  page->prof_state = MI_PROF_DRAWN;
  if (page->free == NULL) return;
  mi_prof_page_draw_first(tld, page, _mi_prof_page_free_count(page));
  if (page->prof_state == MI_PROF_DUE) {
    _mi_prof_page_cut(page, 0);
    page->prof_state = MI_PROF_CUT;
  }
}


/* -----------------------------------------------------------
  Sampling
----------------------------------------------------------- */

// Record a sample. Called outside of all locks.
static void mi_prof_record(mi_heap_t* heap, mi_page_t* page, mi_block_t* block, size_t size) {
  mi_prof_tld_t* const tld = &heap->tld->prof;
  if mi_unlikely(tld->muted) return;
  if mi_unlikely(tld->in_profiler) { mi_atomic_increment_relaxed(&mi_prof_counts.dropped_reentry); return; }
  const int err = errno;      // an allocation that succeeds leaves it alone
  tld->in_profiler = true;
  mi_atomic_increment_relaxed(&mi_prof_counts.samples);
  uintptr_t frames[MI_PROF_CAPTURE_MAX];
  const size_t depth = mi_prof_capture(tld, frames, tld->bt_max);
  if (depth == 0 && mi_prof_captures(tld->bt_max)) { mi_atomic_increment_relaxed(&mi_prof_counts.failed_unwinds); }
  const bool accum = ((tld->features & MI_PROF_ACCUM) != 0);
  const size_t born = ((tld->features & MI_PROF_LABEL_AGE) != 0 ? mi_prof_seconds() : 0);
  const double weight = 1.0 / mi_prof_probability(size, tld->rate);
  const mi_prof_stack_t* const stack = mi_prof_stack_intern(tld->session, frames, depth, mi_prof_labels_get(heap, tld->features), accum, size, weight);
  mi_prof_count_alloc(size, weight, 1);
  switch (mi_prof_record_add(tld->session, page, block, stack, size, weight, born)) {
    case MI_PROF_OK:
      page->flags.x.has_metadata = true;
      if (stack == &mi_prof_stack_other) { mi_atomic_increment_relaxed(&mi_prof_counts.folded_stacks); }
      break;
    case MI_PROF_ENDED:      break;   // nothing is missing
    case MI_PROF_NO_MEMORY:  mi_atomic_increment_relaxed(&mi_prof_counts.dropped_memory); break;
    case MI_PROF_OVER_LIMIT: mi_atomic_increment_relaxed(&mi_prof_counts.dropped_limit); break;
  }
  mi_prof_trigger_look();
  tld->in_profiler = false;
  errno = err;
}

// `p` has just been popped from `page->free`, for a request of `size` bytes with padding. It was due, or attention is asked for.
void _mi_prof_sample(mi_heap_t* heap, mi_page_t* page, void* p, size_t size) {
  if mi_likely(page->prof_state == MI_PROF_DUE) {
    mi_prof_tld_t* const tld = &heap->tld->prof;
    mi_prof_page_draw_rest(tld, page);
    size_t request = size - MI_PADDING_SIZE;
    if (request == 0) { request = 1; }
    if (mi_prof_thin(tld, mi_prof_probability(request, tld->rate), mi_prof_probability(mi_page_block_size(page), tld->rate))) {
      mi_prof_record(heap, page, (mi_block_t*)p, request);
    }
  }
  if ((mi_atomic_load_relaxed(&_mi_prof_epoch) & MI_PROF_ATTENTION) != 0) { mi_prof_attend(&heap->tld->prof); }
}

// See `_mi_prof_page_is_due_aligned`. Returns NULL if no sample is due, or if the next block does not fit.
void* _mi_prof_malloc_aligned(mi_heap_t* heap, size_t size, size_t alignment, size_t offset, bool zero) {
  mi_page_t* const page = _mi_heap_get_free_small_page(heap, size + MI_PADDING_SIZE);
  if (!_mi_prof_page_is_due_aligned(page, alignment, offset)) return NULL;
  const bool due = _mi_prof_page_is_due(heap, page);
  void* const p = (zero ? _mi_page_malloc_zeroed(heap, page, size + MI_PADDING_SIZE) : _mi_page_malloc(heap, page, size + MI_PADDING_SIZE));
  if (due) { _mi_prof_sample(heap, page, p, size + MI_PADDING_SIZE); }
  return p;
}

// The block of `p` was sampled with its over-allocated size; the program asked for `size` bytes.
void _mi_prof_overallocated(mi_page_t* page, void* p, size_t size) {
  mi_block_t* const block = _mi_page_ptr_unalign(page, p);
  if (!mi_prof_record_may_exist(page, block)) return;
  mi_prof_tld_t* const tld = &mi_page_heap(page)->tld->prof;
  if (size == 0) { size = 1; }
  const double probability = mi_prof_probability(size, tld->rate);
  mi_prof_was_t was;
  if (!mi_prof_record_update(page, block, size, 1.0 / probability, &was)) return;
  const bool keep = mi_prof_thin(tld, probability, mi_prof_probability(was.size, tld->rate));
  if (!keep) { mi_prof_record_remove(page, block); }
  mi_prof_count_alloc(was.size, was.weight, -1);
  if (keep) { mi_prof_count_alloc(size, 1.0 / probability, 1); }
  if ((tld->features & MI_PROF_ACCUM) != 0) { mi_prof_stack_recount(tld->session, &was, (keep ? size : 0), 1.0 / probability); }
}

// The block of `p` was resized in place. The sample goes on to stand for as many allocations as before.
void _mi_prof_resized(mi_page_t* page, void* p, size_t size) {
  mi_block_t* const block = _mi_page_ptr_unalign(page, p);
  if (!mi_prof_record_may_exist(page, block)) return;
  if (size == 0) { size = 1; }
  if (mi_prof_peak_watches()) { mi_prof_peak_before_loss(mi_prof_record_loss(page, block, size)); }
  mi_prof_was_t was;
  mi_prof_record_update(page, block, size, 0.0, &was);
}

// `block` is freed, by any thread.
void _mi_prof_free(mi_page_t* page, mi_block_t* block) {
  if mi_likely(!mi_prof_record_may_exist(page, block)) return;
  if (mi_prof_peak_watches()) { mi_prof_peak_before_loss(mi_prof_record_loss(page, block, 0)); }
  mi_prof_record_remove(page, block);
}

// All blocks of the page are freed at once.
void _mi_prof_page_destroy(mi_page_t* page) {
  if (mi_atomic_load_acquire(&page->metadata) == 0) return;
  if (mi_prof_peak_watches()) { mi_prof_peak_before_loss(mi_prof_record_loss(page, NULL, 0)); }
  mi_prof_record_remove_all(page);
}


/* -----------------------------------------------------------
  Fork. The locks are held around it, so that the child, which
  goes on with its copy of the session, finds them free.
----------------------------------------------------------- */

static void mi_prof_fork_prepare(void) {
  mi_lock_acquire(&mi_prof_control_lock);
  mi_lock_acquire(&mi_prof_session_lock);
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) { mi_lock_acquire(&mi_prof_stack_shards[i].lock); }
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) { mi_lock_acquire(&mi_prof_record_shards[i].lock); }
  mi_lock_acquire(&mi_prof_label_lock);
}

static void mi_prof_fork_parent(void) {
  mi_lock_release(&mi_prof_label_lock);
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) { mi_lock_release(&mi_prof_record_shards[i].lock); }
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) { mi_lock_release(&mi_prof_stack_shards[i].lock); }
  mi_lock_release(&mi_prof_session_lock);
  mi_lock_release(&mi_prof_control_lock);
}

static void mi_prof_fork_child(void) {
  mi_prof_fork_parent();
  mi_prof_trigger_forked();
  mi_prof_watch_forked();
}


/* -----------------------------------------------------------
  Sessions
----------------------------------------------------------- */

static void mi_prof_locks_init(void) {
  mi_atomic_do_once {
    for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
      mi_lock_init(&mi_prof_stack_shards[i].lock);
      mi_lock_init(&mi_prof_record_shards[i].lock);
    }
  }
}

// At process start, as nearly every function here takes a lock, whether profiling is on or not.
static void mi_prof_fork_init(void) {
  mi_prof_locks_init();
  _mi_prof_prim_atfork(&mi_prof_fork_prepare, &mi_prof_fork_parent, &mi_prof_fork_child);
}

static void mi_prof_init_once(void) {
  mi_prof_fork_init();
  mi_atomic_do_once { _mi_prof_prim_init(); }
}

// Let all threads draw anew, or (0) not at all. With the session lock. Whoever asks for attention takes no lock.
static void mi_prof_epoch_set(bool on) {
  if (on) { mi_prof.last_epoch += 2*MI_PROF_ATTENTION; }
  (void)mi_atomic_exchange_acq_rel(&_mi_prof_epoch, (on ? mi_prof.last_epoch : 0));
  if (mi_prof_trigger_wants_attention()) { mi_prof_ask_attention(); }
}

// With the control lock.
static bool mi_prof_session_start(const mi_prof_config_t* config) {
  if (!mi_prof_stack_init()) return false;
  if (!mi_prof_label_init(config->label_thread || config->label_heap)) {
    mi_prof_stack_done();
    return false;
  }
  mi_atomic_store_relaxed(&mi_prof.rate, config->sample_rate);
  mi_atomic_store_relaxed(&mi_prof_memory_max, config->max_bytes);
  mi_atomic_store_relaxed(&mi_prof_unwind, (uintptr_t)config->unwind);
  mi_prof_counts_clear();
  mi_prof_peak_reset(config->peak);
  mi_prof.start_nanos = _mi_prof_prim_time_nanos();
  mi_prof_trigger_init(config);
  mi_lock(&mi_prof_session_lock) {
    mi_prof.config = *config;
    mi_prof.config.dump_path = NULL;    // the program's; there is a copy
    mi_prof.thread_count = 0;
    mi_prof.last_session++;
    mi_atomic_store_release(&mi_prof.session, mi_prof.last_session);
    mi_prof_epoch_set(true);
  }
  return true;
}

static uint64_t mi_prof_random_seed(void) {
  uint64_t seed;
  if (!_mi_prim_random_buf(&seed, sizeof(seed))) { seed = (uint64_t)_mi_os_random_weak((uintptr_t)_mi_prof_prim_time_nanos()); }
  return seed;
}

// The calling thread takes part from now on; others when they next miss the fast path.
static void mi_prof_thread_join_now(void) {
  mi_heap_t* const heap = mi_prim_get_default_heap();
  const size_t epoch = mi_atomic_load_relaxed(&_mi_prof_epoch);
  if (epoch == 0 || !mi_heap_is_initialized(heap) || mi_prof_is_current(&heap->tld->prof, epoch)) return;
  mi_prof_thread_join(heap->tld);
}

bool mi_prof_start_ex(const mi_prof_config_t* config) mi_attr_noexcept {
  if (mi_prof_is_enabled()) return true;
  if (!mi_prof_config_is_known(config) || config->bt_max > MI_PROF_MAX_DEPTH || (unsigned)config->unwind > MI_PROF_UNWIND_NONE) return false;
  if ((unsigned)config->dump_kind > MI_PROF_KIND_PEAK || config->dump_at_limit > 100 || config->dump_keep > MI_PROF_KEEP_MAX || !mi_prof_pattern_fits(config->dump_path)) return false;
  const int err = errno;
  mi_prof_init_once();
  mi_prof_config_t c = *config;
  c.sample_rate = mi_prof_clamp_rate(c.sample_rate == 0 ? mi_prof_option_rate() : c.sample_rate);
  if (c.seed == 0) { c.seed = mi_prof_random_seed(); }
  if (c.dump_kind == MI_PROF_KIND_ALLOCS) { c.accum = true; }
  if (c.dump_kind == MI_PROF_KIND_PEAK)   { c.peak = true; }
  if (!mi_prof_control_enter()) return false;
  const bool ok = (mi_prof_is_enabled() || mi_prof_session_start(&c));
  mi_prof_control_leave();
  if (!ok) {
    _mi_warning_message("unable to start the heap profiler: out of memory\n");
    return false;
  }
  mi_prof_reserve_grow();
  mi_prof_watch_update();
  mi_prof_thread_join_now();
  errno = err;
  return true;
}

bool mi_prof_start_seeded(size_t sample_rate, uint64_t seed) mi_attr_noexcept {
  if (mi_prof_is_enabled()) return true;
  mi_prof_config_t config;
  mi_prof_config_init(&config);
  if (sample_rate != 0) { config.sample_rate = sample_rate; }
  config.seed = seed;
  return mi_prof_start_ex(&config);
}

bool mi_prof_start(size_t sample_rate) mi_attr_noexcept {
  return mi_prof_start_seeded(sample_rate, (uint64_t)mi_option_get(mi_option_prof_seed));
}

void mi_prof_stop(void) mi_attr_noexcept {
  if (!mi_prof_control_enter()) return;
  if (mi_prof_is_enabled()) {
    mi_atomic_store_release(&mi_prof.session, (size_t)0);   // from here on nothing is added
    mi_prof_trigger_done();
    mi_lock(&mi_prof_session_lock) { mi_prof_epoch_set(false); }
    mi_prof_record_done();
    mi_prof_stack_done();
    mi_prof_label_done();
    mi_prof_count_clear(&mi_prof_counts.inuse_objects);
    mi_prof_count_clear(&mi_prof_counts.inuse_bytes);
    mi_prof_peak_reset(false);
  }
  mi_prof_control_leave();
  mi_prof_reserve_release();
  mi_prof_watch_update();
}

bool mi_prof_is_enabled(void) mi_attr_noexcept {
  return (mi_atomic_load_acquire(&mi_prof.session) != 0);
}

// Change the rate (0: keep it) of a running session, and whether it takes samples.
static bool mi_prof_session_change(size_t rate, bool on) {
  if (!mi_prof_control_enter()) return false;
  const bool enabled = mi_prof_is_enabled();
  if (enabled) {
    mi_lock(&mi_prof_session_lock) {
      if (rate != 0) { mi_atomic_store_relaxed(&mi_prof.rate, rate); }
      mi_prof_epoch_set(on);
    }
  }
  mi_prof_control_leave();
  if (enabled) { mi_prof_thread_join_now(); }
  return enabled;
}

static bool mi_prof_is_paused(void) {
  return (mi_prof_is_enabled() && (mi_atomic_load_relaxed(&_mi_prof_epoch) & ~MI_PROF_ATTENTION) == 0);
}

bool mi_prof_pause(void) mi_attr_noexcept {
  return mi_prof_session_change(0, false);
}

bool mi_prof_resume(void) mi_attr_noexcept {
  return (mi_prof_is_paused() ? mi_prof_session_change(0, true) : mi_prof_is_enabled());
}

bool mi_prof_set_rate(size_t sample_rate) mi_attr_noexcept {
  return mi_prof_session_change(mi_prof_clamp_rate(sample_rate == 0 ? mi_prof_option_rate() : sample_rate), !mi_prof_is_paused());
}

static void mi_prof_forget_allocs(const mi_prof_stack_t* stack, mi_prof_allocs_t* allocs, void* arg) {
  MI_UNUSED(stack); MI_UNUSED(arg);
  mi_prof_allocs_clear(allocs);
}

void mi_prof_reset(void) mi_attr_noexcept {
  if (!mi_prof_control_enter()) return;
  if (mi_prof_is_enabled()) {
    mi_prof_allocs_visit(&mi_prof_forget_allocs, NULL);
    mi_prof_count_clear(&mi_prof_counts.alloc_objects);
    mi_prof_count_clear(&mi_prof_counts.alloc_bytes);
    mi_prof_peak_reset(mi_prof.config.peak);
    mi_prof_trigger_reset();
  }
  mi_prof_control_leave();
}


/* -----------------------------------------------------------
  Statistics
----------------------------------------------------------- */

void mi_prof_debug_stats(size_t* live_records, size_t* live_bytes) mi_attr_noexcept {
  size_t count = 0;
  size_t bytes = 0;
  mi_prof_locks_init();
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_prof_record_shard_t* const shard = &mi_prof_record_shards[i];
    mi_lock(&shard->lock) {
      count += shard->live_count;
      bytes += shard->live_bytes;
    }
  }
  if (live_records != NULL) { *live_records = count; }
  if (live_bytes != NULL)   { *live_bytes = bytes; }
}

static size_t mi_prof_stat_now(const mi_stat_count_t* stat) {
  const int64_t now = mi_atomic_loadi64_relaxed((_Atomic(int64_t)*)&stat->current);
  return (now <= 0 ? 0 : (size_t)now);
}

bool mi_prof_stats_get(mi_prof_stats_t* stats) mi_attr_noexcept {
  if (stats == NULL || !mi_prof_is_known(stats->size, stats->version, sizeof(*stats), MI_PROF_STATS_VERSION)) return false;
  struct mi_prof_counts_s* const counts = &mi_prof_counts;
  stats->enabled         = mi_prof_is_enabled();
  stats->paused          = mi_prof_is_paused();
  stats->sample_rate     = mi_prof_rate();
  stats->samples         = mi_atomic_load_relaxed(&counts->samples);
  mi_prof_debug_stats(&stats->live_samples, &stats->live_sample_bytes);
  stats->inuse_objects   = mi_prof_count_round(&counts->inuse_objects);
  stats->inuse_bytes     = mi_prof_count_round(&counts->inuse_bytes);
  stats->alloc_objects   = mi_prof_count_round(&counts->alloc_objects);
  stats->alloc_bytes     = mi_prof_count_round(&counts->alloc_bytes);
  stats->peak_bytes      = mi_prof_count_round(&counts->peak_bytes);
  stats->dropped_memory  = mi_atomic_load_relaxed(&counts->dropped_memory);
  stats->dropped_limit   = mi_atomic_load_relaxed(&counts->dropped_limit);
  stats->dropped_reentry = mi_atomic_load_relaxed(&counts->dropped_reentry);
  stats->folded_stacks   = mi_atomic_load_relaxed(&counts->folded_stacks);
  stats->failed_unwinds  = mi_atomic_load_relaxed(&counts->failed_unwinds);
  stats->stacks          = mi_atomic_load_relaxed(&mi_prof_stack_count) - MI_PROF_STACKS_FIXED;
  stats->profiler_bytes  = mi_atomic_load_relaxed(&mi_prof_memory_used);
  stats->committed_bytes = mi_prof_stat_now(&_mi_stats_main.committed);
  stats->reserved_bytes  = mi_prof_stat_now(&_mi_stats_main.reserved);
  stats->rss_bytes       = _mi_prof_prim_rss();
  stats->dumps           = mi_atomic_load_relaxed(&counts->dumps);
  stats->failed_dumps    = mi_atomic_load_relaxed(&counts->failed_dumps);
  return true;
}


/* -----------------------------------------------------------
  For tests
----------------------------------------------------------- */

typedef struct mi_prof_estimate_s {
  size_t  size;
  double  objects;
  double  bytes;
} mi_prof_estimate_t;

static void mi_prof_estimate_record(mi_prof_record_t* record, void* arg) {
  mi_prof_estimate_t* const estimate = (mi_prof_estimate_t*)arg;
  if (estimate->size != 0 && estimate->size != record->size) return;
  estimate->objects += record->weight;
  estimate->bytes += record->weight * (double)record->size;
}

// The estimated number and bytes of live objects of `size` bytes (0: of any size).
mi_decl_hidden void _mi_prof_estimate(size_t size, double* objects, double* bytes);
void _mi_prof_estimate(size_t size, double* objects, double* bytes) {
  mi_prof_estimate_t estimate = { size, 0.0, 0.0 };
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_lock(&mi_prof_record_shards[i].lock) {
      mi_prof_record_shard_visit(&mi_prof_record_shards[i], &mi_prof_estimate_record, &estimate);
    }
  }
  *objects = estimate.objects;
  *bytes = estimate.bytes;
}


/* -----------------------------------------------------------
  Process start and end
----------------------------------------------------------- */

// Called twice: when the allocator starts, and again once the C runtime is there, in case the environment could not
// be read at first.
void _mi_prof_process_init(void) {
  static bool done;
  if (done) return;
  #if !defined(_WIN32)                    // there it can always be read, and the second call may never come
  if (_mi_preloading()) return;
  #endif
  done = true;
  mi_prof_fork_init();
  mi_prof_environment_init();
  if (_mi_prof_prim_is_setuid()) return;  // the environment is not to be trusted
  if (mi_option_is_enabled(mi_option_prof)) { mi_prof_start(0); }
}

void _mi_prof_process_done(void) {
  mi_prof_trigger_done();
  mi_prof_watch_update();
  mi_prof_exit_dump();
  if (mi_prof.config.leak) { mi_prof_leak_print(); }
  // what follows may unmap the pages that records refer to
  if (mi_option_is_enabled(mi_option_destroy_on_exit)) { mi_prof_stop(); }
}

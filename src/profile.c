// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

/* -----------------------------------------------------------
  A sampling heap profiler. This file owns the session (what is
  on, since when, at which rate), the public functions and the
  slow paths of the hooks that `mimalloc/profile-hooks.h` puts
  into the allocator. The parts below own

    profile-sampler.c    which allocations are sampled, and what one stands for
    profile-prim.c       what each operating system does in its own way
    profile-capture.c    who captures a stack, and how
    profile-record.c     live samples, and the memory they are in
    profile-stack.c      call stacks
    profile-snapshot.c   a consistent copy of all records
    profile-pprof.c      the output formats
    profile-dump.c       a snapshot, written to a file

  Locks, outermost first: control (start, stop and snapshots),
  session (its parameters), a stack shard, a record shard. No lock
  is held while foreign code runs or a file is written.
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

_Atomic(size_t) _mi_prof_session;

static mi_lock_t mi_prof_control_lock = MI_LOCK_INITIALIZER;
static mi_lock_t mi_prof_session_lock = MI_LOCK_INITIALIZER;

static struct mi_prof_s {
  // written when a session starts; a thread that still is in an earlier one may read them, but its samples are rejected
  _Atomic(size_t)   rate;             // mean bytes between samples
  _Atomic(size_t)   depth;            // maximal depth of a stack
  _Atomic(size_t)   dropped;          // samples lost
  // with the session lock
  uint64_t          seed;
  size_t            thread_count;     // threads that took part
  size_t            last_session;
  // with the control lock
  int64_t           start_nanos;      // Unix time
} mi_prof;

#define MI_IN_PROFILE_C
#include "profile-sampler.c"
#include "profile-prim.c"
#include "profile-capture.c"
#include "profile-record.c"
#include "profile-stack.c"
#include "profile-snapshot.c"
#include "profile-pprof.c"
#undef MI_IN_PROFILE_C


/* -----------------------------------------------------------
  Drawing: which of the blocks in `page->free` are sampled
----------------------------------------------------------- */

static size_t mi_prof_rate(void) {
  return mi_atomic_load_relaxed(&mi_prof.rate);
}

// The calling thread sees a new session: forget what earlier ones drew, and take its blocks away from the fast path.
static void mi_prof_thread_join(mi_tld_t* tld) {
  for (mi_heap_t* heap = tld->heaps; heap != NULL; heap = heap->next) {
    for (size_t i = 0; i <= MI_BIN_FULL; i++) {
      for (mi_page_t* page = heap->pages[i].first; page != NULL; page = page->next) { _mi_prof_page_park(page); }
    }
  }
  mi_lock(&mi_prof_session_lock) {
    mi_prof_random_init(&tld->prof, mi_prof.seed, mi_prof.thread_count, mi_prof_rate());
    mi_prof.thread_count++;
    tld->prof.session = mi_prof.last_session;
  }
}

// Draw for the first `n` blocks in `free`. If a later one than the first is chosen, the list is cut before it.
static void mi_prof_page_draw_first(mi_prof_tld_t* tld, mi_page_t* page, size_t n) {
  const size_t i = mi_prof_draw(tld, n, mi_page_block_size(page), mi_prof_rate());
  if (i == 0) {
    page->prof_state = MI_PROF_DUE;
  }
  else if (i < n) {
    _mi_prof_page_cut(page, i);
    page->prof_state = MI_PROF_CUT;
  }
}

// See `_mi_prof_page_is_due`.
bool _mi_prof_page_draw(mi_heap_t* heap, mi_page_t* page) {
  if mi_unlikely(heap->tld->prof.session != mi_atomic_load_relaxed(&_mi_prof_session)) {
    mi_prof_thread_join(heap->tld);
    _mi_prof_page_unpark(page);
  }
  if (page->prof_state == MI_PROF_UNDRAWN) {
    page->prof_state = MI_PROF_DRAWN;
    mi_prof_page_draw_first(&heap->tld->prof, page, _mi_prof_page_free_count(page));
  }
  mi_assert_internal(page->free != NULL);
  return (page->prof_state == MI_PROF_DUE);
}

// See `_mi_prof_page_extended`. What was drawn for the blocks behind stays: to draw them anew here, but never a sample
// that is due, would be biased.
void _mi_prof_page_draw_new(mi_heap_t* heap, mi_page_t* page, size_t count) {
  if (heap->tld->prof.session != mi_atomic_load_relaxed(&_mi_prof_session)) return;   // all is drawn anew soon
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

static void mi_prof_drop(void) {
  mi_atomic_increment_relaxed(&mi_prof.dropped);
}

// Record a sample. Called outside of all locks.
static void mi_prof_record(mi_prof_tld_t* tld, mi_page_t* page, mi_block_t* block, size_t size) {
  if mi_unlikely(tld->in_profiler) { mi_prof_drop(); return; }
  const int err = errno;      // an allocation that succeeds leaves it alone
  tld->in_profiler = true;
  uintptr_t frames[MI_PROF_CAPTURE_MAX];
  const size_t depth = mi_prof_capture(tld, frames, mi_atomic_load_relaxed(&mi_prof.depth));
  const mi_prof_stack_t* const stack = mi_prof_stack_intern(tld->session, frames, depth);
  const double weight = 1.0 / mi_prof_probability(size, mi_prof_rate());
  if (mi_prof_record_add(tld->session, page, block, size, weight, stack)) {
    page->flags.x.has_metadata = true;
  }
  else if (mi_atomic_load_relaxed(&_mi_prof_session) == tld->session) {   // if it is over, nothing is missing
    mi_prof_drop();
  }
  tld->in_profiler = false;
  errno = err;
}

// `p` was due and has just been popped from `page->free`, for a request of `size` bytes with padding.
void _mi_prof_sample(mi_heap_t* heap, mi_page_t* page, void* p, size_t size) {
  mi_prof_tld_t* const tld = &heap->tld->prof;
  mi_prof_page_draw_rest(tld, page);
  size_t request = size - MI_PADDING_SIZE;
  if (request == 0) { request = 1; }
  const size_t rate = mi_prof_rate();
  if (mi_prof_thin(tld, mi_prof_probability(request, rate), mi_prof_probability(mi_page_block_size(page), rate))) {
    mi_prof_record(tld, page, (mi_block_t*)p, request);
  }
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
  const size_t rate = mi_prof_rate();
  if (size == 0) { size = 1; }
  const double probability = mi_prof_probability(size, rate);
  const size_t old_size = mi_prof_record_update(page, block, size, 1.0 / probability);
  if (old_size == 0) return;
  if (!mi_prof_thin(&mi_page_heap(page)->tld->prof, probability, mi_prof_probability(old_size, rate))) {
    mi_prof_record_remove(page, block);
  }
}

// The block of `p` was resized in place. The sample goes on to stand for as many allocations as before.
void _mi_prof_resized(mi_page_t* page, void* p, size_t size) {
  mi_block_t* const block = _mi_page_ptr_unalign(page, p);
  if (mi_prof_record_may_exist(page, block)) { mi_prof_record_update(page, block, (size == 0 ? 1 : size), 0.0); }
}

// `block` is freed, by any thread.
void _mi_prof_free(mi_page_t* page, mi_block_t* block) {
  if mi_unlikely(mi_prof_record_may_exist(page, block)) { mi_prof_record_remove(page, block); }
}

// All blocks of the page are freed at once.
void _mi_prof_page_destroy(mi_page_t* page) {
  if (mi_atomic_load_acquire(&page->metadata) != 0) { mi_prof_record_remove_all(page); }
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
}

static void mi_prof_fork_release(void) {
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) { mi_lock_release(&mi_prof_record_shards[i].lock); }
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) { mi_lock_release(&mi_prof_stack_shards[i].lock); }
  mi_lock_release(&mi_prof_session_lock);
  mi_lock_release(&mi_prof_control_lock);
}


/* -----------------------------------------------------------
  Sessions
----------------------------------------------------------- */

// The value of an option. If it is out of range, warn and take the default.
static size_t mi_prof_option(mi_option_t option, const char* name, long min, long max, long fallback) {
  const long value = mi_option_get(option);
  if (value >= min && value <= max) return (size_t)value;
  _mi_warning_message("option '%s' has an invalid value (%ld): using %ld instead\n", name, value, fallback);
  return (size_t)fallback;
}

static void mi_prof_locks_init(void) {
  mi_atomic_do_once {
    for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
      mi_lock_init(&mi_prof_stack_shards[i].lock);
      mi_lock_init(&mi_prof_record_shards[i].lock);
    }
  }
}

static void mi_prof_init_once(void) {
  mi_prof_locks_init();
  mi_atomic_do_once {
    _mi_prof_prim_init();
    _mi_prof_prim_atfork(&mi_prof_fork_prepare, &mi_prof_fork_release, &mi_prof_fork_release);
  }
}

// With the control lock.
static bool mi_prof_session_start(size_t rate, uint64_t seed) {
  if (!mi_prof_stack_init()) return false;
  mi_atomic_store_relaxed(&mi_prof.rate, rate);
  mi_atomic_store_relaxed(&mi_prof.depth, mi_prof_option(mi_option_prof_bt_max, "prof_bt_max", 0, MI_PROF_MAX_DEPTH, 32));
  mi_atomic_store_relaxed(&mi_prof_memory_max, mi_prof_option(mi_option_prof_max_bytes, "prof_max_bytes", 0, LONG_MAX, 64L*1024*1024));
  mi_atomic_store_relaxed(&mi_prof.dropped, (size_t)0);
  mi_prof.start_nanos = _mi_prof_prim_time_nanos();
  mi_lock(&mi_prof_session_lock) {
    mi_prof.seed = seed;
    mi_prof.thread_count = 0;
    mi_prof.last_session++;
    mi_atomic_store_release(&_mi_prof_session, mi_prof.last_session);
  }
  return true;
}

static uint64_t mi_prof_random_seed(void) {
  uint64_t seed;
  if (!_mi_prim_random_buf(&seed, sizeof(seed))) { seed = (uint64_t)_mi_os_random_weak((uintptr_t)_mi_prof_prim_time_nanos()); }
  return seed;
}

bool mi_prof_start_seeded(size_t sample_rate, uint64_t seed) mi_attr_noexcept {
  if (mi_prof_is_enabled()) return true;
  const int err = errno;
  mi_prof_init_once();
  mi_prof_capture_init();
  if (sample_rate == 0) { sample_rate = mi_prof_option(mi_option_prof_sample_rate, "prof_sample_rate", 1, LONG_MAX, 524288); }
  if (sample_rate > SIZE_MAX/128) { sample_rate = SIZE_MAX/128; }   // so that no interval overflows
  if (seed == 0) { seed = mi_prof_random_seed(); }
  bool ok = true;
  mi_lock(&mi_prof_control_lock) {
    if (!mi_prof_is_enabled()) { ok = mi_prof_session_start(sample_rate, seed); }
  }
  if (!ok) {
    _mi_warning_message("unable to start the heap profiler: out of memory\n");
    return false;
  }
  // the calling thread takes part from now on; others when they next miss the fast path
  mi_heap_t* const heap = mi_prim_get_default_heap();
  if (mi_heap_is_initialized(heap) && heap->tld->prof.session != mi_atomic_load_relaxed(&_mi_prof_session)) { mi_prof_thread_join(heap->tld); }
  errno = err;
  return true;
}

bool mi_prof_start(size_t sample_rate) mi_attr_noexcept {
  return mi_prof_start_seeded(sample_rate, (uint64_t)mi_option_get(mi_option_prof_seed));
}

void mi_prof_stop(void) mi_attr_noexcept {
  mi_lock(&mi_prof_control_lock) {
    if (mi_prof_is_enabled()) {
      mi_atomic_store_release(&_mi_prof_session, (size_t)0);    // from here on nothing is added
      mi_prof_record_done();
      mi_prof_stack_done();
    }
  }
}

bool mi_prof_is_enabled(void) mi_attr_noexcept {
  return (mi_atomic_load_acquire(&_mi_prof_session) != 0);
}

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
  Dumps, and process start and end
----------------------------------------------------------- */

#define MI_IN_PROFILE_C
#include "profile-dump.c"
#undef MI_IN_PROFILE_C


// Called twice: when the allocator starts, and again once the C runtime is there, in case the environment could not
// be read at first.
void _mi_prof_process_init(void) {
  static bool done;
  if (done) return;
  #if !defined(_WIN32)                    // there it can always be read, and the second call may never come
  if (_mi_preloading()) return;
  #endif
  done = true;
  if (_mi_prof_prim_is_setuid()) return;  // the environment is not to be trusted
  mi_prof_exit_init();
  if (mi_option_is_enabled(mi_option_prof)) { mi_prof_start(0); }
}

void _mi_prof_process_done(void) {
  mi_prof_exit_dump();
  // what follows may unmap the pages that records refer to
  if (mi_option_is_enabled(mi_option_destroy_on_exit)) { mi_prof_stop(); }
}

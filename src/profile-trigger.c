// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Dumps that come by themselves. Whoever finds that one is due
  asks for it; the next thread that comes by on the slow path of
  an allocation serves it, or the thread of profile-watch.c. What
  is asked for while a dump is under way is one more dump after it.

  Bytes and the memory limit are looked at where a sample is taken.
  Without that thread the clock is looked at in every slow path, for
  which attention is asked for all the time.
----------------------------------------------------------- */

#define MI_PROF_LIMIT_MSECS     (100)     // from one look at the memory limit to the next
#define MI_PROF_LIMIT_REARM     (10)      // percent below the given share
#define MI_PROF_OOM_MSECS       (1000)    // from one dump without memory to the next
#define MI_PROF_MAX_SECONDS     ((size_t)1000*1000*1000)

static struct mi_prof_trigger_s {
  _Atomic(size_t) asked;          // is a dump asked for?
  _Atomic(size_t) busy;           // is one under way?
  // set with the control lock; 0 for never
  _Atomic(size_t) alloc;          // bytes
  _Atomic(size_t) growth;         // bytes
  _Atomic(size_t) seconds;
  _Atomic(size_t) limit;          // percent
  _Atomic(size_t) oom;
  _Atomic(size_t) kind;           // `mi_prof_kind_t`
  char            pattern[MI_PROF_MAX_PATH];
  // when the next one is due. Changed by the thread that finds it so
  int64_t         alloc_due;      // estimates (fixed point)
  int64_t         growth_due;
  int64_t         seconds_due;    // milliseconds of `_mi_clock_now`
  int64_t         limit_due;
  int64_t         oom_due;
  _Atomic(size_t) limit_reached;
  _Atomic(size_t) limit_busy;     // is a thread looking at it?
} mi_prof_trigger;

static _Atomic(size_t) mi_prof_watch_runs;    // is there a thread that looks at the clock?

static void mi_prof_watch_wake(void);
static void mi_prof_watch_want(const mi_prof_config_t* config);

/* -----------------------------------------------------------
  Ask
----------------------------------------------------------- */

static bool mi_prof_watches_clock(void) {
  return (mi_atomic_load_relaxed(&mi_prof_trigger.seconds) != 0 && mi_atomic_load_relaxed(&mi_prof_watch_runs) == 0);
}

static bool mi_prof_trigger_wants_attention(void) {
  return (mi_atomic_load_acquire(&mi_prof_trigger.asked) != 0 || mi_prof_watches_clock());
}

static void mi_prof_ask_attention(void) {
  mi_atomic_or_acq_rel(&_mi_prof_epoch, MI_PROF_ATTENTION);
}

// Ask for a dump. From anywhere, a signal handler too.
static void mi_prof_ask(void) {
  mi_atomic_store_release(&mi_prof_trigger.asked, (size_t)1);
  mi_prof_ask_attention();
}

static int64_t mi_prof_due_get(int64_t* due) {
  return mi_atomic_loadi64_relaxed((_Atomic(int64_t)*)due);
}

static void mi_prof_due_set(int64_t* due, int64_t x) {
  mi_atomic_addi64_relaxed(due, x - mi_prof_due_get(due));
}

// Has `now` come to `*due`? The next is due at the first multiple of `width` from there that is still to come. True for one
// thread only.
static bool mi_prof_is_due(int64_t* due, int64_t width, int64_t now) {
  int64_t expected = mi_prof_due_get(due);
  return (now >= expected && mi_atomic_casi64_strong_acq_rel((_Atomic(int64_t)*)due, &expected, now - (now - expected)%width + width));
}

static int64_t mi_prof_msecs(void) {
  return (int64_t)_mi_clock_now();
}

static bool mi_prof_seconds_are_due(void) {
  const size_t seconds = mi_atomic_load_relaxed(&mi_prof_trigger.seconds);
  return (seconds != 0 && mi_prof_is_due(&mi_prof_trigger.seconds_due, (int64_t)seconds*1000, mi_prof_msecs()));
}

// Milliseconds until a dump is due by the time; -1 if none is.
static int64_t mi_prof_seconds_left(void) {
  if (mi_atomic_load_relaxed(&mi_prof_trigger.seconds) == 0) return -1;
  const int64_t left = mi_prof_due_get(&mi_prof_trigger.seconds_due) - mi_prof_msecs();
  return (left < 0 ? 0 : left);
}

static bool mi_prof_bytes_are_due(_Atomic(size_t)* bytes, int64_t* due, int64_t* count) {
  const size_t width = mi_atomic_load_relaxed(bytes);
  return (width != 0 && mi_prof_is_due(due, mi_prof_fixed((double)width), mi_prof_count_get(count)));
}

// Once each time that the limit comes near.
static bool mi_prof_limit_is_reached(size_t percent) {
  if (!mi_prof_is_due(&mi_prof_trigger.limit_due, MI_PROF_LIMIT_MSECS, mi_prof_msecs())) return false;
  if (mi_atomic_exchange_acq_rel(&mi_prof_trigger.limit_busy, (size_t)1) != 0) return false;   // it takes its time
  const size_t share = _mi_prof_memory_share();
  mi_atomic_store_release(&mi_prof_trigger.limit_busy, (size_t)0);
  if (share + MI_PROF_LIMIT_REARM <= percent) { mi_atomic_store_relaxed(&mi_prof_trigger.limit_reached, (size_t)0); }
  return (share >= percent && mi_atomic_exchange_relaxed(&mi_prof_trigger.limit_reached, (size_t)1) == 0);
}

// A sample was taken: is a dump due?
static void mi_prof_trigger_look(void) {
  struct mi_prof_trigger_s* const t = &mi_prof_trigger;
  const size_t limit = mi_atomic_load_relaxed(&t->limit);
  const bool by_alloc  = mi_prof_bytes_are_due(&t->alloc, &t->alloc_due, &mi_prof_counts.alloc_bytes);
  const bool by_growth = mi_prof_bytes_are_due(&t->growth, &t->growth_due, &mi_prof_counts.inuse_bytes);
  const bool by_limit  = (limit != 0 && mi_prof_limit_is_reached(limit));
  if (by_alloc || by_growth || by_limit) { mi_prof_ask(); }
}

/* -----------------------------------------------------------
  Names. `%p` is the process, `%n` a number that counts from 1.
  A forked child has its number in every name, so that no file
  is its parent's.
----------------------------------------------------------- */

static _Atomic(size_t) mi_prof_dump_number;

// Where the endings begin that say what is in a file.
static size_t mi_prof_path_ending(const char* path) {
  static const char* const endings[] = { ".pb.gz", ".heap", ".txt" };
  const size_t len = _mi_strlen(path);
  for (size_t i = 0; i < sizeof(endings)/sizeof(endings[0]); i++) {
    const size_t n = _mi_strlen(endings[i]);
    if (len > n && _mi_streq(path + len - n, endings[i])) return len - n;
  }
  return len;
}

static bool mi_prof_path_is_text(const char* path) {
  const char* const ending = path + mi_prof_path_ending(path);
  return (_mi_streq(ending, ".heap") || _mi_streq(ending, ".txt"));
}

static bool mi_prof_pattern_has(const char* pattern, char c) {
  for (; *pattern != 0; pattern++) {
    if (pattern[0] == '%' && pattern[1] == c) return true;
    if (pattern[0] == '%' && pattern[1] == '%') { pattern++; }
  }
  return false;
}

static bool mi_prof_pattern_fits(const char* pattern) {
  return (pattern == NULL || _mi_strnlen(pattern, MI_PROF_MAX_PATH) < MI_PROF_MAX_PATH - 1);
}

// Returns false if the result does not fit.
static bool mi_prof_pattern_expand(const char* pattern, size_t number, char* path, size_t size) {
  const size_t pid = _mi_prof_prim_process_id();
  const size_t first = mi_atomic_load_relaxed(&mi_prof_first_process);
  const bool add_pid = (first != 0 && first != pid && !mi_prof_pattern_has(pattern, 'p'));
  const size_t ending = mi_prof_path_ending(pattern);
  size_t n = 0;
  for (size_t i = 0; ; i++) {
    if (n + 48 > size) return false;      // room for two numbers and the end
    if (add_pid && i == ending) { n += (size_t)_mi_snprintf(path + n, size - n, ".%zu", pid); }
    if (pattern[i] == 0) break;
    const char next = (pattern[i] == '%' ? pattern[i + 1] : 0);
    if (next == 'p')      { n += (size_t)_mi_snprintf(path + n, size - n, "%zu", pid); i++; }
    else if (next == 'n') { n += (size_t)_mi_snprintf(path + n, size - n, "%zu", number); i++; }
    else {
      path[n++] = pattern[i];
      if (next == '%') { i++; }
    }
  }
  path[n] = 0;
  return true;
}

/* -----------------------------------------------------------
  Write. One dump of these at a time: with `busy`
----------------------------------------------------------- */

// The files that there are to remove, by their number.
static struct mi_prof_written_s {
  size_t            number;
  mi_prof_file_id_t id;
} mi_prof_written[MI_PROF_KEEP_MAX + 1];

static struct mi_prof_written_s* mi_prof_written_slot(size_t number) {
  return &mi_prof_written[number % (MI_PROF_KEEP_MAX + 1)];
}

// The file at `path` is new. Of more than `keep` remove the oldest, if that is still the one that was written.
static void mi_prof_keep(const char* pattern, size_t number, char* path, size_t size, size_t keep) {
  if (!mi_prof_pattern_has(pattern, 'n')) return;   // there is only one
  struct mi_prof_written_s* slot = mi_prof_written_slot(number);
  slot->number = (_mi_prof_prim_file_id(path, &slot->id) ? number : 0);
  if (keep == 0 || number <= keep) return;
  slot = mi_prof_written_slot(number - keep);
  mi_prof_file_id_t id;
  if (slot->number == number - keep && mi_prof_pattern_expand(pattern, slot->number, path, size) &&
      _mi_prof_prim_file_id(path, &id) && id.volume == slot->id.volume && id.number == slot->id.number) {
    _mi_prof_prim_file_remove(path);
  }
  slot->number = 0;
}

// The name says in which form, the session what.
static bool mi_prof_dump_by_name(const char* path, bool is_automatic) {
  const mi_prof_format_t format = (mi_prof_path_is_text(path) ? MI_PROF_FORMAT_TEXT : MI_PROF_FORMAT_PPROF);
  return mi_prof_dump_to(path, format, (mi_prof_kind_t)mi_atomic_load_relaxed(&mi_prof_trigger.kind), is_automatic);
}

static void mi_prof_dump_automatic(void) {
  static char pattern[MI_PROF_MAX_PATH];
  static char path[MI_PROF_MAX_PATH];
  if (!mi_prof_control_enter()) return;
  _mi_strlcpy(pattern, (mi_prof_is_enabled() ? mi_prof_trigger.pattern : ""), sizeof(pattern));
  const size_t keep = mi_prof.config.dump_keep;
  mi_prof_control_leave();
  if (pattern[0] == 0) return;
  const size_t number = mi_atomic_increment_relaxed(&mi_prof_dump_number) + 1;
  if (!mi_prof_pattern_expand(pattern, number, path, sizeof(path))) { mi_prof_dump_failed(pattern, "the path is too long", 0, true); }
  else if (mi_prof_dump_by_name(path, true)) {
    mi_prof_keep(pattern, number, path, sizeof(path), keep);
  }
}

static bool mi_prof_busy_enter(void) {
  size_t idle = 0;
  return (mi_atomic_load_relaxed(&mi_prof_trigger.busy) == 0 && mi_atomic_cas_strong_acq_rel(&mi_prof_trigger.busy, &idle, (size_t)1));
}

static void mi_prof_busy_leave(void) {
  mi_atomic_store_release(&mi_prof_trigger.busy, (size_t)0);
  if (mi_atomic_load_acquire(&mi_prof_trigger.asked) != 0) { mi_prof_watch_wake(); }    // it may have come by meanwhile
}

// What the calling thread allocates is not sampled while it is muted. Returns whether it was.
static bool mi_prof_mute(bool on) {
  mi_heap_t* const heap = mi_prim_get_default_heap();
  if (!mi_heap_is_initialized(heap)) return false;
  const bool was = heap->tld->prof.muted;
  heap->tld->prof.muted = on;
  return was;
}

// Write the profile that is asked for, unless another thread is at it. The calling thread is muted.
static void mi_prof_serve(void) {
  if (!mi_prof_busy_enter()) return;
  if (!mi_prof_watches_clock()) { mi_atomic_and_acq_rel(&_mi_prof_epoch, ~MI_PROF_ATTENTION); }
  const bool is_asked = (mi_atomic_exchange_acq_rel(&mi_prof_trigger.asked, (size_t)0) != 0);
  if (mi_prof_seconds_are_due() || is_asked) { mi_prof_dump_automatic(); }
  mi_prof_busy_leave();
}

// At the end of an allocation, when attention is asked for.
static mi_decl_noinline void mi_prof_attend(mi_prof_tld_t* tld) {
  if (tld->muted || tld->in_profiler || mi_prof_control_is_ours()) return;
  if (mi_prof_watches_clock() && mi_atomic_load_relaxed(&mi_prof_trigger.asked) == 0 && mi_prof_seconds_left() > 0) return;
  const mi_prof_errno_t e = mi_prof_errno_save();     // an allocation that succeeds leaves it alone
  tld->muted = true;
  mi_prof_serve();
  tld->muted = false;
  mi_prof_errno_restore(e);
}

// An allocation is about to fail.
void _mi_prof_out_of_memory(mi_heap_t* heap) {
  if (mi_atomic_load_relaxed(&mi_prof_trigger.oom) == 0) return;
  mi_prof_tld_t* const tld = &heap->tld->prof;
  if (tld->muted || tld->in_profiler || mi_prof_control_is_ours()) return;
  if (!mi_prof_is_due(&mi_prof_trigger.oom_due, MI_PROF_OOM_MSECS, mi_prof_msecs())) return;
  if (!mi_prof_busy_enter()) { mi_prof_ask(); return; }
  const mi_prof_errno_t e = mi_prof_errno_save();
  tld->muted = true;
  mi_prof_reserve_enter();
  mi_prof_dump_automatic();
  mi_prof_reserve_leave();
  tld->muted = false;
  mi_prof_busy_leave();
  mi_prof_errno_restore(e);
}

// At process exit.
static void mi_prof_exit_dump(void) {
  static char path[MI_PROF_MAX_PATH];
  if (mi_prof_exit_path[0] == 0) return;
  const size_t number = (mi_prof_pattern_has(mi_prof_exit_path, 'n') ? mi_atomic_increment_relaxed(&mi_prof_dump_number) + 1 : 0);
  if (!mi_prof_pattern_expand(mi_prof_exit_path, number, path, sizeof(path))) {
    mi_prof_dump_failed(mi_prof_exit_path, "the path is too long", 0, false);
  }
  else {
    mi_prof_dump_by_name(path, false);
  }
}

/* -----------------------------------------------------------
  Sessions. All with the control lock.
----------------------------------------------------------- */

// Count allocated and grown bytes from here.
static void mi_prof_trigger_reset(void) {
  const int64_t growth = mi_prof_fixed((double)mi_atomic_load_relaxed(&mi_prof_trigger.growth));
  mi_prof_due_set(&mi_prof_trigger.alloc_due, mi_prof_fixed((double)mi_atomic_load_relaxed(&mi_prof_trigger.alloc)));
  if (growth != 0) {
    const int64_t inuse = mi_prof_count_get(&mi_prof_counts.inuse_bytes);
    mi_prof_due_set(&mi_prof_trigger.growth_due, inuse - inuse%growth + growth);
  }
}

// Is memory reserved for a dump when there is none?
static void mi_prof_reserve_want(bool on) {
  size_t fixed = 0;
  if (on) {
    mi_prof_snapshot_t empty;
    _mi_memzero_var(empty);
    fixed = _mi_prof_pprof_scratch_size(&empty) + MI_PROF_MAX_MODULES*(sizeof(mi_prof_module_t) + sizeof(uint32_t)) + MI_PROF_MAX_NAMES
            + MI_PROF_COPIES_SPARE*sizeof(mi_prof_copy_t) + sizeof(mi_prof_names_t) + 16*MI_PROF_CACHE_LINE;
  }
  mi_atomic_store_release(&mi_prof_reserve.fixed, fixed);
}

static void mi_prof_trigger_init(const mi_prof_config_t* config) {
  struct mi_prof_trigger_s* const t = &mi_prof_trigger;
  _mi_strlcpy(t->pattern, (config->dump_path == NULL ? MI_PROF_DEFAULT_PATTERN : config->dump_path), sizeof(t->pattern));
  const size_t seconds = (config->dump_seconds < MI_PROF_MAX_SECONDS ? config->dump_seconds : MI_PROF_MAX_SECONDS);
  mi_prof_due_set(&t->seconds_due, mi_prof_msecs() + (int64_t)seconds*1000);
  mi_prof_due_set(&t->limit_due, 0);
  mi_prof_due_set(&t->oom_due, 0);
  mi_atomic_store_relaxed(&t->limit_reached, (size_t)0);
  mi_atomic_store_release(&t->asked, (size_t)0);
  mi_atomic_store_relaxed(&t->alloc, config->dump_alloc);
  mi_atomic_store_relaxed(&t->growth, config->dump_growth);
  mi_atomic_store_relaxed(&t->seconds, seconds);
  mi_atomic_store_relaxed(&t->limit, config->dump_at_limit);
  mi_atomic_store_relaxed(&t->oom, (size_t)(config->dump_on_oom ? 1 : 0));
  mi_atomic_store_relaxed(&t->kind, (size_t)config->dump_kind);
  mi_prof_trigger_reset();
  mi_prof_reserve_want(config->dump_on_oom);
  mi_prof_watch_want(config);
}

// From here on none comes any more.
static void mi_prof_trigger_done(void) {
  struct mi_prof_trigger_s* const t = &mi_prof_trigger;
  mi_atomic_store_relaxed(&t->alloc, (size_t)0);
  mi_atomic_store_relaxed(&t->growth, (size_t)0);
  mi_atomic_store_relaxed(&t->seconds, (size_t)0);
  mi_atomic_store_relaxed(&t->limit, (size_t)0);
  mi_atomic_store_relaxed(&t->oom, (size_t)0);
  mi_atomic_store_release(&t->asked, (size_t)0);
  mi_prof_reserve_want(false);
  mi_prof_watch_want(NULL);
}

// In a forked child: what its parent's threads were about is not its business.
static void mi_prof_trigger_forked(void) {
  mi_atomic_store_relaxed(&mi_prof_trigger.asked, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_trigger.busy, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_trigger.limit_busy, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_reserve.user, (uintptr_t)0);
  mi_atomic_store_relaxed(&mi_prof_dump_number, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_counts.dumps, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_counts.failed_dumps, (size_t)0);
  for (size_t i = 0; i <= MI_PROF_KEEP_MAX; i++) { mi_prof_written[i].number = 0; }
}

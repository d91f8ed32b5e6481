// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Dumps: take a snapshot with the control lock, and then, without
  any lock, encode and write it.
----------------------------------------------------------- */

// Always shown: who asked for a profile and gets none must hear of it. But of those that come by themselves, which may be many,
// only one in a second. A long path is cut, as messages have a limit.
static bool mi_prof_dump_failed(const char* path, const char* reason, int code, bool is_automatic) {
  static int64_t next_warning;    // for automatic ones, of which there is one at a time
  mi_atomic_increment_relaxed(&mi_prof_counts.failed_dumps);
  if (is_automatic) {
    const int64_t now = (int64_t)_mi_clock_now();
    if (now < next_warning) return false;
    next_warning = now + 1000;
  }
  char shown[256];
  _mi_strlcpy(shown, path, sizeof(shown));
  if (code != 0) { _mi_message("warning: unable to write the heap profile '%s': %s (error %d)\n", shown, reason, code); }
            else { _mi_message("warning: unable to write the heap profile '%s': %s\n", shown, reason); }
  return false;
}

static const char* const mi_prof_reason_off    = "profiling is off (call `mi_prof_start`, or set `MIMALLOC_PROF=1`)";
static const char* const mi_prof_reason_memory = "out of memory";

// Fill `snapshot`; release it in any case. Returns NULL, or why it failed.
static const char* mi_prof_snapshot_make(mi_prof_snapshot_t* snapshot, mi_prof_kind_t kind) {
  _mi_memzero(snapshot, sizeof(*snapshot));
  if (!mi_prof_control_enter()) return "this thread is taking a snapshot already";
  const char* reason = NULL;
  if (!mi_prof_is_enabled()) { reason = mi_prof_reason_off; }
  else if (kind == MI_PROF_KIND_ALLOCS && !mi_prof.config.accum) { reason = "allocations are not counted (set `prof_accum`)"; }
  else if (kind == MI_PROF_KIND_PEAK && !mi_prof.config.peak) { reason = "no peak is kept (set `prof_peak`)"; }
  else if (!(kind == MI_PROF_KIND_PEAK ? mi_prof_peak_take(snapshot) : mi_prof_snapshot_take(snapshot))) { reason = mi_prof_reason_memory; }
  mi_prof_control_leave();
  if (reason != NULL) return reason;
  snapshot->kind = kind;
  mi_prof_stats_init(&snapshot->stats);
  mi_prof_stats_get(&snapshot->stats);
  return (mi_prof_snapshot_add_modules(snapshot) ? NULL : mi_prof_reason_memory);
}

static bool mi_prof_write(const mi_prof_snapshot_t* snapshot, mi_prof_format_t format, mi_prof_write_fun* write, void* arg) {
  if (format == MI_PROF_FORMAT_TEXT) return _mi_prof_write_text(snapshot, write, arg);
  mi_prof_block_t scratch;
  if (!mi_prof_block_alloc(&scratch, _mi_prof_pprof_scratch_size(snapshot))) return false;
  const bool ok = _mi_prof_write_pprof(snapshot, scratch.start, write, arg);
  mi_prof_block_free(&scratch);
  return ok;
}

static bool mi_prof_write_file(const mi_prof_snapshot_t* snapshot, mi_prof_format_t format, const char* path, bool is_automatic) {
  mi_prof_file_t file;
  bool ok = _mi_prof_prim_file_open(&file, path);
  if (ok) {
    const bool written = mi_prof_write(snapshot, format, &_mi_prof_prim_file_write, &file);
    ok = _mi_prof_prim_file_close(&file, written) && written;
  }
  if (!ok) return mi_prof_dump_failed(path, (file.error != NULL ? file.error : mi_prof_reason_memory), file.error_code, is_automatic);
  mi_atomic_increment_relaxed(&mi_prof_counts.dumps);
  return true;
}

static bool mi_prof_dump_to(const char* path, mi_prof_format_t format, mi_prof_kind_t kind, bool is_automatic) {
  const int err = errno;
  if (path == NULL || path[0] == 0) return mi_prof_dump_failed("", "no path is given", 0, is_automatic);
  mi_prof_snapshot_t snapshot;
  const char* const reason = mi_prof_snapshot_make(&snapshot, kind);
  const bool ok = (reason == NULL ? mi_prof_write_file(&snapshot, format, path, is_automatic) : mi_prof_dump_failed(path, reason, 0, is_automatic));
  mi_prof_snapshot_release(&snapshot);
  if (ok) { errno = err; }
  return ok;
}

bool mi_prof_dump(const char* path) mi_attr_noexcept {
  return mi_prof_dump_to(path, MI_PROF_FORMAT_PPROF, MI_PROF_KIND_LIVE, false);
}

bool mi_prof_dump_text(const char* path) mi_attr_noexcept {
  return mi_prof_dump_to(path, MI_PROF_FORMAT_TEXT, MI_PROF_KIND_LIVE, false);
}

bool mi_prof_dump_writer(mi_prof_format_t format, mi_prof_kind_t kind, mi_prof_write_fun* write, void* arg) mi_attr_noexcept {
  if (write == NULL || (unsigned)format > MI_PROF_FORMAT_TEXT || (unsigned)kind > MI_PROF_KIND_PEAK) return false;
  mi_prof_snapshot_t snapshot;
  const bool ok = (mi_prof_snapshot_make(&snapshot, kind) == NULL && mi_prof_write(&snapshot, format, write, arg));
  mi_prof_snapshot_release(&snapshot);
  return ok;
}


/* -----------------------------------------------------------
  Snapshots and modules for the program
----------------------------------------------------------- */

mi_prof_snapshot_t* mi_prof_snapshot_new(void) mi_attr_noexcept {
  mi_prof_block_t self;
  if (!mi_prof_block_alloc(&self, sizeof(mi_prof_snapshot_t))) return NULL;
  mi_prof_snapshot_t* const snapshot = (mi_prof_snapshot_t*)self.start;
  const bool ok = (mi_prof_snapshot_make(snapshot, MI_PROF_KIND_LIVE) == NULL);
  snapshot->self = self;
  if (ok) return snapshot;
  mi_prof_snapshot_free(snapshot);
  return NULL;
}

bool mi_prof_snapshot_visit(const mi_prof_snapshot_t* snapshot, mi_prof_visit_fun* visit, void* arg) mi_attr_noexcept {
  if (snapshot == NULL || visit == NULL) return false;
  for (size_t i = 0; i < snapshot->sample_count; i++) {
    if (!visit(&snapshot->samples[i], arg)) return false;
  }
  return true;
}

void mi_prof_snapshot_free(mi_prof_snapshot_t* snapshot) mi_attr_noexcept {
  if (snapshot == NULL) return;
  mi_prof_snapshot_release(snapshot);
  mi_prof_block_t self = snapshot->self;
  mi_prof_block_free(&self);
}

bool mi_prof_modules_visit(mi_prof_module_fun* visit, void* arg) mi_attr_noexcept {
  if (visit == NULL) return false;
  mi_prof_snapshot_t snapshot;
  _mi_memzero_var(snapshot);
  bool ok = mi_prof_snapshot_add_modules(&snapshot);
  for (size_t i = 0; ok && i < snapshot.module_count; i++) { ok = visit(&snapshot.modules[i], arg); }
  mi_prof_snapshot_release(&snapshot);
  return ok;
}

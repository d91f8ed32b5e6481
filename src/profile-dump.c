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

#define MI_PROF_MAX_MODULES   (2048)
#define MI_PROF_MAX_NAMES     (512*MI_KiB)

// Always shown: who asked for a profile and gets none must hear of it. A long path is cut, as messages have a limit.
static bool mi_prof_dump_failed(const char* path, const char* reason, int code) {
  char shown[256];
  _mi_strlcpy(shown, path, sizeof(shown));
  if (code != 0) { _mi_message("warning: unable to write the heap profile '%s': %s (error %d)\n", shown, reason, code); }
            else { _mi_message("warning: unable to write the heap profile '%s': %s\n", shown, reason); }
  return false;
}

static bool mi_prof_write(const mi_prof_snapshot_t* snapshot, bool text, mi_prof_write_fun* write, void* arg) {
  if (text) return _mi_prof_write_text(snapshot, write, arg);
  mi_prof_block_t scratch;
  if (!mi_prof_block_alloc(&scratch, _mi_prof_pprof_scratch_size(snapshot))) return false;
  const bool ok = _mi_prof_write_pprof(snapshot, scratch.start, write, arg);
  mi_prof_block_free(&scratch);
  return ok;
}

static bool mi_prof_write_file(const mi_prof_snapshot_t* snapshot, bool text, const char* path) {
  mi_prof_file_t file;
  bool ok = _mi_prof_prim_file_open(&file, path);
  if (ok) {
    const bool written = mi_prof_write(snapshot, text, &_mi_prof_prim_file_write, &file);
    ok = _mi_prof_prim_file_close(&file, written) && written;
  }
  return (ok ? true : mi_prof_dump_failed(path, (file.error != NULL ? file.error : "out of memory"), file.error_code));
}

static bool mi_prof_dump_as(const char* path, bool text) {
  const int err = errno;
  if (path == NULL || path[0] == 0) return mi_prof_dump_failed("", "no path is given", 0);
  mi_prof_snapshot_t snapshot;
  _mi_memzero(&snapshot, sizeof(snapshot));
  mi_prof_block_t samples = { NULL, 0, _mi_memid_none() };
  bool enabled = false;
  bool ok = false;
  mi_lock(&mi_prof_control_lock) {
    enabled = mi_prof_is_enabled();
    if (enabled) {
      snapshot.rate = mi_prof_rate();
      snapshot.time_nanos = _mi_prof_prim_time_nanos();
      snapshot.duration_nanos = snapshot.time_nanos - mi_prof.start_nanos;
      snapshot.dropped = mi_atomic_load_relaxed(&mi_prof.dropped);
      ok = mi_prof_snapshot_take(&snapshot, &samples);
    }
  }
  if (!enabled) return mi_prof_dump_failed(path, "profiling is off (call `mi_prof_start`, or set `MIMALLOC_PROF=1`)", 0);
  mi_prof_block_t modules = { NULL, 0, _mi_memid_none() };
  ok = ok && mi_prof_block_alloc(&modules, MI_PROF_MAX_MODULES*sizeof(mi_prof_module_t) + MI_PROF_MAX_NAMES);
  if (ok) {
    mi_prof_module_t* const items = (mi_prof_module_t*)modules.start;
    snapshot.modules = items;
    snapshot.module_count = _mi_prof_prim_modules(items, MI_PROF_MAX_MODULES, (char*)(items + MI_PROF_MAX_MODULES), MI_PROF_MAX_NAMES);
    ok = mi_prof_write_file(&snapshot, text, path);
  }
  else {
    mi_prof_dump_failed(path, "out of memory", 0);
  }
  mi_prof_block_free(&modules);
  mi_prof_block_free(&samples);
  if (ok) { errno = err; }
  return ok;
}

bool mi_prof_dump(const char* path) mi_attr_noexcept {
  return mi_prof_dump_as(path, false);
}

bool mi_prof_dump_text(const char* path) mi_attr_noexcept {
  return mi_prof_dump_as(path, true);
}


/* -----------------------------------------------------------
  The dump at process exit
----------------------------------------------------------- */

#define MI_PROF_MAX_PATH  (4096)

static char mi_prof_exit_path[MI_PROF_MAX_PATH];    // `MIMALLOC_PROF_DUMP_AT_EXIT`, or empty

static void mi_prof_exit_init(void) {
  if (!mi_prof_getenv("mimalloc_prof_dump_at_exit", mi_prof_exit_path, sizeof(mi_prof_exit_path))) { mi_prof_exit_path[0] = 0; }
}

// Replace each `%p` by the process id. Returns false if the result does not fit.
static bool mi_prof_expand_path(const char* path, char* result, size_t size) {
  size_t n = 0;
  for (; *path != 0; path++) {
    if (path[0] == '%' && path[1] == 'p') {
      n += (size_t)_mi_snprintf(result + n, size - n, "%zu", _mi_prof_prim_process_id());
      path++;
    }
    else {
      result[n++] = *path;
    }
    if (n + 24 >= size) return false;     // room for a process id and the end
  }
  result[n] = 0;
  return true;
}

static bool mi_prof_path_is_text(const char* path) {
  const size_t len = _mi_strlen(path);
  return ((len >= 5 && _mi_streq(path + len - 5, ".heap")) || (len >= 4 && _mi_streq(path + len - 4, ".txt")));
}

static void mi_prof_exit_dump(void) {
  if (mi_prof_exit_path[0] == 0) return;
  static char path[MI_PROF_MAX_PATH];
  if (!mi_prof_expand_path(mi_prof_exit_path, path, sizeof(path))) {
    mi_prof_dump_failed(mi_prof_exit_path, "the path is too long", 0);
  }
  else {
    mi_prof_dump_as(path, mi_prof_path_is_text(path));
  }
}

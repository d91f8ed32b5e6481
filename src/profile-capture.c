// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  The call stack of a sample: captured in the way that the
  environment names, or by a function of the program.
----------------------------------------------------------- */

// Room for one frame more than is kept, which tells that a stack is deeper, and for those of ours.
#define MI_PROF_CAPTURE_MAX   (MI_PROF_MAX_FRAMES + MI_PROF_OWN_FRAMES)

static _Atomic(uintptr_t) mi_prof_unwind;     // a `mi_prof_unwind_t`

// The program's unwinder: it and its argument belong together. A new pair goes where the last but one was.
static struct { _Atomic(uintptr_t) fun; _Atomic(uintptr_t) arg; } mi_prof_unwinders[2];
static _Atomic(uintptr_t) mi_prof_unwinder_version;   // of the current pair; an even one is in the first place

// Returns NULL if there is none. Without a lock: it repeats itself only if the unwinder was set again meanwhile.
static mi_prof_unwind_fun* mi_prof_unwinder(void** arg) {
  uintptr_t version;
  uintptr_t fun;
  do {
    version = mi_atomic_load_acquire(&mi_prof_unwinder_version);
    fun  = mi_atomic_load_acquire(&mi_prof_unwinders[version % 2].fun);
    *arg = (void*)mi_atomic_load_acquire(&mi_prof_unwinders[version % 2].arg);
  } while (mi_atomic_load_relaxed(&mi_prof_unwinder_version) != version);
  return (mi_prof_unwind_fun*)fun;
}

void mi_prof_set_unwinder(mi_prof_unwind_fun* fun, void* arg) mi_attr_noexcept {
  mi_lock(&mi_prof_session_lock) {
    const uintptr_t version = mi_atomic_load_relaxed(&mi_prof_unwinder_version) + 1;
    mi_atomic_store_release(&mi_prof_unwinders[version % 2].fun, (uintptr_t)fun);
    mi_atomic_store_release(&mi_prof_unwinders[version % 2].arg, (uintptr_t)arg);
    mi_atomic_store_release(&mi_prof_unwinder_version, version);
  }
}

static bool mi_prof_getenv(const char* name, char* value, size_t size) {
  #if (MI_MALLOC_VERSION < 20500)
  return _mi_getenv(name, value, size);
  #else
  return (_mi_getenv(name, value, size) == 0);    // an error number
  #endif
}

bool _mi_prof_unwind_parse(const char* name, mi_prof_unwind_t* how) {
  static const char* const names[] = { "auto", "unwind", "fp", "none" };
  for (size_t i = 0; i < sizeof(names)/sizeof(names[0]); i++) {
    if (_mi_streq(name, names[i])) { *how = (mi_prof_unwind_t)i; return true; }
  }
  return false;
}

// What `MIMALLOC_PROF_UNWIND` says.
static mi_prof_unwind_t mi_prof_unwind_default(void) {
  mi_prof_unwind_t how = MI_PROF_UNWIND_AUTO;
  char value[64];
  if (!_mi_prof_prim_is_setuid() && mi_prof_getenv("mimalloc_prof_unwind", value, sizeof(value)) && !_mi_prof_unwind_parse(value, &how)) {
    _mi_message("warning: environment variable 'MIMALLOC_PROF_UNWIND' has an invalid value (%s), which is not 'auto', 'unwind', 'fp' or 'none': using 'auto'\n", value);
  }
  return how;
}

// Are stacks captured at all?
static bool mi_prof_captures(size_t max_depth) {
  void* arg;
  return (max_depth > 0 && (mi_atomic_load_relaxed(&mi_prof_unwind) != MI_PROF_UNWIND_NONE || mi_prof_unwinder(&arg) != NULL));
}

// Store the stack, at most `max_depth` frames and the mark of a truncated one. Returns the number of frames.
static size_t mi_prof_capture(mi_prof_tld_t* tld, uintptr_t* frames, size_t max_depth) {
  if (max_depth == 0) return 0;
  void* arg;
  mi_prof_unwind_fun* const unwinder = mi_prof_unwinder(&arg);
  size_t depth;
  if (unwinder == NULL) {
    depth = _mi_prof_prim_backtrace((mi_prof_unwind_t)mi_atomic_load_relaxed(&mi_prof_unwind), frames, max_depth + 1);
  }
  else {
    const size_t max = max_depth + 1 + MI_PROF_OWN_FRAMES;
    tld->in_unwinder = true;
    depth = unwinder(frames, max, arg);
    tld->in_unwinder = false;
    depth = _mi_prof_prim_leave_out_own(frames, (depth <= max ? depth : 0));
  }
  if (depth <= max_depth) return depth;
  frames[max_depth] = MI_PROF_FRAME_TRUNCATED;
  return max_depth + 1;
}

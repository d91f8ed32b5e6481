// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// This file is included in `src/profile.c`

#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c' (as it is a part of that)"
#endif

// What runs on the sample path in its own way on each system: the backtrace, and which frames of it belong to
// the allocator; and time, process and memory. Included below are
//
//   profile-own.c        which code is the allocator's own
//   profile-module.c     the list of modules
//   profile-unwind.c     the walk itself, where the system has none that is safe and fast
//   profile-file.c       files

#include "mimalloc.h"
#include "mimalloc/internal.h"
#include "mimalloc/atomic.h"
#include "mimalloc/prim.h"      // _mi_prim_thread_id
#include "profile-internal.h"

#include <errno.h>

#if defined(_WIN32)
  #include <windows.h>
#else
  #include <signal.h>           // sigaltstack
  #include <time.h>             // clock_gettime
  #include <unistd.h>           // getpid
  #include <sys/mman.h>         // madvise
#endif
#if defined(__linux__)
  #include <dlfcn.h>            // _dl_find_object
  #include <pthread.h>          // pthread_getattr_np
  #include <sys/resource.h>     // getrlimit
  #include <sys/auxv.h>         // getauxval
  #include <sys/prctl.h>
  #include <sys/syscall.h>
#elif defined(__FreeBSD__)
  #include <sys/syscall.h>
#elif defined(__APPLE__)
  #include <mach-o/loader.h>
  #include <pthread.h>          // pthread_get_stackaddr_np
#endif
#if (defined(__linux__) || defined(__FreeBSD__)) && (defined(__GNUC__) || defined(__clang__))
  #include <elf.h>
  #define MI_PROF_USE_ELF       1
  #if (MI_INTPTR_SIZE == 8)
  #define MI_PROF_ELF(name)     Elf64_##name
  #else
  #define MI_PROF_ELF(name)     Elf32_##name
  #endif
#endif

#if defined(__cplusplus)
#define mi_prof_decl_extern  extern "C"
#else
#define mi_prof_decl_extern  extern
#endif

#if defined(_WIN32)
  #define MI_PROF_USE_WINDOWS   1         // `RtlCaptureStackBackTrace`
#else
  #if defined(__linux__) && defined(__GLIBC__)
    #define MI_PROF_USE_UNWIND  1         // libgcc's `_Unwind_Backtrace`
    #include <unwind.h>
  #endif
  #if (defined(__linux__) || defined(__FreeBSD__) || defined(__APPLE__)) && \
      (defined(__x86_64__) || defined(__i386__) || defined(__aarch64__) || defined(__riscv))
    #define MI_PROF_USE_FRAMES  1         // a walk of our own: by frame pointers
    #if MI_PROF_USE_ELF && (MI_INTPTR_SIZE == 8 || defined(__i386__)) && !defined(__AARCH64EB__)
      #define MI_PROF_USE_CFI   1         // and by unwind tables
    #endif
  #endif
#endif
#ifndef MI_PROF_USE_UNWIND
  #define MI_PROF_USE_UNWIND    0
#endif


#if MI_PROF_USE_FRAMES || MI_PROF_USE_ELF

/* -----------------------------------------------------------
  Memory that may not be there
----------------------------------------------------------- */

// Let the kernel read 8 bytes: an invalid argument is only found out after that.
static bool mi_prof_is_word_readable(uintptr_t p) {
  #if defined(__linux__)
  return (syscall(SYS_rt_sigprocmask, ~0, p & ~(uintptr_t)7, NULL, 8) != 0 && errno == EINVAL);
  #elif defined(__FreeBSD__)
  return (syscall(SYS_sigprocmask, ~0, p & ~(uintptr_t)7, NULL) != 0 && errno == EINVAL);
  #else
  return (sigprocmask(~0, (const sigset_t*)(p & ~(uintptr_t)7), NULL) != 0 && errno == EINVAL);
  #endif
}

static bool mi_prof_is_readable(uintptr_t p, size_t size) {
  const uintptr_t page = 4096;    // all page sizes are a multiple
  for (uintptr_t q = p & ~(page - 1); q < p + size; q += page) {
    if (!mi_prof_is_word_readable(q)) return false;
  }
  return true;
}

#endif

#include "profile-own.c"
#include "profile-module.c"


/* -----------------------------------------------------------
  Backtrace: each system walks the stack and pushes the return addresses.
----------------------------------------------------------- */

typedef struct mi_prof_walk_s {
  uintptr_t* frames;
  size_t     max;
  size_t     count;
  size_t     gap;       // frames since the last one of ours
} mi_prof_walk_t;

// Add the next frame; returns false if no more are needed.
static inline bool mi_prof_walk_push(mi_prof_walk_t* walk, uintptr_t pc) {
  if (walk->gap < MI_PROF_OWN_GAP) {
    if (mi_prof_is_own(pc)) {
      walk->count = 0;
      walk->gap = 0;
      return true;
    }
    walk->gap++;
  }
  if (walk->count < walk->max) { walk->frames[walk->count++] = pc; }
  return (walk->count < walk->max || walk->gap < MI_PROF_OWN_GAP);
}

size_t _mi_prof_prim_leave_out_own(uintptr_t* frames, size_t count) {
  size_t lead = 0;    // the last frame of ours, behind those of who captured the stack
  for (size_t i = 0; i < count && i < MI_PROF_OWN_FRAMES; i++) {
    if (mi_prof_is_own(frames[i])) { lead = i + 1; }
    else if (lead > 0 && i - lead >= MI_PROF_OWN_GAP) break;
  }
  for (size_t i = lead; i < count; i++) { frames[i - lead] = frames[i]; }
  return count - lead;
}

#if MI_PROF_USE_FRAMES
#include "profile-unwind.c"
#endif

#if MI_PROF_USE_WINDOWS

// not in all versions of the headers
mi_prof_decl_extern NTSYSAPI WORD NTAPI RtlCaptureStackBackTrace(DWORD FramesToSkip, DWORD FramesToCapture, PVOID* BackTrace, PDWORD BackTraceHash);

static void mi_prof_walk_stack(mi_prof_unwind_t how, mi_prof_walk_t* walk) {
  MI_UNUSED(how);
  void* frames[MI_PROF_MAX_FRAMES + MI_PROF_OWN_FRAMES];
  const size_t max = (walk->max <= MI_PROF_MAX_FRAMES ? walk->max : MI_PROF_MAX_FRAMES) + MI_PROF_OWN_FRAMES;
  const size_t n = RtlCaptureStackBackTrace(0, (DWORD)max, frames, NULL);
  for (size_t i = 0; i < n; i++) {
    if (frames[i] == NULL) break;   // wine goes on beyond the outermost frame
    if (!mi_prof_walk_push(walk, (uintptr_t)frames[i])) break;
  }
}

#else

#if MI_PROF_USE_UNWIND

static _Unwind_Reason_Code mi_prof_walk_unwind(struct _Unwind_Context* context, void* arg) {
  int is_exact = 0;   // in a function that a signal interrupted
  const uintptr_t pc = (uintptr_t)_Unwind_GetIPInfo(context, &is_exact);
  if (pc == 0) return _URC_END_OF_STACK;
  return (mi_prof_walk_push((mi_prof_walk_t*)arg, (is_exact ? pc + 1 : pc)) ? _URC_NO_REASON : _URC_END_OF_STACK);
}

#endif

// Stacks that our own walk did not get to the end of; for tests.
mi_decl_hidden extern _Atomic(size_t) _mi_prof_unwind_incomplete;
_Atomic(size_t) _mi_prof_unwind_incomplete;

static inline void mi_prof_walk_stack(mi_prof_unwind_t how, mi_prof_walk_t* walk) {
  #if MI_PROF_USE_FRAMES
  if (mi_prof_walk_frames(how, walk)) return;
  mi_atomic_increment_relaxed(&_mi_prof_unwind_incomplete);
  #endif
  #if MI_PROF_USE_UNWIND
  walk->count = walk->gap = 0;    // from the start, with libgcc, which knows more (signals, expressions) and is slow
  _Unwind_Backtrace(&mi_prof_walk_unwind, walk);
  #endif
  MI_UNUSED(how); MI_UNUSED(walk);
}

#endif

#if defined(__GNUC__) && !defined(__clang__)
__attribute__((noclone))    // a copy would not have the address that we know
#endif
mi_decl_noinline size_t _mi_prof_prim_backtrace(mi_prof_unwind_t how, uintptr_t* frames, size_t max) {
  const int err = errno;
  mi_prof_walk_t walk = { frames, max, 0, 0 };
  if (max > 0 && how != MI_PROF_UNWIND_NONE) { mi_prof_walk_stack(how, &walk); }
  errno = err;
  return walk.count;
}

void _mi_prof_prim_init(void) {
  mi_prof_own_setup();
  #if MI_PROF_USE_FRAMES
  mi_prof_walk_init();
  #endif
  uintptr_t frames[4];
  _mi_prof_prim_backtrace(MI_PROF_UNWIND_AUTO, frames, 4);
  #if MI_PROF_USE_UNWIND
  mi_prof_walk_t walk = { frames, 4, 0, 0 };
  _Unwind_Backtrace(&mi_prof_walk_unwind, &walk);   // sets itself up at the first call
  #endif
}


/* -----------------------------------------------------------
  Time and process
----------------------------------------------------------- */

// A decimal number in the text at `*p`, which moves behind it; 0 if there is none, the largest if it does not fit.
static inline uint64_t mi_prof_parse_number(const char** p) {
  uint64_t n = 0;
  for (; **p >= '0' && **p <= '9'; (*p)++) {
    const uint64_t digit = (uint64_t)(**p - '0');
    n = (n > (UINT64_MAX - digit)/10 ? UINT64_MAX : 10*n + digit);
  }
  return n;
}

size_t _mi_prof_prim_rss(void) {
  size_t resident;
  size_t address_space;
  _mi_prof_prim_memory(&resident, &address_space);
  return resident;
}

#if defined(_WIN32)

int64_t _mi_prof_prim_time_nanos(void) {
  FILETIME ft;
  GetSystemTimeAsFileTime(&ft);
  const int64_t t = (int64_t)(((uint64_t)ft.dwHighDateTime << 32) | ft.dwLowDateTime);   // 100 ns since 1601
  return (t - INT64_C(116444736000000000)) * 100;
}

size_t _mi_prof_prim_process_id(void) {
  return (size_t)GetCurrentProcessId();
}

bool _mi_prof_prim_is_setuid(void) {
  return false;
}

void _mi_prof_prim_thread_name(char* name, size_t size) {
  typedef HRESULT (WINAPI mi_prof_get_description_t)(HANDLE thread, PWSTR* description);
  name[0] = 0;
  // since Windows 10; what it returns is not from a heap that could be ours
  mi_prof_get_description_t* const get_description =
    (mi_prof_get_description_t*)(void (*)(void))GetProcAddress(GetModuleHandleW(L"kernel32.dll"), "GetThreadDescription");
  PWSTR description = NULL;
  if (get_description == NULL || get_description(GetCurrentThread(), &description) < 0 || description == NULL) return;
  if (WideCharToMultiByte(CP_UTF8, 0, description, -1, name, (int)size, NULL, NULL) == 0) { name[0] = 0; }
  LocalFree(description);
}

void _mi_prof_prim_memory(size_t* resident, size_t* address_space) {
  mi_process_info_t info;
  _mi_memzero_var(info);
  _mi_prim_process_info(&info);
  *resident = info.current_rss;
  *address_space = info.current_commit;   // what limits count
}

void _mi_prof_prim_purge(void* start, size_t size) {
  const DWORD err = GetLastError();
  if (VirtualAlloc(start, size, MEM_RESET, PAGE_READWRITE) == start) {
    VirtualUnlock(start, size);   // not locked, which takes it out of the working set
  }
  SetLastError(err);
}

void _mi_prof_prim_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
  MI_UNUSED(prepare); MI_UNUSED(parent); MI_UNUSED(child);
}

#else

int64_t _mi_prof_prim_time_nanos(void) {
  struct timespec t = { 0, 0 };
  clock_gettime(CLOCK_REALTIME, &t);
  return ((int64_t)t.tv_sec * 1000000000) + (int64_t)t.tv_nsec;
}

size_t _mi_prof_prim_process_id(void) {
  return (size_t)getpid();
}

bool _mi_prof_prim_is_setuid(void) {
  #if defined(__linux__)
  return (getauxval(AT_SECURE) != 0);
  #elif defined(__APPLE__) || defined(__FreeBSD__) || defined(__OpenBSD__) || defined(__NetBSD__) || defined(__DragonFly__)
  return (issetugid() != 0);
  #elif defined(__wasi__)
  return false;
  #else
  return (getuid() != geteuid() || getgid() != getegid());
  #endif
}

void _mi_prof_prim_thread_name(char* name, size_t size) {
  name[0] = 0;
  #if defined(__linux__)
  char buf[16];
  if (prctl(PR_GET_NAME, buf) == 0) { _mi_strlcpy(name, buf, (size < sizeof(buf) ? size : sizeof(buf))); }
  #elif defined(__APPLE__)
  (void)pthread_getname_np(pthread_self(), name, size);
  #else
  MI_UNUSED(size);
  #endif
}

void _mi_prof_prim_memory(size_t* resident, size_t* address_space) {
  *resident = 0;
  *address_space = 0;
  #if defined(__linux__)
  // { size, resident, ... } in pages
  char buf[64];
  const int fd = mi_prof_sys_open("/proc/self/statm", O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  const ssize_t n = mi_prof_sys_read(fd, buf, sizeof(buf) - 1);
  mi_prof_sys_close(fd);
  if (n <= 0) return;
  buf[n] = 0;
  const char* p = buf;
  *address_space = (size_t)mi_prof_parse_number(&p) * _mi_os_page_size();
  if (*p == ' ') { p++; }
  *resident = (size_t)mi_prof_parse_number(&p) * _mi_os_page_size();
  #elif defined(__APPLE__)
  mi_process_info_t info;
  _mi_memzero_var(info);
  _mi_prim_process_info(&info);
  *resident = info.current_rss;
  #endif
}

void _mi_prof_prim_purge(void* start, size_t size) {
  #if defined(__linux__)
  const int advice = MADV_DONTNEED;   // at once; the pages read as zero
  #elif defined(MADV_FREE)
  const int advice = MADV_FREE;       // when the system needs them
  #elif defined(MADV_DONTNEED)
  const int advice = MADV_DONTNEED;
  #endif
  #if defined(__linux__) || defined(MADV_FREE) || defined(MADV_DONTNEED)
  const int err = errno;
  (void)madvise(start, size, advice);
  errno = err;
  #else
  MI_UNUSED(start); MI_UNUSED(size);
  #endif
}

void _mi_prof_prim_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
  #if defined(MI_USE_PTHREADS)
  static _Atomic(uintptr_t) registered;  // = 0
  uintptr_t expected = 0;
  if (mi_atomic_cas_strong_acq_rel(&registered, &expected, (uintptr_t)1)) {
    (void)pthread_atfork(prepare, parent, child);
  }
  #else
  MI_UNUSED(prepare); MI_UNUSED(parent); MI_UNUSED(child);
  #endif
}

#endif


#include "profile-file.c"

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// Tests of `profile-prim.c` and `profile-file.c` through the internal interface: link with the static library, and
// compile in the language of the library.

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif

#include "test-profile.h"
#include "mimalloc/internal.h"
#include "mimalloc/atomic.h"
#include "mimalloc/prim.h"
#include "../src/profile-internal.h"

#include <errno.h>

#if !defined(_WIN32)
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#define TEST_POSIX  1
#endif

/* -----------------------------------------------------------
  No allocation: any allocation of this thread goes to a fresh heap meanwhile, which has then a page.
----------------------------------------------------------- */

typedef struct test_quiet_s {
  mi_heap_t* heap;
  mi_heap_t* prev;
} test_quiet_t;

static test_quiet_t test_quiet_begin(void) {
  test_quiet_t q;
  q.heap = mi_heap_new();
  q.prev = mi_heap_set_default(q.heap);
  return q;
}

static bool test_quiet_end(test_quiet_t q) {
  mi_heap_set_default(q.prev);
  const bool quiet = (q.heap->page_count == 0);
  mi_heap_delete(q.heap);
  return quiet;
}

#define QUIET_BEGIN()  { test_quiet_t quiet = test_quiet_begin();
#define QUIET_END()    check(test_quiet_end(quiet)); }

static void test_quiet(void) {
  test_quiet_t q = test_quiet_begin();
  mi_free(mi_malloc(100));
  check(!test_quiet_end(q));            // planted
  void* volatile p = malloc(10);
  const bool overridden = mi_is_in_heap_region(p);
  free(p);
  fprintf(stderr, "note: malloc is %soverridden\n", overridden ? "" : "NOT ");
  if (overridden) {
    q = test_quiet_begin();
    p = malloc(100);
    free(p);
    check(!test_quiet_end(q));          // planted
  }
}


/* -----------------------------------------------------------
  Backtrace
----------------------------------------------------------- */

#define TEST_DEPTH  (64)

static uintptr_t test_frames[TEST_DEPTH];
static volatile size_t test_frame_count;

typedef void (test_fun_t)(void);

static test_fun_t* volatile test_leaf;
static volatile int         test_sink;

// The chain outer4 -> outer3 -> outer2 -> outer1 -> leaf; different so that they are not merged.
static test_noinline void outer1(void) { test_leaf(); test_sink = test_sink + 1; }
static test_fun_t* volatile p1 = &outer1;
static test_noinline void outer2(void) { p1(); test_sink = test_sink + 2; }
static test_fun_t* volatile p2 = &outer2;
static test_noinline void outer3(void) { p2(); test_sink = test_sink + 3; }
static test_fun_t* volatile p3 = &outer3;
static test_noinline void outer4(void) { p3(); test_sink = test_sink + 4; }
static test_fun_t* volatile p4 = &outer4;

static mi_prof_unwind_t test_how;

static test_noinline void leaf_direct(void) {
  test_frame_count = _mi_prof_prim_backtrace(test_how, test_frames, TEST_DEPTH);
  test_sink = test_sink + 5;
}

// errno, limits, and no allocation
static test_noinline void leaf_limits(void) {
  uintptr_t frames[TEST_DEPTH];
  QUIET_BEGIN()
  errno = 1234;
  check(_mi_prof_prim_backtrace(MI_PROF_UNWIND_AUTO, frames, 0) == 0);
  for (size_t max = 1; max <= 4; max++) {
    frames[max] = 77;
    check(_mi_prof_prim_backtrace(MI_PROF_UNWIND_AUTO, frames, max) == max && frames[max] == 77);
  }
  check(_mi_prof_prim_backtrace(MI_PROF_UNWIND_AUTO, frames, TEST_DEPTH) >= 5);
  check(errno == 1234);
  QUIET_END()
}

// Allocate, with a callback from within the allocator that takes the stack as a sample would.
static void test_deferred(bool force, unsigned long long heartbeat, void* arg) {
  MI_UNUSED(force); MI_UNUSED(heartbeat); MI_UNUSED(arg);
  if (test_frame_count == 0) { test_frame_count = _mi_prof_prim_backtrace(MI_PROF_UNWIND_AUTO, test_frames, TEST_DEPTH); }
  test_sink = test_sink + 6;
}

static const size_t test_size = 3000;    // above the small sizes, so that each call is a slow one
static void*        test_block;
static char         test_string[3001];

#define LEAF(name,expr)  \
  static test_noinline void leaf_##name(void) { \
    for (int i = 0; i < 300 && test_frame_count == 0; i++) { test_block = (void*)(expr); mi_free(test_block); } \
    test_sink = test_sink + 1; \
  }

LEAF(malloc,            mi_malloc(test_size))
LEAF(calloc,            mi_calloc(3,test_size))
LEAF(zalloc,            mi_zalloc(test_size))
LEAF(mallocn,           mi_mallocn(3,test_size))
LEAF(realloc,           mi_realloc(NULL,test_size))
LEAF(realloc_move,      mi_realloc(mi_malloc(16),test_size))
LEAF(recalloc,          mi_recalloc(NULL,3,test_size))
LEAF(reallocf,          mi_reallocf(NULL,test_size))
LEAF(reallocarray,      mi_reallocarray(NULL,3,test_size))
LEAF(malloc_aligned,    mi_malloc_aligned(test_size,1024))
LEAF(zalloc_aligned,    mi_zalloc_aligned(test_size,4096))
LEAF(malloc_aligned_at, mi_malloc_aligned_at(test_size,256,8))
LEAF(realloc_aligned,   mi_realloc_aligned(NULL,test_size,256))
LEAF(calloc_aligned,    mi_calloc_aligned(3,test_size,256))
LEAF(memalign,          mi_memalign(4096,test_size))
LEAF(aligned_alloc,     mi_aligned_alloc(1024,3072))
LEAF(new,               mi_new(test_size))
LEAF(new_n,             mi_new_n(3,test_size))
LEAF(new_nothrow,       mi_new_nothrow(test_size))
LEAF(new_aligned,       mi_new_aligned(test_size,512))
LEAF(strdup,            mi_strdup(test_string))
LEAF(umalloc,           mi_umalloc(test_size,NULL))
LEAF(heap_malloc,       mi_heap_malloc(mi_heap_get_default(),test_size))
LEAF(heap_zalloc,       mi_heap_zalloc(mi_heap_get_default(),test_size))
LEAF(heap_realloc,      mi_heap_realloc(mi_heap_get_default(),NULL,test_size))
LEAF(heap_aligned,      mi_heap_malloc_aligned(mi_heap_get_default(),test_size,2048))
LEAF(huge,              mi_malloc(40*MI_MiB))
LEAF(huge_aligned,      mi_malloc_aligned(1*MI_MiB,4*MI_MiB))

static test_noinline void leaf_posix_memalign(void) {
  for (int i = 0; i < 300 && test_frame_count == 0; i++) {
    if (mi_posix_memalign(&test_block, 1024, test_size) == 0) { mi_free(test_block); }
  }
  test_sink = test_sink + 1;
}

#if defined(TEST_POSIX)
static test_noinline void leaf_std_malloc(void) {
  for (int i = 0; i < 300 && test_frame_count == 0; i++) { test_block = malloc(test_size); free(test_block); }
  test_sink = test_sink + 1;
}

static test_noinline void leaf_std_memalign(void) {
  for (int i = 0; i < 300 && test_frame_count == 0; i++) {
    if (posix_memalign(&test_block, 1024, test_size) == 0) { free(test_block); }
  }
  test_sink = test_sink + 1;
}
#endif

static const struct { const char* name; test_fun_t* leaf; } test_leaves[] = {
  #define ENTRY(name) { #name, &leaf_##name }
  ENTRY(malloc), ENTRY(calloc), ENTRY(zalloc), ENTRY(mallocn), ENTRY(realloc), ENTRY(realloc_move), ENTRY(recalloc), ENTRY(reallocf), ENTRY(reallocarray),
  ENTRY(malloc_aligned), ENTRY(zalloc_aligned), ENTRY(malloc_aligned_at), ENTRY(realloc_aligned), ENTRY(calloc_aligned), ENTRY(memalign),
  ENTRY(aligned_alloc), ENTRY(new), ENTRY(new_n), ENTRY(new_nothrow), ENTRY(new_aligned), ENTRY(strdup), ENTRY(umalloc),
  ENTRY(heap_malloc), ENTRY(heap_zalloc), ENTRY(heap_realloc), ENTRY(heap_aligned), ENTRY(huge), ENTRY(huge_aligned), ENTRY(posix_memalign)
};

// The test's function that a return address is in: the nearest start below.
static uintptr_t test_resolve(uintptr_t pc, test_fun_t* leaf) {
  test_fun_t* const funs[5] = { leaf, &outer1, &outer2, &outer3, &outer4 };
  uintptr_t best = 0;
  for (size_t i = 0; i < 5; i++) {
    const uintptr_t start = (uintptr_t)funs[i];
    if (start < pc && start > best) { best = start; }
  }
  return (pc - best <= 1024 ? best : 0);
}

// How many of the five frames of the chain are where they should be?
static size_t test_chain_match(test_fun_t* leaf) {
  test_fun_t* const chain[5] = { leaf, &outer1, &outer2, &outer3, &outer4 };
  size_t n = 0;
  while (n < 5 && n < test_frame_count && test_resolve(test_frames[n], leaf) == (uintptr_t)chain[n]) { n++; }
  return n;
}

static void test_chain(const char* name, test_fun_t* leaf) {
  for (size_t i = 0; i < TEST_DEPTH; i++) { test_frames[i] = 0; }
  test_frame_count = 0;
  test_leaf = leaf;
  p4();
  if (!check(test_chain_match(leaf) == 5)) {
    fprintf(stderr, "  at %s: %zu frames, %zu match\n", name, test_frame_count, test_chain_match(leaf));
    for (size_t i = 0; i < test_frame_count && i < 12; i++) { fprintf(stderr, "  %zx\n", (size_t)test_frames[i]); }
  }
}

static void test_backtrace(void) {
  test_chain("direct", &leaf_direct);
  check(test_frame_count >= 6);                   // our caller as well
  const uintptr_t first = test_frames[0];   // planted: a frame too many or too few must be seen
  test_frames[0] = test_frames[1];
  check(test_chain_match(&leaf_direct) != 5);
  test_frames[0] = first;
  test_leaf = &leaf_limits;
  p4();
}

// Through every way to allocate, the leaf must be our caller. (Other than the callback is, a sample is never taken above
// a function of the program.)
static void test_filter(void) {
  memset(test_string, 'x', sizeof(test_string) - 1);
  mi_register_deferred_free(&test_deferred, NULL);
  for (size_t i = 0; i < sizeof(test_leaves)/sizeof(test_leaves[0]); i++) {
    test_chain(test_leaves[i].name, test_leaves[i].leaf);
  }
  #if defined(TEST_POSIX) && !MI_TRACK_ENABLED    // there the overrides are functions of their own, with frames
  void* p = malloc(10);
  if (mi_is_in_heap_region(p)) {
    test_chain("std malloc", &leaf_std_malloc);
    test_chain("std posix_memalign", &leaf_std_memalign);
  }
  free(p);
  #endif
  mi_register_deferred_free(NULL, NULL);
}

#if defined(TEST_POSIX)

static void* test_thread(void* arg) {
  test_chain("thread", &leaf_direct);
  return arg;
}

static void test_stacks(void) {
  pthread_t thread;
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 128*1024);
  check(pthread_create(&thread, &attr, &test_thread, NULL) == 0);
  pthread_join(thread, NULL);
  pthread_attr_destroy(&attr);
}

#else
static void test_stacks(void) { }
#endif


static void test_ways(void) {
  mi_prof_unwind_t how;
  check(_mi_prof_unwind_parse("auto", &how) && how == MI_PROF_UNWIND_AUTO);
  check(_mi_prof_unwind_parse("unwind", &how) && how == MI_PROF_UNWIND_TABLES);
  check(_mi_prof_unwind_parse("fp", &how) && how == MI_PROF_UNWIND_FP);
  check(_mi_prof_unwind_parse("none", &how) && how == MI_PROF_UNWIND_NONE);
  check(!_mi_prof_unwind_parse("", &how) && !_mi_prof_unwind_parse("FP", &how) && !_mi_prof_unwind_parse("fpx", &how));
  test_how = MI_PROF_UNWIND_TABLES;
  test_chain("tables", &leaf_direct);
  test_how = MI_PROF_UNWIND_FP;
  test_chain("frame pointers", &leaf_direct);     // the first frames are found by tables, as they may be the allocator's
  test_how = MI_PROF_UNWIND_NONE;
  uintptr_t frame;
  check(_mi_prof_prim_backtrace(MI_PROF_UNWIND_NONE, &frame, 1) == 0);
  test_how = MI_PROF_UNWIND_AUTO;
}

static void test_leave_out_own(void) {
  test_chain("leave out", &leaf_direct);
  const uintptr_t own = (uintptr_t)&_mi_prof_prim_backtrace + 1;
  uintptr_t frames[6] = { test_frames[0], own, own, test_frames[1], test_frames[2], test_frames[3] };
  check(_mi_prof_prim_leave_out_own(frames, 6) == 3);      // and what captured it
  check(frames[0] == test_frames[1] && frames[1] == test_frames[2] && frames[2] == test_frames[3]);
  check(_mi_prof_prim_leave_out_own(frames, 3) == 3 && frames[0] == test_frames[1]);
  check(_mi_prof_prim_leave_out_own(frames, 0) == 0);
}

/* -----------------------------------------------------------
  Our own walk gives what libgcc's does, in each kind of frame
----------------------------------------------------------- */

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__i386__) || defined(__aarch64__))

#include <unwind.h>

mi_decl_hidden extern _Atomic(size_t) _mi_prof_unwind_incomplete;

enum { LIBGCC_DEPTH = 250 };

typedef struct libgcc_walk_s {
  uintptr_t frames[LIBGCC_DEPTH];
  size_t    count;
} libgcc_walk_t;

static size_t libgcc_stacks;
static size_t libgcc_deepest;

static _Unwind_Reason_Code on_libgcc_frame(struct _Unwind_Context* context, void* arg) {
  libgcc_walk_t* const walk = (libgcc_walk_t*)arg;
  int is_exact = 0;
  const uintptr_t pc = (uintptr_t)_Unwind_GetIPInfo(context, &is_exact);
  if (pc == 0 || walk->count == LIBGCC_DEPTH) return _URC_END_OF_STACK;
  walk->frames[walk->count++] = pc + (is_exact ? 1 : 0);
  return _URC_NO_REASON;
}

static test_noinline void libgcc_compare(void) {
  libgcc_walk_t walk;
  walk.count = 0;
  uintptr_t frames[LIBGCC_DEPTH];
  for (int i = 0; i < 2; i++) {     // computed, and remembered
    walk.count = 0;
    _Unwind_Backtrace(&on_libgcc_frame, &walk);
    const size_t count = _mi_prof_prim_backtrace(MI_PROF_UNWIND_AUTO, frames, LIBGCC_DEPTH);
    size_t same = 1;      // the first one is here
    while (same < count && same < walk.count && frames[same] == walk.frames[same]) { same++; }
    if (!check(count == walk.count && same == count)) {
      fprintf(stderr, "  %zu frames, libgcc has %zu, and %zu are the same\n", count, walk.count, same);
    }
    if (count > libgcc_deepest) { libgcc_deepest = count; }
    libgcc_stacks++;
  }
}

static test_noinline int libgcc_by_qsort(const void* x, const void* y) {
  libgcc_compare();
  return *(const int*)x - *(const int*)y;
}

static test_noinline void libgcc_recurse(unsigned n) {
  if (n == 0) { libgcc_compare(); } else { libgcc_recurse(n - 1); }
  test_sink = test_sink + 1;
}

// A frame of a size that is only known when it runs.
static test_noinline void libgcc_alloca(size_t n) {
  volatile char* const p = (volatile char*)__builtin_alloca(n);
  p[0] = 1;
  libgcc_recurse(2);
  p[n-1] = 2;
}

// A frame that is aligned, so that the stack pointer of its caller is not at an offset from anything.
static test_noinline void libgcc_aligned(size_t n) {
  volatile char p[64] __attribute__((aligned(64)));
  p[n % 64] = 1;
  libgcc_alloca(n);
  test_sink = test_sink + p[n % 64];
}

static test_noinline void libgcc_large(void) {
  volatile char p[300*1024];
  p[0] = 1;
  libgcc_aligned(100);
  p[sizeof(p)-1] = p[0];
}

static void libgcc_on_signal(int sig) {
  MI_UNUSED(sig);
  libgcc_large();
}

static void libgcc_all(void) {
  int values[30];
  for (int i = 0; i < 30; i++) { values[i] = (i*37) % 31; }
  qsort(values, 30, sizeof(int), &libgcc_by_qsort);
  for (unsigned n = 0; n < 150; n++) { libgcc_recurse(n); }
  for (size_t n = 1; n < 5000; n += 101) { libgcc_aligned(n); }
  libgcc_large();
}

static void* libgcc_thread(void* arg) {
  libgcc_all();
  return arg;
}

static void test_libgcc(void) {
  libgcc_compare();
  const size_t incomplete = mi_atomic_load_relaxed(&_mi_prof_unwind_incomplete);
  libgcc_all();
  pthread_t thread;
  check(pthread_create(&thread, NULL, &libgcc_thread, NULL) == 0);
  pthread_join(thread, NULL);
  const size_t asked = mi_atomic_load_relaxed(&_mi_prof_unwind_incomplete) - incomplete;
  signal(SIGUSR1, &libgcc_on_signal);
  raise(SIGUSR1);
  signal(SIGUSR1, SIG_DFL);
  check(libgcc_deepest > 150);
  fprintf(stderr, "note: %zu stacks are as libgcc's, which our own walk asked for %zu\n", libgcc_stacks, asked);
  check(asked == 0);    // or this compares libgcc with itself
}

#else
static void test_libgcc(void) { }
#endif


/* -----------------------------------------------------------
  Modules
----------------------------------------------------------- */

static mi_prof_module_t test_modules[1024];
static char             test_names[256*1024];

static void test_module_list(void) {
  size_t n = 0;
  QUIET_BEGIN()
  errno = 1234;
  n = _mi_prof_prim_modules(test_modules, 1024, test_names, sizeof(test_names));
  check(errno == 1234);
  QUIET_END()
  #if defined(__linux__) || defined(_WIN32) || defined(__APPLE__)
  check(n >= 1);
  if (n == 0) return;
  const uintptr_t here = (uintptr_t)&test_module_list;
  check(test_modules[0].start <= here && here < test_modules[0].end);
  check(test_modules[0].path[0] != 0);
  #endif
  for (size_t i = 0; i < n; i++) {
    check(test_modules[i].start < test_modules[i].end && test_modules[i].path != NULL && test_modules[i].build_id_size <= MI_PROF_BUILD_ID_MAX);
    check(strstr(test_modules[i].path, " (deleted)") == NULL);
    if (i >= 2) { check(test_modules[i-1].start < test_modules[i].start); }
  }
  fprintf(stderr, "note: %zu modules; first: %zx-%zx %llx %s id ", n, (size_t)test_modules[0].start, (size_t)test_modules[0].end,
          (unsigned long long)test_modules[0].offset, test_modules[0].path);
  for (size_t i = 0; i < test_modules[0].build_id_size; i++) { fprintf(stderr, "%02x", test_modules[0].build_id[i]); }
  fprintf(stderr, "\n");

  #if defined(__linux__)
  // the offset, against a plain reading of the same file
  FILE* f = fopen("/proc/self/maps", "r");
  char line[8192];
  bool found = false;
  while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
    unsigned long start = 0, end = 0, offset = 0;
    char perm[8];
    char path[4096];
    path[0] = 0;
    if (sscanf(line, "%lx-%lx %7s %lx %*s %*s %4095[^\n]", &start, &end, perm, &offset, path) < 4) continue;
    if (!(start <= here && here < end)) continue;
    found = true;
    check(test_modules[0].start == start && test_modules[0].end == end && test_modules[0].offset == offset && strcmp(test_modules[0].path, path) == 0);
  }
  if (f != NULL) { fclose(f); }
  check(found);

  // the build id, against the first such note in the file
  static uint8_t image[8*1024*1024];
  f = fopen("/proc/self/exe", "rb");
  const size_t size = (f == NULL ? 0 : fread(image, 1, sizeof(image), f));
  if (f != NULL) { fclose(f); }
  check(size > 1000);
  static const uint8_t note[12] = { 20,0,0,0, 3,0,0,0, 'G','N','U',0 };
  size_t pos = 0;
  for (size_t i = 4; pos == 0 && i + 32 < size && i < 4096; i++) {
    if (image[i-4] == 4 && memcmp(image + i, note, sizeof(note)) == 0) { pos = i + sizeof(note); }
  }
  if (pos != 0) {
    check(test_modules[0].build_id_size == 20 && memcmp(image + pos, test_modules[0].build_id, 20) == 0);
  }
  else {
    fprintf(stderr, "note: linked without a build id\n");
    check(test_modules[0].build_id_size == 0);
  }
  #endif

  // limits: the main executable is always in the list; a path is whole or empty.
  static mi_prof_module_t few[3];
  check(_mi_prof_prim_modules(few, 0, test_names, sizeof(test_names)) == 0);
  if (n >= 1) {
    const uintptr_t main_start = test_modules[0].start;
    few[1].start = 99;
    check(_mi_prof_prim_modules(few, 1, test_names, sizeof(test_names)) == 1 && few[0].start == main_start && few[1].start == 99);
    const size_t len = strlen(few[0].path);
    test_names[2] = 'y';
    size_t m = _mi_prof_prim_modules(few, 3, test_names, 2);
    check(m >= 1 && few[0].path[0] == 0 && test_names[2] == 'y');
    m = _mi_prof_prim_modules(few, 1, test_names, len + 1);
    check(m == 1 && strlen(few[0].path) == len);
    m = _mi_prof_prim_modules(few, 1, test_names, len);
    check(m == 1 && few[0].path[0] == 0);
  }
}


/* -----------------------------------------------------------
  Time and process
----------------------------------------------------------- */

static int test_forks;
static void test_forked(void) { test_forks++; }

static void test_process(void) {
  const int64_t seconds = _mi_prof_prim_time_nanos() / 1000000000;
  const int64_t now = (int64_t)time(NULL);
  check(seconds >= now - 2 && seconds <= now + 2);
  check(!_mi_prof_prim_is_setuid());

  mi_memid_t memid;
  const size_t size = 16*65536;
  uint8_t* const p = (uint8_t*)_mi_os_alloc(size, &memid);
  check(p != NULL);
  if (p != NULL) {
    memset(p, 1, size);
    _mi_prof_prim_purge(p, size);
    size_t sum = 0;
    for (size_t i = 0; i < size; i++) { sum += p[i]; }
    check(sum <= size);
    #if defined(__linux__)
    check(sum == 0);
    #endif
    memset(p, 2, size);
    check(p[size-1] == 2);
    _mi_os_free(p, size, memid);
  }

  _mi_prof_prim_atfork(&test_forked, &test_forked, &test_forked);    // the library has done so already, and only once counts
  #if defined(TEST_POSIX)
  check(_mi_prof_prim_process_id() == (size_t)getpid());
  const pid_t pid = fork();
  if (pid == 0) { _exit(test_forks == 0 && _mi_prof_prim_process_id() == (size_t)getpid() ? 0 : 1); }
  int status = -1;
  check(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
  check_eq(test_forks, 0);
  #endif
}


/* -----------------------------------------------------------
  Files
----------------------------------------------------------- */

static char test_dir[512];

static const char* test_path(const char* name) {
  static char paths[4][1024];
  static int next;
  char* const path = paths[next++ % 4];
  snprintf(path, 1024, "%s/%s", test_dir, name);
  return path;
}

static bool test_content_is(const char* path, const char* content) {
  char buf[256];
  FILE* const f = fopen(path, "rb");
  if (f == NULL) return (content == NULL);
  const size_t n = fread(buf, 1, sizeof(buf), f);
  fclose(f);
  return (content != NULL && n == strlen(content) && memcmp(buf, content, n) == 0);
}

// Write a file in one go.
static bool test_write(const char* path, const char* content, bool commit, mi_prof_file_t* file) {
  bool ok = false;
  QUIET_BEGIN()
  errno = 1234;
  if (_mi_prof_prim_file_open(file, path)) {
    const size_t half = strlen(content)/2;
    ok = _mi_prof_prim_file_write(content, half, file);
    ok = _mi_prof_prim_file_write(content + half, strlen(content) - half, file) && ok;
    ok = _mi_prof_prim_file_close(file, commit) && ok;
  }
  else {
    check(!_mi_prof_prim_file_write(content, 1, file));
    check(!_mi_prof_prim_file_close(file, true));
  }
  check(errno == 1234);
  QUIET_END()
  check(ok == (commit && file->error == NULL));
  return ok;
}

static void test_file(void) {
  mi_prof_file_t file;
  const char* const path = test_path("out.pb.gz");
  check(test_write(path, "first", true, &file));
  check(test_content_is(path, "first"));
  check(test_content_is(file.temp_path, NULL));
  check(!test_content_is(path, "fIrst") && !test_content_is(path, NULL));    // planted

  // replaced in one step, and only at the end
  check(_mi_prof_prim_file_open(&file, path));
  check(_mi_prof_prim_file_write("second", 6, &file));
  check(test_content_is(path, "first"));
  check(_mi_prof_prim_file_close(&file, true));
  check(test_content_is(path, "second"));

  // given up
  check(!test_write(path, "third", false, &file) && file.error == NULL);
  check(test_content_is(path, "second") && test_content_is(file.temp_path, NULL));
  check(!test_write(test_path("never"), "third", false, &file));
  check(test_content_is(test_path("never"), NULL));

  // bad targets
  static char longer[2000];
  memset(longer, 'a', sizeof(longer) - 1);
  check(!test_write(NULL, "x", true, &file) && file.error != NULL);
  check(!test_write("", "x", true, &file) && file.error != NULL);
  check(!test_write(test_dir, "x", true, &file) && file.error != NULL);
  check(!test_write(test_path("no/such/folder"), "x", true, &file) && file.error != NULL && file.error_code != 0);
  check(!test_write(longer, "x", true, &file) && file.error != NULL && file.error_code != 0);
  #if defined(_WIN32)
  check(!test_write("NUL", "x", true, &file) && file.error != NULL);
  check(!test_write(test_path("bad\xff name"), "x", true, &file) && file.error != NULL);
  check(test_write(test_path("\xc3\xa4\xe2\x82\xac"), "x", true, &file));
  #endif
}

#if defined(TEST_POSIX)

static void test_put(const char* path, const char* content) {
  FILE* const f = fopen(path, "wb");
  check(f != NULL);
  if (f != NULL) {
    fputs(content, f);
    fclose(f);
  }
}

// Entries of the test's folder, apart from `.` and `..`.
static int test_entries(void) {
  int n = 0;
  DIR* const dir = opendir(test_dir);
  if (dir == NULL) return -1;
  while (readdir(dir) != NULL) { n++; }
  closedir(dir);
  return n - 2;
}

static bool test_mode_is(const char* path, unsigned mode) {
  struct stat st;
  return (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 07777) == mode);
}

static void test_file_posix(void) {
  mi_prof_file_t file;
  const char* const path = test_path("mode");
  check(test_write(path, "first", true, &file) && test_mode_is(path, 0600));
  const mode_t mask = umask(0277);
  check(test_write(path, "again", true, &file) && test_mode_is(path, 0600));
  umask(0);
  check(_mi_prof_prim_file_open(&file, path) && test_mode_is(file.temp_path, 0600));
  check(strncmp(file.temp_path, test_dir, strlen(test_dir)) == 0);
  check((fcntl((int)file.handle, F_GETFD) & FD_CLOEXEC) != 0);
  check(!_mi_prof_prim_file_close(&file, false));
  umask(mask);
  const int before = test_entries();

  // what is no regular file stays as it is
  char link_to[1024];
  snprintf(link_to, sizeof(link_to), "%s", test_path("link_to"));
  test_put(link_to, "linked");
  check(symlink(link_to, test_path("link")) == 0);
  check(symlink("/nonexistent/file", test_path("dangling")) == 0);
  check(mkfifo(test_path("fifo"), 0600) == 0);
  check(mkdir(test_path("dir"), 0700) == 0);
  const char* const bad[] = { "link", "dangling", "fifo", "dir" };
  for (size_t i = 0; i < 4; i++) {
    check(!test_write(test_path(bad[i]), "bad", true, &file) && file.error != NULL && file.temp_path[0] == 0);
  }
  check(test_content_is(link_to, "linked"));
  check(!test_write("/dev/null", "bad", true, &file) && file.error != NULL);
  struct stat st;
  check(lstat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode));
  check(test_entries() == before + 5);

  // a target that becomes something else while we write
  check(_mi_prof_prim_file_open(&file, test_path("late")) && mkfifo(test_path("late"), 0600) == 0);
  check(!_mi_prof_prim_file_close(&file, true) && file.error != NULL);
  check(lstat(test_path("late"), &st) == 0 && S_ISFIFO(st.st_mode));
  check(test_entries() == before + 6);

  // a name that is taken is left alone
  unsigned long pid = 0, seq = 0;
  check(sscanf(file.temp_path + strlen(test_dir), "/.mi_prof-%lu-%lu.tmp", &pid, &seq) == 2 && pid == (unsigned long)getpid());
  char taken[1024];
  snprintf(taken, sizeof(taken), "%s/.mi_prof-%lu-%lu.tmp", test_dir, pid, seq + 1);
  check(symlink("/nonexistent/file", taken) == 0);
  check(test_write(test_path("next"), "next", true, &file) && strcmp(file.temp_path, taken) != 0);
  check(lstat(taken, &st) == 0 && S_ISLNK(st.st_mode));

  // a path that names no folder
  char cwd[1024];
  check(getcwd(cwd, sizeof(cwd)) != NULL && chdir(test_dir) == 0);
  check(test_write("plain", "plain", true, &file) && test_content_is(test_path("plain"), "plain"));
  check(chdir(cwd) == 0);

  // a folder that may not be written
  if (geteuid() != 0) {
    check(chmod(test_path("dir"), 0500) == 0);
    check(!test_write(test_path("dir/x"), "x", true, &file) && file.error_code == EACCES);
  }
}

// A full disk: all of the old file stays, and the signal for a file that is too large does not reach the program.
static void test_file_full(void) {
  mi_prof_file_t file;
  const char* const path = test_path("full");
  test_put(path, "old");
  const int before = test_entries();
  static char data[300*1024];
  struct rlimit old;
  check(getrlimit(RLIMIT_FSIZE, &old) == 0);
  struct rlimit limit = old;
  limit.rlim_cur = 256*1024;
  check(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  check(_mi_prof_prim_file_open(&file, path));
  check(_mi_prof_prim_file_write(data, 100*1024, &file));
  check(_mi_prof_prim_file_write(data, 156*1024, &file));    // up to the limit
  check(!_mi_prof_prim_file_write(data, 1, &file));
  check(!_mi_prof_prim_file_write(data, 1, &file));
  check(file.error != NULL && file.error_code == EFBIG);
  check(!_mi_prof_prim_file_close(&file, true));
  check(_mi_prof_prim_file_open(&file, path) && !_mi_prof_prim_file_write(data, sizeof(data), &file) && !_mi_prof_prim_file_close(&file, true));
  check(setrlimit(RLIMIT_FSIZE, &old) == 0);
  check(test_content_is(path, "old") && test_entries() == before);

  // an error of the system at write
  check(_mi_prof_prim_file_open(&file, path));
  const int null = open("/dev/null", O_RDONLY);
  check(null >= 0 && dup2(null, (int)file.handle) >= 0);
  close(null);
  check(!_mi_prof_prim_file_write(data, 10, &file) && file.error_code == EBADF);
  check(!_mi_prof_prim_file_close(&file, true));
  check(test_content_is(path, "old") && test_entries() == before);

  // and at close
  check(_mi_prof_prim_file_open(&file, path) && _mi_prof_prim_file_write(data, 10, &file));
  close((int)file.handle);
  check(!_mi_prof_prim_file_close(&file, true) && file.error != NULL);
  check(test_content_is(path, "old") && test_entries() == before);
}

static void test_files(void) {
  const char* const tmp = getenv("TMPDIR");
  snprintf(test_dir, sizeof(test_dir), "%s/mi_prof test XXXXXX", (tmp == NULL ? "/tmp" : tmp));
  if (!check(mkdtemp(test_dir) != NULL)) return;
  test_file();
  test_file_posix();
  test_file_full();
  DIR* const dir = opendir(test_dir);
  if (dir == NULL) return;
  for (struct dirent* e = readdir(dir); e != NULL; e = readdir(dir)) {
    char path[1024];
    snprintf(path, sizeof(path), "%s/%.300s", test_dir, e->d_name);
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) { remove(path); }
  }
  closedir(dir);
  remove(test_dir);
}

#else

static void test_files(void) {
  char tmp[256];
  const DWORD n = GetTempPathA(sizeof(tmp), tmp);
  check(n > 0 && n < sizeof(tmp));
  snprintf(test_dir, sizeof(test_dir), "%smi_prof-%lu", tmp, (unsigned long)GetCurrentProcessId());
  check(CreateDirectoryA(test_dir, NULL) || GetLastError() == ERROR_ALREADY_EXISTS);
  SetLastError(4321);
  mi_prof_file_t file;
  check(!_mi_prof_prim_file_open(&file, test_dir) && GetLastError() == 4321);
  test_file();
  remove(test_path("out.pb.gz"));
  WCHAR name[1024];
  check(MultiByteToWideChar(CP_UTF8, 0, test_path("\xc3\xa4\xe2\x82\xac"), -1, name, 1024) > 0 && DeleteFileW(name));
  check(RemoveDirectoryA(test_dir));    // nothing is left
}

#endif

int main(void) {
  _mi_prof_prim_init();
  _mi_prof_prim_init();
  test_quiet();
  test_backtrace();
  test_filter();
  test_stacks();
  test_ways();
  test_leave_out_own();
  test_libgcc();
  test_module_list();
  test_process();
  test_files();
  check(test_checks > 100);
  return test_done("test-profile-prim");
}

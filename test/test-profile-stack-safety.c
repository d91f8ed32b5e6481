// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// Stacks at the worst moments: the program never crashes or hangs, each sample is counted, and the leaf is right. With all ways to
// capture a stack, as these differ in what they can get wrong. Compiled with frame pointers (cmake/mi_prof.cmake).

#include "test-profile.h"
#include "test-profile-stack.h"

#if !defined(__unix__)

int main(void) {
  printf("skipped: needs POSIX signals and stacks\n");
  return 0;
}

#else

#include <dlfcn.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#if defined(__GLIBC__)
#include <execinfo.h>
#include <ucontext.h>
#endif
#if defined(__GLIBC__)
#include <unwind.h>
#endif

// musl has no unwind tables, so stacks end where it calls the program, and it never unloads a library.
#if defined(__GLIBC__)
#define IS_GLIBC  1
#else
#define IS_GLIBC  0
#endif
#if IS_GLIBC && !defined(__riscv)   // gcc 12 makes none there for C
#define LIBC_HAS_TABLES  1
#else
#define LIBC_HAS_TABLES  0
#endif
#ifndef TEST_FRAME_POINTERS
#define TEST_FRAME_POINTERS  0
#endif

enum { SIZE = 7776 };     // of the blocks whose stacks are looked at

static const char* const ways[] = { "auto", "unwind", "fp" };
static const char* way;   // that is tested

static bool is_fp(void) { return (strcmp(way, "fp") == 0); }

static void begin(const char* what) {
  printf("  %s, %s\n", what, way);
  fflush(stdout);
  setenv("MIMALLOC_PROF_UNWIND", way, 1);
  check(mi_prof_start(1));
}

/* -----------------------------------------------------------
  Functions of this test that are looked for in stacks
----------------------------------------------------------- */

static test_noinline void* leaf(size_t size) {
  return test_use(mi_malloc(size));
}

static test_noinline void* deep(size_t size, unsigned depth) {
  return test_use(depth == 0 ? leaf(size) : deep(size, depth - 1));
}

static test_noinline void* deep20(size_t size) {
  return test_use(deep(size, 20));
}

static test_noinline void* caller(size_t size) {
  return test_use(deep20(size));
}

static test_noinline void* outer(void* (*fun)(size_t), size_t size) {
  return test_use(fun(size));
}

static void on_signal(int sig);
static void* busy(void* arg);

static stack_fun_t* const functions[] = { STACK_FUN(leaf), STACK_FUN(deep), STACK_FUN(deep20), STACK_FUN(caller), STACK_FUN(outer), STACK_FUN(on_signal), STACK_FUN(busy) };

static bool is_in(uintptr_t pc, stack_fun_t* fun) {
  return (stack_function(pc, functions, sizeof(functions)/sizeof(functions[0])) == fun);
}

/* -----------------------------------------------------------
  What the samples of a size say
----------------------------------------------------------- */

typedef struct seen_s {
  size_t         count;     // records
  size_t         stacks;
  size_t         leaf;      // of these with the right leaf
  size_t         full;      // with all frames from `leaf` to `caller`
  size_t         outer;     // with `outer` in them
  size_t         busy;
  size_t         deepest;
  sample_stack_t last;
} seen_t;

static seen_t seen;

static bool see_stack(const sample_stack_t* stack, void* arg) {
  stack_fun_t* const expected = *(stack_fun_t**)arg;
  seen.count += stack->count;
  seen.stacks++;
  seen.last = *stack;
  if (stack->depth > seen.deepest) { seen.deepest = stack->depth; }
  if (is_in(stack->frames[0], expected)) { seen.leaf++; }
  size_t n = 0;
  if (is_in(stack->frames[0], STACK_FUN(leaf))) {
    for (n = 1; n < stack->depth && is_in(stack->frames[n], STACK_FUN(deep)); n++) { }
    if (n == 22 && is_in(stack->frames[22], STACK_FUN(deep20)) && is_in(stack->frames[23], STACK_FUN(caller))) { seen.full++; }
  }
  bool has_outer = false, has_busy = false;
  for (size_t i = 0; i < stack->depth; i++) {
    if (is_in(stack->frames[i], STACK_FUN(outer))) { has_outer = true; }
    if (is_in(stack->frames[i], STACK_FUN(busy)))  { has_busy = true; }
  }
  seen.outer += has_outer;
  seen.busy += has_busy;
  return true;
}

static const seen_t* see(size_t size, stack_fun_t* expected_leaf) {
  memset(&seen, 0, sizeof(seen));
  stack_visit(size, &see_stack, &expected_leaf);
  return &seen;
}

static void show(void) {
  printf("    %zu records, %zu stacks, %zu right leafs, %zu full, %zu with outer, %zu with busy, deepest %zu\n",
         seen.count, seen.stacks, seen.leaf, seen.full, seen.outer, seen.busy, seen.deepest);
  for (size_t i = 0; i < seen.last.depth; i++) { printf("    %zx\n", (size_t)seen.last.frames[i]); }
}

// One live block, allocated by `caller`, with all its frames if the stack is one that frame pointers know.
static void check_caller(void* p, bool is_known) {
  see(SIZE, STACK_FUN(leaf));
  bool ok = check(seen.count == 1) && check(seen.leaf == 1);
  if (is_fp() && !is_known)                    { ok = (STACK_IN_VALGRIND || check(seen.deepest == 1)) && ok; }   // its `maps` merge mappings
  else if (!is_fp() || TEST_FRAME_POINTERS)    { ok = check(seen.full == 1) && ok; }
  if (!ok) { show(); }
  mi_free(p);
  check(see(SIZE, STACK_FUN(leaf))->count == 0);
}

/* -----------------------------------------------------------
  Stacks of all kinds
----------------------------------------------------------- */

static void* thread_block;

static void* thread_main(void* arg) {
  (void)arg;
  thread_block = caller(SIZE);
  return NULL;
}

static void run_thread(void* stack, size_t size) {
  pthread_attr_t attr;
  pthread_t thread;
  pthread_attr_init(&attr);
  if (stack != NULL) { check(pthread_attr_setstack(&attr, stack, size) == 0); }
                else { check(pthread_attr_setstacksize(&attr, size) == 0); }
  check(pthread_create(&thread, &attr, &thread_main, NULL) == 0);
  pthread_join(thread, NULL);
  pthread_attr_destroy(&attr);
}

enum { STACK_SIZE = 1024*1024 };

// Memory for a stack between pages that cannot be read.
static uint8_t* stack_map(void) {
  uint8_t* const p = (uint8_t*)mmap(NULL, STACK_SIZE + 2*65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(p != (uint8_t*)MAP_FAILED && mprotect(p + 65536, STACK_SIZE, PROT_READ | PROT_WRITE) == 0);
  return p + 65536;
}

static void stack_unmap(uint8_t* p) {
  munmap(p - 65536, STACK_SIZE + 2*65536);
}

static void test_stacks(void) {
  begin("the main thread's stack");
  check_caller(caller(SIZE), true);
  mi_prof_stop();

  begin("a thread's stack");
  run_thread(NULL, STACK_SIZE);
  check_caller(thread_block, true);
  mi_prof_stop();

  begin("a stack that the program gives to a thread");
  uint8_t* const stack = stack_map();
  run_thread(stack, STACK_SIZE);
  check_caller(thread_block, true);
  stack_unmap(stack);
  static uint8_t memory[STACK_SIZE + 4096];
  run_thread(memory + (4096 - (uintptr_t)memory % 4096), STACK_SIZE);
  check_caller(thread_block, true);
  mi_prof_stop();
}

#if defined(__GLIBC__)

static ucontext_t coroutine_main, coroutine;
static void* volatile coroutine_block;

static void coroutine_run(void) {
  coroutine_block = caller(SIZE);
  swapcontext(&coroutine, &coroutine_main);
}

static void run_coroutine(uint8_t* stack) {
  check(getcontext(&coroutine) == 0);
  coroutine.uc_stack.ss_sp = stack;
  coroutine.uc_stack.ss_size = STACK_SIZE;
  coroutine.uc_link = NULL;
  makecontext(&coroutine, &coroutine_run, 0);
  check(swapcontext(&coroutine_main, &coroutine) == 0);
  check_caller(coroutine_block, false);
}

static void coroutine_thread(void* arg) {
  run_coroutine((uint8_t*)arg);
}

static void test_coroutine(void) {
  begin("a coroutine");
  uint8_t* const stack = stack_map();
  run_coroutine(stack);
  uint8_t* const block = (uint8_t*)malloc(STACK_SIZE);
  run_coroutine(block);
  test_thread_t thread;
  test_thread_start(&thread, &coroutine_thread, stack);   // from another stack than the main one
  test_thread_join(&thread);
  free(block);
  stack_unmap(stack);
  mi_prof_stop();
}

#else
static void test_coroutine(void) { }
#endif

/* -----------------------------------------------------------
  Signals
----------------------------------------------------------- */

static void* (*signal_fun)(size_t);
static void* signal_blocks[400];
static volatile long signal_count;

static test_noinline void on_signal(int sig) {
  (void)sig;
  const int err = errno;
  const long i = load_flag(&signal_count);
  if (i < 400) { signal_blocks[i] = test_use(signal_fun(SIZE)); store_flag(&signal_count, i + 1); }
  errno = err;
}

static void signal_set(void (*handler)(int), int flags) {
  struct sigaction sa;
  memset(&sa, 0, sizeof(sa));
  sa.sa_handler = handler;
  sa.sa_flags = flags;
  sigaction(SIGUSR1, &sa, NULL);
}

static void signal_free(void) {
  for (long i = 0; i < load_flag(&signal_count); i++) { mi_free(signal_blocks[i]); }
  store_flag(&signal_count, 0);
}

static volatile long busy_flag;

// Computes until enough signals came.
static test_noinline void* busy(void* arg) {
  while (load_flag(&signal_count) < (long)(uintptr_t)arg) { store_flag(&busy_flag, 1); }
  return arg;
}

static void busy_thread(void* arg) {
  busy(arg);
}

static void test_signals(void) {
  begin("a handler on a signal stack");
  uint8_t* const stack = stack_map();
  stack_t ss, old;
  memset(&ss, 0, sizeof(ss));
  ss.ss_sp = stack;
  ss.ss_size = STACK_SIZE;
  check(sigaltstack(&ss, &old) == 0);
  signal_fun = &caller;
  signal_set(&on_signal, SA_ONSTACK);
  raise(SIGUSR1);
  check(signal_count == 1);
  store_flag(&signal_count, 0);
  check_caller(signal_blocks[0], true);
  sigaltstack(&old, NULL);
  stack_unmap(stack);
  mi_prof_stop();

  begin("a handler that interrupts a computation");
  enum { COUNT = 200 };
  signal_fun = &leaf;
  signal_set(&on_signal, SA_RESTART);
  test_thread_t thread;
  store_flag(&busy_flag, 0);
  test_thread_start(&thread, &busy_thread, (void*)(uintptr_t)COUNT);
  while (!load_flag(&busy_flag)) { test_sleep(1); }
  for (size_t i = 0; load_flag(&signal_count) < COUNT && i < 100000; i++) {
    pthread_kill(thread.handle, SIGUSR1);
    test_sleep(1);
  }
  test_thread_join(&thread);
  see(SIZE, STACK_FUN(leaf));
  if (!(check(seen.count == COUNT) && check(seen.leaf == seen.stacks))) { show(); }
  if (LIBC_HAS_TABLES && !is_fp() && !check(seen.busy == seen.stacks)) { show(); }
  signal_free();
  check(see(SIZE, STACK_FUN(leaf))->count == 0);
  mi_prof_stop();
  signal_set(SIG_DFL, 0);
}

static size_t raising_unwinder(uintptr_t* frames, size_t max, void* arg) {
  (void)frames; (void)max; (void)arg;
  raise(SIGUSR1);
  return 0;
}

static void test_signal_in_sample(void) {
  begin("a handler that interrupts the profiler: its samples are dropped and counted");
  signal_fun = &leaf;
  signal_set(&on_signal, 0);
  mi_prof_set_unwinder(&raising_unwinder, NULL);
  void* blocks[100];
  for (size_t i = 0; i < 100; i++) { blocks[i] = mi_malloc(SIZE + 16); }
  mi_prof_set_unwinder(NULL, NULL);
  check(signal_count == 100);
  check(see(SIZE, STACK_FUN(leaf))->count == 0);
  check_eq(stack_dump.dropped, 100);
  check(see(SIZE + 16, STACK_FUN(leaf))->count == 100);
  for (size_t i = 0; i < 100; i++) { mi_free(blocks[i]); }
  signal_free();
  mi_prof_stop();
  signal_set(SIG_DFL, 0);
}

/* -----------------------------------------------------------
  A frame pointer that is used for something else
----------------------------------------------------------- */

// Allocate with any value in the frame pointer.
#if defined(__x86_64__) && !defined(__ILP32__)
#define HAS_WILD  1
__asm__(".text\n.globl wild_malloc\n.hidden wild_malloc\n.type wild_malloc,@function\nwild_malloc:\n.cfi_startproc\n  push %rbp\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %rbp,0\n"
        "  mov %rsi,%rbp\n  call *%rdx\n  pop %rbp\n.cfi_adjust_cfa_offset -8\n.cfi_restore %rbp\n  ret\n.cfi_endproc\n.size wild_malloc,.-wild_malloc\n");
#elif defined(__i386__)
#define HAS_WILD  1
__asm__(".text\n.globl wild_malloc\n.hidden wild_malloc\n.type wild_malloc,@function\nwild_malloc:\n.cfi_startproc\n  push %ebp\n.cfi_adjust_cfa_offset 4\n.cfi_rel_offset %ebp,0\n"
        "  mov 12(%esp),%ebp\n  mov 8(%esp),%eax\n  mov 16(%esp),%ecx\n  sub $8,%esp\n.cfi_adjust_cfa_offset 8\n  push %eax\n.cfi_adjust_cfa_offset 4\n  call *%ecx\n"
        "  add $12,%esp\n.cfi_adjust_cfa_offset -12\n  pop %ebp\n.cfi_adjust_cfa_offset -4\n.cfi_restore %ebp\n  ret\n.cfi_endproc\n.size wild_malloc,.-wild_malloc\n");
#elif defined(__aarch64__)
#define HAS_WILD  1
__asm__(".text\n.globl wild_malloc\n.hidden wild_malloc\n.type wild_malloc,%function\nwild_malloc:\n.cfi_startproc\n  stp x29,x30,[sp,#-16]!\n.cfi_def_cfa_offset 16\n.cfi_offset x29,-16\n.cfi_offset x30,-8\n"
        "  mov x29,x1\n  blr x2\n  ldp x29,x30,[sp],#16\n.cfi_restore x29\n.cfi_restore x30\n.cfi_def_cfa_offset 0\n  ret\n.cfi_endproc\n.size wild_malloc,.-wild_malloc\n");
#endif

#if HAS_WILD

#if defined(__cplusplus)
extern "C"
#endif
void* wild_malloc(size_t size, uintptr_t fp, void* (*fun)(size_t));


static bool see_wild(const sample_stack_t* stack, void* arg) {
  const uintptr_t pc = stack->frames[0];
  const uintptr_t start = (uintptr_t)&wild_malloc;
  *(size_t*)arg += (stack->count == 1 && start < pc && pc < start + 64);
  return true;
}

static void wild_all(void) {
  const size_t page = 4096;
  uint8_t* const hole = (uint8_t*)mmap(NULL, 4*page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  uintptr_t fake[64];     // frames that point up the stack, to its end and beyond
  for (size_t i = 0; i < 64; i++) { fake[i] = (uintptr_t)&fake[i] + 900*1024; }
  const uintptr_t sp = (uintptr_t)&fake[0];
  const uintptr_t wild[] = { 0, 1, 8, 0xFFF, UINTPTR_MAX, UINTPTR_MAX - 7, UINTPTR_MAX - 15, (uintptr_t)1 << (8*sizeof(uintptr_t) - 1), (uintptr_t)hole,
                             (uintptr_t)hole + page - 8, sp, sp + 1, sp + 4, sp - 64, sp & ~(uintptr_t)15, sp + page, sp + 100*1024, sp + 900*1024, sp + 5*1024*1024,
                             (sp | (page-1)) - 7, (uintptr_t)&wild_all, (uintptr_t)&signal_count };
  for (size_t i = 0; i < sizeof(wild)/sizeof(wild[0]); i++) {
    void* const p = wild_malloc(SIZE, wild[i], &mi_malloc);
    size_t right = 0;
    stack_visit(SIZE, &see_wild, &right);
    if (!check(right == 1)) { printf("    with %zx\n", (size_t)wild[i]); }
    mi_free(p);
  }
  for (uintptr_t d = 0; d < 3*1024*1024; d += 4088) {   // all the way over the end of the stack
    mi_free(wild_malloc(SIZE, (sp + d) & ~(uintptr_t)7, &mi_malloc));
  }
  munmap(hole, 4*page);
}

static void wild_thread(void* arg) {
  (void)arg;
  wild_all();
}

static void test_wild(void) {
  begin("a wild frame pointer");
  wild_all();
  test_thread_t thread;
  test_thread_start(&thread, &wild_thread, NULL);
  test_thread_join(&thread);
  check(see(SIZE, STACK_FUN(leaf))->count == 0);
  mi_prof_stop();
}

#else
static void test_wild(void) { }
#endif

/* -----------------------------------------------------------
  Threads that start and end
----------------------------------------------------------- */

enum { THREADS = 40 };
static pthread_key_t exit_key;
static void* exit_blocks[THREADS];

static void on_thread_exit(void* arg) {
  *(void**)arg = caller(SIZE);
  mi_free(caller(SIZE));
}

static void exiting_thread(void* arg) {
  mi_free(caller(SIZE));      // maybe the first of the thread
  check(pthread_setspecific(exit_key, arg) == 0);
}

static void test_thread_exit(void) {
  begin("the start and the end of threads");
  check(pthread_key_create(&exit_key, &on_thread_exit) == 0);
  test_thread_t threads[4];
  for (size_t i = 0; i < THREADS; i += 4) {
    for (size_t k = 0; k < 4; k++) { test_thread_start(&threads[k], &exiting_thread, &exit_blocks[i + k]); }
    for (size_t k = 0; k < 4; k++) { test_thread_join(&threads[k]); }
  }
  see(SIZE, STACK_FUN(leaf));
  if (!(check(seen.count == THREADS) && check(seen.leaf == seen.stacks))) { show(); }
  if (!is_fp() && !check(seen.full == seen.stacks)) { show(); }
  for (size_t i = 0; i < THREADS; i++) { mi_free(exit_blocks[i]); }
  check(see(SIZE, STACK_FUN(leaf))->count == 0);
  pthread_key_delete(exit_key);
  mi_prof_stop();
}

/* -----------------------------------------------------------
  Inside another unwinder
----------------------------------------------------------- */

#if defined(__GLIBC__)

static void*  unwind_blocks[200];
static size_t unwind_count;

static _Unwind_Reason_Code on_unwind(struct _Unwind_Context* context, void* arg) {
  (void)context; (void)arg;
  if (unwind_count >= 200) return _URC_END_OF_STACK;
  unwind_blocks[unwind_count++] = caller(SIZE);
  return _URC_NO_REASON;
}

#if defined(__GLIBC__)
static size_t backtrace_unwinder(uintptr_t* frames, size_t max, void* arg) {
  (void)arg;
  return (size_t)backtrace((void**)frames, (int)max);
}
#endif

static void test_unwinders(void) {
  #if defined(__GLIBC__)
  begin("backtrace()");
  void* frames[64];
  for (size_t i = 0; i < 100; i++) { check(backtrace(frames, 64) > 1); mi_free(caller(SIZE)); }
  mi_prof_set_unwinder(&backtrace_unwinder, NULL);      // and as the way to capture stacks
  void* const p = caller(SIZE);
  mi_prof_set_unwinder(NULL, NULL);
  see(SIZE, STACK_FUN(leaf));
  if (!(check(seen.count == 1) && check(seen.leaf == 1) && check(seen.full == 1))) { show(); }
  mi_free(p);
  mi_prof_stop();
  #endif
  begin("inside of _Unwind_Backtrace");
  unwind_count = 0;
  _Unwind_Backtrace(&on_unwind, NULL);
  check(unwind_count > 1);
  check(see(SIZE, STACK_FUN(leaf))->count == unwind_count);
  check(seen.leaf == seen.stacks);
  for (size_t i = 0; i < unwind_count; i++) { mi_free(unwind_blocks[i]); }
  check(see(SIZE, STACK_FUN(leaf))->count == 0);
  mi_prof_stop();
}

#else
static void test_unwinders(void) { }
#endif

/* -----------------------------------------------------------
  Libraries that come and go
----------------------------------------------------------- */

#if defined(MI_TEST_PLUGIN)

typedef void* (plugin_call_fun_t)(void* (*fun)(size_t), size_t);

static void* plugin;
static plugin_call_fun_t* plugin_call;
static bool overridden;

static void* plugin_open(size_t unused) {
  (void)unused;
  plugin = dlopen(MI_TEST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (!check(plugin != NULL)) { printf("    %s\n", dlerror()); exit(1); }
  plugin_call = (plugin_call_fun_t*)(uintptr_t)dlsym(plugin, "plugin_call");
  check(plugin_call != NULL);
  return plugin;
}

static void* plugin_leaf(size_t size) {
  return test_use(plugin_call(&leaf, size));
}

typedef struct plugin_seen_s {
  size_t count;
  size_t in_plugin;   // leafs
  size_t outer;
} plugin_seen_t;

static bool see_plugin(const sample_stack_t* stack, void* arg) {
  plugin_seen_t* const p = (plugin_seen_t*)arg;
  Dl_info info;
  p->count += stack->count;
  p->in_plugin += (dladdr((void*)(stack->frames[0] - 1), &info) != 0 && strstr(info.dli_fname, "profile-plugin") != NULL);
  for (size_t i = 0; i < stack->depth; i++) {
    if (is_in(stack->frames[i], STACK_FUN(outer))) { p->outer++; break; }
  }
  return true;
}

static jmp_buf unloaded;
static void* unloaded_block;

// Called by the library, which is not there when this allocates.
static void* unload_and_allocate(size_t size) {
  check(dlclose(plugin) == 0);
  unloaded_block = test_use(caller(size));
  longjmp(unloaded, 1);
}

static test_noinline void call_unloaded(void) {
  if (setjmp(unloaded) == 0) { plugin_call(&unload_and_allocate, SIZE); }
}

static void test_plugin(void) {
  static bool is_first = true;
  begin("a library while it is loaded and unloaded");
  for (int i = 0; i < 20; i++) {
    outer(&plugin_open, 0);
    if (overridden && (IS_GLIBC || is_first)) {
      plugin_seen_t p = { 0, 0, 0 };
      stack_visit(12345, &see_plugin, &p);
      check(p.count == 1 && p.in_plugin == 1);
      if (LIBC_HAS_TABLES && !is_fp()) { check(p.outer == 1); }     // through the loader
    }
    is_first = false;
    void* const block = outer(&plugin_leaf, SIZE);
    see(SIZE, STACK_FUN(leaf));
    if (!(check(seen.count == 1) && check(seen.leaf == 1) && (is_fp() || check(seen.outer == 1)))) { show(); }   // through the library
    mi_free(block);
    check(dlclose(plugin) == 0);
    if (overridden && IS_GLIBC) {
      plugin_seen_t p = { 0, 0, 0 };
      stack_visit(12345, &see_plugin, &p);
      check(p.count == 0);
    }
  }
  mi_prof_stop();

  begin("a library that is unloaded while it is on the stack");
  for (int i = 0; i < 20; i++) {
    outer(&plugin_open, 0);
    call_unloaded();
    check_caller(unloaded_block, !is_fp() || TEST_FRAME_POINTERS);
  }
  mi_prof_stop();
}

#else
static bool overridden;
static void test_plugin(void) { printf("  skipped: libraries (none was built)\n"); }
#endif

int main(int argc, char** argv) {
  (void)argc;
  alarm(600);     // does not end: killed
  stack_dump_init(argv[0]);
  overridden = STACK_HAS_OVERRIDES && test_is_overridden();
  mi_option_set(mi_option_prof_bt_max, 100);
  for (size_t i = 0; i < sizeof(ways)/sizeof(ways[0]); i++) {
    way = ways[i];
    test_stacks();
    test_coroutine();
    test_signals();
    test_signal_in_sample();
    test_wild();
    test_thread_exit();
    test_unwinders();
    test_plugin();
  }
  return test_done("test-profile-stack-safety");
}

#endif

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// What the profiler does without memory, at its limit, and when foreign code allocates inside it: the program goes on,
// samples are lost, and each lost one is counted. Uses internals, so it must be linked with the static library.

#include "test-profile.h"
#include "test-profile-seams.h"
#include "mimalloc/prim.h"

#if !defined(_WIN32)
#include <sys/wait.h>
#include <signal.h>
#endif

/* -----------------------------------------------------------
  Memory from the system, that fails
----------------------------------------------------------- */

static void*  (*os_alloc)(size_t size, mi_memid_t* memid);    // the real one
static size_t os_calls;       // since the last reset
static size_t os_bytes;
static size_t os_failures;
static size_t os_fail_from;   // the first call that fails (0: none)
static size_t os_fail_to;     // the last one

static void* failing_os_alloc(size_t size, mi_memid_t* memid) {
  os_calls++;
  if (os_fail_from != 0 && os_calls >= os_fail_from && os_calls <= os_fail_to) { os_failures++; return NULL; }
  os_bytes += size;
  return os_alloc(size, memid);
}

static void os_fail(size_t from, size_t to) {
  os_calls = os_bytes = os_failures = 0;
  os_fail_from = from;
  os_fail_to = to;
}

/* -----------------------------------------------------------
  Output, and what a text dump says
----------------------------------------------------------- */

static volatile size_t messages;
static char message[1024];

static void count_output(const char* msg, void* arg) {
  (void)arg;
  if (strstr(msg, "heap profile") == NULL) return;    // also skips the prefix, which comes on its own
  messages++;
  strncpy(message, msg, sizeof(message) - 1);
}

static char dump_path[256];

typedef struct summary_s {
  size_t dropped;
  size_t lines;           // of samples
  size_t other;           // records whose stack is `[other]`
  size_t records;
} summary_t;

static summary_t summary(void) {
  summary_t s = { 0, 0, 0, 0 };
  os_fail(0, 0);
  if (!check(mi_prof_dump_text(dump_path))) return s;
  FILE* const f = fopen(dump_path, "r");
  static char line[16*1024];
  while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
    unsigned long long n, bytes;
    if (strncmp(line, "# samples dropped", 17) == 0 && sscanf(strchr(line, ':') + 1, "%llu", &n) == 1) { s.dropped += (size_t)n; }
    else if (strncmp(line, "heap profile:", 13) != 0 && strstr(line, "] @") != NULL && sscanf(line, " %llu: %llu [", &n, &bytes) == 2) {
      s.lines++;
      s.records += (size_t)n;
      if (strcmp(strstr(line, "] @") + 3, " 0x1\n") == 0) { s.other += (size_t)n; }
    }
  }
  if (f != NULL) { fclose(f); }
  remove(dump_path);
  return s;
}

/* -----------------------------------------------------------
  A program with as many stacks as wanted
----------------------------------------------------------- */

#define BLOCKS  (60000)
static void* blocks[BLOCKS];

static void* path_even(unsigned path, unsigned depth, size_t size);
static void* path_odd(unsigned path, unsigned depth, size_t size);

#define path_next(path,depth,size)  test_use((path) % 2 == 0 ? path_even((path)/2, (depth)-1, size) : path_odd((path)/2, (depth)-1, size))

static test_noinline void* path_even(unsigned path, unsigned depth, size_t size) {
  void* const p = (depth == 0 ? mi_malloc(size) : path_next(path, depth, size));
  return test_use(p);
}

static test_noinline void* path_odd(unsigned path, unsigned depth, size_t size) {
  void* const p = (depth == 0 ? mi_malloc_aligned(size, 64) : path_next(path, depth, size));
  return test_use(p);
}

static size_t allocated;      // blocks since the start of the session

static void allocate(size_t i, unsigned paths) {
  const size_t size = 8 + (i*37) % 300;
  blocks[i] = path_next((unsigned)(i % paths), 13u, size);
  allocated++;
  if (blocks[i] == NULL) { check(blocks[i] != NULL); exit(2); }
  memset(blocks[i], 0xA5, size);
}

static void allocate_all(size_t n, unsigned paths) {
  allocated = 0;
  for (size_t i = 0; i < n; i++) { allocate(i, paths); }
}

static void free_all(size_t n) {
  for (size_t i = 0; i < n; i++) { mi_free(blocks[i]); blocks[i] = NULL; }
}

/* -----------------------------------------------------------
  Tests
----------------------------------------------------------- */

// Run a session in which the calls `from` to `to` fail. Returns whether a call failed.
static bool session_with_failures(size_t from, size_t to) {
  const size_t n = 6000;
  os_fail(from, to);
  const bool started = mi_prof_start(1);
  const size_t start_failures = os_failures;
  check(started == (start_failures == 0));          // false only if it must
  check(started == mi_prof_is_enabled());
  const size_t before = prof_records();
  check_eq(before, 0);
  allocate_all(n, 2000);
  const size_t failures = os_failures;
  const size_t records = prof_records();
  if (!started) { check_eq(records, 0); }
  else {
    if (failures == 0) { check_eq(records, n); }
    const summary_t s = summary();
    check_eq(records + s.dropped, n);               // every sample is there or counted as lost
    check_eq(s.records, records);
  }
  free_all(n);
  check_eq(prof_records(), 0);
  check_eq(prof_bytes(), 0);
  os_fail(from, to);
  mi_prof_stop();
  check(!mi_prof_is_enabled());
  // and it works again
  os_fail(0, 0);
  check(mi_prof_start(1));
  allocate_all(500, 100);
  check_eq(prof_records(), 500);
  free_all(500);
  check_eq(prof_records(), 0);
  mi_prof_stop();
  return (failures > 0);
}

static const char* self;        // how to run this program

// What the child process of such a session returns.
#define SESSION_FAILED    (10)
#define SESSION_COMPLETE  (11)

static int first_session(size_t from, size_t to) {
  const bool failed = session_with_failures(from, to);
  return (test_failures != 0 ? 1 : (failed ? SESSION_FAILED : SESSION_COMPLETE));
}

// The same as the first session of a process, where there are no chunks from before. Returns whether a call failed.
static bool first_session_with_failures(size_t from, size_t to) {
  #if defined(_WIN32)
  char command[600];
  snprintf(command, sizeof(command), "\"\"%.300s\" first %llu %llu\"", self, (unsigned long long)from, (unsigned long long)to);
  fflush(stdout);
  const int status = system(command);
  check(status == SESSION_FAILED || status == SESSION_COMPLETE);
  return (status == SESSION_FAILED);
  #else
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    const int result = first_session(from, to);
    fflush(stdout);
    _exit(result);
  }
  int status = 0;
  check(pid > 0 && waitpid(pid, &status, 0) == pid);
  check(WIFEXITED(status) && (WEXITSTATUS(status) == SESSION_FAILED || WEXITSTATUS(status) == SESSION_COMPLETE));
  return (WIFEXITED(status) && WEXITSTATUS(status) == SESSION_FAILED);
  #endif
}

static void test_failing_calls_first(void) {
  test_begin("memory from the system fails at each call in turn, and from each call on, in the first session");
  size_t n = 1;
  while (first_session_with_failures(n, n)) { n++; }
  size_t m = 1;
  while (first_session_with_failures(m, SIZE_MAX)) { m++; }
  check(n > 20 && m > 20);
  printf("    %zu calls failed one by one, %zu from one on\n", n - 1, m - 1);
}

static void test_failing_calls(void) {
  test_begin("memory from the system fails at each call in turn, and from each call on, in later sessions");
  size_t n = 1;
  while (session_with_failures(n, n)) { n++; }
  size_t m = 1;
  while (session_with_failures(m, SIZE_MAX)) { m++; }
  check(n > 10 && m > 10);
  printf("    %zu calls failed one by one, %zu from one on\n", n - 1, m - 1);
}

static void test_failing_first_session(void) {
  test_begin("no memory at all, in the first session of the process");
  os_fail(1, SIZE_MAX);
  check(!mi_prof_start(1));
  check_eq(os_failures, 1);
  check(!mi_prof_is_enabled());
  os_fail(2, SIZE_MAX);       // only the start succeeds
  check(mi_prof_start(1));
  allocate_all(3000, 500);
  check_eq(prof_records(), 0);
  check(os_failures > 0);
  const summary_t s = summary();
  check_eq(s.dropped, 3000);
  check_eq(s.records, 0);
  os_fail(1, SIZE_MAX);
  free_all(3000);
  mi_prof_stop();
  os_fail(0, 0);
}

static void test_failing_dump(void) {
  test_begin("memory fails while dumping: false, one line, no file, and the session goes on");
  for (int text = 0; text < 2; text++) {
    check(mi_prof_start(1));
    allocate_all(1000, 100);
    size_t n = 1;
    for (; n < 100; n++) {
      os_fail(n, n);
      messages = 0;
      const bool ok = (text ? mi_prof_dump_text(dump_path) : mi_prof_dump(dump_path));
      check(ok == (os_failures == 0));
      check_eq(messages, (ok ? 0 : 1));
      FILE* const f = fopen(dump_path, "r");
      check((f != NULL) == ok);
      if (f != NULL) { fclose(f); }
      if (os_failures == 0) break;
    }
    check_between(n, 3, 50);
    remove(dump_path);
    os_fail(0, 0);
    check_eq(prof_records(), 1000);
    free_all(1000);
    check_eq(prof_records(), 0);
    mi_prof_stop();
  }
}

// Below it, the first chunks of memory for one part or another may find the limit reached.
#define LIMIT_ORDERED  (2*1024*1024)

static void test_limit(size_t max, bool first) {
  mi_option_set(mi_option_prof_max_bytes, (long)max);
  os_fail(0, 0);
  check(mi_prof_start(1));
  const size_t start_bytes = os_bytes;
  allocated = 0;
  size_t first_drop = 0;
  for (size_t i = 0; i < BLOCKS; i++) {
    allocate(i, 8000);
    if (first_drop == 0 && prof_records() < allocated) { first_drop = allocated; break; }
  }
  check(first_drop > 0);
  // the limit leaves stacks before records
  const size_t bytes = os_bytes - start_bytes;
  const summary_t s1 = summary();
  check_eq(s1.dropped, 1);
  if (max >= LIMIT_ORDERED && sizeof(void*) > 4) { check(s1.other > 0); }     // on 32 bits all stacks may fit
  check_eq(s1.records, first_drop - 1);
  check(bytes <= max);
  os_fail(0, 0);
  for (size_t i = first_drop; i < BLOCKS; i++) { allocate(i, 8000); }
  check(os_bytes + bytes <= max);
  if (first) { check(os_bytes + bytes >= max/4); }    // it is made use of
  const size_t records = prof_records();
  const summary_t s2 = summary();
  check_between(records + s2.dropped, BLOCKS, BLOCKS + (test_is_overridden() ? 8 : 0));   // and those of `fopen`
  check_eq(s2.records, records);
  check(records >= 500);
  free_all(BLOCKS);
  check_eq(prof_records(), 0);
  // what was freed can be used again
  allocated = 0;
  for (size_t i = 0; i < 500; i++) { allocate(i, 1); }
  check(prof_records() > 0);
  free_all(500);
  mi_prof_stop();
  printf("    limit %4zu KiB: the first loss after %zu records, %zu at the end, %zu of them in [other]\n", max/1024, first_drop - 1, records, s2.other);
}

static void test_limits(void) {
  test_begin("prof_max_bytes: stacks fold into [other], then samples are dropped and counted");
  test_limit(256*1024, true);
  test_limit(64*1024, false);
  test_limit(128*1024, false);
  test_limit(512*1024, false);
  test_limit(1024*1024, false);
  test_limit(2*1024*1024, false);
  mi_option_set(mi_option_prof_max_bytes, 0);
}

/* -----------------------------------------------------------
  The invariant: no hooked path is entered inside the profiler
----------------------------------------------------------- */

#define MEDIUM  (5000)      // always takes the path with the hook

static size_t allocating_backtrace(uintptr_t* frames, size_t max, void* arg) {
  mi_free(test_use(mi_malloc(MEDIUM)));
  (void)max; (void)arg;
  frames[0] = (uintptr_t)&allocating_backtrace;
  return 1;
}

static size_t empty_backtrace(uintptr_t* frames, size_t max, void* arg) {
  (void)frames; (void)max; (void)arg;
  return 0;
}

static size_t full_backtrace(uintptr_t* frames, size_t max, void* arg) {
  (void)arg;
  for (size_t i = 0; i < max; i++) { frames[i] = 0x1000 + i; }
  return max;
}

static void test_backtraces(void) {
  test_begin("an unwinder that finds nothing, and one that fills all frames");
  mi_prof_set_unwinder(&empty_backtrace, NULL);
  check(mi_prof_start(1));
  allocate_all(100, 1);
  check_eq(prof_records(), 100);
  free_all(100);
  mi_prof_stop();
  mi_prof_set_unwinder(&full_backtrace, NULL);
  mi_option_set(mi_option_prof_bt_max, 128);
  check(mi_prof_start(1));
  allocate_all(100, 1);
  check_eq(prof_records(), 100);
  check_eq(summary().records, 100);
  free_all(100);
  mi_prof_stop();
  mi_option_set(mi_option_prof_bt_max, 32);
  mi_prof_set_unwinder(NULL, NULL);
}

static test_noinline void* recurse(unsigned depth) {
  return test_use(depth == 0 ? mi_malloc(MEDIUM) : recurse(depth - 1));
}

static void test_known_stack(void) {
  test_begin("a stack that is known takes no memory, a new one does");
  check(mi_prof_start(1));
  for (int i = 0; i < 100000; i++) {
    mi_free(recurse(10));
    if (i == 1000) { os_fail(0, 0); }   // just count, from here on; by now an unrolled loop has all its stacks
  }
  check_eq(os_calls, 0);
  for (unsigned i = 11; i < 1000; i++) { mi_free(recurse(i % 120)); mi_free(recurse(i)); }
  check(os_calls > 0);
  mi_prof_stop();
}

static void test_allocating_unwinder(void) {
  test_begin("an unwinder that allocates: the samples inside are dropped and counted");
  check(mi_prof_start(1));
  mi_prof_set_unwinder(&allocating_backtrace, NULL);
  allocate_all(1000, 10);
  mi_prof_set_unwinder(NULL, NULL);
  check_eq(prof_records(), 1000);
  check_eq(summary().dropped, 1000);
  free_all(1000);
  check_eq(prof_records(), 0);
  mi_prof_stop();
}

// An allocation by the profiler itself.
static void allocate_inside(void) {
  mi_prim_get_default_heap()->tld->prof.in_profiler = true;
  allocate_all(1000, 10);
}

static void test_invariant(void) {
  #if MI_DEBUG >= 2 && !defined(_WIN32)
  test_begin("an allocation inside the profiler: the assertion fires");
  check(mi_prof_start(1));
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    if (freopen("/dev/null", "w", stderr) == NULL) { _exit(3); }
    signal(SIGABRT, SIG_DFL);
    allocate_inside();
    _exit(0);     // it did not
  }
  int status = 0;
  check(pid > 0 && waitpid(pid, &status, 0) == pid);
  check(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  mi_prof_stop();
  #else
  (void)&allocate_inside;   // there is no assertion, or no fork
  #endif
}

int main(int argc, char** argv) {
  if (!has_seams()) {
    printf("skipped: the library's internals are hidden\n");
    return 0;
  }
  snprintf(dump_path, sizeof(dump_path), "%.200s.prof-test", argv[0]);
  mi_register_output(&count_output, NULL);
  mi_option_set(mi_option_prof_max_bytes, 0);
  os_alloc = _mi_prof_os_alloc;
  _mi_prof_os_alloc = &failing_os_alloc;
  self = argv[0];
  if (argc == 4 && strcmp(argv[1], "first") == 0) {
    return first_session((size_t)strtoull(argv[2], NULL, 10), (size_t)strtoull(argv[3], NULL, 10));
  }
  test_failing_calls_first();
  test_failing_first_session();
  test_limits();
  test_failing_calls();
  test_failing_dump();
  test_backtraces();
  test_known_stack();
  test_allocating_unwinder();
  test_invariant();
  mi_register_output(NULL, NULL);
  return test_done("test-profile-fault");
}

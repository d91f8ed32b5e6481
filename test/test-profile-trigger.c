// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// Dumps that come by themselves: how many, under which names, and what is in them. Where the environment, a limit or an exit
// matters the test runs itself as a child process: the first argument says what the child does. Uses internals, so it must be
// linked with the static library for all of it.

#include "test-profile-files.h"
#include "test-profile-seams.h"
#include "mimalloc/prim.h"

#if defined(__linux__)
#include <fcntl.h>
#include <sys/syscall.h>
#endif

SEAM size_t (*_mi_prof_memory_share)(void);

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TEST_TSAN  1
#endif
#if __has_feature(address_sanitizer)
#define TEST_ASAN  1
#endif
#endif

static bool is_valgrind(void) {
  const char* const preload = getenv("LD_PRELOAD");
  return (preload != NULL && strstr(preload, "vgpreload") != NULL);
}

static bool is_emulated(void) { return (getenv("MI_TEST_EMULATED") != NULL); }
static bool is_quick(void)    { return (getenv("MI_TEST_QUICK") != NULL); }

static void skip(const char* what, const char* why) {
  printf("  skipped: %s: %s\n", what, why);
  fflush(stdout);
}

/* -----------------------------------------------------------
  Files
----------------------------------------------------------- */

// Without an allocation, which could be the one that a dump waits for.
static bool exists(const char* path) {
  #if defined(_WIN32)
  return (GetFileAttributesA(path) != INVALID_FILE_ATTRIBUTES);
  #else
  struct stat st;
  return (lstat(path, &st) == 0);
  #endif
}

// The path of number `n` of a pattern with one `%n`.
static const char* numbered(const char* pattern, size_t n) {
  static char path[600];
  const char* const at = strstr(pattern, "%n");
  if (at == NULL) { snprintf(path, sizeof(path), "%s", pattern); }
             else { snprintf(path, sizeof(path), "%.*s%zu%s", (int)(at - pattern), pattern, n, at + 2); }
  return path;
}

// Wait for a file, at most `seconds`. Returns how long it took, or a negative number.
static double wait_for(const char* path, double seconds) {
  const double start = test_seconds();
  while (!exists(path)) {
    if (test_seconds() - start > seconds) return -1.0;
    test_sleep(1);
  }
  return test_seconds() - start;
}

// The total in the header of a text profile; 0 if it is none. The rest must be there.
static unsigned long long text_bytes(const char* path, unsigned long long* count) {
  static char text[512*1024];
  unsigned long long n = 0, bytes = 0;
  FILE* const f = fopen(path, "rb");
  if (f == NULL) return 0;
  const size_t size = fread(text, 1, sizeof(text) - 1, f);
  fclose(f);
  text[size] = 0;
  check(sscanf(text, "heap profile: %llu: %llu [", &n, &bytes) == 2);
  check(size == sizeof(text) - 1 || strstr(text, "\nMAPPED_LIBRARIES:\n") != NULL);
  if (count != NULL) { *count = n; }
  return bytes;
}

static size_t first_number;     // of the session's files
static size_t without_number;   // dumps that the test asked for

static mi_prof_config_t config_of(const char* pattern) {
  mi_prof_config_t config;
  mi_prof_config_init(&config);
  config.sample_rate = 1;
  config.dump_path = pattern;
  return config;
}

static mi_prof_stats_t stats_now(void) {
  mi_prof_stats_t stats;
  mi_prof_stats_init(&stats);
  check(mi_prof_stats_get(&stats));
  return stats;
}

// Numbers go on from session to session, and count failures too.
static void start(const mi_prof_config_t* config) {
  const mi_prof_stats_t stats = stats_now();
  first_number = stats.dumps + stats.failed_dumps - without_number + 1;
  check(mi_prof_start_ex(config));
}

// Remove the files of a pattern. Returns how many there were, which are the session's first ones.
static size_t take_files(const char* pattern) {
  size_t n = 0;
  while (remove(numbered(pattern, first_number + n)) == 0) { n++; }
  return n;
}

#define MiB  ((size_t)1024*1024)

static void slow_path(void) {
  mi_free(test_use(mi_malloc(2*MiB)));
}

static void ignore_output(const char* msg, void* arg) { (void)msg; (void)arg; }

/* -----------------------------------------------------------
  Bytes
----------------------------------------------------------- */

static void* blocks[4096];

static void allocate(size_t n, size_t size) {
  for (size_t i = 0; i < n; i++) { blocks[i] = test_use(mi_malloc(size)); }
}

static void release(size_t n) {
  for (size_t i = 0; i < n; i++) { mi_free(blocks[i]); }
}

static void test_alloc(void) {
  test_begin("prof_dump_alloc: one profile for every so many bytes, with the sample that made it due");
  path_of(pattern, "alloc.%n.txt");
  mi_prof_config_t config = config_of(pattern);
  config.dump_alloc = MiB;
  start(&config);
  for (size_t i = 0; i < 10; i++) {
    allocate(1, MiB/2);
    release(1);
  }
  allocate(6, MiB/2);
  const mi_prof_stats_t stats = stats_now();
  mi_prof_stop();
  check_eq(stats.failed_dumps, 0);
  for (size_t i = 0; i < 5; i++) { check_between(text_bytes(numbered(pattern, first_number + i), NULL), MiB/2, MiB/2 + 100*1024); }
  for (size_t i = 5; i < 8; i++) { check_between(text_bytes(numbered(pattern, first_number + i), NULL), (i - 4)*MiB, (i - 4)*MiB + 100*1024); }
  check_eq(take_files(pattern), 8);
  release(6);

  // one allocation of many times that is one profile, and a reset counts from there
  config.dump_alloc = MiB;
  start(&config);
  allocate(1, 5*MiB + MiB/2);
  release(1);
  mi_prof_reset();
  allocate(1, MiB - MiB/4);
  check(!exists(numbered(pattern, first_number + 1)));
  mi_prof_stop();
  release(1);
  check_eq(take_files(pattern), 1);

  // a rate above 1: the estimate counts
  config.sample_rate = 64*1024;
  config.seed = 7;
  start(&config);
  for (size_t i = 0; i < 64*1024; i++) { mi_free(test_use(mi_malloc(1024))); }
  mi_prof_stop();
  check_between(take_files(pattern), 56, 72);       // 64, with a standard deviation of 2
}

static void test_growth(void) {
  test_begin("prof_dump_growth: one profile for every so many bytes above the highest so far");
  path_of(pattern, "growth.%n.heap");
  mi_prof_config_t config = config_of(pattern);
  config.dump_growth = MiB;
  start(&config);
  allocate(5, MiB/2);
  release(5);
  allocate(5, MiB/2);
  check(!exists(numbered(pattern, first_number + 2)));
  for (size_t i = 5; i < 7; i++) { blocks[i] = test_use(mi_malloc(MiB/2)); }
  mi_prof_stop();
  release(7);
  for (size_t i = 0; i < 3; i++) { check_between(text_bytes(numbered(pattern, first_number + i), NULL), (i + 1)*MiB, (i + 1)*MiB + 100*1024); }
  check_eq(take_files(pattern), 3);
}

/* -----------------------------------------------------------
  Time
----------------------------------------------------------- */

static void test_seconds_alone(void) {
  test_begin("prof_dump_seconds: at the next slow path, not in an idle program, and not by the fast path alone");
  path_of(pattern, "seconds.%n.txt");
  mi_prof_config_t config = config_of(pattern);
  config.dump_seconds = 1;
  start(&config);
  const double begin = test_seconds();
  while (!exists(numbered(pattern, first_number)) && test_seconds() - begin < 10) { slow_path(); test_sleep(5); }
  const double first = test_seconds() - begin;
  check_between(first, 0.9, 5.0);
  printf("    the first after %.3f s\n", first);
  test_sleep(1200);
  check(!exists(numbered(pattern, first_number + 1)));
  slow_path();
  check(exists(numbered(pattern, first_number + 1)));
  slow_path();
  mi_prof_stop();
  check_between(take_files(pattern), 2, 3);     // a third one if that second is over
  // pausing does not stop it, the end does
  slow_path();
  check_eq(take_files(pattern), 0);
}

static void test_seconds_thread(void) {
  test_begin("prof_dump_thread: seconds in an idle program");
  path_of(pattern, "thread.%n.txt");
  mi_prof_config_t config = config_of(pattern);
  config.dump_seconds = 1;
  config.dump_thread = true;
  const double begin = test_seconds();
  start(&config);
  for (size_t i = 0; i < 2; i++) {
    check(wait_for(numbered(pattern, first_number + i), 10.0) >= 0);
    const double late = test_seconds() - begin - (double)(i + 1);
    printf("    second %zu: %.3f s late\n", i + 1, late);
    check_between(late, -0.1, 0.9);
  }
  mi_prof_stop();
  check(take_files(pattern) >= 2);
}

/* -----------------------------------------------------------
  The signal
----------------------------------------------------------- */

#if !defined(_WIN32)

static volatile sig_atomic_t handled;
static void own_handler(int number) { (void)number; handled = handled + 1; }

static bool signal_is_default(int number) {
  struct sigaction action;
  return (sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
}

static void test_signal_alone(void) {
  test_begin("a signal: one profile at the next slow path, however many signals there were");
  path_of(pattern, "signal.%n.txt");
  mi_prof_config_t config = config_of(pattern);
  config.dump_signal = SIGUSR2;
  start(&config);
  struct sigaction action;
  check(sigaction(SIGUSR2, NULL, &action) == 0 && (action.sa_flags & SA_RESTART) != 0);
  for (int i = 0; i < 3; i++) { kill(getpid(), SIGUSR2); }
  test_sleep(50);
  check(!exists(numbered(pattern, first_number)));
  errno = 77;
  void* const p = test_use(mi_malloc(2*MiB));
  check_eq(errno, 77);
  mi_free(p);
  check(exists(numbered(pattern, first_number)));
  slow_path();
  check(!exists(numbered(pattern, first_number + 1)));
  // what is asked for is not lost when threads draw anew, and a paused session has a profile too
  kill(getpid(), SIGUSR2);
  check(mi_prof_set_rate(100));
  slow_path();
  check(exists(numbered(pattern, first_number + 1)));
  kill(getpid(), SIGUSR2);
  check(mi_prof_pause());
  check(stats_now().paused);
  kill(getpid(), SIGUSR2);
  check(stats_now().paused);
  slow_path();
  check(exists(numbered(pattern, first_number + 2)));
  check(mi_prof_resume());
  slow_path();
  check(!exists(numbered(pattern, first_number + 3)));
  mi_prof_stop();
  check(signal_is_default(SIGUSR2));
  check_eq(take_files(pattern), 3);
}

static void test_signal_thread(void) {
  test_begin("a signal and prof_dump_thread: within 100 ms in an idle program");
  path_of(pattern, "signal.%n.pb.gz");
  mi_prof_config_t config = config_of(pattern);
  config.dump_signal = SIGUSR2;
  config.dump_thread = true;
  start(&config);
  const size_t rounds = 10;
  double shortest = 100, longest = 0;
  for (size_t i = 0; i < rounds; i++) {
    const double begin = test_seconds();
    kill(getpid(), SIGUSR2);
    check(wait_for(numbered(pattern, first_number + i), 10.0) >= 0);
    const double took = test_seconds() - begin;
    if (took < shortest) { shortest = took; }
    if (took > longest) { longest = took; }
    check(file_is_gzip(numbered(pattern, first_number + i)));
  }
  printf("    %.1f to %.1f ms\n", shortest*1000, longest*1000);
  if (!is_valgrind()) { check(shortest < 0.1); }
  mi_prof_stop();
  check_eq(take_files(pattern), rounds);
}

static void test_signal_owner(void) {
  test_begin("a signal that the program handles or ignores, or that cannot be one, is left alone, with a warning");
  path_of(pattern, "owner.%n.txt");
  mi_prof_config_t config = config_of(pattern);
  config.dump_signal = SIGUSR2;
  mi_register_output(&output_take, NULL);
  void (*const handlers[])(int) = { &own_handler, SIG_IGN };
  for (size_t i = 0; i < 2; i++) {
    signal(SIGUSR2, handlers[i]);
    output_reset();
    start(&config);
    check_eq(output_lines, 1);
    check(strstr(output, "signal") != NULL);
    kill(getpid(), SIGUSR2);
    slow_path();
    mi_prof_stop();
    check(signal(SIGUSR2, SIG_DFL) == handlers[i]);
    check_eq(take_files(pattern), 0);
  }
  check_eq(handled, 1);
  output_reset();
  start(&config);
  check_eq(output_lines, 0);
  signal(SIGUSR2, &own_handler);      // later is the program's right too
  mi_prof_stop();
  check(signal(SIGUSR2, SIG_DFL) == &own_handler);
  struct sigaction before;
  check(sigaction(SIGSEGV, NULL, &before) == 0);
  const int bad[] = { SIGKILL, SIGSEGV, 9999 };
  for (size_t i = 0; i < sizeof(bad)/sizeof(bad[0]); i++) {
    config.dump_signal = bad[i];
    output_reset();
    start(&config);
    check_eq(output_lines, 1);
    mi_prof_stop();
  }
  struct sigaction after;
  check(sigaction(SIGSEGV, NULL, &after) == 0 && after.sa_handler == before.sa_handler);
  mi_register_output(NULL, NULL);
}

#endif

/* -----------------------------------------------------------
  The thread
----------------------------------------------------------- */

// 0 where that is not known.
static size_t thread_count(void) {
  size_t n = 0;
  #if defined(__linux__) && !defined(TEST_TSAN)     // which has one of its own, as the emulator has
  if (is_emulated()) return 0;
  DIR* const d = opendir("/proc/self/task");
  if (d == NULL) return 0;
  for (struct dirent* e; (e = readdir(d)) != NULL; ) { n += (e->d_name[0] != '.'); }
  closedir(d);
  #endif
  return n;
}

// The system may list a thread for a moment after its end.
static bool threads_become(size_t n) {
  for (int i = 0; i < 1000 && thread_count() != n; i++) { test_sleep(1); }
  return (thread_count() == n);
}

// What threads allocate for themselves is recorded too: `with_thread` must make no difference.
static size_t records_after_start(bool with_thread, const char* pattern) {
  mi_prof_config_t config = config_of(pattern);
  config.dump_seconds = 1;
  config.dump_thread = with_thread;
  start(&config);
  test_sleep(20);
  const size_t n = prof_records();
  if (with_thread) { check(wait_for(numbered(pattern, first_number), 10.0) >= 0); }
  check_eq(prof_records(), n);
  check_eq(stats_now().dropped_reentry, 0);
  mi_prof_stop();
  take_files(pattern);
  return n;
}

static void test_thread(void) {
  test_begin("the thread is there from start to stop, takes no signals, and adds nothing to the profile");
  path_of(pattern, "quiet.%n.pb.gz");
  const size_t before = thread_count();
  const size_t records = records_after_start(false, pattern);
  check_eq(records_after_start(true, pattern), records);
  check_eq(thread_count(), before);
  mi_prof_config_t config = config_of(pattern);
  config.dump_thread = true;
  start(&config);               // nothing for it to do
  check_eq(thread_count(), before);
  mi_prof_stop();
  config.dump_seconds = 1000;
  const size_t rounds = (is_quick() ? 10 : 50);
  for (size_t i = 0; i < rounds; i++) {
    start(&config);
    if (i == 0 && before > 0) { check_eq(thread_count(), before + 1); }
    mi_prof_stop();
    check(threads_become(before));
  }
  check_eq(take_files(pattern), 0);
}

/* -----------------------------------------------------------
  Names and failures
----------------------------------------------------------- */

static void one_dump(const mi_prof_config_t* config) {
  mi_prof_config_t c = *config;
  c.dump_alloc = MiB;
  start(&c);
  slow_path();
  mi_prof_stop();
}

static void test_names(void) {
  test_begin("%p, %n and %%; a name without %n is overwritten; the ending chooses the form");
  char expected[500];
  path_of(pattern, "%%a.%p.%n.%x%.pb.gz");
  mi_prof_config_t config = config_of(pattern);
  one_dump(&config);
  snprintf(expected, sizeof(expected), "%s/%%a.%d.%zu.%%x%%.pb.gz", dir, (int)getpid(), first_number);
  check(file_is_gzip(expected));
  check(remove(expected) == 0);
  path_of(same, "same.txt");
  config.dump_path = same;
  config.dump_keep = 1;
  for (int i = 0; i < 3; i++) {
    one_dump(&config);
    check(file_is_text_profile(same));
  }
  check_eq(dir_count("", NULL, 0), 1);
  check(remove(same) == 0);
  path_of(other, "other.heap.1");
  config.dump_path = other;
  one_dump(&config);
  check(file_is_gzip(other));
  check(remove(other) == 0);
  // the program's string may change
  char mine[500];
  snprintf(mine, sizeof(mine), "%s", same);
  config.dump_path = mine;
  config.dump_alloc = MiB;
  start(&config);
  memset(mine, 'x', sizeof(mine) - 1);
  slow_path();
  mi_prof_stop();
  check(remove(same) == 0);
  config.dump_path = "";      // none
  one_dump(&config);
  check_eq(dir_count("", NULL, 0), 0);
}

static void test_keep(void) {
  test_begin("prof_dump_keep: the oldest are removed, but only files of ours");
  path_of(pattern, "keep.%n.txt");
  mi_prof_config_t config = config_of(pattern);
  config.dump_alloc = MiB;
  config.dump_keep = 2;
  start(&config);
  for (size_t i = 0; i < 3; i++) { slow_path(); }
  check(!exists(numbered(pattern, first_number)));
  check(exists(numbered(pattern, first_number + 1)));
  check(exists(numbered(pattern, first_number + 2)));
  // another file by that name stays
  path_of(aside, "aside");
  check(rename(numbered(pattern, first_number + 1), aside) == 0);
  file_write(numbered(pattern, first_number + 1), "mine");
  for (size_t i = 0; i < 3; i++) { slow_path(); }
  mi_prof_stop();
  check(file_is(numbered(pattern, first_number + 1), "mine"));
  for (size_t i = 0; i < 6; i++) { check(exists(numbered(pattern, first_number + i)) == (i == 1 || i >= 4)); }
  for (size_t i = 0; i < 6; i++) { remove(numbered(pattern, first_number + i)); }
  check(remove(aside) == 0);
  config.dump_keep = 100000;
  check(!mi_prof_start_ex(&config));
  config.dump_keep = 0;
  config.dump_at_limit = 101;
  check(!mi_prof_start_ex(&config));
  check_eq(dir_count("", NULL, 0), 0);
}

// Ten dumps in a row must fail: counted, with one warning (two if that second is over), and nothing left behind.
static void dumps_fail(const char* pattern, const char* what) {
  mi_prof_config_t config = config_of(pattern);
  config.dump_alloc = MiB;
  const size_t files = dir_count("", NULL, 0);
  test_sleep(1010);             // warnings are one a second
  output_reset();
  start(&config);
  const mi_prof_stats_t before = stats_now();
  for (size_t i = 0; i < 10; i++) { slow_path(); }
  const mi_prof_stats_t after = stats_now();
  mi_prof_stop();
  test_check(after.dumps == before.dumps && after.failed_dumps == before.failed_dumps + 10, what, __FILE__, __LINE__);
  if (!test_check(output_lines >= 1 && output_lines <= 3, what, __FILE__, __LINE__)) { printf("%s\n", output); }
  test_check(dir_count("", NULL, 0) == files, what, __FILE__, __LINE__);
}

static void test_failures_are_counted(void) {
  test_begin("failures are counted, and warned about once a second");
  mi_register_output(&output_take, NULL);
  path_of(missing, "missing/%n.txt");
  dumps_fail(missing, "a missing folder");
  check(strstr(output, "missing/") != NULL);
  path_of(file, "target.txt");
  #if !defined(_WIN32)
  path_of(link, "link.txt");
  file_write(file, "old content");
  check(symlink("target.txt", link) == 0);
  dumps_fail(link, "a symbolic link");
  check(file_is(file, "old content"));
  check(remove(link) == 0 && remove(file) == 0);
  if (!is_emulated()) {
    struct rlimit old_limit, limit;
    check(getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
    limit = old_limit;
    limit.rlim_cur = 64;
    check(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    dumps_fail(file, "a full disk");
    check(setrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  }
  else { skip("a full disk", "the emulator would hit the limit with files of its own"); }
  if (geteuid() != 0) {
    check(chmod(dir, 0500) == 0);
    dumps_fail(file, "a folder without permission");
    check(chmod(dir, 0700) == 0);
  }
  else { skip("a folder without permission", "root may write everywhere"); }
  #endif
  static char too_long[5000];
  snprintf(too_long, sizeof(too_long), "%s/", dir);
  memset(too_long + strlen(too_long), 'x', 3900 - strlen(too_long));
  dumps_fail(too_long, "a name that is too long");
  memset(too_long, 'x', sizeof(too_long) - 1);
  mi_prof_config_t config = config_of(too_long);
  check(!mi_prof_start_ex(&config));
  mi_register_output(NULL, NULL);
  check_eq(dir_count("", NULL, 0), 0);
}

/* -----------------------------------------------------------
  Without memory, and near the limit
----------------------------------------------------------- */

static size_t failing_from;     // bytes
static void* (*os_alloc)(size_t size, mi_memid_t* memid);

static void* failing_os_alloc(size_t size, mi_memid_t* memid) {
  return (size >= failing_from ? NULL : os_alloc(size, memid));
}

static void* impossible(void) {
  volatile size_t size = (size_t)PTRDIFF_MAX + 1000;
  return test_use(mi_malloc(size));
}

// Keeps the first line.
static bool sink_head(const void* data, size_t size, void* arg) {
  char* const head = (char*)arg;
  if (head[0] == 0) { snprintf(head, 100, "%.*s", (int)(size < 99 ? size : 99), (const char*)data); }
  return true;
}

// A profile of the peak that is written from the reserve is gone with it: afterwards there is another one.
static void test_oom_peak(const char* pattern) {
  if (!has_seams()) return;
  mi_prof_config_t config = config_of(pattern);
  config.dump_on_oom = true;
  config.dump_kind = MI_PROF_KIND_PEAK;
  start(&config);
  allocate(4000, 1000);
  failing_from = 1;
  _mi_prof_os_alloc = &failing_os_alloc;
  check(impossible() == NULL);
  _mi_prof_os_alloc = os_alloc;
  check_between(text_bytes(numbered(pattern, first_number), NULL), 4000*1000, 4000*1000 + 100*1024);
  release(4000);
  char head[100] = "";
  unsigned long long bytes = 0;
  check(mi_prof_dump_writer(MI_PROF_FORMAT_TEXT, MI_PROF_KIND_PEAK, &sink_head, head));
  check(sscanf(head, "heap profile: %*u: %llu", &bytes) == 1);
  check_between(bytes, 0.99*4000*1000, 4000*1000 + 300*1024);
  mi_prof_stop();
  check_eq(take_files(pattern), 1);
}

static void test_oom(void) {
  test_begin("prof_dump_on_oom: when an allocation fails, once a second, from the reserve if need be");
  path_of(pattern, "oom.%n.txt");
  mi_prof_config_t config = config_of(pattern);
  config.dump_on_oom = true;
  mi_register_output(&output_take, NULL);
  start(&config);
  allocate(4000, 1000);
  for (int i = 0; i < 3; i++) { check(impossible() == NULL); }
  unsigned long long count = 0;
  check_between(text_bytes(numbered(pattern, first_number), &count), 4000*1000, 4000*1000 + 100*1024);
  check_between(count, 4000, 4200);
  check(!exists(numbered(pattern, first_number + 1)) || is_valgrind() || is_emulated());
  if (exists(numbered(pattern, first_number + 1))) { first_number++; }      // it was so slow that a second was over
  if (has_seams()) {
    os_alloc = _mi_prof_os_alloc;
    _mi_prof_os_alloc = &failing_os_alloc;
    for (size_t k = 0; k < 2; k++) {      // from the second on the reserve is not new
      test_sleep(1010);
      failing_from = 1;
      check(!mi_prof_dump_text(numbered(pattern, 999)));    // nobody else may take from it
      without_number++;
      check(impossible() == NULL);
      failing_from = SIZE_MAX;
      check_between(text_bytes(numbered(pattern, first_number + 1 + k), &count), 4000*1000, 4000*1000 + 100*1024);
      check_between(count, 4000, 4200);
    }
    _mi_prof_os_alloc = os_alloc;
  }
  else { skip("no memory for the dump", "a shared library hides what makes it fail"); }
  mi_prof_stop();
  release(4000);
  first_number--;
  for (size_t i = 0; i < 8; i++) { remove(numbered(pattern, first_number + i)); }
  test_oom_peak(pattern);
  // the option is off
  config.dump_on_oom = false;
  start(&config);
  check(impossible() == NULL);
  mi_prof_stop();
  check_eq(take_files(pattern), 0);
  mi_register_output(NULL, NULL);
}

static size_t share;
static size_t share_calls;
static size_t share_now(void) { share_calls++; return share; }

static void look_at(size_t percent) {
  share = percent;
  test_sleep(110);
  slow_path();
}

static void test_limit(void) {
  test_begin("prof_dump_at_limit: once each time that the limit comes near");
  if (!has_seams()) { skip("prof_dump_at_limit", "a shared library hides the limit"); return; }
  path_of(pattern, "limit.%n.txt");
  mi_prof_config_t config = config_of(pattern);
  config.dump_at_limit = 90;
  size_t (*const real)(void) = _mi_prof_memory_share;
  _mi_prof_memory_share = &share_now;
  start(&config);
  static const struct { size_t share; size_t files; } steps[] = { { 50, 0 }, { 89, 0 }, { 90, 1 }, { 95, 1 }, { 81, 1 }, { 99, 1 }, { 80, 1 }, { 91, 2 } };
  for (size_t i = 0; i < sizeof(steps)/sizeof(steps[0]); i++) {
    look_at(steps[i].share);
    check(exists(numbered(pattern, first_number)) == (steps[i].files >= 1));
    check(exists(numbered(pattern, first_number + 1)) == (steps[i].files >= 2));
  }
  const double begin = test_seconds();
  share_calls = 0;
  while (test_seconds() - begin < 0.5) { slow_path(); }
  check_between(share_calls, 1, 11.0*(test_seconds() - begin) + 1);
  mi_prof_stop();
  check_eq(take_files(pattern), 2);
  _mi_prof_memory_share = real;
  // the real one
  const size_t here = real();
  check_between(here, 0, 100);
  #if defined(__linux__) && !defined(TEST_TSAN) && !defined(TEST_ASAN)
  if (is_valgrind() || is_emulated()) { skip("RLIMIT_AS", "the address space is another one here"); return; }
  FILE* const f = fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  check(f != NULL && fscanf(f, "%lu", &pages) == 1);
  fclose(f);
  struct rlimit old_limit, limit;
  check(getrlimit(RLIMIT_AS, &old_limit) == 0);
  limit = old_limit;
  limit.rlim_cur = (rlim_t)pages*(rlim_t)sysconf(_SC_PAGESIZE)*2;
  check(setrlimit(RLIMIT_AS, &limit) == 0);
  check_between(real(), 45, 55);
  check(setrlimit(RLIMIT_AS, &old_limit) == 0);
  #endif
}

#if defined(__linux__)
SEAM uint64_t _mi_prof_cgroup_limit(const char* groups, const char* root_v2, const char* root_v1);

static void test_cgroups(void) {
  test_begin("control groups: the lowest limit on the way to the root, of version 1 and 2");
  if (!has_seams()) { skip("control groups", "a shared library hides the function"); return; }
  path_of(a, "a");
  path_of(b, "a/b");
  check(mkdir(a, 0700) == 0 && mkdir(b, 0700) == 0);
  path_of(root_max, "memory.max");
  path_of(a_max, "a/memory.max");
  path_of(b_max, "a/b/memory.max");
  path_of(a_v1, "a/memory.limit_in_bytes");
  #define limit_of(groups)  ((double)_mi_prof_cgroup_limit(groups, dir, dir))
  const double none = (double)UINT64_MAX;
  check_eq(limit_of("0::/a/b\n"), none);
  file_write(b_max, "max\n");
  check_eq(limit_of("0::/a/b\n"), none);
  file_write(b_max, "5000000\n");
  check_eq(limit_of("0::/a/b\n"), 5000000);
  check_eq(limit_of("0::/a\n"), none);
  file_write(a_max, "4000000\n");
  check_eq(limit_of("0::/a/b\n"), 4000000);
  check_eq(limit_of("0::/a/b"), 4000000);
  check_eq(limit_of("0::/a/missing/x\n"), 4000000);
  file_write(root_max, "3000000\n");
  check_eq(limit_of("0::/\n"), 3000000);
  check_eq(limit_of("0::/of/the/world/outside\n"), 3000000);
  check_eq(limit_of("0::/a/b\n"), 3000000);
  file_write(a_v1, "2000000\n");
  check_eq(limit_of("12:cpu,cpuacct:/a\n3:memory:/a\n"), 2000000);
  check_eq(limit_of("12:cpu,memory:/a/b\n"), 2000000);
  check_eq(limit_of("12:cpu,memoryx:/a\n1:name=systemd:/a\n"), none);
  check_eq(limit_of("3:memory:/a\n0::/a\n"), 2000000);
  file_write(a_v1, "9223372036854771712\n");
  check_eq(limit_of("3:memory:/a\n"), 9223372036854771712.0);
  check_eq(limit_of(""), none);
  check_eq(limit_of("nonsense\n:\n::\n"), 3000000);
  #undef limit_of
  remove(root_max); remove(a_max); remove(b_max); remove(a_v1);
  check(rmdir(b) == 0 && rmdir(a) == 0);
}
#endif

/* -----------------------------------------------------------
  Fork
----------------------------------------------------------- */

#if !defined(_WIN32)

// Returns 0, or the number of the step that failed.
static int forked_child(const char* txt, bool with_thread) {
  alarm(60);
  char path[600];
  const int len = (int)(strlen(txt) - 4);       // `.txt`: our number goes before it
  snprintf(path, sizeof(path), "%.*s.%d.txt", len, txt, (int)getpid());
  if (exists(path)) return 1;
  slow_path();
  if (exists(path)) return 2;                   // what the parent was asked for is not for us
  if (thread_count() > 0 && thread_count() != (with_thread ? 2 : 1)) return 3;
  kill(getpid(), SIGUSR2);
  if (with_thread) { if (wait_for(path, 10.0) < 0) return 4; }
  else             { slow_path(); }
  if (!exists(path)) return 5;
  if (text_bytes(path, NULL) < 3*MiB) return 6; // our copy of the parent's blocks
  remove(path);
  if (impossible() != NULL || !exists(path)) return 11;
  remove(path);
  if (stats_now().dumps != 2) return 12;
  mi_prof_stop();
  if (thread_count() > 0 && !threads_become(1)) return 7;
  if (!signal_is_default(SIGUSR2)) return 8;
  mi_prof_config_t config = config_of(txt);     // a session of our own is no reason to write the parent's file either
  config.dump_alloc = MiB;
  if (!mi_prof_start_ex(&config)) return 9;
  slow_path();
  mi_prof_stop();
  if (!exists(path)) return 10;
  remove(path);
  return 0;
}

static void test_fork(bool with_thread) {
  test_begin(with_thread ? "a forked child has the signal and the thread, and other files than its parent" : "a forked child has the signal, and other files than its parent");
  #if defined(TEST_TSAN)
  if (with_thread) { skip("fork with a thread", "the thread sanitizer allows no thread in a forked child"); return; }
  #endif
  if (with_thread && is_emulated()) { skip("fork with a thread", "the emulator starts no thread in a forked child"); return; }
  if (is_valgrind()) { skip("fork", "valgrind calls lost what the parent's threads hold in a child"); return; }
  path_of(txt, "fork.txt");
  mi_prof_config_t config = config_of(txt);
  config.dump_signal = SIGUSR2;
  config.dump_thread = with_thread;
  config.dump_on_oom = true;
  config.dump_keep = 1;
  start(&config);
  allocate(3, MiB);
  mi_register_output(&ignore_output, NULL);     // of the failed allocation
  for (int i = 0; i < 3; i++) {
    if (!with_thread) { kill(getpid(), SIGUSR2); }
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) { _exit(forked_child(txt, with_thread)); }
    int status = 0;
    check(pid > 0 && waitpid(pid, &status, 0) == pid);
    check(WIFEXITED(status));
    check_eq(WEXITSTATUS(status), 0);
    slow_path();
    check(exists(txt) == !with_thread);
    remove(txt);
  }
  kill(getpid(), SIGUSR2);
  if (with_thread) { check(wait_for(txt, 10.0) >= 0); } else { slow_path(); }
  check(file_is_text_profile(txt));
  mi_prof_stop();
  mi_register_output(NULL, NULL);
  release(3);
  remove(txt);
  check_eq(dir_count("", NULL, 0), 0);
}

#endif

/* -----------------------------------------------------------
  Threads
----------------------------------------------------------- */

static volatile long quit;

static void worker(void* arg) {
  uint64_t random = (uint64_t)(uintptr_t)arg;
  void* mine[64] = { NULL };
  while (!load_flag(&quit)) {
    const size_t i = test_random(&random) % 64;
    mi_free(mine[i]);
    mine[i] = test_use(mi_malloc(1 + test_random(&random) % (test_random(&random) % 50 == 0 ? 200000 : 2000)));
  }
  for (size_t i = 0; i < 64; i++) { mi_free(mine[i]); }
}

static void dumper(void* arg) {
  path_of(path, (arg == NULL ? "by-hand.1" : "by-hand.2"));
  while (!load_flag(&quit)) { mi_prof_dump(path); }
  remove(path);
}

static void restarter(void* arg) {
  const mi_prof_config_t* const config = (const mi_prof_config_t*)arg;
  while (!load_flag(&quit)) {
    mi_prof_start_ex(config);
    test_sleep(3);
    #if !defined(_WIN32)
    if (config->dump_signal != 0 && mi_prof_is_enabled()) { raise(SIGWINCH); }     // ignored by default
    #endif
    mi_prof_stop();
  }
}

static void test_threads(void) {
  test_begin("four threads allocate, two dump, one starts and stops, and all triggers are on");
  path_of(pattern, "threads.%n.pb.gz");
  mi_prof_config_t config = config_of(pattern);
  config.sample_rate = 10000;
  config.dump_alloc = MiB;
  config.dump_growth = 100000;
  config.dump_seconds = 1;
  config.dump_at_limit = 1;
  config.dump_on_oom = true;
  config.dump_thread = true;
  config.dump_keep = 3;
  #if !defined(_WIN32)
  config.dump_signal = SIGWINCH;
  #endif
  const size_t before = thread_count();
  mi_register_output(&ignore_output, NULL);
  const mi_prof_stats_t old = stats_now();
  for (int round = 0; round < 2; round++) {
    test_thread_t threads[7];
    store_flag(&quit, 0);
    if (round == 1) { config.dump_thread = false; }
    check(mi_prof_start_ex(&config));
    for (size_t i = 0; i < 4; i++) { test_thread_start(&threads[i], &worker, (void*)(uintptr_t)(i + 1)); }
    test_thread_start(&threads[4], &dumper, NULL);
    test_thread_start(&threads[5], &dumper, (void*)1);
    test_thread_start(&threads[6], &restarter, &config);
    test_sleep(is_quick() ? 500 : 1500);
    store_flag(&quit, 1);
    for (size_t i = 0; i < 7; i++) { test_thread_join(&threads[i]); }
    mi_prof_stop();
  }
  mi_register_output(NULL, NULL);
  check(threads_become(before));
  const mi_prof_stats_t stats = stats_now();
  check(stats.dumps > old.dumps + 10);
  size_t n = 0;
  char found[300];
  while (dir_count("threads.", found, sizeof(found)) > 0) {
    char path[700];
    dir_path(path, sizeof(path), found);
    check(file_is_gzip(path));
    check(remove(path) == 0);
    n++;
  }
  check_between(n, 1, 20);        // a failed dump makes a gap behind which one stays
  check_eq(dir_count("", NULL, 0), 0);
}

/* -----------------------------------------------------------
  Child processes
----------------------------------------------------------- */

static test_noinline void* recurse(unsigned depth, size_t size) {
  void* const p = (depth == 0 ? mi_malloc(size) : recurse(depth - 1, size));
  return test_use(p);
}

static void* kept[64];

static int child_leak(void) {
  for (unsigned i = 0; i < 50; i++) { kept[i] = recurse(i % 25, 10000*(i % 25 + 1)); }
  for (unsigned i = 0; i < 4; i++) { mi_free(test_use(mi_malloc(5000000))); }
  return 0;
}

#if !defined(_WIN32)

// Use up what RLIMIT_AS leaves. All that is allocated is in the profile.
static int child_oom(void) {
  FILE* const f = fopen("/proc/self/statm", "r");
  unsigned long pages = 0;
  if (f == NULL || fscanf(f, "%lu", &pages) != 1) return 2;
  fclose(f);
  struct rlimit limit;
  limit.rlim_cur = limit.rlim_max = (rlim_t)pages*(rlim_t)sysconf(_SC_PAGESIZE) + 200*MiB;
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 3;
  if (!mi_prof_is_enabled()) return 4;
  size_t n = 0;
  for (void* last = NULL; ; n++) {
    void** const p = (void**)test_use(mi_malloc(4000));
    if (p == NULL) break;
    *p = last;
    last = p;
  }
  if (n < 1000) return 5;
  printf("blocks %zu\n", n);
  return 0;
}

// A set-user-id process: nothing of the environment makes it write, but it may dump itself.
static int child_setuid(const char* path) {
  if (geteuid() == getuid()) return 2;
  if (mi_prof_is_enabled()) return 3;
  mi_prof_config_t config;
  mi_prof_config_init(&config);
  if (config.dump_alloc != 0 || config.dump_growth != 0 || config.dump_seconds != 0 || config.dump_at_limit != 0 || config.dump_signal != 0 ||
      config.dump_on_oom || config.dump_thread || config.dump_keep != 0 || config.leak || strcmp(config.dump_path, "heap.%p.%n.pb.gz") != 0) return 4;
  if (!mi_prof_start(1)) return 5;
  if (!signal_is_default(SIGUSR2)) return 6;
  for (int i = 0; i < 10; i++) { slow_path(); }
  if (impossible() != NULL) return 7;
  mi_prof_stats_t stats;
  mi_prof_stats_init(&stats);
  mi_prof_stats_get(&stats);
  if (stats.dumps != 0 || stats.failed_dumps != 0) return 8;
  return (mi_prof_dump_text(path) ? 0 : 9);
}

#endif

// Leave by a forked child too.
static int child_exit(void) {
  kept[0] = test_use(mi_malloc(100000));
  #if !defined(_WIN32)
  const pid_t pid = fork();
  if (pid == 0) { printf("child %d\n", (int)getpid()); fflush(stdout); exit(0); }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) return 2;
  #endif
  return 0;
}

static int child_env(void) {
  for (int i = 0; i < 3; i++) { slow_path(); }
  #if !defined(_WIN32)
  if (!signal_is_default(SIGUSR1)) { kill(getpid(), SIGUSR1); }
  slow_path();
  #endif
  printf("pid %d\n", (int)getpid());
  return 0;
}

static int child_main(int argc, char** argv) {
  if (strcmp(argv[1], "leak") == 0) return child_leak();
  if (strcmp(argv[1], "exit") == 0) return child_exit();
  if (strcmp(argv[1], "env") == 0) return child_env();
  #if !defined(_WIN32)
  if (strcmp(argv[1], "oom") == 0) return child_oom();
  if (strcmp(argv[1], "setuid") == 0 && argc > 2) return child_setuid(argv[2]);
  #endif
  (void)argc;
  return 1;
}

static const char* const variables[] = {
  "MIMALLOC_PROF", "MIMALLOC_PROF_SAMPLE_RATE", "MIMALLOC_PROF_DUMP", "MIMALLOC_PROF_DUMP_SIGNAL", "MIMALLOC_PROF_DUMP_AT_EXIT", "MIMALLOC_PROF_DUMP_ALLOC",
  "MIMALLOC_PROF_DUMP_GROWTH", "MIMALLOC_PROF_DUMP_SECONDS", "MIMALLOC_PROF_DUMP_AT_LIMIT", "MIMALLOC_PROF_DUMP_ON_OOM", "MIMALLOC_PROF_DUMP_THREAD",
  "MIMALLOC_PROF_DUMP_KEEP", "MIMALLOC_PROF_LEAK", "MIMALLOC_DESTROY_ON_EXIT", "MIMALLOC_SHOW_ERRORS"
};

static void clear_env(void) {
  for (size_t i = 0; i < sizeof(variables)/sizeof(variables[0]); i++) { set_env(variables[i], NULL); }
}

static void profile_env(void) {
  clear_env();
  set_env("MIMALLOC_PROF", "1");
  set_env("MIMALLOC_PROF_SAMPLE_RATE", "1");
  set_env("MIMALLOC_SHOW_ERRORS", "0");       // of mimalloc itself
}

static int number_after(const char* word) {
  const char* const at = strstr(child_output, word);
  return (at == NULL ? -1 : atoi(at + strlen(word)));
}

static void test_leak(void) {
  test_begin("prof_leak: the stacks that hold memory, the largest first");
  path_of(at_exit, "at-exit.txt");
  for (int i = 0; i < 3; i++) {
    profile_env();
    set_env("MIMALLOC_PROF_LEAK", "1");
    set_env("MIMALLOC_PROF_DUMP_AT_EXIT", at_exit);
    if (i > 0) { set_env("MIMALLOC_DESTROY_ON_EXIT", "1"); }
    #if defined(_WIN32)
    const bool is_closed = false;
    #else
    const bool is_closed = (i == 2);
    #endif
    check_eq(run_child(is_closed ? "leak 2>&- #" : "leak"), 0);
    check_between(text_bytes(at_exit, NULL), 50*130000, 50*130000 + 200*1024);
    check(remove(at_exit) == 0);
    if (is_closed) { check(child_output[0] == 0); break; }
    // blocks of stacks, in order
    const char* p = strstr(child_output, "heap profile at exit: about ");
    if (!check(p != NULL)) { printf("%s\n", child_output); continue; }
    size_t shown = 0;
    size_t bytes = 0, objects = 0;
    for (const char* line = child_output; (line = strstr(line, "mimalloc: about ")) != NULL; line++) {
      if (sscanf(line, "mimalloc: about %zu bytes in %zu objects, allocated at", &bytes, &objects) != 2) continue;
      if (shown < 20) {
        check_eq(bytes, 2*10000*(25 - shown));
        check_eq(objects, 2);
      }
      shown++;
    }
    check_eq(shown, 20);
    // frames are modules and offsets
    const char* const frame = strstr(child_output, "mimalloc:     ");
    if (check(frame != NULL)) {
      const char* const end = strchr(frame, '\n');
      const char* const plus = strstr(frame, "+0x");
      if (!check(plus != NULL && end != NULL && plus < end)) { printf("%.200s\n", frame); }
    }
    size_t rest = 0, more = 0;
    const char* const last = strstr(child_output, "mimalloc: and about ");
    check(last != NULL && sscanf(last, "mimalloc: and about %zu bytes by %zu more stacks", &rest, &more) == 2);
    check_between(rest, 2*10000*15, 2*10000*15 + 200*1024);
    check(more >= 5);
  }
  clear_env();
}

static void test_exit(void) {
  test_begin("at exit: a forked child writes another file than its parent, and a path may have %n");
  path_of(txt, "exit.txt");
  profile_env();
  set_env("MIMALLOC_PROF_DUMP_AT_EXIT", txt);
  check_eq(run_child("exit"), 0);
  check_between(text_bytes(txt, NULL), 100000, 300*1024);
  check(remove(txt) == 0);
  #if !defined(_WIN32)
  char name[100];
  snprintf(name, sizeof(name), "exit.%d.txt", number_after("child "));
  path_of(of_child, name);
  check_between(text_bytes(of_child, NULL), 100000, 300*1024);
  check(remove(of_child) == 0);
  #endif
  path_of(with_number, "exit.%n.%p.pb.gz");
  set_env("MIMALLOC_PROF_DUMP_AT_EXIT", with_number);
  check_eq(run_child("env"), 0);
  char expected[100];
  snprintf(expected, sizeof(expected), "exit.1.%d.pb.gz", number_after("pid "));
  path_of(numbered_path, expected);
  check(file_is_gzip(numbered_path));
  remove(numbered_path);
  clear_env();
  check_eq(dir_count("", NULL, 0), 0);
}

static void test_environment(void) {
  test_begin("the environment: pattern, signal, options, and nonsense in them");
  path_of(pattern, "env.%n.txt");
  profile_env();
  set_env("MIMALLOC_PROF_DUMP", pattern);
  set_env("MIMALLOC_PROF_DUMP_ALLOC", "2000000");
  set_env("MIMALLOC_PROF_DUMP_KEEP", "2");
  check_eq(run_child("env"), 0);
  #if defined(_WIN32)
  first_number = 2;
  #else
  first_number = 3;     // one `slow_path` more
  #endif
  check(!exists(numbered(pattern, first_number - 1)));
  check_eq(take_files(pattern), 2);
  #if !defined(_WIN32)
  static const char* const names[] = { "USR1", "SIGUSR1", "usr1", NULL };
  for (size_t i = 0; i < sizeof(names)/sizeof(names[0]); i++) {
    char digits[20];
    snprintf(digits, sizeof(digits), "%d", SIGUSR1);
    set_env("MIMALLOC_PROF_DUMP_SIGNAL", (names[i] == NULL ? digits : names[i]));
    set_env("MIMALLOC_PROF_DUMP_ALLOC", NULL);
    set_env("MIMALLOC_PROF_DUMP_KEEP", NULL);
    check_eq(run_child("env"), 0);
    first_number = 1;
    check_eq(take_files(pattern), 1);
    if (!check(strstr(child_output, "warning") == NULL)) { printf("%s\n", child_output); }
  }
  static const char* const bad_names[] = { "KILL", "SEGV", "USR", "USR11", "12x", "99999999999999999999", "-1", "SIG" };
  for (size_t i = 0; i < sizeof(bad_names)/sizeof(bad_names[0]); i++) {
    set_env("MIMALLOC_PROF_DUMP_SIGNAL", bad_names[i]);
    run_child("leak");
    check(strstr(child_output, "MIMALLOC_PROF_DUMP_SIGNAL") != NULL);
  }
  set_env("MIMALLOC_PROF_DUMP_SIGNAL", NULL);
  static char too_long[6000];
  snprintf(too_long, sizeof(too_long), "%s/", dir);
  memset(too_long + strlen(too_long), 'x', sizeof(too_long) - 1 - strlen(too_long));
  static const char* const paths[] = { "MIMALLOC_PROF_DUMP", "MIMALLOC_PROF_DUMP_AT_EXIT" };
  for (size_t i = 0; i < 2; i++) {
    profile_env();
    set_env("MIMALLOC_PROF_DUMP_ALLOC", "2000000");
    path_of(other, "other.%n.txt");
    set_env("MIMALLOC_PROF_DUMP", (i == 1 ? other : NULL));
    set_env(paths[i], too_long);
    check_eq(run_child("leak"), 0);
    const char* const warning = strstr(child_output, paths[i]);
    check(warning != NULL && strstr(warning + 1, paths[i]) == NULL && strstr(warning, "too long") != NULL);
    check(strchr(child_output, '\n') == child_output + strlen(child_output) - 1);     // one line
    first_number = 1;
    check((take_files(other) > 0) == (i == 1));
  }
  #else
  set_env("MIMALLOC_PROF_DUMP_SIGNAL", "USR2");
  run_child("leak");
  check(strstr(child_output, "MIMALLOC_PROF_DUMP_SIGNAL") != NULL);
  first_number = 1;
  for (size_t i = 1; i < 50; i++) { remove(numbered(pattern, i)); }
  #endif
  clear_env();
  check_eq(dir_count("", NULL, 0), 0);
}

static void test_oom_limit(void) {
  #if !defined(__linux__) || defined(TEST_TSAN) || defined(TEST_ASAN)
  skip("prof_dump_on_oom under RLIMIT_AS", "there is no such limit here");
  #else
  if (is_valgrind() || is_emulated()) { skip("prof_dump_on_oom under RLIMIT_AS", "the address space is another one here"); return; }
  test_begin("prof_dump_on_oom under RLIMIT_AS: all samples are in the profile");
  path_of(pattern, "full.%n.txt");
  profile_env();
  set_env("MIMALLOC_PROF_DUMP", pattern);
  set_env("MIMALLOC_PROF_DUMP_ON_OOM", "1");
  check_eq(run_child("oom"), 0);
  const int n = number_after("blocks ");
  unsigned long long count = 0;
  const unsigned long long bytes = text_bytes(numbered(pattern, 1), &count);
  printf("    %d blocks\n", n);
  check(n > 1000);
  check_between(count, n, n + 500);
  check_between(bytes, 4000.0*n, 4000.0*n + 500000);
  first_number = 1;
  check_between(take_files(pattern), 1, 5);     // libc may fail too, a second later
  clear_env();
  check_eq(dir_count("", NULL, 0), 0);
  #endif
}

static void test_setuid(void) {
  #if defined(TEST_ASAN)
  skip("a set-user-id process", "the leak sanitizer may not look into one");
  #elif defined(__linux__)
  if (geteuid() != 0) { skip("a set-user-id process", "only root can make one"); return; }
  if (is_valgrind() || is_emulated()) { skip("a set-user-id process", "an emulator has not its rights"); return; }
  test_begin("a set-user-id process takes nothing of this from the environment");
  path_of(program, "program");
  path_of(own, "own.txt");
  char command[4000];
  snprintf(command, sizeof(command), "cp '%s' '%s' && chown 65534:65534 '%s' && chmod 4755 '%s' && chmod 0777 '%s'", self, program, program, program, dir);
  check(system(command) == 0);
  path_of(pattern, "env.%n.txt");
  path_of(at_exit, "at-exit.txt");
  profile_env();
  set_env("MIMALLOC_PROF_DUMP", pattern);
  set_env("MIMALLOC_PROF_DUMP_AT_EXIT", at_exit);
  set_env("MIMALLOC_PROF_DUMP_SIGNAL", "USR2");
  for (size_t i = 5; i < 13; i++) { set_env(variables[i], "1"); }
  const char* const real_self = self;
  self = program;
  char what[600];
  snprintf(what, sizeof(what), "setuid '%s'", own);
  const int result = run_child(what);
  self = real_self;
  clear_env();
  if (result == 127 || result == 2) { skip("a set-user-id process", "this folder allows none, or the library is not found"); }
  else {
    check_eq(result, 0);
    check(file_is_text_profile(own));
    check(strstr(child_output, "heap profile") == NULL);
  }
  remove(own);
  check(remove(program) == 0);
  check(chmod(dir, 0700) == 0);
  check_eq(dir_count("", NULL, 0), 0);
  #else
  skip("a set-user-id process", "this system is not tested for it");
  #endif
}

int main(int argc, char** argv) {
  if (argc > 1) return child_main(argc, argv);
  self = argv[0];
  clear_env();
  #if !defined(_WIN32)
  alarm(1000);
  #endif
  dir_create();
  test_thread();        // the first, as libc keeps what it allocates for a thread
  test_alloc();
  test_growth();
  test_seconds_alone();
  test_seconds_thread();
  #if !defined(_WIN32)
  test_signal_alone();
  test_signal_thread();
  test_signal_owner();
  #endif
  test_names();
  test_keep();
  test_failures_are_counted();
  test_oom();
  test_limit();
  #if defined(__linux__)
  test_cgroups();
  #endif
  #if !defined(_WIN32)
  test_fork(false);
  test_fork(true);
  #endif
  test_threads();
  test_leak();
  test_exit();
  test_environment();
  test_oom_limit();
  test_setuid();
  dir_remove();
  return test_done("test-profile-trigger");
}

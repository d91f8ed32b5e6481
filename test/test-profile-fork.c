// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// Fork with a busy parent: its threads allocate, free, dump, start and stop. Each child goes on with its copy of the session:
// it allocates, samples, dumps, stops, starts again and exits.

#include "test-profile.h"

#if defined(_WIN32)

int main(void) {
  printf("skipped: no fork on this system\n");
  return 0;
}

#else

#include "mimalloc/types.h"     // MI_DEBUG
#include <signal.h>
#include <sys/wait.h>

#define THREADS  (4)
#define FORKS    (50)

static char dump_path[256];
static volatile long quit;

/* -----------------------------------------------------------
  The parent's threads
----------------------------------------------------------- */

#define SHARED_BLOCKS  (256)
static void* volatile shared[SHARED_BLOCKS];

static void worker(void* arg) {
  uint64_t random = (uint64_t)(uintptr_t)arg;
  while (!load_flag(&quit)) {
    const size_t size = 1 + test_random(&random) % (test_random(&random) % 100 == 0 ? 100000 : 1000);
    void* const p = test_use(mi_malloc(size));
    *(volatile char*)p = 1;
    mi_free(__atomic_exchange_n(&shared[test_random(&random) % SHARED_BLOCKS], p, __ATOMIC_ACQ_REL));
  }
}

static void ignore_output(const char* msg, void* arg) { (void)msg; (void)arg; }

static void dumper(void* arg) {
  (void)arg;
  char path[300];
  snprintf(path, sizeof(path), "%s.parent", dump_path);
  for (int i = 0; !load_flag(&quit); i++) {
    if (i % 2 == 0) { mi_prof_dump(path); } else { mi_prof_dump_text(path); }
  }
  remove(path);
}

static void restarter(void* arg) {
  (void)arg;
  while (!load_flag(&quit)) {
    mi_prof_stop();
    mi_prof_start(512);
    test_sleep(1);
  }
}

/* -----------------------------------------------------------
  The child
----------------------------------------------------------- */

#define BLOCKS  (2000)
static void* blocks[BLOCKS];

// Returns 0, or the number of the step that failed.
static int child_main(bool may_be_stopped) {
  alarm(60);                            // a child that hangs dies
  char path[300];
  snprintf(path, sizeof(path), "%s.%d", dump_path, (int)getpid());
  if (!mi_prof_is_enabled()) {
    if (!may_be_stopped) return 10;
    if (!mi_prof_start(512)) return 11;
  }
  const size_t before = prof_records();
  for (size_t i = 0; i < BLOCKS; i++) { blocks[i] = test_use(mi_malloc(512)); }
  // 1 MB at one sample per 512 bytes: about 1264 of the 2000 blocks, with a standard deviation of 22
  const size_t sampled = prof_records() - before;
  if (sampled < 1000 || sampled > 1600) return 12;
  if (!mi_prof_dump(path) || test_file_size(path) < 100) return 13;
  if (!mi_prof_dump_text(path) || test_file_size(path) < 100) return 14;
  remove(path);
  for (size_t i = 0; i < BLOCKS; i++) { mi_free(blocks[i]); }
  if (prof_records() != before) return 15;
  // the parent's blocks are ours too, and those of its threads
  for (size_t i = 0; i < SHARED_BLOCKS; i++) { mi_free(shared[i]); }
  if (prof_records() > before) return 16;
  mi_prof_stop();
  if (prof_records() != 0 || mi_prof_is_enabled()) return 17;
  if (!mi_prof_start(1)) return 18;
  const size_t base = prof_records();
  for (size_t i = 0; i < BLOCKS; i++) { blocks[i] = test_use(mi_malloc(64)); }
  if (prof_records() != base + BLOCKS) return 19;
  for (size_t i = 0; i < BLOCKS; i++) { mi_free(blocks[i]); }
  if (prof_records() != base) return 20;
  return 0;
}

static void fork_rounds(int forks, bool may_be_stopped) {
  for (int i = 0; i < forks; i++) {
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
      const int result = child_main(may_be_stopped);
      if (result == 0 && i % 2 == 0) { exit(0); }     // with all that runs at exit, or without
      _exit(result);
    }
    int status = 0;
    check(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (!check(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
      if (WIFSIGNALED(status)) { printf("child %d: signal %d%s\n", i, WTERMSIG(status), (WTERMSIG(status) == SIGALRM ? ": it hung" : "")); }
                          else { printf("child %d: failed at step %d\n", i, WEXITSTATUS(status)); }
      if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) break;
    }
  }
}

static test_thread_t threads[THREADS + 2];

static void threads_start(void (*last)(void*)) {
  store_flag(&quit, 0);
  for (size_t i = 0; i < THREADS; i++) { test_thread_start(&threads[i], &worker, (void*)(uintptr_t)(i + 1)); }
  test_thread_start(&threads[THREADS], &dumper, NULL);
  if (last != NULL) { test_thread_start(&threads[THREADS + 1], last, NULL); }
}

static void threads_end(bool has_last) {
  store_flag(&quit, 1);
  for (size_t i = 0; i < THREADS + (has_last ? 2 : 1); i++) { test_thread_join(&threads[i]); }
  for (size_t i = 0; i < SHARED_BLOCKS; i++) { mi_free(shared[i]); shared[i] = NULL; }
}

// What takes a lock though profiling was never on.
static void asker(void* arg) {
  (void)arg;
  while (!load_flag(&quit)) {
    mi_prof_pause();
    mi_prof_reset();
  }
}

static void fork_before_start(void) {
  store_flag(&quit, 0);
  test_thread_start(&threads[0], &asker, NULL);
  for (int i = 0; i < 100; i++) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(60);
      const bool ok = mi_prof_start(0);
      mi_prof_stop();
      _exit(ok ? 0 : 1);
    }
    int status = -1;
    if (!check(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0)) break;
  }
  store_flag(&quit, 1);
  test_thread_join(&threads[0]);
}

int main(int argc, char** argv) {
  (void)argc;
  alarm(250);
  snprintf(dump_path, sizeof(dump_path), "%.200s.prof-test", argv[0]);
  mi_register_output(&ignore_output, NULL);

  test_begin("100 forks before profiling was ever on, while another thread asks for it");
  fork_before_start();
  test_begin("50 forks with 4 threads that allocate and one that dumps: the child samples, dumps and exits");
  check(mi_prof_start(512));
  threads_start(NULL);
  fork_rounds(FORKS, false);
  threads_end(false);
  if (!test_is_overridden()) { check_eq(prof_records(), 0); }
  mi_prof_stop();

  test_begin("20 forks while another thread starts and stops sessions too");
  threads_start(&restarter);
  fork_rounds(20, true);
  threads_end(true);
  mi_prof_stop();

  test_begin("a fork while profiling is off; the child of a child");
  const pid_t pid = fork();
  if (pid == 0) {
    const int result = child_main(true);
    if (result != 0) _exit(result);
    const pid_t second = fork();
    if (second == 0) { mi_prof_stop(); _exit(child_main(true)); }
    int status = 0;
    _exit(waitpid(second, &status, 0) == second && WIFEXITED(status) ? WEXITSTATUS(status) : 30);
  }
  int status = 0;
  check(pid > 0 && waitpid(pid, &status, 0) == pid);
  check(WIFEXITED(status));
  check_eq(WEXITSTATUS(status), 0);
  check(!mi_prof_is_enabled());
  mi_register_output(NULL, NULL);
  return test_done("test-profile-fork");
}

#endif

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// A test that fails in the way that its argument says: `cargo xtask test-all --self-test` sees that each is noticed.

#include "test-profile.h"
#include <limits.h>

static volatile int number = INT_MAX;
static int shared;      // not atomic, without a lock

static void increment(void* arg) {
  (void)arg;
  for (int i = 0; i < 100000; i++) { shared++; }
}

static void race(void) {
  test_thread_t threads[2];
  for (int i = 0; i < 2; i++) { test_thread_start(&threads[i], &increment, NULL); }
  for (int i = 0; i < 2; i++) { test_thread_join(&threads[i]); }
  number = shared;
}

static void use_after_free(void) {
  volatile char* const p = (volatile char*)test_use(mi_malloc(100));
  p[50] = 1;
  mi_free((void*)p);
  number = p[50];
}

static test_noinline void leak(void) {
  for (int i = 0; i < 100; i++) { memset(test_use(mi_malloc(1000)), 0, 1000); }
}

static void crash(void) {
  *(volatile int*)test_use(NULL) = 1;
}

int main(int argc, char** argv) {
  const char* const fault = (argc > 1 ? argv[1] : "none");
  const bool is_none = (strcmp(fault, "none") == 0);
  if (strcmp(fault, "skip") == 0) { printf("skipped: as planned\n"); return 0; }
  if (strcmp(fault, "nothing") == 0) { printf("0 checks, 0 failures\n"); return 0; }
  if (strcmp(fault, "silent") == 0) return 0;
  if (strcmp(fault, "hang") == 0) { while (true) { test_sleep(1000); } }
  if (strcmp(fault, "crash") == 0) { crash(); }
  if (strcmp(fault, "use-after-free") == 0) { use_after_free(); }
  if (strcmp(fault, "overflow") == 0) { number = number + 1; }
  if (strcmp(fault, "race") == 0) { race(); }
  if (strcmp(fault, "leak") == 0) { leak(); }
  check(strcmp(fault, "check") != 0);
  if (!is_none) { printf("fault: %s\n", fault); }
  return test_done("test-profile-planted");
}

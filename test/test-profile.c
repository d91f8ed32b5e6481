// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// The session's functions, and what happens to samples as blocks come, change and go.

#include "test-profile.h"

#define COUNT    (1000)
#define SIZE     (512)
#define RATE     (4096)

static void* blocks[COUNT];

static void alloc_all(size_t size) {
  for (size_t i = 0; i < COUNT; i++) { blocks[i] = test_use(mi_malloc(size)); }
}

static void free_all(void) {
  for (size_t i = 0; i < COUNT; i++) { mi_free(blocks[i]); }
}

static void test_session(void) {
  test_begin("start and stop");
  check(!mi_prof_is_enabled());
  check_eq(prof_records(), 0);
  mi_prof_stop();                                 // harmless
  check(mi_prof_start(1));
  check(mi_prof_is_enabled());
  alloc_all(SIZE);
  const size_t count = prof_records();
  check(count >= COUNT);
  check(mi_prof_start_seeded(1024*1024, 1));      // leaves the session and its samples as they are
  check_eq(prof_records(), count);
  void* const p = test_use(mi_malloc(SIZE));
  check_eq(prof_records(), count + 1);            // still at rate 1
  mi_free(p);
  mi_prof_debug_stats(NULL, NULL);
  mi_prof_stop();
  check(!mi_prof_is_enabled());
  check_eq(prof_records(), 0);
  check_eq(prof_bytes(), 0);
  free_all();
}

// A request of `s` bytes is sampled with probability p = 1 - exp(-s/rate). Here s = 512 and rate = 4096, so
// p = 1 - exp(-1/8) = 0.1175, and of 1000 requests 117.5 are sampled, with a standard deviation of
// sqrt(1000*p*(1-p)) = 10.2. The bounds are those of the specification; the nearer one is more than 5 deviations off.
static void test_expected_count(void) {
  test_begin("the number of samples");
  check(mi_prof_start_seeded(RATE, 42));
  alloc_all(SIZE);
  size_t records, bytes;
  mi_prof_debug_stats(&records, &bytes);
  check_between(records, 60, 190);
  check_eq(bytes, records*SIZE);
}

static void test_free(void) {
  test_begin("free everything");
  free_all();
  check_eq(prof_records(), 0);
  check_eq(prof_bytes(), 0);
  // the records are used again
  alloc_all(SIZE);
  check_between(prof_records(), 60, 190);
  free_all();
  check_eq(prof_records(), 0);
  check_eq(prof_bytes(), 0);
  mi_prof_stop();
}

// At rate 1 every allocation is a record, so the bytes are exact.
static void test_realloc(void) {
  test_begin("realloc");
  check(mi_prof_start(1));
  const size_t records = prof_records();
  const size_t bytes = prof_bytes();
  void* p = test_use(mi_malloc(1000));
  check_eq(prof_records(), records + 1);
  check_eq(prof_bytes(), bytes + 1000);
  const bool fits = (mi_usable_size(p) >= 1010);  // in a block of 1024 bytes it does, unless that is padded
  void* q = test_use(mi_realloc(p, 1010));
  check((q == p) == fits);
  check_eq(prof_records(), records + 1);
  check_eq(prof_bytes(), bytes + 1010);
  p = q;
  q = test_use(mi_realloc(p, 700));
  check(q == p);                                  // at least half of it is still used
  check_eq(prof_records(), records + 1);
  check_eq(prof_bytes(), bytes + 700);
  mi_free(q);
  check_eq(prof_records(), records);
  check_eq(prof_bytes(), bytes);
  p = test_use(mi_malloc(16));
  q = test_use(mi_realloc(p, 1024*1024));
  check(q != p);
  check_eq(prof_records(), records + 1);
  check_eq(prof_bytes(), bytes + 1024*1024);
  mi_free(q);
  check_eq(prof_records(), records);
  check_eq(prof_bytes(), bytes);
  mi_prof_stop();
}

static void test_stopped(void) {
  test_begin("after stop");
  check(mi_prof_start_seeded(64, 1));
  alloc_all(SIZE);
  check(prof_records() > COUNT/2);
  mi_prof_stop();
  check_eq(prof_records(), 0);
  free_all();                                     // blocks that had a record
  for (int round = 0; round < 10; round++) {
    alloc_all(16 << round);
    check_eq(prof_records(), 0);
    free_all();
  }
  check_eq(prof_records(), 0);
  check_eq(prof_bytes(), 0);
}

#define THREADS          (4)
#define THREAD_ALLOCS    (100000)
#define THREAD_KEEP      (1000)

static void* kept[THREADS][THREAD_KEEP];

static void churn(void* arg) {
  void** const mine = (void**)arg;
  uint64_t random = (uint64_t)(mine - &kept[0][0]) + 1;
  for (size_t i = 0; i < THREAD_ALLOCS; i++) {
    const size_t k = test_random(&random) % THREAD_KEEP;
    mi_free(mine[k]);
    mine[k] = mi_malloc(1 + test_random(&random) % 2000);
  }
}

static void test_threads(void) {
  test_begin("threads");
  check(mi_prof_start_seeded(RATE, 7));
  const size_t records = prof_records();
  test_thread_t threads[THREADS];
  for (size_t i = 0; i < THREADS; i++) { test_thread_start(&threads[i], &churn, kept[i]); }
  for (size_t i = 0; i < THREADS; i++) { test_thread_join(&threads[i]); }
  check(prof_records() > records);
  for (size_t i = 0; i < THREADS; i++) {
    for (size_t k = 0; k < THREAD_KEEP; k++) { mi_free(kept[i][k]); }
  }
  check_eq(prof_records(), records);
  mi_prof_stop();
  check_eq(prof_records(), 0);
}

int main(void) {
  test_session();
  test_expected_count();
  test_free();
  test_realloc();
  test_stopped();
  test_threads();
  return test_done("test-profile");
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// Sessions that start and stop, and dumps, while threads allocate and free their own and each other's blocks. Each block is
// filled and checked, so that a block handed out twice is noticed.

#include "test-profile.h"
#include "mimalloc/types.h"

#if defined(_MSC_VER) && !defined(__clang__)
#define exchange_ptr(p,x)   _InterlockedExchangePointer(p, x)
#else
#define exchange_ptr(p,x)   __atomic_exchange_n(p, x, __ATOMIC_ACQ_REL)
#endif

#if (MI_DEBUG > 2) || MI_TSAN
#define SLOW  1
#else
#define SLOW  0
#endif

#define THREADS       (8)
#define SECONDS       (SLOW ? 2.0 : 1.0)    // per phase

static bool is_overridden;      // is libc's `malloc` ours? Then the C library's blocks for threads count too.

static const size_t rates[] = { 1, 16, 4096, 524288 };

/* -----------------------------------------------------------
  Blocks that know their size
----------------------------------------------------------- */

typedef struct block_s {
  size_t size;
  size_t check;
} block_t;

static size_t random_size(uint64_t* random) {
  const uint32_t kind = test_random(random) % 1000;
  const uint32_t r = test_random(random);
  if (kind < 700) return sizeof(block_t) + r % 200;
  if (kind < 950) return sizeof(block_t) + r % 2000;
  if (kind < 999) return sizeof(block_t) + r % 40000;
  return sizeof(block_t) + r % 1000000;
}

static void block_fill(block_t* b, size_t size) {
  b->size = size;
  b->check = ~size ^ (size_t)(uintptr_t)b;
  if (size > sizeof(block_t)) { ((unsigned char*)b)[size-1] = (unsigned char)size; }
}

static block_t* block_new(uint64_t* random) {
  const size_t size = random_size(random);
  void* const p = (test_random(random) % 16 == 0 ? mi_malloc_aligned(size, 64) : mi_malloc(size));
  if (p == NULL) { check(p != NULL); exit(2); }
  block_t* const b = (block_t*)test_use(p);
  block_fill(b, size);
  return b;
}

static block_t* block_check(block_t* b) {
  const size_t size = b->size;
  if (b->check != (~size ^ (size_t)(uintptr_t)b) || (size > sizeof(block_t) && ((unsigned char*)b)[size-1] != (unsigned char)size)) {
    check(!"a block has changed: it was handed out twice");
    exit(2);
  }
  return b;
}

static void block_delete(block_t* b) {
  if (b != NULL) {
    block_check(b)->check = 0;
    mi_free(b);
  }
}

static block_t* block_resize(block_t* b, uint64_t* random) {
  block_check(b);
  const size_t size = (test_random(random) % 2 == 0 ? random_size(random) : b->size + test_random(random) % 16);
  b = (block_t*)mi_realloc(b, size);
  if (b == NULL) { check(b != NULL); exit(2); }
  block_fill(b, size);
  return b;
}

/* -----------------------------------------------------------
  Threads that allocate and free, until told to end
----------------------------------------------------------- */

#define SHARED_BLOCKS  (512)
#define OWN_BLOCKS     (256)

static void* volatile shared[SHARED_BLOCKS];
static volatile long  quit;
static volatile long  operations;

static void work(uint64_t seed, size_t steps) {   // 0: until told to quit
  uint64_t random = seed;
  block_t* own[OWN_BLOCKS];
  memset(own, 0, sizeof(own));
  for (size_t step = 0; steps == 0 ? !load_flag(&quit) : step < steps; step++) {
    const uint32_t op = test_random(&random) % 100;
    block_t** const slot = &own[test_random(&random) % OWN_BLOCKS];
    if (op < 40) {
      block_delete(*slot);
      *slot = block_new(&random);
    }
    else if (op < 60) {
      if (*slot != NULL) { *slot = block_resize(*slot, &random); }
    }
    else if (op < 99) {
      block_t* const b = block_new(&random);
      block_delete((block_t*)exchange_ptr(&shared[test_random(&random) % SHARED_BLOCKS], (void*)b));
    }
    else if (test_random(&random) % 50 == 0) {
      mi_collect(test_random(&random) % 2 == 0);
    }
    if ((step & 0xFF) == 0) { test_count(&operations); }
  }
  // half of them stay behind
  for (size_t i = 0; i < OWN_BLOCKS; i++) {
    if (i % 2 == 0) { block_delete(own[i]); }
    else if (own[i] != NULL) { block_delete((block_t*)exchange_ptr(&shared[i % SHARED_BLOCKS], (void*)own[i])); }
  }
}

static void worker(void* arg) {
  work((uint64_t)(uintptr_t)arg, 0);
}

static void short_worker(void* arg) {
  work((uint64_t)(uintptr_t)arg, 300);
}

static test_thread_t threads[THREADS];

static void workers_start(void) {
  store_flag(&quit, 0);
  for (size_t i = 0; i < THREADS; i++) { test_thread_start(&threads[i], &worker, (void*)(uintptr_t)(i + 1)); }
}

static void workers_end(void) {
  store_flag(&quit, 1);
  for (size_t i = 0; i < THREADS; i++) { test_thread_join(&threads[i]); }
}

static void shared_free(void) {
  for (size_t i = 0; i < SHARED_BLOCKS; i++) { block_delete((block_t*)exchange_ptr(&shared[i], NULL)); }
}

/* -----------------------------------------------------------
  Tests
----------------------------------------------------------- */

static void test_stop_while_busy(void) {
  test_begin("mi_prof_stop while 8 threads allocate and free");
  const double end = test_seconds() + SECONDS;
  workers_start();
  size_t rounds = 0;
  size_t sampled = 0;
  for (; test_seconds() < end; rounds++) {
    const size_t rate = rates[rounds % 4];
    check(mi_prof_start(rate));
    test_sleep(rounds % 5);
    size_t records, bytes;
    mi_prof_debug_stats(&records, &bytes);
    check(records <= bytes || records == 0);
    sampled += (records > 0);
    mi_prof_stop();
    check_eq(prof_records(), 0);
    check_eq(prof_bytes(), 0);
  }
  check(rounds > 10);
  check(sampled > 0);
  check(mi_prof_start(4096));
  workers_end();
  shared_free();
  if (!is_overridden) {
    check_eq(prof_records(), 0);      // nothing that was freed stays
    check_eq(prof_bytes(), 0);
  }
  mi_prof_stop();
  check_eq(prof_records(), 0);
  printf("    %zu sessions, %zu of them with samples, %ld thousand operations\n", rounds, sampled, operations/4);
}

static void test_everything_freed(void) {
  test_begin("8 threads, no stop, at each rate: everything freed leaves nothing");
  for (size_t i = 0; i < 4; i++) {
    check(mi_prof_start(rates[i]));
    workers_start();
    test_sleep(SLOW ? 400 : 200);
    if (rates[i] <= 4096) { check(prof_records() > 0); }
    workers_end();
    shared_free();
    if (!is_overridden) {
      check_eq(prof_records(), 0);
      check_eq(prof_bytes(), 0);
    }
    mi_prof_stop();
  }
}

static void test_short_threads(void) {
  test_begin("threads that come and go while sessions start and stop");
  uint64_t seed = 100;
  for (int round = 0; round < (SLOW ? 20 : 60); round++) {
    if (round % 3 != 2) { check(mi_prof_start(rates[round % 3])); }
    for (size_t i = 0; i < THREADS; i++) { test_thread_start(&threads[i], &short_worker, (void*)(uintptr_t)seed++); }
    if (round % 2 == 0) { mi_prof_stop(); }
    for (size_t i = 0; i < THREADS; i++) { test_thread_join(&threads[i]); }
  }
  mi_prof_stop();
  check(mi_prof_start(1));
  shared_free();
  if (!is_overridden) { check_eq(prof_records(), 0); }
  mi_prof_stop();
}

// Fill some segments and give them back to the system.
static void segment_worker(void* arg) {
  const size_t thread = (size_t)(uintptr_t)arg;
  static void* all_blocks[THREADS][1000];
  void** const blocks = all_blocks[thread];
  while (!load_flag(&quit)) {
    const size_t size = 1000 + 500*thread;
    for (size_t i = 0; i < 1000; i++) { blocks[i] = mi_malloc(size); }
    for (size_t i = 0; i < 1000; i++) { mi_free(blocks[i]); }
    mi_collect(true);
  }
}

static void test_stop_while_pages_vanish(void) {
  test_begin("mi_prof_stop while the pages of sampled blocks are unmapped");
  mi_option_enable(mi_option_disallow_arena_alloc);
  mi_option_set(mi_option_purge_delay, 0);
  store_flag(&quit, 0);
  for (size_t i = 0; i < THREADS; i++) { test_thread_start(&threads[i], &segment_worker, (void*)(uintptr_t)i); }
  const double end = test_seconds() + SECONDS;
  while (test_seconds() < end) {
    check(mi_prof_start(1));
    while (prof_records() < 3000 && test_seconds() < end) { test_sleep(0); }
    mi_prof_stop();
  }
  workers_end();
  mi_option_set(mi_option_purge_delay, 10);
  mi_option_disable(mi_option_disallow_arena_alloc);
}

/* -----------------------------------------------------------
  Dumps
----------------------------------------------------------- */

static char dump_path[256];
static volatile long dumps;

static void test_dump_while_busy(void) {
  test_begin("dumps in both forms while 8 threads allocate and free");
  check(mi_prof_start(512));
  workers_start();
  const double end = test_seconds() + SECONDS;
  for (int i = 0; i < 4 || test_seconds() < end; i++) {
    check(i % 2 == 0 ? mi_prof_dump(dump_path) : mi_prof_dump_text(dump_path));
    check(test_file_size(dump_path) > 100);
    test_count(&dumps);
  }
  workers_end();
  shared_free();
  if (!is_overridden) { check_eq(prof_records(), 0); }
  mi_prof_stop();
  remove(dump_path);
  printf("    %ld dumps\n", dumps);
}

static void ignore_output(const char* msg, void* arg) { (void)msg; (void)arg; }

static void controller(void* arg) {
  uint64_t random = (uint64_t)(uintptr_t)arg;
  char path[300];
  snprintf(path, sizeof(path), "%s.%u", dump_path, (unsigned)random);
  while (!load_flag(&quit)) {
    switch (test_random(&random) % 8) {
      case 0: case 1: case 2:
        check(mi_prof_start(rates[test_random(&random) % 4])); break;
      case 3: case 4:
        mi_prof_stop(); break;
      case 5:
        mi_prof_dump(path); break;        // false if it is off
      case 6:
        mi_prof_dump_text(path); break;
      default: {
        size_t records, bytes;
        mi_prof_debug_stats(&records, &bytes);
      }
    }
  }
  remove(path);
}

static void test_control_from_many(void) {
  test_begin("start, stop, dump and stats from 4 threads at once while 8 threads allocate and free");
  mi_register_output(&ignore_output, NULL);
  workers_start();
  test_thread_t controllers[4];
  for (size_t i = 0; i < 4; i++) { test_thread_start(&controllers[i], &controller, (void*)(uintptr_t)(i + 1)); }
  test_sleep((unsigned)(SECONDS * 1000));
  workers_end();      // tells the others too
  for (size_t i = 0; i < 4; i++) { test_thread_join(&controllers[i]); }
  mi_register_output(NULL, NULL);
  shared_free();
  mi_prof_stop();
  check_eq(prof_records(), 0);
  check(!mi_prof_is_enabled());
}

/* -----------------------------------------------------------
  Start and stop many times, and the memory afterwards
----------------------------------------------------------- */

// In bytes; 0 if it is not known.
static size_t resident(void) {
  #if defined(__linux__) && !MI_TSAN
  FILE* const f = fopen("/proc/self/statm", "r");
  if (f == NULL) return 0;
  unsigned long size = 0, rss = 0;
  const int n = fscanf(f, "%lu %lu", &size, &rss);
  fclose(f);
  return (n == 2 ? (size_t)rss * (size_t)sysconf(_SC_PAGESIZE) : 0);
  #else
  return 0;
  #endif
}

#define OLD_BLOCKS  (20000)
static block_t* old_blocks[OLD_BLOCKS];

static void churn(uint64_t* random, size_t steps) {
  for (size_t i = 0; i < steps; i++) {
    block_t** const slot = &old_blocks[test_random(random) % OLD_BLOCKS];
    block_delete(*slot);
    *slot = (test_random(random) % 3 == 0 ? NULL : block_new(random));
  }
}

static void test_thousand_rounds(void) {
  const int rounds = 1000;
  test_begin("1,000 rounds of start and stop at changing rates, with live pages from before; then memory back to the system");
  uint64_t random = 7;
  churn(&random, 2*OLD_BLOCKS);
  size_t before = 0;
  for (int round = 0; round < rounds; round++) {
    check(mi_prof_start(rates[round % 4]));
    churn(&random, (round % 100 == 0 ? 4000 : (SLOW ? 50 : 300)));
    if (rates[round % 4] == 1) { check(prof_records() > 0); }
    mi_prof_stop();
    check_eq(prof_records(), 0);
    if (round == rounds/4) { before = resident(); }
  }
  const size_t after = resident();
  if (before > 0) { check_between(after / 1e6, 0, before / 1e6 + 8); }   // the program's own share goes up and down a little
  for (size_t i = 0; i < OLD_BLOCKS; i++) { block_delete(old_blocks[i]); old_blocks[i] = NULL; }
}

#define MANY  (SLOW ? 100000 : 400000)
static void* many[400000];

static void test_memory_back(void) {
  test_begin("the memory of many records goes back to the system at stop");
  for (int round = 0; round < 3; round++) {
    for (size_t i = 0; i < MANY; i++) { many[i] = memset(mi_malloc(48), 1, 48); }
    mi_collect(true);
    const size_t before = resident();
    check(mi_prof_start(1));
    for (size_t i = 0; i < MANY; i++) {     // the same memory as before, as good as
      mi_free(many[i]);
      many[i] = memset(mi_malloc(48), 2, 48);
    }
    check(prof_records() >= MANY);
    const size_t during = resident();
    mi_prof_stop();
    const size_t after = resident();
    if (before > 0) {
      check(during >= before + MANY*24);    // or the test proves nothing
      check_between(after / 1e6, 0, before / 1e6 + 2);
      check_between((during - after) / (double)MANY, 24, 96);   // what a record takes
      if (round == 0) { printf("    resident: %.1f MB before, %.1f during, %.1f after\n", before / 1e6, during / 1e6, after / 1e6); }
    }
    for (size_t i = 0; i < MANY; i++) { mi_free(many[i]); }
  }
}

int main(int argc, char** argv) {
  (void)argc;
  is_overridden = test_is_overridden();
  snprintf(dump_path, sizeof(dump_path), "%.200s.prof-test", argv[0]);
  mi_option_set(mi_option_prof_max_bytes, 0);
  const double start = test_seconds();
  test_memory_back();
  test_thousand_rounds();
  test_stop_while_busy();
  test_everything_freed();
  test_short_threads();
  test_stop_while_pages_vanish();
  test_dump_while_busy();
  test_control_from_many();
  printf("    %.1f seconds\n", test_seconds() - start);
  return test_done("test-profile-threads");
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// Are the estimates unbiased? Known amounts are allocated under many seeds, and the mean of the estimates is compared
// to the truth.
//
// A request of `s` bytes is sampled with probability p = 1 - exp(-s/rate) and then stands for 1/p requests. So of `n`
// requests the estimated number has mean n and variance n*(1-p)/p, and the mean over `k` seeds has the relative
// standard error e = sqrt((1-p)/(p*n*k)). Every case takes as many seeds as make e at most 1 % (`samples` below). A mean
// may be `LIMIT` standard errors off: with about 150 checks one of them fails by chance once in 100 runs of other
// seeds; these seeds are fixed. To show that the checks can fail, each case is judged again with 5 % added to and
// taken from every estimate. With MI_TEST_QUICK, for emulators and the like, it is a 16th of the work: e is at most
// 4 %, and 20 % are added and taken.

#include "test-profile.h"
#include <math.h>

#define LIMIT       (4.0)
#define KiB         ((size_t)1024)
#define MiB         (1024*KiB)
#define MAX_BLOCKS  (20000)

static double samples   = 10500.0;
static double max_error = 0.01;
static double planted   = 0.05;     // more than LIMIT*max_error

// In `profile.c`: the estimated number and bytes of live objects of `size` bytes (0: of any size).
void _mi_prof_estimate(size_t size, double* objects, double* bytes);

static double estimate_objects(size_t size) {
  double objects, bytes;
  _mi_prof_estimate(size, &objects, &bytes);
  return objects;
}

static double estimate_bytes(void) {
  double objects, bytes;
  _mi_prof_estimate(0, &objects, &bytes);
  return bytes;
}

static double probability(size_t size, size_t rate) {
  return (rate <= 1 ? 1.0 : -expm1(-(double)size / (double)rate));
}

/* -----------------------------------------------------------
  Judging
----------------------------------------------------------- */

static int judged;
static int caught_high;
static int caught_low;

static bool is_unbiased(double ratio, double error) {
  return (fabs(ratio - 1.0) <= LIMIT*error + 1e-9);
}

// `ratio`: mean of the estimates to the truth. `error`: its relative standard error.
static void judge(const char* what, size_t size, size_t rate, double ratio, double error) {
  judged++;
  if (!is_unbiased(ratio*(1.0 + planted), error)) { caught_high++; }
  if (!is_unbiased(ratio*(1.0 - planted), error)) { caught_low++; }
  check(error <= max_error);
  if (!check(is_unbiased(ratio, error))) {
    printf("  %s, size %zu, rate %zu: mean %.4f of the truth, standard error %.4f\n", what, size, rate, ratio, error);
  }
}

/* -----------------------------------------------------------
  One size
----------------------------------------------------------- */

static void* blocks[MAX_BLOCKS];

// All blocks live, and then what is left after each was freed with probability 1/2.
static void test_size(size_t size, size_t rate, size_t count) {
  const double p = probability(size, rate);
  const size_t seeds = 1 + (size_t)(2*samples*(1.0 - p) / (p*(double)count));
  double live = 0, left = 0, left_truth = 0;
  uint64_t random = size + rate;
  for (size_t seed = 1; seed <= seeds; seed++) {
    check(mi_prof_start_seeded(rate, seed));
    for (size_t i = 0; i < count; i++) { blocks[i] = mi_malloc(size); }
    live += estimate_objects(size);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
      if (test_random(&random) % 2 == 0) { mi_free(blocks[i]); } else { blocks[kept++] = blocks[i]; }
    }
    left += estimate_objects(size);
    left_truth += (double)kept;
    for (size_t i = 0; i < kept; i++) { mi_free(blocks[i]); }
    if (estimate_objects(size) != 0) { check(!"all samples are gone"); }
    mi_prof_stop();
  }
  const double truth = (double)count * (double)seeds;
  judge("live", size, rate, live / truth, sqrt((1.0 - p) / (p*truth)));
  judge("after frees", size, rate, left / left_truth, sqrt((1.0 - p) / (p*left_truth)));
}

static void test_sizes(void) {
  test_begin("one size");
  static const size_t sizes[] = { 8, 64, 100, 512, 1024, 1025, 4*KiB, 64*KiB, 256*KiB, MiB, 20*MiB };
  for (size_t i = 0; i < sizeof(sizes)/sizeof(sizes[0]); i++) {
    const size_t size = sizes[i];
    // few blocks of the large sizes, which take address space and, where debugging fills them, time
    const size_t count = (size <= KiB ? 20000 : (size <= 4*KiB ? 5000 : (size <= 64*KiB ? 500 : (size <= MiB ? 100 : 16))));
    test_size(size, 1, count);
    test_size(size, size/4 + 1, count);
    test_size(size, size, count);
    #if !defined(NDEBUG)
    if (size > 64*KiB) continue;              // they would be filled
    #endif
    test_size(size, (size <= 4*KiB ? 50 : 8)*size, count);
  }
}

/* -----------------------------------------------------------
  Several sizes at one call site, and aligned blocks
----------------------------------------------------------- */

#define MIX  (4)

// Sizes `sizes[i]`, in turn, with an alignment where it is not 0. Each size, and the sum of the bytes.
static void test_mix(const char* what, const size_t sizes[MIX], const size_t alignments[MIX], size_t rate, size_t count) {
  double truth_bytes = 0, variance = 0, min_p = 1.0;
  for (size_t i = 0; i < MIX; i++) {
    const double p = probability(sizes[i], rate);
    if (p < min_p) { min_p = p; }
    truth_bytes += (double)(count/MIX) * (double)sizes[i];
    variance += (double)(count/MIX) * (double)sizes[i] * (double)sizes[i] * (1.0 - p)/p;
  }
  const size_t seeds = 1 + (size_t)(samples / (min_p*(double)(count/MIX)));
  double objects[MIX] = { 0 };
  double bytes = 0;
  for (size_t seed = 1; seed <= seeds; seed++) {
    check(mi_prof_start_seeded(rate, seed));
    const double before = estimate_bytes();
    for (size_t i = 0; i < count; i++) {
      const size_t k = i % MIX;
      blocks[i] = (alignments[k] == 0 ? mi_malloc(sizes[k]) : mi_malloc_aligned(sizes[k], alignments[k]));
    }
    for (size_t k = 0; k < MIX; k++) { objects[k] += estimate_objects(sizes[k]); }
    bytes += estimate_bytes() - before;
    for (size_t i = 0; i < count; i++) { mi_free(blocks[i]); }
    mi_prof_stop();
  }
  for (size_t k = 0; k < MIX; k++) {
    const double p = probability(sizes[k], rate);
    const double truth = (double)(count/MIX) * (double)seeds;
    judge(what, sizes[k], rate, objects[k] / truth, sqrt((1.0 - p) / (p*truth)));
  }
  judge(what, 0, rate, bytes / (truth_bytes*(double)seeds), sqrt(variance / (double)seeds) / truth_bytes);
}

static void test_mixes(void) {
  test_begin("a call site that mixes sizes");
  static const size_t plain[MIX] = { 0, 0, 0, 0 };
  static const size_t wide[MIX] = { 100, 400, 3000, 40000 };
  test_mix("mix", wide, plain, 512, 2000);
  test_mix("mix", wide, plain, 4*KiB, 2000);
  test_begin("aligned and plain blocks in one bin");
  static const size_t near_sizes[MIX] = { 100, 101, 102, 103 };   // all in blocks of 112 bytes
  static const size_t alignments[MIX] = { 0, 64, 32, 0 };
  test_mix("aligned", near_sizes, alignments, 100, 20000);
  test_mix("aligned", near_sizes, alignments, 2000, 20000);
  static const size_t large_sizes[MIX] = { 5000, 5001, 5002, 5003 };
  static const size_t large_alignments[MIX] = { 0, 64, 4096, 256 };
  test_mix("aligned", large_sizes, large_alignments, 20000, 4000);
}

/* -----------------------------------------------------------
  Churn: blocks come and go, while collects and visits undo what
  was drawn
----------------------------------------------------------- */

static bool visit(const mi_heap_t* heap, const mi_heap_area_t* area, void* block, size_t block_size, void* arg) {
  (void)heap; (void)area; (void)block_size;
  if (block != NULL) { (*(size_t*)arg)++; }
  return true;
}

static void test_churn(size_t rate) {
  enum { SLOTS = 4000, ROUNDS = 20000 };
  static const size_t sizes[MIX] = { 200, 300, 900, 3000 };
  double objects[MIX] = { 0 };
  double truth[MIX] = { 0 };
  static size_t kinds[SLOTS];
  const double min_p = probability(sizes[0], rate);
  const size_t seeds = 1 + (size_t)(1.1 * samples / (min_p * SLOTS/MIX));
  for (size_t seed = 1; seed <= seeds; seed++) {
    check(mi_prof_start_seeded(rate, seed));
    uint64_t random = seed;
    memset(blocks, 0, SLOTS*sizeof(blocks[0]));
    for (size_t i = 0; i < ROUNDS; i++) {
      const size_t k = test_random(&random) % SLOTS;
      mi_free(blocks[k]);
      kinds[k] = test_random(&random) % MIX;
      blocks[k] = mi_malloc(sizes[kinds[k]]);
      if (i % 1000 == 500) { mi_collect(i % 2000 == 500); }
      if (i % 5000 == 0) {
        size_t visited = 0;
        check(mi_heap_visit_blocks(mi_heap_get_default(), true, &visit, &visited));
      }
    }
    for (size_t k = 0; k < MIX; k++) { objects[k] += estimate_objects(sizes[k]); }
    for (size_t i = 0; i < SLOTS; i++) {
      if (blocks[i] != NULL) { truth[kinds[i]] += 1; }
      mi_free(blocks[i]);
    }
    mi_prof_stop();
  }
  for (size_t k = 0; k < MIX; k++) {
    const double p = probability(sizes[k], rate);
    judge("churn", sizes[k], rate, objects[k] / truth[k], sqrt((1.0 - p) / (p*truth[k])));
  }
}

/* -----------------------------------------------------------
  Threads
----------------------------------------------------------- */

#define MAX_THREADS  (64)

typedef struct worker_s {
  size_t       size;
  size_t       count;
  void**       blocks;
} worker_t;

static void work(void* arg) {
  worker_t* const worker = (worker_t*)arg;
  for (size_t i = 0; i < worker->count; i++) { worker->blocks[i] = mi_malloc(worker->size); }
}

// Blocks that stay live after their thread has ended.
static void test_threads(const char* what, size_t threads, size_t size, size_t count, size_t rate) {
  test_begin(what);
  const double p = probability(size, rate);
  const size_t seeds = 1 + (size_t)(samples*(1.0 - p) / (p*(double)(threads*count)));
  double live = 0;
  for (size_t seed = 1; seed <= seeds; seed++) {
    check(mi_prof_start_seeded(rate, seed));
    test_thread_t handles[MAX_THREADS];
    worker_t workers[MAX_THREADS];
    for (size_t i = 0; i < threads; i++) {
      workers[i].size = size;
      workers[i].count = count;
      workers[i].blocks = &blocks[i*count];
      test_thread_start(&handles[i], &work, &workers[i]);
    }
    for (size_t i = 0; i < threads; i++) { test_thread_join(&handles[i]); }
    live += estimate_objects(size);
    for (size_t i = 0; i < threads*count; i++) { mi_free(blocks[i]); }
    check_eq(estimate_objects(size), 0);
    mi_prof_stop();
  }
  const double truth = (double)(threads*count) * (double)seeds;
  judge(what, size, rate, live / truth, sqrt((1.0 - p) / (p*truth)));
}

int main(void) {
  if (getenv("MI_TEST_QUICK") != NULL) {
    samples /= 16;
    max_error *= 4;
    planted *= 4;
  }
  mi_option_set(mi_option_prof_bt_max, 0);    // stacks play no part here, and take time
  test_sizes();
  test_mixes();
  test_begin("churn, with collects and visits");
  test_churn(400);
  test_churn(2*KiB);
  if (sizeof(void*) > 4) { test_threads("16 threads with 64 MiB each", 16, 256*KiB, 256, 512*KiB); }
                    else { test_threads("16 threads with 8 MiB each", 16, 256*KiB, 32, 512*KiB); }    // of 4 GiB in all
  test_threads("threads with 200 blocks", MAX_THREADS, 512, 200, 4*KiB);
  printf("  a bias of %.0f %% would be found\n", 100*planted);
  check(caught_high > judged/2);
  check(caught_low > judged/2);
  printf("  %d of %d estimates are too high with it, and %d too low\n", caught_high, judged, caught_low);
  return test_done("test-profile-estimate");
}

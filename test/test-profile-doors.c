// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// Every door through which a block comes and goes. At rate 1 each allocation is recorded, so the counts after each step
// are known exactly. At larger rates a tracker learns from the counts which blocks are sampled, and then knows them too.

#include "test-profile.h"
#include "mimalloc/types.h"     // MI_PADDING, MI_GUARDED

// With padding, or guard pages, mimalloc itself turns a plain request of 0 bytes into one of a word.
#if MI_PADDING || MI_GUARDED
#define ZERO_SIZE   (sizeof(void*))
#else
#define ZERO_SIZE   (1)
#endif

#if (MI_DEBUG > 2) || MI_TSAN
#define SCALE       (1)         // extensive checks of each heap make each step slow
#else
#define SCALE       (10)
#endif

// `mi_heap_delete` does not keep upstream's own count of full pages (`pages_full_size`), which fails an assertion of
// theirs later. So heaps that are deleted in debug builds have no full page.
#define FULL_PAGES  (MI_DEBUG < 2)

#define MiB         ((size_t)1024*1024)

static bool is_overridden;      // is libc's `malloc` ours?

/* -----------------------------------------------------------
  What the counts must be
----------------------------------------------------------- */

static size_t expected_records;
static size_t expected_bytes;

static void expect_sync(void) {
  mi_prof_debug_stats(&expected_records, &expected_bytes);
}

static bool expect_at(ptrdiff_t records, ptrdiff_t bytes, const char* what, int line) {
  expected_records += (size_t)records;
  expected_bytes += (size_t)bytes;
  size_t live_records, live_bytes;
  mi_prof_debug_stats(&live_records, &live_bytes);
  test_count(&test_checks);
  if (live_records == expected_records && live_bytes == expected_bytes) return true;
  test_count(&test_failures);
  printf("FAILED  %s:%d: %s: %zu records of %zu bytes instead of %zu of %zu\n", __FILE__, line, what,
         live_records, live_bytes, expected_records, expected_bytes);
  fflush(stdout);
  expected_records = live_records;    // one failure is enough
  expected_bytes = live_bytes;
  return false;
}

#define expect_as(records,bytes,what)   expect_at((ptrdiff_t)(records), (ptrdiff_t)(bytes), what, __LINE__)
#define expect(records,bytes)           expect_as(records, bytes, "counts")

// Threads start and end: where `malloc` is ours, the C library allocates and frees for them.
static void expect_around_threads(void) {
  if (is_overridden) { expect_sync(); }
  else { expect_as(0, 0, "a thread started or ended"); }
}

static void start(size_t rate) {
  check(mi_prof_start_seeded(rate, 42));
  expected_records = 0;
  expected_bytes = 0;
  expect_as(0, 0, "just started");
}

static void stop(void) {
  mi_prof_stop();
  check_eq(prof_records(), 0);
  check_eq(prof_bytes(), 0);
  check(!mi_prof_is_enabled());
}

static mi_heap_t* heap_new(void) {
  mi_heap_t* const heap = mi_heap_new();
  expect_as(1, sizeof(mi_heap_t), "mi_heap_new");    // is itself in the heap
  return heap;
}

/* -----------------------------------------------------------
  Allocation and free
----------------------------------------------------------- */

#define door_ex(expr,size,free_expr) do { \
    void* const p = test_use((void*)(expr)); \
    check(p != NULL); \
    expect_as(1, size, #expr); \
    free_expr; \
    expect_as(-1, -(ptrdiff_t)(size), #free_expr " of " #expr); \
  } while(0)

#define door(expr,size)  door_ex(expr, size, mi_free(p))

static void test_functions(void) {
  test_begin("each function that allocates");
  start(1);
  size_t bsize = 0, bsize2 = 0;
  for (int round = 0; round < 3; round++) {     // the first one in fresh pages, and the others in used ones
    door(mi_malloc(100), 100);
    door(mi_calloc(3, 40), 120);
    door(mi_zalloc(100), 100);
    door(mi_mallocn(5, 10), 50);
    door(mi_malloc_small(50), 50);
    door(mi_zalloc_small(50), 50);
    door(mi_realloc(NULL, 100), 100);
    door(mi_reallocn(NULL, 7, 10), 70);
    door(mi_reallocf(NULL, 100), 100);
    door(mi_rezalloc(NULL, 100), 100);
    door(mi_recalloc(NULL, 7, 10), 70);
    door(mi_strdup("hello"), 6);
    door(mi_strndup("hello", 3), 4);

    door(mi_malloc_aligned(100, 64), 100);
    door(mi_malloc_aligned_at(100, 64, 8), 100);
    door(mi_zalloc_aligned(100, 64), 100);
    door(mi_zalloc_aligned_at(100, 64, 8), 100);
    door(mi_calloc_aligned(3, 40, 64), 120);
    door(mi_calloc_aligned_at(3, 40, 64, 8), 120);
    door(mi_realloc_aligned(NULL, 100, 64), 100);
    door(mi_realloc_aligned_at(NULL, 100, 64, 8), 100);
    door(mi_rezalloc_aligned(NULL, 100, 64), 100);
    door(mi_recalloc_aligned(NULL, 3, 40, 64), 120);

    door(mi_memalign(64, 100), 100);
    door(mi_valloc(100), 100);
    door(mi_pvalloc(100), 4096*((100 + 4095)/4096));
    door(mi_aligned_alloc(64, 128), 128);
    door(mi_reallocarray(NULL, 7, 10), 70);
    door(mi_aligned_recalloc(NULL, 3, 40, 64), 120);
    door(mi_wcsdup(L"hello"), 6*sizeof(wchar_t));
    door(mi_mbsdup((const unsigned char*)"hello"), 6);

    door(mi_new(100), 100);
    door(mi_new_n(5, 20), 100);
    door(mi_new_nothrow(100), 100);
    door(mi_new_aligned(100, 64), 100);
    door(mi_new_aligned_nothrow(100, 64), 100);
    door(mi_new_realloc(NULL, 100), 100);
    door(mi_new_reallocn(NULL, 5, 20), 100);

    #if MI_MALLOC_VERSION >= 20500
    door_ex(mi_umalloc(100, &bsize), 100, mi_ufree(p, &bsize));
    door_ex(mi_ucalloc(3, 40, &bsize), 120, mi_ufree(p, &bsize));
    door_ex(mi_urealloc(NULL, 100, &bsize, &bsize2), 100, mi_ufree(p, &bsize));
    door_ex(mi_umalloc_small(50, &bsize), 50, mi_ufree(p, NULL));
    door_ex(mi_uzalloc_small(50, &bsize), 50, mi_ufree(p, NULL));
    door_ex(mi_umalloc_aligned(100, 64, &bsize), 100, mi_ufree(p, NULL));
    door_ex(mi_uzalloc_aligned(100, 64, &bsize), 100, mi_ufree(p, NULL));
    door_ex(mi_malloc_small(50), 50, mi_free_small(p));
    #endif

    door_ex(mi_malloc(100), 100, mi_cfree(p));
    door_ex(mi_malloc(100), 100, mi_free_size(p, 100));
    door_ex(mi_malloc_aligned(100, 64), 100, mi_free_aligned(p, 64));
    door_ex(mi_malloc_aligned(100, 64), 100, mi_free_size_aligned(p, 100, 64));

    void* q = NULL;
    check_eq(mi_posix_memalign(&q, 64, 100), 0);
    expect_as(1, 100, "mi_posix_memalign");
    check_eq(mi_reallocarr(&q, 5, 40), 0);
    expect_as(0, 100, "mi_reallocarr");
    mi_free(q);
    expect(-1, -200);
    char* env = NULL;
    size_t env_size;
    if (mi_dupenv_s(&env, &env_size, "PATH") == 0 && env != NULL) {
      expect_as(1, env_size, "mi_dupenv_s");
      mi_free(env);
      expect(-1, -(ptrdiff_t)env_size);
    }
    mi_free(NULL);
    expect_as(0, 0, "mi_free(NULL)");
  }
  (void)bsize; (void)bsize2;
  stop();
}

static void test_heap_functions(void) {
  test_begin("each function that allocates in a heap of its own");
  start(1);
  mi_heap_t* const heap = heap_new();
  for (int round = 0; round < 3; round++) {
    door(mi_heap_malloc(heap, 100), 100);
    door(mi_heap_zalloc(heap, 100), 100);
    #if !defined(__cplusplus)   // in C++ mimalloc emits no code for it
    door(mi_heap_calloc(heap, 3, 40), 120);
    #endif
    door(mi_heap_mallocn(heap, 5, 10), 50);
    door(mi_heap_malloc_small(heap, 50), 50);
    door(mi_heap_realloc(heap, NULL, 100), 100);
    door(mi_heap_reallocn(heap, NULL, 7, 10), 70);
    door(mi_heap_reallocf(heap, NULL, 100), 100);
    door(mi_heap_rezalloc(heap, NULL, 100), 100);
    door(mi_heap_recalloc(heap, NULL, 7, 10), 70);
    door(mi_heap_strdup(heap, "hello"), 6);
    door(mi_heap_strndup(heap, "hello", 3), 4);
    door(mi_heap_malloc_aligned(heap, 100, 64), 100);
    door(mi_heap_malloc_aligned_at(heap, 100, 64, 8), 100);
    door(mi_heap_zalloc_aligned(heap, 100, 64), 100);
    door(mi_heap_calloc_aligned(heap, 3, 40, 64), 120);
    door(mi_heap_realloc_aligned(heap, NULL, 100, 64), 100);
    door(mi_heap_rezalloc_aligned(heap, NULL, 100, 64), 100);
    door(mi_heap_recalloc_aligned(heap, NULL, 3, 40, 64), 120);
    door(mi_heap_alloc_new(heap, 100), 100);
    door(mi_heap_alloc_new_n(heap, 5, 20), 100);
  }
  mi_heap_delete(heap);
  expect_as(-1, -(ptrdiff_t)sizeof(mi_heap_t), "mi_heap_delete");
  expect_as(0, 0, "all freed");
  check_eq(prof_records(), 0);
  stop();
}

static void test_zero(void) {
  test_begin("a request of zero bytes counts as one (a word, where mimalloc itself asks for one)");
  start(1);
  for (int round = 0; round < 3; round++) {
    door(mi_malloc(0), ZERO_SIZE);
    door(mi_zalloc(0), ZERO_SIZE);
    door(mi_calloc(0, 8), ZERO_SIZE);
    door(mi_realloc(NULL, 0), ZERO_SIZE);
    door(mi_new(0), ZERO_SIZE);
    door(mi_malloc_aligned(0, 64), 1);
    door(mi_zalloc_aligned(0, 4096), 1);
    void* p = mi_malloc(100);
    expect(1, 100);
    p = mi_realloc(p, 0);
    check(p != NULL);
    expect_as(0, (ptrdiff_t)ZERO_SIZE - 100, "mi_realloc to 0");
    mi_free(p);
    expect(-1, -(ptrdiff_t)ZERO_SIZE);
  }
  check_eq(prof_records(), 0);
  stop();
}

static const size_t test_sizes[] = {
  1, 8, 16, 17, 64, 100, 512, 1000, 1024, 1025, 4*1024, 8*1024, 10000, 64*1024, 128*1024, 128*1024 + 1, 256*1024,
  1024*1024, 4*1024*1024, 16*1024*1024, 16*1024*1024 + 1, 20*1024*1024
};
#define TEST_SIZES  (sizeof(test_sizes)/sizeof(test_sizes[0]))

static void test_size_ladder(void) {
  test_begin("all sizes, many at once, freed in three orders");
  static void* blocks[4096];
  start(1);
  for (size_t i = 0; i < TEST_SIZES; i++) {
    const size_t size = test_sizes[i];
    size_t n = (SCALE > 1 ? 16*MiB : 1*MiB) / size;     // past several pages where that is possible
    if (n < 3) { n = 3; }
    if (n > (SCALE > 1 ? 4000 : 400)) { n = (SCALE > 1 ? 4000 : 400); }
    for (int order = 0; order < 3; order++) {
      for (size_t k = 0; k < n; k++) {
        blocks[k] = test_use(mi_malloc(size));
        if (!expect(1, size)) break;
      }
      for (size_t k = 0; k < n; k++) {
        mi_free(blocks[order == 0 ? k : (order == 1 ? n - 1 - k : (k*7) % n == 0 || n % 7 == 0 ? k : (k*7) % n)]);
        if (!expect(-1, -(ptrdiff_t)size)) break;
      }
      check_eq(prof_bytes(), 0);
    }
  }
  stop();
}

static void check_aligned(const void* p, size_t alignment, size_t offset) {
  check(p != NULL && ((uintptr_t)p + offset) % alignment == 0);
}

static void test_aligned(void) {
  test_begin("aligned allocations of 64 B to 4 MiB and above 16 MiB: the recorded size is the requested one");
  static const size_t alignments[] = { 8, 16, 64, 128, 256, 1024, 4096, 65536, 1024*1024, 4*1024*1024, 16*1024*1024, 32*1024*1024 };
  static const size_t sizes[] = { 1, 8, 24, 64, 100, 128, 256, 512, 1000, 1024, 4096, 10000, 65536, 100000, 1024*1024 };
  static const size_t offsets[] = { 0, 8, 16, 104 };       // an odd one makes pointers that mimalloc takes for invalid in debug builds
  start(1);
  for (size_t a = 0; a < sizeof(alignments)/sizeof(alignments[0]); a++) {
    for (size_t s = 0; s < sizeof(sizes)/sizeof(sizes[0]); s++) {
      for (size_t o = 0; o < sizeof(offsets)/sizeof(offsets[0]); o++) {
        const size_t alignment = alignments[a], size = sizes[s], offset = offsets[o];
        if (offset != 0 && alignment > MI_BLOCK_ALIGNMENT_MAX) continue;        // not supported by mimalloc
        const size_t n = (alignment <= 4096 ? 10 : (alignment <= MiB ? 3 : (sizeof(void*) > 4 || alignment <= 4*MiB ? 2 : 0)));
        void* blocks[10];
        for (size_t k = 0; k < n; k++) {
          blocks[k] = test_use(k % 2 == 0 ? mi_malloc_aligned_at(size, alignment, offset) : mi_zalloc_aligned_at(size, alignment, offset));
          check_aligned(blocks[k], alignment, offset);
          expect_as(1, size, "aligned allocation");
        }
        // plain ones in between, in the same bins
        for (size_t k = 0; k < n; k++) {
          void* const plain = test_use(mi_malloc(size));
          expect_as(1, size, "plain allocation beside aligned ones");
          if (k % 2 == 0 || offset != 0) { mi_free(blocks[k]); } else { mi_free_aligned(blocks[k], alignment); }
          expect_as(-1, -(ptrdiff_t)size, "free of an aligned block");
          mi_free(plain);
          expect_as(-1, -(ptrdiff_t)size, "free of a plain block beside aligned ones");
        }
      }
    }
  }
  check_eq(prof_records(), 0);
  check_eq(prof_bytes(), 0);
  stop();
}

/* -----------------------------------------------------------
  Resizing
----------------------------------------------------------- */

static volatile size_t too_large = (size_t)PTRDIFF_MAX + 1;
static void ignore_output(const char* msg, void* arg) { (void)msg; (void)arg; }
static void ignore_error(int err, void* arg)          { (void)err; (void)arg; }

// Resize and check. In builds without padding and guard pages, `in_place` says what must happen: 1, 0, or -1 if either may.
#define resize(p,expr,from,to,in_place) do { \
    void* const old = p; \
    const uintptr_t old_address = (uintptr_t)old; \
    p = test_use(expr); \
    check(p != NULL); \
    expect_as(0, (ptrdiff_t)(to) - (ptrdiff_t)(from), #expr); \
    if (ZERO_SIZE == 1 && in_place >= 0) { check(((uintptr_t)p == old_address) == (in_place == 1)); } \
  } while(0)

static void test_realloc(void) {
  test_begin("realloc in place, both ways, and moving");
  start(1);
  for (int round = 0; round < 3; round++) {
    // the block for 1000 bytes has 1024
    void* p = test_use(mi_malloc(1000));
    expect(1, 1000);
    resize(p, mi_realloc(p, 1020), 1000, 1020, 1);
    resize(p, mi_realloc(p, 600), 1020, 600, 1);
    resize(p, mi_realloc(p, 600), 600, 600, 1);
    resize(p, mi_realloc(p, 1024), 600, 1024, 1);
    resize(p, mi_realloc(p, 2000), 1024, 2000, 0);
    resize(p, mi_realloc(p, 16), 2000, 16, 0);
    resize(p, mi_realloc(p, MiB), 16, MiB, 0);
    resize(p, mi_realloc(p, MiB - 5000), MiB, MiB - 5000, 1);
    resize(p, mi_realloc(p, 24*MiB), MiB - 5000, 24*MiB, 0);
    resize(p, mi_realloc(p, 20*MiB), 24*MiB, 20*MiB, 1);
    resize(p, mi_realloc(p, 100), 20*MiB, 100, 0);
    resize(p, mi_reallocn(p, 11, 10), 100, 110, 1);
    resize(p, mi_reallocf(p, 112), 110, 112, 1);
    resize(p, mi_rezalloc(p, 60), 112, 60, 1);
    resize(p, mi_recalloc(p, 10, 10), 60, 100, 1);
    resize(p, mi_reallocarray(p, 11, 10), 100, 110, 1);
    resize(p, mi_new_realloc(p, 100), 110, 100, 1);
    #if MI_MALLOC_VERSION >= 20500
    resize(p, mi_urealloc(p, 90, NULL, NULL), 100, 90, 1);
    resize(p, mi_urealloc(p, 190, NULL, NULL), 90, 190, 0);
    resize(p, mi_realloc(p, 90), 190, 90, 0);
    #endif
    // what fails changes nothing
    p = test_use(mi_realloc(p, 90));
    expect_sync();
    check(prof_bytes() == 90);
    mi_register_output(&ignore_output, NULL);
    mi_register_error(&ignore_error, NULL);
    check(mi_realloc(p, too_large) == NULL);
    expect_as(0, 0, "mi_realloc that fails");
    check(mi_malloc(too_large) == NULL);
    check(mi_malloc_aligned(too_large, 64) == NULL);
    expect_as(0, 0, "mi_malloc that fails");
    check(mi_reallocf(p, too_large) == NULL);
    mi_register_error(NULL, NULL);
    mi_register_output(NULL, NULL);
    expect_as(-1, -90, "mi_reallocf that fails");
  }
  check_eq(prof_records(), 0);
  stop();
}

static void test_realloc_aligned(void) {
  test_begin("aligned realloc in place, both ways, and moving");
  start(1);
  for (int round = 0; round < 3; round++) {
    for (size_t alignment = 64; alignment <= 4*MiB; alignment *= 16) {
      const int in_place = (alignment == 64 ? 1 : -1);   // others may over-allocate so much that a half of it is free
      void* p = test_use(mi_malloc_aligned(1000, alignment));
      expect(1, 1000);
      resize(p, mi_realloc_aligned(p, 900, alignment), 1000, 900, in_place);
      resize(p, mi_realloc_aligned(p, 1000, alignment), 900, 1000, in_place);
      resize(p, mi_rezalloc_aligned(p, 990, alignment), 1000, 990, in_place);
      resize(p, mi_recalloc_aligned(p, 100, 10, alignment), 990, 1000, in_place);
      check_aligned(p, alignment, 0);
      p = test_use(mi_realloc_aligned(p, 100000, alignment));
      check_aligned(p, alignment, 0);
      expect_as(0, 100000 - 1000, "mi_realloc_aligned to 100000");
      p = test_use(mi_rezalloc_aligned(p, 10, alignment));
      check_aligned(p, alignment, 0);
      expect_as(0, 10 - 100000, "mi_rezalloc_aligned to 10");
      p = test_use(mi_realloc(p, 9));
      expect_as(0, 9 - 10, "mi_realloc of an aligned block");
      mi_free(p);
      expect(-1, -9);
    }
    void* p = test_use(mi_malloc_aligned_at(1000, 256, 16));
    expect(1, 1000);
    resize(p, mi_realloc_aligned_at(p, 800, 256, 16), 1000, 800, 1);
    resize(p, mi_rezalloc_aligned_at(p, 1000, 256, 16), 800, 1000, 1);
    resize(p, mi_recalloc_aligned_at(p, 9, 100, 256, 16), 1000, 900, 1);
    resize(p, mi_aligned_offset_recalloc(p, 8, 100, 256, 16), 900, 800, 1);
    check_aligned(p, 256, 16);
    mi_free(p);
    expect(-1, -800);
  }
  check_eq(prof_records(), 0);
  stop();
}

static void test_expand(void) {
  test_begin("mi_expand in place, both ways (it fails with padding)");
  start(1);
  void* p = test_use(mi_malloc(1000));
  expect(1, 1000);
  static const size_t newsizes[] = { 1024, 500, 1, 1000, 1024 };
  size_t size = 1000;
  for (size_t i = 0; i < sizeof(newsizes)/sizeof(newsizes[0]); i++) {
    void* const q = mi_expand(p, newsizes[i]);
    #if MI_PADDING
    check(q == NULL);
    #elif !MI_GUARDED
    check(q == p);
    #endif
    const size_t newsize = (q == NULL ? size : newsizes[i]);
    expect_as(0, (ptrdiff_t)newsize - (ptrdiff_t)size, "mi_expand");
    size = newsize;
  }
  check(mi_expand(p, 100000) == NULL);
  expect_as(0, 0, "mi_expand that fails");
  if (mi_expand(p, 0) != NULL) {
    expect_as(0, 1 - (ptrdiff_t)size, "mi_expand to zero");
    size = 1;
  }
  mi_free(p);
  expect(-1, -(ptrdiff_t)size);
  stop();
}

/* -----------------------------------------------------------
  Guarded blocks
----------------------------------------------------------- */

static void test_guarded(void) {
  #if MI_GUARDED
  test_begin("guarded blocks: each allocation has a guard page");
  mi_heap_t* const heap = mi_heap_get_default();
  mi_heap_guarded_set_sample_rate(heap, 1, 1);
  mi_heap_guarded_set_size_bound(heap, 0, 1024*1024);
  start(1);
  for (int round = 0; round < 3; round++) {
    door(mi_malloc(16), 16);
    door(mi_malloc(0), ZERO_SIZE);
    door(mi_calloc(3, 1000), 3000);
    door(mi_malloc(100000), 100000);
    door(mi_malloc_aligned(100, 64), 100);
    door(mi_malloc_aligned(0, 64), 1);
    door(mi_malloc_aligned(100, 65536), 100);
    door(mi_zalloc_aligned_at(100, 64, 8), 100);
    void* p = test_use(mi_malloc(100));
    expect(1, 100);
    p = test_use(mi_realloc(p, 101));
    expect_as(0, 1, "mi_realloc of a guarded block");
    p = test_use(mi_realloc(p, 10000));
    expect_as(0, 10000 - 101, "mi_realloc of a guarded block");
    p = test_use(mi_realloc_aligned(p, 200, 128));
    expect_as(0, 200 - 10000, "mi_realloc_aligned of a guarded block");
    mi_free(p);
    expect(-1, -200);
  }
  stop();
  mi_heap_guarded_set_sample_rate(heap, (size_t)mi_option_get(mi_option_guarded_sample_rate), 1);
  #endif
}

/* -----------------------------------------------------------
  Heaps
----------------------------------------------------------- */

// `n` blocks of each size
#define HEAP_BLOCKS  (TEST_SIZES*20)
static void* heap_blocks[HEAP_BLOCKS];
static size_t heap_blocks_count;
static size_t heap_blocks_bytes;

static size_t heap_block_size(size_t i) { return test_sizes[i % TEST_SIZES]; }

static void heap_fill(mi_heap_t* heap, bool recorded) {
  heap_blocks_count = 0;
  heap_blocks_bytes = 0;
  for (size_t i = 0; i < HEAP_BLOCKS; i++) {
    const size_t size = heap_block_size(i);
    if ((size >= MiB && i >= TEST_SIZES) || (!FULL_PAGES && (size > 1024 || i >= 8*TEST_SIZES))) { heap_blocks[i] = NULL; continue; }
    heap_blocks[i] = test_use(i % 5 == 4 ? mi_heap_malloc_aligned(heap, size, 256) : mi_heap_malloc(heap, size));
    heap_blocks_count++;
    heap_blocks_bytes += size;
    expect_as(recorded, recorded ? size : 0, "allocation in a heap");
  }
}

static void heap_free_blocks(bool recorded) {
  for (size_t i = 0; i < HEAP_BLOCKS; i++) {
    if (heap_blocks[i] == NULL) continue;
    mi_free(heap_blocks[i]);
    expect_as(-(ptrdiff_t)recorded, recorded ? -(ptrdiff_t)heap_block_size(i) : 0, "free of a block that was in a heap");
  }
}

static void heap_destroy(mi_heap_t* heap, bool recorded, bool heap_recorded) {
  mi_heap_destroy(heap);
  if (heap_recorded) { expected_records--; expected_bytes -= sizeof(mi_heap_t); }
  #if MI_GUARDED
  expect_as(0, 0, "mi_heap_destroy, which is mi_heap_delete as there are guarded blocks");
  heap_free_blocks(recorded);
  #else
  expect_as(recorded ? -(ptrdiff_t)heap_blocks_count : 0, recorded ? -(ptrdiff_t)heap_blocks_bytes : 0, "mi_heap_destroy");
  #endif
}

static void test_heaps(void) {
  test_begin("mi_heap_destroy, mi_heap_delete, mi_heap_collect");
  start(1);
  mi_heap_t* heap = heap_new();
  heap_fill(heap, true);
  mi_heap_collect(heap, false);
  expect_as(0, 0, "mi_heap_collect");
  mi_heap_collect(heap, true);
  expect_as(0, 0, "mi_heap_collect by force");
  void* p = test_use(mi_heap_malloc(heap, 64));
  expect_as(1, 64, "allocation after a forced collect");
  mi_free(p);
  expect(-1, -64);
  heap_destroy(heap, true, true);
  expect_as(0, 0, "all gone");
  check_eq(prof_records(), 0);

  heap = heap_new();
  heap_fill(heap, true);
  mi_heap_delete(heap);
  expect_as(-1, -(ptrdiff_t)sizeof(mi_heap_t), "mi_heap_delete");
  heap_free_blocks(true);
  check_eq(prof_records(), 0);

  heap = heap_new();
  mi_heap_t* const old = mi_heap_set_default(heap);
  p = test_use(mi_malloc(100));
  expect_as(1, 100, "allocation in a heap that was made the default");
  mi_heap_set_default(old);
  heap_fill(heap, true);
  heap_free_blocks(true);
  mi_collect(true);
  expect_as(0, 0, "mi_collect by force");
  mi_free(p);
  expect(-1, -100);
  mi_heap_destroy(heap);
  expect_as(-1, -(ptrdiff_t)sizeof(mi_heap_t), "mi_heap_destroy of an empty heap");
  check_eq(prof_records(), 0);

  // records of an earlier session
  heap = heap_new();
  heap_fill(heap, true);
  stop();
  start(1);
  heap_destroy(heap, false, false);
  expect_as(0, 0, "destroy of what was sampled in an earlier session");
  stop();
}

/* -----------------------------------------------------------
  Visits
----------------------------------------------------------- */

#define VISIT_MAX  (1500)
typedef struct visit_s {
  const void* blocks[VISIT_MAX];  // what the program knows to be live
  int         seen[VISIT_MAX];
  size_t      count;
  size_t      visited;
  size_t      unknown;
} visit_t;

static bool mi_cdecl visit_block(const mi_heap_t* heap, const mi_heap_area_t* area, void* block, size_t block_size, void* arg) {
  (void)heap; (void)area;
  visit_t* const visit = (visit_t*)arg;
  if (block == NULL) return true;
  visit->visited++;
  bool found = false;
  for (size_t i = 0; i < visit->count; i++) {
    if ((uintptr_t)visit->blocks[i] - (uintptr_t)block < block_size) { visit->seen[i]++; found = true; }
  }
  if (!found) { visit->unknown++; }
  return true;
}

static void visit_check(const visit_t* visit) {
  size_t once = 0;
  for (size_t i = 0; i < visit->count; i++) { once += (visit->seen[i] == 1); }
  check_eq(once, visit->count);
  check_eq(visit->visited, visit->count);
  check_eq(visit->unknown, 0);
}

static void visit_heap(mi_heap_t* heap, visit_t* visit) {
  memset(visit->seen, 0, sizeof(visit->seen));
  visit->visited = visit->unknown = 0;
  check(mi_heap_visit_blocks(heap, true, &visit_block, visit));
  visit_check(visit);
}

static void test_visit_at(size_t rate) {
  static visit_t visit;
  visit.count = 0;
  if (rate > 0) { start(rate); }
  mi_heap_t* const heap = mi_heap_new();
  uint64_t random = 1;
  for (int round = 0; round < 3; round++) {
    while (visit.count < VISIT_MAX) {
      const size_t size = 1 + test_random(&random) % (test_random(&random) % 50 == 0 ? 20000 : 600);
      visit.blocks[visit.count++] = test_use(test_random(&random) % 8 == 0 ? mi_heap_malloc_aligned(heap, size, 128) : mi_heap_malloc(heap, size));
    }
    for (size_t i = 0; i < visit.count; i++) {
      if (test_random(&random) % 3 == 0) {
        mi_free((void*)visit.blocks[i]);
        visit.blocks[i] = visit.blocks[--visit.count];
      }
    }
    visit_heap(heap, &visit);
    // sampling is still right
    if (rate == 1) { expect_sync(); check_eq(prof_records(), visit.count + 1); }
    while (visit.count < VISIT_MAX) {
      visit.blocks[visit.count++] = test_use(mi_heap_malloc(heap, 64));
      if (rate == 1) { expect_as(1, 64, "allocation after a visit"); }
    }
    visit_heap(heap, &visit);
  }
  if (FULL_PAGES) { mi_heap_delete(heap); }
  for (size_t i = 0; i < visit.count; i++) { mi_free((void*)visit.blocks[i]); }
  if (!FULL_PAGES) { mi_heap_delete(heap); }
  if (rate > 0) {
    check_eq(prof_records(), 0);
    check_eq(prof_bytes(), 0);
    stop();
  }
}

static void test_visit(void) {
  test_begin("mi_heap_visit_blocks sees the same with profiling off, at rates 1 and 1000; sampling goes on afterwards");
  test_visit_at(0);
  test_visit_at(1);
  test_visit_at(1000);
}

/* -----------------------------------------------------------
  Sessions
----------------------------------------------------------- */

static void test_sessions(void) {
  test_begin("blocks from before the start, and of earlier sessions, are not counted");
  static void* blocks[2000];
  for (size_t i = 0; i < 2000; i++) { blocks[i] = test_use(mi_malloc(64)); }
  start(1);
  for (size_t i = 0; i < 1000; i++) { mi_free(blocks[i]); }
  expect_as(0, 0, "free of blocks from before the start");
  for (size_t i = 0; i < 1000; i++) {
    blocks[i] = test_use(mi_malloc(64));
    expect_as(1, 64, "allocation in a page from before the start");
  }
  check(mi_prof_start(4096));       // keeps the running session
  expect_as(0, 0, "a second start");
  void* p = mi_malloc(10);
  expect(1, 10);
  mi_free(p);
  expect(-1, -10);
  stop();
  p = mi_malloc(10);
  check_eq(prof_records(), 0);      // off
  for (size_t i = 0; i < 500; i++) { mi_free(blocks[i]); }
  start(1);
  for (size_t i = 500; i < 2000; i++) {
    blocks[i] = test_use(mi_realloc(blocks[i], 60));
    if (ZERO_SIZE == 1) { expect_as(0, 0, "realloc in place of a block from before the start"); }
  }
  expect_sync();
  const size_t moved = prof_records();
  for (size_t i = 500; i < 2000; i++) { mi_free(blocks[i]); }
  expect_as(-(ptrdiff_t)moved, -60*(ptrdiff_t)moved, "free of blocks of an earlier session");
  mi_free(p);
  expect_as(0, 0, "free of a block from between the sessions");
  check_eq(prof_records(), 0);
  stop();
  mi_prof_stop();                   // nothing happens
}

/* -----------------------------------------------------------
  Other threads
----------------------------------------------------------- */

static const size_t remote_sizes[] = { 16, 64, 100, 1000, 5000, 100000, 1024*1024, 20*1024*1024 };
#define REMOTE_SIZES   (sizeof(remote_sizes)/sizeof(remote_sizes[0]))
#define REMOTE_SMALL   (3000)       // blocks of 64 bytes, which fill pages
#define REMOTE_MAX     (REMOTE_SIZES*10 + REMOTE_SMALL)

typedef struct remote_s {
  void*         blocks[REMOTE_MAX];
  size_t        sizes[REMOTE_MAX];
  size_t        count;
  size_t        bytes;
  test_event_t  allocated;
  test_event_t  go_on;
  test_event_t  allocated_again;
  test_event_t  end;
  bool          again;
} remote_t;

static remote_t remote;

#define HOLEY_SIZE     (720)        // few others are of this size

static void remote_add(void* p, size_t size) {
  remote.blocks[remote.count] = test_use(p);
  remote.sizes[remote.count++] = size;
  remote.bytes += size;
}

static void remote_allocate(void) {
  remote.count = 0;
  remote.bytes = 0;
  for (size_t k = 0; k < 10; k++) {
    for (size_t i = 0; i < REMOTE_SIZES; i++) {
      const size_t size = remote_sizes[i];
      if (size >= MiB && k > 0) continue;
      remote_add((k % 3 == 2 ? mi_malloc_aligned(size, 256) : mi_malloc(size)), size);
    }
  }
  for (size_t k = 0; k < REMOTE_SMALL/(SCALE > 1 ? 1 : 5); k++) { remote_add(mi_malloc(64), 64); }
}

static void remote_owner(void* arg) {
  (void)arg;
  remote_allocate();
  test_event_set(&remote.allocated);
  test_event_wait(&remote.go_on);
  if (remote.again) {
    remote_allocate();
    test_event_set(&remote.allocated_again);
    test_event_wait(&remote.end);
  }
}

static void remote_free(size_t from, size_t to, const char* what) {
  for (size_t i = from; i < to; i++) {
    mi_free(remote.blocks[i]);
    expect_as(-1, -(ptrdiff_t)remote.sizes[i], what);
  }
}

static void remote_reset(bool again) {
  test_event_reset(&remote.allocated);
  test_event_reset(&remote.go_on);
  test_event_reset(&remote.allocated_again);
  test_event_reset(&remote.end);
  remote.again = again;
}

static void test_remote(void) {
  test_begin("free by another thread: at once while the owner sleeps, and after it has exited");
  test_thread_t thread;
  start(1);
  remote_reset(true);
  test_thread_start(&thread, &remote_owner, NULL);
  test_event_wait(&remote.allocated);
  if (is_overridden) { expect_sync(); check(prof_records() >= remote.count); }
  else { expect_as(remote.count, remote.bytes, "allocation by a thread"); }
  remote_free(0, remote.count, "free while the owner sleeps");
  test_event_set(&remote.go_on);
  test_event_wait(&remote.allocated_again);   // it collected what we freed, and reuses it
  expect_as(remote.count, remote.bytes, "allocation in pages that were freed by another thread");
  remote_free(0, remote.count/2, "free while the owner sleeps");
  test_event_set(&remote.end);
  test_thread_join(&thread);
  expect_around_threads();
  remote_free(remote.count/2, remote.count, "free after the owner has exited");
  if (!is_overridden) { check_eq(prof_records(), 0); }
  stop();
}

static void remote_freer(void* arg) {
  (void)arg;
  expect_around_threads();
  remote_free(0, remote.count, "free of the main thread's blocks");
}

static void test_remote_main(void) {
  test_begin("another thread frees the blocks of the main thread, which then reuses them");
  test_thread_t thread;
  start(1);
  for (int round = 0; round < 3; round++) {
    remote_allocate();
    expect_as(remote.count, remote.bytes, "allocation by the main thread");
    test_thread_start(&thread, &remote_freer, NULL);
    test_thread_join(&thread);
    expect_around_threads();
  }
  remote_allocate();
  expect_as(remote.count, remote.bytes, "allocation in pages that were freed by another thread");
  remote_free(0, remote.count, "free by the owner");
  stop();
}

static void reclaimer(void* arg) {
  (void)arg;
  expect_around_threads();
  static void* blocks[3000];
  for (size_t i = 0; i < 3000; i++) {
    blocks[i] = test_use(mi_malloc(remote_sizes[i % 5]));
    expect_as(1, remote_sizes[i % 5], "allocation in reclaimed pages");
  }
  for (size_t i = 0; i < 3000; i++) {
    mi_free(blocks[i]);
    expect_as(-1, -(ptrdiff_t)remote_sizes[i % 5], "free in reclaimed pages");
  }
}

static void test_abandoned(bool reclaim_on_free) {
  test_begin(reclaim_on_free ? "abandoned pages that are reclaimed by a free" : "abandoned pages: visited, reclaimed by others that exit too, freed");
  mi_option_set_enabled(mi_option_abandoned_reclaim_on_free, reclaim_on_free);
  test_thread_t thread;
  start(1);
  remote_reset(false);
  test_event_set(&remote.go_on);
  test_thread_start(&thread, &remote_owner, NULL);
  test_thread_join(&thread);
  if (is_overridden) { expect_sync(); check(prof_records() >= remote.count); }
  else { expect_as(remote.count, remote.bytes, "allocation by a thread that has exited"); }
  #if !defined(__MINGW32__)   // there mimalloc may not notice that a thread exits, and nothing is abandoned
  if (!reclaim_on_free && !is_overridden) {
    static visit_t visit;
    memset(&visit, 0, sizeof(visit));
    for (; visit.count < VISIT_MAX && visit.count < remote.count; visit.count++) { visit.blocks[visit.count] = remote.blocks[visit.count]; }
    check(mi_abandoned_visit_blocks(mi_subproc_main(), -1, true, &visit_block, &visit));
    size_t once = 0;
    for (size_t i = 0; i < visit.count; i++) { once += (visit.seen[i] == 1); }
    check_eq(once, visit.count);
    check_eq(visit.visited, remote.count);
    expect_as(0, 0, "visit of abandoned pages");
  }
  #endif
  remote_free(0, remote.count/4, "free in abandoned pages");
  if (!reclaim_on_free) {
    test_thread_start(&thread, &reclaimer, NULL);
    test_thread_join(&thread);
    expect_around_threads();
  }
  remote_free(remote.count/4, remote.count/2, "free in pages that were reclaimed and abandoned again");
  static void* blocks[1000];
  for (size_t i = 0; i < 1000; i++) {
    blocks[i] = test_use(mi_malloc(64));
    expect_as(1, 64, "allocation in reclaimed pages");
  }
  remote_free(remote.count/2, remote.count, "free in reclaimed pages");
  for (size_t i = 0; i < 1000; i++) {
    mi_free(blocks[i]);
    expect_as(-1, -64, "free in reclaimed pages");
  }
  mi_collect(true);
  expect_as(0, 0, "mi_collect by force");
  if (!is_overridden) { check_eq(prof_records(), 0); }
  stop();
  mi_option_set_enabled(mi_option_abandoned_reclaim_on_free, false);
}

// Allocate, free every other block and exit.
static void holey_owner(void* arg) {
  (void)arg;
  remote.count = 0;
  remote.bytes = 0;
  for (size_t k = 0; k < REMOTE_SMALL; k++) { remote_add(mi_malloc(HOLEY_SIZE), HOLEY_SIZE); }
  for (size_t k = 1; k < REMOTE_SMALL; k += 2) { mi_free(remote.blocks[k]); }
}

// Nothing of what another thread drew for the blocks in its pages holds for the one that reclaims them.
static void test_abandoned_before(size_t rate_before) {
  test_begin(rate_before == 0 ? "reclaimed pages that were abandoned before the start" : "reclaimed pages that were abandoned in an earlier session");
  mi_option_enable(mi_option_abandoned_reclaim_on_free);
  test_thread_t thread;
  if (rate_before > 0) { start(rate_before); }
  test_thread_start(&thread, &holey_owner, NULL);
  test_thread_join(&thread);
  if (rate_before > 0) { stop(); }
  start(1);
  mi_free(test_use(mi_malloc(16)));       // this thread takes part now
  mi_free(remote.blocks[0]);              // reclaims
  expect_as(0, 0, "free of a block from before the start");
  static void* blocks[REMOTE_SMALL];
  for (size_t i = 0; i < REMOTE_SMALL; i++) {
    blocks[i] = test_use(mi_malloc(HOLEY_SIZE));
    expect_as(1, HOLEY_SIZE, "allocation in a reclaimed page");
  }
  for (size_t i = 0; i < REMOTE_SMALL; i++) {
    mi_free(blocks[i]);
    expect_as(-1, -HOLEY_SIZE, "free in a reclaimed page");
    if (i % 2 == 0 && i > 0) { mi_free(remote.blocks[i]); }
  }
  expect_as(0, 0, "free of blocks from before the start");
  check_eq(prof_records(), 0);
  stop();
  mi_option_disable(mi_option_abandoned_reclaim_on_free);
}

/* -----------------------------------------------------------
  The profiler does not change how pages are used
----------------------------------------------------------- */

static bool mi_cdecl count_area(const mi_heap_t* heap, const mi_heap_area_t* area, void* block, size_t block_size, void* arg) {
  (void)heap; (void)block; (void)block_size;
  *(size_t*)arg += area->reserved;
  return true;
}

// The memory that the pages of a program take in the end.
static size_t page_bytes(size_t rate) {
  static void* blocks[20000];
  const size_t n = (SCALE > 1 ? 20000 : 4000);
  if (rate > 0) { start(rate); }
  mi_heap_t* const heap = mi_heap_new();
  uint64_t random = 5;
  memset(blocks, 0, sizeof(blocks));
  for (size_t step = 0; step < 20*n; step++) {
    void** const slot = &blocks[test_random(&random) % n];
    if (*slot == NULL) { *slot = test_use(mi_heap_malloc(heap, 1 + test_random(&random) % 300)); }
    else if (test_random(&random) % 3 != 0) { mi_free(*slot); *slot = NULL; }
  }
  size_t bytes = 0;
  mi_heap_visit_blocks(heap, false, &count_area, &bytes);
  for (size_t i = 0; i < n; i++) { mi_free(blocks[i]); }
  mi_heap_delete(heap);
  if (rate > 0) {
    check_eq(prof_records(), 0);
    stop();
  }
  return bytes;
}

static void test_footprint(void) {
  test_begin("a program needs as many pages with profiling on as off");
  const size_t off = page_bytes(0);
  static const size_t rates[] = { 1, 512, 65536, 524288 };
  for (size_t i = 0; i < sizeof(rates)/sizeof(rates[0]); i++) {
    const size_t on = page_bytes(rates[i]);
    check_between((double)on, 0.9*(double)off, 1.1*(double)off + 2*65536);
  }
}

/* -----------------------------------------------------------
  A random program at rates where most blocks are not sampled
----------------------------------------------------------- */

typedef struct tracked_s {
  void*  p;
  size_t size;
  bool   sampled;
} tracked_t;

#define TRACKED_MAX  (4000)
static tracked_t tracked[TRACKED_MAX];

static size_t tracked_random_size(uint64_t* random) {
  const uint32_t kind = test_random(random) % 100;
  const uint32_t r = test_random(random);
  if (kind < 60) return 1 + r % 256;
  if (kind < 90) return 1 + r % 4096;
  if (kind < 98) return 1 + r % 65536;
  return 1 + r % (kind == 98 ? 300000 : 3000000);
}

// A block of `size` bytes was allocated. Learn whether it was sampled.
static void tracked_born(tracked_t* t, void* p, size_t size, const char* what) {
  check(p != NULL);
  t->p = test_use(p);
  t->size = size;
  t->sampled = (prof_records() == expected_records + 1);
  expect_as(t->sampled, t->sampled ? size : 0, what);
}

static void tracked_free(tracked_t* t) {
  mi_free(t->p);
  t->p = NULL;
  expect_as(-(ptrdiff_t)t->sampled, t->sampled ? -(ptrdiff_t)t->size : 0, "free in a random program");
}

static void tracked_resized(tracked_t* t, void* q, size_t size) {
  check(q != NULL);
  if (q == t->p) {
    expect_as(0, t->sampled ? (ptrdiff_t)size - (ptrdiff_t)t->size : 0, "realloc in place in a random program");
    t->size = size;
  }
  else {
    expected_records -= (size_t)t->sampled;
    expected_bytes -= (t->sampled ? t->size : 0);
    tracked_born(t, q, size, "realloc that moves in a random program");
  }
}

static void test_random_program(size_t rate) {
  start(rate);
  memset(tracked, 0, sizeof(tracked));
  uint64_t random = rate;
  size_t samples = 0;
  for (int step = 0; step < 20000*SCALE; step++) {
    tracked_t* const t = &tracked[test_random(&random) % TRACKED_MAX];
    const uint32_t op = test_random(&random) % 1000;
    if (op == 0) {
      mi_collect(test_random(&random) % 4 == 0);
      expect_as(0, 0, "mi_collect in a random program");
    }
    else if (op == 1) {
      static visit_t visit;
      visit.count = 0;
      mi_heap_visit_blocks(mi_heap_get_default(), true, &visit_block, &visit);
      expect_as(0, 0, "visit in a random program");
    }
    else if (t->p == NULL) {
      const size_t size = tracked_random_size(&random);
      const size_t alignment = (size_t)8 << (test_random(&random) % 11);
      if (op < 600)      { tracked_born(t, mi_malloc(size), size, "mi_malloc in a random program"); }
      else if (op < 750) { tracked_born(t, mi_zalloc(size), size, "mi_zalloc in a random program"); }
      else if (op < 900) { tracked_born(t, mi_malloc_aligned(size, alignment), size, "mi_malloc_aligned in a random program"); }
      else               { tracked_born(t, mi_malloc_aligned_at(size, alignment, 8), size, "mi_malloc_aligned_at in a random program"); }
      samples += t->sampled;
    }
    else if (op < 600) {
      tracked_free(t);
    }
    else if (op < 700) {
      const size_t size = 1 + test_random(&random) % (2*t->size);
      void* const q = mi_expand(t->p, size);
      if (q != NULL) { tracked_resized(t, q, size); }
    }
    else {
      const bool nearby = (test_random(&random) % 2 == 0);
      const size_t size = (nearby ? 1 + t->size - t->size/4 + t->size/8 : tracked_random_size(&random));
      if (op < 900) { tracked_resized(t, mi_realloc(t->p, size), size); }
               else { tracked_resized(t, mi_realloc_aligned(t->p, size, 64), size); }
    }
  }
  check(samples > 0);
  for (size_t i = 0; i < TRACKED_MAX; i++) {
    if (tracked[i].p != NULL) { tracked_free(&tracked[i]); }
  }
  check_eq(prof_records(), 0);
  check_eq(prof_bytes(), 0);
  stop();
}

// An aligned allocation takes a block of the bin if the next one happens to be aligned, and over-allocates from another bin
// otherwise. It may not dodge the sample that is due in the first bin, and plain allocations may not take it over.
static void test_aligned_share_of(size_t size, size_t alignment, double probability) {
  static void* blocks[1000];
  memset(blocks, 0, sizeof(blocks));
  const size_t n = (SCALE > 1 ? 50000 : 20000);
  size_t sampled[2] = { 0, 0 };
  uint64_t random = 3;
  start(2000);
  for (size_t i = 0; i < 2*n; i++) {
    void** const slot = &blocks[test_random(&random) % 1000];
    mi_free(*slot);
    const size_t before = prof_records();
    *slot = test_use(i % 2 == 0 ? mi_malloc(size) : mi_malloc_aligned(size, alignment));
    sampled[i % 2] += prof_records() - before;
  }
  // the standard error is 1.5 % to 2.4 %
  check_between((double)sampled[0] / ((double)n*probability), 0.88, 1.12);
  check_between((double)sampled[1] / ((double)n*probability), 0.88, 1.12);
  for (size_t i = 0; i < 1000; i++) { mi_free(blocks[i]); }
  check_eq(prof_records(), 0);
  stop();
}

static void test_aligned_share(void) {
  test_begin("plain and aligned allocations beside each other: each is sampled as often as it should be");
  test_aligned_share_of(192, 128, 0.09153630);      // 1 - exp(-192/2000)
  test_aligned_share_of(160, 64,  0.07688365);      // 1 - exp(-160/2000)
  test_aligned_share_of(192, 64,  0.09153630);      // always aligned: the same bin
}

static void test_random_programs(void) {
  test_begin("random programs at rates 1, 64, 4096 and 65536: the records are those of the sampled blocks");
  test_random_program(1);
  test_random_program(64);
  test_random_program(4096);
  test_random_program(65536);
}

int main(void) {
  // a record that another thread's free does not find is looked for in abandoned pages too
  mi_option_enable(mi_option_visit_abandoned);
  is_overridden = test_is_overridden();
  test_event_init(&remote.allocated);
  test_event_init(&remote.go_on);
  test_event_init(&remote.allocated_again);
  test_event_init(&remote.end);

  test_functions();
  test_heap_functions();
  test_zero();
  test_size_ladder();
  test_aligned();
  test_realloc();
  test_realloc_aligned();
  test_expand();
  test_guarded();
  test_heaps();
  test_visit();
  test_sessions();
  test_remote();
  test_remote_main();
  test_abandoned(false);
  test_abandoned(true);
  test_abandoned_before(0);
  test_abandoned_before(524288);
  test_footprint();
  test_aligned_share();
  test_random_programs();
  return test_done("test-profile-doors");
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// The leaf of a stack is the caller of the allocator, and neither the allocator's frames nor the profiler's appear, whichever
// way a program allocates. Built several times, with other options for it and for the library (cmake/mi_prof.cmake).

#include "../test-profile.h"
#include "../test-profile-stack.h"

#ifndef TEST_FRAME_POINTERS
#define TEST_FRAME_POINTERS  0
#endif

typedef void* (site_fun_t)(size_t size);

// Each way to allocate in a function of its own.
#define SITE(name, expression) \
  static test_noinline void* site_##name(size_t n) { void* const p = (expression); return test_use(p); }

static char  site_text[8*1024*1024];
static void* site_block;

// A string that takes `n` bytes.
static const char* site_string(size_t n) {
  memset(site_text, 'x', n);
  site_text[n - 1] = 0;
  return site_text;
}

SITE(mi_malloc,         mi_malloc(n))
SITE(mi_calloc,         mi_calloc(2, n/2))
SITE(mi_realloc,        mi_realloc(NULL, n))
SITE(mi_realloc_move,   mi_realloc(mi_malloc(16), n))
SITE(mi_zalloc,         mi_zalloc(n))
SITE(mi_strdup,         mi_strdup(site_string(n)))
SITE(mi_memalign,       mi_memalign(64, n))
SITE(mi_aligned_alloc,  mi_aligned_alloc(64, n))
SITE(mi_posix_memalign, (mi_posix_memalign(&site_block, 64, n) == 0 ? site_block : NULL))
SITE(mi_malloc_aligned, mi_malloc_aligned(n, 4096))
SITE(mi_new,            mi_new(n))
SITE(mi_heap_malloc,    mi_heap_malloc(mi_heap_get_default(), n))

SITE(malloc,            malloc(n))
SITE(calloc,            calloc(2, n/2))
SITE(realloc,           realloc(NULL, n))
SITE(realloc_move,      realloc(malloc(16), n))
#if !defined(_WIN32)
SITE(strdup,            strdup(site_string(n)))
SITE(strndup,           strndup(site_string(n), n))
SITE(aligned_alloc,     aligned_alloc(64, n))
SITE(posix_memalign,    (posix_memalign(&site_block, 64, n) == 0 ? site_block : NULL))
#endif
#if defined(__cplusplus)
SITE(new,               ::operator new(n))
SITE(new_array,         new char[n])
SITE(new_nothrow,       ::operator new(n, std::nothrow))
SITE(new_aligned,       ::operator new(n, std::align_val_t(64)))
#endif

static const struct { const char* name; site_fun_t* fun; } sites[] = {
  #define ENTRY(name)  { #name, &site_##name }
  ENTRY(mi_malloc), ENTRY(mi_calloc), ENTRY(mi_realloc), ENTRY(mi_realloc_move), ENTRY(mi_zalloc), ENTRY(mi_strdup), ENTRY(mi_memalign), ENTRY(mi_aligned_alloc),
  ENTRY(mi_posix_memalign), ENTRY(mi_malloc_aligned), ENTRY(mi_new), ENTRY(mi_heap_malloc),
  ENTRY(malloc), ENTRY(calloc), ENTRY(realloc), ENTRY(realloc_move),
  #if !defined(_WIN32)
  ENTRY(strdup), ENTRY(strndup), ENTRY(aligned_alloc), ENTRY(posix_memalign),
  #endif
  #if defined(__cplusplus)
  ENTRY(new), ENTRY(new_array), ENTRY(new_nothrow), ENTRY(new_aligned),
  #endif
};

#define SITE_COUNT  (sizeof(sites)/sizeof(sites[0]))

static test_noinline void* call_site(site_fun_t* site, size_t size) {
  return test_use(site(size));
}

static test_noinline void* call_call_site(site_fun_t* site, size_t size) {
  return test_use(call_site(site, size));
}

static stack_fun_t* functions[SITE_COUNT + 2];

typedef struct expect_s {
  site_fun_t*    site;
  bool           leaf_only;
  bool           found;
  sample_stack_t seen;      // the last one
} expect_t;

static bool expect_stack(const sample_stack_t* stack, void* arg) {
  expect_t* const expect = (expect_t*)arg;
  const size_t depth = (expect->leaf_only ? 1 : 3);
  stack_fun_t* const chain[3] = { (stack_fun_t*)(uintptr_t)expect->site, STACK_FUN(call_site), STACK_FUN(call_call_site) };
  size_t n = 0;
  while (n < depth && n < stack->depth && stack_function(stack->frames[n], functions, SITE_COUNT + 2) == chain[n]) { n++; }
  expect->seen = *stack;
  expect->found = (n == depth);
  return !expect->found;
}

static expect_t expect;

// Is there a sample of `size` bytes with this site as its leaf?
static bool has_stack(site_fun_t* site, size_t size, bool leaf_only) {
  expect.site = site;
  expect.leaf_only = leaf_only;
  expect.found = false;
  expect.seen.depth = 0;
  stack_visit(size, &expect_stack, &expect);
  return expect.found;
}

static void set_unwind(const char* value) {
  #if defined(_WIN32)
  SetEnvironmentVariableA("MIMALLOC_PROF_UNWIND", value);
  #else
  setenv("MIMALLOC_PROF_UNWIND", value, 1);
  #endif
}

static void test_sites(const char* how, bool leaf_only) {
  test_begin(how);
  set_unwind(how);
  static const size_t sizes[] = { 192, 1088, 3136, 70016, 300032, 6000000 };
  check(mi_prof_start(1));
  const bool overridden = STACK_HAS_OVERRIDES && test_is_overridden();
  for (size_t i = 0; i < SITE_COUNT; i++) {
    if (!overridden && strncmp(sites[i].name, "mi_", 3) != 0) continue;
    for (size_t k = 0; k < sizeof(sizes)/sizeof(sizes[0]); k++) {
      void* const p = call_call_site(sites[i].fun, sizes[k]);
      if (!check(has_stack(sites[i].fun, sizes[k], leaf_only))) {
        printf("    %s of %zu bytes\n", sites[i].name, sizes[k]);
        for (size_t j = 0; j < expect.seen.depth; j++) { printf("    %zx\n", (size_t)expect.seen.frames[j]); }
      }
      if (k == 0) { check(!has_stack(sites[(i + 1) % SITE_COUNT].fun, sizes[k], leaf_only)); }    // planted: the wrong site
      mi_free(p);
    }
  }
  mi_prof_stop();
}

static void test_none(void) {
  test_begin("none");
  set_unwind("none");
  check(mi_prof_start(1));
  void* const p = call_call_site(&site_mi_malloc, 3136);
  check(!has_stack(&site_mi_malloc, 3136, true));
  check(expect.seen.depth == 1 && expect.seen.frames[0] == 1);    // stands for no stack
  mi_free(p);
  mi_prof_stop();
}

#if defined(__cplusplus)

struct Cleanup {    // allocates while the stack is unwound
  void* p;
  Cleanup() : p(mi_malloc(3136)) { }
  ~Cleanup() { mi_free(p); mi_free(test_use(mi_malloc(1088))); }
};

static test_noinline void throw_from(int depth) {
  Cleanup cleanup;
  if (depth == 0) { throw std::runtime_error("a message that is long enough to be allocated"); }
  throw_from(depth - 1);
  test_use(&cleanup);
}

static bool count_stack(const sample_stack_t* stack, void* arg) {
  *(size_t*)arg += stack->count;
  return true;
}

static void test_exceptions(void) {
  test_begin("samples while the stack is unwound for an exception");
  set_unwind("auto");
  check(mi_prof_start(1));
  size_t caught = 0;
  for (int i = 0; i < 200; i++) {
    try { throw_from(i % 20); }
    catch (const std::exception&) { caught++; }
  }
  check_eq(caught, 200);
  size_t left = 0;
  stack_visit(3136, &count_stack, &left);
  stack_visit(1088, &count_stack, &left);
  check_eq(left, 0);
  mi_prof_stop();
}

#else
static void test_exceptions(void) { }
#endif

int main(int argc, char** argv) {
  (void)argc;
  stack_dump_init(argv[0]);
  for (size_t i = 0; i < SITE_COUNT; i++) { functions[i] = (stack_fun_t*)(uintptr_t)sites[i].fun; }
  functions[SITE_COUNT] = STACK_FUN(call_site);
  functions[SITE_COUNT + 1] = STACK_FUN(call_call_site);
  printf("  malloc is %soverridden\n", (test_is_overridden() ? "" : "not "));
  test_sites("auto", false);
  #if !defined(_WIN32)    // which has one way only
  test_sites("unwind", false);
  test_sites("fp", !TEST_FRAME_POINTERS);
  #endif
  test_none();
  test_exceptions();
  return test_done("test-profile-stack-leaf");
}

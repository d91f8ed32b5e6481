// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// With one seed, two processes with one thread sample the same allocations; without a seed, or with seed 0, they do not. The test
// runs itself as a child process, which prints the numbers of the allocations that were sampled.

#include "test-profile.h"
#include "mimalloc/types.h"     // MI_SECURE, MI_GUARDED

#if defined(_WIN32)
#define popen   _popen
#define pclose  _pclose
#endif

static const char* self;

/* -----------------------------------------------------------
  The child
----------------------------------------------------------- */

#define ALLOCATIONS  (20000)
#define LIVE         (500)
#define RATE         (4096)

// The same allocations in each process. Prints which ones were sampled.
static int child_main(const char* what) {
  static void* live[LIVE];
  static unsigned samples[ALLOCATIONS];
  if (strcmp(what, "env") == 0)         { if (!mi_prof_is_enabled()) return 3; }
  else if (strcmp(what, "random") == 0) { if (!mi_prof_start(RATE)) return 3; }
  else                                  { if (!mi_prof_start_seeded(RATE, strtoull(what, NULL, 10))) return 3; }
  uint64_t random = 1;
  size_t count = 0;
  for (unsigned i = 0; i < ALLOCATIONS; i++) {
    const size_t slot = test_random(&random) % LIVE;
    const size_t size = 1 + test_random(&random) % (test_random(&random) % 100 == 0 ? 100000 : 500);
    mi_free(live[slot]);
    const size_t before = prof_records();
    live[slot] = test_use(mi_malloc(size));
    if (prof_records() != before) { samples[count++] = i; }
  }
  for (size_t i = 0; i < count; i++) { printf("%u ", samples[i]); }
  printf("end\n");
  return 0;
}

/* -----------------------------------------------------------
  The parent
----------------------------------------------------------- */

typedef struct result_s {
  char   text[128*1024];
  size_t samples;
} result_t;

static void run(result_t* result, const char* what) {
  char command[2000];
  #if defined(_WIN32)
  snprintf(command, sizeof(command), "\"\"%s\" %s\"", self, what);
  #else
  snprintf(command, sizeof(command), "'%s' %s", self, what);
  #endif
  fflush(stdout);
  result->text[0] = 0;
  result->samples = 0;
  FILE* const f = popen(command, "r");
  check(f != NULL);
  if (f == NULL) return;
  const size_t n = fread(result->text, 1, sizeof(result->text) - 1, f);
  result->text[n] = 0;
  check(pclose(f) == 0);
  check(strstr(result->text, "end") != NULL);
  for (const char* p = result->text; *p != 0; p++) { result->samples += (*p == ' '); }
  // 20,000 allocations of 7.5 MB in all, at one sample per 4 KiB
  check_between(result->samples, 500, 4000);
}

static bool same(const result_t* x, const result_t* y) { return (strcmp(x->text, y->text) == 0); }

static void set_env(const char* name, const char* value) {
  #if defined(_WIN32)
  char buf[200];
  snprintf(buf, sizeof(buf), "%s=%s", name, value);
  _putenv(buf);
  #else
  if (value[0] == 0) { unsetenv(name); } else { setenv(name, value, 1); }
  #endif
}

static result_t a, b, c;

static void test_seeds(void) {
  test_begin("mi_prof_start_seeded: one seed, the same samples; another seed, others; seed 0, random");
  run(&a, "7");
  run(&b, "7");
  check(same(&a, &b));
  run(&b, "7");
  check(same(&a, &b));
  run(&b, "8");
  check(!same(&a, &b));
  run(&c, "8");
  check(same(&b, &c));
  run(&b, "0");
  run(&c, "0");
  check(!same(&b, &c));
  check(!same(&a, &b));
  printf("    %zu and %zu samples\n", a.samples, b.samples);
}

static void test_environment(void) {
  test_begin("MIMALLOC_PROF_SEED: the same, from the environment and by mi_prof_start");
  set_env("MIMALLOC_PROF", "1");
  set_env("MIMALLOC_PROF_SAMPLE_RATE", "4096");
  set_env("MIMALLOC_PROF_SEED", "7");
  run(&a, "env");
  run(&b, "env");
  check(same(&a, &b));
  set_env("MIMALLOC_PROF_SEED", "8");
  run(&b, "env");
  check(!same(&a, &b));
  set_env("MIMALLOC_PROF_SEED", "0");
  run(&b, "env");
  run(&c, "env");
  check(!same(&b, &c));
  set_env("MIMALLOC_PROF_SEED", "");
  run(&b, "env");
  run(&c, "env");
  check(!same(&b, &c));
  set_env("MIMALLOC_PROF", "");
  set_env("MIMALLOC_PROF_SAMPLE_RATE", "");
  run(&b, "random");
  run(&c, "random");
  check(!same(&b, &c));
  set_env("MIMALLOC_PROF_SEED", "7");
  run(&b, "random");
  run(&c, "7");
  check(same(&b, &c));
  set_env("MIMALLOC_PROF_SEED", "");
}

int main(int argc, char** argv) {
  if (argc > 1) return child_main(argv[1]);
  #if MI_SECURE || (MI_GUARDED && !MI_DEBUG)
  printf("skipped: secure and guarded builds draw random numbers of their own\n");
  return 0;
  #endif
  self = argv[0];
  set_env("MIMALLOC_PROF", "");
  set_env("MIMALLOC_PROF_SAMPLE_RATE", "");
  set_env("MIMALLOC_PROF_SEED", "");
  test_seeds();
  test_environment();
  return test_done("test-profile-seed");
}

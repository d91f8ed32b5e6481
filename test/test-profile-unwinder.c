// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// An unwinder of the program's own (`mi_prof_set_unwinder`), and stacks that are deeper than `prof_bt_max`.

#include "test-profile.h"
#include "test-profile-stack.h"
#include "test-profile-decode.h"

enum { TEST_SIZE = 7776 };

static sample_stack_t last;

static bool see_stack(const sample_stack_t* stack, void* arg) {
  last = *stack;
  *(size_t*)arg += stack->count;
  return true;
}

// The number of samples, of which `last` is one.
static size_t see(void) {
  size_t count = 0;
  last.depth = 0;
  stack_visit(TEST_SIZE, &see_stack, &count);
  return count;
}

static test_noinline void* leaf(void) {
  return test_use(mi_malloc(TEST_SIZE));
}

static test_noinline void* recurse(unsigned depth) {
  return test_use(depth == 0 ? leaf() : recurse(depth - 1));
}

static stack_fun_t* const functions[] = { STACK_FUN(leaf), STACK_FUN(recurse) };

static bool is_in(uintptr_t pc, stack_fun_t* fun) {
  return (stack_function(pc, functions, 2) == fun);
}

/* -----------------------------------------------------------
  An unwinder of our own
----------------------------------------------------------- */

enum { FRAME = 0x4000 };      // some address

static size_t unwinder_calls;
static size_t unwinder_max;

// `arg` is how many frames it gives.
static size_t unwinder(uintptr_t* frames, size_t max, void* arg) {
  unwinder_calls++;
  unwinder_max = max;
  const size_t count = (size_t)(uintptr_t)arg;
  for (size_t i = 0; i < count && i < max; i++) { frames[i] = FRAME + i; }
  return count;
}

static void check_unwinder(size_t count, size_t expected_depth) {
  mi_prof_set_unwinder(&unwinder, (void*)(uintptr_t)count);
  void* const p = leaf();
  check(see() == 1);
  check_eq(last.depth, expected_depth);
  for (size_t i = 0; i + 1 < expected_depth; i++) { check(last.frames[i] == FRAME + i); }
  mi_free(p);
}

static void test_unwinder(void) {
  test_begin("a function of the program captures the stacks");
  mi_option_set(mi_option_prof_bt_max, 5);
  mi_prof_set_unwinder(&unwinder, (void*)3);    // before the start
  check(mi_prof_start(1));
  check_unwinder(1, 1);
  check(last.frames[0] == FRAME);
  check_unwinder(3, 3);
  check(last.frames[2] == FRAME + 2);
  check_unwinder(5, 5);
  check(last.frames[4] == FRAME + 4);
  check(unwinder_max > 5 && unwinder_max < 100);
  check_unwinder(6, 6);                         // one too many
  check(last.frames[5] == 2);
  check_unwinder(unwinder_max, 6);
  check(last.frames[5] == 2);
  check_unwinder(0, 1);                         // no stack
  check(last.frames[0] == 1);
  check_unwinder(unwinder_max + 1, 1);          // impossible
  check(last.frames[0] == 1);
  mi_prof_stop();

  mi_prof_set_unwinder(&unwinder, (void*)2);    // stays until it is set again
  check(mi_prof_start(1));
  void* p = leaf();
  check(see() == 1 && last.depth == 2 && last.frames[0] == FRAME);
  mi_free(p);
  mi_prof_set_unwinder(NULL, NULL);
  const size_t calls = unwinder_calls;
  p = recurse(1);
  check(see() == 1 && is_in(last.frames[0], STACK_FUN(leaf)) && is_in(last.frames[1], STACK_FUN(recurse)));
  check(unwinder_calls == calls);
  mi_free(p);
  mi_prof_stop();

  mi_option_set(mi_option_prof_bt_max, 0);      // it is not asked
  mi_prof_set_unwinder(&unwinder, (void*)2);
  check(mi_prof_start(1));
  p = leaf();
  check(see() == 1 && last.frames[0] == 1);
  check(unwinder_calls == calls);
  mi_free(p);
  mi_prof_stop();
  mi_prof_set_unwinder(NULL, NULL);
  mi_option_set(mi_option_prof_bt_max, 32);
}

// It may do anything but return frames: here the session is over before its sample is recorded.
static size_t stopping_unwinder(uintptr_t* frames, size_t max, void* arg) {
  (void)arg; (void)max;
  mi_free(test_use(mi_malloc(TEST_SIZE)));
  mi_prof_stop();
  frames[0] = FRAME;
  return 1;
}

static void test_stop_inside(void) {
  test_begin("which stops the profiler");
  mi_prof_set_unwinder(&stopping_unwinder, NULL);
  check(mi_prof_start(1));
  void* const p = leaf();
  check(p != NULL && !mi_prof_is_enabled());
  mi_prof_set_unwinder(NULL, NULL);
  check(mi_prof_start(1));
  check(see() == 0);
  mi_free(p);
  check(prof_records() == see());
  mi_prof_stop();
}

/* -----------------------------------------------------------
  It is set while other threads use it: function and argument belong together
----------------------------------------------------------- */

static int argument_a, argument_b;
static volatile long pair_calls_a, pair_calls_b, pair_mismatches;
static volatile long pair_stop;

static size_t pair_unwinder_a(uintptr_t* frames, size_t max, void* arg) {
  (void)frames; (void)max;
  test_count(&pair_calls_a);
  if (arg != &argument_a) { test_count(&pair_mismatches); }
  return 0;
}

static size_t pair_unwinder_b(uintptr_t* frames, size_t max, void* arg) {
  (void)frames; (void)max;
  test_count(&pair_calls_b);
  if (arg != &argument_b) { test_count(&pair_mismatches); }
  return 0;
}

static void pair_thread(void* arg) {
  (void)arg;
  while (!load_flag(&pair_stop)) { mi_free(leaf()); }
}

static void test_pairs(void) {
  test_begin("set while other threads sample");
  check(mi_prof_start(1));
  test_thread_t threads[2];
  for (int i = 0; i < 2; i++) { test_thread_start(&threads[i], &pair_thread, NULL); }
  const double end = test_seconds() + 30;
  for (size_t i = 0; (i < 20000 || pair_calls_a < 1000 || pair_calls_b < 1000) && test_seconds() < end; i++) {
    mi_prof_set_unwinder(&pair_unwinder_a, &argument_a);
    if (i % 1000 == 0) { test_sleep(1); }
    mi_prof_set_unwinder(&pair_unwinder_b, &argument_b);
    if (i % 1000 == 500) { test_sleep(1); }
  }
  store_flag(&pair_stop, 1);
  for (int i = 0; i < 2; i++) { test_thread_join(&threads[i]); }
  mi_prof_set_unwinder(NULL, NULL);
  check(pair_calls_a >= 1000 && pair_calls_b >= 1000);
  check_eq(pair_mismatches, 0);
  mi_prof_stop();
}

/* -----------------------------------------------------------
  Truncated stacks
----------------------------------------------------------- */

// The frames of the sample in the proto form; its last one is named in `name`.
static size_t pprof_depth(char* name, size_t name_size) {
  static uint8_t data[1024*1024];
  name[0] = 0;
  if (!check(mi_prof_dump(stack_dump.path))) return 0;
  FILE* const f = fopen(stack_dump.path, "rb");
  if (!check(f != NULL)) return 0;
  const size_t size = fread(data, 1, sizeof(data), f);
  fclose(f);
  remove(stack_dump.path);
  inflate_t inf;
  if (!check(gunzip(&inf, data, size, 1024*1024))) return 0;
  dec_profile_t* const d = dec_profile(inf.out, inf.out_size);
  size_t depth = 0;
  for (size_t i = 0; i < d->sample_count; i++) {
    const dec_sample_t* const s = &d->samples[i];
    if (s->value[3] != TEST_SIZE || s->ids == 0) continue;
    depth = s->ids;
    const dec_location_t* const l = dec_location_of(d, s->id[depth - 1]);
    for (size_t k = 0; k < d->function_count; k++) {
      if (l->lines > 0 && d->functions[k].id == l->function) { snprintf(name, name_size, "%s", dec_string(d, d->functions[k].name)); }
    }
  }
  free(d);
  free(inf.out);
  return depth;
}

static void test_truncated(void) {
  test_begin("a stack that is deeper than prof_bt_max");
  static const size_t maxima[] = { 5, 128, 0, 1 };
  char name[100];
  for (size_t i = 0; i < sizeof(maxima)/sizeof(maxima[0]); i++) {
    const size_t max = maxima[i];
    mi_option_set(mi_option_prof_bt_max, (long)max);
    check(mi_prof_start(1));
    void* const p = recurse(200);
    check(see() == 1);
    check_eq(last.depth, max + 1);
    check_eq(last.frames[max], (max == 0 ? 1 : 2));
    for (size_t k = 0; k < max; k++) { check(is_in(last.frames[k], (k == 0 ? STACK_FUN(leaf) : STACK_FUN(recurse)))); }
    check_eq(pprof_depth(name, sizeof(name)), max + 1);
    check(strcmp(name, (max == 0 ? "[no stack]" : "[truncated]")) == 0);
    mi_free(p);
    mi_prof_stop();
  }
  // as deep as it may be, and not a frame deeper
  mi_prof_set_unwinder(&unwinder, (void*)128);
  mi_option_set(mi_option_prof_bt_max, 128);
  check(mi_prof_start(1));
  void* const p = leaf();
  check(see() == 1 && last.depth == 128 && last.frames[127] == FRAME + 127);
  check_eq(pprof_depth(name, sizeof(name)), 128);
  check(name[0] == 0);
  mi_free(p);
  mi_prof_stop();
  mi_prof_set_unwinder(NULL, NULL);
  mi_option_set(mi_option_prof_bt_max, 32);
}

int main(int argc, char** argv) {
  (void)argc;
  stack_dump_init(argv[0]);
  test_unwinder();
  test_stop_inside();
  test_pairs();
  test_truncated();
  return test_done("test-profile-unwinder");
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef TEST_PROFILE_STACK_H
#define TEST_PROFILE_STACK_H

// The stack of a sample, as a text dump has it: the library's internals may be hidden. Include `test-profile.h` first.

#define STACK_MAX  (140)

// With a memory checker `malloc` and the like call ours, and are not told from the program's functions.
#if MI_TRACK_VALGRIND
#define STACK_IN_VALGRIND    1
#else
#define STACK_IN_VALGRIND    0
#endif
#if MI_TRACK_ASAN || MI_TRACK_VALGRIND
#define STACK_HAS_OVERRIDES  0
#else
#define STACK_HAS_OVERRIDES  1
#endif

typedef struct sample_stack_s {
  size_t    count;    // records with this stack
  size_t    depth;
  uintptr_t frames[STACK_MAX];
} sample_stack_t;

typedef bool (stack_visit_fun)(const sample_stack_t* stack, void* arg);   // returns false to stop

typedef struct stack_dump_s {
  char   path[1024];
  size_t dropped;       // as the last dump tells
} stack_dump_t;

static stack_dump_t stack_dump;

static void stack_dump_init(const char* program) {
  snprintf(stack_dump.path, sizeof(stack_dump.path), "%.1000s.stack", program);
}

static bool stack_parse(char* line, size_t size, sample_stack_t* stack) {
  unsigned long long count = 0, bytes = 0;
  char* p = strstr(line, "] @");
  if (p == NULL || sscanf(line, " %llu: %llu [", &count, &bytes) != 2 || count == 0 || bytes != count*size) return false;
  stack->count = (size_t)count;
  stack->depth = 0;
  for (p += 3; *p == ' ' && stack->depth < STACK_MAX; ) { stack->frames[stack->depth++] = (uintptr_t)strtoull(p + 1, &p, 16); }
  return true;
}

// Visit all stacks that hold blocks of `size` bytes.
static void stack_visit(size_t size, stack_visit_fun* visit, void* arg) {
  static char line[8*1024];
  static sample_stack_t stack;
  if (!check(mi_prof_dump_text(stack_dump.path))) return;
  FILE* const f = fopen(stack_dump.path, "r");
  if (!check(f != NULL)) return;
  stack_dump.dropped = 0;
  bool more = true;
  while (fgets(line, sizeof(line), f) != NULL && strstr(line, "MAPPED_LIBRARIES") == NULL) {
    sscanf(line, "# samples dropped, as they fell into the taking of another: %zu", &stack_dump.dropped);
    if (more && strstr(line, "heap profile:") == NULL && stack_parse(line, size, &stack)) { more = visit(&stack, arg); }
  }
  fclose(f);
  remove(stack_dump.path);
}

/* -----------------------------------------------------------
  Functions of the test, told by their addresses
----------------------------------------------------------- */

typedef void (stack_fun_t)(void);
#define STACK_FUN(name)  ((stack_fun_t*)(uintptr_t)(&name))

// The function that a return address is in: of those in the list the one with the nearest start below.
static stack_fun_t* stack_function(uintptr_t pc, stack_fun_t* const* functions, size_t count) {
  uintptr_t best = 0;
  for (size_t i = 0; i < count; i++) {
    const uintptr_t start = (uintptr_t)functions[i];
    if (start < pc && start > best) { best = start; }
  }
  return (pc - best <= 4096 ? (stack_fun_t*)best : NULL);
}

#endif // TEST_PROFILE_STACK_H

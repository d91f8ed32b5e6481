// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

/* ----------------------------------------------------------------------------
  A program whose memory is known, to the byte and by function.

  Usage: program NAME [PLUGIN]
  Writes NAME.1 and, when it holds more, NAME.2, each as `.pb.gz` and as `.heap`.
  Then says what each function holds: a line `held FUNCTION BYTES OBJECTS`, and
  `grew` for what came between the two.
-----------------------------------------------------------------------------*/

#include <mimalloc/profile.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(WITH_PLUGIN)
#include <dlfcn.h>
#endif

// `go tool pprof` finds no name for a function that the compiler made a variant of.
#define PLAIN __attribute__((noipa))

static void* volatile kept[4096];   // volatile: a `malloc` whose result nobody sees may be left out
static size_t kept_count;

static void keep(void* p) {
  if (p == NULL || kept_count >= 4096) abort();
  kept[kept_count++] = p;
}

PLAIN static void hold_small(size_t count) {
  for (size_t i = 0; i < count; i++) { keep(malloc(100)); }
}

PLAIN static void hold_large(size_t count) {
  for (size_t i = 0; i < count; i++) { keep(calloc(1024, 1024)); }
}

PLAIN static void hold_text(size_t count) {
  for (size_t i = 0; i < count; i++) { keep(strdup("nineteen characters")); }
}

// Its blocks grow, where they lie or elsewhere: they belong to the function that resized them.
PLAIN static void hold_resized(size_t count) {
  for (size_t i = 0; i < count; i++) { keep(realloc(malloc(1000), 3000)); }
}

// Allocates, and holds nothing.
PLAIN static void hold_nothing(size_t count) {
  for (size_t i = 0; i < count; i++) {
    void* volatile p = malloc(500);
    free(p);
  }
}

PLAIN static void leak_later(size_t count) {
  for (size_t i = 0; i < count; i++) { keep(malloc(200)); }
}

PLAIN static void serve(void) {
  hold_small(1000);
  hold_large(3);
  hold_text(50);
  hold_resized(20);
  hold_nothing(300);
}

PLAIN static void serve_more(void) {
  hold_small(10);
  leak_later(700);
}

static void dump(const char* name, int number) {
  char path[4096];
  snprintf(path, sizeof(path), "%s.%d.pb.gz", name, number);
  if (!mi_prof_dump(path)) exit(1);
  snprintf(path, sizeof(path), "%s.%d.heap", name, number);
  if (!mi_prof_dump_text(path)) exit(1);
}

#if defined(WITH_PLUGIN)
static void load(const char* path) {
  void* const library = dlopen(path, RTLD_NOW);
  void (*hold)(void (*keep)(void*)) = NULL;
  if (library != NULL) { *(void**)&hold = dlsym(library, "plugin_hold"); }
  if (hold == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  hold(&keep);
  printf("held plugin_allocate 19200 64\n");
}
#endif

int main(int argc, char** argv) {
  if (argc < 2 || !mi_prof_start(0)) {
    fprintf(stderr, "usage: program NAME [PLUGIN]\n");
    return 1;
  }
  serve();
  #if defined(WITH_PLUGIN)
  load(argv[2]);
  #endif
  dump(argv[1], 1);
  serve_more();
  dump(argv[1], 2);
  printf("held hold_small 101000 1010\n");
  printf("held hold_large 3145728 3\n");
  printf("held hold_text 1000 50\n");
  printf("held hold_resized 60000 20\n");
  printf("held hold_nothing 0 0\n");
  printf("held leak_later 140000 700\n");
  printf("grew hold_small 1000 10\n");
  printf("grew leak_later 140000 700\n");
  return 0;
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// A library that `test-profile-stack-safety.c` loads. It knows nothing of mimalloc.

#include <stdlib.h>
#include <stddef.h>

#if defined(__cplusplus)
extern "C" {
#endif

extern void* plugin_block;
extern void* plugin_call(void* (*fun)(size_t size), size_t size);

void* plugin_block;

// While the loader runs.
__attribute__((constructor)) static void plugin_load(void) {
  plugin_block = malloc(12345);
}

__attribute__((destructor)) static void plugin_unload(void) {
  free(plugin_block);
}

void* plugin_call(void* (*fun)(size_t size), size_t size) {
  void* const p = fun(size);
  __asm__ volatile("" : : "r"(p) : "memory");   // no tail call
  return p;
}

#if defined(__cplusplus)
}
#endif

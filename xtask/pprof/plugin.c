// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// A library that `program` loads while it runs.

#include <stdlib.h>

__attribute__((noipa)) static void* plugin_allocate(void) {
  void* volatile p = malloc(300);
  return p;
}

void plugin_hold(void (*keep)(void*)) {
  for (int i = 0; i < 64; i++) { keep(plugin_allocate()); }
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef TEST_PROFILE_SEAMS_H
#define TEST_PROFILE_SEAMS_H

// What tests replace in the library. It is hidden in a shared one. Include `test-profile.h` first.

#include "mimalloc/internal.h"

#if defined(__ELF__)
#define SEAM  extern __attribute__((weak))
#else
#define SEAM  extern
#endif

SEAM void* (*_mi_prof_os_alloc)(size_t size, mi_memid_t* memid);

test_fun bool has_seams(void) {
  #if defined(__ELF__)
  return (&_mi_prof_os_alloc != NULL);
  #else
  return true;
  #endif
}

#endif // TEST_PROFILE_SEAMS_H

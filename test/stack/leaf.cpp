// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// The same in C++, which has more ways to allocate.

#include <new>
#include <stdexcept>
#include "leaf.c"

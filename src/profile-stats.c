// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Counters of a session. They change with samples only, and can
  be read at any time.
----------------------------------------------------------- */

static struct mi_prof_counts_s {
  // estimates, as fixed point numbers: what comes with a sample goes with it, so that nothing is left when all are gone
  int64_t           inuse_objects;
  int64_t           inuse_bytes;
  int64_t           alloc_objects;
  int64_t           alloc_bytes;
  int64_t           peak_bytes;
  _Atomic(size_t)   samples;
  _Atomic(size_t)   dropped_memory;
  _Atomic(size_t)   dropped_limit;
  _Atomic(size_t)   dropped_reentry;
  _Atomic(size_t)   folded_stacks;
  _Atomic(size_t)   failed_unwinds;
  _Atomic(size_t)   dumps;            // of the process, not of the session
  _Atomic(size_t)   failed_dumps;
} mi_prof_counts;

#define MI_PROF_FIXED_ONE   (256.0)
#define MI_PROF_FIXED_MAX   (1.0e16)

static int64_t mi_prof_fixed(double x) {
  return (int64_t)((x < MI_PROF_FIXED_MAX ? x : MI_PROF_FIXED_MAX)*MI_PROF_FIXED_ONE + 0.5);
}

static int64_t mi_prof_fixed_bytes(size_t size, double weight) {
  return mi_prof_fixed(weight * (double)size);
}

static int64_t mi_prof_count_get(int64_t* count) {
  return mi_atomic_loadi64_relaxed((_Atomic(int64_t)*)count);
}

static uint64_t mi_prof_count_round(int64_t* count) {
  const int64_t x = mi_prof_count_get(count);
  return (x <= 0 ? 0 : (uint64_t)((double)x/MI_PROF_FIXED_ONE + 0.5));
}

static void mi_prof_count_clear(int64_t* count) {
  mi_atomic_addi64_relaxed(count, -mi_prof_count_get(count));
}

static void mi_prof_counts_clear(void) {
  mi_prof_count_clear(&mi_prof_counts.inuse_objects);
  mi_prof_count_clear(&mi_prof_counts.inuse_bytes);
  mi_prof_count_clear(&mi_prof_counts.alloc_objects);
  mi_prof_count_clear(&mi_prof_counts.alloc_bytes);
  mi_prof_count_clear(&mi_prof_counts.peak_bytes);
  mi_atomic_store_relaxed(&mi_prof_counts.samples, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_counts.dropped_memory, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_counts.dropped_limit, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_counts.dropped_reentry, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_counts.folded_stacks, (size_t)0);
  mi_atomic_store_relaxed(&mi_prof_counts.failed_unwinds, (size_t)0);
}

// A live sample comes (`sign` 1) or goes (-1).
static void mi_prof_count_live(size_t size, double weight, int sign) {
  mi_atomic_addi64_relaxed(&mi_prof_counts.inuse_objects, sign*mi_prof_fixed(weight));
  const int64_t bytes = sign*mi_prof_fixed_bytes(size, weight);
  const int64_t now = mi_atomic_addi64_relaxed(&mi_prof_counts.inuse_bytes, bytes) + bytes;
  if (bytes > 0) { mi_atomic_maxi64_relaxed(&mi_prof_counts.peak_bytes, now); }
}

// An allocation was sampled, or (-1) it turns out that it should not have been.
static void mi_prof_count_alloc(size_t size, double weight, int sign) {
  mi_atomic_addi64_relaxed(&mi_prof_counts.alloc_objects, sign*mi_prof_fixed(weight));
  mi_atomic_addi64_relaxed(&mi_prof_counts.alloc_bytes, sign*mi_prof_fixed_bytes(size, weight));
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  The peak. While the estimate rises nothing is done. Before a
  sample goes that lets it fall by more than half a percent below
  its highest value, all samples are copied, unless the last copy
  is within half a percent of that value. So the copy is never
  more than 1 % below the peak, and there is one for each time
  that a new peak, higher by half a percent, comes to an end.
----------------------------------------------------------- */

// With the control lock.
static mi_prof_snapshot_t mi_prof_peak_snapshot;
static bool               mi_prof_peak_has_snapshot;

static _Atomic(size_t)    mi_prof_peak_is_on;
static int64_t            mi_prof_peak_copied;    // the estimate at the last copy (fixed point)

static int64_t mi_prof_peak_below(int64_t bytes) {
  return bytes - bytes/200;
}

// Is there no copy that stands for the peak?
static bool mi_prof_peak_is_new(void) {
  return (mi_prof_count_get(&mi_prof_peak_copied) < mi_prof_peak_below(mi_prof_count_get(&mi_prof_counts.peak_bytes)));
}

// With the control lock.
static void mi_prof_peak_forget(void) {
  mi_prof_snapshot_release(&mi_prof_peak_snapshot);
  mi_prof_peak_has_snapshot = false;
  mi_prof_count_clear(&mi_prof_peak_copied);
}

// With the control lock.
static void mi_prof_peak_copy(void) {
  mi_prof_snapshot_t snapshot;
  _mi_memzero_var(snapshot);
  const int64_t bytes = mi_prof_count_get(&mi_prof_counts.inuse_bytes);
  if (!mi_prof_snapshot_take(&snapshot) || mi_prof_block_is_reserved(&snapshot.sample_block)) {
    mi_prof_snapshot_release(&snapshot);    // without memory the earlier one stays
    return;
  }
  mi_prof_peak_forget();
  mi_prof_peak_snapshot = snapshot;
  mi_prof_peak_has_snapshot = true;
  mi_atomic_addi64_relaxed(&mi_prof_peak_copied, bytes);
}

static mi_decl_noinline void mi_prof_peak_ends(void) {
  if (!mi_prof_control_enter()) return;
  if (mi_prof_is_enabled() && mi_prof_peak_is_new()) { mi_prof_peak_copy(); }
  mi_prof_control_leave();
}

// Live samples are about to go, or to shrink, that hold so many bytes (fixed point). Called outside of all locks.
static void mi_prof_peak_before_loss(int64_t bytes) {
  const int64_t after = mi_prof_count_get(&mi_prof_counts.inuse_bytes) - bytes;
  if (after < mi_prof_peak_below(mi_prof_count_get(&mi_prof_counts.peak_bytes)) && mi_prof_peak_is_new()) { mi_prof_peak_ends(); }
}

static bool mi_prof_peak_watches(void) {
  return (mi_atomic_load_relaxed(&mi_prof_peak_is_on) != 0);
}

// Fill `snapshot`, which is zero, with the samples of the peak. With the control lock.
static bool mi_prof_peak_take(mi_prof_snapshot_t* snapshot) {
  const bool goes_on = (mi_prof_count_get(&mi_prof_counts.inuse_bytes) >= mi_prof_peak_below(mi_prof_count_get(&mi_prof_counts.peak_bytes)));
  if (!mi_prof_peak_has_snapshot || (goes_on && mi_prof_peak_is_new())) return mi_prof_snapshot_take(snapshot);
  return mi_prof_snapshot_clone(snapshot, &mi_prof_peak_snapshot);
}

// Begin anew. With the control lock.
static void mi_prof_peak_reset(bool is_on) {
  mi_prof_peak_forget();
  mi_prof_count_clear(&mi_prof_counts.peak_bytes);
  mi_atomic_maxi64_relaxed(&mi_prof_counts.peak_bytes, mi_prof_count_get(&mi_prof_counts.inuse_bytes));
  mi_atomic_store_relaxed(&mi_prof_peak_is_on, (size_t)(is_on ? 1 : 0));
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  What is left at exit, as text: the stacks that still hold memory,
  the largest first.
----------------------------------------------------------- */

#define MI_PROF_LEAK_MAX  (20)        // stacks that are shown

// All samples with the same frames.
typedef struct mi_prof_leak_s {
  const mi_prof_sample_t* sample;     // one of them; NULL if this place is free, or was shown
  double                  objects;
  double                  bytes;
} mi_prof_leak_t;

static bool mi_prof_leak_is(const mi_prof_leak_t* leak, const mi_prof_sample_t* sample) {
  if (leak->sample->depth != sample->depth) return false;
  for (size_t i = 0; i < sample->depth; i++) {
    if (leak->sample->frames[i] != sample->frames[i]) return false;
  }
  return true;
}

// Add a sample to a hash table with open addressing, which has room.
static void mi_prof_leak_add(mi_prof_leak_t* leaks, size_t slots, const mi_prof_sample_t* sample) {
  uint64_t hash = 0;
  for (size_t i = 0; i < sample->depth; i++) { hash = mi_prof_mix(hash ^ sample->frames[i]); }
  size_t slot = (size_t)(hash % slots);
  while (leaks[slot].sample != NULL && !mi_prof_leak_is(&leaks[slot], sample)) { slot = (slot + 1) % slots; }
  leaks[slot].sample = sample;
  leaks[slot].objects += sample->inuse_objects;
  leaks[slot].bytes += sample->inuse_bytes;
}

static size_t mi_prof_leak_round(double x) {
  return (size_t)(x + 0.5);
}

static void mi_prof_leak_print_frame(const mi_prof_snapshot_t* snapshot, uintptr_t frame) {
  if (frame == MI_PROF_FRAME_OTHER)     { _mi_message("    [other]\n"); return; }
  if (frame == MI_PROF_FRAME_TRUNCATED) { _mi_message("    [truncated]\n"); return; }
  const uintptr_t pc = frame - 1;     // in the call, not behind it
  char hex[20];                       // in small letters, which mimalloc's own output has not
  for (size_t i = 0; i < snapshot->module_count; i++) {
    const mi_prof_module_t* const m = &snapshot->modules[i];
    if (pc < m->start || pc >= m->end) continue;
    const size_t len = _mi_strlen(m->path);
    const size_t skip = (len > 400 ? len - 400 : 0);    // messages have a limit; the end tells more
    *mi_fmt_hex(hex, pc - m->start + m->offset, 1) = 0;
    _mi_message("    %s+0x%s\n", m->path + skip, hex);
    return;
  }
  *mi_fmt_hex(hex, pc, 1) = 0;
  _mi_message("    0x%s\n", hex);
}

static void mi_prof_leak_print_all(const mi_prof_snapshot_t* snapshot, mi_prof_leak_t* leaks, size_t slots) {
  size_t stacks = 0;
  double bytes = 0.0;
  double objects = 0.0;
  for (size_t i = 0; i < slots; i++) {
    if (leaks[i].sample == NULL) continue;
    stacks++;
    bytes += leaks[i].bytes;
    objects += leaks[i].objects;
  }
  _mi_message("heap profile at exit: about %zu bytes in %zu objects are held, by %zu stacks\n", mi_prof_leak_round(bytes), mi_prof_leak_round(objects), stacks);
  size_t shown = 0;
  for (; shown < MI_PROF_LEAK_MAX && shown < stacks; shown++) {
    mi_prof_leak_t* largest = NULL;
    for (size_t i = 0; i < slots; i++) {
      if (leaks[i].sample != NULL && (largest == NULL || leaks[i].bytes > largest->bytes)) { largest = &leaks[i]; }
    }
    _mi_message("about %zu bytes in %zu objects, allocated at\n", mi_prof_leak_round(largest->bytes), mi_prof_leak_round(largest->objects));
    for (size_t i = 0; i < largest->sample->depth; i++) { mi_prof_leak_print_frame(snapshot, largest->sample->frames[i]); }
    bytes -= largest->bytes;
    largest->sample = NULL;
  }
  if (shown < stacks) { _mi_message("and about %zu bytes by %zu more stacks\n", mi_prof_leak_round(bytes < 0.0 ? 0.0 : bytes), stacks - shown); }
}

static void mi_prof_leak_print(void) {
  if (!mi_prof_is_enabled()) return;
  mi_prof_snapshot_t snapshot;
  mi_prof_block_t block = { NULL, 0, _mi_memid_none() };
  const char* reason = mi_prof_snapshot_make(&snapshot, MI_PROF_KIND_LIVE);
  if (reason == NULL) {
    const size_t slots = 2*snapshot.sample_count + 1;
    if (mi_prof_block_alloc(&block, slots*sizeof(mi_prof_leak_t))) {
      mi_prof_leak_t* const leaks = (mi_prof_leak_t*)block.start;
      for (size_t i = 0; i < snapshot.sample_count; i++) {
        if (snapshot.samples[i].inuse_samples > 0) { mi_prof_leak_add(leaks, slots, &snapshot.samples[i]); }
      }
      mi_prof_leak_print_all(&snapshot, leaks, slots);
    }
    else { reason = mi_prof_reason_memory; }
  }
  if (reason != NULL) { _mi_message("warning: unable to tell what is held at exit: %s\n", reason); }
  mi_prof_block_free(&block);
  mi_prof_snapshot_release(&snapshot);
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef MIMALLOC_PROFILE_H
#define MIMALLOC_PROFILE_H

/* ----------------------------------------------------------------------------
  mi_prof: a sampling heap profiler inside mimalloc.

  While profiling is on, each allocation of `s` bytes is sampled with probability
  `1 - exp(-s/rate)`, independently of all others: on average one sample per `rate`
  allocated bytes. A sampled allocation is *live* until it is freed, by whichever
  thread. A dump scales every live sample by its weight `1 / (1 - exp(-s/rate))` to
  an unbiased estimate of the bytes that each call stack holds.

  From the environment, without a change to the program:

    MIMALLOC_PROF=1                        start when the process starts
    MIMALLOC_PROF_SAMPLE_RATE=524288       mean bytes between samples
    MIMALLOC_PROF_DUMP_AT_EXIT=app.%p.pb.gz  write a profile when the process exits

  From the program:

    mi_prof_start(0);
    ...
    mi_prof_dump("app.pb.gz");             // then: pprof -top app app.pb.gz

  Every function may be called from any thread at any time, but not from a signal
  handler and not from a callback that mimalloc runs while it allocates.
-----------------------------------------------------------------------------*/

#include "../mimalloc.h"

// How call stacks are captured (environment `MIMALLOC_PROF_UNWIND`).
typedef enum mi_prof_unwind_e {
  MI_PROF_UNWIND_AUTO   = 0,    // "auto": what is safe and good on this system
  MI_PROF_UNWIND_TABLES = 1,    // "unwind": by unwind tables; needs no frame pointers
  MI_PROF_UNWIND_FP     = 2,    // "fp": by frame pointers, for programs that are compiled with them
  MI_PROF_UNWIND_NONE   = 3     // "none": no stacks
} mi_prof_unwind_t;

// Captures the call stack of the calling thread: stores at most `max` return addresses in `frames`, the innermost
// first, and returns how many.
typedef size_t (mi_prof_unwind_fun)(uintptr_t* frames, size_t max, void* arg);

#if defined(MI_PPROF) && (MI_PPROF == 0)

// The library was built with `MI_PPROF=OFF` (its CMake targets and pkg-config file define `MI_PPROF=0`):
// the same calls compile to nothing.
static inline bool mi_prof_start(size_t sample_rate)                       { (void)sample_rate; return false; }
static inline bool mi_prof_start_seeded(size_t sample_rate, uint64_t seed) { (void)sample_rate; (void)seed; return false; }
static inline void mi_prof_stop(void)                                      { }
static inline bool mi_prof_is_enabled(void)                                { return false; }
static inline bool mi_prof_dump(const char* path)                          { (void)path; return false; }
static inline bool mi_prof_dump_text(const char* path)                     { (void)path; return false; }
static inline void mi_prof_set_unwinder(mi_prof_unwind_fun* fun, void* arg) { (void)fun; (void)arg; }
static inline void mi_prof_debug_stats(size_t* live_records, size_t* live_bytes) {
  if (live_records != NULL) { *live_records = 0; }
  if (live_bytes != NULL)   { *live_bytes = 0; }
}

#else

#ifdef __cplusplus
extern "C" {
#endif

// Start sampling in all threads.
// `sample_rate`: mean number of requested bytes between two samples. 1 records every allocation; 0 takes
//   `mi_option_prof_sample_rate` (environment `MIMALLOC_PROF_SAMPLE_RATE`, default 524288).
// Returns true if profiling is on afterwards. A running session is left as it is, with its rate and its samples.
// False: the system had no memory for the profiler; the program is not affected.
// Another thread samples from its next allocation that misses the allocator's fast path.
// The generator is seeded from `mi_option_prof_seed`, as `mi_prof_start_seeded` describes.
mi_decl_export bool mi_prof_start(size_t sample_rate) mi_attr_noexcept;

// As `mi_prof_start`, with a seed for the random intervals between samples.
// `seed`: 0 draws one from the system. Any other value repeats: a program with one thread that allocates the same
//   sizes in the same order samples the same allocations (not in builds with `MI_SECURE` or `MI_GUARDED`, which
//   draw random numbers of their own). Threads are told apart by the order in which they first sample.
mi_decl_export bool mi_prof_start_seeded(size_t sample_rate, uint64_t seed) mi_attr_noexcept;

// Stop sampling and release all samples and stacks. Nothing happens if profiling is off.
mi_decl_export void mi_prof_stop(void) mi_attr_noexcept;

// Is profiling on?
mi_decl_export bool mi_prof_is_enabled(void) mi_attr_noexcept;

// Write a profile of the live samples to the file `path`, as gzip'd `profile.proto`, which `pprof` opens. Values are
// estimates of the true amounts. Allocation goes on in other threads meanwhile.
// The file appears complete (mode 0600) or not at all: it is written beside `path` and then renamed. An existing
// regular file is replaced; anything else at `path` (a directory, a device, a symbolic link) is an error.
// Returns false on any error, among them a dump while profiling is off, after one line of warning output.
mi_decl_export bool mi_prof_dump(const char* path) mi_attr_noexcept;

// As `mi_prof_dump`, in the text form of gperftools (`heap_v2`). It holds the raw sample counts, which `pprof`
// scales with the size and the rate in the file.
mi_decl_export bool mi_prof_dump_text(const char* path) mi_attr_noexcept;

// Let `fun` capture the stacks of samples from now on, for a runtime with stacks of its own (a JIT, coroutines); NULL goes
// back to the built-in way. It can be set at any time, before a start too, and stays until it is set again.
// `fun` runs in the thread that allocates, from within the allocation, with no lock held. It may allocate: that is not
//   sampled. Where the stack it gives goes through the allocator, the allocator's frames and those within are left out.
//   0 frames: the sample is counted without a stack. It is not called where stacks are off (`prof_bt_max` is 0).
// `arg` is passed on. Another thread may still be calling the previous function with its argument for a moment.
mi_decl_export void mi_prof_set_unwinder(mi_prof_unwind_fun* fun, void* arg) mi_attr_noexcept;

// For tests; may change in any release. Store the number of live samples and the sum of their requested sizes in
// bytes (raw, not an estimate). Either pointer may be NULL.
mi_decl_export void mi_prof_debug_stats(size_t* live_records, size_t* live_bytes) mi_attr_noexcept;

#ifdef __cplusplus
}
#endif

#endif // MI_PPROF
#endif // MIMALLOC_PROFILE_H

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef MIMALLOC_PROFILE_H
#define MIMALLOC_PROFILE_H

/* ----------------------------------------------------------------------------
  mi_prof: a sampling heap profiler inside mimalloc.

  While profiling is on, each allocation of `s` bytes is sampled with probability
  `1 - exp(-s/rate)`, independently of all others: on average one sample per `rate`
  allocated bytes. A sampled allocation is *live* until it is freed, by whichever
  thread. A dump scales every sample by its weight `1 / (1 - exp(-s/rate))` to an
  unbiased estimate of the bytes that each call stack holds.

  From the environment, without a change to the program:

    MIMALLOC_PROF=1                        start when the process starts
    MIMALLOC_PROF_SAMPLE_RATE=524288       mean bytes between samples
    MIMALLOC_PROF_DUMP_AT_EXIT=app.%p.pb.gz  write a profile when the process exits

    MIMALLOC_PROF_DUMP_SIGNAL=USR2         .. and whenever it gets this signal

  From the program:

    mi_prof_start(0);
    ...
    mi_prof_dump("app.pb.gz");             // then: pprof -top app app.pb.gz

  Every function may be called from any thread at any time, but not from a signal
  handler and not from a callback that mimalloc runs while it allocates.

  Dumps that come by themselves

  The fields `dump_...` of `mi_prof_config_t`, and the options and environment variables
  of the same names, say when: by a signal, by allocated bytes, by growth, by time, when an
  allocation fails, near the memory limit. The profile of what is live then goes to
  `dump_path` (MIMALLOC_PROF_DUMP): `%p` is the process id, `%n` a number that counts
  from 1 in each process, `%%` a percent sign; a name that ends in `.heap` or `.txt` gets
  text. Without `%n` there is one file, which is overwritten. A file is written as by
  `mi_prof_dump`; folders are not created. A forked child goes on with its copy of
  the session, and where a name has no `%p` its process id comes before the ending.

  - What is due happens at the next allocation of any thread that misses the fast path, in
    that thread; other threads go on. What becomes due several times before that is
    one profile.
  - `dump_thread` starts a thread that sees to the signal and the time within 100 ms in an
    idle program too. It sleeps otherwise, takes none of the program's signals, is gone
    when profiling stops, and what it allocates is not in the profile. A child that is
    forked has one of its own.
  - `dump_alloc`, `dump_growth` go by the estimates, and are looked at where a sample is
    taken, so at the default rate they are not finer than some 512 KiB.
  - `dump_seconds` without `dump_thread`: every allocation that misses the fast path
    reads the clock.
  - `dump_signal`: the handler only sets a flag, and interrupted system calls go on. A
    signal that the program handles or ignores already is left alone, with a warning. When
    profiling stops it has its default action again, which ends many programs.
  - `dump_on_oom`: at most once a second, from memory that is reserved for it: five
    times what samples and stacks take, not touched before it is needed.
  - `dump_at_limit`: resident memory as a part of the lowest of the physical memory,
    RLIMIT_RSS and the limits of the control groups (Linux), or address space of RLIMIT_AS
    (Windows: committed memory of the limit of the job); nothing on a system that does not
    tell. Looked at where a sample is taken, at most 10 times a second, for some ten system
    calls. Once, and then again after it was 10 percent lower.
  - `leak` prints the 20 stacks that hold most: each frame as a module and the offset in its
    file of the call.
  - Failures are counted in `failed_dumps`, with a line of warning once a second.
  - In a set-user-id process the environment causes none of this.
-----------------------------------------------------------------------------*/

#include "../mimalloc.h"

/* ----------------------------------------------------------------------------
  Types
-----------------------------------------------------------------------------*/

typedef enum mi_prof_format_e {
  MI_PROF_FORMAT_PPROF = 0,     // gzip'd `profile.proto`: values are estimates
  MI_PROF_FORMAT_TEXT  = 1      // gperftools' `heap_v2`: raw counts, which the reader scales
} mi_prof_format_t;

typedef enum mi_prof_kind_e {
  MI_PROF_KIND_LIVE   = 0,      // what is live now (and with `accum` what was allocated, in further columns)
  MI_PROF_KIND_ALLOCS = 1,      // what was allocated since the start or `mi_prof_reset`; needs `accum`
  MI_PROF_KIND_PEAK   = 2       // what was live when the estimate was highest, within 1 %; needs `peak`
} mi_prof_kind_t;

// How call stacks are captured (environment `MIMALLOC_PROF_UNWIND`).
typedef enum mi_prof_unwind_e {
  MI_PROF_UNWIND_AUTO   = 0,    // "auto": what is safe and good on this system
  MI_PROF_UNWIND_TABLES = 1,    // "unwind": by unwind tables; needs no frame pointers
  MI_PROF_UNWIND_FP     = 2,    // "fp": by frame pointers, for programs that are compiled with them
  MI_PROF_UNWIND_NONE   = 3     // "none": no stacks
} mi_prof_unwind_t;

// How a session runs; made by `mi_prof_config_init`.
#define MI_PROF_CONFIG_VERSION  (1)

typedef struct mi_prof_config_s {
  size_t      size;             // of this structure
  size_t      version;
  size_t      sample_rate;      // mean bytes between samples; 1 records every allocation
  size_t      bt_max;           // frames in a stack, at most 128; 0 for no stacks
  size_t      max_bytes;        // memory for samples and stacks; 0 for no limit
  uint64_t    seed;             // of the sampling; 0 draws one from the system
  bool        accum;            // count all allocations too. Each different pair of a stack and a size class then keeps 48
                                //   bytes, and each stack stays in memory, until profiling stops
  bool        peak;             // keep a copy of the samples at the highest estimate. It is made when the estimate begins to
                                //   fall; who frees a sampled block meanwhile waits
  mi_prof_unwind_t unwind;      // how stacks are captured
  bool        label_thread;     // label samples with the name of the thread that allocated,
  bool        label_heap;       //   the name of the heap (`mi_prof_name_heap`),
  bool        label_age;        //   the seconds that they have lived, rounded down to a power of two,
  bool        label_bytes;      //   and the size class
  // when profiles are written (see "Dumps that come by themselves"); 0 for never
  size_t      dump_alloc;       // every so many allocated bytes
  size_t      dump_growth;      // every so many bytes that the live size has grown beyond its highest value so far
  size_t      dump_seconds;     // every so many seconds
  size_t      dump_at_limit;    // when the process comes to use this percentage of its memory limit, at most 100
  int         dump_signal;      // when it gets this signal, such as `SIGUSR2`
  bool        dump_on_oom;      // when an allocation fails
  bool        dump_thread;      // do what is due by a signal or the time in a thread of its own
  size_t      dump_keep;        // remove the oldest of more files than this, at most 1000; 0 keeps all
  const char* dump_path;        // pattern of their names (it is copied); NULL for `heap.%p.%n.pb.gz`, "" for no files
  mi_prof_kind_t dump_kind;     // of these, and of the one at exit; implies `accum` or `peak`
  bool        leak;             // print at exit which stacks still hold memory
} mi_prof_config_t;

// The estimates, what is missing in them, and the exact sizes of the allocator and the process beside them.
#define MI_PROF_STATS_VERSION   (1)

typedef struct mi_prof_stats_s {
  size_t      size;             // of this structure
  size_t      version;
  bool        enabled;
  bool        paused;
  size_t      sample_rate;      // bytes
  uint64_t    samples;          // taken since the start
  size_t      live_samples;     // of them, not freed
  size_t      live_sample_bytes;// their requested bytes (raw)
  uint64_t    inuse_objects;    // estimates
  uint64_t    inuse_bytes;
  uint64_t    alloc_objects;    // since the start or `mi_prof_reset`
  uint64_t    alloc_bytes;
  uint64_t    peak_bytes;       // the highest `inuse_bytes` since then
  size_t      dropped_memory;   // samples lost as the system gave no memory,
  size_t      dropped_limit;    //   as `max_bytes` was reached,
  size_t      dropped_reentry;  //   as they fell into the taking of another one (by an unwinder that allocates)
  size_t      folded_stacks;    // samples under `[other]`, as there was no room for their stack
  size_t      failed_unwinds;   // samples without a stack, as the unwinder found none
  size_t      stacks;           // different stacks
  size_t      profiler_bytes;   // memory for samples and stacks
  size_t      committed_bytes;  // of the allocator
  size_t      reserved_bytes;
  size_t      rss_bytes;        // of the process; 0 if the system does not say
  size_t      dumps;            // files written by this process, whatever the reason,
  size_t      failed_dumps;     //   and those that could not be
} mi_prof_stats_t;

// Frames that stand for no address.
#define MI_PROF_FRAME_OTHER     ((uintptr_t)1)    // the stack was not kept, as the memory limit was reached
#define MI_PROF_FRAME_TRUNCATED ((uintptr_t)2)    // outermost in a stack that is deeper than `bt_max`

// What one stack holds and has allocated, in blocks of the same size and with the same labels.
typedef struct mi_prof_sample_s {
  const uintptr_t* frames;      // return addresses, leaf first; or a `MI_PROF_FRAME_...`
  size_t      depth;            // number of frames; 0 if stacks are off
  size_t      size;             // requested bytes of a block (on average, where only allocations are counted)
  size_t      inuse_samples;    // raw
  double      inuse_objects;    // estimates
  double      inuse_bytes;
  size_t      alloc_samples;
  double      alloc_objects;
  double      alloc_bytes;
  const char* thread;           // labels; NULL if there is none
  const char* heap;
  size_t      age;              // seconds that they have lived, rounded down to a power of two
} mi_prof_sample_t;

// An executable mapping of the process.
#define MI_PROF_BUILD_ID_MAX    (20)

typedef struct mi_prof_module_s {
  uintptr_t   start;
  uintptr_t   end;
  uint64_t    offset;           // offset in the file of `start`
  const char* path;
  size_t      build_id_size;    // 0 if it has none
  uint8_t     build_id[MI_PROF_BUILD_ID_MAX];
} mi_prof_module_t;

typedef struct mi_prof_snapshot_s mi_prof_snapshot_t;

// Callbacks run without a lock held: they may allocate, and call any function here. Where one returns false, so does
// the function that called it, at once.
typedef bool (mi_prof_write_fun)(const void* data, size_t size, void* arg);
typedef bool (mi_prof_visit_fun)(const mi_prof_sample_t* sample, void* arg);
typedef bool (mi_prof_module_fun)(const mi_prof_module_t* module, void* arg);

// Captures the call stack of the calling thread: stores at most `max` return addresses in `frames`, the innermost
// first, and returns how many.
typedef size_t (mi_prof_unwind_fun)(uintptr_t* frames, size_t max, void* arg);

#if defined(MI_PPROF) && (MI_PPROF == 0)

/* ----------------------------------------------------------------------------
  The library was built with `MI_PPROF=OFF` (its CMake targets and pkg-config file
  define `MI_PPROF=0`): the same calls compile to nothing.
-----------------------------------------------------------------------------*/

static inline bool mi_prof_start(size_t sample_rate)                       { (void)sample_rate; return false; }
static inline bool mi_prof_start_seeded(size_t sample_rate, uint64_t seed) { (void)sample_rate; (void)seed; return false; }
static inline bool mi_prof_start_ex(const mi_prof_config_t* config)        { (void)config; return false; }
static inline bool mi_prof_config_default(mi_prof_config_t* config)        { (void)config; return false; }
static inline void mi_prof_stop(void)                                      { }
static inline bool mi_prof_is_enabled(void)                                { return false; }
static inline bool mi_prof_pause(void)                                     { return false; }
static inline bool mi_prof_resume(void)                                    { return false; }
static inline bool mi_prof_set_rate(size_t sample_rate)                    { (void)sample_rate; return false; }
static inline void mi_prof_reset(void)                                     { }
static inline bool mi_prof_name_heap(mi_heap_t* heap, const char* name)    { (void)heap; (void)name; return false; }
static inline bool mi_prof_stats_get(mi_prof_stats_t* stats)               { (void)stats; return false; }
static inline bool mi_prof_dump(const char* path)                          { (void)path; return false; }
static inline bool mi_prof_dump_text(const char* path)                     { (void)path; return false; }
static inline bool mi_prof_dump_writer(mi_prof_format_t format, mi_prof_kind_t kind, mi_prof_write_fun* write, void* arg) {
  (void)format; (void)kind; (void)write; (void)arg; return false;
}
static inline mi_prof_snapshot_t* mi_prof_snapshot_new(void)               { return NULL; }
static inline bool mi_prof_snapshot_visit(const mi_prof_snapshot_t* snapshot, mi_prof_visit_fun* visit, void* arg) {
  (void)snapshot; (void)visit; (void)arg; return false;
}
static inline void mi_prof_snapshot_free(mi_prof_snapshot_t* snapshot)     { (void)snapshot; }
static inline bool mi_prof_modules_visit(mi_prof_module_fun* visit, void* arg) { (void)visit; (void)arg; return false; }
static inline void mi_prof_set_unwinder(mi_prof_unwind_fun* fun, void* arg) { (void)fun; (void)arg; }
static inline void mi_prof_debug_stats(size_t* live_records, size_t* live_bytes) {
  if (live_records != NULL) { *live_records = 0; }
  if (live_bytes != NULL)   { *live_bytes = 0; }
}

#else

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------
  Sessions
-----------------------------------------------------------------------------*/

// Start sampling in all threads.
// `sample_rate`: mean number of requested bytes between two samples. 1 records every allocation; 0 takes
//   `mi_option_prof_sample_rate` (environment `MIMALLOC_PROF_SAMPLE_RATE`, default 524288).
// Returns true if profiling is on afterwards. A running session is left as it is, with its rate and its samples.
// False: the system had no memory for the profiler; the program is not affected.
// Another thread samples from its next allocation that misses the allocator's fast path.
// All else is as the options say (`mi_prof_config_default`).
mi_decl_export bool mi_prof_start(size_t sample_rate) mi_attr_noexcept;

// As `mi_prof_start`, with a seed for the random intervals between samples.
// `seed`: 0 draws one from the system. Any other value repeats: a program with one thread that allocates the same
//   sizes in the same order samples the same allocations (not in builds with `MI_SECURE` or `MI_GUARDED`, which
//   draw random numbers of their own). Threads are told apart by the order in which they first sample.
mi_decl_export bool mi_prof_start_seeded(size_t sample_rate, uint64_t seed) mi_attr_noexcept;

// As `mi_prof_start`, with all parameters. `config` comes from `mi_prof_config_init`; a `sample_rate` of 0 takes the
// option. False also if its `size` or `version` is not one that this library knows, or a value is out of range.
mi_decl_export bool mi_prof_start_ex(const mi_prof_config_t* config) mi_attr_noexcept;

// Fill in what the options and the environment say; `size` and `version` must be set. False if they are not known.
mi_decl_export bool mi_prof_config_default(mi_prof_config_t* config) mi_attr_noexcept;

// Stop sampling and release all samples and stacks. Nothing happens if profiling is off.
mi_decl_export void mi_prof_stop(void) mi_attr_noexcept;

// Is profiling on (or paused)?
mi_decl_export bool mi_prof_is_enabled(void) mi_attr_noexcept;

// Take no more samples, but keep those that are there: they go on to leave the profile when they are freed. False if
// profiling is off.
mi_decl_export bool mi_prof_pause(void) mi_attr_noexcept;

// Go on after `mi_prof_pause`. False if profiling is off.
mi_decl_export bool mi_prof_resume(void) mi_attr_noexcept;

// Change the rate of the running session (0: to the option's). Samples keep the weight that they were taken with, so
// estimates stay unbiased. A thread changes over at its next allocation that misses the fast path. False if profiling is off.
mi_decl_export bool mi_prof_set_rate(size_t sample_rate) mi_attr_noexcept;

// Begin anew to count allocations (`accum`) and to look for the peak. Live samples stay.
mi_decl_export void mi_prof_reset(void) mi_attr_noexcept;

// Name a heap for the label `heap`, from its next sample on; NULL takes the name away. At most 31 bytes of the name are kept. Of
// more than 256 heaps those that were named first lose their names. False if `heap` is NULL.
mi_decl_export bool mi_prof_name_heap(mi_heap_t* heap, const char* name) mi_attr_noexcept;

/* ----------------------------------------------------------------------------
  Results
-----------------------------------------------------------------------------*/

// Write a profile of the live samples to the file `path`, as gzip'd `profile.proto`, which `pprof` opens. Values are
// estimates of the true amounts. Allocation goes on in other threads meanwhile.
// The file appears complete (mode 0600) or not at all: it is written beside `path` and then renamed. An existing
// regular file is replaced; anything else at `path` (a directory, a device, a symbolic link) is an error.
// Returns false on any error, among them a dump while profiling is off, after one line of warning output.
// A stack of 16 KiB is enough, as for any sample.
mi_decl_export bool mi_prof_dump(const char* path) mi_attr_noexcept;

// As `mi_prof_dump`, in the text form of gperftools (`heap_v2`). It holds the raw sample counts, which `pprof`
// scales with the size and the rate in the file.
mi_decl_export bool mi_prof_dump_text(const char* path) mi_attr_noexcept;

// Hand a profile to `write`, piece by piece. False without output if profiling is off, if the session does not keep
// this `kind`, if there is no memory, or if a dump is asked for while one takes its copy of the samples in this thread.
mi_decl_export bool mi_prof_dump_writer(mi_prof_format_t format, mi_prof_kind_t kind, mi_prof_write_fun* write, void* arg) mi_attr_noexcept;

// Copy all samples. The copy is consistent and stays until it is freed, also when profiling stops. NULL if profiling is
// off or there is no memory.
mi_decl_export mi_prof_snapshot_t* mi_prof_snapshot_new(void) mi_attr_noexcept;

// Call `visit` for each sample of a snapshot. Samples with the same stack follow each other. What `visit` gets is valid as
// long as the snapshot is. Several threads may visit one snapshot. False if `visit` returned false.
mi_decl_export bool mi_prof_snapshot_visit(const mi_prof_snapshot_t* snapshot, mi_prof_visit_fun* visit, void* arg) mi_attr_noexcept;

// NULL is allowed.
mi_decl_export void mi_prof_snapshot_free(mi_prof_snapshot_t* snapshot) mi_attr_noexcept;

// Call `visit` for each executable mapping of the process, the main program's first; also while profiling is off. What
// `visit` gets is valid during the call only. False if there is no memory, or if `visit` returned false.
mi_decl_export bool mi_prof_modules_visit(mi_prof_module_fun* visit, void* arg) mi_attr_noexcept;

// Fill in `stats`, which `mi_prof_stats_init` has prepared; also while profiling is off. False if its `size` or
// `version` is not one that this library knows.
mi_decl_export bool mi_prof_stats_get(mi_prof_stats_t* stats) mi_attr_noexcept;

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

// Prepare a configuration with what the options and the environment say.
static inline void mi_prof_config_init(mi_prof_config_t* config) {
  config->size = sizeof(*config);
  config->version = MI_PROF_CONFIG_VERSION;
  (void)mi_prof_config_default(config);
}

// Prepare statistics for `mi_prof_stats_get`.
static inline void mi_prof_stats_init(mi_prof_stats_t* stats) {
  stats->size = sizeof(*stats);
  stats->version = MI_PROF_STATS_VERSION;
}

#endif // MIMALLOC_PROFILE_H

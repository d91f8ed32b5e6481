// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef MI_PROFILE_INTERNAL_H
#define MI_PROFILE_INTERNAL_H

// What the parts of the profiler share: a snapshot as the writers see it, and the
// platform layer. What knows mimalloc's own structures is in `profile-hooks.h`.

#include "mimalloc.h"
#include "mimalloc/internal.h"
#include "mimalloc/profile.h"

#define MI_PROF_VERSION        "0.1.0"
#define MI_PROF_MAX_DEPTH      (128)      // hard limit of `mi_option_prof_bt_max`
#define MI_PROF_MAX_FRAMES     (MI_PROF_MAX_DEPTH + 1)   // with the mark of a truncated stack
#define MI_PROF_CACHE_LINE     (64)
#define MI_PROF_NAME_SIZE      (32)       // of a label, with the end

typedef char mi_prof_name_t[MI_PROF_NAME_SIZE];

// The size of the blocks that serve a request; for huge ones, which are served by their size, four classes for each power of two.
static inline size_t mi_prof_size_class(size_t size) {
  if (size <= MI_LARGE_OBJ_SIZE_MAX) return mi_good_size(size);
  size_t step = MI_LARGE_OBJ_SIZE_MAX/4;
  while (step < size/8) { step *= 2; }
  return (size > SIZE_MAX - step ? size : _mi_align_up(size, step));
}

/* -----------------------------------------------------------
  Memory from the system that is not part of a session
----------------------------------------------------------- */

typedef struct mi_prof_block_s {
  void*             start;
  size_t            size;
  mi_memid_t        memid;
} mi_prof_block_t;

// Find a way to capture stacks by its name, as in the environment. Returns false if there is none.
bool _mi_prof_unwind_parse(const char* name, mi_prof_unwind_t* how);

/* -----------------------------------------------------------
  Snapshot: a consistent copy that the writers encode. It owns
  its memory; nothing here is shared with running threads.
----------------------------------------------------------- */

struct mi_prof_snapshot_s {
  const mi_prof_sample_t* samples;       // those with the same stack and labels are adjacent
  size_t                  sample_count;
  const mi_prof_module_t* modules;       // sorted by address, the main executable first
  size_t                  module_count;
  const mi_prof_name_t*   names;         // the labels of all samples point into these
  size_t                  name_count;
  mi_prof_kind_t          kind;
  bool                    has_allocs;    // are allocations counted?
  bool                    label_bytes;   // label samples with their size class?
  int64_t                 time_nanos;    // Unix time
  int64_t                 duration_nanos;// since the start of the session
  mi_prof_stats_t         stats;
  mi_prof_block_t         self;          // the memory that all this is in
  mi_prof_block_t         sample_block;
  mi_prof_block_t         module_block;
};

/* -----------------------------------------------------------
  profile-pprof.c: the writers. Pure functions of the snapshot:
  no allocator, no system calls.
----------------------------------------------------------- */

// Bytes of scratch memory (zeroed, aligned to 16) that `_mi_prof_write_pprof` needs for this snapshot.
size_t _mi_prof_pprof_scratch_size(const mi_prof_snapshot_t* snapshot);

// Write gzip'd `profile.proto`.
bool _mi_prof_write_pprof(const mi_prof_snapshot_t* snapshot, void* scratch, mi_prof_write_fun* write, void* arg);

// Write gperftools' `heap_v2` text.
bool _mi_prof_write_text(const mi_prof_snapshot_t* snapshot, mi_prof_write_fun* write, void* arg);

/* -----------------------------------------------------------
  profile-prim.c: what each operating system does in its own way.
  Nothing here allocates from a heap, except where stated.
----------------------------------------------------------- */

// Prepare for `_mi_prof_prim_backtrace`; may allocate and take the loader's locks. Called from `mi_prof_start` outside
// all locks, and harmless when repeated.
void    _mi_prof_prim_init(void);

// alloc-aligned.c: store the addresses of its static functions (at most `MI_PROF_ALIGNED_FUNCTIONS`), for the frames of our own:
// the functions that a program calls may just jump to these.
#define MI_PROF_ALIGNED_FUNCTIONS  (5)
void    _mi_prof_aligned_functions(uintptr_t* functions);

// Store the return addresses of the calling thread's stack, leaf first, at most `max` of them, and return how many.
// The leaf is the caller of the allocator: the allocator's own frames are left out.
// Takes no lock that the program can hold, and never allocates. A way that this system does not have is as `MI_PROF_UNWIND_AUTO`.
size_t  _mi_prof_prim_backtrace(mi_prof_unwind_t how, uintptr_t* frames, size_t max);

// Leave the frames of the allocator, and those within, out of a stack that somebody else captured. Returns the new count.
#define MI_PROF_OWN_FRAMES  (16)  // there are at most so many
size_t  _mi_prof_prim_leave_out_own(uintptr_t* frames, size_t count);

// Describe the executable mappings of the process, sorted by address with the main executable first. Stores at most
// `max` modules, with their paths in `names`. Returns the number stored.
size_t  _mi_prof_prim_modules(mi_prof_module_t* modules, size_t max, char* names, size_t names_size);

// Nanoseconds since the Unix epoch.
int64_t _mi_prof_prim_time_nanos(void);

size_t  _mi_prof_prim_process_id(void);

// The name of the calling thread; empty if it has none, or the system has none.
void    _mi_prof_prim_thread_name(char* name, size_t size);

// Resident memory of the process and its address space in bytes; 0 where the system does not say.
void    _mi_prof_prim_memory(size_t* resident, size_t* address_space);
size_t  _mi_prof_prim_rss(void);

// Does the process run with more rights than its user (set-user-id)? Then the environment is not to be trusted.
bool    _mi_prof_prim_is_setuid(void);

// Give the physical memory of whole pages back to the system. The addresses stay readable; the contents are lost.
void    _mi_prof_prim_purge(void* start, size_t size);

// Run these around a fork; registered at most once. No-op where there is no fork. May allocate: call it outside all locks.
void    _mi_prof_prim_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

// A file that appears complete at its path, or not at all.
typedef struct mi_prof_file_s {
  intptr_t    handle;
  const char* path;             // the target
  const char* error;            // NULL, or what went wrong (a static string)
  int         error_code;       // `errno` or `GetLastError`, 0 if it does not apply
  char        temp_path[1024];  // written here first, in the same folder
} mi_prof_file_t;

// Which file is at `path`, if it is a regular one. Two that exist at the same time have different ones.
typedef struct mi_prof_file_id_s {
  uint64_t    volume;
  uint64_t    number;
} mi_prof_file_id_t;

bool    _mi_prof_prim_file_id(const char* path, mi_prof_file_id_t* id);
void    _mi_prof_prim_file_remove(const char* path);

// profile-watch.c: a signal by its name, with or without `SIG`, or its number. False if there is none, or if it cannot be
// one that asks for a profile.
bool    _mi_prof_prim_signal_parse(const char* name, int* signal);

// Does the environment have a value for `name` that did not fit into `value`, of `size` bytes?
bool    _mi_prof_prim_env_exceeds(const char* name, const char* value, size_t size);

bool    _mi_prof_prim_file_open(mi_prof_file_t* file, const char* path);
bool    _mi_prof_prim_file_write(const void* data, size_t size, void* file);   // a `mi_prof_write_fun`
bool    _mi_prof_prim_file_close(mi_prof_file_t* file, bool commit);  // rename into place, or remove if not `commit` or on error

#endif // MI_PROFILE_INTERNAL_H

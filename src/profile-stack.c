// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Interned call stacks. A stack lives until the session ends, so
  a pointer to it stays valid as long as a record may hold one.
  A stack that is known already costs no memory. Samples with
  different labels have different stacks.
----------------------------------------------------------- */

#define MI_PROF_STACK_BUCKETS        (1024)   // per shard
#define MI_PROF_STACK_SPARE_EIGHTHS  (2)      // this part of the memory limit is for records only

// All allocations with a stack in one size class, if they are counted.
typedef struct mi_prof_allocs_s {
  struct mi_prof_allocs_s* next;
  size_t                  size_class;
  size_t                  samples;
  size_t                  sample_bytes;
  double                  objects;            // estimates
  double                  bytes;
} mi_prof_allocs_t;

typedef struct mi_prof_stack_s {
  struct mi_prof_stack_s* next;               // in the same bucket
  mi_prof_allocs_t*       allocs;
  uint64_t                hash;
  mi_prof_labels_t        labels;
  size_t                  id;                 // counts from 0 in the order of first use
  size_t                  depth;
  uintptr_t               frames[1];          // `depth` return addresses, leaf first
} mi_prof_stack_t;

// What a live sample was before it changed.
typedef struct mi_prof_was_s {
  const mi_prof_stack_t*  stack;              // may be gone if the session has ended meanwhile
  uint64_t                stack_hash;
  size_t                  size;
  double                  weight;
} mi_prof_was_t;

typedef struct mi_prof_stack_shard_s {
  mi_lock_t               lock;               // for all
  mi_prof_stack_t**       buckets;
  mi_prof_arena_t         arena;
  mi_prof_allocs_t        other;              // allocations for which there was no room
  uint8_t                 padding[MI_PROF_CACHE_LINE];
} mi_prof_stack_shard_t;

static mi_prof_stack_shard_t  mi_prof_stack_shards[MI_PROF_SHARDS];
static mi_prof_stack_t**      mi_prof_stack_buckets;
static mi_memid_t             mi_prof_stack_buckets_memid;
static _Atomic(size_t)        mi_prof_stack_count = MI_ATOMIC_VAR_INIT(2);

#define MI_PROF_STACK_BUCKETS_SIZE   (MI_PROF_SHARDS * MI_PROF_STACK_BUCKETS * sizeof(mi_prof_stack_t*))

#define MI_PROF_STACKS_FIXED         (2)      // these, with the first ids
static const mi_prof_stack_t mi_prof_stack_none  = { NULL, NULL, 0, { 0, 0 }, 0, 0, { 0 } };                      // stacks are off
static const mi_prof_stack_t mi_prof_stack_other = { NULL, NULL, 0, { 0, 0 }, 1, 1, { MI_PROF_FRAME_OTHER } };    // no memory for the stack

static bool mi_prof_stack_init(void) {
  mi_prof_stack_buckets = (mi_prof_stack_t**)_mi_prof_os_alloc(MI_PROF_STACK_BUCKETS_SIZE, &mi_prof_stack_buckets_memid);
  if (mi_prof_stack_buckets == NULL) return false;
  _mi_memzero(mi_prof_stack_buckets, MI_PROF_STACK_BUCKETS_SIZE);
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_lock(&mi_prof_stack_shards[i].lock) {    // a thread may still look for the stack of a sample from before
      mi_prof_stack_shards[i].buckets = &mi_prof_stack_buckets[i * MI_PROF_STACK_BUCKETS];
      _mi_memzero_var(mi_prof_stack_shards[i].other);
    }
  }
  mi_atomic_store_relaxed(&mi_prof_stack_count, (size_t)MI_PROF_STACKS_FIXED);
  return true;
}

static void mi_prof_stack_done(void) {
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_prof_stack_shard_t* const shard = &mi_prof_stack_shards[i];
    mi_prof_chunk_t* chunks = NULL;
    mi_lock(&shard->lock) {
      shard->buckets = NULL;
      chunks = mi_prof_arena_detach(&shard->arena);
    }
    mi_prof_chunks_free(chunks);
  }
  _mi_os_free(mi_prof_stack_buckets, MI_PROF_STACK_BUCKETS_SIZE, mi_prof_stack_buckets_memid);
  mi_prof_stack_buckets = NULL;
}

static mi_prof_stack_shard_t* mi_prof_stack_shard_of(uint64_t hash) {
  return &mi_prof_stack_shards[hash % MI_PROF_SHARDS];
}

static mi_prof_stack_t** mi_prof_stack_bucket(mi_prof_stack_shard_t* shard, uint64_t hash) {
  return &shard->buckets[(hash / MI_PROF_SHARDS) % MI_PROF_STACK_BUCKETS];
}

static size_t mi_prof_stack_size(size_t depth) {
  return _mi_align_up(offsetof(mi_prof_stack_t, frames) + depth*sizeof(uintptr_t), 8);
}

/* -----------------------------------------------------------
  Find or add. All with the lock of the shard.
----------------------------------------------------------- */

static bool mi_prof_stack_equals(const mi_prof_stack_t* stack, uint64_t hash, const uintptr_t* frames, size_t depth, mi_prof_labels_t labels) {
  if (stack->hash != hash || stack->depth != depth) return false;
  if (stack->labels.thread != labels.thread || stack->labels.heap != labels.heap) return false;
  for (size_t i = 0; i < depth; i++) {
    if (stack->frames[i] != frames[i]) return false;
  }
  return true;
}

static mi_prof_stack_t* mi_prof_stack_find(mi_prof_stack_shard_t* shard, uint64_t hash, const uintptr_t* frames, size_t depth, mi_prof_labels_t labels) {
  mi_prof_stack_t* stack = *mi_prof_stack_bucket(shard, hash);
  while (stack != NULL && !mi_prof_stack_equals(stack, hash, frames, depth, labels)) { stack = stack->next; }
  return stack;
}

// Returns NULL if there is no room.
static mi_prof_stack_t* mi_prof_stack_add(mi_prof_stack_shard_t* shard, uint64_t hash, const uintptr_t* frames, size_t depth, mi_prof_labels_t labels) {
  mi_prof_stack_t* const stack = (mi_prof_stack_t*)mi_prof_arena_alloc(&shard->arena, mi_prof_stack_size(depth));
  if (stack == NULL) return NULL;
  stack->allocs = NULL;
  stack->hash = hash;
  stack->labels = labels;
  stack->depth = depth;
  stack->id = mi_atomic_increment_relaxed(&mi_prof_stack_count);
  _mi_memcpy(stack->frames, frames, depth*sizeof(uintptr_t));
  mi_prof_stack_t** const bucket = mi_prof_stack_bucket(shard, hash);
  stack->next = *bucket;
  *bucket = stack;
  return stack;
}

// Returns NULL if there is no room.
static mi_prof_allocs_t* mi_prof_stack_allocs(mi_prof_stack_shard_t* shard, mi_prof_stack_t* stack, size_t size) {
  const size_t size_class = mi_prof_size_class(size);
  mi_prof_allocs_t* allocs = stack->allocs;
  while (allocs != NULL && allocs->size_class != size_class) { allocs = allocs->next; }
  if (allocs != NULL) return allocs;
  allocs = (mi_prof_allocs_t*)mi_prof_arena_alloc(&shard->arena, sizeof(mi_prof_allocs_t));
  if (allocs == NULL) return NULL;
  _mi_memzero_var(*allocs);
  allocs->size_class = size_class;
  allocs->next = stack->allocs;
  stack->allocs = allocs;
  return allocs;
}

// `sign` is 1, or -1 to take an allocation back.
static void mi_prof_allocs_count(mi_prof_allocs_t* allocs, size_t size, double weight, int sign) {
  if (sign > 0) { allocs->samples++; allocs->sample_bytes += size; }
           else { allocs->samples--; allocs->sample_bytes -= size; }
  allocs->objects += sign*weight;
  allocs->bytes += sign*weight*(double)size;
}

/* -----------------------------------------------------------
  For a sample. These take the lock.
----------------------------------------------------------- */

// Find the stack of a sample, never NULL: without memory it is `[other]`. With `accum` the allocation is counted too.
static const mi_prof_stack_t* mi_prof_stack_intern(size_t session, const uintptr_t* frames, size_t depth, mi_prof_labels_t labels,
                                                   bool accum, size_t size, double weight) {
  if (depth == 0 && labels.thread == 0 && labels.heap == 0 && !accum) return &mi_prof_stack_none;
  uint64_t hash = mi_prof_mix(depth ^ ((uint64_t)labels.thread << 32) ^ ((uint64_t)labels.heap << 48));
  for (size_t i = 0; i < depth; i++) { hash = mi_prof_mix(hash ^ frames[i]); }
  mi_prof_stack_shard_t* const shard = mi_prof_stack_shard_of(hash);
  mi_prof_stack_t* stack = NULL;
  mi_prof_allocs_t* allocs = NULL;
  bool active;
  bool done;
  size_t room;
  do {
    mi_lock(&shard->lock) {
      active = (shard->buckets != NULL && mi_prof_session_is(session));
      if (active && stack == NULL) { stack = mi_prof_stack_find(shard, hash, frames, depth, labels); }
      if (active && stack == NULL) { stack = mi_prof_stack_add(shard, hash, frames, depth, labels); }
      if (active && stack != NULL && accum) { allocs = mi_prof_stack_allocs(shard, stack, size); }
      if (allocs != NULL) { mi_prof_allocs_count(allocs, size, weight, 1); }
    }
    done = (stack != NULL && (allocs != NULL || !accum));
    room = (stack == NULL ? mi_prof_stack_size(depth) : sizeof(mi_prof_allocs_t));
  } while (active && !done && mi_prof_arena_grow(&shard->arena, &shard->lock, session, room, MI_PROF_STACK_SPARE_EIGHTHS) == MI_PROF_OK);
  if (active && !done) {
    mi_lock(&shard->lock) {
      if (accum && mi_prof_session_is(session)) { mi_prof_allocs_count(&shard->other, size, weight, 1); }
    }
  }
  return (stack != NULL && active ? stack : &mi_prof_stack_other);
}

// With the lock. Where allocations of `size` bytes with a stack are counted.
static mi_prof_allocs_t* mi_prof_stack_allocs_or_other(mi_prof_stack_shard_t* shard, const mi_prof_stack_t* stack, size_t size) {
  mi_prof_allocs_t* const allocs = (stack == &mi_prof_stack_other ? NULL : mi_prof_stack_allocs(shard, (mi_prof_stack_t*)stack, size));
  return (allocs != NULL ? allocs : &shard->other);
}

// The allocation of a record turns out to be one of `size` bytes, or none if `size` is 0.
static void mi_prof_stack_recount(size_t session, const mi_prof_was_t* was, size_t size, double weight) {
  mi_prof_stack_shard_t* const shard = mi_prof_stack_shard_of(was->stack_hash);
  mi_lock(&shard->lock) {
    if (shard->buckets != NULL && mi_prof_session_is(session)) {    // the stack is still there
      mi_prof_allocs_count(mi_prof_stack_allocs_or_other(shard, was->stack, was->size), was->size, was->weight, -1);
      if (size != 0) { mi_prof_allocs_count(mi_prof_stack_allocs_or_other(shard, was->stack, size), size, weight, 1); }
    }
  }
}

static void mi_prof_allocs_clear(mi_prof_allocs_t* allocs) {
  allocs->samples = 0;
  allocs->sample_bytes = 0;
  allocs->objects = 0.0;
  allocs->bytes = 0.0;
}

// Call `visit` for all that is counted, one shard at a time, under its lock. With the control lock, so that stacks stay.
typedef void (mi_prof_allocs_visit_fun)(const mi_prof_stack_t* stack, mi_prof_allocs_t* allocs, void* arg);

static void mi_prof_allocs_visit(mi_prof_allocs_visit_fun* visit, void* arg) {
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_prof_stack_shard_t* const shard = &mi_prof_stack_shards[i];
    mi_lock(&shard->lock) {
      for (size_t b = 0; shard->buckets != NULL && b < MI_PROF_STACK_BUCKETS; b++) {
        for (mi_prof_stack_t* stack = shard->buckets[b]; stack != NULL; stack = stack->next) {
          for (mi_prof_allocs_t* allocs = stack->allocs; allocs != NULL; allocs = allocs->next) { visit(stack, allocs, arg); }
        }
      }
      visit(&mi_prof_stack_other, &shard->other, arg);
    }
  }
}

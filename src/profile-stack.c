// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Interned call stacks. A stack lives until the session ends, so
  a pointer to it stays valid as long as a record may hold one.
  A stack that is known already costs no memory.
----------------------------------------------------------- */

#define MI_PROF_STACK_BUCKETS        (1024)   // per shard
#define MI_PROF_STACK_SPARE_EIGHTHS  (2)      // this part of the memory limit is for records only

typedef struct mi_prof_stack_shard_s {
  mi_lock_t               lock;               // for all
  mi_prof_stack_t**       buckets;
  mi_prof_arena_t         arena;
  uint8_t                 padding[MI_PROF_CACHE_LINE];
} mi_prof_stack_shard_t;

static mi_prof_stack_shard_t  mi_prof_stack_shards[MI_PROF_SHARDS];
static mi_prof_stack_t**      mi_prof_stack_buckets;
static mi_memid_t             mi_prof_stack_buckets_memid;
static _Atomic(size_t)        mi_prof_stack_count;

#define MI_PROF_STACK_BUCKETS_SIZE   (MI_PROF_SHARDS * MI_PROF_STACK_BUCKETS * sizeof(mi_prof_stack_t*))

static const mi_prof_stack_t mi_prof_stack_none  = { NULL, 0, 0, 0, { 0 } };                      // stacks are off
static const mi_prof_stack_t mi_prof_stack_other = { NULL, 0, 1, 1, { MI_PROF_FRAME_OTHER } };    // no memory for the stack

static bool mi_prof_stack_init(void) {
  mi_prof_stack_buckets = (mi_prof_stack_t**)_mi_prof_os_alloc(MI_PROF_STACK_BUCKETS_SIZE, &mi_prof_stack_buckets_memid);
  if (mi_prof_stack_buckets == NULL) return false;
  _mi_memzero(mi_prof_stack_buckets, MI_PROF_STACK_BUCKETS_SIZE);
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_lock(&mi_prof_stack_shards[i].lock) {    // a thread may still look for the stack of a sample from before
      mi_prof_stack_shards[i].buckets = &mi_prof_stack_buckets[i * MI_PROF_STACK_BUCKETS];
    }
  }
  mi_atomic_store_relaxed(&mi_prof_stack_count, (size_t)2);   // after `none` and `other`
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

static bool mi_prof_stack_equals(const mi_prof_stack_t* stack, uint64_t hash, const uintptr_t* frames, size_t depth) {
  if (stack->hash != hash || stack->depth != depth) return false;
  for (size_t i = 0; i < depth; i++) {
    if (stack->frames[i] != frames[i]) return false;
  }
  return true;
}

static mi_prof_stack_t** mi_prof_stack_bucket(mi_prof_stack_shard_t* shard, uint64_t hash) {
  return &shard->buckets[(hash / MI_PROF_SHARDS) % MI_PROF_STACK_BUCKETS];
}

static size_t mi_prof_stack_size(size_t depth) {
  return _mi_align_up(offsetof(mi_prof_stack_t, frames) + depth*sizeof(uintptr_t), 8);
}

static mi_prof_stack_t* mi_prof_stack_find(mi_prof_stack_shard_t* shard, uint64_t hash, const uintptr_t* frames, size_t depth) {
  mi_prof_stack_t* stack = *mi_prof_stack_bucket(shard, hash);
  while (stack != NULL && !mi_prof_stack_equals(stack, hash, frames, depth)) { stack = stack->next; }
  return stack;
}

// Returns NULL if there is no room.
static mi_prof_stack_t* mi_prof_stack_add(mi_prof_stack_shard_t* shard, uint64_t hash, const uintptr_t* frames, size_t depth) {
  mi_prof_stack_t* const stack = (mi_prof_stack_t*)mi_prof_arena_alloc(&shard->arena, mi_prof_stack_size(depth));
  if (stack == NULL) return NULL;
  stack->hash = hash;
  stack->depth = depth;
  stack->id = mi_atomic_increment_relaxed(&mi_prof_stack_count);
  _mi_memcpy(stack->frames, frames, depth*sizeof(uintptr_t));
  mi_prof_stack_t** const bucket = mi_prof_stack_bucket(shard, hash);
  stack->next = *bucket;
  *bucket = stack;
  return stack;
}

// Never NULL: without memory it is `[other]`.
static const mi_prof_stack_t* mi_prof_stack_intern(size_t session, const uintptr_t* frames, size_t depth) {
  if (depth == 0) return &mi_prof_stack_none;
  uint64_t hash = depth;
  for (size_t i = 0; i < depth; i++) { hash = mi_prof_mix(hash ^ frames[i]); }
  mi_prof_stack_shard_t* const shard = &mi_prof_stack_shards[hash % MI_PROF_SHARDS];
  const mi_prof_stack_t* stack = NULL;
  bool active;
  do {
    mi_lock(&shard->lock) {
      active = (shard->buckets != NULL && mi_atomic_load_relaxed(&_mi_prof_session) == session);
      if (active) { stack = mi_prof_stack_find(shard, hash, frames, depth); }
      if (active && stack == NULL) { stack = mi_prof_stack_add(shard, hash, frames, depth); }
    }
  } while (stack == NULL && active && mi_prof_arena_grow(&shard->arena, &shard->lock, session, mi_prof_stack_size(depth), MI_PROF_STACK_SPARE_EIGHTHS));
  return (stack != NULL ? stack : &mi_prof_stack_other);
}

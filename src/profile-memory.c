// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Memory. Straight from the operating system, in chunks, so that
  the profiler never allocates from the heap that it watches.
----------------------------------------------------------- */

#define MI_PROF_SHARDS          (16)          // of records and of stacks, each with a lock and an arena
#define MI_PROF_CHUNK_SIZE      (64*MI_KiB)   // the first chunk of an arena; they double up to the maximum
#define MI_PROF_CHUNK_SIZE_MAX  (1*MI_MiB)
#define MI_PROF_CHUNK_HEADER    (4*MI_KiB)    // kept when a chunk is purged; holds `mi_prof_chunk_t`

typedef struct mi_prof_chunk_s {
  struct mi_prof_chunk_s* next;
  size_t                  size;
  uint8_t*                top;                // end of the part in use
  mi_memid_t              memid;
} mi_prof_chunk_t;

typedef enum mi_prof_result_e {
  MI_PROF_OK,
  MI_PROF_ENDED,                              // the session is over
  MI_PROF_NO_MEMORY,                          // the system gave none
  MI_PROF_OVER_LIMIT                          // `prof_max_bytes` is reached
} mi_prof_result_t;

// A bump allocator. Its lock is that of the structure it is part of.
typedef struct mi_prof_arena_s {
  mi_prof_chunk_t*        chunks;             // the first one is being filled
  mi_prof_chunk_t*        spare;              // purged
} mi_prof_arena_t;

static _Atomic(size_t) mi_prof_memory_used;   // bytes in chunks, not counting spare ones
static _Atomic(size_t) mi_prof_memory_max;    // 0: no limit

// Replaced by tests, to fail.
mi_decl_hidden extern void* (*_mi_prof_os_alloc)(size_t size, mi_memid_t* memid);
void* (*_mi_prof_os_alloc)(size_t size, mi_memid_t* memid) = &_mi_os_alloc;

// Take `size` bytes from the limit, of which the last `spare_eighths` are for others.
static bool mi_prof_memory_reserve(size_t size, size_t spare_eighths) {
  const size_t max = mi_atomic_load_relaxed(&mi_prof_memory_max);
  const size_t used = mi_atomic_add_relaxed(&mi_prof_memory_used, size);
  if (max == 0 || used + size <= max - (max/8)*spare_eighths) return true;
  mi_atomic_sub_relaxed(&mi_prof_memory_used, size);
  return false;
}

static void mi_prof_memory_release(size_t size) {
  mi_atomic_sub_relaxed(&mi_prof_memory_used, size);
}

static mi_prof_result_t mi_prof_chunk_alloc(mi_prof_chunk_t** result, size_t size, size_t spare_eighths) {
  if (!mi_prof_memory_reserve(size, spare_eighths)) return MI_PROF_OVER_LIMIT;
  mi_memid_t memid;
  mi_prof_chunk_t* const chunk = (mi_prof_chunk_t*)_mi_prof_os_alloc(size, &memid);
  if (chunk == NULL) {
    mi_prof_memory_release(size);
    return MI_PROF_NO_MEMORY;
  }
  chunk->size = size;
  chunk->memid = memid;
  *result = chunk;
  return MI_PROF_OK;
}

static void mi_prof_chunk_free(mi_prof_chunk_t* chunk) {
  mi_prof_memory_release(chunk->size);
  _mi_os_free(chunk, chunk->size, chunk->memid);
}

static bool mi_prof_arena_has_room(const mi_prof_arena_t* arena, size_t size) {
  const mi_prof_chunk_t* const chunk = arena->chunks;
  return (chunk != NULL && (size_t)((uint8_t*)chunk + chunk->size - chunk->top) >= size);
}

static void mi_prof_arena_add(mi_prof_arena_t* arena, mi_prof_chunk_t* chunk) {
  chunk->top = (uint8_t*)chunk + MI_PROF_CHUNK_HEADER;
  chunk->next = arena->chunks;
  arena->chunks = chunk;
}

// With the lock. Returns NULL if there is no room: then call `mi_prof_arena_grow` and try again.
static void* mi_prof_arena_alloc(mi_prof_arena_t* arena, size_t size) {
  mi_assert_internal(size % sizeof(void*) == 0 && size <= MI_PROF_CHUNK_SIZE - MI_PROF_CHUNK_HEADER);
  if (!mi_prof_arena_has_room(arena, size)) return NULL;
  void* const p = arena->chunks->top;
  arena->chunks->top += size;
  return p;
}

static void mi_prof_reserve_grow(void);

// Make room for `size` bytes, unless the session is over: then nobody would give the memory back. Takes the lock, but not
// while it asks the system, which may call back to report a failure.
static mi_prof_result_t mi_prof_arena_grow(mi_prof_arena_t* arena, mi_lock_t* lock, size_t session, size_t size, size_t spare_eighths) {
  size_t chunk_size = 0;
  bool active = false;
  mi_lock(lock) {
    mi_prof_chunk_t* const spare = arena->spare;
    active = mi_prof_session_is(session);
    if (!active || mi_prof_arena_has_room(arena, size)) {
      // too late, or another thread was faster
    }
    else if (spare != NULL && mi_prof_memory_reserve(spare->size, spare_eighths)) {
      arena->spare = spare->next;
      mi_prof_arena_add(arena, spare);
    }
    else {
      chunk_size = (arena->chunks == NULL ? MI_PROF_CHUNK_SIZE : 2*arena->chunks->size);
      if (chunk_size > MI_PROF_CHUNK_SIZE_MAX) { chunk_size = MI_PROF_CHUNK_SIZE_MAX; }
    }
  }
  if (!active) return MI_PROF_ENDED;
  if (chunk_size == 0) {
    mi_prof_reserve_grow();
    return MI_PROF_OK;
  }
  mi_prof_chunk_t* chunk = NULL;
  mi_prof_result_t result = mi_prof_chunk_alloc(&chunk, chunk_size, spare_eighths);
  if (result != MI_PROF_OK && chunk_size > MI_PROF_CHUNK_SIZE) { result = mi_prof_chunk_alloc(&chunk, MI_PROF_CHUNK_SIZE, spare_eighths); }
  if (result != MI_PROF_OK) return result;
  mi_lock(lock) {
    active = mi_prof_session_is(session);
    if (active) { mi_prof_arena_add(arena, chunk); }
  }
  if (active) {
    mi_prof_reserve_grow();
    return MI_PROF_OK;
  }
  mi_prof_chunk_free(chunk);
  return MI_PROF_ENDED;
}

// With the lock: take all chunks. Then, without it, free them.
static mi_prof_chunk_t* mi_prof_arena_detach(mi_prof_arena_t* arena) {
  mi_prof_chunk_t* const chunks = arena->chunks;
  arena->chunks = NULL;
  return chunks;
}

static void mi_prof_chunks_free(mi_prof_chunk_t* chunk) {
  while (chunk != NULL) {
    mi_prof_chunk_t* const next = chunk->next;
    mi_prof_chunk_free(chunk);
    chunk = next;
  }
}

// With the lock: give all memory back to the system, but keep the addresses readable, for walkers without a lock.
static void mi_prof_arena_purge(mi_prof_arena_t* arena) {
  for (mi_prof_chunk_t* chunk = mi_prof_arena_detach(arena); chunk != NULL; ) {
    mi_prof_chunk_t* const next = chunk->next;
    mi_prof_memory_release(chunk->size);
    _mi_prof_prim_purge((uint8_t*)chunk + MI_PROF_CHUNK_HEADER, chunk->size - MI_PROF_CHUNK_HEADER);
    chunk->next = arena->spare;
    arena->spare = chunk;
    chunk = next;
  }
}

/* -----------------------------------------------------------
  Memory that is not part of a session and not limited, for
  snapshots and while a profile is written. A dump after an
  allocation failed may take it from a reserve, where the system
  gives none. The reserve grows with the samples, so that all of
  them fit; its pages are not touched before they are needed.
----------------------------------------------------------- */

static struct mi_prof_reserve_s {
  _Atomic(size_t)     fixed;      // bytes for a dump without samples; 0 if no reserve is wanted
  _Atomic(uintptr_t)  user;       // the thread that may take from it, or 0
  // with the session lock; but the user takes without
  mi_prof_block_t     block;
  size_t              used;
} mi_prof_reserve;

// What a dump needs. For each record that is the record, twice, and a sample of its own; for each stack its frames and a
// table of them. All that is less than five times the memory of records and stacks.
static size_t mi_prof_reserve_need(void) {
  const size_t fixed = mi_atomic_load_relaxed(&mi_prof_reserve.fixed);
  const size_t used = mi_atomic_load_relaxed(&mi_prof_memory_used);
  return (fixed == 0 || used > (SIZE_MAX - fixed)/8 ? fixed : fixed + 5*used);
}

// Replace the reserve, if nobody uses it. Returns what is to be freed: the old one or `next`.
static mi_prof_block_t mi_prof_reserve_replace(mi_prof_block_t next) {
  mi_lock(&mi_prof_session_lock) {
    if (mi_atomic_load_acquire(&mi_prof_reserve.user) == 0) {
      const mi_prof_block_t old = mi_prof_reserve.block;
      mi_prof_reserve.block = next;
      mi_prof_reserve.used = 0;
      next = old;
    }
  }
  return next;
}

static void mi_prof_reserve_free(mi_prof_block_t block) {
  if (block.start != NULL) { _mi_os_free(block.start, block.size, block.memid); }
}

// Take a larger reserve if the samples ask for it; without memory the present one stays. Called outside of all locks.
static void mi_prof_reserve_grow(void) {
  const size_t need = mi_prof_reserve_need();
  if mi_likely(need == 0) return;
  mi_prof_block_t next = { NULL, 0, _mi_memid_none() };
  mi_lock(&mi_prof_session_lock) { next.size = mi_prof_reserve.block.size; }
  if (next.size >= need) return;
  next.size = _mi_align_up(need + need/4, MI_MiB);
  next.start = _mi_prof_os_alloc(next.size, &next.memid);
  if (next.start == NULL) return;
  mi_prof_reserve_free(mi_prof_reserve_replace(next));
}

// The session is over, if no other one has begun.
static void mi_prof_reserve_release(void) {
  if (mi_atomic_load_acquire(&mi_prof_reserve.fixed) != 0) return;
  const mi_prof_block_t none = { NULL, 0, _mi_memid_none() };
  mi_prof_reserve_free(mi_prof_reserve_replace(none));
}

// The calling thread may take from the reserve, until it leaves. Only one at a time.
static void mi_prof_reserve_enter(void) {
  mi_lock(&mi_prof_session_lock) { mi_atomic_store_release(&mi_prof_reserve.user, (uintptr_t)_mi_prim_thread_id()); }
}

static void mi_prof_reserve_leave(void) {
  if (mi_prof_reserve.used > 0) { _mi_prof_prim_purge(mi_prof_reserve.block.start, mi_prof_reserve.block.size); }
  mi_lock(&mi_prof_session_lock) {
    mi_prof_reserve.used = 0;
    mi_atomic_store_release(&mi_prof_reserve.user, (uintptr_t)0);
  }
  mi_prof_reserve_release();
}

static bool mi_prof_reserve_take(mi_prof_block_t* block) {
  struct mi_prof_reserve_s* const reserve = &mi_prof_reserve;
  if (mi_atomic_load_relaxed(&reserve->user) != (uintptr_t)_mi_prim_thread_id()) return false;
  const size_t size = _mi_align_up(block->size, MI_PROF_CACHE_LINE);
  if (reserve->block.start == NULL || size > reserve->block.size - reserve->used) return false;
  block->start = (uint8_t*)reserve->block.start + reserve->used;
  block->memid = _mi_memid_none();
  reserve->used += size;
  _mi_memzero(block->start, block->size);
  return true;
}

// Only the last one is there to be taken again, before the user leaves.
static void mi_prof_reserve_give_back(const mi_prof_block_t* block) {
  const size_t size = _mi_align_up(block->size, MI_PROF_CACHE_LINE);
  uint8_t* const end = (uint8_t*)mi_prof_reserve.block.start + mi_prof_reserve.used;
  if ((uint8_t*)block->start + size == end) { mi_prof_reserve.used -= size; }
}

// Is the block in the reserve? Then it may not be kept.
static bool mi_prof_block_is_reserved(const mi_prof_block_t* block) {
  return (block->start != NULL && block->memid.memkind == MI_MEM_NONE);
}

static bool mi_prof_block_alloc(mi_prof_block_t* block, size_t size) {
  block->size = size;
  block->start = _mi_prof_os_alloc(size, &block->memid);
  if (block->start == NULL) return mi_prof_reserve_take(block);
  if (!block->memid.initially_zero) { _mi_memzero(block->start, size); }
  return true;
}

static void mi_prof_block_free(mi_prof_block_t* block) {
  if (block->start == NULL) return;
  if (mi_prof_block_is_reserved(block)) { mi_prof_reserve_give_back(block); }
  else { _mi_os_free(block->start, block->size, block->memid); }
  block->start = NULL;
}

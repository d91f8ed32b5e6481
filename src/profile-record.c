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

#define MI_PROF_CHUNK_SIZE      (64*MI_KiB)   // the first chunk of an arena; they double up to the maximum
#define MI_PROF_CHUNK_SIZE_MAX  (1*MI_MiB)
#define MI_PROF_CHUNK_HEADER    (4*MI_KiB)    // kept when a chunk is purged; holds `mi_prof_chunk_t`

typedef struct mi_prof_chunk_s {
  struct mi_prof_chunk_s* next;
  size_t                  size;
  uint8_t*                top;                // end of the part in use
  mi_memid_t              memid;
} mi_prof_chunk_t;

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

static mi_prof_chunk_t* mi_prof_chunk_alloc(size_t size, size_t spare_eighths) {
  if (!mi_prof_memory_reserve(size, spare_eighths)) return NULL;
  mi_memid_t memid;
  mi_prof_chunk_t* const chunk = (mi_prof_chunk_t*)_mi_prof_os_alloc(size, &memid);
  if (chunk == NULL) {
    mi_prof_memory_release(size);
    return NULL;
  }
  chunk->size = size;
  chunk->memid = memid;
  return chunk;
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

// Make room for `size` bytes, unless the session is over: then nobody would give the memory back. Takes the lock, but not
// while it asks the system, which may call back to report a failure.
static bool mi_prof_arena_grow(mi_prof_arena_t* arena, mi_lock_t* lock, size_t session, size_t size, size_t spare_eighths) {
  size_t chunk_size = 0;
  bool active = false;
  mi_lock(lock) {
    mi_prof_chunk_t* const spare = arena->spare;
    active = (mi_atomic_load_relaxed(&_mi_prof_session) == session);
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
  if (chunk_size == 0) return active;
  mi_prof_chunk_t* chunk = mi_prof_chunk_alloc(chunk_size, spare_eighths);
  if (chunk == NULL && chunk_size > MI_PROF_CHUNK_SIZE) { chunk = mi_prof_chunk_alloc(MI_PROF_CHUNK_SIZE, spare_eighths); }
  if (chunk == NULL) return false;
  mi_lock(lock) {
    active = (mi_atomic_load_relaxed(&_mi_prof_session) == session);
    if (active) { mi_prof_arena_add(arena, chunk); }
  }
  if (!active) { mi_prof_chunk_free(chunk); }
  return active;
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
  Records. A record is a live sample. The records of a page are
  a list that starts in its metadata word.

  Records belong to shards by their page. A record is linked and
  unlinked under the lock of its shard, for which neither an
  unsampled allocation nor the free of an unsampled block must
  wait: such a free walks the list without a lock. That is sound:
  - Only the one who frees a block asks for its record, and
    nobody else removes it meanwhile (but stop, which removes all).
  - An unlinked record still leads on to the rest of its list,
    until it is used again. The version of the shard changes
    before that, so a walk that saw no change saw the whole list.
  - The memory of records stays readable for ever.
----------------------------------------------------------- */

#define MI_PROF_SHARDS  (16)

typedef struct mi_prof_record_s {
  _Atomic(uintptr_t)      block;              // start of the sampled block; 0 if the record is not in use
  _Atomic(uintptr_t)      next;               // next record of the page
  mi_page_t*              page;
  union {
    const mi_prof_stack_t*    stack;
    struct mi_prof_record_s*  next_free;      // if not in use
  } x;
  size_t                  size;               // requested bytes
  double                  weight;             // number of allocations it stands for
} mi_prof_record_t;

typedef struct mi_prof_record_shard_s {
  mi_lock_t               lock;               // for all but `version`, which is read without
  _Atomic(size_t)         version;            // changes before a record is used again
  mi_prof_arena_t         arena;
  mi_prof_record_t*       free;
  size_t                  live_count;
  size_t                  live_bytes;         // sum of `size`
  uint8_t                 padding[MI_PROF_CACHE_LINE];
} mi_prof_record_shard_t;

static mi_prof_record_shard_t mi_prof_record_shards[MI_PROF_SHARDS];

static mi_prof_record_shard_t* mi_prof_record_shard_of(const mi_page_t* page) {
  // multiplicative hashing, as pages are at regular distances
  const uint32_t hash = (uint32_t)((uintptr_t)page >> 4) * UINT32_C(0x9E3779B1);
  return &mi_prof_record_shards[hash >> 28];
}

static mi_prof_record_t* mi_prof_page_records(mi_page_t* page) {
  return (mi_prof_record_t*)mi_atomic_load_acquire(&page->metadata);
}

static mi_prof_record_t* mi_prof_record_next(const mi_prof_record_t* record) {
  return (mi_prof_record_t*)mi_atomic_load_acquire(&((mi_prof_record_t*)record)->next);
}

// Can `block` have a record? Takes no lock; may return true in doubt.
static bool mi_prof_record_may_exist(mi_page_t* page, mi_block_t* block) {
  mi_prof_record_shard_t* const shard = mi_prof_record_shard_of(page);
  for (int tries = 0; tries < 4; tries++) {
    const size_t version = mi_atomic_load_acquire(&shard->version);
    size_t steps = page->reserved;            // a walk that strays into reused records must end too
    mi_prof_record_t* record = mi_prof_page_records(page);
    while (record != NULL && steps > 0) {
      if (mi_atomic_load_acquire(&record->block) == (uintptr_t)block) return true;
      record = mi_prof_record_next(record);
      steps--;
    }
    if mi_likely(record == NULL && mi_atomic_load_relaxed(&shard->version) == version) return false;
  }
  return true;
}

// Find the record of `block` and the one before it. With the lock.
static mi_prof_record_t* mi_prof_record_find(mi_page_t* page, mi_block_t* block, mi_prof_record_t** prev) {
  *prev = NULL;
  mi_prof_record_t* record = mi_prof_page_records(page);
  while (record != NULL && mi_atomic_load_relaxed(&record->block) != (uintptr_t)block) {
    *prev = record;
    record = mi_prof_record_next(record);
  }
  return record;
}

static mi_prof_record_t* mi_prof_record_alloc(mi_prof_record_shard_t* shard) {
  mi_prof_record_t* const record = shard->free;
  if (record == NULL) return (mi_prof_record_t*)mi_prof_arena_alloc(&shard->arena, sizeof(mi_prof_record_t));
  shard->free = record->x.next_free;
  return record;
}

static void mi_prof_record_link(mi_prof_record_shard_t* shard, mi_prof_record_t* record, mi_page_t* page) {
  mi_atomic_store_relaxed(&shard->version, mi_atomic_load_relaxed(&shard->version) + 1);
  mi_atomic_store_release(&record->next, mi_atomic_load_relaxed(&page->metadata));
  mi_atomic_store_release(&page->metadata, (uintptr_t)record);
}

// Add a record for a block that was just allocated by the calling thread, which owns the page.
// Returns false if there is no memory, or if the session has ended.
static bool mi_prof_record_add(size_t session, mi_page_t* page, mi_block_t* block, size_t size, double weight, const mi_prof_stack_t* stack) {
  mi_prof_record_shard_t* const shard = mi_prof_record_shard_of(page);
  mi_prof_record_t* record = NULL;
  bool active;
  do {
    mi_lock(&shard->lock) {
      active = (mi_atomic_load_relaxed(&_mi_prof_session) == session);
      record = (active ? mi_prof_record_alloc(shard) : NULL);
      if (record != NULL) {
        record->page = page;
        record->x.stack = stack;
        record->size = size;
        record->weight = weight;
        mi_atomic_store_relaxed(&record->block, (uintptr_t)block);
        mi_prof_record_link(shard, record, page);
        shard->live_count++;
        shard->live_bytes += size;
      }
    }
  } while (record == NULL && active && mi_prof_arena_grow(&shard->arena, &shard->lock, session, sizeof(mi_prof_record_t), 0));
  return (record != NULL);
}

static void mi_prof_record_release(mi_prof_record_shard_t* shard, mi_prof_record_t* record) {
  mi_atomic_store_release(&record->block, (uintptr_t)0);
  record->x.next_free = shard->free;
  shard->free = record;
  shard->live_count--;
  shard->live_bytes -= record->size;
}

// Remove the record of a block, if it has one.
static void mi_prof_record_remove(mi_page_t* page, mi_block_t* block) {
  mi_prof_record_shard_t* const shard = mi_prof_record_shard_of(page);
  mi_lock(&shard->lock) {
    mi_prof_record_t* prev;
    mi_prof_record_t* const record = mi_prof_record_find(page, block, &prev);
    if (record != NULL) {
      mi_atomic_store_release((prev == NULL ? &page->metadata : &prev->next), mi_atomic_load_relaxed(&record->next));
      mi_prof_record_release(shard, record);
    }
  }
}

// Remove all records of a page.
static void mi_prof_record_remove_all(mi_page_t* page) {
  mi_prof_record_shard_t* const shard = mi_prof_record_shard_of(page);
  mi_lock(&shard->lock) {
    mi_prof_record_t* record = mi_prof_page_records(page);
    mi_atomic_store_release(&page->metadata, (uintptr_t)0);
    while (record != NULL) {
      mi_prof_record_t* const next = mi_prof_record_next(record);
      mi_prof_record_release(shard, record);
      record = next;
    }
  }
}

// Give the record of a block, if it has one, another size and weight (0 keeps the weight). Returns its old size, or 0.
static size_t mi_prof_record_update(mi_page_t* page, mi_block_t* block, size_t size, double weight) {
  mi_prof_record_shard_t* const shard = mi_prof_record_shard_of(page);
  size_t old_size = 0;
  mi_lock(&shard->lock) {
    mi_prof_record_t* prev;
    mi_prof_record_t* const record = mi_prof_record_find(page, block, &prev);
    if (record != NULL) {
      old_size = record->size;
      shard->live_bytes += size - old_size;
      record->size = size;
      if (weight != 0.0) { record->weight = weight; }
    }
  }
  return old_size;
}

// Call `visit` for every record of a shard, under its lock; it must not call back.
typedef void (mi_prof_record_visit_fun)(mi_prof_record_t* record, void* arg);

static void mi_prof_record_shard_visit(mi_prof_record_shard_t* shard, mi_prof_record_visit_fun* visit, void* arg) {
  for (mi_prof_chunk_t* chunk = shard->arena.chunks; chunk != NULL; chunk = chunk->next) {
    mi_prof_record_t* record = (mi_prof_record_t*)((uint8_t*)chunk + MI_PROF_CHUNK_HEADER);
    for (; (uint8_t*)record < chunk->top; record++) {
      if (mi_atomic_load_relaxed(&record->block) != 0) { visit(record, arg); }
    }
  }
}

// Take all records of the page of `record` out of use.
static void mi_prof_record_forget(mi_prof_record_t* record, void* arg) {
  MI_UNUSED(arg);
  // the page is alive, as a sampled block in it is; a flag that becomes stale is for the owner to clear
  mi_prof_record_t* next = mi_prof_page_records(record->page);
  mi_atomic_store_release(&record->page->metadata, (uintptr_t)0);
  // from here on frees in it do not wait for our lock, and it may vanish: do not come back to it by another record
  for (; next != NULL; next = mi_prof_record_next(next)) { mi_atomic_store_release(&next->block, (uintptr_t)0); }
}

// End of a session: release all records.
static void mi_prof_record_done(void) {
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_prof_record_shard_t* const shard = &mi_prof_record_shards[i];
    mi_lock(&shard->lock) {
      mi_prof_record_shard_visit(shard, &mi_prof_record_forget, NULL);
      mi_prof_arena_purge(&shard->arena);
      shard->free = NULL;
      shard->live_count = 0;
      shard->live_bytes = 0;
    }
  }
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

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

typedef struct mi_prof_record_s {
  _Atomic(uintptr_t)      block;              // start of the sampled block; 0 if the record is not in use
  _Atomic(uintptr_t)      next;               // next record of the page
  mi_page_t*              page;
  union {
    const mi_prof_stack_t*    stack;
    struct mi_prof_record_s*  next_free;      // if not in use
  } x;
  size_t                  size;               // requested bytes
  size_t                  born;               // seconds, if there is a label for it
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
static mi_prof_result_t mi_prof_record_add(size_t session, mi_page_t* page, mi_block_t* block, const mi_prof_stack_t* stack, size_t size, double weight, size_t born) {
  mi_prof_record_shard_t* const shard = mi_prof_record_shard_of(page);
  while (true) {
    mi_prof_record_t* record = NULL;
    mi_lock(&shard->lock) {
      record = (mi_prof_session_is(session) ? mi_prof_record_alloc(shard) : NULL);
      if (record != NULL) {
        record->page = page;
        record->x.stack = stack;
        record->size = size;
        record->born = born;
        record->weight = weight;
        mi_atomic_store_relaxed(&record->block, (uintptr_t)block);
        mi_prof_record_link(shard, record, page);
        shard->live_count++;
        shard->live_bytes += size;
        mi_prof_count_live(size, weight, 1);
      }
    }
    if (record != NULL) return MI_PROF_OK;
    const mi_prof_result_t grown = mi_prof_arena_grow(&shard->arena, &shard->lock, session, sizeof(mi_prof_record_t), 0);
    if (grown != MI_PROF_OK) return grown;
  }
}

// By how much the estimate (fixed point) falls if a block, or all of the page if that is NULL, gets `size` bytes; 0 to free it.
static int64_t mi_prof_record_loss(mi_page_t* page, const mi_block_t* block, size_t size) {
  mi_prof_record_shard_t* const shard = mi_prof_record_shard_of(page);
  int64_t loss = 0;
  mi_lock(&shard->lock) {
    for (const mi_prof_record_t* record = mi_prof_page_records(page); record != NULL; record = mi_prof_record_next(record)) {
      if (block == NULL || mi_atomic_load_relaxed(&record->block) == (uintptr_t)block) {
        loss += mi_prof_fixed_bytes(record->size, record->weight) - mi_prof_fixed_bytes(size, record->weight);
      }
    }
  }
  return loss;
}

static void mi_prof_record_release(mi_prof_record_shard_t* shard, mi_prof_record_t* record) {
  mi_atomic_store_release(&record->block, (uintptr_t)0);
  record->x.next_free = shard->free;
  shard->free = record;
  shard->live_count--;
  shard->live_bytes -= record->size;
  mi_prof_count_live(record->size, record->weight, -1);
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

// Give the record of a block another size and weight (0 keeps the weight). Returns false if it has none.
static bool mi_prof_record_update(mi_page_t* page, mi_block_t* block, size_t size, double weight, mi_prof_was_t* was) {
  mi_prof_record_shard_t* const shard = mi_prof_record_shard_of(page);
  bool found = false;
  mi_lock(&shard->lock) {
    mi_prof_record_t* prev;
    mi_prof_record_t* const record = mi_prof_record_find(page, block, &prev);
    if (record != NULL) {
      found = true;
      was->stack = record->x.stack;
      was->stack_hash = record->x.stack->hash;
      was->size = record->size;
      was->weight = record->weight;
      shard->live_bytes += size - record->size;
      record->size = size;
      if (weight != 0.0) { record->weight = weight; }
      mi_prof_count_live(was->size, was->weight, -1);
      mi_prof_count_live(record->size, record->weight, 1);
    }
  }
  return found;
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

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef MIMALLOC_PROFILE_HOOKS_H
#define MIMALLOC_PROFILE_HOOKS_H

// Where mimalloc calls the profiler, and all that the profiler knows of mimalloc's own
// structures: the lists, the flags and the metadata word of a page. Included by
// `internal.h`. The rest of the profiler uses only what is declared here.

/* -----------------------------------------------------------
  State
----------------------------------------------------------- */

// Changes whenever all threads must draw anew: as profiling starts, goes on or gets another rate. 0 if nothing is sampled.
// The lowest bit asks for attention: the next thread that comes by has something else to do too.
extern mi_decl_hidden _Atomic(size_t) _mi_prof_epoch;

#define MI_PROF_ATTENTION  ((size_t)1)

static inline bool _mi_prof_is_on(void) {
  return (mi_atomic_load_relaxed(&_mi_prof_epoch) != 0);
}

// What has been decided about the blocks in `page->free` (in `page->prof_state`, written by the owning thread only).
// The invariant: where the fast path of `mi_malloc` can reach a page, its `free` list holds no block that is
// undrawn or to be sampled. So while profiling is on, blocks move from `local_free` to `free` only just before the
// allocation that takes the first of them.
typedef enum mi_prof_page_state_e {
  MI_PROF_UNDRAWN = 0,      // nothing
  MI_PROF_DRAWN   = 1,      // none of them is sampled
  MI_PROF_CUT     = 2,      // none of them is sampled, but the block that is taken after the last one is
  MI_PROF_DUE     = 3       // the first of them is sampled, the others are undrawn
} mi_prof_page_state_t;

/* -----------------------------------------------------------
  Slow paths in `profile.c`
----------------------------------------------------------- */

mi_decl_hidden bool _mi_prof_page_draw(mi_heap_t* heap, mi_page_t* page);
mi_decl_hidden void _mi_prof_page_draw_new(mi_heap_t* heap, mi_page_t* page, size_t count);
mi_decl_hidden void _mi_prof_sample(mi_heap_t* heap, mi_page_t* page, void* p, size_t size);
mi_decl_hidden void* _mi_prof_malloc_aligned(mi_heap_t* heap, size_t size, size_t alignment, size_t offset, bool zero);
mi_decl_hidden void _mi_prof_overallocated(mi_page_t* page, void* p, size_t size);
mi_decl_hidden void _mi_prof_resized(mi_page_t* page, void* p, size_t size);
mi_decl_hidden void _mi_prof_free(mi_page_t* page, mi_block_t* block);
mi_decl_hidden void _mi_prof_page_destroy(mi_page_t* page);
mi_decl_hidden void _mi_prof_out_of_memory(mi_heap_t* heap);
mi_decl_hidden void _mi_prof_process_init(void);
mi_decl_hidden void _mi_prof_process_done(void);

// These may be the outermost function of ours on a stack. A copy that a compiler makes of one would have no known address.
#if defined(__GNUC__) && !defined(__clang__)
#define mi_prof_decl_noclone   __attribute__((noclone))
__typeof__(_mi_malloc_generic)    _mi_malloc_generic mi_prof_decl_noclone;
__typeof__(_mi_heap_realloc_zero) _mi_heap_realloc_zero mi_prof_decl_noclone;
#else
#define mi_prof_decl_noclone
#endif

/* -----------------------------------------------------------
  Heaps
----------------------------------------------------------- */

// Tells a heap from one that was at the same address before.
static inline uintptr_t _mi_prof_heap_cookie(const mi_heap_t* heap) {
  return heap->cookie;
}

/* -----------------------------------------------------------
  Pages
----------------------------------------------------------- */

// Prepend a list of blocks to `local_free`.
static inline void _mi_prof_page_give_back(mi_page_t* page, mi_block_t* list) {
  if (page->local_free != NULL) {
    mi_block_t* tail = list;
    for (mi_block_t* next; (next = mi_block_next(page, tail)) != NULL; ) { tail = next; }
    mi_block_set_next(page, tail, page->local_free);
  }
  page->local_free = list;
}

// An empty `free` list was filled. A sample that is due stays due: it belongs to the next block to be taken.
static inline void _mi_prof_page_refilled(mi_page_t* page) {
  page->prof_state = (page->prof_state >= MI_PROF_CUT ? MI_PROF_DUE : MI_PROF_UNDRAWN);
}

// Move `local_free` to an empty `free` list. Only just before an allocation from this page.
static inline void _mi_prof_page_unpark(mi_page_t* page) {
  if (page->free == NULL && page->local_free != NULL) {
    page->free = page->local_free;
    page->local_free = NULL;
    page->free_is_zero = false;
    _mi_prof_page_refilled(page);
  }
}

// `count` new blocks were put in front of `free`. Only in secure builds is it not empty then. Only just before an
// allocation from this page.
static inline void _mi_prof_page_extended(mi_heap_t* heap, mi_page_t* page, bool was_empty, size_t count) {
  if mi_likely(was_empty) { _mi_prof_page_refilled(page); }
  else if (_mi_prof_is_on()) { _mi_prof_page_draw_new(heap, page, count); }
}

// Forget what was drawn for this page and keep the fast path away from its blocks.
static inline void _mi_prof_page_park(mi_page_t* page) {
  page->prof_state = MI_PROF_UNDRAWN;
  if (page->free != NULL) {
    mi_block_t* const list = page->free;
    page->free = NULL;
    _mi_prof_page_give_back(page, list);
  }
}

// After a forced collect, which must leave all blocks in `free`, or when the page changes its owner.
static inline void _mi_prof_page_repark(mi_page_t* page) {
  if mi_unlikely(_mi_prof_is_on() && page->capacity > 0) { _mi_prof_page_park(page); }
}

// Number of blocks in `free`.
static inline size_t _mi_prof_page_free_count(const mi_page_t* page) {
  if mi_likely(page->local_free == NULL) { return (size_t)(page->capacity - page->used); }
  size_t count = 0;
  for (mi_block_t* block = page->free; block != NULL; block = mi_block_next(page, block)) { count++; }
  return count;
}

// Keep the first `n` blocks in `free` and give the rest back.
static inline void _mi_prof_page_cut(mi_page_t* page, size_t n) {
  mi_block_t* rest = page->free;
  mi_block_t* last = NULL;
  for (size_t i = 0; i < n; i++) {
    last = rest;
    rest = mi_block_next(page, rest);
  }
  mi_assert_internal(rest != NULL);
  if (last == NULL) { page->free = NULL; }
               else { mi_block_set_next(page, last, NULL); }
  _mi_prof_page_give_back(page, rest);
}

/* -----------------------------------------------------------
  Allocation
----------------------------------------------------------- */

// In `_mi_malloc_generic`: is the block that is popped next from `page->free` to be sampled (or attention asked for)? Then
// `_mi_prof_sample` must follow, after the pop.
// Inline is what happens nearly always: all blocks of a refilled list are drawn, and none of them is sampled.
static inline bool _mi_prof_page_is_due(mi_heap_t* heap, mi_page_t* page) {
  const size_t epoch = mi_atomic_load_relaxed(&_mi_prof_epoch);
  if mi_likely(epoch == 0) return false;
  mi_prof_tld_t* const tld = &heap->tld->prof;
  mi_assert_internal(!tld->in_profiler || tld->in_unwinder);
  if mi_likely(tld->epoch == epoch) {
    const unsigned state = page->prof_state;
    if (state == MI_PROF_DRAWN || state == MI_PROF_CUT) return false;
    if (state == MI_PROF_UNDRAWN && page->local_free == NULL) {
      const size_t bytes = (size_t)(page->capacity - page->used) * page->block_size;
      if mi_likely(bytes <= tld->countdown) {
        tld->countdown -= bytes;
        page->prof_state = MI_PROF_DRAWN;
        return false;
      }
    }
  }
  return _mi_prof_page_draw(heap, page);
}

// An aligned allocation takes a small block without further ado if it happens to be aligned, and over-allocates from
// another page if `free` is empty. A sample that is due may not be dodged that way: make the next block available to
// it, and return true if it fits. Otherwise nothing changes.
static inline bool _mi_prof_page_is_due_aligned(mi_page_t* page, size_t alignment, size_t offset) {
  if mi_likely(!_mi_prof_is_on()) return false;
  if (page->free != NULL || page->prof_state != MI_PROF_CUT) return false;
  _mi_page_free_collect(page, false);
  mi_block_t* const next = page->local_free;
  if (next == NULL || (((uintptr_t)next + offset) & (alignment - 1)) != 0) return false;
  _mi_prof_page_unpark(page);
  return true;
}

// The block of `p` is larger than the program asked for, since it was over-allocated to align or guard it.
static inline void _mi_prof_overalloc(void* p, size_t size) {
  mi_page_t* const page = _mi_ptr_page(p);
  if mi_unlikely(page->flags.x.has_metadata) { _mi_prof_overallocated(page, p, size); }
}

/* -----------------------------------------------------------
  Free and resize
----------------------------------------------------------- */

// A local free. The flag may be stale; it belongs to the owner of the page.
static inline void _mi_prof_free_local(mi_page_t* page, mi_block_t* block) {
  if mi_unlikely(page->flags.x.has_metadata) {
    _mi_prof_free(page, block);
    if (mi_atomic_load_acquire(&page->metadata) == 0) { page->flags.x.has_metadata = false; }
  }
}

// A free by another thread, which must not look at the flags. If `block` is sampled, its record was there before the
// program had its pointer.
static inline void _mi_prof_free_mt(mi_page_t* page, mi_block_t* block) {
  if mi_unlikely(mi_atomic_load_acquire(&page->metadata) != 0) { _mi_prof_free(page, block); }
}

// The owner collected blocks that other threads freed: drop a stale flag, so that frees take the fast path again.
static inline void _mi_prof_page_collected(mi_page_t* page) {
  if (page->flags.x.has_metadata && mi_atomic_load_acquire(&page->metadata) == 0) { page->flags.x.has_metadata = false; }
}

// The block of `p` was resized in place.
static inline void _mi_prof_resize(const void* p, size_t size) {
  mi_page_t* const page = _mi_ptr_page((void*)p);
  if mi_unlikely(mi_atomic_load_relaxed(&page->metadata) != 0) { _mi_prof_resized(page, (void*)p, size); }
}

#endif // MIMALLOC_PROFILE_HOOKS_H

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

/* -----------------------------------------------------------
  A fuzzer (libFuzzer) of the allocator with the profiler in it.
  The input is a program of operations on up to three threads, of
  which one runs at a time, except in `op_parallel`. A model of
  what is live says after every operation what must be true; see
  `fuzz-model.h`. `cargo xtask fuzz` builds and runs it.

  Environment:
    MI_PROF_FUZZ_TRACE=1     print each operation, for one input
    MI_PROF_FUZZ_TMP=DIR     where dumps are written (/tmp)
    MI_PROF_FUZZ_PLANT=NAME  commit a fault that must be found, if
                             compiled with -DMI_PROF_FUZZ_PLANT
----------------------------------------------------------- */

#include "static.c"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

// Coverage is to guide the fuzzer through the allocator, not through the model, which would also be slow.
#pragma clang attribute push(__attribute__((no_sanitize("coverage"))), apply_to = function)
#include "../test-profile-decode.h"   // gunzip, pb_*
#include "fuzz-model.h"
#include "fuzz-dump.h"
#include "fuzz-thread.h"
#pragma clang attribute pop

int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

/* -----------------------------------------------------------
  Planted faults
----------------------------------------------------------- */

typedef enum plant_e {
  PLANT_NONE,
  PLANT_RESIZE,     // the model misses a resize in place
  PLANT_FREE,       // a free by another thread is hidden from the profiler
  PLANT_CONTENTS,   // a byte of a live block is changed
  PLANT_CUT         // the fast path is let into a page whose sample is due
} plant_t;

#if defined(MI_PROF_FUZZ_PLANT)
static plant_t planted;

static void plant_init(void) {
  static const char* const names[] = { "none", "resize", "free", "contents", "cut" };
  const char* const name = getenv("MI_PROF_FUZZ_PLANT");
  if (name == NULL) return;
  for (size_t i = 0; i < sizeof(names)/sizeof(names[0]); i++) {
    if (strcmp(name, names[i]) == 0) { planted = (plant_t)i; return; }
  }
  fprintf(stderr, "mi_prof fuzz: there is no fault '%s'\n", name);
  exit(2);
}
#else
static const plant_t planted = PLANT_NONE;
static void plant_init(void) { }
#endif

/* -----------------------------------------------------------
  The input
----------------------------------------------------------- */

static const uint8_t* input;
static const uint8_t* input_end;

static unsigned take(void) {
  return (input < input_end ? *input++ : 0);
}

static size_t take_size(void) {
  static const size_t special[32] = {
    0, 1, 2, 7, 8, 9, 15, 16, 17, 24, 1023, MI_SMALL_SIZE_MAX - 1, MI_SMALL_SIZE_MAX, MI_SMALL_SIZE_MAX + 1, 4095, 4096,
    4097, 8*MI_KiB, 8*MI_KiB + 1, MI_MEDIUM_OBJ_SIZE_MAX - 16, MI_MEDIUM_OBJ_SIZE_MAX - 1, MI_MEDIUM_OBJ_SIZE_MAX, MI_MEDIUM_OBJ_SIZE_MAX + 1,
    512*MI_KiB, 1*MI_MiB, 1*MI_MiB + 1, 4*MI_MiB, MI_LARGE_OBJ_SIZE_MAX - 1, MI_LARGE_OBJ_SIZE_MAX, MI_LARGE_OBJ_SIZE_MAX + 1, 33*MI_MiB, 40*MI_MiB + 3
  };
  const unsigned x = take();
  const size_t low = (x & 31);
  switch (x >> 5) {
    case 0:  return low;
    case 1:  return low * 8;
    case 2:  return low * 40 + 1;
    case 3:  return low * 128;
    case 4:  return low * 520;
    case 5:  return (size_t)3 * (low + 1) * (low + 1);
    case 6:  return low * 8 * MI_KiB;
    default: return special[low];
  }
}

// Upstream takes a guarded block for an overflown one if it leaves a page of slack, is in a full page, and is freed by another thread.
#define GUARDED_MAX  (8*MI_KiB)

static size_t take_alignment(size_t size) {
  const unsigned x = take();
  const unsigned shift = (x < 240 ? x % 14 : x % 27);     // mostly up to a page
  return (size_t)1 << (MI_GUARDED && size <= GUARDED_MAX && shift > 12 ? 12 : shift);
}

// A pointer must stay aligned to a word, and there is no offset to very large alignments.
static size_t take_offset(size_t alignment) {
  return (alignment <= MI_BLOCK_ALIGNMENT_MAX ? take() * sizeof(void*) : 0);
}

// NULL if there is none. Memory of a heap is not for the program.
static block_t* take_block(void) {
  const unsigned low = take();
  const size_t i = low | (take() & 3) << 8;
  if (block_count == 0) return NULL;
  block_t* const b = &blocks[i % block_count];
  return (b->is_heap ? NULL : b);
}

// From nothing to twice the size of a block: often it can be resized in place.
static size_t take_size_near(const block_t* b) {
  const unsigned x = take();
  return (b == NULL ? 0 : b->size * x / 128);
}

// One of the thread's own heaps, or NULL for the default heap.
static mi_heap_t* take_heap(const thread_t* t) {
  const unsigned x = take();
  return (x % 2 == 0 ? NULL : t->heaps[(x >> 1) % MAX_HEAPS]);
}

/* -----------------------------------------------------------
  The profiler's seams
----------------------------------------------------------- */

static unsigned stack_mode;           // how many different stacks there are
static _Atomic(size_t) os_failures;   // so many of the profiler's next requests for memory fail

static size_t fake_backtrace(uintptr_t* frames, size_t max, void* arg) {
  MI_UNUSED(arg);
  const uint64_t x = mi_prof_mix(op_number % (1U << (stack_mode % 8)));
  const size_t depth = (size_t)(x % (max + 1));
  for (size_t i = 0; i < depth; i++) { frames[i] = (uintptr_t)0x400000 + (uintptr_t)(mi_prof_mix(x % 16 + i) % 4096); }
  return depth;
}

static void* fuzz_os_alloc(size_t size, mi_memid_t* memid) {
  size_t left = mi_atomic_load_relaxed(&os_failures);
  while (left > 0) {
    if (mi_atomic_cas_weak_acq_rel(&os_failures, &left, left - 1)) return NULL;
  }
  return _mi_os_alloc(size, memid);
}

static void on_output(const char* message, void* arg) {
  MI_UNUSED(arg);
  if (tracing || strstr(message, "assertion failed") != NULL) { fputs(message, stderr); }
}

static void on_error(int error, void* arg) {
  MI_UNUSED(arg);
  fail("mimalloc reports error %d", error);
}

/* -----------------------------------------------------------
  Allocate
----------------------------------------------------------- */

static void* allocate(mi_heap_t* heap, unsigned kind, size_t size, size_t alignment, size_t offset) {
  #define CALL(name, ...)  (heap == NULL ? mi_##name(__VA_ARGS__) : mi_heap_##name(heap, __VA_ARGS__))
  switch (kind) {
    case 1:  return CALL(zalloc, size);
    case 2:  return CALL(calloc, 3, size / 3);
    case 3:  return CALL(malloc_aligned, size, alignment);
    case 4:  return CALL(malloc_aligned_at, size, alignment, offset);
    case 5:  return CALL(zalloc_aligned, size, alignment);
    case 6:  return (size <= MI_SMALL_SIZE_MAX ? CALL(malloc_small, size) : CALL(malloc, size));
    case 7:  return CALL(realloc, NULL, size);
    case 8:  return (heap == NULL ? mi_new(size) : mi_heap_alloc_new(heap, size));
    default: return CALL(malloc, size);
  }
}

static void plant_cut(const block_t* b) {
  mi_page_t* const page = _mi_ptr_page(b->p);
  if (planted == PLANT_CUT && page->prof_state == MI_PROF_CUT && page->free == NULL) {
    page->free = page->local_free;
    page->local_free = NULL;
  }
}

static void op_malloc(thread_t* t) {
  const unsigned kind = take() % 16;
  mi_heap_t* const heap = take_heap(t);
  size_t size = take_size();
  if (kind == 2) { size -= size % 3; }
  const bool is_aligned = (kind >= 3 && kind <= 5);
  const size_t alignment = (is_aligned ? take_alignment(size) : 1);
  const size_t offset = (kind == 4 ? take_offset(alignment) : 0);
  if (!room_for(size + alignment)) return;
  void* const p = allocate(heap, kind, size, alignment, offset);
  trace("thread %d: malloc kind %u, %zu bytes, alignment %zu at %zu, heap %p: %p", t->number, kind, size, alignment, offset, (void*)heap, p);
  block_t* const b = add_block(p, size, t->number, (heap == NULL ? t->default_heap : heap));
  require(((uintptr_t)p + offset) % alignment == 0, "block %p is not aligned to %zu at %zu", p, alignment, offset);
  if (kind == 1 || kind == 2 || kind == 5) { check_zero(b->p, 0, size); }
  ask_record(b, is_aligned, joined(), joined());
  fill(b, 0);
  plant_cut(b);
}

static void op_malloc_many(thread_t* t) {
  mi_heap_t* const heap = take_heap(t);
  const size_t size = take_size();
  const size_t most = 1 + 2*MI_MiB / (size + 1);
  const size_t wanted = take() % 96;
  const size_t count = (wanted < most ? wanted : most);
  trace("thread %d: malloc %zu times %zu bytes, heap %p", t->number, count, size, (void*)heap);
  for (size_t i = 0; i < count && room_for(size); i++) {
    block_t* const b = add_block(allocate(heap, 0, size, 1, 0), size, t->number, (heap == NULL ? t->default_heap : heap));
    ask_record(b, false, joined(), joined());
    fill(b, 0);
  }
}

/* -----------------------------------------------------------
  Resize
----------------------------------------------------------- */

static void* reallocate(mi_heap_t* heap, unsigned kind, void* p, size_t size, size_t alignment, size_t offset) {
  switch (kind) {
    case 1:  return CALL(rezalloc, p, size);
    case 2:  return CALL(recalloc, p, 1, size);
    case 3:  return CALL(realloc_aligned, p, size, alignment);
    case 4:  return CALL(realloc_aligned_at, p, size, alignment, offset);
    case 5:  return CALL(rezalloc_aligned, p, size, alignment);
    case 6:  return CALL(reallocn, p, size, 1);
    case 7:  return CALL(reallocf, p, size);
    default: return CALL(realloc, p, size);
  }
}

static void resized_in_place(block_t* b, size_t size) {
  live_bytes += size - b->size;
  b->size = size;
  if (planted == PLANT_RESIZE) return;
  b->record_size = (size == 0 ? 1 : size);
}

static void op_realloc(thread_t* t) {
  const unsigned kind = take() % 12;
  mi_heap_t* const heap = take_heap(t);
  block_t* b = take_block();
  const size_t size = (kind % 2 == 0 ? take_size() : take_size_near(b));
  const bool is_aligned = (kind >= 3 && kind <= 5);
  const size_t alignment = (is_aligned ? take_alignment(size) : 1);
  const size_t offset = (kind == 4 ? take_offset(alignment) : 0);
  if (b == NULL || !room_for(size + alignment)) return;
  block_t was = *b;
  check_contents(b, b->size);
  const size_t usable = mi_usable_size(b->p);
  void* const p = reallocate(heap, kind, b->p, size, alignment, offset);
  trace("thread %d: realloc kind %u of %p from %zu to %zu bytes, alignment %zu at %zu, heap %p: %p", t->number, kind, (void*)was.p, was.size, size, alignment, offset, (void*)heap, p);
  require(p != NULL, "no memory to resize to %zu bytes", size);
  if (p == was.p) {
    require(size <= usable, "block %p of %zu bytes was resized in place to %zu", p, usable, size);
    resized_in_place(b, size);
  }
  else {
    remove_block(b);
    b = add_block(p, size, t->number, (heap == NULL ? t->default_heap : heap));
    ask_record(b, (is_aligned && (alignment > sizeof(void*) || offset != 0)), joined(), joined());
    if (kind == 1 || kind == 2 || kind == 5) { check_zero(b->p, usable, size); }
  }
  was.p = b->p;
  check_contents(&was, (was.size < size ? was.size : size));
  fill(b, 0);
}

static void op_expand(thread_t* t) {
  block_t* const b = take_block();
  const size_t size = take_size_near(b);
  if (b == NULL) return;
  check_contents(b, b->size);
  void* const p = mi_expand(b->p, size);
  trace("thread %d: expand %p from %zu to %zu bytes: %p", t->number, (void*)b->p, b->size, size, p);
  if (p == NULL) return;
  require(p == b->p, "expand moved %p to %p", (void*)b->p, p);
  resized_in_place(b, size);
  fill(b, 0);
}

/* -----------------------------------------------------------
  Free
----------------------------------------------------------- */

static void free_block(const thread_t* t, block_t* b, bool with_size) {
  trace("thread %d: free %p of %zu bytes", t->number, (void*)b->p, b->size);
  check_contents(b, b->size);
  if (planted == PLANT_FREE && b->recorded && b->thread != t->number) {
    mi_atomic_store_release(&_mi_ptr_page(b->p)->metadata, (uintptr_t)0);
  }
  if (with_size) { mi_free_size(b->p, b->size); } else { mi_free(b->p); }
  remove_block(b);
}

static void op_free(thread_t* t) {
  block_t* const b = take_block();
  if (b == NULL) return;
  free_block(t, b, (op_number % 4 == 0));
}

static void op_free_many(thread_t* t) {
  const size_t step = 1 + take() % 8;
  size_t count = take();
  for (size_t i = 0; i < block_count && count > 0; i += step, count--) {
    if (!blocks[i].is_heap) { free_block(t, &blocks[i], false); }
  }
}

/* -----------------------------------------------------------
  Heaps
----------------------------------------------------------- */

static void op_heap_new(thread_t* t) {
  mi_heap_t** const slot = &t->heaps[take() % MAX_HEAPS];
  if (*slot != NULL || !room_for(sizeof(mi_heap_t))) return;
  *slot = mi_heap_new();
  trace("thread %d: heap %p", t->number, (void*)*slot);
  block_t* const b = add_block(*slot, sizeof(mi_heap_t), t->number, NULL);
  b->is_heap = true;
  ask_record(b, false, joined(), joined());
}

static void heap_gone(mi_heap_t* heap) {
  for (size_t i = block_count; i-- > 0; ) {
    if (blocks[i].heap == heap) { blocks[i].heap = NULL; }
    if (blocks[i].is_heap && blocks[i].p == (uint8_t*)heap) { remove_block(&blocks[i]); }
  }
}

static void free_all_in(const thread_t* t, const mi_heap_t* heap) {
  for (size_t i = block_count; i-- > 0; ) {
    if (blocks[i].heap == heap && !blocks[i].is_heap) { free_block(t, &blocks[i], false); }
  }
}

// Upstream's count of full pages goes wrong when a heap that has some is deleted, and an assertion notices.
static void heap_avoid_full_pages(const thread_t* t, mi_heap_t* heap) {
  if (MI_DEBUG < 2) return;
  _mi_heap_delayed_free_all(heap);
  if (heap->pages[MI_BIN_FULL].first != NULL) { free_all_in(t, heap); }
  _mi_heap_delayed_free_all(heap);
}

// Upstream lets any heap reclaim what a thread left behind, also one that may be destroyed.
static bool heap_reclaimed(mi_heap_t* heap) {
  for (size_t i = 0; i < block_count; i++) {
    if (blocks[i].thread == ABANDONED && mi_page_heap(_mi_ptr_page(blocks[i].p)) == heap) return true;
  }
  return false;
}

static void heap_end(thread_t* t, mi_heap_t** slot, bool destroy) {
  mi_heap_t* const heap = *slot;
  if (heap == NULL) return;
  if (heap_reclaimed(heap)) { destroy = false; }
  trace("thread %d: %s heap %p", t->number, (destroy ? "destroy" : "delete"), (void*)heap);
  heap_avoid_full_pages(t, heap);
  if (!destroy) { mi_heap_delete(heap); }
  else {
    for (size_t i = block_count; i-- > 0; ) {
      if (blocks[i].heap == heap) { check_contents(&blocks[i], blocks[i].size); }
      if (blocks[i].heap == heap && !MI_GUARDED) { remove_block(&blocks[i]); }    // guarded builds delete instead
    }
    mi_heap_destroy(heap);
  }
  heap_gone(heap);
  if (t->default_heap == heap) { t->default_heap = NULL; }
  *slot = NULL;
}

static void op_heap_end(thread_t* t) {
  const unsigned x = take();
  heap_end(t, &t->heaps[(x >> 1) % MAX_HEAPS], (x % 2 == 0));
}

static void op_heap_default(thread_t* t) {
  t->default_heap = take_heap(t);
  trace("thread %d: default heap %p", t->number, (void*)t->default_heap);
  mi_heap_set_default(t->default_heap != NULL ? t->default_heap : mi_heap_get_backing());
}

static void op_heap_visit(thread_t* t) {
  mi_heap_t* const heap = take_heap(t);
  trace("thread %d: walk heap %p", t->number, (void*)heap);
  check_visit((heap == NULL ? mi_heap_get_backing() : heap), heap, t->number);
}

static void op_collect(thread_t* t) {
  mi_heap_t* const heap = take_heap(t);
  const bool force = (take() % 2 == 0);
  trace("thread %d: collect heap %p%s", t->number, (void*)heap, (force ? ", forced" : ""));
  if (planted == PLANT_CONTENTS && block_count > 0 && blocks[0].size > 0 && !blocks[0].is_heap) { blocks[0].p[0] ^= 1; }
  if (heap == NULL) { mi_collect(force); } else { mi_heap_collect(heap, force); }
}

#if MI_GUARDED
static void op_guard(thread_t* t) {
  const size_t rate = take() % 8;
  trace("thread %d: guard one of %zu allocations", t->number, rate);
  mi_heap_guarded_set_sample_rate(mi_heap_get_default(), rate, 1 + take());
}
#endif

/* -----------------------------------------------------------
  The profiler
----------------------------------------------------------- */

static void op_start(thread_t* t) {
  static const size_t rates[8] = { 1, 1, 1, 16, 64, 512, 4096, 524288 };
  static const long depths[8] = { 32, 4, 0, 1, 128, 32, 4, 2 };
  static const long limits[8] = { 64L*1024*1024, 64L*1024*1024, 0, 0, 64L*1024*1024, 256*1024, 1024*1024, 1 };
  const unsigned x = take();
  const unsigned y = take();
  const size_t rate = rates[x % 8];
  const long limit = limits[(y >> 3) % 8];
  const bool was_on = profiling();
  const size_t session = mi_atomic_load_relaxed(&mi_prof.session);
  const size_t failures = mi_atomic_load_relaxed(&os_failures);
  const bool has_heap = mi_heap_is_initialized(mi_prim_get_default_heap());
  stack_mode = y >> 5;
  mi_prof_set_unwinder((y >= 0xF0 ? NULL : &fake_backtrace), NULL);
  mi_option_set(mi_option_prof_bt_max, depths[y % 8]);
  mi_option_set(mi_option_prof_max_bytes, limit);
  mi_option_set_enabled(mi_option_prof_accum, (x & 0x08) != 0);
  mi_option_set_enabled(mi_option_prof_peak, (x & 0x10) != 0);
  mi_option_set_enabled(mi_option_prof_label_thread, (x & 0x20) != 0);
  mi_option_set_enabled(mi_option_prof_label_age, (x & 0x40) != 0);
  const bool on = mi_prof_start_seeded(rate, 1 + x);
  trace("thread %d: start at rate %zu, depth %ld, limit %ld: %s", t->number, rate, depths[y % 8], limit, (on ? "on" : "off"));
  require(on == profiling(), "start tells a lie");
  require(on || failures > 0, "profiling did not start");
  if (was_on) {
    require(session == mi_atomic_load_relaxed(&mi_prof.session), "start ended a running session");
  }
  else if (on) {
    require(mi_prof_rate() == rate && dropped() == 0, "a new session has old parameters");
    require(joined() || !has_heap, "the thread that starts a session does not take part");
    previous_rate = rate;
    may_drop = ((limit > 0 && limit < 64L*1024*1024) || mi_atomic_load_relaxed(&os_failures) > 0);
  }
}

static void op_stop(thread_t* t) {
  trace("thread %d: stop", t->number);
  mi_prof_stop();
  require(!profiling(), "stop did not stop");
  forget_records();
}

static void op_session(thread_t* t) {
  static const size_t rates[4] = { 1, 16, 512, 4096 };
  const unsigned x = take();
  const size_t rate = rates[(x >> 2) % 4];
  const bool was_on = profiling();
  bool ok = was_on;
  trace("thread %d: change the session (%u)", t->number, x % 4);
  switch (x % 4) {
    case 0: ok = mi_prof_pause(); break;
    case 1: ok = mi_prof_resume(); break;
    case 2: previous_rate = mi_prof_rate(); ok = mi_prof_set_rate(rate); break;
    default: mi_prof_reset(); break;
  }
  require(ok == was_on && profiling() == was_on, "a change of the session failed");
  if (was_on && x % 4 < 2) { require(mi_prof_is_paused() == (x % 4 == 0), "neither paused nor running"); }
}

static unsigned file_dumps;   // in this input

static void op_dump(thread_t* t) {
  const unsigned x = take();
  const bool text = (x % 2 == 0);
  const bool to_file = (x % 16 >= 14 && file_dumps++ == 0);
  trace("thread %d: dump%s%s", t->number, (text ? " as text" : ""), (to_file ? " to a file" : ""));
  if (mi_atomic_load_relaxed(&os_failures) > 0) { may_drop = true; }
  if (to_file) { dump_to_file(text); }
  else if (profiling()) { dump_to_memory(text); }
}

static void op_fail_memory(thread_t* t) {
  const size_t count = take() % 4;
  trace("thread %d: %zu requests for memory will fail", t->number, count);
  mi_atomic_store_relaxed(&os_failures, count);
  if (count > 0) { may_drop = true; }
}

// Look for a pointer or a name in no heap, and ask for a dump that goes nowhere: nothing may change.
static void op_misc(thread_t* t) {
  MI_UNUSED(t);
  mi_prof_ask();
  block_t* const b = take_block();
  if (b == NULL) return;
  require(mi_is_in_heap_region(b->p), "block %p is not ours", (void*)b->p);
  mi_free(NULL);
  mi_prof_debug_stats(NULL, NULL);
}

/* -----------------------------------------------------------
  Threads at the same time. What each is to do is planned before,
  and the model learns of it afterwards.
----------------------------------------------------------- */

#define MAX_PLAN  (64)

typedef enum act_e { ACT_NONE, ACT_DUMP, ACT_STOP, ACT_START, ACT_STATS, ACT_COLLECT, ACT_COUNT } act_t;

typedef struct plan_s {
  uint8_t* frees[MAX_PLAN];
  size_t   free_count;
  void*    mallocs[MAX_PLAN];
  size_t   malloc_count;
  size_t   malloc_size;
  act_t    act;             // after half of the mallocs
  bool     joined;          // before it began
} plan_t;

static plan_t plans[MAX_THREADS];

static void act(act_t what) {
  switch (what) {
    case ACT_DUMP:    dump_concurrently(); break;
    case ACT_STOP:    mi_prof_stop(); break;
    case ACT_START:   (void)mi_prof_start_seeded(1, 7); break;
    case ACT_STATS:   mi_prof_debug_stats(NULL, NULL); break;
    case ACT_COLLECT: mi_collect(true); break;
    default:          break;
  }
}

static void run_plan(thread_t* t) {
  plan_t* const plan = &plans[t->number];
  plan->joined = joined();
  size_t freed = 0;
  for (size_t i = 0; i < plan->malloc_count; i++) {
    if (i == plan->malloc_count/2) { act(plan->act); }
    plan->mallocs[i] = mi_malloc(plan->malloc_size);
    if (freed < plan->free_count) { mi_free(plan->frees[freed++]); }
  }
  while (freed < plan->free_count) { mi_free(plan->frees[freed++]); }
}

static void plan_frees(size_t step, size_t count) {
  for (size_t i = 0; i < block_count && count > 0; i += step, count--) {
    plan_t* const plan = &plans[count % MAX_THREADS];
    if (blocks[i].is_heap || plan->free_count == MAX_PLAN) continue;
    check_contents(&blocks[i], blocks[i].size);
    plan->frees[plan->free_count++] = blocks[i].p;
    remove_block(&blocks[i]);
  }
}

static void op_parallel(void) {
  memset(plans, 0, sizeof(plans));
  const unsigned x = take();
  const act_t what = (act_t)(x % ACT_COUNT);
  plans[(x >> 3) % MAX_THREADS].act = what;
  size_t total = 0;
  for (size_t i = 0; i < MAX_THREADS; i++) {
    plans[i].malloc_size = take_size() % (256*MI_KiB);
    plans[i].malloc_count = 1 + take() % MAX_PLAN;
    total += plans[i].malloc_size * plans[i].malloc_count;
  }
  if (block_count + MAX_THREADS*MAX_PLAN > MAX_BLOCKS || live_bytes + total > MAX_LIVE) return;
  const bool was_on = profiling();
  plan_frees(1 + take() % 4, take());
  trace("in parallel: act %d", (int)what);
  for (size_t i = 0; i < MAX_THREADS; i++) { trace("  thread %zu: malloc %zu of %zu bytes, free %zu", i, plans[i].malloc_count, plans[i].malloc_size, plans[i].free_count); }
  if (what == ACT_START && !was_on) { may_drop = true; }    // the limit is what it was last set to
  for (int i = 1; i < MAX_THREADS; i++) { thread_post(&threads[i], &run_plan); }
  run_plan(&threads[0]);
  for (int i = 1; i < MAX_THREADS; i++) { thread_wait(&threads[i]); }

  if (what == ACT_STOP) { forget_records(); }
  const bool steady = (was_on && what != ACT_STOP);
  const size_t dropped_before = last_dropped;
  for (int k = 0; k < MAX_THREADS; k++) {
    for (size_t i = 0; i < plans[k].malloc_count; i++) {
      block_t* const b = add_block(plans[k].mallocs[i], plans[k].malloc_size, k, threads[k].default_heap);
      last_dropped = dropped_before;    // whichever of them it was
      ask_record(b, false, (steady && plans[k].joined), profiling());
      fill(b, 0);
    }
  }
}

/* -----------------------------------------------------------
  One input
----------------------------------------------------------- */

typedef void (op_fun_t)(thread_t* t);

static op_fun_t* const ops[] = {
  &op_malloc, &op_malloc, &op_malloc, &op_malloc, &op_malloc, &op_malloc, &op_malloc_many, &op_malloc_many, &op_malloc_many,
  &op_realloc, &op_realloc, &op_realloc, &op_realloc, &op_expand, &op_expand,
  &op_free, &op_free, &op_free, &op_free, &op_free_many, &op_free_many,
  &op_heap_new, &op_heap_new, &op_heap_end, &op_heap_default, &op_heap_visit, &op_heap_visit, &op_collect, &op_collect,
  &op_start, &op_start, &op_start, &op_stop, &op_session, &op_dump, &op_dump, &op_fail_memory, &op_misc, &op_misc
  #if MI_GUARDED
  , &op_guard
  #endif
};

#define OP_COUNT     (sizeof(ops)/sizeof(ops[0]))
#define MAX_STARTS   (6)      // of threads, which are slow

static op_fun_t* current_op;

static void run_op(thread_t* t) {
  (*current_op)(t);
  check_pages();
}

static void exit_avoid_full_pages(thread_t* t) {
  for (size_t i = 0; i < MAX_HEAPS; i++) {
    if (t->heaps[i] != NULL) { heap_avoid_full_pages(t, t->heaps[i]); }
  }
}

static void end_thread(thread_t* t) {
  if (!t->running) return;
  trace("thread %d ends", t->number);
  thread_run(t, &exit_avoid_full_pages);
  thread_join(t);
  for (size_t i = 0; i < MAX_HEAPS; i++) {
    if (t->heaps[i] != NULL) { heap_gone(t->heaps[i]); }
    t->heaps[i] = NULL;
  }
  t->default_heap = NULL;
  for (size_t i = 0; i < block_count; i++) {
    if (blocks[i].thread == t->number) { blocks[i].thread = ABANDONED; }
  }
}

static void step(void) {
  op_number++;
  last_dropped = dropped();
  const unsigned x = take();
  const unsigned who = (x >> 6 <= 1 ? 0 : (x >> 6) - 1);
  thread_t* const t = &threads[threads[who].running || thread_starts < MAX_STARTS ? who : 0];
  const unsigned what = x % 64;
  if (what < OP_COUNT) {
    current_op = ops[what];
    thread_run(t, &run_op);
  }
  else if (what < 60 && threads[1].running + threads[2].running + MAX_STARTS - thread_starts >= 2) {
    op_parallel();
  }
  else {
    end_thread(t);
  }
  check_totals();
  if (block_count < 64 || op_number % 8 == 0) { check_records(); }
}

static void free_all(thread_t* t) {
  while (block_count > 0) {
    block_t* const b = &blocks[block_count - 1];
    if (b->is_heap) {
      for (size_t i = 0; i < MAX_HEAPS; i++) {
        if ((uint8_t*)t->heaps[i] == b->p) { heap_end(t, &t->heaps[i], false); break; }
      }
    }
    else {
      free_block(t, b, false);
    }
  }
}

// Nothing is live, so nothing is recorded; and the next input finds the allocator nearly as this one did.
static void finish(void) {
  op_number++;
  for (int i = 1; i < MAX_THREADS; i++) { end_thread(&threads[i]); }
  check_totals();
  check_records();
  free_all(&threads[0]);
  mi_heap_set_default(mi_heap_get_backing());
  threads[0].default_heap = NULL;
  check_totals();
  op_stop(&threads[0]);
  check_totals();
  mi_atomic_store_relaxed(&os_failures, (size_t)0);
  mi_collect(true);
}

int LLVMFuzzerInitialize(int* argc, char*** argv) {
  mi_prof_dump_pattern[0] = 0;      // no dump comes by itself
  MI_UNUSED(argc); MI_UNUSED(argv);
  plant_init();
  tracing = (getenv("MI_PROF_FUZZ_TRACE") != NULL);
  mi_register_output(&on_output, NULL);
  mi_register_error(&on_error, NULL);
  _mi_prof_os_alloc = &fuzz_os_alloc;
  #if MI_GUARDED
  mi_option_set(mi_option_guarded_max, GUARDED_MAX);
  mi_heap_guarded_set_size_bound(mi_heap_get_default(), 0, GUARDED_MAX);
  #endif
  #if defined(__linux__)
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);    // large blocks are touched in few places
  #endif
  for (int i = 0; i < MAX_THREADS; i++) { threads[i].number = i; }
  return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  input = data;
  input_end = data + size;
  op_number = 0;
  thread_starts = 0;
  file_dumps = 0;
  next_id = 0;
  const unsigned options = take();
  mi_option_set(mi_option_abandoned_reclaim_on_free, options & 1);
  mi_option_set(mi_option_purge_delay, ((options & 0x0E) == 0x0E ? 0 : -1));
  if ((options & 0xC0) != 0) { op_start(&threads[0]); }
  while (input < input_end) { step(); }
  finish();
  return 0;
}

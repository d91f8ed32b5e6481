// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef FUZZ_MODEL_H
#define FUZZ_MODEL_H

/* -----------------------------------------------------------
  What must be true: a plain list of the live blocks, with what
  the profiler must have recorded of each. Included after the
  whole library, whose internals it reads.

  Whether an allocation is sampled is the profiler's choice (but
  not at rate 1). It is asked once, just after the allocation;
  from then on the model knows, at every rate, exactly which
  records there are.
----------------------------------------------------------- */

#if !defined(MI_PADDING)
#define MI_PADDING  0
#endif
#if !defined(MI_GUARDED)
#define MI_GUARDED  0
#endif

#define MAX_BLOCKS  (1024)
#define MAX_LIVE    ((size_t)128 << 20)

typedef struct block_s {
  uint8_t*  p;
  size_t    size;           // as requested
  unsigned  id;             // of its contents
  int       thread;         // whose page it is in; ABANDONED if that has ended
  mi_heap_t* heap;          // NULL for the thread's backing heap
  bool      is_heap;        // the memory of a heap: its contents are mimalloc's
  bool      recorded;
  size_t    record_size;
  double    record_weight;
} block_t;

#define ABANDONED  (-1)

static block_t  blocks[MAX_BLOCKS];
static size_t   block_count;
static size_t   live_bytes;
static unsigned next_id;
static size_t   last_dropped;     // samples lost so far in this session
static size_t   previous_rate;    // at which other threads may still sample
static bool     may_drop;         // could memory have run out in this session?

/* -----------------------------------------------------------
  Findings
----------------------------------------------------------- */

static bool     tracing;
static unsigned op_number;

static void print_line(const char* kind, const char* fmt, va_list args) {
  char text[256];
  vsnprintf(text, sizeof(text), fmt, args);
  fprintf(stderr, "mi_prof fuzz: %s %u: %s\n", kind, op_number, text);
}

__attribute__((noreturn, format(printf, 1, 2)))
static void fail(const char* fmt, ...) {
  va_list args;
  va_start(args, fmt);
  print_line("FOUND at operation", fmt, args);
  va_end(args);
  abort();
}

#define require(cond, ...)  do { if (!(cond)) { fail(__VA_ARGS__); } } while (0)

__attribute__((format(printf, 1, 2)))
static void trace(const char* fmt, ...) {
  if (!tracing) return;
  va_list args;
  va_start(args, fmt);
  print_line("operation", fmt, args);
  va_end(args);
}

/* -----------------------------------------------------------
  Contents: all of a small block, and a few places of a large one
----------------------------------------------------------- */

#define DENSE  (512)

static size_t next_place(size_t i, size_t size) {
  if (i + 1 < DENSE || i + DENSE >= size) return i + 1;
  const size_t next = i + (size > 16*4096 ? size/16 : 4096);
  return (next + DENSE < size ? next : size - DENSE);
}

static void fill(block_t* b, size_t from) {
  if (b->is_heap) return;
  for (size_t i = 0; i < b->size; i = next_place(i, b->size)) {
    if (i >= from) { b->p[i] = (uint8_t)(b->id + i); }
  }
}

// Are the first `size` bytes as `fill` left them, when the block had its present size?
static void check_contents(const block_t* b, size_t size) {
  if (b->is_heap) return;
  for (size_t i = 0; i < b->size; i = next_place(i, b->size)) {
    require(i >= size || b->p[i] == (uint8_t)(b->id + i), "block %p of %zu bytes was overwritten at %zu", (void*)b->p, b->size, i);
  }
}

static void check_zero(const uint8_t* p, size_t from, size_t size) {
  for (size_t i = from; i < size; i = next_place(i, size)) {
    require(p[i] == 0, "block %p of %zu bytes is not zero at %zu", (void*)p, size, i);
  }
}

/* -----------------------------------------------------------
  Records
----------------------------------------------------------- */

static bool profiling(void) {
  return mi_prof_is_enabled();
}

static mi_tld_t* own_tld(void) {
  return mi_heap_get_default()->tld;
}

// Does the calling thread sample? Others than the one that starts a session join when they next miss the fast path.
static bool joined(void) {
  const size_t epoch = mi_atomic_load_relaxed(&_mi_prof_epoch);
  return ((epoch & ~MI_PROF_ATTENTION) != 0 && mi_prof_is_current(&own_tld()->prof, epoch));
}

static size_t dropped(void) {
  mi_prof_stats_t stats;
  mi_prof_stats_init(&stats);
  require(mi_prof_stats_get(&stats), "no statistics");
  return (stats.dropped_memory + stats.dropped_limit + stats.dropped_reentry);
}

static mi_block_t* start_of(const block_t* b) {
  return _mi_page_ptr_unalign(_mi_ptr_page(b->p), b->p);
}

// Returns false if there is no record.
static bool find_record(const block_t* b, size_t* size, double* weight) {
  mi_page_t* const page = _mi_ptr_page(b->p);
  bool found = false;
  mi_lock(&mi_prof_record_shard_of(page)->lock) {
    mi_prof_record_t* prev;
    const mi_prof_record_t* const record = mi_prof_record_find(page, start_of(b), &prev);
    if (record != NULL) {
      found = true;
      *size = record->size;
      *weight = record->weight;
    }
  }
  return found;
}

// Padding and guards make a word of a request for nothing, but not where the block is over-allocated to align it.
static size_t size_to_record(size_t size, bool aligned) {
  if (size > 0) return size;
  return (!aligned && (MI_PADDING || MI_GUARDED) ? sizeof(void*) : 1);
}

static bool is_weight(double x, size_t size, size_t rate) {
  const double weight = 1.0 / mi_prof_probability(size, rate);
  return (x > weight*(1 - 1e-9) && x < weight*(1 + 1e-9));
}

// After an allocation: what was recorded? `must` (at rate 1) and `may` there be a record?
static void ask_record(block_t* b, bool aligned, bool must, bool may) {
  const size_t size = size_to_record(b->size, aligned);
  b->recorded = find_record(b, &b->record_size, &b->record_weight);
  require(may || !b->recorded, "block %p was recorded though its thread does not sample", (void*)b->p);
  const size_t now_dropped = dropped();
  if (profiling() && mi_prof_rate() == 1) {
    require(!must || b->recorded || now_dropped != last_dropped, "block %p of %zu bytes was not recorded at rate 1", (void*)b->p, b->size);
  }
  require(now_dropped == last_dropped || may_drop, "a sample was dropped though there is memory");
  last_dropped = now_dropped;
  if (!b->recorded) return;
  require(b->record_size == size, "block %p of %zu bytes was recorded with %zu bytes", (void*)b->p, b->size, b->record_size);
  require(is_weight(b->record_weight, size, mi_prof_rate()) || is_weight(b->record_weight, size, previous_rate),
          "block %p of %zu bytes has weight %g", (void*)b->p, b->size, b->record_weight);
}

static void forget_records(void) {
  for (size_t i = 0; i < block_count; i++) { blocks[i].recorded = false; }
}

/* -----------------------------------------------------------
  Live blocks
----------------------------------------------------------- */

static bool room_for(size_t size) {
  return (block_count < MAX_BLOCKS && live_bytes + size <= MAX_LIVE);
}

static block_t* add_block(void* p, size_t size, int thread, mi_heap_t* heap) {
  require(p != NULL, "no memory for %zu bytes", size);
  uint8_t* const start = (uint8_t*)p;
  const size_t reach = (size == 0 ? 1 : size);
  for (size_t i = 0; i < block_count; i++) {
    const block_t* const b = &blocks[i];
    require(start >= b->p + (b->size == 0 ? 1 : b->size) || b->p >= start + reach, "blocks %p and %p overlap", p, (void*)b->p);
  }
  require(mi_usable_size(p) >= size, "block %p is too small for %zu bytes", p, size);
  block_t* const b = &blocks[block_count++];
  memset(b, 0, sizeof(*b));
  b->p = start;
  b->size = size;
  b->id = next_id++ * 37;
  b->thread = thread;
  b->heap = heap;
  live_bytes += size;
  return b;
}

static void remove_block(block_t* b) {
  live_bytes -= b->size;
  *b = blocks[--block_count];
}

/* -----------------------------------------------------------
  Checks. After every operation, on the thread that ran it.
----------------------------------------------------------- */

static void check_totals(void) {
  size_t count = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < block_count; i++) {
    if (blocks[i].recorded) {
      count++;
      bytes += blocks[i].record_size;
    }
  }
  size_t records, record_bytes;
  mi_prof_debug_stats(&records, &record_bytes);
  require(records == count && record_bytes == bytes, "%zu records of %zu bytes instead of %zu of %zu", records, record_bytes, count, bytes);
  if (!profiling()) {
    require(mi_atomic_load_relaxed(&mi_prof_memory_used) == 0, "profiling is off and keeps memory");
  }
}

// As the totals are right, there are no other records either.
static void check_records(void) {
  for (size_t i = 0; i < block_count; i++) {
    const block_t* const b = &blocks[i];
    size_t size = 0;
    double weight = 0;
    const bool found = find_record(b, &size, &weight);
    require(found == b->recorded, "block %p of %zu bytes has %s record", (void*)b->p, b->size, (found ? "a" : "no"));
    require(!found || (size == b->record_size && weight == b->record_weight), "the record of %p says %zu bytes, weight %g instead of %zu, %g", (void*)b->p, size, weight, b->record_size, b->record_weight);
  }
}

static void check_page(const mi_page_t* page, bool sampling) {
  const bool reachable = (page->free != NULL);
  if (sampling && reachable) {
    require(page->prof_state == MI_PROF_DRAWN || page->prof_state == MI_PROF_CUT, "the fast path reaches blocks in state %u", (unsigned)page->prof_state);
  }
  require(mi_atomic_load_relaxed(&page->metadata) == 0 || page->flags.x.has_metadata, "a page with records has no flag");
}

static void check_pages(void) {
  const bool sampling = joined();
  for (mi_heap_t* heap = own_tld()->heaps; heap != NULL; heap = heap->next) {
    for (size_t i = 0; i <= MI_BIN_FULL; i++) {
      for (const mi_page_t* page = heap->pages[i].first; page != NULL; page = page->next) { check_page(page, sampling); }
    }
  }
}

/* -----------------------------------------------------------
  A walk over a heap sees the blocks of the model, each once
----------------------------------------------------------- */

typedef struct visit_s {
  mi_heap_t* heap;      // NULL for the backing heap
  int        thread;
  size_t     seen;      // blocks that must be there
} visit_t;

static bool visit_block(const mi_heap_t* heap, const mi_heap_area_t* area, void* block, size_t block_size, void* arg) {
  MI_UNUSED(heap); MI_UNUSED(block_size);
  visit_t* const visit = (visit_t*)arg;
  if (block == NULL) return true;
  for (size_t i = 0; i < block_count; i++) {
    const block_t* const b = &blocks[i];
    if (b->p < (uint8_t*)block || b->p >= (uint8_t*)block + area->full_block_size) continue;
    require(b->thread == visit->thread || b->thread == ABANDONED, "block %p is in a heap of another thread", (void*)b->p);
    require(b->heap == visit->heap || b->thread == ABANDONED, "block %p is in another heap", (void*)b->p);
    visit->seen += (b->thread == visit->thread);
    return true;
  }
  fail("a walk sees %p, which is not live", block);
}

static void check_visit(mi_heap_t* walked, mi_heap_t* heap, int thread) {
  visit_t visit = { heap, thread, 0 };
  _mi_heap_delayed_free_all(walked);    // what other threads freed; mimalloc's walk takes it for live until then
  mi_heap_visit_blocks(walked, true, &visit_block, &visit);
  size_t expected = 0;
  for (size_t i = 0; i < block_count; i++) { expected += (blocks[i].heap == heap && blocks[i].thread == thread); }
  require(visit.seen == expected, "a walk sees %zu of %zu blocks", visit.seen, expected);
}

#endif // FUZZ_MODEL_H

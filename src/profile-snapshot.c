// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Snapshots. Records are copied shard by shard, so that no lock
  is held for long; each record is in or out, with its own values.
  Then those with the same stack and size are merged. A snapshot
  has its own memory, outside of the profiler's limit.
----------------------------------------------------------- */

typedef struct mi_prof_block_s {      // memory from the system
  void*             start;
  size_t            size;
  mi_memid_t        memid;
} mi_prof_block_t;

static bool mi_prof_block_alloc(mi_prof_block_t* block, size_t size) {
  block->size = size;
  block->start = _mi_prof_os_alloc(size, &block->memid);
  if (block->start == NULL) return false;
  if (!block->memid.initially_zero) { _mi_memzero(block->start, size); }
  return true;
}

static void mi_prof_block_free(mi_prof_block_t* block) {
  if (block->start == NULL) return;
  _mi_os_free(block->start, block->size, block->memid);
  block->start = NULL;
}

typedef struct mi_prof_copy_s {       // of a record
  const mi_prof_stack_t*  stack;
  size_t                  size;
  double                  weight;
} mi_prof_copy_t;

typedef struct mi_prof_copies_s {
  mi_prof_copy_t*         items;
  size_t                  count;
  size_t                  max;
} mi_prof_copies_t;

static void mi_prof_copy_record(mi_prof_record_t* record, void* arg) {
  mi_prof_copies_t* const copies = (mi_prof_copies_t*)arg;
  if (copies->count < copies->max) {
    mi_prof_copy_t* const copy = &copies->items[copies->count];
    copy->stack = record->x.stack;
    copy->size = record->size;
    copy->weight = record->weight;
  }
  copies->count++;
}

static void mi_prof_copies_sift_down(mi_prof_copy_t* items, size_t root, size_t count) {
  const mi_prof_copy_t item = items[root];
  for (size_t child; (child = 2*root + 1) < count; root = child) {
    if (child + 1 < count && items[child].size < items[child + 1].size) { child++; }
    if (item.size >= items[child].size) break;
    items[root] = items[child];
  }
  items[root] = item;
}

// Heapsort by size: in place, without recursion, and never slow.
static void mi_prof_copies_sort_by_size(mi_prof_copy_t* items, size_t count) {
  for (size_t i = count/2; i > 0; i--) { mi_prof_copies_sift_down(items, i - 1, count); }
  for (size_t n = count; n > 1; n--) {
    const mi_prof_copy_t max = items[0];
    items[0] = items[n - 1];
    items[n - 1] = max;
    mi_prof_copies_sift_down(items, 0, n - 1);
  }
}

// Sort by stack, in the order of first use, and then by size. The result is in `block`.
static mi_prof_copy_t* mi_prof_copies_sort(mi_prof_block_t* block, const mi_prof_copy_t* items, size_t count) {
  size_t stack_count = 0;
  for (size_t i = 0; i < count; i++) {
    if (items[i].stack->id >= stack_count) { stack_count = items[i].stack->id + 1; }
  }
  if (!mi_prof_block_alloc(block, count*sizeof(mi_prof_copy_t) + (stack_count + 1)*sizeof(size_t))) return NULL;
  mi_prof_copy_t* const sorted = (mi_prof_copy_t*)block->start;
  size_t* const start = (size_t*)(sorted + count);      // by stack: where its items go
  for (size_t i = 0; i < count; i++) { start[items[i].stack->id + 1]++; }
  for (size_t s = 0; s < stack_count; s++) { start[s + 1] += start[s]; }
  for (size_t i = 0; i < count; i++) { sorted[start[items[i].stack->id]++] = items[i]; }
  size_t first = 0;                                     // now `start[s]` is where the items of `s` end
  for (size_t s = 0; s < stack_count; s++) {
    mi_prof_copies_sort_by_size(sorted + first, start[s] - first);
    first = start[s];
  }
  return sorted;
}

static size_t mi_prof_live_count(void) {
  size_t count = 0;
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_lock(&mi_prof_record_shards[i].lock) { count += mi_prof_record_shards[i].live_count; }
  }
  return count;
}

// Copy all records. Others may come while we do so: leave room for some, and start again if it was not enough.
static bool mi_prof_copy_records(mi_prof_block_t* block, size_t* count) {
  mi_prof_copies_t copies = { NULL, 0, 0 };
  copies.count = mi_prof_live_count();
  do {
    mi_prof_block_free(block);
    copies.max = copies.count + copies.count/8 + 1024;
    if (!mi_prof_block_alloc(block, copies.max * sizeof(mi_prof_copy_t))) return false;
    copies.items = (mi_prof_copy_t*)block->start;
    copies.count = 0;
    for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
      mi_lock(&mi_prof_record_shards[i].lock) {
        mi_prof_record_shard_visit(&mi_prof_record_shards[i], &mi_prof_copy_record, &copies);
      }
    }
  } while (copies.count > copies.max);
  *count = copies.count;
  return true;
}

// Merge sorted copies into samples, with their own copy of the frames.
static bool mi_prof_merge(mi_prof_block_t* block, mi_prof_snapshot_t* snapshot, const mi_prof_copy_t* copies, size_t count) {
  size_t sample_count = 0;
  size_t frame_count = 0;
  for (size_t i = 0; i < count; i++) {
    const bool new_stack = (i == 0 || copies[i].stack != copies[i-1].stack);
    if (new_stack) { frame_count += copies[i].stack->depth; }
    if (new_stack || copies[i].size != copies[i-1].size) { sample_count++; }
  }
  if (!mi_prof_block_alloc(block, sample_count*sizeof(mi_prof_sample_t) + frame_count*sizeof(uintptr_t) + 1)) return false;
  mi_prof_sample_t* const samples = (mi_prof_sample_t*)block->start;
  uintptr_t* frames = (uintptr_t*)(samples + sample_count);
  mi_prof_sample_t* sample = samples - 1;
  for (size_t i = 0; i < count; i++) {
    const mi_prof_stack_t* const stack = copies[i].stack;
    const bool new_stack = (i == 0 || stack != copies[i-1].stack);
    if (new_stack || copies[i].size != copies[i-1].size) {
      sample++;
      sample->depth = stack->depth;
      sample->size = copies[i].size;
      if (new_stack) {
        sample->frames = frames;
        _mi_memcpy(frames, stack->frames, stack->depth*sizeof(uintptr_t));
        frames += stack->depth;
      }
      else {
        sample->frames = sample[-1].frames;
      }
    }
    sample->count++;
    sample->weight += copies[i].weight;
  }
  snapshot->samples = samples;
  snapshot->sample_count = sample_count;
  return true;
}

// Fill `snapshot` with samples, whose memory is `block`. With the control lock, so that stacks stay.
static bool mi_prof_snapshot_take(mi_prof_snapshot_t* snapshot, mi_prof_block_t* block) {
  mi_prof_block_t copies = { NULL, 0, _mi_memid_none() };
  mi_prof_block_t sorted = { NULL, 0, _mi_memid_none() };
  size_t count;
  bool ok = false;
  if (mi_prof_copy_records(&copies, &count)) {
    const mi_prof_copy_t* const items = mi_prof_copies_sort(&sorted, (mi_prof_copy_t*)copies.start, count);
    ok = (items != NULL && mi_prof_merge(block, snapshot, items, count));
  }
  mi_prof_block_free(&sorted);
  mi_prof_block_free(&copies);
  return ok;
}

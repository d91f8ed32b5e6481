// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  Snapshots. Samples are copied shard by shard, so that no lock
  is held for long; each is in or out, with its own values. Then
  those with the same stack, age and size are merged. A snapshot
  has its own memory, outside of the profiler's limit.
----------------------------------------------------------- */

// A record, or all allocations with one stack in one size class.
typedef struct mi_prof_copy_s {
  const mi_prof_stack_t*  stack;
  size_t                  size;       // requested bytes (on average)
  size_t                  age;        // as in a label
  size_t                  samples;    // allocated; 0 for a record
  double                  objects;
  double                  bytes;
} mi_prof_copy_t;

typedef struct mi_prof_copies_s {
  mi_prof_copy_t*         items;
  size_t                  count;      // may exceed `max`: then not all are there
  size_t                  max;
  size_t                  now;        // for ages, in seconds; 0 if there are none
  mi_prof_copy_t          other;      // allocations without a stack
} mi_prof_copies_t;

#define MI_PROF_COPIES_SPARE  (1024)

static void mi_prof_copies_add(mi_prof_copies_t* copies, const mi_prof_copy_t* copy) {
  if (copies->count < copies->max) { copies->items[copies->count] = *copy; }
  copies->count++;
}

// Rounded down to a power of two.
static size_t mi_prof_age(size_t born, size_t now) {
  if (now <= born) return 0;
  size_t age = 1;
  while (age <= (now - born)/2) { age *= 2; }
  return age;
}

static void mi_prof_copy_record(mi_prof_record_t* record, void* arg) {
  mi_prof_copies_t* const copies = (mi_prof_copies_t*)arg;
  const mi_prof_copy_t copy = {
    record->x.stack, record->size, mi_prof_age(record->born, copies->now), 0, record->weight, record->weight*(double)record->size
  };
  mi_prof_copies_add(copies, &copy);
}

static void mi_prof_copy_allocs(const mi_prof_stack_t* stack, mi_prof_allocs_t* allocs, void* arg) {
  mi_prof_copies_t* const copies = (mi_prof_copies_t*)arg;
  if (stack == &mi_prof_stack_other) {      // there are several of these, and one may take back what another one counted
    copies->other.samples += allocs->samples;
    copies->other.size += allocs->sample_bytes;
    copies->other.objects += allocs->objects;
    copies->other.bytes += allocs->bytes;
  }
  else if (allocs->samples > 0) {
    const mi_prof_copy_t copy = { stack, allocs->sample_bytes/allocs->samples, 0, allocs->samples, allocs->objects, allocs->bytes };
    mi_prof_copies_add(copies, &copy);
  }
}

static void mi_prof_copy_other(mi_prof_copies_t* copies) {
  if (copies->other.samples == 0) return;
  copies->other.stack = &mi_prof_stack_other;
  copies->other.size /= copies->other.samples;
  mi_prof_copies_add(copies, &copies->other);
}

static size_t mi_prof_live_count(void) {
  size_t count = 0;
  for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
    mi_lock(&mi_prof_record_shards[i].lock) { count += mi_prof_record_shards[i].live_count; }
  }
  return count;
}

// Copy all samples. Others may come while we do so: leave room for some, and start again if it was not enough.
static bool mi_prof_copy_all(mi_prof_block_t* block, mi_prof_copies_t* copies, bool has_allocs) {
  copies->count = mi_prof_live_count();
  do {
    mi_prof_block_free(block);
    copies->max = copies->count + copies->count/8 + MI_PROF_COPIES_SPARE;
    if (!mi_prof_block_alloc(block, copies->max * sizeof(mi_prof_copy_t))) return false;
    copies->items = (mi_prof_copy_t*)block->start;
    copies->count = 0;
    _mi_memzero_var(copies->other);
    for (size_t i = 0; i < MI_PROF_SHARDS; i++) {
      mi_lock(&mi_prof_record_shards[i].lock) {
        mi_prof_record_shard_visit(&mi_prof_record_shards[i], &mi_prof_copy_record, copies);
      }
    }
    if (has_allocs) {
      mi_prof_allocs_visit(&mi_prof_copy_allocs, copies);
      mi_prof_copy_other(copies);
    }
  } while (copies->count > copies->max);
  return true;
}

/* -----------------------------------------------------------
  Sort and merge
----------------------------------------------------------- */

// By age, then by size; live ones first.
static bool mi_prof_copy_is_less(const mi_prof_copy_t* a, const mi_prof_copy_t* b) {
  if (a->age != b->age) return (a->age < b->age);
  if (a->size != b->size) return (a->size < b->size);
  return (a->samples == 0 && b->samples != 0);
}

static void mi_prof_copies_sift_down(mi_prof_copy_t* items, size_t root, size_t count) {
  const mi_prof_copy_t item = items[root];
  for (size_t child; (child = 2*root + 1) < count; root = child) {
    if (child + 1 < count && mi_prof_copy_is_less(&items[child], &items[child + 1])) { child++; }
    if (!mi_prof_copy_is_less(&item, &items[child])) break;
    items[root] = items[child];
  }
  items[root] = item;
}

// Heapsort: in place, without recursion, and never slow.
static void mi_prof_copies_sort_stack(mi_prof_copy_t* items, size_t count) {
  for (size_t i = count/2; i > 0; i--) { mi_prof_copies_sift_down(items, i - 1, count); }
  for (size_t n = count; n > 1; n--) {
    const mi_prof_copy_t max = items[0];
    items[0] = items[n - 1];
    items[n - 1] = max;
    mi_prof_copies_sift_down(items, 0, n - 1);
  }
}

// Sort by stack, in the order of first use, and within it. The result is in `block`.
static mi_prof_copy_t* mi_prof_copies_sort(mi_prof_block_t* block, const mi_prof_copies_t* copies) {
  const mi_prof_copy_t* const items = copies->items;
  const size_t count = copies->count;
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
    mi_prof_copies_sort_stack(sorted + first, start[s] - first);
    first = start[s];
  }
  return sorted;
}

// Does item `i` begin a new stack, or only another sample of it?
static bool mi_prof_copy_is_new_stack(const mi_prof_copy_t* items, size_t i) {
  return (i == 0 || items[i].stack != items[i-1].stack);
}

static bool mi_prof_copy_is_new(const mi_prof_copy_t* items, size_t i) {
  return (mi_prof_copy_is_new_stack(items, i) || items[i].age != items[i-1].age || items[i].size != items[i-1].size);
}

// Merge sorted copies into samples, with their own copies of the frames and names.
static bool mi_prof_merge(mi_prof_snapshot_t* snapshot, const mi_prof_copy_t* items, size_t count) {
  size_t sample_count = 0;
  size_t frame_count = 0;
  for (size_t i = 0; i < count; i++) {
    if (mi_prof_copy_is_new_stack(items, i)) { frame_count += items[i].stack->depth; }
    if (mi_prof_copy_is_new(items, i)) { sample_count++; }
  }
  const size_t name_count = (mi_prof_names == NULL ? 0 : mi_prof_names->count);     // all that samples have by now
  if (!mi_prof_block_alloc(&snapshot->sample_block, sample_count*sizeof(mi_prof_sample_t) + frame_count*sizeof(uintptr_t)
                                                    + name_count*sizeof(mi_prof_name_t) + 1)) return false;
  mi_prof_sample_t* const samples = (mi_prof_sample_t*)snapshot->sample_block.start;
  uintptr_t* frames = (uintptr_t*)(samples + sample_count);
  mi_prof_name_t* const names = (mi_prof_name_t*)(frames + frame_count);
  if (name_count > 0) {
    mi_lock(&mi_prof_label_lock) { _mi_memcpy(names, mi_prof_names->names, name_count*sizeof(mi_prof_name_t)); }
  }
  mi_prof_sample_t* sample = samples - 1;
  for (size_t i = 0; i < count; i++) {
    const mi_prof_copy_t* const item = &items[i];
    const mi_prof_stack_t* const stack = item->stack;
    if (mi_prof_copy_is_new(items, i)) {
      sample++;
      sample->depth = stack->depth;
      sample->size = item->size;
      sample->age = item->age;
      sample->thread = (stack->labels.thread == 0 ? NULL : names[stack->labels.thread]);
      sample->heap = (stack->labels.heap == 0 ? NULL : names[stack->labels.heap]);
      if (mi_prof_copy_is_new_stack(items, i)) {
        sample->frames = frames;
        _mi_memcpy(frames, stack->frames, stack->depth*sizeof(uintptr_t));
        frames += stack->depth;
      }
      else {
        sample->frames = sample[-1].frames;
      }
    }
    if (item->samples == 0) {
      sample->inuse_samples++;
      sample->inuse_objects += item->objects;
      sample->inuse_bytes += item->bytes;
    }
    else {
      sample->alloc_samples += item->samples;
      sample->alloc_objects += item->objects;
      sample->alloc_bytes += item->bytes;
    }
  }
  snapshot->samples = samples;
  snapshot->sample_count = sample_count;
  snapshot->names = names;
  snapshot->name_count = name_count;
  return true;
}

// Fill `snapshot`, which is zero, with the samples. With the control lock, so that stacks stay.
static bool mi_prof_snapshot_take(mi_prof_snapshot_t* snapshot) {
  const mi_prof_config_t* const config = &mi_prof.config;
  snapshot->has_allocs = config->accum;
  snapshot->label_bytes = config->label_bytes;
  snapshot->time_nanos = _mi_prof_prim_time_nanos();
  snapshot->duration_nanos = snapshot->time_nanos - mi_prof.start_nanos;
  mi_prof_block_t copied = { NULL, 0, _mi_memid_none() };
  mi_prof_block_t sorted = { NULL, 0, _mi_memid_none() };
  mi_prof_copies_t copies;
  _mi_memzero_var(copies);
  copies.now = (config->label_age ? mi_prof_seconds() : 0);
  bool ok = false;
  if (mi_prof_copy_all(&copied, &copies, config->accum)) {
    const mi_prof_copy_t* const items = mi_prof_copies_sort(&sorted, &copies);
    ok = (items != NULL && mi_prof_merge(snapshot, items, copies.count));
  }
  mi_prof_block_free(&sorted);
  mi_prof_block_free(&copied);
  return ok;
}

// Copy the samples of a snapshot to `clone`, which is zero.
static bool mi_prof_snapshot_clone(mi_prof_snapshot_t* clone, const mi_prof_snapshot_t* snapshot) {
  const mi_prof_block_t* const block = &snapshot->sample_block;
  *clone = *snapshot;
  if (!mi_prof_block_alloc(&clone->sample_block, block->size)) return false;
  _mi_memcpy(clone->sample_block.start, block->start, block->size);
  const ptrdiff_t moved = (const uint8_t*)clone->sample_block.start - (const uint8_t*)block->start;
  mi_prof_sample_t* const samples = (mi_prof_sample_t*)clone->sample_block.start;
  for (size_t i = 0; i < clone->sample_count; i++) {
    mi_prof_sample_t* const sample = &samples[i];
    sample->frames = (const uintptr_t*)((const uint8_t*)sample->frames + moved);
    if (sample->thread != NULL) { sample->thread += moved; }
    if (sample->heap != NULL)   { sample->heap += moved; }
  }
  clone->samples = samples;
  clone->names = (mi_prof_name_t*)((const uint8_t*)snapshot->names + moved);
  return true;
}

static void mi_prof_snapshot_release(mi_prof_snapshot_t* snapshot) {
  mi_prof_block_free(&snapshot->sample_block);
  mi_prof_block_free(&snapshot->module_block);
}

/* -----------------------------------------------------------
  The modules
----------------------------------------------------------- */

#define MI_PROF_MAX_MODULES   (2048)
#define MI_PROF_MAX_NAMES     (512*MI_KiB)

static bool mi_prof_snapshot_add_modules(mi_prof_snapshot_t* snapshot) {
  if (!mi_prof_block_alloc(&snapshot->module_block, MI_PROF_MAX_MODULES*sizeof(mi_prof_module_t) + MI_PROF_MAX_NAMES)) return false;
  mi_prof_module_t* const modules = (mi_prof_module_t*)snapshot->module_block.start;
  snapshot->modules = modules;
  snapshot->module_count = _mi_prof_prim_modules(modules, MI_PROF_MAX_MODULES, (char*)(modules + MI_PROF_MAX_MODULES), MI_PROF_MAX_NAMES);
  return true;
}

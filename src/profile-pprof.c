// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* ----------------------------------------------------------------------------
Writes a snapshot as gzip'd `profile.proto`, the format of pprof. An encoder for
protobuf messages comes first, then a builder that knows what a profile consists of.
A pure function of the snapshot: all memory is scratch memory given by the caller.

Values are estimates of the true amounts already: each record counts with the
weight it was sampled with, so they hold also for blocks that were resized in place.
---------------------------------------------------------------------------- */

#include "profile-deflate.c"
#include "profile-text.c"

/* -----------------------------------------------------------
  Protobuf encoder: one message at a time in a buffer
----------------------------------------------------------- */

#define MI_PROTO_VARINT_MAX   (10)
#define MI_PROTO_MESSAGE_MAX  (1024)

typedef struct mi_proto_s {
  size_t  used;
  uint8_t buf[MI_PROTO_MESSAGE_MAX];
} mi_proto_t;

static inline void mi_proto_varint(mi_proto_t* m, uint64_t x) {
  mi_assert_internal(m->used <= MI_PROTO_MESSAGE_MAX - MI_PROTO_VARINT_MAX);
  for (; x >= 0x80; x >>= 7) { m->buf[m->used++] = (uint8_t)(x | 0x80); }
  m->buf[m->used++] = (uint8_t)x;
}

static inline void mi_proto_tag_varint(mi_proto_t* m, uint32_t field) { mi_proto_varint(m, field << 3); }
static inline void mi_proto_tag_bytes(mi_proto_t* m, uint32_t field)  { mi_proto_varint(m, (field << 3) | 2); }

// A field with the default value 0 is left out.
static inline void mi_proto_uint(mi_proto_t* m, uint32_t field, uint64_t x) {
  if (x != 0) { mi_proto_tag_varint(m, field); mi_proto_varint(m, x); }
}

static void mi_proto_bytes(mi_proto_t* m, uint32_t field, const void* data, size_t size) {
  mi_proto_tag_bytes(m, field);
  mi_proto_varint(m, size);
  mi_assert_internal(m->used + size <= MI_PROTO_MESSAGE_MAX);
  _mi_memcpy(&m->buf[m->used], data, size);
  m->used += size;
}

// A nested message or a packed field of less than 128 bytes, so that its length takes one byte.
static inline size_t mi_proto_begin(mi_proto_t* m, uint32_t field) {
  mi_proto_tag_bytes(m, field);
  return m->used++;
}

static inline void mi_proto_end(mi_proto_t* m, size_t start) {
  mi_assert_internal(m->used - start - 1 < 0x80);
  m->buf[start] = (uint8_t)(m->used - start - 1);
}

/* -----------------------------------------------------------
  profile.proto
----------------------------------------------------------- */

enum {
  MI_PROFILE_SAMPLE_TYPE = 1, MI_PROFILE_SAMPLE, MI_PROFILE_MAPPING, MI_PROFILE_LOCATION, MI_PROFILE_FUNCTION,
  MI_PROFILE_STRING_TABLE, MI_PROFILE_DROP_FRAMES, MI_PROFILE_KEEP_FRAMES, MI_PROFILE_TIME_NANOS,
  MI_PROFILE_DURATION_NANOS, MI_PROFILE_PERIOD_TYPE, MI_PROFILE_PERIOD, MI_PROFILE_COMMENT, MI_PROFILE_DEFAULT_SAMPLE_TYPE
};
enum { MI_VALUE_TYPE_TYPE = 1, MI_VALUE_TYPE_UNIT };
enum { MI_SAMPLE_LOCATION_ID = 1, MI_SAMPLE_VALUE, MI_SAMPLE_LABEL };
enum { MI_LABEL_KEY = 1, MI_LABEL_STR, MI_LABEL_NUM, MI_LABEL_NUM_UNIT };
enum { MI_MAPPING_ID = 1, MI_MAPPING_MEMORY_START, MI_MAPPING_MEMORY_LIMIT, MI_MAPPING_FILE_OFFSET, MI_MAPPING_FILENAME, MI_MAPPING_BUILD_ID };
enum { MI_LOCATION_ID = 1, MI_LOCATION_MAPPING_ID, MI_LOCATION_ADDRESS, MI_LOCATION_LINE };
enum { MI_LINE_FUNCTION_ID = 1 };
enum { MI_FUNCTION_ID = 1, MI_FUNCTION_NAME, MI_FUNCTION_SYSTEM_NAME };

// The strings that every profile has, by their index in the string table.
enum {
  MI_STR_EMPTY, MI_STR_ALLOC_OBJECTS, MI_STR_COUNT, MI_STR_ALLOC_SPACE, MI_STR_BYTES, MI_STR_INUSE_OBJECTS, MI_STR_INUSE_SPACE,
  MI_STR_SPACE, MI_STR_OTHER, MI_STR_TRUNCATED, MI_STR_NO_STACK, MI_STR_THREAD, MI_STR_HEAP, MI_STR_AGE, MI_STR_SECONDS, MI_STR_DROP_FRAMES,
  MI_STR_FIXED_COUNT
};

static const char* const mi_pprof_strings[MI_STR_FIXED_COUNT] = {
  "", "alloc_objects", "count", "alloc_space", "bytes", "inuse_objects", "inuse_space",
  "space", "[other]", "[truncated]", "[no stack]", "thread", "heap", "age", "seconds",
  // The allocator's own functions, should a stack still begin with one. A reader matches whole names, usually without
  // parameters. Other people use the prefix `mi_` too (MyISAM does), so name what allocates.
  "_?mi_\\w*([cmvz]|re|aligned_)alloc\\w*|_?mi_\\w*heap_alloc_new\\w*|_?mi_\\w*memalign|_?mi_\\w*stl_allocator.*"
  "|mi_(heap_)?(strn?|wcs|mbs)dup|mi_w?dupenv_s|mi_(heap_)?realpath|mi_expand|mi_new(_aligned|_n|_nothrow|_aligned_nothrow)?|_?mi_prof_\\w+"
  "|(__libc_)?([cmv]|pv|re)alloc|reallocf|reallocarray|c?free|(posix_)?memalign|aligned_alloc|malloc_zone_\\w+"
  "|operator new(\\[\\])?(\\(.*\\))?|_Zn[aw][jmy].*"
};

enum { MI_FUNCTION_NONE, MI_FUNCTION_OTHER, MI_FUNCTION_TRUNCATED, MI_FUNCTION_NO_STACK };

// The builder; lies at the start of the scratch memory.
typedef struct mi_pprof_s {
  const mi_prof_snapshot_t* snapshot;
  uintptr_t*  addresses;        // unique, ascending; the one at index `i` has location id `i + 1`
  size_t      address_count;
  uint32_t*   slots;            // hash table of location ids, open addressing; 0 is free
  size_t      slot_mask;
  uint32_t*   module_order;     // indices of modules, by ascending start
  bool        has_no_stack;     // does a sample lack a stack?
  size_t      string_count;
  size_t      first_name;       // the string of the first label, after those of the modules
  size_t      stack_size;
  uint8_t     stack[MI_PROF_MAX_FRAMES * 5];   // the packed location ids of the current stack
  mi_proto_t  message;
  mi_gzip_t   gzip;
} mi_pprof_t;

// Write the message in the buffer as a field of the profile.
static void mi_pprof_put_message(mi_pprof_t* b, uint32_t field) {
  uint8_t header[8];
  size_t n = 0;
  header[n++] = (uint8_t)((field << 3) | 2);
  size_t size = b->message.used;
  for (; size >= 0x80; size >>= 7) { header[n++] = (uint8_t)(size | 0x80); }
  header[n++] = (uint8_t)size;
  mi_gzip_write(&b->gzip, header, n);
  mi_gzip_write(&b->gzip, b->message.buf, b->message.used);
  b->message.used = 0;
}

/* -----------------------------------------------------------
  Locations
----------------------------------------------------------- */

static inline bool mi_pprof_is_new_stack(const mi_prof_snapshot_t* snapshot, size_t i) {
  const mi_prof_sample_t* const s = &snapshot->samples[i];
  return (i == 0 || s[-1].frames != s->frames || s[-1].depth != s->depth);
}

static inline size_t mi_pprof_depth(const mi_prof_sample_t* s) {
  mi_assert_internal(s->depth <= MI_PROF_MAX_FRAMES);
  return (s->depth < MI_PROF_MAX_FRAMES ? s->depth : MI_PROF_MAX_FRAMES);
}

// The slot that holds the address, or the free one where it belongs.
static inline uint32_t* mi_pprof_slot(const mi_pprof_t* b, uintptr_t address) {
  size_t i = (size_t)(((uint64_t)address * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & b->slot_mask;
  while (b->slots[i] != 0 && b->addresses[b->slots[i] - 1] != address) { i = (i + 1) & b->slot_mask; }
  return &b->slots[i];
}

static void mi_pprof_sift_down(uintptr_t* a, size_t i, size_t count) {
  const uintptr_t x = a[i];
  for (size_t child; (child = 2*i + 1) < count; i = child) {
    if (child + 1 < count && a[child + 1] > a[child]) { child++; }
    if (a[child] <= x) break;
    a[i] = a[child];
  }
  a[i] = x;
}

// Give each address its id. In ascending order, so that the table of locations compresses well.
static void mi_pprof_collect_locations(mi_pprof_t* b) {
  const mi_prof_snapshot_t* const snapshot = b->snapshot;
  for (size_t i = 0; i < snapshot->sample_count; i++) {
    if (!mi_pprof_is_new_stack(snapshot, i)) continue;
    const mi_prof_sample_t* const s = &snapshot->samples[i];
    if (s->depth == 0) { b->has_no_stack = true; }
    for (size_t k = 0; k < mi_pprof_depth(s); k++) {
      uint32_t* const slot = mi_pprof_slot(b, s->frames[k]);
      if (*slot == 0) {
        b->addresses[b->address_count++] = s->frames[k];
        *slot = (uint32_t)b->address_count;
      }
    }
  }
  uintptr_t* const a = b->addresses;
  for (size_t i = b->address_count / 2; i-- > 0; ) { mi_pprof_sift_down(a, i, b->address_count); }
  for (size_t n = b->address_count; n > 1; ) {
    n--;
    const uintptr_t x = a[n]; a[n] = a[0]; a[0] = x;
    mi_pprof_sift_down(a, 0, n);
  }
  _mi_memzero(b->slots, (b->slot_mask + 1) * sizeof(b->slots[0]));
  for (size_t i = 0; i < b->address_count; i++) { *mi_pprof_slot(b, a[i]) = (uint32_t)(i + 1); }
}

// The function that a frame without an address stands for.
static uint32_t mi_pprof_frame_function(uintptr_t address) {
  if (address == MI_PROF_FRAME_OTHER) return MI_FUNCTION_OTHER;
  return (address == MI_PROF_FRAME_TRUNCATED ? MI_FUNCTION_TRUNCATED : MI_FUNCTION_NONE);
}

static void mi_pprof_put_line(mi_pprof_t* b, uint32_t function) {
  const size_t line = mi_proto_begin(&b->message, MI_LOCATION_LINE);
  mi_proto_uint(&b->message, MI_LINE_FUNCTION_ID, function);
  mi_proto_end(&b->message, line);
}

static void mi_pprof_put_locations(mi_pprof_t* b) {
  const mi_prof_snapshot_t* const snapshot = b->snapshot;
  size_t next = 0;   // in `module_order`: the first module that does not end below the address
  for (size_t i = 0; i < b->address_count && b->gzip.ok; i++) {
    mi_proto_uint(&b->message, MI_LOCATION_ID, i + 1);
    const uint32_t function = mi_pprof_frame_function(b->addresses[i]);
    if (function != MI_FUNCTION_NONE) {
      mi_pprof_put_line(b, function);
    }
    else {
      const uintptr_t pc = (b->addresses[i] > 0 ? b->addresses[i] - 1 : 0);   // inside the call
      while (next < snapshot->module_count && snapshot->modules[b->module_order[next]].end <= pc) { next++; }
      if (next < snapshot->module_count && snapshot->modules[b->module_order[next]].start <= pc) {
        mi_proto_uint(&b->message, MI_LOCATION_MAPPING_ID, b->module_order[next] + 1);
      }
      mi_proto_uint(&b->message, MI_LOCATION_ADDRESS, pc);
    }
    mi_pprof_put_message(b, MI_PROFILE_LOCATION);
  }
  if (b->has_no_stack) {
    mi_proto_uint(&b->message, MI_LOCATION_ID, b->address_count + 1);
    mi_pprof_put_line(b, MI_FUNCTION_NO_STACK);
    mi_pprof_put_message(b, MI_PROFILE_LOCATION);
  }
}

/* -----------------------------------------------------------
  The parts of a profile
----------------------------------------------------------- */

static void mi_pprof_put_value_type(mi_pprof_t* b, uint32_t field, uint32_t type, uint32_t unit) {
  mi_proto_uint(&b->message, MI_VALUE_TYPE_TYPE, type);
  mi_proto_uint(&b->message, MI_VALUE_TYPE_UNIT, unit);
  mi_pprof_put_message(b, field);
}

static uint64_t mi_pprof_round(double x) {
  if (!(x > 0)) return 0;
  return (x < 9.2e18 ? (uint64_t)(x + 0.5) : (uint64_t)INT64_MAX);
}

static void mi_pprof_put_label(mi_pprof_t* b, uint32_t key, uint64_t str, uint64_t num, uint32_t unit) {
  const size_t label = mi_proto_begin(&b->message, MI_SAMPLE_LABEL);
  mi_proto_uint(&b->message, MI_LABEL_KEY, key);
  mi_proto_uint(&b->message, MI_LABEL_STR, str);
  mi_proto_uint(&b->message, MI_LABEL_NUM, num);
  mi_proto_uint(&b->message, MI_LABEL_NUM_UNIT, unit);
  mi_proto_end(&b->message, label);
}

static void mi_pprof_put_name_label(mi_pprof_t* b, uint32_t key, const char* name) {
  if (name == NULL) return;
  const size_t index = (size_t)(name - b->snapshot->names[0])/MI_PROF_NAME_SIZE;
  mi_pprof_put_label(b, key, b->first_name + index, 0, 0);
}

// Can two samples with the same stack be written as one?
static bool mi_pprof_is_same(const mi_prof_snapshot_t* snapshot, const mi_prof_sample_t* s, const mi_prof_sample_t* t) {
  return (s->age == t->age && (!snapshot->label_bytes || mi_prof_size_class(s->size) == mi_prof_size_class(t->size)));
}

static void mi_pprof_put_samples(mi_pprof_t* b) {
  mi_proto_t* const m = &b->message;
  const mi_prof_snapshot_t* const snapshot = b->snapshot;
  for (size_t i = 0; i < snapshot->sample_count && b->gzip.ok; ) {
    const mi_prof_sample_t* const s = &snapshot->samples[i];
    if (mi_pprof_is_new_stack(snapshot, i)) {
      for (size_t k = 0; k < mi_pprof_depth(s); k++) { mi_proto_varint(m, *mi_pprof_slot(b, s->frames[k])); }
      if (s->depth == 0) { mi_proto_varint(m, b->address_count + 1); }
      _mi_memcpy(b->stack, m->buf, m->used);
      b->stack_size = m->used;
      m->used = 0;
    }
    double alloc_objects = 0.0, alloc_bytes = 0.0, inuse_objects = 0.0, inuse_bytes = 0.0;
    do {
      const mi_prof_sample_t* const t = &snapshot->samples[i++];
      alloc_objects += t->alloc_objects;
      alloc_bytes   += t->alloc_bytes;
      inuse_objects += t->inuse_objects;
      inuse_bytes   += t->inuse_bytes;
    } while (i < snapshot->sample_count && !mi_pprof_is_new_stack(snapshot, i) && mi_pprof_is_same(snapshot, s, &snapshot->samples[i]));
    mi_proto_bytes(m, MI_SAMPLE_LOCATION_ID, b->stack, b->stack_size);
    const size_t values = mi_proto_begin(m, MI_SAMPLE_VALUE);
    mi_proto_varint(m, mi_pprof_round(alloc_objects));
    mi_proto_varint(m, mi_pprof_round(alloc_bytes));
    mi_proto_varint(m, mi_pprof_round(inuse_objects));
    mi_proto_varint(m, mi_pprof_round(inuse_bytes));
    mi_proto_end(m, values);
    mi_pprof_put_name_label(b, MI_STR_THREAD, s->thread);
    mi_pprof_put_name_label(b, MI_STR_HEAP, s->heap);
    if (s->age > 0)            { mi_pprof_put_label(b, MI_STR_AGE, 0, s->age, MI_STR_SECONDS); }
    if (snapshot->label_bytes) { mi_pprof_put_label(b, MI_STR_BYTES, 0, mi_prof_size_class(s->size), MI_STR_BYTES); }
    mi_pprof_put_message(b, MI_PROFILE_SAMPLE);
  }
}

static void mi_pprof_put_mappings(mi_pprof_t* b) {
  for (size_t i = 0; i < b->snapshot->module_count; i++) {
    const mi_prof_module_t* const module = &b->snapshot->modules[i];
    mi_proto_uint(&b->message, MI_MAPPING_ID, i + 1);
    mi_proto_uint(&b->message, MI_MAPPING_MEMORY_START, module->start);
    mi_proto_uint(&b->message, MI_MAPPING_MEMORY_LIMIT, module->end);
    mi_proto_uint(&b->message, MI_MAPPING_FILE_OFFSET, module->offset);
    mi_proto_uint(&b->message, MI_MAPPING_FILENAME, b->string_count++);
    if (module->build_id_size > 0) { mi_proto_uint(&b->message, MI_MAPPING_BUILD_ID, b->string_count++); }
    mi_pprof_put_message(b, MI_PROFILE_MAPPING);
  }
}

static void mi_pprof_put_function(mi_pprof_t* b, uint32_t id, uint32_t name) {
  mi_proto_uint(&b->message, MI_FUNCTION_ID, id);
  mi_proto_uint(&b->message, MI_FUNCTION_NAME, name);
  mi_proto_uint(&b->message, MI_FUNCTION_SYSTEM_NAME, name);
  mi_pprof_put_message(b, MI_PROFILE_FUNCTION);
}

static void mi_pprof_put_functions(mi_pprof_t* b) {
  if (*mi_pprof_slot(b, MI_PROF_FRAME_OTHER) != 0) {
    mi_pprof_put_function(b, MI_FUNCTION_OTHER, MI_STR_OTHER);
  }
  if (*mi_pprof_slot(b, MI_PROF_FRAME_TRUNCATED) != 0) {
    mi_pprof_put_function(b, MI_FUNCTION_TRUNCATED, MI_STR_TRUNCATED);
  }
  if (b->has_no_stack) {
    mi_pprof_put_function(b, MI_FUNCTION_NO_STACK, MI_STR_NO_STACK);
  }
}

/* -----------------------------------------------------------
  Strings. The order here is the numbering of `mi_pprof_put_mappings`.
----------------------------------------------------------- */

// The length of the UTF-8 sequence at `p`, or 0 if it is not valid.
static size_t mi_utf8_length(const char* s) {
  const uint8_t* const p = (const uint8_t*)s;
  if (p[0] < 0x80) return 1;
  const size_t n = (p[0] < 0xC2 ? 0 : (p[0] < 0xE0 ? 2 : (p[0] < 0xF0 ? 3 : (p[0] < 0xF5 ? 4 : 0))));
  for (size_t i = 1; i < n; i++) {
    if ((p[i] & 0xC0) != 0x80) return 0;
  }
  if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F)) return 0;   // overlong, surrogate
  if ((p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F)) return 0;   // overlong, too large
  return n;
}

// Strict readers reject a profile with a string that is not UTF-8, but a path may be any bytes: replace those.
static void mi_pprof_put_string(mi_pprof_t* b, const char* s) {
  const size_t size = _mi_strlen(s);
  mi_proto_tag_bytes(&b->message, MI_PROFILE_STRING_TABLE);
  mi_proto_varint(&b->message, size);
  mi_gzip_write(&b->gzip, b->message.buf, b->message.used);
  b->message.used = 0;
  size_t done = 0;
  for (size_t i = 0; i < size; ) {
    const size_t n = mi_utf8_length(s + i);
    if (n == 0) {
      mi_gzip_write(&b->gzip, s + done, i - done);
      mi_gzip_write(&b->gzip, "?", 1);
      done = i + 1;
    }
    i += (n == 0 ? 1 : n);
  }
  mi_gzip_write(&b->gzip, s + done, size - done);
}

static void mi_pprof_put_strings(mi_pprof_t* b) {
  for (size_t i = 0; i < MI_STR_FIXED_COUNT; i++) { mi_pprof_put_string(b, mi_pprof_strings[i]); }
  for (size_t i = 0; i < b->snapshot->module_count; i++) {
    const mi_prof_module_t* const module = &b->snapshot->modules[i];
    mi_assert_internal(module->build_id_size <= MI_PROF_BUILD_ID_MAX);
    mi_pprof_put_string(b, module->path);
    if (module->build_id_size > 0) {
      char hex[2*MI_PROF_BUILD_ID_MAX + 1];
      char* p = hex;
      for (size_t k = 0; k < module->build_id_size; k++) { p = mi_fmt_hex(p, module->build_id[k], 2); }
      *p = 0;
      mi_pprof_put_string(b, hex);
    }
  }
  for (size_t i = 0; i < b->snapshot->name_count; i++) {
    mi_pprof_put_string(b, b->snapshot->names[i]);
    b->string_count++;
  }
}

// Comments come after all other strings.
static void mi_pprof_put_comment(mi_pprof_t* b, const char* s) {
  mi_pprof_put_string(b, s);
  mi_proto_uint(&b->message, MI_PROFILE_COMMENT, b->string_count++);
  mi_gzip_write(&b->gzip, b->message.buf, b->message.used);
  b->message.used = 0;
}

static void mi_pprof_put_comment_of(mi_pprof_t* b, const char* what, uint64_t x, const char* unit) {
  char line[128];
  *mi_fmt_str(mi_fmt_dec(mi_fmt_str(line, what), x), unit) = 0;
  mi_pprof_put_comment(b, line);
}

static void mi_pprof_put_comments(mi_pprof_t* b) {
  const mi_prof_stats_t* const stats = &b->snapshot->stats;
  char line[128];
  *mi_fmt_version(line) = 0;
  mi_pprof_put_comment(b, line);
  mi_pprof_put_comment_of(b, "sample rate: ", stats->sample_rate, " bytes");
  for (size_t i = 0; i < MI_LOSS_COUNT; i++) {
    if (mi_fmt_loss(line, stats, i)) { mi_pprof_put_comment(b, line); }
  }
  mi_pprof_put_comment_of(b, "committed by the allocator: ", stats->committed_bytes, " bytes");
  if (stats->rss_bytes > 0) { mi_pprof_put_comment_of(b, "resident memory of the process: ", stats->rss_bytes, " bytes"); }
}

/* -----------------------------------------------------------
  Write a profile
----------------------------------------------------------- */

// Lay out the scratch memory; `b` is NULL to ask for its size only.
static size_t mi_pprof_layout(mi_pprof_t* b, const mi_prof_snapshot_t* snapshot) {
  size_t frames = 0;    // at most so many locations
  for (size_t i = 0; i < snapshot->sample_count; i++) {
    if (mi_pprof_is_new_stack(snapshot, i)) { frames += mi_pprof_depth(&snapshot->samples[i]); }
  }
  size_t slots = 64;
  while (slots - slots/4 < frames) { slots *= 2; }
  const size_t addresses_at = _mi_align_up(sizeof(mi_pprof_t), 64);
  const size_t slots_at = addresses_at + frames * sizeof(uintptr_t);
  const size_t order_at = slots_at + slots * sizeof(uint32_t);
  if (b != NULL) {
    b->snapshot = snapshot;
    b->addresses = (uintptr_t*)((uint8_t*)b + addresses_at);
    b->slots = (uint32_t*)((uint8_t*)b + slots_at);
    b->slot_mask = slots - 1;
    b->module_order = (uint32_t*)((uint8_t*)b + order_at);
  }
  return order_at + snapshot->module_count * sizeof(uint32_t);
}

static void mi_pprof_order_modules(mi_pprof_t* b) {
  const mi_prof_module_t* const modules = b->snapshot->modules;
  for (size_t i = 0; i < b->snapshot->module_count; i++) {   // linear, as only the main executable is out of order
    size_t j = i;
    for (; j > 0 && modules[b->module_order[j-1]].start > modules[i].start; j--) { b->module_order[j] = b->module_order[j-1]; }
    b->module_order[j] = (uint32_t)i;
  }
}

size_t _mi_prof_pprof_scratch_size(const mi_prof_snapshot_t* snapshot) {
  return mi_pprof_layout(NULL, snapshot);
}

bool _mi_prof_write_pprof(const mi_prof_snapshot_t* snapshot, void* scratch, mi_prof_write_fun* write, void* arg) {
  mi_assert_internal(_mi_is_aligned(scratch, 16));
  mi_pprof_t* const b = (mi_pprof_t*)scratch;
  mi_pprof_layout(b, snapshot);
  mi_pprof_order_modules(b);
  mi_pprof_collect_locations(b);
  b->string_count = MI_STR_FIXED_COUNT;
  b->first_name = MI_STR_FIXED_COUNT;
  for (size_t i = 0; i < snapshot->module_count; i++) { b->first_name += (snapshot->modules[i].build_id_size > 0 ? 2 : 1); }
  mi_gzip_init(&b->gzip, write, arg);
  mi_pprof_put_value_type(b, MI_PROFILE_SAMPLE_TYPE, MI_STR_ALLOC_OBJECTS, MI_STR_COUNT);
  mi_pprof_put_value_type(b, MI_PROFILE_SAMPLE_TYPE, MI_STR_ALLOC_SPACE, MI_STR_BYTES);
  mi_pprof_put_value_type(b, MI_PROFILE_SAMPLE_TYPE, MI_STR_INUSE_OBJECTS, MI_STR_COUNT);
  mi_pprof_put_value_type(b, MI_PROFILE_SAMPLE_TYPE, MI_STR_INUSE_SPACE, MI_STR_BYTES);
  mi_pprof_put_samples(b);
  mi_pprof_put_mappings(b);
  mi_pprof_put_locations(b);
  mi_pprof_put_functions(b);
  mi_pprof_put_strings(b);
  mi_pprof_put_comments(b);
  mi_pprof_put_value_type(b, MI_PROFILE_PERIOD_TYPE, MI_STR_SPACE, MI_STR_BYTES);
  mi_proto_uint(&b->message, MI_PROFILE_DROP_FRAMES, MI_STR_DROP_FRAMES);
  mi_proto_uint(&b->message, MI_PROFILE_TIME_NANOS, (uint64_t)snapshot->time_nanos);
  mi_proto_uint(&b->message, MI_PROFILE_DURATION_NANOS, (uint64_t)snapshot->duration_nanos);
  mi_proto_uint(&b->message, MI_PROFILE_PERIOD, snapshot->stats.sample_rate);
  mi_proto_uint(&b->message, MI_PROFILE_DEFAULT_SAMPLE_TYPE, (snapshot->kind == MI_PROF_KIND_ALLOCS ? MI_STR_ALLOC_SPACE : MI_STR_INUSE_SPACE));
  mi_gzip_write(&b->gzip, b->message.buf, b->message.used);
  return mi_gzip_finish(&b->gzip);
}

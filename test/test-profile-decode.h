// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

#pragma once
#ifndef TEST_PROFILE_DECODE_H
#define TEST_PROFILE_DECODE_H

/* ----------------------------------------------------------------------------
Reads what the profiler writes: a decompressor for gzip and a decoder for
profile.proto, both strict. They share nothing with the code under test.
---------------------------------------------------------------------------- */

#include "test-profile.h"
#include "../src/profile-internal.h"

static void* zalloc_or_exit(size_t size) {
  void* const p = calloc(1, size + 1);
  if (p == NULL) { fprintf(stderr, "out of memory\n"); exit(2); }
  return p;
}

// Deterministic pseudo random numbers.
static uint64_t rnd_state = UINT64_C(0x9E3779B97F4A7C15);
test_fun uint32_t rnd(void) {
  rnd_state ^= rnd_state >> 12; rnd_state ^= rnd_state << 25; rnd_state ^= rnd_state >> 27;
  return (uint32_t)((rnd_state * UINT64_C(0x2545F4914F6CDD1D)) >> 32);
}

/* -----------------------------------------------------------
  A sink that grows, and that can be told to fail
----------------------------------------------------------- */

typedef struct sink_s {
  uint8_t* data;
  size_t   size;
  size_t   capacity;
  size_t   calls;
  size_t   smallest;            // of all calls but the last
  size_t   last;
  size_t   fail_at;             // the call that fails, from 1; 0 if none
} sink_t;

test_fun bool sink_write(const void* data, size_t size, void* arg) {
  sink_t* const s = (sink_t*)arg;
  s->calls++;
  if (s->calls == s->fail_at) return false;
  if (s->size + size > s->capacity) {
    s->capacity = 2*(s->size + size);
    s->data = (uint8_t*)realloc(s->data, s->capacity);
    if (s->data == NULL) { fprintf(stderr, "out of memory\n"); exit(2); }
  }
  memcpy(s->data + s->size, data, size);
  s->size += size;
  if (s->calls > 1 && (s->smallest == 0 || s->last < s->smallest)) { s->smallest = s->last; }
  s->last = size;
  return true;
}

/* -----------------------------------------------------------
  A small decompressor. It shares nothing with the compressor,
  and takes only what is exactly right.
----------------------------------------------------------- */

typedef struct inflate_s {
  const uint8_t* in;
  size_t   in_size;
  size_t   bit;                 // position
  bool     ok;
  uint8_t* out;
  size_t   out_size;
  size_t   out_capacity;
  size_t   blocks[3];           // stored, fixed, dynamic
} inflate_t;

static unsigned inf_bits(inflate_t* s, int count) {
  unsigned x = 0;
  for (int i = 0; i < count; i++, s->bit++) {
    if (s->bit/8 >= s->in_size) { s->ok = false; return 0; }
    x |= (unsigned)((s->in[s->bit/8] >> (s->bit%8)) & 1) << i;
  }
  return x;
}

static void inf_out(inflate_t* s, uint8_t c) {
  if (s->out_size >= s->out_capacity) { s->ok = false; return; }
  s->out[s->out_size++] = c;
}

typedef struct inf_code_s {
  int count[16];                // codes per length
  int symbol[288];              // in the order of their codes
} inf_code_t;

// Returns false unless the code is complete.
static bool inf_code(inf_code_t* c, const uint8_t* lens, int n) {
  int offset[16];
  int left = 1;
  memset(c, 0, sizeof(*c));
  for (int i = 0; i < n; i++) { c->count[lens[i]]++; }
  c->count[0] = 0;
  offset[0] = 0;
  for (int len = 1; len < 16; len++) {
    left = 2*left - c->count[len];
    if (left < 0) return false;
    offset[len] = offset[len-1] + c->count[len-1];
  }
  for (int i = 0; i < n; i++) {
    if (lens[i] != 0) { c->symbol[offset[lens[i]]++] = i; }
  }
  return (left == 0);
}

static int inf_symbol(inflate_t* s, const inf_code_t* c) {
  int code = 0;
  int first = 0;
  int index = 0;
  for (int len = 1; len < 16 && s->ok; len++) {
    code |= (int)inf_bits(s, 1);
    if (code - first < c->count[len]) return c->symbol[index + (code - first)];
    index += c->count[len];
    first = (first + c->count[len]) * 2;
    code *= 2;
  }
  s->ok = false;
  return 256;
}

static void inf_tokens(inflate_t* s, const inf_code_t* lit, const inf_code_t* dist) {
  static const int len_base[29]   = { 3,4,5,6,7,8,9,10,11,13,15,17,19,23,27,31,35,43,51,59,67,83,99,115,131,163,195,227,258 };
  static const int len_extra[29]  = { 0,0,0,0,0,0,0,0,1,1,1,1,2,2,2,2,3,3,3,3,4,4,4,4,5,5,5,5,0 };
  static const int dist_base[30]  = { 1,2,3,4,5,7,9,13,17,25,33,49,65,97,129,193,257,385,513,769,1025,1537,2049,3073,4097,6145,8193,12289,16385,24577 };
  static const int dist_extra[30] = { 0,0,0,0,1,1,2,2,3,3,4,4,5,5,6,6,7,7,8,8,9,9,10,10,11,11,12,12,13,13 };
  while (s->ok) {
    const int sym = inf_symbol(s, lit);
    if (sym == 256) return;
    if (sym < 256) { inf_out(s, (uint8_t)sym); continue; }
    if (sym > 285) { s->ok = false; return; }
    int len = len_base[sym - 257] + (int)inf_bits(s, len_extra[sym - 257]);
    const int d = inf_symbol(s, dist);
    if (!s->ok || d > 29) { s->ok = false; return; }
    const size_t back = (size_t)dist_base[d] + inf_bits(s, dist_extra[d]);
    if (back > s->out_size || back > 32768) { s->ok = false; return; }
    for (; len > 0 && s->ok; len--) { inf_out(s, s->out[s->out_size - back]); }
  }
}

static void inf_dynamic(inflate_t* s) {
  static const uint8_t order[19] = { 16,17,18,0,8,7,9,6,10,5,11,4,12,3,13,2,14,1,15 };
  const int lits  = (int)inf_bits(s, 5) + 257;
  const int dists = (int)inf_bits(s, 5) + 1;
  const int pres  = (int)inf_bits(s, 4) + 4;
  uint8_t lens[320] = { 0 };
  inf_code_t lit, dist;
  for (int i = 0; i < pres; i++) { lens[order[i]] = (uint8_t)inf_bits(s, 3); }
  if (lits > 286 || dists > 30 || !inf_code(&lit, lens, 19)) { s->ok = false; return; }
  const inf_code_t pre = lit;
  memset(lens, 0, sizeof(lens));
  for (int i = 0; i < lits + dists && s->ok; ) {
    const int sym = inf_symbol(s, &pre);
    uint8_t value = (uint8_t)sym;
    int repeat = 1;
    if (sym == 16) {
      if (i == 0) { s->ok = false; return; }
      value = lens[i-1];
      repeat = 3 + (int)inf_bits(s, 2);
    }
    else if (sym == 17) { value = 0; repeat = 3 + (int)inf_bits(s, 3); }
    else if (sym == 18) { value = 0; repeat = 11 + (int)inf_bits(s, 7); }
    if (i + repeat > lits + dists) { s->ok = false; return; }
    for (; repeat > 0; repeat--) { lens[i++] = value; }
  }
  if (!s->ok || !inf_code(&lit, lens, lits) || !inf_code(&dist, lens + lits, dists)) { s->ok = false; return; }
  inf_tokens(s, &lit, &dist);
}

static void inf_stored(inflate_t* s) {
  s->bit = (s->bit + 7)/8*8;
  const unsigned len = inf_bits(s, 16);
  const unsigned complement = inf_bits(s, 16);
  if ((len ^ complement) != 0xFFFF) { s->ok = false; return; }
  for (unsigned i = 0; i < len && s->ok; i++) { inf_out(s, (uint8_t)inf_bits(s, 8)); }
}

static void inf_fixed(inflate_t* s) {
  uint8_t lens[288];
  inf_code_t lit, dist;
  for (int i = 0; i < 288; i++) { lens[i] = (uint8_t)(i < 144 ? 8 : (i < 256 ? 9 : (i < 280 ? 7 : 8))); }
  (void)inf_code(&lit, lens, 288);
  for (int i = 0; i < 32; i++) { lens[i] = 5; }
  (void)inf_code(&dist, lens, 32);
  inf_tokens(s, &lit, &dist);
}

static uint32_t slow_crc32(const uint8_t* p, size_t n) {
  uint32_t crc = 0xFFFFFFFFU;
  for (size_t i = 0; i < n; i++) {
    for (int k = 0; k < 8; k++) {
      const uint32_t bit = ((uint32_t)(p[i] >> k) ^ crc) & 1;
      crc = (crc >> 1) ^ (bit != 0 ? 0xEDB88320U : 0);
    }
  }
  return ~crc;
}

// Decompress a gzip file of at most `max` bytes; returns false if anything is wrong with it. Free `s->out` always.
static bool gunzip(inflate_t* s, const uint8_t* in, size_t in_size, size_t max) {
  static const uint8_t header[10] = { 0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255 };
  memset(s, 0, sizeof(*s));
  s->out = (uint8_t*)zalloc_or_exit(max);
  s->out_capacity = max;
  if (in_size < 18 || memcmp(in, header, sizeof(header)) != 0) return false;
  s->in = in;
  s->in_size = in_size;
  s->bit = 8*sizeof(header);
  s->ok = true;
  for (bool last = false; !last && s->ok; ) {
    last = (inf_bits(s, 1) != 0);
    const unsigned kind = inf_bits(s, 2);
    if (kind == 3) return false;
    s->blocks[kind]++;
    if (kind == 0) { inf_stored(s); }
    else if (kind == 1) { inf_fixed(s); }
    else { inf_dynamic(s); }
  }
  while (s->bit % 8 != 0) {
    if (inf_bits(s, 1) != 0) return false;     // the padding is zero
  }
  uint32_t crc = inf_bits(s, 16);  crc  |= (uint32_t)inf_bits(s, 16) << 16;
  uint32_t size = inf_bits(s, 16); size |= (uint32_t)inf_bits(s, 16) << 16;
  return (s->ok && s->bit == 8*in_size && size == (uint32_t)s->out_size && crc == slow_crc32(s->out, s->out_size));
}

/* -----------------------------------------------------------
  A small decoder for profile.proto, by the numbers of the .proto file
----------------------------------------------------------- */

typedef struct pb_s {
  const uint8_t* p;
  const uint8_t* end;
  bool           ok;
  // current field
  unsigned       field;
  uint64_t       value;         // varint, or size of `data`
  const uint8_t* data;          // NULL for a varint
} pb_t;

static pb_t pb_open(const uint8_t* data, size_t size) {
  pb_t pb;
  memset(&pb, 0, sizeof(pb));
  pb.p = data;
  pb.end = (data == NULL ? NULL : data + size);
  pb.ok = (data != NULL);
  return pb;
}

static uint64_t pb_varint(pb_t* pb) {
  uint64_t x = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (pb->p >= pb->end) break;
    const uint8_t c = *pb->p++;
    x |= (uint64_t)(c & 0x7F) << shift;
    if (c < 0x80) return x;
  }
  pb->ok = false;
  return 0;
}

static bool pb_next(pb_t* pb) {
  if (!pb->ok || pb->p >= pb->end) return false;
  const uint64_t tag = pb_varint(pb);
  pb->field = (unsigned)(tag >> 3);
  pb->data = NULL;
  pb->value = pb_varint(pb);
  if ((tag & 7) == 2) {
    if (pb->value > (uint64_t)(pb->end - pb->p)) { pb->ok = false; return false; }
    pb->data = pb->p;
    pb->p += pb->value;
  }
  else if ((tag & 7) != 0) {
    pb->ok = false;
  }
  return pb->ok;
}

enum { max_items = 64 };
typedef struct dec_label_s    { uint64_t key, str, num, num_unit; } dec_label_t;
typedef struct dec_sample_s   { size_t ids; uint64_t id[MI_PROF_MAX_FRAMES]; size_t values; uint64_t value[8]; size_t labels; dec_label_t label[8]; } dec_sample_t;
typedef struct dec_mapping_s  { uint64_t id, start, limit, offset, filename, build_id, other; } dec_mapping_t;
typedef struct dec_location_s { uint64_t id, mapping, address, lines, function; } dec_location_t;
typedef struct dec_function_s { uint64_t id, name, system_name; } dec_function_t;
typedef struct dec_profile_s {
  uint64_t       type[8], unit[8];
  uint64_t       period_type, period_unit, period, drop_frames, keep_frames, time, duration, default_type;
  uint64_t       comment[8];
  char           strings[max_items][1024];
  dec_sample_t   samples[max_items];
  dec_mapping_t  mappings[max_items];
  dec_location_t locations[4*max_items];
  dec_function_t functions[8];
  size_t         types, comments, string_count, sample_count, mapping_count, location_count, function_count;
} dec_profile_t;

// Store the varints of a message in `fields[field]`; another kind of field is an error.
static void dec_fields(pb_t m, uint64_t* fields, unsigned max_field) {
  memset(fields, 0, (max_field + 1)*sizeof(uint64_t));
  while (pb_next(&m)) { if (check(m.data == NULL && m.field <= max_field)) { fields[m.field] = m.value; } }
  check(m.ok);
}

static size_t dec_packed(pb_t m, uint64_t* out, size_t max) {
  size_t n = 0;
  while (m.ok && m.p < m.end && n < max) { out[n++] = pb_varint(&m); }
  check(m.ok && m.p == m.end);
  return n;
}

static void dec_location(pb_t m, dec_location_t* l) {
  uint64_t f[3];
  while (pb_next(&m)) {
    if (m.field == 1)      { l->id = m.value; }
    else if (m.field == 2) { l->mapping = m.value; }
    else if (m.field == 3) { l->address = m.value; }
    else if (check(m.field == 4)) { l->lines++; dec_fields(pb_open(m.data, (size_t)m.value), f, 2); l->function = f[1]; }
  }
  check(m.ok);
}

static void dec_sample(pb_t m, dec_sample_t* s) {
  uint64_t f[5];
  while (pb_next(&m)) {
    const pb_t sub = pb_open(m.data, (size_t)m.value);
    if (!check(m.data != NULL)) return;
    if (m.field == 1)      { s->ids = dec_packed(sub, s->id, MI_PROF_MAX_FRAMES); }
    else if (m.field == 2) { s->values = dec_packed(sub, s->value, 8); }
    else if (check(m.field == 3 && s->labels < 8)) {
      dec_fields(sub, f, 4);
      dec_label_t* const l = &s->label[s->labels++];
      l->key = f[1]; l->str = f[2]; l->num = f[3]; l->num_unit = f[4];
    }
  }
  check(m.ok);
}

test_fun dec_profile_t* dec_profile(const uint8_t* data, size_t size) {
  dec_profile_t* const d = (dec_profile_t*)zalloc_or_exit(sizeof(dec_profile_t));
  pb_t pb = pb_open(data, size);
  uint64_t f[16];
  while (pb_next(&pb)) {
    const pb_t sub = pb_open(pb.data, (size_t)pb.value);
    check((pb.data != NULL) == (pb.field <= 6 || pb.field == 11));
    switch (pb.field) {
      case 1:  dec_fields(sub, f, 2); d->type[d->types] = f[1]; d->unit[d->types++] = f[2]; break;
      case 2:  if (check(d->sample_count < max_items)) { dec_sample(sub, &d->samples[d->sample_count++]); } break;
      case 3:  if (check(d->mapping_count < max_items)) {
                 dec_mapping_t* const m = &d->mappings[d->mapping_count++];
                 dec_fields(sub, f, 10);
                 m->id = f[1]; m->start = f[2]; m->limit = f[3]; m->offset = f[4]; m->filename = f[5]; m->build_id = f[6];
                 m->other = f[7] | f[8] | f[9] | f[10];
               }
               break;
      case 4:  if (check(d->location_count < 4*max_items)) { dec_location(sub, &d->locations[d->location_count++]); } break;
      case 5:  if (check(d->function_count < 8)) {
                 dec_fields(sub, f, 5);
                 d->functions[d->function_count].name = f[2];
                 d->functions[d->function_count].system_name = f[3];
                 d->functions[d->function_count++].id = f[1];
               }
               break;
      case 6:  if (check(d->string_count < max_items && pb.value < 1024)) { memcpy(d->strings[d->string_count++], pb.data, (size_t)pb.value); } break;
      case 7:  d->drop_frames = pb.value; break;
      case 8:  d->keep_frames = pb.value; break;
      case 9:  d->time = pb.value; break;
      case 10: d->duration = pb.value; break;
      case 11: dec_fields(sub, f, 2); d->period_type = f[1]; d->period_unit = f[2]; break;
      case 12: d->period = pb.value; break;
      case 13: if (check(d->comments < 8)) { d->comment[d->comments++] = pb.value; } break;
      case 14: d->default_type = pb.value; break;
      default: check(!"an unknown field"); break;
    }
  }
  check(pb.ok);
  return d;
}

test_fun const char* dec_string(const dec_profile_t* d, uint64_t index) {
  return (check(index < d->string_count) ? d->strings[index] : "");
}
#define check_str(d,index,expected)  check(strcmp(dec_string(d, index), expected) == 0)

test_fun const dec_location_t* dec_location_of(const dec_profile_t* d, uint64_t id) {
  const dec_location_t* found = NULL;
  for (size_t i = 0; i < d->location_count; i++) {
    if (d->locations[i].id == id) { check(found == NULL); found = &d->locations[i]; }
  }
  static const dec_location_t none = { 0, 0, 0, 0, 0 };
  return (check(id != 0 && found != NULL) ? found : &none);
}

#endif // TEST_PROFILE_DECODE_H

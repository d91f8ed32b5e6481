// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

/* ----------------------------------------------------------------------------
Tests the pure parts of the profiler by including them: the gzip compressor
against a decompressor of our own, the proto form by decoding it, and the text
form against the expected text. To be compiled in the language of the library.
---------------------------------------------------------------------------- */

// The library has these too: keep our copies apart.
#define _mi_prof_pprof_scratch_size  test_prof_pprof_scratch_size
#define _mi_prof_write_pprof         test_prof_write_pprof
#define _mi_prof_write_text          test_prof_write_text

#define MI_IN_PROFILE_C
#include "../src/profile-internal.h"
#include "../src/profile-pprof.c"
#include "test-profile-decode.h"

/* -----------------------------------------------------------
  The compressor
----------------------------------------------------------- */

static void compress_into(sink_t* sink, const uint8_t* data, size_t size, size_t piece) {
  mi_gzip_t* const z = (mi_gzip_t*)zalloc_or_exit(sizeof(mi_gzip_t));
  mi_gzip_init(z, &sink_write, sink);
  for (size_t i = 0; i < size; i += piece) {
    mi_gzip_write(z, data + i, (size - i < piece ? size - i : piece));
  }
  check(mi_gzip_finish(z));
  free(z);
}

// Compress, decompress, compare. Returns the compressed size.
static size_t round_trip(const char* what, const uint8_t* data, size_t size, int must_have_kind) {
  const long before = test_failures;
  sink_t sink, other;
  memset(&sink, 0, sizeof(sink));
  memset(&other, 0, sizeof(other));
  inflate_t inf;
  compress_into(&sink, data, size, size + 1);
  if (check(gunzip(&inf, sink.data, sink.size, size + 16))) {
    check(inf.out_size == size);
    check(size == 0 || memcmp(inf.out, data, size) == 0);
    check(must_have_kind < 0 || inf.blocks[must_have_kind] > 0);
    check(sink.size <= size + size/1000 + 64);
  }
  compress_into(&other, data, size, 1 + size/7 % 1021);    // the output does not depend on the pieces
  check(other.size == sink.size && memcmp(other.data, sink.data, sink.size) == 0);
  if (test_failures != before) { fprintf(stderr, "  in the round trip of %s, %zu bytes\n", what, size); }
  const size_t result = sink.size;
  free(inf.out);
  free(sink.data);
  free(other.data);
  return result;
}

static void test_crc32(void) {
  uint32_t (*const table)[256] = (uint32_t (*)[256])zalloc_or_exit(8*256*sizeof(uint32_t));
  mi_crc32_init(table);
  check(~mi_crc32_update(table, ~(uint32_t)0, (const uint8_t*)"", 0) == 0);
  check(~mi_crc32_update(table, ~(uint32_t)0, (const uint8_t*)"123456789", 9) == 0xCBF43926U);
  uint8_t data[100];
  for (size_t i = 0; i < sizeof(data); i++) { data[i] = (uint8_t)rnd(); }
  for (size_t n = 0; n <= sizeof(data); n++) {
    uint32_t crc = mi_crc32_update(table, ~(uint32_t)0, data, n/3);
    crc = mi_crc32_update(table, crc, data + n/3, n - n/3);
    check(~crc == slow_crc32(data, n));
  }
  free(table);
}

static void test_huffman(void) {
  // Fibonacci frequencies give the deepest codes: the limit must hold, and the code must be complete
  for (size_t n = 2; n <= MI_DEFLATE_LITLENS; n += (n < 24 ? 1 : 37)) {
    uint32_t freq[MI_DEFLATE_LITLENS] = { 0 };
    uint32_t a = 1, b = 1;
    for (size_t i = 0; i < n; i++) { freq[i] = a; const uint32_t c = a + b; a = b; b = (c > 16384 ? 1 : c); }
    for (size_t limit = 9; limit <= MI_DEFLATE_MAX_BITS; limit += 6) {
      mi_huff_t h;
      inf_code_t c;
      mi_huff_build(&h, freq, MI_DEFLATE_LITLENS, limit);
      for (size_t i = 0; i < MI_DEFLATE_LITLENS; i++) { check(h.len[i] <= limit && (h.len[i] != 0) == (freq[i] != 0)); }
      check(inf_code(&c, h.len, MI_DEFLATE_LITLENS));
    }
  }
  // optimal where the limit is not met: 1,1,2,4 takes 3,3,2,1 bits
  const uint32_t freq[4] = { 4, 1, 2, 1 };
  mi_huff_t h;
  mi_huff_build(&h, freq, 4, MI_DEFLATE_MAX_BITS);
  check(h.len[0] == 1 && h.len[1] == 3 && h.len[2] == 2 && h.len[3] == 3);
}

static void test_deflate(void) {
  enum { data_max = 3*1024*1024 };
  uint8_t* const data = (uint8_t*)zalloc_or_exit(data_max);
  check(round_trip("nothing", data, 0, 1) <= 20);
  for (size_t n = 1; n < 40; n++) { round_trip("zeros", data, n, -1); }
  check(round_trip("zeros", data, data_max, 2) < data_max/200);

  for (size_t i = 0; i < data_max; i++) { data[i] = (uint8_t)rnd(); }
  static const size_t sizes[] = { 1, 2, 3, 4, 5, 257, 258, 259, 16383, 16384, 16385, 32767, 32768, 32769, 65535, 65536, 65537, 131072, 1100000, data_max };
  for (size_t i = 0; i < sizeof(sizes)/sizeof(sizes[0]); i++) { round_trip("noise", data, sizes[i], sizes[i] > 257 ? 0 : -1); }

  // repeats at all distances around the reach of a match
  for (size_t distance = 1; distance < 33000; distance += (distance < 300 ? 13 : (distance < 32700 ? 4001 : 17))) {
    for (size_t i = distance; i < 80000; i++) { data[i] = data[i - distance]; }
    round_trip("repeats", data, 80000, -1);
  }
  // matches of every length between noise
  for (int kind = 0; kind < 4; kind++) {
    size_t n = 0;
    while (n < data_max - 600) {
      const size_t noise = rnd() % (kind == 0 ? 4 : 40);
      for (size_t i = 0; i < noise; i++) { data[n++] = (uint8_t)(kind < 2 ? rnd() : rnd() % 7); }
      if (n > 0) {
        const size_t reach = (n < 40000 ? n : 40000);
        const size_t back = 1 + rnd() % (kind == 1 ? (reach < 50 ? reach : 50) : reach);
        for (size_t len = rnd() % 300; len > 0; len--, n++) { data[n] = data[n - back]; }
      }
    }
    round_trip("mixture", data, n, 2);
  }
  // alternating noise and zeros: blocks of several kinds
  for (size_t i = 0; i < data_max; i++) { data[i] = ((i >> 17) % 2 == 0 ? (uint8_t)rnd() : 0); }
  round_trip("noise and zeros", data, data_max, 0);
  free(data);
}

// The checks of the decompressor must be able to fail: it sees each single changed byte.
static void test_corruption(void) {
  uint8_t data[2000];
  for (size_t i = 0; i < sizeof(data); i++) { data[i] = (uint8_t)(rnd() % 5 == 0 ? rnd() : 'a' + i % 7); }
  sink_t sink;
  memset(&sink, 0, sizeof(sink));
  compress_into(&sink, data, sizeof(data), sizeof(data));
  size_t caught = 0;
  for (size_t i = 0; i < sink.size; i++) {
    inflate_t inf;
    sink.data[i] = (uint8_t)(sink.data[i] ^ (1U << (i % 8)));
    if (!gunzip(&inf, sink.data, sink.size, sizeof(data) + 16)) { caught++; }
    free(inf.out);
    sink.data[i] = (uint8_t)(sink.data[i] ^ (1U << (i % 8)));
  }
  check(sink.size > 500 && caught == sink.size);
  inflate_t inf;
  check(gunzip(&inf, sink.data, sink.size, sizeof(data) + 16));
  free(inf.out);
  check(!gunzip(&inf, sink.data, sink.size - 1, sizeof(data) + 16));
  free(inf.out);
  free(sink.data);
}

/* -----------------------------------------------------------
  A known snapshot
----------------------------------------------------------- */

static const uintptr_t stack_a[]     = { 0x501010, 0x502000, 0x200001, 0 };   // 0: in no module, and before all others
static const uintptr_t stack_b[]     = { 0x501010, 0x600000, 0x600001, 0x500000, 0x200000 }; // a call may end a module, but not begin one
static const uintptr_t stack_other[] = { MI_PROF_FRAME_OTHER };
static uintptr_t       stack_deep[MI_PROF_MAX_FRAMES];

static const mi_prof_name_t known_names[] = { "", "main", "cache" };

// { frames, depth, size, inuse samples, objects, bytes, alloc samples, objects, bytes, thread, heap, age }
static mi_prof_sample_t known_samples[] = {
  { stack_a, 4, 100, 2, 2.6, 260.0, 4, 5.2, 520.0, NULL, NULL, 0 },
  { stack_a, 4, 0, 3, 3000.4, 0.0, 0, 0.0, 0.0, NULL, NULL, 0 },
  { stack_b, 5, 4096, 1, 1.0, 4096.0, 1, 1.0, 4096.0, known_names[1], NULL, 8 },
  { stack_other, 1, 64, 7, 70.5, 4512.0, 0, 0.0, 0.0, NULL, known_names[2], 0 },
  { stack_deep, MI_PROF_MAX_FRAMES, 48, 1, 10.0, 480.0, 0, 0.0, 0.0, known_names[1], known_names[2], 1024 },
  { NULL, 0, 1 << 20, 1, 1e15, 1e21, 0, 0.0, 0.0, NULL, NULL, 0 },           // more bytes than fit
};

static mi_prof_module_t known_modules[] = {
  { 0x500000, 0x600000, 0x2000, "/opt/my app/app", 20, { 0xAB,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,0xFF } },
  { 0x200000, 0x300000, 0, "/lib/lib\xC3\xA9\xFF.so", 0, { 0 } },
  { 0x800000, 0x900000, 0x1000, "/lib/back\\slash\n", 2, { 0x0F, 0xF0 } },
};

static mi_prof_snapshot_t known_snapshot(void) {
  for (size_t i = 0; i < MI_PROF_MAX_DEPTH; i++) { stack_deep[i] = 0x800100 + 16*((7*i) % MI_PROF_MAX_DEPTH); }
  stack_deep[MI_PROF_MAX_DEPTH] = MI_PROF_FRAME_TRUNCATED;
  mi_prof_snapshot_t s;
  memset(&s, 0, sizeof(s));
  s.samples = known_samples;
  s.sample_count = sizeof(known_samples)/sizeof(known_samples[0]);
  s.modules = known_modules;
  s.module_count = sizeof(known_modules)/sizeof(known_modules[0]);
  s.names = known_names;
  s.name_count = 3;
  s.has_allocs = true;
  s.label_bytes = true;
  s.stats.sample_rate = 524288;
  s.stats.dropped_memory = 12;
  s.stats.folded_stacks = 70;
  s.stats.committed_bytes = 10000000;
  s.time_nanos = INT64_C(1764500000123456789);
  s.duration_nanos = INT64_C(61000000001);
  return s;
}

static bool write_pprof(const mi_prof_snapshot_t* snapshot, sink_t* sink) {
  const size_t size = _mi_prof_pprof_scratch_size(snapshot);
  uint8_t* const scratch = (uint8_t*)zalloc_or_exit(size + 32);
  uint8_t* const aligned = (uint8_t*)_mi_align_up((uintptr_t)scratch, 16);
  memset(aligned + size, 0xA5, 16);
  const bool ok = _mi_prof_write_pprof(snapshot, aligned, &sink_write, sink);
  for (int i = 0; i < 16; i++) { check(aligned[size + (size_t)i] == 0xA5); }   // nothing beyond the scratch memory
  free(scratch);
  return ok;
}

// The decoded profile; free it.
static dec_profile_t* write_and_decode(const mi_prof_snapshot_t* snapshot) {
  sink_t sink, again;
  memset(&sink, 0, sizeof(sink));
  memset(&again, 0, sizeof(again));
  inflate_t inf;
  check(write_pprof(snapshot, &sink));
  check(write_pprof(snapshot, &again));
  check(again.size == sink.size && memcmp(again.data, sink.data, sink.size) == 0);
  check(gunzip(&inf, sink.data, sink.size, 1024*1024));
  dec_profile_t* const d = dec_profile(inf.out, inf.out_size);
  free(inf.out);
  free(sink.data);
  free(again.data);
  return d;
}

// The label `key`: its string, or its number and unit; or neither.
static void check_label(const dec_profile_t* d, const dec_sample_t* s, const char* key, const char* str, uint64_t num, const char* unit) {
  size_t found = 0;
  for (size_t i = 0; i < s->labels; i++) {
    const dec_label_t* const l = &s->label[i];
    if (strcmp(dec_string(d, l->key), key) != 0) continue;
    found++;
    check(l->num == num);
    check_str(d, l->str, (str == NULL ? "" : str));
    check_str(d, l->num_unit, unit);
  }
  check_eq(found, (str != NULL || num != 0 ? 1 : 0));
}

static void check_sample(const dec_profile_t* d, size_t i, uint64_t objects, uint64_t bytes, uint64_t alloc_objects, uint64_t alloc_bytes) {
  const dec_sample_t* const s = &d->samples[i];
  check(s->values == 4 && s->value[0] == alloc_objects && s->value[1] == alloc_bytes);
  check(s->value[2] == objects && s->value[3] == bytes);
  check_label(d, s, "bytes", NULL, mi_prof_size_class(known_samples[i].size), "bytes");
  check_label(d, s, "thread", known_samples[i].thread, 0, "");
  check_label(d, s, "heap", known_samples[i].heap, 0, "");
  check_label(d, s, "age", NULL, known_samples[i].age, "seconds");
  const size_t depth = known_samples[i].depth;
  check(s->ids == (depth == 0 ? 1 : depth));
  for (size_t k = 0; k < depth && k < s->ids; k++) {
    const dec_location_t* const l = dec_location_of(d, s->id[k]);
    const uintptr_t pc = known_samples[i].frames[k];
    const bool is_synthetic = (pc == MI_PROF_FRAME_OTHER || pc == MI_PROF_FRAME_TRUNCATED);
    uint64_t mapping = 0;
    for (size_t m = 0; m < 3; m++) {
      if (known_modules[m].start <= pc - 1 && pc - 1 < known_modules[m].end) { mapping = m + 1; }
    }
    check(l->address == (is_synthetic || pc == 0 ? 0 : pc - 1));
    check(l->mapping == mapping);
    check(l->lines == (is_synthetic ? 1 : 0));
  }
}

static void check_synthetic(const dec_profile_t* d, uint64_t location_id, const char* name) {
  const dec_location_t* const l = dec_location_of(d, location_id);
  check(l->address == 0 && l->mapping == 0 && l->lines == 1 && l->function != 0);
  size_t found = 0;
  for (size_t i = 0; i < d->function_count; i++) {
    if (d->functions[i].id != l->function) continue;
    found++;
    check_str(d, d->functions[i].name, name);
    check_str(d, d->functions[i].system_name, name);
  }
  check(found == 1);
}

static void test_pprof_values(void) {
  mi_prof_snapshot_t snapshot = known_snapshot();
  dec_profile_t* const d = write_and_decode(&snapshot);
  static const char* const types[4][2] = { {"alloc_objects","count"}, {"alloc_space","bytes"}, {"inuse_objects","count"}, {"inuse_space","bytes"} };
  check(d->types == 4);
  for (size_t i = 0; i < 4; i++) { check_str(d, d->type[i], types[i][0]); check_str(d, d->unit[i], types[i][1]); }
  check(d->string_count > 0 && d->strings[0][0] == 0);
  check_str(d, d->default_type, "inuse_space");
  check_str(d, d->period_type, "space");
  check_str(d, d->period_unit, "bytes");
  check(d->period == 524288);
  check(d->time == UINT64_C(1764500000123456789) && d->duration == UINT64_C(61000000001));
  check(d->keep_frames == 0);
  check(strstr(dec_string(d, d->drop_frames), "operator new") != NULL);
  char version[64];
  *mi_fmt_version(version) = 0;
  check(strncmp(version, "mi_prof " MI_PROF_VERSION ", mimalloc 2.", 20) == 0);
  check(d->comments == 5);
  check_str(d, d->comment[0], version);
  check_str(d, d->comment[1], "sample rate: 524288 bytes");
  check_str(d, d->comment[2], "samples dropped, as the system gave no memory: 12");
  check_str(d, d->comment[3], "samples in [other], as there was no room for their stack: 70");
  check_str(d, d->comment[4], "committed by the allocator: 10000000 bytes");

  check(d->sample_count == snapshot.sample_count);
  check_sample(d, 0, 3, 260, 5, 520);
  check_sample(d, 1, 3000, 0, 0, 0);
  check_sample(d, 2, 1, 4096, 1, 4096);
  check_sample(d, 3, 71, 4512, 0, 0);
  check_sample(d, 4, 10, 480, 0, 0);
  check_sample(d, 5, UINT64_C(1000000000000000), (uint64_t)INT64_MAX, 0, 0);
  check(d->location_count == 4 + 4 + 1 + MI_PROF_MAX_FRAMES + 1);   // 0x501010 is in two stacks
  check(d->function_count == 3);
  check_synthetic(d, d->samples[3].id[0], "[other]");
  check_synthetic(d, d->samples[4].id[MI_PROF_MAX_DEPTH], "[truncated]");
  check_synthetic(d, d->samples[5].id[0], "[no stack]");

  check(d->mapping_count == 3);
  for (size_t i = 0; i < 3; i++) {
    const dec_mapping_t* const m = &d->mappings[i];
    check(m->id == i + 1 && m->start == known_modules[i].start && m->limit == known_modules[i].end);
    check(m->offset == known_modules[i].offset && m->other == 0);
  }
  check_str(d, d->mappings[0].filename, "/opt/my app/app");
  check_str(d, d->mappings[0].build_id, "ab000102030405060708090a0b0c0d0e0f1011ff");
  check_str(d, d->mappings[1].filename, "/lib/lib\xC3\xA9?.so");
  check(d->mappings[1].build_id == 0);
  check_str(d, d->mappings[2].filename, "/lib/back\\slash\n");
  check_str(d, d->mappings[2].build_id, "0ff0");
  free(d);

  // an empty profile is valid, and has nothing that it does not need
  memset(&snapshot, 0, sizeof(snapshot));
  snapshot.stats.sample_rate = 1;
  dec_profile_t* const e = write_and_decode(&snapshot);
  check(e->types == 4 && e->sample_count == 0 && e->mapping_count == 0 && e->location_count == 0 && e->function_count == 0);
  check(e->period == 1 && e->comments == 3);
  free(e);
}

static void test_utf8(void) {
  static const char* const good[] = { "a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF" };
  static const char* const bad[] = { "\x80", "\xC0\x80", "\xC1\xBF", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF" };
  for (size_t i = 0; i < sizeof(good)/sizeof(good[0]); i++) { check(mi_utf8_length(good[i]) == strlen(good[i])); }
  for (size_t i = 0; i < sizeof(bad)/sizeof(bad[0]); i++)   { check(mi_utf8_length(bad[i]) == 0); }
}

static void test_text(void) {
  mi_prof_snapshot_t snapshot = known_snapshot();
  known_samples[4].depth = 2;
  char version[64];
  char expected[2048];
  *mi_fmt_version(version) = 0;
  snprintf(expected, sizeof(expected),
    "heap profile:     15:  1053371 [     5:     4496] @ heap_v2/524288\n"
    "# %s; raw samples, to be scaled by `1/(1 - exp(-size/rate))`\n"
    "# A block resized in place is scaled by its new size here; the proto form keeps its weight.\n"
    "# samples dropped, as the system gave no memory: 12\n"
    "# samples in [other], as there was no room for their stack: 70\n"
    "     2:      200 [     4:      400] @ 0x501010 0x502000 0x200001 0x0\n"
    "     3:        3 [     0:        0] @ 0x501010 0x502000 0x200001 0x0\n"
    "     1:     4096 [     1:     4096] @ 0x501010 0x600000 0x600001 0x500000 0x200000\n"
    "     7:      448 [     0:        0] @ 0x1\n"
    "     1:       48 [     0:        0] @ 0x800100 0x800170\n"
    "     1:  1048576 [     0:        0] @ 0x1\n"
    "\nMAPPED_LIBRARIES:\n"
    "00500000-00600000 r-xp 00002000 00:00 0 /opt/my\\040app/app\n"
    "00200000-00300000 r-xp 00000000 00:00 0 /lib/lib\xC3\xA9\xFF.so\n"
    "00800000-00900000 r-xp 00001000 00:00 0 /lib/back\\134slash\\012\n", version);
  sink_t sink;
  memset(&sink, 0, sizeof(sink));
  check(_mi_prof_write_text(&snapshot, &sink_write, &sink));
  if (!check(sink.size == strlen(expected) && memcmp(sink.data, expected, sink.size) == 0)) {
    fprintf(stderr, "--- got\n%.*s--- expected\n%s", (int)sink.size, (const char*)sink.data, expected);
  }
  known_samples[4].depth = MI_PROF_MAX_FRAMES;
  free(sink.data);
}

/* -----------------------------------------------------------
  A large snapshot: a tree of calls with 4000 stacks of 20 frames
----------------------------------------------------------- */

enum { large_stacks = 4000, large_depth = 20, large_per_stack = 8 };
static uintptr_t        large_frames[large_stacks][large_depth];
static mi_prof_sample_t large_samples[large_stacks*large_per_stack];

static mi_prof_snapshot_t large_snapshot(void) {
  rnd_state = 4711;
  for (size_t i = 0; i < large_stacks; i++) {
    uint32_t function = 0;
    for (size_t k = large_depth; k-- > 0; ) {
      const uint32_t site = rnd() % (k > 12 ? 2 : (k > 6 ? 3 : 5));
      large_frames[i][k] = 0x500000 + 512*(uintptr_t)function + 37*site + 9;
      function = (function*31 + site*7 + 1)*40503U % 1500;
    }
    for (size_t k = 0; k < large_per_stack; k++) {
      mi_prof_sample_t* const s = &large_samples[i*large_per_stack + k];
      s->frames = large_frames[i];
      s->depth = large_depth;
      s->size = 8*(1 + (i*5 + k*k) % 97);
      s->inuse_samples = 1 + k/5;
      s->inuse_objects = (double)s->inuse_samples * (0.5 + 4096.0/(double)s->size);
      s->inuse_bytes = s->inuse_objects * (double)s->size;
    }
  }
  mi_prof_snapshot_t snapshot = known_snapshot();
  snapshot.samples = large_samples;
  snapshot.sample_count = large_stacks*large_per_stack;
  snapshot.label_bytes = false;
  return snapshot;
}

static void test_large(void) {
  const mi_prof_snapshot_t snapshot = large_snapshot();
  sink_t sink;
  memset(&sink, 0, sizeof(sink));
  inflate_t inf;
  check(write_pprof(&snapshot, &sink));
  check(sink.smallest >= 8*1024);          // few and large writes
  check(gunzip(&inf, sink.data, sink.size, 16*1024*1024));
  // totals by the decoder, sample by sample
  pb_t pb = pb_open(inf.out, inf.out_size);
  size_t samples = 0;
  while (pb_next(&pb)) {
    if (pb.field != 2) continue;
    dec_sample_t s;
    memset(&s, 0, sizeof(s));
    dec_sample(pb_open(pb.data, (size_t)pb.value), &s);
    double objects = 0.0, bytes = 0.0;      // of all sizes
    for (size_t k = 0; k < large_per_stack; k++, samples++) {
      const mi_prof_sample_t* const x = &large_samples[samples < snapshot.sample_count ? samples : 0];
      objects += x->inuse_objects;
      bytes += x->inuse_bytes;
    }
    if (!check(s.ids == large_depth && s.labels == 0 && s.value[2] == (uint64_t)(objects + 0.5) && s.value[3] == (uint64_t)(bytes + 0.5))) break;
  }
  check(pb.ok && samples == snapshot.sample_count);
  printf("  profile of %zu samples: %zu bytes, compressed to %zu\n", samples, inf.out_size, sink.size);
  check(sink.size < 255000);               // zlib: 275,153 at level 1, 241,520 at level 6
  free(inf.out);
  free(sink.data);
}

static void test_write_errors(void) {
  const mi_prof_snapshot_t snapshot = large_snapshot();
  for (int text = 0; text < 2; text++) {
    size_t calls = 1;
    for (size_t fail_at = 0; fail_at <= calls; fail_at++) {
      sink_t sink;
      memset(&sink, 0, sizeof(sink));
      sink.fail_at = fail_at;
      const bool ok = (text != 0 ? _mi_prof_write_text(&snapshot, &sink_write, &sink) : write_pprof(&snapshot, &sink));
      if (fail_at == 0) {
        calls = sink.calls;
        check(ok && calls > 4);
      }
      else {
        check(!ok);
        check(sink.calls == fail_at);      // no call after the one that failed
      }
      free(sink.data);
      if (text != 0 && fail_at == 40 && calls > 80) { fail_at = calls - 40; }   // the calls between are alike
    }
  }
}

int main(void) {
  static const struct { const char* name; void (*run)(void); } tests[] = {
    { "crc32", &test_crc32 }, { "huffman", &test_huffman }, { "deflate", &test_deflate }, { "corruption", &test_corruption },
    { "pprof values", &test_pprof_values }, { "utf8", &test_utf8 }, { "text", &test_text }, { "large", &test_large },
    { "write errors", &test_write_errors }
  };
  for (size_t i = 0; i < sizeof(tests)/sizeof(tests[0]); i++) {
    const long before = test_failures;
    tests[i].run();
    printf("test %-14s %s\n", tests[i].name, (test_failures == before ? "ok" : "FAILED"));
    fflush(stdout);
  }
  check(test_checks > 1000);
  return test_done("test-profile-parts");
}

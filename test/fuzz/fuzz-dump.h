// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef FUZZ_DUMP_H
#define FUZZ_DUMP_H

/* -----------------------------------------------------------
  A dump says what the model says. It goes into memory, and the
  writer's callback allocates meanwhile; now and then a whole
  file is written.
----------------------------------------------------------- */

#define DUMP_MAX  ((size_t)4 << 20)

static uint8_t dump_data[DUMP_MAX + 1];
static size_t  dump_size;

static bool dump_write(const void* data, size_t size, void* arg) {
  MI_UNUSED(arg);
  require(dump_size + size <= DUMP_MAX, "a dump of more than %zu bytes", DUMP_MAX);
  memcpy(dump_data + dump_size, data, size);
  dump_size += size;
  mi_free(mi_malloc(size % 2000));      // no lock is held, and this block is in no snapshot
  return true;
}

typedef struct dump_totals_s {
  size_t count;
  size_t bytes;
  double objects;       // estimates
  double space;
} dump_totals_t;

static dump_totals_t model_totals(void) {
  dump_totals_t t = { 0, 0, 0, 0 };
  for (size_t i = 0; i < block_count; i++) {
    const block_t* const b = &blocks[i];
    if (!b->recorded) continue;
    t.count++;
    t.bytes += b->record_size;
    t.objects += b->record_weight;
    t.space += b->record_weight * (double)b->record_size;
  }
  return t;
}

static void check_text(void) {
  const dump_totals_t t = model_totals();
  dump_data[dump_size] = 0;
  size_t count = 0, bytes = 0, rate = 0;
  const int n = sscanf((const char*)dump_data, "heap profile: %zu: %zu [%*u: %*u] @ heap_v2/%zu", &count, &bytes, &rate);
  require(n == 3 && rate == mi_prof_rate(), "a text dump with a bad header");
  require(count == t.count && bytes == t.bytes, "a text dump of %zu records, %zu bytes instead of %zu, %zu", count, bytes, t.count, t.bytes);
}

// The sums of `inuse_objects` and `inuse_space`, which are rounded sample by sample.
static void check_pprof(void) {
  const dump_totals_t t = model_totals();
  inflate_t file;
  require(gunzip(&file, dump_data, dump_size, 2*DUMP_MAX), "a dump that is no gzip file");
  double objects = 0, space = 0, samples = 0;
  uint64_t rate = 0;
  pb_t pb = pb_open(file.out, file.out_size);
  while (pb_next(&pb)) {
    if (pb.field == 12) { rate = pb.value; }
    if (pb.field != 2) continue;
    pb_t sample = pb_open(pb.data, (size_t)pb.value);
    while (pb_next(&sample)) {
      if (sample.field != 2) continue;
      pb_t values = pb_open(sample.data, (size_t)sample.value);
      double value[4];
      for (int i = 0; i < 4; i++) { value[i] = (double)pb_varint(&values); }
      require(values.ok && values.p == values.end, "a sample that has not four values");
      objects += value[2];
      space += value[3];
      samples += (value[2] > 0 || value[3] > 0 ? 1 : 0);    // others were allocated only
    }
    require(sample.ok, "a broken sample");
  }
  require(pb.ok && rate == mi_prof_rate(), "a broken profile");
  require(samples <= (double)t.count, "%g samples of %zu records", samples, t.count);
  const double slack = samples + 1e-6*t.space;
  require(objects >= t.objects - slack && objects <= t.objects + slack, "a dump of %g objects instead of %g", objects, t.objects);
  mi_prof_stats_t stats;
  mi_prof_stats_init(&stats);
  require(mi_prof_stats_get(&stats), "no statistics");
  const double total = (double)stats.inuse_bytes;
  require(total >= t.space - (double)t.count - 1 && total <= t.space + (double)t.count + 1, "an estimate of %g bytes instead of %g", total, t.space);
  require(stats.peak_bytes >= stats.inuse_bytes, "more in use than ever");
  require(space >= t.space - slack && space <= t.space + slack, "a dump of %g bytes instead of %g", space, t.space);
  free(file.out);
}

// Returns false if there is no memory.
static bool write_dump(bool text) {
  dump_size = 0;
  return mi_prof_dump_writer((text ? MI_PROF_FORMAT_TEXT : MI_PROF_FORMAT_PPROF), MI_PROF_KIND_LIVE, &dump_write, NULL);
}

static void dump_to_memory(bool text) {
  const bool ok = write_dump(text);
  require(ok || may_drop, "a dump failed though there is memory");
  if (!ok) return;
  if (text) { check_text(); } else { check_pprof(); }
}

// While other threads allocate and free: what is in it is known to be well formed only.
static void dump_concurrently(void) {
  if (!profiling() || !write_dump(false)) return;
  inflate_t file;
  require(gunzip(&file, dump_data, dump_size, 2*DUMP_MAX), "a dump that is no gzip file");
  free(file.out);
}

static void read_dump(const char* path) {
  FILE* const file = fopen(path, "rb");
  require(file != NULL, "a dump that was written is not there");
  dump_size = fread(dump_data, 1, DUMP_MAX, file);
  fclose(file);
  remove(path);
}

static void dump_to_file(bool text) {
  const char* const folder = getenv("MI_PROF_FUZZ_TMP");
  char path[512];
  snprintf(path, sizeof(path), "%s/mi_prof-fuzz-%zu", (folder == NULL ? "/tmp" : folder), _mi_prof_prim_process_id());
  const bool ok = (text ? mi_prof_dump_text(path) : mi_prof_dump(path));
  require(ok == profiling() || may_drop, "writing a file %s", (ok ? "succeeded while profiling is off" : "failed"));
  if (!ok) return;
  read_dump(path);
  if (text) { check_text(); } else { check_pprof(); }
}

#endif // FUZZ_DUMP_H

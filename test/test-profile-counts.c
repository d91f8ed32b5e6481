// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

// What is counted: live blocks and allocations, labels, the peak, pauses and changes of the rate; and the ways to get at it:
// snapshots, statistics, writers and modules. Blocks are told from those of libc by their sizes, which nobody else uses.

#include "test-profile.h"
#include "mimalloc/internal.h"
#include "profile-internal.h"
#include "test-profile-decode.h"

#include <math.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

/* -----------------------------------------------------------
  Sums over a snapshot
----------------------------------------------------------- */

typedef struct sums_s {
  size_t      min_size, max_size;     // of the samples to add up
  const char* thread;                 // and their labels, if not NULL
  const char* heap;
  size_t      samples;
  double      inuse_objects, inuse_bytes;
  size_t      alloc_samples;
  double      alloc_objects, alloc_bytes;
  size_t      max_age;
} sums_t;

static bool label_is(const char* label, const char* expected) {
  return (expected == NULL || (label != NULL && strcmp(label, expected) == 0));
}

static bool add_up(const mi_prof_sample_t* s, void* arg) {
  sums_t* const sums = (sums_t*)arg;
  if (s->size < sums->min_size || s->size > sums->max_size) return true;
  if (!label_is(s->thread, sums->thread) || !label_is(s->heap, sums->heap)) return true;
  sums->samples += s->inuse_samples;
  sums->inuse_objects += s->inuse_objects;
  sums->inuse_bytes += s->inuse_bytes;
  sums->alloc_samples += s->alloc_samples;
  sums->alloc_objects += s->alloc_objects;
  sums->alloc_bytes += s->alloc_bytes;
  if (s->age > sums->max_age) { sums->max_age = s->age; }
  return true;
}

static sums_t sums_of(const mi_prof_snapshot_t* snapshot, size_t min_size, size_t max_size, const char* thread, const char* heap) {
  sums_t sums;
  memset(&sums, 0, sizeof(sums));
  sums.min_size = min_size;
  sums.max_size = max_size;
  sums.thread = thread;
  sums.heap = heap;
  check(mi_prof_snapshot_visit(snapshot, &add_up, &sums));
  return sums;
}

static sums_t sums_labelled(size_t min_size, size_t max_size, const char* thread, const char* heap) {
  mi_prof_snapshot_t* const snapshot = mi_prof_snapshot_new();
  check(snapshot != NULL);
  const sums_t sums = sums_of(snapshot, min_size, max_size, thread, heap);
  mi_prof_snapshot_free(snapshot);
  return sums;
}

static sums_t sums_now(size_t min_size, size_t max_size) { return sums_labelled(min_size, max_size, NULL, NULL); }

static mi_prof_stats_t stats_now(void) {
  mi_prof_stats_t stats;
  mi_prof_stats_init(&stats);
  check(mi_prof_stats_get(&stats));
  return stats;
}

static mi_prof_config_t config_of(size_t rate) {
  mi_prof_config_t config;
  mi_prof_config_init(&config);
  config.sample_rate = rate;
  config.seed = 1;
  return config;
}

// Blocks that are kept.
#define MAX_BLOCKS  (20000)
static void* blocks[MAX_BLOCKS];
static size_t block_count;

static void allocate(size_t n, size_t size) {
  for (size_t i = 0; i < n; i++) { blocks[block_count++] = test_use(mi_malloc(size)); }
}

static void release(size_t n) {
  for (; n > 0; n--) { mi_free(blocks[--block_count]); }
}

/* -----------------------------------------------------------
  Allocations
----------------------------------------------------------- */

static void test_accum(void) {
  test_begin("allocations are counted with accum, exactly at rate 1, and begin anew after a reset");
  mi_prof_config_t config = config_of(1);
  config.accum = true;
  check(mi_prof_start_ex(&config));
  allocate(300, 1003);
  release(200);
  sums_t s = sums_now(1003, 1003);
  check_eq(s.samples, 100);
  check_eq(s.inuse_bytes, 100*1003);
  check_eq(s.alloc_samples, 300);
  check_eq(s.alloc_objects, 300);
  check_eq(s.alloc_bytes, 300*1003);
  // resized in place it is still one allocation, of the size it had
  void* p = blocks[block_count - 1];
  void* const q = test_use(mi_expand(p, 1002));
  if (q != NULL) {
    s = sums_now(1001, 1003);
    check_eq(s.alloc_objects, 300);
    check_eq(s.inuse_bytes, 99*1003 + 1002);
  }
  // a realloc that moves is a new allocation
  p = test_use(mi_malloc(2011));
  p = test_use(mi_realloc(p, 40009));
  check_eq(sums_now(2011, 2011).alloc_objects, 1);
  check_eq(sums_now(40009, 40009).alloc_objects, 1);
  check_eq(sums_now(40009, 40009).inuse_objects, 1);
  mi_free(p);
  // what an aligned allocation takes beyond the request does not count
  for (size_t i = 0; i < 10; i++) { mi_free(test_use(mi_malloc_aligned(3001, 4096))); }
  check_eq(sums_now(3001, 3001).alloc_bytes, 10*3001);
  check_eq(sums_now(3002, 20000).alloc_bytes, 0);
  check_between(stats_now().alloc_bytes, 300*1003 + 2011 + 40009 + 10*3001, 300*1003 + 2011 + 40009 + 10*3001 + (test_is_overridden() ? 64*1024 : 0));
  mi_prof_reset();
  s = sums_now(1001, 1003);
  check_eq(s.alloc_samples, 0);
  check_eq(s.alloc_bytes, 0);
  check_eq(s.samples, 100);
  check(stats_now().alloc_bytes < 1003);
  allocate(5, 1003);
  check_eq(sums_now(1003, 1003).alloc_objects, 5);
  release(block_count);
  check_eq(sums_now(1001, 1003).samples, 0);
  check_eq(sums_now(1003, 1003).alloc_objects, 5);
  mi_prof_stop();
}

// Both estimates over many runs, of a site that mixes sizes around the rate, resizes some blocks in place, and sees the rate
// change. A block of `s` bytes that is sampled with probability p adds s/p to the estimate, so the variance is s^2 (1/p - 1).
#define RUNS  (200)

static double variance(double size, double sampled_size, double rate) {
  const double p = 1 - exp(-sampled_size/rate);
  return size*size*(1/p - 1);
}

static void test_unbiased(void) {
  test_begin("estimates are unbiased for a mix of sizes, after a realloc in place, and after a change of the rate");
  static const size_t sizes[] = { 72, 1003, 5009, 30011 };
  static const size_t rates[] = { 4096, 512 };
  double error_inuse = 0, error_alloc = 0, error_objects = 0, var_inuse = 0, var_alloc = 0, var_objects = 0;
  for (unsigned run = 0; run < RUNS; run++) {
    mi_prof_config_t config = config_of(rates[0]);
    config.seed = run + 1;
    config.accum = true;
    check(mi_prof_start_ex(&config));
    double inuse = 0, alloc = 0, objects = 0;
    for (size_t r = 0; r < 2; r++) {
      if (r > 0) { check(mi_prof_set_rate(rates[r])); }
      for (size_t i = 0; i < 80; i++) {
        const size_t size = sizes[i % 4];
        void* const p = test_use(mi_malloc(size));
        alloc += (double)size;
        var_alloc += variance((double)size, (double)size, (double)rates[r]);
        if (i % 3 == 0) { mi_free(p); continue; }
        const size_t smaller = size - size/8;
        const bool resized = (i % 3 == 1 && mi_expand(p, smaller) != NULL);
        const double now = (double)(resized ? smaller : size);
        blocks[block_count++] = p;
        inuse += now;
        objects += 1;
        var_inuse += variance(now, (double)size, (double)rates[r]);
        var_objects += variance(1, (double)size, (double)rates[r]);
      }
    }
    const sums_t s = sums_now(60, 40000);
    error_inuse += s.inuse_bytes - inuse;
    error_objects += s.inuse_objects - objects;
    error_alloc += s.alloc_bytes - alloc;
    release(block_count);
    mi_prof_stop();
  }
  // overridden, some blocks of libc are among them; they are few
  const double slack = (test_is_overridden() ? RUNS*2000.0 : 0);
  check_between(error_inuse, -4*sqrt(var_inuse) - slack, 4*sqrt(var_inuse) + slack);
  check_between(error_objects, -4*sqrt(var_objects) - slack/60, 4*sqrt(var_objects) + slack/60);
  check_between(error_alloc, -4*sqrt(var_alloc) - slack, 4*sqrt(var_alloc) + slack);
}

/* -----------------------------------------------------------
  Pause, resume, another rate
----------------------------------------------------------- */

static void test_pause(void) {
  test_begin("pause keeps the samples and takes no more; resume goes on; the rate can change in between");
  check(!mi_prof_pause() && !mi_prof_resume() && !mi_prof_set_rate(1));     // profiling is off
  check(mi_prof_start_seeded(1, 1));
  allocate(100, 1003);
  check(mi_prof_pause());
  check(mi_prof_is_enabled());
  check(stats_now().paused);
  check(mi_prof_pause());                   // again is harmless
  const size_t records = prof_records();
  allocate(100, 1003);
  check_eq(prof_records(), records);
  release(150);                             // 50 of those that were sampled
  check_eq(sums_now(1003, 1003).samples, 50);
  check(mi_prof_resume());
  check(!stats_now().paused);
  allocate(30, 1003);
  check_eq(sums_now(1003, 1003).samples, 80);
  check(mi_prof_pause() && mi_prof_set_rate((size_t)1 << (sizeof(size_t) > 4 ? 40 : 31)));
  check(stats_now().paused);
  check(mi_prof_resume());
  allocate(1000, 1003);
  check_eq(sums_now(1003, 1003).samples, 80);       // one in a thousand million such programs sees another one
  check_eq(sums_now(1003, 1003).inuse_objects, 80); // at the weight that they were taken with
  check(mi_prof_set_rate(1));
  allocate(10, 1003);
  check_eq(sums_now(1003, 1003).samples, 90);
  release(block_count);
  check_eq(sums_now(1003, 1003).samples, 0);
  mi_prof_stop();
  check(!mi_prof_resume());
}

static void pause_and_resume(void* arg) {
  volatile long* const quit = (volatile long*)arg;
  while (!load_flag(quit)) {
    mi_prof_pause();
    mi_prof_set_rate(64);
    mi_prof_resume();
    mi_prof_reset();
  }
  mi_prof_resume();
}

static void test_pause_while_allocating(void) {
  test_begin("pause, resume, reset and changes of the rate while another thread allocates");
  mi_prof_config_t config = config_of(64);
  config.accum = true;
  config.peak = true;
  check(mi_prof_start_ex(&config));
  const size_t records = prof_records();
  static volatile long quit;
  test_thread_t thread;
  test_thread_start(&thread, &pause_and_resume, (void*)&quit);
  for (unsigned round = 0; round < 200; round++) {
    for (size_t i = 0; i < 100; i++) { allocate(1, 16 + 37*i); }
    release(100);
  }
  store_flag(&quit, 1);
  test_thread_join(&thread);
  if (!test_is_overridden()) {
    check_eq(prof_records(), records);
    check_eq(stats_now().inuse_bytes, 0);
  }
  mi_prof_stop();
}

/* -----------------------------------------------------------
  Labels
----------------------------------------------------------- */

test_fun void name_thread(const char* name) {
  #if defined(__linux__)
  prctl(PR_SET_NAME, name);
  #elif defined(__APPLE__)
  pthread_setname_np(name);
  #else
  (void)name;
  #endif
}

test_fun void allocate_as_worker(void* arg) {
  name_thread("worker");
  *(void**)arg = test_use(mi_malloc(1005));
}

static void test_thread_label(void) {
  #if defined(__linux__) || defined(__APPLE__)
  test_begin("the label of the thread");
  mi_prof_config_t config = config_of(1);
  config.label_thread = true;
  name_thread("boss");
  check(mi_prof_start_ex(&config));
  allocate(3, 1005);
  test_thread_t thread;
  void* p;
  test_thread_start(&thread, &allocate_as_worker, &p);
  test_thread_join(&thread);
  check_eq(sums_labelled(1005, 1005, "boss", NULL).samples, 3);
  check_eq(sums_labelled(1005, 1005, "worker", NULL).samples, 1);
  check_eq(sums_labelled(1005, 1005, "nobody", NULL).samples, 0);
  mi_free(p);
  release(3);
  mi_prof_stop();
  #else
  test_begin("skipped: the label of the thread (threads have no names here)");
  #endif
}

static void test_heap_label(void) {
  test_begin("the label of the heap");
  static const char* const long_name = "a name that is longer than the thirty-one bytes that are kept";
  mi_prof_config_t config = config_of(1);
  config.label_heap = true;
  mi_heap_t* cache = mi_heap_new();
  mi_heap_t* const other = mi_heap_new();
  check(mi_prof_name_heap(cache, "cache"));
  check(!mi_prof_name_heap(NULL, "nothing"));
  check(mi_prof_start_ex(&config));
  void* const p = test_use(mi_heap_malloc(cache, 1007));
  void* const q = test_use(mi_heap_malloc(other, 1007));
  check(mi_prof_name_heap(other, long_name));
  void* const r = test_use(mi_heap_malloc(other, 1007));
  check_eq(sums_now(1007, 1007).samples, 3);
  check_eq(sums_labelled(1007, 1007, NULL, "cache").samples, 1);
  char kept[32];
  snprintf(kept, sizeof(kept), "%.31s", long_name);
  check_eq(sums_labelled(1007, 1007, NULL, kept).samples, 1);
  check(mi_prof_name_heap(other, NULL));
  check(mi_prof_name_heap(other, NULL));
  mi_free(p);
  mi_free(q);
  mi_free(r);
  // there is always room, for the last ones
  for (size_t i = 0; i < 300; i++) {
    mi_heap_t* const heap = mi_heap_new();
    check(mi_prof_name_heap(heap, "many"));
    void* const t = test_use(mi_heap_malloc(heap, 1007));
    check_eq(sums_labelled(1007, 1007, NULL, "many").samples, 1);
    mi_free(t);
    mi_heap_delete(heap);
  }
  check(mi_prof_name_heap(cache, "cache"));
  // a heap that gets the address of a deleted one does not get its name
  const mi_heap_t* const was = cache;
  mi_heap_delete(cache);
  cache = mi_heap_new();
  void* const s = test_use(mi_heap_malloc(cache, 1007));
  check_eq(sums_labelled(1007, 1007, NULL, "cache").samples, 0);
  if (cache != was) { printf("    (a new heap is at another address here)\n"); }
  mi_free(s);
  mi_heap_delete(cache);
  mi_heap_delete(other);
  mi_prof_stop();
}

static void test_age_label(void) {
  test_begin("the label of the age");
  mi_prof_config_t config = config_of(1);
  config.label_age = true;
  check(mi_prof_start_ex(&config));
  allocate(1, 1009);
  check_eq(sums_now(1009, 1009).max_age, 0);
  test_sleep(2100);
  allocate(1, 1009);
  check_between(sums_now(1009, 1009).max_age, 2, 64);   // the machine may be busy
  check_eq(sums_now(1009, 1009).samples, 2);
  release(2);
  mi_prof_stop();
}

/* -----------------------------------------------------------
  The peak
----------------------------------------------------------- */

typedef struct sink_sums_s {
  double inuse_objects, inuse_bytes, alloc_objects, alloc_bytes;
  size_t samples;
  size_t labels;
} sink_sums_t;

// Write a profile to memory and add up its samples. Returns false if there is none.
static bool dump_sums(mi_prof_kind_t kind, sink_sums_t* sums) {
  memset(sums, 0, sizeof(*sums));
  sink_t sink;
  memset(&sink, 0, sizeof(sink));
  const bool ok = mi_prof_dump_writer(MI_PROF_FORMAT_PPROF, kind, &sink_write, &sink);
  if (ok) {
    inflate_t inf;
    check(gunzip(&inf, sink.data, sink.size, 64*1024*1024));
    pb_t pb = pb_open(inf.out, inf.out_size);
    while (pb_next(&pb)) {
      if (pb.field != 2) continue;
      static dec_sample_t s;
      memset(&s, 0, sizeof(s));
      dec_sample(pb_open(pb.data, (size_t)pb.value), &s);
      sums->alloc_objects += (double)s.value[0];
      sums->alloc_bytes += (double)s.value[1];
      sums->inuse_objects += (double)s.value[2];
      sums->inuse_bytes += (double)s.value[3];
      sums->samples++;
      sums->labels += s.labels;
    }
    check(pb.ok);
    free(inf.out);
  }
  else {
    check_eq(sink.size, 0);
  }
  free(sink.data);
  return ok;
}

// The profile of the peak is within 1 % of the highest estimate.
static void check_peak(double expected) {
  sink_sums_t sums;
  mi_prof_pause();          // what the test allocates to read the profile is not to be a new peak
  const bool ok = dump_sums(MI_PROF_KIND_PEAK, &sums);
  mi_prof_resume();
  if (!check(ok)) return;
  const double peak = (double)stats_now().peak_bytes;
  check_between(peak, expected, expected + (test_is_overridden() ? 64*1024 : 0));
  check_between(sums.inuse_bytes, 0.99*peak, 1.001*peak);
}

static void test_peak(void) {
  test_begin("the profile of the peak is that of the highest estimate, within 1 %");
  mi_prof_config_t config = config_of(1);
  config.peak = true;
  check(mi_prof_start_ex(&config));
  check_peak(0);
  allocate(1000, 1013);
  check_peak(1000*1013);                  // it goes on
  release(400);
  check_peak(1000*1013);
  allocate(399, 1013);                    // a little lower
  check_peak(1000*1013);
  release(999);
  check_peak(1000*1013);
  // up and down, each time a little higher
  double peak = 1000*1013;
  for (size_t round = 0; round < 40; round++) {
    const size_t n = 990 + 5*round;
    allocate(n, 1013);
    if ((double)(n*1013) > peak) { peak = (double)(n*1013); }
    check_peak(peak);
    release(n);
    check_peak(peak);
  }
  // a single block that goes, and one that shrinks in place
  mi_prof_reset();
  check(stats_now().peak_bytes < (test_is_overridden() ? 64*1024 : 1));
  void* p = test_use(mi_malloc(10*1024*1024));
  mi_free(p);
  check_peak(10*1024*1024);
  mi_prof_reset();
  p = test_use(mi_malloc(40000));
  const bool shrinks = (test_use(mi_expand(p, 30000)) != NULL);
  check_peak(40000);
  if (shrinks) { check_eq(sums_now(30000, 30000).samples, 1); }
  mi_free(p);
  // a heap that is destroyed at once
  mi_prof_reset();
  const size_t before = prof_bytes();
  mi_heap_t* const heap = mi_heap_new();      // takes a block too
  for (size_t i = 0; i < 500; i++) { test_use(mi_heap_malloc(heap, 1013)); }
  const double added = (double)(prof_bytes() - before);
  mi_heap_destroy(heap);
  check_peak(added);
  mi_prof_stop();
  check_eq(stats_now().inuse_bytes, 0);
}

typedef struct both_s { sink_t sink; bool reset; } both_t;

static bool write_and_reset(const void* data, size_t size, void* arg) {
  both_t* const both = (both_t*)arg;
  if (both->reset) { mi_prof_reset(); }
  return sink_write(data, size, &both->sink);
}

static void test_peak_is_copied(void) {
  test_begin("a profile of the peak is written while the session forgets it");
  mi_prof_config_t config = config_of(1);
  config.peak = true;
  config.label_heap = true;
  check(mi_prof_start_ex(&config));
  mi_heap_t* const heap = mi_heap_new();
  check(mi_prof_name_heap(heap, "peak"));
  for (size_t i = 0; i < 1000; i++) { test_use(mi_heap_malloc(heap, 1013 + i)); }
  mi_heap_destroy(heap);
  both_t first, second;
  memset(&first, 0, sizeof(first));
  memset(&second, 0, sizeof(second));
  second.reset = true;
  check(mi_prof_pause());       // what the test allocates is not to be a new peak
  check(mi_prof_dump_writer(MI_PROF_FORMAT_TEXT, MI_PROF_KIND_PEAK, &write_and_reset, &first));
  check(mi_prof_dump_writer(MI_PROF_FORMAT_TEXT, MI_PROF_KIND_PEAK, &write_and_reset, &second));
  check(first.sink.size > 10000 && first.sink.size == second.sink.size && memcmp(first.sink.data, second.sink.data, first.sink.size) == 0);
  free(first.sink.data);
  free(second.sink.data);
  mi_prof_stop();
}

static void test_kinds(void) {
  test_begin("the kinds of a profile, and what a session must keep for each");
  sink_sums_t sums;
  check(!dump_sums(MI_PROF_KIND_LIVE, &sums));
  check(mi_prof_start_seeded(1, 1));
  allocate(10, 1019);
  check(dump_sums(MI_PROF_KIND_LIVE, &sums));
  check(sums.inuse_bytes >= 10*1019 && sums.alloc_bytes == 0);
  check_eq(sums.labels, 0);
  check(!dump_sums(MI_PROF_KIND_ALLOCS, &sums));
  check(!dump_sums(MI_PROF_KIND_PEAK, &sums));
  check(!mi_prof_dump_writer(MI_PROF_FORMAT_PPROF, (mi_prof_kind_t)77, &sink_write, NULL));
  check(!mi_prof_dump_writer((mi_prof_format_t)77, MI_PROF_KIND_LIVE, &sink_write, NULL));
  check(!mi_prof_dump_writer(MI_PROF_FORMAT_PPROF, MI_PROF_KIND_LIVE, NULL, NULL));
  release(10);
  mi_prof_stop();
  mi_prof_config_t config = config_of(1);
  config.accum = true;
  config.label_bytes = true;
  check(mi_prof_start_ex(&config));
  allocate(10, 1019);
  release(5);
  check(dump_sums(MI_PROF_KIND_ALLOCS, &sums));
  check(sums.alloc_objects >= 10 && sums.alloc_bytes >= 10*1019 && sums.inuse_bytes >= 5*1019);
  if (!test_is_overridden()) {
    check_eq(sums.alloc_bytes, 10*1019);
    check_eq(sums.inuse_bytes, 5*1019);
    check_between(sums.samples, 1, 10);       // an unrolled loop has several stacks
    check_eq(sums.labels, sums.samples);
  }
  release(5);
  mi_prof_stop();
}

/* -----------------------------------------------------------
  Snapshots and callbacks
----------------------------------------------------------- */

static bool visit_some(const mi_prof_sample_t* s, void* arg) {
  (void)s;
  return (--*(int*)arg > 0);
}

static void test_snapshot(void) {
  test_begin("a snapshot is what was live when it was taken, and survives the session");
  check(mi_prof_snapshot_new() == NULL);
  check(mi_prof_start_seeded(1, 1));
  allocate(100, 1021);
  allocate(100, 2003);
  mi_prof_snapshot_t* const snapshot = mi_prof_snapshot_new();
  check(snapshot != NULL);
  release(200);
  allocate(7, 1021);
  mi_prof_stop();
  release(7);
  check_eq(sums_of(snapshot, 1021, 1021, NULL, NULL).inuse_bytes, 100*1021);
  check_eq(sums_of(snapshot, 2003, 2003, NULL, NULL).inuse_bytes, 100*2003);
  int visits = 2;
  check(!mi_prof_snapshot_visit(snapshot, &visit_some, &visits));
  check_eq(visits, 0);
  check(!mi_prof_snapshot_visit(NULL, &visit_some, &visits));
  check(!mi_prof_snapshot_visit(snapshot, NULL, NULL));
  mi_prof_snapshot_free(snapshot);
  mi_prof_snapshot_free(NULL);
}

// All that a callback may do.
static void do_everything(void) {
  mi_free(test_use(mi_malloc(5003)));
  sink_sums_t sums;
  check(dump_sums(MI_PROF_KIND_LIVE, &sums));
  check(sums_now(1021, 1021).samples == 50);
  mi_prof_pause();
  mi_prof_resume();
  check(mi_prof_set_rate(1));
  mi_prof_reset();
}

static bool visit_everything(const mi_prof_sample_t* s, void* arg) {
  (void)s;
  do_everything();
  return (++*(int*)arg < 3);
}

static bool write_everything(const void* data, size_t size, void* arg) {
  (void)data; (void)size;
  do_everything();
  return (++*(int*)arg < 3);
}

static bool module_everything(const mi_prof_module_t* module, void* arg) {
  (void)module;
  do_everything();
  return (++*(int*)arg < 3);
}

static bool write_and_stop(const void* data, size_t size, void* arg) {
  (void)data; (void)size; (void)arg;
  mi_prof_stop();
  check(mi_prof_start_seeded(1, 2));
  return true;
}

static void test_callbacks(void) {
  test_begin("callbacks allocate, dump, change, stop and start the session");
  check(mi_prof_start_seeded(1, 1));
  allocate(50, 1021);
  allocate(50, 1031);
  allocate(50, 1033);
  int calls = 0;
  mi_prof_snapshot_t* const snapshot = mi_prof_snapshot_new();
  check(!mi_prof_snapshot_visit(snapshot, &visit_everything, &calls) && calls == 3);
  mi_prof_snapshot_free(snapshot);
  calls = 1;
  check(mi_prof_dump_writer(MI_PROF_FORMAT_PPROF, MI_PROF_KIND_LIVE, &write_everything, &calls) == (calls < 3));
  check(calls > 1);
  calls = 0;
  const bool all = mi_prof_modules_visit(&module_everything, &calls);
  check(calls >= 1 && (calls == 3) == !all);
  check(mi_prof_dump_writer(MI_PROF_FORMAT_TEXT, MI_PROF_KIND_LIVE, &write_and_stop, NULL));
  check(mi_prof_is_enabled());
  check_eq(sums_now(1021, 1021).samples, 0);
  release(block_count);
  mi_prof_stop();
}

// Pairs of blocks of two sizes: a record is in a snapshot or not, but what it says is its own.
static void allocate_pairs(void* arg) {
  volatile long* const quit = (volatile long*)arg;
  while (!load_flag(quit)) {
    void* const p = test_use(mi_malloc(1039));
    void* const q = test_use(mi_malloc(1049));
    mi_free(q);
    mi_free(p);
  }
}

static void test_snapshot_while_allocating(void) {
  test_begin("snapshots while other threads allocate");
  check(mi_prof_start_seeded(1, 1));
  allocate(1000, 1051);
  static volatile long quit;
  test_thread_t threads[2];
  for (size_t i = 0; i < 2; i++) { test_thread_start(&threads[i], &allocate_pairs, (void*)&quit); }
  for (size_t round = 0; round < 100; round++) {
    mi_prof_snapshot_t* const snapshot = mi_prof_snapshot_new();
    check_eq(sums_of(snapshot, 1051, 1051, NULL, NULL).inuse_bytes, 1000*1051);
    check(sums_of(snapshot, 1039, 1039, NULL, NULL).samples <= 2);
    check(sums_of(snapshot, 1049, 1049, NULL, NULL).samples <= 2);
    mi_prof_snapshot_free(snapshot);
  }
  store_flag(&quit, 1);
  for (size_t i = 0; i < 2; i++) { test_thread_join(&threads[i]); }
  release(1000);
  mi_prof_stop();
}

int main(int argc, char** argv);

static bool find_main(const mi_prof_module_t* module, void* arg) {
  const uintptr_t pc = (uintptr_t)&main;
  int* const found = (int*)arg;
  if (found[0]++ == 0) { found[1] = (module->start <= pc && pc < module->end && module->path[0] != 0 ? 1 : 0); }
  return true;
}

static void test_modules(void) {
  test_begin("the modules, the program's first, also while profiling is off");
  int found[2] = { 0, 0 };
  check(mi_prof_modules_visit(&find_main, found));
  check(found[0] >= 1);
  check(found[1] == 1);
  check(!mi_prof_modules_visit(NULL, NULL));
}

/* -----------------------------------------------------------
  Statistics and configurations
----------------------------------------------------------- */

static void test_stats(void) {
  test_begin("statistics");
  mi_prof_stats_t s = stats_now();
  check(!s.enabled && !s.paused);
  check_eq(s.inuse_bytes, 0);
  check_eq(s.live_samples, 0);
  check(mi_prof_start_seeded(1, 1));
  const mi_prof_stats_t before = stats_now();
  allocate(1000, 4001);
  for (size_t i = 0; i < 1000; i++) { memset(blocks[i], 1, 4001); }
  s = stats_now();
  check(s.enabled && !s.paused && s.sample_rate == 1);
  check_eq(s.samples - before.samples, 1000);
  check_eq(s.live_samples - before.live_samples, 1000);
  check_eq(s.live_sample_bytes - before.live_sample_bytes, 1000*4001);
  check_eq(s.inuse_objects - before.inuse_objects, 1000);
  check_eq(s.inuse_bytes - before.inuse_bytes, 1000*4001);
  check_eq(s.alloc_bytes - before.alloc_bytes, 1000*4001);
  check_eq(s.peak_bytes, s.inuse_bytes);
  check_eq(s.dropped_memory + s.dropped_limit + s.dropped_reentry + s.folded_stacks + s.failed_unwinds, 0);
  check(s.stacks >= 1 && s.stacks < 1000);
  check(s.profiler_bytes >= 1000*48 && s.profiler_bytes < 4*1024*1024);
  check(s.committed_bytes >= 1000*4001 && s.reserved_bytes >= s.committed_bytes);
  #if defined(__linux__) || defined(_WIN32) || defined(__APPLE__)
  check_between(s.rss_bytes, 1000*4001, 1e12);
  #endif
  release(1000);
  s = stats_now();
  check_eq(s.inuse_bytes, before.inuse_bytes);
  check(s.alloc_bytes >= 1000*4001 && s.peak_bytes >= 1000*4001);
  mi_prof_stop();
  // structures of another version
  s.size--;
  check(!mi_prof_stats_get(&s));
  mi_prof_stats_init(&s);
  s.version++;
  check(!mi_prof_stats_get(&s));
  check(!mi_prof_stats_get(NULL));
}

static void test_config(void) {
  test_begin("configurations");
  mi_prof_config_t config;
  mi_option_set(mi_option_prof_bt_max, 7);
  mi_option_set_enabled(mi_option_prof_accum, true);
  mi_prof_config_init(&config);
  check_eq(config.sample_rate, 524288);
  check_eq(config.bt_max, 7);
  check(config.accum && !config.peak && !config.label_thread && !config.label_heap && !config.label_age && !config.label_bytes);
  mi_option_set(mi_option_prof_bt_max, 32);
  mi_option_set_enabled(mi_option_prof_accum, false);
  config.sample_rate = 0;                 // the option's
  check(mi_prof_start_ex(&config));
  check_eq(stats_now().sample_rate, 524288);
  mi_prof_stop();
  config.size++;
  check(!mi_prof_start_ex(&config) && !mi_prof_config_default(&config));
  mi_prof_config_init(&config);
  config.version++;
  check(!mi_prof_start_ex(&config) && !mi_prof_config_default(&config));
  mi_prof_config_init(&config);
  config.bt_max = 129;
  check(!mi_prof_start_ex(&config));
  check(!mi_prof_start_ex(NULL) && !mi_prof_config_default(NULL));
  check(!mi_prof_is_enabled());
}

static size_t allocating_unwinder(uintptr_t* frames, size_t max, void* arg) {
  (void)frames; (void)max; (void)arg;
  mi_free(test_use(mi_malloc(20011)));
  return 0;
}

static void test_losses(void) {
  test_begin("losses are counted by cause");
  mi_prof_set_unwinder(&allocating_unwinder, NULL);
  check(mi_prof_start_seeded(1, 1));
  allocate(10, 1003);
  mi_prof_stats_t s = stats_now();
  check_eq(s.dropped_reentry, s.samples);
  check_eq(s.failed_unwinds, s.samples);
  check(s.samples >= 10);
  release(10);
  mi_prof_stop();
  mi_prof_set_unwinder(NULL, NULL);
  mi_prof_config_t config = config_of(1);
  config.max_bytes = 2*1024*1024;
  config.bt_max = 0;
  config.accum = true;
  check(mi_prof_start_ex(&config));
  static void* many[100000];
  for (size_t i = 0; i < 100000; i++) { many[i] = mi_malloc(16); }
  s = stats_now();
  check(s.dropped_limit > 0 && s.dropped_memory == 0);
  check_between(s.live_samples + s.dropped_limit, s.samples - 100, s.samples);
  check_eq(s.profiler_bytes <= 2*1024*1024, true);
  check_between(s.alloc_objects, 100000, 100100);     // what is not kept as a record is counted nevertheless
  for (size_t i = 0; i < 100000; i++) { mi_free(many[i]); }
  mi_prof_stop();
}

int main(int argc, char** argv) {
  (void)argc; (void)argv;
  test_stats();
  test_config();
  test_accum();
  test_unbiased();
  test_pause();
  test_pause_while_allocating();
  test_thread_label();
  test_heap_label();
  test_age_label();
  test_peak();
  test_peak_is_copied();
  test_kinds();
  test_snapshot();
  test_callbacks();
  test_snapshot_while_allocating();
  test_modules();
  test_losses();
  return test_done("test-profile-counts");
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

/* ----------------------------------------------------------------------------
  A program whose samples have labels, and that counts allocations and keeps the
  peak, by `mi_prof_start_ex`.

  Usage: labels NAME [plain]
  Writes NAME.live.pb.gz, NAME.allocs.pb.gz, NAME.peak.pb.gz and NAME.live.heap.
  `plain`: without labels.
-----------------------------------------------------------------------------*/

#include <mimalloc/profile.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define PLAIN __attribute__((noipa))

static void* volatile kept[4096];
static size_t kept_count;

static void keep(void* p) {
  if (p == NULL || kept_count >= 4096) abort();
  kept[kept_count++] = p;
}

PLAIN static void hold_old(void) {
  for (size_t i = 0; i < 40; i++) { keep(malloc(300)); }
}

PLAIN static void hold_young(void) {
  for (size_t i = 0; i < 30; i++) { keep(malloc(700)); }
}

PLAIN static void hold_in_heap(mi_heap_t* heap) {
  for (size_t i = 0; i < 50; i++) { keep(mi_heap_malloc(heap, 1000)); }
}

PLAIN static void hold_in_thread(void) {
  for (size_t i = 0; i < 100; i++) { keep(malloc(200)); }
}

PLAIN static void hold_nothing(void) {
  for (size_t i = 0; i < 300; i++) {
    void* volatile p = malloc(500);
    free(p);
  }
}

PLAIN static void hold_at_peak(void) {
  void* volatile blocks[10];
  for (size_t i = 0; i < 10; i++) { blocks[i] = malloc(100000); }
  for (size_t i = 0; i < 10; i++) { free(blocks[i]); }
}

static void* worker(void* arg) {
  prctl(PR_SET_NAME, "worker");
  hold_in_thread();
  return arg;
}

static bool write_file(const void* data, size_t size, void* file) {
  return (fwrite(data, 1, size, (FILE*)file) == size);
}

static void dump(const char* name, const char* what, mi_prof_format_t format, mi_prof_kind_t kind) {
  char path[4096];
  snprintf(path, sizeof(path), "%s.%s", name, what);
  FILE* const file = fopen(path, "wb");
  if (file == NULL || !mi_prof_dump_writer(format, kind, &write_file, file) || fclose(file) != 0) {
    fprintf(stderr, "%s: cannot be written\n", path);
    exit(1);
  }
}

int main(int argc, char** argv) {
  mi_prof_config_t config;
  mi_prof_config_init(&config);
  config.sample_rate = 1;
  config.accum = config.peak = true;
  config.label_thread = config.label_heap = config.label_age = config.label_bytes = (argc == 2);
  mi_heap_t* const heap = mi_heap_new();
  pthread_t thread;
  if (argc < 2 || heap == NULL || !mi_prof_name_heap(heap, "cache") || !mi_prof_start_ex(&config)) {
    fprintf(stderr, "usage: labels NAME [plain]\n");
    return 1;
  }
  hold_old();
  hold_in_heap(heap);
  if (pthread_create(&thread, NULL, &worker, NULL) != 0 || pthread_join(thread, NULL) != 0) return 1;
  hold_nothing();
  hold_at_peak();
  const struct timespec pause = { 2, 100*1000*1000 };
  nanosleep(&pause, NULL);
  hold_young();
  dump(argv[1], "live.pb.gz", MI_PROF_FORMAT_PPROF, MI_PROF_KIND_LIVE);
  dump(argv[1], "allocs.pb.gz", MI_PROF_FORMAT_PPROF, MI_PROF_KIND_ALLOCS);
  dump(argv[1], "peak.pb.gz", MI_PROF_FORMAT_PPROF, MI_PROF_KIND_PEAK);
  dump(argv[1], "live.heap", MI_PROF_FORMAT_TEXT, MI_PROF_KIND_LIVE);
  return 0;
}

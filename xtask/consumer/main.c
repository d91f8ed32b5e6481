/* A user of the library: builds and runs whether the profiler is there or not. */
#include <mimalloc.h>
#include <mimalloc/profile.h>
#include <stdio.h>

#if !defined(MI_PPROF)
#error "the library does not say whether the profiler is there"
#endif

#define COUNT 1000

static void* blocks[COUNT];

static int fail(const char* what) {
  fprintf(stderr, "consumer (MI_PPROF=%d): %s\n", MI_PPROF, what);
  return 1;
}

int main(void) {
  const bool expected = (MI_PPROF == 1);
  if (mi_prof_start_seeded(4096, 1) != expected) return fail("start");
  if (mi_prof_is_enabled() != expected) return fail("is_enabled");

  for (int i = 0; i < COUNT; i++) { blocks[i] = mi_malloc(1024); }
  size_t records = 0;
  size_t bytes = 0;
  mi_prof_debug_stats(&records, &bytes);
  if ((records > 0) != expected || bytes != records * 1024) return fail("samples");

  for (int i = 0; i < COUNT; i++) { mi_free(blocks[i]); }
  mi_prof_debug_stats(&records, &bytes);
  if (records != 0 || bytes != 0) return fail("samples of freed blocks");

  mi_prof_stop();
  if (mi_prof_is_enabled()) return fail("stop");
  return 0;
}

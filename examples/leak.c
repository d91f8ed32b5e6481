// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.

/* ----------------------------------------------------------------------------
  A small server that holds too much memory: who does?

    cache_load      keeps images, as it should
    session_open    keeps a session per user, as it should
    log_format      leaks a line per request
    request_parse   allocates most, but frees it all: it holds nothing

  Usage: leak PROFILE
  Writes the profile while the memory is held, then what each function really
  holds: one line `held FUNCTION BYTES OBJECTS` for each.
-----------------------------------------------------------------------------*/

#include <mimalloc.h>
#include <mimalloc/profile.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(_MSC_VER)
#define NOINLINE __declspec(noinline)
#else
#define NOINLINE __attribute__((noinline))
#endif

#define KiB ((size_t)1024)

enum { IMAGES = 96, USERS = 60000, REQUESTS = 400000 };

// What a function holds, to the byte.
typedef struct held_s {
  const char* function;
  size_t bytes;
  size_t objects;
} held_t;

static held_t held_cache   = { "cache_load", 0, 0 };
static held_t held_session = { "session_open", 0, 0 };
static held_t held_log     = { "log_format", 0, 0 };
static held_t held_request = { "request_parse", 0, 0 };

static void held_add(held_t* held, size_t size) {
  held->bytes += size;
  held->objects++;
}

static void held_sub(held_t* held, size_t size) {
  held->bytes -= size;
  held->objects--;
}

// A size between `low` and `high`, the same in every run.
static size_t random_size(size_t low, size_t high) {
  static uint64_t state = 0x9E3779B97F4A7C15u;
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return low + (size_t)((state * 0x2545F4914F6CDD1Du) >> 33) % (high - low + 1);
}

static void* images[IMAGES];
static void* sessions[USERS];
static void* volatile log_last;   // each line replaces the one before, which nobody frees

NOINLINE static void* cache_load(size_t size) {
  void* image = mi_malloc(size);
  if (image != NULL) {
    memset(image, 0xFF, size);
    held_add(&held_cache, size);
  }
  return image;
}

NOINLINE static void* session_open(size_t size) {
  void* session = mi_zalloc(size);
  if (session != NULL) { held_add(&held_session, size); }
  return session;
}

NOINLINE static void log_format(size_t request) {
  const size_t size = random_size(64, 448);
  char* line = (char*)mi_malloc(size);
  if (line != NULL) {
    snprintf(line, size, "GET /item/%zu", request);
    held_add(&held_log, size);
  }
  log_last = line;
}

NOINLINE static void request_parse(size_t request) {
  const size_t size = random_size(16, 8 * KiB);
  char* volatile body = (char*)mi_malloc(size);   // volatile: compilers elide a `malloc` that is only freed
  if (body != NULL) { held_add(&held_request, size); }
  log_format(request);
  if (body != NULL) { held_sub(&held_request, size); }
  mi_free(body);
}

NOINLINE static void serve(void) {
  for (size_t i = 0; i < IMAGES; i++) {
    images[i] = cache_load(random_size(16 * KiB, 2048 * KiB));
  }
  for (size_t i = 0; i < USERS; i++) {
    sessions[i] = session_open(random_size(512, 3 * KiB));
  }
  for (size_t i = 0; i < REQUESTS; i++) {
    request_parse(i);
  }
}

static void report(const held_t* held) {
  printf("held %s %zu %zu\n", held->function, held->bytes, held->objects);
}

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: %s PROFILE\n", argv[0]);
    return 1;
  }
  if (!mi_prof_start(0)) {
    fprintf(stderr, "%s: cannot start the profiler\n", argv[0]);
    return 1;
  }
  serve();
  if (!mi_prof_dump(argv[1])) return 1;
  report(&held_cache);
  report(&held_session);
  report(&held_log);
  report(&held_request);
  return 0;
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef TEST_PROFILE_H
#define TEST_PROFILE_H

// Shared by the profiler's tests: C11 that compiles as C++17 too. Include it first.
//
// While all allocations are recorded (rate 1), those of libc count too where `malloc` is overridden. So tests print
// nothing between two counts that they compare, and count threads' own allocations out by a baseline.

#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <stdbool.h>
#include <stddef.h>

#include "mimalloc.h"
#include "mimalloc/profile.h"

#if defined(_WIN32)
#include <windows.h>
#else
#include <pthread.h>
#include <unistd.h>
#include <time.h>
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define test_noinline   __declspec(noinline)
#elif defined(__clang__)
#define test_noinline   __attribute__((noinline))
#else
#define test_noinline   __attribute__((noinline,noclone))
#endif

// May be unused in one test or another.
#if defined(__GNUC__) || defined(__clang__)
#define test_fun        static __attribute__((unused))
#else
#define test_fun        static
#endif

/* -----------------------------------------------------------
  Checks. They stay under NDEBUG, and any thread may check.
----------------------------------------------------------- */

static volatile long test_checks;
static volatile long test_failures;

static void test_count(volatile long* counter) {
  #if defined(_MSC_VER) && !defined(__clang__)
  _InterlockedIncrement(counter);
  #else
  __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
  #endif
}

test_fun bool test_check(bool ok, const char* what, const char* file, int line) {
  test_count(&test_checks);
  if (!ok) {
    test_count(&test_failures);
    printf("FAILED  %s:%d: %s\n", file, line, what);
    fflush(stdout);
  }
  return ok;
}

test_fun bool test_check_between(double x, double lo, double hi, const char* what, const char* file, int line) {
  test_count(&test_checks);
  if (!(lo <= x && x <= hi)) {
    test_count(&test_failures);
    if (lo == hi) { printf("FAILED  %s:%d: %s is %.17g instead of %.17g\n", file, line, what, x, lo); }
             else { printf("FAILED  %s:%d: %s is %.17g, not within [%.17g, %.17g]\n", file, line, what, x, lo, hi); }
    fflush(stdout);
    return false;
  }
  return true;
}

#define check(cond)             test_check((cond), #cond, __FILE__, __LINE__)
#define check_eq(x,y)           check_between(x, y, y)
#define check_between(x,lo,hi)  test_check_between((double)(x), (double)(lo), (double)(hi), #x, __FILE__, __LINE__)

// Say what is checked from here on.
test_fun void test_begin(const char* what) {
  printf("  %s\n", what);
  fflush(stdout);
}

// `return test_done("name");` ends `main`. A test that checked nothing fails.
test_fun int test_done(const char* name) {
  printf("%s: %ld checks, %ld failures\n", name, test_checks, test_failures);
  fflush(stdout);
  return (test_failures == 0 && test_checks > 0 ? 0 : 1);
}

/* -----------------------------------------------------------
  The profiler's counts
----------------------------------------------------------- */

test_fun size_t prof_records(void) {
  size_t n;
  mi_prof_debug_stats(&n, NULL);
  return n;
}

test_fun size_t prof_bytes(void) {
  size_t n;
  mi_prof_debug_stats(NULL, &n);
  return n;
}

/* -----------------------------------------------------------
  Keep the compiler from knowing better
----------------------------------------------------------- */

// Returns `p`, in a way that no allocation is optimized away.
test_fun void* test_use(void* p) {
  #if defined(_MSC_VER) && !defined(__clang__)
  static void* volatile sink;
  sink = p;
  #else
  __asm__ volatile("" : "+r"(p) : : "memory");
  #endif
  return p;
}

// Is libc's `malloc` ours?
test_fun bool test_is_overridden(void) {
  void* const p = test_use(calloc(1, 10));
  const bool is_ours = mi_is_in_heap_region(p);
  free(p);
  return is_ours;
}

test_fun uint32_t test_random(uint64_t* state) {
  *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(*state >> 33);
}

// The size of a file in bytes, or -1 if there is none.
test_fun long test_file_size(const char* path) {
  FILE* const f = fopen(path, "rb");
  if (f == NULL) return -1;
  fseek(f, 0, SEEK_END);
  const long size = ftell(f);
  fclose(f);
  return size;
}

/* -----------------------------------------------------------
  Threads, flags, events and time
----------------------------------------------------------- */

// A `volatile long` that one thread sets and others look at.
#if defined(_MSC_VER) && !defined(__clang__)
#define load_flag(p)      (*(p))
#define store_flag(p,x)   _InterlockedExchange(p, x)
#else
#define load_flag(p)      __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define store_flag(p,x)   __atomic_store_n(p, x, __ATOMIC_RELEASE)
#endif

typedef struct test_thread_s {
  void (*fun)(void* arg);
  void* arg;
  #if defined(_WIN32)
  HANDLE handle;
  #else
  pthread_t handle;
  #endif
} test_thread_t;

// Set once, or reset by its waiter.
typedef struct test_event_s {
  #if defined(_WIN32)
  HANDLE handle;
  #else
  pthread_mutex_t mutex;
  pthread_cond_t  cond;
  bool set;
  #endif
} test_event_t;

#if defined(_WIN32)

static DWORD WINAPI test_thread_main(LPVOID arg) {
  test_thread_t* const t = (test_thread_t*)arg;
  t->fun(t->arg);
  return 0;
}

test_fun void test_thread_start(test_thread_t* t, void (*fun)(void* arg), void* arg) {
  t->fun = fun;
  t->arg = arg;
  t->handle = CreateThread(NULL, 0, &test_thread_main, t, 0, NULL);
  if (t->handle == NULL) { printf("unable to start a thread\n"); exit(2); }
}

test_fun void test_thread_join(test_thread_t* t) {
  WaitForSingleObject(t->handle, INFINITE);
  CloseHandle(t->handle);
}

test_fun void test_event_init(test_event_t* e)  { e->handle = CreateEventA(NULL, TRUE, FALSE, NULL); }
test_fun void test_event_set(test_event_t* e)   { SetEvent(e->handle); }
test_fun void test_event_reset(test_event_t* e) { ResetEvent(e->handle); }
test_fun void test_event_wait(test_event_t* e)  { WaitForSingleObject(e->handle, INFINITE); }

test_fun void test_sleep(unsigned ms) { Sleep(ms); }
test_fun double test_seconds(void)    { return (double)GetTickCount64() / 1000.0; }

#else

static void* test_thread_main(void* arg) {
  test_thread_t* const t = (test_thread_t*)arg;
  t->fun(t->arg);
  return NULL;
}

test_fun void test_thread_start(test_thread_t* t, void (*fun)(void* arg), void* arg) {
  t->fun = fun;
  t->arg = arg;
  if (pthread_create(&t->handle, NULL, &test_thread_main, t) != 0) { printf("unable to start a thread\n"); exit(2); }
}

test_fun void test_thread_join(test_thread_t* t) {
  pthread_join(t->handle, NULL);
}

test_fun void test_event_init(test_event_t* e) {
  pthread_mutex_init(&e->mutex, NULL);
  pthread_cond_init(&e->cond, NULL);
  e->set = false;
}

test_fun void test_event_put(test_event_t* e, bool set) {
  pthread_mutex_lock(&e->mutex);
  e->set = set;
  pthread_cond_broadcast(&e->cond);
  pthread_mutex_unlock(&e->mutex);
}

test_fun void test_event_set(test_event_t* e)   { test_event_put(e, true); }
test_fun void test_event_reset(test_event_t* e) { test_event_put(e, false); }

test_fun void test_event_wait(test_event_t* e) {
  pthread_mutex_lock(&e->mutex);
  while (!e->set) { pthread_cond_wait(&e->cond, &e->mutex); }
  pthread_mutex_unlock(&e->mutex);
}

test_fun void test_sleep(unsigned ms) {
  const struct timespec t = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000L };
  nanosleep(&t, NULL);
}

test_fun double test_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#endif

#endif // TEST_PROFILE_H

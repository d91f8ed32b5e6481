// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#pragma once
#ifndef FUZZ_THREAD_H
#define FUZZ_THREAD_H

/* -----------------------------------------------------------
  Threads that do one thing at a time, when they are told to.
  Thread 0 is the fuzzer's. The others start when they are first
  used, and may end and start again.
----------------------------------------------------------- */

#define MAX_THREADS  (3)
#define MAX_HEAPS    (3)

typedef struct thread_s {
  int         number;
  bool        running;
  pthread_t   handle;
  void      (*work)(struct thread_s* self);   // NULL when done
  bool        quit;
  mi_heap_t*  heaps[MAX_HEAPS];               // made by this thread
  mi_heap_t*  default_heap;                   // one of them, or NULL for the backing heap
} thread_t;

static thread_t threads[MAX_THREADS];
static unsigned thread_starts;                // in this input
static pthread_mutex_t thread_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t  thread_cond  = PTHREAD_COND_INITIALIZER;

static void* thread_main(void* arg) {
  thread_t* const self = (thread_t*)arg;
  pthread_mutex_lock(&thread_mutex);
  while (!self->quit || self->work != NULL) {
    if (self->work == NULL) { pthread_cond_wait(&thread_cond, &thread_mutex); continue; }
    void (*const work)(thread_t*) = self->work;
    pthread_mutex_unlock(&thread_mutex);
    work(self);
    pthread_mutex_lock(&thread_mutex);
    self->work = NULL;
    pthread_cond_broadcast(&thread_cond);
  }
  pthread_mutex_unlock(&thread_mutex);
  return NULL;
}

static void thread_start(thread_t* t) {
  if (t->running || t->number == 0) return;
  t->quit = false;
  t->work = NULL;
  if (pthread_create(&t->handle, NULL, &thread_main, t) != 0) { perror("pthread_create"); exit(2); }
  t->running = true;
  thread_starts++;
}

static void thread_post(thread_t* t, void (*work)(thread_t*)) {
  thread_start(t);
  pthread_mutex_lock(&thread_mutex);
  t->work = work;
  pthread_cond_broadcast(&thread_cond);
  pthread_mutex_unlock(&thread_mutex);
}

static void thread_wait(thread_t* t) {
  pthread_mutex_lock(&thread_mutex);
  while (t->work != NULL) { pthread_cond_wait(&thread_cond, &thread_mutex); }
  pthread_mutex_unlock(&thread_mutex);
}

static void thread_run(thread_t* t, void (*work)(thread_t*)) {
  if (t->number == 0) { work(t); return; }
  thread_post(t, work);
  thread_wait(t);
}

static void thread_join(thread_t* t) {
  if (!t->running) return;
  pthread_mutex_lock(&thread_mutex);
  t->quit = true;
  pthread_cond_broadcast(&thread_cond);
  pthread_mutex_unlock(&thread_mutex);
  pthread_join(t->handle, NULL);
  t->running = false;
}

#endif // FUZZ_THREAD_H

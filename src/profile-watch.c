// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  A signal that asks for a dump, and a thread that serves it, and
  what is due by the time, when the program allocates nothing.

  The session says what is wanted, with the control lock.
  `mi_prof_watch_update` then makes it so, without any lock: who
  starts a thread or waits for its end may wait for others.
----------------------------------------------------------- */

#if !defined(_WIN32) && !defined(__wasi__)
  #define MI_PROF_USE_SIGNALS   1
  #include <pthread.h>
  #include <signal.h>
  #if defined(__APPLE__)
    #include <mach/mach.h>
    #include <mach/semaphore.h>
  #else
    #include <semaphore.h>
  #endif
#endif

typedef enum mi_prof_watch_state_e {
  MI_PROF_WATCH_NONE,
  MI_PROF_WATCH_RUNS,
  MI_PROF_WATCH_STOPS,        // it is to leave,
  MI_PROF_WATCH_LEFT          // it has, and is to be joined
} mi_prof_watch_state_t;

#if defined(_WIN32)
  typedef HANDLE        mi_prof_os_thread_t;
  typedef HANDLE        mi_prof_semaphore_t;
#elif defined(__APPLE__)
  typedef pthread_t     mi_prof_os_thread_t;
  typedef semaphore_t   mi_prof_semaphore_t;
#elif MI_PROF_USE_SIGNALS
  typedef pthread_t     mi_prof_os_thread_t;
  typedef sem_t         mi_prof_semaphore_t;
#else
  typedef int           mi_prof_os_thread_t;
  typedef int           mi_prof_semaphore_t;
#endif

static struct mi_prof_watch_s {
  _Atomic(size_t)     want_signal;    // its number, or 0
  _Atomic(size_t)     want_thread;
  _Atomic(size_t)     updates;        // asked for. The first who asks does them all, and owns what follows
  size_t              signal_seen;    // the last one that was wanted,
  size_t              signal;         //   and whether it is ours now: it or 0
  bool                has_semaphore;
  mi_prof_semaphore_t semaphore;
  mi_prof_os_thread_t    thread;
  _Atomic(size_t)     state;          // of the thread
  _Atomic(uintptr_t)  thread_id;
} mi_prof_watch;

static void mi_prof_watch_want(const mi_prof_config_t* config) {
  const bool has_signal = (config != NULL && config->dump_signal > 0);
  const bool has_thread = (config != NULL && config->dump_thread && (has_signal || config->dump_seconds != 0));
  mi_atomic_store_release(&mi_prof_watch.want_signal, (size_t)(has_signal ? config->dump_signal : 0));
  mi_atomic_store_release(&mi_prof_watch.want_thread, (size_t)(has_thread ? 1 : 0));
}

static void mi_prof_watch_main(void);

/* -----------------------------------------------------------
  Threads and semaphores. To signal one is safe in a signal handler.
----------------------------------------------------------- */

#if defined(_WIN32)

static bool mi_prof_semaphore_init(mi_prof_semaphore_t* s) {
  *s = CreateEventW(NULL, FALSE, FALSE, NULL);
  return (*s != NULL);
}

static void mi_prof_semaphore_signal(mi_prof_semaphore_t* s) {
  SetEvent(*s);
}

static void mi_prof_semaphore_wait(mi_prof_semaphore_t* s, int64_t msecs) {
  WaitForSingleObject(*s, (msecs < 0 ? INFINITE : (DWORD)(msecs < INT32_MAX ? msecs : INT32_MAX)));
}

// It holds on to our own module, so that its code stays when the program unloads that.
static DWORD WINAPI mi_prof_os_thread_main(LPVOID module) {
  mi_prof_watch_main();
  if (module != NULL) { FreeLibraryAndExitThread((HMODULE)module, 0); }
  return 0;
}

static bool mi_prof_os_thread_create(mi_prof_os_thread_t* thread) {
  HMODULE module = NULL;
  (void)GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, (LPCWSTR)(uintptr_t)&mi_prof_os_thread_main, &module);
  *thread = CreateThread(NULL, 0, &mi_prof_os_thread_main, module, 0, NULL);
  if (*thread == NULL && module != NULL) { FreeLibrary(module); }
  return (*thread != NULL);
}

static void mi_prof_os_thread_join(mi_prof_os_thread_t* thread) {
  WaitForSingleObject(*thread, INFINITE);
  CloseHandle(*thread);
}

#elif MI_PROF_USE_SIGNALS

#if defined(__APPLE__)

static bool mi_prof_semaphore_init(mi_prof_semaphore_t* s) {
  return (semaphore_create(mach_task_self(), s, SYNC_POLICY_FIFO, 0) == KERN_SUCCESS);
}

static void mi_prof_semaphore_signal(mi_prof_semaphore_t* s) {
  (void)semaphore_signal(*s);
}

static void mi_prof_semaphore_wait(mi_prof_semaphore_t* s, int64_t msecs) {
  if (msecs < 0) { (void)semaphore_wait(*s); return; }
  if (msecs > INT32_MAX) { msecs = INT32_MAX; }
  const mach_timespec_t time = { (unsigned)(msecs/1000), (clock_res_t)(msecs%1000)*1000000 };
  (void)semaphore_timedwait(*s, time);
}

#else

static bool mi_prof_semaphore_init(mi_prof_semaphore_t* s) {
  return (sem_init(s, 0, 0) == 0);
}

static void mi_prof_semaphore_signal(mi_prof_semaphore_t* s) {
  (void)sem_post(s);
}

// By the clock that nobody sets, where there is a function for that.
#if defined(__GLIBC__)
  #if __GLIBC_PREREQ(2,30)
  #define MI_PROF_SEM_CLOCK   CLOCK_MONOTONIC
  #define mi_prof_sem_timedwait(s,t)  mi_prof_sem_clockwait(s, CLOCK_MONOTONIC, t)
  // by its symbol, as the header shows it only with `_GNU_SOURCE`
  mi_prof_decl_extern int mi_prof_sem_clockwait(sem_t* s, clockid_t clock, const struct timespec* t) __asm__("sem_clockwait");
  #endif
#endif
#if !defined(MI_PROF_SEM_CLOCK)
  #define MI_PROF_SEM_CLOCK   CLOCK_REALTIME
  #define mi_prof_sem_timedwait(s,t)  sem_timedwait(s, t)
#endif

static void mi_prof_semaphore_wait(mi_prof_semaphore_t* s, int64_t msecs) {
  if (msecs < 0) { (void)sem_wait(s); return; }
  if (msecs > INT32_MAX) { msecs = INT32_MAX; }
  struct timespec t;
  clock_gettime(MI_PROF_SEM_CLOCK, &t);
  const int64_t nanos = (int64_t)t.tv_nsec + (msecs%1000)*1000000;
  t.tv_sec += (time_t)(msecs/1000 + nanos/1000000000);
  t.tv_nsec = (long)(nanos%1000000000);
  (void)mi_prof_sem_timedwait(s, &t);
}

#endif

static void* mi_prof_os_thread_main(void* arg) {
  MI_UNUSED(arg);
  #if defined(__linux__)
  (void)prctl(PR_SET_NAME, "mi_prof");
  #endif
  mi_prof_watch_main();
  return NULL;
}

// The program's signals are not for this thread.
static bool mi_prof_os_thread_create(mi_prof_os_thread_t* thread) {
  sigset_t all;
  sigset_t old;
  sigfillset(&all);
  if (pthread_sigmask(SIG_SETMASK, &all, &old) != 0) return false;
  const bool ok = (pthread_create(thread, NULL, &mi_prof_os_thread_main, NULL) == 0);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  return ok;
}

static void mi_prof_os_thread_join(mi_prof_os_thread_t* thread) {
  (void)pthread_join(*thread, NULL);
}

#else

static bool mi_prof_semaphore_init(mi_prof_semaphore_t* s)                 { MI_UNUSED(s); return false; }
static void mi_prof_semaphore_signal(mi_prof_semaphore_t* s)               { MI_UNUSED(s); }
static void mi_prof_semaphore_wait(mi_prof_semaphore_t* s, int64_t msecs)  { MI_UNUSED(s); MI_UNUSED(msecs); }
static bool mi_prof_os_thread_create(mi_prof_os_thread_t* thread)                { MI_UNUSED(thread); return false; }
static void mi_prof_os_thread_join(mi_prof_os_thread_t* thread)                  { MI_UNUSED(thread); }

#endif

/* -----------------------------------------------------------
  The thread
----------------------------------------------------------- */

static void mi_prof_watch_wake(void) {
  if (mi_atomic_load_acquire(&mi_prof_watch_runs) != 0) { mi_prof_semaphore_signal(&mi_prof_watch.semaphore); }
}

static void mi_prof_watch_main(void) {
  mi_thread_init();
  mi_prof_mute(true);
  mi_atomic_store_release(&mi_prof_watch.thread_id, (uintptr_t)_mi_prim_thread_id());
  while (true) {
    if (mi_prof_seconds_are_due()) { mi_prof_ask(); }
    if (mi_atomic_load_acquire(&mi_prof_trigger.asked) != 0) { mi_prof_serve(); }
    size_t expected = MI_PROF_WATCH_STOPS;
    if (mi_atomic_cas_strong_acq_rel(&mi_prof_watch.state, &expected, (size_t)MI_PROF_WATCH_LEFT)) return;
    mi_prof_semaphore_wait(&mi_prof_watch.semaphore, mi_prof_seconds_left());
  }
}

static void mi_prof_watch_start(void) {
  struct mi_prof_watch_s* const w = &mi_prof_watch;
  if (!w->has_semaphore) { w->has_semaphore = mi_prof_semaphore_init(&w->semaphore); }
  mi_heap_t* const heap = mi_prim_get_default_heap();
  if (!mi_heap_is_initialized(heap) && _mi_process_is_initialized) { mi_thread_init(); }
  const bool was_muted = mi_prof_mute(true);    // the system may allocate for the thread
  mi_atomic_store_release(&w->thread_id, (uintptr_t)0);
  mi_atomic_store_release(&w->state, (size_t)MI_PROF_WATCH_RUNS);
  mi_atomic_store_release(&mi_prof_watch_runs, (size_t)1);
  const bool ok = (w->has_semaphore && mi_prof_os_thread_create(&w->thread));
  mi_prof_mute(was_muted);
  if (ok) return;
  mi_atomic_store_release(&mi_prof_watch_runs, (size_t)0);
  mi_atomic_store_release(&w->state, (size_t)MI_PROF_WATCH_NONE);
  if (mi_prof_watches_clock()) { mi_prof_ask_attention(); }
  _mi_message("warning: unable to start the thread of the heap profiler: what it was to do happens when the program allocates\n");
}

static void mi_prof_watch_join(void) {
  const bool was_muted = mi_prof_mute(true);
  mi_prof_os_thread_join(&mi_prof_watch.thread);
  mi_prof_mute(was_muted);
  mi_atomic_store_release(&mi_prof_watch_runs, (size_t)0);
  mi_atomic_store_release(&mi_prof_watch.state, (size_t)MI_PROF_WATCH_NONE);
}

static void mi_prof_watch_update_thread(bool want) {
  struct mi_prof_watch_s* const w = &mi_prof_watch;
  if (want) {
    size_t expected = MI_PROF_WATCH_STOPS;      // where it was asked to leave by itself, it goes on
    (void)mi_atomic_cas_strong_acq_rel(&w->state, &expected, (size_t)MI_PROF_WATCH_RUNS);
    if (mi_atomic_load_acquire(&w->state) == MI_PROF_WATCH_LEFT) { mi_prof_watch_join(); }
    if (mi_atomic_load_acquire(&w->state) == MI_PROF_WATCH_NONE) { mi_prof_watch_start(); }
    else { mi_prof_watch_wake(); }              // there may be another time to wait for
  }
  else if (mi_atomic_load_acquire(&w->state) != MI_PROF_WATCH_NONE) {
    size_t expected = MI_PROF_WATCH_RUNS;
    (void)mi_atomic_cas_strong_acq_rel(&w->state, &expected, (size_t)MI_PROF_WATCH_STOPS);
    mi_prof_watch_wake();
    if (mi_atomic_load_acquire(&w->thread_id) != (uintptr_t)_mi_prim_thread_id()) { mi_prof_watch_join(); }   // it runs a function of the program
  }
}

/* -----------------------------------------------------------
  The signal
----------------------------------------------------------- */

#if MI_PROF_USE_SIGNALS

static const struct { const char* name; int number; } mi_prof_signals[] = {
  { "HUP", SIGHUP }, { "INT", SIGINT }, { "QUIT", SIGQUIT }, { "USR1", SIGUSR1 }, { "USR2", SIGUSR2 }, { "ALRM", SIGALRM },
  { "TERM", SIGTERM }, { "CHLD", SIGCHLD }, { "CONT", SIGCONT }, { "URG", SIGURG }, { "VTALRM", SIGVTALRM }, { "PROF", SIGPROF },
  { "WINCH", SIGWINCH }, { "IO", SIGIO }
};

// A handler that returns from one of these would get it again and again, or never.
static bool mi_prof_signal_is_usable(int number) {
  static const int unusable[] = { SIGKILL, SIGSTOP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS };
  for (size_t i = 0; i < sizeof(unusable)/sizeof(unusable[0]); i++) {
    if (number == unusable[i]) return false;
  }
  struct sigaction action;
  return (number > 0 && sigaction(number, NULL, &action) == 0);
}

bool _mi_prof_prim_signal_parse(const char* name, int* number) {
  int n = 0;
  if (name[0] >= '0' && name[0] <= '9') {
    const char* p = name;
    const uint64_t x = mi_prof_parse_number(&p);
    n = (*p == 0 && x < 1000 ? (int)x : 0);
  }
  else {
    if (_mi_strnicmp(name, "SIG", 3) == 0) { name += 3; }
    for (size_t i = 0; i < sizeof(mi_prof_signals)/sizeof(mi_prof_signals[0]); i++) {
      const size_t len = _mi_strlen(mi_prof_signals[i].name);
      if (_mi_strlen(name) == len && _mi_strnicmp(name, mi_prof_signals[i].name, len) == 0) { n = mi_prof_signals[i].number; }
    }
  }
  if (!mi_prof_signal_is_usable(n)) return false;
  *number = n;
  return true;
}

static void mi_prof_on_signal(int number) {
  MI_UNUSED(number);
  const int err = errno;
  mi_prof_ask();
  mi_prof_watch_wake();
  errno = err;
}

// Is this what a signal does? Also if the program has not changed it (`SIG_DFL`).
static bool mi_prof_signal_is(int number, void (*handler)(int)) {
  struct sigaction action;
  return (sigaction(number, NULL, &action) == 0 && (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == handler);
}

static bool mi_prof_signal_set(int number, void (*handler)(int)) {
  struct sigaction action;
  _mi_memzero_var(action);
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  return (sigaction(number, &action, NULL) == 0);
}

static bool mi_prof_signal_take(int number) {
  if (!mi_prof_signal_is_usable(number)) {
    _mi_message("warning: signal %d cannot ask for a heap profile\n", number);
    return false;
  }
  if (!mi_prof_signal_is(number, SIG_DFL)) {
    _mi_message("warning: signal %d does not ask for a heap profile, as the program handles or ignores it\n", number);
    return false;
  }
  return mi_prof_signal_set(number, &mi_prof_on_signal);
}

static void mi_prof_signal_give_back(int number) {
  if (mi_prof_signal_is(number, &mi_prof_on_signal)) { (void)mi_prof_signal_set(number, SIG_DFL); }
}

#else

bool _mi_prof_prim_signal_parse(const char* name, int* number) {
  MI_UNUSED(name); MI_UNUSED(number);
  return false;
}

static bool mi_prof_signal_take(int number) {
  _mi_message("warning: signal %d cannot ask for a heap profile on this system\n", number);
  return false;
}

static void mi_prof_signal_give_back(int number) {
  MI_UNUSED(number);
}

#endif

static void mi_prof_watch_update_signal(size_t want) {
  struct mi_prof_watch_s* const w = &mi_prof_watch;
  if (want == w->signal_seen) return;
  w->signal_seen = want;
  if (w->signal != 0) { mi_prof_signal_give_back((int)w->signal); }
  w->signal = (want != 0 && mi_prof_signal_take((int)want) ? want : 0);
}

/* -----------------------------------------------------------
  Make it so
----------------------------------------------------------- */

// Called outside of all locks. While one thread is at it, another one that comes along leaves it the rest to do.
static void mi_prof_watch_update(void) {
  struct mi_prof_watch_s* const w = &mi_prof_watch;
  if (mi_atomic_increment_acq_rel(&w->updates) != 0) return;
  size_t seen;
  do {
    seen = mi_atomic_load_acquire(&w->updates);
    mi_prof_watch_update_thread(mi_atomic_load_acquire(&w->want_thread) != 0);
    mi_prof_watch_update_signal(mi_atomic_load_acquire(&w->want_signal));
  } while (mi_atomic_sub_acq_rel(&w->updates, seen) != seen);
}

// A forked child has no such thread yet.
static void mi_prof_watch_forked(void) {
  struct mi_prof_watch_s* const w = &mi_prof_watch;
  mi_atomic_store_relaxed(&w->updates, (size_t)0);
  mi_atomic_store_relaxed(&w->state, (size_t)MI_PROF_WATCH_NONE);
  mi_atomic_store_relaxed(&w->thread_id, (uintptr_t)0);
  mi_atomic_store_relaxed(&mi_prof_watch_runs, (size_t)0);
  w->has_semaphore = false;
  if (mi_atomic_load_relaxed(&w->want_thread) != 0) { mi_prof_watch_update(); }
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  How a session runs, by the options and the environment
----------------------------------------------------------- */

#define MI_PROF_DEFAULT_PATTERN  "heap.%p.%n.pb.gz"
#define MI_PROF_RATE_MAX  (SIZE_MAX/128)    // so that no interval overflows

// The value of an option. If it is out of range, warn and take the default.
static size_t mi_prof_option(mi_option_t option, const char* name, long min, long max, long fallback) {
  const long value = mi_option_get(option);
  if (value >= min && value <= max) return (size_t)value;
  _mi_warning_message("option '%s' has an invalid value (%ld): using %ld instead\n", name, value, fallback);
  return (size_t)fallback;
}

static size_t mi_prof_option_rate(void) {
  return mi_prof_option(mi_option_prof_sample_rate, "prof_sample_rate", 1, LONG_MAX, 524288);
}

static size_t mi_prof_clamp_rate(size_t rate) {
  return (rate > MI_PROF_RATE_MAX ? MI_PROF_RATE_MAX : rate);
}

#define MI_PROF_MAX_PATH  (4096)
#define MI_PROF_KEEP_MAX  (1000)            // of `prof_dump_keep`

static char mi_prof_exit_path[MI_PROF_MAX_PATH];      // `MIMALLOC_PROF_DUMP_AT_EXIT`, or empty
static char mi_prof_dump_pattern[MI_PROF_MAX_PATH];   // `MIMALLOC_PROF_DUMP`, or the default; empty if it is too long
static int  mi_prof_dump_signal;                      // `MIMALLOC_PROF_DUMP_SIGNAL`, or 0
static _Atomic(size_t) mi_prof_first_process;         // the one that this is forked from, if it is another one

// Read a path. One that is too long leaves `path` empty, and is reported here.
static bool mi_prof_getenv_path(const char* name, const char* shown_name, char* path) {
  path[0] = 0;
  const bool found = mi_prof_getenv(name, path, MI_PROF_MAX_PATH);
  if (!_mi_prof_prim_env_exceeds(name, path, MI_PROF_MAX_PATH)) {
    if (!found) { path[0] = 0; }
    return found;
  }
  path[0] = 0;
  _mi_message("warning: environment variable '%s' has a path that is too long (of more than %d bytes): no profile is written there\n", shown_name, MI_PROF_MAX_PATH - 2);
  return true;
}

// What the environment says of when and where profiles are written. Nothing of that counts in a set-user-id process, where
// mimalloc has read the options from the environment already.
static void mi_prof_environment_init(void) {
  static bool done;     // at first by the thread that starts the process
  if (done) return;
  done = true;
  mi_atomic_store_relaxed(&mi_prof_first_process, _mi_prof_prim_process_id());
  _mi_strlcpy(mi_prof_dump_pattern, MI_PROF_DEFAULT_PATTERN, MI_PROF_MAX_PATH);
  if (_mi_prof_prim_is_setuid()) {
    for (int option = mi_option_prof_dump_alloc; option <= mi_option_prof_leak; option++) { mi_option_set((mi_option_t)option, 0); }
    return;
  }
  mi_prof_getenv_path("mimalloc_prof_dump_at_exit", "MIMALLOC_PROF_DUMP_AT_EXIT", mi_prof_exit_path);
  if (!mi_prof_getenv_path("mimalloc_prof_dump", "MIMALLOC_PROF_DUMP", mi_prof_dump_pattern)) {
    _mi_strlcpy(mi_prof_dump_pattern, MI_PROF_DEFAULT_PATTERN, MI_PROF_MAX_PATH);
  }
  char value[64];
  if (mi_prof_getenv("mimalloc_prof_dump_signal", value, sizeof(value)) && !_mi_prof_prim_signal_parse(value, &mi_prof_dump_signal)) {
    _mi_message("warning: environment variable 'MIMALLOC_PROF_DUMP_SIGNAL' has an invalid value (%s), which is no signal that can ask for a profile: it is ignored\n", value);
  }
}

// Does this library know a structure of the caller's with these tags?
static bool mi_prof_is_known(size_t size, size_t version, size_t our_size, size_t our_version) {
  return (size == our_size && version == our_version);
}

static bool mi_prof_config_is_known(const mi_prof_config_t* config) {
  return (config != NULL && mi_prof_is_known(config->size, config->version, sizeof(*config), MI_PROF_CONFIG_VERSION));
}

bool mi_prof_config_default(mi_prof_config_t* config) mi_attr_noexcept {
  if (!mi_prof_config_is_known(config)) return false;
  config->sample_rate  = mi_prof_option_rate();
  config->bt_max       = mi_prof_option(mi_option_prof_bt_max, "prof_bt_max", 0, MI_PROF_MAX_DEPTH, 32);
  config->max_bytes    = mi_prof_option(mi_option_prof_max_bytes, "prof_max_bytes", 0, LONG_MAX, 64L*1024*1024);
  config->seed         = (uint64_t)mi_option_get(mi_option_prof_seed);
  config->unwind       = mi_prof_unwind_default();
  config->accum        = mi_option_is_enabled(mi_option_prof_accum);
  config->peak         = mi_option_is_enabled(mi_option_prof_peak);
  config->label_thread = mi_option_is_enabled(mi_option_prof_label_thread);
  config->label_heap   = mi_option_is_enabled(mi_option_prof_label_heap);
  config->label_age    = mi_option_is_enabled(mi_option_prof_label_age);
  config->label_bytes  = mi_option_is_enabled(mi_option_prof_label_bytes);
  mi_prof_environment_init();       // before these are asked for
  config->dump_alloc   = mi_prof_option(mi_option_prof_dump_alloc, "prof_dump_alloc", 0, LONG_MAX, 0);
  config->dump_growth  = mi_prof_option(mi_option_prof_dump_growth, "prof_dump_growth", 0, LONG_MAX, 0);
  config->dump_seconds = mi_prof_option(mi_option_prof_dump_seconds, "prof_dump_seconds", 0, LONG_MAX, 0);
  config->dump_at_limit = mi_prof_option(mi_option_prof_dump_at_limit, "prof_dump_at_limit", 0, 100, 0);
  config->dump_signal  = mi_prof_dump_signal;
  config->dump_on_oom  = mi_option_is_enabled(mi_option_prof_dump_on_oom);
  config->dump_thread  = mi_option_is_enabled(mi_option_prof_dump_thread);
  config->dump_keep    = mi_prof_option(mi_option_prof_dump_keep, "prof_dump_keep", 0, MI_PROF_KEEP_MAX, 0);
  config->dump_path    = mi_prof_dump_pattern;
  config->dump_kind    = (mi_prof_kind_t)mi_prof_option(mi_option_prof_dump_kind, "prof_dump_kind", MI_PROF_KIND_LIVE, MI_PROF_KIND_PEAK, MI_PROF_KIND_LIVE);
  config->leak         = mi_option_is_enabled(mi_option_prof_leak);
  return true;
}

// What is kept with each sample. A thread has its own copy of this.
typedef enum mi_prof_feature_e {
  MI_PROF_ACCUM        = 1,
  MI_PROF_LABEL_THREAD = 2,
  MI_PROF_LABEL_HEAP   = 4,
  MI_PROF_LABEL_AGE    = 8
} mi_prof_feature_t;

static uint8_t mi_prof_features(const mi_prof_config_t* config) {
  return (uint8_t)((config->accum ? MI_PROF_ACCUM : 0) | (config->label_thread ? MI_PROF_LABEL_THREAD : 0) |
                   (config->label_heap ? MI_PROF_LABEL_HEAP : 0) | (config->label_age ? MI_PROF_LABEL_AGE : 0));
}

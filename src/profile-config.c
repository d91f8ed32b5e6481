// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  How a session runs, by the options and the environment
----------------------------------------------------------- */

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

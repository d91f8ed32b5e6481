// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* ----------------------------------------------------------------------------
Writes a snapshot as gperftools' `heap_v2` text, and the number formatting for it.

The text holds raw counts, which the reader scales by the average size in a line.
So there is one line for each stack and size. A block that was resized in place is
scaled by its new size: only the proto form keeps the weight it was sampled with.
---------------------------------------------------------------------------- */

/* -----------------------------------------------------------
  Formatting: append at `p` and return the end
----------------------------------------------------------- */

#define MI_FMT_MAX  (24)    // bytes that a number can take

static char* mi_fmt_str(char* p, const char* s) {
  while (*s != 0) { *p++ = *s++; }
  return p;
}

static char* mi_fmt_number(char* p, uint64_t x, unsigned base, size_t width, char pad) {
  char digits[MI_FMT_MAX];
  size_t n = 0;
  do { digits[n++] = "0123456789abcdef"[x % base]; x /= base; } while (x != 0);
  for (; width > n; width--) { *p++ = pad; }
  while (n > 0) { *p++ = digits[--n]; }
  return p;
}

static char* mi_fmt_dec(char* p, uint64_t x)                { return mi_fmt_number(p, x, 10, 0, ' '); }
static char* mi_fmt_decw(char* p, uint64_t x, size_t width) { return mi_fmt_number(p, x, 10, width, ' '); }
static char* mi_fmt_hex(char* p, uint64_t x, size_t width)  { return mi_fmt_number(p, x, 16, width, '0'); }

static char* mi_fmt_version(char* p) {
  p = mi_fmt_str(p, "mi_prof " MI_PROF_VERSION ", mimalloc ");
  p = mi_fmt_dec(p, MI_MALLOC_VERSION / 10000);
  p = mi_fmt_dec(mi_fmt_str(p, "."), (MI_MALLOC_VERSION / 100) % 100);
  return mi_fmt_dec(mi_fmt_str(p, "."), MI_MALLOC_VERSION % 100);
}

// What is missing in a profile: a line for each cause. Returns false if nothing is.
#define MI_LOSS_COUNT (5)
#define MI_LOSS_MAX   (96)

static bool mi_fmt_loss(char* line, const mi_prof_stats_t* stats, size_t i) {
  const struct { const char* what; size_t count; } losses[MI_LOSS_COUNT] = {
    { "samples dropped, as the system gave no memory: ", stats->dropped_memory },
    { "samples dropped, as prof_max_bytes was reached: ", stats->dropped_limit },
    { "samples dropped, as they fell into the taking of another: ", stats->dropped_reentry },
    { "samples in [other], as there was no room for their stack: ", stats->folded_stacks },
    { "samples whose stack could not be unwound: ", stats->failed_unwinds }
  };
  *mi_fmt_dec(mi_fmt_str(line, losses[i].what), losses[i].count) = 0;
  return (losses[i].count > 0);
}

/* -----------------------------------------------------------
  Output
----------------------------------------------------------- */

typedef struct mi_text_s {
  mi_prof_write_fun* write;
  void*  arg;
  bool   ok;                  // false once a write failed
  size_t used;
  char   buf[2*MI_KiB];       // on the stack, which may be small
} mi_text_t;

#define MI_TEXT_PIECE  (256)  // most bytes that are appended at a time

static void mi_text_flush(mi_text_t* t) {
  if (t->ok && t->used > 0) { t->ok = t->write(t->buf, t->used, t->arg); }
  t->used = 0;
}

// Where the next piece goes; end it with `mi_text_end`.
static inline char* mi_text_begin(mi_text_t* t) {
  if (t->used > sizeof(t->buf) - MI_TEXT_PIECE) { mi_text_flush(t); }
  return &t->buf[t->used];
}

static inline void mi_text_end(mi_text_t* t, const char* end) {
  t->used = (size_t)(end - t->buf);
  mi_assert_internal(t->used <= sizeof(t->buf));
}

static void mi_text_put_str(mi_text_t* t, const char* s) {
  mi_assert_internal(_mi_strlen(s) <= MI_TEXT_PIECE);
  mi_text_end(t, mi_fmt_str(mi_text_begin(t), s));
}

// A path ends at the first blank: write blanks, and what may not show, as octal escapes like `/proc/self/maps`.
static void mi_text_put_path(mi_text_t* t, const char* path) {
  for (; *path != 0; path++) {
    char* p = mi_text_begin(t);
    const uint8_t c = (uint8_t)*path;
    if (c <= ' ' || c == 0x7F || c == '\\') {
      *p++ = '\\';
      p = mi_fmt_number(p, c, 8, 3, '0');
    }
    else {
      *p++ = (char)c;
    }
    mi_text_end(t, p);
  }
}

/* -----------------------------------------------------------
  Write a profile
----------------------------------------------------------- */

typedef struct mi_text_counts_s {
  uint64_t inuse_samples;
  uint64_t inuse_bytes;
  uint64_t alloc_samples;
  uint64_t alloc_bytes;
} mi_text_counts_t;

// Where allocations are not counted, their columns (in brackets) repeat those of what is in use: a reader then shows none.
static mi_text_counts_t mi_text_counts(const mi_prof_snapshot_t* snapshot, const mi_prof_sample_t* s) {
  const uint64_t size = (s->size == 0 ? 1 : s->size);    // a reader drops a line without bytes
  mi_text_counts_t c;
  c.inuse_samples = s->inuse_samples;
  c.inuse_bytes = s->inuse_samples * size;
  c.alloc_samples = (snapshot->has_allocs ? s->alloc_samples : c.inuse_samples);
  c.alloc_bytes = c.alloc_samples * size;
  return c;
}

static void mi_text_put_counts(mi_text_t* t, const mi_text_counts_t* c) {
  char* p = mi_text_begin(t);
  p = mi_fmt_decw(p, c->inuse_samples, 6);
  p = mi_fmt_decw(mi_fmt_str(p, ": "), c->inuse_bytes, 8);
  p = mi_fmt_decw(mi_fmt_str(p, " ["), c->alloc_samples, 6);
  p = mi_fmt_decw(mi_fmt_str(p, ": "), c->alloc_bytes, 8);
  mi_text_end(t, mi_fmt_str(p, "] @"));
}

static void mi_text_put_header(mi_text_t* t, const mi_prof_snapshot_t* snapshot) {
  mi_text_counts_t sum = { 0, 0, 0, 0 };
  for (size_t i = 0; i < snapshot->sample_count; i++) {
    const mi_text_counts_t c = mi_text_counts(snapshot, &snapshot->samples[i]);
    sum.inuse_samples += c.inuse_samples;
    sum.inuse_bytes += c.inuse_bytes;
    sum.alloc_samples += c.alloc_samples;
    sum.alloc_bytes += c.alloc_bytes;
  }
  mi_text_put_str(t, "heap profile: ");
  mi_text_put_counts(t, &sum);
  char* p = mi_fmt_dec(mi_fmt_str(mi_text_begin(t), " heap_v2/"), snapshot->stats.sample_rate);
  p = mi_fmt_version(mi_fmt_str(p, "\n# "));
  mi_text_end(t, mi_fmt_str(p, "; raw samples, to be scaled by `1/(1 - exp(-size/rate))`\n"));
  mi_text_put_str(t, "# A block resized in place is scaled by its new size here; the proto form keeps its weight.\n");
  for (size_t i = 0; i < MI_LOSS_COUNT; i++) {
    char line[MI_LOSS_MAX];
    if (!mi_fmt_loss(line, &snapshot->stats, i)) continue;
    mi_text_put_str(t, "# ");
    mi_text_put_str(t, line);
    mi_text_put_str(t, "\n");
  }
}

static void mi_text_put_modules(mi_text_t* t, const mi_prof_snapshot_t* snapshot) {
  mi_text_put_str(t, "\nMAPPED_LIBRARIES:\n");
  for (size_t i = 0; i < snapshot->module_count; i++) {
    const mi_prof_module_t* const module = &snapshot->modules[i];
    char* p = mi_fmt_hex(mi_text_begin(t), module->start, 8);
    p = mi_fmt_hex(mi_fmt_str(p, "-"), module->end, 8);
    p = mi_fmt_hex(mi_fmt_str(p, " r-xp "), module->offset, 8);
    mi_text_end(t, mi_fmt_str(p, " 00:00 0 "));
    mi_text_put_path(t, module->path);
    mi_text_put_str(t, "\n");
  }
}

bool _mi_prof_write_text(const mi_prof_snapshot_t* snapshot, mi_prof_write_fun* write, void* arg) {
  mi_text_t t;
  t.write = write;
  t.arg = arg;
  t.ok = true;
  t.used = 0;
  mi_text_put_header(&t, snapshot);
  for (size_t i = 0; i < snapshot->sample_count && t.ok; i++) {
    const mi_prof_sample_t* const s = &snapshot->samples[i];
    const mi_text_counts_t c = mi_text_counts(snapshot, s);
    mi_text_put_counts(&t, &c);
    if (s->depth == 0) { mi_text_put_str(&t, " 0x1"); }   // as `MI_PROF_FRAME_OTHER`: a reader wants an address
    for (size_t k = 0; k < s->depth; k++) {
      mi_text_end(&t, mi_fmt_hex(mi_fmt_str(mi_text_begin(&t), " 0x"), s->frames[k], 1));
    }
    mi_text_put_str(&t, "\n");
  }
  mi_text_put_modules(&t, snapshot);
  mi_text_flush(&t);
  return t.ok;
}

// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* -----------------------------------------------------------
  The statistics. Pure functions of a thread's sampling state.

  Sample points are a Poisson process over the allocated bytes:
  the distance between two points is exponentially distributed
  with mean `rate`, and a block is chosen if a point falls on it.
  So a block of `b` bytes is chosen with probability

    P(b) = 1 - exp(-b/rate)

  independently of all others, since disjoint intervals of a
  Poisson process are independent. For the same reason one
  countdown serves all pages of a thread: it is lowered by the
  bytes of every block once, in the order in which the blocks
  are drawn, whether or not they are ever handed out.

  A block is larger than the request. A chosen block is kept
  with probability P(s)/P(b) for a request of `s` bytes, which
  makes it P(s) in all: exact in requested bytes. A kept sample
  stands for 1/P(s) allocations (its weight), which makes the
  sums of weights, and of weight times size, unbiased.
----------------------------------------------------------- */

#define MI_PROF_LN2  (0.693147180559945309)

static uint64_t mi_prof_mix(uint64_t x) {     // the finalizer of splitmix64
  x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
  return x ^ (x >> 31);
}

// xorshift64*
static uint64_t mi_prof_random_next(mi_prof_tld_t* tld) {
  uint64_t x = tld->random;
  x ^= x >> 12;
  x ^= x << 25;
  x ^= x >> 27;
  tld->random = x;
  return x * UINT64_C(0x2545F4914F6CDD1D);
}

// Uniform in (0,1].
static double mi_prof_random_unit(mi_prof_tld_t* tld) {
  return ((double)(int64_t)(mi_prof_random_next(tld) >> 11) + 0.5) * (1.0 / 9007199254740992.0);  // 2^53
}

// -log(u) for u in (0,1], without libm. Relative error below 1e-9.
static double mi_prof_neg_log(double u) {
  // u = m * 2^e with m in [sqrt(1/2), sqrt(2)]
  uint64_t bits;
  _mi_memcpy(&bits, &u, sizeof(bits));
  int e = (int)((bits >> 52) & 0x7FF) - 1023;
  bits = (bits & UINT64_C(0x000FFFFFFFFFFFFF)) | UINT64_C(0x3FF0000000000000);
  double m;
  _mi_memcpy(&m, &bits, sizeof(m));
  if (m > 1.41421356237309505) { m *= 0.5; e++; }
  // log(m) = 2*atanh(z) with |z| < 0.172
  const double z = (m - 1.0) / (m + 1.0);
  const double q = z*z;
  const double log_m = 2.0*z*(1.0 + q*(1.0/3 + q*(1.0/5 + q*(1.0/7 + q*(1.0/9 + q*(1.0/11))))));
  return -(e*MI_PROF_LN2 + log_m);
}

// 1 - exp(-x) for x >= 0, without libm and without cancellation for small x. Relative error below 1e-9.
static double mi_prof_one_minus_exp(double x) {
  if (x >= 40.0) return 1.0;
  // exp(-x) = 2^-k * exp(-f) with f in [0,log(2))
  const int k = (int)(x / MI_PROF_LN2);
  const double f = x - k*MI_PROF_LN2;
  double sum = 0.0;
  for (int n = 12; n > 0; n--) { sum = (1.0 - sum) * f / n; }   // f - f^2/2! + f^3/3! - ...
  return (k == 0 ? sum : 1.0 - (1.0 - sum) / (double)(UINT64_C(1) << k));
}

// The probability to sample an allocation of `size` bytes.
static double mi_prof_probability(size_t size, size_t rate) {
  return (rate <= 1 ? 1.0 : mi_prof_one_minus_exp((double)size / (double)rate));
}

// The distance to the next sample point, in bytes: `x` means that it falls on byte `x` from here, counted from 0.
static size_t mi_prof_interval(mi_prof_tld_t* tld, size_t rate) {
  if (rate <= 1) return 0;
  const double x = mi_prof_neg_log(mi_prof_random_unit(tld)) * (double)rate;
  const size_t max = 64*rate;
  return (x < 1.0 ? 1 : (x > (double)max ? max : (size_t)x));
}

// Draw for `n` blocks in a row. Returns the index of the first one that is chosen (the ones after it stay undrawn), or `n`.
static size_t mi_prof_draw(mi_prof_tld_t* tld, size_t n, size_t block_size, size_t rate) {
  const size_t bytes = n * block_size;
  if mi_likely(tld->countdown >= bytes) {
    tld->countdown -= bytes;
    return n;
  }
  const size_t i = tld->countdown / block_size;
  tld->countdown = mi_prof_interval(tld, rate);
  return i;
}

// A sample that was taken with probability `from` is kept if it should have been taken with probability `to` only.
static bool mi_prof_thin(mi_prof_tld_t* tld, double to, double from) {
  return (to >= from || mi_prof_random_unit(tld) * from <= to);
}

// Start the random numbers of a thread; equal arguments give equal numbers.
static void mi_prof_random_init(mi_prof_tld_t* tld, uint64_t seed, size_t ordinal) {
  tld->random = mi_prof_mix(seed + (uint64_t)(ordinal + 1) * UINT64_C(0x9E3779B97F4A7C15));
  if (tld->random == 0) { tld->random = 1; }
}

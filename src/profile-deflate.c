// Copyright (c) 2026, the mi_prof authors. MIT license: see the file LICENSE.
#if !defined(MI_IN_PROFILE_C)
#error "this file should be included from 'profile.c'"
// add includes help an IDE
#include "profile-internal.h"
#endif

/* ----------------------------------------------------------------------------
A streaming gzip compressor (RFC 1951 and 1952) for the profile writer.

A profile is a few megabytes in which the same stack often comes several times
in a row: long matches at a short distance. So matches are found in short hash
chains with one step of lookahead, and long ones enter the chains only in part.
Each block takes the smallest of the stored, fixed, and dynamic encodings.

The state is given by the caller (`sizeof(mi_gzip_t)`, about 300 KiB); nothing is
allocated. The output depends only on the bytes given, not on how these were cut.
---------------------------------------------------------------------------- */

#define MI_GZIP_WINDOW       ((size_t)32*MI_KiB)        // reach of a match
#define MI_GZIP_BUFFER       (2*MI_GZIP_WINDOW)         // the window and the input after it
#define MI_GZIP_MIN_MATCH    (4)                        // the format allows 3, but we hash 4 bytes
#define MI_GZIP_MAX_MATCH    (258)
#define MI_GZIP_LOOKAHEAD    (MI_GZIP_MAX_MATCH + MI_GZIP_MIN_MATCH)
#define MI_GZIP_HASH_BITS    (14)
#define MI_GZIP_CHAIN        (5)                        // candidates tried per position
#define MI_GZIP_NICE_MATCH   (64)                       // a match this long ends the search
#define MI_GZIP_LAZY_MATCH   (8)                        // shorter ones are tried again at the next byte
#define MI_GZIP_MAX_INSERT   (32)                       // positions of a match that enter the chains
#define MI_GZIP_TOKENS       ((size_t)16*MI_KiB)        // per block
#define MI_GZIP_OUT          ((size_t)16*MI_KiB)

#define MI_DEFLATE_END       (256)                      // symbol at the end of a block
#define MI_DEFLATE_LITLENS   (286)
#define MI_DEFLATE_DISTS     (30)
#define MI_DEFLATE_PRELENS   (19)                       // the alphabet in which code lengths are written
#define MI_DEFLATE_MAX_BITS  (15)

// A token has in its low 9 bits a literal or `MI_GZIP_IS_MATCH + length - 3`; for a match follow the
// distance code (5 bits) and the distance minus one (15 bits).
#define MI_GZIP_IS_MATCH     (256)
#define MI_GZIP_TOKEN_SYM    (511)

// An alphabet with its code: per symbol the bits, first bit lowest, and in the upper 8 bits how many.
typedef struct mi_huff_s {
  uint32_t code[MI_DEFLATE_LITLENS + 2];                // the fixed code counts 2 unused symbols
  uint8_t  len[MI_DEFLATE_LITLENS + 2];
} mi_huff_t;

// The code lengths of a block in the alphabet of `mi_prelen_t`: runs are folded.
typedef struct mi_prelens_s {
  size_t   count;
  size_t   order_count;                                 // lengths of the lengths to write
  uint8_t  sym[MI_DEFLATE_LITLENS + MI_DEFLATE_DISTS];
  uint8_t  extra[MI_DEFLATE_LITLENS + MI_DEFLATE_DISTS];
  mi_huff_t huff;
} mi_prelens_t;

typedef struct mi_gzip_s {
  mi_prof_write_fun* write;
  void*     arg;
  bool      ok;                                         // false once a write failed
  // output
  uint64_t  bits;                                       // bits not yet in `out`, the first lowest
  size_t    bit_count;                                  // less than 8 between calls
  size_t    out_used;
  uint8_t   out[MI_GZIP_OUT];
  // input
  uint32_t  crc;                                        // complemented
  uint32_t  total;                                      // input size modulo 2^32
  uint32_t  base;                                       // stream position of `buf[0]`, modulo 2^32
  size_t    pos;                                        // first byte of `buf` without a token
  size_t    end;                                        // used bytes in `buf`
  uint8_t   buf[MI_GZIP_BUFFER];
  // current block
  size_t    block_size;                                 // input bytes in the block
  size_t    token_count;
  uint32_t  tokens[MI_GZIP_TOKENS];
  uint32_t  sym_freq[MI_GZIP_TOKEN_SYM+1];
  uint32_t  dist_freq[MI_DEFLATE_DISTS];
  // how to write it; here, as a thread that dumps may have a small stack
  uint32_t     lit_freq[MI_DEFLATE_LITLENS];
  mi_huff_t    lit;
  mi_huff_t    dist;
  uint8_t      lens[MI_DEFLATE_LITLENS + MI_DEFLATE_DISTS];
  mi_prelens_t pre;
  // matches
  uint32_t  head[(size_t)1 << MI_GZIP_HASH_BITS];       // hash to the last stream position
  uint16_t  prev[MI_GZIP_WINDOW];                       // position to the distance of the one before with that hash, or 0
  uint32_t  crc_table[8][256];
} mi_gzip_t;

// Bytes are assembled in the order of the format on every machine; compilers make one load of it.
static inline uint32_t mi_gzip_load32(const uint8_t* p) {
  return ((uint32_t)p[0] | ((uint32_t)p[1] << 8) | ((uint32_t)p[2] << 16) | ((uint32_t)p[3] << 24));
}

static inline uint64_t mi_gzip_load64(const uint8_t* p) {
  return (mi_gzip_load32(p) | ((uint64_t)mi_gzip_load32(p + 4) << 32));
}

/* -----------------------------------------------------------
  CRC-32, 8 bytes at a time
----------------------------------------------------------- */

static void mi_crc32_init(uint32_t table[8][256]) {
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; bit++) {
      c = (c >> 1) ^ ((c & 1) != 0 ? 0xEDB88320U : 0);
    }
    table[0][i] = c;
  }
  for (uint32_t i = 0; i < 256; i++) {
    for (int t = 1; t < 8; t++) {   // the effect of `i` when `t` more bytes follow
      const uint32_t c = table[t-1][i];
      table[t][i] = (c >> 8) ^ table[0][c & 0xFF];
    }
  }
}

// `crc` is complemented: start with `~0` and complement the result.
static uint32_t mi_crc32_update(uint32_t table[8][256], uint32_t crc, const uint8_t* p, size_t size) {
  for (; size >= 8; p += 8, size -= 8) {
    const uint32_t a = crc ^ mi_gzip_load32(p);
    const uint32_t b = mi_gzip_load32(p + 4);
    crc = table[7][a & 0xFF] ^ table[6][(a >> 8) & 0xFF] ^ table[5][(a >> 16) & 0xFF] ^ table[4][a >> 24]
        ^ table[3][b & 0xFF] ^ table[2][(b >> 8) & 0xFF] ^ table[1][(b >> 16) & 0xFF] ^ table[0][b >> 24];
  }
  for (; size > 0; p++, size--) {
    crc = (crc >> 8) ^ table[0][(crc ^ *p) & 0xFF];
  }
  return crc;
}

/* -----------------------------------------------------------
  Output
----------------------------------------------------------- */

static void mi_gzip_flush(mi_gzip_t* z) {
  if (z->ok && z->out_used > 0) {
    z->ok = z->write(z->out, z->out_used, z->arg);
  }
  z->out_used = 0;
}

static inline void mi_gzip_put_bits(mi_gzip_t* z, uint64_t bits, size_t count) {
  mi_assert_internal(count <= 56 && (bits >> count) == 0);
  if mi_unlikely(z->out_used > MI_GZIP_OUT - 8) { mi_gzip_flush(z); }
  const uint64_t all = z->bits | (bits << z->bit_count);
  const size_t n = z->bit_count + count;
  uint8_t* const p = &z->out[z->out_used];
  p[0] = (uint8_t)all;         p[1] = (uint8_t)(all >> 8);  p[2] = (uint8_t)(all >> 16); p[3] = (uint8_t)(all >> 24);
  p[4] = (uint8_t)(all >> 32); p[5] = (uint8_t)(all >> 40); p[6] = (uint8_t)(all >> 48); p[7] = (uint8_t)(all >> 56);
  z->out_used += n / 8;
  z->bits = all >> (n & 56);
  z->bit_count = n & 7;
}

static void mi_gzip_align(mi_gzip_t* z) {
  if (z->bit_count > 0) { mi_gzip_put_bits(z, 0, 8 - z->bit_count); }
}

/* -----------------------------------------------------------
  Huffman codes
----------------------------------------------------------- */

#define MI_HUFF_COUNT_SHIFT  (24)
#define MI_HUFF_BITS         ((1U << MI_HUFF_COUNT_SHIFT) - 1)

static inline void mi_gzip_put_code(mi_gzip_t* z, uint32_t code) {
  mi_gzip_put_bits(z, code & MI_HUFF_BITS, code >> MI_HUFF_COUNT_SHIFT);
}

// Assign the canonical code for the lengths in `h`.
static void mi_huff_assign(mi_huff_t* h, size_t symbols) {
  uint32_t next[MI_DEFLATE_MAX_BITS + 2] = { 0 };
  for (size_t i = 0; i < symbols; i++) { next[h->len[i] + 1]++; }
  next[1] = 0;  // unused symbols take no code
  for (size_t n = 1; n <= MI_DEFLATE_MAX_BITS; n++) { next[n] = (next[n] + next[n-1]) << 1; }
  for (size_t i = 0; i < symbols; i++) {
    const uint32_t len = h->len[i];
    if (len == 0) { h->code[i] = 0; continue; }
    uint32_t code = next[len]++;
    uint32_t reversed = 0;
    for (uint32_t b = 0; b < len; b++, code >>= 1) { reversed = (reversed << 1) | (code & 1); }
    h->code[i] = reversed | (len << MI_HUFF_COUNT_SHIFT);
  }
}

// Build an optimal code of at most `max_bits` for these frequencies; nearly optimal if the limit is met.
static void mi_huff_build(mi_huff_t* h, const uint32_t* freq, size_t symbols, size_t max_bits) {
  uint32_t leaf[MI_DEFLATE_LITLENS];                    // `frequency << 9 | symbol`, ascending
  size_t leaves = 0;
  for (size_t i = 0; i < symbols; i++) {
    h->len[i] = 0;
    if (freq[i] > 0) { leaf[leaves++] = (freq[i] << 9) | (uint32_t)i; }
  }
  // some readers want a complete code: use at least two symbols
  for (uint32_t i = 0; leaves < 2; i++) {
    if (freq[i] == 0) { leaf[leaves++] = (1U << 9) | i; }
  }
  for (size_t i = 1; i < leaves; i++) {
    const uint32_t x = leaf[i];
    size_t j = i;
    for (; j > 0 && leaf[j-1] > x; j--) { leaf[j] = leaf[j-1]; }
    leaf[j] = x;
  }
  // join the two lightest nodes until one is left; joined nodes come out in ascending order
  uint32_t weight[MI_DEFLATE_LITLENS];
  uint16_t parent[2*MI_DEFLATE_LITLENS];                // leaves first, then joined nodes
  uint8_t  depth[MI_DEFLATE_LITLENS];                   // of joined nodes
  const size_t joined = leaves - 1;
  for (size_t halvings = 0; ; halvings++) {             // if too deep, flatten: equal frequencies give a balanced code
    size_t next_leaf = 0;
    size_t next_node = 0;
    for (size_t node = 0; node < joined; node++) {
      weight[node] = 0;
      for (int k = 0; k < 2; k++) {
        const uint32_t w = (next_leaf < leaves ? (((leaf[next_leaf] >> 9) - 1) >> halvings) + 1 : 0);
        if (next_leaf < leaves && (next_node >= node || w <= weight[next_node])) {
          weight[node] += w;
          parent[next_leaf++] = (uint16_t)node;
        }
        else {
          weight[node] += weight[next_node];
          parent[leaves + next_node++] = (uint16_t)node;
        }
      }
    }
    depth[joined - 1] = 0;
    for (size_t node = joined - 1; node-- > 0; ) { depth[node] = (uint8_t)(depth[parent[leaves + node]] + 1); }
    size_t longest = 0;
    for (size_t i = 0; i < leaves; i++) {
      const size_t len = (size_t)depth[parent[i]] + 1;
      h->len[leaf[i] & MI_GZIP_TOKEN_SYM] = (uint8_t)len;
      if (len > longest) { longest = len; }
    }
    if (longest <= max_bits) break;
  }
  mi_huff_assign(h, symbols);
}

static const uint8_t mi_prelen_order[MI_DEFLATE_PRELENS] = { 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15 };

static inline size_t mi_prelen_extra_bits(size_t sym) {
  return (sym == 16 ? 2 : (sym == 17 ? 3 : (sym == 18 ? 7 : 0)));
}

// Returns the size in bits of the lengths.
static size_t mi_prelens_build(mi_prelens_t* pre, const uint8_t* lens, size_t count) {
  uint32_t freq[MI_DEFLATE_PRELENS] = { 0 };
  pre->count = 0;
  for (size_t i = 0; i < count; ) {
    const uint8_t len = lens[i];
    const size_t max_run = (len == 0 ? 138 : 7);        // 7: one length and 6 repeats
    size_t run = 1;
    while (run < max_run && i + run < count && lens[i + run] == len) { run++; }
    i += run;
    if (len != 0 || run < 3) {
      pre->sym[pre->count] = len; pre->extra[pre->count++] = 0; freq[len]++;
      run--;
    }
    if (run >= 3) {
      const uint8_t sym = (len != 0 ? 16 : (run <= 10 ? 17 : 18));
      pre->sym[pre->count] = sym; pre->extra[pre->count++] = (uint8_t)(run - (sym == 18 ? 11 : 3)); freq[sym]++;
    }
    else {
      for (; run > 0; run--) { pre->sym[pre->count] = len; pre->extra[pre->count++] = 0; freq[len]++; }
    }
  }
  mi_huff_build(&pre->huff, freq, MI_DEFLATE_PRELENS, 7);
  pre->order_count = MI_DEFLATE_PRELENS;
  while (pre->order_count > 4 && pre->huff.len[mi_prelen_order[pre->order_count - 1]] == 0) { pre->order_count--; }
  size_t bits = 3 * pre->order_count;
  for (size_t i = 0; i < MI_DEFLATE_PRELENS; i++) { bits += freq[i] * (pre->huff.len[i] + mi_prelen_extra_bits(i)); }
  return bits;
}

/* -----------------------------------------------------------
  Blocks
----------------------------------------------------------- */

// A length (minus 3) and a distance (minus 1) are written as a code for the leading bits and the remaining bits as they are.
static inline size_t mi_deflate_len_extra(size_t len3)   { return (len3 < 8 || len3 == 255 ? 0 : mi_bsr(len3) - 2); }
static inline size_t mi_deflate_len_code(size_t len3)    { const size_t x = mi_deflate_len_extra(len3); return (len3 == 255 ? 285 : 257 + 4*x + (len3 >> x)); }
static inline size_t mi_deflate_dist_extra(size_t dist1) { return (dist1 < 4 ? 0 : mi_bsr(dist1) - 1); }
static inline size_t mi_deflate_dist_code(size_t dist1)  { const size_t x = mi_deflate_dist_extra(dist1); return (2*x + (dist1 >> x)); }

static void mi_gzip_put_tokens(mi_gzip_t* z, const mi_huff_t* lit, const mi_huff_t* dist) {
  uint32_t emit[MI_GZIP_TOKEN_SYM + 1];                 // code and extra bits of each literal and length
  _mi_memcpy(emit, lit->code, MI_GZIP_IS_MATCH * sizeof(emit[0]));
  for (uint32_t len3 = 0; len3 < 256; len3++) {
    const uint32_t code  = lit->code[mi_deflate_len_code(len3)];
    const uint32_t extra = (uint32_t)mi_deflate_len_extra(len3);
    emit[MI_GZIP_IS_MATCH + len3] = code + ((len3 & ((1U << extra) - 1)) << (code >> MI_HUFF_COUNT_SHIFT)) + (extra << MI_HUFF_COUNT_SHIFT);
  }
  for (size_t i = 0; i < z->token_count; i++) {
    const uint32_t token = z->tokens[i];
    const uint32_t e = emit[token & MI_GZIP_TOKEN_SYM];
    uint64_t bits = e & MI_HUFF_BITS;
    size_t   count = e >> MI_HUFF_COUNT_SHIFT;
    if ((token & MI_GZIP_IS_MATCH) != 0) {
      const uint32_t code  = (token >> 9) & 31;
      const size_t   extra = (code < 4 ? 0 : code/2 - 1);
      const uint32_t d     = dist->code[code];
      bits |= (uint64_t)(d & MI_HUFF_BITS) << count;  count += d >> MI_HUFF_COUNT_SHIFT;
      bits |= (uint64_t)((token >> 14) & (((size_t)1 << extra) - 1)) << count;  count += extra;
    }
    mi_gzip_put_bits(z, bits, count);
  }
  mi_gzip_put_code(z, lit->code[MI_DEFLATE_END]);
}

static void mi_gzip_put_stored(mi_gzip_t* z, bool last) {
  mi_gzip_put_bits(z, (last ? 1 : 0), 3);
  mi_gzip_align(z);
  mi_gzip_put_bits(z, z->block_size | ((z->block_size ^ 0xFFFF) << 16), 32);
  const uint8_t* p = &z->buf[z->pos - z->block_size];
  for (size_t i = 0; i < z->block_size; i++) { mi_gzip_put_bits(z, p[i], 8); }
}

static void mi_gzip_put_block(mi_gzip_t* z, bool last) {
  // fold the lengths into their codes
  uint32_t* const freq = z->lit_freq;
  size_t   extra = 0;
  _mi_memzero(freq, sizeof(z->lit_freq));
  _mi_memcpy(freq, z->sym_freq, MI_GZIP_IS_MATCH * sizeof(freq[0]));
  freq[MI_DEFLATE_END] = 1;
  for (size_t len3 = 0; len3 < 256; len3++) {
    const uint32_t n = z->sym_freq[MI_GZIP_IS_MATCH + len3];
    freq[mi_deflate_len_code(len3)] += n;
    extra += n * mi_deflate_len_extra(len3);
  }
  for (size_t i = 4; i < MI_DEFLATE_DISTS; i++) { extra += z->dist_freq[i] * (i/2 - 1); }

  // the best code for this block
  mi_huff_t* const lit = &z->lit;
  mi_huff_t* const dist = &z->dist;
  mi_huff_build(lit, freq, MI_DEFLATE_LITLENS, MI_DEFLATE_MAX_BITS);
  mi_huff_build(dist, z->dist_freq, MI_DEFLATE_DISTS, MI_DEFLATE_MAX_BITS);
  size_t lits = MI_DEFLATE_LITLENS;  while (lits > 257 && lit->len[lits-1] == 0) { lits--; }
  size_t dists = MI_DEFLATE_DISTS;   while (dists > 1 && dist->len[dists-1] == 0) { dists--; }
  uint8_t* const lens = z->lens;
  _mi_memcpy(lens, lit->len, lits);
  _mi_memcpy(lens + lits, dist->len, dists);
  mi_prelens_t* const pre = &z->pre;
  size_t dynamic_bits = 14 + mi_prelens_build(pre, lens, lits + dists) + extra;
  size_t fixed_bits = extra;
  for (size_t i = 0; i < MI_DEFLATE_LITLENS; i++) {
    dynamic_bits += freq[i] * lit->len[i];
    fixed_bits   += freq[i] * (i < 144 ? 8 : (i < 256 ? 9 : (i < 280 ? 7 : 8)));
  }
  for (size_t i = 0; i < MI_DEFLATE_DISTS; i++) {
    dynamic_bits += z->dist_freq[i] * dist->len[i];
    fixed_bits   += z->dist_freq[i] * 5;
  }
  // a stored block needs its input in the buffer still
  const size_t stored_bits = (z->block_size <= z->pos && z->block_size <= 0xFFFF ? 7 + 32 + 8*z->block_size : SIZE_MAX);

  if (stored_bits < dynamic_bits && stored_bits < fixed_bits) {
    mi_gzip_put_stored(z, last);
  }
  else if (fixed_bits <= dynamic_bits) {
    for (size_t i = 0; i < MI_DEFLATE_LITLENS + 2; i++) { lit->len[i] = (i < 144 ? 8 : (i < 256 ? 9 : (i < 280 ? 7 : 8))); }
    for (size_t i = 0; i < MI_DEFLATE_DISTS; i++)       { dist->len[i] = 5; }
    mi_huff_assign(lit, MI_DEFLATE_LITLENS + 2);
    mi_huff_assign(dist, MI_DEFLATE_DISTS);
    mi_gzip_put_bits(z, (last ? 1 : 0) | (1 << 1), 3);
    mi_gzip_put_tokens(z, lit, dist);
  }
  else {
    mi_gzip_put_bits(z, (last ? 1 : 0) | (2 << 1), 3);
    mi_gzip_put_bits(z, (lits - 257) | ((dists - 1) << 5) | ((pre->order_count - 4) << 10), 14);
    for (size_t i = 0; i < pre->order_count; i++) { mi_gzip_put_bits(z, pre->huff.len[mi_prelen_order[i]], 3); }
    for (size_t i = 0; i < pre->count; i++) {
      mi_gzip_put_code(z, pre->huff.code[pre->sym[i]]);
      mi_gzip_put_bits(z, pre->extra[i], mi_prelen_extra_bits(pre->sym[i]));
    }
    mi_gzip_put_tokens(z, lit, dist);
  }
  z->block_size = 0;
  z->token_count = 0;
  _mi_memzero(z->sym_freq, sizeof(z->sym_freq));
  _mi_memzero(z->dist_freq, sizeof(z->dist_freq));
}

/* -----------------------------------------------------------
  Matches
----------------------------------------------------------- */

static inline void mi_gzip_put_token(mi_gzip_t* z, uint32_t token, size_t size) {
  z->tokens[z->token_count++] = token;
  z->sym_freq[token & MI_GZIP_TOKEN_SYM]++;
  z->block_size += size;
}

// Enter the position into its chain; returns the distance to the one before it, or 0.
static inline uint32_t mi_gzip_insert(mi_gzip_t* z, size_t pos) {
  const uint32_t at = z->base + (uint32_t)pos;
  uint32_t* const head = &z->head[(uint32_t)(mi_gzip_load32(&z->buf[pos]) * 0x9E3779B1U) >> (32 - MI_GZIP_HASH_BITS)];
  const uint32_t dist = at - *head;
  *head = at;
  return (z->prev[at % MI_GZIP_WINDOW] = (uint16_t)(dist < MI_GZIP_WINDOW ? dist : 0));
}

static inline size_t mi_gzip_match_length(const uint8_t* p, const uint8_t* q, size_t max) {
  size_t n = 0;
  for (; n + 8 <= max; n += 8) {
    uint64_t diff = mi_gzip_load64(p + n) ^ mi_gzip_load64(q + n);
    if (diff != 0) {
      #if MI_SIZE_SIZE >= 8
      return n + mi_ctz((size_t)diff)/8;
      #else
      const uint32_t low = (uint32_t)diff;
      return n + (low != 0 ? mi_ctz(low)/8 : 4 + mi_ctz((uint32_t)(diff >> 32))/8);
      #endif
    }
  }
  while (n < max && p[n] == q[n]) { n++; }
  return n;
}

// Find the longest match longer than `best` for the position, and enter it. Returns its length, or `best`.
static size_t mi_gzip_find(mi_gzip_t* z, size_t pos, size_t max_len, size_t best, size_t* best_dist) {
  const uint8_t* const p = &z->buf[pos];
  const uint32_t at = z->base + (uint32_t)pos;
  size_t step = mi_gzip_insert(z, pos);
  size_t dist = 0;
  for (size_t tries = MI_GZIP_CHAIN; tries > 0 && step != 0; tries--) {
    dist += step;
    if (dist >= MI_GZIP_WINDOW) break;
    mi_assert_internal(dist <= pos);
    const uint8_t* const q = p - dist;
    if (q[best] == p[best] && mi_gzip_load32(q) == mi_gzip_load32(p)) {
      const size_t len = mi_gzip_match_length(p, q, max_len);
      if (len > best) {
        best = len;
        *best_dist = dist;
        if (len >= MI_GZIP_NICE_MATCH || len >= max_len) break;
      }
    }
    step = z->prev[(at - (uint32_t)dist) % MI_GZIP_WINDOW];
  }
  return best;
}

// Turn the input into tokens, all of it if `last`, else as far as every match can have its full length.
static void mi_gzip_compress(mi_gzip_t* z, bool last) {
  const size_t stop = (last ? z->end : z->end - MI_GZIP_LOOKAHEAD);
  size_t dist = 0;
  size_t len = 0;                                       // of a match found ahead at `pos`
  while (z->pos < stop || len > 0) {
    const size_t left = z->end - z->pos;
    const size_t max_len = (left < MI_GZIP_MAX_MATCH ? left : MI_GZIP_MAX_MATCH);
    if (len == 0 && left > MI_GZIP_MIN_MATCH) {
      len = mi_gzip_find(z, z->pos, max_len, MI_GZIP_MIN_MATCH - 1, &dist);
    }
    size_t next_len = 0;
    size_t next_dist = 0;
    if (len >= MI_GZIP_MIN_MATCH && len < MI_GZIP_LAZY_MATCH && left > MI_GZIP_LAZY_MATCH + 1) {
      next_len = mi_gzip_find(z, z->pos + 1, (max_len < left ? max_len : max_len - 1), len, &next_dist);
    }
    if (len < MI_GZIP_MIN_MATCH || next_dist != 0) {
      mi_gzip_put_token(z, z->buf[z->pos], 1);
      z->pos++;
      len  = (next_dist != 0 ? next_len : 0);
      dist = next_dist;
    }
    else {
      const uint32_t code = (uint32_t)mi_deflate_dist_code(dist - 1);
      mi_gzip_put_token(z, (uint32_t)(MI_GZIP_IS_MATCH + len - 3) | (code << 9) | ((uint32_t)(dist - 1) << 14), len);
      z->dist_freq[code]++;
      // the first position is in its chain, and the second if we looked ahead
      size_t insert = (len < MI_GZIP_MAX_INSERT ? len : MI_GZIP_MAX_INSERT);
      if (insert + MI_GZIP_MIN_MATCH > left) { insert = (left < MI_GZIP_MIN_MATCH ? 0 : left - MI_GZIP_MIN_MATCH); }
      for (size_t i = (next_len == 0 ? 1 : 2); i < insert; i++) { mi_gzip_insert(z, z->pos + i); }
      z->pos += len;
      len = 0;
    }
    if (z->token_count == MI_GZIP_TOKENS) { mi_gzip_put_block(z, false); }
  }
  if (last) { mi_gzip_put_block(z, true); }
}

/* -----------------------------------------------------------
  Interface
----------------------------------------------------------- */

// Start a file. The state must be zeroed.
static void mi_gzip_init(mi_gzip_t* z, mi_prof_write_fun* write, void* arg) {
  static const uint8_t header[10] = { 0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255 };   // no name, no time, unknown system
  z->write = write;
  z->arg = arg;
  z->ok = true;
  z->crc = ~(uint32_t)0;
  z->base = MI_GZIP_WINDOW;                             // an empty `head` is out of reach
  mi_crc32_init(z->crc_table);
  _mi_memcpy(z->out, header, sizeof(header));
  z->out_used = sizeof(header);
}

static void mi_gzip_write(mi_gzip_t* z, const void* data, size_t size) {
  const uint8_t* p = (const uint8_t*)data;
  z->crc = mi_crc32_update(z->crc_table, z->crc, p, size);
  z->total += (uint32_t)size;
  while (size > 0) {
    const size_t space = MI_GZIP_BUFFER - z->end;
    const size_t n = (size < space ? size : space);
    _mi_memcpy(&z->buf[z->end], p, n);
    z->end += n; p += n; size -= n;
    if (z->end == MI_GZIP_BUFFER) {
      mi_gzip_compress(z, false);
      const size_t shift = z->pos - MI_GZIP_WINDOW;     // keep the window
      memmove(z->buf, z->buf + shift, z->end - shift);
      z->pos -= shift; z->end -= shift; z->base += (uint32_t)shift;
    }
  }
}

// Write the rest. Returns false if any write failed.
static bool mi_gzip_finish(mi_gzip_t* z) {
  mi_gzip_compress(z, true);
  mi_gzip_align(z);
  mi_gzip_put_bits(z, ~z->crc, 32);
  mi_gzip_put_bits(z, z->total, 32);
  mi_gzip_flush(z);
  return z->ok;
}

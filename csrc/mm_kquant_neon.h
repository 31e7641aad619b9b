/* mm_kquant_neon.h: blocks of 256 (Q2_K to Q6_K, IQ4_XS, TQ1_0, TQ2_0) of one row, taken apart where they
 * lie, into the strips of mm_krow.h. No products. Included by mm_kquant_{neon,dotprod,i8mm}.c. */
#ifndef PE_MM_KQUANT_NEON_H
#define PE_MM_KQUANT_NEON_H
#include "mm_krow.h"

#define EACH_TYPE(X)                                                                             \
  X(PE_Q2_K, q2_k) X(PE_Q3_K, q3_k) X(PE_Q4_K, q4_k) X(PE_Q5_K, q5_k) X(PE_Q6_K, q6_k) X(PE_IQ4_XS, iq4_xs) \
  X(PE_TQ1_0, tq1_0) X(PE_TQ2_0, tq2_0)

/* ---- scales: small integers in general registers, whose units idle here -------------------- */

/* Eight 6-bit scales and minima in twelve bytes. */
INLINE void scales_q4_k(const uint8_t *w, krow *k) {
  uint64_t a = load_u64(w), c = load_u32(w + 8);  /* low dword of a: scales, high: minima */
  uint64_t lo = a & EACH8(63);                    /* sub-blocks 0-3 */
  uint64_t hi = ((c | c << 28) & EACH8(15)) | (a >> 2 & EACH8(0x30));  /* 4-7 */
  k->sc = two_u64((uint32_t)lo | hi << 32, 0);
  k->mn = two_u64(lo >> 32 | (hi & 0xffffffff00000000u), 0);
}

/* Sixteen 6-bit scales in twelve bytes, stored + 32. */
INLINE void scales_q3_k(const uint8_t *w, krow *k) {
  uint64_t a = load_u64(w), c = load_u32(w + 8);
  uint64_t h = c | c << 30;                       /* bits 2*(j/4) of byte j%4; one dword up is two bits on */
  uint64_t lo = (a & EACH8(15)) | (h << 4 & EACH8(0x30));
  uint64_t hi = (a >> 4 & EACH8(15)) | (h & EACH8(0x30));
  k->sc = vsubq_s8(two_u64(lo, hi), vdupq_n_s8(32));
}

/* Eight: nibble g of four bytes, bits 2g of two; stored + 32. */
INLINE void scales_iq4_xs(const uint8_t *w, krow *k) {
  uint64_t h = load_u32(w) >> 16, l = load_u32(w + 4);
  l = (l | l << 16) & 0x0000ffff0000ffffu;
  l = (l | l << 8) & 0x00ff00ff00ff00ffu;
  l = (l | l << 4) & EACH8(15);
  h = (h | h << 24) & 0x000000ff000000ffu;
  h = (h | h << 12) & 0x000f000f000f000fu;
  h = (h | h << 6) & EACH8(3);
  k->sc = vsubq_s8(two_u64(l | h << 4, 0), vdupq_n_s8(32));
}

INLINE void scales(int T, const uint8_t *w, krow *k) {
  k->mn = vdupq_n_s8(0);
  if (T == PE_Q2_K) {
    uint8x16_t v = u8_load(w);
    k->sc = vreinterpretq_s8_u8(bits(v, 0, 15));
    k->mn = vreinterpretq_s8_u8(v >> u8_set(4));
  }
  if (T == PE_Q3_K) scales_q3_k(w + 96, k);
  if (T == PE_Q4_K || T == PE_Q5_K) scales_q4_k(w + 4, k);
  if (T == PE_Q6_K) k->sc = vld1q_s8((const int8_t *)w + 192);
  if (T == PE_IQ4_XS) scales_iq4_xs(w, k);
  if (UNSCALED(T)) k->sc = vdupq_n_s8(1);
}

/* d of four rows, and dmin where there is one. */
INLINE void halves(int T, const pe_rows4 *l, int64_t off, float32x4_t *d, float32x4_t *dmin) {
  if (MINIMA(T)) {
    uint32x4_t v = pe_dword4(l, off + (T == PE_Q2_K ? 80 : 0));
    *d = pe_low_half(v);
    *dmin = pe_high_half(v);
  } else {
    *d = *dmin = pe_half4(l, off + (T == PE_Q3_K ? 108 : T == PE_Q6_K ? 208 : T == PE_TQ1_0 ? 52 : T == PE_TQ2_0 ? 64 : 0));
  }
}

/* ---- strips ------------------------------------------------------------------------------- */

/* Two bits each, 64 bytes, less `offset`. */
INLINE void strips_of_pairs(int T, int offset, const uint8_t *w, dots *o, uint8x16_t *to) {
  PE_UNROLL
  for (int half = 0; half < 2; half++) {
    uint8x16_t v0 = u8_load(w + 32 * half), v1 = u8_load(w + 16 + 32 * half);
    PE_UNROLL
    for (int g = 0; g < 4; g++) {
      give_strip(T, 8 * half + 2 * g, bits(v0, 2 * g, 3) - u8_set(offset), o, to);
      give_strip(T, 8 * half + 2 * g + 1, bits(v1, 2 * g, 3) - u8_set(offset), o, to);
    }
  }
}

/* The first of the base-3 digits that a byte holds as 0.digits of 256, less 1; the byte becomes that of the next one. */
INLINE uint8x16_t next_digit(uint8x16_t *v) {
  uint8x16_t digit = u8_set(255) - vcgeq_u8(*v, u8_set(86)) - vcgeq_u8(*v, u8_set(171));
  *v = vmulq_u8(*v, u8_set(3));
  return digit;
}

INLINE void strips_tq1_0(const uint8_t *w, dots *o, uint8x16_t *to) {
  static const uint8_t power[16] = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
  uint8x16_t v0 = u8_load(w), v1 = u8_load(w + 16), v2 = u8_load(w + 32);
  uint8x16_t last = vmulq_u8(vreinterpretq_u8_u32(vdupq_n_u32(load_u32(w + 48))), u8_load(power));
  PE_UNROLL
  for (int i = 0; i < 5; i++) {
    give_strip(PE_TQ1_0, 2 * i, next_digit(&v0), o, to);
    give_strip(PE_TQ1_0, 2 * i + 1, next_digit(&v1), o, to);
  }
  PE_UNROLL
  for (int i = 10; i < 15; i++) give_strip(PE_TQ1_0, i, next_digit(&v2), o, to);
  give_strip(PE_TQ1_0, 15, next_digit(&last), o, to);
}

/* Above the two low bits comes all ones where the third is clear: q - 4. */
INLINE void strips_q3_k(const uint8_t *w, dots *o, uint8x16_t *to) {
  uint8x16_t h0 = ~u8_load(w), h1 = ~u8_load(w + 16), low = u8_set(3);
  __asm__("" : "+w"(h0), "+w"(h1));
  PE_UNROLL
  for (int half = 0; half < 2; half++) {
    uint8x16_t v0 = u8_load(w + 32 + 32 * half), v1 = u8_load(w + 48 + 32 * half);
    PE_UNROLL
    for (int g = 0; g < 4; g++) {
      uint8x16_t bit = u8_set(1 << (4 * half + g)), shift = u8_set(2 * g);
      give_strip(PE_Q3_K, 8 * half + 2 * g, vbslq_u8(low, v0 >> shift, vtstq_u8(h0, bit)), o, to);
      give_strip(PE_Q3_K, 8 * half + 2 * g + 1, vbslq_u8(low, v1 >> shift, vtstq_u8(h1, bit)), o, to);
    }
  }
}

INLINE void strips_q4_k(const uint8_t *w, dots *o, uint8x16_t *to) {
  PE_UNROLL
  for (int c = 0; c < 4; c++) {
    uint8x16_t v0 = u8_load(w + 16 + 32 * c), v1 = u8_load(w + 32 + 32 * c);
    give_strip(PE_Q4_K, 4 * c, bits(v0, 0, 15), o, to);
    give_strip(PE_Q4_K, 4 * c + 1, bits(v1, 0, 15), o, to);
    give_strip(PE_Q4_K, 4 * c + 2, v0 >> u8_set(4), o, to);
    give_strip(PE_Q4_K, 4 * c + 3, v1 >> u8_set(4), o, to);
  }
}

INLINE void strips_q5_k(const uint8_t *w, dots *o, uint8x16_t *to) {
  uint8x16_t h0 = u8_load(w + 16), h1 = u8_load(w + 32);
  PE_UNROLL
  for (int c = 0; c < 4; c++) {
    uint8x16_t v0 = u8_load(w + 48 + 32 * c), v1 = u8_load(w + 64 + 32 * c);
    give_strip(PE_Q5_K, 4 * c, lo_under(v0, bits(h0, 2 * c, 1)), o, to);
    give_strip(PE_Q5_K, 4 * c + 1, lo_under(v1, bits(h1, 2 * c, 1)), o, to);
    give_strip(PE_Q5_K, 4 * c + 2, hi_under(v0, bits(h0, 2 * c - 3, 16)), o, to);
    give_strip(PE_Q5_K, 4 * c + 3, hi_under(v1, bits(h1, 2 * c - 3, 16)), o, to);
  }
}

INLINE void strips_q6_k(const uint8_t *w, dots *o, uint8x16_t *to) {
  PE_UNROLL
  for (int half = 0; half < 2; half++) {
    const uint8_t *ql = w + 64 * half, *qh = w + 128 + 32 * half;
    uint8x16_t h0 = u8_load(qh), h1 = u8_load(qh + 16);
    uint8x16_t v0 = u8_load(ql), v1 = u8_load(ql + 16), v2 = u8_load(ql + 32), v3 = u8_load(ql + 48);
    give_strip(PE_Q6_K, 8 * half, lo_under(v0, bits(h0, 0, 3)), o, to);
    give_strip(PE_Q6_K, 8 * half + 1, lo_under(v1, bits(h1, 0, 3)), o, to);
    give_strip(PE_Q6_K, 8 * half + 2, lo_under(v2, bits(h0, 2, 3)), o, to);
    give_strip(PE_Q6_K, 8 * half + 3, lo_under(v3, bits(h1, 2, 3)), o, to);
    give_strip(PE_Q6_K, 8 * half + 4, hi_under(v0, bits(h0, 0, 48)), o, to);
    give_strip(PE_Q6_K, 8 * half + 5, hi_under(v1, bits(h1, 0, 48)), o, to);
    give_strip(PE_Q6_K, 8 * half + 6, hi_under(v2, bits(h0, 2, 48)), o, to);
    give_strip(PE_Q6_K, 8 * half + 7, hi_under(v3, bits(h1, 2, 48)), o, to);
  }
}

INLINE void strips_iq4_xs(const uint8_t *w, dots *o, uint8x16_t *to) {
  static const int8_t values[16] = {PE_IQ4_VALUES};
  uint8x16_t table = vreinterpretq_u8_s8(vld1q_s8(values));
  PE_UNROLL
  for (int i = 0; i < 8; i++) {
    uint8x16_t v = u8_load(w + 8 + 16 * i);
    give_strip(PE_IQ4_XS, 2 * i, vqtbl1q_u8(table, bits(v, 0, 15)), o, to);
    give_strip(PE_IQ4_XS, 2 * i + 1, vqtbl1q_u8(table, v >> u8_set(4)), o, to);
  }
}

INLINE void strips(int T, const uint8_t *w, dots *o, uint8x16_t *to) {
  if (T == PE_Q2_K) strips_of_pairs(T, 0, w + 16, o, to);
  if (T == PE_TQ2_0) strips_of_pairs(T, 1, w, o, to);
  if (T == PE_TQ1_0) strips_tq1_0(w, o, to);
  if (T == PE_Q3_K) strips_q3_k(w, o, to);
  if (T == PE_Q4_K) strips_q4_k(w, o, to);
  if (T == PE_Q5_K) strips_q5_k(w, o, to);
  if (T == PE_Q6_K) strips_q6_k(w, o, to);
  if (T == PE_IQ4_XS) strips_iq4_xs(w, o, to);
}

#endif

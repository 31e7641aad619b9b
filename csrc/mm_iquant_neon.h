/* mm_iquant_neon.h: blocks of the codebook types (IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S) of
 * one row, taken apart into the strips of mm_krow.h, signs and offsets in them. No products. Included by
 * mm_iquant_{neon,dotprod,i8mm}.c. Indices are made in general registers, whose units idle in the products. */
#ifndef PE_MM_IQUANT_NEON_H
#define PE_MM_IQUANT_NEON_H
#include "iq_grids.h"
#include "mm_krow.h"

#define EACH_TYPE(X)                                                                                            \
  X(PE_IQ1_S, iq1_s) X(PE_IQ1_M, iq1_m) X(PE_IQ2_XXS, iq2_xxs) X(PE_IQ2_XS, iq2_xs) X(PE_IQ2_S, iq2_s)          \
  X(PE_IQ3_XXS, iq3_xxs) X(PE_IQ3_S, iq3_s)

INLINE uint32_t load_u16(const uint8_t *p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}

/* ---- scales -------------------------------------------------------------------------------- */

/* 2*s + 1 for the nibbles of `bytes` bytes, low first. */
INLINE int8x16_t odd_nibbles(const uint8_t *w, int bytes) {
  uint8x8_t v = bytes == 8 ? vld1_u8(w) : vreinterpret_u8_u32(vdup_n_u32(load_u32(w)));
  uint8x16_t s = vcombine_u8(vzip1_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4)), vzip2_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4)));
  return vreinterpretq_s8_u8((s + s) | u8_set(1));
}

INLINE void scales(int T, const uint8_t *w, krow *k) {
  k->mn = vdupq_n_s8(0);
  if (T == PE_IQ2_XS) k->sc = odd_nibbles(w + 66, 8);
  if (T == PE_IQ2_S) k->sc = odd_nibbles(w + 74, 8);
  if (T == PE_IQ3_S) k->sc = odd_nibbles(w + 106, 4);
  if (T == PE_IQ2_XXS || T == PE_IQ3_XXS) {  /* on top of each word of signs */
    uint64_t s = 0;
    PE_UNROLL
    for (int g = 0; g < 8; g++) s |= (uint64_t)(load_u32(w + (T == PE_IQ2_XXS ? 6 + 8 * g : 66 + 4 * g)) >> 28) << (8 * g);
    k->sc = two_u64(2 * s | EACH8(1), 0);
  }
  if (T == PE_IQ1_S) {
    uint16x8_t h = vreinterpretq_u16_u8(u8_load(w + 34));
    uint8x8_t s = vmovn_u16((h >> vdupq_n_u16(11)) & vdupq_n_u16(14));
    k->sc = vreinterpretq_s8_u8(vcombine_u8(vorr_u8(s, vdup_n_u8(1)), vdup_n_u8(0)));
  }
  if (T == PE_IQ1_M) {
    uint64_t s[2] = {0, 0};
    PE_UNROLL
    for (int j = 0; j < 16; j++) s[j / 8] |= (uint64_t)(load_u16(w + 48 + j / 4 * 2) >> j % 4 * 3 & 7) << j % 8 * 8;
    k->sc = two_u64(2 * s[0] | EACH8(1), 2 * s[1] | EACH8(1));
  }
}

/* d of four rows, as the scales' integers want it. */
INLINE void halves(int T, const pe_rows4 *l, int64_t off, float32x4_t *d, float32x4_t *dmin) {
  *dmin = vdupq_n_f32(0);
  if (T == PE_IQ1_M) {
    uint16_t h[4];
    PE_UNROLL
    for (int r = 0; r < 4; r++) {
      const uint8_t *w = l->p[r] + off;
      h[r] = (uint16_t)(w[49] >> 4 | (w[51] & 0xf0) | (w[53] & 0xf0) << 4 | (w[55] & 0xf0) << 8);
    }
    *d = vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t){h[0], h[1], h[2], h[3]}));
  } else {
    *d = pe_half4(l, off);
  }
  if (T != PE_IQ3_S) *d = vmulq_f32(*d, vdupq_n_f32(T == PE_IQ3_XXS ? 0.25f : 0.125f));
}

/* ---- signs ----------------------------------------------------------------------------------- */

/* Four bytes of seven signs each get the eighth, which makes the number of set ones even. */
INLINE uint32_t even_signs(uint32_t y) {
  uint32_t p = y ^ y >> 4;
  p ^= p >> 2;
  p ^= p >> 1;
  return y | (p & 0x01010101u) << 7;
}

/* Four times seven bits, one per byte. */
INLINE uint32_t signs_of_28(uint32_t s) {
  return even_signs((s & 0x7f) | (s << 1 & 0x7f00) | (s << 2 & 0x7f0000) | (s << 3 & 0x7f000000));
}

/* Sign bytes of a block's groups of eight, in order: two vectors. */
INLINE void signs(int T, const uint8_t *w, uint8x16_t s[2]) {
  if (T == PE_IQ2_S || T == PE_IQ3_S) {
    const uint8_t *at = w + (T == PE_IQ2_S ? 34 : 74);
    s[0] = u8_load(at);
    s[1] = u8_load(at + 16);
    return;
  }
  uint32_t v[8];
  PE_UNROLL
  for (int g = 0; g < 8; g++) {
    if (T == PE_IQ2_XS) {
      uint64_t q = load_u64(w + 2 + 8 * g) >> 9 & 0x007f007f007f007fu;
      q = (q | q >> 8) & 0x0000ffff0000ffffu;
      v[g] = even_signs((uint32_t)(q | q >> 16));
    } else {
      v[g] = signs_of_28(load_u32(w + (T == PE_IQ2_XXS ? 6 + 8 * g : 66 + 4 * g)));
    }
  }
  s[0] = vreinterpretq_u8_u32((uint32x4_t){v[0], v[1], v[2], v[3]});
  s[1] = vreinterpretq_u8_u32((uint32x4_t){v[4], v[5], v[6], v[7]});
}

/* Strip j's magnitudes with the signs of groups 2j and 2j + 1. */
INLINE uint8x16_t with_signs(int j, uint8x16_t v, const uint8x16_t s[2]) {
  static const uint8_t twice[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  uint8x16_t bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
  uint8x16_t m = vtstq_u8(vqtbl1q_u8(s[j / 8], vld1q_u8(twice) + u8_set(j % 8 * 2)), bit);
  return (v ^ m) - m;
}

/* ---- entries ----------------------------------------------------------------------------------- */

/* The place of group i's entry, of eight elements, or (IQ3) of four. */
INLINE uint32_t place_of(int T, const uint8_t *w, int i) {
  if (T == PE_IQ2_XXS) return w[2 + i / 4 * 8 + i % 4];
  if (T == PE_IQ2_XS) return load_u16(w + 2 + 2 * i) & 511;
  if (T == PE_IQ2_S) return w[2 + i] | (uint32_t)(w[66 + i / 4] >> i % 4 * 2 & 3) << 8;
  if (T == PE_IQ3_XXS) return w[2 + i];
  if (T == PE_IQ3_S) return w[2 + i] | (uint32_t)(w[66 + i / 8] >> i % 8 & 1) << 8;
  if (T == PE_IQ1_S) return w[2 + i] | (load_u16(w + 34 + i / 4 * 2) >> i % 4 * 3 & 7) << 8;
  return w[i] | (uint32_t)(w[32 + i / 2] >> i % 2 * 4 & 7) << 8;  /* IQ1_M */
}

INLINE uint64_t entry(int T, const uint8_t *w, int i) {
  uint32_t at = place_of(T, w, i);
  return T == PE_IQ2_XXS ? pe_grid_iq2_xxs[at] : T == PE_IQ2_XS ? pe_grid_iq2_xs[at] : T == PE_IQ2_S ? pe_grid_iq2_s[at]
       : T == PE_IQ3_XXS ? pe_grid_iq3_xxs[at] : T == PE_IQ3_S ? pe_grid_iq3_s[at] : pe_grid_iq1[at];
}

/* Eight elements, which are a group of eight or two of four. */
INLINE uint64_t eight(int T, const uint8_t *w, int i) {
  if (T == PE_IQ3_XXS || T == PE_IQ3_S) return entry(T, w, 2 * i) | entry(T, w, 2 * i + 1) << 32;
  return entry(T, w, i);
}

/* One more, or one less. */
INLINE int8_t offset_of(int T, const uint8_t *w, int i) {
  int less = T == PE_IQ1_S ? w[35 + i / 4 * 2] >> 7 : w[32 + i / 2] >> (i % 2 * 4 + 3) & 1;
  return (int8_t)(1 - 2 * less);
}

INLINE void strips(int T, const uint8_t *w, dots *o, uint8x16_t *to) {
  uint8x16_t s[2];
  const int is_iq1 = T == PE_IQ1_S || T == PE_IQ1_M;
  if (!is_iq1) signs(T, w, s);
  PE_UNROLL
  for (int j = 0; j < 16; j++) {
    int8x16_t v = two_u64(eight(T, w, 2 * j), eight(T, w, 2 * j + 1));
    if (T == PE_IQ1_S) v = vaddq_s8(v, vdupq_n_s8(offset_of(T, w, 2 * j)));
    if (T == PE_IQ1_M) v = vaddq_s8(v, vcombine_s8(vdup_n_s8(offset_of(T, w, 2 * j)), vdup_n_s8(offset_of(T, w, 2 * j + 1))));
    uint8x16_t q = vreinterpretq_u8_s8(v);
    give_strip(T, j, is_iq1 ? q : with_signs(j, q, s), o, to);
  }
}

#endif

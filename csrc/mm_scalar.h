/* mm_scalar.h: what the files of the scalar meaning share: a block of 256 taken apart, its product
 * and its values, and the forms of their tables. No type is unpacked here. Included by mm_scalar.c
 * and mm_scalar_iq.c. */
#ifndef PE_MM_SCALAR_H
#define PE_MM_SCALAR_H
#include <string.h>

#include "blocks.h"
#include "kernel.h"
#include "softfloat.h"

#define INLINE static inline __attribute__((always_inline))

typedef struct pe_dequants {  /* a table of them ends with fn NULL */
  int32_t type, block;
  void (*fn)(float *, const uint8_t *, int64_t);
} pe_dequants;
extern const pe_dequants pe_dequants_iq[];

typedef struct block256 {  /* weight i is (d*sc[i/16])*q[i] - dmin*mn[i/16] */
  float d, dmin;
  int8_t q[256];           /* offset (4, 32) already taken off */
  int8_t sc[16];           /* per 16 elements; types with a scale per 32 repeat it */
  uint8_t mn[16];
} block256;

INLINE void mm_block256(const pe_mm *m, int64_t size, void (*unpack)(block256 *, const uint8_t *), int minima) {
  int64_t n_blocks = m->k / 256;
  for (int64_t r = m->r0; r < m->r1; r++) {
    const uint8_t *w = m->w + r * m->w_stride;
    for (int64_t t = 0; t < m->n; t++) m->y[t * m->y_stride + r] = 0.0f;
    for (int64_t b = 0; b < n_blocks; b++) {
      block256 u;
      unpack(&u, w + b * size);
      for (int64_t t = 0; t < m->n; t++) {
        const uint8_t *x = m->x + t * m->x_stride;
        const int8_t *q = pe_act_q(x) + 256 * b;
        float da = pe_act_d(x, m->k)[b];
        /* |isum| <= 16 * |w| * 127, |w| being 3 (Q2_K), 4 (Q3_K), 15 (Q4_K), 31 (Q5_K), 32 (Q6_K),
         * 127 (IQ4_XS), 2 (TQ2_0), 1 (TQ1_0), 43 (IQ2), 62 (IQ3_XXS), 15 (IQ3_S), 9 (IQ1);
         * |S| <= 16 * |sc| * |isum|: Q2_K 16*15*6 096 = 1 463 040, Q3_K 16*32*8 128 = 4 161 536,
         * Q4_K 16*63*30 480 = 30 723 840, Q5_K 16*63*62 992 = 63 495 936,
         * Q6_K 16*128*65 024 = 133 169 152, IQ4_XS 16*32*258 064 = 132 128 768,
         * IQ2 16*31*87 376 = 43 338 496, IQ3_XXS 16*31*125 984 = 62 488 064, IQ3_S 16*31*30 480 = 15 118 080,
         * IQ1 16*15*18 288 = 4 389 120. All below 2^31. From 2^24 on, (float)S rounds:
         * a kernel must reach the same total as an integer before it converts. */
        int32_t S = 0;
        for (int g = 0; g < 16; g++) {
          int32_t isum = 0;
          for (int j = 0; j < 16; j++) isum += (int32_t)u.q[16 * g + j] * q[16 * g + j];
          S += u.sc[g] * isum;
        }
        float *y = &m->y[t * m->y_stride + r];
        if (minima) {
          /* |N| <= 16 * mn * 16 * 127: Q2_K (15) 487 680, Q4_K and Q5_K (63) 2 048 256; below 2^24, so exact. */
          const int16_t *asum = pe_act_s16(x, m->k) + 16 * b;
          int32_t N = 0;
          for (int g = 0; g < 16; g++) N += (int32_t)u.mn[g] * asum[g];
          *y = pe_fmaf(da, pe_fmaf(u.d, (float)S, -(u.dmin * (float)N)), *y);
        } else {
          *y = pe_fmaf(da, u.d * (float)S, *y);
        }
      }
    }
  }
}

INLINE void dequant_block256(float *y, const uint8_t *w, int64_t k, int64_t size,
                             void (*unpack)(block256 *, const uint8_t *), int minima) {
  for (int64_t b = 0; b < k / 256; b++) {
    block256 u;
    unpack(&u, w + b * size);
    for (int j = 0; j < 256; j++) {
      float x = u.d * (float)u.sc[j / 16] * (float)u.q[j];
      y[256 * b + j] = minima ? x - u.dmin * (float)u.mn[j / 16] : x;
    }
  }
}

#define BLOCK(elements, name, extra)                                                         \
  static void mm_##name(const pe_mm *m) { mm_block##elements(m, sizeof(pe_##name), unpack_##name, extra); } \
  static void dequant_##name(float *y, const uint8_t *w, int64_t k) {                        \
    dequant_block##elements(y, w, k, sizeof(pe_##name), unpack_##name, extra);               \
  }

#define ROW(type, act, name) {"mm_" #name "_scalar", type, act, PE_ISA_SCALAR, 1, INT32_MAX, mm_##name}

#endif

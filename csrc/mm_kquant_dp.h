/* mm_kquant_dp.h: strips of mm_kquant.h times activations by VNNI. Included by
 * mm_kquant_avxvnni.c and mm_kquant_avx512.c, before mm_kquant.inl.c. */
#ifndef PE_MM_KQUANT_DOT_H
#define PE_MM_KQUANT_DOT_H

/* Two ways from a sum of vpdpbusd to its product with the scale, both exact:
 * - the sum fits int16, so the low half of its dword is it and vpdpwssd multiplies and adds at
 *   once (the scale's high half is 0). 16 elements of Q2_K (3*127*16 = 6 096), Q3_K (14 224)
 *   and Q4_K (30 480).
 * - vpmulld and an add, three operations, for the sub-block's whole sum: Q5_K (125 984 per 32),
 *   Q6_K (128 016 per 16), IQ4_XS (240*127*32 = 975 360). */
#define BY_DP2(T) ((T) == PE_Q2_K || (T) == PE_Q3_K || (T) == PE_Q4_K)
#define SCALE(T) (BY_DP2(T) ? LOW16 : INT32)
#define UP4 4              /* high nibbles stay high: 16 elements are 487 680, shifted down once */
/* vpdpbusd wants weights from 0 on: w + 127; S is at most 8*32*975 360 = 249 692 160 and the
 * offset's share 127 * 8*32*4 064 = 132 128 768, both int32. */
#define CODES {0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240}
#define IQ4_OFFSET 127
#define BIASED(T, NV) 0    /* mm_kquant_maddubs.h has such */

#include "mm_kquant.h"

INLINE vi scaled(int T, vi S, vi isum, vi sc) {
  return BY_DP2(T) ? vi_dp2(S, isum, sc) : vi_add32(S, vi_mul32(isum, sc));
}

INLINE vi strip_times(int T, vi S, const vi w[4], int up, const int8_t *q, vi sc) {
  vi s = vi_zero();
  PE_UNROLL
  for (int c = 0; c < 4; c++) s = vi_dp4(s, w[c], pe_bcast32(q + 4 * c));
  if (up) s = vi_sra32(s, up);
  return scaled(T, S, s, sc);
}

/* S of a block for NT tokens and NV vectors of rows. */
INLINE void block_sums(int T, int NT, int NV, vi S[8][2], const kpanel *p, const int8_t *q, int64_t stride) {
  const int run = BY_DP2(T) || !PER32(T) ? 4 : 8;
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    for (int v = 0; v < NV; v++) S[t][v] = vi_zero();
  for (int c0 = 0; c0 < 64; c0 += run) {  /* not unrolled: the sums get the registers, S waits in memory */
    vi s[8][2];
    PE_UNROLL
    for (int c = 0; c < run; c++)
      PE_UNROLL
      for (int t = 0; t < NT; t++) {
        vi x = pe_bcast32(q + t * stride + 4 * (c0 + c));
        PE_UNROLL
        for (int v = 0; v < NV; v++) s[t][v] = vi_dp4(c == 0 ? vi_zero() : s[t][v], p[v].w[c0 + c], x);
      }
    PE_UNROLL
    for (int t = 0; t < NT; t++)
      PE_UNROLL
      for (int v = 0; v < NV; v++) S[t][v] = scaled(T, S[t][v], s[t][v], p[v].sc[c0 / (PER32(T) ? 8 : 4)]);
  }
}

INLINE void finish_panel(int T, kpanel *p) { (void)T, (void)p; }

#endif

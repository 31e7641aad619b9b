/* mm_kquant_dp.h: strips of mm_kpanel.h times activations by VNNI. Included by
 * mm_{kquant,iquant}_{avxvnni,avx512}.c, before mm_kquant.inl.c. */
#ifndef PE_MM_KQUANT_DOT_H
#define PE_MM_KQUANT_DOT_H

/* Two ways from a sum of vpdpbusd to its product with the scale, both exact:
 * - the sum fits int16, so the low half of its dword is it and vpdpwssd multiplies and adds at
 *   once (the scale's high half is 0). 16 elements of Q2_K (3*127*16 = 6 096), Q3_K (14 224),
 *   Q4_K and IQ3_S (30 480), and of IQ1 without its offset (18 288).
 * - vpmulld and an add, three operations, for the sub-block's whole sum: Q5_K (125 984 per 32),
 *   Q6_K (128 016 per 16), IQ4_XS (240*127*32 = 975 360), IQ2 (87 376 per 16), IQ3_XXS (251 968
 *   per 32), IQ1 with its offset (36 576 per 16). */
#define BY_DP2(T) ((T) == PE_Q2_K || (T) == PE_Q3_K || (T) == PE_Q4_K || (T) == PE_IQ3_S)
/* Where the scales are 1 (TQ1_0, TQ2_0), vpdpbusd adds to the block's sum itself. */
#define SCALE(T, one) (BY_DP2(T) || ((T) == PE_Q6_K && !(one)) ? LOW16 : INT32)
#define UP4 4              /* high nibbles stay high: 16 elements are 487 680, shifted down once */
/* vpdpbusd wants weights from 0 on: w + 127; S is at most 8*32*975 360 = 249 692 160 and the
 * offset's share 127 * 8*32*4 064 = 132 128 768, both int32. */
#define CODES {0, 23, 44, 62, 78, 92, 105, 117, 128, 140, 152, 165, 180, 196, 216, 240}
#define IQ4_OFFSET 127
/* The codebook types for more than one token: w, signed, times a + 128, unsigned, from -128 * the
 * sum of w on: at most 32*62*255 = 505 920 on the way. */
#define BIASED(T, NV) CODEBOOK(T)

#include "mm_kpanel.h"

/* Many tokens: if no 16 activations of a block add up to more than PE_SMALL_SUM in absolute value (a mean of 64;
 * of normally distributed ones it is 36), sums fit int16 that otherwise might not, and take one vpdpwssd:
 * 32 elements of Q4_K (15 * 2*1023 = 30 690), 16 of Q5_K (31 713) and, their offset taken off at the start,
 * of Q6_K (32 * 1023 = 32 736). The activation rows say so (kernel.h). */
#define SMALL(T) ((T) == PE_Q4_K || (T) == PE_Q5_K || (T) == PE_Q6_K)

INLINE vi scaled(int by_dp2, vi S, vi isum, vi sc) {
  return by_dp2 ? vi_dp2(S, isum, sc) : vi_add32(S, vi_mul32(isum, sc));
}

INLINE vi strip_times(int T, vi S, const vi w[4], int up, const vi x[4], vi sc) {
  vi s = UNSCALED(T) && !up ? S : vi_zero();
  PE_UNROLL
  for (int c = 0; c < 4; c++) s = vi_dp4(s, w[c], x[c]);
  if (up) s = vi_sra32(s, up);
  if (UNSCALED(T)) return up ? vi_add32(S, s) : s;
  return scaled(BY_DP2(T), S, s, sc);
}

#define PANEL_RUN(T) (BY_DP2(T) || IQ1(T) || !PER32(T) ? 4 : 8)

/* S of a block for NT tokens and NV vectors of rows; of Q6_K with small activations, offset and all. */
INLINE void block_sums(int T, int small, int NT, int NV, vi S[8][2], const kpanel *p, const int8_t *q, const int16_t *asum,
                       int64_t stride) {
  const int by_dp2 = BY_DP2(T) || IQ1(T) || small, run = small ? (T == PE_Q4_K ? 8 : 4) : PANEL_RUN(T);
  int32_t start[8][16] __attribute__((aligned(64)));
  uint8_t q128[8][256] __attribute__((aligned(64)));
  if (BIASED(T, NV)) {
    bias_tokens(NT, q128, q, stride);
    q = (const int8_t *)q128[0];
    stride = 256;
  }
  if (small && OFFSET(T))
    for (int t = 0; t < NT; t++)
      for (int i = 0; i < 16; i++) start[t][i] = -OFFSET(T) * ((const int16_t *)((const uint8_t *)asum + t * stride))[i];
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    PE_UNROLL
    for (int v = 0; v < NV; v++) S[t][v] = vi_zero();
  for (int c0 = 0; c0 < 64; c0 += run) {  /* not unrolled: code for one run */
    vi s[8][2];
    PE_UNROLL
    for (int c = 0; c < run; c++)
      PE_UNROLL
      for (int t = 0; t < NT; t++) {
        vi b = pe_bcast32(q + t * stride + 4 * (c0 + c));
        PE_UNROLL
        for (int v = 0; v < NV; v++) {
          vi from = c > 0 ? s[t][v] : UNSCALED(T) ? S[t][v] : BIASED(T, NV) ? p[v].bias[c0 / run]
                    : small && OFFSET(T) ? vi_set32(start[t][c0 / 4]) : vi_zero();
          if (c == 0) pe_pin(&from);
          s[t][v] = BIASED(T, NV) ? vi_dp4(from, b, p[v].w[c0 + c]) : vi_dp4(from, p[v].w[c0 + c], b);
          pe_pin(&s[t][v]);
        }
      }
    PE_UNROLL
    for (int v = 0; v < NV; v++) {
      vi sc = p[v].sc[c0 / (PER32(T) ? 8 : 4)];
      if (T == PE_Q6_K && !small) sc = vi_sra32(vi_sll32(sc, 16), 16);
      PE_UNROLL
      for (int t = 0; t < NT; t++) S[t][v] = UNSCALED(T) ? s[t][v] : scaled(by_dp2, S[t][v], s[t][v], sc), pe_pin(&S[t][v]);
    }
  }
}

INLINE void finish_panel(int T, int NV, kpanel *p) {
  const int run = PANEL_RUN(T);
  if (!BIASED(T, NV)) return;
  for (int j = 0; j < 64 / run; j++) {
    vi s = vi_zero();
    for (int c = 0; c < run; c++) s = vi_dp4(s, vi_set8(1), p->w[run * j + c]);
    p->bias[j] = vi_sll32(vi_sub32(vi_zero(), s), 7);
  }
}

#endif

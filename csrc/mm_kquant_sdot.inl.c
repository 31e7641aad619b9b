/* mm_kquant_sdot.inl.c: matrix products with weights in blocks of 256 by sdot (Cortex-A76, A55, Apple M1).
 * The bits are mm_scalar.c's. The body of mm_{kquant,iquant}_dotprod.c, behind their types: the products of
 * mm_kquant_neon.inl.c, many tokens, and the table. */

/* A sub-block's products, summed within dwords; join4 adds them up, pairs4 leaves two int16 of each (SHORT). */
typedef int32x4_t part;

INLINE part times(int T, int first, part p, int8x16_t w, int8x16_t q) {
  (void)T;
  return vdotq_s32(first ? loaded_zero() : p, w, q);
}

INLINE int32x4_t join4(int T, part a, part b, part c, part d) {
  (void)T;
  return pe_sums4(a, b, c, d);
}

INLINE int16x8_t pairs4(part a, part b, part c, part d) {
  return vuzp1q_s16(vreinterpretq_s16_s32(vpaddq_s32(a, b)), vreinterpretq_s16_s32(vpaddq_s32(c, d)));
}

#include "mm_kquant_neon.inl.c"

/* ---- many tokens: dword lane i is row i, and a token's four quants meet it by element ------------------ */

#include "mm_kquant_panel.h"

enum { TILE = 4 };

INLINE void place(int T, int v, const int8x16_t strip[4][16], const int32x4_t *sc, int n, kpanel *p) {
  for (int j = 0; j < 16; j++) {
    int8x16_t t[4];
    pe_transpose4(t, strip[0][j], strip[1][j], strip[2][j], strip[3][j]);
    PE_UNROLL
    for (int c = 0; c < 4; c++) p->w[8 * j + 4 * v + c] = t[c];
  }
  if (SCALED(T)) return;
  for (int j = 0; j < n; j++) p->sc[2 * j + v] = sc[j];
}

INLINE int32x4_t dot16(int32x4_t s, const int8x16_t w[4], int8x16_t q) {
  s = vdotq_laneq_s32(s, w[0], q, 0);
  s = vdotq_laneq_s32(s, w[1], q, 1);
  s = vdotq_laneq_s32(s, w[2], q, 2);
  return vdotq_laneq_s32(s, w[3], q, 3);
}

INLINE void block_sums(int T, int NT, int32x4_t S[TILE][2], int32x4_t N[TILE][2], const kpanel *p, const uint8_t *x,
                       int64_t stride, int64_t k, int64_t b) {
  const int run = PER32(T) ? 2 : 1;
  const int8_t *q = pe_act_q(x) + 256 * b;
  PE_UNROLL
  for (int t = 0; t < NT; t++) S[t][0] = S[t][1] = vdupq_n_s32(0);
  for (int j = 0; j < 16; j += run) {  /* not unrolled: a strip or two are enough work for a branch */
    int32x4_t s[TILE][2];
    PE_UNROLL
    for (int t = 0; t < NT; t++)
      for (int v = 0; v < 2; v++) s[t][v] = SCALED(T) ? S[t][v] : loaded_zero();
    PE_UNROLL
    for (int i = j; i < j + run; i++)
      PE_UNROLL
      for (int t = 0; t < NT; t++) {
        int8x16_t a = vld1q_s8(q + t * stride + 16 * i);
        for (int v = 0; v < 2; v++) s[t][v] = dot16(s[t][v], p->w + 8 * i + 4 * v, a);
      }
    PE_UNROLL
    for (int t = 0; t < NT; t++)
      for (int v = 0; v < 2; v++) S[t][v] = SCALED(T) ? s[t][v] : vmlaq_s32(S[t][v], s[t][v], p->sc[2 * (j / run) + v]);
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++) {
    if (MINIMA(T)) minima8(T, N[t], p, x + t * stride, k, b);
    if (T == PE_Q3_K)
      for (int v = 0; v < 2; v++) S[t][v] = vnegq_s32(S[t][v]);
  }
}

#include "mm_kquant_many.inl.c"

const pe_row TABLE[] = {EACH_TYPE(ROWS_ONE_FEW) EACH_TYPE(ROWS_MANY){0}};

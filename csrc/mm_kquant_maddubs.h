/* mm_kquant_maddubs.h: strips of mm_kquant.h times activations by vpmaddubsw: int16 sums,
 * widened by the madd that multiplies with the sub-block's scale. Included by
 * mm_kquant_avx2.c, before mm_kquant.inl.c. */
#ifndef PE_MM_KQUANT_DOT_H
#define PE_MM_KQUANT_DOT_H

#define SCALE(T) TWICE16
#define UP4 0              /* 16*15*127 * 2 does not fit int16: high nibbles are shifted down */
/* vpmaddubsw wants one side unsigned. Pairs of 127*127*2 = 32 258 fit only alone, and values
 * from 0 on (w + 127) not at all: w stays signed and gives its sign to the activation. */
#define CODES {129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113}
#define IQ4_OFFSET 0

#include "mm_kquant.h"

/* How many maddubs results add up within int16: a pair is at most 2*q*127, q being 3 (Q2_K),
 * 7 (Q3_K): four (a sub-block) stay below 7 112; 15 (Q4_K): eight, 30 480; 31 (Q5_K): four,
 * 31 496; 63 (Q6_K): two, 32 004; 127 (IQ4_XS): one, 32 258. */
#define RUN(T) ((T) == PE_IQ4_XS ? 1 : (T) == PE_Q6_K ? 2 : (T) == PE_Q4_K ? 8 : 4)

INLINE vi signed_times(vi w, vi x) { return vi_maddubs(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)); }

/* A strip shifted up by two (Q2_K: 12 192, Q3_K: 28 448) still fits: its sum is shifted down. */
INLINE vi strip_times(int T, vi S, const vi w[4], int up, const int8_t *q, vi sc) {
  const int run = RUN(T) < 4 ? RUN(T) : 4;
  PE_UNROLL
  for (int r = 0; r < 4; r += run) {
    vi s = vi_zero();
    PE_UNROLL
    for (int c = r; c < r + run; c++) {
      vi x = pe_bcast32(q + 4 * c);
      vi e = T == PE_IQ4_XS ? signed_times(w[c], x) : vi_maddubs(w[c], x);
      s = c == r ? e : vi_add16(s, e);
    }
    if (up) s = vi_sra16(s, up);
    S = vi_add32(S, vi_madd16(s, sc));
  }
  return S;
}

/* S of a block for NT tokens and NV vectors of rows: each run of sums times its scale. */
INLINE void block_sums(int T, int NT, int NV, vi S[8][2], const kpanel *p, const int8_t *q, int64_t stride) {
  const int run = RUN(T);
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    for (int v = 0; v < NV; v++) S[t][v] = vi_zero();
  for (int c0 = 0; c0 < 64; c0 += 8) {
    PE_UNROLL
    for (int c1 = 0; c1 < 8; c1 += run) {
      vi s[8][2];
      PE_UNROLL
      for (int c = 0; c < run; c++)
        PE_UNROLL
        for (int t = 0; t < NT; t++) {
          vi x = pe_bcast32(q + t * stride + 4 * (c0 + c1 + c));
          PE_UNROLL
          for (int v = 0; v < NV; v++) {
            vi w = p[v].w[c0 + c1 + c];
            vi e = T == PE_IQ4_XS ? signed_times(w, x) : vi_maddubs(w, x);
            s[t][v] = c == 0 ? e : vi_add16(s[t][v], e);
            pe_pin(&s[t][v]);
          }
        }
      PE_UNROLL
      for (int t = 0; t < NT; t++)
        PE_UNROLL
        for (int v = 0; v < NV; v++)
          S[t][v] = vi_add32(S[t][v], vi_madd16(s[t][v], p[v].sc[PER32(T) ? c0 / 8 : (c0 + c1) / 4]));
    }
  }
}

#endif

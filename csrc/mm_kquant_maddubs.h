/* mm_kquant_maddubs.h: strips of mm_kpanel.h times activations by vpmaddubsw: int16 sums,
 * widened by the madd that multiplies with the sub-block's scale. Included by
 * mm_kquant_avx2.c and mm_iquant_avx2.c, before mm_kquant.inl.c. */
#ifndef PE_MM_KQUANT_DOT_H
#define PE_MM_KQUANT_DOT_H

#define SCALE(T, one) TWICE16
#define SMALL(T) 0         /* mm_kquant_dp.h has such */
#define UP4 0              /* 16*15*127 * 2 does not fit int16: high nibbles are shifted down */
/* vpmaddubsw wants one side unsigned. Pairs of 127*127*2 = 32 258 fit only alone, and values
 * from 0 on (w + 127) not at all: w stays signed and gives its sign to the activation. */
#define CODES {129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113}
#define IQ4_OFFSET 0

#include "mm_kpanel.h"

/* How many maddubs results add up within int16: a pair is at most 2*q*127, q being 3 (Q2_K),
 * 7 (Q3_K): four (a sub-block) stay below 7 112; 15 (Q4_K, IQ3_S): eight, 30 480; 31 (Q5_K): four,
 * 31 496; 63 (Q6_K): two, 32 004; 127 (IQ4_XS): one, 32 258; 43 (IQ2): two, 21 844; 62 (IQ3_XXS):
 * two, 31 496; 9 (IQ1): eight, 18 288, and with its offset, 18, four, 18 288; 3 (TQ): eight, 6 096. */
#define RUN(T)                                                                                                 \
  ((T) == PE_IQ4_XS ? 1 : (T) == PE_Q6_K || IQ2(T) || (T) == PE_IQ3_XXS ? 2                                   \
   : (T) == PE_Q4_K || UNSCALED(T) || (T) == PE_IQ3_S || (T) == PE_IQ1_S ? 8 : 4)

INLINE vi signed_times(vi w, vi x) { return vi_maddubs(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)); }

/* A strip shifted up by two (Q2_K, TQ2_0: 12 192, Q3_K: 28 448) still fits: its sum is shifted down. */
INLINE vi strip_times(int T, vi S, const vi w[4], int up, const vi x[4], vi sc) {
  const int run = RUN(T) < 4 ? RUN(T) : 4;
  PE_UNROLL
  for (int r = 0; r < 4; r += run) {
    vi s = vi_zero();
    PE_UNROLL
    for (int c = r; c < r + run; c++) {
      vi e = T == PE_IQ4_XS ? signed_times(w[c], x[c]) : vi_maddubs(w[c], x[c]);
      s = c == r ? e : vi_add16(s, e);
    }
    if (up) s = vi_sra16(s, up);
    S = vi_add32(S, vi_madd16(s, sc));
  }
  return S;
}

/* ---- a block times a tile of tokens ----------------------------------------------------- */

/* Q6_K times many tokens: w - 32, signed, times a + 128, unsigned. A pair is at most 16 320 and
 * does not saturate; four leave int16 (65 280), but int16 adds wrap, and with -128 * the sum of
 * w - 32 they are back at the sum of a*(w - 32), at most 8*127*32 = 32 512. So a sub-block is
 * one sum instead of two, and there is no offset to take off at the end: 165 instructions per
 * block, token and vector instead of 180. */
/* The codebook types likewise, and there for few tokens too: |w| is at most 62, a pair 31 620, and
 * the run's sum is within int16 as above. */
#define BIASED(T, NV) (((T) == PE_Q6_K && (NV) == 2) || CODEBOOK(T))
#define BIASED_RUN(T) ((T) == PE_Q6_K ? 4 : RUN(T))

INLINE void finish_panel(int T, int NV, kpanel *p) {
  const int run = BIASED_RUN(T);
  if (!BIASED(T, NV)) return;
  for (int j = 0; j < 64 / run; j++) {
    vi s = vi_zero();
    for (int c = 0; c < run; c++) {
      vi *w = &p->w[run * j + c];
      if (T == PE_Q6_K) *w = vi_sub8(*w, vi_set8(32));
      s = vi_add16(s, vi_maddubs(vi_set8(1), *w));
    }
    p->bias[j] = vi_sll16(vi_sub16(vi_zero(), s), 7);
  }
}

/* Vector i of what begins at p in each kpanel. */
INLINE vi at(const uint8_t *p, int i, int v) { return *(const vi *)(p + 32 * i + v * (int64_t)sizeof(kpanel)); }

/* The scale that ends before dword c of eight: -1 is the last of the eight before. */
INLINE int scale_before(int T, int c) { return PER32(T) ? (c + 7) / 8 - 1 : (c + 3) / 4 - 1; }

/* S of a block for NT tokens and NV vectors of rows: each run of sums times its scale. That is
 * done sum by sum, where the first product of the next run takes its place: all of them at once
 * would wait for two of the three ports (Q4_K: 108 : 111 GMAC/s). */
INLINE void eight(int T, int NT, int NV, vi S[8][2], vi s[8][2], const uint8_t *w, const uint8_t *sc, const uint8_t *bias,
                  const uint8_t *q, int64_t stride, int is_first) {
  const int run = BIASED(T, NV) ? BIASED_RUN(T) : RUN(T);
  PE_UNROLL
  for (int c = 0; c < 8; c++)
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      vi x = pe_bcast32(q + t * stride + 4 * c);
      PE_UNROLL
      for (int v = 0; v < NV; v++) {
        if (c % run == 0 && !(is_first && c == 0)) {
          S[t][v] = vi_add32(S[t][v], vi_madd16(s[t][v], at(sc, scale_before(T, c), v)));
          pe_pin(&S[t][v]);
        }
        vi e = BIASED(T, NV) ? vi_maddubs(x, at(w, c, v)) : T == PE_IQ4_XS ? signed_times(at(w, c, v), x) : vi_maddubs(at(w, c, v), x);
        if (c % run) s[t][v] = vi_add16(s[t][v], e);
        else s[t][v] = BIASED(T, NV) ? vi_add16(e, at(bias, c / run, v)) : e;
        pe_pin(&s[t][v]);
      }
    }
}

INLINE void block_sums(int T, int small, int NT, int NV, vi S[8][2], const kpanel *p, const int8_t *quants, const int16_t *asum,
                       int64_t stride) {
  (void)small, (void)asum;
  vi s[8][2];
  uint8_t q128[8][256] __attribute__((aligned(64)));
  const uint8_t *w = (const uint8_t *)p->w, *sc = (const uint8_t *)p->sc, *bias = (const uint8_t *)p->bias, *q = (const uint8_t *)quants;
  if (BIASED(T, NV)) {
    bias_tokens(NT, q128, quants, stride);
    q = q128[0];
    stride = 256;
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    for (int v = 0; v < NV; v++) S[t][v] = vi_zero();
  eight(T, NT, NV, S, s, w, sc, bias, q, stride, 1);
  for (int i = 1; i < 8; i++) {
    w += 256, sc += PER32(T) ? 32 : 64, bias += 256 / BIASED_RUN(T), q += 32;
    __asm__("" : "+r"(w), "+r"(sc), "+r"(bias), "+r"(q));  /* four pointers, not sums of bases and indices */
    eight(T, NT, NV, S, s, w, sc, bias, q, stride, 0);
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    PE_UNROLL
    for (int v = 0; v < NV; v++) S[t][v] = vi_add32(S[t][v], vi_madd16(s[t][v], at(sc, scale_before(T, 8), v)));
}

#endif

/* mm_kquant_smmla.inl.c: matrix products with weights in blocks of 256 by smmla (Neoverse V1 and N2,
 * Cortex-A710 and later), for many tokens; for one and a few, sdot reads weights as fast as memory gives them.
 * The bits are mm_scalar.c's. The body of mm_{kquant,iquant}_i8mm.c, behind their types. */

#include "mm_kquant_panel.h"

/* All strips go to panels here. */
INLINE void take_strip(int T, int j, uint8x16_t w, dots *o) { (void)T, (void)j, (void)w, (void)o; }

enum { TILE = 4 };

/* Eight elements of two rows in a vector, and of two tokens: their product is two by two. */
INLINE void place(int T, int v, const int8x16_t strip[4][16], const int32x4_t *sc, int n, kpanel *p) {
  for (int j = 0; j < 16; j++)
    PE_UNROLL
    for (int i = 0; i < 2; i++) {
      p->w[8 * j + 4 * v + 2 * i] = pe_zip1_64(strip[2 * i][j], strip[2 * i + 1][j]);
      p->w[8 * j + 4 * v + 2 * i + 1] = pe_zip2_64(strip[2 * i][j], strip[2 * i + 1][j]);
    }
  if (SCALED(T)) return;
  for (int j = 0; j < n; j++) {
    p->sc[4 * j + 2 * v] = vzip1q_s32(sc[j], sc[j]);
    p->sc[4 * j + 2 * v + 1] = vzip2q_s32(sc[j], sc[j]);
  }
}

INLINE void block_sums(int T, int NT, int32x4_t S[TILE][2], int32x4_t N[TILE][2], const kpanel *p, const uint8_t *x,
                       int64_t stride, int64_t k, int64_t b) {
  const int run = PER32(T) ? 2 : 1, pairs = (NT + 1) / 2;
  const int64_t second = NT == 1 ? 0 : stride;  /* a lone token is its own neighbour */
  const int8_t *q = pe_act_q(x) + 256 * b;
  int32x4_t s[2][4];       /* [pair of tokens][pair of rows] */
  PE_UNROLL
  for (int t = 0; t < pairs; t++)
    for (int r = 0; r < 4; r++) s[t][r] = vdupq_n_s32(0);
  for (int j = 0; j < 16; j += run) {  /* not unrolled: a strip or two are enough work for a branch */
    int32x4_t i[2][4];
    PE_UNROLL
    for (int t = 0; t < pairs; t++)
      for (int r = 0; r < 4; r++) i[t][r] = SCALED(T) ? s[t][r] : loaded_zero();
    PE_UNROLL
    for (int h = j; h < j + run; h++)
      PE_UNROLL
      for (int t = 0; t < pairs; t++) {
        int8x16_t q0 = vld1q_s8(q + 2 * t * stride + 16 * h), q1 = vld1q_s8(q + 2 * t * stride + second + 16 * h);
        int8x16_t lo = pe_zip1_64(q0, q1), hi = pe_zip2_64(q0, q1);
        for (int r = 0; r < 4; r++) {
          int32x4_t sum = vmmlaq_s32(i[t][r], p->w[8 * h + 2 * r], lo);
          sum = vmmlaq_s32(sum, p->w[8 * h + 2 * r + 1], hi);
          __asm__ volatile("" : "+w"(sum));  /* clang would start the next strip early and move sums about */
          i[t][r] = sum;
        }
      }
    PE_UNROLL
    for (int t = 0; t < pairs; t++)
      for (int r = 0; r < 4; r++) s[t][r] = SCALED(T) ? i[t][r] : vmlaq_s32(s[t][r], i[t][r], p->sc[4 * (j / run) + r]);
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++) {
    PE_UNROLL
    for (int v = 0; v < 2; v++) {
      int32x4_t lo = s[t / 2][2 * v], hi = s[t / 2][2 * v + 1];
      S[t][v] = t % 2 ? vuzp2q_s32(lo, hi) : vuzp1q_s32(lo, hi);
      if (T == PE_Q3_K) S[t][v] = vnegq_s32(S[t][v]);
    }
    if (MINIMA(T)) minima8(T, N[t], p, x + t * stride, k, b);
  }
}

#include "mm_kquant_many.inl.c"

const pe_row TABLE[] = {EACH_TYPE(ROWS_MANY){0}};

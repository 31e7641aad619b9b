/* mm_kquant_mull.inl.c: matrix products with weights in blocks of 256 on ARMv8.0 (Cortex-A53, A72), which
 * has no dot product. The bits are mm_scalar.c's. The body of mm_{kquant,iquant}_neon.c, behind their
 * types: the products of mm_kquant_neon.inl.c, many tokens, and the table. */

/* How many pairwise additions of four sub-blocks' int16 lanes fit, IQ4_XS apart, whose lanes are int32. */
#define PAIRS(T) ((T) == PE_IQ2_XXS || (T) == PE_IQ3_XXS ? 0 : (T) == PE_Q5_K || (T) == PE_Q6_K || (T) == PE_IQ2_XS || (T) == PE_IQ2_S ? 1 : 2)

/* A sub-block's products: int16 lanes as long as they fit, IQ4_XS int32.
 * join4 adds them up, pairs4 leaves two int16 of each (SHORT). A lane is at most 4*15*127 = 7 620
 * (Q4_K; sixteen elements of Q2_K and Q3_K 1 016), so two pairwise sums fit, 30 480; 4*31*127 = 15 748 (Q5_K)
 * and 2*63*127 = 16 002 (Q6_K), so one fits, 32 004; 2*127*127 = 32 258 (IQ4_XS) for sixteen elements, none.
 * IQ3_S and IQ1 are at most as Q4_K; 2*43*127 = 10 922 (IQ2_XS, IQ2_S), so one fits, 21 844; 4*43*127 = 21 844
 * (IQ2_XXS) and 4*62*127 = 31 496 (IQ3_XXS), so none does. */
typedef int16x8_t part;

INLINE part times(int T, int first, part p, int8x16_t w, int8x16_t q) {
  if (T == PE_IQ4_XS) {
    int16x8_t v = vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(q)), w, q);
    int32x4_t sum = vreinterpretq_s32_s16(p);
    return vreinterpretq_s16_s32(first ? vpaddlq_s16(v) : vpadalq_s16(sum, v));
  }
  p = first ? vmull_s8(vget_low_s8(w), vget_low_s8(q)) : vmlal_s8(p, vget_low_s8(w), vget_low_s8(q));
  return vmlal_high_s8(p, w, q);
}

INLINE int32x4_t join4(int T, part a, part b, part c, part d) {
  if (T == PE_IQ4_XS)
    return pe_sums4(vreinterpretq_s32_s16(a), vreinterpretq_s32_s16(b), vreinterpretq_s32_s16(c), vreinterpretq_s32_s16(d));
  if (PAIRS(T) == 0) return pe_sums4(vpaddlq_s16(a), vpaddlq_s16(b), vpaddlq_s16(c), vpaddlq_s16(d));
  int16x8_t ab = vpaddq_s16(a, b), cd = vpaddq_s16(c, d);
  if (PAIRS(T) == 1) return vpaddq_s32(vpaddlq_s16(ab), vpaddlq_s16(cd));
  return vpaddlq_s16(vpaddq_s16(ab, cd));
}

INLINE int16x8_t pairs4(part a, part b, part c, part d) { return vpaddq_s16(vpaddq_s16(a, b), vpaddq_s16(c, d)); }

#include "mm_kquant_neon.inl.c"

/* ---- many tokens: rows as they lie, each times two tokens ------------------------------------ */

typedef struct kpanel {    /* one block of eight rows */
  urow u[8];
  float32x4_t d[2], dmin[2];
} kpanel;

enum { TILE = 2 };

INLINE void pack(int T, const pe_rows4 l[2], int64_t off, int64_t ahead, kpanel *p) {
  for (int r = 0; r < 8; r++) {
    const uint8_t *row = l[r / 4].p[r % 4];
    prefetch_block(T, row, off + ahead);
    unpack_row(T, row + off, &p->u[r]);
  }
  for (int v = 0; v < 2; v++) halves(T, &l[v], off, &p->d[v], &p->dmin[v]);
}

INLINE void block_sums(int T, int NT, int32x4_t S[TILE][2], int32x4_t N[TILE][2], const kpanel *p, const uint8_t *x,
                       int64_t stride, int64_t k, int64_t b) {
  int16x8_t asum[TILE][2];
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    if (MINIMA(T)) sums_of(T, x + t * stride, k, b, asum[t]);
  for (int v = 0; v < 2; v++) {
    int32x4_t s[TILE][4], n[TILE][4];
    for (int r = 0; r < 4; r++) row_tokens(T, NT, &p->u[4 * v + r], pe_act_q(x) + 256 * b, stride, r, asum, s, n);
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      S[t][v] = pe_sums4(s[t][0], s[t][1], s[t][2], s[t][3]);
      if (MINIMA(T)) N[t][v] = pe_sums4(n[t][0], n[t][1], n[t][2], n[t][3]);
    }
  }
}

#include "mm_kquant_many.inl.c"

const pe_row TABLE[] = {EACH_TYPE(ROWS_ONE_FEW) EACH_TYPE(ROWS_MANY){0}};

/* mm_kquant_neon.c: matrix products with weights in blocks of 256 on ARMv8.0 (Cortex-A53, A72), which
 * has no dot product: mm_kquant_neon.inl.c. Reached through pe_rows_kquant_neon only. */
#if defined(__aarch64__)
#include "mm_neon.h"
#include "mm_kquant_neon.h"

/* A sub-block's products: int16 lanes as long as they fit, IQ4_XS int32. A lane is at most 4*15*127 = 7 620
 * (Q4_K; sixteen elements of Q2_K and Q3_K 1 016), so two pairwise sums fit, 30 480; 4*31*127 = 15 748 (Q5_K)
 * and 2*63*127 = 16 002 (Q6_K), so one fits, 32 004; 2*127*127 = 32 258 (IQ4_XS) for sixteen elements, none. */
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
  int16x8_t ab = vpaddq_s16(a, b), cd = vpaddq_s16(c, d);
  if (T == PE_Q5_K || T == PE_Q6_K) return vpaddq_s32(vpaddlq_s16(ab), vpaddlq_s16(cd));
  return vpaddlq_s16(vpaddq_s16(ab, cd));
}

#define TABLE pe_rows_kquant_neon
#include "mm_kquant_neon.inl.c"

PE_TARGET_END
#endif

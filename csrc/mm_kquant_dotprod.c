/* mm_kquant_dotprod.c: matrix products with weights in blocks of 256 by sdot (Cortex-A76, A55, Apple M1):
 * mm_kquant_neon.inl.c. Reached through pe_rows_kquant_dotprod only. */
#if defined(__aarch64__)
#include "mm_dotprod.h"
#include "mm_kquant_neon.h"

/* A sub-block's products, summed within dwords. */
typedef int32x4_t part;

INLINE part times(int T, int first, part p, int8x16_t w, int8x16_t q) {
  (void)T;
  return vdotq_s32(first ? vdupq_n_s32(0) : p, w, q);
}

INLINE int32x4_t join4(int T, part a, part b, part c, part d) {
  (void)T;
  return pe_sums4(a, b, c, d);
}

#define TABLE pe_rows_kquant_dotprod
#include "mm_kquant_neon.inl.c"

PE_TARGET_END
#endif

/* simd_dotprod.c: the tier of NEON with the dot product instructions, which take the scores
 * of q8_0 and q4_0 K: 4 of them where NEON needs 16 or 12 others. The rest is simd_neon.c's. */
#if defined(__aarch64__)
#ifdef __clang__
#if __clang_major__ < 16 && !defined(__ARM_FEATURE_DOTPROD)
#define __ARM_FEATURE_DOTPROD 1             /* older arm_neon.h hide vdotq_s32 unless the build flags have it */
#endif
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#else
#pragma GCC target("arch=armv8.2-a+dotprod")  /* as in gcc's arm_neon.h: with less, vdotq_s32 is not inlined */
#endif
#include <arm_neon.h>

#include "kernel.h"
#include "softfloat.h"

/* s + four products of signed bytes per lane */
static inline __attribute__((always_inline)) int32x4_t v16_dot4x4(int32x4_t s, int32x4_t x, int32x4_t y) {
  return vdotq_s32(s, vreinterpretq_s8_s32(x), vreinterpretq_s8_s32(y));
}
/* s + four products x*y + four products z*w per lane */
static inline __attribute__((always_inline)) int32x4_t v16_dot8x4(int32x4_t s, int8x16_t x, int8x16_t y, int8x16_t z, int8x16_t w) {
  return vdotq_s32(vdotq_s32(s, x, y), z, w);
}
#include "v16_neon.h"
#include "ops.inl.c"
#include "kv_store.inl.c"
#include "attn.inl.c"

const pe_vops pe_vops_dotprod = {"dotprod", PE_ISA_NEON | PE_ISA_DOTPROD, PE_VOPS_MEMBERS};
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif

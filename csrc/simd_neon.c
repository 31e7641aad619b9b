/* simd_neon.c: the tier of NEON as every aarch64 has it. */
#if defined(__aarch64__)
#include <arm_neon.h>

#include "kernel.h"
#include "softfloat.h"

/* s + four products of signed bytes per lane. Two of at most 127*127 fit 16 bits. */
static inline __attribute__((always_inline)) int32x4_t v16_dot4x4(int32x4_t s, int32x4_t x, int32x4_t y) {
  int8x16_t a = vreinterpretq_s8_s32(x), b = vreinterpretq_s8_s32(y);
  return vpadalq_s16(s, vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b)));
}
/* s + four products x*y + four products z*w per lane, x and z at most 15: two and two of them fit 16 bits. */
static inline __attribute__((always_inline)) int32x4_t v16_dot8x4(int32x4_t s, int8x16_t x, int8x16_t y, int8x16_t z, int8x16_t w) {
  int16x8_t lo = vmlal_s8(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vget_low_s8(z), vget_low_s8(w));
  return vpadalq_s16(s, vpaddq_s16(lo, vmlal_high_s8(vmull_high_s8(x, y), z, w)));
}
#include "v16_neon.h"
#include "ops.inl.c"
#include "kv_store.inl.c"
#include "attn.inl.c"

const pe_vops pe_vops_neon = {"neon", PE_ISA_NEON, PE_VOPS_MEMBERS};
#endif

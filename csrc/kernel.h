/* kernel.h: what kernels share. Included by every kernel file, by kernels.c and
 * exec.c; not by gguf.c. The row and operand structs are in pyengine.h, because
 * Python sees them too.
 *
 * Activation rows. Each section starts at a multiple of 64 bytes:
 *   PE_ACT_F32   float x[k]
 *   PE_ACT_Q32   int8 q[k] | float d[k/32]  | int32 s[k/32], s = sum of q over its block
 *   PE_ACT_Q256  int8 q[k] | float d[k/256] | int16 s[k/16], s = sum of q over 16 (|s| <= 2032)
 *                | uint8 small[k/256], 1 only if |q| of each 16 of the block add up to PE_SMALL_SUM at most
 */
#ifndef PE_KERNEL_H
#define PE_KERNEL_H
#include "pyengine.h"

#ifdef __FAST_MATH__
#error "pyengine must not be compiled with -ffast-math: one answer depends on IEEE arithmetic"
#endif
#if defined(__arm__) && defined(__clang__) && defined(__ARM_NEON)
#error "32-bit NEON flushes subnormals, and clang uses it for floats where gcc does not: add -mfpu=vfpv4"
#endif

static inline int64_t pe_up64(int64_t n) { return (n + 63) & ~(int64_t)63; }

static inline const int8_t *pe_act_q(const uint8_t *x) { return (const int8_t *)x; }
static inline const float *pe_act_d(const uint8_t *x, int64_t k) { return (const float *)(x + pe_up64(k)); }
static inline const int32_t *pe_act_s32(const uint8_t *x, int64_t k) {
  return (const int32_t *)(x + pe_up64(k) + pe_up64(k / 32 * 4));
}
static inline const int16_t *pe_act_s16(const uint8_t *x, int64_t k) {
  return (const int16_t *)(x + pe_up64(k) + pe_up64(k / 256 * 4));
}
/* A kernel may take a shorter way through small blocks, and no bit may depend on it: 0 is never wrong. */
static inline const uint8_t *pe_act_small(const uint8_t *x, int64_t k) {
  return x + pe_up64(k) + pe_up64(k / 256 * 4) + pe_up64(k / 16 * 2);
}

/* Tables of the kernel files; kernels.c gathers them. A table ends with a row whose fn is NULL. */
extern const pe_row pe_rows_scalar[];
extern const pe_row pe_rows_scalar_iq[];
#if defined(__x86_64__) || defined(_M_X64)
extern const pe_row pe_rows_float_avx2[];
extern const pe_row pe_rows_float_avx512[];
extern const pe_row pe_rows_block32_avx2[];
extern const pe_row pe_rows_block32_avxvnni[];
extern const pe_row pe_rows_block32_avx512[];
extern const pe_row pe_rows_kquant_avx2[];
extern const pe_row pe_rows_kquant_avxvnni[];
extern const pe_row pe_rows_kquant_avx512[];
extern const pe_row pe_rows_iquant_avx2[];
extern const pe_row pe_rows_iquant_avxvnni[];
extern const pe_row pe_rows_iquant_avx512[];
#elif defined(__aarch64__)
extern const pe_row pe_rows_float_neon[];
extern const pe_row pe_rows_block32_neon[];
extern const pe_row pe_rows_block32_dotprod[];
extern const pe_row pe_rows_block32_i8mm[];
extern const pe_row pe_rows_kquant_neon[];
extern const pe_row pe_rows_kquant_dotprod[];
extern const pe_row pe_rows_kquant_i8mm[];
extern const pe_row pe_rows_iquant_neon[];
extern const pe_row pe_rows_iquant_dotprod[];
extern const pe_row pe_rows_iquant_i8mm[];
#endif
extern const pe_vops pe_vops_scalar;
#if defined(__x86_64__) || defined(_M_X64)
extern const pe_vops pe_vops_avx2;
extern const pe_vops pe_vops_avx512;
#elif defined(__aarch64__)
extern const pe_vops pe_vops_neon;
extern const pe_vops pe_vops_dotprod;
#endif
#endif

/* softfloat.h: float operations that a plain machine lacks, by integers and doubles:
 * fused multiply-add, half and bfloat16 conversion. Exact to the bit what the
 * instructions give (vfmadd, vcvtph2ps, vcvtps2ph, fmadd, fcvt), NaN payloads apart.
 * No approximation lives here. Included by the scalar tier and by tails of others. */
#ifndef PE_SOFTFLOAT_H
#define PE_SOFTFLOAT_H
#include <float.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "float and double must be evaluated in their own precision (x87: build with -msse2 -mfpmath=sse)"
#endif

static inline uint32_t pe_f32_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

static inline float pe_f32_from_bits(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}

/* a*b + c rounded once. The product of two floats is exact in double: 48 bits, and
 * between 2^-298 and 2^256 in size. The sum is rounded to odd: where it is inexact,
 * the truncated sum with its last bit set. A double rounded to odd keeps enough to be
 * rounded again to any format of at most 51 bits, float and its subnormals included.
 * The error of the double sum comes from Knuth's two-sum, which is exact here because
 * nothing can overflow or fall below double's subnormals. Infinite or NaN sums make
 * the error NaN, both comparisons false, and pass through unchanged: no branch, so
 * that compilers may vectorize. */
static inline float pe_fmaf_soft(float a, float b, float c) {
  double p = (double)a * (double)b;
  double z = (double)c;
  double s = p + z;
  double v = s - p;
  double err = (p - (s - v)) + (z - v);
  int64_t u;
  memcpy(&u, &s, 8);
  int64_t inexact = (err < 0) | (err > 0);
  int64_t away = (err < 0) == (s > 0);         /* s was rounded away from zero: step back by one */
  u += (inexact & ~u & 1) * (1 - 2 * away);    /* an odd s is already the answer */
  memcpy(&s, &u, 8);
  return (float)s;
}

/* aarch64 has fmadd in its base instruction set. x86-64 does not, and the scalar tier
 * must run on every x86-64, so no build flag may switch this. On 32-bit ARM the floats
 * of a whole build are compiled for one floating-point unit, and where that is VFPv4
 * (Raspberry Pi 2 and later) it has vfma. */
static inline float pe_fmaf(float a, float b, float c) {
#if defined(__aarch64__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return pe_fmaf_soft(a, b, c);
#endif
}

static inline float pe_bf16_to_f32(uint16_t h) { return pe_f32_from_bits((uint32_t)h << 16); }

/* Exact, and without touching float subnormals: a half below 2^-14 is read as the
 * fraction of 2^-14 + h*2^-24, from which 2^-14 is taken. A NaN becomes quiet. */
static inline float pe_f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16;
  uint32_t mag = (uint32_t)(h & 0x7fff) << 13;
  uint32_t bits = mag + 0x38000000;                        /* exponent bias 15 -> 127 */
  if (mag < 0x00800000) bits = pe_f32_bits(pe_f32_from_bits(mag + 0x38800000) - 0x1p-14f);
  if (mag >= 0x0f800000) bits = 0x7f800000 | mag | (mag > 0x0f800000 ? 0x00400000 : 0);
  return pe_f32_from_bits(sign | bits);
}

/* To nearest even, subnormals kept, overflow to infinity, NaN stays a (quiet) NaN. */
static inline uint16_t pe_f32_to_f16(float x) {
  uint32_t u = pe_f32_bits(x);
  uint32_t sign = (u >> 16) & 0x8000;
  u &= 0x7fffffff;
  uint32_t h;
  if (u > 0x7f800000) {
    h = 0x7e00 | ((u >> 13) & 0x1ff);
  } else if (u >= 0x477ff000) {                /* 65520 and more round to infinity */
    h = 0x7c00;
  } else if (u >= 0x38800000) {                /* 2^-14 and more: normal */
    h = (u - 0x38000000 + 0xfff + ((u >> 13) & 1)) >> 13;
  } else {                                     /* adding 0.5 leaves units of 2^-24, the subnormal step */
    h = pe_f32_bits(pe_f32_from_bits(u) + 0.5f) - 0x3f000000;
  }
  return (uint16_t)(sign | h);
}
#endif

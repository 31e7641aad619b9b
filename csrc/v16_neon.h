/* v16_neon.h: the sixteen-lane words as four NEON registers of aarch64 (32-bit ARM's NEON
 * flushes subnormals and has no such file). v16_scalar.h says what each word means.
 * Included by simd_neon.c and simd_dotprod.c only; needs ARMv8.0, whose conversions of
 * halves are exact and keep subnormals, and v16_dot4x4 and v16_dot8x4 of one of them. */
#ifndef PE_V16_H
#define PE_V16_H
#include <arm_neon.h>
#include <string.h>

typedef struct { float32x4_t a, b, c, d; } v16;
typedef struct { int32x4_t a, b, c, d; } v16i;
typedef struct { uint32x4_t a, b, c, d; } v16m;
typedef float v1;
#define W static inline __attribute__((always_inline))
enum { V16_REGISTERS = 8 };   /* 32 of a quarter each */

#define PARTS1(T, op, x) ((T){op(x.a), op(x.b), op(x.c), op(x.d)})
#define PARTS2(T, op, x, y) ((T){op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)})
#define PARTS(T, x) ((T){x, x, x, x})

/* ---- memory ---------------------------------------------------------------------- */
W v16 v16_set(float x) { float32x4_t f = vdupq_n_f32(x); return PARTS(v16, f); }
/* One lane of a register is enough for fmla by element. Clang would load it into all lanes (ld1r), which
 * takes a vector pipe beside the load; the empty statement hides that it came from memory. */
W v1 v1_load(const float *p) {
  float s = *p;
  __asm__("" : "+w"(s));
  return s;
}
W v16 v16_load(const float *p) { return (v16){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
W void v16_store(float *p, v16 x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
W v16 v16_load_n(const float *p, int n) {       /* most calls that may have a tail have none */
  if (n == 16) return v16_load(p);
  float t[16] = {0};
  memcpy(t, p, (size_t)n * 4);
  return v16_load(t);
}
W void v16_store_n(float *p, v16 x, int n) {
  if (n == 16) {
    v16_store(p, x);
    return;
  }
  float t[16];
  v16_store(t, x);
  memcpy(p, t, (size_t)n * 4);
}
W v16 v16_load_f16(const uint16_t *p) {
  float16x8_t lo = vreinterpretq_f16_u16(vld1q_u16(p)), hi = vreinterpretq_f16_u16(vld1q_u16(p + 8));
  return (v16){vcvt_f32_f16(vget_low_f16(lo)), vcvt_high_f32_f16(lo), vcvt_f32_f16(vget_low_f16(hi)), vcvt_high_f32_f16(hi)};
}
W v16 v16_load_f16_n(const uint16_t *p, int n) {
  uint16_t t[16] = {0};
  memcpy(t, p, (size_t)n * 2);
  return v16_load_f16(t);
}
W v16 v16_set_f16(uint16_t x) {
  float32x4_t f = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x)));
  return PARTS(v16, f);
}
W v16 v16_from_i8(int8x16_t q) {
  int16x8_t lo = vmovl_s8(vget_low_s8(q)), hi = vmovl_high_s8(q);
  return (v16){vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
               vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))};
}
W v16 v16_load_i8(const int8_t *p) { return v16_from_i8(vld1q_s8(p)); }
W v16 v16_load_q4(const uint8_t *p, int high, v16 d) {
  uint8x16_t n = vld1q_u8(p);
  n = high ? vshrq_n_u8(n, 4) : vandq_u8(n, vdupq_n_u8(15));
  v16 q = v16_from_i8(vsubq_s8(vreinterpretq_s8_u8(n), vdupq_n_s8(8)));
  return PARTS2(v16, vmulq_f32, d, q);
}
W void v16_store_f16(uint16_t *p, v16 x) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
  vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}
W int16x8_t v16_low_halves(int32x4_t x, int32x4_t y) { return vuzp1q_s16(vreinterpretq_s16_s32(x), vreinterpretq_s16_s32(y)); }
W int8x16_t v16_low_bytes(v16i x) {
  return vuzp1q_s8(vreinterpretq_s8_s16(v16_low_halves(x.a, x.b)), vreinterpretq_s8_s16(v16_low_halves(x.c, x.d)));
}
W void v16_store_i8x2(int8_t *p, v16i x, v16i y) {
  vst1q_s8(p, v16_low_bytes(x));
  vst1q_s8(p + 16, v16_low_bytes(y));
}
W void v16_unzip(const float *p, v16 *even, v16 *odd) {
  float32x4x2_t a = vld2q_f32(p), b = vld2q_f32(p + 8), c = vld2q_f32(p + 16), d = vld2q_f32(p + 24);
  *even = (v16){a.val[0], b.val[0], c.val[0], d.val[0]};
  *odd = (v16){a.val[1], b.val[1], c.val[1], d.val[1]};
}
W void v16_zip4(float *p, float32x4_t even, float32x4_t odd) {
  float32x4x2_t x = {{even, odd}};
  vst2q_f32(p, x);
}
W void v16_zip(float *p, v16 even, v16 odd) {
  v16_zip4(p, even.a, odd.a);
  v16_zip4(p + 8, even.b, odd.b);
  v16_zip4(p + 16, even.c, odd.c);
  v16_zip4(p + 24, even.d, odd.d);
}

/* ---- arithmetic ------------------------------------------------------------------ */
#define LANEWISE(name, op) W v16 name(v16 x, v16 y) { return PARTS2(v16, op, x, y); }
/* fmax gives NaN where one of two is, and +0 of two zeros; here the second wins in both cases */
W float32x4_t v16_max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
LANEWISE(v16_add, vaddq_f32)
LANEWISE(v16_sub, vsubq_f32)
LANEWISE(v16_mul, vmulq_f32)
LANEWISE(v16_div, vdivq_f32)
LANEWISE(v16_max, v16_max4)
W v16 v16_fma(v16 x, v16 y, v16 z) {
  return (v16){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d)};
}
W v16 v16_fma1(v1 s, v16 y, v16 z) {
  return (v16){vfmaq_n_f32(z.a, y.a, s), vfmaq_n_f32(z.b, y.b, s), vfmaq_n_f32(z.c, y.c, s), vfmaq_n_f32(z.d, y.d, s)};
}
W float v16_sum(v16 x) {
  float32x4_t q = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  return vpadds_f32(vadd_f32(vget_low_f32(q), vget_high_f32(q)));
}
W float v16_hmax(v16 x) {
  float32x4_t q = v16_max4(v16_max4(x.a, x.c), v16_max4(x.b, x.d));
  q = v16_max4(q, vextq_f32(q, q, 2));
  return vgetq_lane_f32(v16_max4(q, vdupq_laneq_f32(q, 1)), 0);
}

/* ---- masks ------------------------------------------------------------------------ */
W v16m v16_lt(v16 x, v16 y) { return PARTS2(v16m, vcltq_f32, x, y); }
W uint32x4_t v16_nan4(float32x4_t x) { return vmvnq_u32(vceqq_f32(x, x)); }
W v16m v16_nan(v16 x) { return PARTS1(v16m, v16_nan4, x); }
W v16m v16_range(int lo, int hi) {      /* lo <= i < hi, as one comparison without sign */
  const uint32x4_t i = {0, 1, 2, 3};
  uint32x4_t l = vdupq_n_u32((uint32_t)lo), n = vdupq_n_u32((uint32_t)(hi - lo));
  return (v16m){vcltq_u32(vsubq_u32(i, l), n), vcltq_u32(vsubq_u32(vaddq_u32(i, vdupq_n_u32(4)), l), n),
                vcltq_u32(vsubq_u32(vaddq_u32(i, vdupq_n_u32(8)), l), n), vcltq_u32(vsubq_u32(vaddq_u32(i, vdupq_n_u32(12)), l), n)};
}
W v16 v16_select(v16m m, v16 x, v16 y) {
  return (v16){vbslq_f32(m.a, x.a, y.a), vbslq_f32(m.b, x.b, y.b), vbslq_f32(m.c, x.c, y.c), vbslq_f32(m.d, x.d, y.d)};
}
W int32x4_t v16_where4(uint32x4_t m, int32x4_t x) { return vandq_s32(vreinterpretq_s32_u32(m), x); }
W v16i v16i_where(v16m m, v16i x) { return PARTS2(v16i, v16_where4, m, x); }

/* ---- integers ---------------------------------------------------------------------- */
#define LANEWISE_I(name, op) W v16i name(v16i x, v16i y) { return PARTS2(v16i, op, x, y); }
LANEWISE_I(v16i_add, vaddq_s32)
LANEWISE_I(v16i_sub, vsubq_s32)
LANEWISE_I(v16i_and, vandq_s32)
LANEWISE_I(v16i_or, vorrq_s32)
LANEWISE_I(v16i_max, vmaxq_s32)
W v16i v16i_set(int32_t x) { int32x4_t i = vdupq_n_s32(x); return PARTS(v16i, i); }
W v16i v16_bits(v16 x) { return PARTS1(v16i, vreinterpretq_s32_f32, x); }
W v16 v16_from_bits(v16i x) { return PARTS1(v16, vreinterpretq_f32_s32, x); }
W v16 v16_from_int(v16i x) { return PARTS1(v16, vcvtq_f32_s32, x); }
W v16i v16_round(v16 x) { return PARTS1(v16i, vcvtnq_s32_f32, x); }
W v16i v16i_load(const void *p) {
  const int32_t *i = (const int32_t *)p;
  return (v16i){vld1q_s32(i), vld1q_s32(i + 4), vld1q_s32(i + 8), vld1q_s32(i + 12)};
}
W v16i v16i_dot4_start(int32_t b_sum) { (void)b_sum; return v16i_set(0); }
W v16i v16i_dot4(v16i s, v16i x, v16i y) {
  return (v16i){v16_dot4x4(s.a, x.a, y.a), v16_dot4x4(s.b, x.b, y.b), v16_dot4x4(s.c, x.c, y.c), v16_dot4x4(s.d, x.d, y.d)};
}
W v16i v16i_q4_start(int32_t sum) { return v16i_set(-8 * sum); }
W int32x4_t v16_q4_dot4(int32x4_t s, int32x4_t a, int32x4_t b, int32x4_t c) {
  uint8x16_t n = vreinterpretq_u8_s32(a);
  return v16_dot8x4(s, vreinterpretq_s8_u8(vandq_u8(n, vdupq_n_u8(15))), vreinterpretq_s8_s32(b), vreinterpretq_s8_u8(vshrq_n_u8(n, 4)),
                    vreinterpretq_s8_s32(c));
}
W v16i v16i_q4_dot(v16i s, v16i a, v16i b, v16i c) {
  return (v16i){v16_q4_dot4(s.a, a.a, b.a, c.a), v16_q4_dot4(s.b, a.b, b.b, c.b), v16_q4_dot4(s.c, a.c, b.c, c.c),
                v16_q4_dot4(s.d, a.d, b.d, c.d)};
}
W v16i v16i_q4_end(v16i s, int32_t sum) { (void)sum; return s; }
W v16i v16i_shl23(v16i x) { return (v16i){vshlq_n_s32(x.a, 23), vshlq_n_s32(x.b, 23), vshlq_n_s32(x.c, 23), vshlq_n_s32(x.d, 23)}; }
W v16i v16i_shr23(v16i x) { return (v16i){vshrq_n_s32(x.a, 23), vshrq_n_s32(x.b, 23), vshrq_n_s32(x.c, 23), vshrq_n_s32(x.d, 23)}; }
W int32_t v16i_hmax(v16i x) { return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.a, x.b), vmaxq_s32(x.c, x.d))); }
W int v16_small(const int8_t *q) { (void)q; return 0; }    /* none of the kernels here asks */
W int32_t v16i_sum(v16i x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }

#undef PARTS1
#undef PARTS2
#undef PARTS
#undef LANEWISE
#undef LANEWISE_I
#undef W
#endif

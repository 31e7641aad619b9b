/* ops.inl.c: norms, activations, quantization of activations, rope: every op
 * that is neither a matrix product nor about pages, written once over the sixteen-lane
 * words. Definitions: docs/arithmetic.md, "Ops". Included by simd_<isa>.c only, after
 * its v16_<isa>.h; attn.inl.c uses the functions of the first section.
 *
 * Loops over n take sixteen at a time and the rest with _n loads, whose missing lanes
 * are +0 and whose stores leave the rest alone. */
#include "kernel.h"

/* ---- functions of one v16 -------------------------------------------------------- */

/* exp(x) = p * 2^k with k = nearest(x/ln2), p = exp(x - k*ln2) in [0.70, 1.42]. *k2 is
 * the float 1.5*2^23 + k, whose bits shifted by 23 are k in an exponent's place. Below
 * |x| = 2^21 only; callers select other results for the rest. The polynomial's error is
 * 2^-28, so 1 + (...) is within 0.6 ulp. */
static inline v16 exp_core(v16 x, v16 *k2) {
  const v16 magic = v16_set(12582912.0f);
  *k2 = v16_fma(x, v16_set(0x1.715476p+0f), magic);
  v16 k = v16_sub(*k2, magic);
  v16 r = v16_fma(k, v16_set(-0x1.62e43p-1f), x);      /* exact: ln2 in one float, k*ln2 unrounded */
  r = v16_fma(k, v16_set(0x1.05c61p-29f), r);
  v16 q = v16_set(0x1.6a1a72p-10f);
  q = v16_fma(q, r, v16_set(0x1.123fc6p-7f));
  q = v16_fma(q, r, v16_set(0x1.555916p-5f));
  q = v16_fma(q, r, v16_set(0x1.55548ap-3f));
  q = v16_fma(q, r, v16_set(0x1.fffffcp-2f));
  return v16_add(v16_set(1.0f), v16_fma(v16_mul(r, r), q, r));
}

#define EXP_MIN -0x1.5d58ap+6f   /* exp of this and less is below 2^-126: +0 */
#define EXP_LAST -0x1.5d589ep+6f /* the next float: its exp is the least that is kept */
#define EXP_MAX 0x1.62e42ep+6f   /* exp of more overflows */

static inline v16 v16_exp(v16 x) {
  v16 k2, p = exp_core(x, &k2);
  v16 y = v16_from_bits(v16i_add(v16_bits(p), v16i_shl23(v16_bits(k2))));
  y = v16_select(v16_lt(v16_set(EXP_MAX), x), v16_set(__builtin_inff()), y);
  y = v16_select(v16_lt(v16_set(EXP_MIN), x), y, v16_set(0.0f));
  return v16_select(v16_nan(x), x, y);
}

/* The same bits for x <= 0 (and NaN for NaN), with one selection instead of three: no
 * overflow to catch, and 2^k is a factor, which lets NaN through. Garbage above 0. */
static inline v16 exp_below(v16 x) {
  v16 k2, p = exp_core(x, &k2);
  v16 scale = v16_from_bits(v16i_add(v16i_shl23(v16_bits(k2)), v16i_set(0x3f800000)));
  return v16_select(v16_lt(x, v16_set(EXP_LAST)), v16_set(0.0f), v16_mul(p, scale));
}

/* x = 2^e * m with m in [sqrt(1/2), sqrt(2)); log1p by a polynomial, error 2^-30. */
static inline v16 v16_log(v16 x) {
  v16m tiny = v16_lt(x, v16_set(0x1p-126f));
  v16i bits = v16_bits(v16_select(tiny, v16_mul(x, v16_set(0x1p23f)), x));
  v16i e = v16i_shr23(v16i_sub(bits, v16i_set(0x3f3504f3)));
  v16 f = v16_sub(v16_from_bits(v16i_sub(bits, v16i_shl23(e))), v16_set(1.0f));
  v16 n = v16_sub(v16_from_int(e), v16_select(tiny, v16_set(23.0f), v16_set(0.0f)));
  v16 z = v16_mul(f, f), q = v16_set(0x1.1457a8p-4f);
  q = v16_fma(q, f, v16_set(-0x1.de3c16p-4f));
  q = v16_fma(q, f, v16_set(0x1.e6f06ap-4f));
  q = v16_fma(q, f, v16_set(-0x1.fc2208p-4f));
  q = v16_fma(q, f, v16_set(0x1.233768p-3f));
  q = v16_fma(q, f, v16_set(-0x1.555c4ep-3f));
  q = v16_fma(q, f, v16_set(0x1.99a4b6p-3f));
  q = v16_fma(q, f, v16_set(-0x1.000006p-2f));
  q = v16_fma(q, f, v16_set(0x1.555548p-2f));
  v16 t = v16_fma(v16_mul(z, f), q, v16_mul(n, v16_set(-0x1.05c61p-29f)));
  v16 y = v16_add(f, v16_fma(v16_set(-0.5f), z, t));
  y = v16_fma(n, v16_set(0x1.62e43p-1f), y);
  const v16 inf = v16_set(__builtin_inff()), zero = v16_set(0.0f);
  y = v16_select(v16_lt(x, inf), y, x);                                  /* inf and NaN as they are */
  y = v16_select(v16_lt(zero, x), y, v16_select(v16_lt(x, zero), v16_set(__builtin_nanf("")), v16_set(-__builtin_inff())));
  return v16_select(v16_nan(x), x, y);
}

static inline v16 v16_abs(v16 x) { return v16_from_bits(v16i_and(v16_bits(x), v16i_set(0x7fffffff))); }
static inline v16 v16_copysign(v16 x, v16 s) {   /* x >= 0 */
  return v16_from_bits(v16i_or(v16_bits(x), v16i_and(v16_bits(s), v16i_set((int32_t)0x80000000))));
}

/* a = |x| < 0.625: a + a^3*P(a^2), error 2^-27.7; else 1 - 2/(exp(2a) + 1). */
static inline v16 v16_tanh(v16 x) {
  const v16 one = v16_set(1.0f);
  v16 a = v16_abs(x), z = v16_mul(a, a), q = v16_set(-0x1.75e1a8p-8f);
  q = v16_fma(q, z, v16_set(0x1.522692p-6f));
  q = v16_fma(q, z, v16_set(-0x1.b83c58p-5f));
  q = v16_fma(q, z, v16_set(0x1.110726p-3f));
  q = v16_fma(q, z, v16_set(-0x1.555532p-2f));
  v16 small = v16_fma(v16_mul(a, z), q, a);
  v16 big = v16_sub(one, v16_div(v16_set(2.0f), v16_add(v16_exp(v16_add(a, a)), one)));
  return v16_copysign(v16_select(v16_lt(a, v16_set(0.625f)), small, big), x);
}

/* x/(1+exp(-x)). Where exp(-x) nears overflow the quotient is still a normal number
 * (down to x = -92), so from x < -80 on, where 1 no longer counts, the divisor is
 * exp(-x)*2^-96 and the quotient is scaled back. -0 below -150; NaN at -inf. */
static inline v16 v16_silu(v16 x) {
  v16 y = v16_sub(v16_set(0.0f), x), k2;
  v16 p = exp_core(v16_max(v16_set(-87.0f), y), &k2);                   /* below, 1 + e is 1 anyway */
  v16m far = v16_lt(v16_set(80.0f), y);
  v16i one = v16i_set(0x3f800000), shift = v16i_where(far, v16i_set(96 << 23));
  v16 e = v16_from_bits(v16i_sub(v16i_add(v16_bits(p), v16i_shl23(v16_bits(k2))), shift));
  v16 q = v16_div(x, v16_add(v16_select(far, v16_set(0.0f), v16_set(1.0f)), e)); /* far: e alone */
  q = v16_mul(q, v16_from_bits(v16i_sub(one, shift)));
  return v16_select(v16_lt(v16_set(150.0f), y), v16_mul(x, v16_set(0.0f)), q);
}

/* x/(1+exp(-w)): sigmoid's slope times w is at most 0.23, so w's rounding costs less
 * than one unit of 2^-24*|x|. */
static inline v16 times_sigmoid(v16 x, v16 minus_w) {
  return v16_div(x, v16_add(v16_set(1.0f), v16_exp(minus_w)));
}

/* 0.5x(1 + tanh(u)) = x/(1 + exp(-2u)), u = sqrt(2/pi)*(x + 0.044715x^3) */
static inline v16 v16_gelu(v16 x) {
  v16 c = v16_fma(v16_set(-0.0713548162726f), v16_mul(x, x), v16_set(-1.5957691216f));
  return times_sigmoid(x, v16_mul(x, c));
}

static inline v16 v16_gelu_quick(v16 x) { return times_sigmoid(x, v16_mul(x, v16_set(-1.702f))); }

/* x*Phi(x); Phi(-a) = erfc(a/sqrt(2))/2 = exp(-a^2/2)*t*P(t)/2 with t = 1/(1 + 0.4*a/sqrt(2)),
 * absolute error 2^-31 (0.3275911 in place of 0.4 gives coefficients above 2, whose
 * rounding cost 2^-22.05 in all). */
static inline v16 v16_gelu_erf(v16 x) {
  const v16 one = v16_set(1.0f);
  v16 t = v16_div(one, v16_fma(v16_abs(x), v16_set(0.28284271f), one));
  v16 q = v16_set(0x1.2ed48cp-4f);
  q = v16_fma(q, t, v16_set(-0x1.8d314ap-2f));
  q = v16_fma(q, t, v16_set(0x1.51082ep-1f));
  q = v16_fma(q, t, v16_set(-0x1.4f1dcap-2f));
  q = v16_fma(q, t, v16_set(0x1.741434p-2f));
  q = v16_fma(q, t, v16_set(0x1.511d98p-3f));
  q = v16_fma(q, t, v16_set(0x1.d54b14p-3f));
  q = v16_fma(q, t, v16_set(0x1.ce8216p-3f));
  v16 e = v16_exp(v16_mul(v16_mul(x, x), v16_set(-0.5f)));
  v16 half = v16_mul(v16_mul(v16_mul(q, t), v16_set(0.5f)), e);
  return v16_mul(x, v16_select(v16_lt(x, v16_set(0.0f)), half, v16_sub(one, half)));
}

static inline v16 v16_relu(v16 x) { return v16_select(v16_lt(x, v16_set(0.0f)), v16_set(0.0f), x); }  /* keeps NaN */

/* ---- loops over a row -------------------------------------------------------------- */

/* Runs `expr` (v16 from the loaded inputs) over n elements of y. */
#define EACH(n, loads, loads_n, expr)          \
  do {                                         \
    int64_t i = 0;                             \
    for (; i + 16 <= (n); i += 16) {           \
      loads;                                   \
      v16_store(y + i, expr);                  \
    }                                          \
    int left = (int)((n) - i);                 \
    if (left) {                                \
      loads_n;                                 \
      v16_store_n(y + i, expr, left);          \
    }                                          \
  } while (0)
#define EACH1(n, A, expr) EACH(n, v16 a = v16_load((A) + i), v16 a = v16_load_n((A) + i, left), expr)
#define EACH2(n, A, B, expr)                                           \
  EACH(n, v16 a = v16_load((A) + i); v16 b = v16_load((B) + i),        \
       v16 a = v16_load_n((A) + i, left); v16 b = v16_load_n((B) + i, left), expr)

static void op_add(float *y, const float *a_, const float *b_, int64_t n) { EACH2(n, a_, b_, v16_add(a, b)); }
static void op_mul(float *y, const float *a_, const float *b_, int64_t n) { EACH2(n, a_, b_, v16_mul(a, b)); }
static void op_scale(float *y, const float *a_, float s, int64_t n) {
  v16 v = v16_set(s);
  EACH1(n, a_, v16_mul(a, v));
}
static void op_axpy(float *y, float s, const float *x, int64_t n) {
  v16 v = v16_set(s);
  EACH2(n, x, y, v16_fma(v, a, b));
}
static void op_exp(float *y, const float *x, int64_t n) { EACH1(n, x, v16_exp(a)); }
static void op_log(float *y, const float *x, int64_t n) { EACH1(n, x, v16_log(a)); }
static void op_softcap(float *y, const float *x, float cap, int64_t n) {
  v16 c = v16_set(cap);
  EACH1(n, x, v16_mul(c, v16_tanh(v16_div(a, c))));
}

static void op_act(int32_t kind, float *y, const float *x, int64_t n) {
  switch (kind) {
    case PE_ACT_SILU: EACH1(n, x, v16_silu(a)); break;
    case PE_ACT_GELU: EACH1(n, x, v16_gelu(a)); break;
    case PE_ACT_GELU_ERF: EACH1(n, x, v16_gelu_erf(a)); break;
    case PE_ACT_GELU_QUICK: EACH1(n, x, v16_gelu_quick(a)); break;
    default: EACH1(n, x, v16_relu(a)); break;
  }
}

/* gpt-oss: the gate is held below 7, up between -7 and 7; NaN stays. */
static inline v16 v16_swiglu_oai(v16 gate, v16 up) {
  const v16 most = v16_set(7.0f), least = v16_set(-7.0f);
  gate = v16_select(v16_lt(most, gate), most, gate);
  up = v16_select(v16_lt(most, up), most, v16_select(v16_lt(up, least), least, up));
  return v16_mul(v16_gelu_quick(gate), v16_add(up, v16_set(1.0f)));
}

static void op_glu(int32_t kind, float *y, const float *gate, const float *up, int64_t n) {
  switch (kind) {
    case PE_ACT_SILU: EACH2(n, gate, up, v16_mul(v16_silu(a), b)); break;
    case PE_ACT_GELU: EACH2(n, gate, up, v16_mul(v16_gelu(a), b)); break;
    case PE_ACT_GELU_ERF: EACH2(n, gate, up, v16_mul(v16_gelu_erf(a), b)); break;
    case PE_ACT_GELU_QUICK: EACH2(n, gate, up, v16_mul(v16_gelu_quick(a), b)); break;
    case PE_ACT_SWIGLU_OAI: EACH2(n, gate, up, v16_swiglu_oai(a, b)); break;
    default: EACH2(n, gate, up, v16_mul(v16_relu(a), b)); break;
  }
}

static void op_rms_norm(float *y, const float *x, const float *w, int64_t n, float eps) {
  v16 s = v16_set(0.0f);
  int64_t j = 0;
  for (; j + 16 <= n; j += 16) {
    v16 a = v16_load(x + j);
    s = v16_fma(a, a, s);
  }
  if (j < n) {
    v16 a = v16_load_n(x + j, (int)(n - j));
    s = v16_fma(a, a, s);
  }
  v16 r = v16_set(1.0f / __builtin_sqrtf(v16_sum(s) / (float)n + eps));
  if (w)
    EACH2(n, x, w, v16_mul(v16_mul(a, r), b));
  else
    EACH1(n, x, v16_mul(a, r));
}

static void op_layer_norm(float *y, const float *x, const float *w, const float *b_, int64_t n, float eps) {
  v16 s = v16_set(0.0f);
  int64_t j = 0;
  for (; j + 16 <= n; j += 16) s = v16_add(s, v16_load(x + j));
  if (j < n) s = v16_add(s, v16_load_n(x + j, (int)(n - j)));
  v16 mean = v16_set(v16_sum(s) / (float)n);
  s = v16_set(0.0f);
  for (j = 0; j + 16 <= n; j += 16) {
    v16 d = v16_sub(v16_load(x + j), mean);
    s = v16_fma(d, d, s);
  }
  if (j < n) {
    v16 d = v16_sub(v16_load_n(x + j, (int)(n - j)), mean);
    d = v16_select(v16_range(0, (int)(n - j)), d, v16_set(0.0f));
    s = v16_fma(d, d, s);
  }
  v16 r = v16_set(1.0f / __builtin_sqrtf(v16_sum(s) / (float)n + eps));
  if (w && b_)
    EACH(n, v16 a = v16_load(x + i); v16 v = v16_load(w + i); v16 b = v16_load(b_ + i),
         v16 a = v16_load_n(x + i, left); v16 v = v16_load_n(w + i, left); v16 b = v16_load_n(b_ + i, left),
         v16_fma(v16_mul(v16_sub(a, mean), r), v, b));
  else if (w)
    EACH2(n, x, w, v16_mul(v16_mul(v16_sub(a, mean), r), b));
  else if (b_)
    EACH2(n, x, b_, v16_add(v16_mul(v16_sub(a, mean), r), b));
  else
    EACH1(n, x, v16_mul(v16_sub(a, mean), r));
}

/* ---- activations to int8 ------------------------------------------------------------- */

/* From the largest |bits| of a block: its d, and the factor of its elements. */
static inline float quant_d(int32_t amax_bits, float *inverse) {
  *inverse = 0.0f;
  if (amax_bits >= 0x7f800000) return __builtin_nanf("");
  if (amax_bits < (127 - 100) << 23) return 0.0f;
  float amax = pe_f32_from_bits((uint32_t)amax_bits);
  *inverse = 127.0f / amax;
  return amax / 127.0f;
}

static inline v16i quant_abs(const float *x) { return v16i_and(v16_bits(v16_load(x)), v16i_set(0x7fffffff)); }

/* Where d is 0 or NaN the factor is 0, and so must q be: inf*0 is not. */
static inline v16i quant_q(const float *x, float inverse) {
  return inverse != 0.0f ? v16_round(v16_mul(v16_load(x), v16_set(inverse))) : v16i_set(0);
}

static void op_quant32(void *row, const float *x, int64_t k, int64_t b0, int64_t b1) {
  int8_t *q = (int8_t *)pe_act_q(row);
  float *d = (float *)pe_act_d(row, k);
  int32_t *s = (int32_t *)pe_act_s32(row, k);
  for (int64_t b = b0; b < b1; b++) {
    const float *v = x + 32 * b;
    float inverse;
    d[b] = quant_d(v16i_hmax(v16i_max(quant_abs(v), quant_abs(v + 16))), &inverse);
    v16i lo = quant_q(v, inverse), hi = quant_q(v + 16, inverse);
    v16_store_i8x2(q + 32 * b, lo, hi);
    s[b] = v16i_sum(v16i_add(lo, hi));
  }
}

static void op_quant256(void *row, const float *x, int64_t k, int64_t b0, int64_t b1) {
  int8_t *q = (int8_t *)pe_act_q(row);
  float *d = (float *)pe_act_d(row, k);
  int16_t *s = (int16_t *)pe_act_s16(row, k);
  uint8_t *small = (uint8_t *)pe_act_small(row, k);
  for (int64_t b = b0; b < b1; b++) {
    const float *v = x + 256 * b;
    v16i m = quant_abs(v);
    for (int i = 16; i < 256; i += 16) m = v16i_max(m, quant_abs(v + i));
    float inverse;
    d[b] = quant_d(v16i_hmax(m), &inverse);
    for (int i = 0; i < 256; i += 32) {
      v16i lo = quant_q(v + i, inverse), hi = quant_q(v + i + 16, inverse);
      v16_store_i8x2(q + 256 * b + i, lo, hi);
      s[16 * b + i / 16] = (int16_t)v16i_sum(lo);     /* at most 16*127 */
      s[16 * b + i / 16 + 1] = (int16_t)v16i_sum(hi);
    }
    small[b] = (uint8_t)v16_small(q + 256 * b);
  }
}

/* ---- rope ------------------------------------------------------------------------------ */

/* Angles in double, with no fma (the compilers are told not to contract), so that every
 * tier runs these very operations. pi/2 is cut into four parts of 22 bits and a rest:
 * k*part is exact for |k| < 2^31, and so are the first two differences; the result keeps
 * 52 bits even next to a multiple of pi/2. Taylor polynomials: errors 5e-17 (sin, x^15)
 * and 2e-18 (cos, x^16) at pi/4. */
static inline void sincos_double(double a, double *sine, double *cosine) {
  const double magic = 6755399441055744.0;                 /* 1.5*2^52: doubles are the integers here */
  double kk = a * 0x1.45f306dc9c883p-1 + magic, k = kk - magic;
  double r = a - k * 0x1.921fbp+0;
  r = r - k * 0x1.5110bp-22;
  r = r - k * 0x1.184698p-44;
  r = r - k * 0x1.31988p-69;
  r = r - k * 0x1.1701b839a252p-88;
  double z = r * r;
  double s = -1.0 / 1307674368000.0;
  s = s * z + 1.0 / 6227020800.0;
  s = s * z - 1.0 / 39916800.0;
  s = s * z + 1.0 / 362880.0;
  s = s * z - 1.0 / 5040.0;
  s = s * z + 1.0 / 120.0;
  s = s * z - 1.0 / 6.0;
  s = s * z * r + r;
  double c = 1.0 / 20922789888000.0;
  c = c * z - 1.0 / 87178291200.0;
  c = c * z + 1.0 / 479001600.0;
  c = c * z - 1.0 / 3628800.0;
  c = c * z + 1.0 / 40320.0;
  c = c * z - 1.0 / 720.0;
  c = c * z + 1.0 / 24.0;
  c = c * z - 1.0 / 2.0;
  c = c * z + 1.0;
  uint64_t bits;
  memcpy(&bits, &kk, 8);
  double s1 = bits & 1 ? c : s, c1 = bits & 1 ? s : c;
  *sine = bits & 2 ? -s1 : s1;
  *cosine = (bits + 1) & 2 ? -c1 : c1;
}

static void op_rope_table(float *cs, const double *freq, int64_t n, int64_t pos, float mscale) {
  for (int64_t j = 0; j < n; j++) {
    double s, c;
    sincos_double((double)pos * freq[j], &s, &c);
    cs[j] = (float)c * mscale;
    cs[n + j] = (float)s * mscale;
  }
}

static inline void rotate(v16 x0, v16 x1, v16 c, v16 s, v16 *y0, v16 *y1) {
  *y0 = v16_fma(x0, c, v16_sub(v16_set(-0.0f), v16_mul(x1, s)));
  *y1 = v16_fma(x0, s, v16_mul(x1, c));
}

static void op_rope_halves(float *x, const float *cs, int64_t n_rot) {
  int64_t n = n_rot / 2, j = 0;
  v16 y0, y1;
  for (; j + 16 <= n; j += 16) {
    rotate(v16_load(x + j), v16_load(x + n + j), v16_load(cs + j), v16_load(cs + n + j), &y0, &y1);
    v16_store(x + j, y0);
    v16_store(x + n + j, y1);
  }
  int left = (int)(n - j);
  if (left) {
    rotate(v16_load_n(x + j, left), v16_load_n(x + n + j, left), v16_load_n(cs + j, left), v16_load_n(cs + n + j, left), &y0, &y1);
    v16_store_n(x + j, y0, left);
    v16_store_n(x + n + j, y1, left);
  }
}

static void op_rope_adjacent(float *x, const float *cs, int64_t n_rot) {
  int64_t n = n_rot / 2, j = 0;
  v16 x0, x1, y0, y1;
  for (; j + 16 <= n; j += 16) {
    v16_unzip(x + 2 * j, &x0, &x1);
    rotate(x0, x1, v16_load(cs + j), v16_load(cs + n + j), &y0, &y1);
    v16_zip(x + 2 * j, y0, y1);
  }
  int left = (int)(n - j);
  if (left) {
    float t[32] = {0};
    memcpy(t, x + 2 * j, (size_t)left * 8);
    v16_unzip(t, &x0, &x1);
    rotate(x0, x1, v16_load_n(cs + j, left), v16_load_n(cs + n + j, left), &y0, &y1);
    v16_zip(t, y0, y1);
    memcpy(x + 2 * j, t, (size_t)left * 8);
  }
}

/* ---- short convolutions -------------------------------------------------------------- */

static void op_conv(float *y, const float *const *x, const float *w, int64_t taps, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    int left = n - i < 16 ? (int)(n - i) : 16;
    v16 s = v16_set(0.0f);
    for (int64_t j = 0; j < taps; j++)
      if (x[j])
        s = left == 16 ? v16_fma(v16_load(w + j * n + i), v16_load(x[j] + i), s)
                       : v16_fma(v16_load_n(w + j * n + i, left), v16_load_n(x[j] + i, left), s);
    if (left == 16) v16_store(y + i, s);
    else v16_store_n(y + i, s, left);
  }
}

/* ---- vocabulary ------------------------------------------------------------------- */

static double op_softmax_sum(const float *logits, int64_t n, float max, float inv_t) {
  const v16 m = v16_set(max), t = v16_set(inv_t), zero = v16_set(0.0f);
  float total = 0.0f;
  for (int64_t b = 0; b < n; b += 4096) {
    int64_t end = n - b < 4096 ? n : b + 4096, i = b;
    v16 s = zero;
    for (; i + 16 <= end; i += 16) s = v16_add(s, v16_exp(v16_mul(v16_sub(v16_load(logits + i), m), t)));
    if (i < end) {
      v16 e = v16_exp(v16_mul(v16_sub(v16_load_n(logits + i, (int)(end - i)), m), t));
      s = v16_add(s, v16_select(v16_range(0, (int)(end - i)), e, zero));
    }
    total += v16_sum(s);
  }
  return total;
}

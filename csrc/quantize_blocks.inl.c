/* quantize_blocks.inl.c: one function per quantized weight type: floats to the bytes of csrc/blocks.h, with the
 * scales that quantize_fit.inl.c finds. Types of two bits and less are in quantize_few.inl.c.
 *
 * Values always come from the scales as they are stored, halves and whole numbers, so that a code is the nearest
 * one to its weight and never the nearest to what the scale would have been. */
#include "blocks.h"

#ifdef __FAST_MATH__
#error "quantized files must not depend on the compiler: no -ffast-math"
#endif

#define SUPER 256

/* How much each weight counts: large ones more than small ones, as their errors are not small beside anything.
 * KL of SmolLM2 to F32, beside llama.cpp's quantizer: all alike Q4_0 1.10, 1 + |x|/rms 1.02, 1 + x*x/(2*rms*rms) 0.97. */
ALWAYS void weigh(float *w, const float *x, const float *importance, int n) {
  v8 sum = all(0);
  for (int i = 0; i < n; i += LANES) sum += load(x + i) * load(x + i);
  float square = total(sum) / (float)n, half = square > 0 ? 0.5f / square : 0;
  for (int i = 0; i < n; i++) {
    float a = 1 + x[i] * x[i] * half;
    w[i] = importance ? importance[i] * a : a;
  }
}

/* Low nibbles are the first half of each run of 2*half codes, high nibbles the second. */
ALWAYS void put_nibbles(uint8_t *qs, const uint8_t *q, int n, int half) {
  for (int i = 0; i < n; i += 2 * half)
    for (int j = 0; j < half; j++) *qs++ = (uint8_t)((q[i + j] & 15) | (q[i + j + half] & 15) << 4);
}

/* ---- blocks of 32 --------------------------------------------------------------------------------------- */

ALWAYS void codes_of_scale(uint8_t *q, const float *x, int n, const book *b, float s, float offset) {
  float inv = inverse(s);
  for (int i = 0; i < n; i++) q[i] = (uint8_t)(int32_t)(coded(b, x[i] * inv) + offset);
}

ALWAYS void codes_of_affine(uint8_t *q, const float *x, int n, float hi, float s, float o) {
  float inv = inverse(s);
  for (int i = 0; i < n; i++) q[i] = (uint8_t)(int32_t)nearest(clamp((x[i] - o) * inv, 0, hi));
}

/* Place of each value in the table of IQ4: the codes are written from values. */
ALWAYS void iq4_codes(uint8_t *q, const float *x, int n, float s) {
  float inv = inverse(s);
  for (int i = 0; i < n; i++) {
    uint8_t c = 0;
    for (int j = 0; j < 15; j++) c = (uint8_t)(c + (x[i] * inv > iq4_steps[2 * j]));
    q[i] = c;
  }
}

ALWAYS void high_bits32(uint8_t *qh, const uint8_t *q) {
  memset(qh, 0, 4);
  for (int j = 0; j < 32; j++) qh[j >> 3] = (uint8_t)(qh[j >> 3] | (q[j] >> 4 & 1) << (j & 7));
}

static void q4_0(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = {-8, 7, NULL, 0};
  pe_q4_0 *y = out;
  for (; n > 0; n--, y++, x += 32, importance += importance ? 32 : 0) {
    float w[32];
    uint8_t q[32];
    weigh(w, x, importance, 32);
    float d = half_of(fit_scale(x, w, 32, &b, 9.0f, 0.25f, 16));
    codes_of_scale(q, x, 32, &b, d, 8);
    y->d = pe_f32_to_f16(d);
    put_nibbles(y->qs, q, 32, 16);
  }
}

static void q5_0(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = {-16, 15, NULL, 0};
  pe_q5_0 *y = out;
  for (; n > 0; n--, y++, x += 32, importance += importance ? 32 : 0) {
    float w[32];
    uint8_t q[32];
    weigh(w, x, importance, 32);
    float d = half_of(fit_scale(x, w, 32, &b, 17.0f, 0.25f, 16));
    codes_of_scale(q, x, 32, &b, d, 16);
    y->d = pe_f32_to_f16(d);
    high_bits32(y->qh, q);
    put_nibbles(y->qs, q, 32, 16);
  }
}

static void q8_0(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = {-127, 127, NULL, 0};
  pe_q8_0 *y = out;
  for (; n > 0; n--, y++, x += 32, importance += importance ? 32 : 0) {
    float w[32], s;
    uint8_t q[32];
    weigh(w, x, importance, 32);
    float plain = half_of(largest(x, 32) / 127.0f);
    gain_of_inverse(x, w, 32, &b, inverse(plain), &s);
    float fitted = half_of(s);
    float d = error_of_scale(x, w, 32, &b, fitted) < error_of_scale(x, w, 32, &b, plain) ? fitted : plain;
    codes_of_scale(q, x, 32, &b, d, 0);
    y->d = pe_f32_to_f16(d);
    memcpy(y->qs, q, 32);
  }
}

ALWAYS affine stored_affine(const float *x, const float *w, float hi) {
  affine a = fit_affine(x, w, 32, hi, 0.25f, 12, 0);
  a.s = half_of(a.s);
  a.o = half_of(fit_offset(x, w, 32, hi, a.s, a.o));
  return a;
}

static void q4_1(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  pe_q4_1 *y = out;
  for (; n > 0; n--, y++, x += 32, importance += importance ? 32 : 0) {
    float w[32];
    uint8_t q[32];
    weigh(w, x, importance, 32);
    affine a = stored_affine(x, w, 15);
    codes_of_affine(q, x, 32, 15, a.s, a.o);
    y->d = pe_f32_to_f16(a.s), y->m = pe_f32_to_f16(a.o);
    put_nibbles(y->qs, q, 32, 16);
  }
}

static void q5_1(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  pe_q5_1 *y = out;
  for (; n > 0; n--, y++, x += 32, importance += importance ? 32 : 0) {
    float w[32];
    uint8_t q[32];
    weigh(w, x, importance, 32);
    affine a = stored_affine(x, w, 31);
    codes_of_affine(q, x, 32, 31, a.s, a.o);
    y->d = pe_f32_to_f16(a.s), y->m = pe_f32_to_f16(a.o);
    high_bits32(y->qh, q);
    put_nibbles(y->qs, q, 32, 16);
  }
}

static void iq4_nl(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = IQ4_BOOK;
  pe_iq4_nl *y = out;
  for (; n > 0; n--, y++, x += 32, importance += importance ? 32 : 0) {
    float w[32];
    uint8_t q[32];
    weigh(w, x, importance, 32);
    float d = half_of(fit_scale(x, w, 32, &b, 138.0f, 4.0f, 14));
    iq4_codes(q, x, 32, d);
    y->d = pe_f32_to_f16(d);
    put_nibbles(y->qs, q, 32, 16);
  }
}

static const float fp4_steps[] = {-10, 4, -7, 2, -5, 2, -3.5f, 1, -2.5f, 1, -1.5f, 1, -0.5f, 1,
                                  0.5f, 1, 1.5f, 1, 2.5f, 1, 3.5f, 1, 5, 2, 7, 2, 10, 4};
#define FP4_BOOK {-12, 12, fp4_steps, 14}

ALWAYS void fp4_codes(uint8_t *q, const float *x, int n, float inv) {
  static const uint8_t codes[] = {0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7};   /* of the values that there are */
  const book b = FP4_BOOK;
  for (int i = 0; i < n; i++) {
    int v = (int)coded(&b, x[i] * inv);
    q[i] = (uint8_t)(v < 0 ? codes[-v] | 8 : codes[v]);
  }
}

/* Powers of two are tried for the scale, in weights brought near 1, so that no float overflows or vanishes. */
static void mxfp4(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = FP4_BOOK;
  pe_mxfp4 *y = out;
  for (; n > 0; n--, y++, x += 32, importance += importance ? 32 : 0) {
    float u[32], w[32], least = -1;
    uint8_t q[32];
    int k = 0, at = 0;
    float most = largest(x, 32);
    if (most > 0) {
      k = most >= 0x1p-126f ? (int)(pe_f32_bits(most) >> 23) - 127 : -126;
      float up = pe_f32_from_bits((uint32_t)(127 - k / 2) << 23), rest = pe_f32_from_bits((uint32_t)(127 - (k - k / 2)) << 23);
      for (int i = 0; i < 32; i++) u[i] = x[i] * up * rest;
    } else {
      memset(u, 0, sizeof u);
    }
    weigh(w, u, importance, 32);
    for (int j = -3; j <= -1; j++) {
      int e = k + j + 128 < 0 ? 0 : k + j + 128;
      float err = error_of_scale(u, w, 32, &b, pe_f32_from_bits((uint32_t)(127 + e - 128 - k) << 23));
      if (least < 0 || err < least) least = err, at = e;
    }
    float inv = pe_f32_from_bits((uint32_t)(127 - (at - 128 - k)) << 23);
    fp4_codes(q, u, 32, inv);
    y->e = (uint8_t)at;
    put_nibbles(y->qs, q, 32, 16);
  }
}

/* ---- blocks of 256 ---------------------------------------------------------------------------------------- */

/* Two-bit codes: 32 bytes per 128 elements, bits 2g.. are group g of 32. */
ALWAYS void put_pairs(uint8_t *qs, const uint8_t *q) {
  for (int h = 0; h < 2; h++)
    for (int j = 0; j < 32; j++) {
      const uint8_t *p = q + 128 * h + j;
      qs[32 * h + j] = (uint8_t)((p[0] & 3) | (p[32] & 3) << 2 | (p[64] & 3) << 4 | (p[96] & 3) << 6);
    }
}

/* One bit of every code: bit g of byte j is that of element 32*g + j. */
ALWAYS void put_bits(uint8_t *qh, const uint8_t *q, int bit) {
  for (int j = 0; j < 32; j++) {
    unsigned v = 0;
    for (int g = 0; g < 8; g++) v |= (unsigned)(q[32 * g + j] >> bit & 1) << g;
    qh[j] = (uint8_t)v;
  }
}

static void q2_k(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  pe_q2_k *y = out;
  for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {
    float w[SUPER];
    uint8_t q[SUPER];
    weigh(w, x, importance, SUPER);
    shifted f = fit_shifted(x, w, 16, 3, 0.2f, 10, 15);
    for (int g = 0; g < 16; g++) {
      codes_of_affine(q + 16 * g, x + 16 * g, 16, 3, f.d * f.sc[g], -(f.dmin * f.m[g]));
      y->scales[g] = (uint8_t)((int)f.sc[g] | (int)f.m[g] << 4);
    }
    put_pairs(y->qs, q);
    y->d = pe_f32_to_f16(f.d), y->dmin = pe_f32_to_f16(f.dmin);
  }
}

/* Eight 6-bit scales and minima in twelve bytes. */
ALWAYS void put_scales(uint8_t *s, const float *sc, const float *m) {
  for (int j = 0; j < 4; j++) {
    int a = (int)sc[j], b = (int)sc[j + 4], c = (int)m[j], e = (int)m[j + 4];
    s[j] = (uint8_t)(a | (b >> 4) << 6);
    s[j + 4] = (uint8_t)(c | (e >> 4) << 6);
    s[j + 8] = (uint8_t)((b & 15) | (e & 15) << 4);
  }
}

static void q4_k(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  pe_q4_k *y = out;
  for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {
    float w[SUPER];
    uint8_t q[SUPER];
    weigh(w, x, importance, SUPER);
    shifted f = fit_shifted(x, w, 32, 15, 0.2f, 10, 63);
    for (int g = 0; g < 8; g++) codes_of_affine(q + 32 * g, x + 32 * g, 32, 15, f.d * f.sc[g], -(f.dmin * f.m[g]));
    y->d = pe_f32_to_f16(f.d), y->dmin = pe_f32_to_f16(f.dmin);
    put_scales(y->scales, f.sc, f.m);
    put_nibbles(y->qs, q, SUPER, 32);
  }
}

static void q5_k(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  pe_q5_k *y = out;
  for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {
    float w[SUPER];
    uint8_t q[SUPER];
    weigh(w, x, importance, SUPER);
    shifted f = fit_shifted(x, w, 32, 31, 0.2f, 10, 63);
    for (int g = 0; g < 8; g++) codes_of_affine(q + 32 * g, x + 32 * g, 32, 31, f.d * f.sc[g], -(f.dmin * f.m[g]));
    y->d = pe_f32_to_f16(f.d), y->dmin = pe_f32_to_f16(f.dmin);
    put_scales(y->scales, f.sc, f.m);
    put_bits(y->qh, q, 4);
    put_nibbles(y->qs, q, SUPER, 32);
  }
}

static void q3_k(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = {-4, 3, NULL, 0};
  pe_q3_k *y = out;
  for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {
    float w[SUPER];
    uint8_t q[SUPER], s[16];
    weigh(w, x, importance, SUPER);
    scaled f = fit_scaled(x, w, 16, &b, 4.75f, 0.25f, 12, -32, 31, 8, 2);
    for (int g = 0; g < 16; g++) {
      codes_of_scale(q + 16 * g, x + 16 * g, 16, &b, f.d * f.sc[g], 4);
      s[g] = (uint8_t)((int)f.sc[g] + 32);
    }
    put_bits(y->hmask, q, 2);
    put_pairs(y->qs, q);
    for (int j = 0; j < 8; j++) y->scales[j] = (uint8_t)((s[j] & 15) | (s[j + 8] & 15) << 4);
    for (int j = 0; j < 4; j++)
      y->scales[8 + j] = (uint8_t)(s[j] >> 4 | (s[j + 4] >> 4) << 2 | (s[j + 8] >> 4) << 4 | (s[j + 12] >> 4) << 6);
    y->d = pe_f32_to_f16(f.d);
  }
}

static void q6_k(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = {-32, 31, NULL, 0};
  pe_q6_k *y = out;
  for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {
    float w[SUPER];
    uint8_t q[SUPER];
    weigh(w, x, importance, SUPER);
    scaled f = fit_scaled(x, w, 16, &b, 33.0f, 0.25f, 12, -128, 127, 4, 1);
    for (int g = 0; g < 16; g++) {
      codes_of_scale(q + 16 * g, x + 16 * g, 16, &b, f.d * f.sc[g], 32);
      y->scales[g] = (int8_t)f.sc[g];
    }
    put_nibbles(y->ql, q, SUPER, 64);
    for (int i = 0; i < SUPER; i++) q[i] >>= 4;
    put_pairs(y->qh, q);
    y->d = pe_f32_to_f16(f.d);
  }
}

static void iq4_xs(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = IQ4_BOOK;
  pe_iq4_xs *y = out;
  for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {
    float w[SUPER];
    uint8_t q[SUPER];
    weigh(w, x, importance, SUPER);
    scaled f = fit_scaled(x, w, 32, &b, 138.0f, 4.0f, 14, -32, 31, 6, 1);
    unsigned high = 0;
    memset(y->scales_l, 0, 4);
    for (int g = 0; g < 8; g++) {
      unsigned s = (unsigned)((int)f.sc[g] + 32);
      iq4_codes(q + 32 * g, x + 32 * g, 32, f.d * f.sc[g]);
      high |= (s >> 4) << 2 * g;
      y->scales_l[g / 2] = (uint8_t)(y->scales_l[g / 2] | (s & 15) << 4 * (g & 1));
    }
    y->scales_h = (uint16_t)high;
    y->d = pe_f32_to_f16(f.d);
    put_nibbles(y->qs, q, SUPER, 16);
  }
}

/* quantize_few.inl.c: as quantize_blocks.inl.c, for the types of one and two bits and for NVFP4; and the table of all.
 * The file that includes it defines PE_QUANTIZERS, the table's name. */

/* Value of an ue4m3 code as NVFP4 counts it: half of what the format says, for the table of doubled values. */
ALWAYS float ue4m3(int c) {
  float m = (float)(c & 7);
  return c < 8 ? m * 0x1p-10f : (1.0f + m * 0.125f) * pe_f32_from_bits((uint32_t)((c >> 3) - 8 + 127) << 23);
}

static void nvfp4(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = FP4_BOOK;
  pe_nvfp4 *y = out;
  for (; n > 0; n--, y++, x += 64, importance += importance ? 64 : 0) {
    float w[64];
    uint8_t q[64];
    weigh(w, x, importance, 64);
    for (int g = 0; g < 4; g++) {
      const float *p = x + 16 * g;
      float most = largest(p, 16), least = -1;
      int first = 0, at = 0;
      while (first < 0x7e && ue4m3(first + 1) < most / 14.0f) first++;
      for (int c = first; c <= first + 12 && c <= 0x7e; c++) {   /* the largest weight on 14 down to 5 */
        float e = error_of_scale(p, w + 16 * g, 16, &b, ue4m3(c));
        if (least < 0 || e < least) least = e, at = c;
      }
      y->d[g] = (uint8_t)at;
      fp4_codes(q + 16 * g, p, 16, inverse(ue4m3(at)));
    }
    put_nibbles(y->qs, q, 64, 8);
  }
}

/* The scale of ternary codes. A threshold between the small and the large ones is all that counts, so scales from
 * half the mean size up are tried; files that are ternary already come out as they are. */
ALWAYS float fit_ternary(const float *x, const float *w, int n, const book *b) {
  float sum = 0, best = -1, scale = 0;
  for (int i = 0; i < n; i++) sum += __builtin_fabsf(x[i]);
  if (sum < TINY) return 0;
  for (int i = 0; i < 16; i++) {
    float s, gain = gain_of_inverse(x, w, n, b, (float)n / (sum * (0.5f + 0.25f * (float)i)), &s);
    if (gain > best) best = gain, scale = s;
  }
  return half_of(scale);
}

static void tq2_0(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = {-1, 1, NULL, 0};
  pe_tq2_0 *y = out;
  for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {
    float w[SUPER];
    uint8_t q[SUPER];
    weigh(w, x, importance, SUPER);
    float d = fit_ternary(x, w, SUPER, &b);
    codes_of_scale(q, x, SUPER, &b, d, 1);
    put_pairs(y->qs, q);
    y->d = pe_f32_to_f16(d);
  }
}

/* `digits` ternary digits, `apart` from each other, as a fraction of 243 in 256 parts, rounded up. */
ALWAYS uint8_t trits(const uint8_t *q, int digits, int apart) {
  unsigned v = 0;
  for (int p = 0; p < 5; p++) v = 3 * v + (p < digits ? q[p * apart] : 0);
  return (uint8_t)((v * 256 + 242) / 243);
}

static void tq1_0(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = {-1, 1, NULL, 0};
  pe_tq1_0 *y = out;
  for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {
    float w[SUPER];
    uint8_t q[SUPER];
    weigh(w, x, importance, SUPER);
    float d = fit_ternary(x, w, SUPER, &b);
    codes_of_scale(q, x, SUPER, &b, d, 1);
    for (int j = 0; j < 32; j++) y->qs[j] = trits(q + j, 5, 32);
    for (int j = 0; j < 16; j++) y->qs[32 + j] = trits(q + 160 + j, 5, 16);
    for (int j = 0; j < 4; j++) y->qh[j] = trits(q + 240 + j, 4, 4);
    y->d = pe_f32_to_f16(d);
  }
}

static void q1_0(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  pe_q1_0 *y = out;
  for (; n > 0; n--, y++, x += 128, importance += importance ? 128 : 0) {
    float w[128], a = 0, c = 0;
    weigh(w, x, importance, 128);
    memset(y->qs, 0, 16);
    for (int i = 0; i < 128; i++) {
      a += w[i] * __builtin_fabsf(x[i]);
      c += w[i];
      if (x[i] >= 0) y->qs[i >> 3] = (uint8_t)(y->qs[i >> 3] | 1u << (i & 7));
    }
    y->d = pe_f32_to_f16(c > 0 ? a / c : 0);
  }
}

static void q2_0(const float *x, const float *importance, void *out, int64_t n, float *scratch) {
  (void)scratch;
  const book b = {-1, 2, NULL, 0};
  pe_q2_0 *y = out;
  for (; n > 0; n--, y++, x += 64, importance += importance ? 64 : 0) {
    float w[64];
    uint8_t q[64];
    weigh(w, x, importance, 64);
    float d = half_of(fit_scale(x, w, 64, &b, 3.5f, 0.1875f, 18));
    codes_of_scale(q, x, 64, &b, d, 1);
    for (int j = 0; j < 16; j++) y->qs[j] = (uint8_t)(q[4 * j] | q[4 * j + 1] << 2 | q[4 * j + 2] << 4 | q[4 * j + 3] << 6);
    y->d = pe_f32_to_f16(d);
  }
}

/* Limits: the largest half times the largest scale and code. */
const pe_quantizer PE_QUANTIZERS[] = {
    {PE_Q4_0, 65504.0 * 7, q4_0},
    {PE_Q4_1, 65504.0, q4_1},
    {PE_Q5_0, 65504.0 * 15, q5_0},
    {PE_Q5_1, 65504.0, q5_1},
    {PE_Q8_0, 65504.0 * 127, q8_0},
    {PE_Q2_K, 65504.0 * 15, q2_k},
    {PE_Q3_K, 65504.0 * 31 * 3, q3_k},
    {PE_Q4_K, 65504.0 * 63, q4_k},
    {PE_Q5_K, 65504.0 * 63, q5_k},
    {PE_Q6_K, 65504.0 * 127 * 31, q6_k},
    {PE_IQ4_NL, 65504.0 * 113, iq4_nl},
    {PE_IQ4_XS, 65504.0 * 31 * 113, iq4_xs},
    {PE_MXFP4, 0x1.8p127, mxfp4},
    {PE_NVFP4, 224.0 * 12, nvfp4},
    {PE_Q1_0, 65504.0, q1_0},
    {PE_Q2_0, 65504.0, q2_0},
    {PE_TQ1_0, 65504.0, tq1_0},
    {PE_TQ2_0, 65504.0, tq2_0},
    {PE_IQ3_S, 65504.0 * 31 * 15, iq3_s},
    {PE_IQ3_XXS, 65504.0 / 4 * 31 * 62, iq3_xxs},
    {PE_IQ2_XXS, 65504.0 / 8 * 31 * 43, iq2_xxs},
    {PE_IQ2_XS, 65504.0 / 8 * 31 * 43, iq2_xs},
    {PE_IQ2_S, 65504.0 / 8 * 31 * 43, iq2_s},
    {PE_IQ1_S, 65504.0 / 8 * 15 * 9, iq1_s},
    {PE_IQ1_M, 65504.0 / 8 * 15 * 9, iq1_m},
    {0, 0, NULL},
};

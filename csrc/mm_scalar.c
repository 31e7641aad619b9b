/* mm_scalar.c: what a matrix product and a stored weight mean, for every type.
 * Every other kernel must give these bits (docs/arithmetic.md says the same in words).
 * Not fast, but a real tier: it runs on any machine and needs no instruction beyond
 * the base set (on x86-64 that is SSE2), so fma is pe_fmaf and halves are converted
 * by integers. IQ1 to IQ3 are in mm_scalar_iq.c. Reached through pe_rows_scalar and pe_dequant only. */
#include "mm_scalar.h"

/* ---- blocks of 32 ------------------------------------------------------------------ */

typedef struct block32 {   /* what weight i is: see the kinds below */
  float d, m;
  int8_t q[32];            /* offset (1, 8, 16) already taken off */
} block32;

/* d*q[i]; d*q[i] + m; d*q[i] for i < 16 and m*q[i] from there on. */
enum { PLAIN, AFFINE, HALVES };

INLINE void nibbles32(int8_t *q, const uint8_t *qs) {
  for (int j = 0; j < 16; j++) q[j] = qs[j] & 15, q[j + 16] = qs[j] >> 4;
}

INLINE void fifth_bits32(int8_t *q, const uint8_t *qh) {
  for (int j = 0; j < 32; j++) q[j] |= ((qh[j >> 3] >> (j & 7)) & 1) << 4;
}

INLINE void unpack_q4_0(block32 *u, const uint8_t *w, int part) {
  (void)part;
  const pe_q4_0 *b = (const pe_q4_0 *)w;
  u->d = pe_f16_to_f32(b->d);
  nibbles32(u->q, b->qs);
  for (int j = 0; j < 32; j++) u->q[j] -= 8;
}

INLINE void unpack_q4_1(block32 *u, const uint8_t *w, int part) {
  (void)part;
  const pe_q4_1 *b = (const pe_q4_1 *)w;
  u->d = pe_f16_to_f32(b->d);
  u->m = pe_f16_to_f32(b->m);
  nibbles32(u->q, b->qs);
}

INLINE void unpack_q5_0(block32 *u, const uint8_t *w, int part) {
  (void)part;
  const pe_q5_0 *b = (const pe_q5_0 *)w;
  u->d = pe_f16_to_f32(b->d);
  nibbles32(u->q, b->qs);
  fifth_bits32(u->q, b->qh);
  for (int j = 0; j < 32; j++) u->q[j] -= 16;
}

INLINE void unpack_q5_1(block32 *u, const uint8_t *w, int part) {
  (void)part;
  const pe_q5_1 *b = (const pe_q5_1 *)w;
  u->d = pe_f16_to_f32(b->d);
  u->m = pe_f16_to_f32(b->m);
  nibbles32(u->q, b->qs);
  fifth_bits32(u->q, b->qh);
}

INLINE void unpack_q8_0(block32 *u, const uint8_t *w, int part) {
  (void)part;
  const pe_q8_0 *b = (const pe_q8_0 *)w;
  u->d = pe_f16_to_f32(b->d);
  memcpy(u->q, b->qs, 32);
}

static const int8_t iq4_values[16] = {PE_IQ4_VALUES}, mxfp4_values[16] = {PE_MXFP4_VALUES};

INLINE void unpack_iq4_nl(block32 *u, const uint8_t *w, int part) {
  (void)part;
  const pe_iq4_nl *b = (const pe_iq4_nl *)w;
  u->d = pe_f16_to_f32(b->d);
  nibbles32(u->q, b->qs);
  for (int j = 0; j < 32; j++) u->q[j] = iq4_values[u->q[j]];
}

/* 2^(e - 128) for every e: 0 and 1 are subnormal floats, 255 is 2^127 and no NaN. */
INLINE float e8m0_half(uint8_t e) {
  uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
  float d;
  memcpy(&d, &bits, 4);
  return d;
}

INLINE void unpack_mxfp4(block32 *u, const uint8_t *w, int part) {
  (void)part;
  const pe_mxfp4 *b = (const pe_mxfp4 *)w;
  u->d = e8m0_half(b->e);
  nibbles32(u->q, b->qs);
  for (int j = 0; j < 32; j++) u->q[j] = mxfp4_values[u->q[j]];
}

/* Unsigned, four bits exponent and three mantissa, halved: 2^(e - 8) * (1 + m/8), and m * 2^-10 for e = 0. The
 * eighth bit counts for nothing, but 127 is 0 (it would be NaN) and 255 is not. */
INLINE float ue4m3_half(uint8_t b) {
  if (b == 127) return 0.0f;
  return 128.0f * pe_f16_to_f32((uint16_t)((b & 127) << 7));  /* a half has that mantissa and more exponent: exact */
}

/* Half a block of NVFP4, a part of a block of Q1_0 or Q2_0: b points to the block. */
INLINE void unpack_nvfp4(block32 *u, const uint8_t *w, int part) {
  const pe_nvfp4 *b = (const pe_nvfp4 *)w;
  u->d = ue4m3_half(b->d[2 * part]);
  u->m = ue4m3_half(b->d[2 * part + 1]);
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 8; j++) {
      uint8_t q = b->qs[16 * part + 8 * i + j];
      u->q[16 * i + j] = mxfp4_values[q & 15], u->q[16 * i + 8 + j] = mxfp4_values[q >> 4];
    }
}

INLINE void unpack_q1_0(block32 *u, const uint8_t *w, int part) {
  const pe_q1_0 *b = (const pe_q1_0 *)w;
  u->d = pe_f16_to_f32(b->d);
  for (int j = 0; j < 32; j++) u->q[j] = (int8_t)(2 * ((b->qs[4 * part + j / 8] >> (j % 8)) & 1) - 1);
}

INLINE void unpack_q2_0(block32 *u, const uint8_t *w, int part) {
  const pe_q2_0 *b = (const pe_q2_0 *)w;
  u->d = pe_f16_to_f32(b->d);
  for (int j = 0; j < 32; j++) u->q[j] = (int8_t)(((b->qs[8 * part + j / 4] >> (2 * (j % 4))) & 3) - 1);
}

/* Block b of 32 of a row of blocks of 32*parts elements. */
typedef void unpack32(block32 *, const uint8_t *, int part);

/* One function for all types; size, parts, unpack and kind are constants where it is inlined.
 * The result itself is the accumulator, so that a block is unpacked once for all tokens. */
INLINE void mm_block32(const pe_mm *m, int64_t size, int parts, unpack32 *unpack, int kind) {
  int64_t n_blocks = m->k / 32;
  for (int64_t r = m->r0; r < m->r1; r++) {
    const uint8_t *w = m->w + r * m->w_stride;
    for (int64_t t = 0; t < m->n; t++) m->y[t * m->y_stride + r] = 0.0f;
    for (int64_t b = 0; b < n_blocks; b++) {
      block32 u;
      unpack(&u, w + b / parts * size, (int)(b % parts));
      for (int64_t t = 0; t < m->n; t++) {
        const uint8_t *x = m->x + t * m->x_stride;
        const int8_t *q = pe_act_q(x) + 32 * b;
        float da = pe_act_d(x, m->k)[b];
        /* |isum| <= 32 * |w| * 127, |w| being 8 (Q4_0): 32 512, 15 (Q4_1): 60 960,
         * 16 (Q5_0): 65 024, 31 (Q5_1): 125 984, 128 (Q8_0): 520 192, 127 (IQ4_NL): 516 128,
         * 12 (MXFP4, NVFP4): 48 768, 2 (Q2_0), 1 (Q1_0).
         * All below 2^24: int32 cannot overflow, and the float is exact. */
        int32_t isum[2] = {0, 0};
        for (int j = 0; j < 32; j++) isum[kind == HALVES ? j / 16 : 0] += (int32_t)u.q[j] * q[j];
        float *y = &m->y[t * m->y_stride + r];
        float acc = pe_fmaf(u.d * da, (float)isum[0], *y);
        if (kind == AFFINE) acc = pe_fmaf(u.m * da, (float)pe_act_s32(x, m->k)[b], acc);  /* |asum| <= 32 * 127 = 4 064 */
        if (kind == HALVES) acc = pe_fmaf(u.m * da, (float)isum[1], acc);
        *y = acc;
      }
    }
  }
}

INLINE void dequant_block32(float *y, const uint8_t *w, int64_t k, int64_t size, int parts, unpack32 *unpack, int kind) {
  for (int64_t b = 0; b < k / 32; b++) {
    block32 u;
    unpack(&u, w + b / parts * size, (int)(b % parts));
    for (int j = 0; j < 32; j++) {
      float x = (kind == HALVES && j >= 16 ? u.m : u.d) * (float)u.q[j];
      y[32 * b + j] = kind == AFFINE ? x + u.m : x;
    }
  }
}

/* ---- blocks of 256 ----------------------------------------------------------------- */

/* Two bits each, 32 bytes per 128 elements: Q2_K, Q3_K, and the upper bits of Q6_K. */
INLINE void pairs256(int8_t *q, const uint8_t *qs, int shift_out) {
  for (int h = 0; h < 2; h++)
    for (int g = 0; g < 4; g++)
      for (int j = 0; j < 32; j++) q[128 * h + 32 * g + j] |= ((qs[32 * h + j] >> (2 * g)) & 3) << shift_out;
}

/* 32 bytes per 64 elements: the low nibbles are the first 32 of them. */
INLINE void nibbles256(int8_t *q, const uint8_t *qs) {
  for (int c = 0; c < 4; c++)
    for (int j = 0; j < 32; j++) {
      q[64 * c + j] = qs[32 * c + j] & 15;
      q[64 * c + 32 + j] = qs[32 * c + j] >> 4;
    }
}

/* Eight 6-bit scales and minima in 12 bytes: scales 0-3 and minima 0-3 in the low six
 * bits of bytes 0-3 and 4-7; the others have their low four bits in the nibbles of
 * bytes 8-11 and their high two on top of the bytes of the first four. */
INLINE void scales_q4_k(block256 *u, const uint8_t *s) {
  for (int j = 0; j < 8; j++) {
    int sc = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    int mn = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    u->sc[2 * j] = u->sc[2 * j + 1] = (int8_t)sc;
    u->mn[2 * j] = u->mn[2 * j + 1] = (uint8_t)mn;
  }
}

INLINE void unpack_q2_k(block256 *u, const uint8_t *w) {
  const pe_q2_k *b = (const pe_q2_k *)w;
  u->d = pe_f16_to_f32(b->d);
  u->dmin = pe_f16_to_f32(b->dmin);
  memset(u->q, 0, 256);
  pairs256(u->q, b->qs, 0);
  for (int j = 0; j < 16; j++) u->sc[j] = b->scales[j] & 15, u->mn[j] = b->scales[j] >> 4;
}

INLINE void unpack_q3_k(block256 *u, const uint8_t *w) {
  const pe_q3_k *b = (const pe_q3_k *)w;
  u->d = pe_f16_to_f32(b->d);
  memset(u->q, 0, 256);
  pairs256(u->q, b->qs, 0);
  for (int g = 0; g < 8; g++)  /* a set bit is worth 4, and 4 is taken off */
    for (int j = 0; j < 32; j++) u->q[32 * g + j] -= (((b->hmask[j] >> g) & 1) ^ 1) << 2;
  for (int j = 0; j < 16; j++) {  /* low nibbles in bytes 0-7, high two bits in bytes 8-11 */
    int lo = j < 8 ? b->scales[j] & 15 : b->scales[j - 8] >> 4;
    int hi = (b->scales[8 + (j & 3)] >> (2 * (j >> 2))) & 3;
    u->sc[j] = (int8_t)((lo | hi << 4) - 32);
  }
}

INLINE void unpack_q4_k(block256 *u, const uint8_t *w) {
  const pe_q4_k *b = (const pe_q4_k *)w;
  u->d = pe_f16_to_f32(b->d);
  u->dmin = pe_f16_to_f32(b->dmin);
  nibbles256(u->q, b->qs);
  scales_q4_k(u, b->scales);
}

INLINE void unpack_q5_k(block256 *u, const uint8_t *w) {
  const pe_q5_k *b = (const pe_q5_k *)w;
  u->d = pe_f16_to_f32(b->d);
  u->dmin = pe_f16_to_f32(b->dmin);
  nibbles256(u->q, b->qs);
  for (int g = 0; g < 8; g++)
    for (int j = 0; j < 32; j++) u->q[32 * g + j] |= ((b->qh[j] >> g) & 1) << 4;
  scales_q4_k(u, b->scales);
}

INLINE void unpack_q6_k(block256 *u, const uint8_t *w) {
  const pe_q6_k *b = (const pe_q6_k *)w;
  u->d = pe_f16_to_f32(b->d);
  for (int h = 0; h < 2; h++)  /* 64 bytes per 128 elements: the low nibbles are the first 64 */
    for (int j = 0; j < 64; j++) {
      u->q[128 * h + j] = b->ql[64 * h + j] & 15;
      u->q[128 * h + 64 + j] = b->ql[64 * h + j] >> 4;
    }
  pairs256(u->q, b->qh, 4);
  for (int j = 0; j < 256; j++) u->q[j] -= 32;
  memcpy(u->sc, b->scales, 16);
}

INLINE void ones256(block256 *u) { memset(u->sc, 1, 16); }  /* types without scales per sub-block */

INLINE void unpack_tq1_0(block256 *u, const uint8_t *w) {
  const pe_tq1_0 *b = (const pe_tq1_0 *)w;
  static const uint8_t power[5] = {1, 3, 9, 27, 81};
  u->d = pe_f16_to_f32(b->d);
  ones256(u);
  for (int i = 0; i < 256; i++) {
    int p = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    uint8_t byte = i < 160 ? b->qs[i % 32] : i < 240 ? b->qs[32 + i % 16] : b->qh[i % 4];
    u->q[i] = (int8_t)(((uint8_t)(byte * power[p]) * 3 >> 8) - 1);
  }
}

INLINE void unpack_tq2_0(block256 *u, const uint8_t *w) {
  const pe_tq2_0 *b = (const pe_tq2_0 *)w;
  u->d = pe_f16_to_f32(b->d);
  ones256(u);
  memset(u->q, 0, 256);
  pairs256(u->q, b->qs, 0);
  for (int j = 0; j < 256; j++) u->q[j] -= 1;
}

INLINE void unpack_iq4_xs(block256 *u, const uint8_t *w) {
  const pe_iq4_xs *b = (const pe_iq4_xs *)w;
  u->d = pe_f16_to_f32(b->d);
  for (int g = 0; g < 8; g++) {
    int lo = (b->scales_l[g / 2] >> (4 * (g & 1))) & 15, hi = (b->scales_h >> (2 * g)) & 3;
    u->sc[2 * g] = u->sc[2 * g + 1] = (int8_t)((lo | hi << 4) - 32);
    for (int j = 0; j < 16; j++) {
      u->q[32 * g + j] = iq4_values[b->qs[16 * g + j] & 15];
      u->q[32 * g + 16 + j] = iq4_values[b->qs[16 * g + j] >> 4];
    }
  }
}

/* ---- float weights ------------------------------------------------------------------ */

INLINE void load_f32(float *x, const uint8_t *w, int n) { memcpy(x, w, 4 * (size_t)n); }

INLINE void load_f16(float *x, const uint8_t *w, int n) {
  for (int j = 0; j < n; j++) {
    uint16_t h;
    memcpy(&h, w + 2 * j, 2);
    x[j] = pe_f16_to_f32(h);
  }
}

INLINE void load_bf16(float *x, const uint8_t *w, int n) {
  for (int j = 0; j < n; j++) {
    uint16_t h;
    memcpy(&h, w + 2 * j, 2);
    x[j] = pe_bf16_to_f32(h);
  }
}

/* Sixteen lanes. Where k is not a multiple of 16, the last step takes +0 for the missing
 * weights and activations in every lane left over: fma(+0, +0, s), which turns a lane of -0
 * (an underflow) into +0. That is what zero-masked loads do; skipping those lanes would not
 * be the same bits. Bytes of the activation row beyond k are never looked at. */
INLINE void mm_float(const pe_mm *m, int64_t size, void (*load)(float *, const uint8_t *, int)) {
  enum { TOKENS = 8 };  /* weights are converted once for so many tokens; 8 * 16 floats stay in L1 */
  for (int64_t r = m->r0; r < m->r1; r++) {
    const uint8_t *w = m->w + r * m->w_stride;
    for (int64_t t0 = 0; t0 < m->n; t0 += TOKENS) {
      int64_t n = m->n - t0 < TOKENS ? m->n - t0 : TOKENS;
      float s[TOKENS][16] = {{0}};
      for (int64_t i = 0; i < m->k; i += 16) {
        int len = m->k - i < 16 ? (int)(m->k - i) : 16;
        float a[16] = {0};
        load(a, w + i * size, len);
        for (int64_t t = 0; t < n; t++) {
          float x[16] = {0};
          memcpy(x, m->x + (t0 + t) * m->x_stride + 4 * i, 4 * (size_t)len);
          for (int j = 0; j < 16; j++) s[t][j] = pe_fmaf(a[j], x[j], s[t][j]);
        }
      }
      for (int64_t t = 0; t < n; t++) {
        float *l = s[t];
        for (int j = 0; j < 8; j++) l[j] += l[j + 8];
        for (int j = 0; j < 4; j++) l[j] += l[j + 4];
        for (int j = 0; j < 2; j++) l[j] += l[j + 2];
        m->y[(t0 + t) * m->y_stride + r] = l[0] + l[1];
      }
    }
  }
}

INLINE void dequant_float(float *y, const uint8_t *w, int64_t k, int64_t size,
                          void (*load)(float *, const uint8_t *, int)) {
  for (int64_t i = 0; i < k; i += 16) load(y + i, w + i * size, k - i < 16 ? (int)(k - i) : 16);
}

/* ---- the table ---------------------------------------------------------------------- */

#define FLOAT(name, size)                                                                    \
  static void mm_##name(const pe_mm *m) { mm_float(m, size, load_##name); }                  \
  static void dequant_##name(float *y, const uint8_t *w, int64_t k) { dequant_float(y, w, k, size, load_##name); }
#define BLOCK32(name, parts, kind)                                                           \
  static void mm_##name(const pe_mm *m) { mm_block32(m, sizeof(pe_##name), parts, unpack_##name, kind); } \
  static void dequant_##name(float *y, const uint8_t *w, int64_t k) {                        \
    dequant_block32(y, w, k, sizeof(pe_##name), parts, unpack_##name, kind);                 \
  }

FLOAT(f32, 4)
FLOAT(f16, 2)
FLOAT(bf16, 2)
BLOCK32(q4_0, 1, PLAIN)
BLOCK32(q4_1, 1, AFFINE)
BLOCK32(q5_0, 1, PLAIN)
BLOCK32(q5_1, 1, AFFINE)
BLOCK32(q8_0, 1, PLAIN)
BLOCK32(iq4_nl, 1, PLAIN)
BLOCK32(mxfp4, 1, PLAIN)
BLOCK32(nvfp4, 2, HALVES)
BLOCK32(q1_0, 4, PLAIN)
BLOCK32(q2_0, 2, PLAIN)
BLOCK(256, q2_k, 1)
BLOCK(256, q3_k, 0)
BLOCK(256, q4_k, 1)
BLOCK(256, q5_k, 1)
BLOCK(256, q6_k, 0)
BLOCK(256, iq4_xs, 0)
BLOCK(256, tq1_0, 0)
BLOCK(256, tq2_0, 0)

const pe_row pe_rows_scalar[] = {
    ROW(PE_F32, PE_ACT_F32, f32),    ROW(PE_F16, PE_ACT_F32, f16),    ROW(PE_BF16, PE_ACT_F32, bf16),
    ROW(PE_Q4_0, PE_ACT_Q32, q4_0),  ROW(PE_Q4_1, PE_ACT_Q32, q4_1),  ROW(PE_Q5_0, PE_ACT_Q32, q5_0),
    ROW(PE_Q5_1, PE_ACT_Q32, q5_1),  ROW(PE_Q8_0, PE_ACT_Q32, q8_0),  ROW(PE_Q2_K, PE_ACT_Q256, q2_k),
    ROW(PE_Q3_K, PE_ACT_Q256, q3_k), ROW(PE_Q4_K, PE_ACT_Q256, q4_k), ROW(PE_Q5_K, PE_ACT_Q256, q5_k),
    ROW(PE_Q6_K, PE_ACT_Q256, q6_k), ROW(PE_IQ4_NL, PE_ACT_Q32, iq4_nl), ROW(PE_MXFP4, PE_ACT_Q32, mxfp4),
    ROW(PE_IQ4_XS, PE_ACT_Q256, iq4_xs), ROW(PE_TQ1_0, PE_ACT_Q256, tq1_0), ROW(PE_TQ2_0, PE_ACT_Q256, tq2_0),
    ROW(PE_NVFP4, PE_ACT_Q32, nvfp4), ROW(PE_Q1_0, PE_ACT_Q32, q1_0), ROW(PE_Q2_0, PE_ACT_Q32, q2_0), {0},
};

static const pe_dequants dequants[] = {
    {PE_F32, 1, dequant_f32},     {PE_F16, 1, dequant_f16},     {PE_BF16, 1, dequant_bf16},
    {PE_Q4_0, 32, dequant_q4_0},  {PE_Q4_1, 32, dequant_q4_1},  {PE_Q5_0, 32, dequant_q5_0},
    {PE_Q5_1, 32, dequant_q5_1},  {PE_Q8_0, 32, dequant_q8_0},  {PE_Q2_K, 256, dequant_q2_k},
    {PE_Q3_K, 256, dequant_q3_k}, {PE_Q4_K, 256, dequant_q4_k}, {PE_Q5_K, 256, dequant_q5_k},
    {PE_Q6_K, 256, dequant_q6_k}, {PE_IQ4_NL, 32, dequant_iq4_nl}, {PE_MXFP4, 32, dequant_mxfp4},
    {PE_IQ4_XS, 256, dequant_iq4_xs}, {PE_TQ1_0, 256, dequant_tq1_0}, {PE_TQ2_0, 256, dequant_tq2_0},
    {PE_NVFP4, 64, dequant_nvfp4}, {PE_Q1_0, 128, dequant_q1_0}, {PE_Q2_0, 64, dequant_q2_0}, {0},
};

int pe_dequant(int32_t wtype, const void *row, float *y, int64_t k) {
  static const pe_dequants *const tables[] = {dequants, pe_dequants_iq};
  for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++)
    for (const pe_dequants *d = tables[i]; d->fn; d++) {
      if (d->type != wtype) continue;
      if (k < 0 || k % d->block != 0) return PE_EINVAL;
      d->fn(y, row, k);
      return PE_OK;
    }
  return PE_EINVAL;
}

void pe_fma_soft(float *y, const float *a, const float *b, const float *c, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = pe_fmaf_soft(a[i], b[i], c[i]);
}

void pe_half_soft(uint16_t *h, float *y, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    h[i] = pe_f32_to_f16(x[i]);
    y[i] = pe_f16_to_f32(h[i]);
  }
}

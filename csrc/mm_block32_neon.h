/* mm_block32_neon.h: unpacks a block of 32 of four rows (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL,
 * MXFP4; NVFP4, Q1_0 and Q2_0, whose blocks have several such parts) on 64-bit ARM, and ends a block. Included by mm_block32_neon.inl.c and
 * mm_block32_i8mm.c, after the words of their tier.
 *
 * A block becomes w[c], c < 8: dword lane i holds elements 4c..4c+3 of row i as signed bytes.
 * What they lack is BIAS(T) each, and comes to the integer sum as BIAS(T)*asum. */
#ifndef PE_MM_BLOCK32_NEON_H
#define PE_MM_BLOCK32_NEON_H

#define BYTES(T)                                                                                   \
  ((T) == PE_Q4_1 ? 20 : (T) == PE_Q5_0 ? 22 : (T) == PE_Q5_1 ? 24 : (T) == PE_Q8_0 ? 34 : (T) == PE_MXFP4 ? 17 \
   : (T) == PE_NVFP4 ? 36 : 18)
#define PARTS(T) ((T) == PE_Q1_0 ? 4 : (T) == PE_NVFP4 || (T) == PE_Q2_0 ? 2 : 1)
#define AT(T, b) ((b) / PARTS(T) * BYTES(T))  /* where the block that block b of 32 is a part of begins */
#define BIAS(T) ((T) == PE_Q4_0 ? -8 : (T) == PE_Q5_1 ? 16 : 0)
#define AFFINE(T) ((T) == PE_Q4_1 || (T) == PE_Q5_1)
#define FIFTH_BIT(T) ((T) == PE_Q5_0 || (T) == PE_Q5_1)
#define HALVES(T) ((T) == PE_NVFP4)  /* d is the scale of the first sixteen, m of the others: two sums, two fma */

static const int8_t iq4_values[16] = {PE_IQ4_VALUES}, mxfp4_values[16] = {PE_MXFP4_VALUES};

/* 2^(e - 128). From 2 on that is (e-1) in the exponent; 0 and 1 give subnormals, whose bits
 * (e+1) << 21 are the larger number exactly then. */
INLINE float32x4_t e8m0_half4(const pe_rows4 *l, int64_t off) {
  int32x4_t e = {l->p[0][off], l->p[1][off], l->p[2][off], l->p[3][off]};
  int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23), tiny = vshlq_n_s32(vaddq_s32(e, vdupq_n_s32(1)), 21);
  return vreinterpretq_f32_s32(vmaxq_s32(normal, tiny));
}

/* All bits of the bytes of elements 4c..4c+3 whose bit in `bits` is set. */
INLINE uint8x16_t spread_bits(uint32x4_t bits, int c) {
  static const uint8_t own_byte[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
  uint8x16_t of = vaddq_u8(vld1q_u8(own_byte), vdupq_n_u8((uint8_t)(c / 2)));
  uint8x16_t spread = vqtbl1q_u8(vreinterpretq_u8_u32(bits), of);
  return vtstq_u8(spread, vreinterpretq_u8_u32(vdupq_n_u32(0x08040201u << (c % 2 * 4))));
}

/* Half of the ue4m3 at off of each row: a half has its mantissa and one more bit of exponent, with 8 more of bias; 127 is 0. */
INLINE float32x4_t ue4m3_half4(const pe_rows4 *l, int64_t off) {
  uint32x4_t b = {l->p[0][off], l->p[1][off], l->p[2][off], l->p[3][off]};
  b = vbicq_u32(vandq_u32(b, vdupq_n_u32(127)), vceqq_u32(b, vdupq_n_u32(127)));
  return vmulq_n_f32(pe_low_half(vshlq_n_u32(b, 7)), 128.0f);
}

/* Elements 4c..4c+3 of each row from byte c of its dword, two bits each, lowest first, less 1. */
INLINE int8x16_t quad(int8x16_t dwords, int c) {
  static const uint8_t own_byte[16] = {0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12};
  static const int8_t shift[16] = {0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6, 0, -2, -4, -6};
  uint8x16_t v = vqtbl1q_u8(vreinterpretq_u8_s8(dwords), vaddq_u8(vld1q_u8(own_byte), vdupq_n_u8((uint8_t)c)));
  v = vandq_u8(vshlq_u8(v, vld1q_s8(shift)), vdupq_n_u8(3));
  return vsubq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8(1));
}

/* Types of several parts: loops over parts are unrolled, so that what they share is made once. */
INLINE void unpack_part(int T, const pe_rows4 *l, int64_t off, int part, int8x16_t w[8], float32x4_t *d, float32x4_t *m) {
  int8x16_t v[4];
  if (T == PE_NVFP4) {
    const int8x16_t values = vld1q_s8(mxfp4_values);
    *d = ue4m3_half4(l, off + 2 * part);
    *m = ue4m3_half4(l, off + 2 * part + 1);
    pe_lanes16(v, l, off + 4 + 16 * part);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {  /* eight bytes are sixteen elements */
      uint8x16_t u = vreinterpretq_u8_s8(v[c]);
      w[c / 2 * 4 + c % 2] = vqtbl1q_s8(values, vandq_u8(u, vdupq_n_u8(15)));
      w[c / 2 * 4 + c % 2 + 2] = vqtbl1q_s8(values, vshrq_n_u8(u, 4));
    }
    return;
  }
  *d = pe_half4(l, off);
  pe_lanes16(v, l, off + 2);
  PE_UNROLL
  for (int c = 0; c < 8; c++) {
    if (T == PE_Q2_0) {
      w[c] = quad(v[2 * part + c / 4], c % 4);
    } else {  /* all ones where the bit is clear is -1, else 1 */
      uint8x16_t clear = spread_bits(vmvnq_u32(vreinterpretq_u32_s8(v[part])), c);
      w[c] = vreinterpretq_s8_u8(vorrq_u8(clear, vdupq_n_u8(1)));
    }
  }
}

/* Part `part` of the block at off. */
INLINE void unpack(int T, const pe_rows4 *l, int64_t off, int part, int8x16_t w[8], float32x4_t *d, float32x4_t *m) {
  if (PARTS(T) > 1) {
    unpack_part(T, l, off, part, w, d, m);
    return;
  }
  if (AFFINE(T)) {
    uint32x4_t dm = pe_dword4(l, off);
    *d = pe_low_half(dm);
    *m = pe_high_half(dm);
  } else {
    *d = T == PE_MXFP4 ? e8m0_half4(l, off) : pe_half4(l, off);
  }
  if (T == PE_Q8_0) {
    pe_lanes16(w, l, off + 2);
    pe_lanes16(w + 4, l, off + 18);
    return;
  }
  int8x16_t v[4];
  pe_lanes16(v, l, off + BYTES(T) - 16);
  uint32x4_t clear = {0};  /* fifth bits, inverted: with ones above it where its bit is 0, a nibble is q - 16 */
  if (FIFTH_BIT(T)) clear = vmvnq_u32(pe_dword4(l, off + BYTES(T) - 20));
  PE_UNROLL
  for (int c = 0; c < 4; c++) {
    uint8x16_t u = vreinterpretq_u8_s8(v[c]), lo, hi;
    if (FIFTH_BIT(T)) {
      lo = vsliq_n_u8(u, spread_bits(clear, c), 4);
      hi = vsriq_n_u8(spread_bits(clear, c + 4), u, 4);
    } else {
      lo = vandq_u8(u, vdupq_n_u8(15));
      hi = vshrq_n_u8(u, 4);
    }
    if (T == PE_IQ4_NL || T == PE_MXFP4) {
      uint8x16_t values = vreinterpretq_u8_s8(vld1q_s8(T == PE_IQ4_NL ? iq4_values : mxfp4_values));
      lo = vqtbl1q_u8(values, lo);
      hi = vqtbl1q_u8(values, hi);
    }
    w[c] = vreinterpretq_s8_u8(lo);
    w[c + 4] = vreinterpretq_s8_u8(hi);
  }
}

/* What the integer sums of a token's block start from; what the float sums of its rows become. A sum
 * starts from the bits of 1.5 * 2^23 and so is a float from the beginning: that much too large, and exact
 * as long as it stays below 2^22 in magnitude (32*128*127 = 520 192 is the largest). Taking it off is one
 * operation on either pipe, where scvtf is two on one pipe of Cortex-A76 and Neoverse. */
enum { ONE_AND_A_HALF = 0x4b400000 };

INLINE int32x4_t start(int T, int32_t asum) { return vdupq_n_s32(ONE_AND_A_HALF + BIAS(T) * asum); }

INLINE float32x4_t as_float(int32x4_t isum) {
  return vsubq_f32(vreinterpretq_f32_s32(isum), vreinterpretq_f32_s32(vdupq_n_s32(ONE_AND_A_HALF)));
}

INLINE float32x4_t finish(int T, float32x4_t acc, int32x4_t isum, float32x4_t d, float32x4_t m, float da, int32_t asum) {
  acc = vfmaq_f32(acc, vmulq_n_f32(d, da), as_float(isum));
  if (AFFINE(T)) acc = vfmaq_n_f32(acc, vmulq_n_f32(m, da), (float)asum);
  return acc;
}

/* Eight adjacent rows from `row` on, as two groups of four: two independent chains, which cores
 * that run in order need. Where there are four or fewer, the second repeats the first. */
typedef struct rows8 {
  pe_rows4 l[2];
} rows8;

INLINE rows8 rows8_at(const pe_mm *a, int64_t row) {
  rows8 r = {{pe_rows4_at(a, row), pe_rows4_at(a, a->r1 - row > 4 ? row + 4 : row)}};
  r.l[0].skip = r.l[1].skip = 7 * a->w_stride;
  return r;
}

/* Many tokens: eight rows are unpacked into a panel for a pass of tokens. */
enum {
  CHUNK = 32,   /* blocks per panel: 8 KB of quants, in 32 KB of L1 with the 1 KB of each of a tile's tokens */
  TOKENS = 64,  /* per pass: their activations (160 KB at k = 2048) stay in L2 while a part's rows go by, and */
};              /* unpacking costs 6 % of the products by sdot, 2 % of those without it */

/* From a panel to the one to fetch meanwhile: the next columns, or the next rows. */
INLINE int64_t next_panel(int T, const pe_mm *a, int64_t b0) {
  return b0 + CHUNK < a->k / 32 ? AT(T, CHUNK) : 8 * a->w_stride - AT(T, b0);
}

/* A file's many_group(T, a, row, t0, t1) as a kernel. */
#define GROUP static __attribute__((noinline)) void
#define MANY(T, name)                                                                          \
  GROUP many_##name##_group(const pe_mm *a, int64_t row, int64_t t0, int64_t t1) { many_group(T, a, row, t0, t1); } \
  static void mm_##name##_many(const pe_mm *a) {                                               \
    for (int64_t t = 0; t < a->n; t += TOKENS)                                                 \
      for (int64_t r = a->r0; r < a->r1; r += 8)                                               \
        many_##name##_group(a, r, t, a->n - t < TOKENS ? a->n : t + TOKENS);                   \
  }
#define MANY_ROW(type, name) {"mm_" #name "_" TIER "_many", type, PE_ACT_Q32, TIER_ISA, 3, INT32_MAX, mm_##name##_many}

#endif

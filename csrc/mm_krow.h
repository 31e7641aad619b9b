/* mm_krow.h: one row's block of 256 on 64-bit ARM as strips: strip j is the sixteen quants 16j..16j+15 in
 * one register. What the types' unpacking (mm_kquant_neon.h, mm_iquant_neon.h, which define scales,
 * strips and halves) and the bodies share. No products: a strip goes where mm_kquant_neon.inl.c sends it
 * (take_strip), or to memory for panels. Included by those two. */
#ifndef PE_MM_KROW_H
#define PE_MM_KROW_H

#define BYTES(T)                                                                                                            \
  ((T) == PE_Q2_K ? 84 : (T) == PE_Q3_K ? 110 : (T) == PE_Q4_K ? 144 : (T) == PE_Q5_K ? 176 : (T) == PE_Q6_K ? 210 :        \
   (T) == PE_IQ1_S ? 50 : (T) == PE_IQ1_M ? 56 : (T) == PE_IQ2_XXS ? 66 : (T) == PE_IQ2_XS ? 74 : (T) == PE_IQ2_S ? 82 :    \
   (T) == PE_IQ3_XXS ? 98 : (T) == PE_IQ3_S ? 110 : (T) == PE_TQ1_0 ? 54 : (T) == PE_TQ2_0 ? 66 : 136)
#define UNSCALED(T) ((T) == PE_TQ1_0 || (T) == PE_TQ2_0)  /* the scale of every sub-block is 1 */
#define MINIMA(T) ((T) == PE_Q2_K || (T) == PE_Q4_K || (T) == PE_Q5_K)
#define PER32(T)  /* a scale per 32 elements, else per 16 */                                                  \
  ((T) == PE_Q4_K || (T) == PE_Q5_K || (T) == PE_IQ4_XS || (T) == PE_IQ1_S || (T) == PE_IQ2_XXS || (T) == PE_IQ3_XXS || (T) == PE_IQ3_S)
#define OFFSET(T) ((T) == PE_Q6_K ? 32 : 0)  /* still inside a strip's quants; all others have their sign */

typedef struct krow {      /* the sub-blocks' scales of a row's block, in order */
  int8x16_t sc;            /* PER32: eight, in the low half */
  int8x16_t mn;            /* MINIMA: likewise */
} krow;

/* Up to FEW tokens a row is unpacked by itself, beyond it eight rows to a panel of lanes: on Cortex-A76 some
 * 30 + 18n cycles for n tokens and a block of Q4_K against 60 + 10n (Q6_K: 35 + 21n, 70 + 12n). */
enum { FEW = 4 };

/* Strips of a block go one by one, in order: one and few tokens take them (o), or they are stored. */
typedef struct dots dots;
INLINE void take_strip(int T, int j, uint8x16_t w, dots *o);

INLINE void give_strip(int T, int j, uint8x16_t w, dots *o, uint8x16_t *to) {
  if (o)
    take_strip(T, j, w, o);
  else
    to[j] = w;
}

/* ---- words -------------------------------------------------------------------------------- */

INLINE uint8x16_t u8_load(const uint8_t *p) { return vld1q_u8(p); }
INLINE uint8x16_t u8_set(int x) { return vdupq_n_u8((uint8_t)x); }
/* Bits moved right (or left) and masked. */
INLINE uint8x16_t bits(uint8x16_t v, int right, int mask) {
  v = right > 0 ? v >> u8_set(right) : right < 0 ? v << u8_set(-right) : v;
  return v & u8_set(mask);
}
/* The low nibbles of v below `up` shifted by four, or its high ones below the upper bits of `up`. */
INLINE uint8x16_t lo_under(uint8x16_t v, uint8x16_t up) { return vsliq_n_u8(v, up, 4); }
INLINE uint8x16_t hi_under(uint8x16_t v, uint8x16_t up) { return vsriq_n_u8(up, v, 4); }

/* Zeros to add products to, loaded: load units idle where movi would take a slot of the vector units. */
INLINE int32x4_t loaded_zero(void) {
  static const int32x4_t zero;
  return *(const volatile int32x4_t *)&zero;
}

INLINE uint32_t load_u32(const uint8_t *p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}

INLINE uint64_t load_u64(const uint8_t *p) {
  uint64_t v;
  memcpy(&v, p, 8);
  return v;
}

INLINE int8x16_t two_u64(uint64_t lo, uint64_t hi) {
  return vreinterpretq_s8_u64(vcombine_u64(vcreate_u64(lo), vcreate_u64(hi)));
}

#define EACH8(x) ((x) * 0x0101010101010101u)

INLINE void widen16(int8x16_t v, int16x8_t to[2]) {
  to[0] = vmovl_s8(vget_low_s8(v));
  to[1] = vmovl_high_s8(v);
}

/* A token's sums of block b's quants, per sub-block. */
INLINE void sums_of(int T, const uint8_t *x, int64_t k, int64_t b, int16x8_t asum[2]) {
  const int16_t *s = pe_act_s16(x, k) + 16 * b;
  asum[0] = vld1q_s16(s);
  asum[1] = vld1q_s16(s + 8);
  if (PER32(T)) asum[0] = vpaddq_s16(asum[0], asum[1]);  /* at most 32 * 127 = 4 064 */
}

/* Defined with the types. */
INLINE void strips(int T, const uint8_t *w, dots *o, uint8x16_t *to);

INLINE void signed_strips(int T, const uint8_t *w, int8x16_t to[16]) {
  strips(T, w, NULL, (uint8x16_t *)to);
  PE_UNROLL
  for (int j = 0; j < 16; j++)
    if (OFFSET(T)) to[j] = vsubq_s8(to[j], vdupq_n_s8(OFFSET(T)));
}

/* The lines from `at` on that hold a block. Addresses past the weights are harmless. */
INLINE void prefetch_block(int T, const uint8_t *row, int64_t at) {
  for (int i = 0; i < BYTES(T); i += 64) __builtin_prefetch((const void *)((uintptr_t)row + (uintptr_t)(at + i)), 0, 3);
}

/* A block of four rows and a token: S complete, the offset taken off. */
INLINE float32x4_t finish(int T, float32x4_t acc, int32x4_t S, int32x4_t N, float32x4_t d, float32x4_t dmin, float da) {
  float32x4_t s = vcvtq_f32_s32(S), v = vdupq_n_f32(da);
  if (!MINIMA(T)) return vfmaq_f32(acc, v, vmulq_f32(d, s));
  return vfmaq_f32(acc, v, vfmaq_f32(vnegq_f32(vmulq_f32(dmin, vcvtq_f32_s32(N))), d, s));
}

#endif

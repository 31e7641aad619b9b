/* mm_kpanel.h: a block of 256 of LANES rows as strips: sixteen elements of every row, four bytes of
 * each per dword. What the types' unpacking (mm_kquant.h, mm_iquant.h) and the bodies share: the
 * panel, scales, bits, and where a strip goes (take_strip and take_signed, in mm_kquant.inl.c).
 * Included by mm_kquant_maddubs.h and mm_kquant_dp.h, which say what the multiplication wants. */
#ifndef PE_MM_KPANEL_H
#define PE_MM_KPANEL_H

#define BYTES(T)                                                                                                            \
  ((T) == PE_Q2_K ? 84 : (T) == PE_Q3_K ? 110 : (T) == PE_Q4_K ? 144 : (T) == PE_Q5_K ? 176 : (T) == PE_Q6_K ? 210 :        \
   (T) == PE_IQ1_S ? 50 : (T) == PE_IQ1_M ? 56 : (T) == PE_IQ2_XXS ? 66 : (T) == PE_IQ2_XS ? 74 : (T) == PE_IQ2_S ? 82 :    \
   (T) == PE_IQ3_XXS ? 98 : (T) == PE_IQ3_S ? 110 : (T) == PE_TQ1_0 ? 54 : (T) == PE_TQ2_0 ? 66 : 136)
#define UNSCALED(T) ((T) == PE_TQ1_0 || (T) == PE_TQ2_0)  /* the scale of every sub-block is 1 */
#define MINIMA(T) ((T) == PE_Q2_K || (T) == PE_Q4_K || (T) == PE_Q5_K)
#define OFFSET(T) ((T) == PE_Q3_K ? 4 : (T) == PE_Q6_K ? 32 : (T) == PE_IQ4_XS ? IQ4_OFFSET : IQ1(T) ? 9 : UNSCALED(T) ? 1 : 0)
#define PER32(T)  /* a scale per 32 elements, else per 16 */                                                  \
  ((T) == PE_Q4_K || (T) == PE_Q5_K || (T) == PE_IQ4_XS || UNSCALED(T) || (T) == PE_IQ1_S || (T) == PE_IQ2_XXS ||   \
   (T) == PE_IQ3_XXS || (T) == PE_IQ3_S)
#define IQ1(T) ((T) == PE_IQ1_S || (T) == PE_IQ1_M)
#define IQ2(T) ((T) == PE_IQ2_XXS || (T) == PE_IQ2_XS || (T) == PE_IQ2_S)
#define CODEBOOK(T) (IQ1(T) || IQ2(T) || (T) == PE_IQ3_XXS || (T) == PE_IQ3_S)

typedef struct kpanel {    /* one block of LANES rows; dword lane i is row i */
  vi w[64];                /* elements 4c..4c+3, offset not taken off: 0..3, 7, 15, 31, 63; IQ4_XS see CODES; IQ1 to IQ3 signed */
  vi sc[16];               /* scale of a sub-block, as SCALE says */
  vi mn[8];                /* sub-blocks 2i and 2i+1 as int16: minima, or scales again where there are none */
  vf d, dmin;
  vi bias[32];             /* BIASED: -128 * the sum of w, of each run */
} kpanel;

/* ---- scales ----------------------------------------------------------------------------- */

/* How a scale is written into its dword, which depends on what it meets. */
enum { TWICE16, LOW16, INT32 };

INLINE vi scale(vi v, int byte, int how, int is_signed) {
  uint32_t b = (uint32_t)byte, z = 0x80;  /* 0x80: shuffle writes 0 */
  if (!is_signed) return vi_shuffle8(v, pe_own_bytes(b | z << 8 | (how == TWICE16 ? b : z) << 16 | z << 24));
  if (how == INT32) return vi_sra32(vi_shuffle8(v, pe_own_bytes(z | z << 8 | z << 16 | b << 24)), 24);
  return vi_sra16(vi_shuffle8(v, pe_own_bytes(z | b << 8 | z << 16 | (how == TWICE16 ? b : z) << 24)), 8);
}

/* Bytes b and b+1 as two int16. */
INLINE vi pair16(vi v, int byte, int is_signed) {
  uint32_t b = (uint32_t)byte, z = 0x80;
  if (!is_signed) return vi_shuffle8(v, pe_own_bytes(b | z << 8 | (b + 1) << 16 | z << 24));
  return vi_sra16(vi_shuffle8(v, pe_own_bytes(z | b << 8 | z << 16 | (b + 1) << 24)), 8);
}

/* n scales of a byte each, four per dword of s, to sc; m to mn. */
INLINE void scales(kpanel *p, int n, const vi *s, const vi *m, int how, int is_signed) {
  PE_UNROLL
  for (int j = 0; j < n; j++) p->sc[j] = scale(s[j / 4], j % 4, how, is_signed);
  PE_UNROLL
  for (int i = 0; i < n / 2; i++) p->mn[i] = pair16(m[i / 2], i % 2 * 2, is_signed);
}

/* ---- activations -------------------------------------------------------------------------- */

/* A block's quants + 128, and those of the tokens of the next tile on their way: this burst of
 * loads would wait for them (k 8192: 86 : 96 GMAC/s). */
INLINE void bias_tokens(int NT, uint8_t q128[8][256], const int8_t *q, int64_t stride) {
  PE_UNROLL
  for (int t = 0; t < NT; t++) {
    const int8_t *from = q + t * stride;
    for (int i = 0; i < 4; i++)
      _mm_prefetch((const char *)((uintptr_t)from + (uintptr_t)(NT * stride + 64 * i)), _MM_HINT_T0);
    PE_UNROLL
    for (int i = 0; i < 256; i += (int)sizeof(vi)) *(vi *)(q128[t] + i) = vi_xor(*(const vi *)(from + i), vi_set8(128));
  }
  pe_keep_in_memory();
}

/* ---- strips ----------------------------------------------------------------------------- */

INLINE vi and8(vi v, int mask) { return vi_and(v, vi_set8(mask)); }
/* Bits of bytes moved by a shift of 16-bit lanes: the mask drops what came from the neighbour. */
INLINE vi bits(vi v, int right, int mask) {
  return and8(right > 0 ? vi_srl16(v, right) : right < 0 ? vi_sll16(v, -right) : v, mask);
}
INLINE vi or_bits(vi a, vi v, int right, int mask) { return vi_or(a, bits(v, right, mask)); }

/* Strip j, its quants shifted up by `up` bits where that saves shifting them down: a strip's
 * sum is shifted instead. Q2_K and Q3_K: two of four fields stay where they are. */
typedef struct one one;
INLINE void take_strip(int T, int j, const vi w[4], int up, kpanel *p, one *o);

/* A strip of magnitudes; a set bit of the byte signs[h] repeats makes one of elements 8h..8h+7 negative. */
INLINE void take_signed(int T, int j, const vi w[4], const vi signs[2], kpanel *p, one *o);

#endif

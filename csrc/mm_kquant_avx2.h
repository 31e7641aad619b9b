/* mm_kquant_avx2.h: unpacks a block of 256 of eight rows (Q2_K to Q6_K) for AVX2. No
 * arithmetic on activations. Included by mm_kquant_avx2.c, inside its x86 guard. */
#ifndef PE_MM_KQUANT_AVX2_H
#define PE_MM_KQUANT_AVX2_H
#include "mm_avx2.h"

#define BYTES(T) \
  ((T) == PE_Q2_K ? 84 : (T) == PE_Q3_K ? 110 : (T) == PE_Q4_K ? 144 : (T) == PE_Q5_K ? 176 : 210)
#define MINIMA(T) ((T) == PE_Q2_K || (T) == PE_Q4_K || (T) == PE_Q5_K)
#define PER32(T) ((T) == PE_Q4_K || (T) == PE_Q5_K)   /* a scale per 32 elements, else per 16 */

typedef struct kpanel {    /* one block of eight rows; dword lane i is row i */
  __m256i w[64];           /* elements 4c..4c+3, offset not taken off: 0..3, 7, 15, 31, 63 */
  __m256i sc[16];          /* scale of a sub-block, twice as int16 */
  __m256i mn[8];           /* sub-blocks 2i and 2i+1 as int16: minima, or scales again where there are none */
  __m256 d, dmin;
} kpanel;

/* Byte `b` of each dword as int16, in both halves of it; bytes b and b+1 as two int16. */
INLINE __m256i spread(__m256i v, int lo, int hi, int is_signed) {
  int z = 0x80;  /* pshufb writes 0 */
  int mask = is_signed ? (z | lo << 8 | z << 16 | (int)((unsigned)hi << 24)) : (lo | z << 8 | hi << 16 | (int)((unsigned)z << 24));
  __m256i m = _mm256_add_epi8(_mm256_set1_epi32(mask),
                              _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c));
  v = _mm256_shuffle_epi8(v, m);
  return is_signed ? _mm256_srai_epi16(v, 8) : v;
}

/* Sixteen scales of a byte each, four per dword of s, to sc and mn. */
INLINE void scales16(kpanel *p, const __m256i s[4], const __m256i m[4], int is_signed) {
  PE_UNROLL
  for (int j = 0; j < 16; j++) p->sc[j] = spread(s[j / 4], j % 4, j % 4, is_signed);
  PE_UNROLL
  for (int i = 0; i < 8; i++) p->mn[i] = spread(m[i / 2], i % 2 * 2, i % 2 * 2 + 1, is_signed);
}

INLINE __m256i and8(__m256i v, int mask) { return _mm256_and_si256(v, _mm256_set1_epi8((char)mask)); }
/* Bits of bytes moved by a shift of 16-bit lanes: the mask drops what came from the neighbour. */
INLINE __m256i bits(__m256i v, int right, int mask) {
  return and8(right >= 0 ? _mm256_srli_epi16(v, right) : _mm256_slli_epi16(v, -right), mask);
}

INLINE void unpack_q2_k(const pe_lanes *l, int64_t off, kpanel *p) {
  __m256i v[4], s[4], m[4];
  pe_transpose16(v, l, off + 68);  /* the 16 bytes that end the block: d and dmin are the last four */
  pe_half_pairs(v[3], &p->d, &p->dmin);
  pe_transpose16(v, l, off);
  PE_UNROLL
  for (int i = 0; i < 4; i++) s[i] = pe_nib_lo(v[i]), m[i] = pe_nib_hi(v[i]);
  scales16(p, s, m, 0);
  PE_UNROLL
  for (int i = 0; i < 4; i++) {  /* 16 bytes: half h, elements 16*(i%2).. of its four groups of 32 */
    pe_transpose16(v, l, off + 16 + 16 * i);
    PE_UNROLL
    for (int c = 0; c < 4; c++)
      PE_UNROLL
      for (int g = 0; g < 4; g++) p->w[i / 2 * 32 + g * 8 + i % 2 * 4 + c] = bits(v[c], 2 * g, 3);
  }
}

INLINE void unpack_q3_k(const pe_lanes *l, int64_t off, kpanel *p) {
  __m256i v[4], h[4], s[4], r[4];
  PE_UNROLL
  for (int i = 0; i < 4; i++)  /* 16 bytes from 94 end with the block; the scales start at 96 */
    r[i] = _mm256_srli_si256(pe_load_2x16(l->p[i] + off + 94, l->p[i + 4] + off + 94), 2);
  pe_transpose4(v, r[0], r[1], r[2], r[3]);
  __m256 zero;
  pe_half_pairs(v[3], &p->d, &zero);
  s[0] = _mm256_or_si256(pe_nib_lo(v[0]), bits(v[2], -4, 0x30));
  s[1] = _mm256_or_si256(pe_nib_lo(v[1]), bits(v[2], -2, 0x30));
  s[2] = _mm256_or_si256(pe_nib_hi(v[0]), and8(v[2], 0x30));
  s[3] = _mm256_or_si256(pe_nib_hi(v[1]), bits(v[2], 2, 0x30));
  PE_UNROLL
  for (int i = 0; i < 4; i++) s[i] = _mm256_sub_epi8(s[i], _mm256_set1_epi8(32));
  scales16(p, s, s, 1);
  PE_UNROLL
  for (int e = 0; e < 2; e++) {
    pe_transpose16(h, l, off + 16 * e);
    PE_UNROLL
    for (int half = 0; half < 2; half++) {
      pe_transpose16(v, l, off + 32 + 32 * half + 16 * e);
      PE_UNROLL
      for (int c = 0; c < 4; c++)
        PE_UNROLL
        for (int g = 0; g < 4; g++)
          p->w[half * 32 + g * 8 + e * 4 + c] = _mm256_or_si256(bits(v[c], 2 * g, 3), bits(h[c], 4 * half + g - 2, 4));
    }
  }
}

/* d, dmin and the twelve bytes of 6-bit scales and minima of Q4_K and Q5_K. */
INLINE void header_q4_k(const pe_lanes *l, int64_t off, kpanel *p) {
  __m256i v[4], s[2], m[2];
  pe_transpose16(v, l, off);
  pe_half_pairs(v[0], &p->d, &p->dmin);
  s[0] = and8(v[1], 63);
  m[0] = and8(v[2], 63);
  s[1] = _mm256_or_si256(pe_nib_lo(v[3]), bits(v[1], 2, 0x30));
  m[1] = _mm256_or_si256(pe_nib_hi(v[3]), bits(v[2], 2, 0x30));
  PE_UNROLL
  for (int j = 0; j < 8; j++) p->sc[j] = spread(s[j / 4], j % 4, j % 4, 0);
  PE_UNROLL
  for (int i = 0; i < 4; i++) p->mn[i] = spread(m[i / 2], i % 2 * 2, i % 2 * 2 + 1, 0);
}

INLINE void unpack_q4_k(const pe_lanes *l, int64_t off, kpanel *p) {
  header_q4_k(l, off, p);
  PE_UNROLL
  for (int i = 0; i < 8; i++) {  /* 16 bytes: the low nibbles, and 32 elements on, the high ones */
    __m256i v[4];
    pe_transpose16(v, l, off + 16 + 16 * i);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {
      p->w[i / 2 * 16 + i % 2 * 4 + c] = pe_nib_lo(v[c]);
      p->w[i / 2 * 16 + i % 2 * 4 + c + 8] = pe_nib_hi(v[c]);
    }
  }
}

INLINE void unpack_q5_k(const pe_lanes *l, int64_t off, kpanel *p) {
  header_q4_k(l, off, p);
  PE_UNROLL
  for (int e = 0; e < 2; e++) {
    __m256i v[4], h[4];
    pe_transpose16(h, l, off + 16 + 16 * e);
    PE_UNROLL
    for (int g = 0; g < 4; g++) {
      pe_transpose16(v, l, off + 48 + 32 * g + 16 * e);
      PE_UNROLL
      for (int c = 0; c < 4; c++) {
        p->w[g * 16 + e * 4 + c] = _mm256_or_si256(pe_nib_lo(v[c]), bits(h[c], 2 * g - 4, 16));
        p->w[g * 16 + e * 4 + c + 8] = _mm256_or_si256(pe_nib_hi(v[c]), bits(h[c], 2 * g - 3, 16));
      }
    }
  }
}

INLINE void unpack_q6_k(const pe_lanes *l, int64_t off, kpanel *p) {
  __m256i v[4], h[4];
  p->d = pe_half_at_end(l, off + 208);
  pe_transpose16(v, l, off + 192);
  scales16(p, v, v, 1);
  PE_UNROLL
  for (int i = 0; i < 4; i++) {  /* half i/2, elements 16*(i%2).. of its four groups of 32 */
    int64_t ql = off + i / 2 * 64 + i % 2 * 16;
    __m256i *w = p->w + i / 2 * 32 + i % 2 * 4;
    pe_transpose16(h, l, off + 128 + 16 * i);
    pe_transpose16(v, l, ql);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {
      w[c] = _mm256_or_si256(pe_nib_lo(v[c]), bits(h[c], -4, 0x30));
      w[c + 16] = _mm256_or_si256(pe_nib_hi(v[c]), and8(h[c], 0x30));
    }
    pe_transpose16(v, l, ql + 32);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {
      w[c + 8] = _mm256_or_si256(pe_nib_lo(v[c]), bits(h[c], -2, 0x30));
      w[c + 24] = _mm256_or_si256(pe_nib_hi(v[c]), bits(h[c], 2, 0x30));
    }
  }
}

INLINE void unpack(int T, const pe_lanes *l, int64_t off, kpanel *p) {
  if (T == PE_Q2_K) unpack_q2_k(l, off, p);
  if (T == PE_Q3_K) unpack_q3_k(l, off, p);
  if (T == PE_Q4_K) unpack_q4_k(l, off, p);
  if (T == PE_Q5_K) unpack_q5_k(l, off, p);
  if (T == PE_Q6_K) unpack_q6_k(l, off, p);
}

#endif

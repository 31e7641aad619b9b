/* mm_words16.h: the words of mm_words8.h, sixteen dwords wide: AVX-512 registers (F, BW,
 * DQ, VL). Same names and meanings; comments are there. Included by mm_avx512.h, after
 * its target pragma. */
#ifndef PE_MM_WORDS_H
#define PE_MM_WORDS_H

#define LANES 16
typedef __m512i vi;
typedef __m512 vf;

INLINE vi vi_zero(void) { return _mm512_setzero_si512(); }
INLINE vi vi_set8(int x) { return _mm512_set1_epi8((char)x); }
INLINE vi vi_set16(int x) { return _mm512_set1_epi16((short)x); }
INLINE vi vi_set32(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INLINE vi vi_add8(vi a, vi b) { return _mm512_add_epi8(a, b); }
INLINE vi vi_add16(vi a, vi b) { return _mm512_add_epi16(a, b); }
INLINE vi vi_add32(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_sub8(vi a, vi b) { return _mm512_sub_epi8(a, b); }
INLINE vi vi_sub32(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi vi_max32(vi a, vi b) { return _mm512_max_epi32(a, b); }
INLINE vi vi_mul16(vi a, vi b) { return _mm512_mullo_epi16(a, b); }
INLINE vi vi_mul32(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
INLINE vi vi_madd16(vi a, vi b) { return _mm512_madd_epi16(a, b); }
INLINE vi vi_maddubs(vi u, vi s) { return _mm512_maddubs_epi16(u, s); }
INLINE vi vi_shuffle8(vi table, vi index) { return _mm512_shuffle_epi8(table, index); }
#define vi_srl16(v, n) _mm512_srli_epi16(v, n)
#define vi_sll16(v, n) _mm512_slli_epi16(v, n)
#define vi_sra16(v, n) _mm512_srai_epi16(v, n)
#define vi_srl32(v, n) _mm512_srli_epi32(v, n)
#define vi_sll32(v, n) _mm512_slli_epi32(v, n)
#define vi_sra32(v, n) _mm512_srai_epi32(v, n)
#define vi_srl128(v, bytes) _mm512_bsrli_epi128(v, bytes)
INLINE vi vi_unpacklo32(vi a, vi b) { return _mm512_unpacklo_epi32(a, b); }
INLINE vi vi_unpackhi32(vi a, vi b) { return _mm512_unpackhi_epi32(a, b); }
INLINE vi vi_unpacklo64(vi a, vi b) { return _mm512_unpacklo_epi64(a, b); }
INLINE vi vi_unpackhi64(vi a, vi b) { return _mm512_unpackhi_epi64(a, b); }
INLINE vi vi_table(const void *p16) { return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p16)); }
/* Every mask in use has one bit per byte, so "all set" is "any set". */
INLINE vi vi_where8(vi v, vi mask, vi value) { return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(v, mask), value); }

INLINE vi vi_negate8(vi x, vi v, vi mask) { return _mm512_mask_sub_epi8(x, _mm512_test_epi8_mask(v, mask), _mm512_setzero_si512(), x); }
#define vi_gather32(base, index, scale) _mm512_i32gather_epi32(index, base, scale)
INLINE void vi_gather64(vi w[2], const uint64_t *base, vi index) {
  vi at = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), index);
  __m512 a = _mm512_castsi512_ps(_mm512_i32gather_epi64(_mm512_castsi512_si256(at), base, 8));
  __m512 b = _mm512_castsi512_ps(_mm512_i32gather_epi64(_mm512_extracti64x4_epi64(at, 1), base, 8));
  w[0] = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88));
  w[1] = _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd));
}

INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_fms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }
INLINE vf vf_from_vi(vi v) { return _mm512_cvtepi32_ps(v); }
INLINE vf vf_bits(vi v) { return _mm512_castsi512_ps(v); }
INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
INLINE vf vf_half(vi v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }

/* 16 bytes of each of the rows i, i+4, i+8, i+12. */
#define PE_ROWS4(p, i, off) \
  pe_load_4x16((p)[i] + (off), (p)[(i) + 4] + (off), (p)[(i) + 8] + (off), (p)[(i) + 12] + (off))
INLINE vi pe_load_4x16(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d) {
  vi v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)a));
  v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)b), 1);
  v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)c), 2);
  return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)d), 3);
}

INLINE void pe_pin(vi *v) { __asm__("" : "+v"(*v)); }

#endif

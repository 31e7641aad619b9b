/* mm_words8.h: the vector words that bodies of matrix products are written over, eight
 * dwords wide: AVX2 registers. mm_words16.h has the same names for AVX-512. Words only;
 * which rows are in the lanes is mm_lanes.h. Included by mm_avx2.h and mm_avxvnni.h,
 * after their target pragma. */
#ifndef PE_MM_WORDS_H
#define PE_MM_WORDS_H

#define LANES 8
typedef __m256i vi;        /* integers; dword lane i is row i */
typedef __m256 vf;         /* floats; lane i is row i */

INLINE vi vi_zero(void) { return _mm256_setzero_si256(); }
INLINE vi vi_set8(int x) { return _mm256_set1_epi8((char)x); }
INLINE vi vi_set16(int x) { return _mm256_set1_epi16((short)x); }
INLINE vi vi_set32(int32_t x) { return _mm256_set1_epi32(x); }
INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
INLINE vi vi_add8(vi a, vi b) { return _mm256_add_epi8(a, b); }
INLINE vi vi_add16(vi a, vi b) { return _mm256_add_epi16(a, b); }
INLINE vi vi_add32(vi a, vi b) { return _mm256_add_epi32(a, b); }
INLINE vi vi_sub8(vi a, vi b) { return _mm256_sub_epi8(a, b); }
INLINE vi vi_sub16(vi a, vi b) { return _mm256_sub_epi16(a, b); }
INLINE vi vi_sub32(vi a, vi b) { return _mm256_sub_epi32(a, b); }
INLINE vi vi_max32(vi a, vi b) { return _mm256_max_epi32(a, b); }
INLINE vi vi_mul16(vi a, vi b) { return _mm256_mullo_epi16(a, b); }    /* low halves of the products */
INLINE vi vi_mul32(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
INLINE vi vi_madd16(vi a, vi b) { return _mm256_madd_epi16(a, b); }    /* int16 pairs to an int32 each */
INLINE vi vi_maddubs(vi u, vi s) { return _mm256_maddubs_epi16(u, s); }  /* u unsigned, s signed; saturates */
INLINE vi vi_shuffle8(vi table, vi index) { return _mm256_shuffle_epi8(table, index); }  /* within 16 bytes; index >= 128: 0 */
/* Shift counts are constants, hence macros. */
#define vi_srl16(v, n) _mm256_srli_epi16(v, n)
#define vi_sll16(v, n) _mm256_slli_epi16(v, n)
#define vi_sra16(v, n) _mm256_srai_epi16(v, n)
#define vi_srl32(v, n) _mm256_srli_epi32(v, n)
#define vi_sll32(v, n) _mm256_slli_epi32(v, n)
#define vi_sra32(v, n) _mm256_srai_epi32(v, n)
#define vi_srl128(v, bytes) _mm256_srli_si256(v, bytes)  /* each 16 bytes by itself */
INLINE vi vi_unpacklo32(vi a, vi b) { return _mm256_unpacklo_epi32(a, b); }
INLINE vi vi_unpackhi32(vi a, vi b) { return _mm256_unpackhi_epi32(a, b); }
INLINE vi vi_unpacklo64(vi a, vi b) { return _mm256_unpacklo_epi64(a, b); }
INLINE vi vi_unpackhi64(vi a, vi b) { return _mm256_unpackhi_epi64(a, b); }
/* The same 16 bytes for each four lanes: a table for vi_shuffle8. */
INLINE vi vi_table(const void *p16) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p16)); }
/* Bytes of `value` where all bits of `mask` are set in v. */
INLINE vi vi_where8(vi v, vi mask, vi value) {
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(v, mask), mask), value);
}

/* Bytes of x negated where v has a bit of the mask (one per byte; not for x of -128). 127 + such a bit is negative. */
INLINE vi vi_negate8(vi x, vi v, vi mask) {
  return _mm256_sign_epi8(x, _mm256_add_epi8(_mm256_and_si256(v, mask), _mm256_set1_epi8(127)));
}
/* The dword at index * scale bytes from base, per lane. The scale is a constant, hence a macro. */
#define vi_gather32(base, index, scale) _mm256_i32gather_epi32((const int *)(base), index, scale)
/* The two dwords at 8*index bytes from base, per lane: one load for both. */
INLINE void vi_gather64(vi w[2], const uint64_t *base, vi index) {
  vi at = _mm256_permute4x64_epi64(index, 0xd8);  /* lanes 0 1 4 5 | 2 3 6 7 */
  __m256 a = _mm256_castsi256_ps(_mm256_i32gather_epi64((const long long *)base, _mm256_castsi256_si128(at), 8));
  __m256 b = _mm256_castsi256_ps(_mm256_i32gather_epi64((const long long *)base, _mm256_extracti128_si256(at, 1), 8));
  w[0] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
  w[1] = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd));
}

INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }  /* a*b + c */
INLINE vf vf_fms(vf a, vf b, vf c) { return _mm256_fmsub_ps(a, b, c); }  /* a*b - c */
INLINE vf vf_from_vi(vi v) { return _mm256_cvtepi32_ps(v); }
INLINE vf vf_bits(vi v) { return _mm256_castsi256_ps(v); }
INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
/* The half in the low 16 bits of each dword. */
INLINE vf vf_half(vi v) {
  v = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
  return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1)));
}

/* 16 bytes of each of the rows i and i+4, i < 4: what pe_transpose4 wants. */
#define PE_ROWS4(p, i, off) pe_load_2x16((p)[i] + (off), (p)[(i) + 4] + (off))
INLINE vi pe_load_2x16(const uint8_t *lo, const uint8_t *hi) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)lo)),
                                 _mm_loadu_si128((const __m128i *)hi), 1);
}

/* Compilers see integer vector adds as associative: GCC 12 issues all products of an
 * unrolled block first, spills them, and adds them up afterwards. A pinned sum is added
 * to where the code says so. No instruction. */
INLINE void pe_pin(vi *v) { __asm__("" : "+x"(*v)); }

#endif

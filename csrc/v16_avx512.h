/* v16_avx512.h: the sixteen-lane words as one AVX-512 register; a mask is a mask register.
 * v16_scalar.h says what each word means. Included by simd_avx512.c only, after its
 * target pragma; needs AVX-512 F, BW, DQ, VL and VNNI. */
#ifndef PE_V16_H
#define PE_V16_H
#include <immintrin.h>

#include "softfloat.h"

typedef __m512 v16;
typedef __m512i v16i;
typedef __mmask16 v16m;
typedef v16 v1;
#define W static inline __attribute__((always_inline))
enum { V16_REGISTERS = 32 };

/* ---- memory ---------------------------------------------------------------------- */
W v16m v16_first(int n) { return (v16m)((1u << n) - 1); }
W v16 v16_set(float x) { return _mm512_set1_ps(x); }
W v1 v1_load(const float *p) { return v16_set(*p); }
W v16 v16_load(const float *p) { return _mm512_loadu_ps(p); }
W void v16_store(float *p, v16 x) { _mm512_storeu_ps(p, x); }
W v16 v16_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(v16_first(n), p); }
W void v16_store_n(float *p, v16 x, int n) { _mm512_mask_storeu_ps(p, v16_first(n), x); }
W v16 v16_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
W v16 v16_load_f16_n(const uint16_t *p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(v16_first(n), p)); }
W v16 v16_set_f16(uint16_t x) { return _mm512_cvtph_ps(_mm256_set1_epi16((short)x)); }
W v16 v16_load_i8(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
W v16 v16_load_q4(const uint8_t *p, int high, v16 d) {    /* vpermps looks at four bits of an index; its table serves both halves */
  const v16 q = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  v16i n = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
  return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(n, 4) : n, _mm512_mul_ps(d, q));
}
W void v16_store_f16(uint16_t *p, v16 x) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
W void v16_store_i8x2(int8_t *p, v16i x, v16i y) {
  _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(x));
  _mm_storeu_si128((__m128i *)(p + 16), _mm512_cvtepi32_epi8(y));
}
W void v16_unzip(const float *p, v16 *even, v16 *odd) {
  const v16i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  v16 lo = v16_load(p), hi = v16_load(p + 16);
  *even = _mm512_permutex2var_ps(lo, e, hi);
  *odd = _mm512_permutex2var_ps(lo, _mm512_add_epi32(e, _mm512_set1_epi32(1)), hi);
}
W void v16_zip(float *p, v16 even, v16 odd) {
  const v16i lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  v16_store(p, _mm512_permutex2var_ps(even, lo, odd));
  v16_store(p + 16, _mm512_permutex2var_ps(even, _mm512_add_epi32(lo, _mm512_set1_epi32(8)), odd));
}

/* ---- arithmetic ------------------------------------------------------------------ */
W v16 v16_add(v16 x, v16 y) { return _mm512_add_ps(x, y); }
W v16 v16_sub(v16 x, v16 y) { return _mm512_sub_ps(x, y); }
W v16 v16_mul(v16 x, v16 y) { return _mm512_mul_ps(x, y); }
W v16 v16_div(v16 x, v16 y) { return _mm512_div_ps(x, y); }
W v16 v16_max(v16 x, v16 y) { return _mm512_max_ps(x, y); }        /* maxps is a > b ? a : b, NaN and zeros included */
W v16 v16_fma(v16 x, v16 y, v16 z) { return _mm512_fmadd_ps(x, y, z); }
W v16 v16_fma1(v1 x, v16 y, v16 z) { return v16_fma(x, y, z); }
W float v16_sum(v16 x) {
  __m256 e = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
W float v16_hmax(v16 x) {
  __m256 e = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* ---- masks ------------------------------------------------------------------------ */
W v16m v16_lt(v16 x, v16 y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
W v16m v16_nan(v16 x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
W v16m v16_range(int lo, int hi) { return (v16m)(v16_first(hi) & ~v16_first(lo)); }
W v16 v16_select(v16m m, v16 x, v16 y) { return _mm512_mask_blend_ps(m, y, x); }
W v16i v16i_where(v16m m, v16i x) { return _mm512_maskz_mov_epi32(m, x); }

/* ---- integers ---------------------------------------------------------------------- */
W v16i v16i_add(v16i x, v16i y) { return _mm512_add_epi32(x, y); }
W v16i v16i_sub(v16i x, v16i y) { return _mm512_sub_epi32(x, y); }
W v16i v16i_and(v16i x, v16i y) { return _mm512_and_si512(x, y); }
W v16i v16i_or(v16i x, v16i y) { return _mm512_or_si512(x, y); }
W v16i v16i_max(v16i x, v16i y) { return _mm512_max_epi32(x, y); }
W v16i v16i_set(int32_t x) { return _mm512_set1_epi32(x); }
W v16i v16_bits(v16 x) { return _mm512_castps_si512(x); }
W v16 v16_from_bits(v16i x) { return _mm512_castsi512_ps(x); }
W v16 v16_from_int(v16i x) { return _mm512_cvtepi32_ps(x); }
W v16i v16_round(v16 x) { return _mm512_cvtps_epi32(x); }
W v16i v16i_load(const void *p) { return _mm512_loadu_si512(p); }
/* vpdpbusd wants a without sign: a + 128 gives 128*sum(b) too much. |s| < 2^31: 1024 * 255 * 127 in all */
W v16i v16i_dot4_start(int32_t b_sum) { return _mm512_set1_epi32(-128 * b_sum); }
W v16i v16i_dot4(v16i s, v16i a, v16i b) { return _mm512_dpbusd_epi32(s, _mm512_xor_si512(a, _mm512_set1_epi8(-128)), b); }
W v16i v16i_q4_start(int32_t sum) { return _mm512_set1_epi32(-8 * sum); }
W v16i v16i_q4_dot(v16i s, v16i a, v16i b, v16i c) {
  const v16i low = _mm512_set1_epi8(15);
  s = _mm512_dpbusd_epi32(s, _mm512_and_si512(a, low), b);
  return _mm512_dpbusd_epi32(s, _mm512_and_si512(_mm512_srli_epi32(a, 4), low), c);
}
W v16i v16i_q4_end(v16i s, int32_t sum) { (void)sum; return s; }
W v16i v16i_shl23(v16i x) { return _mm512_slli_epi32(x, 23); }
W v16i v16i_shr23(v16i x) { return _mm512_srai_epi32(x, 23); }
/* In the pieces in which v16_store_i8x2 wrote them: a longer load would wait until the last of them is in the
 * cache, which behind rows that are not takes longer than the block. */
W v16i v16_four_stores(const int8_t *q) {
  const __m128i *p = (const __m128i *)q;
  v16i x = _mm512_castsi128_si512(_mm_loadu_si128(p));
  x = _mm512_inserti32x4(x, _mm_loadu_si128(p + 1), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(x, _mm_loadu_si128(p + 2), 2), _mm_loadu_si128(p + 3), 3);
}
W int v16_small(const int8_t *q) {
  const v16i mid = _mm512_set1_epi8(-128);
  v16i most = _mm512_setzero_si512();
  for (int i = 0; i < 256; i += 128) {
    v16i lo = _mm512_sad_epu8(_mm512_xor_si512(v16_four_stores(q + i), mid), mid);    /* of eight, in 64 bits */
    v16i hi = _mm512_sad_epu8(_mm512_xor_si512(v16_four_stores(q + i + 64), mid), mid);
    most = _mm512_max_epi32(most, _mm512_add_epi32(_mm512_unpacklo_epi64(lo, hi), _mm512_unpackhi_epi64(lo, hi)));
  }
  return !_mm512_cmpgt_epi32_mask(most, _mm512_set1_epi32(PE_SMALL_SUM));
}
W int32_t v16i_hmax(v16i x) {
  __m256i e = _mm256_max_epi32(_mm512_castsi512_si256(x), _mm512_extracti32x8_epi32(x, 1));
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(e), _mm256_extracti128_si256(e, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
W int32_t v16i_sum(v16i x) {
  __m256i e = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti32x8_epi32(x, 1));
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(e), _mm256_extracti128_si256(e, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

#undef W
#endif

/* v16_avx2.h: the sixteen-lane words as two AVX registers. v16_scalar.h says what each
 * word means. Included by simd_avx2.c only, after its target pragma; needs AVX2, FMA
 * and F16C. */
#ifndef PE_V16_H
#define PE_V16_H
#include <immintrin.h>

#include "softfloat.h"

typedef struct { __m256 a, b; } v16;
typedef struct { __m256i a, b; } v16i;
typedef v16i v16m;
typedef v16 v1;
#define W static inline __attribute__((always_inline))
enum { V16_REGISTERS = 8 };

/* ---- memory ---------------------------------------------------------------------- */
static const int32_t v16_first_lanes[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
W v16m v16_first(int n) {
  const int32_t *p = v16_first_lanes + 16 - n;
  return (v16m){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))};
}
W v16 v16_set(float x) { return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
W v1 v1_load(const float *p) { return v16_set(*p); }
W v16 v16_load(const float *p) { return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
W void v16_store(float *p, v16 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
W v16 v16_load_n(const float *p, int n) {
  v16m m = v16_first(n);
  return (v16){_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b)};
}
W void v16_store_n(float *p, v16 x, int n) {
  v16m m = v16_first(n);
  _mm256_maskstore_ps(p, m.a, x.a);
  _mm256_maskstore_ps(p + 8, m.b, x.b);
}
W v16 v16_load_f16(const uint16_t *p) {
  return (v16){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
W v16 v16_load_f16_n(const uint16_t *p, int n) {
  uint16_t t[16] = {0};
  memcpy(t, p, (size_t)n * 2);
  return v16_load_f16(t);
}
W v16 v16_set_f16(uint16_t x) {
  __m256 f = _mm256_cvtph_ps(_mm_set1_epi16((short)x));
  return (v16){f, f};
}
W v16 v16_load_i8(const int8_t *p) {
  return (v16){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))),
               _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))))};
}
W v16 v16_load_q4(const uint8_t *p, int high, v16 d) {
  __m128i q = _mm_loadu_si128((const __m128i *)p);
  q = _mm_sub_epi8(_mm_and_si128(high ? _mm_srli_epi16(q, 4) : q, _mm_set1_epi8(15)), _mm_set1_epi8(8));
  return (v16){_mm256_mul_ps(d.a, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q))),
               _mm256_mul_ps(d.b, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_unpackhi_epi64(q, q))))};
}
W void v16_store_f16(uint16_t *p, v16 x) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
W void v16_store_i8x2(int8_t *p, v16i x, v16i y) { /* packs work in 128-bit halves: x.a x.b y.a y.b come out in quads 0 2 4 6 1 3 5 7 */
  __m256i b = _mm256_packs_epi16(_mm256_packs_epi32(x.a, x.b), _mm256_packs_epi32(y.a, y.b));
  _mm256_storeu_si256((__m256i *)p, _mm256_permutevar8x32_epi32(b, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}
/* shuffle_ps takes pairs within 128-bit halves: the quarters come out as 0 2 1 3 */
W __m256 v16_quarters(__m256 x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)); }
W void v16_unzip(const float *p, v16 *even, v16 *odd) {
  v16 lo = {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}, hi = {_mm256_loadu_ps(p + 16), _mm256_loadu_ps(p + 24)};
  even->a = v16_quarters(_mm256_shuffle_ps(lo.a, lo.b, 0x88));
  even->b = v16_quarters(_mm256_shuffle_ps(hi.a, hi.b, 0x88));
  odd->a = v16_quarters(_mm256_shuffle_ps(lo.a, lo.b, 0xdd));
  odd->b = v16_quarters(_mm256_shuffle_ps(hi.a, hi.b, 0xdd));
}
W void v16_zip(float *p, v16 even, v16 odd) {
  __m256 e[2] = {v16_quarters(even.a), v16_quarters(even.b)}, o[2] = {v16_quarters(odd.a), v16_quarters(odd.b)};
  for (int i = 0; i < 2; i++) {
    _mm256_storeu_ps(p + 16 * i, _mm256_unpacklo_ps(e[i], o[i]));
    _mm256_storeu_ps(p + 16 * i + 8, _mm256_unpackhi_ps(e[i], o[i]));
  }
}

/* ---- arithmetic ------------------------------------------------------------------ */
#define LANEWISE(name, op) W v16 name(v16 x, v16 y) { return (v16){op(x.a, y.a), op(x.b, y.b)}; }
LANEWISE(v16_add, _mm256_add_ps)
LANEWISE(v16_sub, _mm256_sub_ps)
LANEWISE(v16_mul, _mm256_mul_ps)
LANEWISE(v16_div, _mm256_div_ps)
LANEWISE(v16_max, _mm256_max_ps)        /* maxps is a > b ? a : b, NaN and zeros included */
W v16 v16_fma(v16 x, v16 y, v16 z) { return (v16){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
W v16 v16_fma1(v1 x, v16 y, v16 z) { return v16_fma(x, y, z); }
W float v16_sum(v16 x) {
  __m256 e = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
W float v16_hmax(v16 x) {
  __m256 e = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(e), _mm256_extractf128_ps(e, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

/* ---- masks ------------------------------------------------------------------------ */
#define COMPARE(name, x, y, how) ((v16m){_mm256_castps_si256(_mm256_cmp_ps(x.a, y.a, how)), _mm256_castps_si256(_mm256_cmp_ps(x.b, y.b, how))})
W v16m v16_lt(v16 x, v16 y) { return COMPARE(v16_lt, x, y, _CMP_LT_OQ); }
W v16m v16_nan(v16 x) { return COMPARE(v16_nan, x, x, _CMP_UNORD_Q); }
W v16m v16_range(int lo, int hi) {
  const __m256i a = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), b = _mm256_add_epi32(a, _mm256_set1_epi32(8));
  const __m256i l = _mm256_set1_epi32(lo), h = _mm256_set1_epi32(hi);
  return (v16m){_mm256_andnot_si256(_mm256_cmpgt_epi32(l, a), _mm256_cmpgt_epi32(h, a)),
                _mm256_andnot_si256(_mm256_cmpgt_epi32(l, b), _mm256_cmpgt_epi32(h, b))};
}
W v16 v16_select(v16m m, v16 x, v16 y) {
  return (v16){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(m.a)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(m.b))};
}

W v16i v16i_where(v16m m, v16i x) { return (v16i){_mm256_and_si256(m.a, x.a), _mm256_and_si256(m.b, x.b)}; }

/* ---- integers ---------------------------------------------------------------------- */
#define LANEWISE_I(name, op) W v16i name(v16i x, v16i y) { return (v16i){op(x.a, y.a), op(x.b, y.b)}; }
LANEWISE_I(v16i_add, _mm256_add_epi32)
LANEWISE_I(v16i_sub, _mm256_sub_epi32)
LANEWISE_I(v16i_and, _mm256_and_si256)
LANEWISE_I(v16i_or, _mm256_or_si256)
LANEWISE_I(v16i_max, _mm256_max_epi32)
W v16i v16i_set(int32_t x) { return (v16i){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
W v16i v16_bits(v16 x) { return (v16i){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
W v16 v16_from_bits(v16i x) { return (v16){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
W v16 v16_from_int(v16i x) { return (v16){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
W v16i v16_round(v16 x) { return (v16i){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
W v16i v16i_load(const void *p) { return (v16i){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)}; }
W v16i v16i_dot4_start(int32_t b_sum) { (void)b_sum; return v16i_set(0); }
W __m256i v16_dot8(__m256i s, __m256i a, __m256i b) {     /* pairs are at most 2*127*127 < 2^15 */
  __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
  return _mm256_add_epi32(s, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
W v16i v16i_dot4(v16i s, v16i a, v16i b) { return (v16i){v16_dot8(s.a, a.a, b.a), v16_dot8(s.b, a.b, b.b)}; }
/* The sums of q4_dot are of pairs, in 16 bits: |s| <= 8 * 2*15*127 = 30480 */
W v16i v16i_q4_start(int32_t sum) { (void)sum; return v16i_set(0); }
W __m256i v16_q4_dot8(__m256i s, __m256i a, __m256i b, __m256i c) {
  const __m256i low = _mm256_set1_epi8(15);
  s = _mm256_add_epi16(s, _mm256_maddubs_epi16(_mm256_and_si256(a, low), b));
  return _mm256_add_epi16(s, _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(a, 4), low), c));
}
W v16i v16i_q4_dot(v16i s, v16i a, v16i b, v16i c) { return (v16i){v16_q4_dot8(s.a, a.a, b.a, c.a), v16_q4_dot8(s.b, a.b, b.b, c.b)}; }
W v16i v16i_q4_end(v16i s, int32_t sum) {
  const __m256i ones = _mm256_set1_epi16(1), eight = _mm256_set1_epi32(8 * sum);
  return (v16i){_mm256_sub_epi32(_mm256_madd_epi16(s.a, ones), eight), _mm256_sub_epi32(_mm256_madd_epi16(s.b, ones), eight)};
}
W v16i v16i_shl23(v16i x) { return (v16i){_mm256_slli_epi32(x.a, 23), _mm256_slli_epi32(x.b, 23)}; }
W v16i v16i_shr23(v16i x) { return (v16i){_mm256_srai_epi32(x.a, 23), _mm256_srai_epi32(x.b, 23)}; }
W int v16_small(const int8_t *q) {
  const __m256i mid = _mm256_set1_epi8(-128);
  __m256i most = _mm256_setzero_si256();
  for (int i = 0; i < 256; i += 64) {
    __m256i lo = _mm256_sad_epu8(_mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(q + i)), mid), mid);    /* of eight, in 64 bits */
    __m256i hi = _mm256_sad_epu8(_mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(q + i + 32)), mid), mid);
    most = _mm256_max_epi32(most, _mm256_add_epi32(_mm256_unpacklo_epi64(lo, hi), _mm256_unpackhi_epi64(lo, hi)));
  }
  return !_mm256_movemask_epi8(_mm256_cmpgt_epi32(most, _mm256_set1_epi32(PE_SMALL_SUM)));
}
W int32_t v16i_hmax(v16i x) {
  __m256i e = _mm256_max_epi32(x.a, x.b);
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(e), _mm256_extracti128_si256(e, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
W int32_t v16i_sum(v16i x) {
  __m256i e = _mm256_add_epi32(x.a, x.b);
  __m128i q = _mm_add_epi32(_mm256_castsi256_si128(e), _mm256_extracti128_si256(e, 1));
  q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

#undef LANEWISE
#undef LANEWISE_I
#undef COMPARE
#undef W
#endif

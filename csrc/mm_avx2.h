/* mm_avx2.h: words that the AVX2 matrix products share: eight rows in eight lanes, which
 * rows those are, small transposes, half conversion, storing. Static inline only, no
 * kernels. Included by mm_*_avx2*.c, first thing inside their x86 guard: it switches
 * the rest of the file to AVX2, FMA and F16C, whatever the build flags say. */
#ifndef PE_MM_AVX2_H
#define PE_MM_AVX2_H

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#define PE_UNROLL _Pragma("clang loop unroll(full)")
#else
#pragma GCC target("avx2,fma,f16c")
#define PE_UNROLL _Pragma("GCC unroll 16")
#endif
/* A file that includes this ends with PE_AVX2_END. */
#if defined(__clang__)
#define PE_AVX2_END _Pragma("clang attribute pop")
#else
#define PE_AVX2_END
#endif

#include <immintrin.h>
#include <string.h>

#include "blocks.h"
#include "kernel.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- which eight rows ----------------------------------------------------------------
 * Lanes are outputs, so a group may take any eight rows. Rows a part's eighth apart make
 * every lane one long linear stream: eight streams read 1.3 to 1.5 times what one can,
 * where eight adjacent short rows restart the prefetcher at each row. A distance that is
 * a multiple of 4096 bytes would put all streams into one L1 set, so it is one row less
 * then, and the rows left over form adjacent groups. */

typedef struct pe_lanes {
  const uint8_t *p[8];     /* block 0 of the row in each lane */
  int64_t row, step;       /* lane i is row + i*step ... */
  int valid;               /* ... for i < valid; the other lanes repeat the last row and are not stored */
} pe_lanes;

INLINE pe_lanes pe_lanes_at(const pe_mm *a, int64_t row, int64_t step, int valid) {
  pe_lanes l = {.row = row, .step = step, .valid = valid};
  for (int i = 0; i < 8; i++) l.p[i] = a->w + (row + (i < valid ? i : valid - 1) * step) * a->w_stride;
  return l;
}

static __attribute__((noinline, unused)) void pe_far_rows(const pe_mm *a, void (*group)(const pe_mm *, const pe_lanes *)) {
  int64_t far = (a->r1 - a->r0) / 8;
  if (far > 2) {
    int64_t off = (far * a->w_stride + 128) & 4095;
    if (off <= 256) far--;
  }
  for (int64_t j = 0; j < far; j++) {
    pe_lanes l = pe_lanes_at(a, a->r0 + j, far, 8);
    group(a, &l);
  }
  for (int64_t r = a->r0 + 8 * far; r < a->r1; r += 8) {
    pe_lanes l = pe_lanes_at(a, r, 1, a->r1 - r < 8 ? (int)(a->r1 - r) : 8);
    group(a, &l);
  }
}

INLINE void pe_store8(float *y, const pe_lanes *l, __m256 v) {
  if (l->step == 1 && l->valid == 8) {
    _mm256_storeu_ps(y + l->row, v);
    return;
  }
  float f[8];
  _mm256_storeu_ps(f, v);
  for (int i = 0; i < l->valid; i++) y[l->row + i * l->step] = f[i];
}

/* One prefetch per lane. Addresses past the weights are harmless: a prefetch cannot fault. */
INLINE void pe_prefetch8(const pe_lanes *l, int64_t off) {
  PE_UNROLL
  for (int i = 0; i < 8; i++) _mm_prefetch((const char *)((uintptr_t)l->p[i] + (uintptr_t)off), _MM_HINT_T0);
}

/* ---- eight rows into eight lanes -------------------------------------------------------
 * In every transposed vector, dword lane i belongs to row i. */

INLINE __m256i pe_load_2x16(const uint8_t *lo, const uint8_t *hi) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)lo)),
                                 _mm_loadu_si128((const __m128i *)hi), 1);
}

INLINE void pe_transpose4(__m256i v[4], __m256i r04, __m256i r15, __m256i r26, __m256i r37) {
  __m256i t0 = _mm256_unpacklo_epi32(r04, r15), t1 = _mm256_unpackhi_epi32(r04, r15);
  __m256i t2 = _mm256_unpacklo_epi32(r26, r37), t3 = _mm256_unpackhi_epi32(r26, r37);
  v[0] = _mm256_unpacklo_epi64(t0, t2);
  v[1] = _mm256_unpackhi_epi64(t0, t2);
  v[2] = _mm256_unpacklo_epi64(t1, t3);
  v[3] = _mm256_unpackhi_epi64(t1, t3);
}

/* 16 bytes at off of each row: v[c] holds bytes 4c..4c+3. */
INLINE void pe_transpose16(__m256i v[4], const pe_lanes *l, int64_t off) {
  pe_transpose4(v, pe_load_2x16(l->p[0] + off, l->p[4] + off), pe_load_2x16(l->p[1] + off, l->p[5] + off),
                pe_load_2x16(l->p[2] + off, l->p[6] + off), pe_load_2x16(l->p[3] + off, l->p[7] + off));
}

/* The first 8 of 16 readable bytes at off. */
INLINE void pe_transpose8(__m256i v[2], const pe_lanes *l, int64_t off) {
  __m256i t0 = _mm256_unpacklo_epi32(pe_load_2x16(l->p[0] + off, l->p[4] + off),
                                     pe_load_2x16(l->p[1] + off, l->p[5] + off));
  __m256i t2 = _mm256_unpacklo_epi32(pe_load_2x16(l->p[2] + off, l->p[6] + off),
                                     pe_load_2x16(l->p[3] + off, l->p[7] + off));
  v[0] = _mm256_unpacklo_epi64(t0, t2);
  v[1] = _mm256_unpackhi_epi64(t0, t2);
}

INLINE int pe_load_u16(const uint8_t *p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return h;
}

INLINE int32_t pe_load_i32(const void *p) {
  int32_t v;
  memcpy(&v, p, 4);
  return v;
}

/* The half at off of each row. */
INLINE __m256 pe_half8(const pe_lanes *l, int64_t off) {
  __m128i h = _mm_cvtsi32_si128(pe_load_u16(l->p[0] + off));
  h = _mm_insert_epi16(h, pe_load_u16(l->p[1] + off), 1);
  h = _mm_insert_epi16(h, pe_load_u16(l->p[2] + off), 2);
  h = _mm_insert_epi16(h, pe_load_u16(l->p[3] + off), 3);
  h = _mm_insert_epi16(h, pe_load_u16(l->p[4] + off), 4);
  h = _mm_insert_epi16(h, pe_load_u16(l->p[5] + off), 5);
  h = _mm_insert_epi16(h, pe_load_u16(l->p[6] + off), 6);
  h = _mm_insert_epi16(h, pe_load_u16(l->p[7] + off), 7);
  return _mm256_cvtph_ps(h);
}

/* Dwords holding two halves each: low ones to *lo, high ones to *hi. */
INLINE void pe_half_pairs(__m256i v, __m256 *lo, __m256 *hi) {
  __m256i p = _mm256_packus_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_srli_epi32(v, 16));
  p = _mm256_permute4x64_epi64(p, 0xd8);
  *lo = _mm256_cvtph_ps(_mm256_castsi256_si128(p));
  *hi = _mm256_cvtph_ps(_mm256_extracti128_si256(p, 1));
}

/* The two halves at off of each row. */
INLINE void pe_half8x2(const pe_lanes *l, int64_t off, __m256 *first, __m256 *second) {
  __m128i a = _mm_cvtsi32_si128(pe_load_i32(l->p[0] + off));
  __m128i b = _mm_cvtsi32_si128(pe_load_i32(l->p[4] + off));
  a = _mm_insert_epi32(a, pe_load_i32(l->p[1] + off), 1);
  b = _mm_insert_epi32(b, pe_load_i32(l->p[5] + off), 1);
  a = _mm_insert_epi32(a, pe_load_i32(l->p[2] + off), 2);
  b = _mm_insert_epi32(b, pe_load_i32(l->p[6] + off), 2);
  a = _mm_insert_epi32(a, pe_load_i32(l->p[3] + off), 3);
  b = _mm_insert_epi32(b, pe_load_i32(l->p[7] + off), 3);
  pe_half_pairs(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1), first, second);
}

/* Compilers see integer vector adds as associative: GCC 12 issues all products of an
 * unrolled block first, spills them, and adds them up afterwards. A pinned sum is added
 * to where the code says so. No instruction. */
INLINE void pe_pin(__m256i *v) { __asm__("" : "+x"(*v)); }

/* Keeps float sums that live in memory there, for the same reason: eight of them carried
 * through the inner loop would take the registers of the integer sums, which are used
 * eight times as often. */
INLINE void pe_keep_in_memory(void) { __asm__ volatile("" ::: "memory"); }

/* ---- small things ------------------------------------------------------------------- */

INLINE __m256i pe_bcast32(const void *p) { return _mm256_set1_epi32(pe_load_i32(p)); }

INLINE __m256i pe_madd1(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

/* Low and high nibbles of bytes. */
INLINE __m256i pe_nib_lo(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
INLINE __m256i pe_nib_hi(__m256i v) { return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(15)); }

#endif

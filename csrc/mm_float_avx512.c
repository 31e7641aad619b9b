/* mm_float_avx512.c: matrix products with float weights (F32, F16, BF16) on AVX-512. The
 * bits are mm_scalar.c's, so no vdpbf16ps, which adds in pairs and flushes subnormals.
 * Reached through pe_rows_float_avx512 only.
 *
 * The sixteen lanes of a sum are one register. A tile of 4 rows x 6 tokens has 24 sums and
 * ten loads for 24 fma, so the two fma ports set the pace. One and few tokens read the
 * weights where they lie; many tokens convert 16 rows x 512 columns into L1 and keep the
 * lanes of each sum in scratch between the chunks of columns. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_avx512.h"

#define BYTES(T) ((T) == PE_F32 ? 4 : 2)

INLINE __m512 from_bf16(__m256i h) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)); }

INLINE __m512 load16(int T, const uint8_t *w) {
  if (T == PE_F32) return _mm512_loadu_ps(w);
  __m256i h = _mm256_loadu_si256((const __m256i *)w);
  return T == PE_F16 ? _mm512_cvtph_ps(h) : from_bf16(h);
}

/* The lanes of m, else +0; bytes of the others are not touched. */
INLINE __m512 load_first(int T, const uint8_t *w, __mmask16 m) {
  if (T == PE_F32) return _mm512_maskz_loadu_ps(m, w);
  __m256i h = _mm256_maskz_loadu_epi16(m, w);
  return T == PE_F16 ? _mm512_cvtph_ps(h) : from_bf16(h);
}

INLINE __mmask16 first_lanes(int64_t n) { return (__mmask16)((1u << n) - 1); }

/* The tree: i + (i+8), i + (i+4), i + (i+2), 0 + 1. */
INLINE float sum16(__m512 s) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* s += w[r] * x[t] over n elements. x is exactly as long as n says: what follows is not read.
 * Fetched ahead: `prefetch` bytes in each weight row, and n floats from next_x on, unless 0. */
INLINE void dots(int T, int NR, int NT, __m512 s[8][6], const uint8_t *const w[8], const uint8_t *x, int64_t x_stride,
                 int64_t n, int prefetch, uintptr_t next_x) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    __m512 f[8];
    PE_UNROLL
    for (int r = 0; r < NR; r++) {
      if (prefetch) _mm_prefetch((const char *)((uintptr_t)w[r] + (uintptr_t)(i * BYTES(T) + prefetch)), _MM_HINT_T0);
      f[r] = load16(T, w[r] + i * BYTES(T));
    }
    if (next_x) _mm_prefetch((const char *)(next_x + (uintptr_t)(4 * i)), _MM_HINT_T0);
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      __m512 v = _mm512_loadu_ps((const float *)(x + t * x_stride) + i);
      PE_UNROLL
      for (int r = 0; r < NR; r++) s[r][t] = _mm512_fmadd_ps(f[r], v, s[r][t]);
    }
  }
  if (i == n) return;
  __mmask16 m = first_lanes(n - i);  /* the other lanes take fma(+0, +0, s), as in mm_scalar.c */
  PE_UNROLL
  for (int t = 0; t < NT; t++) {
    __m512 v = _mm512_maskz_loadu_ps(m, (const float *)(x + t * x_stride) + i);
    PE_UNROLL
    for (int r = 0; r < NR; r++) s[r][t] = _mm512_fmadd_ps(load_first(T, w[r] + i * BYTES(T), m), v, s[r][t]);
  }
}

/* ---- one and few tokens ----------------------------------------------------------------- */

/* Up to here each part of six reads the weights again from L2, at no loss while a core waits for
 * memory; a panel pays from 32 tokens on (F16, k 2048, 12 tokens: 57 against 39 GMAC/s; 48: 59 against 64). */
enum { FEW = 24 };

/* The rows of a group, NR at a time; NT tokens from t0. */
INLINE void direct(int T, int NR, int NT, const pe_mm *a, const pe_lanes *l, int64_t t0) {
  for (int i = 0; i < l->valid; i += NR) {
    const uint8_t *w[8];
    __m512 s[8][6];
    PE_UNROLL
    for (int r = 0; r < NR; r++) {
      w[r] = l->p[i + r];
      PE_UNROLL
      for (int t = 0; t < NT; t++) s[r][t] = _mm512_setzero_ps();
    }
    dots(T, NR, NT, s, w, a->x + t0 * a->x_stride, a->x_stride, a->k, 768, 0);
    PE_UNROLL
    for (int r = 0; r < NR; r++)
      PE_UNROLL
      for (int t = 0; t < NT; t++)
        if (i + r < l->valid) a->y[(t0 + t) * a->y_stride + l->row + (i + r) * l->step] = sum16(s[r][t]);
  }
}

/* Equal parts of at most six tokens. */
INLINE void few_group(int T, const pe_mm *a, const pe_lanes *l) {
  for (int64_t t = 0, parts = (a->n + 5) / 6, n; t < a->n; t += n, parts--) {
    n = (a->n - t + parts - 1) / parts;
    switch (n) {
      case 6: direct(T, 4, 6, a, l, t); break;
      case 5: direct(T, 4, 5, a, l, t); break;
      case 4: direct(T, 4, 4, a, l, t); break;
      case 3: direct(T, 4, 3, a, l, t); break;
      case 2: direct(T, 4, 2, a, l, t); break;
    }
  }
}

/* ---- many tokens ------------------------------------------------------------------------ */

enum {
  ROWS = 16,
  CHUNK = 512,             /* columns: 32 KB of floats */
  TOKENS = 96,             /* per pass: 1 KB of unfinished sums each; with 192, activations of 2048 columns leave L2 */
};

typedef struct panel {
  float w[ROWS][CHUNK];
} panel;
typedef struct sums {      /* the sixteen lanes of (token, row) */
  __m512 s[TOKENS][ROWS];
} sums;
_Static_assert(sizeof(panel) + sizeof(sums) <= PE_SCRATCH, "panel and sums fit the scratch");

/* All rows of the panel, four at a time, times NT tokens from t. Each four rows fetch one of
 * the next tokens into L1; the hardware adds the other two (512 tokens, F32 58 to 61, F16 60 to 62 GMAC/s). */
INLINE void tiles(int NT, const panel *p, sums *u, int rows, int64_t t, int64_t n, const uint8_t *x, int64_t x_stride,
                  int first) {
  for (int row = 0; row < rows; row += 4) {
    const uint8_t *w[8];
    __m512 s[8][6];
    PE_UNROLL
    for (int r = 0; r < 4; r++) {
      w[r] = (const uint8_t *)p->w[row + r];
      PE_UNROLL
      for (int i = 0; i < NT; i++) s[r][i] = first ? _mm512_setzero_ps() : u->s[t + i][row + r];
    }
    uintptr_t next_x = (uintptr_t)x + (uintptr_t)((t + NT + row / 4) * x_stride);
    dots(PE_F32, 4, NT, s, w, x + t * x_stride, x_stride, n, 0, next_x);
    PE_UNROLL
    for (int r = 0; r < 4; r++)
      PE_UNROLL
      for (int i = 0; i < NT; i++) u->s[t + i][row + r] = s[r][i];
  }
}

static __attribute__((noinline)) void panel_times_tokens(const panel *p, sums *u, int rows, int64_t n_tokens, int64_t n,
                                                         const uint8_t *x, int64_t x_stride, int first) {
  int64_t t = 0;
  for (; t + 6 <= n_tokens; t += 6) tiles(6, p, u, rows, t, n, x, x_stride, first);
  switch (n_tokens - t) {
    case 5: tiles(5, p, u, rows, t, n, x, x_stride, first); break;
    case 4: tiles(4, p, u, rows, t, n, x, x_stride, first); break;
    case 3: tiles(3, p, u, rows, t, n, x, x_stride, first); break;
    case 2: tiles(2, p, u, rows, t, n, x, x_stride, first); break;
    case 1: tiles(1, p, u, rows, t, n, x, x_stride, first); break;
  }
}

/* Columns c .. c+n of rows r0 .. r0+rows; up to a multiple of four, the last row is repeated. */
INLINE void fill(int T, panel *p, const pe_mm *a, int64_t r0, int rows, int64_t c, int64_t n) {
  for (int r = 0; r < (rows + 3) / 4 * 4; r++) {
    const uint8_t *w = a->w + (r0 + (r < rows ? r : rows - 1)) * a->w_stride + c * BYTES(T);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_store_ps(p->w[r] + i, load16(T, w + i * BYTES(T)));
    if (i < n) _mm512_store_ps(p->w[r] + i, load_first(T, w + i * BYTES(T), first_lanes(n - i)));
  }
}

/* The tree of sum16 for the sixteen rows of a token at once: each step adds one half of
 * two sums to the other, so that 16, 8, 4, 2 registers become one with a sum per lane. */
INLINE __m512 sums16(const __m512 s[ROWS]) {
  __m512 a[8], b[4], c[2];
  PE_UNROLL
  for (int i = 0; i < 8; i++)  /* rows i | i+8 */
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(s[i], s[i + 8], 0x44), _mm512_shuffle_f32x4(s[i], s[i + 8], 0xee));
  PE_UNROLL
  for (int i = 0; i < 4; i++)  /* quarters: rows i, i+8, i+4, i+12 */
    b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
  PE_UNROLL
  for (int i = 0; i < 2; i++)  /* pairs within a quarter: rows +0, +2 */
    c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[i], b[i + 2], 0x44), _mm512_shuffle_ps(b[i], b[i + 2], 0xee));
  /* lanes within a quarter: rows +0, +2, +1, +3 */
  __m512 d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), d);
}

INLINE void many(int T, const pe_mm *a) {
  panel *p = a->scratch;
  sums *u = (sums *)(p + 1);
  for (int64_t t0 = 0; t0 < a->n; t0 += TOKENS) {
    int64_t n_tokens = a->n - t0 < TOKENS ? a->n - t0 : TOKENS;
    for (int64_t r0 = a->r0; r0 < a->r1; r0 += ROWS) {
      int rows = a->r1 - r0 < ROWS ? (int)(a->r1 - r0) : ROWS;
      for (int64_t c = 0; c < a->k; c += CHUNK) {
        int64_t n = a->k - c < CHUNK ? a->k - c : CHUNK;
        fill(T, p, a, r0, rows, c, n);
        panel_times_tokens(p, u, rows, n_tokens, n, a->x + t0 * a->x_stride + 4 * c, a->x_stride, c == 0);
      }
      for (int64_t t = 0; t < n_tokens; t++)  /* sums of rows there are not are whatever scratch holds, and not stored */
        _mm512_mask_storeu_ps(a->y + (t0 + t) * a->y_stride + r0, first_lanes(rows), sums16(u->s[t]));
    }
  }
}

/* ---- the table -------------------------------------------------------------------------- */

#define GROUP static __attribute__((noinline)) void
#define TYPE(T, name)                                                                       \
  GROUP one_##name##_group(const pe_mm *a, const pe_lanes *l) { direct(T, 4, 1, a, l, 0); } \
  GROUP few_##name##_group(const pe_mm *a, const pe_lanes *l) { few_group(T, a, l); }       \
  static void mm_##name##_one(const pe_mm *a) { pe_far_rows(a, one_##name##_group); }       \
  static void mm_##name##_few(const pe_mm *a) { pe_far_rows(a, few_##name##_group); }       \
  static void mm_##name##_many(const pe_mm *a) { many(T, a); }

TYPE(PE_F32, f32)
TYPE(PE_F16, f16)
TYPE(PE_BF16, bf16)

#define ROWS_OF(type, name)                                                         \
  {"mm_" #name "_avx512_one", type, PE_ACT_F32, TIER_ISA, 1, 1, mm_##name##_one},   \
  {"mm_" #name "_avx512_few", type, PE_ACT_F32, TIER_ISA, 2, FEW, mm_##name##_few},   \
  {"mm_" #name "_avx512_many", type, PE_ACT_F32, TIER_ISA, FEW + 1, INT32_MAX, mm_##name##_many}

const pe_row pe_rows_float_avx512[] = {
    ROWS_OF(PE_F32, f32), ROWS_OF(PE_F16, f16), ROWS_OF(PE_BF16, bf16), {0},
};

PE_TARGET_END
#endif

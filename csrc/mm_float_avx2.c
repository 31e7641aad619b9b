/* mm_float_avx2.c: matrix products with float weights (F32, F16, BF16) on AVX2, FMA and
 * F16C. The bits are mm_scalar.c's. Reached through pe_rows_float_avx2 only.
 *
 * Here the lanes run inside a sum: sixteen of them are two registers, added up by the
 * fixed tree at the end. So a tile is rows x tokens x two accumulators, twelve of the
 * sixteen registers. One and few tokens read the weights where they lie; many tokens
 * convert 16 rows x 256 columns into L1 and keep the sixteen lanes of each sum between. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_avx2.h"

#define BYTES(T) ((T) == PE_F32 ? 4 : 2)

INLINE __m256 load8(int T, const uint8_t *w) {
  if (T == PE_F32) return _mm256_loadu_ps((const float *)w);
  __m128i h = _mm_loadu_si128((const __m128i *)w);
  if (T == PE_F16) return _mm256_cvtph_ps(h);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* The last n < 16 weights, then zeros: a padded lane is fma(+0, +0, s), as in mm_scalar.c. */
INLINE void load_tail(int T, __m256 f[2], const uint8_t *w, int64_t n) {
  uint8_t b[64] = {0};
  memcpy(b, w, (size_t)(n * BYTES(T)));
  f[0] = load8(T, b);
  f[1] = load8(T, b + 8 * BYTES(T));
}

INLINE __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The tree: i + (i+8), i + (i+4), i + (i+2), 0 + 1. */
INLINE float sum16(const __m256 s[2]) {
  __m256 a = _mm256_add_ps(s[0], s[1]);
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* s += w[r] * x[t] over n elements. x is exactly as long as n says: what follows is not read. */
INLINE void dots(int T, int NR, int NT, __m256 s[4][3][2], const uint8_t *const w[4], const uint8_t *x, int64_t x_stride,
                 int64_t n, int prefetch, int tail) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    PE_UNROLL
    for (int r = 0; r < NR; r++)
      if (prefetch) _mm_prefetch((const char *)((uintptr_t)w[r] + (uintptr_t)(i * BYTES(T) + prefetch)), _MM_HINT_T0);
    PE_UNROLL
    for (int j = 0; j < 2; j++) {
      __m256 f[4];
      PE_UNROLL
      for (int r = 0; r < NR; r++) f[r] = load8(T, w[r] + (i + 8 * j) * BYTES(T));
      PE_UNROLL
      for (int t = 0; t < NT; t++) {
        __m256 v = _mm256_loadu_ps((const float *)(x + t * x_stride) + i + 8 * j);
        __asm__("" : "+x"(v));  /* loaded once, not once per row: 15 registers in use */
        PE_UNROLL
        for (int r = 0; r < NR; r++) s[r][t][j] = _mm256_fmadd_ps(f[r], v, s[r][t][j]);
      }
    }
  }
  if (!tail || i == n) return;
  __m256i mask[2] = {first_lanes(n - i), first_lanes(n - i - 8)};
  for (int r = 0; r < NR; r++) {
    __m256 f[2];
    load_tail(T, f, w[r] + i * BYTES(T), n - i);
    for (int t = 0; t < NT; t++)
      for (int j = 0; j < 2; j++) {
        __m256 v = _mm256_maskload_ps((const float *)(x + t * x_stride) + i + 8 * j, mask[j]);
        s[r][t][j] = _mm256_fmadd_ps(f[j], v, s[r][t][j]);
      }
  }
}

/* ---- one and few tokens ----------------------------------------------------------------- */

enum { FEW = 12 };         /* then 26 to 31 GMAC/s against 22 to 27 of a panel; at 32 a panel is ahead */

/* Eight rows of a group, NR at a time; NT tokens from t0. */
INLINE void direct(int T, int NR, int NT, const pe_mm *a, const pe_lanes *l, int64_t t0) {
  for (int i = 0; i < l->valid; i += NR) {
    const uint8_t *w[4];
    __m256 s[4][3][2];
    PE_UNROLL
    for (int r = 0; r < NR; r++) {
      w[r] = l->p[i + r];
      PE_UNROLL
      for (int t = 0; t < NT; t++) s[r][t][0] = s[r][t][1] = _mm256_setzero_ps();
    }
    dots(T, NR, NT, s, w, a->x + t0 * a->x_stride, a->x_stride, a->k, 768, 1);
    PE_UNROLL
    for (int r = 0; r < NR; r++)
      PE_UNROLL
      for (int t = 0; t < NT; t++)
        if (i + r < l->valid) a->y[(t0 + t) * a->y_stride + l->row + (i + r) * l->step] = sum16(s[r][t]);
  }
}

INLINE void few_group(int T, const pe_mm *a, const pe_lanes *l) {
  int64_t t = 0;
  if (a->n % 3 == 1)  /* 4 = 2+2, 7 = 2+2+3: no token is left alone */
    for (; t < 4; t += 2) direct(T, 2, 2, a, l, t);
  for (; t + 3 <= a->n; t += 3) direct(T, 2, 3, a, l, t);
  if (a->n - t == 2) direct(T, 2, 2, a, l, t);
}

/* ---- many tokens ------------------------------------------------------------------------ */

enum {
  ROWS = 16,
  CHUNK = 256,             /* columns: 16 KB of floats */
  TOKENS = 192,            /* per pass: 1 KB of unfinished sums each */
};

typedef struct sums {      /* the sixteen lanes of (token, row) */
  __m256 s[TOKENS][ROWS][2];
} sums;
typedef struct panel {
  float w[ROWS][CHUNK];
} panel;
_Static_assert(sizeof(panel) + sizeof(sums) <= PE_SCRATCH, "panel and sums fit the scratch");

INLINE void tile(int NT, const panel *p, sums *u, int row, int64_t t, int64_t n, const uint8_t *x, int64_t x_stride, int first,
                 int tail) {
  const uint8_t *w[4] = {(const uint8_t *)p->w[row], (const uint8_t *)p->w[row + 1]};
  __m256 s[4][3][2];
  PE_UNROLL
  for (int i = 0; i < NT; i++)
    PE_UNROLL
    for (int r = 0; r < 2; r++) {
      s[r][i][0] = first ? _mm256_setzero_ps() : u->s[t + i][row + r][0];
      s[r][i][1] = first ? _mm256_setzero_ps() : u->s[t + i][row + r][1];
    }
  dots(PE_F32, 2, NT, s, w, x, x_stride, n, 0, tail);
  PE_UNROLL
  for (int i = 0; i < NT; i++)
    PE_UNROLL
    for (int r = 0; r < 2; r++) {
      u->s[t + i][row + r][0] = s[r][i][0];
      u->s[t + i][row + r][1] = s[r][i][1];
    }
}

INLINE void panel_times_tokens(const panel *p, sums *u, int rows, int64_t n_tokens, int64_t n, const uint8_t *x,
                               int64_t x_stride, int first, int tail) {
  int64_t t = 0;
  for (; t + 3 <= n_tokens; t += 3)
    for (int r = 0; r < rows; r += 2) tile(3, p, u, r, t, n, x + t * x_stride, x_stride, first, tail);
  for (; t < n_tokens; t++)
    for (int r = 0; r < rows; r += 2) tile(1, p, u, r, t, n, x + t * x_stride, x_stride, first, tail);
}

/* Whole steps only: in one function with the tail, gcc keeps a second copy of the sums in
 * memory for it, and stores both after every chunk (F32, k 640, 512 tokens: 33 against 39 GMAC/s). */
static __attribute__((noinline)) void panel_whole(const panel *p, sums *u, int rows, int64_t n_tokens, int64_t n,
                                                  const uint8_t *x, int64_t x_stride, int first) {
  panel_times_tokens(p, u, rows, n_tokens, n, x, x_stride, first, 0);
}

static __attribute__((noinline)) void panel_tail(const panel *p, sums *u, int rows, int64_t n_tokens, int64_t n,
                                                 const uint8_t *x, int64_t x_stride, int first) {
  panel_times_tokens(p, u, rows, n_tokens, n, x, x_stride, first, 1);
}

/* Row r of the panel; an odd row count repeats the last row, because tiles take pairs. */
INLINE void fill(int T, float *f, const uint8_t *w, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_store_ps(f + i, load8(T, w + i * BYTES(T)));
  if (i == n) return;
  __m256 tail[2];
  load_tail(T, tail, w + i * BYTES(T), n - i);
  _mm256_store_ps(f + i, tail[0]);
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
        for (int r = 0; r < (rows + 1) / 2 * 2; r++)
          fill(T, p->w[r], a->w + (r0 + (r < rows ? r : rows - 1)) * a->w_stride + c * BYTES(T), n);
        const uint8_t *x = a->x + t0 * a->x_stride + 4 * c;
        (n % 16 ? panel_tail : panel_whole)(p, u, rows, n_tokens, n, x, a->x_stride, c == 0);
      }
      for (int64_t t = 0; t < n_tokens; t++)
        for (int r = 0; r < rows; r++) a->y[(t0 + t) * a->y_stride + r0 + r] = sum16(u->s[t][r]);
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

#define ROWS_OF(type, name)                                                             \
  {"mm_" #name "_avx2_one", type, PE_ACT_F32, PE_ISA_AVX2, 1, 1, mm_##name##_one},      \
  {"mm_" #name "_avx2_few", type, PE_ACT_F32, PE_ISA_AVX2, 2, FEW, mm_##name##_few},      \
  {"mm_" #name "_avx2_many", type, PE_ACT_F32, PE_ISA_AVX2, FEW + 1, INT32_MAX, mm_##name##_many}

const pe_row pe_rows_float_avx2[] = {
    ROWS_OF(PE_F32, f32), ROWS_OF(PE_F16, f16), ROWS_OF(PE_BF16, bf16), {0},
};

PE_TARGET_END
#endif

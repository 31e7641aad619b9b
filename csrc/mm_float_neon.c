/* mm_float_neon.c: matrix products with float weights (F32, F16, BF16) on NEON, all that any
 * aarch64 needs for them. The bits are mm_scalar.c's, so no half precision arithmetic and no
 * bfdot, which adds in pairs. Reached through pe_rows_float_neon only.
 *
 * The sixteen lanes of a sum are four registers, added up by the fixed tree at the end. One and
 * few tokens read the weights where they lie: four rows by one token, or two by three, 16 and 24
 * sums in 32 registers. Many tokens convert 16 rows x 256 columns into L1, cut into the quarters
 * of a sum: the lanes never meet before the tree, so a tile makes one quarter of 4 rows x 6
 * tokens, 24 fma for ten loads where whole sums get six for five. */
#if defined(__aarch64__)
#include "mm_neon.h"

#define BYTES(T) ((T) == PE_F32 ? 4 : 2)

/* Eight weights. */
INLINE void load8(int T, float32x4_t f[2], const uint8_t *w) {
  if (T == PE_F32) {
    f[0] = vreinterpretq_f32_u8(vld1q_u8(w));
    f[1] = vreinterpretq_f32_u8(vld1q_u8(w + 16));
    return;
  }
  uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(w)), zero = vdupq_n_u16(0);
  if (T == PE_F16) {
    f[0] = vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h)));
    f[1] = vcvt_high_f32_f16(vreinterpretq_f16_u16(h));
  } else {  /* bf16 is the upper half of a float */
    f[0] = vreinterpretq_f32_u16(vzip1q_u16(zero, h));
    f[1] = vreinterpretq_f32_u16(vzip2q_u16(zero, h));
  }
}

/* The trees of four sums: i + (i+8), i + (i+4), i + (i+2), 0 + 1; one sum per lane. */
INLINE float32x4_t sums4(const float32x4_t s0[4], const float32x4_t s1[4], const float32x4_t s2[4], const float32x4_t s3[4]) {
  const float32x4_t *const s[4] = {s0, s1, s2, s3};
  float64x2_t q[4];
  PE_UNROLL
  for (int r = 0; r < 4; r++)
    q[r] = vreinterpretq_f64_f32(vaddq_f32(vaddq_f32(s[r][0], s[r][2]), vaddq_f32(s[r][1], s[r][3])));
  float32x4_t a = vaddq_f32(vreinterpretq_f32_f64(vtrn1q_f64(q[0], q[1])), vreinterpretq_f32_f64(vtrn2q_f64(q[0], q[1])));
  float32x4_t b = vaddq_f32(vreinterpretq_f32_f64(vtrn1q_f64(q[2], q[3])), vreinterpretq_f32_f64(vtrn2q_f64(q[2], q[3])));
  return vpaddq_f32(a, b);
}

/* ---- one and few tokens ----------------------------------------------------------------- */

enum { FEW = 12 };         /* a panel costs what about two more tokens do, and gives a third more per token */

/* s += w[r] * x[t] over one step of sixteen. */
INLINE void step16(int T, int NR, int NT, float32x4_t s[4][3][4], const uint8_t *const w[4], const float *const x[3]) {
  PE_UNROLL
  for (int j = 0; j < 2; j++) {
    float32x4_t f[4][2];
    PE_UNROLL
    for (int r = 0; r < NR; r++) load8(T, f[r], w[r] + 8 * j * BYTES(T));
    PE_UNROLL
    for (int i = 0; i < 2; i++)
      PE_UNROLL
      for (int t = 0; t < NT; t++) {
        float32x4_t v = vld1q_f32(x[t] + 8 * j + 4 * i);
        PE_UNROLL
        for (int r = 0; r < NR; r++) s[r][t][2 * j + i] = vfmaq_f32(s[r][t][2 * j + i], f[r][i], v);
      }
  }
}

/* The four rows of a group, NR at a time; NT tokens from t0. The first tokens fetch ahead. */
INLINE void direct(int T, int NR, int NT, const pe_mm *a, const pe_rows4 *l, int64_t t0) {
  float y[3][4];
  for (int r0 = 0; r0 < 4; r0 += NR) {
    const uint8_t *w[4];
    const float *x[3];
    float32x4_t s[4][3][4];
    PE_UNROLL
    for (int t = 0; t < NT; t++) x[t] = (const float *)(a->x + (t0 + t) * a->x_stride);
    PE_UNROLL
    for (int r = 0; r < NR; r++) {
      w[r] = l->p[r0 + r];
      PE_UNROLL
      for (int t = 0; t < NT; t++)
        PE_UNROLL
        for (int j = 0; j < 4; j++) s[r][t][j] = vdupq_n_f32(0.0f);
    }
    int64_t i = 0;
    for (; i + 16 <= a->k; i += 16) {
      if (t0 == 0 && r0 == 0) pe_prefetch4(l, i * BYTES(T), 16 * BYTES(T));
      step16(T, NR, NT, s, w, x);
      PE_UNROLL
      for (int r = 0; r < NR; r++) w[r] += 16 * BYTES(T);
      PE_UNROLL
      for (int t = 0; t < NT; t++) x[t] += 16;
    }
    if (i < a->k) {  /* then +0: a padded lane is fma(+0, +0, s), as in mm_scalar.c */
      uint8_t wt[4][64] = {{0}};
      float xt[3][16] = {{0}};
      for (int r = 0; r < NR; r++) memcpy(wt[r], w[r], (size_t)(a->k - i) * BYTES(T));
      for (int t = 0; t < NT; t++) memcpy(xt[t], x[t], (size_t)(a->k - i) * 4);
      const uint8_t *const we[4] = {wt[0], wt[1], wt[2], wt[3]};
      const float *const xe[3] = {xt[0], xt[1], xt[2]};
      step16(T, NR, NT, s, we, xe);
    }
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      float32x4_t v = sums4(s[0][t], s[1][t], s[NR - 2][t], s[NR - 1][t]);
      if (NR == 4)
        vst1q_f32(y[t], v);
      else
        vst1_f32(y[t] + r0, vget_low_f32(v));
    }
  }
  for (int t = 0; t < NT; t++) pe_store4(a->y + (t0 + t) * a->y_stride, l, vld1q_f32(y[t]));
}

INLINE void few_group(int T, const pe_mm *a, const pe_rows4 *l) {
  int64_t t = 0;
  if (a->n % 3 == 1)  /* 4 = 2+2, 7 = 2+2+3: no token is left alone */
    for (; t < 4; t += 2) direct(T, 2, 2, a, l, t);
  for (; t + 3 <= a->n; t += 3) direct(T, 2, 3, a, l, t);
  if (a->n - t == 2) direct(T, 2, 2, a, l, t);
}

/* ---- many tokens ------------------------------------------------------------------------ */

enum {
  ROWS = 16,
  STEPS = 16,              /* of sixteen columns: with the rows, 16 KB of floats */
  TOKENS = 96,             /* per pass: 1 KB of unfinished sums each */
};

typedef struct panel {     /* column 16*i + 4*q + lane is w[q][row][i] */
  float32x4_t w[4][ROWS][STEPS];
} panel;
typedef struct sums {      /* the quarters of (token, row) */
  float32x4_t s[TOKENS][ROWS][4];
} sums;
_Static_assert(sizeof(panel) + sizeof(sums) <= PE_SCRATCH, "panel and sums fit the scratch");

/* All rows of the panel, four at a time, steps i0 .. i1 of it, times NT tokens from t. */
INLINE void tiles(int NT, const panel *p, int i0, int i1, sums *u, int rows, int64_t t, const uint8_t *x, int64_t x_stride,
                  int first) {
  for (int row = 0; row < rows; row += 4)
    for (int q = 0; q < 4; q++) {
      float32x4_t s[4][6];
      const float *v[6];
      PE_UNROLL
      for (int j = 0; j < NT; j++) {
        v[j] = (const float *)(x + j * x_stride) + 4 * q;
        PE_UNROLL
        for (int r = 0; r < 4; r++) s[r][j] = first ? vdupq_n_f32(0.0f) : u->s[t + j][row + r][q];
      }
      for (int i = i0; i < i1; i++) {
        float32x4_t f[4];
        PE_UNROLL
        for (int r = 0; r < 4; r++) f[r] = p->w[q][row + r][i];
        PE_UNROLL
        for (int j = 0; j < NT; j++) {
          float32x4_t a = vld1q_f32(v[j]);
          v[j] += 16;
          PE_UNROLL
          for (int r = 0; r < 4; r++) s[r][j] = vfmaq_f32(s[r][j], f[r], a);
        }
      }
      PE_UNROLL
      for (int j = 0; j < NT; j++)
        PE_UNROLL
        for (int r = 0; r < 4; r++) u->s[t + j][row + r][q] = s[r][j];
    }
}

/* n columns times NT tokens; x is exactly as long as n says, so the last columns go through a copy. */
INLINE void columns(int NT, const panel *p, sums *u, int rows, int64_t t, int64_t n, const uint8_t *x, int64_t x_stride, int first) {
  int whole = (int)(n / 16), left = (int)(n % 16);
  if (whole) tiles(NT, p, 0, whole, u, rows, t, x, x_stride, first);
  if (left == 0) return;
  float end[6][16] = {{0}};
  for (int j = 0; j < NT; j++) memcpy(end[j], x + j * x_stride + 64 * whole, (size_t)left * 4);
  tiles(NT, p, whole, whole + 1, u, rows, t, (const uint8_t *)end, sizeof end[0], first && whole == 0);
}

static __attribute__((noinline)) void panel_times_tokens(const panel *p, sums *u, int rows, int64_t n_tokens, int64_t n,
                                                         const uint8_t *x, int64_t x_stride, int first) {
  int64_t t = 0;
  for (; t + 6 <= n_tokens; t += 6) columns(6, p, u, rows, t, n, x + t * x_stride, x_stride, first);
  for (; t + 2 <= n_tokens; t += 2) columns(2, p, u, rows, t, n, x + t * x_stride, x_stride, first);
  if (t < n_tokens) columns(1, p, u, rows, t, n, x + t * x_stride, x_stride, first);
}

/* Columns c .. c+n of rows r0 .. r0+rows, padded with zeros; up to a multiple of four, the last row is repeated. */
INLINE void fill(int T, panel *p, const pe_mm *a, int64_t r0, int rows, int64_t c, int64_t n) {
  for (int r = 0; r < (rows + 3) / 4 * 4; r++) {
    const uint8_t *w = a->w + (r0 + (r < rows ? r : rows - 1)) * a->w_stride + c * BYTES(T);
    for (int64_t i = 0; i < n; i += 16, w += 16 * BYTES(T)) {
      uint8_t end[64] = {0};
      int whole = i + 16 <= n;
      if (whole)
        __builtin_prefetch((const void *)((uintptr_t)w + PE_AHEAD));
      else
        memcpy(end, w, (size_t)(n - i) * BYTES(T));
      PE_UNROLL
      for (int j = 0; j < 2; j++) {
        float32x4_t f[2];
        load8(T, f, (whole ? w : end) + 8 * j * BYTES(T));
        p->w[2 * j][r][i / 16] = f[0];
        p->w[2 * j + 1][r][i / 16] = f[1];
      }
    }
  }
}

INLINE void many(int T, const pe_mm *a) {
  panel *p = a->scratch;
  sums *u = (sums *)(p + 1);
  for (int64_t t0 = 0; t0 < a->n; t0 += TOKENS) {
    int64_t n_tokens = a->n - t0 < TOKENS ? a->n - t0 : TOKENS;
    for (int64_t r0 = a->r0; r0 < a->r1; r0 += ROWS) {
      int rows = a->r1 - r0 < ROWS ? (int)(a->r1 - r0) : ROWS;
      for (int64_t c = 0; c < a->k; c += 16 * STEPS) {
        int64_t n = a->k - c < 16 * STEPS ? a->k - c : 16 * STEPS;
        fill(T, p, a, r0, rows, c, n);
        panel_times_tokens(p, u, rows, n_tokens, n, a->x + t0 * a->x_stride + 4 * c, a->x_stride, c == 0);
      }
      for (int r = 0; r < rows; r += 4) {
        pe_rows4 l = {.row = r0 + r, .valid = rows - r < 4 ? rows - r : 4};
        for (int64_t t = 0; t < n_tokens; t++)
          pe_store4(a->y + (t0 + t) * a->y_stride, &l, sums4(u->s[t][r], u->s[t][r + 1], u->s[t][r + 2], u->s[t][r + 3]));
      }
    }
  }
}

/* ---- the table -------------------------------------------------------------------------- */

#define GROUP static __attribute__((noinline)) void
#define TYPE(T, name)                                                                       \
  GROUP one_##name##_group(const pe_mm *a, const pe_rows4 *l) { direct(T, 4, 1, a, l, 0); } \
  GROUP few_##name##_group(const pe_mm *a, const pe_rows4 *l) { few_group(T, a, l); }       \
  static void mm_##name##_one(const pe_mm *a) { pe_by4(a, one_##name##_group); }            \
  static void mm_##name##_few(const pe_mm *a) { pe_by4(a, few_##name##_group); }            \
  static void mm_##name##_many(const pe_mm *a) { many(T, a); }

TYPE(PE_F32, f32)
TYPE(PE_F16, f16)
TYPE(PE_BF16, bf16)

#define ROWS_OF(type, name)                                                          \
  {"mm_" #name "_neon_one", type, PE_ACT_F32, TIER_ISA, 1, 1, mm_##name##_one},      \
  {"mm_" #name "_neon_few", type, PE_ACT_F32, TIER_ISA, 2, FEW, mm_##name##_few},    \
  {"mm_" #name "_neon_many", type, PE_ACT_F32, TIER_ISA, FEW + 1, INT32_MAX, mm_##name##_many}

const pe_row pe_rows_float_neon[] = {
    ROWS_OF(PE_F32, f32), ROWS_OF(PE_F16, f16), ROWS_OF(PE_BF16, bf16), {0},
};

PE_TARGET_END
#endif

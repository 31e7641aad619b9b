/* attn_blocks.inl.c: the inner loops of attention: scores of a block of rows with some
 * strips of K, and a block's sums over V, for float, f16 and q8_0. What they must add up
 * and in which order: docs/arithmetic.md, "Attention". Included by attn.inl.c only.
 *
 * A block is R rows by T strips of sixteen positions, or by C times sixteen columns, in
 * registers: 12 of 16 ymm, or 24 of 32 zmm. Fma's latency is hidden from eight sums on.
 *
 * `ahead` is where the bytes lie that will be wanted next, as many as this call reads: they
 * are fetched little by little while it runs. */

/* Accumulators stay in registers only if the loops over them are unrolled early. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 12")
#endif
#define INLINE static inline __attribute__((always_inline))

enum {
  WIDE = V16_REGISTERS >= 32,
  BLOCK = WIDE ? 12 : 6,                    /* most rows of a block */
  PANEL = WIDE ? 2 : 1,                     /* strips or column groups beside them when K or V is float */
  MAX_ROWS = 12,
  P_STRIDE = PE_CHUNK + 16                  /* floats between rows of scores; + 16: not a multiple of 1 KB */
};
/* The same for K and V as they lie, where a conversion is worth more rows and columns. */
#define STRIPS(R) (WIDE ? ((R) <= 6 ? 4 : 2) : (R) == 1 ? 4 : (R) <= 3 ? 2 : 1)
enum { KV_F32 = -1 };                       /* beside PE_KV_F16 and PE_KV_Q8_0: made float by the caller */

INLINE void fetch(const char *p) { __builtin_prefetch(p); }
INLINE v16 load_kv(int type, const void *p, int64_t i) {
  return type == KV_F32 ? v16_load((const float *)p + i) : v16_load_f16((const uint16_t *)p + i);
}

/* ---- scores: lanes are positions, dimensions in order ------------------------------ */

typedef void qk_fn(float *p, const float *const *q, const void *k, int64_t dk, float scale, const char *ahead);

INLINE void qk_block(int type, int R, int T, float *p, const float *const *q, const void *k, int64_t dk, float scale, const char *ahead) {
  const float *qr[MAX_ROWS];
  v16 acc[MAX_ROWS][4], kd[4];
  UNROLL for (int r = 0; r < R; r++) {
    qr[r] = q[r];
    UNROLL for (int t = 0; t < T; t++) acc[r][t] = v16_set(0.0f);
  }
  for (int64_t d = 0; d < dk; d++) {
    if (type != KV_F32)                     /* 32 bytes a strip and dimension: with one strip, every line twice */
      UNROLL for (int t = 0; t < (T + 1) / 2; t++) fetch(ahead + 32 * T * d + 64 * t);
    UNROLL for (int t = 0; t < T; t++) kd[t] = load_kv(type, k, (t * dk + d) * 16);
    UNROLL for (int r = 0; r < R; r++) {
      v16 b = v16_set(qr[r][d]);
      UNROLL for (int t = 0; t < T; t++) acc[r][t] = v16_fma(b, kd[t], acc[r][t]);
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int t = 0; t < T; t++) v16_store(p + r * P_STRIDE + 16 * t, v16_mul(acc[r][t], v16_set(scale)));
}

/* ---- values: lanes are columns, positions in order --------------------------------- */

/* o[r][16*C] += p[r][i] * v[i] for n positions. v_stride in elements. */
typedef void pv_fn(float *o, int64_t o_stride, const float *p, const void *v, int64_t v_stride, int64_t n, const char *ahead);

INLINE void pv_block(int type, int R, int C, float *o, int64_t o_stride, const float *p, const void *v, int64_t v_stride, int64_t n,
                     const char *ahead) {
  v16 acc[MAX_ROWS][4], vi[4];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) acc[r][c] = v16_load(o + r * o_stride + 16 * c);
  for (int64_t i = 0; i < n; i++) {
    if (type != KV_F32)
      UNROLL for (int c = 0; c < (C + 1) / 2; c++) fetch(ahead + 32 * C * i + 64 * c);
    UNROLL for (int c = 0; c < C; c++) vi[c] = load_kv(type, v, i * v_stride + 16 * c);
    UNROLL for (int r = 0; r < R; r++) {
      v16 b = v16_set(p[r * P_STRIDE + i]);
      UNROLL for (int c = 0; c < C; c++) acc[r][c] = v16_fma(b, vi[c], acc[r][c]);
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) v16_store(o + r * o_stride + 16 * c, acc[r][c]);
}

/* ---- tables by rows: those past BLOCK are empty ------------------------------------ */

#define NOINLINE static __attribute__((noinline)) void
#define BLOCKS(R)                                                                                                     \
  NOINLINE qk_f32_##R(float *p, const float *const *q, const void *k, int64_t dk, float scale, const char *ahead) {    \
    if (R <= BLOCK) qk_block(KV_F32, R, PANEL, p, q, k, dk, scale, ahead);                                            \
  }                                                                                                                   \
  NOINLINE qk_f16_##R(float *p, const float *const *q, const void *k, int64_t dk, float scale, const char *ahead) {    \
    if (R <= BLOCK) qk_block(PE_KV_F16, R, STRIPS(R), p, q, k, dk, scale, ahead);                                     \
  }                                                                                                                   \
  NOINLINE pv_f32_##R(float *o, int64_t os, const float *p, const void *v, int64_t vs, int64_t n, const char *ahead) { \
    if (R <= BLOCK) pv_block(KV_F32, R, PANEL, o, os, p, v, vs, n, ahead);                                            \
  }                                                                                                                   \
  NOINLINE pv_f16_##R(float *o, int64_t os, const float *p, const void *v, int64_t vs, int64_t n, const char *ahead) { \
    if (R <= BLOCK) pv_block(PE_KV_F16, R, STRIPS(R), o, os, p, v, vs, n, ahead);                                     \
  }                                                                                                                   \
  NOINLINE pv_f16_##R##_1(float *o, int64_t os, const float *p, const void *v, int64_t vs, int64_t n, const char *ahead) { \
    if (R <= BLOCK) pv_block(PE_KV_F16, R, 1, o, os, p, v, vs, n, ahead);                                             \
  }
BLOCKS(1) BLOCKS(2) BLOCKS(3) BLOCKS(4) BLOCKS(5) BLOCKS(6)
BLOCKS(7) BLOCKS(8) BLOCKS(9) BLOCKS(10) BLOCKS(11) BLOCKS(12)

#define BY_ROWS(name) {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9, name##_10, name##_11, name##_12}
static qk_fn *const qk_f32[MAX_ROWS] = BY_ROWS(qk_f32), *const qk_f16[MAX_ROWS] = BY_ROWS(qk_f16);
static pv_fn *const pv_f32[MAX_ROWS] = BY_ROWS(pv_f32), *const pv_f16[MAX_ROWS] = BY_ROWS(pv_f16);
static pv_fn *const pv_f16_narrow[MAX_ROWS] = {pv_f16_1_1, pv_f16_2_1, pv_f16_3_1, pv_f16_4_1,  pv_f16_5_1,  pv_f16_6_1,
                                               pv_f16_7_1, pv_f16_8_1, pv_f16_9_1, pv_f16_10_1, pv_f16_11_1, pv_f16_12_1};

/* attn_blocks.inl.c: the inner loops of attention: scores of a block of rows with some
 * strips of K, and a block's sums over V, for float, f16, q8_0 and q4_0. What they must add up
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
#define STRIPS_Q8(R) (WIDE ? STRIPS(R) : 1)
#define STRIPS_Q4(R) (WIDE ? ((R) <= 5 ? 4 : 2) : 1)    /* a strip of K is two registers */
#define K_STRIPS(type, R) ((type) == PE_KV_F16 ? STRIPS(R) : (type) == PE_KV_Q8_0 ? STRIPS_Q8(R) : STRIPS_Q4(R))
enum { KV_F32 = -1 };                       /* beside PE_KV_*: made float by the caller */
/* Of a strip of sixteen positions, for each dimension: the scales of blocks of 32 are one of them. */
#define STRIP_BYTES(type) ((type) == PE_KV_F16 ? 32 : (type) == PE_KV_Q8_0 ? 17 : 9)
INLINE int64_t row_bytes(int type, int64_t d) { return type == KV_F32 ? 4 * d : type == PE_KV_F16 ? 2 * d : type == PE_KV_Q8_0 ? d : d / 2; }

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
      v1 b = v1_load(qr[r] + d);
      UNROLL for (int t = 0; t < T; t++) acc[r][t] = v16_fma1(b, kd[t], acc[r][t]);
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int t = 0; t < T; t++) v16_store(p + r * P_STRIDE + 16 * t, v16_mul(acc[r][t], v16_set(scale)));
}

/* q8_0 and q4_0: q is Q32 rows (kernel.h). The float sums wait in p while a block of 32 is added
 * up in integers. */
typedef void qk_blocks_fn(float *p, const uint8_t *q, int64_t q_stride, const uint8_t *k, int64_t dk, float scale, const char *ahead);

INLINE v16i load_four(const uint8_t *q) {
  int32_t four;
  memcpy(&four, q, 4);
  return v16i_set(four);
}

INLINE void qk_blocks_block(int type, int R, int T, float *p, const uint8_t *q, int64_t q_stride, const uint8_t *k, int64_t dk, float scale,
                            const char *ahead) {
  const int q4 = type == PE_KV_Q4_0, at_once = q4 ? 8 : 4, wide = STRIP_BYTES(type) - 1;     /* a register of K has so many dimensions */
  const int64_t strip = STRIP_BYTES(type) * dk;
  for (int64_t b = 0; b < dk / 32; b++) {
    v16i acc[MAX_ROWS][4], kd[4];
    UNROLL for (int r = 0; r < R; r++)
      UNROLL for (int t = 0; t < T; t++) {
        int32_t sum = pe_act_s32(q + r * q_stride, dk)[b];
        acc[r][t] = q4 ? v16i_q4_start(sum) : v16i_dot4_start(sum);
      }
    for (int64_t d = 32 * b; d < 32 * b + 32; d += at_once) {
      UNROLL for (int t = 0; t < T; t++) fetch(ahead + wide * T * d + 64 * t);
      UNROLL for (int t = 0; t < T; t++) kd[t] = v16i_load(k + strip * t + wide * d);
      UNROLL for (int r = 0; r < R; r++) {
        v16i x = load_four(q + r * q_stride + d), y = q4 ? load_four(q + r * q_stride + d + 4) : x;
        UNROLL for (int t = 0; t < T; t++) acc[r][t] = q4 ? v16i_q4_dot(acc[r][t], kd[t], x, y) : v16i_dot4(acc[r][t], kd[t], x);
      }
    }
    fetch(ahead + wide * T * dk + 32 * T * b);
    int last = b + 1 == dk / 32;
    UNROLL for (int t = 0; t < T; t++) {
      v16 scales = v16_load_f16((const uint16_t *)(k + strip * t + wide * dk + 32 * b));
      UNROLL for (int r = 0; r < R; r++) {
        float *to = p + r * P_STRIDE + 16 * t;
        v16i sum = q4 ? v16i_q4_end(acc[r][t], pe_act_s32(q + r * q_stride, dk)[b]) : acc[r][t];
        v16 s = v16_fma(v16_mul(scales, v16_set(pe_act_d(q + r * q_stride, dk)[b])), v16_from_int(sum), b ? v16_load(to) : v16_set(0.0f));
        v16_store(to, last ? v16_mul(s, v16_set(scale)) : s);
      }
    }
  }
}

/* ---- values: lanes are columns, positions in order --------------------------------- */

/* o[r][16*C] += p[r][i] * v[i][column ...] for n positions, rows of `stride` columns. Blocks of
 * 32: all in one strip, and d are the scales of the first row. */
typedef void pv_fn(float *o, int64_t o_stride, const float *p, const uint8_t *v, const uint16_t *d, int64_t stride, int64_t column, int64_t n,
                   const char *ahead);

/* Sixteen columns of a row: d*q, which is exact. */
INLINE v16 load_q8(const uint8_t *v, const uint16_t *d, int64_t column) {
  return v16_mul(v16_set_f16(d[column / 32]), v16_load_i8((const int8_t *)v + column));
}
INLINE v16 load_q4(const uint8_t *v, const uint16_t *d, int64_t column) {
  return v16_load_q4(v + column / 32 * 16, column / 16 % 2, v16_set_f16(d[column / 32]));
}

INLINE void pv_block(int type, int R, int C, int odd, float *o, int64_t o_stride, const float *p, const uint8_t *v, const uint16_t *d,
                     int64_t stride, int64_t column, int64_t n, const char *ahead) {
  const int64_t bytes = row_bytes(type, stride);
  v16 acc[MAX_ROWS][4], vi[4];
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) acc[r][c] = v16_load(o + r * o_stride + 16 * c);
  for (int64_t i = 0; i < n; i++) {
    if (type == PE_KV_Q8_0 || type == PE_KV_Q4_0) {
      fetch(ahead + STRIP_BYTES(type) * C * i);
      UNROLL for (int c = 0; c < C; c++) {      /* more columns than sixteen start at whole blocks; here, what is known early of a column */
        const int64_t at = C > 1 ? 16 * c : 16 * odd, block = C > 1 ? column : column - 16 * odd;
        vi[c] = (type == PE_KV_Q8_0 ? load_q8 : load_q4)(v + i * bytes + row_bytes(type, block), d + i * (stride / 32) + block / 32, at);
      }
    } else {
      if (type == PE_KV_F16)
        UNROLL for (int c = 0; c < (C + 1) / 2; c++) fetch(ahead + 32 * C * i + 64 * c);
      UNROLL for (int c = 0; c < C; c++) vi[c] = load_kv(type, v + i * bytes, column + 16 * c);
    }
    UNROLL for (int r = 0; r < R; r++) {
      v1 b = v1_load(p + r * P_STRIDE + i);
      UNROLL for (int c = 0; c < C; c++) acc[r][c] = v16_fma1(b, vi[c], acc[r][c]);
    }
  }
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int c = 0; c < C; c++) v16_store(o + r * o_stride + 16 * c, acc[r][c]);
}

/* ---- tables by rows: those past BLOCK are empty ------------------------------------ */

#define QK(name, R, T, type)                                                                                              \
  static __attribute__((noinline)) void name(float *p, const float *const *q, const void *k, int64_t dk, float scale,      \
                                             const char *ahead) {                                                         \
    if (R <= BLOCK) qk_block(type, R, T, p, q, k, dk, scale, ahead);                                                      \
  }
#define QK_BLOCKS(name, R, type)                                                                                          \
  static __attribute__((noinline)) void name(float *p, const uint8_t *q, int64_t q_stride, const uint8_t *k, int64_t dk,   \
                                             float scale, const char *ahead) {                                            \
    if (R <= BLOCK) qk_blocks_block(type, R, K_STRIPS(type, R), p, q, q_stride, k, dk, scale, ahead);                      \
  }
#define PV(name, R, C, type)                                                                                              \
  static __attribute__((noinline)) void name(float *o, int64_t o_stride, const float *p, const uint8_t *v,                 \
                                             const uint16_t *d, int64_t stride, int64_t column, int64_t n,                \
                                             const char *ahead) {                                                         \
    if (R > BLOCK) return;                                                                                                \
    if (type == PE_KV_Q4_0 && C == 1 && column % 32)                                                                      \
      pv_block(type, R, C, 1, o, o_stride, p, v, d, stride, column, n, ahead);                                            \
    else                                                                                                                  \
      pv_block(type, R, C, 0, o, o_stride, p, v, d, stride, column, n, ahead);                                            \
  }
#define ROWS(R)                                                                                                           \
  QK(qk_f32_##R, R, PANEL, KV_F32) QK(qk_f16_##R, R, STRIPS(R), PE_KV_F16)                                                \
  QK_BLOCKS(qk_q8_##R, R, PE_KV_Q8_0) QK_BLOCKS(qk_q4_##R, R, PE_KV_Q4_0) PV(pv_f32_##R, R, PANEL, KV_F32)                \
  PV(pv_f16_##R, R, STRIPS(R), PE_KV_F16) PV(pv_q8_##R, R, STRIPS(R), PE_KV_Q8_0) PV(pv_q4_##R, R, STRIPS(R), PE_KV_Q4_0) \
  PV(pv_f16_narrow_##R, R, 1, PE_KV_F16) PV(pv_q8_narrow_##R, R, 1, PE_KV_Q8_0) PV(pv_q4_narrow_##R, R, 1, PE_KV_Q4_0)
ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12)

#define BY_ROWS(name) {name##_1, name##_2, name##_3, name##_4, name##_5, name##_6, name##_7, name##_8, name##_9, name##_10, name##_11, name##_12}
static qk_fn *const qk_f32[MAX_ROWS] = BY_ROWS(qk_f32), *const qk_f16[MAX_ROWS] = BY_ROWS(qk_f16);
static qk_blocks_fn *const qk_blocks[PE_KV_TYPES - 1][MAX_ROWS] = {BY_ROWS(qk_q8), BY_ROWS(qk_q4)};
static pv_fn *const pv_f32[MAX_ROWS] = BY_ROWS(pv_f32);
static pv_fn *const pv_wide[PE_KV_TYPES][MAX_ROWS] = {BY_ROWS(pv_f16), BY_ROWS(pv_q8), BY_ROWS(pv_q4)};                           /* by PE_KV_* */
static pv_fn *const pv_narrow[PE_KV_TYPES][MAX_ROWS] = {BY_ROWS(pv_f16_narrow), BY_ROWS(pv_q8_narrow), BY_ROWS(pv_q4_narrow)};    /* sixteen columns */

/* mm_block32_i8mm.c: matrix products with weights in blocks of 32 by the int8 matrix instructions of
 * ARMv8.6 (Neoverse V1 and N2, Cortex-A510, A710 and later, Apple M2), for many tokens. The bits are
 * mm_scalar.c's. One and two tokens are mm_block32_dotprod.c's: half of what smmla makes would be thrown
 * away. Reached through pe_rows_block32_i8mm only.
 *
 * smmla multiplies two rows of eight columns with two tokens: [r0 t0, r0 t1, r1 t0, r1 t1]. Sums, scales
 * and results keep that order until a pass of tokens ends. Per eight rows, four tokens and a block that is
 * 32 smmla where sdot takes 64, with the same 24 instructions of float work and eight to pair the tokens. */
#if defined(__aarch64__)
#include "mm_i8mm.h"
#include "mm_block32_neon.h"

typedef struct panel {     /* block b, columns 8k..8k+7, rows 2j and 2j+1 */
  int8x16_t w[CHUNK][4][4];           /* [b][k][j] */
  float32x4_t d[CHUNK][4], m[CHUNK][4];  /* [b][j]: each scale twice */
  float32x4_t sums[TOKENS / 2][4];    /* [pair of tokens][j] */
} panel;
_Static_assert(sizeof(panel) <= PE_SCRATCH, "panel and sums fit the scratch");

INLINE void twice(float32x4_t to[2], float32x4_t d) {
  to[0] = vzip1q_f32(d, d);
  to[1] = vzip2q_f32(d, d);
}

INLINE void fill_panel(int T, panel *p, const rows8 *r, int64_t b0, int n, int64_t ahead) {
  const int parts = PARTS(T);
  for (int b = 0; b < n; b += parts) {
    int64_t off = AT(T, b0 + b);
    PE_UNROLL
    for (int v = 0; v < 2; v++) {
      if ((off & 63) < BYTES(T)) pe_prefetch4_at(&r->l[v], off + ahead);
      PE_UNROLL
      for (int part = 0; part < parts; part++) {
        const int i = b + part;
        int8x16_t w[8];
        float32x4_t d, m;
        unpack(T, &r->l[v], off, part, w, &d, &m);
        twice(&p->d[i][2 * v], d);
        if (AFFINE(T) || HALVES(T)) twice(&p->m[i][2 * v], m);
        PE_UNROLL
        for (int k = 0; k < 4; k++) {
          p->w[i][k][2 * v] = pe_as8(vzip1q_s32(pe_as32(w[2 * k]), pe_as32(w[2 * k + 1])));
          p->w[i][k][2 * v + 1] = pe_as8(vzip2q_s32(pe_as32(w[2 * k]), pe_as32(w[2 * k + 1])));
        }
      }
    }
  }
}

/* Two tokens' 32 bits, times `by` and plus `plus`, in the order of smmla's tokens. */
INLINE uint64x2_t both(const uint8_t *at, int64_t next, int32_t plus, int32_t by) {
  uint32_t first = (uint32_t)(plus + by * pe_load_i32(at)), second = (uint32_t)(plus + by * pe_load_i32(at + next));
  return vdupq_n_u64(first | (uint64_t)second << 32);
}

/* NP pairs of tokens from x on; next[i] is from the first token of pair i to its second. */
INLINE void tile(int T, int NP, const panel *p, const uint8_t *x, int64_t stride, const int64_t next[2], int64_t k,
                 int64_t b0, int n, float32x4_t (*sums)[4]) {
  const uint8_t *xq = x + 32 * b0;
  const uint8_t *xd = (const uint8_t *)(pe_act_d(x, k) + b0), *xs = (const uint8_t *)(pe_act_s32(x, k) + b0);
  float32x4_t acc[2][4];
  PE_UNROLL
  for (int i = 0; i < NP; i++)
    PE_UNROLL
    for (int j = 0; j < 4; j++) acc[i][j] = sums[i][j];
  for (int b = 0; b < n; b++) {
    int32x4_t s[2][4];  /* |s| <= 32*128*127 + 16*4 064 = 585 216 beyond its start */
    PE_UNROLL
    for (int h = 0; h < 2; h++) {
      int8x16_t xx[2][2];
      const int first = h == 0 || HALVES(T), last = h == 1 || HALVES(T);
      PE_UNROLL
      for (int i = 0; i < NP; i++) {
        if (!first) continue;
        int32x4_t s0 = start(T, 0);
        if (BIAS(T)) s0 = vreinterpretq_s32_u64(both(xs + 2 * i * stride + 4 * b, next[i], ONE_AND_A_HALF, BIAS(T)));
        PE_UNROLL
        for (int j = 0; j < 4; j++) s[i][j] = s0;
      }
      PE_UNROLL
      for (int i = 0; i < NP; i++) {
        const uint8_t *at = xq + 2 * i * stride + 32 * b + 16 * h;
        int64x2_t t0 = pe_as64(pe_load16(at)), t1 = pe_as64(pe_load16(at + next[i]));
        xx[i][0] = vreinterpretq_s8_s64(vzip1q_s64(t0, t1));
        xx[i][1] = vreinterpretq_s8_s64(vzip2q_s64(t0, t1));
      }
      PE_UNROLL
      for (int k2 = 0; k2 < 2; k2++)
        PE_UNROLL
        for (int i = 0; i < NP; i++)
          PE_UNROLL
          for (int j = 0; j < 4; j++) s[i][j] = vmmlaq_s32(s[i][j], p->w[b][2 * h + k2][j], xx[i][k2]);
      PE_UNROLL
      for (int i = 0; i < NP; i++) {
        if (!last) continue;
        int64_t at = 2 * i * stride + 4 * b;
        float32x4_t da = vreinterpretq_f32_u64(both(xd + at, next[i], 0, 1)), asum = vdupq_n_f32(0);
        if (AFFINE(T)) asum = vcvtq_f32_s32(vreinterpretq_s32_u64(both(xs + at, next[i], 0, 1)));
        PE_UNROLL
        for (int j = 0; j < 4; j++) {
          acc[i][j] = vfmaq_f32(acc[i][j], vmulq_f32(h && HALVES(T) ? p->m[b][j] : p->d[b][j], da), as_float(s[i][j]));
          if (AFFINE(T)) acc[i][j] = vfmaq_f32(acc[i][j], vmulq_f32(p->m[b][j], da), asum);
        }
      }
    }
  }
  PE_UNROLL
  for (int i = 0; i < NP; i++)
    PE_UNROLL
    for (int j = 0; j < 4; j++) sums[i][j] = acc[i][j];
}

INLINE void many_group(int T, const pe_mm *a, int64_t row, int64_t t0, int64_t t1) {
  panel *p = a->scratch;
  const int64_t n_blocks = a->k / 32, stride = a->x_stride;
  const rows8 r = rows8_at(a, row);
  memset(p->sums, 0, sizeof p->sums);
  for (int64_t b0 = 0; b0 < n_blocks; b0 += CHUNK) {
    int n = n_blocks - b0 < CHUNK ? (int)(n_blocks - b0) : CHUNK;
    fill_panel(T, p, &r, b0, n, next_panel(T, a, b0));
    int64_t t = t0;
    for (; t1 - t >= 3; t += 4) {  /* a fourth or second token that is not there: the one before it again */
      int64_t next[2] = {stride, t1 - t == 3 ? 0 : stride};
      tile(T, 2, p, a->x + t * stride, stride, next, a->k, b0, n, p->sums + (t - t0) / 2);
    }
    if (t < t1) {
      int64_t next[2] = {t1 - t == 1 ? 0 : stride, 0};
      tile(T, 1, p, a->x + t * stride, stride, next, a->k, b0, n, p->sums + (t - t0) / 2);
    }
  }
  for (int64_t t = t0; t < t1; t++)
    for (int v = 0; v < 2; v++) {
      float32x4_t *s = p->sums[(t - t0) / 2] + 2 * v;
      pe_store4(a->y + t * a->y_stride, &r.l[v], (t - t0) % 2 ? vuzp2q_f32(s[0], s[1]) : vuzp1q_f32(s[0], s[1]));
    }
}

/* ---- the table -------------------------------------------------------------------------- */

MANY(PE_Q4_0, q4_0)
MANY(PE_Q4_1, q4_1)
MANY(PE_Q5_0, q5_0)
MANY(PE_Q5_1, q5_1)
MANY(PE_Q8_0, q8_0)
MANY(PE_IQ4_NL, iq4_nl)
MANY(PE_MXFP4, mxfp4)
MANY(PE_NVFP4, nvfp4)
MANY(PE_Q1_0, q1_0)
MANY(PE_Q2_0, q2_0)

const pe_row pe_rows_block32_i8mm[] = {
    MANY_ROW(PE_Q4_0, q4_0), MANY_ROW(PE_Q4_1, q4_1), MANY_ROW(PE_Q5_0, q5_0), MANY_ROW(PE_Q5_1, q5_1),
    MANY_ROW(PE_Q8_0, q8_0), MANY_ROW(PE_IQ4_NL, iq4_nl), MANY_ROW(PE_MXFP4, mxfp4),
    MANY_ROW(PE_NVFP4, nvfp4), MANY_ROW(PE_Q1_0, q1_0), MANY_ROW(PE_Q2_0, q2_0), {0},
};

PE_TARGET_END
#endif

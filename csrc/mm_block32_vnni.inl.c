/* mm_block32_vnni.inl.c: matrix products with weights in blocks of 32, written over the
 * words of a tier that has vi_dp4. The bits are mm_scalar.c's. Included by
 * mm_block32_avxvnni.c and mm_block32_avx512.c only.
 *
 * A block of LANES rows is transposed (mm_block32.h), an activation's four bytes are
 * broadcast against it, so no sum crosses lanes, and the float work of a block is done
 * once for LANES rows. One and few tokens keep the block in registers and take rows far
 * apart; many tokens unpack 2*LANES rows into an L1 panel for all tokens.
 *
 * isum starts from -OFFSET*asum, so the offset costs nothing where it is made ahead.
 * |start| <= 128*4 064 = 520 192, |sum of w*q| <= 32*255*127 = 1 036 320: int32, and
 * below 2^24 the conversion of the total is exact. */
#include "mm_block32.h"

INLINE vf finish(int T, vf acc, vi isum, vf d, vf m, vf da, vf asum) {
  acc = vf_fma(vf_mul(d, da), vf_from_vi(isum), acc);
  if (AFFINE(T)) acc = vf_fma(vf_mul(m, da), asum, acc);
  return acc;
}

/* ---- one and few tokens ----------------------------------------------------------------- */

/* A step of Llama-1B (weights in memory; 2 threads; AVX-512), few against many rows, ms: Q8_0 with 4 tokens 52 : 86, 6: 56 : 93,
 * 8: 67 : 97; Q4_0 41 : 54, 49 : 62, 56 : 66. SmolLM2 Q4_1 (weights in cache) 6.7 : 7.1, 8.8 : 9.1, 10.6 : 10.3. Few rows read in
 * streams far apart; a panel's rows are neighbours, and read so by pairs of streams it gains for Q8_0 only (16 tokens 107 : 123).
 * Eight lanes have half the registers. */
enum { MOST_FEW = 8 };

INLINE void few_group(int T, int NT, const pe_mm *a, const pe_lanes *l) {
  vf acc[MOST_FEW];
  PE_UNROLL
  for (int t = 0; t < NT; t++) acc[t] = vf_zero();
  const int parts = PARTS(T), halves = 1 + HALVES(T);
  for (int64_t b = 0; b < a->k / 32; b += parts) {
    prefetch_lines(T, l, b, 768);
    PE_UNROLL
    for (int part = 0; part < parts; part++) {
      vi w[8];
      vf d, m = vf_zero();
      unpack(T, l, AT(T, b), part, w, &d, &m);
      PE_UNROLL
      for (int t = 0; t < NT; t++) {
        const uint8_t *x = a->x + t * a->x_stride;
        const int8_t *q = pe_act_q(x) + 32 * (b + part);
        int32_t asum[2] = {pe_act_s32(x, a->k)[b + part], 0};
        vf da = vf_set(pe_act_d(x, a->k)[b + part]);
        if (HALVES(T)) asum16(q, asum);
        PE_UNROLL
        for (int h = 0; h < halves; h++) {
          vi s = vi_set32(-OFFSET(T) * asum[h]);
          PE_UNROLL
          for (int c = 8 / halves * h; c < 8 / halves * (h + 1); c++) s = vi_dp4(s, w[c], pe_bcast32(q + 4 * c));
          acc[t] = finish(T, acc[t], s, h ? m : d, m, da, vf_set((float)asum[0]));
        }
      }
    }
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++) pe_store(a->y + t * a->y_stride, l, acc[t]);
}

/* ---- many tokens ------------------------------------------------------------------------ */

enum {
  CHUNK = 24,              /* blocks per panel: 12 or 24 KB of quants, in L1 with a tile's tokens */
  TILE = LANES == 16 ? 8 : 4,  /* tokens; two vectors of sums each: 16 of 32 registers, or 8 of 16 */
  TOKENS = 1024,           /* per pass: their sums take 64 or 128 KB */
};

typedef struct panel {     /* block b; [2]: which half of the rows */
  vi w[CHUNK][8][2];
  vf d[CHUNK][2], m[CHUNK][2];
  vf sums[TOKENS][2];
  int32_t start[2][CHUNK][TILE];  /* of a tile's tokens: -OFFSET*asum, by sixteen where HALVES; for types with a minimum (float)asum */
} panel;
_Static_assert(sizeof(panel) <= PE_SCRATCH, "panel and sums fit the scratch");

INLINE void fill_panel(int T, panel *p, const pe_lanes l[2], int64_t b0, int n, int64_t ahead) {
  const int parts = PARTS(T);
  for (int b = 0; b < n; b += parts)
    for (int v = 0; v < 2; v++) {
      prefetch_lines(T, &l[v], b0 + b, ahead);
      PE_UNROLL
      for (int part = 0; part < parts; part++) {
        const int i = b + part;
        vi w[8];
        unpack(T, &l[v], AT(T, b0 + b), part, w, &p->d[i][v], &p->m[i][v]);
        PE_UNROLL
        for (int c = 0; c < 8; c++) p->w[i][c][v] = w[c];
      }
    }
}

/* The loop needs a register for each token's row, and hiding where they come from makes gcc keep them:
 * starts token by token and scales by pointers of their own were eight more, which it parked in vector
 * registers (a move back takes a multiplier's port: 10 of 186 operations a block). */
INLINE void tile(int T, int NT, panel *p, const pe_mm *a, int64_t b0, int n, int64_t t, int64_t t0) {
  const uint8_t *x[8];
  PE_UNROLL
  for (int i = 0; i < NT; i++) {
    x[i] = a->x + (t + i) * a->x_stride;
    const int32_t *asum = pe_act_s32(x[i], a->k) + b0;
    for (int b = 0; b < n; b++) {
      float f = (float)asum[b];
      int32_t halves[2];
      if (HALVES(T)) asum16(pe_act_q(x[i]) + 32 * (b0 + b), halves);
      if (AFFINE(T)) memcpy(&p->start[0][b][i], &f, 4);
      else p->start[0][b][i] = -OFFSET(T) * (HALVES(T) ? halves[0] : asum[b]);
      if (HALVES(T)) p->start[1][b][i] = -OFFSET(T) * halves[1];
    }
    __asm__("" : "+r"(x[i]));
  }
  const int64_t q = pe_act_q(a->x) - (const int8_t *)a->x + 32 * b0, xd = (const uint8_t *)(pe_act_d(a->x, a->k) + b0) - a->x;
  vf (*sums)[2] = p->sums + (t - t0);
  const int halves = 1 + HALVES(T);
  for (int64_t b = 0; b < n; b++) {
    PE_UNROLL
    for (int h = 0; h < halves; h++) {
      vi s[8][2];
      PE_UNROLL
      for (int i = 0; i < NT; i++) s[i][0] = s[i][1] = AFFINE(T) ? vi_zero() : vi_set32(p->start[h][b][i]);
      PE_UNROLL
      for (int c = 8 / halves * h; c < 8 / halves * (h + 1); c++)
        PE_UNROLL
        for (int i = 0; i < NT; i++) {
          vi e = pe_bcast32(x[i] + (q + 32 * b) + 4 * c);
          s[i][0] = vi_dp4(s[i][0], p->w[b][c][0], e);
          s[i][1] = vi_dp4(s[i][1], p->w[b][c][1], e);
          pe_pin(&s[i][0]);
          pe_pin(&s[i][1]);
        }
      PE_UNROLL
      for (int i = 0; i < NT; i++) {
        vf d = vf_bits(pe_bcast32(x[i] + (xd + 4 * b))), asum = AFFINE(T) ? vf_bits(vi_set32(p->start[0][b][i])) : vf_zero();
        PE_UNROLL
        for (int v = 0; v < 2; v++) sums[i][v] = finish(T, sums[i][v], s[i][v], h ? p->m[b][v] : p->d[b][v], p->m[b][v], d, asum);
      }
      pe_keep_in_memory();
    }
  }
}

INLINE void many_group(int T, const pe_mm *a, int64_t row, int64_t t0, int64_t t1) {
  panel *p = a->scratch;
  int64_t n_blocks = a->k / 32;
  int rows = a->r1 - row < 2 * LANES ? (int)(a->r1 - row) : 2 * LANES;
  pe_lanes l[2];
  l[0] = pe_lanes_at(a, row, 1, rows < LANES ? rows : LANES);
  l[1] = rows > LANES ? pe_lanes_at(a, row + LANES, 1, rows - LANES) : l[0];
  for (int64_t t = t0; t < t1; t++) p->sums[t - t0][0] = p->sums[t - t0][1] = vf_zero();
  for (int64_t b0 = 0; b0 < n_blocks; b0 += CHUNK) {
    int n = n_blocks - b0 < CHUNK ? (int)(n_blocks - b0) : CHUNK;
    /* meanwhile fetch the next panel: the next columns, or the next rows */
    int64_t ahead = b0 + CHUNK < n_blocks ? AT(T, CHUNK) : 2 * LANES * a->w_stride - AT(T, b0);
    fill_panel(T, p, l, b0, n, ahead);
    int64_t t = t0;
    for (; t + TILE <= t1; t += TILE) tile(T, TILE, p, a, b0, n, t, t0);
    if (TILE == 8 && t1 - t >= 4) tile(T, 4, p, a, b0, n, t, t0), t += 4;
    if (t1 - t >= 2) tile(T, 2, p, a, b0, n, t, t0), t += 2;
    if (t1 - t >= 1) tile(T, 1, p, a, b0, n, t, t0);
  }
  for (int64_t t = t0; t < t1; t++) {
    pe_store(a->y + t * a->y_stride, &l[0], p->sums[t - t0][0]);
    if (rows > LANES) pe_store(a->y + t * a->y_stride, &l[1], p->sums[t - t0][1]);
  }
}

/* ---- the table -------------------------------------------------------------------------- */

#define GROUP static __attribute__((noinline)) void
#define FEW(T, name, NT) \
  GROUP few##NT##_##name##_group(const pe_mm *a, const pe_lanes *l) { few_group(T, NT, a, l); }
#define TYPE(T, name)                                                                          \
  FEW(T, name, 1) FEW(T, name, 2) FEW(T, name, 3) FEW(T, name, 4)                              \
  FEW(T, name, 5) FEW(T, name, 6) FEW(T, name, 7) FEW(T, name, 8)                              \
  GROUP many_##name##_group(const pe_mm *a, int64_t row, int64_t t0, int64_t t1) { many_group(T, a, row, t0, t1); } \
  static void mm_##name##_one(const pe_mm *a) { pe_far_rows(a, few1_##name##_group); }         \
  static void mm_##name##_few(const pe_mm *a) {                                                \
    switch (a->n) {                                                                            \
      case 2: pe_far_rows(a, few2_##name##_group); break;                                      \
      case 3: pe_far_rows(a, few3_##name##_group); break;                                      \
      case 4: pe_far_rows(a, few4_##name##_group); break;                                      \
      case 5: pe_far_rows(a, few5_##name##_group); break;                                      \
      case 6: pe_far_rows(a, few6_##name##_group); break;                                      \
      case 7: pe_far_rows(a, few7_##name##_group); break;                                      \
      default: pe_far_rows(a, few8_##name##_group); break;                                     \
    }                                                                                          \
  }                                                                                            \
  static void mm_##name##_many(const pe_mm *a) {                                               \
    for (int64_t t = 0; t < a->n; t += TOKENS)                                                 \
      for (int64_t r = a->r0; r < a->r1; r += 2 * LANES)                                       \
        many_##name##_group(a, r, t, a->n - t < TOKENS ? a->n : t + TOKENS);                   \
  }

TYPE(PE_Q4_0, q4_0)
TYPE(PE_Q4_1, q4_1)
TYPE(PE_Q5_0, q5_0)
TYPE(PE_Q5_1, q5_1)
TYPE(PE_Q8_0, q8_0)
TYPE(PE_IQ4_NL, iq4_nl)
TYPE(PE_MXFP4, mxfp4)
TYPE(PE_NVFP4, nvfp4)
TYPE(PE_Q1_0, q1_0)
TYPE(PE_Q2_0, q2_0)

#define ROWS(type, name)                                                                       \
  {"mm_" #name "_" TIER "_one", type, PE_ACT_Q32, TIER_ISA, 1, 1, mm_##name##_one},            \
  {"mm_" #name "_" TIER "_few", type, PE_ACT_Q32, TIER_ISA, 2, MOST_FEW, mm_##name##_few},     \
  {"mm_" #name "_" TIER "_many", type, PE_ACT_Q32, TIER_ISA, MOST_FEW + 1, INT32_MAX, mm_##name##_many}
#define ALL_ROWS                                                                               \
  ROWS(PE_Q4_0, q4_0), ROWS(PE_Q4_1, q4_1), ROWS(PE_Q5_0, q5_0), ROWS(PE_Q5_1, q5_1),          \
  ROWS(PE_Q8_0, q8_0), ROWS(PE_IQ4_NL, iq4_nl), ROWS(PE_MXFP4, mxfp4), ROWS(PE_NVFP4, nvfp4), \
  ROWS(PE_Q1_0, q1_0), ROWS(PE_Q2_0, q2_0), {0}

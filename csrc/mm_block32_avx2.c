/* mm_block32_avx2.c: matrix products with weights in blocks of 32 (Q4_0, Q4_1, Q5_0, Q5_1,
 * Q8_0, IQ4_NL, MXFP4, and NVFP4, Q1_0, Q2_0 by parts) on AVX2, FMA and F16C; no VNNI. The bits are mm_scalar.c's. Reached through
 * pe_rows_block32_avx2 only.
 *
 * A block of eight rows is transposed to w[c], c < 8: dword lane i holds elements
 * 4c..4c+3 of row i. An activation's four bytes are broadcast against it, so no sum ever
 * crosses lanes, and the float work of a block (scale, convert, fma) is done once for
 * eight rows. Three shapes: one and few tokens keep w in registers and take rows far
 * apart; many tokens unpack 16 rows into an L1 panel for all tokens. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_avx2.h"
#include "mm_block32.h"

/* Bytes that use all eight bits, and quants of more than four: what fits int16 sums. */
#define WIDE(T) ((T) == PE_Q8_0 || (T) == PE_IQ4_NL)
#define FOUR_FIT(T) (FIFTH_BIT(T) || (T) == PE_MXFP4)

/* ---- a block times a token -------------------------------------------------------------- */

/* int16 sums of maddubs: a pair is at most 2*15*127 = 3 810 (2*31*127 = 7 874 with five
 * bits, MXFP4 6 096), so eight (four) of them stay within 30 480 (31 496) and are widened
 * once (twice). */
INLINE void sums_nibbles(const __m256i w[8], const int8_t *q, __m256i s[2]) {
  PE_UNROLL
  for (int c = 0; c < 8; c++) {
    __m256i p = _mm256_maddubs_epi16(w[c], pe_bcast32(q + 4 * c));
    s[c / 4] = c % 4 == 0 ? p : _mm256_add_epi16(s[c / 4], p);
  }
}

INLINE __m256i isum_nibbles(int T, const __m256i w[8], const int8_t *q) {
  __m256i s[2];
  sums_nibbles(w, q, s);
  if (FOUR_FIT(T)) return _mm256_add_epi32(pe_madd1(s[0]), pe_madd1(s[1]));
  return pe_madd1(_mm256_add_epi16(s[0], s[1]));
}

/* maddubs wants one side unsigned: |w| (128 reads as unsigned) times a with the sign of w.
 * A pair is at most 2*128*127 = 32 512: exact, but no two of them fit int16. */
INLINE __m256i isum_signed(const __m256i *w, const int8_t *q) {
  __m256i s = _mm256_setzero_si256();
  PE_UNROLL
  for (int c = 0; c < 8; c++) {
    __m256i a = _mm256_sign_epi8(pe_bcast32(q + 4 * c), w[c]);
    s = _mm256_add_epi32(s, pe_madd1(_mm256_maddubs_epi16(_mm256_abs_epi8(w[c]), a)));
  }
  return s;
}

/* da and asum of the token in every lane. */
INLINE __m256 finish(int T, __m256 acc, __m256i isum, __m256 d, __m256 m, __m256 da, __m256i asum) {
  if (T == PE_Q4_0 || OFFSET(T) == 12) isum = vi_sub32(isum, vi_sll32(asum, 3));
  if (OFFSET(T) == 12) isum = vi_sub32(isum, vi_sll32(asum, 2));
  if (OFFSET(T) == 1) isum = vi_sub32(isum, asum);
  if (T == PE_Q5_0) isum = vi_sub32(isum, vi_sll32(asum, 4));
  acc = _mm256_fmadd_ps(_mm256_mul_ps(d, da), _mm256_cvtepi32_ps(isum), acc);
  if (AFFINE(T)) acc = _mm256_fmadd_ps(_mm256_mul_ps(m, da), _mm256_cvtepi32_ps(asum), acc);
  return acc;
}

/* ---- one and few tokens ----------------------------------------------------------------- */

/* Eight rows of eight dwords to the sum of each row, in lanes. */
INLINE __m256i sum_rows(const __m256i s[8]) {
  __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
  __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
}

/* Q8_0 and one token: 32 elements of a row are one register as they lie, and summing eight
 * registers at the end costs less than transposing them first (53 instructions against 64). */
static __attribute__((noinline)) void one_q8_0_group(const pe_mm *a, const pe_lanes *l) {
  const int8_t *q = pe_act_q(a->x);
  const float *da = pe_act_d(a->x, a->k);
  __m256 acc = _mm256_setzero_ps();
  for (int64_t b = 0; b < a->k / 32; b++) {
    int64_t off = b * 34;
    __m256i x = _mm256_load_si256((const __m256i *)(q + 32 * b)), s[8];
    pe_prefetch(l, off + 768);
    PE_UNROLL
    for (int i = 0; i < 8; i++) {
      __m256i w = _mm256_loadu_si256((const __m256i *)(l->p[i] + off + 2));
      s[i] = pe_madd1(_mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
    }
    acc = finish(PE_Q8_0, acc, sum_rows(s), pe_half_at(l, off), acc, _mm256_set1_ps(da[b]), vi_zero());
  }
  pe_store(a->y, l, acc);
}

INLINE void few_group(int T, int NT, const pe_mm *a, const pe_lanes *l, int64_t t0) {
  const uint8_t *x = a->x + t0 * a->x_stride;
  __m256 acc[8];
  PE_UNROLL
  for (int t = 0; t < NT; t++) acc[t] = _mm256_setzero_ps();
  const int parts = PARTS(T);
  for (int64_t b = 0; b < a->k / 32; b += parts) {
    prefetch_lines(T, l, b, 768);
    PE_UNROLL
    for (int part = 0; part < parts; part++) {
      __m256i w[8];
      __m256 d, m;
      unpack(T, l, AT(T, b), part, w, &d, &m);
      PE_UNROLL
      for (int c = 0; c < 8; c++)
        if (WIDE(T)) w[c] = vi_xor(w[c], vi_set8(128));  /* signed again, for the sign trick */
      PE_UNROLL
      for (int t = 0; t < NT; t++) {
        const uint8_t *xt = x + t * a->x_stride;
        const int8_t *q = pe_act_q(xt) + 32 * (b + part);
        __m256 da = _mm256_set1_ps(pe_act_d(xt, a->k)[b + part]);
        if (HALVES(T)) {
          __m256i s[2];
          int32_t asum[2];
          sums_nibbles(w, q, s);
          asum16(q, asum);
          acc[t] = finish(T, acc[t], pe_madd1(s[0]), d, m, da, vi_set32(asum[0]));
          acc[t] = finish(T, acc[t], pe_madd1(s[1]), m, m, da, vi_set32(asum[1]));
          continue;
        }
        __m256i isum = WIDE(T) ? isum_signed(w, q) : isum_nibbles(T, w, q);
        acc[t] = finish(T, acc[t], isum, d, m, da, pe_bcast32(pe_act_s32(xt, a->k) + b + part));
      }
    }
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++) pe_store(a->y + (t0 + t) * a->y_stride, l, acc[t]);
}

/* ---- many tokens ------------------------------------------------------------------------ */

/* The panel of Q8_0 and IQ4_NL holds w+128 as two nibbles: sums of 4-bit quants fit int16, where signed
 * bytes would need widening after each maddubs. Twice the maddubs, no sign, one widening:
 * an int16 panel is no faster (bench/LOG.md). */
enum {
  CHUNK = 24,              /* blocks per panel: 12 KB of quants (Q8_0: 24 KB), in L1 with four tokens; k 576 is one */
  TOKENS = 2048,           /* per pass: their sums of 16 rows take 128 KB */
};

typedef struct panel {     /* block b; [2]: which eight of the 16 rows */
  __m256i w[CHUNK][8][2];
  __m256i hi[CHUNK][8][2]; /* WIDE: high nibbles; w holds the low ones */
  __m256 d[CHUNK][2], m[CHUNK][2];
} panel;
_Static_assert(sizeof(panel) + TOKENS * 64 <= PE_SCRATCH, "panel and sums fit the scratch");

/* s[t][v] = sum over columns c0..c1-1 of w[c] times the tokens' bytes, in int16. */
INLINE void columns(__m256i s[4][2], int NT, const __m256i w[8][2], int c0, int c1, const int8_t *q, int64_t stride) {
  PE_UNROLL
  for (int c = c0; c < c1; c++) {
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      __m256i x = pe_bcast32(q + t * stride + 4 * c);
      PE_UNROLL
      for (int v = 0; v < 2; v++) {
        __m256i p = _mm256_maddubs_epi16(w[c][v], x);
        s[t][v] = c == c0 ? p : _mm256_add_epi16(s[t][v], p);
        pe_pin(&s[t][v]);
      }
    }
  }
}

INLINE void tile(int T, int NT, const pe_mm *a, const panel *p, int64_t b0, int n_blocks, int64_t t0, __m256 *sums) {
  const int64_t stride = a->x_stride;  /* here: the stores of sums might change it, for all a compiler knows */
  const uint8_t *x = a->x + t0 * stride, *xd = (const uint8_t *)pe_act_d(x, a->k), *xs = (const uint8_t *)pe_act_s32(x, a->k);
  if (b0 == 0)
    for (int i = 0; i < 2 * NT; i++) sums[i] = _mm256_setzero_ps();
  for (int b = 0; b < n_blocks; b++) {
    const int8_t *q = pe_act_q(x) + 32 * (b0 + b);
    __m256i s[4][2], isum[4][2];
    if (HALVES(T)) {
      int32_t asum[4][2];
      PE_UNROLL
      for (int t = 0; t < NT; t++) asum16(q + t * stride, asum[t]);
      PE_UNROLL
      for (int h = 0; h < 2; h++) {
        columns(s, NT, p->w[b], 4 * h, 4 * h + 4, q, stride);
        PE_UNROLL
        for (int t = 0; t < NT; t++) {
          __m256 da = vf_bits(pe_bcast32(xd + 4 * (b0 + b) + t * stride));
          PE_UNROLL
          for (int v = 0; v < 2; v++)
            sums[2 * t + v] = finish(T, sums[2 * t + v], pe_madd1(s[t][v]), h ? p->m[b][v] : p->d[b][v], da, da, vi_set32(asum[t][h]));
        }
        pe_keep_in_memory();
      }
      continue;
    }
    if (WIDE(T))  /* 16 * 30 480 * 2 and less: int32 */
      columns(s, NT, p->hi[b], 0, 8, q, stride);
    else
      columns(s, NT, p->w[b], 0, FOUR_FIT(T) ? 4 : 8, q, stride);
    PE_UNROLL
    for (int t = 0; t < NT; t++)
      for (int v = 0; v < 2; v++)
        isum[t][v] = _mm256_madd_epi16(s[t][v], _mm256_set1_epi16(WIDE(T) ? 16 : 1));
    if (WIDE(T) || FOUR_FIT(T)) {
      pe_keep_in_memory();  /* broadcast again, rather than spill the first pass's */
      columns(s, NT, p->w[b], WIDE(T) ? 0 : 4, 8, q, stride);
      PE_UNROLL
      for (int t = 0; t < NT; t++)
        for (int v = 0; v < 2; v++) isum[t][v] = _mm256_add_epi32(isum[t][v], pe_madd1(s[t][v]));
    }
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      int64_t at = 4 * (b0 + b) + t * stride;
      __m256 da = vf_bits(pe_bcast32(xd + at));
      __m256i asum = pe_bcast32(xs + at);
      PE_UNROLL
      for (int v = 0; v < 2; v++) {
        if (WIDE(T)) isum[t][v] = _mm256_sub_epi32(isum[t][v], _mm256_slli_epi32(asum, 7));
        sums[2 * t + v] = finish(T, sums[2 * t + v], isum[t][v], p->d[b][v], p->m[b][v], da, asum);
      }
    }
    pe_keep_in_memory();
  }
}

INLINE void many_group(int T, const pe_mm *a, int64_t row, int64_t t0, int64_t t1) {
  panel *p = a->scratch;
  __m256 *sums = (__m256 *)(p + 1);
  int64_t n_blocks = a->k / 32;
  const int parts = PARTS(T);
  int rows = a->r1 - row < 16 ? (int)(a->r1 - row) : 16;
  pe_lanes l[2];
  l[0] = pe_lanes_at(a, row, 1, rows < 8 ? rows : 8);
  l[1] = rows > 8 ? pe_lanes_at(a, row + 8, 1, rows - 8) : l[0];
  for (int64_t b0 = 0; b0 < n_blocks; b0 += CHUNK) {
    int n = n_blocks - b0 < CHUNK ? (int)(n_blocks - b0) : CHUNK;
    /* meanwhile fetch the next panel: the next columns, or the next rows */
    int64_t ahead = b0 + CHUNK < n_blocks ? AT(T, CHUNK) : 16 * a->w_stride - AT(T, b0);
    for (int b = 0; b < n; b += parts)
      for (int v = 0; v < 2; v++) {
        prefetch_lines(T, &l[v], b0 + b, ahead);
        PE_UNROLL
        for (int part = 0; part < parts; part++) {
          const int i = b + part;
          __m256i w[8];
          unpack(T, &l[v], AT(T, b0 + b), part, w, &p->d[i][v], &p->m[i][v]);
          PE_UNROLL
          for (int c = 0; c < 8; c++) {
            if (WIDE(T)) {
              p->hi[i][c][v] = pe_nib_hi(w[c]);
              w[c] = pe_nib_lo(w[c]);
            }
            p->w[i][c][v] = w[c];
          }
        }
      }
    int64_t t = t0;
    for (; t + 4 <= t1; t += 4) tile(T, 4, a, p, b0, n, t, sums + 2 * (t - t0));
    if (t1 - t == 3) tile(T, 3, a, p, b0, n, t, sums + 2 * (t - t0));
    if (t1 - t == 2) tile(T, 2, a, p, b0, n, t, sums + 2 * (t - t0));
    if (t1 - t == 1) tile(T, 1, a, p, b0, n, t, sums + 2 * (t - t0));
  }
  for (int64_t t = t0; t < t1; t++) {
    pe_store(a->y + t * a->y_stride, &l[0], sums[2 * (t - t0)]);
    if (rows > 8) pe_store(a->y + t * a->y_stride, &l[1], sums[2 * (t - t0) + 1]);
  }
}

/* ---- the table -------------------------------------------------------------------------- */

#define FEW(T, name, NT) \
  static __attribute__((noinline)) void few##NT##_##name##_group(const pe_mm *a, const pe_lanes *l) { few_group(T, NT, a, l, 0); }

#define TYPE(T, name)                                                                          \
  FEW(T, name, 1) FEW(T, name, 2) FEW(T, name, 3) FEW(T, name, 4)                              \
  FEW(T, name, 5) FEW(T, name, 6) FEW(T, name, 7)                                              \
  static void mm_##name##_few(const pe_mm *a) {                                                \
    switch (a->n) {                                                                            \
      case 1: pe_far_rows(a, few1_##name##_group); break;                                      \
      case 2: pe_far_rows(a, few2_##name##_group); break;                                      \
      case 3: pe_far_rows(a, few3_##name##_group); break;                                      \
      case 4: pe_far_rows(a, few4_##name##_group); break;                                      \
      case 5: pe_far_rows(a, few5_##name##_group); break;                                      \
      case 6: pe_far_rows(a, few6_##name##_group); break;                                      \
      default: pe_far_rows(a, few7_##name##_group); break;                                     \
    }                                                                                          \
  }                                                                                            \
  static void mm_##name##_many(const pe_mm *a) {                                               \
    for (int64_t t = 0; t < a->n; t += TOKENS)                                                 \
      for (int64_t r = a->r0; r < a->r1; r += 16)                                              \
        many_group(T, a, r, t, a->n - t < TOKENS ? a->n : t + TOKENS);                         \
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

static void mm_q4_0_one(const pe_mm *a) { pe_far_rows(a, few1_q4_0_group); }
static void mm_q4_1_one(const pe_mm *a) { pe_far_rows(a, few1_q4_1_group); }
static void mm_q5_0_one(const pe_mm *a) { pe_far_rows(a, few1_q5_0_group); }
static void mm_q5_1_one(const pe_mm *a) { pe_far_rows(a, few1_q5_1_group); }
static void mm_iq4_nl_one(const pe_mm *a) { pe_far_rows(a, few1_iq4_nl_group); }
static void mm_mxfp4_one(const pe_mm *a) { pe_far_rows(a, few1_mxfp4_group); }
static void mm_nvfp4_one(const pe_mm *a) { pe_far_rows(a, few1_nvfp4_group); }
static void mm_q1_0_one(const pe_mm *a) { pe_far_rows(a, few1_q1_0_group); }
static void mm_q2_0_one(const pe_mm *a) { pe_far_rows(a, few1_q2_0_group); }
static void mm_q8_0_one(const pe_mm *a) { pe_far_rows(a, one_q8_0_group); }

#define ROWS(type, name)                                                                      \
  {"mm_" #name "_avx2_one", type, PE_ACT_Q32, PE_ISA_AVX2, 1, 1, mm_##name##_one},            \
  {"mm_" #name "_avx2_few", type, PE_ACT_Q32, PE_ISA_AVX2, 2, 7, mm_##name##_few},            \
  {"mm_" #name "_avx2_many", type, PE_ACT_Q32, PE_ISA_AVX2, 8, INT32_MAX, mm_##name##_many}

const pe_row pe_rows_block32_avx2[] = {
    ROWS(PE_Q4_0, q4_0), ROWS(PE_Q4_1, q4_1), ROWS(PE_Q5_0, q5_0), ROWS(PE_Q5_1, q5_1), ROWS(PE_Q8_0, q8_0),
    ROWS(PE_IQ4_NL, iq4_nl), ROWS(PE_MXFP4, mxfp4), ROWS(PE_NVFP4, nvfp4), ROWS(PE_Q1_0, q1_0), ROWS(PE_Q2_0, q2_0), {0},
};

PE_TARGET_END
#endif

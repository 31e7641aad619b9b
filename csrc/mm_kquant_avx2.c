/* mm_kquant_avx2.c: matrix products with weights in blocks of 256 (Q2_K to Q6_K) on AVX2,
 * FMA and F16C; no VNNI. The bits are mm_scalar.c's. Reached through pe_rows_kquant_avx2
 * only. mm_kquant_avx2.h unpacks blocks; here they are multiplied.
 *
 * Eight rows in eight lanes: a block of eight rows is unpacked once into a panel in L1 and
 * multiplied with all tokens. One and few tokens take rows far apart and one block at a
 * time; many tokens take 16 adjacent rows and several blocks. All sums stay int32 until a
 * block's total is complete, because beyond 2^24 its conversion rounds. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_kquant_avx2.h"

/* ---- a block times tokens --------------------------------------------------------------- */

/* How many maddubs results add up within int16: a pair is at most 2*q*127, q being 3 (Q2_K),
 * 7 (Q3_K): four (a sub-block) stay below 7 112; 15 (Q4_K): eight, 30 480; 31 (Q5_K): four,
 * 31 496; 63 (Q6_K): two, 32 004. */
#define RUN(T) ((T) == PE_Q6_K ? 2 : (T) == PE_Q4_K ? 8 : 4)

/* S of a block for NT tokens and NV vectors of eight rows: each run of sums times its scale. */
INLINE void block_sums(int T, int NT, int NV, __m256i S[4][2], const kpanel *p, const int8_t *q, int64_t stride) {
  const int run = RUN(T);
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    for (int v = 0; v < NV; v++) S[t][v] = _mm256_setzero_si256();
  for (int c0 = 0; c0 < 64; c0 += 8) {
    PE_UNROLL
    for (int c1 = 0; c1 < 8; c1 += run) {
      __m256i s[4][2];
      PE_UNROLL
      for (int c = 0; c < run; c++)
        PE_UNROLL
        for (int t = 0; t < NT; t++) {
          __m256i x = pe_bcast32(q + t * stride + 4 * (c0 + c1 + c));
          PE_UNROLL
          for (int v = 0; v < NV; v++) {
            __m256i e = _mm256_maddubs_epi16(p[v].w[c0 + c1 + c], x);
            s[t][v] = c == 0 ? e : _mm256_add_epi16(s[t][v], e);
            pe_pin(&s[t][v]);
          }
        }
      PE_UNROLL
      for (int t = 0; t < NT; t++)
        PE_UNROLL
        for (int v = 0; v < NV; v++) {
          __m256i sc = p[v].sc[PER32(T) ? c0 / 8 : (c0 + c1) / 4];
          S[t][v] = _mm256_add_epi32(S[t][v], _mm256_madd_epi16(s[t][v], sc));
        }
    }
  }
}

/* One block into the accumulators. The minima (Q2_K, Q4_K, Q5_K) or the offset times the
 * scales (Q3_K, Q6_K) meet the sums of the activations, two sub-blocks per madd. */
INLINE void block_tokens(int T, int NT, int NV, __m256 acc[4][2], const kpanel *p, const pe_mm *a, const uint8_t *x,
                         int64_t block) {
  __m256i S[4][2], N[4][2];
  block_sums(T, NT, NV, S, p, pe_act_q(x) + 256 * block, a->x_stride);
  PE_UNROLL
  for (int t = 0; t < NT; t++) {
    const uint8_t *xt = x + t * a->x_stride;
    const int16_t *asum = pe_act_s16(xt, a->k) + 16 * block;
    int16_t asum32[8] __attribute__((aligned(16)));
    if (PER32(T)) {
      const __m128i *v = (const __m128i *)asum;
      _mm_store_si128((__m128i *)asum32, _mm_hadd_epi16(_mm_load_si128(v), _mm_load_si128(v + 1)));
      asum = asum32;
    }
    PE_UNROLL
    for (int v = 0; v < NV; v++) N[t][v] = _mm256_setzero_si256();
    const int n_mn = PER32(T) ? 4 : 8;
    PE_UNROLL
    for (int i = 0; i < n_mn; i++) {
      __m256i s = pe_bcast32(asum + 2 * i);
      PE_UNROLL
      for (int v = 0; v < NV; v++) N[t][v] = _mm256_add_epi32(N[t][v], _mm256_madd_epi16(p[v].mn[i], s));
    }
    __m256 da = _mm256_set1_ps(pe_act_d(xt, a->k)[block]);
    PE_UNROLL
    for (int v = 0; v < NV; v++) {
      if (MINIMA(T)) {
        __m256 n = _mm256_mul_ps(p[v].dmin, _mm256_cvtepi32_ps(N[t][v]));
        acc[t][v] = _mm256_fmadd_ps(da, _mm256_fmsub_ps(p[v].d, _mm256_cvtepi32_ps(S[t][v]), n), acc[t][v]);
      } else {
        __m256i s = _mm256_sub_epi32(S[t][v], _mm256_slli_epi32(N[t][v], T == PE_Q6_K ? 5 : 2));
        acc[t][v] = _mm256_fmadd_ps(da, _mm256_mul_ps(p[v].d, _mm256_cvtepi32_ps(s)), acc[t][v]);
      }
    }
  }
}

/* ---- one and few tokens ----------------------------------------------------------------- */

/* n <= 8 tokens; NT of them at a time share the loads of a panel. */
INLINE void few_group(int T, int NT, const pe_mm *a, const pe_lanes *l) {
  kpanel p;
  __m256 acc[8][2];
  for (int t = 0; t < 8; t++) acc[t][0] = _mm256_setzero_ps();
  for (int64_t b = 0; b < a->k / 256; b++) {
    for (int i = 0; i < BYTES(T); i += 64) pe_prefetch(l, b * BYTES(T) + 768 + i);
    unpack(T, l, b * BYTES(T), &p);
    int64_t t = 0;
    for (; t + NT <= a->n; t += NT) block_tokens(T, NT, 1, acc + t, &p, a, a->x + t * a->x_stride, b);
    if (NT > 1)
      for (; t < a->n; t++) block_tokens(T, 1, 1, acc + t, &p, a, a->x + t * a->x_stride, b);
  }
  for (int64_t t = 0; t < a->n; t++) pe_store(a->y + t * a->y_stride, l, acc[t][0]);
}

/* ---- many tokens ------------------------------------------------------------------------ */

enum {
  CHUNK = 4,               /* blocks per panel of 16 rows: 16 KB of quants and 1.5 to 6 KB of scales */
  TOKENS = 2048,           /* per pass: their sums of 16 rows take 128 KB */
};
_Static_assert(sizeof(kpanel) * 2 * CHUNK + TOKENS * 64 <= PE_SCRATCH, "panel and sums fit the scratch");

INLINE void tile(int T, int NT, const pe_mm *a, const kpanel *p, int64_t b0, int n_blocks, int64_t t0, __m256 *sums) {
  __m256 acc[4][2];
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    for (int v = 0; v < 2; v++) acc[t][v] = b0 ? sums[2 * t + v] : _mm256_setzero_ps();
  for (int b = 0; b < n_blocks; b++) block_tokens(T, NT, 2, acc, p + 2 * b, a, a->x + t0 * a->x_stride, b0 + b);
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    for (int v = 0; v < 2; v++) sums[2 * t + v] = acc[t][v];
}

INLINE void many_group(int T, const pe_mm *a, int64_t row, int64_t t0, int64_t t1) {
  kpanel *p = a->scratch;
  __m256 *sums = (__m256 *)(p + 2 * CHUNK);
  int64_t n_blocks = a->k / 256;
  int rows = a->r1 - row < 16 ? (int)(a->r1 - row) : 16;
  pe_lanes l[2];
  l[0] = pe_lanes_at(a, row, 1, rows < 8 ? rows : 8);
  l[1] = rows > 8 ? pe_lanes_at(a, row + 8, 1, rows - 8) : l[0];
  for (int64_t b0 = 0; b0 < n_blocks; b0 += CHUNK) {
    int n = n_blocks - b0 < CHUNK ? (int)(n_blocks - b0) : CHUNK;
    for (int b = 0; b < n; b++)
      for (int v = 0; v < 2; v++) unpack(T, &l[v], (b0 + b) * BYTES(T), &p[2 * b + v]);
    int64_t t = t0;
    for (; t + 4 <= t1; t += 4) tile(T, 4, a, p, b0, n, t, sums + 2 * (t - t0));
    for (; t + 2 <= t1; t += 2) tile(T, 2, a, p, b0, n, t, sums + 2 * (t - t0));
    for (; t < t1; t++) tile(T, 1, a, p, b0, n, t, sums + 2 * (t - t0));
  }
  for (int64_t t = t0; t < t1; t++) {
    pe_store(a->y + t * a->y_stride, &l[0], sums[2 * (t - t0)]);
    if (rows > 8) pe_store(a->y + t * a->y_stride, &l[1], sums[2 * (t - t0) + 1]);
  }
}

/* ---- the table -------------------------------------------------------------------------- */

#define GROUP static __attribute__((noinline)) void
#define TYPE(T, name)                                                                         \
  GROUP one_##name##_group(const pe_mm *a, const pe_lanes *l) { few_group(T, 1, a, l); }      \
  GROUP few_##name##_group(const pe_mm *a, const pe_lanes *l) { few_group(T, 2, a, l); }      \
  GROUP four_##name##_group(const pe_mm *a, const pe_lanes *l) { few_group(T, 4, a, l); }     \
  static void mm_##name##_one(const pe_mm *a) { pe_far_rows(a, one_##name##_group); }         \
  static void mm_##name##_few(const pe_mm *a) {                                               \
    pe_far_rows(a, a->n < 4 ? few_##name##_group : four_##name##_group);                      \
  }                                                                                           \
  static void mm_##name##_many(const pe_mm *a) {                                              \
    for (int64_t t = 0; t < a->n; t += TOKENS)                                                \
      for (int64_t r = a->r0; r < a->r1; r += 16)                                             \
        many_group(T, a, r, t, a->n - t < TOKENS ? a->n : t + TOKENS);                        \
  }

TYPE(PE_Q2_K, q2_k)
TYPE(PE_Q3_K, q3_k)
TYPE(PE_Q4_K, q4_k)
TYPE(PE_Q5_K, q5_k)
TYPE(PE_Q6_K, q6_k)

#define ROWS(type, name)                                                                      \
  {"mm_" #name "_avx2_one", type, PE_ACT_Q256, PE_ISA_AVX2, 1, 1, mm_##name##_one},           \
  {"mm_" #name "_avx2_few", type, PE_ACT_Q256, PE_ISA_AVX2, 2, 7, mm_##name##_few},           \
  {"mm_" #name "_avx2_many", type, PE_ACT_Q256, PE_ISA_AVX2, 8, INT32_MAX, mm_##name##_many}

const pe_row pe_rows_kquant_avx2[] = {
    ROWS(PE_Q2_K, q2_k), ROWS(PE_Q3_K, q3_k), ROWS(PE_Q4_K, q4_k), ROWS(PE_Q5_K, q5_k), ROWS(PE_Q6_K, q6_k), {0},
};

PE_TARGET_END
#endif

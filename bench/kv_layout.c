/* kv_layout.c: K token by token against K dimension by dimension, for the scores of
 * one query token. A measurement behind docs/arithmetic.md, not part of the engine;
 * self-contained, nothing imports it.
 *
 *   gcc -O3 -std=gnu11 -ffp-contract=off -fno-math-errno bench/kv_layout.c -o /tmp/kv_layout && /tmp/kv_layout
 *
 * "tok": K is f16 [64][dk] per page; q.k runs in sixteen lanes along dk, then the tree
 *        +8 +4 +2 +1 (the trees of eight tokens are transposed together, which makes
 *        the reduction as cheap as it gets).
 * "dim": K is f16 [dk][64] per page; lanes are tokens, the sum runs in order of the
 *        dimension, no reduction.
 * "str": the same sums, K stored as strips of 16 tokens: f16 [64/16][dk][16] per page.
 * All read K once per group of query heads (AVX2 with eight heads: twice per page, the
 * registers hold four). 4096 positions of one head; times are medians of interleaved
 * runs, in ns per position and query head. */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define POS 4096
#define PAGE 64
#define INLINE static inline __attribute__((always_inline))
typedef void score_fn(float *s, const float *q, const uint16_t *k, int dk); /* s[g*POS + p] */

/* ---- scalar: SSE2 only, fma in software --------------------------------------- */
INLINE float soft_fma(float a, float b, float c) {
  double p = (double)a * b, s = p + c, t = s - p, e = (p - (s - t)) + (c - t);
  int64_t u;
  memcpy(&u, &s, 8);
  int64_t step = (int64_t)(e > 0) - (int64_t)(e < 0), neg = -(int64_t)(s < 0);
  u += ((step ^ neg) - neg) & ((u & 1) - 1);
  memcpy(&s, &u, 8);
  return (float)s;
}
INLINE float soft_f16(uint16_t h) { /* finite values, which is all there is here */
  uint32_t bits = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
  float f;
  memcpy(&f, &bits, 4);
  f *= 0x1p112f;
  memcpy(&bits, &f, 4);
  bits |= sign;
  memcpy(&f, &bits, 4);
  return f;
}
INLINE void scalar_tok(float *s, const float *q, const uint16_t *k, int dk, int G) {
  for (int p = 0; p < POS; p++, k += dk) {
    float l[8][16] = {{0}};
    for (int d = 0; d < dk; d += 16) {
      float kf[16];
      for (int i = 0; i < 16; i++) kf[i] = soft_f16(k[d + i]);
      for (int g = 0; g < G; g++)
        for (int i = 0; i < 16; i++) l[g][i] = soft_fma(q[g * dk + d + i], kf[i], l[g][i]);
    }
    for (int g = 0; g < G; g++) {
      for (int w = 8; w; w /= 2)
        for (int i = 0; i < w; i++) l[g][i] += l[g][i + w];
      s[g * POS + p] = l[g][0];
    }
  }
}
#define SCALAR(name, AT) \
  INLINE void scalar_##name(float *s, const float *q, const uint16_t *k, int dk, int G) { \
    for (int p = 0; p < POS; p += PAGE, k += dk * PAGE) \
      for (int t = 0; t < PAGE; t += 16) { \
        float l[8][16] = {{0}}; \
        for (int d = 0; d < dk; d++) { \
          float kf[16]; \
          for (int i = 0; i < 16; i++) kf[i] = soft_f16(k[AT(d, t, dk) + i]); \
          for (int g = 0; g < G; g++) \
            for (int i = 0; i < 16; i++) l[g][i] = soft_fma(q[g * dk + d], kf[i], l[g][i]); \
        } \
        for (int g = 0; g < G; g++) memcpy(s + g * POS + p + t, l[g], sizeof l[g]); \
      } \
  }
#define AT_DIM(d, t, dk) ((d) * PAGE + (t))
#define AT_STR(d, t, dk) (((t) / 16 * (dk) + (d)) * 16 + (t) % 16)
SCALAR(dim, AT_DIM) SCALAR(str, AT_STR)

/* The sum of sixteen lanes whose upper and lower eight are already added, for eight tokens. */
#define TREE8(a) ({ \
  __m256 b_[4], c_[2]; \
  for (int i = 0; i < 4; i++) \
    b_[i] = _mm256_add_ps(_mm256_permute2f128_ps((a)[i], (a)[i + 4], 0x20), _mm256_permute2f128_ps((a)[i], (a)[i + 4], 0x31)); \
  for (int i = 0; i < 2; i++) \
    c_[i] = _mm256_add_ps(_mm256_shuffle_ps(b_[2 * i], b_[2 * i + 1], 0x44), _mm256_shuffle_ps(b_[2 * i], b_[2 * i + 1], 0xee)); \
  _mm256_add_ps(_mm256_shuffle_ps(c_[0], c_[1], 0x88), _mm256_shuffle_ps(c_[0], c_[1], 0xdd)); })

/* ---- AVX2 ----------------------------------------------------------------------- */
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define LD8(p) _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p)))
/* T tokens and G heads, or V vectors of tokens and G heads: eight chains of fma each */
#define AVX2(G, T, V) \
  INLINE void avx2_tok_b##G(float *s, const float *q, const uint16_t *k, int dk) { \
    for (int p = 0; p < POS; p += 8, k += 8 * dk) { \
      __m256 sum[G][8]; \
      _Pragma("GCC unroll 8") for (int t = 0; t < 8; t += T) { \
        __m256 l[T][G][2]; \
        for (int u = 0; u < T; u++) \
          for (int g = 0; g < G; g++) l[u][g][0] = l[u][g][1] = _mm256_setzero_ps(); \
        for (int d = 0; d < dk; d += 16) \
          for (int u = 0; u < T; u++) { \
            const uint16_t *x = k + (t + u) * dk + d; \
            __m256 k0 = LD8(x), k1 = LD8(x + 8); \
            for (int g = 0; g < G; g++) { \
              l[u][g][0] = _mm256_fmadd_ps(_mm256_loadu_ps(q + g * dk + d), k0, l[u][g][0]); \
              l[u][g][1] = _mm256_fmadd_ps(_mm256_loadu_ps(q + g * dk + d + 8), k1, l[u][g][1]); \
            } \
          } \
        for (int u = 0; u < T; u++) \
          for (int g = 0; g < G; g++) sum[g][t + u] = _mm256_add_ps(l[u][g][0], l[u][g][1]); \
      } \
      for (int g = 0; g < G; g++) _mm256_storeu_ps(s + g * POS + p, TREE8(sum[g])); \
    } \
  } \
  INLINE void avx2_dim_b##G(float *s, const float *q, const uint16_t *k, int dk) { \
    for (int p = 0; p < POS; p += PAGE, k += dk * PAGE) \
      for (int t = 0; t < PAGE; t += 8 * V) { \
        __m256 l[G][V]; \
        for (int g = 0; g < G; g++) \
          for (int v = 0; v < V; v++) l[g][v] = _mm256_setzero_ps(); \
        for (int d = 0; d < dk; d++) { \
          __m256 kv[V]; \
          for (int v = 0; v < V; v++) kv[v] = LD8(k + d * PAGE + t + 8 * v); \
          for (int g = 0; g < G; g++) { \
            __m256 b = _mm256_broadcast_ss(q + g * dk + d); \
            for (int v = 0; v < V; v++) l[g][v] = _mm256_fmadd_ps(b, kv[v], l[g][v]); \
          } \
        } \
        for (int g = 0; g < G; g++) \
          for (int v = 0; v < V; v++) _mm256_storeu_ps(s + g * POS + p + t + 8 * v, l[g][v]); \
      } \
  } \
  INLINE void avx2_str_b##G(float *s, const float *q, const uint16_t *k, int dk) { \
    for (int p = 0; p < POS; p += PAGE, k += dk * PAGE) \
      for (int t = 0; t < PAGE; t += 8 * V) { \
        __m256 l[G][V]; \
        for (int g = 0; g < G; g++) \
          for (int v = 0; v < V; v++) l[g][v] = _mm256_setzero_ps(); \
        for (int d = 0; d < dk; d++) { \
          __m256 kv[V]; \
          for (int v = 0; v < V; v++) kv[v] = LD8(k + AT_STR(d, t + 8 * v, dk)); \
          for (int g = 0; g < G; g++) { \
            __m256 b = _mm256_broadcast_ss(q + g * dk + d); \
            for (int v = 0; v < V; v++) l[g][v] = _mm256_fmadd_ps(b, kv[v], l[g][v]); \
          } \
        } \
        for (int g = 0; g < G; g++) \
          for (int v = 0; v < V; v++) _mm256_storeu_ps(s + g * POS + p + t + 8 * v, l[g][v]); \
      } \
  }
AVX2(1, 4, 8) AVX2(2, 2, 4) AVX2(4, 1, 2)
#define AVX2_PICK(l) \
  INLINE void avx2_##l(float *s, const float *q, const uint16_t *k, int dk, int G) { \
    if (G == 1) avx2_##l##_b1(s, q, k, dk); \
    if (G == 2) avx2_##l##_b2(s, q, k, dk); \
    for (int g = 0; G >= 4 && g < G; g += 4) avx2_##l##_b4(s + g * POS, q + g * dk, k, dk); \
  }
AVX2_PICK(tok) AVX2_PICK(dim) AVX2_PICK(str)
#define FNS(isa, G) \
  static void isa##_tok_##G(float *s, const float *q, const uint16_t *k, int dk) { isa##_tok(s, q, k, dk, G); } \
  static void isa##_dim_##G(float *s, const float *q, const uint16_t *k, int dk) { isa##_dim(s, q, k, dk, G); } \
  static void isa##_str_##G(float *s, const float *q, const uint16_t *k, int dk) { isa##_str(s, q, k, dk, G); }
FNS(avx2, 1) FNS(avx2, 2) FNS(avx2, 4) FNS(avx2, 8)
#pragma GCC pop_options

/* ---- AVX-512 -------------------------------------------------------------------- */
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c,avx2")
#define LD16(p) _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p)))
#define AVX512(G, T, V) \
  INLINE void avx512_tok_b##G(float *s, const float *q, const uint16_t *k, int dk) { \
    for (int p = 0; p < POS; p += 8, k += 8 * dk) { \
      __m256 sum[G][8]; \
      _Pragma("GCC unroll 8") for (int t = 0; t < 8; t += T) { \
        __m512 l[T][G]; \
        for (int u = 0; u < T; u++) \
          for (int g = 0; g < G; g++) l[u][g] = _mm512_setzero_ps(); \
        for (int d = 0; d < dk; d += 16) \
          for (int u = 0; u < T; u++) { \
            __m512 kv = LD16(k + (t + u) * dk + d); \
            for (int g = 0; g < G; g++) l[u][g] = _mm512_fmadd_ps(_mm512_loadu_ps(q + g * dk + d), kv, l[u][g]); \
          } \
        for (int u = 0; u < T; u++) \
          for (int g = 0; g < G; g++) \
            sum[g][t + u] = _mm256_add_ps(_mm512_castps512_ps256(l[u][g]), _mm512_extractf32x8_ps(l[u][g], 1)); \
      } \
      for (int g = 0; g < G; g++) _mm256_storeu_ps(s + g * POS + p, TREE8(sum[g])); \
    } \
  } \
  INLINE void avx512_dim_b##G(float *s, const float *q, const uint16_t *k, int dk) { \
    for (int p = 0; p < POS; p += PAGE, k += dk * PAGE) \
      for (int t = 0; t < PAGE; t += 16 * V) { \
        __m512 l[G][V]; \
        for (int g = 0; g < G; g++) \
          for (int v = 0; v < V; v++) l[g][v] = _mm512_setzero_ps(); \
        for (int d = 0; d < dk; d++) { \
          __m512 kv[V]; \
          for (int v = 0; v < V; v++) kv[v] = LD16(k + d * PAGE + t + 16 * v); \
          for (int g = 0; g < G; g++) { \
            __m512 b = _mm512_set1_ps(q[g * dk + d]); \
            for (int v = 0; v < V; v++) l[g][v] = _mm512_fmadd_ps(b, kv[v], l[g][v]); \
          } \
        } \
        for (int g = 0; g < G; g++) \
          for (int v = 0; v < V; v++) _mm512_storeu_ps(s + g * POS + p + t + 16 * v, l[g][v]); \
      } \
  } \
  INLINE void avx512_str_b##G(float *s, const float *q, const uint16_t *k, int dk) { \
    for (int p = 0; p < POS; p += PAGE, k += dk * PAGE) \
      for (int t = 0; t < PAGE; t += 16 * V) { \
        __m512 l[G][V]; \
        for (int g = 0; g < G; g++) \
          for (int v = 0; v < V; v++) l[g][v] = _mm512_setzero_ps(); \
        for (int d = 0; d < dk; d++) { \
          __m512 kv[V]; \
          for (int v = 0; v < V; v++) kv[v] = LD16(k + AT_STR(d, t + 16 * v, dk)); \
          for (int g = 0; g < G; g++) { \
            __m512 b = _mm512_set1_ps(q[g * dk + d]); \
            for (int v = 0; v < V; v++) l[g][v] = _mm512_fmadd_ps(b, kv[v], l[g][v]); \
          } \
        } \
        for (int g = 0; g < G; g++) \
          for (int v = 0; v < V; v++) _mm512_storeu_ps(s + g * POS + p + t + 16 * v, l[g][v]); \
      } \
  }
AVX512(1, 8, 4) AVX512(2, 4, 4) AVX512(4, 2, 2) AVX512(8, 1, 1)
#define AVX512_PICK(l) \
  INLINE void avx512_##l(float *s, const float *q, const uint16_t *k, int dk, int G) { \
    if (G == 1) avx512_##l##_b1(s, q, k, dk); \
    if (G == 2) avx512_##l##_b2(s, q, k, dk); \
    if (G == 4) avx512_##l##_b4(s, q, k, dk); \
    if (G == 8) avx512_##l##_b8(s, q, k, dk); \
  }
AVX512_PICK(tok) AVX512_PICK(dim) AVX512_PICK(str)
FNS(avx512, 1) FNS(avx512, 2) FNS(avx512, 4) FNS(avx512, 8)
#pragma GCC pop_options
FNS(scalar, 1) FNS(scalar, 2) FNS(scalar, 4) FNS(scalar, 8)

#define ROW(isa) { \
  {isa##_tok_1, isa##_dim_1, isa##_str_1}, {isa##_tok_2, isa##_dim_2, isa##_str_2}, \
  {isa##_tok_4, isa##_dim_4, isa##_str_4}, {isa##_tok_8, isa##_dim_8, isa##_str_8}}
static score_fn *const fns[3][4][3] = {ROW(scalar), ROW(avx2), ROW(avx512)};
static const char *const names[3] = {"scalar", "AVX2", "AVX-512"};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e9 + t.tv_nsec;
}
static int by_value(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

int main(void) {
  float *q = aligned_alloc(64, 8 * 256 * 4), *s = aligned_alloc(64, 8 * POS * 4), *ref = malloc(8 * POS * 4);
  uint16_t *k[3];
  for (int l = 0; l < 3; l++) k[l] = aligned_alloc(64, POS * 256 * 2);
  printf("| ISA | head | group | tok ns | dim ns | str ns | tok/dim | tok/str |\n|---|---|---|---|---|---|---|---|\n");
  for (int isa = 0; isa < 3; isa++) {
    if ((isa == 1 && !__builtin_cpu_supports("avx2")) || (isa == 2 && !__builtin_cpu_supports("avx512dq"))) continue;
    for (int dk = 64; dk <= 256; dk *= 2) {
      srand(1);
      for (int i = 0; i < 8 * dk; i++) q[i] = rand() / (float)RAND_MAX - 0.5f;
      for (int p = 0; p < POS; p++)
        for (int d = 0; d < dk; d++) {
          uint16_t h = (uint16_t)((rand() & 0x83ff) | ((8 + rand() % 7) << 10));
          k[0][(size_t)p * dk + d] = h;
          k[1][((size_t)(p / PAGE) * dk + d) * PAGE + p % PAGE] = h;
          k[2][(size_t)(p / PAGE) * dk * PAGE + AT_STR(d, p % PAGE, dk)] = h;
        }
      for (int gi = 0; gi < 4; gi++) {
        int G = 1 << gi, runs = isa ? 101 : 5;
        double t[3][101];
        for (int i = 0; i < runs; i++)
          for (int l = 0; l < 3; l++) {
            double a = now();
            fns[isa][gi][l](s, q, k[l], dk);
            t[l][i] = now() - a;
            if (i == 0 && l == 0) memcpy(ref, s, (size_t)G * POS * 4);
            if (i == 0 && l > 0)
              for (int j = 0; j < G * POS; j++)
                if (!(s[j] - ref[j] < 1e-4f && ref[j] - s[j] < 1e-4f)) return printf("differ at %d: %g %g\n", j, ref[j], s[j]), 1;
          }
        for (int l = 0; l < 3; l++) qsort(t[l], runs, sizeof(double), by_value);
        double ns[3];
        for (int l = 0; l < 3; l++) ns[l] = t[l][runs / 2] / POS / G;
        printf("| %s | %d | %d | %.2f | %.2f | %.2f | %.2f | %.2f |\n", names[isa], dk, G, ns[0], ns[1], ns[2], ns[0] / ns[1], ns[0] / ns[2]);
        fflush(stdout);
      }
    }
  }
  return 0;
}

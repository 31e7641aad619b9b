/* divergence.c: what one row of logits says, and how far another model's row is from it. Passes over the vocabulary in
 * double, beside the tier's exp, whose bits are equal on all tiers; so are these results.
 * Not the statistics over a text (pyengine/evaluate.py) and no part of sampling. Called by Python only.
 *
 * KL(p || q) is E[d] + log(E[exp(-d)]) with d = (a - max a) - (b - max b), expectations under p. Written as log1p of
 * E[exp(-d) - 1], both terms are small where the models are close, and float exponentials cost a relative error: of a KL
 * of 5e-7 the textbook's sum of p * (log p - log q) would keep no digit. Equal rows give 0 exactly.
 *
 * 49,152 ids on a 2.x GHz core with a neighbour: 0.12 ms for a row, 0.43 for two. */
#include "kernel.h"

#include <string.h>

enum { PIECE = 1024, LANES = 8 }; /* 8 KB of stack; a sum's lane j takes elements j, j+8, ... */

#define NEAR 0.0625 /* |d| below it: the series of exp(-d) - 1; beyond, the two exponentials are far enough apart to subtract */

typedef double d2 __attribute__((vector_size(16)));   /* a loop over plain doubles is not turned into vectors: 2.5 times slower */
typedef int64_t i2 __attribute__((vector_size(16)));

/* y in (-NEAR, NEAR): seven terms leave 1e-13 of it. */
static inline d2 expm1_near(d2 y) {
  d2 s = 1.0 / 720 + y * (1.0 / 5040);
  s = 1.0 / 120 + y * s;
  s = 1.0 / 24 + y * s;
  s = 1.0 / 6 + y * s;
  s = 0.5 + y * s;
  return y + y * y * s;
}

/* The first of the largest; PE_ENONFINITE if a value is NaN or infinite. */
static int best_of(const float *x, int64_t n, float *max, int32_t *best) {
  float top = -__builtin_inff();
  int32_t bad = 0;
  for (int64_t i = 0; i < n; i++) {
    top = x[i] > top ? x[i] : top;
    bad |= x[i] - x[i] != 0;
  }
  if (bad) return PE_ENONFINITE;
  int64_t at = 0;
  while (x[at] != top) at++;
  *max = top, *best = (int32_t)at;
  return PE_OK;
}

static inline d2 two(const float *x) { return (d2){x[0], x[1]}; }

static double total(const d2 *lane) {
  double s = 0;
  for (int j = 0; j < LANES; j++) s += lane[j / 2][j % 2];
  return s;
}

/* x[i] - max, and to the next multiple of LANES what becomes +0. */
static void exponentials(float *y, const float *x, float max, int64_t n, const pe_vops *v) {
  int64_t i = 0;
  for (; i < n; i++) y[i] = x[i] - max;
  for (; i % LANES; i++) y[i] = -1000.0f;
  v->exp(y, y, i);
}

int pe_divergence_run(pe_divergence *r, const pe_vops *v) {
  float e[PIECE], f[PIECE], rest[2][LANES] = {{0}};
  d2 sum[LANES / 2] = {{0}}, other[LANES / 2] = {{0}}, mean[LANES / 2] = {{0}}, change[LANES / 2] = {{0}};
  if (r->n < 1 || r->n > INT32_MAX || !r->p) return PE_EINVAL;
  int rc = best_of(r->p, r->n, &r->p_max, &r->p_best);
  if (!rc && r->q) rc = best_of(r->q, r->n, &r->q_max, &r->q_best);
  if (rc) return rc;
  for (int64_t at = 0; at < r->n; at += PIECE) {
    int64_t n = r->n - at < PIECE ? r->n - at : PIECE;
    exponentials(e, r->p + at, r->p_max, n, v);
    if (r->q) exponentials(f, r->q + at, r->q_max, n, v);
    for (int64_t i = 0; i < n; i += LANES) {
      const float *a = r->p + at + i, *b = r->q ? r->q + at + i : NULL;
      if (b && n - i < LANES) {                 /* the row's end: its e and f are 0, d may be anything finite */
        memcpy(rest[0], a, (size_t)(n - i) * sizeof *a);
        memcpy(rest[1], b, (size_t)(n - i) * sizeof *b);
        a = rest[0], b = rest[1];
      }
      for (int j = 0; j < LANES / 2; j++) {
        d2 p = two(e + i + 2 * j);
        sum[j] += p;
        if (!b) continue;
        d2 q = two(f + i + 2 * j), d = (two(a + 2 * j) - (double)r->p_max) - (two(b + 2 * j) - (double)r->q_max);
        i2 near = (i2)((d < NEAR) & (d > -NEAR));
        d2 series = p * expm1_near(-d), far = q - p;
        other[j] += q;
        mean[j] += p * d;
        change[j] += (d2)(((i2)series & near) | ((i2)far & ~near));
      }
    }
  }
  r->p_sum = total(sum);
  if (!r->q) return PE_OK;
  r->q_sum = total(other);
  r->mean = total(mean) / r->p_sum;
  r->change = total(change) / r->p_sum;
  return PE_OK;
}

/* exec_experts.c: the instructions between a router and its experts: ROUTE, GROUP, GATHER, MIX. The
 * products of the experts themselves are MM and FFN with a list (exec_mm.c). Operands are in the table
 * at the top of exec.c.
 *
 * ROUTE chooses for every token by itself. GROUP, one part, puts the (token, expert) pairs in the order
 * of the experts, so that an expert is one product over its own rows; GATHER copies the tokens' rows to
 * that order. A pair's row depends on its token and its expert alone, never on the place it got, and MIX
 * adds a token's rows in the order in which they were chosen: no bit depends on which tokens share a step. */
#include <string.h>
#include "exec.h"

pe_pairs pe_pairs_of(const pe_prog *p, pe_ref list, int64_t n_expert, int64_t n_pairs) {
  int32_t *at = (int32_t *)pe_at(p, list);
  return (pe_pairs){at, at + 1, at + 1 + n_expert, at + 2 + 2 * n_expert, at + 2 + 2 * n_expert + n_pairs};
}

/* ---- ROUTE ------------------------------------------------------------------------- */

/* exp(x - max)/sum, the sum by sixteen lanes. NaN, and what is infinite, makes all of them NaN. */
static void softmax(const pe_prog *p, float *y, const float *x, int64_t n) {
  float max = x[0], s[16] = {0};
  for (int64_t i = 1; i < n; i++) max = max > x[i] ? max : x[i];
  for (int64_t i = 0; i < n; i++) y[i] = x[i] - max;
  p->v->exp(y, y, n);
  for (int64_t i = 0; i < n; i++) s[i % 16] += y[i];
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) s[i] += s[i + half];
  for (int64_t i = 0; i < n; i++) y[i] /= s[0];
}

static void sigmoid(const pe_prog *p, float *y, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = -x[i];
  p->v->exp(y, y, n);
  for (int64_t i = 0; i < n; i++) y[i] = 1.0f / (1.0f + y[i]);
}

/* NaN comes first, so that it reaches the logits. */
static int before(float a, float b) { return a > b || (a != a && b == b); }

/* Index of the best that is not taken, the lowest among equals. */
static int64_t best(const float *score, const uint8_t *taken, int64_t n) {
  int64_t found = -1;
  for (int64_t i = 0; i < n; i++)
    if (!taken[i] && (found < 0 || before(score[i], score[found]))) found = i;
  return found;
}

/* Takes out the experts of all groups but the best `used`; a group's score is the sum of its two best experts. */
static void keep_groups(const float *score, uint8_t *taken, int64_t n, int64_t groups, int64_t used) {
  float group[PE_MAX_EXPERTS / 2];
  uint8_t kept[PE_MAX_EXPERTS / 2] = {0};
  int64_t each = n / groups;
  for (int64_t g = 0; g < groups; g++) {
    const float *s = score + g * each;
    int64_t first = best(s, taken + g * each, each);
    taken[g * each + first] = 1;
    group[g] = s[first] + s[best(s, taken + g * each, each)];
    taken[g * each + first] = 0;
  }
  for (int64_t i = 0; i < used; i++) {
    int64_t g = best(group, kept, groups);
    if (g >= 0) kept[g] = 1;
  }
  for (int64_t e = 0; e < n; e++) taken[e] = !kept[e / each];
}

/* The least that weights are divided by, 2^-14: what all of them underflow to elsewhere, in halves. */
#define LEAST_SUM 0x1p-14f

void pe_run_route(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  int64_t n = in->n[0], kind = in->n[1], used = in->per_token, groups = in->n[2];
  const float *x = pe_row_f32(p, in->a[0], n, row);
  float *prob = (float *)pe_scratch(p, thread), *score = prob + PE_MAX_EXPERTS, *w = pe_row_f32(p, in->a[2], used, row);
  uint8_t *taken = (uint8_t *)(score + PE_MAX_EXPERTS);
  int32_t *chosen = pe_pairs_of(p, in->a[3], n, (int64_t)p->step.n_tokens * used).pair + row * used;
  if (kind == PE_ROUTE_SOFTMAX) softmax(p, prob, x, n);
  else if (kind == PE_ROUTE_SIGMOID) sigmoid(p, prob, x, n);
  else memcpy(prob, x, (size_t)n * sizeof *x);
  memcpy(score, prob, (size_t)n * sizeof *x);
  if (pe_has(in->a[1])) p->v->add(score, prob, (const float *)pe_at(p, in->a[1]), n);
  memset(taken, 0, (size_t)n);
  if (groups > 1) keep_groups(score, taken, n, groups, in->n[3]);
  for (int64_t s = 0; s < used; s++) {
    int64_t e = best(score, taken, n);
    taken[e] = 1;
    chosen[s] = (int32_t)e;
    w[s] = prob[e];
  }
  if (kind == PE_ROUTE_SELECTED) softmax(p, w, w, used);
  if (in->n[4]) {
    float sum = 0.0f;
    for (int64_t s = 0; s < used; s++) sum += w[s];
    sum = sum < LEAST_SUM ? LEAST_SUM : sum;
    for (int64_t s = 0; s < used; s++) w[s] /= sum;
  }
  if (in->f[0] != 1.0) p->v->scale(w, w, (float)in->f[0], used);
}

/* ---- GROUP, GATHER, MIX --------------------------------------------------------------- */

uint32_t pe_parts_group(const pe_prog *p, const pe_insn *in) { return pe_rows_of(p, in) > 0; }

void pe_run_group(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread) {
  (void)part, (void)thread;
  int64_t n = in->n[0], pairs = pe_rows_of(p, in);
  pe_pairs g = pe_pairs_of(p, in->a[0], n, pairs);
  memset(g.first, 0, (size_t)(n + 1) * sizeof *g.first);
  for (int64_t i = 0; i < pairs; i++) g.first[g.pair[i] + 1]++;
  /* Experts with more than the average come first: a long part begun last would be waited for. */
  int32_t active = 0, with = 0;
  for (int64_t e = 0; e < n; e++) with += g.first[e + 1] > 0;
  for (int large = 1; large >= 0; large--)
    for (int64_t e = 0; e < n; e++)
      if (g.first[e + 1] && ((int64_t)g.first[e + 1] * with > pairs) == large) g.active[active++] = (int32_t)e;
  *g.n_active = active;
  for (int64_t e = 0; e < n; e++) g.first[e + 1] += g.first[e];
  for (int64_t i = 0; i < pairs; i++) {       /* first[e] runs to first[e + 1] ... */
    int32_t at = g.first[g.pair[i]]++;
    g.token[at] = (int32_t)(i / in->per_token);
    g.pair[i] = at;
  }
  for (int64_t e = n; e > 0; e--) g.first[e] = g.first[e - 1];    /* ... and goes back */
  g.first[0] = 0;
}

void pe_run_gather(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  (void)thread;
  int64_t stride = pe_act_stride((int32_t)in->n[1], in->n[0]);
  pe_pairs g = pe_pairs_of(p, in->a[1], in->n[2], pe_rows_of(p, in));
  memcpy(pe_at(p, in->a[2]) + row * stride, pe_at(p, in->a[0]) + g.token[row] * stride, (size_t)stride);
}

void pe_run_mix(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  (void)thread;
  int64_t k = in->n[0], used = in->per_token;
  const int32_t *pair = pe_pairs_of(p, in->a[2], in->n[1], (int64_t)p->step.n_tokens * used).pair + row * used;
  const float *w = pe_row_f32(p, in->a[1], used, row);
  float *y = pe_row_f32(p, in->a[3], k, row);
  memset(y, 0, (size_t)k * sizeof *y);
  for (int64_t s = 0; s < used; s++) p->v->axpy(y, w[s], pe_row_f32(p, in->a[0], k, pair[s]), k);
}

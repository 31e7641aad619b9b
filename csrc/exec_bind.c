/* exec_bind.c: binds a program: every operand is checked against its region once,
 * so that exec.c need not look again. Allocates what a program keeps. */
#include <stdlib.h>
#include <string.h>
#include "exec.h"

#define MAX_DIM ((int64_t)1 << 31)   /* of any shape number: products of three stay below 2^63 once checked */

typedef struct check {
  const pe_prog *p;
  const pe_insn *in;
  int32_t *bad;
  int rc;
} check;

static void fail(check *c, int rc, int32_t operand) {
  if (c->rc) return;
  c->rc = rc;
  if (c->bad) c->bad[1] = operand;
}

/* Operand i holds `bytes` bytes at a multiple of `align`; written: its region must be writable. */
static void need(check *c, int i, int64_t count, int64_t bytes, int64_t align, int written, int optional) {
  pe_ref r = c->in->a[i];
  if (r.region < 0) {
    if (!optional) fail(c, PE_EINVAL, i);
    return;
  }
  int64_t size;
  if (r.region >= c->p->n_regions || r.offset < 0 || __builtin_mul_overflow(count, bytes, &size)) { fail(c, PE_ERANGE, i); return; }
  const pe_region *g = &c->p->regions[r.region];
  if (size > g->size - r.offset || r.offset > g->size || (written && !g->writable)) { fail(c, PE_ERANGE, i); return; }
  if (((uintptr_t)g->base + (uintptr_t)r.offset) % (uintptr_t)align) fail(c, PE_EINVAL, i);
}

static void dim(check *c, int i, int64_t lo, int64_t hi) {
  if (c->in->n[i] < lo || c->in->n[i] > hi) fail(c, PE_EINVAL, 100 + i);
}

static void rows_f32(check *c, int i, int64_t rows, int64_t k, int written, int optional) {
  need(c, i, rows, pe_up16(k) * 4, 64, written, optional);
}

static void rows_act(check *c, int i, int32_t act, int64_t rows, int64_t k, int written, int optional) {
  if (c->in->a[i].region < 0 && optional) return;
  int64_t stride = pe_act_stride(act, k);
  if (stride < 0) fail(c, PE_EINVAL, i);
  else need(c, i, rows, stride, 64, written, optional);
}

static void vec_f32(check *c, int i, int64_t k, int optional) { need(c, i, k, 4, 4, 0, optional); }

/* Shape numbers k rows row_bytes act, and kernels that take them. */
static void check_kernels(check *c) {
  const pe_insn *in = c->in;
  int32_t n_rows;
  pe_rows(&n_rows);
  for (int i = 0; i < 4; i++) dim(c, i, i == 3 ? 0 : 1, i == 3 ? 2 : MAX_DIM);
  if (c->rc) return;
  for (int i = 0; i < 3; i++) {
    if (in->fn[i] < 0 || in->fn[i] >= n_rows) { fail(c, PE_EINVAL, 200 + i); return; }
    const pe_row *row = &c->p->rows[in->fn[i]];
    const pe_type *t = pe_type_by_id(row->wtype);
    int lo = i == 0 ? 1 : i == 1 ? in->few : in->many, hi = i == 0 ? in->few - 1 : i == 1 ? in->many - 1 : INT32_MAX;
    /* more tokens than n_max are handed over in pieces, of which the last may be short */
    if (row->act != in->n[3] || row->n_min > lo || (hi >= lo && row->n_max < hi && row->n_min > 1) || row->n_max < 1 || !t ||
        in->n[0] % t->block || in->n[2] != in->n[0] / t->block * t->bytes)
      fail(c, PE_EINVAL, 200 + i);
  }
  if (in->few < 1 || in->many < in->few) fail(c, PE_EINVAL, 203);
}

static void activations(check *c, int i, int64_t rows) {
  if ((int32_t)c->in->n[3] == PE_ACT_F32) rows_f32(c, i, rows, c->in->n[0], 0, 0);
  else rows_act(c, i, (int32_t)c->in->n[3], rows, c->in->n[0], 0, 0);
}

static int64_t max_rows(const pe_limits *l, const pe_insn *in) {
  if (in->count == PE_COUNT_PAIRS) return (int64_t)l->max_tokens * in->per_token;
  return in->count == PE_COUNT_TOKENS ? l->max_tokens : l->max_wanted;
}

/* The list of the step's pairs; shape number i is the number of experts. */
static void pairs_list(check *c, int operand, int i, int written) {
  int64_t n = c->in->n[i];
  dim(c, i, 1, PE_MAX_EXPERTS);
  if (c->in->per_token < 1 || c->in->per_token > n) fail(c, PE_EINVAL, 302);
  if (!c->rc) need(c, operand, pe_pairs_ints(n, (int64_t)c->p->limits.max_tokens * c->in->per_token), 4, 64, written, 0);
}

/* Matrices that a product has: n[5] of them with a list of pairs, else one. */
static int64_t matrices(check *c, int list) {
  if (!c->in->n[5]) return 1;
  if (c->in->count != PE_COUNT_PAIRS) fail(c, PE_EINVAL, 300);
  pairs_list(c, list, 5, 0);
  return c->rc ? 1 : c->in->n[5];
}

/* A product of n[5] matrices by head: a row of activations for each (token, head), a row of results for each token. */
static void check_heads(check *c, int64_t rows) {
  const int64_t *n = c->in->n;
  dim(c, 1, 1, 65536), dim(c, 5, 1, 65536), dim(c, 4, n[1] * n[5], MAX_DIM);
  if (c->in->count != PE_COUNT_PAIRS || c->in->per_token != n[5]) fail(c, PE_EINVAL, 302);
  if (c->rc) return;
  need(c, 0, n[1] * n[5], n[2], 1, 0, 0), activations(c, 1, rows), rows_f32(c, 2, c->p->limits.max_tokens, n[4], 1, 0), vec_f32(c, 3, n[1] * n[5], 1);
}

static void check_mm(check *c, int64_t rows) {
  const int64_t *n = c->in->n;
  check_kernels(c), dim(c, 4, n[1], MAX_DIM);
  if (n[5] && !pe_has(c->in->a[4])) {
    check_heads(c, rows);
    return;
  }
  int64_t m = matrices(c, 4);
  if (c->rc) return;
  need(c, 0, n[1] * m, n[2], 1, 0, 0), activations(c, 1, rows), rows_f32(c, 2, rows, n[4], 1, 0), vec_f32(c, 3, n[1] * m, 1);
}

static void check_ffn(check *c, int64_t rows) {
  const int64_t *n = c->in->n;
  check_kernels(c), dim(c, 1, 1, c->p->row_bytes / 4), dim(c, 4, 0, PE_ACT_SWIGLU_OAI);
  int64_t m = matrices(c, 6);
  if (c->rc) return;
  need(c, 0, n[1] * m, n[2], 1, 0, 0), need(c, 1, n[1] * m, n[2], 1, 0, 0), activations(c, 2, rows);
  rows_f32(c, 3, rows, n[1], 1, 1), rows_act(c, 4, PE_ACT_Q32, rows, n[1], 1, 1), rows_act(c, 5, PE_ACT_Q256, rows, n[1], 1, 1);
}

static void pages(check *c, int i, int64_t group, int64_t n_kv, int64_t dk, int64_t dv) {
  const pe_limits *l = &c->p->limits;
  if (group < 0 || group >= l->n_groups) { fail(c, PE_EINVAL, 105); return; }
  if (dk > PE_MAX_DK) fail(c, PE_EINVAL, i); /* attention's scratch holds no more */
  int64_t k = pe_kv_bytes(l->kv_type, dk), v = pe_kv_bytes(l->kv_type, dv);   /* -1: no such type, or not for this head size */
  if (k < 0 || v < 0 || n_kv * (k + v) != l->page_bytes[group] || c->in->a[i].region != l->page_region[group]) fail(c, PE_EINVAL, i);
  need(c, i, l->n_pages[group], l->page_bytes[group], 64, 1, 0);
}

static void heads(check *c) {
  const pe_insn *in = c->in;
  dim(c, 0, 1, 65536), dim(c, 1, 1, 65536), dim(c, 2, 1, 1024), dim(c, 3, 1, 1024);
  if (!c->rc && in->n[0] % in->n[1]) fail(c, PE_EINVAL, 101);
}

static void check_insn(check *c) {
  const pe_insn *in = c->in;
  const int64_t *n = in->n;
  int64_t rows = max_rows(&c->p->limits, in), all = c->p->limits.max_tokens;
  int of_pairs = in->op == PE_OP_GROUP || in->op == PE_OP_GATHER;
  int of_any = in->op == PE_OP_NORM || in->op == PE_OP_MM || in->op == PE_OP_EW || in->op == PE_OP_GLU || in->op == PE_OP_FFN;
  int fits = of_any || (in->count == PE_COUNT_TOKENS && !of_pairs) || (in->count == PE_COUNT_PAIRS && of_pairs);
  if (in->count < PE_COUNT_TOKENS || in->count > PE_COUNT_LOGITS || !fits || (in->count == PE_COUNT_PAIRS && in->per_token < 1)) {
    fail(c, PE_EINVAL, 300);
    return;
  }
  switch (in->op) {
    case PE_OP_EMBED: {
      const pe_type *t = pe_type_by_id((int32_t)n[1]);
      dim(c, 0, 1, MAX_DIM), dim(c, 2, 1, MAX_DIM * 8), dim(c, 4, 0, PE_BY_NOTHING);
      dim(c, 3, n[4] == PE_BY_TOKEN ? c->p->limits.n_ids : n[4] == PE_BY_POSITION ? c->p->limits.n_ctx : 1, MAX_DIM);
      if (!t || n[0] % t->block || n[2] != n[0] / t->block * t->bytes) fail(c, PE_EINVAL, 102);
      need(c, 0, n[3], n[2], 1, 0, 0), rows_f32(c, 1, rows, n[0], 1, 0);
      break;
    }
    case PE_OP_ROPE_TABLE:
      dim(c, 0, 1, 512), need(c, 0, n[0], 8, 8, 0, 0), rows_f32(c, 1, rows, 2 * n[0], 1, 0);
      break;
    case PE_OP_NORM:
      dim(c, 0, 1, c->p->row_bytes / 4), dim(c, 1, 0, 2), dim(c, 2, 0, in->count == PE_COUNT_WANTED);
      if (!n[2]) all = rows;
      rows_f32(c, 0, all, n[0], 0, 0), vec_f32(c, 1, n[0], 1), rows_f32(c, 2, all, n[0], 1, 1);
      vec_f32(c, 3, n[0], n[1] != 2), vec_f32(c, 4, n[0], 1), rows_f32(c, 5, rows, n[0], 1, 1);
      rows_act(c, 6, PE_ACT_Q32, rows, n[0], 1, 1), rows_act(c, 7, PE_ACT_Q256, rows, n[0], 1, 1);
      break;
    case PE_OP_MM: check_mm(c, rows); break;
    case PE_OP_FFN: check_ffn(c, rows); break;
    case PE_OP_KV:
      heads(c), dim(c, 4, 0, n[2]), dim(c, 5, 0, 2);
      if (c->rc) break;
      if (n[4] % 2 || (n[5] && !n[4])) fail(c, PE_EINVAL, 104);
      rows_f32(c, 0, rows, n[0] * n[2], 1, 1), rows_f32(c, 1, rows, n[1] * n[2], 1, !pe_has(in->a[6]));
      rows_f32(c, 2, rows, n[1] * n[3], 0, !pe_has(in->a[6])), rows_f32(c, 3, rows, n[4], 0, !n[5]);
      vec_f32(c, 4, n[2], 1), vec_f32(c, 5, n[2], 1);
      if (pe_has(in->a[6])) pages(c, 6, n[6], n[1], n[2], n[3]);
      break;
    case PE_OP_ATTN:
      heads(c), dim(c, 4, 0, MAX_DIM), dim(c, 6, 0, MAX_DIM);
      if (c->rc) break;
      rows_f32(c, 0, rows, n[0] * n[2], 0, 0), rows_f32(c, 1, rows, n[0] * n[3], 1, 0);
      vec_f32(c, 4, n[0], 1), need(c, 2, n[6], 4, 64, 1, n[6] == 0), pages(c, 3, n[5], n[1], n[2], n[3]);
      if (!c->rc && n[4] != c->p->window[n[5]]) fail(c, PE_EINVAL, 104);
      if (n[7] < 0 || n[7] > 1 || n[7] != c->p->both || (n[7] && (n[4] || n[6]))) fail(c, PE_EINVAL, 107);   /* no window, no splitting */
      break;
    case PE_OP_ATTN_OUT:
      heads(c), dim(c, 4, 0, MAX_DIM), dim(c, 5, 0, MAX_DIM);
      if (c->rc) break;
      vec_f32(c, 4, n[0], 1), need(c, 0, n[5], 4, 64, 0, n[5] == 0), rows_f32(c, 1, rows, n[0] * n[3], 1, 0);
      rows_act(c, 2, PE_ACT_Q32, rows, n[0] * n[3], 1, 1), rows_act(c, 3, PE_ACT_Q256, rows, n[0] * n[3], 1, 1);
      break;
    case PE_OP_CONV:
      dim(c, 0, 1, c->p->row_bytes / 4), dim(c, 1, 2, PE_MAX_TAPS);
      if (c->rc) break;
      if (c->p->limits.n_slots < 1) fail(c, PE_EINVAL, 3);
      rows_f32(c, 0, rows, n[0], 0, 0), need(c, 1, n[1], n[0] * 4, 4, 0, 0), rows_f32(c, 2, rows, n[0], 1, 1);
      need(c, 3, c->p->limits.n_slots, pe_conv_bytes(in), 64, 1, 0), rows_f32(c, 4, rows, n[0], 0, 1);
      rows_act(c, 5, PE_ACT_Q32, rows, n[0], 1, 1), rows_act(c, 6, PE_ACT_Q256, rows, n[0], 1, 1);
      break;
    case PE_OP_GLU:
      dim(c, 0, 1, c->p->row_bytes / 4), dim(c, 1, 0, PE_ACT_SWIGLU_OAI);
      rows_f32(c, 0, rows, n[0], 0, 0), rows_f32(c, 1, rows, n[0], 0, 0), rows_f32(c, 2, rows, n[0], 1, 1);
      rows_act(c, 3, PE_ACT_Q32, rows, n[0], 1, 1), rows_act(c, 4, PE_ACT_Q256, rows, n[0], 1, 1);
      break;
    case PE_OP_EW:
      dim(c, 0, 1, MAX_DIM), dim(c, 1, 0, PE_EW_POSITION_SCALE), dim(c, 2, 0, PE_ACT_RELU);
      rows_f32(c, 0, rows, n[0], 0, 0), rows_f32(c, 2, rows, n[0], 1, 0);
      if (n[1] == PE_EW_POSITION_SCALE) {
        dim(c, 3, 1, MAX_DIM), dim(c, 4, 1, MAX_DIM), vec_f32(c, 1, n[4], 0);
        if (in->count != PE_COUNT_TOKENS) fail(c, PE_EINVAL, 300);    /* wanted rows have no positions of their own */
        if (!c->rc && c->p->limits.n_ctx > n[3] * n[4]) fail(c, PE_EINVAL, 104);
      } else rows_f32(c, 1, rows, n[0], 0, n[1] > PE_EW_MUL);
      break;
    case PE_OP_ROUTE:
      dim(c, 1, 0, PE_ROUTE_SELECTED), dim(c, 2, 0, n[0] > 3 ? n[0] / 2 : 1), dim(c, 3, 0, n[2]), dim(c, 4, 0, 1), pairs_list(c, 3, 0, 1);
      /* groups of two experts at least, and in those that are used as many as a token takes */
      if (!c->rc && n[2] > 1 && (n[0] % n[2] || n[3] < 1 || n[0] / n[2] * n[3] < in->per_token)) fail(c, PE_EINVAL, 102);
      if (c->rc) break;
      rows_f32(c, 0, rows, n[0], 0, 0), vec_f32(c, 1, n[0], 1), rows_f32(c, 2, rows, in->per_token, 1, 0);
      break;
    case PE_OP_GROUP: pairs_list(c, 0, 0, 1); break;
    case PE_OP_GATHER: {
      int64_t stride = (dim(c, 0, 1, MAX_DIM), dim(c, 1, 0, 2), pairs_list(c, 1, 2, 0), pe_act_stride((int32_t)n[1], n[0]));
      if (stride < 0) fail(c, PE_EINVAL, 101);
      if (!c->rc) need(c, 0, all, stride, 64, 0, 0), need(c, 2, rows, stride, 64, 1, 0);
      break;
    }
    case PE_OP_SPLICE:
      for (int i = 0; i < 8; i += 4) dim(c, i, 1, 65536), dim(c, i + 1, 1, MAX_DIM), dim(c, i + 2, 0, MAX_DIM), dim(c, i + 3, i == 0, MAX_DIM);
      for (int i = 0; i < 8 && !c->rc; i += 4) {
        if (n[i + 3] > n[i + 1] - n[i + 2]) fail(c, PE_EINVAL, 103 + i);
        if (n[i] > 1 && n[4 - i] > 1 && n[i] != n[4 - i]) fail(c, PE_EINVAL, 100 + i);
        rows_f32(c, i / 4, rows, n[i] * n[i + 1], 0, i && !n[7]);
      }
      if (!c->rc) rows_f32(c, 2, rows, (n[0] > n[4] ? n[0] : n[4]) * (n[3] + n[7]), 1, 0);
      break;
    case PE_OP_MIX:
      dim(c, 0, 1, MAX_DIM), pairs_list(c, 2, 1, 0);
      if (c->rc) break;
      rows_f32(c, 0, rows * in->per_token, n[0], 0, 0), rows_f32(c, 1, rows, in->per_token, 0, 0), rows_f32(c, 3, rows, n[0], 1, 0);
      break;
    default: fail(c, PE_EINVAL, 301);
  }
}

static int64_t longest_row(const pe_insn *insns, int32_t n) {
  int64_t most = 16;
  for (int32_t i = 0; i < n; i++) {
    int64_t k = insns[i].op == PE_OP_NORM || insns[i].op == PE_OP_GLU || insns[i].op == PE_OP_CONV ? insns[i].n[0] : insns[i].op == PE_OP_FFN ? insns[i].n[1] : 0;
    if (k > most && k <= 1 << 24) most = k;
  }
  return pe_up64(4 * most);
}

int64_t pe_thread_bytes(const pe_insn *insns, int32_t n, const pe_limits *limits) {
  int64_t most = 0;
  for (int32_t i = 0; i < n; i++) {
    int64_t bytes = insns[i].op == PE_OP_FFN ? pe_up64(pe_ffn_bytes(&insns[i], max_rows(limits, &insns[i]))) : 0;
    if (bytes > most) most = bytes;
  }
  return PE_SCRATCH + longest_row(insns, n) + most;
}

static int check_limits(const pe_limits *l, const pe_region *regions, int32_t n_regions) {
  if (l->max_tokens < 1 || l->max_seqs < 1 || l->max_wanted < 1 || l->n_ctx < 1 || l->n_ids < 1) return PE_EINVAL;
  if (l->n_groups < 0 || l->n_groups > 8 || l->n_slots < 0 || l->max_pages < ((int64_t)l->n_ctx + PE_PAGE - 1) / PE_PAGE) return PE_EINVAL;
  for (int32_t g = 0; g < l->n_groups; g++) {
    int64_t bytes;
    if (l->n_pages[g] < 1 || l->page_bytes[g] < 1 || l->page_bytes[g] % 64 || l->n_layers[g] < 1 || l->page_region[g] < 0 ||
        l->page_region[g] >= n_regions || __builtin_mul_overflow((int64_t)l->n_pages[g] * l->n_layers[g], l->page_bytes[g], &bytes) ||
        bytes > regions[l->page_region[g]].size || !regions[l->page_region[g]].writable)
      return PE_EINVAL;
  }
  return PE_OK;
}

void pe_prog_free(pe_prog *p) {
  if (!p) return;
  free(p->insns), free(p->regions), free(p->scratch_base), free(p->first), free(p->pos), free(p->seq), free(p->save);
  free(p->tiles), free(p->phases), free(p->insn_parts), free(p->phase_parts), free((void *)p->ns);
  free(p);
}

static void *copy_of(const void *src, size_t n, size_t size) {
  void *m = malloc(n * size + 1);
  if (m) memcpy(m, src, n * size);
  return m;
}

int pe_prog_new(pe_prog **out, const pe_insn *insns, int32_t n_insns, const pe_region *regions, int32_t n_regions,
                const pe_limits *limits, uint32_t isa, int32_t n_threads, int32_t *bad) {
  *out = NULL;
  if (bad) bad[0] = bad[1] = -1;
  if (n_insns < 1 || n_insns > 65536 || n_regions < 1 || n_threads < 1 || n_threads > 1024) return PE_EINVAL;
  int rc = check_limits(limits, regions, n_regions);
  if (rc) return rc;
  pe_prog *p = calloc(1, sizeof *p);
  if (!p) return PE_ENOMEM;
  size_t tokens = (size_t)limits->max_tokens, ni = (size_t)n_insns;
  p->limits = *limits, p->n_threads = n_threads, p->n_insns = n_insns, p->n_regions = n_regions;
  p->row_bytes = longest_row(insns, n_insns);
  p->thread_bytes = pe_thread_bytes(insns, n_insns, limits);
  if (p->thread_bytes > (PTRDIFF_MAX - 64) / n_threads) {   /* more than 32 bits address */
    pe_prog_free(p);
    return PE_ENOMEM;
  }
  size_t scratch = (size_t)n_threads * (size_t)p->thread_bytes;
  p->insns = copy_of(insns, ni, sizeof *insns), p->regions = copy_of(regions, (size_t)n_regions, sizeof *regions);
  p->scratch_base = malloc(scratch + 64);
  p->first = calloc(ni + 1, 4), p->pos = calloc(tokens, 4), p->seq = calloc(tokens, 4), p->save = calloc(tokens, 4), p->tiles = calloc(tokens, sizeof *p->tiles);
  p->phases = calloc(ni, sizeof *p->phases), p->insn_parts = calloc(ni, 4), p->phase_parts = calloc(ni, 4), p->ns = calloc(ni, sizeof *p->ns);
  if (!p->insns || !p->regions || !p->scratch_base || !p->first || !p->pos || !p->seq || !p->save || !p->tiles || !p->phases ||
      !p->insn_parts || !p->phase_parts || !p->ns) {
    pe_prog_free(p);
    return PE_ENOMEM;
  }
  p->scratch = (uint8_t *)(((uintptr_t)p->scratch_base + 63) & ~(uintptr_t)63);
  int32_t n_vops, n_rows;
  const pe_vops *v = pe_vops_all(&n_vops);
  for (int32_t i = 0; i < n_vops; i++)
    if ((v[i].isa & isa) == v[i].isa) p->v = &v[i];   /* scalar comes first, the widest last */
  p->rows = pe_rows(&n_rows);
  for (int32_t i = 0; i < n_insns; i++) {
    if (i == 0 || insns[i - 1].barrier) p->first[p->n_groups++] = i;
    if (insns[i].op == PE_OP_ATTN && insns[i].n[5] >= 0 && insns[i].n[5] < 8) p->window[insns[i].n[5]] = insns[i].n[4];
    if (insns[i].op == PE_OP_ATTN && insns[i].n[7]) p->both = 1;
  }
  p->first[p->n_groups] = n_insns;
  rc = p->n_groups > PE_MAX_PHASES || !p->v ? PE_EINVAL : PE_OK;
  for (int32_t i = 0; i < n_insns && !rc; i++) {
    check c = {p, &p->insns[i], bad, 0};
    check_insn(&c);
    for (int j = 0; j < 3 && !c.rc && (insns[i].op == PE_OP_MM || insns[i].op == PE_OP_FFN); j++)
      if ((p->rows[insns[i].fn[j]].isa & isa) != p->rows[insns[i].fn[j]].isa) fail(&c, PE_EINVAL, 200 + j);
    if (c.rc && bad) bad[0] = i;
    rc = c.rc;
  }
  if (rc) pe_prog_free(p);
  else *out = p;
  return rc;
}

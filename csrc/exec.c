/* exec.c: runs an instruction array over the pool. It knows operands, row counts
 * and parts; the arithmetic is in the kernels it calls. Matrix products are in
 * exec_mm.c, what sees pages in exec_attn.c, what lies between a router and its
 * experts in exec_experts.c, what has state in exec_state.c. Allocates only when a
 * program is bound (pe_prog_new).
 *
 * Every float row in the arena has a stride that is a multiple of 16 floats; "up(k)"
 * below. Activation rows are those of kernel.h. "rows" are the step's tokens, its
 * wanted rows or its (token, expert) pairs (insn.count). A NORM that gathers reads
 * operands 0 and 2 at the wanted token's row and writes its results at the index
 * among the wanted.
 *
 *  op          operands a[]                                           n[]                            f[]
 *  EMBED       0 weight, 1 out rows                                   k type row_bytes n_rows by     scale
 *              the row of the token (by 0), of its position (1), or the first (2)
 *  ROPE_TABLE  0 freq double[nf], 1 out [2*nf] rows                   nf                             mscale
 *  NORM        0 x, 1 post w, 2 residual r, 3 w, 4 b, 5 y, 6 Q32, 7 Q256   k kind(0 none 1 rms 2 layer) gather   eps gain
 *              t = post ? rms(x)*post : x;  t = t*gain, if gain is not 0;  r = r + t in place, if present (else r is t)
 *              y = kind ? norm(r)*w + b : r, written as floats and as activation rows
 *  MM          0 weight, 1 activations, 2 y, 3 bias, 4 list           k rows row_bytes act yk n_expert
 *              list: n_expert matrices one after another, each for its own pairs; no list, but n_expert: a matrix for
 *              each of the row's n_expert heads, whose results lie side by side in a row of y
 *  KV          0 q, 1 k, 2 v, 3 rope table, 4 q norm w, 5 k norm w, 6 pages
 *              n_head n_kv dk dv n_rot kind(0 none 1 adjacent 2 halves) group              eps
 *  ATTN        0 q, 1 out, 2 partials, 3 pages, 4 sinks [n_head]   n_head n_kv dk dv window group cap both   scale softcap
 *              both: every row sees the whole sequence, which is in this step
 *  ATTN_OUT    0 partials, 1 out, 2 Q32, 3 Q256, 4 sinks   n_head n_kv dk dv window cap
 *  GLU         0 gate, 1 up, 2 y, 3 Q32, 4 Q256   k kind
 *  EW          0 a, 1 b, 2 y                      k what kind period steps                 value
 *              what 5: a * b[position/period], b float[steps]
 *  FFN         0 gate weight, 1 up weight, 2 activations, 3 y, 4 Q32, 5 Q256, 6 list   k rows row_bytes act kind n_expert
 *              act(gate x) * (up x), written as floats and as activation rows; list: as for MM
 *  ROUTE       0 logits, 1 selection bias, 2 weights out [used] rows, 3 list     n_expert kind groups groups_used normalize   scale
 *  GROUP       0 list                                                 n_expert
 *  GATHER      0 rows of tokens, 1 list, 2 rows of pairs              k act n_expert
 *  MIX         0 rows of pairs, 1 weights, 2 list, 3 y                k n_expert
 *  CONV        0 x, 1 w float[taps][k], 2 y, 3 state slots, 4 gate, 5 Q32, 6 Q256   k taps
 *              y = sum over taps of w*x, the last tap this position's, times gate; written as floats and as activation rows
 *  SPLICE      0 a, 1 b, 2 y      a's heads, their d, first, n; the same of b
 *              head h of y is n columns of a's head h, or of its only one, then n of b's
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "exec.h"
#include "fpenv.h"

#define N_OPS (PE_OP_CONV + 1)

/* ---- rows and tiles of a step ---------------------------------------------------- */

int64_t pe_rows_of(const pe_prog *p, const pe_insn *in) {
  switch (in->count) {
    case PE_COUNT_PAIRS: return (int64_t)p->step.n_tokens * in->per_token;
    case PE_COUNT_WANTED: return p->step.n_wanted;
    case PE_COUNT_LOGITS: return p->step.n_wanted - p->step.n_hidden;
    default: return p->step.n_tokens;
  }
}

float *pe_row_f32(const pe_prog *p, pe_ref r, int64_t k, int64_t row) {
  return (float *)(p->regions[r.region].base + r.offset) + row * pe_up16(k);
}

static uint8_t *act_row(const pe_prog *p, pe_ref r, int32_t act, int64_t k, int64_t row) {
  return p->regions[r.region].base + r.offset + row * pe_act_stride(act, k);
}

/* ---- EMBED, ROPE_TABLE, NORM, GLU, EW ---------------------------------------------- */

static uint32_t parts_rows(const pe_prog *p, const pe_insn *in) { return (uint32_t)pe_rows_of(p, in); }

static void run_embed(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  (void)thread;
  int64_t k = in->n[0], id = in->n[4] == PE_BY_TOKEN ? p->step.tokens[row] : in->n[4] == PE_BY_POSITION ? p->pos[row] : 0;
  float *y = pe_row_f32(p, in->a[1], k, row);
  pe_dequant((int32_t)in->n[1], pe_at(p, in->a[0]) + id * in->n[2], y, k);
  if (in->f[0] != 1.0) p->v->scale(y, y, (float)in->f[0], k);
}

static void run_rope_table(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  (void)thread;
  p->v->rope_table(pe_row_f32(p, in->a[1], 2 * in->n[0], row), (const double *)pe_at(p, in->a[0]), in->n[0],
                   p->pos[row], (float)in->f[0]);
}

void pe_quantize(const pe_prog *p, pe_ref q32, pe_ref q256, const float *x, int64_t k, int64_t row, int64_t e0, int64_t e1) {
  if (pe_has(q32)) p->v->quant32(act_row(p, q32, PE_ACT_Q32, k, row), x, k, e0 / 32, e1 / 32);
  if (pe_has(q256)) p->v->quant256(act_row(p, q256, PE_ACT_Q256, k, row), x, k, e0 / 256, e1 / 256);
}

static void run_norm(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  int64_t k = in->n[0], src = in->n[2] ? p->step.wanted[row] : row;
  float *tmp = (float *)(pe_scratch(p, thread) + PE_SCRATCH);
  const float *x = pe_row_f32(p, in->a[0], k, src);
  float eps = (float)in->f[0];
  if (pe_has(in->a[1])) {
    p->v->rms_norm(tmp, x, (const float *)pe_at(p, in->a[1]), k, eps);
    x = tmp;
  }
  if (in->f[1] != 0.0) {
    p->v->scale(tmp, x, (float)in->f[1], k);
    x = tmp;
  }
  if (pe_has(in->a[2])) {
    float *r = pe_row_f32(p, in->a[2], k, src);
    p->v->add(r, r, x, k);
    x = r;
  }
  float *y = pe_has(in->a[5]) ? pe_row_f32(p, in->a[5], k, row) : tmp;
  const float *w = pe_has(in->a[3]) ? (const float *)pe_at(p, in->a[3]) : NULL;
  if (in->n[1] == 1) p->v->rms_norm(y, x, w, k, eps);
  else if (in->n[1] == 2) p->v->layer_norm(y, x, w, pe_has(in->a[4]) ? (const float *)pe_at(p, in->a[4]) : NULL, k, eps);
  else if (pe_has(in->a[5]) && y != x) memcpy(y, x, (size_t)k * sizeof *y);
  pe_quantize(p, in->a[6], in->a[7], in->n[1] ? y : x, k, row, 0, k);
}

/* A row of a GLU is cut into pieces of 1,024, so that a single token's feed-forward
 * keeps several threads busy. */
#define GLU_PIECE 1024

static uint32_t parts_glu(const pe_prog *p, const pe_insn *in) {
  return (uint32_t)(pe_rows_of(p, in) * ((in->n[0] + GLU_PIECE - 1) / GLU_PIECE));
}

static void run_glu(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread) {
  int64_t k = in->n[0], pieces = (k + GLU_PIECE - 1) / GLU_PIECE;
  int64_t row = part / pieces, e0 = part % pieces * GLU_PIECE, e1 = e0 + GLU_PIECE < k ? e0 + GLU_PIECE : k;
  float *tmp = (float *)(pe_scratch(p, thread) + PE_SCRATCH);
  float *y = pe_has(in->a[2]) ? pe_row_f32(p, in->a[2], k, row) : tmp;
  p->v->glu((int32_t)in->n[1], y + e0, pe_row_f32(p, in->a[0], k, row) + e0, pe_row_f32(p, in->a[1], k, row) + e0, e1 - e0);
  pe_quantize(p, in->a[3], in->a[4], y, k, row, e0, e1);
}

static void run_ew(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  (void)thread;
  int64_t k = in->n[0];
  const float *a = pe_row_f32(p, in->a[0], k, row);
  float *y = pe_row_f32(p, in->a[2], k, row);
  if (in->n[1] == PE_EW_POSITION_SCALE) {
    p->v->scale(y, a, ((const float *)pe_at(p, in->a[1]))[p->pos[row] / in->n[3]], k);
    return;
  }
  const float *b = pe_has(in->a[1]) ? pe_row_f32(p, in->a[1], k, row) : NULL;
  switch (in->n[1]) {
    case PE_EW_ADD: p->v->add(y, a, b, k); break;
    case PE_EW_MUL: p->v->mul(y, a, b, k); break;
    case PE_EW_SCALE: p->v->scale(y, a, (float)in->f[0], k); break;
    case PE_EW_ACT: p->v->act((int32_t)in->n[2], y, a, k); break;
    default: p->v->softcap(y, a, (float)in->f[0], k); break;
  }
}

/* The floats from `first` on of head h of a row of several, or of one. */
static const float *columns(const pe_prog *p, pe_ref r, const int64_t *n, int64_t row, int64_t h) {
  return pe_row_f32(p, r, n[0] * n[1], row) + (n[0] == 1 ? 0 : h) * n[1] + n[2];
}

static void run_splice(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  (void)thread;
  const int64_t *a = in->n, *b = in->n + 4;
  int64_t heads = a[0] > b[0] ? a[0] : b[0], d = a[3] + b[3];
  float *y = pe_row_f32(p, in->a[2], heads * d, row);
  for (int64_t h = 0; h < heads; h++, y += d) {
    memcpy(y, columns(p, in->a[0], a, row, h), (size_t)a[3] * sizeof *y);
    if (b[3]) memcpy(y + a[3], columns(p, in->a[1], b, row, h), (size_t)b[3] * sizeof *y);
  }
}

/* ---- the table of operations --------------------------------------------------------- */

static const struct {
  uint32_t (*parts)(const pe_prog *, const pe_insn *);
  void (*run)(pe_prog *, const pe_insn *, int64_t part, int32_t thread);
} OPS[N_OPS] = {
  [PE_OP_EMBED] = {parts_rows, run_embed}, [PE_OP_ROPE_TABLE] = {parts_rows, run_rope_table},
  [PE_OP_NORM] = {parts_rows, run_norm},   [PE_OP_MM] = {pe_parts_mm, pe_run_mm},
  [PE_OP_KV] = {pe_parts_kv, pe_run_kv},   [PE_OP_ATTN] = {pe_parts_attn, pe_run_attn},
  [PE_OP_ATTN_OUT] = {parts_rows, pe_run_attn_out},
  [PE_OP_GLU] = {parts_glu, run_glu},      [PE_OP_EW] = {parts_rows, run_ew},
  [PE_OP_FFN] = {pe_parts_ffn, pe_run_ffn}, [PE_OP_ROUTE] = {parts_rows, pe_run_route},
  [PE_OP_GROUP] = {pe_parts_group, pe_run_group}, [PE_OP_GATHER] = {parts_rows, pe_run_gather},
  [PE_OP_MIX] = {parts_rows, pe_run_mix},  [PE_OP_SPLICE] = {parts_rows, run_splice},
  [PE_OP_CONV] = {parts_rows, pe_run_conv},
};

/* ---- one step -------------------------------------------------------------------------- */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void run_parts(pe_prog *p, int32_t i, uint32_t part, uint32_t end, int32_t thread) {
  if (atomic_load_explicit(&p->stop, memory_order_relaxed)) return;
  const pe_insn *in = &p->insns[i];
  int64_t t0 = p->profile ? now_ns() : 0;
  for (; part < end; part++) OPS[in->op].run(p, in, part, thread);
  if (p->profile) atomic_fetch_add_explicit(&p->ns[i], now_ns() - t0, memory_order_relaxed);
}

static void part(void *ctx, int32_t phase, uint32_t part, int32_t thread) {
  pe_prog *p = ctx;
  int32_t i = p->phases[phase].first;
  while (part >= p->insn_parts[i]) part -= p->insn_parts[i++];
  run_parts(p, i, part, part + 1, thread);
}

static void tail(void *ctx, int32_t phase, int32_t thread) {
  pe_prog *p = ctx;
  for (int32_t i = p->phases[phase].tail; i < p->phases[phase].end; i++) run_parts(p, i, 0, p->insn_parts[i], thread);
}

/* A phase of its own costs 0.12 us between two threads that spin, more between many, and tens
 * of microseconds where one sleeps; an element of a norm or a GLU takes about a nanosecond.
 * Reasoned for steps of few rows, not tuned: with two threads both ways are equal. */
#define TAIL_ELEMENTS 8192

static int64_t elements(const pe_prog *p, const pe_insn *in) {
  int64_t k = in->n[0];
  if (in->op == PE_OP_KV) k = (pe_has(in->a[0]) ? in->n[0] * in->n[2] : 0) + in->n[1] * (in->n[2] + in->n[3]);
  if (in->op == PE_OP_ATTN_OUT) k = in->n[0] * in->n[3];
  if (in->op == PE_OP_MIX) k *= in->per_token;
  if (in->op == PE_OP_SPLICE) k = (in->n[0] > in->n[4] ? in->n[0] : in->n[4]) * (in->n[3] + in->n[7]);
  if (in->op == PE_OP_GATHER || in->op == PE_OP_SPLICE) k /= 16;      /* copied, not computed */
  return pe_rows_of(p, in) * k;
}

/* The phases of this step: a group of instructions that no barrier divides is a phase, the tail
 * of the phase before it, or, where it has no parts (nobody wants logits), neither. */
static void make_phases(pe_prog *p) {
  p->n_phases = 0;
  for (int32_t g = 0; g < p->n_groups; g++) {
    uint32_t parts = 0;
    int64_t work = 0;
    int tail = p->n_phases > 0;
    for (int32_t i = p->first[g]; i < p->first[g + 1]; i++) {
      const pe_insn *in = &p->insns[i];
      parts += p->insn_parts[i] = OPS[in->op].parts(p, in);
      work += elements(p, in);
      tail &= in->tail != 0;
    }
    if (!parts) continue;
    if (tail && (parts == 1 || work <= TAIL_ELEMENTS)) {
      p->phases[p->n_phases - 1].end = p->first[g + 1];
      continue;
    }
    p->phases[p->n_phases] = (pe_phase){p->first[g], p->first[g + 1], p->first[g + 1]};
    p->phase_parts[p->n_phases++] = parts;
  }
}

static int bad_step(int32_t *bad, int32_t field, int32_t index) {
  if (bad) bad[0] = field, bad[1] = index;
  return PE_EINVAL;
}

/* Fields as numbered for bad[0]: 0 counts, 1 tokens, 2 start, 3 count, 4 tables, 5 wanted, 6 copies, 7 slots,
 * 8 saves. */
static int check_step(pe_prog *p, const pe_step *s, int32_t *bad) {
  const pe_limits *l = &p->limits;
  if (s->n_tokens < 1 || s->n_tokens > l->max_tokens) return bad_step(bad, 0, 0);
  if (s->n_seqs < 1 || s->n_seqs > l->max_seqs) return bad_step(bad, 0, 1);
  if (s->n_wanted < 0 || s->n_wanted > l->max_wanted) return bad_step(bad, 0, 2);
  if (s->n_copies < 0) return bad_step(bad, 0, 3);
  if (s->n_hidden < 0 || s->n_hidden > s->n_wanted) return bad_step(bad, 0, 5);
  for (int32_t i = 0; i < s->n_tokens; i++)
    if (s->tokens[i] < 0 || s->tokens[i] >= l->n_ids) return bad_step(bad, 1, i);
  int32_t row = 0;
  for (int32_t i = 0; i < s->n_seqs; i++) {
    int32_t start = s->start[i], count = s->count[i];
    if (start < 0 || start >= l->n_ctx || (p->both && start)) return bad_step(bad, 2, i);
    if (count < 1 || count > l->n_ctx - start || count > s->n_tokens - row) return bad_step(bad, 3, i);
    for (int32_t g = 0; g < l->n_groups; g++) {
      const int32_t *table = s->tables + ((int64_t)g * s->n_seqs + i) * l->max_pages;
      int64_t seen = p->window[g] > 0 && start - p->window[g] + 1 > 0 ? start - p->window[g] + 1 : 0;
      for (int32_t q = (int32_t)(seen / PE_PAGE); q <= (start + count - 1) / PE_PAGE; q++)
        if (table[q] < 0 || table[q] >= l->n_pages[g]) return bad_step(bad, 4, i);
    }
    if (l->n_slots && start && (s->slots[i] < 0 || s->slots[i] >= l->n_slots)) return bad_step(bad, 7, i);
    for (int32_t j = 0; j < count; j++) p->seq[row] = i, p->save[row] = -1, p->pos[row++] = start + j;
  }
  if (row != s->n_tokens) return bad_step(bad, 3, s->n_seqs - 1);
  for (int32_t i = 0; i < s->n_wanted; i++)
    if (s->wanted[i] < 0 || s->wanted[i] >= s->n_tokens || (i && s->wanted[i] <= s->wanted[i - 1])) return bad_step(bad, 5, i);
  for (int32_t i = 0; i < s->n_copies; i++) {
    const int32_t *c = s->copies + 3 * i;
    if (c[0] < 0 || c[0] >= l->n_groups || c[1] < 0 || c[1] >= l->n_pages[c[0]] || c[2] < 0 || c[2] >= l->n_pages[c[0]] || c[1] == c[2])
      return bad_step(bad, 6, i);
  }
  if (s->n_saves < 0 || (s->n_saves && !l->n_slots)) return bad_step(bad, 8, 0);
  for (int32_t i = 0; i < s->n_saves; i++) {
    const int32_t *c = s->saves + 2 * i;
    if (c[0] < 0 || c[0] >= s->n_tokens || (i && c[0] <= c[-2]) || c[1] < 0 || c[1] >= l->n_slots) return bad_step(bad, 8, i);
    for (int32_t q = 0; q < s->n_seqs; q++)
      if (s->start[q] && s->slots[q] == c[1]) return bad_step(bad, 8, i);
    p->save[c[0]] = c[1];
  }
  return PE_OK;
}

/* Query tiles: runs of at most PE_TILE rows of one sequence. A tile shares the
 * conversion of a page, so tiles want to be long; parts want to be many. */
static void make_tiles(pe_prog *p) {
  int32_t row = 0, max_chunk = 1;
  p->n_tiles = 0;
  for (int32_t i = 0; i < p->step.n_seqs; i++) {
    for (int32_t left = p->step.count[i]; left > 0;) {
      int32_t n = left < PE_TILE ? left : PE_TILE;
      p->tiles[p->n_tiles++] = (pe_tile){i, row, n};
      row += n, left -= n;
    }
    int32_t last = (p->step.start[i] + p->step.count[i] - 1) / PE_CHUNK;
    if (last + 1 > max_chunk) max_chunk = last + 1;
  }
  p->n_chunks = max_chunk;
}

/* Layer `layer` of every copy, in the order of the copies: one may read what another has written. */
static void copy_layer(void *ctx, int32_t phase, uint32_t layer, int32_t thread) {
  (void)phase, (void)thread;
  const pe_prog *p = ctx;
  for (int32_t i = 0; i < p->step.n_copies; i++) {
    const int32_t *c = p->step.copies + 3 * i;
    if (layer >= (uint32_t)p->limits.n_layers[c[0]]) continue;
    int64_t bytes = p->limits.page_bytes[c[0]];
    uint8_t *base = p->regions[p->limits.page_region[c[0]]].base + layer * bytes * p->limits.n_pages[c[0]];
    memcpy(base + c[2] * bytes, base + c[1] * bytes, (size_t)bytes);
  }
}

static void no_tail(void *ctx, int32_t phase, int32_t thread) { (void)ctx, (void)phase, (void)thread; }

/* From here on the threads share the copies: less takes about 0.1 ms, and threads that sleep are not there sooner. */
#define COPY_ALONE (1 << 20)

static void copy_pages(pe_prog *p, pe_pool *pool) {
  uint32_t layers = 0;
  int64_t bytes = 0;
  for (int32_t i = 0; i < p->step.n_copies; i++) {
    int32_t g = p->step.copies[3 * i], n = p->limits.n_layers[g];
    bytes += p->limits.page_bytes[g] * n;
    if ((uint32_t)n > layers) layers = (uint32_t)n;
  }
  if (bytes > COPY_ALONE) {
    pe_pool_run(pool, &(pe_job){copy_layer, no_tail, p, &layers, 1, p->step.n_threads});
    return;
  }
  for (uint32_t layer = 0; layer < layers; layer++) copy_layer(p, 0, layer, 0);
}

int pe_prog_run(pe_prog *p, pe_pool *pool, const pe_step *step, int32_t *bad) {
  if (atomic_load(&p->stop)) return PE_ESTOPPED;
  int32_t threads = step->n_threads ? step->n_threads : pe_pool_threads(pool);
  if (pe_pool_threads(pool) > p->n_threads || threads < 1 || threads > pe_pool_threads(pool)) return bad_step(bad, 0, 4);
  int rc = check_step(p, step, bad);
  if (rc) return rc;
  uint64_t env = pe_fpenv_get();
  pe_fpenv_set();
  p->step = *step;
  p->step.n_threads = threads;
  make_tiles(p);
  copy_pages(p, pool);
  make_phases(p);
  pe_pool_run(pool, &(pe_job){part, tail, p, p->phase_parts, p->n_phases, threads});
  if (p->profile)
    for (int32_t i = 0; i < p->n_insns; i++) p->profile[i] += atomic_exchange(&p->ns[i], 0);
  pe_fpenv_put(env);
  return atomic_load(&p->stop) ? PE_ESTOPPED : PE_OK;
}

int32_t pe_prog_phases(const pe_prog *p) { return p->n_phases; }
void pe_prog_stop(pe_prog *p, int32_t stop) { atomic_store(&p->stop, stop); }
void pe_prog_profile(pe_prog *p, int64_t *ns) { p->profile = ns; }

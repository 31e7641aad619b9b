/* exec_attn.c: the instructions that see pages: KV, ATTN, ATTN_OUT. Operands are
 * in the table at the top of exec.c.
 *
 * A page of one layer holds, for each KV head in turn, K and then V, as PE_KV_* says. The layers of a group lie one after another; an
 * instruction's page operand is the start of its layer. */
#include "exec.h"

static const int32_t *table_of(const pe_prog *p, int64_t group, int32_t seq) {
  return p->step.tables + (group * p->step.n_seqs + seq) * p->limits.max_pages;
}

static void heads(const pe_prog *p, const pe_insn *in, float *x, int64_t n, pe_ref norm, const float *cs) {
  int64_t d = in->n[2], n_rot = in->n[4];
  for (int64_t h = 0; h < n; h++, x += d) {
    if (pe_has(norm)) p->v->rms_norm(x, x, (const float *)pe_at(p, norm), d, (float)in->f[0]);
    if (in->n[5] == 1) p->v->rope_adjacent(x, cs, n_rot);
    else if (in->n[5] == 2) p->v->rope_halves(x, cs, n_rot);
  }
}

static void kv_row(pe_prog *p, const pe_insn *in, int64_t row) {
  int64_t n_head = in->n[0], n_kv = in->n[1], dk = in->n[2], dv = in->n[3];
  const float *cs = pe_has(in->a[3]) ? pe_row_f32(p, in->a[3], in->n[4], row) : NULL;
  if (pe_has(in->a[0])) heads(p, in, pe_row_f32(p, in->a[0], n_head * dk, row), n_head, in->a[4], cs);
  if (pe_has(in->a[1])) heads(p, in, pe_row_f32(p, in->a[1], n_kv * dk, row), n_kv, in->a[5], cs);
  if (!pe_has(in->a[6])) return;
  int64_t group = in->n[6], pos = p->pos[row], kb = pe_kv_bytes(p->limits.kv_type, dk), hb = kb + pe_kv_bytes(p->limits.kv_type, dv);
  uint8_t *page = pe_at(p, in->a[6]) + table_of(p, group, p->seq[row])[pos / PE_PAGE] * p->limits.page_bytes[group];
  const float *k = pe_row_f32(p, in->a[1], n_kv * dk, row), *v = pe_row_f32(p, in->a[2], n_kv * dv, row);
  for (int64_t h = 0; h < n_kv; h++)
    p->v->kv_store[p->limits.kv_type](page + h * hb, page + h * hb + kb, pos % PE_PAGE, k + h * dk, v + h * dv, dk, dv);
}

/* A prompt's rows go sixteen to a part: they write to the same strips of K, whose lines two threads
 * would tear from each other at every row. */
static int64_t kv_rows(int64_t n) { return n < 64 ? 1 : 16; }

uint32_t pe_parts_kv(const pe_prog *p, const pe_insn *in) {
  int64_t n = pe_rows_of(p, in), per = kv_rows(n);
  return (uint32_t)((n + per - 1) / per);
}

void pe_run_kv(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread) {
  (void)thread;
  int64_t n = pe_rows_of(p, in), per = kv_rows(n), end = (part + 1) * per < n ? (part + 1) * per : n;
  for (int64_t row = part * per; row < end; row++) kv_row(p, in, row);
}

/* A step of few rows and a long context has too few tiles to keep the threads busy:
 * its chunks become parts of their own, if their partial results have room. */
static int64_t part_stride(int64_t dv) { return pe_up16(dv + 2); }

static int is_split(const pe_prog *p, int64_t n_head, int64_t dv, int64_t cap) {
  return p->n_chunks > 1 && p->step.n_tokens <= PE_SPLIT_ROWS && p->step.n_tokens * n_head * p->n_chunks * part_stride(dv) <= cap;
}

uint32_t pe_parts_attn(const pe_prog *p, const pe_insn *in) {
  int64_t parts = p->n_tiles * in->n[1];
  return (uint32_t)(is_split(p, in->n[0], in->n[3], in->n[6]) ? parts * p->n_chunks : parts);
}

void pe_run_attn(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread) {
  int64_t n_head = in->n[0], n_kv = in->n[1], dk = in->n[2], dv = in->n[3], window = in->n[4], group = in->n[5];
  int split = is_split(p, n_head, dv, in->n[6]);
  int64_t chunk = split ? part % p->n_chunks : 0;
  if (split) part /= p->n_chunks;
  int64_t h = part % n_kv, g = n_head / n_kv, kb = pe_kv_bytes(p->limits.kv_type, dk), hb = kb + pe_kv_bytes(p->limits.kv_type, dv);
  const pe_tile *t = &p->tiles[part / n_kv];
  int64_t pos = p->pos[t->row], seen = window > 0 && pos - window + 1 > 0 ? pos - window + 1 : 0;
  int64_t all = in->n[7] ? p->step.count[t->seq] : 0;      /* its start is 0: check_step */
  int64_t c0 = seen / PE_CHUNK, c1 = (all ? all - 1 : pos + t->n - 1) / PE_CHUNK + 1;
  pe_attn a = {
    .q = pe_row_f32(p, in->a[0], n_head * dk, t->row) + h * g * dk, .q_stride = pe_up16(n_head * dk), .n_q = t->n, .n_group = g,
    .dk = dk, .dv = dv, .pos = pos, .window = window, .kv = pe_at(p, in->a[3]), .table = table_of(p, group, t->seq),
    .page_stride = p->limits.page_bytes[group], .k_off = h * hb, .v_off = h * hb + kb, .kv_type = p->limits.kv_type,
    .scale = (float)in->f[0], .softcap = (float)in->f[1], .c0 = c0, .c1 = c1,
    .o = pe_row_f32(p, in->a[1], n_head * dv, t->row) + h * g * dv, .o_stride = pe_up16(n_head * dv),
    .sinks = pe_has(in->a[4]) ? (const float *)pe_at(p, in->a[4]) + h * g : NULL, .scratch = pe_scratch(p, thread), .all = all,
  };
  if (split) {
    if (chunk < c0 || chunk >= c1) return;
    a.c0 = chunk, a.c1 = chunk + 1;
    a.part_stride = part_stride(dv), a.part_chunks = p->n_chunks;
    /* rows of one token lie n_head apart, those of this group g apart: one call per token */
    for (int64_t i = 0; i < t->n; i++) {
      a.n_q = 1, a.pos = pos + i;
      a.q = pe_row_f32(p, in->a[0], n_head * dk, t->row + i) + h * g * dk;
      a.part = (float *)pe_at(p, in->a[2]) + ((t->row + i) * n_head + h * g) * p->n_chunks * a.part_stride;
      p->v->attn(&a);
    }
    return;
  }
  p->v->attn(&a);
}

void pe_run_attn_out(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  (void)thread;
  int64_t n_head = in->n[0], dv = in->n[3], window = in->n[4];
  float *o = pe_row_f32(p, in->a[1], n_head * dv, row);
  if (is_split(p, n_head, dv, in->n[5])) {
    int64_t pos = p->pos[row], seen = window > 0 && pos - window + 1 > 0 ? pos - window + 1 : 0;
    for (int64_t h = 0; h < n_head; h++)
      p->v->attn_merge(o + h * dv, (const float *)pe_at(p, in->a[0]) + (row * n_head + h) * p->n_chunks * part_stride(dv),
                       part_stride(dv), seen / PE_CHUNK, pos / PE_CHUNK + 1, dv, pe_has(in->a[4]) ? (const float *)pe_at(p, in->a[4]) + h : NULL);
  }
  pe_quantize(p, in->a[2], in->a[3], o, n_head * dv, row, 0, n_head * dv);
}

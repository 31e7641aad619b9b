/* exec_mm.c: the instructions that are matrix products, MM and FFN, and how their rows
 * are cut into parts. Operands are in the table at the top of exec.c. */
#include "exec.h"

/* Rows of one part: about four parts a thread, so that a thread that lost its core
 * for a while leaves little behind; at most 2 MB of weights (some 140 us at the
 * memory's speed: every part starts its streams anew, and parts of 512 KB read 5 % less);
 * a multiple of 16, the rows of a panel. */
#define PART_BYTES (2 << 20)

static int64_t mm_rows(const pe_prog *p, const pe_insn *in, int64_t rows) {
  int64_t want = rows / (p->step.n_threads * 4), cap = PART_BYTES / (in->n[2] > 0 ? in->n[2] : 1);
  if (want > cap) want = cap;
  want = (want + 15) & ~(int64_t)15;
  return want < 32 ? 32 : want;
}

/* With many tokens a part is long enough at 32 rows, the widest panel: 576 rows over two threads in
 * parts of 80 leave one thread 320 of them, and half a panel of AVX-512 idle in each part. Where there
 * are rows enough it is up to four panels, which share what a kernel finds out about the activations. */
static int64_t part_rows(const pe_prog *p, const pe_insn *in, int64_t rows, int64_t n) {
  if (n < 64) return mm_rows(p, in, rows);
  int64_t want = rows / (p->step.n_threads * 8) & ~(int64_t)31;
  return want < 32 ? 32 : want < 128 ? want : 128;
}

/* With experts: how many of them have pairs, at most; who they are is not known when parts are counted. With heads: all. */
static int64_t matrices(const pe_prog *p, const pe_insn *in) {
  int64_t n = pe_rows_of(p, in);
  return !in->n[5] ? 1 : n < in->n[5] ? n : in->n[5];
}

/* Rows of a part of MM. The experts' matrices count as one, whose tokens are those that an expert has on average. */
static int64_t block_rows(const pe_prog *p, const pe_insn *in) {
  int64_t m = matrices(p, in), per = part_rows(p, in, in->n[1] * m, pe_rows_of(p, in) / m);
  return per < in->n[1] ? per : in->n[1];
}

uint32_t pe_parts_mm(const pe_prog *p, const pe_insn *in) {
  int64_t n = pe_rows_of(p, in);
  if (!n) return 0;
  int64_t per = block_rows(p, in);
  return (uint32_t)((in->n[1] + per - 1) / per * matrices(p, in));
}

/* The rows of a part's matrix: n of them from t0 on, `step` apart. Those of an expert are one after another, in the order of the
 * experts; those of a head are one in each token. n is 0 where fewer experts have pairs than there might have been: such a part has
 * nothing to do. */
typedef struct span { int64_t matrix, t0, n, step; } span;

static span tokens_of(const pe_prog *p, const pe_insn *in, pe_ref list, int64_t matrix) {
  int64_t n = pe_rows_of(p, in);
  if (!in->n[5]) return (span){0, 0, n, 1};
  if (!pe_has(list)) return (span){matrix, matrix, p->step.n_tokens, in->per_token};
  pe_pairs g = pe_pairs_of(p, list, in->n[5], n);
  if (matrix >= *g.n_active) return (span){0, 0, 0, 1};
  int64_t e = g.active[matrix];
  return (span){e, g.first[e], g.first[e + 1] - g.first[e], 1};
}

/* Rows r0..r1 of the matrix `w` times n activation rows from t0 on, `step` apart; the result of rows r0 and t0 goes to y. */
static void product(pe_prog *p, const pe_insn *in, const uint8_t *w, pe_ref x, int64_t t0, int64_t n, int64_t step, int64_t r0, int64_t r1,
                    float *y, int64_t y_stride, int32_t thread) {
  const pe_row *row = &p->rows[in->fn[n >= in->many ? 2 : n >= in->few ? 1 : 0]];
  int64_t stride = pe_act_stride((int32_t)in->n[3], in->n[0]);
  pe_mm mm = {.w = w + r0 * in->n[2], .w_stride = in->n[2], .k = in->n[0], .r0 = 0, .r1 = r1 - r0,
              .x_stride = step * stride, .y_stride = y_stride, .scratch = pe_scratch(p, thread)};
  for (int64_t t = 0; t < n; t += mm.n) {
    mm.n = n - t < row->n_max ? n - t : row->n_max;
    mm.x = pe_at(p, x) + (t0 + t * step) * stride;
    mm.y = y + t * y_stride;
    row->fn(&mm);
  }
}

void pe_run_mm(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread) {
  int64_t per = block_rows(p, in), blocks = (in->n[1] + per - 1) / per, r0 = part % blocks * per;
  int64_t r1 = r0 + per < in->n[1] ? r0 + per : in->n[1], stride = pe_up16(in->n[4]);
  span s = tokens_of(p, in, in->a[4], part / blocks);
  int64_t first = s.step > 1 ? s.matrix * in->n[1] : s.t0 * stride;   /* heads are columns of y, experts have rows */
  float *y = (float *)pe_at(p, in->a[2]) + first + r0;
  product(p, in, pe_at(p, in->a[0]) + s.matrix * in->n[1] * in->n[2], in->a[1], s.t0, s.n, s.step, r0, r1, y, stride, thread);
  if (!pe_has(in->a[3])) return;
  const float *b = (const float *)pe_at(p, in->a[3]) + s.matrix * in->n[1] + r0;
  for (int64_t t = 0; t < s.n; t++) p->v->add(y + t * stride, y + t * stride, b, r1 - r0);
}

/* ---- FFN: both products of the same rows, then activation, product and quantizing while the floats are in cache ---- */

static int64_t ffn_block(const pe_insn *in) { return pe_has(in->a[5]) ? 256 : pe_has(in->a[4]) ? 32 : 16; }

/* As many rows as MM takes, in whole blocks of the activation rows they become; for many tokens no more
 * than FFN_FLOATS results of each product, unless a block alone is more. Steps of more than FFN_TOKENS go
 * in pieces of so many, so that a thread's buffer stays at 0.6 MB whatever a step holds and, with 256
 * tokens' activations, in a second-level cache of 2 MB (512: 4 % slower at 8192 rows of 2048). */
#define FFN_FLOATS 65536
#define FFN_TOKENS 256

/* Blocks of 256 rows may be few: 32 in a 1B model. Then a part also takes only some of the tokens, so that there are
 * FFN_PARTS a thread: a core of a quarter or a fifth of the others' speed otherwise holds the last part for as long as
 * it saved before (docs/threads.md). Weights are unpacked once for each piece, hence no fewer than FFN_PIECE. */
#define FFN_PARTS 16
#define FFN_PIECE 128

static int64_t ffn_tokens(int64_t n) { return n < FFN_TOKENS ? n : FFN_TOKENS; }

static int64_t ffn_rows(const pe_prog *p, const pe_insn *in, int64_t n) {
  int64_t block = ffn_block(in), want = mm_rows(p, in, in->n[1] * matrices(p, in)), cap = FFN_FLOATS / ffn_tokens(n);
  if (want > cap) want = cap;
  want = want / block * block;
  return want < block ? block : want;
}

/* Sixteen floats beyond the row: tokens a power of two apart would share few cache sets. */
static int64_t ffn_stride(int64_t rows) { return pe_up16(rows) + 16; }

int64_t pe_ffn_bytes(const pe_insn *in, int64_t max_rows) {
  int64_t n = ffn_tokens(max_rows), floats = ffn_block(in) * n;
  if (floats < FFN_FLOATS) floats = FFN_FLOATS;
  return 2 * 4 * (floats + 16 * n);
}

/* Tokens of a part, with blocks of `per` rows. */
static int64_t ffn_piece(const pe_prog *p, const pe_insn *in, int64_t n, int64_t per) {
  int64_t blocks = (in->n[1] + per - 1) / per, pieces = (FFN_PARTS * (int64_t)p->step.n_threads + blocks - 1) / blocks;
  int64_t piece = ((n + pieces - 1) / pieces + 15) & ~(int64_t)15;
  if (p->step.n_threads == 1 || piece > n || in->n[5]) return n;   /* experts are parts enough */
  return piece < FFN_PIECE ? (n < FFN_PIECE ? n : FFN_PIECE) : piece;
}

uint32_t pe_parts_ffn(const pe_prog *p, const pe_insn *in) {
  int64_t n = pe_rows_of(p, in);
  if (!n) return 0;
  int64_t per = ffn_rows(p, in, n), piece = ffn_piece(p, in, n, per);
  return (uint32_t)((in->n[1] + per - 1) / per * ((n + piece - 1) / piece) * matrices(p, in));
}

void pe_run_ffn(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread) {
  int64_t n = pe_rows_of(p, in), k = in->n[1], per = ffn_rows(p, in, n), stride = ffn_stride(per), blocks = (k + per - 1) / per;
  int64_t piece = ffn_piece(p, in, n, per), pieces = (n + piece - 1) / piece;   /* of a block's tokens, one after another */
  span s = tokens_of(p, in, in->a[6], part / (blocks * pieces));
  int64_t r0 = part / pieces % blocks * per, r1 = r0 + per < k ? r0 + per : k;
  int64_t first = s.t0 + part % pieces * piece, end = first + piece < s.t0 + s.n ? first + piece : s.t0 + s.n;
  int64_t matrix = s.matrix * k * in->n[2];
  float *tmp = (float *)(pe_scratch(p, thread) + PE_SCRATCH);
  float *gate = (float *)(pe_scratch(p, thread) + PE_SCRATCH + p->row_bytes), *up = gate + ffn_tokens(n) * stride;
  for (int64_t t0 = first; t0 < end; t0 += FFN_TOKENS) {
    int64_t m = ffn_tokens(end - t0);
    product(p, in, pe_at(p, in->a[0]) + matrix, in->a[2], t0, m, 1, r0, r1, gate, stride, thread);
    product(p, in, pe_at(p, in->a[1]) + matrix, in->a[2], t0, m, 1, r0, r1, up, stride, thread);
    for (int64_t t = 0; t < m; t++) {
      float *y = pe_has(in->a[3]) ? pe_row_f32(p, in->a[3], k, t0 + t) : tmp;
      p->v->glu((int32_t)in->n[4], y + r0, gate + t * stride, up + t * stride, r1 - r0);
      pe_quantize(p, in->a[4], in->a[5], y, k, t0 + t, r0, r1);
    }
  }
}

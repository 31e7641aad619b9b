/* attn.inl.c: attention over pages, written once over the sixteen-lane words.
 * Definition: docs/arithmetic.md, "Attention". Included by simd_<isa>.c only, after
 * ops.inl.c; the pages are written by kv_store.inl.c. It does not split work over threads: exec.c hands out pe_attn's.
 *
 * A row is one (token, head) pair, token-major. Rows go in tiles of up to TILE, a tile
 * goes through its chunks in order; scores of one chunk lie in scratch. In a tile, K is
 * read strip by strip (16 positions x dk) and V column block by column block (positions
 * x 16 columns); each is made float once and used by all rows. Up to DIRECT rows in all
 * (decode), K and V are used as they lie, and read only once where a block takes all rows.
 *
 * What a row sees is a range [lo, hi) of each chunk; both bounds rise with the row, so
 * a block of rows shares [lo of its last, hi of its first) and has ragged ends, which
 * go row by row. Positions outside are computed at most, and never added. */

#include "attn_blocks.inl.c"

enum { TILE = 96, DIRECT = 12, DIRECT_DV = 1024 };         /* more rows or wider heads than DIRECT's take the tile's way */
enum { PANEL_DK = PE_MAX_DK / PANEL };                     /* larger K is used as it lies */

typedef struct {
  float p[TILE][P_STRIDE];                  /* scores, then exp(s - m), of the chunk */
  float m[TILE], l[TILE];                   /* running */
  float m1[TILE], l1[TILE];                 /* of the chunk */
  float m2[TILE], l2[TILE];                 /* of both, and the factors of the two o */
  float e0[TILE], e1[TILE];
  int32_t lo[TILE], hi[TILE];               /* visible positions of the chunk, relative */
  int32_t seen[TILE];                       /* chunks merged so far: 0 or 1 */
  const float *q[TILE];
  float *o[TILE];
  int32_t more;                             /* this call goes on to the next chunk */
  float o16[BLOCK][16 * PANEL];             /* some columns of a block's o in this chunk */
  union {
    float k[PANEL * PANEL_DK][16];
    uint8_t q8[TILE * (PE_MAX_D_BLOCKS + 2 * PE_MAX_D_BLOCKS / 8)];
    float v[PE_CHUNK][16 * PANEL];
    float o1[DIRECT][DIRECT_DV];            /* all o in this chunk */
  } u;
} attn_tile;
_Static_assert(sizeof(attn_tile) <= PE_SCRATCH, "scratch");

static inline const uint8_t *page_of(const pe_attn *a, int64_t pos) {
  return a->kv + (int64_t)a->table[pos / PE_PAGE] * a->page_stride;
}
static inline const uint8_t *k_strip(const pe_attn *a, int64_t pos) {
  return page_of(a, pos) + a->k_off + pos % PE_PAGE / 16 * STRIP_BYTES(a->kv_type) * a->dk;
}
static inline const uint8_t *v_strip(const pe_attn *a, int64_t pos) {
  return page_of(a, pos) + a->v_off + pos % PE_PAGE / 16 * STRIP_BYTES(a->kv_type) * a->dv;
}
static inline const uint8_t *v_row(const pe_attn *a, int64_t pos) {         /* of f16, all rows of the page follow; else those of the strip */
  return v_strip(a, pos) + pos % 16 * row_bytes(a->kv_type, a->dv);
}
static inline const uint16_t *v_scales(const pe_attn *a, int64_t pos) {     /* [dv/32] */
  return (const uint16_t *)(v_strip(a, pos) + 16 * row_bytes(a->kv_type, a->dv)) + pos % 16 * (a->dv / 32);
}
static inline int least(int a, int b) { return a < b ? a : b; }
static inline int most(int a, int b) { return a > b ? a : b; }
static inline int direct_block(int n) { return n <= BLOCK ? n : n <= 2 * BLOCK ? (n + 1) / 2 : BLOCK; }   /* 8 rows are 4 and 4, not 6 and 2 */
static inline int rows_of_block(int n, int b) { return n - b < BLOCK ? n - b : BLOCK; }

/* Decode reads K and V as one stream: the chunk's K, its V, the next chunk's K. These say
 * where it is at position i, which may lie behind the chunk. The hardware's prefetcher
 * stops at each 4 KB, and a page fetched at once is 11.7 GB/s where this is 20. */
static inline const char *v_ahead(const pe_attn *a, const attn_tile *t, int n, int64_t base, int i, const void *here) {
  if (i < t->hi[n - 1]) return (const char *)v_strip(a, base + i);
  return t->more ? (const char *)k_strip(a, base + PE_CHUNK) : (const char *)here;   /* nothing left: what is in cache */
}
static inline const char *k_ahead(const pe_attn *a, const attn_tile *t, int n, int64_t base, int i) {
  int hi = t->hi[n - 1];
  return (const char *)(i < hi ? k_strip(a, base + i) : v_strip(a, base + least(t->lo[0] + i - hi, hi - 1)));
}

/* Scores of the chunk from `base` for all rows that see some of a strip. K as it lies: */
static void attn_scores_direct(const pe_attn *a, attn_tile *t, int n, int64_t base) {
  int lo = t->lo[0] & ~15, hi = t->hi[n - 1], part = direct_block(n);
  int64_t q_stride = pe_act_stride(PE_ACT_Q32, a->dk);
  int f16 = a->kv_type == PE_KV_F16;
  if (!f16)                                                     /* made again for each chunk: 1/256 of what follows */
    for (int r = 0; r < n; r++) op_quant32(t->u.q8 + r * q_stride, t->q[r], a->dk, 0, a->dk / 32);
  for (int s = lo, end; s < hi; s = end) {
    end = least((s / PE_PAGE + 1) * PE_PAGE, hi);
    for (int b = 0; b < n; b += part) {
      int m = least(part, n - b), step = 16 * K_STRIPS(a->kv_type, m);     /* divides a page */
      for (int i = s / step * step; i < end; i += step) {
        if (i + step <= t->lo[b] || i >= t->hi[b + m - 1]) continue;
        const uint8_t *k = k_strip(a, base + i);
        const char *ahead = k_ahead(a, t, n, base, i + most(step, 32));
        if (f16)
          qk_f16[m - 1](&t->p[b][i], t->q + b, k, a->dk, a->scale, ahead);
        else
          qk_blocks[a->kv_type - 1][m - 1](&t->p[b][i], t->u.q8 + b * q_stride, q_stride, k, a->dk, a->scale, ahead);
      }
    }
  }
}

/* f16 K made float, for many rows: */
static void attn_scores(const pe_attn *a, attn_tile *t, int n, int64_t base) {
  int lo = t->lo[0], hi = t->hi[n - 1], step = 16 * PANEL;
  for (int s = lo / step * step; s < hi; s += step) {
    const uint16_t *k = (const uint16_t *)k_strip(a, base + s);
    for (int64_t d = 0; d < PANEL * a->dk; d++) v16_store(t->u.k[d], v16_load_f16(k + 16 * d));
    for (int b = 0; b < n; b += BLOCK) {
      int m = rows_of_block(n, b);
      if (t->lo[b] < s + step && s < t->hi[b + m - 1]) qk_f32[m - 1](&t->p[b][s], t->q + b, t->u.k, a->dk, a->scale, NULL);
    }
  }
}

/* Softcap, maximum, exp, sum of one row's chunk, in place. Only strips at the ends of
 * what the row sees are masked. With a NaN among the scores m may not be the greatest,
 * and exp_below may give anything, but l is NaN, and so is the row. */
static void attn_softmax(attn_tile *t, int r, float softcap) {
  const v16 none = v16_set(-__builtin_inff()), zero = v16_set(0.0f), cap = v16_set(softcap);
  int lo = t->lo[r], hi = t->hi[r], first = lo & ~15, full = hi & ~15;
  float *p = t->p[r];
  if (softcap > 0)
    for (int s = first; s < hi; s += 16) v16_store(p + s, v16_mul(cap, v16_tanh(v16_div(v16_load(p + s), cap))));
  if (lo > first) v16_store(p + first, v16_select(v16_range(lo - first, 16), v16_load(p + first), none));
  if (hi > full) v16_store(p + full, v16_select(v16_range(0, hi - full), v16_load(p + full), none));
  v16 m = none, l = zero;
  for (int s = first; s < hi; s += 16) m = v16_max(m, v16_load(p + s));
  t->m1[r] = v16_hmax(m);
  m = v16_set(t->m1[r]);
  for (int s = first; s < hi; s += 16) {
    v16 e = exp_below(v16_sub(v16_load(p + s), m));             /* +0 where masked */
    v16_store(p + s, e);
    l = v16_add(l, e);
  }
  t->l1[r] = v16_sum(l);
}

/* m, l and the factors of o for running (m, l) joined by (m1, l1), sixteen rows at a time. */
static inline void merge_factors(v16 m, v16 l, v16 m1, v16 l1, v16 *m2, v16 *l2, v16 *e0, v16 *e1) {
  v16 both = v16_max(m, m1);
  *e0 = v16_exp(v16_sub(m, both));
  *e1 = v16_exp(v16_sub(m1, both));
  *l2 = v16_fma(l, *e0, v16_mul(l1, *e1));
  *m2 = both;
}

/* o = the chunk's o1 if it is the row's first, else o*e0 + rn(o1*e1); w columns. */
static inline void merge_columns(attn_tile *t, int r, int64_t column, const float *o1, int w) {
  float *o = t->o[r] + column;
  v16 x = v16_load(o1);
  if (t->seen[r]) {
    x = v16_mul(x, v16_set(t->e1[r]));
    x = v16_fma(w == 16 ? v16_load(o) : v16_load_n(o, w), v16_set(t->e0[r]), x);
  }
  if (w == 16)
    v16_store(o, x);
  else
    v16_store_n(o, x, w);
}

/* Rows b..b+m over positions [from, to) of the chunk, in order for each row: what only
 * the earlier rows see, what all see, what only the later rows see. v and d are rows of `stride`
 * columns, at `from`; `many` takes m rows and `columns` from `column` on, `one` one row and one_columns. */
static void pv_rows(const attn_tile *t, int b, int m, float *o, int64_t o_stride, int type, const uint8_t *v, const uint16_t *d, int64_t stride,
                    int64_t column, int from, int to, const char *ahead, pv_fn *many, int columns, pv_fn *one, int one_columns) {
  int64_t bytes = row_bytes(type, stride);
  int all_lo = most(t->lo[b + m - 1], from), all_hi = least(t->hi[b], to);
  if (all_lo >= all_hi) all_lo = all_hi = to;                   /* nothing shared: all goes row by row, first part */
  for (int part = 0; part < 3; part++) {
    int lo = part == 0 ? from : part == 1 ? all_lo : all_hi, hi = part == 0 ? all_lo : part == 1 ? all_hi : to;
    if (lo >= hi) continue;
    if (part == 1) {
      int64_t i = lo - from;
      many(o, o_stride, &t->p[b][lo], v + i * bytes, d ? d + i * (stride / 32) : d, stride, column, hi - lo, ahead);
      continue;
    }
    for (int r = 0; r < m; r++) {
      int l = most(t->lo[b + r], lo), h = least(t->hi[b + r], hi);
      int64_t i = l - from;
      for (int c = 0; c < columns && l < h; c += one_columns)
        one(o + r * o_stride + c, o_stride, &t->p[b + r][l], v + i * bytes, d ? d + i * (stride / 32) : d, stride, column + c, h - l, ahead);
    }
  }
}

/* V in blocks of columns, made float once for the tile. */
static void attn_values(const pe_attn *a, attn_tile *t, int n, int64_t base) {
  int lo = t->lo[0], hi = t->hi[n - 1];
  for (int64_t j = 0; j < a->dv; j += 16 * PANEL) {
    int w[PANEL];
    for (int c = 0; c < PANEL; c++) w[c] = (int)(a->dv - j - 16 * c < 0 ? 0 : a->dv - j - 16 * c < 16 ? a->dv - j - 16 * c : 16);
    for (int s = lo; s < hi;) {
      int end = least((s / PE_PAGE + 1) * PE_PAGE, hi);
      if (a->kv_type != PE_KV_F16) {
        for (; s < end; s++)
          for (int c = 0; c < PANEL; c++)
            v16_store(t->u.v[s] + 16 * c, (a->kv_type == PE_KV_Q8_0 ? load_q8 : load_q4)(v_row(a, base + s), v_scales(a, base + s), j + 16 * c));
        continue;
      }
      const uint16_t *v = (const uint16_t *)v_row(a, base + s) + j;
      for (; s < end; s++, v += a->dv)
        for (int c = 0; c < PANEL; c++)
          v16_store(t->u.v[s] + 16 * c, w[c] == 16 ? v16_load_f16(v + 16 * c) : v16_load_f16_n(v + (w[c] ? 16 * c : 0), w[c]));
    }
    for (int b = 0; b < n; b += BLOCK) {
      int m = rows_of_block(n, b);
      memset(t->o16, 0, sizeof t->o16);
      pv_rows(t, b, m, t->o16[0], 16 * PANEL, KV_F32, (const uint8_t *)t->u.v[lo], NULL, 16 * PANEL, 0, lo, hi, NULL, pv_f32[m - 1], 16 * PANEL,
              pv_f32[0], 16 * PANEL);
      for (int r = b; r < b + m; r++)
        for (int c = 0; c < PANEL && w[c] && t->lo[r] < t->hi[r]; c++) merge_columns(t, r, j + 16 * c, t->o16[r - b] + 16 * c, w[c]);
    }
  }
}

/* V as it lies, in spans of up to 8 KB of f16, or a strip of blocks, for up to DIRECT rows; dv
 * is a multiple of 16. */
static void attn_values_direct(const pe_attn *a, attn_tile *t, int n, int64_t base) {
  int f16 = a->kv_type == PE_KV_F16, span = !f16 || a->dv > 128 ? 16 : a->dv > 64 ? 32 : 64;
  int lo = t->lo[0], hi = t->hi[n - 1], part = direct_block(n);
  for (int r = 0; r < n; r++) memset(t->u.o1[r], 0, (size_t)a->dv * 4);
  for (int s = lo, end; s < hi; s = end) {
    end = least((s / span + 1) * span, hi);
    const uint8_t *v = v_row(a, base + s);
    const uint16_t *d = f16 ? NULL : v_scales(a, base + s);
    const char *ahead = v_ahead(a, t, n, base, s / span * span + (f16 ? span : 64), v);
    for (int b = 0; b < n; b += part) {
      int m = least(part, n - b), wide = 16 * STRIPS(m);
      for (int64_t j = 0; j < a->dv;) {
        int columns = j + wide <= a->dv ? wide : 16;
        pv_rows(t, b, m, t->u.o1[b] + j, DIRECT_DV, a->kv_type, v, d, a->dv, j, s, end,
                ahead + (f16 ? 2 * (end - s) : STRIP_BYTES(a->kv_type)) * j, (columns > 16 ? pv_wide : pv_narrow)[a->kv_type][m - 1], columns,
                pv_narrow[a->kv_type][0], 16);
        j += columns;
      }
    }
  }
  for (int r = 0; r < n; r++)
    if (t->lo[r] < t->hi[r])
      for (int64_t j = 0; j < a->dv; j += 16) merge_columns(t, r, j, t->u.o1[r] + j, 16);
}

/* One chunk for the tile: scores, softmax, values, and the merge or the partials. */
static void attn_chunk(const pe_attn *a, attn_tile *t, int n, int64_t base) {
  (n <= DIRECT || a->dk > PANEL_DK || a->kv_type != PE_KV_F16 ? attn_scores_direct : attn_scores)(a, t, n, base);
  for (int r = 0; r < n; r++) {
    t->m1[r] = t->l1[r] = 0.0f;
    if (t->lo[r] < t->hi[r]) attn_softmax(t, r, a->softcap);
  }
  for (int r = 0; r < n; r += 16) {
    v16 m, l, e0, e1;
    merge_factors(v16_load(t->m + r), v16_load(t->l + r), v16_load(t->m1 + r), v16_load(t->l1 + r), &m, &l, &e0, &e1);
    v16_store(t->m2 + r, m);
    v16_store(t->l2 + r, l);
    v16_store(t->e0 + r, e0);
    v16_store(t->e1 + r, e1);
  }
  if (n <= DIRECT && a->dv % 16 == 0 && a->dv <= DIRECT_DV)
    attn_values_direct(a, t, n, base);
  else
    attn_values(a, t, n, base);
  for (int r = 0; r < n; r++) {
    if (t->lo[r] >= t->hi[r]) continue;
    t->m[r] = t->seen[r] ? t->m2[r] : t->m1[r];
    t->l[r] = t->seen[r] ? t->l2[r] : t->l1[r];
    t->seen[r] = 1;
  }
}

/* o = x/l over n columns. A sink, a score without a position, has joined first. */
static void attn_finish(float *o, float m, float l, const float *sink, int64_t n) {
  v16 d = v16_set(l);
  int64_t j = 0;
  if (sink) {
    v16 most = v16_max(v16_set(m), v16_set(*sink)), e0 = v16_exp(v16_sub(v16_set(m), most));
    d = v16_fma(d, e0, v16_exp(v16_sub(v16_set(*sink), most)));
    for (; j + 16 <= n; j += 16) v16_store(o + j, v16_mul(v16_load(o + j), e0));
    if (j < n) v16_store_n(o + j, v16_mul(v16_load_n(o + j, (int)(n - j)), e0), (int)(n - j));
    j = 0;
  }
  for (; j + 16 <= n; j += 16) v16_store(o + j, v16_div(v16_load(o + j), d));
  if (j < n) v16_store_n(o + j, v16_div(v16_load_n(o + j, (int)(n - j)), d), (int)(n - j));
}

static int clamp_chunk(int64_t x) { return x < 0 ? 0 : x > PE_CHUNK ? PE_CHUNK : (int)x; }

static void attn_rows(const pe_attn *a, attn_tile *t, int64_t r0, int n) {
  int64_t first = a->pos + r0 / a->n_group, last = a->pos + (r0 + n - 1) / a->n_group;
  int64_t oldest = a->window > 0 && first >= a->window ? first - a->window + 1 : 0;
  int64_t c0 = oldest / PE_CHUNK, c1 = (a->all ? a->all - 1 : last) / PE_CHUNK + 1;
  c0 = c0 > a->c0 ? c0 : a->c0;
  c1 = c1 < a->c1 ? c1 : a->c1;
  for (int r = 0; r < n; r++) {
    int64_t i = (r0 + r) / a->n_group, g = (r0 + r) % a->n_group;
    t->q[r] = a->q + i * a->q_stride + g * a->dk;
    if (!a->part) t->o[r] = a->o + i * a->o_stride + g * a->dv;
    t->seen[r] = 0;
  }
  for (int r = 0; r < TILE; r++) t->m[r] = t->l[r] = t->m1[r] = t->l1[r] = 0.0f;
  for (int64_t c = c0; c < c1; c++) {
    int64_t base = c * PE_CHUNK;
    t->more = c + 1 < c1;
    for (int r = 0; r < n; r++) {
      int64_t p = a->pos + (r0 + r) / a->n_group;
      t->lo[r] = a->window > 0 ? clamp_chunk(p - a->window + 1 - base) : 0;
      t->hi[r] = clamp_chunk((a->all ? a->all : p + 1) - base);
      if (a->part) {
        t->o[r] = a->part + ((r0 + r) * a->part_chunks + c) * a->part_stride;
        t->seen[r] = 0;
      }
    }
    attn_chunk(a, t, n, base);
    for (int r = 0; a->part && r < n; r++) {
      if (t->lo[r] >= t->hi[r]) continue;
      t->o[r][a->dv] = t->m[r];
      t->o[r][a->dv + 1] = t->l[r];
    }
  }
  for (int r = 0; !a->part && r < n; r++) {
    if (t->seen[r])
      attn_finish(t->o[r], t->m[r], t->l[r], a->sinks ? a->sinks + (r0 + r) % a->n_group : NULL, a->dv);
    else
      memset(t->o[r], 0, (size_t)a->dv * 4);                    /* c0..c1 shows this row nothing */
  }
}

static void op_attn(const pe_attn *a) {
  attn_tile *t = (attn_tile *)a->scratch;
  int64_t rows = a->n_q * a->n_group;
  for (int64_t r = 0; r < rows; r += TILE) attn_rows(a, t, r, (int)(rows - r < TILE ? rows - r : TILE));
}

/* The maxima run ahead of the sums, so that exp takes sixteen chunks at once; each column
 * block then goes through the sixteen in registers. */
static void op_attn_merge(float *o, const float *part, int64_t part_stride, int64_t c0, int64_t c1, int64_t dv, const float *sink) {
  const float *p = part + c0 * part_stride;
  memcpy(o, p, (size_t)dv * 4);
  float m = p[dv];
  v16 l = v16_set(p[dv + 1]);
  for (int64_t c = c0 + 1; c < c1; c += 16) {
    int n = (int)(c1 - c < 16 ? c1 - c : 16);
    float m0[16] = {0}, m1[16] = {0}, both[16] = {0}, e0[16], e1[16];
    p = part + c * part_stride;
    for (int i = 0; i < n; i++) {
      m0[i] = m;
      m1[i] = p[i * part_stride + dv];
      both[i] = m = m > m1[i] ? m : m1[i];
    }
    v16_store(e0, v16_exp(v16_sub(v16_load(m0), v16_load(both))));
    v16_store(e1, v16_exp(v16_sub(v16_load(m1), v16_load(both))));
    for (int i = 0; i < n; i++) l = v16_fma(l, v16_set(e0[i]), v16_mul(v16_set(p[i * part_stride + dv + 1]), v16_set(e1[i])));
    for (int64_t j = 0; j < dv; j += 16) {
      int w = dv - j < 16 ? (int)(dv - j) : 16;
      v16 x = v16_load_n(o + j, w);
      for (int i = 0; i < n; i++) x = v16_fma(x, v16_set(e0[i]), v16_mul(v16_load_n(p + i * part_stride + j, w), v16_set(e1[i])));
      v16_store_n(o + j, x, w);
    }
  }
  float out[16];
  v16_store(out, l);
  attn_finish(o, m, out[0], sink, dv);
}

/* The members of a tier's pe_vops after its name and ISA. */
#define PE_VOPS_MEMBERS                                                                       \
  .rms_norm = op_rms_norm, .layer_norm = op_layer_norm, .quant32 = op_quant32, .quant256 = op_quant256, \
  .add = op_add, .mul = op_mul, .scale = op_scale, .act = op_act, .glu = op_glu, .softcap = op_softcap, \
  .axpy = op_axpy, .exp = op_exp, .log = op_log, .rope_table = op_rope_table, .rope_adjacent = op_rope_adjacent,         \
  .rope_halves = op_rope_halves, .attn = op_attn, .attn_merge = op_attn_merge,                           \
  .kv_store = {op_kv_store, op_kv_store_q8, op_kv_store_q4}, .conv = op_conv, .softmax_sum = op_softmax_sum

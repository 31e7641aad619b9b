/* mm_kquant.inl.c: matrix products with weights in blocks of 256. The bits are mm_scalar.c's. The
 * body of mm_{kquant,iquant}_{avx2,avxvnni,avx512}.c, over their words, their way of multiplying
 * (mm_kquant_maddubs.h, mm_kquant_dp.h) and their types (mm_kquant.h, mm_iquant.h).
 *
 * LANES rows in as many lanes. One token: rows far apart, each strip multiplied as it is
 * unpacked, nothing stored. A few tokens: rows far apart, a block at a time unpacked to a
 * panel for all tokens. Many tokens: two vectors of adjacent rows, several blocks. All sums
 * stay int32 until a block's total is complete, because beyond 2^24 its conversion rounds. */
struct one {               /* one token: its quants of the block, and S so far */
  const int8_t *q;
  vi S;
  const pe_lanes *l;
  int64_t block;
};

enum { AHEAD = 768 };

/* Each line of each row once, AHEAD bytes before it is read, into the second-level cache.
 * One token: a lane's lines with each strip, or with every other one. All lanes' lines at
 * the block's start fill the first level's 16 open requests, and the loads behind them
 * wait: 28.5 against 30.4 GB/s for Q4_K, 28.0 against 30.4 for Q6_K (two threads, 33 being
 * the most this memory gives). */
INLINE void prefetch_lane(int T, const pe_lanes *l, int64_t b, int lane) {
  for (int64_t line = b * BYTES(T) / 64; line < (b + 1) * BYTES(T) / 64; line++)
    _mm_prefetch((const char *)((uintptr_t)l->p[lane] + (uintptr_t)(64 * line + AHEAD)), _MM_HINT_T1);
}

INLINE void meet_strip(int T, int j, const vi w[4], int up, const vi x[4], const kpanel *p, one *o) {
  if (j % (16 / LANES) == 0) prefetch_lane(T, o->l, o->block, j * LANES / 16);
  o->S = strip_times(T, o->S, w, up, x, p->sc[PER32(T) ? j / 2 : j]);
  pe_pin(&o->S);
}

INLINE void take_strip(int T, int j, const vi w[4], int up, kpanel *p, one *o) {
  if (o) {
    vi x[4];
    PE_UNROLL
    for (int c = 0; c < 4; c++) x[c] = pe_bcast32(o->q + 16 * j + 4 * c);
    meet_strip(T, j, w, up, x, p, o);
    return;
  }
  PE_UNROLL
  for (int c = 0; c < 4; c++) p->w[4 * j + c] = up ? vi_srl16(w[c], up) : w[c];
}

/* The signs go to the activation or, in a panel, to the weight. */
INLINE void take_signed(int T, int j, const vi w[4], const vi signs[2], kpanel *p, one *o) {
  vi to[4];
  PE_UNROLL
  for (int c = 0; c < 4; c++)
    to[c] = vi_negate8(o ? pe_bcast32(o->q + 16 * j + 4 * c) : w[c], signs[c / 2], vi_set32((int32_t)(c % 2 ? 0x80402010u : 0x08040201u)));
  if (o) meet_strip(T, j, w, 0, to, p, o);
  PE_UNROLL
  for (int c = 0; c < 4 && !o; c++) p->w[4 * j + c] = to[c];
}

/* ---- a block times tokens --------------------------------------------------------------- */

/* One block's S into the accumulators [token][vector]. The minima or the offset times the
 * scales meet the sums of the activations, two sub-blocks per madd. */
INLINE void finish(int T, int offset, int NT, int NV, vf *acc, vi S[8][2], const kpanel *p, const pe_mm *a, const uint8_t *x, int64_t block) {
  int16_t asum32[8][8] __attribute__((aligned(16)));
  if (PER32(T)) {
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      const __m128i *v = (const __m128i *)(pe_act_s16(x + t * a->x_stride, a->k) + 16 * block);
      _mm_store_si128((__m128i *)asum32[t], _mm_hadd_epi16(_mm_load_si128(v), _mm_load_si128(v + 1)));
    }
    pe_keep_in_memory();  /* loaded as broadcasts; from a register those are seven shuffles a token (104 : 107 GMAC/s, AVX2) */
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++) {
    const uint8_t *xt = x + t * a->x_stride;
    const int16_t *asum = PER32(T) ? asum32[t] : pe_act_s16(xt, a->k) + 16 * block;
    vf da = vf_set(pe_act_d(xt, a->k)[block]);
    vi N[2];
    const int n_mn = MINIMA(T) || offset ? PER32(T) ? 4 : 8 : 0;
    PE_UNROLL
    for (int i = 0; i < n_mn; i++) {
      vi s = pe_bcast32(asum + 2 * i);
      PE_UNROLL
      for (int v = 0; v < NV; v++) N[v] = i == 0 ? vi_madd16(p[v].mn[i], s) : vi_dp2(N[v], p[v].mn[i], s);
    }
    PE_UNROLL
    for (int v = 0; v < NV; v++) {
      vf *to = acc + t * NV + v;
      if (MINIMA(T)) {
        vf n = vf_mul(p[v].dmin, vf_from_vi(N[v]));
        *to = vf_fma(da, vf_fms(p[v].d, vf_from_vi(S[t][v]), n), *to);
      } else {
        vi s = S[t][v];
        if (offset == 127) s = vi_add32(vi_sub32(s, vi_sll32(N[v], 7)), N[v]);
        else if (offset == 9) s = vi_sub32(vi_sub32(s, vi_sll32(N[v], 3)), N[v]);
        else if (offset) s = vi_sub32(s, vi_sll32(N[v], offset == 32 ? 5 : offset == 4 ? 2 : 0));
        *to = vf_fma(da, vf_mul(p[v].d, vf_from_vi(s)), *to);
      }
    }
  }
}

INLINE void block_tokens(int T, int small, int NT, int NV, vf *acc, const kpanel *p, const pe_mm *a, const uint8_t *x, int64_t block) {
  vi S[8][2];
  block_sums(T, small, NT, NV, S, p, pe_act_q(x) + 256 * block, pe_act_s16(x, a->k) + 16 * block, a->x_stride);
  finish(T, small || BIASED(T, NV) ? 0 : OFFSET(T), NT, NV, acc, S, p, a, x, block);
}

/* ---- one and few tokens ----------------------------------------------------------------- */

enum { FEW = 16 };

/* The lines of block b of each row, each once, `ahead` bytes further on. */
INLINE void prefetch_block(int T, const pe_lanes *l, int64_t b, int64_t ahead) {
  for (int64_t line = b * BYTES(T) / 64; line < (b + 1) * BYTES(T) / 64; line++) pe_prefetch(l, 64 * line + ahead);
}

INLINE void one_group(int T, const pe_mm *m, const pe_lanes *l) {
  const pe_mm copy = *m, *a = &copy;
  vf acc = vf_zero();
  for (int64_t b = 0; b < a->k / 256; b++) {
    kpanel p;                /* w stays unused */
    one o = {pe_act_q(a->x) + 256 * b, vi_zero(), l, b};
    unpack(T, l, b * BYTES(T), &p, &o);
    vi S[8][2];
    S[0][0] = o.S;
    finish(T, OFFSET(T), 1, 1, &acc, S, &p, a, a->x, b);
  }
  pe_store(a->y, l, acc);
}

/* n <= FEW tokens, up to FEW_TILE of them at a time. */
INLINE void few_group(int T, const pe_mm *m, const pe_lanes *l) {
  const pe_mm copy = *m, *a = &copy;
  kpanel p;
  vf acc[FEW];
  for (int t = 0; t < FEW; t++) acc[t] = vf_zero();
  for (int64_t b = 0; b < a->k / 256; b++) {
    prefetch_block(T, l, b, AHEAD);
    unpack(T, l, b * BYTES(T), &p, NULL);
    finish_panel(T, 1, &p);
    int64_t t = 0;
    if (FEW_TILE >= 8)
      for (; t + 8 <= a->n; t += 8) block_tokens(T, 0, 8, 1, acc + t, &p, a, a->x + t * a->x_stride, b);
    for (; t + 4 <= a->n; t += 4) block_tokens(T, 0, 4, 1, acc + t, &p, a, a->x + t * a->x_stride, b);
    for (; t + 2 <= a->n; t += 2) block_tokens(T, 0, 2, 1, acc + t, &p, a, a->x + t * a->x_stride, b);
    for (; t < a->n; t++) block_tokens(T, 0, 1, 1, acc + t, &p, a, a->x + t * a->x_stride, b);
  }
  for (int64_t t = 0; t < a->n; t++) pe_store(a->y + t * a->y_stride, l, acc[t]);
}

/* ---- many tokens ------------------------------------------------------------------------ */

enum {
  ROWS = 2 * LANES,
  CHUNK = 32 / LANES,      /* blocks per panel: 16 KB of quants and 1.5 to 6 KB of scales */
  TOKENS = 16384 / LANES,  /* per pass: their sums of two vectors take 128 KB */
};
typedef struct panel {
  kpanel p[CHUNK][2];
  vf sums[TOKENS][2];
  uint8_t small[];         /* [tile][block], see SMALL */
} panel;
enum { SMALL_BYTES = PE_SCRATCH - sizeof(panel) };
_Static_assert(SMALL_BYTES > 65536, "panel and sums fit the scratch");

INLINE void tile(int T, int NT, const pe_mm *a, panel *p, int64_t b0, int n_blocks, int64_t t0, int64_t t, const uint8_t *small) {
  const uint8_t *x = a->x + t * a->x_stride;
  vf *sums = p->sums[t - t0];
  if (b0 == 0)
    for (int i = 0; i < 2 * NT; i++) sums[i] = vf_zero();
  for (int64_t i = NT; i < 2 * NT; i++) {  /* the next tile's scales and sums; its quants come by themselves */
    _mm_prefetch((const char *)((uintptr_t)(pe_act_d(x, a->k) + b0) + (uintptr_t)(i * a->x_stride)), _MM_HINT_T0);
    _mm_prefetch((const char *)((uintptr_t)(pe_act_s16(x, a->k) + 16 * b0) + (uintptr_t)(i * a->x_stride)), _MM_HINT_T0);
  }
  for (int b = 0; b < n_blocks; b++) {
    if (SMALL(T) && NT == TILE && small && small[b0 + b]) block_tokens(T, 1, NT, 2, sums, p->p[b], a, x, b0 + b);
    else block_tokens(T, 0, NT, 2, sums, p->p[b], a, x, b0 + b);
    pe_keep_in_memory();
  }
}

INLINE void many_group(int T, const pe_mm *m, int64_t row, int64_t t0, int64_t t1, int has_small) {
  const pe_mm copy = *m, *a = &copy;  /* the stores of sums might change *m, as far as the compiler knows */
  panel *p = a->scratch;
  int64_t n_blocks = a->k / 256;
  int rows = a->r1 - row < ROWS ? (int)(a->r1 - row) : ROWS;
  pe_lanes l[2];
  l[0] = pe_lanes_at(a, row, 1, rows < LANES ? rows : LANES);
  l[1] = rows > LANES ? pe_lanes_at(a, row + LANES, 1, rows - LANES) : l[0];
  for (int64_t b0 = 0; b0 < n_blocks; b0 += CHUNK) {
    int n = n_blocks - b0 < CHUNK ? (int)(n_blocks - b0) : CHUNK;
    /* The next panel, in these rows or at the beginning of the next ones, arrives meanwhile. */
    int64_t ahead = b0 + CHUNK < n_blocks ? CHUNK * BYTES(T) : ROWS * a->w_stride - b0 * BYTES(T);
    for (int b = 0; b < n; b++)
      for (int v = 0; v < 2; v++) {
        prefetch_block(T, &l[v], b0 + b, ahead);
        unpack(T, &l[v], (b0 + b) * BYTES(T), &p->p[b][v], NULL);
        finish_panel(T, 2, &p->p[b][v]);
      }
    int64_t t = t0;
    for (; t + TILE <= t1; t += TILE) tile(T, TILE, a, p, b0, n, t0, t, has_small ? p->small + (t - t0) / TILE * n_blocks : NULL);
    if (TILE > 4)
      for (; t + 4 <= t1; t += 4) tile(T, 4, a, p, b0, n, t0, t, NULL);
    for (; t + 2 <= t1; t += 2) tile(T, 2, a, p, b0, n, t0, t, NULL);
    for (; t < t1; t++) tile(T, 1, a, p, b0, n, t0, t, NULL);
  }
  for (int64_t t = t0; t < t1; t++) {
    pe_store(a->y + t * a->y_stride, &l[0], p->sums[t - t0][0]);
    if (rows > LANES) pe_store(a->y + t * a->y_stride, &l[1], p->sums[t - t0][1]);
  }
}

/* All rows of a part. */
INLINE void many(int T, const pe_mm *a, void (*group)(const pe_mm *, int64_t, int64_t, int64_t, int)) {
  int64_t n_blocks = a->k / 256;
  for (int64_t t0 = 0; t0 < a->n; t0 += TOKENS) {
    int64_t t1 = a->n - t0 < TOKENS ? a->n : t0 + TOKENS;
    int has_small = SMALL(T) && (t1 - t0) / TILE * n_blocks <= SMALL_BYTES;
    if (has_small) {
      uint8_t *small = ((panel *)a->scratch)->small;
      for (int64_t t = t0; t + TILE <= t1; t += TILE, small += n_blocks) {
        memset(small, 1, (size_t)n_blocks);
        for (int i = 0; i < TILE; i++) {
          const uint8_t *one = pe_act_small(a->x + (t + i) * a->x_stride, a->k);
          for (int64_t b = 0; b < n_blocks; b++) small[b] &= one[b];
        }
      }
    }
    for (int64_t r = a->r0; r < a->r1; r += ROWS) group(a, r, t0, t1, has_small);
  }
}

/* ---- the table -------------------------------------------------------------------------- */

#define GROUP static __attribute__((noinline)) void
#define TYPE(T, name)                                                                         \
  GROUP one_##name##_group(const pe_mm *a, const pe_lanes *l) { one_group(T, a, l); }         \
  GROUP few_##name##_group(const pe_mm *a, const pe_lanes *l) { few_group(T, a, l); }         \
  GROUP many_##name##_group(const pe_mm *a, int64_t r, int64_t t0, int64_t t1, int small) { many_group(T, a, r, t0, t1, small); } \
  static void mm_##name##_one(const pe_mm *a) { pe_far_rows(a, one_##name##_group); }         \
  static void mm_##name##_few(const pe_mm *a) { pe_far_rows(a, few_##name##_group); }         \
  static void mm_##name##_many(const pe_mm *a) { many(T, a, many_##name##_group); }

EACH_TYPE(TYPE)

#define ROWS_OF(type, name)                                                                   \
  {"mm_" #name "_" TIER "_one", type, PE_ACT_Q256, TIER_ISA, 1, 1, mm_##name##_one},          \
  {"mm_" #name "_" TIER "_few", type, PE_ACT_Q256, TIER_ISA, 2, FEW, mm_##name##_few},        \
  {"mm_" #name "_" TIER "_many", type, PE_ACT_Q256, TIER_ISA, FEW + 1, INT32_MAX, mm_##name##_many},

const pe_row TABLE[] = {EACH_TYPE(ROWS_OF) {0}};

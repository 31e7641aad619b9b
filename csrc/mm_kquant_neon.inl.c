/* mm_kquant_neon.inl.c: matrix products with weights in blocks of 256 for one token and a few. The bits are
 * mm_scalar.c's. Included by mm_kquant_{mull,sdot}.inl.c behind their way of multiplying (part, times,
 * join4); those files add many tokens and the table.
 *
 * A row's strips stay as they lie and meet sixteen quants of a token. Their products are summed over
 * neighbouring lanes, four sub-blocks at a time, until four sums meet their four scales at once: no transpose,
 * and one multiplication by scales for four sub-blocks (Cortex-A76: two cycles on one of two pipes). Four rows
 * then become the lanes of the float work. All sums stay int32 until a block's total is complete,
 * because beyond 2^24 its conversion rounds. */

/* The sums of sixteen products fit int16 (Q2_K at most 16*3*127 = 6 096, Q3_K 8 128, TQ 4 064, IQ1_M 18 288), so
 * eight of them meet eight scales: three operations less for four sub-blocks. */
#define SHORT(T) ((T) == PE_Q2_K || (T) == PE_Q3_K || UNSCALED(T) || (T) == PE_IQ1_M)

typedef struct scale {     /* a row's scales: SHORT int16, eight in each, else int32, four in each */
  int16x8_t h[2];
  int32x4_t w[4];
} scale;

INLINE void widen(int T, int8x16_t v, scale *to) {
  widen16(v, to->h);
  if (SHORT(T)) return;
  to->w[0] = vmovl_s16(vget_low_s16(to->h[0]));
  to->w[1] = vmovl_high_s16(to->h[0]);
  if (PER32(T)) return;
  to->w[2] = vmovl_s16(vget_low_s16(to->h[1]));
  to->w[3] = vmovl_high_s16(to->h[1]);
}

/* One or two tokens against one row's block. */
struct dots {
  int NT;
  const int8_t *q;         /* token 0's quants of the block */
  int64_t stride;          /* to token 1's */
  part p[2][4];            /* [token][sub-block % 4] */
  int16x8_t pairs[2];      /* SHORT: of four sub-blocks, while the next four come */
  int32x4_t S[2];          /* totals so far, not yet over lanes */
  scale sc;
};

/* Totals are pinned: the compilers would make all products of a block first and spill them, then add. */
INLINE void dot_strip(int T, int j, int8x16_t w, dots *o, int t) {
  const int sub = PER32(T) ? j / 2 : j, first = !PER32(T) || j % 2 == 0, last = PER32(T) ? j % 8 == 7 : j % 4 == 3;
  part *p = o->p[t];
  p[sub % 4] = times(T, first, p[sub % 4], w, vld1q_s8(o->q + t * o->stride + 16 * j));
  if (!last) return;
  int32x4_t S;
  if (SHORT(T)) {
    int16x8_t i = pairs4(p[0], p[1], p[2], p[3]), sc = o->sc.h[j / 8];
    if (j % 8 == 3) {
      o->pairs[t] = i;
      return;
    }
    i = vpaddq_s16(o->pairs[t], i);
    S = j == 7 ? vmull_s16(vget_low_s16(i), vget_low_s16(sc)) : vmlal_s16(o->S[t], vget_low_s16(i), vget_low_s16(sc));
    S = vmlal_high_s16(S, i, sc);
  } else {
    int32x4_t i = join4(T, p[0], p[1], p[2], p[3]);
    S = sub == 3 ? vmulq_s32(i, o->sc.w[0]) : vmlaq_s32(o->S[t], i, o->sc.w[sub / 4]);
  }
  __asm__ volatile("" : "+w"(S));
  o->S[t] = S;
}

INLINE void take_strip(int T, int j, uint8x16_t w, dots *o) {
  dot_strip(T, j, vreinterpretq_s8_u8(w), o, 0);
  if (o->NT == 2) dot_strip(T, j, vreinterpretq_s8_u8(w), o, 1);
}

/* N of a row, not yet over lanes: minima times the sums of quants. */
INLINE int32x4_t minima(int T, const int16x8_t mn[2], const int16x8_t asum[2]) {
  int32x4_t n = vmlal_high_s16(vmull_s16(vget_low_s16(mn[0]), vget_low_s16(asum[0])), mn[0], asum[0]);
  if (PER32(T)) return n;
  return vmlal_high_s16(vmlal_s16(n, vget_low_s16(mn[1]), vget_low_s16(asum[1])), mn[1], asum[1]);
}

/* The lines of a row's block, PE_AHEAD before they are used; behind the row's end comes the next group. */
INLINE int64_t ahead_of(const pe_mm *a, int64_t off) {
  return off + PE_AHEAD < a->w_stride ? off + PE_AHEAD : off + PE_AHEAD + 3 * a->w_stride;
}

/* ---- one token ---------------------------------------------------------------------------- */

INLINE void one_group(int T, const pe_mm *m, const pe_rows4 *l) {
  const pe_mm copy = *m, *a = &copy;
  float32x4_t acc = vdupq_n_f32(0), d, dmin;
  for (int64_t b = 0; b < a->k / 256; b++) {
    const int64_t off = b * BYTES(T), ahead = ahead_of(a, off);
    int16x8_t asum[2];
    int32x4_t S[4], N[4];
    if (MINIMA(T) || OFFSET(T)) sums_of(T, a->x, a->k, b, asum);
    PE_UNROLL
    for (int r = 0; r < 4; r++) {
      const uint8_t *w = l->p[r] + off;
      krow k;
      int16x8_t mn[2];
      dots o = {.NT = 1, .q = pe_act_q(a->x) + 256 * b};
      prefetch_block(T, l->p[r], ahead);
      scales(T, w, &k);
      widen(T, k.sc, &o.sc);
      widen16(MINIMA(T) ? k.mn : k.sc, mn);
      if (MINIMA(T) || OFFSET(T)) N[r] = minima(T, mn, asum);
      strips(T, w, &o, NULL);
      S[r] = o.S[0];
      pe_keep_in_memory();   /* row by row: the token's quants are loaded again, not spilled */
    }
    halves(T, l, off, &d, &dmin);
    int32x4_t s = pe_sums4(S[0], S[1], S[2], S[3]), n = MINIMA(T) || OFFSET(T) ? pe_sums4(N[0], N[1], N[2], N[3]) : s;
    if (OFFSET(T)) s = vsubq_s32(s, vshlq_n_s32(n, 5));
    acc = finish(T, acc, s, n, d, dmin, pe_act_d(a->x, a->k)[b]);
  }
  pe_store4(a->y, l, acc);
}

/* ---- a few tokens: a row's block is unpacked once, into the first-level cache ---------------- */

typedef struct urow {
  int8x16_t w[16];         /* strips, offset taken off */
  scale sc;
  int16x8_t mn[2];
} urow;

/* S and N of NT tokens and row r of four. */
INLINE void row_tokens(int T, int NT, const urow *u, const int8_t *q, int64_t stride, int r, const int16x8_t (*asum)[2],
                       int32x4_t (*S)[4], int32x4_t (*N)[4]) {
  dots o = {.NT = NT, .q = q, .stride = stride, .sc = u->sc};
  PE_UNROLL
  for (int j = 0; j < 16; j++) take_strip(T, j, vreinterpretq_u8_s8(u->w[j]), &o);
  PE_UNROLL
  for (int t = 0; t < NT; t++) {
    S[t][r] = o.S[t];
    if (MINIMA(T)) N[t][r] = minima(T, u->mn, asum[t]);
  }
  pe_keep_in_memory();
}

INLINE void unpack_row(int T, const uint8_t *w, urow *u) {
  krow k;
  scales(T, w, &k);
  widen(T, k.sc, &u->sc);
  if (MINIMA(T)) widen16(k.mn, u->mn);
  signed_strips(T, w, u->w);
}

INLINE void few_group(int T, const pe_mm *m, const pe_rows4 *l) {
  const pe_mm copy = *m, *a = &copy;
  const int64_t n = a->n, stride = a->x_stride;
  float32x4_t acc[FEW], d, dmin;
  for (int64_t t = 0; t < n; t++) acc[t] = vdupq_n_f32(0);
  for (int64_t b = 0; b < a->k / 256; b++) {
    const int64_t off = b * BYTES(T), ahead = ahead_of(a, off);
    int16x8_t asum[FEW][2];
    int32x4_t S[FEW][4], N[FEW][4];
    if (MINIMA(T))
      for (int64_t t = 0; t < n; t++) sums_of(T, a->x + t * stride, a->k, b, asum[t]);
    for (int r = 0; r < 4; r++) {
      urow u;
      const int8_t *q = pe_act_q(a->x) + 256 * b;
      int64_t t = 0;
      prefetch_block(T, l->p[r], ahead);
      unpack_row(T, l->p[r] + off, &u);
      for (; t + 2 <= n; t += 2) row_tokens(T, 2, &u, q + t * stride, stride, r, asum + t, S + t, N + t);
      if (t < n) row_tokens(T, 1, &u, q + t * stride, stride, r, asum + t, S + t, N + t);
    }
    halves(T, l, off, &d, &dmin);
    for (int64_t t = 0; t < n; t++) {
      int32x4_t s = pe_sums4(S[t][0], S[t][1], S[t][2], S[t][3]);
      int32x4_t min = MINIMA(T) ? pe_sums4(N[t][0], N[t][1], N[t][2], N[t][3]) : s;
      acc[t] = finish(T, acc[t], s, min, d, dmin, pe_act_d(a->x + t * stride, a->k)[b]);
    }
  }
  for (int64_t t = 0; t < n; t++) pe_store4(a->y + t * a->y_stride, l, acc[t]);
}

#define ONE_FEW(T, name)                                                                      \
  static __attribute__((noinline)) void one_##name(const pe_mm *a, const pe_rows4 *l) { one_group(T, a, l); } \
  static __attribute__((noinline)) void few_##name(const pe_mm *a, const pe_rows4 *l) { few_group(T, a, l); } \
  static void mm_##name##_one(const pe_mm *a) { pe_by4(a, one_##name); }                      \
  static void mm_##name##_few(const pe_mm *a) { pe_by4(a, few_##name); }

EACH_TYPE(ONE_FEW)

#define ROWS_ONE_FEW(type, name)                                                              \
  {"mm_" #name "_" TIER "_one", type, PE_ACT_Q256, TIER_ISA, 1, 1, mm_##name##_one},          \
  {"mm_" #name "_" TIER "_few", type, PE_ACT_Q256, TIER_ISA, 2, FEW, mm_##name##_few},

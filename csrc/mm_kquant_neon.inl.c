/* mm_kquant_neon.inl.c: matrix products with weights in blocks of 256 (Q2_K to Q6_K, IQ4_XS) for one
 * token and a few. The bits are mm_scalar.c's. The first half of mm_kquant_{neon,dotprod}.c, over
 * their way of multiplying (part, times, join4); the file adds many tokens and the table.
 *
 * A row's strips stay as they lie and meet sixteen quants of each token. A strip's or two strips'
 * products are summed over pairs of lanes, four sub-blocks at a time, so that their four sums meet
 * their four scales at once: no transpose, and one multiplication by scales per four sub-blocks. Four rows
 * then become the lanes of the float work. All sums stay int32 until a block's total is complete,
 * because beyond 2^24 its conversion rounds. */

/* NT tokens against one row's block. */
struct sink {
  int NT;
  const int8_t *q;         /* token 0's quants of the block */
  int64_t x_stride;
  part p[4][4];            /* [token][sub-block % 4] */
  int32x4_t sc[4], S[4];   /* scales of four sub-blocks each; totals so far */
};

INLINE void take_strip(int T, int j, uint8x16_t w, sink *s) {
  const int sub = PER32(T) ? j / 2 : j, first = !PER32(T) || j % 2 == 0, last = PER32(T) ? j % 8 == 7 : j % 4 == 3;
  PE_UNROLL
  for (int t = 0; t < s->NT; t++) {
    part *p = s->p[t];
    int8x16_t q = vld1q_s8(s->q + t * s->x_stride + 16 * j);
    p[sub % 4] = times(T, first, p[sub % 4], vreinterpretq_s8_u8(w), q);
    if (!last) continue;
    int32x4_t isum = join4(T, p[0], p[1], p[2], p[3]);
    int32x4_t S = sub == 3 ? vmulq_s32(isum, s->sc[0]) : vmlaq_s32(s->S[t], isum, s->sc[sub / 4]);
    __asm__ volatile("" : "+w"(S));
    s->S[t] = S;
  }
}

/* The token's sums of a block's quants, per sub-block. */
INLINE void sums_of(int T, const pe_mm *a, int64_t b, int t, int16x8_t asum[2]) {
  const int16_t *s = pe_act_s16(a->x + t * a->x_stride, a->k) + 16 * b;
  asum[0] = vld1q_s16(s);
  asum[1] = vld1q_s16(s + 8);
  if (PER32(T)) asum[0] = vpaddq_s16(asum[0], asum[1]);  /* at most 32 * 127 = 4 064 */
}

INLINE int32x4_t meet(int32x4_t sum, int16x8_t a, int16x8_t b) {
  return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(a), vget_low_s16(b)), a, b);
}

/* The lines of row r's block, PE_AHEAD before they are used; beyond the rows' end comes the next group. */
INLINE void prefetch_row(int T, const uint8_t *w, int64_t ahead) {
  for (int i = 0; i < BYTES(T); i += 64) __builtin_prefetch((const void *)((uintptr_t)w + (uintptr_t)(ahead + i)), 0, 3);
}

INLINE void rows4(int T, int NT, const pe_mm *m, const pe_rows4 *l) {
  const pe_mm copy = *m, *a = &copy;
  float32x4_t acc[4];
  PE_UNROLL
  for (int t = 0; t < NT; t++) acc[t] = vdupq_n_f32(0);
  for (int64_t b = 0; b < a->k / 256; b++) {
    const int64_t off = b * BYTES(T), ahead = off + PE_AHEAD < a->w_stride ? PE_AHEAD : PE_AHEAD + 3 * a->w_stride;
    int16x8_t asum[4][2];
    int32x4_t S[4][4], N[4][4];  /* [token][row] */
    PE_UNROLL
    for (int t = 0; t < NT; t++)
      if (MINIMA(T) || OFFSET(T)) sums_of(T, a, b, t, asum[t]);
    PE_UNROLL
    for (int r = 0; r < 4; r++) {
      const uint8_t *w = l->p[r] + off;
      krow k;
      sink s = {.NT = NT, .q = pe_act_q(a->x) + 256 * b, .x_stride = a->x_stride};
      prefetch_row(T, w, ahead);
      scales(T, w, &k);
      int16x8_t lo = vmovl_s8(vget_low_s8(k.sc)), hi = vmovl_high_s8(k.sc);
      s.sc[0] = vmovl_s16(vget_low_s16(lo));
      s.sc[1] = vmovl_high_s16(lo);
      s.sc[2] = vmovl_s16(vget_low_s16(hi));
      s.sc[3] = vmovl_high_s16(hi);
      if (MINIMA(T)) lo = vmovl_s8(vget_low_s8(k.mn)), hi = vmovl_high_s8(k.mn);
      if (MINIMA(T) || OFFSET(T)) {
        PE_UNROLL
        for (int t = 0; t < NT; t++) {
          N[t][r] = vmull_high_s16(lo, asum[t][0]);
          N[t][r] = vmlal_s16(N[t][r], vget_low_s16(lo), vget_low_s16(asum[t][0]));
          if (!PER32(T)) N[t][r] = meet(N[t][r], hi, asum[t][1]);
        }
      }
      strips(T, w, &s);
      PE_UNROLL
      for (int t = 0; t < NT; t++) S[t][r] = s.S[t];
      pe_keep_in_memory();
    }
    float32x4_t d, dmin;
    halves(T, l, off, &d, &dmin);
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      float32x4_t da = vdupq_n_f32(pe_act_d(a->x + t * a->x_stride, a->k)[b]);
      int32x4_t s = pe_sums4(S[t][0], S[t][1], S[t][2], S[t][3]), n;
      if (MINIMA(T) || OFFSET(T)) n = pe_sums4(N[t][0], N[t][1], N[t][2], N[t][3]);
      if (MINIMA(T)) {
        float32x4_t v = vnegq_f32(vmulq_f32(dmin, vcvtq_f32_s32(n)));
        acc[t] = vfmaq_f32(acc[t], da, vfmaq_f32(v, d, vcvtq_f32_s32(s)));
      } else {
        if (OFFSET(T)) s = vsubq_s32(s, vshlq_n_s32(n, 5));
        acc[t] = vfmaq_f32(acc[t], da, vmulq_f32(d, vcvtq_f32_s32(s)));
      }
    }
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++) pe_store4(a->y + t * a->y_stride, l, acc[t]);
}

/* ---- the table -------------------------------------------------------------------------- */

enum { FEW = 3 };

#define GROUP static __attribute__((noinline)) void
#define TYPE(T, name)                                                                         \
  GROUP one_##name(const pe_mm *a, const pe_rows4 *l) { rows4(T, 1, a, l); }                  \
  GROUP two_##name(const pe_mm *a, const pe_rows4 *l) { rows4(T, 2, a, l); }                  \
  GROUP three_##name(const pe_mm *a, const pe_rows4 *l) { rows4(T, 3, a, l); }                \
  static void mm_##name##_one(const pe_mm *a) { pe_by4(a, one_##name); }                      \
  static void mm_##name##_few(const pe_mm *a) { pe_by4(a, a->n == 1 ? one_##name : a->n == 2 ? two_##name : three_##name); }

TYPE(PE_Q2_K, q2_k)
TYPE(PE_Q3_K, q3_k)
TYPE(PE_Q4_K, q4_k)
TYPE(PE_Q5_K, q5_k)
TYPE(PE_Q6_K, q6_k)
TYPE(PE_IQ4_XS, iq4_xs)

#define ROWS_OF(type, name)                                                                   \
  {"mm_" #name "_" TIER "_one", type, PE_ACT_Q256, TIER_ISA, 1, 1, mm_##name##_one},          \
  {"mm_" #name "_" TIER "_few", type, PE_ACT_Q256, TIER_ISA, 2, FEW, mm_##name##_few}

const pe_row TABLE[] = {
    ROWS_OF(PE_Q2_K, q2_k), ROWS_OF(PE_Q3_K, q3_k), ROWS_OF(PE_Q4_K, q4_k),
    ROWS_OF(PE_Q5_K, q5_k), ROWS_OF(PE_Q6_K, q6_k), ROWS_OF(PE_IQ4_XS, iq4_xs), {0},
};

/* mm_kquant_panel.h: the panel of eight rows for dot products and matrix instructions, rows in lanes.
 * Layout, packing and minima. Included by mm_kquant_sdot.inl.c and mm_kquant_smmla.inl.c. */
#ifndef PE_MM_KQUANT_PANEL_H
#define PE_MM_KQUANT_PANEL_H

/* Q2_K and Q3_K: quants times their scale fit a byte, at most 3*15 = 45, and -(-4..3)*(-32..31) = -128..124
 * (negated because +128 would not), so that all of a block goes into one sum. */
#define SCALED(T) ((T) == PE_Q2_K || (T) == PE_Q3_K || UNSCALED(T))

typedef struct kpanel {    /* one block of eight rows */
  int8x16_t w[128];        /* offset taken off */
  int32x4_t sc[64];        /* not where they are in w already (SCALED) */
  int16x8_t mn[16];        /* minima: sub-block j of the eight rows */
  float32x4_t d[2], dmin[2];
} kpanel;

INLINE int8x16_t pe_zip1_64(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}
INLINE int8x16_t pe_zip2_64(int8x16_t a, int8x16_t b) {
  return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b)));
}

/* N of a token: minima times the sums of its quants, sixteen per row (eight if PER32). */
#define PE_MN(i)                                                                              \
  N[0] = vmlal_laneq_s16(N[0], vget_low_s16(mn[i]), asum, i);                                 \
  N[1] = vmlal_high_laneq_s16(N[1], mn[i], asum, i);

INLINE void meet8(int32x4_t N[2], const int16x8_t mn[8], int16x8_t asum) {
  PE_MN(0) PE_MN(1) PE_MN(2) PE_MN(3) PE_MN(4) PE_MN(5) PE_MN(6) PE_MN(7)
}

INLINE void minima8(int T, int32x4_t N[2], const kpanel *p, const uint8_t *x, int64_t k, int64_t b) {
  int16x8_t asum[2];
  sums_of(T, x, k, b, asum);
  N[0] = N[1] = vdupq_n_s32(0);
  meet8(N, p->mn, asum[0]);
  if (!PER32(T)) meet8(N, p->mn + 8, asum[1]);
}

/* Sub-block j of four rows as int32, from their transposed bytes: dword j/4 holds 4*(j/4).. of each row. */
INLINE int32x4_t scale_at(const int8x16_t t[4], int j) {
  return (pe_as32(t[j / 4]) << vdupq_n_s32(24 - j % 4 * 8)) >> vdupq_n_s32(24);
}

/* Rows 4v..4v+3 into the panel: strips, and scales, by sub-block, int32 in lanes. */
INLINE void place(int T, int v, const int8x16_t strip[4][16], const int32x4_t *sc, int n, kpanel *p);

INLINE void pack(int T, const pe_rows4 l[2], int64_t off, int64_t ahead, kpanel *p) {
  const int n = PER32(T) ? 8 : 16;
  for (int v = 0; v < 2; v++) {
    int8x16_t strip[4][16], t[4];
    int32x4_t sc[16];
    krow k[4];
    for (int r = 0; r < 4; r++) {
      prefetch_block(T, l[v].p[r], off + ahead);
      scales(T, l[v].p[r] + off, &k[r]);
      signed_strips(T, l[v].p[r] + off, strip[r]);
      PE_UNROLL
      for (int j = 0; j < 16; j++) {
        if (SCALED(T) && !UNSCALED(T)) strip[r][j] = vmulq_s8(strip[r][j], vdupq_n_s8(k[r].sc[j]));
        if (T == PE_Q3_K) strip[r][j] = vnegq_s8(strip[r][j]);
      }
    }
    pe_transpose4(t, k[0].sc, k[1].sc, k[2].sc, k[3].sc);
    for (int j = 0; j < n; j++) sc[j] = scale_at(t, j);
    place(T, v, strip, sc, n, p);
    pe_transpose4(t, k[0].mn, k[1].mn, k[2].mn, k[3].mn);
    if (MINIMA(T))
      for (int j = 0; j < n; j++) vst1_s16((int16_t *)&p->mn[j] + 4 * v, vmovn_s32(scale_at(t, j)));
    halves(T, &l[v], off, &p->d[v], &p->dmin[v]);
  }
}

#endif

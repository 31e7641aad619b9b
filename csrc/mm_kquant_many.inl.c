/* mm_kquant_many.inl.c: matrix products with weights in blocks of 256 on 64-bit ARM for many tokens. The
 * bits are mm_scalar.c's. Included by mm_kquant_{mull,sdot,smmla}.inl.c, which say how eight rows' block
 * lies in a panel (kpanel, pack) and how tokens meet it (block_sums, TILE tokens at a time).
 *
 * Eight adjacent rows, several blocks at a time, are unpacked into a panel in the first-level cache, and
 * all tokens pass over it. S and N of a block come as int32, rows in lanes, and the float work is done
 * once for four rows. */

enum {
  CHUNK = 8,               /* blocks per panel: 16 KB of quants, 2 to 8 KB of scales */
  TOKENS = 4096,           /* per pass: their sums of eight rows take 128 KB */
};
_Static_assert(sizeof(kpanel) * CHUNK + TOKENS * 32 <= PE_SCRATCH, "panel and sums fit the scratch");

/* Eight rows times NT tokens, n_blocks from b0 on. */
INLINE void tile(int T, int NT, const pe_mm *a, const kpanel *p, int64_t b0, int n_blocks, int64_t t0, float32x4_t *sums) {
  const int64_t stride = a->x_stride;
  const uint8_t *x = a->x + t0 * stride;
  if (b0 == 0)
    for (int i = 0; i < 2 * NT; i++) sums[i] = vdupq_n_f32(0);
  for (int b = 0; b < n_blocks; b++, p++) {
    int32x4_t S[TILE][2], N[TILE][2];
    block_sums(T, NT, S, N, p, x, stride, a->k, b0 + b);
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      float da = pe_act_d(x + t * stride, a->k)[b0 + b];
      PE_UNROLL
      for (int v = 0; v < 2; v++) {
        float32x4_t *to = &sums[2 * t + v];
        *to = finish(T, *to, S[t][v], N[t][v], p->d[v], p->dmin[v], da);
      }
    }
    pe_keep_in_memory();
  }
}

INLINE void many_group(int T, const pe_mm *m, int64_t row, int64_t t0, int64_t t1) {
  const pe_mm copy = *m, *a = &copy;  /* the stores of sums might change *m, as far as the compiler knows */
  kpanel *p = a->scratch;
  float32x4_t *sums = (float32x4_t *)(p + CHUNK);
  const int64_t n_blocks = a->k / 256;
  pe_rows4 l[2];
  l[0] = pe_rows4_at(a, row);
  l[1] = row + 4 < a->r1 ? pe_rows4_at(a, row + 4) : l[0];
  for (int64_t b0 = 0; b0 < n_blocks; b0 += CHUNK) {
    int n = n_blocks - b0 < CHUNK ? (int)(n_blocks - b0) : CHUNK;
    /* The next panel, in these rows or at the beginning of the next ones, arrives meanwhile. */
    int64_t ahead = b0 + CHUNK < n_blocks ? CHUNK * BYTES(T) : 8 * a->w_stride - b0 * BYTES(T);
    for (int b = 0; b < n; b++) pack(T, l, (b0 + b) * BYTES(T), ahead, p + b);
    int64_t t = t0;
    for (; t + TILE <= t1; t += TILE) tile(T, TILE, a, p, b0, n, t, sums + 2 * (t - t0));
    if (TILE > 2)
      for (; t + 2 <= t1; t += 2) tile(T, 2, a, p, b0, n, t, sums + 2 * (t - t0));
    if (t < t1) tile(T, 1, a, p, b0, n, t, sums + 2 * (t - t0));
  }
  for (int64_t t = t0; t < t1; t++) {
    pe_store4(a->y + t * a->y_stride, &l[0], sums[2 * (t - t0)]);
    if (row + 4 < a->r1) pe_store4(a->y + t * a->y_stride, &l[1], sums[2 * (t - t0) + 1]);
  }
}

#define MANY(T, name)                                                                         \
  static __attribute__((noinline)) void many_##name(const pe_mm *a, int64_t r, int64_t t0, int64_t t1) { \
    many_group(T, a, r, t0, t1);                                                              \
  }                                                                                           \
  static void mm_##name##_many(const pe_mm *a) {                                              \
    for (int64_t t = 0; t < a->n; t += TOKENS)                                                \
      for (int64_t r = a->r0; r < a->r1; r += 8) many_##name(a, r, t, a->n - t < TOKENS ? a->n : t + TOKENS); \
  }

EACH_TYPE(MANY)

#define ROWS_MANY(type, name) {"mm_" #name "_" TIER "_many", type, PE_ACT_Q256, TIER_ISA, FEW + 1, INT32_MAX, mm_##name##_many},

/* mm_block32_neon.inl.c: matrix products with weights in blocks of 32 on 64-bit ARM, written over
 * block_sums of the file that includes it: mm_block32_neon.c (ARMv8.0) or mm_block32_dotprod.c.
 * The bits are mm_scalar.c's.
 *
 * A block of four rows is transposed (mm_block32_neon.h) and multiplied with an activation's four
 * bytes in all lanes, so no sum crosses lanes, and the float work of a block is done once for four
 * rows. One and few tokens keep the block in registers; many tokens unpack eight rows into an L1
 * panel for a pass of tokens. */

/* ---- one and two tokens ----------------------------------------------------------------- */

INLINE void few_group(int T, int NT, const pe_mm *a, int64_t row) {
  const int64_t stride = a->x_stride;
  const uint8_t *xd = (const uint8_t *)pe_act_d(a->x, a->k), *xs = (const uint8_t *)pe_act_s32(a->x, a->k);
  const rows8 r = rows8_at(a, row);
  float32x4_t acc[2][2];
  PE_UNROLL
  for (int t = 0; t < NT; t++) acc[t][0] = acc[t][1] = vdupq_n_f32(0);
  const int parts = PARTS(T), halves = 1 + HALVES(T);
  for (int64_t b0 = 0; b0 < a->k / 32; b0 += parts) {
    PE_UNROLL
    for (int v = 0; v < 2; v++) pe_prefetch4(&r.l[v], AT(T, b0), BYTES(T));
    PE_UNROLL
    for (int part = 0; part < parts; part++) {
      const int64_t b = b0 + part;
      int8x16_t w[8][2];
      float32x4_t d[2], m[2];
      PE_UNROLL
      for (int v = 0; v < 2; v++) {
        int8x16_t u[8];
        unpack(T, &r.l[v], AT(T, b0), part, u, &d[v], &m[v]);
        PE_UNROLL
        for (int c = 0; c < 8; c++) w[c][v] = u[c];
      }
      PE_UNROLL
      for (int h = 0; h < halves; h++) {
        int32x4_t s[2][2];
        PE_UNROLL
        for (int t = 0; t < NT; t++) s[t][0] = s[t][1] = start(T, pe_load_i32(xs + t * stride + 4 * b));
        block_sums(T, NT, s, (const int8x16_t (*)[2])w + 4 * h, pe_act_q(a->x) + 32 * b + 16 * h, stride);
        PE_UNROLL
        for (int t = 0; t < NT; t++) {
          int64_t at = t * stride + 4 * b;
          PE_UNROLL
          for (int v = 0; v < 2; v++)
            acc[t][v] = finish(T, acc[t][v], s[t][v], h ? m[v] : d[v], m[v], pe_load_f32(xd + at), pe_load_i32(xs + at));
        }
      }
    }
  }
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    for (int v = 0; v < 2; v++) pe_store4(a->y + t * a->y_stride, &r.l[v], acc[t][v]);
}

/* ---- many tokens ------------------------------------------------------------------------ */

typedef struct panel {     /* block b; [2]: which half of the eight rows */
  int8x16_t w[CHUNK][8][2];
  float32x4_t d[CHUNK][2], m[CHUNK][2];
  float32x4_t sums[TOKENS][2];
} panel;
_Static_assert(sizeof(panel) <= PE_SCRATCH, "panel and sums fit the scratch");

INLINE void fill_panel(int T, panel *p, const rows8 *r, int64_t b0, int n, int64_t ahead) {
  const int parts = PARTS(T);
  for (int b = 0; b < n; b += parts) {
    int64_t off = AT(T, b0 + b);
    PE_UNROLL
    for (int v = 0; v < 2; v++) {
      if ((off & 63) < BYTES(T)) pe_prefetch4_at(&r->l[v], off + ahead);
      PE_UNROLL
      for (int part = 0; part < parts; part++) {
        int8x16_t w[8];
        unpack(T, &r->l[v], off, part, w, &p->d[b + part][v], &p->m[b + part][v]);
        PE_UNROLL
        for (int c = 0; c < 8; c++) p->w[b + part][c][v] = w[c];
      }
    }
  }
}

INLINE void tile(int T, int NT, panel *p, const pe_mm *a, int64_t b0, int n, float32x4_t (*sums)[2], int64_t t) {
  const int64_t stride = a->x_stride;
  const uint8_t *x = a->x + t * stride;
  const uint8_t *xd = (const uint8_t *)(pe_act_d(x, a->k) + b0), *xs = (const uint8_t *)(pe_act_s32(x, a->k) + b0);
  float32x4_t acc[TILE][2];
  PE_UNROLL
  for (int i = 0; i < NT; i++) acc[i][0] = sums[i][0], acc[i][1] = sums[i][1];
  const int halves = 1 + HALVES(T);
  for (int b = 0; b < n; b++) {
    PE_UNROLL
    for (int h = 0; h < halves; h++) {
      int32x4_t s[TILE][2];
      PE_UNROLL
      for (int i = 0; i < NT; i++) s[i][0] = s[i][1] = start(T, pe_load_i32(xs + i * stride + 4 * b));
      block_sums(T, NT, s, (const int8x16_t (*)[2])p->w[b] + 4 * h, pe_act_q(x) + 32 * (b0 + b) + 16 * h, stride);
      PE_UNROLL
      for (int i = 0; i < NT; i++) {
        int64_t at = i * stride + 4 * b;
        PE_UNROLL
        for (int v = 0; v < 2; v++)
          acc[i][v] = finish(T, acc[i][v], s[i][v], h ? p->m[b][v] : p->d[b][v], p->m[b][v], pe_load_f32(xd + at), pe_load_i32(xs + at));
      }
    }
  }
  PE_UNROLL
  for (int i = 0; i < NT; i++) sums[i][0] = acc[i][0], sums[i][1] = acc[i][1];
}

INLINE void many_group(int T, const pe_mm *a, int64_t row, int64_t t0, int64_t t1) {
  panel *p = a->scratch;
  int64_t n_blocks = a->k / 32;
  const rows8 r = rows8_at(a, row);
  for (int64_t t = t0; t < t1; t++) p->sums[t - t0][0] = p->sums[t - t0][1] = vdupq_n_f32(0);
  for (int64_t b0 = 0; b0 < n_blocks; b0 += CHUNK) {
    int n = n_blocks - b0 < CHUNK ? (int)(n_blocks - b0) : CHUNK;
    fill_panel(T, p, &r, b0, n, next_panel(T, a, b0));
    int64_t t = t0;
    for (; t + TILE <= t1; t += TILE) tile(T, TILE, p, a, b0, n, p->sums + (t - t0), t);
    if (TILE > 2 && t1 - t >= 2) tile(T, 2, p, a, b0, n, p->sums + (t - t0), t), t += 2;
    if (t1 - t >= 1) tile(T, 1, p, a, b0, n, p->sums + (t - t0), t);
  }
  for (int64_t t = t0; t < t1; t++)
    for (int v = 0; v < 2; v++) pe_store4(a->y + t * a->y_stride, &r.l[v], p->sums[t - t0][v]);
}

/* ---- the table -------------------------------------------------------------------------- */

#define TYPE(T, name)                                                                          \
  GROUP one_##name##_group(const pe_mm *a, int64_t row) { few_group(T, 1, a, row); }           \
  GROUP two_##name##_group(const pe_mm *a, int64_t row) { few_group(T, 2, a, row); }           \
  static void mm_##name##_one(const pe_mm *a) {                                                \
    for (int64_t r = a->r0; r < a->r1; r += 8) one_##name##_group(a, r);                       \
  }                                                                                            \
  static void mm_##name##_two(const pe_mm *a) {                                                \
    for (int64_t r = a->r0; r < a->r1; r += 8) two_##name##_group(a, r);                       \
  }                                                                                            \
  MANY(T, name)

TYPE(PE_Q4_0, q4_0)
TYPE(PE_Q4_1, q4_1)
TYPE(PE_Q5_0, q5_0)
TYPE(PE_Q5_1, q5_1)
TYPE(PE_Q8_0, q8_0)
TYPE(PE_IQ4_NL, iq4_nl)
TYPE(PE_MXFP4, mxfp4)
TYPE(PE_NVFP4, nvfp4)
TYPE(PE_Q1_0, q1_0)
TYPE(PE_Q2_0, q2_0)

#define ROWS(type, name)                                                                       \
  {"mm_" #name "_" TIER "_one", type, PE_ACT_Q32, TIER_ISA, 1, 1, mm_##name##_one},            \
  {"mm_" #name "_" TIER "_few", type, PE_ACT_Q32, TIER_ISA, 2, 2, mm_##name##_two},            \
  MANY_ROW(type, name)
#define ALL_ROWS                                                                               \
  ROWS(PE_Q4_0, q4_0), ROWS(PE_Q4_1, q4_1), ROWS(PE_Q5_0, q5_0), ROWS(PE_Q5_1, q5_1),          \
  ROWS(PE_Q8_0, q8_0), ROWS(PE_IQ4_NL, iq4_nl), ROWS(PE_MXFP4, mxfp4), ROWS(PE_NVFP4, nvfp4), \
  ROWS(PE_Q1_0, q1_0), ROWS(PE_Q2_0, q2_0), {0}

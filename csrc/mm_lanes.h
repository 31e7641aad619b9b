/* mm_lanes.h: what matrix products share that lay rows into lanes: which rows, small
 * transposes, scales, storing; written over the words of mm_words8.h or mm_words16.h.
 * Static inline only, no kernels. Included by mm_avx2.h, mm_avxvnni.h and mm_avx512.h. */
#ifndef PE_MM_LANES_H
#define PE_MM_LANES_H

/* ---- which rows ------------------------------------------------------------------------
 * Lanes are outputs, so a group may take any rows. Rows LANES-ths of a part apart make
 * every lane one long linear stream: eight streams read 1.3 to 1.5 times what one can,
 * where adjacent short rows restart the prefetcher at each row. A distance that is a
 * multiple of 4096 bytes would put all streams into one L1 set, so it is one row less
 * then, and the rows left over form adjacent groups. */

typedef struct pe_lanes {
  const uint8_t *p[LANES]; /* block 0 of the row in each lane */
  int64_t row, step;       /* lane i is row + i*step ... */
  int valid;               /* ... for i < valid; the other lanes repeat the last row and are not stored */
} pe_lanes;

INLINE pe_lanes pe_lanes_at(const pe_mm *a, int64_t row, int64_t step, int valid) {
  pe_lanes l = {.row = row, .step = step, .valid = valid};
  for (int i = 0; i < LANES; i++) l.p[i] = a->w + (row + (i < valid ? i : valid - 1) * step) * a->w_stride;
  return l;
}

static __attribute__((noinline, unused)) void pe_far_rows(const pe_mm *a, void (*group)(const pe_mm *, const pe_lanes *)) {
  int64_t far = (a->r1 - a->r0) / LANES;
  if (far > 2) {
    int64_t off = (far * a->w_stride + 128) & 4095;
    if (off <= 256) far--;
  }
  for (int64_t j = 0; j < far; j++) {
    pe_lanes l = pe_lanes_at(a, a->r0 + j, far, LANES);
    group(a, &l);
  }
  for (int64_t r = a->r0 + LANES * far; r < a->r1; r += LANES) {
    pe_lanes l = pe_lanes_at(a, r, 1, a->r1 - r < LANES ? (int)(a->r1 - r) : LANES);
    group(a, &l);
  }
}

INLINE void pe_store(float *y, const pe_lanes *l, vf v) {
  if (l->step == 1 && l->valid == LANES) {
    vf_store(y + l->row, v);
    return;
  }
  float f[LANES];
  vf_store(f, v);
  for (int i = 0; i < l->valid; i++) y[l->row + i * l->step] = f[i];
}

/* One prefetch per lane. Addresses past the weights are harmless: a prefetch cannot fault. */
INLINE void pe_prefetch(const pe_lanes *l, int64_t off) {
  PE_UNROLL
  for (int i = 0; i < LANES; i++) _mm_prefetch((const char *)((uintptr_t)l->p[i] + (uintptr_t)off), _MM_HINT_T0);
}

/* ---- rows into lanes ---------------------------------------------------------------------
 * In every transposed vector, dword lane i belongs to row i. Unpacking works within 16
 * bytes, so a register starts as 16 bytes of rows i, i+4, ... (PE_ROWS4). */

INLINE void pe_transpose4(vi v[4], vi r0, vi r1, vi r2, vi r3) {
  vi t0 = vi_unpacklo32(r0, r1), t1 = vi_unpackhi32(r0, r1);
  vi t2 = vi_unpacklo32(r2, r3), t3 = vi_unpackhi32(r2, r3);
  v[0] = vi_unpacklo64(t0, t2);
  v[1] = vi_unpackhi64(t0, t2);
  v[2] = vi_unpacklo64(t1, t3);
  v[3] = vi_unpackhi64(t1, t3);
}

/* 16 bytes at off of each row: v[c] holds bytes 4c..4c+3. Taking fewer of v costs less:
 * the compiler drops what is not used. */
INLINE void pe_transpose16(vi v[4], const pe_lanes *l, int64_t off) {
  pe_transpose4(v, PE_ROWS4(l->p, 0, off), PE_ROWS4(l->p, 1, off), PE_ROWS4(l->p, 2, off), PE_ROWS4(l->p, 3, off));
}

/* The half at off of each row; 16 bytes from off are read. */
INLINE vf pe_half_at(const pe_lanes *l, int64_t off) {
  vi v[4];
  pe_transpose16(v, l, off);
  return vf_half(v[0]);
}

/* The half at off of each row; the 16 bytes that end with it are read. */
INLINE vf pe_half_at_end(const pe_lanes *l, int64_t off) {
  vi v[4];
  pe_transpose16(v, l, off - 14);
  return vf_half(vi_srl32(v[3], 16));
}

/* Dwords holding two halves each: low ones to *lo, high ones to *hi. */
INLINE void pe_half_pairs(vi v, vf *lo, vf *hi) {
  *lo = vf_half(v);
  *hi = vf_half(vi_srl32(v, 16));
}

/* Keeps float sums that live in memory there, for the same reason as pe_pin: carried
 * through the inner loop they would take the registers of the integer sums, which are
 * used eight times as often. */
INLINE void pe_keep_in_memory(void) { __asm__ volatile("" ::: "memory"); }

/* ---- small things ------------------------------------------------------------------- */

INLINE int32_t pe_load_i32(const void *p) {
  int32_t v;
  memcpy(&v, p, 4);
  return v;
}

INLINE vi pe_bcast32(const void *p) { return vi_set32(pe_load_i32(p)); }

/* Low and high nibbles of bytes. */
INLINE vi pe_nib_lo(vi v) { return vi_and(v, vi_set8(15)); }
INLINE vi pe_nib_hi(vi v) { return vi_and(vi_srl16(v, 4), vi_set8(15)); }

/* For vi_shuffle8: each of a dword's bytes takes the byte of its own dword that `bytes`
 * names (0..3, or 0x80: zero), first byte lowest. */
INLINE vi pe_own_bytes(uint32_t bytes) {
  static const uint32_t base[4] = {0, 0x04040404, 0x08080808, 0x0c0c0c0c};
  return vi_add8(vi_set32((int32_t)bytes), vi_table(base));
}

#endif

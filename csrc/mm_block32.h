/* mm_block32.h: unpacks a block of 32 of LANES rows (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL,
 * MXFP4), over the words of the file that includes it. No arithmetic on activations.
 * Included by mm_block32_avx2.c and mm_block32_vnni.inl.c.
 *
 * A block becomes w[c], c < 8: dword lane i holds elements 4c..4c+3 of row i, as unsigned
 * bytes with OFFSET(T) added; what is too much by that comes off the integer sum. */
#ifndef PE_MM_BLOCK32_H
#define PE_MM_BLOCK32_H

#define BYTES(T)                                                                                   \
  ((T) == PE_Q4_0 || (T) == PE_IQ4_NL ? 18 : (T) == PE_Q4_1 ? 20 : (T) == PE_Q5_0 ? 22 : (T) == PE_Q5_1 ? 24 \
   : (T) == PE_Q8_0 ? 34 : 17)
#define OFFSET(T) \
  ((T) == PE_Q4_0 ? 8 : (T) == PE_Q5_0 ? 16 : (T) == PE_Q8_0 || (T) == PE_IQ4_NL ? 128 : (T) == PE_MXFP4 ? 12 : 0)
#define AFFINE(T) ((T) == PE_Q4_1 || (T) == PE_Q5_1)
#define FIFTH_BIT(T) ((T) == PE_Q5_0 || (T) == PE_Q5_1)

static const int8_t iq4_values[16] = {PE_IQ4_VALUES}, mxfp4_values[16] = {PE_MXFP4_VALUES};

/* 16 in each byte of elements 4c..4c+3 whose bit in qh is set. */
INLINE vi fifth_bit(vi qh, int c) {
  vi spread = vi_shuffle8(qh, pe_own_bytes((uint32_t)(c / 2) * 0x01010101u));
  return vi_where8(spread, vi_set32((int)(0x08040201u << (c % 2 * 4))), vi_set8(16));
}

/* 2^(e - 128) of the low byte of each dword. From 2 on that is (e-1) in the exponent; 0 and 1
 * give subnormals, whose bits (e+1) << 21 are the larger number exactly then. */
INLINE vf e8m0_half(vi v) {
  vi e = vi_and(v, vi_set32(255));
  vi normal = vi_sll32(vi_sub32(e, vi_set32(1)), 23), tiny = vi_sll32(vi_add32(e, vi_set32(1)), 21);
  return vf_bits(vi_max32(normal, tiny));
}

INLINE void unpack(int T, const pe_lanes *l, int64_t off, vi w[8], vf *d, vf *m) {
  vi v[4], h[4];
  pe_transpose16(h, l, off);  /* the header's dwords; the rest of it is dropped */
  if (T == PE_MXFP4) *d = e8m0_half(h[0]);
  else *d = vf_half(h[0]);
  if (AFFINE(T)) *m = vf_half(vi_srl32(h[0], 16));
  if (T == PE_Q8_0) {
    pe_transpose16(w, l, off + 2);
    pe_transpose16(w + 4, l, off + 18);
    PE_UNROLL
    for (int c = 0; c < 8; c++) w[c] = vi_xor(w[c], vi_set8(128));
    return;
  }
  vi qh = T == PE_Q5_0 ? vi_or(vi_srl32(h[0], 16), vi_sll32(h[1], 16)) : h[1];
  pe_transpose16(v, l, off + BYTES(T) - 16);
  PE_UNROLL
  for (int c = 0; c < 4; c++) {
    w[c] = pe_nib_lo(v[c]);
    w[c + 4] = pe_nib_hi(v[c]);
  }
  if (FIFTH_BIT(T)) {
    PE_UNROLL
    for (int c = 0; c < 8; c++) w[c] = vi_or(w[c], fifth_bit(qh, c));
  }
  if (T == PE_IQ4_NL || T == PE_MXFP4) {
    vi values = vi_add8(vi_table(T == PE_IQ4_NL ? iq4_values : mxfp4_values), vi_set8(OFFSET(T)));
    PE_UNROLL
    for (int c = 0; c < 8; c++) w[c] = vi_shuffle8(values, w[c]);
  }
}

/* The lines that block b of each lane begins, `ahead` bytes on: one prefetch per line, not
 * per block (22.7 against 28.1 GB/s for Q4_0 in the prototype). */
INLINE void prefetch_lines(int T, const pe_lanes *l, int64_t b, int64_t ahead) {
  int64_t off = b * BYTES(T);
  if ((off & 63) < BYTES(T)) pe_prefetch(l, off + ahead);
}

#endif

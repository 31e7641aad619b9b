/* mm_block32.h: unpacks a block of 32 of LANES rows (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL,
 * MXFP4; NVFP4, Q1_0 and Q2_0, whose blocks have several such parts), over the words of the file
 * that includes it. No arithmetic on activations but their sums of sixteen.
 * Included by mm_block32_avx2.c and mm_block32_vnni.inl.c.
 *
 * A block becomes w[c], c < 8: dword lane i holds elements 4c..4c+3 of row i, as unsigned
 * bytes with OFFSET(T) added; what is too much by that comes off the integer sum. */
#ifndef PE_MM_BLOCK32_H
#define PE_MM_BLOCK32_H

#define BYTES(T)                                                                                   \
  ((T) == PE_Q4_1 ? 20 : (T) == PE_Q5_0 ? 22 : (T) == PE_Q5_1 ? 24 : (T) == PE_Q8_0 ? 34 : (T) == PE_MXFP4 ? 17 \
   : (T) == PE_NVFP4 ? 36 : 18)
#define PARTS(T) ((T) == PE_Q1_0 ? 4 : (T) == PE_NVFP4 || (T) == PE_Q2_0 ? 2 : 1)
#define AT(T, b) ((b) / PARTS(T) * BYTES(T))  /* where the block that block b of 32 is a part of begins */
#define OFFSET(T)                                                                                  \
  ((T) == PE_Q4_0 ? 8 : (T) == PE_Q5_0 ? 16 : (T) == PE_Q8_0 || (T) == PE_IQ4_NL ? 128             \
   : (T) == PE_MXFP4 || (T) == PE_NVFP4 ? 12 : (T) == PE_Q1_0 || (T) == PE_Q2_0 ? 1 : 0)
#define AFFINE(T) ((T) == PE_Q4_1 || (T) == PE_Q5_1)
#define FIFTH_BIT(T) ((T) == PE_Q5_0 || (T) == PE_Q5_1)
#define HALVES(T) ((T) == PE_NVFP4)  /* d is the scale of the first sixteen, m of the others: two sums, two fma */

static const int8_t iq4_values[16] = {PE_IQ4_VALUES}, mxfp4_values[16] = {PE_MXFP4_VALUES};

/* `value` in each byte of elements 4c..4c+3 whose bit in the dword is set. */
INLINE vi bit_of(vi dword, int c, int value) {
  vi spread = vi_shuffle8(dword, pe_own_bytes((uint32_t)(c / 2) * 0x01010101u));
  return vi_where8(spread, vi_set32((int)(0x08040201u << (c % 2 * 4))), vi_set8(value));
}

/* 2^(e - 128) of the low byte of each dword. From 2 on that is (e-1) in the exponent; 0 and 1
 * give subnormals, whose bits (e+1) << 21 are the larger number exactly then. */
INLINE vf e8m0_half(vi v) {
  vi e = vi_and(v, vi_set32(255));
  vi normal = vi_sll32(vi_sub32(e, vi_set32(1)), 23), tiny = vi_sll32(vi_add32(e, vi_set32(1)), 21);
  return vf_bits(vi_max32(normal, tiny));
}

/* Half of what byte `at` of each dword is as ue4m3. A half has its mantissa and one more bit of exponent, with 8
 * more of bias, so the number is exact and no float is subnormal on the way; 127 is 0. */
INLINE vf ue4m3_half(vi v, int at) {
  vi b = vi_shuffle8(v, pe_own_bytes((uint32_t)at | 0x80808000u));
  vi is_127 = vi_and(vi_and(vi_add32(b, vi_set32(1)), vi_xor(b, vi_set32(128))), vi_set32(128));  /* 128 if it is */
  b = vi_sub32(vi_and(b, vi_set32(127)), vi_sub32(is_127, vi_srl32(is_127, 7)));
  return vf_mul(vf_half(vi_sll32(b, 7)), vf_set(128.0f));
}

/* Elements 4c..4c+3 of each row lie in byte c of its dword: w[c] = that byte's four pairs of bits. Two are taken
 * from the low nibble and two from the high one; of each two the first stays in place and the other is two bits up. */
INLINE void quads(vi dword, vi w[4]) {
  static const uint8_t pairs[16] __attribute__((aligned(16))) = {0, 1, 2, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0};
  vi lo = pe_nib_lo(dword), hi = pe_nib_hi(dword);
  PE_UNROLL
  for (int c = 0; c < 4; c++) {
    uint32_t b = (uint32_t)c, z = 0x80;
    vi v = vi_or(vi_shuffle8(lo, pe_own_bytes(b | b << 8 | z << 16 | z << 24)),
                 vi_shuffle8(hi, pe_own_bytes(z | z << 8 | b << 16 | b << 24)));
    w[c] = vi_shuffle8(vi_table(pairs), vi_and(v, vi_set32(0x0c030c03)));
  }
}

/* The sums of q by sixteen, which activation rows have by 32 only. */
INLINE void asum16(const int8_t *q, int32_t to[2]) {
  PE_UNROLL
  for (int h = 0; h < 2; h++) {
    __m128i v = _mm_xor_si128(_mm_load_si128((const __m128i *)q + h), _mm_set1_epi8(-128));
    v = _mm_sad_epu8(v, _mm_setzero_si128());
    to[h] = _mm_cvtsi128_si32(v) + _mm_cvtsi128_si32(_mm_unpackhi_epi64(v, v)) - 16 * 128;
  }
}

/* Types of several parts: loops over parts are unrolled, so that what they share is made once. */
INLINE void unpack_part(int T, const pe_lanes *l, int64_t off, int part, vi w[8], vf *d, vf *m) {
  vi v[4], h[4];
  pe_transpose16(h, l, off);
  pe_transpose16(v, l, off + (T == PE_NVFP4 ? 4 + 16 * part : 2));
  if (T == PE_NVFP4) {
    const vi values = vi_add8(vi_table(mxfp4_values), vi_set8(OFFSET(T)));
    *d = ue4m3_half(h[0], 2 * part);
    *m = ue4m3_half(h[0], 2 * part + 1);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {  /* eight bytes are sixteen elements */
      w[c / 2 * 4 + c % 2] = vi_shuffle8(values, pe_nib_lo(v[c]));
      w[c / 2 * 4 + c % 2 + 2] = vi_shuffle8(values, pe_nib_hi(v[c]));
    }
    return;
  }
  *d = vf_half(h[0]);
  if (T == PE_Q2_0) {
    quads(v[2 * part], w);
    quads(v[2 * part + 1], w + 4);
    return;
  }
  PE_UNROLL
  for (int c = 0; c < 8; c++) w[c] = bit_of(v[part], c, 2);
}

/* Part `part` of the block at off. */
INLINE void unpack(int T, const pe_lanes *l, int64_t off, int part, vi w[8], vf *d, vf *m) {
  vi v[4], h[4];
  if (PARTS(T) > 1) {
    unpack_part(T, l, off, part, w, d, m);
    return;
  }
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
    for (int c = 0; c < 8; c++) w[c] = vi_or(w[c], bit_of(qh, c, 16));
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
  int64_t off = AT(T, b);
  if ((off & 63) < BYTES(T)) pe_prefetch(l, off + ahead);
}

#endif

/* mm_kquant.h: blocks of 256 (Q2_K to Q6_K, IQ4_XS, TQ1_0, TQ2_0) of LANES rows, taken apart into the
 * strips of mm_kpanel.h. No arithmetic on activations. Included by mm_kquant_{avx2,avxvnni,avx512}.c,
 * after the file with their way of multiplying, which says SCALE, UP4 and CODES. */
#ifndef PE_MM_KQUANT_H
#define PE_MM_KQUANT_H

/* Two bits each, 64 bytes: Q2_K, TQ2_0. */
INLINE void strips_of_pairs(int T, const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], w[4];
  PE_UNROLL
  for (int i = 0; i < 4; i++) {  /* 16 bytes: half i/2, elements 16*(i%2).. of its four groups of 32 */
    pe_transpose16(v, l, off + 16 * i);
    PE_UNROLL
    for (int g = 0; g < 4; g++) {
      PE_UNROLL
      for (int c = 0; c < 4; c++) {
        if (g == 2) v[c] = vi_srl16(v[c], 4);
        w[c] = and8(v[c], g % 2 ? 12 : 3);
      }
      take_strip(T, i / 2 * 8 + g * 2 + i % 2, w, g % 2 * 2, p, o);
    }
  }
}

INLINE void unpack_q2_k(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], s[4], m[4];
  pe_transpose16(v, l, off + 68);
  pe_half_pairs(v[3], &p->d, &p->dmin);
  pe_transpose16(v, l, off);
  PE_UNROLL
  for (int i = 0; i < 4; i++) s[i] = pe_nib_lo(v[i]), m[i] = pe_nib_hi(v[i]);
  scales(p, 16, s, m, SCALE(PE_Q2_K, o), 0);
  strips_of_pairs(PE_Q2_K, l, off + 16, p, o);
}

INLINE void ones(kpanel *p, int how) {
  PE_UNROLL
  for (int j = 0; j < 8; j++) p->sc[j] = how == TWICE16 ? vi_set16(1) : vi_set32(1);
  PE_UNROLL
  for (int i = 0; i < 4; i++) p->mn[i] = vi_set16(1);
}

INLINE void unpack_tq2_0(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  p->d = pe_half_at_end(l, off + 64);
  ones(p, SCALE(PE_TQ2_0, o));
  strips_of_pairs(PE_TQ2_0, l, off, p, o);
}

/* A byte is 243 * 0.digits in base 3, scaled to 256: three times it carries a digit into the next eight bits. */
typedef struct digits {
  vi even, odd;            /* bytes as 16 bits */
} digits;

INLINE digits digits_of(vi v) {
  return (digits){vi_and(v, vi_set16(255)), vi_srl16(v, 8)};
}

INLINE vi next_digit(digits *d) {
  vi even = vi_add16(d->even, vi_add16(d->even, d->even)), odd = vi_add16(d->odd, vi_add16(d->odd, d->odd));
  *d = (digits){vi_and(even, vi_set16(255)), vi_and(odd, vi_set16(255))};
  return vi_or(vi_srl16(even, 8), vi_and(odd, vi_set16(0xff00)));
}

INLINE void unpack_tq1_0(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], w[4];
  pe_transpose16(v, l, off + 38);  /* up to the block's end: four bytes of quants, d */
  p->d = vf_half(vi_srl32(v[3], 16));
  digits last = digits_of(vi_or(vi_srl32(v[2], 16), vi_sll32(v[3], 16))), d[4];
  ones(p, SCALE(PE_TQ1_0, o));
  PE_UNROLL
  for (int e = 0; e < 3; e++) {    /* 16 bytes: of the first 32 each digit is half of 32 elements */
    pe_transpose16(v, l, off + 16 * e);
    PE_UNROLL
    for (int c = 0; c < 4; c++) d[c] = digits_of(v[c]);
    PE_UNROLL
    for (int i = 0; i < 5; i++) {
      PE_UNROLL
      for (int c = 0; c < 4; c++) w[c] = next_digit(&d[c]);
      take_strip(PE_TQ1_0, e < 2 ? 2 * i + e : 10 + i, w, 0, p, o);
    }
  }
  PE_UNROLL
  for (int c = 0; c < 4; c++) w[c] = next_digit(&last);
  take_strip(PE_TQ1_0, 15, w, 0, p, o);
}

INLINE void unpack_q3_k(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], h[4], s[4], w[4];
  vf unused;
  pe_transpose4(v, vi_srl128(PE_ROWS4(l->p, 0, off + 94), 2), vi_srl128(PE_ROWS4(l->p, 1, off + 94), 2),
                vi_srl128(PE_ROWS4(l->p, 2, off + 94), 2), vi_srl128(PE_ROWS4(l->p, 3, off + 94), 2));
  pe_half_pairs(v[3], &p->d, &unused);
  s[0] = or_bits(pe_nib_lo(v[0]), v[2], -4, 0x30);
  s[1] = or_bits(pe_nib_lo(v[1]), v[2], -2, 0x30);
  s[2] = or_bits(pe_nib_hi(v[0]), v[2], 0, 0x30);
  s[3] = or_bits(pe_nib_hi(v[1]), v[2], 2, 0x30);
  PE_UNROLL
  for (int i = 0; i < 4; i++) s[i] = vi_sub8(s[i], vi_set8(32));
  scales(p, 16, s, s, SCALE(PE_Q3_K, o), 1);
  PE_UNROLL
  for (int e = 0; e < 2; e++) {
    pe_transpose16(h, l, off + 16 * e);
    PE_UNROLL
    for (int half = 0; half < 2; half++) {
      pe_transpose16(v, l, off + 32 + 32 * half + 16 * e);
      PE_UNROLL
      for (int g = 0; g < 4; g++) {
        const int up = g % 2 * 2;
        PE_UNROLL
        for (int c = 0; c < 4; c++) {
          if (g == 2) v[c] = vi_srl16(v[c], 4);
          w[c] = or_bits(and8(v[c], 3 << up), h[c], 4 * half + g - 2 - up, 4 << up);
        }
        take_strip(PE_Q3_K, half * 8 + g * 2 + e, w, up, p, o);
      }
    }
  }
}

/* d, dmin and the twelve bytes of 6-bit scales and minima of Q4_K and Q5_K. */
INLINE void header_q4_k(int T, const pe_lanes *l, int64_t off, kpanel *p, const one *o) {
  vi v[4], s[2], m[2];
  pe_transpose16(v, l, off);
  pe_half_pairs(v[0], &p->d, &p->dmin);
  s[0] = and8(v[1], 63);
  m[0] = and8(v[2], 63);
  s[1] = or_bits(pe_nib_lo(v[3]), v[1], 2, 0x30);
  m[1] = or_bits(pe_nib_hi(v[3]), v[2], 2, 0x30);
  scales(p, 8, s, m, SCALE(T, o), 0);
}

INLINE void unpack_q4_k(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  header_q4_k(PE_Q4_K, l, off, p, o);
  PE_UNROLL
  for (int i = 0; i < 8; i++) {  /* 16 bytes: the low nibbles, and 32 elements on, the high ones */
    vi v[4], w[4];
    pe_transpose16(v, l, off + 16 + 16 * i);
    PE_UNROLL
    for (int c = 0; c < 4; c++) w[c] = pe_nib_lo(v[c]);
    take_strip(PE_Q4_K, i / 2 * 4 + i % 2, w, 0, p, o);
    PE_UNROLL
    for (int c = 0; c < 4; c++) w[c] = UP4 ? and8(v[c], 0xf0) : pe_nib_hi(v[c]);
    take_strip(PE_Q4_K, i / 2 * 4 + i % 2 + 2, w, UP4, p, o);
  }
}

INLINE void unpack_q5_k(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  header_q4_k(PE_Q5_K, l, off, p, o);
  PE_UNROLL
  for (int e = 0; e < 2; e++) {
    vi v[4], h[4], w[4];
    pe_transpose16(h, l, off + 16 + 16 * e);
    PE_UNROLL
    for (int g = 0; g < 4; g++) {
      pe_transpose16(v, l, off + 48 + 32 * g + 16 * e);
      PE_UNROLL
      for (int c = 0; c < 4; c++) w[c] = or_bits(pe_nib_lo(v[c]), h[c], 2 * g - 4, 16);
      take_strip(PE_Q5_K, g * 4 + e, w, 0, p, o);
      PE_UNROLL
      for (int c = 0; c < 4; c++) w[c] = or_bits(pe_nib_hi(v[c]), h[c], 2 * g - 3, 16);
      take_strip(PE_Q5_K, g * 4 + e + 2, w, 0, p, o);
    }
  }
}

INLINE void unpack_q6_k(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], h[4], w[4];
  p->d = pe_half_at_end(l, off + 208);
  pe_transpose16(v, l, off + 192);
  scales(p, 16, v, v, SCALE(PE_Q6_K, o), 1);
  PE_UNROLL
  for (int i = 0; i < 4; i++) {  /* half i/2, elements 16*(i%2).. of its four groups of 32 */
    const int j = i / 2 * 8 + i % 2;
    pe_transpose16(h, l, off + 128 + 16 * i);
    PE_UNROLL
    for (int low = 0; low < 2; low++) {  /* groups 0 and 2, then 1 and 3 */
      pe_transpose16(v, l, off + i / 2 * 64 + i % 2 * 16 + 32 * low);
      PE_UNROLL
      for (int c = 0; c < 4; c++) w[c] = or_bits(pe_nib_lo(v[c]), h[c], 2 * low - 4, 0x30);
      take_strip(PE_Q6_K, j + 2 * low, w, 0, p, o);
      PE_UNROLL
      for (int c = 0; c < 4; c++) w[c] = or_bits(pe_nib_hi(v[c]), h[c], 2 * low, 0x30);
      take_strip(PE_Q6_K, j + 2 * low + 4, w, 0, p, o);
    }
  }
}

INLINE void unpack_iq4_xs(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  static const uint8_t codes[16] __attribute__((aligned(16))) = CODES;
  const vi table = vi_table(codes);
  vi v[4], s[2], w[4];
  vf unused;
  pe_transpose16(v, l, off);  /* d and scales_h, scales_l, 8 bytes of quants */
  pe_half_pairs(v[0], &p->d, &unused);
  /* Nibble g of scales_l to byte g; bits 2g of scales_h to bits 4 and 5 of it. */
  vi lo = pe_nib_lo(v[1]), hi = pe_nib_hi(v[1]), h[2];
  PE_UNROLL
  for (int i = 0; i < 2; i++) {
    uint32_t b = 2 * (uint32_t)i, z = 0x80;
    s[i] = vi_or(vi_shuffle8(lo, pe_own_bytes(b | z << 8 | (b + 1) << 16 | z << 24)),
                 vi_shuffle8(hi, pe_own_bytes(z | b << 8 | z << 16 | (b + 1) << 24)));
    h[i] = vi_shuffle8(v[0], pe_own_bytes((2u + i) * 0x01010101u));
    h[i] = vi_or(vi_or(vi_and(vi_sll16(h[i], 4), vi_set32(0x30)), vi_and(vi_sll16(h[i], 2), vi_set32(0x3000))),
                 vi_or(vi_and(h[i], vi_set32(0x300000)), vi_and(vi_srl16(h[i], 2), vi_set32(0x30000000))));
    s[i] = vi_sub8(vi_or(s[i], h[i]), vi_set8(32));
  }
  scales(p, 8, s, s, SCALE(PE_IQ4_XS, o), 1);
  PE_UNROLL
  for (int i = 0; i < 8; i++) {  /* 16 bytes are 32 elements */
    pe_transpose16(v, l, off + 8 + 16 * i);
    PE_UNROLL
    for (int c = 0; c < 4; c++) w[c] = vi_shuffle8(table, pe_nib_lo(v[c]));
    take_strip(PE_IQ4_XS, 2 * i, w, 0, p, o);
    PE_UNROLL
    for (int c = 0; c < 4; c++) w[c] = vi_shuffle8(table, pe_nib_hi(v[c]));
    take_strip(PE_IQ4_XS, 2 * i + 1, w, 0, p, o);
  }
}

INLINE void unpack(int T, const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  if (T == PE_Q2_K) unpack_q2_k(l, off, p, o);
  if (T == PE_Q3_K) unpack_q3_k(l, off, p, o);
  if (T == PE_Q4_K) unpack_q4_k(l, off, p, o);
  if (T == PE_Q5_K) unpack_q5_k(l, off, p, o);
  if (T == PE_Q6_K) unpack_q6_k(l, off, p, o);
  if (T == PE_IQ4_XS) unpack_iq4_xs(l, off, p, o);
  if (T == PE_TQ1_0) unpack_tq1_0(l, off, p, o);
  if (T == PE_TQ2_0) unpack_tq2_0(l, off, p, o);
}

#define EACH_TYPE(X)                                                                                            \
  X(PE_Q2_K, q2_k) X(PE_Q3_K, q3_k) X(PE_Q4_K, q4_k) X(PE_Q5_K, q5_k) X(PE_Q6_K, q6_k) X(PE_IQ4_XS, iq4_xs)     \
  X(PE_TQ1_0, tq1_0) X(PE_TQ2_0, tq2_0)

#endif

/* mm_iquant.h: blocks of the codebook types (IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S) of
 * LANES rows, taken apart into the strips of mm_kpanel.h. No arithmetic on activations. Included by
 * mm_iquant_{avx2,avxvnni,avx512}.c, after the file with their way of multiplying.
 *
 * An entry's four bytes are just what a dword of a strip holds, so the indices of a group are made
 * for all rows at once and the codebook is read by gathers: IQ3's dwords come as they are wanted, IQ1's and IQ2's in pairs. The
 * codebooks are 1 to 16 KB and stay in the first-level cache. */
#ifndef PE_MM_IQUANT_H
#define PE_MM_IQUANT_H
#include "iq_grids.h"

/* ---- scales, signs and entries ------------------------------------------------------------ */

/* 2*s + 1 in dwords: where the bits of s lie from bit 1 on, and anything in bit 0. */
INLINE vi odd32(vi v, int how) {
  v = vi_or(v, vi_set32(1));
  return how == TWICE16 ? vi_or(v, vi_sll32(v, 16)) : v;
}

/* Nibbles of dword v, low first, to scales j0 .. j0 + 2*n - 1 as 2*s + 1. */
INLINE void nibble_scales(kpanel *p, int j0, int n, vi v, int how) {
  vi lo = pe_nib_lo(v), hi = pe_nib_hi(v);
  lo = vi_or(vi_add8(lo, lo), vi_set8(1));
  hi = vi_or(vi_add8(hi, hi), vi_set8(1));
  PE_UNROLL
  for (int b = 0; b < n; b++) {
    p->sc[j0 + 2 * b] = scale(lo, b, how, 0);
    p->sc[j0 + 2 * b + 1] = scale(hi, b, how, 0);
  }
}

/* Byte b of each dword, in all of its bytes. */
INLINE vi repeat(vi v, int b) { return vi_shuffle8(v, pe_own_bytes((uint32_t)b * 0x01010101u)); }
/* Byte b of each dword, as its second byte: the bits of an index from 8 on, moved there by a shift. */
INLINE vi second(vi v, int b) { return vi_shuffle8(v, pe_own_bytes(0x80800080u | (uint32_t)b << 8)); }

/* Bytes of seven signs each get the eighth, which makes the number of set ones even. */
INLINE vi even_signs(vi y) {
  static const uint8_t odd[16] __attribute__((aligned(16))) = {0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0};
  return vi_or(y, vi_shuffle8(vi_table(odd), and8(vi_xor(y, vi_srl16(y, 4)), 15)));
}

/* Four times seven bits of a dword, one per byte, and the eighth. */
INLINE vi signs_of_28(vi s) {
  vi y = vi_or(vi_or(vi_and(s, vi_set32(0x7f)), vi_and(vi_sll32(s, 1), vi_set32(0x7f00))),
               vi_or(vi_and(vi_sll32(s, 2), vi_set32(0x7f0000)), vi_and(vi_sll32(s, 3), vi_set32(0x7f000000))));
  return even_signs(y);
}

INLINE vi byte_at(vi v, int k) {
  return k == 0 ? vi_and(v, vi_set32(255)) : k == 3 ? vi_srl32(v, 24) : vi_and(vi_srl32(v, 8 * k), vi_set32(255));
}

/* ---- IQ2: entries of eight ----------------------------------------------------------------- */

INLINE void unpack_iq2_xxs(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  p->d = vf_mul(pe_half_at(l, off), vf_set(0.125f));
  for (int i = 0; i < 4; i++) {  /* 16 bytes: entries and signs of 32 elements, twice */
    vi v[4], w[4], s[2];
    pe_transpose16(v, l, off + 2 + 16 * i);
    PE_UNROLL
    for (int g = 0; g < 2; g++) {
      vi signs = signs_of_28(v[2 * g + 1]);
      p->sc[2 * i + g] = odd32(vi_srl32(v[2 * g + 1], 27), SCALE(PE_IQ2_XXS, o));
      PE_UNROLL
      for (int h = 0; h < 2; h++) {
        PE_UNROLL
        for (int k = 0; k < 2; k++) {
          vi_gather64(w + 2 * k, pe_grid_iq2_xxs, byte_at(v[2 * g], 2 * h + k));
          s[k] = repeat(signs, 2 * h + k);
        }
        take_signed(PE_IQ2_XXS, 4 * i + 2 * g + h, w, s, p, o);
      }
    }
  }
}

INLINE void unpack_iq2_xs(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], w[4], s[2];
  p->d = vf_mul(pe_half_at(l, off), vf_set(0.125f));
  pe_transpose16(v, l, off + 58);
  nibble_scales(p, 0, 4, v[2], SCALE(PE_IQ2_XS, o));
  nibble_scales(p, 8, 4, v[3], SCALE(PE_IQ2_XS, o));
  for (int i = 0; i < 4; i++) {
    pe_transpose16(v, l, off + 2 + 16 * i);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {  /* two words of nine bits entry and seven signs */
      vi signs = even_signs(vi_srl16(v[c], 9));
      vi_gather64(w, pe_grid_iq2_xs, vi_and(v[c], vi_set32(511)));
      vi_gather64(w + 2, pe_grid_iq2_xs, vi_and(vi_srl32(v[c], 16), vi_set32(511)));
      s[0] = repeat(signs, 0);
      s[1] = repeat(signs, 2);
      take_signed(PE_IQ2_XS, 4 * i + c, w, s, p, o);
    }
  }
}

INLINE void unpack_iq2_s(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], h[4], f[4], w[4], s[2];
  p->d = vf_mul(pe_half_at(l, off), vf_set(0.125f));
  pe_transpose16(h, l, off + 66);
  nibble_scales(p, 0, 4, h[2], SCALE(PE_IQ2_S, o));
  nibble_scales(p, 8, 4, h[3], SCALE(PE_IQ2_S, o));
  for (int i = 0; i < 2; i++) {  /* 16 entries are 128 elements */
    pe_transpose16(v, l, off + 2 + 16 * i);
    pe_transpose16(f, l, off + 34 + 16 * i);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {
      vi high = second(h[0], c);
      PE_UNROLL
      for (int e = 0; e < 2; e++) {
        PE_UNROLL
        for (int k = 2 * e; k < 2 * e + 2; k++) {
          vi top = vi_and(k == 0 ? high : vi_srl32(high, 2 * k), vi_set32(0x300));
          vi_gather64(w + k % 2 * 2, pe_grid_iq2_s, vi_or(byte_at(v[c], k), top));
          s[k % 2] = repeat(f[c], k);
        }
        take_signed(PE_IQ2_S, 8 * i + 2 * c + e, w, s, p, o);
      }
    }
    h[0] = h[1];
  }
}

/* ---- IQ3: entries of four ------------------------------------------------------------------ */

INLINE void unpack_iq3_xxs(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  p->d = vf_mul(pe_half_at(l, off), vf_set(0.25f));
  for (int half = 0; half < 2; half++) {  /* 16 bytes: signs and scales of 128 elements */
    vi f[4], v[4], w[4], s[2];
    pe_transpose16(f, l, off + 66 + 16 * half);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {
      p->sc[4 * half + c] = odd32(vi_srl32(f[c], 27), SCALE(PE_IQ3_XXS, o));
      f[c] = signs_of_28(f[c]);
    }
    PE_UNROLL
    for (int i = 0; i < 2; i++) {
      pe_transpose16(v, l, off + 2 + 32 * half + 16 * i);
      PE_UNROLL
      for (int c = 0; c < 4; c++) {  /* four entries: a strip */
        PE_UNROLL
        for (int k = 0; k < 4; k++) w[k] = vi_gather32(pe_grid_iq3_xxs, byte_at(v[c], k), 4);
        s[0] = repeat(f[2 * i + c / 2], c % 2 * 2);
        s[1] = repeat(f[2 * i + c / 2], c % 2 * 2 + 1);
        take_signed(PE_IQ3_XXS, 8 * half + 4 * i + c, w, s, p, o);
      }
    }
  }
}

INLINE void unpack_iq3_s(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], h[4], f[4], w[4], s[2];
  p->d = pe_half_at(l, off);
  pe_transpose16(h, l, off + 94);
  nibble_scales(p, 0, 4, h[3], SCALE(PE_IQ3_S, o));
  pe_transpose16(h, l, off + 66);
  for (int half = 0; half < 2; half++) {
    pe_transpose16(f, l, off + 74 + 16 * half);
    PE_UNROLL
    for (int i = 0; i < 2; i++) {
      pe_transpose16(v, l, off + 2 + 32 * half + 16 * i);
      PE_UNROLL
      for (int c = 0; c < 4; c++) {
        vi high = second(h[0], 2 * i + c / 2);
        PE_UNROLL
        for (int k = 0; k < 4; k++) {
          const int bit = c % 2 * 4 + k;
          vi top = vi_and(bit == 0 ? high : vi_srl32(high, bit), vi_set32(0x100));
          w[k] = vi_gather32(pe_grid_iq3_s, vi_or(byte_at(v[c], k), top), 4);
        }
        s[0] = repeat(f[2 * i + c / 2], c % 2 * 2);
        s[1] = repeat(f[2 * i + c / 2], c % 2 * 2 + 1);
        take_signed(PE_IQ3_S, 8 * half + 4 * i + c, w, s, p, o);
      }
    }
    h[0] = h[1];
  }
}

/* ---- IQ1: entries of eight, -8, 0 or 8, and one more or less ---------------------------------- */

/* Bytes of 1, or -1 where the dword is negative; one token: + 9, for vpmaddubsw and vpdpbusd want them from 0 on. */
INLINE vi one_or_less(vi sign, const one *o) {
  vi v = vi_or(vi_sra32(sign, 31), vi_set8(1));
  return o ? vi_add8(v, vi_set8(OFFSET(PE_IQ1_S))) : v;
}

/* Scales in dwords: to sc, and by two for the offset. */
INLINE void scales32(kpanel *p, int n, const vi *s, int how) {
  PE_UNROLL
  for (int j = 0; j < n; j++) p->sc[j] = odd32(s[j], how);
  PE_UNROLL
  for (int j = 0; j < n; j += 2) p->mn[j / 2] = vi_or(odd32(s[j], LOW16), vi_sll32(odd32(s[j + 1], LOW16), 16));
}

INLINE void unpack_iq1_s(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], h[4], s[8], w[4];
  p->d = vf_mul(pe_half_at(l, off), vf_set(0.125f));
  pe_transpose16(h, l, off + 34);
  PE_UNROLL
  for (int g = 0; g < 8; g++) s[g] = vi_and(vi_srl32(h[g / 2], g % 2 * 16 + 11), vi_set32(14));
  scales32(p, 8, s, SCALE(PE_IQ1_S, o));
  PE_UNROLL
  for (int i = 0; i < 2; i++) {
    pe_transpose16(v, l, off + 2 + 16 * i);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {  /* four entries: 32 elements */
      vi word = c % 2 ? vi_srl32(h[2 * i + c / 2], 16) : h[2 * i + c / 2], more = one_or_less(vi_sll32(word, 16), o);
      PE_UNROLL
      for (int e = 0; e < 2; e++) {
        PE_UNROLL
        for (int k = 2 * e; k < 2 * e + 2; k++) {
          vi top = vi_and(k < 3 ? vi_sll32(word, 8 - 3 * k) : vi_srl32(word, 1), vi_set32(0x700));
          vi_gather64(w + k % 2 * 2, pe_grid_iq1, vi_or(byte_at(v[c], k), top));
        }
        PE_UNROLL
        for (int k = 0; k < 4; k++) w[k] = vi_add8(w[k], more);
        take_strip(PE_IQ1_S, 8 * i + 2 * c + e, w, 0, p, o);
      }
    }
  }
}

INLINE void unpack_iq1_m(const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  vi v[4], h[4], s[16], w[4];
  pe_transpose16(h, l, off + 40);
  p->d = vf_mul(vf_half(vi_or(vi_or(vi_and(vi_srl32(h[2], 12), vi_set32(15)), vi_and(vi_srl32(h[2], 24), vi_set32(0xf0))),
                              vi_or(vi_and(vi_srl32(h[3], 4), vi_set32(0xf00)), vi_and(vi_srl32(h[3], 16), vi_set32(0xf000))))),
                vf_set(0.125f));
  PE_UNROLL
  for (int j = 0; j < 16; j++) {
    const int bit = j / 4 % 2 * 16 + j % 4 * 3;
    s[j] = vi_and(bit ? vi_srl32(h[2 + j / 8], bit - 1) : vi_sll32(h[2 + j / 8], 1), vi_set32(14));
  }
  scales32(p, 16, s, SCALE(PE_IQ1_M, o));
  pe_transpose16(h, l, off + 32);
  PE_UNROLL
  for (int i = 0; i < 2; i++) {
    pe_transpose16(v, l, off + 16 * i);
    PE_UNROLL
    for (int c = 0; c < 4; c++) {  /* four entries; a nibble for each has the upper bits and the sign of the eighth */
      vi word = c % 2 ? vi_srl32(h[2 * i + c / 2], 16) : h[2 * i + c / 2];
      PE_UNROLL
      for (int e = 0; e < 2; e++) {
        PE_UNROLL
        for (int k = 2 * e; k < 2 * e + 2; k++) {
          vi top = vi_and(k < 2 ? vi_sll32(word, 8 - 4 * k) : k == 2 ? word : vi_srl32(word, 4), vi_set32(0x700));
          vi more = one_or_less(vi_sll32(word, 28 - 4 * k), o), *to = w + k % 2 * 2;
          vi_gather64(to, pe_grid_iq1, vi_or(byte_at(v[c], k), top));
          to[0] = vi_add8(to[0], more);
          to[1] = vi_add8(to[1], more);
        }
        take_strip(PE_IQ1_M, 8 * i + 2 * c + e, w, 0, p, o);
      }
    }
  }
}

INLINE void unpack(int T, const pe_lanes *l, int64_t off, kpanel *p, one *o) {
  if (T == PE_IQ1_S) unpack_iq1_s(l, off, p, o);
  if (T == PE_IQ1_M) unpack_iq1_m(l, off, p, o);
  if (T == PE_IQ2_XXS) unpack_iq2_xxs(l, off, p, o);
  if (T == PE_IQ2_XS) unpack_iq2_xs(l, off, p, o);
  if (T == PE_IQ2_S) unpack_iq2_s(l, off, p, o);
  if (T == PE_IQ3_XXS) unpack_iq3_xxs(l, off, p, o);
  if (T == PE_IQ3_S) unpack_iq3_s(l, off, p, o);
}

#define EACH_TYPE(X)                                                                                            \
  X(PE_IQ1_S, iq1_s) X(PE_IQ1_M, iq1_m) X(PE_IQ2_XXS, iq2_xxs) X(PE_IQ2_XS, iq2_xs) X(PE_IQ2_S, iq2_s)          \
  X(PE_IQ3_XXS, iq3_xxs) X(PE_IQ3_S, iq3_s)

#endif

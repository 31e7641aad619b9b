/* mm_scalar_iq.c: what matrix products and stored weights of the codebook types mean: IQ1_S, IQ1_M,
 * IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S. The other half of mm_scalar.c, which says what such a file
 * is. Reached through pe_rows_scalar_iq and pe_dequant only.
 *
 * All of them are an entry of the codebook per group of eight elements (IQ3: four), a sign per element
 * (IQ1: an offset of an eighth instead), and 2*s + 1 per sub-block. So each becomes a block of 256 with
 * integer scales: a factor of 1/8 or 1/4 is a power of two and goes into d, and IQ1's entries and
 * offsets are eight times as large, -9 to 9. d/8 is exact: d is at least 2^-24. */
#include "iq_grids.h"
#include "mm_scalar.h"

/* A group's elements: eight of them by a sign byte each, or four by a nibble. */
INLINE void signed_entry(int8_t *q, uint64_t entry, int n, int signs) {
  for (int j = 0; j < n; j++) {
    int v = (int)(entry >> (8 * j) & 255);
    q[j] = (int8_t)(signs >> j & 1 ? -v : v);
  }
}

/* Seven stored signs, and the eighth that makes the number of set ones even. */
INLINE int even_signs(int s) {
  int p = s ^ s >> 4;
  p ^= p >> 2;
  p ^= p >> 1;
  return s | (p & 1) << 7;
}

INLINE void scale32(block256 *u, int g, int s) { u->sc[2 * g] = u->sc[2 * g + 1] = (int8_t)(2 * s + 1); }
INLINE void nibble_scales16(block256 *u, const uint8_t *scales) {
  for (int j = 0; j < 16; j++) u->sc[j] = (int8_t)(2 * (scales[j / 2] >> 4 * (j & 1) & 15) + 1);
}

INLINE void unpack_iq2_xxs(block256 *u, const uint8_t *w) {
  const pe_iq2_xxs *b = (const pe_iq2_xxs *)w;
  u->d = pe_f16_to_f32(b->d) / 8;
  for (int g = 0; g < 8; g++) {
    uint32_t s = b->g[g].signs;
    scale32(u, g, (int)(s >> 28));
    for (int i = 0; i < 4; i++)
      signed_entry(u->q + 32 * g + 8 * i, pe_grid_iq2_xxs[b->g[g].qs[i]], 8, even_signs(s >> 7 * i & 127));
  }
}

INLINE void unpack_iq2_xs(block256 *u, const uint8_t *w) {
  const pe_iq2_xs *b = (const pe_iq2_xs *)w;
  u->d = pe_f16_to_f32(b->d) / 8;
  nibble_scales16(u, b->scales);
  for (int i = 0; i < 32; i++) signed_entry(u->q + 8 * i, pe_grid_iq2_xs[b->qs[i] & 511], 8, even_signs(b->qs[i] >> 9));
}

INLINE void unpack_iq2_s(block256 *u, const uint8_t *w) {
  const pe_iq2_s *b = (const pe_iq2_s *)w;
  u->d = pe_f16_to_f32(b->d) / 8;
  nibble_scales16(u, b->scales);
  for (int i = 0; i < 32; i++) {
    int at = b->qs[i] | (b->qh[i / 4] >> 2 * (i & 3) & 3) << 8;
    signed_entry(u->q + 8 * i, pe_grid_iq2_s[at], 8, b->signs[i]);
  }
}

INLINE void unpack_iq3_xxs(block256 *u, const uint8_t *w) {
  const pe_iq3_xxs *b = (const pe_iq3_xxs *)w;
  u->d = pe_f16_to_f32(b->d) / 4;
  for (int g = 0; g < 8; g++) scale32(u, g, (int)(b->signs[g] >> 28));
  for (int i = 0; i < 64; i++)
    signed_entry(u->q + 4 * i, pe_grid_iq3_xxs[b->qs[i]], 4, even_signs(b->signs[i / 8] >> 7 * (i / 2 & 3) & 127) >> 4 * (i & 1));
}

INLINE void unpack_iq3_s(block256 *u, const uint8_t *w) {
  const pe_iq3_s *b = (const pe_iq3_s *)w;
  u->d = pe_f16_to_f32(b->d);
  for (int g = 0; g < 8; g++) scale32(u, g, b->scales[g / 2] >> 4 * (g & 1) & 15);
  for (int i = 0; i < 64; i++) {
    int at = b->qs[i] | (b->qh[i / 8] >> (i & 7) & 1) << 8;
    signed_entry(u->q + 4 * i, pe_grid_iq3_s[at], 4, b->signs[i / 2] >> 4 * (i & 1));
  }
}

/* An entry with its offset: eight times it, and 1 more or less. */
INLINE void offset_entry(int8_t *q, int at, int is_less) {
  for (int j = 0; j < 8; j++) q[j] = (int8_t)((int8_t)(pe_grid_iq1[at] >> 8 * j & 255) + (is_less ? -1 : 1));
}

INLINE void unpack_iq1_s(block256 *u, const uint8_t *w) {
  const pe_iq1_s *b = (const pe_iq1_s *)w;
  u->d = pe_f16_to_f32(b->d) / 8;
  for (int g = 0; g < 8; g++) {
    int h = b->qh[g];
    scale32(u, g, h >> 12 & 7);
    for (int i = 0; i < 4; i++) offset_entry(u->q + 32 * g + 8 * i, b->qs[4 * g + i] | (h >> 3 * i & 7) << 8, h >> 15);
  }
}

INLINE void unpack_iq1_m(block256 *u, const uint8_t *w) {
  const pe_iq1_m *b = (const pe_iq1_m *)w;
  int d = 0;
  for (int i = 0; i < 4; i++) d |= (b->scales[i] >> 12) << 4 * i;
  u->d = pe_f16_to_f32((pe_half)d) / 8;
  for (int j = 0; j < 16; j++) u->sc[j] = (int8_t)(2 * (b->scales[j / 4] >> 3 * (j & 3) & 7) + 1);
  for (int i = 0; i < 32; i++) {
    int h = b->qh[i / 2] >> 4 * (i & 1);
    offset_entry(u->q + 8 * i, b->qs[i] | (h & 7) << 8, h >> 3 & 1);
  }
}

/* ---- the table ---------------------------------------------------------------------- */

BLOCK(256, iq1_s, 0)
BLOCK(256, iq1_m, 0)
BLOCK(256, iq2_xxs, 0)
BLOCK(256, iq2_xs, 0)
BLOCK(256, iq2_s, 0)
BLOCK(256, iq3_xxs, 0)
BLOCK(256, iq3_s, 0)

const pe_row pe_rows_scalar_iq[] = {
    ROW(PE_IQ1_S, PE_ACT_Q256, iq1_s),     ROW(PE_IQ1_M, PE_ACT_Q256, iq1_m), ROW(PE_IQ2_XXS, PE_ACT_Q256, iq2_xxs),
    ROW(PE_IQ2_XS, PE_ACT_Q256, iq2_xs),   ROW(PE_IQ2_S, PE_ACT_Q256, iq2_s), ROW(PE_IQ3_XXS, PE_ACT_Q256, iq3_xxs),
    ROW(PE_IQ3_S, PE_ACT_Q256, iq3_s),     {0},
};

const pe_dequants pe_dequants_iq[] = {
    {PE_IQ1_S, 256, dequant_iq1_s},     {PE_IQ1_M, 256, dequant_iq1_m}, {PE_IQ2_XXS, 256, dequant_iq2_xxs},
    {PE_IQ2_XS, 256, dequant_iq2_xs},   {PE_IQ2_S, 256, dequant_iq2_s}, {PE_IQ3_XXS, 256, dequant_iq3_xxs},
    {PE_IQ3_S, 256, dequant_iq3_s},     {0},
};

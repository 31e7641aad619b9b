/* quantize_grid.inl.c: as quantize_blocks.inl.c, for the types whose codes are entries of a codebook: IQ1, IQ2, IQ3.
 *
 * A group of eight weights (IQ3: four) is a scale times an entry, with a sign per weight or, in IQ1, an offset of an
 * eighth. The error of entry e at scale s is const - s*(2*A[e] - s*B[e]), where A = sum(w*x*e) and B = sum(w*e*e) do not
 * depend on s: so both are computed once for all entries, and every scale tried after that takes three operations per
 * entry. Nothing is approximated: the best entry is found among all of them. */
#include "iq_grids.h"

typedef struct grid {
  int entries, len;        /* of the codebook; weights per entry */
  int sub, codes;          /* weights that share a scale 2*code + 1; how many codes there are */
  int offsets;             /* 0: signs, 1: one offset for the weights of a scale, 2: one per entry */
  int even;                /* eight signs have an even number of set ones */
  float unit;              /* the stored half is so many times what the entries, as whole numbers, are scaled by */
  float most, first, step; /* largest value of an entry; the largest weight is tried on first*most, and so on up by step */
} grid;

enum { GRID_TRIES = 9, GRID_ROOM = 16384, GRID_GROUPS = 8 };   /* floats of the codebook, entries by element; groups of a scale */

typedef struct picked {
  float d;                 /* half's value over grid.unit */
  uint8_t code[16], less[64], signs[32];
  uint16_t entry[64];
} picked;

/* Signs taken off: y is what the entries have to come near. Where the count of negative ones has to be even and is not, the
 * weight that matters least gets the wrong one, and its y is negative. */
ALWAYS void take_signs(const grid *b, const float *x, const float *w, float *y, uint8_t *signs) {
  for (int g = 0; g < SUPER / 8; g++) {
    int bits = 0, least = 0;
    for (int j = 0; j < 8; j++) {
      const float *p = x + 8 * g + j;
      y[8 * g + j] = b->offsets ? *p : __builtin_fabsf(*p);
      bits |= (*p < 0) << j;
      if (w[8 * g + j] * __builtin_fabsf(*p) < w[8 * g + least] * __builtin_fabsf(x[8 * g + least])) least = j;
    }
    if (b->even && __builtin_parity((unsigned)bits)) {
      bits ^= 1 << least;
      y[8 * g + least] = -y[8 * g + least];
    }
    signs[g] = (uint8_t)bits;
  }
}

/* A and B of every entry, for one group: with offsets first those of +1, then those of -1. */
ALWAYS void products(const grid *b, const float *table, const float *y, const float *w, float *ab) {
  float X = 0, W = 0;
  for (int j = 0; j < b->len; j++) X += w[j] * y[j], W += w[j];
  for (int e = 0; e < b->entries; e += LANES) {
    v8 A = all(0), B = all(0), C = all(0);
    for (int j = 0; j < b->len; j++) {
      v8 t = load(table + j * b->entries + e), u = w[j] * t;
      A += u * y[j];
      B += u * t;
      C += u;
    }
    if (!b->offsets) {
      memcpy(ab + e, &A, sizeof A), memcpy(ab + b->entries + e, &B, sizeof B);
      continue;
    }
    v8 m = A + X, n = B + 2 * C + W, p = A - X, q = B - 2 * C + W;
    memcpy(ab + e, &m, sizeof m), memcpy(ab + b->entries + e, &n, sizeof n);
    memcpy(ab + 2 * b->entries + e, &p, sizeof p), memcpy(ab + 3 * b->entries + e, &q, sizeof q);
  }
}

/* The entry of the least error at scale s, the lowest among equals. */
ALWAYS int nearest_entry(const float *ab, int entries, float s) {
  v8 most = all(-3e38f);
  m8 at = {0}, now = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int e = 0; e < entries; e += LANES, now += LANES) {
    v8 score = (2 * s) * load(ab + e) - (s * s) * load(ab + entries + e);
    m8 more = score > most;
    most = pick(more, score, most);
    at = (more & now) | (~more & at);
  }
  int best = 0;
  for (int l = 1; l < LANES; l++)
    if (most[l] > most[best] || (most[l] == most[best] && at[l] < at[best])) best = l;
  return at[best];
}

typedef struct chosen { float A, B; uint16_t entry[GRID_GROUPS]; uint8_t less[GRID_GROUPS]; } chosen;

/* The best entries of all groups that share a scale, at scale s: sums of their A and B. */
ALWAYS chosen choose_entries(const grid *b, const float *ab, float s) {
  int groups = b->sub / b->len, span = b->entries * (b->offsets ? 4 : 2);
  chosen best = {0, 0, {0}, {0}};
  if (b->offsets != 1) {
    for (int g = 0; g < groups; g++) {
      const float *p = ab + g * span;
      int e = nearest_entry(p, b->entries, s);
      float A = p[e], B = p[b->entries + e];
      if (b->offsets) {
        const float *q = p + 2 * b->entries;
        int f = nearest_entry(q, b->entries, s);
        if (2 * q[f] - s * q[b->entries + f] > 2 * A - s * B) e = f, A = q[f], B = q[b->entries + f], best.less[g] = 1;
      }
      best.entry[g] = (uint16_t)e;
      best.A += A, best.B += B;
    }
    return best;
  }
  for (int less = 0; less < 2; less++) {
    chosen c = {0, 0, {0}, {0}};
    for (int g = 0; g < groups; g++) {
      const float *p = ab + g * span + less * 2 * b->entries;
      int e = nearest_entry(p, b->entries, s);
      c.entry[g] = (uint16_t)e, c.less[g] = (uint8_t)less;
      c.A += p[e], c.B += p[b->entries + e];
    }
    if (!less || 2 * c.A - s * c.B > 2 * best.A - s * best.B) best = c;
  }
  return best;
}

ALWAYS void products_of_sub(const grid *b, const float *table, const float *y, const float *w, float *ab) {
  for (int g = 0; g < b->sub / b->len; g++)
    products(b, table, y + g * b->len, w + g * b->len, ab + g * b->entries * (b->offsets ? 4 : 2));
}

ALWAYS picked fit_grid(const grid *b, const float *table, float *ab, const float *x, const float *w) {
  picked best = {0, {0}, {0}, {0}, {0}}, now;
  float y[SUPER], want[16], peak = 0;
  int subs = SUPER / b->sub, groups = b->sub / b->len;
  take_signs(b, x, w, y, best.signs);
  for (int i = 0; i < subs; i++) {             /* the scale each would like to have */
    float most = largest(y + i * b->sub, b->sub), gain = -1;
    want[i] = 0;
    if (most < TINY) continue;
    products_of_sub(b, table, y + i * b->sub, w + i * b->sub, ab);
    for (int t = 0; t < GRID_TRIES; t++) {
      chosen c = choose_entries(b, ab, most / (b->most * (b->first + b->step * (float)t)));
      if (c.B > 0 && c.A > 0 && c.A * c.A / c.B > gain) gain = c.A * c.A / c.B, want[i] = c.A / c.B;
    }
    peak = want[i] > peak ? want[i] : peak;
  }
  if (peak == 0) return best;
  float d = half_of(b->unit * peak / (float)(2 * b->codes - 1)) / b->unit, most = 0;
  if (d == 0) d = 0x1p-24f / b->unit;
  now = best;
  for (int round = 0; round < 3; round++) {    /* whole scales for that d; then the d that fits them best, and again */
    float sum = 0, sa = 0, sb = 0;
    now.d = d;
    for (int i = 0; i < subs; i++) {
      products_of_sub(b, table, y + i * b->sub, w + i * b->sub, ab);
      int mid = (int)nearest(clamp((want[i] / d - 1) * 0.5f, 0, (float)(b->codes - 1))), found = 0;
      float least = 0, A = 0, B = 0;
      for (int c = mid - 1; c <= mid + 1; c++) {
        if (c < 0 || c >= b->codes) continue;
        float s = d * (float)(2 * c + 1);
        chosen e = choose_entries(b, ab, s);
        float gain = s * (2 * e.A - s * e.B);
        if (found && !(gain > least)) continue;
        found = 1, least = gain;
        now.code[i] = (uint8_t)c;
        A = (float)(2 * c + 1) * e.A, B = (float)(2 * c + 1) * (float)(2 * c + 1) * e.B;
        memcpy(now.entry + i * groups, e.entry, (size_t)groups * 2);
        memcpy(now.less + i * groups, e.less, (size_t)groups);
      }
      sum += least, sa += A, sb += B;
    }
    if (round == 0 || sum > most) best = now, most = sum;
    else break;
    float better = sb > 0 ? half_of(b->unit * sa / sb) / b->unit : 0;
    if (!(better > 0) || better == d) break;
    d = better;
  }
  return best;
}

/* ---- the types -------------------------------------------------------------------------------------------- */

/* The codebook by element, as floats: [len][entries]. */
ALWAYS void spread(float *table, const void *entries, const grid *b) {
  for (int e = 0; e < b->entries; e++)
    for (int j = 0; j < b->len; j++) table[j * b->entries + e] = (float)((const int8_t *)entries)[e * b->len + j];
}

#define GRID_TYPE(name, type, codebook, put, ...)                                                                 \
  static void name(const float *x, const float *importance, void *out, int64_t n, float *scratch) {                \
    const grid b = {__VA_ARGS__};                                                                                  \
    type *y = out;                                                                                                 \
    spread(scratch, codebook, &b);                                                                                 \
    for (; n > 0; n--, y++, x += SUPER, importance += importance ? SUPER : 0) {                                    \
      float w[SUPER];                                                                                              \
      weigh(w, x, importance, SUPER);                                                                              \
      picked p = fit_grid(&b, scratch, scratch + GRID_ROOM, x, w);                                                 \
      memset(y, 0, sizeof *y);                                                                                     \
      put(y, &p, pe_f32_to_f16(p.d * b.unit));                                                                     \
    }                                                                                                              \
  }

ALWAYS void put_iq3_s(pe_iq3_s *y, const picked *p, pe_half d) {
  y->d = d;
  for (int i = 0; i < 64; i++) {
    y->qs[i] = (uint8_t)p->entry[i];
    y->qh[i / 8] = (uint8_t)(y->qh[i / 8] | (p->entry[i] >> 8) << (i & 7));
  }
  memcpy(y->signs, p->signs, 32);
  for (int g = 0; g < 8; g++) y->scales[g / 2] = (uint8_t)(y->scales[g / 2] | p->code[g] << 4 * (g & 1));
}
GRID_TYPE(iq3_s, pe_iq3_s, pe_grid_iq3_s, put_iq3_s, 512, 4, 32, 16, 0, 0, 1, 15, 0.65f, 0.07f)

/* Four times seven signs, the eighth follows from them; the scale on top. */
ALWAYS uint32_t signs28(const uint8_t *signs, int code) {
  uint32_t v = (uint32_t)code << 28;
  for (int i = 0; i < 4; i++) v |= (uint32_t)(signs[i] & 127) << 7 * i;
  return v;
}

ALWAYS void put_iq3_xxs(pe_iq3_xxs *y, const picked *p, pe_half d) {
  y->d = d;
  for (int i = 0; i < 64; i++) y->qs[i] = (uint8_t)p->entry[i];
  for (int g = 0; g < 8; g++) y->signs[g] = signs28(p->signs + 4 * g, p->code[g]);
}
GRID_TYPE(iq3_xxs, pe_iq3_xxs, pe_grid_iq3_xxs, put_iq3_xxs, 256, 4, 32, 16, 0, 1, 4, 62, 0.65f, 0.07f)

ALWAYS void put_iq2_xxs(pe_iq2_xxs *y, const picked *p, pe_half d) {
  y->d = d;
  for (int g = 0; g < 8; g++) {
    for (int i = 0; i < 4; i++) y->g[g].qs[i] = (uint8_t)p->entry[4 * g + i];
    y->g[g].signs = signs28(p->signs + 4 * g, p->code[g]);
  }
}
GRID_TYPE(iq2_xxs, pe_iq2_xxs, pe_grid_iq2_xxs, put_iq2_xxs, 256, 8, 32, 16, 0, 1, 8, 43, 0.7f, 0.1f)

ALWAYS void put_iq2_xs(pe_iq2_xs *y, const picked *p, pe_half d) {
  y->d = d;
  for (int i = 0; i < 32; i++) y->qs[i] = (uint16_t)(p->entry[i] | (p->signs[i] & 127) << 9);
  for (int g = 0; g < 16; g++) y->scales[g / 2] = (uint8_t)(y->scales[g / 2] | p->code[g] << 4 * (g & 1));
}
GRID_TYPE(iq2_xs, pe_iq2_xs, pe_grid_iq2_xs, put_iq2_xs, 512, 8, 16, 16, 0, 1, 8, 43, 0.7f, 0.1f)

ALWAYS void put_iq2_s(pe_iq2_s *y, const picked *p, pe_half d) {
  y->d = d;
  for (int i = 0; i < 32; i++) {
    y->qs[i] = (uint8_t)p->entry[i];
    y->qh[i / 4] = (uint8_t)(y->qh[i / 4] | (p->entry[i] >> 8) << 2 * (i & 3));
  }
  memcpy(y->signs, p->signs, 32);
  for (int g = 0; g < 16; g++) y->scales[g / 2] = (uint8_t)(y->scales[g / 2] | p->code[g] << 4 * (g & 1));
}
GRID_TYPE(iq2_s, pe_iq2_s, pe_grid_iq2_s, put_iq2_s, 1024, 8, 16, 16, 0, 0, 8, 43, 0.7f, 0.1f)

ALWAYS void put_iq1_s(pe_iq1_s *y, const picked *p, pe_half d) {
  y->d = d;
  for (int g = 0; g < 8; g++) {
    unsigned h = (unsigned)p->code[g] << 12 | (unsigned)p->less[4 * g] << 15;
    for (int i = 0; i < 4; i++) {
      y->qs[4 * g + i] = (uint8_t)p->entry[4 * g + i];
      h |= (unsigned)(p->entry[4 * g + i] >> 8) << 3 * i;
    }
    y->qh[g] = (uint16_t)h;
  }
}
GRID_TYPE(iq1_s, pe_iq1_s, pe_grid_iq1, put_iq1_s, 2048, 8, 32, 8, 1, 0, 8, 9, 0.9f, 0.15f)

ALWAYS void put_iq1_m(pe_iq1_m *y, const picked *p, pe_half d) {
  for (int i = 0; i < 32; i++) {
    y->qs[i] = (uint8_t)p->entry[i];
    y->qh[i / 2] = (uint8_t)(y->qh[i / 2] | (p->entry[i] >> 8 | p->less[i] << 3) << 4 * (i & 1));
  }
  for (int g = 0; g < 4; g++) {
    unsigned s = (unsigned)(d >> 4 * g & 15) << 12;
    for (int j = 0; j < 4; j++) s |= (unsigned)p->code[4 * g + j] << 3 * j;
    y->scales[g] = (uint16_t)s;
  }
}
GRID_TYPE(iq1_m, pe_iq1_m, pe_grid_iq1, put_iq1_m, 2048, 8, 16, 8, 2, 0, 8, 9, 0.9f, 0.15f)

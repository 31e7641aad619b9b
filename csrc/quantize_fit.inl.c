/* quantize_fit.inl.c: the searches behind quantized weights: scales and offsets that leave the least weighted
 * squared error. Knows numbers, not block layouts (quantize_blocks.inl.c). Included once per instruction set.
 *
 * Everything goes eight lanes at a time, whatever the registers are; a sum ends in one fixed tree. The error of a
 * candidate is always that of the codes it would really be stored with. */
#include "quantize.h"
#include "softfloat.h"

#include <string.h>

#define ALWAYS static inline __attribute__((always_inline))
#define LANES 8
#define TINY 0x1p-60f      /* blocks below it are zero in every type whose scale is a half */

#ifndef __clang__
#pragma GCC diagnostic ignored "-Wpsabi"   /* nothing below is called across files */
#endif
typedef float v8 __attribute__((vector_size(32)));     /* one register, two or four: the compiler's business */
typedef int32_t m8 __attribute__((vector_size(32)));

ALWAYS v8 load(const float *x) {
  v8 v;
  memcpy(&v, x, sizeof v);
  return v;
}
ALWAYS v8 all(float x) { return (v8){x, x, x, x, x, x, x, x}; }
ALWAYS v8 pick(m8 c, v8 a, v8 b) { return (v8)((c & (m8)a) | (~c & (m8)b)); }
ALWAYS v8 nearest8(v8 x) { return (x + 12582912.0f) - 12582912.0f; }
ALWAYS v8 clamp8(v8 x, float lo, float hi) {
  x = pick(x < all(lo), all(lo), x);
  return pick(x > all(hi), all(hi), x);
}
ALWAYS float total(v8 a) { return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])); }

/* To the nearest integer, ties to even; |x| < 2^22. */
ALWAYS float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }
ALWAYS float clamp(float x, float lo, float hi) {
  x = x < lo ? lo : x;
  return x > hi ? hi : x;
}
/* The half nearest to x, and never infinity. */
ALWAYS float half_of(float x) { return pe_f16_to_f32(pe_f32_to_f16(clamp(x, -65504.0f, 65504.0f))); }
ALWAYS float inverse(float x) { return x != 0 ? 1.0f / x : 0.0f; }

ALWAYS float largest(const float *x, int n) {
  float most = 0;
  for (int i = 0; i < n; i++) {
    float a = __builtin_fabsf(x[i]);
    most = a > most ? a : most;
  }
  return most;
}

/* ---- codes ------------------------------------------------------------------------------------------------
 * A book says which integers a code may stand for: all from lo to hi, or those of a table. */
typedef struct book {
  float lo, hi;
  const float *steps;      /* NULL, or n_steps (middle, gap) pairs: value = lo + the gaps whose middle is below x */
  int n_steps;
} book;

ALWAYS float coded(const book *b, float x) {
  if (!b->steps) return nearest(clamp(x, b->lo, b->hi));
  float v = b->lo;
  for (int i = 0; i < b->n_steps; i++) v += x > b->steps[2 * i] ? b->steps[2 * i + 1] : 0.0f;
  return v;
}

/* Eight at a time; the same values. */
ALWAYS v8 coded8(const book *b, v8 x) {
  if (!b->steps) return nearest8(clamp8(x, b->lo, b->hi));
  v8 v = all(b->lo);
  for (int i = 0; i < b->n_steps; i++) v += (v8)((x > all(b->steps[2 * i])) & (m8)all(b->steps[2 * i + 1]));
  return v;
}

static const float iq4_steps[] = {
    -115.5f, 23, -93.5f, 21, -74, 18, -57, 16, -42, 14, -28.5f, 13, -16, 12, -4.5f, 11,
    7, 12, 19, 12, 31.5f, 13, 45.5f, 15, 61, 16, 79, 20, 101, 24};
#define IQ4_BOOK {-127, 113, iq4_steps, 15}

/* ---- x ~ s*q ------------------------------------------------------------------------------------------------ */

/* Weighted error of a scale as it will be stored. */
ALWAYS float error_of_scale(const float *x, const float *w, int n, const book *b, float s) {
  v8 e = all(0);
  float inv = inverse(s);
  for (int i = 0; i < n; i += LANES) {
    v8 u = load(x + i), d = u - s * coded8(b, u * inv);
    e += load(w + i) * (d * d);
  }
  return total(e);
}

/* Codes of x*inv, and the scale that fits them best: *s; the gain is what of sum(w*x*x) it explains. */
ALWAYS float gain_of_inverse(const float *x, const float *w, int n, const book *b, float inv, float *s) {
  v8 xq = all(0), qq = all(0);
  for (int i = 0; i < n; i += LANES) {
    v8 u = load(x + i), q = coded8(b, u * inv), wq = load(w + i) * q;
    xq += wq * u;
    qq += wq * q;
  }
  float a = total(xq), c = total(qq);
  *s = c > 0 ? a / c : 0;
  return c > 0 ? a * *s : 0;
}

/* The scale of either sign that fits best. `reach`: the codes from which the largest weight is tried, going
 * down by `step`, `tries` of them for each sign. */
ALWAYS float fit_scale(const float *x, const float *w, int n, const book *b, float reach, float step, int tries) {
  float most = largest(x, n), best = -1, scale = 0;
  if (most < TINY) return 0;
  float unit = 1.0f / most;
  for (int side = 0; side < 2; side++)
    for (int i = 0; i < tries; i++) {
      float s, inv = (reach - step * (float)i) * unit;
      float gain = gain_of_inverse(x, w, n, b, side ? inv : -inv, &s);
      if (gain > best) best = gain, scale = s;
    }
  for (int i = 0; i < 2; i++) {                /* codes of the fitted scale, and the scale that fits those */
    float s;
    if (scale == 0) break;
    float gain = gain_of_inverse(x, w, n, b, 1.0f / scale, &s);
    if (!(gain > best)) break;
    best = gain, scale = s;
  }
  return scale;
}

/* ---- x ~ s*q + o, q from 0 to hi ------------------------------------------------------------------------------- */

typedef struct affine { float s, o; } affine;

ALWAYS v8 codes8(v8 x, float hi, float inv, float o) { return nearest8(clamp8((x - o) * inv, 0, hi)); }

ALWAYS float error_of_affine(const float *x, const float *w, int n, float hi, float s, float o) {
  v8 e = all(0);
  float inv = inverse(s);
  for (int i = 0; i < n; i += LANES) {
    v8 u = load(x + i), d = u - (s * codes8(u, hi, inv, o) + o);
    e += load(w + i) * (d * d);
  }
  return total(e);
}

/* The offset that fits best where the codes are those of (s, o). */
ALWAYS float fit_offset(const float *x, const float *w, int n, float hi, float s, float o) {
  v8 r = all(0), sw = all(0);
  float inv = inverse(s);
  for (int i = 0; i < n; i += LANES) {
    v8 u = load(x + i), v = load(w + i);
    r += v * (u - s * codes8(u, hi, inv, o));
    sw += v;
  }
  float c = total(sw);
  return c > 0 ? total(r) / c : o;
}

/* Scale and offset that fit best where the codes are those of a. below: the offset may not be positive. */
ALWAYS affine refit(const float *x, const float *w, int n, float hi, affine a, int below) {
  v8 sw = all(0), sx = all(0), sq = all(0), qq = all(0), xq = all(0);
  float inv = inverse(a.s);
  for (int i = 0; i < n; i += LANES) {
    v8 u = load(x + i), v = load(w + i), q = codes8(u, hi, inv, a.o), wq = v * q;
    sw += v;
    sx += v * u;
    sq += wq;
    qq += wq * q;
    xq += wq * u;
  }
  float W = total(sw), X = total(sx), Q = total(sq), QQ = total(qq), XQ = total(xq);
  float det = W * QQ - Q * Q;
  if (!(det > 0)) return a;
  affine f = {(W * XQ - X * Q) / det, (QQ * X - Q * XQ) / det};
  if (below && f.o > 0) f.o = 0, f.s = QQ > 0 ? XQ / QQ : 0;
  return f.s > 0 ? f : a;
}

/* `tries` widths around the full range, each refitted; then twice more from the best. */
ALWAYS affine fit_affine(const float *x, const float *w, int n, float hi, float step, int tries, int below) {
  float low = x[0], high = x[0];
  for (int i = 1; i < n; i++) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  if (below && low > 0) low = 0;
  if (high - low < TINY) return (affine){0, low};
  affine best = {(high - low) / hi, low};
  float least = error_of_affine(x, w, n, hi, best.s, best.o);
  float first = hi - step * (float)(tries / 2);
  for (int i = 0; i < tries; i++) {
    affine a = refit(x, w, n, hi, (affine){(high - low) / (first + step * (float)i), low}, below);
    float e = error_of_affine(x, w, n, hi, a.s, a.o);
    if (e < least) least = e, best = a;
  }
  for (int i = 0; i < 2; i++) {
    affine a = refit(x, w, n, hi, best, below);
    float e = error_of_affine(x, w, n, hi, a.s, a.o);
    if (!(e < least)) break;
    least = e, best = a;
  }
  return best;
}

/* ---- 256 weights whose groups share a scale: x ~ d*sc*q -------------------------------------------------------- */

typedef struct scaled { float d; float sc[16]; } scaled;   /* d is a half's value, sc whole numbers */

/* The whole number sc from lo to hi whose scale d*sc leaves the least error, near the wanted scale; its error. */
ALWAYS float pick_scale(const float *x, const float *w, int n, const book *b, float d, float want, float lo, float hi,
                        int around, float *sc) {
  float at = nearest(clamp(want * inverse(d), lo, hi)), least = -1;
  for (int i = -around; i <= around; i++) {
    float c = at + (float)i;
    if (c < lo || c > hi) continue;
    float e = error_of_scale(x, w, n, b, d * c);
    if (least < 0 || e < least) least = e, *sc = c;
  }
  return least;
}

/* Codes are books of b; sc runs from lo to hi, lo < 0 the longer side. `tries` halves for d around the smallest
 * that reaches the largest scale, then the one that fits the codes found. */
ALWAYS scaled fit_scaled(const float *x, const float *w, int n, const book *b, float reach, float step, int tries,
                         float lo, float hi, int d_tries, int around) {
  float want[16], peak = 0;
  int groups = 256 / n;
  for (int g = 0; g < groups; g++) {
    want[g] = fit_scale(x + g * n, w + g * n, n, b, reach, step, tries);
    if (__builtin_fabsf(want[g]) > __builtin_fabsf(peak)) peak = want[g];
  }
  scaled best = {0, {0}}, now = {0, {0}};
  float least = -1;
  if (peak == 0) return best;
  for (int i = 0; i < d_tries; i++) {
    float d = half_of(peak / (lo + (float)i * 0.5f)), e = 0;
    if (d == 0) d = peak / lo < 0 ? -0x1p-24f : 0x1p-24f;
    for (int g = 0; g < groups; g++) e += pick_scale(x + g * n, w + g * n, n, b, d, want[g], lo, hi, 0, &now.sc[g]);
    if (least < 0 || e < least) now.d = d, best = now, least = e;
  }
  for (int round = 0; round < 3; round++) {
    float e = 0;
    now.d = best.d;
    for (int g = 0; g < groups; g++) e += pick_scale(x + g * n, w + g * n, n, b, now.d, round ? now.d * best.sc[g] : want[g],
                                                     lo, hi, around, &now.sc[g]);
    if (e < least) best = now, least = e;
    v8 xq = all(0), qq = all(0);
    for (int g = 0; g < groups; g++) {
      float inv = inverse(best.d * best.sc[g]);
      for (int i = g * n; i < g * n + n; i += LANES) {
        v8 u = load(x + i), q = best.sc[g] * coded8(b, u * inv), wq = load(w + i) * q;
        xq += wq * u;
        qq += wq * q;
      }
    }
    float c = total(qq), d = c > 0 ? half_of(total(xq) / c) : 0;
    if (d == best.d || d == 0) break;
    now = best, now.d = d, e = 0;
    for (int g = 0; g < groups; g++) e += error_of_scale(x + g * n, w + g * n, n, b, d * now.sc[g]);
    if (!(e < least)) break;
    best = now, least = e;
  }
  return best;
}

/* ---- 256 weights whose groups share a scale and a minimum: x ~ d*sc*q - dmin*m ----------------------------------- */

typedef struct shifted { float d, dmin; float sc[16], m[16]; } shifted;

/* sc and m near what is wanted that leave the least error; the error. */
ALWAYS float pick_affine(const float *x, const float *w, int n, float hi, float d, float dmin, affine want, float top,
                         int around, float *sc, float *m) {
  float at = nearest(clamp(want.s * inverse(d), 0, top)), least = -1;
  float back = inverse(dmin);
  for (int i = -around; i <= around; i++) {
    float c = at + (float)i, s = d * c;
    if (c < 0 || c > top) continue;
    float o = around && i ? fit_offset(x, w, n, hi, s, want.o) : want.o;
    float mid = nearest(clamp(-o * back, 0, top));
    for (int j = -around; j <= around; j++) {
      float k = mid + (float)j;
      if (k < 0 || k > top) continue;
      float e = error_of_affine(x, w, n, hi, s, -(dmin * k));
      if (least < 0 || e < least) least = e, *sc = c, *m = k;
    }
  }
  return least;
}

ALWAYS shifted fit_shifted(const float *x, const float *w, int n, float hi, float step, int tries, float top) {
  affine want[16];
  int groups = 256 / n;
  float s_peak = 0, m_peak = 0;
  for (int g = 0; g < groups; g++) {
    want[g] = fit_affine(x + g * n, w + g * n, n, hi, step, tries, 1);
    s_peak = want[g].s > s_peak ? want[g].s : s_peak;
    m_peak = -want[g].o > m_peak ? -want[g].o : m_peak;
  }
  shifted best = {0, 0, {0}, {0}}, now = {0, 0, {0}, {0}};
  float least = -1;
  for (int i = 0; i < 4; i++)                  /* the largest scale on 63, 62.5 ..., the largest minimum likewise */
    for (int j = 0; j < 3; j++) {
      float e = 0;
      now.d = half_of(s_peak / (top - (float)i * 0.5f)), now.dmin = half_of(m_peak / (top - (float)j * 0.5f));
      if (now.d == 0 && s_peak > 0) now.d = 0x1p-24f;
      for (int g = 0; g < groups; g++)
        e += pick_affine(x + g * n, w + g * n, n, hi, now.d, now.dmin, want[g], top, 0, &now.sc[g], &now.m[g]);
      if (least < 0 || e < least) best = now, least = e;
    }
  for (int round = 0; round < 3; round++) {
    float e = 0;
    now.d = best.d, now.dmin = best.dmin;
    for (int g = 0; g < groups; g++) {
      affine a = round ? (affine){best.d * best.sc[g], -(best.dmin * best.m[g])} : want[g];
      e += pick_affine(x + g * n, w + g * n, n, hi, now.d, now.dmin, a, top, 1, &now.sc[g], &now.m[g]);
    }
    if (e < least) best = now, least = e;
    /* d and dmin that fit the codes found: two unknowns, least squares over the block */
    v8 aa = all(0), bb = all(0), ab = all(0), xa = all(0), xb = all(0);
    for (int g = 0; g < groups; g++) {
      float s = best.d * best.sc[g], o = -(best.dmin * best.m[g]), inv = inverse(s), b = -best.m[g];
      for (int i = g * n; i < g * n + n; i += LANES) {
        v8 u = load(x + i), v = load(w + i), a = best.sc[g] * codes8(u, hi, inv, o);
        aa += v * (a * a);
        ab += v * (a * b);
        bb += v * (b * b);
        xa += v * (u * a);
        xb += v * (u * b);
      }
    }
    float AA = total(aa), AB = total(ab), BB = total(bb), XA = total(xa), XB = total(xb), det = AA * BB - AB * AB;
    now = best;
    if (det > 0) now.d = half_of((BB * XA - AB * XB) / det), now.dmin = half_of((AA * XB - AB * XA) / det);
    if (!(now.d > 0) || now.dmin < 0 || (now.d == best.d && now.dmin == best.dmin)) break;
    e = 0;
    for (int g = 0; g < groups; g++)
      e += error_of_affine(x + g * n, w + g * n, n, hi, now.d * now.sc[g], -(now.dmin * now.m[g]));
    if (!(e < least)) break;
    best = now, least = e;
  }
  return best;
}

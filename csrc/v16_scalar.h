/* v16_scalar.h: the sixteen-lane words in plain C. What each word means is written
 * here; every other v16_<isa>.h gives the same bits. Included by simd_scalar.c only.
 *
 * v16 is sixteen floats, v16i sixteen int32, v16m sixteen yes or no (here -1 and 0). Loops run
 * over sixteen lanes so that the compiler may use whatever vectors the baseline has. */
#ifndef PE_V16_H
#define PE_V16_H
#include "softfloat.h"

typedef struct { float f[16]; } v16;
typedef struct { int32_t i[16]; } v16i;
typedef v16i v16m;
typedef v16 v1;   /* a float for all lanes, to multiply by: what is fastest for that */
#define W static inline
#define LANES for (int i = 0; i < 16; i++)
enum { V16_REGISTERS = 8 };   /* how many v16 a kernel may count on being in registers */

/* ---- memory; _n: the first n lanes (0..16), the others read +0 and are not written ---- */
W v16 v16_set(float x) { v16 r; LANES r.f[i] = x; return r; }
W v1 v1_load(const float *p) { return v16_set(*p); }
W v16 v16_load(const float *p) { v16 r; memcpy(&r, p, sizeof r); return r; }
W void v16_store(float *p, v16 a) { memcpy(p, &a, sizeof a); }
W v16 v16_load_n(const float *p, int n) { v16 r = {{0}}; memcpy(&r, p, (size_t)n * 4); return r; }
W void v16_store_n(float *p, v16 a, int n) { memcpy(p, &a, (size_t)n * 4); }
W v16 v16_load_f16(const uint16_t *p) { v16 r; LANES r.f[i] = pe_f16_to_f32(p[i]); return r; }
W v16 v16_load_f16_n(const uint16_t *p, int n) { v16 r = {{0}}; for (int i = 0; i < n; i++) r.f[i] = pe_f16_to_f32(p[i]); return r; }
W v16 v16_set_f16(uint16_t x) { return v16_set(pe_f16_to_f32(x)); }
W v16 v16_load_i8(const int8_t *p) { v16 r; LANES r.f[i] = p[i]; return r; }
/* d*(n - 8) for the low or high nibbles n of sixteen bytes */
W v16 v16_load_q4(const uint8_t *p, int high, v16 d) { LANES d.f[i] *= (float)((high ? p[i] >> 4 : p[i] & 15) - 8); return d; }
W void v16_store_f16(uint16_t *p, v16 a) { LANES p[i] = pe_f32_to_f16(a.f[i]); }
W void v16_store_i8x2(int8_t *p, v16i a, v16i b) { LANES { p[i] = (int8_t)a.i[i]; p[16 + i] = (int8_t)b.i[i]; } }   /* lanes within -128..127 */
W void v16_unzip(const float *p, v16 *even, v16 *odd) { LANES { even->f[i] = p[2 * i]; odd->f[i] = p[2 * i + 1]; } }
W void v16_zip(float *p, v16 even, v16 odd) { LANES { p[2 * i] = even.f[i]; p[2 * i + 1] = odd.f[i]; } }

/* ---- arithmetic ------------------------------------------------------------------ */
W v16 v16_add(v16 a, v16 b) { LANES a.f[i] = a.f[i] + b.f[i]; return a; }
W v16 v16_sub(v16 a, v16 b) { LANES a.f[i] = a.f[i] - b.f[i]; return a; }
W v16 v16_mul(v16 a, v16 b) { LANES a.f[i] = a.f[i] * b.f[i]; return a; }
W v16 v16_div(v16 a, v16 b) { LANES a.f[i] = a.f[i] / b.f[i]; return a; }
W v16 v16_fma(v16 a, v16 b, v16 c) { LANES a.f[i] = pe_fmaf(a.f[i], b.f[i], c.f[i]); return a; }   /* a*b + c */
W v16 v16_max(v16 a, v16 b) { LANES a.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i]; return a; }
W v16 v16_fma1(v1 a, v16 b, v16 c) { return v16_fma(a, b, c); }
W float v16_sum(v16 a) {
  for (int w = 8; w; w /= 2)
    for (int i = 0; i < w; i++) a.f[i] += a.f[i + w];
  return a.f[0];
}
W float v16_hmax(v16 a) {
  for (int w = 8; w; w /= 2)
    for (int i = 0; i < w; i++) a.f[i] = a.f[i] > a.f[i + w] ? a.f[i] : a.f[i + w];
  return a.f[0];
}

/* ---- masks ------------------------------------------------------------------------ */
W v16m v16_lt(v16 a, v16 b) { v16m r; LANES r.i[i] = -(a.f[i] < b.f[i]); return r; }
W v16m v16_nan(v16 a) { v16m r; LANES r.i[i] = -(a.f[i] != a.f[i]); return r; }
W v16m v16_range(int lo, int hi) { v16m r; LANES r.i[i] = -(i >= lo && i < hi); return r; }
W v16 v16_select(v16m m, v16 a, v16 b) { LANES a.f[i] = m.i[i] ? a.f[i] : b.f[i]; return a; }      /* m ? a : b */
W v16i v16i_where(v16m m, v16i a) { LANES a.i[i] = m.i[i] ? a.i[i] : 0; return a; }               /* m ? a : 0 */

/* ---- integers ---------------------------------------------------------------------- */
W v16i v16i_load(const void *p) { v16i r; memcpy(&r, p, sizeof r); return r; }
W v16i v16i_set(int32_t x) { v16i r; LANES r.i[i] = x; return r; }
W v16i v16_bits(v16 a) { v16i r; memcpy(&r, &a, sizeof r); return r; }
W v16 v16_from_bits(v16i a) { v16 r; memcpy(&r, &a, sizeof r); return r; }
W v16 v16_from_int(v16i a) { v16 r; LANES r.f[i] = (float)a.i[i]; return r; }
/* nearest even, for |a| <= 2^21: at 1.5*2^23 floats are the integers */
W v16i v16_round(v16 a) { v16i r; LANES r.i[i] = (int32_t)(a.f[i] + 12582912.0f - 12582912.0f); return r; }
W v16i v16i_add(v16i a, v16i b) { LANES a.i[i] = (int32_t)((uint32_t)a.i[i] + (uint32_t)b.i[i]); return a; }
W v16i v16i_sub(v16i a, v16i b) { LANES a.i[i] = (int32_t)((uint32_t)a.i[i] - (uint32_t)b.i[i]); return a; }
W v16i v16i_and(v16i a, v16i b) { LANES a.i[i] &= b.i[i]; return a; }
W v16i v16i_or(v16i a, v16i b) { LANES a.i[i] |= b.i[i]; return a; }
W v16i v16i_shl23(v16i a) { LANES a.i[i] = (int32_t)((uint32_t)a.i[i] << 23); return a; }
W v16i v16i_shr23(v16i a) { LANES a.i[i] >>= 23; return a; }                       /* sign extended */
/* Sums of four products of signed bytes (-127..127) per lane, from v16i_dot4_start(sum of all of b's bytes that will come) on. */
W v16i v16i_dot4_start(int32_t b_sum) { (void)b_sum; return v16i_set(0); }
W v16i v16i_dot4(v16i s, v16i a, v16i b) {
  const int8_t *x = (const int8_t *)&a, *y = (const int8_t *)&b;
  LANES for (int j = 0; j < 4; j++) s.i[i] += x[4 * i + j] * y[4 * i + j];
  return s;
}
/* Sums of 32 products per lane, in between as the tier likes: q4_start, four times q4_dot, q4_end, with sum = that of all of b and c. q4_dot
 * adds low nibbles - 8 times b, then high nibbles - 8 times c; bytes of b and c are -127..127. */
W v16i v16i_q4_start(int32_t sum) { (void)sum; return v16i_set(0); }
W v16i v16i_q4_dot(v16i s, v16i a, v16i b, v16i c) {
  const uint8_t *x = (const uint8_t *)&a;
  const int8_t *y = (const int8_t *)&b, *z = (const int8_t *)&c;
  LANES for (int j = 0; j < 4; j++) s.i[i] += ((x[4 * i + j] & 15) - 8) * y[4 * i + j] + ((x[4 * i + j] >> 4) - 8) * z[4 * i + j];
  return s;
}
W v16i v16i_q4_end(v16i s, int32_t sum) { (void)sum; return s; }
W v16i v16i_max(v16i a, v16i b) { LANES a.i[i] = a.i[i] > b.i[i] ? a.i[i] : b.i[i]; return a; }
W int32_t v16i_hmax(v16i a) { int32_t m = a.i[0]; LANES m = a.i[i] > m ? a.i[i] : m; return m; }
/* Whether |q| of each 16 of 256 add up to PE_SMALL_SUM at most; 0 where no kernel of the CPU asks. */
W int v16_small(const int8_t *q) {
  int most = 0;
  for (int i = 0; i < 256; i += 16) {
    int sum = 0;
    for (int j = 0; j < 16; j++) sum += q[i + j] < 0 ? -q[i + j] : q[i + j];
    most = sum > most ? sum : most;
  }
  return most <= PE_SMALL_SUM;
}
W int32_t v16i_sum(v16i a) { int32_t s = 0; LANES s += a.i[i]; return s; }         /* the sum must fit */

#undef LANES
#undef W
#endif

/* kv_store.inl.c: what a position's K and V become in its page, in f16, q8_0 and q4_0, written once over
 * the sixteen-lane words. Rules: docs/arithmetic.md, section 7; layouts: PE_KV_* in pyengine.h. Included by
 * simd_<isa>.c only, after ops.inl.c, whose quantization it uses. Reading is attn.inl.c's.
 *
 * A store changes no byte of another position: pages are shared and copied for their first positions. */

static void op_kv_store(uint8_t *kpage, uint8_t *vpage, int64_t slot, const float *k, const float *v, int64_t dk, int64_t dv) {
  uint16_t *kc = (uint16_t *)kpage + (slot / 16 * dk) * 16 + slot % 16, *vr = (uint16_t *)vpage + slot * dv;
  uint16_t h[16];
  for (int64_t d = 0; d < dk; d += 16) {
    int m = dk - d < 16 ? (int)(dk - d) : 16;
    v16_store_f16(h, m == 16 ? v16_load(k + d) : v16_load_n(k + d, m));
    for (int i = 0; i < m; i++) kc[(d + i) * 16] = h[i];
  }
  int64_t d = 0;
  for (; d + 16 <= dv; d += 16) v16_store_f16(vr + d, v16_load(v + d));
  if (d < dv) {
    v16_store_f16(h, v16_load_n(v + d, (int)(dv - d)));
    memcpy(vr + d, h, (size_t)(dv - d) * 2);
  }
}

/* The float d of n blocks as f16. */
static void store_scales(uint16_t *h, const float *d, int64_t n) {
  for (int64_t b = 0; b < n; b += 16) {
    uint16_t t[16];
    int m = n - b < 16 ? (int)(n - b) : 16;
    v16_store_f16(t, v16_load_n(d + b, m));
    memcpy(h + b, t, (size_t)m * 2);
  }
}

/* A row of blocks of 32 into its place in a strip: K in words of four bytes, V as a whole, then the scales. */
static void store_k(uint8_t *strip, int64_t slot, const uint8_t *q, int64_t bytes, const float *d, int64_t blocks) {
  uint16_t h[PE_MAX_D_BLOCKS / 32];
  store_scales(h, d, blocks);
  for (int64_t i = 0; i < bytes; i += 4) memcpy(strip + 16 * i + 4 * slot, q + i, 4);
  for (int64_t b = 0; b < blocks; b++) memcpy(strip + 16 * bytes + 32 * b + 2 * slot, h + b, 2);
}
static void store_v(uint8_t *strip, int64_t slot, const uint8_t *q, int64_t bytes, const float *d, int64_t blocks) {
  uint16_t h[PE_MAX_D_BLOCKS / 32];
  store_scales(h, d, blocks);
  memcpy(strip + slot * bytes, q, (size_t)bytes);
  memcpy(strip + 16 * bytes + slot * blocks * 2, h, (size_t)blocks * 2);
}

static void op_kv_store_q8(uint8_t *kpage, uint8_t *vpage, int64_t slot, const float *k, const float *v, int64_t dk, int64_t dv) {
  _Alignas(64) uint8_t row[PE_MAX_D_BLOCKS + 2 * PE_MAX_D_BLOCKS / 8];
  op_quant32(row, k, dk, 0, dk / 32);
  store_k(kpage + slot / 16 * 17 * dk, slot % 16, row, dk, pe_act_d(row, dk), dk / 32);
  op_quant32(row, v, dv, 0, dv / 32);
  store_v(vpage + slot / 16 * 17 * dv, slot % 16, row, dv, pe_act_d(row, dv), dv / 32);
}

/* The first of 32 whose magnitude is the largest, times -1/8: that one becomes q = -8. Only where both
 * signs have it does the order decide. */
static float quant4_d(const float *x) {
  const v16i sign = v16i_set(INT32_MIN), a = v16_bits(v16_load(x)), b = v16_bits(v16_load(x + 16));
  int32_t plus = v16i_hmax(v16i_max(a, b)), minus = v16i_hmax(v16i_max(v16i_add(a, sign), v16i_add(b, sign)));
  int32_t bits = plus > minus ? plus : minus;
  if (bits >= 0x7f800000) return __builtin_nanf("");
  if (bits < (127 - 100) << 23) return 0.0f;
  float amax = pe_f32_from_bits((uint32_t)bits);
  if (plus == minus) {
    while (__builtin_fabsf(*x) != amax) x++;
    return *x * -0.125f;
  }
  return amax * (plus > minus ? -0.125f : 0.125f);
}

/* q + 8 = the integer below rn(rn(x/d) + 8.5), 15 at most. */
static inline v16i quant4_q(const float *x, float inverse) {
  if (inverse == 0.0f) return v16i_set(8);
  v16 t = v16_add(v16_mul(v16_load(x), v16_set(inverse)), v16_set(8.5f));
  v16i q = v16_round(t), most = v16i_set(15);
  q = v16i_sub(q, v16i_where(v16_lt(t, v16_from_int(q)), v16i_set(1)));
  return v16i_sub(most, v16i_max(v16i_sub(most, q), v16i_set(0)));
}

/* Blocks of 32 of x as q + 8, one a byte, and their d. */
static void quant4(uint8_t *q, float *d, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; i += 32) {
    float one = quant4_d(x + i), inverse = one != 0.0f && one == one ? 1.0f / one : 0.0f;
    v16_store_i8x2((int8_t *)q + i, quant4_q(x + i, inverse), quant4_q(x + i + 16, inverse));
    d[i / 32] = one;
  }
}

/* Byte j of each `half` bytes gets elements j and j + half of 2*half, in place; half is a multiple of 4. */
static void pack_nibbles(uint8_t *q, int64_t n, int64_t half) {
  for (int64_t i = 0; i < n / 2; i += 4) {
    uint32_t lo, hi;
    const uint8_t *from = q + i / half * 2 * half + i % half;
    memcpy(&lo, from, 4);
    memcpy(&hi, from + half, 4);
    lo |= hi << 4;
    memcpy(q + i, &lo, 4);
  }
}

static void op_kv_store_q4(uint8_t *kpage, uint8_t *vpage, int64_t slot, const float *k, const float *v, int64_t dk, int64_t dv) {
  uint8_t q[PE_MAX_D_BLOCKS];
  float d[PE_MAX_D_BLOCKS / 32];
  quant4(q, d, k, dk);
  pack_nibbles(q, dk, 4);
  store_k(kpage + slot / 16 * 9 * dk, slot % 16, q, dk / 2, d, dk / 32);
  quant4(q, d, v, dv);
  pack_nibbles(q, dv, 16);
  store_v(vpage + slot / 16 * 9 * dv, slot % 16, q, dv / 2, d, dv / 32);
}

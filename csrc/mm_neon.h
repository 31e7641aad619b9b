/* mm_neon.h: what matrix products on 64-bit ARM share, for every tier: four rows side by side,
 * their transpose, scales, prefetch, storing. Static inline only, no kernels; ARMv8.0 and nothing
 * newer. Included by mm_*_neon.c, and through mm_dotprod.h and mm_i8mm.h by the files of those
 * tiers, first thing inside their `#if defined(__aarch64__)`; such a file ends with PE_TARGET_END.
 *
 * Lanes are outputs: dword lane i of a vector belongs to row i of a group of four. */
#ifndef PE_MM_NEON_H
#define PE_MM_NEON_H

#ifndef TIER
#define TIER "neon"
#define TIER_ISA PE_ISA_NEON
#define PE_TARGET_END
#endif

#include <arm_neon.h>
#include <string.h>

#include "blocks.h"
#include "kernel.h"

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define PE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PE_UNROLL _Pragma("GCC unroll 16")
#endif

/* ---- which rows ------------------------------------------------------------------------
 * Four adjacent rows, each fetched PE_AHEAD bytes before it is used: the prefetchers of small
 * cores follow few streams and never cross a page, so rows far apart would gain nothing there.
 * Where a group's rows end, what comes next is the next group, three rows on. */
enum { PE_AHEAD = 512 };

typedef struct pe_rows4 {
  const uint8_t *p[4];     /* block 0 of each row */
  int64_t row;             /* the first of the rows */
  int64_t end, skip;       /* bytes of a row, and on from there to the row that is next in the same lane */
  int valid;               /* rows from here on repeat the last one and are not stored */
} pe_rows4;

INLINE pe_rows4 pe_rows4_at(const pe_mm *a, int64_t row) {
  pe_rows4 l = {.row = row, .end = a->w_stride, .skip = 3 * a->w_stride, .valid = a->r1 - row < 4 ? (int)(a->r1 - row) : 4};
  for (int i = 0; i < 4; i++) l.p[i] = a->w + (row + (i < l.valid ? i : l.valid - 1)) * a->w_stride;
  return l;
}

/* Calls group for all rows, four at a time. */
static __attribute__((noinline, unused)) void pe_by4(const pe_mm *a, void (*group)(const pe_mm *, const pe_rows4 *)) {
  for (int64_t r = a->r0; r < a->r1; r += 4) {
    pe_rows4 l = pe_rows4_at(a, r);
    group(a, &l);
  }
}

INLINE void pe_store4(float *y, const pe_rows4 *l, float32x4_t v) {
  if (l->valid == 4) {
    vst1q_f32(y + l->row, v);
    return;
  }
  float f[4];
  vst1q_f32(f, v);
  for (int i = 0; i < l->valid; i++) y[l->row + i] = f[i];
}

/* One prefetch per row. Addresses past the weights are harmless: a prefetch cannot fault. */
INLINE void pe_prefetch4_at(const pe_rows4 *l, int64_t off) {
  PE_UNROLL
  for (int i = 0; i < 4; i++) __builtin_prefetch((const void *)((uintptr_t)l->p[i] + (uintptr_t)off), 0, 3);
}

/* Before bytes off..off+n-1 of each row are used: the lines that begin in them, PE_AHEAD on.
 * For n up to 64; one prefetch per line, not per block. */
INLINE void pe_prefetch4(const pe_rows4 *l, int64_t off, int n) {
  if ((off & 63) >= n) return;
  int64_t at = off + PE_AHEAD;
  pe_prefetch4_at(l, at < l->end ? at : at + l->skip);
}

/* ---- rows into lanes -------------------------------------------------------------------- */

INLINE int8x16_t pe_as8(int32x4_t v) { return vreinterpretq_s8_s32(v); }
INLINE int32x4_t pe_as32(int8x16_t v) { return vreinterpretq_s32_s8(v); }

INLINE int64x2_t pe_as64(int8x16_t v) { return vreinterpretq_s64_s8(v); }

/* v[c]: dwords c of the four rows. Pairs first: clang turns the other order into three moves more. */
INLINE void pe_transpose4(int8x16_t v[4], int8x16_t r0, int8x16_t r1, int8x16_t r2, int8x16_t r3) {
  int32x4_t a0 = vreinterpretq_s32_s64(vzip1q_s64(pe_as64(r0), pe_as64(r2)));
  int32x4_t a1 = vreinterpretq_s32_s64(vzip2q_s64(pe_as64(r0), pe_as64(r2)));
  int32x4_t b0 = vreinterpretq_s32_s64(vzip1q_s64(pe_as64(r1), pe_as64(r3)));
  int32x4_t b1 = vreinterpretq_s32_s64(vzip2q_s64(pe_as64(r1), pe_as64(r3)));
  v[0] = pe_as8(vtrn1q_s32(a0, b0));
  v[1] = pe_as8(vtrn2q_s32(a0, b0));
  v[2] = pe_as8(vtrn1q_s32(a1, b1));
  v[3] = pe_as8(vtrn2q_s32(a1, b1));
}

INLINE int32_t pe_load_i32(const void *p) {
  int32_t v;
  memcpy(&v, p, 4);
  return v;
}

INLINE float pe_load_f32(const void *p) {
  float v;
  memcpy(&v, p, 4);
  return v;
}

INLINE int8x16_t pe_load16(const void *p) { return vld1q_s8((const int8_t *)p); }

/* 16 bytes at off of each row: v[c] holds bytes 4c..4c+3. */
INLINE void pe_lanes16(int8x16_t v[4], const pe_rows4 *l, int64_t off) {
  pe_transpose4(v, pe_load16(l->p[0] + off), pe_load16(l->p[1] + off), pe_load16(l->p[2] + off), pe_load16(l->p[3] + off));
}

/* The sums of four vectors, in lanes. */
INLINE int32x4_t pe_sums4(int32x4_t s0, int32x4_t s1, int32x4_t s2, int32x4_t s3) {
  return vpaddq_s32(vpaddq_s32(s0, s1), vpaddq_s32(s2, s3));
}

/* ---- scales of four rows: nothing but the bytes named is read --------------------------------- */

INLINE uint32x4_t pe_dword4(const pe_rows4 *l, int64_t off) {  /* at off of each row */
  uint32_t v[4];
  PE_UNROLL
  for (int i = 0; i < 4; i++) memcpy(&v[i], l->p[i] + off, 4);
  return (uint32x4_t){v[0], v[1], v[2], v[3]};
}

INLINE float32x4_t pe_half4(const pe_rows4 *l, int64_t off) {
  uint16_t v[4];
  PE_UNROLL
  for (int i = 0; i < 4; i++) memcpy(&v[i], l->p[i] + off, 2);
  return vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t){v[0], v[1], v[2], v[3]}));
}

/* Dwords holding two halves each. */
INLINE float32x4_t pe_low_half(uint32x4_t v) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v))); }
INLINE float32x4_t pe_high_half(uint32x4_t v) { return vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(v, 16))); }

/* Keeps float sums that live in memory there: carried through the inner loop they would take the
 * registers of the integer sums, which are used eight times as often. */
INLINE void pe_keep_in_memory(void) { __asm__ volatile("" ::: "memory"); }

#endif

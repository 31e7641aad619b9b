/* mm_avx512.h: makes the rest of a file AVX-512 (F, BW, DQ, VL, VNNI; with AVX2, FMA and F16C),
 * whatever the build flags say, and gives it the words of sixteen lanes (mm_words16.h,
 * mm_lanes.h) and the dot products of VNNI. No kernels. Included by mm_*_avx512*, first
 * thing inside their x86 guard. */
#ifndef PE_MM_ISA_H
#define PE_MM_ISA_H

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), apply_to = function)
#define PE_UNROLL _Pragma("clang loop unroll(full)")
#define PE_TARGET_END _Pragma("clang attribute pop")
/* clang 22 makes vpmaddwd and vpaddd of the intrinsic where no CPU is named: 0.86 to 0.91 of gcc's speed, so 0.93 to 1.03. */
#define PE_DP2(sum, a, b) __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b))
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#define PE_UNROLL _Pragma("GCC unroll 16")
#define PE_TARGET_END
#define PE_DP2(sum, a, b) (sum) = _mm512_dpwssd_epi32(sum, a, b)
#endif
/* A file that includes this ends with PE_TARGET_END. */

#include <immintrin.h>
#include <string.h>

#include "blocks.h"
#include "kernel.h"

#define INLINE static inline __attribute__((always_inline))
#define TIER "avx512"
#define TIER_ISA (PE_ISA_AVX2 | PE_ISA_AVX512)

#include "mm_words16.h"
#include "mm_lanes.h"

/* sum + four bytes of u (unsigned) times four of s (signed), per dword; nothing saturates. */
INLINE vi vi_dp4(vi sum, vi u, vi s) { return _mm512_dpbusd_epi32(sum, u, s); }
/* sum + two int16 products, per dword. */
INLINE vi vi_dp2(vi sum, vi a, vi b) {
  PE_DP2(sum, a, b);
  return sum;
}

#endif

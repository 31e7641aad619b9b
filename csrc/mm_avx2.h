/* mm_avx2.h: makes the rest of a file AVX2, FMA and F16C, whatever the build flags say, and
 * gives it the words of eight lanes (mm_words8.h, mm_lanes.h). No kernels. Included by
 * mm_*_avx2*, first thing inside their x86 guard. */
#ifndef PE_MM_ISA_H
#define PE_MM_ISA_H

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#define PE_UNROLL _Pragma("clang loop unroll(full)")
#define PE_TARGET_END _Pragma("clang attribute pop")
#else
#pragma GCC target("avx2,fma,f16c")
#define PE_UNROLL _Pragma("GCC unroll 16")
#define PE_TARGET_END
#endif
/* A file that includes this ends with PE_TARGET_END. */

#include <immintrin.h>
#include <string.h>

#include "blocks.h"
#include "kernel.h"

#define INLINE static inline __attribute__((always_inline))
#define TIER "avx2"
#define TIER_ISA PE_ISA_AVX2

#include "mm_words8.h"
#include "mm_lanes.h"

/* sum + two int16 products, per dword. */
INLINE vi vi_dp2(vi sum, vi a, vi b) { return vi_add32(sum, vi_madd16(a, b)); }
/* Pairs of int16 added up. */
INLINE vi pe_madd1(vi v) { return vi_madd16(v, vi_set16(1)); }

#endif

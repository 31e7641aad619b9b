/* mm_i8mm.h: makes the rest of a file ARMv8.2 with the dot product and the int8 matrix
 * instructions, whatever the build flags say, and gives it the words of mm_neon.h. No kernels.
 * Included by mm_*_i8mm.c, first thing inside their `#if defined(__aarch64__)`. */
#ifndef PE_MM_I8MM_H
#define PE_MM_I8MM_H

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod,i8mm"))), apply_to = function)
#define PE_TARGET_END _Pragma("clang attribute pop")
#ifndef __ARM_FEATURE_DOTPROD
#define __ARM_FEATURE_DOTPROD 1  /* before clang 16, arm_neon.h asks these macros and not the target */
#endif
#ifndef __ARM_FEATURE_MATMUL_INT8
#define __ARM_FEATURE_MATMUL_INT8 1
#endif
#else
#pragma GCC target("arch=armv8.2-a+dotprod+i8mm")
#define PE_TARGET_END
#endif

#define TIER "i8mm"
#define TIER_ISA (PE_ISA_NEON | PE_ISA_DOTPROD | PE_ISA_I8MM)
#include "mm_neon.h"

#endif

/* mm_dotprod.h: makes the rest of a file ARMv8.2 with the dot product instructions, whatever the
 * build flags say, and gives it the words of mm_neon.h. No kernels. Included by mm_*_dotprod.c,
 * first thing inside their `#if defined(__aarch64__)`. */
#ifndef PE_MM_DOTPROD_H
#define PE_MM_DOTPROD_H

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("dotprod"))), apply_to = function)
#define PE_TARGET_END _Pragma("clang attribute pop")
#ifndef __ARM_FEATURE_DOTPROD
#define __ARM_FEATURE_DOTPROD 1  /* before clang 16, arm_neon.h asks this macro and not the target */
#endif
#else
#pragma GCC target("arch=armv8.2-a+dotprod")
#define PE_TARGET_END
#endif

#define TIER "dotprod"
#define TIER_ISA (PE_ISA_NEON | PE_ISA_DOTPROD)
#include "mm_neon.h"

#endif

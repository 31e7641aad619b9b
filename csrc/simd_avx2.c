/* simd_avx2.c: the tier of AVX2 with FMA and F16C. */
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>

#include "kernel.h"
#include "softfloat.h"
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include "v16_avx2.h"
#include "ops.inl.c"
#include "kv_store.inl.c"
#include "attn.inl.c"

const pe_vops pe_vops_avx2 = {"avx2", PE_ISA_AVX2, PE_VOPS_MEMBERS};
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif

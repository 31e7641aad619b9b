/* simd_avx512.c: the tier of AVX-512 with F, BW, DQ, VL and VNNI. */
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>

#include "kernel.h"
#include "softfloat.h"
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")
#endif
#include "v16_avx512.h"
#include "ops.inl.c"
#include "kv_store.inl.c"
#include "attn.inl.c"

const pe_vops pe_vops_avx512 = {"avx512", PE_ISA_AVX2 | PE_ISA_AVX512, PE_VOPS_MEMBERS};
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif

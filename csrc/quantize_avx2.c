/* quantize_avx2.c: the same quantizers in AVX2's registers. Without fma: the bits are those of quantize_base.c. */
#if defined(__x86_64__) || defined(_M_X64)
#include <stdint.h>
#include <string.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define PE_QUANTIZERS pe_quantizers_avx2
#include "quantize_fit.inl.c"
#include "quantize_blocks.inl.c"
#include "quantize_grid.inl.c"
#include "quantize_few.inl.c"
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif

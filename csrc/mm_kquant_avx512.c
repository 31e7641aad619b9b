/* mm_kquant_avx512.c: matrix products with weights in blocks of 256 by VNNI in 512 bits: mm_kquant.inl.c.
 * Reached through pe_rows_kquant_avx512 only. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_avx512.h"
#include "mm_kquant_dp.h"
#include "mm_kquant.h"

enum { TILE = 8, FEW_TILE = 8 };  /* tokens: with two vectors of rows, with one */
#define TABLE pe_rows_kquant_avx512
#include "mm_kquant.inl.c"

PE_TARGET_END
#endif

/* mm_iquant_avx2.c: matrix products with weights of the codebook types by vpmaddubsw: mm_kquant.inl.c.
 * Reached through pe_rows_iquant_avx2 only. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_avx2.h"
#include "mm_kquant_maddubs.h"
#include "mm_iquant.h"

enum { TILE = 4, FEW_TILE = 4 };  /* tokens: with two vectors of rows, with one */
#define TABLE pe_rows_iquant_avx2
#include "mm_kquant.inl.c"

PE_TARGET_END
#endif

/* mm_kquant_avxvnni.c: matrix products with weights in blocks of 256 by VNNI in 256 bits: mm_kquant.inl.c.
 * Reached through pe_rows_kquant_avxvnni only. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_avxvnni.h"
#include "mm_kquant_dp.h"
#include "mm_kquant.h"

enum { TILE = 6, FEW_TILE = 8 };  /* tokens: with two vectors of rows, with one */
#define TABLE pe_rows_kquant_avxvnni
#include "mm_kquant.inl.c"

PE_TARGET_END
#endif

/* mm_kquant_neon.c: matrix products with weights in blocks of 256 (Q2_K to Q6_K, IQ4_XS) on ARMv8.0:
 * mm_kquant_mull.inl.c. Reached through pe_rows_kquant_neon only. */
#if defined(__aarch64__)
#include "mm_neon.h"
#include "mm_kquant_neon.h"

#define TABLE pe_rows_kquant_neon
#include "mm_kquant_mull.inl.c"

PE_TARGET_END
#endif

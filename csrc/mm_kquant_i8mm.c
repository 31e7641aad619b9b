/* mm_kquant_i8mm.c: matrix products with weights in blocks of 256 (Q2_K to Q6_K, IQ4_XS) by smmla, for many tokens:
 * mm_kquant_smmla.inl.c. Reached through pe_rows_kquant_i8mm only. */
#if defined(__aarch64__)
#include "mm_i8mm.h"
#include "mm_kquant_neon.h"

#define TABLE pe_rows_kquant_i8mm
#include "mm_kquant_smmla.inl.c"

PE_TARGET_END
#endif

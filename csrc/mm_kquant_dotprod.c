/* mm_kquant_dotprod.c: matrix products with weights in blocks of 256 (Q2_K to Q6_K, IQ4_XS) by sdot:
 * mm_kquant_sdot.inl.c. Reached through pe_rows_kquant_dotprod only. */
#if defined(__aarch64__)
#include "mm_dotprod.h"
#include "mm_kquant_neon.h"

#define TABLE pe_rows_kquant_dotprod
#include "mm_kquant_sdot.inl.c"

PE_TARGET_END
#endif

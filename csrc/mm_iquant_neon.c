/* mm_iquant_neon.c: matrix products with weights of the codebook types on ARMv8.0:
 * mm_kquant_mull.inl.c. Reached through pe_rows_iquant_neon only. */
#if defined(__aarch64__)
#include "mm_neon.h"
#include "mm_iquant_neon.h"

#define TABLE pe_rows_iquant_neon
#include "mm_kquant_mull.inl.c"

PE_TARGET_END
#endif

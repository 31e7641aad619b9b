/* mm_iquant_i8mm.c: matrix products with weights of the codebook types by smmla, for many tokens:
 * mm_kquant_smmla.inl.c. Reached through pe_rows_iquant_i8mm only. */
#if defined(__aarch64__)
#include "mm_i8mm.h"
#include "mm_iquant_neon.h"

#define TABLE pe_rows_iquant_i8mm
#include "mm_kquant_smmla.inl.c"

PE_TARGET_END
#endif

/* mm_iquant_dotprod.c: matrix products with weights of the codebook types by sdot:
 * mm_kquant_sdot.inl.c. Reached through pe_rows_iquant_dotprod only. */
#if defined(__aarch64__)
#include "mm_dotprod.h"
#include "mm_iquant_neon.h"

#define TABLE pe_rows_iquant_dotprod
#include "mm_kquant_sdot.inl.c"

PE_TARGET_END
#endif

/* mm_block32_avx512.c: matrix products with weights in blocks of 32 on AVX-512 VNNI (sixteen lanes).
 * The bodies are in mm_block32_vnni.inl.c. Reached through pe_rows_block32_avx512 only. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_avx512.h"
#include "mm_block32_vnni.inl.c"

const pe_row pe_rows_block32_avx512[] = {ALL_ROWS};

PE_TARGET_END
#endif

/* mm_block32_avxvnni.c: matrix products with weights in blocks of 32 on AVX-VNNI (eight lanes).
 * The bodies are in mm_block32_vnni.inl.c. Reached through pe_rows_block32_avxvnni only. */
#if defined(__x86_64__) || defined(_M_X64)
#include "mm_avxvnni.h"
#include "mm_block32_vnni.inl.c"

const pe_row pe_rows_block32_avxvnni[] = {ALL_ROWS};

PE_TARGET_END
#endif

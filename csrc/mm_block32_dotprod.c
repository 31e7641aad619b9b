/* mm_block32_dotprod.c: matrix products with weights in blocks of 32 by the dot product
 * instructions of ARMv8.2 (Cortex-A76, A55, Neoverse N1, Apple M1). The bodies are in
 * mm_block32_neon.inl.c. Reached through pe_rows_block32_dotprod only. */
#if defined(__aarch64__)
#include "mm_dotprod.h"
#include "mm_block32_neon.h"

enum { TILE = 4 };  /* tokens; two vectors of integer and of float sums each: 16 of 32 registers */

/* s[t][v] += the block w[c][v] of eight rows (HALVES: four columns of it) times token t. Sixteen bytes of a token serve four columns of
 * dwords, by element. |s| <= 32*128*127 + 16*4 064 = 585 216
 * beyond its start. */
INLINE void block_sums(int T, int NT, int32x4_t (*s)[2], const int8x16_t (*w)[2], const int8_t *q, int64_t stride) {
  const int sixteens = HALVES(T) ? 1 : 2;
  PE_UNROLL
  for (int h = 0; h < sixteens; h++) {
    int8x16_t x[TILE];
    PE_UNROLL
    for (int t = 0; t < NT; t++) x[t] = pe_load16(q + t * stride + 16 * h);
#define COLUMN(i)                                                                                    \
  PE_UNROLL                                                                                          \
  for (int t = 0; t < NT; t++)                                                                       \
    PE_UNROLL                                                                                        \
    for (int v = 0; v < 2; v++) s[t][v] = vdotq_laneq_s32(s[t][v], w[4 * h + i][v], x[t], i);
    COLUMN(0)
    COLUMN(1)
    COLUMN(2)
    COLUMN(3)
  }
}

#include "mm_block32_neon.inl.c"

const pe_row pe_rows_block32_dotprod[] = {ALL_ROWS};

PE_TARGET_END
#endif

/* mm_block32_neon.c: matrix products with weights in blocks of 32 on ARMv8.0 (Cortex-A53, A72), which
 * has no dot product. The bodies are in mm_block32_neon.inl.c. Reached through pe_rows_block32_neon only. */
#if defined(__aarch64__)
#include "mm_neon.h"
#include "mm_block32_neon.h"

/* Bytes that use all eight bits: two products fill int16 (2*128*127 = 32 512), where the nibbles of a
 * block take eight: 8*15*127 = 15 240, five bits 8*16*127 = 16 256, and the sum of two such still fits. */
#define WIDE(T) ((T) == PE_Q8_0 || (T) == PE_IQ4_NL)

enum { TILE = 2 };  /* tokens; four vectors of int16 sums each. Four tokens are no faster, and spill */

/* s[t][v] += the block w[c][v] of eight rows (HALVES: four columns of it) times token t. |s| <= 32*128*127 + 16*4 064 = 585 216
 * beyond its start. */
INLINE void block_sums(int T, int NT, int32x4_t (*s)[2], const int8x16_t (*w)[2], const int8_t *q, int64_t stride) {
  int16x8_t lo[TILE][2], hi[TILE][2];    /* of rows 0 and 1, of rows 2 and 3: four sums each */
  int32x4_t lo2[TILE][2], hi2[TILE][2];  /* their pairs */
  const int columns = HALVES(T) ? 4 : 8;
  PE_UNROLL
  for (int c = 0; c < columns; c++)
    PE_UNROLL
    for (int t = 0; t < NT; t++) {
      int8x16_t x = pe_as8(vdupq_n_s32(pe_load_i32(q + t * stride + 4 * c)));
      int first = WIDE(T) ? c % 2 == 0 : c == 0;
      PE_UNROLL
      for (int v = 0; v < 2; v++) {
        int8x8_t wl = vget_low_s8(w[c][v]), xl = vget_low_s8(x);
        lo[t][v] = first ? vmull_s8(wl, xl) : vmlal_s8(lo[t][v], wl, xl);
        hi[t][v] = first ? vmull_high_s8(w[c][v], x) : vmlal_high_s8(hi[t][v], w[c][v], x);
        if (!WIDE(T) || c % 2 == 0) continue;
        lo2[t][v] = c == 1 ? vpaddlq_s16(lo[t][v]) : vpadalq_s16(lo2[t][v], lo[t][v]);
        hi2[t][v] = c == 1 ? vpaddlq_s16(hi[t][v]) : vpadalq_s16(hi2[t][v], hi[t][v]);
      }
    }
  PE_UNROLL
  for (int t = 0; t < NT; t++)
    PE_UNROLL
    for (int v = 0; v < 2; v++)
      s[t][v] = WIDE(T) ? vaddq_s32(s[t][v], vpaddq_s32(lo2[t][v], hi2[t][v]))
                        : vpadalq_s16(s[t][v], vpaddq_s16(lo[t][v], hi[t][v]));
}

#include "mm_block32_neon.inl.c"

const pe_row pe_rows_block32_neon[] = {ALL_ROWS};

#endif

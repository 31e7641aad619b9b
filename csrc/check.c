/* check.c: looks for NaN and infinity in weights, on request (inspect --check).
 * Not part of loading: a scan would read the whole file, and a broken weight shows
 * itself in the logits, which are checked. */
#include "pyengine.h"

#include <string.h>

enum { PIECE = 4096 }; /* a multiple of every block; 16 KB of stack */

/* Types that pe_dequant does not know are not supported here either. */
int64_t pe_first_nonfinite(int32_t wtype, const void *w, int64_t k) {
  const pe_type *t = pe_type_by_id(wtype);
  float y[PIECE];
  if (!t || k < 0 || k % t->block) return -2;
  for (int64_t i = 0; i < k; i += PIECE) {
    int64_t n = k - i < PIECE ? k - i : PIECE;
    if (pe_dequant(wtype, (const uint8_t *)w + i / t->block * t->bytes, y, n)) return -2;
    uint32_t worst = 0;
    for (int64_t j = 0; j < n; j++) {
      uint32_t bits;
      memcpy(&bits, &y[j], 4);
      bits &= 0x7fffffff;
      worst = bits > worst ? bits : worst;
    }
    if (worst < 0x7f800000) continue;
    for (int64_t j = 0;; j++) {
      uint32_t bits;
      memcpy(&bits, &y[j], 4);
      if ((bits & 0x7f800000) == 0x7f800000) return i + j;
    }
  }
  return -1;
}

/* bench.c: the yardstick of bench/kernels.py: what this machine reads. No kernel of a
 * model; nothing calls it while one runs. */
#include <string.h>

#include "kernel.h"

/* A plain linear read loop; four sums, so that the adds do not bound it. */
uint64_t pe_read_loop(const void *p, int64_t n) {
  const char *c = p;
  uint64_t s[4] = {0};
  for (int64_t i = 0; i + 64 <= n; i += 64) {
    uint64_t v[8];
    memcpy(v, c + i, 64);
    for (int j = 0; j < 4; j++) s[j] += v[j] ^ v[j + 4];
  }
  return s[0] + s[1] + s[2] + s[3];
}

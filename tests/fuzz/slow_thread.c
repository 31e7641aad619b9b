/* slow_thread.c: a pool of four threads of which the last is four times slower (it sleeps longer for each part). Prints how many parts each
 * thread took and the time of a phase over that of the sum of the speeds; tests/test_slow_thread.py reads it. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "pool.h"

#define THREADS 4
#define SLOWER 4
#define PART_NS 1000000L

static _Atomic int took[THREADS];

static void part(void *ctx, int32_t phase, uint32_t part, int32_t thread) {
  struct timespec t = {0, PART_NS * (thread == THREADS - 1 ? SLOWER : 1)};
  (void)ctx, (void)phase, (void)part;
  atomic_fetch_add(&took[thread], 1);
  nanosleep(&t, NULL);
}

static void tail(void *ctx, int32_t phase, int32_t thread) { (void)ctx, (void)phase, (void)thread; }

int main(int argc, char **argv) {
  uint32_t parts[10];
  int n = argc > 1 ? atoi(argv[1]) : 64, phases = (int)(sizeof parts / sizeof *parts);
  struct timespec a, b;
  pe_pool *pool;
  for (int i = 0; i < phases; i++) parts[i] = (uint32_t)n;
  if (n < 1 || pe_pool_new(&pool, THREADS)) return 1;
  clock_gettime(CLOCK_MONOTONIC, &a);
  pe_pool_run(pool, &(pe_job){part, tail, NULL, parts, phases, THREADS});
  clock_gettime(CLOCK_MONOTONIC, &b);
  pe_pool_free(pool);
  double seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
  double ideal = 1e-9 * PART_NS * phases * n / (THREADS - 1 + 1.0 / SLOWER);
  printf("%d %d %d %d %.3f\n", took[0], took[1], took[2], took[3], seconds / ideal);
  return 0;
}

/* stress_pool.c: many short runs of random shape over pools of 1, 3 and 5 threads, of which a run uses some: every part runs exactly
 * once, then its tail, and a phase sees what the phase before it wrote. Built with -fsanitize=thread by `make check-threads`. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include "pool.h"

#define PHASES 20
#define PARTS 40

typedef struct job {
  int32_t n_phases, n_threads;
  uint32_t parts[PHASES];
  int chain[PHASES];           /* plain memory on purpose: the barrier must order it */
  int count[PHASES][PARTS];
  int tail[PHASES];
} job;

static _Atomic int bad;

static void part(void *ctx, int32_t phase, uint32_t part, int32_t thread) {
  job *j = ctx;
  if (part >= j->parts[phase] || thread >= j->n_threads) bad = 1;
  else j->count[phase][part]++;
  if (part == 0) j->chain[phase] = phase ? j->tail[phase - 1] + 1 : 1;
}

static void tail(void *ctx, int32_t phase, int32_t thread) {
  job *j = ctx;
  (void)thread;
  for (uint32_t k = 0; k < j->parts[phase]; k++)
    if (j->count[phase][k] != 1) bad = 4;
  if (j->tail[phase]) bad = 5;
  j->tail[phase] = j->chain[phase];
}

int main(void) {
  uint32_t seed = 1;
  for (int32_t n = 1; n <= 5; n += 2) {
    pe_pool *pool;
    if (pe_pool_new(&pool, n)) return 1;
    for (int run = 0; run < 5000; run++) {
      job j;
      memset(&j, 0, sizeof j);
      seed = seed * 1664525 + 1013904223;
      j.n_phases = 1 + (int32_t)(seed >> 8) % PHASES;
      for (int i = 0; i < j.n_phases; i++) {
        seed = seed * 1664525 + 1013904223;
        j.parts[i] = 1 + (seed >> 10) % PARTS;
      }
      j.n_threads = 1 + (int32_t)(seed >> 20) % n;
      pe_pool_run(pool, &(pe_job){part, tail, &j, j.parts, j.n_phases, j.n_threads});
      for (int i = 0; i < j.n_phases; i++)
        for (uint32_t k = 0; k < PARTS; k++)
          if (j.count[i][k] != (k < j.parts[i])) bad = 2;
      if (j.tail[j.n_phases - 1] != j.n_phases) bad = 3;
    }
    pe_pool_free(pool);
  }
  printf(bad ? "stress_pool: failed, %d\n" : "stress_pool: ok\n", bad);
  return bad;
}

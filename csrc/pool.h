/* pool.h: threads that run one job together. For exec.c only.
 *
 * A job is a list of phases, each of some parts. Threads claim parts from the
 * phase's counter; a phase is over when its parts are done, not when all threads
 * have arrived, so a thread that the system has taken away delays nobody unless
 * it holds a part. The thread that finishes the last part runs the phase's tail,
 * work too small to share, before the phase is over. */
#ifndef PE_POOL_H
#define PE_POOL_H
#include "pyengine.h"

#define PE_MAX_PHASES 8192

typedef struct pe_job {
  void (*part)(void *ctx, int32_t phase, uint32_t part, int32_t thread);
  void (*tail)(void *ctx, int32_t phase, int32_t thread);   /* once per phase, after its last part */
  void *ctx;
  const uint32_t *parts;       /* [n_phases] parts of each phase, at least 1 */
  int32_t n_phases;
  int32_t n_threads;           /* how many of the pool's threads work on it, with the caller */
} pe_job;

/* Runs every part and tail of every phase, phases in order, on n_threads
 * threads; those beyond them sleep. Nothing called may fail. The counters live in the pool, not
 * with the job, so that a worker that wakes late never looks at memory of a job
 * that is gone. */
void pe_pool_run(pe_pool *pool, const pe_job *job);
#endif

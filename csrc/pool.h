/* pool.h: threads that run one job together. For exec.c only.
 *
 * A job is a list of phases, each of some parts. Threads claim parts from the
 * phase's counter; a phase is over when its parts are done, not when all threads
 * have arrived, so a thread that the system has taken away delays nobody unless
 * it holds a part. */
#ifndef PE_POOL_H
#define PE_POOL_H
#include "pyengine.h"

#define PE_MAX_PHASES 8192

/* Runs every part of every phase, phases in order, on all threads of the pool and
 * the caller: phase i has parts[i] parts. part(ctx, phase, part, thread) must not
 * fail. The counters live in the pool, not with the job, so that a worker that
 * wakes late never looks at memory of a job that is gone. */
void pe_pool_run(pe_pool *pool, const uint32_t *parts, int32_t n_phases,
                 void (*part)(void *ctx, int32_t phase, uint32_t part, int32_t thread), void *ctx);
#endif

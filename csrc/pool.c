/* pool.c: persistent threads, parts claimed from a counter, waits that spin and
 * then sleep. Knows nothing of instructions (exec.c) and nothing of Python. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE   /* pthread_setaffinity_np */
#endif
#include "pool.h"
#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#include <stdatomic.h>
#include <stdlib.h>
#include "fpenv.h"

/* One pause is about 140 cycles on Intel since Skylake and 40 or less elsewhere, so this
 * spins for some 5 to 20 us: longer than the wait between two phases when all is well. A
 * thread that sleeps is scheduled sooner beside a busy neighbour than one that spun its
 * time away. SmolLM2, tokens/s alone / beside a loop on one core (bench/LOG.md):
 * 100 pauses 189 / 141, 300 246 / 144, 500 246 / 139, 3000 248 / 124. */
#define SPINS 300

/* Between steps, while the caller samples and schedules (120 to 170 us). */
#define RUN_SPINS 2000

typedef struct phase {
  _Atomic uint64_t next;       /* run number << 32 | next part */
  _Atomic uint32_t done;       /* parts finished; one more once the tail is */
  _Atomic uint32_t parts;
} phase;

#define CLOSED 0xffffffffu     /* as next part: nothing to claim */

struct pe_pool {
  int32_t n_threads;           /* with the caller */
  pthread_t *threads;
  pthread_mutex_t lock;
  pthread_cond_t wake;
  pthread_cond_t more;         /* threads that the last run had no use for wait here, and nothing wakes them but a run that has */
  _Atomic uint32_t run;        /* number of the run that is on, or was last */
  _Atomic int32_t sleepers;    /* threads waiting on `wake` */
  _Atomic int32_t quit;
  _Atomic int32_t n_active;    /* threads of the run that is on, or was last */
  _Atomic int32_t n_phases;
  void (*_Atomic part)(void *, int32_t, uint32_t, int32_t);
  void (*_Atomic tail)(void *, int32_t, int32_t);
  _Atomic(void *) ctx;
  phase phases[PE_MAX_PHASES];
};

typedef struct worker_arg { pe_pool *pool; int32_t thread; } worker_arg;

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ __volatile__("yield");
#endif
}

static void wake_sleepers(pe_pool *p) {
  if (atomic_load(&p->sleepers) > 0) {
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
  }
}

/* Waits until the phase is done, or its run is over. */
static int phase_over(pe_pool *p, phase *ph, uint32_t run) {
  return atomic_load(&ph->done) > atomic_load(&ph->parts) || (uint32_t)(atomic_load(&ph->next) >> 32) != run ||
         atomic_load(&p->run) != run;
}

static void wait_phase(pe_pool *p, phase *ph, uint32_t run) {
  for (int i = 0; i < SPINS; i++) {
    if (phase_over(p, ph, run)) return;
    relax();
  }
  pthread_mutex_lock(&p->lock);
  atomic_fetch_add(&p->sleepers, 1);
  while (!phase_over(p, ph, run)) pthread_cond_wait(&p->wake, &p->lock);
  atomic_fetch_sub(&p->sleepers, 1);
  pthread_mutex_unlock(&p->lock);
}

/* Works through one run. A worker that comes late sees another run number in a
 * phase and leaves: a part is handed out only by a compare-and-swap that holds
 * the run number, and a run cannot end while one of its parts is out. */
static void work(pe_pool *p, uint32_t run, int32_t n_phases, void (*part)(void *, int32_t, uint32_t, int32_t),
                 void (*tail)(void *, int32_t, int32_t), void *ctx, int32_t thread) {
  for (int32_t i = 0; i < n_phases; i++) {
    phase *ph = &p->phases[i];
    for (;;) {
      uint64_t v = atomic_load(&ph->next);
      if ((uint32_t)(v >> 32) != run) return;
      uint32_t parts = atomic_load(&ph->parts);
      if ((uint32_t)v >= parts) break;
      if (!atomic_compare_exchange_weak(&ph->next, &v, v + 1)) continue;
      part(ctx, i, (uint32_t)v, thread);
      if (atomic_fetch_add(&ph->done, 1) + 1 == parts) {
        tail(ctx, i, thread);
        atomic_fetch_add(&ph->done, 1);
        wake_sleepers(p);
      }
    }
    if (i + 1 < n_phases || thread == 0) wait_phase(p, ph, run);
    if (atomic_load(&p->run) != run) return;
  }
}

static void *worker(void *v) {
  worker_arg arg = *(worker_arg *)v;
  pe_pool *p = arg.pool;
  uint32_t seen = 0;
  free(v);
  pe_fpenv_set();
  for (;;) {
    uint32_t run;
    if (arg.thread >= atomic_load(&p->n_active)) {
      pthread_mutex_lock(&p->lock);
      while (arg.thread >= atomic_load(&p->n_active) && !atomic_load(&p->quit)) pthread_cond_wait(&p->more, &p->lock);
      pthread_mutex_unlock(&p->lock);
    }
    for (int i = 0; (run = atomic_load(&p->run)) == seen && i < RUN_SPINS && !atomic_load(&p->quit); i++) relax();
    if (run == seen) {
      pthread_mutex_lock(&p->lock);
      atomic_fetch_add(&p->sleepers, 1);
      while ((run = atomic_load(&p->run)) == seen && !atomic_load(&p->quit)) pthread_cond_wait(&p->wake, &p->lock);
      atomic_fetch_sub(&p->sleepers, 1);
      pthread_mutex_unlock(&p->lock);
    }
    if (atomic_load(&p->quit)) return NULL;
    seen = run;
    if (arg.thread >= atomic_load(&p->n_active)) continue;
    /* The job's fields may already be those of a later run; then the phases carry
     * another run number and work() leaves at the first of them. */
    work(p, run, atomic_load(&p->n_phases), atomic_load(&p->part), atomic_load(&p->tail), atomic_load(&p->ctx), arg.thread);
  }
}

void pe_pool_run(pe_pool *p, const pe_job *job) {
  int32_t n_phases = job->n_phases;
  uint32_t run = atomic_load(&p->run) + 1;
  /* Close every phase first: from there on no late worker can claim a part of
   * the old run, and the counts may change. */
  for (int32_t i = 0; i < n_phases; i++) atomic_store(&p->phases[i].next, (uint64_t)run << 32 | CLOSED);
  for (int32_t i = 0; i < n_phases; i++) {
    atomic_store(&p->phases[i].done, 0);
    atomic_store(&p->phases[i].parts, job->parts[i]);
    atomic_store(&p->phases[i].next, (uint64_t)run << 32);
  }
  atomic_store(&p->n_phases, n_phases);
  atomic_store(&p->part, job->part);
  atomic_store(&p->tail, job->tail);
  atomic_store(&p->ctx, job->ctx);
  int32_t before = atomic_exchange(&p->n_active, job->n_threads);
  atomic_store(&p->run, run);
  wake_sleepers(p);
  if (job->n_threads > before) {
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
  }
  work(p, run, n_phases, job->part, job->tail, job->ctx, 0);
}

int32_t pe_pool_threads(const pe_pool *p) { return p->n_threads; }

#if defined(__linux__) && !defined(__ANDROID__)
int pe_pool_bind(pe_pool *p, int32_t thread, const int32_t *cpus, int32_t n_cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (thread < 1 || thread >= p->n_threads) return PE_EINVAL;
  for (int32_t i = 0; i < n_cpus; i++) {
    if (cpus[i] < 0 || cpus[i] >= CPU_SETSIZE) return PE_EINVAL;
    CPU_SET(cpus[i], &set);
  }
  return pthread_setaffinity_np(p->threads[thread - 1], sizeof set, &set) ? PE_EINVAL : PE_OK;
}
#else
int pe_pool_bind(pe_pool *p, int32_t thread, const int32_t *cpus, int32_t n_cpus) {
  (void)p, (void)thread, (void)cpus, (void)n_cpus;
  return PE_EINVAL;
}
#endif

void pe_pool_free(pe_pool *p) {
  if (!p) return;
  atomic_store(&p->quit, 1);
  pthread_mutex_lock(&p->lock);
  pthread_cond_broadcast(&p->wake);
  pthread_cond_broadcast(&p->more);
  pthread_mutex_unlock(&p->lock);
  for (int32_t i = 0; i < p->n_threads - 1; i++) pthread_join(p->threads[i], NULL);
  pthread_cond_destroy(&p->wake);
  pthread_cond_destroy(&p->more);
  pthread_mutex_destroy(&p->lock);
  free(p->threads);
  free(p);
}

int pe_pool_new(pe_pool **out, int32_t n_threads) {
  *out = NULL;
  if (n_threads < 1 || n_threads > 1024) return PE_EINVAL;
  pe_pool *p = calloc(1, sizeof *p);
  if (!p) return PE_ENOMEM;
  p->threads = calloc((size_t)n_threads, sizeof *p->threads);
  if (!p->threads) { free(p); return PE_ENOMEM; }
  pthread_mutex_init(&p->lock, NULL);
  pthread_cond_init(&p->wake, NULL);
  pthread_cond_init(&p->more, NULL);
  p->n_threads = 1;
  atomic_init(&p->n_active, 1);
  for (int32_t i = 1; i < n_threads; i++) {
    worker_arg *arg = malloc(sizeof *arg);
    if (arg) *arg = (worker_arg){p, i};
    if (!arg || pthread_create(&p->threads[i - 1], NULL, worker, arg)) {
      free(arg);
      pe_pool_free(p);
      return PE_ENOMEM;
    }
    p->n_threads++;
  }
  *out = p;
  return PE_OK;
}

/* exec.h: a bound program, as exec.c, exec_mm.c, exec_attn.c, exec_experts.c, exec_state.c and exec_bind.c share it. */
#ifndef PE_EXEC_H
#define PE_EXEC_H
#include <stdatomic.h>
#include "kernel.h"
#include "pool.h"

#define PE_TILE 32         /* query rows of one attention part */
#define PE_SPLIT_ROWS 16   /* steps of at most so many rows split attention over chunks */

typedef struct pe_tile { int32_t seq, row, n; } pe_tile;

/* Instructions first..tail-1 run in parts, tail..end-1 are the phase's tail. */
typedef struct pe_phase { int32_t first, tail, end; } pe_phase;

struct pe_prog {
  pe_insn *insns;
  int32_t n_insns;
  pe_region *regions;
  int32_t n_regions;
  pe_limits limits;
  int32_t n_threads;           /* scratch is made for so many */
  const pe_vops *v;
  const pe_row *rows;
  int64_t window[8];           /* per group; 0: none */
  int both;                    /* rows see what comes after them: a sequence is never split over steps */
  int64_t row_bytes;           /* room for the longest float row, behind each thread's scratch */
  int64_t thread_bytes;        /* PE_SCRATCH + row_bytes + the results of a part of an FFN */
  uint8_t *scratch;            /* n_threads * thread_bytes, 64-byte aligned */
  void *scratch_base;
  int32_t *first;              /* [n_groups + 1] first instruction of each group that no barrier divides */
  int32_t n_groups;
  /* of the step that runs */
  pe_step step;
  int32_t *pos, *seq;          /* [max_tokens] position and sequence of each row */
  int32_t *save;               /* [max_tokens] slot that gets the state behind the row; -1: none */
  pe_tile *tiles;              /* [max_tokens] */
  int32_t n_tiles, n_chunks;
  pe_phase *phases;            /* [n_phases], at most one per group */
  int32_t n_phases;
  uint32_t *insn_parts, *phase_parts;
  _Atomic int32_t stop;
  int64_t *profile;
  _Atomic int64_t *ns;
};

static inline int64_t pe_up16(int64_t n) { return (n + 15) & ~(int64_t)15; }
static inline int pe_has(pe_ref r) { return r.region >= 0; }
static inline uint8_t *pe_at(const pe_prog *p, pe_ref r) { return p->regions[r.region].base + r.offset; }
float *pe_row_f32(const pe_prog *p, pe_ref r, int64_t k, int64_t row);
static inline uint8_t *pe_scratch(const pe_prog *p, int32_t thread) { return p->scratch + thread * p->thread_bytes; }
int64_t pe_rows_of(const pe_prog *p, const pe_insn *in);
/* Elements e0..e1 of an activation row of k, from x[e0..e1]. */
void pe_quantize(const pe_prog *p, pe_ref q32, pe_ref q256, const float *x, int64_t k, int64_t row, int64_t e0, int64_t e1);

/* exec_mm.c */
uint32_t pe_parts_mm(const pe_prog *p, const pe_insn *in);
void pe_run_mm(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread);
int64_t pe_ffn_bytes(const pe_insn *in, int64_t max_rows);
uint32_t pe_parts_ffn(const pe_prog *p, const pe_insn *in);
void pe_run_ffn(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread);

/* exec_attn.c */
uint32_t pe_parts_kv(const pe_prog *p, const pe_insn *in);
void pe_run_kv(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread);
uint32_t pe_parts_attn(const pe_prog *p, const pe_insn *in);
void pe_run_attn(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread);
void pe_run_attn_out(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread);

/* exec_experts.c: how the step's (token, expert) pairs lie. A list holds these one after another. */
typedef struct pe_pairs {
  int32_t *n_active;           /* experts that have pairs */
  int32_t *active;             /* [n_expert] these experts */
  int32_t *first;              /* [n_expert + 1] an expert's pairs are first[e]..first[e + 1] */
  int32_t *token;              /* [pairs] the token of each */
  int32_t *pair;               /* [tokens][used] where each lies; between ROUTE and GROUP the experts themselves */
} pe_pairs;
static inline int64_t pe_pairs_ints(int64_t n_expert, int64_t pairs) { return 2 + 2 * n_expert + 2 * pairs; }
pe_pairs pe_pairs_of(const pe_prog *p, pe_ref list, int64_t n_expert, int64_t n_pairs);
void pe_run_route(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread);
uint32_t pe_parts_group(const pe_prog *p, const pe_insn *in);
void pe_run_group(pe_prog *p, const pe_insn *in, int64_t part, int32_t thread);
void pe_run_gather(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread);
void pe_run_mix(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread);

/* exec_state.c */
int64_t pe_conv_bytes(const pe_insn *in);
void pe_run_conv(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread);
#endif

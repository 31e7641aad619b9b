/* pyengine.h: the whole C API. The text between the two cdef markers is read by
 * setup.py and handed to cffi, so it must stay free of the preprocessor (plain
 * integer #defines excepted). Nothing else in csrc/ is visible to Python.
 *
 * C returns codes: it never prints, aborts, or allocates inside an instruction. */
#ifndef PYENGINE_H
#define PYENGINE_H
#include <stddef.h>
#include <stdint.h>

/* cdef-begin */

/* ---- status codes ------------------------------------------------------- */
#define PE_OK 0
#define PE_ENOMEM 1      /* an allocation failed */
#define PE_EINVAL 2      /* an argument is out of its range */
#define PE_ERANGE 3      /* an operand lies outside its region */
#define PE_ESTOPPED 4    /* the stop flag was set; nothing was committed */
#define PE_ENONFINITE 5  /* a logit is NaN or infinite */
#define PE_EEMPTY 6      /* every candidate is masked */

/* ---- cpu.c: what this machine can run ------------------------------------ */
#define PE_ISA_SCALAR 0
#define PE_ISA_AVX2 1        /* with FMA and F16C */
#define PE_ISA_AVXVNNI 2
#define PE_ISA_AVX512 4      /* F, BW, DQ, VL and VNNI together */
#define PE_ISA_AMX 8
#define PE_ISA_NEON 16
#define PE_ISA_DOTPROD 32
#define PE_ISA_I8MM 64
uint32_t pe_cpu_isa(void);             /* bits this CPU and OS support */
const char *pe_cpu_name(void);         /* brand string, "" if unknown */
const char *pe_cpu_lacks(uint32_t isa);  /* what one bit needs and is not there, in words; "" if it is usable or unknown here */

/* ---- types.c: ggml tensor types ------------------------------------------- */
typedef struct pe_type {
  int32_t id;              /* ggml type id as stored in GGUF */
  int32_t block;           /* elements per block */
  int32_t bytes;           /* bytes per block */
  const char *name;        /* "Q4_K" */
} pe_type;
const pe_type *pe_types(int32_t *n);             /* every known type, ascending id */
const pe_type *pe_type_by_id(int32_t id);        /* NULL if unknown */

/* ---- kernel.h: matrix products --------------------------------------------- */
#define PE_ACT_F32 0     /* activation row: float[k] */
#define PE_ACT_Q32 1     /* int8 q[k], float d[k/32], int32 s[k/32]: see kernel.h */
#define PE_ACT_Q256 2    /* int8 q[k], float d[k/256], int16 s[k/16], uint8 small[k/256] */
#define PE_SMALL_SUM 1023 /* of |q| of 16 elements; mm_kquant_dp.h has the reason */

typedef struct pe_mm {
  const uint8_t *w;        /* weight row r starts at w + r*w_stride */
  int64_t w_stride;        /* bytes */
  int64_t k;               /* columns, a multiple of the type's block */
  int64_t r0, r1;          /* the rows to make, r0 < r1 */
  const uint8_t *x;        /* activation row of token t at x + t*x_stride, 64-byte aligned */
  int64_t x_stride;        /* bytes, a multiple of 64 */
  int64_t n;               /* tokens, within the row's n_min..n_max */
  float *y;                /* result of (t, r) at y[t*y_stride + r] */
  int64_t y_stride;        /* floats */
  void *scratch;           /* PE_SCRATCH bytes of this thread, 64-byte aligned */
} pe_mm;
#define PE_SCRATCH 262144

typedef struct pe_row {    /* one kernel, as Python sees it */
  const char *name;        /* "mm_q4_k_avx2_many" */
  int32_t wtype;           /* ggml type id of the weights */
  int32_t act;             /* PE_ACT_* */
  uint32_t isa;            /* bits it needs */
  int32_t n_min, n_max;    /* tokens it takes */
  void (*fn)(const pe_mm *);
} pe_row;
const pe_row *pe_rows(int32_t *n);               /* every row in this build, whether or not this CPU can run it */
int64_t pe_kv_bytes(int32_t kv_type, int64_t d); /* of K or V of one head in one page; -1 if d is not legal */
int64_t pe_act_stride(int32_t act, int64_t k);   /* bytes of an activation row, a multiple of 64; -1 if k is not legal */
int pe_dequant(int32_t wtype, const void *row, float *y, int64_t k);  /* PE_EINVAL: type or k not supported */
const int8_t *pe_iq_grid(int32_t wtype, int32_t *entries, int32_t *elements);  /* codebook, a byte per element (iq_grids.h); NULL: none */
void pe_fma_soft(float *y, const float *a, const float *b, const float *c, int64_t n);  /* for tests: softfloat.h */
void pe_half_soft(uint16_t *h, float *y, const float *x, int64_t n);  /* for tests: x to half h and back to y */

/* ---- kernel.h: everything that is not a matrix product ---------------------- */
#define PE_PAGE 64         /* positions per KV page */
#define PE_CHUNK 256       /* positions per attention chunk */
#define PE_MAX_DK 2048     /* largest head size of K that attention's scratch holds */
#define PE_KV_F16 0        /* a head's K in a page: f16 [PE_PAGE/16][dk][16], strips of 16 positions; V: f16 [PE_PAGE][dv] */
#define PE_KV_Q8_0 1       /* strips of 16 positions, 17*d bytes: K int8 [dk/4][16][4], f16 scales [dk/32][16]; V int8 [16][dv], f16 [16][dv/32] */
#define PE_KV_Q4_0 2       /* the same, 9*d bytes: a byte has two dimensions of one position, 4-bit q + 8, the first below. K uint8 [dk/8][16][4]:
                            * byte j of eight dimensions has j and j + 4; V uint8 [16][dv/2]: byte j of sixteen has columns j and j + 16 of 32 */
#define PE_KV_TYPES 3
#define PE_MAX_TAPS 32     /* positions that a short convolution sees */
#define PE_MAX_D_BLOCKS 1024   /* largest head size, K and V, in q8_0 and q4_0; a multiple of 32 */
#define PE_ACT_SILU 0
#define PE_ACT_GELU 1        /* tanh form */
#define PE_ACT_GELU_ERF 2
#define PE_ACT_GELU_QUICK 3
#define PE_ACT_RELU 4
#define PE_ACT_SWIGLU_OAI 5  /* gate and up together only: g/(1+exp(-1.702g))*(u+1), g = min(gate, 7), u = up held in -7..7 */

typedef struct pe_attn {   /* one KV head, its group of query heads, some tokens of one sequence, some chunks */
  const float *q;          /* query of (token i, head g): q + i*q_stride + g*dk, rope applied */
  int64_t q_stride;        /* floats */
  int64_t n_q, n_group;    /* tokens; query heads that share this KV head */
  int64_t dk, dv;          /* head sizes of K and V; dk <= PE_MAX_DK */
  int64_t pos;             /* position of token 0; token i sees positions p <= pos+i (p < all, where all > 0) ... */
  int64_t window;          /* ... with p > pos+i-window, where window > 0 */
  const uint8_t *kv;       /* page p of this layer at kv + table[p]*page_stride */
  const int32_t *table;
  int64_t page_stride;     /* bytes */
  int64_t k_off, v_off;    /* this head's K and V within the page */
  int32_t kv_type;         /* PE_KV_* */
  float scale;             /* score = rn(q.k * scale), then cap*tanh(score/cap) where softcap > 0 */
  float softcap;
  int64_t c0, c1;          /* chunks to visit, clipped by what each token sees */
  float *part;             /* not NULL: partials of (i, g, chunk c) at part + ((i*n_group+g)*part_chunks + c)*part_stride: o[dv], m, l */
  int64_t part_chunks, part_stride;   /* part_stride >= dv + 2, floats */
  float *o;                /* part NULL: finished output of (i, g) at o + i*o_stride + g*dv */
  int64_t o_stride;
  const float *sinks;      /* NULL, or a score without a position for each of the n_group heads; not part of partials */
  void *scratch;           /* PE_SCRATCH bytes */
  int64_t all;             /* 0: a token sees what is before it; else every token sees positions 0..all-1, and there is no window */
} pe_attn;

typedef struct pe_vops {   /* one tier's table; every member gives the same bits on every tier */
  const char *name;        /* "scalar", "avx2" */
  uint32_t isa;
  void (*rms_norm)(float *y, const float *x, const float *w, int64_t n, float eps);     /* w NULL: no weight; y may be x */
  void (*layer_norm)(float *y, const float *x, const float *w, const float *b, int64_t n, float eps); /* b may be NULL */
  void (*quant32)(void *row, const float *x, int64_t k, int64_t b0, int64_t b1);   /* blocks b0..b1 of 32 of a row of k */
  void (*quant256)(void *row, const float *x, int64_t k, int64_t b0, int64_t b1);  /* blocks of 256 */
  void (*add)(float *y, const float *a, const float *b, int64_t n);                /* y may be a or b, here and below */
  void (*mul)(float *y, const float *a, const float *b, int64_t n);
  void (*scale)(float *y, const float *a, float s, int64_t n);
  void (*act)(int32_t kind, float *y, const float *x, int64_t n);                  /* PE_ACT_SILU ... */
  void (*glu)(int32_t kind, float *y, const float *gate, const float *up, int64_t n);  /* y = rn(act(gate)*up) */
  void (*axpy)(float *y, float s, const float *x, int64_t n);                      /* y = fma(s, x, y) */
  void (*softcap)(float *y, const float *x, float cap, int64_t n);                 /* cap*tanh(x/cap) */
  void (*exp)(float *y, const float *x, int64_t n);
  void (*log)(float *y, const float *x, int64_t n);
  void (*rope_table)(float *cs, const double *freq, int64_t n, int64_t pos, float mscale);
      /* cs[j] = cos(pos*freq[j])*mscale, cs[n+j] = sin(...)*mscale */
  void (*rope_adjacent)(float *x, const float *cs, int64_t n_rot);  /* pairs (2j, 2j+1), j < n_rot/2 */
  void (*rope_halves)(float *x, const float *cs, int64_t n_rot);    /* pairs (j, j+n_rot/2) */
  void (*kv_store[3])(uint8_t *kpage, uint8_t *vpage, int64_t slot, const float *k, const float *v, int64_t dk, int64_t dv);
      /* by PE_KV_*: writes position `slot` of K and V; no byte of another position changes */
  void (*attn)(const pe_attn *a);
  void (*attn_merge)(float *o, const float *part, int64_t part_stride, int64_t c0, int64_t c1, int64_t dv, const float *sink);
      /* partials of chunks c0..c1 (c at part + c*part_stride) into a finished o[dv]; sink: one, or NULL */
  void (*conv)(float *y, const float *const *x, const float *w, int64_t taps, int64_t n);
      /* y[i] = sum of w[j*n + i]*x[j][i] by fma, j = 0 .. taps-1; where x[j] is NULL it is left out. y is none of x */
  double (*softmax_sum)(const float *logits, int64_t n, float max, float inv_t);
      /* sum of exp(rn((logit-max)*inv_t)): blocks of 4096 ids, sixteen lanes each, blocks added in order in float; returned exactly */
} pe_vops;
const pe_vops *pe_vops_all(int32_t *n);          /* every tier in this build, scalar first */

/* ---- gguf.c: the header scanner -------------------------------------------- */
/* gguf-section */
#define PE_GGUF_HEADER_MAX 268435456   /* bytes of header read into memory; the largest known is about 20 MB */
#define PE_GGUF_TENSORS_MAX 65536      /* per file */
#define PE_GGUF_KEY_MAX 65535
#define PE_GGUF_NAME_MAX 63
#define PE_GGUF_DIM_MAX 2147483648
#define PE_GGUF_EMAGIC 100       /* found: the first four bytes */
#define PE_GGUF_EVERSION 101     /* found: the version */
#define PE_GGUF_EENDIAN 102      /* found: the version, bytes swapped */
#define PE_GGUF_ETRUNCATED 103   /* found: bytes left; limit: bytes needed */
#define PE_GGUF_EHEADER 104      /* limit: PE_GGUF_HEADER_MAX */
#define PE_GGUF_EKEYS 105        /* found: keys claimed; limit: keys that fit */
#define PE_GGUF_ETENSORS 106     /* found: tensors claimed; limit: tensors that fit */
#define PE_GGUF_EKEYLEN 107      /* found: length; limit: PE_GGUF_KEY_MAX */
#define PE_GGUF_EKEYBYTE 108     /* found: the byte */
#define PE_GGUF_EKEYDUP 109      /* found: byte offset of the first entry */
#define PE_GGUF_EVALTYPE 110     /* found: value type */
#define PE_GGUF_EELEMTYPE 111    /* found: element type */
#define PE_GGUF_ENESTED 112
#define PE_GGUF_EARRAYLEN 113    /* found: elements claimed; limit: elements that fit */
#define PE_GGUF_ESTRINGLEN 114   /* found: length; limit: bytes left */
#define PE_GGUF_EBOOL 115        /* found: the byte */
#define PE_GGUF_EALIGNTYPE 116   /* found: value type of general.alignment */
#define PE_GGUF_EALIGN 117       /* found: alignment */
#define PE_GGUF_ENAMELEN 118     /* found: length; limit: PE_GGUF_NAME_MAX */
#define PE_GGUF_ENAMEBYTE 119    /* found: the byte */
#define PE_GGUF_ENAMEDUP 120     /* found: byte offset of the first entry */
#define PE_GGUF_ENDIMS 121       /* found: number of dimensions */
#define PE_GGUF_EDIM 122         /* found: the dimension; limit: which one, from 0 */
#define PE_GGUF_ETENSORTYPE 123  /* found: the type as an unsigned 32-bit number */
#define PE_GGUF_EBLOCK 124       /* found: row length; limit: elements per block */
#define PE_GGUF_ESIZE 125        /* the tensor's bytes overflow 63 bits */
#define PE_GGUF_EOFFALIGN 126    /* found: offset; limit: alignment */
#define PE_GGUF_EOFFRANGE 127    /* found: offset; the tensor's end overflows 63 bits */
#define PE_GGUF_ESHORT 128       /* found: file size; limit: size its tensors need */
#define PE_GGUF_EOVERLAP 129     /* found: index of the other tensor */
#define PE_GGUF_EREAD 130        /* found: errno */
#define PE_GGUF_IN_HEADER 0      /* where an error lies: pe_gguf.e_in */
#define PE_GGUF_IN_KEY 1
#define PE_GGUF_IN_TENSOR 2

typedef struct pe_gguf_key {
  uint32_t at;             /* byte offset of the entry; the key's text is at + 8 */
  uint32_t val, end;       /* the value's bytes: a string's text, an array's elements */
  uint32_t count;          /* array: elements; string: bytes; else 1 */
  uint16_t key_len;
  uint8_t type, elem;      /* GGUF value types; elem is 255 unless type is 9, array */
} pe_gguf_key;

typedef struct pe_gguf_tensor {
  uint64_t offset;         /* absolute in the file, a multiple of the alignment */
  uint64_t nbytes;
  uint32_t at;             /* byte offset of the entry; the name is at + 8 */
  uint32_t dims[4];        /* dims[0] is the row length; 1 beyond n_dims */
  int32_t type;
  uint8_t n_dims, name_len;
} pe_gguf_tensor;

typedef struct pe_gguf {
  uint8_t *head;           /* private copy of the file's first head_len bytes; offsets here are file offsets */
  uint64_t head_len, file_size;
  uint64_t data_at;        /* where tensor data starts */
  uint32_t version, alignment;
  uint64_t n_keys, n_tensors;
  pe_gguf_key *keys;
  pe_gguf_tensor *tensors;
  int32_t e_code, e_in;    /* after a refusal: what and where; e_at is a byte offset */
  uint64_t e_index, e_at, e_found, e_limit;
  uint64_t e_name, e_name_len;   /* the key or tensor name within head, length 0 if not known */
  uint32_t *slots;         /* hash table of keys: index + 1, 0 is free */
  uint64_t slot_mask, seed0, seed1;
} pe_gguf;
int pe_gguf_open(int fd, uint64_t file_size, uint64_t seed0, uint64_t seed1, pe_gguf **out);
    /* PE_OK, PE_ENOMEM or PE_GGUF_E...; *out is set unless memory for itself is missing; free it in every case */
void pe_gguf_free(pe_gguf *g);
int64_t pe_gguf_find(const pe_gguf *g, const char *key, uint64_t len);   /* index of the key, or -1 */
int pe_gguf_strings(const pe_gguf *g, uint64_t key, uint64_t *off, uint64_t *len);
    /* start and length of every element of a string array; PE_EINVAL if key is not one */
int64_t pe_first_nonfinite(int32_t wtype, const void *w, int64_t k);
    /* check.c: index of the first NaN or infinity among k weights; -1: none; -2: type or k not supported */
/* gguf-section-end */

/* ---- sample.c: passes over the vocabulary ------------------------------------ */
#define PE_TOP_MAX 20      /* entries of a top list */
typedef struct pe_sample { /* one row of logits, one token */
  const float *raw;        /* n_rows logits as computed; every one must be finite */
  const float *processed;  /* NULL, or n_rows values that take their place in the chain; -inf masks an id */
  int64_t n_rows, n;       /* rows of the head; ids below n may be sampled */
  const uint8_t *allowed;  /* NULL, or n flags: 0 masks an id */
  const uint32_t *mask;    /* NULL, or (n + 31)/32 words: id i may be sampled if bit i%32 of word i/32 is set */
  const int32_t *bias_id;  /* n_bias ids, each once */
  const float *bias;       /* added; -inf bans */
  int64_t n_bias;
  const int32_t *window;   /* ids the repeat penalty looks at, as they came */
  int64_t n_window;
  const int32_t *generated;  /* ids that presence and frequency penalties count, as they came */
  int64_t n_generated;
  float repeat_penalty, presence_penalty, frequency_penalty;
  int32_t greedy;          /* arg max, ties by lowest id; the rest of the chain is not looked at */
  int64_t top_k;           /* 0: off */
  double typical_p, top_p; /* 1: off */
  double min_p;            /* 0: off */
  float inv_t;             /* 1/temperature */
  uint64_t seed, position;
  uint32_t sequence;
  int32_t n_top;           /* -1: no logprobs; else entries of the top list, at most PE_TOP_MAX */
  void *scratch;           /* pe_sample_scratch(n_rows) bytes, any alignment */
  /* results */
  int32_t token;
  double logprob;          /* of the token: log-softmax of raw over all n_rows */
  float raw_max, log_sum;
  int32_t n_top_found;
  int32_t top_id[PE_TOP_MAX];      /* by logprob descending, then id; ids without a token (allowed, n) are not listed */
  double top_logprob[PE_TOP_MAX];
} pe_sample;
int64_t pe_sample_scratch(int64_t n_rows);       /* -1: n_rows out of range */
double pe_coin(uint64_t seed, uint32_t sequence, uint64_t position, uint32_t use);  /* [0, 1), 53 bits */
int pe_sample_run(pe_sample *s, const pe_vops *v);

/* ---- divergence.c: what a row of logits says, and how far another model's is from it ---- */
typedef struct pe_divergence {
  const float *p, *q;      /* n logits each; q may be NULL */
  int64_t n;
  /* results */
  float p_max, q_max;
  int32_t p_best, q_best;  /* ids of the largest, ties by lowest id */
  double p_sum, q_sum;     /* of exp(logit - max) */
  double mean;             /* E[d], d = (p - p_max) - (q - q_max), under softmax(p) */
  double change;           /* E[exp(-d) - 1]; KL(p || q) = mean + log1p(change) */
} pe_divergence;
int pe_divergence_run(pe_divergence *r, const pe_vops *v);   /* PE_EINVAL, PE_ENONFINITE */

/* ---- pool.c, exec.c: threads, instructions, steps ------------------------------ */
typedef struct pe_pool pe_pool;
int pe_pool_new(pe_pool **out, int32_t n_threads);   /* n_threads counts the caller: n_threads-1 are made */
void pe_pool_free(pe_pool *);
int32_t pe_pool_threads(const pe_pool *);
/* Thread 1..n_threads-1 runs on these CPUs only; PE_EINVAL where the system refuses or cannot. Thread 0 is the caller's. */
int pe_pool_bind(pe_pool *, int32_t thread, const int32_t *cpus, int32_t n_cpus);

#define PE_OP_EMBED 0       /* ids, or positions -> rows of a weight, scaled */
#define PE_OP_ROPE_TABLE 1  /* positions -> cosines and sines */
#define PE_OP_NORM 2        /* [post norm] [residual add] [norm] [quantize] of a row */
#define PE_OP_MM 3          /* matrix product [bias] [softcap] */
#define PE_OP_KV 4          /* [head norms] [rope] of q and k; k and v into pages */
#define PE_OP_ATTN 5        /* attention over pages */
#define PE_OP_ATTN_OUT 6    /* [merge of chunks] [quantize] */
#define PE_OP_GLU 7         /* act(gate)*up [quantize] */
#define PE_OP_EW 8          /* one elementwise operation */
#define PE_OP_FFN 9         /* two matrix products, act(gate)*up, [quantize] */
#define PE_OP_ROUTE 10      /* a router's logits -> which experts a token takes, and how much of each */
#define PE_OP_GROUP 11      /* the step's (token, expert) pairs in the order of the experts */
#define PE_OP_GATHER 12     /* rows of tokens -> rows of pairs */
#define PE_OP_MIX 13        /* rows of pairs -> their weighted sum by token */
#define PE_OP_SPLICE 14     /* columns of one or two rows' heads -> heads of a row */
#define PE_OP_CONV 15       /* short convolution: reads and writes state [gate] [quantize] */

#define PE_EW_ADD 0
#define PE_EW_MUL 1
#define PE_EW_SCALE 2
#define PE_EW_ACT 3
#define PE_EW_SOFTCAP 4
#define PE_EW_POSITION_SCALE 5

#define PE_BY_TOKEN 0
#define PE_BY_POSITION 1
#define PE_BY_NOTHING 2

#define PE_COUNT_TOKENS 0
#define PE_COUNT_WANTED 1
#define PE_COUNT_PAIRS 2    /* (token, expert) or (token, head): `per_token` for each token */
#define PE_COUNT_LOGITS 3   /* the first of the wanted rows: those whose logits are wanted, too */
#define PE_MAX_EXPERTS 4096
#define PE_ROUTE_SOFTMAX 0
#define PE_ROUTE_SIGMOID 1
#define PE_ROUTE_SELECTED 2 /* softmax over the logits of the experts that were selected */

typedef struct pe_region {
  uint8_t *base;
  int64_t size;            /* bytes */
  int32_t writable;
  int32_t pad;
} pe_region;

typedef struct pe_ref {
  int32_t region;          /* -1: operand absent */
  int32_t pad;
  int64_t offset;          /* bytes */
} pe_ref;

typedef struct pe_insn {   /* operands per opcode: table at the top of exec.c */
  int32_t op;
  int32_t count;           /* PE_COUNT_*: what its rows are */
  int32_t barrier;         /* 0: the next instruction may run beside this one */
  int32_t tail;            /* 1: where it is little work, the thread that ends the phase before may run it: no phase of its own */
  int32_t per_token;       /* experts or heads of a token; 0: there are none */
  int32_t few, many;       /* PE_OP_MM, PE_OP_FFN: fn[1] from `few` rows on, fn[2] from `many` on */
  int32_t fn[3];           /* rows of pe_rows() */
  pe_ref a[8];
  int64_t n[8];
  double f[4];
} pe_insn;

typedef struct pe_limits {
  int32_t max_tokens, max_seqs, max_wanted;
  int32_t n_ctx;           /* positions per sequence */
  int32_t n_ids;           /* token ids are below this */
  int32_t n_groups;
  int32_t kv_type;         /* PE_KV_*, of every group */
  int32_t max_pages;       /* entries of one page table */
  int32_t n_pages[8];      /* pages in the pool of each group */
  int32_t page_region[8];  /* region that holds them */
  int64_t page_bytes[8];   /* of one page in one layer; the layers of a group lie one after another, n_pages pages each */
  int32_t n_layers[8];
  int32_t n_slots;         /* of state; each layer that has state keeps a pool of so many, wherever its instruction says */
} pe_limits;

typedef struct pe_step {
  int32_t n_tokens, n_seqs, n_wanted, n_copies;
  int32_t n_threads;       /* threads of the pool that work on it; 0: all */
  int32_t n_hidden;        /* the last n_hidden of the wanted rows end before the head: no logits */
  const int32_t *tokens;   /* [n_tokens] ids, the sequences' rows one after another */
  const int32_t *start;    /* [n_seqs] position of each sequence's first row */
  const int32_t *count;    /* [n_seqs] rows, at least 1 */
  const int32_t *tables;   /* [n_groups][n_seqs][max_pages] page ids, -1 where unused */
  const int32_t *wanted;   /* [n_wanted] rows that are wanted, ascending */
  const int32_t *copies;   /* [n_copies][3] group, source page, target page: made before anything else */
  const int32_t *slots;    /* [n_seqs] slot with the state of all positions before start; of no meaning where start is 0 */
  const int32_t *saves;    /* [n_saves][2] row, ascending, and the slot that gets the state behind it: none that this step reads */
  int32_t n_saves, pad2;
} pe_step;

typedef struct pe_prog pe_prog;
int pe_prog_new(pe_prog **out, const pe_insn *insns, int32_t n_insns, const pe_region *regions, int32_t n_regions,
                const pe_limits *limits, uint32_t isa, int32_t n_threads, int32_t *bad);
    /* binds: every operand is checked against its region; on PE_ERANGE or PE_EINVAL bad[0] is the instruction, bad[1] the operand */
void pe_prog_free(pe_prog *);
int64_t pe_thread_bytes(const pe_insn *insns, int32_t n_insns, const pe_limits *limits);   /* scratch of a thread */
int pe_prog_run(pe_prog *, pe_pool *, const pe_step *, int32_t *bad);   /* PE_EINVAL: bad[0] is the field of the step, bad[1] the index */
int32_t pe_prog_phases(const pe_prog *);         /* phases of the last step: tails and instructions without rows have none */
void pe_prog_stop(pe_prog *, int32_t stop);      /* 1: a running step ends with PE_ESTOPPED; 0: runs again */
void pe_prog_profile(pe_prog *, int64_t *ns);    /* NULL or [n_insns]: time of each instruction, summed over threads and steps */

/* ---- quantize.c: weights to another type ------------------------------------------------ */
#define PE_QUANTIZE_SCRATCH 49152
typedef struct pe_quantize_job {   /* rows of one tensor; jobs run side by side, each with a row of its own */
  int32_t from, to;        /* ggml type ids */
  uint32_t isa;            /* bits to use; the result does not depend on them */
  int32_t pad;
  const void *in;
  void *out;
  int64_t rows, k;         /* k: a multiple of both blocks */
  const float *importance; /* NULL, or k numbers above 0 for every row: how much an error in that column weighs */
  float *row;              /* room for k + PE_QUANTIZE_SCRATCH floats */
  int64_t bad;             /* PE_ENONFINITE, PE_ERANGE: index of the weight among rows*k */
  double bad_value, limit; /* PE_ERANGE: the largest weight the type holds */
} pe_quantize_job;
int pe_quantize_rows(pe_quantize_job *j);
int pe_can_quantize(int32_t wtype);   /* 1: a type that pe_quantize_rows writes */

/* ---- bench.c: the yardsticks of bench/kernels.py ------------------------------------- */
/* bench-section */
uint64_t pe_read_loop(const void *p, int64_t n);   /* reads n bytes in order; the result only keeps the loop alive */
uint64_t pe_read_streams(const void *p, int64_t n, int32_t streams);   /* nearly n bytes, as streams far apart */
int64_t pe_mac_loop(uint32_t isa, int64_t rounds); /* int8 multiply-adds done by the best instruction of a tier this CPU has; 0: none there */

/* ---- vocab.c, split.c, bpe.c: text to token ids ---------------------------------------------------- */
typedef struct pe_vocab pe_vocab;
/* Tables over n strings of a header, which like off, len, types and scores is kept alive and unchanged by the
 * caller. types: GGUF's, 0 is met in no text. scores: n finite little-endian floats of any alignment, and byte_ids
 * the tokens of the 256 bytes: sentencepiece; both NULL: byte-level BPE; only byte_ids: BPE over characters. repeats[0]: tokens with the text of an
 * earlier one, [1]: the first of them. PE_OK, PE_ENOMEM, PE_EINVAL (too many, too long). */
int pe_vocab_new(const uint8_t *head, const uint64_t *off, const uint64_t *len, const uint8_t *types, uint64_t n,
                 const uint8_t *scores, const int32_t *byte_ids, uint64_t seed0, uint64_t seed1, uint64_t *repeats, pe_vocab **out);
void pe_vocab_free(pe_vocab *v);
/* n merges "left right" of the same header, once. PE_EINVAL: bad[0] is the merge, bad[1] says why: 1, 2, 3 its left
 * half, its right half, what they make is no token; 4 it was there before. */
int pe_vocab_merges(pe_vocab *v, const uint64_t *off, const uint64_t *len, uint64_t n, uint64_t *bad);
int32_t pe_vocab_find(const pe_vocab *v, const uint8_t *text, uint64_t len);   /* id, or -1 */
void pe_vocab_bytes(const pe_vocab *v, int32_t *ids);       /* 256 ids, -1: none */
uint64_t pe_vocab_longest(const uint64_t *len, uint64_t n);
/* n int32 of any alignment to types 1..6; the index of the first that is none, or -1 */
int64_t pe_vocab_types(const uint8_t *values, uint64_t n, uint8_t *types);
/* What cuts text into words, made by rules.py, whose file tells what the three arrays hold. PE_OK, PE_ENOMEM, PE_EINVAL. */
typedef struct pe_splitter pe_splitter;
const uint32_t *pe_unicode_classes(uint64_t *n);  /* runs of one category each: first code point << 3 | place of its letter in CLMNPSZ */
int pe_splitter_new(const uint32_t *sets, uint64_t n_set_words, const uint32_t *stages, uint64_t n_stages, const uint32_t *ops,
                    uint64_t n_ops, pe_splitter **out);
void pe_splitter_free(pe_splitter *s);
/* lengths in bytes of the words of text (UTF-8), which has room for n; NULL only counts. PE_OK, PE_ENOMEM, PE_EINVAL (4 GB). */
int pe_split(const pe_splitter *s, const uint8_t *text, uint64_t n, uint32_t *lengths, uint64_t *n_words);
/* Ids of text, cut into words and merged; out has room for n. Every byte has a token. whole: 1, a word that is a token is
 * not cut; 2, so are only words of newlines. From several threads at once. PE_OK, PE_ENOMEM, PE_EINVAL (4 GB and more). */
int pe_bpe_encode(const pe_vocab *v, const uint8_t *text, uint64_t n, const pe_splitter *s, int whole, int32_t *out,
                  uint64_t *n_out);
/* The same for sentencepiece; text is UTF-8 with U+2581 for blanks. */
int pe_spm_encode(const pe_vocab *v, const uint8_t *text, uint64_t n, int32_t *out, uint64_t *n_out);

/* ---- trie.c, longest.c, unigram.c: vocabularies without merges ------------------------------- */
typedef struct pe_trie pe_trie;
/* An automaton over those of n tokens, text[off[i]] of len[i] bytes, for which use[i] is not 0; len is kept by the caller.
 * backwards: for texts read from the end. facts: tokens with the text of an earlier one, which wins; the first of
 * them; the most tokens that are suffixes of one another (prefixes, backwards). PE_OK, PE_ENOMEM, PE_EINVAL (1 GB). */
int pe_trie_new(const uint8_t *text, const uint64_t *off, const uint64_t *len, const uint8_t *use, uint64_t n, int backwards,
                uint64_t seed0, uint64_t seed1, uint64_t *facts, pe_trie **out);
void pe_trie_free(pe_trie *t);
/* best[i]: the longest token that begins at text[i] and ends by text[n]; -1: none. t: backwards, as for the next two. */
void pe_trie_longest(const pe_trie *t, const uint8_t *text, uint64_t n, int32_t *best);
uint64_t pe_next_token(const int32_t *best, uint64_t n, uint64_t at);   /* the first place from at on where one begins; n: none */
/* The longest token, place after place; out has room for n. From several threads at once.
 * WordPiece: words with one blank between them; one that is not all tokens is unk. */
int pe_wpm_encode(const pe_trie *t, const uint8_t *text, uint64_t n, int32_t unk, int32_t *out, uint64_t *n_out);
/* PE_EINVAL: at some place no token begins. */
int pe_rwkv_encode(const pe_trie *t, const uint8_t *text, uint64_t n, int32_t *out, uint64_t *n_out);
/* Is a sentencepiece precompiled_charsmap sound? PE_OK, PE_ENOMEM, or PE_EINVAL and why: 1 its sizes, 2 a replacement
 * that is not there, 3 a key longer than 64 bytes or a circle, 4 a replacement longer than 255. */
int pe_charsmap_check(const uint8_t *map, uint64_t n, uint64_t *why);
/* sentencepiece's normalization of UTF-8; n_map 0: the identity. merge: runs of blanks become one, outer ones none;
 * prefix: a blank in front, if first. out NULL: only counts. PE_EINVAL: no room, bad map. */
int pe_ugm_normalize(const uint8_t *map, uint64_t n_map, int merge, int prefix, int first, const uint8_t *text, uint64_t n,
                     uint8_t *out, uint64_t room, uint64_t *n_out);
/* The tokens with the best sum of scores; user-defined ones count 0. A character in no token is unk, a run of them one,
 * or with byte_ids its bytes. */
int pe_ugm_encode(const pe_trie *t, const uint8_t *scores, const uint8_t *types, const uint8_t *text, uint64_t n, int32_t unk,
                  double unk_score, const int32_t *byte_ids, int32_t *out, uint64_t *n_out);
/* PLaMo-2's; t: backwards */
int pe_plamo_encode(const pe_trie *t, const uint8_t *scores, const uint8_t *text, uint64_t n, const int32_t *byte_ids, int32_t *out,
                    uint64_t *n_out);

/* cdef-end */

#endif

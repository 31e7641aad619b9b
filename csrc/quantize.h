/* quantize.h: what the files of weight quantization share: quantize.c (the entry, checks, floats)
 * and one table per instruction set. Nothing of running a model is here; for quantize*.c only. */
#ifndef PE_QUANTIZE_H
#define PE_QUANTIZE_H
#include "pyengine.h"

/* Blocks of one weight type from n_blocks blocks of finite floats. w: their importance, at least 0, or NULL
 * for all alike. Every block can be written: pe_quantizer.limit has seen to it. scratch: PE_QUANTIZE_SCRATCH floats. */
typedef void (*pe_quantize_fn)(const float *x, const float *w, void *out, int64_t n_blocks, float *scratch);

typedef struct pe_quantizer {
  int32_t wtype;
  double limit;            /* the largest weight whose scale a half still holds */
  pe_quantize_fn fn;
} pe_quantizer;

/* Each ends with a row whose fn is NULL. The same code for all of them, so the same bits: no product is fused
 * with a sum, and sums have eight lanes however wide a register is. */
extern const pe_quantizer pe_quantizers_base[];
#if defined(__x86_64__) || defined(_M_X64)
extern const pe_quantizer pe_quantizers_avx2[];
#endif
#endif

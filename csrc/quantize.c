/* quantize.c: weights to another type, a row at a time: dequantized, checked, quantized. Python cuts tensors into
 * rows and threads, reads and writes files (pyengine/convert.py); nothing of running a model is here. */
#include "quantize.h"

#include <string.h>

#include "blocks.h"
#include "fpenv.h"
#include "softfloat.h"

static const pe_quantizer *find(int32_t wtype, uint32_t isa) {
  const pe_quantizer *q = pe_quantizers_base;
#if defined(__x86_64__) || defined(_M_X64)
  if (isa & PE_ISA_AVX2) q = pe_quantizers_avx2;
#else
  (void)isa;
#endif
  for (; q->fn; q++)
    if (q->wtype == wtype) return q;
  return NULL;
}

/* The largest weight the type can hold; 0: no quantizer. Halves and bfloat16 round what is above to infinity. */
static double limit_of(int32_t wtype, const pe_quantizer *q) {
  switch (wtype) {
    case PE_F32: return 3.5e38;
    case PE_F16: return 65519.99;
    case PE_BF16: return 0x1.fefffep127;       /* just below half a step over the largest, 0x1.fep127 */
    default: return q ? q->limit : 0;
  }
}

int pe_can_quantize(int32_t wtype) { return limit_of(wtype, find(wtype, 0)) > 0; }

static void to_f16(uint8_t *out, const float *x, int64_t k) {
  for (int64_t i = 0; i < k; i++) {
    uint16_t h = pe_f32_to_f16(x[i]);
    memcpy(out + 2 * i, &h, 2);
  }
}

static void to_bf16(uint8_t *out, const float *x, int64_t k) {
  for (int64_t i = 0; i < k; i++) {
    uint32_t u = pe_f32_bits(x[i]);
    uint16_t h = (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);   /* to nearest even */
    memcpy(out + 2 * i, &h, 2);
  }
}

int pe_quantize_rows(pe_quantize_job *j) {
  const pe_type *from = pe_type_by_id(j->from), *to = pe_type_by_id(j->to);
  const pe_quantizer *q = find(j->to, j->isa);
  double limit = limit_of(j->to, q);
  if (!from || !to || limit == 0 || j->k < 1 || j->k % from->block || j->k % to->block || j->rows < 0) return PE_EINVAL;
  uint64_t env = pe_fpenv_get();
  int code = PE_OK;
  pe_fpenv_set();
  for (int64_t r = 0; r < j->rows && code == PE_OK; r++) {
    const uint8_t *in = (const uint8_t *)j->in + r * (j->k / from->block * from->bytes);
    uint8_t *out = (uint8_t *)j->out + r * (j->k / to->block * to->bytes);
    float *x = j->row;
    if (pe_dequant(j->from, in, x, j->k)) {
      code = PE_EINVAL;
      break;
    }
    uint32_t worst = 0;
    for (int64_t i = 0; i < j->k; i++) {
      uint32_t a = pe_f32_bits(x[i]) & 0x7fffffff;
      worst = a > worst ? a : worst;
    }
    if (worst >= 0x7f800000 || pe_f32_from_bits(worst) > limit) {
      int64_t i = 0;
      if (worst >= 0x7f800000)                 /* the first one: `worst` may be a later NaN */
        while ((pe_f32_bits(x[i]) & 0x7f800000) != 0x7f800000) i++;
      else
        while ((pe_f32_bits(x[i]) & 0x7fffffff) != worst) i++;
      j->bad = r * j->k + i;
      j->bad_value = x[i];
      j->limit = limit;
      code = worst >= 0x7f800000 ? PE_ENONFINITE : PE_ERANGE;
      break;
    }
    if (j->to == PE_F32) memcpy(out, x, (size_t)j->k * 4);
    else if (j->to == PE_F16) to_f16(out, x, j->k);
    else if (j->to == PE_BF16) to_bf16(out, x, j->k);
    else q->fn(x, j->importance, out, j->k / to->block, x + j->k);
  }
  pe_fpenv_put(env);
  return code;
}

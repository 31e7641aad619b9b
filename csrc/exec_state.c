/* exec_state.c: instructions that carry a state from position to position: CONV. Operands are in the table at the top of
 * exec.c; pages are exec_attn.c's.
 *
 * A slot holds the state of one sequence behind one position. A step reads the slot of what came before it and writes
 * others (pe_step.saves), so a step that is stopped, or whose guesses are wrong, has changed nothing that is still needed.
 * The state of a convolution is the rows it sees of earlier positions, the oldest first; positions below 0 are zeros there
 * and are left out, not multiplied. */
#include <string.h>
#include "exec.h"

static float *slot_row(const pe_prog *p, const pe_insn *in, int64_t slot, int64_t i) {
  return (float *)(pe_at(p, in->a[3]) + slot * pe_conv_bytes(in)) + i * pe_up16(in->n[0]);
}

int64_t pe_conv_bytes(const pe_insn *in) { return (in->n[1] - 1) * pe_up16(in->n[0]) * 4; }

/* x at `back` positions before a row, from this step or from the slot; NULL before position 0. */
static const float *past(const pe_prog *p, const pe_insn *in, int64_t row, int64_t back) {
  int64_t seq = p->seq[row], inside = p->pos[row] - p->step.start[seq];
  if (back > p->pos[row]) return NULL;
  if (back <= inside) return pe_row_f32(p, in->a[0], in->n[0], row - back);
  return slot_row(p, in, p->step.slots[seq], in->n[1] - 1 - (back - inside));
}

void pe_run_conv(pe_prog *p, const pe_insn *in, int64_t row, int32_t thread) {
  int64_t k = in->n[0], taps = in->n[1];
  const float *x[PE_MAX_TAPS];
  for (int64_t j = 0; j < taps; j++) x[j] = past(p, in, row, taps - 1 - j);
  float *y = pe_has(in->a[2]) ? pe_row_f32(p, in->a[2], k, row) : (float *)(pe_scratch(p, thread) + PE_SCRATCH);
  p->v->conv(y, x, (const float *)pe_at(p, in->a[1]), taps, k);
  if (pe_has(in->a[4])) p->v->mul(y, y, pe_row_f32(p, in->a[4], k, row), k);
  pe_quantize(p, in->a[5], in->a[6], y, k, row, 0, k);
  if (p->save[row] < 0) return;
  for (int64_t j = 1; j < taps; j++) {
    float *to = slot_row(p, in, p->save[row], j - 1);
    if (x[j]) memcpy(to, x[j], (size_t)k * 4);
    else memset(to, 0, (size_t)k * 4);
  }
}

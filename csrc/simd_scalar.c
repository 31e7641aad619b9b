/* simd_scalar.c: the tier of plain C; runs everywhere, and is the meaning of pe_vops. */
#include "kernel.h"
#include "v16_scalar.h"
#include "ops.inl.c"
#include "kv_store.inl.c"
#include "attn.inl.c"

const pe_vops pe_vops_scalar = {"scalar", PE_ISA_SCALAR, PE_VOPS_MEMBERS};

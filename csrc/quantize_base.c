/* quantize_base.c: quantizers for the instructions every machine of its kind has (SSE2, NEON). */
#define PE_QUANTIZERS pe_quantizers_base
#include "quantize_fit.inl.c"
#include "quantize_blocks.inl.c"
#include "quantize_grid.inl.c"
#include "quantize_few.inl.c"

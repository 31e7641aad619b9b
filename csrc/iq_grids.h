/* iq_grids.h: the codebooks of the IQ1, IQ2 and IQ3 types, one byte per element, element 0 in the
 * lowest. IQ2 and IQ3: magnitudes, the sign is stored apart. IQ1: eight times the element (-8, 0,
 * 8), so that its offset of an eighth is 1. Data only. Included by iq_grids.c, mm_scalar_iq.c and
 * mm_iquant*. */
#ifndef PE_IQ_GRIDS_H
#define PE_IQ_GRIDS_H
#include "blocks.h"
#include "pyengine.h"

extern const uint64_t pe_grid_iq1[2048];     /* IQ1_S, IQ1_M */
extern const uint64_t pe_grid_iq2_xxs[256];
extern const uint64_t pe_grid_iq2_xs[512];
extern const uint64_t pe_grid_iq2_s[1024];
extern const uint32_t pe_grid_iq3_xxs[256];
extern const uint32_t pe_grid_iq3_s[512];

#endif

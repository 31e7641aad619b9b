/* kernels.c: gathers the tables that the kernel files export into the two lists Python
 * sees: matrix products (pe_rows) and tiers of the other ops (pe_vops_all). It chooses
 * nothing: rows this CPU cannot run are listed too, with the ISA bits they need.
 * Adding a kernel file is one line below. */
#include <assert.h>
#include <pthread.h>

#include "kernel.h"

static const pe_row *const row_tables[] = {
    pe_rows_scalar,
    pe_rows_scalar_iq,
#if defined(__x86_64__) || defined(_M_X64)
    pe_rows_float_avx2,
    pe_rows_float_avx512,
    pe_rows_block32_avx2,
    pe_rows_block32_avxvnni,
    pe_rows_block32_avx512,
    pe_rows_kquant_avx2,
    pe_rows_kquant_avxvnni,
    pe_rows_kquant_avx512,
    pe_rows_iquant_avx2,
    pe_rows_iquant_avxvnni,
    pe_rows_iquant_avx512,
#elif defined(__aarch64__)
    pe_rows_float_neon,
    pe_rows_block32_neon,
    pe_rows_block32_dotprod,
    pe_rows_block32_i8mm,
    pe_rows_kquant_neon,
    pe_rows_kquant_dotprod,
    pe_rows_kquant_i8mm,
    pe_rows_iquant_neon,
    pe_rows_iquant_dotprod,
    pe_rows_iquant_i8mm,
#endif
};

static const pe_vops *const vops_tiers[] = {
    &pe_vops_scalar,
#if defined(__x86_64__) || defined(_M_X64)
    &pe_vops_avx2,
    &pe_vops_avx512,
#elif defined(__aarch64__)
    &pe_vops_neon,
    &pe_vops_dotprod,
#endif
};

#define N_TABLES (sizeof row_tables / sizeof row_tables[0])
#define N_TIERS (sizeof vops_tiers / sizeof vops_tiers[0])
enum { MAX_ROWS = 512, MAX_TIERS = 16 };
_Static_assert(N_TIERS <= MAX_TIERS, "one slot per tier");

static pe_row rows[MAX_ROWS];
static pe_vops tiers[MAX_TIERS];
static int32_t n_rows, n_tiers;
static pthread_once_t gathered = PTHREAD_ONCE_INIT;

static void gather(void) {
  for (size_t i = 0; i < N_TABLES; i++)
    for (const pe_row *r = row_tables[i]; r->fn; r++) {
      assert(n_rows < MAX_ROWS);  /* ours to raise when the tables outgrow it */
      rows[n_rows++] = *r;
    }
  for (size_t i = 0; i < N_TIERS; i++)
    tiers[n_tiers++] = *vops_tiers[i];
}

const pe_row *pe_rows(int32_t *n) {
  pthread_once(&gathered, gather);
  *n = n_rows;
  return rows;
}

const pe_vops *pe_vops_all(int32_t *n) {
  pthread_once(&gathered, gather);
  *n = n_tiers;
  return tiers;
}

int64_t pe_kv_bytes(int32_t kv_type, int64_t d) {
  if (d < 1 || d > (int64_t)1 << 20) return -1;
  if (kv_type == PE_KV_F16) return PE_PAGE * d * 2;
  if ((kv_type != PE_KV_Q8_0 && kv_type != PE_KV_Q4_0) || d % 32 || d > PE_MAX_D_BLOCKS) return -1;
  return PE_PAGE / 16 * (kv_type == PE_KV_Q8_0 ? 17 : 9) * d;
}

int64_t pe_act_stride(int32_t act, int64_t k) {
  if (k < 1 || k > (int64_t)1 << 40) return -1;
  switch (act) {
    case PE_ACT_F32: return pe_up64(4 * k);
    case PE_ACT_Q32: return k % 32 ? -1 : pe_up64(k) + pe_up64(k / 32 * 4) + pe_up64(k / 32 * 4);
    case PE_ACT_Q256: return k % 256 ? -1 : pe_up64(k) + pe_up64(k / 256 * 4) + pe_up64(k / 16 * 2) + pe_up64(k / 256);
    default: return -1;
  }
}

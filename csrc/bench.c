/* bench.c: the yardsticks of bench/kernels.py: what this machine reads, and how many
 * multiply-adds of bytes its instructions give at best. No kernel of a model; nothing
 * calls it while one runs. */
#include "kernel.h"

/* A plain linear read loop: four vectors of 16 bytes a line, so that it is bound by the
 * memory and not by its own instructions. (Wider types than the base instruction set has,
 * and copies of whole lines, are compiled through the stack by gcc 12: such a loop reads
 * 8.5 GB/s where this one reads 13.7.) */
typedef uint64_t word2 __attribute__((vector_size(16), aligned(1), may_alias));

uint64_t pe_read_loop(const void *p, int64_t n) {
  const char *c = p;
  word2 a = {0}, b = {0}, d = {0}, e = {0};
  for (int64_t i = 0; i + 64 <= n; i += 64) {
    a ^= *(const word2 *)(c + i);
    b ^= *(const word2 *)(c + i + 16);
    d ^= *(const word2 *)(c + i + 32);
    e ^= *(const word2 *)(c + i + 48);
  }
  a ^= b ^ d ^ e;
  return a[0] ^ a[1];
}

/* The same bytes, but for a page, as `streams` streams far apart, fetched half a KB ahead, as kernels for one token
 * read their rows. A distance that is no multiple of a page spreads them over the cache's sets. */
uint64_t pe_read_streams(const void *p, int64_t n, int32_t streams) {
  const char *c = p;
  int64_t each = streams > 0 ? (n / streams & ~(int64_t)4095) - 4096 + 320 : 0;
  word2 a = {0}, b = {0};
  if (each < 4096) return pe_read_loop(p, n);
  for (int64_t i = 0; i < each; i += 64)
    for (int32_t j = 0; j < streams; j++) {
      const char *at = c + j * each + i;
      __builtin_prefetch(at + 512);
      a ^= *(const word2 *)at ^ *(const word2 *)(at + 16);
      b ^= *(const word2 *)(at + 32) ^ *(const word2 *)(at + 48);
    }
  a ^= b;
  return a[0] ^ a[1];
}

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>

/* The inner step of 4-bit weights on AVX2, registers only: vpmaddubsw, vpaddw; nothing is
 * widened, scaled or loaded. 32 multiply-adds per pair of instructions. */
__attribute__((target("avx2"))) static int64_t mac_avx2(int64_t rounds) {
  __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(3), z = _mm256_setzero_si256();
  __m256i s0 = z, s1 = z, s2 = z, s3 = z, s4 = z, s5 = z, s6 = z, s7 = z;
/* The empty statement makes it a new product each time, as far as the compiler knows. */
#define STEP(s)                       \
  __asm__("" : "+x"(a), "+x"(s));     \
  s = _mm256_add_epi16(s, _mm256_maddubs_epi16(a, b));
  for (int64_t n = 0; n < rounds; n++) {
    STEP(s0) STEP(s1) STEP(s2) STEP(s3) STEP(s4) STEP(s5) STEP(s6) STEP(s7)
  }
#undef STEP
  __asm__ volatile("" : : "x"(s0), "x"(s1), "x"(s2), "x"(s3), "x"(s4), "x"(s5), "x"(s6), "x"(s7));
  return rounds * 8 * 32;
}

/* vpdpbusd on registers: twelve sums, because it takes five cycles and two may start in each. */
#define SUMS(STEP) \
  STEP(s0) STEP(s1) STEP(s2) STEP(s3) STEP(s4) STEP(s5) STEP(s6) STEP(s7) STEP(s8) STEP(s9) STEP(s10) STEP(s11)

__attribute__((target("avx2,avxvnni"))) static int64_t mac_avxvnni(int64_t rounds) {
  __m256i a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(3), z = _mm256_setzero_si256();
  __m256i s0 = z, s1 = z, s2 = z, s3 = z, s4 = z, s5 = z, s6 = z, s7 = z, s8 = z, s9 = z, s10 = z, s11 = z;
#define STEP(s)                       \
  s = _mm256_dpbusd_avx_epi32(s, a, b); \
  __asm__ volatile("" : "+x"(s));
  for (int64_t n = 0; n < rounds; n++) {
    SUMS(STEP)
  }
#undef STEP
  return rounds * 12 * 32;
}

__attribute__((target("avx512f,avx512vnni"))) static int64_t mac_avx512(int64_t rounds) {
  __m512i a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(3), z = _mm512_setzero_si512();
  __m512i s0 = z, s1 = z, s2 = z, s3 = z, s4 = z, s5 = z, s6 = z, s7 = z, s8 = z, s9 = z, s10 = z, s11 = z;
#define STEP(s)                       \
  s = _mm512_dpbusd_epi32(s, a, b);   \
  __asm__ volatile("" : "+v"(s));
  for (int64_t n = 0; n < rounds; n++) {
    SUMS(STEP)
  }
#undef STEP
  return rounds * 12 * 64;
}

int64_t pe_mac_loop(uint32_t isa, int64_t rounds) {
  return isa & PE_ISA_AVX512 ? mac_avx512(rounds) : isa & PE_ISA_AVXVNNI ? mac_avxvnni(rounds) : isa & PE_ISA_AVX2 ? mac_avx2(rounds) : 0;
}

#elif defined(__aarch64__)
#include <arm_neon.h>

#if defined(__clang__)
#define DOTPROD __attribute__((target("dotprod")))
#define I8MM __attribute__((target("i8mm")))
#else
#define DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#define I8MM __attribute__((target("arch=armv8.2-a+i8mm")))
#endif

/* One instruction on twelve sums in turn, which is more than any of them has under way. */
#define MAC_LOOP(name, instruction, macs)                                                                          \
  static int64_t name(int64_t rounds) {                                                                            \
    int8x16_t a = vdupq_n_s8(1), b = vdupq_n_s8(3);                                                                \
    int32x4_t s[12];                                                                                               \
    for (int i = 0; i < 12; i++) s[i] = vdupq_n_s32(0);                                                            \
    for (int64_t n = 0; n < rounds; n++) {                                                                         \
      STEP(instruction, 0) STEP(instruction, 1) STEP(instruction, 2) STEP(instruction, 3)                          \
      STEP(instruction, 4) STEP(instruction, 5) STEP(instruction, 6) STEP(instruction, 7)                          \
      STEP(instruction, 8) STEP(instruction, 9) STEP(instruction, 10) STEP(instruction, 11)                        \
    }                                                                                                              \
    return rounds * 12 * macs;                                                                                     \
  }
#define STEP(instruction, i) __asm__ volatile(instruction : "+w"(s[i]) : "w"(a), "w"(b));

MAC_LOOP(mac_neon, "smlal %0.8h, %1.8b, %2.8b", 8)
DOTPROD MAC_LOOP(mac_dotprod, "sdot %0.4s, %1.16b, %2.16b", 16)
I8MM MAC_LOOP(mac_i8mm, "smmla %0.4s, %1.16b, %2.16b", 32)

int64_t pe_mac_loop(uint32_t isa, int64_t rounds) {
  return isa & PE_ISA_I8MM ? mac_i8mm(rounds) : isa & PE_ISA_DOTPROD ? mac_dotprod(rounds) : isa & PE_ISA_NEON ? mac_neon(rounds) : 0;
}

#else
int64_t pe_mac_loop(uint32_t isa, int64_t rounds) {
  (void)isa, (void)rounds;
  return 0;
}
#endif

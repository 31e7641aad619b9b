/* fpenv.h: the floating-point environment of DESIGN 2.3 (round to nearest even,
 * subnormals kept, nothing trapped). A thread inherits its maker's settings and
 * numpy or others may have set flush-to-zero, so pool threads set it once and a
 * step saves, sets and restores the caller's. For pool.c and exec.c. */
#ifndef PE_FPENV_H
#define PE_FPENV_H
#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
static inline uint64_t pe_fpenv_get(void) { return _mm_getcsr(); }
static inline void pe_fpenv_put(uint64_t v) { _mm_setcsr((unsigned)v); }
static inline void pe_fpenv_set(void) { _mm_setcsr(0x1f80); }
#elif defined(__aarch64__)
static inline uint64_t pe_fpenv_get(void) { uint64_t v; __asm__ __volatile__("mrs %0, fpcr" : "=r"(v)); return v; }
static inline void pe_fpenv_put(uint64_t v) { __asm__ __volatile__("msr fpcr, %0" : : "r"(v)); }
static inline void pe_fpenv_set(void) { pe_fpenv_put(0); }
#elif defined(__arm__)
static inline uint64_t pe_fpenv_get(void) { uint32_t v; __asm__ __volatile__("vmrs %0, fpscr" : "=r"(v)); return v; }
static inline void pe_fpenv_put(uint64_t v) { uint32_t w = (uint32_t)v; __asm__ __volatile__("vmsr fpscr, %0" : : "r"(w)); }
static inline void pe_fpenv_set(void) { pe_fpenv_put(0); }
#else
static inline uint64_t pe_fpenv_get(void) { return 0; }
static inline void pe_fpenv_put(uint64_t v) { (void)v; }
static inline void pe_fpenv_set(void) {}
#endif
#endif

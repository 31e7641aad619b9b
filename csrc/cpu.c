/* cpu.c: which instruction sets this processor and this operating system support, and
 * the processor's name. Facts only: what to use is decided in Python (PYENGINE_ISA
 * included), and build flags never enter. An unknown platform reports scalar. */
#include <pthread.h>
#include <string.h>

#include "pyengine.h"

static uint32_t isa_bits;
static char cpu_name[64];
static pthread_once_t detected = PTHREAD_ONCE_INIT;

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>

/* The wanted bits of XCR0 say which registers the system saves on a context switch. */
enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };

static uint64_t read_xcr0(void) {
  uint32_t lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));  /* the intrinsic would need a target flag */
  return (uint64_t)hi << 32 | lo;
}

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
/* Linux hands out tile registers on request (ARCH_REQ_XCOMP_PERM), and asking enlarges
 * signal frames for good; so only ask what could be granted, and leave the request to
 * the kernels that use tiles. */
static int amx_granted(void) {
  enum { ARCH_GET_XCOMP_SUPP = 0x1021, TILEDATA = 18 };
  unsigned long features = 0;
  return syscall(SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &features) == 0 && (features >> TILEDATA & 1);
}
#else
static int amx_granted(void) { return 0; }
#endif

static void detect_name(void) {
  uint32_t r[12];
  if (__get_cpuid_max(0x80000000, NULL) < 0x80000004) return;
  for (uint32_t i = 0; i < 3; i++)
    __cpuid(0x80000002 + i, r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]);
  memcpy(cpu_name, r, 48);
}

static void detect_isa(void) {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return;
  int osxsave = c >> 27 & 1, avx = c >> 28 & 1, fma = c >> 12 & 1, f16c = c >> 29 & 1;
  if (!osxsave || !avx) return;
  uint64_t xcr0 = read_xcr0();
  if ((xcr0 & XCR0_AVX) != XCR0_AVX) return;
  uint32_t a7, b7, c7, d7, a71 = 0;
  if (!__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7)) return;
  if (a7 >= 1) __cpuid_count(7, 1, a71, b, c, d);
  if (!(b7 >> 5 & 1) || !fma || !f16c) return;
  isa_bits |= PE_ISA_AVX2;
  if (a71 >> 4 & 1) isa_bits |= PE_ISA_AVXVNNI;
  int f = b7 >> 16 & 1, dq = b7 >> 17 & 1, bw = b7 >> 30 & 1, vl = b7 >> 31 & 1, vnni = c7 >> 11 & 1;
  if (f && dq && bw && vl && vnni && (xcr0 & XCR0_AVX512) == XCR0_AVX512) isa_bits |= PE_ISA_AVX512;
  int tile = d7 >> 24 & 1, tile_int8 = d7 >> 25 & 1;
  if (tile && tile_int8 && (xcr0 & XCR0_AMX) == XCR0_AMX && amx_granted()) isa_bits |= PE_ISA_AMX;
}

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static void detect_name(void) {}

static void detect_isa(void) {  /* HWCAP_ASIMD, HWCAP_ASIMDDP; HWCAP2_I8MM */
  unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
  if (!(cap >> 1 & 1)) return;
  isa_bits |= PE_ISA_NEON;
  if (cap >> 20 & 1) isa_bits |= PE_ISA_DOTPROD;
  if (cap2 >> 13 & 1) isa_bits |= PE_ISA_I8MM;
}

#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>

static int has(const char *feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value;
}

static void detect_name(void) {
  size_t size = sizeof cpu_name - 1;
  if (sysctlbyname("machdep.cpu.brand_string", cpu_name, &size, NULL, 0) != 0) cpu_name[0] = 0;
}

static void detect_isa(void) {
  isa_bits |= PE_ISA_NEON;  /* every arm64 Mac */
  if (has("hw.optional.arm.FEAT_DotProd")) isa_bits |= PE_ISA_DOTPROD;
  if (has("hw.optional.arm.FEAT_I8MM")) isa_bits |= PE_ISA_I8MM;
}

#else
static void detect_name(void) {}
static void detect_isa(void) {}
#endif

static void detect(void) {
  isa_bits = PE_ISA_SCALAR;
  detect_isa();
  detect_name();
  size_t lead = strspn(cpu_name, " ");  /* brand strings come padded */
  memmove(cpu_name, cpu_name + lead, sizeof cpu_name - lead);
  for (size_t n = strlen(cpu_name); n > 0 && cpu_name[n - 1] == ' '; n--) cpu_name[n - 1] = 0;
}

uint32_t pe_cpu_isa(void) {
  pthread_once(&detected, detect);
  return isa_bits;
}

const char *pe_cpu_name(void) {
  pthread_once(&detected, detect);
  return cpu_name;
}

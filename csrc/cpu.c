/* cpu.c: which instruction sets this processor and this operating system support, and
 * the processor's name. Facts only: what to use is decided in Python (PYENGINE_ISA
 * included), and build flags never enter. An unknown platform reports scalar. */
#include <pthread.h>
#include <string.h>

#include "pyengine.h"

static uint32_t isa_bits;
static char cpu_name[64];
static char lacks[8][160];  /* by bit */
static pthread_once_t detected = PTHREAD_ONCE_INIT;

/* Notes what a bit needs, unless it is there. */
static inline void need(int bit, int there, const char *what) {
  char *text = lacks[bit];
  size_t used = strlen(text), n = strlen(what);
  if (there || used + n + 3 > sizeof lacks[bit]) return;
  if (used) memcpy(text + used, ", ", 2), used += 2;
  memcpy(text + used, what, n + 1);
}

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
  enum { AVX2 = 0, AVXVNNI = 1, AVX512 = 2, AMX = 3 };  /* bit numbers of PE_ISA_* */
  uint32_t a = 0, b, c = 0, d, a7 = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0;
  __get_cpuid(1, &a, &b, &c, &d);
  int osxsave = c >> 27 & 1;
  uint64_t xcr0 = osxsave ? read_xcr0() : 0;
  if (__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7) && a7 >= 1) __cpuid_count(7, 1, a71, b, a, d);
  need(AVX2, c >> 28 & 1, "AVX");
  need(AVX2, c >> 12 & 1, "FMA");
  need(AVX2, c >> 29 & 1, "F16C");
  need(AVX2, b7 >> 5 & 1, "AVX2");
  need(AVX2, (xcr0 & XCR0_AVX) == XCR0_AVX, "a system that saves the 256-bit registers");
  need(AVXVNNI, !lacks[AVX2][0], "the avx2 tier");
  need(AVXVNNI, a71 >> 4 & 1, "AVX-VNNI");
  need(AVX512, !lacks[AVX2][0], "the avx2 tier");
  need(AVX512, b7 >> 16 & 1, "AVX512F");
  need(AVX512, b7 >> 17 & 1, "AVX512DQ");
  need(AVX512, b7 >> 30 & 1, "AVX512BW");
  need(AVX512, b7 >> 31 & 1, "AVX512VL");
  need(AVX512, c7 >> 11 & 1, "AVX512_VNNI");
  need(AVX512, (xcr0 & XCR0_AVX512) == XCR0_AVX512, "a system that saves the 512-bit registers");
  need(AMX, !lacks[AVX2][0], "the avx2 tier");
  need(AMX, d7 >> 24 & 1, "AMX-TILE");
  need(AMX, d7 >> 25 & 1, "AMX-INT8");
  need(AMX, (xcr0 & XCR0_AMX) == XCR0_AMX && amx_granted(), "a system that grants tile registers");
  for (int bit = AVX2; bit <= AMX; bit++)
    if (!lacks[bit][0]) isa_bits |= 1u << bit;
}

_Static_assert(PE_ISA_AVX2 == 1 && PE_ISA_AVXVNNI == 2 && PE_ISA_AVX512 == 4 && PE_ISA_AMX == 8, "the bit numbers above");

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static void detect_name(void) {}

static void detect_isa(void) {  /* HWCAP_ASIMD, HWCAP_ASIMDDP; HWCAP2_I8MM */
  unsigned long cap = getauxval(AT_HWCAP), cap2 = getauxval(AT_HWCAP2);
  need(4, cap >> 1 & 1, "NEON");
  need(5, cap >> 20 & 1, "the dot product instructions");
  need(6, cap2 >> 13 & 1, "the int8 matrix instructions");
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
  need(5, has("hw.optional.arm.FEAT_DotProd"), "the dot product instructions");
  need(6, has("hw.optional.arm.FEAT_I8MM"), "the int8 matrix instructions");
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

const char *pe_cpu_lacks(uint32_t isa) {
  pthread_once(&detected, detect);
  for (int bit = 0; bit < 8; bit++)
    if (isa == 1u << bit) return lacks[bit];
  return "";
}

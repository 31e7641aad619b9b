/* cpu.c: which instruction sets this processor and this operating system support, and
 * the processor's name. Facts only: what to use is decided in Python (PYENGINE_ISA
 * included), and build flags never enter. An unknown platform reports scalar. */
#include <pthread.h>
#include <string.h>

#include "pyengine.h"

static uint32_t isa_bits;   /* of PE_ISA_*: asked for, and nothing missing */
static char cpu_name[64];
static char lacks[8][160];  /* what is missing, by the bit's number */
static pthread_once_t detected = PTHREAD_ONCE_INIT;

/* Something a bit needs, and whether it is there. A tier's first need makes its bit. */
static inline void need(uint32_t isa, int there, const char *what) {
  char *text = lacks[__builtin_ctz(isa)];
  size_t used = strlen(text), n = strlen(what);
  if (there) {
    if (!used) isa_bits |= isa;
    return;
  }
  isa_bits &= ~isa;
  if (used + n + 3 > sizeof lacks[0]) return;
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
  uint32_t a = 0, b, c = 0, d, a7 = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0;
  __get_cpuid(1, &a, &b, &c, &d);
  int osxsave = c >> 27 & 1;
  uint64_t xcr0 = osxsave ? read_xcr0() : 0;
  if (__get_cpuid_count(7, 0, &a7, &b7, &c7, &d7) && a7 >= 1) __cpuid_count(7, 1, a71, b, a, d);
  need(PE_ISA_AVX2, c >> 28 & 1, "AVX");
  need(PE_ISA_AVX2, c >> 12 & 1, "FMA");
  need(PE_ISA_AVX2, c >> 29 & 1, "F16C");
  need(PE_ISA_AVX2, b7 >> 5 & 1, "AVX2");
  need(PE_ISA_AVX2, (xcr0 & XCR0_AVX) == XCR0_AVX, "a system that saves the 256-bit registers");
  int avx2 = (isa_bits & PE_ISA_AVX2) != 0;
  need(PE_ISA_AVXVNNI, avx2, "the avx2 tier");
  need(PE_ISA_AVXVNNI, a71 >> 4 & 1, "AVX-VNNI");
  need(PE_ISA_AVX512, avx2, "the avx2 tier");
  need(PE_ISA_AVX512, b7 >> 16 & 1, "AVX512F");
  need(PE_ISA_AVX512, b7 >> 17 & 1, "AVX512DQ");
  need(PE_ISA_AVX512, b7 >> 30 & 1, "AVX512BW");
  need(PE_ISA_AVX512, b7 >> 31 & 1, "AVX512VL");
  need(PE_ISA_AVX512, c7 >> 11 & 1, "AVX512_VNNI");
  need(PE_ISA_AVX512, (xcr0 & XCR0_AVX512) == XCR0_AVX512, "a system that saves the 512-bit registers");
  need(PE_ISA_AMX, avx2, "the avx2 tier");
  need(PE_ISA_AMX, d7 >> 24 & 1, "AMX-TILE");
  need(PE_ISA_AMX, d7 >> 25 & 1, "AMX-INT8");
  need(PE_ISA_AMX, (xcr0 & XCR0_AMX) == XCR0_AMX && amx_granted(), "a system that grants tile registers");
}

#elif defined(__aarch64__)

/* Three questions, asked of the system; what each tier needs follows below. */
#if defined(__linux__)
#include <sys/auxv.h>

static int has_neon(void) { return getauxval(AT_HWCAP) >> 1 & 1; }         /* HWCAP_ASIMD */
static int has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; }     /* HWCAP_ASIMDDP */
static int has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; }       /* HWCAP2_I8MM */
static void detect_name(void) {}

#elif defined(__APPLE__)
#include <sys/sysctl.h>

static int has(const char *feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, NULL, 0) == 0 && value;
}
static int has_neon(void) { return 1; }
static int has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static int has_i8mm(void) { return has("hw.optional.arm.FEAT_I8MM"); }

static void detect_name(void) {
  size_t size = sizeof cpu_name - 1;
  if (sysctlbyname("machdep.cpu.brand_string", cpu_name, &size, NULL, 0) != 0) cpu_name[0] = 0;
}

#else
/* NEON is in the base instruction set, which compilers use anyway; for more there is nobody to ask. */
static int has_neon(void) { return 1; }
static int has_dotprod(void) { return 0; }
static int has_i8mm(void) { return 0; }
static void detect_name(void) {}
#endif

static void detect_isa(void) {
  need(PE_ISA_NEON, has_neon(), "NEON");
  need(PE_ISA_DOTPROD, has_neon(), "the neon tier");
  need(PE_ISA_DOTPROD, has_dotprod(), "the dot product instructions");
  need(PE_ISA_I8MM, has_neon() && has_dotprod(), "the dotprod tier");
  need(PE_ISA_I8MM, has_i8mm(), "the int8 matrix instructions");
}

#elif defined(__arm__)
static void detect_name(void) {}

static void detect_isa(void) {  /* 32-bit NEON flushes subnormals, so it may not touch floats: csrc/softfloat.h */
  need(PE_ISA_NEON, 0, "a 64-bit system");
  need(PE_ISA_DOTPROD, 0, "a 64-bit system");
  need(PE_ISA_I8MM, 0, "a 64-bit system");
}

#else
static void detect_name(void) {}
static void detect_isa(void) {}
#endif

static void detect(void) {
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

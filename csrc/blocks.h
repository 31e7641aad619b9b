/* blocks.h: how the quantized ggml types lie in a GGUF file, little endian.
 * Layout only: what the bytes mean is mm_scalar.c's business. Included by kernel
 * files. Every struct is packed (alignment 1), because a tensor's data starts
 * wherever the file puts it; read multi-byte members through memcpy or unaligned
 * vector loads, never through a pointer to the member. Halves are raw f16 bits. */
#ifndef PE_BLOCKS_H
#define PE_BLOCKS_H
#include <stdint.h>

#define PE_PACKED __attribute__((packed))

typedef uint16_t pe_half; /* the bits of an IEEE binary16 */

/* ggml ids of the types that have kernels; types.c lists every type. */
enum {
  PE_F32 = 0,
  PE_F16 = 1,
  PE_Q4_0 = 2,
  PE_Q4_1 = 3,
  PE_Q5_0 = 6,
  PE_Q5_1 = 7,
  PE_Q8_0 = 8,
  PE_Q2_K = 10,
  PE_Q3_K = 11,
  PE_Q4_K = 12,
  PE_Q5_K = 13,
  PE_Q6_K = 14,
  PE_IQ2_XXS = 16,
  PE_IQ2_XS = 17,
  PE_IQ3_XXS = 18,
  PE_IQ1_S = 19,
  PE_IQ4_NL = 20,
  PE_IQ3_S = 21,
  PE_IQ2_S = 22,
  PE_IQ4_XS = 23,
  PE_IQ1_M = 29,
  PE_BF16 = 30,
  PE_TQ1_0 = 34,
  PE_TQ2_0 = 35,
  PE_MXFP4 = 39,
  PE_NVFP4 = 40,
  PE_Q1_0 = 41,
  PE_Q2_0 = 42,
};

/* ---- 32 elements per block ---------------------------------------------------
 * Nibbles: byte j holds element j low, element j+16 high. */

typedef struct PE_PACKED pe_q4_0 {
  pe_half d;              /* x = d * (q - 8) */
  uint8_t qs[16];
} pe_q4_0;

typedef struct PE_PACKED pe_q4_1 {
  pe_half d, m;           /* x = d * q + m */
  uint8_t qs[16];
} pe_q4_1;

typedef struct PE_PACKED pe_q5_0 {
  pe_half d;              /* x = d * (q - 16) */
  uint8_t qh[4];          /* bit j of the little-endian word: bit 4 of element j */
  uint8_t qs[16];
} pe_q5_0;

typedef struct PE_PACKED pe_q5_1 {
  pe_half d, m;           /* x = d * q + m */
  uint8_t qh[4];
  uint8_t qs[16];
} pe_q5_1;

typedef struct PE_PACKED pe_q8_0 {
  pe_half d;              /* x = d * q */
  int8_t qs[32];
} pe_q8_0;

typedef struct PE_PACKED pe_iq4_nl {
  pe_half d;              /* x = d * PE_IQ4_VALUES[q] */
  uint8_t qs[16];
} pe_iq4_nl;

typedef struct PE_PACKED pe_mxfp4 {
  uint8_t e;              /* x = 2^(e - 128) * PE_MXFP4_VALUES[q], for every e, 0 and 255 too */
  uint8_t qs[16];
} pe_mxfp4;

/* What a nibble stands for. MXFP4's are e2m1 numbers (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
 * negatives) doubled, to be integers; its scale is halved in return. */
#define PE_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define PE_MXFP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12

/* ---- 64 and 128 elements per block, taken as so many blocks of 32 ----------------- */

typedef struct PE_PACKED pe_nvfp4 {
  uint8_t d[4];           /* per 16 elements, ue4m3: x = d/2 * PE_MXFP4_VALUES[q] */
  uint8_t qs[32];         /* 8 bytes per 16 elements: byte j holds element j low, j+8 high */
} pe_nvfp4;

typedef struct PE_PACKED pe_q1_0 {
  pe_half d;              /* x = d where the bit is set, else -d */
  uint8_t qs[16];         /* bit j of the 128-bit little-endian word: element j */
} pe_q1_0;

typedef struct PE_PACKED pe_q2_0 {
  pe_half d;              /* x = d * (q - 1) */
  uint8_t qs[16];         /* four elements per byte, the first lowest */
} pe_q2_0;

/* ---- 256 elements per block --------------------------------------------------- */

typedef struct PE_PACKED pe_q2_k {
  uint8_t scales[16];     /* per 16 elements: scale low nibble, minimum high nibble */
  uint8_t qs[64];         /* 2 bits each: 32 bytes per 128 elements, bits 2g.. are group g of 32 */
  pe_half d, dmin;        /* x = d * scale * q - dmin * minimum */
} pe_q2_k;

typedef struct PE_PACKED pe_q3_k {
  uint8_t hmask[32];      /* bit g of byte j: bit 2 of element 32*g + j */
  uint8_t qs[64];         /* low 2 bits, laid out as in Q2_K */
  uint8_t scales[12];     /* sixteen 6-bit scales, stored + 32 */
  pe_half d;              /* x = d * (scale - 32) * (q - 4) */
} pe_q3_k;

typedef struct PE_PACKED pe_q4_k {
  pe_half d, dmin;        /* x = d * scale * q - dmin * minimum */
  uint8_t scales[12];     /* eight 6-bit scales and eight 6-bit minima, per 32 elements */
  uint8_t qs[128];        /* 32 bytes per 64 elements: first 32 low nibbles, next 32 high */
} pe_q4_k;

typedef struct PE_PACKED pe_q5_k {
  pe_half d, dmin;
  uint8_t scales[12];     /* as in Q4_K */
  uint8_t qh[32];         /* bit g of byte j: bit 4 of element 32*g + j */
  uint8_t qs[128];        /* low 4 bits, as in Q4_K */
} pe_q5_k;

typedef struct PE_PACKED pe_q6_k {
  uint8_t ql[128];        /* low 4 bits: 64 bytes per 128 elements */
  uint8_t qh[64];         /* high 2 bits: 32 bytes per 128 elements */
  int8_t scales[16];      /* per 16 elements */
  pe_half d;              /* x = d * scale * (q - 32) */
} pe_q6_k;

typedef struct PE_PACKED pe_iq4_xs {
  pe_half d;              /* x = d * (scale - 32) * value of code q */
  uint16_t scales_h;      /* high two bits of the eight 6-bit scales, group 0 lowest */
  uint8_t scales_l[4];    /* low four bits: byte j holds group 2j low, 2j+1 high */
  uint8_t qs[128];        /* 16 bytes per 32 elements: first 16 low nibbles, next 16 high */
} pe_iq4_xs;

/* ---- 256 elements per block, by codebook ------------------------------------------
 * An entry of a codebook (iq_grids.h) stands for a group of eight elements (IQ3: of four). A
 * scale s counts 2*s + 1. Signs: a bit per element, set for a negative one; IQ2_XXS, IQ2_XS and
 * IQ3_XXS store seven of a group of eight, and the eighth makes their number even. */

typedef struct PE_PACKED pe_iq2_xxs {
  pe_half d;              /* x = d/8 * scale * +-entry */
  struct PE_PACKED {      /* per 32 elements */
    uint8_t qs[4];        /* entries */
    uint32_t signs;       /* four times seven signs, and the scale on top */
  } g[8];
} pe_iq2_xxs;

typedef struct PE_PACKED pe_iq2_xs {
  pe_half d;              /* x = d/8 * scale * +-entry */
  uint16_t qs[32];        /* nine bits entry, seven signs */
  uint8_t scales[8];      /* per 16 elements, low nibble first */
} pe_iq2_xs;

typedef struct PE_PACKED pe_iq2_s {
  pe_half d;              /* x = d/8 * scale * +-entry */
  uint8_t qs[32];         /* low eight bits of the entries */
  uint8_t signs[32];
  uint8_t qh[8];          /* their upper two bits, four groups per byte, lowest first */
  uint8_t scales[8];      /* per 16 elements, low nibble first */
} pe_iq2_s;

typedef struct PE_PACKED pe_iq3_xxs {
  pe_half d;              /* x = d/4 * scale * +-entry */
  uint8_t qs[64];         /* entries */
  uint32_t signs[8];      /* per 32 elements, as in IQ2_XXS */
} pe_iq3_xxs;

typedef struct PE_PACKED pe_iq3_s {
  pe_half d;              /* x = d * scale * +-entry */
  uint8_t qs[64];         /* low eight bits of the entries */
  uint8_t qh[8];          /* the ninth, a bit per entry */
  uint8_t signs[32];
  uint8_t scales[4];      /* per 32 elements, low nibble first */
} pe_iq3_s;

typedef struct PE_PACKED pe_iq1_s {
  pe_half d;              /* x = d * scale * (entry +- 1/8) */
  uint8_t qs[32];         /* low eight bits of the entries */
  uint16_t qh[8];         /* per 32 elements: four times three upper bits, three bits scale, and set for -1/8 */
} pe_iq1_s;

typedef struct PE_PACKED pe_iq1_m {
  uint8_t qs[32];         /* low eight bits of the entries */
  uint8_t qh[16];         /* a nibble per group: three upper bits, and set for -1/8 */
  uint16_t scales[4];     /* four times three bits, per 16 elements; the top nibbles are d, lowest first */
} pe_iq1_m;               /* x = d * scale * (entry +- 1/8) */

typedef struct PE_PACKED pe_tq1_0 {
  uint8_t qs[48];         /* five ternary digits each. First 32 bytes: digit p of byte j is element 32*p + j; */
  uint8_t qh[4];          /* then 16: element 160 + 16*p + j. qh: four, digit p of byte j is element 240 + 4*p + j */
  pe_half d;              /* x = d * (digit - 1); digit p of b is 3*(b*3^p mod 256) / 256 */
} pe_tq1_0;

typedef struct PE_PACKED pe_tq2_0 {
  uint8_t qs[64];         /* 2 bits each, laid out as in Q2_K */
  pe_half d;              /* x = d * (q - 1) */
} pe_tq2_0;

_Static_assert(sizeof(pe_half) == 2, "F16 and BF16 elements");
_Static_assert(sizeof(pe_q4_0) == 18, "Q4_0 block");
_Static_assert(sizeof(pe_q4_1) == 20, "Q4_1 block");
_Static_assert(sizeof(pe_q5_0) == 22, "Q5_0 block");
_Static_assert(sizeof(pe_q5_1) == 24, "Q5_1 block");
_Static_assert(sizeof(pe_q8_0) == 34, "Q8_0 block");
_Static_assert(sizeof(pe_iq4_nl) == 18, "IQ4_NL block");
_Static_assert(sizeof(pe_mxfp4) == 17, "MXFP4 block");
_Static_assert(sizeof(pe_nvfp4) == 36, "NVFP4 block");
_Static_assert(sizeof(pe_q1_0) == 18, "Q1_0 block");
_Static_assert(sizeof(pe_q2_0) == 18, "Q2_0 block");
_Static_assert(sizeof(pe_tq1_0) == 54, "TQ1_0 block");
_Static_assert(sizeof(pe_tq2_0) == 66, "TQ2_0 block");
_Static_assert(sizeof(pe_q2_k) == 84, "Q2_K block");
_Static_assert(sizeof(pe_q3_k) == 110, "Q3_K block");
_Static_assert(sizeof(pe_q4_k) == 144, "Q4_K block");
_Static_assert(sizeof(pe_q5_k) == 176, "Q5_K block");
_Static_assert(sizeof(pe_q6_k) == 210, "Q6_K block");
_Static_assert(sizeof(pe_iq4_xs) == 136, "IQ4_XS block");
_Static_assert(sizeof(pe_iq2_xxs) == 66, "IQ2_XXS block");
_Static_assert(sizeof(pe_iq2_xs) == 74, "IQ2_XS block");
_Static_assert(sizeof(pe_iq2_s) == 82, "IQ2_S block");
_Static_assert(sizeof(pe_iq3_xxs) == 98, "IQ3_XXS block");
_Static_assert(sizeof(pe_iq3_s) == 110, "IQ3_S block");
_Static_assert(sizeof(pe_iq1_s) == 50, "IQ1_S block");
_Static_assert(sizeof(pe_iq1_m) == 56, "IQ1_M block");
_Static_assert(_Alignof(pe_q6_k) == 1 && _Alignof(pe_q4_0) == 1, "blocks may start at any byte");
#endif

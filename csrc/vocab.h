/* vocab.h: a file's vocabulary as hash tables over its own header bytes. Included by vocab.c, bpe.c and split.c only. */
#ifndef PE_VOCAB_H
#define PE_VOCAB_H

#include "pyengine.h"

#include <stdlib.h>
#include <string.h>

enum { PE_UNKNOWN = 2, PE_CONTROL = 3, PE_USER_DEFINED = 4, PE_BYTE = 6 }; /* GGUF's token types */

typedef struct merge { /* ids; its index is its rank */
  int32_t left, right, joined;
} merge;

struct pe_vocab {
  const uint8_t *head;       /* the header, checked by gguf.c */
  const uint64_t *off, *len;
  const uint8_t *types;
  const uint8_t *scores;     /* n floats of any alignment; NULL: BPE */
  int raw;                   /* BPE over characters, not over GPT-2's stand-ins for bytes */
  uint64_t n, longest;       /* longest: bytes of the longest token as spelled in text */
  uint64_t seed0, seed1;
  uint64_t *slots, mask;     /* high half of the hash << 32 | id + 1; 0 is free */
  merge *merges;             /* byte-level BPE, in the file's order */
  uint32_t *merge_slots;     /* index + 1; 0 is free: small enough to stay in the cache */
  uint64_t merge_mask;
  pe_trie *users;            /* sentencepiece's user-defined tokens, read backwards; NULL: none */
  uint8_t *spelled;          /* their texts */
  uint64_t *user_len;
  int32_t *user_ids;
  int32_t byte_ids[256];     /* token of each byte, -1: none */
  uint16_t alphabet[256];    /* GPT-2's stand-ins for bytes, as code points below 0x200 */
};

int pe_split_text(const pe_splitter *s, const uint8_t *text, uint64_t n, uint8_t *c, uint8_t *cut); /* split.c, for bpe.c */

/* n times size and one byte more; NULL also where that passes what a 32-bit machine can name. */
static inline void *pe_alloc(uint64_t n, uint64_t size) {
  return n < PTRDIFF_MAX / size ? malloc((size_t)(n * size + 1)) : NULL;
}

/* Both halves of a product, mixed. */
static inline uint64_t pe_fold(uint64_t a, uint64_t b) {
#ifdef __SIZEOF_INT128__
  unsigned __int128 p = (unsigned __int128)a * b;
  return (uint64_t)p ^ (uint64_t)(p >> 64);
#else
  uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
  uint64_t mid = (a0 * b0 >> 32) + (uint32_t)(a0 * b1) + a1 * b0; /* below 2^64 */
  return a * b ^ (a1 * b1 + (a0 * b1 >> 32) + (mid >> 32));
#endif
}

static inline uint64_t pe_load8(const uint8_t *p) {
  uint64_t x;
  memcpy(&x, p, 8);
  return x;
}

static inline uint64_t pe_load4(const uint8_t *p) {
  uint32_t x;
  memcpy(&x, p, 4);
  return x;
}

/* A text's hash, keyed by the open's random seeds, so that no file can be made to collide. SipHash, which gguf.c
 * takes for a few hundred names, made the million lookups of llama-bpe's merges twice as slow. */
static inline uint64_t pe_text_hash(const pe_vocab *v, const uint8_t *p, uint64_t n) {
  uint64_t h = v->seed0 ^ n, a, b = 0;
  for (; n > 16; p += 16, n -= 16) h = pe_fold(pe_load8(p) ^ v->seed1, pe_load8(p + 8) ^ h);
  if (n >= 8) {
    a = pe_load8(p), b = pe_load8(p + n - 8);
  } else if (n >= 4) {
    a = pe_load4(p), b = pe_load4(p + n - 4);
  } else {
    a = n ? (uint64_t)p[0] << 16 | (uint64_t)p[n / 2] << 8 | p[n - 1] : 0;
  }
  return pe_fold(pe_fold(a ^ v->seed1, b ^ h) ^ v->seed0, 0x9e3779b97f4a7c15u);
}

static inline uint64_t pe_merge_hash(const pe_vocab *v, int32_t left, int32_t right) {
  uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
  return pe_fold(pair ^ v->seed0, v->seed1 | 1) & v->merge_mask;
}

/* The slot that holds the pair, or the free one where it belongs. */
static inline uint64_t pe_merge_slot(const pe_vocab *v, int32_t left, int32_t right) {
  uint64_t j = pe_merge_hash(v, left, right);
  for (; v->merge_slots[j]; j = (j + 1) & v->merge_mask) {
    const merge *m = &v->merges[v->merge_slots[j] - 1];
    if (m->left == left && m->right == right) break;
  }
  return j;
}

/* Bytes of the character that begins with lead, no more than there are. */
static inline uint32_t pe_utf8_length(uint8_t lead, uint64_t left) {
  uint32_t n = lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  return n < left ? n : (uint32_t)left;
}

#endif

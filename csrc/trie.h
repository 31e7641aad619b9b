/* trie.h: all tokens that end at a place of a text, found while it is read once. Included by trie.c, longest.c and
 * unigram.c only. */
#ifndef PE_TRIE_H
#define PE_TRIE_H

#include "vocab.h"

typedef struct node { /* a beginning of tokens; 0 is the empty one */
  uint32_t parent;
  uint32_t fail; /* its longest true suffix that is a node */
  uint32_t link; /* its longest true suffix that is a token; 0: none */
  int32_t id;    /* the token it is; -1: none */
  uint8_t byte;  /* the last of it */
} node;

struct pe_trie {
  const uint64_t *len; /* of the tokens, the caller's */
  node *nodes;
  uint32_t n_nodes;
  uint32_t first[256]; /* children of node 0 */
  uint32_t *slots;     /* children of the others; 0 is free */
  uint64_t mask, seed0, seed1;
};

/* The slot that holds the child, or the free one where it belongs. */
static inline uint32_t *pe_trie_slot(const pe_trie *t, uint32_t at, uint8_t byte) {
  uint64_t j = pe_fold(((uint64_t)at << 8 | byte) ^ t->seed0, t->seed1 | 1) & t->mask;
  for (; t->slots[j]; j = (j + 1) & t->mask) {
    const node *child = &t->nodes[t->slots[j]];
    if (child->parent == at && child->byte == byte) break;
  }
  return &t->slots[j];
}

/* The longest node that what was read so far and byte end with. One step down per byte at most, so as many back. */
static inline uint32_t pe_trie_next(const pe_trie *t, uint32_t at, uint8_t byte) {
  for (; at; at = t->nodes[at].fail) {
    uint32_t child = *pe_trie_slot(t, at, byte);
    if (child) return child;
  }
  return t->first[byte];
}

/* The node of the longest token among its suffixes, itself included; 0: none. Shorter ones follow by link. */
static inline uint32_t pe_trie_token(const pe_trie *t, uint32_t at) { return t->nodes[at].id >= 0 ? at : t->nodes[at].link; }

#endif

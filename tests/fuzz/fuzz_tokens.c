/* fuzz_tokens.c: libFuzzer harness of the vocabularies without merges (csrc/trie.c, longest.c, unigram.c), pure C.
 *
 * An input is a small vocabulary, a charsmap and a text. Promised, and trapped where it does not hold: ids are those of
 * tokens that may be met, no more of them than bytes, and together they are the text where the kind says so; what
 * a charsmap makes is as long as it was counted, and a checked charsmap never fails. */
#include <stdlib.h>
#include <string.h>

#include "pyengine.h"

#define PROMISE(c) do { if (!(c)) __builtin_trap(); } while (0)

enum { TOKENS = 64, TEXT = 4096 };

static uint64_t off[TOKENS], len[TOKENS], n_tokens;
static uint8_t use[TOKENS], types[TOKENS], scores[4 * TOKENS];

static void check_ids(const int32_t *ids, uint64_t n, uint64_t room, int32_t unk) {
  PROMISE(n <= room);
  for (uint64_t i = 0; i < n; i++) PROMISE(ids[i] == unk || (ids[i] >= 0 && (uint64_t)ids[i] < n_tokens && use[ids[i]]) || ids[i] >= 1000);
}

static void check_text(const uint8_t *vocabulary, const int32_t *ids, uint64_t n, const uint8_t *text, uint64_t size) {
  uint64_t at = 0;
  for (uint64_t i = 0; i < n; i++) {
    if (ids[i] >= 1000) {
      PROMISE(at < size && text[at++] == ids[i] - 1000);
      continue;
    }
    uint64_t l = len[ids[i]];
    PROMISE(l <= size - at && !memcmp(text + at, vocabulary + off[ids[i]], l));
    at += l;
  }
  PROMISE(at == size);
}

static void check_map(const uint8_t *map, uint64_t n_map, int flags, const uint8_t *text, uint64_t n) {
  uint64_t why = 0, count = 0, again = 0;
  uint8_t *own = malloc(n_map + 1); /* so that a read behind it is seen */
  memcpy(own, map, n_map);
  int sound = pe_charsmap_check(own, n_map, &why) == PE_OK;
  int e = pe_ugm_normalize(own, n_map, flags & 1, flags >> 1 & 1, flags >> 2 & 1, text, n, NULL, 0, &count);
  PROMISE(!sound || e == PE_OK);
  if (e == PE_OK && count < 1 << 22) {
    uint8_t *out = malloc(count + 1);
    PROMISE(pe_ugm_normalize(own, n_map, flags & 1, flags >> 1 & 1, flags >> 2 & 1, text, n, out, count, &again) == PE_OK);
    PROMISE(again == count);
    free(out);
  }
  free(own);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size < 3) return 0;
  int flags = data[0];
  uint64_t at = 1, facts[3];
  n_tokens = 0;
  while (at < size && data[at] && n_tokens < TOKENS) { /* length 1..31, type, score, text */
    uint64_t l = data[at] & 31;
    if (at + 3 + l > size) break;
    float score = -(float)data[at + 2];
    types[n_tokens] = (uint8_t)(1 + data[at + 1] % 6);
    use[n_tokens] = types[n_tokens] == 1 || types[n_tokens] == 4;
    memcpy(scores + 4 * n_tokens, &score, 4);
    off[n_tokens] = at + 3;
    len[n_tokens++] = l;
    at += 3 + l;
  }
  at++;
  if (at + 2 > size) return 0;
  uint64_t n_map = data[at] | (uint64_t)data[at + 1] << 8;
  at += 2;
  n_map = n_map < size - at ? n_map : size - at;
  const uint8_t *text = data + at + n_map;
  uint64_t n = size - at - n_map < TEXT ? size - at - n_map : TEXT, n_out;
  check_map(data + at, n_map, flags, text, n);

  int32_t byte_ids[256], *ids = malloc((n + 1) * sizeof *ids);
  uint8_t *own = malloc(n + 1);
  memcpy(own, text, n);
  for (int b = 0; b < 256; b++) byte_ids[b] = 1000 + b;
  pe_trie *there, *back;
  PROMISE(pe_trie_new(data, off, len, use, n_tokens, 0, 1, 2, facts, &there) == PE_OK);
  PROMISE(pe_trie_new(data, off, len, use, n_tokens, 1, 3, 4, facts, &back) == PE_OK);
  PROMISE(pe_wpm_encode(back, own, n, -7, ids, &n_out) == PE_OK);
  check_ids(ids, n_out, n, -7);
  int all = pe_rwkv_encode(back, own, n, ids, &n_out) == PE_OK;
  check_ids(ids, n_out, n, -7);
  if (all) check_text(data, ids, n_out, own, n);
  PROMISE(pe_ugm_encode(there, scores, types, own, n, -7, -300, NULL, ids, &n_out) == PE_OK);
  check_ids(ids, n_out, n, -7);
  PROMISE(pe_ugm_encode(there, scores, types, own, n, -7, -300, byte_ids, ids, &n_out) == PE_OK);
  check_ids(ids, n_out, n, -7);
  check_text(data, ids, n_out, own, n);
  PROMISE(pe_plamo_encode(back, scores, own, n, byte_ids, ids, &n_out) == PE_OK);
  check_ids(ids, n_out, n, -7);
  check_text(data, ids, n_out, own, n);
  pe_trie_free(there);
  pe_trie_free(back);
  free(own);
  free(ids);
  return 0;
}

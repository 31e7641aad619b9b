/* longest.c: text to token ids by the longest token, place after place: WordPiece by words, RWKV's by bytes; and where
 * in a text added tokens begin, for bpe.c and control.py.
 *
 * Not the cutting into words and the normalization of WordPiece, which are Python's (wpm.py). The longest token of each
 * place is found by reading backwards (trie.h), so the time is linear whatever the vocabulary: one word of 1 MB, or 1 MB
 * of the beginning of the longest token. */
#include "trie.h"

void pe_trie_longest(const pe_trie *t, const uint8_t *text, uint64_t n, int32_t *best) {
  uint32_t at = 0;
  while (n--) {
    at = pe_trie_next(t, at, text[n]);
    best[n] = t->nodes[pe_trie_token(t, at)].id;
  }
}

uint64_t pe_next_token(const int32_t *best, uint64_t n, uint64_t at) {
  while (at < n && best[at] < 0) at++;
  return at;
}

int pe_wpm_encode(const pe_trie *t, const uint8_t *text, uint64_t n, int32_t unk, int32_t *out, uint64_t *n_out) {
  uint64_t room = 0, count = 0;
  int32_t *best = NULL;
  for (uint64_t start = 0; start < n;) {
    const uint8_t *blank = memchr(text + start, ' ', n - start);
    uint64_t len = blank ? (uint64_t)(blank - text) - start : n - start, first = count, i = 0;
    if (len > room) {
      free(best);
      best = pe_alloc(room = 2 * len, sizeof *best);
      if (!best) return PE_ENOMEM;
    }
    if (len) pe_trie_longest(t, text + start, len, best);
    for (; i < len && best[i] >= 0; i += t->len[best[i]]) out[count++] = best[i];
    if (i < len) { /* one part is in no token: the whole word is unknown */
      count = first;
      out[count++] = unk;
    }
    start += len + 1;
  }
  free(best);
  *n_out = count;
  return PE_OK;
}

int pe_rwkv_encode(const pe_trie *t, const uint8_t *text, uint64_t n, int32_t *out, uint64_t *n_out) {
  uint64_t i = 0, count = 0;
  pe_trie_longest(t, text, n, out); /* ids are never more than the places before them */
  for (; i < n && out[i] >= 0; i += t->len[out[count++]]) out[count] = out[i];
  *n_out = count;
  return i < n ? PE_EINVAL : PE_OK;
}

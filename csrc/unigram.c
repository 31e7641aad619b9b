/* unigram.c: text to token ids by the best sum of scores (Viterbi): sentencepiece's unigram models with their normalizer,
 * and PLaMo-2's.
 *
 * Not sentencepiece's merges (bpe.c). Time is linear in the text times the tokens that are suffixes (or prefixes) of one
 * another, which the caller bounds. Sums are doubles from the text's beginning, as in HF tokenizers and llama.cpp;
 * sentencepiece's own are floats. */
#include "trie.h"

/* ---- the normalizer: longest prefixes to replacements, by darts-clone's double array ---------- */

/* A unit's bits: 0-7 and 31 its label (31 set: a value), 8: a key ends here, 9: offset is shifted by 8, 10-30 offset. */
typedef struct charsmap {
  const uint8_t *units, *strings; /* little-endian, of any alignment */
  uint32_t n_units, n_strings;
} charsmap;

enum { KEY_BYTES = 64, MAX_TEXT = 255, MAX_UNITS = 1 << 20 }; /* of NFKC a replacement has 33 bytes at most */

static inline uint32_t unit(const charsmap *m, uint32_t i) {
  const uint8_t *p = m->units + 4 * (uint64_t)i;
  return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint32_t offset(uint32_t u) { return (u >> 10) << ((u & 1u << 9) >> 6); }
static inline int ends_key(uint32_t u) { return u >> 8 & 1; }

/* Whether the unit at i, if there is one, is that of byte c. */
static inline int is_child(const charsmap *m, uint32_t i, uint8_t c) {
  return i < m->n_units && (unit(m, i) & (1u << 31 | 0xff)) == c;
}

static int split_map(const uint8_t *map, uint64_t n, charsmap *m) {
  if (n < 4 || n > UINT32_MAX) return 0;
  uint32_t size = map[0] | (uint32_t)map[1] << 8 | (uint32_t)map[2] << 16 | (uint32_t)map[3] << 24;
  if (size % 4 || size < 4 || size > n - 4 || size / 4 > MAX_UNITS) return 0;
  *m = (charsmap){map + 4, map + 4 + size, size / 4, (uint32_t)(n - 4 - size)};
  return m->n_strings && !m->strings[m->n_strings - 1]; /* so every string ends */
}

int pe_charsmap_check(const uint8_t *map, uint64_t n, uint64_t *why) {
  charsmap m;
  *why = 1;
  if (!split_map(map, n, &m)) return PE_EINVAL;
  uint8_t *height = calloc(m.n_units, 1); /* longest rest of a key from here, 1 and more; 0: not seen */
  if (!height) return PE_ENOMEM;
  struct {
    uint32_t at, base;
    int c, rest;
  } path[KEY_BYTES + 1] = {{0, offset(unit(&m, 0)), 0, 0}};
  int top = 0;
  *why = 0;
  while (top >= 0 && !*why) { /* depth first; a circle grows too deep */
    if (++path[top].c > 255) {
      int rest = path[top].rest + 1;
      height[path[top].at] = (uint8_t)rest;
      if (--top >= 0 && rest > path[top].rest) path[top].rest = rest;
      continue;
    }
    uint32_t i = path[top].base ^ (uint32_t)path[top].c;
    if (!is_child(&m, i, (uint8_t)path[top].c)) continue;
    uint32_t base = i ^ offset(unit(&m, i));
    if (height[i]) {
      if (height[i] > path[top].rest) path[top].rest = height[i];
      if (top + height[i] > KEY_BYTES) *why = 3;
      continue;
    }
    if (ends_key(unit(&m, i))) {
      uint32_t text = base < m.n_units ? unit(&m, base) & 0x7fffffff : UINT32_MAX;
      if (text >= m.n_strings) *why = 2;
      else if (strnlen((const char *)m.strings + text, MAX_TEXT + 1) > MAX_TEXT) *why = 4;
    }
    if (top == KEY_BYTES) *why = 3;
    if (!*why) {
      path[++top].at = i;
      path[top].base = base;
      path[top].c = path[top].rest = 0;
    }
  }
  free(height);
  return *why ? PE_EINVAL : PE_OK;
}

/* What the text's beginning becomes: its bytes, how many; returns how many bytes of the text it stands for. */
static uint32_t replace(const charsmap *m, const uint8_t *text, uint64_t n, const uint8_t **with, uint32_t *len) {
  uint32_t at = m->n_units ? offset(unit(m, 0)) : 0, used = 0, found = 0;
  for (uint32_t i = 0; m->n_units && i < n && i < KEY_BYTES && text[i]; i++) {
    at ^= text[i];
    if (!is_child(m, at, text[i])) break;
    uint32_t u = unit(m, at);
    at ^= offset(u);
    if (ends_key(u) && at < m->n_units && (unit(m, at) & 0x7fffffff) < m->n_strings) {
      used = i + 1;
      found = unit(m, at) & 0x7fffffff;
    }
  }
  if (used) {
    *with = m->strings + found;
    *len = (uint32_t)strlen((const char *)*with);
    return used;
  }
  *with = text;
  return *len = pe_utf8_length(text[0], n);
}

static const uint8_t blank[3] = {0xe2, 0x96, 0x81}; /* U+2581 */

int pe_ugm_normalize(const uint8_t *map, uint64_t n_map, int merge, int prefix, int first, const uint8_t *text, uint64_t n,
                     uint8_t *out, uint64_t room, uint64_t *n_out) {
  charsmap m = {0};
  uint64_t size = 0;
  if (n_map && !split_map(map, n_map, &m)) return PE_EINVAL;
  int wanted = prefix && first && n;    /* a blank in front; if blanks merge, only before something else */
  int pending = wanted && !merge;       /* blanks to be written before what comes */
  int dropped = merge && first;         /* blanks do not count here */
  for (uint64_t i = 0; i < n;) {
    const uint8_t *with;
    uint32_t len;
    i += replace(&m, text + i, n - i, &with, &len);
    for (uint32_t k = 0; k < len; k++) {
      if (with[k] == ' ' && merge) {
        pending = !dropped;
        continue;
      }
      int blanks = pending + (dropped && wanted);
      pending = dropped = 0;
      if (out && size + 3 * (uint64_t)blanks + (with[k] == ' ' ? 3 : 1) > room) return PE_EINVAL;
      for (; blanks; blanks--, size += 3)
        if (out) memcpy(out + size, blank, 3);
      if (with[k] == ' ') {
        if (out) memcpy(out + size, blank, 3);
        size += 3;
      } else {
        if (out) out[size] = with[k];
        size++;
      }
    }
  }
  if (pending && !merge) { /* all of the text became nothing */
    if (out && room < 3) return PE_EINVAL;
    if (out) memcpy(out, blank, 3);
    size = 3;
  }
  *n_out = size;
  return PE_OK;
}

/* ---- Viterbi ------------------------------------------------------------------------------- */

static inline double score_of(const uint8_t *scores, int32_t id) {
  float score;
  memcpy(&score, scores + 4 * (uint64_t)id, 4);
  return score;
}

typedef struct cell { /* the best way to write the text up to here */
  double sum;
  uint32_t from;
  int32_t id; /* of its last token; -1: a character in no token, NOWHERE: no way */
} cell;

enum { NOWHERE = -2 };

int pe_ugm_encode(const pe_trie *t, const uint8_t *scores, const uint8_t *types, const uint8_t *text, uint64_t n, int32_t unk,
                  double unk_score, const int32_t *byte_ids, int32_t *out, uint64_t *n_out) {
  *n_out = 0;
  if (n > UINT32_MAX - 1) return PE_EINVAL;
  cell *best = pe_alloc(n + 1, sizeof *best);
  if (!best) return PE_ENOMEM;
  best[0] = (cell){0, 0, -1};
  uint32_t at = 0;
  for (uint32_t start = 0; start < n;) {
    uint32_t len = pe_utf8_length(text[start], n - start), end = start + len;
    int whole = 0; /* the character is a token */
    for (uint32_t i = start; i < end; i++) {
      at = pe_trie_next(t, at, text[i]);
      best[i + 1].id = NOWHERE;
    }
    for (uint32_t v = pe_trie_token(t, at); v; v = t->nodes[v].link) { /* longest first: of equal sums the first stays */
      int32_t id = t->nodes[v].id;
      uint32_t from = end - (uint32_t)t->len[id];
      whole |= from == start;
      if (best[from].id == NOWHERE) continue;
      double sum = best[from].sum + (types[id] == PE_USER_DEFINED ? 0.0 : score_of(scores, id));
      if (best[end].id == NOWHERE || sum > best[end].sum) best[end] = (cell){sum, from, id};
    }
    if (!whole) {
      double sum = best[start].sum + unk_score;
      if (best[end].id == NOWHERE || sum > best[end].sum) best[end] = (cell){sum, start, -1};
    }
    start = end;
  }
  uint64_t to = n; /* ids are written from out's end on, and are no more than the bytes they stand for */
  int was_unknown = 0;
  for (uint32_t i = (uint32_t)n; i; i = best[i].from) {
    int unknown = best[i].id < 0;
    if (unknown && byte_ids)
      for (uint32_t k = i; k-- > best[i].from;) out[--to] = byte_ids[text[k]];
    else if (!unknown || !was_unknown)
      out[--to] = unknown ? unk : best[i].id;
    was_unknown = unknown;
  }
  memmove(out, out + to, (n - to) * sizeof *out);
  *n_out = n - to;
  free(best);
  return PE_OK;
}

/* ---- PLaMo-2: from the end to the beginning, whole ten-thousandths ------------------------------ */

enum { PLAMO_UNKNOWN = 10000000, PLAMO_NEVER = 20000000 };

static int64_t ten_thousandths(double score) { /* to nearest, halves away from 0 */
  double x = score * 1e4;
  if (!(x > -PLAMO_NEVER - 1 && x < PLAMO_NEVER)) return -PLAMO_NEVER; /* so that 2^32 of them add up in 64 bits */
  int64_t whole = (int64_t)x;
  double rest = x - (double)whole;
  return whole + (rest >= 0.5) - (rest <= -0.5);
}

int pe_plamo_encode(const pe_trie *t, const uint8_t *scores, const uint8_t *text, uint64_t n, const int32_t *byte_ids, int32_t *out,
                    uint64_t *n_out) {
  typedef struct way { /* the cheapest way to write the text from here on */
    int64_t cost;
    uint32_t to;
    int32_t id; /* -1: bytes */
  } way;
  *n_out = 0;
  if (n > UINT32_MAX - 1) return PE_EINVAL;
  way *best = pe_alloc(n + 1, sizeof *best);
  if (!best) return PE_ENOMEM;
  best[n] = (way){0, (uint32_t)n, -1};
  uint32_t at = 0, end = (uint32_t)n;
  while (end) {
    uint32_t start = end;
    do {
      at = pe_trie_next(t, at, text[--start]);
      best[start].id = NOWHERE;
    } while (start && (text[start] & 0xc0) == 0x80);
    for (uint32_t v = pe_trie_token(t, at); v; v = t->nodes[v].link) {
      int32_t id = t->nodes[v].id;
      uint32_t to = start + (uint32_t)t->len[id];
      int64_t score = ten_thousandths(score_of(scores, id));
      if (score <= -PLAMO_NEVER || best[to].id == NOWHERE) continue;
      int64_t cost = best[to].cost - score;
      if (best[start].id == NOWHERE || cost < best[start].cost) best[start] = (way){cost, to, id};
    }
    if (best[start].id == NOWHERE || best[end].cost + PLAMO_UNKNOWN < best[start].cost)
      best[start] = (way){best[end].cost + PLAMO_UNKNOWN, end, -1};
    end = start;
  }
  for (uint32_t i = 0; i < n; i = best[i].to) {
    if (best[i].id >= 0)
      out[(*n_out)++] = best[i].id;
    else
      for (uint32_t k = i; k < best[i].to; k++) out[(*n_out)++] = byte_ids[text[k]];
  }
  free(best);
  return PE_OK;
}

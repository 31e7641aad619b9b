/* vocab.c: finds token ids by text, and merges by pairs of ids, over the strings of a file's header.
 *
 * Not a tokenizer (bpe.c) and not a reader of files: offsets and lengths come from a header that gguf.c has
 * checked; types and scores are n each. Nothing is copied but user-defined tokens: 128,256 tokens and 280,147
 * merges take 13 MB and 35 ms, where a library took 90 MB and 500 ms. Tables are keyed per open. */
#include "vocab.h"

static const char blank[3] = {'\xe2', '\x96', '\x81'}; /* U+2581, sentencepiece's blank */

/* ---- texts ------------------------------------------------------------------------ */

/* Files keep user-defined sentencepiece tokens with blanks; text has U+2581 for them. */
static uint64_t spell(uint8_t *out, const uint8_t *text, uint64_t n) {
  uint64_t m = 0;
  for (uint64_t i = 0; i < n; i++) {
    if (text[i] == ' ') {
      memcpy(out + m, blank, 3);
      m += 3;
    } else {
      out[m++] = text[i];
    }
  }
  return m;
}

static int is_text(const pe_vocab *v, uint64_t id, const uint8_t *text, uint64_t n) {
  const uint8_t *have = v->head + v->off[id];
  uint64_t len = v->len[id];
  if (!v->scores || v->types[id] != PE_USER_DEFINED) return len == n && !memcmp(have, text, n);
  uint64_t at = 0;
  for (uint64_t i = 0; i < len; i++) {
    uint64_t step = have[i] == ' ' ? 3 : 1;
    if (n - at < step || memcmp(text + at, step == 3 ? (const void *)blank : have + i, step)) return 0;
    at += step;
  }
  return at == n;
}

/* The slot that holds the text, or the free one where it belongs. */
static uint64_t probe(const pe_vocab *v, uint64_t h, const uint8_t *text, uint64_t n) {
  uint64_t j = h & v->mask;
  for (; v->slots[j]; j = (j + 1) & v->mask)
    if (v->slots[j] >> 32 == h >> 32 && is_text(v, (uint32_t)v->slots[j] - 1, text, n)) break;
  return j;
}

int32_t pe_vocab_find(const pe_vocab *v, const uint8_t *text, uint64_t n) {
  if (n == 0 || n > v->longest) return -1;
  uint64_t j = probe(v, pe_text_hash(v, text, n), text, n);
  return (int32_t)(uint32_t)v->slots[j] - 1;
}

/* Texts never become control or unknown tokens, nor byte tokens by their names. */
static int is_met_in_text(const pe_vocab *v, uint64_t id) {
  uint8_t t = v->types[id];
  return v->len[id] && t && t != PE_CONTROL && t != PE_UNKNOWN && !(t == PE_BYTE && (v->scores || v->raw));
}

static int enter_texts(pe_vocab *v, uint64_t *repeats) {
  uint64_t n_users = 0, user_bytes = 0, used = 0, facts[3];
  for (uint64_t i = 0; v->scores && i < v->n; i++) {
    if (v->types[i] != PE_USER_DEFINED) continue;
    n_users++;
    user_bytes += 3 * v->len[i];
  }
  v->spelled = pe_alloc(user_bytes, 1);
  v->user_len = pe_alloc(n_users, sizeof *v->user_len);
  v->user_ids = pe_alloc(n_users, sizeof *v->user_ids);
  uint64_t *off = pe_alloc(n_users, sizeof *off);
  uint8_t *use = pe_alloc(n_users, 1);
  int e = v->spelled && v->user_len && v->user_ids && off && use ? PE_OK : PE_ENOMEM;
  n_users = 0;
  for (uint64_t i = 0; i < v->n && !e; i++) {
    if (!is_met_in_text(v, i)) continue;
    const uint8_t *text = v->head + v->off[i];
    uint64_t len = v->len[i];
    int user = v->scores && v->types[i] == PE_USER_DEFINED;
    if (user) {
      len = spell(v->spelled + used, text, len);
      text = v->spelled + used;
    }
    if (len > UINT32_MAX) e = PE_EINVAL;
    if (len > v->longest) v->longest = len;
    uint64_t h = pe_text_hash(v, text, len);
    uint64_t j = probe(v, h, text, len);
    if (v->slots[j]) { /* of equal texts the lowest id stays */
      if (!repeats[0]++) repeats[1] = i;
      continue;
    }
    v->slots[j] = h >> 32 << 32 | (i + 1);
    if (user) {
      v->user_len[n_users] = len;
      v->user_ids[n_users] = (int32_t)i;
      off[n_users] = used;
      use[n_users++] = 1;
      used += len;
    }
  }
  if (!e && n_users) e = pe_trie_new(v->spelled, off, v->user_len, use, n_users, 1, v->seed0, v->seed1, facts, &v->users);
  free(off);
  free(use);
  return e;
}

/* GPT-2's printable stand-ins for the 256 bytes: Latin-1 where visible, else U+0100 onwards. */
static void find_bytes(pe_vocab *v) {
  uint16_t hidden = 0x100;
  for (int b = 0; b < 256; b++) {
    int visible = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
    uint16_t c = v->alphabet[b] = visible ? (uint16_t)b : hidden++;
    uint8_t text[2] = {(uint8_t)c, 0};
    if (c > 0x7f) text[0] = (uint8_t)(0xc0 | c >> 6), text[1] = (uint8_t)(0x80 | (c & 0x3f));
    v->byte_ids[b] = pe_vocab_find(v, text, c > 0x7f ? 2 : 1);
  }
}

int pe_vocab_new(const uint8_t *head, const uint64_t *off, const uint64_t *len, const uint8_t *types, uint64_t n,
                 const uint8_t *scores, const int32_t *byte_ids, uint64_t seed0, uint64_t seed1, uint64_t *repeats, pe_vocab **out) {
  *out = NULL;
  repeats[0] = repeats[1] = 0;
  if (n > INT32_MAX - 1) return PE_EINVAL;
  pe_vocab *v = calloc(1, sizeof *v);
  if (!v) return PE_ENOMEM;
  *v = (pe_vocab){.head = head, .off = off, .len = len, .types = types, .n = n, .scores = scores, .raw = byte_ids && !scores,
                  .seed0 = seed0, .seed1 = seed1};
  uint64_t size = 8;
  while (size < n + n / 2) size *= 2;
  v->mask = size - 1;
  v->slots = calloc(size, sizeof *v->slots);
  int e = v->slots ? enter_texts(v, repeats) : PE_ENOMEM;
  if (e) {
    pe_vocab_free(v);
    return e;
  }
  if (byte_ids)
    memcpy(v->byte_ids, byte_ids, sizeof v->byte_ids);
  else
    find_bytes(v);
  *out = v;
  return PE_OK;
}

void pe_vocab_free(pe_vocab *v) {
  if (!v) return;
  free(v->slots);
  free(v->merges);
  free(v->merge_slots);
  pe_trie_free(v->users);
  free(v->spelled);
  free(v->user_len);
  free(v->user_ids);
  free(v);
}

void pe_vocab_bytes(const pe_vocab *v, int32_t *ids) { memcpy(ids, v->byte_ids, sizeof v->byte_ids); }

/* ---- merges ------------------------------------------------------------------------- */

enum { BATCH = 16 };

typedef struct parsed { /* a merge's left, right and joined texts and their hashes */
  const uint8_t *text[3];
  uint64_t len[3], hash[3];
} parsed;

/* "left right", cut at the first blank; joined: room for all of it. */
static void parse(const pe_vocab *v, const uint8_t *text, uint64_t n, uint8_t *joined, parsed *p) {
  const uint8_t *cut = memchr(text, ' ', n);
  uint64_t left = cut ? (uint64_t)(cut - text) : n, right = cut ? n - left - 1 : 0;
  memcpy(joined, text, left);
  memcpy(joined + left, text + n - right, right);
  *p = (parsed){{text, text + n - right, joined}, {left, right, left + right}, {0}};
  for (int k = 0; k < 3; k++) {
    p->hash[k] = pe_text_hash(v, p->text[k], p->len[k]);
    __builtin_prefetch(&v->slots[p->hash[k] & v->mask]);
  }
}

/* Looks up the ids; 0, or what is wrong: 1 left, 2 right, 3 joined is no token. */
static uint64_t resolve(const pe_vocab *v, const parsed *p, merge *m) {
  int32_t id[3];
  for (int k = 0; k < 3; k++) {
    id[k] = p->len[k] ? (int32_t)(uint32_t)v->slots[probe(v, p->hash[k], p->text[k], p->len[k])] - 1 : -1;
    if (id[k] < 0) return (uint64_t)k + 1;
  }
  *m = (merge){id[0], id[1], id[2]};
  __builtin_prefetch(&v->merge_slots[pe_merge_hash(v, m->left, m->right)], 1);
  return 0;
}

int pe_vocab_merges(pe_vocab *v, const uint64_t *off, const uint64_t *len, uint64_t n, uint64_t *bad) {
  uint64_t size = 8, longest = 0;
  if (n > UINT32_MAX - 1 || v->merges) return PE_EINVAL;
  while (size < n + n / 2) size *= 2;
  for (uint64_t i = 0; i < n; i++)
    if (len[i] > longest) longest = len[i];
  v->merge_mask = size - 1;
  v->merges = pe_alloc(n + 1, sizeof *v->merges);
  v->merge_slots = calloc(size, sizeof *v->merge_slots);
  uint8_t *joined = pe_alloc(longest, BATCH);
  bad[0] = bad[1] = 0;
  int e = v->merges && v->merge_slots && joined ? PE_OK : PE_ENOMEM;
  for (uint64_t at = 0; !e && at < n; at += BATCH) { /* in passes, so that lookups miss the cache together */
    parsed p[BATCH];
    uint64_t m = n - at < BATCH ? n - at : BATCH, i;
    for (i = 0; i < m; i++) parse(v, v->head + off[at + i], len[at + i], joined + i * longest, &p[i]);
    for (i = 0; i < m && !bad[1]; i++) bad[0] = at + i, bad[1] = resolve(v, &p[i], &v->merges[at + i]);
    m = bad[1] ? i - 1 : m;
    for (i = 0; i < m; i++) {
      const merge *one = &v->merges[at + i];
      uint32_t *slot = &v->merge_slots[pe_merge_slot(v, one->left, one->right)];
      if (*slot) {
        bad[0] = at + i, bad[1] = 4;
        break;
      }
      *slot = (uint32_t)(at + i) + 1;
    }
    if (bad[1]) e = PE_EINVAL;
  }
  free(joined);
  return e;
}

/* ---- facts ---------------------------------------------------------------------------- */

uint64_t pe_vocab_longest(const uint64_t *len, uint64_t n) {
  uint64_t longest = 0;
  for (uint64_t i = 0; i < n; i++)
    if (len[i] > longest) longest = len[i];
  return longest;
}

int64_t pe_vocab_types(const uint8_t *values, uint64_t n, uint8_t *types) {
  for (uint64_t i = 0; i < n; i++) {
    uint32_t t;
    memcpy(&t, values + 4 * i, 4);
    if (t > PE_BYTE) return (int64_t)i;
    types[i] = t ? (uint8_t)t : 1; /* 0 is written by some converters */
  }
  return -1;
}

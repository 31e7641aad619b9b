/* bpe.c: text to token ids by merging neighbours, best pair first, leftmost first among equals.
 *
 * One merge loop, two kinds: byte-level BPE (pairs of ids with a rank; a word at a time) and sentencepiece's
 * (joined texts with a score; whole texts, in which user-defined tokens are found first). Control tokens are
 * Python's, the cutting into words is split.c's. O(n log n) in the length of a word or text. */
#include "vocab.h"

typedef struct symbol { /* at its first byte; the next one begins at end */
  uint32_t end;         /* 0: no symbol begins here */
  uint32_t prev;        /* where the one before begins; itself: none */
  int32_t id;
} symbol;

typedef struct pair { /* two neighbours that may be joined */
  uint64_t key;       /* priority << 32 | start of the left one: the smallest is joined first */
  uint32_t end;       /* of the right one: a stale pair is known by it */
  int32_t id;         /* of both joined */
} pair;

typedef struct work {
  const pe_vocab *v;
  const uint8_t *text;
  symbol *s;
  pair *heap;
  uint64_t n, cap;
} work;

/* ---- the heap ------------------------------------------------------------------------- */

static int push(work *w, pair p) {
  if (w->n == w->cap) {
    uint64_t cap = w->cap ? 2 * w->cap : 64;
    pair *heap = realloc(w->heap, cap * sizeof *heap);
    if (!heap) return PE_ENOMEM;
    w->heap = heap;
    w->cap = cap;
  }
  uint64_t i = w->n++;
  for (; i && w->heap[(i - 1) / 2].key > p.key; i = (i - 1) / 2) w->heap[i] = w->heap[(i - 1) / 2];
  w->heap[i] = p;
  return PE_OK;
}

static pair pop(work *w) {
  pair top = w->heap[0], last = w->heap[--w->n];
  uint64_t i = 0, child;
  while ((child = 2 * i + 1) < w->n) {
    if (child + 1 < w->n && w->heap[child + 1].key < w->heap[child].key) child++;
    if (last.key <= w->heap[child].key) break;
    w->heap[i] = w->heap[child];
    i = child;
  }
  w->heap[i] = last;
  return top;
}

/* ---- merging -------------------------------------------------------------------------- */

/* Higher scores first: the bits of a finite float, mapped to an order of integers. */
static uint32_t priority(const pe_vocab *v, int32_t id) {
  float score;
  uint32_t bits;
  memcpy(&score, v->scores + 4 * (uint64_t)id, 4);
  score += 0.0f; /* -0 and 0 are equal */
  memcpy(&bits, &score, 4);
  return bits & 0x80000000u ? bits : 0x7fffffffu - bits;
}

/* If the symbols at left and behind it join to a token, note the pair. */
static inline int consider(work *w, uint32_t left, uint32_t end) {
  const pe_vocab *v = w->v;
  uint32_t right = w->s[left].end;
  if (right == end) return PE_OK; /* the last one */
  pair p = {.end = w->s[right].end};
  if (v->scores) {
    p.id = pe_vocab_find(v, w->text + left, p.end - left);
    if (p.id < 0) return PE_OK;
    p.key = (uint64_t)priority(v, p.id) << 32 | left;
  } else {
    uint32_t rank = v->merge_slots[pe_merge_slot(v, w->s[left].id, w->s[right].id)];
    if (!rank) return PE_OK;
    p.id = v->merges[rank - 1].joined;
    p.key = (uint64_t)rank << 32 | left;
  }
  return push(w, p);
}

/* Merges the symbols of text[start] to text[end], made before; writes their ids. */
static int merge_all(work *w, uint32_t start, uint32_t end, int32_t *out, uint64_t *n_out) {
  symbol *s = w->s;
  int e = PE_OK;
  w->n = 0;
  for (uint32_t i = start; i < end && !e; i = s[i].end) e = consider(w, i, end);
  while (w->n && !e) {
    pair p = pop(w);
    uint32_t left = (uint32_t)p.key, right = s[left].end;
    if (!right || right >= end || s[right].end != p.end) continue; /* one of them was joined with another */
    s[right].end = 0;
    s[left].end = p.end;
    s[left].id = p.id;
    if (p.end < end) s[p.end].prev = left;
    e = consider(w, left, end);
    if (!e && s[left].prev != left) e = consider(w, s[left].prev, end);
  }
  for (uint32_t i = start; i < end && !e; i = s[i].end) {
    if (s[i].id >= 0) {
      out[(*n_out)++] = s[i].id;
      continue;
    }
    for (uint32_t j = i; j < s[i].end; j++) out[(*n_out)++] = w->v->byte_ids[w->text[j]]; /* byte fallback */
  }
  return e;
}

/* ---- byte-level BPE ---------------------------------------------------------------------- */

/* A whole word that is a token, in GPT-2's stand-ins; -1: it is none. */
static int32_t whole_word(const pe_vocab *v, const uint8_t *text, uint32_t n, uint8_t *room) {
  uint32_t m = 0;
  if (n > v->longest) return -1;
  if (v->raw) return pe_vocab_find(v, text, n);
  for (uint32_t i = 0; i < n; i++) {
    uint16_t c = v->alphabet[text[i]];
    if (c > 0x7f) {
      room[m++] = (uint8_t)(0xc0 | c >> 6);
      room[m++] = (uint8_t)(0x80 | (c & 0x3f));
    } else {
      room[m++] = (uint8_t)c;
    }
  }
  return pe_vocab_find(v, room, m);
}

static int all_newlines(const uint8_t *text, uint32_t n) {
  while (n && text[n - 1] == '\n') n--;
  return n == 0;
}

/* The symbols of a word before any is merged: its bytes, or its characters, of which some may be no tokens. */
static int begin(work *w, uint32_t n) {
  const pe_vocab *v = w->v;
  for (uint32_t j = 0, prev = 0, len; j < n; prev = j, j += len) {
    len = v->raw ? pe_utf8_length(w->text[j], n - j) : 1;
    w->s[j] = (symbol){j + len, prev, v->raw ? pe_vocab_find(v, w->text + j, len) : v->byte_ids[w->text[j]]};
    if (w->s[j].id < 0 && !v->raw) return PE_EINVAL; /* checked by the caller, who names the byte */
    for (uint32_t k = 1; k < len; k++) w->s[j + k].end = 0;
  }
  return PE_OK;
}

int pe_bpe_encode(const pe_vocab *v, const uint8_t *text, uint64_t n, const pe_splitter *s, int whole, int32_t *out,
                  uint64_t *n_out) {
  uint64_t longest = 0;
  *n_out = 0;
  if (n >= UINT32_MAX || v->scores || !v->merges) return PE_EINVAL;
  if (!n) return PE_OK;
  uint8_t *cut = pe_alloc(n, 2), *room = pe_alloc(v->longest, 2); /* cut: n + 1 places and n of room */
  int e = cut && room ? pe_split_text(s, text, n, cut + n + 1, cut) : PE_ENOMEM;
  for (uint64_t a = 0, b; a < n && !e; a = b) {
    b = (uint64_t)((uint8_t *)memchr(cut + a + 1, 1, n - a) - cut);
    if (b - a > longest) longest = b - a;
  }
  work w = {.v = v, .text = text, .s = e ? NULL : pe_alloc(longest, sizeof *w.s)};
  if (!e && !w.s) e = PE_ENOMEM;
  for (uint64_t a = 0, b; a < n && !e; a = b) {
    b = (uint64_t)((uint8_t *)memchr(cut + a + 1, 1, n - a) - cut);
    uint32_t len = (uint32_t)(b - a);
    w.text = text + a;
    int32_t id = whole == 1 || (whole == 2 && all_newlines(w.text, len)) ? whole_word(v, w.text, len, room) : -1;
    if (id >= 0) {
      out[(*n_out)++] = id;
      continue;
    }
    e = begin(&w, len);
    if (!e) e = merge_all(&w, 0, len, out, n_out);
  }
  free(w.s);
  free(w.heap);
  free(cut);
  free(room);
  return e;
}

/* ---- sentencepiece -------------------------------------------------------------------------- */

int pe_spm_encode(const pe_vocab *v, const uint8_t *text, uint64_t n, int32_t *out, uint64_t *n_out) {
  *n_out = 0;
  if (n > UINT32_MAX || !v->scores) return PE_EINVAL;
  work w = {.v = v, .text = text, .s = pe_alloc(n, sizeof *w.s)};
  int e = w.s ? PE_OK : PE_ENOMEM;
  uint32_t start = 0, prev = 0, at = 0; /* start: of the stretch without user-defined tokens */
  if (!e && v->users) pe_trie_longest(v->users, text, n, out); /* ids are never more than the bytes before them */
  while (at < n && !e) {
    int32_t user = v->users ? out[at] : -1;
    if (user >= 0) {
      e = merge_all(&w, start, at, out, n_out);
      out[(*n_out)++] = v->user_ids[user];
      prev = start = at += (uint32_t)v->user_len[user];
      continue;
    }
    uint32_t len = pe_utf8_length(text[at], n - at);
    w.s[at] = (symbol){at + len, prev, pe_vocab_find(v, text + at, len)};
    for (uint32_t j = 1; j < len; j++) w.s[at + j].end = 0;
    prev = at;
    at += len;
  }
  if (!e) e = merge_all(&w, start, (uint32_t)n, out, n_out);
  free(w.s);
  free(w.heap);
  return e;
}

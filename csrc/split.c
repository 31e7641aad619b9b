/* split.c: cuts text into the words that byte-level BPE merges within, by the rules of a pre-tokenizer.
 *
 * Not a library of regular expressions: rules.py has made a short program of each rule of pre.py, whose loops are runs
 * of one set of characters. Those run here without recursion, over one class byte per character. A run remembers where
 * it ended and from which places the rest failed, so every rule is linear in the text: HF's tokenizers held the
 * interpreter's lock for 7 s over 1.6 MB, and took minutes for 100 KB of digits under one rule. Included: unicode.h. */
#include "vocab.h"
#include "unicode.h"

enum { MATCH, ONE, RUN, KEEP, ALT, JUMP, NOT, END, CUT };  /* rules.py has the same order; KEEP is a run that gives nothing back */
enum { SEARCH, THREES };                                   /* stages */
enum { MORE = 0xff, MAX_SETS = 64, MAX_CLASSES = 255, DEPTH = 32, PAGES = 0x110000 / 256 };

typedef struct op {
  uint32_t kind, a, b, c; /* ONE, RUN, KEEP, NOT: a is the set; runs: b to c characters. ALT: else go to a; b is a set that
                           * the next character has to be in, or NO_SET. JUMP, CUT: a is an address */
} op;

enum { NO_SET = MAX_SETS };

typedef struct stage {
  uint32_t kind, start, end, first; /* SEARCH: ops from start to end; first: what a match begins with. THREES: first is the set
                                     * of digits, start: 1 cuts behind a number, 2 before one of whole threes */
} stage;

struct pe_splitter {
  uint32_t n_stages, n_ops;
  stage *stages;
  op *ops;
  uint16_t page[PAGES];
  uint8_t *pages;                   /* the class of each code point, in shared pages of 256 */
  uint8_t member[MAX_SETS + 1][256]; /* by class; MORE is in every set, so that runs go over the rest of a character */
};

typedef struct memory { /* of one run in one piece of text */
  uint32_t piece;          /* which: it begins at piece - 1 */
  uint32_t lo, hi;         /* all of the set from lo to hi, and there it ends */
  uint32_t bad_lo, bad_hi; /* from these places, ends included, the rest of the rule is known to fail; bad_hi 0: none */
} memory;

typedef struct entry { /* where to go on if the rest fails */
  uint32_t at, lo, hi, top; /* of an ALT: the address, the place in lo; of a run: its own address, and the places left to try */
  int run;
} entry;

enum { N_RUNS = sizeof pe_unicode_runs / sizeof *pe_unicode_runs };

const uint32_t *pe_unicode_classes(uint64_t *n) {
  *n = N_RUNS;
  return pe_unicode_runs;
}

/* ---- making one ------------------------------------------------------------------------------- */

typedef struct set { /* a class mask and ranges, then minus, then negate; negate 2: plus are ranges of sets before, and it is all of them */
  uint32_t mask, negate, n_plus, n_minus;
  const uint32_t *plus, *minus;
} set;

static int in_ranges(const uint32_t *r, uint32_t n, uint32_t cp) {
  for (uint32_t i = 0; i < n; i++)
    if (r[2 * i] <= cp && cp <= r[2 * i + 1]) return 1;
  return 0;
}

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* Code points that the same sets hold are one class. Fills page, pages and member. */
static int make_classes(pe_splitter *s, const set *sets, uint32_t n_sets, uint32_t n_ranges) {
  uint64_t known[MAX_CLASSES];
  uint32_t n_known = 0, n_cuts = 0, run = 0, n_pages = 0;
  uint32_t *cuts = pe_alloc(N_RUNS + 2 * (uint64_t)n_ranges + 1, sizeof *cuts);
  uint8_t *class = pe_alloc(0x110000, 1);
  int e = cuts && class ? PE_OK : PE_ENOMEM;
  if (!e) {
    for (uint32_t i = 0; i < N_RUNS; i++) cuts[n_cuts++] = pe_unicode_runs[i] >> 3;
    for (uint32_t i = 0; i < n_sets; i++) {
      for (uint32_t j = 0; j < sets[i].n_plus; j++) cuts[n_cuts++] = sets[i].plus[2 * j], cuts[n_cuts++] = sets[i].plus[2 * j + 1] + 1;
      for (uint32_t j = 0; j < sets[i].n_minus; j++) cuts[n_cuts++] = sets[i].minus[2 * j], cuts[n_cuts++] = sets[i].minus[2 * j + 1] + 1;
    }
    qsort(cuts, n_cuts, sizeof *cuts, by_value);
    cuts[n_cuts] = 0x110000;
  }
  for (uint32_t i = 0; i < n_cuts && !e; i++) {
    uint32_t cp = cuts[i], k = 0;
    if (cp == cuts[i + 1] || cp >= 0x110000) continue;
    while (run + 1 < N_RUNS && pe_unicode_runs[run + 1] >> 3 <= cp) run++;
    uint64_t in = 0;
    for (uint32_t j = 0; j < n_sets; j++) {
      if (sets[j].negate == 2) {
        for (uint32_t k = 0; k < j; k++) in |= (uint64_t)((in >> k & 1) && in_ranges(sets[j].plus, sets[j].n_plus, k)) << j;
        continue;
      }
      int here = (sets[j].mask >> (pe_unicode_runs[run] & 7) & 1) || in_ranges(sets[j].plus, sets[j].n_plus, cp);
      here = (here && !in_ranges(sets[j].minus, sets[j].n_minus, cp)) != (int)sets[j].negate;
      in |= (uint64_t)here << j;
    }
    while (k < n_known && known[k] != in) k++;
    if (k == MAX_CLASSES) {
      e = PE_EINVAL;
      break;
    }
    if (k == n_known) known[n_known++] = in;
    memset(class + cp, (int)k, cuts[i + 1] - cp);
  }
  for (uint32_t i = 0; i < PAGES && !e; i++) { /* of about 4352 pages 200 differ */
    uint32_t k = 0;
    while (k < n_pages && memcmp(s->pages + 256 * k, class + 256 * i, 256)) k++;
    if (k == n_pages) {
      uint8_t *more = realloc(s->pages, 256 * (n_pages + 1));
      if (more) memcpy((s->pages = more) + 256 * n_pages++, class + 256 * i, 256);
      else e = PE_ENOMEM;
    }
    s->page[i] = (uint16_t)k;
  }
  for (uint32_t j = 0; j < n_sets; j++)
    for (uint32_t k = 0; k < n_known; k++) s->member[j][k] = known[k] >> j & 1;
  for (uint32_t j = 0; j <= MAX_SETS; j++) s->member[j][MORE] = 1;
  memset(s->member[NO_SET], 1, 256);
  free(cuts);
  free(class);
  return e;
}

static int read_sets(const uint32_t *words, uint64_t n, set *sets, uint32_t *n_sets, uint32_t *n_ranges) {
  for (uint64_t at = 0; at < n;) {
    if (*n_sets == MAX_SETS || n - at < 4) return PE_EINVAL;
    const uint32_t *w = words + at;
    uint64_t left = n - at - 4;
    if (w[1] > 2 || w[2] > left / 2 || w[3] > left / 2 - w[2]) return PE_EINVAL;
    sets[(*n_sets)++] = (set){w[0], w[1], w[2], w[3], w + 4, w + 4 + 2 * w[2]};
    for (uint32_t i = 0; i < 2 * (w[2] + w[3]); i++)
      if (w[4 + i] > 0x10ffff) return PE_EINVAL;
    *n_ranges += w[2] + w[3];
    at += 4 + 2 * (uint64_t)(w[2] + w[3]);
  }
  return PE_OK;
}

/* Addresses and sets are of the program; what loops is CUT's to bound. */
static int is_sound(const pe_splitter *s, uint32_t n_sets) {
  for (uint32_t i = 0; i < s->n_stages; i++) {
    const stage *g = &s->stages[i];
    if (g->kind > THREES || g->first >= n_sets) return 0;
    if (g->kind == THREES) continue;
    if (g->start >= g->end || g->end > s->n_ops || s->ops[g->end - 1].kind != MATCH) return 0;
    for (uint32_t j = g->start; j < g->end; j++) {
      const op *o = &s->ops[j];
      int to = o->kind == ALT || o->kind == JUMP || o->kind == CUT, of = o->kind >= ONE && o->kind <= KEEP;
      if (o->kind > CUT || (to && (o->a < g->start || o->a >= g->end)) || ((of || o->kind == NOT) && o->a >= n_sets)) return 0;
      if (o->kind == ALT && o->b >= n_sets && o->b != NO_SET) return 0;
    }
  }
  return 1;
}

int pe_splitter_new(const uint32_t *sets, uint64_t n_set_words, const uint32_t *stages, uint64_t n_stages, const uint32_t *ops,
                    uint64_t n_ops, pe_splitter **out) {
  set read[MAX_SETS];
  uint32_t n_sets = 0, n_ranges = 0;
  *out = NULL;
  if (n_stages > 64 || n_ops > 65536 || n_set_words > 65536) return PE_EINVAL;
  pe_splitter *s = calloc(1, sizeof *s);
  if (!s) return PE_ENOMEM;
  s->n_stages = (uint32_t)n_stages;
  s->n_ops = (uint32_t)n_ops;
  s->stages = pe_alloc(n_stages, sizeof *s->stages);
  s->ops = pe_alloc(n_ops, sizeof *s->ops);
  int e = s->stages && s->ops ? read_sets(sets, n_set_words, read, &n_sets, &n_ranges) : PE_ENOMEM;
  if (!e) {
    memcpy(s->stages, stages, n_stages * sizeof *s->stages);
    memcpy(s->ops, ops, n_ops * sizeof *s->ops);
    e = is_sound(s, n_sets) ? make_classes(s, read, n_sets, n_ranges) : PE_EINVAL;
  }
  if (e)
    pe_splitter_free(s);
  else
    *out = s;
  return e;
}

void pe_splitter_free(pe_splitter *s) {
  if (!s) return;
  free(s->stages);
  free(s->ops);
  free(s->pages);
  free(s);
}

/* ---- matching ---------------------------------------------------------------------------------- */

/* The class of each character at its first byte, MORE at the others; a byte that is no UTF-8 is U+FFFD. */
static void classify(const pe_splitter *s, const uint8_t *text, uint64_t n, uint8_t *c) {
  const uint8_t *ascii = s->pages + 256 * s->page[0];
  for (uint64_t i = 0; i < n;) {
    uint32_t lead = text[i], len = lead < 0xc2 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4, cp = lead;
    if (lead < 0x80) {
      c[i++] = ascii[lead];
      continue;
    }
    int bad = lead < 0xc2 || lead > 0xf4 || len > n - i;
    for (uint32_t k = 1; k < len && !bad; k++) bad = (text[i + k] & 0xc0) != 0x80;
    if (!bad) {
      cp = lead & (0xff >> (len + 1));
      for (uint32_t k = 1; k < len; k++) cp = cp << 6 | (text[i + k] & 0x3f);
    }
    if (bad || cp > 0x10ffff) cp = 0xfffd, len = 1;
    c[i] = s->pages[256 * s->page[cp >> 8] + (cp & 0xff)];
    for (uint32_t k = 1; k < len; k++) c[i + k] = MORE;
    i += len;
  }
}

static inline uint32_t after(const uint8_t *c, uint32_t i, uint32_t end) {
  do i++; while (i < end && c[i] == MORE);
  return i;
}

static inline uint32_t before(const uint8_t *c, uint32_t i) {
  do i--; while (c[i] == MORE);
  return i;
}

/* The end of the match that begins at pos in the piece that ends at end; pos itself: none, as no rule matches nothing. */
static uint32_t match(const pe_splitter *s, const stage *g, const uint8_t *c, uint32_t piece, uint32_t pos, uint32_t end,
                      memory *mem) {
  entry stack[DEPTH];
  uint32_t depth = 0, at = g->start, start = pos;
  for (;;) {
    const op *o = &s->ops[at];
    const uint8_t *in = s->member[o->a < MAX_SETS ? o->a : NO_SET];
    uint32_t lo = pos, hi = pos, top, i;
    switch (o->kind) {
    case MATCH:
      return pos;
    case ONE:
      if (pos == end || !in[c[pos]]) break;
      pos = after(c, pos, end);
      at++;
      continue;
    case RUN:
    case KEEP:
      if (o->c == UINT32_MAX) { /* as far as it goes, which may be known */
        memory *m = &mem[at - g->start];
        if (m->piece != piece + 1) *m = (memory){.piece = piece + 1};
        if (pos < m->lo || pos >= m->hi) {
          while (hi < end && in[c[hi]]) hi++;
          m->lo = pos;
          m->hi = hi;
        }
        hi = top = m->hi;
        if (o->b) {
          if (hi == pos) break;
          lo = after(c, pos, end);
        }
        if (o->kind == RUN && m->bad_hi && m->bad_lo <= hi && hi <= m->bad_hi) {
          if (m->bad_lo <= lo) break;
          hi = before(c, m->bad_lo);
        }
      } else {
        for (i = 0; i < o->c && hi < end && in[c[hi]]; i++) {
          hi = after(c, hi, end);
          if (i + 1 == o->b) lo = hi;
        }
        if (i < o->b) break;
        top = hi;
      }
      if (o->kind == RUN && hi > lo) {
        if (depth == DEPTH) return start;
        stack[depth++] = (entry){at, lo, hi, top, 1};
      }
      pos = hi;
      at++;
      continue;
    case ALT:
      if (o->b != NO_SET && (pos == end || !s->member[o->b][c[pos]])) {
        at = o->a;
        continue;
      }
      if (depth == DEPTH) return start;
      stack[depth++] = (entry){o->a, pos, 0, 0, 0};
      at++;
      continue;
    case JUMP:
      at = o->a;
      continue;
    case NOT:
      if (pos < end && in[c[pos]]) break;
      at++;
      continue;
    case END:
      if (pos < end) break;
      at++;
      continue;
    case CUT: /* a round of a loop is done: what it could have tried else is dropped, its own way out included */
      while (depth && (stack[depth - 1].run || stack[depth - 1].at != o->a)) depth--;
      if (depth) depth--;
      at++;
      continue;
    }
    for (;;) { /* failed here: the last place where something else could be done */
      if (!depth) return start;
      entry *t = &stack[depth - 1];
      if (!t->run) {
        pos = t->lo;
        at = t->at;
        depth--;
        break;
      }
      memory *m = &mem[t->at - g->start];
      int endless = s->ops[t->at].c == UINT32_MAX;
      if (t->hi > t->lo) {
        t->hi = before(c, t->hi);
        if (endless && m->bad_hi && m->bad_lo <= t->hi && t->hi <= m->bad_hi) t->hi = m->bad_lo <= t->lo ? t->lo : before(c, m->bad_lo);
        if (!(endless && m->bad_hi && m->bad_lo <= t->hi && t->hi <= m->bad_hi)) {
          pos = t->hi;
          at = t->at + 1;
          break;
        }
      }
      if (endless) { /* all from lo to top failed */
        int joins = m->bad_hi && m->bad_lo <= t->top && t->lo <= m->bad_hi;
        m->bad_lo = joins && m->bad_lo < t->lo ? m->bad_lo : t->lo;
        m->bad_hi = joins && m->bad_hi > t->top ? m->bad_hi : t->top;
      }
      depth--;
    }
  }
}

/* ---- stages: each cuts the pieces that the one before it left ---------------------------------- */

static void search(const pe_splitter *s, const stage *g, const uint8_t *c, uint8_t *cut, uint32_t a, uint32_t b, memory *mem) {
  const uint8_t *first = s->member[g->first];
  for (uint32_t pos = a; pos < b;) {
    if (c[pos] == MORE || !first[c[pos]]) {
      pos++;
      continue;
    }
    uint32_t end = match(s, g, c, a, pos, b, mem);
    if (end == pos) {
      pos = after(c, pos, b);
      continue;
    }
    cut[pos] = cut[end] = 1;
    pos = end;
  }
}

/* Digits in threes from the right. */
static void threes(const pe_splitter *s, const stage *g, const uint8_t *c, uint8_t *cut, uint32_t a, uint32_t b) {
  const uint8_t *in = s->member[g->first];
  for (uint32_t pos = a; pos < b;) {
    if (c[pos] == MORE || !in[c[pos]]) {
      pos++;
      continue;
    }
    uint32_t n = 0, start = pos, end = pos;
    for (; end < b && in[c[end]]; end++) n += c[end] != MORE;
    for (; pos < end; pos = after(c, pos, b), n--)
      if (n % 3 == 0 && (pos > start || g->start & 2)) cut[pos] = 1;
    if (g->start & 1) cut[end] = 1;
  }
}

/* cut[i]: a word begins at byte i; n + 1 bytes, so that the end is one too. c: n bytes of room. */
int pe_split_text(const pe_splitter *s, const uint8_t *text, uint64_t n, uint8_t *c, uint8_t *cut) {
  uint32_t most = 1;
  if (n >= UINT32_MAX) return PE_EINVAL;
  for (uint32_t i = 0; i < s->n_stages; i++)
    if (s->stages[i].kind == SEARCH && s->stages[i].end - s->stages[i].start > most) most = s->stages[i].end - s->stages[i].start;
  memory *mem = pe_alloc(most, sizeof *mem);
  if (!mem) return PE_ENOMEM;
  classify(s, text, n, c);
  memset(cut, 0, n + 1);
  cut[0] = cut[n] = 1;
  for (uint32_t i = 0; i < s->n_stages; i++) {
    memset(mem, 0, most * sizeof *mem); /* what was remembered is of another rule */
    for (uint32_t a = 0, b; a < n; a = b) {
      b = (uint32_t)((uint8_t *)memchr(cut + a + 1, 1, n - a) - cut);
      if (s->stages[i].kind == SEARCH)
        search(s, &s->stages[i], c, cut, a, b, mem);
      else
        threes(s, &s->stages[i], c, cut, a, b);
    }
  }
  free(mem);
  return PE_OK;
}

int pe_split(const pe_splitter *s, const uint8_t *text, uint64_t n, uint32_t *lengths, uint64_t *n_words) {
  *n_words = 0;
  if (n >= UINT32_MAX) return PE_EINVAL;
  uint8_t *cut = pe_alloc(n, 2);
  int e = cut ? pe_split_text(s, text, n, cut + n + 1, cut) : PE_ENOMEM;
  for (uint64_t a = 0, b; a < n && !e; a = b, (*n_words)++) {
    b = (uint64_t)((uint8_t *)memchr(cut + a + 1, 1, n - a) - cut);
    if (lengths) lengths[*n_words] = (uint32_t)(b - a);
  }
  free(cut);
  return e;
}

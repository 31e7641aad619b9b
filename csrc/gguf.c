/* gguf.c: from the bytes of a GGUF file's header to a flat index of keys and tensors.
 * The only code that reads untrusted bytes. It does not interpret keys (except
 * general.alignment, which places the data), map files or touch weights.
 *
 * The header is read with pread into private memory, in growing pieces, and only
 * that copy is parsed, so another process that rewrites the file cannot change
 * what was checked. Rules: every length is compared with what is left by
 * subtraction, sums and products go through __builtin_*_overflow, nothing is
 * allocated on the word of a count alone, and no assert stands on input. */
#include "pyengine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pread.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are read in host order");
/* Python unpacks both arrays by these layouts. */
_Static_assert(sizeof(pe_gguf_key) == 20, "pe_gguf_key layout");
_Static_assert(sizeof(pe_gguf_tensor) == 48, "pe_gguf_tensor layout");

enum { T_BOOL = 7, T_STRING = 8, T_ARRAY = 9, T_LAST = 12, T_U32 = 4 };
static const uint8_t type_bytes[T_LAST + 1] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* The smallest entry: a key of no bytes with a one-byte value; a tensor without name and dimensions.
 * Both are refused later by their own names, so the bound stays below them. */
enum { KEY_MIN = 13, TENSOR_MIN = 24 };

typedef struct scan {
  pe_gguf *g;
  int fd;
  uint64_t pos;            /* next byte, <= g->head_len */
  uint64_t cap;            /* bytes allocated for g->head */
  int32_t in;              /* what is being read, for errors */
  uint64_t index, name, name_len;
} scan;

static int fail(scan *s, int code, uint64_t at, uint64_t found, uint64_t limit) {
  pe_gguf *g = s->g;
  g->e_code = code;
  g->e_in = s->in;
  g->e_index = s->index;
  g->e_at = at;
  g->e_found = found;
  g->e_limit = limit;
  g->e_name = s->name;
  g->e_name_len = s->name_len;
  return code;
}

/* ---- the private copy ---------------------------------------------------------- */

#ifndef PE_GGUF_FIRST_READ /* the fuzzer sets 64, so that its small files grow the copy too */
#define PE_GGUF_FIRST_READ 65536
#endif

/* Extend the copy to at least `want` bytes; want <= file size and <= PE_GGUF_HEADER_MAX.
 * A quarter more than now each time: a 12 MB header takes some 25 reads, and
 * at most a quarter of it is read beyond its end. */
static int grow(scan *s, uint64_t want) {
  pe_gguf *g = s->g;
  uint64_t most = g->file_size < PE_GGUF_HEADER_MAX ? g->file_size : PE_GGUF_HEADER_MAX;
  uint64_t cap = g->head_len + g->head_len / 4;
  if (cap < PE_GGUF_FIRST_READ) cap = PE_GGUF_FIRST_READ;
  if (cap < want) cap = want;
  if (cap > most) cap = most;
  if (cap > s->cap) {
    uint8_t *head = realloc(g->head, cap);
    if (!head) return fail(s, PE_ENOMEM, s->pos, cap, 0);
    g->head = head;
    s->cap = cap;
  }
  while (g->head_len < cap) {
    int64_t n = pe_pread(s->fd, g->head + g->head_len, cap - g->head_len, g->head_len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(s, PE_GGUF_EREAD, g->head_len, (uint64_t)errno, 0);
    if (n == 0) break; /* cut since its size was taken */
    g->head_len += (uint64_t)n;
  }
  if (g->head_len < want) return fail(s, PE_GGUF_ETRUNCATED, s->pos, g->head_len - s->pos, want - s->pos);
  return PE_OK;
}

static uint64_t left(const scan *s) { return s->g->file_size - s->pos; }

/* Make n bytes at pos present. */
static inline int need(scan *s, uint64_t n) {
  if (n <= s->g->head_len - s->pos) return PE_OK;
  if (n > left(s)) return fail(s, PE_GGUF_ETRUNCATED, s->pos, left(s), n);
  if (n > PE_GGUF_HEADER_MAX - s->pos) return fail(s, PE_GGUF_EHEADER, s->pos, 0, PE_GGUF_HEADER_MAX);
  return grow(s, s->pos + n);
}

static int take_u32(scan *s, uint32_t *v) {
  int e = need(s, 4);
  if (e) return e;
  memcpy(v, s->g->head + s->pos, 4);
  s->pos += 4;
  return PE_OK;
}

static inline int take_u64(scan *s, uint64_t *v) {
  int e = need(s, 8);
  if (e) return e;
  memcpy(v, s->g->head + s->pos, 8);
  s->pos += 8;
  return PE_OK;
}

/* A length and that many bytes; pos ends behind them. */
static inline int take_string(scan *s, uint64_t *start, uint64_t *len) {
  uint64_t at = s->pos;
  int e = take_u64(s, len);
  if (e) return e;
  if (*len > left(s)) return fail(s, PE_GGUF_ESTRINGLEN, at, *len, left(s));
  e = need(s, *len);
  if (e) return e;
  *start = s->pos;
  s->pos += *len;
  return PE_OK;
}

/* A key or a tensor name: bounded and printable ASCII. */
static int take_name(scan *s, uint64_t max, int elen, int ebyte) {
  uint64_t at = s->pos, len, start;
  int e = take_u64(s, &len);
  if (e) return e;
  if (len == 0 || len > max) return fail(s, elen, at, len, max);
  s->pos = at;
  e = take_string(s, &start, &len);
  if (e) return e;
  s->name = start;
  s->name_len = len;
  for (uint64_t i = 0; i < len; i++) {
    uint8_t b = s->g->head[start + i];
    if (b < 0x20 || b > 0x7e) return fail(s, ebyte, start + i, b, 0);
  }
  return PE_OK;
}

static int check_bools(scan *s, uint64_t n) {
  for (uint64_t i = 0; i < n; i++) {
    uint8_t b = s->g->head[s->pos + i];
    if (b > 1) return fail(s, PE_GGUF_EBOOL, s->pos + i, b, 0);
  }
  return PE_OK;
}

/* ---- names: a hash table keyed per open, so that no file can be made to collide ---- */

#define ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define SIP_ROUND                                                             \
  do {                                                                        \
    v0 += v1; v1 = ROTL(v1, 13); v1 ^= v0; v0 = ROTL(v0, 32);                  \
    v2 += v3; v3 = ROTL(v3, 16); v3 ^= v2;                                    \
    v0 += v3; v3 = ROTL(v3, 21); v3 ^= v0;                                    \
    v2 += v1; v1 = ROTL(v1, 17); v1 ^= v2; v2 = ROTL(v2, 32);                  \
  } while (0)

/* SipHash-1-3. */
static uint64_t hash(uint64_t k0, uint64_t k1, const uint8_t *p, uint64_t n) {
  uint64_t v0 = k0 ^ 0x736f6d6570736575u, v1 = k1 ^ 0x646f72616e646f6du;
  uint64_t v2 = k0 ^ 0x6c7967656e657261u, v3 = k1 ^ 0x7465646279746573u;
  uint64_t tail = n << 56, i = 0;
  for (; n - i >= 8; i += 8) {
    uint64_t m;
    memcpy(&m, p + i, 8);
    v3 ^= m;
    SIP_ROUND;
    v0 ^= m;
  }
  for (unsigned b = 0; i < n; i++, b += 8) tail |= (uint64_t)p[i] << b;
  v3 ^= tail;
  SIP_ROUND;
  v0 ^= tail;
  v2 ^= 0xff;
  SIP_ROUND;
  SIP_ROUND;
  SIP_ROUND;
  return v0 ^ v1 ^ v2 ^ v3;
}

static void name_of(const pe_gguf *g, int in, uint64_t i, uint64_t *start, uint64_t *len) {
  *start = (in == PE_GGUF_IN_KEY ? g->keys[i].at : g->tensors[i].at) + (uint64_t)8;
  *len = in == PE_GGUF_IN_KEY ? g->keys[i].key_len : g->tensors[i].name_len;
}

/* The slot that holds the name, or the free one where it belongs. */
static uint64_t probe(const pe_gguf *g, int in, const uint32_t *slots, uint64_t mask, const uint8_t *p, uint64_t n) {
  uint64_t j = hash(g->seed0, g->seed1, p, n) & mask;
  for (; slots[j]; j = (j + 1) & mask) {
    uint64_t start, len;
    name_of(g, in, slots[j] - 1, &start, &len);
    if (len == n && !memcmp(g->head + start, p, n)) break;
  }
  return j;
}

/* Enter all names; refuse the second of two equal ones. At most half the slots are used. */
static int index_names(scan *s, int in, uint64_t n, uint32_t **slots, uint64_t *mask) {
  const pe_gguf *g = s->g;
  uint64_t size = 8;
  while (size < 2 * n) size *= 2;
  *slots = calloc(size, sizeof **slots);
  if (!*slots) return fail(s, PE_ENOMEM, s->pos, size * sizeof **slots, 0);
  *mask = size - 1;
  for (uint64_t i = 0; i < n; i++) {
    uint64_t start, len;
    name_of(g, in, i, &start, &len);
    uint32_t *slot = *slots + probe(g, in, *slots, *mask, g->head + start, len);
    if (*slot) {
      s->in = in;
      s->index = i;
      s->name = start;
      s->name_len = len;
      uint64_t first, ignored;
      name_of(g, in, *slot - 1, &first, &ignored);
      return fail(s, in == PE_GGUF_IN_KEY ? PE_GGUF_EKEYDUP : PE_GGUF_ENAMEDUP, start - 8, first - 8, 0);
    }
    *slot = (uint32_t)i + 1;
  }
  return PE_OK;
}

/* ---- keys ------------------------------------------------------------------------ */

static int scan_array(scan *s, pe_gguf_key *k) {
  uint64_t at = s->pos, count;
  uint32_t elem;
  int e = take_u32(s, &elem);
  if (e) return e;
  if (elem == T_ARRAY) return fail(s, PE_GGUF_ENESTED, at, elem, 0);
  if (elem > T_LAST) return fail(s, PE_GGUF_EELEMTYPE, at, elem, 0);
  at = s->pos;
  e = take_u64(s, &count);
  if (e) return e;
  uint64_t each = elem == T_STRING ? 8 : type_bytes[elem];
  if (count > left(s) / each) return fail(s, PE_GGUF_EARRAYLEN, at, count, left(s) / each);
  k->elem = (uint8_t)elem;
  k->val = (uint32_t)s->pos; /* pos never exceeds PE_GGUF_HEADER_MAX */
  if (elem == T_STRING) {
    for (uint64_t i = 0; i < count; i++) {
      uint64_t start, len;
      e = take_string(s, &start, &len);
      if (e) return e;
    }
  } else {
    e = need(s, count * each); /* at most left(s): no overflow */
    if (!e && elem == T_BOOL) e = check_bools(s, count);
    if (e) return e;
    s->pos += count * each;
  }
  k->count = (uint32_t)count; /* each element took at least a byte of the header */
  return PE_OK;
}

static int scan_value(scan *s, pe_gguf_key *k) {
  uint64_t at = s->pos, start, len;
  uint32_t type;
  int e = take_u32(s, &type);
  if (e) return e;
  if (type > T_LAST) return fail(s, PE_GGUF_EVALTYPE, at, type, 0);
  k->type = (uint8_t)type;
  k->elem = 255;
  k->count = 1;
  if (type == T_ARRAY) {
    e = scan_array(s, k);
    if (e) return e;
  } else if (type == T_STRING) {
    e = take_string(s, &start, &len);
    if (e) return e;
    k->val = (uint32_t)start;
    k->count = (uint32_t)len;
  } else {
    e = need(s, type_bytes[type]);
    if (!e && type == T_BOOL) e = check_bools(s, 1);
    if (e) return e;
    k->val = (uint32_t)s->pos;
    s->pos += type_bytes[type];
  }
  k->end = (uint32_t)s->pos;
  return PE_OK;
}

/* Room for one more entry: doubling, so memory follows what was read and not what was claimed. */
static void *room(void *array, uint64_t n, uint64_t *cap, size_t size) {
  if (n < *cap) return array;
  uint64_t more = *cap ? *cap * 2 : 64;
  void *p = realloc(array, more * size);
  if (p) *cap = more;
  return p;
}

static int scan_keys(scan *s, uint64_t n) {
  pe_gguf *g = s->g;
  uint64_t cap = 0;
  s->in = PE_GGUF_IN_KEY;
  for (uint64_t i = 0; i < n; i++) {
    s->index = i;
    s->name_len = 0;
    pe_gguf_key *keys = room(g->keys, i, &cap, sizeof *keys);
    if (!keys) return fail(s, PE_ENOMEM, s->pos, 2 * cap * sizeof *keys, 0);
    g->keys = keys;
    pe_gguf_key *k = &keys[i];
    memset(k, 0, sizeof *k);
    k->at = (uint32_t)s->pos;
    int e = take_name(s, PE_GGUF_KEY_MAX, PE_GGUF_EKEYLEN, PE_GGUF_EKEYBYTE);
    if (e) return e;
    k->key_len = (uint16_t)s->name_len;
    e = scan_value(s, k);
    if (e) return e;
    g->n_keys = i + 1;
  }
  return index_names(s, PE_GGUF_IN_KEY, n, &g->slots, &g->slot_mask);
}

static int scan_alignment(scan *s) {
  static const char key[] = "general.alignment";
  pe_gguf *g = s->g;
  g->alignment = 32;
  int64_t i = pe_gguf_find(g, key, sizeof key - 1);
  if (i < 0) return PE_OK;
  const pe_gguf_key *k = &g->keys[i];
  s->in = PE_GGUF_IN_KEY;
  s->index = (uint64_t)i;
  s->name = k->at + (uint64_t)8;
  s->name_len = k->key_len;
  if (k->type != T_U32) return fail(s, PE_GGUF_EALIGNTYPE, k->at, k->type, 0);
  uint32_t a;
  memcpy(&a, g->head + k->val, 4);
  /* below 8, data may lie at odd addresses; above 65536 no writer goes */
  if (a < 8 || a > 65536 || (a & (a - 1))) return fail(s, PE_GGUF_EALIGN, k->val, a, 0);
  g->alignment = a;
  return PE_OK;
}

/* ---- tensors --------------------------------------------------------------------- */

/* One entry; t->offset is still relative to the data. */
static int scan_tensor(scan *s, pe_gguf_tensor *t) {
  t->at = (uint32_t)s->pos;
  int e = take_name(s, PE_GGUF_NAME_MAX, PE_GGUF_ENAMELEN, PE_GGUF_ENAMEBYTE);
  if (e) return e;
  t->name_len = (uint8_t)s->name_len;
  uint64_t at = s->pos, elements = 1, dim;
  uint32_t n_dims, type;
  e = take_u32(s, &n_dims);
  if (e) return e;
  if (n_dims < 1 || n_dims > 4) return fail(s, PE_GGUF_ENDIMS, at, n_dims, 0);
  t->n_dims = (uint8_t)n_dims;
  for (uint32_t d = 0; d < 4; d++) t->dims[d] = 1;
  for (uint32_t d = 0; d < n_dims; d++) {
    at = s->pos;
    e = take_u64(s, &dim);
    if (e) return e;
    if (dim < 1 || dim > PE_GGUF_DIM_MAX) return fail(s, PE_GGUF_EDIM, at, dim, d);
    t->dims[d] = (uint32_t)dim;
    if (__builtin_mul_overflow(elements, dim, &elements)) return fail(s, PE_GGUF_ESIZE, at, dim, d);
  }
  at = s->pos;
  e = take_u32(s, &type);
  if (e) return e;
  const pe_type *ty = type <= INT32_MAX ? pe_type_by_id((int32_t)type) : NULL;
  if (!ty) return fail(s, PE_GGUF_ETENSORTYPE, at, type, 0);
  t->type = (int32_t)type;
  if (t->dims[0] % (uint32_t)ty->block) return fail(s, PE_GGUF_EBLOCK, at, t->dims[0], (uint64_t)ty->block);
  if (__builtin_mul_overflow(elements / (uint64_t)ty->block, (uint64_t)ty->bytes, &t->nbytes) || t->nbytes > INT64_MAX)
    return fail(s, PE_GGUF_ESIZE, at, elements, 0);
  return take_u64(s, &t->offset);
}

static int scan_tensors(scan *s, uint64_t n) {
  pe_gguf *g = s->g;
  uint64_t cap = 0, mask;
  s->in = PE_GGUF_IN_TENSOR;
  for (uint64_t i = 0; i < n; i++) {
    s->index = i;
    s->name_len = 0;
    pe_gguf_tensor *tensors = room(g->tensors, i, &cap, sizeof *tensors);
    if (!tensors) return fail(s, PE_ENOMEM, s->pos, 2 * cap * sizeof *tensors, 0);
    g->tensors = tensors;
    memset(&tensors[i], 0, sizeof *tensors);
    int e = scan_tensor(s, &tensors[i]);
    if (e) return e;
    g->n_tensors = i + 1;
  }
  uint32_t *slots;
  int e = index_names(s, PE_GGUF_IN_TENSOR, n, &slots, &mask);
  free(slots);
  return e;
}

typedef struct extent {
  uint64_t start, index;
} extent;

static int by_start(const void *a, const void *b) {
  uint64_t x = ((const extent *)a)->start, y = ((const extent *)b)->start;
  return x < y ? -1 : x > y;
}

static int fail_tensor(scan *s, uint64_t i, int code, uint64_t found, uint64_t limit) {
  const pe_gguf_tensor *t = &s->g->tensors[i];
  s->in = PE_GGUF_IN_TENSOR;
  s->index = i;
  s->name = t->at + (uint64_t)8;
  s->name_len = t->name_len;
  return fail(s, code, t->at, found, limit);
}

/* Every tensor lies inside the file, aligned, and apart from the others. */
static int place_tensors(scan *s) {
  pe_gguf *g = s->g;
  uint64_t n = g->n_tensors, a = g->alignment, need_size = 0, last = 0;
  g->data_at = (s->pos + (a - 1)) & ~(a - 1); /* pos <= 2^28 */
  if (!n) return PE_OK;
  for (uint64_t i = 0; i < n; i++) {
    pe_gguf_tensor *t = &g->tensors[i];
    uint64_t offset = t->offset, end;
    if (offset % a) return fail_tensor(s, i, PE_GGUF_EOFFALIGN, offset, a);
    if (__builtin_add_overflow(g->data_at, offset, &t->offset) ||
        __builtin_add_overflow(t->offset, t->nbytes, &end) || end > INT64_MAX)
      return fail_tensor(s, i, PE_GGUF_EOFFRANGE, offset, 0);
    if (end > need_size) {
      need_size = end;
      last = i;
    }
  }
  if (need_size > g->file_size) return fail_tensor(s, last, PE_GGUF_ESHORT, g->file_size, need_size);
  extent *order = malloc(n * sizeof *order);
  if (!order) return fail(s, PE_ENOMEM, s->pos, n * sizeof *order, 0);
  for (uint64_t i = 0; i < n; i++) order[i] = (extent){g->tensors[i].offset, i};
  qsort(order, n, sizeof *order, by_start);
  int e = PE_OK;
  for (uint64_t i = 1; i < n && !e; i++) {
    const pe_gguf_tensor *before = &g->tensors[order[i - 1].index];
    if (order[i].start < before->offset + before->nbytes)
      e = fail_tensor(s, order[i].index, PE_GGUF_EOVERLAP, order[i - 1].index, 0);
  }
  free(order);
  return e;
}

/* ---- the file -------------------------------------------------------------------- */

static int scan_file(scan *s) {
  pe_gguf *g = s->g;
  uint32_t magic;
  uint64_t n_tensors, n_keys;
  int e = take_u32(s, &magic);
  if (e) return e;
  if (magic != 0x46554747u) return fail(s, PE_GGUF_EMAGIC, 0, magic, 0); /* "GGUF" */
  e = take_u32(s, &g->version);
  if (e) return e;
  uint32_t swapped = __builtin_bswap32(g->version);
  if (swapped >= 1 && swapped <= 3) return fail(s, PE_GGUF_EENDIAN, 4, swapped, 0);
  if (g->version < 2 || g->version > 3) return fail(s, PE_GGUF_EVERSION, 4, g->version, 0);
  e = take_u64(s, &n_tensors);
  if (!e) e = take_u64(s, &n_keys);
  if (e) return e;
  if (n_keys > left(s) / KEY_MIN) return fail(s, PE_GGUF_EKEYS, 16, n_keys, left(s) / KEY_MIN);
  uint64_t most = left(s) / TENSOR_MIN;
  if (most > PE_GGUF_TENSORS_MAX) most = PE_GGUF_TENSORS_MAX;
  if (n_tensors > most) return fail(s, PE_GGUF_ETENSORS, 8, n_tensors, most);
  e = scan_keys(s, n_keys);
  if (!e) e = scan_alignment(s);
  if (!e) e = scan_tensors(s, n_tensors);
  if (!e) e = place_tensors(s);
  if (e) return e;
  uint8_t *head = realloc(g->head, s->pos); /* give back what was read beyond the header */
  if (head) g->head = head;
  g->head_len = s->pos;
  return PE_OK;
}

int pe_gguf_open(int fd, uint64_t file_size, uint64_t seed0, uint64_t seed1, pe_gguf **out) {
  pe_gguf *g = *out = calloc(1, sizeof *g);
  if (!g) return PE_ENOMEM;
  g->file_size = file_size;
  g->seed0 = seed0;
  g->seed1 = seed1;
  scan s = {.g = g, .fd = fd, .in = PE_GGUF_IN_HEADER};
  return scan_file(&s);
}

void pe_gguf_free(pe_gguf *g) {
  if (!g) return;
  free(g->head);
  free(g->keys);
  free(g->tensors);
  free(g->slots);
  free(g);
}

int64_t pe_gguf_find(const pe_gguf *g, const char *key, uint64_t len) {
  if (!g->slots) return -1;
  uint64_t j = probe(g, PE_GGUF_IN_KEY, g->slots, g->slot_mask, (const uint8_t *)key, len);
  return (int64_t)g->slots[j] - 1;
}

int pe_gguf_strings(const pe_gguf *g, uint64_t key, uint64_t *off, uint64_t *len) {
  if (key >= g->n_keys || g->keys[key].elem != T_STRING) return PE_EINVAL;
  uint64_t pos = g->keys[key].val;
  for (uint32_t i = 0; i < g->keys[key].count; i++) {
    memcpy(&len[i], g->head + pos, 8);
    off[i] = pos + 8;
    pos += 8 + len[i]; /* scanned before, in the same private bytes */
  }
  return PE_OK;
}

/* fuzz_gguf.c: libFuzzer harness of the GGUF header scanner (csrc/gguf.c), pure C.
 *
 * An input is a file. It is scanned through a memfd, as a real one is, and what the
 * scanner accepts is then used as Python uses it: every value, name, string and tensor
 * is checked to lie where the index says. A violated promise traps; so the fuzzer looks
 * for wrong indexes too, not only for bad reads.
 *
 * The mutator knows GGUF's shape: it walks the header and changes one field (a count,
 * length, type, dimension, offset) to a value from the border of its range, copies or
 * drops a whole entry and adjusts the count. Half of the mutations are libFuzzer's own. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pyengine.h"

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);

#define PROMISE(c) do { if (!(c)) __builtin_trap(); } while (0)

static const uint64_t bytes_of[13] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

static void touch(const uint8_t *p, uint64_t n) { /* read every byte, for ASan */
  volatile uint8_t last;
  for (uint64_t i = 0; i < n; i++) last = p[i];
  (void)last;
}

static void use_key(const pe_gguf *g, uint64_t i) {
  const pe_gguf_key *k = &g->keys[i];
  PROMISE(k->at >= 24 && k->key_len >= 1);
  PROMISE((uint64_t)k->at + 8 + k->key_len + 4 <= k->val && k->val <= k->end && k->end <= g->head_len);
  for (uint32_t j = 0; j < k->key_len; j++) PROMISE(g->head[k->at + 8 + j] >= 0x20 && g->head[k->at + 8 + j] < 0x7f);
  PROMISE(pe_gguf_find(g, (const char *)g->head + k->at + 8, k->key_len) == (int64_t)i); /* no duplicates */
  PROMISE(k->type <= 12 && (k->type == 9) == (k->elem <= 12) && k->elem != 9);
  touch(g->head + k->val, k->end - k->val);
  uint64_t n = k->end - k->val;
  if (k->type == 8) PROMISE(n == k->count);
  else if (k->type != 9) PROMISE(n == bytes_of[k->type] && k->count == 1);
  else if (k->elem != 8) PROMISE(n == bytes_of[k->elem] * k->count);
  if (k->type == 7 || (k->type == 9 && k->elem == 7))
    for (uint64_t j = 0; j < n; j++) PROMISE(g->head[k->val + j] <= 1);
  uint64_t *table = malloc(16 * (uint64_t)k->count + 16);
  PROMISE(table);
  if (k->type == 9 && k->elem == 8) {
    PROMISE(pe_gguf_strings(g, i, table, table + k->count) == PE_OK);
    uint64_t pos = k->val;
    for (uint32_t j = 0; j < k->count; j++) {
      PROMISE(table[j] == pos + 8 && table[k->count + j] <= k->end - table[j]);
      pos = table[j] + table[k->count + j];
    }
    PROMISE(pos == k->end);
  } else {
    PROMISE(pe_gguf_strings(g, i, table, table) == PE_EINVAL);
  }
  free(table);
}

static void use_tensor(const pe_gguf *g, uint64_t i) {
  const pe_gguf_tensor *t = &g->tensors[i];
  const pe_type *ty = pe_type_by_id(t->type);
  PROMISE(ty && t->n_dims >= 1 && t->n_dims <= 4 && t->name_len >= 1 && t->name_len <= PE_GGUF_NAME_MAX);
  PROMISE((uint64_t)t->at + 8 + t->name_len <= g->head_len);
  unsigned __int128 n = 1;
  for (int d = 0; d < 4; d++) {
    PROMISE(t->dims[d] >= 1 && t->dims[d] <= PE_GGUF_DIM_MAX && (d < t->n_dims || t->dims[d] == 1));
    n *= t->dims[d];
  }
  PROMISE(t->dims[0] % (uint32_t)ty->block == 0);
  PROMISE(t->nbytes == n / (uint32_t)ty->block * (uint32_t)ty->bytes && t->nbytes > 0);
  PROMISE(t->offset >= g->data_at && t->offset % g->alignment == 0);
  PROMISE(t->offset <= g->file_size && t->nbytes <= g->file_size - t->offset);
  for (uint64_t j = 0; j < i && j < 16; j++) {
    const pe_gguf_tensor *u = &g->tensors[j];
    PROMISE(u->offset + u->nbytes <= t->offset || t->offset + t->nbytes <= u->offset);
    PROMISE(u->name_len != t->name_len || memcmp(g->head + u->at + 8, g->head + t->at + 8, t->name_len));
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int fd = -1;
  if (fd < 0) fd = memfd_create("gguf", 0);
  if (fd < 0 || ftruncate(fd, (off_t)size) || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
  /* now and then the size lies: the file was cut after it was taken */
  uint64_t told = size && data[size - 1] == 0xa5 ? size + 4096 : size;
  pe_gguf *g;
  int code = pe_gguf_open(fd, told, 1, 2, &g);
  PROMISE(g);
  if (code) {
    PROMISE(code == g->e_code && code >= PE_GGUF_EMAGIC && code <= PE_GGUF_EOVERLAP);
    PROMISE(g->e_name_len == 0 || (g->e_name <= g->head_len && g->e_name_len <= g->head_len - g->e_name));
    PROMISE(g->e_at <= told && g->e_in >= PE_GGUF_IN_HEADER && g->e_in <= PE_GGUF_IN_TENSOR);
    if (g->e_code == PE_GGUF_EOVERLAP) PROMISE(g->e_found < g->n_tensors && g->e_found != g->e_index);
  } else {
    PROMISE((g->version == 2 || g->version == 3) && g->head_len >= 24 && g->head_len <= size);
    PROMISE(g->alignment >= 8 && g->alignment <= 65536 && !(g->alignment & (g->alignment - 1)));
    PROMISE(g->data_at >= g->head_len && g->data_at - g->head_len < g->alignment);
    for (uint64_t i = 0; i < g->n_keys; i++) use_key(g, i);
    for (uint64_t i = 0; i < g->n_tensors; i++) use_tensor(g, i);
    PROMISE(pe_gguf_find(g, "", 0) == -1);
  }
  pe_gguf_free(g);
  return 0;
}

/* ---- the mutator ------------------------------------------------------------------- */

typedef struct field { /* a number in the file */
  size_t at;
  int bytes;
} field;

typedef struct entry { /* a key or tensor, whole */
  size_t at, end;
  int tensor;
} entry;

enum { FIELDS = 512, ENTRIES = 128 };

typedef struct walk {
  const uint8_t *p;
  size_t n, pos;
  field f[FIELDS];
  entry e[ENTRIES];
  int nf, ne, ok;
} walk;

static uint64_t take(walk *w, int bytes) {
  uint64_t v = 0;
  if (!w->ok || w->n - w->pos < (size_t)bytes) return w->ok = 0;
  memcpy(&v, w->p + w->pos, bytes);
  if (w->nf < FIELDS) w->f[w->nf++] = (field){w->pos, bytes};
  w->pos += bytes;
  return v;
}

static void skip(walk *w, uint64_t n) {
  if (!w->ok || n > w->n - w->pos) w->ok = 0;
  else w->pos += n;
}

static void walk_value(walk *w, uint64_t type) {
  if (type == 8) skip(w, take(w, 8));
  else if (type == 9) {
    uint64_t elem = take(w, 4), n = take(w, 8);
    if (elem > 12) w->ok = 0;
    if (elem == 9) w->ok = 0;
    for (uint64_t i = 0; w->ok && i < n && i < 64; i++) walk_value(w, elem);
    if (w->ok && n > 64) {
      if (elem == 8 || n > w->n) w->ok = 0;
      else skip(w, (n - 64) * bytes_of[elem]);
    }
  } else if (type <= 12) {
    take(w, (int)bytes_of[type]);
  } else w->ok = 0;
}

static void walk_file(walk *w) {
  w->ok = 1;
  skip(w, 4);
  take(w, 4);
  uint64_t tensors = take(w, 8), keys = take(w, 8);
  for (uint64_t i = 0; w->ok && i < keys + tensors && i < 4096; i++) {
    size_t at = w->pos;
    skip(w, take(w, 8));
    if (i < keys) {
      walk_value(w, take(w, 4));
    } else {
      uint64_t dims = take(w, 4);
      for (uint64_t d = 0; w->ok && d < dims && d < 8; d++) take(w, 8);
      take(w, 4);
      take(w, 8);
    }
    if (w->ok && w->ne < ENTRIES) w->e[w->ne++] = (entry){at, w->pos, i >= keys};
  }
}

static uint64_t rng;
static uint64_t draw(uint64_t n) {
  rng ^= rng << 13;
  rng ^= rng >> 7;
  rng ^= rng << 17;
  return rng % n;
}

static uint64_t border(uint64_t old, size_t size) {
  static const uint64_t v[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 14, 16, 31, 32, 33, 63, 64, 65, 96, 128, 255, 256, 257, 4096, 65535,
                               65536, 131072, 0x7fffffff, 0x80000000, 0x80000001, 0xffffffff, 1ull << 32, 1ull << 61,
                               (1ull << 61) + 1, 1ull << 62, INT64_MAX, 1ull << 63, UINT64_MAX - 31, UINT64_MAX - 7, UINT64_MAX};
  switch (draw(6)) {
    case 0: return old + 1;
    case 1: return old - 1;
    case 2: return old ^ (1ull << draw(64));
    case 3: return size + draw(17) - 8;
    default: return v[draw(sizeof v / sizeof v[0])];
  }
}

static void bump(uint8_t *data, int tensor, int64_t by) {
  uint64_t n;
  memcpy(&n, data + (tensor ? 8 : 16), 8);
  n += (uint64_t)by;
  memcpy(data + (tensor ? 8 : 16), &n, 8);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed) {
  rng = seed * 0x9e3779b97f4a7c15ull + 1;
  for (int i = 0; i < 4; i++) draw(2);
  if (draw(2) || size < 24) return LLVMFuzzerMutate(data, size, max);
  static walk w;
  memset(&w, 0, sizeof w);
  w.p = data;
  w.n = size;
  walk_file(&w);
  if (w.ne && !draw(3)) {
    entry e = w.e[draw(w.ne)];
    size_t len = e.end - e.at;
    if (draw(2)) { /* drop it */
      memmove(data + e.at, data + e.end, size - e.end);
      bump(data, e.tensor, -1);
      return size - len;
    }
    if (len > max - size) return size;
    entry to = w.e[draw(w.ne)];
    size_t at = to.tensor == e.tensor ? to.at : e.end;
    uint8_t *copy = malloc(len);
    PROMISE(copy);
    memcpy(copy, data + e.at, len);
    memmove(data + at + len, data + at, size - at);
    memcpy(data + at, copy, len);
    free(copy);
    if (draw(4) && len > 9) data[at + 8] ^= 1 + draw(3); /* another name, mostly */
    bump(data, e.tensor, 1);
    return size + len;
  }
  if (!w.nf) return LLVMFuzzerMutate(data, size, max);
  for (uint64_t n = 1 + draw(2); n; n--) {
    field f = w.f[draw(w.nf)];
    uint64_t old = 0;
    memcpy(&old, data + f.at, f.bytes);
    old = border(old, size);
    memcpy(data + f.at, &old, f.bytes);
  }
  return size;
}

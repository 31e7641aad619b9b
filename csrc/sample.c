/* sample.c: from a row of logits to a token. Passes over the vocabulary, selection, the draw.
 * Not a policy: what the parameters mean to a user, and their limits, stand in pyengine/sampling.py.
 * Called by Python only; uses exp, log and sums of the tier's table, whose bits are equal on all tiers.
 *
 * No full sort: one pass finds the maximum of every 128 ids. The k-th largest of those maxima bounds
 * the k-th largest logit from below, so top_k sorts the few ids above that bound. Nucleus, min-p and
 * typical without top_k sort what lies above a bound that is lowered until it was low enough; the
 * bound never shows in the result. A candidate is one integer, (order key << 32 | id): ascending is
 * best first, ties by lowest id.
 *
 * At 262,144 ids on a 2.x GHz core: top_k 40, top_p, min_p 0.07 ms; greedy 0.06; without top_k 0.2;
 * a top list 0.14 more (exponentials of all); typical_p without top_k 1.5 to 5. */
#include "kernel.h"

#include <string.h>

enum { BLOCK = 128, SUM_BLOCK = 4096, DIGIT = 11, BINS = 1 << DIGIT };

typedef struct buffers {
  float *copy;       /* [n] adjusted logits */
  float *best;       /* [n/BLOCK + 1] maximum of each block */
  uint64_t *cand;    /* [n] */
  uint64_t *other;   /* [n] the sort's second array */
  uint64_t *third;   /* [n] typical_p only */
  float *d, *p;      /* [n] each: distance from the best, and its exponential */
} buffers;

static int64_t up64(int64_t n) { return (n + 63) & ~(int64_t)63; }

int64_t pe_sample_scratch(int64_t n) {
  if (n < 1 || n > INT32_MAX) return -1;
  return 64 + 3 * up64(4 * n) + 3 * up64(8 * n) + up64(4 * (n / BLOCK + 1));
}

static buffers carve(void *scratch, int64_t n) {
  uint8_t *at = (uint8_t *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
  buffers b;
  b.cand = (uint64_t *)at, at += up64(8 * n);
  b.other = (uint64_t *)at, at += up64(8 * n);
  b.third = (uint64_t *)at, at += up64(8 * n);
  b.copy = (float *)at, at += up64(4 * n);
  b.d = (float *)at, at += up64(4 * n);
  b.p = (float *)at, at += up64(4 * n);
  b.best = (float *)at;
  return b;
}

/* ---- the coin ------------------------------------------------------------------ */

/* Philox4x32-10 of Salmon et al. (2011): key = seed, counter = (position, sequence, use). */
double pe_coin(uint64_t seed, uint32_t sequence, uint64_t position, uint32_t use) {
  uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = sequence, c3 = use;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)b, c3 = (uint32_t)a, c0 = n0, c2 = n2;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return (double)((((uint64_t)c0 << 32) | c1) >> 11) * 0x1p-53;
}

/* ---- order ------------------------------------------------------------------------ */

/* Ascending for unsigned integers as the floats descend; -0 and +0 are one value. */
static inline uint32_t key_of(float x) {
  uint32_t u;
  x += 0.0f;
  memcpy(&u, &x, 4);
  return u & 0x80000000u ? u : ~u & 0x7fffffffu;
}

static inline float value_of(uint64_t cand) {
  uint32_t k = (uint32_t)(cand >> 32), u = k & 0x80000000u ? k : ~k & 0x7fffffffu;
  float x;
  memcpy(&x, &u, 4);
  return x;
}

static inline uint64_t pack(uint32_t key, int64_t id) { return (uint64_t)key << 32 | (uint32_t)id; }

/* Sorts a[0..m) ascending by the upper half; the lower halves are in order already where the upper ones
 * are equal, and every step is stable. */
static void sort(uint64_t *a, uint64_t *other, int64_t m) {
  if (m <= 32) {
    for (int64_t i = 1; i < m; i++) {
      uint64_t x = a[i];
      int64_t j = i;
      for (; j > 0 && a[j - 1] > x; j--) a[j] = a[j - 1];
      a[j] = x;
    }
    return;
  }
  uint64_t *src = a, *dst = other;
  for (int shift = 32; shift < 64; shift += DIGIT) {
    uint32_t start[BINS] = {0};
    for (int64_t i = 0; i < m; i++) start[(src[i] >> shift) & (BINS - 1)]++;
    if (start[(src[0] >> shift) & (BINS - 1)] == (uint32_t)m) continue; /* one digit for all */
    uint32_t sum = 0;
    for (int i = 0; i < BINS; i++) {
      uint32_t n = start[i];
      start[i] = sum;
      sum += n;
    }
    for (int64_t i = 0; i < m; i++) dst[start[(src[i] >> shift) & (BINS - 1)]++] = src[i];
    uint64_t *t = src;
    src = dst, dst = t;
  }
  if (src != a) memcpy(a, src, (size_t)m * sizeof *a);
}

/* The k-th largest of x[0..n), 1 <= k <= n, by its digits from the top. */
static float kth_largest(const float *x, int64_t n, int64_t k) {
  static const int shift[3] = {21, 10, 0}, width[3] = {11, 11, 10};
  uint32_t prefix = 0, known = 0;
  for (int step = 0; step < 3; step++) {
    uint32_t count[BINS] = {0}, mask = (1u << width[step]) - 1;
    for (int64_t i = 0; i < n; i++) {
      uint32_t u = key_of(x[i]);
      if ((u & known) == prefix) count[(u >> shift[step]) & mask]++;
    }
    uint32_t digit = 0;
    while (count[digit] < k) k -= count[digit++];
    prefix |= digit << shift[step];
    known |= mask << shift[step];
  }
  return value_of((uint64_t)prefix << 32);
}

/* ---- passes over the vocabulary ------------------------------------------------------ */

/* Four lanes by the compiler's vector types: SSE2, NEON or whatever the target has. A loop over plain
 * floats is not turned into vectors (0.18 ms per 262,144 ids against 0.06). */
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));

static inline f4 max4(f4 a, f4 b) {
  i4 gt = a > b;
  return (f4)(((i4)a & gt) | ((i4)b & ~gt));
}

/* Fills best[] with the maximum of each block of BLOCK ids, returns the overall one in *max.
 * PE_ENONFINITE if a value is NaN or infinite; minus_inf lets -inf pass (a masked id). */
static int scan(const float *x, int64_t n, int minus_inf, float *best, float *max) {
  const float inf = __builtin_inff();
  float all = -inf;
  uint32_t nan = 0, bad = 0;
  i4 nan4 = {0}, bad4 = {0};
  for (int64_t b = 0; b < n; b += BLOCK) {
    f4 m[4];
    for (int j = 0; j < 4; j++) m[j] = (f4){-inf, -inf, -inf, -inf};
    int64_t i = b, end = b + BLOCK < n ? b + BLOCK : n;
    for (; i + 16 <= end; i += 16)
      for (int j = 0; j < 4; j++) {
        f4 v;
        memcpy(&v, x + i + 4 * j, 16);
        m[j] = max4(v, m[j]);     /* a NaN is not greater: found below */
        bad4 |= (i4)(v - v);      /* +0 if finite, else NaN */
        nan4 |= v != v;
      }
    m[0] = max4(max4(m[2], m[0]), max4(m[3], m[1]));
    float top = m[0][0];
    for (int j = 1; j < 4; j++) top = m[0][j] > top ? m[0][j] : top;
    for (; i < end; i++) {
      top = x[i] > top ? x[i] : top;
      bad |= x[i] - x[i] != 0;
      nan |= x[i] != x[i];
    }
    best[b / BLOCK] = top;
    all = top > all ? top : all;
  }
  *max = all;
  for (int j = 0; j < 4; j++) bad |= (uint32_t)bad4[j], nan |= (uint32_t)nan4[j];
  if (!bad) return PE_OK;
  return !minus_inf || nan || all == inf ? PE_ENONFINITE : PE_OK;
}

static int64_t first_at(const float *x, int64_t n, const float *best, float max) {
  int64_t b = 0;
  while (best[b] != max) b++;
  for (int64_t i = b * BLOCK; i < n; i++)
    if (x[i] == max) return i;
  return -1; /* not reached: block b holds max */
}

/* Every id whose value is at least t and not -inf, in order of id. */
static int64_t collect(const float *x, int64_t n, const float *best, float t, uint64_t *cand) {
  int64_t m = 0;
  for (int64_t b = 0; b * BLOCK < n; b++) {
    if (!(best[b] >= t)) continue;
    int64_t end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
    for (int64_t i = b * BLOCK; i < end; i++) {
      cand[m] = pack(key_of(x[i]), i); /* no branch to mispredict: written always, kept if it counts */
      m += x[i] >= t && x[i] > -__builtin_inff();
    }
  }
  return m;
}

/* The k best in order; fewer if fewer are not masked. cand has room for n. */
static int64_t top_k(const float *x, int64_t n, const buffers *b, int64_t k) {
  int64_t blocks = (n + BLOCK - 1) / BLOCK;
  float t = k >= n ? -__builtin_inff() : k <= blocks ? kth_largest(b->best, blocks, k) : kth_largest(x, n, k);
  int64_t m = collect(x, n, b->best, t, b->cand);
  sort(b->cand, b->other, m);
  return m < k ? m : k;
}

/* ---- the chain over sorted candidates -------------------------------------------------- */

/* d = value - top and p = exp(d*inv_t) for candidates 0..m. */
static void exponentials(const pe_vops *v, const buffers *b, int64_t m, float top, float inv_t) {
  for (int64_t i = 0; i < m; i++) b->d[i] = (value_of(b->cand[i]) - top) * inv_t;
  v->exp(b->p, b->d, m);
}

static double sum_in_order(const float *p, int64_t m) {
  double s = 0;
  for (int64_t i = 0; i < m; i++) s += p[i];
  return s;
}

/* Smallest prefix whose sum reaches `goal`; all if none does. *reached says which. */
static int64_t prefix(const float *p, int64_t m, double goal, int *reached) {
  double s = 0;
  *reached = 1;
  for (int64_t i = 0; i < m; i++) {
    s += p[i];
    if (s >= goal) return i + 1;
  }
  *reached = 0;
  return m;
}

/* sum of e*d over the vocabulary, e = exp(d), d = x - max: the products are exact in double, the
 * order is that of every sum over the vocabulary. Masked ids (e = 0) are left out by selection. */
static double mean_distance(const pe_vops *v, const float *x, int64_t n, float max, const buffers *b, double total) {
  double sum = 0;
  for (int64_t c = 0; c < n; c += SUM_BLOCK) {
    int64_t m = n - c < SUM_BLOCK ? n - c : SUM_BLOCK;
    double lane[16] = {0};
    for (int64_t i = 0; i < m; i++) b->d[i] = x[c + i] - max;
    v->exp(b->p, b->d, m);
    for (int64_t i = 0; i < m; i++)
      if (b->p[i] > 0) lane[i & 15] += (double)b->p[i] * (double)b->d[i];
    for (int s = 8; s; s >>= 1)
      for (int j = 0; j < s; j++) lane[j] += lane[j + s];
    sum += lane[0];
  }
  return sum / total;
}

/* Locally typical sampling: of the set in b->cand, keeps those whose surprise is nearest the entropy
 * until their sum reaches typical_p; leaves them sorted in b->cand. -ln p - H = centre - d with
 * d = x - max and centre = the mean of d: the logarithm of the total cancels. whole: the set is the
 * vocabulary x in order of id, and the sums are those over the vocabulary. Equal surprise: in the
 * order of the set. */
static int64_t typical(const pe_vops *v, const buffers *b, const float *x, int64_t n, float max, int64_t m, int whole,
                       double typical_p) {
  double total, centre = 0;
  if (whole) {
    total = v->softmax_sum(x, n, max, 1.0f);
    centre = mean_distance(v, x, n, max, b, total);
    m = collect(x, n, b->best, -__builtin_inff(), b->cand);
    exponentials(v, b, m, max, 1.0f);
  } else {
    exponentials(v, b, m, max, 1.0f);
    total = sum_in_order(b->p, m);
    for (int64_t i = 0; i < m; i++)
      if (b->p[i] > 0) centre += (double)b->p[i] * (double)b->d[i];
    centre /= total;
  }
  /* The nearest first, within a reach that grows until their sum suffices: small sets are sorted. */
  float c = (float)centre;
  int64_t kept = 0;
  for (float reach = 1;; reach *= 1.5f) {
    int64_t near = 0;
    for (int64_t i = 0; i < m; i++) {
      float shift = c - b->d[i];
      shift = shift < 0 ? -shift : shift;
      uint32_t bits;
      memcpy(&bits, &shift, 4); /* not negative: its bits are in its order */
      b->other[near] = pack(bits, i);
      near += shift <= reach && b->p[i] > 0;
    }
    sort(b->other, b->third, near);
    double sum = 0;
    for (kept = 0; kept < near && sum < typical_p * total; kept++) sum += b->p[(uint32_t)b->other[kept]];
    if (sum >= typical_p * total || reach > 200) break; /* beyond 200 every p is 0 */
  }
  for (int64_t i = 0; i < kept; i++) b->third[i] = b->cand[(uint32_t)b->other[i]];
  memcpy(b->cand, b->third, (size_t)kept * sizeof *b->cand);
  sort(b->cand, b->other, kept); /* equal values had equal surprise: their ids are in order */
  return kept;
}

/* How far below the best an id may lie and still pass min_p: never too little, at most ln 2 too much.
 * min_p >= 2^(e-1), and 0.001 is far more than exp's error. */
static float min_p_reach(double min_p) {
  uint64_t u;
  memcpy(&u, &min_p, 8);
  int e = (int)(u >> 52 & 0x7ff) - 1022;
  return (float)(1 - e) * 0.6932f + 0.001f;
}

/* Without top_k and typical_p: the sorted prefix of the vocabulary that top_p and min_p can leave. */
static int64_t nucleus(const pe_vops *v, const buffers *b, const float *x, int64_t n, float max, const pe_sample *s) {
  float most = s->min_p > 0 ? min_p_reach(s->min_p) : 200.0f; /* beyond 200 every p is 0 */
  most = most < 200.0f ? most : 200.0f;
  double goal = s->top_p < 1 ? s->top_p * v->softmax_sum(x, n, max, 1.0f) : __builtin_inf();
  for (float reach = s->top_p < 1 ? 6 : most;; reach *= 1.25f) {
    int last = reach >= most, reached;
    int64_t m = collect(x, n, b->best, max - (last ? most : reach), b->cand);
    sort(b->cand, b->other, m);
    exponentials(v, b, m, max, 1.0f);
    m = prefix(b->p, m, goal, &reached);
    if (reached || last) return m;
  }
}

/* ---- the draw ----------------------------------------------------------------------------- */

static int64_t draw(const float *p, int64_t m, double coin) {
  double r = coin * sum_in_order(p, m), s = 0;
  int64_t last = 0;
  for (int64_t i = 0; i < m; i++) {
    s += p[i];
    if (r < s) return i;
    if (p[i] > 0) last = i;
  }
  return last; /* r was rounded up to the sum */
}

/* From the whole vocabulary: its block by the running sums of blocks, then in order of id. */
static int64_t draw_whole(const pe_vops *v, const buffers *b, const float *x, int64_t n, float max, float inv_t,
                          double coin) {
  float total = 0, running = 0;
  for (int64_t c = 0; c < n; c += SUM_BLOCK)
    total += b->d[c / SUM_BLOCK] = (float)v->softmax_sum(x + c, n - c < SUM_BLOCK ? n - c : SUM_BLOCK, max, inv_t);
  double r = coin * total;
  int64_t at = 0;
  float before = 0;
  for (int64_t c = 0; c < n; c += SUM_BLOCK) { /* the first block that passes r, else the last that is not empty */
    float sum = b->d[c / SUM_BLOCK];
    if (sum > 0) at = c, before = running;
    running += sum;
    if (sum > 0 && r < running) break;
  }
  int64_t m = n - at < SUM_BLOCK ? n - at : SUM_BLOCK, last = 0;
  float d[SUM_BLOCK];
  for (int64_t i = 0; i < m; i++) d[i] = (x[at + i] - max) * inv_t;
  v->exp(b->p, d, m);
  double s = before;
  for (int64_t i = 0; i < m; i++) {
    s += b->p[i];
    if (b->p[i] > 0) {
      if (r < s) return at + i;
      last = i;
    }
  }
  return at + last;
}

static int64_t choose(const pe_vops *v, const buffers *b, const float *x, int64_t n, float max, const pe_sample *s) {
  if (s->greedy) return first_at(x, n, b->best, max);
  double coin = pe_coin(s->seed, s->sequence, s->position, 0);
  int64_t m = 0;
  int cut = 1; /* top_p is still to be applied */
  if (s->top_k > 0) m = top_k(x, n, b, s->top_k);
  if (s->typical_p < 1) m = typical(v, b, x, n, max, m, s->top_k == 0, s->typical_p);
  if (s->top_k == 0 && s->typical_p >= 1) {
    if (s->top_p >= 1 && s->min_p <= 0) return draw_whole(v, b, x, n, max, s->inv_t, coin);
    m = nucleus(v, b, x, n, max, s);
    cut = 0;
  }
  float top = value_of(b->cand[0]);
  if (m > 1 && ((cut && s->top_p < 1) || s->min_p > 0)) {
    exponentials(v, b, m, top, 1.0f);
    int reached;
    if (cut && s->top_p < 1) m = prefix(b->p, m, s->top_p * sum_in_order(b->p, m), &reached);
    int64_t kept = 1;
    while (kept < m && b->p[kept] >= s->min_p) kept++;
    m = kept;
  }
  if (m > 1) exponentials(v, b, m, top, s->inv_t);
  return (uint32_t)b->cand[m > 1 ? draw(b->p, m, coin) : 0];
}

/* ---- adjusted logits ------------------------------------------------------------------------ */

static void mask_flags(float *x, int64_t n, const uint8_t *allowed) {
  if (!allowed) return;
  for (int64_t i = 0; i < n; i++) x[i] = allowed[i] ? x[i] : -__builtin_inff();
}

/* A grammar allows a handful of ids or nearly all: most words are 0 or full. */
static void mask_bits(float *x, int64_t n, const uint32_t *mask) {
  const int32_t off = (int32_t)0xff800000u; /* -inf */
  if (!mask) return;
  for (int64_t w = 0; w * 32 < n; w++) {
    if (mask[w] == 0xffffffffu) continue;
    float *at = x + w * 32;
    if (n - w * 32 < 32) {
      for (int64_t i = 0; i < n - w * 32; i++) at[i] = mask[w] >> i & 1 ? at[i] : -__builtin_inff();
      continue;
    }
    int32_t m = (int32_t)mask[w];
    for (int j = 0; j < 8; j++) {
      i4 v, bit = (i4){1, 2, 4, 8} << 4 * j;
      memcpy(&v, at + 4 * j, 16);
      i4 on = ((i4){m, m, m, m} & bit) == bit;
      v = (v & on) | ((i4){off, off, off, off} & ~on);
      memcpy(at + 4 * j, &v, 16);
    }
  }
}

/* A penalized logit; a masked one stays masked. */
static inline float penalized(const pe_sample *s, float y, int repeated, uint32_t count) {
  if (y == -__builtin_inff()) return y;
  if (repeated) return y > 0 ? y / s->repeat_penalty : y * s->repeat_penalty;
  return y - (float)count * s->frequency_penalty - s->presence_penalty;
}

static int ids_are_rows(const int32_t *id, int64_t m, int64_t n_rows) {
  for (int64_t i = 0; i < m; i++)
    if (id[i] < 0 || id[i] >= n_rows) return 0;
  return 1;
}

/* Bias, then repeat penalty, then frequency and presence. Each id once per step: `count` is set to 0
 * for the ids of a list only, so nothing of the vocabulary's size is cleared. x has room for n_rows. */
static int adjust(float *x, uint32_t *count, const pe_sample *s) {
  if (!ids_are_rows(s->bias_id, s->n_bias, s->n_rows) || !ids_are_rows(s->window, s->n_window, s->n_rows) ||
      !ids_are_rows(s->generated, s->n_generated, s->n_rows))
    return PE_EINVAL;
  for (int64_t j = 0; j < s->n_bias; j++) x[s->bias_id[j]] += s->bias[j];
  for (int64_t j = 0; j < s->n_window; j++) count[s->window[j]] = 0;
  for (int64_t j = 0; j < s->n_window; j++) {
    int32_t id = s->window[j];
    if (!count[id]++) x[id] = penalized(s, x[id], 1, 0);
  }
  for (int64_t j = 0; j < s->n_generated; j++) count[s->generated[j]] = 0;
  for (int64_t j = 0; j < s->n_generated; j++) count[s->generated[j]]++;
  for (int64_t j = 0; j < s->n_generated; j++) {
    int32_t id = s->generated[j];
    if (count[id]) x[id] = penalized(s, x[id], 0, count[id]);
    count[id] = 0;
  }
  return PE_OK;
}

static int logprobs(const pe_vops *v, const buffers *b, float max, pe_sample *s) {
  float sum = (float)v->softmax_sum(s->raw, s->n_rows, max, 1.0f), log_sum;
  v->log(&log_sum, &sum, 1);
  s->raw_max = max;
  s->log_sum = log_sum;
  const float *x = s->raw;
  if (s->allowed || s->n < s->n_rows) {
    memcpy(b->copy, s->raw, (size_t)s->n * sizeof(float));
    mask_flags(b->copy, s->n, s->allowed);
    x = b->copy;
    float ignored;
    int code = scan(x, s->n, 1, b->best, &ignored);
    if (code) return code;
  }
  int64_t k = s->n_top ? top_k(x, s->n, b, s->n_top) : 0;
  for (int64_t i = 0; i < k; i++) {
    s->top_id[i] = (int32_t)(uint32_t)b->cand[i];
    s->top_logprob[i] = ((double)s->raw[s->top_id[i]] - max) - log_sum;
  }
  s->n_top_found = (int32_t)k;
  return PE_OK;
}

int pe_sample_run(pe_sample *s, const pe_vops *v) {
  if (s->n < 1 || s->n > s->n_rows || s->n_rows > INT32_MAX || s->n_top > PE_TOP_MAX || s->top_k < 0) return PE_EINVAL;
  buffers b = carve(s->scratch, s->n_rows);
  float max;
  int code = scan(s->raw, s->n_rows, 0, b.best, &max);
  if (code) return code;
  float raw_max = max;
  int plain = !s->processed && !s->n_bias && !s->n_window && !s->n_generated && !s->allowed && !s->mask && s->n == s->n_rows;
  if (s->n_top >= 0) {
    code = logprobs(v, &b, raw_max, s);
    if (code) return code;
  }
  const float *x = s->raw;
  if (!plain) {
    memcpy(b.copy, s->processed ? s->processed : s->raw, (size_t)s->n_rows * sizeof(float));
    code = adjust(b.copy, (uint32_t *)b.cand, s);
    if (code) return code;
    mask_flags(b.copy, s->n, s->allowed);
    mask_bits(b.copy, s->n, s->mask);
    x = b.copy;
    /* -inf is a ban or a processor's mask; NaN and +inf (1e38 and a penalty below 1) leave no answer */
    code = scan(x, s->n, 1, b.best, &max);
    if (code) return code;
  }
  if (max == -__builtin_inff()) return PE_EEMPTY;
  s->token = (int32_t)choose(v, &b, x, s->n, max, s);
  if (s->n_top >= 0) s->logprob = ((double)s->raw[s->token] - raw_max) - (double)s->log_sum;
  return PE_OK;
}

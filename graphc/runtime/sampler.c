/* sampler.c: one token from the logits: penalties, temperature, filters, a draw.
 *
 * The order is the one that is customary since Hugging Face's: penalties and bias, temperature,
 * top-k, top-p (Holtzman et al. 2020), min-p (Nguyen et al. 2024), typical (Meister et al. 2023),
 * each over what the one before has left. Ties go to the smaller token, so that the same logits
 * give the same token everywhere. */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

typedef struct {
  float score; /* logit / temperature, later what a filter sorts by */
  int32_t token;
} candidate;

gc_sampling gc_sampling_defaults(void) {
  return (gc_sampling){.size = sizeof(gc_sampling),
                       .temperature = 1,
                       .top_p = 1,
                       .typical_p = 1,
                       .repetition_penalty = 1};
}

/* e^x for x <= 0, in a form that compilers turn into vector instructions; 3e-7 relative. */
static float quick_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  float n = (float)(int32_t)(x * 1.44269504f - 0.5f); /* rounds, as x is not positive */
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.0f + r * (1.0f + r * (0.49999994f + r * (0.16666521f + r * (0.041668389f +
                   r * (0.0083687166f + r * 0.001381460f)))));
  union {
    int32_t bits;
    float value;
  } power = {((int32_t)n + 127) << 23};
  return p * power.value;
}

/* sum(exp(x - highest)) */
static double sum_exp(const float *x, int64_t n, float highest) {
  double sum = 0;
  for (int64_t start = 0; start < n; start += 1024) {
    int64_t end = start + 1024 < n ? start + 1024 : n, i = start;
    float lanes[16] = {0};
    for (; i + 16 <= end; i += 16)
      for (int k = 0; k < 16; k++) lanes[k] += quick_exp(x[i + k] - highest);
    for (; i < end; i++) lanes[0] += quick_exp(x[i] - highest);
    for (int k = 0; k < 16; k++) sum += lanes[k];
  }
  return sum;
}

/* The largest of the logits, the smallest token among equals; -1 unless all are numbers below
 * infinity and one is finite. */
static int64_t largest(const float *x, int64_t n) {
  int bad = 0;
  float lanes[16];
  for (int k = 0; k < 16; k++) lanes[k] = -INFINITY;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    for (int k = 0; k < 16; k++) {
      float value = x[i + k];
      bad |= !(value < INFINITY);
      lanes[k] = value > lanes[k] ? value : lanes[k];
    }
  }
  float highest = -INFINITY;
  for (int k = 0; k < 16; k++) highest = lanes[k] > highest ? lanes[k] : highest;
  for (; i < n; i++) {
    bad |= !(x[i] < INFINITY);
    highest = x[i] > highest ? x[i] : highest;
  }
  if (bad || highest == -INFINITY) return -1;
  for (i = 0; x[i] != highest; i++) continue;
  return i;
}

static int not_numbers(const float *x, int64_t n, gc_error *error) {
  for (int64_t i = 0; i < n; i++) {
    if (x[i] < INFINITY) continue;
    return gc_fail(error, GC_ERROR_NUMBERS,
                   "the logit of token %" PRId64 " is %s: the model has overflowed, no token can be "
                   "drawn",
                   i, isnan(x[i]) ? "NaN" : "infinite");
  }
  return gc_fail(error, GC_ERROR_NUMBERS, "every logit is -infinity: no token can be drawn");
}

static bool in(float value, float low, float high) {
  return value >= low && value <= high;
}

static int check(const gc_sampling *s, int64_t vocabulary, const int32_t *history,
                 int64_t n_history, int64_t n_answer, gc_error *error) {
  const char *bad = NULL;
  if (!in(s->temperature, 0, 1e6f)) bad = "temperature: expected 0 or more";
  if (s->top_k < 0) bad = "top_k: expected 0 or more";
  if (!in(s->top_p, 0, 1) || s->top_p == 0) bad = "top_p: expected more than 0, at most 1";
  if (!in(s->min_p, 0, 1)) bad = "min_p: expected 0 to 1";
  if (!in(s->typical_p, 0, 1) || s->typical_p == 0)
    bad = "typical_p: expected more than 0, at most 1";
  if (!in(s->repetition_penalty, 0, 1e6f) || s->repetition_penalty == 0)
    bad = "repetition_penalty: expected more than 0";
  if (!in(s->frequency_penalty, -1e6f, 1e6f)) bad = "frequency_penalty: not a number";
  if (!in(s->presence_penalty, -1e6f, 1e6f)) bad = "presence_penalty: not a number";
  if (s->n_bias < 0 || (s->n_bias > 0 && (!s->bias_tokens || !s->bias)))
    bad = "n_bias: expected the length of bias and bias_tokens";
  if (bad) return gc_fail(error, GC_ERROR_USE, "gc_sampling.%s", bad);
  if (n_history < 0 || (n_history > 0 && !history) || n_answer < 0 || n_answer > n_history)
    return gc_fail(error, GC_ERROR_USE, "%" PRId64 " tokens of history, %" PRId64 " of the answer",
                   n_history, n_answer);
  for (int64_t i = 0; i < n_history; i++)
    if (history[i] < 0 || history[i] >= vocabulary)
      return gc_fail(error, GC_ERROR_INPUT, "token %" PRId64 " of the history is %d, expected 0 to "
                     "%" PRId64, i, history[i], vocabulary - 1);
  for (int32_t i = 0; i < s->n_bias; i++)
    if (s->bias_tokens[i] < 0 || s->bias_tokens[i] >= vocabulary)
      return gc_fail(error, GC_ERROR_INPUT, "logit bias is given for token %d, expected 0 to "
                     "%" PRId64, s->bias_tokens[i], vocabulary - 1);
  return GC_OK;
}

static bool changes_logits(const gc_sampling *s) {
  return s->repetition_penalty != 1 || s->frequency_penalty != 0 || s->presence_penalty != 0 ||
         s->n_bias > 0;
}

/* Penalties and bias. `seen` [vocabulary] is scratch. */
static void change(float *x, const gc_sampling *s, int64_t vocabulary, const int32_t *history,
                   int64_t n_history, int64_t n_answer, uint8_t *seen) {
  enum { ANYWHERE = 1, ANSWER = 2 };
  memset(seen, 0, (size_t)vocabulary);
  for (int64_t i = 0; i < n_history; i++) {
    int32_t token = history[i];
    if (!(seen[token] & ANYWHERE)) {
      seen[token] |= ANYWHERE;
      x[token] = x[token] > 0 ? x[token] / s->repetition_penalty : x[token] * s->repetition_penalty;
    }
  }
  for (int64_t i = n_history - n_answer; i < n_history; i++) {
    int32_t token = history[i];
    if (!(seen[token] & ANSWER)) x[token] -= s->presence_penalty;
    seen[token] |= ANSWER;
    x[token] -= s->frequency_penalty;
  }
  for (int32_t i = 0; i < s->n_bias; i++) x[s->bias_tokens[i]] += s->bias[i];
}

static bool before(candidate a, candidate b) {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

static void sift(candidate *heap, int64_t n, int64_t at) {
  candidate moving = heap[at];
  for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
    if (child + 1 < n && before(heap[child + 1], heap[child])) child++;
    if (!before(heap[child], moving)) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = moving;
}

static void make_heap(candidate *heap, int64_t n) {
  for (int64_t i = n / 2; i-- > 0;) sift(heap, n, i);
}

/* Takes the best out of the heap's n elements and puts it where the heap has ended. */
static candidate pop(candidate *heap, int64_t n) {
  candidate best = heap[0];
  heap[0] = heap[n - 1];
  heap[n - 1] = best;
  if (n > 1) sift(heap, n - 1, 0);
  return best;
}

static double total(const candidate *c, int64_t n, float highest) {
  double sum = 0;
  for (int64_t i = 0; i < n; i++) sum += quick_exp(c[i].score - highest);
  return sum;
}

/* Keeps the best candidates until `enough` says so: they are moved to the front, best first. */
static int64_t keep_best(candidate *c, int64_t n, int64_t most, double mass, const float *weights,
                         float highest) {
  make_heap(c, n);
  double sum = 0;
  int64_t kept = 0;
  while (kept < n && kept < most && (kept == 0 || sum < mass)) {
    candidate best = pop(c, n - kept++);
    sum += quick_exp((weights ? weights[best.token] : best.score) - highest);
  }
  for (int64_t i = 0; i < kept && i < n - 1 - i; i++) { /* popped ones lie at the end, reversed */
    candidate moved = c[i];
    c[i] = c[n - 1 - i];
    c[n - 1 - i] = moved;
  }
  return kept;
}

/* Tokens whose surprise is nearest to the entropy, until they have the mass. */
static int64_t keep_typical(candidate *c, int64_t n, float mass, const float *x, float highest) {
  double sum = total(c, n, highest), entropy = 0;
  for (int64_t i = 0; i < n; i++) {
    double p = quick_exp(c[i].score - highest) / sum;
    if (p > 0) entropy -= p * log(p);
  }
  for (int64_t i = 0; i < n; i++) {
    double surprise = log(sum) - (c[i].score - highest);
    c[i].score = (float)-fabs(surprise - entropy);
  }
  int64_t kept = keep_best(c, n, n, mass * sum, x, highest);
  for (int64_t i = 0; i < kept; i++) c[i].score = x[c[i].token];
  return kept;
}

/* A number in [0, 1) that depends on seed and counter only (splitmix64's output function). */
static double uniform(uint64_t seed, uint64_t counter) {
  uint64_t x = seed * UINT64_C(0xd1342543de82ef95) + counter * UINT64_C(0x9e3779b97f4a7c15);
  for (int round = 0; round < 2; round++) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
  }
  return (double)(x >> 11) * 0x1p-53;
}

/* Candidates with a score of at least `threshold`. */
static int64_t gather(const float *x, int64_t n, float threshold, candidate *c) {
  int64_t found = 0;
  for (int64_t i = 0; i < n; i++) {
    c[found] = (candidate){x[i], (int32_t)i}; /* without a branch: few of them stay */
    found += x[i] >= threshold;
  }
  return found;
}

/* Candidates among which the `most` best are, and those that have `mass` of the sum of
 * exponentials: the best ones are near the highest score, so few are looked at. */
static int64_t gather_best(const float *x, int64_t n, float highest, int64_t most, double mass,
                           candidate *c) {
  for (float below = 4; below < 128; below *= 2) {
    int64_t found = gather(x, n, highest - below, c);
    if (found >= most || total(c, found, highest) >= mass) return found;
  }
  return gather(x, n, -FLT_MAX, c);
}

/* A draw from all tokens: first the block of tokens that it falls into, then the token. */
static int32_t draw_any(const float *x, int64_t n, float highest, double u) {
  enum { BLOCK = 1024 };
  double left = u * sum_exp(x, n, highest);
  int64_t start = 0, last = -1;
  for (; start + BLOCK < n; start += BLOCK) {
    double sum = sum_exp(x + start, BLOCK, highest);
    if (left < sum) break;
    left -= sum;
  }
  for (int64_t i = start; i < n; i++) {
    if (x[i] == -INFINITY) continue;
    last = i;
    left -= quick_exp(x[i] - highest);
    if (left < 0) break;
  }
  if (last >= 0) return (int32_t)last;
  for (last = start; x[last] == -INFINITY;) last--; /* rounding went past the last token */
  return (int32_t)last;
}

/* Filters, then a draw; x [n] are the scores, of which x[best] is the largest. */
static int32_t draw(const float *x, int64_t n, int64_t best, const gc_sampling *s,
                    uint64_t counter, candidate *c) {
  float highest = x[best], floor = s->min_p > 0 ? highest + logf(s->min_p) : -FLT_MAX;
  double u = uniform(s->seed, counter);
  int64_t found;
  if (s->top_k > 0 && s->top_k < n) {
    found = gather_best(x, n, highest, s->top_k, INFINITY, c);
    found = keep_best(c, found, s->top_k, INFINITY, NULL, highest);
    if (s->top_p < 1)
      found = keep_best(c, found, found, s->top_p * total(c, found, highest), NULL, highest);
  } else if (s->top_p < 1) {
    double mass = s->top_p * sum_exp(x, n, highest);
    found = gather_best(x, n, highest, n, mass, c);
    found = keep_best(c, found, found, mass, NULL, highest);
  } else if (s->min_p > 0 || s->typical_p < 1) {
    found = gather(x, n, floor, c);
  } else {
    return draw_any(x, n, highest, u);
  }
  if (s->min_p > 0) {
    int64_t kept = 0;
    for (int64_t i = 0; i < found; i++)
      if (c[i].score >= floor || c[i].token == best) c[kept++] = c[i];
    found = kept;
  }
  if (s->typical_p < 1) found = keep_typical(c, found, s->typical_p, x, highest);
  double left = u * total(c, found, highest);
  int64_t at = 0;
  for (; at < found - 1; at++) {
    left -= quick_exp(c[at].score - highest);
    if (left < 0) break;
  }
  return c[at].token;
}

static int choose(const float *logits, int64_t vocabulary, int64_t best, const gc_sampling *s,
                  const int32_t *history, int64_t n_history, int64_t n_answer, uint64_t counter,
                  int32_t *token, gc_error *error) {
  size_t n = (size_t)vocabulary;
  candidate *c = malloc((n + 1) * (sizeof *c + sizeof(float)));
  if (!c) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  float *x = (float *)(c + n + 1);
  /* A very low temperature makes infinities of differences: then the largest is the only one. */
  float scale = s->temperature > 1e-30f ? 1 / s->temperature : 1;
  memcpy(x, logits, n * sizeof *x);
  int code = GC_OK;
  if (changes_logits(s)) {
    /* The candidates are not needed yet: their memory remembers which tokens were seen. */
    change(x, s, vocabulary, history, n_history, n_answer, (uint8_t *)c);
    best = largest(x, vocabulary);
    if (best < 0) code = not_numbers(x, vocabulary, error);
  }
  if (!code) *token = (int32_t)best;
  if (!code && s->temperature > 1e-30f) {
    for (size_t i = 0; i < n; i++) x[i] *= scale;
    if (fabsf(x[best]) < INFINITY) *token = draw(x, vocabulary, best, s, counter, c);
  }
  free(c);
  return code;
}

int gc_sample(const float *logits, int64_t vocabulary, const gc_sampling *sampling,
              const int32_t *history, int64_t n_history, int64_t n_answer, uint64_t counter,
              int32_t *token, float *logprob, gc_error *error) {
  if (error) *error = (gc_error){0};
  if (!logits || vocabulary < 1 || vocabulary > INT32_MAX || !token || !logprob)
    return gc_fail(error, GC_ERROR_USE, "no logits, or nowhere to put the token");
  gc_sampling s = gc_sampling_defaults();
  if (sampling) {
    if (sampling->size < sizeof sampling->size || sampling->size > 4096)
      return gc_fail(error, GC_ERROR_USE, "gc_sampling.size is %zu, expected %zu", sampling->size,
                     sizeof s);
    memcpy(&s, sampling, sampling->size < sizeof s ? sampling->size : sizeof s);
  }
  int code = check(&s, vocabulary, history, n_history, n_answer, error);
  if (code) return code;
  int64_t best = largest(logits, vocabulary);
  if (best < 0) return not_numbers(logits, vocabulary, error);
  if (s.temperature == 0 && !changes_logits(&s))
    *token = (int32_t)best;
  else
    code = choose(logits, vocabulary, best, &s, history, n_history, n_answer, counter, token, error);
  if (!code)
    *logprob = (float)((double)logits[*token] - logits[best] -
                       log(sum_exp(logits, vocabulary, logits[best])));
  return code;
}

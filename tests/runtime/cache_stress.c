/* cache_stress.c: random use of paged caches, one for each thread, over one model.
 *
 *   cache_stress DIR SECONDS THREADS
 *
 * Sequences are made, begun with known prefixes, forked, stepped in ragged batches and freed, in a
 * cache that is too small for all of them. Every sequence's tokens are remembered here; the logits
 * of a step must equal those of the same tokens in one piece in a second cache. A cache shared with
 * other threads must answer or refuse, and every eighth step is a wrong one. */
#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "graphc.h"

enum { SLOTS = 6, LONGEST = 150, CHUNK = 40 };

static gc_model *model;
static gc_cache *shared;
static gc_language language = {.size = sizeof(gc_language)};
static double seconds;
static _Atomic long steps, refused, failures;

typedef struct {
  gc_sequence sequence;
  int32_t n, tokens[LONGEST + CHUNK];
} story;

typedef struct {
  gc_cache *cache, *plain;
  gc_context *context;
  story stories[SLOTS];
  unsigned seed;
} player;

static int draw(player *p, int n) {
  return (int)((unsigned)rand_r(&p->seed) % (unsigned)n);
}

static int complain(const char *what, const char *detail) {
  fprintf(stderr, "cache_stress: %s: %s\n", what, detail);
  atomic_fetch_add(&failures, 1);
  return 1;
}

/* A new sequence that begins like another one, so that prefixes are found. */
static int begin(player *p, story *s) {
  gc_error error;
  const story *other = &p->stories[draw(p, SLOTS)];
  s->sequence = gc_sequence_create(p->cache, &error);
  if (!s->sequence) return complain("create", error.message);
  int known = other != s && other->sequence ? other->n : 0;
  int32_t tokens[LONGEST + CHUNK];
  for (int i = 0; i < LONGEST; i++)
    tokens[i] = i < known ? other->tokens[i] : draw(p, 3); /* few tokens: prefixes collide */
  int64_t taken = gc_sequence_reuse(p->cache, s->sequence, tokens, LONGEST, &error);
  if (taken < 0) return complain("reuse", error.message);
  s->n = (int32_t)taken;
  memcpy(s->tokens, tokens, sizeof tokens);
  return 0;
}

static int finish(player *p, story *s) {
  gc_error error;
  if (gc_sequence_free(p->cache, s->sequence, &error)) return complain("free", error.message);
  if (gc_sequence_free(p->cache, s->sequence, &error) != GC_ERROR_USE)
    return complain("free", "a sequence was freed twice");
  s->sequence = 0;
  return 0;
}

static int change(player *p, story *s) {
  gc_error error;
  if (!s->sequence) return begin(p, s);
  story *other = &p->stories[draw(p, SLOTS)];
  if (draw(p, 3) == 0 || s->n > LONGEST - CHUNK) return finish(p, s);
  if (other->sequence || draw(p, 2)) return 0;
  *other = *s;
  other->sequence = gc_sequence_fork(p->cache, s->sequence, &error);
  return other->sequence ? 0 : complain("fork", error.message);
}

/* The last token's logits of a story, in one piece. */
static int compare(player *p, const story *s, const float *logits) {
  gc_error error;
  const float *expected;
  int64_t rows;
  int32_t wanted = 1;
  gc_context *context = gc_context_create(model, &error);
  gc_sequence whole = gc_sequence_create(p->plain, &error);
  int failed = 0;
  if (gc_step(context, p->plain, 1, &whole, &s->n, s->tokens, &wanted, &expected, &rows, &error))
    failed = complain("in one piece", error.message);
  for (int64_t i = 0; i < language.vocabulary && !failed; i++)
    if (!(fabsf(expected[i] - logits[i]) <= 1e-3f)) failed = complain("other logits", "");
  gc_sequence_free(p->plain, whole, &error);
  gc_context_destroy(context);
  return failed;
}

static int step(player *p) {
  gc_sequence sequences[SLOTS];
  int32_t counts[SLOTS], wanted[SLOTS], tokens[SLOTS * CHUNK], n = 0, total = 0, where[SLOTS];
  for (int i = 0; i < SLOTS; i++) {
    story *s = &p->stories[i];
    if (!s->sequence || draw(p, 3) == 0 || s->n > LONGEST - CHUNK) continue;
    where[n] = i;
    sequences[n] = s->sequence;
    counts[n] = draw(p, 2) ? 1 : 1 + draw(p, CHUNK - 1);
    wanted[n] = 1;
    for (int t = 0; t < counts[n]; t++) tokens[total + t] = s->tokens[s->n + t] = draw(p, 3);
    total += counts[n++];
  }
  if (!n) return 0;
  gc_error error;
  const float *logits;
  int64_t rows;
  if (draw(p, 8) == 0) {
    int32_t bad = tokens[total - 1];
    tokens[total - 1] = (int32_t)language.vocabulary;
    if (gc_step(p->context, p->cache, n, sequences, counts, tokens, wanted, &logits, &rows,
                &error) != GC_ERROR_INPUT)
      return complain("a wrong token", "was taken");
    tokens[total - 1] = bad;
    atomic_fetch_add(&refused, 1);
  }
  int code = gc_step(p->context, p->cache, n, sequences, counts, tokens, wanted, &logits, &rows,
                     &error);
  for (int i = 0; i < n; i++) {
    story *s = &p->stories[where[i]];
    if (!code) s->n += counts[i];
    if (gc_sequence_length(p->cache, s->sequence, &error) != s->n)
      return complain("length", "is not what was stepped");
  }
  if (code == GC_ERROR_FULL) {
    atomic_fetch_add(&refused, 1);
    return finish(p, &p->stories[where[draw(p, n)]]);
  }
  if (code) return complain("step", error.message);
  atomic_fetch_add(&steps, 1);
  if (rows != n) return complain("rows", "are not one for each sequence");
  int which = draw(p, n);
  return compare(p, &p->stories[where[which]], logits + which * language.vocabulary);
}

/* Others use the same cache: the answer is right, or that it is in use. */
static int use_shared(void) {
  gc_error error;
  gc_sequence made = gc_sequence_create(shared, &error);
  if (made) {
    while (gc_sequence_free(shared, made, &error)) {
      if (strstr(error.message, "in use by another thread")) continue;
      return complain("shared", error.message);
    }
  }
  return !made && !strstr(error.message, "in use by another thread")
             ? complain("shared", error.message)
             : 0;
}

static int sample(player *p) {
  gc_error error;
  float logits[200], logprob;
  int32_t history[20], token;
  for (int i = 0; i < 200; i++) logits[i] = (float)draw(p, 1000) / 100;
  for (int i = 0; i < 20; i++) history[i] = draw(p, 200);
  gc_sampling s = gc_sampling_defaults();
  s.seed = p->seed;
  s.top_k = draw(p, 4) * draw(p, 100);
  s.top_p = draw(p, 2) ? 1 : 0.01f * (float)(1 + draw(p, 100));
  s.min_p = draw(p, 2) ? 0 : 0.01f * (float)draw(p, 100);
  s.typical_p = draw(p, 2) ? 1 : 0.01f * (float)(1 + draw(p, 100));
  s.repetition_penalty = draw(p, 2) ? 1 : 1.3f;
  s.temperature = (float)draw(p, 3);
  int64_t n = 1 + draw(p, 200);
  int code = gc_sample(logits, n, &s, history, 20, draw(p, 21), 1, &token, &logprob, &error);
  if (code == GC_ERROR_INPUT) return 0; /* the history has tokens beyond n */
  return code || token < 0 || token >= n ? complain("sample", error.message) : 0;
}

static void *play(void *argument) {
  player p = {.seed = (unsigned)(size_t)argument};
  gc_cache_options small = {.size = sizeof small, .tokens = 320};
  gc_cache_options large = {.size = sizeof large, .tokens = 320};
  gc_error error;
  p.cache = gc_cache_create(model, &small, &error);
  p.plain = gc_cache_create(model, &large, &error);
  p.context = gc_context_create(model, &error);
  struct timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  int failed = !p.cache || !p.plain || !p.context ? complain("begin", error.message) : 0;
  do {
    for (int i = 0; i < SLOTS && !failed; i++) failed = change(&p, &p.stories[i]);
    failed = failed || step(&p) || use_shared() || sample(&p);
    clock_gettime(CLOCK_MONOTONIC, &now);
  } while (!failed && (double)(now.tv_sec - start.tv_sec) < seconds);
  for (int i = 0; i < SLOTS && !failed; i++)
    if (p.stories[i].sequence) failed = finish(&p, &p.stories[i]);
  gc_cache_stats stats = {.size = sizeof stats};
  if (!failed && (gc_cache_get_stats(p.cache, &stats, &error) || stats.sequences ||
                  stats.tokens_held || stats.pages_free != stats.pages_total))
    complain("after all sequences were freed", "pages are missing");
  gc_cache_destroy(p.cache);
  gc_cache_destroy(p.plain);
  gc_context_destroy(p.context);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  gc_options options = {.size = sizeof options, .threads = 2};
  gc_error error;
  model = gc_open(argv[1], &options, &error);
  if (!model) return complain("open", error.message);
  seconds = atof(argv[2]);
  int n = atoi(argv[3]);
  pthread_t threads[64];
  if (n < 1 || n > 64 || gc_language_info(model, &language, &error)) return 2;
  shared = gc_cache_create(model, NULL, &error);
  if (!shared) return complain("shared", error.message);
  gc_close(model); /* caches and contexts keep it */
  for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, play, (void *)(size_t)(i + 1));
  for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
  gc_cache_destroy(shared);
  printf("%ld steps, %ld refusals, %ld failures\n", steps, refused, failures);
  return failures != 0;
}

/* generate.c: prefill in chunks, then a token at a time. */
#define _GNU_SOURCE
#include "generate.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

enum { CHUNK = 512 };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static bool is_one_of(const int32_t *tokens, int32_t n, int32_t token) {
  for (int32_t i = 0; i < n; i++)
    if (tokens[i] == token) return true;
  return false;
}

/* One step of the one sequence; the last token's logits where they are wanted. */
static int step(gc_context *context, gc_cache *cache, gc_sequence sequence, const int32_t *tokens,
                int64_t n, int32_t wanted, const float **logits, gc_error *error) {
  int64_t rows;
  int32_t count = (int32_t)n;
  return gc_step(context, cache, 1, &sequence, &count, tokens, &wanted, logits, &rows, error);
}

static int answer(gc_context *context, gc_cache *cache, const generate_request *r,
                  int64_t vocabulary, int32_t *history, int64_t most, generate_report *report,
                  gc_error *error) {
  gc_sequence sequence = gc_sequence_create(cache, error);
  const float *logits = NULL;
  int code = sequence ? GC_OK : GC_ERROR_MEMORY;
  double start = now();
  for (int64_t at = 0; at < r->n_prompt && !code; at += CHUNK) {
    int64_t n = r->n_prompt - at < CHUNK ? r->n_prompt - at : CHUNK;
    int32_t wanted = at + n == r->n_prompt;
    code = step(context, cache, sequence, r->prompt + at, n, wanted, &logits, error);
  }
  double first = now();
  report->prefill_seconds = first - start;
  memcpy(history, r->prompt, (size_t)r->n_prompt * sizeof *history);
  for (int64_t n = 0; n < most && !code; n++) {
    int32_t *token = &history[r->n_prompt + n];
    float logprob;
    code = gc_sample(logits, vocabulary, &r->sampling, history, r->n_prompt + n, n, (uint64_t)n,
                     token, &logprob, error);
    if (code || is_one_of(r->stop, r->n_stop, *token)) break;
    report->tokens++;
    if (r->emit && r->emit(r->user, *token)) break;
    if (n + 1 < most) code = step(context, cache, sequence, token, 1, 1, &logits, error);
  }
  report->decode_seconds = now() - first;
  return code;
}

int generate(gc_model *model, const generate_request *r, generate_report *report,
             gc_error *error) {
  gc_language language = {.size = sizeof language};
  *report = (generate_report){0};
  int code = gc_language_info(model, &language, error);
  if (code) return code;
  if (r->n_prompt < 1) return gc_fail(error, GC_ERROR_INPUT, "the prompt is empty");
  int64_t left = language.max_context - r->n_prompt;
  if (left < 1)
    return gc_fail(error, GC_ERROR_INPUT,
                   "the prompt has %" PRId64 " tokens, the model's context is %" PRId64
                   ": leave room for an answer",
                   r->n_prompt, language.max_context);
  int64_t most = r->max_tokens && r->max_tokens < left ? r->max_tokens : left;
  gc_cache_options options = {.size = sizeof options, .tokens = r->n_prompt + most};
  int32_t *history = malloc((size_t)(r->n_prompt + most) * sizeof *history);
  gc_cache *cache = gc_cache_create(model, &options, error);
  gc_context *context = cache ? gc_context_create(model, error) : NULL;
  if (!history)
    code = gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  else if (!context)
    code = error->code;
  else
    code = answer(context, cache, r, language.vocabulary, history, most, report, error);
  gc_context_destroy(context);
  gc_cache_destroy(cache);
  free(history);
  return code;
}

int32_t *parse_tokens(const char *text, int64_t *n) {
  size_t room = strlen(text) / 2 + 1;
  int32_t *tokens = malloc(room * sizeof *tokens);
  *n = 0;
  while (tokens) {
    text += strspn(text, ", ");
    if (!*text) return tokens;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || errno || value < 0 || value > INT32_MAX || !strchr(", ", *end)) break;
    tokens[(*n)++] = (int32_t)value;
    text = end;
  }
  free(tokens);
  *n = -1;
  return NULL;
}

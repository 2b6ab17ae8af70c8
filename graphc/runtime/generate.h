/* generate.h: answers of a language model, for graphc-run. */
#ifndef GRAPHC_GENERATE_H_
#define GRAPHC_GENERATE_H_

#include "graphc.h"

typedef struct {
  const int32_t *prompt; /* [n_prompt] */
  int64_t n_prompt;
  int64_t max_tokens;  /* 0: as many as the context holds */
  const int32_t *stop; /* [n_stop] tokens that end the answer; they are not part of it */
  int32_t n_stop;
  gc_sampling sampling;
  int (*emit)(void *user, int32_t token); /* each token of the answer; not 0 ends it */
  void *user;
} generate_request;

typedef struct {
  int64_t tokens; /* of the answer */
  double prefill_seconds, decode_seconds;
} generate_report;

int generate(gc_model *model, const generate_request *request, generate_report *report,
             gc_error *error);

/* Numbers separated by commas or spaces: a new array, NULL with *n = -1 when the text is none. */
int32_t *parse_tokens(const char *text, int64_t *n);

#endif

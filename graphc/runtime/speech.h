/* speech.h: text at both ends of graphc-run. */
#ifndef GRAPHC_SPEECH_H_
#define GRAPHC_SPEECH_H_

#include <stdbool.h>

#include "graphc_tokenizer.h"

typedef struct {
  gc_vocabulary *vocabulary;
  int32_t *prompt; /* [n_prompt] tokens */
  int64_t n_prompt;
  const int32_t *stop; /* [n_stop] tokens */
  int32_t n_stop;
  bool began;      /* something was said before the next token */
  char pending[4]; /* the bytes of a character that is not complete */
  size_t n_pending;
} speech;

/* Reads the vocabulary in `directory` and turns a text, or what a user says with `chat`, to tokens.
 * Returns a gc_status; speech_close is due in any case. */
int speech_open(speech *s, const char *directory, const char *text, bool chat, gc_error *error);
void speech_close(speech *s);

/* Writes the whole characters that a token completes to standard output; `user` is the speech. */
int speech_emit(void *user, int32_t token);

/* Writes a sign for the character that the answer ends within, if it does. */
void speech_end(speech *s);

#endif

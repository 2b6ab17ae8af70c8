/* speech.c: a prompt to tokens, and tokens to the terminal in whole characters. */
#include "speech.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "vocabulary.h"

int speech_open(speech *s, const char *directory, const char *text, bool chat, gc_error *error) {
  *s = (speech){.began = !chat};
  char path[4096];
  int length = snprintf(path, sizeof path, "%s/vocabulary.bin", directory);
  if (length < 0 || (size_t)length >= sizeof path)
    return gc_fail(error, GC_ERROR_USE, "the directory's name is too long");
  s->vocabulary = gc_vocabulary_open(path, error);
  if (!s->vocabulary) return error->code;
  s->stop = gc_vocabulary_stops(s->vocabulary, &s->n_stop);
  if (!*text) return gc_fail(error, GC_ERROR_INPUT, "the prompt is empty: give it some text");
  char *whole = chat ? gc_vocabulary_chat(s->vocabulary, text, error) : NULL;
  if (chat && !whole) return error->code;
  if (whole) text = whole;
  size_t bytes = strlen(text);
  int64_t n = gc_vocabulary_encode(s->vocabulary, text, bytes, !chat, NULL, 0, error);
  if (n >= 0 && !(s->prompt = malloc(((size_t)n + 1) * sizeof *s->prompt))) {
    gc_fail(error, GC_ERROR_MEMORY, "no memory for %lld tokens", (long long)n);
    n = -1;
  }
  if (n >= 0) n = gc_vocabulary_encode(s->vocabulary, text, bytes, !chat, s->prompt, n, error);
  free(whole);
  s->n_prompt = n;
  return n < 0 ? error->code : GC_OK;
}

void speech_close(speech *s) {
  free(s->prompt);
  gc_vocabulary_close(s->vocabulary);
}

/* How many bytes the character that begins so has; what begins none stands for itself. */
static size_t character_bytes(unsigned char lead) {
  return lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
}

/* Writes what is pending: a character, or the sign for a broken one. */
static void say(speech *s) {
  size_t place;
  if (gc_is_utf8((const uint8_t *)s->pending, s->n_pending, &place)) {
    fwrite(s->pending, 1, s->n_pending, stdout);
  } else {
    fputs("\xef\xbf\xbd", stdout);
  }
  s->n_pending = 0;
}

int speech_emit(void *user, int32_t token) {
  speech *s = user;
  size_t n;
  const char *text = gc_vocabulary_text(s->vocabulary, token, !s->began, &n);
  if (!text) return 0;
  s->began = true;
  for (size_t i = 0; i < n; i++) {
    bool continues = ((unsigned char)text[i] & 0xc0) == 0x80;
    if (s->n_pending && !continues) say(s); /* the character before stays broken */
    s->pending[s->n_pending++] = text[i];
    if (s->n_pending == character_bytes((unsigned char)s->pending[0])) say(s);
  }
  return fflush(stdout);
}

void speech_end(speech *s) {
  if (s->n_pending) say(s);
}

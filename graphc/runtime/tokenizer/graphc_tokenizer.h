/* graphc_tokenizer.h: text to tokens and back, from the vocabulary.bin of an artifact. */
#ifndef GRAPHC_TOKENIZER_H_
#define GRAPHC_TOKENIZER_H_

#include "graphc.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gc_vocabulary gc_vocabulary;

/* Reads and checks a compiled vocabulary; NULL on failure. May be used from many threads. */
GC_API gc_vocabulary *gc_vocabulary_open(const char *path, gc_error *error);
GC_API void gc_vocabulary_close(gc_vocabulary *vocabulary);

/* How many tokens there are, the added ones included. */
GC_API int32_t gc_vocabulary_size(const gc_vocabulary *vocabulary);

/* Encodes `bytes` bytes of UTF-8. Writes up to `capacity` tokens and returns how many there are,
 * which may be more, or -1 on failure. `special` adds the tokens that the model wants around a
 * text. Control tokens that are spelled out in the text are recognised. */
GC_API int64_t gc_vocabulary_encode(const gc_vocabulary *vocabulary, const char *text, size_t bytes,
                                    int32_t special, int32_t *tokens, int64_t capacity,
                                    gc_error *error);

/* What a token adds to a text: `*bytes` bytes, which may be a part of a character. `first` says
 * that only control tokens are before it. NULL for those, and for tokens out of range. */
GC_API const char *gc_vocabulary_text(const gc_vocabulary *vocabulary, int32_t token, int32_t first,
                                      size_t *bytes);

/* The `*n` tokens that end an answer. */
GC_API const int32_t *gc_vocabulary_stops(const gc_vocabulary *vocabulary, int32_t *n);

/* A user's first words as the conversation that the model was trained on, up to its answer; encode
 * it without `special`, and free it. NULL when the model was not trained to chat. */
GC_API char *gc_vocabulary_chat(const gc_vocabulary *vocabulary, const char *text, gc_error *error);

#ifdef __cplusplus
}
#endif
#endif

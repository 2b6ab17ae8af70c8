/* vocabulary.h: what the tokenizer's files share. graphc/llm/vocabulary/layout.py has the format. */
#ifndef GRAPHC_VOCABULARY_H_
#define GRAPHC_VOCABULARY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "graphc_tokenizer.h"

enum { GC_NONE = -1 };
enum { GC_BPE, GC_UNIGRAM, GC_WORDPIECE };
enum { GC_BYTE_LEVEL = 1, GC_BYTE_FALLBACK = 2, GC_FUSE_UNKNOWN = 4, GC_IGNORE_MERGES = 8 };

/* The first section; sections are named by number, (uint32_t)GC_NONE where there is none. */
typedef struct {
  uint32_t kind, flags, tokens, unknown, trie, merges, scores, bytes, longest_word;
  uint32_t continuing, ending, unknown_score, added_plain, added_normalized, added;
  uint32_t word_set, space_set, normalizer, pre_tokenizer, before, after;
  uint32_t texts, first_texts, special, stops, chat_before, chat_after;
} gc_vocabulary_fields;

typedef struct {
  const uint8_t *data;
  size_t bytes;
} gc_section;

struct gc_vocabulary {
  uint8_t *file;
  gc_section *sections;
  uint32_t n_sections;
  gc_vocabulary_fields fields;
};

static inline const uint32_t *gc_words_of(const gc_vocabulary *v, uint32_t section) {
  return (const uint32_t *)(const void *)v->sections[section].data;
}
static inline size_t gc_word_count(const gc_vocabulary *v, uint32_t section) {
  return v->sections[section].bytes / 4;
}

/* Bytes that grow; a failed addition is remembered, so that one check at the end is enough. */
typedef struct {
  uint8_t *data;
  size_t n, room;
  bool failed;
} gc_bytes;
void gc_bytes_add(gc_bytes *bytes, const void *data, size_t n);
void gc_bytes_add_char(gc_bytes *bytes, uint32_t c);
void gc_bytes_free(gc_bytes *bytes);

/* A character at `at` < n and its length; a broken byte is U+FFFD of length 1. */
uint32_t gc_char_at(const uint8_t *text, size_t n, size_t at, size_t *length);
bool gc_is_utf8(const uint8_t *text, size_t n, size_t *place);
static inline size_t gc_char_before(const uint8_t *text, size_t at) {
  do at--;
  while (at > 0 && (text[at] & 0xc0) == 0x80);
  return at;
}

bool gc_set_has(const uint32_t *set, uint32_t c);
bool gc_strings_at(const gc_vocabulary *v, uint32_t section, uint32_t place, gc_section *string);
bool gc_map_find(const gc_vocabulary *v, uint32_t section, uint32_t c, gc_section *string);
/* A walk through a trie from node 0: false when no key goes on with that byte. */
bool gc_trie_step(const uint32_t *trie, uint32_t *node, uint8_t byte);
/* The value of the key that ends at a node, or GC_NONE. */
int64_t gc_trie_value(const uint32_t *trie, uint32_t node);
int64_t gc_trie_find(const uint32_t *trie, const uint8_t *key, size_t n);

/* check.c: nothing in a checked vocabulary points out of it. */
bool gc_vocabulary_check(const gc_vocabulary *v);

/* regex.c */
typedef struct {
  uint32_t pc;
  size_t at, low;
} gc_regex_state;
typedef struct {
  gc_regex_state *stack;
  size_t n, room;
  int64_t steps; /* left before the pattern counts as too hard */
  bool failed;
} gc_regex_machine;
/* The first match at or after `from`: its start and end. False: none, or the machine failed. */
bool gc_regex_find(gc_regex_machine *machine, const gc_vocabulary *v, uint32_t program,
                   const uint8_t *text, size_t n, size_t from, size_t *start, size_t *end);

/* normalize.c: `text` becomes what the normaliser makes of it; `spare` is scratch. */
void gc_normalize(const gc_vocabulary *v, gc_bytes *text, gc_bytes *spare,
                  gc_regex_machine *machine);

/* split.c: words of a text. `begins` says that the text's first byte is the input's. */
typedef struct {
  size_t start, n;
  bool begins;
} gc_word;
typedef struct {
  gc_bytes text;
  gc_bytes words; /* of gc_word */
} gc_pieces;
void gc_split(const gc_vocabulary *v, gc_pieces *pieces, gc_pieces *spare, bool begins,
              gc_regex_machine *machine);

/* Tokens that grow, as gc_bytes does. */
typedef struct {
  int32_t *tokens;
  int64_t capacity, n;
} gc_output;
static inline void gc_emit(gc_output *output, uint32_t token) {
  if (output->n < output->capacity) output->tokens[output->n] = (int32_t)token;
  output->n++;
}

/* bpe.c, unigram.c, wordpiece.c: the tokens of one word; false when memory is short. */
bool gc_encode_bpe(const gc_vocabulary *v, const uint8_t *word, size_t n, gc_bytes *scratch,
                   gc_output *output);
bool gc_encode_unigram(const gc_vocabulary *v, const uint8_t *word, size_t n, gc_bytes *scratch,
                       gc_output *output);
bool gc_encode_wordpiece(const gc_vocabulary *v, const uint8_t *word, size_t n, gc_output *output);

#endif

/* wordpiece.c: from the left, the longest token that fits; a word that does not end so is unknown
 * as a whole (Schuster and Nakajima 2012). */
#include "vocabulary.h"

/* The longest token from `at` on; its end, or `at` when there is none. */
static size_t longest(const gc_vocabulary *v, const uint8_t *word, size_t n, size_t at,
                      uint32_t *token) {
  const uint32_t *trie = gc_words_of(v, v->fields.trie);
  uint32_t node = 0, continuing = v->fields.continuing;
  size_t end = at;
  if (at > 0 && continuing != (uint32_t)GC_NONE) {
    for (size_t i = 0; i < v->sections[continuing].bytes; i++) {
      if (!gc_trie_step(trie, &node, v->sections[continuing].data[i])) return at;
    }
  }
  for (size_t i = at; i < n && gc_trie_step(trie, &node, word[i]); i++) {
    int64_t value = gc_trie_value(trie, node);
    if (value < 0) continue;
    end = i + 1;
    *token = (uint32_t)value;
  }
  return end;
}

bool gc_encode_wordpiece(const gc_vocabulary *v, const uint8_t *word, size_t n, gc_output *output) {
  size_t length, characters = 0;
  int64_t before = output->n;
  for (size_t at = 0; at < n; at += length, characters++) gc_char_at(word, n, at, &length);
  bool known = characters <= v->fields.longest_word;
  uint32_t token = 0;
  for (size_t at = 0, end; known && at < n; at = end) {
    end = longest(v, word, n, at, &token);
    known = end > at;
    if (known) gc_emit(output, token);
  }
  if (!known) {
    output->n = before;
    gc_emit(output, v->fields.unknown);
  }
  return true;
}

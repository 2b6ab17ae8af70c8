/* encode.c: a text to tokens: added tokens first, then what lies between them. */
#include <stdlib.h>

#include "internal.h"
#include "vocabulary.h"

enum { SINGLE_WORD = 1, LSTRIP = 2, RSTRIP = 4 };
enum { STEPS_PER_BYTE = 1000 };

typedef struct {
  const gc_vocabulary *v;
  gc_pieces pieces, spare;
  gc_bytes normalized, scratch;
  gc_regex_machine machine;
  gc_output output;
  bool failed;
} encoder;

/* A stretch of text to go on with; `begins` says that it is the input's first. */
typedef void (*next_stage)(encoder *e, const uint8_t *text, size_t n, bool begins);

static void encode_words(encoder *e, const uint8_t *text, size_t n, bool begins) {
  const gc_vocabulary *v = e->v;
  e->pieces.text.n = 0;
  gc_bytes_add(&e->pieces.text, text, n);
  if (e->pieces.text.failed) return;
  gc_split(v, &e->pieces, &e->spare, begins, &e->machine);
  const gc_word *words = (const gc_word *)(const void *)e->pieces.words.data;
  size_t count = e->pieces.words.n / sizeof *words;
  bool ok = !e->pieces.text.failed && !e->pieces.words.failed && !e->machine.failed;
  for (size_t i = 0; i < count && ok; i++) {
    const uint8_t *word = e->pieces.text.data + words[i].start;
    if (v->fields.kind == GC_BPE) {
      ok = gc_encode_bpe(v, word, words[i].n, &e->scratch, &e->output);
    } else if (v->fields.kind == GC_UNIGRAM) {
      ok = gc_encode_unigram(v, word, words[i].n, &e->scratch, &e->output);
    } else {
      ok = gc_encode_wordpiece(v, word, words[i].n, &e->output);
    }
  }
  e->failed |= !ok;
}

static bool is_in(const encoder *e, uint32_t set, const uint8_t *text, size_t n, size_t at,
                  size_t *length) {
  return gc_set_has(gc_words_of(e->v, set), gc_char_at(text, n, at, length));
}

/* The longest added token at `at`: its row and end. */
static bool added_at(const uint32_t *trie, const uint8_t *text, size_t n, size_t at, uint32_t *row,
                     size_t *end) {
  uint32_t node = 0;
  bool found = false;
  for (size_t i = at; i < n && gc_trie_step(trie, &node, text[i]); i++) {
    if (gc_trie_value(trie, node) < 0) continue;
    *row = (uint32_t)gc_trie_value(trie, node);
    *end = i + 1;
    found = true;
  }
  return found;
}

/* Cuts a text at added tokens, and hands what lies between them on. */
static void find_added(encoder *e, uint32_t section, const uint8_t *text, size_t n, bool begins,
                       next_stage next) {
  const uint32_t *trie = gc_words_of(e->v, section);
  const uint32_t *rows = gc_words_of(e->v, e->v->fields.added);
  uint32_t words = e->v->fields.word_set, spaces = e->v->fields.space_set, row;
  size_t from = 0, end, length;
  for (size_t at = 0; at < n;) {
    if (!added_at(trie, text, n, at, &row, &end)) {
      at++;
      continue;
    }
    size_t start = at;
    uint32_t token = rows[2 * row], rules = rows[2 * row + 1];
    at = end;
    if ((rules & SINGLE_WORD) &&
        ((start > 0 && is_in(e, words, text, n, gc_char_before(text, start), &length)) ||
         (end < n && is_in(e, words, text, n, end, &length))))
      continue;
    while ((rules & LSTRIP) && start > from &&
           is_in(e, spaces, text, n, gc_char_before(text, start), &length))
      start = gc_char_before(text, start);
    while ((rules & RSTRIP) && end < n && is_in(e, spaces, text, n, end, &length)) end += length;
    if (start > from) next(e, text + from, start - from, begins && from == 0);
    gc_emit(&e->output, token);
    from = end;
  }
  if (from < n) next(e, text + from, n - from, begins && from == 0);
}

static void encode_stretch(encoder *e, const uint8_t *text, size_t n, bool begins) {
  e->normalized.n = 0;
  gc_bytes_add(&e->normalized, text, n);
  gc_normalize(e->v, &e->normalized, &e->scratch, &e->machine);
  if (e->normalized.failed || e->scratch.failed || e->machine.failed) {
    e->failed = true;
    return;
  }
  find_added(e, e->v->fields.added_normalized, e->normalized.data, e->normalized.n, begins,
             encode_words);
}

static void emit_all(encoder *e, uint32_t section) {
  for (size_t i = 0; i < gc_word_count(e->v, section); i++)
    gc_emit(&e->output, gc_words_of(e->v, section)[i]);
}

static void release(encoder *e) {
  gc_bytes_free(&e->pieces.text);
  gc_bytes_free(&e->pieces.words);
  gc_bytes_free(&e->spare.text);
  gc_bytes_free(&e->spare.words);
  gc_bytes_free(&e->normalized);
  gc_bytes_free(&e->scratch);
  free(e->machine.stack);
}

int64_t gc_vocabulary_encode(const gc_vocabulary *v, const char *text, size_t bytes,
                             int32_t special, int32_t *tokens, int64_t capacity, gc_error *error) {
  if (!v || (!text && bytes) || (!tokens && capacity > 0)) {
    gc_fail(error, GC_ERROR_USE, "the vocabulary, the text or the tokens are NULL");
    return -1;
  }
  const uint8_t *data = (const uint8_t *)text;
  size_t place;
  if (!gc_is_utf8(data, bytes, &place)) {
    gc_fail(error, GC_ERROR_INPUT, "the text is not UTF-8: byte %zu is 0x%02x", place, data[place]);
    return -1;
  }
  encoder e = {.v = v, .output = {tokens, capacity, 0}};
  e.machine.steps = bytes > INT64_MAX / STEPS_PER_BYTE - 1000
                        ? INT64_MAX
                        : STEPS_PER_BYTE * ((int64_t)bytes + 1000);
  if (special) emit_all(&e, v->fields.before);
  find_added(&e, v->fields.added_plain, data, bytes, true, encode_stretch);
  if (special) emit_all(&e, v->fields.after);
  bool failed = e.failed || e.machine.failed;
  release(&e);
  if (failed) {
    gc_fail(error, GC_ERROR_MEMORY, "the text needs too much memory, or too many steps of its "
                                    "pattern: encode it in parts");
    return -1;
  }
  return e.output.n;
}

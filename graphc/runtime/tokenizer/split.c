/* split.c: cuts a text into the words that the model sees one at a time.
 *
 * Operations have four words: kind, a, b, c. Each reads the words of `from` and adds to `to`. */
#include "vocabulary.h"

enum { SPLIT, SPACE_BEFORE, METASPACE };
enum { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
enum { ALWAYS, FIRST, NEVER };

typedef struct {
  size_t start, end;
  bool match;
} part;

static void add_word(gc_pieces *to, size_t start, size_t end, bool begins) {
  gc_word word = {start, end - start, begins};
  if (end > start) gc_bytes_add(&to->words, &word, sizeof word);
}

/* Adds a part to the last one when the behaviour wants them together. */
static void add_part(gc_bytes *parts, uint32_t behaviour, size_t start, size_t end, bool match) {
  size_t n = parts->n / sizeof(part);
  part *last = n ? (part *)(void *)parts->data + n - 1 : NULL;
  bool together = last && ((behaviour == CONTIGUOUS && last->match == match) ||
                           (behaviour == MERGED_WITH_PREVIOUS && match && !last->match) ||
                           (behaviour == MERGED_WITH_NEXT && !match && last->match));
  if (start == end) return;
  if (together) {
    last->end = end;
    /* With the neighbour that it takes in, a match is complete. */
    last->match = behaviour == CONTIGUOUS ? match : behaviour == MERGED_WITH_PREVIOUS;
    return;
  }
  part added = {start, end, match};
  gc_bytes_add(parts, &added, sizeof added);
}

static void split_word(const gc_vocabulary *v, const uint32_t *op, const gc_pieces *from,
                       gc_word word, gc_pieces *to, gc_regex_machine *machine) {
  gc_bytes parts = {0};
  const uint8_t *text = from->text.data + word.start;
  size_t at = 0, start, end;
  bool invert = op[3];
  while (gc_regex_find(machine, v, op[1], text, word.n, at, &start, &end)) {
    add_part(&parts, op[2], at, start, invert);
    add_part(&parts, op[2], start, end, !invert);
    at = end;
  }
  add_part(&parts, op[2], at, word.n, invert);
  const part *list = (const part *)(const void *)parts.data;
  for (size_t i = 0; i < parts.n / sizeof *list; i++) {
    if (op[2] == REMOVED && list[i].match) continue;
    add_word(to, word.start + list[i].start, word.start + list[i].end,
             word.begins && list[i].start == 0);
  }
  to->words.failed |= parts.failed;
  gc_bytes_free(&parts);
}

static void metaspace(const gc_vocabulary *v, const uint32_t *op, const gc_pieces *from,
                      gc_word word, gc_pieces *to) {
  gc_section mark = v->sections[op[1]];
  const uint8_t *text = from->text.data + word.start;
  size_t start = to->text.n;
  bool marked = word.n && text[0] == ' ';
  marked |= word.n >= mark.bytes && !memcmp(text, mark.data, mark.bytes);
  if (!marked && (op[2] == ALWAYS || (op[2] == FIRST && word.begins)))
    gc_bytes_add(&to->text, mark.data, mark.bytes);
  for (size_t i = 0; i < word.n; i++) {
    if (text[i] == ' ') {
      gc_bytes_add(&to->text, mark.data, mark.bytes);
    } else {
      gc_bytes_add(&to->text, text + i, 1);
    }
  }
  if (!op[3]) {
    add_word(to, start, to->text.n, word.begins);
    return;
  }
  size_t begin = start;
  for (size_t at = start; at + mark.bytes <= to->text.n && !to->text.failed;) {
    if (memcmp(to->text.data + at, mark.data, mark.bytes)) {
      at++;
      continue;
    }
    add_word(to, begin, at, word.begins && begin == start);
    begin = at;
    at += mark.bytes;
  }
  add_word(to, begin, to->text.n, word.begins && begin == start);
}

static void copy_word(const gc_pieces *from, gc_word word, gc_pieces *to) {
  size_t start = to->text.n;
  if (word.n && from->text.data[word.start] != ' ') gc_bytes_add(&to->text, " ", 1);
  gc_bytes_add(&to->text, from->text.data + word.start, word.n);
  add_word(to, start, to->text.n, word.begins);
}

void gc_split(const gc_vocabulary *v, gc_pieces *pieces, gc_pieces *spare, bool begins,
              gc_regex_machine *machine) {
  pieces->words.n = 0;
  add_word(pieces, 0, pieces->text.n, begins);
  const uint32_t *op = gc_words_of(v, v->fields.pre_tokenizer);
  const uint32_t *end = op + gc_word_count(v, v->fields.pre_tokenizer);
  for (; op < end && !machine->failed; op += 4) {
    spare->words.n = spare->text.n = 0;
    const gc_word *words = (const gc_word *)(const void *)pieces->words.data;
    size_t n = pieces->words.n / sizeof *words;
    for (size_t i = 0; i < n; i++) {
      if (op[0] == SPLIT) split_word(v, op, pieces, words[i], spare, machine);
      if (op[0] == SPACE_BEFORE) copy_word(pieces, words[i], spare);
      if (op[0] == METASPACE) metaspace(v, op, pieces, words[i], spare);
    }
    gc_bytes swap = pieces->words;
    pieces->words = spare->words;
    spare->words = swap;
    if (op[0] == SPLIT) continue; /* the words lie in the same text */
    swap = pieces->text;
    pieces->text = spare->text;
    spare->text = swap;
    if (pieces->text.failed || pieces->words.failed) return;
  }
}

/* normalize.c: what happens to a text before it is split.
 *
 * Operations have four words: kind, a, b, c. Each reads `from` and adds to `to`, which is empty. */
#include "vocabulary.h"

enum { MAP, REORDER, COMPOSE, REPLACE, REPLACE_PATTERN, PREPEND, STRIP, CHARSMAP };
enum { LONGEST_CLUSTER = 6 }; /* bytes from which SentencePiece's map looks at characters only */

static void add_section(const gc_vocabulary *v, gc_bytes *to, uint32_t section) {
  gc_bytes_add(to, v->sections[section].data, v->sections[section].bytes);
}

static void map(const gc_vocabulary *v, uint32_t section, const gc_bytes *from, gc_bytes *to) {
  size_t length;
  for (size_t at = 0; at < from->n; at += length) {
    gc_section becomes;
    if (gc_map_find(v, section, gc_char_at(from->data, from->n, at, &length), &becomes)) {
      gc_bytes_add(to, becomes.data, becomes.bytes);
    } else {
      gc_bytes_add(to, from->data + at, length);
    }
  }
}

/* The canonical combining class of a character: 0 when it starts something. */
static uint32_t class_of(const uint32_t *classes, uint32_t c) {
  uint32_t low = 0, high = classes[0];
  if (c < 0x300) return 0;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (classes[1 + 2 * middle] < c) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < classes[0] && classes[1 + 2 * low] == c ? classes[2 + 2 * low] : 0;
}

/* Marks that follow a character, in the order of their classes; equal ones stay in theirs. */
static void reorder(const uint32_t *classes, const gc_bytes *from, gc_bytes *to) {
  gc_bytes pending = {0}; /* pairs of class and character */
  size_t length;
  for (size_t at = 0; at <= from->n; at += length) {
    uint32_t c = 0, kind = 0;
    length = 1;
    if (at < from->n) {
      c = gc_char_at(from->data, from->n, at, &length);
      kind = class_of(classes, c);
    }
    uint32_t(*marks)[2] = (void *)pending.data;
    size_t n = pending.n / 8;
    if (kind) {
      uint32_t mark[2] = {kind, c};
      gc_bytes_add(&pending, mark, 8);
      marks = (void *)pending.data;
      for (size_t i = n; !pending.failed && i > 0 && marks[i - 1][0] > marks[i][0]; i--) {
        uint32_t swap[2] = {marks[i][0], marks[i][1]};
        memcpy(marks[i], marks[i - 1], 8);
        memcpy(marks[i - 1], swap, 8);
      }
      continue;
    }
    for (size_t i = 0; i < n; i++) gc_bytes_add_char(to, marks[i][1]);
    pending.n = 0;
    if (at < from->n) gc_bytes_add(to, from->data + at, length);
  }
  to->failed |= pending.failed;
  gc_bytes_free(&pending);
}

/* The character that two make together, or 0. */
static uint32_t together(const uint32_t *triples, uint32_t first, uint32_t second) {
  uint32_t low = 0, high = triples[0];
  const uint32_t(*rows)[3] = (const void *)(triples + 1);
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (rows[middle][0] < first || (rows[middle][0] == first && rows[middle][1] < second)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  bool found = low < triples[0] && rows[low][0] == first && rows[low][1] == second;
  return found ? rows[low][2] : 0;
}

/* Canonical composition: a mark joins the last starter unless one of its class stands between. */
static void compose(const uint32_t *triples, const uint32_t *classes, const gc_bytes *from,
                    gc_bytes *to) {
  gc_bytes kept = {0}; /* characters after the starter that did not join it */
  uint32_t starter = 0, last = 0, joined;
  bool has_starter = false;
  size_t length;
  for (size_t at = 0; at < from->n; at += length) {
    uint32_t c = gc_char_at(from->data, from->n, at, &length), kind = class_of(classes, c);
    bool blocked = kept.n && (last == 0 || last >= kind);
    if (has_starter && !blocked && (joined = together(triples, starter, c))) {
      starter = joined;
      continue;
    }
    if (kind) {
      gc_bytes_add_char(has_starter ? &kept : to, c);
      last = kind;
      continue;
    }
    if (has_starter) gc_bytes_add_char(to, starter);
    gc_bytes_add(to, kept.data, kept.n);
    kept.n = 0;
    starter = c;
    has_starter = true;
    last = 0;
  }
  if (has_starter) gc_bytes_add_char(to, starter);
  gc_bytes_add(to, kept.data, kept.n);
  to->failed |= kept.failed;
  gc_bytes_free(&kept);
}

static void replace(const gc_vocabulary *v, const uint32_t *op, const gc_bytes *from,
                    gc_bytes *to) {
  gc_section what = v->sections[op[1]];
  for (size_t at = 0; at < from->n;) {
    if (from->n - at >= what.bytes && !memcmp(from->data + at, what.data, what.bytes)) {
      add_section(v, to, op[2]);
      at += what.bytes;
    } else {
      gc_bytes_add(to, from->data + at++, 1);
    }
  }
}

static void replace_pattern(const gc_vocabulary *v, const uint32_t *op, const gc_bytes *from,
                            gc_bytes *to, gc_regex_machine *machine) {
  size_t at = 0, start, end;
  while (gc_regex_find(machine, v, op[1], from->data, from->n, at, &start, &end)) {
    gc_bytes_add(to, from->data + at, start - at);
    add_section(v, to, op[2]);
    at = end;
  }
  gc_bytes_add(to, from->data + at, from->n - at);
}

static void strip(const gc_vocabulary *v, const uint32_t *op, const gc_bytes *from, gc_bytes *to) {
  const uint32_t *spaces = gc_words_of(v, op[1]);
  size_t start = 0, end = from->n, length;
  while ((op[2] & 1) && start < end &&
         gc_set_has(spaces, gc_char_at(from->data, end, start, &length)))
    start += length;
  while ((op[2] & 2) && end > start) {
    size_t before = gc_char_before(from->data, end);
    if (!gc_set_has(spaces, gc_char_at(from->data, end, before, &length))) break;
    end = before;
  }
  gc_bytes_add(to, from->data + start, end - start);
}

/* The value of the shortest key that a text begins with, or GC_NONE. */
static int64_t shortest(const uint32_t *trie, const uint8_t *text, size_t n) {
  uint32_t node = 0;
  for (size_t i = 0; i < n && gc_trie_step(trie, &node, text[i]); i++) {
    if (gc_trie_value(trie, node) >= 0) return gc_trie_value(trie, node);
  }
  return GC_NONE;
}

/* Where the visible character that begins at `at` ends; exact while it is short. */
static size_t cluster_end(const gc_vocabulary *v, const uint32_t *sets, const gc_bytes *from,
                          size_t at) {
  size_t length;
  uint32_t c = gc_char_at(from->data, from->n, at, &length);
  at += length;
  if (c == '\r' && at < from->n && from->data[at] == '\n') return at + 1;
  while (at < from->n && !gc_set_has(gc_words_of(v, sets[2]), c)) {
    bool leads = gc_set_has(gc_words_of(v, sets[1]), c);
    c = gc_char_at(from->data, from->n, at, &length);
    bool joins = gc_set_has(gc_words_of(v, sets[0]), c) ||
                 (leads && !gc_set_has(gc_words_of(v, sets[2]), c));
    if (!joins) break;
    at += length;
  }
  return at;
}

/* SentencePiece's map as `tokenizers` applies it: to a short visible character as a whole, of which
 * the shortest key that it begins with stands for all; else to each of its characters. */
static void charsmap(const gc_vocabulary *v, const uint32_t *op, const gc_bytes *from,
                     gc_bytes *to) {
  const uint32_t *trie = gc_words_of(v, op[1]), *sets = gc_words_of(v, op[3]);
  size_t length, end;
  gc_section becomes;
  for (size_t at = 0; at < from->n; at = end) {
    end = cluster_end(v, sets, from, at);
    if (end - at < LONGEST_CLUSTER) {
      int64_t key = shortest(trie, from->data + at, end - at);
      if (key >= 0 && gc_strings_at(v, op[2], (uint32_t)key, &becomes)) {
        gc_bytes_add(to, becomes.data, becomes.bytes);
        continue;
      }
    }
    for (; at < end; at += length) {
      gc_char_at(from->data, from->n, at, &length);
      int64_t key = shortest(trie, from->data + at, length);
      if (key >= 0 && gc_strings_at(v, op[2], (uint32_t)key, &becomes)) {
        gc_bytes_add(to, becomes.data, becomes.bytes);
      } else {
        gc_bytes_add(to, from->data + at, length);
      }
    }
  }
}

void gc_normalize(const gc_vocabulary *v, gc_bytes *text, gc_bytes *spare,
                  gc_regex_machine *machine) {
  const uint32_t *op = gc_words_of(v, v->fields.normalizer);
  const uint32_t *end = op + gc_word_count(v, v->fields.normalizer);
  for (; op < end && !text->failed && !spare->failed; op += 4) {
    spare->n = 0;
    switch (op[0]) {
      case MAP: map(v, op[1], text, spare); break;
      case REORDER: reorder(gc_words_of(v, op[1]), text, spare); break;
      case COMPOSE: compose(gc_words_of(v, op[1]), gc_words_of(v, op[2]), text, spare); break;
      case REPLACE: replace(v, op, text, spare); break;
      case REPLACE_PATTERN: replace_pattern(v, op, text, spare, machine); break;
      case PREPEND:
        if (text->n) add_section(v, spare, op[1]);
        gc_bytes_add(spare, text->data, text->n);
        break;
      case STRIP: strip(v, op, text, spare); break;
      case CHARSMAP: charsmap(v, op, text, spare); break;
    }
    gc_bytes swap = *text;
    *text = *spare;
    *spare = swap;
  }
}

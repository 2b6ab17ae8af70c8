/* check.c: a vocabulary comes from outside; everything that points somewhere is looked at once. */
#include "vocabulary.h"

static bool section_ok(const gc_vocabulary *v, uint32_t s) { return s < v->n_sections; }

static size_t words(const gc_vocabulary *v, uint32_t s) {
  return section_ok(v, s) ? gc_word_count(v, s) : 0;
}

static bool ascending(const uint32_t *values, size_t n, uint32_t last) {
  for (size_t i = 0; i + 1 < n; i++) {
    if (values[i] > values[i + 1]) return false;
  }
  return n == 0 || values[n - 1] <= last;
}

static bool set_ok(const gc_vocabulary *v, uint32_t s) {
  size_t n = words(v, s);
  return n >= 5 && gc_words_of(v, s)[4] <= (n - 5) / 2;
}

/* Offsets [n + 1] and the bytes after them, from word `at` of a section on. */
static bool strings_ok(const gc_vocabulary *v, uint32_t s, size_t at, size_t n) {
  size_t total = words(v, s);
  if (n >= total || at + n + 1 > total) return false;
  return ascending(gc_words_of(v, s) + at, n + 1,
                   (uint32_t)(v->sections[s].bytes - 4 * (at + n + 1)));
}

static bool string_list_ok(const gc_vocabulary *v, uint32_t s) {
  return words(v, s) >= 1 && strings_ok(v, s, 1, gc_words_of(v, s)[0]);
}

static bool map_ok(const gc_vocabulary *v, uint32_t s) {
  size_t total = words(v, s), n = total ? gc_words_of(v, s)[0] : 0;
  return total && n < total && strings_ok(v, s, 1 + n, n);
}

static bool trie_ok(const gc_vocabulary *v, uint32_t s, uint32_t limit) {
  size_t total = words(v, s);
  if (total < 2) return false;
  const uint32_t *trie = gc_words_of(v, s);
  size_t nodes = trie[0], edges = trie[1];
  size_t need = 2 + nodes + 1 + nodes + edges; /* of 32-bit numbers: no overflow */
  if (!nodes || need > total || v->sections[s].bytes - 4 * need < edges) return false;
  const uint32_t *first = trie + 2, *found = first + nodes + 1, *targets = found + nodes;
  if (!ascending(first, nodes + 1, (uint32_t)edges)) return false;
  for (size_t i = 0; i < nodes; i++) {
    if (found[i] > limit) return false; /* a value and one, below the limit and one */
  }
  for (size_t i = 0; i < edges; i++) {
    if (targets[i] >= nodes) return false;
  }
  return true;
}

static bool program_ok(const gc_vocabulary *v, uint32_t s) {
  size_t n = words(v, s) / 4;
  if (!n) return false;
  const uint32_t *code = gc_words_of(v, s);
  if (code[4 * (n - 1)] != 0) return false; /* ends with DONE, so that no step falls out of it */
  for (size_t i = 0; i < n; i++, code += 4) {
    switch (code[0]) {
      case 1: case 2: case 8: case 9: /* SET, SPAN, BEHIND, NOT_BEHIND */
        if (!set_ok(v, code[1])) return false;
        break;
      case 3: /* SPLIT */
        if (code[1] >= n || code[2] >= n) return false;
        break;
      case 4: case 5: case 6: case 7: /* JUMP, AHEAD, NOT_AHEAD, ATOMIC */
        if (code[1] >= n) return false;
        break;
      default:
        if (code[0] > 11) return false;
    }
  }
  return true;
}

static bool classes_ok(const gc_vocabulary *v, uint32_t s, size_t width) {
  size_t total = words(v, s);
  return total && gc_words_of(v, s)[0] <= (total - 1) / width;
}

static bool charsmap_ok(const gc_vocabulary *v, const uint32_t *op) {
  if (!string_list_ok(v, op[2]) || !trie_ok(v, op[1], gc_words_of(v, op[2])[0])) return false;
  if (words(v, op[3]) != 3) return false;
  const uint32_t *sets = gc_words_of(v, op[3]);
  return set_ok(v, sets[0]) && set_ok(v, sets[1]) && set_ok(v, sets[2]);
}

static bool normalizer_ok(const gc_vocabulary *v, const uint32_t *op) {
  switch (op[0]) {
    case 0: return map_ok(v, op[1]);
    case 1: return classes_ok(v, op[1], 2);
    case 2: return classes_ok(v, op[1], 3) && classes_ok(v, op[2], 2);
    case 3: return section_ok(v, op[1]) && v->sections[op[1]].bytes && section_ok(v, op[2]);
    case 4: return program_ok(v, op[1]) && section_ok(v, op[2]);
    case 5: return section_ok(v, op[1]);
    case 6: return set_ok(v, op[1]);
    case 7: return charsmap_ok(v, op);
    default: return false;
  }
}

static bool splitter_ok(const gc_vocabulary *v, const uint32_t *op) {
  switch (op[0]) {
    case 0: return program_ok(v, op[1]) && op[2] < 5;
    case 1: return true;
    case 2: return section_ok(v, op[1]) && v->sections[op[1]].bytes;
    default: return false;
  }
}

static bool operations_ok(const gc_vocabulary *v, uint32_t s,
                          bool (*ok)(const gc_vocabulary *, const uint32_t *)) {
  if (!section_ok(v, s) || words(v, s) % 4) return false;
  for (size_t i = 0; i < words(v, s); i += 4) {
    if (!ok(v, gc_words_of(v, s) + i)) return false;
  }
  return true;
}

static bool model_ok(const gc_vocabulary *v) {
  const gc_vocabulary_fields *f = &v->fields;
  bool optional = (f->continuing == (uint32_t)GC_NONE || section_ok(v, f->continuing)) &&
                  (f->ending == (uint32_t)GC_NONE || section_ok(v, f->ending));
  if (!optional || !trie_ok(v, f->trie, f->tokens) || words(v, f->bytes) != 256) return false;
  if (f->unknown != (uint32_t)GC_NONE && f->unknown >= f->tokens) return false;
  if (f->kind == GC_BPE) return section_ok(v, f->merges) && words(v, f->merges) % 4 == 0;
  if (f->kind == GC_UNIGRAM)
    return section_ok(v, f->scores) && v->sections[f->scores].bytes / 8 == (size_t)f->tokens + 1 &&
           f->unknown != (uint32_t)GC_NONE;
  return f->kind == GC_WORDPIECE && f->unknown != (uint32_t)GC_NONE;
}

bool gc_vocabulary_check(const gc_vocabulary *v) {
  const gc_vocabulary_fields *f = &v->fields;
  if (f->tokens > INT32_MAX || !model_ok(v)) return false;
  uint32_t added = (uint32_t)(words(v, f->added) / 2);
  if (!section_ok(v, f->added) || !trie_ok(v, f->added_plain, added) ||
      !trie_ok(v, f->added_normalized, added))
    return false;
  if (!set_ok(v, f->word_set) || !set_ok(v, f->space_set)) return false;
  if (!operations_ok(v, f->normalizer, normalizer_ok) ||
      !operations_ok(v, f->pre_tokenizer, splitter_ok))
    return false;
  if (!section_ok(v, f->before) || !section_ok(v, f->after) || !section_ok(v, f->stops))
    return false;
  bool has_chat = f->chat_before != (uint32_t)GC_NONE;
  if (has_chat && (!section_ok(v, f->chat_before) || !section_ok(v, f->chat_after))) return false;
  if (!string_list_ok(v, f->texts) || !string_list_ok(v, f->first_texts)) return false;
  uint32_t n = gc_words_of(v, f->texts)[0];
  return n == gc_words_of(v, f->first_texts)[0] && n <= INT32_MAX && section_ok(v, f->special) &&
         v->sections[f->special].bytes >= n;
}

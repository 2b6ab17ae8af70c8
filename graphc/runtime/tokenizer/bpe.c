/* bpe.c: byte-pair encoding: of all neighbours the pair of the lowest rank is merged first, the
 * leftmost of equal ones (Sennrich et al. 2016), with a heap of the pairs that may come next. */
#include "vocabulary.h"

typedef struct {
  uint32_t token;
  int32_t before, after; /* neighbours, or GC_NONE */
  bool gone;
} symbol;

typedef struct {
  uint32_t rank, token;
  int32_t place;
} merge;

static bool is_sooner(const merge *a, const merge *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static void push(gc_bytes *heap, merge added) {
  gc_bytes_add(heap, &added, sizeof added);
  if (heap->failed) return;
  merge *items = (void *)heap->data;
  size_t i = heap->n / sizeof added - 1;
  for (; i > 0 && is_sooner(&added, &items[(i - 1) / 2]); i = (i - 1) / 2)
    items[i] = items[(i - 1) / 2];
  items[i] = added;
}

static merge pop(gc_bytes *heap) {
  merge *items = (void *)heap->data, top = items[0];
  size_t n = heap->n / sizeof top - 1, i = 0;
  merge last = items[n];
  heap->n -= sizeof top;
  for (size_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && is_sooner(&items[child + 1], &items[child])) child++;
    if (!is_sooner(&items[child], &last)) break;
    items[i] = items[child];
  }
  items[i] = last;
  return top;
}

/* Rank and token of a pair; false when it is never merged. */
static bool find(const gc_vocabulary *v, uint32_t left, uint32_t right, merge *found) {
  const uint32_t(*rows)[4] = (const void *)gc_words_of(v, v->fields.merges);
  size_t low = 0, n = gc_word_count(v, v->fields.merges) / 4, high = n;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (rows[middle][0] < left || (rows[middle][0] == left && rows[middle][1] < right)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == n || rows[low][0] != left || rows[low][1] != right) return false;
  found->rank = rows[low][2];
  found->token = rows[low][3];
  return true;
}

static void consider(const gc_vocabulary *v, const symbol *symbols, int32_t place, gc_bytes *heap) {
  if (place < 0 || symbols[place].after < 0) return;
  merge next = {.place = place};
  if (find(v, symbols[place].token, symbols[symbols[place].after].token, &next)) push(heap, next);
}

static void add_symbol(gc_bytes *symbols, uint32_t token) {
  int32_t n = (int32_t)(symbols->n / sizeof(symbol));
  symbol added = {token, n - 1, GC_NONE, false};
  gc_bytes_add(symbols, &added, sizeof added);
  if (n && !symbols->failed) ((symbol *)(void *)symbols->data)[n - 1].after = n;
}

/* A character as a token: itself with what marks its place in the word, its bytes, or unknown. */
static int64_t token_of(const gc_vocabulary *v, const uint8_t *c, size_t n, bool first, bool last,
                        gc_bytes *scratch) {
  const gc_vocabulary_fields *f = &v->fields;
  bool prefix = !first && f->continuing != (uint32_t)GC_NONE;
  bool suffix = last && f->ending != (uint32_t)GC_NONE;
  const uint32_t *trie = gc_words_of(v, f->trie);
  if (!prefix && !suffix) return gc_trie_find(trie, c, n);
  scratch->n = 0;
  if (prefix) gc_bytes_add(scratch, v->sections[f->continuing].data, v->sections[f->continuing].bytes);
  gc_bytes_add(scratch, c, n);
  if (suffix) gc_bytes_add(scratch, v->sections[f->ending].data, v->sections[f->ending].bytes);
  return scratch->failed ? GC_NONE : gc_trie_find(trie, scratch->data, scratch->n);
}

static bool add_bytes(const gc_vocabulary *v, const uint8_t *c, size_t n, gc_bytes *symbols) {
  const uint32_t *tokens = gc_words_of(v, v->fields.bytes);
  for (size_t i = 0; i < n; i++) {
    if (tokens[c[i]] == (uint32_t)GC_NONE) return false;
  }
  for (size_t i = 0; i < n; i++) add_symbol(symbols, tokens[c[i]]);
  return true;
}

static void add_characters(const gc_vocabulary *v, const uint8_t *word, size_t n, gc_bytes *symbols,
                           gc_bytes *scratch) {
  const gc_vocabulary_fields *f = &v->fields;
  bool unknown = false; /* one is due */
  size_t length = 1;
  for (size_t at = 0; at < n; at += length) {
    if (!(f->flags & GC_BYTE_LEVEL)) gc_char_at(word, n, at, &length);
    int64_t token = token_of(v, word + at, length, at == 0, at + length == n, scratch);
    if (token >= 0) {
      if (unknown) add_symbol(symbols, f->unknown);
      unknown = false;
      add_symbol(symbols, (uint32_t)token);
      continue;
    }
    if ((f->flags & GC_BYTE_FALLBACK) && add_bytes(v, word + at, length, symbols)) continue;
    if (f->unknown == (uint32_t)GC_NONE) continue;
    if (unknown && !(f->flags & GC_FUSE_UNKNOWN)) add_symbol(symbols, f->unknown);
    unknown = true;
  }
  if (unknown) add_symbol(symbols, f->unknown);
}

static void merge_all(const gc_vocabulary *v, symbol *symbols, int32_t n, gc_bytes *heap) {
  for (int32_t i = 0; i < n; i++) consider(v, symbols, i, heap);
  while (heap->n && !heap->failed) {
    merge top = pop(heap), now;
    symbol *left = &symbols[top.place];
    if (left->gone || left->after < 0) continue;
    symbol *right = &symbols[left->after];
    /* The pair may be another by now, one that would become something else. */
    if (!find(v, left->token, right->token, &now) || now.token != top.token) continue;
    left->token = top.token;
    left->after = right->after;
    right->gone = true;
    if (right->after >= 0) symbols[right->after].before = top.place;
    consider(v, symbols, left->before, heap);
    consider(v, symbols, top.place, heap);
  }
}

bool gc_encode_bpe(const gc_vocabulary *v, const uint8_t *word, size_t n, gc_bytes *scratch,
                   gc_output *output) {
  if (v->fields.flags & GC_IGNORE_MERGES) {
    int64_t whole = gc_trie_find(gc_words_of(v, v->fields.trie), word, n);
    if (whole >= 0) {
      gc_emit(output, (uint32_t)whole);
      return true;
    }
  }
  gc_bytes symbols = {0}, heap = {0};
  if (n > INT32_MAX) return false;
  add_characters(v, word, n, &symbols, scratch);
  symbol *list = (void *)symbols.data;
  int32_t count = (int32_t)(symbols.n / sizeof *list);
  bool failed = symbols.failed;
  if (!failed) merge_all(v, list, count, &heap);
  failed |= heap.failed;
  for (int32_t i = 0; i < count && !failed; i++) {
    if (!list[i].gone) gc_emit(output, list[i].token);
  }
  gc_bytes_free(&symbols);
  gc_bytes_free(&heap);
  return !failed;
}

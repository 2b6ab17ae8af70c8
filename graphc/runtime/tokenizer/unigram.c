/* unigram.c: the likeliest way to cut a word into tokens (Kudo 2018), by Viterbi's algorithm. */
#include "vocabulary.h"

typedef struct {
  double score;
  size_t start;
  uint32_t token;
  bool reached;
} node;

static void offer(node *target, double score, size_t start, uint32_t token) {
  if (target->reached && !(score > target->score)) return;
  *target = (node){score, start, token, true};
}

/* Bytes stand for what is unknown where the vocabulary has all of them. */
static bool emit_bytes(const gc_vocabulary *v, const uint8_t *text, size_t n, gc_output *output) {
  const uint32_t *tokens = gc_words_of(v, v->fields.bytes);
  for (size_t i = 0; i < n; i++) {
    if (tokens[text[i]] == (uint32_t)GC_NONE) return false;
  }
  for (size_t i = 0; i < n; i++) gc_emit(output, tokens[text[i]]);
  return true;
}

static void trace(const gc_vocabulary *v, const uint8_t *word, size_t n, const node *best,
                  gc_bytes *scratch, gc_output *output) {
  scratch->n = 0;
  for (size_t end = n; end > 0; end = best[end].start) gc_bytes_add(scratch, &end, sizeof end);
  if (scratch->failed) return;
  const size_t *ends = (const size_t *)(const void *)scratch->data;
  size_t count = scratch->n / sizeof *ends;
  uint32_t unknown = v->fields.unknown;
  for (size_t i = count; i-- > 0;) {
    size_t start = best[ends[i]].start;
    uint32_t token = best[ends[i]].token;
    while (token == unknown && i > 0 && best[ends[i - 1]].token == unknown) i--;
    bool as_bytes = token == unknown && (v->fields.flags & GC_BYTE_FALLBACK) &&
                    emit_bytes(v, word + start, ends[i] - start, output);
    if (!as_bytes) gc_emit(output, token);
  }
}

bool gc_encode_unigram(const gc_vocabulary *v, const uint8_t *word, size_t n, gc_bytes *scratch,
                       gc_output *output) {
  const uint32_t *trie = gc_words_of(v, v->fields.trie);
  const uint8_t *scores = v->sections[v->fields.scores].data;
  double unknown_score, score;
  memcpy(&unknown_score, scores + 8 * (size_t)v->fields.tokens, 8);
  gc_bytes nodes = {0};
  node none = {0};
  for (size_t i = 0; i <= n; i++) gc_bytes_add(&nodes, &none, sizeof none);
  if (nodes.failed) {
    gc_bytes_free(&nodes);
    return false;
  }
  node *best = (void *)nodes.data;
  size_t length;
  best[0].reached = true;
  for (size_t start = 0; start < n; start += length) {
    gc_char_at(word, n, start, &length);
    double before = best[start].score;
    bool single = false;
    uint32_t at = 0;
    for (size_t end = start; end < n && gc_trie_step(trie, &at, word[end]); end++) {
      int64_t token = gc_trie_value(trie, at);
      if (token < 0) continue;
      memcpy(&score, scores + 8 * (size_t)token, 8);
      offer(&best[end + 1], score + before, start, (uint32_t)token);
      single |= end + 1 - start == length;
    }
    if (!single) offer(&best[start + length], unknown_score + before, start, v->fields.unknown);
  }
  trace(v, word, n, best, scratch, output);
  gc_bytes_free(&nodes);
  return !scratch->failed;
}

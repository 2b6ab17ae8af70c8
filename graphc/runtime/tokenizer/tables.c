/* tables.c: sets, maps, strings and tries of a vocabulary; growing bytes; UTF-8. */
#include <stdlib.h>

#include "vocabulary.h"

void gc_bytes_add(gc_bytes *bytes, const void *data, size_t n) {
  if (bytes->n + n > bytes->room) {
    size_t room = 2 * (bytes->n + n) + 64;
    uint8_t *grown = bytes->failed ? NULL : realloc(bytes->data, room);
    if (!grown) {
      bytes->failed = true;
      return;
    }
    bytes->data = grown;
    bytes->room = room;
  }
  if (n) memcpy(bytes->data + bytes->n, data, n);
  bytes->n += n;
}

void gc_bytes_free(gc_bytes *bytes) {
  free(bytes->data);
  *bytes = (gc_bytes){0};
}

void gc_bytes_add_char(gc_bytes *bytes, uint32_t c) {
  uint8_t out[4];
  size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = n; i-- > 1; c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3f));
  static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
  out[0] = (uint8_t)(lead[n] | c);
  gc_bytes_add(bytes, out, n);
}

uint32_t gc_char_at(const uint8_t *text, size_t n, size_t at, size_t *length) {
  uint32_t c = text[at];
  *length = 1;
  if (c < 0x80) return c;
  size_t more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
  static const uint8_t mask[] = {0, 0x1f, 0x0f, 0x07};
  if (c < 0xc2 || c > 0xf4 || n - at <= more) return 0xfffd;
  c &= mask[more];
  for (size_t i = 1; i <= more; i++) {
    if ((text[at + i] & 0xc0) != 0x80) return 0xfffd;
    c = c << 6 | (text[at + i] & 0x3f);
  }
  static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
  if (c < least[more] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0xfffd;
  *length = more + 1;
  return c;
}

bool gc_is_utf8(const uint8_t *text, size_t n, size_t *place) {
  for (size_t at = 0, length; at < n; at += length) {
    if (gc_char_at(text, n, at, &length) == 0xfffd && length == 1) {
      *place = at;
      return false;
    }
  }
  return true;
}

bool gc_set_has(const uint32_t *set, uint32_t c) {
  if (c < 128) return set[c >> 5] >> (c & 31) & 1;
  const uint32_t *ranges = set + 5;
  uint32_t low = 0, high = set[4];
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (c < ranges[2 * middle]) {
      high = middle;
    } else if (c > ranges[2 * middle + 1]) {
      low = middle + 1;
    } else {
      return true;
    }
  }
  return false;
}

static void string_at(const uint32_t *offsets, uint32_t n, uint32_t place, gc_section *string) {
  const uint8_t *bytes = (const uint8_t *)(offsets + n + 1);
  *string = (gc_section){bytes + offsets[place], offsets[place + 1] - offsets[place]};
}

bool gc_strings_at(const gc_vocabulary *v, uint32_t section, uint32_t place, gc_section *string) {
  const uint32_t *words = gc_words_of(v, section);
  if (place >= words[0]) return false;
  string_at(words + 1, words[0], place, string);
  return true;
}

bool gc_map_find(const gc_vocabulary *v, uint32_t section, uint32_t c, gc_section *string) {
  const uint32_t *words = gc_words_of(v, section);
  uint32_t n = words[0], low = 0, high = n;
  const uint32_t *keys = words + 1;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (keys[middle] < c) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == n || keys[low] != c) return false;
  string_at(keys + n, n, low, string);
  return true;
}

bool gc_trie_step(const uint32_t *trie, uint32_t *node, uint8_t byte) {
  uint32_t nodes = trie[0], edges = trie[1];
  const uint32_t *first = trie + 2, *targets = first + nodes + 1 + nodes;
  const uint8_t *labels = (const uint8_t *)(targets + edges);
  uint32_t low = first[*node], high = first[*node + 1];
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    if (labels[middle] < byte) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == first[*node + 1] || labels[low] != byte) return false;
  *node = targets[low];
  return true;
}

int64_t gc_trie_value(const uint32_t *trie, uint32_t node) {
  return (int64_t)trie[2 + trie[0] + 1 + node] - 1;
}

int64_t gc_trie_find(const uint32_t *trie, const uint8_t *key, size_t n) {
  uint32_t node = 0;
  for (size_t i = 0; i < n; i++) {
    if (!gc_trie_step(trie, &node, key[i])) return GC_NONE;
  }
  return n ? gc_trie_value(trie, node) : GC_NONE;
}

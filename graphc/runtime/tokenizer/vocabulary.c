/* vocabulary.c: opening a compiled vocabulary, and the texts of its tokens. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"
#include "vocabulary.h"

static const char MAGIC[8] = {'g', 'r', 'a', 'p', 'h', 'c', 'V', '1'};
enum { MAX_SECTIONS = 1 << 16, MAX_BYTES = 1 << 28 };

static uint8_t *read_file(const char *path, size_t *bytes, gc_error *error) {
  FILE *file = fopen(path, "rb");
  if (!file) {
    gc_fail(error, GC_ERROR_ARTIFACT, "cannot read %s: %s", path, strerror(errno));
    return NULL;
  }
  uint8_t *data = NULL;
  long size = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
  if (size < 12 || size > MAX_BYTES || fseek(file, 0, SEEK_SET)) {
    gc_fail(error, GC_ERROR_ARTIFACT, "%s: not a vocabulary, or too large", path);
  } else if (!(data = malloc((size_t)size))) {
    gc_fail(error, GC_ERROR_MEMORY, "no memory for the %ld bytes of %s", size, path);
  } else if (fread(data, 1, (size_t)size, file) != (size_t)size) {
    gc_fail(error, GC_ERROR_ARTIFACT, "cannot read %s to its end", path);
    free(data);
    data = NULL;
  }
  fclose(file);
  *bytes = (size_t)size;
  return data;
}

/* Fills the table of sections; false when it does not fit the file. */
static bool find_sections(gc_vocabulary *v, size_t bytes) {
  uint32_t n;
  memcpy(&n, v->file + 8, 4);
  if (memcmp(v->file, MAGIC, 8) || n < 1 || n > MAX_SECTIONS || (bytes - 12) / 8 < n) return false;
  v->n_sections = n;
  v->sections = calloc(n, sizeof *v->sections);
  if (!v->sections) return false;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t place[2];
    memcpy(place, v->file + 12 + 8 * (size_t)i, 8);
    if (place[0] % 8 || place[0] > bytes || place[1] > bytes - place[0]) return false;
    v->sections[i] = (gc_section){v->file + place[0], place[1]};
  }
  if (v->sections[0].bytes != sizeof v->fields) return false;
  memcpy(&v->fields, v->sections[0].data, sizeof v->fields);
  return true;
}

gc_vocabulary *gc_vocabulary_open(const char *path, gc_error *error) {
  if (!path) {
    gc_fail(error, GC_ERROR_USE, "the path of the vocabulary is NULL");
    return NULL;
  }
  gc_vocabulary *v = calloc(1, sizeof *v);
  if (!v) {
    gc_fail(error, GC_ERROR_MEMORY, "no memory for a vocabulary");
    return NULL;
  }
  size_t bytes;
  v->file = read_file(path, &bytes, error);
  if (v->file && find_sections(v, bytes) && gc_vocabulary_check(v)) return v;
  if (v->file)
    gc_fail(error, GC_ERROR_ARTIFACT, "%s: is damaged, or of another version; compile again", path);
  gc_vocabulary_close(v);
  return NULL;
}

void gc_vocabulary_close(gc_vocabulary *v) {
  if (!v) return;
  free(v->sections);
  free(v->file);
  free(v);
}

int32_t gc_vocabulary_size(const gc_vocabulary *v) {
  return v ? (int32_t)gc_words_of(v, v->fields.texts)[0] : 0;
}

const char *gc_vocabulary_text(const gc_vocabulary *v, int32_t token, int32_t first,
                               size_t *bytes) {
  gc_section text = {NULL, 0};
  if (v && token >= 0 && token < gc_vocabulary_size(v) &&
      !v->sections[v->fields.special].data[token])
    gc_strings_at(v, first ? v->fields.first_texts : v->fields.texts, (uint32_t)token, &text);
  if (bytes) *bytes = text.bytes;
  return (const char *)text.data;
}

const int32_t *gc_vocabulary_stops(const gc_vocabulary *v, int32_t *n) {
  *n = v ? (int32_t)gc_word_count(v, v->fields.stops) : 0;
  return v ? (const int32_t *)(const void *)gc_words_of(v, v->fields.stops) : NULL;
}

char *gc_vocabulary_chat(const gc_vocabulary *v, const char *text, gc_error *error) {
  if (!v || !text) {
    gc_fail(error, GC_ERROR_USE, "the vocabulary or the text is NULL");
    return NULL;
  }
  if (v->fields.chat_before == (uint32_t)GC_NONE) {
    gc_fail(error, GC_ERROR_USE, "this model has no chat template: give it a plain prompt");
    return NULL;
  }
  gc_section before = v->sections[v->fields.chat_before];
  gc_section after = v->sections[v->fields.chat_after];
  size_t n = strlen(text);
  char *whole = malloc(before.bytes + n + after.bytes + 1);
  if (!whole) {
    gc_fail(error, GC_ERROR_MEMORY, "no memory for the conversation");
    return NULL;
  }
  memcpy(whole, before.data, before.bytes);
  memcpy(whole + before.bytes, text, n);
  memcpy(whole + before.bytes + n, after.data, after.bytes);
  whole[before.bytes + n + after.bytes] = 0;
  return whole;
}

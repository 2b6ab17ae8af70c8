/* fuzz.c: opens damaged copies of a vocabulary, and encodes a text with those that are not refused.
 *
 * usage: fuzz VOCABULARY SCRATCH TEXT ROUNDS SEED */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graphc_tokenizer.h"

static uint64_t state;

static uint32_t draw(uint32_t below) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (uint32_t)(state >> 32) % below;
}

static char *read_all(const char *path, size_t *n) {
  FILE *file = fopen(path, "rb");
  if (!file) exit(3);
  fseek(file, 0, SEEK_END);
  *n = (size_t)ftell(file);
  rewind(file);
  char *data = malloc(*n + 1);
  if (!data || fread(data, 1, *n, file) != *n) exit(3);
  fclose(file);
  return data;
}

/* A few words of the file become others: small numbers most of the time, as those do most harm. */
static size_t damage(char *data, size_t n) {
  size_t words = n / 4, head = words < 400 ? words : 400;
  for (uint32_t i = 0, count = 1 + draw(4); i < count; i++) {
    size_t place = draw(2) ? draw((uint32_t)head) : draw((uint32_t)words);
    uint32_t value = draw(3) ? draw(600) : (uint32_t)(state >> 16);
    memcpy(data + 4 * place, &value, 4);
  }
  return draw(8) ? n : draw((uint32_t)n);
}

int main(int argc, char **argv) {
  if (argc != 6) return 3;
  size_t n, length;
  char *whole = read_all(argv[1], &n), *text = read_all(argv[3], &length);
  char *data = malloc(n);
  state = strtoull(argv[5], NULL, 10) * 2 + 1;
  long opened = 0, rounds = strtol(argv[4], NULL, 10);
  for (long round = 0; round < rounds && data; round++) {
    memcpy(data, whole, n);
    size_t kept = damage(data, n);
    FILE *file = fopen(argv[2], "wb");
    if (!file || fwrite(data, 1, kept, file) != kept || fclose(file)) return 3;
    gc_error error;
    gc_vocabulary *vocabulary = gc_vocabulary_open(argv[2], &error);
    if (!vocabulary) continue;
    opened++;
    int32_t tokens[4096];
    int64_t count = gc_vocabulary_encode(vocabulary, text, length, 1, tokens, 4096, &error);
    for (int64_t i = 0; i < count && i < 4096; i++) {
      size_t bytes, sum = 0;
      const char *part = gc_vocabulary_text(vocabulary, tokens[i], i == 0, &bytes);
      for (size_t b = 0; part && b < bytes; b++) sum += (unsigned char)part[b];
      if (sum == SIZE_MAX) return 4;
    }
    int32_t stops;
    gc_vocabulary_stops(vocabulary, &stops);
    free(gc_vocabulary_chat(vocabulary, "x", &error));
    gc_vocabulary_close(vocabulary);
  }
  printf("%ld of %ld opened\n", opened, rounds);
  free(data);
  free(whole);
  free(text);
  return 0;
}

/* weights.c: maps weights.bin and checks that it is the file which this program was compiled with.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* The header; graphc/artifact.py writes it. All numbers are little-endian. */
enum { HEADER_BYTES = 4096, FORMAT_VERSION = 1 };
typedef struct {
  char magic[8];
  uint32_t version;
  uint32_t count;
  uint64_t bytes;
  uint8_t digest[32];
} header;
static const char MAGIC[] = "GRAPHCW\n";

static int map_file(gc_weights *weights, const char *path, gc_error *error) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0)
    return gc_fail(error, GC_ERROR_ARTIFACT, "cannot open '%s': %s", path, strerror(errno));
  struct stat status;
  void *data = MAP_FAILED;
  int code = GC_OK;
  if (fstat(file, &status) || !S_ISREG(status.st_mode)) {
    code = gc_fail(error, GC_ERROR_ARTIFACT, "'%s' is not a regular file", path);
  } else if (status.st_size < HEADER_BYTES) {
    code =
        gc_fail(error, GC_ERROR_ARTIFACT,
                "'%s' is truncated: %lld bytes, its header alone has %d; copy the artifact again",
                path, (long long)status.st_size, HEADER_BYTES);
  } else {
    data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED)
      code = gc_fail(error, GC_ERROR_MEMORY, "cannot map '%s': %s", path, strerror(errno));
  }
  close(file); /* the mapping stays */
  if (code) return code;
  weights->data = data;
  weights->bytes = (size_t)status.st_size;
  return GC_OK;
}

static int check_header(const gc_weights *weights, const char *path, const gc_program *program,
                        gc_error *error) {
  header h;
  memcpy(&h, weights->data, sizeof h);
  if (memcmp(h.magic, MAGIC, sizeof h.magic))
    return gc_fail(error, GC_ERROR_ARTIFACT, "'%s' is not a graphc weights file", path);
  if (h.version != FORMAT_VERSION)
    return gc_fail(error, GC_ERROR_ARTIFACT,
                   "'%s' has format version %u, this library reads version %d; compile again", path,
                   h.version, FORMAT_VERSION);
  if (h.bytes != program->weights_bytes || h.count != (uint32_t)program->n_weights ||
      memcmp(h.digest, program->weights_digest, sizeof h.digest))
    return gc_fail(error, GC_ERROR_ARTIFACT,
                   "'%s' belongs to another model than this library; copy both from one artifact",
                   path);
  if (h.bytes != weights->bytes)
    return gc_fail(error, GC_ERROR_ARTIFACT,
                   "'%s' is truncated or padded: %zu bytes, expected %llu; copy the artifact again",
                   path, weights->bytes, (unsigned long long)h.bytes);
  return GC_OK;
}

/* Sum of (2 i + 1) * word i over 64-bit words, the last one padded with zeros: odd factors have
 * inverses, so no change of a single word goes unseen. Against damage, not against malice. */
static uint64_t checksum(const uint8_t *data, uint64_t bytes) {
  uint64_t sum = 0, factor = 1, word;
  for (; bytes >= 8; bytes -= 8, data += 8, factor += 2) {
    memcpy(&word, data, 8);
    sum += factor * word;
  }
  word = 0;
  memcpy(&word, data, bytes);
  return sum + factor * word;
}

static int check_tensors(const gc_weights *weights, const char *path, const gc_program *program,
                         bool check_all, gc_error *error) {
  for (int32_t i = 0; i < program->n_weights; i++) {
    const gc_weight *w = &program->weights[i];
    if (w->offset % GC_ALIGNMENT || w->offset > weights->bytes ||
        w->bytes > weights->bytes - w->offset)
      return gc_fail(error, GC_ERROR_ARTIFACT, "weight '%s' lies outside '%s'", w->name, path);
    if ((check_all || w->is_index) && checksum(weights->data + w->offset, w->bytes) != w->checksum)
      return gc_fail(error, GC_ERROR_ARTIFACT,
                     "weight '%s' in '%s' is damaged; copy the artifact again", w->name, path);
  }
  return GC_OK;
}

int gc_weights_open(gc_weights *weights, const char *path, const gc_program *program,
                    bool check_all, gc_error *error) {
  *weights = (gc_weights){0};
  int code = map_file(weights, path, error);
  if (!code) code = check_header(weights, path, program, error);
  if (!code) code = check_tensors(weights, path, program, check_all, error);
  if (code) gc_weights_close(weights);
  return code;
}

void gc_weights_close(gc_weights *weights) {
  if (weights->data) munmap((void *)weights->data, weights->bytes);
  *weights = (gc_weights){0};
}

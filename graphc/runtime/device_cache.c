/* device_cache.c: reading and writing the cache of a device's driver. */
#define _GNU_SOURCE
#include "device_cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE = 256 << 20 };

uint64_t gc_cache_hash(uint64_t h, const void *data, size_t bytes) {
  const uint8_t *from = data;
  if (!h) h = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < bytes; i++) h = (h ^ from[i]) * UINT64_C(0x100000001b3);
  return h ^ h >> 29;
}

bool gc_cache_path(const char *name, char *path, size_t size) {
  const char *own = getenv("GRAPHC_DEVICE_CACHE"), *xdg = getenv("XDG_CACHE_HOME");
  const char *home = getenv("HOME");
  char directory[3072];
  int n = -1;
  if (own && *own)
    n = snprintf(directory, sizeof directory, "%s", own);
  else if (xdg && *xdg)
    n = snprintf(directory, sizeof directory, "%s/graphc/device", xdg);
  else if (home && *home)
    n = snprintf(directory, sizeof directory, "%s/.cache/graphc/device", home);
  if (n <= 0 || (size_t)n >= sizeof directory) return false;
  for (char *c = directory + 1; *c; c++) {
    if (*c != '/') continue;
    *c = '\0';
    mkdir(directory, 0777);
    *c = '/';
  }
  if (mkdir(directory, 0777) && errno != EEXIST) return false;
  n = snprintf(path, size, "%s/%s", directory, name);
  return n > 0 && (size_t)n < size;
}

/* A file's bytes behind its checksum: drivers are known to crash on damaged data of their own. */
void *gc_cache_read(const char *path, size_t *bytes) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return NULL;
  struct stat status;
  uint8_t *data = NULL;
  uint64_t checksum = 0;
  if (!fstat(file, &status) && status.st_size > (off_t)sizeof checksum &&
      status.st_size <= MAX_FILE) {
    *bytes = (size_t)status.st_size - sizeof checksum;
    data = malloc(*bytes);
    bool whole = data && read(file, &checksum, sizeof checksum) == (ssize_t)sizeof checksum &&
                 read(file, data, *bytes) == (ssize_t)*bytes &&
                 checksum == gc_cache_hash(0, data, *bytes);
    if (!whole) {
      free(data);
      data = NULL;
    }
  }
  close(file);
  return data;
}

void gc_cache_write(const char *path, const void *data, size_t bytes) {
  char draft[4200];
  if (bytes > MAX_FILE) return;
  snprintf(draft, sizeof draft, "%s.%ld", path, (long)getpid());
  int file = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return;
  uint64_t checksum = gc_cache_hash(0, data, bytes);
  bool written = write(file, &checksum, sizeof checksum) == (ssize_t)sizeof checksum &&
                 write(file, data, bytes) == (ssize_t)bytes;
  if (close(file) || !written || rename(draft, path)) unlink(draft);
}

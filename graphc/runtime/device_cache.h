/* device_cache.h: files that a device's driver made, kept between runs.
 *
 * They lie in $GRAPHC_DEVICE_CACHE, else under graphc/device in $XDG_CACHE_HOME or ~/.cache. What
 * cannot be read or written is done without. */
#ifndef GRAPHC_DEVICE_CACHE_H_
#define GRAPHC_DEVICE_CACHE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 64 bits of a hash of `bytes` bytes, continued from `h` (0 to begin). */
uint64_t gc_cache_hash(uint64_t h, const void *data, size_t bytes);

/* The path of the file with this name; false when there is no place for one. */
bool gc_cache_path(const char *name, char *path, size_t size);

/* A file's content in memory of malloc's; NULL when it is absent or damaged. */
void *gc_cache_read(const char *path, size_t *bytes);

/* Writes a file at once: others see the old content or all of the new. */
void gc_cache_write(const char *path, const void *data, size_t bytes);

#endif

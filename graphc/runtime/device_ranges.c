/* device_ranges.c: a sorted list of reserved address ranges. */
#define _GNU_SOURCE
#include "device_ranges.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The number of ranges that begin at or before the address. */
static int32_t place_of(const gc_ranges *ranges, uintptr_t address) {
  int32_t low = 0, high = ranges->n;
  while (low < high) {
    int32_t middle = (low + high) / 2;
    if (ranges->ranges[middle].base <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

int gc_ranges_add(gc_ranges *ranges, gc_range range, void **address, gc_error *error) {
  *address = NULL;
  if (ranges->n == ranges->room) {
    int32_t room = ranges->room ? 2 * ranges->room : 64;
    gc_range *more = realloc(ranges->ranges, (size_t)room * sizeof *more);
    if (!more) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
    ranges->ranges = more;
    ranges->room = room;
  }
  void *reserved = mmap(NULL, range.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
  if (reserved == MAP_FAILED)
    return gc_fail(error, GC_ERROR_MEMORY, "no addresses are left for %zu bytes", range.bytes);
  range.base = (uintptr_t)reserved;
  int32_t at = place_of(ranges, range.base);
  memmove(&ranges->ranges[at + 1], &ranges->ranges[at],
          (size_t)(ranges->n - at) * sizeof *ranges->ranges);
  ranges->ranges[at] = range;
  ranges->n++;
  *address = reserved;
  return GC_OK;
}

const gc_range *gc_ranges_find(const gc_ranges *ranges, const void *address) {
  int32_t at = place_of(ranges, (uintptr_t)address) - 1;
  if (at < 0 || (uintptr_t)address - ranges->ranges[at].base >= ranges->ranges[at].bytes)
    return NULL;
  return &ranges->ranges[at];
}

bool gc_ranges_remove(gc_ranges *ranges, const void *address, gc_range *removed) {
  int32_t at = place_of(ranges, (uintptr_t)address) - 1;
  if (at < 0 || ranges->ranges[at].base != (uintptr_t)address) return false;
  *removed = ranges->ranges[at];
  munmap((void *)removed->base, removed->bytes);
  ranges->n--;
  memmove(&ranges->ranges[at], &ranges->ranges[at + 1],
          (size_t)(ranges->n - at) * sizeof *ranges->ranges);
  return true;
}

void gc_ranges_free(gc_ranges *ranges) {
  for (int32_t i = 0; i < ranges->n; i++)
    munmap((void *)ranges->ranges[i].base, ranges->ranges[i].bytes);
  free(ranges->ranges);
  *ranges = (gc_ranges){0};
}

size_t gc_bytes_behind(const void *address, const gc_value *tensors, int32_t n) {
  size_t most = 0; /* a view of the same memory may be larger */
  for (int32_t i = 0; i < n; i++) {
    if (tensors[i].type != GC_VALUE_TENSOR) continue;
    const DLTensor *t = tensors[i].as.tensor;
    size_t bytes = gc_tensor_bytes(t->dtype, t->ndim, t->shape);
    if (t->data == address && bytes != SIZE_MAX && bytes > most) most = bytes;
  }
  return most;
}

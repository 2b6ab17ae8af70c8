/* device_ranges.h: addresses for a device's buffers, which are handles, and buffers for addresses. */
#ifndef GRAPHC_DEVICE_RANGES_H_
#define GRAPHC_DEVICE_RANGES_H_

#include "internal.h"

/* One allocation. Its address range is reserved and never readable: the plan adds offsets to it. */
typedef struct {
  uintptr_t base;
  size_t bytes;
  uint64_t buffer, memory; /* the back end's handles */
  void *mapped;            /* where the CPU sees it, or NULL */
} gc_range;

typedef struct {
  gc_range *ranges; /* sorted by base */
  int32_t n, room;
} gc_ranges;

/* Adds `range`, whose base it fills in. */
int gc_ranges_add(gc_ranges *ranges, gc_range range, void **address, gc_error *error);
/* The range that an address lies in, or NULL. */
const gc_range *gc_ranges_find(const gc_ranges *ranges, const void *address);
/* Takes out the range that begins at `address`; false when there is none. */
bool gc_ranges_remove(gc_ranges *ranges, const void *address, gc_range *removed);
/* Gives up the list itself; the buffers are the caller's. */
void gc_ranges_free(gc_ranges *ranges);

/* How many bytes the tensors among a launch's values have at an address; 0 when none is there. */
size_t gc_bytes_behind(const void *address, const gc_value *tensors, int32_t n);

#endif

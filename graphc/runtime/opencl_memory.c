/* opencl_memory.c: addresses for OpenCL's buffers, and buffers for addresses. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "opencl.h"

static int32_t place_of(const opencl_ranges *ranges, uintptr_t address) {
  int32_t low = 0, high = ranges->n; /* the first range behind the address */
  while (low < high) {
    int32_t middle = (low + high) / 2;
    if (ranges->ranges[middle].base <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

int gc_opencl_add(const opencl_shared *shared, opencl_ranges *ranges, size_t bytes, void **address,
                  gc_error *error) {
  *address = NULL;
  if (bytes == 0) bytes = 1;
  if (bytes > shared->max_bytes)
    return gc_fail(error, GC_ERROR_MEMORY,
                   "the device gives at most %zu bytes at once, %zu are needed: use smaller inputs",
                   shared->max_bytes, bytes);
  if (ranges->n == ranges->room) {
    int32_t room = ranges->room ? 2 * ranges->room : 64;
    opencl_range *more = realloc(ranges->ranges, (size_t)room * sizeof *more);
    if (!more) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
    ranges->ranges = more;
    ranges->room = room;
  }
  void *reserved = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED)
    return gc_fail(error, GC_ERROR_MEMORY, "no addresses are left for %zu bytes", bytes);
  int32_t code;
  cl_object buffer =
      shared->api->clCreateBuffer(shared->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
  if (!buffer) {
    munmap(reserved, bytes);
    return gc_fail(error, GC_ERROR_MEMORY, "the device has no room for %zu bytes (%s, %d)", bytes,
                   gc_opencl_text(code), code);
  }
  uintptr_t base = (uintptr_t)reserved;
  int32_t at = place_of(ranges, base);
  memmove(&ranges->ranges[at + 1], &ranges->ranges[at],
          (size_t)(ranges->n - at) * sizeof *ranges->ranges);
  ranges->ranges[at] = (opencl_range){base, bytes, buffer};
  ranges->n++;
  *address = reserved;
  return GC_OK;
}

static void release(const opencl_shared *shared, const opencl_range *range) {
  shared->api->clReleaseMemObject(range->buffer);
  munmap((void *)range->base, range->bytes);
}

void gc_opencl_remove(const opencl_shared *shared, opencl_ranges *ranges, void *address) {
  int32_t at = place_of(ranges, (uintptr_t)address) - 1;
  if (at < 0 || ranges->ranges[at].base != (uintptr_t)address) return;
  release(shared, &ranges->ranges[at]);
  ranges->n--;
  memmove(&ranges->ranges[at], &ranges->ranges[at + 1],
          (size_t)(ranges->n - at) * sizeof *ranges->ranges);
}

void gc_opencl_remove_all(const opencl_shared *shared, opencl_ranges *ranges) {
  for (int32_t i = 0; i < ranges->n; i++) release(shared, &ranges->ranges[i]);
  free(ranges->ranges);
  *ranges = (opencl_ranges){0};
}

static const opencl_range *find_in(const opencl_ranges *ranges, uintptr_t address) {
  int32_t at = place_of(ranges, address) - 1;
  if (at < 0 || address - ranges->ranges[at].base >= ranges->ranges[at].bytes) return NULL;
  return &ranges->ranges[at];
}

const opencl_range *gc_opencl_find(const opencl_state *state, const void *address) {
  const opencl_range *range = find_in(&state->ranges, (uintptr_t)address);
  return range ? range : find_in(&state->shared->weights, (uintptr_t)address);
}

static uint32_t slot_of(cl_object parent, size_t origin, size_t bytes) {
  uint64_t h = (uint64_t)(uintptr_t)parent ^ origin * 0x9e3779b97f4a7c15u ^ bytes << 17;
  return (uint32_t)((h * 0x9e3779b97f4a7c15u) >> 54);
}

int gc_opencl_part(opencl_state *state, const void *address, size_t bytes, cl_object *part,
                   gc_error *error) {
  const opencl_range *range = gc_opencl_find(state, address);
  if (!range || (uintptr_t)address - range->base + bytes > range->bytes)
    return gc_fail(error, GC_ERROR_KERNEL, "a kernel was given memory that is not the device's");
  size_t origin = (uintptr_t)address - range->base;
  if (origin == 0) {
    *part = range->buffer;
    return GC_OK;
  }
  opencl_part *known = &state->parts[slot_of(range->buffer, origin, bytes)];
  if (known->parent == range->buffer && known->origin == origin && known->bytes == bytes) {
    *part = known->part;
    return GC_OK;
  }
  const opencl_api *api = state->shared->api;
  cl_region region = {origin, bytes ? bytes : 1};
  int32_t code;
  cl_object made = api->clCreateSubBuffer(range->buffer, CL_MEM_READ_WRITE,
                                          CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
  if (!made)
    return gc_fail(error, GC_ERROR_DEVICE, "part of a buffer cannot be had (%s, %d)",
                   gc_opencl_text(code), code);
  /* Commands that use the old part keep it alive until they are done. */
  if (known->part) api->clReleaseMemObject(known->part);
  *known = (opencl_part){range->buffer, made, origin, bytes};
  *part = made;
  return GC_OK;
}

void gc_opencl_forget_parts(opencl_state *state, cl_object parent) {
  for (int32_t i = 0; i < OPENCL_PARTS; i++) {
    opencl_part *known = &state->parts[i];
    if (!known->part || (parent && known->parent != parent)) continue;
    state->shared->api->clReleaseMemObject(known->part);
    *known = (opencl_part){0};
  }
}

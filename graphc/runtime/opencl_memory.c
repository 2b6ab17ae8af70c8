/* opencl_memory.c: OpenCL's buffers, and parts of them as buffers of their own. */
#include "opencl.h"

static cl_object handle(const gc_range *range) {
  return (cl_object)(uintptr_t)range->buffer;
}

int gc_opencl_add(const opencl_shared *shared, gc_ranges *ranges, size_t bytes, void **address,
                  gc_error *error) {
  *address = NULL;
  if (bytes == 0) bytes = 1;
  if (bytes > shared->max_bytes)
    return gc_fail(error, GC_ERROR_MEMORY,
                   "the device gives at most %zu bytes at once, %zu are needed: use smaller inputs",
                   shared->max_bytes, bytes);
  int32_t code;
  cl_object buffer =
      shared->api->clCreateBuffer(shared->context, CL_MEM_READ_WRITE, bytes, NULL, &code);
  if (!buffer)
    return gc_fail(error, GC_ERROR_MEMORY, "the device has no room for %zu bytes (%s, %d)", bytes,
                   gc_opencl_text(code), code);
  gc_range range = {.bytes = bytes, .buffer = (uintptr_t)buffer};
  int result = gc_ranges_add(ranges, range, address, error);
  if (result) shared->api->clReleaseMemObject(buffer);
  return result;
}

void gc_opencl_remove_all(const opencl_shared *shared, gc_ranges *ranges) {
  for (int32_t i = 0; i < ranges->n; i++)
    shared->api->clReleaseMemObject(handle(&ranges->ranges[i]));
  gc_ranges_free(ranges);
}

const gc_range *gc_opencl_find(const opencl_state *state, const void *address) {
  const gc_range *range = gc_ranges_find(&state->ranges, address);
  return range ? range : gc_ranges_find(&state->shared->weights, address);
}

static uint32_t slot_of(cl_object parent, size_t origin, size_t bytes) {
  uint64_t h = (uint64_t)(uintptr_t)parent ^ origin * 0x9e3779b97f4a7c15u ^ bytes << 17;
  return (uint32_t)((h * 0x9e3779b97f4a7c15u) >> 54); /* of OPENCL_PARTS = 2^10 */
}

int gc_opencl_part(opencl_state *state, const void *address, size_t bytes, cl_object *part,
                   gc_error *error) {
  const gc_range *range = gc_opencl_find(state, address);
  if (!range || (uintptr_t)address - range->base + bytes > range->bytes)
    return gc_fail(error, GC_ERROR_KERNEL, "a kernel was given memory that is not the device's");
  cl_object parent = handle(range);
  size_t origin = (uintptr_t)address - range->base;
  if (origin == 0) {
    *part = parent;
    return GC_OK;
  }
  opencl_part *known = &state->parts[slot_of(parent, origin, bytes)];
  if (known->parent == parent && known->origin == origin && known->bytes == bytes) {
    *part = known->part;
    return GC_OK;
  }
  const opencl_api *api = state->shared->api;
  cl_region region = {origin, bytes ? bytes : 1};
  int32_t code;
  cl_object made = api->clCreateSubBuffer(parent, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION,
                                          &region, &code);
  if (!made)
    return gc_fail(error, GC_ERROR_DEVICE, "part of a buffer cannot be had (%s, %d)",
                   gc_opencl_text(code), code);
  /* Commands that use the old part keep it alive until they are done. */
  if (known->part) api->clReleaseMemObject(known->part);
  *known = (opencl_part){parent, made, origin, bytes};
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

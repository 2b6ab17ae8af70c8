/* device.h: what a back end (the CPU; later CUDA, OpenCL, Vulkan) does for the static plan. */
#ifndef GRAPHC_DEVICE_H_
#define GRAPHC_DEVICE_H_

#include "program.h"

/* A table of functions; `state` is what `open` made. Sizes in bytes; failures fill `error` and
 * return its code. Memory is aligned to 64 bytes at least. */
typedef struct {
  const char *name;
  DLDeviceType type;
  int (*alloc)(void *state, size_t bytes, void **memory, gc_error *error);
  void (*free)(void *state, void *memory);
  int (*copy)(void *state, void *target, const void *source, size_t bytes, gc_error *error);
  int (*launch)(void *state, gc_kernel kernel, gc_value *args, int32_t n_args);
  int (*sync)(void *state, gc_error *error);
} gc_device;

extern const gc_device gc_device_cpu;

#endif

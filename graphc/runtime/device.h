/* device.h: what a back end (the CPU, OpenCL, Vulkan) does for the static plan. */
#ifndef GRAPHC_DEVICE_H_
#define GRAPHC_DEVICE_H_

#include "program.h"

/* A table of functions; failures fill `error` and return its code. Sizes are in bytes. A device's
 * memory has addresses that only the device understands, but that may be added to.
 *
 * `open` makes what all contexts of a model share, and puts the weights on the device: weight i at
 * addresses[i]. `attach` makes the state of one context; one thread uses it at a time. The CPU has
 * neither: its memory is the caller's. */
typedef struct gc_device {
  const char *name;
  DLDeviceType type;
  size_t alignment; /* of every piece of the arena */
  int (*open)(const gc_program *program, const uint8_t *weights, void **addresses, void **shared,
              gc_error *error);
  void (*close)(void *shared);
  int (*attach)(void *shared, void **state, gc_error *error);
  void (*detach)(void *state);
  int (*alloc)(void *state, size_t bytes, void **memory, gc_error *error);
  void (*free)(void *state, void *memory);
  int (*copy)(void *state, void *target, const void *source, size_t bytes, gc_error *error);
  int (*upload)(void *state, void *target, const void *source, size_t bytes, gc_error *error);
  int (*download)(void *state, void *target, const void *source, size_t bytes, gc_error *error);
  /* Starts a device kernel: its arguments, then its extents (gc_device_kernel.extents). Only the
   * tensors among `tensors` are behind pointer arguments. */
  int (*start)(void *state, const gc_device_kernel *kernel, const gc_value *args, int32_t n_args,
               const gc_value *tensors, int32_t n_tensors, gc_error *error);
  int (*sync)(void *state, gc_error *error);
} gc_device;

extern const gc_device gc_device_cpu;
extern const gc_device gc_device_opencl;
extern const gc_device gc_device_vulkan;

/* launch.c: runs a kernel's entry for a context's device. */
int gc_launch(gc_context *context, const char *name, gc_kernel kernel, gc_value *args,
              int32_t n_args, gc_error *error);

/* Memory of the device for the time of one launch, in which several kernels may be started. */
void *gc_launch_alloc(size_t bytes);
int gc_launch_free(void *memory);

#endif

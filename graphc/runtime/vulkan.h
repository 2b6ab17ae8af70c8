/* vulkan.h: what the Vulkan back end's files share. */
#ifndef GRAPHC_VULKAN_H_
#define GRAPHC_VULKAN_H_

#include "device.h"
#include "device_ranges.h"
#include "vulkan_api.h"

enum { VULKAN_MAX_ARGUMENTS = 64 };

/* A kernel's pipeline, made when it is first started. */
typedef struct {
  vk_handle set_layout, layout, pipeline;
  uint32_t n_buffers, n_constants;
} vulkan_kernel;

/* What the contexts of a model share. */
typedef struct {
  const vulkan_api *api;
  const gc_program *program;
  vk_object instance, physical, device;
  uint32_t family, max_groups[3], max_buffers, max_constants;
  uint64_t max_range;
  size_t alignment;
  vk_memory_properties memory;
  bool float64, int64, int16, float16, int8, storage16, storage8;
  uint8_t identity[16]; /* the driver's, of its pipeline caches */
  gc_ranges weights;
} vulkan_shared;

typedef struct {
  vulkan_shared *shared;
  vk_object queue, commands;
  vk_handle command_pool, descriptor_pool, fence, pipeline_cache;
  vulkan_kernel *kernels; /* [n_kernels] */
  size_t cached_bytes;    /* of the pipeline cache as it was read */
  gc_ranges ranges;
  gc_range staging; /* memory of the CPU's for copies, when the device's cannot be seen */
  bool recording, lost;
  int32_t recorded; /* dispatches in the command buffer */
} vulkan_state;

int gc_vulkan_fail(gc_error *error, const char *what, vk_result code);

/* vulkan_open.c: everything of `vulkan_shared` but the weights. */
int gc_vulkan_open(vulkan_shared *shared, gc_error *error);
void gc_vulkan_close(vulkan_shared *shared);

/* vulkan_memory.c */
int gc_vulkan_make(const vulkan_shared *shared, size_t bytes, bool for_cpu, gc_range *range,
                   gc_error *error);
void gc_vulkan_unmake(const vulkan_shared *shared, const gc_range *range);
const gc_range *gc_vulkan_find(const vulkan_state *state, const void *address);

/* vulkan_program.c */
int gc_vulkan_prepare(vulkan_state *state, const gc_device_kernel *kernel, vulkan_kernel **made,
                      gc_error *error);
void gc_vulkan_open_cache(vulkan_state *state);
void gc_vulkan_close_cache(vulkan_state *state);
void gc_vulkan_forget(const vulkan_state *state, vulkan_kernel *kernel);

#endif

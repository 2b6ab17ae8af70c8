/* device_vulkan.c: runs kernels on a Vulkan device; what one run starts is one command buffer. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan.h"

enum { MOST_RECORDED = 1024, TIMEOUT_SECONDS = 600, STAGING_BYTES = 1 << 20 };

static int begin(vulkan_state *s, gc_error *error) {
  if (s->lost)
    return gc_fail(error, GC_ERROR_DEVICE, "the Vulkan device was lost: make a new context");
  if (s->recording) return GC_OK;
  vk_begin_info info = {.type = VK_TYPE_BEGIN, .flags = 1 /* submitted once */};
  vk_result code = s->shared->api->vkBeginCommandBuffer(s->commands, &info);
  if (code) return gc_vulkan_fail(error, "no commands are taken", code);
  s->recording = true;
  s->recorded = 0;
  return GC_OK;
}

/* Everything recorded so far is done, and seen, before what comes. */
static void barrier(vulkan_state *s) {
  vk_barrier all = {VK_TYPE_MEMORY_BARRIER, NULL, VK_ACCESS_ALL, VK_ACCESS_ALL};
  s->shared->api->vkCmdPipelineBarrier(s->commands, VK_AT_COMPUTE_AND_COPY, VK_AT_COMPUTE_AND_COPY,
                                       0, 1, &all, 0, NULL, 0, NULL);
}

static int finish(void *state, gc_error *error) {
  vulkan_state *s = state;
  const vulkan_api *api = s->shared->api;
  vk_object device = s->shared->device;
  if (!s->recording) return GC_OK;
  s->recording = false;
  vk_result code = api->vkEndCommandBuffer(s->commands);
  if (!code) code = api->vkResetFences(device, 1, &s->fence);
  vk_submit submit = {.type = VK_TYPE_SUBMIT, .n_buffers = 1, .buffers = &s->commands};
  if (!code) code = api->vkQueueSubmit(s->queue, 1, &submit, s->fence);
  if (!code)
    code = api->vkWaitForFences(device, 1, &s->fence, 1, UINT64_C(1000000000) * TIMEOUT_SECONDS);
  api->vkResetDescriptorPool(device, s->descriptor_pool, 0);
  if (!code) return GC_OK;
  s->lost = true; /* also after a timeout: the buffers are still in use */
  return gc_vulkan_fail(error, "while kernels ran", code);
}

static void detach(void *state) {
  vulkan_state *s = state;
  vulkan_shared *shared = s->shared;
  const vulkan_api *api = shared->api;
  finish(s, NULL);
  for (int32_t k = 0; s->kernels && k < shared->program->n_kernels; k++)
    gc_vulkan_forget(s, &s->kernels[k]);
  gc_vulkan_close_cache(s);
  for (int32_t i = 0; i < s->ranges.n; i++) gc_vulkan_unmake(shared, &s->ranges.ranges[i]);
  gc_ranges_free(&s->ranges);
  gc_vulkan_unmake(shared, &s->staging);
  if (s->descriptor_pool) api->vkDestroyDescriptorPool(shared->device, s->descriptor_pool, NULL);
  if (s->command_pool) api->vkDestroyCommandPool(shared->device, s->command_pool, NULL);
  if (s->fence) api->vkDestroyFence(shared->device, s->fence, NULL);
  free(s->kernels);
  free(s);
}

static vk_result make_queue(vulkan_state *s) {
  const vulkan_shared *shared = s->shared;
  const vulkan_api *api = shared->api;
  vk_command_pool_info pool = {
      .type = VK_TYPE_COMMAND_POOL, .flags = 2 /* buffers may begin again */, .family = shared->family};
  vk_result code = api->vkCreateCommandPool(shared->device, &pool, NULL, &s->command_pool);
  vk_command_buffers_info buffers = {
      .type = VK_TYPE_COMMAND_BUFFERS, .pool = s->command_pool, .count = 1};
  if (!code) code = api->vkAllocateCommandBuffers(shared->device, &buffers, &s->commands);
  vk_pool_size size = {VK_DESCRIPTOR_STORAGE, 8 * MOST_RECORDED};
  vk_descriptor_pool_info sets = {.type = VK_TYPE_DESCRIPTOR_POOL,
                                  .max_sets = MOST_RECORDED,
                                  .n_sizes = 1,
                                  .sizes = &size};
  if (!code) code = api->vkCreateDescriptorPool(shared->device, &sets, NULL, &s->descriptor_pool);
  vk_fence_info fence = {.type = VK_TYPE_FENCE};
  if (!code) code = api->vkCreateFence(shared->device, &fence, NULL, &s->fence);
  api->vkGetDeviceQueue(shared->device, shared->family, 0, &s->queue);
  return code;
}

static int attach(void *shared, void **state, gc_error *error) {
  vulkan_shared *of = shared;
  vulkan_state *s = calloc(1, sizeof *s);
  if (!s) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  s->shared = of;
  s->kernels = calloc((size_t)of->program->n_kernels + 1, sizeof *s->kernels);
  vk_result code = s->kernels ? make_queue(s) : -1;
  if (code) {
    detach(s);
    return gc_vulkan_fail(error, "no command queue", code);
  }
  gc_vulkan_open_cache(s);
  *state = s;
  return GC_OK;
}

static int add(const vulkan_shared *shared, gc_ranges *ranges, size_t bytes, void **address,
               gc_error *error) {
  gc_range range;
  int result = gc_vulkan_make(shared, bytes, false, &range, error);
  if (result) return result;
  result = gc_ranges_add(ranges, range, address, error);
  if (result) gc_vulkan_unmake(shared, &range);
  return result;
}

static int allocate(void *state, size_t bytes, void **memory, gc_error *error) {
  vulkan_state *s = state;
  return add(s->shared, &s->ranges, bytes, memory, error);
}

static void release(void *state, void *memory) {
  vulkan_state *s = state;
  gc_range range;
  if (!memory || !s) return;
  finish(s, NULL); /* recorded commands may use it */
  if (gc_ranges_remove(&s->ranges, memory, &range)) gc_vulkan_unmake(s->shared, &range);
}

/* The range with these bytes, and where in it they begin. */
static const gc_range *inside(const vulkan_state *s, const void *address, size_t bytes,
                              size_t *origin, gc_error *error) {
  const gc_range *range = gc_vulkan_find(s, address);
  *origin = range ? (uintptr_t)address - range->base : 0;
  if (range && *origin + bytes <= range->bytes) return range;
  gc_fail(error, GC_ERROR_KERNEL, "memory that is not the device's was to be used");
  return NULL;
}

static int copy(void *state, void *target, const void *source, size_t bytes, gc_error *error) {
  vulkan_state *s = state;
  size_t from_at, to_at;
  if (!bytes) return GC_OK;
  const gc_range *from = inside(s, source, bytes, &from_at, error);
  const gc_range *to = inside(s, target, bytes, &to_at, error);
  if (!from || !to) return GC_ERROR_KERNEL;
  int result = begin(s, error);
  if (result) return result;
  vk_copy region = {from_at, to_at, bytes};
  barrier(s);
  s->shared->api->vkCmdCopyBuffer(s->commands, from->buffer, to->buffer, 1, &region);
  barrier(s);
  return GC_OK;
}

/* Copies through memory that both sides see, a piece at a time. */
static int through_staging(vulkan_state *s, const gc_range *range, size_t at, uint8_t *to_cpu,
                           const uint8_t *from_cpu, size_t bytes, gc_error *error) {
  if (!s->staging.buffer) {
    int result = gc_vulkan_make(s->shared, STAGING_BYTES, true, &s->staging, error);
    if (result) return result;
    if (!s->staging.mapped)
      return gc_fail(error, GC_ERROR_DEVICE, "the device shares no memory with the CPU");
  }
  for (size_t done = 0; done < bytes;) {
    size_t part = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
    if (from_cpu) memcpy(s->staging.mapped, from_cpu + done, part);
    int result = begin(s, error);
    if (result) return result;
    barrier(s);
    vk_copy up = {0, at + done, part}, down = {at + done, 0, part};
    if (from_cpu)
      s->shared->api->vkCmdCopyBuffer(s->commands, s->staging.buffer, range->buffer, 1, &up);
    else
      s->shared->api->vkCmdCopyBuffer(s->commands, range->buffer, s->staging.buffer, 1, &down);
    result = finish(s, error);
    if (result) return result;
    if (to_cpu) memcpy(to_cpu + done, s->staging.mapped, part);
    done += part;
  }
  return GC_OK;
}

static int upload(void *state, void *target, const void *source, size_t bytes, gc_error *error) {
  vulkan_state *s = state;
  size_t at;
  if (!bytes) return GC_OK;
  const gc_range *to = inside(s, target, bytes, &at, error);
  if (!to) return GC_ERROR_KERNEL;
  int result = finish(s, error);
  if (result || !to->mapped)
    return result ? result : through_staging(s, to, at, NULL, source, bytes, error);
  memcpy((char *)to->mapped + at, source, bytes);
  return GC_OK;
}

static int download(void *state, void *target, const void *source, size_t bytes, gc_error *error) {
  vulkan_state *s = state;
  size_t at;
  if (!bytes) return GC_OK;
  const gc_range *from = inside(s, source, bytes, &at, error);
  if (!from) return GC_ERROR_KERNEL;
  int result = finish(s, error);
  if (result || !from->mapped)
    return result ? result : through_staging(s, from, at, target, NULL, bytes, error);
  memcpy(target, (char *)from->mapped + at, bytes);
  return GC_OK;
}

/* A descriptor for a pointer; kernels index with 32 bits. */
static int part_of(vulkan_state *s, const gc_value *value, const gc_value *tensors,
                   int32_t n_tensors, vk_buffer_part *part, gc_error *error) {
  const void *address = value->type == GC_VALUE_POINTER ? value->as.pointer : NULL;
  size_t bytes = gc_bytes_behind(address, tensors, n_tensors), at;
  const gc_range *range = inside(s, address, bytes, &at, error);
  if (!range) return GC_ERROR_KERNEL;
  if (!bytes) bytes = range->bytes - at;
  bytes = (bytes + 3) & ~(size_t)3;
  if (bytes > range->bytes - at) bytes = range->bytes - at;
  if (bytes > s->shared->max_range || bytes > INT32_MAX)
    return gc_fail(error, GC_ERROR_INPUT,
                   "a tensor of %zu bytes is larger than the device reaches: use smaller inputs",
                   bytes);
  *part = (vk_buffer_part){range->buffer, at, bytes};
  return GC_OK;
}

static int read_extents(const vulkan_shared *shared, const gc_device_kernel *kernel,
                        const gc_value *extents, uint32_t *groups, gc_error *error) {
  for (int32_t i = 0; i < kernel->n_extents; i++) {
    uint8_t axis = kernel->extents[i];
    int64_t extent = extents[i].as.integer;
    if (axis >= 3) continue; /* threads are fixed in the shader */
    if (extent < 0 || extent > shared->max_groups[axis])
      return gc_fail(error, GC_ERROR_INPUT,
                     "kernel '%s' needs %lld work-groups, the device takes %u: use smaller inputs",
                     kernel->name, (long long)extent, shared->max_groups[axis]);
    groups[axis] = (uint32_t)extent;
  }
  return GC_OK;
}

static int start(void *state, const gc_device_kernel *kernel, const gc_value *args, int32_t n_args,
                 const gc_value *tensors, int32_t n_tensors, gc_error *error) {
  vulkan_state *s = state;
  const vulkan_api *api = s->shared->api;
  int32_t n = (int32_t)strlen(kernel->arguments);
  uint32_t groups[3] = {1, 1, 1}, constants[VULKAN_MAX_ARGUMENTS], n_constants = 0, n_parts = 0;
  vk_buffer_part parts[VULKAN_MAX_ARGUMENTS];
  vk_write_set writes[VULKAN_MAX_ARGUMENTS];
  vulkan_kernel *k;
  int result = gc_vulkan_prepare(s, kernel, &k, error);
  if (!result && n_args != n + kernel->n_extents)
    result = gc_fail(error, GC_ERROR_KERNEL, "kernel '%s' got %d values, expected %d", kernel->name,
                     n_args, n + kernel->n_extents);
  if (!result) result = read_extents(s->shared, kernel, args + n, groups, error);
  if (result || !groups[0] || !groups[1] || !groups[2]) return result; /* of an empty tensor */
  if (s->recorded == MOST_RECORDED) result = finish(s, error);
  if (!result) result = begin(s, error);
  for (int32_t i = 0; i < n && !result; i++) {
    if (kernel->arguments[i] == 'p') {
      result = part_of(s, &args[i], tensors, n_tensors, &parts[n_parts], error);
      n_parts++;
    } else if (kernel->arguments[i] == 'f') {
      float real = (float)args[i].as.real;
      memcpy(&constants[n_constants++], &real, sizeof real);
    } else {
      if (args[i].as.integer > INT32_MAX || args[i].as.integer < INT32_MIN)
        return gc_fail(error, GC_ERROR_INPUT, "kernel '%s': a dimension is beyond 32 bits",
                       kernel->name);
      constants[n_constants++] = (uint32_t)args[i].as.integer;
    }
  }
  if (result) return result;
  vk_handle set;
  vk_sets_info sets = {.type = VK_TYPE_DESCRIPTOR_SETS,
                       .pool = s->descriptor_pool,
                       .count = 1,
                       .layouts = &k->set_layout};
  vk_result code = api->vkAllocateDescriptorSets(s->shared->device, &sets, &set);
  if (code) { /* the pool is used up by kernels with many buffers: run what is recorded */
    result = finish(s, error);
    if (!result) result = begin(s, error);
    if (result) return result;
    code = api->vkAllocateDescriptorSets(s->shared->device, &sets, &set);
    if (code) return gc_vulkan_fail(error, kernel->name, code);
  }
  for (uint32_t b = 0; b < n_parts; b++)
    writes[b] = (vk_write_set){.type = VK_TYPE_WRITE_SET,
                               .set = set,
                               .binding = b,
                               .count = 1,
                               .kind = VK_DESCRIPTOR_STORAGE,
                               .buffers = &parts[b]};
  api->vkUpdateDescriptorSets(s->shared->device, n_parts, writes, 0, NULL);
  api->vkCmdBindPipeline(s->commands, VK_BIND_COMPUTE, k->pipeline);
  api->vkCmdBindDescriptorSets(s->commands, VK_BIND_COMPUTE, k->layout, 0, 1, &set, 0, NULL);
  if (n_constants)
    api->vkCmdPushConstants(s->commands, k->layout, VK_STAGE_COMPUTE, 0, 4 * n_constants, constants);
  api->vkCmdDispatch(s->commands, groups[0], groups[1], groups[2]);
  barrier(s);
  s->recorded++;
  return GC_OK;
}

static void close_shared(void *shared) {
  gc_vulkan_close(shared);
}

static int open_shared(const gc_program *program, const uint8_t *weights, void **addresses,
                       void **shared, gc_error *error) {
  vulkan_shared *s = calloc(1, sizeof *s);
  if (!s) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  s->program = program;
  int result = gc_vulkan_open(s, error);
  for (int32_t w = 0; w < program->n_weights && !result; w++)
    result = add(s, &s->weights, program->weights[w].bytes, &addresses[w], error);
  void *copier = NULL; /* a context for the time of copying, for memory that the CPU does not see */
  if (!result) result = attach(s, &copier, error);
  for (int32_t w = 0; w < program->n_weights && !result; w++)
    result = upload(copier, addresses[w], weights + program->weights[w].offset,
                    program->weights[w].bytes, error);
  if (copier) detach(copier);
  if (result)
    close_shared(s);
  else
    *shared = s;
  return result;
}

const gc_device gc_device_vulkan = {
    .name = "vulkan",
    .type = kDLVulkan,
    .alignment = 256, /* the most that Vulkan lets a device ask of storage buffers */
    .open = open_shared,
    .close = close_shared,
    .attach = attach,
    .detach = detach,
    .alloc = allocate,
    .free = release,
    .copy = copy,
    .upload = upload,
    .download = download,
    .start = start,
    .sync = finish,
};

/* vulkan_memory.c: buffers, each with memory of its own. */
#include "vulkan.h"

/* The first memory type that is allowed and has all of `flags`, or -1. */
static int find_type(const vulkan_shared *s, uint32_t allowed, uint32_t flags) {
  for (uint32_t t = 0; t < s->memory.n_types && t < 32; t++) {
    if ((allowed >> t & 1) && (s->memory.types[t].flags & flags) == flags) return (int)t;
  }
  return -1;
}

/* The device's memory that the CPU sees too is best (phones, boards); then the device's own. */
static int choose_type(const vulkan_shared *s, uint32_t allowed, bool for_cpu) {
  static const uint32_t visible = VK_MEMORY_VISIBLE | VK_MEMORY_COHERENT;
  int both = find_type(s, allowed, visible | VK_MEMORY_DEVICE);
  if (for_cpu) return both >= 0 ? both : find_type(s, allowed, visible);
  int own = find_type(s, allowed, VK_MEMORY_DEVICE);
  /* A small window into a large memory is not for activations: only a heap as large counts. */
  if (both >= 0 && own >= 0) {
    uint64_t window = s->memory.heaps[s->memory.types[both].heap].size;
    if (window >= s->memory.heaps[s->memory.types[own].heap].size) return both;
  }
  return own >= 0 ? own : find_type(s, allowed, 0);
}

int gc_vulkan_make(const vulkan_shared *s, size_t bytes, bool for_cpu, gc_range *range,
                   gc_error *error) {
  *range = (gc_range){.bytes = bytes ? (bytes + 3) & ~(size_t)3 : 4};
  vk_buffer_info info = {
      .type = VK_TYPE_BUFFER, .size = range->bytes, .usage = VK_USAGE_COPY_AND_STORAGE};
  vk_result code = s->api->vkCreateBuffer(s->device, &info, NULL, &range->buffer);
  if (code) return gc_vulkan_fail(error, "no buffer", code);
  vk_requirements needs;
  s->api->vkGetBufferMemoryRequirements(s->device, range->buffer, &needs);
  int type = choose_type(s, needs.types, for_cpu);
  vk_allocate_info allocate = {
      .type = VK_TYPE_ALLOCATE, .size = needs.size, .memory_type = (uint32_t)(type < 0 ? 0 : type)};
  code = type < 0 ? -2 : s->api->vkAllocateMemory(s->device, &allocate, NULL, &range->memory);
  if (!code) code = s->api->vkBindBufferMemory(s->device, range->buffer, range->memory, 0);
  uint32_t flags = type < 0 ? 0 : s->memory.types[type].flags;
  if (!code && (flags & VK_MEMORY_VISIBLE) && (flags & VK_MEMORY_COHERENT))
    code = s->api->vkMapMemory(s->device, range->memory, 0, range->bytes, 0, &range->mapped);
  if (!code) return GC_OK;
  gc_vulkan_unmake(s, range);
  return gc_fail(error, GC_ERROR_MEMORY, "the device has no room for %zu bytes (%s, %d)", bytes,
                 gc_vulkan_text(code), code);
}

void gc_vulkan_unmake(const vulkan_shared *s, const gc_range *range) {
  if (range->buffer) s->api->vkDestroyBuffer(s->device, range->buffer, NULL);
  if (range->memory) s->api->vkFreeMemory(s->device, range->memory, NULL); /* unmaps it */
}

const gc_range *gc_vulkan_find(const vulkan_state *state, const void *address) {
  const gc_range *range = gc_ranges_find(&state->ranges, address);
  return range ? range : gc_ranges_find(&state->shared->weights, address);
}

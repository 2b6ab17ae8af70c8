/* vulkan_program.c: SPIR-V to pipelines, through a pipeline cache that is kept on disk. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_cache.h"
#include "vulkan.h"

/* Capabilities of SPIR-V (the specification's numbers) that a device may lack. */
static const char *lacking(const vulkan_shared *s, const gc_device_kernel *kernel) {
  const uint32_t *words = kernel->code;
  size_t n = kernel->bytes / 4;
  for (size_t at = 5; at < n && words[at] >> 16; at += words[at] >> 16) {
    if ((words[at] & 0xffff) != 17) break; /* OpCapability comes first */
    switch (at + 1 < n ? words[at + 1] : 0) {
      case 9:
        if (!s->float16) return "16-bit floats";
        break;
      case 10:
        if (!s->float64) return "64-bit floats";
        break;
      case 11:
        if (!s->int64) return "64-bit integers";
        break;
      case 22:
        if (!s->int16) return "16-bit integers";
        break;
      case 39:
        if (!s->int8) return "8-bit integers";
        break;
      case 4433:
        if (!s->storage16) return "16-bit values in memory";
        break;
      case 4448:
        if (!s->storage8) return "8-bit values in memory";
        break;
      default:
        break;
    }
  }
  return NULL;
}

static vk_result make_layouts(vulkan_state *state, vulkan_kernel *k) {
  const vulkan_shared *s = state->shared;
  vk_binding bindings[VULKAN_MAX_ARGUMENTS];
  for (uint32_t b = 0; b < k->n_buffers; b++)
    bindings[b] = (vk_binding){
        .binding = b, .kind = VK_DESCRIPTOR_STORAGE, .count = 1, .stages = VK_STAGE_COMPUTE};
  vk_set_layout_info set = {
      .type = VK_TYPE_SET_LAYOUT, .count = k->n_buffers, .bindings = bindings};
  vk_result code = s->api->vkCreateDescriptorSetLayout(s->device, &set, NULL, &k->set_layout);
  if (code) return code;
  vk_push_range constants = {VK_STAGE_COMPUTE, 0, 4 * k->n_constants};
  vk_pipeline_layout_info info = {.type = VK_TYPE_PIPELINE_LAYOUT,
                                  .n_layouts = 1,
                                  .layouts = &k->set_layout,
                                  .n_ranges = k->n_constants ? 1 : 0,
                                  .ranges = &constants};
  return s->api->vkCreatePipelineLayout(s->device, &info, NULL, &k->layout);
}

static vk_result make_pipeline(vulkan_state *state, const gc_device_kernel *kernel,
                               vulkan_kernel *k) {
  const vulkan_shared *s = state->shared;
  vk_handle shader = 0;
  vk_shader_info code_info = {
      .type = VK_TYPE_SHADER, .bytes = kernel->bytes, .code = kernel->code};
  vk_result code = s->api->vkCreateShaderModule(s->device, &code_info, NULL, &shader);
  if (code) return code;
  vk_pipeline_info info = {.type = VK_TYPE_COMPUTE_PIPELINE,
                           .stage = {.type = VK_TYPE_STAGE,
                                     .stage = VK_STAGE_COMPUTE,
                                     .shader = shader,
                                     .entry = "main"},
                           .layout = k->layout,
                           .base_index = -1};
  code = s->api->vkCreateComputePipelines(s->device, state->pipeline_cache, 1, &info, NULL,
                                          &k->pipeline);
  s->api->vkDestroyShaderModule(s->device, shader, NULL);
  return code;
}

int gc_vulkan_prepare(vulkan_state *state, const gc_device_kernel *kernel, vulkan_kernel **made,
                      gc_error *error) {
  const vulkan_shared *s = state->shared;
  vulkan_kernel *k = &state->kernels[kernel - s->program->kernels];
  *made = k;
  if (k->pipeline) return GC_OK;
  const char *absent = lacking(s, kernel);
  if (absent)
    return gc_fail(error, GC_ERROR_DEVICE, "kernel '%s' needs %s, which the device has not",
                   kernel->name, absent);
  k->n_buffers = k->n_constants = 0;
  for (const char *c = kernel->arguments; *c; c++) *(*c == 'p' ? &k->n_buffers : &k->n_constants) += 1;
  if (k->n_buffers > s->max_buffers || k->n_buffers > VULKAN_MAX_ARGUMENTS ||
      4 * k->n_constants > s->max_constants || k->n_constants > VULKAN_MAX_ARGUMENTS)
    return gc_fail(error, GC_ERROR_DEVICE,
                   "kernel '%s' takes %u buffers and %u numbers, the device %u and %u", kernel->name,
                   k->n_buffers, k->n_constants, s->max_buffers, s->max_constants / 4);
  vk_result code = make_layouts(state, k);
  if (!code) code = make_pipeline(state, kernel, k);
  if (!code) return GC_OK;
  gc_vulkan_forget(state, k);
  return gc_vulkan_fail(error, kernel->name, code);
}

void gc_vulkan_forget(const vulkan_state *state, vulkan_kernel *k) {
  const vulkan_shared *s = state->shared;
  if (k->pipeline) s->api->vkDestroyPipeline(s->device, k->pipeline, NULL);
  if (k->layout) s->api->vkDestroyPipelineLayout(s->device, k->layout, NULL);
  if (k->set_layout) s->api->vkDestroyDescriptorSetLayout(s->device, k->set_layout, NULL);
  *k = (vulkan_kernel){0};
}

/* One file for each model and driver. */
static bool cache_path(const vulkan_shared *s, char *path, size_t size) {
  uint64_t h = gc_cache_hash(0, s->identity, sizeof s->identity);
  for (int32_t k = 0; k < s->program->n_kernels; k++)
    h = gc_cache_hash(h, s->program->kernels[k].code, s->program->kernels[k].bytes);
  char name[32];
  snprintf(name, sizeof name, "%016" PRIx64 ".pipelines", h);
  return gc_cache_path(name, path, size);
}

void gc_vulkan_open_cache(vulkan_state *state) {
  const vulkan_shared *s = state->shared;
  char path[4100];
  vk_pipeline_cache_info info = {.type = VK_TYPE_PIPELINE_CACHE};
  void *data = cache_path(s, path, sizeof path) ? gc_cache_read(path, &info.bytes) : NULL;
  if (!data) info.bytes = 0;
  info.data = data;
  if (s->api->vkCreatePipelineCache(s->device, &info, NULL, &state->pipeline_cache))
    state->pipeline_cache = 0;
  state->cached_bytes = info.bytes;
  free(data);
}

void gc_vulkan_close_cache(vulkan_state *state) {
  const vulkan_shared *s = state->shared;
  char path[4100];
  size_t bytes = 0;
  if (!state->pipeline_cache) return;
  if (!s->api->vkGetPipelineCacheData(s->device, state->pipeline_cache, &bytes, NULL) &&
      bytes > state->cached_bytes && cache_path(s, path, sizeof path)) {
    void *data = malloc(bytes);
    if (data && !s->api->vkGetPipelineCacheData(s->device, state->pipeline_cache, &bytes, data))
      gc_cache_write(path, data, bytes);
    free(data);
  }
  s->api->vkDestroyPipelineCache(s->device, state->pipeline_cache, NULL);
}

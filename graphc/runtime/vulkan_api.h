/* vulkan_api.h: as much of Vulkan 1.1 as a compute back end uses, found in libvulkan at run time.
 *
 * Declared here, from the specification: headers are not wanted on the machine that links. Handles of
 * what the application makes are 64-bit numbers, also where pointers are shorter. */
#ifndef GRAPHC_VULKAN_API_H_
#define GRAPHC_VULKAN_API_H_

#include "graphc.h"

typedef struct vk_object *vk_object; /* instances, devices, queues, command buffers */
typedef uint64_t vk_handle;
typedef int32_t vk_result;

enum {
  VK_TYPE_APPLICATION = 0,
  VK_TYPE_INSTANCE = 1,
  VK_TYPE_QUEUE = 2,
  VK_TYPE_DEVICE = 3,
  VK_TYPE_SUBMIT = 4,
  VK_TYPE_ALLOCATE = 5,
  VK_TYPE_FENCE = 8,
  VK_TYPE_BUFFER = 12,
  VK_TYPE_SHADER = 16,
  VK_TYPE_PIPELINE_CACHE = 17,
  VK_TYPE_STAGE = 18,
  VK_TYPE_COMPUTE_PIPELINE = 29,
  VK_TYPE_PIPELINE_LAYOUT = 30,
  VK_TYPE_SET_LAYOUT = 32,
  VK_TYPE_DESCRIPTOR_POOL = 33,
  VK_TYPE_DESCRIPTOR_SETS = 34,
  VK_TYPE_WRITE_SET = 35,
  VK_TYPE_COMMAND_POOL = 39,
  VK_TYPE_COMMAND_BUFFERS = 40,
  VK_TYPE_BEGIN = 42,
  VK_TYPE_MEMORY_BARRIER = 46,
  VK_TYPE_FEATURES2 = 1000059000,
  VK_TYPE_16BIT_STORAGE = 1000083000,
  VK_TYPE_8BIT_STORAGE = 1000177000,
  VK_TYPE_FLOAT16_INT8 = 1000082000,
  VK_QUEUE_COMPUTE = 2,
  VK_MEMORY_DEVICE = 1,
  VK_MEMORY_VISIBLE = 2,
  VK_MEMORY_COHERENT = 4,
  VK_USAGE_COPY_AND_STORAGE = 1 | 2 | 32,
  VK_DESCRIPTOR_STORAGE = 7,
  VK_STAGE_COMPUTE = 32,
  VK_BIND_COMPUTE = 1,
  VK_ACCESS_ALL = 32 | 64 | 2048 | 4096, /* shader and transfer, read and write */
  VK_AT_COMPUTE_AND_COPY = 2048 | 4096,
  VK_LOST = -4
};

typedef struct {
  int32_t type;
  const void *next;
  const char *name;
  uint32_t version;
  const char *engine;
  uint32_t engine_version, api;
} vk_application;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags;
  const vk_application *application;
  uint32_t n_layers;
  const char *const *layers;
  uint32_t n_extensions;
  const char *const *extensions;
} vk_instance_info;
typedef struct {
  uint32_t flags, count, timestamp_bits, granularity[3];
} vk_family;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags, family, count;
  const float *priorities;
} vk_queue_info;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags, n_queues;
  const vk_queue_info *queues;
  uint32_t n_layers;
  const char *const *layers;
  uint32_t n_extensions;
  const char *const *extensions;
  const uint32_t *features;
} vk_device_info;
typedef struct {
  int32_t type;
  void *next;
  uint32_t features[55]; /* VkPhysicalDeviceFeatures, in order */
} vk_features;
enum { VK_FEATURE_FLOAT64 = 39, VK_FEATURE_INT64 = 40, VK_FEATURE_INT16 = 41 };
typedef struct {
  int32_t type;
  void *next;
  uint32_t values[4]; /* of storage features: the first is for storage buffers */
} vk_extra_features;
typedef struct {
  uint32_t n_types;
  struct {
    uint32_t flags, heap;
  } types[32];
  uint32_t n_heaps;
  struct {
    uint64_t size;
    uint32_t flags;
  } heaps[16];
} vk_memory_properties;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags;
  uint64_t size;
  uint32_t usage, sharing, n_families;
  const uint32_t *families;
} vk_buffer_info;
typedef struct {
  uint64_t size, alignment;
  uint32_t types;
} vk_requirements;
typedef struct {
  int32_t type;
  const void *next;
  uint64_t size;
  uint32_t memory_type;
} vk_allocate_info;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags;
  size_t bytes;
  const uint32_t *code;
} vk_shader_info;
typedef struct {
  uint32_t binding, kind, count, stages;
  const vk_handle *samplers;
} vk_binding;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags, count;
  const vk_binding *bindings;
} vk_set_layout_info;
typedef struct {
  uint32_t stages, offset, size;
} vk_push_range;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags, n_layouts;
  const vk_handle *layouts;
  uint32_t n_ranges;
  const vk_push_range *ranges;
} vk_pipeline_layout_info;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags, stage;
  vk_handle shader;
  const char *entry;
  const void *constants;
} vk_stage_info;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags;
  vk_stage_info stage;
  vk_handle layout, base;
  int32_t base_index;
} vk_pipeline_info;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags;
  size_t bytes;
  const void *data;
} vk_pipeline_cache_info;
typedef struct {
  uint32_t kind, count;
} vk_pool_size;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags, max_sets, n_sizes;
  const vk_pool_size *sizes;
} vk_descriptor_pool_info;
typedef struct {
  int32_t type;
  const void *next;
  vk_handle pool;
  uint32_t count;
  const vk_handle *layouts;
} vk_sets_info;
typedef struct {
  vk_handle buffer;
  uint64_t offset, range;
} vk_buffer_part;
typedef struct {
  int32_t type;
  const void *next;
  vk_handle set;
  uint32_t binding, element, count, kind;
  const void *images;
  const vk_buffer_part *buffers;
  const void *texels;
} vk_write_set;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags, family;
} vk_command_pool_info;
typedef struct {
  int32_t type;
  const void *next;
  vk_handle pool;
  uint32_t level, count;
} vk_command_buffers_info;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags;
  const void *inheritance;
} vk_begin_info;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t source, target;
} vk_barrier;
typedef struct {
  uint64_t from, to, size;
} vk_copy;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t n_waits;
  const vk_handle *waits;
  const uint32_t *wait_stages;
  uint32_t n_buffers;
  const vk_object *buffers;
  uint32_t n_signals;
  const vk_handle *signals;
} vk_submit;
typedef struct {
  int32_t type;
  const void *next;
  uint32_t flags;
} vk_fence_info;

typedef struct {
  vk_result (*vkCreateInstance)(const vk_instance_info *, const void *, vk_object *);
  void (*vkDestroyInstance)(vk_object, const void *);
  vk_result (*vkEnumeratePhysicalDevices)(vk_object, uint32_t *, vk_object *);
  void (*vkGetPhysicalDeviceProperties)(vk_object, void *);
  void (*vkGetPhysicalDeviceFeatures2)(vk_object, vk_features *);
  void (*vkGetPhysicalDeviceQueueFamilyProperties)(vk_object, uint32_t *, vk_family *);
  void (*vkGetPhysicalDeviceMemoryProperties)(vk_object, vk_memory_properties *);
  vk_result (*vkCreateDevice)(vk_object, const vk_device_info *, const void *, vk_object *);
  void (*vkDestroyDevice)(vk_object, const void *);
  void (*vkGetDeviceQueue)(vk_object, uint32_t, uint32_t, vk_object *);
  vk_result (*vkCreateBuffer)(vk_object, const vk_buffer_info *, const void *, vk_handle *);
  void (*vkDestroyBuffer)(vk_object, vk_handle, const void *);
  void (*vkGetBufferMemoryRequirements)(vk_object, vk_handle, vk_requirements *);
  vk_result (*vkAllocateMemory)(vk_object, const vk_allocate_info *, const void *, vk_handle *);
  void (*vkFreeMemory)(vk_object, vk_handle, const void *);
  vk_result (*vkBindBufferMemory)(vk_object, vk_handle, vk_handle, uint64_t);
  vk_result (*vkMapMemory)(vk_object, vk_handle, uint64_t, uint64_t, uint32_t, void **);
  vk_result (*vkCreateShaderModule)(vk_object, const vk_shader_info *, const void *, vk_handle *);
  void (*vkDestroyShaderModule)(vk_object, vk_handle, const void *);
  vk_result (*vkCreateDescriptorSetLayout)(vk_object, const vk_set_layout_info *, const void *,
                                           vk_handle *);
  void (*vkDestroyDescriptorSetLayout)(vk_object, vk_handle, const void *);
  vk_result (*vkCreatePipelineLayout)(vk_object, const vk_pipeline_layout_info *, const void *,
                                      vk_handle *);
  void (*vkDestroyPipelineLayout)(vk_object, vk_handle, const void *);
  vk_result (*vkCreatePipelineCache)(vk_object, const vk_pipeline_cache_info *, const void *,
                                     vk_handle *);
  vk_result (*vkGetPipelineCacheData)(vk_object, vk_handle, size_t *, void *);
  void (*vkDestroyPipelineCache)(vk_object, vk_handle, const void *);
  vk_result (*vkCreateComputePipelines)(vk_object, vk_handle, uint32_t, const vk_pipeline_info *,
                                        const void *, vk_handle *);
  void (*vkDestroyPipeline)(vk_object, vk_handle, const void *);
  vk_result (*vkCreateDescriptorPool)(vk_object, const vk_descriptor_pool_info *, const void *,
                                      vk_handle *);
  vk_result (*vkResetDescriptorPool)(vk_object, vk_handle, uint32_t);
  void (*vkDestroyDescriptorPool)(vk_object, vk_handle, const void *);
  vk_result (*vkAllocateDescriptorSets)(vk_object, const vk_sets_info *, vk_handle *);
  void (*vkUpdateDescriptorSets)(vk_object, uint32_t, const vk_write_set *, uint32_t, const void *);
  vk_result (*vkCreateCommandPool)(vk_object, const vk_command_pool_info *, const void *,
                                   vk_handle *);
  void (*vkDestroyCommandPool)(vk_object, vk_handle, const void *);
  vk_result (*vkAllocateCommandBuffers)(vk_object, const vk_command_buffers_info *, vk_object *);
  vk_result (*vkBeginCommandBuffer)(vk_object, const vk_begin_info *);
  vk_result (*vkEndCommandBuffer)(vk_object);
  void (*vkCmdBindPipeline)(vk_object, uint32_t, vk_handle);
  void (*vkCmdBindDescriptorSets)(vk_object, uint32_t, vk_handle, uint32_t, uint32_t,
                                  const vk_handle *, uint32_t, const uint32_t *);
  void (*vkCmdPushConstants)(vk_object, vk_handle, uint32_t, uint32_t, uint32_t, const void *);
  void (*vkCmdDispatch)(vk_object, uint32_t, uint32_t, uint32_t);
  void (*vkCmdPipelineBarrier)(vk_object, uint32_t, uint32_t, uint32_t, uint32_t,
                               const vk_barrier *, uint32_t, const void *, uint32_t, const void *);
  void (*vkCmdCopyBuffer)(vk_object, vk_handle, vk_handle, uint32_t, const vk_copy *);
  vk_result (*vkCreateFence)(vk_object, const vk_fence_info *, const void *, vk_handle *);
  vk_result (*vkResetFences)(vk_object, uint32_t, const vk_handle *);
  vk_result (*vkWaitForFences)(vk_object, uint32_t, const vk_handle *, uint32_t, uint64_t);
  void (*vkDestroyFence)(vk_object, vk_handle, const void *);
  vk_result (*vkQueueSubmit)(vk_object, uint32_t, const vk_submit *, vk_handle);
} vulkan_api;

/* The functions, or NULL with `error` filled when there is no loader. */
const vulkan_api *gc_vulkan_api(gc_error *error);

/* Vulkan's name of a result. */
const char *gc_vulkan_text(vk_result code);

#endif

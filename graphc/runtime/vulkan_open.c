/* vulkan_open.c: chooses a device, asks for its limits and features, and opens it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vulkan.h"

#define VERSION(major, minor) ((uint32_t)(major) << 22 | (uint32_t)(minor) << 12)

/* Where things lie in VkPhysicalDeviceProperties, on machines with 64-bit alignment of uint64_t. */
enum {
  PROPERTIES_BYTES = 1024,
  AT_API = 0,
  AT_KIND = 16,
  AT_NAME = 20,
  AT_CACHE_ID = 276,
  AT_LIMITS = 296,
  AT_MAX_RANGE = AT_LIMITS + 28,
  AT_MAX_CONSTANTS = AT_LIMITS + 32,
  AT_MAX_BUFFERS = AT_LIMITS + 76,
  AT_MAX_GROUPS = AT_LIMITS + 220,
  AT_BUFFER_ALIGNMENT = AT_LIMITS + 328
};
enum { KIND_INTEGRATED = 1, KIND_DISCRETE = 2 };

static uint32_t word(const uint8_t *properties, int at) {
  uint32_t value;
  memcpy(&value, properties + at, sizeof value);
  return value;
}

int gc_vulkan_fail(gc_error *error, const char *what, vk_result code) {
  return gc_fail(error, code == -1 || code == -2 ? GC_ERROR_MEMORY : GC_ERROR_DEVICE,
                 "the Vulkan device failed: %s (%s, %d)", what, gc_vulkan_text(code), code);
}

/* The queue family for compute; the number of families when there is none. */
static uint32_t compute_family(const vulkan_api *api, vk_object physical, uint32_t *n) {
  vk_family families[32];
  *n = 32;
  api->vkGetPhysicalDeviceQueueFamilyProperties(physical, n, families);
  for (uint32_t f = 0; f < *n; f++) {
    if (families[f].flags & VK_QUEUE_COMPUTE) return f;
  }
  return *n;
}

/* GRAPHC_VULKAN_DEVICE is a number in the driver's order; else discrete before integrated before
 * other devices. */
static int choose(vulkan_shared *s, gc_error *error) {
  vk_object devices[16];
  uint32_t n = 16, families;
  const char *text = getenv("GRAPHC_VULKAN_DEVICE");
  long wanted = text && *text ? strtol(text, NULL, 10) : -1;
  if (s->api->vkEnumeratePhysicalDevices(s->instance, &n, devices) < 0) n = 0;
  int best = -1;
  for (uint32_t d = 0; d < n; d++) {
    _Alignas(8) uint8_t properties[PROPERTIES_BYTES] = {0};
    s->api->vkGetPhysicalDeviceProperties(devices[d], properties);
    uint32_t family = compute_family(s->api, devices[d], &families);
    if (family == families || word(properties, AT_API) < VERSION(1, 1)) continue;
    uint32_t kind = word(properties, AT_KIND);
    int rank = kind == KIND_DISCRETE ? 2 : kind == KIND_INTEGRATED ? 1 : 0;
    if (wanted >= 0 ? wanted != (long)d : rank <= best) continue;
    best = rank;
    s->physical = devices[d];
    s->family = family;
  }
  if (s->physical) return GC_OK;
  if (wanted >= 0 && n)
    return gc_fail(error, GC_ERROR_DEVICE,
                   "GRAPHC_VULKAN_DEVICE is %ld, but there are %u devices (numbers from 0) and that "
                   "one does not compute with Vulkan 1.1",
                   wanted, n);
  return gc_fail(error, GC_ERROR_DEVICE,
                 "no Vulkan 1.1 device: the loader is there, install the device's driver, or run a "
                 "version compiled for the CPU");
}

static int read_limits(vulkan_shared *s, bool *has_1_2, gc_error *error) {
  _Alignas(8) uint8_t properties[PROPERTIES_BYTES] = {0};
  s->api->vkGetPhysicalDeviceProperties(s->physical, properties);
  *has_1_2 = word(properties, AT_API) >= VERSION(1, 2);
  s->max_range = word(properties, AT_MAX_RANGE);
  s->max_constants = word(properties, AT_MAX_CONSTANTS);
  s->max_buffers = word(properties, AT_MAX_BUFFERS);
  for (int axis = 0; axis < 3; axis++)
    s->max_groups[axis] = word(properties, AT_MAX_GROUPS + 4 * axis);
  uint64_t alignment;
  memcpy(&alignment, properties + AT_BUFFER_ALIGNMENT, sizeof alignment);
  s->alignment = (size_t)alignment;
  memcpy(s->identity, properties + AT_CACHE_ID, sizeof s->identity);
  if (s->alignment > gc_device_vulkan.alignment)
    return gc_fail(error, GC_ERROR_DEVICE, "'%.200s' wants buffers aligned to %zu bytes, %zu is known",
                   (const char *)properties + AT_NAME, s->alignment, gc_device_vulkan.alignment);
  s->api->vkGetPhysicalDeviceMemoryProperties(s->physical, &s->memory);
  return GC_OK;
}

static int open_device(vulkan_shared *s, bool has_1_2, gc_error *error) {
  vk_extra_features small = {.type = VK_TYPE_FLOAT16_INT8};
  vk_extra_features bytes = {.type = VK_TYPE_8BIT_STORAGE, .next = &small};
  vk_extra_features halves = {.type = VK_TYPE_16BIT_STORAGE, .next = has_1_2 ? &bytes : NULL};
  vk_features all = {.type = VK_TYPE_FEATURES2, .next = &halves};
  s->api->vkGetPhysicalDeviceFeatures2(s->physical, &all);
  s->float64 = all.features[VK_FEATURE_FLOAT64];
  s->int64 = all.features[VK_FEATURE_INT64];
  s->int16 = all.features[VK_FEATURE_INT16];
  s->storage16 = halves.values[0];
  s->storage8 = bytes.values[0];
  s->float16 = small.values[0];
  s->int8 = small.values[1];
  memset(all.features, 0, sizeof all.features);
  all.features[VK_FEATURE_FLOAT64] = s->float64;
  all.features[VK_FEATURE_INT64] = s->int64;
  all.features[VK_FEATURE_INT16] = s->int16;
  memset(halves.values + 1, 0, sizeof halves.values - sizeof *halves.values);
  memset(bytes.values + 1, 0, sizeof bytes.values - sizeof *bytes.values);
  float priority = 1.0f;
  vk_queue_info queue = {
      .type = VK_TYPE_QUEUE, .family = s->family, .count = 1, .priorities = &priority};
  vk_device_info info = {.type = VK_TYPE_DEVICE, .next = &all, .n_queues = 1, .queues = &queue};
  vk_result code = s->api->vkCreateDevice(s->physical, &info, NULL, &s->device);
  return code ? gc_vulkan_fail(error, "it cannot be opened", code) : GC_OK;
}

int gc_vulkan_open(vulkan_shared *s, gc_error *error) {
  s->api = gc_vulkan_api(error);
  if (!s->api) return GC_ERROR_DEVICE;
  vk_application application = {
      .type = VK_TYPE_APPLICATION, .name = "graphc", .engine = "graphc", .api = VERSION(1, 2)};
  vk_instance_info info = {.type = VK_TYPE_INSTANCE, .application = &application};
  vk_result code = s->api->vkCreateInstance(&info, NULL, &s->instance);
  if (code) return gc_vulkan_fail(error, "no instance, is a driver installed?", code);
  bool has_1_2 = false;
  int result = choose(s, error);
  if (!result) result = read_limits(s, &has_1_2, error);
  if (!result) result = open_device(s, has_1_2, error);
  return result;
}

void gc_vulkan_close(vulkan_shared *s) {
  for (int32_t i = 0; i < s->weights.n; i++) gc_vulkan_unmake(s, &s->weights.ranges[i]);
  gc_ranges_free(&s->weights);
  if (s->device) s->api->vkDestroyDevice(s->device, NULL);
  if (s->instance) s->api->vkDestroyInstance(s->instance, NULL);
  free(s);
}

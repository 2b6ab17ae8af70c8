/* vulkan_api.c: opens libvulkan. */
#include "vulkan_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "internal.h"

static const char *const libraries[] = {"libvulkan.so.1", "libvulkan.so"};

static vulkan_api api;
static const struct {
  const char *name;
  void **place;
} functions[] = {
    {"vkCreateInstance", (void **)&api.vkCreateInstance},
    {"vkDestroyInstance", (void **)&api.vkDestroyInstance},
    {"vkEnumeratePhysicalDevices", (void **)&api.vkEnumeratePhysicalDevices},
    {"vkGetPhysicalDeviceProperties", (void **)&api.vkGetPhysicalDeviceProperties},
    {"vkGetPhysicalDeviceFeatures2", (void **)&api.vkGetPhysicalDeviceFeatures2},
    {"vkGetPhysicalDeviceQueueFamilyProperties", (void **)&api.vkGetPhysicalDeviceQueueFamilyProperties},
    {"vkGetPhysicalDeviceMemoryProperties", (void **)&api.vkGetPhysicalDeviceMemoryProperties},
    {"vkCreateDevice", (void **)&api.vkCreateDevice},
    {"vkDestroyDevice", (void **)&api.vkDestroyDevice},
    {"vkGetDeviceQueue", (void **)&api.vkGetDeviceQueue},
    {"vkCreateBuffer", (void **)&api.vkCreateBuffer},
    {"vkDestroyBuffer", (void **)&api.vkDestroyBuffer},
    {"vkGetBufferMemoryRequirements", (void **)&api.vkGetBufferMemoryRequirements},
    {"vkAllocateMemory", (void **)&api.vkAllocateMemory},
    {"vkFreeMemory", (void **)&api.vkFreeMemory},
    {"vkBindBufferMemory", (void **)&api.vkBindBufferMemory},
    {"vkMapMemory", (void **)&api.vkMapMemory},
    {"vkCreateShaderModule", (void **)&api.vkCreateShaderModule},
    {"vkDestroyShaderModule", (void **)&api.vkDestroyShaderModule},
    {"vkCreateDescriptorSetLayout", (void **)&api.vkCreateDescriptorSetLayout},
    {"vkDestroyDescriptorSetLayout", (void **)&api.vkDestroyDescriptorSetLayout},
    {"vkCreatePipelineLayout", (void **)&api.vkCreatePipelineLayout},
    {"vkDestroyPipelineLayout", (void **)&api.vkDestroyPipelineLayout},
    {"vkCreatePipelineCache", (void **)&api.vkCreatePipelineCache},
    {"vkGetPipelineCacheData", (void **)&api.vkGetPipelineCacheData},
    {"vkDestroyPipelineCache", (void **)&api.vkDestroyPipelineCache},
    {"vkCreateComputePipelines", (void **)&api.vkCreateComputePipelines},
    {"vkDestroyPipeline", (void **)&api.vkDestroyPipeline},
    {"vkCreateDescriptorPool", (void **)&api.vkCreateDescriptorPool},
    {"vkResetDescriptorPool", (void **)&api.vkResetDescriptorPool},
    {"vkDestroyDescriptorPool", (void **)&api.vkDestroyDescriptorPool},
    {"vkAllocateDescriptorSets", (void **)&api.vkAllocateDescriptorSets},
    {"vkUpdateDescriptorSets", (void **)&api.vkUpdateDescriptorSets},
    {"vkCreateCommandPool", (void **)&api.vkCreateCommandPool},
    {"vkDestroyCommandPool", (void **)&api.vkDestroyCommandPool},
    {"vkAllocateCommandBuffers", (void **)&api.vkAllocateCommandBuffers},
    {"vkBeginCommandBuffer", (void **)&api.vkBeginCommandBuffer},
    {"vkEndCommandBuffer", (void **)&api.vkEndCommandBuffer},
    {"vkCmdBindPipeline", (void **)&api.vkCmdBindPipeline},
    {"vkCmdBindDescriptorSets", (void **)&api.vkCmdBindDescriptorSets},
    {"vkCmdPushConstants", (void **)&api.vkCmdPushConstants},
    {"vkCmdDispatch", (void **)&api.vkCmdDispatch},
    {"vkCmdPipelineBarrier", (void **)&api.vkCmdPipelineBarrier},
    {"vkCmdCopyBuffer", (void **)&api.vkCmdCopyBuffer},
    {"vkCreateFence", (void **)&api.vkCreateFence},
    {"vkResetFences", (void **)&api.vkResetFences},
    {"vkWaitForFences", (void **)&api.vkWaitForFences},
    {"vkDestroyFence", (void **)&api.vkDestroyFence},
    {"vkQueueSubmit", (void **)&api.vkQueueSubmit},
};

static bool ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char missing[96] = "libvulkan.so.1";

static const char *find_all(void *library) {
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    *functions[i].place = dlsym(library, functions[i].name);
    if (!*functions[i].place) return functions[i].name;
  }
  return NULL;
}

static void load(void) {
  for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
    void *library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) continue;
    const char *absent = find_all(library);
    if (!absent) {
      ready = true; /* never closed: drivers keep threads */
      return;
    }
    snprintf(missing, sizeof missing, "%s in %s", absent, libraries[i]);
    dlclose(library);
  }
}

const vulkan_api *gc_vulkan_api(gc_error *error) {
  pthread_once(&once, load);
  if (ready) return &api;
  gc_fail(error, GC_ERROR_DEVICE,
          "Vulkan is missing on this machine (no %s): install the device's driver, or run a version "
          "compiled for the CPU",
          missing);
  return NULL;
}

const char *gc_vulkan_text(vk_result code) {
  switch (code) {
    case -1:
      return "VK_ERROR_OUT_OF_HOST_MEMORY";
    case -2:
      return "VK_ERROR_OUT_OF_DEVICE_MEMORY";
    case -3:
      return "VK_ERROR_INITIALIZATION_FAILED";
    case -4:
      return "VK_ERROR_DEVICE_LOST";
    case -5:
      return "VK_ERROR_MEMORY_MAP_FAILED";
    case -7:
      return "VK_ERROR_EXTENSION_NOT_PRESENT";
    case -8:
      return "VK_ERROR_FEATURE_NOT_PRESENT";
    case -9:
      return "VK_ERROR_INCOMPATIBLE_DRIVER";
    default:
      return "a Vulkan error";
  }
}

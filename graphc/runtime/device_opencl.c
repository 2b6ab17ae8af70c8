/* device_opencl.c: runs kernels on an OpenCL device: Mali, other GPUs, or a CPU under PoCL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

static int failed(gc_error *error, const char *what, int32_t code) {
  return gc_fail(error, GC_ERROR_DEVICE, "the OpenCL device failed: %s (%s, %d)", what,
                 gc_opencl_text(code), code);
}

static cl_object handle(const gc_range *range) {
  return (cl_object)(uintptr_t)range->buffer;
}

/* Which device: GRAPHC_OPENCL_DEVICE is the number in the order of all platforms' devices; else the
 * first GPU, else the first of all. */
static int choose_device(const opencl_api *api, cl_object *chosen, gc_error *error) {
  cl_object platforms[16], devices[16];
  uint32_t n_platforms = 0, seen = 0;
  const char *text = getenv("GRAPHC_OPENCL_DEVICE");
  long wanted = text && *text ? strtol(text, NULL, 10) : -1;
  cl_object first = NULL, first_gpu = NULL, numbered = NULL;
  if (api->clGetPlatformIDs(16, platforms, &n_platforms)) n_platforms = 0;
  for (uint32_t p = 0; p < n_platforms && p < 16; p++) {
    uint32_t n = 0;
    if (api->clGetDeviceIDs(platforms[p], (uint64_t)CL_DEVICE_TYPE_ALL & 0xffffffffu, 16, devices,
                            &n))
      continue;
    for (uint32_t d = 0; d < n && d < 16; d++, seen++) {
      uint64_t type = 0;
      api->clGetDeviceInfo(devices[d], 0x1000, sizeof type, &type, NULL);
      if (!first) first = devices[d];
      if (!first_gpu && (type & CL_DEVICE_TYPE_GPU_OR_ACCELERATOR)) first_gpu = devices[d];
      if (wanted == (long)seen) numbered = devices[d];
    }
  }
  *chosen = wanted >= 0 ? numbered : first_gpu ? first_gpu : first;
  if (*chosen) return GC_OK;
  if (wanted >= 0 && seen)
    return gc_fail(error, GC_ERROR_DEVICE,
                   "GRAPHC_OPENCL_DEVICE is %ld, but there are %u OpenCL devices", wanted, seen);
  return gc_fail(error, GC_ERROR_DEVICE,
                 "no OpenCL device: the loader is there, install the device's driver, or run a "
                 "version compiled for the CPU");
}

static int describe(opencl_shared *s, gc_error *error) {
  uint32_t bits = 0;
  uint64_t largest = 0;
  char name[128] = "", driver[128] = "", version[128] = "";
  const struct {
    uint32_t what;
    size_t size;
    void *value;
  } questions[] = {
      {CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof s->max_threads, &s->max_threads},
      {CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits},
      {CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof largest, &largest},
      {CL_DEVICE_NAME, sizeof name - 1, name},
      {CL_DRIVER_VERSION, sizeof driver - 1, driver},
      {CL_DEVICE_VERSION, sizeof version - 1, version},
  };
  for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
    int32_t code = s->api->clGetDeviceInfo(s->device, questions[i].what, questions[i].size,
                                           questions[i].value, NULL);
    if (code) return failed(error, "it does not describe itself", code);
  }
  s->max_bytes = largest > GC_MAX_BYTES ? GC_MAX_BYTES : (size_t)largest;
  s->alignment = bits / 8;
  if (s->alignment > gc_device_opencl.alignment)
    return gc_fail(error, GC_ERROR_DEVICE, "'%s' wants buffers aligned to %zu bytes, %zu is known",
                   name, s->alignment, gc_device_opencl.alignment);
  snprintf(s->identity, sizeof s->identity, "%s|%s|%s", name, driver, version);
  return GC_OK;
}

static void close_shared(void *shared) {
  opencl_shared *s = shared;
  gc_opencl_remove_all(s, &s->weights);
  if (s->context) s->api->clReleaseContext(s->context);
  free(s);
}

static int upload_weights(opencl_shared *s, const uint8_t *weights, void **addresses,
                          gc_error *error) {
  int32_t code;
  cl_object queue = s->api->clCreateCommandQueue(s->context, s->device, 0, &code);
  if (!queue) return failed(error, "no command queue", code);
  int result = GC_OK;
  for (int32_t w = 0; w < s->program->n_weights && !result; w++) {
    const gc_weight *weight = &s->program->weights[w];
    result = gc_opencl_add(s, &s->weights, weight->bytes, &addresses[w], error);
    if (result || !weight->bytes) continue;
    code = s->api->clEnqueueWriteBuffer(queue, handle(gc_ranges_find(&s->weights, addresses[w])), 1, 0,
                                        weight->bytes, weights + weight->offset, 0, NULL, NULL);
    if (code) result = failed(error, "weights cannot be copied", code);
  }
  s->api->clFinish(queue);
  s->api->clReleaseCommandQueue(queue);
  return result;
}

static int open_shared(const gc_program *program, const uint8_t *weights, void **addresses,
                       void **shared, gc_error *error) {
  const opencl_api *api = gc_opencl_api(error);
  if (!api) return GC_ERROR_DEVICE;
  opencl_shared *s = calloc(1, sizeof *s);
  if (!s) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  s->api = api;
  s->program = program;
  int32_t code = 0;
  int result = choose_device(api, &s->device, error);
  if (!result) result = describe(s, error);
  if (!result) {
    s->context = api->clCreateContext(NULL, 1, &s->device, NULL, NULL, &code);
    if (!s->context) result = failed(error, "no context", code);
  }
  if (!result) result = upload_weights(s, weights, addresses, error);
  if (result)
    close_shared(s);
  else
    *shared = s;
  return result;
}

static void detach(void *state) {
  opencl_state *s = state;
  const opencl_api *api = s->shared->api;
  if (s->queue) api->clFinish(s->queue);
  for (int32_t k = 0; k < s->shared->program->n_kernels; k++) {
    if (s->kernels && s->kernels[k]) api->clReleaseKernel(s->kernels[k]);
    if (s->programs && s->programs[k]) api->clReleaseProgram(s->programs[k]);
  }
  gc_opencl_forget_parts(s, NULL);
  gc_opencl_remove_all(s->shared, &s->ranges);
  if (s->queue) api->clReleaseCommandQueue(s->queue);
  free(s->kernels);
  free(s->programs);
  free(s->limits);
  free(s);
}

static int attach(void *shared, void **state, gc_error *error) {
  opencl_shared *of = shared;
  size_t n = (size_t)of->program->n_kernels + 1;
  opencl_state *s = calloc(1, sizeof *s);
  if (!s) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  s->shared = of;
  s->kernels = calloc(n, sizeof *s->kernels);
  s->programs = calloc(n, sizeof *s->programs);
  s->limits = calloc(n, sizeof *s->limits);
  int32_t code = 0;
  int result = GC_OK;
  if (!s->kernels || !s->programs || !s->limits)
    result = gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  if (!result) s->queue = of->api->clCreateCommandQueue(of->context, of->device, 0, &code);
  if (!result && !s->queue) result = failed(error, "no command queue", code);
  if (result)
    detach(s);
  else
    *state = s;
  return result;
}

static int allocate(void *state, size_t bytes, void **memory, gc_error *error) {
  opencl_state *s = state;
  return gc_opencl_add(s->shared, &s->ranges, bytes, memory, error);
}

static void release(void *state, void *memory) {
  opencl_state *s = state;
  gc_range range;
  if (!memory || !s || !gc_ranges_remove(&s->ranges, memory, &range)) return;
  gc_opencl_forget_parts(s, handle(&range));
  s->shared->api->clReleaseMemObject(handle(&range));
}

static const gc_range *whole(const opencl_state *s, const void *address, size_t bytes,
                                 size_t *origin) {
  const gc_range *range = gc_opencl_find(s, address);
  if (!range) return NULL;
  *origin = (uintptr_t)address - range->base;
  return *origin + bytes <= range->bytes ? range : NULL;
}

static int copy(void *state, void *target, const void *source, size_t bytes, gc_error *error) {
  opencl_state *s = state;
  size_t from_origin, to_origin;
  if (!bytes) return GC_OK;
  const gc_range *from = whole(s, source, bytes, &from_origin);
  const gc_range *to = whole(s, target, bytes, &to_origin);
  if (!from || !to) return failed(error, "a copy outside its memory", -30);
  int32_t code = s->shared->api->clEnqueueCopyBuffer(s->queue, handle(from), handle(to),
                                                     from_origin, to_origin, bytes, 0, NULL, NULL);
  return code ? failed(error, "a copy", code) : GC_OK;
}

static int upload(void *state, void *target, const void *source, size_t bytes, gc_error *error) {
  opencl_state *s = state;
  size_t origin;
  if (!bytes) return GC_OK;
  const gc_range *to = whole(s, target, bytes, &origin);
  if (!to) return failed(error, "a copy outside its memory", -30);
  int32_t code = s->shared->api->clEnqueueWriteBuffer(s->queue, handle(to), 1, origin, bytes,
                                                      source, 0, NULL, NULL);
  return code ? failed(error, "a copy to it", code) : GC_OK;
}

static int download(void *state, void *target, const void *source, size_t bytes, gc_error *error) {
  opencl_state *s = state;
  size_t origin;
  if (!bytes) return GC_OK;
  const gc_range *from = whole(s, source, bytes, &origin);
  if (!from) return failed(error, "a copy outside its memory", -30);
  int32_t code = s->shared->api->clEnqueueReadBuffer(s->queue, handle(from), 1, origin, bytes,
                                                     target, 0, NULL, NULL);
  return code ? failed(error, "a copy from it", code) : GC_OK;
}

/* The kernel's row, built when it is started for the first time. */
static int prepare(opencl_state *s, const gc_device_kernel *kernel, int32_t *row, gc_error *error) {
  opencl_shared *shared = s->shared;
  *row = (int32_t)(kernel - shared->program->kernels);
  if (s->kernels[*row]) return GC_OK;
  int code = gc_opencl_build(shared, kernel, &s->programs[*row], &s->kernels[*row], error);
  if (code) return code;
  size_t limit = 0;
  if (shared->api->clGetKernelWorkGroupInfo(s->kernels[*row], shared->device,
                                            CL_KERNEL_WORK_GROUP_SIZE, sizeof limit, &limit, NULL))
    limit = shared->max_threads;
  s->limits[*row] = limit;
  return GC_OK;
}

static int set_argument(opencl_state *s, cl_object kernel, uint32_t at, char kind,
                        const gc_value *value, const gc_value *tensors, int32_t n_tensors,
                        gc_error *error) {
  const opencl_api *api = s->shared->api;
  int32_t code;
  if (kind == 'p') {
    cl_object part = NULL;
    const void *address = value->type == GC_VALUE_POINTER ? value->as.pointer : NULL;
    if (address) {
      size_t bytes = gc_bytes_behind(address, tensors, n_tensors);
      int result = gc_opencl_part(s, address, bytes, &part, error);
      if (result) return result;
    }
    code = api->clSetKernelArg(kernel, at, sizeof part, &part);
  } else if (kind == 'f') {
    float real = (float)value->as.real;
    code = api->clSetKernelArg(kernel, at, sizeof real, &real);
  } else if (kind == 'i') {
    int32_t small = (int32_t)value->as.integer;
    code = api->clSetKernelArg(kernel, at, sizeof small, &small);
  } else {
    code = api->clSetKernelArg(kernel, at, sizeof value->as.integer, &value->as.integer);
  }
  return code ? failed(error, "a kernel's argument", code) : GC_OK;
}

static int start(void *state, const gc_device_kernel *kernel, const gc_value *args, int32_t n_args,
                 const gc_value *tensors, int32_t n_tensors, gc_error *error) {
  opencl_state *s = state;
  int32_t row, n = (int32_t)strlen(kernel->arguments);
  int result = prepare(s, kernel, &row, error);
  if (result) return result;
  if (n_args != n + kernel->n_extents)
    return gc_fail(error, GC_ERROR_KERNEL, "kernel '%s' got %d values, expected %d", kernel->name,
                   n_args, n + kernel->n_extents);
  size_t groups[3] = {1, 1, 1}, threads[3] = {1, 1, 1}, all[3];
  for (int32_t i = 0; i < kernel->n_extents; i++) {
    int64_t extent = args[n + i].as.integer;
    if (extent <= 0) return GC_OK; /* of an empty tensor */
    uint8_t axis = kernel->extents[i];
    *(axis < 3 ? &groups[axis] : &threads[axis - 3]) = (size_t)extent;
  }
  size_t size = threads[0] * threads[1] * threads[2];
  if (size > s->limits[row])
    return gc_fail(error, GC_ERROR_DEVICE,
                   "kernel '%s' uses work-groups of %zu threads, the device takes %zu: compile with "
                   "device.max_threads = %zu in the target's file",
                   kernel->name, size, s->limits[row], s->limits[row]);
  for (int32_t i = 0; i < n && !result; i++)
    result = set_argument(s, s->kernels[row], (uint32_t)i, kernel->arguments[i], &args[i], tensors,
                          n_tensors, error);
  if (result) return result;
  for (int axis = 0; axis < 3; axis++) all[axis] = groups[axis] * threads[axis];
  int32_t code = s->shared->api->clEnqueueNDRangeKernel(s->queue, s->kernels[row], 3, NULL, all,
                                                        threads, 0, NULL, NULL);
  return code ? failed(error, kernel->name, code) : GC_OK;
}

static int synchronise(void *state, gc_error *error) {
  opencl_state *s = state;
  int32_t code = s->shared->api->clFinish(s->queue);
  return code ? failed(error, "while kernels ran", code) : GC_OK;
}

const gc_device gc_device_opencl = {
    .name = "opencl",
    .type = kDLOpenCL,
    .alignment = 512, /* the largest CL_DEVICE_MEM_BASE_ADDR_ALIGN that devices are known to have */
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
    .sync = synchronise,
};

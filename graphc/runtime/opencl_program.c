/* opencl_program.c: compiles kernels on the device, and keeps the binaries on disk, named by a hash
 * of the device, its driver and the source. What the driver refuses is compiled again. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device_cache.h"
#include "opencl.h"

static const char OPTIONS[] = "-cl-std=CL1.2";
enum { MAX_BINARY = 64 << 20 };

static bool cache_path(const opencl_shared *shared, const gc_device_kernel *kernel, char *path,
                       size_t size) {
  uint64_t h = gc_cache_hash(0, shared->identity, strlen(shared->identity));
  uint64_t low = gc_cache_hash(h, kernel->code, kernel->bytes), high = gc_cache_hash(~h, &low, 8);
  high = gc_cache_hash(high, kernel->code, kernel->bytes);
  char name[48];
  snprintf(name, sizeof name, "%016" PRIx64 "%016" PRIx64 ".bin", high, low);
  return gc_cache_path(name, path, size);
}

static cl_object from_cache(const opencl_shared *shared, const char *path) {
  const opencl_api *api = shared->api;
  size_t bytes = 0;
  unsigned char *data = gc_cache_read(path, &bytes);
  if (!data) return NULL;
  int32_t status = 0, code = 0;
  cl_object program = api->clCreateProgramWithBinary(
      shared->context, 1, &shared->device, &bytes, (const unsigned char **)&data, &status, &code);
  free(data);
  if (program && (code || status || api->clBuildProgram(program, 1, &shared->device, OPTIONS, NULL,
                                                        NULL))) {
    api->clReleaseProgram(program);
    program = NULL;
  }
  return program;
}

static void to_cache(const opencl_shared *shared, cl_object program, const char *path) {
  const opencl_api *api = shared->api;
  size_t bytes = 0;
  if (api->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL)) return;
  if (bytes == 0 || bytes > MAX_BINARY) return;
  unsigned char *data = malloc(bytes);
  if (data && !api->clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof data, &data, NULL))
    gc_cache_write(path, data, bytes);
  free(data);
}

static int build_failure(const opencl_shared *shared, const gc_device_kernel *kernel,
                         cl_object program, int32_t code, gc_error *error) {
  size_t size = 0;
  char *log = NULL;
  if (program)
    shared->api->clGetProgramBuildInfo(program, shared->device, CL_PROGRAM_BUILD_LOG, 0, NULL,
                                       &size);
  if (size) log = calloc(size + 1, 1);
  if (log)
    shared->api->clGetProgramBuildInfo(program, shared->device, CL_PROGRAM_BUILD_LOG, size, log,
                                       NULL);
  gc_fail(error, GC_ERROR_DEVICE, "the device does not compile kernel '%s' (%s, %d): %s",
          kernel->name, gc_opencl_text(code), code, log ? log : "");
  free(log);
  return GC_ERROR_DEVICE;
}

int gc_opencl_build(const opencl_shared *shared, const gc_device_kernel *kernel, cl_object *program,
                    cl_object *built, gc_error *error) {
  const opencl_api *api = shared->api;
  char path[4100];
  bool cached = cache_path(shared, kernel, path, sizeof path);
  int32_t code = 0;
  cl_object made = cached ? from_cache(shared, path) : NULL;
  if (!made) {
    const char *source = kernel->code;
    made = api->clCreateProgramWithSource(shared->context, 1, &source, NULL, &code);
    if (!made) return build_failure(shared, kernel, NULL, code, error);
    code = api->clBuildProgram(made, 1, &shared->device, OPTIONS, NULL, NULL);
    if (code) {
      build_failure(shared, kernel, made, code, error);
      api->clReleaseProgram(made);
      return GC_ERROR_DEVICE;
    }
    if (cached) to_cache(shared, made, path);
  }
  *built = api->clCreateKernel(made, kernel->name, &code);
  if (!*built) {
    api->clReleaseProgram(made);
    if (cached) unlink(path); /* a binary of something else */
    return build_failure(shared, kernel, NULL, code, error);
  }
  *program = made;
  return GC_OK;
}

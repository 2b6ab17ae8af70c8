/* opencl_program.c: compiles kernels on the device, and keeps the binaries on disk.
 *
 * A cached binary lies in $GRAPHC_DEVICE_CACHE, else $XDG_CACHE_HOME or ~/.cache under graphc/opencl,
 * named by a hash of the device, its driver and the source. What cannot be read, or is refused by the
 * driver, is compiled again and replaced. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "opencl.h"

static const char OPTIONS[] = "-cl-std=CL1.2";
enum { MAX_BINARY = 64 << 20 };

static uint64_t hash(uint64_t h, const char *text) {
  for (; *text; text++) h = (h ^ (uint8_t)*text) * UINT64_C(0x100000001b3);
  return h ^ h >> 29;
}

/* The file of a kernel's binary; false when there is no place for one. */
static bool cache_path(const opencl_shared *shared, const char *source, char *path, size_t size) {
  const char *own = getenv("GRAPHC_DEVICE_CACHE"), *xdg = getenv("XDG_CACHE_HOME");
  const char *home = getenv("HOME");
  char directory[3072];
  int n = own && *own   ? snprintf(directory, sizeof directory, "%s", own)
          : xdg && *xdg ? snprintf(directory, sizeof directory, "%s/graphc/opencl", xdg)
          : home        ? snprintf(directory, sizeof directory, "%s/.cache/graphc/opencl", home)
                        : -1;
  if (n < 0 || (size_t)n >= sizeof directory) return false;
  for (char *c = directory + 1; *c; c++) {
    if (*c != '/') continue;
    *c = '\0';
    mkdir(directory, 0777);
    *c = '/';
  }
  if (mkdir(directory, 0777) && errno != EEXIST) return false;
  uint64_t low = hash(hash(UINT64_C(0xcbf29ce484222325), shared->identity), source);
  uint64_t high = hash(hash(UINT64_C(0x84222325cbf29ce4), source), shared->identity);
  n = snprintf(path, size, "%s/%016" PRIx64 "%016" PRIx64 ".bin", directory, high, low);
  return n > 0 && (size_t)n < size;
}

static void *read_file(const char *path, size_t *bytes) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return NULL;
  struct stat status;
  void *data = NULL;
  if (!fstat(file, &status) && status.st_size > 0 && status.st_size <= MAX_BINARY) {
    *bytes = (size_t)status.st_size;
    data = malloc(*bytes);
    if (data && read(file, data, *bytes) != (ssize_t)*bytes) {
      free(data);
      data = NULL;
    }
  }
  close(file);
  return data;
}

static void write_file(const char *path, const void *data, size_t bytes) {
  char draft[4200];
  snprintf(draft, sizeof draft, "%s.%ld", path, (long)getpid());
  int file = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return;
  bool written = write(file, data, bytes) == (ssize_t)bytes;
  if (close(file) || !written || rename(draft, path)) unlink(draft);
}

static cl_object from_cache(const opencl_shared *shared, const char *path) {
  const opencl_api *api = shared->api;
  size_t bytes = 0;
  unsigned char *data = read_file(path, &bytes);
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
    write_file(path, data, bytes);
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
  bool cached = cache_path(shared, kernel->code, path, sizeof path);
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

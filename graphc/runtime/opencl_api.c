/* opencl_api.c: opens libOpenCL. */
#include "opencl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "internal.h"

static const char *const libraries[] = {"libOpenCL.so.1", "libOpenCL.so", "libmali.so"};

static opencl_api api;
static bool ready;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char missing[64] = "libOpenCL.so.1";

#define FIND(function)                        \
  do {                                        \
    *(void **)&api.function = dlsym(library, #function); \
    if (!api.function) return #function;      \
  } while (0)

static const char *find_all(void *library) {
  FIND(clGetPlatformIDs);
  FIND(clGetDeviceIDs);
  FIND(clGetDeviceInfo);
  FIND(clCreateContext);
  FIND(clReleaseContext);
  FIND(clCreateCommandQueue);
  FIND(clReleaseCommandQueue);
  FIND(clCreateBuffer);
  FIND(clCreateSubBuffer);
  FIND(clReleaseMemObject);
  FIND(clCreateProgramWithSource);
  FIND(clCreateProgramWithBinary);
  FIND(clBuildProgram);
  FIND(clGetProgramInfo);
  FIND(clGetProgramBuildInfo);
  FIND(clReleaseProgram);
  FIND(clCreateKernel);
  FIND(clReleaseKernel);
  FIND(clSetKernelArg);
  FIND(clGetKernelWorkGroupInfo);
  FIND(clEnqueueNDRangeKernel);
  FIND(clEnqueueReadBuffer);
  FIND(clEnqueueWriteBuffer);
  FIND(clEnqueueCopyBuffer);
  FIND(clFlush);
  FIND(clFinish);
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

const opencl_api *gc_opencl_api(gc_error *error) {
  pthread_once(&once, load);
  if (ready) return &api;
  gc_fail(error, GC_ERROR_DEVICE,
          "OpenCL is missing on this machine (no %s): install the device's driver, or run a version "
          "compiled for the CPU",
          missing);
  return NULL;
}

const char *gc_opencl_text(int32_t code) {
  switch (code) {
    case -1: return "CL_DEVICE_NOT_FOUND";
    case -2: return "CL_DEVICE_NOT_AVAILABLE";
    case -3: return "CL_COMPILER_NOT_AVAILABLE";
    case -4: return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case -5: return "CL_OUT_OF_RESOURCES";
    case -6: return "CL_OUT_OF_HOST_MEMORY";
    case -11: return "CL_BUILD_PROGRAM_FAILURE";
    case -13: return "CL_MISALIGNED_SUB_BUFFER_OFFSET";
    case -14: return "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST";
    case -36: return "CL_INVALID_COMMAND_QUEUE";
    case -42: return "CL_INVALID_BINARY";
    case -52: return "CL_INVALID_KERNEL_ARGS";
    case -54: return "CL_INVALID_WORK_GROUP_SIZE";
    case -61: return "CL_INVALID_BUFFER_SIZE";
    case -1001: return "CL_PLATFORM_NOT_FOUND_KHR";
    default: return "an OpenCL error";
  }
}

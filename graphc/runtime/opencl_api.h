/* opencl_api.h: as much of OpenCL 1.2 as is used, found in libOpenCL when it is first needed.
 *
 * Declared here, from the specification: the headers are not wanted on the machine that links. */
#ifndef GRAPHC_OPENCL_API_H_
#define GRAPHC_OPENCL_API_H_

#include <stdbool.h>

#include "graphc.h"

typedef struct cl_object *cl_object; /* platforms, devices, contexts, ...: all are opaque pointers */

enum {
  CL_DEVICE_TYPE_GPU_OR_ACCELERATOR = 0xC,
  CL_DEVICE_TYPE_ALL = -1,
  CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004,
  CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
  CL_DEVICE_MEM_BASE_ADDR_ALIGN = 0x1019,
  CL_DEVICE_LOCAL_MEM_SIZE = 0x1023,
  CL_DEVICE_NAME = 0x102B,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_VERSION = 0x102F,
  CL_DEVICE_EXTENSIONS = 0x1030,
  CL_MEM_READ_WRITE = 1,
  CL_BUFFER_CREATE_TYPE_REGION = 0x1220,
  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183,
  CL_KERNEL_WORK_GROUP_SIZE = 0x11B0
};

typedef struct {
  size_t origin, size;
} cl_region;

typedef struct {
  int32_t (*clGetPlatformIDs)(uint32_t, cl_object *, uint32_t *);
  int32_t (*clGetDeviceIDs)(cl_object, uint64_t, uint32_t, cl_object *, uint32_t *);
  int32_t (*clGetDeviceInfo)(cl_object, uint32_t, size_t, void *, size_t *);
  cl_object (*clCreateContext)(const intptr_t *, uint32_t, const cl_object *, void *, void *,
                               int32_t *);
  int32_t (*clReleaseContext)(cl_object);
  cl_object (*clCreateCommandQueue)(cl_object, cl_object, uint64_t, int32_t *);
  int32_t (*clReleaseCommandQueue)(cl_object);
  cl_object (*clCreateBuffer)(cl_object, uint64_t, size_t, void *, int32_t *);
  cl_object (*clCreateSubBuffer)(cl_object, uint64_t, uint32_t, const void *, int32_t *);
  int32_t (*clReleaseMemObject)(cl_object);
  cl_object (*clCreateProgramWithSource)(cl_object, uint32_t, const char **, const size_t *,
                                         int32_t *);
  cl_object (*clCreateProgramWithBinary)(cl_object, uint32_t, const cl_object *, const size_t *,
                                         const unsigned char **, int32_t *, int32_t *);
  int32_t (*clBuildProgram)(cl_object, uint32_t, const cl_object *, const char *, void *, void *);
  int32_t (*clGetProgramInfo)(cl_object, uint32_t, size_t, void *, size_t *);
  int32_t (*clGetProgramBuildInfo)(cl_object, cl_object, uint32_t, size_t, void *, size_t *);
  int32_t (*clReleaseProgram)(cl_object);
  cl_object (*clCreateKernel)(cl_object, const char *, int32_t *);
  int32_t (*clReleaseKernel)(cl_object);
  int32_t (*clSetKernelArg)(cl_object, uint32_t, size_t, const void *);
  int32_t (*clGetKernelWorkGroupInfo)(cl_object, cl_object, uint32_t, size_t, void *, size_t *);
  int32_t (*clEnqueueNDRangeKernel)(cl_object, cl_object, uint32_t, const size_t *, const size_t *,
                                    const size_t *, uint32_t, const cl_object *, cl_object *);
  int32_t (*clEnqueueReadBuffer)(cl_object, cl_object, uint32_t, size_t, size_t, void *, uint32_t,
                                 const cl_object *, cl_object *);
  int32_t (*clEnqueueWriteBuffer)(cl_object, cl_object, uint32_t, size_t, size_t, const void *,
                                  uint32_t, const cl_object *, cl_object *);
  int32_t (*clEnqueueCopyBuffer)(cl_object, cl_object, cl_object, size_t, size_t, size_t, uint32_t,
                                 const cl_object *, cl_object *);
  int32_t (*clFlush)(cl_object);
  int32_t (*clFinish)(cl_object);
} opencl_api;

/* The functions, or NULL with `error` filled when there is no driver loader. */
const opencl_api *gc_opencl_api(gc_error *error);

/* OpenCL's name of an error code. */
const char *gc_opencl_text(int32_t code);

#endif

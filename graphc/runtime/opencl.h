/* opencl.h: what the OpenCL back end's files share. */
#ifndef GRAPHC_OPENCL_H_
#define GRAPHC_OPENCL_H_

#include "device.h"
#include "device_ranges.h"
#include "opencl_api.h"

/* A part of an allocation that kernels were given. */
typedef struct {
  cl_object parent, part;
  size_t origin, bytes;
} opencl_part;
enum { OPENCL_PARTS = 1024 };

/* What the contexts of a model share. */
typedef struct {
  const opencl_api *api;
  const gc_program *program;
  cl_object device, context;
  size_t max_threads, alignment, max_bytes;
  char identity[512]; /* of the device and its driver, for the cache of binaries */
  gc_ranges weights;
} opencl_shared;

typedef struct {
  opencl_shared *shared;
  cl_object queue;
  cl_object *programs, *kernels; /* [n_kernels], made when first started */
  size_t *limits;                /* [n_kernels] threads of a work-group */
  gc_ranges ranges;
  opencl_part parts[OPENCL_PARTS];
} opencl_state;

/* opencl_memory.c */
int gc_opencl_add(const opencl_shared *shared, gc_ranges *ranges, size_t bytes, void **address,
                  gc_error *error);
void gc_opencl_remove_all(const opencl_shared *shared, gc_ranges *ranges);
const gc_range *gc_opencl_find(const opencl_state *state, const void *address);
int gc_opencl_part(opencl_state *state, const void *address, size_t bytes, cl_object *part,
                   gc_error *error);
void gc_opencl_forget_parts(opencl_state *state, cl_object parent); /* NULL: of every parent */

/* opencl_program.c: a built kernel, from the cache on disk or from its source. */
int gc_opencl_build(const opencl_shared *shared, const gc_device_kernel *kernel, cl_object *program,
                    cl_object *built, gc_error *error);

#endif

/* graphc.h: the C interface of a compiled model.
 *
 * A model is opened from its directory, a context holds what one thread of use needs (activations
 * and worker threads), and gc_run executes one exported function. Everything is checked at this
 * border: names, dtypes, ranks, dimensions and index values. Nothing aborts and nothing prints; a
 * call that fails returns NULL or a gc_status other than GC_OK and fills the gc_error, if given.
 *
 * Threads: a gc_model may be used from any number of threads at once. A gc_context may be used by
 * one thread at a time (a second one gets GC_ERROR_USE); make one context per thread.
 * After fork() the child must create its own contexts; the model itself stays usable.
 *
 * Shapes are in elements, sizes in bytes, memory is the CPU's.
 */
#ifndef GRAPHC_H_
#define GRAPHC_H_

#include <stddef.h>
#include <stdint.h>

/* The part of DLPack (https://github.com/dmlc/dlpack, version 1) that is used here, under DLPack's
 * own guard: a program that needs the rest of it includes <dlpack/dlpack.h> first. */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
typedef enum {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLOpenCL = 4,
  kDLVulkan = 7
} DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;
typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLOpaqueHandle = 3U,
  kDLBfloat = 4U,
  kDLComplex = 5U,
  kDLBool = 6U
} DLDataTypeCode;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL means compact, row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

#if defined(__GNUC__)
#define GC_API __attribute__((visibility("default")))
#else
#define GC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  GC_OK = 0,
  GC_ERROR_INPUT = 1,    /* a tensor has a wrong dtype, rank, dimension or value */
  GC_ERROR_USE = 2,      /* a wrong argument: unknown function, NULL, context already in use */
  GC_ERROR_ARTIFACT = 3, /* the artifact is missing, damaged or made for another machine */
  GC_ERROR_MEMORY = 4,   /* memory or threads cannot be had */
  GC_ERROR_KERNEL = 5,   /* a kernel refused to run: a fault of the compiler */
  GC_ERROR_DEVICE = 6    /* the accelerator is missing, too small, or failed */
} gc_status;

/* What went wrong: one or two lines in lower case, always terminated. */
typedef struct {
  int32_t code; /* gc_status */
  char message[1020];
} gc_error;

typedef struct gc_model gc_model;
typedef struct gc_context gc_context;

/* Zero every field that is not used; `size` is sizeof(gc_options) of the header that was included,
 * so that later versions can add fields. */
typedef struct {
  size_t size;
  int32_t threads; /* threads of each context with the caller's; 0: physical cores allowed */
  int32_t spin_us; /* how long idle workers stay hot before they sleep; 0: 200, negative: never */
  const int32_t *cpus; /* worker i (the caller is 0) is pinned to cpus[i % n_cpus]; NULL: free */
  int32_t n_cpus;
  int32_t check_weights; /* not 0: checksum every weight when opening, not just index tables */
  const char *weights;   /* weights file, when it is not <dir>/weights.bin */
} gc_options;

/* A symbolic dimension and its bounds, both included; `upper` is INT64_MAX when there is none. */
typedef struct {
  const char *name;
  int64_t lower;
  int64_t upper;
} gc_dim;

/* An input or output. */
typedef struct {
  const char *name;
  DLDataType dtype;
  int32_t ndim;
  const int64_t *shape;    /* [ndim], -1 where it depends on symbolic dimensions */
  const char *const *dims; /* [ndim] as text: "384", "batch", "2*sequence" */
  int64_t low, high;       /* allowed values of an index input; low > high when anything goes */
} gc_port;

/* An exported function. */
typedef struct {
  const char *name;
  int32_t n_inputs, n_outputs, n_dims;
  const gc_port *inputs;
  const gc_port *outputs;
  const gc_dim *dims;
} gc_function;

/* Opens the artifact in directory `dir`; `options` may be NULL. Maps the weights read-only and
 * checks them, and that this CPU has what the kernels need. NULL on failure. */
GC_API gc_model *gc_open(const char *dir, const gc_options *options, gc_error *error);

/* Gives the model up; its memory goes when its last context is destroyed. NULL is allowed. */
GC_API void gc_close(gc_model *model);

/* The exported functions; gc_function_at gives NULL when `index` is out of range, and
 * gc_function_named when there is no such name. Valid for as long as the library is loaded. */
GC_API int32_t gc_function_count(const gc_model *model);
GC_API const gc_function *gc_function_at(const gc_model *model, int32_t index);
GC_API const gc_function *gc_function_named(const gc_model *model, const char *name);

/* A context with its own threads and activations; NULL on failure. */
GC_API gc_context *gc_context_create(gc_model *model, gc_error *error);

/* Ends the context's threads and frees its memory, outputs included. NULL is allowed. */
GC_API void gc_context_destroy(gc_context *context);

/* How many threads the context uses, the caller's included. */
GC_API int32_t gc_context_threads(const gc_context *context);

/* Runs `function` on `n_in` inputs, in the order of gc_function.inputs, and fills `n_out` outputs.
 *
 * An input that is not compact or not aligned to 64 bytes is copied first. An output whose `data`
 * is NULL is given memory, shape and strides that belong to the context and stay valid until its
 * next gc_run; otherwise shape, dtype and strides must be set and the result is written there.
 * An output must not overlap another output; it may overlap an input.
 * Returns GC_OK or what is in error->code. A run whose dimensions equal the last run's of that
 * function allocates nothing. */
GC_API int gc_run(gc_context *context, const char *function, const DLTensor *inputs, int32_t n_in,
                  DLTensor *outputs, int32_t n_out, gc_error *error);

/* Gives outputs[i] dtype, rank, shape and strides for inputs of the given shapes, whose data is not
 * looked at. The shapes belong to the context and are valid until its next call. */
GC_API int gc_infer_shapes(gc_context *context, const char *function, const DLTensor *inputs,
                           int32_t n_in, DLTensor *outputs, int32_t n_out, gc_error *error);

/* What the calls of one kernel at one place of a function took since gc_profile. `bytes` are those
 * of all its tensors in the last run, `flops` its floating-point or integer operations, -1 when
 * they are not known. Names are valid for as long as the library is loaded. */
typedef struct {
  const char *kernel;
  int64_t calls, nanoseconds, fastest;
  int64_t bytes, flops;
} gc_kernel_time;

/* Starts to time every kernel of the context's later runs, from zero. */
GC_API int gc_profile(gc_context *context, gc_error *error);

/* Fills up to `capacity` rows in run order; returns how many there are, 0 when nothing was timed or
 * there is no such function. */
GC_API int32_t gc_kernel_times(const gc_context *context, const char *function,
                               gc_kernel_time *times, int32_t capacity);

#ifdef __cplusplus
}
#endif
#endif

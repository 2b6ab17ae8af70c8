/* program.h: the static tables and functions that a generated host.c hands to the runtime. */
#ifndef GRAPHC_PROGRAM_H_
#define GRAPHC_PROGRAM_H_

#include "graphc.h"

/* TVM's calling convention: a tagged value, and the packed entry of a compiled kernel. */
typedef struct {
  int32_t type; /* GC_VALUE_... */
  uint32_t padding;
  union {
    int64_t integer;
    double real;
    void *pointer;
    DLTensor *tensor;
  } as;
} gc_value;
enum { GC_VALUE_INT = 1, GC_VALUE_REAL = 3, GC_VALUE_POINTER = 4, GC_VALUE_TENSOR = 7 };
typedef int (*gc_kernel)(void *self, gc_value *args, int32_t n_args, gc_value *result);

/* GC_CACHE is an input that kernels write: pages of a gc_cache. */
typedef enum { GC_INPUT, GC_OUTPUT, GC_WEIGHT, GC_ARENA, GC_CACHE, GC_SLOT } gc_storage;

/* A typed view of input, output, weight, arena buffer or slot number `index`. Several tensors of
 * one shape share the place in gc_frame.shapes where it is computed, in `stage`. */
typedef struct {
  const char *name;
  gc_storage storage;
  int32_t index;
  DLDataType dtype;
  int32_t ndim;
  int32_t shape;
  int32_t stage;
} gc_tensor_plan;

/* A piece of the arena of `stage`, live from step `first` to step `last`, both included. */
typedef struct {
  int32_t first, last;
  int32_t stage;
} gc_buffer_plan;

/* The arithmetic operations of the kernel call whose first argument is `first`: a scalar. */
typedef struct {
  int32_t first, scalar;
} gc_work;

typedef struct gc_frame gc_frame;

/* When dimensions become known: stage 0 from the inputs' shapes, others in mid-run. `bind` computes
 * the shapes and scalars over them and checks constraints; its buffers are those numbered from
 * `first_buffer` on. A stage that is entered again, in a loop, loses what its arena held. */
typedef struct {
  int (*bind)(gc_frame *f);
  int32_t first_buffer, n_buffers;
} gc_stage_plan;

/* One exported function. */
typedef struct {
  gc_function info;
  const int32_t *input_symbols; /* per input, per dimension: number of the symbol it is, or -1 */
  const int32_t *input_shapes;  /* per input: its place in gc_frame.shapes */
  const int32_t *output_shapes;
  const int32_t *output_stages; /* per output: the stage that makes its shape known */
  int32_t n_dims;               /* with those that become known in mid-run, which are last */
  int32_t n_shapes, n_scalars, n_tensors, n_buffers, n_args, n_work, n_stages, n_slots;
  int32_t n_caches; /* how many inputs, the last ones, are caches */
  const gc_tensor_plan *tensors;
  const gc_buffer_plan *buffers;
  const int32_t *args;      /* kernels' arguments: a tensor's number t, or ~s for scalar s */
  const gc_work *work;      /* for calls of which it is known */
  const int32_t *weights;   /* the function's weight number -> the program's */
  const gc_stage_plan *stages;
  int (*run)(gc_frame *f); /* the steps, in order */
} gc_function_plan;

typedef struct {
  const char *name;
  uint64_t offset, bytes;
  uint64_t checksum;
  int32_t is_index; /* an integer table that kernels may index with: always checked */
} gc_weight;

/* A kernel for a device: source text for OpenCL, SPIR-V for Vulkan. `arguments` has a letter for each argument: p a pointer, i
 * and l integers of 32 and 64 bits, f a float. The values after them in a launch are extents: entry
 * k of `extents` says of which axis, 0 to 2 work-groups along x, y, z, 3 to 5 threads of one. */
typedef struct {
  const char *name;
  const void *code;
  size_t bytes;
  const char *arguments;
  int32_t n_extents;
  uint8_t extents[6];
} gc_device_kernel;

struct gc_device;
/* A causal language model: the function that steps it over pages (see gc_step for its inputs). */
typedef struct {
  int32_t function;
  int32_t page_size;
  int32_t ragged; /* one call takes chunks of several sequences */
  int64_t vocabulary, max_context;
} gc_decoder_plan;

typedef struct {
  uint64_t weights_bytes;     /* size of weights.bin */
  uint8_t weights_digest[32]; /* SHA-256 of its table */
  int32_t n_weights, n_functions, n_features;
  const gc_weight *weights;
  const gc_function_plan *functions;
  const gc_decoder_plan *decoder; /* NULL: not a language model */
  const char *const *features; /* CPU features that the kernels need, by LLVM's names */
  const struct gc_device *device; /* NULL: kernels run on the CPU */
  const gc_device_kernel *kernels;
  int32_t n_kernels;
} gc_program;

extern const gc_program gc_the_program;

/* What one function has in one context. The generated code sees these fields only. */
struct gc_frame {
  const gc_function_plan *plan;
  gc_context *context;
  int64_t *dims;    /* [plan->n_dims] */
  int64_t *shapes;  /* [n_shapes] */
  int64_t *scalars; /* [n_scalars] */
  DLTensor *tensors;
  gc_value *args;
  gc_kernel_time *times; /* NULL, or where kernels are timed */
  int overflow; /* set by the arithmetic below */
  gc_error *error;
};

/* Steps; each returns 0, or fills f->error and returns its code. */
int gc_step_kernel(gc_frame *f, const char *name, gc_kernel kernel, int32_t first, int32_t n_args);
int gc_step_check(gc_frame *f, int32_t tensor, int64_t low, int64_t high, const char *where);
int gc_step_copy(gc_frame *f, int32_t source, int32_t target);

/* Steps of functions with late dimensions, branches or loops (flow.c). A slot is memory of its own
 * that keeps what one iteration of a loop leaves to the next. */
int gc_step_enter(gc_frame *f, int32_t stage);
int gc_step_measure(gc_frame *f, int32_t tensor, int32_t element, int32_t dim, int64_t low,
                    int64_t high, const char *name, const char *where);
int gc_step_assign(gc_frame *f, int32_t dim, int64_t value, int64_t low, int64_t high,
                   const char *name, const char *where);
int gc_step_truth(gc_frame *f, int32_t tensor, int *truth);
int gc_step_store(gc_frame *f, int32_t source, int32_t slot);  /* replaces what it holds */
int gc_step_append(gc_frame *f, int32_t source, int32_t slot); /* adds to what it holds */
int gc_step_expose(gc_frame *f, int32_t slot, int32_t stage);  /* tensors get its memory */
void gc_step_clear(gc_frame *f, int32_t slot);

/* Fails unless left == right; `text` spells the equation and `reason` says why it is needed. */
int gc_require(gc_frame *f, int64_t left, int64_t right, const char *text, const char *reason);

/* Arithmetic over dimensions, which come from the caller: it must not overflow unseen. */
static inline int64_t gc_add(gc_frame *f, int64_t a, int64_t b) {
  int64_t r;
  f->overflow |= __builtin_add_overflow(a, b, &r);
  return r;
}
static inline int64_t gc_sub(gc_frame *f, int64_t a, int64_t b) {
  int64_t r;
  f->overflow |= __builtin_sub_overflow(a, b, &r);
  return r;
}
static inline int64_t gc_mul(gc_frame *f, int64_t a, int64_t b) {
  int64_t r;
  f->overflow |= __builtin_mul_overflow(a, b, &r);
  return r;
}
static inline int64_t gc_truncdiv(gc_frame *f, int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) {
    f->overflow = 1;
    return 0;
  }
  return a / b;
}
static inline int64_t gc_truncmod(gc_frame *f, int64_t a, int64_t b) {
  return gc_sub(f, a, gc_mul(f, gc_truncdiv(f, a, b), b));
}
static inline int64_t gc_floordiv(gc_frame *f, int64_t a, int64_t b) {
  int64_t q = gc_truncdiv(f, a, b);
  return q - (b != 0 && !f->overflow && a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t gc_floormod(gc_frame *f, int64_t a, int64_t b) {
  return gc_sub(f, a, gc_mul(f, gc_floordiv(f, a, b), b));
}
static inline int64_t gc_min(int64_t a, int64_t b) {
  return a < b ? a : b;
}
static inline int64_t gc_max(int64_t a, int64_t b) {
  return a > b ? a : b;
}

#endif

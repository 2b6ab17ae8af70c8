/* internal.h: what the runtime's files share. */
#ifndef GRAPHC_INTERNAL_H_
#define GRAPHC_INTERNAL_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "device.h"
#include "program.h"
#include "thread_pool.h"

enum { GC_ALIGNMENT = 64 };
#define GC_MAX_BYTES ((size_t)1 << 62)

/* error.c */
int gc_fail(gc_error *error, gc_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* weights.c: a file mapped read-only, shared with every process that maps it. */
typedef struct {
  const uint8_t *data;
  size_t bytes;
} gc_weights;
int gc_weights_open(gc_weights *weights, const char *path, const gc_program *program,
                    bool check_all, gc_error *error);
void gc_weights_close(gc_weights *weights);

/* cpu_features.c */
int gc_check_features(const char *const *features, int32_t n_features, gc_error *error);

/* cpu_count.c: physical cores that this process may use, at least 1. */
int32_t gc_physical_cores(void);

/* arena.c: offsets such that buffers live at the same time never overlap; returns the total, or
 * SIZE_MAX on overflow. Sizes become multiples of `alignment`, a power of two. `order` is scratch of 2 n entries. Sizes are rounded up in place. */
size_t gc_place_buffers(int32_t n, const gc_buffer_plan *buffers, size_t alignment, size_t *sizes,
                        size_t *offsets, int32_t *order);

/* tensor.c */
size_t gc_tensor_bytes(DLDataType dtype, int32_t ndim,
                       const int64_t *shape); /* SIZE_MAX: overflow */
bool gc_is_compact(const DLTensor *tensor);
void gc_compact_strides(int32_t ndim, const int64_t *shape, int64_t *strides);
void gc_copy_strided(void *target, const int64_t *target_strides, const void *source,
                     const int64_t *source_strides, int32_t ndim, const int64_t *shape,
                     size_t item);
const char *gc_dtype_text(DLDataType dtype, char *text, size_t size);
bool gc_same_dtype(DLDataType a, DLDataType b);

struct gc_model {
  const gc_program *program;
  gc_weights weights;
  int32_t threads, spin_us, n_cpus;
  int32_t *cpus;
  _Atomic int references; /* the caller's and one for each context */
  const gc_device *device;
  void *device_shared;
  void **weight_addresses; /* [n_weights] on the device */
};
void gc_model_release(gc_model *model);

/* Memory that grows and is kept. */
typedef struct {
  void *data;
  size_t bytes;
} gc_block;

/* One function in one context: gc_frame is what generated code sees of it. */
typedef struct {
  gc_frame frame;
  bool bound;              /* shapes, sizes and offsets are those of frame.dims */
  uint64_t generation;     /* of the arena that the tensors point into; 0: none */
  int64_t *wanted;         /* [n_dims] dimensions of the call being checked */
  int32_t *givers;         /* [n_dims] the input that bound the symbol, or -1 */
  size_t *sizes, *offsets; /* [n_buffers] */
  int32_t *order;          /* [2 n_buffers] scratch of the planner */
  size_t arena_bytes;
  gc_block *stage_arenas;  /* [n_stages]; stage 0 has the context's */
  gc_block *slots;         /* [n_slots] */
  size_t *slot_bytes;      /* [n_slots] how much of them is filled */
  int32_t *slot_stages;    /* [n_slots] the stage in which tensors got their content, or 0 */
  int64_t *strides;     /* of all outputs, one after the other */
  gc_block *in_blocks;  /* [n_inputs] copies of inputs that cannot be used in place */
  gc_block *out_blocks; /* [n_outputs] outputs that the context owns or stages */
  gc_block *host_blocks; /* [n_outputs] what of a device's outputs the caller sees */
  void **in_data, **out_data;
  gc_kernel_time *times; /* [n_args], by a call's first argument; NULL: not counted */
} gc_binding;

struct gc_context {
  gc_model *model;
  const gc_device *device;
  void *device_state;
  gc_pool *pool;
  gc_block arena;
  uint64_t generation;
  gc_binding *bindings; /* [n_functions] */
  atomic_flag busy;
  pid_t process; /* worker threads do not survive a fork */
};

/* profile.c */
int64_t gc_now_ns(void);
void gc_profile_add(gc_kernel_time *row, const char *name, const gc_value *args, int32_t n_args,
                    int64_t nanoseconds);
/* run.c: makes a block hold `bytes`; its content may be lost. */
int gc_grow(gc_context *context, gc_block *block, size_t bytes, gc_error *error);

/* bind.c: sizes and offsets of what a stage makes known, the bytes of its arena in *arena_bytes. */
int gc_bind_stage(gc_context *context, gc_binding *binding, int32_t stage, size_t *arena_bytes,
                  gc_error *error);

/* bind.c: checks inputs against the function, then makes shapes, sizes and offsets theirs. */
int gc_bind(gc_context *context, gc_binding *binding, const DLTensor *inputs, bool with_data,
            gc_error *error);
int gc_binding_create(gc_binding *binding, const gc_function_plan *plan, gc_error *error);
void gc_binding_destroy(gc_context *context, gc_binding *binding);

/* run.c: between these two the context is the caller's, if it is free and of this process. */
int gc_context_enter(gc_context *context, gc_error *error);
int gc_context_leave(gc_context *context, int code);
/* Binds and runs; outputs without data are given memory of the context. */
int gc_run_binding(gc_context *context, gc_binding *binding, const DLTensor *inputs,
                   DLTensor *outputs, gc_error *error);

#endif

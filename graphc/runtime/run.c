/* run.c: one run from the caller's tensors to the caller's tensors. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

int gc_grow(gc_context *context, gc_block *block, size_t bytes, gc_error *error) {
  if (bytes <= block->bytes && block->data) return GC_OK;
  /* Freed before the larger one is made: the content is not needed, the peak is lower. */
  context->device->free(context->device_state, block->data);
  *block = (gc_block){0};
  int code = context->device->alloc(context->device_state, bytes, &block->data, error);
  if (!code) block->bytes = bytes;
  return code;
}

static int place_arena(gc_context *context, gc_binding *binding, gc_error *error) {
  const gc_function_plan *plan = binding->frame.plan;
  if (!context->arena.data || binding->arena_bytes > context->arena.bytes) {
    context->generation++; /* other functions' pointers go stale */
    int code = gc_grow(context, &context->arena, binding->arena_bytes, error);
    if (code) return code;
  }
  if (binding->generation == context->generation) return GC_OK;
  for (int32_t t = 0; t < plan->n_tensors; t++) {
    const gc_tensor_plan *p = &plan->tensors[t];
    if (p->storage == GC_ARENA && plan->buffers[p->index].stage == 0)
      binding->frame.tensors[t].data = (char *)context->arena.data + binding->offsets[p->index];
  }
  binding->generation = context->generation;
  return GC_OK;
}

static char *start_of(const DLTensor *tensor) {
  return tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
}

static bool usable_in_place(const DLTensor *tensor) {
  return (uintptr_t)start_of(tensor) % GC_ALIGNMENT == 0 && gc_is_compact(tensor);
}

/* The bytes from *low up to *high that a tensor touches; none when it is empty. */
static void extent(const DLTensor *tensor, uintptr_t *low, uintptr_t *high) {
  size_t item = (size_t)(tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
  *low = *high = (uintptr_t)start_of(tensor);
  if (!tensor->strides) {
    size_t bytes = gc_tensor_bytes(tensor->dtype, tensor->ndim, tensor->shape);
    *high += bytes;
    return;
  }
  for (int32_t i = 0; i < tensor->ndim; i++) {
    if (tensor->shape[i] == 0) {
      *high = *low;
      return;
    }
    int64_t reach = (tensor->shape[i] - 1) * tensor->strides[i] * (int64_t)item;
    if (reach < 0)
      *low -= (uintptr_t)-reach;
    else
      *high += (uintptr_t)reach;
  }
  *high += item;
}

static bool overlap(const DLTensor *a, const DLTensor *b) {
  uintptr_t a_low, a_high, b_low, b_high;
  extent(a, &a_low, &a_high);
  extent(b, &b_low, &b_high);
  return a_low < b_high && b_low < a_high;
}

/* A compact copy in the caller's memory; `bytes` are those of the tensor. */
static void compact_into(void *copy, const DLTensor *t) {
  int64_t strides[64];
  gc_compact_strides(t->ndim, t->shape, strides);
  gc_copy_strided(copy, strides, start_of(t), t->strides, t->ndim, t->shape,
                  (size_t)(t->dtype.bits * t->dtype.lanes + 7) / 8);
}

static int upload_input(gc_context *context, gc_block *block, const DLTensor *t, size_t bytes,
                        gc_error *error) {
  int code = gc_grow(context, block, bytes, error);
  if (code) return code;
  if (gc_is_compact(t))
    return context->device->upload(context->device_state, block->data, start_of(t), bytes, error);
  void *compact = malloc(bytes);
  if (!compact) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  compact_into(compact, t);
  code = context->device->upload(context->device_state, block->data, compact, bytes, error);
  free(compact);
  return code;
}

static int stage_inputs(gc_context *context, gc_binding *binding, const DLTensor *inputs,
                        gc_error *error) {
  const gc_function *info = &binding->frame.plan->info;
  for (int32_t i = 0; i < info->n_inputs; i++) {
    const DLTensor *t = &inputs[i];
    binding->in_data[i] = start_of(t);
    size_t bytes = gc_tensor_bytes(t->dtype, t->ndim, t->shape);
    if (bytes == 0) continue;
    if (context->device->type != kDLCPU) {
      int code = upload_input(context, &binding->in_blocks[i], t, bytes, error);
      if (code) return code;
      binding->in_data[i] = binding->in_blocks[i].data;
      continue;
    }
    if (usable_in_place(t)) continue;
    int code = gc_grow(context, &binding->in_blocks[i], bytes, error);
    if (code) return code;
    void *copy = binding->in_blocks[i].data;
    if (gc_is_compact(t)) {
      code = context->device->copy(context->device_state, copy, start_of(t), bytes, error);
      if (code) return code;
    } else {
      compact_into(copy, t);
    }
    binding->in_data[i] = copy;
  }
  return GC_OK;
}

static int check_output(const gc_port *port, const DLTensor *tensor, gc_error *error) {
  char want[24], have[24];
  if (tensor->device.device_type != kDLCPU)
    return gc_fail(error, GC_ERROR_INPUT,
                   "output '%s': is on device type %d, expected the CPU's, %d", port->name,
                   (int)tensor->device.device_type, (int)kDLCPU);
  if (!gc_same_dtype(tensor->dtype, port->dtype))
    return gc_fail(error, GC_ERROR_INPUT, "output '%s': dtype is %s, expected %s", port->name,
                   gc_dtype_text(tensor->dtype, have, sizeof have),
                   gc_dtype_text(port->dtype, want, sizeof want));
  if (tensor->ndim != port->ndim || (port->ndim > 0 && !tensor->shape))
    return gc_fail(error, GC_ERROR_INPUT, "output '%s': has %d dimensions, expected %d", port->name,
                   tensor->shape ? tensor->ndim : 0, port->ndim);
  return GC_OK;
}

static int check_output_shape(const gc_port *port, const DLTensor *tensor, const int64_t *shape,
                              gc_error *error) {
  for (int32_t axis = 0; axis < port->ndim; axis++) {
    if (tensor->shape[axis] != shape[axis])
      return gc_fail(error, GC_ERROR_INPUT,
                     "output '%s': dimension %d is %" PRId64 ", but the result has %s = %" PRId64,
                     port->name, axis, tensor->shape[axis], port->dims[axis], shape[axis]);
  }
  return GC_OK;
}

/* Where each output is computed: at the caller's, or in a block of the context's. One whose shape
 * becomes known in mid-run gets its block then. */
static int choose_outputs(gc_context *context, gc_binding *binding, const DLTensor *inputs,
                          const DLTensor *outputs, gc_error *error) {
  const gc_function_plan *plan = binding->frame.plan;
  for (int32_t i = 0; i < plan->info.n_outputs; i++) {
    const DLTensor *t = &outputs[i];
    const gc_port *port = &plan->info.outputs[i];
    const int64_t *shape = binding->frame.shapes + plan->output_shapes[i];
    bool is_late = plan->output_stages[i] > 0;
    bool in_place = t->data != NULL && !is_late;
    if (t->data) {
      int code = check_output(port, t, error);
      if (!code && !is_late) code = check_output_shape(port, t, shape, error);
      if (code) return code;
      for (int32_t other = 0; other < i; other++) {
        if (outputs[other].data && overlap(t, &outputs[other]))
          return gc_fail(error, GC_ERROR_USE, "outputs '%s' and '%s' overlap in memory",
                         plan->info.outputs[other].name, port->name);
      }
      in_place = in_place && usable_in_place(t);
      for (int32_t in = 0; in < plan->info.n_inputs && in_place; in++)
        in_place = !overlap(t, &inputs[in]);
    }
    binding->out_data[i] = start_of(t);
    if (is_late || (in_place && context->device->type == kDLCPU)) continue;
    size_t bytes = gc_tensor_bytes(port->dtype, port->ndim, shape);
    int code = gc_grow(context, &binding->out_blocks[i], bytes, error);
    if (code) return code;
    binding->out_data[i] = binding->out_blocks[i].data;
  }
  return GC_OK;
}

static void describe_output(const gc_binding *binding, int32_t i, int64_t *strides,
                            DLTensor *tensor) {
  const gc_function_plan *plan = binding->frame.plan;
  tensor->device = (DLDevice){kDLCPU, 0};
  tensor->ndim = plan->info.outputs[i].ndim;
  tensor->dtype = plan->info.outputs[i].dtype;
  tensor->shape = binding->frame.shapes + plan->output_shapes[i];
  tensor->strides = strides;
  tensor->byte_offset = 0;
}

static int deliver_outputs(const gc_binding *binding, DLTensor *outputs, gc_error *error) {
  const gc_function_plan *plan = binding->frame.plan;
  const gc_function *info = &plan->info;
  int64_t *strides = binding->strides;
  for (int32_t i = 0; i < info->n_outputs; strides += info->outputs[i].ndim, i++) {
    DLTensor *t = &outputs[i];
    if (!t->data) {
      describe_output(binding, i, strides, t);
      t->data = binding->out_data[i];
    } else if (start_of(t) != binding->out_data[i]) {
      const int64_t *shape = binding->frame.shapes + plan->output_shapes[i];
      int code = check_output_shape(&info->outputs[i], t, shape, error);
      if (code) return code;
      int64_t own[64];
      if (!t->strides) gc_compact_strides(t->ndim, t->shape, own);
      gc_copy_strided(start_of(t), t->strides ? t->strides : own, binding->out_data[i], strides,
                      t->ndim, t->shape, (size_t)(t->dtype.bits * t->dtype.lanes + 7) / 8);
    }
  }
  return GC_OK;
}

/* Brings a device's outputs to where deliver_outputs looks for them. */
static int download_outputs(gc_context *context, gc_binding *binding, const DLTensor *outputs,
                            gc_error *error) {
  const gc_function_plan *plan = binding->frame.plan;
  if (context->device->type == kDLCPU) return GC_OK;
  for (int32_t i = 0; i < plan->info.n_outputs; i++) {
    const gc_port *port = &plan->info.outputs[i];
    const int64_t *shape = binding->frame.shapes + plan->output_shapes[i];
    size_t bytes = gc_tensor_bytes(port->dtype, port->ndim, shape);
    void *target = start_of(&outputs[i]);
    if (!target || !gc_is_compact(&outputs[i])) {
      gc_block *block = &binding->host_blocks[i];
      if (!block->data || block->bytes < bytes) {
        gc_device_cpu.free(NULL, block->data);
        *block = (gc_block){0};
        int code = gc_device_cpu.alloc(NULL, bytes, &block->data, error);
        if (code) return code;
        block->bytes = bytes;
      }
      target = block->data;
    }
    int code = context->device->download(context->device_state, target, binding->out_data[i], bytes,
                                         error);
    if (code) return code;
    binding->out_data[i] = target;
  }
  return GC_OK;
}

static void patch_pointers(gc_binding *binding) {
  const gc_function_plan *plan = binding->frame.plan;
  for (int32_t t = 0; t < plan->n_tensors; t++) {
    const gc_tensor_plan *p = &plan->tensors[t];
    if (p->storage == GC_INPUT || p->storage == GC_CACHE)
      binding->frame.tensors[t].data = binding->in_data[p->index];
    if (p->storage == GC_OUTPUT) binding->frame.tensors[t].data = binding->out_data[p->index];
  }
}

int gc_run_binding(gc_context *context, gc_binding *binding, const DLTensor *inputs,
                   DLTensor *outputs, gc_error *error) {
  int code = gc_bind(context, binding, inputs, true, error);
  if (!code) code = place_arena(context, binding, error);
  if (!code) code = stage_inputs(context, binding, inputs, error);
  if (!code) code = choose_outputs(context, binding, inputs, outputs, error);
  if (code) return code;
  patch_pointers(binding);
  binding->frame.error = error;
  binding->frame.overflow = 0;
  void *previous = gc_pool_enter(context->pool);
  code = binding->frame.plan->run(&binding->frame);
  if (!code) code = context->device->sync(context->device_state, error);
  gc_pool_leave(previous);
  if (!code) code = download_outputs(context, binding, outputs, error);
  if (!code) code = deliver_outputs(binding, outputs, error);
  return code;
}

static gc_binding *find(gc_context *context, const char *function, int32_t n_in, int32_t n_out,
                        gc_error *error) {
  const gc_program *program = context->model->program;
  for (int32_t i = 0; function && i < program->n_functions; i++) {
    const gc_function *info = &program->functions[i].info;
    if (strcmp(info->name, function)) continue;
    if (n_in == info->n_inputs && n_out == info->n_outputs) return &context->bindings[i];
    gc_fail(error, GC_ERROR_USE,
            "function '%s' takes %d inputs and gives %d outputs, not %d and %d", function,
            info->n_inputs, info->n_outputs, n_in, n_out);
    return NULL;
  }
  gc_fail(error, GC_ERROR_USE, "no function '%s' in this model", function ? function : "(null)");
  return NULL;
}

int gc_context_enter(gc_context *context, gc_error *error) {
  if (error) *error = (gc_error){0};
  if (!context) return gc_fail(error, GC_ERROR_USE, "no context given");
  if (context->process != getpid())
    return gc_fail(error, GC_ERROR_USE,
                   "this context was made before fork(); make one in the child process");
  if (atomic_flag_test_and_set_explicit(&context->busy, memory_order_acquire))
    return gc_fail(error, GC_ERROR_USE,
                   "this context is in use by another thread; make one per thread");
  return GC_OK;
}

int gc_context_leave(gc_context *context, int code) {
  atomic_flag_clear_explicit(&context->busy, memory_order_release);
  return code;
}

int gc_run(gc_context *context, const char *function, const DLTensor *inputs, int32_t n_in,
           DLTensor *outputs, int32_t n_out, gc_error *error) {
  gc_error own;
  if (!error) error = &own;
  int code = gc_context_enter(context, error);
  if (code) return code;
  gc_binding *binding = find(context, function, n_in, n_out, error);
  if (!binding) return gc_context_leave(context, GC_ERROR_USE);
  if ((n_in > 0 && !inputs) || (n_out > 0 && !outputs))
    return gc_context_leave(context, gc_fail(error, GC_ERROR_USE, "inputs or outputs are NULL"));
  if (binding->frame.plan->n_caches > 0)
    return gc_context_leave(context, gc_fail(error, GC_ERROR_USE,
                                "function '%s' works on a cache: call gc_step", function));
  code = gc_run_binding(context, binding, inputs, outputs, error);
  return gc_context_leave(context, code);
}

int gc_infer_shapes(gc_context *context, const char *function, const DLTensor *inputs, int32_t n_in,
                    DLTensor *outputs, int32_t n_out, gc_error *error) {
  gc_error own;
  if (!error) error = &own;
  int code = gc_context_enter(context, error);
  if (code) return code;
  gc_binding *binding = find(context, function, n_in, n_out, error);
  if (!binding) return gc_context_leave(context, GC_ERROR_USE);
  if ((n_in > 0 && !inputs) || (n_out > 0 && !outputs))
    return gc_context_leave(context, gc_fail(error, GC_ERROR_USE, "inputs or outputs are NULL"));
  code = gc_bind(context, binding, inputs, false, error);
  if (code) return gc_context_leave(context, code);
  const gc_function_plan *plan = binding->frame.plan;
  /* A run leaves the shapes that it found: the first stage says anew that they are not known. */
  if (plan->n_stages > 1) code = plan->stages[0].bind(&binding->frame);
  int64_t *strides = binding->strides;
  for (int32_t i = 0; i < n_out; strides += outputs[i].ndim, i++)
    describe_output(binding, i, plan->output_stages[i] > 0 ? NULL : strides, &outputs[i]);
  return gc_context_leave(context, code);
}

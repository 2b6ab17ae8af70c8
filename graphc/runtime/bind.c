/* bind.c: from the inputs' shapes to every shape, size and arena offset of a function. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static void *zeros(int32_t n, size_t size) {
  return calloc(n > 0 ? (size_t)n : 1, size);
}

int gc_binding_create(gc_binding *binding, const gc_function_plan *plan, gc_error *error) {
  const gc_function *info = &plan->info;
  int32_t rank_sum = 0;
  for (int32_t i = 0; i < info->n_outputs; i++) rank_sum += info->outputs[i].ndim;
  gc_frame *f = &binding->frame;
  f->plan = plan;
  bool ok = (f->dims = zeros(plan->n_dims, sizeof *f->dims)) &&
            (f->shapes = zeros(plan->n_shapes, sizeof *f->shapes)) &&
            (f->scalars = zeros(plan->n_scalars, sizeof *f->scalars)) &&
            (f->tensors = zeros(plan->n_tensors, sizeof *f->tensors)) &&
            (f->args = zeros(plan->n_args, sizeof *f->args)) &&
            (binding->wanted = zeros(info->n_dims, sizeof *binding->wanted)) &&
            (binding->givers = zeros(info->n_dims, sizeof *binding->givers)) &&
            (binding->sizes = zeros(plan->n_buffers, sizeof *binding->sizes)) &&
            (binding->offsets = zeros(plan->n_buffers, sizeof *binding->offsets)) &&
            (binding->order = zeros(plan->n_buffers, 2 * sizeof *binding->order)) &&
            (binding->stage_arenas = zeros(plan->n_stages, sizeof *binding->stage_arenas)) &&
            (binding->slots = zeros(plan->n_slots, sizeof *binding->slots)) &&
            (binding->slot_bytes = zeros(plan->n_slots, sizeof *binding->slot_bytes)) &&
            (binding->slot_stages = zeros(plan->n_slots, sizeof *binding->slot_stages)) &&
            (binding->strides = zeros(rank_sum, sizeof *binding->strides)) &&
            (binding->in_blocks = zeros(info->n_inputs, sizeof *binding->in_blocks)) &&
            (binding->out_blocks = zeros(info->n_outputs, sizeof *binding->out_blocks)) &&
            (binding->host_blocks = zeros(info->n_outputs, sizeof *binding->host_blocks)) &&
            (binding->in_data = zeros(info->n_inputs, sizeof *binding->in_data)) &&
            (binding->out_data = zeros(info->n_outputs, sizeof *binding->out_data));
  if (!ok) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  for (int32_t t = 0; t < plan->n_tensors; t++) {
    const gc_tensor_plan *p = &plan->tensors[t];
    f->tensors[t] = (DLTensor){
        .device = {kDLCPU, 0},
        .ndim = p->ndim,
        .dtype = p->dtype,
        .shape = f->shapes + p->shape,
    };
  }
  for (int32_t a = 0; a < plan->n_args; a++) {
    int32_t arg = plan->args[a];
    f->args[a].type = arg >= 0 ? GC_VALUE_TENSOR : GC_VALUE_INT;
    if (arg >= 0) f->args[a].as.tensor = &f->tensors[arg];
  }
  return GC_OK;
}

void gc_binding_destroy(gc_context *context, gc_binding *binding) {
  gc_frame *f = &binding->frame;
  const gc_device *device = context->device;
  if (!f->plan) return;
  for (int32_t i = 0; binding->in_blocks && i < f->plan->info.n_inputs; i++)
    device->free(context->device_state, binding->in_blocks[i].data);
  for (int32_t i = 0; binding->out_blocks && i < f->plan->info.n_outputs; i++)
    device->free(context->device_state, binding->out_blocks[i].data);
  for (int32_t i = 0; binding->host_blocks && i < f->plan->info.n_outputs; i++)
    gc_device_cpu.free(NULL, binding->host_blocks[i].data);
  for (int32_t i = 0; binding->stage_arenas && i < f->plan->n_stages; i++)
    device->free(context->device_state, binding->stage_arenas[i].data);
  for (int32_t i = 0; binding->slots && i < f->plan->n_slots; i++)
    device->free(context->device_state, binding->slots[i].data);
  void *const owned[] = {f->dims,
                         f->shapes,
                         f->scalars,
                         f->tensors,
                         f->args,
                         binding->wanted,
                         binding->givers,
                         binding->sizes,
                         binding->offsets,
                         binding->order,
                         binding->stage_arenas,
                         binding->slots,
                         binding->slot_bytes,
                         binding->slot_stages,
                         binding->strides,
                         binding->in_blocks,
                         binding->out_blocks,
                         binding->host_blocks,
                         binding->in_data,
                         binding->out_data,
                         binding->times};
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
}

static void shape_text(const gc_port *port, char *text, size_t size) {
  size_t used = 0;
  for (int32_t i = 0; i < port->ndim && used < size; i++) {
    int n = snprintf(text + used, size - used, "%s%s", i ? ", " : "", port->dims[i]);
    used += n < 0 ? size : (size_t)n;
  }
  if (port->ndim == 0) text[0] = '\0';
}

static int check_port(const gc_port *port, const DLTensor *tensor, gc_error *error) {
  char want[24], have[24], shape[256];
  if (tensor->device.device_type != kDLCPU)
    return gc_fail(error, GC_ERROR_INPUT,
                   "input '%s': is on device type %d, expected the CPU's, %d", port->name,
                   (int)tensor->device.device_type, (int)kDLCPU);
  if (!gc_same_dtype(tensor->dtype, port->dtype))
    return gc_fail(error, GC_ERROR_INPUT, "input '%s': dtype is %s, expected %s", port->name,
                   gc_dtype_text(tensor->dtype, have, sizeof have),
                   gc_dtype_text(port->dtype, want, sizeof want));
  if (tensor->ndim != port->ndim || (port->ndim > 0 && !tensor->shape)) {
    shape_text(port, shape, sizeof shape);
    return gc_fail(error, GC_ERROR_INPUT, "input '%s': has %d dimensions, expected %d: [%s]",
                   port->name, tensor->shape ? tensor->ndim : 0, port->ndim, shape);
  }
  return GC_OK;
}

/* Gives symbol `s` the value of dimension `axis` of input `i`, or compares it with an earlier one.
 */
static int bind_symbol(gc_binding *binding, int32_t s, int32_t i, int32_t axis, int64_t value,
                       gc_error *error) {
  const gc_function *info = &binding->frame.plan->info;
  const gc_dim *dim = &info->dims[s];
  const char *name = info->inputs[i].name;
  if (binding->givers[s] >= 0) {
    if (binding->wanted[s] == value) return GC_OK;
    return gc_fail(
        error, GC_ERROR_INPUT,
        "input '%s': dimension %d is %" PRId64 ", but '%s' is already %" PRId64 " from '%s'", name,
        axis, value, dim->name, binding->wanted[s], info->inputs[binding->givers[s]].name);
  }
  if (value < dim->lower || value > dim->upper) {
    if (dim->upper == INT64_MAX)
      return gc_fail(error, GC_ERROR_INPUT,
                     "input '%s': dimension %d is %" PRId64 ", but '%s' must be at least %" PRId64,
                     name, axis, value, dim->name, dim->lower);
    return gc_fail(error, GC_ERROR_INPUT,
                   "input '%s': dimension %d is %" PRId64 ", but '%s' must be %" PRId64
                   " to %" PRId64,
                   name, axis, value, dim->name, dim->lower, dim->upper);
  }
  binding->wanted[s] = value;
  binding->givers[s] = i;
  return GC_OK;
}

static int bind_dims(gc_binding *binding, const DLTensor *inputs, gc_error *error) {
  const gc_function_plan *plan = binding->frame.plan;
  const gc_function *info = &plan->info;
  for (int32_t s = 0; s < info->n_dims; s++) binding->givers[s] = -1;
  const int32_t *symbol = plan->input_symbols;
  for (int32_t i = 0; i < info->n_inputs; i++) {
    const gc_port *port = &info->inputs[i];
    int code = check_port(port, &inputs[i], error);
    for (int32_t axis = 0; axis < port->ndim && !code; axis++, symbol++) {
      int64_t value = inputs[i].shape[axis];
      if (*symbol >= 0)
        code = bind_symbol(binding, *symbol, i, axis, value, error);
      else if (port->shape[axis] >= 0 && port->shape[axis] != value)
        code = gc_fail(error, GC_ERROR_INPUT,
                       "input '%s': dimension %d is %" PRId64 ", expected %" PRId64, port->name,
                       axis, value, port->shape[axis]);
    }
    if (code) return code;
  }
  return GC_OK;
}

static int check_computed_dims(const gc_binding *binding, const DLTensor *inputs, bool with_data,
                               gc_error *error) {
  const gc_function_plan *plan = binding->frame.plan;
  for (int32_t i = 0; i < plan->info.n_inputs; i++) {
    const gc_port *port = &plan->info.inputs[i];
    const int64_t *shape = binding->frame.shapes + plan->input_shapes[i];
    for (int32_t axis = 0; axis < port->ndim; axis++) {
      if (inputs[i].shape[axis] != shape[axis])
        return gc_fail(error, GC_ERROR_INPUT,
                       "input '%s': dimension %d is %" PRId64 ", expected %s = %" PRId64,
                       port->name, axis, inputs[i].shape[axis], port->dims[axis], shape[axis]);
    }
    if (with_data && !inputs[i].data && gc_tensor_bytes(port->dtype, port->ndim, shape))
      return gc_fail(error, GC_ERROR_INPUT, "input '%s': has no data", port->name);
  }
  return GC_OK;
}

static int too_large(const gc_binding *binding, gc_error *error) {
  const gc_function *info = &binding->frame.plan->info;
  char text[512] = "";
  size_t used = 0;
  for (int32_t s = 0; s < info->n_dims && used < sizeof text; s++) {
    int n = snprintf(text + used, sizeof text - used, "%s%s = %" PRId64, s ? ", " : "",
                     info->dims[s].name, binding->frame.dims[s]);
    used += n < 0 ? sizeof text : (size_t)n;
  }
  return gc_fail(error, GC_ERROR_INPUT, "the dimensions are too large for this machine: %s", text);
}

/* The stage from which on a tensor has memory. */
static int32_t home_stage(const gc_function_plan *plan, const gc_tensor_plan *t) {
  if (t->storage == GC_ARENA) return plan->buffers[t->index].stage;
  if (t->storage == GC_OUTPUT) return plan->output_stages[t->index];
  return 0;
}

/* The bytes that a tensor's storage holds, once it has memory. */
static size_t storage_bytes(const gc_context *context, const gc_binding *binding,
                            const gc_tensor_plan *t) {
  const gc_function_plan *plan = binding->frame.plan;
  const int64_t *shapes = binding->frame.shapes;
  const gc_port *port;
  switch (t->storage) {
    case GC_INPUT:
    case GC_CACHE:
      port = &plan->info.inputs[t->index];
      return gc_tensor_bytes(port->dtype, port->ndim, shapes + plan->input_shapes[t->index]);
    case GC_OUTPUT:
      port = &plan->info.outputs[t->index];
      return gc_tensor_bytes(port->dtype, port->ndim, shapes + plan->output_shapes[t->index]);
    case GC_WEIGHT:
      return context->model->program->weights[plan->weights[t->index]].bytes;
    case GC_SLOT:
      return binding->slot_bytes[t->index];
    default:
      return binding->sizes[t->index];
  }
}

/* Checks a tensor whose shape and memory are known from this stage on; arena buffers of the stage
 * grow to what their tensors need. */
static int size_tensor(gc_context *context, gc_binding *binding, int32_t stage,
                       const gc_tensor_plan *p, gc_error *error) {
  const gc_function_plan *plan = binding->frame.plan;
  const int64_t *shape = binding->frame.shapes + p->shape;
  for (int32_t axis = 0; axis < p->ndim; axis++) {
    if (shape[axis] < 0)
      return gc_fail(error, GC_ERROR_INPUT,
                     "these inputs make dimension %d of '%s' %" PRId64
                     ": the model does not take inputs this small",
                     axis, p->name, shape[axis]);
  }
  size_t bytes = gc_tensor_bytes(p->dtype, p->ndim, shape);
  if (bytes == SIZE_MAX) return too_large(binding, error);
  if (p->storage == GC_ARENA && plan->buffers[p->index].stage == stage) {
    if (bytes > binding->sizes[p->index]) binding->sizes[p->index] = bytes;
    return GC_OK;
  }
  /* gc_step_expose checks what is known when a slot's content is. */
  int32_t exposed = p->storage == GC_SLOT ? binding->slot_stages[p->index] : 0;
  if (p->storage == GC_SLOT && (!exposed || stage <= exposed)) return GC_OK;
  if (bytes > storage_bytes(context, binding, p))
    return gc_fail(error, GC_ERROR_INPUT,
                   "these inputs make '%s' larger than the memory that it views", p->name);
  return GC_OK;
}

int gc_bind_stage(gc_context *context, gc_binding *binding, int32_t stage, size_t *arena_bytes,
                  gc_error *error) {
  const gc_function_plan *plan = binding->frame.plan;
  const gc_function *info = &plan->info;
  const gc_stage_plan *s = &plan->stages[stage];
  int32_t first = s->first_buffer;
  memset(binding->sizes + first, 0, (size_t)s->n_buffers * sizeof *binding->sizes);
  for (int32_t t = 0; t < plan->n_tensors; t++) {
    const gc_tensor_plan *p = &plan->tensors[t];
    int32_t home = home_stage(plan, p);
    if ((p->stage > home ? p->stage : home) != stage) continue;
    int code = size_tensor(context, binding, stage, p, error);
    if (code) return code;
  }
  *arena_bytes = gc_place_buffers(s->n_buffers, plan->buffers + first, context->device->alignment,
                                  binding->sizes + first, binding->offsets + first, binding->order);
  if (*arena_bytes > GC_MAX_BYTES) return too_large(binding, error);
  int64_t *strides = binding->strides;
  for (int32_t i = 0; i < info->n_outputs; strides += info->outputs[i].ndim, i++) {
    const gc_port *port = &info->outputs[i];
    const int64_t *shape = binding->frame.shapes + plan->output_shapes[i];
    if (plan->output_stages[i] != stage) continue;
    if (gc_tensor_bytes(port->dtype, port->ndim, shape) == SIZE_MAX)
      return too_large(binding, error);
    gc_compact_strides(port->ndim, shape, strides);
  }
  return GC_OK;
}

int gc_bind(gc_context *context, gc_binding *binding, const DLTensor *inputs, bool with_data,
            gc_error *error) {
  gc_frame *f = &binding->frame;
  const gc_function_plan *plan = f->plan;
  size_t dims_bytes = (size_t)plan->info.n_dims * sizeof *f->dims;
  int code = bind_dims(binding, inputs, error);
  if (code) return code;
  if (binding->bound && !memcmp(f->dims, binding->wanted, dims_bytes))
    return check_computed_dims(binding, inputs, with_data, error);

  binding->bound = false;
  binding->generation = 0;
  memcpy(f->dims, binding->wanted, dims_bytes);
  f->overflow = 0;
  f->error = error;
  code = plan->stages[0].bind(f);
  if (f->overflow) return too_large(binding, error);
  if (!code) code = check_computed_dims(binding, inputs, with_data, error);
  if (!code) code = gc_bind_stage(context, binding, 0, &binding->arena_bytes, error);
  if (code) return code;
  binding->bound = true;
  return GC_OK;
}

int gc_require(gc_frame *f, int64_t left, int64_t right, const char *text, const char *reason) {
  if (left == right || f->overflow) return GC_OK;
  return gc_fail(f->error, GC_ERROR_INPUT,
                 "this model needs %s, but they are %" PRId64 " and %" PRId64 ": %s", text, left,
                 right, reason);
}

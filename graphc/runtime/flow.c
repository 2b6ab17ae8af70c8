/* flow.c: steps of functions whose shapes or course depend on values: late dimensions, branches,
 * loops. */
#include <inttypes.h>

#include "internal.h"

static gc_binding *binding_of(gc_frame *f) {
  return (gc_binding *)f; /* its first member */
}

int gc_step_enter(gc_frame *f, int32_t stage) {
  gc_binding *binding = binding_of(f);
  gc_context *context = f->context;
  const gc_function_plan *plan = f->plan;
  int code = plan->stages[stage].bind(f);
  if (f->overflow)
    return gc_fail(f->error, GC_ERROR_INPUT, "the dimensions are too large for this machine");
  size_t bytes = 0;
  if (!code) code = gc_bind_stage(context, binding, stage, &bytes, f->error);
  gc_block *arena = &binding->stage_arenas[stage];
  if (!code && plan->stages[stage].n_buffers > 0) code = gc_grow(context, arena, bytes, f->error);
  for (int32_t i = 0; i < plan->info.n_outputs && !code; i++) {
    if (plan->output_stages[i] != stage) continue;
    const gc_port *port = &plan->info.outputs[i];
    bytes = gc_tensor_bytes(port->dtype, port->ndim, f->shapes + plan->output_shapes[i]);
    code = gc_grow(context, &binding->out_blocks[i], bytes, f->error);
    binding->out_data[i] = binding->out_blocks[i].data;
  }
  for (int32_t t = 0; t < plan->n_tensors && !code; t++) {
    const gc_tensor_plan *p = &plan->tensors[t];
    if (p->storage == GC_ARENA && plan->buffers[p->index].stage == stage)
      f->tensors[t].data = (char *)arena->data + binding->offsets[p->index];
    if (p->storage == GC_OUTPUT && plan->output_stages[p->index] == stage)
      f->tensors[t].data = binding->out_data[p->index];
  }
  return code;
}

int gc_step_assign(gc_frame *f, int32_t dim, int64_t value, int64_t low, int64_t high,
                   const char *name, const char *where) {
  if (f->overflow)
    return gc_fail(f->error, GC_ERROR_INPUT, "'%s' is too large for this machine (%s)", name,
                   where);
  if (value < low || value > high)
    return gc_fail(f->error, GC_ERROR_INPUT,
                   "'%s' is %" PRId64 " for these inputs, allowed is %" PRId64 " to %" PRId64
                   " (%s)",
                   name, value, low, high, where);
  f->dims[dim] = value;
  return GC_OK;
}

/* What kernels left, which may still be under way on a device. */
static int fetch(gc_frame *f, void *value, const void *place, size_t bytes) {
  const gc_context *context = f->context;
  int code = context->device->sync(context->device_state, f->error);
  if (code) return code;
  return context->device->download(context->device_state, value, place, bytes, f->error);
}

int gc_step_measure(gc_frame *f, int32_t tensor, int32_t element, int32_t dim, int64_t low,
                    int64_t high, const char *name, const char *where) {
  int64_t value = 0;
  const char *place = (const char *)f->tensors[tensor].data + (size_t)element * sizeof value;
  int code = fetch(f, &value, place, sizeof value);
  return code ? code : gc_step_assign(f, dim, value, low, high, name, where);
}

int gc_step_truth(gc_frame *f, int32_t tensor, int *truth) {
  const DLTensor *t = &f->tensors[tensor];
  if (gc_tensor_bytes(t->dtype, t->ndim, t->shape) != 1)
    return gc_fail(f->error, GC_ERROR_INPUT, "'%s': a condition must have one element",
                   f->plan->tensors[tensor].name);
  uint8_t value = 0;
  int code = fetch(f, &value, t->data, sizeof value);
  *truth = value != 0;
  return code;
}

void gc_step_clear(gc_frame *f, int32_t slot) {
  binding_of(f)->slot_bytes[slot] = 0;
  binding_of(f)->slot_stages[slot] = 0;
}

int gc_step_store(gc_frame *f, int32_t source, int32_t slot) {
  gc_step_clear(f, slot);
  return gc_step_append(f, source, slot);
}

/* Grows like a vector, so that n appended slices are copied at most twice on average. */
static int reserve(gc_context *context, gc_block *block, size_t filled, size_t bytes,
                   gc_error *error) {
  if (block->data && bytes <= block->bytes) return GC_OK;
  gc_block larger = {0};
  size_t wanted = filled ? 2 * bytes : bytes;
  int code = gc_grow(context, &larger, wanted, error);
  if (code) return code;
  if (filled)
    code = context->device->copy(context->device_state, larger.data, block->data, filled, error);
  context->device->free(context->device_state, block->data);
  *block = larger;
  return code;
}

int gc_step_append(gc_frame *f, int32_t source, int32_t slot) {
  gc_binding *binding = binding_of(f);
  const DLTensor *from = &f->tensors[source];
  size_t bytes = gc_tensor_bytes(from->dtype, from->ndim, from->shape);
  size_t filled = binding->slot_bytes[slot];
  if (bytes > GC_MAX_BYTES || filled + bytes > GC_MAX_BYTES)
    return gc_fail(f->error, GC_ERROR_INPUT, "the values of '%s' are too large for this machine",
                   f->plan->tensors[source].name);
  int code = reserve(f->context, &binding->slots[slot], filled, filled + bytes, f->error);
  if (code) return code;
  binding->slot_bytes[slot] = filled + bytes;
  if (!bytes) return GC_OK;
  char *target = (char *)binding->slots[slot].data + filled;
  return f->context->device->copy(f->context->device_state, target, from->data, bytes, f->error);
}

int gc_step_expose(gc_frame *f, int32_t slot, int32_t stage) {
  gc_binding *binding = binding_of(f);
  const gc_function_plan *plan = f->plan;
  if (!binding->slots[slot].data) { /* a loop without iterations */
    int code = gc_grow(f->context, &binding->slots[slot], 0, f->error);
    if (code) return code;
  }
  binding->slot_stages[slot] = stage;
  for (int32_t t = 0; t < plan->n_tensors; t++) {
    const gc_tensor_plan *p = &plan->tensors[t];
    if (p->storage != GC_SLOT || p->index != slot) continue;
    f->tensors[t].data = binding->slots[slot].data;
    size_t bytes = gc_tensor_bytes(p->dtype, p->ndim, f->shapes + p->shape);
    if (p->stage <= stage && bytes > binding->slot_bytes[slot])
      return gc_fail(f->error, GC_ERROR_INPUT,
                     "'%s' changes its shape from one iteration to the next", p->name);
  }
  return GC_OK;
}

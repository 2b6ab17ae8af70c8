/* steps.c: what generated run functions are made of, besides gc_step_check. */
#include "internal.h"

int gc_step_kernel(gc_frame *f, const char *name, gc_kernel kernel, int32_t first, int32_t n_args) {
  const int32_t *args = f->plan->args + first;
  for (int32_t a = 0; a < n_args; a++) {
    if (args[a] < 0) f->args[first + a].as.integer = f->scalars[~args[a]];
  }
  if (!f->times) return gc_launch(f->context, name, kernel, f->args + first, n_args, f->error);
  int64_t start = gc_now_ns();
  int code = gc_launch(f->context, name, kernel, f->args + first, n_args, f->error);
  if (!code) gc_profile_add(&f->times[first], name, f->args + first, n_args, gc_now_ns() - start);
  return code;
}

int gc_step_copy(gc_frame *f, int32_t source, int32_t target) {
  const gc_context *context = f->context;
  const DLTensor *from = &f->tensors[source];
  const DLTensor *to = &f->tensors[target];
  size_t bytes = gc_tensor_bytes(from->dtype, from->ndim, from->shape);
  if (gc_tensor_bytes(to->dtype, to->ndim, to->shape) != bytes)
    return gc_fail(f->error, GC_ERROR_INPUT, "these inputs give '%s' and '%s' different sizes",
                   f->plan->tensors[source].name, f->plan->tensors[target].name);
  return context->device->copy(context->device_state, f->tensors[target].data, from->data, bytes,
                               f->error);
}

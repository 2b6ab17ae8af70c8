/* context.c: what one thread of use owns: its threads, its activations, a binding per function. */
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

gc_context *gc_context_create(gc_model *model, gc_error *error) {
  if (error) *error = (gc_error){0};
  if (!model) {
    gc_fail(error, GC_ERROR_USE, "no model given");
    return NULL;
  }
  const gc_program *program = model->program;
  gc_context *context = calloc(1, sizeof *context);
  gc_binding *bindings = calloc((size_t)program->n_functions + 1, sizeof *bindings);
  if (!context || !bindings) {
    free(context);
    free(bindings);
    gc_fail(error, GC_ERROR_MEMORY, "out of memory");
    return NULL;
  }
  atomic_fetch_add(&model->references, 1);
  atomic_flag_clear(&context->busy);
  context->model = model;
  context->device = model->device;
  context->bindings = bindings;
  context->process = getpid();
  int code = GC_OK;
  if (model->device->attach)
    code = model->device->attach(model->device_shared, &context->device_state, error);
  for (int32_t i = 0; i < program->n_functions && !code; i++) {
    const gc_function_plan *plan = &program->functions[i];
    code = gc_binding_create(&bindings[i], plan, error);
    bindings[i].frame.context = context;
    for (int32_t t = 0; t < plan->n_tensors && !code; t++) {
      const gc_tensor_plan *p = &plan->tensors[t];
      bindings[i].frame.tensors[t].device.device_type = model->device->type;
      if (p->storage == GC_WEIGHT)
        bindings[i].frame.tensors[t].data = model->weight_addresses[plan->weights[p->index]];
    }
  }
  if (!code)
    context->pool =
        gc_pool_create(model->threads, model->spin_us, model->cpus, model->n_cpus, error);
  if (context->pool) return context;
  gc_context_destroy(context);
  return NULL;
}

void gc_context_destroy(gc_context *context) {
  if (!context) return;
  if (context->process == getpid())
    gc_pool_destroy(context->pool);
  else
    gc_pool_abandon(context->pool);
  for (int32_t i = 0; i < context->model->program->n_functions; i++)
    gc_binding_destroy(context, &context->bindings[i]);
  context->device->free(context->device_state, context->arena.data);
  if (context->device_state) context->device->detach(context->device_state);
  gc_model_release(context->model);
  free(context->bindings);
  free(context);
}

int32_t gc_context_threads(const gc_context *context) {
  return context ? gc_pool_threads(context->pool) : 0;
}

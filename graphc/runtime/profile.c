/* profile.c: how long each kernel call of a function takes, when a context is asked to count. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

int64_t gc_now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int gc_profile(gc_context *context, gc_error *error) {
  if (error) *error = (gc_error){0};
  if (!context) return gc_fail(error, GC_ERROR_USE, "no context given");
  const gc_program *program = context->model->program;
  for (int32_t i = 0; i < program->n_functions; i++) {
    gc_binding *binding = &context->bindings[i];
    /* A row for each argument number, of which a call uses that of its first argument. */
    size_t rows = (size_t)program->functions[i].n_args + 1;
    free(binding->times);
    binding->times = calloc(rows, sizeof *binding->times);
    if (!binding->times) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
    binding->frame.times = binding->times;
  }
  return GC_OK;
}

void gc_profile_add(gc_kernel_time *row, const char *name, const gc_value *args, int32_t n_args,
                    int64_t nanoseconds) {
  row->kernel = name;
  row->nanoseconds += nanoseconds;
  row->fastest = row->calls && row->fastest < nanoseconds ? row->fastest : nanoseconds;
  row->calls++;
  row->bytes = 0;
  for (int32_t i = 0; i < n_args; i++) {
    if (args[i].type != GC_VALUE_TENSOR) continue;
    const DLTensor *t = args[i].as.tensor;
    row->bytes += (int64_t)gc_tensor_bytes(t->dtype, t->ndim, t->shape);
  }
}

static int64_t flops_of(const gc_binding *binding, int32_t first) {
  const gc_function_plan *plan = binding->frame.plan;
  for (int32_t i = 0; i < plan->n_work; i++) {
    if (plan->work[i].first == first) return binding->frame.scalars[plan->work[i].scalar];
  }
  return -1;
}

int32_t gc_kernel_times(const gc_context *context, const char *function, gc_kernel_time *times,
                        int32_t capacity) {
  const gc_program *program = context ? context->model->program : NULL;
  for (int32_t i = 0; program && function && i < program->n_functions; i++) {
    const gc_binding *binding = &context->bindings[i];
    if (strcmp(program->functions[i].info.name, function) || !binding->times) continue;
    int32_t count = 0;
    for (int32_t row = 0; row < program->functions[i].n_args; row++) {
      if (!binding->times[row].calls) continue;
      if (count < capacity) {
        times[count] = binding->times[row];
        times[count].flops = flops_of(binding, row);
      }
      count++;
    }
    return count;
  }
  return 0;
}

/* model.c: opening and closing a model, and what it exports. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { MAX_THREADS = 1024 };

/* Fields that an older header did not have stay zero. */
static int read_options(gc_options *own, const gc_options *given, gc_error *error) {
  *own = (gc_options){.size = sizeof *own};
  if (!given) return GC_OK;
  if (given->size < sizeof given->size || given->size > 4096)
    return gc_fail(error, GC_ERROR_USE, "gc_options.size is %zu, expected sizeof(gc_options) = %zu",
                   given->size, sizeof *own);
  memcpy(own, given, given->size < sizeof *own ? given->size : sizeof *own);
  if (own->threads < 0 || own->threads > MAX_THREADS)
    return gc_fail(error, GC_ERROR_USE, "threads is %d, expected 1 to %d, or 0 for all cores",
                   own->threads, MAX_THREADS);
  if (own->n_cpus < 0 || own->n_cpus > MAX_THREADS || (own->n_cpus > 0 && !own->cpus))
    return gc_fail(error, GC_ERROR_USE, "n_cpus is %d, expected 0 to %d and cpus to match",
                   own->n_cpus, MAX_THREADS);
  return GC_OK;
}

static int fill_model(gc_model *model, const char *dir, const gc_options *options,
                      gc_error *error) {
  model->program = &gc_the_program;
  model->threads = options->threads ? options->threads : gc_physical_cores();
  model->spin_us = options->spin_us;
  if (options->n_cpus > 0) {
    model->cpus = malloc((size_t)options->n_cpus * sizeof *model->cpus);
    if (!model->cpus) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
    memcpy(model->cpus, options->cpus, (size_t)options->n_cpus * sizeof *model->cpus);
    model->n_cpus = options->n_cpus;
  }
  int code = gc_check_features(model->program->features, model->program->n_features, error);
  if (code) return code;
  if (options->weights)
    return gc_weights_open(&model->weights, options->weights, model->program,
                           options->check_weights, error);
  size_t size = strlen(dir) + sizeof "/weights.bin";
  char *path = malloc(size);
  if (!path) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  snprintf(path, size, "%s/weights.bin", dir);
  code = gc_weights_open(&model->weights, path, model->program, options->check_weights, error);
  free(path);
  return code;
}

static int open_device(gc_model *model, gc_error *error) {
  const gc_program *program = model->program;
  model->device = program->device ? program->device : &gc_device_cpu;
  model->weight_addresses = calloc((size_t)program->n_weights + 1, sizeof(void *));
  if (!model->weight_addresses) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  if (model->device->open)
    return model->device->open(program, model->weights.data, model->weight_addresses,
                               &model->device_shared, error);
  for (int32_t w = 0; w < program->n_weights; w++)
    model->weight_addresses[w] = (void *)(model->weights.data + program->weights[w].offset);
  return GC_OK;
}

gc_model *gc_open(const char *dir, const gc_options *options, gc_error *error) {
  if (error) *error = (gc_error){0};
  gc_options own;
  if (read_options(&own, options, error)) return NULL;
  if (!dir && !own.weights) {
    gc_fail(error, GC_ERROR_USE, "no directory given");
    return NULL;
  }
  gc_model *model = calloc(1, sizeof *model);
  if (!model) {
    gc_fail(error, GC_ERROR_MEMORY, "out of memory");
    return NULL;
  }
  atomic_init(&model->references, 1);
  if (!fill_model(model, dir, &own, error) && !open_device(model, error)) return model;
  gc_model_release(model);
  return NULL;
}

void gc_model_release(gc_model *model) {
  if (atomic_fetch_sub(&model->references, 1) > 1) return;
  if (model->device_shared) model->device->close(model->device_shared);
  free(model->weight_addresses);
  gc_weights_close(&model->weights);
  free(model->cpus);
  free(model);
}

void gc_close(gc_model *model) {
  if (model) gc_model_release(model);
}

int32_t gc_function_count(const gc_model *model) {
  return model ? model->program->n_functions : 0;
}

const gc_function *gc_function_at(const gc_model *model, int32_t index) {
  if (index < 0 || index >= gc_function_count(model)) return NULL;
  return &model->program->functions[index].info;
}

const gc_function *gc_function_named(const gc_model *model, const char *name) {
  for (int32_t i = 0; name && i < gc_function_count(model); i++) {
    const gc_function *function = gc_function_at(model, i);
    if (!strcmp(function->name, name)) return function;
  }
  return NULL;
}

/* example.c: opens this artifact, runs its first function on made-up inputs, prints the outputs.
 *
 *   cc example.c -Iinclude -L. -lmodel -Wl,-rpath,. -o example && ./example
 *   ./example batch=2 sequence=16        chooses dimensions; the others are 8
 *
 * Python prints the same numbers: graphc.load(".").example_inputs(batch=2, sequence=16) gives the
 * same inputs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graphc.h"
#include "graphc_fill.h"

static int fail(const char *message) {
  fprintf(stderr, "example: %s\n", message);
  return 1;
}

/* The value of a symbolic dimension: from the command line, else made up. */
static int64_t dim_value(const gc_function *f, const char *name, int argc, char **argv) {
  size_t n = strlen(name);
  for (int i = 1; i < argc; i++)
    if (!strncmp(argv[i], name, n) && argv[i][n] == '=') return strtoll(argv[i] + n + 1, NULL, 10);
  for (int32_t d = 0; d < f->n_dims; d++)
    if (!strcmp(f->dims[d].name, name)) return gc_fill_dim(&f->dims[d]);
  return 1;
}

/* Memory for one input, filled; free its data and shape. */
static int make_input(const gc_function *f, int32_t i, int argc, char **argv, DLTensor *t) {
  const gc_port *port = &f->inputs[i];
  int64_t n = 1;
  t->device.device_type = kDLCPU;
  t->ndim = port->ndim;
  t->dtype = port->dtype;
  t->shape = calloc((size_t)port->ndim + 1, sizeof *t->shape);
  for (int32_t axis = 0; t->shape && axis < port->ndim; axis++) {
    int64_t value = port->shape[axis];
    t->shape[axis] = value >= 0 ? value : dim_value(f, port->dims[axis], argc, argv);
    n *= t->shape[axis];
  }
  t->data = calloc(n > 0 ? (size_t)n : 1, (size_t)(port->dtype.bits + 7) / 8);
  for (int64_t e = 0; t->data && e < n; e++) gc_fill_element(port, t->data, e);
  return t->shape && t->data ? 0 : 1;
}

static void print_output(const gc_port *port, const DLTensor *t) {
  int64_t n = 1;
  printf("%s [", port->name);
  for (int32_t i = 0; i < t->ndim; i++) {
    printf("%s%" PRId64, i ? ", " : "", t->shape[i]);
    n *= t->shape[i];
  }
  printf("]:");
  if (t->dtype.code == kDLFloat && t->dtype.bits == 32)
    for (int64_t i = 0; i < n && i < 8; i++) printf(" %.6g", ((const float *)t->data)[i]);
  if (t->dtype.code == kDLInt && t->dtype.bits == 64)
    for (int64_t i = 0; i < n && i < 8; i++) printf(" %" PRId64, ((const int64_t *)t->data)[i]);
  printf("\n");
}

int main(int argc, char **argv) {
  gc_error error;
  gc_model *model = gc_open(".", NULL, &error);
  if (!model) return fail(error.message);
  gc_context *context = gc_context_create(model, &error);
  if (!context) return fail(error.message);

  const gc_function *f = gc_function_at(model, 0);
  DLTensor *inputs = calloc((size_t)f->n_inputs + 1, sizeof *inputs);
  DLTensor *outputs =
      calloc((size_t)f->n_outputs + 1, sizeof *outputs); /* data NULL: the context's */
  if (!inputs || !outputs) return fail("out of memory");
  for (int32_t i = 0; i < f->n_inputs; i++)
    if (make_input(f, i, argc, argv, &inputs[i])) return fail("out of memory");

  if (gc_run(context, f->name, inputs, f->n_inputs, outputs, f->n_outputs, &error))
    return fail(error.message);
  for (int32_t i = 0; i < f->n_outputs; i++) print_output(&f->outputs[i], &outputs[i]);

  for (int32_t i = 0; i < f->n_inputs; i++) {
    free(inputs[i].data);
    free(inputs[i].shape);
  }
  free(inputs);
  free(outputs);
  gc_context_destroy(context);
  gc_close(model);
  return 0;
}

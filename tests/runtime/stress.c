/* stress.c: several contexts in as many threads run one model with changing dimensions.
 *
 *   stress DIR SECONDS CONTEXTS THREADS [name=MAX]...
 *
 * Dimensions are drawn from their bounds, up to 24 or MAX. Inputs and outputs end at a page that
 * cannot be touched, so that a kernel which reads or writes beyond them is caught. The same inputs
 * must give the same bits. Every eighth call is a wrong one and must be refused. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "graphc.h"
#include "graphc_fill.h"

enum { MAX_PORTS = 128, MAX_DIMS = 32, MAX_RANK = 32, CASES = 4 };

static gc_model *model;
static const gc_function *function;
static int64_t limits[MAX_DIMS];
static double seconds;
static _Atomic long total_runs, total_refused, failures;

typedef struct {
  DLTensor tensor;
  int64_t shape[MAX_RANK];
  void *map;
  size_t mapped;
} guarded;

static size_t bytes_of(const DLTensor *t) {
  size_t bytes = (size_t)t->dtype.bits / 8;
  for (int32_t i = 0; i < t->ndim; i++) bytes *= (size_t)t->shape[i];
  return bytes;
}

/* The data ends (up to its alignment) where an unreadable page begins. */
static void allocate(guarded *g) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = bytes_of(&g->tensor);
  size_t rounded = (bytes + 63) / 64 * 64, body = (rounded + page - 1) / page * page;
  g->mapped = body + page;
  g->map = mmap(NULL, g->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (g->map == MAP_FAILED) exit(3);
  mprotect((char *)g->map + body, page, PROT_NONE);
  g->tensor.data = (char *)g->map + body - rounded;
}

static void set_shape(guarded *g, const gc_port *port, const int64_t *dims) {
  g->tensor = (DLTensor){.device = {kDLCPU, 0}, .ndim = port->ndim, .dtype = port->dtype};
  g->tensor.shape = g->shape;
  for (int32_t axis = 0; axis < port->ndim; axis++) {
    g->shape[axis] = port->shape[axis];
    for (int32_t d = 0; d < function->n_dims; d++)
      if (!strcmp(port->dims[axis], function->dims[d].name)) g->shape[axis] = dims[d];
  }
}

static int has_late_shape(const DLTensor *out, int32_t n) {
  for (int32_t i = 0; i < n; i++)
    for (int32_t axis = 0; axis < out[i].ndim; axis++)
      if (out[i].shape[axis] < 0) return 1;
  return 0;
}

static int complain(const char *what, const char *detail) {
  fprintf(stderr, "stress: %s: %s\n", what, detail);
  atomic_fetch_add(&failures, 1);
  return 1;
}

/* One set of dimensions: run several times, compare bits, then give wrong inputs. */
static int run_case(gc_context *context, unsigned *seed) {
  static const int repeats = 4;
  int32_t n_in = function->n_inputs, n_out = function->n_outputs;
  guarded *inputs = calloc((size_t)n_in + 1, sizeof *inputs);
  guarded *outputs = calloc((size_t)n_out + 1, sizeof *outputs);
  DLTensor in[MAX_PORTS], out[MAX_PORTS];
  int64_t dims[MAX_DIMS];
  gc_error error;
  int failed = 0;
  for (int32_t d = 0; d < function->n_dims; d++) {
    int64_t low = function->dims[d].lower;
    dims[d] = low + (int64_t)((unsigned)rand_r(seed) % (unsigned)(limits[d] - low + 1));
  }
  for (int32_t i = 0; i < n_in; i++) {
    set_shape(&inputs[i], &function->inputs[i], dims);
    allocate(&inputs[i]);
    int64_t n = (int64_t)(bytes_of(&inputs[i].tensor) / (function->inputs[i].dtype.bits / 8));
    for (int64_t e = 0; e < n; e++) gc_fill_element(&function->inputs[i], inputs[i].tensor.data, e);
    in[i] = inputs[i].tensor;
  }
  memset(out, 0, sizeof out);
  if (gc_infer_shapes(context, function->name, in, n_in, out, n_out, &error)) {
    /* A constraint that these dimensions do not satisfy is a good answer. */
    failed = error.code == GC_ERROR_INPUT ? 0 : complain("infer", error.message);
    goto done;
  }
  if (has_late_shape(out, n_out)) { /* only a run knows the shapes */
    memset(out, 0, sizeof out);
    if (gc_run(context, function->name, in, n_in, out, n_out, &error)) {
      failed = error.code == GC_ERROR_INPUT ? 0 : complain("run", error.message);
      goto done;
    }
  }
  for (int32_t i = 0; i < n_out; i++) {
    outputs[i].tensor = out[i];
    memcpy(outputs[i].shape, out[i].shape, (size_t)out[i].ndim * sizeof(int64_t));
    outputs[i].tensor.shape = outputs[i].shape;
    outputs[i].tensor.strides = NULL;
    allocate(&outputs[i]);
  }
  for (int r = 0; r < repeats && !failed; r++) {
    for (int32_t i = 0; i < n_out; i++) {
      out[i] = outputs[i].tensor;
      if (r % 2) out[i].data = NULL; /* the context's own memory, compared with the first */
    }
    if (gc_run(context, function->name, in, n_in, out, n_out, &error)) {
      failed = complain("run", error.message);
      break;
    }
    atomic_fetch_add(&total_runs, 1);
    for (int32_t i = 0; i < n_out && r % 2; i++) {
      if (memcmp(out[i].data, outputs[i].tensor.data, bytes_of(&outputs[i].tensor)))
        failed = complain("other bits than the run before", function->outputs[i].name);
    }
  }
  for (int32_t i = 0; i < n_in && !failed; i++) {
    DLTensor wrong = in[i];
    in[i].ndim++;
    if (gc_run(context, function->name, in, n_in, out, n_out, &error) != GC_ERROR_INPUT)
      failed = complain("a wrong rank was taken", function->inputs[i].name);
    in[i] = wrong;
    if (function->inputs[i].low <= function->inputs[i].high && wrong.dtype.bits == 64) {
      int64_t *last = (int64_t *)((char *)wrong.data + bytes_of(&wrong)) - 1, good = *last;
      *last = INT64_MAX;
      if (gc_run(context, function->name, in, n_in, out, n_out, &error) != GC_ERROR_INPUT)
        failed = complain("an index out of range was taken", function->inputs[i].name);
      *last = good;
    }
    atomic_fetch_add(&total_refused, 1);
  }
done:
  for (int32_t i = 0; i < n_in; i++) munmap(inputs[i].map, inputs[i].mapped);
  for (int32_t i = 0; i < n_out; i++)
    if (outputs[i].map) munmap(outputs[i].map, outputs[i].mapped);
  free(inputs);
  free(outputs);
  return failed;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *work(void *argument) {
  unsigned seed = (unsigned)(size_t)argument;
  double end = now() + seconds;
  gc_error error;
  do { /* contexts come and go as well */
    gc_context *context = gc_context_create(model, &error);
    if (!context) {
      complain("context", error.message);
      return NULL;
    }
    for (int i = 0; i < 8 && now() < end; i++)
      if (run_case(context, &seed)) end = 0;
    gc_context_destroy(context);
  } while (now() < end);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  gc_options options = {.size = sizeof options, .threads = atoi(argv[4]), .check_weights = 1};
  gc_error error;
  model = gc_open(argv[1], &options, &error);
  if (!model) return complain("open", error.message);
  seconds = atof(argv[2]);
  int contexts = atoi(argv[3]);
  pthread_t threads[64];
  if (contexts < 1 || contexts > 64) return 2;
  function = gc_function_at(model, 0);
  if (function->n_inputs > MAX_PORTS || function->n_outputs > MAX_PORTS ||
      function->n_dims > MAX_DIMS)
    return 2;
  for (int32_t d = 0; d < function->n_dims; d++) {
    const gc_dim *dim = &function->dims[d];
    limits[d] = dim->upper < 24 ? dim->upper : dim->lower > 24 ? dim->lower : 24;
    for (int i = 5; i < argc; i++) {
      size_t n = strlen(dim->name);
      if (!strncmp(argv[i], dim->name, n) && argv[i][n] == '=') limits[d] = atoll(argv[i] + n + 1);
    }
  }
  for (int i = 0; i < contexts; i++)
    pthread_create(&threads[i], NULL, work, (void *)(size_t)(i + 1));

  for (int i = 0; i < contexts; i++) pthread_join(threads[i], NULL);
  gc_close(model);
  printf("%ld runs, %ld refusals, %ld failures\n", total_runs, total_refused, failures);
  return failures != 0;
}

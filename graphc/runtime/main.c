/* main.c: graphc-run, the artifact's own command line: .npy files in, .npy files out. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "generate.h"
#include "graphc.h"
#include "graphc_fill.h"
#include "internal.h"
#include "npy.h"
#include "speech.h"

static const char USAGE[] =
    "usage: graphc-run DIR [--input NAME=FILE.npy]... [--random [--dim NAME=N]...]\n"
    "                  [--output DIR|FILE.npy] [--function NAME] [--threads N] [--repeat N]\n"
    "                  [--check-weights] [--list]\n"
    "       graphc-run DIR --prompt TEXT | --chat TEXT | --tokens N,N,... [--max-tokens N]\n"
    "                  [--stop N,N,...] [--seed N]\n"
    "                  [--temperature T] [--threads N]\n"
    "\n"
    "Runs the model in DIR. Inputs that no file is given for are made up with --random; "
    "dimensions\n"
    "that nothing fixes are 8. Without --output the first values of each output are printed.\n"
    "With --prompt a language model goes on with a text, with --chat it answers a user; with "
    "--tokens\n"
    "both are token ids. It takes the largest logit each time unless there is a temperature; the "
    "answer\n"
    "is printed as it comes, its speed to standard error.\n"
    "Exit status: 0 done, 1 the run failed, 2 wrong use or wrong input.\n"
    "\n"
    "example: graphc-run . --input input_ids=ids.npy --input attention_mask=mask.npy --output "
    "out\n";

enum { EXIT_FAILED = 1, EXIT_USE = 2, MAX_PAIRS = 256 };

typedef struct {
  const char *name, *value;
  size_t name_length;
  bool used;
} pair;

typedef struct {
  const char *directory, *output, *function;
  const char *tokens, *prompt, *chat, *stop; /* of a language model */
  int64_t max_tokens, seed;
  double temperature;
  pair inputs[MAX_PAIRS], dims[MAX_PAIRS];
  int n_inputs, n_dims;
  bool random, list;
  int64_t repeat;
  gc_options options;
} arguments;

static int complain(const char *format, const char *detail) {
  fprintf(stderr, "graphc-run: ");
  fprintf(stderr, format, detail);
  fprintf(stderr, "\n");
  return EXIT_USE;
}

static int report_error(const gc_error *error) {
  fprintf(stderr, "graphc-run: %s\n", error->message);
  return error->code == GC_ERROR_KERNEL || error->code == GC_ERROR_MEMORY ? EXIT_FAILED : EXIT_USE;
}

static bool parse_number(const char *text, int64_t low, int64_t high, int64_t *value) {
  char *end;
  errno = 0;
  long long n = strtoll(text, &end, 10);
  if (end == text || *end || errno || n < low || n > high) return false;
  *value = n;
  return true;
}

static bool parse_real(const char *text, double *value) {
  char *end;
  *value = strtod(text, &end);
  return end != text && !*end && *value >= 0 && *value <= 100;
}

static bool add_pair(pair *pairs, int *n, const char *text) {
  const char *equals = strchr(text, '=');
  if (!equals || equals == text || *n == MAX_PAIRS) return false;
  pairs[(*n)++] = (pair){text, equals + 1, (size_t)(equals - text), false};
  return true;
}

static pair *find_pair(pair *pairs, int n, const char *name) {
  for (int i = n; i-- > 0;) { /* the last one given wins */
    if (strlen(name) == pairs[i].name_length &&
        !memcmp(name, pairs[i].name, pairs[i].name_length)) {
      pairs[i].used = true;
      return &pairs[i];
    }
  }
  return NULL;
}

static int parse_arguments(int argc, char **argv, arguments *a) {
  *a = (arguments){.function = "main", .repeat = 1, .options.size = sizeof(gc_options)};
  for (int i = 1; i < argc; i++) {
    const char *option = argv[i];
    int64_t number;
    if (option[0] != '-') {
      if (a->directory) return complain("one directory only, not '%s' too", option);
      a->directory = option;
      continue;
    }
    if (!strcmp(option, "--random")) {
      a->random = true;
      continue;
    }
    if (!strcmp(option, "--list")) {
      a->list = true;
      continue;
    }
    if (!strcmp(option, "--check-weights")) {
      a->options.check_weights = 1;
      continue;
    }
    const char *value = argv[i + 1]; /* argv ends with NULL */
    bool ok = value != NULL;
    if (!strcmp(option, "--input")) {
      ok = ok && add_pair(a->inputs, &a->n_inputs, value);
    } else if (!strcmp(option, "--dim")) {
      ok = ok && add_pair(a->dims, &a->n_dims, value);
    } else if (!strcmp(option, "--output")) {
      a->output = value;
    } else if (!strcmp(option, "--function")) {
      a->function = value;
    } else if (!strcmp(option, "--tokens")) {
      a->tokens = value;
    } else if (!strcmp(option, "--prompt")) {
      a->prompt = value;
    } else if (!strcmp(option, "--chat")) {
      a->chat = value;
    } else if (!strcmp(option, "--stop")) {
      a->stop = value;
    } else if (!strcmp(option, "--max-tokens")) {
      ok = ok && parse_number(value, 1, INT32_MAX, &a->max_tokens);
    } else if (!strcmp(option, "--seed")) {
      ok = ok && parse_number(value, INT64_MIN, INT64_MAX, &a->seed);
    } else if (!strcmp(option, "--temperature")) {
      ok = ok && parse_real(value, &a->temperature);
    } else if (!strcmp(option, "--threads")) {
      ok = ok && parse_number(value, 1, 1024, &number);
      if (ok) a->options.threads = (int32_t)number;
    } else if (!strcmp(option, "--repeat")) {
      ok = ok && parse_number(value, 1, INT32_MAX, &a->repeat);
    } else {
      return complain("unknown option '%s'; see --help", option);
    }
    if (!ok) return complain("'%s' is not followed by a value that it takes; see --help", option);
    i++;
  }
  return a->directory ? 0 : complain("%s", "no directory given; see --help");
}

static void print_port(const char *kind, const gc_port *port) {
  char dtype[24];
  printf("  %s %s %s [", kind, port->name, gc_dtype_text(port->dtype, dtype, sizeof dtype));
  for (int32_t i = 0; i < port->ndim; i++) printf("%s%s", i ? ", " : "", port->dims[i]);
  printf("]\n");
}

static void list_functions(const gc_model *model) {
  for (int32_t i = 0; i < gc_function_count(model); i++) {
    const gc_function *f = gc_function_at(model, i);
    printf("%s\n", f->name);
    for (int32_t p = 0; p < f->n_inputs; p++) print_port("input", &f->inputs[p]);
    for (int32_t p = 0; p < f->n_outputs; p++) print_port("output", &f->outputs[p]);
  }
}

/* The dimension called `name`: from --dim, else from an input file that has it, else made up. */
static int64_t choose_dim(arguments *a, const gc_function *f, const npy_array *arrays,
                          const gc_dim *dim) {
  for (int32_t i = 0; i < f->n_inputs; i++) {
    for (int32_t axis = 0; arrays[i].tensor.data && axis < f->inputs[i].ndim; axis++) {
      if (!strcmp(f->inputs[i].dims[axis], dim->name) && axis < arrays[i].tensor.ndim)
        return arrays[i].shape[axis];
    }
  }
  pair *given = find_pair(a->dims, a->n_dims, dim->name);
  int64_t value;
  if (given && parse_number(given->value, 0, INT64_MAX, &value)) return value;
  return gc_fill_dim(dim);
}

static int make_up(arguments *a, const gc_function *f, npy_array *arrays, int32_t i) {
  const gc_port *port = &f->inputs[i];
  npy_array *array = &arrays[i];
  if (port->ndim > NPY_MAX_RANK) return complain("input '%s' has too many dimensions", port->name);
  array->tensor = (DLTensor){
      .device = {kDLCPU, 0}, .ndim = port->ndim, .dtype = port->dtype, .shape = array->shape};
  int64_t n = 1;
  for (int32_t axis = 0; axis < port->ndim; axis++) {
    array->shape[axis] = port->shape[axis];
    for (int32_t d = 0; d < f->n_dims && array->shape[axis] < 0; d++) {
      if (!strcmp(port->dims[axis], f->dims[d].name))
        array->shape[axis] = choose_dim(a, f, arrays, &f->dims[d]);
    }
    if (array->shape[axis] < 0)
      return complain("input '%s' has a computed dimension: give it a file", port->name);
    if (__builtin_mul_overflow(n, array->shape[axis], &n))
      return complain("input '%s' would be too large", port->name);
  }
  size_t bytes = gc_tensor_bytes(port->dtype, port->ndim, array->shape);
  if (bytes == SIZE_MAX || posix_memalign(&array->tensor.data, 64, bytes ? bytes : 1)) {
    array->tensor.data = NULL;
    return complain("input '%s' would be too large", port->name);
  }
  for (int64_t e = 0; e < n; e++) gc_fill_element(port, array->tensor.data, e);
  return 0;
}

static int check_unused(const arguments *a) {
  for (int i = 0; i < a->n_inputs; i++) {
    if (!a->inputs[i].used)
      return complain(
          "--input %s: the function has no such input, or it is given twice; see --list",
          a->inputs[i].name);
  }
  return 0;
}

static int check_dims(const arguments *a, const gc_function *f) {
  int64_t value;
  for (int i = 0; i < a->n_dims; i++) {
    bool known = false;
    for (int32_t d = 0; d < f->n_dims; d++)
      known |= strlen(f->dims[d].name) == a->dims[i].name_length &&
               !memcmp(f->dims[d].name, a->dims[i].name, a->dims[i].name_length);
    if (!known)
      return complain("--dim %s: the function has no such dimension; see --list", a->dims[i].name);
    if (!parse_number(a->dims[i].value, 0, INT64_MAX, &value))
      return complain("--dim %s: not a number", a->dims[i].name);
  }
  if (a->n_dims && !a->random) return complain("%s", "--dim is only used with --random");
  return 0;
}

static int get_inputs(arguments *a, const gc_function *f, npy_array *arrays) {
  gc_error error;
  int status = check_dims(a, f);
  for (int32_t i = 0; i < f->n_inputs && !status; i++) {
    pair *given = find_pair(a->inputs, a->n_inputs, f->inputs[i].name);
    if (given && npy_read(given->value, &arrays[i], &error)) status = report_error(&error);
  }
  for (int32_t i = 0; i < f->n_inputs && !status; i++) {
    if (arrays[i].tensor.data) continue;
    if (!a->random)
      return complain("input '%s' is missing: give --input NAME=FILE.npy or --random",
                      f->inputs[i].name);
    status = make_up(a, f, arrays, i);
  }
  return status ? status : check_unused(a);
}

static double element(const DLTensor *t, int64_t i) {
  const char *p = (const char *)t->data + i * (t->dtype.bits / 8);
  double wide = 0;
  float number = 0;
  int64_t integer = 0;
  uint32_t bits;
  uint16_t half;
  if (t->dtype.code == kDLFloat && t->dtype.bits == 64) {
    memcpy(&wide, p, 8);
    return wide;
  }
  if (t->dtype.code == kDLFloat && t->dtype.bits == 32) {
    memcpy(&number, p, 4);
    return number;
  }
  if (t->dtype.code == kDLFloat || t->dtype.code == kDLBfloat) {
    memcpy(&half, p, 2);
    bits = (uint32_t)half << 16;
    if (t->dtype.code == kDLFloat) { /* float16: rebias through a product, denormals included */
      bits = (uint32_t)(half & 0x8000) << 16 | (uint32_t)(half & 0x7fff) << 13;
      memcpy(&number, &bits, 4);
      return number * 5.192296858534828e33; /* 2^112 */
    }
    memcpy(&number, &bits, 4);
    return number;
  }
  memcpy(&integer, p, t->dtype.bits / 8);
  int shift = 64 - t->dtype.bits;
  if (t->dtype.code == kDLInt && shift) integer = (int64_t)((uint64_t)integer << shift) >> shift;
  return (double)integer;
}

static void print_output(const gc_port *port, const DLTensor *t) {
  char dtype[24];
  int64_t n = 1;
  printf("%s %s [", port->name, gc_dtype_text(t->dtype, dtype, sizeof dtype));
  for (int32_t i = 0; i < t->ndim; i++) {
    printf("%s%" PRId64, i ? ", " : "", t->shape[i]);
    n *= t->shape[i];
  }
  printf("]:");
  for (int64_t i = 0; i < n && i < 8; i++) printf(" %.6g", element(t, i));
  printf("\n");
}

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && !strcmp(text + n - m, end);
}

static int write_outputs(const char *output, const gc_function *f, const DLTensor *tensors) {
  gc_error error;
  if (ends_with(output, ".npy")) {
    if (f->n_outputs != 1)
      return complain("--output %s: the function has several outputs, give a directory", output);
    return npy_write(output, &tensors[0], &error) ? report_error(&error) : 0;
  }
  if (mkdir(output, 0777) && errno != EEXIST)
    return complain("--output %s: cannot make that directory", output);
  for (int32_t i = 0; i < f->n_outputs; i++) {
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/", output);
    if (n < 0 || (size_t)n + strlen(f->outputs[i].name) + 5 > sizeof path)
      return complain("--output %s: the path is too long", output);
    char *end = path + n;
    /* An output's name comes from the model: it must not choose another directory. */
    for (const char *c = f->outputs[i].name; *c; c++) *end++ = *c == '/' ? '_' : *c;
    strcpy(end, ".npy");
    if (npy_write(path, &tensors[i], &error)) return report_error(&error);
  }
  return 0;
}

static int run(arguments *a, gc_model *model, const gc_function *f, npy_array *arrays,
               DLTensor *inputs, DLTensor *outputs) {
  gc_error error;
  int status = get_inputs(a, f, arrays);
  if (status) return status;
  for (int32_t i = 0; i < f->n_inputs; i++) inputs[i] = arrays[i].tensor;
  gc_context *context = gc_context_create(model, &error);
  if (!context) return report_error(&error);
  struct timespec start, stop;
  double best = 0;
  for (int64_t r = 0; r < a->repeat && !status; r++) {
    memset(outputs, 0, (size_t)f->n_outputs * sizeof *outputs);
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (gc_run(context, f->name, inputs, f->n_inputs, outputs, f->n_outputs, &error))
      status = report_error(&error);
    clock_gettime(CLOCK_MONOTONIC, &stop);
    double ms =
        (double)(stop.tv_sec - start.tv_sec) * 1e3 + (double)(stop.tv_nsec - start.tv_nsec) * 1e-6;
    if (r == 0 || ms < best) best = ms;
  }
  if (!status && a->output) status = write_outputs(a->output, f, outputs);
  for (int32_t i = 0; !status && !a->output && i < f->n_outputs; i++)
    print_output(&f->outputs[i], &outputs[i]);
  if (!status && a->repeat > 1)
    printf("fastest of %" PRId64 " runs: %.3f ms, %d threads\n", a->repeat, best,
           gc_context_threads(context));
  gc_context_destroy(context);
  return status;
}

static int print_token(void *user, int32_t token) {
  (void)user;
  printf("%d ", token);
  return fflush(stdout);
}

static int generate_and_report(gc_model *model, const generate_request *request) {
  gc_error error;
  generate_report report;
  if (generate(model, request, &report, &error)) return report_error(&error);
  if (request->user) speech_end(request->user);
  printf("\n");
  fprintf(stderr, "prefill %.1f tokens/s, decode %.1f tokens/s\n",
          (double)request->n_prompt / report.prefill_seconds,
          (double)(report.tokens > 1 ? report.tokens - 1 : 0) / report.decode_seconds);
  return 0;
}

static int answer(const arguments *a, gc_model *model) {
  gc_error error;
  generate_request request = {.max_tokens = a->max_tokens, .emit = print_token};
  request.sampling = gc_sampling_defaults();
  request.sampling.temperature = (float)a->temperature;
  request.sampling.seed = (uint64_t)a->seed;
  speech text = {0};
  int64_t n_stop = 0;
  int32_t *prompt = a->tokens ? parse_tokens(a->tokens, &request.n_prompt) : NULL;
  int32_t *stop = a->stop ? parse_tokens(a->stop, &n_stop) : NULL;
  request.prompt = prompt;
  int status = 0;
  if ((a->tokens && !prompt) || n_stop < 0)
    status = complain("'%s' is no list of tokens: expected 1,2,3", n_stop < 0 ? a->stop : a->tokens);
  if (!status && !a->tokens) {
    const char *said = a->chat ? a->chat : a->prompt;
    if (speech_open(&text, a->directory, said, a->chat != NULL, &error))
      status = report_error(&error);
    request.prompt = text.prompt;
    request.n_prompt = text.n_prompt;
    request.emit = speech_emit;
    request.user = &text;
  }
  request.stop = a->stop ? stop : text.stop;
  request.n_stop = a->stop ? (int32_t)n_stop : text.n_stop;
  if (!status) status = generate_and_report(model, &request);
  speech_close(&text);
  free(prompt);
  free(stop);
  return status;
}

int main(int argc, char **argv) {
  arguments a;
  gc_error error;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
      fputs(USAGE, stdout);
      return 0;
    }
  }
  int status = parse_arguments(argc, argv, &a);
  if (status) return status;
  gc_model *model = gc_open(a.directory, &a.options, &error);
  if (!model) return report_error(&error);
  const gc_function *f = gc_function_named(model, a.function);
  if (a.list) {
    list_functions(model);
  } else if (a.tokens || a.prompt || a.chat) {
    status = answer(&a, model);
  } else if (!f) {
    status = complain("no function '%s' in this model; see --list", a.function);
  } else {
    npy_array *arrays = calloc((size_t)f->n_inputs + 1, sizeof *arrays);
    DLTensor *inputs = calloc((size_t)f->n_inputs + 1, sizeof *inputs);
    DLTensor *outputs = calloc((size_t)f->n_outputs + 1, sizeof *outputs);
    status = arrays && inputs && outputs ? run(&a, model, f, arrays, inputs, outputs)
                                         : complain("%s", "out of memory");
    for (int32_t i = 0; arrays && i < f->n_inputs; i++) npy_free(&arrays[i]);
    free(arrays);
    free(inputs);
    free(outputs);
  }
  gc_close(model);
  return status;
}

/* launch.c: starts a kernel's entry; for a device, the entry asks back to have its kernel started.
 *
 * What TVM leaves on the CPU of a device kernel computes the launch's extents and calls the kernel by
 * name, as a function found in "the library's imports": here, the rows of gc_program.kernels. */
#include <string.h>

#include "device.h"
#include "internal.h"

/* The launch that this thread is in. */
typedef struct {
  gc_context *context;
  const gc_value *args;
  int32_t n_args;
  gc_error *error;
  int code;
} launch;

static _Thread_local __attribute__((tls_model("initial-exec"))) launch *current;

static const gc_device_kernel no_kernel = {.name = "__tvm_set_device"};

int gc_launch(gc_context *context, const char *name, gc_kernel kernel, gc_value *args,
              int32_t n_args, gc_error *error) {
  launch own = {context, args, n_args, error, GC_OK}, *outer = current;
  gc_value result = {0};
  current = &own;
  int failed = kernel(NULL, args, n_args, &result);
  current = outer;
  if (!failed) return GC_OK;
  if (own.code) return own.code;
  const char *message = gc_pool_message(context->pool);
  return gc_fail(error, GC_ERROR_KERNEL, "kernel '%s' failed: %s", name,
                 *message ? message : "no reason given");
}

void *gc_launch_alloc(size_t bytes) {
  launch *l = current;
  void *memory = NULL;
  if (!l) return NULL;
  l->code = l->context->device->alloc(l->context->device_state, bytes, &memory, l->error);
  return memory;
}

int gc_launch_free(void *memory) {
  launch *l = current;
  if (!l) return -1;
  l->context->device->free(l->context->device_state, memory);
  return 0;
}

static int find_kernel(void *library, const char *name, void **found) {
  (void)library;
  *found = NULL;
  if (!strcmp(name, no_kernel.name)) *found = (void *)&no_kernel;
  for (int32_t i = 0; i < gc_the_program.n_kernels && !*found; i++) {
    if (!strcmp(gc_the_program.kernels[i].name, name)) *found = (void *)&gc_the_program.kernels[i];
  }
  return *found ? 0 : -1;
}

static int call(void *function, gc_value *args, int32_t n_args, gc_value *result) {
  (void)result;
  const gc_device_kernel *kernel = function;
  if (kernel == &no_kernel) return 0;
  launch *l = current;
  if (!l) return -1;
  const gc_context *context = l->context;
  l->code = context->device->start(context->device_state, kernel, args, n_args, l->args, l->n_args,
                                   l->error);
  return l->code ? -1 : 0;
}

/* Two threads that come first both look the kernel up, and find the same row. */
static int init_once(void **handle, int (*init)(void **)) {
  void *found = NULL;
  int failed = init(&found);
  if (!failed) __atomic_store_n(handle, found, __ATOMIC_RELEASE);
  return failed;
}

int (*__TVMFFIEnvModLookupFromImports)(void *, const char *, void **) = find_kernel;
int (*__TVMFFIFunctionCall)(void *, gc_value *, int32_t, gc_value *) = call;
int (*__TVMFFIHandleInitOnce)(void **, int (*)(void **)) = init_once;

/* tvm_abi.c: strong definitions of the TVM hooks that compiled kernels refer to.
 *
 * Kernels hold weak pointer variables for these; a static link binds them to ours, so nothing of
 * TVM is needed at run time. */
#include "tvm_abi.h"

#include "device.h"

static void *alloc_workspace(int device_type, int device_id, uint64_t bytes, int code, int bits) {
  (void)device_id;
  (void)code;
  (void)bits;
  if (device_type != kDLCPU) return gc_launch_alloc(bytes);
  return gc_workspace_alloc(bytes);
}

static int free_workspace(int device_type, int device_id, void *memory) {
  (void)device_id;
  if (device_type != kDLCPU) return gc_launch_free(memory);
  return gc_workspace_free(memory);
}

static int launch(gc_task task, void *data, int n_tasks) {
  return gc_parallel_launch(task, data, n_tasks);
}

int (*__TVMBackendParallelLaunch)(gc_task, void *, int) = launch;
int (*__TVMBackendParallelBarrier)(int, gc_task_group *) = gc_parallel_barrier;
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = alloc_workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = free_workspace;

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t n_parts);
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t n_parts) {
  (void)kind;
  gc_raise_parts((const char *const *)parts, n_parts);
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
  (void)kind;
  gc_raise(message);
}

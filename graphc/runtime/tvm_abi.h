/* tvm_abi.h: what kernels compiled by TVM call back into. */
#ifndef GRAPHC_TVM_ABI_H_
#define GRAPHC_TVM_ABI_H_

#include "thread_pool.h"

/* thread_pool.c; all work for the pool of the calling thread. Launch and barrier return 0 or -1. */
int gc_parallel_launch(gc_task task, void *data, int n_tasks);
int gc_parallel_barrier(int task, gc_task_group *group);
void *gc_workspace_alloc(size_t bytes);
int gc_workspace_free(void *memory);
void gc_raise(const char *message);
void gc_raise_parts(const char *const *parts, int32_t n_parts);

#endif

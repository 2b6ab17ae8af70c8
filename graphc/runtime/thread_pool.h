/* thread_pool.h: the threads of one context, hot for a while after each job. */
#ifndef GRAPHC_THREAD_POOL_H_
#define GRAPHC_THREAD_POOL_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "graphc.h"

typedef struct gc_pool gc_pool;

/* What a task gets: TVM's TVMParallelGroupEnv, so that kernels' loop bodies are tasks as they are.
 */
typedef struct {
  void *barrier;
  int32_t n_tasks;
} gc_task_group;
typedef int (*gc_task)(int task, gc_task_group *group, void *data);

/* Starts threads - 1 workers; the thread that calls gc_pool_run is the first one. */
gc_pool *gc_pool_create(int32_t threads, int32_t spin_us, const int32_t *cpus, int32_t n_cpus,
                        gc_error *error);
void gc_pool_destroy(gc_pool *pool);
/* The same in a child process after fork, where the workers do not exist. */
void gc_pool_abandon(gc_pool *pool);
int32_t gc_pool_threads(const gc_pool *pool);

/* Between these two the calling thread is the pool's first thread and kernels may run on it.
 * gc_pool_enter returns what gc_pool_leave must put back. */
void *gc_pool_enter(gc_pool *pool);
void gc_pool_leave(void *previous);

/* The message that a kernel on this pool raised since the last gc_pool_enter, "" if none. */
const char *gc_pool_message(const gc_pool *pool);

#endif

/* thread_pool.c: runs n tasks on the threads of a context, and the hooks that kernels reach it by.
 *
 * A job is published by raising `epoch`; every worker takes the tasks worker, worker + threads, ...
 * and counts itself off in `pending`. Both sides spin for a bounded while, then sleep on a
 * condition: a kernel of 50 us must not wait for a wake-up, an idle model must not burn a core. */
#define _GNU_SOURCE
#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "tvm_abi.h"
#include "workspace.h"

enum { STACK_BYTES = 4 << 20, YIELD_AFTER_NS = 20000, MESSAGE_BYTES = 640 };

typedef struct {
  gc_pool *pool;
  int32_t index;
  bool in_job; /* a launch from inside a task runs on this thread alone */
  pthread_t thread;
  gc_workspaces workspaces;
} worker;

typedef struct {
  _Atomic int arrived;
  _Atomic unsigned round;
} barrier;

struct gc_pool {
  int32_t threads;
  int64_t spin_ns;
  /* The job; written before epoch is raised, read after. */
  gc_task task;
  void *data;
  gc_task_group group;
  barrier barrier;

  _Alignas(64) _Atomic uint64_t epoch;
  _Alignas(64) _Atomic int pending;
  _Atomic int failed;
  _Atomic int sleepers;
  _Atomic bool caller_sleeps, stop;
  pthread_mutex_t mutex;
  pthread_cond_t wake, done;

  _Atomic bool has_message; /* the first error wins */
  char message[MESSAGE_BYTES];
  worker workers[]; /* [threads]; the first is whoever runs the model */
};

/* The only state outside contexts: which pool the code on this thread works for. initial-exec,
 * because a general TLS access would make the library need the dynamic loader itself. */
static _Thread_local __attribute__((tls_model("initial-exec"))) worker *self;

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  __asm__ volatile("yield");
#endif
}

/* A spinning wait; all zeros when it begins. */
typedef struct {
  int64_t start;
  unsigned rounds;
} spinner;

/* One round. False when the time is over, which is looked at every 32 rounds: reading the clock
 * costs more than a round. After a few microseconds it also yields, in case what it waits for has
 * no core. */
static bool spin(const gc_pool *pool, spinner *s) {
  relax();
  if (++s->rounds % 32) return true;
  int64_t now = gc_now_ns();
  if (s->start == 0) s->start = now;
  if (pool->spin_ns >= 0 && now - s->start >= pool->spin_ns) return false;
  if (now - s->start > YIELD_AFTER_NS) sched_yield();
  return true;
}

static bool has_job(gc_pool *pool, uint64_t seen) {
  return atomic_load_explicit(&pool->epoch, memory_order_acquire) != seen;
}

static void run_tasks(worker *w) {
  gc_pool *pool = w->pool;
  w->in_job = true;
  for (int t = w->index; t < pool->group.n_tasks; t += pool->threads) {
    if (atomic_load_explicit(&pool->failed, memory_order_relaxed)) break;
    gc_task_group group = pool->group;
    if (pool->task(t, &group, pool->data)) atomic_store(&pool->failed, 1);
  }
  w->in_job = false;
}

static void *work(void *argument) {
  worker *w = argument;
  gc_pool *pool = w->pool;
  self = w;
  for (uint64_t seen = 0;; seen++) {
    spinner spinning = {0};
    while (!has_job(pool, seen) && spin(pool, &spinning)) continue;
    if (!has_job(pool, seen)) {
      pthread_mutex_lock(&pool->mutex);
      atomic_fetch_add(&pool->sleepers, 1);
      /* Sequentially consistent on both sides: either this sees the new epoch, or the launcher
       * sees the sleeper. */
      while (atomic_load(&pool->epoch) == seen) pthread_cond_wait(&pool->wake, &pool->mutex);
      atomic_fetch_sub(&pool->sleepers, 1);
      pthread_mutex_unlock(&pool->mutex);
    }
    if (atomic_load(&pool->stop)) return NULL;
    run_tasks(w);
    if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->caller_sleeps)) {
      pthread_mutex_lock(&pool->mutex);
      pthread_cond_signal(&pool->done);
      pthread_mutex_unlock(&pool->mutex);
    }
  }
}

static void publish(gc_pool *pool) {
  atomic_store(&pool->pending, pool->threads - 1);
  atomic_fetch_add(&pool->epoch, 1);
  if (atomic_load(&pool->sleepers) > 0) {
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
  }
}

static void wait_for_workers(gc_pool *pool) {
  spinner spinning = {0};
  while (atomic_load_explicit(&pool->pending, memory_order_acquire) > 0) {
    if (spin(pool, &spinning)) continue;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, true);
    while (atomic_load(&pool->pending) > 0) pthread_cond_wait(&pool->done, &pool->mutex);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->mutex);
  }
}

static int run_alone(gc_task task, void *data, int n_tasks) {
  bool in_job = self->in_job;
  int failed = 0;
  self->in_job = true;
  for (int t = 0; t < n_tasks && !failed; t++) {
    gc_task_group group = {.barrier = NULL, .n_tasks = n_tasks};
    failed = task(t, &group, data);
  }
  self->in_job = in_job;
  return failed ? -1 : 0;
}

int gc_parallel_launch(gc_task task, void *data, int n_tasks) {
  if (!self) return -1;
  gc_pool *pool = self->pool;
  bool alone = self->in_job || pool->threads == 1;
  if (n_tasks <= 0) n_tasks = alone ? 1 : pool->threads;
  if (alone || n_tasks == 1) return run_alone(task, data, n_tasks);
  pool->task = task;
  pool->data = data;
  /* Tasks can only wait for each other when each has a thread of its own. */
  pool->group = (gc_task_group){
      .barrier = n_tasks <= pool->threads ? &pool->barrier : NULL,
      .n_tasks = n_tasks,
  };
  atomic_store(&pool->failed, 0);
  atomic_store(&pool->barrier.arrived, 0);
  publish(pool);
  run_tasks(self);
  wait_for_workers(pool);
  return atomic_load(&pool->failed) ? -1 : 0;
}

int gc_parallel_barrier(int task, gc_task_group *group) {
  (void)task;
  if (group->n_tasks == 1) return 0;
  barrier *b = group->barrier;
  if (!b) {
    gc_raise("more tasks wait for each other than there are threads");
    return -1;
  }
  gc_pool *pool = self->pool;
  unsigned round = atomic_load(&b->round);
  if (atomic_fetch_add(&b->arrived, 1) == group->n_tasks - 1) {
    atomic_store(&b->arrived, 0);
    atomic_fetch_add(&b->round, 1);
    return 0;
  }
  spinner spinning = {0};
  while (atomic_load_explicit(&b->round, memory_order_acquire) == round) {
    if (atomic_load(&pool->failed)) return -1; /* a task that failed will never arrive */
    if (!spin(pool, &spinning)) sched_yield();
  }
  return 0;
}

void *gc_workspace_alloc(size_t bytes) {
  if (!self) return NULL;
  const char *problem = NULL;
  void *memory = gc_workspaces_take(&self->workspaces, bytes, &problem);
  if (!memory) gc_raise(problem);
  return memory;
}

int gc_workspace_free(void *memory) {
  return self ? gc_workspaces_return(&self->workspaces, memory) : -1;
}

void gc_raise_parts(const char *const *parts, int32_t n_parts) {
  if (!self || atomic_exchange(&self->pool->has_message, true)) return;
  char *to = self->pool->message;
  size_t left = MESSAGE_BYTES;
  *to = '\0';
  for (int32_t i = 0; i < n_parts && left > 1; i++) {
    if (!parts[i]) continue;
    int n = snprintf(to, left, "%s", parts[i]);
    size_t used = n < 0 ? 0 : (size_t)n < left ? (size_t)n : left - 1;
    to += used;
    left -= used;
  }
}

void gc_raise(const char *message) {
  gc_raise_parts(&message, 1);
}

void *gc_pool_enter(gc_pool *pool) {
  void *previous = self;
  self = &pool->workers[0];
  /* A kernel that failed midway may not have given its workspaces back. */
  for (int32_t i = 0; i < pool->threads; i++)
    gc_workspaces_return_all(&pool->workers[i].workspaces);
  pool->message[0] = '\0';
  atomic_store(&pool->has_message, false);
  return previous;
}

void gc_pool_leave(void *previous) {
  self = previous;
}

const char *gc_pool_message(const gc_pool *pool) {
  return pool->message;
}

int32_t gc_pool_threads(const gc_pool *pool) {
  return pool->threads;
}

/* Pinning is a wish: a CPU outside the process's affinity leaves the worker where it is. */
static void pin(pthread_t thread, int32_t cpu) {
  cpu_set_t set;
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof set, &set);
}

static void stop_workers(gc_pool *pool, int32_t started) {
  atomic_store(&pool->stop, true);
  publish(pool);
  for (int32_t i = 1; i < started; i++) pthread_join(pool->workers[i].thread, NULL);
}

static void pool_free(gc_pool *pool) {
  for (int32_t i = 0; i < pool->threads; i++) gc_workspaces_free(&pool->workers[i].workspaces);
  pthread_cond_destroy(&pool->done);
  pthread_cond_destroy(&pool->wake);
  pthread_mutex_destroy(&pool->mutex);
  free(pool);
}

gc_pool *gc_pool_create(int32_t threads, int32_t spin_us, const int32_t *cpus, int32_t n_cpus,
                        gc_error *error) {
  void *memory = NULL;
  size_t bytes = sizeof(gc_pool) + (size_t)threads * sizeof(worker);
  if (posix_memalign(&memory, 64, bytes)) {
    gc_fail(error, GC_ERROR_MEMORY, "out of memory for %d threads", threads);
    return NULL;
  }
  memset(memory, 0, bytes);
  gc_pool *pool = memory;
  pool->threads = threads;
  pool->spin_ns = spin_us < 0 ? -1 : (spin_us ? spin_us : 200) * INT64_C(1000);
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->wake, NULL);
  pthread_cond_init(&pool->done, NULL);

  pthread_attr_t attributes; /* musl's default stack is too small for kernels' local tiles */
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  int failed = 0;
  for (int32_t i = 0; i < threads && !failed; i++) {
    worker *w = &pool->workers[i];
    w->pool = pool;
    w->index = i;
    if (i == 0) continue;
    failed = pthread_create(&w->thread, &attributes, work, w);
    if (failed) {
      gc_fail(error, GC_ERROR_MEMORY, "cannot start thread %d of %d: %s", i + 1, threads,
              strerror(failed));
      stop_workers(pool, i);
    } else if (n_cpus > 0) {
      pin(w->thread, cpus[i % n_cpus]);
    }
  }
  pthread_attr_destroy(&attributes);
  if (!failed) return pool;
  pool_free(pool);
  return NULL;
}

void gc_pool_destroy(gc_pool *pool) {
  if (!pool) return;
  stop_workers(pool, pool->threads);
  pool_free(pool);
}

void gc_pool_abandon(gc_pool *pool) {
  if (!pool) return;
  for (int32_t i = 0; i < pool->threads; i++) gc_workspaces_free(&pool->workers[i].workspaces);
  free(pool);
}

/* pool_check.c: every task runs once, errors and barriers work, nested launches stay serial.
 * Prints nothing and returns 0 when all is well; the line of the failed check otherwise. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"
#include "tvm_abi.h"

const gc_program gc_the_program = {0};

#define CHECK(condition)                             \
  do {                                               \
    if (!(condition)) {                              \
      printf("line %d: %s\n", __LINE__, #condition); \
      return 1;                                      \
    }                                                \
  } while (0)

enum { MAX = 64 };

typedef struct {
  _Atomic int runs[MAX];
  _Atomic int phase[4];
  _Atomic int wrong, nested;
} state;

static int count(int task, gc_task_group *group, void *data) {
  state *s = data;
  if (task < 0 || task >= group->n_tasks) return -1;
  atomic_fetch_add(&s->runs[task], 1);
  return 0;
}

static int meet(int task, gc_task_group *group, void *data) {
  state *s = data;
  for (int p = 0; p < 4; p++) {
    atomic_fetch_add(&s->phase[p], 1);
    if (gc_parallel_barrier(task, group)) return -1;
    if (atomic_load(&s->phase[p]) != group->n_tasks) atomic_store(&s->wrong, 1);
    if (gc_parallel_barrier(task, group)) return -1;
  }
  return 0;
}

static int fail_one(int task, gc_task_group *group, void *data) {
  (void)data;
  (void)group;
  if (task == 1) {
    gc_raise("task one says no");
    return -1;
  }
  return 0;
}

static int fail_before_barrier(int task, gc_task_group *group, void *data) {
  (void)data;
  if (task == 1) {
    gc_raise("never arrives");
    return -1;
  }
  return gc_parallel_barrier(task, group);
}

static int inner(int task, gc_task_group *group, void *data) {
  (void)task;
  (void)group;
  atomic_fetch_add(&((state *)data)->nested, 1);
  return 0;
}

static int outer(int task, gc_task_group *group, void *data) {
  (void)task;
  (void)group;
  return gc_parallel_launch(inner, data, 0) || gc_parallel_launch(inner, data, 3);
}

static int use_workspace(int task, gc_task_group *group, void *data) {
  (void)data;
  (void)group;
  size_t bytes = 1000 + 100 * (size_t)task;
  char *a = gc_workspace_alloc(bytes), *b = gc_workspace_alloc(2 * bytes);
  if (!a || !b || a == b || (size_t)a % 128 || (size_t)b % 128) return -1;
  memset(a, 1, bytes);
  memset(b, 2, 2 * bytes);
  if (a[bytes - 1] != 1) return -1;
  return gc_workspace_free(b) || gc_workspace_free(a) || !gc_workspace_free(a);
}

static int check_pool(int threads, int spin_us) {
  gc_error error = {0};
  gc_pool *pool = gc_pool_create(threads, spin_us, NULL, 0, &error);
  CHECK(pool && gc_pool_threads(pool) == threads);
  CHECK(gc_parallel_launch(count, NULL, 0) == -1); /* outside a run there is no pool */
  void *previous = gc_pool_enter(pool);
  for (int n = 0; n <= MAX; n = n < 4 ? n + 1 : n * 2) {
    state s = {0};
    CHECK(gc_parallel_launch(count, &s, n) == 0);
    int expected = n == 0 ? threads : n;
    for (int t = 0; t < MAX; t++) CHECK(s.runs[t] == (t < expected));
  }
  for (int again = 0; again < 20; again++) {
    state s = {0};
    CHECK(gc_parallel_launch(meet, &s, 0) == 0);
    CHECK(!s.wrong && s.phase[3] == threads);
  }
  state s = {0};
  CHECK(gc_parallel_launch(outer, &s, 5) == 0);
  CHECK(s.nested == 5 * 4);
  CHECK(gc_parallel_launch(use_workspace, NULL, 7) == 0);
  CHECK(gc_parallel_launch(use_workspace, NULL, 1) == 0);

  CHECK(gc_parallel_launch(fail_one, NULL, 3) == -1);
  CHECK(!strcmp(gc_pool_message(pool), "task one says no"));
  CHECK(gc_parallel_launch(fail_one, NULL, 3) == -1);
  CHECK(gc_parallel_launch(meet, &s, threads + 1) == -1); /* cannot all wait at once */
  gc_pool_leave(gc_pool_enter(pool));
  CHECK(!*gc_pool_message(pool));
  if (threads > 1) {
    CHECK(gc_parallel_launch(fail_before_barrier, NULL, threads) == -1);
    CHECK(!strcmp(gc_pool_message(pool), "never arrives"));
  }
  memset(&s, 0, sizeof s);
  CHECK(gc_parallel_launch(count, &s, 2) == 0); /* still works after errors */
  CHECK(s.runs[0] == 1 && s.runs[1] == 1);
  gc_pool_leave(previous);
  gc_pool_destroy(pool);
  return 0;
}

static void *in_thread(void *result) {
  for (int again = 0; again < 5 && !*(int *)result; again++) *(int *)result = check_pool(3, 1);
  return NULL;
}

int main(void) {
  for (int threads = 1; threads <= 5; threads++) {
    if (check_pool(threads, 0) || check_pool(threads, 1)) return 1;
  }
  pthread_t thread[4];
  int failed[4] = {0};
  for (int i = 0; i < 4; i++) pthread_create(&thread[i], NULL, in_thread, &failed[i]);
  for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
  return failed[0] | failed[1] | failed[2] | failed[3];
}

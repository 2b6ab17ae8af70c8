/* workspace.h: memory that kernels ask for while they run, kept from run to run. */
#ifndef GRAPHC_WORKSPACE_H_
#define GRAPHC_WORKSPACE_H_

#include <stdbool.h>
#include <stddef.h>

enum { GC_MAX_WORKSPACES = 16 };

/* Of one thread: no locks. All zeros is a valid, empty one. */
typedef struct {
  struct {
    void *data;
    size_t bytes;
    bool taken;
  } slots[GC_MAX_WORKSPACES];
} gc_workspaces;

/* Memory aligned to 128 bytes; NULL with *problem set when there is none. */
void *gc_workspaces_take(gc_workspaces *w, size_t bytes, const char **problem);
/* 0, or -1 for memory that was not taken. */
int gc_workspaces_return(gc_workspaces *w, void *memory);
void gc_workspaces_return_all(gc_workspaces *w);
void gc_workspaces_free(gc_workspaces *w);

#endif

/* workspace.c: the smallest free slot that is large enough; else the largest one is made larger. */
#define _GNU_SOURCE
#include "workspace.h"

#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { ALIGNMENT = 128 }; /* what TVM's generated code may assume of a workspace */

static int choose(const gc_workspaces *w, size_t bytes) {
  int fitting = -1, largest = -1;
  for (int i = 0; i < GC_MAX_WORKSPACES; i++) {
    if (w->slots[i].taken) continue;
    size_t have = w->slots[i].bytes;
    if (have >= bytes && (fitting < 0 || have < w->slots[fitting].bytes)) fitting = i;
    if (largest < 0 || have > w->slots[largest].bytes) largest = i;
  }
  return fitting >= 0 ? fitting : largest;
}

void *gc_workspaces_take(gc_workspaces *w, size_t bytes, const char **problem) {
  int i = choose(w, bytes);
  if (i < 0) {
    *problem = "a kernel holds more than 16 workspaces at once";
    return NULL;
  }
  if (!w->slots[i].data || w->slots[i].bytes < bytes) {
    free(w->slots[i].data);
    w->slots[i].data = NULL;
    w->slots[i].bytes = 0;
    void *data = NULL;
    if (bytes > GC_MAX_BYTES || posix_memalign(&data, ALIGNMENT, bytes ? bytes : 1)) {
      *problem = "out of memory for a kernel's workspace";
      return NULL;
    }
    w->slots[i].data = data;
    w->slots[i].bytes = bytes;
  }
  w->slots[i].taken = true;
  return w->slots[i].data;
}

int gc_workspaces_return(gc_workspaces *w, void *memory) {
  for (int i = 0; i < GC_MAX_WORKSPACES; i++) {
    if (w->slots[i].taken && w->slots[i].data == memory) {
      w->slots[i].taken = false;
      return 0;
    }
  }
  return -1;
}

void gc_workspaces_return_all(gc_workspaces *w) {
  for (int i = 0; i < GC_MAX_WORKSPACES; i++) w->slots[i].taken = false;
}

void gc_workspaces_free(gc_workspaces *w) {
  for (int i = 0; i < GC_MAX_WORKSPACES; i++) free(w->slots[i].data);
  memset(w, 0, sizeof *w);
}

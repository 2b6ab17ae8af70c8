/* device_cpu.c: the CPU back end; a kernel's own loops use the context's threads. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device.h"
#include "internal.h"

enum { HUGE_PAGE = 2 << 20 };

static int cpu_alloc(void *state, size_t bytes, void **memory, gc_error *error) {
  (void)state;
  /* Large arenas on huge pages: fewer TLB misses while activations stream through. */
  size_t alignment = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : GC_ALIGNMENT;
  *memory = NULL;
  if (bytes > PTRDIFF_MAX - HUGE_PAGE || posix_memalign(memory, alignment, bytes ? bytes : 1)) {
    *memory = NULL;
    return gc_fail(error, GC_ERROR_MEMORY, "out of memory: %zu bytes are needed for activations",
                   bytes);
  }
#ifdef MADV_HUGEPAGE
  if (alignment == HUGE_PAGE) madvise(*memory, bytes, MADV_HUGEPAGE); /* only a hint */
#endif
  return GC_OK;
}

static void cpu_free(void *state, void *memory) {
  (void)state;
  free(memory);
}

static int cpu_copy(void *state, void *target, const void *source, size_t bytes, gc_error *error) {
  (void)state;
  (void)error;
  if (bytes) memmove(target, source, bytes);
  return GC_OK;
}

static int cpu_sync(void *state, gc_error *error) {
  (void)state;
  (void)error;
  return GC_OK;
}

const gc_device gc_device_cpu = {
    .name = "cpu",
    .type = kDLCPU,
    .alignment = GC_ALIGNMENT,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .upload = cpu_copy,
    .download = cpu_copy,
    .sync = cpu_sync,
};

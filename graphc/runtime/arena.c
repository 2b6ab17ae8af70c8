/* arena.c: where each buffer lies in the arena, for sizes that are known only at run time. */
#include <stdlib.h>

#include "internal.h"

static bool live_together(const gc_buffer_plan *a, const gc_buffer_plan *b) {
  return a->first <= b->last && b->first <= a->last;
}

/* Shell sort: no allocation, no callback data, and n is at most a few thousands. */
static void sort_by_size(int32_t n, const size_t *sizes, int32_t *order) {
  for (int32_t i = 0; i < n; i++) order[i] = i;
  for (int32_t gap = n / 2; gap > 0; gap /= 2) {
    for (int32_t i = gap; i < n; i++) {
      int32_t moving = order[i], j = i;
      for (; j >= gap; j -= gap) {
        int32_t other = order[j - gap];
        bool before = sizes[other] > sizes[moving] ||
                      (sizes[other] == sizes[moving] && other < moving); /* same bytes everywhere */
        if (before) break;
        order[j] = other;
      }
      order[j] = moving;
    }
  }
}

/* The smallest gap that holds `size` between the placed buffers that live at the same time, else
 * the end of the last. `placed` is sorted by offset. */
static size_t best_gap(int32_t buffer, const gc_buffer_plan *buffers, const size_t *sizes,
                       const size_t *offsets, const int32_t *placed, int32_t n_placed) {
  size_t end = 0, best = SIZE_MAX, best_size = SIZE_MAX;
  for (int32_t i = 0; i < n_placed; i++) {
    int32_t other = placed[i];
    if (!live_together(&buffers[buffer], &buffers[other])) continue;
    if (offsets[other] > end) {
      size_t gap = offsets[other] - end;
      if (gap >= sizes[buffer] && gap < best_size) {
        best = end;
        best_size = gap;
      }
    }
    size_t other_end = offsets[other] + sizes[other];
    if (other_end > end) end = other_end;
  }
  return best != SIZE_MAX ? best : end;
}

size_t gc_place_buffers(int32_t n, const gc_buffer_plan *buffers, size_t alignment, size_t *sizes,
                        size_t *offsets, int32_t *order) {
  int32_t *placed = order + n;
  size_t total = 0, sum = 0;
  for (int32_t i = 0; i < n; i++) {
    if (sizes[i] > GC_MAX_BYTES) return SIZE_MAX;
    sizes[i] = (sizes[i] + alignment - 1) & ~(alignment - 1);
    if (__builtin_add_overflow(sum, sizes[i], &sum)) return SIZE_MAX; /* bounds every offset */
  }
  sort_by_size(n, sizes, order);
  for (int32_t k = 0; k < n; k++) {
    int32_t buffer = order[k];
    size_t offset = best_gap(buffer, buffers, sizes, offsets, placed, k);
    offsets[buffer] = offset;
    int32_t at = k;
    for (; at > 0 && offsets[placed[at - 1]] > offset; at--) placed[at] = placed[at - 1];
    placed[at] = buffer;
    if (offset + sizes[buffer] > total) total = offset + sizes[buffer];
  }
  return total;
}

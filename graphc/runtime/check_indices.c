/* check_indices.c: no kernel reads out of bounds because of an index that a caller gave. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "internal.h"

static int64_t value_at(const DLTensor *t, int64_t i) {
  const void *data = t->data;
  bool is_signed = t->dtype.code == kDLInt;
  switch (t->dtype.bits) {
    case 8:
      return is_signed ? (int64_t)((const int8_t *)data)[i] : (int64_t)((const uint8_t *)data)[i];
    case 16:
      return is_signed ? (int64_t)((const int16_t *)data)[i] : (int64_t)((const uint16_t *)data)[i];
    case 32:
      return is_signed ? (int64_t)((const int32_t *)data)[i] : (int64_t)((const uint32_t *)data)[i];
    default:
      return ((const int64_t *)data)[i];
  }
}

/* True when all are in range; branch-free inside, so that compilers vectorise it. */
#define ALL_IN_RANGE(type, wide)                                                   \
  static bool all_in_range_##type(const type *x, int64_t n, wide low, wide high) { \
    int bad = 0;                                                                   \
    for (int64_t i = 0; i < n; i++) bad |= x[i] < low || x[i] > high;              \
    return !bad;                                                                   \
  }
ALL_IN_RANGE(int64_t, int64_t)
ALL_IN_RANGE(int32_t, int64_t)

static void position_text(const DLTensor *t, int64_t i, char *text, size_t size) {
  int64_t stride = 1;
  for (int32_t axis = 1; axis < t->ndim; axis++) stride *= t->shape[axis];
  size_t used = 0;
  text[0] = '\0';
  for (int32_t axis = 0; axis < t->ndim && used < size; axis++) {
    int n = snprintf(text + used, size - used, "%s%" PRId64, axis ? ", " : "", i / stride);
    if (n < 0) return;
    used += (size_t)n;
    i %= stride;
    if (axis + 1 < t->ndim) stride /= t->shape[axis + 1];
  }
}

static int check(gc_frame *f, int32_t tensor, const DLTensor *t, int64_t low, int64_t high,
                 const char *where) {
  const char *name = f->plan->tensors[tensor].name;
  int64_t n = 1;
  for (int32_t axis = 0; axis < t->ndim; axis++) n *= t->shape[axis];
  bool is_int = t->dtype.code == kDLInt;
  if (is_int && t->dtype.bits == 64 && all_in_range_int64_t(t->data, n, low, high)) return GC_OK;
  if (is_int && t->dtype.bits == 32 && all_in_range_int32_t(t->data, n, low, high)) return GC_OK;
  for (int64_t i = 0; i < n; i++) {
    int64_t value = value_at(t, i);
    bool wrapped = value < 0 && t->dtype.code != kDLInt; /* a uint64 above INT64_MAX */
    if (!wrapped && value >= low && value <= high) continue;
    char position[160];
    position_text(t, i, position, sizeof position);
    return gc_fail(f->error, GC_ERROR_INPUT,
                   "'%s': the index at [%s] is %" PRId64 ", allowed is %" PRId64 " to %" PRId64
                   " (%s)",
                   name, position, value, low, high, where);
  }
  return GC_OK;
}

int gc_step_check(gc_frame *f, int32_t tensor, int64_t low, int64_t high, const char *where) {
  const gc_context *context = f->context;
  DLTensor t = f->tensors[tensor];
  if (context->device->type == kDLCPU) return check(f, tensor, &t, low, high, where);
  size_t bytes = gc_tensor_bytes(t.dtype, t.ndim, t.shape);
  void *copy = malloc(bytes ? bytes : 1);
  if (!copy) return gc_fail(f->error, GC_ERROR_MEMORY, "out of memory");
  int code = context->device->download(context->device_state, copy, t.data, bytes, f->error);
  t.data = copy;
  if (!code) code = check(f, tensor, &t, low, high, where);
  free(copy);
  return code;
}

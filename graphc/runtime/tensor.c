/* tensor.c: sizes, strides and copies of tensors in memory. */
#include <stdio.h>
#include <string.h>

#include "internal.h"

size_t gc_tensor_bytes(DLDataType dtype, int32_t ndim, const int64_t *shape) {
  size_t bits = (size_t)dtype.bits * dtype.lanes;
  for (int32_t i = 0; i < ndim; i++) {
    if (shape[i] < 0) return SIZE_MAX;
    if (shape[i] == 0) return 0; /* before a product of the others can overflow */
  }
  for (int32_t i = 0; i < ndim; i++) {
    if (__builtin_mul_overflow(bits, (size_t)shape[i], &bits)) return SIZE_MAX;
  }
  size_t bytes = bits / 8 + (bits % 8 != 0);
  return bytes > GC_MAX_BYTES ? SIZE_MAX : bytes;
}

bool gc_is_compact(const DLTensor *tensor) {
  if (!tensor->strides) return true;
  int64_t expected = 1;
  for (int32_t i = tensor->ndim; i-- > 0;) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) return false;
    expected *= tensor->shape[i];
  }
  return true;
}

void gc_compact_strides(int32_t ndim, const int64_t *shape, int64_t *strides) {
  int64_t stride = 1;
  for (int32_t i = ndim; i-- > 0;) {
    strides[i] = stride;
    if (shape[i] > 1) stride *= shape[i];
  }
}

/* Strides in elements of `item` bytes; the innermost axis is copied in one go when it can be. */
void gc_copy_strided(void *target, const int64_t *target_strides, const void *source,
                     const int64_t *source_strides, int32_t ndim, const int64_t *shape,
                     size_t item) {
  if (ndim == 0) {
    memcpy(target, source, item);
    return;
  }
  bool row = ndim == 1 && target_strides[0] == 1 && source_strides[0] == 1;
  if (row && shape[0] > 0) {
    memcpy(target, source, (size_t)shape[0] * item);
    return;
  }
  for (int64_t i = 0; i < shape[0]; i++) {
    gc_copy_strided((char *)target + i * target_strides[0] * (int64_t)item, target_strides + 1,
                    (const char *)source + i * source_strides[0] * (int64_t)item,
                    source_strides + 1, ndim - 1, shape + 1, item);
  }
}

bool gc_same_dtype(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

const char *gc_dtype_text(DLDataType dtype, char *text, size_t size) {
  static const char *const names[] = {"int",    "uint",    "float", "handle",
                                      "bfloat", "complex", "bool"};
  const char *name = dtype.code < sizeof names / sizeof *names ? names[dtype.code] : "code";
  if (dtype.code == kDLBool && dtype.bits == 8 && dtype.lanes == 1)
    snprintf(text, size, "bool");
  else if (dtype.lanes == 1)
    snprintf(text, size, "%s%u", name, dtype.bits);
  else
    snprintf(text, size, "%s%ux%u", name, dtype.bits, dtype.lanes);
  return text;
}

/* npy.c: a strict reader of .npy files (the header is checked before anything is allocated). */
#define _GNU_SOURCE
#include "npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "internal.h"

enum { MAX_HEADER = 65535, ALIGNMENT = 64 };

/* A cursor over the header, which is a Python dict literal of three known keys. */
typedef struct {
  const char *at, *end;
} cursor;

static void skip_spaces(cursor *c) {
  while (c->at < c->end && (*c->at == ' ' || *c->at == '\n')) c->at++;
}

static bool take(cursor *c, char expected) {
  skip_spaces(c);
  if (c->at == c->end || *c->at != expected) return false;
  c->at++;
  return true;
}

static bool take_word(cursor *c, const char *word) {
  skip_spaces(c);
  size_t n = strlen(word);
  if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n)) return false;
  c->at += n;
  return true;
}

static bool take_string(cursor *c, char *text, size_t size) {
  skip_spaces(c);
  if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return false;
  char quote = *c->at++;
  size_t n = 0;
  while (c->at < c->end && *c->at != quote) {
    if (*c->at == '\\' || n + 1 >= size) return false;
    text[n++] = *c->at++;
  }
  text[n] = '\0';
  return take(c, quote);
}

static bool take_number(cursor *c, int64_t *value) {
  skip_spaces(c);
  if (c->at == c->end || *c->at < '0' || *c->at > '9') return false;
  *value = 0;
  for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
    if (__builtin_mul_overflow(*value, 10, value) ||
        __builtin_add_overflow(*value, *c->at - '0', value))
      return false;
  }
  return true;
}

static bool take_shape(cursor *c, npy_array *array) {
  if (!take(c, '(')) return false;
  int32_t n = 0;
  while (!take(c, ')')) {
    if (n == NPY_MAX_RANK || !take_number(c, &array->shape[n++])) return false;
    if (!take(c, ',')) {
      if (!take(c, ')')) return false;
      break;
    }
  }
  array->tensor.ndim = n;
  return true;
}

/* '<f4' and so on; bfloat16 has no code of its own, ml_dtypes stores it as '<V2'. */
static bool dtype_from(const char *descr, DLDataType *dtype) {
  static const struct {
    const char *descr;
    DLDataType dtype;
  } known[] = {
      {"|b1", {kDLBool, 8, 1}},    {"|i1", {kDLInt, 8, 1}},    {"<i2", {kDLInt, 16, 1}},
      {"<i4", {kDLInt, 32, 1}},    {"<i8", {kDLInt, 64, 1}},   {"|u1", {kDLUInt, 8, 1}},
      {"<u2", {kDLUInt, 16, 1}},   {"<u4", {kDLUInt, 32, 1}},  {"<u8", {kDLUInt, 64, 1}},
      {"<f2", {kDLFloat, 16, 1}},  {"<f4", {kDLFloat, 32, 1}}, {"<f8", {kDLFloat, 64, 1}},
      {"<V2", {kDLBfloat, 16, 1}},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (!strcmp(known[i].descr, descr)) {
      *dtype = known[i].dtype;
      return true;
    }
  }
  return false;
}

static const char *descr_of(DLDataType dtype) {
  switch (dtype.code) {
    case kDLBool:
      return "|b1";
    case kDLInt:
      return dtype.bits == 8 ? "|i1" : dtype.bits == 16 ? "<i2" : dtype.bits == 32 ? "<i4" : "<i8";
    case kDLUInt:
      return dtype.bits == 8 ? "|u1" : dtype.bits == 16 ? "<u2" : dtype.bits == 32 ? "<u4" : "<u8";
    case kDLFloat:
      return dtype.bits == 16 ? "<f2" : dtype.bits == 32 ? "<f4" : "<f8";
    default:
      return "<V2";
  }
}

static int parse_header(const char *path, const char *text, size_t size, npy_array *array,
                        gc_error *error) {
  cursor c = {text, text + size};
  char key[24], descr[24] = "";
  bool fortran = false, have_order = false, have_shape = false, ok = take(&c, '{');
  while (ok && !take(&c, '}')) {
    ok = take_string(&c, key, sizeof key) && take(&c, ':');
    if (ok && !strcmp(key, "descr")) {
      ok = take_string(&c, descr, sizeof descr);
    } else if (ok && !strcmp(key, "fortran_order")) {
      fortran = take_word(&c, "True");
      ok = have_order = fortran || take_word(&c, "False");
    } else if (ok && !strcmp(key, "shape")) {
      ok = have_shape = take_shape(&c, array);
    } else {
      ok = false;
    }
    if (ok && !take(&c, ',')) {
      ok = take(&c, '}');
      break;
    }
  }
  skip_spaces(&c);
  if (!ok || c.at != c.end || !have_order || !have_shape || !*descr)
    return gc_fail(error, GC_ERROR_INPUT, "'%s': damaged header, not a plain .npy array", path);
  if (!dtype_from(descr, &array->tensor.dtype))
    return gc_fail(error, GC_ERROR_INPUT,
                   "'%s': dtype '%s' cannot be read; save it little-endian as a plain number type",
                   path, descr);
  int64_t stride = 1; /* the sizes' product is checked by the caller before it is used */
  for (int32_t i = 0; i < array->tensor.ndim; i++) {
    int32_t axis = fortran ? i : array->tensor.ndim - 1 - i;
    array->strides[axis] = stride;
    if (__builtin_mul_overflow(stride, array->shape[axis], &stride)) stride = 0;
  }
  array->tensor.shape = array->shape;
  array->tensor.strides = array->strides;
  array->tensor.device = (DLDevice){kDLCPU, 0};
  return GC_OK;
}

static int read_open(FILE *file, const char *path, npy_array *array, gc_error *error) {
  uint8_t start[12];
  struct stat status;
  if (fstat(fileno(file), &status) || !S_ISREG(status.st_mode))
    return gc_fail(error, GC_ERROR_INPUT, "'%s': not a regular file", path);
  if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6))
    return gc_fail(error, GC_ERROR_INPUT, "'%s': not an .npy file", path);
  if (start[6] < 1 || start[6] > 3)
    return gc_fail(error, GC_ERROR_INPUT, "'%s': .npy version %d is not known", path, start[6]);
  size_t preamble = start[6] == 1 ? 10 : 12;
  size_t header = start[8] | (size_t)start[9] << 8;
  if (preamble == 12) {
    if (fread(start + 10, 1, 2, file) != 2)
      return gc_fail(error, GC_ERROR_INPUT, "'%s': truncated header", path);
    header |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
  }
  if (header > MAX_HEADER)
    return gc_fail(error, GC_ERROR_INPUT, "'%s': header of %zu bytes is too long", path, header);
  char *text = malloc(header + 1);
  if (!text) return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  int code = GC_OK;
  if (fread(text, 1, header, file) != header)
    code = gc_fail(error, GC_ERROR_INPUT, "'%s': truncated header", path);
  if (!code) code = parse_header(path, text, header, array, error);
  free(text);
  if (code) return code;
  DLTensor *t = &array->tensor;
  size_t bytes = gc_tensor_bytes(t->dtype, t->ndim, t->shape);
  size_t have = (size_t)status.st_size - preamble - header;
  if (bytes != have)
    return gc_fail(error, GC_ERROR_INPUT, "'%s': has %zu bytes of data, its shape needs %zu", path,
                   have, bytes);
  if (posix_memalign(&t->data, ALIGNMENT, bytes ? bytes : 1)) {
    t->data = NULL;
    return gc_fail(error, GC_ERROR_MEMORY, "out of memory for '%s'", path);
  }
  if (fread(t->data, 1, bytes, file) != bytes)
    return gc_fail(error, GC_ERROR_INPUT, "'%s': cannot be read to its end", path);
  return GC_OK;
}

int npy_read(const char *path, npy_array *array, gc_error *error) {
  memset(array, 0, sizeof *array);
  FILE *file = fopen(path, "rb");
  if (!file) return gc_fail(error, GC_ERROR_INPUT, "cannot open '%s': %s", path, strerror(errno));
  int code = read_open(file, path, array, error);
  fclose(file);
  if (code) npy_free(array);
  return code;
}

/* The tensor must be compact. */
int npy_write(const char *path, const DLTensor *tensor, gc_error *error) {
  char header[1024];
  int n = snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                   descr_of(tensor->dtype));
  for (int32_t i = 0; i < tensor->ndim && n < 900; i++)
    n += snprintf(header + n, sizeof header - (size_t)n, "%" PRId64 ",%s", tensor->shape[i],
                  i + 1 < tensor->ndim ? " " : "");
  n += snprintf(header + n, sizeof header - (size_t)n, "), }");
  while ((n + 11) % ALIGNMENT) header[n++] = ' ';
  header[n++] = '\n';
  const uint8_t start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)n, (uint8_t)(n >> 8)};
  size_t bytes = gc_tensor_bytes(tensor->dtype, tensor->ndim, tensor->shape);
  FILE *file = fopen(path, "wb");
  bool ok =
      file && fwrite(start, 1, 10, file) == 10 && fwrite(header, 1, (size_t)n, file) == (size_t)n &&
      (bytes == 0 || fwrite((char *)tensor->data + tensor->byte_offset, 1, bytes, file) == bytes);
  int failed = errno;
  if (file && fclose(file) && ok) {
    ok = false;
    failed = errno;
  }
  if (ok) return GC_OK;
  return gc_fail(error, GC_ERROR_USE, "cannot write '%s': %s", path, strerror(failed));
}

void npy_free(npy_array *array) {
  free(array->tensor.data);
  array->tensor.data = NULL;
}

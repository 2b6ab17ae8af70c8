/* npy.h: NumPy's .npy files, versions 1 to 3 (numpy.lib.format), for graphc-run. */
#ifndef GRAPHC_NPY_H_
#define GRAPHC_NPY_H_

#include "graphc.h"

enum { NPY_MAX_RANK = 32 };

/* An array read from a file; the tensor points into the rest of it. */
typedef struct {
  DLTensor tensor;
  int64_t shape[NPY_MAX_RANK];
  int64_t strides[NPY_MAX_RANK];
} npy_array;

/* Both return GC_OK or fill `error`. An array is freed with npy_free. */
int npy_read(const char *path, npy_array *array, gc_error *error);
int npy_write(const char *path, const DLTensor *tensor, gc_error *error);
void npy_free(npy_array *array);

#endif

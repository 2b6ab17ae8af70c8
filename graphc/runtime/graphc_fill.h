/* graphc_fill.h: inputs made up for a try, the same ones in graphc-run, in example.c and in Python.
 */
#ifndef GRAPHC_FILL_H_
#define GRAPHC_FILL_H_

#include <string.h>

#include "graphc.h"

/* A dimension that nobody chose: 8, as far as its bounds allow. */
static inline int64_t gc_fill_dim(const gc_dim *dim) {
  int64_t value = 8;
  if (value > dim->upper) value = dim->upper;
  return value < dim->lower ? dim->lower : value;
}

/* Element i of an input: indices walk through their allowed values, other integers are 1 (a mask
 * that lets everything through), numbers lie in [-0.5, 0.5) on a grid that every float type holds.
 */
static inline void gc_fill_element(const gc_port *port, void *data, int64_t i) {
  int64_t integer = 1;
  if (port->low <= port->high) {
    uint64_t span = (uint64_t)port->high - (uint64_t)port->low + 1;
    integer = port->low + (int64_t)(span ? (uint64_t)(i * 7 + 1) % span : (uint64_t)i);
  }
  float number = (float)(i * 37 % 64) / 64.0f - 0.5f;
  double wide = number;
  uint32_t bits;
  uint16_t half;
  memcpy(&bits, &number, sizeof bits);
  if (port->dtype.code == kDLFloat && port->dtype.bits == 64) {
    memcpy((char *)data + 8 * i, &wide, 8);
  } else if (port->dtype.code == kDLFloat && port->dtype.bits == 32) {
    memcpy((char *)data + 4 * i, &number, 4);
  } else if (port->dtype.code == kDLFloat) {
    /* float16 of k/64 with |k| <= 32: exact, never denormal. */
    uint32_t exponent = bits >> 23 & 0xff;
    half = (uint16_t)(bits >> 16 & 0x8000);
    if (exponent) half |= (uint16_t)((exponent - 112) << 10 | (bits >> 13 & 0x3ff));
    memcpy((char *)data + 2 * i, &half, 2);
  } else if (port->dtype.code == kDLBfloat) {
    half = (uint16_t)(bits >> 16);
    memcpy((char *)data + 2 * i, &half, 2);
  } else {
    /* Little-endian: the low bytes of the integer. */
    int64_t bytes = (port->dtype.bits + 7) / 8;
    memcpy((char *)data + bytes * i, &integer, (size_t)bytes);
  }
}

#endif

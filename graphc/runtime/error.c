/* error.c: writing a message into a gc_error. */
#include <stdarg.h>
#include <stdio.h>

#include "internal.h"

int gc_fail(gc_error *error, gc_status code, const char *format, ...) {
  if (error) {
    va_list args;
    va_start(args, format);
    error->code = code;
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
  }
  return code;
}

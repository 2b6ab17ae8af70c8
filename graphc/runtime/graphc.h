/* graphc.h: the C interface of a compiled model.
 *
 * A model is opened from its directory, a context holds what one thread of use needs (activations
 * and worker threads), and gc_run executes one exported function. Everything is checked at this
 * border: names, dtypes, ranks, dimensions and index values. Nothing aborts and nothing prints; a
 * call that fails returns NULL or a gc_status other than GC_OK and fills the gc_error, if given.
 *
 * Threads: a gc_model may be used from any number of threads at once. A gc_context may be used by
 * one thread at a time (a second one gets GC_ERROR_USE); make one context per thread.
 * After fork() the child must create its own contexts; the model itself stays usable.
 *
 * Shapes are in elements, sizes in bytes, memory is the CPU's.
 */
#ifndef GRAPHC_H_
#define GRAPHC_H_

#include <stddef.h>
#include <stdint.h>

/* The part of DLPack (https://github.com/dmlc/dlpack, version 1) that is used here, under DLPack's
 * own guard: a program that needs the rest of it includes <dlpack/dlpack.h> first. */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
typedef enum {
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAHost = 3,
  kDLOpenCL = 4,
  kDLVulkan = 7
} DLDeviceType;
typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;
typedef enum {
  kDLInt = 0U,
  kDLUInt = 1U,
  kDLFloat = 2U,
  kDLOpaqueHandle = 3U,
  kDLBfloat = 4U,
  kDLComplex = 5U,
  kDLBool = 6U
} DLDataTypeCode;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL means compact, row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

#if defined(__GNUC__)
#define GC_API __attribute__((visibility("default")))
#else
#define GC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
  GC_OK = 0,
  GC_ERROR_INPUT = 1,    /* a tensor has a wrong dtype, rank, dimension or value */
  GC_ERROR_USE = 2,      /* a wrong argument: unknown function, NULL, context already in use */
  GC_ERROR_ARTIFACT = 3, /* the artifact is missing, damaged or made for another machine */
  GC_ERROR_MEMORY = 4,   /* memory or threads cannot be had */
  GC_ERROR_KERNEL = 5,   /* a kernel refused to run: a fault of the compiler */
  GC_ERROR_DEVICE = 6,   /* the accelerator is missing, too small, or failed */
  GC_ERROR_FULL = 7,     /* a cache has too few free pages: free sequences, then try again */
  GC_ERROR_NUMBERS = 8   /* logits are not numbers */
} gc_status;

/* What went wrong: one or two lines in lower case, always terminated. */
typedef struct {
  int32_t code; /* gc_status */
  char message[1020];
} gc_error;

typedef struct gc_model gc_model;
typedef struct gc_context gc_context;

/* Zero every field that is not used; `size` is sizeof(gc_options) of the header that was included,
 * so that later versions can add fields. */
typedef struct {
  size_t size;
  int32_t threads; /* threads of each context with the caller's; 0: physical cores allowed */
  int32_t spin_us; /* how long idle workers stay hot before they sleep; 0: 200, negative: never */
  const int32_t *cpus; /* worker i (the caller is 0) is pinned to cpus[i % n_cpus]; NULL: free */
  int32_t n_cpus;
  int32_t check_weights; /* not 0: checksum every weight when opening, not just index tables */
  const char *weights;   /* weights file, when it is not <dir>/weights.bin */
} gc_options;

/* A symbolic dimension and its bounds, both included; `upper` is INT64_MAX when there is none. */
typedef struct {
  const char *name;
  int64_t lower;
  int64_t upper;
} gc_dim;

/* An input or output. */
typedef struct {
  const char *name;
  DLDataType dtype;
  int32_t ndim;
  const int64_t *shape;    /* [ndim], -1 where it depends on symbolic dimensions */
  const char *const *dims; /* [ndim] as text: "384", "batch", "2*sequence" */
  int64_t low, high;       /* allowed values of an index input; low > high when anything goes */
} gc_port;

/* An exported function. */
typedef struct {
  const char *name;
  int32_t n_inputs, n_outputs, n_dims;
  const gc_port *inputs;
  const gc_port *outputs;
  const gc_dim *dims;
} gc_function;

/* Opens the artifact in directory `dir`; `options` may be NULL. Maps the weights read-only and
 * checks them, and that this CPU has what the kernels need. NULL on failure. */
GC_API gc_model *gc_open(const char *dir, const gc_options *options, gc_error *error);

/* Gives the model up; its memory goes when its last context is destroyed. NULL is allowed. */
GC_API void gc_close(gc_model *model);

/* The exported functions; gc_function_at gives NULL when `index` is out of range, and
 * gc_function_named when there is no such name. Valid for as long as the library is loaded. */
GC_API int32_t gc_function_count(const gc_model *model);
GC_API const gc_function *gc_function_at(const gc_model *model, int32_t index);
GC_API const gc_function *gc_function_named(const gc_model *model, const char *name);

/* A context with its own threads and activations; NULL on failure. */
GC_API gc_context *gc_context_create(gc_model *model, gc_error *error);

/* Ends the context's threads and frees its memory, outputs included. NULL is allowed. */
GC_API void gc_context_destroy(gc_context *context);

/* How many threads the context uses, the caller's included. */
GC_API int32_t gc_context_threads(const gc_context *context);

/* Runs `function` on `n_in` inputs, in the order of gc_function.inputs, and fills `n_out` outputs.
 *
 * An input that is not compact or not aligned to 64 bytes is copied first. An output whose `data`
 * is NULL is given memory, shape and strides that belong to the context and stay valid until its
 * next gc_run; otherwise shape, dtype and strides must be set and the result is written there.
 * An output must not overlap another output; it may overlap an input.
 * Returns GC_OK or what is in error->code. A run whose dimensions equal the last run's of that
 * function allocates nothing. */
GC_API int gc_run(gc_context *context, const char *function, const DLTensor *inputs, int32_t n_in,
                  DLTensor *outputs, int32_t n_out, gc_error *error);

/* Gives outputs[i] dtype, rank, shape and strides for inputs of the given shapes, whose data is not
 * looked at. The shapes belong to the context and are valid until its next call. A dimension that
 * depends on the values of the inputs is -1, and the strides of such an output are NULL: let gc_run
 * give it memory (`data` NULL) and read its shape afterwards. */
GC_API int gc_infer_shapes(gc_context *context, const char *function, const DLTensor *inputs,
                           int32_t n_in, DLTensor *outputs, int32_t n_out, gc_error *error);

/* What the calls of one kernel at one place of a function took since gc_profile. `bytes` are those
 * of all its tensors in the last run, `flops` its floating-point or integer operations, -1 when
 * they are not known. Names are valid for as long as the library is loaded. */
typedef struct {
  const char *kernel;
  int64_t calls, nanoseconds, fastest;
  int64_t bytes, flops;
} gc_kernel_time;

/* Starts to time every kernel of the context's later runs, from zero. */
GC_API int gc_profile(gc_context *context, gc_error *error);

/* Fills up to `capacity` rows in run order; returns how many there are, 0 when nothing was timed or
 * there is no such function. */
GC_API int32_t gc_kernel_times(const gc_context *context, const char *function,
                               gc_kernel_time *times, int32_t capacity);

/* ---- Language models: sequences of tokens whose keys and values are kept in pages ----
 *
 * A cache holds the pages of many sequences. It may be used by one thread at a time (a second one
 * gets GC_ERROR_USE), and steps may be made in any context of its model. */
typedef struct gc_cache gc_cache;

/* Names a sequence of one cache; never 0, and not used again after gc_sequence_free. */
typedef int64_t gc_sequence;

/* What a model is like; `size` is sizeof(gc_language) of the header that was included. */
typedef struct {
  size_t size;
  int64_t vocabulary;      /* tokens are 0 to vocabulary - 1 */
  int64_t max_context;     /* tokens that a sequence may have */
  int64_t page_size;       /* tokens of a page */
  int64_t bytes_per_token; /* of a cache */
} gc_language;
GC_API int gc_language_info(const gc_model *model, gc_language *language, gc_error *error);

/* Zero every field that is not used. The capacity is the smaller of `tokens` and `bytes` where both
 * are given; with neither it is one sequence of max_context tokens, but at most half of this
 * machine's memory. A capacity of less than `context` tokens is refused. */
typedef struct {
  size_t size;    /* sizeof(gc_cache_options) */
  int64_t tokens; /* rounded up to whole pages */
  int64_t bytes;  /* memory for pages */
  int64_t context;
} gc_cache_options;

/* Memory is set aside, and used when pages are first written. NULL on failure. */
GC_API gc_cache *gc_cache_create(gc_model *model, const gc_cache_options *options, gc_error *error);

/* Frees the pages of all sequences. NULL is allowed. */
GC_API void gc_cache_destroy(gc_cache *cache);

/* Pages are in use, or free; `pages_kept` are those of the free ones that still hold a prefix which
 * gc_sequence_reuse may find. */
typedef struct {
  size_t size; /* sizeof(gc_cache_stats) */
  int64_t pages_total, pages_free, pages_kept;
  int64_t bytes;            /* memory set aside for pages */
  int64_t sequences;        /* alive */
  int64_t tokens_held;      /* in pages that are in use, shared ones counted once */
  int64_t tokens_reused;    /* found by gc_sequence_reuse so far */
  int64_t pages_evicted;    /* kept prefixes given up so far */
  int64_t pages_copied;     /* on write to a shared page, so far */
} gc_cache_stats;
GC_API int gc_cache_get_stats(gc_cache *cache, gc_cache_stats *stats, gc_error *error);

/* A new empty sequence; 0 on failure. */
GC_API gc_sequence gc_sequence_create(gc_cache *cache, gc_error *error);

/* A copy that shares all pages: the first to write to a shared page copies it. 0 on failure. */
GC_API gc_sequence gc_sequence_fork(gc_cache *cache, gc_sequence sequence, gc_error *error);

/* Gives up a sequence; its full pages are kept as prefixes until their memory is needed. */
GC_API int gc_sequence_free(gc_cache *cache, gc_sequence sequence, gc_error *error);

/* How many tokens it has; -1 on failure. */
GC_API int64_t gc_sequence_length(gc_cache *cache, gc_sequence sequence, gc_error *error);

/* Makes an empty sequence begin with as many of `tokens` as whole pages hold already, at most
 * n_tokens - 1: the last one must be stepped for its logits. Returns how many; -1 on failure. */
GC_API int64_t gc_sequence_reuse(gc_cache *cache, gc_sequence sequence, const int32_t *tokens,
                                 int64_t n_tokens, gc_error *error);

/* Appends counts[i] tokens to sequences[i], for n sequences that are all different; `tokens` are
 * those of the first sequence, then of the second, and so on. wanted[i] is which rows of logits a
 * sequence gets: 0 none, 1 its last token's, -1 all of its tokens'. *logits is [*n_rows, vocabulary]
 * in the order of the tokens, belongs to the context and is valid until its next call.
 * All or nothing: after a failure every sequence is as it was. */
GC_API int gc_step(gc_context *context, gc_cache *cache, int32_t n, const gc_sequence *sequences,
                   const int32_t *counts, const int32_t *tokens, const int32_t *wanted,
                   const float **logits, int64_t *n_rows, gc_error *error);

/* How a token is drawn. gc_sampling_defaults gives values that switch everything off. */
typedef struct {
  size_t size;              /* sizeof(gc_sampling) */
  uint64_t seed;            /* the same seed, counter and logits give the same token */
  float temperature;        /* 0: the largest logit */
  int32_t top_k;            /* 0: off */
  float top_p;              /* 1: off */
  float min_p;              /* 0: off */
  float typical_p;          /* 1: off */
  float repetition_penalty; /* 1: off; of every token of the history */
  float frequency_penalty;  /* 0: off; of the answer's tokens, for each occurrence */
  float presence_penalty;   /* 0: off; of the answer's tokens, once */
  int32_t n_bias;
  const int32_t *bias_tokens; /* [n_bias] */
  const float *bias;          /* [n_bias] added to their logits */
} gc_sampling;
GC_API gc_sampling gc_sampling_defaults(void);

/* Draws a token from logits [vocabulary]. `history` are the tokens so far, of which the last
 * `n_answer` are the answer's. The draw depends on seed and counter only, not on earlier calls.
 * *logprob is the token's log-probability under the softmax of the logits as they are given. */
GC_API int gc_sample(const float *logits, int64_t vocabulary, const gc_sampling *sampling,
                     const int32_t *history, int64_t n_history, int64_t n_answer, uint64_t counter,
                     int32_t *token, float *logprob, gc_error *error);

#ifdef __cplusplus
}
#endif
#endif

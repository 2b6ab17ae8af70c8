/* batch.c: one step of several sequences: pages for the new tokens, the function's inputs, its run.
 *
 * Until the run has succeeded nothing is final: pages that were taken are given back, and pages
 * copied on write are exchanged again. What kernels wrote then lies behind every sequence's end. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

enum { N_INPUTS = 7, TABLE_STEP = 8 }; /* rows of the page table: a multiple of this many pages */

typedef struct {
  gc_sequence_record *record;
  int32_t count, wanted;
  int32_t old_pages;
  int32_t shared; /* the page that was copied on write, or GC_NO_PAGE */
} gc_part;

typedef struct gc_batch {
  gc_part *parts;
  size_t n_parts;
  gc_block memory; /* of the inputs */
  int32_t *tokens, *positions, *rows, *slots, *starts, *lengths, *table;
  int64_t n_tokens, n_rows, width;
  DLTensor *inputs;
  int64_t (*cache_shapes)[4];
  gc_block gathered; /* logits of a model that takes one sequence at a time */
} gc_batch;

void gc_batch_destroy(gc_batch *batch) {
  if (!batch) return;
  free(batch->parts);
  free(batch->memory.data);
  free(batch->inputs);
  free(batch->cache_shapes);
  free(batch->gathered.data);
  free(batch);
}

static int no_memory(gc_error *error) {
  return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
}

static int grow(gc_block *block, size_t bytes, gc_error *error) {
  if (bytes <= block->bytes) return GC_OK;
  free(block->data);
  *block = (gc_block){0};
  if (posix_memalign(&block->data, GC_ALIGNMENT, bytes)) {
    block->data = NULL;
    return no_memory(error);
  }
  block->bytes = bytes;
  return GC_OK;
}

static int prepare(gc_cache *cache, size_t n, gc_error *error) {
  if (!cache->batch) cache->batch = calloc(1, sizeof *cache->batch);
  gc_batch *batch = cache->batch;
  if (!batch) return no_memory(error);
  const gc_function_plan *plan = cache->plan;
  if (!batch->inputs) batch->inputs = calloc((size_t)plan->info.n_inputs, sizeof *batch->inputs);
  if (!batch->cache_shapes)
    batch->cache_shapes = calloc((size_t)plan->n_caches, sizeof *batch->cache_shapes);
  if (!batch->inputs || !batch->cache_shapes) return no_memory(error);
  if (n <= batch->n_parts) return GC_OK;
  gc_part *parts = realloc(batch->parts, n * sizeof *parts);
  if (!parts) return no_memory(error);
  batch->parts = parts;
  batch->n_parts = n;
  return GC_OK;
}

/* Everything that a caller can get wrong. */
static int check_part(gc_cache *cache, gc_part *part, gc_sequence sequence, int32_t i,
                      const int32_t *tokens, gc_error *error) {
  const gc_decoder_plan *decoder = cache->decoder;
  gc_sequence_record *record = part->record = gc_sequence_find(cache, sequence, error);
  if (!record) return GC_ERROR_USE;
  if (record->step == cache->last_step)
    return gc_fail(error, GC_ERROR_USE, "sequence %" PRId64 " is in this step twice", sequence);
  record->step = cache->last_step;
  if (part->count < 1)
    return gc_fail(error, GC_ERROR_INPUT, "chunk %d has %d tokens, expected at least one", i,
                   part->count);
  if (part->wanted < -1 || part->wanted > 1)
    return gc_fail(error, GC_ERROR_USE, "chunk %d wants logits %d, expected 0, 1 or -1", i,
                   part->wanted);
  if (record->length + part->count > decoder->max_context)
    return gc_fail(error, GC_ERROR_INPUT,
                   "chunk %d: %" PRId64 " tokens and %d more are %" PRId64
                   ", but the model's context is %" PRId64,
                   i, record->length, part->count, record->length + part->count,
                   decoder->max_context);
  for (int32_t t = 0; t < part->count; t++) {
    if (tokens[t] < 0 || tokens[t] >= decoder->vocabulary)
      return gc_fail(error, GC_ERROR_INPUT,
                     "chunk %d: token %d is %d, expected 0 to %" PRId64, i, t, tokens[t],
                     decoder->vocabulary - 1);
  }
  return GC_OK;
}

static int32_t pages_for(int64_t tokens) {
  return (int32_t)((tokens + GC_PAGE - 1) / GC_PAGE);
}

/* The last page is written next, and others have it too. */
static bool must_copy(const gc_cache *cache, const gc_sequence_record *record) {
  return record->length % GC_PAGE != 0 &&
         cache->pages[record->pages[record->n_pages - 1]].references > 1;
}

static int full(const gc_cache *cache, int32_t n, int64_t needed, gc_error *error) {
  return gc_fail(error, GC_ERROR_FULL,
                 "the cache is full: %d sequences need %" PRId64 " more pages of %d tokens, but %d "
                 "of %d are free: free a sequence, step fewer tokens, or make the cache larger",
                 n, needed, GC_PAGE, cache->n_free + cache->n_kept, cache->n_pages);
}

static int reserve_part(gc_cache *cache, gc_part *part, gc_error *error) {
  gc_sequence_record *record = part->record;
  int32_t pages = pages_for(record->length + part->count);
  if (!gc_sequence_make_room(record, pages)) return no_memory(error);
  if (must_copy(cache, record)) {
    int32_t copy = gc_page_take(cache), *last = &record->pages[record->n_pages - 1];
    if (copy == GC_NO_PAGE) return GC_ERROR_FULL;
    gc_page_copy(cache, copy, *last);
    cache->pages_copied++;
    part->shared = *last;
    cache->pages[*last].references--; /* not to 0: it is shared */
    *last = copy;
  }
  while (record->n_pages < pages) {
    int32_t page = gc_page_take(cache);
    if (page == GC_NO_PAGE) return GC_ERROR_FULL;
    record->pages[record->n_pages++] = page;
  }
  return GC_OK;
}

static void roll_back(gc_cache *cache, int32_t n) {
  for (int32_t i = n; i-- > 0;) {
    const gc_part *part = &cache->batch->parts[i];
    gc_sequence_record *record = part->record;
    while (record->n_pages > part->old_pages)
      gc_page_release(cache, record->pages[--record->n_pages]);
    if (part->shared == GC_NO_PAGE) continue;
    gc_page_release(cache, record->pages[record->n_pages - 1]);
    record->pages[record->n_pages - 1] = part->shared;
    cache->pages[part->shared].references++;
  }
}

static int reserve(gc_cache *cache, int32_t n, gc_error *error) {
  gc_part *parts = cache->batch->parts;
  int64_t needed = 0;
  for (int32_t i = 0; i < n; i++) {
    const gc_sequence_record *record = parts[i].record;
    parts[i].old_pages = record->n_pages;
    parts[i].shared = GC_NO_PAGE;
    needed += pages_for(record->length + parts[i].count) - record->n_pages;
    needed += must_copy(cache, record);
  }
  for (int32_t i = 0; i < n; i++) {
    int code = reserve_part(cache, &parts[i], error);
    if (!code) continue;
    roll_back(cache, i + 1);
    return code == GC_ERROR_FULL ? full(cache, n, needed, error) : code;
  }
  return GC_OK;
}

/* Room for the inputs of `n` parts, each array aligned. */
static int lay_out(gc_batch *batch, const gc_part *parts, int32_t n, gc_error *error) {
  int64_t tokens = 0, rows = 0, pages = 1;
  for (int32_t i = 0; i < n; i++) {
    tokens += parts[i].count;
    rows += parts[i].wanted < 0 ? parts[i].count : parts[i].wanted;
    if (parts[i].record->n_pages > pages) pages = parts[i].record->n_pages;
  }
  batch->n_tokens = tokens;
  batch->n_rows = rows;
  batch->width = (pages + TABLE_STEP - 1) / TABLE_STEP * TABLE_STEP;
  int32_t **const arrays[N_INPUTS] = {&batch->tokens, &batch->positions, &batch->rows,
                                      &batch->slots,  &batch->starts,    &batch->lengths,
                                      &batch->table};
  const int64_t sizes[N_INPUTS] = {tokens, tokens, rows ? rows : 1, tokens,
                                   n + 1,  n,      n * batch->width};
  size_t offsets[N_INPUTS], total = 0;
  for (int i = 0; i < N_INPUTS; i++) {
    offsets[i] = total;
    total += ((size_t)sizes[i] * sizeof(int32_t) + GC_ALIGNMENT - 1) / GC_ALIGNMENT * GC_ALIGNMENT;
  }
  int code = grow(&batch->memory, total, error);
  for (int i = 0; i < N_INPUTS && !code; i++)
    *arrays[i] = (int32_t *)((char *)batch->memory.data + offsets[i]);
  return code;
}

static void fill_inputs(gc_batch *batch, const gc_part *parts, int32_t n, const int32_t *tokens) {
  int32_t t = 0, row = 0;
  memcpy(batch->tokens, tokens, (size_t)batch->n_tokens * sizeof *tokens);
  batch->rows[0] = 0; /* one row is computed where none is wanted */
  for (int32_t i = 0; i < n; i++) {
    const gc_part *part = &parts[i];
    const gc_sequence_record *record = part->record;
    int32_t *table = batch->table + i * batch->width;
    for (int64_t p = 0; p < batch->width; p++)
      table[p] = record->pages[p < record->n_pages ? p : 0];
    batch->starts[i] = t;
    for (int32_t k = 0; k < part->count; k++, t++) {
      int64_t position = record->length + k;
      batch->positions[t] = (int32_t)position;
      batch->slots[t] =
          record->pages[position / GC_PAGE] * GC_PAGE + (int32_t)(position % GC_PAGE);
      if (part->wanted < 0 || (part->wanted > 0 && k == part->count - 1)) batch->rows[row++] = t;
    }
    batch->lengths[i] = (int32_t)(record->length + part->count);
  }
  batch->starts[n] = t;
}

static const DLDataType INT32 = {kDLInt, 32, 1};

/* Runs the function on some of the parts; the logits are the context's. */
static int run(gc_context *context, gc_cache *cache, const gc_part *parts, int32_t n,
               const int32_t *tokens, DLTensor *logits, gc_error *error) {
  gc_batch *batch = cache->batch;
  int code = lay_out(batch, parts, n, error);
  if (code) return code;
  fill_inputs(batch, parts, n, tokens);
  int64_t shapes[N_INPUTS][2] = {{batch->n_tokens, 0},
                                 {batch->n_tokens, 0},
                                 {batch->n_rows ? batch->n_rows : 1, 0},
                                 {batch->n_tokens, 0},
                                 {n + 1, 0},
                                 {n, 0},
                                 {n, batch->width}};
  int32_t *const data[N_INPUTS] = {batch->tokens, batch->positions, batch->rows, batch->slots,
                                   batch->starts, batch->lengths,   batch->table};
  for (int i = 0; i < N_INPUTS; i++)
    batch->inputs[i] = (DLTensor){.data = data[i],
                                  .device = {kDLCPU, 0},
                                  .ndim = i == N_INPUTS - 1 ? 2 : 1,
                                  .dtype = INT32,
                                  .shape = shapes[i]};
  const gc_function_plan *plan = cache->plan;
  for (int32_t i = 0; i < plan->n_caches; i++) {
    const gc_port *port = &plan->info.inputs[N_INPUTS + i];
    int64_t *shape = batch->cache_shapes[i];
    memcpy(shape, port->shape, sizeof batch->cache_shapes[i]);
    shape[0] = cache->n_pages;
    batch->inputs[N_INPUTS + i] = (DLTensor){.data = cache->memory[i],
                                             .device = {kDLCPU, 0},
                                             .ndim = 4,
                                             .dtype = port->dtype,
                                             .shape = shape};
  }
  *logits = (DLTensor){0};
  gc_binding *binding = &context->bindings[cache->decoder->function];
  return gc_run_binding(context, binding, batch->inputs, logits, error);
}

/* A model that takes one sequence at a time: its logits, gathered. */
static int run_each(gc_context *context, gc_cache *cache, int32_t n, const int32_t *tokens,
                    const float **logits, int64_t *n_rows, gc_error *error) {
  gc_batch *batch = cache->batch;
  size_t row_bytes = (size_t)cache->decoder->vocabulary * sizeof(float), rows = 0;
  for (int32_t i = 0; i < n; i++)
    rows += (size_t)(batch->parts[i].wanted < 0 ? batch->parts[i].count : batch->parts[i].wanted);
  int code = grow(&batch->gathered, rows * row_bytes, error);
  *n_rows = 0;
  for (int32_t i = 0; i < n && !code; i++) {
    DLTensor one;
    code = run(context, cache, &batch->parts[i], 1, tokens, &one, error);
    if (code) break;
    char *target = (char *)batch->gathered.data + row_bytes * (size_t)*n_rows;
    if (batch->n_rows) memcpy(target, one.data, row_bytes * (size_t)batch->n_rows);
    *n_rows += batch->n_rows;
    tokens += batch->parts[i].count;
  }
  *logits = batch->gathered.data;
  return code;
}

/* Now the new tokens are the sequences'; pages that are full can be found. */
static void commit(gc_cache *cache, int32_t n, const int32_t *tokens) {
  for (int32_t i = 0; i < n; i++) {
    gc_sequence_record *record = cache->batch->parts[i].record;
    for (int32_t k = 0; k < cache->batch->parts[i].count; k++, record->length++) {
      int64_t number = record->length / GC_PAGE;
      gc_page *page = &cache->pages[record->pages[number]];
      page->tokens[page->used++] = *tokens++;
      if (page->used < GC_PAGE) continue;
      uint64_t before = number > 0 ? cache->pages[record->pages[number - 1]].self : 0;
      gc_prefix_add(cache, record->pages[number], before);
    }
  }
}

static int step(gc_context *context, gc_cache *cache, int32_t n, const gc_sequence *sequences,
                const int32_t *counts, const int32_t *tokens, const int32_t *wanted,
                const float **logits, int64_t *n_rows, gc_error *error) {
  int code = prepare(cache, (size_t)n, error);
  cache->last_step = cache->last_step == INT32_MAX ? 1 : cache->last_step + 1;
  int64_t total = 0;
  for (int32_t i = 0; i < n && !code; i++) {
    gc_part *part = &cache->batch->parts[i];
    *part = (gc_part){.count = counts[i], .wanted = wanted[i]};
    code = check_part(cache, part, sequences[i], i, tokens + total, error);
    total += counts[i];
  }
  if (!code && total > INT32_MAX) code = gc_fail(error, GC_ERROR_INPUT, "too many tokens");
  if (!code) code = reserve(cache, n, error);
  if (code) return code;
  if (cache->decoder->ragged) {
    DLTensor result;
    code = run(context, cache, cache->batch->parts, n, tokens, &result, error);
    *logits = result.data;
    *n_rows = cache->batch->n_rows;
  } else {
    code = run_each(context, cache, n, tokens, logits, n_rows, error);
  }
  if (code)
    roll_back(cache, n);
  else
    commit(cache, n, tokens);
  return code;
}

int gc_step(gc_context *context, gc_cache *cache, int32_t n, const gc_sequence *sequences,
            const int32_t *counts, const int32_t *tokens, const int32_t *wanted,
            const float **logits, int64_t *n_rows, gc_error *error) {
  gc_error own;
  if (!error) error = &own;
  int code = gc_cache_enter(cache, error);
  if (code) return code;
  code = gc_context_enter(context, error);
  if (code) return gc_cache_leave(cache, code);
  if (context->model != cache->model)
    code = gc_fail(error, GC_ERROR_USE, "the context and the cache are of two models");
  else if (n < 1 || !sequences || !counts || !tokens || !wanted || !logits || !n_rows)
    code = gc_fail(error, GC_ERROR_USE, "no sequences to step, or an argument is NULL");
  else
    code = step(context, cache, n, sequences, counts, tokens, wanted, logits, n_rows, error);
  gc_context_leave(context, code);
  return gc_cache_leave(cache, code);
}

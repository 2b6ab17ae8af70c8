/* cache.c: the memory of a paged cache, and which of its pages are free, in use or kept. */
#define _GNU_SOURCE
#include "cache.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MEGABYTE = 1 << 20 };

/* The size of one token's or one page's entries: shape [pages, 16, heads, width]. */
static size_t page_bytes(const gc_port *port) {
  int64_t shape[4] = {1, port->shape[1], port->shape[2], port->shape[3]};
  return gc_tensor_bytes(port->dtype, 4, shape);
}

static const gc_port *cache_port(const gc_function_plan *plan, int32_t i) {
  return &plan->info.inputs[plan->info.n_inputs - plan->n_caches + i];
}

static size_t all_page_bytes(const gc_function_plan *plan) {
  size_t bytes = 0;
  for (int32_t i = 0; i < plan->n_caches; i++) bytes += page_bytes(cache_port(plan, i));
  return bytes;
}

static int find_decoder(const gc_model *model, const gc_function_plan **plan, gc_error *error) {
  if (!model) return gc_fail(error, GC_ERROR_USE, "no model given");
  const gc_program *program = model->program;
  if (!program->decoder)
    return gc_fail(error, GC_ERROR_USE,
                   "this model is no language model with a cache: run it with gc_run");
  *plan = &program->functions[program->decoder->function];
  return GC_OK;
}

int gc_language_info(const gc_model *model, gc_language *language, gc_error *error) {
  const gc_function_plan *plan;
  if (error) *error = (gc_error){0};
  if (!language || language->size < sizeof language->size || language->size > 4096)
    return gc_fail(error, GC_ERROR_USE, "gc_language.size must be sizeof(gc_language)");
  int code = find_decoder(model, &plan, error);
  if (code) return code;
  const gc_decoder_plan *decoder = model->program->decoder;
  gc_language own = {
      .size = language->size,
      .vocabulary = decoder->vocabulary,
      .max_context = decoder->max_context,
      .page_size = decoder->page_size,
      .bytes_per_token = (int64_t)(all_page_bytes(plan) / (size_t)decoder->page_size),
  };
  memcpy(language, &own, language->size < sizeof own ? language->size : sizeof own);
  return GC_OK;
}

/* How many pages the options ask for, or an error that shows the arithmetic. */
static int choose_pages(const gc_decoder_plan *decoder, size_t bytes_each,
                        const gc_cache_options *given, int64_t *pages, gc_error *error) {
  gc_cache_options own = {.size = sizeof own};
  if (given) {
    if (given->size < sizeof given->size || given->size > 4096)
      return gc_fail(error, GC_ERROR_USE, "gc_cache_options.size is %zu, expected %zu", given->size,
                     sizeof own);
    memcpy(&own, given, given->size < sizeof own ? given->size : sizeof own);
  }
  if (own.tokens < 0 || own.bytes < 0 || own.context < 0)
    return gc_fail(error, GC_ERROR_USE, "a field of gc_cache_options is below 0");
  int64_t size = decoder->page_size, each = (int64_t)bytes_each, most = INT32_MAX / GC_PAGE; /* slots are int32 */
  int64_t by_tokens = own.tokens / size + (own.tokens % size != 0);
  int64_t by_bytes = own.bytes / each;
  if (own.tokens && own.bytes)
    *pages = by_tokens < by_bytes ? by_tokens : by_bytes;
  else if (own.tokens || own.bytes)
    *pages = own.tokens ? by_tokens : by_bytes;
  else {
    int64_t half = (int64_t)sysconf(_SC_PHYS_PAGES) / 2 * sysconf(_SC_PAGESIZE) / each;
    *pages = (decoder->max_context + size - 1) / size;
    if (*pages > half) *pages = half;
  }
  if (*pages > most) *pages = most;
  int64_t needed = own.context ? (own.context + size - 1) / size : 1;
  if (*pages >= needed) return GC_OK;
  return gc_fail(error, GC_ERROR_USE,
                 "a context of %" PRId64 " tokens needs %" PRId64 " pages of %" PRId64
                 " tokens, %" PRId64 " x %.3f MB = %.1f MB, but the budget gives %" PRId64
                 " pages = %" PRId64 " tokens = %.1f MB: give more, or a shorter context",
                 own.context ? own.context : 1, needed, size, needed, (double)each / MEGABYTE,
                 (double)needed * (double)each / MEGABYTE, *pages, *pages * size,
                 (double)*pages * (double)each / MEGABYTE);
}

/* Anonymous memory: zeros, and not used before it is written. */
static void *map(size_t bytes) {
  void *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE); /* a hint: pages are read in no order, TLBs are small */
#endif
  return memory;
}

static int fill_cache(gc_cache *cache, gc_error *error) {
  const gc_function_plan *plan = cache->plan;
  uint32_t buckets = 1;
  while (buckets < (uint32_t)cache->n_pages) buckets *= 2;
  cache->pages = calloc((size_t)cache->n_pages, sizeof *cache->pages);
  cache->buckets = malloc(buckets * sizeof *cache->buckets);
  cache->page_bytes = calloc((size_t)plan->n_caches, sizeof *cache->page_bytes);
  cache->memory = calloc((size_t)plan->n_caches, sizeof *cache->memory);
  if (!cache->pages || !cache->buckets || !cache->page_bytes || !cache->memory)
    return gc_fail(error, GC_ERROR_MEMORY, "out of memory");
  cache->bucket_mask = buckets - 1;
  for (uint32_t i = 0; i < buckets; i++) cache->buckets[i] = GC_NO_PAGE;
  for (int32_t i = 0; i < plan->n_caches; i++) {
    cache->page_bytes[i] = page_bytes(cache_port(plan, i));
    size_t bytes;
    if (__builtin_mul_overflow(cache->page_bytes[i], (size_t)cache->n_pages, &bytes) ||
        !(cache->memory[i] = map(bytes)))
      return gc_fail(error, GC_ERROR_MEMORY, "out of memory: a cache of %d pages needs %.1f MB",
                     cache->n_pages,
                     (double)all_page_bytes(plan) * cache->n_pages / MEGABYTE);
  }
  cache->oldest = cache->newest = GC_NO_PAGE;
  cache->free_page = 0;
  cache->n_free = cache->n_pages;
  for (int32_t i = 0; i < cache->n_pages; i++)
    cache->pages[i].next = i + 1 < cache->n_pages ? i + 1 : GC_NO_PAGE;
  return GC_OK;
}

gc_cache *gc_cache_create(gc_model *model, const gc_cache_options *options, gc_error *error) {
  const gc_function_plan *plan;
  int64_t pages = 0;
  if (error) *error = (gc_error){0};
  if (find_decoder(model, &plan, error) ||
      choose_pages(model->program->decoder, all_page_bytes(plan), options, &pages, error))
    return NULL;
  gc_cache *cache = calloc(1, sizeof *cache);
  if (!cache) {
    gc_fail(error, GC_ERROR_MEMORY, "out of memory");
    return NULL;
  }
  atomic_fetch_add(&model->references, 1);
  atomic_flag_clear(&cache->busy);
  cache->model = model;
  cache->decoder = model->program->decoder;
  cache->plan = plan;
  cache->n_pages = (int32_t)pages;
  if (!fill_cache(cache, error)) return cache;
  gc_cache_destroy(cache);
  return NULL;
}

void gc_cache_destroy(gc_cache *cache) {
  if (!cache) return;
  for (int32_t i = 0; cache->memory && i < cache->plan->n_caches; i++)
    if (cache->memory[i]) munmap(cache->memory[i], cache->page_bytes[i] * (size_t)cache->n_pages);
  for (int32_t i = 0; i < cache->n_sequences; i++) free(cache->sequences[i].pages);
  gc_batch_destroy(cache->batch);
  gc_model_release(cache->model);
  free(cache->sequences);
  free(cache->pages);
  free(cache->buckets);
  free(cache->page_bytes);
  free(cache->memory);
  free(cache);
}

int gc_cache_enter(gc_cache *cache, gc_error *error) {
  if (error) *error = (gc_error){0};
  if (!cache) return gc_fail(error, GC_ERROR_USE, "no cache given");
  if (atomic_flag_test_and_set_explicit(&cache->busy, memory_order_acquire))
    return gc_fail(error, GC_ERROR_USE, "this cache is in use by another thread");
  return GC_OK;
}

int gc_cache_leave(gc_cache *cache, int code) {
  atomic_flag_clear_explicit(&cache->busy, memory_order_release);
  return code;
}

int gc_cache_get_stats(gc_cache *cache, gc_cache_stats *stats, gc_error *error) {
  int code = gc_cache_enter(cache, error);
  if (code) return code;
  if (!stats || stats->size < sizeof stats->size || stats->size > 4096)
    return gc_cache_leave(cache, gc_fail(error, GC_ERROR_USE,
                                         "gc_cache_stats.size must be sizeof(gc_cache_stats)"));
  gc_cache_stats own = {
      .size = stats->size,
      .pages_total = cache->n_pages,
      .pages_free = cache->n_free + cache->n_kept,
      .pages_kept = cache->n_kept,
      .bytes = (int64_t)all_page_bytes(cache->plan) * cache->n_pages,
      .tokens_reused = cache->tokens_reused,
      .pages_evicted = cache->pages_evicted,
      .pages_copied = cache->pages_copied,
  };
  for (int32_t i = 0; i < cache->n_sequences; i++) own.sequences += cache->sequences[i].serial != 0;
  for (int32_t i = 0; i < cache->n_pages; i++)
    if (cache->pages[i].references > 0) own.tokens_held += cache->pages[i].used;
  memcpy(stats, &own, stats->size < sizeof own ? stats->size : sizeof own);
  return gc_cache_leave(cache, GC_OK);
}

/* The kept pages are a list from the oldest to the newest. */
static void unlink_kept(gc_cache *cache, int32_t page) {
  gc_page *p = &cache->pages[page];
  *(p->older != GC_NO_PAGE ? &cache->pages[p->older].newer : &cache->oldest) = p->newer;
  *(p->newer != GC_NO_PAGE ? &cache->pages[p->newer].older : &cache->newest) = p->older;
  cache->n_kept--;
}

static void link_kept(gc_cache *cache, int32_t page) {
  gc_page *p = &cache->pages[page];
  p->older = cache->newest;
  p->newer = GC_NO_PAGE;
  *(p->older != GC_NO_PAGE ? &cache->pages[p->older].newer : &cache->oldest) = page;
  cache->newest = page;
  cache->n_kept++;
}

int32_t gc_page_take(gc_cache *cache) {
  int32_t page = cache->free_page;
  if (page != GC_NO_PAGE) {
    cache->free_page = cache->pages[page].next;
    cache->n_free--;
  } else {
    page = cache->oldest;
    if (page == GC_NO_PAGE) return GC_NO_PAGE;
    unlink_kept(cache, page);
    gc_prefix_remove(cache, page);
    cache->pages_evicted++;
  }
  gc_page *p = &cache->pages[page];
  p->references = 1;
  p->used = 0;
  p->before = p->self = 0;
  return page;
}

void gc_page_hold(gc_cache *cache, int32_t page) {
  gc_page *p = &cache->pages[page];
  if (p->references++ == 0) unlink_kept(cache, page);
}

void gc_page_release(gc_cache *cache, int32_t page) {
  gc_page *p = &cache->pages[page];
  if (--p->references > 0) return;
  if (p->findable) {
    link_kept(cache, page);
    return;
  }
  p->next = cache->free_page;
  cache->free_page = page;
  cache->n_free++;
}

void gc_page_copy(gc_cache *cache, int32_t target, int32_t source) {
  for (int32_t i = 0; i < cache->plan->n_caches; i++) {
    char *memory = cache->memory[i];
    size_t bytes = cache->page_bytes[i];
    memcpy(memory + bytes * (size_t)target, memory + bytes * (size_t)source, bytes);
  }
  gc_page *to = &cache->pages[target];
  const gc_page *from = &cache->pages[source];
  memcpy(to->tokens, from->tokens, sizeof to->tokens);
  to->used = from->used;
}

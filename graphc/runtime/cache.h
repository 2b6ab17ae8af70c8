/* cache.h: what the files of the paged cache share.
 *
 * A page is free, in use (references > 0), or kept: full, in no sequence, but findable as a prefix.
 * Full pages are never written again. Their content has an identity: two pages have the same one
 * exactly when they and all pages before them hold the same tokens. */
#ifndef GRAPHC_CACHE_H_
#define GRAPHC_CACHE_H_

#include "internal.h"

enum { GC_PAGE = 16, GC_NO_PAGE = -1 };

typedef struct {
  int32_t references;    /* sequences that it belongs to */
  int32_t older, newer;  /* neighbours among the kept pages */
  int32_t next;          /* in its bucket of the prefix table, or on the free list */
  int32_t used;          /* tokens in it */
  bool findable;         /* in the prefix table */
  uint64_t before, self; /* identities of the content before it and up to its end; 0: none */
  int32_t tokens[GC_PAGE];
} gc_page;

typedef struct {
  int32_t serial; /* of the sequence that has this place; 0: nobody */
  int32_t step;   /* number of the last step that named it, to see it twice */
  int64_t length;
  int32_t n_pages, room;
  int32_t *pages;
} gc_sequence_record;

struct gc_cache {
  gc_model *model;
  const gc_decoder_plan *decoder;
  const gc_function_plan *plan;
  atomic_flag busy;
  int32_t n_pages;
  gc_page *pages;
  size_t *page_bytes; /* [n_caches] */
  void **memory;      /* [n_caches] n_pages pages each */
  int32_t free_page;  /* first of the free list */
  int32_t n_free, n_kept;
  int32_t oldest, newest; /* of the kept pages */
  int32_t *buckets;       /* prefix table */
  uint32_t bucket_mask;
  uint64_t last_identity;
  gc_sequence_record *sequences;
  int32_t n_sequences, last_serial, last_step;
  int64_t tokens_reused, pages_evicted, pages_copied;
  struct gc_batch *batch; /* scratch of gc_step */
};

/* cache.c */
int gc_cache_enter(gc_cache *cache, gc_error *error);
int gc_cache_leave(gc_cache *cache, int code);
/* A page with one reference, given up by a kept prefix if it must be; GC_NO_PAGE when all are in
 * use. */
int32_t gc_page_take(gc_cache *cache);
void gc_page_hold(gc_cache *cache, int32_t page);
void gc_page_release(gc_cache *cache, int32_t page);
void gc_page_copy(gc_cache *cache, int32_t target, int32_t source);

/* prefix.c */
/* Makes a full page findable; `before` is the identity of what lies before it. */
void gc_prefix_add(gc_cache *cache, int32_t page, uint64_t before);
void gc_prefix_remove(gc_cache *cache, int32_t page);
int32_t gc_prefix_find(const gc_cache *cache, uint64_t before, const int32_t *tokens);

/* sequence.c: NULL, with the error filled, when there is no such sequence. */
gc_sequence_record *gc_sequence_find(gc_cache *cache, gc_sequence sequence, gc_error *error);
bool gc_sequence_make_room(gc_sequence_record *record, int32_t n_pages);

/* batch.c */
void gc_batch_destroy(struct gc_batch *batch);

#endif

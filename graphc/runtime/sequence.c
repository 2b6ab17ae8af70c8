/* sequence.c: sequences, which are lists of pages: made, forked, freed, begun with a known prefix. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cache.h"

/* A handle is the place of the record and the serial number of who has it. */
static gc_sequence handle_of(int32_t place, int32_t serial) {
  return (int64_t)serial << 32 | (int64_t)place;
}

gc_sequence_record *gc_sequence_find(gc_cache *cache, gc_sequence sequence, gc_error *error) {
  int64_t place = sequence & INT64_C(0xffffffff), serial = sequence >> 32;
  if (serial > 0 && place < cache->n_sequences && cache->sequences[place].serial == serial)
    return &cache->sequences[place];
  gc_fail(error, GC_ERROR_USE,
          "no sequence %" PRId64 " in this cache: it was freed, or is another cache's", sequence);
  return NULL;
}

bool gc_sequence_make_room(gc_sequence_record *record, int32_t n_pages) {
  if (n_pages <= record->room) return true;
  int32_t room = record->room * 2 > n_pages ? record->room * 2 : n_pages + 4;
  int32_t *pages = realloc(record->pages, (size_t)room * sizeof *pages);
  if (!pages) return false;
  record->pages = pages;
  record->room = room;
  return true;
}

/* A free record, its serial set; NULL when out of memory. */
static gc_sequence_record *new_record(gc_cache *cache, gc_error *error) {
  if (cache->last_serial == INT32_MAX) {
    gc_fail(error, GC_ERROR_USE, "2^31 sequences were made in this cache: make a new one");
    return NULL;
  }
  int32_t place = 0;
  while (place < cache->n_sequences && cache->sequences[place].serial) place++;
  if (place == cache->n_sequences) {
    size_t n = (size_t)cache->n_sequences * 2 + 8;
    gc_sequence_record *grown = realloc(cache->sequences, n * sizeof *grown);
    if (!grown) {
      gc_fail(error, GC_ERROR_MEMORY, "out of memory");
      return NULL;
    }
    memset(grown + place, 0, (n - (size_t)place) * sizeof *grown);
    cache->sequences = grown;
    cache->n_sequences = (int32_t)n;
  }
  gc_sequence_record *record = &cache->sequences[place];
  *record = (gc_sequence_record){
      .serial = ++cache->last_serial, .pages = record->pages, .room = record->room};
  return record;
}

static gc_sequence handle(const gc_cache *cache, const gc_sequence_record *record) {
  return handle_of((int32_t)(record - cache->sequences), record->serial);
}

gc_sequence gc_sequence_create(gc_cache *cache, gc_error *error) {
  if (gc_cache_enter(cache, error)) return 0;
  const gc_sequence_record *record = new_record(cache, error);
  gc_sequence made = record ? handle(cache, record) : 0;
  gc_cache_leave(cache, GC_OK);
  return made;
}

gc_sequence gc_sequence_fork(gc_cache *cache, gc_sequence sequence, gc_error *error) {
  if (gc_cache_enter(cache, error)) return 0;
  gc_sequence made = 0;
  gc_sequence_record *source = gc_sequence_find(cache, sequence, error);
  ptrdiff_t place = source ? source - cache->sequences : 0;
  gc_sequence_record *fork = source ? new_record(cache, error) : NULL;
  if (fork) {
    source = &cache->sequences[place]; /* the records may have moved */
    if (gc_sequence_make_room(fork, source->n_pages)) {
      for (int32_t i = 0; i < source->n_pages; i++) {
        fork->pages[i] = source->pages[i];
        gc_page_hold(cache, source->pages[i]);
      }
      fork->n_pages = source->n_pages;
      fork->length = source->length;
      made = handle(cache, fork);
    } else {
      fork->serial = 0;
      gc_fail(error, GC_ERROR_MEMORY, "out of memory");
    }
  }
  gc_cache_leave(cache, GC_OK);
  return made;
}

int gc_sequence_free(gc_cache *cache, gc_sequence sequence, gc_error *error) {
  int code = gc_cache_enter(cache, error);
  if (code) return code;
  gc_sequence_record *record = gc_sequence_find(cache, sequence, error);
  if (record) {
    /* From the end, so that of a kept prefix the last page is the oldest and goes first. */
    while (record->n_pages > 0) gc_page_release(cache, record->pages[--record->n_pages]);
    record->serial = 0;
  }
  return gc_cache_leave(cache, record ? GC_OK : GC_ERROR_USE);
}

int64_t gc_sequence_length(gc_cache *cache, gc_sequence sequence, gc_error *error) {
  if (gc_cache_enter(cache, error)) return -1;
  const gc_sequence_record *record = gc_sequence_find(cache, sequence, error);
  int64_t length = record ? record->length : -1;
  gc_cache_leave(cache, GC_OK);
  return length;
}

static int64_t reuse(gc_cache *cache, gc_sequence_record *record, const int32_t *tokens,
                     int64_t n_tokens, gc_error *error) {
  if (!tokens || n_tokens < 1) {
    gc_fail(error, GC_ERROR_USE, "no tokens given");
    return -1;
  }
  if (record->length > 0) {
    gc_fail(error, GC_ERROR_USE,
            "the sequence has %" PRId64 " tokens: only an empty one can begin with a known prefix",
            record->length);
    return -1;
  }
  uint64_t before = 0;
  int64_t blocks = (n_tokens - 1) / GC_PAGE;
  for (int64_t i = 0; i < blocks; i++) {
    int32_t page = gc_prefix_find(cache, before, tokens + i * GC_PAGE);
    if (page == GC_NO_PAGE || !gc_sequence_make_room(record, record->n_pages + 1)) break;
    gc_page_hold(cache, page);
    record->pages[record->n_pages++] = page;
    before = cache->pages[page].self;
  }
  record->length = (int64_t)record->n_pages * GC_PAGE;
  cache->tokens_reused += record->length;
  return record->length;
}

int64_t gc_sequence_reuse(gc_cache *cache, gc_sequence sequence, const int32_t *tokens,
                          int64_t n_tokens, gc_error *error) {
  if (gc_cache_enter(cache, error)) return -1;
  gc_sequence_record *record = gc_sequence_find(cache, sequence, error);
  int64_t taken = record ? reuse(cache, record, tokens, n_tokens, error) : -1;
  gc_cache_leave(cache, GC_OK);
  return taken;
}

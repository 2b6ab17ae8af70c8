/* prefix.c: finds full pages by what they hold.
 *
 * A hash table over (identity of the content before, tokens of the page). Tokens are compared, and
 * identities are never reused, so that a hash that happens to be equal does no harm. */
#include <string.h>

#include "cache.h"

static uint64_t mix(uint64_t x) { /* the finaliser of splitmix64 */
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static int32_t *bucket_of(const gc_cache *cache, uint64_t before, const int32_t *tokens) {
  uint64_t hash = mix(before + UINT64_C(0x9e3779b97f4a7c15));
  for (int i = 0; i < GC_PAGE; i++) hash = mix(hash ^ (uint32_t)tokens[i]);
  return &cache->buckets[(uint32_t)hash & cache->bucket_mask];
}

int32_t gc_prefix_find(const gc_cache *cache, uint64_t before, const int32_t *tokens) {
  int32_t page = *bucket_of(cache, before, tokens);
  for (; page != GC_NO_PAGE; page = cache->pages[page].next) {
    const gc_page *p = &cache->pages[page];
    if (p->before == before && !memcmp(p->tokens, tokens, sizeof p->tokens)) break;
  }
  return page;
}

void gc_prefix_add(gc_cache *cache, int32_t page, uint64_t before) {
  gc_page *p = &cache->pages[page];
  int32_t twin = gc_prefix_find(cache, before, p->tokens);
  p->before = before;
  p->self = twin != GC_NO_PAGE ? cache->pages[twin].self : ++cache->last_identity;
  int32_t *bucket = bucket_of(cache, before, p->tokens);
  p->next = *bucket;
  *bucket = page;
  p->findable = true;
}

void gc_prefix_remove(gc_cache *cache, int32_t page) {
  gc_page *p = &cache->pages[page];
  int32_t *link = bucket_of(cache, p->before, p->tokens);
  while (*link != page) link = &cache->pages[*link].next;
  *link = p->next;
  p->findable = false;
}

/* regex.c: a backtracking machine for the patterns of pre-tokenizers.
 *
 * Four words an instruction: operation, a, b, c. The stack keeps what else may be tried: a place in
 * the program and in the text, and how far back in the text the same may be tried again. */
#include <stdlib.h>

#include "vocabulary.h"

enum {
  DONE, SET, SPAN, SPLIT, JUMP, AHEAD, NOT_AHEAD, ATOMIC, BEHIND, NOT_BEHIND, BEGIN, END
};
enum { DEEPEST = 32 };

typedef struct {
  gc_regex_machine *machine;
  const gc_vocabulary *v;
  const uint32_t *code;
  const uint8_t *text;
  size_t n;
} run;

static void push(gc_regex_machine *m, uint32_t pc, size_t at, size_t low) {
  if (m->n == m->room) {
    size_t room = 2 * m->room + 64;
    gc_regex_state *grown = realloc(m->stack, room * sizeof *grown);
    if (!grown) {
      m->failed = true;
      return;
    }
    m->stack = grown;
    m->room = room;
  }
  m->stack[m->n++] = (gc_regex_state){pc, at, low};
}

static bool in_set(const run *r, uint32_t section, size_t at, size_t *length) {
  return at < r->n && gc_set_has(gc_words_of(r->v, section), gc_char_at(r->text, r->n, at, length));
}

static bool behind(const run *r, uint32_t section, size_t at) {
  size_t length;
  return at > 0 && in_set(r, section, gc_char_before(r->text, at), &length);
}

static bool match(run *r, uint32_t pc, size_t at, size_t *end, int depth) {
  gc_regex_machine *m = r->machine;
  size_t base = m->n, length, inner;
  for (;;) {
    const uint32_t *i = r->code + 4 * (size_t)pc;
    bool ok = true;
    if (--m->steps < 0 || depth > DEEPEST) m->failed = true;
    if (m->failed) return false;
    switch (i[0]) {
      case DONE:
        m->n = base;
        *end = at;
        return true;
      case SET:
        ok = in_set(r, i[1], at, &length);
        if (ok) at += length;
        pc++;
        break;
      case SPAN: {
        uint32_t count = 0;
        size_t low = at;
        while (count < i[3] && in_set(r, i[1], at, &length)) {
          at += length;
          if (++count == i[2]) low = at;
          m->steps--;
        }
        ok = count >= i[2];
        pc++;
        if (ok && at > low) push(m, pc, gc_char_before(r->text, at), low);
        break;
      }
      case SPLIT:
        push(m, i[2], at, at);
        pc = i[1];
        break;
      case JUMP:
        pc = i[1];
        break;
      case AHEAD:
      case NOT_AHEAD:
      case ATOMIC:
        ok = match(r, pc + 1, at, &inner, depth + 1) == (i[0] != NOT_AHEAD);
        if (m->failed) return false;
        if (ok && i[0] == ATOMIC) at = inner;
        pc = i[1];
        break;
      case BEHIND:
      case NOT_BEHIND:
        ok = behind(r, i[1], at) == (i[0] == BEHIND);
        pc++;
        break;
      case BEGIN:
      case END:
        ok = at == (i[0] == BEGIN ? 0 : r->n);
        pc++;
        break;
      default:
        ok = false;
    }
    if (ok) continue;
    if (m->n == base) return false;
    gc_regex_state *last = &m->stack[m->n - 1];
    pc = last->pc;
    at = last->at;
    if (last->at > last->low) {
      last->at = gc_char_before(r->text, last->at);
    } else {
      m->n--;
    }
  }
}

bool gc_regex_find(gc_regex_machine *machine, const gc_vocabulary *v, uint32_t program,
                   const uint8_t *text, size_t n, size_t from, size_t *start, size_t *end) {
  run r = {machine, v, gc_words_of(v, program), text, n};
  size_t length = 1;
  for (size_t at = from; at < n && !machine->failed; at += length) {
    machine->n = 0;
    if (match(&r, 0, at, end, 0) && *end > at) {
      *start = at;
      return true;
    }
    gc_char_at(text, n, at, &length);
  }
  return false;
}

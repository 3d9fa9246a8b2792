/* What streams and graphs of all stand-ins have in common: delays, memory that operations hold and use, the way through a
 * graph. */
#include <stdlib.h>
#include <unistd.h>

#include "tests/standins/parts/standin_parts.h"

/* ---- random delays ----------------------------------------------------------------------------- */

uint64_t standin_random_start(void) {
    static uint64_t n_streams;
    return standin_setting("TD_STANDIN_SEED", 1) * 0x9e3779b97f4a7c15ull + ++n_streams;
}

uint64_t standin_random(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 0x2545f4914f6cdd1dull;
}

void standin_delay(uint64_t *random) {
    uint64_t longest = standin_setting("TD_STANDIN_DELAY_US", 100), r = standin_random(random);
    if (longest && r >> 62 == 0) usleep((useconds_t)(r % (longest + 1)));
}

/* ---- memory of operations ---------------------------------------------------------------------- */

void standin_hold(const standin_use *uses, size_t n, bool captured, int by) {
    for (size_t i = 0; i < n; i++) {
        standin_memory *m = standin_memory_of(uses[i].at, uses[i].bytes);
        if (m) *(captured ? &m->in_graphs : &m->in_flight) += (uint32_t)by;
    }
}

bool standin_used_all(const standin_use *uses, size_t n, uint32_t line, uint32_t step, const standin_clock *clock,
                      const char *what) {
    bool all = true;
    for (size_t i = 0; i < n; i++) {
        standin_memory *m = standin_memory_of(uses[i].at, uses[i].bytes);
        all &= m != NULL;
        if (m && !uses[i].is_exchange) standin_used(&m->history, &uses[i], line, step, clock, what);
    }
    return all;
}

/* ---- the way through a graph ------------------------------------------------------------------- */

standin_walk standin_walk_begin(const standin_node *nodes, size_t n, size_t n_branches) {
    return (standin_walk){.nodes = nodes, .n = n, .n_branches = n_branches, .done = calloc(n + 1, sizeof(bool))};
}

size_t standin_walk_next(standin_walk *w, uint64_t *random) {
    if (w->ran++ == w->n) {
        free(w->done);
        return w->n;
    }
    /* A branch whose next node may run, from a random one on. */
    size_t first = standin_random(random) % w->n_branches, pick = w->n, waits = w->n;
    for (size_t k = 0; k < w->n_branches && pick == w->n; k++) {
        size_t b = (first + k) % w->n_branches, i = w->next[b];
        while (i < w->n && w->nodes[i].branch != b) i++;
        w->next[b] = i;
        if (i == w->n || (w->nodes[i].after && !w->done[w->nodes[i].after - 1])) continue;
        *(w->waits && w->waits(w->nodes[i].op) ? &waits : &pick) = i;
    }
    if (pick == w->n) pick = waits;
    w->done[pick] = true;
    w->next[w->nodes[pick].branch] = pick + 1;
    return pick;
}

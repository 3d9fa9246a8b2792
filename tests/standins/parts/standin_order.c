/*
 * Happens-before between operations of streams: vector clocks, and for each piece of memory the uses that may still be under
 * way.
 *
 * A line is a stream, or a stream inside a capture. Two uses of the same bytes by different lines, one of them a write, must
 * be ordered by an event or by a synchronisation that lies between them in time. Found when the second is enqueued, whatever
 * the threads do.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/standins/parts/standin_parts.h"

typedef struct {
    const char *from, *to;
    uint32_t    line, step;
    bool        write, indexed;
    int32_t     device;
    const char *what;
} access_entry;

struct standin_history {
    size_t        n, room;
    access_entry *list;
};

static bool          line_taken[STANDIN_LINES_MAX];
static uint32_t      line_steps[STANDIN_LINES_MAX]; /* go on when a line is taken again */
static standin_clock host;

uint32_t standin_line_take(void) {
    for (uint32_t i = 0; i < STANDIN_LINES_MAX; i++)
        if (!line_taken[i]) {
            line_taken[i] = true;
            return i;
        }
    standin_refuse("stand-in", "more than %d streams and captured streams at a time", STANDIN_LINES_MAX);
}

void standin_line_give(uint32_t line) {
    line_taken[line] = false;
}

uint32_t standin_line_step(uint32_t line, standin_clock *clock) {
    return clock->seen[line] = ++line_steps[line];
}

void standin_clock_merge(standin_clock *into, const standin_clock *from) {
    for (size_t i = 0; i < STANDIN_LINES_MAX; i++)
        if (into->seen[i] < from->seen[i]) into->seen[i] = from->seen[i];
}

void standin_host_saw(const standin_clock *clock) {
    standin_clock_merge(&host, clock);
}
void standin_host_into(standin_clock *clock) {
    standin_clock_merge(clock, &host);
}

void standin_used(standin_history **history, const standin_use *use, uint32_t line, uint32_t step,
                  const standin_clock *clock, const char *what) {
    if (!*history) *history = calloc(1, sizeof **history);
    standin_history *h = *history;
    const char      *from = use->at, *to = from + use->bytes;
    size_t           kept = 0;
    for (size_t i = 0; i < h->n; i++) {
        access_entry a = h->list[i];
        bool         before = a.step <= clock->seen[a.line], meets = a.from < to && from < a.to && a.device == use->device;
        if (meets && !before && (a.write || use->write) && !(a.indexed && use->indexed))
            standin_refuse(STANDIN_DOCUMENTS.order,
                           "%s %s memory at %p that %s on another stream %s, and no event or synchronisation orders the two",
                           what, use->write ? "writes" : "reads", (const void *)(from > a.from ? from : a.from), a.what,
                           a.write ? "writes" : "reads");
        /* What the host has seen precedes all that is still to come; what this use covers, and precedes it, is stood for by
         * this one. */
        bool covered = before && a.device == use->device && a.from >= from && a.to <= to &&
                       (use->write || (a.line == line && !a.write)) && !use->indexed;
        if (a.step > host.seen[a.line] && !covered &&
            !(a.line == line && a.from == from && a.to == to && a.write == use->write && a.indexed == use->indexed))
            h->list[kept++] = a;
    }
    h->n = kept;
    if (h->n == h->room) {
        h->room = h->room ? h->room * 2 : 8;
        h->list = realloc(h->list, h->room * sizeof *h->list);
    }
    h->list[h->n++] = (access_entry){from, to, line, step, use->write, use->indexed, use->device, what};
}

void standin_history_free(standin_history *h) {
    if (!h) return;
    free(h->list);
    free(h);
}

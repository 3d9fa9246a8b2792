#include "npu/card/card_stream.h"

#include <stdlib.h>

#include "core/error.h"
#include "npu/bell_wait.h"
#include "npu/carried_rows.h"

#define SPIN_NS 300000 /* of a wait for a bell before it lets others run on its core */

static td_card_stream *of(td_npu_stream *s) {
    return (td_card_stream *)s;
}

/* ---- streams ----------------------------------------------------------------------------------- */

td_status td_card_stream_create(td_npu *base, td_npu_stream **out, td_error *err) {
    td_card *c = (td_card *)base;
    *out = NULL;
    TD_TRY(td_card_enter(c));
    td_npu_stream *s = calloc(1, c->driver->stream_bytes);
    if (!s) return td_fail(err, TD_ENOMEM, "out of memory for a stream");
    of(s)->card = c;
    td_status st = c->driver->stream_open(s, err);
    if (st != TD_OK) {
        free(s);
        return st;
    }
    *out = s;
    return TD_OK;
}

void td_card_stream_destroy(td_npu *base, td_npu_stream *s) {
    td_card *c = (td_card *)base;
    if (!s || td_card_enter(c) != TD_OK) return;
    td_status st =
        of(s)->capture ? td_card_graph_end(base, s, NULL, NULL) : TD_OK; /* thrown away; what fails is in the log */
    (void)st;
    c->driver->stream_close(s);
    free(s);
}

td_status td_card_stream_sync(td_npu *base, td_npu_stream *s) {
    td_card *c = (td_card *)base;
    TD_TRY(td_card_enter(c));
    return c->driver->stream_wait(s);
}

/* ---- what is enqueued -------------------------------------------------------------------------- */

static td_status copy(td_card *c, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    TD_TRY(td_card_enter(c));
    TD_TRY(c->driver->copy(s, dst, src, bytes, kind));
    td_card_launched(s, 1);
    return TD_OK;
}

td_status td_card_copy(td_npu *base, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    TD_TRY(copy((td_card *)base, s, dst, src, bytes, kind));
    td_card_linked(s, kind, bytes);
    return TD_OK;
}

td_status td_card_host_call(td_npu *base, td_npu_stream *s, td_host_fn fn, void *arg) {
    td_card *c = (td_card *)base;
    TD_TRY(td_card_enter(c));
    TD_TRY(c->driver->host_call(s, fn, arg));
    td_card_launched(s, 1);
    return TD_OK;
}

/* ---- bells ------------------------------------------------------------------------------------- */

td_status td_card_bell_ring(td_npu *base, td_npu_stream *s, td_bell *bell, const td_carried *rows) {
    td_card *c = (td_card *)base;
    TD_TRY(td_carry_by_copies(base, s, rows, TD_COPY_D2H));
    return copy(c, s, (void *)bell, c->one, sizeof *bell, TD_COPY_D2H);
}

static void await_bell(void *bell) {
    td_bell_await(bell, SPIN_NS);
}

td_status td_card_bell_wait(td_npu *base, td_npu_stream *s, td_bell *bell, const td_carried *rows) {
    TD_TRY(td_card_host_call(base, s, await_bell, (void *)bell));
    return td_carry_by_copies(base, s, rows, TD_COPY_H2D);
}

/* ---- captures ---------------------------------------------------------------------------------- */

td_status td_card_graph_begin(td_npu *base, td_npu_stream *s) {
    td_card *c = (td_card *)base;
    if (of(s)->capture) return TD_EINVAL;
    TD_TRY(td_card_enter(c));
    td_npu_graph *g = calloc(1, c->driver->graph_bytes);
    if (!g) return TD_ENOMEM;
    td_status st = c->driver->capture_begin(s);
    if (st == TD_OK)
        of(s)->capture = g;
    else
        free(g);
    return st;
}

static td_npu_stream **branch_at(td_npu_stream *s, const td_npu_stream *branch) {
    for (uint32_t i = 0; i < TD_CARD_BRANCHES; i++)
        if (of(s)->branch[i] == branch) return &of(s)->branch[i];
    return NULL;
}

td_status td_card_graph_fork(td_npu *base, td_npu_stream *s, td_npu_stream *branch) {
    td_card        *c = (td_card *)base;
    td_npu_stream **at = branch_at(s, NULL);
    if (!of(s)->capture || !at || branch == s || of(branch)->capture || of(branch)->trunk) return TD_EINVAL;
    TD_TRY(td_card_enter(c));
    TD_TRY(c->driver->follow(branch, s));
    *at = branch;
    of(branch)->trunk = s;
    return TD_OK;
}

td_status td_card_graph_join(td_npu *base, td_npu_stream *s, td_npu_stream *branch) {
    td_card        *c = (td_card *)base;
    td_npu_stream **at = branch_at(s, branch);
    if (!branch || !at) return TD_EINVAL;
    TD_TRY(td_card_enter(c));
    TD_TRY(c->driver->follow(s, branch));
    *at = NULL;
    of(branch)->trunk = NULL;
    return TD_OK;
}

/* Of a capture that is thrown away: a runtime wants it whole, too. */
static void join_rest(td_npu *base, td_npu_stream *s) {
    for (uint32_t i = 0; i < TD_CARD_BRANCHES; i++) {
        td_npu_stream *branch = of(s)->branch[i];
        if (!branch || td_card_graph_join(base, s, branch) == TD_OK) continue;
        of(branch)->trunk = of(s)->branch[i] = NULL; /* what failed is in the log, and the capture is void */
    }
}

td_status td_card_graph_end(td_npu *base, td_npu_stream *s, td_npu_graph **out, td_error *err) {
    td_card      *c = (td_card *)base;
    td_npu_graph *g = of(s)->capture;
    if (out) *out = NULL;
    if (!g) return td_fail(err, TD_EINVAL, "the stream is not being captured");
    join_rest(base, s);
    of(s)->capture = NULL;
    td_status st = td_card_enter(c);
    if (st == TD_OK) st = c->driver->capture_end(s, g, out != NULL, err);
    if (st != TD_OK || !out) {
        td_card_graph_destroy(base, g);
        return st;
    }
    td_card_count(&c->given.captures);
    *out = g;
    return TD_OK;
}

td_status td_card_graph_launch(td_npu *base, td_npu_stream *s, td_npu_graph *g) {
    td_card             *c = (td_card *)base;
    const td_card_graph *bytes = (td_card_graph *)g;
    if (of(s)->capture) return TD_EINVAL;
    TD_TRY(td_card_enter(c));
    TD_TRY(c->driver->launch(s, g));
    td_card_launched(s, 1);
    td_card_count(&c->given.replays);
    atomic_fetch_add_explicit(&c->down_bytes, bytes->down_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->up_bytes, bytes->up_bytes, memory_order_relaxed);
    return TD_OK;
}

void td_card_graph_destroy(td_npu *base, td_npu_graph *g) {
    td_card *c = (td_card *)base;
    if (!g) return;
    c->driver->graph_close(c, g);
    free(g);
}

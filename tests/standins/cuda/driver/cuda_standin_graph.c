/*
 * Captures, graphs and executable graphs. What is submitted to a captured stream becomes a node; a launch runs the nodes in
 * an order that their streams and events allow, picked at random. Nodes keep addresses, not contents. Source: guide, CUDA
 * Graphs (Stream Capture); cuStreamBeginCapture, cuGraphLaunch, cuGraphExecUpdate.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/standins/cuda/driver/cuda_standin.h"

#define CAPTURES_MAX 16

/** What a graph, the executable graphs made of it and their launches share; does not change once the capture has ended. */
typedef struct {
    uint32_t      refs;
    size_t        n, room, n_branches;
    standin_node *list;
} nodes;

struct CUgraph_st {
    bool               alive, open;
    td_cu_capture_mode mode;
    pthread_t          thread;
    td_cu_context      context;
    td_cu_stream       branches[STANDIN_BRANCHES_MAX];
    bool               joined[STANDIN_BRANCHES_MAX]; /* another branch has waited for its last node */
    nodes             *nodes;
};

struct CUgraphExec_st {
    bool          alive;
    td_cu_context context;
    nodes        *nodes;
    uint32_t      lines[STANDIN_BRANCHES_MAX];
    uint64_t      launched, done;
    standin_clock clock; /* after its last launch */
};

static td_cu_graph captures[CAPTURES_MAX];

bool standin_capture_open(const struct CUgraph_st *g) {
    return g && g->open;
}

/* ---- nodes ------------------------------------------------------------------------------------- */

static void hold(const standin_op *op, int by) {
    standin_hold(op->uses, op->n_uses, true, by);
    if (op->module) op->module->in_use += (uint32_t)by;
}

static nodes *share(nodes *n) {
    n->refs++;
    return n;
}

static void let_go(nodes *n) {
    if (--n->refs) return;
    for (size_t i = 0; i < n->n; i++) {
        hold(n->list[i].op, -1);
        standin_op_unref(n->list[i].op);
    }
    free(n->list);
    free(n);
}

/* ---- capturing --------------------------------------------------------------------------------- */

/* cuThreadExchangeStreamCaptureMode: what a thread's own mode lets it do while something is captured. */
static _Thread_local td_cu_capture_mode thread_mode = TD_CU_STREAM_CAPTURE_MODE_GLOBAL;

td_cu_status cuThreadExchangeStreamCaptureMode(td_cu_capture_mode *mode) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_capture_mode was = thread_mode;
    if (*mode > TD_CU_STREAM_CAPTURE_MODE_RELAXED)
        standin_refuse("cuThreadExchangeStreamCaptureMode", "the capture mode %u is none", *mode);
    STANDIN_CAN_FAIL;
    thread_mode = *mode;
    *mode = was;
    return TD_CUDA_SUCCESS;
}

void standin_capture_check(const char *call, int kind, const struct CUctx_st *c) {
    if (thread_mode == TD_CU_STREAM_CAPTURE_MODE_RELAXED) return;
    for (size_t i = 0; i < CAPTURES_MAX; i++) {
        td_cu_graph g = captures[i];
        if (!g || g->context != c || g->mode == TD_CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        bool mine = pthread_equal(g->thread, pthread_self());
        bool others = g->mode == TD_CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == TD_CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (kind & STANDIN_UNSAFE && (mine || others))
            standin_refuse("cuThreadExchangeStreamCaptureMode",
                           "%s while a stream is captured and the capture's mode forbids it", call);
    }
}

static size_t branch_of(td_cu_graph g, td_cu_stream s) {
    size_t i = 0;
    while (i < g->nodes->n_branches && g->branches[i] != s) i++;
    if (i == STANDIN_BRANCHES_MAX) standin_refuse("stand-in", "more than %d streams in one capture", STANDIN_BRANCHES_MAX);
    if (i == g->nodes->n_branches) g->branches[g->nodes->n_branches++] = s;
    return i;
}

void standin_capture_add(td_cu_stream s, standin_op *op) {
    td_cu_graph g = s->capture;
    nodes      *n = g->nodes;
    if (op->kind == STANDIN_GRAPH)
        standin_refuse("stand-in", "a graph is launched on a stream that is captured: graphs inside graphs are not here");
    if (op->kind == STANDIN_WAIT && op->event->capture != g)
        standin_refuse("guide, Cross-stream Dependencies and Events",
                       "a captured stream waits for an event that was not recorded in the same capture");
    size_t branch = branch_of(g, s);
    if (n->n == n->room) {
        n->room = n->room ? n->room * 2 : 64;
        n->list = realloc(n->list, n->room * sizeof *n->list);
    }
    n->list[n->n] = (standin_node){op, (uint32_t)branch, op->kind == STANDIN_WAIT ? op->event->node + 1 : 0};
    g->joined[branch] = false;
    if (op->kind == STANDIN_WAIT) g->joined[n->list[op->event->node].branch] = true;
    if (op->kind == STANDIN_RECORD) {
        op->event->capture = g;
        op->event->node = n->n;
        op->event->stream = NULL;
    }
    hold(op, 1);
    n->n++;
}

td_cu_status cuStreamBeginCapture_v2(td_cu_stream stream, td_cu_capture_mode mode) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_stream s = standin_stream_of(stream, "cuStreamBeginCapture");
    if (mode > TD_CU_STREAM_CAPTURE_MODE_RELAXED)
        standin_refuse("cuStreamBeginCapture", "the capture mode %u is none", mode);
    STANDIN_CAN_FAIL;
    td_cu_graph g = calloc(1, sizeof *g);
    size_t      i = 0;
    STANDIN_LOCKED;
    if (s->capture) standin_refuse("cuStreamBeginCapture", "a capture is begun on a stream that is captured already");
    *g = (struct CUgraph_st){.alive = true, .open = true, .mode = mode, .thread = pthread_self(), .context = s->context};
    g->nodes = calloc(1, sizeof *g->nodes);
    g->nodes->refs = 1;
    standin_keep(g);
    s->context->n_things++;
    (void)branch_of(g, s);
    s->capture = g;
    while (i < CAPTURES_MAX && captures[i]) i++;
    if (i == CAPTURES_MAX) standin_refuse("stand-in", "more than %d captures at a time", CAPTURES_MAX);
    captures[i] = g;
    return TD_CUDA_SUCCESS;
}

static void destroy(td_cu_graph g) {
    let_go(g->nodes);
    g->nodes = NULL;
    g->alive = false;
    g->context->n_things--;
}

static size_t last_nodes; /* of the capture that ended last */

STANDIN_EXPORT size_t standin_graph_nodes(void);
size_t                standin_graph_nodes(void) {
                   STANDIN_LOCKED;
                   return last_nodes;
}

td_cu_status cuStreamEndCapture(td_cu_stream stream, td_cu_graph *graph) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_RELEASES);
    td_cu_stream s = standin_stream_of(stream, "cuStreamEndCapture");
    STANDIN_LOCKED;
    td_cu_graph g = s->capture;
    if (!g) standin_refuse("cuStreamEndCapture", "a capture is ended on a stream that is not captured");
    if (g->branches[0] != s)
        standin_refuse("cuStreamEndCapture", "a capture is ended on another stream than it was begun on");
    if (g->mode != TD_CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(g->thread, pthread_self()))
        standin_refuse("cuStreamBeginCapture",
                       "a capture is ended on another thread than it was begun on, and its mode is not relaxed");
    for (size_t i = 1; i < g->nodes->n_branches; i++)
        if (!g->joined[i])
            standin_refuse("guide, Cross-stream Dependencies and Events",
                           "a capture is ended with a stream in it whose last operation its first stream does not wait for");
    for (size_t i = 0; i < g->nodes->n_branches; i++) g->branches[i]->capture = NULL;
    for (size_t i = 0; i < CAPTURES_MAX; i++)
        if (captures[i] == g) captures[i] = NULL;
    g->open = false;
    last_nodes = g->nodes->n;
    standin_graph_write(g->nodes->list, g->nodes->n);
    td_cu_status st = standin_left();
    if (st == TD_CUDA_SUCCESS) st = standin_fails(__func__);
    if (st != TD_CUDA_SUCCESS) destroy(g); /* "If the capture was invalidated, a NULL graph is returned" */
    *graph = st == TD_CUDA_SUCCESS ? g : NULL;
    return st;
}

td_cu_status cuStreamIsCapturing(td_cu_stream stream, td_cu_capture_state *state) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    *state = standin_stream_of(stream, "cuStreamIsCapturing")->capture ? TD_CU_STREAM_CAPTURE_STATUS_ACTIVE
                                                                       : TD_CU_STREAM_CAPTURE_STATUS_NONE;
    return TD_CUDA_SUCCESS;
}

/* ---- graphs and executable graphs -------------------------------------------------------------- */

/** Under the lock. */
static td_cu_graph graph_of(td_cu_graph g, const char *call) {
    if (!g || !g->alive || g->open)
        standin_refuse("cuGraphDestroy", "%s of a graph that is not finished, or is destroyed", call);
    return g;
}
static td_cu_graph_exec exec_of(td_cu_graph_exec x, const char *call) {
    if (!x || !x->alive)
        standin_refuse("cuGraphExecDestroy", "%s of an executable graph that is none, or is destroyed", call);
    if (x->context != standin_current())
        standin_refuse(call, "%s of an executable graph of another context than the thread's", call);
    return x;
}

td_cu_status cuGraphInstantiateWithFlags(td_cu_graph_exec *exec, td_cu_graph graph, unsigned long long flags) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    if (flags) standin_refuse("stand-in", "cuGraphInstantiate with flags %llu, which are not here", flags);
    STANDIN_CAN_FAIL;
    td_cu_graph_exec x = calloc(1, sizeof *x);
    STANDIN_LOCKED;
    td_cu_graph g = graph_of(graph, "cuGraphInstantiate");
    *x = (struct CUgraphExec_st){.alive = true, .context = g->context, .nodes = share(g->nodes)};
    for (size_t i = 0; i < STANDIN_BRANCHES_MAX; i++) x->lines[i] = standin_line_take();
    standin_keep(x);
    x->context->n_things++;
    *exec = x;
    return TD_CUDA_SUCCESS;
}

td_cu_status cuGraphDestroy(td_cu_graph graph) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_RELEASES);
    STANDIN_LOCKED;
    destroy(graph_of(graph, "cuGraphDestroy"));
    return standin_left();
}

td_cu_status cuGraphExecDestroy(td_cu_graph_exec exec) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT | STANDIN_RELEASES);
    STANDIN_LOCKED;
    td_cu_graph_exec x = exec_of(exec, "cuGraphExecDestroy");
    if (x->done < x->launched)
        standin_refuse("cuGraphExecDestroy",
                       "an executable graph is destroyed while a launch of it is enqueued: nobody could say when its memory "
                       "may be freed");
    for (size_t i = 0; i < STANDIN_BRANCHES_MAX; i++) standin_line_give(x->lines[i]);
    let_go(x->nodes);
    x->alive = false;
    x->context->n_things--;
    return standin_left();
}

/** What keeps a from being updated to b. */
static td_cu_graph_difference difference(const nodes *a, const nodes *b) {
    if (a->n != b->n) return TD_CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < a->n; i++) {
        const standin_node *x = &a->list[i], *y = &b->list[i];
        if (x->branch != y->branch || x->after != y->after) return TD_CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        /* A copy's name says between which kinds of memory it goes, which may not change. */
        if (x->op->kind != y->op->kind || (x->op->kind == STANDIN_COPY && strcmp(x->op->name, y->op->name) != 0))
            return TD_CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    }
    return TD_CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

/* "The update affects future launches": those that are enqueued have nodes of their own. */
td_cu_status cuGraphExecUpdate_v2(td_cu_graph_exec exec, td_cu_graph graph, td_cu_update_result *result) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    STANDIN_CAN_FAIL;
    STANDIN_LOCKED;
    td_cu_graph_exec x = exec_of(exec, "cuGraphExecUpdate");
    td_cu_graph      g = graph_of(graph, "cuGraphExecUpdate");
    *result = (td_cu_update_result){.result = difference(x->nodes, g->nodes)};
    bool same = result->result == TD_CU_GRAPH_EXEC_UPDATE_SUCCESS;
    if (same) {
        nodes *was = x->nodes;
        x->nodes = share(g->nodes);
        let_go(was);
    }
    return same ? TD_CUDA_SUCCESS : TD_CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

/* ---- launches ---------------------------------------------------------------------------------- */

typedef struct {
    td_cu_graph_exec exec;
    nodes           *nodes;
    uint64_t         number; /* of the executable graph's launches, from 1 */
} launch;

static bool waits_for_word(const standin_op *op) {
    return op->kind == STANDIN_WAIT_VALUE && !standin_value_came(op);
}

static void run_launch(standin_op *op, td_cu_stream s) {
    const launch *l = op->payload;
    const nodes  *n = l->nodes;
    standin_walk  walk = standin_walk_begin(n->list, n->n, n->n_branches);
    walk.waits = waits_for_word;
    standin_lock();
    while (l->exec->done + 1 < l->number) standin_wait_progress();
    standin_unlock();
    for (size_t i; (i = standin_walk_next(&walk, &s->random)) < n->n;) {
        standin_op *it = n->list[i].op;
        if (it->kind != STANDIN_RECORD && it->kind != STANDIN_WAIT) standin_run_op(it, s);
    }
    standin_lock();
    l->exec->done++;
    standin_unlock();
}

static void drop_launch(standin_op *op) {
    let_go(((launch *)op->payload)->nodes);
    free(op->payload);
}

/** The launch's uses of memory, on lines of its own that begin where the stream is and end in it. */
static void order_launch(td_cu_graph_exec x, td_cu_stream s) {
    const nodes   *g = x->nodes;
    standin_clock *clocks = calloc(STANDIN_BRANCHES_MAX, sizeof *clocks), *marks = calloc(g->n + 1, sizeof *marks);
    standin_host_into(&s->clock);
    standin_clock_merge(&s->clock, &x->clock); /* "ordered behind any previous launches" */
    standin_line_step(s->line, &s->clock);
    clocks[0] = s->clock;
    for (size_t i = 0; i < g->n; i++) {
        const standin_node *n = &g->list[i];
        standin_clock      *clock = &clocks[n->branch];
        if (n->after) standin_clock_merge(clock, &marks[n->after - 1]);
        uint32_t step = standin_line_step(x->lines[n->branch], clock);
        (void)standin_used_all(n->op->uses, n->op->n_uses, x->lines[n->branch], step, clock, n->op->name);
        if (n->op->kind == STANDIN_RECORD) marks[i] = *clock;
    }
    standin_clock_merge(&s->clock, &clocks[0]);
    x->clock = s->clock;
    free(clocks);
    free(marks);
}

td_cu_status cuGraphLaunch(td_cu_graph_exec exec, td_cu_stream stream) {
    STANDIN_ENTER(STANDIN_NEEDS_CONTEXT);
    td_cu_stream s = standin_stream_of(stream, "cuGraphLaunch");
    STANDIN_CAN_FAIL;
    standin_op *op = standin_op_new("cuGraphLaunch", STANDIN_GRAPH, run_launch);
    launch     *l = calloc(1, sizeof *l);
    op->payload = l;
    op->drop = drop_launch;
    STANDIN_LOCKED;
    td_cu_graph_exec x = exec_of(exec, "cuGraphLaunch");
    if (s->capture) standin_capture_add(s, op);
    order_launch(x, s);
    *l = (launch){x, share(x->nodes), ++x->launched};
    standin_enqueue(s, op);
    return TD_CUDA_SUCCESS;
}

/*
 * Captures: what is submitted to a captured stream becomes a node, a replay runs the nodes in an order that their streams
 * and events allow, picked at random. Nodes keep addresses, not contents. Task groups can be prepared anew between replays.
 * Source: runtime 15 (aclmdlRICapture…), dev_guide 04-01 and 04-02.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#define GUIDE "runtime dev_guide 04-01, "

typedef struct {
    standin_graph *graph;
    size_t         first, n;
} task_group;

struct standin_graph {
    bool                alive, open;
    td_acl_capture_mode mode;
    pthread_t           thread;
    int32_t             device;
    size_t              n_branches;
    standin_stream     *branches[STANDIN_BRANCHES_MAX];
    uint32_t            lines[STANDIN_BRANCHES_MAX];
    bool                joined[STANDIN_BRANCHES_MAX]; /* its last node is one that another branch has waited for */
    size_t              n, room;
    standin_node       *nodes;
    size_t              group; /* one more than the open one */
    size_t              n_groups, groups_room;
    task_group        **groups;
    uint32_t            replays; /* enqueued and not done */
};

typedef struct standin_update {
    task_group  *group;
    size_t       n;
    standin_op **ops; /* [group->n] */
} update;

static standin_graph *open_captures[64];
static uint32_t       alive_graphs;

bool standin_capture_open(const standin_graph *g) {
    return g && g->open;
}
uint32_t standin_graphs_alive(void) {
    return alive_graphs;
}

/* ---- capturing --------------------------------------------------------------------------------- */

void standin_capture_check(const char *call, int kind, const standin_context *c) {
    for (size_t i = 0; i < sizeof open_captures / sizeof *open_captures; i++) {
        const standin_graph *g = open_captures[i];
        if (!g || !c || g->device != c->device) continue;
        bool mine = pthread_equal(g->thread, pthread_self()), strict = g->mode == TD_ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
        if (kind & STANDIN_SYNCHRONISES && (mine || strict))
            standin_refuse(GUIDE "limit 2", "%s while a stream of the device is captured", call);
        if (kind & STANDIN_UNSAFE && (mine || strict) && g->mode != TD_ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
            standin_refuse(GUIDE "limit 3", "%s while a stream is captured and the mode forbids it", call);
    }
}

void standin_check_event(const standin_event *e, const char *call) {
    if (e->capture && e->capture->open) standin_refuse(GUIDE "limit 2", "%s of an event that is captured", call);
}

static size_t branch_of(standin_graph *g, standin_stream *s) {
    for (size_t i = 0; i < g->n_branches; i++)
        if (g->branches[i] == s) return i;
    if (g->n_branches == STANDIN_BRANCHES_MAX)
        standin_refuse("stand-in", "more than %d streams in one capture", STANDIN_BRANCHES_MAX);
    g->branches[g->n_branches] = s;
    g->lines[g->n_branches] = standin_line_take();
    return g->n_branches++;
}

void standin_capture_add(standin_stream *s, standin_op *op) {
    standin_graph *g = s->capture;
    if (g->group && op->kind != STANDIN_OP_KERNEL)
        standin_refuse("runtime 15 aclmdlRICaptureTaskGrpBegin", "%s in a task group, which takes single operations only",
                       op->name);
    if (op->kind == STANDIN_OP_GRAPH)
        standin_refuse("runtime 15 aclmdlRIExecuteAsync", "a capture is run on a stream that is captured");
    if (op->waits && op->waits->capture != g)
        standin_refuse("runtime 15 aclmdlRICaptureBegin (ACL_ERROR_RT_CAPTURE_DEPENDENCY)",
                       "a captured stream waits for an event that was not recorded in the same capture");
    size_t branch = branch_of(g, s);
    if (g->n == g->room) {
        g->room = g->room ? g->room * 2 : 64;
        g->nodes = realloc(g->nodes, g->room * sizeof *g->nodes);
    }
    g->nodes[g->n] = (standin_node){op, (uint32_t)branch, op->waits ? op->waits->node + 1 : 0};
    g->joined[branch] = false;
    if (op->waits) g->joined[g->nodes[op->waits->node].branch] = true;
    if (op->records) {
        op->records->capture = g;
        op->records->node = g->n;
        op->records->stream = NULL;
    }
    if (g->group) g->groups[g->group - 1]->n++;
    standin_hold(op->uses, op->n_uses, true, 1);
    g->n++;
}

td_acl_status aclmdlRICaptureBegin(td_acl_stream stream, td_acl_capture_mode mode) {
    standin_enter("aclmdlRICaptureBegin", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclmdlRICaptureBegin");
    if (mode > TD_ACL_MODEL_RI_CAPTURE_MODE_RELAXED)
        standin_refuse("runtime 25-02 aclmdlRICaptureMode", "the capture mode %u is none of its values", mode);
    if (standin_fails("aclmdlRICaptureBegin")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    standin_graph *g = calloc(1, sizeof *g);
    STANDIN_LOCKED;
    if (s->capture) standin_refuse("runtime 15 aclmdlRICaptureBegin", "the stream is captured already");
    *g = (standin_graph){.alive = true, .open = true, .mode = mode, .thread = pthread_self(), .device = s->context->device};
    standin_keep(g);
    alive_graphs++;
    branch_of(g, s);
    s->capture = g;
    for (size_t i = 0; i < sizeof open_captures / sizeof *open_captures; i++)
        if (!open_captures[i]) {
            open_captures[i] = g;
            break;
        }
    return TD_ACL_SUCCESS;
}

td_acl_status aclmdlRICaptureGetInfo(td_acl_stream stream, td_acl_capture_state *state, td_acl_graph *graph) {
    standin_enter("aclmdlRICaptureGetInfo", STANDIN_NEEDS_CONTEXT);
    standin_stream *s = standin_stream_of(stream, "aclmdlRICaptureGetInfo");
    *state = s->capture ? TD_ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE : TD_ACL_MODEL_RI_CAPTURE_STATUS_NONE;
    *graph = s->capture;
    return TD_ACL_SUCCESS;
}

static void destroy(standin_graph *g) {
    for (size_t i = 0; i < g->n; i++) {
        standin_hold(g->nodes[i].op->uses, g->nodes[i].op->n_uses, true, -1);
        standin_op_unref(g->nodes[i].op);
    }
    for (size_t i = 0; i < g->n_branches; i++) standin_line_give(g->lines[i]);
    free(g->nodes);
    g->nodes = NULL;
    g->n = 0;
    g->alive = false;
    alive_graphs--;
}

/** What was captured, a line: the test of launches reads it. */
static void log_capture(const standin_graph *g) {
    const char *path = getenv("TD_STANDIN_LOG");
    FILE       *f = path && *path ? fopen(path, "a") : NULL;
    if (!f) return;
    for (size_t i = 0; i < g->n; i++) fprintf(f, "%s%s", i ? " " : "", g->nodes[i].op->name);
    fputc('\n', f);
    fclose(f);
}

td_acl_status aclmdlRICaptureEnd(td_acl_stream stream, td_acl_graph *graph) {
    standin_enter("aclmdlRICaptureEnd", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclmdlRICaptureEnd");
    STANDIN_LOCKED;
    standin_graph *g = s->capture;
    if (!g) standin_refuse("runtime 15 aclmdlRICaptureEnd", "a capture is ended on a stream that is not captured");
    if (g->branches[0] != s)
        standin_refuse("runtime 15 aclmdlRICaptureEnd", "a capture is ended on another stream than it was begun on");
    if (g->mode != TD_ACL_MODEL_RI_CAPTURE_MODE_RELAXED && !pthread_equal(g->thread, pthread_self()))
        standin_refuse("runtime 15 aclmdlRICaptureEnd",
                       "a capture is ended on another thread than it was begun on, and its mode is not relaxed");
    if (g->group) standin_refuse("runtime 15 aclmdlRICaptureTaskGrpEnd", "a capture is ended with a task group open");
    for (size_t i = 1; i < g->n_branches; i++)
        if (!g->joined[i])
            standin_refuse("runtime dev_guide 04-02",
                           "a capture is ended with a stream in it whose last operation its first stream does not wait for");
    for (size_t i = 0; i < g->n_branches; i++) g->branches[i]->capture = NULL;
    for (size_t i = 0; i < sizeof open_captures / sizeof *open_captures; i++)
        if (open_captures[i] == g) open_captures[i] = NULL;
    g->open = false;
    bool fails = standin_fails("aclmdlRICaptureEnd");
    if (fails) destroy(g); /* an invalid capture leaves nothing */
    if (!fails) log_capture(g);
    *graph = fails ? NULL : g;
    return fails ? standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION) : TD_ACL_SUCCESS;
}

/* ---- task groups ------------------------------------------------------------------------------- */

td_acl_status aclmdlRICaptureTaskGrpBegin(td_acl_stream stream) {
    standin_enter("aclmdlRICaptureTaskGrpBegin", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclmdlRICaptureTaskGrpBegin");
    STANDIN_LOCKED;
    standin_graph *g = s->capture;
    if (!g)
        standin_refuse("runtime 15 aclmdlRICaptureTaskGrpBegin", "a task group is begun on a stream that is not captured");
    if (g->group) standin_refuse("runtime 15 aclmdlRICaptureTaskGrpBegin", "a task group is begun inside another");
    if (g->n_groups == g->groups_room) {
        g->groups_room = g->groups_room ? g->groups_room * 2 : 16;
        g->groups = realloc(g->groups, g->groups_room * sizeof(task_group *));
    }
    task_group *group = calloc(1, sizeof *group);
    *group = (task_group){g, g->n, 0};
    g->groups[g->n_groups++] = group;
    g->group = g->n_groups;
    return TD_ACL_SUCCESS;
}

td_acl_status aclmdlRICaptureTaskGrpEnd(td_acl_stream stream, td_acl_task_group *out) {
    standin_enter("aclmdlRICaptureTaskGrpEnd", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclmdlRICaptureTaskGrpEnd");
    STANDIN_LOCKED;
    standin_graph *g = s->capture;
    if (!g || !g->group)
        standin_refuse("runtime 15 aclmdlRICaptureTaskGrpEnd", "a task group is ended that was not begun on this stream");
    *out = g->groups[g->group - 1];
    g->group = 0;
    return TD_ACL_SUCCESS;
}

td_acl_status aclmdlRICaptureTaskUpdateBegin(td_acl_stream stream, td_acl_task_group handle) {
    const char *document = "runtime 15 aclmdlRICaptureTaskUpdateBegin";
    standin_enter("aclmdlRICaptureTaskUpdateBegin", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclmdlRICaptureTaskUpdateBegin");
    task_group     *group = handle;
    update         *u = calloc(1, sizeof *u);
    STANDIN_LOCKED;
    if (s->capture) standin_refuse(document, "a task group is updated on a stream that is captured");
    if (s->in_update) standin_refuse(document, "an update is begun inside another");
    if (!group || !group->graph->alive || group->graph->open)
        standin_refuse(document, "an update of a task group whose capture is not finished, or is destroyed");
    *u = (update){group, 0, calloc(group->n ? group->n : 1, sizeof(standin_op *))};
    s->update = u;
    s->in_update = true;
    return TD_ACL_SUCCESS;
}

void standin_update_add(standin_stream *s, standin_op *op) {
    const char       *document = "runtime 15 aclmdlRICaptureTaskUpdateBegin";
    update           *u = s->update;
    const task_group *group = u->group;
    if (u->n == group->n)
        standin_refuse(document, "an update of %zu operations or more, for a task group of %zu", u->n + 1, group->n);
    const standin_op *was = group->graph->nodes[group->first + u->n].op;
    if (op->kind != was->kind || strcmp(op->name, was->name))
        standin_refuse(document, "an update has %s where the task group has %s", op->name, was->name);
    if (was->has_workspace && op->has_workspace && op->uses[op->n_uses - 1].at != was->uses[was->n_uses - 1].at)
        standin_refuse(document, "an update of %s brings another workspace than was captured", op->name);
    u->ops[u->n++] = op;
}

/** Updates and runs of a task group must be ordered like writes and reads of memory. */
static void use_group(standin_stream *s, const task_group *group, bool write) {
    static standin_history *all; /* told apart by their address */
    standin_use             use = {.at = group, .bytes = 1, .write = write};
    standin_used(&all, &use, s->line, s->clock.seen[s->line], &s->clock,
                 write ? "an update of a task group" : "a run of a task group's capture");
}

static void run_update(standin_op *op, standin_stream *s) {
    update     *u = op->payload;
    task_group *group = u->group;
    (void)s;
    STANDIN_LOCKED;
    if (!group->graph->alive)
        standin_refuse("runtime 15 aclmdlRIDestroy", "a capture is destroyed before an update of its task group has run");
    for (size_t i = 0; i < group->n; i++) {
        standin_node *n = &group->graph->nodes[group->first + i];
        standin_op   *was = n->op;
        standin_hold(was->uses, was->n_uses, true, -1);
        standin_hold(u->ops[i]->uses, u->ops[i]->n_uses, true, 1);
        n->op = u->ops[i];
        standin_op_unref(was);
    }
    free(u->ops);
    free(u);
}

td_acl_status aclmdlRICaptureTaskUpdateEnd(td_acl_stream stream) {
    const char *document = "runtime 15 aclmdlRICaptureTaskUpdateEnd";
    standin_enter("aclmdlRICaptureTaskUpdateEnd", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclmdlRICaptureTaskUpdateEnd");
    STANDIN_LOCKED;
    update *u = s->update;
    if (!s->in_update) standin_refuse(document, "an update is ended that was not begun on this stream");
    if (u->n != u->group->n)
        standin_refuse(document, "an update of %zu operations, for a task group of %zu", u->n, u->group->n);
    s->in_update = false;
    s->update = NULL;
    /* Asynchronous: a replay has to come after it, and it after the replay before. */
    standin_op *op = standin_op_new("aclmdlRICaptureTaskUpdateEnd", STANDIN_OP_SIGNAL, run_update);
    op->payload = u;
    standin_enqueue(s, op);
    use_group(s, u->group, true);
    return TD_ACL_SUCCESS;
}

/* ---- replays ----------------------------------------------------------------------------------- */

typedef struct {
    standin_graph *graph;
} replay;

static void run_replay(standin_op *op, standin_stream *s) {
    standin_graph *g = ((replay *)op->payload)->graph;
    standin_walk   walk = standin_walk_begin(g->nodes, g->n, g->n_branches);
    for (size_t i; (i = standin_walk_next(&walk, &s->random)) < g->n;)
        if (g->nodes[i].op->kind != STANDIN_OP_SIGNAL) standin_run_op(g->nodes[i].op, s);
    STANDIN_LOCKED;
    g->replays--;
}

static void drop_replay(standin_op *op) {
    free(op->payload);
}

/** The replay's uses of memory, on lines of its own that begin where the stream is and end in it. */
static void order_replay(standin_graph *g, standin_stream *s) {
    standin_clock *clocks = calloc(g->n_branches, sizeof *clocks), *marks = calloc(g->n + 1, sizeof *marks);
    clocks[0] = s->clock;
    for (size_t i = 0; i < g->n; i++) {
        standin_node  *n = &g->nodes[i];
        standin_clock *clock = &clocks[n->branch];
        if (n->after) standin_clock_merge(clock, &marks[n->after - 1]);
        uint32_t step = standin_line_step(g->lines[n->branch], clock);
        if (!standin_used_all(n->op->uses, n->op->n_uses, g->lines[n->branch], step, clock, n->op->name))
            standin_refuse(GUIDE "limit 7", "a capture is run and %s in it uses memory that was freed", n->op->name);
        if (n->op->records) marks[i] = *clock;
    }
    standin_clock_merge(&s->clock, &clocks[0]);
    free(clocks);
    free(marks);
}

td_acl_status aclmdlRIExecuteAsync(td_acl_graph graph, td_acl_stream stream) {
    standin_enter("aclmdlRIExecuteAsync", STANDIN_LAUNCHES);
    standin_stream *s = standin_stream_of(stream, "aclmdlRIExecuteAsync");
    standin_graph  *g = graph;
    if (standin_fails("aclmdlRIExecuteAsync")) return standin_failure(TD_ACL_ERROR_RT_AICORE_EXCEPTION);
    standin_op *op = standin_op_new("aclmdlRIExecuteAsync", STANDIN_OP_GRAPH, run_replay);
    replay     *r = calloc(1, sizeof *r);
    STANDIN_LOCKED;
    if (!g || !g->alive || g->open)
        standin_refuse("runtime 15 aclmdlRIExecuteAsync", "a capture is run that is not finished, or is destroyed");
    if (g->device != s->context->device)
        standin_refuse("runtime 15 aclmdlRIExecuteAsync", "a capture of device %d is run on device %d", g->device,
                       s->context->device);
    *r = (replay){g};
    op->payload = r;
    op->drop = drop_replay;
    if (s->capture) standin_capture_add(s, op);
    standin_host_into(&s->clock);
    standin_line_step(s->line, &s->clock);
    for (size_t i = 0; i < g->n_groups; i++) use_group(s, g->groups[i], false);
    order_replay(g, s);
    g->replays++;
    standin_enqueue(s, op);
    return TD_ACL_SUCCESS;
}

td_acl_status aclmdlRIDestroy(td_acl_graph graph) {
    standin_enter("aclmdlRIDestroy", STANDIN_LAUNCHES);
    standin_graph *g = graph;
    STANDIN_LOCKED;
    if (!g || !g->alive || g->open)
        standin_refuse("runtime 15 aclmdlRIDestroy", "a capture is destroyed that is not finished, or was destroyed before");
    if (g->replays)
        standin_refuse("runtime dev_guide 04-01, limit 7", "a capture is destroyed while a run of it is enqueued");
    destroy(g);
    return TD_ACL_SUCCESS;
}

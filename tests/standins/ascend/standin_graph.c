/*
 * Captures: what is submitted to a captured stream becomes a node, a replay runs the nodes in an order that their streams
 * and events allow, picked at random. Nodes keep addresses, not contents. Task groups can be prepared anew between replays,
 * or, behind an external event that the capture waits for ahead of the group, while a replay runs.
 * Source: runtime 15 (aclmdlRICapture…), dev_guide 04-01, 04-02 and 04-03.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "standin.h"

#define GUIDE "runtime dev_guide 04-01, "

/** An external event that the capture waits for. */
typedef struct {
    standin_event *event;
    size_t         branch;
    bool           is_reset; /* behind the wait */
} gate;
#define GATES_MAX 256

typedef struct {
    standin_graph *graph;
    size_t         first, n;
    size_t         gate; /* one more than the last gate before it on its branch; 0: none */
    uint32_t       step; /* of the run that waits at the gate */
    standin_clock  clock;
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
    size_t              n_gates;
    gate                gates[GATES_MAX];
    uint32_t            updates; /* of its groups that were enqueued since a replay was written down */
    standin_graph      *next;    /* of all graphs */
};

typedef struct standin_update {
    task_group  *group;
    size_t       n;
    standin_op **ops; /* [group->n] */
} update;

static standin_graph *open_captures[64];
static standin_graph *graphs;
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

static void add_gate(standin_graph *g, size_t branch, const standin_op *op) {
    const char *document = "runtime dev_guide 04-03, runtime 07 aclrtResetEvent";
    gate       *found = NULL;
    for (size_t i = 0; i < g->n_gates; i++)
        if (g->gates[i].event == (op->gate ? op->gate : op->reset)) found = &g->gates[i];
    if (op->gate) {
        if (found) standin_refuse(document, "a capture waits twice for an external event");
        if (g->n_gates == GATES_MAX) standin_refuse("stand-in", "more than %d external events in a capture", GATES_MAX);
        g->gates[g->n_gates++] = (gate){op->gate, branch, false};
        op->gate->in_graphs++;
        return;
    }
    if (!found || found->branch != branch || found->is_reset)
        standin_refuse(document, "a capture resets an external event that it does not wait for before, on the same stream");
    found->is_reset = true;
}

void standin_capture_add(standin_stream *s, standin_op *op) {
    standin_graph *g = s->capture;
    if (g->group && op->kind != STANDIN_OP_KERNEL)
        standin_refuse("runtime 15 aclmdlRICaptureTaskGrpBegin", "%s in a task group, which takes single operations only",
                       op->name);
    if (op->kind == STANDIN_OP_GRAPH)
        standin_refuse("runtime 15 aclmdlRIExecuteAsync", "a capture is run on a stream that is captured");
    if (op->gate || op->reset) add_gate(g, branch_of(g, s), op);
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
    g->next = graphs;
    graphs = g;
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
    for (size_t i = 0; i < g->n_gates; i++) g->gates[i].event->in_graphs--;
    standin_graph **at = &graphs;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
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
    *group = (task_group){.graph = g, .first = g->n};
    for (size_t i = 0, branch = branch_of(g, s); i < g->n_gates; i++)
        if (g->gates[i].branch == branch) group->gate = i + 1;
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

/** A run waits for an event ahead of the group. */
static bool is_awaited(const task_group *group) {
    return group->gate && group->graph->gates[group->gate - 1].event->awaited;
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
static void use_group_at(const task_group *group, bool write, uint32_t line, uint32_t step, const standin_clock *clock) {
    static standin_history *all; /* told apart by their address */
    standin_use             use = {.at = group, .bytes = 1, .write = write};
    standin_used(&all, &use, line, step, clock, write ? "an update of a task group" : "a run of a task group's capture");
}
static void use_group(const standin_stream *s, const task_group *group, bool write) {
    use_group_at(group, write, s->line, s->clock.seen[s->line], &s->clock);
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

/* A run that is enqueued already will have what the update brings. */
static void use_memory(const update *u) {
    const task_group     *group = u->group;
    const standin_stream *s = group->graph->gates[group->gate - 1].event->awaited;
    for (size_t i = 0; i < u->n; i++)
        (void)standin_used_all(u->ops[i]->uses, u->ops[i]->n_uses, s->line, group->step, &group->clock, u->ops[i]->name);
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
    if (is_awaited(u->group)) use_memory(u);
    u->group->graph->updates++;
    s->context->host_us += standin_setting("TD_STANDIN_UPDATE_US", 60);
    return TD_ACL_SUCCESS;
}

/* ---- external events --------------------------------------------------------------------------- */

/* A run's wait for a record that was enqueued before it is over with the run. One that is enqueued later ends it then. Up to
 * that record the groups behind the wait may be updated. */

static void await_gate(const gate *at, standin_stream *s) {
    const char    *document = "runtime dev_guide 04-03";
    standin_event *e = at->event;
    if (!at->is_reset)
        standin_refuse(
            document,
            "a capture is run that waits for an external event and does not reset it: its second run would not wait");
    if (e->is_stale)
        standin_refuse(document, "a capture is run whose external event a run that was stopped may have left set: reset it");
    if (e->awaited) standin_refuse(document, "a capture is run that waits for an event for which a run waits already");
    if (e->is_recorded)
        standin_clock_merge(&s->clock, &e->clock);
    else
        e->awaited = s;
    e->is_recorded = false;
}

/* A run uses its groups, those behind a gate when its event is recorded. */
static void run_groups(standin_graph *g, standin_stream *s) {
    for (size_t i = 0; i < g->n_groups; i++) {
        task_group *group = g->groups[i];
        group->step = s->clock.seen[s->line];
        group->clock = s->clock;
        if (!is_awaited(group)) use_group(s, group, false);
    }
}

void standin_gate_recorded(standin_event *e, standin_stream *s) {
    const char     *document = "runtime dev_guide 04-03";
    standin_stream *to = e->awaited;
    e->set_us = s->context->host_us;
    if (to == s)
        standin_refuse(document, "an external event is recorded on the stream on which a run waits for it: it comes behind");
    if (!to && e->is_recorded)
        standin_refuse(document, "an external event is recorded twice, and no run of a capture has waited in between");
    e->is_recorded = !to;
    e->awaited = NULL;
    if (!to) return;
    for (standin_graph *g = graphs; g; g = g->next)
        for (size_t i = 0; i < g->n_groups; i++) {
            task_group *group = g->groups[i];
            if (!g->replays || !group->gate || g->gates[group->gate - 1].event != e) continue;
            standin_clock_merge(&group->clock, &e->clock);
            use_group_at(group, false, to->line, group->step, &group->clock);
        }
    standin_clock_merge(&to->clock, &e->clock);
}

void standin_gates_check(const standin_stream *s, const char *call) {
    for (standin_graph *g = graphs; g; g = g->next)
        for (size_t i = 0; i < g->n_gates; i++)
            if (g->gates[i].event->awaited == s)
                standin_refuse("runtime dev_guide 04-03",
                               "%s of a stream on which a run waits for an external event that nobody has recorded", call);
}

void standin_gates_aborted(const standin_stream *s) {
    for (standin_graph *g = graphs; g; g = g->next)
        for (size_t i = 0; g->replays && i < g->n_gates; i++) {
            if (g->gates[i].event->awaited == s) g->gates[i].event->awaited = NULL;
            g->gates[i].event->is_stale = true;
        }
}

/* ---- replays ----------------------------------------------------------------------------------- */

typedef struct {
    standin_graph *graph;
    uint64_t       launched_us; /* of the clock */
    uint32_t       copies;      /* to the card since the launch before, which the host waited for */
} replay;

static bool waits(const standin_op *op) {
    return op->gate != NULL;
}

/* The clock of the stream goes on to `until`. @return how long it stood still. */
static uint64_t stand_still(standin_stream *s, uint64_t until) {
    uint64_t still = until > s->device_us ? until - s->device_us : 0;
    s->device_us += still;
    return still;
}

static void log_replay(standin_graph *g, uint32_t copies, uint64_t waited_us) {
    const char *path = getenv("TD_STANDIN_CLOCK");
    FILE       *f = path && *path ? fopen(path, "a") : NULL;
    if (f) {
        fprintf(f, "updates %u, copies %u, waited %llu us\n", g->updates, copies, (unsigned long long)waited_us);
        fclose(f);
    }
    g->updates = 0;
}

static void run_replay(standin_op *op, standin_stream *s) {
    const replay  *r = op->payload;
    standin_graph *g = r->graph;
    uint64_t       kernel_us = standin_setting("TD_STANDIN_KERNEL_US", 13), waited = stand_still(s, r->launched_us);
    standin_walk   walk = standin_walk_begin(g->nodes, g->n, g->n_branches);
    walk.waits = waits;
    for (size_t i; (i = standin_walk_next(&walk, &s->random)) < g->n;) {
        standin_op *node = g->nodes[i].op;
        if (node->kind != STANDIN_OP_SIGNAL) standin_run_op(node, s);
        STANDIN_LOCKED;
        if (node->gate) waited += stand_still(s, node->gate->set_us);
        if (node->kind == STANDIN_OP_KERNEL) s->device_us += kernel_us;
    }
    STANDIN_LOCKED;
    log_replay(g, r->copies, waited);
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
    *r = (replay){g, s->context->host_us, s->context->copies};
    s->context->copies = 0;
    op->payload = r;
    op->drop = drop_replay;
    if (s->capture) standin_capture_add(s, op);
    standin_host_into(&s->clock);
    standin_line_step(s->line, &s->clock);
    g->replays++;
    for (size_t i = 0; i < g->n_gates; i++) await_gate(&g->gates[i], s);
    order_replay(g, s);
    run_groups(g, s);
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

/* Checks the cards as one tensor-parallel device: their sums, and a sum that one of them never joins. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log/trace.h"
#include "core/threads/thread.h"
#include "doctor/check.h"

#define WIDTH 7168
#define ROWS 32
#define ADDS 2
#define REPLAYS 3
#define TIMED 16 /* sums in each timed replay */
#define GIVE_UP_US 100000

typedef struct {
    td_npu       *npu;
    uint32_t      index;
    td_rig        rig;
    td_error      err;
    td_npu_block *block;
    void         *out;
    td_rig_step   few, many; /* steps of 1 row and of ROWS rows */
    float        *parts;     /* [ADDS, ROWS, WIDTH] what this card adds */
    td_bf16      *got;       /* [ROWS, WIDTH] the sum it got */
    double        few_s, many_s;
    pthread_t     thread;
} member;

typedef struct {
    td_npu_group *group;
    uint32_t      n;
    member       *members;
} meeting;

static void open_member(member *m, const td_doctor_exam *e, uint32_t index, td_npu_group *group) {
    size_t n = (size_t)ROWS * WIDTH;
    *m = (member){.npu = e->cards[index], .index = index};
    td_rig *r = &m->rig;
    td_rig_open(r, m->npu, false, &m->err);
    m->parts = td_rig_host(r, ADDS * n * sizeof *m->parts);
    m->got = td_rig_host(r, n * sizeof *m->got);
    td_block_desc desc = {.kind = TD_BLOCK_ALL_REDUCE, .layer = TD_NO_LAYER, .max_tok = ROWS};
    desc.all_reduce = (td_all_reduce_desc){.width = WIDTH, .group = group};
    for (uint64_t i = 0; i < ADDS; i++) {
        float *x = td_rig_noise(r, 100 + 10 * index + i, n, 1);
        if (m->parts && x) memcpy(m->parts + i * n, x, n * sizeof *x);
        desc.all_reduce.add[i] = td_rig_activations(r, x, n);
    }
    m->out = desc.all_reduce.out = td_rig_alloc(r, td_rig_act_bytes(r, n));
    m->block = td_rig_block(r, &desc);
    m->few = td_rig_step_new(r, 1, 0, 0, 0);
    m->many = td_rig_step_new(r, ROWS, 0, 0, 0);
    td_rig_step_fill(r, &m->few, &(td_step_arrays){.counts = &(td_step_counts){.n_tok = 1}});
    td_rig_step_fill(r, &m->many, &(td_step_arrays){.counts = &(td_step_counts){.n_tok = ROWS}});
    td_rig_step_upload(r, &m->few);
    td_rig_step_upload(r, &m->many);
    td_rig_sync(r);
}

static td_status close_meeting(meeting *g, td_error *err) {
    td_status st = TD_OK;
    for (uint32_t i = 0; i < g->n; i++) {
        td_status closed = td_rig_close(&g->members[i].rig);
        if (closed != TD_OK && st == TD_OK) st = td_fail(err, closed, "card %u: %.300s", i, g->members[i].err.text);
    }
    if (g->group) g->members[0].npu->ops->group_destroy(g->group);
    free(g->members);
    return st;
}

static td_status open_meeting(meeting *g, const td_doctor_exam *e, td_error *err) {
    *g = (meeting){0};
    if (e->n_cards < 2) return td_fail(err, TD_ENOTSUP, "there is one card: nothing to sum");
    g->members = calloc(e->n_cards, sizeof *g->members);
    if (!g->members) return td_fail(err, TD_ENOMEM, "out of memory for a check");
    td_status st = e->cards[0]->ops->group_create(e->cards, e->n_cards, &g->group, err);
    if (st != TD_OK) {
        free(g->members);
        return st;
    }
    for (; g->n < e->n_cards; g->n++) open_member(&g->members[g->n], e, g->n, g->group);
    return TD_OK;
}

/* ---- what each card does, on a thread of its own ------------------------------------------------ */

static void fetch(member *m) {
    td_rig_sync(&m->rig);
    td_rig_get(&m->rig, m->out, m->got, td_rig_act_bytes(&m->rig, (size_t)ROWS * WIDTH));
}

static void *sum_once(void *arg) {
    member *m = arg;
    td_rig_enqueue(&m->rig, m->block, &m->many);
    fetch(m);
    return NULL;
}

static td_npu_graph *capture(member *m, const td_rig_step *s, int times) {
    td_rig       *r = &m->rig;
    td_npu_graph *g = NULL;
    if (r->st != TD_OK) return NULL;
    td_status st = r->ops->graph_begin(r->npu, r->stream);
    if (st != TD_OK) {
        td_rig_fail(r, st, "a capture cannot be begun");
        return NULL;
    }
    for (int i = 0; i < times; i++) td_rig_enqueue(r, m->block, s);
    st = r->ops->graph_end(r->npu, r->stream, &g, r->st == TD_OK ? r->err : NULL);
    if (r->st == TD_OK) r->st = st;
    return g;
}

static double launch(member *m, td_npu_graph *g) {
    td_rig  *r = &m->rig;
    uint64_t begin = td_trace_now();
    if (r->st != TD_OK) return NAN;
    td_status st = r->ops->graph_launch(r->npu, r->stream, g);
    if (st != TD_OK) td_rig_fail(r, st, "a capture cannot be replayed");
    td_rig_sync(r);
    return (double)(td_trace_now() - begin) * 1e-9;
}

static void *sum_replayed(void *arg) {
    member       *m = arg;
    td_npu_graph *g = capture(m, &m->many, 1);
    for (int i = 0; i < REPLAYS; i++) launch(m, g);
    fetch(m);
    if (g) m->npu->ops->graph_destroy(m->npu, g);
    return NULL;
}

static void *sum_timed(void *arg) {
    member *m = arg;
    m->few_s = m->many_s = INFINITY;
    for (int wide = 0; wide < 2; wide++) {
        td_npu_graph *g = capture(m, wide ? &m->many : &m->few, TIMED);
        double       *best = wide ? &m->many_s : &m->few_s;
        for (int i = 0; i < REPLAYS; i++) *best = fmin(*best, launch(m, g) / TIMED);
        if (g) m->npu->ops->graph_destroy(m->npu, g);
    }
    return NULL;
}

/* Runs a card's part. If it fails, it aborts the group, as the model does, so that the others do not wait for it. */
typedef struct {
    member       *member;
    td_npu_group *group;
    void *(*run)(void *);
} member_run;

static void *run_member(void *arg) {
    member_run *t = arg;
    t->run(t->member);
    if (t->member->rig.st != TD_OK) t->member->npu->ops->group_abort(t->group);
    return NULL;
}

static td_status on_cards(meeting *g, void *(*run)(void *), td_error *err) {
    member_run *runs = calloc(g->n, sizeof *runs);
    uint32_t    started = 0;
    td_status   st = runs ? TD_OK : td_fail(err, TD_ENOMEM, "out of memory for a check");
    for (; st == TD_OK && started < g->n; started++) {
        runs[started] = (member_run){&g->members[started], g->group, run};
        st = td_thread_start(&g->members[started].thread, "doctor's card", run_member, &runs[started], err);
        if (st != TD_OK) break;
    }
    if (st != TD_OK && runs) g->members[0].npu->ops->group_abort(g->group);
    for (uint32_t i = 0; i < started; i++) pthread_join(g->members[i].thread, NULL);
    free(runs);
    return st;
}

/* ---- comparing the sums --------------------------------------------------------------------------- */

/* The right sum: each card's part rounded to bf16, added in the order of the cards. */
static td_bf16 expected(const meeting *g, size_t at) {
    float total = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        float part = 0;
        for (size_t k = 0; k < ADDS; k++) part += g->members[i].parts[k * ROWS * WIDTH + at];
        part = td_bf16_to_f32(td_f32_to_bf16(part));
        total = i ? total + part : part;
    }
    return td_f32_to_bf16(total);
}

static void compare(const meeting *g, td_finding *f) {
    size_t wrong = 0;
    for (size_t at = 0; at < (size_t)ROWS * WIDTH; at++) {
        td_bf16 want = expected(g, at);
        for (uint32_t i = 0; i < g->n; i++) wrong += g->members[i].got[at] != want;
    }
    f->value = (double)wrong;
    f->bound = 0;
    f->unit = "values that are not the sum in the order of the cards";
}

static td_status members_failed(const meeting *g) {
    for (uint32_t i = 0; i < g->n; i++)
        if (g->members[i].rig.st != TD_OK) return g->members[i].rig.st;
    return TD_OK;
}

static td_status exam_sum(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    bool    replayed = arg != NULL;
    meeting g;
    TD_TRY(open_meeting(&g, e, err));
    td_status st = on_cards(&g, replayed ? sum_replayed : sum_once, err);
    if (st == TD_OK && members_failed(&g) == TD_OK) {
        compare(&g, f);
        snprintf(f->said, sizeof f->said, "%u cards", g.n);
    }
    td_status closed = close_meeting(&g, err);
    return st != TD_OK ? st : closed;
}

static td_status exam_time(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    meeting g;
    (void)arg;
    TD_TRY(open_meeting(&g, e, err));
    td_status st = on_cards(&g, sum_timed, err);
    if (st == TD_OK && members_failed(&g) == TD_OK) {
        snprintf(f->said, sizeof f->said, "1 row of %d in %.1f us", WIDTH, g.members[0].few_s * 1e6);
        f->value = g.members[0].many_s * 1e6;
        f->unit = "us for 32 rows";
    }
    td_status closed = close_meeting(&g, err);
    return st != TD_OK ? st : closed;
}

/* ---- giving up ------------------------------------------------------------------------------------ */

static td_status exam_abort(const td_doctor_exam *e, const void *arg, td_finding *f, td_error *err) {
    meeting g;
    (void)arg;
    TD_TRY(open_meeting(&g, e, err));
    td_status st = members_failed(&g);
    if (st == TD_OK) st = td_thread_start(&g.members[0].thread, "doctor's card", sum_once, &g.members[0], err);
    if (st == TD_OK) {
        uint64_t begin = td_trace_now();
        usleep(GIVE_UP_US); /* the card waits for the others, which do not come */
        g.members[0].npu->ops->group_abort(g.group);
        pthread_join(g.members[0].thread, NULL);
        f->value = (double)(td_trace_now() - begin) * 1e-6 - GIVE_UP_US * 1e-3;
        f->unit = "ms until the card was free";
        bool failed = g.members[0].rig.st != TD_OK;
        g.members[0].rig.st = TD_OK;
        g.members[0].err.text[0] = 0;
        if (!failed) st = td_fail(err, TD_EDEVICE, "a sum that one card alone came to succeeded");
    }
    if (st == TD_OK) {
        td_finding sums = {0};
        g.members[0].npu->ops->group_reset(g.group);
        st = on_cards(&g, sum_once, err);
        if (st == TD_OK) st = members_failed(&g);
        if (st == TD_OK) compare(&g, &sums);
        if (st == TD_OK && sums.value > 0) st = td_fail(err, TD_EDEVICE, "the sums after the reset are wrong");
    }
    td_status closed = close_meeting(&g, err);
    return st != TD_OK ? st : closed;
}

/* ---- the list ---------------------------------------------------------------------------------- */

#define RING "serve with one card (--tensor-parallel-size 1) until the cards reach each other", TD_SUBJECT_GROUP

static const char     REPLAYED[] = "";
static const td_check CHECKS[] = {
    {"cards", "sum", exam_sum, NULL, RING},
    {"cards", "sum, replayed", exam_sum, REPLAYED, RING},
    {"cards", "time of a sum", exam_time, NULL, RING},
    {"cards", "a card does not come", exam_abort, NULL,
     "after a failed step the other cards would hang: a server has to be restarted then; report this", TD_SUBJECT_NONE},
};

td_check_list td_exam_group(void) {
    return (td_check_list){CHECKS, sizeof CHECKS / sizeof *CHECKS};
}

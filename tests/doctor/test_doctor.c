/*
 * The doctor passes devices that are right, and names what is wrong with one that is not. Such a device computes one block
 * wrongly, forgets a copy, does not see a step's new lengths, or hangs. It is the host or "apart" with one function of its
 * table replaced.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "core/memory/mem.h"
#include "doctor/doctor.h"
#include "npu/host/host_npu.h"
#include "tests/td_test.h"

#define ROWS_MAX 160
#define CARDS 2
#define PATIENCE_S 60

/* ---- an examination ------------------------------------------------------------------------------ */

typedef struct {
    char              part[16], what[64];
    td_doctor_outcome outcome;
    char              text[160];
} row;

typedef struct {
    row    rows[ROWS_MAX];
    size_t n;
} report;

static void collect(void *user, const td_doctor_row *r) {
    report *to = user;
    assert_true(to->n < ROWS_MAX);
    row *x = &to->rows[to->n++];
    snprintf(x->part, sizeof x->part, "%s", r->part);
    snprintf(x->what, sizeof x->what, "%s", r->what);
    snprintf(x->text, sizeof x->text, "%g of %g; %.100s", r->value, r->bound, r->found ? r->found : "");
    x->outcome = r->outcome;
    if (r->outcome == TD_DOCTOR_FAILED) assert_non_null(r->advice);
}

typedef struct {
    td_pool   *pools[CARDS + 1];
    td_npu    *cards[CARDS], *reference;
    td_npu_ops ops; /* of the broken device */
} patient;

static td_npu *open_device(const char *name, td_dtype act, bool own_threads, td_pool **pool) {
    td_worker_place    place = {.cpu = TD_CPU_ANY, .node = TD_NODE_ANY};
    td_host_npu_config host = {.own_threads = own_threads};
    td_npu_config      config = {.act_dtype = act, .host = &host};
    td_npu            *npu;
    td_error           err = {0};
    if (td_pool_create(&place, 1, &host.pool, &err) != TD_OK) fail_msg("%s", err.text);
    *pool = host.pool;
    if (td_npu_open(name, &config, &npu, &err) != TD_OK) fail_msg("%s", err.text);
    return npu;
}

static void open_patient(patient *p, const char *name, bool own_threads) {
    for (size_t i = 0; i < CARDS; i++) p->cards[i] = open_device(name, TD_DT_BF16, own_threads, &p->pools[i]);
    p->reference = open_device("host", TD_DT_F32, false, &p->pools[CARDS]);
}

static void close_patient(patient *p) {
    for (size_t i = 0; i < CARDS; i++) p->cards[i]->ops->close(p->cards[i]);
    p->reference->ops->close(p->reference);
    for (size_t i = 0; i <= CARDS; i++) td_pool_destroy(p->pools[i]);
}

static td_status examine(patient *p, uint32_t n_cards, uint32_t patience_s, report *out) {
    td_error err = {0};
    *out = (report){.n = 0};
    return td_doctor_run(&WITH(td_doctor_exam, .cards = p->cards, .n_cards = n_cards, .reference = p->reference,
                               .patience_s = patience_s, .tell = collect, .user = out),
                         &err);
}

/* ---- devices that are right ------------------------------------------------------------------------ */

static void passes(const char *name, bool own_threads, uint32_t n_cards, size_t notes) {
    AT_END(close_patient) patient p;
    report                        r;
    size_t                        n_notes = 0;
    open_patient(&p, name, own_threads);
    OK(examine(&p, n_cards, PATIENCE_S, &r));
    for (size_t i = 0; i < r.n; i++) {
        if (r.rows[i].outcome == TD_DOCTOR_FAILED)
            fail_msg("%s: %s, %s: %s", name, r.rows[i].part, r.rows[i].what, r.rows[i].text);
        n_notes += r.rows[i].outcome == TD_DOCTOR_NOTE;
    }
    assert_true(r.n > 30);
    assert_int_equal(n_notes, notes);
}

TEST(host_passes) {
    passes("host", true, CARDS, 4);  /* one memory: no limit, no link to it or from it, nothing copied */
    passes("host", false, 1, 4 + 6); /* inline: no hand-overs; one card: no sums */
}

TEST(apart_passes) {
    passes("apart", true, CARDS, 0);
}

/* ---- devices that are wrong ------------------------------------------------------------------------ */

static struct {
    const td_npu_ops *real;
    unsigned          kinds; /* bits of those that are computed wrongly */
    struct {
        const td_npu_block *block;
        td_block_desc       desc;
    } blocks[64];
    size_t         n;
    const td_step *captured;
    bool           in_capture;
    uint32_t       lengths[8]; /* of the first replay */
    bool           has_lengths;
} seeded;

static td_status remember_block(td_npu *d, const td_block_desc *desc, td_npu_block **out, td_error *err) {
    td_status st = seeded.real->block_create(d, desc, out, err);
    size_t    i = 0;
    if (st != TD_OK) return st;
    while (i < seeded.n && seeded.blocks[i].block) i++;
    assert_true(i < 64);
    if (i == seeded.n) seeded.n++;
    seeded.blocks[i].block = *out;
    seeded.blocks[i].desc = *desc;
    return st;
}

static void forget_block(td_npu *d, td_npu_block *b) {
    for (size_t i = 0; i < seeded.n; i++)
        if (seeded.blocks[i].block == b) seeded.blocks[i].block = NULL;
    seeded.real->block_destroy(d, b);
}

static void negate_bf16(void *at) {
    for (size_t i = 0; i < 64; i++) ((td_bf16 *)at)[i] ^= 0x8000;
}

/* The beginning of what a block has computed, row 0. */
static void spoil(const td_block_desc *d) {
    switch (d->kind) {
        case TD_BLOCK_EMBED: negate_bf16(d->embed.out); break;
        case TD_BLOCK_NORM:
            if (d->norm.out_i8.q) d->norm.out_i8.scale[0] *= 1.5f;
            if (d->norm.out) negate_bf16(d->norm.out);
            break;
        case TD_BLOCK_LINEAR: negate_bf16(d->linear.out); break;
        case TD_BLOCK_MLA: negate_bf16(d->mla.out); break;
        case TD_BLOCK_GQA: negate_bf16(d->gqa.out); break;
        case TD_BLOCK_DELTA: negate_bf16(d->delta.out); break;
        case TD_BLOCK_SPARSE: negate_bf16(d->sparse.out); break;
        case TD_BLOCK_MIX: negate_bf16(d->mix.out); break;
        case TD_BLOCK_SPREAD: negate_bf16(d->spread.x); break;
        case TD_BLOCK_MLP: negate_bf16(d->mlp.out); break;
        case TD_BLOCK_ROUTER: d->router.weights[0] *= 1.1f; break;
        case TD_BLOCK_EXPERTS: negate_bf16(d->experts.out); break;
        case TD_BLOCK_RESIDENT: d->resident.sums[0] += 1; break;
        case TD_BLOCK_JOIN: negate_bf16(d->join.out); break;
        case TD_BLOCK_COMBINE: negate_bf16(d->combine.x); break;
        case TD_BLOCK_ALL_REDUCE: ((td_bf16 *)d->all_reduce.out)[5] ^= 1; break;
        case TD_BLOCK_HEAD: d->head.logits[3] += 10; break;
        case TD_BLOCK_TOP:
            d->top.top[1].id ^= 1;
            if (d->top.sums) d->top.sums[0].sum *= 1.001f;
            break;
        case TD_BLOCK_COUNT: break;
    }
}

static bool is_wrong(td_block_kind kind) {
    return seeded.kinds >> kind & 1;
}

static td_status wrong_block(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step) {
    td_status st = seeded.real->enqueue(d, s, b, step);
    for (size_t i = 0; st == TD_OK && !seeded.in_capture && i < seeded.n; i++)
        if (seeded.blocks[i].block == b && is_wrong(seeded.blocks[i].desc.kind)) spoil(&seeded.blocks[i].desc);
    return st;
}

/* What is captured is spoilt once, when it is launched: enough to be seen. */
static td_status wrong_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g) {
    td_status st = seeded.real->graph_launch(d, s, g);
    for (size_t i = 0; st == TD_OK && i < seeded.n; i++)
        if (seeded.blocks[i].block && is_wrong(seeded.blocks[i].desc.kind)) spoil(&seeded.blocks[i].desc);
    return st;
}

static td_status begin_capture(td_npu *d, td_npu_stream *s) {
    seeded.in_capture = true;
    return seeded.real->graph_begin(d, s);
}

static td_status end_capture(td_npu *d, td_npu_stream *s, td_npu_graph **out, td_error *err) {
    seeded.in_capture = false;
    return seeded.real->graph_end(d, s, out, err);
}

static td_status step_of_capture(td_npu *d, td_npu_stream *s, td_npu_block *b, const td_step *step) {
    if (seeded.in_capture && step->max_seq) seeded.captured = step;
    return seeded.real->enqueue(d, s, b, step);
}

static td_status stale_launch(td_npu *d, td_npu_stream *s, td_npu_graph *g) {
    if (seeded.captured && seeded.captured->max_seq <= 8) {
        size_t bytes = seeded.captured->max_seq * sizeof(uint32_t);
        if (seeded.has_lengths)
            memcpy((void *)seeded.captured->host.kv_len, seeded.lengths, bytes);
        else
            memcpy(seeded.lengths, seeded.captured->host.kv_len, bytes);
        seeded.has_lengths = true;
    }
    return seeded.real->graph_launch(d, s, g);
}

static td_status dirty_alloc(td_npu *d, size_t bytes, void **out, td_error *err) {
    td_status st = seeded.real->alloc(d, bytes, out, err);
    if (st == TD_OK && bytes > 4 << 20) ((char *)*out)[bytes - 1] = 1;
    return st;
}

static td_status short_copy(td_npu *d, td_npu_stream *s, void *dst, const void *src, size_t bytes, td_copy_kind kind) {
    return seeded.real->copy(d, s, dst, src, bytes > 1 << 20 ? bytes - 1 : bytes, kind);
}

static td_status no_call(td_npu *d, td_npu_stream *s, td_host_fn fn, void *arg) {
    (void)d, (void)s, (void)fn, (void)arg;
    return TD_OK;
}

static td_status no_stream(td_npu *d, td_npu_stream **out, td_error *err) {
    (void)d;
    *out = NULL;
    if (err) snprintf(err->text, sizeof err->text, "the card fell off the bus");
    return TD_EDEVICE;
}

static void no_abort(td_npu_group *g) {
    (void)g;
}

static void seed(patient *p) {
    memset(&seeded, 0, sizeof seeded);
    seeded.real = p->cards[0]->ops;
    p->ops = *seeded.real;
}

/* Rows that failed are those whose part or whose text begins as the words say, all of them and no others. */
static void expect_failures(const char *what, const report *r, const char *const *words) {
    for (size_t i = 0; i < r->n; i++) {
        bool wanted = false;
        for (size_t k = 0; words[k]; k++)
            wanted |= !strncmp(r->rows[i].what, words[k], strlen(words[k])) ||
                      !strncmp(r->rows[i].part, words[k], strlen(words[k]));
        if (wanted != (r->rows[i].outcome == TD_DOCTOR_FAILED))
            fail_msg("%s: %s, %s is %s: %s", what, r->rows[i].part, r->rows[i].what, wanted ? "not found" : "blamed",
                     r->rows[i].text);
    }
}

#define KIND(name) (1u << TD_BLOCK_##name)

/* Several in one examination, each of them right in the others. */
TEST(wrong_blocks_are_named) {
    static const struct {
        unsigned    kinds;
        uint32_t    n_cards;
        const char *words[6];
    } CASES[] = {
        {KIND(EMBED) | KIND(MLA) | KIND(ROUTER) | KIND(HEAD), 1, {"embed", "mla", "router", "head"}},
        {KIND(NORM) | KIND(GQA) | KIND(COMBINE) | KIND(TOP), 1, {"norm", "gqa", "capture", "combine", "top"}},
        {KIND(LINEAR) | KIND(MLP), 1, {"linear", "mlp"}},
        {KIND(ALL_REDUCE), CARDS, {"sum", "a card does not come"}},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        AT_END(close_patient) patient p;
        report                        r;
        char                          what[32];
        open_patient(&p, "host", false);
        seed(&p);
        seeded.kinds = CASES[i].kinds;
        p.ops.block_create = remember_block;
        p.ops.block_destroy = forget_block;
        p.ops.enqueue = wrong_block;
        p.ops.graph_begin = begin_capture;
        p.ops.graph_end = end_capture;
        p.ops.graph_launch = wrong_launch;
        p.cards[0]->ops = &p.ops;
        snprintf(what, sizeof what, "kinds 0x%x", CASES[i].kinds);
        OK(examine(&p, CASES[i].n_cards, PATIENCE_S, &r));
        expect_failures(what, &r, CASES[i].words);
        p.cards[0]->ops = seeded.real;
    }
}

/* ---- runtimes that are wrong ----------------------------------------------------------------------- */

/* An examination of a device with other functions: every row of the part fails. */
static void examine_broken(patient *p, uint32_t n_cards, const char *part) {
    report r;
    p->cards[0]->ops = &p->ops;
    OK(examine(p, n_cards, PATIENCE_S, &r));
    p->cards[0]->ops = seeded.real;
    for (size_t i = 0; i < r.n; i++)
        if (!strcmp(r.rows[i].part, part) && r.rows[i].outcome != TD_DOCTOR_FAILED)
            fail_msg("%s, %s is not found: %s", part, r.rows[i].what, r.rows[i].text);
}

TEST(wrong_runtimes_are_named) {
    static const char *const MEMORY[] = {"zeroed", NULL}, *const REPLAY[] = {"capture", NULL};
    patient p;
    report  r;
    open_patient(&p, "host", false);
    seed(&p);
    p.cards[0]->ops = &p.ops;
    p.ops.alloc = dirty_alloc;
    OK(examine(&p, 1, PATIENCE_S, &r));
    expect_failures("memory that is not zeroed", &r, MEMORY);
    p.ops = *seeded.real;
    p.ops.graph_begin = begin_capture;
    p.ops.graph_end = end_capture;
    p.ops.enqueue = step_of_capture;
    p.ops.graph_launch = stale_launch;
    OK(examine(&p, 1, PATIENCE_S, &r));
    expect_failures("a replay with old lengths", &r, REPLAY);
    p.cards[0]->ops = seeded.real;
    close_patient(&p);

    open_patient(&p, "apart", true);
    seed(&p);
    p.ops.copy = short_copy;
    examine_broken(&p, 1, "link");
    p.ops = *seeded.real;
    p.ops.host_call = no_call;
    examine_broken(&p, 1, "stream");
    p.ops = *seeded.real;
    p.ops.stream_create = no_stream;
    examine_broken(&p, CARDS, "block");
    close_patient(&p);
}

/* A check that hangs ends the examination with a row: in a process of its own, which is left as it is. */
TEST(hanging_is_told) {
    pid_t child = fork();
    if (child == 0) {
        patient p;
        report  r;
        open_patient(&p, "host", true);
        seed(&p);
        p.cards[0]->ops = &p.ops;
        p.ops.group_abort = no_abort;
        td_status  st = examine(&p, CARDS, 10, &r);
        const row *last = &r.rows[r.n - 1];
        bool right = st == TD_EDEVICE && last->outcome == TD_DOCTOR_FAILED && !strcmp(last->what, "a card does not come") &&
                     strstr(last->text, "has not ended within 10 s");
        if (!right) fprintf(stderr, "status %d, %s: %s\n", (int)st, last->what, last->text);
        _exit(right ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
}

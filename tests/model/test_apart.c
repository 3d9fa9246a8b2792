/*
 * A device with a memory of its own computes what the host does: logits, routing and the layers' taps are the same, bit for
 * bit. The cases are prompts in chunks, generated tokens, both in one step, steps in two halves, deferral, and the MTP
 * layer, with either form of hand-over. A step of generated tokens moves exactly as many bytes over the link as the design
 * says.
 */

#include "core/log/log.h"
#include "core/math/rng.h"
#include "core/memory/mem.h"
#include "model/step_buf.h"
#include "model_run.h"
#include "tests/td_test.h"

#define SEED 20261122u
#define N_SEQ 3
#define MAX_LEN 160 /* two pages */
#define MAX_TOK 90
#define STEPS 9

/* ---- the same bits ---------------------------------------------------------------------------- */

/* Rows of the sequences in each step: prompts in chunks over the border of a page, and tokens one by one among them. */
static const uint32_t ROWS[STEPS][N_SEQ] = {
    {40, 0, 0}, {50, 37, 0}, {45, 1, 30}, {1, 1, 45}, {1, 1, 1}, {1, 0, 1}, {1, 60, 1}, {1, 1, 1}, {0, 0, 1},
};

/* A checksum of what each step showed, so that a difference has a place. */
typedef struct {
    uint64_t logits[STEPS], mtp[STEPS], routing[STEPS], layers[STEPS];
    size_t   row_bytes, top_k;
    uint32_t step;
} shown;

/* FNV-1a over words of 8 bytes. */
static void mix(uint64_t *sum, const void *p, size_t bytes) {
    const char *at = p;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, at + i, bytes - i < 8 ? bytes - i : 8);
        *sum = (*sum ^ word) * UINT64_C(0x100000001b3);
    }
}

static void see_layer(void *user, const td_layer_output *o) {
    shown    *s = user;
    size_t    bytes = o->n_tok * s->row_bytes, pairs = o->n_tok * s->top_k;
    uint64_t *sum = &s->layers[s->step];
    mix(sum, o->x, bytes);
    if (!o->routed) return;
    mix(sum, o->routed, bytes);
    mix(sum, o->expert_x, bytes);
    mix(sum, o->expert_ids, pairs * sizeof *o->expert_ids);
    mix(sum, o->expert_weights, pairs * sizeof *o->expert_weights);
    if (o->deferred) mix(sum, o->deferred, bytes);
}

static uint32_t make_pieces(uint32_t step, uint32_t ids[N_SEQ][MAX_LEN], uint32_t done[N_SEQ], model_piece *pieces) {
    uint32_t n = 0;
    for (uint32_t q = 0; q < N_SEQ; q++) {
        uint32_t rows = ROWS[step][q];
        if (!rows) continue;
        pieces[n++] = (model_piece){.seq = q, .first = done[q], .n = rows, .ids = &ids[q][done[q]], .absorbed = rows == 1};
        done[q] += rows;
    }
    return n;
}

static void see_routing(const model_run *r, uint32_t n_tok, uint64_t *sum) {
    const td_model_config *c = td_model_get_config(r->model);
    for (uint32_t l = 0; l < td_model_config_moe_layers(c); l++) {
        const uint16_t *ids;
        const float    *weights;
        size_t          pairs = (size_t)n_tok * c->top_k;
        td_model_get_routing(r->model, l, &ids, &weights);
        mix(sum, ids, pairs * sizeof *ids);
        mix(sum, weights, pairs * sizeof *weights);
    }
}

static void run_step(model_run *r, const td_step_rows *rows, shown *s) {
    const td_model_config *c = td_model_get_config(r->model);
    uint32_t               all[MAX_TOK];
    const float           *mtp;
    FREED float           *logits = malloc(rows->n_tok * c->vocab * sizeof *logits);
    assert_non_null(logits);
    model_run_logits(r, rows->n_tok, logits);
    mix(&s->logits[s->step], logits, rows->n_tok * c->vocab * sizeof *logits);
    if (c->n_mtp_layers) {
        for (uint32_t i = 0; i < rows->n_tok; i++) all[i] = i;
        OK(td_model_mtp(r->model, rows->token));
        OK(td_model_mtp_head(r->model, (td_out_rows){.row = all, .n = rows->n_tok}, &mtp));
        mix(&s->mtp[s->step], mtp, rows->n_tok * c->vocab * sizeof *mtp);
    }
    see_routing(r, rows->n_tok, &s->routing[s->step]);
}

static shown run_all(const model_run_options *given) {
    shown                             s = {0};
    model_run_options                 o = *given;
    AT_END(model_run_close) model_run r;
    model_piece                       pieces[N_SEQ];
    uint32_t                          ids[N_SEQ][MAX_LEN], done[N_SEQ] = {0};
    o.tap_user = &s;
    model_run_open(&r, &o);
    const td_model_config *c = td_model_get_config(r.model);
    s.row_bytes = c->hidden * (o.w8a8 ? sizeof(td_bf16) : sizeof(float));
    s.top_k = c->top_k;
    for (uint32_t q = 0; q < N_SEQ; q++)
        for (uint32_t i = 0; i < MAX_LEN; i++) ids[q][i] = (uint32_t)(td_rng_u64(SEED, q, i) % c->vocab);
    for (s.step = 0; s.step < STEPS; s.step++) {
        uint32_t n = make_pieces(s.step, ids, done, pieces);
        run_step(&r, model_run_forward(&r, pieces, n), &s);
    }
    return s;
}

static void check_same(const shown *got, const shown *want, const char *what) {
    for (uint32_t i = 0; i < STEPS; i++) {
        if (got->layers[i] != want->layers[i]) fail_msg("%s, step %u: other layers", what, i);
        if (got->routing[i] != want->routing[i]) fail_msg("%s, step %u: other experts", what, i);
        if (got->logits[i] != want->logits[i]) fail_msg("%s, step %u: other logits", what, i);
        if (got->mtp[i] != want->mtp[i]) fail_msg("%s, step %u: other logits of the MTP layer", what, i);
    }
}

/* In both forms, against the host device that shares the experts' threads. */
static void check_forms(model_run_options o) {
    shown want = run_all(&o);
    assert_true(want.logits[0] && want.routing[STEPS - 1] && (want.layers[0] != 0) == (o.layer_tap != NULL));
    for (int other = 0; other < 2; other++) {
        o.device = "apart";
        o.other_handover = other;
        shown got = run_all(&o);
        check_same(&got, &want, other ? "apart, the other hand-over" : "apart");
        o.device = "host";
        o.npu_threads = 1;
        got = run_all(&o);
        check_same(&got, &want, other ? "host, device threads, the other hand-over" : "host, device threads");
    }
}

/* @param by_layers the model shows its layers by themselves. */
static void check_model(const char *path, bool w8a8, bool by_layers) {
    static const uint32_t DEFERRED[] = {0, 1};
    for (size_t i = 0; i < 2; i++) {
        model_run_options o =
            WITH(model_run_options, .device = "host", .path = path, .w8a8 = w8a8, .max_deferred = DEFERRED[i],
                 .experts = w8a8 ? TD_EXPERT_INT4C : TD_EXPERT_BF16, .max_tok = MAX_TOK, .n_seq = N_SEQ, .max_len = MAX_LEN);
        o.overlap_min_tok = 2;
        check_forms(o);
        if (!by_layers) continue;
        o.overlap_min_tok = 0;
        o.layer_tap = see_layer;
        check_forms(o);
    }
}

/* ---- what crosses the link -------------------------------------------------------------------- */

static uint64_t line(uint64_t bytes) {
    return td_round_up(bytes, TD_CACHE_LINE);
}

/* Of a step of n generated tokens, one of each sequence: n is the size of a bucket, max_seq and max_out are larger. */
static uint64_t step_bytes(uint64_t n, uint64_t pages_per_table) {
    uint64_t sequences = line(4 * (n + 1)) + line(4 * n) + line(n) + line(4 * n * pages_per_table);
    return line(sizeof(td_step_counts)) + sequences + 4 * line(4 * n); /* token, pos, slot, out_row */
}

/* What comes of a row's logits. */
typedef enum { WHOLE, BEST, BEST_AND_SUM, FORMS } row_form;

static void decode(model_run *r, uint32_t n, uint32_t at, row_form form, td_out_logprobs *sums, const float **logits) {
    static const bool all[8] = {true, true, true, true, true, true, true, true};
    uint32_t          out[8];
    td_step_rows_clear(&r->rows);
    for (uint32_t q = 0; q < n; q++) {
        uint32_t token = 5 + q;
        out[q] = q;
        td_step_sequence seq = {
            .pages = r->page + (size_t)q * r->pages_per_seq, .n_pages = r->pages_per_seq, .absorbed = true};
        td_step_rows_add(&r->rows, &token, at, 1, &seq);
    }
    td_out_rows wanted = {
        .row = out, .best = form != WHOLE ? all : NULL, .logprobs = form == BEST_AND_SUM ? sums : NULL, .n = n};
    OK(td_model_forward(r->model, &r->rows, wanted, logits));
}

static void check_link(const char *path, uint32_t max_deferred, bool other_handover) {
    model_run_options o =
        WITH(model_run_options, .device = "apart", .path = path, .w8a8 = true, .other_handover = other_handover,
             .experts = TD_EXPERT_INT4C, .max_deferred = max_deferred, .max_tok = 64, .n_seq = 8, .max_len = 100);
    AT_END(model_run_close) model_run r;
    td_model_work                     before, after;
    model_run_open(&r, &o);
    const td_model_config *c = td_model_get_config(r.model);
    uint64_t               n_moe = td_model_config_moe_layers(c) - c->n_mtp_layers, row = c->hidden * sizeof(td_bf16);
    uint64_t               x = c->hidden + sizeof(float); /* codes and their scale: the experts multiply int8 */
    uint64_t               chosen = c->top_k * (sizeof(uint16_t) + sizeof(float)), deferred = max_deferred ? n_moe - 1 : 0;
    uint64_t               longest = (uint64_t)r.n_pages * TD_KV_PAGE; /* that a sequence can be */
    if (longest > td_model_context_length(r.model)) longest = td_model_context_length(r.model);
    FREED float *whole = malloc(8 * (size_t)c->vocab * sizeof *whole);
    assert_non_null(whole);
    for (uint32_t step = 0; step < 4 * FORMS; step++) { /* every form of the same tokens */
        row_form        form = step % FORMS;
        uint32_t        at = step / FORMS;
        const float    *logits;
        td_out_logprobs sums[8];
        uint64_t        n = 1u << at, asked = 0, top = c->vocab < TD_MODEL_TOP ? c->vocab : TD_MODEL_TOP;
        td_model_get_work(r.model, &before);
        for (uint32_t i = 0; i < n; i++) {
            sums[i] = (td_out_logprobs){.wanted = i != 1, .id = i == 2 ? UINT32_MAX : (i * 77 + at) % c->vocab};
            asked += form == BEST_AND_SUM && sums[i].wanted && sums[i].id < c->vocab;
        }
        decode(&r, (uint32_t)n, at, form, sums, &logits);
        td_model_get_work(r.model, &after);
        if (form == WHOLE) memcpy(whole, logits, n * c->vocab * sizeof *whole);
        if (form == BEST_AND_SUM) check_log_sums(whole, logits, c->vocab, sums, (uint32_t)n);
        uint64_t down = step_bytes(n, longest / TD_KV_PAGE + 1) + n * row * (n_moe + deferred);
        uint64_t up = n * n_moe * (x + chosen) + n * (form != WHOLE ? top * sizeof(td_logit) : c->vocab * sizeof(float));
        if (form == BEST_AND_SUM) up += n * sizeof(td_log_sum) + asked * sizeof(float);
        assert_int_equal(after.link_down_bytes - before.link_down_bytes, down);
        assert_int_equal(after.link_up_bytes - before.link_up_bytes, up);
    }
}

TEST(link_bytes) {
    static const char *const FOLDERS[] = {
        "tests/data/golden/deepseek_v2_lite",
        "tests/data/golden/qwen3_moe",
        "models/tale-v3-14m",
    };
    for (size_t i = 0; i < sizeof FOLDERS / sizeof *FOLDERS; i++)
        for (uint32_t deferred = 0; deferred < 2; deferred++)
            for (int other = 0; other < 2; other++) check_link(FOLDERS[i], deferred, other);
}

#define FOLDER_TEST(name)                                     \
    TEST(name) {                                              \
        check_model("tests/data/golden/" #name, false, true); \
    }
FOLDER_TEST(deepseek_v2_lite)
FOLDER_TEST(deepseek_v2_group)
FOLDER_TEST(deepseek_v3_yarn)
FOLDER_TEST(deepseek_v3_noqlora)
FOLDER_TEST(qwen3_moe)
FOLDER_TEST(qwen3_moe_tied)
FOLDER_TEST(qwen2_moe)
FOLDER_TEST(glm4_moe)
FOLDER_TEST(glm4_moe_yarn)
FOLDER_TEST(glm4_moe_lite)
FOLDER_TEST(minimax_m2)
FOLDER_TEST(kimi_k25)
FOLDER_TEST(deepseek_v32)
FOLDER_TEST(glm_moe_dsa)
FOLDER_TEST(gpt_oss)
FOLDER_TEST(qwen3_next)
FOLDER_TEST(qwen3_5_moe)
FOLDER_TEST(qwen3_vl_moe)
FOLDER_TEST(kimi_linear)

TEST(several_residual_streams) {
    check_model("tests/data/golden/deepseek_v4", false, false);
    check_model("tests/data/golden/glm5_next", false, false);
}

TEST(the_demo_model) {
    check_model("models/tale-v3-14m", true, true);
}

int main(void) {
    td_log_set_level(TD_LOG_WARNING); /* it loads a hundred models */
    return tests_run();
}

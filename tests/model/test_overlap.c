/*
 * The two halves of a step are exact. Random steps (prompts that are cut anywhere, generated tokens between them) give the
 * same logits and routing, bit for bit, whether a step goes through whole or as two halves. This holds with one pool or two,
 * and with every deferral. CTest runs this again with random delays in every device operation, pool item and hand-over
 * (TD_CHAOS_SEED).
 */

#include "core/log/log.h"
#include "core/math/rng.h"
#include "model_run.h"
#include "tests/td_test.h"

#define SEED 20261123u
#define N_SEQ 4
#define MAX_LEN 256
#define STEPS 8
#define MAX_TOK 101 /* odd: the halves' buffers differ in size */
#define ROWS_MAX 60 /* of a piece */

typedef struct {
    uint32_t    ids[N_SEQ][MAX_LEN], n_pieces[STEPS], n_tok[STEPS];
    model_piece pieces[STEPS][N_SEQ];
} scenario;

static uint64_t g_draws;
static uint32_t draw(uint32_t n) {
    return (uint32_t)(td_rng_u64(SEED, 0, g_draws++) % n);
}

/* Every sequence gets, per step, nothing, a generated token, or some rows of its prompt. */
static void make_scenario(scenario *s, uint32_t vocab) {
    uint32_t done[N_SEQ] = {0};
    *s = (scenario){0};
    for (uint32_t q = 0; q < N_SEQ; q++)
        for (uint32_t i = 0; i < MAX_LEN; i++) s->ids[q][i] = draw(vocab);
    for (uint32_t i = 0; i < STEPS; i++) {
        for (uint32_t k = 0; k < N_SEQ; k++) {
            uint32_t q = (k + i) % N_SEQ, kind = draw(4), n = kind == 0 ? 0 : kind == 1 && done[q] ? 1 : 1 + draw(ROWS_MAX);
            if (i == 0) n = k == 0 ? ROWS_MAX - 1 : 0; /* one prompt alone: the cut is within it */
            if (n > MAX_TOK - s->n_tok[i]) n = MAX_TOK - s->n_tok[i];
            if (n > MAX_LEN - done[q]) n = MAX_LEN - done[q];
            if (n == 0) continue;
            s->pieces[i][s->n_pieces[i]++] =
                (model_piece){.seq = q, .first = done[q], .n = n, .ids = &s->ids[q][done[q]], .absorbed = n == 1 && done[q]};
            done[q] += n;
            s->n_tok[i] += n;
        }
    }
}

typedef struct {
    char  *bytes;
    size_t n, room;
} record;

static void append(record *r, const void *v, size_t bytes) {
    if (r->n + bytes > r->room) {
        r->room = 2 * (r->n + bytes);
        r->bytes = realloc(r->bytes, r->room);
        assert_non_null(r->bytes);
    }
    memcpy(r->bytes + r->n, v, bytes);
    r->n += bytes;
}

/* All logits and all routing of the scenario, the MTP layer's too. */
static record run_scenario(const scenario *s, const model_run_options *o) {
    AT_END(model_run_close) model_run r;
    record                            out = {0};
    model_run_open(&r, o);
    const td_model_config *c = td_model_get_config(r.model);
    FREED float           *logits = malloc((size_t)MAX_TOK * c->vocab * sizeof *logits);
    for (uint32_t i = 0; i < STEPS; i++) {
        if (s->n_tok[i] == 0) continue;
        const td_step_rows *step = model_run_forward(&r, s->pieces[i], s->n_pieces[i]);
        model_run_logits(&r, s->n_tok[i], logits);
        append(&out, logits, (size_t)s->n_tok[i] * c->vocab * sizeof *logits);
        if (c->n_mtp_layers) {
            uint32_t     rows[MAX_TOK];
            const float *mtp;
            for (uint32_t row = 0; row < s->n_tok[i]; row++) rows[row] = row;
            OK(td_model_mtp(r.model, step->token));
            OK(td_model_mtp_head(r.model, (td_out_rows){.row = rows, .n = s->n_tok[i]}, &mtp));
            append(&out, mtp, (size_t)s->n_tok[i] * c->vocab * sizeof *mtp);
        }
        for (uint32_t l = 0; l < td_model_config_moe_layers(c); l++) {
            const uint16_t *ids;
            const float    *weights;
            size_t          pairs = (size_t)s->n_tok[i] * c->top_k;
            td_model_get_routing(r.model, l, &ids, &weights);
            append(&out, ids, pairs * sizeof *ids);
            append(&out, weights, pairs * sizeof *weights);
        }
    }
    return out;
}

static void check_model(const char *path, uint32_t vocab, uint32_t top_k, bool w8a8) {
    static const struct {
        const char *what;
        uint32_t    npu_threads, overlap_min_tok;
    } runs[] = {
        {"one pool, whole", 0, 0},
        {"one pool, halves", 0, 2},
        {"two pools, whole", 1, 0},
        {"two pools, halves", 1, 2},
        {"two pools, some in halves", 1, MAX_TOK / 2},
    };
    static scenario s;
    make_scenario(&s, vocab);
    for (uint32_t deferred = 0; deferred < top_k; deferred++) {
        record first = {0};
        for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
            record got =
                run_scenario(&s, &WITH(model_run_options, .path = path, .w8a8 = w8a8,
                                       .experts = w8a8 ? TD_EXPERT_INT4C : TD_EXPERT_BF16, .max_deferred = deferred,
                                       .npu_threads = runs[i].npu_threads, .overlap_min_tok = runs[i].overlap_min_tok,
                                       .max_tok = MAX_TOK, .n_seq = N_SEQ, .max_len = MAX_LEN));
            if (i == 0) {
                first = got;
                continue;
            }
            assert_int_equal(got.n, first.n);
            if (memcmp(got.bytes, first.bytes, got.n))
                fail_msg("%s, %u deferred, %s: other bits than %s", path, deferred, runs[i].what, runs[0].what);
            free(got.bytes);
        }
        free(first.bytes);
    }
}

#define FOLDER_TEST(name, top_k)                                    \
    TEST(name) {                                                    \
        check_model("tests/data/golden/" #name, 320, top_k, false); \
    }
FOLDER_TEST(deepseek_v2_lite, 3)
FOLDER_TEST(deepseek_v2_group, 4)
FOLDER_TEST(deepseek_v3_yarn, 4)
FOLDER_TEST(deepseek_v3_noqlora, 4)
FOLDER_TEST(qwen3_moe, 2)
FOLDER_TEST(qwen3_moe_tied, 3)
FOLDER_TEST(qwen2_moe, 2)
FOLDER_TEST(glm4_moe, 4)
FOLDER_TEST(minimax_m2, 4)
FOLDER_TEST(gpt_oss, 3)
FOLDER_TEST(qwen3_next, 2)
FOLDER_TEST(qwen3_5_moe, 2)
FOLDER_TEST(kimi_linear, 4)
FOLDER_TEST(deepseek_v4, 2)
FOLDER_TEST(glm5_next, 4)
FOLDER_TEST(deepseek_v32, 4)
FOLDER_TEST(glm_moe_dsa, 4)

TEST(demo_model_with_mtp) {
    check_model("models/tale-v3-14m", 4096, 4, true);
}

BEFORE_ALL {
    td_log_set_level(TD_LOG_WARNING); /* it loads a hundred models */
    const char *chaos = getenv("TD_CHAOS_SEED");
    print_message("seed %u, TD_CHAOS_SEED %s\n", SEED, chaos ? chaos : "not set");
}

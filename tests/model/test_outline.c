/* The operations that a pass of each family enqueues, and their order, whole and in two halves. */

#include "model/program.h"
#include "tests/model/model_run.h"
#include "tests/td_test.h"

#define TEXT_MAX 2048

/* One word an operation; blocks with what the family said of them. */
static const char *word_of(const td_outline_op *op, char *text, size_t size) {
    static const char *const BLOCKS[TD_BLOCK_COUNT] = {"embed",    "norm",  "mix",     "spread",     "linear", "mla",
                                                       "gqa",      "delta", "sparse",  "mlp",        "router", "experts",
                                                       "resident", "join",  "combine", "all_reduce", "head",   "top"};
    if (op->kind == TD_OP_SUBMIT) return "SUBMIT";
    if (op->kind == TD_OP_COLLECT) return "COLLECT";
    if (op->block.kind == TD_BLOCK_GQA && op->block.gqa.window)
        snprintf(text, size, "gqa(%u)", op->block.gqa.window);
    else
        snprintf(text, size, "%s", BLOCKS[op->block.kind]);
    return text;
}

/* The words of all operations; of halves "A:", "B:" or "whole:" before those of each. */
static void outline_text(const td_model *m, uint32_t n_halves, char *text) {
    AT_END(td_outline_free) td_outline o;
    td_error                           err = {0};
    uint32_t                           half = TD_OUTLINE_WHOLE;
    char                               word[32];
    size_t                             at = 0;
    OK(td_model_outline(m, n_halves, &o, &err));
    for (uint32_t i = 0; i < o.n; i++) {
        bool another = o.ops[i].half != half;
        half = o.ops[i].half;
        const char *of = !another ? "" : half == 0 ? " A:" : half == 1 ? " B:" : " whole:";
        at += (size_t)snprintf(text + at, TEXT_MAX - at, "%s %s", of, word_of(&o.ops[i], word, sizeof word));
        assert_true(at < TEXT_MAX);
    }
}

#define DENSE(attention) " norm " attention " norm mlp combine"
#define BEGIN(attention) " norm " attention " norm router SUBMIT"
#define END " COLLECT combine"
#define END_SHARED " mlp COLLECT combine"
#define MOE(attention) BEGIN(attention) END
#define MOE_SHARED(attention) BEGIN(attention) END_SHARED
#define STREAMS_DENSE(attention) " mix " attention " spread mix mlp spread"
#define STREAMS(attention) " mix " attention " spread mix router SUBMIT mlp COLLECT spread"

/* Where halves is NULL only the whole step is looked at. */
/* clang-format off */
static const struct {
    const char *folder, *whole, *halves;
} FAMILIES[] = {
    {"deepseek_v3_yarn", " embed" DENSE("mla") MOE_SHARED("mla") MOE_SHARED("mla") " head",
     " A: embed" DENSE("mla") " B: embed" DENSE("mla")           /* layer 0 */
     " A:" BEGIN("mla") " B:" BEGIN("mla")                       /* layer 1, up to its experts */
     " A:" END_SHARED BEGIN("mla") " B:" END_SHARED BEGIN("mla") /* the rest of it, and layer 2 */
     " A:" END_SHARED " B:" END_SHARED " whole: head"},
    {"qwen2_moe", " embed" DENSE("gqa") MOE_SHARED("gqa") DENSE("gqa") MOE_SHARED("gqa") " head", NULL},
    {"qwen3_moe", " embed" MOE("gqa") DENSE("gqa") MOE("gqa") MOE("gqa") " head", NULL},
    {"glm4_moe", " embed" DENSE("gqa") MOE_SHARED("gqa") MOE_SHARED("gqa") " head", NULL},
    {"glm4_moe_lite", " embed" DENSE("mla") MOE_SHARED("mla") DENSE("mla") MOE_SHARED("mla") " head",
     " A: embed" DENSE("mla") " B: embed" DENSE("mla") /* layer 0 */
     " A:" BEGIN("mla") " B:" BEGIN("mla")
     " A:" END_SHARED DENSE("mla") " B:" END_SHARED DENSE("mla") /* the rest of layer 1, and layer 2 */
     " A:" BEGIN("mla") " B:" BEGIN("mla")
     " A:" END_SHARED " B:" END_SHARED " whole: head"},
    {"minimax_m2", " embed" MOE("gqa") MOE("gqa") MOE("gqa") " head", NULL},
    {"gpt_oss", " embed" MOE("gqa(20)") MOE("gqa") MOE("gqa(20)") MOE("gqa") " head", NULL},
    {"qwen3_next", " embed" MOE_SHARED("delta") DENSE("delta") MOE_SHARED("delta") MOE_SHARED("gqa") MOE_SHARED("delta") " head", NULL},
    {"glm_moe_dsa", " embed" DENSE("mla") MOE_SHARED("mla") MOE_SHARED("mla") MOE_SHARED("mla") MOE_SHARED("mla") " head", NULL},
    {"kimi_linear", " embed" DENSE("delta") MOE_SHARED("delta") MOE_SHARED("delta") MOE_SHARED("mla") MOE_SHARED("delta") MOE_SHARED("mla") " head", NULL},
    {"deepseek_v4", " embed" STREAMS("sparse") STREAMS("sparse") STREAMS("sparse") STREAMS("sparse") STREAMS("sparse") STREAMS("sparse") " mix head", NULL},
    {"glm5_next", " embed" STREAMS_DENSE("delta") STREAMS("delta") STREAMS("mla") STREAMS("delta") STREAMS("mla") STREAMS("mla") " mix head", NULL},
};
/* clang-format on */

TEST(passes_are_as_the_families_say) {
    for (size_t i = 0; i < sizeof FAMILIES / sizeof *FAMILIES; i++) {
        char                              path[128], text[TEXT_MAX];
        AT_END(model_run_close) model_run r;
        model_run_options o = {.path = path, .w8a8 = true, .experts = TD_EXPERT_INT4C, .device = "host", .n_cards = 1};
        o.npu_threads = o.overlap_min_tok = o.n_seq = 1;
        o.max_len = TD_KV_PAGE;
        snprintf(path, sizeof path, "tests/data/golden/%s", FAMILIES[i].folder);
        model_run_open(&r, &o);
        outline_text(r.model, 1, text);
        assert_string_equal(text, FAMILIES[i].whole);
        outline_text(r.model, TD_HALVES, text);
        if (FAMILIES[i].halves) assert_string_equal(text, FAMILIES[i].halves);
    }
}

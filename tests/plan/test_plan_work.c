/* The work that a plan counts from config.json alone is what a loaded model counts while it runs: the same bytes and
 * operations, for every architecture. The plan's memory is what the model plans. */

#include "plan/plan.h"
#include "tests/model/model_run.h"
#include "tests/td_test.h"

static const char *const MODELS[] = {"tests/data/golden/deepseek_v2_lite", "tests/data/golden/deepseek_v3_yarn",
                                     "tests/data/golden/qwen3_moe", "tests/data/golden/qwen2_moe"};

static td_model_work work_of(model_run *r, const model_piece *pieces, uint32_t n) {
    td_model_work before, after;
    td_model_get_work(r->model, &before);
    model_run_forward(r, pieces, n);
    td_model_get_work(r->model, &after);
    return (td_model_work){.device = {.bytes = after.device.bytes - before.device.bytes,
                                      .int8_ops = after.device.int8_ops - before.device.int8_ops,
                                      .f32_ops = after.device.f32_ops - before.device.f32_ops},
                           .experts = {.bytes = after.experts.bytes - before.experts.bytes,
                                       .int8_ops = after.experts.int8_ops - before.experts.int8_ops}};
}

/* All parts of a step but the head, whose rows the run does not ask for, and norms, whose bytes are activations. */
static td_model_work planned(const td_plan_step *s) {
    td_model_work sum = {0};
    double        bytes = 0, int8_ops = 0, float_ops = 0;
    for (int i = 0; i < TD_PLAN_PARTS; i++) {
        const td_plan_part *p = &s->part[i];
        if (i == TD_PLAN_HEAD || i == TD_PLAN_EXPERTS || i == TD_PLAN_ROWS) continue;
        bytes += p->bytes;
        int8_ops += p->int8_ops;
        float_ops += p->float_ops;
    }
    sum.device = (td_tier_work){
        .bytes = (uint64_t)llround(bytes), .int8_ops = (uint64_t)llround(int8_ops), .f32_ops = (uint64_t)llround(float_ops)};
    sum.experts = (td_tier_work){.bytes = (uint64_t)llround(s->part[TD_PLAN_EXPERTS].bytes),
                                 .int8_ops = (uint64_t)llround(s->part[TD_PLAN_EXPERTS].int8_ops)};
    return sum;
}

static void compare(const td_model_config *c, const td_plan_step *s, const td_model_work *ran, uint32_t rows) {
    td_model_work plan = planned(s);
    uint64_t      gates = c->shared_gate ? td_moe_layers_in(c, (td_layer_range){0, c->n_layers}) * (uint64_t)c->hidden : 0;
    assert_int_equal(plan.device.bytes + gates * sizeof(float), ran->device.bytes); /* a plan knows of no gates */
    assert_int_equal(plan.device.int8_ops, ran->device.int8_ops);
    assert_int_equal(plan.device.f32_ops + 2 * gates * rows, ran->device.f32_ops);
    assert_int_equal(plan.experts.int8_ops, ran->experts.int8_ops);
    if (rows == 1) assert_int_equal(plan.experts.bytes, ran->experts.bytes); /* of more rows it is an expectation */
}

#define CONTEXT 20
#define PROMPT 40
#define STREAMS 3

/* A measurement whose rounds differ says that the machine was busy; one whose rounds agree does not. */
TEST(a_busy_machine_is_told) {
    td_error               err = {0};
    FREED td_plan_machine *m = malloc(sizeof *m);
    FREED td_plan         *plan = malloc(sizeof *plan);
    td_plan_request        request = {.streams = {1, {1}}, .contexts = {1, {CONTEXT}}, .prompts = {1, {PROMPT}}};
    td_plan_machine_init(m);
    m->n_nodes = 1;
    m->node[0] = (td_plan_node){
        .cores = 2, .memory_bytes = 8e9, .read_bytes_per_s = 1e10, .int8_ops_per_s = 1e12, .float_ops_per_s = 1e11};
    td_engine_options_init(&request.engine);
    request.engine.model_path = repo_path(MODELS[0]);
    OK(td_plan_make(&request, m, plan, &err));
    for (int busy = 0; busy < 2; busy++) {
        FREED char *text = NULL;
        size_t      n = 0;
        FILE       *f = open_memstream(&text, &n);
        m->spread = busy ? TD_PLAN_BUSY_SPREAD + 0.1 : TD_PLAN_BUSY_SPREAD;
        td_plan_print(plan, m, f);
        fclose(f);
        assert_int_equal(strstr(text, "the machine was busy") != NULL, busy);
    }
}

TEST(same_work) {
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        td_error               err = {0};
        uint32_t               ids[PROMPT];
        FREED td_plan_machine *m = malloc(sizeof *m);
        FREED td_plan         *plan = malloc(sizeof *plan);
        td_plan_request request = {.streams = {2, {1, STREAMS}}, .contexts = {1, {CONTEXT}}, .prompts = {1, {PROMPT}}};
        td_plan_machine_init(m);
        m->n_nodes = 1;
        m->node[0] = (td_plan_node){
            .cores = 2, .memory_bytes = 8e9, .read_bytes_per_s = 1e10, .int8_ops_per_s = 1e12, .float_ops_per_s = 1e11};
        td_engine_options_init(&request.engine);
        request.engine.model_path = repo_path(MODELS[i]);
        request.engine.expert_quantization = "int4";
        OK(td_plan_make(&request, m, plan, &err));
        assert_int_equal(plan->n_decodes, 2);
        assert_true(plan->fits && plan->decode[0].has_kv);

        AT_END(model_run_close) model_run r;
        model_run_open(&r, &WITH(model_run_options, .path = MODELS[i], .w8a8 = true, .experts = TD_EXPERT_INT4C,
                                 .device = "host", .n_cards = 1, .n_seq = STREAMS, .max_len = 2 * PROMPT));
        const td_model_config *c = td_model_get_config(r.model);
        for (uint32_t k = 0; k < PROMPT; k++) ids[k] = (k * 7 + 1) % c->vocab;
        model_piece piece[STREAMS], prompt = {.n = PROMPT, .ids = ids};
        for (uint32_t q = 0; q < STREAMS; q++)
            piece[q] = (model_piece){.seq = q, .first = CONTEXT, .n = 1, .ids = ids + q, .absorbed = true};
        td_model_work ran = work_of(&r, piece, 1);
        compare(c, &plan->decode[0].step, &ran, 1);
        ran = work_of(&r, piece, STREAMS);
        compare(c, &plan->decode[1].step, &ran, STREAMS);
        ran = work_of(&r, &prompt, 1);
        compare(c, &plan->prefill[0].step, &ran, PROMPT);
    }
}

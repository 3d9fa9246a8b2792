/* Costs of steps, compared with figures computed by hand: rates, parts, bounds, and which operations run beside each other.
 */

#include <math.h>

#include "plan/plan_cost.h"
#include "tests/td_test.h"

enum { HIDDEN = 1000, INTER = 500, EXPERTS = 8, TOP_K = 2, SHARED = 2000, LAYERS = 3 };

static double overlapped(double read_s, double compute_s) {
    return pow(pow(read_s, 1.5) + pow(compute_s, 1.5), 1 / 1.5);
}

/* Round rates, all shares 1, nothing fixed. */
static td_plan_machine plain_machine(double cards) {
    td_plan_machine m;
    td_plan_machine_init(&m);
    m.n_nodes = 2;
    for (int i = 0; i < 2; i++)
        m.node[i] = (td_plan_node){
            .cores = 4, .read_bytes_per_s = 10e9, .int8_ops_per_s = 1e12, .float_ops_per_s = 1e11, .memory_bytes = 1e12};
    m.cpu = m.card = (td_plan_efficiency){1, 1, 1, 1, 1, 0, 1, 1, 0};
    m.block_s = m.step_s = 0;
    if (cards > 0)
        m.cards = WITH(td_plan_cards, .count = cards, .read_bytes_per_s = 1e12, .int8_ops_per_s = 1e14,
                       .float_ops_per_s = 1e13, .link_bytes_per_s = 1e9, .sum_bytes_per_s = 1e9, .memory_bytes = 1e10);
    return m;
}

static td_block_desc mlp(uint32_t inter, uint32_t layer) {
    return (td_block_desc){.kind = TD_BLOCK_MLP, .layer = layer, .mlp = {.hidden = HIDDEN, .inter = inter}};
}

static td_block_desc router(uint32_t layer) {
    return (td_block_desc){.kind = TD_BLOCK_ROUTER, .layer = layer, .router = {.hidden = HIDDEN, .n_experts = EXPERTS}};
}

static td_outline_op block(td_block_desc desc, uint32_t half) {
    return (td_outline_op){.kind = TD_OP_BLOCK, .half = half, .block = desc};
}

static const td_experts_config g_experts = {
    .n_layers = LAYERS, .n_experts = EXPERTS, .hidden = HIDDEN, .inter = INTER, .top_k = TOP_K, .format = TD_EXPERT_INT4C};

static td_plan_model plain_model(td_outline_op *ops, uint32_t n) {
    return WITH(td_plan_model, .whole = {ops, n}, .halves = {ops, n}, .linear = TD_WEIGHT_W8A8, .latent = TD_WEIGHT_BF16,
                .table = TD_WEIGHT_BF16, .act_bytes = 2, .n_cards = 1, .experts = &g_experts, .experts_in_use = EXPERTS,
                .layer_bytes = EXPERTS * 750000, .to_host = 1000, .to_device = 2000);
}

static void near(double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fabs(want))) fail_msg("%.12g instead of %.12g", got, want);
}

TEST(arithmetic) {
    near(td_plan_active_experts(8, 2, 1), 2);
    near(td_plan_active_experts(8, 2, 2), 8 * (1 - 0.75 * 0.75));
    near(td_plan_active_experts(8, 8, 5), 8);
    near(td_plan_active_experts(256, 8, 16), 256 * (1 - pow(31.0 / 32, 16)));
    near(td_plan_work_s(4, 9), pow(35, 2 / 3.0)); /* 4^1.5 = 8, 9^1.5 = 27 */
    near(td_plan_work_s(1, 1), pow(2, 2 / 3.0));
    near(td_plan_work_s(2, 0), 2);
    assert_string_equal(td_plan_part_bound(&(td_plan_part){.read_s = 2, .int8_s = 1}), "read");
    assert_string_equal(td_plan_part_bound(&(td_plan_part){.read_s = 2, .int8_s = 3}), "int8");
    assert_string_equal(td_plan_part_bound(&(td_plan_part){.read_s = 2, .float_s = 3}), "float");
    assert_string_equal(td_plan_part_bound(&(td_plan_part){.read_s = 2, .fixed_s = 3}), "latency");
    assert_string_equal(td_plan_part_bound(&(td_plan_part){0}), "");
}

/* One dense MLP of 3 matrices: (2 * 2000 * (1000 + 4) + 1000 * (2000 + 4)) bytes = 6.02 MB, 12 million operations a row. */
TEST(one_block) {
    td_outline_op   ops[] = {block(mlp(SHARED, 0), TD_OUTLINE_WHOLE)};
    td_plan_model   model = plain_model(ops, 1);
    td_plan_machine m = plain_machine(0);
    td_plan_rows    rows = {.n_seq = 4, .n_new = 1, .n_halves = 1};
    td_plan_step    s;
    double          bytes = 2 * 2000.0 * 1004 + 1000 * 2004.0, read_s = bytes / 20e9, int8_s = 4 * 12e6 / 2e12;
    td_plan_step_cost(&m, &model, &rows, &s);
    const td_plan_part *p = &s.part[TD_PLAN_DENSE];
    near(p->bytes, bytes);
    near(p->int8_ops, 48e6);
    near(p->read_s, read_s);
    near(p->int8_s, int8_s);
    near(s.step_s, overlapped(read_s, int8_s));
    assert_string_equal(td_plan_part_bound(p), "read");
    near(s.part[TD_PLAN_SHARED].time_s, 0);

    m.cpu.linear_read = 0.5; /* shares and what is fixed */
    m.cpu.linear_int8 = 0.25;
    m.block_s = 1e-3;
    td_plan_step_cost(&m, &model, &rows, &s);
    near(s.step_s, 1e-3 + overlapped(2 * read_s, 4 * int8_s));

    m.node[1].read_bytes_per_s = 5e9; /* the slowest node counts for both */
    td_plan_step_cost(&m, &model, &rows, &s);
    near(s.step_s, 1e-3 + overlapped(4 * read_s, 4 * int8_s));
}

TEST(attention_and_head) {
    td_block_desc   gqa = {.kind = TD_BLOCK_GQA, .gqa = {.hidden = HIDDEN, .heads = 10, .kv_heads = 2, .head_dim = 100}};
    td_block_desc   head = {.kind = TD_BLOCK_HEAD, .layer = TD_NO_LAYER, .head = {.hidden = HIDDEN, .vocab = 5000}};
    td_outline_op   ops[] = {block(gqa, TD_OUTLINE_WHOLE), block(head, TD_OUTLINE_WHOLE)};
    td_plan_model   model = plain_model(ops, 2);
    td_plan_machine m = plain_machine(0);
    td_plan_step    s;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 3, .n_new = 1, .context = 99, .n_out = 3, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_ATTENTION].bytes, 1000 * 1004.0 * 2 + 2 * 200 * 1004.0);
    near(s.part[TD_PLAN_ATTENTION].int8_ops, 2 * 3 * (2e6 + 0.4e6));
    near(s.part[TD_PLAN_KEYS].bytes, 3 * 100 * 200 * 2 * 2.0);          /* K and V of 100 keys, 16 bits each */
    near(s.part[TD_PLAN_KEYS].float_ops, 3 * 100 * 10 * 100 * 2 * 2.0); /* scores and values */
    near(s.part[TD_PLAN_HEAD].int8_ops, 2 * 3 * 5e6);
    /* a prompt: row i sees context + i + 1 keys; no logits: the head is not read */
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 3, .context = 10, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_KEYS].bytes, 13 * 200 * 2 * 2.0);
    near(s.part[TD_PLAN_KEYS].float_ops, (11 + 12 + 13) * 10 * 100 * 2 * 2.0);
    near(s.part[TD_PLAN_HEAD].time_s, 0);
    double keys_s = s.part[TD_PLAN_KEYS].float_s; /* what its rows cost beside their keys: time, not work */
    m.cpu.attention_row = 50;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 3, .context = 10, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_KEYS].float_ops, (11 + 12 + 13) * 10 * 100 * 2 * 2.0);
    near(s.part[TD_PLAN_KEYS].float_s, keys_s * (36 + 3 * 50) / 36);
}

/* A norm reads x and what is added, and writes x and three outputs, each line read before: 2 * (2 + 2 + 2 + 1) bytes a
 * value. */
TEST(norms) {
    td_block_desc   norm = {.kind = TD_BLOCK_NORM, .norm = {.hidden = HIDDEN}};
    td_outline_op   ops[] = {block(norm, TD_OUTLINE_WHOLE)};
    td_plan_model   model = plain_model(ops, 1);
    td_plan_machine m = plain_machine(0);
    td_plan_step    s;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 5, .n_new = 1, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_ROWS].bytes, 5 * 2 * (7.0 * HIDDEN + sizeof(float)));
    near(s.step_s, s.part[TD_PLAN_ROWS].bytes / 20e9);
}

/* LAYERS layers of router, submit, shared expert, collect. */
static uint32_t moe_layers(td_outline_op *ops) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < LAYERS; i++) {
        ops[n++] = block(router(i), TD_OUTLINE_WHOLE);
        ops[n++] = (td_outline_op){.kind = TD_OP_SUBMIT, .half = TD_OUTLINE_WHOLE};
        ops[n++] = block(mlp(SHARED, i), TD_OUTLINE_WHOLE);
        ops[n++] = (td_outline_op){.kind = TD_OP_COLLECT, .half = TD_OUTLINE_WHOLE};
    }
    return n;
}

static double expert_s(double active, double pairs) {
    return overlapped(active * 750000 / 20e9, pairs * 6 * HIDDEN * INTER / 2e12);
}

/* On the CPU the tiers take turns: the step is the sum of its parts. */
TEST(in_turns) {
    td_outline_op   ops[16];
    td_plan_model   model = plain_model(ops, moe_layers(ops));
    td_plan_machine m = plain_machine(0);
    td_plan_step    s;
    double          sum = 0;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1, .n_halves = 1}, &s);
    for (int i = 0; i < TD_PLAN_PARTS; i++) sum += s.part[i].time_s;
    near(s.step_s, sum);
    near(s.part[TD_PLAN_EXPERTS].time_s, LAYERS * expert_s(2, 2));
    near(s.part[TD_PLAN_EXPERTS].bytes, LAYERS * 2 * 750000.0);
    near(s.part[TD_PLAN_HANDOVER].time_s, 0);
    assert_true(s.part[TD_PLAN_SHARED].time_s > 0);
    assert_int_equal(s.part[TD_PLAN_SHARED].n, LAYERS);
    near(s.part[TD_PLAN_DENSE].time_s, 0);
    near(s.waited_s, 0);

    double ops_counted = s.part[TD_PLAN_EXPERTS].int8_ops;
    m.cpu.expert_row = 3; /* two experts take as long as 6 rows more */
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_EXPERTS].time_s, LAYERS * expert_s(2, 2 + 2 * 3));
    near(s.part[TD_PLAN_EXPERTS].int8_ops, ops_counted);
}

/* With a card the shared expert is beside the routed ones, and each hand-over copies and waits. */
TEST(beside_each_other) {
    td_outline_op   ops[16];
    td_plan_model   model = plain_model(ops, moe_layers(ops));
    td_plan_machine m = plain_machine(1);
    td_plan_step    s;
    m.cards.handover_s = 1e-5;
    m.cards.link_s = 2e-6;
    td_plan_rows rows = {.n_seq = 1, .n_new = 1, .n_halves = 1};
    td_plan_step_cost(&m, &model, &rows, &s);
    double router_s = overlapped(8 * 4000.0 / 1e12, 2 * 8000.0 / 1e13), shared_s = s.part[TD_PLAN_SHARED].time_s / LAYERS;
    double to_host_s = 2e-6 + 1000 / 1e9, to_device_s = 2e-6 + 2000 / 1e9;
    near(s.part[TD_PLAN_ROUTER].time_s, LAYERS * router_s);
    near(s.part[TD_PLAN_HANDOVER].time_s, LAYERS * (to_host_s + to_device_s + 2e-5));
    near(s.step_s, LAYERS * (router_s + to_host_s + 1e-5 + expert_s(2, 2) + 1e-5 + to_device_s));
    near(s.waited_s, LAYERS * (2e-5 + expert_s(2, 2) - shared_s));

    m.cards.read_bytes_per_s = 1e9; /* a slow card: now the experts hide behind the shared expert */
    td_plan_step_cost(&m, &model, &rows, &s);
    near(s.waited_s, 0);
    near(s.step_s, s.part[TD_PLAN_ROUTER].time_s + s.part[TD_PLAN_SHARED].time_s + LAYERS * (to_host_s + to_device_s));
}

/* Deferral: a layer is left when its experts of now are there; the last layer defers nothing. */
TEST(deferral) {
    td_outline_op     ops[16];
    td_plan_model     model = plain_model(ops, moe_layers(ops));
    td_plan_machine   m = plain_machine(1);
    td_plan_step      s;
    td_experts_config deferring = g_experts;
    deferring.max_deferred = 1;
    model.experts = &deferring;
    for (uint32_t i = 0; i < model.whole.n; i++) /* no shared expert */
        if (model.whole.ops[i].block.kind == TD_BLOCK_MLP) model.whole.ops[i].block.mlp.inter = 0;
    m.cards.link_bytes_per_s = m.cards.read_bytes_per_s = m.cards.int8_ops_per_s = m.cards.float_ops_per_s = 1e30;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1, .n_halves = 1}, &s);
    /* the device is free: it waits for now, and the deferred half of layers 0 and 1 is done before the next layer's now */
    near(s.step_s, 2 * 2 * expert_s(1, 1) + expert_s(2, 2));
    near(s.part[TD_PLAN_EXPERTS].bytes, LAYERS * 2 * 750000.0);

    m.cards.float_ops_per_s =
        16e3 / expert_s(1, 1); /* the router takes as long as an expert: the deferred one is beside it */
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1, .n_halves = 1}, &s);
    near(s.step_s, 2 * 2 * expert_s(1, 1) + expert_s(1, 1) + expert_s(2, 2));
    td_plan_step whole;
    model.experts = &g_experts;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1, .n_halves = 1}, &whole);
    near(whole.step_s, LAYERS * (expert_s(1, 1) + expert_s(2, 2)));
    assert_true(s.step_s < whole.step_s);
}

/* Halves: half 1's router is beside half 0's experts, and half 0's next one beside half 1's. */
TEST(halves) {
    td_outline_op ops[32];
    uint32_t      n = 0;
    for (uint32_t layer = 0; layer <= LAYERS; layer++)
        for (uint32_t half = 0; half < 2; half++) {
            if (layer > 0) ops[n++] = (td_outline_op){.kind = TD_OP_COLLECT, .half = half};
            if (layer == LAYERS) continue;
            ops[n++] = block(router(layer), half);
            ops[n++] = (td_outline_op){.kind = TD_OP_SUBMIT, .half = half};
        }
    td_plan_model   model = plain_model(ops, n);
    td_plan_machine m = plain_machine(1);
    td_plan_step    s;
    double          x = expert_s(td_plan_active_experts(8, 2, 4), 8);
    m.cards.link_bytes_per_s = m.cards.read_bytes_per_s = 1e30;
    m.cards.float_ops_per_s = 4 * 16e3 / x; /* a half's router takes as long as its experts */
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 8, .n_halves = 2}, &s);
    near(s.step_s, (2 * LAYERS + 1) * x);
    near(s.waited_s, x); /* for the last experts */
    near(s.part[TD_PLAN_EXPERTS].time_s, 2 * LAYERS * x);
}

/* Tokens choose among fewer: fewer are read. */
TEST(experts_in_use) {
    td_outline_op   ops[] = {{.kind = TD_OP_SUBMIT, .half = TD_OUTLINE_WHOLE},
                             {.kind = TD_OP_COLLECT, .half = TD_OUTLINE_WHOLE}};
    td_plan_model   model = plain_model(ops, 2);
    td_plan_machine m = plain_machine(1);
    td_plan_step    s;
    model.experts_in_use = 4;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 3, .n_new = 1, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_EXPERTS].time_s, expert_s(4 * (1 - 0.5 * 0.5 * 0.5), 6));
}

/* Three of eight experts are on the card, and nine of ten choices find theirs there; a prompt's find three of eight. */
TEST(experts_on_the_card) {
    td_outline_op   ops[] = {{.kind = TD_OP_SUBMIT, .half = TD_OUTLINE_WHOLE},
                             block((td_block_desc){.kind = TD_BLOCK_RESIDENT, .resident = {.top_k = TOP_K}}, TD_OUTLINE_WHOLE),
                             {.kind = TD_OP_COLLECT, .half = TD_OUTLINE_WHOLE}};
    td_plan_model   model = plain_model(ops, 3);
    td_plan_machine m = plain_machine(1);
    td_plan_step    none, s;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1, .n_halves = 1}, &none);
    assert_true(none.part[TD_PLAN_RESIDENT].bytes == 0);
    model.resident = 3;
    model.hits = 0.9;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1, .n_halves = 1}, &s);
    const double expert_bytes = none.part[TD_PLAN_EXPERTS].bytes / TOP_K;
    near(s.part[TD_PLAN_RESIDENT].bytes, 0.9 * TOP_K * expert_bytes);
    near(s.part[TD_PLAN_EXPERTS].bytes, 0.1 * TOP_K * expert_bytes);
    near(s.part[TD_PLAN_RESIDENT].int8_ops, 9 * s.part[TD_PLAN_EXPERTS].int8_ops);
    model.n_cards = 2; /* which share them */
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_RESIDENT].bytes, 0.45 * TOP_K * expert_bytes);
    model.n_cards = 1;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 1, .n_new = 1000, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_RESIDENT].bytes, 3 * expert_bytes);
    near(s.part[TD_PLAN_EXPERTS].bytes, 5 * expert_bytes);
}

/* Two of eight experts are on the card, and of a long prompt four more pass through its memory: the link has the time of the
 * CPU, which computes two. Only the first layer's uploads have nothing to hide behind. */
TEST(streamed_experts) {
    td_outline_op ops[4 * LAYERS];
    uint32_t      n = 0;
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        ops[n++] = block(router(layer), TD_OUTLINE_WHOLE);
        ops[n++] = (td_outline_op){.kind = TD_OP_SUBMIT, .half = TD_OUTLINE_WHOLE};
        ops[n++] = block((td_block_desc){.kind = TD_BLOCK_RESIDENT, .resident = {.top_k = TOP_K}}, TD_OUTLINE_WHOLE);
        ops[n++] = (td_outline_op){.kind = TD_OP_COLLECT, .half = TD_OUTLINE_WHOLE};
    }
    td_plan_model   model = plain_model(ops, n);
    td_plan_machine m = plain_machine(1);
    td_plan_step    s;
    td_plan_rows    rows = {.n_seq = 1, .n_new = 1000, .n_halves = 1};
    m.cards.link_bytes_per_s = 4e9;
    model.to_host = model.to_device = 0;
    model.resident = 2;
    model.hits = 0.25;
    model.stream_slots = 2 * EXPERTS;
    model.max_tok = 1000;
    const td_stream_shape  shape = td_plan_stream_shape(&model);
    const td_stream_speeds v = td_plan_stream_speeds(&m, &model);
    assert_int_equal(shape.n_most, 6);
    near(v.upload, 750000 / 4e9);
    near(v.cpu_row, expert_s(8, 2000) / 2000); /* of 1000 rows, which choose all experts */
    near(v.cpu_read, expert_s(td_plan_active_experts(8, 2, 2), 4) / td_plan_active_experts(8, 2, 2));
    td_plan_step_cost(&m, &model, &rows, &s);
    assert_int_equal(s.streamed, 4);
    assert_int_equal(s.streamed, td_stream_share(&shape, &v, 1000));
    near(s.part[TD_PLAN_UPLOADS].bytes, LAYERS * 4 * 750000.0);
    near(s.part[TD_PLAN_RESIDENT].bytes, LAYERS * 6 * 750000.0);
    near(s.part[TD_PLAN_EXPERTS].bytes, LAYERS * 2 * 750000.0);
    const double first_s = 4 * v.upload, router_s = s.part[TD_PLAN_ROUTER].time_s / LAYERS, cpu_s = expert_s(2, 500);
    assert_true(cpu_s > first_s);
    near(s.step_s, first_s + LAYERS * (router_s + cpu_s));
    near(s.waited_s, s.step_s - s.part[TD_PLAN_ROUTER].time_s - s.part[TD_PLAN_RESIDENT].time_s);

    model.n_cards = 2; /* both links upload, and each card has half of the experts */
    td_plan_step_cost(&m, &model, &rows, &s);
    assert_true(s.streamed > 4);
    near(s.part[TD_PLAN_UPLOADS].time_s, LAYERS * s.streamed * v.upload / 2);
    near(s.part[TD_PLAN_RESIDENT].bytes, LAYERS * (2 + s.streamed) * 750000.0 / 2);

    rows.n_new = 31; /* not eight rows an expert */
    td_plan_step_cost(&m, &model, &rows, &s);
    assert_int_equal(s.streamed, 0);
}

TEST(sums_over_cards) {
    td_block_desc   sum = {.kind = TD_BLOCK_ALL_REDUCE, .all_reduce = {.width = HIDDEN}};
    td_outline_op   ops[] = {block(sum, TD_OUTLINE_WHOLE)};
    td_plan_model   model = plain_model(ops, 1);
    td_plan_machine m = plain_machine(4);
    td_plan_step    s;
    model.n_cards = 4;
    m.cards.sum_s = 1e-5;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 5, .n_new = 1, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_SUMS].bytes, 2 * 0.75 * 5 * HIDDEN * 2);
    near(s.step_s, 1e-5 + 2 * 0.75 * 5 * HIDDEN * 2 / 1e9);
    ops[0].block.all_reduce.exact = true;
    td_plan_step_cost(&m, &model, &(td_plan_rows){.n_seq = 5, .n_new = 1, .n_halves = 1}, &s);
    near(s.part[TD_PLAN_SUMS].bytes, 2 * 0.75 * 5 * HIDDEN * 4);
}

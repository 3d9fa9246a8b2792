/* The work that the device reports, compared with a count row by row and key by key. */
#include "npu_test_util.h"
#include "tests/td_test.h"

enum { TOK = 5, HIDDEN = 64, INTER = 96, HEADS = 4, KV_HEADS = 2, DIM = 16, PAGES = 2 };
enum { LORA = 32, NOPE = 16, ROPE = 8, V = 12 };

/* Four rows of a prompt whose first six tokens are computed, and one generated token at position 6. */
static const uint32_t token[TOK] = {1, 2, 3, 4, 5}, pos[TOK] = {6, 7, 8, 9, 6}, slot[TOK] = {6, 7, 8, 9, TD_KV_PAGE + 6};
static const uint32_t seq_start[3] = {0, 4, 5}, kv_len[2] = {10, 7}, table[2] = {0, 1}, out_row[2] = {3, 4};
static const uint8_t  absorbed[2] = {0, 1};
static const td_step_counts counts = {.n_tok = TOK, .n_seq = 2, .n_out = 2};

static rig g;
static rnd r;

static td_npu_weight *weight(td_weight_format format, size_t n, size_t k) {
    FREED float *f = rnd_array(&r, (n ? n : 1) * k, 0.1f);
    return make_weight(&g, format, f, n, k);
}

static uint64_t w8a8_bytes(uint64_t n, uint64_t k) {
    return n * k + 4 * n;
}

/* What one run of the block over a step's arrays adds. */
static td_tier_work work_at(td_block_desc desc, td_step_arrays arrays) {
    td_npu_report before, after;
    desc.max_tok = TOK;
    desc.max_kv = 16;
    td_npu_block *b = make_block(&g, &desc);
    g.npu->ops->report(g.npu, &before);
    td_step step = td_step_unified(&arrays, 1);
    run_block(&g, b, &step);
    memset(&after, 0xff, sizeof after);
    g.npu->ops->report(g.npu, &after);
    assert_true(after.link_down_bytes == 0 && after.link_up_bytes == 0);
    assert_null(after.doing);
    assert_true(after.work.busy_ns > before.work.busy_ns);
    return (td_tier_work){.bytes = after.work.bytes - before.work.bytes,
                          .int8_ops = after.work.int8_ops - before.work.int8_ops,
                          .f32_ops = after.work.f32_ops - before.work.f32_ops};
}

static td_tier_work work_of(td_block_desc desc) {
    return work_at(desc,
                   WITH(td_step_arrays, .counts = &counts, .token = token, .pos = pos, .slot = slot, .seq_start = seq_start,
                        .kv_len = kv_len, .absorbed = absorbed, .block_table = table, .out_row = out_row));
}

static void check(td_tier_work got, uint64_t bytes, uint64_t int8_macs, uint64_t f32_macs) {
    assert_int_equal(got.bytes, bytes);
    assert_int_equal(got.int8_ops, 2 * int8_macs);
    assert_int_equal(got.f32_ops, 2 * f32_macs);
}

TEST(small_blocks) {
    td_npu_weight *w[] = {weight(TD_WEIGHT_W8A8, INTER, HIDDEN), weight(TD_WEIGHT_W8A8, INTER, HIDDEN),
                          weight(TD_WEIGHT_W8A8, HIDDEN, INTER), weight(TD_WEIGHT_BF16, 200, HIDDEN),
                          weight(TD_WEIGHT_F32, 0, HIDDEN)};
    FREED void    *x = act_array(TD_DT_BF16, NULL, TOK * HIDDEN), *y = act_array(TD_DT_BF16, NULL, TOK * HIDDEN);
    FREED float   *logits = calloc(2 * 200, sizeof *logits);
    check(work_of((td_block_desc){
              .kind = TD_BLOCK_MLP,
              .mlp = {.hidden = HIDDEN, .inter = INTER, .gate = w[0], .up = w[1], .down = w[2], .in = x, .out = y}}),
          2 * w8a8_bytes(INTER, HIDDEN) + w8a8_bytes(HIDDEN, INTER), 3 * TOK * HIDDEN * INTER, 0);
    check(work_of((td_block_desc){.kind = TD_BLOCK_EMBED, .embed = {.table = w[3], .hidden = HIDDEN, .out = x}}),
          TOK * HIDDEN * 2, 0, 0);
    check(work_of(
              (td_block_desc){.kind = TD_BLOCK_HEAD,
                              .head = {.hidden = HIDDEN, .vocab = 200, .max_out = 2, .w = w[3], .x = x, .logits = logits}}),
          200 * HIDDEN * 2, 0, 2 * 200 * HIDDEN);
    check(work_of((td_block_desc){.kind = TD_BLOCK_NORM, .norm = {.hidden = HIDDEN, .gamma = w[4], .x = x, .out = y}}), 0, 0,
          0);
}

TEST(gqa) {
    td_npu_weight *q = weight(TD_WEIGHT_W8A8, HEADS * DIM, HIDDEN), *k = weight(TD_WEIGHT_W8A8, KV_HEADS * DIM, HIDDEN),
                  *v = weight(TD_WEIGHT_W8A8, KV_HEADS * DIM, HIDDEN), *o = weight(TD_WEIGHT_W8A8, HIDDEN, HEADS * DIM),
                  *rope = weight(TD_WEIGHT_F32, 16, DIM);
    FREED void *x = act_array(TD_DT_BF16, NULL, TOK * HIDDEN), *y = act_array(TD_DT_BF16, NULL, TOK * HIDDEN);
    FREED void *kc = calloc(PAGES * KV_HEADS, g.npu->ops->kv_page_bytes(g.npu, TD_KV_HEAD, DIM)),
               *vc = calloc(PAGES * KV_HEADS, g.npu->ops->kv_page_bytes(g.npu, TD_KV_HEAD, DIM));
    for (uint32_t window = 0; window <= 11; window++) { /* 0: none; 11: more keys than there are */
        uint64_t   f32 = 0, keys = 0;
        bool       met[2][10] = {{0}};
        const bool int8 = window % 2;
        for (int row = 0; row < TOK; row++)
            for (uint32_t key = 0; key <= pos[row]; key++) {
                if (window && key + window <= pos[row]) continue;
                f32 += HEADS * (DIM + DIM);
                met[row == 4][key] = true;
            }
        for (int i = 0; i < 2; i++)
            for (int key = 0; key < 10; key++) keys += met[i][key];
        check(work_of((td_block_desc){.kind = TD_BLOCK_GQA,
                                      .gqa = {.hidden = HIDDEN,
                                              .heads = HEADS,
                                              .kv_heads = KV_HEADS,
                                              .head_dim = DIM,
                                              .window = window,
                                              .softmax_scale = 1,
                                              .q = q,
                                              .k = k,
                                              .v = v,
                                              .o = o,
                                              .rope = rope,
                                              .kv_k = kc,
                                              .kv_v = vc,
                                              .kv_int8 = int8,
                                              .in = x,
                                              .out = y}}),
              w8a8_bytes(HEADS * DIM, HIDDEN) + 2 * w8a8_bytes(KV_HEADS * DIM, HIDDEN) + w8a8_bytes(HIDDEN, HEADS * DIM) +
                  keys * 2 * KV_HEADS * DIM * (int8 ? 1 : 2),
              TOK * HIDDEN * DIM * (HEADS + 2 * KV_HEADS + HEADS), f32);
    }
}

/* The prompt's rows are the last two of a block and the first two of the next; the generated token is a block's seventh. */
TEST(delta) {
    enum { R = 2, CONV = 2 * NOPE + R * V, HEADS_V = R * KV_HEADS, BLOCK = TD_STATE_BLOCK };
    const uint32_t at[TOK] = {BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1, 6}, keys[2] = {BLOCK + 2, 7},
                   none[2] = {TD_STATE_NONE, TD_STATE_NONE}, two[2] = {0, 1};
    td_npu_weight *const w[] = {weight(TD_WEIGHT_W8A8, KV_HEADS * CONV, HIDDEN),
                                weight(TD_WEIGHT_W8A8, HEADS_V * V, HIDDEN),
                                weight(TD_WEIGHT_F32, HEADS_V, HIDDEN),
                                weight(TD_WEIGHT_F32, HEADS_V, HIDDEN),
                                weight(TD_WEIGHT_F32, KV_HEADS * CONV, 4),
                                weight(TD_WEIGHT_F32, 0, HEADS_V),
                                weight(TD_WEIGHT_F32, 0, V),
                                weight(TD_WEIGHT_W8A8, HIDDEN, HEADS_V * V)};
    void                *x = act_array(TD_DT_BF16, NULL, TOK * HIDDEN), *y = act_array(TD_DT_BF16, NULL, TOK * HIDDEN);
    td_delta_desc        d =
        WITH(td_delta_desc, .hidden = HIDDEN, .key_heads = KV_HEADS, .value_heads = HEADS_V, .key_dim = NOPE, .value_dim = V,
             .conv_width = 4, .eps = 1e-6f, .qkv = w[0], .z = w[1], .b = w[2], .a = w[3], .conv = w[4], .a_log = w[5],
             .dt_bias = w[5], .norm = w[6], .o = w[7], .state_slots = 2, .open_slots = 2, .in = x, .out = y);
    d.state = calloc(2 * KV_HEADS * td_delta_state_values(&d), sizeof(float));
    d.open = calloc(2 * KV_HEADS * td_delta_open_values(&d), sizeof(float));
    uint64_t f32 = 2 * TOK * HEADS_V * HIDDEN + TOK * HEADS_V * 2 * NOPE * V + BLOCK * HEADS_V * NOPE * V, bytes = 0;
    for (int row = 0; row < TOK; row++) f32 += (at[row] % BLOCK + 1) * KV_HEADS * 2 * (NOPE + R * V);
    for (int q = 0; q < 2; q++) bytes += at[seq_start[q]] % BLOCK * KV_HEADS * (NOPE + R * V) * 4;
    check(work_at((td_block_desc){.kind = TD_BLOCK_DELTA, .delta = d},
                  WITH(td_step_arrays, .counts = &counts, .pos = at, .seq_start = seq_start, .kv_len = keys,
                       .absorbed = absorbed, .state_in = none, .state_out = two, .state_open = two)),
          w8a8_bytes(KV_HEADS * CONV, HIDDEN) + w8a8_bytes(HEADS_V * V, HIDDEN) + w8a8_bytes(HIDDEN, HEADS_V * V) +
              2 * HEADS_V * HIDDEN * 4 + bytes,
          TOK * HIDDEN * (KV_HEADS * CONV + 2 * HEADS_V * V), f32);
    void *all[] = {x, y, d.state, d.open};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* The same rows. */
TEST(kimi_delta) {
    enum { LOW = 5, K = KV_HEADS * NOPE, VS = KV_HEADS * V, BLOCK = TD_STATE_BLOCK };
    const uint32_t at[TOK] = {BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1, 6}, keys[2] = {BLOCK + 2, 7},
                   none[2] = {TD_STATE_NONE, TD_STATE_NONE}, two[2] = {0, 1};
    FREED void   *x = act_array(TD_DT_BF16, NULL, TOK * HIDDEN), *y = act_array(TD_DT_BF16, NULL, TOK * HIDDEN);
    td_delta_desc d = WITH(td_delta_desc, .form = TD_DELTA_KIMI, .hidden = HIDDEN, .key_heads = KV_HEADS,
                           .value_heads = KV_HEADS, .key_dim = NOPE, .value_dim = V, .conv_width = 4, .low = LOW,
                           .eps = 1e-6f, .state_slots = 2, .open_slots = 2, .in = x, .out = y);
    d.qkv = weight(TD_WEIGHT_W8A8, K, HIDDEN);
    d.k = weight(TD_WEIGHT_W8A8, K, HIDDEN);
    d.v = weight(TD_WEIGHT_W8A8, VS, HIDDEN);
    d.a_low = d.z_low = weight(TD_WEIGHT_BF16, LOW, HIDDEN);
    d.a = weight(TD_WEIGHT_BF16, K, LOW);
    d.z = weight(TD_WEIGHT_BF16, VS, LOW);
    d.b = weight(TD_WEIGHT_F32, KV_HEADS, HIDDEN);
    d.conv = d.conv_k = weight(TD_WEIGHT_F32, K, 4);
    d.conv_v = weight(TD_WEIGHT_F32, VS, 4);
    d.a_log = weight(TD_WEIGHT_F32, 0, KV_HEADS);
    d.dt_bias = weight(TD_WEIGHT_F32, 0, K);
    d.norm = weight(TD_WEIGHT_F32, 0, V);
    d.o = weight(TD_WEIGHT_W8A8, HIDDEN, VS);
    FREED void *states = calloc(2 * KV_HEADS * td_delta_state_values(&d), sizeof(float)),
               *open = calloc(2 * KV_HEADS * td_delta_open_values(&d), sizeof(float));
    d.state = states;
    d.open = open;
    const uint64_t narrow = 2 * LOW * HIDDEN + (K + VS) * LOW; /* values of a_low and z_low, a and z */
    uint64_t       f32 = TOK * (narrow + KV_HEADS * HIDDEN) + TOK * KV_HEADS * 2 * NOPE * V + BLOCK * KV_HEADS * NOPE * V,
             bytes = 2 * narrow + KV_HEADS * HIDDEN * 4;
    for (int row = 0; row < TOK; row++) f32 += (at[row] % BLOCK + 1) * KV_HEADS * 2 * (NOPE + V);
    for (int q = 0; q < 2; q++) bytes += at[seq_start[q]] % BLOCK * KV_HEADS * (2 * NOPE + V) * 4;
    check(work_at((td_block_desc){.kind = TD_BLOCK_DELTA, .delta = d},
                  WITH(td_step_arrays, .counts = &counts, .pos = at, .seq_start = seq_start, .kv_len = keys,
                       .absorbed = absorbed, .state_in = none, .state_out = two, .state_open = two)),
          2 * w8a8_bytes(K, HIDDEN) + w8a8_bytes(VS, HIDDEN) + w8a8_bytes(HIDDEN, VS) + bytes,
          TOK * HIDDEN * (2 * K + 2 * VS), f32);
}

TEST(mla) {
    td_npu_weight *q = weight(TD_WEIGHT_W8A8, HEADS * (NOPE + ROPE), HIDDEN),
                  *kv_a = weight(TD_WEIGHT_W8A8, LORA + ROPE, HIDDEN), *norm = weight(TD_WEIGHT_F32, 0, LORA),
                  *kv_b = weight(TD_WEIGHT_BF16, HEADS * (NOPE + V), LORA), *o = weight(TD_WEIGHT_W8A8, HIDDEN, HEADS * V),
                  *rope = weight(TD_WEIGHT_F32, 16, ROPE);
    FREED void *x = act_array(TD_DT_BF16, NULL, TOK * HIDDEN), *y = act_array(TD_DT_BF16, NULL, TOK * HIDDEN);
    FREED void *lc = calloc(PAGES, g.npu->ops->kv_page_bytes(g.npu, TD_KV_LATENT, LORA)),
               *rc = calloc(PAGES, g.npu->ops->kv_page_bytes(g.npu, TD_KV_ROPE, ROPE));
    uint64_t f32 = 0;
    for (uint32_t key = 0; key < kv_len[0]; key++) f32 += HEADS * (NOPE + V) * LORA; /* expanded: every key */
    for (int row = 0; row < 4; row++)
        for (uint32_t key = 0; key <= pos[row]; key++) f32 += HEADS * (NOPE + ROPE + V);
    f32 += HEADS * (NOPE + V) * LORA; /* absorbed: the row's query and its sum */
    for (uint32_t key = 0; key <= pos[4]; key++) f32 += HEADS * (LORA + ROPE + LORA);
    check(work_of((td_block_desc){.kind = TD_BLOCK_MLA,
                                  .mla = {.hidden = HIDDEN,
                                          .heads = HEADS,
                                          .kv_lora = LORA,
                                          .nope_dim = NOPE,
                                          .rope_dim = ROPE,
                                          .v_dim = V,
                                          .eps = 1e-6f,
                                          .softmax_scale = 1,
                                          .q = q,
                                          .kv_a = kv_a,
                                          .kv_a_norm = norm,
                                          .kv_b = kv_b,
                                          .o = o,
                                          .rope = rope,
                                          .kv_latent = lc,
                                          .kv_rope = rc,
                                          .in = x,
                                          .out = y}}),
          w8a8_bytes(HEADS * (NOPE + ROPE), HIDDEN) + w8a8_bytes(LORA + ROPE, HIDDEN) + w8a8_bytes(HIDDEN, HEADS * V) +
              HEADS * (NOPE + V) * LORA * 2 + (10 + 7) * (LORA + ROPE) * 2,
          TOK * HIDDEN * (HEADS * (NOPE + ROPE) + LORA + ROPE + HEADS * V), f32);
}

int main(void) {
    r = rnd_open("work");
    g = rig_open(2, TD_DT_BF16, false);
    int failed = tests_run();
    rig_close(&g);
    return failed;
}

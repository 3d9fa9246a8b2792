/*
 * Products, grouped-query attention and routers of the backend for NVIDIA cards, on the stand-in, compared with the host's
 * block over the same weights and rows. The cases are every format of weights, inputs that fill no tile, rows that come as
 * codes, the rows of a half, at once and replayed from a graph. Sums of integers have the same bits, for many rows by
 * cuBLASLt's stand-in and by our own kernels. What the device does not support is refused. The list of kernels is compared
 * with the kernels that exist.
 *
 * test_cuda_experts tests routed experts. The other blocks are compared by tandem doctor (test_cuda_command, TD_TEST_FULL)
 * and by whole models (test_cuda_model).
 */
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coded_matrices.h"
#include "cuda_pair.h"
#include "npu/cuda/cuda_device.h"
#include "tests/standins/cuda/cuda_launch.h"
#include "tests/standins/cuda/use_cuda_standin.h"

/* Relative: exponentials are 2e-7 off on both, sums of f32 in other orders some roundings more. */
#define LOG_SUM_ERROR 4e-6f

#define BLOCKS(desc, kind_, member, ...)                                     \
    for (int d = 0; d < 2; d++) desc[d] = (td_block_desc) {                  \
            .kind = kind_, .max_tok = all_rows(p), .member = { __VA_ARGS__ } \
        }

/* A linear, and an MLP with this weight as its gate, whose rows come as codes where it takes them. */
static void run_format(pair *p, rnd *r, td_weight_format format, td_npu_weight *w[2], size_t n, size_t k, const char *what) {
    bool           of_int8 = td_weight_takes_int8(format);
    td_npu_weight *bias[2], *up[2], *down[2], *gamma[2], *gate[2];
    td_block_desc  desc[2];
    random_weights(p, r, TD_WEIGHT_F32, 0, n, bias);
    random_weights(p, r, TD_WEIGHT_F32, 0, k, gamma);
    random_weights(p, r, format == TD_WEIGHT_BF16 ? TD_WEIGHT_BF16 : TD_WEIGHT_W8A8, n, k, up);
    random_weights(p, r, format == TD_WEIGHT_BF16 ? TD_WEIGHT_BF16 : TD_WEIGHT_W8A8, k, n, down);
    random_weights(p, r, TD_WEIGHT_F32, 1, k, gate);
    both in = put_rows(p, r, k), out = put(p, NULL, all_rows(p) * n * sizeof(td_bf16)),
         normed = put(p, NULL, all_rows(p) * k * sizeof(td_bf16)), codes = put(p, NULL, all_rows(p) * k),
         scale = put(p, NULL, all_rows(p) * sizeof(float)), mlp = put(p, NULL, all_rows(p) * k * sizeof(td_bf16));
    BLOCKS(desc, TD_BLOCK_LINEAR, linear, .n = (uint32_t)n, .k = (uint32_t)k, .w = w[d], .bias = bias[d], .in = in.at[d],
           .out = out.at[d]);
    run_both(p, desc, &out);
    check(p, &out, n, of_int8 ? 0 : 0.004, what); /* bf16: sums in another order, rounded to 2^-9 */

    BLOCKS(desc, TD_BLOCK_NORM, norm, .hidden = (uint32_t)k, .eps = 1e-6f, .gamma = gamma[d], .x = in.at[d],
           .out = normed.at[d], .out_i8 = {codes.at[d], scale.at[d]});
    run_both(p, desc, &normed);
    check(p, &normed, k, 0.004, "norm");
    /* The norms' bits differ by roundings: both MLPs have the card's rows. */
    copy(p, normed.at[HOST], normed.at[CARD], normed.bytes, TD_COPY_D2H);
    copy(p, codes.at[HOST], codes.at[CARD], codes.bytes, TD_COPY_D2H);
    copy(p, scale.at[HOST], scale.at[CARD], scale.bytes, TD_COPY_D2H);
    for (int gated = 0; gated < 2; gated++) {
        BLOCKS(desc, TD_BLOCK_MLP, mlp, .hidden = (uint32_t)k, .inter = (uint32_t)n, .gate = w[d], .up = up[d],
               .down = down[d], .out_gate = gated ? gate[d] : NULL, .in = normed.at[d], .out = mlp.at[d],
               .in_i8 = {of_int8 ? codes.at[d] : NULL, of_int8 ? scale.at[d] : NULL});
        run_both(p, desc, &mlp);
        check(p, &mlp, k, gated || !of_int8 ? 0.006 : 0, "mlp"); /* the gate's product has an order of its own */
    }
}

static void run_formats(rnd *r) {
    static const struct {
        td_weight_format format;
        size_t           n, k;
    } CASES[] = {{TD_WEIGHT_W8A8, 33, 50}, {TD_WEIGHT_W8A8, 40, 128}, {TD_WEIGHT_BF16, 40, 48}};
    AT_END(close_pair) pair p = open_pair(5, 8);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        td_npu_weight *w[2];
        random_weights(&p, r, CASES[i].format, CASES[i].n, CASES[i].k, w);
        run_format(&p, r, CASES[i].format, w, CASES[i].n, CASES[i].k, CASES[i].format == TD_WEIGHT_BF16 ? "bf16" : "w8a8");
    }
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        td_npu_weight           *w[2];
        size_t                   n = rnd_range(r, 1, 40), k = rnd_range(r, 20, 100) * 2;
        char                     what[64];
        AT_END(free_coded) coded c = make_coded(r, kind, n, k);
        td_tensor_view           v = view_of(&c);
        weights_of(&p, c.format, &v, w);
        assert_true(p.card->ops->weight_bytes(p.card, c.format, 0, n, k) >= n * k / 2);
        snprintf(what, sizeof what, "groups of kind %zu, %zu x %zu", kind, n, k);
        run_format(&p, r, c.format, w, n, k, what);
    }
}

TEST(formats) {
    rnd r = rnd_open("formats");
    run_formats(&r);
}

/* Cards of the older and the smaller generations have less shared memory: what is launched fits there, too. */
static const char *const OTHER_CARDS[] = {"80", "86", "89", "120"};
#define N_OTHER_CARDS (sizeof OTHER_CARDS / sizeof *OTHER_CARDS)

TEST(formats_on_other_cards) {
    rnd r = rnd_open("formats of other cards");
    for (size_t i = 0; i < N_OTHER_CARDS; i++) {
        setenv("TD_STANDIN_ARCH", OTHER_CARDS[i], 1);
        run_formats(&r);
    }
    unsetenv("TD_STANDIN_ARCH");
}

/* ---- many rows -------------------------------------------------------------------------------------- */

/* What a stand-in has counted. */
static uint64_t counted(const char *file, const char *name) {
    uint64_t (*count)(void);
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD), *at = library ? dlsym(library, name) : NULL;
    if (!at) fail_msg("%s is not loaded, or has no %s", file, name);
    memcpy(&count, &at, sizeof at);
    uint64_t n = count();
    dlclose(library);
    return n;
}
static uint64_t library_products(void) {
    return counted(TD_CUDA_STANDIN "/libcublasLt.so.12", "standin_cublaslt_products");
}

typedef struct {
    uint32_t rows, bucket;
    size_t   n, k;
    uint64_t products;   /* that the library computes in a run of a linear, an MLP and one with a gate, each three times */
    size_t   sums_bytes; /* room for sums, 0: what it has */
} many_rows_case;

static void run_many_rows(const many_rows_case *c, rnd *r) {
    AT_END(close_pair) pair p = open_pair(c->rows, c->bucket);
    td_cuda_blas           *blas = &((td_cuda_npu *)p.card)->blas;
    td_npu_weight          *w[2];
    char                    what[64];
    random_weights(&p, r, TD_WEIGHT_W8A8, c->n, c->k, w);
    assert_non_null(blas->api);
    if (c->sums_bytes) blas->sums_bytes = c->sums_bytes;
    for (int own = 0; own < 2; own++) {
        uint64_t before = on_own_card() ? 0 : library_products();
        snprintf(what, sizeof what, "%s, %u rows of %u, %zu x %zu", own ? "own" : "library", c->rows, c->bucket, c->n, c->k);
        blas->has_failed = own;
        run_format(&p, r, TD_WEIGHT_W8A8, w, c->n, c->k, what);
        if (!on_own_card() && library_products() - before != (own ? 0 : c->products))
            fail_msg("%s: the library has computed %llu products, not %llu", what,
                     (unsigned long long)(library_products() - before), (unsigned long long)(own ? 0 : c->products));
    }
}

/* From 65 rows of a bucket on, the library's, with fewer true rows than the bucket has; but for shapes that it does not
 * take. A linear is one product, an MLP three, of which the last has k outputs. The last case has room for 256 rows of the
 * linear's sums, and 128 of the MLP's. */
TEST(many_rows) {
    static const many_rows_case CASES[] = {{70, 72, 40, 128, 3 * (1 + 3 + 3), 0},
                                           {3, 65, 36, 52, 3 * (1 + 3 + 3), 0},
                                           {65, 65, 44, 50, 3 * (1 + 2 + 2), 0},
                                           {66, 66, 33, 52, 3 * (0 + 1 + 1), 0},
                                           {64, 64, 40, 52, 0, 0},
                                           {290, 300, 8, 16, 3 * (2 + 9 + 9), 8192}};
    rnd                         r = rnd_open("many rows");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) run_many_rows(&CASES[i], &r);
}

/* ---- attention ----------------------------------------------------------------------------------- */

#define SEQS 2
#define SEQ_PAGES 2
#define STEP_MOST 48 /* rows */

/* Two sequences, and the arrays of a step of them. */
typedef struct {
    uint32_t have[SEQS];
    both     pos, slot, start, len, absorbed, pages;
} sequences;

static void next_step(pair *p, sequences *s, const uint32_t rows[SEQS]) {
    static const uint32_t PAGES[SEQS * SEQ_PAGES] = {2, 0, 3, 1};
    uint32_t              pos[STEP_MOST] = {0}, slot[STEP_MOST] = {0}, start[SEQS + 1] = {0}, n = 0;
    for (uint32_t q = 0; q < SEQS; q++) {
        for (uint32_t i = 0; i < rows[q]; i++, n++, s->have[q]++) {
            pos[n] = s->have[q];
            slot[n] = PAGES[q * SEQ_PAGES + pos[n] / TD_KV_PAGE] * TD_KV_PAGE + pos[n] % TD_KV_PAGE;
        }
        start[q + 1] = n;
    }
    s->pos = put(p, pos, sizeof pos), s->slot = put(p, slot, sizeof slot), s->start = put(p, start, sizeof start);
    s->len = put(p, s->have, sizeof s->have), s->absorbed = put(p, NULL, SEQS), s->pages = put(p, PAGES, sizeof PAGES);
    p->rows = n;
    p->counts = (td_step_counts){.n_tok = n, .n_seq = SEQS};
    p->block_stride = SEQ_PAGES;
    copy(p, &p->counts, p->dev_counts, sizeof p->counts, TD_COPY_H2D);
    for (int d = 0; d < 2; d++)
        p->arrays[d] = WITH(td_step_arrays, .pos = s->pos.at[d], .slot = s->slot.at[d], .seq_start = s->start.at[d],
                            .kv_len = s->len.at[d], .absorbed = s->absorbed.at[d], .block_table = s->pages.at[d]);
}

typedef struct {
    uint32_t heads, kv_heads, head_dim, rope_dim, window;
    bool     has_norm, norm_rows, has_sinks, has_biases;
} gqa_case;

/* Products are of bf16, whose sums' orders cost 0.004; the card's queries, keys, values and probabilities have 8 bits. */
#define GQA_TOLERANCE 0.012
#define LATENT_TOLERANCE 0.02 /* queries and sums of values in the latent's space have 8 bits, too */

static void run_gqa(const gqa_case *c, rnd *r) {
    static const uint32_t   ROWS[][SEQS] = {{21, 3}, {1, 20}, {2, 1}}; /* of each step: prefill's and decode's */
    AT_END(close_pair) pair p = open_pair(1, STEP_MOST);
    uint32_t  hidden = 40, q_width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim, pages = SEQS * SEQ_PAGES;
    sequences s = {0};
    td_npu_weight *w[4][2], *bias[4][2], *norm[2][2], *sinks[2], *rope[2];
    td_block_desc  desc[2];
    const size_t   n[] = {q_width, kv_width, kv_width, hidden}, k[] = {hidden, hidden, hidden, q_width};
    for (int i = 0; i < 4; i++) random_weights(&p, r, TD_WEIGHT_BF16, n[i], k[i], w[i]);
    for (int i = 0; i < 4; i++) random_weights(&p, r, TD_WEIGHT_F32, 0, n[i], bias[i]);
    for (int i = 0; i < 2; i++) random_weights(&p, r, TD_WEIGHT_F32, 0, c->norm_rows ? n[i] : c->head_dim, norm[i]);
    random_weights(&p, r, TD_WEIGHT_F32, 0, c->heads, sinks);
    random_weights(&p, r, TD_WEIGHT_F32, SEQ_PAGES * TD_KV_PAGE, c->rope_dim, rope);
    both   in = put_rows(&p, r, hidden), cache[2];
    size_t page_bytes[] = {p.host.npu->ops->kv_page_bytes(p.host.npu, TD_KV_HEAD, c->head_dim),
                           p.card->ops->kv_page_bytes(p.card, TD_KV_HEAD, c->head_dim)};
    for (int i = 0; i < 2; i++)
        cache[i] =
            put(&p, NULL, pages * c->kv_heads * (page_bytes[HOST] > page_bytes[CARD] ? page_bytes[HOST] : page_bytes[CARD]));
    for (size_t step = 0; step < sizeof ROWS / sizeof *ROWS; step++) {
        char what[64];
        both out = put(&p, NULL, all_rows(&p) * hidden * sizeof(td_bf16));
        next_step(&p, &s, ROWS[step]);
        for (int d = 0; d < 2; d++)
            desc[d] = ATTENTION_OF(TD_BLOCK_GQA, all_rows(&p), SEQ_PAGES * TD_KV_PAGE, gqa, .hidden = hidden,
                                   .heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim,
                                   .rope_dim = c->rope_dim, .window = c->window, .norm_rows = c->norm_rows, .eps = 1e-6f,
                                   .softmax_scale = 0.3f, .q = w[0][d], .k = w[1][d], .v = w[2][d], .o = w[3][d],
                                   .q_bias = c->has_biases ? bias[0][d] : NULL, .k_bias = c->has_biases ? bias[1][d] : NULL,
                                   .v_bias = c->has_biases ? bias[2][d] : NULL, .o_bias = c->has_biases ? bias[3][d] : NULL,
                                   .q_norm = c->has_norm ? norm[0][d] : NULL, .k_norm = c->has_norm ? norm[1][d] : NULL,
                                   .sinks = c->has_sinks ? sinks[d] : NULL, .rope = rope[d], .kv_k = cache[0].at[d],
                                   .kv_v = cache[1].at[d], .kv_pages = pages, .in = in.at[d], .out = out.at[d]);
        run_both(&p, desc, &out);
        snprintf(what, sizeof what, "gqa of %u heads, window %u, step %zu", c->heads, c->window, step);
        check(&p, &out, hidden, GQA_TOLERANCE, what);
    }
}

/* Attention of MiniMax-M2, of both kinds of layers of gpt-oss, and what else a descriptor can say of it. */
TEST(attention) {
    static const gqa_case CASES[] = {
        {.heads = 4, .kv_heads = 2, .head_dim = 32, .rope_dim = 16, .has_norm = true, .norm_rows = true},
        {.heads = 4, .kv_heads = 2, .head_dim = 64, .rope_dim = 64, .window = 6, .has_sinks = true, .has_biases = true},
        {.heads = 4, .kv_heads = 2, .head_dim = 64, .rope_dim = 64, .has_sinks = true, .has_biases = true},
        {.heads = 3, .kv_heads = 1, .head_dim = 72, .rope_dim = 40, .window = 20, .has_norm = true, .norm_rows = true},
        {.heads = 2, .kv_heads = 2, .head_dim = 16, .rope_dim = 16, .window = 1, .has_norm = true, .has_sinks = true}};
    rnd r = rnd_open("attention");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) run_gqa(&CASES[i], &r);
}

TEST(attention_on_other_cards) {
    static const uint32_t DIMS[] = {64, 128};
    rnd                   r = rnd_open("other cards");
    for (size_t i = 0; i < N_OTHER_CARDS * 2; i++) {
        uint32_t dim = DIMS[i % 2];
        setenv("TD_STANDIN_ARCH", OTHER_CARDS[i / 2], 1);
        run_gqa(&(gqa_case){.heads = 3, .kv_heads = 1, .head_dim = dim, .rope_dim = dim, .window = i / 2 % 2 ? 20 : 0}, &r);
    }
    unsetenv("TD_STANDIN_ARCH");
}

/* Heads of DeepSeek-V3, so many that rows of generated tokens go by blocks of 64 heads where a card has the shared memory,
 * and by blocks of 16 where it has not. */
static void run_mla(rnd *r) {
    enum { HIDDEN = 64, LORA = 64, HEADS = 33, NOPE = 128, ROPE = 64, V = 128, LATENT = 512, PAGES = SEQS * SEQ_PAGES };
    static const struct {
        uint32_t rows[SEQS];
        uint8_t  absorbed[SEQS];
    } STEPS[] = {{{2, 3}, {0, 1}}, {{1, 2}, {1, 0}}};
    AT_END(close_pair) pair p = open_pair(1, STEP_MOST);
    sequences               s = {0};
    td_npu_weight          *w[5][2], *f[3][2];
    td_block_desc           desc[2];
    const size_t            n[] = {LORA, HEADS * (NOPE + ROPE), LATENT + ROPE, HEADS * (NOPE + V), HIDDEN},
                 k[] = {HIDDEN, LORA, HIDDEN, LATENT, HEADS * V}, n_f[] = {LORA, LATENT, ROPE};
    for (int i = 0; i < 5; i++) random_weights(&p, r, TD_WEIGHT_BF16, n[i], k[i], w[i]);
    for (int i = 0; i < 3; i++) random_weights(&p, r, TD_WEIGHT_F32, i == 2 ? SEQ_PAGES * TD_KV_PAGE : 0, n_f[i], f[i]);
    both in = put_rows(&p, r, HIDDEN), latent = put(&p, NULL, (size_t)PAGES * TD_KV_PAGE * LATENT * sizeof(float)),
         keys = put(&p, NULL, (size_t)PAGES * TD_KV_PAGE * ROPE * sizeof(float));
    for (size_t step = 0; step < sizeof STEPS / sizeof *STEPS; step++) {
        char what[64];
        both out = put(&p, NULL, all_rows(&p) * HIDDEN * sizeof(td_bf16));
        next_step(&p, &s, STEPS[step].rows);
        memcpy(s.absorbed.at[HOST], STEPS[step].absorbed, SEQS);
        copy(&p, s.absorbed.at[HOST], s.absorbed.at[CARD], SEQS, TD_COPY_H2D);
        for (int d = 0; d < 2; d++)
            desc[d] =
                ATTENTION_OF(TD_BLOCK_MLA, all_rows(&p), SEQ_PAGES * TD_KV_PAGE, mla, .hidden = HIDDEN, .heads = HEADS,
                             .q_lora = LORA, .kv_lora = LATENT, .nope_dim = NOPE, .rope_dim = ROPE, .v_dim = V, .eps = 1e-6f,
                             .softmax_scale = 0.1f, .q_a = w[0][d], .q_a_norm = f[0][d], .q_b = w[1][d], .kv_a = w[2][d],
                             .kv_a_norm = f[1][d], .kv_b = w[3][d], .o = w[4][d], .rope = f[2][d], .kv_latent = latent.at[d],
                             .kv_rope = keys.at[d], .kv_pages = PAGES, .in = in.at[d], .out = out.at[d]);
        run_both(&p, desc, &out);
        snprintf(what, sizeof what, "latent attention, step %zu", step);
        check(&p, &out, HIDDEN, LATENT_TOLERANCE, what);
    }
}

TEST(latent_attention_on_a_small_card) {
    rnd r = rnd_open("latent attention of a small card");
    setenv("TD_STANDIN_ARCH", "86", 1);
    run_mla(&r);
    unsetenv("TD_STANDIN_ARCH");
}

/* Attention of DeepSeek-V3, whose layer is captured for each kind of step: an upper limit of the graph's nodes. Nothing
 * runs, and the products' other sizes do not change what is launched; each card has the shared memory and threads for it. */
static void capture_latent_attention(void) {
    enum {
        HIDDEN = 64,
        LORA = 64,
        HEADS = 128,
        NOPE = 128,
        ROPE = 64,
        V = 128,
        LATENT = 512,
        ROWS = 2048,
        CONTEXT = 163840
    };
    static const struct {
        td_step_kind kind;
        uint32_t     rows, most;
    } CASES[] = {{TD_STEP_GENERATED, 1, 14},
                 {TD_STEP_GENERATED, 64, 14},
                 {TD_STEP_GENERATED, 256, 40},
                 {TD_STEP_PROMPTS, ROWS, 52},
                 {TD_STEP_MIXED, ROWS, 60}};
    AT_END(close_pair) pair p = open_pair(1, ROWS);
    td_npu_weight          *w[5], *f[3];
    const size_t            n[] = {LORA, HEADS * (NOPE + ROPE), LATENT + ROPE, HEADS * (NOPE + V), HIDDEN},
                 k[] = {HIDDEN, LORA, HIDDEN, LATENT, HEADS * V}, n_f[] = {LORA, LATENT, ROPE};
    const td_npu_ops *o = p.card->ops;
    td_npu_block     *b;
    td_error          err = {0};
    FREED float      *zeros = calloc((size_t)HEADS * (NOPE + V) * LATENT, sizeof *zeros);
    for (int i = 0; i < 5; i++) {
        td_tensor_view v = {.dtype = TD_DT_F32, .rank = 2, .shape = {n[i], k[i]}, .data = zeros};
        OK(o->weight_create(p.card, i == 3 ? TD_WEIGHT_BF16 : TD_WEIGHT_W8A8, &v, &w[i], &err));
    }
    for (int i = 0; i < 3; i++) {
        td_tensor_view v = {.dtype = TD_DT_F32, .rank = 2, .shape = {i == 2 ? CONTEXT : 1, n_f[i]}, .data = zeros};
        if (i < 2) v = (td_tensor_view){.dtype = TD_DT_F32, .rank = 1, .shape = {n_f[i]}, .data = zeros};
        OK(o->weight_create(p.card, TD_WEIGHT_F32, &v, &f[i], &err));
    }
    both in = put(&p, NULL, (size_t)all_rows(&p) * HIDDEN * sizeof(td_bf16)),
         latent = put(&p, NULL, TD_KV_PAGE * LATENT * sizeof(td_bf16)),
         rope = put(&p, NULL, TD_KV_PAGE * ROPE * sizeof(td_bf16));
    td_block_desc desc = ATTENTION_OF(
        TD_BLOCK_MLA, all_rows(&p), CONTEXT, mla, .hidden = HIDDEN, .heads = HEADS, .q_lora = LORA, .kv_lora = LATENT,
        .nope_dim = NOPE, .rope_dim = ROPE, .v_dim = V, .eps = 1e-6f, .softmax_scale = 0.1f, .q_a = w[0], .q_a_norm = f[0],
        .q_b = w[1], .kv_a = w[2], .kv_a_norm = f[1], .kv_b = w[3], .o = w[4], .rope = f[2], .kv_latent = latent.at[CARD],
        .kv_rope = rope.at[CARD], .kv_pages = 1, .in = in.at[CARD], .out = in.at[CARD]);
    if (o->block_create(p.card, &desc, &b, &err) != TD_OK) fail_msg("%s", err.text);
    next_step(&p, &(sequences){0}, (uint32_t[SEQS]){1, 1});
    set_step(&p);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        p.step[CARD].kind = CASES[i].kind;
        p.step[CARD].max_tok = CASES[i].rows;
        OK(o->graph_begin(p.card, p.stream));
        OK(o->enqueue(p.card, p.stream, b, &p.step[CARD]));
        OK(o->graph_end(p.card, p.stream, NULL, &err));
        uint64_t nodes = counted(TD_CUDA_STANDIN "/libcuda.so.1", "standin_graph_nodes");
        if (nodes > CASES[i].most)
            fail_msg("a layer's attention over %u rows, kind %d, has %lu nodes and not at most %u", CASES[i].rows,
                     (int)CASES[i].kind, (unsigned long)nodes, CASES[i].most);
    }
    o->block_destroy(p.card, b);
    for (int i = 0; i < 5; i++) o->weight_destroy(p.card, w[i]);
    for (int i = 0; i < 3; i++) o->weight_destroy(p.card, f[i]);
}

TEST(nodes_of_latent_attention) {
    if (on_own_card()) skip(); /* the stand-in counts them */
    capture_latent_attention();
    for (size_t i = 0; i < N_OTHER_CARDS; i++) {
        setenv("TD_STANDIN_ARCH", OTHER_CARDS[i], 1);
        capture_latent_attention();
    }
    unsetenv("TD_STANDIN_ARCH");
}

/* ---- router -------------------------------------------------------------------------------------- */

/* The products' sums have other orders, so weights are near; no two choices of these rows are so near that it matters. */
static void run_router(pair *p, rnd *r, td_router_score score, bool has_logit_bias, bool has_bias) {
    enum { HIDDEN = 72, EXPERTS = 20, TOP_K = 3 };
    td_npu_weight *w[2], *logit_bias[2], *bias[2];
    td_block_desc  desc[2];
    size_t         pairs = (size_t)all_rows(p) * TOP_K;
    random_weights(p, r, TD_WEIGHT_F32, EXPERTS, HIDDEN, w);
    random_weights(p, r, TD_WEIGHT_F32, 0, EXPERTS, logit_bias);
    random_weights(p, r, TD_WEIGHT_F32, 0, EXPERTS, bias);
    const uint16_t slots[EXPERTS] = {TD_NO_SLOT, 3, TD_NO_SLOT, TD_NO_SLOT, 1, 2}; /* the others all in 0: nobody reads it */
    both           in = put_rows(p, r, HIDDEN), ids = put(p, NULL, pairs * sizeof(uint16_t)),
         weights = put(p, NULL, pairs * sizeof(float)), slot_of = put(p, slots, sizeof slots);
    BLOCKS(desc, TD_BLOCK_ROUTER, router, .hidden = HIDDEN, .n_experts = EXPERTS, .top_k = TOP_K, .score = score,
           .normalise = score == TD_SCORE_SIGMOID, .scale = 1.5f, .w = w[d],
           .logit_bias = has_logit_bias ? logit_bias[d] : NULL, .bias = has_bias ? bias[d] : NULL, .in = in.at[d],
           .ids = ids.at[d], .weights = weights.at[d], .slot_of = has_bias ? slot_of.at[d] : NULL);
    run_both(p, desc, &weights);
    uint16_t *got_ids = malloc(ids.bytes), *want_ids = ids.at[HOST];
    float    *got = malloc(weights.bytes), *want = weights.at[HOST];
    copy(p, got_ids, ids.at[CARD], ids.bytes, TD_COPY_D2H);
    copy(p, got, weights.at[CARD], weights.bytes, TD_COPY_D2H);
    for (size_t i = p->first * TOP_K; i < (p->first + p->rows) * TOP_K; i++)
        if (got_ids[i] != want_ids[i] || !(fabsf(got[i] - want[i]) <= 1e-5f))
            fail_msg("score %d, row %zu: expert %u with %g on the card, %u with %g on the host", (int)score, i / TOP_K,
                     got_ids[i], (double)got[i], want_ids[i], (double)want[i]);
    free(got_ids), free(got);
}

TEST(router) {
    rnd                     r = rnd_open("router");
    AT_END(close_pair) pair p = open_pair(5, 8);
    for (unsigned i = 0; i < CARD_SCORES * 4; i++) run_router(&p, &r, (td_router_score)(i / 4), i & 1, i & 2);
}

/* ---- the best logits, and log-softmax's sums ------------------------------------------------------ */

TEST(best_logits) {
    enum { VOCAB = 3001, BEST = 20, OUT = 3 };
    rnd                     r = rnd_open("best logits");
    AT_END(close_pair) pair p = open_pair(5, 8);
    td_block_desc           desc[2];
    FREED float            *x = rnd_array(&r, (size_t)OUT * VOCAB, 9);
    td_logit                got_top[OUT * BEST];
    td_log_sum              got[OUT];
    for (int i = 0; i < VOCAB; i++) x[VOCAB + i] = rintf(x[VOCAB + i]); /* many equal ones */
    p.counts.n_out = OUT - 1;                                           /* the last row is nobody's */
    copy(&p, &p.counts, p.dev_counts, sizeof p.counts, TD_COPY_H2D);
    both logits = put(&p, x, (size_t)OUT * VOCAB * sizeof *x), top = put(&p, NULL, sizeof got_top),
         sums = put(&p, NULL, sizeof got);
    for (int d = 0; d < 2; d++)
        desc[d] = BLOCK_OF(TD_BLOCK_TOP, all_rows(&p), top, .vocab = VOCAB, .k = BEST, .max_out = OUT,
                           .logits = logits.at[d], .top = top.at[d], .sums = sums.at[d]);
    run_both(&p, desc, &sums);
    copy(&p, got_top, top.at[CARD], sizeof got_top, TD_COPY_D2H);
    copy(&p, got, sums.at[CARD], sizeof got, TD_COPY_D2H);
    assert_memory_equal(got_top, top.at[HOST], sizeof got_top);
    for (int i = 0; i < OUT; i++) {
        td_log_sum want = ((td_log_sum *)sums.at[HOST])[i];
        if (memcmp(&got[i].max, &want.max, sizeof want.max) != 0 ||
            !(fabsf(got[i].sum - want.sum) <= LOG_SUM_ERROR * want.sum))
            fail_msg("row %d: %.9g and %.9g on the card, %.9g and %.9g on the host", i, (double)got[i].max,
                     (double)got[i].sum, (double)want.max, (double)want.sum);
    }
}

/* ---- what the card does not compute -------------------------------------------------------------- */

static void refused(pair *p, const td_block_desc *desc, const char *words) {
    td_npu_block *b;
    td_error      err = {0};
    assert_int_equal(p->card->ops->block_create(p->card, desc, &b, &err), TD_ENOTSUP);
    if (!strstr(err.text, words)) fail_msg("\"%s\" has no \"%s\"", err.text, words);
}

/* Fields of a block that this device does not know are not ignored: each is a sentence. */
TEST(refusals) {
    AT_END(close_pair) pair p = open_pair(1, 1);
    rnd                     r = rnd_open("refusals");
    td_npu_weight          *matrix[2];
    random_weights(&p, &r, TD_WEIGHT_BF16, 64, 64, matrix);
    td_block_desc gqa = {
        .kind = TD_BLOCK_GQA, .max_tok = 1, .max_kv = 8, .gqa = {.hidden = 64, .heads = 2, .kv_heads = 2, .head_dim = 256}};
    refused(&p, &gqa, "heads of 8 to 128");
    gqa.gqa.head_dim = 64, gqa.gqa.gated = true;
    refused(&p, &gqa, "has no gate");
    gqa.gqa.gated = false, gqa.gqa.axes.rows = 4;
    refused(&p, &gqa, "no rope by rows and columns");
    gqa.gqa.full = true;
    refused(&p, &gqa, "no attention to all rows");
    refused(&p, &BLOCK_OF(TD_BLOCK_NORM, 1, norm, .hidden = 64, .beta = matrix[CARD], .x = &r, .out = &r), "no layer norms");
    refused(&p,
            &BLOCK_OF(TD_BLOCK_LINEAR, 1, linear, .n = 64, .k = 64, .w = matrix[CARD], .activation = TD_ACTIVATE_GELU_TANH),
            "no activations of linears");
    refused(&p, &BLOCK_OF(TD_BLOCK_EMBED, 1, embed, .table = matrix[CARD], .hidden = 64, .images = &r, .out = &r),
            "no rows of images");
    refused(&p, &BLOCK_OF(TD_BLOCK_COMBINE, 1, combine, .hidden = 64, .x = &r, .images = &r), "no rows of images");
    td_block_desc f32 = BLOCK_OF(TD_BLOCK_COMBINE, 1, combine, .hidden = 64, .x = &r, .add = {&r});
    f32.rows_f32 = true;
    refused(&p, &f32, "no blocks with rows in f32");
    const td_npu_weight *list[1] = {matrix[CARD]};
    refused(&p,
            &BLOCK_OF(TD_BLOCK_EXPERTS, 1, experts, .hidden = 64, .inter = 64, .n_experts = 1, .top_k = 1, .gate = list,
                      .up = list, .down = list, .in = &r, .ids = (uint16_t[]){0}, .weights = (float[]){1}, .out = &r),
            "an expert's gate is bf16");
}

/* What a launch is held to is what the kernels take. */
TEST(kernels) {
    char  name[96];
    void *library = dlopen(TD_CUDA_KERNELS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    for (size_t i = 0; i < TD_CUDA_KERNEL_COUNT; i++) {
        const td_cuda_kernel_facts *facts = &TD_CUDA_KERNEL_FACTS[i];
        snprintf(name, sizeof name, "td_cuda_kernel_%s", facts->name);
        const td_cuda_kernel *k = dlsym(library, name);
        if (!k) fail_msg("there is no kernel %s", facts->name);
        if (k->n_args != facts->n_args || k->max_threads != facts->threads)
            fail_msg("%s takes %u arguments and %u threads, not %u and %u", facts->name, k->n_args, k->max_threads,
                     facts->n_args, facts->threads);
    }
}

static const td_npu_bound BOUNDS[] = {TD_BOUND_READ, TD_BOUND_COPY, TD_BOUND_INT8, TD_BOUND_BF16};

static uint64_t free_memory(td_npu *card) {
    td_npu_caps caps;
    card->ops->caps(card, &caps);
    return caps.memory_free;
}

/* A card measures itself, and gives back what it took. */
TEST(bounds) {
    td_npu      *bare;
    td_error     err = {0};
    pair         p = open_pair(1, 1);
    const double before = (double)free_memory(p.card);
    for (size_t i = 0; i < sizeof BOUNDS / sizeof *BOUNDS; i++) {
        double per_s = 0;
        OK(p.card->ops->bound(p.card, BOUNDS[i], &per_s, &err));
        assert_true(per_s > 0 && isfinite(per_s));
        if (!on_own_card()) assert_true((double)free_memory(p.card) == before); /* there others may take some, too */
    }
    close_pair(&p);
    OK(td_npu_open("cuda", &(td_npu_config){.act_dtype = TD_DT_BF16, .bare = true}, &bare, &err));
    double per_s;
    assert_int_equal(bare->ops->bound(bare, TD_BOUND_READ, &per_s, &err), TD_EINVAL);
    assert_string_equal(err.text, "the card was opened without its kernels");
    bare->ops->close(bare);
}

/* A child whose i-th call of the driver fails. @return 0: it had fewer, or did without; 1: the open failed; 2: a bound, with
 * a sentence. */
static int bounds_with_failure(int i) {
    pid_t child = fork();
    if (child == 0) {
        char     number[16];
        td_npu  *card;
        td_error err = {0};
        double   per_s;
        snprintf(number, sizeof number, "%d", i);
        setenv("TD_STANDIN_FAIL", number, 1);
        setenv("TD_STANDIN_DELAY_US", "2000", 1); /* as many launches take some ms on any machine */
        if (td_npu_open("cuda", &(td_npu_config){.act_dtype = TD_DT_BF16}, &card, &err) != TD_OK) _exit(1);
        td_status st = TD_OK;
        for (size_t b = 0; b < sizeof BOUNDS / sizeof *BOUNDS && st == TD_OK; b++)
            st = card->ops->bound(card, BOUNDS[b], &per_s, &err);
        card->ops->close(card); /* the stand-in ends who has not given back everything */
        _exit(st == TD_OK ? 0 : err.text[0] ? 2 : 3);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status)) fail_msg("call %d that fails ends the process by signal %d", i, WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* Some calls fail without harm: a card opens without cuBLASLt. So many in a row are none any more. */
#define HARMLESS_MAX 25

FIRST_TEST(bounds_that_fail) {
    if (on_own_card()) skip(); /* its calls do not fail when they are told to */
    int n_bounds = 0, harmless = 0;
    for (int i = 1; harmless < HARMLESS_MAX; i++) {
        int said = bounds_with_failure(i);
        assert_in_range(said, 0, 2);
        n_bounds += said == 2;
        harmless = said == 0 ? harmless + 1 : 0;
        assert_true(i < 1000);
    }
    assert_true(n_bounds >= 10); /* two allocations, a filling, launches and waits of each */
}

int main(void) {
    use_cuda_standin("5", "calls"); /* nothing to measure: no bell is rung here */
    return tests_run();
}

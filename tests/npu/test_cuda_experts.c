/*
 * Routed experts of the backend for NVIDIA cards, on the stand-in, have the bits of the host device and of the CPU tier, in
 * every format of weights. Sums, which are rounded once to bf16, are compared with the host's. The unrounded rows of single
 * experts are compared with the CPU tier's exact sums.
 */
#include "coded_matrices.h"
#include "cuda_pair.h"
#include "kernels/exact_sum.h"
#include "npu/cuda/cuda_kind.h"
#include "tests/cpu_experts/load_views.h"
#include "tests/standins/cuda/use_cuda_standin.h"

#define EXPERTS_MOST 5

/* Matrices of one kind on both, and what they were made of. */
typedef struct {
    const td_npu_weight *list[2][EXPERTS_MOST];
    coded                of[EXPERTS_MOST];     /* of a kind of KINDS */
    float               *values[EXPERTS_MOST]; /* else */
    td_tensor_view       view[EXPERTS_MOST];
} expert_matrices;

/* kind N_KINDS: W8A8. */
static void make_experts(pair *p, rnd *r, size_t kind, uint32_t n_experts, size_t n, size_t k, expert_matrices *out) {
    *out = (expert_matrices){0};
    for (uint32_t e = 0; e < n_experts; e++) {
        td_npu_weight *w[2];
        if (kind == N_KINDS) {
            out->values[e] = rnd_array(r, n * k, 1);
            out->view[e] = (td_tensor_view){.dtype = TD_DT_F32, .rank = 2, .shape = {n, k}, .data = out->values[e]};
        } else {
            out->of[e] = make_coded(r, kind, n, k);
            out->view[e] = view_of(&out->of[e]);
        }
        weights_of(p, kind == N_KINDS ? TD_WEIGHT_W8A8 : KINDS[kind].format, &out->view[e], w);
        for (int d = 0; d < 2; d++) out->list[d][e] = w[d];
    }
}

static void drop_experts(uint32_t n_experts, expert_matrices *m) {
    for (uint32_t e = 0; e < n_experts; e++) {
        free(m->values[e]);
        free_coded(&m->of[e]);
    }
}

typedef struct {
    size_t   of_gate, of_down; /* kinds */
    uint32_t rows, bucket, n_experts, top_k, hidden, inter;
    bool     of_codes; /* rows come as codes */
} experts_case;

/* The sums of the step's rows [rows] of td_exact_words(hidden), by the CPU tier. */
static int32_t *sums_of_cpu(pair *p, const experts_case *c, expert_matrices *const m[3], const td_experts_desc *x) {
    const bool        int8 = c->of_gate == N_KINDS;
    td_expert_weights experts[EXPERTS_MOST] = {0};
    td_experts       *cpu;
    td_error          err = {0};
    td_experts_config config =
        WITH(td_experts_config, .n_layers = 1, .n_experts = c->n_experts, .hidden = c->hidden, .inter = c->inter,
             .top_k = c->top_k, .format = TD_EXPERT_INT8C, .act_dtype = TD_DT_BF16, .max_tok = c->rows);
    if (!int8) {
        bool fp4 = KINDS[c->of_gate].format == TD_WEIGHT_FP4G;
        config.format = fp4 ? TD_EXPERT_FP4G : TD_EXPERT_INT4G;
        config.groups = (td_expert_groups){.size = KINDS[c->of_gate].size ? KINDS[c->of_gate].size : 128,
                                           .scale_dtype = KINDS[c->of_gate].dtype,
                                           .zero_points = KINDS[c->of_gate].zeros};
    }
    for (uint32_t e = 0; e < c->n_experts; e++)
        experts[e] = (td_expert_weights){.gate = m[0]->view[e], .up = m[1]->view[e], .down = m[2]->view[e]};
    if (td_experts_create(&config, p->host.pool, &cpu, &err) != TD_OK || load_views(cpu, 0, experts, &err) != TD_OK)
        fail_msg("%s", err.text);
    const size_t first = p->first, words = td_exact_words(c->hidden);
    int32_t     *sums = calloc(c->rows * words, sizeof *sums);
    td_ffn_args  a = WITH(td_ffn_args, .n_tok = c->rows, .top_k = c->top_k, .x = (const td_bf16 *)x->in + first * c->hidden,
                          .ids = (const uint16_t *)x->ids + first * c->top_k, .weights = x->weights + first * c->top_k,
                          .n_immediate = c->top_k, .y = sums, .in_parts = true);
    if (c->of_codes) a.x = NULL, a.x_i8 = x->in_i8.q + first * c->hidden, a.x_scale = x->in_i8.scale + first;
    td_experts_ffn(cpu, 0, &a);
    td_experts_destroy(cpu);
    return sums;
}

/* What the card's last products gave for each expert of a row, before it is rounded: the CPU tier's words to the bit. */
static void check_rows_of_experts(pair *p, const experts_case *c, expert_matrices *const m[3], const td_block_desc desc[2],
                                  const char *what) {
    const td_experts_desc *x = &desc[HOST].experts;
    const size_t           pairs = (size_t)c->rows * c->top_k, words = td_exact_words(c->hidden);
    char                  *scratch = ((td_cuda_npu *)p->card)->base.scratch.at;
    td_cuda_places         at;
    FREED uint32_t        *place_of = malloc(pairs * sizeof *place_of);
    FREED float           *down = malloc(pairs * c->hidden * sizeof *down);
    FREED int32_t         *want = sums_of_cpu(p, c, m, x), *got = malloc(words * sizeof *got);
    td_cuda_experts.place(&desc[CARD], &at);
    copy(p, place_of, scratch + at.place_of, pairs * sizeof *place_of, TD_COPY_D2H);
    copy(p, down, scratch + at.up, pairs * c->hidden * sizeof *down, TD_COPY_D2H);
    for (size_t row = 0; row < c->rows; row++) {
        td_exact_begin(got, c->hidden, c->top_k);
        for (size_t j = 0; j < c->top_k; j++)
            for (size_t i = 0; i < c->hidden; i++)
                td_exact_add_one(x->weights[(p->first + row) * c->top_k + j],
                                 down[place_of[row * c->top_k + j] * c->hidden + i], got + td_exact_at(i));
        for (size_t i = 0; i < c->hidden; i++) {
            const int32_t *a = got + td_exact_at(i), *b = want + row * words + td_exact_at(i);
            if (isnan(td_exact_value(a)) && isnan(td_exact_value(b))) continue; /* NaNs have words of any kind */
            if (a[0] != b[0] || a[TD_EXACT_BLOCK] != b[TD_EXACT_BLOCK])
                fail_msg("%s: row %zu, value %zu: %.9g, and %.9g on the CPU tier", what, row, i, (double)td_exact_value(a),
                         (double)td_exact_value(b));
        }
    }
}

#define RUN_ROWS 1024 /* cuda_experts.c: the scratch holds one run's */

/* Rows of zeros and with a NaN among those of the step. */
static void put_odd_rows(pair *p, const both *in, uint32_t hidden) {
    td_bf16 *rows = (td_bf16 *)in->at[HOST] + (size_t)p->first * hidden;
    memset(rows + hidden, 0, hidden * sizeof *rows);
    rows[3 * (size_t)hidden + 1] = td_f32_to_bf16(NAN);
    copy(p, in->at[HOST], in->at[CARD], in->bytes, TD_COPY_H2D);
}

static void run_experts(const experts_case *c, rnd *r) {
    AT_END(close_pair) pair p = open_pair(c->rows, c->bucket);
    size_t                  pairs = (size_t)all_rows(&p) * c->top_k;
    FREED uint16_t         *ids = calloc(pairs, sizeof *ids);
    FREED float            *weights = rnd_array(r, pairs, 1), *x_scale = calloc(all_rows(&p), sizeof *x_scale);
    FREED int8_t           *codes = calloc(all_rows(&p), c->hidden);
    expert_matrices         gate, up, down;
    td_block_desc           desc[2];
    char                    what[96];
    make_experts(&p, r, c->of_gate, c->n_experts, c->inter, c->hidden, &gate);
    make_experts(&p, r, c->of_gate, c->n_experts, c->inter, c->hidden, &up);
    make_experts(&p, r, c->of_down, c->n_experts, c->hidden, c->inter, &down);
    for (size_t i = 0; i < pairs; i++) /* a row's are distinct; the last expert has none where there is a choice */
        ids[i] = (uint16_t)((i / c->top_k / 3 + i % c->top_k) % (c->n_experts > c->top_k ? c->n_experts - 1 : c->n_experts));
    both in = put_rows(&p, r, c->hidden), out = put(&p, NULL, (size_t)all_rows(&p) * c->hidden * sizeof(td_bf16)),
         chosen = put(&p, ids, pairs * sizeof *ids), by = put(&p, weights, pairs * sizeof *weights);
    for (size_t i = 0; i < all_rows(&p); i++) {
        x_scale[i] = 0.01f * (float)(i % 7 + 1);
        for (size_t k = 0; k < c->hidden; k++) codes[i * c->hidden + k] = (int8_t)((int)rnd_range(r, 0, 254) - 127);
    }
    if (c->rows > 3) put_odd_rows(&p, &in, c->hidden);
    both q = put(&p, codes, (size_t)all_rows(&p) * c->hidden), scale = put(&p, x_scale, all_rows(&p) * sizeof *x_scale);
    for (int d = 0; d < 2; d++)
        desc[d] = BLOCK_OF(TD_BLOCK_EXPERTS, all_rows(&p), experts, .hidden = c->hidden, .inter = c->inter,
                           .n_experts = c->n_experts, .top_k = c->top_k, .gate = gate.list[d], .up = up.list[d],
                           .down = down.list[d], .in = in.at[d],
                           .in_i8 = {c->of_codes ? q.at[d] : NULL, c->of_codes ? scale.at[d] : NULL}, .ids = chosen.at[d],
                           .weights = by.at[d], .out = out.at[d]);
    run_both(&p, desc, &out);
    snprintf(what, sizeof what, "%u of %u experts, kinds %zu and %zu", c->top_k, c->n_experts, c->of_gate, c->of_down);
    check(&p, &out, c->hidden, 0, what);
    expert_matrices *const matrices[] = {&gate, &up, &down};
    if (c->of_gate == c->of_down && c->bucket <= RUN_ROWS) check_rows_of_experts(&p, c, matrices, desc, what);
    for (size_t i = 0; i < 3; i++) drop_experts(c->n_experts, matrices[i]);
}

/* Few rows of an expert and many, so that both tiles of int8 run; every kind of numbers; a step of more than one run. */
TEST(experts) {
    static const experts_case CASES[] = {
        {N_KINDS, N_KINDS, 5, 8, 5, 2, 50, 33, true},    {N_KINDS, N_KINDS, 1, 1, 4, 1, 40, 70, false},
        {N_KINDS, N_KINDS, 7, 8, 2, 2, 50, 130, true},   {N_KINDS, 0, 5, 8, 4, 2, 34, 36, false},
        {0, N_KINDS, 5, 8, 4, 2, 34, 36, true},          {N_KINDS, N_KINDS, 1029, 1032, 2, 1, 8, 8, true},
        {N_KINDS, N_KINDS, 90, 96, 3, 2, 131, 67, false}};
    rnd r = rnd_open("experts");
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) run_experts(&CASES[i], &r);
    for (size_t kind = 0; kind < N_KINDS; kind++) {
        run_experts(&(experts_case){kind, kind, 5, 8, 4, 2, 66, 100, kind % 2}, &r);
        run_experts(&(experts_case){kind, kind, 37, 40, 5, 3, 270, 134, !(kind % 2)}, &r);
    }
}

int main(void) {
    use_cuda_standin("5", "calls");
    return tests_run();
}

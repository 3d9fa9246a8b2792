/*
 * Routed experts that lie in slots, packed as the CPU tier packs them: the CPU tier's kernels over the CPU tier's tiles, so
 * an expert's outputs have its bits. A chunk's rows are made once, as kernels take them. Then experts take their turns: gate
 * and up by tiles, the intermediate rows, down by tiles, and each output times its weight into the exact sum of its row.
 */
#include <string.h>

#include "core/error.h"
#include "kernels/product/gemm_row.h"
#include "kernels/rows/convert.h"
#include "npu/host/host_chosen.h"

#define CHUNK_ROWS 512

typedef struct {
    td_host_npu            *d;
    const td_npu_block     *b;
    const td_resident_desc *x;
    const td_packed_expert *p;
    const td_gemm_kernel   *kernel;
    size_t                  row0;
    td_host_choice          choice;       /* of the chunk */
    td_gemm_row            *x_rows;       /* [choice.rows] */
    td_gemm_row            *in, *mid;     /* [n] of the expert under way: its rows, and its intermediate rows */
    char                   *in_at;        /* where the rows of in lie, x_stride bytes apart */
    float                  *inter, *down; /* [n, n_gate tiles * nr], [n, hidden] */
    const td_host_chosen   *list;         /* [n] of the expert under way */
    size_t                  n;
    const char             *expert; /* its first piece */
} resident_job;

static char *place(const resident_job *j, size_t at) {
    return j->d->scratch + at;
}

/* From one row of k values to the next. */
static size_t row_bytes(const td_packed_expert *p, size_t k) {
    return td_round_up(td_gemm_row_bytes(p->product, &p->groups, k), TD_CACHE_LINE);
}

static void make_chunk_row(void *ctx, uint32_t i, const td_worker *w) {
    const resident_job     *j = ctx;
    const td_resident_desc *x = j->x;
    const td_packed_expert *p = j->p;
    const size_t            hidden = x->hidden, k = p->hidden_k, from = (j->row0 + i) * hidden;
    char                   *at = place(j, j->b->at.x) + i * row_bytes(p, k);
    td_gemm_row            *row = &j->x_rows[i];
    (void)w;
    if (x->in_i8.q)
        td_gemm_row_take(p->product, &p->groups, x->in_i8.q + from, x->in_i8.scale[j->row0 + i], hidden, k, at, row);
    else
        td_gemm_row_make(p->product, &p->groups, j->d->act, (const char *)x->in + td_host_act_bytes(j->d, from), hidden, k,
                         at, row);
}

/* ---- an expert ------------------------------------------------------------------------------------ */

/* Of all of the expert's rows and one tile, without the place where its values go. */
static td_gemm_args product_of(const resident_job *j, td_expert_matrix m, size_t tile) {
    const bool   down = m == TD_EXPERT_DOWN;
    size_t       bias;
    const char  *at = j->expert + td_packed_tile_at(j->p, m, tile, &bias);
    td_gemm_args a = {.tile = at,
                      .n_tiles = 1,
                      .k = down ? j->p->inter_k : j->p->hidden_k,
                      .m = j->n,
                      .rows = down ? j->mid : j->in,
                      .groups = j->p->groups,
                      .end = {.dtype = TD_DT_F32}};
    if (j->p->sizes.bias) a.end.bias = (const float *)(const void *)(j->expert + bias);
    return a;
}

static void gate_up_tile(void *ctx, uint32_t item, const td_worker *w) {
    const resident_job *j = ctx;
    const size_t        nr = j->p->sizes.nr;
    float               gates[CHUNK_ROWS * TD_GEMM_NR_MAX];
    td_gemm_args        g = product_of(j, TD_EXPERT_GATE, item), u = product_of(j, TD_EXPERT_UP, item);
    (void)w;
    g.end.n = u.end.n = g.end.ld = u.end.ld_gate = nr;
    g.end.out = gates;
    j->kernel->run(&g);
    u.end.gate = gates;
    u.end.glu = j->p->glu;
    u.end.out = j->inter + item * nr;
    u.end.ld = j->b->at.inter_columns;
    j->kernel->run(&u);
}

static void make_mid_row(void *ctx, uint32_t i, const td_worker *w) {
    const resident_job *j = ctx;
    (void)w;
    td_gemm_row_make(j->p->product, &j->p->groups, TD_DT_F32, j->inter + i * j->b->at.inter_columns, j->x->inter,
                     j->p->inter_k, place(j, j->b->at.rows) + i * row_bytes(j->p, j->p->inter_k), &j->mid[i]);
}

static void down_tile(void *ctx, uint32_t item, const td_worker *w) {
    const resident_job *j = ctx;
    const size_t        nr = j->p->sizes.nr, column = item * nr, left = j->x->hidden - column;
    td_gemm_args        g = product_of(j, TD_EXPERT_DOWN, item);
    (void)w;
    g.end.n = left < nr ? left : nr;
    g.end.out = j->down + column;
    g.end.ld = j->x->hidden;
    j->kernel->run(&g);
}

static void run_expert(resident_job *j, size_t e) {
    const size_t stride = row_bytes(j->p, j->p->hidden_k), nr = j->p->sizes.nr;
    for (size_t i = 0; i < j->n; i++) { /* kernels want rows at equal distances */
        j->in[i] = j->x_rows[j->list[i].row];
        j->in[i].x = memcpy(j->in_at + i * stride, j->in[i].x, stride);
    }
    td_host_for(j->d, gate_up_tile, j, td_div_up(j->x->inter, nr), j->n * j->x->hidden);
    td_host_for(j->d, make_mid_row, j, j->n, j->n * j->x->inter);
    td_host_for(j->d, down_tile, j, td_div_up(j->x->hidden, nr), j->n * j->x->inter);
    td_host_choice_add(j->d, &j->choice, e, j->down);
}

/* ---- the block --------------------------------------------------------------------------------------- */

static td_status run_resident(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    const td_resident_desc *x = &b->desc.resident;
    resident_job            j = {.d = d,
                                 .b = b,
                                 .x = x,
                                 .p = &b->packed,
                                 .kernel = d->kernels->product[b->packed.product],
                                 .x_rows = (td_gemm_row *)(void *)(d->scratch + b->at.scales),
                                 .in_at = d->scratch + b->at.gathered,
                                 .inter = (float *)(void *)(d->scratch + b->at.inter),
                                 .down = (float *)(void *)(d->scratch + b->at.down)};
    const td_host_choice   *c = &j.choice;
    j.in = j.x_rows + b->at.chunk;
    j.mid = j.in + b->at.chunk;
    for (; j.row0 < s->n_tok; j.row0 += b->at.chunk) {
        j.choice = (td_host_choice){.rows = s->n_tok - j.row0 < b->at.chunk ? s->n_tok - j.row0 : b->at.chunk,
                                    .top_k = x->top_k,
                                    .n_experts = x->n_experts,
                                    .hidden = x->hidden,
                                    .first_choice = x->first,
                                    .end_choice = td_resident_end(x),
                                    .slot_of = x->slot_of,
                                    .ids = x->ids + j.row0 * x->top_k,
                                    .weights = x->weights + j.row0 * x->top_k,
                                    .first = (uint32_t *)(void *)(d->scratch + b->at.first),
                                    .list = (td_host_chosen *)(void *)(d->scratch + b->at.chosen),
                                    .sums = x->sums + j.row0 * td_exact_words(x->hidden)};
        TD_TRY(td_host_choice_list(c));
        if (!c->first[x->n_experts]) continue;
        td_host_for(d, make_chunk_row, &j, c->rows, c->rows * x->hidden);
        for (size_t e = 0; e < x->n_experts; e++) {
            j.list = c->list + c->first[e];
            j.n = c->first[e + 1] - c->first[e];
            if (!j.n) continue;
            if (x->slot_of[e] == TD_NO_SLOT) return TD_EINVAL; /* not this table's mark */
            j.expert = (const char *)x->slots + x->slot_of[e] * b->packed.bytes;
            run_expert(&j, e);
        }
    }
    return TD_OK;
}

static void place_resident(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    const td_resident_desc *x = &desc->resident;
    const td_packed_expert *p = x->packed;
    size_t                  used = 0, chunk = desc->max_tok < CHUNK_ROWS ? desc->max_tok : CHUNK_ROWS;
    (void)d;
    b->run = run_resident;
    b->packed = *p;
    b->at.chunk = chunk;
    b->at.inter_columns = td_round_up(x->inter, p->sizes.nr);
    b->at.first = td_host_place(&used, (x->n_experts + 1) * sizeof(uint32_t));
    b->at.chosen = td_host_place(&used, chunk * x->top_k * sizeof(td_host_chosen));
    b->at.scales = td_host_place(&used, 3 * chunk * sizeof(td_gemm_row)); /* rows of the chunk, of an expert, between */
    b->at.x = td_host_place(&used, chunk * row_bytes(p, p->hidden_k));
    b->at.gathered = td_host_place(&used, chunk * row_bytes(p, p->hidden_k));
    b->at.inter = td_host_place(&used, chunk * b->at.inter_columns * sizeof(float));
    b->at.rows = td_host_place(&used, chunk * row_bytes(p, p->inter_k));
    b->at.down = td_host_place(&used, chunk * x->hidden * sizeof(float));
    b->scratch_bytes = used;
}

static td_status check_resident(td_host_npu *d, const td_block_desc *desc, td_error *err) {
    const td_packed_expert *p = desc->resident.packed;
    return p->tiles == d->kernels->product[p->product]->tiles
               ? TD_OK
               : td_fail(err, TD_EINVAL, "resident experts are packed in tiles %s, which this device's kernels do not read",
                         p->tiles->name);
}

const td_host_block_kind td_host_resident = {.place = place_resident, .check = check_resident};

/* ---- join ------------------------------------------------------------------------------------------- */

#define JOIN_VALUES 256 /* that are joined at a time, on the stack */

typedef struct {
    td_host_npu        *d;
    const td_join_desc *x;
} join_job;

static void join_row(void *ctx, uint32_t row, const td_worker *w) {
    const join_job *j = ctx;
    const size_t    hidden = j->x->hidden, at = row * td_exact_words(hidden);
    (void)w;
    for (size_t i = 0, n; i < hidden; i += n) {
        int32_t        whole[2 * JOIN_VALUES];
        float          values[JOIN_VALUES];
        const int32_t *a = j->x->parts[0] + at + td_exact_at(i), *b = j->x->parts[1] + at + td_exact_at(i);
        n = hidden - i < JOIN_VALUES ? hidden - i : JOIN_VALUES;
        for (size_t k = 0; k < td_exact_words(n); k++) whole[k] = (int32_t)((uint32_t)a[k] + (uint32_t)b[k]);
        j->d->kernels->rows->exact_end(whole, n, values);
        td_from_f32(j->d->act, values, n, (char *)j->x->out + td_host_act_bytes(j->d, row * hidden + i));
    }
}

static td_status run_join(td_host_npu *d, const td_npu_block *b, const td_host_step *s) {
    join_job j = {d, &b->desc.join};
    td_host_for(d, join_row, &j, s->n_tok, (size_t)s->n_tok * b->desc.join.hidden * 2);
    return TD_OK;
}

static void place_join(const td_host_npu *d, const td_block_desc *desc, td_npu_block *b) {
    (void)d;
    (void)desc;
    b->run = run_join;
}

const td_host_block_kind td_host_join = {.place = place_join};

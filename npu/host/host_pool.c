#include "npu/host/host_pool.h"

#include "npu/host/host_index.h"

#define BLOCK ((size_t)TD_STATE_BLOCK)

/* Rows of one sequence that lie in the chunk. */
typedef struct {
    const td_host_pool *p;
    uint32_t            seq, open;
    size_t              row, n, pos; /* of the chunk; position of the first */
} part;

static part part_of(const td_host_pool *p, uint32_t seq) {
    const td_step_arrays *s = p->s;
    const size_t first = s->seq_start[seq] > p->row0 ? s->seq_start[seq] : p->row0, end_of_chunk = p->row0 + p->rows,
                 end = s->seq_start[seq + 1] < end_of_chunk ? s->seq_start[seq + 1] : end_of_chunk;
    if (first >= end) return (part){0};
    return (part){
        .p = p, .seq = seq, .open = s->state_open[seq], .row = first - p->row0, .n = end - first, .pos = s->pos[first]};
}

/* What the open block has of a position: its key, then its gate. */
static float *open_row(const part *a, size_t pos) {
    const td_index_desc *x = a->p->x;
    return (float *)x->open + a->open * td_index_open_values(x) + pos % BLOCK * 2 * x->dim;
}

static const float *key_at(const part *a, size_t pos) {
    return pos < a->pos ? open_row(a, pos) : a->p->keys + (a->row + pos - a->pos) * a->p->x->dim;
}
static const float *gate_at(const part *a, size_t pos) {
    const size_t dim = a->p->x->dim;
    return pos < a->pos ? open_row(a, pos) + dim : a->p->gates + (a->row + pos - a->pos) * dim;
}

/* Key w: per channel the tokens' keys, weighted by a softmax of their gates. @param weights [pool][dim] of scratch */
static void join_tokens(const part *a, size_t w, float *weights, float *key) {
    const td_host_pool *p = a->p;
    const size_t        dim = p->x->dim, pool = td_index_pool(p->x), first = w * pool;
    const float        *ape = td_host_vector(p->x->ape);
    for (size_t i = 0; i < pool; i++)
        for (size_t c = 0; c < dim; c++) weights[i * dim + c] = gate_at(a, first + i)[c] + ape[i * dim + c];
    for (size_t c = 0; c < dim; c++) {
        float max = weights[c];
        for (size_t i = 1; i < pool; i++) max = weights[i * dim + c] > max ? weights[i * dim + c] : max;
        for (size_t i = 0; i < pool; i++) weights[i * dim + c] -= max;
    }
    p->d->kernels->math->exp_sum(weights, 0, pool * dim);
    for (size_t c = 0; c < dim; c++) {
        float sum = 0, value = 0;
        for (size_t i = 0; i < pool; i++) {
            sum += weights[i * dim + c];
            value += weights[i * dim + c] * key_at(a, first + i)[c];
        }
        key[c] = value / sum;
    }
}

static void key_item(void *ctx, uint32_t item, const td_worker *worker) {
    const part         *a = ctx;
    const td_host_pool *p = a->p;
    const size_t        pool = td_index_pool(p->x), per_page = TD_KV_PAGE / pool, w = a->pos / pool + item;
    float              *key = (float *)(void *)(p->workers + worker->index * td_host_pool_bytes(p->x));
    join_tokens(a, w, key + p->x->dim, key);
    td_host_index_store(p->d, p->x->keys, pool, p->s->block_table[(size_t)a->seq * p->block_stride + w / per_page],
                        w % per_page, key, p->x->dim);
}

/* Of the block in which the part ends, whose last row may be a draft. */
static void keep_rows(const part *a) {
    const size_t end = a->pos + a->n, border = (end - 1) / BLOCK * BLOCK, dim = a->p->x->dim;
    for (size_t pos = border > a->pos ? border : a->pos; pos < end; pos++) {
        memcpy(open_row(a, pos), key_at(a, pos), dim * sizeof(float));
        memcpy(open_row(a, pos) + dim, gate_at(a, pos), dim * sizeof(float));
    }
}

void td_host_pool_keys(const td_host_pool *p) {
    const size_t pool = td_index_pool(p->x);
    for (uint32_t seq = 0; seq < p->n_seq; seq++) {
        part a = part_of(p, seq);
        if (!a.n) continue;
        const size_t ended = (a.pos + a.n) / pool - a.pos / pool;
        td_host_for(p->d, key_item, &a, ended, ended * pool * p->x->dim * 8);
        keep_rows(&a);
    }
}

size_t td_host_pool_bytes(const td_index_desc *x) {
    return td_round_up((1 + (size_t)td_index_pool(x)) * x->dim * sizeof(float), TD_CACHE_LINE);
}

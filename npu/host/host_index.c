#include "npu/host/host_index.h"

#include <math.h>

#define ROWS ((size_t)16) /* of an item */

void td_host_find_sequences(const td_host_step *s, size_t row0, size_t rows, uint32_t *seq_of) {
    for (uint32_t q = 0; q < s->n_seq; q++)
        for (size_t row = s->a.seq_start[q]; row < s->a.seq_start[q + 1]; row++)
            if (row >= row0 && row < row0 + rows) seq_of[row - row0] = q;
}

/* ---- score ------------------------------------------------------------------------------------- */

static void *scratch_of(const td_host_index *x, const td_worker *worker) {
    return x->workers + worker->index * x->path->bytes(x->d, x->heads, x->dim);
}

static void take_item(void *ctx, uint32_t i, const td_worker *worker) {
    const td_host_index *x = ctx;
    if (td_host_index_chooses(x, i)) x->path->take(x, scratch_of(x, worker), i);
}

/* Keys [first, first + n) of a sequence, n at most TD_INDEX_TILE. */
static void load_keys(const td_host_index *x, void *scratch, uint32_t seq, size_t first, size_t n) {
    const size_t    per_page = td_host_index_per_page(x), bytes = x->path->page_bytes(x->d, per_page, x->dim);
    const uint32_t *pages = x->s->a.block_table + (size_t)seq * x->s->block_stride;
    for (size_t at = 0; at < n; at += per_page)
        x->path->load(x, scratch, at, (const char *)x->keys + pages[(first + at) / per_page] * bytes,
                      n - at < per_page ? n - at : per_page);
}

typedef struct {
    const td_host_index *x;
    size_t               tiles;
} score_job;

static void score_item(void *ctx, uint32_t item, const td_worker *worker) {
    const score_job     *j = ctx;
    const td_host_index *x = j->x;
    const size_t         first = item % j->tiles * TD_INDEX_TILE, row = item / j->tiles * ROWS,
                 end = row + ROWS < x->rows ? row + ROWS : x->rows;
    void *scratch = scratch_of(x, worker);
    for (size_t i = row, last; i < end; i = last + 1) { /* rows of one sequence, of which the last sees most */
        last = i;
        while (last + 1 < end && x->seq_of[last + 1] == x->seq_of[i]) last++;
        const size_t seen = td_host_index_visible(x, last);
        if (!td_host_index_chooses(x, last) || seen <= first) continue;
        load_keys(x, scratch, x->seq_of[i], first, seen - first < TD_INDEX_TILE ? seen - first : TD_INDEX_TILE);
        for (; i <= last; i++) {
            const size_t keys = td_host_index_visible(x, i);
            if (td_host_index_chooses(x, i) && keys > first)
                x->path->score(x, scratch, i, keys - first < TD_INDEX_TILE ? keys - first : TD_INDEX_TILE,
                               x->scores + i * x->ld_scores + first);
        }
    }
}

/* ---- choose ------------------------------------------------------------------------------------ */

/* A number that is the larger, the sooner a score is chosen: zeros are equal, a NaN has the least. */
static uint32_t rank_of(float score) {
    const uint32_t sign = 0x80000000u;
    uint32_t       bits;
    score += 0.0f;
    memcpy(&bits, &score, sizeof bits);
    return isnan(score) ? 0 : bits & sign ? ~bits : bits | sign;
}

/* Of n ranks the least that is among the first `top`. @param ties how many that have it are among them */
static uint32_t least_rank(const float *scores, size_t n, size_t top, size_t *ties) {
    static const unsigned SHIFT[] = {32, 21, 10, 0}; /* its bits in three parts, the high ones first */
    uint32_t              rank = 0, count[1 << 11];
    for (size_t part = 1; part < 4; part++) {
        const uint32_t mask = (1u << (SHIFT[part - 1] - SHIFT[part])) - 1;
        memset(count, 0, sizeof count);
        for (size_t k = 0; k < n; k++) {
            const uint64_t r = rank_of(scores[k]);
            if (r >> SHIFT[part - 1] == (uint64_t)rank >> SHIFT[part - 1]) count[r >> SHIFT[part] & mask]++;
        }
        uint32_t bits = mask;
        while (count[bits] < top) top -= count[bits--];
        rank |= bits << SHIFT[part];
    }
    *ties = top;
    return rank;
}

static void choose_item(void *ctx, uint32_t i, const td_worker *worker) {
    const td_host_index *x = ctx;
    const float         *scores = x->scores + i * x->ld_scores;
    uint32_t            *chosen = x->chosen + i * x->top;
    size_t               ties, n = 0;
    (void)worker;
    if (!td_host_index_chooses(x, i)) return;
    const uint32_t least = least_rank(scores, td_host_index_visible(x, i), x->top, &ties);
    for (uint32_t k = 0; n < x->top; k++) {
        const uint32_t rank = rank_of(scores[k]);
        const bool     tie = rank == least && ties > 0;
        chosen[n] = k;
        n += rank > least || tie;
        ties -= tie;
    }
}

void td_host_index_choose(const td_host_index *x) {
    size_t most = 0;
    for (size_t i = 0; i < x->rows; i++)
        if (td_host_index_chooses(x, i) && td_host_index_visible(x, i) > most) most = td_host_index_visible(x, i);
    if (!most) return;
    score_job    j = {x, (most + TD_INDEX_TILE - 1) / TD_INDEX_TILE};
    const size_t scores = x->rows * j.tiles * TD_INDEX_TILE, width = x->heads * x->dim;
    if (x->path->take) td_host_for(x->d, take_item, (void *)x, x->rows, x->rows * width * 8);
    td_host_for(x->d, score_item, &j, (x->rows + ROWS - 1) / ROWS * j.tiles, scores * width);
    td_host_for(x->d, choose_item, (void *)x, x->rows, scores * 4);
}

#include "npu/ascend/ascend_step.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/log/log.h"
#include "core/memory/mem.h"

#define ALIGNMENT 512 /* of arrays on the device */

/* ---- mirrors ----------------------------------------------------------------------------------- */

static td_status open_mirror(td_ascend_npu *d, td_ascend_mirror *m, size_t bytes) {
    m->bytes = bytes;
    m->fresh = calloc(2, bytes);
    m->host = m->fresh ? m->fresh + bytes : NULL;
    return m->fresh ? td_card_take(&d->base, bytes, (void **)&m->dev, NULL) : TD_ENOMEM;
}

static void close_mirror(td_ascend_npu *d, td_ascend_mirror *m) {
    td_card_give(&d->base, m->dev);
    free(m->fresh);
}

static td_status bring_fresh(td_ascend_npu *d, td_ascend_mirror *m) {
    if (m->copied && !memcmp(m->host, m->fresh, m->bytes)) return TD_OK;
    memcpy(m->host, m->fresh, m->bytes);
    m->copied = false;
    TD_TRY(td_card_upload(&d->base, m->dev, m->host, m->bytes, NULL));
    atomic_fetch_add_explicit(&d->base.down_bytes, m->bytes, memory_order_relaxed);
    m->copied = true;
    return TD_OK;
}

/* ---- a step ------------------------------------------------------------------------------------ */

static td_ascend_cut *find_cut(td_ascend_step *s, td_ascend_cut_key key) {
    for (size_t i = 0; i < s->n_cuts; i++)
        if (!memcmp(&s->cuts[i].key, &key, sizeof key)) return &s->cuts[i];
    return NULL;
}

bool td_ascend_step_has(td_ascend_step *s, td_ascend_cut_key key) {
    return find_cut(s, key) != NULL;
}

td_ascend_cut *td_ascend_step_cut(td_ascend_step *s, td_ascend_cut_key key) {
    td_ascend_cut *c = find_cut(s, key);
    c->used = true;
    return c;
}

bool td_ascend_step_is(const td_ascend_step *s, const td_step *step) {
    const td_step *a = &s->step;
    return a->max_tok == step->max_tok && a->max_seq == step->max_seq && a->max_out == step->max_out &&
           a->first_row == step->first_row && a->block_stride == step->block_stride &&
           !memcmp(&a->host, &step->host, sizeof a->host) && !memcmp(&a->dev, &step->dev, sizeof a->dev);
}

static size_t ints(size_t n) {
    return td_round_up(n * sizeof(int32_t), ALIGNMENT);
}

/* Bytes of the rows' arrays. */
static size_t rows_bytes(const td_step *step) {
    size_t outs = step->max_out ? step->max_out : 1;
    return ints(step->max_tok) + ints(step->max_tok) + ints(outs) + ints(2 * (size_t)step->max_tok) + ints(2);
}

static void place_rows(td_ascend_step *s) {
    size_t outs = s->step.max_out ? s->step.max_out : 1;
    s->token = (const int32_t *)s->m.dev;
    s->pos = (const int32_t *)(s->m.dev + ints(s->step.max_tok));
    s->out_row = (const int32_t *)(s->m.dev + 2 * ints(s->step.max_tok));
    s->pos64 = (const int64_t *)((const char *)s->out_row + ints(outs));
    s->n_rows = (const int64_t *)((const char *)s->pos64 + ints(2 * (size_t)s->step.max_tok));
}

static td_ascend_cut cut_of(const td_step *step, td_ascend_cut_key key) {
    td_ascend_cut c = {.key = key};
    c.n = td_ascend_cut_pieces(step, key.most, key.kv_spare_pages);
    c.stride = step->block_stride ? step->block_stride : 1;
    c.bytes = ints(step->max_tok) + ints((size_t)c.n * c.stride) + ints(2 * (size_t)step->max_tok);
    return c;
}

/* @param at where its arrays begin in the step's. */
static td_status place_cut(td_ascend_step *s, td_ascend_cut *c, size_t at) {
    c->at = at;
    c->slot = (const int32_t *)(s->m.dev + at);
    c->table = (const int32_t *)((const char *)c->slot + ints(s->step.max_tok));
    c->slot64 = (const int64_t *)((const char *)c->table + ints((size_t)c->n * c->stride));
    c->rows_end = calloc(2 * (size_t)c->n, sizeof *c->rows_end);
    c->fresh_lengths = calloc(2 * (size_t)c->n, sizeof *c->fresh_lengths);
    c->keys = c->rows_end ? c->rows_end + c->n : NULL;
    return c->rows_end && c->fresh_lengths ? TD_OK : TD_ENOMEM;
}

/* @return bytes of their arrays */
static size_t list_cuts(const td_ascend_npu *d, td_ascend_step *s, td_ascend_cut_key wanted, bool others) {
    size_t bytes = 0;
    if (wanted.most) s->cuts[s->n_cuts++] = cut_of(&s->step, wanted);
    for (size_t i = 0; others && i < TD_ASCEND_CUTS_MAX && s->n_cuts < TD_ASCEND_CUTS_MAX; i++)
        if (d->cuts[i].refs && !td_ascend_step_has(s, d->cuts[i].key))
            s->cuts[s->n_cuts++] = cut_of(&s->step, d->cuts[i].key);
    for (size_t i = 0; i < s->n_cuts; i++) bytes += s->cuts[i].bytes;
    return bytes;
}

td_status td_ascend_step_open(td_ascend_npu *d, const td_step *step, td_ascend_cut_key cut, bool others,
                              td_ascend_step **out) {
    td_ascend_step *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return TD_ENOMEM;
    s->step = *step;
    s->n_tokens = s->n_positions = UINT64_MAX;
    size_t    at = rows_bytes(step), cuts = list_cuts(d, s, cut, others);
    td_status st = open_mirror(d, &s->m, at + cuts);
    if (st == TD_OK) place_rows(s);
    for (size_t i = 0; i < s->n_cuts && st == TD_OK; at += s->cuts[i++].bytes) st = place_cut(s, &s->cuts[i], at);
    if (st == TD_OK) {
        *out = s;
        return TD_OK;
    }
    td_err("no memory for the arrays of a step of %u rows", step->max_tok);
    td_ascend_step_close(d, s);
    return st;
}

void td_ascend_step_close(td_ascend_npu *d, td_ascend_step *s) {
    if (!s) return;
    close_mirror(d, &s->m);
    for (size_t i = 0; i < s->n_cuts; i++) {
        free(s->cuts[i].rows_end);
        free(s->cuts[i].fresh_lengths);
    }
    for (size_t i = 0; i < s->n_routes; i++) close_mirror(d, &s->routes[i].m);
    free(s);
}

static bool is_over(const char *what, uint64_t value, uint64_t n) {
    if (value >= n)
        td_err("a step has the %s %llu, and the device knows %llu", what, (unsigned long long)value, (unsigned long long)n);
    return value >= n;
}

static td_status fill_rows(td_ascend_step *s) {
    const td_step *step = &s->step;
    td_step_counts n = *step->host.counts;
    int32_t       *token = (int32_t *)s->m.fresh, *pos = (int32_t *)(s->m.fresh + ints(step->max_tok)),
            *out_row = (int32_t *)(s->m.fresh + 2 * ints(step->max_tok));
    int64_t *pos64 = (int64_t *)(s->m.fresh + ((const char *)s->pos64 - s->m.dev)),
            *n_rows = (int64_t *)(s->m.fresh + ((const char *)s->n_rows - s->m.dev));
    if (is_over("number of rows", n.n_tok, (uint64_t)step->max_tok + 1) ||
        is_over("number of sequences", n.n_seq, (uint64_t)step->max_seq + 1) ||
        is_over("number of wanted rows", n.n_out, (uint64_t)step->max_out + 1))
        return TD_EINVAL;
    memset(s->m.fresh, 0, s->m.bytes);
    for (uint32_t i = 0; step->host.token && i < n.n_tok; i++) {
        if (is_over("token", step->host.token[i], s->n_tokens)) return TD_EINVAL;
        token[i] = (int32_t)step->host.token[i];
    }
    for (uint32_t i = 0; step->host.pos && i < n.n_tok; i++) {
        if (is_over("position", step->host.pos[i], s->n_positions)) return TD_EINVAL;
        pos64[i] = pos[i] = (int32_t)step->host.pos[i];
    }
    *n_rows = step->max_tok;
    for (uint32_t i = 0; step->host.out_row && i < n.n_out; i++) {
        if (is_over("wanted row", step->host.out_row[i], n.n_tok)) return TD_EINVAL;
        out_row[i] = (int32_t)step->host.out_row[i];
    }
    return TD_OK;
}

/* ---- cuts -------------------------------------------------------------------------------------- */

uint32_t td_ascend_cut_pieces(const td_step *step, uint32_t most, uint32_t kv_spare_pages) {
    uint64_t rows = step->max_tok, pieces = (uint64_t)step->max_seq + kv_spare_pages; /* of spare rows: one a page */
    /* A sequence's last piece may have one row only, and so may that of the rows beyond the counts. */
    if (most != UINT32_MAX) pieces = (rows + (uint64_t)(most - 1) * (step->max_seq + 1ull)) / most;
    return (uint32_t)(pieces < rows ? pieces : rows);
}

/* Pieces as they are found, and single rows in the place of larger pieces while there are too few. */
typedef struct {
    td_ascend_cut *c;
    int32_t       *table;   /* on the host, as it is made */
    uint32_t       n, rows; /* so far */
    uint32_t       missing; /* pieces that are to be made besides */
} cutter;

static void add_piece(cutter *k, uint32_t rows, uint32_t keys, const uint32_t *pages, uint32_t n_pages) {
    td_ascend_cut *c = k->c;
    int32_t       *row = k->table + (size_t)k->n * c->stride;
    for (uint32_t i = 0; i < n_pages; i++) row[i] = (int32_t)pages[i];
    k->rows += rows;
    c->fresh_lengths[k->n] = k->rows;
    c->fresh_lengths[c->n + k->n++] = keys;
}

/* Rows that see keys up to `keys`, the last of them all. */
static void add_rows(cutter *k, uint32_t rows, uint32_t keys, const uint32_t *pages) {
    for (; rows > 1 && k->missing; rows--, k->missing--) {
        uint32_t seen = keys - rows + 1;
        add_piece(k, 1, seen, pages, (uint32_t)td_div_up(seen, TD_KV_PAGE));
    }
    add_piece(k, rows, keys, pages, (uint32_t)td_div_up(keys, TD_KV_PAGE));
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Rows of the next piece, of those beyond the counts: `done` of `rows` are in pieces. A page is one piece's. */
static uint32_t spare_piece(const td_ascend_cut *c, uint32_t done, uint32_t rows) {
    return least(least(c->key.most, rows - done), TD_KV_PAGE - done % TD_KV_PAGE);
}

static td_status check_sequence(const td_ascend_step *s, const td_ascend_cut *c, uint32_t q, uint32_t n_tok) {
    const td_step_arrays *a = &s->step.host;
    uint32_t              first = a->seq_start[q], end = a->seq_start[q + 1], keys = a->kv_len[q];
    if (first >= end || end > n_tok || (q == 0 && first) || keys < end - first ||
        td_div_up(keys, TD_KV_PAGE) > s->step.block_stride) {
        td_err("a step's sequence %u has rows %u to %u of %u and %u keys in at most %u pages", q, first, end, n_tok, keys,
               s->step.block_stride);
        return TD_EINVAL;
    }
    for (uint32_t i = 0; i < td_div_up(keys, TD_KV_PAGE); i++)
        if (is_over("page", a->block_table[(size_t)q * s->step.block_stride + i], c->key.kv_pages)) return TD_EINVAL;
    return TD_OK;
}

static td_status fill_cut(td_ascend_step *s, td_ascend_cut *c) {
    const td_step_arrays *a = &s->step.host;
    td_step_counts        n = *a->counts;
    uint32_t              spare = s->step.max_tok - n.n_tok, pieces = 0;
    char                 *fresh = s->m.fresh + c->at;
    int32_t              *slot = (int32_t *)fresh;
    if (spare > c->key.kv_spare_pages * TD_KV_PAGE) {
        td_err("a step of %u rows runs in a bucket of %u, and the cache has %u slots for the rest", n.n_tok, s->step.max_tok,
               c->key.kv_spare_pages * TD_KV_PAGE);
        return TD_EINVAL;
    }
    for (uint32_t i = 0; i < n.n_tok; i++) {
        if (is_over("slot", a->slot[i], (uint64_t)c->key.kv_pages * TD_KV_PAGE)) return TD_EINVAL;
        slot[i] = (int32_t)a->slot[i];
    }
    for (uint32_t i = 0; i < spare; i++) slot[n.n_tok + i] = (int32_t)(c->key.kv_pages * TD_KV_PAGE + i);
    int64_t *slot64 = (int64_t *)(fresh + ((const char *)c->slot64 - (const char *)c->slot));
    for (uint32_t i = 0; i < s->step.max_tok; i++) slot64[i] = slot[i];
    for (uint32_t q = 0; q < n.n_seq; q++) {
        TD_TRY(check_sequence(s, c, q, n.n_tok));
        pieces += (a->seq_start[q + 1] - a->seq_start[q] - 1) / c->key.most + 1;
    }
    for (uint32_t i = 0; i < spare; i += spare_piece(c, i, spare)) pieces++;
    if (n.n_seq ? a->seq_start[n.n_seq] != n.n_tok : n.n_tok != 0) {
        td_err("a step has %u rows, and its sequences others", n.n_tok);
        return TD_EINVAL;
    }
    cutter k = {
        .c = c, .table = (int32_t *)(fresh + ((const char *)c->table - (const char *)c->slot)), .missing = c->n - pieces};
    for (uint32_t q = 0; q < n.n_seq; q++) {
        uint32_t        rows = a->seq_start[q + 1] - a->seq_start[q];
        const uint32_t *pages = a->block_table + (size_t)q * s->step.block_stride;
        for (uint32_t i = 0, take; i < rows; i += take) {
            take = least(c->key.most, rows - i);
            add_rows(&k, take, a->kv_len[q] - rows + i + take, pages);
        }
    }
    for (uint32_t i = 0, take; i < spare; i += take) {
        uint32_t page = c->key.kv_pages + i / TD_KV_PAGE;
        take = spare_piece(c, i, spare);
        add_rows(&k, take, i % TD_KV_PAGE + take, &page);
    }
    return TD_OK;
}

void td_ascend_cut_set_longest(const td_ascend_step *s, td_ascend_cut *c) {
    uint32_t rows = s->step.max_tok, most = c->key.most;
    for (uint32_t i = 0, done = 0; i < c->n; i++) {
        uint32_t left = rows - done - (c->n - i - 1); /* the others have a row at least */
        done += i + 1 == c->n ? rows - done : least(most, left);
        c->rows_end[i] = done;
        c->keys[i] = (int64_t)c->stride * TD_KV_PAGE;
    }
}

/* ---- routes ------------------------------------------------------------------------------------ */

td_ascend_route *td_ascend_step_route(td_ascend_npu *d, td_ascend_step *s, uint32_t n_experts, uint32_t top_k,
                                      uint32_t most) {
    for (size_t i = 0; i < s->n_routes; i++) {
        td_ascend_route *o = &s->routes[i];
        if (o->n_experts == n_experts && o->top_k == top_k && o->most == most) return o;
    }
    if (s->n_routes == TD_ASCEND_ROUTES_MAX) {
        td_err("a step has routed experts of more than %d kinds", TD_ASCEND_ROUTES_MAX);
        return NULL;
    }
    td_ascend_route o = {.n_experts = n_experts, .top_k = top_k, .most = most};
    size_t          pairs = (size_t)s->step.max_tok * top_k, counts = td_div_up(s->step.max_tok, most) * n_experts;
    /* Ids and weights lie side by side: they are one message between cards. */
    if (open_mirror(d, &o.m, ints(2 * pairs) + ints(pairs) + 2 * ints(2 * counts) + ints(counts)) != TD_OK) {
        td_err("no memory for the routes of a step of %u rows", s->step.max_tok);
        close_mirror(d, &o.m);
        return NULL;
    }
    o.ids = (int32_t *)o.m.dev;
    o.weights = (float *)o.ids + pairs;
    o.places = (int32_t *)(o.m.dev + ints(2 * pairs));
    o.counts = (int64_t *)((char *)o.places + ints(pairs));
    o.sums = (int64_t *)((char *)o.counts + ints(2 * counts));
    o.counts32 = (int32_t *)((char *)o.sums + ints(2 * counts));
    s->routes[s->n_routes] = o;
    return &s->routes[s->n_routes++];
}

/* Whether what attentions were prepared with no longer holds; their lengths are then the new ones. */
static bool take_lengths(const td_ascend_step *s, td_ascend_cut *c) {
    size_t bytes = 2 * c->n * sizeof *c->rows_end;
    bool   same = s->m.copied && !memcmp(s->m.host + c->at, s->m.fresh + c->at, c->bytes) &&
                !memcmp(c->rows_end, c->fresh_lengths, bytes);
    memcpy(c->rows_end, c->fresh_lengths, bytes);
    return !same;
}

td_status td_ascend_step_fill(td_ascend_npu *d, td_ascend_step *s, bool *changed) {
    *changed = false;
    TD_TRY(fill_rows(s));
    for (size_t i = 0; i < s->n_cuts; i++)
        if (s->cuts[i].used) TD_TRY(fill_cut(s, &s->cuts[i]));
    for (size_t i = 0; i < s->n_cuts; i++)
        if (s->cuts[i].used) *changed |= take_lengths(s, &s->cuts[i]);
    TD_TRY(bring_fresh(d, &s->m));
    for (size_t i = 0; i < s->n_routes; i++) TD_TRY(bring_fresh(d, &s->routes[i].m)); /* zeros, once */
    return TD_OK;
}

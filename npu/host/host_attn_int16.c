/*
 * Tiles of attention in integers of 16 bits (kernels/attn16.h): what devices with bf16 activations compute with.
 *
 * A key, a value, a latent and a query row each get a scale of their own, so a row's numbers do not depend on its neighbours: on none that
 * come later in the page, and on no other query. Absorbed, a key is its latent and rope part under one scale, and its value is the latent's
 * integers.
 */
#include <math.h>

#include "npu/host/host_attention.h"

#define TILE       ((size_t)TD_ATTN_TILE)
#define SPAN_TILES ((size_t)TD_HOST_SPAN / TD_ATTN_TILE)
#define LANES      ((size_t)TD_ATTN16_LANES)
#define ROWS       32 /* two panels, which the products take at a time */
#define EXPAND     32 /* keys that are expanded together: their sums stay in L1 */
#define V_PANEL    (TILE * LANES + 32) /* int16s of 16 columns of a tile's values; a line more, so that panels do not share the cache's sets */
#define LOG2_E     1.44269504f

typedef struct {
    int16_t *k;                         /* [SPAN][ldk] */
    float   *k_scale, *v_scale, *v_max; /* [SPAN] */
    int16_t *v;                         /* [SPAN_TILES][ldv / 16][TILE / 2][16][2] */
    int16_t *rows;                      /* [16][row]: on their way into panels */
    float   *s;                         /* [TILE][ROWS] */
    int16_t *p;                         /* [ROWS][TILE] */
    int16_t *w;                         /* expanded: W_UK | W_UV as panels, [up / 16][lora / 2][16][2] */
    float   *w_scale;                   /* [up] */
    float   *w_uv;                      /* [lora / 32][dv][32]: on its way */
    int16_t *latent;                    /* [EXPAND][lora] */
    float   *expanded;                  /* [EXPAND][up] */
    char    *q;                         /* per 16 query rows: their scales, and a panel [ldk / 2][16][2] */
    size_t   ldk, ldv, row, lora, up_v, up, q_bytes; /* lengths of rows, rounded up; where W_UV starts in up; of 16 query rows */
} scratch;

static size_t lay(const td_attn_shape *s, size_t q_rows, char *at, scratch *b) {
    td_host_plan p = {0};
    bool         expanded = s->form == TD_ATTN_EXPANDED;
    scratch      z = {.ldk = td_round_up(s->dk, 32), .ldv = td_attn_ld(s), .lora = td_round_up(s->kv_lora, TILE), .up_v = td_round_up(s->nope, LANES)};
    z.up = z.up_v + td_round_up(s->dv, LANES);
    z.row = z.ldk > z.lora ? z.ldk : z.lora;
    z.row = z.row > z.ldv ? z.row : z.ldv;
    z.q_bytes = LANES * (sizeof(float) + z.ldk * sizeof(int16_t));
    z.k = (int16_t *)(at + td_host_take(&p, TD_HOST_SPAN * z.ldk * sizeof(int16_t)));
    z.k_scale = (float *)(at + td_host_take(&p, TD_HOST_SPAN * sizeof(float)));
    z.v_scale = (float *)(at + td_host_take(&p, TD_HOST_SPAN * sizeof(float)));
    z.v_max = (float *)(at + td_host_take(&p, TD_HOST_SPAN * sizeof(float)));
    z.v = (int16_t *)(at + td_host_take(&p, SPAN_TILES * z.ldv / LANES * V_PANEL * sizeof(int16_t)));
    z.rows = (int16_t *)(at + td_host_take(&p, LANES * z.row * sizeof(int16_t)));
    z.s = (float *)(at + td_host_take(&p, TILE * ROWS * sizeof(float)));
    z.p = (int16_t *)(at + td_host_take(&p, ROWS * TILE * sizeof(int16_t)));
    if (expanded) {
        z.w = (int16_t *)(at + td_host_take(&p, z.up * z.lora * sizeof(int16_t)));
        z.w_scale = (float *)(at + td_host_take(&p, z.up * sizeof(float)));
        z.w_uv = (float *)(at + td_host_take(&p, s->dv * z.lora * sizeof(float)));
        z.latent = (int16_t *)(at + td_host_take(&p, EXPAND * z.lora * sizeof(int16_t)));
        z.expanded = (float *)(at + td_host_take(&p, EXPAND * z.up * sizeof(float)));
    }
    z.q = at + td_host_take(&p, q_rows / LANES * z.q_bytes); /* last: the others' places do not depend on q_rows */
    if (b) *b = z;
    return p.used;
}

static size_t bytes(const td_attn_shape *s, size_t q_rows) { return lay(s, q_rows, NULL, NULL); }

static scratch open_scratch(const td_attn *a, void *mem) {
    scratch b;
    lay(&a->shape, 0, mem, &b);
    return b;
}

/* A row of one part as integers; of an odd row a zero follows. @return its scale */
static float to_integers(const td_attn16 *k, td_dtype dtype, const void *x, size_t n, int16_t *out, float *max) {
    td_attn16_size size = {0, 0};
    k->measure(dtype, x, n, &size);
    float norm = sqrtf(size.squares);
    k->round(dtype, x, n, td_attn16_inverse(norm), out);
    if (n % 2) out[n] = 0;
    if (max) *max = size.max;
    return td_attn16_scale(norm);
}

/* ---- keys and values ------------------------------------------------------------------------- */

/* W_UK and W_UV of a head as panels of 16 outputs, each output's weights with a scale of its own. */
static void open_group(const td_attn *a, void *mem, size_t group) {
    const td_attn_shape *s = &a->shape;
    const td_attn16     *k = a->d->attn16;
    if (s->form != TD_ATTN_EXPANDED) return;
    scratch     b = open_scratch(a, mem);
    td_dtype    dtype = td_attn_up_dtype(a->kv_b);
    const char *w_uk = td_attn_up(a->kv_b, group, s->nope, s->dv, s->kv_lora, 0), *w_uv = td_attn_up(a->kv_b, group, s->nope, s->dv, s->kv_lora, s->nope);
    size_t      element = td_dtype_bytes(dtype), pairs = (s->kv_lora + 1) / 2;
    for (size_t r = 0; r < s->kv_lora; r += TILE)
        a->d->math->transpose(b.w_uv + r * s->dv, s->dv * 32, dtype, w_uv + r * s->dv * element, s->dv, s->kv_lora - r < TILE ? s->kv_lora - r : TILE, s->dv);
    for (size_t at = 0; at < b.up; at += LANES) {
        bool   keys = at < b.up_v;
        size_t first = keys ? at : at - b.up_v, n = (keys ? s->nope : s->dv) - first;
        if (n > LANES) n = LANES;
        memset(b.w_scale + at, 0, LANES * sizeof(float));
        for (size_t i = 0; i < n; i++) {
            int16_t *row = b.rows + i * b.row;
            if (keys) {
                b.w_scale[at + i] = to_integers(k, dtype, w_uk + (first + i) * s->kv_lora * element, s->kv_lora, row, NULL);
                continue;
            }
            td_attn16_size size = {0, 0};
            const float   *part = b.w_uv + (first + i) * 32; /* 32 of its weights; the next 32 are dv * 32 further */
            for (size_t r = 0; r < s->kv_lora; r += 32) k->measure(TD_DT_F32, part + r * s->dv, s->kv_lora - r < 32 ? s->kv_lora - r : 32, &size);
            float norm = sqrtf(size.squares);
            for (size_t r = 0; r < s->kv_lora; r += 32)
                k->round(TD_DT_F32, part + r * s->dv, s->kv_lora - r < 32 ? s->kv_lora - r : 32, td_attn16_inverse(norm), row + r);
            if (s->kv_lora % 2) row[s->kv_lora] = 0;
            b.w_scale[at + i] = td_attn16_scale(norm);
        }
        k->transpose((int32_t *)(void *)(b.w + at * b.lora), LANES, (const int32_t *)(const void *)b.rows, b.row / 2, n, pairs);
    }
}

/* A key of two parts, the first at row[0], under one scale. @return the scale */
static float join_key(const td_attn16 *k, td_attn16_size *size, td_dtype dtype, const void *x, size_t n, const void *rope, size_t n_rope, int16_t *row) {
    k->measure(TD_DT_BF16, rope, n_rope, size);
    float norm = sqrtf(size->squares), inverse = td_attn16_inverse(norm);
    k->round(dtype, x, n, inverse, row);
    k->round(TD_DT_BF16, rope, n_rope, inverse, row + n);
    if ((n + n_rope) % 2) row[n + n_rope] = 0;
    return td_attn16_scale(norm);
}

static void load_gqa(const td_attn *a, const scratch *b, const td_attn_tile *t, size_t n, int16_t *v) {
    const td_attn_shape *s = &a->shape;
    const td_attn16     *k = a->d->attn16;
    const td_bf16       *keys = (const td_bf16 *)(const void *)td_attn_keys(a, t), *values = (const td_bf16 *)(const void *)td_attn_values(a, t);
    size_t               at = t->place * TILE;
    for (size_t i = 0; i < n; i++) {
        int16_t *row = b->rows + i % 2 * b->row;
        b->k_scale[at + i] = to_integers(k, TD_DT_BF16, keys + i * s->dk, s->dk, b->k + (at + i) * b->ldk, NULL);
        b->v_scale[at + i] = to_integers(k, TD_DT_BF16, values + i * s->dv, s->dv, row, &b->v_max[at + i]);
        if (i % 2 || i + 1 == n) k->pair(b->rows, i % 2 ? row : NULL, s->dv, v + i / 2 * 2 * LANES, V_PANEL);
    }
}

static void load_absorbed(const td_attn *a, const scratch *b, const td_attn_tile *t, size_t n, int16_t *v) {
    const td_attn_shape *s = &a->shape;
    const td_attn16     *k = a->d->attn16;
    const td_bf16       *latent = (const td_bf16 *)(const void *)td_attn_keys(a, t), *rope = (const td_bf16 *)(const void *)td_attn_values(a, t);
    size_t               at = t->place * TILE;
    for (size_t i = 0; i < n; i++) {
        int16_t       *row = b->k + (at + i) * b->ldk;
        td_attn16_size size = {0, 0};
        k->measure(TD_DT_BF16, latent + i * s->kv_lora, s->kv_lora, &size);
        b->v_max[at + i] = size.max;
        b->k_scale[at + i] = b->v_scale[at + i] =
            join_key(k, &size, TD_DT_BF16, latent + i * s->kv_lora, s->kv_lora, rope + i * s->rope, s->rope, row);
        if (i % 2 || i + 1 == n) k->pair(row - i % 2 * b->ldk, i % 2 ? row : NULL, s->kv_lora, v + i / 2 * 2 * LANES, V_PANEL);
    }
}

static void load_expanded(const td_attn *a, const scratch *b, const td_attn_tile *t, size_t n, int16_t *v) {
    const td_attn_shape *s = &a->shape;
    const td_attn16     *k = a->d->attn16;
    const td_bf16       *latent = (const td_bf16 *)(const void *)td_attn_keys(a, t), *rope = (const td_bf16 *)(const void *)td_attn_values(a, t);
    for (size_t first = 0; first < n; first += EXPAND) {
        size_t some = n - first < EXPAND ? n - first : EXPAND;
        float  scale[EXPAND];
        for (size_t i = 0; i < some; i++)
            scale[i] = to_integers(k, TD_DT_BF16, latent + (first + i) * s->kv_lora, s->kv_lora, b->latent + i * b->lora, NULL);
        k->gemm(&(td_attn16_gemm){
            .m = some, .n = b->up, .pairs = (s->kv_lora + 1) / 2, .a = b->latent, .lda = b->lora, .scale = scale, .b = b->w, .panel_stride = b->lora * LANES,
            .column = b->w_scale, .c = b->expanded, .ldc = b->up,
        });
        for (size_t i = 0; i < some; i++) {
            const float   *up = b->expanded + i * b->up;
            size_t         at = t->place * TILE + first + i;
            int16_t       *row = b->rows + i % 2 * b->row;
            td_attn16_size size = {0, 0};
            k->measure(TD_DT_F32, up, s->nope, &size);
            b->k_scale[at] = join_key(k, &size, TD_DT_F32, up, s->nope, rope + (first + i) * s->rope, s->rope, b->k + at * b->ldk);
            b->v_scale[at] = to_integers(k, TD_DT_F32, up + b->up_v, s->dv, row, &b->v_max[at]);
            if (i % 2 || i + 1 == some) k->pair(b->rows, i % 2 ? row : NULL, s->dv, v + (first + i) / 2 * 2 * LANES, V_PANEL);
        }
    }
}

static void load(const td_attn *a, void *mem, const td_attn_tile *t) {
    scratch  b = open_scratch(a, mem);
    int16_t *v = b.v + t->place * (b.ldv / LANES * V_PANEL);
    size_t   n = td_attn_tile_keys(t);
    switch (a->shape.form) {
    case TD_ATTN_GQA: load_gqa(a, &b, t, n, v); break;
    case TD_ATTN_ABSORBED: load_absorbed(a, &b, t, n, v); break;
    case TD_ATTN_EXPANDED: load_expanded(a, &b, t, n, v); break;
    }
}

/* ---- query rows ------------------------------------------------------------------------------ */

static void take(const td_attn *a, void *mem, size_t at, const float *const *q, size_t n) {
    const td_attn16 *k = a->d->attn16;
    scratch          b = open_scratch(a, mem);
    for (size_t first = 0; first < n; first += LANES) {
        char  *to = b.q + (at + first) / LANES * b.q_bytes;
        float *scale = (float *)(void *)to;
        size_t some = n - first < LANES ? n - first : LANES;
        for (size_t i = 0; i < LANES; i++)
            scale[i] = i < some ? to_integers(k, TD_DT_F32, q[first + i], a->shape.dk, b.rows + i * b.row, NULL) * a->shape.scale * LOG2_E : 1;
        k->transpose((int32_t *)(void *)(to + LANES * sizeof(float)), LANES, (const int32_t *)(const void *)b.rows, b.row / 2, some, (a->shape.dk + 1) / 2);
    }
}

static void attend(const td_attn *a, void *mem, const td_attn_tile *t, size_t at, size_t nq, const size_t *n_keys, td_softmax *state, float *acc,
                   bool ahead) {
    const td_attn_shape *s = &a->shape;
    const td_attn16     *k = a->d->attn16;
    scratch              b = open_scratch(a, mem);
    td_attn_tile         next = {.seq = t->seq, .group = t->group, .tile = t->tile + 1};
    size_t               n_max = 0, before = t->tile * TILE, key = t->place * TILE, panels = (nq + LANES - 1) / LANES;
    int32_t              seen[ROWS];
    bool                 all = true;
    float                keep[ROWS], p_scale[ROWS];
    for (size_t i = 0; i < nq; i++) {
        size_t n = n_keys[i] <= before ? 0 : n_keys[i] - before < TILE ? n_keys[i] - before : TILE;
        seen[i] = (int32_t)n;
        if (n > n_max) n_max = n;
    }
    if (n_max == 0) return;
    for (size_t i = 0; i < nq; i++) all = all && (size_t)seen[i] == n_max;
    for (size_t i = nq; i < panels * LANES; i++) seen[i] = 0;

    const char *q = b.q + at / LANES * b.q_bytes;
    k->gemm(&(td_attn16_gemm){
        .m = n_max, .n = panels * LANES, .pairs = (s->dk + 1) / 2, .a = b.k + key * b.ldk, .lda = b.ldk, .scale = b.k_scale + key,
        .b = (const int16_t *)(const void *)(q + LANES * sizeof(float)), .panel_stride = b.q_bytes / sizeof(int16_t), .c = b.s, .ldc = ROWS,
        .ahead = ahead ? td_attn_keys(a, &next) : NULL, .ahead_bytes = TILE * (s->form == TD_ATTN_GQA ? s->dk : s->kv_lora) * sizeof(td_bf16),
    });
    for (size_t panel = 0; panel < panels; panel++) {
        float  max[LANES], sum[LANES];
        size_t first = panel * LANES, some = nq - first < LANES ? nq - first : LANES;
        for (size_t i = 0; i < LANES; i++) {
            max[i] = i < some ? state[first + i].max : 0;
            sum[i] = i < some ? state[first + i].sum : 0;
        }
        k->softmax(&(td_attn16_softmax){
            .x = b.s + first, .ldx = ROWS, .n = n_max, .seen = all ? NULL : seen + first, .row_scale = (const float *)(const void *)(q + panel * b.q_bytes),
            .v_scale = b.v_scale + key, .v_max = b.v_max + key, .max = max, .sum = sum, .keep = keep + first, .p = b.p + first * TILE,
            .p_scale = p_scale + first,
        });
        for (size_t i = 0; i < some; i++) state[first + i] = (td_softmax){max[i], sum[i]};
    }
    k->gemm(&(td_attn16_gemm){
        .m = nq, .n = b.ldv, .pairs = (n_max + 1) / 2, .a = b.p, .lda = TILE, .scale = p_scale, .b = b.v + t->place * (b.ldv / LANES * V_PANEL), .panel_stride = V_PANEL,
        .even_odd = true, .keep = t->place ? keep : NULL, .c = acc, .ldc = b.ldv,
        .ahead = ahead ? td_attn_values(a, &next) : NULL, .ahead_bytes = TILE * (s->form == TD_ATTN_GQA ? s->dv : s->rope) * sizeof(td_bf16),
    });
}

const td_attn_path td_attn_int16 = {
    .rows = ROWS, .unit = 0.693147181f, .bytes = bytes, .open = open_group, .load = load, .take = take, .attend = attend,
};

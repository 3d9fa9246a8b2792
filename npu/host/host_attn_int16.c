/*
 * Tiles of attention in integers of 16 bits (kernels/attn16.h): what devices with bf16 activations compute with.
 *
 * The cache holds integers of 16 bits, or of 8 by the int8 rule: a page is [TILE][n] of them, then its rows' scales and
 * largest magnitudes [TILE] each. Those of 16 bits are read where they lie, and those of 8 are widened as a tile is loaded,
 * which is exact: what follows is the same for both. Before they are rounded to 8 bits, rows are rotated by Hadamard's
 * matrix: no value stands out then, which 8 bits could not bear. So are queries, and W_UK and W_UV, and sums of values are
 * rotated back, which gives the same products. Keys are multiplied so; so are values where few rows attend to them,
 * else they go through panels of pairs. A row has a scale of its own, so its numbers depend on no key that comes later in
 * the page, and on no other query. Absorbed, scores are the sum of two products, with the latents and with the rope parts.
 *
 * A set that multiplies bytes takes integers apart into planes. Those of what is multiplied more than once are kept, beside
 * the integers, which products of few rows take. They are those of query rows, of a head's W_UK and W_UV, and of the keys
 * and values of a tile that many rows attend to.
 */

#include "npu/host/host_attention.h"

#define TILE ((size_t)TD_ATTN_TILE)
#define SPAN_TILES ((size_t)TD_HOST_SPAN / TD_ATTN_TILE)
#define LANES ((size_t)TD_ATTN16_LANES)
#define ROWS 32   /* two panels, which the products take at a time */
#define EXPAND 32 /* keys that are expanded together: their sums stay in L1 */
#define V_PANEL     \
    (TILE * LANES + \
     32)         /* int16s of 16 columns of a tile's values; a line more, so that panels do not share the cache's sets */
#define SLACK 32 /* int16s behind rows that are widened: the last one is read as if it were longer */
#define NORM_MIN 1e-18f /* a row of zeros has a scale as small as in 16 bits: it takes no part in scales of weights */
#define CODE_MAX 127.0f
#define LOG2_E 1.44269504f

/* Where a tile's rows are. */
typedef struct {
    const int16_t *k, *rope,
        *v; /* rope: absorbed, behind the latents in k; v: panels of pairs, or rows of dv where they are attended once */
    const float     *k_scale, *rope_scale, *v_scale, *v_max;
    td_attn16_planes k_planes, v_planes;
} tile_rows;

typedef struct {
    tile_rows *tiles;                     /* [SPAN_TILES] */
    int16_t   *k;                         /* expanded: [SPAN][ldk] */
    float     *k_scale, *v_scale, *v_max; /* expanded: [SPAN] */
    int16_t   *v;                         /* [SPAN_TILES][ldv / 16][TILE / 2][16][2]; absorbed values stay where they are */
    int16_t   *rows;                      /* [16][row]: on their way into panels */
    float     *s;                         /* [TILE][ROWS] */
    int16_t   *p;                         /* [ROWS][TILE] */
    int16_t   *w;                         /* expanded: W_UK | W_UV as panels, [up / 16][lora / 2][16][2] */
    char      *k_planes, *v_planes;       /* [SPAN_TILES][TILE / 16], [SPAN_TILES][ldv / 16]; NULL: the set has none */
    char      *w_planes;                  /* expanded: [up / 16] */
    int16_t   *wide[2];                   /* of caches in 8 bits: rows of keys or latents, [places][wide_k], of a tile, or
                                             EXPAND of them; rows of values or rope parts, of one such place. Else NULL */
    float     *w_scale;                   /* [up] */
    float     *w_uv, *column;             /* [lora / 32][dv][32], [16][lora]: W_UV on its way */
    float     *expanded;                  /* [EXPAND][up] */
    char      *q;                         /* per 16 query rows: their scales, a panel [ldk / 2][16][2], its planes */
    size_t     ldk, ldv, row, lora, up_v, up,
        q_bytes;    /* lengths of rows, rounded up; where W_UV starts in up; of 16 query rows */
    float *rotated; /* [ldk] a query row, rotated */
    size_t wide_k;
    size_t k_plane, v_plane,
        w_plane; /* bytes of the planes of 16 rows of keys or queries, of a panel of values, of W; or 0 */
} scratch;

static size_t lay(const td_attn16 *k, const td_attn_shape *s, size_t q_rows, char *at, scratch *b) {
    size_t     used = 0;
    const bool expanded = s->form == TD_ATTN_EXPANDED, planes = k->planes_bytes && s->form != TD_ATTN_ABSORBED;
    scratch    z = {.ldk = td_round_up(s->dk, 32),
                    .ldv = td_attn_ld(s),
                    .lora = td_round_up(s->kv_lora, TILE),
                    .up_v = td_round_up(s->nope, LANES)};
    z.up = z.up_v + td_round_up(s->dv, LANES);
    z.row = z.ldk > z.lora ? z.ldk : z.lora;
    z.row = z.row > z.ldv ? z.row : z.ldv;
    if (planes) {
        z.k_plane = k->planes_bytes(z.ldk / 2);
        z.v_plane = k->planes_bytes(TILE / 2);
        z.w_plane = expanded ? k->planes_bytes((s->kv_lora + 1) / 2) : 0;
    }
    z.q_bytes = LANES * (sizeof(float) + z.ldk * sizeof(int16_t)) + z.k_plane;
    z.tiles = (tile_rows *)(void *)(at + td_host_place(&used, SPAN_TILES * sizeof *z.tiles));
    if (s->form != TD_ATTN_ABSORBED)
        z.v = (int16_t *)(at + td_host_place(&used, SPAN_TILES * z.ldv / LANES * V_PANEL * sizeof(int16_t)));
    z.rows = (int16_t *)(at + td_host_place(&used, LANES * z.row * sizeof(int16_t)));
    z.s = (float *)(at + td_host_place(&used, TILE * ROWS * sizeof(float)));
    z.p = (int16_t *)(at + td_host_place(&used, ROWS * TILE * sizeof(int16_t)));
    if (expanded) {
        z.k = (int16_t *)(at + td_host_place(&used, TD_HOST_SPAN * z.ldk * sizeof(int16_t)));
        z.k_scale = (float *)(at + td_host_place(&used, TD_HOST_SPAN * sizeof(float)));
        z.v_scale = (float *)(at + td_host_place(&used, TD_HOST_SPAN * sizeof(float)));
        z.v_max = (float *)(at + td_host_place(&used, TD_HOST_SPAN * sizeof(float)));
        z.w = (int16_t *)(at + td_host_place(&used, z.up * z.lora * sizeof(int16_t)));
        z.w_scale = (float *)(at + td_host_place(&used, z.up * sizeof(float)));
        z.w_uv = (float *)(at + td_host_place(&used, s->dv * z.lora * sizeof(float)));
        z.column = (float *)(at + td_host_place(&used, LANES * z.lora * sizeof(float)));
        z.expanded = (float *)(at + td_host_place(&used, EXPAND * z.up * sizeof(float)));
    }
    if (planes) {
        z.k_planes = at + td_host_place(&used, SPAN_TILES * (TILE / LANES) * z.k_plane);
        z.v_planes = at + td_host_place(&used, SPAN_TILES * (z.ldv / LANES) * z.v_plane);
        z.w_planes = at + td_host_place(&used, z.up / LANES * z.w_plane);
    }
    if (s->path == &td_attn_int8) {
        const size_t rows = expanded ? EXPAND : TILE, places = s->form == TD_ATTN_GQA ? SPAN_TILES : 1;
        z.wide_k = rows * (s->form == TD_ATTN_GQA ? s->dk : s->kv_lora) + SLACK;
        z.rotated = (float *)(at + td_host_place(&used, z.ldk * sizeof(float)));
        z.wide[0] = (int16_t *)(at + td_host_place(&used, places * z.wide_k * sizeof(int16_t)));
        z.wide[1] = (int16_t *)(at + td_host_place(&used, (rows * (s->form == TD_ATTN_GQA ? s->dv : s->rope) + SLACK) *
                                                              sizeof(int16_t)));
    }
    z.q = at + td_host_place(&used, q_rows / LANES * z.q_bytes); /* last: the others' places do not depend on q_rows */
    if (b) *b = z;
    return used;
}

/* ---- pages ----------------------------------------------------------------------------------- */

static size_t page_bytes_of(size_t n, size_t element) {
    return TILE * (n * element + 2 * sizeof(float));
}
static size_t page_bytes_16(size_t n) {
    return page_bytes_of(n, sizeof(int16_t));
}
static size_t page_bytes_8(size_t n) {
    return page_bytes_of(n, sizeof(int8_t));
}

/* The scales of a page's rows, then their largest magnitudes. */
static float *page_scale(const void *page, size_t n, size_t element) {
    return (float *)(void *)((char *)page + TILE * n * element);
}

static void store_16(const td_host_npu *d, void *page, size_t offset, float *x, size_t n) {
    float *scale = page_scale(page, n, sizeof(int16_t));
    d->kernels->attn16->convert(&(td_attn16_rows){.rows = 1,
                                                  .n = n,
                                                  .dtype = TD_DT_F32,
                                                  .x = x,
                                                  .out = (int16_t *)page + offset * n,
                                                  .scale = scale + offset,
                                                  .max = scale + TILE + offset});
}

static bool any(const int8_t *codes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (codes[i]) return true;
    return false;
}

static void store_8(const td_host_npu *d, void *page, size_t offset, float *x, size_t n) {
    int8_t *codes = (int8_t *)page + offset * n;
    d->kernels->math->hadamard(x, n);
    float *scale = page_scale(page, n, sizeof(int8_t)) + offset;
    d->kernels->rows->quantize(TD_DT_F32, x, n, CODE_MAX, codes, scale);
    if (*scale == 1 && !any(codes, n)) *scale = NORM_MIN / CODE_MAX;
    scale[TILE] = *scale * CODE_MAX;
}

static void copy_of(void *page, size_t offset, const void *from, size_t from_offset, size_t n, size_t element) {
    float *scale = page_scale(page, n, element), *from_scale = page_scale(from, n, element);
    memcpy((char *)page + offset * n * element, (const char *)from + from_offset * n * element, n * element);
    scale[offset] = from_scale[from_offset];
    scale[TILE + offset] = from_scale[TILE + from_offset];
}
static void copy_16(void *page, size_t offset, const void *from, size_t from_offset, size_t n) {
    copy_of(page, offset, from, from_offset, n, sizeof(int16_t));
}
static void copy_8(void *page, size_t offset, const void *from, size_t from_offset, size_t n) {
    copy_of(page, offset, from, from_offset, n, sizeof(int8_t));
}

static bool in_8(const td_attn *a) {
    return a->shape.path == &td_attn_int8;
}

/* Rows of a page in 16 bits. */
typedef struct {
    const int16_t *at; /* [rows][n] */
    const float   *scale, *max;
} page_rows;

/* Some rows of a page, from `first` on: where they lie, or widened to `wide`. */
static page_rows rows_of(const td_attn *a, const void *page, size_t n, size_t first, size_t rows, int16_t *wide) {
    const float *scale = page_scale(page, n, in_8(a) ? sizeof(int8_t) : sizeof(int16_t)) + first;
    if (in_8(a)) a->d->kernels->attn16->widen((const int8_t *)page + first * n, rows * n, wide);
    return (page_rows){in_8(a) ? wide : (const int16_t *)page + first * n, scale, scale + TILE};
}

static size_t bytes(const td_host_npu *d, const td_attn_shape *s, size_t q_rows) {
    return lay(d->kernels->attn16, s, q_rows, NULL, NULL);
}

static scratch open_scratch(const td_attn *a, void *mem) {
    scratch b;
    lay(a->d->kernels->attn16, &a->shape, 0, mem, &b);
    return b;
}

/* ---- keys and values ------------------------------------------------------------------------- */

/* A row of W_UK. */
static void floats_of(const td_attn *a, td_dtype dtype, const void *row, float *to) {
    if (dtype == TD_DT_F32)
        memcpy(to, row, a->shape.kv_lora * sizeof *to);
    else
        a->d->kernels->rows->to_f32(dtype, row, a->shape.kv_lora, to);
}

/* W_UK and W_UV of a head as panels of 16 outputs, each output's weights with a scale of its own. */
static void open_group(const td_attn *a, void *mem, size_t group) {
    const td_attn_shape *s = &a->shape;
    const td_attn16     *k = a->d->kernels->attn16;
    if (s->form != TD_ATTN_EXPANDED) return;
    scratch     b = open_scratch(a, mem);
    td_dtype    dtype = td_attn_up_dtype(a->kv_b);
    const char *w_uk = td_attn_up(a->kv_b, group, s->nope, s->dv, s->kv_lora, 0),
               *w_uv = td_attn_up(a->kv_b, group, s->nope, s->dv, s->kv_lora, s->nope);
    size_t element = td_dtype_bytes(dtype), pairs = (s->kv_lora + 1) / 2;
    for (size_t r = 0; r < s->kv_lora; r += TILE)
        a->d->kernels->math->transpose(b.w_uv + r * s->dv, s->dv * 32, dtype, w_uv + r * s->dv * element, s->dv,
                                       s->kv_lora - r < TILE ? s->kv_lora - r : TILE, s->dv);
    memset(b.w_scale, 0, b.up * sizeof(float));
    for (size_t at = 0; at < b.up; at += LANES) {
        bool   keys = at < b.up_v;
        size_t first = keys ? at : at - b.up_v, n = (keys ? s->nope : s->dv) - first;
        if (n > LANES) n = LANES;
        td_attn16_rows rows = {.rows = n, .n = s->kv_lora, .out = b.rows, .ld_out = b.row, .scale = b.w_scale + at};
        if (keys && !in_8(a)) {
            rows.dtype = dtype, rows.x = w_uk + first * s->kv_lora * element, rows.ld = s->kv_lora;
        } else {
            for (size_t i = 0; i < n; i++) {
                float *column = b.column + i * b.lora;
                if (keys)
                    floats_of(a, dtype, w_uk + (first + i) * s->kv_lora * element, column);
                else /* 32 of an output's weights are together; the next 32 are dv * 32 further */
                    for (size_t r = 0; r < s->kv_lora; r += 32)
                        memcpy(column + r, b.w_uv + r * s->dv + (first + i) * 32, 32 * sizeof(float));
                if (in_8(a)) a->d->kernels->math->hadamard(column, s->kv_lora);
            }
            rows.dtype = TD_DT_F32, rows.x = b.column, rows.ld = b.lora;
        }
        k->convert(&rows);
        for (size_t i = 0; s->kv_lora % 2 && i < n; i++) b.rows[i * b.row + s->kv_lora] = 0;
        k->transpose((int32_t *)(void *)(b.w + at * b.lora), LANES, (const int32_t *)(const void *)b.rows, b.row / 2, n,
                     pairs);
        if (b.w_planes) k->split_panel(b.w + at * b.lora, pairs, b.w_planes + at / LANES * b.w_plane);
    }
}

/* Value rows wait two at a time for their place in the panels of pairs; with an odd last one goes a row of zeros. */
static void pair_values(const td_attn16 *k, const int16_t *rows, size_t ld, size_t n, size_t dv, int16_t *v) {
    for (size_t i = 0; i < n; i += 2)
        k->pair(rows + i * ld, i + 1 < n ? rows + (i + 1) * ld : NULL, dv, v + i * LANES, V_PANEL);
}

static void load_expanded(const td_attn *a, const scratch *b, const td_attn_tile *t, size_t n, int16_t *v) {
    const td_attn_shape *s = &a->shape;
    const td_attn16     *k = a->d->kernels->attn16;
    for (size_t first = 0; first < n; first += EXPAND) {
        size_t          some = n - first < EXPAND ? n - first : EXPAND, at = t->place * TILE + first;
        const page_rows latent = rows_of(a, td_attn_keys(a, t), s->kv_lora, first, some, b->wide[0]);
        page_rows       rope = {0};
        if (s->rope) rope = rows_of(a, td_attn_values(a, t), s->rope, first, some, b->wide[1]);
        k->gemm(&(td_attn16_gemm){
            .m = some,
            .n = b->up,
            .pairs = (s->kv_lora + 1) / 2,
            .a = latent.at,
            .lda = s->kv_lora,
            .scale = latent.scale,
            .b = b->w,
            .panel_stride = b->lora * LANES,
            .column = b->w_scale,
            .c = b->expanded,
            .ldc = b->up,
            .b_planes = {b->w_planes, b->w_plane},
        });
        k->convert(&(td_attn16_rows){.rows = some,
                                     .n = s->nope,
                                     .n2 = s->rope,
                                     .dtype = TD_DT_F32,
                                     .x = b->expanded,
                                     .ld = b->up,
                                     .x2 = rope.at,
                                     .ld2 = s->rope,
                                     .x2_scale = rope.scale,
                                     .out = b->k + at * b->ldk,
                                     .ld_out = b->ldk,
                                     .scale = b->k_scale + at});
        for (size_t i = 0; i < some; i += LANES) {
            size_t rows = some - i < LANES ? some - i : LANES;
            k->convert(&(td_attn16_rows){.rows = rows,
                                         .n = s->dv,
                                         .dtype = TD_DT_F32,
                                         .x = b->expanded + i * b->up + b->up_v,
                                         .ld = b->up,
                                         .out = b->rows,
                                         .ld_out = b->row,
                                         .scale = b->v_scale + at + i,
                                         .max = b->v_max + at + i});
            pair_values(k, b->rows, b->row, rows, s->dv, v + (first + i) * LANES);
        }
    }
}

/* The planes of a tile's n keys and values, of which the values are in panels of pairs. */
static void keep_planes(const td_attn *a, const scratch *b, const td_attn_tile *t, size_t n, tile_rows *rows) {
    const td_attn16 *k = a->d->kernels->attn16;
    const size_t     ld = a->shape.form == TD_ATTN_EXPANDED ? b->ldk : a->shape.dk, panels = b->ldv / LANES;
    char *of_k = b->k_planes + t->place * (TILE / LANES) * b->k_plane, *of_v = b->v_planes + t->place * panels * b->v_plane;
    for (size_t i = 0; i < n; i += LANES)
        k->split_rows(rows->k + i * ld, ld, n - i < LANES ? n - i : LANES, (a->shape.dk + 1) / 2,
                      of_k + i / LANES * b->k_plane);
    for (size_t i = 0; i < panels; i++) k->split_panel(rows->v + i * V_PANEL, (n + 1) / 2, of_v + i * b->v_plane);
    rows->k_planes = (td_attn16_planes){of_k, b->k_plane};
    rows->v_planes = (td_attn16_planes){of_v, b->v_plane};
}

static void load(const td_attn *a, void *mem, const td_attn_tile *t) {
    const td_attn_shape *s = &a->shape;
    scratch              b = open_scratch(a, mem);
    int16_t             *v = b.v ? b.v + t->place * (b.ldv / LANES * V_PANEL) : NULL;
    size_t               n = td_attn_tile_keys(t), at = t->place * TILE;
    page_rows            keys, values = {0};
    switch (s->form) {
        case TD_ATTN_GQA:
            keys = rows_of(a, td_attn_keys(a, t), s->dk, 0, n, b.wide[0] + (t->once ? 0 : t->place) * b.wide_k);
            values = rows_of(a, td_attn_values(a, t), s->dv, 0, n, b.wide[1]);
            b.tiles[t->place] = (tile_rows){.k = keys.at,
                                            .v = t->once ? values.at : v,
                                            .k_scale = keys.scale,
                                            .v_scale = values.scale,
                                            .v_max = values.max};
            if (!t->once) pair_values(a->d->kernels->attn16, values.at, s->dv, n, s->dv, v);
            break;
        case TD_ATTN_ABSORBED:
            keys = rows_of(a, td_attn_keys(a, t), s->kv_lora, 0, n, b.wide[0]);
            if (s->rope) values = rows_of(a, td_attn_values(a, t), s->rope, 0, n, b.wide[1]);
            b.tiles[t->place] = (tile_rows){.k = keys.at,
                                            .rope = values.at,
                                            .v = keys.at,
                                            .k_scale = keys.scale,
                                            .rope_scale = values.scale,
                                            .v_scale = keys.scale,
                                            .v_max = keys.max};
            break;
        case TD_ATTN_EXPANDED:
            b.tiles[t->place] = (tile_rows){
                .k = b.k + at * b.ldk, .v = v, .k_scale = b.k_scale + at, .v_scale = b.v_scale + at, .v_max = b.v_max + at};
            load_expanded(a, &b, t, n, v);
            break;
    }
    if (b.k_planes && t->often) keep_planes(a, &b, t, n, &b.tiles[t->place]);
}

/* ---- query rows ------------------------------------------------------------------------------ */

/* Of 16 query rows. */
static int16_t *q_panel(char *of_rows) {
    return (int16_t *)(void *)(of_rows + LANES * sizeof(float));
}

static char *q_planes(const scratch *b, char *of_rows) {
    return of_rows + b->q_bytes - b->k_plane;
}

/* Zeros where a part of an odd length leaves half a pair. */
static void fill_pairs(const td_attn_shape *s, int16_t *row) {
    if (s->form == TD_ATTN_ABSORBED && s->kv_lora % 2) {
        memmove(row + s->kv_lora + 1, row + s->kv_lora, s->rope * sizeof *row);
        row[s->kv_lora] = 0;
    } else if (s->dk % 2) {
        row[s->dk] = 0;
    }
}

/* A query row, as keys are rotated: expanded ones are but in their rope parts, as W_UK sees to the others. */
static const float *rotated(const td_attn *a, const scratch *b, const float *q) {
    const td_attn_shape *s = &a->shape;
    const size_t         rope = s->form == TD_ATTN_GQA ? 0 : s->rope, before = s->dk - rope;
    memcpy(b->rotated, q, s->dk * sizeof *q);
    if (s->form != TD_ATTN_EXPANDED) a->d->kernels->math->hadamard(b->rotated, before);
    if (rope) a->d->kernels->math->hadamard(b->rotated + before, rope);
    return b->rotated;
}

/* Sums of expanded values are as W_UV makes them. */
static void rotate_back(const td_attn *a, float *out) {
    if (a->shape.form != TD_ATTN_EXPANDED) a->d->kernels->math->hadamard(out, a->shape.dv);
}

static void take(const td_attn *a, void *mem, size_t at, const float *const *q, size_t n) {
    const td_attn16 *k = a->d->kernels->attn16;
    scratch          b = open_scratch(a, mem);
    for (size_t first = 0; first < n; first += LANES) {
        char  *to = b.q + (at + first) / LANES * b.q_bytes;
        float *scale = (float *)(void *)to;
        size_t some = n - first < LANES ? n - first : LANES;
        for (size_t i = 0; i < LANES; i++) {
            if (i < some) {
                k->convert(&(td_attn16_rows){.rows = 1,
                                             .n = a->shape.dk,
                                             .dtype = TD_DT_F32,
                                             .x = in_8(a) ? rotated(a, &b, q[first + i]) : q[first + i],
                                             .out = b.rows + i * b.row,
                                             .scale = &scale[i]});
                scale[i] *= a->shape.scale * LOG2_E;
                fill_pairs(&a->shape, b.rows + i * b.row);
            } else {
                scale[i] = 1;
            }
        }
        k->transpose((int32_t *)(void *)q_panel(to), LANES, (const int32_t *)(const void *)b.rows, b.row / 2, some,
                     (a->shape.dk + 1) / 2);
        if (b.k_plane && n > LANES) k->split_panel(q_panel(to), (a->shape.dk + 1) / 2, q_planes(&b, to));
    }
}

/* What the products of a tile prefetch of the next. */
typedef struct {
    const char *at; /* or NULL */
    size_t      bytes;
} memory_ahead;

typedef struct {
    memory_ahead scores, rope, values;
} tile_ahead;

static memory_ahead page_ahead(const td_attn *a, const void *page, size_t keys, size_t n) {
    return (memory_ahead){page, a->shape.path->page_bytes(n) * keys / TILE};
}

static tile_ahead ahead_of(const td_attn *a, const td_attn_tile *next) {
    const td_attn_shape *s = &a->shape;
    if (!next) return (tile_ahead){0};
    const size_t keys = td_attn_tile_keys(next);
    const void  *k = td_attn_keys(a, next), *v = td_attn_values(a, next);
    if (s->form == TD_ATTN_GQA)
        return (tile_ahead){.scores = page_ahead(a, k, keys, s->dk), .values = page_ahead(a, v, keys, s->dv)};
    memory_ahead latents = page_ahead(a, k, keys, s->kv_lora), half = {latents.at, latents.bytes / 2};
    return (tile_ahead){.scores = half,
                        .rope = page_ahead(a, v, keys, s->rope),
                        .values = {latents.at + half.bytes, latents.bytes - half.bytes}};
}

static void attend(const td_attn *a, void *mem, const td_attn_tile *t, size_t at, size_t nq, const size_t *n_keys,
                   td_softmax *state, float *acc, const td_attn_tile *next) {
    const td_attn_shape *s = &a->shape;
    const td_attn16     *k = a->d->kernels->attn16;
    scratch              b = open_scratch(a, mem);
    size_t               n_max = 0, panels = (nq + LANES - 1) / LANES;
    int32_t              seen[ROWS], from[ROWS];
    bool                 all = true, late = false;
    float                keep[ROWS], p_scale[ROWS];
    for (size_t i = 0; i < nq; i++) {
        const td_attn_seen keys = td_attn_seen_of(s, t, n_keys[i]);
        seen[i] = (int32_t)keys.to;
        from[i] = (int32_t)keys.from;
        if (keys.to > n_max) n_max = keys.to;
        late = late || keys.from;
    }
    if (n_max == 0) return;
    for (size_t i = 0; i < nq; i++) all = all && (size_t)seen[i] == n_max && !from[i];
    for (size_t i = nq; i < panels * LANES; i++) seen[i] = from[i] = 0;

    const tile_rows *rows = &b.tiles[t->place];
    char            *q = b.q + at / LANES * b.q_bytes;
    const bool       absorbed = s->form == TD_ATTN_ABSORBED;
    const size_t     width = absorbed ? s->kv_lora : s->dk;
    const tile_ahead ahead = ahead_of(a, next);
    td_attn16_gemm   scores = {
          .m = n_max,
          .n = panels * LANES,
          .used = nq,
          .pairs = (width + 1) / 2,
          .a = rows->k,
          .lda = s->form == TD_ATTN_EXPANDED ? b.ldk : width,
          .scale = rows->k_scale,
          .b = q_panel(q),
          .panel_stride = b.q_bytes / sizeof(int16_t),
          .c = b.s,
          .ldc = ROWS,
          .a_planes = rows->k_planes,
          .b_planes = {b.k_plane ? q_planes(&b, q) : NULL, b.q_bytes},
          .ahead = ahead.scores.at,
          .ahead_bytes = ahead.scores.bytes,
    };
    k->gemm(&scores);
    if (absorbed && s->rope) {
        float ones[TILE];
        for (size_t i = 0; i < n_max; i++) ones[i] = 1;
        scores.b += scores.pairs * 2 * LANES;
        scores.pairs = s->rope / 2;
        scores.a = rows->rope;
        scores.lda = s->rope;
        scores.scale = rows->rope_scale;
        scores.keep = ones;
        scores.ahead = ahead.rope.at;
        scores.ahead_bytes = ahead.rope.bytes;
        k->gemm(&scores);
    }
    for (size_t panel = 0; panel < panels; panel++) {
        float  max[LANES], sum[LANES];
        size_t first = panel * LANES, some = nq - first < LANES ? nq - first : LANES;
        for (size_t i = 0; i < LANES; i++) {
            max[i] = i < some ? state[first + i].max : 0;
            sum[i] = i < some ? state[first + i].sum : 0;
        }
        k->softmax(&(td_attn16_softmax){
            .x = b.s + first,
            .ldx = ROWS,
            .n = n_max,
            .used = some,
            .seen = all ? NULL : seen + first,
            .from = late ? from + first : NULL,
            .row_scale = (const float *)(const void *)(q + panel * b.q_bytes),
            .v_scale = rows->v_scale,
            .v_max = rows->v_max,
            .max = max,
            .sum = sum,
            .keep = keep + first,
            .p = b.p + first * TILE,
            .p_scale = p_scale + first,
        });
        for (size_t i = 0; i < some; i++) state[first + i] = (td_softmax){max[i], sum[i]};
    }
    k->gemm(&(td_attn16_gemm){
        .m = nq,
        .n = b.ldv,
        .pairs = (n_max + 1) / 2,
        .a = b.p,
        .lda = TILE,
        .scale = p_scale,
        .b = rows->v,
        .panel_stride = V_PANEL,
        .crossed = true,
        .ldb = t->once ? s->dv : 0,
        .keep = t->first ? NULL : keep,
        .c = acc,
        .ldc = b.ldv,
        .b_planes = rows->v_planes,
        .ahead = ahead.values.at,
        .ahead_bytes = ahead.values.bytes,
    });
}

#define PATH(bits, ...)                                                                                                  \
    {                                                                                                                    \
        .rows = ROWS, .unit = 0.693147181f, .page_bytes = page_bytes_##bits, .store = store_##bits, .copy = copy_##bits, \
        .bytes = bytes, .open = open_group, .load = load, .take = take, .attend = attend, __VA_ARGS__                    \
    }

const td_attn_path td_attn_int16 = PATH(16, .rotate_back = NULL), td_attn_int8 = PATH(8, .rotate_back = rotate_back);

/*
 * Gated DeltaNet and Kimi delta attention against the recurrences of the papers in double precision, and against themselves.
 * A token's output must have the same bits whatever chunk, batch, slot and number of threads it was computed with.
 */
#include "core/error.h"
#include "kernels/rows/row_quant.h"
#include "npu_test_util.h"
#include "tests/td_test.h"

#define SEQS 3
#define LONGEST (5 * TD_STATE_BLOCK / 2 + 3)
#define WIDTH 4
#define BLOCK ((uint32_t)TD_STATE_BLOCK)

/* ---- the layer ------------------------------------------------------------------------------- */

typedef struct {
    td_delta_form form;
    uint32_t      hidden, key_heads, r, dk, dv, low;
    float         floor;                                               /* of KDA's log decays; 0: none */
    bool          joint;                                               /* z lies in qkv, and a in b */
    float        *qkv, *z, *b, *a, *conv, *a_log, *dt_bias, *norm, *o; /* by rows of the model: z and a have theirs */
    float        *a_low, *z_low;                                       /* of KDA, else NULL */
} layer;

static float *numbers(rnd *r, size_t n, float scale) {
    float *f = rnd_array(r, n, scale);
    for (size_t i = 0; i < n; i++) f[i] = td_bf16_to_f32(td_f32_to_bf16(f[i]));
    return f;
}

static size_t conv_rows(const layer *l) {
    return 2 * l->dk + l->r * l->dv;
}

/* Log decays of a head are about -e^a_log times 0 to 5. */
typedef struct {
    float least, most;
} a_logs;

static const a_logs ANY = {-4, 0};

static layer make_kimi(rnd *r, bool wide, a_logs logs) {
    layer        l = WITH(layer, .form = TD_DELTA_KIMI, .hidden = (uint32_t)rnd_range(r, 17, 60),
                          .key_heads = (uint32_t)rnd_range(r, 1, 4), .r = 1, .dk = wide ? 128 : (uint32_t)rnd_range(r, 3, 40),
                          .dv = wide ? 128 : (uint32_t)rnd_range(r, 3, 40), .low = (uint32_t)rnd_range(r, 3, 40));
    const float  scale = 2.5f / sqrtf((float)l.hidden), of_low = 1.7f / sqrtf((float)l.low);
    const size_t heads = l.key_heads;
    l.qkv = numbers(r, heads * conv_rows(&l) * l.hidden, scale);
    l.z_low = numbers(r, l.low * l.hidden, scale);
    l.z = numbers(r, heads * l.dv * l.low, of_low);
    l.a_low = numbers(r, l.low * l.hidden, scale);
    l.a = numbers(r, heads * l.dk * l.low, of_low);
    l.b = numbers(r, heads * l.hidden, scale);
    l.conv = numbers(r, heads * conv_rows(&l) * WIDTH, 1);
    l.a_log = numbers(r, heads, 1);
    l.dt_bias = numbers(r, heads * l.dk, 2);
    for (size_t i = 0; i < heads; i++) l.a_log[i] = logs.least + (logs.most - logs.least) * (l.a_log[i] + 1) / 2;
    l.norm = numbers(r, l.dv, 2);
    l.o = numbers(r, l.hidden * heads * l.dv, 1.7f / sqrtf((float)(heads * l.dv)));
    print_message("  KDA: hidden %u heads %u dk %u dv %u low %u, log A %g to %g\n", l.hidden, l.key_heads, l.dk, l.dv, l.low,
                  (double)logs.least, (double)logs.most);
    return l;
}

static layer make_layer(rnd *r, bool wide) {
    layer        l = WITH(layer, .hidden = (uint32_t)rnd_range(r, 17, 60), .key_heads = (uint32_t)rnd_range(r, 1, 3),
                          .r = (uint32_t)rnd_range(r, 1, 3), .dk = wide ? 128 : (uint32_t)rnd_range(r, 3, 40),
                          .dv = wide ? 128 : (uint32_t)rnd_range(r, 3, 40), .joint = rnd_u64(r) & 1);
    const float  scale = 2.5f / sqrtf((float)l.hidden);
    const size_t heads = l.key_heads * l.r;
    l.qkv = numbers(r, l.key_heads * conv_rows(&l) * l.hidden, scale);
    l.z = numbers(r, heads * l.dv * l.hidden, scale);
    l.b = numbers(r, heads * l.hidden, scale);
    l.a = numbers(r, heads * l.hidden, scale);
    l.conv = numbers(r, l.key_heads * conv_rows(&l) * WIDTH, 1);
    l.a_log = numbers(r, heads, 2);
    l.dt_bias = numbers(r, heads, 2);
    for (size_t i = 0; i < heads; i++) l.a_log[i] -= 2;
    l.norm = numbers(r, l.dv, 2);
    l.o = numbers(r, l.hidden * heads * l.dv, 1.7f / sqrtf((float)(heads * l.dv)));
    print_message("  hidden %u heads %u x %u dk %u dv %u%s\n", l.hidden, l.key_heads, l.r, l.dk, l.dv,
                  l.joint ? " joint" : "");
    return l;
}

static void free_layer(layer *l) {
    float *all[] = {l->qkv, l->z, l->b, l->a, l->conv, l->a_log, l->dt_bias, l->norm, l->o, l->a_low, l->z_low};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- the paper's recurrence ------------------------------------------------------------------ */

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static void ref_unit(double *x, size_t n, double scale) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (size_t i = 0; i < n; i++) x[i] *= scale / sqrt(sum + 1e-6);
}

/* What a row's decays are made from, and its gates: through a low rank, or not. */
static void ref_through(const float *low, const float *w, const layer *l, const double *row, size_t n, double *out) {
    FREED double *between = calloc(l->low + 1, sizeof *between);
    if (low) ref_linear(low, NULL, row, l->low, l->hidden, between);
    ref_linear(w, NULL, low ? between : row, n, low ? l->low : l->hidden, out);
}

/* One sequence. out [len, hidden] */
static void ref_delta(const layer *l, const float *x, uint32_t len, double *out) {
    const bool   kimi = l->form == TD_DELTA_KIMI;
    const size_t conv = l->key_heads * conv_rows(l), heads = l->key_heads * l->r, dk = l->dk, dv = l->dv,
                 decays = kimi ? dk : 1;
    FREED double *in = calloc(len * conv, sizeof *in), *row = calloc(l->hidden, sizeof *row),
                 *z = calloc(heads * dv, sizeof *z), *a = calloc(heads * decays, sizeof *a), *b = calloc(heads, sizeof *b),
                 *c = calloc(conv, sizeof *c), *s = calloc(heads * dk * dv, sizeof *s), *o = calloc(heads * dv, sizeof *o);
    for (uint32_t t = 0; t < len; t++) {
        for (size_t i = 0; i < l->hidden; i++) row[i] = (double)x[t * l->hidden + i];
        ref_linear(l->qkv, NULL, row, conv, l->hidden, in + t * conv);
        ref_through(l->z_low, l->z, l, row, heads * dv, z);
        ref_through(l->a_low, l->a, l, row, heads * decays, a);
        ref_linear(l->b, NULL, row, heads, l->hidden, b);
        for (size_t i = 0; i < conv; i++) {
            c[i] = 0;
            for (uint32_t k = 0; k < WIDTH && k <= t; k++)
                c[i] += (double)l->conv[i * WIDTH + WIDTH - 1 - k] * in[(t - k) * conv + i];
            c[i] *= sigmoid(c[i]);
        }
        for (size_t h = 0; h < heads; h++) {
            double *of_head = c + h / l->r * conv_rows(l), *q = of_head, *k = q + dk, *v = k + dk + h % l->r * dv,
                   *state = s + h * dk * dv, beta = sigmoid(b[h]);
            if (h % l->r == 0) {
                ref_unit(q, dk, 1 / sqrt((double)dk));
                ref_unit(k, dk, 1);
            }
            for (size_t i = 0; i < dk; i++) {
                const size_t at = h * decays + (kimi ? i : 0);
                const double step = a[at] + (double)l->dt_bias[at], rate = exp((double)l->a_log[h]);
                const double decay = exp(l->floor < 0 ? (double)l->floor * sigmoid(rate * step) : -rate * log1p(exp(step)));
                for (size_t j = 0; j < dv; j++) state[i * dv + j] *= decay;
            }
            for (size_t j = 0; j < dv; j++) {
                double known = 0;
                for (size_t i = 0; i < dk; i++) known += state[i * dv + j] * k[i];
                for (size_t i = 0; i < dk; i++) state[i * dv + j] += k[i] * beta * (v[j] - known);
                o[h * dv + j] = 0;
                for (size_t i = 0; i < dk; i++) o[h * dv + j] += state[i * dv + j] * q[i];
            }
            ref_norm(l->norm, 1e-6, o + h * dv, dv, o + h * dv);
            for (size_t j = 0; j < dv; j++) o[h * dv + j] *= (kimi ? 1 : z[h * dv + j]) * sigmoid(z[h * dv + j]);
        }
        ref_linear(l->o, NULL, o, l->hidden, heads * dv, out + t * l->hidden);
    }
}

/* ---- the block ------------------------------------------------------------------------------- */

enum { STATES = 3 * SEQS, OPENS = SEQS + 2, TOK_MAX = 2 * SEQS * LONGEST };

typedef struct {
    const layer  *l;
    rig           g;
    void         *state, *open, *in, *out;
    int8_t       *q;
    float        *scale;
    size_t        state_bytes, open_bytes;
    td_npu_block *block;
} model;

/* Rows of a and b in turn, `a_rows` and `b_rows` for each key head. */
static float *joined(const layer *l, const float *a, size_t a_rows, const float *b, size_t b_rows) {
    float *both = malloc(l->key_heads * (a_rows + b_rows) * l->hidden * sizeof *both), *to = both;
    for (size_t h = 0; h < l->key_heads; h++) {
        memcpy(to, a + h * a_rows * l->hidden, a_rows * l->hidden * sizeof *to);
        memcpy(to + a_rows * l->hidden, b + h * b_rows * l->hidden, b_rows * l->hidden * sizeof *to);
        to += (a_rows + b_rows) * l->hidden;
    }
    return both;
}

/* Rows at .. at + rows - 1 of every key head, of [key_heads][conv_rows][columns]. */
static td_npu_weight *make_part(model *m, td_weight_format format, const float *all, size_t at, size_t rows,
                                size_t columns) {
    const layer *l = m->l;
    const size_t per_head = conv_rows(l) * columns, n = rows * columns;
    FREED float *part = malloc(l->key_heads * n * sizeof *part);
    for (size_t h = 0; h < l->key_heads; h++) memcpy(part + h * n, all + h * per_head + at * columns, n * sizeof *part);
    return make_weight(&m->g, format, part, l->key_heads * rows, columns);
}

/* As Kimi-Linear keeps them: what decays and gates are made of is never int8. */
static td_delta_desc describe_kimi(model *m, td_weight_format format) {
    const layer           *l = m->l;
    const size_t           heads = l->key_heads, dk = l->dk, dv = l->dv;
    const td_weight_format fine = format == TD_WEIGHT_W8A8 ? TD_WEIGHT_BF16 : format;
    td_delta_desc          d = WITH(td_delta_desc, .form = TD_DELTA_KIMI, .hidden = l->hidden, .key_heads = l->key_heads,
                                    .value_heads = l->key_heads, .key_dim = l->dk, .value_dim = l->dv, .conv_width = WIDTH,
                                    .low = l->low, .floor = l->floor, .eps = 1e-6f, .state_slots = STATES, .open_slots = OPENS);
    d.qkv = make_part(m, format, l->qkv, 0, dk, l->hidden);
    d.k = make_part(m, format, l->qkv, dk, dk, l->hidden);
    d.v = make_part(m, format, l->qkv, 2 * dk, dv, l->hidden);
    d.conv = make_part(m, TD_WEIGHT_F32, l->conv, 0, dk, WIDTH);
    d.conv_k = make_part(m, TD_WEIGHT_F32, l->conv, dk, dk, WIDTH);
    d.conv_v = make_part(m, TD_WEIGHT_F32, l->conv, 2 * dk, dv, WIDTH);
    d.a_low = make_weight(&m->g, fine, l->a_low, l->low, l->hidden);
    d.a = make_weight(&m->g, fine, l->a, heads * dk, l->low);
    d.z_low = make_weight(&m->g, fine, l->z_low, l->low, l->hidden);
    d.z = make_weight(&m->g, fine, l->z, heads * dv, l->low);
    d.b = make_weight(&m->g, TD_WEIGHT_F32, l->b, heads, l->hidden);
    d.a_log = make_weight(&m->g, TD_WEIGHT_F32, l->a_log, 0, heads);
    d.dt_bias = make_weight(&m->g, TD_WEIGHT_F32, l->dt_bias, 0, heads * dk);
    d.norm = make_weight(&m->g, TD_WEIGHT_F32, l->norm, 0, dv);
    d.o = make_weight(&m->g, format, l->o, l->hidden, heads * dv);
    return d;
}

static td_delta_desc describe(model *m, td_weight_format format) {
    if (m->l->form == TD_DELTA_KIMI) return describe_kimi(m, format);
    const layer  *l = m->l;
    const size_t  heads = l->key_heads * l->r;
    td_delta_desc d =
        WITH(td_delta_desc, .hidden = l->hidden, .key_heads = l->key_heads, .value_heads = (uint32_t)heads, .key_dim = l->dk,
             .value_dim = l->dv, .conv_width = WIDTH, .eps = 1e-6f,
             .conv = make_weight(&m->g, TD_WEIGHT_F32, l->conv, l->key_heads * conv_rows(l), WIDTH),
             .a_log = make_weight(&m->g, TD_WEIGHT_F32, l->a_log, 0, heads),
             .dt_bias = make_weight(&m->g, TD_WEIGHT_F32, l->dt_bias, 0, heads),
             .norm = make_weight(&m->g, TD_WEIGHT_F32, l->norm, 0, l->dv),
             .o = make_weight(&m->g, format, l->o, l->hidden, heads * l->dv), .state_slots = STATES, .open_slots = OPENS);
    if (l->joint) {
        FREED float *qkvz = joined(l, l->qkv, conv_rows(l), l->z, l->r * l->dv), *ba = joined(l, l->b, l->r, l->a, l->r);
        d.qkv = make_weight(&m->g, format, qkvz, l->key_heads * (conv_rows(l) + l->r * l->dv), l->hidden);
        d.b = make_weight(&m->g, TD_WEIGHT_F32, ba, 2 * heads, l->hidden);
    } else {
        d.qkv = make_weight(&m->g, format, l->qkv, l->key_heads * conv_rows(l), l->hidden);
        d.z = make_weight(&m->g, format, l->z, heads * l->dv, l->hidden);
        d.b = make_weight(&m->g, TD_WEIGHT_F32, l->b, heads, l->hidden);
        d.a = make_weight(&m->g, TD_WEIGHT_F32, l->a, heads, l->hidden);
    }
    return d;
}

/* Slots hold NaNs at first: what is read without having been written shows. */
static void open_model(model *m, const layer *l, uint32_t threads, td_dtype act, td_weight_format format, bool given) {
    *m = (model){.l = l, .g = rig_open(threads, act, false)};
    td_block_desc desc = {.kind = TD_BLOCK_DELTA, .max_tok = TOK_MAX, .delta = describe(m, format)};
    m->state_bytes = STATES * l->key_heads * td_delta_state_values(&desc.delta) * sizeof(float);
    m->open_bytes = OPENS * l->key_heads * td_delta_open_values(&desc.delta) * sizeof(float);
    desc.delta.state = m->state = malloc(m->state_bytes);
    desc.delta.open = m->open = malloc(m->open_bytes);
    memset(m->state, 0xff, m->state_bytes);
    memset(m->open, 0xff, m->open_bytes);
    desc.delta.in = m->in = act_array(act, NULL, TOK_MAX * l->hidden);
    desc.delta.out = m->out = act_array(act, NULL, TOK_MAX * l->hidden);
    m->q = malloc(TOK_MAX * l->hidden);
    m->scale = malloc(TOK_MAX * sizeof *m->scale);
    if (given) desc.delta.in_i8 = (td_rows_i8){m->q, m->scale};
    m->block = make_block(&m->g, &desc);
}

static void close_model(model *m) {
    rig_close(&m->g);
    void *all[] = {m->state, m->open, m->in, m->out, m->q, m->scale};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Some rows of a sequence, and where they are. */
typedef struct {
    const float *x; /* [n, hidden] */
    uint32_t     pos, n, in, out, open;
} part;

/* The parts' results are in m->out, one behind the other. */
static td_status try_step(model *m, const part *parts, uint32_t n_parts) {
    uint32_t       pos[TOK_MAX], start[2 * SEQS + 1] = {0}, in[2 * SEQS], out[2 * SEQS], open[2 * SEQS], kv_len[2 * SEQS];
    uint8_t        absorbed[2 * SEQS] = {0};
    td_step_counts counts = {.n_seq = n_parts};
    const size_t   hidden = m->l->hidden;
    for (uint32_t i = 0; i < n_parts; i++) {
        const part *p = &parts[i];
        FREED void *x = act_array(m->g.act, p->x, p->n * hidden);
        memcpy((char *)m->in + counts.n_tok * hidden * td_dtype_bytes(m->g.act), x,
               p->n * hidden * td_dtype_bytes(m->g.act));
        for (uint32_t k = 0; k < p->n; k++) pos[counts.n_tok++] = p->pos + k;
        start[i + 1] = counts.n_tok;
        kv_len[i] = p->pos + p->n;
        in[i] = p->in, out[i] = p->out, open[i] = p->open;
    }
    td_quantize_rows_i8(m->g.act, m->in, counts.n_tok, hidden, hidden, m->q, hidden, m->scale, NULL);
    td_step step = td_step_unified(&WITH(td_step_arrays, .counts = &counts, .pos = pos, .seq_start = start, .kv_len = kv_len,
                                         .absorbed = absorbed, .state_in = in, .state_out = out, .state_open = open),
                                   0);
    TD_TRY(m->g.npu->ops->enqueue(m->g.npu, m->g.stream, m->block, &step));
    return m->g.npu->ops->stream_sync(m->g.npu, m->g.stream);
}

static void run_step(model *m, const part *parts, uint32_t n_parts) {
    OK(try_step(m, parts, n_parts));
}

/* Whether a block ends within the rows. */
static bool ends(uint32_t pos, uint32_t n) {
    return pos % BLOCK + n >= BLOCK;
}

static const char *result_row(const model *m, size_t row) {
    return (const char *)m->out + row * m->l->hidden * td_dtype_bytes(m->g.act);
}

/* ---- conversations --------------------------------------------------------------------------- */

typedef struct {
    uint32_t len[SEQS];
    float   *x[SEQS]; /* [len, hidden] */
} talk;

static talk make_talk(rnd *r, const layer *l) {
    talk t;
    for (size_t q = 0; q < SEQS; q++) {
        t.len[q] = q ? (uint32_t)rnd_range(r, 1, LONGEST) : LONGEST;
        t.x[q] = numbers(r, t.len[q] * l->hidden, 1);
    }
    return t;
}

static void free_talk(talk *t) {
    for (size_t q = 0; q < SEQS; q++) free(t->x[q]);
}

typedef struct {
    uint32_t threads;
    uint32_t chunk_max, seqs_max; /* rows of a sequence and sequences in a step, at most */
    bool     in_place;            /* the state stays in one slot */
    bool     drafts, halves;      /* some rows are wrong and come again; a sequence may be two parts of a step */
    bool     given;               /* rows come in int8 */
} way;

/* Where a sequence is. Of its three slots of states, `state` is read, unless it is TD_STATE_NONE. */
typedef struct {
    uint32_t done, state, open;
} progress;

static uint32_t next_slot(const way *w, size_t q, uint32_t state) {
    if (state == TD_STATE_NONE) return (uint32_t)q * 3;
    return w->in_place ? state : (uint32_t)q * 3 + (state + 1) % 3;
}

/* @return per sequence [len, hidden] act; the caller frees. */
static void run_talk(const layer *l, const talk *t, td_dtype act, td_weight_format format, const way *w, uint64_t seed,
                     void **out) {
    rnd                       r = {.seed = seed};
    AT_END(close_model) model m;
    progress                  at[SEQS];
    const size_t              row_bytes = l->hidden * td_dtype_bytes(act);
    FREED float              *wrong = numbers(&r, LONGEST * l->hidden, 1);
    open_model(&m, l, w->threads, act, format, w->given);
    for (uint32_t q = 0; q < SEQS; q++) {
        out[q] = calloc(t->len[q], row_bytes);
        at[q] = (progress){.state = TD_STATE_NONE, .open = q + (seed & 1)};
    }
    for (;;) {
        part     parts[2 * SEQS];
        uint32_t who[2 * SEQS], n_parts = 0, first = (uint32_t)rnd_range(&r, 0, SEQS - 1), row = 0;
        for (uint32_t i = 0, seqs = 0; i < SEQS && seqs < w->seqs_max; i++) {
            const uint32_t  q = (first + i) % SEQS;
            const progress *p = &at[q];
            uint32_t        n = t->len[q] - p->done;
            if (n == 0) continue;
            if (n > w->chunk_max) n = (uint32_t)rnd_range(&r, 1, w->chunk_max);
            uint32_t cut = w->halves && n > 1 && rnd_u64(&r) & 1 ? (uint32_t)rnd_range(&r, 1, n - 1) : n;
            part     a = {.x = t->x[q] + p->done * l->hidden, .pos = p->done, .n = cut, .in = p->state, .open = p->open};
            a.out = next_slot(w, q, a.in);
            who[n_parts] = q;
            parts[n_parts++] = a;
            seqs++;
            if (cut == n) continue;
            part b = {.x = a.x + cut * l->hidden, .pos = a.pos + cut, .n = n - cut, .in = a.in, .open = a.open};
            if (ends(a.pos, cut)) b.in = a.out;
            b.out = next_slot(w, q, b.in);
            who[n_parts] = q;
            parts[n_parts++] = b;
        }
        if (!n_parts) break;
        if (w->drafts && rnd_u64(&r) & 1) { /* the last part goes on with rows of nothing, up to the end of a block */
            part           p = parts[n_parts - 1];
            const uint32_t next = p.pos + p.n, left = BLOCK - next % BLOCK;
            FREED float   *x = malloc((p.n + left) * l->hidden * sizeof *x);
            memcpy(x, p.x, p.n * l->hidden * sizeof *x);
            memcpy(x + p.n * l->hidden, wrong, left * l->hidden * sizeof *x);
            if (!ends(p.pos, p.n)) p.out = (uint32_t)who[n_parts - 1] * 3 + (p.in == TD_STATE_NONE ? 0 : (p.in + 1) % 3);
            p.x = x;
            p.n += (uint32_t)rnd_range(&r, 1, ends(p.pos, p.n) && left > 1 ? left - 1 : left);
            parts[n_parts - 1].out = p.out;
            part swap = parts[n_parts - 1];
            parts[n_parts - 1] = p;
            run_step(&m, parts, n_parts);
            parts[n_parts - 1] = swap;
        } else {
            run_step(&m, parts, n_parts);
        }
        for (uint32_t i = 0; i < n_parts; i++) {
            const part *p = &parts[i];
            progress   *of = &at[who[i]];
            memcpy((char *)out[who[i]] + p->pos * row_bytes, result_row(&m, row), p->n * row_bytes);
            row += p->n;
            of->done = p->pos + p->n;
            of->state = ends(p->pos, p->n) ? p->out : p->in;
        }
    }
}

static void check_same(const layer *l, const talk *t, td_dtype act, void *const *want, void *const *got, const char *what) {
    const size_t row_bytes = l->hidden * td_dtype_bytes(act);
    for (size_t q = 0; q < SEQS; q++)
        for (size_t i = 0; i < t->len[q]; i++)
            if (memcmp((char *)want[q] + i * row_bytes, (char *)got[q] + i * row_bytes, row_bytes) != 0)
                fail_msg("%s: sequence %zu, token %zu of %u differs", what, q, i, t->len[q]);
}

static void free_results(void **out) {
    for (size_t q = 0; q < SEQS; q++) free(out[q]);
}

static const way WHOLE = {.threads = 1, .chunk_max = UINT32_MAX, .seqs_max = 1};

static void check_recurrence(rnd *r, const layer *l, double most) {
    AT_END(free_talk) talk t = make_talk(r, l);
    void                  *out[SEQS];
    run_talk(l, &t, TD_DT_F32, TD_WEIGHT_F32, &WHOLE, 1, out);
    for (size_t q = 0; q < SEQS; q++) {
        FREED double *want = malloc(t.len[q] * l->hidden * sizeof *want);
        ref_delta(l, t.x[q], t.len[q], want);
        const double error = error_of(TD_DT_F32, out[q], want, t.len[q] * l->hidden);
        print_message("    %u tokens: error %.1e\n", t.len[q], error);
        assert_true(error < most);
    }
    free_results(out);
}

TEST(is_the_papers_recurrence) {
    rnd r = rnd_open("delta");
    for (int trial = 0; trial < 6; trial++) {
        AT_END(free_layer) layer l = make_layer(&r, trial == 5);
        check_recurrence(&r, &l, 3e-6);
    }
}

/* Decays from none to some that leave nothing from one row to the next, alone and beside one another. */
TEST(of_kimi_is_the_papers_recurrence) {
    static const struct {
        a_logs logs;
        double error;
    } heads[] = {{{-4, 0}, 3e-6}, {{-30, -20}, 3e-6}, {{0, 2}, 3e-6}, {{2, 6}, 3e-6}, {{60, 80}, 3e-6}, {{-12, 4}, 3e-6}};
    rnd r = rnd_open("kimi delta");
    for (int trial = 0; trial < 12; trial++) {
        AT_END(free_layer) layer l = make_kimi(&r, trial % 4 == 3, heads[trial % 6].logs);
        check_recurrence(&r, &l, heads[trial % 6].error);
    }
}

/* GLM-5.3's, with a floor of -5, and one that leaves nothing from one row to the next. */
TEST(decays_with_a_floor_are_the_papers) {
    static const float FLOORS[] = {-5, -0.01f, -40};
    rnd                r = rnd_open("decays with a floor");
    for (int trial = 0; trial < 6; trial++) {
        AT_END(free_layer) layer l = make_kimi(&r, trial == 3, (a_logs){-2, 2});
        l.floor = FLOORS[trial % 3];
        check_recurrence(&r, &l, 3e-6);
    }
}

static void check_layer(rnd *r, const layer *l, td_dtype act, td_weight_format format) {
    static const struct {
        const char *name;
        way         way;
    } ways[] = {
        {"token by token", {.threads = 1, .chunk_max = 1, .seqs_max = 1, .in_place = true}},
        {"in chunks", {.threads = 3, .chunk_max = LONGEST / 2, .seqs_max = 1}},
        {"beside others", {.threads = 2, .chunk_max = UINT32_MAX, .seqs_max = SEQS, .in_place = true}},
        {"one more token of each", {.threads = 8, .chunk_max = 1, .seqs_max = SEQS}},
        {"in two parts of a step", {.threads = 4, .chunk_max = LONGEST, .seqs_max = SEQS, .halves = true}},
        {"in two parts in place", {.threads = 4, .chunk_max = 9, .seqs_max = SEQS, .halves = true, .in_place = true}},
        {"with drafts", {.threads = 2, .chunk_max = 3, .seqs_max = SEQS, .drafts = true}},
        {"all of it", {.threads = 5, .chunk_max = 11, .seqs_max = SEQS, .drafts = true, .halves = true}},
    };
    AT_END(free_talk) talk t = make_talk(r, l);
    void                  *want[SEQS], *got[SEQS];
    run_talk(l, &t, act, format, &WHOLE, 1, want);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        way w = ways[i].way;
        w.given = format == TD_WEIGHT_W8A8 && i % 2;
        run_talk(l, &t, act, format, &w, rnd_u64(r), got);
        check_same(l, &t, act, want, got, ways[i].name);
        free_results(got);
    }
    free_results(want);
}

static void check_ways(rnd *r, td_dtype act, td_weight_format format) {
    for (int trial = 0; trial < 2; trial++) {
        AT_END(free_layer) layer l = make_layer(r, trial == 1), k = make_kimi(r, trial == 1, ANY);
        k.floor = trial == 0 ? -5 : 0;
        check_layer(r, &l, act, format);
        check_layer(r, &k, act, format);
    }
}

TEST(has_the_same_bits_in_any_step) {
    rnd r = rnd_open("delta steps");
    check_ways(&r, TD_DT_F32, TD_WEIGHT_F32);
    check_ways(&r, TD_DT_BF16, TD_WEIGHT_BF16);
    check_ways(&r, TD_DT_BF16, TD_WEIGHT_W8A8);
}

/* Two sequences that begin with the same blocks: the second goes on from a state that the first left, which nobody
 * changes. */
static void check_snapshot(rnd *r, const layer *l) {
    enum { SHARED = 2 * TD_STATE_BLOCK, MORE = TD_STATE_BLOCK + 5, KEPT = 4, SECOND = 5 };
    FREED float              *x = numbers(r, (SHARED + MORE) * l->hidden, 1);
    AT_END(close_model) model m;
    open_model(&m, l, 2, TD_DT_F32, TD_WEIGHT_F32, false);
    const size_t slot_bytes = m.state_bytes / STATES, bytes = MORE * l->hidden * sizeof(float);
    FREED void  *want = malloc(bytes), *kept = malloc(slot_bytes);
    run_step(&m, &(part){x, 0, SHARED + MORE, TD_STATE_NONE, 0, 0}, 1);
    memcpy(want, result_row(&m, SHARED), bytes);
    run_step(&m, &(part){x, 0, SHARED, TD_STATE_NONE, KEPT, 1}, 1);
    memcpy(kept, (char *)m.state + KEPT * slot_bytes, slot_bytes);
    run_step(&m, &(part){x + SHARED * l->hidden, SHARED, 1, KEPT, SECOND, 2},
             1); /* no block ends: the state stays where it is */
    assert_memory_equal(want, result_row(&m, 0), bytes / MORE);
    const part both[] = {{x + (SHARED + 1) * l->hidden, SHARED + 1, MORE - 1, KEPT, SECOND, 2},
                         {x + SHARED * l->hidden, SHARED, MORE, KEPT, SECOND + 1, 3}};
    run_step(&m, both, 2);
    assert_memory_equal((char *)want + bytes / MORE, result_row(&m, 0), bytes - bytes / MORE);
    assert_memory_equal(want, result_row(&m, MORE - 1), bytes);
    assert_memory_equal(kept, (char *)m.state + KEPT * slot_bytes, slot_bytes);
    assert_memory_equal((char *)m.state + SECOND * slot_bytes, (char *)m.state + (SECOND + 1) * slot_bytes, slot_bytes);
}

TEST(goes_on_from_a_snapshot) {
    rnd                      r = rnd_open("delta snapshots");
    AT_END(free_layer) layer l = make_layer(&r, false), k = make_kimi(&r, false, ANY);
    check_snapshot(&r, &l);
    check_snapshot(&r, &k);
}

TEST(refuses_wrong_steps_and_shapes) {
    rnd                       r = rnd_open("delta refusals");
    AT_END(free_layer) layer  l = make_layer(&r, false);
    FREED float              *x = numbers(&r, 2 * BLOCK * l.hidden, 1);
    AT_END(close_model) model m;
    open_model(&m, &l, 1, TD_DT_F32, TD_WEIGHT_F32, false);
    const part wrong[] = {{x, 0, 1, TD_STATE_NONE, 0, OPENS},
                          {x, BLOCK, 1, TD_STATE_NONE, 0, 0},
                          {x, BLOCK, 1, STATES, 0, 0},
                          {x, BLOCK - 1, 1, TD_STATE_NONE, STATES, 0},
                          {x, UINT32_MAX - 1, 3, 0, 0, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_int_equal(try_step(&m, &wrong[i], 1), TD_EINVAL);
    const uint32_t       pos = 0, start[2] = {0, 1}, kv_len = 1;
    const uint8_t        absorbed = 0;
    const td_step_counts counts = {.n_tok = 1, .n_seq = 1};
    td_step              stateless = td_step_unified(
                     &(td_step_arrays){.counts = &counts, .pos = &pos, .seq_start = start, .kv_len = &kv_len, .absorbed = &absorbed}, 0);
    assert_int_equal(m.g.npu->ops->enqueue(m.g.npu, m.g.stream, m.block, &stateless), TD_EINVAL);
    run_step(&m, &(part){x, 0, 1, TD_STATE_NONE, TD_STATE_NONE, 0}, 1); /* no block ends, so state_out is not read */

    static const struct {
        td_delta_desc desc;
        const char   *says;
    } shapes[] = {
        {{TD_DELTA_GATED, 8, 2, 3, 4, 4, 4, .state_slots = 1, .open_slots = 1}, "3 value heads cannot share 2 key heads"},
        {{TD_DELTA_GATED, 8, 2, 4, 4, 4, 9, .state_slots = 1, .open_slots = 1}, "a convolution has 2 to 8 taps, not 9"},
        {{TD_DELTA_GATED, 8, 2, 4, 4, 4, 4, .open_slots = 1}, "state_slots must be 1 to"},
        {{TD_DELTA_GATED, 8, 2, 4, 4, 4, 4, .state_slots = 1, .open_slots = 1}, "the weight qkv is missing"},
        {{TD_DELTA_KIMI, 8, 2, 4, 4, 4, 4, 4, .state_slots = 1, .open_slots = 1},
         "Kimi delta attention has a key head for each of its 4 value heads, not 2"},
        {{TD_DELTA_KIMI, 8, 2, 2, 4, 4, 4, .state_slots = 1, .open_slots = 1}, "low must be 1 to"},
        {{TD_DELTA_KIMI, 8, 2, 2, 4, 4, 4, 4, .state_slots = 1, .open_slots = 1}, "the weight q is missing"},
        {{TD_DELTA_KIMI, 8, 2, 2, 4, 4, 4, 4, -41, .state_slots = 1, .open_slots = 1}, "log decays is -40 to 0, not -41"},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        td_npu_block *b;
        td_error      err = {0};
        td_block_desc desc = {.kind = TD_BLOCK_DELTA, .max_tok = 1, .delta = shapes[i].desc};
        assert_int_equal(m.g.npu->ops->block_create(m.g.npu, &desc, &b, &err), TD_EINVAL);
        assert_non_null(strstr(err.text, shapes[i].says));
    }
}

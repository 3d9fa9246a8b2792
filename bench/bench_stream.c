/*
 * Steps of a model whose experts move (docs/residency.md), on a card of given speeds.
 *
 *   TD_APART_SPEEDS=link,memory,operations bench_stream prompt|decode CONFIG.json [layers] [rows] [resident experts] [expert threads]
 *
 * The card is the device "apart" with given speeds: bytes a second of its link and of its memory, operations a second. What
 * its products would take is waited for. All else is real: routing, hand-over, copies, and the experts of the CPU. Random
 * weights of the config's shape, cut to so many layers. Two models take turns.
 *
 *   prompt  a prompt of so many rows as one step, with and without streamed experts; the fastest step of each counts. Of a step: what
 *           the link had to carry down, as uploads and for hand-overs; and the time that the card and the CPU's experts were busy
 *   decode  tokens of so many streams, with and without resident experts; medians count. Routing has the locality of the generator
 *           (bench/routing_generator.h): the layers are given hidden states that are a constant, a slow and a fast process with the
 *           generator's weights and memories, so that the logits of any router are such a sum, too
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/routing_generator.h"
#include "core/dtype.h"
#include "core/log/log.h"
#include "core/math/rng.h"
#include "core/threads/thread_layout.h"
#include "kernels/kernels.h"
#include "model/placed_model.h"

#define ROUNDS 5
#define WARM_UP 2 /* steps, in which slots fill and speeds are learnt */
#define ROWS_MAX 8192
#define TOKENS 384 /* decoded by each stream; the first third fills slots, and is not counted */
#define TOKENS_BEFORE (TOKENS / 3)

typedef struct {
    const char *path;
    uint32_t    layers, rows, resident;
    double      link_per_s;
    td_pool    *device, *experts;
} setting;

typedef struct {
    double              step_s, uploads_s, handover_s, card_s, cpu_s;
    td_residency_counts counts; /* since the model was loaded */
} result;

static void must(td_status status, const td_error *err) {
    if (status == TD_OK) return;
    fprintf(stderr, "%s\n", err->text[0] ? err->text : td_status_text(status));
    exit(1);
}

static uint32_t number(int argc, char **argv, int i, uint32_t otherwise) {
    return argc > i ? (uint32_t)atoi(argv[i]) : otherwise;
}

/* @param layers .end 0: the whole model */
static td_placed_model open_model(const setting *s, td_layer_range layers, uint32_t resident, bool streams) {
    td_error        err = {0};
    td_placed_model m;
    char            json[64];
    snprintf(json, sizeof json, "{\"num_hidden_layers\": %u}", s->layers);
    td_model_spec spec = td_model_spec_of(s->path, s->rows);
    td_pool      *device = s->device;
    td_model_room room = {.npu_pools = &device, .expert_pool = s->experts};
    spec.device = "apart";
    spec.layers = layers;
    spec.override_json = json;
    spec.load_dummy = true;
    spec.w8a8 = true;
    spec.experts.format = TD_EXPERT_INT4C;
    spec.context_length = ROWS_MAX;
    spec.n_pages = ROWS_MAX / TD_KV_PAGE;
    spec.overlap_min_tok = TD_OVERLAP_AUTO;
    spec.device_experts = resident;
    spec.stream_experts = streams;
    must(td_placed_model_open(&spec, &room, NULL, &m, &err), &err);
    must(td_model_load(m.model, m.shares.n_pages, &err), &err);
    return m;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- a prompt ------------------------------------------------------------------------------------ */

static td_step_rows rows_of(const setting *s, uint32_t vocab) {
    static uint32_t pages[ROWS_MAX / TD_KV_PAGE], token[ROWS_MAX];
    td_step_rows    rows;
    td_error        err = {0};
    for (uint32_t i = 0; i < ROWS_MAX / TD_KV_PAGE; i++) pages[i] = i;
    for (uint32_t i = 0; i < s->rows; i++) token[i] = (uint32_t)(td_rng_u64(3, 0, i) % vocab);
    must(td_step_rows_open(&rows, s->rows, 1, ROWS_MAX, &err), &err);
    td_step_sequence seq = {.pages = pages, .n_pages = ROWS_MAX / TD_KV_PAGE, .state = td_own_state(0, 0)};
    td_step_rows_add(&rows, token, 0, s->rows, &seq);
    return rows;
}

static uint64_t uploaded(const td_model_work *w) {
    return w->residency.upload_bytes + w->residency.stream.upload_bytes;
}

static result run_prompt(const td_placed_model *m, const td_step_rows *rows, double link_per_s) {
    td_model_work before, after;
    td_model_get_work(m->model, &before);
    const double begin = seconds();
    must(td_model_forward(m->model, rows, (td_out_rows){0}, NULL), &(td_error){0});
    const double end = seconds();
    td_model_get_work(m->model, &after);
    const double uploads = (double)(uploaded(&after) - uploaded(&before));
    return (result){.step_s = end - begin,
                    .card_s = 1e-9 * (double)(after.device.busy_ns - before.device.busy_ns),
                    .cpu_s = 1e-9 * (double)(after.experts.busy_ns - before.experts.busy_ns),
                    .uploads_s = uploads / link_per_s,
                    .handover_s = ((double)(after.link_down_bytes - before.link_down_bytes) - uploads) / link_per_s,
                    .counts = after.residency};
}

static void show(const char *name, const result *r) {
    printf("%-12s %9.1f %9.1f %9.1f %9.1f %9.1f\n", name, 1e3 * r->step_s, 1e3 * r->uploads_s, 1e3 * r->handover_s,
           1e3 * r->card_s, 1e3 * r->cpu_s);
}

static void bench_prompt(const setting *s) {
    printf("               step ms   uploads hand-over      card       CPU\n");
    td_placed_model m[2];
    for (int i = 0; i < 2; i++) m[i] = open_model(s, (td_layer_range){0}, s->resident, i == 1);
    td_step_rows rows = rows_of(s, td_model_get_config(m[0].model)->vocab);
    result       best[2] = {{.step_s = INFINITY}, {.step_s = INFINITY}};
    for (int round = -WARM_UP; round < ROUNDS; round++)
        for (int i = 0; i < 2; i++) {
            const result r = run_prompt(&m[i], &rows, s->link_per_s);
            if (round >= 0 && r.step_s < best[i].step_s) best[i] = r;
        }
    const result plain = best[0], streamed = best[1];
    show("without", &plain);
    show("streamed", &streamed);
    const td_stream_counts    *c = &streamed.counts.stream;
    const td_residency_counts *all = &streamed.counts;
    const double               pairs = (double)(all->hits + all->streamed + all->misses);
    printf(
        "%u steps were streamed; of all pairs %.1f %% resident, %.1f %% streamed, %.1f %% of the CPU; %u uploads failed\n",
        (uint32_t)c->steps, 100 * (double)all->hits / pairs, 100 * (double)all->streamed / pairs,
        100 * (double)all->misses / pairs, (uint32_t)c->failed);
    const double bound_s = fmax(streamed.uploads_s + streamed.handover_s, streamed.card_s);
    printf(
        "%u experts a layer were streamed, from %u rows on; the longer of link and card is %.2f of the step, which is %.1f "
        "times "
        "as fast as without\n",
        c->share, c->crossover, bound_s / streamed.step_s, plain.step_s / streamed.step_s);
    td_step_rows_close(&rows);
    for (int i = 0; i < 2; i++) td_placed_model_close(&m[i]);
}

/* ---- decoded tokens ------------------------------------------------------------------------------ */

/* Values of unit variance that keep so much of themselves from one token to the next. */
typedef struct {
    float   *value; /* [n] */
    double   keep;
    uint64_t seed;
} process;

static void next_values(const process *p, uint32_t n, uint32_t token) {
    const double keep = token ? p->keep : 0, fresh = sqrt(12 * (1 - keep * keep)); /* a uniform draw has variance 1/12 */
    for (uint32_t i = 0; i < n; i++)
        p->value[i] = (float)(keep * p->value[i] + fresh * (td_rng_uniform(p->seed, token, i) - 0.5));
}

/* A token's hidden states of all streams. */
static void next_states(const td_routing_kind *k, process *slow, process *fast, uint32_t n, uint32_t token, td_bf16 *out) {
    next_values(slow, n, token);
    next_values(fast, n, token);
    for (uint32_t i = 0; i < n; i++) {
        const double always = sqrt(12) * (td_rng_uniform(slow->seed + 2, 0, i) - 0.5);
        out[i] = td_f32_to_bf16((float)(k->s * always + k->sigma * slow->value[i] + k->nu * fast->value[i]));
    }
}

static void add_token(td_step_rows *rows, uint32_t n_streams, uint32_t token) {
    static uint32_t pages[ROWS_MAX / TD_KV_PAGE];
    const uint32_t  id = 0, each = TOKENS / TD_KV_PAGE;
    td_step_rows_clear(rows);
    for (uint32_t q = 0; q < n_streams; q++) {
        for (uint32_t i = 0; i < each; i++) pages[q * each + i] = q * each + i;
        td_step_sequence seq = {
            .pages = pages + q * each, .n_pages = each, .absorbed = true, .state = td_own_state(q, token)};
        td_step_rows_add(rows, &id, token, 1, &seq);
    }
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_decode(const setting *s) {
    static double         step_s[2][TOKENS - TOKENS_BEFORE];
    const td_routing_kind kind = TD_ROUTING_LOCAL;
    const uint32_t        n_counted = TOKENS - TOKENS_BEFORE;
    td_placed_model       m[2];
    td_step_rows          rows;
    td_error              err = {0};
    td_model_work         before = {0}, after;
    for (int i = 0; i < 2; i++) m[i] = open_model(s, (td_layer_range){0, s->layers}, i ? s->resident : 0, false);
    const uint32_t n = s->rows * td_model_get_config(m[0].model)->hidden;
    process        slow = {calloc(n, sizeof(float)), exp(-1 / kind.tau), 1}, fast = {calloc(n, sizeof(float)), kind.rho, 2};
    td_bf16       *in = malloc(n * sizeof *in), *out = malloc(n * sizeof *out);
    if (!slow.value || !fast.value || !in || !out) must(TD_ENOMEM, &err);
    must(td_step_rows_open(&rows, s->rows, s->rows, TOKENS, &err), &err);
    for (uint32_t t = 0; t < TOKENS; t++) {
        next_states(&kind, &slow, &fast, n, t, in);
        add_token(&rows, s->rows, t);
        if (t == TOKENS_BEFORE) td_model_get_work(m[1].model, &before);
        for (int i = 0; i < 2; i++) {
            const double begin = seconds();
            must(td_model_run_layers(m[i].model, &rows, in, out), &err);
            if (t >= TOKENS_BEFORE) step_s[i][t - TOKENS_BEFORE] = seconds() - begin;
        }
    }
    td_model_get_work(m[1].model, &after);
    for (int i = 0; i < 2; i++) qsort(step_s[i], n_counted, sizeof(double), ascending);
    const double plain = step_s[0][n_counted / 2], resident = step_s[1][n_counted / 2];
    const double hits = (double)(after.residency.hits - before.residency.hits),
                 misses = (double)(after.residency.misses - before.residency.misses),
                 uploads = (double)(after.residency.uploads - before.residency.uploads);
    printf("without %.2f ms a step, with resident experts %.2f ms: %.2f times as fast\n", 1e3 * plain, 1e3 * resident,
           plain / resident);
    printf("hits %.1f %%; %.2f uploads a layer and token\n", 100 * hits / (hits + misses),
           uploads * td_model_get_config(m[0].model)->top_k / (hits + misses));
    td_step_rows_close(&rows);
    for (int i = 0; i < 2; i++) td_placed_model_close(&m[i]);
    free(slow.value);
    free(fast.value);
    free(in);
    free(out);
}

int main(int argc, char **argv) {
    static td_thread_layout layout;
    td_machine              machine;
    td_error                err = {0};
    const char             *speeds = getenv("TD_APART_SPEEDS");
    const bool              decode = argc > 1 && !strcmp(argv[1], "decode");
    if (argc < 3 || !speeds || (!decode && strcmp(argv[1], "prompt") != 0)) {
        fprintf(stderr,
                "usage: TD_APART_SPEEDS=link,memory,operations bench_stream prompt|decode CONFIG.json [layers] [rows] "
                "[resident] [expert threads]\n");
        return 2;
    }
    setting        s = {.path = argv[2],
                        .layers = number(argc, argv, 3, 13),
                        .rows = number(argc, argv, 4, decode ? 1 : 4096),
                        .resident = number(argc, argv, 5, 16),
                        .link_per_s = atof(speeds)};
    const uint32_t most = decode ? ROWS_MAX / TOKENS : ROWS_MAX;
    if (s.rows < 1 || s.rows > most) {
        fprintf(stderr, "rows must be 1 to %u\n", most);
        return 2;
    }
    must(td_thread_layout_here(
             td_kernels_here()->read,
             &(td_thread_wishes){.cpuinfer = number(argc, argv, 6, 1), .subpool_count = 1, .npu_threads = 1}, &layout,
             &machine, &err),
         &err);
    must(td_pool_create(layout.experts, layout.n_experts, &s.experts, &err), &err);
    must(td_pool_create(layout.npu, layout.n_npu, &s.device, &err), &err);

    printf("%s, %u layers, %u rows, %u resident experts a layer, speeds %s\n", s.path, s.layers, s.rows, s.resident, speeds);
    if (decode)
        bench_decode(&s);
    else
        bench_prompt(&s);
    td_pool_destroy(s.device);
    td_pool_destroy(s.experts);
    return 0;
}

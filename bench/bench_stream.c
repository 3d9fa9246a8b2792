/*
 * A prompt's step whose experts pass through a card's memory (docs/residency.md, "Streamed prompts"), beside the same step without.
 *
 *   TD_APART_SPEEDS=link,memory,operations bench_stream CONFIG.json [layers] [rows] [resident experts] [expert threads]
 *
 * The card is the device "apart" with given speeds: bytes a second of its link and of its memory, operations a second. What its
 * products would take is waited for. All else is real: routing, hand-over, copies, and the experts of the CPU. Random weights of
 * the config's shape, cut to so many layers; the rows are one prompt. Both models take turns, and the fastest step of each counts.
 *
 * Of a step: what the link had to carry down, as uploads and for hand-overs, whose copies stand in the card's stream; and the time
 * that the card and the CPU's experts were busy.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/log/log.h"
#include "core/math/rng.h"
#include "core/threads/thread_layout.h"
#include "kernels/kernels.h"
#include "model/placed_model.h"

#define ROUNDS 5
#define WARM_UP 2 /* steps, in which slots fill and speeds are learnt */
#define ROWS_MAX 8192

typedef struct {
    const char *path;
    uint32_t    layers, rows, resident;
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

static td_placed_model open_model(const setting *s, bool streams) {
    td_error        err = {0};
    td_placed_model m;
    char            json[64];
    snprintf(json, sizeof json, "{\"num_hidden_layers\": %u}", s->layers);
    td_model_spec spec = td_model_spec_of(s->path, s->rows);
    td_pool      *device = s->device;
    td_model_room room = {.npu_pools = &device, .expert_pool = s->experts};
    spec.device = "apart";
    spec.override_json = json;
    spec.load_dummy = true;
    spec.w8a8 = true;
    spec.experts.format = TD_EXPERT_INT4C;
    spec.context_length = ROWS_MAX;
    spec.n_pages = ROWS_MAX / TD_KV_PAGE;
    spec.overlap_min_tok = TD_OVERLAP_AUTO;
    spec.device_experts = s->resident;
    spec.stream_experts = streams;
    must(td_placed_model_open(&spec, &room, NULL, &m, &err), &err);
    must(td_model_load(m.model, m.shares.n_pages, &err), &err);
    return m;
}

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

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t uploaded(const td_model_work *w) {
    return w->residency.upload_bytes + w->residency.stream.upload_bytes;
}

static result run_step(const td_placed_model *m, const td_step_rows *rows, double link_per_s) {
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

int main(int argc, char **argv) {
    static td_thread_layout layout;
    td_machine              machine;
    td_error                err = {0};
    const char             *speeds = getenv("TD_APART_SPEEDS");
    if (argc < 2 || !speeds) {
        fprintf(stderr,
                "usage: TD_APART_SPEEDS=link,memory,operations bench_stream CONFIG.json [layers] [rows] [resident] "
                "[expert threads]\n");
        return 2;
    }
    const double link_per_s = atof(speeds);
    setting      s = {.path = argv[1],
                      .layers = number(argc, argv, 2, 13),
                      .rows = number(argc, argv, 3, 4096),
                      .resident = number(argc, argv, 4, 16)};
    if (s.rows < 1 || s.rows > ROWS_MAX) {
        fprintf(stderr, "rows must be 1 to %d\n", ROWS_MAX);
        return 2;
    }
    must(td_thread_layout_here(
             td_kernels_here()->read,
             &(td_thread_wishes){.cpuinfer = number(argc, argv, 5, 1), .subpool_count = 1, .npu_threads = 1}, &layout,
             &machine, &err),
         &err);
    must(td_pool_create(layout.experts, layout.n_experts, &s.experts, &err), &err);
    must(td_pool_create(layout.npu, layout.n_npu, &s.device, &err), &err);

    printf("%s, %u layers, %u rows, %u resident experts a layer, speeds %s\n", s.path, s.layers, s.rows, s.resident, speeds);
    printf("               step ms   uploads hand-over      card       CPU\n");
    td_placed_model m[2] = {open_model(&s, false), open_model(&s, true)};
    td_step_rows    rows = rows_of(&s, td_model_get_config(m[0].model)->vocab);
    result          best[2] = {{.step_s = INFINITY}, {.step_s = INFINITY}};
    for (int round = -WARM_UP; round < ROUNDS; round++)
        for (int i = 0; i < 2; i++) {
            const result r = run_step(&m[i], &rows, link_per_s);
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
    td_pool_destroy(s.device);
    td_pool_destroy(s.experts);
    return 0;
}

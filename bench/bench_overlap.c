/*
 * A step that goes through whole against the same step in two halves (model/program.h), with threads of its own for each
 * tier.
 *
 *   bench_overlap CONFIG.json [layers] [device threads] [expert threads] [rows ...]
 *
 * Random weights of the config's shape, cut to so many layers (4); both models are loaded, so that their steps can take
 * turns. A row of the table is the median over rounds of the two times and of their ratio within a round: shared machines
 * drift. The rows are one prompt.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/bench_time.h"
#include "core/log/log.h"
#include "core/threads/thread_layout.h"
#include "kernels/kernels.h"
#include "model/placed_model.h"

#define ROUNDS 9
#define ROWS_MAX 8192

static void must(td_status status, const td_error *err) {
    if (status == TD_OK) return;
    fprintf(stderr, "%s\n", err->text[0] ? err->text : td_status_text(status));
    exit(1);
}

static uint32_t number(int argc, char **argv, int i, uint32_t otherwise) {
    return argc > i ? (uint32_t)atoi(argv[i]) : otherwise;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static td_placed_model open_model(const char *path, uint32_t layers, uint32_t max_tok, uint32_t overlap_min_tok,
                                  td_pool *device, td_pool *experts) {
    td_error        err = {0};
    td_placed_model m;
    char            json[64];
    snprintf(json, sizeof json, "{\"num_hidden_layers\": %u}", layers);
    td_model_spec spec = td_model_spec_of(path, max_tok);
    td_model_room room = {.npu_pools = &device, .expert_pool = experts};
    spec.override_json = json;
    spec.load_dummy = true;
    spec.w8a8 = true;
    spec.experts.format = TD_EXPERT_INT4C;
    spec.context_length = ROWS_MAX;
    spec.overlap_min_tok = overlap_min_tok;
    spec.n_pages = ROWS_MAX / TD_KV_PAGE;
    must(td_placed_model_open(&spec, &room, NULL, &m, &err), &err);
    must(td_model_load(m.model, m.shares.n_pages, &err), &err);
    return m;
}

static uint32_t     g_token[ROWS_MAX], g_pages[ROWS_MAX / TD_KV_PAGE];
static td_step_rows g_rows;

static double step_s(const td_placed_model *m, uint32_t n) {
    td_step_rows_clear(&g_rows);
    td_step_sequence seq = {.pages = g_pages, .n_pages = ROWS_MAX / TD_KV_PAGE, .state = td_own_state(0, 0)};
    td_step_rows_add(&g_rows, g_token, 0, n, &seq);
    double begin = now_s();
    must(td_model_forward(m->model, &g_rows, (td_out_rows){0}, NULL), &(td_error){0});
    return now_s() - begin;
}

int main(int argc, char **argv) {
    static const uint32_t   usual[] = {32, 64, 128, 256, 512, 1024, 2048};
    static td_thread_layout layout;
    td_machine              machine;
    td_error                err = {0};
    td_pool                *experts, *device;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_overlap CONFIG.json [layers] [device threads] [expert threads] [rows ...]\n");
        return 2;
    }
    uint32_t layers = number(argc, argv, 2, 4), n_rows = argc > 5 ? (uint32_t)argc - 5 : sizeof usual / sizeof *usual,
             max_tok = 2;
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t n = number(argc, argv, 5 + (int)i, usual[i % (sizeof usual / sizeof *usual)]);
        if (n < 2 || n > ROWS_MAX) {
            fprintf(stderr, "rows must be 2 to %d\n", ROWS_MAX);
            return 2;
        }
        if (n > max_tok) max_tok = n;
    }
    td_log_set_level(TD_LOG_WARNING);
    must(td_thread_layout_here(
             td_kernels_here()->read,
             &(td_thread_wishes){
                 .cpuinfer = number(argc, argv, 4, 1), .subpool_count = 1, .npu_threads = number(argc, argv, 3, 1)},
             &layout, &machine, &err),
         &err);
    must(td_pool_create(layout.experts, layout.n_experts, &experts, &err), &err);
    must(td_pool_create(layout.npu, layout.n_npu, &device, &err), &err);
    must(td_step_rows_open(&g_rows, ROWS_MAX, 1, ROWS_MAX, &err), &err);
    for (uint32_t i = 0; i < ROWS_MAX; i++) g_token[i] = i % 1000;
    for (uint32_t i = 0; i < ROWS_MAX / TD_KV_PAGE; i++) g_pages[i] = i;
    td_placed_model whole = open_model(argv[1], layers, max_tok, 0, device, experts),
                    halves = open_model(argv[1], layers, max_tok, 2, device, experts);

    printf("%s, %u layers, %u device threads, %u expert threads, %s\n", argv[1], layers, layout.n_npu, layout.n_experts,
           td_model_expert_kernel(whole.model));
    printf("   rows   whole ms  halves ms   halves/whole\n");
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t n = number(argc, argv, 5 + (int)i, usual[i % (sizeof usual / sizeof *usual)]);
        double   a[ROUNDS], b[ROUNDS], ratio[ROUNDS];
        step_s(&whole, n), step_s(&halves, n);
        for (int r = 0; r < ROUNDS; r++) {
            a[r] = step_s(&whole, n);
            b[r] = step_s(&halves, n);
            ratio[r] = b[r] / a[r];
        }
        printf("%7u %10.2f %10.2f %14.2f\n", n, 1e3 * bench_median(a, ROUNDS), 1e3 * bench_median(b, ROUNDS),
               bench_median(ratio, ROUNDS));
        fflush(stdout);
    }
    td_placed_model_close(&whole);
    td_placed_model_close(&halves);
    td_step_rows_close(&g_rows);
    td_pool_destroy(device);
    td_pool_destroy(experts);
    return 0;
}

#include "model_run.h"

#include <math.h>

#include "core/math/rng.h"
#include "core/memory/mem.h"
#include "model/arch/config_file.h"
#include "tests/td_test.h"

#define MAX_OUT 256
#define MAX_SEQ 512

static void fail_with(const td_error *err) {
    fail_msg("%s (%s)", err->text, td_status_text(err->status));
}

/* TD_TEST_DEVICE=apart runs a test on that device, TD_TEST_CARDS=n on so many cards. */
static const char *device_of(const model_run_options *o) {
    const char *name = o->device ? o->device : getenv("TD_TEST_DEVICE");
    return name && !o->rows_tap ? name : "host"; /* host alone shows what linears read */
}

/* TD_TEST_DEVICE_EXPERTS=1 has the routed experts on the device. */
static uint32_t device_experts_of(const model_run_options *o) {
    td_model_config c;
    td_error        err = {0};
    if (o->device_experts || !getenv("TD_TEST_DEVICE_EXPERTS")) return o->device_experts;
    if (td_model_config_read(repo_path(o->path), o->override_json, &c, &err) != TD_OK) fail_with(&err);
    return c.n_experts;
}

static uint32_t cards_of(const model_run_options *o) {
    const char *n = getenv("TD_TEST_CARDS");
    return o->n_cards ? o->n_cards : n ? (uint32_t)atoi(n) : 1;
}

/* TD_TEST_NPU_THREADS=n gives the device threads of its own in a test that does not ask for any. */
static uint32_t device_threads(const model_run_options *o, uint32_t n_cards) {
    const char *n = getenv("TD_TEST_NPU_THREADS");
    uint32_t    needed = td_npu_threads_needed(device_of(o), n_cards), wanted = o->npu_threads;
    if (!wanted && n) wanted = (uint32_t)atoi(n);
    return wanted > needed ? wanted : needed;
}

const char *repo_path(const char *path_in_repo) {
    if (path_in_repo[0] == '/') return path_in_repo;
    static char     path[4][1024];
    static unsigned next;
    char           *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", TD_SOURCE_DIR, path_in_repo);
    return p;
}

void *read_array(const char *relative, size_t n, size_t value_bytes) {
    FILE *f = fopen(repo_path(relative), "rb");
    if (!f) fail_msg("cannot open %s", relative);
    void *v = malloc(n * value_bytes + 1);
    assert_non_null(v);
    assert_int_equal(fread(v, 1, n * value_bytes + 1, f), n * value_bytes);
    fclose(f);
    return v;
}

static td_pool *open_pool(uint32_t workers, uint32_t subpools) {
    td_worker_place places[64];
    td_pool        *p;
    td_error        err = {0};
    for (uint32_t i = 0; i < workers; i++)
        places[i] = (td_worker_place){.cpu = TD_CPU_ANY, .subpool = i * subpools / workers, .node = UINT32_MAX};
    if (td_pool_create(places, workers, &p, &err) != TD_OK) fail_with(&err);
    return p;
}

void model_run_open(model_run *r, const model_run_options *o) {
    td_error err = {0};
    *r = (model_run){0};
    r->pool = open_pool(o->threads ? o->threads : 2, o->subpools ? o->subpools : 1);
    uint32_t n_cards = cards_of(o), threads = device_threads(o, n_cards);
    for (; threads && r->n_npu_pools < n_cards; r->n_npu_pools++)
        r->npu_pools[r->n_npu_pools] = open_pool(td_div_up(threads, n_cards), 1);
    uint32_t max_tok = o->max_tok ? o->max_tok : 2048;
    r->pages_per_seq = (o->max_len + TD_KV_PAGE - 1) / TD_KV_PAGE;
    r->n_pages = r->pages_per_seq * o->n_seq;
    td_model_spec  spec = td_model_spec_of(repo_path(o->path), max_tok);
    td_model_room  room = {.expert_pool = r->pool, .npu_pools = r->n_npu_pools ? r->npu_pools : NULL};
    td_model_probe probe =
        WITH(td_model_probe, .other_handover = o->other_handover || getenv("TD_TEST_OTHER_HANDOVER"),
             .sums_ahead = o->sums_ahead || getenv("TD_TEST_SUMS_AHEAD"), .residency_seed = o->residency_seed,
             .keep_routing = true, .layer_tap = o->layer_tap, .rows_tap = o->rows_tap, .user = o->tap_user);
    spec.checkpoint = o->checkpoint;
    spec.cpu_weight_path = o->cpu_weight_path;
    spec.override_json = o->override_json;
    spec.layers = o->layers;
    spec.device = device_of(o);
    spec.n_cards = n_cards;
    spec.device_experts = device_experts_of(o);
    spec.stream_experts = o->stream_experts;
    spec.drop_experts = o->drop_experts && spec.device_experts;
    spec.w8a8 = o->w8a8;
    spec.kv_int8 = o->kv_int8;
    spec.experts.format = o->experts;
    spec.experts.groups = o->groups;
    spec.experts.max_deferred = o->max_deferred;
    spec.experts_as_stored = o->experts_as_stored;
    spec.max_seq = MAX_SEQ;
    spec.max_out = MAX_OUT;
    spec.overlap_min_tok = o->overlap_min_tok;
    spec.max_patches = o->max_patches;
    spec.in_pieces = o->in_pieces;
    spec.gives_windows = o->gives_windows;
    spec.n_pages = r->n_pages;
    if (td_placed_model_open(&spec, &room, &probe, &r->placed, &err) != TD_OK) fail_with(&err);
    r->npu = r->placed.npus[0];
    r->model = r->placed.model;
    if (td_step_rows_open(&r->rows, max_tok, MAX_SEQ, o->max_len, &err) != TD_OK) fail_with(&err);
    if (td_model_load(r->model, r->n_pages, &err) != TD_OK) fail_with(&err);
    r->page = malloc(r->n_pages * sizeof *r->page);
    for (uint32_t i = 0; i < r->n_pages; i++) { /* Fisher-Yates from the inside out */
        uint32_t j = (uint32_t)(td_rng_u64(1, 2, i) % (i + 1));
        r->page[i] = r->page[j];
        r->page[j] = i;
    }
}

void model_run_close(model_run *r) {
    td_placed_model_close(&r->placed);
    td_step_rows_close(&r->rows);
    while (r->n_npu_pools) td_pool_destroy(r->npu_pools[--r->n_npu_pools]);
    td_pool_destroy(r->pool);
    free(r->page);
}

void model_run_fill(const model_run *r, const model_piece *pieces, uint32_t n_pieces, td_step_rows *rows) {
    td_step_rows_clear(rows);
    for (uint32_t s = 0; s < n_pieces; s++) {
        const model_piece *p = &pieces[s];
        td_step_sequence   seq = WITH(td_step_sequence, .pages = r->page + (size_t)p->seq * r->pages_per_seq,
                                      .n_pages = r->pages_per_seq, .absorbed = p->absorbed,
                                      .state = td_own_state(p->seq, p->first), .images = p->images, .n_images = p->n_images);
        td_step_rows_add(rows, p->ids, p->first, p->n, &seq);
    }
}

static const td_step_rows *fill_rows(model_run *r, const model_piece *pieces, uint32_t n_pieces) {
    model_run_fill(r, pieces, n_pieces, &r->rows);
    return &r->rows;
}

const td_step_rows *model_run_forward(model_run *r, const model_piece *pieces, uint32_t n_pieces) {
    OK(td_model_forward(r->model, fill_rows(r, pieces, n_pieces), (td_out_rows){0}, NULL));
    return &r->rows;
}

void model_run_layers(model_run *r, const model_piece *pieces, uint32_t n_pieces, const void *in, void *out) {
    OK(td_model_run_layers(r->model, fill_rows(r, pieces, n_pieces), in, out));
}

typedef td_status (*head_fn)(td_model *m, td_out_rows out, const float **logits);

static void read_logits(model_run *r, head_fn head, uint32_t n_tok, float *out) {
    size_t vocab = td_model_get_config(r->model)->vocab;
    for (uint32_t at = 0; at < n_tok; at += MAX_OUT) {
        uint32_t     rows[MAX_OUT], n = n_tok - at < MAX_OUT ? n_tok - at : MAX_OUT;
        const float *logits;
        for (uint32_t i = 0; i < n; i++) rows[i] = at + i;
        OK(head(r->model, (td_out_rows){.row = rows, .n = n}, &logits));
        memcpy(out + at * vocab, logits, n * vocab * sizeof *out);
    }
}

void model_run_logits(model_run *r, uint32_t n_tok, float *out) {
    read_logits(r, td_model_head, n_tok, out);
}

void model_run_mtp_logits(model_run *r, const uint32_t *next, uint32_t n_tok, float *out) {
    OK(td_model_mtp(r->model, next));
    read_logits(r, td_model_mtp_head, n_tok, out);
}

/* Of a log-sum: exponentials in f32 are 2e-7 off, and sums of them some roundings more. */
#define LOG_SUM_ERROR 4e-6

void check_log_sums(const float *whole, const float *got, size_t vocab, const td_out_logprobs *sums, uint32_t n) {
    for (uint32_t i = 0; i < n; i++, whole += vocab, got += vocab) {
        uint32_t most = arg_max(whole, vocab), id = sums[i].id < vocab ? sums[i].id : most;
        if (!sums[i].wanted) {
            assert_true(isnan(sums[i].log_sum));
            continue;
        }
        assert_true(got[most] == whole[most] && got[id] == whole[id]);
        double error = (double)got[id] - sums[i].log_sum - log_prob(whole, vocab, id);
        if (!(fabs(error) < LOG_SUM_ERROR)) fail_msg("row %u: a log-probability is %g off", i, error);
    }
}

double log_prob(const float *logits, size_t vocab, uint32_t id) {
    double max = logits[arg_max(logits, vocab)], sum = 0;
    for (size_t i = 0; i < vocab; i++) sum += exp(logits[i] - max);
    return logits[id] - max - log(sum);
}

double distance(const float *a, const float *b, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += pow((double)a[i] - b[i], 2);
        size += pow(b[i], 2);
    }
    return sqrt(difference / size);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median_distance(const float *got, const float *want, size_t rows, size_t vocab) {
    FREED double *of_row = malloc(rows * sizeof *of_row);
    assert_non_null(of_row);
    for (size_t r = 0; r < rows; r++) of_row[r] = distance(got + r * vocab, want + r * vocab, vocab);
    qsort(of_row, rows, sizeof *of_row, ascending);
    return of_row[rows / 2];
}

uint32_t arg_max(const float *logits, size_t vocab) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

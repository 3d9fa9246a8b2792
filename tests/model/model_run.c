#include "model_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"

#define MAX_OUT 256

static void fail_with(const td_error *err) { fail_msg("%s (%s)", err->text, td_status_text(err->status)); }

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
    for (uint32_t i = 0; i < workers; i++) places[i] = (td_worker_place){.cpu = TD_CPU_ANY, .subpool = i * subpools / workers, .node = UINT32_MAX};
    if (td_pool_create(places, workers, &p, &err) != TD_OK) fail_with(&err);
    return p;
}

void model_run_open(model_run *r, const model_run_options *o) {
    td_error err = {0};
    *r = (model_run){0};
    r->pool = open_pool(o->threads ? o->threads : 2, o->subpools ? o->subpools : 1);
    if (o->npu_threads) r->npu_pool = open_pool(o->npu_threads, 1);
    td_npu_config nc = {.act_dtype = o->w8a8 ? TD_DT_BF16 : TD_DT_F32, .pool = o->npu_threads ? r->npu_pool : r->pool, .own_threads = o->npu_threads > 0,
                        .rows_tap = o->rows_tap, .rows_tap_user = o->tap_user};
    if (td_npu_open("host", &nc, &r->npu, &err) != TD_OK) fail_with(&err);
    td_model_options mo = {.model_path = repo_path(o->path), .cpu_weight_path = o->cpu_weight_path, .override_json = o->override_json, .w8a8 = o->w8a8, .expert_format = o->experts, .expert_groups = o->groups, .experts_as_stored = o->experts_as_stored,
                           .max_tok = o->max_tok ? o->max_tok : 2048, .max_out = MAX_OUT, .max_deferred = o->max_deferred,
                           .async_experts = o->npu_threads > 0, .overlap_min_tok = o->overlap_min_tok, .keep_routing = true, .layers = o->layers,
                           .layer_tap = o->layer_tap, .layer_tap_user = o->tap_user, .checkpoint = o->checkpoint};
    if (td_model_open(&mo, r->npu, r->pool, &r->model, &err) != TD_OK) fail_with(&err);
    r->pages_per_seq = (o->max_len + TD_KV_PAGE - 1) / TD_KV_PAGE;
    r->n_pages = r->pages_per_seq * o->n_seq;
    if (td_model_load(r->model, r->n_pages, &err) != TD_OK) fail_with(&err);
    r->page = malloc(r->n_pages * sizeof *r->page);
    for (uint32_t i = 0; i < r->n_pages; i++) { /* Fisher-Yates from the inside out */
        uint32_t j = (uint32_t)(td_rng_u64(1, 2, i) % (i + 1));
        r->page[i] = r->page[j];
        r->page[j] = i;
    }
}

void model_run_close(model_run *r) {
    td_model_close(r->model);
    if (r->npu) r->npu->ops->close(r->npu);
    td_pool_destroy(r->npu_pool);
    td_pool_destroy(r->pool);
    free(r->page);
}

static struct {
    uint32_t token[8192], pos[8192], slot[8192], seq_start[513], kv_len[512], blocks[512 * 64];
    uint8_t  absorbed[512];
} arrays;

static td_step *fill_step(model_run *r, const model_piece *pieces, uint32_t n_pieces) {
    static td_step step;
    assert_true(n_pieces <= 512 && n_pieces * r->pages_per_seq <= 512 * 64);
    step = (td_step){.n_seq = n_pieces, .block_stride = r->pages_per_seq,
                     .host = {.token = arrays.token, .pos = arrays.pos, .slot = arrays.slot, .seq_start = arrays.seq_start, .kv_len = arrays.kv_len,
                              .absorbed = arrays.absorbed, .block_table = arrays.blocks}};
    for (uint32_t s = 0; s < n_pieces; s++) {
        const model_piece *p = &pieces[s];
        const uint32_t    *pages = r->page + (size_t)p->seq * r->pages_per_seq;
        arrays.seq_start[s] = step.n_tok;
        arrays.kv_len[s] = p->first + p->n;
        arrays.absorbed[s] = p->absorbed;
        memcpy(arrays.blocks + s * r->pages_per_seq, pages, r->pages_per_seq * sizeof *pages);
        for (uint32_t i = 0; i < p->n; i++, step.n_tok++) {
            uint32_t pos = p->first + i;
            assert_true(step.n_tok < 8192);
            arrays.token[step.n_tok] = p->ids[i];
            arrays.pos[step.n_tok] = pos;
            arrays.slot[step.n_tok] = pages[pos / TD_KV_PAGE] * TD_KV_PAGE + pos % TD_KV_PAGE;
        }
    }
    arrays.seq_start[n_pieces] = step.n_tok;
    return &step;
}

td_step *model_run_forward(model_run *r, const model_piece *pieces, uint32_t n_pieces) {
    td_step *step = fill_step(r, pieces, n_pieces);
    assert_int_equal(td_model_forward(r->model, step), TD_OK);
    return step;
}

void model_run_layers(model_run *r, const model_piece *pieces, uint32_t n_pieces, const void *in, void *out) {
    assert_int_equal(td_model_run_layers(r->model, fill_step(r, pieces, n_pieces), in, out), TD_OK);
}

void model_run_logits(model_run *r, uint32_t n_tok, float *out) {
    size_t vocab = td_model_get_config(r->model)->vocab;
    for (uint32_t at = 0; at < n_tok; at += MAX_OUT) {
        uint32_t     rows[MAX_OUT], n = n_tok - at < MAX_OUT ? n_tok - at : MAX_OUT;
        const float *logits;
        for (uint32_t i = 0; i < n; i++) rows[i] = at + i;
        assert_int_equal(td_model_head(r->model, rows, n, &logits), TD_OK);
        memcpy(out + at * vocab, logits, n * vocab * sizeof *out);
    }
}

double log_prob(const float *logits, size_t vocab, uint32_t id) {
    double max = logits[arg_max(logits, vocab)], sum = 0;
    for (size_t i = 0; i < vocab; i++) sum += exp(logits[i] - max);
    return logits[id] - max - log(sum);
}

uint32_t arg_max(const float *logits, size_t vocab) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

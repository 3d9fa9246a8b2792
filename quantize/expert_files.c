/* The routed experts: rounded, packed as the kernels read them, a file per MoE layer. */
#include <stdio.h>

#include "core/error.h"
#include "core/threads/thread.h"
#include "model/experts_load.h"
#include "quantize/expert_rounding.h"
#include "quantize/quantizer.h"

bool td_expert_file_is_done(td_quantizer *q, uint32_t layer) {
    char              path[PATH_MAX];
    td_experts_config shape = td_expert_file_shape(q, layer, path);
    return td_experts_check_file(&shape, 0, path, q->hash, NULL) == TD_OK || td_expert_shard_is_done(q, layer);
}

static void *save(void *arg) {
    td_expert_saving *s = arg;
    s->status = td_experts_save_file(s->store, 0, s->path, s->source_hash, &s->err);
    td_experts_destroy(s->store);
    return NULL;
}

td_status td_expert_file_finish(td_quantizer *q, td_error *err) {
    td_expert_saving *s = &q->saving;
    if (!s->store) return TD_OK;
    pthread_join(s->thread, NULL);
    s->store = NULL;
    return s->status == TD_OK ? TD_OK : td_fail(err, s->status, "%s", s->err.text);
}

/* The store becomes the thread's. Never two behind: packing fills a second store at most. */
static td_status start_saving(td_quantizer *q, td_experts *store, const char *path) {
    td_expert_saving *s = &q->saving;
    td_status         st = td_expert_file_finish(q, q->err);
    *s = (td_expert_saving){.store = store, .source_hash = q->hash};
    snprintf(s->path, sizeof s->path, "%s", path);
    if (st == TD_OK) st = td_thread_start(&s->thread, "expert file", save, s, q->err);
    if (st == TD_OK) return TD_OK;
    s->store = NULL;
    td_experts_destroy(store);
    return st;
}

/* Fill a store, with codes or from the source to nearest, and begin to save it. */
static td_status pack(td_quantizer *q, uint32_t layer, const td_expert_codes *codes) {
    char              path[PATH_MAX];
    td_experts_config shape = td_expert_file_shape(q, layer, path);
    td_experts       *store;
    TD_TRY(td_experts_create(&shape, q->pool, &store, q->err));
    td_status s = codes ? td_experts_load_codes(store, 0, codes, q->err)
                  : td_checkpoint_is_dummy(q->source)
                      ? td_experts_fill_layer(store, 0, shape.first_layer, q->err)
                      : td_checkpoint_pack_experts(q->source, &q->config, layer, store, &shape, 0,
                                                   td_pool_subpools(q->pool) == 1, q->err);
    if (s != TD_OK) td_fail_within(q->err, "%s, experts of layer %u", q->o->model_path, layer);
    if (s == TD_OK) return start_saving(q, store, path);
    td_experts_destroy(store);
    return s;
}

td_status td_expert_file_write_codes(td_quantizer *q, uint32_t layer, const td_expert_codes *experts) {
    TD_TRY(pack(q, layer, experts));
    return td_expert_file_finish(q, q->err);
}

static td_status write_rounded(td_quantizer *q, uint32_t layer) {
    td_rounded_experts rounded;
    TD_TRY(td_experts_round(q, layer, &(td_expert_inputs){0}, &rounded));
    td_status s = pack(q, layer, rounded.experts);
    td_rounded_experts_free(&rounded);
    return s;
}

td_status td_expert_file_write(td_quantizer *q, uint32_t layer) {
    char what[32];
    if (!q->config.is_moe[layer]) return TD_OK;
    if (!td_expert_file_is_done(q, layer))
        TD_TRY(q->method == TD_ROUND_NEAREST ? pack(q, layer, NULL) : write_rounded(q, layer));
    snprintf(what, sizeof what, "experts of layer %u", layer);
    td_quantizer_progress(q, td_expert_source_bytes(q, layer), what);
    return TD_OK;
}

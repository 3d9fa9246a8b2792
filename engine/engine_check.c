/* td_engine_check: opens everything of a model but its weights. */
#include <stdlib.h>

#include "core/error.h"
#include "engine/engine_impl.h"
#include "model/arch/config_file.h"
#include "model/checkpoint/checkpoint.h"
#include "model/shard.h"

/* @param c receives the model's configuration. */
static td_status check_model(const td_model_spec *spec, td_model_config *c, td_error *err) {
    td_checkpoint *ck = NULL;
    td_status      st = td_model_config_read(spec->model_path, spec->override_json, c, err);
    if (st == TD_OK)
        st = spec->load_dummy ? td_checkpoint_open_dummy(0, &ck, err) : td_checkpoint_open(spec->model_path, &ck, err);
    if (st == TD_OK) {
        td_checkpoint_look_at_mtp(ck, c);
        if (spec->without_mtp) c->n_mtp_layers = 0;
        st = td_shard_check(c, spec->n_cards, c->n_experts && spec->device_experts == c->n_experts, err);
    }
    if (st == TD_OK) st = td_checkpoint_check_all(ck, c, td_checkpoint_has_experts(ck, c), err);
    td_checkpoint_close(ck);
    return st;
}

td_status td_engine_check(const td_engine_options *o, td_error *err) {
    td_engine       *e = calloc(1, sizeof *e);
    td_model_config *c = calloc(1, sizeof *c);
    if (!e || !c) {
        free(e);
        free(c);
        return td_fail(err, TD_ENOMEM, "out of memory for the engine");
    }
    pthread_mutex_init(&e->trie_lock, NULL);
    td_status st = td_engine_resolve(o, &e->config, err);
    if (st == TD_OK) st = check_model(&e->config.model, c, err);
    if (st == TD_OK) st = td_engine_open_text(e, o, c, err);
    td_engine_close(e, 0);
    free(c);
    return st;
}

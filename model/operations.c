#include "model/operations.h"

#include <stdlib.h>

#include "core/error.h"

td_npu_weight *const *td_spec_weights(const td_program_spec *s, uint32_t layer) {
    static td_npu_weight *const NONE[TD_ROLE_COUNT] = {NULL};
    if (!s->weights) return NONE;
    return layer == TD_NO_LAYER ? s->weights->model.role : s->weights->layers[layer].role;
}

const void *td_spec_images(const td_program_spec *s, uint32_t table) {
    if (!s->act.images || table > s->config->vision.n_taps) return NULL;
    return (const char *)s->act.images +
           (size_t)table * s->model->max_tok * s->config->hidden * td_dtype_bytes(td_model_act_dtype(s->model));
}

void td_describe_op(td_description *d, td_op op) {
    if (d->status != TD_OK) return;
    if (d->n == d->room) {
        uint32_t room = d->room ? d->room * 2 : 64;
        td_op   *ops = realloc(d->ops, room * sizeof *ops);
        if (!ops) {
            d->status = td_fail(d->err, TD_ENOMEM, "out of memory for the layer program");
            return;
        }
        d->ops = ops;
        d->room = room;
    }
    d->ops[d->n++] = op;
}

void td_describe_block(td_description *d, td_block_desc block) {
    block.layer = d->layer;
    block.max_tok = d->s->model->max_tok;
    block.max_kv = d->s->model->context_length;
    td_describe_op(d, (td_op){.kind = TD_OP_BLOCK, .block = {.desc = block}});
}

/* Features of images on their way into a step: from where the caller has them, in f32, into a buffer beside the activations. */
#include "core/error.h"
#include "kernels/rows/convert.h"
#include "model/model_state.h"

static size_t row_bytes(const td_model *m) {
    return m->config.hidden * td_dtype_bytes(td_model_act_dtype(&m->spec));
}

size_t td_card_model_images_bytes(const td_model *m) {
    return m->spec.max_patches ? (1 + (size_t)m->config.vision.n_taps) * m->spec.max_tok * row_bytes(m) : 0;
}

/* Where a table's rows begin, of a step whose rows begin at first_row. */
static size_t place_of(const td_model *m, uint32_t table, uint32_t first_row) {
    return ((size_t)table * m->spec.max_tok + first_row) * row_bytes(m);
}

void td_card_model_fill_images(td_card_model *c, const td_step_rows *rows, uint32_t first_row) {
    const td_model *m = c->model;
    const size_t    hidden = m->config.hidden;
    for (uint32_t table = 0; rows->n_images && table <= m->config.vision.n_taps; table++) {
        char *to = (char *)c->images + place_of(m, table, first_row);
        for (uint32_t i = 0; i < rows->n_images; i++, to += row_bytes(m)) {
            const td_image_row *from = &rows->images[i];
            td_from_f32(td_model_act_dtype(&m->spec), from->features + ((size_t)table * from->of + from->at) * hidden,
                        hidden, to);
        }
    }
}

td_status td_card_model_enqueue_images(td_card_model *c, const td_step_rows *rows, uint32_t first_row) {
    const td_model *m = c->model;
    if (m->unified) return TD_OK;
    for (uint32_t table = 0; rows->n_images && table <= m->config.vision.n_taps; table++) {
        const size_t at = place_of(m, table, first_row);
        TD_TRY(c->npu->ops->copy(c->npu, c->stream, (char *)c->act.images + at, (char *)c->images + at,
                                 rows->n_images * row_bytes(m), TD_COPY_H2D));
    }
    return TD_OK;
}

/*
 * A model that reads windows of text, without the engine. A window is a sequence that begins and ends within one step, and
 * all its logits are computed. Every row is computed as a prompt's row, so its numbers are those of the same tokens in a
 * request's prompt (docs/determinism.md).
 */
#ifndef TD_EVAL_SCORED_MODEL_H
#define TD_EVAL_SCORED_MODEL_H

#include "eval/scored_text.h"
#include "model/placed_model.h"

/** Sizes that a batch and the models it goes through share. */
typedef struct {
    uint32_t max_seq;  /* windows of a batch */
    uint32_t max_rows; /* of a window */
    uint32_t max_out;  /* rows of logits at a time */
} td_batch_shape;

/** @param vocab of the larger model. */
td_batch_shape td_batch_shape_for(const td_scored_text *t, uint32_t vocab);

/** Some windows as one step. */
typedef struct {
    td_batch_shape shape;
    uint32_t       pages_per_seq;
    td_step_rows   rows;
    uint32_t      *window;       /* [max_rows] tokens of a window */
    uint32_t      *page;         /* [max_seq, pages_per_seq] */
    uint32_t      *row, *target; /* [n_scored] rows that predict, and what comes */
    uint32_t       n_scored;
} td_batch;

TD_NODISCARD td_status td_batch_open(td_batch *b, const td_batch_shape *shape, td_error *err);
void                   td_batch_close(td_batch *b);
/** Fill it with windows first .. first + n - 1 of the text, n 1..max_seq. */
void td_batch_fill(td_batch *b, const td_scored_text *t, uint64_t first, uint32_t n);

/** Threads of this machine for all models that are open at once, and the memory it has. */
typedef struct {
    td_pool      *experts_pool, *npu_pool; /* npu_pool: NULL if the device shares the experts' threads */
    td_model_room room;                    /* of all models: they are used in turn */
} td_scored_room;

/** Threads as such options want them, the first time; and the memory there is now, which the next model may take. @param r
 * all 0 before the first call. */
TD_NODISCARD td_status td_scored_room_look(td_scored_room *r, const td_engine_options *o, td_error *err);
void                   td_scored_room_close(td_scored_room *r); /* after the models; one that is all 0 is fine */

typedef struct {
    td_placed_model placed;
    td_model       *model; /* of placed */
    td_dtype        act_dtype;
    const char     *quantization, *expert_quantization; /* static */
} td_scored_model;

/**
 * Load a model. Of o, the options of the model, the device, number formats and memory count.
 * @param room  one for all models: they are used in turn.
 * @param probe copied; NULL if nobody looks inside the model.
 * @return also TD_ENOMEM when it does not fit, TD_EINVAL when its context is shorter than the rows.
 */
TD_NODISCARD td_status td_scored_model_open(td_scored_model *m, const td_engine_options *o, const td_batch_shape *shape,
                                            const td_model_room *room, const td_model_probe *probe, td_error *err);
void                   td_scored_model_close(td_scored_model *m);

/** The checkpoint that such options name, once more: for what a loaded model does not keep. */
TD_NODISCARD td_status td_scored_checkpoint_open(const td_engine_options *o, td_checkpoint **out, td_error *err);

#endif

/*
 * A model's vision encoder on a device: pictures in, rows of the residual stream out.
 *
 * DESIGN. The family describes its encoder as operations over buffers (arch/vision_encoder.h). Each becomes a block, made once
 * for the largest picture; a picture is a step whose one sequence has a row for each patch. Weights are kept in 16 bits, or in
 * f32 where the checkpoint has them so. Rows are f32 between blocks, since rounding them to 16 bits is most of the error that an
 * encoder would have. All memory is taken when the encoder is opened. A picture takes longer than a stream may
 * wait, so it goes in pieces: linears in parts of rows, attention in parts with keys and parts with rows that meet them all. How
 * long a part takes is foreseen from its number of operations, and from how many a second were measured.
 */
#ifndef TD_MODEL_VISION_H
#define TD_MODEL_VISION_H

#include "model/arch/model_config.h"
#include "model/checkpoint/checkpoint_files.h"
#include "model/piece.h"

typedef struct td_vision td_vision;

/** The memory that an encoder takes. */
typedef struct {
    uint64_t weight_bytes;  /* device */
    uint64_t device_bytes;  /* device: buffers for a picture */
    uint64_t scratch_bytes; /* device: what all blocks of a device share; the encoder's wants so much */
    uint64_t host_bytes;    /* host: pinned memory, positions */
} td_vision_memory;

/** @param max_patches of a picture. */
void td_vision_measure(td_npu *npu, td_dtype act, const td_model_config *c, uint32_t max_patches, td_vision_memory *out);

/** Whether the encoder's weights are there. None is read. @return TD_ENOTFOUND, TD_EFORMAT, TD_ENOTSUP as td_vision_open. */
TD_NODISCARD td_status td_vision_check(td_npu *npu, td_dtype act, const td_model_config *c, const td_checkpoint_files *files,
                                       td_error *err);

/**
 * @param npu  with caps.vision, borrowed; its activations are of type act.
 * @param c    with c->vision.depth, borrowed.
 * @param files of the checkpoint; read during the call. NULL: the weights are random.
 * @param max_patches of a picture.
 * @return TD_ENOTFOUND, TD_EFORMAT for a tensor that is missing or has another shape, TD_ENOTSUP for one in codes or a device
 *         without caps.vision, TD_ENOMEM, TD_EDEVICE.
 */
TD_NODISCARD td_status td_vision_open(td_npu *npu, td_dtype act, const td_model_config *c, const td_checkpoint_files *files,
                                      uint32_t max_patches, td_vision **out, td_error *err);
void                   td_vision_close(td_vision *v); /* NULL is fine */

/**
 * Begin to encode a picture, in pieces: nothing is computed yet. One that has not ended is dropped. Its bits do not depend on
 * other pictures, nor on where it is cut.
 * @param pixels   [rows * columns, td_vision_patch_values] f32, normalised; squares of 2 x 2 patches one after the other, row
 *                 by row of squares, and within one row by row. The caller's until the last piece has ended.
 * @param rows, columns  of patches, even.
 * @param features [1 + n_taps, rows * columns / 4, hidden of the language model] f32: the tokens' rows, in the place of
 *                 embeddings; then what decoder layer k adds to its output there, for each k. Written by the last piece's end.
 * @return TD_EINVAL for a picture of odd sides or more than max_patches.
 */
TD_NODISCARD td_status td_vision_start(td_vision *v, const float *pixels, uint32_t rows, uint32_t columns, float *features,
                                       td_error *err);

/** Compute the next operations, one at the least. While it runs the caller gives the device nothing else to do; between two
 * pieces it may. @return TD_EDEVICE, TD_ENOMEM; the picture is dropped then. */
TD_NODISCARD td_status td_vision_run(td_vision *v, td_piece *piece, td_error *err);

#endif

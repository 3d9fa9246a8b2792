/*
 * A checkpoint: the weights of a model by role. They come out of files (checkpoint_files.h), in whatever way they are stored
 * there (stored_weight.h), or are random (dummy_weights.h).
 *
 * A checkpoint is read-only after open; all its functions may be called from several threads, each with a td_scratch of its
 * own.
 */
#ifndef TD_MODEL_CHECKPOINT_CHECKPOINT_H
#define TD_MODEL_CHECKPOINT_CHECKPOINT_H

#include "model/arch/tensor_rules.h"
#include "model/checkpoint/checkpoint_files.h"
#include "model/checkpoint/scratch.h"

typedef struct td_checkpoint td_checkpoint;

/** Open a folder's files. @return as td_checkpoint_files_open. */
TD_NODISCARD td_status td_checkpoint_open(const char *dir, td_checkpoint **out, td_error *err);

/** Open random weights (dummy_weights.h). */
TD_NODISCARD td_status td_checkpoint_open_dummy(uint64_t seed, td_checkpoint **out, td_error *err);

void td_checkpoint_close(td_checkpoint *c); /* NULL is fine */

/**
 * From here on the weights by role are those of the model with its residual stream rotated (model/checkpoint/rotation.h), in
 * f32 where they differ; the checkpoint's identity changes, too. Tensors by name stay as in the files. A tied head must be
 * read by its own role. Call before any other thread reads. @return TD_ENOTSUP for a model that cannot be rotated;
 * TD_ENOMEM.
 */
TD_NODISCARD td_status td_checkpoint_rotate(td_checkpoint *c, const td_model_config *config, td_error *err);

bool        td_checkpoint_is_rotated(const td_checkpoint *c);
bool        td_checkpoint_is_dummy(const td_checkpoint *c);
const char *td_checkpoint_dir(const td_checkpoint *c); /* "dummy weights" for a dummy */

const td_checkpoint_files *td_checkpoint_get_files(const td_checkpoint *c); /* NULL for a dummy */

/**
 * From here on a layer's weights by role are these, instead of those of the files; rotation leaves them alone. Call while no
 * other thread reads.
 * @param weights [TD_ROLE_COUNT], borrowed; rows in the order of the files; one with data NULL is not replaced. NULL:
 * nothing is replaced any more.
 */
void td_checkpoint_replace(td_checkpoint *c, uint32_t layer, const td_tensor_view *weights);

/** Identity of the weights by role: td_checkpoint_files_hash, or another number if they are rotated; never 0. 0 for dummy
 * weights. */
uint64_t td_checkpoint_source_hash(const td_checkpoint *c);

/** td_checkpoint_files_stamp, or another number if the weights are rotated. Not of dummy weights. */
uint64_t td_checkpoint_stamp(const td_checkpoint *c);

/** How a weight stored in codes is given. Other weights are given as stored: BF16, F16 or F32. */
typedef enum {
    TD_FORM_FLOAT,         /* F32, decoded (model/checkpoint/stored_weight.h) */
    TD_FORM_FLOAT_OR_INT8, /* I8 with scales if it is stored as int8 with a scale per row; else decoded */
    TD_FORM_STORED,        /* as out->coded; scales and zeros are not checked */
    TD_FORM_CODES,         /* the same; and a weight that is not in codes is not read: out is empty */
} td_weight_form;

/**
 * The weight of a role, ready for td_npu_ops.weight_create: of the expected shape, aligned, and with its rows in the model's
 * order (for a weight in codes, row_of says where they are). The fallback of td_tensor_spec is applied. A rotated model's
 * weights are decoded, in F32; so is a norm's gain that is stored less one. A replaced weight (td_checkpoint_replace) is
 * given as it is, whatever the form. out->data and out->coded are NULL (and TD_OK returned) when a model of this
 * configuration has no such weight.
 * @param scratch holds bytes that had to be made, permuted or realigned; views of files live until td_checkpoint_close.
 * @return TD_ENOTFOUND (missing tensor), TD_EFORMAT (shape, dtype), TD_ENOTSUP (a dtype that is not read), TD_EIO,
 * TD_ENOMEM.
 */
TD_NODISCARD td_status td_checkpoint_get(const td_checkpoint *c, const td_model_config *config, td_role role, uint32_t layer,
                                         uint32_t expert, td_weight_form form, td_scratch *scratch, td_tensor_view *out,
                                         td_error *err);

/** td_checkpoint_get for weights that are not experts', as a checkpoint has them: rows in its order, gains less one where it
 * has them so. To write another checkpoint. */
TD_NODISCARD td_status td_checkpoint_get_as_stored(const td_checkpoint *c, const td_model_config *config, td_role role,
                                                   uint32_t layer, td_weight_form form, td_scratch *scratch,
                                                   td_tensor_view *out, td_error *err);

/** About how many bytes the weight has in the checkpoint: scales and zeros are not counted; 0 if it is missing. */
size_t td_checkpoint_stored_bytes(const td_checkpoint *c, const td_model_config *config, const td_tensor_spec *spec);

/** Like td_checkpoint_get, but the weight as stored: a view of the file's bytes, perhaps unaligned, not permuted. *out is
 * NULL if it is in codes. */
TD_NODISCARD td_status td_checkpoint_get_stored(const td_checkpoint *c, const td_model_config *config,
                                                const td_tensor_spec *spec, const td_safetensors_entry **out, td_error *err);

/** Check that every weight of the configuration is there, with its shape and a type that can be read, and that no bias is
 * there which would be ignored. Routed experts are checked only if `experts`. */
TD_NODISCARD td_status td_checkpoint_check_all(const td_checkpoint *c, const td_model_config *config, bool experts,
                                               td_error *err);

/** Whether the routed experts are in the checkpoint (a folder of td_quantize has them in packed files instead). */
bool td_checkpoint_has_experts(const td_checkpoint *c, const td_model_config *config);

/** Log a line if there are tensors outside the language model, such as a vision encoder's. @param encoder how the names of those
 * begin that are read for images; NULL: none are. */
void td_checkpoint_log_unread(const td_checkpoint *c, const td_model_config *config, const char *encoder);

/**
 * Correct in config what only the checkpoint tells of the MTP layers. n_mtp_layers becomes 0 if the first has no tensor,
 * since many conversions drop them and keep the config's count. mtp_rotated becomes whether they are a rotated model's, in
 * the folder or since td_checkpoint_rotate.
 */
void td_checkpoint_look_at_mtp(const td_checkpoint *c, td_model_config *config);

/**
 * Put the rows of a matrix [n, k] or vector [n] into the model's order. Rows move whole, so any dtype works; scales move
 * with their rows.
 * @param order moves rows.  @param data  [n, k], written; not in->data.  @param scale [n], written when in->scale is not
 * NULL.
 */
void td_tensor_take_rows(const td_tensor_view *in, const td_row_order *order, void *data, float *scale);

#endif

/*
 * A checkpoint: the weights of a model by role, out of files (checkpoint_files.h) in whatever way they are stored there
 * (stored_weight.h), or made up (dummy_weights.h).
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

/** Of a folder's files. @return as td_checkpoint_files_open. */
TD_NODISCARD td_status td_checkpoint_open(const char *dir, td_checkpoint **out, td_error *err);

/** Of random weights (dummy_weights.h). */
TD_NODISCARD td_status td_checkpoint_open_dummy(uint64_t seed, td_checkpoint **out, td_error *err);

void td_checkpoint_close(td_checkpoint *c); /* NULL is fine */

/**
 * From here on the weights by role are those of the model whose residual stream is rotated (model/checkpoint/rotation.h), in
 * f32 where they differ; the identity of the weights is another too. What is asked for by name is as it is in the files. A
 * tied head is to be read by its own role. Before any other thread reads. @return TD_ENOTSUP for a model that cannot be
 * rotated; TD_ENOMEM.
 */
TD_NODISCARD td_status td_checkpoint_rotate(td_checkpoint *c, const td_model_config *config, td_error *err);

bool        td_checkpoint_is_rotated(const td_checkpoint *c);
bool        td_checkpoint_is_dummy(const td_checkpoint *c);
const char *td_checkpoint_dir(const td_checkpoint *c); /* "dummy weights" for a dummy */

const td_checkpoint_files *td_checkpoint_get_files(const td_checkpoint *c); /* NULL for a dummy */

/**
 * From here on a layer's weights by role are these, instead of those of the files; rotation leaves them alone.
 * @param weights [TD_ROLE_COUNT], borrowed; data NULL: not replaced. Rows in the order of the files. NULL: nothing is
 * replaced any more. While no other thread reads.
 */
void td_checkpoint_replace(td_checkpoint *c, uint32_t layer, const td_tensor_view *weights);

/** Identity of the weights by role: that of the files (td_checkpoint_files_hash), and another, never 0, once they are
 * rotated. 0 for dummy weights. */
uint64_t td_checkpoint_source_hash(const td_checkpoint *c);

/** What a weight stored in codes is given as; any other is BF16, F16 or F32 as stored. */
typedef enum {
    TD_FORM_FLOAT,         /* F32, decoded (model/checkpoint/stored_weight.h) */
    TD_FORM_FLOAT_OR_INT8, /* I8 with scales where it is int8 with a scale per row; else decoded */
    TD_FORM_STORED,        /* out->coded; scales and zeros are not looked at */
    TD_FORM_CODES,         /* the same, and out is empty for a weight that is not in codes: nothing is made */
} td_weight_form;

/**
 * The weight of a role, ready for td_npu_ops.weight_create: of the expected shape; aligned; the rows that RoPE rotates put from pairs into halves (of coded ones
 * row_of says where they are). The fallback of td_tensor_spec is applied. A rotated model's weights are decoded, in F32; one that was replaced
 * (td_checkpoint_replace) is what it was replaced with, in whatever form.
 * out->data and out->coded are NULL (and TD_OK returned) when a model of this configuration has no such weight.
 * @param scratch holds the bytes where they are made, permuted or realigned; file views live until td_checkpoint_close.
 * @return TD_ENOTFOUND (missing tensor), TD_EFORMAT (shape, dtype), TD_ENOTSUP (a dtype that is not read), TD_EIO, TD_ENOMEM.
 */
TD_NODISCARD td_status td_checkpoint_get(const td_checkpoint *c, const td_model_config *config, td_role role, uint32_t layer,
                                         uint32_t expert, td_weight_form form, td_scratch *scratch, td_tensor_view *out,
                                         td_error *err);

/** The same of no expert, with the rows in the checkpoint's order, for another checkpoint. */
TD_NODISCARD td_status td_checkpoint_get_interleaved(const td_checkpoint *c, const td_model_config *config, td_role role,
                                                     uint32_t layer, td_weight_form form, td_scratch *scratch,
                                                     td_tensor_view *out, td_error *err);

/** Bytes of the weight in the checkpoint, about: scales and zeros not counted; 0 for what is missing. */
size_t td_checkpoint_stored_bytes(const td_checkpoint *c, const td_model_config *config, const td_tensor_spec *spec);

/** The weight as stored, not permuted: a view of the file's bytes, perhaps unaligned; *out is NULL where it is in codes.
 * Else as td_checkpoint_get. */
TD_NODISCARD td_status td_checkpoint_get_stored(const td_checkpoint *c, const td_model_config *config,
                                                const td_tensor_spec *spec, const td_safetensors_entry **out, td_error *err);

/** Every weight of the configuration: is it there, with that shape and a type that can be read, and no bias beside
 * ModelSlim's norms? Routed experts only when `experts`. */
TD_NODISCARD td_status td_checkpoint_check_all(const td_checkpoint *c, const td_model_config *config, bool experts,
                                               td_error *err);

/** Whether the routed experts are in the checkpoint (a folder of td_quantize has them in packed files instead). */
bool td_checkpoint_has_experts(const td_checkpoint *c, const td_model_config *config);

/** A log line when there are tensors outside the language model (td_arch.prefix): a vision encoder's. */
void td_checkpoint_log_unread(const td_checkpoint *c, const td_model_config *config);

/**
 * What only the checkpoint says of the MTP layers. Many conversions drop them and keep the config's count: n_mtp_layers
 * becomes 0 when the first has no tensor. mtp_rotated is whether they are a rotated model's, in the folder or since
 * td_checkpoint_rotate.
 */
void td_checkpoint_look_at_mtp(const td_checkpoint *c, td_model_config *config);

/**
 * Put the rope rows of a matrix [n, k] or vector [n] from pairs (2i, 2i+1) into halves (i, i + rope/2): of every rows.block rows, the last
 * rows.rope. Row bytes move whole, so any dtype works; scales move with their rows.
 * @param data  [n, k], written; not in->data.   @param scale [n], written when in->scale is not NULL.
 */
void td_rope_deinterleave_rows(const td_tensor_view *in, td_rope_rows rows, void *data, float *scale);

#endif

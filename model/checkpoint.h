/*
 * A checkpoint: the tensors of a model folder by name and by role.
 *
 * The folder holds model.safetensors, or model.safetensors.index.json and its shards. Nothing is read but headers until a
 * tensor's bytes are. A dummy checkpoint has no folder: it makes up a tensor for every role, the same for the same seed.
 *
 * A checkpoint is read-only after open; all its functions may be called from several threads, each with a td_scratch of its
 * own.
 */
#ifndef TD_MODEL_CHECKPOINT_H
#define TD_MODEL_CHECKPOINT_H

#include "model/safetensors.h"
#include "model/tensor_rules.h"

typedef struct td_checkpoint td_checkpoint;

/**
 * Open a folder: map every shard, check every header, and the index against them.
 * @return TD_ENOTFOUND (no folder, no weights in it, a shard that the index names), TD_EFORMAT, TD_EIO, TD_ENOMEM; err names
 * the file.
 */
TD_NODISCARD td_status td_checkpoint_open(const char *dir, td_checkpoint **out, td_error *err);

/** Random weights: linears uniform with deviation 0.02, norms 1, router biases 0. */
TD_NODISCARD td_status td_checkpoint_open_dummy(uint64_t seed, td_checkpoint **out, td_error *err);

void td_checkpoint_close(td_checkpoint *c); /* NULL is fine */

/**
 * From here on the weights by role are those of the model whose residual stream is rotated (model/rotation.h), in f32 where
 * they differ; the identity of the weights is another too. What is asked for by name is as it is in the files. A tied head
 * is to be read by its own role. Before any other thread reads. @return TD_ENOTSUP for a model that cannot be rotated;
 * TD_ENOMEM.
 */
TD_NODISCARD td_status td_checkpoint_rotate(td_checkpoint *c, const td_model_config *config, td_error *err);

bool        td_checkpoint_is_rotated(const td_checkpoint *c);
bool        td_checkpoint_is_dummy(const td_checkpoint *c);
const char *td_checkpoint_dir(const td_checkpoint *c); /* "dummy weights" for a dummy */

extern const char TD_SOURCE_HASH_KEY[]; /* in __metadata__ of what td_quantize writes */

/**
 * From here on a layer's weights by role are these, instead of those of the files; rotation leaves them alone.
 * @param weights [TD_ROLE_COUNT], borrowed; data NULL: not replaced. Rows in the order of the files. NULL: nothing is
 * replaced any more. While no other thread reads.
 */
void td_checkpoint_replace(td_checkpoint *c, uint32_t layer, const td_tensor_view *weights);

/** The tensor of that exact name, or NULL. */
const td_safetensors_entry *td_checkpoint_find(const td_checkpoint *c, const char *name);

/**
 * Identity of the weights, never 0: XXH3 over every shard (in the order of their names): its header, its size, and 64
 * samples of 4 KiB at fixed places of the payload. Renaming, copying and touching files do not change it; config.json does
 * not either. A folder that td_quantize wrote carries the hash of its source, and that is what this gives. 0 for dummy
 * weights.
 */
uint64_t td_checkpoint_source_hash(const td_checkpoint *c);

/** Let the pages of the files that were read go from this process's memory; views stay valid, and are read again when they
 * are touched. */
void td_checkpoint_release_pages(const td_checkpoint *c);
void td_checkpoint_release(const td_checkpoint *c, const void *at,
                           size_t bytes); /* those of a view alone, which need not lie in a file */

/** td_safetensors_fetch from the file that `at` lies in; `at` where that is none. */
const void *td_checkpoint_fetch(const td_checkpoint *c, const void *at, size_t bytes, void *buffer);

/** Files, in the order of their names. */
size_t                td_checkpoint_files(const td_checkpoint *c);
const td_safetensors *td_checkpoint_file(const td_checkpoint *c, size_t index);

/* ---- by role --------------------------------------------------------------------------------- */

/** Owns the bytes of views that are not straight from the file. Zero-initialise; views live until reset. */
typedef struct {
    void **blocks;
    size_t n, room;
} td_scratch;

void td_scratch_reset(td_scratch *s); /* frees everything; the scratch can be used again */

/** What a weight stored in codes is given as; any other is BF16, F16 or F32 as stored. */
typedef enum {
    TD_FORM_FLOAT,         /* F32, decoded (model/stored_weight.h) */
    TD_FORM_FLOAT_OR_INT8, /* I8 with scales where it is int8 with a scale per row; else decoded */
    TD_FORM_STORED,        /* out->coded; scales and zeros are not looked at */
    TD_FORM_CODES,         /* the same, and out is empty for a weight that is not in codes: nothing is made */
} td_weight_form;

/**
 * The weight of a role, ready for td_npu_ops.weight_create: of the expected shape; aligned; the rows that RoPE turns put
 * from pairs into halves (of coded ones row_of says where they are). The fallback of td_tensor_spec is applied. A rotated
 * model's weights are decoded, in F32; one that was replaced (td_checkpoint_replace) is what it was replaced with, in
 * whatever form. out->data and out->coded are NULL (and TD_OK returned) when a model of this configuration has no such
 * weight.
 * @param scratch holds the bytes where they are made, permuted or realigned; file views live until td_checkpoint_close.
 * @return TD_ENOTFOUND (missing tensor), TD_EFORMAT (shape, dtype), TD_ENOTSUP (a dtype that is not read), TD_EIO,
 * TD_ENOMEM.
 */
TD_NODISCARD td_status td_checkpoint_get(const td_checkpoint *c, const td_model_config *config, td_role role, uint32_t layer,
                                         uint32_t expert, td_weight_form form, td_scratch *scratch, td_tensor_view *out,
                                         td_error *err);

/** The same of no expert, with the rows in the checkpoint's order, for another checkpoint. */
TD_NODISCARD td_status td_checkpoint_get_unturned(const td_checkpoint *c, const td_model_config *config, td_role role,
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
 * becomes 0 when the first has no tensor. mtp_turned is whether they are a rotated model's, in the folder or since
 * td_checkpoint_rotate.
 */
void td_checkpoint_look_at_mtp(const td_checkpoint *c, td_model_config *config);

/**
 * Put the rope rows of a matrix [n, k] or vector [n] from pairs (2i, 2i+1) into halves (i, i + rope/2): of every rows.block
 * rows, the last rows.rope. Row bytes move whole, so any dtype works; scales move with their rows.
 * @param data  [n, k], written; not in->data.   @param scale [n], written when in->scale is not NULL.
 */
void td_rope_deinterleave_rows(const td_tensor_view *in, td_rope_rows rows, void *data, float *scale);

#endif

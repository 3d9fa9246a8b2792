/* The device tier's weights of a model, by layer and role. Routed experts are among them only if td_model_part.experts is
 * set; else they are in the expert store. */
#ifndef TD_MODEL_WEIGHTS_H
#define TD_MODEL_WEIGHTS_H

#include "model/checkpoint/checkpoint.h"
#include "model/device_file.h"
#include "model/shard.h"
#include "npu/npu.h"

typedef struct {
    td_npu_weight *role[TD_ROLE_COUNT]; /* of the shapes of td_tensor_spec_get, a card's part of it; NULL: no such weight */
} td_role_weights;

/** Matrices of a layer's routed experts, [n_experts] each; NULL where they are not on the device. */
typedef struct {
    td_npu_weight **gate, **up, **down;
} td_layer_experts;

typedef struct {
    td_role_weights   model;    /* roles of the whole model: embedding, final norm, head (the embedding again when tied) */
    td_role_weights  *layers;   /* [n_layers + n_mtp_layers] */
    td_layer_experts *experts;  /* [n_layers + n_mtp_layers] */
    td_npu_weight    *rope;     /* [max_pos, rope dim] */
    td_npu_weight    *rope_far; /* the same of layers with compressed rows; NULL if there are none */
} td_model_weights;

/** The part of a model that is loaded: some layers, and with `whole` the roles of the whole model, too. An MTP layer alone
 * brings the embedding and the last norm. */
typedef struct {
    td_layer_range layers;
    bool           whole;
    bool           experts;      /* routed experts are on the device, too */
    uint32_t       expert_group; /* they are INT4G, and so many columns share a scale; 0: they are not, or it is not known */
    uint32_t       resident;     /* of a layer's routed experts so many at a time, beside the CPU's; 0: none */
    uint32_t       streamed;     /* experts of all layers that pass through it, so many at a time; 0: none do */
} td_model_part;

/** How the device tier keeps a weight. Linears: in int8 with w8a8; else in bf16, or all in f32 if the checkpoint has some in
 * codes. */
td_weight_format td_model_weight_format(const td_model_config *c, const td_tensor_spec *spec, bool w8a8);

/**
 * Find whether a linear that would be W8A8 is stored in groups of codes that the device keeps as they are.
 * @param format in: from td_model_weight_format. out: if so, INT4G or FP4G, and view is a view of the codes; else unchanged.
 */
TD_NODISCARD td_status td_model_find_groups(const td_checkpoint *ck, const td_model_config *c, td_role role, uint32_t layer,
                                            uint32_t expert, td_scratch *scratch, td_tensor_view *view,
                                            td_weight_format *format, td_error *err);

/** Bytes that the device takes for all weights of the part. @param shard the card's; its count must pass td_shard_check. */
uint64_t td_model_weights_bytes(td_npu *d, const td_model_config *c, const td_model_part *part, td_shard shard, bool w8a8,
                                uint32_t max_pos);

/**
 * Read, convert and hand over the card's share of every weight of the part. Weights that `kept` has are taken from there.
 * Logs progress. The MTP layer shares the model's embedding, and its head unless the model is rotated; a checkpoint whose
 * copies differ is refused (TD_ENOTSUP).
 * @param max_pos rows of the rope table: the longest sequence.
 * @param kept  what td_model_weights_keep wrote from the same checkpoint on such a device, or NULL; must live as long as the
 *              weights. Another card's parts in it are not taken.
 * @param all_kept  whether nothing was converted.
 * On failure *w holds what was loaded; td_model_weights_free frees that too.
 */
TD_NODISCARD td_status td_model_weights_load(td_npu *d, const td_model_config *c, const td_model_part *part, td_shard shard,
                                             const td_checkpoint *ck, bool w8a8, uint32_t max_pos,
                                             const td_device_file *kept, td_model_weights *w, bool *all_kept, td_error *err);

/**
 * Write the weights to a file for td_device_file_open, once the blocks that use them exist.
 * @param path each card has its own.  @param source_hash of the checkpoint.
 */
TD_NODISCARD td_status td_model_weights_keep(td_npu *d, const td_model_config *c, td_shard shard, const td_model_weights *w,
                                             const char *path, const char *tag, uint64_t source_hash, td_pool *pool,
                                             td_error *err);

void td_model_weights_free(td_npu *d, const td_model_config *c, td_model_weights *w);

#endif

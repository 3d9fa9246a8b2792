/* Filling the expert store: from packed files, from a checkpoint, or with random weights. */
#ifndef TD_MODEL_EXPERTS_LOAD_H
#define TD_MODEL_EXPERTS_LOAD_H

#include "cpu_experts/cpu_experts.h"
#include "model/checkpoint/checkpoint.h"
#include "residency/resident_experts.h"

/** The path in `dir` of the packed experts of the index-th layer that has experts, from 0; MTP layers come last. Cut when
 * too long. */
void td_expert_file_path(char *out, size_t size, const char *dir, uint32_t index);

/** Check that the packed file of every layer of the store is there, complete, of this shape, and made from this checkpoint.
 * Weights are not read. */
TD_NODISCARD td_status td_expert_files_check(const td_experts_config *ec, const char *dir, const td_checkpoint *ck,
                                             td_error *err);

/** Load the experts of some layers, which are those of the store; logs progress. @param dir packed files, or NULL: the
 * checkpoint's own experts, packed now. @param fill of each layer, once it is loaded (td_resident_fill); NULL: of none. */
TD_NODISCARD td_status td_experts_load_all(td_experts *x, const td_experts_config *ec, const td_model_config *c,
                                           td_layer_range layers, const td_checkpoint *ck, const char *dir,
                                           td_resident_experts *fill, td_error *err);

typedef enum {
    TD_EXPERTS_NOT_CODED, /* not in codes, or not there */
    TD_EXPERTS_EXACT,     /* in codes that one of the formats holds unchanged */
    TD_EXPERTS_ROUNDED,   /* in codes that have to be rounded again */
} td_stored_experts;

/**
 * The format for experts in codes if nobody chooses one, judged by the first expert of the first MoE layer.
 * @param out the format. EXACT: it holds the codes. ROUNDED: int8 for integers of 8 bits, else int4. NOT_CODED: not written.
 */
TD_NODISCARD td_status td_checkpoint_expert_numbers(const td_checkpoint *ck, const td_model_config *c,
                                                    td_expert_numbers *out, td_stored_experts *stored, td_error *err);

/**
 * Views of one layer's experts in the checkpoint; in codes if they are stored in codes.
 * @param layer of the model.
 * @param out   [n_experts]; its bytes live as scratch and ck do.
 */
TD_NODISCARD td_status td_checkpoint_get_experts(const td_checkpoint *ck, const td_model_config *c, uint32_t layer,
                                                 td_scratch *scratch, td_expert_weights *out, td_error *err);

/**
 * Pack one layer's experts of the checkpoint: code by code if the format holds the codes, else rounded to nearest. Rotated
 * experts are made one at a time.
 * @param layer of the model. @param index of the same layer in x, whose configuration is ec.
 * @param fetch each worker reads a matrix past the system's cache before it packs it (td_checkpoint_files_fetch), so that
 * reading and packing overlap: for weights that are read once, by a pool of one subpool.
 * @return TD_EFORMAT for an impossible scale or zero, with file and tensor; or what reading and packing return.
 */
TD_NODISCARD td_status td_checkpoint_pack_experts(const td_checkpoint *ck, const td_model_config *c, uint32_t layer,
                                                  td_experts *x, const td_experts_config *ec, uint32_t index, bool fetch,
                                                  td_error *err);

#endif

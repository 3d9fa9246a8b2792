/* Filling the expert store: from packed files, from a checkpoint, or with random weights. */
#ifndef TD_MODEL_EXPERTS_LOAD_H
#define TD_MODEL_EXPERTS_LOAD_H

#include "cpu_experts/cpu_experts.h"
#include "model/checkpoint/checkpoint.h"

/** Packed experts of the index-th MoE layer (0 is the first layer that has experts; MTP layers come last), in `dir`. Cut
 * when too long. */
void td_expert_file_path(char *out, size_t size, const char *dir, uint32_t index);

/** The packed file of every layer of the store: is it there, complete, of this shape, and made from this checkpoint? Weights
 * are not read. */
TD_NODISCARD td_status td_expert_files_check(const td_experts_config *ec, const char *dir, const td_checkpoint *ck,
                                             td_error *err);

/** Load the experts of some layers, which are those of the store; logs progress. @param dir packed files, or NULL: the
 * checkpoint's own experts, packed now. */
TD_NODISCARD td_status td_experts_load_all(td_experts *x, const td_experts_config *ec, const td_model_config *c,
                                           td_layer_range layers, const td_checkpoint *ck, const char *dir, td_error *err);

typedef enum {
    TD_EXPERTS_NOT_CODED, /* or not there */
    TD_EXPERTS_EXACT,     /* a format holds their codes with not one bit changed */
    TD_EXPERTS_ROUNDED,   /* none does */
} td_stored_experts;

/**
 * The format for experts in codes where nobody chooses, judged by the first expert of the first MoE layer.
 * @param out EXACT: what holds them; ROUNDED: what they are rounded to, int8 for integers of 8 bits, int4 else. NOT_CODED:
 * not written.
 */
TD_NODISCARD td_status td_checkpoint_expert_numbers(const td_checkpoint *ck, const td_model_config *c,
                                                    td_expert_numbers *out, td_stored_experts *stored, td_error *err);

/**
 * Views of one layer's experts in the checkpoint, coded ones where they are stored so.
 * @param layer of the model.
 * @param out   [n_experts]; its bytes live as scratch and ck do.
 */
TD_NODISCARD td_status td_checkpoint_get_experts(const td_checkpoint *ck, const td_model_config *c, uint32_t layer,
                                                 td_scratch *scratch, td_expert_weights *out, td_error *err);

/**
 * Pack one layer's experts of the checkpoint: code by code where the format carries them, else to nearest. Rotated ones are
 * made one at a time.
 * @param layer of the model. @param index of the same layer in x, whose configuration is ec.
 * @param fetch each worker reads a matrix past the system's cache before it packs it (td_checkpoint_files_fetch), so that
 * reading and packing overlap: for weights that are read once, by a pool of one subpool. @return its codes; of a scale or a
 * zero that is none, with file and tensor.
 */
TD_NODISCARD td_status td_checkpoint_pack_experts(const td_checkpoint *ck, const td_model_config *c, uint32_t layer,
                                                  td_experts *x, const td_experts_config *ec, uint32_t index, bool fetch,
                                                  td_error *err);

#endif

/* The families of stored weights, each in its own file (stored_weight.h says which tensors they are). */
#ifndef TD_MODEL_CHECKPOINT_STORED_FAMILIES_H
#define TD_MODEL_CHECKPOINT_STORED_FAMILIES_H

#include "model/checkpoint/stored_query.h"
#include "quant/coded_matrix.h"

/** Read the codes of a weight X. @param e X.weight, in F8_E4M3 or I8. */
TD_NODISCARD td_status td_stored_fp8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_int8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
/** @param e X.weight_packed. */
TD_NODISCARD td_status td_stored_packed_int(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_fp4(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
/** @param e X.weight, in I8 or U8, of a checkpoint in FP8. */
TD_NODISCARD td_status td_stored_fp4_beside_fp8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
/** @param e X.qweight. */
TD_NODISCARD td_status td_stored_gptq(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_awq(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);

/** An expert's weight in a tensor of all experts: q->spec->stack.n_experts is not 0. @param plain receives that tensor;
 * NULL if it is in codes. */
TD_NODISCARD td_status td_stored_stack(const stored_query *q, const td_safetensors_entry **plain, td_coded_matrix *out);
bool                   td_stored_stack_exists(const td_checkpoint_files *files, const td_tensor_spec *spec);
/** Whether parts are [columns, rows] in this checkpoint. */
bool td_stored_stack_is_transposed(const td_checkpoint_files *files, const td_tensor_spec *spec);
/** Take an expert's values out of the plain tensor. @param out in scratch, or where they are in the file, perhaps
 * unaligned. */
TD_NODISCARD td_status td_stored_stack_take(const td_tensor_spec *spec, const td_safetensors_entry *plain,
                                            td_scratch *scratch, td_tensor_view *out, td_error *err);
/** The tensor with the scales of a stack in codes. */
const td_safetensors_entry *td_stored_stack_scales(const stored_query *q);

#endif

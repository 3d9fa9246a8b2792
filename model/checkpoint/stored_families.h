/* The families of stored weights, each in its own file (stored_weight.h says which tensors they are). */
#ifndef TD_MODEL_CHECKPOINT_STORED_FAMILIES_H
#define TD_MODEL_CHECKPOINT_STORED_FAMILIES_H

#include "model/checkpoint/stored_query.h"
#include "quant/coded_matrix.h"

/** @param e X.weight, of that type. */
TD_NODISCARD td_status td_stored_fp8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_int8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
/** @param e X.weight_packed. */
TD_NODISCARD td_status td_stored_packed_int(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_fp4(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
/** @param e X.qweight. */
TD_NODISCARD td_status td_stored_gptq(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_awq(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);

#endif

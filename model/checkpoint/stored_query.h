/* What the families of stored weights (stored_weight.h) share: what is asked for, and how tensors are found and checked. */
#ifndef TD_MODEL_CHECKPOINT_STORED_QUERY_H
#define TD_MODEL_CHECKPOINT_STORED_QUERY_H

#include "model/arch/tensor_rules.h"
#include "model/checkpoint/checkpoint_files.h"
#include "model/checkpoint/scratch.h"

/** What a family is asked for: a weight, and the files to find it in. */
typedef struct {
    const td_checkpoint_files *files;
    const td_quant_config     *quant;
    const td_tensor_spec      *spec;
    size_t                     base_len; /* of "X" in spec->name */
    td_scratch                *scratch;  /* for what must be copied; NULL: nothing but headers is looked at */
    td_error                  *err;
} stored_query;

/** The length of "X" if the name is X.weight and the tensor a matrix; else 0: only such tensors may be in codes. */
size_t td_stored_base_length(const td_tensor_spec *spec);

/** X.suffix, or NULL. */
const td_safetensors_entry *td_stored_entry(const stored_query *q, const char *suffix);

/** X.suffix, which must be there. */
TD_NODISCARD td_status td_stored_need(const stored_query *q, const char *suffix, const td_safetensors_entry **out);

/** Whether e is [rows, columns], or, if columns is 1, [rows]. */
bool td_stored_is(const td_safetensors_entry *e, size_t rows, size_t columns);

/** Whether all of its elements are 0; false for types that are not read. */
bool td_stored_all_zero(const td_safetensors_entry *e);

/** TD_EFORMAT unless e, which is X.suffix, is of that type and shape. */
TD_NODISCARD td_status td_stored_check(const stored_query *q, const td_safetensors_entry *e, td_dtype dtype, size_t rows,
                                       size_t columns);

/** TD_EFORMAT unless e has the shape, TD_EIO where its file has become shorter. */
TD_NODISCARD td_status td_stored_check_whole(const stored_query *q, const td_safetensors_entry *e, const size_t *shape,
                                             uint32_t rank);

/** BF16, F16 or F32. */
bool td_stored_is_plain(const td_safetensors_entry *e);

/** A scale in BF16, F16 or F32. @return TD_EFORMAT for any other type. */
TD_NODISCARD td_status td_stored_scale_dtype(const stored_query *q, const td_safetensors_entry *e, td_dtype *out);

/** "FILE: tensor NAME: " before a sentence, and td_fail with it. @param e a tensor of the checkpoint. */
td_status td_stored_fail(const stored_query *q, const td_safetensors_entry *e, td_status status, const char *fmt, ...)
    TD_PRINTF(4, 5);

/** "[12, 34]"; returns text. */
const char *td_shape_text(char *text, size_t size, const size_t *shape, uint32_t rank);

#endif

/*
 * How a checkpoint stores the matrix X.weight: as it is, or as codes in the tensors of one of these families.
 *
 *   tensors of X                                                       family                        file
 *   weight F8_E4M3, weight_scale_inv or weight_scale                   FP8                           stored_fp8.c
 *   weight I8, weight_scale                                            W8A8                          stored_int8.c
 *   weight_packed I32, weight_scale, weight_shape [, weight_zero_point, weight_g_idx]  compressed-tensors int4, int8
 * stored_words.c qweight, qzeros, scales [, g_idx]                                  GPTQ, AWQ stored_words.c weight_packed
 * U8, weight_scale [, weight_global_scale]             MXFP4, NVFP4                  stored_fp4.c
 *
 * Tensors that have a weight of all experts, which gpt-oss has plain or as MXFP4, are in stored_stack.c.
 * Shapes and types are checked against the model's and quantization_config here; values (scales, zeros) where they are read.
 */
#ifndef TD_MODEL_CHECKPOINT_STORED_WEIGHT_H
#define TD_MODEL_CHECKPOINT_STORED_WEIGHT_H

#include "model/arch/tensor_rules.h"
#include "model/checkpoint/checkpoint_files.h"
#include "model/checkpoint/scratch.h"
#include "quant/coded_matrix.h"

/** What a family reads from. */
typedef struct {
    const td_checkpoint_files *files;
    const td_quant_config     *quant;
    const td_tensor_spec      *spec;
    size_t                     base_len; /* of "X" in spec->name */
    td_scratch                *scratch;  /* for what must be copied; NULL: nothing but headers is looked at */
    td_error                  *err;
} stored_query;

typedef struct {
    const td_safetensors_entry *plain; /* BF16, F16 or F32; NULL: coded. Of a stack the tensor of all experts */
    td_coded_matrix             coded;
} td_stored_weight;

/**
 * @param scratch bytes that the codes' views need; NULL: only headers are checked, and coded.group_of is not filled.
 * @return TD_ENOTFOUND, TD_EFORMAT, TD_ENOTSUP, TD_EIO, TD_ENOMEM; sentences name file and tensor.
 */
TD_NODISCARD td_status td_stored_find(const td_checkpoint_files *files, const td_model_config *config,
                                      const td_tensor_spec *spec, td_scratch *scratch, td_stored_weight *out, td_error *err);

/** Whether the checkpoint has the matrix or vector in any of these ways. */
bool td_stored_exists(const td_checkpoint_files *files, const td_tensor_spec *spec);

/** Every scale and zero of a matrix: TD_EFORMAT with file, tensor and place of the first that is impossible. */
TD_NODISCARD td_status td_stored_check_values(const td_checkpoint_files *files, const td_tensor_spec *spec,
                                              const td_coded_matrix *m, td_error *err);

/* ---- the families ---------------------------------------------------------------------------- */

/** @param e X.weight, of that type. */
TD_NODISCARD td_status td_stored_fp8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_int8(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
/** @param e X.weight_packed. */
TD_NODISCARD td_status td_stored_packed_int(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_fp4(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
/** @param e X.qweight. */
TD_NODISCARD td_status td_stored_gptq(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);
TD_NODISCARD td_status td_stored_awq(const stored_query *q, const td_safetensors_entry *e, td_coded_matrix *out);

/** An expert's weight in a tensor of all experts: q->spec->stack.n_experts is not 0. */
TD_NODISCARD td_status td_stored_stack(const stored_query *q, td_stored_weight *out);
bool                   td_stored_stack_exists(const td_checkpoint_files *files, const td_tensor_spec *spec);
/** Its values out of the plain tensor. @param out the scratch's. */
TD_NODISCARD td_status td_stored_stack_take(const td_tensor_spec *spec, const td_safetensors_entry *plain,
                                            td_scratch *scratch, td_tensor_view *out, td_error *err);
/** The tensor that has a coded one's scales. */
const td_safetensors_entry *td_stored_stack_scales(const stored_query *q);

/* ---- what they share ------------------------------------------------------------------------- */

/** X.suffix, or NULL. */
const td_safetensors_entry *td_stored_entry(const stored_query *q, const char *suffix);

/** X.suffix, which must be there. */
TD_NODISCARD td_status td_stored_need(const stored_query *q, const char *suffix, const td_safetensors_entry **out);

bool td_stored_is_plain(const td_safetensors_entry *e); /* BF16, F16 or F32 */

/** Whether e is [rows, columns], or, where columns is 1, [rows]. */
bool td_stored_is(const td_safetensors_entry *e, size_t rows, size_t columns);

/** Whether all of its elements are 0; false for types that are not read. */
bool td_stored_all_zero(const td_safetensors_entry *e);

/** TD_EFORMAT unless e, which is X.suffix, is of that type and shape. */
TD_NODISCARD td_status td_stored_check(const stored_query *q, const td_safetensors_entry *e, td_dtype dtype, size_t rows,
                                       size_t columns);

/** TD_EFORMAT unless e has the shape, TD_EIO where its file has become shorter. */
TD_NODISCARD td_status td_stored_check_whole(const stored_query *q, const td_safetensors_entry *e, const size_t *shape,
                                             uint32_t rank);

/** A scale in BF16, F16 or F32. @return TD_EFORMAT for any other type. */
TD_NODISCARD td_status td_stored_scale_dtype(const stored_query *q, const td_safetensors_entry *e, td_dtype *out);

/** "FILE: tensor NAME: " before a sentence, and td_fail with it. @param e a tensor of the checkpoint. */
td_status td_stored_fail(const stored_query *q, const td_safetensors_entry *e, td_status status, const char *fmt, ...)
    TD_PRINTF(4, 5);

#endif

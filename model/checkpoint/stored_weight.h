/*
 * How a checkpoint stores the matrix X.weight: as it is, or as codes in the tensors of one of these families.
 *
 *   tensors of X                                              family                          file
 *   weight F8_E4M3, weight_scale_inv, scale or weight_scale   FP8                             stored_fp8.c
 *   weight I8, weight_scale                                   W8A8                            stored_int8.c
 *   weight_packed I32, weight_scale, weight_shape
 *       [, weight_zero_point, weight_g_idx]                   compressed-tensors int4, int8   stored_words.c
 *   qweight, qzeros, scales [, g_idx]                         GPTQ, AWQ                       stored_words.c
 *   weight_packed U8, weight_scale [, weight_global_scale]    MXFP4, NVFP4                    stored_fp4.c
 *   weight I8, scale                                          MXFP4 beside FP8                stored_fp4.c
 *
 * Tensors with the weights of all experts, plain, or as MXFP4 as gpt-oss has them, are in stored_stack.c. Shapes and types
 * are checked here, against the model's and quantization_config. Values (scales, zeros) are checked where they are read.
 */
#ifndef TD_MODEL_CHECKPOINT_STORED_WEIGHT_H
#define TD_MODEL_CHECKPOINT_STORED_WEIGHT_H

#include "model/arch/tensor_rules.h"
#include "model/checkpoint/checkpoint_files.h"
#include "model/checkpoint/scratch.h"
#include "quant/coded_matrix.h"

typedef struct {
    td_tensor_spec found; /* as the checkpoint has it: its own, or in a tensor of all experts (.stack) */
    const td_safetensors_entry *
        plain; /* BF16, F16 or F32, or integers where the spec has them; for a stack, the tensor of all experts; NULL: in codes */
    td_coded_matrix coded;
} td_stored_weight;

/**
 * @param scratch bytes that the codes' views need; NULL: only headers are checked, and coded.group_of is not filled.
 * @return TD_ENOTFOUND, TD_EFORMAT, TD_ENOTSUP, TD_EIO, TD_ENOMEM; sentences name file and tensor.
 */
TD_NODISCARD td_status td_stored_find(const td_checkpoint_files *files, const td_model_config *config,
                                      const td_tensor_spec *spec, td_scratch *scratch, td_stored_weight *out, td_error *err);

/** Whether the checkpoint has the matrix or vector in any of these ways. */
bool td_stored_exists(const td_checkpoint_files *files, const td_tensor_spec *spec);

/** Check every scale and zero of a matrix. @return TD_EFORMAT with file, tensor and place of the first that is
 * impossible. */
TD_NODISCARD td_status td_stored_check_values(const td_checkpoint_files *files, const td_tensor_spec *spec,
                                              const td_coded_matrix *m, td_error *err);

#endif

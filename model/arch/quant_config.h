/*
 * quantization_config of config.json: how a checkpoint's weights are stored.
 *
 * It tells what the stored tensors mean. Which modules are quantised is told by the tensors themselves (X.weight_packed and
 * so on), not by its lists. A tensor that fits nothing here is refused (model/checkpoint/stored_weight.h).
 */
#ifndef TD_MODEL_ARCH_QUANT_CONFIG_H
#define TD_MODEL_ARCH_QUANT_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tandem.h"

struct json_t;

typedef enum {
    TD_QUANT_NONE,
    TD_QUANT_FP8, /* DeepSeek: e4m3 with a scale per block */
    TD_QUANT_GPTQ,
    TD_QUANT_AWQ,
    TD_QUANT_MXFP4, /* gpt-oss: e2m1 in groups of 32, the experts of a layer in one tensor (model/checkpoint/stored_stack.c)
                     */
    TD_QUANT_COMPRESSED, /* compressed-tensors, which is also what td_quantize writes */
    TD_QUANT_MODELSLIM,  /* "ascend": quant_model_description.json says the rest */
} td_quant_method;

/** How some of the weights are stored. */
typedef struct {
    uint8_t bits;      /* 4 or 8 */
    bool    is_float;  /* e2m1 or e4m3 */
    bool    symmetric; /* integers: zeros are half of the range */
    bool    act_order; /* integers in groups: X.g_idx or X.weight_g_idx says which group a column is in, and must be there */
    uint32_t group;    /* columns that share a scale; 0: the whole row (of e4m3: or the whole matrix) */
    uint32_t block_rows; /* e4m3: rows that share a scale, where group is not 0; else 0 */
} td_quant_scheme;

#define TD_QUANT_SCHEMES_MAX 8

typedef struct {
    td_quant_method method;
    uint32_t        n_schemes;
    td_quant_scheme scheme[TD_QUANT_SCHEMES_MAX];
    bool            gptq_v2;      /* GPTQ zeros are stored as they are, not less by one */
    char            refusal[200]; /* a sentence if weights stored this way cannot be read, else "" */
} td_quant_config;

/**
 * @param q quantization_config. What is not known, or known and not supported, becomes out->refusal, which dummy weights
 * ignore.
 * @return TD_EFORMAT when q is not an object, or has a value that is impossible; err names the key.
 */
TD_NODISCARD td_status td_quant_config_parse(const struct json_t *q, td_quant_config *out, td_error *err);

/**
 * The path of the file with which ModelSlim describes a folder ("X.weight": "FLOAT", "W8A8_DYNAMIC" …). Such folders need no
 * quantization_config.
 * @return false: the folder has none, or the path is longer than size.
 */
bool td_modelslim_description(const char *dir, char *path, size_t size);

/** What a folder of ModelSlim stores. */
td_quant_config td_quant_config_modelslim(void);

/** Whether int8 weights with a scale per row, as td_quantize writes them, are among what is stored. */
bool td_quant_config_has_int8(const td_quant_config *q);

#endif

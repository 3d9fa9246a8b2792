/*
 * A weight matrix [n, k] in the codes of a quantised checkpoint, read where the files' bytes lie (any alignment,
 * little-endian).
 *
 *   weight[r, c] = value(code[r, c]) * scale[r, g] * factor,   g = group of column c
 *   value: int8, e4m3, e2m1 of the code, or code - zero[r, g] of an unsigned code
 *
 * The layouts are those of compressed-tensors, AutoGPTQ and GPTQModel, AutoAWQ and DeepSeek-V3's FP8 release;
 * model/checkpoint/stored_*.c says which tensors they are.
 */
#ifndef TD_QUANT_CODED_MATRIX_H
#define TD_QUANT_CODED_MATRIX_H

#include <stdbool.h>

#include "core/memory/mem.h"
#include "kernels/product/tile_gemm.h"

typedef enum {
    TD_CODES_INT8,         /* [n, k] int8 */
    TD_CODES_E4M3,         /* [n, k] bytes */
    TD_CODES_E2M1,         /* [n, k / 2] bytes, the even column in the low nibble */
    TD_CODES_ROW_WORDS,    /* [n, ceil(k / p)] words of p = 32 / bits unsigned codes, the first column in the lowest bits */
    TD_CODES_COLUMN_WORDS, /* GPTQ: [ceil(k / p), n] words, word [j, r] has columns j * p and following of row r */
    TD_CODES_AWQ_WORDS,    /* [k, n / 8] words of eight 4-bit codes: from the lowest bits on rows 0, 2, 4, 6, 1, 3, 5, 7 */
} td_codes_layout;

typedef enum {
    TD_ZEROS_NONE,      /* half of the codes' range: 8 or 128 */
    TD_ZEROS_ROW_WORDS, /* [ceil(n / p), groups] words, word [j, g] has rows j * p and following */
    TD_ZEROS_GPTQ,      /* [groups, ceil(n / p)] words */
    TD_ZEROS_AWQ,       /* [groups, n / 8] words, rows in AWQ's order */
} td_zeros_layout;

typedef struct td_coded_matrix {
    td_codes_layout codes;
    uint8_t         bits; /* of a code */
    size_t          n, k;
    size_t          stored_n, stored_k; /* of the tensors; the matrix is all of them, or a window (td_coded_window) */
    size_t          first_row, first_column, first_group; /* where the window begins; 0 for all */
    const uint32_t *row_of; /* [n] where row r is stored; NULL: row r is first_row + r. All functions take r */
    const void     *data;
    td_dtype        scale_dtype; /* F32, BF16, F16, F8_E4M3 or F8_E8M0 */
    const void     *scale; /* of row r and group g at element (r / scale_rows) * scale_row_step + g * scale_group_step */
    size_t          scale_rows, scale_row_step, scale_group_step;
    size_t          group; /* columns that share a scale; the last group may be shorter. Functions count from first_group */
    const uint32_t *group_of; /* [k] group of each column where it is not column / group, else NULL */
    td_zeros_layout zeros;
    const void     *zero;
    uint8_t         zero_add;  /* added to a stored zero, modulo the codes' range (1: GPTQ's first format) */
    bool            symmetric; /* the checkpoint says that every zero is half of the range, stored or not */
    float           factor;    /* on the whole matrix */
} td_coded_matrix;

static inline size_t td_coded_groups(const td_coded_matrix *m) {
    return td_div_up(m->k, m->group);
}

/** Whether windows of so many columns, each beginning where the one before ends, cut no group. */
bool td_coded_divides(const td_coded_matrix *m, size_t columns);

/**
 * Rows first_row .. first_row + n - 1 and columns first_column .. first_column + k - 1 of m, over the same bytes.
 * @param first_column a multiple of k, which td_coded_divides.
 */
td_coded_matrix td_coded_window(const td_coded_matrix *m, size_t first_row, size_t n, size_t first_column, size_t k);

/** Whether codes are unsigned, and a zero is subtracted from them; other codes are signed numbers themselves. */
static inline bool td_coded_is_unsigned(const td_coded_matrix *m) {
    return m->codes >= TD_CODES_ROW_WORDS;
}

/** What is wrong with a matrix's scales and zeros. */
typedef enum {
    TD_CODED_OK,
    TD_CODED_SCALE, /* a scale that is not a positive number; e4m3 may also be 0, and scales of unsigned codes may be
                     * negative */
    TD_CODED_ZERO,  /* a zero that is not half of the range, and symmetric is set */
} td_coded_fault;

/** Check every scale and zero. @param row, group  where the first fault is. */
td_coded_fault td_coded_check(const td_coded_matrix *m, size_t *row, size_t *group);

/** Codes of columns first .. first + n - 1 of a row, a byte each as stored: int8 and e4m3 bytes, e2m1 nibbles, unsigned
 * integers. */
void td_coded_codes(const td_coded_matrix *m, size_t row, size_t first, size_t n, uint8_t *out);

/** @param scale [groups], the factor left out. @return false on TD_CODED_SCALE. */
bool td_coded_scales(const td_coded_matrix *m, size_t row, float *scale);

/** Unsigned codes only. @param zero [groups]. @return false on TD_CODED_ZERO. */
bool td_coded_zeros(const td_coded_matrix *m, size_t row, uint8_t *zero);

/**
 * The weights of a row, each rounded to f32 once or twice: value * scale, which is exact but with f32 scales and codes of
 * more than one bit, times factor where it is not 1. @param out [k]. @return false on a fault of a scale or zero of this
 * row.
 */
bool td_coded_row(const td_coded_matrix *m, size_t row, float *out);

/** Tiles that hold a matrix without changing a bit (kernels/product/tile_gemm.h). */
typedef enum { TD_CODED_ROUNDED, TD_CODED_INT4G, TD_CODED_FP4G } td_coded_tiles;

#define TD_CODED_ROW_GROUP 128
/** Which tiles in groups can hold the matrix code by code, and their groups; TD_CODED_ROUNDED: none. A scale for whole rows
 * serves groups of TD_CODED_ROW_GROUP. */
td_coded_tiles td_coded_exact_tiles(const td_coded_matrix *m, td_gemm_groups *groups);

/**
 * One row code by code for a tile in groups that can hold it: of m's size, or of any where a row of m has one scale.
 * Weights of 0 beyond its columns.
 * @param k    padded, a multiple of groups->size.
 * @param out  of this row: rows [k], scale and zero [k / size], factor [1].
 * @return false on a fault of a scale or zero of this row.
 */
bool td_coded_tile_row(const td_coded_matrix *m, size_t row, const td_gemm_groups *groups, size_t k,
                       const td_gemm_weights *out);

#endif

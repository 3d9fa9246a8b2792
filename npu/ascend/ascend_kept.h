/*
 * A weight as it is kept before blocks lay it out: rows on the device. For the files that make weights and lay them out.
 *
 * DESIGN. Rows are int8 with scales, bf16 or f32, or a checkpoint's 4-bit codes in groups. Products take these codes with
 * rows of bf16, of linears (ascend_weight.c) and of routed experts (ascend_stack.c). Where rows come as int8, or the groups
 * are none that the operation takes, the weight is the codes' values, rounded to int8.
 */
#ifndef TD_NPU_ASCEND_ASCEND_KEPT_H
#define TD_NPU_ASCEND_ASCEND_KEPT_H

#include "npu/ascend/ascend_kind.h"
#include "npu/block_weights.h"
#include "quant/coded_matrix.h"

#define TD_ASCEND_WEIGHT_ALIGNMENT 512
#define TD_ASCEND_NZ_N 32 /* outputs and inputs of a tile */
#define TD_ASCEND_NZ_K 16

/** What a weight has become for attention: two arrays at most. */
typedef struct {
    bool   made;
    size_t sizes[6]; /* that it was made for */
    void  *at[2];    /* the second lies behind the first */
} td_ascend_form;

struct td_npu_weight {
    td_weight_shape   shape;  /* first; its format as it is kept: not FP4G */
    td_gemm_groups    groups; /* of INT4G */
    char             *rows;   /* device: td_ascend_rows_bytes; NULL once it is laid out */
    td_ascend_matrix *matrix; /* that it is part of, counted; */
    td_ascend_stack  *stack;  /* or this one */
    td_ascend_form    form;
};

/** The format in which products with a linear take it. */
static inline td_weight_format td_ascend_taken_as(td_weight_format kept) {
    return td_weight_is_grouped(kept) ? TD_WEIGHT_W8A8 : kept;
}

size_t td_ascend_element_bytes(td_weight_format format); /* of formats without groups */
/** Bytes of [n, k] without scales. Of INT4G: rows of ceil(k / 2) bytes, the even column in the low nibble, codes 0 to 15. */
size_t td_ascend_codes_bytes(td_weight_format format, size_t n, size_t k);
/** The same with what follows: [n] f32 of W8A8; of INT4G [n, groups] f32 scales, then [n, groups] bytes, the zeros.
 * @param group of INT4G: columns that share a scale. */
size_t td_ascend_rows_bytes(td_weight_format format, size_t group, size_t n, size_t k);

/** The rows on the host as products with linears take them: codes of 4 bits become int8. To be freed.
 * @return NULL: err says why. */
char *td_ascend_bring(td_ascend_npu *d, const td_npu_weight *w, td_error *err);
/** The same as they are kept. */
char *td_ascend_bring_kept(td_ascend_npu *d, const td_npu_weight *w, td_error *err);
/** Give the rows' device memory back; the weight is laid out. */
void td_ascend_forget_rows(td_ascend_npu *d, const td_npu_weight *w);
/** One array after another to the device: `host` becomes *out, and is freed whatever comes of it. NULL, and what follows a
 * failure, is left out. @return so_far, or what has failed. */
TD_NODISCARD td_status td_ascend_send(td_ascend_npu *d, td_status so_far, void *host, size_t bytes, void **out,
                                      td_error *err);
/** An int8 row [k] as output n of a matrix in NZ of k_to inputs. */
void td_ascend_place_nz(const int8_t *row, size_t k, size_t k_to, size_t n, int8_t *nz);

#define TD_ASCEND_BAD_SCALE \
    "a weight has a scale that is no positive number, or a zero where the checkpoint says it has none"

/** A checkpoint's codes as rows of INT4G, code by code. @param host zeroed, of td_ascend_rows_bytes. */
TD_NODISCARD td_status td_ascend_int4_convert(const td_coded_matrix *m, const td_gemm_groups *groups, char *host,
                                              td_error *err);
/** Columns of INT4G that share a scale. One scale for whole rows is kept as that of a group which may be larger. */
static inline size_t td_ascend_int4_group(const td_npu_weight *w) {
    return w->groups.size < w->shape.k ? w->groups.size : w->shape.k;
}
/** The code of column c of row r, in [0, 15]. */
static inline unsigned td_ascend_int4_code(const char *rows, size_t k, size_t r, size_t c) {
    return (unsigned)((const uint8_t *)rows)[r * ((k + 1) / 2) + c / 2] >> (c % 2 ? 4 : 0) & 15;
}

/** A matrix of 4-bit codes as products take it, before it is sent. */
typedef struct {
    size_t   n, k, group;
    uint8_t *codes;          /* [k, n], two a byte along n, the even output in the low nibble, two's complement */
    td_bf16 *scale, *offset; /* [k / group, n]; a weight is (code + offset) * scale */
} td_ascend_int4;

/** Row r of rows [n, m->k] of INT4G, as they are kept, as output `to` of m, whose codes are zero there. */
void td_ascend_place_int4(const char *rows, size_t n, size_t r, const td_ascend_int4 *m, size_t to);

#endif

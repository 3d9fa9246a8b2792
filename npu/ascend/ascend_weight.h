/*
 * Weights on a card, and the layouts that blocks give them.
 *
 * DESIGN. A weight is created as rows: int8 with scales, bf16 or f32. The first block that uses it lays it out, once, on the
 * host: the rows are brought back, reordered, sent, and freed. Matrices that are multiplied with the same rows become one
 * (gate and up; q, k and v), so that a product of all of them is one launch. Other blocks of the same weights find the
 * layout made.
 *
 * INT8. The weight of a product x W^T is stored [k, n] in NZ, tiles of 16 x 32 bytes: [ceil(n / 32)][ceil(k / 16)][16][32]
 * (aclnnQuantMatmulV4: "k0 = 16, n0 = 32"; docs/zh/context/data_format.md). Each part begins at a multiple of 32 outputs;
 * what lies between is zero, and so are its scale and output.
 *
 * INT4. A checkpoint's 4-bit codes in groups are multiplied with rows of bf16: no operation of these cards takes them with
 * int8 rows (aclnnWeightQuantBatchMatmulV2). [k, n] without tiles, two codes a byte along n, the even output in the low
 * nibble, two's complement (ops-nn, aclnn_convert_weight_to_int4_pack.cpp). A weight is (code + offset) * scale with scale
 * and offset [groups, n] in bf16. So a checkpoint's code less 8 is the code, and 8 less its zero the offset, which is
 * exact; a scale of f16 or f32 is rounded to bf16. Where rows come as int8, where an operation takes int8 alone
 * (MlaProlog), and for groups that the operation does not take, the values are rounded to int8.
 *
 * Attention's operation takes latents of 512, rope parts of 64 and powers of two of heads. What is smaller is filled up with
 * zeros where it is made: rows of weights (td_ascend_part).
 */
#ifndef TD_NPU_ASCEND_ASCEND_WEIGHT_H
#define TD_NPU_ASCEND_ASCEND_WEIGHT_H

#include "npu/ascend/ascend_kind.h"
#include "npu/block_weights.h"

#define TD_ASCEND_PARTS_MAX 4

/* The table's functions, as in td_npu_ops. */
size_t                 td_ascend_weight_bytes(td_npu *d, td_weight_format format, uint32_t group, size_t n, size_t k);
TD_NODISCARD td_status td_ascend_weight_create(td_npu *d, td_weight_format format, const td_tensor_view *src,
                                               td_npu_weight **out, td_error *err);
void                   td_ascend_weight_destroy(td_npu *d, td_npu_weight *w);

/** A weight [n, k] as part of a matrix, with its bias. */
typedef struct {
    const char          *what;     /* "q_a", for sentences */
    const td_npu_weight *w, *bias; /* bias: [n] f32 or NULL */
    size_t               n, k;     /* that it must have */
    /**
     * Outputs in blocks of lead + rope: the lead's become lead_to, the two halves of rope become halves of rope_to, and
     * blocks_to blocks are made, the last ones of zeros. lead 0: outputs stay as they are.
     */
    size_t lead, lead_to, rope, rope_to, blocks_to;
    /**
     * Outputs in heads of which the first `rotated` are rotated, value i with value i + rotated / 2. The two halves of that
     * part become the beginnings of the head's halves: operations which rotate whole heads then rotate the same pairs.
     * rotated 0, or head: outputs stay as they are.
     */
    size_t head, rotated;
    bool   pairs; /* the halves' values in turns, as operations want it that rotate pairs */
    bool   int8;  /* its rows are int8: 4-bit codes are rounded to it */
} td_ascend_part;

struct td_ascend_matrix {
    td_weight_format format;                              /* TD_WEIGHT_W8A8 or INT4G, else rows of BF16 or F32 */
    size_t           n, k;                                /* of the product: all parts, filled up */
    size_t           n_parts, first[TD_ASCEND_PARTS_MAX]; /* output where each part begins */
    void            *data;
    float           *scale;              /* [n] of W8A8 */
    size_t           group;              /* of INT4G: inputs that share a scale */
    td_bf16         *scale16, *offset16; /* of INT4G: [k / group, n] */
    void            *bias;               /* [n], f32 of W8A8 and INT4G, else bf16; NULL: none */
    size_t           refs, bytes;
    bool             owns_data;
    td_ascend_part   parts[TD_ASCEND_PARTS_MAX];
};

/**
 * The matrix of these parts, made or found.
 * @param k_to inputs: beyond the parts' k they are zero.
 */
TD_NODISCARD td_status td_ascend_matrix_of(td_ascend_npu *d, const td_ascend_part *parts, size_t n_parts, size_t k_to,
                                           const td_ascend_matrix **out, td_error *err);

/** Where the rows of a weight lie, as they were created; NULL in *out where w is NULL. @return TD_EINVAL: it is laid out. */
TD_NODISCARD td_status td_ascend_plain_of(const td_npu_weight *w, const char *what, const void **out, td_error *err);
/** A vector [k] times factor, with zeros up to k_to behind it. */
TD_NODISCARD td_status td_ascend_scaled_vector_of(td_ascend_npu *d, const td_npu_weight *w, size_t k, size_t k_to,
                                                  double factor, const char *what, const void **out, td_error *err);
/** Vectors [n] of f32, their values placed as a part's outputs are: those of a norm of heads that are partly rotated. w NULL:
 * none. */
TD_NODISCARD td_status td_ascend_rotated_vector_of(td_ascend_npu *d, const td_npu_weight *w, size_t n, size_t head,
                                                   size_t rotated, const char *what, const void **out, td_error *err);
/** The same in bf16. @return NULL in *out where a value is none of bf16. */
TD_NODISCARD td_status td_ascend_bf16_vector_of(td_ascend_npu *d, const td_npu_weight *w, size_t k, size_t k_to,
                                                double factor, const char *what, const void **out, td_error *err);
/** A rope table [positions, dim] f32 in bf16, its halves filled up to those of dim_to by what does not rotate. */
TD_NODISCARD td_status td_ascend_rope_both_of(td_ascend_npu *d, const td_npu_weight *w, size_t dim, size_t dim_to,
                                              const void **table, size_t *positions, td_error *err);
/**
 * A rope table [positions, dim] f32 as tables of cos and sin, [positions, dim_to] bf16 each, both halves written out;
 * where dim_to is more than dim the rest is not rotated.
 */
TD_NODISCARD td_status td_ascend_rope_of(td_ascend_npu *d, const td_npu_weight *w, size_t dim, size_t dim_to,
                                         const void **cos, const void **sin, size_t *positions, td_error *err);
/** kv_b [heads * (nope + v), kv_lora] as W_UK [heads_to, nope, lora_to] and W_UV [heads, lora_to, v], bf16. */
TD_NODISCARD td_status td_ascend_heads_of(td_ascend_npu *d, const td_npu_weight *w, size_t heads, size_t heads_to,
                                          size_t nope, size_t v, size_t lora, size_t lora_to, const void **w_uk,
                                          const void **w_uv, td_error *err);
bool                   td_ascend_weight_is_int8(const td_npu_weight *w); /* as products take it */

/** Rows and, where they are int8, their scales: what a product takes. */
typedef struct {
    td_ascend_view x, scale;
} td_ascend_input;

/** x as int8 rows, in the block's codes and scale. */
td_ascend_input td_ascend_codes_of(td_ascend_run *r, const td_npu_block *b, td_ascend_view x);
/** x as products with m take it: quantised into the block's codes and scale where m is W8A8, else as it is. */
td_ascend_input td_ascend_input_of(td_ascend_run *r, const td_npu_block *b, const td_ascend_matrix *m, td_ascend_view x);
/** The same for a block's input [., width], which may come as int8. */
td_ascend_input td_ascend_block_input(td_ascend_run *r, const td_npu_block *b, const td_ascend_matrix *m, const void *in,
                                      td_rows_i8 in_i8, size_t width);
/** Whether a matrix is of int8 or 4-bit codes. */
static inline bool td_ascend_is_coded(const td_ascend_matrix *m) {
    return m->format == TD_WEIGHT_W8A8 || m->format == TD_WEIGHT_INT4G;
}
/** Tensors of part i of a matrix of W8A8, for the operation that is being prepared: [k, n] in NZ, its scales [1, n]. */
td_acl_tensor *td_ascend_tensor_part(td_ascend_run *r, const td_ascend_matrix *m, size_t i);
td_acl_tensor *td_ascend_tensor_part_scale(td_ascend_run *r, const td_ascend_matrix *m, size_t i);
/** out [., m->n] = x m^T + bias, bf16; f32 where m is. */
void td_ascend_op_matrix(td_ascend_run *r, td_ascend_input in, const td_ascend_matrix *m, td_ascend_view out);
/** The same, out [., n] where m may be filled up to more: by way of `filled`, scratch for [., m->n]. */
void td_ascend_op_matrix_to(td_ascend_run *r, td_ascend_input in, const td_ascend_matrix *m, char *filled,
                            td_ascend_view out);

#endif

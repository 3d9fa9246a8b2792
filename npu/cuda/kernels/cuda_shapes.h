/* Sizes that the kernels and those who launch them agree on: threads of a block, and what a block computes. */
#ifndef TD_NPU_CUDA_SHAPES_H
#define TD_NPU_CUDA_SHAPES_H

#define TD_CUDA_EMBED_THREADS 128 /* a thread: eight values */
#define TD_CUDA_EMBED_VALUES (TD_CUDA_EMBED_THREADS * 8)
#define TD_CUDA_ROW_THREADS 1024  /* a block: one row that is normed or becomes codes */
#define TD_CUDA_SHORT_THREADS 256 /* the same of a row of up to SHORT_MAX values */
#define TD_CUDA_SHORT_MAX 4096
#define TD_CUDA_MIDDLE_THREADS 512 /* the same of a row of up to MIDDLE_MAX values that is normed */
#define TD_CUDA_MIDDLE_MAX 8192
#define TD_CUDA_NORM_MAX 16384   /* values of a row that is normed */
#define TD_CUDA_QUANT_STRIDE 64  /* rows of codes are padded with zeros to a multiple of it, those of int8 weights too */
#define TD_CUDA_EACH_THREADS 256 /* a thread: eight values, one by one */
#define TD_CUDA_EACH_VALUES (TD_CUDA_EACH_THREADS * 8)

/* Products of few rows: a block computes TD_CUDA_TILE_N outputs of all rows; its warps share k. */
#define TD_CUDA_LINEAR_THREADS 256
#define TD_CUDA_TILE_N 16
#define TD_CUDA_LINEAR_ROWS_MAX 64

#define TD_CUDA_COLUMNS_N 512   /* of weights by columns: outputs of a block, 64 a warp */
#define TD_CUDA_F32_THREADS 256 /* f32 products: a block has one output of a row, or F32_OUTPUTS of F32_ROWS rows */
#define TD_CUDA_F32_OUTPUTS 4
#define TD_CUDA_F32_ROWS 8

/* Weights of four bits in groups: k of a warp at a time, and what their scales are. */
#define TD_CUDA_GROUP_BLOCK 128
#define TD_CUDA_SCALE_F32 0
#define TD_CUDA_SCALE_BF16 1
#define TD_CUDA_SCALE_F16 2
#define TD_CUDA_SCALE_E4M3 3
#define TD_CUDA_SCALE_E8M0 4

/* Attention: keys go in tiles; spans of some tiles are computed by themselves and then merged in order (td_span_keys). */
#define TD_CUDA_PAGE 128 /* TD_KV_PAGE */
#define TD_CUDA_TILE_KEYS 64
#define TD_CUDA_SPAN_TILES 2     /* of a span at least */
#define TD_CUDA_SPANS 32         /* of a row at most */
#define TD_CUDA_LATENT_SPANS 16  /* of a row of absorbed latent attention, whose sums are large */
#define TD_CUDA_ATTN_THREADS 128 /* four warps of 16 rows */
#define TD_CUDA_PREFILL_ROWS 64
#define TD_CUDA_DECODE_HEADS 16 /* of one group that a block takes together */
#define TD_CUDA_MERGE_THREADS 128
#define TD_CUDA_MERGE_COLUMNS 4 /* of a thread, where a head has more values than a block has threads */
#define TD_CUDA_MERGE_VALUES(dim) (TD_CUDA_MERGE_THREADS * ((dim) > TD_CUDA_MERGE_THREADS ? TD_CUDA_MERGE_COLUMNS : 1))
/** Dynamic shared memory for rows of at most dk and values of at most dv: 64 or 128 (GQA), 192 and 128 (expanded).
 * Decode's has two tiles, and behind them maxima of four warps and sums of their lanes. */
#define TD_CUDA_TILE_BYTES(dk, dv) (TD_CUDA_TILE_KEYS * ((dk) + 8 + (dv) + 8) * 2)
#define TD_CUDA_PREFILL_SHARED(dk, dv) (TD_CUDA_PREFILL_ROWS * ((dk) + 8) * 2 + TD_CUDA_TILE_BYTES(dk, dv))
#define TD_CUDA_DECODE_SHARED(d) (2 * TD_CUDA_TILE_BYTES(d, d) + TD_CUDA_DECODE_HEADS * ((d) + 8) * 2 + 4 * 16 * 5 * 4)

/* Absorbed latent attention: a block takes HEADS (16 or 64) heads of a row through a span. Rows in shared memory have the
 * latent, of up to LATENT_MAX, and behind it the rope part: of heads, and of two tiles of keys. Behind them are two halves of
 * scores, and a factor for each head. 64 heads need a card that has 162.25 KiB of shared memory. */
#define TD_CUDA_LATENT_MAX 512
#define TD_CUDA_LATENT_ROPE_MAX 64
#define TD_CUDA_LATENT_STRIDE (TD_CUDA_LATENT_MAX + TD_CUDA_LATENT_ROPE_MAX + 8)
#define TD_CUDA_LATENT_KEYS 32
#define TD_CUDA_LATENT_THREADS 256
#define TD_CUDA_LATENT_PLACE_THREADS 256 /* a thread: four values */
#define TD_CUDA_LATENT_PLACE_VALUES (TD_CUDA_LATENT_PLACE_THREADS * 4)
#define TD_CUDA_LATENT_SHARED(heads) \
    (((heads) + 2 * TD_CUDA_LATENT_KEYS) * TD_CUDA_LATENT_STRIDE * 2 + (2 * TD_CUDA_LATENT_KEYS + 1) * (heads)*4)
#define TD_CUDA_EXPANDED_NOPE_MAX 128
#define TD_CUDA_EXPANDED_DV_MAX 128
#define TD_CUDA_EXPAND_KEYS 64  /* of a block */
#define TD_CUDA_EXPAND_OUT 128  /* outputs of a head, of a block */
#define TD_CUDA_EXPAND_DEPTH 64 /* columns that are fetched at a time */
#define TD_CUDA_EXPAND_SHARED (2 * (TD_CUDA_EXPAND_KEYS + TD_CUDA_EXPAND_OUT) * (TD_CUDA_EXPAND_DEPTH + 8) * 2)

/* A block: one row. In its shared memory are keys, 256 or 512 where there are not more experts; behind them scores, and what
 * groups are worth. */
#define TD_CUDA_ROUTE_THREADS 256
#define TD_CUDA_ROUTE_PADDED(experts) ((experts) <= 256 ? 256 : (experts) <= 512 ? 512 : (experts))
#define TD_CUDA_ROUTE_SHARED(experts) ((TD_CUDA_ROUTE_PADDED(experts) + 2 * (experts)) * 4u)

/* A router's scores, in the order of td_router_score: softmax over all experts, sigmoid, softmax over the chosen. */
#define TD_CUDA_SCORE_SOFTMAX 0
#define TD_CUDA_SCORE_SIGMOID 1
#define TD_CUDA_SCORE_SOFTMAX_CHOSEN 2

/* Routed experts: where the parts of one's matrix lie on the card (cuda_weight.h); those that its format has. */
#define TD_CUDA_PLACE_THREADS 256
typedef struct {
    unsigned long long data, scale, zero, factor;
} td_cuda_expert_matrix;

/* As in core/expert_id.h and npu.h: cuda_resident.c holds them to each other. */
#define TD_CUDA_ID_RESIDENT 0x8000
#define TD_CUDA_NO_SLOT 0xffff
#define TD_CUDA_SLOT_ELSEWHERE 0xfffe

#define TD_CUDA_PACKED_BF16_N 64 /* outputs of a block, of experts in bf16 */

/* Matrices of routed experts that lie in slots (packed.cuh): gate and up, whose tiles take turns, or down. */
typedef struct {
    unsigned long long slot_bytes;          /* from slot to slot */
    unsigned           n, k;                /* outputs of a matrix; inputs, padded as tiles are */
    unsigned           nr, run, flip;       /* td_tile_layout */
    unsigned           n_matrices, n_tiles; /* 2 or 1; of all matrices together */
    unsigned           has_bias;
    /* 4-bit groups: how many k share a scale, and what scales are; bytes before the first block of k, and of a block; 2 to
     * the power of block_shift: k of a block */
    unsigned group_size, scale_kind, scale_bytes, has_zeros, head_bytes, block_bytes, block_shift;
} td_cuda_packed;
typedef struct {
    unsigned long long tile, bias; /* bytes from the beginning of a slot */
} td_cuda_packed_tile;

/* As in kernels/exact_sum.h, which has the method. cuda_experts.c includes both, so a compiler refuses another value
 * here. */
#define TD_EXACT_MAX 262143.0f
#define TD_EXACT_HIGH_UNIT 0x1p-4f
#define TD_EXACT_LOW_UNIT 0x1p-26f
#define TD_EXACT_CARRY_BITS 22
#define TD_EXACT_HIGH 786432.0f
#define TD_EXACT_LOW 0.1875f
#define TD_EXACT_HIGH_BITS 0x49400000u
#define TD_EXACT_LOW_BITS 0x3E400000u
#define TD_EXACT_WORD_MAX (1 << 27)
#define TD_EXACT_BLOCK 16

/* Sums over cards: cards of a group, and values that a thread adds at a time. */
#define TD_CUDA_CARDS 8
#define TD_CUDA_SUM_THREADS 256
#define TD_CUDA_SUM_VALUES 8

/* The hand-over to the host's experts: arrays of rows at most; vectors of 16 bytes that a thread has on their way, bytes of a
 * block; blocks at most. */
#define TD_CUDA_CARRIED 4
#define TD_CUDA_CARRY_THREADS 512
#define TD_CUDA_CARRY_FLIGHT 4
#define TD_CUDA_CARRY_BYTES (TD_CUDA_CARRY_THREADS * TD_CUDA_CARRY_FLIGHT * 16)
#define TD_CUDA_CARRY_BLOCKS 32

/* The kernels that a card's bounds are measured with: products of a thread that do not wait for each other, and blocks for
 * each multiprocessor of the card. */
#define TD_CUDA_BOUND_THREADS 256
#define TD_CUDA_BOUND_CHAINS 8
#define TD_CUDA_BOUND_READ_BLOCKS 6 /* what every generation holds at a time: 1536 threads */
#define TD_CUDA_BOUND_MMA_BLOCKS 2
#define TD_CUDA_BOUND_INT8_OPS (2 * 16 * 8 * 32) /* of a warp's product */
#define TD_CUDA_BOUND_BF16_OPS (2 * 16 * 8 * 16)

#define TD_CUDA_TOP_THREADS 512
#define TD_CUDA_TOP_PART (TD_CUDA_TOP_THREADS * 8) /* logits of a block */
#define TD_CUDA_TOP_MERGE_THREADS 1024
#define TD_CUDA_TOP_MAX 2048 /* logits of a row that are found at most */

#endif

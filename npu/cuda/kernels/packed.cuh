/*
 * Routed experts in slots of the card's memory, packed as the CPU tier packs them: what their products share.
 *
 * Why slots keep that layout. An expert that becomes resident is copied once, as it lies in the CPU's memory or in its file,
 * and nothing has to be computed before it can be used. The same bytes serve when it leaves the card. A tile is a poorer fit
 * for the matrix instruction than the rows of linear_w8a8.cu: codes of neighbouring rows lie beside each other, 4 or 8 k of
 * each. So a lane loads 4 to 16 bytes at a time instead of 16. A warp's loads are of whole sectors of 32 bytes all the same,
 * and it is bytes that a product of few rows waits for. Where offsets come from is kernels/product/packed_expert.h, for the
 * whole expert, and tile_gemm.h there, for a tile.
 */
#ifndef TD_NPU_CUDA_PACKED_CUH
#define TD_NPU_CUDA_PACKED_CUH

#include "npu/cuda/kernels/experts.cuh"

/* Where experts lie. */
struct packed_slots {
    const td_cuda_packed      *shape;
    const td_cuda_packed_tile *tiles;
    const td_exchange         *slots; /* other slots may be written meanwhile */
    const unsigned short      *slot_of;
};

/** The beginning of an expert, or NULL: it has no slot. */
TD_FN const td_u8 *packed_expert_at(const packed_slots &s, td_u32 expert) {
    const td_u32 slot = s.slot_of[expert];
    if (slot == TD_CUDA_NO_SLOT) return nullptr;
    const td_exchange *at = s.slots + slot * (s.shape->slot_bytes / sizeof *at);
    if (blockIdx.y == 0 && threadIdx.x == 0) td_exchange_used(at, s.shape->slot_bytes / sizeof *at, false);
    return reinterpret_cast<const td_u8 *>(at);
}

/** TD_CUDA_TILE_N outputs of a tile, which a block or a part of it computes; tile NULL: there are none. Slots of the matrix
 * instruction's 16 rows are numbered g + 8 * half. */
struct packed_part {
    const td_u8 *tile;
    const float *bias;   /* [nr] or NULL */
    td_u32       part;   /* 0, or of tiles of 32 rows 1 */
    td_u32       matrix; /* 1: up */
    td_u32       column; /* of the tile's first row */
};

TD_FN packed_part packed_part_at(const packed_slots &s, const td_u8 *expert, td_u32 number) {
    const td_cuda_packed &p = *s.shape;
    const td_u32          parts = p.nr / TD_CUDA_TILE_N, tile = number / parts;
    if (tile >= p.n_tiles) return {nullptr, nullptr, 0, 0, 0};
    const td_cuda_packed_tile at = s.tiles[tile];
    return {expert + at.tile, p.has_bias ? reinterpret_cast<const float *>(expert + at.bias) : nullptr, number % parts,
            tile % p.n_matrices, tile / p.n_matrices * p.nr};
}

/** The row of its tile that a slot is, where a byte has a code of two rows, nr / 2 apart. */
TD_FN td_u32 row_of_pair(td_u32 nr, td_u32 part, td_u32 slot) {
    return part * 8 + slot % 8 + slot / 8 * (nr / 2);
}

/** The codes of both rows of four bytes, one a byte, in [0, 15]. */
TD_FN td_u32 low_codes(td_u32 four) {
    return four & 0x0f0f0f0fu;
}
TD_FN td_u32 high_codes(td_u32 four, td_u32 flip) {
    return (four >> 4 & 0x0f0f0f0fu) ^ flip;
}

/** [places, n] each: where values of gate go, or of down; where those of up do. */
struct packed_out {
    float *out, *up;
};

TD_FN void packed_store(const packed_out &out, const packed_part &p, td_u32 n, size_t place, td_u32 row, float v) {
    if (p.bias) v += p.bias[row];
    (p.matrix ? out.up : out.out)[place * n + p.column + row] = v;
}

#endif

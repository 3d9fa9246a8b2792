/* Where tiles lie: splitting the tiles of a matrix over shards, and the offsets within a shard. */
#include "core/error.h"
#include "cpu_experts/expert_state.h"

td_status td_expert_layout_init(expert_layout *l, const td_experts_config *c, const td_tile_layout *tiles, uint32_t n_shards,
                                td_error *err) {
    *l = (expert_layout){
        .n_experts = c->n_experts, .hidden = c->hidden, .inter = c->inter, .groups = c->groups, .n_shards = n_shards};
    if (!c->n_layers || !c->n_experts || c->n_experts > UINT16_MAX || !c->hidden || !c->inter)
        return td_fail(err, TD_EINVAL,
                       "experts need at least one layer, expert, hidden and intermediate value, and at most %d experts",
                       UINT16_MAX);
    if (c->hidden > TD_GEMM_K_MAX || c->inter > TD_GEMM_K_MAX)
        return td_fail(err, TD_ENOTSUP, "experts of hidden size %u and intermediate size %u: at most %d is supported",
                       c->hidden, c->inter, TD_GEMM_K_MAX);
    if (c->format == TD_EXPERT_INT4G && !td_int4g_takes(&c->groups))
        return td_fail(err, TD_ENOTSUP,
                       "experts in groups of %u weights: int4 takes 32, 64 or 128, with scales in bf16, f16 or f32",
                       c->groups.size);
    if (c->format == TD_EXPERT_FP4G && !td_fp4g_takes(&c->groups))
        return td_fail(err, TD_ENOTSUP,
                       "experts in groups of %u weights: fp4 takes 32 with scales in e8m0 or 16 in e4m3, and no zeros",
                       c->groups.size);
    if (!n_shards || n_shards > TD_POOL_SUBPOOLS_MAX)
        return td_fail(err, TD_EINVAL, "%u expert shards: 1 to %d", n_shards, TD_POOL_SUBPOOLS_MAX);

    l->hidden_k = td_round_up(c->hidden, tiles->kr);
    l->inter_k = td_round_up(c->inter, tiles->kr);
    l->n_gate = (c->inter + tiles->nr - 1u) / tiles->nr;
    l->n_down = (c->hidden + tiles->nr - 1u) / tiles->nr;
    l->sizes = (td_expert_sizes){.nr = tiles->nr,
                                 .gate_tile_bytes = td_tile_bytes(tiles, l->hidden_k, &l->groups),
                                 .down_tile_bytes = td_tile_bytes(tiles, l->inter_k, &l->groups),
                                 .bias = c->bias};
    for (uint32_t s = 0; s < n_shards; s++) {
        expert_shard *sh = &l->shard[s];
        sh->gate_tile0 = l->n_gate * s / n_shards;
        sh->down_tile0 = l->n_down * s / n_shards;
        sh->expert.n_gate = (uint32_t)(l->n_gate * (s + 1) / n_shards - sh->gate_tile0);
        sh->expert.n_down = (uint32_t)(l->n_down * (s + 1) / n_shards - sh->down_tile0);
        sh->expert.bytes = td_piece_bytes(&l->sizes, &sh->expert);
        sh->bytes = td_round_up(sh->expert.bytes * c->n_experts, TD_FILE_BLOCK); /* < 2^16 * 2^36: no overflow */
        l->layer_bytes += sh->bytes;
    }
    return TD_OK;
}

/* The shard that a tile lies in; tile becomes its number there. */
static uint32_t shard_of(const expert_layout *l, td_expert_matrix m, size_t *tile) {
    uint32_t s = 0;
    for (size_t n; *tile >= (n = m == TD_EXPERT_DOWN ? l->shard[s].expert.n_down : l->shard[s].expert.n_gate); s++)
        *tile -= n;
    return s;
}

size_t td_expert_bias_offset(const expert_layout *l, size_t expert, td_expert_matrix m, size_t tile, uint32_t *shard) {
    const td_expert_piece *p = &l->shard[ *shard = shard_of(l, m, &tile)].expert;
    return expert * p->bytes + td_piece_bias_at(&l->sizes, p, m, tile);
}

size_t td_expert_tile_offset(const expert_layout *l, size_t expert, td_expert_matrix m, size_t tile, uint32_t *shard) {
    const td_expert_piece *p = &l->shard[ *shard = shard_of(l, m, &tile)].expert;
    return expert * p->bytes + td_piece_tile_at(&l->sizes, p, m, tile);
}

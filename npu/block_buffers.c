#include "npu/block_buffers.h"

#include "kernels/exact_sum.h"

#define ADD(pointer, bytes)         \
    list[n++] = (td_block_buffer) { \
        (void **)&(pointer), bytes  \
    }
#define ADD_I8(rows, width) ADD((rows).q, width), ADD((rows).scale, sizeof(float))

size_t td_block_buffers(td_block_desc *desc, td_dtype act_dtype, td_block_buffer list[TD_BLOCK_BUFFERS_MAX]) {
    size_t n = 0, act = td_dtype_bytes(desc->rows_f32 ? TD_DT_F32 : act_dtype);
    switch (desc->kind) {
        case TD_BLOCK_EMBED:
            ADD(desc->embed.out, td_streams_of(desc->embed.streams) * desc->embed.hidden * act);
            ADD(desc->embed.images, 0);
            break;
        case TD_BLOCK_NORM:
            ADD(desc->norm.x, td_streams_of(desc->norm.streams) * desc->norm.hidden * act);
            ADD(desc->norm.add, td_streams_of(desc->norm.streams) * desc->norm.hidden * act);
            ADD(desc->norm.out, desc->norm.out_stride ? desc->norm.out_stride * act
                                                      : td_streams_of(desc->norm.streams) * desc->norm.hidden * act);
            ADD_I8(desc->norm.out_i8, desc->norm.hidden);
            ADD(desc->norm.out_f32, desc->norm.hidden * sizeof(float));
            break;
        case TD_BLOCK_MIX:
            ADD(desc->mix.x, (size_t)desc->mix.streams * desc->mix.hidden * act);
            ADD(desc->mix.out, desc->mix.hidden * act);
            ADD_I8(desc->mix.out_i8, desc->mix.hidden);
            ADD(desc->mix.post, (1 + (size_t)desc->mix.streams) * desc->mix.streams * sizeof(float));
            break;
        case TD_BLOCK_SPREAD:
            ADD(desc->spread.x, (size_t)desc->spread.streams * desc->spread.hidden * act);
            ADD(desc->spread.post, (1 + (size_t)desc->spread.streams) * desc->spread.streams * sizeof(float));
            for (int i = 0; i < 3; i++) ADD(desc->spread.add[i], desc->spread.hidden * act);
            break;
        case TD_BLOCK_LINEAR:
            ADD(desc->linear.in, td_streams_of(desc->linear.streams) * desc->linear.k * act);
            ADD(desc->linear.out, td_streams_of(desc->linear.streams) * desc->linear.n * act);
            break;
        case TD_BLOCK_MLA:
            ADD(desc->mla.in, desc->mla.hidden * act);
            ADD_I8(desc->mla.in_i8, desc->mla.hidden);
            ADD(desc->mla.out, desc->mla.hidden * act);
            ADD(desc->mla.kv_latent, 0);
            ADD(desc->mla.kv_rope, 0);
            ADD(desc->mla.index.keys, 0);
            ADD(desc->mla.index.open, 0);
            ADD(desc->mla.index.chosen, td_index_choice(&desc->mla.index) * sizeof *desc->mla.index.chosen);
            break;
        case TD_BLOCK_GQA:
            ADD(desc->gqa.in, desc->gqa.hidden * act);
            ADD_I8(desc->gqa.in_i8, desc->gqa.hidden);
            ADD(desc->gqa.out, desc->gqa.hidden * act);
            ADD(desc->gqa.kv_k, 0);
            ADD(desc->gqa.kv_v, 0);
            break;
        case TD_BLOCK_DELTA:
            ADD(desc->delta.in, desc->delta.hidden * act);
            ADD_I8(desc->delta.in_i8, desc->delta.hidden);
            ADD(desc->delta.out, desc->delta.hidden * act);
            ADD(desc->delta.state, 0);
            ADD(desc->delta.open, 0);
            break;
        case TD_BLOCK_SPARSE:
            ADD(desc->sparse.in, desc->sparse.hidden * act);
            ADD_I8(desc->sparse.in_i8, desc->sparse.hidden);
            ADD(desc->sparse.out, desc->sparse.hidden * act);
            ADD(desc->sparse.kv_rows, 0);
            ADD(desc->sparse.compressed, 0);
            ADD(desc->sparse.keys, 0);
            ADD(desc->sparse.state, 0);
            ADD(desc->sparse.open, 0);
            break;
        case TD_BLOCK_MLP:
            ADD(desc->mlp.in, desc->mlp.hidden * act);
            ADD_I8(desc->mlp.in_i8, desc->mlp.hidden);
            ADD(desc->mlp.out, desc->mlp.hidden * act);
            break;
        case TD_BLOCK_ROUTER:
            ADD(desc->router.in, desc->router.hidden * act);
            ADD(desc->router.in_f32, desc->router.hidden * sizeof(float));
            ADD(desc->router.ids, desc->router.top_k * sizeof(uint16_t));
            ADD(desc->router.weights, desc->router.top_k * sizeof(float));
            ADD(desc->router.slot_of, 0);
            break;
        case TD_BLOCK_EXPERTS:
            ADD(desc->experts.in, desc->experts.hidden * act);
            ADD_I8(desc->experts.in_i8, desc->experts.hidden);
            ADD(desc->experts.ids, desc->experts.top_k * sizeof(uint16_t));
            ADD(desc->experts.weights, desc->experts.top_k * sizeof(float));
            ADD(desc->experts.out, desc->experts.hidden * act);
            break;
        case TD_BLOCK_RESIDENT:
            ADD(desc->resident.slots, 0);
            ADD(desc->resident.slot_of, 0);
            ADD(desc->resident.in, desc->resident.hidden * act);
            ADD_I8(desc->resident.in_i8, desc->resident.hidden);
            ADD(desc->resident.ids, desc->resident.top_k * sizeof(uint16_t));
            ADD(desc->resident.weights, desc->resident.top_k * sizeof(float));
            ADD(desc->resident.sums, td_exact_words(desc->resident.hidden) * sizeof(int32_t));
            break;
        case TD_BLOCK_JOIN:
            for (int i = 0; i < 2; i++) ADD(desc->join.parts[i], td_exact_words(desc->join.hidden) * sizeof(int32_t));
            ADD(desc->join.out, desc->join.hidden * act);
            break;
        case TD_BLOCK_COMBINE:
            ADD(desc->combine.x, desc->combine.hidden * act);
            for (int i = 0; i < 3; i++) ADD(desc->combine.add[i], desc->combine.hidden * act);
            ADD(desc->combine.images, 0);
            break;
        case TD_BLOCK_ALL_REDUCE:
            if (desc->all_reduce.exact) act = sizeof(int32_t);
            ADD(desc->all_reduce.out, desc->all_reduce.width * act);
            for (int i = 0; i < 3; i++) ADD(desc->all_reduce.add[i], desc->all_reduce.width * act);
            break;
        case TD_BLOCK_HEAD:
            ADD(desc->head.x, desc->head.hidden * act);
            ADD(desc->head.logits, 0);
            break;
        case TD_BLOCK_TOP:
            ADD(desc->top.logits, 0);
            ADD(desc->top.top, 0);
            ADD(desc->top.sums, 0);
            break;
        case TD_BLOCK_COUNT: break;
    }
    return n;
}

#include "model/shard.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "model/layer_caches.h"

/* A number of the model that is cut over the cards. */
typedef struct {
    uint32_t    n; /* 0: the model has none */
    const char *what;
} divided;

static uint32_t kv_heads_cut(const td_model_config *c) {
    uint32_t n = td_layer_caches_cut_heads(c, TD_PER_TOKEN);
    return n ? n : td_layer_caches_cut_heads(c, TD_PER_WINDOW);
}

#define N_DIVIDED 7
static void list_divided(const td_model_config *c, bool experts, divided list[N_DIVIDED]) {
    bool dense = td_model_config_moe_layers(c) < c->n_layers + c->n_mtp_layers;
    list[0] = (divided){c->heads, "attention heads"};
    list[1] = (divided){kv_heads_cut(c), "key-value heads"};
    list[2] = (divided){dense ? c->inter : 0, "rows of the dense layers' gate (intermediate_size)"};
    list[3] = (divided){c->shared_inter, "rows of the shared expert's gate"};
    list[4] = (divided){c->vocab, "tokens of the vocabulary"};
    list[5] = (divided){experts ? c->moe_inter : 0, "rows of a routed expert's gate (moe_intermediate_size)"};
    list[6] = (divided){td_layer_caches_cut_heads(c, TD_PER_STATE), "key heads of recurrent layers"};
}

static bool divides_all(uint32_t count, const divided list[N_DIVIDED]) {
    for (size_t i = 0; i < N_DIVIDED; i++)
        if (list[i].n % count) return false;
    return true;
}

td_status td_shard_check(const td_model_config *c, uint32_t count, bool experts, td_error *err) {
    divided list[N_DIVIDED];
    char    sizes[256] = "1"; /* at most 64 numbers of at most four characters */
    list_divided(c, experts, list);
    for (uint32_t n = 2; n <= TD_SHARDS_MAX; n++)
        if (divides_all(n, list)) snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", %u", n);
    if (!count || count > TD_SHARDS_MAX)
        return td_fail(err, TD_EINVAL, "--tensor-parallel-size is 1 to %d, not %u; sizes that would do: %s", TD_SHARDS_MAX,
                       count, sizes);
    if (c->qk_norm_rows && count > 1)
        return td_fail(err, TD_ENOTSUP,
                       "--tensor-parallel-size %u: %s has a norm over all heads of q, and each card has some of them only",
                       count, c->arch_name);
    if (c->sparse.o_groups && count > 1)
        return td_fail(err, TD_ENOTSUP, "--tensor-parallel-size %u: %s attends over compressed rows, and runs on one card",
                       count, c->arch_name);
    for (size_t i = 0; i < N_DIVIDED; i++)
        if (list[i].n % count)
            return td_fail(err, TD_EINVAL,
                           "--tensor-parallel-size %u does not divide the model's %u %s; sizes that would do: %s", count,
                           list[i].n, list[i].what, sizes);
    return TD_OK;
}

td_shard_sizes td_shard_sizes_of(const td_model_config *c, td_shard s) {
    return (td_shard_sizes){c->heads / s.count,         c->kv_heads / s.count,  c->inter / s.count,
                            c->shared_inter / s.count,  c->moe_inter / s.count, c->delta.k_heads / s.count,
                            c->delta.v_heads / s.count, c->vocab / s.count};
}

bool td_shard_part_of(const td_tensor_spec *spec, td_shard s, td_shard_part *out) {
    *out = (td_shard_part){.shape = {spec->shape[0], spec->shape[1]}};
    if (spec->split == TD_SPLIT_CARD_0) return s.index == 0;
    if (spec->split == TD_SPLIT_WHOLE) return true;
    size_t cut = spec->split == TD_SPLIT_COLUMNS ? 1 : 0;
    out->shape[cut] = spec->shape[cut] / s.count;
    out->first[cut] = s.index * out->shape[cut];
    return true;
}

/* config.json of every family: what published files say, overrides, and refusals. */
#include <math.h>

#include "model/arch/config_file.h"
#include "model/arch/families.h"
#include "model/arch/tensor_rules.h"
#include "model/layer_caches.h"
#include "tests/td_test.h"

static td_model_config read_ok(const char *path, const char *override_json) {
    char            full[512];
    td_model_config c;
    td_error        err = {0};
    snprintf(full, sizeof full, TD_SOURCE_DIR "/%s", path);
    if (td_model_config_read(full, override_json, &c, &err) != TD_OK) fail_msg("%s: %s", path, err.text);
    return c;
}

/* What the published config.json files say, by hand. */
TEST(published_shapes) {
    td_model_config c = read_ok("configs/models/deepseek-v3.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_DEEPSEEK_V3);
    assert_int_equal(c.n_layers, 61);
    assert_int_equal(c.n_mtp_layers, 1);
    assert_int_equal(td_model_config_moe_layers(&c), 59);
    assert_int_equal(c.is_moe[2] * 10 + c.is_moe[3], 1);
    assert_int_equal(c.q_lora, 1536);
    assert_int_equal(c.shared_inter, 2048);
    assert_int_equal(c.route_group, TD_GROUP_TOP2_SUM);
    assert_int_equal(c.n_group * 10 + c.topk_group, 84);
    assert_true(c.route_bias && c.norm_topk && c.routed_scale == 2.5 && c.rope.interleaved);
    assert_true(fabs(c.softmax_scale - 0.1352337788608801) < 1e-12);

    c = read_ok("configs/models/deepseek-v2-lite.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_DEEPSEEK_V2);
    assert_int_equal(c.q_lora, 0);
    assert_int_equal(c.shared_inter, 2 * 1408);
    assert_int_equal(c.route_group, TD_GROUP_NONE);
    assert_int_equal(c.route_score, TD_SCORE_SOFTMAX);
    assert_true(!c.route_bias && !c.norm_topk && c.routed_scale == 1);
    assert_int_equal(td_model_config_moe_layers(&c), 26);
    assert_true(fabs(c.softmax_scale - 0.11472138679292612) < 1e-12);

    c = read_ok("configs/models/kimi-k2.json", NULL);
    assert_string_equal(c.model_type, "kimi_k2");
    assert_int_equal(c.n_experts, 384);
    assert_int_equal(c.route_group, TD_GROUP_NONE); /* one group */
    assert_true(c.route_bias && fabs(c.softmax_scale - 0.13086079996295008) < 1e-12);
    assert_int_equal(td_model_config_moe_layers(&c), 60);

    c = read_ok("configs/models/qwen3-30b-a3b.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_QWEN3_MOE);
    assert_int_equal(c.heads * 1000 + c.kv_heads, 32004);
    assert_int_equal(c.head_dim, 128);
    assert_true(c.qk_norm && !c.qkv_bias && c.norm_topk && !c.rope.interleaved && c.shared_inter == 0);
    assert_true(fabs(c.softmax_scale - 1 / sqrt(128)) < 1e-12);
}

/* GLM-4.5 and Air: half of each head is rotated; a part of it in `rope_parameters`, too. */
TEST(parts_of_heads_are_rotated) {
    td_model_config c = read_ok("configs/models/glm-4.5.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_GLM4_MOE);
    assert_int_equal(c.head_dim, 128);
    assert_int_equal(c.rope.dim, 64);
    assert_true(c.qk_norm && c.qkv_bias && c.route_bias && c.norm_topk && !c.rope.interleaved && c.routed_scale == 2.5);
    assert_int_equal(c.n_mtp_layers, 1);
    assert_int_equal(td_model_config_moe_layers(&c), 90); /* the MTP layer's among them */
    assert_true(fabs(c.softmax_scale - 1 / sqrt(128)) < 1e-12);
    c = read_ok("configs/models/glm-4.5-air.json", NULL);
    assert_true(!c.qk_norm && c.qkv_bias && c.shared_inter == 1408 && c.routed_scale == 1);
    assert_int_equal(td_model_config_moe_layers(&c), 46);
    c = read_ok("tests/data/golden/glm4_moe_yarn", NULL);
    assert_int_equal(c.rope.dim, 8);
    assert_int_equal(c.route_group, TD_GROUP_TOP2_SUM);
    c = read_ok("configs/models/glm-4.5.json",
                "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5, \"partial_rotary_factor\": 0.25}}");
    assert_true(c.rope.dim == 32 && c.rope.theta == 5e5);
}

/* GLM-4.7-Flash: V3's attention with other heads; which layers are dense is said in two ways. */
TEST(glm_flash) {
    td_model_config c = read_ok("configs/models/glm-4.7-flash.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_GLM4_MOE_LITE);
    assert_true(c.q_lora == 768 && c.kv_lora == 512 && c.nope_dim == 192 && c.rope_dim == 64 && c.v_dim == 256);
    assert_true(c.rope.dim == 64 && c.rope.interleaved && c.route_bias && c.route_group == TD_GROUP_NONE);
    assert_int_equal(td_model_config_moe_layers(&c), 46);
    assert_true(fabs(c.softmax_scale - 1.0 / 16) < 1e-12);
    c = read_ok("tests/data/golden/glm4_moe_lite", NULL);
    assert_true(!c.is_moe[0] && c.is_moe[1] && !c.is_moe[2] && c.is_moe[3]);
    c = read_ok(
        "configs/models/glm-4.7-flash.json",
        "{\"q_lora_rank\": null, \"num_hidden_layers\": 2, \"mlp_layer_types\": [\"sparse\", \"dense\"],"
        "\"n_group\": 4, \"topk_group\": 2, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}}");
    assert_true(c.q_lora == 0 && c.is_moe[0] && !c.is_moe[1] && c.route_group == TD_GROUP_TOP2_SUM && c.rope.theta == 5e5);
}

/* MiniMax-M2: rotary_dim, or the factor that transformers writes. */
TEST(minimax) {
    td_model_config c = read_ok("configs/models/minimax-m2.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_MINIMAX_M2);
    assert_true(c.qk_norm && c.qk_norm_rows && c.rope.dim == 64 && c.head_dim == 128 && c.rope.theta == 5e6);
    assert_true(c.moe_inter == 1536 && c.shared_inter == 0 && c.route_bias && c.norm_topk && c.routed_scale == 1);
    assert_int_equal(td_model_config_moe_layers(&c), 62);
    c = read_ok(
        "configs/models/minimax-m2.json", /* keys of the published M2.x that say nothing of the 62 layers */
        "{\"use_mtp\": true, \"num_mtp_modules\": 3, \"mtp_transformer_layers\": 1, \"mlp_intermediate_size\": 8192, "
        "\"attn_type_list\": [1, 1], \"sliding_window\": null, \"quantization_config\": {\"quant_method\": \"fp8\", "
        "\"fmt\": \"float8_e4m3fn\", \"activation_scheme\": \"dynamic\", \"weight_block_size\": [128, 128], "
        "\"modules_to_not_convert\": [\"gate\", \"e_score_correction_bias\", \"lm_head\"]}}");
    assert_true(c.n_mtp_layers == 0 && c.quant.method == TD_QUANT_FP8 && !c.quant.refusal[0]);
    c = read_ok("configs/models/minimax-m2.json", "{\"rotary_dim\": null, \"rope_theta\": null}");
    assert_true(c.rope.dim == 128 && c.rope.theta == 5e6);
    c = read_ok("configs/models/minimax-m2.json",
                "{\"rotary_dim\": null, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e6, "
                "\"partial_rotary_factor\": 0.25}, \"use_routing_bias\": false}");
    assert_true(c.rope.dim == 32 && c.rope.theta == 1e6 && !c.route_bias);
}

/* Kimi-K2.5: what V3 has, from text_config; tokens and stored format are in either place. */
TEST(kimi_k25) {
    td_model_config c = read_ok("configs/models/kimi-k2.5.json", NULL), k2 = read_ok("configs/models/kimi-k2.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_KIMI_K25);
    assert_true(c.hidden == k2.hidden && c.n_experts == 384 && c.rope.factor == 64 && c.max_position == 262144);
    assert_true(c.bos_id == 163584 && c.n_eos == 1 && c.eos_ids[0] == 163585);
    assert_int_equal(td_model_config_moe_layers(&c), 60);
#define GROUPS                                                                                                       \
    "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\","            \
    "\"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"int\"," \
    "\"symmetric\": true, \"strategy\": \"group\", \"group_size\": 32}}}}"
    c = read_ok("configs/models/kimi-k2.5.json", "{\"eos_token_id\": 163586, \"text_config\": {" GROUPS "}}");
    assert_true(c.n_eos == 2 && c.quant.method == TD_QUANT_COMPRESSED && c.quant.scheme[0].group == 32);
    c = read_ok("configs/models/kimi-k2.5.json", "{\"architectures\": [\"Kimi_K25ForConditionalGeneration\"], " GROUPS "}");
    assert_true(c.quant.method == TD_QUANT_COMPRESSED && c.arch == &TD_ARCH_KIMI_K25_OF_TRANSFORMERS);
}

/* DeepSeek-V4: which layers have compressed rows, and what these and their indexer keep; two rope tables. */
TEST(compressed_rows) {
    td_model_config c = read_ok("configs/models/deepseek-v4-flash.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_DEEPSEEK_V4);
    assert_true(c.n_mtp_layers == 1 && td_model_streams(&c) == 4 && td_model_width(&c) == 16384);
    assert_true(c.sparse.ratio[1] == 0 && c.sparse.ratio[2] == 4 && c.sparse.ratio[3] == 128 && c.sparse.ratio[42] == 4);
    assert_true(c.sparse.by_token[2] && !c.sparse.by_token[3] && td_model_config_moe_layers(&c) == 44);
    assert_true(c.route_score == TD_SCORE_SQRT_SOFTPLUS && c.routed_scale == 1.5 && c.shared_inter == 2048);
    assert_true(c.expert_glu.limit == 10 && c.expert_glu.up_add == 0 && c.rope.dim == 64 && c.rope_far.dim == 64);
    assert_true(c.rope.kind == TD_ROPE_PLAIN && c.rope.theta == 1e4 && c.rope_far.kind == TD_ROPE_YARN);
    assert_true(c.rope_far.theta == 160000 && c.rope_far.attention_factor == 1 && c.max_position == 1048576);
    assert_int_equal(td_layer_caches_of(&c, 0).n, 1);
    td_layer_caches list = td_layer_caches_of(&c, 2);
    assert_true(list.n == 5 && list.cache[0].window == 128 && list.cache[0].values == 512 && list.cache[0].tokens == 0);
    assert_true(list.cache[1].per == TD_PER_STATE && list.cache[1].values == 8 * 640 && list.cache[2].per == TD_PER_OPEN);
    assert_true(list.cache[3].tokens == 4 && list.cache[4].tokens == 4 && list.cache[4].values == 128);
    assert_true(td_layer_caches_of(&c, 3).n == 4 && td_layer_caches_of(&c, 3).cache[1].values == 3 * 512);
    assert_true(td_layer_caches_recurrent(&c, td_all_layers(&c)) && td_layer_caches_one_form_from(&c) == 0);
}

/* DeepSeek-V4's prediction layer has a window alone, experts by their scores, and a mixture of its streams; its tensors are
 * counted from 0. */
TEST(a_prediction_layer_with_streams) {
    static const struct {
        td_role     role;
        const char *name;
        size_t      rows, columns;
    } HAS[] = {{TD_ROLE_Q_A, "mtp.0.attn.wq_a.weight", 1024, 4096},
               {TD_ROLE_ROUTER_BIAS, "mtp.0.ffn.gate.bias", 256, 0},
               {TD_ROLE_EXPERT_DOWN, "mtp.0.ffn.experts.7.w2.weight", 4096, 2048},
               {TD_ROLE_MIX_ATTENTION, "mtp.0.hc_attn_fn", 24, 16384},
               {TD_ROLE_MTP_E_PROJ, "mtp.0.e_proj.weight", 4096, 4096},
               {TD_ROLE_MTP_H_PROJ, "mtp.0.h_proj.weight", 4096, 4096},
               {TD_ROLE_MTP_MIX_HEAD, "mtp.0.hc_head_fn", 4, 16384},
               {TD_ROLE_MTP_NORM, "mtp.0.norm.weight", 4096, 0},
               {TD_ROLE_MTP_EMBED, "mtp.0.emb.tok_emb.weight", 129280, 4096},
               {TD_ROLE_MTP_HEAD, "mtp.0.head.weight", 129280, 4096}};
    static const td_role HAS_NOT[] = {TD_ROLE_COMPRESS_KV, TD_ROLE_INDEX_Q, TD_ROLE_TOKEN_EXPERTS, TD_ROLE_MTP_EH_PROJ};
    td_tensor_spec       s;
    td_model_config      c = read_ok("configs/models/deepseek-v4-flash.json", NULL);
    for (size_t i = 0; i < sizeof HAS / sizeof *HAS; i++) {
        assert_true(td_tensor_spec_get(&c, HAS[i].role, 43, 7, &s));
        assert_string_equal(s.name, HAS[i].name);
        assert_true(s.shape[0] == HAS[i].rows && s.shape[1] == HAS[i].columns);
    }
    for (size_t i = 0; i < sizeof HAS_NOT / sizeof *HAS_NOT; i++)
        assert_false(td_tensor_spec_get(&c, HAS_NOT[i], 43, 0, &s));
    assert_true(td_tensor_spec_get(&c, TD_ROLE_Q_A, 42, 0, &s) && !strcmp(s.name, "layers.42.attn.wq_a.weight"));
    assert_true(td_layer_caches_of(&c, 43).n == 1 && td_layer_caches_of(&c, 43).cache[0].per == TD_PER_WINDOW);
    c = read_ok("configs/models/deepseek-v4-flash.json", "{\"dspark_block_size\": 5}"); /* another module */
    assert_int_equal(c.n_mtp_layers, 0);
    c = read_ok("configs/models/deepseek-v4-flash.json", "{\"num_hidden_layers\": 4}"); /* the list stays as it is */
    assert_int_equal(c.n_mtp_layers, 1);
}

/* DeepSeek-V3.2 and GLM-5: V3's attention to keys that an indexer chooses, in GLM-5.2 not an indexer in every layer. */
TEST(indexers_of_tokens) {
    td_tensor_spec  s;
    td_model_config c = read_ok("configs/models/deepseek-v3.2.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_DEEPSEEK_V32);
    assert_int_equal(td_layer_caches_one_form_from(&c), 2048);
    assert_true(td_model_chooses_tokens(&c) && c.sparse.index_heads == 64 && c.sparse.index_dim == 128);
    assert_true(c.sparse.index_top == 2048 && !c.sparse.index_pairs && c.rope.interleaved && td_model_streams(&c) == 1);
    assert_true(c.n_mtp_layers == 1 && td_model_config_moe_layers(&c) == 59 && !c.is_moe[2] && c.is_moe[3] && c.is_moe[61]);
    assert_true(c.route_group == TD_GROUP_TOP2_SUM && c.n_group == 8 && c.topk_group == 4 && c.eps == 1e-6f);
    for (uint32_t i = 0; i <= 61; i++) assert_int_equal(td_layer_caches_of(&c, i).n, 3);
    td_layer_cache keys = td_layer_caches_of(&c, 61).cache[2];
    assert_true(keys.per == TD_PER_TOKEN && keys.kind == TD_KV_INDEX && keys.values == 128 && keys.heads == 1);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_INDEX_Q, 60, 0, &s) && s.shape[0] == 8192 && s.shape[1] == 1536);
    assert_true(!td_row_order_moves(&s.order) && s.format == TD_WEIGHT_BF16);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_INDEX_K_BIAS, 0, 0, &s) && s.rank == 1);
    assert_string_equal(s.name, "model.layers.0.self_attn.indexer.k_norm.bias");

    c = read_ok("configs/models/glm-5.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_GLM_MOE_DSA);
    assert_true(c.sparse.index_heads == 32 && c.sparse.index_pairs && c.rope.theta == 1e6 && c.eps == 1e-5f);
    assert_true(c.rope.kind == TD_ROPE_PLAIN && c.route_group == TD_GROUP_NONE && c.v_dim == 256 && c.n_eos == 3);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_INDEX_K, 77, 0, &s));
    assert_true(s.order.block == 128 && s.order.rope == 64 && s.order.at == 0); /* the first half of a row is pairs */
    assert_true(td_row_order_place(&s.order, 1) == 2 && td_row_order_place(&s.order, 32) == 1);
    assert_int_equal(td_row_order_place(&s.order, 64), 64);

    c = read_ok("configs/models/glm-5.json", "{\"index_topk_freq\": 4}"); /* as GLM-5.2: 21 of 78 layers */
    uint32_t own = 0;
    for (uint32_t i = 0; i < 78; i++) own += c.sparse.indexed[i];
    assert_true(own == 21 && c.sparse.indexed[0] && c.sparse.indexed[1] && !c.sparse.indexed[2] && c.sparse.indexed[5]);
    assert_true(c.sparse.indexed[78] && td_layer_caches_of(&c, 2).n == 2 && td_layer_caches_of(&c, 5).n == 3);
    assert_false(td_tensor_spec_get(&c, TD_ROLE_INDEX_Q, 2, 0, &s));
    c = read_ok("configs/models/glm-5.json", "{\"num_hidden_layers\": 4, \"index_topk_pattern\": \"FSSF\"}");
    assert_true(c.sparse.indexed[0] && !c.sparse.indexed[1] && !c.sparse.indexed[2] && c.sparse.indexed[3]);
    c = read_ok("configs/models/glm-5.json",
                "{\"num_hidden_layers\": 2, \"indexer_types\": [\"full\", \"shared\"], "
                "\"layer_types\": [\"indexed_attention\", \"indexed_attention\"], "
                "\"mlp_layer_types\": [\"sparse\", \"dense\"]}");
    assert_true(c.sparse.indexed[0] && !c.sparse.indexed[1] && c.is_moe[0] && !c.is_moe[1]);
}

/* GLM-5.3-Flash: Kimi delta attention with a floor, streams, and index keys of several tokens. */
TEST(index_keys_of_several_tokens) {
    td_tensor_spec  s;
    td_model_config c = read_ok("configs/models/glm-5.3-flash.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_GLM5_NEXT);
    assert_true(c.n_layers == 45 && c.n_experts == 288 && c.top_k == 8 && c.routed_scale == 2.5 && c.eps == 1e-5f);
    assert_true(c.rope.dim == 0 && c.rope_dim == 0 && c.nope_dim == 256 && c.q_lora == 1536 && c.expert_glu.limit == 10);
    assert_float_equal(c.softmax_scale, 1.0 / 16, 1e-12);
    assert_true(c.delta.form == TD_DELTA_KIMI && c.delta.k_heads == 64 && c.delta.low == 128 && c.delta.floor == -5);
    assert_true(td_model_streams(&c) == 4 && c.sparse.mix_rounds == 20 && c.sparse.mix_eps == 1e-6f);
    assert_true(td_layer_streams(&c, 44) == 4 && td_layer_streams(&c, 45) == 1 && c.n_mtp_layers == 1);
    assert_true(c.sparse.index_top == 2048 && c.sparse.index_pool == 4 && td_model_index_choice(&c) == 512);
    assert_int_equal(td_layer_caches_one_form_from(&c), 2051);
    for (uint32_t i = 0; i <= 45; i++) {
        assert_true(c.is_delta[i] == (i % 4 != 3 && i < 45) && c.sparse.indexed[i] == !c.is_delta[i] &&
                    c.is_moe[i] == (i > 2));
        assert_int_equal(td_layer_caches_of(&c, i).n, c.is_delta[i] ? 2 : 3);
    }
    const td_layer_caches of = td_layer_caches_of(&c, 45);
    assert_true(of.cache[0].kind == TD_KV_LATENT && of.cache[1].kind == TD_KV_INDEX && of.cache[1].tokens == 4);
    assert_true(of.cache[2].per == TD_PER_OPEN && of.cache[2].values == 2 * TD_STATE_BLOCK * 128);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_INDEX_GATE, 3, 0, &s) && s.shape[0] == 128 && s.shape[1] == 4096);
    assert_string_equal(s.name, "model.language_model.layers.3.self_attn.indexer.index_kpool_compress_gate");
    assert_true(td_tensor_spec_get(&c, TD_ROLE_INDEX_APE, 45, 0, &s) && s.shape[0] == 4 && s.format == TD_WEIGHT_F32);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_MIX_EXPERTS, 44, 0, &s) && s.shape[0] == 24 && s.shape[1] == 4 * 4096);
    assert_false(td_tensor_spec_get(&c, TD_ROLE_MIX_EXPERTS, 45, 0, &s));
    assert_false(td_tensor_spec_get(&c, TD_ROLE_MIX_HEAD, 0, 0, &s));
    assert_true(td_tensor_spec_get(&c, TD_ROLE_MTP_EH_PROJ, 45, 0, &s));
    assert_string_equal(s.name, "model.language_model.layers.45.eh_proj.weight");
    assert_true(td_tensor_spec_get(&c, TD_ROLE_LM_HEAD, 0, 0, &s));
    assert_string_equal(s.name, "lm_head.weight");

    /* as transformers 5 writes it */
    c = read_ok(
        "configs/models/glm-5.3-flash.json",
        "{\"text_config\": {\"linear_attn_config\": null, \"linear_num_heads\": 32, \"linear_head_dim\": 64, "
        "\"linear_lower_bound\": null, \"num_hidden_layers\": 3, \"index_kpool\": 2, "
        "\"layer_types\": [\"linear_attention\", \"deepseek_sparse_attention\", \"indexed_attention\"], "
        "\"indexer_types\": [\"full\", \"full\", \"shared\"], \"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"]}}");
    assert_true(c.delta.k_heads == 32 && c.delta.k_dim == 64 && c.delta.floor == 0 && td_model_index_choice(&c) == 1024);
    assert_true(c.is_delta[0] && !c.is_delta[1] && c.sparse.indexed[1] && !c.sparse.indexed[2] && !c.sparse.indexed[0]);
    c = read_ok("configs/models/glm-5.3-flash.json",
                "{\"text_config\": {\"linear_attn_config\": {\"gate_lower_bound\": null}}}");
    assert_true(c.delta.floor == -5); /* safe_gate */
    c = read_ok("configs/models/glm-5.3-flash.json",
                "{\"text_config\": {\"linear_attn_config\": {\"gate_lower_bound\": null, \"safe_gate\": false}}}");
    assert_true(c.delta.floor == 0);
}

TEST(options_of_glm5_next_are_refused) {
    static const struct {
        const char *override_json, *says;
    } CASES[] = {
        {"{\"index_kpool\": 16}", "text_config.index_kpool is 16, and only 1, 2 and 4"},
        {"{\"index_kpool\": 3}", "text_config.index_kpool is 3"},
        {"{\"index_topk\": 2046}", "text_config.index_topk is 2046, no multiple of index_kpool 4"},
        {"{\"index_kpool_compress\": false}", "text_config.index_kpool_compress is false"},
        {"{\"index_kpool_always_select_tail\": false}", "text_config.index_kpool_always_select_tail is false"},
        {"{\"qk_rope_head_dim\": 64}", "text_config.qk_rope_head_dim is 64"},
        {"{\"mla_use_nope\": false}", "text_config.mla_use_nope is false"},
        {"{\"q_lora_rank\": null}", "text_config.q_lora_rank is null"},
        {"{\"mhc\": false}", "text_config.mhc is false"},
        {"{\"hc_mult\": 1}", "text_config.hc_mult is 1"},
        {"{\"linear_attn_config\": 3}", "text_config.linear_attn_config is not an object"},
        {"{\"linear_attn_config\": {\"gate_lower_bound\": -50}}",
         "text_config.linear_attn_config.gate_lower_bound is not a number"},
        {"{\"linear_attn_config\": {\"num_heads\": 0}}", "text_config.linear_attn_config.num_heads is 0"},
        {"{\"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}",
         "text_config.layer_types[0] is 'sliding_attention'"},
        {"{\"num_hidden_layers\": 2, \"layer_types\": [\"linear_attention\", \"full_attention\"], "
         "\"indexer_types\": [\"full\", \"shared\"]}",
         "layer 1 has no indexer"},
        {"{\"scoring_func\": \"softmax\"}", "scoring_func is 'softmax'"},
        {"{\"swiglu_limit\": 0}", "text_config.swiglu_limit is not a number"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char            json[512];
        td_model_config c;
        td_error        err = {0};
        snprintf(json, sizeof json, "{\"text_config\": %s}", CASES[i].override_json);
        if (td_model_config_read(TD_SOURCE_DIR "/configs/models/glm-5.3-flash.json", json, &c, &err) == TD_OK ||
            !strstr(err.text, CASES[i].says))
            fail_msg("%s: %s", json, err.text);
    }
}

TEST(options_of_indexers_are_refused) {
    static const struct {
        const char *file, *override_json, *says;
    } CASES[] = {
        {"deepseek-v3.2", "{\"q_lora_rank\": null}", "q_lora_rank is null"},
        {"deepseek-v3.2", "{\"index_topk\": 0}", "index_topk is 0"},
        {"deepseek-v3.2", "{\"index_n_heads\": 0}", "index_n_heads is 0"},
        {"deepseek-v3.2", "{\"index_head_dim\": 32}", "qk_rope_head_dim is 64, more than an index head's 32"},
        {"deepseek-v3.2", "{\"num_hidden_layers\": 1, \"layer_types\": [\"full_attention\"]}", "layer_types[0] is 'full_"},
        {"deepseek-v3.2", "{\"num_hidden_layers\": 1, \"layer_types\": [3]}", "layer_types[0] is 'no text'"},
        {"deepseek-v3.2", "{\"scoring_func\": \"softmax\"}", "scoring_func is 'softmax'"},
        {"deepseek-v3.2", "{\"moe_layer_freq\": 2}", "moe_layer_freq is 2"},
        {"deepseek-v3.2", "{\"hidden_act\": \"relu2\"}", "hidden_act is 'relu2'"},
        {"deepseek-v3.2", "{\"indexer_rope_interleave\": 1}", "indexer_rope_interleave is not true or false"},
        {"glm-5", "{\"index_topk_freq\": 0}", "index_topk_freq is 0"},
        {"glm-5", "{\"index_skip_topk_offset\": -1}", "index_skip_topk_offset is -1"},
        {"glm-5", "{\"index_topk_pattern\": \"FS\"}", "index_topk_pattern has 2 layers"},
        {"glm-5", "{\"num_hidden_layers\": 2, \"index_topk_pattern\": \"FX\"}", "[1] is 'another letter'"},
        {"glm-5", "{\"num_hidden_layers\": 2, \"indexer_types\": [\"full\", \"pooled\"]}", "indexer_types[1] is 'pooled'"},
        {"glm-5", "{\"num_hidden_layers\": 2, \"indexer_types\": [\"full\", null]}", "indexer_types[1] is 'no text'"},
        {"glm-5", "{\"num_hidden_layers\": 2, \"indexer_types\": 7}", "indexer_types has 0 layers"},
        {"glm-5", "{\"num_hidden_layers\": 2, \"indexer_types\": [\"shared\", \"full\"]}", "layer 0 has no indexer"},
        {"glm-5", "{\"index_skip_topk_offset\": 0, \"index_topk_freq\": 2}", "layer 0 has no indexer"},
        {"glm-5", "{\"num_hidden_layers\": 2, \"mlp_layer_types\": [\"sparse\"]}", "mlp_layer_types has 1 layers"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char            path[512];
        td_model_config c;
        td_error        err = {0};
        snprintf(path, sizeof path, TD_SOURCE_DIR "/configs/models/%s.json", CASES[i].file);
        td_status s = td_model_config_read(path, CASES[i].override_json, &c, &err);
        if (s == TD_OK || !strstr(err.text, CASES[i].says))
            fail_msg("%s: status %d, '%s'", CASES[i].override_json, s, err.text);
    }
}

/* gpt-oss: every second layer slides; YaRN whose range is not rounded; the softmax of the chosen. */
TEST(layers_slide) {
    td_model_config c = read_ok("configs/models/gpt-oss-20b.json", NULL);
    assert_ptr_equal(c.arch, &TD_ARCH_GPT_OSS);
    assert_int_equal(td_model_config_moe_layers(&c), 24);
    assert_true(c.moe_inter == 2880 && c.n_experts == 32 && c.top_k == 4 && c.route_score == TD_SCORE_SOFTMAX_CHOSEN);
    assert_true(c.qkv_bias && c.expert_bias && !c.norm_topk && c.routed_scale == 1 && c.shared_inter == 0);
    assert_true(c.expert_glu.alpha == 1.702f && c.expert_glu.limit == 7 && c.expert_glu.up_add == 1);
    assert_true(c.rope.kind == TD_ROPE_YARN && c.rope.theta == 150000 && !c.rope.truncate && c.rope.dim == 64);
    assert_int_equal(c.max_position, 131072);
    assert_int_equal(td_layer_caches_of(&c, 0).cache[0].window, 128);
    assert_int_equal(td_layer_caches_of(&c, 0).cache[1].window, 128);
    assert_int_equal(td_layer_caches_of(&c, 1).cache[0].window, 0);
    assert_true(td_layer_caches_one_form_from(&c) == 0);
    c = read_ok("configs/models/gpt-oss-120b.json", "{\"layer_types\": null, \"sliding_window\": 64}");
    assert_true(c.n_layers == 36 && c.n_experts == 128 && c.slides[0] && !c.slides[1] && c.slides[34] && !c.slides[35]);
    assert_int_equal(td_layer_caches_of(&c, 34).cache[0].window, 64);
}

TEST(gated_delta_net) {
    td_model_config c = read_ok("configs/models/qwen3-next-80b-a3b.json", NULL);
    assert_true(c.n_layers == 48 && c.n_experts == 512 && c.top_k == 10 && c.norm_topk && c.shared_gate && c.qk_norm);
    assert_true(c.head_dim == 256 && c.rope.dim == 64 && c.rope.theta == 1e7 && !c.rope.interleaved);
    for (uint32_t i = 0; i < 48; i++) assert_true(c.is_delta[i] == (i % 4 != 3) && c.is_moe[i]);
    assert_true(c.delta.k_heads == 16 && c.delta.v_heads == 32 && c.delta.k_dim == 128 && c.delta.v_dim == 128);
    td_tensor_spec s;
    assert_true(td_tensor_spec_get(&c, TD_ROLE_DELTA_QKV, 0, 0, &s) && s.shape[0] == 12288 && s.shape[1] == 2048);
    assert_false(td_tensor_spec_get(&c, TD_ROLE_DELTA_QKV, 3, 0, &s));
    assert_false(td_tensor_spec_get(&c, TD_ROLE_Q, 0, 0, &s));
    assert_true(td_tensor_spec_get(&c, TD_ROLE_Q, 3, 0, &s) && s.shape[0] == 2 * 16 * 256);
    assert_true(c.n_mtp_layers == 1 && !c.is_delta[48] && c.is_moe[48]);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_EXPERT_UP, 48, 7, &s));
    assert_string_equal(s.name, "mtp.layers.0.mlp.experts.7.up_proj.weight");

    c = read_ok("configs/models/qwen3.5-35b-a3b.json", NULL);
    assert_true(c.n_layers == 40 && c.n_experts == 256 && c.top_k == 8 && c.rope.dim == 64 && c.rope.theta == 1e7);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_DELTA_QKV, 1, 0, &s) && s.shape[0] == 8192);
    assert_string_equal(s.name, "model.language_model.layers.1.linear_attn.in_proj_qkv.weight");
    assert_true(td_tensor_spec_get(&c, TD_ROLE_LM_HEAD, 0, 0, &s));
    assert_string_equal(s.name, "lm_head.weight");
    assert_true(td_tensor_spec_get(&c, TD_ROLE_EXPERT_UP, 39, 255, &s));
    assert_string_equal(s.within, "model.language_model.layers.39.mlp.experts.gate_up_proj");
    assert_true(td_tensor_spec_get(&c, TD_ROLE_EXPERT_UP, 40, 255, &s));
    assert_string_equal(s.within, "mtp.layers.0.mlp.experts.gate_up_proj");
    assert_true(td_tensor_spec_get(&c, TD_ROLE_MTP_EH_PROJ, 40, 0, &s) && s.shape[1] == 4096);
    assert_string_equal(s.name, "mtp.fc.weight");
    assert_int_equal(td_layer_caches_cut_heads(&c, TD_PER_STATE), 16);
    assert_int_equal(td_layer_caches_cut_heads(&c, TD_PER_TOKEN), 2);
    c = read_ok("configs/models/qwen3.5-35b-a3b.json", /* text alone */
                "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"num_hidden_layers\": 3, \"layer_types\": "
                "[\"full_attention\", \"linear_attention\", \"full_attention\"]}");
    assert_true(!c.is_delta[0] && c.is_delta[1] && !c.is_delta[2]);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_DELTA_A, 1, 0, &s));
    assert_string_equal(s.name, "model.layers.1.linear_attn.in_proj_a.weight");
}

/* A Qwen3-MoE in text_config. transformers 5 writes there that embeddings are tied, and the top says whether they are. */
TEST(qwen3_vl) {
    td_model_config c = read_ok("configs/models/qwen3-vl-30b-a3b.json", NULL),
                    q3 = read_ok("configs/models/qwen3-30b-a3b.json", NULL);
    assert_true(c.arch == &TD_ARCH_QWEN3_VL_MOE && c.rope.dim == 128 && c.rope.theta == 5e6 && c.max_position == 262144);
    assert_true(c.n_layers == q3.n_layers && c.n_experts == q3.n_experts && c.top_k == q3.top_k && c.norm_topk && c.qk_norm);
    assert_true(c.vision.depth == 27 && c.vision.hidden == 1152 && c.vision.heads == 16 && c.vision.inter == 4304);
    assert_true(c.vision.patch == 16 && c.vision.side == 48 && c.vision.n_taps == 3 && c.vision.taps[2] == 24);
    assert_int_equal(td_vision_patch_values(&c.vision), 1536);
    assert_true(c.vision.token == 151655 && !c.vision.why_not[0]);
    assert_int_equal(read_ok("configs/models/qwen3-vl-30b-a3b.json", "{\"vision_config\": null}").vision.depth, 0);
    assert_true(c.rope.axes.rows == 20 && c.rope.axes.columns == 20 && !td_rope_has_axes(&q3.rope.axes));
    assert_true(c.hidden == q3.hidden && c.heads == q3.heads && c.kv_heads == q3.kv_heads && c.moe_inter == q3.moe_inter);
    td_tensor_spec s;
    assert_true(td_tensor_spec_get(&c, TD_ROLE_EXPERT_UP, 47, 127, &s));
    assert_string_equal(s.name, "model.language_model.layers.47.mlp.experts.127.up_proj.weight");
    assert_string_equal(s.within, "model.language_model.layers.47.mlp.experts.gate_up_proj");
    assert_true(s.stack.by_shape && s.stack.first == 768 && s.stack.rows == 1536);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_LM_HEAD, 0, 0, &s));
    assert_string_equal(s.name, "lm_head.weight");
    c = read_ok("configs/models/qwen3-vl-30b-a3b.json",
                "{\"text_config\": {\"norm_topk_prob\": false, \"tie_word_embeddings\": true}}");
    assert_true(c.norm_topk && !c.tie_embeddings);
    c = read_ok("configs/models/qwen3-vl-30b-a3b.json",
                "{\"tie_word_embeddings\": null, \"text_config\": {\"tie_word_embeddings\": true}}");
    assert_false(c.tie_embeddings);
    c = read_ok("configs/models/qwen3-vl-30b-a3b.json", "{\"tie_word_embeddings\": true}");
    assert_true(c.tie_embeddings);
    c = read_ok("configs/models/qwen3-vl-235b-a22b.json",
                "{\"text_config\": {\"num_experts\": null, \"num_local_experts\": 64, \"rope_theta\": null}}");
    assert_true(c.n_experts == 64 && c.hidden == 4096 && c.heads == 64 && c.n_layers == 94 && c.rope.theta == 5e5);
}

/* Whose vision encoder is not served is served for text, and says why. */
TEST(an_odd_encoder_leaves_text) {
    static const struct {
        const char *override, *says;
    } CASES[] = {
        {"{\"vision_config\": {\"hidden_act\": \"gelu\"}}", "vision_config.hidden_act is 'gelu'"},
        {"{\"vision_config\": {\"in_channels\": 1}}", "vision_config.in_channels is 1, and only 3"},
        {"{\"vision_config\": {\"temporal_patch_size\": 1}}", "vision_config.temporal_patch_size is 1"},
        {"{\"vision_config\": {\"spatial_merge_size\": 3}}", "vision_config.spatial_merge_size is 3"},
        {"{\"vision_config\": {\"patch_size\": [16, 16]}}", "vision_config.patch_size is not an integer"},
        {"{\"vision_config\": {\"out_hidden_size\": 3584}}", "vision_config.out_hidden_size is 3584, and only 2048"},
        {"{\"vision_config\": {\"num_heads\": 7}}", "vision_config.num_heads is 7"},
        {"{\"vision_config\": {\"num_position_embeddings\": 2300}}",
         "vision_config.num_position_embeddings is 2300, which is no square"},
        {"{\"vision_config\": {\"deepstack_visual_indexes\": [8, 16, 27]}}",
         "vision_config.deepstack_visual_indexes are not layers of 0 to 26"},
        {"{\"vision_config\": {\"deepstack_visual_indexes\": [16, 8]}}",
         "vision_config.deepstack_visual_indexes are not layers"},
        {"{\"vision_config\": {\"deepstack_visual_indexes\": [-1, 8]}}",
         "vision_config.deepstack_visual_indexes are not layers"},
        {"{\"vision_config\": {\"deepstack_visual_indexes\": 8}}", "vision_config.deepstack_visual_indexes is not a list"},
        {"{\"vision_config\": {\"deepstack_visual_indexes\": [0, 1, 2, 3, 4, 5, 6, 7, 8]}}",
         "is not a list of at most 8 layers"},
        {"{\"vision_config\": {\"rope_parameters\": {\"rope_type\": \"axial\", \"rope_theta\": 5000}}}",
         "vision_config.rope_parameters.rope_theta is not 10000"},
        {"{\"vision_config\": {\"rope_parameters\": {\"rope_type\": \"default\"}}}", "vision_config.rope_type is 'default'"},
        {"{\"vision_config\": 3}", "vision_config is not an object"},
        {"{\"image_token_id\": null}", "image_token_id is missing"},
        {"{\"image_token_id\": 151936}", "image_token_id"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        const td_model_config c = read_ok("configs/models/qwen3-vl-30b-a3b.json", CASES[i].override);
        assert_int_equal(c.vision.depth, 0);
        if (!strstr(c.vision.why_not, CASES[i].says)) fail_msg("\"%s\" has no \"%s\"", c.vision.why_not, CASES[i].says);
    }
}

TEST(kimi_delta_attention) {
    td_model_config c = read_ok("configs/models/kimi-linear-48b-a3b.json", NULL);
    assert_true(c.n_layers == 27 && c.n_experts == 256 && c.top_k == 8 && c.norm_topk && c.routed_scale == 2.446);
    assert_true(c.shared_inter == 1024 && c.n_group == 1 && c.route_bias && c.route_score == TD_SCORE_SIGMOID);
    assert_true(c.max_position == 1048576 && c.rope.dim == 0 && c.rope_dim == 64 && c.q_lora == 0 && c.eps == 1e-5f);
    assert_float_equal(c.softmax_scale, 1 / sqrt(192), 1e-12);
    for (uint32_t i = 0; i < 27; i++) assert_true(c.is_delta[i] == (i % 4 != 3 && i != 26) && c.is_moe[i] == (i > 0));
    assert_true(c.delta.form == TD_DELTA_KIMI && c.delta.k_heads == 32 && c.delta.v_heads == 32 && c.delta.low == 128);
    td_tensor_spec s;
    assert_true(td_tensor_spec_get(&c, TD_ROLE_DELTA_K, 0, 0, &s) && s.shape[0] == 4096 && s.shape[1] == 2304);
    assert_string_equal(s.name, "model.layers.0.self_attn.k_proj.weight");
    assert_true(td_tensor_spec_get(&c, TD_ROLE_DELTA_A, 26 - 1, 0, &s) && s.shape[0] == 4096 && s.shape[1] == 128);
    assert_false(td_tensor_spec_get(&c, TD_ROLE_DELTA_A, 26, 0, &s));
    assert_false(td_tensor_spec_get(&c, TD_ROLE_MLA_Q, 0, 0, &s));
    assert_true(td_tensor_spec_get(&c, TD_ROLE_MLA_Q, 26, 0, &s) && s.shape[0] == 32 * 192);
    assert_true(td_tensor_spec_get(&c, TD_ROLE_DENSE_UP, 0, 0, &s) && s.shape[0] == 9216);
    assert_string_equal(s.name, "model.layers.0.mlp.up_proj.weight");
    assert_true(td_tensor_spec_get(&c, TD_ROLE_EXPERT_GATE, 1, 255, &s));
    assert_string_equal(s.name, "model.layers.1.block_sparse_moe.experts.255.w1.weight");
    assert_int_equal(td_layer_caches_cut_heads(&c, TD_PER_STATE), 32);
    assert_int_equal(td_layer_caches_of(&c, 26).cache[1].kind, TD_KV_ROPE);
    /* as transformers 5 writes it */
    c = read_ok("configs/models/kimi-linear-48b-a3b.json",
                "{\"linear_attn_config\": null, \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", "
                "\"linear_attention\"], \"mlp_layer_types\": [\"sparse\", \"dense\"], \"linear_head_dim\": 64, "
                "\"linear_num_heads\": 8, \"linear_conv_kernel_dim\": 3, \"num_experts_per_token\": null, "
                "\"num_experts_per_tok\": 4, \"model_max_length\": null, \"max_position_embeddings\": 4096}");
    assert_true(!c.is_delta[0] && c.is_delta[1] && c.is_moe[0] && !c.is_moe[1] && c.top_k == 4 && c.max_position == 4096);
    assert_true(c.delta.k_heads == 8 && c.delta.k_dim == 64 && c.delta.conv == 3 && c.delta.low == 64);
    td_model_config published = read_ok("tests/data/golden/kimi_linear/config.json", NULL);
    c = read_ok("tests/data/golden/kimi_linear/config_transformers.json", NULL);
    assert_memory_equal(&c, &published, sizeof c);
}

/* What a layer keeps of its tokens, and what that allows. */
TEST(caches_of_layers) {
    td_model_config c = read_ok("configs/models/deepseek-v3.json", NULL);
    td_layer_caches list = td_layer_caches_of(&c, 61); /* the MTP layer's are like the others' */
    assert_int_equal(list.n, 2);
    assert_true(list.cache[0].kind == TD_KV_LATENT && list.cache[0].heads == 1 && list.cache[0].values == 512);
    assert_true(list.cache[1].kind == TD_KV_ROPE && list.cache[1].heads == 1 && list.cache[1].values == 64);
    assert_int_equal(td_layer_caches_cut_heads(&c, TD_PER_TOKEN), 0);
    assert_true(td_layer_caches_one_form_from(&c) == UINT32_MAX);

    c = read_ok("configs/models/qwen3-30b-a3b.json", NULL);
    list = td_layer_caches_of(&c, 0);
    assert_int_equal(list.n, 2);
    assert_true(list.cache[1].kind == TD_KV_HEAD && list.cache[1].heads == 4 && list.cache[1].values == 128);
    assert_int_equal(td_layer_caches_cut_heads(&c, TD_PER_TOKEN), 4);
    assert_true(td_layer_caches_one_form_from(&c) == 0);
}

/* A row of a table that says nothing of rotations means that they do not act on the weight. */
TEST(matrices_of_the_stream_are_rotated) {
    static const char *const FILES[] = {
        "configs/models/deepseek-v3.json", "configs/models/qwen3-30b-a3b.json",  "configs/models/gpt-oss-20b.json",
        "configs/models/minimax-m2.json",  "tests/data/golden/deepseek_v2_lite", "tests/data/golden/glm4_moe",
        "tests/data/golden/glm4_moe_lite", "tests/data/golden/qwen2_moe",        "configs/models/qwen3.5-35b-a3b.json"};
    for (size_t i = 0; i < sizeof FILES / sizeof *FILES; i++) {
        td_model_config       c = read_ok(FILES[i], NULL);
        const td_weight_rule *w = c.arch->weights;
        for (td_role role = 0; role < TD_ROLE_COUNT; role++)
            if (w[role].name && w[role].columns != TD_DIM_NONE &&
                (w[role].rows == TD_DIM_HIDDEN || w[role].columns == TD_DIM_HIDDEN))
                assert_int_not_equal(w[role].rotation.kind, TD_ROTATION_NONE);
    }
}

TEST(golden_shapes) {
    td_model_config c = read_ok("tests/data/golden/deepseek_v2_group", NULL);
    assert_int_equal(c.route_group, TD_GROUP_MAX);
    assert_true(c.routed_scale == 16);
    c = read_ok("tests/data/golden/deepseek_v3_noqlora/config.json", NULL); /* the file itself */
    assert_int_equal(c.q_lora, 0);
    assert_true(c.rope.kind == TD_ROPE_PLAIN && c.rope.theta == 50000);
    c = read_ok("tests/data/golden/qwen2_moe", NULL);
    assert_true(c.qkv_bias && !c.qk_norm && c.shared_gate && !c.norm_topk);
    assert_int_equal(c.is_moe[0] * 10 + c.is_moe[1], 1); /* every second layer */
    c = read_ok("tests/data/golden/qwen3_moe", NULL);
    assert_int_equal(c.is_moe[0] * 10 + c.is_moe[1], 10); /* mlp_only_layers [1] */
    c = read_ok("tests/data/golden/qwen3_moe_tied", NULL);
    assert_true(c.tie_embeddings && c.rope.kind == TD_ROPE_YARN && c.rope.original_max_position == 128);
}

TEST(generation_config_gives_defaults) {
    td_model_config c = read_ok("models/tale-v3-14m", NULL);
    assert_true(c.temperature == 0.7 && c.top_p == 0.95 && isnan(c.repetition_penalty) && c.top_k_sampling == 0);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 1);
    c = read_ok("configs/models/qwen3-30b-a3b.json", NULL);
    assert_true(isnan(c.temperature));

    static const char CONFIG[] = "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"eos_token_id\":7}";
    static const char GEN[] = "{\"eos_token_id\":[7,9],\"bos_token_id\":3,\"top_k\":20}";
    OK(td_model_config_parse(CONFIG, strlen(CONFIG), GEN, strlen(GEN), NULL, &c, NULL));
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[0] * 10 + c.eos_ids[1], 79);
    assert_int_equal(c.bos_id, 3);
    assert_int_equal(c.top_k_sampling, 20);
}

/* transformers 5 writes rope_parameters with rope_theta inside; absent keys have the class's defaults. */
TEST(rope_parameters_of_transformers_5) {
    static const char CONFIG[] =
        "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":5e6,"
        "\"factor\":2.0,"
        "\"original_max_position_embeddings\":1000,\"beta_fast\":16}}";
    td_model_config c;
    OK(td_model_config_parse(CONFIG, strlen(CONFIG), NULL, 0, NULL, &c, NULL));
    assert_true(c.rope.kind == TD_ROPE_YARN && c.rope.theta == 5e6 && c.rope.factor == 2 && c.rope.beta_fast == 16 &&
                c.rope.beta_slow == 1);
    assert_int_equal(c.n_layers, 24);
    assert_int_equal(c.n_experts, 128);
    assert_int_equal(c.head_dim, 64); /* hidden 2048 / 32 heads */
    static const char ADDED[] = "{\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 3.0}}"; /* theta stays */
    OK(td_model_config_parse(CONFIG, strlen(CONFIG), NULL, 0, ADDED, &c, NULL));
    assert_true(c.rope.kind == TD_ROPE_PLAIN && c.rope.theta == 5e6 && c.rope.factor == 3);
    assert_int_equal(c.bos_id, UINT32_MAX);
    assert_int_equal(c.n_eos, 0);
}

TEST(override_is_merged) {
    td_model_config c =
        read_ok("configs/models/deepseek-v3.json", "{\"num_hidden_layers\": 5, \"rope_scaling\": {\"factor\": 20}}");
    assert_int_equal(c.n_layers, 5);
    assert_true(c.rope.factor == 20 && c.rope.beta_fast == 32); /* the rest of rope_scaling stays */
    c = read_ok("configs/models/deepseek-v3.json", "{\"rope_scaling\": null}");
    assert_true(c.rope.kind == TD_ROPE_PLAIN);
}

/* Qwen3's model card: add rope_scaling, and nothing else, for 131072 tokens. */
TEST(yarn_extends_the_positions) {
    const char *yarn =
        "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32768}}";
    td_model_config c = read_ok("configs/models/qwen3-30b-a3b.json", NULL);
    assert_int_equal(c.max_position, 40960);
    c = read_ok("configs/models/qwen3-30b-a3b.json", yarn);
    assert_int_equal(c.max_position, 131072);
    c = read_ok("configs/models/deepseek-v3.json", "{\"rope_scaling\": {\"factor\": 2}}");
    assert_int_equal(c.max_position, 163840); /* as config.json says */
}

/* A quantization_config and what becomes of it: a sentence when weights stored so are not read, "" when they are. */
TEST(stored_formats) {
#define COMPRESSED(format, weights, more)                                                                                   \
    "\"compressed-tensors\", \"format\": \"" format "\", \"config_groups\": {\"group_0\": {\"weights\": {" weights "}" more \
    "}}"
#define TOKEN8                                                                                                     \
    ", \"input_activations\": {\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": \"token\", " \
    "\"dynamic\": true}"
#define TRANSFORM(one, other)                                                                                         \
    ", \"transform_config\": {\"config_groups\": {\"R3\": {\"type\": \"hadamard\", \"apply\": [{\"location\": \"" one \
    "\"}, {\"location\": \"" other "\"}]}}}"
#define INT8 "\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, \"strategy\": "
#define INT4 "\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\", \"group_size\": 32"
    static const struct {
        const char     *config; /* after quant_method */
        td_quant_method method;
        const char     *says;
    } CASES[] = {
        {"\"fp8\", \"fmt\": \"e4m3\", \"weight_block_size\": [128, 128]", TD_QUANT_FP8, ""},
        {"\"fp8\"", TD_QUANT_FP8, "weight_block_size"},
        {"\"fp8\", \"fmt\": \"float8_e4m3fn\", \"weight_block_size\": [128, 128]", TD_QUANT_FP8, ""},
        {"\"fp8\", \"fmt\": \"e5m2\", \"weight_block_size\": [128, 128]", TD_QUANT_FP8, "'e5m2'"},
        {"\"awq\", \"bits\": 4, \"group_size\": 128, \"zero_point\": true, \"version\": \"gemm\"", TD_QUANT_AWQ, ""},
        {"\"awq\", \"bits\": 4, \"group_size\": 128, \"zero_point\": true, \"version\": \"gemv\"", TD_QUANT_AWQ, "'gemv'"},
        {"\"awq\", \"bits\": 3", TD_QUANT_AWQ, "bits is 3"},
        {"\"gptq\", \"bits\": 8, \"group_size\": -1, \"sym\": true", TD_QUANT_GPTQ, ""},
        {"\"gptq\", \"bits\": 2, \"group_size\": 64", TD_QUANT_GPTQ, "bits is 2"},
        {"\"gptq\"", TD_QUANT_GPTQ, "bits is 0"},
        {"\"gptq\", \"bits\": 4, \"checkpoint_format\": \"marlin\"", TD_QUANT_GPTQ, "'marlin'"},
        {"\"mxfp4\", \"modules_to_not_convert\": [\"lm_head\"]", TD_QUANT_MXFP4, ""},
        {"\"bitsandbytes\"", TD_QUANT_NONE, "'bitsandbytes', and only fp8, gptq"},
        {"\"ascend\"", TD_QUANT_MODELSLIM, ""},
        {COMPRESSED("int-quantized", INT8 "\"channel\"", TOKEN8), TD_QUANT_COMPRESSED, ""},
        {COMPRESSED("int-quantized", INT8 "\"group\"", TOKEN8), TD_QUANT_COMPRESSED, "strategy 'group'"},
        {COMPRESSED("int-quantized", INT8 "\"channel\"",
                    ", \"input_activations\": {\"num_bits\": 8, \"strategy\": \"tensor\"}"),
         TD_QUANT_COMPRESSED, "input_activations"},
        {COMPRESSED("naive-quantized", INT8 "\"channel\"", TOKEN8), TD_QUANT_COMPRESSED, ""},
        {COMPRESSED("naive-quantized", INT8 "\"channel\"",
                    ", \"input_activations\": {\"num_bits\": 8, \"strategy\": \"tensor\"}"),
         TD_QUANT_COMPRESSED, "input_activations"},
        {COMPRESSED("naive-quantized", "\"num_bits\": 8, \"type\": \"int\", \"symmetric\": false, \"strategy\": \"channel\"",
                    TOKEN8),
         TD_QUANT_COMPRESSED, "asymmetric integers"},
        {COMPRESSED("pack-quantized", INT4 ", \"symmetric\": false", ""), TD_QUANT_COMPRESSED, ""},
        {COMPRESSED("pack-quantized", INT4, ""), TD_QUANT_COMPRESSED, ""},
        {COMPRESSED("pack-quantized", INT4, "") TRANSFORM("weight_input", "weight_output"), TD_QUANT_COMPRESSED, ""},
        {COMPRESSED("pack-quantized", INT4, "") TRANSFORM("weight_input", "input"), TD_QUANT_COMPRESSED,
         "R3 applies to the location 'input'"},
        {COMPRESSED("pack-quantized", INT4, "") TRANSFORM("k_cache", "weight_output"), TD_QUANT_COMPRESSED, "'k_cache'"},
        {COMPRESSED("marlin-24", INT4, ""), TD_QUANT_COMPRESSED, "'marlin-24'"},
        {COMPRESSED("nvfp4-pack-quantized",
                    "\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"tensor_group\", \"group_size\": 32", ""),
         TD_QUANT_COMPRESSED, "'nvfp4-pack-quantized'"},
        {COMPRESSED("mixed-precision", INT4, ", \"format\": \"pack-quantized\""), TD_QUANT_COMPRESSED, ""},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char text[1024];
        snprintf(text, sizeof text, "{\"quantization_config\": {\"quant_method\": %s}}", CASES[i].config);
        td_model_config c = read_ok("configs/models/kimi-k2.json", text);
        const char     *says = CASES[i].says;
        if (*says ? !strstr(c.quant.refusal, says) : c.quant.refusal[0])
            fail_msg("%s: '%s'", CASES[i].config, c.quant.refusal);
        /* what configs/models has is another method's keys beside these: they do not count */
        assert_int_equal(c.quant.method, CASES[i].method);
    }
}

/* Each override of a good config is refused with that status and a sentence that has the key. */
TEST(impossible_and_unsupported_values_are_refused) {
    static const struct {
        const char *base, *override_json;
        td_status   status;
        const char *says;
    } CASES[] = {
        {"deepseek-v3", "{\"architectures\": [\"LlamaForCausalLM\"]}", TD_ENOTSUP, "LlamaForCausalLM"},
        {"deepseek-v3", "{\"architectures\": []}", TD_EFORMAT, "architectures"},
        {"deepseek-v3", "{\"architectures\": \"DeepseekV3ForCausalLM\"}", TD_EFORMAT, "architectures"},
        {"deepseek-v3", "{\"hidden_size\": 0}", TD_EFORMAT, "hidden_size"},
        {"deepseek-v3", "{\"hidden_size\": -1}", TD_EFORMAT, "hidden_size"},
        {"deepseek-v3", "{\"hidden_size\": 1e3}", TD_EFORMAT, "hidden_size"},
        {"deepseek-v3", "{\"hidden_size\": \"7168\"}", TD_EFORMAT, "hidden_size"},
        {"deepseek-v3", "{\"hidden_size\": 9223372036854775807}", TD_EFORMAT, "hidden_size"},
        {"deepseek-v3", "{\"num_hidden_layers\": 257}", TD_EFORMAT, "num_hidden_layers"},
        {"deepseek-v3", "{\"num_hidden_layers\": 256}", TD_EFORMAT, "num_nextn_predict_layers"},
        {"deepseek-v3", "{\"num_attention_heads\": 100000}", TD_EFORMAT, "num_attention_heads"},
        {"deepseek-v3", "{\"n_routed_experts\": 4096}", TD_EFORMAT, "n_routed_experts"},
        {"deepseek-v3", "{\"n_group\": 7}", TD_EFORMAT, "n_group"},
        {"deepseek-v3", "{\"topk_group\": 9}", TD_EFORMAT, "topk_group"},
        {"deepseek-v3", "{\"n_group\": 256, \"topk_group\": 16}", TD_EFORMAT, "n_group"},
        {"deepseek-v3", "{\"num_experts_per_tok\": 33}", TD_EFORMAT, "num_experts_per_tok"},
        {"deepseek-v3", "{\"n_routed_experts\": 8, \"topk_group\": 4}", TD_EFORMAT, "num_experts_per_tok"},
        {"deepseek-v3", "{\"topk_method\": \"greedy\"}", TD_ENOTSUP, "topk_method"},
        {"deepseek-v3", "{\"scoring_func\": \"softmax\"}", TD_ENOTSUP, "scoring_func"},
        {"deepseek-v3", "{\"hidden_act\": \"gelu\"}", TD_ENOTSUP, "hidden_act"},
        {"deepseek-v3", "{\"mlp_bias\": true}", TD_ENOTSUP, "mlp_bias"},
        {"deepseek-v3", "{\"qk_rope_head_dim\": 63}", TD_EFORMAT, "rotary"},
        {"deepseek-v3", "{\"rope_scaling\": {\"type\": \"longrope\"}}", TD_ENOTSUP, "rope_scaling.type"},
        {"deepseek-v3", "{\"rope_scaling\": {\"rope_type\": \"dynamic\"}}", TD_ENOTSUP, "rope_scaling.rope_type"},
        {"deepseek-v3", "{\"rope_scaling\": {\"factor\": 0.5}}", TD_EFORMAT, "rope_scaling.factor"},
        {"deepseek-v3", "{\"rope_scaling\": 4}", TD_EFORMAT, "rope_scaling"},
        {"deepseek-v3", "{\"rope_theta\": 0}", TD_EFORMAT, "rope_theta"},
        {"deepseek-v3", "{\"eos_token_id\": 129280}", TD_EFORMAT, "eos_token_id"},
        {"deepseek-v3", "{\"eos_token_id\": [1, null]}", TD_EFORMAT, "eos_token_id"},
        {"deepseek-v3", "{\"quantization_config\": {}}", TD_EFORMAT, "quant_method"},
        {"deepseek-v3", "{\"quantization_config\": [4]}", TD_EFORMAT, "quantization_config is not an object"},
        {"deepseek-v3", "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": \"4\"}}", TD_EFORMAT,
         "quantization_config.bits"},
        {"deepseek-v3", "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 0}}",
         TD_EFORMAT, "group_size is 0"},
        {"deepseek-v3", "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"sym\": 1}}", TD_EFORMAT,
         "quantization_config.sym"},
        {"deepseek-v3", "{\"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 99999999}}",
         TD_EFORMAT, "group_size"},
        {"deepseek-v3", "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128]}}", TD_EFORMAT,
         "weight_block_size"},
        {"deepseek-v3", "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [0, 128]}}",
         TD_EFORMAT, "weight_block_size"},
        {"deepseek-v3", "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}", TD_EFORMAT,
         "config_groups"},
        {"deepseek-v3",
         "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"a\": 3}}}", TD_EFORMAT,
         "config_groups.a"},
        {"deepseek-v2-lite", "{\"topk_method\": \"noaux_tc\"}", TD_ENOTSUP, "topk_method"},
        {"deepseek-v2-lite", "{\"num_experts_per_tok\": null}", TD_EFORMAT, "num_experts_per_tok is missing"},
        {"qwen3-30b-a3b", "{\"use_sliding_window\": true}", TD_ENOTSUP, "use_sliding_window"},
        {"qwen3-30b-a3b", "{\"layer_types\": [\"sliding_attention\"]}", TD_ENOTSUP, "layer_types"},
        {"qwen3-30b-a3b", "{\"attention_bias\": true}", TD_ENOTSUP, "attention_bias"},
        {"qwen3-30b-a3b", "{\"num_key_value_heads\": 5}", TD_EFORMAT, "num_key_value_heads"},
        {"qwen3-30b-a3b", "{\"mlp_only_layers\": [48]}", TD_EFORMAT, "mlp_only_layers"},
        {"qwen3-30b-a3b", "{\"partial_rotary_factor\": 0.5}", TD_ENOTSUP, "partial_rotary_factor"},
        {"qwen3-30b-a3b", "{\"head_dim\": 127}", TD_EFORMAT, "rotary"},
        {"glm-4.5", "{\"partial_rotary_factor\": 0.001}", TD_EFORMAT, "partial_rotary_factor is 0.001"},
        {"glm-4.5", "{\"partial_rotary_factor\": 2}", TD_EFORMAT, "partial_rotary_factor"},
        {"glm-4.5", "{\"partial_rotary_factor\": 0.4}", TD_EFORMAT, "the rotary dimension 51 is odd"},
        {"glm-4.5", "{\"scoring_func\": \"softmax\"}", TD_ENOTSUP, "scoring_func is 'softmax'"},
        {"glm-4.5", "{\"topk_method\": \"greedy\"}", TD_ENOTSUP, "topk_method is 'greedy'"},
        {"glm-4.5", "{\"n_group\": 3}", TD_EFORMAT, "n_group is 3"},
        {"glm-4.7-flash", "{\"rope_scaling\": {\"rope_type\": \"longrope\"}}", TD_ENOTSUP, "rope_type is 'longrope'"},
        {"glm-4.7-flash", "{\"scoring_func\": \"softmax\"}", TD_ENOTSUP, "scoring_func is 'softmax'"},
        {"glm-4.7-flash", "{\"mlp_layer_types\": [\"dense\"]}", TD_EFORMAT, "mlp_layer_types has 1 layers"},
        {"glm-4.7-flash", "{\"num_hidden_layers\": 1, \"mlp_layer_types\": [\"linear\"]}", TD_ENOTSUP,
         "mlp_layer_types[0] is 'linear'"},
        {"glm-4.7-flash", "{\"num_hidden_layers\": 1, \"mlp_layer_types\": [3]}", TD_ENOTSUP, "mlp_layer_types[0]"},
        {"glm-4.7-flash", "{\"mlp_layer_types\": \"sparse\"}", TD_EFORMAT, "mlp_layer_types"},
        {"glm-4.7-flash", "{\"kv_lora_rank\": 0}", TD_EFORMAT, "kv_lora_rank is 0"},
        {"minimax-m2", "{\"rope_scaling\": {\"rope_type\": \"dynamic\"}}", TD_ENOTSUP, "rope_type is 'dynamic'"},
        {"minimax-m2", "{\"rotary_dim\": 129}", TD_EFORMAT, "rotary_dim is 129"},
        {"minimax-m2", "{\"rotary_dim\": 63}", TD_EFORMAT, "the rotary dimension 63 is odd"},
        {"minimax-m2", "{\"scoring_func\": \"softmax\"}", TD_ENOTSUP, "scoring_func is 'softmax'"},
        {"minimax-m2", "{\"qk_norm_type\": \"per_head\"}", TD_ENOTSUP, "qk_norm_type is 'per_head'"},
        {"minimax-m2", "{\"use_qk_norm\": false}", TD_ENOTSUP, "use_qk_norm is false"},
        {"minimax-m2", "{\"shared_intermediate_size\": 512}", TD_ENOTSUP, "shared_intermediate_size is 512"},
        {"minimax-m2", "{\"layernorm_mlp_beta\": 3.5}", TD_ENOTSUP, "layernorm_mlp_beta is 3.5"},
        {"minimax-m2", "{\"routed_scaling_factor\": 2}", TD_ENOTSUP, "routed_scaling_factor is 2"},
        {"minimax-m2", "{\"num_expert_group\": 8}", TD_ENOTSUP, "num_expert_group is 8"},
        {"minimax-m2", "{\"attn_type_list\": [1, 0]}", TD_ENOTSUP, "attn_type_list[1] is not 1"},
        {"minimax-m2", "{\"sliding_window\": 4096}", TD_ENOTSUP, "sliding_window is set"},
        {"minimax-m2", "{\"num_local_experts\": 4}", TD_EFORMAT, "num_experts_per_tok is 8, more than the 4 experts"},
        {"kimi-k2.5", "{\"text_config\": null}", TD_EFORMAT, "text_config is missing"},
        {"kimi-k2.5", "{\"text_config\": [1]}", TD_EFORMAT, "text_config is missing or not an object"},
        {"kimi-k2.5", "{\"text_config\": {\"model_type\": \"kimi_linear\"}}", TD_ENOTSUP,
         "text_config.model_type is 'kimi_linear'"},
        {"kimi-k2.5", "{\"text_config\": {\"hidden_size\": \"a\"}}", TD_EFORMAT, "text_config.hidden_size is not"},
        {"kimi-k2.5", "{\"text_config\": {\"scoring_func\": \"softmax\"}}", TD_ENOTSUP, "scoring_func is 'softmax'"},
        {"kimi-k2.5", "{\"text_config\": {\"rope_scaling\": {\"type\": \"longrope\"}}}", TD_ENOTSUP, "'longrope'"},
        {"gpt-oss-20b", "{\"layer_types\": [\"full_attention\"]}", TD_EFORMAT, "layer_types is not a list of 24 layers"},
        {"gpt-oss-20b", "{\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"chunked_attention\"]}",
         TD_ENOTSUP, "layer_types has 'chunked_attention' for layer 1"},
        {"gpt-oss-20b", "{\"sliding_window\": 0}", TD_EFORMAT, "sliding_window is 0"},
        {"gpt-oss-20b", "{\"swiglu_limit\": 0}", TD_EFORMAT, "swiglu_limit"},
        {"gpt-oss-20b", "{\"experts_per_token\": 8}", TD_EFORMAT, "num_experts_per_tok is 4 and experts_per_token is 8"},
        {"gpt-oss-20b", "{\"num_experts_per_tok\": 32, \"num_local_experts\": 16}", TD_EFORMAT, "more than the 16 experts"},
        {"gpt-oss-20b", "{\"hidden_act\": \"gelu\"}", TD_ENOTSUP, "hidden_act"},
        {"gpt-oss-20b", "{\"rope_theta\": null}", TD_EFORMAT, "rope_theta is missing"},
        {"gpt-oss-20b", "{\"rope_scaling\": {\"rope_type\": \"llama3\"}}", TD_ENOTSUP, "'llama3'"},
        {"qwen3-next-80b-a3b", "{\"layer_types\": [\"full_attention\"]}", TD_EFORMAT,
         "layer_types is not a list of 48 layers"},
        {"qwen3-next-80b-a3b", "{\"linear_num_value_heads\": 40}", TD_EFORMAT, "linear_num_value_heads is 40, which is no"},
        {"qwen3-next-80b-a3b", "{\"linear_conv_kernel_dim\": 9}", TD_EFORMAT, "linear_conv_kernel_dim is 9"},
        {"qwen3-next-80b-a3b", "{\"full_attention_interval\": 0}", TD_EFORMAT, "full_attention_interval is 0"},
        {"qwen3-next-80b-a3b", "{\"attention_bias\": true}", TD_ENOTSUP, "attention_bias is true"},
        {"qwen3-next-80b-a3b", "{\"use_sliding_window\": true}", TD_ENOTSUP, "use_sliding_window is true"},
        {"qwen3.5-35b-a3b", "{\"text_config\": {\"attn_output_gate\": false}}", TD_ENOTSUP,
         "text_config.attn_output_gate is false"},
        {"qwen3.5-35b-a3b", "{\"text_config\": {\"mtp_use_dedicated_embeddings\": true}}", TD_ENOTSUP,
         "text_config.mtp_use_dedicated_embeddings is true"},
        {"qwen3.5-35b-a3b", "{\"text_config\": {\"mamba_ssm_dtype\": \"bfloat16\"}}", TD_ENOTSUP,
         "mamba_ssm_dtype is 'bfloat16'"},
        {"qwen3-vl-30b-a3b", "{\"text_config\": {\"rope_scaling\": {\"mrope_section\": [24, 20]}}}", TD_EFORMAT,
         "text_config.mrope_section has to be three numbers that sum to 64"},
        {"qwen3-vl-30b-a3b", "{\"text_config\": {\"rope_scaling\": {\"mrope_section\": [24, 20, 21]}}}", TD_EFORMAT,
         "text_config.mrope_section has to be"},
        {"qwen3-vl-30b-a3b", "{\"text_config\": {\"rope_scaling\": {\"mrope_section\": [104, -20, -20]}}}", TD_EFORMAT,
         "text_config.mrope_section has to be"},
        {"qwen3-vl-30b-a3b", "{\"text_config\": {\"rope_scaling\": {\"mrope_section\": [24, \"20\", 20]}}}", TD_EFORMAT,
         "text_config.mrope_section has to be"},
        {"qwen3-vl-30b-a3b", "{\"text_config\": {\"rope_scaling\": {\"mrope_section\": null}, \"head_dim\": 64}}",
         TD_EFORMAT, "text_config.mrope_section has to be three numbers that sum to 32"},
        {"qwen3-vl-30b-a3b", "{\"text_config\": {\"rope_scaling\": {\"mrope_interleaved\": false}}}", TD_ENOTSUP,
         "text_config.mrope_interleaved is not true"},
        {"qwen3-vl-30b-a3b", "{\"text_config\": {\"rope_scaling\": {\"mrope_interleaved\": null}}}", TD_ENOTSUP,
         "text_config.mrope_interleaved is not true"},
        {"kimi-linear-48b-a3b", "{\"linear_attn_config\": null}", TD_EFORMAT,
         "linear_attn_config and layer_types are missing"},
        {"kimi-linear-48b-a3b", "{\"linear_attn_config\": 3}", TD_EFORMAT, "linear_attn_config is not an object"},
        {"kimi-linear-48b-a3b", "{\"linear_attn_config\": {\"kda_layers\": null}}", TD_EFORMAT,
         "linear_attn_config.kda_layers is no list of layers"},
        {"kimi-linear-48b-a3b", "{\"linear_attn_config\": {\"kda_layers\": [0]}}", TD_EFORMAT,
         "linear_attn_config.kda_layers[0] is no layer of 1 to 27"},
        {"kimi-linear-48b-a3b", "{\"linear_attn_config\": {\"kda_layers\": [\"a\"]}}", TD_EFORMAT,
         "kda_layers[0] is no layer"},
        {"kimi-linear-48b-a3b", "{\"linear_attn_config\": {\"full_attn_layers\": [1]}}", TD_EFORMAT,
         "linear_attn_config.full_attn_layers[0] is no layer of 1 to 27 that is named once"},
        {"kimi-linear-48b-a3b", "{\"linear_attn_config\": {\"full_attn_layers\": [4]}}", TD_EFORMAT,
         "layer 8 is neither in linear_attn_config.kda_layers nor in linear_attn_config.full_attn_layers"},
        {"kimi-linear-48b-a3b", "{\"linear_attn_config\": {\"short_conv_kernel_size\": 9}}", TD_EFORMAT,
         "linear_attn_config.short_conv_kernel_size is 9"},
        {"kimi-linear-48b-a3b", "{\"mla_use_nope\": false}", TD_ENOTSUP, "mla_use_nope is false"},
        {"kimi-linear-48b-a3b", "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}}", TD_ENOTSUP,
         "rope_scaling is given"},
        {"kimi-linear-48b-a3b", "{\"num_nextn_predict_layers\": 1}", TD_ENOTSUP, "num_nextn_predict_layers is not 0"},
        {"kimi-linear-48b-a3b", "{\"moe_router_activation_func\": \"softmax\"}", TD_ENOTSUP,
         "moe_router_activation_func is 'softmax'"},
        {"kimi-linear-48b-a3b", "{\"moe_layer_freq\": 2}", TD_EFORMAT, "moe_layer_freq is 2"},
        {"kimi-linear-48b-a3b", "{\"model_max_length\": 0}", TD_EFORMAT, "model_max_length is 0"},
        {"deepseek-v4-flash", "{\"compress_ratios\": [0, 4]}", TD_EFORMAT, "compress_ratios is not a list of at least 43"},
        {"deepseek-v4-flash", "{\"num_hidden_layers\": 2, \"compress_ratios\": [0, 8]}", TD_ENOTSUP,
         "compress_ratios[1] is 8"},
        {"deepseek-v4-flash", "{\"num_hidden_layers\": 2, \"compress_ratios\": [0, 4, 128]}", TD_ENOTSUP,
         "compress_ratios[2] is not 0"},
        {"deepseek-v4-flash", "{\"num_key_value_heads\": 2}", TD_ENOTSUP, "num_key_value_heads is 2"},
        {"deepseek-v4-flash", "{\"o_groups\": 7}", TD_EFORMAT, "o_groups is 7"},
        {"deepseek-v4-flash", "{\"o_lora_rank\": 100}", TD_ENOTSUP, "o_lora_rank is 100"},
        {"deepseek-v4-flash", "{\"qk_rope_head_dim\": 256}", TD_EFORMAT, "qk_rope_head_dim is 256"},
        {"deepseek-v4-flash", "{\"scoring_func\": \"sigmoid\"}", TD_ENOTSUP, "scoring_func is 'sigmoid'"},
        {"deepseek-v4-flash", "{\"rope_parameters\": {\"compress\": {}}}", TD_ENOTSUP, "rope_parameters.compress is there"},
        {"qwen3-30b-a3b", "{\"tie_word_embeddings\": 1}", TD_EFORMAT, "tie_word_embeddings"},
        {"qwen3-30b-a3b", "{\"a\": 1, \"a\": 2}", TD_EFORMAT, "override"},
        {"qwen3-30b-a3b", "[1]", TD_EFORMAT, "override"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char            path[512];
        td_model_config c;
        td_error        err = {0};
        snprintf(path, sizeof path, TD_SOURCE_DIR "/configs/models/%s.json", CASES[i].base);
        td_status s = td_model_config_read(path, CASES[i].override_json, &c, &err);
        if (s != CASES[i].status || !strstr(err.text, CASES[i].says) || !strstr(err.text, "config.json"))
            fail_msg("%s: status %d, '%s'", CASES[i].override_json, s, err.text);
    }
}

/* What a model of any family might ask for and no family has, whatever its other keys are: refused with key and value. */
TEST(no_family_ignores_an_option) {
    static const char *const SHAPES[] = {"deepseek-v2-lite",
                                         "deepseek-v3",
                                         "kimi-k2",
                                         "kimi-k2.5",
                                         "qwen3-30b-a3b",
                                         "qwen3-235b-a22b",
                                         "glm-4.5",
                                         "glm-4.5-air",
                                         "glm-4.7-flash",
                                         "minimax-m2",
                                         "gpt-oss-20b",
                                         "gpt-oss-120b",
                                         "qwen3-next-80b-a3b",
                                         "qwen3.5-35b-a3b",
                                         "kimi-linear-48b-a3b",
                                         "qwen3-vl-30b-a3b"};
    static const struct {
        const char *override_json, *says;
    } OPTIONS[] = {
        {"\"rope_scaling\": {\"rope_type\": \"longrope\", \"type\": \"longrope\"}", "rope_scaling.rope_type is 'longrope'"},
        {"\"rope_scaling\": null, \"rope_parameters\": {\"rope_type\": \"proportional\", \"rope_theta\": 1e4}",
         "rope_parameters.rope_type is 'proportional'"},
        {"\"scoring_func\": \"sqrtsoftplus\"", "scoring_func is 'sqrtsoftplus'"},
        {"\"topk_method\": \"hash\"", "topk_method is 'hash'"},
        {"\"hidden_act\": \"relu2\"", "hidden_act is 'relu2'"},
        {"\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"chunked_attention\"]", "'chunked_attention'"},
        {"\"index_topk\": 2048", "index_topk is 2048"},
        {"\"max_position_embeddings\": 0", "max_position_embeddings is 0"},
    };
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES; i++)
        for (size_t k = 0; k < sizeof OPTIONS / sizeof *OPTIONS; k++) {
            char            path[512], text[512];
            td_model_config c;
            td_error        err = {0};
            snprintf(path, sizeof path, TD_SOURCE_DIR "/configs/models/%s.json", SHAPES[i]);
            bool in_text = !strcmp(SHAPES[i], "kimi-k2.5") || !strcmp(SHAPES[i], "qwen3.5-35b-a3b") ||
                           !strcmp(SHAPES[i], "qwen3-vl-30b-a3b");
            snprintf(text, sizeof text, in_text ? "{\"text_config\": {%s}}" : "{%s}", OPTIONS[k].override_json);
            td_status s = td_model_config_read(path, text, &c, &err);
            if (s == TD_OK || !strstr(err.text, OPTIONS[k].says) ||
                !strstr(err.text, in_text ? "text_config." : "config.json"))
                fail_msg("%s with %s: status %d, '%s'", SHAPES[i], text, s, err.text);
        }
}

TEST(files_that_are_no_config) {
    td_model_config c;
    td_error        err = {0};
    assert_int_equal(td_model_config_read(TD_SOURCE_DIR "/no such folder", NULL, &c, &err), TD_ENOTFOUND);
    assert_int_equal(td_model_config_read(TD_SOURCE_DIR "/tests", NULL, &c, &err), TD_ENOTFOUND); /* a folder without it */
    assert_non_null(strstr(err.text, "config.json"));
    static const char *const BAD[] = {
        "", "{", "[]", "{\"architectures\":[\"Qwen3MoeForCausalLM\"]} x", "{\"a\":1,\"a\":1}", "\xff", "null"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_int_equal(td_model_config_parse(BAD[i], strlen(BAD[i]), NULL, 0, NULL, &c, &err), TD_EFORMAT);
        assert_non_null(strstr(err.text, "config.json"));
    }
}

#!/usr/bin/env python3
"""Make tiny random checkpoints and their expected outputs with Hugging Face transformers (tests/data/golden/README.md).

  make_golden.py [VARIANT ...]   write tests/data/golden/VARIANT/ (default: all; run from the repository root)

Needs torch, numpy, and transformers: 4.57 for the variants of 4.57, 5 for those of 5 (OF_5), whose classes 4.57 lacks
(gpt_oss: whose MXFP4 it reads); it makes those that it has.  Weights come from numpy's seeded generator and are rounded to the
stored type before anything is computed; outputs are float32.  Seeds are tried in order until no choice is a near tie, so that
implementations which add in another order route and decode alike.
"""
import copy, json, os, shutil, sys, tempfile
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoConfig
from transformers.utils import logging

import golden_io
from reference_numpy import model_of, yarn_mscale

FIVE = int(transformers.__version__.split(".")[0]) >= 5

OUT = "tests/data/golden"
PROMPT_LENGTHS, GREEDY = (7, 33, 150), 16
RECURRENT_LENGTHS = (7, 33, 300)         # beyond two pages, and several blocks of a DeltaNet's tokens
LEAST_MARGIN, LEAST_GAP, LEAST_INDEX_MARGIN = 1e-4, 0.02, 2e-5
STORED = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
TORCH_NAME = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}

COMMON = dict(vocab_size=320, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
              hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False,
              attention_bias=False, attention_dropout=0.0, initializer_range=0.02, bos_token_id=0, eos_token_id=1, use_cache=True)
MLA = dict(COMMON, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=24,
           first_k_dense_replace=1, moe_layer_freq=1, moe_intermediate_size=32)
V2 = dict(MLA, architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", scoring_func="softmax", norm_topk_prob=False, n_shared_experts=2)
V3 = dict(MLA, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", scoring_func="sigmoid", topk_method="noaux_tc",
          norm_topk_prob=True, n_shared_experts=1, n_routed_experts=16, num_experts_per_tok=4, num_nextn_predict_layers=0)
QWEN3 = dict(COMMON, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_key_value_heads=2, head_dim=32, rope_theta=1000000.0,
             num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, decoder_sparse_step=1, mlp_only_layers=[], max_position_embeddings=512,
             use_sliding_window=False, sliding_window=None)

GLM4 = dict(COMMON, architectures=["Glm4MoeForCausalLM"], model_type="glm4_moe", num_key_value_heads=2, head_dim=32, rope_theta=1000000.0,
            rms_norm_eps=1e-5, partial_rotary_factor=0.5, first_k_dense_replace=1, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4,
            moe_intermediate_size=32, norm_topk_prob=True)

GLM4_LITE = dict(MLA, architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", rms_norm_eps=1e-5, rope_theta=1000000.0,
                 qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=32, q_lora_rank=48, n_routed_experts=16, n_shared_experts=1,
                 num_experts_per_tok=4, norm_topk_prob=True, topk_method="noaux_tc", n_group=1, topk_group=1)

MINIMAX = dict({k: v for k, v in COMMON.items() if k != "attention_bias"}, architectures=["MiniMaxM2ForCausalLM"], model_type="minimax_m2",
               num_key_value_heads=2, head_dim=32, rotary_dim=16, rope_theta=5000000.0, intermediate_size=32, num_local_experts=16, num_experts_per_tok=4,
               use_qk_norm=True, qk_norm_type="per_layer", use_routing_bias=True, scoring_func="sigmoid", shared_intermediate_size=0,
               attn_type_list=[1, 1, 1], max_position_embeddings=512)

GPT_OSS = dict({k: v for k, v in COMMON.items() if k != "attention_bias"}, architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True,
               num_hidden_layers=4, num_key_value_heads=2, head_dim=32, rope_theta=150000.0, rms_norm_eps=1e-5, num_local_experts=8,
               num_experts_per_tok=3, experts_per_token=3, swiglu_limit=7.0, sliding_window=20, max_position_embeddings=512)


QWEN3_NEXT = dict(COMMON, num_hidden_layers=5, num_key_value_heads=2, head_dim=32, rope_theta=10000000.0, num_experts=8, num_experts_per_tok=2,
                  moe_intermediate_size=32, shared_expert_intermediate_size=32, max_position_embeddings=512, linear_num_key_heads=2,
                  linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24, linear_conv_kernel_dim=4)

# As published: kda_layers count from 1, and the last layer has attention.
KIMI_LINEAR = dict({k: v for k, v in COMMON.items() if k not in ("rope_scaling", "attention_bias")}, architectures=["KimiLinearForCausalLM"],
                   model_type="kimi_linear", pad_token_id=0, num_hidden_layers=6, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=32,
                   qk_rope_head_dim=16, v_head_dim=24, mla_use_nope=True, rms_norm_eps=1e-5, model_max_length=512, first_k_dense_replace=1,
                   moe_layer_freq=1, moe_intermediate_size=32, num_experts=16, num_experts_per_token=4, num_shared_experts=1, num_expert_group=4,
                   topk_group=2, use_grouped_topk=True, moe_renormalize=True, moe_router_activation_func="sigmoid", routed_scaling_factor=2.446,
                   num_nextn_predict_layers=0, linear_attn_config=dict(full_attn_layers=[4, 6], kda_layers=[1, 2, 3, 5], head_dim=16, num_heads=4,
                                                                       short_conv_kernel_size=4))

# Every kind of layer; more index heads than usual, since a key that no head likes scores exactly 0, and few heads make many such ties.
DEEPSEEK_V4 = dict({k: v for k, v in COMMON.items() if k not in ("intermediate_size", "rope_scaling")}, architectures=["DeepseekV4ForCausalLM"],
                   model_type="deepseek_v4", num_hidden_layers=6, num_key_value_heads=1, head_dim=32, qk_rope_head_dim=8, q_lora_rank=24, o_groups=2,
                   o_lora_rank=32, sliding_window=20, compress_ratios=[0, 0, 4, 128, 4, 128], compress_rope_theta=160000.0, index_n_heads=32,
                   index_head_dim=16, index_topk=4, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, num_hash_layers=1, n_routed_experts=8,
                   n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32, scoring_func="sqrtsoftplus", norm_topk_prob=True,
                   routed_scaling_factor=1.5, swiglu_limit=0.5, num_nextn_predict_layers=1, max_position_embeddings=1024)

# Every kind of layer: with an indexer of its own, and with the choice of the layer before.
GLM5_NEXT = dict({k: v for k, v in COMMON.items() if k not in ("rope_theta", "rope_scaling")}, model_type="glm5_next_text", num_hidden_layers=6,
                 num_key_value_heads=4, q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=0, v_head_dim=24, rms_norm_eps=1e-5,
                 layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention", "full_attention", "full_attention"],
                 indexer_types=["full"] * 5 + ["shared"], mlp_layer_types=["dense"] + ["sparse"] * 5, index_n_heads=32, index_head_dim=16, index_topk=24,
                 index_kpool=4, index_kpool_compress=True, index_kpool_always_select_tail=True, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, mhc=True,
                 mla_use_nope=True, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4, moe_intermediate_size=32, scoring_func="sigmoid",
                 topk_method="noaux_tc", norm_topk_prob=True, n_group=1, topk_group=1, routed_scaling_factor=2.5, swiglu_limit=0.5,
                 num_nextn_predict_layers=0, max_position_embeddings=512, pad_token_id=0,
                 linear_attn_config=dict(num_heads=4, head_dim=16, short_conv_kernel_size=4, gate_lower_bound=-5.0))

# More index heads than usual, as above.
INDEXED = dict(V3, q_lora_rank=48, index_n_heads=32)


def yarn(factor, length, **more):
    return dict({"type": "yarn", "factor": factor, "original_max_position_embeddings": length}, **more)


def deepseek_yarn(length, mscale):
    return dict(rope_scaling=yarn(40, length, beta_fast=32, beta_slow=1, mscale=mscale, mscale_all_dim=mscale), max_position_embeddings=40 * length)


# name: (stored type, shards, gain of the routed experts' down_proj, config.json)
VARIANTS = {
    "deepseek_v2_lite": ("bf16", 1, 2.0, dict(V2, **deepseek_yarn(64, 0.707), topk_method="greedy", n_routed_experts=8, num_experts_per_tok=3,
                                              n_group=1, topk_group=1, routed_scaling_factor=1.0)),
    "deepseek_v2_group": ("f16", 1, 0.2, dict(V2, **deepseek_yarn(32, 1.0), topk_method="group_limited_greedy", n_routed_experts=16,
                                              num_experts_per_tok=4, n_group=4, topk_group=2, q_lora_rank=48, routed_scaling_factor=16.0)),
    "deepseek_v3_yarn": ("bf16", 3, 1.0, dict(V3, **deepseek_yarn(64, 1.0), n_group=4, topk_group=2, q_lora_rank=48, routed_scaling_factor=2.5)),
    "deepseek_v3_noqlora": ("bf16", 1, 1.0, dict(V3, max_position_embeddings=512, n_group=1, topk_group=1, rope_theta=50000.0,
                                                 rms_norm_eps=1e-5, routed_scaling_factor=2.446)),
    "qwen3_moe": ("bf16", 1, 2.0, dict(QWEN3, num_hidden_layers=4, mlp_only_layers=[1], norm_topk_prob=True)),
    "qwen3_moe_tied": ("bf16", 1, 2.0, dict(QWEN3, num_experts_per_tok=3, norm_topk_prob=False, tie_word_embeddings=True,
                                            rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})),
    "qwen2_moe": ("f32", 1, 2.0, dict({k: v for k, v in COMMON.items() if k != "attention_bias"}, architectures=["Qwen2MoeForCausalLM"],
                                      model_type="qwen2_moe", num_hidden_layers=4, num_key_value_heads=2, rope_theta=1000000.0, num_experts=8,
                                      num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64, norm_topk_prob=False,
                                      decoder_sparse_step=2, mlp_only_layers=[], max_position_embeddings=512, qkv_bias=True,
                                      use_sliding_window=False, sliding_window=None, max_window_layers=4)),
    "glm4_moe": ("bf16", 1, 1.0, dict(GLM4, attention_bias=True, use_qk_norm=True, n_group=1, topk_group=1, routed_scaling_factor=2.5,
                                      max_position_embeddings=512)),
    "glm4_moe_yarn": ("bf16", 1, 2.0, dict(GLM4, use_qk_norm=False, partial_rotary_factor=0.25, n_group=4, topk_group=2, n_shared_experts=2,
                                           routed_scaling_factor=1.0, max_position_embeddings=512,
                                           rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})),
    "glm4_moe_lite": ("bf16", 1, 1.0, dict(GLM4_LITE, num_hidden_layers=4, mlp_layer_types=["dense", "sparse", "dense", "sparse"],
                                           routed_scaling_factor=1.8, max_position_embeddings=512)),
    "minimax_m2": ("bf16", 1, 1.0, MINIMAX),
    "kimi_k25": ("bf16", 2, 1.0, dict(
        architectures=["KimiK25ForConditionalGeneration"], model_type="kimi_k25", tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
        text_config=dict(V3, **deepseek_yarn(32, 1.0), model_type="kimi_k2", n_group=1, topk_group=1, q_lora_rank=48, routed_scaling_factor=2.827),
        vision_config=dict(model_type="kimi_k25_vision", num_attention_heads=2, num_hidden_layers=1, hidden_size=32, intermediate_size=48,
                           pos_emb_height=8, pos_emb_width=8))),
    "gpt_oss": ("bf16", 1, 0.5, dict(GPT_OSS, layer_types=["sliding_attention", "full_attention"] * 2, rope_scaling={
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False})),
    "gpt_oss_mxfp4": ("bf16", 1, 0.5, dict(GPT_OSS, num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                                           sliding_window=7, num_experts_per_tok=2, experts_per_token=2, rope_scaling={
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 16, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                                 "model.embed_tokens", "lm_head"]})),
    "qwen3_next": ("bf16", 1, 2.0, dict(QWEN3_NEXT, architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", partial_rotary_factor=0.25,
                                        full_attention_interval=4, decoder_sparse_step=1, mlp_only_layers=[1], norm_topk_prob=True)),
    "qwen3_5_moe": ("bf16", 2, 2.0, dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
        image_token_id=2, video_token_id=3, vision_start_token_id=4, vision_end_token_id=5,
        text_config=dict({k: v for k, v in QWEN3_NEXT.items() if k not in ("rope_theta", "rope_scaling", "intermediate_size")},
                         model_type="qwen3_5_moe_text", linear_num_value_heads=6, linear_key_head_dim=24, linear_value_head_dim=16,
                         layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
                         rope_parameters={"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                                          "mrope_section": [2, 1, 1], "mrope_interleaved": True}),
        vision_config=dict(model_type="qwen3_5_moe_vision", depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64,
                           num_position_embeddings=16, patch_size=4, deepstack_visual_indexes=[]))),
    "qwen3_vl_moe": ("bf16", 1, 2.0, dict(
        architectures=["Qwen3VLMoeForConditionalGeneration"], model_type="qwen3_vl_moe", tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
        image_token_id=2, video_token_id=3, vision_start_token_id=4, vision_end_token_id=5,
        text_config=dict({k: v for k, v in QWEN3.items() if k not in ("architectures", "rope_theta", "rope_scaling")}, model_type="qwen3_vl_moe_text",
                         num_hidden_layers=4, mlp_only_layers=[2], moe_intermediate_size=24, tie_word_embeddings=True,
                         rope_parameters={"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True}),
        vision_config=dict(model_type="qwen3_vl_moe_vision", depth=4, hidden_size=48, intermediate_size=56, num_heads=2, out_hidden_size=64,
                           num_position_embeddings=36, patch_size=4, deepstack_visual_indexes=[0, 2, 3]))),
    "deepseek_v32": ("bf16", 1, 1.0, dict(INDEXED, **deepseek_yarn(64, 1.0), architectures=["DeepseekV32ForCausalLM"], model_type="deepseek_v32",
                                          n_group=4, topk_group=2, routed_scaling_factor=2.5, index_head_dim=24, index_topk=24)),
    "glm_moe_dsa": ("bf16", 2, 1.0, dict({k: v for k, v in INDEXED.items() if k not in ("rope_theta", "rope_scaling")}, num_hidden_layers=5,
                                         architectures=["GlmMoeDsaForCausalLM"], model_type="glm_moe_dsa", rms_norm_eps=1e-5, qk_nope_head_dim=24,
                                         qk_rope_head_dim=8, v_head_dim=32, rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"},
                                         n_group=1, topk_group=1, routed_scaling_factor=2.5, max_position_embeddings=512, index_head_dim=16,
                                         index_topk=20, index_topk_freq=3, index_skip_topk_offset=2)),
    "kimi_linear": ("bf16", 1, 1.0, KIMI_LINEAR),
    "glm5_next": ("bf16", 2, 1.0, dict(
        architectures=["Glm5NextForConditionalGeneration"], model_type="glm5_next", tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
        image_token_id=2, video_token_id=3, image_start_token_id=4, image_end_token_id=5, video_start_token_id=6, video_end_token_id=7,
        text_config=GLM5_NEXT, vision_config=dict(model_type="glm5_next_vision", depth=1, hidden_size=32, intermediate_size=48, num_heads=2,
                                                  out_hidden_size=64, projection_intermediate_size=32, patch_size=4, image_size=16))),
    "deepseek_v4": ("bf16", 1, 2.0, dict(DEEPSEEK_V4, rope_scaling=yarn(16, 64, beta_fast=32, beta_slow=1))),
}
OF_5 = ("glm4_moe_lite", "minimax_m2", "kimi_k25", "gpt_oss", "gpt_oss_mxfp4", "qwen3_next", "qwen3_5_moe", "qwen3_vl_moe", "deepseek_v4", "deepseek_v32", "glm_moe_dsa", "kimi_linear", "glm5_next")
SEVERAL_STREAMS = ("deepseek_v4", "glm5_next")


def text_of(config):
    return config.get("text_config", config)


def model_class(config):
    return transformers.AutoModelForImageTextToText if "text_config" in config else AutoModelForCausalLM


def stored_tensors(config):
    """{name in a checkpoint: tensor} of transformers' own model, whose class fuses the experts since transformers 5."""
    plain = {k: v for k, v in copy.deepcopy(config).items() if k != "quantization_config"}
    model = model_class(config).from_config(AutoConfig.for_model(**plain))
    if not FIVE or config["model_type"] == "gpt_oss":                              # whose checkpoints have them fused, too
        return model.state_dict()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        stored = load_file(os.path.join(folder, "model.safetensors"))
    if config["model_type"] == "qwen3_5_moe":
        stored = with_packed_experts(stored)
    if config["model_type"] == "deepseek_v4":
        stored = {published_name_v4(name): t for name, t in stored.items()}
    if config["model_type"] == "kimi_linear":                                      # transformers calls layers without experts so, too
        stored = {name.replace(".block_sparse_moe.", ".mlp.") if ".block_sparse_moe.gate_proj" in name or ".block_sparse_moe.up_proj" in name
                  or ".block_sparse_moe.down_proj" in name else name: t for name, t in stored.items()}
    # transformers 5.23 renames the language model's layers of a Kimi-K2.5, too, when it writes its encoder's blocks
    return {name.replace("language_model.model.blocks.", "language_model.model.layers."): t for name, t in stored.items()}


def published_name_v4(name):
    """transformers puts all but the head under model., and has other names for four tensors."""
    name = name.removeprefix("model.").replace("embed_tokens.", "embed.").replace("hc_head.hc_", "hc_head_")
    return name.replace(".attn.norm.", ".attn.kv_norm.")


def with_packed_experts(stored):
    """Qwen3.5's checkpoints have gate_up_proj [experts, 2 * inter, hidden], gate before up, and down_proj [experts, hidden, inter]; transformers
    writes the experts one by one."""
    out = {name: t for name, t in stored.items() if ".experts." not in name}
    for n in sorted({name.split(".experts.")[0] + ".experts." for name in stored if ".experts." in name}):
        count = sum(name.startswith(n) and name.endswith("up_proj.weight") for name in stored)
        gate, up, down = (torch.stack([stored["%s%d.%s_proj.weight" % (n, e, part)] for e in range(count)]) for part in ("gate", "up", "down"))
        out[n + "gate_up_proj"], out[n + "down_proj"] = torch.cat((gate, up), 1), down
    return out


def is_less_one(config, name):
    """Whether a norm's gain is stored less one: all of Qwen3-Next and Qwen3.5 but the DeltaNet's own."""
    return config["model_type"] in ("qwen3_next", "qwen3_5_moe") and not name.endswith("linear_attn.norm.weight")


def random_weights(config, dtype, down_gain, seed):
    """{name: tensor} with the names and shapes of transformers' own model."""
    rng, out, tied = np.random.default_rng(seed), {}, config["tie_word_embeddings"]
    for name, t in stored_tensors(config).items():
        if tied and name == "lm_head.weight":
            continue
        x = rng.standard_normal(tuple(t.shape), dtype=np.float32)
        if name.endswith("tid2eid"):                                               # each token's experts
            out[name] = torch.from_numpy(np.argsort(rng.random((len(x), config["n_routed_experts"])), -1)[:, :x.shape[1]].copy())
            continue
        if name.endswith(("e_score_correction_bias", "ffn.gate.bias")):
            out[name] = torch.from_numpy(0.1 * x)                                  # float32 in every checkpoint
            continue
        if name.endswith("norm.weight") or config["model_type"] == "qwen3_vl_moe" and name.endswith(("norm1.weight", "norm2.weight")):
            x = 0.2 * x if is_less_one(config, name) else 1 + 0.2 * x
        elif name.endswith("_scale"):                                                 # of hyper-connections
            x = 1 + 0.2 * x
        elif name.endswith((".bias", "_proj_bias", "dt_bias", "_base", ".ape", "_ape")):
            x = 0.5 * x
        elif name.endswith("A_log"):                                              # most states last for many tokens; of channels some for none
            x = 2 * x - 1 if config["model_type"] == "kimi_linear" else 0.5 * x if config["model_type"] == "glm5_next" else x - 2
        elif name.endswith((".sinks", ".attn_sink")):
            x = 2 * x                                                             # beside scores of that size
        elif config["model_type"] == "gpt_oss" and ".experts." in name and t.dim() == 3:                                # of all experts, [in, out] each; gates beyond the limit
            x = x * (3.0 if "gate_up" in name else down_gain) / np.sqrt(t.shape[1])
        elif name.endswith(("embed_tokens.weight", "embed.weight")):
            x = x * (0.35 if tied else 1.0)
        elif config["model_type"] == "qwen3_vl_moe" and name.endswith("patch_embed.proj.weight"):
            x = x * 1.5 / np.sqrt(np.prod(t.shape[1:]))                            # of patches whose values go from -1 to 1
        else:
            gain = 1.0
            if any(k in name for k in ("q_proj", "attn.qkv" if config["model_type"] == "qwen3_vl_moe" else "q_proj", "q_b_proj", "k_proj", "kv_a_proj", "kv_b_proj", "in_proj", "mlp.gate.weight", "moe.gate.weight",
                                       "mlp.router.weight", "wq_b", "wgate", "ffn.gate.weight")):
                gain = 1.5                                                        # peaked attention, decided routing
            elif "lm_head" in name or name == "head.weight":
                gain = 3.0
            elif ".experts." in name and ("down_proj" in name or ".w2." in name):
                gain = down_gain
            x = x * gain / np.sqrt(t.shape[-1])
        t = torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)                 # the engine's matrices are bf16, however they are stored
        t = torch.where(t.abs() < 2.0 ** -14, 0, t).to(STORED[dtype])                 # and f16 holds all that is left exactly
        if config["model_type"] == "qwen3_vl_moe" and t.dim() == 3:                  # of all experts: published as [experts, in, out], written as [experts, out, in]
            t = t.transpose(1, 2).contiguous()
        if "quantization_config" in config and ".experts." in name and t.dim() == 3:
            out[name + "_blocks"], out[name + "_scales"] = mxfp4_blocks(t.float().numpy())
        else:
            out[name] = t
    return out


def mxfp4_blocks(w):
    """w [experts, in, out] as gpt-oss stores MXFP4: blocks [experts, out, in / 32, 16], the even value of a pair in the low four bits, and
    scales [experts, out, in / 32]; a value is e2m1 * 2^(scale - 127).  The format: OCP Microscaling Formats 1.0, sections 5.2.1 and 6.3."""
    x = w.transpose(0, 2, 1).reshape(w.shape[0], w.shape[2], w.shape[1] // 32, 32)
    exponent = np.floor(np.log2(np.abs(x).max(-1))) - 2                           # 2: the largest exponent of e2m1
    value = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    code = np.abs(np.abs(x / 2.0 ** exponent[..., None])[..., None] - value).argmin(-1) | (x < 0) << 3
    packed = code[..., 0::2] | code[..., 1::2] << 4, exponent + 127
    return tuple(torch.from_numpy(np.ascontiguousarray(a, np.uint8)) for a in packed)


def save_own_config(path, config):
    """config.json with the keys that transformers has itself, as it writes that of a model that it has made."""
    own = AutoConfig.for_model(config["model_type"]).to_dict()
    with open(path, "w") as f:
        json.dump({k: v for k, v in AutoConfig.for_model(**config).to_dict().items() if k in own}, f, indent=1)
        f.write("\n")


def save(folder, config, weights, shards):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    if shards == 1:
        save_file(weights, os.path.join(folder, "model.safetensors"), {"format": "pt"})
        return
    names = list(weights)
    parts = [names[i * len(names) // shards:(i + 1) * len(names) // shards] for i in range(shards)]
    where = {}
    for i, part in enumerate(parts):
        file = "model-%05d-of-%05d.safetensors" % (i + 1, shards)
        save_file({n: weights[n] for n in part}, os.path.join(folder, file), {"format": "pt"})
        where.update({n: file for n in part})
    index = {"metadata": {"total_size": sum(w.numel() * w.element_size() for w in weights.values())}, "weight_map": where}
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as f:
        json.dump(index, f, indent=1)
        f.write("\n")


class Reference:
    """transformers' model, with hooks that keep each router's choice."""

    def __init__(self, folder, attention="eager"):
        config = json.load(open(os.path.join(folder, "config.json")))
        self.model = model_class(config).from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
        self.text = self.model.model.language_model if "text_config" in config else self.model.model
        c, self.routed = self.text.config, []
        yarn_config = getattr(c, "rope_scaling", None)
        self.moe = [i for i, layer in enumerate(self.text.layers) if hasattr(layer.mlp, "experts")]
        gate = self.gate_of_5 if FIVE else self.qwen_gate if "qwen" in c.model_type else self.deepseek_gate
        for i, layer in enumerate(self.text.layers):
            if i in self.moe:
                if c.model_type == "gpt_oss":
                    layer.mlp.router.register_forward_hook(self.gpt_oss_router)
                else:
                    layer.mlp.gate.register_forward_hook(gate)
            if c.model_type == "deepseek_v2" and yarn_config:                     # see "Where transformers deviates"
                layer.self_attn.scaling *= yarn_mscale(yarn_config["factor"], yarn_config["mscale_all_dim"]) ** 2

    def deepseek_gate(self, module, args, output):
        self.keep(*output)

    def gate_of_5(self, module, args, output):
        self.keep(output[2], output[1])

    def qwen_gate(self, module, args, logits):
        weights, ids = torch.topk(torch.softmax(logits.float(), -1), self.text.config.num_experts_per_tok, -1)
        self.keep(ids, weights / weights.sum(-1, keepdim=True) if self.text.config.norm_topk_prob else weights)

    def gpt_oss_router(self, module, args, output):                               # what it returns differs between versions
        logits = torch.nn.functional.linear(args[0].reshape(-1, args[0].shape[-1]), module.weight, module.bias)
        best, ids = torch.topk(logits, self.model.config.num_experts_per_tok, -1)
        self.keep(ids, torch.softmax(best, -1))

    def keep(self, ids, weights):
        order = torch.sort(weights, dim=-1, descending=True, stable=True).indices
        self.routed.append((ids.gather(-1, order).numpy(), weights.gather(-1, order).numpy()))

    @torch.no_grad()
    def forward(self, ids):
        self.routed, layers = [], []
        hooks = [layer.register_forward_hook(lambda m, a, o: layers.append((o[0] if isinstance(o, tuple) else o)[0].numpy()))
                 for layer in self.text.layers]
        out = self.text(torch.tensor([list(ids)]), use_cache=False)
        for h in hooks:
            h.remove()
        hidden = out.last_hidden_state
        return {"logits": self.model.lm_head(hidden)[0].numpy(), "hidden": hidden[0].numpy(), "layer_hidden": np.stack(layers),
                "router_ids": np.stack([r[0] for r in self.routed]), "router_weights": np.stack([r[1] for r in self.routed])}

    def greedy(self, ids):
        seq, gaps = list(ids), []
        for _ in range(GREEDY):
            logits = self.forward(seq)["logits"][-1]
            top = np.sort(logits)[-2:]
            gaps.append(float(top[1] - top[0]))
            if gaps[-1] <= LEAST_GAP:
                return None, gaps
            seq.append(int(logits.argmax()))
        return seq[len(ids):], gaps


def bias_matters(folder, ids):
    """The share of choices that the selection bias changes."""
    with_bias, without = model_of(folder), model_of(folder)
    for name in without.w:
        if name.endswith(("e_score_correction_bias", "ffn.gate.bias")):
            without.w[name] = without.w[name] * 0 + 1.0       # equal for all, and keeps every masked choice below
    a, b = (np.sort(m.forward(ids)["router_ids"][0], -1) for m in (with_bias, without))
    return float((a != b).any(-1).mean())


def each_while(function, values, is_good):
    """The results for all values; None as soon as one is not good."""
    out = []
    for v in values:
        out.append(function(v))
        if not is_good(out[-1]):
            return None
    return out


def make(name):
    dtype, shards, down_gain, config = VARIANTS[name]
    config = dict(config, torch_dtype=TORCH_NAME[dtype])
    folder = os.path.join(OUT, name)
    for seed in range(1, 1000):
        save(folder, config, random_weights(config, dtype, down_gain, seed), shards)
        rng = np.random.default_rng(1000 + seed)
        first = {"qwen3_5_moe": 6, "qwen3_vl_moe": 6, "glm5_next": 8}.get(name, 2)                    # not a token of an image
        lengths = RECURRENT_LENGTHS if name in ("qwen3_next", "qwen3_5_moe", "deepseek_v4", "kimi_linear", "glm5_next") else PROMPT_LENGTHS
        prompts = [rng.integers(first, text_of(config)["vocab_size"], n).tolist() for n in lengths]
        check = model_of(folder)
        margins = each_while(lambda p: check.forward(p)["router_margin"], prompts,
                             lambda m: m.min() >= LEAST_MARGIN and getattr(check, "index_margin", np.inf) >= LEAST_INDEX_MARGIN)
        if not margins:
            continue
        ref = Reference(folder)
        continued = each_while(ref.greedy, prompts, lambda c: c[0])
        # the continuation's own routing must be clear too, else an equal greedy path could not be demanded
        if continued and all(check.forward(p + g)["router_margin"].min() > LEAST_MARGIN for p, (g, _) in zip(prompts, continued)):
            break
    else:
        raise SystemExit("no clear seed for " + name)
    w = golden_io.Writer(folder, model=folder, dtype=dtype, layout="single file" if shards == 1 else "%d shards and an index" % shards,
                         seed=seed, router_layers=ref.moe)
    for p, margin, (greedy, gaps) in zip(prompts, margins, continued):
        out = ref.forward(p)
        layers = {} if name in SEVERAL_STREAMS else {"layer_hidden": ("f32", out["layer_hidden"])}
        w.prompt(p, greedy, gaps, {
            "logits": ("f32", out["logits"]), "hidden": ("f32", out["hidden"]), **layers,
            "router_ids": ("i32", out["router_ids"]), "router_weights": ("f32", out["router_weights"]), "router_margin": ("f32", margin)})
    w.close()
    if name == "kimi_linear":
        save_own_config(os.path.join(folder, "config_transformers.json"), config)
    used = len(np.unique(out["router_ids"]))
    print("%-20s seed %d  margin %.1e  gap %.3f  logits std %.2f  residual std %.2f  experts used %d  distinct greedy %d" % (
        name, seed, min(m.min() for m in margins), min(min(g) for _, g in continued), out["logits"].std(), out["layer_hidden"][-1].std(),
        used, len({t for g, _ in continued for t in g})), flush=True)
    if any(n.endswith("e_score_correction_bias") for n in check.w):
        print("   the selection bias changes %.0f%% of the choices" % (100 * bias_matters(folder, prompts[2])))


if __name__ == "__main__":
    torch.manual_seed(0)
    logging.set_verbosity_error()
    for variant in sys.argv[1:] or [v for v in VARIANTS if (v in OF_5) == FIVE]:
        make(variant)

#!/usr/bin/env python3
"""Make tiny checkpoints in every quantised format that is read, and what they mean (tests/data/quantised/README.md).

  make_quantised.py [CASE ...]   write tests/data/quantised/CASE/ (default: all; run from the repository root)

Random weights are rounded by the plainest quantisers and packed as compressed-tensors, GPTQ, AWQ, ModelSlim and DeepSeek pack them.  What is expected is
then decoded from the written bytes by code that shares nothing with the packing, and the model computed with it (reference_numpy.py).  Needs numpy.
"""
import json, os, shutil, sys
import numpy as np

import golden_io
from reference_numpy import Model

OUT = "tests/data/quantised"
TOKENS, LEAST_MARGIN = 24, 2e-3
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1", "U8": "u1", "I32": "<i4", "I64": "<i8", "F8_E4M3": "u1", "F8_E8M0": "u1"}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]

COMMON = dict(vocab_size=64, hidden_size=128, intermediate_size=96, moe_intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, hidden_act="silu",
              rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False, attention_bias=False, bos_token_id=0, eos_token_id=1, max_position_embeddings=256,
              num_experts_per_tok=2, norm_topk_prob=True)
QWEN = dict(COMMON, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_key_value_heads=2, head_dim=32, num_experts=4, decoder_sparse_step=1,
            mlp_only_layers=[0])
DEEPSEEK = dict(COMMON, architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", num_key_value_heads=4, q_lora_rank=48, kv_lora_rank=32, qk_nope_head_dim=32,
                qk_rope_head_dim=16, v_head_dim=24, first_k_dense_replace=1, moe_layer_freq=1, scoring_func="sigmoid", topk_method="noaux_tc", n_shared_experts=1,
                n_routed_experts=4, n_group=1, topk_group=1, routed_scaling_factor=2.0)
# as much of it on each of eight cards as a group of 32 wants
EIGHTHS = dict(DEEPSEEK, intermediate_size=256, moe_intermediate_size=256, num_attention_heads=8, num_key_value_heads=8, q_lora_rank=64, v_head_dim=32)
MINIMAX = dict({k: v for k, v in COMMON.items() if k not in ("attention_bias", "moe_intermediate_size", "norm_topk_prob")}, architectures=["MiniMaxM2ForCausalLM"],
               model_type="minimax_m2", hidden_size=160, intermediate_size=136, num_key_value_heads=2, head_dim=32, rotary_dim=16, num_local_experts=3,
               use_qk_norm=True, qk_norm_type="per_layer", use_routing_bias=True, scoring_func="sigmoid", shared_intermediate_size=0, attn_type_list=[1, 1])


# ---- the model -----------------------------------------------------------------------------------

def shapes(c):
    d, out, deepseek = c["hidden_size"], {}, "kv_lora_rank" in c
    out["model.embed_tokens"] = out["lm_head"] = (c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        a, m = "model.layers.%d.self_attn." % i, "model.layers.%d.mlp." % i
        h = c["num_attention_heads"]
        if deepseek:
            qk = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
            out[a + "q_a_proj"], out[a + "q_b_proj"] = (c["q_lora_rank"], d), (h * qk, c["q_lora_rank"])
            out[a + "kv_a_proj_with_mqa"] = (c["kv_lora_rank"] + c["qk_rope_head_dim"], d)
            out[a + "kv_b_proj"], out[a + "o_proj"] = (h * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]), (d, h * c["v_head_dim"])
        else:
            kv = c["num_key_value_heads"] * c["head_dim"]
            out[a + "q_proj"], out[a + "k_proj"], out[a + "v_proj"], out[a + "o_proj"] = (h * c["head_dim"], d), (kv, d), (kv, d), (d, h * c["head_dim"])
        if "rotary_dim" in c:
            n = "model.layers.%d.block_sparse_moe." % i
            out[n + "gate"] = (c["num_local_experts"], d)
            for e in range(c["num_local_experts"]):
                for part, shape in (("w1", (c["intermediate_size"], d)), ("w3", (c["intermediate_size"], d)), ("w2", (d, c["intermediate_size"]))):
                    out[n + "experts.%d.%s" % (e, part)] = shape
            continue
        if i == 0:
            mlps = {m: c["intermediate_size"]}
        else:
            experts = c["n_routed_experts"] if deepseek else c["num_experts"]
            out[m + "gate"] = (experts, d)
            mlps = {m + "experts.%d." % e: c["moe_intermediate_size"] for e in range(experts)}
            if deepseek:
                mlps[m + "shared_experts."] = c["moe_intermediate_size"]
        for name, inter in mlps.items():
            out[name + "gate_proj"], out[name + "up_proj"], out[name + "down_proj"] = (inter, d), (inter, d), (d, inter)
    return out


def random_model(c, rng):
    """({module: f32 matrix}, {name: f32 vector})"""
    gains = {"gate": 3.0, "lm_head": 2.0, "model.embed_tokens": None}
    matrices = {}
    for name, shape in shapes(c).items():
        gain = gains.get(name, gains.get(name.split(".")[-1], 1.2))
        matrices[name] = (rng.standard_normal(shape) * (gain / np.sqrt(shape[1]) if gain else 1)).astype(np.float32)
    vectors = {"model.norm.weight": c["hidden_size"]}
    for i in range(c["num_hidden_layers"]):
        n = "model.layers.%d." % i
        vectors[n + "input_layernorm.weight"] = vectors[n + "post_attention_layernorm.weight"] = c["hidden_size"]
        if "kv_lora_rank" in c:
            vectors[n + "self_attn.q_a_layernorm.weight"], vectors[n + "self_attn.kv_a_layernorm.weight"] = c["q_lora_rank"], c["kv_lora_rank"]
        elif "rotary_dim" in c:
            vectors[n + "self_attn.q_norm.weight"] = c["num_attention_heads"] * c["head_dim"]
            vectors[n + "self_attn.k_norm.weight"] = c["num_key_value_heads"] * c["head_dim"]
        else:
            vectors[n + "self_attn.q_norm.weight"] = vectors[n + "self_attn.k_norm.weight"] = c["head_dim"]
    vectors = {k: (1 + 0.1 * rng.standard_normal(n)).astype(np.float32) for k, n in vectors.items()}
    if "kv_lora_rank" in c:
        vectors["model.layers.1.mlp.gate.e_score_correction_bias"] = (0.5 + 0.1 * rng.random(c["n_routed_experts"])).astype(np.float32)
    if "rotary_dim" in c:
        for i in range(c["num_hidden_layers"]):
            vectors["model.layers.%d.block_sparse_moe.e_score_correction_bias" % i] = (0.5 + 0.1 * rng.random(c["num_local_experts"])).astype(np.float32)
    return matrices, vectors


# ---- number formats ------------------------------------------------------------------------------

def to_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(u):
    return (u.astype(np.uint32) << 16).view(np.float32)


def e4m3_value(code):
    sign, exponent, mantissa = code >> 7, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return np.nan
    magnitude = mantissa * 2.0 ** -9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if sign else magnitude


E4M3 = np.array([e4m3_value(i) for i in range(256)], np.float32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def nearest(x, values):
    """Index of the nearest of values, which may hold NaN."""
    order = np.argsort(values)                                 # NaN last
    ranked = values[order][:np.count_nonzero(~np.isnan(values))]
    middle = (ranked[1:] + ranked[:-1]) / 2
    return order[np.searchsorted(middle, x)].astype(np.uint8)


# ---- quantisers: matrix -> tensors of the module -------------------------------------------------

def pad_groups(w, g):
    n, k = w.shape
    groups = -(-k // g)
    return np.pad(w, ((0, 0), (0, groups * g - k))).reshape(n, groups, g)


def round_groups(w, g, bits, symmetric):
    """codes [n, k] unsigned, scales [n, groups], zeros [n, groups]"""
    x, top = pad_groups(w, g), 2 ** bits - 1
    if symmetric:
        scale, zero = np.abs(x).max(-1) / (top // 2), np.full(x.shape[:2], 2 ** (bits - 1))
    else:
        low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
        scale = (high - low) / top
        zero = np.clip(np.rint(-low / scale), 0, top).astype(int)
    return scale, zero, lambda s: np.clip(np.rint(x / s[..., None]) + zero[..., None], 0, top).astype(np.uint32).reshape(len(w), -1)[:, :w.shape[1]]


def pack_words(codes, bits):
    """along the last axis, the first in the lowest bits"""
    p = 32 // bits
    codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % p)]).astype(np.uint32)
    codes = codes.reshape(codes.shape[:-1] + (-1, p))
    return sum(codes[..., i] << np.uint32(bits * i) for i in range(p)).astype(np.uint32).view(np.int32)


def fp8_blocks(w, case):
    b0, b1 = case["block"]
    n, k = w.shape
    scale = np.array([[np.abs(w[i:i + b0, j:j + b1]).max() / 448 for j in range(0, k, b1)] for i in range(0, n, b0)], np.float32)
    full = np.repeat(np.repeat(scale, b0, 0)[:n], b1, 1)[:, :k]
    return {"weight": ("F8_E4M3", nearest(w / full, E4M3)), "weight_scale_inv": ("F32", scale)}


def fp8_rows(w, case):
    scale = to_bf16(np.abs(w).max(1, keepdims=True) / 448)
    return {"weight": ("F8_E4M3", nearest(w / from_bf16(scale), E4M3)), "weight_scale": ("BF16", scale)}


def int8_rows(w, case):
    scale = np.abs(w).max(1, keepdims=True).astype(np.float32) / np.float32(127.5)        # so that -128 occurs
    stored = scale if case["scale"] == "F32" else to_bf16(scale)
    used = stored if case["scale"] == "F32" else from_bf16(stored)
    out = {"weight": ("I8", np.clip(np.rint(w / used), -128, 127).astype(np.int8)), "weight_scale": (case["scale"], stored)}
    if case.get("modelslim"):
        out["weight_offset"] = ("F32", np.zeros_like(scale))
    return out


def gptq(w, case):
    bits, g, n, k = case["bits"], case["group"] if case["group"] > 0 else w.shape[1], *w.shape
    order = np.random.default_rng(k).permutation(k) if case.get("act_order") else np.arange(k)
    scale, zero, codes = round_groups(w[:, order], g, bits, case["sym"])
    scale = scale.astype(np.float16)
    q = np.empty((n, k), np.uint32)
    q[:, order] = codes(scale.astype(np.float32))
    g_idx = np.empty(k, np.int32)
    g_idx[order] = np.arange(k) // g
    stored = zero if case.get("v2") else (zero - 1) & (2 ** bits - 1)
    return {"qweight": ("I32", np.ascontiguousarray(pack_words(q.T.T, bits).T)), "scales": ("F16", np.ascontiguousarray(scale.T)),
            "qzeros": ("I32", pack_words(stored.T, bits)), "g_idx": ("I32", g_idx)}


def awq(w, case):
    scale, zero, codes = round_groups(w, case["group"], 4, False)
    scale = scale.astype(np.float16)

    def pack(a):                                                # [.., n] -> [.., n / 8]
        return pack_words(a.reshape(a.shape[:-1] + (-1, 8))[..., AWQ_ORDER].reshape(a.shape), 4)
    return {"qweight": ("I32", pack(codes(scale.astype(np.float32)).T)), "scales": ("F16", np.ascontiguousarray(scale.T)), "qzeros": ("I32", pack(zero.T))}


def packed_int(w, case):
    bits, g = case["bits"], case["group"] if case["group"] > 0 else w.shape[1]
    scale, zero, codes = round_groups(w, g, bits, case["sym"])
    stored = to_bf16(scale) if case["scale"] == "BF16" else scale.astype(np.float16)
    q = codes(from_bf16(stored) if case["scale"] == "BF16" else stored.astype(np.float32))
    out = {"weight_packed": ("I32", pack_words(q, bits)), "weight_scale": (case["scale"], stored), "weight_shape": ("I64", np.array(w.shape, np.int64))}
    if not case["sym"]:
        out["weight_zero_point"] = ("I32", np.ascontiguousarray(pack_words(zero.T, bits).T))
    return out


def pack_nibbles(codes):
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def mxfp4(w, case):
    x = pad_groups(w, 32)
    exponent = np.floor(np.log2(np.abs(x).max(-1))) - 2
    codes = nearest(x / 2.0 ** exponent[..., None], E2M1[:16]).reshape(w.shape)
    return {"weight_packed": ("U8", pack_nibbles(codes)), "weight_scale": ("U8", (exponent + 127).astype(np.uint8))}


def nvfp4(w, case):
    x = pad_groups(w, 16)
    world = np.float32(448 * 6 / np.abs(w).max())               # the weights are divided by it
    scale = nearest(np.abs(x).max(-1) / 6 * world, E4M3)
    codes = nearest(x * world / np.maximum(E4M3[scale], 1e-9)[..., None], E2M1).reshape(w.shape)
    return {"weight_packed": ("U8", pack_nibbles(codes)), "weight_scale": ("F8_E4M3", scale), "weight_global_scale": ("F32", np.array([world]))}


# ---- decoding what is in the file: tensors of a module -> f32 matrix ------------------------------

def unpack_along(words, bits, axis):
    """words along an axis become p times as many values"""
    u, p = words.view(np.uint32), 32 // bits
    parts = [(u >> np.uint32(bits * i)) & np.uint32(2 ** bits - 1) for i in range(p)]
    shape = list(u.shape)
    shape[axis] *= p
    return np.stack(parts, axis + 1).reshape(shape).astype(np.int64)


def number(dtype, a):
    return from_bf16(a) if dtype == "BF16" else a.astype(np.float32)


def decode(t, shape, case):
    n, k = shape
    scale = {s: number(*t[s]) for s in ("weight_scale", "weight_scale_inv", "scales") if s in t and t[s][0] in ("F32", "F16", "BF16")}
    if case["make"] is fp8_blocks:
        b0, b1 = case["block"]
        r, c = np.arange(n)[:, None] // b0, np.arange(k)[None] // b1
        return E4M3[t["weight"][1]] * scale["weight_scale_inv"][r, c]
    if case["make"] is fp8_rows:
        return E4M3[t["weight"][1]] * scale["weight_scale"]
    if case["make"] is int8_rows:
        return t["weight"][1].astype(np.float32) * scale["weight_scale"]
    if case["make"] is gptq:
        bits = case["bits"]
        zero = (unpack_along(t["qzeros"][1], bits, 1) + (0 if case.get("v2") else 1)) & (2 ** bits - 1)
        g = t["g_idx"][1]
        return ((unpack_along(t["qweight"][1], bits, 0) - zero[g]).astype(np.float32) * scale["scales"][g]).T
    if case["make"] is awq:
        back = np.argsort(AWQ_ORDER)
        rows = lambda a: unpack_along(a, 4, 1).reshape(len(a), -1, 8)[..., back].reshape(len(a), -1)
        g = np.arange(k) // case["group"]
        return ((rows(t["qweight"][1]) - rows(t["qzeros"][1])[g]).astype(np.float32) * scale["scales"][g]).T
    if case["make"] is packed_int:
        bits, g = case["bits"], np.arange(k) // (case["group"] if case["group"] > 0 else k)
        zero = unpack_along(t["weight_zero_point"][1], bits, 0)[:n] if "weight_zero_point" in t else np.full((n, g[-1] + 1), 2 ** (bits - 1))
        return (unpack_along(t["weight_packed"][1], bits, 1)[:, :k] - zero[:, g]).astype(np.float32) * scale["weight_scale"][:, g]
    value = np.stack((E2M1[t["weight_packed"][1] & 15], E2M1[t["weight_packed"][1] >> 4]), -1).reshape(n, k)
    if case["make"] is mxfp4:
        return value * np.repeat((2.0 ** (t["weight_scale"][1].astype(np.float64) - 127)).astype(np.float32), 32, 1)
    return value * np.repeat(E4M3[t["weight_scale"][1]], 16, 1) * (np.float32(1) / t["weight_global_scale"][1][0])


# ---- the cases -----------------------------------------------------------------------------------

def compressed(fmt, weights, activations=None):
    return {"quant_method": "compressed-tensors", "format": fmt, "quantization_status": "compressed", "ignore": ["lm_head", "re:.*mlp.gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": dict(weights, dynamic=False), "input_activations": activations}}}


def gptq_config(bits, group, sym, **more):
    return dict({"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": False}, **more)


TOKEN8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
ALL = ("self_attn", "mlp.")
# experts: the format that holds the routed experts exactly, as `--expert-quantization auto` says it; "": there is none
CASES = {
    "fp8_block": dict(base=dict(DEEPSEEK, hidden_size=192), make=fp8_blocks, block=(128, 128), what=ALL, experts="",
                      config={"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}),
    # as MiniMax-M2 is published: its names, the router in f32, and attention in FP8, too
    "fp8_block_minimax": dict(base=MINIMAX, make=fp8_blocks, block=(128, 128), what=("self_attn", "experts"), plain={"gate": "F32"}, experts="",
                              config={"quant_method": "fp8", "fmt": "float8_e4m3fn", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
                                      "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}),
    "fp8_channel": dict(base=QWEN, make=fp8_rows, what=ALL, experts="",
                        config=compressed("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"})),
    "w8a8_compressed": dict(base=QWEN, make=int8_rows, scale="BF16", what=ALL, experts="int8",
                            config=compressed("int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}, TOKEN8)),
    "w8a8_modelslim": dict(base=DEEPSEEK, make=int8_rows, scale="F32", modelslim=True, what=("q_a_proj", "q_b_proj", "o_proj", "mlp."), experts="int8", config=None),
    "gptq_int4": dict(base=QWEN, make=gptq, bits=4, group=64, sym=False, what=ALL, experts="int4-g64 (f16 scales, zeros)", config=gptq_config(4, 64, False)),
    "gptq_int4_sym": dict(base=dict(QWEN, hidden_size=256, num_experts=3), make=gptq, bits=4, group=128, sym=True, what=("experts",),
                          experts="int4-g128 (f16 scales)", config=gptq_config(4, 128, True, checkpoint_format="gptq")),
    "gptq_int4_row": dict(base=QWEN, make=gptq, bits=4, group=-1, sym=True, v2=True, what=ALL, experts="int4",
                          config=gptq_config(4, -1, True, checkpoint_format="gptq_v2")),
    "gptq_act_order": dict(base=QWEN, make=gptq, bits=4, group=32, sym=False, v2=True, act_order=True, what=ALL, experts="",
                           config=gptq_config(4, 32, False, desc_act=True, checkpoint_format="gptq_v2")),
    "gptq_int8": dict(base=QWEN, make=gptq, bits=8, group=32, sym=False, what=ALL, experts="", config=gptq_config(8, 32, False)),
    "awq": dict(base=QWEN, make=awq, group=32, what=ALL, experts="int4-g32 (f16 scales, zeros)",
                config={"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    # as DeepSeek-R1 and Kimi-K2 are published in 4 bits, for eight cards
    "awq_eighths": dict(base=EIGHTHS, make=awq, group=32, what=ALL, experts="int4-g32 (f16 scales, zeros)",
                        config={"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}),
    "packed_int4_eighths": dict(base=EIGHTHS, make=packed_int, bits=4, group=32, sym=True, scale="BF16", what=("mlp.experts",), experts="int4-g32",
                                config=compressed("pack-quantized", {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32})),
    "packed_int4": dict(base=DEEPSEEK, make=packed_int, bits=4, group=32, sym=True, scale="BF16", what=("mlp.experts",), experts="int4-g32",
                        config=compressed("pack-quantized", {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32})),
    "packed_int4_zeros": dict(base=QWEN, make=packed_int, bits=4, group=32, sym=False, scale="F16", what=ALL, experts="int4-g32 (f16 scales, zeros)",
                              config=compressed("pack-quantized", {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32})),
    "packed_int8_row": dict(base=QWEN, make=packed_int, bits=8, group=-1, sym=True, scale="BF16", what=ALL, experts="int8",
                            config=compressed("pack-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"})),
    "mxfp4": dict(base=QWEN, make=mxfp4, what=ALL, experts="mxfp4",
                  config=compressed("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32})),
    "nvfp4": dict(base=QWEN, make=nvfp4, what=ALL, experts="nvfp4",
                  config=compressed("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16})),
}


def is_quantised(name, case):
    return name not in ("lm_head", "model.embed_tokens") and not name.endswith("mlp.gate") and any(w in name for w in case["what"])


# ---- files ---------------------------------------------------------------------------------------

def write_safetensors(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, a) in tensors.items():
        raw = np.ascontiguousarray(a).astype(DTYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + data)


def read_safetensors(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = (t["dtype"], np.frombuffer(raw[8 + n + a:8 + n + b], DTYPES[t["dtype"]]).reshape(t["shape"]))
    return out


def decode_file(path, case):
    """{name.weight or vector: f32}"""
    tensors, out = read_safetensors(path), {}
    modules = shapes(case["base"])
    for name, shape in modules.items():
        own = {k[len(name) + 1:]: v for k, v in tensors.items() if k.startswith(name + ".") and "." not in k[len(name) + 1:]}
        plain = "weight" in own and own["weight"][0] in ("BF16", "F32")
        out[name + ".weight"] = np.ascontiguousarray(number(*own["weight"]) if plain else decode(own, shape, case), np.float32)
        assert out[name + ".weight"].shape == shape
    for name, t in tensors.items():
        if t[1].ndim == 1 and ("norm" in name or name.endswith("bias")):
            out[name] = number(*t)
    return out


# ---- what is expected ----------------------------------------------------------------------------

class Decoded(Model):
    """reference_numpy's model over given weights; with int8_experts routed experts see activations in int8, as the CPU tier's integer formats do."""

    def __init__(self, config, weights, int8_experts):
        self.hold(config, weights)
        self.int8_experts = int8_experts

    def linear(self, x, name):
        if self.int8_experts and ".experts." in name:
            scale = np.abs(x).max(-1, keepdims=True) / np.float32(127)
            x = np.rint(x * (np.float32(1) / scale)) * scale
        return super().linear(x, name)


def fingerprint(a):
    """of the bits of f32 values in row-major order; -0 counts as 0"""
    bits = (np.ascontiguousarray(a, np.float32) + np.float32(0)).reshape(-1).view(np.uint32).astype(np.uint64)
    with np.errstate(over="ignore"):
        factor = np.arange(1, len(bits) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        return "%016x" % int(((bits + np.uint64(1)) * factor).sum(dtype=np.uint64))


def halves(a, block, rope):
    """rope rows of every block from pairs into halves, as the engine holds them"""
    rows = np.arange(len(a)).reshape(-1, block)
    tail = rows[:, block - rope:]
    rows = np.concatenate((rows[:, :block - rope], tail[:, 0::2], tail[:, 1::2]), 1).reshape(-1)
    return a[rows]


def as_held(name, a, c):
    if "kv_lora_rank" not in c:
        return a
    if name.endswith("q_b_proj.weight"):
        return halves(a, c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["qk_rope_head_dim"])
    if name.endswith("kv_a_proj_with_mqa.weight"):
        return halves(a, c["kv_lora_rank"] + c["qk_rope_head_dim"], c["qk_rope_head_dim"])
    return a


def make(name, case, seed):
    """Whether routing is clear of ties."""
    folder, c, rng = os.path.join(OUT, name), case["base"], np.random.default_rng(seed)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    matrices, vectors = random_model(c, rng)
    tensors = {k: ("F32", v) if k.endswith("bias") else ("BF16", to_bf16(v)) for k, v in vectors.items()}
    for module, w in matrices.items():
        if is_quantised(module, case):
            parts = case["make"](w, case)
        else:
            parts = {"weight": ("F32", w) if case.get("plain", {}).get(module.split(".")[-1]) == "F32" else ("BF16", to_bf16(w))}
        tensors.update({module + "." + k: v for k, v in parts.items()})
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(dict(c, **({"quantization_config": case["config"]} if case["config"] else {})), f, indent=1)
        f.write("\n")
    if case.get("modelslim"):
        with open(os.path.join(folder, "quant_model_description.json"), "w") as f:
            json.dump(dict({"model_quant_type": "W8A8_DYNAMIC"}, **{k: "W8A8_DYNAMIC" if is_quantised(k.rsplit(".", 1)[0], case) else "FLOAT" for k in tensors}), f, indent=0)
            f.write("\n")

    weights = decode_file(os.path.join(folder, "model.safetensors"), case)
    ids = rng.integers(2, c["vocab_size"], TOKENS)
    rounded = {k: from_bf16(to_bf16(v)) if ".experts." in k else v for k, v in weights.items()}
    runs = {"logits_bf16_experts": Decoded(c, rounded, False)}
    if case["experts"]:
        runs["logits_exact_experts"] = Decoded(c, weights, True)
    results = {k: m.forward(ids) for k, m in runs.items()}
    out = golden_io.Writer(folder, model=folder, seed=seed, experts=case["experts"],
                           fingerprints={k: fingerprint(as_held(k, v, c)) for k, v in weights.items() if v.ndim == 2})
    out.prompt(ids, [], [], {k: ("f32", r["logits"]) for k, r in results.items()})
    out.close()
    return min(r["router_margin"].min() for r in results.values()) > LEAST_MARGIN


if __name__ == "__main__":
    for case_name in sys.argv[1:] or CASES:
        seed = next(s for s in range(100) if make(case_name, CASES[case_name], s))
        print("%-20s seed %d, %d bytes" % (case_name, seed, os.path.getsize(os.path.join(OUT, case_name, "model.safetensors"))))

#!/usr/bin/env python3
"""A checkpoint folder of a published DeepSeek shape with made-up weights, to time what reads one: `tandem quantize`.

usage: make_checkpoint.py CONFIG TOKENIZER_DIR OUT [--layers N] [--fp8] [--seed S]

CONFIG is one of configs/models, cut to its first N layers; the tokenizer's files are those of any model whose ids fit its vocabulary. Matrices are drawn
from N(0, 0.02), norms are 1, a shard per layer: so nothing the model says has a meaning, and its routers spread tokens nearly evenly. With --fp8 the
linears are e4m3 with a scale for each block of 128 x 128, as DeepSeek-V3 has them; everything else is bf16.

Needs numpy; one layer at a time is in memory (of DeepSeek-V2-Lite: 1.1 GB on disk, some 6 s).
"""
import argparse
import json
import math
import os
import shutil
import sys

import numpy as np

BLOCK = 128
PIECE = 1 << 22  # values drawn at a time
DEVIATION = 0.02


def attention(c):
    h, heads, rope = c["hidden_size"], c["num_attention_heads"], c["qk_rope_head_dim"]
    q = heads * (c["qk_nope_head_dim"] + rope)
    if c["q_lora_rank"]:
        yield "q_a_proj", (c["q_lora_rank"], h), True
        yield "q_a_layernorm", (c["q_lora_rank"],), False
        yield "q_b_proj", (q, c["q_lora_rank"]), True
    else:
        yield "q_proj", (q, h), True
    yield "kv_a_proj_with_mqa", (c["kv_lora_rank"] + rope, h), True
    yield "kv_a_layernorm", (c["kv_lora_rank"],), False
    yield "kv_b_proj", (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]), True
    yield "o_proj", (h, heads * c["v_head_dim"]), True


def mlp(name, h, inter):
    yield f"{name}.gate_proj", (inter, h), True
    yield f"{name}.up_proj", (inter, h), True
    yield f"{name}.down_proj", (h, inter), True


def layer_tensors(c, layer):
    """(name without .weight, shape, whether it is a linear)"""
    h, p = c["hidden_size"], f"model.layers.{layer}"
    yield f"{p}.input_layernorm", (h,), False
    yield f"{p}.post_attention_layernorm", (h,), False
    for name, shape, linear in attention(c):
        yield f"{p}.self_attn.{name}", shape, linear
    if layer < c["first_k_dense_replace"] or layer % c["moe_layer_freq"]:
        yield from mlp(f"{p}.mlp", h, c["intermediate_size"])
        return
    yield f"{p}.mlp.gate", (c["n_routed_experts"], h), False
    yield from mlp(f"{p}.mlp.shared_experts", h, c["n_shared_experts"] * c["moe_intermediate_size"])
    for e in range(c["n_routed_experts"]):
        yield from mlp(f"{p}.mlp.experts.{e}", h, c["moe_intermediate_size"])


def model_tensors(c):
    yield "model.embed_tokens", (c["vocab_size"], c["hidden_size"]), False
    yield "model.norm", (c["hidden_size"],), False
    yield "lm_head", (c["vocab_size"], c["hidden_size"]), False


def to_bf16(x):
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_e4m3(x):
    """Of numbers up to 448: times 2^-120 their exponents, denormal ones included, are e4m3's; then the nearest of 3 bits of mantissa."""
    bits = (np.abs(x) * np.float32(2.0 ** -120)).view(np.uint32)
    code = (bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20
    return (code | (np.signbit(x).astype(np.uint32) << 7)).astype(np.uint8)


def blocks(n):
    return (n + BLOCK - 1) // BLOCK


def plan(tensors, fp8):
    """[(tensor's name, dtype, shape, what it is)]"""
    for name, shape, linear in tensors:
        if fp8 and linear:
            yield f"{name}.weight", "F8_E4M3", shape, "codes"
            yield f"{name}.weight_scale_inv", "F32", (blocks(shape[0]), blocks(shape[1])), "scales"
        else:
            yield f"{name}.weight", "BF16", shape, "ones" if len(shape) == 1 else "weights"


def values(rng, what, shape):
    if what == "ones":
        yield to_bf16(np.ones(shape, np.float32))
        return
    if what == "scales":  # codes are drawn with a deviation of 90, five of them below 448 but for one in two million
        yield np.full(shape, DEVIATION / 90, np.float32)
        return
    left = math.prod(shape)
    while left:
        x = rng.standard_normal(min(left, PIECE), np.float32)
        left -= x.size
        yield to_e4m3(np.clip(x * np.float32(90), -448, 448)) if what == "codes" else to_bf16(x * np.float32(DEVIATION))


def write_shard(path, tensors, fp8, seed):
    items, header, at = list(plan(tensors, fp8)), {}, 0
    for name, dtype, shape, _ in items:
        size = math.prod(shape) * {"BF16": 2, "F32": 4, "F8_E4M3": 1}[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64 + 56)  # the payload begins at a multiple of 64
    rng = np.random.Generator(np.random.SFC64(seed))
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, _, shape, what in items:
            for piece in values(rng, what, shape):
                piece.tofile(f)
    return {name: os.path.basename(path) for name in header}, at


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("config")
    a.add_argument("tokenizer")
    a.add_argument("out")
    a.add_argument("--layers", type=int)
    a.add_argument("--fp8", action="store_true")
    a.add_argument("--seed", type=int, default=1)
    a = a.parse_args()
    with open(a.config, encoding="utf-8") as f:
        c = json.load(f)
    if not c["architectures"][0].startswith("Deepseek"):
        sys.exit(f"{a.config}: only shapes of DeepSeek are made here")
    c["num_hidden_layers"] = min(a.layers or c["num_hidden_layers"], c["num_hidden_layers"])
    c["num_nextn_predict_layers"] = 0
    if a.fp8:
        c["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    os.makedirs(a.out)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if os.path.exists(os.path.join(a.tokenizer, name)):
            shutil.copy(os.path.join(a.tokenizer, name), a.out)
    n = c["num_hidden_layers"] + 1
    shards = [model_tensors(c)] + [layer_tensors(c, i) for i in range(n - 1)]
    names, total = {}, 0
    for i, tensors in enumerate(shards):
        path = os.path.join(a.out, f"model-{i + 1:05}-of-{n:05}.safetensors")
        inside, size = write_shard(path, tensors, a.fp8, [a.seed, i])
        names |= inside
        total += size
        print(f"{path}: {size / 1e9:.2f} GB", file=sys.stderr)
    with open(os.path.join(a.out, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": total}, "weight_map": names}, f)
    with open(os.path.join(a.out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(c, f, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A GGUF file with random weights of a model's shape, for llama.cpp's benchmark to be run beside `tandem bench`, which has random weights, too.

usage: random_gguf.py CONFIG.json FILE.gguf [--override JSON]      CONFIG.json as Hugging Face has it, e.g. configs/models/qwen3-30b-a3b.json

Routed experts are Q4_0, the other matrices Q8_0, the router and norms F32: what Tandem's INT4 experts and W8A8 are next to. There is no vocabulary, only its size, and no
scaling of rope: neither changes a time. Python alone is needed. The format is that of ggml's docs/gguf.md, version 3; keys and tensors are those that llama.cpp reads for
its architectures deepseek2 (DeepSeek V2 and V3, with the split W_UK and W_UV) and qwen3moe.
"""
import argparse
import json
import math
import os
import random
import struct
import sys

F32, Q4_0, Q8_0 = 0, 2, 8
BLOCK = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34)}  # values of a block, its bytes
SCALE = struct.pack("<e", 1 / 512)
ALIGNMENT = 32
PATTERN_BLOCKS = 32749  # a prime: rows do not repeat


def fail(sentence):
    sys.exit(f"random_gguf: {sentence}")


def value(v):
    """A metadata value with its type: text, bool, whole number or real."""
    if isinstance(v, str):
        text = v.encode()
        return struct.pack("<IQ", 8, len(text)) + text
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    return struct.pack("<If", 6, v)


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def deepseek2(c):
    heads, nope, rope, v_dim, lora = (c[k] for k in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    hidden, q_lora = c["hidden_size"], c.get("q_lora_rank") or 0
    keys = {"attention.head_count": heads, "attention.head_count_kv": 1, "attention.key_length": lora + rope, "attention.value_length": lora, "attention.key_length_mla": nope + rope,
            "attention.value_length_mla": v_dim, "attention.kv_lora_rank": lora, "rope.dimension_count": rope, "leading_dense_block_count": c["first_k_dense_replace"],
            "expert_count": c["n_routed_experts"], "expert_shared_count": c["n_shared_experts"], "expert_weights_scale": float(c["routed_scaling_factor"]),
            "expert_weights_norm": bool(c["norm_topk_prob"]), "expert_gating_func": 2 if c["scoring_func"] == "sigmoid" else 1}
    if q_lora:
        keys["attention.q_lora_rank"] = q_lora

    def layer(i):
        if q_lora:
            yield from (("attn_q_a.weight", Q8_0, (hidden, q_lora)), ("attn_q_a_norm.weight", F32, (q_lora,)), ("attn_q_b.weight", Q8_0, (q_lora, heads * (nope + rope))))
        else:
            yield "attn_q.weight", Q8_0, (hidden, heads * (nope + rope))
        yield from (("attn_kv_a_mqa.weight", Q8_0, (hidden, lora + rope)), ("attn_kv_a_norm.weight", F32, (lora,)), ("attn_k_b.weight", Q8_0, (nope, lora, heads)),
                    ("attn_v_b.weight", Q8_0, (lora, v_dim, heads)), ("attn_output.weight", Q8_0, (heads * v_dim, hidden)))
        if i < c["first_k_dense_replace"]:
            yield from mlp("", hidden, c["intermediate_size"])
            return
        yield from experts(c, c["n_routed_experts"])
        yield from mlp("_shexp", hidden, c["moe_intermediate_size"] * c["n_shared_experts"])
        if c["scoring_func"] == "sigmoid":
            yield "exp_probs_b.bias", F32, (c["n_routed_experts"],)

    return "deepseek2", keys, layer


def qwen3moe(c):
    heads, kv_heads, hidden = c["num_attention_heads"], c["num_key_value_heads"], c["hidden_size"]
    dim = c.get("head_dim") or hidden // heads
    keys = {"attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": dim, "attention.value_length": dim, "expert_count": c["num_experts"]}

    def layer(i):
        yield from (("attn_q.weight", Q8_0, (hidden, heads * dim)), ("attn_k.weight", Q8_0, (hidden, kv_heads * dim)), ("attn_v.weight", Q8_0, (hidden, kv_heads * dim)),
                    ("attn_output.weight", Q8_0, (heads * dim, hidden)), ("attn_q_norm.weight", F32, (dim,)), ("attn_k_norm.weight", F32, (dim,)))
        yield from experts(c, c["num_experts"])

    return "qwen3moe", keys, layer


def mlp(suffix, hidden, inter):
    yield from ((f"ffn_gate{suffix}.weight", Q8_0, (hidden, inter)), (f"ffn_up{suffix}.weight", Q8_0, (hidden, inter)), (f"ffn_down{suffix}.weight", Q8_0, (inter, hidden)))


def experts(c, n):
    hidden, inter = c["hidden_size"], c["moe_intermediate_size"]
    yield from (("ffn_gate_inp.weight", F32, (hidden, n)), ("ffn_gate_exps.weight", Q4_0, (hidden, inter, n)), ("ffn_up_exps.weight", Q4_0, (hidden, inter, n)),
                ("ffn_down_exps.weight", Q4_0, (inter, hidden, n)))


ARCHITECTURES = {"DeepseekV2ForCausalLM": deepseek2, "DeepseekV3ForCausalLM": deepseek2, "Qwen3MoeForCausalLM": qwen3moe}


def describe(c):
    """Metadata and tensors: (name, type, sides, the longest-running one first)."""
    name = c["architectures"][0]
    if name not in ARCHITECTURES:
        fail(f"{name}: only {', '.join(ARCHITECTURES)} are written")
    arch, keys, layer = ARCHITECTURES[name](c)
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    common = {"context_length": c["max_position_embeddings"], "embedding_length": hidden, "block_count": c["num_hidden_layers"], "feed_forward_length": c["intermediate_size"],
              "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]), "rope.freq_base": float(c["rope_theta"]), "vocab_size": vocab,
              "expert_used_count": c["num_experts_per_tok"], "expert_feed_forward_length": c["moe_intermediate_size"]}
    metadata = {"general.architecture": arch, "general.name": "random weights", "general.alignment": ALIGNMENT, "tokenizer.ggml.model": "no_vocab",
                **{f"{arch}.{k}": v for k, v in {**common, **keys}.items()}}
    tensors = [("token_embd.weight", Q8_0, (hidden, vocab)), ("output_norm.weight", F32, (hidden,)), ("output.weight", Q8_0, (hidden, vocab))]
    for i in range(c["num_hidden_layers"]):
        tensors += [(f"blk.{i}.{n}", t, s) for n, t, s in (("attn_norm.weight", F32, (hidden,)), *layer(i), ("ffn_norm.weight", F32, (hidden,)))]
    for n, t, sides in tensors:
        if sides[0] % BLOCK[t][0]:
            fail(f"{n} has rows of {sides[0]}, no multiple of {BLOCK[t][0]}")
    return metadata, tensors


def bytes_of(kind, sides):
    values, block = BLOCK[kind]
    return math.prod(sides) // values * block


def aligned(n):
    return -n % ALIGNMENT + n


def patterns():
    """Some blocks of each kind, which repeat in every tensor."""
    draw = random.Random(1)
    small = [draw.uniform(-0.05, 0.05) for _ in range(PATTERN_BLOCKS)]
    return {F32: struct.pack(f"<{len(small)}f", *small), **{kind: b"".join(SCALE + draw.randbytes(BLOCK[kind][1] - 2) for _ in range(PATTERN_BLOCKS)) for kind in (Q4_0, Q8_0)}}


def write_data(f, kind, sides, pattern):
    left = bytes_of(kind, sides)
    if kind == F32 and len(sides) == 1:  # norms
        f.write(struct.pack("<f", 1) * sides[0])
    else:
        for _ in range(left // len(pattern)):
            f.write(pattern)
        f.write(pattern[:left % len(pattern)])
    f.write(bytes(aligned(left) - left))


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("config")
    parser.add_argument("file")
    parser.add_argument("--override", default="{}")
    arguments = parser.parse_args()
    with open(arguments.config) as f:
        config = {**json.load(f), **json.loads(arguments.override)}
    metadata, tensors = describe(config)
    wanted = sum(aligned(bytes_of(t, s)) for _, t, s in tensors)
    folder = os.path.dirname(os.path.abspath(arguments.file))
    room = os.statvfs(folder)
    if wanted > room.f_bavail * room.f_frsize:
        fail(f"{arguments.file} takes {wanted / 1e9:.1f} GB, but {folder} has {room.f_bavail * room.f_frsize / 1e9:.1f} GB free")
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(text(k) + value(v) for k, v in metadata.items())
    offset = 0
    for name, kind, sides in tensors:
        head += text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, kind, offset)
        offset += aligned(bytes_of(kind, sides))
    blocks = patterns()
    with open(arguments.file, "wb") as f:
        f.write(head + bytes(aligned(len(head)) - len(head)))
        for _, kind, sides in tensors:
            write_data(f, kind, sides, blocks[kind])


main()

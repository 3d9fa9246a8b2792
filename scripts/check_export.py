#!/usr/bin/env python3
"""What `tandem quantize --output-format compressed-tensors` wrote, read by Hugging Face transformers: every quantised matrix compared with
code x scale, and the perplexity by tandem perplexity's protocol.

  python3 -m venv VENV && VENV/bin/pip install 'transformers==4.56.*' compressed-tensors accelerate torch
  VENV/bin/python scripts/check_export.py FOLDER --text TEXT [--window 256] [--limit 2048]
  tandem perplexity --model-path FOLDER --text TEXT --window 256 --stride 256 --limit 2048

transformers computes in float32 here, where Tandem rounds activations to 8 bits, so perplexities agree roughly and matrices to the last bit.
"""
import argparse
import glob
import math
import os

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer


def stored_tensors(folder):
    tensors = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        with safe_open(path, "pt") as f:
            tensors.update({name: f.get_tensor(name) for name in f.keys()})
    return tensors


def decoded(tensors, name):
    """code x scale of a module's matrix, or None where it is stored plainly."""
    if name + ".weight_packed" in tensors:
        words, scale = tensors[name + ".weight_packed"], tensors[name + ".weight_scale"].float()
        rows, columns = tensors[name + ".weight_shape"].tolist()
        codes = torch.stack([(words >> 4 * i & 15) - 8 for i in range(8)], -1).reshape(rows, -1)[:, :columns]
        return (codes.reshape(rows, scale.shape[1], -1) * scale[:, :, None]).reshape(rows, columns)
    if name + ".weight_scale" in tensors:
        return tensors[name + ".weight"].float() * tensors[name + ".weight_scale"].float()
    return None


def perplexity(model, tokenizer, text, window, limit):
    ids = tokenizer(text, add_special_tokens=False)["input_ids"][:limit]
    special = tokenizer("")["input_ids"]  # in front of every window
    total = n = 0
    for at in range(0, len(ids), window):
        row = special + ids[at:at + window]
        logprobs = torch.log_softmax(model(torch.tensor([row])).logits[0].float(), -1)
        scored = range(max(len(special), 1), len(row))
        total -= sum(logprobs[i - 1, row[i]].item() for i in scored)
        n += len(scored)
    return n, math.exp(total / n)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("folder")
    p.add_argument("--text", required=True)
    p.add_argument("--window", type=int, default=256)
    p.add_argument("--limit", type=int, default=2048)
    args = p.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.folder)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
    with open(args.text, encoding="utf-8") as f, torch.no_grad():
        n, value = perplexity(model, tokenizer, f.read(16 * args.limit), args.window, args.limit)  # the first call decompresses
    tensors, equal, differ = stored_tensors(args.folder), 0, []
    for name, module in model.named_modules():
        weight = decoded(tensors, name)
        if weight is not None and torch.equal(weight, module.weight):
            equal += 1
        elif weight is not None:
            differ.append(name)
    print(f"{equal} matrices equal to code x scale, {len(differ)} not {differ[:3]}; {n} tokens, perplexity {value:.4f}")
    return bool(differ) or not equal


raise SystemExit(main())

#!/usr/bin/env python3
"""Write tests/data/golden/deepseek_v4_fp8: the model of deepseek_v4 in the codes in which DeepSeek-V4 is published.

Linears are e4m3 with a scale of e8m0 for each block of 128 x 128, experts e2m1 with one for each 32 columns; the rest stays as it is.  The outputs
are those of reference_v4.py over the decoded weights, which no rounding changes any more.  Run from the repository root; needs numpy.
"""
import json, os, shutil
import numpy as np

import golden_io
from make_quantised import E2M1, E4M3, nearest, read_safetensors, write_safetensors
from reference_v4 import ModelV4

FROM, TO = "tests/data/golden/deepseek_v4", "tests/data/golden/deepseek_v4_fp8"
BLOCK, GROUP, GREEDY = 128, 32, 4
PLAIN = ("embed.weight", "head.weight", "norm.weight", "gate.weight", "wgate.weight", "compressor.wkv.weight", "weights_proj.weight")


def exponents(largest, reach):
    """The least power of two that brings values within reach of the codes, as e8m0."""
    return (np.ceil(np.log2(np.maximum(largest, 2.0 ** -40) / reach)) + 127).astype(np.uint8)


def fp8(w):
    n, k = w.shape
    padded = np.pad(np.abs(w), ((0, -n % BLOCK), (0, -k % BLOCK)))
    code = exponents(padded.reshape(padded.shape[0] // BLOCK, BLOCK, -1, BLOCK).max((1, 3)), 448)
    scale = np.repeat(np.repeat(2.0 ** (code.astype(int) - 127), BLOCK, 0), BLOCK, 1)[:n, :k]
    return {"weight": ("F8_E4M3", nearest(w / scale, E4M3)), "scale": ("F8_E8M0", code)}


def mxfp4(w):
    grouped = w.reshape(len(w), -1, GROUP)
    code = exponents(np.abs(grouped).max(-1), 6)
    codes = nearest(grouped / 2.0 ** (code.astype(int) - 127)[..., None], E2M1).reshape(w.shape)
    return {"weight": ("I8", (codes[:, 0::2] | codes[:, 1::2] << 4).view(np.int8)), "scale": ("F8_E8M0", code)}


def main():
    source, tensors = ModelV4(FROM), read_safetensors(os.path.join(FROM, "model.safetensors"))
    out = {}
    for name, tensor in tensors.items():
        if name.startswith(("mtp.0.emb.", "mtp.0.head.")):    # copies, which this publication leaves out
            continue
        is_coded = name.endswith(".weight") and tensor[1].ndim == 2 and not name.endswith(PLAIN)
        parts = {"weight": tensor} if not is_coded else (mxfp4 if ".experts." in name else fp8)(source.w[name])
        out.update({name: tensor} if not is_coded else {name[:-len("weight")] + part: t for part, t in parts.items()})
    shutil.rmtree(TO, ignore_errors=True)
    os.makedirs(TO)
    write_safetensors(os.path.join(TO, "model.safetensors"), out)
    config = dict(json.load(open(os.path.join(FROM, "config.json"))), quantization_config={
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": "ue8m0", "weight_block_size": [BLOCK, BLOCK]})
    with open(os.path.join(TO, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")

    model = ModelV4(TO)
    w = golden_io.Writer(TO, model=TO, dtype="fp8 and mxfp4", layout="single file", router_layers=list(range(config["num_hidden_layers"])))
    for p in golden_io.read(FROM)["prompts"][:2]:
        got, seq, gaps = model.forward(p["ids"]), list(p["ids"]), []
        print("router margin %.1e, index margin %.1e" % (got["router_margin"].min(), model.index_margin))
        for _ in range(GREEDY):
            top = np.sort(last := model.forward(seq)["logits"][-1])[-2:]
            gaps.append(float(top[1] - top[0]))
            seq.append(int(last.argmax()))
        drafts = model.mtp_logits(got, p["ids"][1:] + seq[len(p["ids"]):][:1])
        print("the prediction layer's router margin %.1e" % model.routed[0][2].min())
        w.prompt(p["ids"], seq[len(p["ids"]):], gaps, {
            "logits": ("f32", got["logits"]), "hidden": ("f32", got["hidden"]), "router_ids": ("i32", got["router_ids"]),
            "router_weights": ("f32", got["router_weights"]), "router_margin": ("f32", got["router_margin"]), "mtp_logits": ("f32", drafts)})
    w.close()


if __name__ == "__main__":
    main()

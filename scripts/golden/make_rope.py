#!/usr/bin/env python3
"""Make expected tables of cosines and sines far beyond the training length (tests/data/rope, for tests/model/test_rope.c).

  make_rope.py        run from the repository root; needs torch and transformers 4.57

The rotary embeddings of transformers compute angles in float32: an angle is off by a few 2^-24 of itself, 0.005 at position 163840.
Here the same code runs a second time with every float32 in it made float64; that result is kept, and the two must agree as far as
float32 goes.
"""
import json, os
import numpy as np
import torch
from transformers import AutoConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RotaryEmbedding
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeRotaryEmbedding

import golden_io

OUT = "tests/data/rope"
DEEPSEEK, QWEN = DeepseekV3RotaryEmbedding, Qwen3MoeRotaryEmbedding
# name: (class, config.json, members merged over it)
CASES = {
    "deepseek_v3_plain": (DEEPSEEK, "deepseek-v3", {"rope_scaling": None}),
    "deepseek_v3": (DEEPSEEK, "deepseek-v3", {}),
    "deepseek_v2_lite": (DEEPSEEK, "deepseek-v2-lite", {}),
    "kimi_k2": (DEEPSEEK, "kimi-k2", {}),
    "mscales_that_differ": (DEEPSEEK, "deepseek-v3", {"rope_scaling": {"mscale": 1.0, "mscale_all_dim": 0.5}}),
    "qwen3_plain": (QWEN, "qwen3-30b-a3b", {}),
    "qwen3_yarn_4": (QWEN, "qwen3-30b-a3b", {"max_position_embeddings": 131072, "rope_scaling": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}),
    "qwen3_linear_4": (QWEN, "qwen3-30b-a3b", {"max_position_embeddings": 163840, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
}
ROWS = (0, 1, 2, 127, 1000, 4095, 4096, 4097, 32767, 32768, 40959, 40960, 65537, 100003, 131071, 163839)


def merge(base, over):
    """As --model-override-json: objects are merged, everything else is replaced."""
    out = dict(base)
    for k, v in over.items():
        out[k] = merge(base[k], v) if isinstance(v, dict) and isinstance(base.get(k), dict) else v
    return out


def table(rotary, config, positions):
    cos, sin = rotary(config)(torch.zeros(1, dtype=torch.get_default_dtype()), torch.tensor([positions]))
    half = cos.shape[-1] // 2
    return torch.cat([cos[0, :, :half], sin[0, :, :half]], -1).double().numpy()


def in_double(run):
    """run() with every float32 of torch made float64."""
    kept = torch.float, torch.float32, torch.Tensor.float
    torch.set_default_dtype(torch.float64)
    torch.float = torch.float32 = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        return run()
    finally:
        torch.float, torch.float32, torch.Tensor.float = kept
        torch.set_default_dtype(torch.float32)


def main():
    os.makedirs(OUT, exist_ok=True)
    manifest = {"cases": []}
    for name, (rotary, base, over) in CASES.items():
        path = "configs/models/%s.json" % base
        config = merge(json.load(open(path)), over)
        if rotary is DEEPSEEK:                                                    # the class looks for head_dim
            config = dict(config, model_type="deepseek_v3", head_dim=config["qk_rope_head_dim"])
        hf = AutoConfig.for_model(**config)
        positions = [p for p in ROWS if p < config["max_position_embeddings"]]
        want = in_double(lambda: table(rotary, hf, positions))
        single = table(rotary, hf, positions)
        # angles of float32: at most four roundings (power, division, blend, product), each 2^-24 of the angle, and the cosine's own
        bound = 4 * 2.0 ** -24 * np.maximum(np.array(positions)[:, None], 1) * np.abs(want).max() + 2.0 ** -22
        assert (np.abs(want - single) <= bound).all(), name
        file = name + ".f32"
        want.astype("<f4").tofile(os.path.join(OUT, file))
        manifest["cases"].append({"name": name, "config": path, "override": json.dumps(over), "positions": positions, "file": file})
        print("%-22s %2d rows of %d, float32 differs by up to %.1e" % (name, len(positions), want.shape[1], np.abs(want - single).max()))
    with open(os.path.join(OUT, "manifest.json"), "w") as f:
        f.write(golden_io.dump(manifest) + "\n")


if __name__ == "__main__":
    main()

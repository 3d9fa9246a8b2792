#!/usr/bin/env python3
"""Give tiny checkpoints a multi-token-prediction layer, and its expected logits (tests/data/golden/README.md).

  make_mtp.py [VARIANT ...]   extend tests/data/golden/VARIANT/ (default: all; run from the repository root)

Needs torch, transformers 5.23 (the first that has such layers: MtpModel of modeling_layers.py) and numpy.  The layers
before stay as make_golden.py wrote them, and so do their outputs, which are checked again on the way.  The layer's logits
come from transformers, and reference_numpy.py must agree.
"""
import json, os, sys
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel
from transformers.utils import logging

import golden_io
from reference_numpy import Model

OUT = "tests/data/golden"
LEAST_MARGIN = 1e-4
VARIANTS = ("glm4_moe", "deepseek_v3_noqlora")


def layer_weights(like, n, seed):
    """The tensors of layer n, shaped as those of the layer before, and the six of the prediction; like: all weights."""
    rng, out, prefix, hidden = np.random.default_rng(seed), {}, "model.layers.%d." % n, like["model.norm.weight"].shape[0]
    shapes = {k.replace("layers.%d." % (n - 1), "layers.%d." % n): v.shape for k, v in like.items() if ".layers.%d." % (n - 1) in k}
    shapes.update({prefix + k: (hidden,) for k in ("enorm.weight", "hnorm.weight", "shared_head.norm.weight")})
    shapes[prefix + "eh_proj.weight"] = (hidden, 2 * hidden)
    for name, shape in sorted(shapes.items()):
        x = rng.standard_normal(tuple(shape), dtype=np.float32)
        if name.endswith("e_score_correction_bias"):
            out[name] = torch.from_numpy(0.1 * x)
            continue
        if name.endswith("norm.weight"):
            x = 1 + 0.2 * x
        elif name.endswith(".bias"):
            x = 0.5 * x
        else:
            peaked = any(k in name for k in ("q_proj", "q_b_proj", "k_proj", "kv_a_proj", "kv_b_proj", "mlp.gate.weight"))
            x = x * (1.5 if peaked else 1.0) / np.sqrt(shape[-1])
        out[name] = torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    out[prefix + "embed_tokens.weight"] = like["model.embed_tokens.weight"].clone()     # as in the published checkpoints
    out[prefix + "shared_head.head.weight"] = like["lm_head.weight"].clone()
    return out


def write_layer(folder, main, layer):
    save_file({**main, **layer}, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    path = os.path.join(folder, "config.json")
    config = dict(json.load(open(path)), num_nextn_predict_layers=1)
    with open(path, "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


class Reference:
    def __init__(self, folder, n):
        self.main = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.main._keys_to_ignore_on_load_unexpected = [r"model\.layers\.%d\." % n]     # the class names the published model's layer
        self.mtp = MtpModel.from_pretrained(self.main).to(torch.float32).eval()

    @torch.no_grad()
    def forward(self, ids, next_ids):
        """Logits of the model, and of the layer that is fed the next tokens."""
        out = self.main(torch.tensor([ids]), output_hidden_states=True, use_cache=False)
        cache = MtpCache(config=self.main.config.get_mtp_config())
        hidden = self.mtp.forward_layer(0, out.hidden_states[-1], torch.arange(1, len(ids) + 1)[None], cache,
                                        input_ids=torch.tensor([next_ids]))
        return out.logits[0].numpy(), self.mtp._project_to_logits(hidden)[0].numpy()


def make(name):
    folder = os.path.join(OUT, name)
    n = json.load(open(os.path.join(folder, "config.json")))["num_hidden_layers"]
    golden = golden_io.read(folder)
    fed = [p["ids"][1:] + [p["greedy"][0]] for p in golden["prompts"]]
    main = {k: v for k, v in load_file(os.path.join(folder, "model.safetensors")).items() if not k.startswith("model.layers.%d." % n)}
    for seed in range(1, 1000):
        write_layer(folder, main, layer_weights(main, n, seed))
        check, margin, drafts = Model(folder), np.inf, []
        for p, ids in zip(golden["prompts"], fed):
            drafts.append(check.mtp_logits(check.forward(p["ids"])["hidden"], ids))
            margin = min(margin, float(check.routed[0][2].min()))
        if margin > LEAST_MARGIN:
            break
    ref, worst = Reference(folder, n), 0.0
    path = os.path.join(folder, "manifest.json")
    manifest = json.load(open(path))
    for i, (p, ids) in enumerate(zip(golden["prompts"], fed)):
        logits, mtp = ref.forward(p["ids"], ids)
        assert np.abs(logits - p["logits"]).max() < 2e-5 * np.abs(p["logits"]).max(), "another main model"
        worst = max(worst, float(np.abs(mtp - drafts[i]).max() / np.abs(mtp).max()))
        array = "p%d_mtp_logits.f32" % i
        mtp.astype("<f4").tofile(os.path.join(folder, array))
        manifest["prompts"][i]["mtp_logits"] = {"file": array, "dtype": "f32", "shape": list(mtp.shape)}
    with open(path, "w") as f:
        f.write(golden_io.dump(manifest) + "\n")
    print("%-20s seed %d  margin %.1e  numpy's differ by %.1e" % (name, seed, margin, worst))
    assert worst < 2e-5


if __name__ == "__main__":
    logging.set_verbosity_error()
    for variant in sys.argv[1:] or VARIANTS:
        make(variant)

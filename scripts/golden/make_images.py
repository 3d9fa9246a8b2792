#!/usr/bin/env python3
"""Prompts with images for a golden model that make_golden.py wrote, with their expected outputs (tests/data/golden/README.md).

  make_images.py [MODEL ...]   write tests/data/golden/MODEL_images/ (default: all; run from the repository root)

Needs torch, numpy and transformers 5.24. Patches are random numbers from -1 to 1. Outputs are float32, with eager attention and no KV cache; greedy tokens
are computed a second time by transformers' own loop, with its cache and its positions of generated tokens. Seeds are tried in order until no choice of a
router and no greedy token is a near tie.
"""
import itertools
import os
import sys

import numpy as np
import torch
from transformers import AutoModelForImageTextToText
from transformers.utils import logging

import golden_io
from make_golden import LEAST_GAP, LEAST_MARGIN, OUT

GREEDY = 8
# of each prompt tokens of text, and images by rows and columns of patches; images within a page of KV and across its border
PROMPTS = {"qwen3_vl_moe": [[5, (4, 10), 6], [1, (14, 2), 3, (6, 6), 40], [(2, 2), 4], [100, (6, 6), 12, (12, 8), 2, (2, 16), 20]]}
MERGE = 2


class Model:
    def __init__(self, folder):
        self.model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.config, self.margin = self.model.config, np.inf
        for layer in self.model.model.language_model.layers:
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.register_forward_hook(self.see_router)

    def see_router(self, module, args, output):
        best = torch.sort(torch.softmax(output[0].float(), -1), -1, descending=True).values
        self.margin = min(self.margin, float((best[:, module.top_k - 1] - best[:, module.top_k]).min()))

    @torch.no_grad()
    def logits(self, ids, prompt, **more):
        self.model.model.rope_deltas = None
        seen = torch.tensor([ids])
        kinds = (seen == self.config.image_token_id).int()
        return self.model(input_ids=seen, pixel_values=prompt["pixels"], image_grid_thw=prompt["grids"], mm_token_type_ids=kinds, use_cache=False,
                          **more).logits[0].numpy()

    @torch.no_grad()
    def expect(self, prompt):
        """What is to come out; None where a choice is a near tie."""
        ids, out = prompt["ids"], {}
        seen, self.margin, self.model.model.rope_deltas = torch.tensor([ids]), np.inf, None
        kinds = (seen == self.config.image_token_id).int()
        features = self.model.model.get_image_features(prompt["pixels"], prompt["grids"])
        out["merged"] = torch.cat(list(features.pooler_output)).numpy()
        out["deepstack"] = np.stack([torch.cat(list(f)).numpy() for f in features.deepstack_features])
        positions, delta = self.model.model.get_rope_index(seen, mm_token_type_ids=kinds, image_grid_thw=prompt["grids"])
        out["positions"] = positions[:, 0].numpy().T
        text = self.model.model.language_model(seen, position_ids=positions, use_cache=False).last_hidden_state
        out["logits_looked_up"] = self.model.lm_head(text)[0].numpy()
        out["logits"] = self.logits(ids, prompt)
        greedy, gaps = [], []
        for _ in range(GREEDY):
            last = self.logits(ids + greedy, prompt)[-1]
            gaps.append(float(np.diff(np.sort(last)[-2:])[0]))
            greedy.append(int(last.argmax()))
            if self.margin < LEAST_MARGIN or gaps[-1] < LEAST_GAP or greedy[-1] == self.config.image_token_id:
                return None
        self.model.model.rope_deltas = None
        own = self.model.generate(input_ids=seen, pixel_values=prompt["pixels"], image_grid_thw=prompt["grids"], mm_token_type_ids=kinds, do_sample=False,
                                  max_new_tokens=GREEDY, eos_token_id=-1)[0, len(ids):].tolist()
        assert own == greedy, (own, greedy)
        return out, int(delta), greedy, gaps


def random_prompt(config, parts, seed):
    rng, patch = np.random.default_rng(seed), config.vision_config.patch_size
    ids, images, pixels = [], [], []
    for part in parts:
        if isinstance(part, int):
            ids += rng.integers(6, config.text_config.vocab_size, part).tolist()
            continue
        rows, columns = part
        images.append({"first": len(ids), "grid": [rows, columns]})
        ids += [config.image_token_id] * (rows * columns // MERGE ** 2)
        frame = rng.uniform(-1, 1, (rows * columns, 3, 1, patch, patch)).astype(np.float32)
        pixels.append(np.repeat(frame, 2, 2).reshape(rows * columns, -1))               # a picture is two equal frames
    grids = torch.tensor([[1, *image["grid"]] for image in images])
    return {"ids": ids, "images": images, "pixels": torch.from_numpy(np.concatenate(pixels)), "grids": grids}


def make(name):
    model = Model(os.path.join(OUT, name))
    w = golden_io.Writer(os.path.join(OUT, name + "_images"), model=os.path.join(OUT, name))
    for number, parts in enumerate(PROMPTS[name]):
        for seed in itertools.count(1000 * number):
            prompt = random_prompt(model.config, parts, seed)
            expected = model.expect(prompt)
            if expected:
                break
        out, delta, greedy, gaps = expected
        arrays = {"pixels": ("f32", prompt["pixels"].numpy()), "positions": ("i32", out.pop("positions")), **{k: ("f32", v) for k, v in out.items()}}
        w.prompt(prompt["ids"], greedy, gaps, arrays, images=prompt["images"], delta=delta)
        print("%s prompt %d: seed %d  %d tokens  margin %.1e  gap %.3f  merged rows std %.2f  deepstack %s  logits std %.2f, looked up %.2f" % (
            name, number, seed, len(prompt["ids"]), model.margin, min(gaps), out["merged"].std(), np.round(out["deepstack"].std((1, 2)), 2),
            out["logits"].std(), np.abs(out["logits"] - out["logits_looked_up"]).mean()), flush=True)
    w.close()


if __name__ == "__main__":
    torch.manual_seed(0)
    logging.set_verbosity_error()
    for model_name in sys.argv[1:] or PROMPTS:
        make(model_name)

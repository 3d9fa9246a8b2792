#!/usr/bin/env python3
"""What transformers answers to prompts with picture files, for tests/server/test_images_served.py: picture in, log-probabilities out.

  make_picture_answers.py     write tests/data/golden/qwen3_vl_moe_images/pictures.json (run from the repository root)

Needs torch, numpy, Pillow and transformers 5.24. A token of text is a byte, 6 ids up. Pictures go through transformers' image processor for Pillow.
Outputs are float32, with eager attention and no KV cache.
"""
import json
import os

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import Qwen2VLImageProcessorPil
from transformers.utils import logging

from make_golden import LEAST_GAP, OUT
from make_images import Model

NAME = "qwen3_vl_moe"
GREEDY = 8
LEAST_MARGIN = 2e-5  # of a router's choice: ours differs from transformers' by some 1e-6
PROCESSOR = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
             "size": {"shortest_edge": 1024, "longest_edge": 8192}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
# Parts of a user's message: a picture is a file of tests/data/images.
PROMPTS = [[{"text": "What is "}, {"image": "photo"}, {"text": " here?"}],
           [{"image": "jpeg-exif6"}],
           [{"text": "One: "}, {"image": "webp-animated-alpha"}, {"text": " two: "}, {"image": "jpeg-cmyk"}, {"text": " and "}, {"image": "photo"}]]
BETWEEN = "\n"  # the template's, behind a message


def picture(name):
    image = ImageOps.exif_transpose(Image.open(f"tests/data/images/{name}"))
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def text_ids(text):
    return [6 + b for b in text.encode()]


def prompt_of(config, processor, parts):
    ids, pixels, grids = [], [], []
    for part in parts:
        if "text" in part:
            ids += text_ids(part["text"])
            continue
        made = processor(picture(part["image"]), return_tensors="pt")
        pixels.append(made["pixel_values"])
        grids.append(made["image_grid_thw"])
        n = int(made["image_grid_thw"].prod()) // PROCESSOR["merge_size"] ** 2
        ids += [config.vision_start_token_id] + [config.image_token_id] * n + [config.vision_end_token_id]
    return {"ids": ids + text_ids(BETWEEN), "pixels": torch.cat(pixels), "grids": torch.cat(grids)}


def answer(model, prompt):
    greedy, logprobs = [], []
    model.margin = np.inf
    for _ in range(GREEDY):
        last = torch.log_softmax(torch.from_numpy(model.logits(prompt["ids"] + greedy, prompt)[-1]).double(), -1).numpy()
        gap = float(np.diff(np.sort(last)[-2:])[0])
        assert gap > LEAST_GAP and model.margin > LEAST_MARGIN, (gap, model.margin)
        greedy.append(int(last.argmax()))
        logprobs.append(round(float(last.max()), 7))
        assert greedy[-1] not in (model.config.image_token_id,)
    return {"prompt_tokens": len(prompt["ids"]), "tokens": greedy, "logprobs": logprobs}


def main():
    model = Model(os.path.join(OUT, NAME))
    processor = Qwen2VLImageProcessorPil(**{k: v for k, v in PROCESSOR.items() if k != "image_processor_type"})
    prompts = []
    for parts in PROMPTS:
        prompts.append({"parts": parts, **answer(model, prompt_of(model.config, processor, parts))})
        print(prompts[-1], flush=True)
    with open(os.path.join(OUT, NAME + "_images", "pictures.json"), "w") as f:
        json.dump({"processor": PROCESSOR, "prompts": prompts}, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    logging.set_verbosity_error()
    main()

#!/usr/bin/env python3
"""Make tests/data/images: small picture files, and what Pillow and the image processors of transformers make of them.

usage: make_pictures.py            with pillow 12.3.0, numpy and transformers 5.24.0; no torch

manifest.json: `files` with the hash of their RGB pixels; `resizes`; `rules`, each with the text that it is read from, with sizes, and with the grid and
the hash of the patches of one file. A hash is the SHA-256 of the bytes, of floats in little-endian.
"""
import ast
import functools
import hashlib
import json
import math
import os
import random
import sys

import numpy as np
import PIL
import transformers
from PIL import Image

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "image"))
import pictures  # noqa: E402

OUT = os.path.join(ROOT, "tests", "data", "images")
H, W = 13, 19
PHOTO = (61, 97)
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


def sha(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()


def qwen_like(module, name, fit, settings):
    """The *Pil processor's patches of a picture as bytes, and its size function."""
    processor = getattr(module, name)(**settings)

    def patches(rgb):
        done = processor.preprocess([rgb], do_rescale=False, do_normalize=False, return_tensors="np")
        normalised = processor.preprocess([rgb], return_tensors="np")["pixel_values"]
        return done["pixel_values"], [int(n) for n in done["image_grid_thw"][0]], normalised
    return patches, fit


@functools.cache
def navit_resize():
    """transformers' function, without the module around it, which wants torch."""
    file = os.path.join(os.path.dirname(transformers.__file__), "models", "kimi_k25", "image_processing_kimi_k25.py")
    tree = ast.parse(open(file, encoding="utf-8").read())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "navit_resize"]
    names = {"math": math}
    exec(compile(tree, file, "exec"), names)
    return names["navit_resize"]


def kimi_size(h, w, patch=14, merge=2, max_patches=16384, side=512):
    content, canvas = navit_resize()(h, w, patch, merge, max_patches, side)
    return [*content, *canvas]


def kimi_patches(rgb, patch=14, **limits):
    """Kimi's own processor: Pillow's resizing, zeros below and to the right, patches row by row."""
    h, w, ch, cw = kimi_size(*rgb.shape[:2], patch=patch, **limits)
    canvas = np.zeros((ch, cw, 3), np.uint8)
    canvas[:h, :w] = pictures.resized(rgb, h, w)
    rows, cols = ch // patch, cw // patch
    p = canvas.reshape(rows, patch, cols, patch, 3).transpose(0, 2, 4, 1, 3).reshape(rows * cols, -1)
    return p.astype(np.float32), [1, rows, cols], None


def rules():
    """(name, what the file says, patches(rgb), size(h, w) -> content and canvas)"""
    from transformers.models.glm46v import image_processing_pil_glm46v as glm46v
    from transformers.models.glm4v import image_processing_pil_glm4v as glm4v
    from transformers.models.glm5_next import image_processing_pil_glm5_next as glm5
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl as qwen

    def twice(size):
        return [*size, *size]

    def qwen_size(f, low, high):
        return lambda h, w: twice(qwen.smart_resize(h, w, f, low, high))

    def glm_size(low, high):
        return lambda h, w: twice(glm4v.smart_resize(2, h, w, 2, 28, low, high))

    def glm5_size(low, high):
        def size(h, w):
            canvas = glm5.smart_resize(2, h, w, 2, 28, low, high)
            scale = min(canvas[0] / h, canvas[1] / w)
            if 2 * h * w >= 2 * 28 * 28 * low:
                scale = min(1.0, scale)
            return [max(1, min(canvas[0], int(np.floor(h * scale)))), max(1, min(canvas[1], int(np.floor(w * scale)))), *canvas]
        return size

    def rule(name, module, kind, size, settings, text):
        patches, fit = qwen_like(module, kind + "Pil", size, settings)
        return name, text, patches, fit

    q = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, **HALF}
    yield rule("qwen3_vl", qwen, "Qwen2VLImageProcessor", qwen_size(32, 65536, 16777216), q, {**q, "image_processor_type": "Qwen2VLImageProcessorFast", "do_resize": True, "processor_class": "Qwen3VLProcessor"})
    small = {"patch_size": 4, "size": {"shortest_edge": 640, "longest_edge": 3000}, **HALF}
    yield rule("qwen_small", qwen, "Qwen2VLImageProcessor", qwen_size(8, 640, 3000), small, {"image_processor": {**small, "image_processor_type": "Qwen2VLImageProcessor", "resample": 3, "rescale_factor": 1 / 255}, "processor_class": "Qwen3VLProcessor"})
    yield rule("qwen_defaults", qwen, "Qwen2VLImageProcessor", qwen_size(28, 3136, 1003520), {}, {"image_processor_type": "Qwen2VLImageProcessor"})
    yield rule("qwen_old_limits", qwen, "Qwen2VLImageProcessor", qwen_size(28, 4000, 90000), {"size": {"shortest_edge": 4000, "longest_edge": 90000}},
               {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 4000, "max_pixels": 90000, "size": {"shortest_edge": 1, "longest_edge": 2}})
    g = {"size": {"shortest_edge": 12544, "longest_edge": 9633792}, "patch_size": 14, **CLIP}
    yield rule("glm4_5v", glm4v, "Glm4vImageProcessor", glm_size(12544, 9633792), g, {**g, "image_processor_type": "Glm4vImageProcessor", "do_rescale": True})
    s = {"size": {"shortest_edge": 12544, "longest_edge": 20000}, **CLIP}
    yield rule("glm4_6v_small", glm46v, "Glm46VImageProcessor", glm_size(12544, 20000), s, {**s, "image_processor_type": "Glm46VImageProcessorFast"})
    yield rule("glm5", glm5, "Glm5NextImageProcessor", glm5_size(16, 8000), {}, {"image_processor_type": "Glm5NextImageProcessor", "min_image_tokens": 16, "max_image_tokens": 8000})
    f = {"min_image_tokens": 2, "max_image_tokens": 5}
    yield rule("glm5_small", glm5, "Glm5NextImageProcessor", glm5_size(2, 5), f, {**f, "image_processor_type": "Glm5NextImageProcessor"})
    own = {"in_patch_limit": 16384, "patch_size": 14, "merge_kernel_size": 2, "fixed_output_tokens": None, "patch_limit_on_one_side": 512, **HALF}
    yield "kimi", {"media_proc_cfg": own, "auto_map": {}}, kimi_patches, kimi_size
    yield ("kimi_small", {"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": 12, "size": {"max_height": 5, "max_width": 5}},
           lambda rgb: kimi_patches(rgb, max_patches=12, side=5), lambda h, w: kimi_size(h, w, max_patches=12, side=5))


def size_or_none(size, h, w):
    try:
        return [int(n) for n in size(h, w)]
    except ValueError:
        return None


def sizes_of(size, seed):
    rng = random.Random(seed)
    asked = [(1, 1), (10, 10), (217, 331), (1000, 31), (31, 1000), (4000, 6000), (16, 3200), (16, 3201), (1, 60000), (60000, 3), (28, 28), (27, 29), (48, 80), (80, 48)]
    asked += [(int(2 ** rng.uniform(0, 13)), int(2 ** rng.uniform(0, 13))) for _ in range(60)]
    return [[h, w, size_or_none(size, h, w)] for h, w in asked]


def normalised(patches, settings):
    """As torchvision's backend: (p - 255 mean) / (255 std), in float32."""
    per_channel = patches.shape[1] // 3
    mean = np.repeat(np.float32(settings[0]) * np.float32(255), per_channel)
    std = np.repeat(np.float32(settings[1]) * np.float32(255), per_channel)
    return (patches.astype(np.float32) - mean) / std


def main():
    os.makedirs(OUT, exist_ok=True)
    for name in os.listdir(OUT):
        if name != "README.md":
            os.remove(os.path.join(OUT, name))
    white = pictures.png(np.ones((4000, 4000, 1), np.int64), 1, 0)
    with open(os.path.join(OUT, "large-white"), "wb") as f:
        f.write(white)
    files = []
    made = list(pictures.kinds(H, W, 5)) + [("one-pixel", pictures.saved(Image.fromarray(pictures.scene(1, 1, 3, 1)), "JPEG"))]
    made.append(("photo", pictures.saved(Image.fromarray(pictures.scene(*PHOTO, 3, 2)), "PNG", optimize=True)))
    for name, file in made:
        rgb = pictures.rgb_of(file)
        with open(os.path.join(OUT, name), "wb") as f:
            f.write(file)
        files.append({"name": name, "height": rgb.shape[0], "width": rgb.shape[1], "rgb": sha(rgb)})
    photo = pictures.rgb_of(made[-1][1])
    resizes = [[h, w, sha(pictures.resized(photo, h, w))] for h, w in [(61, 97), (61, 30), (30, 97), (61, 200), (7, 5), (1, 1), (122, 194), (300, 40), (40, 300), (62, 96), (640, 960)]]
    read = []
    for seed, (name, text, patches_of, size) in enumerate(rules()):
        settings = text.get("media_proc_cfg") or text.get("image_processor") or text
        default = HALF if name.startswith("kimi") else CLIP
        colours = [settings.get(key, default[key]) for key in ("image_mean", "image_std")]
        patches, grid, by_processor = patches_of(photo)
        values = normalised(patches, colours)
        if by_processor is not None:
            assert np.abs(values - by_processor).max() < 2e-6, name
        read.append({"name": name, "text": json.dumps(text), "rows": grid[1], "cols": grid[2], "values": sha(values.astype("<f4")), "sizes": sizes_of(size, seed)})
    manifest = {"pillow": PIL.__version__, "transformers": transformers.__version__, "files": files, "resizes": resizes, "rules": read}
    with open(os.path.join(OUT, "manifest.json"), "w") as f:
        f.write(json.dumps(manifest, indent=None, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A model quantised, to the nearest, and written by the compressed-tensors library itself: folders to try Tandem's loading on that Tandem did
not write.

  python3 -m venv VENV && VENV/bin/pip install 'transformers==4.56.*' compressed-tensors accelerate torch
  VENV/bin/python scripts/compress_with_library.py models/tale-v3-14m OUT int4-g32
  tandem perplexity --model-path OUT --text models/tale-v3-14m/valid.txt --window 256 --stride 256 --limit 2048
  VENV/bin/python scripts/check_export.py OUT --text models/tale-v3-14m/valid.txt
"""
import argparse
import os
import shutil

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme, QuantizationStatus, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams
from transformers import AutoModelForCausalLM

FORMATS = {
    "int4-g32": dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32),
    "int4-g32-zeros": dict(num_bits=4, type="int", symmetric=False, strategy="group", group_size=32),
    "w8a8": dict(num_bits=8, type="int", symmetric=True, strategy="channel"),
    "fp8-channel": dict(num_bits=8, type="float", symmetric=True, strategy="channel"),
    "fp8-block": dict(num_bits=8, type="float", symmetric=True, strategy="block", block_structure=[128, 128]),
    "mxfp4": dict(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32, scale_dtype=torch.uint8),
    "nvfp4": dict(num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn),
}


def limits(w, args):
    """Least and largest weight of what shares a scale."""
    if args.strategy == "block":
        (r, c), (n, k) = args.block_structure, w.shape
        tiles = torch.nn.functional.pad(w, (0, -k % c, 0, -n % r)).reshape(-(-n // r), r, -(-k // c), c)
        return tiles.amin((1, 3)), tiles.amax((1, 3))
    parts = w.reshape(w.shape[0], -1, args.group_size or w.shape[1])
    return parts.amin(-1), parts.amax(-1)


def set_scales(module):
    args, w, more = module.quantization_scheme.weights, module.weight.data.float(), {}
    if args.strategy == "tensor_group":
        module.weight_global_scale.data = torch.tensor([448.0 * 6.0 / w.abs().max().item()])
        more["global_scale"] = module.weight_global_scale.data
    scale, zero = calculate_qparams(*limits(w, args), args, **more)
    module.weight_scale.data = scale.to(module.weight_scale.dtype)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data = zero.to(module.weight_zero_point.dtype)
    module.quantization_status = QuantizationStatus.FROZEN


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("model")
    p.add_argument("out")
    p.add_argument("format", choices=FORMATS)
    args = p.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
    activations = QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True) if args.format == "w8a8" else None
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**FORMATS[args.format]), input_activations=activations)
    apply_quantization_config(model, QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head", r"re:.*mlp\.gate$", "re:.*kv_b_proj$"]))
    for module in model.modules():
        if getattr(module, "quantization_scheme", None):
            set_scales(module)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(args.out)
    compressor.update_config(args.out)
    for name in os.listdir(args.model):
        if name.startswith("tokenizer"):
            shutil.copy(os.path.join(args.model, name), args.out)


main()

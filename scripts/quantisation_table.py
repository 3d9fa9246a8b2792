#!/usr/bin/env python3
"""Every rounding method of tandem quantize on a test model: the tables of docs/quantisation.md, as markdown.

  scripts/quantisation_table.py demo [options]       the demo model and its valid.txt
  scripts/quantisation_table.py smollm2 --text WIKITEXT [--model DIR] [options]
                                                     SmolLM2 as a mixture (scripts/smollm2/make_moe.py) and WikiText-2's validation text

  --only REGEX     rows whose "experts method rotation" match, like 'int4 gptq' or 'g64 .* none'
  --work DIR       what was measured stays there as DIR/MODEL-EXPERTS-METHOD-ROTATION.json and is not measured again (default: build/quantisation)
  --tandem PATH    default: build/release/cli/tandem
  --print          measure nothing; the rows that there are

A row is, with what tandem quantize calls its options,
  tandem quantize --model-path MODEL --output OUT --expert-quantization EXPERTS --method METHOD --rotation ROTATION [--calibration TEXT --calibration-tokens N]
  tandem perplexity --model-path OUT --expert-quantization EXPERTS --text TEXT PROTOCOL --against MODEL
where TEXT of the calibration is what of the text is not scored. All rows have W8A8 in the device tier. On two cores the demo model takes 10 to 20 seconds a row, SmolLM2 two to four minutes.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODELS = {  # folder, text, byte from which on the text calibrates, tokens that calibrate, protocol, formats
    "demo": ("models/tale-v3-14m", "models/tale-v3-14m/valid.txt", 60000, 32768, ["--window", "256", "--stride", "256", "--limit", "16384"],
             ["int4", "int4-g128", "int4-g64", "int4-g32", "int8"]),
    "smollm2": ("build/smollm2-moe", None, 200000, 16384, ["--limit", "4096"], ["int4", "int4-g64", "int4-g32", "int8"]),
}
DIRECT = ["none", "nvfp4", "mxfp4"]  # formats that are rounded to nearest only, or not at all


def rows_of(formats):
    for experts in DIRECT:
        yield experts, "nearest", "none"
    for experts in formats:
        for method in "nearest", "clip", "gptq":
            for rotation in "none", "hadamard":
                yield experts, method, rotation


def tandem(args, *command):
    p = subprocess.run([args.tandem, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        sys.exit(f"tandem {' '.join(command)}\n{p.stderr[-2000:]}")
    return p.stdout


def measure(args, row, result):
    """One row: its folder is made, measured and removed."""
    experts, method, rotation = row
    with tempfile.TemporaryDirectory(dir=args.work) as folder:
        reference = os.path.join(args.work, args.name + "-reference.lp")
        if not os.path.exists(reference):
            tandem(args, "perplexity", "--model-path", args.model, "--quantization", "none", "--expert-quantization", "none", "--text", args.text, *args.protocol,
                   "--save", reference)
        model, device = args.model, ["--quantization", "w8a8_int8"]
        if (method, rotation) != ("nearest", "none"):
            model, text = os.path.join(folder, "out"), os.path.join(folder, "calibration.txt")
            with open(args.text, "rb") as f, open(text, "wb") as to:
                to.write(f.read()[args.calibrate_from:])
            calibration = [] if method == "nearest" else ["--calibration", text, "--calibration-tokens", str(args.calibration_tokens)]
            tandem(args, "quantize", "--model-path", args.model, "--output", model, *device, "--expert-quantization", experts, "--method", method, "--rotation",
                   rotation, *calibration)
        got = tandem(args, "perplexity", "--model-path", model, *device, "--expert-quantization", experts, "--text", args.text, *args.protocol, "--against",
                     reference, "--json")
    with open(result + ".new", "w") as f:
        f.write(got)
    os.rename(result + ".new", result)


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("name", choices=MODELS)
    p.add_argument("--model")
    p.add_argument("--text")
    p.add_argument("--only", default="")
    p.add_argument("--work", default=os.path.join(ROOT, "build/quantisation"))
    p.add_argument("--tandem", default=os.path.join(ROOT, "build/release/cli/tandem"))
    p.add_argument("--print", action="store_true")
    args = p.parse_args()
    model, text, args.calibrate_from, args.calibration_tokens, args.protocol, formats = MODELS[args.name]
    args.model, args.text = args.model or os.path.join(ROOT, model), args.text or text and os.path.join(ROOT, text)
    if not args.text:
        p.error("--text is missing")
    os.makedirs(args.work, exist_ok=True)
    print("| experts | method | rotation | perplexity | difference | KL | top-1 |\n|---|---|---|---|---|---|---|")
    for row in rows_of(formats):
        result = os.path.join(args.work, "-".join((args.name, *row)) + ".json")
        if not os.path.exists(result) and re.search(args.only, " ".join(row)) and not args.print:
            measure(args, row, result)
        if not os.path.exists(result):
            continue
        with open(result) as f:
            got = json.load(f)
        print(f"| {' | '.join(row)} | {got['perplexity']:.3f} | {100 * got['ratio'] - 100:+.2f} +- {100 * got['ratio_error']:.2f} % | {got['kl']:.4f} | "
              f"{100 * got['top1_agreement']:.1f} % |", flush=True)


main()

#!/usr/bin/env python3
"""How near every family of models comes to the machine's bounds: one stream's decode and a prompt of 2048 tokens.

usage: bench/families.py [--tandem PROGRAM] [--passes N] [--rounds N] [--shapes NAME,...] [--json]

Weights are random, of real shapes cut in layers (bench/shapes.py). Each pass goes over all shapes in turn, so that the machine's drift is in all of them; a figure is the median
of the passes, with the least and the largest. decode: time of its bound (bytes / read bandwidth) / time. prefill: the same with the int8 peak. Beside
it are its ratio to the first shape's in the same pass, and that ratio with attention's products counted against their own peak. These are of 16 bits,
of which a vector holds half as many. Leave the machine alone meanwhile; the load is printed."""
import argparse
import json
import os
import statistics
import subprocess
import sys

from plan_against_bench import plan_row
from shapes import LAYERS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROWS = {"decode": "1 streams, context 16", "prefill": "2048 tokens"}


PROMPT = "1 prompts of 2048 tokens"


def model_of(shape):
    config, layers = LAYERS[shape]
    return ["--model-path", os.path.join(ROOT, "configs", "models", config), "--json-model-override-args", json.dumps(layers)]


def measure(args, shape, suite):
    """shape -> the row of the suite, as tandem bench prints it"""
    p = subprocess.run([args.tandem, "bench", suite, *model_of(shape), "--filter", ROWS[suite], "--rounds", str(args.rounds), "--json"], capture_output=True, text=True)
    if p.returncode:
        sys.exit("%s, %s: %s" % (shape, suite, p.stderr.strip()))
    return {r["shape"]: r for r in map(json.loads, p.stdout.splitlines())}


def attention_share(args, shape, row):
    """Of a prompt's operations, what share is products of queries with keys and of weights with values."""
    _, plan = plan_row(args.tandem, model_of(shape), row)
    ops = {p["part"]: p["int8_ops"] + p["float_ops"] for p in plan["parts"]}
    return ops["attention, KV"] / sum(ops.values())


def spread(values):
    return "%.2f (%.2f to %.2f)" % (statistics.median(values), min(values), max(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default=os.path.join(ROOT, "build", "release", "cli", "tandem"))
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", default=",".join(LAYERS), help="of %s; the first is the one that others are compared with" % ", ".join(LAYERS))
    parser.add_argument("--json", action="store_true", help="every row of every pass")
    args = parser.parse_args()
    shapes = args.shapes.split(",")
    rows = {s: [] for s in shapes}  # shape -> of each pass, what each row reached
    for n in range(args.passes):
        for s in shapes:
            print("pass %d of %d: %s, load %.2f" % (n + 1, args.passes, s, os.getloadavg()[0]), file=sys.stderr, flush=True)
            found = {**measure(args, s, "decode"), **measure(args, s, "prefill")}
            if args.json:
                print(json.dumps({"pass": n, "model": s, "rows": found}), flush=True)
            rows[s].append(found)
    if args.json:
        return
    print("| shape | decode, context 16 | decode, context 16384 | prefill 2048, of the int8 peak | of %s's | attention at its own peak |\n|---|---|---|---|---|---|" % shapes[0])
    share = {s: attention_share(args, s, rows[s][0][PROMPT]) for s in shapes}
    for s in shapes:
        decode = [spread([r["1 streams, context %d" % c]["fraction"] for r in rows[s]]) for c in (16, 16384)]
        prefill = [r[PROMPT]["int8_fraction"] for r in rows[s]]
        ratio = [p / first[PROMPT]["int8_fraction"] for p, first in zip(prefill, rows[shapes[0]])]
        own = [r * (1 + share[s]) / (1 + share[shapes[0]]) for r in ratio]
        print("| %s | %s | %s | %s | %s | %s |" % (s, *decode, spread(prefill), spread(ratio), spread(own)))


if __name__ == "__main__":
    main()

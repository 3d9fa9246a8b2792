#!/usr/bin/env python3
"""What `tandem plan` expects beside what `tandem bench` measures, on this machine.

usage: bench/plan_against_bench.py [--tandem PROGRAM] [--passes N] [--rounds N] [--threads N] [--shapes NAME,...] [--rows SUITE:FILTER,...] [--tolerance SHARE]

Weights are random, of real shapes cut in layers (bench/shapes.py). Each pass goes over all rows in turn. A row: `tandem bench` times it between
measurements of the machine's bounds; a machine file gets those bounds, and `tandem plan` says what the same step would take. So the machine's drift is in
both. Routers of random weights are uneven: --experts-in-use of a shape is the number with which the plan reads as many bytes as the row of 16 streams did. The ratios are plan / bench, medians over the passes, with the least and the largest. With --tolerance the exit status is 1 where a median is further
away from 1. Leave the machine alone meanwhile; the load is printed. With --threads 1 both sides count processor time, which a busy machine disturbs less."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

from shapes import LAYERS

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What is cut besides layers: these are quick to fill.
LESS = {
    "glm-air": {"n_routed_experts": 64, "vocab_size": 16384},
    "glm-flash": {"vocab_size": 16384},
    "minimax-m2": {"num_local_experts": 64, "vocab_size": 16384, "eos_token_id": None},
    "gpt-oss": {"vocab_size": 16384, "eos_token_id": 2},
    "v3": {"n_routed_experts": 32, "vocab_size": 16384},
}
SHAPES = {name: (config, {**layers, **LESS.get(name, {})}) for name, (config, layers) in LAYERS.items() if name != "kimi-k2.5"}
# suite, filter of its rows: every row that it lets through is compared
ROWS = "decode:context 16,decode:context 4096,prefill:128 tokens,prefill:512 tokens,prefill:2048 tokens"
MACHINE = """nodes: 1
kernels: {tier}
node-cores: {cores}
node-memory-gib: 4096
node-read-gbps: {read}
node-int8-gops: {int8}
node-f32-gflops: {f32}
"""


def run(args):
    p = subprocess.run(args, capture_output=True, text=True)
    if p.returncode:
        sys.exit("%s: %s" % (" ".join(args[:3]), p.stderr.strip()))
    return p.stdout


def measure(args, model, suite, rows):
    threads = ["--threads", str(args.threads)] if args.threads else []
    return [json.loads(line) for line in run([args.tandem, "bench", suite, *model, "--filter", rows, "--rounds", str(args.rounds), *threads, "--json"]).splitlines()]


def plan_row(tandem, model, bench, *more):
    """What the plan says of a row of the benchmark, on a machine with the bounds that were measured beside it."""
    streams, prompt = re.fullmatch(r"(\d+) streams, context (\d+)", bench["shape"]), re.fullmatch(r"1 prompts of (\d+) tokens", bench["shape"])
    args = ("--streams", streams[1], "--contexts", streams[2]) if streams else ("--prompts", prompt[1])
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
        f.write(MACHINE.format(tier=bench["tier"], cores=bench["threads"], read=bench["read_bound_gbps"], int8=bench["int8_bound_gops"], f32=bench["f32_bound_gflops"]))
        f.flush()
        plan = json.loads(run([tandem, "plan", *model, "--machine", f.name, "--max-total-tokens", "131072", "--json", *args, *more]))
    return plan["model"], plan[bench["bench"]][0]


def experts_in_use(tandem, model, bench):
    """Among how many experts tokens would choose evenly, were they to touch as many as they did."""
    wanted = bench["gbps"] * bench["time_us"] * 1e3
    config, _ = plan_row(tandem, model, bench)
    least, most = 8, config["experts"]
    while least < most:
        n = (least + most) // 2
        _, row = plan_row(tandem, model, bench, "--experts-in-use", str(n))
        read = sum(p["bytes"] for p in row["parts"] if p["part"] != "norms, residual sums")
        least, most = (n + 1, most) if read < wanted else (least, n)
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default=ROOT + "/build/release/cli/tandem")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--tolerance", type=float)
    args = parser.parse_args()
    found, in_use = {}, {}
    for number in range(args.passes):
        for name in args.shapes.split(","):
            print("pass %d of %d, %s, load %.1f" % (number + 1, args.passes, name, os.getloadavg()[0]), file=sys.stderr)
            config, override = SHAPES[name]
            model = ["--model-path", "%s/configs/models/%s" % (ROOT, config), "--json-model-override-args", json.dumps(override)]
            if name not in in_use:
                in_use[name] = experts_in_use(args.tandem, model, measure(args, model, "decode", "16 streams, context 16")[0])
                print("  tokens choose among %d experts of a layer" % in_use[name], file=sys.stderr)
            for suite, rows in (r.split(":") for r in args.rows.split(",")):
                for bench in measure(args, model, suite, rows):
                    _, plan = plan_row(args.tandem, model, bench, "--experts-in-use", str(in_use[name]))
                    row = (bench["time_us"] / 1e3, plan["step_ms"], bench["fraction"])
                    found.setdefault((name, bench["shape"]), []).append(row)
                    print("  %s, %s: bench %.1f ms (%.2f of the bound), plan %.1f ms" % (name, bench["shape"], row[0], row[2], row[1]), file=sys.stderr)
    print("| shape | row | bench, ms | of the bound | plan, ms | plan / bench | least to most |\n|---|---|---|---|---|---|---|")
    far = 0
    for (name, row), runs in found.items():
        ratios = [plan / bench for bench, plan, _ in runs]
        ratio = statistics.median(ratios)
        far += args.tolerance is not None and abs(ratio - 1) > args.tolerance
        print("| %s | %s | %.1f | %.2f | %.1f | %.2f | %.2f to %.2f |" % (name, row, statistics.median(r[0] for r in runs), statistics.median(r[2] for r in runs),
                                                                      statistics.median(r[1] for r in runs), ratio, min(ratios), max(ratios)))
    sys.exit(1 if far else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The targets of the AMX kernels, judged on a machine with AMX.

usage: amx_targets.py [--build BUILD] [--base BUILD] [--pairs N] [--rounds N] [--threads N]

BUILD is a build's folder (default build/release): its cli/tandem is run. Rows of `tandem bench` are judged by the fraction of the int8 peak of the
tiles, which each of them measures for itself. With --base, the folder of an older build, both run in turns, N pairs (default 3), and every row is
shown as now / then: the median of the pairs, and the least and the most. The speed of prefill is judged only so. Takes three minutes a pair, and 20 GiB
of memory for the model; leave the machine alone meanwhile.

Exit status: 0 when every target is reached, 1 when one is missed or was not measured, 77 on a machine whose best kernels are not AMX's.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIG = "configs/models/deepseek-v2-lite.json"
PROMPT = "1 prompts of 2048 tokens"
W8A8_SHAPES = ("v2-lite o", "v3 q_b")
NOT_SLOWER = 0.98  # two kernels of one speed differ by so much from run to run


def bench(build, arguments, options):
    """The rows of a run."""
    command = [os.path.join(build, "cli/tandem"), "bench", *arguments, "--json", "--threads", str(options.threads), "--rounds", str(options.rounds)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"{' '.join(command)}: {run.stderr.strip()}")
    return [json.loads(line) for line in run.stdout.splitlines()]


def name_of(row):
    return f"{row['kernel']}, {row['shape']}, {row['m']} rows"


def in_turns(arguments, options):
    """{row's name: (its rows of the build, those of the base)}, pair by pair."""
    found = {}
    for _ in range(options.pairs if options.base else 1):
        for which, build in enumerate([options.build, *([options.base] if options.base else [])]):
            for row in bench(build, arguments, options):
                found.setdefault(name_of(row), ([], []))[which].append(row)
    return found


class Report:
    def __init__(self):
        self.missed = 0

    def judge(self, what, value, target, more=""):
        reached = value is not None and value >= target
        self.missed += not reached
        print(f"{'pass' if reached else 'FAIL'}  {'not measured' if value is None else f'{value:.2f}':>12}  of {target:.2f}  {what}{more}", flush=True)


def against_base(now, base):
    """How many times as fast, of pairs."""
    ratios = [b["time_us"] / n["time_us"] for n, b in zip(now, base)]
    return statistics.median(ratios), f"{statistics.median(ratios):.2f} x the base ({min(ratios):.2f} to {max(ratios):.2f})"


def judge_fractions(report, found, target, wanted):
    n = 0
    for name, (now, base) in found.items():
        if now and wanted(now[0]):
            n += 1
            more = f"; {against_base(now, base)[1]}" if base else ""
            report.judge(name, statistics.median(r["int8_fraction"] for r in now), target, more)
    if not n:
        report.judge("no such row was printed", None, target)


def judge_few_rows(report, found):
    """AMX's kernel beside AVX512-VNNI's, which runs in the same process."""
    for name, (now, _) in found.items():
        if now and now[0]["kernel"].startswith("int4c_amx") and now[0]["m"] <= 16:
            others = [(n, o) for n, (o, _) in found.items() if o and o[0]["kernel"].startswith("int4c_avx512vnni") and (o[0]["shape"], o[0]["m"]) == (now[0]["shape"], now[0]["m"])]
            value = statistics.median(r["time_us"] for r in others[0][1]) / statistics.median(r["time_us"] for r in now) if others else None
            report.judge(f"{name}: speed beside {others[0][0] if others else 'AVX512-VNNI'}", value, NOT_SLOWER)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default=os.path.join(ROOT, "build/release"))
    p.add_argument("--base")
    p.add_argument("--pairs", type=int, default=3)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    options = p.parse_args()
    options.build = os.path.abspath(options.build)
    options.base = options.base and os.path.abspath(options.base)
    peak = bench(options.build, ["roofline"], options)
    if peak[0]["tier"] != "amx":
        print(f"nothing to judge: the best kernels that run here are {peak[0]['tier']}'s, not AMX's")
        return 77
    for row in peak:
        if row["bound"] in ("read", "int8") and row["threads"] == options.threads and row["shape"] in ("memory", "registers"):
            print(f"bound {row['bound']}, {row['threads']} threads: {row['gbps'] or row['gops']:.0f} {'GB/s' if row['gbps'] else 'GOP/s'}")
    report = Report()
    print("\nint4 per channel, 128 rows and more, weights from memory: of the tiles' peak")
    int4 = in_turns(["kernels", "--filter", "int4c_a"], options)
    judge_fractions(report, int4, 0.52, lambda r: r["kernel"].startswith("int4c_amx") and r["m"] >= 128)
    print("\nint4 per channel, 1 to 16 rows")
    judge_few_rows(report, int4)
    print("\nW8A8, 256 rows and more: of the tiles' peak")
    for shape in W8A8_SHAPES:
        judge_fractions(report, in_turns(["kernels", "--filter", shape], options), 0.40, lambda r: r["kernel"] == "w8a8" and r["m"] >= 256)
    print("\nexperts of a layer, 2048 tokens: of the tiles' peak")
    judge_fractions(report, in_turns(["experts", "--filter", "deepseek"], options), 0.40, lambda r: r["m"] == 2048)
    print("\nprefill, DeepSeek-V2-Lite, a prompt of 2048 tokens: times the base's speed (2.75 is the mark to aim at)")
    prefill = in_turns(["prefill", "--model-path", CONFIG, "--filter", PROMPT], options)
    for name, (now, base) in prefill.items():
        rate = statistics.median(r["m"] / r["time_us"] * 1e6 for r in now)
        value, text = against_base(now, base) if base else (None, "give --base")
        report.judge(name, value, 2.0, f"; {rate:.0f} tokens/s; {text}")
    print(f"\n{report.missed} missed" if report.missed else "\nall reached")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())

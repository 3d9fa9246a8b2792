#!/usr/bin/env python3
"""What a long context costs: decode time per token by context length, with a straight-line fit, and the server's memory against its plan.

usage: long_context.py --preset v2-lite [--contexts 0,4096,8192,16384]
       long_context.py --preset v2-lite --contexts 0,4096,8192,16384,32768,40960 --server-args '--context-length 49152 --max-total-tokens 49152 ...'

Starts a server, so --url is refused. The contexts are beginnings of one random prompt, so each adds to the prefix cache what is new and a run
is decoding alone. Time per token: the gap between two tokens. Memory: the resident set of the server against what it says at start (weights,
KV and working memory), and what is no part of the plan: code, tokenizer, threads, HTTP. Standard library only.
"""
import argparse
import re
import statistics
import tempfile

import service
from token_stream import random_ids, stream

PROMPT = 16  # tokens that are new in every run

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
service.add_arguments(parser)
parser.add_argument("--contexts", default="0,4096,8192,16384")
parser.add_argument("--tokens", type=int, default=32, help="generated per run")
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--vocab", type=int, default=4000, help="ids are drawn below this")


def resident_gib(pid, field):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(field + r":\s*(\d+) kB", f.read())[1]) / 2 ** 20


def fit(points):
    """Least squares: (intercept, slope, largest distance from the line)."""
    n, sx, sy = len(points), sum(x for x, _ in points), sum(y for _, y in points)
    sxx, sxy = sum(x * x for x, _ in points), sum(x * y for x, y in points)
    slope = (n * sxy - sx * sy) / (n * sxx - sx * sx)
    base = (sy - slope * sx) / n
    return base, slope, max(abs(y - base - slope * x) for x, y in points)


def measure(args, server):
    contexts = sorted(int(c) for c in args.contexts.split(","))
    ids, points = random_ids(max(contexts) + PROMPT, 1, args.vocab), []
    print("| context | first token s, most of it cached from the second run on | ms per token, median | least | RSS GiB |\n|---|---|---|---|---|")
    for c in contexts:
        runs = [stream(server, ids[:c + PROMPT], args.tokens) for _ in range(args.runs)]
        gaps = [1e3 * (b - a) for t in runs for a, b in zip(t, t[1:])]
        points.append((c + PROMPT + args.tokens / 2, statistics.median(gaps)))
        first = ", ".join(f"{t[0]:.2f}" for t in runs[:2])
        print(f"| {c} | {first} | {points[-1][1]:.2f} | {min(gaps):.2f} | {resident_gib(server.process.pid, 'VmRSS'):.2f} |", flush=True)
    if len(points) > 2:
        base, slope, off = fit(points)
        print(f"\n{base:.2f} ms + {1e3 * slope:.4f} ms per 1000 tokens; no median is further from the line than {off:.2f} ms")


def main():
    args = parser.parse_args()
    if args.url:
        raise SystemExit("the memory of a server that was not started here is not known: --preset or --server-args")
    with tempfile.TemporaryFile("w+") as log, service.Service(args, log=log) as server:
        log.seek(0)
        plan = re.search(r"memory: (.*)", log.read())[1]
        planned = sum(map(float, re.findall(r"([0-9.]+) GiB", plan)))
        print(f"planned: {plan}\n")
        measure(args, server)
        most = resident_gib(server.process.pid, "VmHWM")
        print(f"\nlargest resident set {most:.2f} GiB, planned {planned:.2f} GiB: {most / planned:.3f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What a long prompt does to others, and they to it: the longest gap of running streams while it is prefilled, the first token of short prompts that
come meanwhile, and the long prompt's own speed, each beside the same without the others.

usage: longest_gap.py --preset v2-lite [--prompt 16384] [--max-step-ms 0,500] [--chunks 8192] [--streams 4] [--runs 3]

With --streams 0 the long prompt is alone until the short ones come.

Starts a server for each row, so --url is refused. Medians over the runs, but for the longest gap and the longest wait of a short prompt, which are the worst. Prompts are random token ids.
Short prompts of --short tokens come spread evenly over the long prompt's time alone: of three, behind a quarter, a half and three quarters of it.
Standard library only.
"""
import argparse
import math
import statistics
import time

import service
from token_stream import Stream, random_ids, stream

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
service.add_arguments(parser)
parser.add_argument("--prompt", type=int, default=16384, help="tokens of the long prompt")
parser.add_argument("--short", type=int, default=128, help="tokens of the short ones")
parser.add_argument("--shorts", type=int, default=3, help="how many of them come while the long prompt is prefilled")
parser.add_argument("--max-step-ms", default="0,500", help="values of that flag")
parser.add_argument("--chunks", default="8192", help="values of --chunked-prefill-size")
parser.add_argument("--turns", action="store_true", help="with --disable-mixed-chunk as well as without")
parser.add_argument("--streams", type=int, default=4, help="that run; 0: there are no gaps then")
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--vocab", type=int, default=4000, help="ids are drawn below this")
args = parser.parse_args()


def gaps(running, begin, end):
    """Gaps between tokens of a stream that lie in begin .. end (perf_counter) at least in part, and those that end before."""
    times = [running.begin + t for t in running.times]
    pairs = list(zip(times, times[1:]))
    return [b - a for a, b in pairs if b > begin and a < end], [b - a for a, b in pairs if b <= begin]


def measure(server, seed):
    """(usual gap, longest gap, first tokens of short prompts: usual and longest, usual alone, seconds of the long prompt, the same alone)"""
    prompts = iter(range(seed, seed + 100))
    long_alone = stream(server, random_ids(args.prompt, next(prompts), args.vocab), 1)[0]
    short_alone = statistics.median(stream(server, random_ids(args.short, next(prompts), args.vocab), 1)[0] for _ in range(5))
    running = [Stream(server, random_ids(16, next(prompts), args.vocab), 16000) for _ in range(args.streams)]
    for s in running:
        s.wait_tokens(20)
    long, shorts = Stream(server, random_ids(args.prompt, next(prompts), args.vocab), 1), []
    for i in range(1, args.shorts + 1):
        time.sleep(max(0, long.begin + i * long_alone / (args.shorts + 1) - time.perf_counter()))
        if not long.times:
            shorts.append(stream(server, random_ids(args.short, next(prompts), args.vocab), 1)[0])
    seconds = long.wait_tokens(1)[0]
    for s in running:
        s.wait_tokens(len(s.times) + 2)
        s.leave()
    told = [gaps(s, long.begin, long.begin + seconds) for s in running]
    during, before = (sum((g[i] for g in told), []) for i in (0, 1))
    usual, longest = (statistics.median(before), max(during)) if told else (math.nan, math.nan)
    return usual, longest, statistics.median(shorts), max(shorts), short_alone, seconds, long_alone


def ms(seconds):
    return "" if math.isnan(seconds) else f"{1e3 * seconds:.0f} ms"


def row(step_ms, chunk, turns):
    flags = ["--disable-radix-cache", "--chunked-prefill-size", str(chunk), "--max-step-ms", str(step_ms)]
    with service.Service(args, *flags, *(["--disable-mixed-chunk"] if turns else [])) as server:
        columns = list(zip(*(measure(server, 100 * r) for r in range(args.runs))))
    usual, _, short, _, short_alone, seconds, alone = map(statistics.median, columns)
    return (f"| {step_ms} | {chunk} | {'in turns' if turns else 'mixed'} | {ms(usual)} | {ms(max(columns[1]))} | {ms(short_alone)} | "
            f"{ms(short)} | {ms(max(columns[3]))} | {args.prompt / alone:.0f} | {args.prompt / seconds:.0f} | {alone / seconds:.2f} |")


if args.url:
    raise SystemExit("the server is started with other flags for each row: --preset or --server-args")
names = ("`--max-step-ms`", "chunk", "prompts and streams", "usual gap", "longest gap", "short prompt alone", "beside", "longest", "long prompt alone, tokens/s", "beside", "share")
table = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
for size in map(int, args.chunks.split(",")):
    for step_ms in map(int, args.max_step_ms.split(",")):
        for in_turns in ((False, True) if args.turns else (False,)):
            table.append(row(step_ms, size, in_turns))
            print(table[-1], flush=True)
print("\n" + "\n".join(table))

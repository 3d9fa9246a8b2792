#!/usr/bin/env python3
"""The first look at a server: decode of one stream, prefill, and several streams at a time. Prompts are random token ids, so dummy weights will do.

usage: few_streams.py --preset v2-lite [--prefill 2048] [--streams 16] [--tokens 24] [--runs 3]
       few_streams.py --url http://127.0.0.1:30000 --vocab 90000
Prints medians over the runs. Standard library only.
"""
import argparse
import statistics
import time

import service
from token_stream import Stream, random_ids, stream

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
service.add_arguments(parser)
parser.add_argument("--prefill", type=int, default=1024, help="prompt tokens of the prefill measurement")
parser.add_argument("--streams", type=int, default=8)
parser.add_argument("--tokens", type=int, default=24, help="tokens to generate per stream")
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--vocab", type=int, default=4000, help="ids are drawn below this")
args = parser.parse_args()


def prompt(n, seed):
    return random_ids(n, seed, args.vocab)


def together(server, seed):
    begin = time.perf_counter()
    for s in [Stream(server, prompt(16, seed + i), args.tokens) for i in range(args.streams)]:
        s.join()
        s.wait_tokens(args.tokens)
    return args.streams * args.tokens / (time.perf_counter() - begin)


with service.Service(args, "--disable-radix-cache") as served:
    stream(served, prompt(16, 0), 2)  # warm-up
    one = [stream(served, prompt(16, r), args.tokens) for r in range(args.runs)]
    tpot = statistics.median((t[-1] - t[0]) / (len(t) - 1) for t in one)
    print(f"1 stream:   TPOT {1e3 * tpot:.1f} ms, {1 / tpot:.1f} tokens/s", flush=True)
    ttft = statistics.median(stream(served, prompt(args.prefill, r), 1)[0] for r in range(args.runs))
    print(f"prefill:    TTFT of {args.prefill} tokens {ttft:.2f} s, {args.prefill / ttft:.1f} tokens/s", flush=True)
    rate = statistics.median(together(served, 100 * r) for r in range(args.runs))
    print(f"{args.streams} streams: {rate:.1f} tokens/s together, prompts of 16 included")

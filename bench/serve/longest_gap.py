#!/usr/bin/env python3
"""The longest time between two tokens of a running stream while a long prompt is prefilled, with prompts and streams in the same steps, and in
turns (--disable-mixed-chunk).

usage: longest_gap.py --preset v2-lite [--prompt 16384] [--chunks 512,2048] [--runs 3]
       longest_gap.py --preset demo --server-args '--context-length 32768 --json-model-override-args {\\"max_position_embeddings\\":32768}'

Starts a server for each row, so --url is refused. Medians over the runs. Prompts are random token ids. The longest prefill step is the server's
own figure, from its log: the stream cannot wait less than the step that it shares or waits for. Standard library only.
"""
import argparse
import json
import statistics
import tempfile

import service
from token_stream import Stream, random_ids

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
service.add_arguments(parser)
parser.add_argument("--prompt", type=int, default=16384, help="tokens of the long prompt")
parser.add_argument("--chunks", default="512,2048", help="values of --chunked-prefill-size")
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--vocab", type=int, default=4000, help="ids are drawn below this")
args = parser.parse_args()


def measure(server, seed):
    """(usual gap of the stream, longest one during the prefill, time to the prompt's first token)"""
    running = Stream(server, random_ids(16, seed, args.vocab), 4096)
    usual = running.wait_tokens(20)[:20]
    prompt = Stream(server, random_ids(args.prompt, seed + 1, args.vocab), 1)
    prompt.wait_tokens(1)
    running.wait_tokens(len(running.times) + 2)
    running.leave()
    begin = prompt.begin - running.begin
    end = begin + prompt.times[0]
    pairs = list(zip(running.times, running.times[1:]))
    return (statistics.median(b - a for a, b in zip(usual, usual[1:])), max(b - a for a, b in pairs if b > begin and a < end), prompt.times[0])


def prefill_steps(log):
    """Seconds of each: a prompt of more than one chunk logs what is done and how fast the last chunk was."""
    steps, done = [], 0
    for entry in map(json.loads, log):
        if entry.get("event") == "prefill":
            done = 0 if entry["done"] <= done else done
            steps.append((entry["done"] - done) / entry["tokens_per_s"])
            done = entry["done"]
    return steps


def row(chunk, turns):
    flags = ["--log-format", "json", "--decode-log-interval", "0", "--disable-radix-cache", "--chunked-prefill-size", str(chunk)]
    with tempfile.TemporaryFile("w+") as log:
        with service.Service(args, *flags, *(["--disable-mixed-chunk"] if turns else []), log=log) as server:
            usual, gap, ttft = map(statistics.median, zip(*(measure(server, 100 * r) for r in range(args.runs))))
        log.seek(0)
        steps = prefill_steps(log)
    return (f"| {chunk} | {'in turns' if turns else 'mixed'} | {1e3 * usual:.1f} ms | {gap:.2f} s | {max(steps):.2f} s | {sum(steps) / args.runs:.1f} s | "
            f"{args.prompt / ttft:.0f} |")


if args.url:
    raise SystemExit("the server is started with other flags for each row: --preset or --server-args")
table = ["| chunk | prompts and streams | usual gap | longest gap during prefill | longest prefill step | all of them | prefill tokens/s |", "|---" * 7 + "|"]
for size in map(int, args.chunks.split(",")):
    for in_turns in (False, True):
        table.append(row(size, in_turns))
        print(table[-1], flush=True)
print("\n" + "\n".join(table))

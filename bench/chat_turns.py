#!/usr/bin/env python3
"""Time to first token over a chat of many turns, with the tokens that each turn computes: what the prefix cache and its states are for.

usage: bench/chat_turns.py [--shapes NAME,...] [--turns N] [--new N] [--answer N] [--chats N]

Weights are random, of real shapes cut in layers (bench/shapes.py). In each turn `new` tokens come behind the last answer, and `answer` are generated:
where both together are whole pages of 128, every turn but the first computes as many tokens. A row is a shape; times are medians over the chats, each
with other tokens. The last column is the ratio of the last turn's time to the second's, with the least and the largest over the chats. Leave the
machine alone meanwhile; each turn is printed with the load."""
import argparse
import json
import os
import statistics
import sys

from shapes import LAYERS

IDS = 100000  # below every shape's vocabulary
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/server"))
from chat_turns import turns  # noqa: E402
from server_process import Server  # noqa: E402


def serve(args, shape):
    config, layers = LAYERS[shape]
    length = args.turns * (args.new + args.answer)
    flags = ("--load-format", "dummy", "--json-model-override-args", json.dumps(layers), "--max-running-requests", "1", "--max-total-tokens", str(length + 1024))
    return Server(*flags, program=[args.tandem], model=os.path.join(ROOT, "configs", "models", config), timeout=600)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tandem", default=os.path.join(ROOT, "build/release/cli/tandem"))
    parser.add_argument("--shapes", default="qwen3-next,qwen3.5-35b,gpt-oss", help="of %s" % ", ".join(LAYERS))
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--new", type=int, default=124)
    parser.add_argument("--answer", type=int, default=4)
    parser.add_argument("--chats", type=int, default=3)
    args = parser.parse_args()
    print("| shape | tokens of the last prompt | most computed beside the new ones | first turn, s | second, s | last, s | last / second |\n|---|---|---|---|---|---|---|")
    for shape in args.shapes.split(","):
        with serve(args, shape) as server:
            chats = []
            for seed in range(args.chats):
                chats.append([])
                for t in turns(server, args.turns, args.new, args.answer, IDS, seed):
                    chats[-1].append(t)
                    print("%s, chat %d, turn %d: %d of %d tokens cached, first after %.2f s, load %.2f" % (
                        shape, seed, len(chats[-1]), t.cached, t.prompt, t.first_s, os.getloadavg()[0]), file=sys.stderr, flush=True)
        ratios = [c[-1].first_s / c[1].first_s for c in chats]
        most = max(t.prompt - t.cached - t.new for c in chats for t in c[1:])
        times = [statistics.median(c[i].first_s for c in chats) for i in (0, 1, -1)]
        print("| %s | %d | %d | %.2f | %.2f | %.2f | %.2f (%.2f to %.2f) |" % (
            shape, chats[0][-1].prompt, most, *times, statistics.median(ratios), min(ratios), max(ratios)), flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Time a running server: decode of one stream, prefill, and several streams at a time. Prompts are random token ids, so dummy weights will do.

usage: bench_server.py [--url http://127.0.0.1:30000] [--prefill 1024] [--streams 8] [--tokens 24] [--runs 3]
Prints medians over the runs. Standard library only.
"""
import argparse
import json
import random
import statistics
import threading
import time
import urllib.request

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--url", default="http://127.0.0.1:30000")
parser.add_argument("--prefill", type=int, default=1024, help="prompt tokens of the prefill measurement")
parser.add_argument("--streams", type=int, default=8)
parser.add_argument("--tokens", type=int, default=24, help="tokens to generate per stream")
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--vocab", type=int, default=4000, help="ids are drawn below this")
args = parser.parse_args()
model = json.load(urllib.request.urlopen(args.url + "/v1/models"))["data"][0]["id"]


def stream(n_prompt, n_tokens, seed):
    """Seconds from the request to each event that carries a token."""
    draw = random.Random(seed)
    body = {"model": model, "prompt": [draw.randrange(5, args.vocab) for _ in range(n_prompt)], "max_tokens": n_tokens, "ignore_eos": True,
            "temperature": 0, "stream": True, "return_token_ids": True}
    start, times = time.perf_counter(), []
    request = urllib.request.Request(args.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    for line in urllib.request.urlopen(request):
        if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0].get("token_ids"):
            times.append(time.perf_counter() - start)
    return times


def together(seed):
    threads = [threading.Thread(target=stream, args=(16, args.tokens, seed + i)) for i in range(args.streams)]
    start = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return args.streams * args.tokens / (time.perf_counter() - start)


def median(values):
    return statistics.median(list(values))


stream(16, 2, 0)                                                    # warm-up
one = [stream(16, args.tokens, r) for r in range(args.runs)]
print("1 stream:   TPOT %.1f ms, %.1f tokens/s" % (median(1e3 * (t[-1] - t[0]) / (len(t) - 1) for t in one),
                                                   median((len(t) - 1) / (t[-1] - t[0]) for t in one)))
ttft = median(stream(args.prefill, 1, r)[0] for r in range(args.runs))
print("prefill:    TTFT of %d tokens %.2f s, %.1f tokens/s" % (args.prefill, ttft, args.prefill / ttft))
print("%d streams: %.1f tokens/s together, prompts of 16 included" % (args.streams, median(together(100 * r) for r in range(args.runs))))

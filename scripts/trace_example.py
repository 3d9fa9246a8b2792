#!/usr/bin/env python3
"""The example of docs/tracing.md: traces of the shape of a model (random weights), its figures on stdout and its pictures.

usage: trace_example.py [--tandem BINARY] [--model CONFIG.json] [--traces DIR] [--images DIR]

Three servers, one after the other, each with one device thread and one expert thread: two cores should have nothing else to do. With the
shape of DeepSeek-V2-Lite each takes 9 GB of memory.
"""
import argparse
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import urllib.request

import trace_plot

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROMPT, ANSWER = 1024, 33  # tokens
LAYERS = "10-12"
RUNS = {  # name: what is added to the command
    "whole": ["--disable-two-chunk-overlap"],
    "halves": [],
    "defer": ["--enable-defer", "--max-deferred-experts-per-token", "2"],
}
PICTURES = [  # (tokens of the step, [(run, file, title)]): each group on one scale
    (PROMPT, [("whole", "trace-prefill-whole.svg", "Prefill of %d tokens, layers %s, --disable-two-chunk-overlap" % (PROMPT, LAYERS)),
              ("halves", "trace-prefill-halves.svg", "Prefill of %d tokens, layers %s, as two halves a and b" % (PROMPT, LAYERS))]),
    (1, [("halves", "trace-decode.svg", "Decode of one token, layers %s" % LAYERS),
         ("defer", "trace-decode-defer.svg", "Decode of one token, layers %s, two of six experts deferred" % LAYERS)]),
]


def complete(url, prompt, max_tokens):
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=900) as answer:
        json.load(answer)


def record(tandem, model, path, flags):
    command = [tandem, "launch_server", "--model-path", model, "--load-format", "dummy", "--port", "0", "--max-total-tokens", "8192",
               "--npu-threads", "1", "--cpuinfer", "1", "--trace", path, *flags]
    print("$", " ".join(os.path.basename(part) for part in command), flush=True)
    with tempfile.TemporaryFile() as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server:
        try:
            url = re.search(r"http://\S+", server.stdout.readline())
            if not url:
                log.seek(0)
                raise SystemExit(log.read().decode())
            ids = random.Random(1).choices(range(1000, 5000), k=PROMPT)
            complete(url[0], ids, 1)
            complete(url[0], ids[:16], ANSWER)
        finally:
            server.send_signal(signal.SIGTERM)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tandem", default=os.path.join(ROOT, "build/release/cli/tandem"))
    p.add_argument("--model", default=os.path.join(ROOT, "configs/models/deepseek-v2-lite.json"))
    p.add_argument("--traces", help="keep the trace files here")
    p.add_argument("--images", default=os.path.join(ROOT, "docs/images"))
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, threads = a.traces or scratch, {}
        os.makedirs(folder, exist_ok=True)
        os.makedirs(a.images, exist_ok=True)
        for name, flags in RUNS.items():
            path = os.path.join(folder, name + ".json")
            record(a.tandem, a.model, path, flags)
            threads[name] = trace_plot.read_threads(path)
    for tokens, pictures in PICTURES:
        windows = []
        for run, _, title in pictures:
            steps = trace_plot.steps_of(threads[run], tokens)
            print("\n" + title)
            trace_plot.summarise(threads[run], steps)
            step = trace_plot.fastest(steps)
            trace_plot.mark_halves(threads[run], step)
            windows.append(trace_plot.layer_window(threads[run], step, LAYERS))
        longest = max(end - begin for begin, end in windows)
        for (run, name, title), (begin, _) in zip(pictures, windows):
            with open(os.path.join(a.images, name), "w", encoding="utf-8") as f:
                f.write(trace_plot.draw(threads[run], begin, begin + longest, title))


if __name__ == "__main__":
    main()

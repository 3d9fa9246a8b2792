#!/usr/bin/env python3
"""Tandem beside llama.cpp and its forks on one machine: tokens a second of a prompt and of one stream, as a table of Markdown.

usage: peers.py CONFIG.json --peer NAME=LLAMA_BENCH ... [--flags NAME=FLAGS] [--stream NAME=FLAGS] [--tandem PROGRAM] [--override JSON] [--prompt 512] [--context 1024] [--rounds 3]

CONFIG.json is a model's as Hugging Face has it, e.g. configs/models/deepseek-v2-lite.json. All have random weights of its shapes: Tandem W8A8 with INT4 experts, the peers a
file of scripts/random_gguf.py, Q8_0 with Q4_0 experts, in TMPDIR. LLAMA_BENCH is a peer's llama-bench, e.g. one built from the sources that PyPI's llama-cpp-python
brings along. The programs take turns; a figure is the median of the rounds, a ratio the median of the rounds' ratios. Standard library only.
"""
import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("config")
parser.add_argument("--peer", action="append", default=[], metavar="NAME=LLAMA_BENCH", required=True)
parser.add_argument("--flags", action="append", default=[], metavar="NAME=FLAGS", help="further flags of a peer, in one word of the shell")
parser.add_argument("--stream", action="append", default=[], metavar="NAME=FLAGS", help="a peer's flags for one stream in place of -n GENERATE -d CONTEXT; of ik_llama.cpp -n 0 -gp 1024,32")
parser.add_argument("--tandem", default=os.path.join(ROOT, "build/release/cli/tandem"))
parser.add_argument("--override", default="{}", help="as of tandem bench --json-model-override-args")
parser.add_argument("--prompt", type=int, default=512, help="a row of tandem bench prefill: 128, 512, 2048, ...")
parser.add_argument("--context", type=int, default=1024, help="a row of tandem bench decode: 16, 1024, 4096, ...")
parser.add_argument("--generate", type=int, default=32, help="tokens that a peer generates")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--threads", type=int, default=os.cpu_count())
args = parser.parse_args()


def named(values):
    return dict(v.split("=", 1) for v in values)


def output(command):
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"peers: {shlex.join(command)} ends with {run.returncode}: {(run.stderr.strip() or 'no word').splitlines()[-1]}")
    return run.stdout


def of_tandem(suite, row, tokens):
    """Tokens a second of the one row."""
    rows = [json.loads(line) for line in output([args.tandem, "bench", suite, "--model-path", args.config, "--json-model-override-args", args.override, "--threads", str(args.threads),
                                                 "--filter", row, "--rounds", "1", "--json"]).splitlines() if line.startswith("{")]
    if len(rows) != 1:
        sys.exit(f"peers: tandem bench {suite} has {len(rows)} rows of \"{row}\"")
    return tokens / rows[0]["time_us"] * 1e6


def of_peer(program, flags, model, what):
    """Tokens a second of the last test that these flags ask for."""
    return json.loads(output([program, "-m", model, "-t", str(args.threads), "-r", "1", "-o", "json", *flags, *shlex.split(what)]))[-1]["avg_ts"]


def measure(model, peers, flags, streams):
    """Of a round, for each program: (tokens a second of the prompt, of the stream)"""
    yield of_tandem("prefill", f"1 prompts of {args.prompt} tokens", args.prompt), of_tandem("decode", f"1 streams, context {args.context}", 1)
    for name, program in peers.items():
        more = shlex.split(flags.get(name, ""))
        yield of_peer(program, more, model, f"-p {args.prompt} -n 0"), of_peer(program, more, model, "-p 0 " + streams.get(name, f"-n {args.generate} -d {args.context}"))


def main():
    peers, flags, streams = named(args.peer), named(args.flags), named(args.stream)
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "model.gguf")
        output([sys.executable, os.path.join(ROOT, "scripts/random_gguf.py"), args.config, model, "--override", args.override])
        rounds = []
        for i in range(args.rounds):
            rounds.append(list(measure(model, peers, flags, streams)))
            print(f"round {i + 1} of {args.rounds}: {rounds[-1]}", file=sys.stderr, flush=True)
    print(f"| | prompt of {args.prompt}, tokens/s | Tandem is ahead by | one stream, tokens/s | ahead by |\n|---|---|---|---|---|")
    for i, name in enumerate(["Tandem", *peers]):
        cells = []
        for what in range(2):
            cells += [f"{statistics.median(r[i][what] for r in rounds):.1f}", f"{statistics.median(r[0][what] / r[i][what] for r in rounds):.2f}" if i else ""]
        print(f"| {name} | {' | '.join(cells)} |")


main()

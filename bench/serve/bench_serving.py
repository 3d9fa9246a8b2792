#!/usr/bin/env python3
"""The service under SGLang's bench_serving, as published, with prompts of random ids: a row per backend that speaks the OpenAI API.

usage: bench_serving.py --preset demo
       bench_serving.py --url http://127.0.0.1:30000 --backends sglang-oai --num-prompts 64 --random-input-len 1024 --max-concurrency 16
Flags that are not of this program are bench_serving's own. What it prints is kept as BACKEND.txt, its figures as BACKEND.jsonl in --output-dir;
the table goes to bench_serving.md there. sglang is installed into build/venv-sglang by venv.sh.
"""
import argparse
import json
import os
import subprocess
import sys

import service

OPENAI = ["sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat", "lmdeploy", "lmdeploy-chat"]
DEFAULTS = ["--random-input-len", "512", "--random-output-len", "128", "--random-range-ratio", "1", "--max-concurrency", "4"]
COLUMNS = {"mean_ttft_ms": "TTFT ms", "p99_ttft_ms": "p99", "mean_tpot_ms": "TPOT ms", "p99_tpot_ms": "p99", "mean_e2e_latency_ms": "latency ms",
           "output_throughput": "tokens/s, system", "total_throughput": "with the prompts"}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    service.add_arguments(p)
    p.add_argument("--backends", nargs="+", choices=OPENAI, default=OPENAI, help="how the requests are sent")
    p.add_argument("--num-prompts", type=int, default=16, help="requests of each")
    p.add_argument("--output-dir", default=os.path.join(service.ROOT, "build/bench-serve"))
    return p.parse_known_args()


def run(python, args, server, backend, flags, folder):
    """The figures of one run."""
    log, figures = os.path.join(folder, backend + ".txt"), os.path.join(folder, backend + ".jsonl")
    if os.path.exists(figures):
        os.remove(figures)
    command = [python, os.path.join(os.path.dirname(os.path.abspath(__file__)), "sglang_client.py"), "--backend", backend, "--base-url", server.url,
               "--model", server.tokenizer, "--served-model-name", server.model, "--dataset-name", "random-ids", "--flush-cache", "--num-prompts", str(args.num_prompts),
               *DEFAULTS, *flags, "--output-details", "--output-file", figures]
    with open(log, "wb") as f:
        status = subprocess.run(command, stdout=f, stderr=f, env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}).returncode
    if status != 0:
        with open(log, encoding="utf-8", errors="replace") as f:
            sys.stderr.writelines(f.readlines()[-15:])
        raise SystemExit(f"bench_serving ended with {status}; all it said is in {log}")
    with open(figures, encoding="utf-8") as f:
        return json.loads(f.readlines()[-1])


def main():
    args, flags = arguments()
    python = service.make_venv("sglang")
    folder = os.path.join(args.output_dir, "bench_serving")
    os.makedirs(folder, exist_ok=True)
    with service.Service(args) as server:
        text = [f"{key}: {value}  " for key, value in service.facts(server).items() if value]
        text += ["", f"| backend | completed | {' | '.join(COLUMNS.values())} |", "|---" * (2 + len(COLUMNS)) + "|"]
        failures = []
        for backend in args.backends:
            print(f"{backend} …", flush=True)
            r = run(python, args, server, backend, flags, folder)
            text.append(f"| {backend} | {r['completed']} | " + " | ".join(f"{r[key]:.2f}" for key in COLUMNS) + " |")
            failures += [f"{backend}: {error}" for error in r["errors"] if error]
    table = "\n".join(text) + "\n"
    with open(os.path.join(folder, "bench_serving.md"), "w", encoding="utf-8") as f:
        f.write(table)
    print(f"\n{table}\nthe programs' own reports are in {folder}")
    if failures:
        raise SystemExit("\n".join(["some requests failed:", *failures[:8]]))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted") from None

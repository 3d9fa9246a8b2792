#!/usr/bin/env python3
"""The service under `evalscope perf`: input length x streams at a time; TTFT, TPOT, tokens per second of a stream and of the system.

The default matrix is that of the A+K reports: input 128, 1024, 2K, 4K, 8K; output 512; 1, 2, 4, 8, 16 streams; no prefix cache. Inputs that
do not fit the model's context are left out. After every row results.csv, .json, .md and .svg in --output-dir are written anew.

usage: run.py --preset demo --short
       run.py --preset v2-lite --server-args '--cpuinfer 2' --inputs 128 1024 --parallel 1 4 16
       run.py --url http://127.0.0.1:30000 --tokenizer-path /models/DeepSeek-R1      (start it with --disable-radix-cache)
evalscope is installed into build/venv-evalscope by venv.sh; the rest is the standard library. README.md defines the columns.
"""
import argparse
import csv
import glob
import json
import os
import shutil
import subprocess
import sys
import time

import matrix_plot
import service

MATRIX = {"inputs": [128, 1024, 2048, 4096, 8192], "output": 512, "parallel": [1, 2, 4, 8, 16]}
SHORT = {"inputs": [128, 1024], "output": 64, "parallel": [1, 4]}
COLUMNS = ["input", "parallel", "requests", "failed", "prompt_tokens", "output_tokens", "ttft_ms", "ttft_p99_ms", "tpot_ms", "tpot_p99_ms", "stream_tps",
           "system_tps", "system_total_tps", "cached_percent"]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    service.add_arguments(p)
    p.add_argument("--inputs", type=int, nargs="+", help="tokens")
    p.add_argument("--output", type=int, help="tokens")
    p.add_argument("--parallel", type=int, nargs="+", help="streams at a time")
    p.add_argument("--short", action="store_true", help="inputs 128 and 1024, output 64, 1 and 4 streams: for a small machine")
    p.add_argument("--rounds", type=int, default=2, help="requests per stream")
    p.add_argument("--temperature", type=float, default=1, help="above 0, random weights do not repeat one token for ever")
    p.add_argument("--output-dir", default=os.path.join(service.ROOT, "build/bench-serve"))
    args = p.parse_args()
    for key, value in (SHORT if args.short else MATRIX).items():
        setattr(args, key, getattr(args, key) or value)
    return args


def evalscope(python, args, server, n_input, n_parallel, warmups):
    """The row of one input length at one number of streams."""
    out = os.path.join(args.output_dir, "evalscope", f"input-{n_input}-parallel-{n_parallel}")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    command = [os.path.join(os.path.dirname(python), "evalscope"), "perf", "--url", server.url + "/v1/chat/completions", "--api", "openai",
               "--model", server.model, "--dataset", "random", "--tokenizer-path", server.tokenizer, "--prefix-length", "0",
               "--min-prompt-length", str(n_input), "--max-prompt-length", str(n_input), "--min-tokens", str(args.output), "--max-tokens", str(args.output),
               "--extra-args", '{"ignore_eos": true}', "--temperature", str(args.temperature), "--seed", str(n_parallel), "--warmup-num", str(warmups),
               "--parallel", str(n_parallel), "--number", str(n_parallel * args.rounds), "--outputs-dir", out, "--no-timestamp"]
    log = os.path.join(out, "log.txt")
    with open(log, "wb") as f:
        status = subprocess.run(command, stdout=f, stderr=f, env=os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}).returncode
    files = [glob.glob(os.path.join(glob.escape(out), "**", name), recursive=True) for name in ("benchmark_summary.json", "benchmark_percentile.json")]
    if status != 0 or not all(files):
        with open(log, encoding="utf-8", errors="replace") as f:
            sys.stderr.writelines(f.readlines()[-15:])
        raise SystemExit(f"evalscope ended with {status} and without figures; all it said is in {log}")
    with open(files[0][0], encoding="utf-8") as f:
        s = json.load(f)
    with open(files[1][0], encoding="utf-8") as f:
        p99 = next(p for p in json.load(f) if p["Percentiles"] == "99%")
    tpot = s["Avg TPOT (ms)"]
    return dict(zip(COLUMNS, [n_input, n_parallel, s["Total Requests"], s["Failed Requests"], s["Avg Input Tokens"], s["Avg Output Tokens"],
                              s["Avg TTFT (ms)"], p99["TTFT (ms)"], tpot, p99["TPOT (ms)"], round(1000 / tpot, 2) if tpot else None,
                              round(s["Output Throughput (tok/s)"], 2), round(s["Total Throughput (tok/s)"], 2), s["KV Cache Hit Rate (%)"]]))


def markdown(rows, facts):
    number = lambda value, digits: "-" if value is None else f"{value:.{digits}f}"
    text = [f"{key}: {value}  " for key, value in facts.items() if value]
    text += ["", "| input | streams | TTFT ms | p99 | TPOT ms | p99 | tokens/s a stream | tokens/s, system | with the prompts |", "|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        text.append(f"| {r['input']} | {r['parallel']} | {number(r['ttft_ms'], 0)} | {number(r['ttft_p99_ms'], 0)} | {number(r['tpot_ms'], 2)} | "
                    f"{number(r['tpot_p99_ms'], 2)} | {number(r['stream_tps'], 1)} | {number(r['system_tps'], 1)} | {number(r['system_total_tps'], 1)} |")
    return "\n".join(text) + "\n"


def write(args, rows, facts):
    def create(name):
        return open(os.path.join(args.output_dir, name), "w", encoding="utf-8", newline="")
    with create("results.csv") as f:
        w = csv.DictWriter(f, COLUMNS)
        w.writeheader()
        w.writerows(rows)
    with create("results.json") as f:
        json.dump({"facts": facts, "rows": rows}, f, indent=1)
    with create("results.md") as f:
        f.write(markdown(rows, facts))
    with create("results.svg") as f:
        title = [facts["model"], f"output {args.output}", facts["cpu"], f"{facts['cores']} cores" if facts["cores"] else None]
        f.write(matrix_plot.draw(rows, ", ".join(filter(None, title))))


def main():
    args = arguments()
    python = service.make_venv("evalscope")
    os.makedirs(args.output_dir, exist_ok=True)
    rows, begun = [], time.monotonic()
    with service.Service(args, "--disable-radix-cache") as server:
        facts = service.facts(server) | {"output": args.output, "requests_per_stream": args.rounds}
        inputs = [n for n in args.inputs if n + args.output <= server.context]
        for n in sorted(set(args.inputs) - set(inputs)):
            print(f"input {n}: left out, with {args.output} of output it does not fit the context of {server.context}")
        for i, n_input in enumerate(inputs):
            for j, n_parallel in enumerate(args.parallel):
                print(f"{time.monotonic() - begun:6.0f} s  run {i * len(args.parallel) + j + 1} of {len(inputs) * len(args.parallel)}: input {n_input}, "
                      f"streams {n_parallel}, requests {n_parallel * args.rounds}", flush=True)
                row = evalscope(python, args, server, n_input, n_parallel, warmups=1 if j == 0 else 0)
                print("          " + "  ".join(f"{k} {row[k]}" for k in COLUMNS[3:]), flush=True)
                rows.append(row)
                write(args, rows, facts)
    if not rows:
        raise SystemExit("nothing was measured")
    print(f"\n{markdown(rows, facts)}\nresults.csv, .json, .md and .svg are in {args.output_dir}")
    if any(r["cached_percent"] for r in rows):
        print("the prefix cache was on: start the server with --disable-radix-cache")
    if any(r["failed"] for r in rows):
        raise SystemExit(f"some requests failed: see the logs in {args.output_dir}/evalscope")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted; the rows measured so far are written") from None

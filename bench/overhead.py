#!/usr/bin/env python3
"""What the server costs besides the model: two builds against each other, in alternating pairs.

usage: overhead.py --base BUILD --new BUILD [--pairs N] [--steps N] [--rows N] [--server-pairs N] [--cpu N]

BUILD is a build's folder (build/release): its bench/bench_scheduler and cli/tandem are run. Measured are
  - the CPU time of a step of 32 streams over a model that does nothing (bench_scheduler), kept on one CPU, where no thread spins for another; rows that
    only the new build has (parsed answers, grammars) are compared with its own row without them;
  - the CPU that a server of the demo model takes while nobody asks, over 10 s;
  - its resident set after the start, after 200 requests, and, of the new build, after 200 more with tools and a JSON Schema.
CPU time is counted rather than the clock's, so that the figures survive a machine that is shared; the spread over the pairs says how well.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODEL = "models/tale-v3-14m"
PLAIN = "with sampling: vocabulary 4096, greedy"  # the row that rows of the new build alone are compared with
IDLE_S = 10
REQUESTS = 200
AT_ONCE = 4

STORY = {"messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": 16, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "tell", "parameters": {"type": "object", "properties": {"of": {"type": "string"}}, "required": ["of"]}}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}}, "required": ["name", "age"]}


def step_times(build, steps, rows, cpu):
    """The rows of bench_scheduler: {text: CPU microseconds a step}."""
    run = subprocess.run([os.path.join(build, "bench/bench_scheduler"), "32", str(steps), *([str(rows)] if rows else [])], cwd=ROOT, capture_output=True, text=True, check=True,
                         preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    found = re.findall(r"^ *[\d.]+ +([\d.]+)  (.+)$", run.stdout, re.MULTILINE)
    if not found:
        raise SystemExit(f"{build}: bench_scheduler prints no column of CPU time")
    return {text: float(us) for us, text in found}


class DemoServer:
    def __init__(self, build):
        self.process = subprocess.Popen([os.path.join(build, "cli/tandem"), "launch_server", "--model-path", MODEL, "--port", "0", "--log-level", "warning"],
                                        cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.port = int(re.search(r":(\d+)\n$", self.process.stdout.readline())[1])

    def rss_mb(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
            return int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) / 1024

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", "/v1/chat/completions", json.dumps({**body, "model": os.path.basename(MODEL)}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            raise SystemExit(f"{response.status}: {text.decode()}")

    def ask_many(self, bodies):
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self.ask, bodies))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=120)


def server_figures(build, with_tools):
    server = DemoServer(build)
    try:
        figures = {"resident after the start, MB": server.rss_mb()}
        time.sleep(3)  # threads that still spin after the warm-up go to sleep
        begin = server.cpu_s()
        time.sleep(IDLE_S)
        figures["idle CPU, %"] = 100 * (server.cpu_s() - begin) / IDLE_S
        server.ask_many([STORY] * REQUESTS)
        figures[f"resident after {REQUESTS} requests, MB"] = server.rss_mb()
        if with_tools:
            tools, form = {**STORY, "tools": [TOOL]}, {**STORY, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
            server.ask_many([tools, form] * (REQUESTS // 2))
            figures[f"resident after {REQUESTS} more with tools or a schema, MB"] = server.rss_mb()
        return figures
    finally:
        server.stop()


def alternate(n, builds, measure):
    """{build: [figures of each pair]}; who goes first changes from pair to pair."""
    got = {name: [] for name in builds}
    for i in range(n):
        for name in sorted(builds, reverse=i % 2 == 1):
            got[name].append(measure(name, builds[name]))
    return got


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def print_table(title, got, compare, digits):
    print(f"\n| {title} | base | new | {compare[0]} |\n|---|---|---|---|")
    for row in got["new"][0]:
        new = [pair[row] for pair in got["new"]]
        if row in got["base"][0]:
            base = [pair[row] for pair in got["base"]]
            print(f"| {row} | {spread(base, digits)} | {spread(new, digits)} | {spread([compare[1](b, n) for b, n in zip(base, new)], 2)} |")
        elif PLAIN in got["new"][0]:
            of_plain = [n / pair[PLAIN] for n, pair in zip(new, got["new"])]
            print(f"| {row} | | {spread(new, digits)} | {spread(of_plain, 2)} of \"{PLAIN}\" |")
        else:
            print(f"| {row} | | {spread(new, digits)} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True)
    parser.add_argument("--new", required=True)
    parser.add_argument("--pairs", type=int, default=5, help="of bench_scheduler; 0: none")
    parser.add_argument("--steps", type=int, default=100, help="of a round of bench_scheduler")
    parser.add_argument("--rows", type=int, help="only the first rows of bench_scheduler; the later ones take longer")
    parser.add_argument("--server-pairs", type=int, default=3, help="of servers; 0: none")
    parser.add_argument("--cpu", type=int, default=0, help="the CPU that bench_scheduler is kept on")
    args = parser.parse_args()
    builds = {"base": os.path.abspath(args.base), "new": os.path.abspath(args.new)}
    if args.pairs:
        got = alternate(args.pairs, builds, lambda name, build: step_times(build, args.steps, args.rows, args.cpu))
        print_table(f"CPU µs a step, 32 streams; medians of {args.pairs} pairs (least to most)", got, ("new / base", lambda b, n: n / b), 1)
    if args.server_pairs:
        got = alternate(args.server_pairs, builds, lambda name, build: server_figures(build, name == "new"))
        print_table(f"server of the demo model; medians of {args.server_pairs} pairs (least to most)", got, ("new - base", lambda b, n: n - b), 1)


if __name__ == "__main__":
    main()

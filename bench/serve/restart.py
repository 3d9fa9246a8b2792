#!/usr/bin/env python3
"""From the start of the process to the first token of a short prompt over HTTP, and what the server then has in memory.

usage: restart.py --server-args '--model-path FOLDER [--tokenizer-path FOLDER]' [--runs 5] [--cold]

FOLDER is one that `tandem quantize` wrote. The first start, which may write the device's weights, is not counted. With --cold the system is asked
to forget the folder's files before each start; without, they are in the page cache from the start before. Standard library only.
"""
import argparse
import http.client
import json
import os
import re
import shlex
import statistics
import time

import service
from token_stream import random_ids

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
service.add_arguments(parser)
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--prompt", type=int, default=8, help="tokens")
parser.add_argument("--vocab", type=int, default=4000, help="ids are drawn below this")
parser.add_argument("--cold", action="store_true")
args = parser.parse_args()
if args.url:
    raise SystemExit("--url: the server must be started here")


def forget(folder):
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def first_token(url):
    host = re.match(r"http://([^/]+)", url)[1]
    connection = http.client.HTTPConnection(host, timeout=600)
    body = {"prompt": random_ids(args.prompt, 1, args.vocab), "max_tokens": 1, "stream": True, "temperature": 0, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    connection.getresponse().readline()
    connection.close()


def memory(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return {k: int(v) / 1024 for k, v in re.findall(r"(VmHWM|VmRSS|RssAnon|RssFile):\s+(\d+) kB", f.read())}


def start():
    """(seconds until ready, until the first token, MiB by kind, server info)"""
    begin = time.monotonic()
    server = service.Service(args)
    try:
        server.url = server.start()
        ready = time.monotonic() - begin
        first_token(server.url)
        return ready, time.monotonic() - begin, memory(server.process.pid), server.get("/get_server_info")
    finally:
        server.stop()


words = shlex.split(args.server_args)
model = words[words.index("--model-path") + 1] if "--model-path" in words else None
start()
rows = []
for _ in range(args.runs):
    if args.cold:
        if not model:
            raise SystemExit("--cold needs --model-path in --server-args")
        forget(model)
    rows.append(start())
    print(f"ready {rows[-1][0]:.2f} s, first token {rows[-1][1]:.2f} s, {rows[-1][2]}", flush=True)
info, most = rows[-1][3], max(r[2]["VmHWM"] for r in rows)
planned = (info["weight_bytes"] + info["kv_bytes"]) / (1 << 20)
print(f"median of {args.runs}: ready {statistics.median(r[0] for r in rows):.2f} s, first token {statistics.median(r[1] for r in rows):.2f} s "
      f"({min(r[1] for r in rows):.2f} to {max(r[1] for r in rows):.2f})")
print(f"planned {info['weight_bytes'] / (1 << 20):.0f} MiB of weights and {info['kv_bytes'] / (1 << 20):.0f} of KV; at most {most:.0f} MiB resident: "
      f"{most / (planned + 300 * 1e6 / (1 << 20)):.3f} of weights + KV + 300 MB")

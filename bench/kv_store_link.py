#!/usr/bin/env python3
"""Time to first token of a long prompt that another host has computed: two servers in network namespaces of their own, Mooncake Store between them, links of a capped rate.

usage: kv_store_link.py [--rate 1gbit] [--tokens 4096] [--layers 6] [--rounds 3]

Needs root (ip netns, tc tbf) and scripts/scale_venv.sh. The model is DeepSeek-V2-Lite's shape cut to some layers, with random weights. Per round one new prompt: computed on A, then asked of B. The answers have to be the same to the last
bit. Prints a JSON line.
"""
import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("TD_SOURCE_DIR", ROOT)
os.environ.setdefault("TD_TANDEM", os.path.join(ROOT, "build/release/cli/tandem"))
sys.path[:0] = [os.path.join(ROOT, "tests/scale"), os.path.join(ROOT, "tests/server")]
from kv_stores import MooncakeStore  # noqa: E402
from server_process import Server  # noqa: E402

TANDEM = os.environ["TD_TANDEM"]
BRIDGE, NET = "tdkv", "10.77.31"


def run(*command):
    subprocess.run(command, check=True)


class Hosts:
    """Namespaces tdkv1 and tdkv2 at NET.1 and NET.2, on a bridge with this one at NET.254; what leaves them is capped."""

    def __enter__(self):
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{NET}.254/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for i in (1, 2):
            run("ip", "netns", "add", f"{BRIDGE}{i}")
            run("ip", "link", "add", f"{BRIDGE}v{i}", "type", "veth", "peer", "name", "eth0", "netns", f"{BRIDGE}{i}")
            run("ip", "link", "set", f"{BRIDGE}v{i}", "master", BRIDGE, "up")
            inside = ("ip", "netns", "exec", f"{BRIDGE}{i}")
            run(*inside, "ip", "addr", "add", f"{NET}.{i}/24", "dev", "eth0")
            run(*inside, "ip", "link", "set", "eth0", "up")
            run(*inside, "ip", "link", "set", "lo", "up")
            run(*inside, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", self.rate, "burst", "512kb", "latency", "50ms")
        return self

    def __init__(self, rate):
        self.rate = rate

    def __exit__(self, *_):
        for i in (1, 2):
            subprocess.run(["ip", "netns", "del", f"{BRIDGE}{i}"])
        subprocess.run(["ip", "link", "del", BRIDGE])


class Host(Server):
    def __init__(self, i, store, layers, tokens):
        self.address = f"{NET}.{i}"
        self.config = f"/tmp/{BRIDGE}{i}.json"
        with open(self.config, "w") as f:
            json.dump({**store.config(), "local_hostname": self.address, "global_segment_size": "1GB", "max_wait_ms": 60000}, f)
        super().__init__("--host", self.address, "--allow-no-key", "--load-format", "dummy", "--json-model-override-args", json.dumps({"num_hidden_layers": layers}), "--context-length", str(tokens + 256), "--max-total-tokens", str(4 * tokens),
                         "--max-running-requests", "2", "--served-model-name", "m", "--skip-server-warmup", "--kv-store", "mooncake", "--kv-store-config", self.config,
                         program=["ip", "netns", "exec", f"{BRIDGE}{i}", TANDEM], model=os.path.join(ROOT, "configs/models/deepseek-v2-lite.json"), env=store.env, timeout=600)
        self.wait_metric("tandem:kv_store_up", 1, timeout=60)

    def connection(self, timeout=600):
        return http.client.HTTPConnection(self.address, self.port, timeout=timeout)

    def ask(self, ids):
        """(seconds, what it says, prompt tokens that were not computed); one token: its time is the time to the first."""
        begin = time.monotonic()
        status, answer, _ = self.request("POST", "/v1/completions", {"model": "m", "prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 5}, timeout=600)
        seconds = time.monotonic() - begin
        assert status == 200, answer
        return seconds, answer["choices"][0]["logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    o = parser.parse_args()
    why = MooncakeStore.missing() or ("this needs root: network namespaces" if os.geteuid() else None)
    if why:
        sys.exit(why)
    rows = []
    with Hosts(o.rate):
        store = MooncakeStore(host=f"{NET}.254")
        try:
            a, b = Host(1, store, o.layers, o.tokens), Host(2, store, o.layers, o.tokens)
            rng = random.Random(1)
            for _ in range(o.rounds + 1):  # the first round makes connections and captures steps
                ids = [rng.randrange(1000, 90000) for _ in range(o.tokens)]
                computed_s, said, _ = a.ask(ids)
                while a.metric("tandem:kv_store_buffers_used"):
                    time.sleep(0.05)
                taken_s, said_too, taken = b.ask(ids)
                assert said == said_too, "not the same bits"
                rows.append((computed_s, taken_s, taken))
            text = b.request("GET", "/metrics")[1]
            sent = next(float(line.split()[-1]) for line in text.splitlines() if line.startswith("tandem:kv_store_bytes_total") and 'what="in"' in line)
            for server in (a, b):
                server.__exit__(None, None, None)
        finally:
            store.close()
    best = rows[1:]
    computed, taken = sorted(r[0] for r in best)[len(best) // 2], sorted(r[1] for r in best)[len(best) // 2]
    print(json.dumps({"tokens": o.tokens, "layers": o.layers, "rate": o.rate, "computed_s": round(computed, 3), "taken_s": round(taken, 3), "ratio": round(computed / taken, 1), "tokens_taken": best[-1][2],
                      "mb_per_prompt": round(sent / len(rows) / 1e6, 1)}))


if __name__ == "__main__":
    main()

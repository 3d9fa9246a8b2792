#!/usr/bin/env python3
"""A public routing trace as one of ours (residency/routing_trace.h): CSV files "route_trace v1" of github.com/Helldez/BigMoeOnEdge
(docs/bench-data/2026-07-15-route-trace, Apache-2.0) have a row for each token, layer and chosen expert.

usage: public_trace.py CSV OUT      only what was decoded is kept: the file leaves out layers of a prompt's tokens
"""
import csv
import re
import struct
import sys


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8", newline="") as f:
        lines = f.read().splitlines()
    n_experts, top_k = map(int, re.search(r"n_expert=(\d+) n_expert_used=(\d+)", "\n".join(lines[:5])).groups())
    chosen = {}  # (turn, step) -> layer -> experts
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        if row["phase"] == "1":
            chosen.setdefault((int(row["turn"]), int(row["step"])), {}).setdefault(int(row["layer"]), []).append(int(row["expert"]))
    layers = sorted({layer for token in chosen.values() for layer in token})
    tokens = [[token[layer] for layer in layers] for _, token in sorted(chosen.items()) if len(token) == len(layers) and all(len(x) == top_k for x in token.values())]
    with open(sys.argv[2], "wb") as f:
        f.write(b"TDROUTES" + struct.pack("<4IQ", 1, len(layers), n_experts, top_k, len(tokens)))
        for token in tokens:
            for experts in token:
                f.write(struct.pack(f"<{top_k}H", *experts))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Where the time of a layer goes: from `tandem bench decode --trace FILE` (one row, chosen with --filter).

usage: phases.py TRACE

It looks at the engine's thread, which takes part in every parallel loop. For each phase of a layer with experts, in order, it prints medians over
steps and layers. They are the time of the phase, its part spent waiting for other threads at the end of a loop, and the time between phases.
"""
import json
import statistics
import sys


def spans_of_engine(path):
    with open(path, encoding="ascii") as f:
        events = json.load(f)
    spans = [e for e in events if e.get("ph") == "X"]
    engine = next(e["tid"] for e in spans if e["name"] == "experts")  # only worker 0 has tickets
    return sorted((e for e in spans if e["tid"] == engine), key=lambda e: (e["ts"], -e["dur"]))


def main(path):
    phases, layers = {}, []  # (name, its number in the layer): [(us, us of waiting)]; [(us, us between phases)]
    layer, begin, inside, counts, has_experts, row = None, 0, 0, {}, False, []
    waits_until = None
    for e in spans_of_engine(path):
        end = e["ts"] + e["dur"]
        if e["name"] == "wait for workers":
            if row and waits_until and end <= waits_until + 0.01:
                row[-1][2] += e["dur"]
            continue
        at = e.get("args", {}).get("layer")
        if e["name"] == "experts" or (e["cat"] == "device" and at is None):
            has_experts |= e["name"] == "experts"
            waits_until = None
            if e["name"] != "head":
                continue
        if e["cat"] == "device" and at != layer:
            if layer is not None and has_experts:
                layers.append((e["ts"] - begin, e["ts"] - begin - inside))
                for key, us, waiting in row:
                    phases.setdefault(key, []).append((us, waiting))
            layer, begin, inside, counts, has_experts, row = at, e["ts"], 0, {}, False, []
        if layer is None:
            continue
        counts[e["name"]] = counts.get(e["name"], 0) + 1
        row.append([(e["name"], counts[e["name"]]), e["dur"], 0.0])
        inside += e["dur"]
        waits_until = end
    if not layers:
        sys.exit("no layer with experts in the trace")
    whole = statistics.median(us for us, _ in layers)
    print(f"| phase | us | of the layer | waiting at the ends of loops, us |\n|---|---|---|---|")
    for (name, number), times in phases.items():
        us, waiting = statistics.median(t for t, _ in times), statistics.median(w for _, w in times)
        print(f"| {name}{f' {number}' if (name, 2) in phases else ''} | {us:.1f} | {100 * us / whole:.1f} % | {waiting:.1f} |")
    between = statistics.median(us for _, us in layers)
    print(f"| between phases | {between:.1f} | {100 * between / whole:.1f} % | |\n| layer ({len(layers)} of them) | {whole:.1f} | | |")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(sys.argv[1])

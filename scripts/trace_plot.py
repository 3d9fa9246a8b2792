#!/usr/bin/env python3
"""Figures and a picture from a file of `tandem launch_server --trace FILE`.

usage: trace_plot.py TRACE [--tokens N] [--svg OUT [--step K] [--layers A-B] [--title TEXT]]

Prints, over the steps of N tokens (all steps without --tokens): how each thread spent the time, and how far the two tiers overlapped.
--svg draws step K of those (default: the fastest, the least disturbed one), from the first operation of layer A to the last of layer B.
"""
import argparse
import json
import statistics
import sys
import xml.sax.saxutils as xml

COLOURS = {"device": "#4c78a8", "cpu": "#e8770a", "bridge": "#e45756"}
SECOND = {"device": "#8fc0e6", "cpu": "#fbb667", "bridge": "#e45756"}  # of the second half of a split step
TIERS = {"device": "device", "cpu": "experts", "engine": "engine", "http": "HTTP"}
ROUNDING_US = 0.0015  # times have three decimals
WAITS = "wait"  # what names of waiting begin with
ORDER = ["engine", "device", "experts", "MHD"]  # rows, by how threads' names begin


def load(path):
    """Events; a killed process leaves a file without its end, perhaps within an event."""
    with open(path, encoding="ascii") as f:
        text = f.read()
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(text[:text.rindex("\n{")].rstrip().rstrip(",") + "]")


class Thread:
    """A thread's spans, and what it does at each moment: that of its innermost span."""

    def __init__(self, name, spans):
        self.name = name
        self.spans = sorted(spans, key=lambda e: (e["ts"], -e["dur"]))
        self.moments = []  # (from, to, tier or "wait"), apart and in order
        stack, now = [], 0.0

        def until(t):
            nonlocal now
            if stack and t > now:
                e = stack[-1]
                self.moments.append((now, t, "wait" if e["name"].startswith(WAITS) else e["cat"]))
            now = max(now, t)

        for e in self.spans:
            while stack and stack[-1]["ts"] + stack[-1]["dur"] <= e["ts"] + ROUNDING_US:
                until(stack[-1]["ts"] + stack[-1]["dur"])
                stack.pop()
            until(e["ts"])
            e["depth"] = len(stack)
            stack.append(e)
        while stack:
            until(stack[-1]["ts"] + stack[-1]["dur"])
            stack.pop()

    def times(self, *what):
        return [(a, b) for a, b, kind in self.moments if kind in what]


def union(intervals):
    merged = []
    for a, b in sorted(intervals):
        if merged and a <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], b)
        else:
            merged.append([a, b])
    return merged


def common(one, other):
    """The parts that two lists of intervals, each apart and in order, share."""
    shared, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        a, b = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if a < b:
            shared.append((a, b))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return shared


def length(intervals):
    return sum(b - a for a, b in intervals)


def summarise(threads, steps):
    window = union((s["ts"], s["ts"] + s["dur"]) for s in steps)
    total = length(window)
    tokens = sum(s["args"]["tokens"] for s in steps)
    middle = statistics.median(s["dur"] for s in steps)
    print("steps %d, tokens %d, time %.0f ms, median step %.1f ms" % (len(steps), tokens, total / 1e3, middle / 1e3))
    columns = ["device", "cpu", "engine", "wait"]
    print("%-16s" % "% of the time" + "".join("%9s" % TIERS.get(c, "waits") for c in columns) + "%9s" % "nothing")
    for t in threads:
        shares = [100 * length(common(t.times(c), window)) / total for c in columns]
        if t.name != "engine" or shares[0] + shares[1]:  # an engine thread that only waits for the tiers says nothing
            if sum(shares) > 0:
                print("%-16s" % t.name + "".join("%9.1f" % s for s in shares) + "%9.1f" % (100 - sum(shares)))
    device, cpu = (common(union(m for t in threads for m in t.times(tier)), window) for tier in ("device", "cpu"))
    both = length(common(device, cpu))
    if device and cpu:
        print("device at work %.1f %%, experts at work %.1f %%, both at once %.1f %% of the time"
              % (100 * length(device) / total, 100 * length(cpu) / total, 100 * both / total))
        print("of the experts' time the device was at work, too, in %.1f %%" % (100 * both / length(cpu)))


def mark_halves(threads, step):
    """In a step that goes through as two halves, each operation of a layer comes twice: first for half a, then for half b."""
    end, groups = step["ts"] + step["dur"], {}
    for t in threads:
        for e in t.spans:
            if "layer" in e.get("args", {}) and step["ts"] <= e["ts"] <= end:
                groups.setdefault((t.name, e["name"], e["args"]["layer"]), []).append(e)
    attention = [len(g) for (_, name, _), g in groups.items() if name in ("mla", "gqa")]
    if not attention or max(attention) < 2:
        return
    for (_, name, _), g in groups.items():
        for i, e in enumerate(g):
            e["half"] = "ab"[2 * i // len(g)]
    for t in threads:  # a ticket's passes are of its half
        ticket = None
        for e in t.spans:
            if e["name"] == "experts":
                ticket = e
            elif ticket and e["cat"] == "cpu" and "half" in ticket and e["ts"] < ticket["ts"] + ticket["dur"]:
                e["half"] = ticket["half"]


def layer_window(threads, step, layers):
    end = step["ts"] + step["dur"]
    if not layers:
        return step["ts"], end
    first, last = (int(x) for x in layers.split("-"))
    inside = [e for t in threads for e in t.spans
              if e["ts"] >= step["ts"] and e["ts"] + e["dur"] <= end and first <= e.get("args", {}).get("layer", -1) <= last]
    if not inside:
        sys.exit("trace_plot.py: the step has no operation of layers %s" % layers)
    return min(e["ts"] for e in inside), max(e["ts"] + e["dur"] for e in inside)


def tick_us(width):
    """A round distance of about ten to the window."""
    tick = 1.0
    while width / tick > 10:
        tick *= 2 if str(tick)[0] in "15" else 2.5
    return tick


def draw(threads, begin, end, title):
    lane, left, right, top, wide = 17, 96, 8, 44, 1100
    scale = (wide - left - right) / (end - begin)
    out, y, halves = [], top, False
    for t in threads:
        shown = [e for e in t.spans if e["ts"] < end and e["ts"] + e["dur"] > begin and e["cat"] in ("device", "cpu", "bridge")]
        if not shown:
            continue
        lowest = min(e["depth"] for e in shown)
        lanes = 1 + max(e["depth"] for e in shown) - lowest
        out.append('<text x="4" y="%d">%s</text>' % (y + 12, xml.escape(t.name)))
        out.append('<path d="M%d %dH%d" stroke="#ccc"/>' % (left, y + lanes * lane + 3, wide - right))
        for e in shown:
            a, b = max(e["ts"], begin), min(e["ts"] + e["dur"], end)
            x, w, at = left + (a - begin) * scale, (b - a) * scale, y + (e["depth"] - lowest) * lane
            waits, half = e["name"].startswith(WAITS), e.get("half", "")
            halves |= half == "b"
            if w < 0.25:
                continue
            out.append('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"%s/>'
                       % (x, at, max(w - 0.3, 0.3), lane - 2, (SECOND if half == "b" else COLOURS)[e["cat"]], ' fill-opacity=".22"' if waits else ""))
            layer = e.get("args", {}).get("layer")
            for text in ("%s %s%s" % (e["name"], layer, half) if layer is not None else e["name"], e["name"]):
                if len(text) * 6 + 4 < w:
                    out.append('<text x="%.1f" y="%d"%s>%s</text>' % (x + 2, at + 11, "" if waits or half == "b" else ' fill="#fff"', xml.escape(text)))
                    break
        y += lanes * lane + 8
    tick, axis = tick_us(end - begin), []
    for i in range(int((end - begin) / tick) + 1):
        x = left + i * tick * scale
        if x > wide - 50:
            break
        axis.append('<path d="M%.1f %dV%d" stroke="#eee"/><text x="%.1f" y="%d" fill="#666">%g ms</text>' % (x, top - 4, y, x + 2, top - 8, i * tick / 1e3))
    legend, x = [], left
    kinds = [("device operation", COLOURS["device"], 1), ("experts", COLOURS["cpu"], 1), ("wait for experts", COLOURS["bridge"], .22)]
    if halves:
        kinds[1:1] = [("of half b", SECOND["device"], 1)]
        kinds[3:3] = [("of half b", SECOND["cpu"], 1)]
    for name, colour, opacity in kinds:
        legend.append('<rect x="%d" y="%d" width="12" height="12" fill="%s" fill-opacity="%g"/><text x="%d" y="%d">%s</text>'
                      % (x, y + 6, colour, opacity, x + 16, y + 16, name))
        x += 30 + 7 * len(name)
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">' % (wide, y + 26)
    ground = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, ground, '<text x="4" y="16" font-size="14">%s</text>' % xml.escape(title), *axis, *out, *legend, "</svg>", ""])


def read_threads(path):
    events = load(path)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    by_thread = {tid: [] for tid in names}
    for e in events:
        if e["ph"] == "X":
            by_thread[e["tid"]].append(e)
    place = {tid: [i for i, start in enumerate(ORDER) if names[tid].startswith(start)] or [len(ORDER)] for tid in names}
    return [Thread(names[tid], by_thread[tid]) for tid in sorted(names, key=lambda tid: (place[tid], tid))]


def steps_of(threads, tokens):
    steps = [e for t in threads for e in t.spans if e["name"] == "forward" and tokens in (None, e["args"]["tokens"])]
    if not steps:
        sys.exit("trace_plot.py: the trace has no step%s" % (" of %d tokens" % tokens if tokens else ""))
    return steps


def fastest(steps):
    return min(steps, key=lambda e: e["dur"])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace")
    p.add_argument("--tokens", type=int)
    p.add_argument("--svg")
    p.add_argument("--step", type=int)
    p.add_argument("--layers")
    p.add_argument("--title", default="")
    a = p.parse_args()

    threads = read_threads(a.trace)
    steps = steps_of(threads, a.tokens)
    summarise(threads, steps)
    if a.svg:
        if a.step is not None and not 0 <= a.step < len(steps):
            sys.exit("trace_plot.py: there is no step %d, only 0 to %d" % (a.step, len(steps) - 1))
        step = fastest(steps) if a.step is None else steps[a.step]
        mark_halves(threads, step)
        svg = draw(threads, *layer_window(threads, step, a.layers), a.title)
        with open(a.svg, "w", encoding="utf-8") as f:
            f.write(svg)
        print("%s: step %d" % (a.svg, steps.index(step)))


if __name__ == "__main__":
    main()

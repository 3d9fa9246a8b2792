"""results.svg: four panels over the number of streams, a line per input length."""
import math
from xml.sax.saxutils import escape

PANELS = [("ttft_ms", "time to first token, ms"), ("tpot_ms", "time per output token, ms"), ("stream_tps", "tokens/s of a stream"),
          ("system_tps", "tokens/s of the system")]
RAMP = ["#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b"]  # inputs are ordered: light is short, dark is long
WIDE, HIGH, LEFT, TOP, GAP = 300, 180, 60, 60, 70


def nice_ticks(low, high):
    """1-2-5 steps of a logarithmic axis that cover low to high."""
    steps = [m * 10.0 ** e for e in range(-3, 7) for m in (1, 2, 5)]
    first = max(i for i, s in enumerate(steps) if s <= low)
    last = min(i for i, s in enumerate(steps) if s >= high)
    return steps[first:max(last, first + 1) + 1]


def panel(rows, key, title, x0, y0):
    inputs, streams = sorted({r["input"] for r in rows}), sorted({r["parallel"] for r in rows})
    values = [r[key] for r in rows if r[key]]
    if not values:
        return []
    ticks = nice_ticks(min(values), max(values))
    x = lambda n: x0 + (WIDE * streams.index(n) / (len(streams) - 1) if len(streams) > 1 else WIDE / 2)
    y = lambda v: y0 + HIGH * (1 - math.log(v / ticks[0]) / math.log(ticks[-1] / ticks[0]))
    out = [f'<text x="{x0}" y="{y0 - 12}" font-size="13">{escape(title)}</text>']
    for t in ticks:
        out.append(f'<path d="M{x0} {y(t):.1f}h{WIDE}" stroke="#ddd"/><text x="{x0 - 6}" y="{y(t) + 4:.1f}" text-anchor="end">{t:g}</text>')
    out += [f'<text x="{x(n):.1f}" y="{y0 + HIGH + 16}" text-anchor="middle">{n}</text>' for n in streams]
    for i, n_input in enumerate(inputs):
        points = [(x(r["parallel"]), y(r[key])) for r in rows if r["input"] == n_input and r[key]]
        color = RAMP[i * (len(RAMP) - 1) // max(1, len(inputs) - 1)]
        out.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{color}"/>' for a, b in points]
    return out


def draw(rows, title):
    inputs = sorted({r["input"] for r in rows})
    width, height = 2 * (LEFT + WIDE) + GAP, 2 * (HIGH + GAP) + TOP + 10
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
           f'<rect width="{width}" height="{height}" fill="white"/><text x="10" y="20" font-size="14">{escape(title)}</text>']
    for i, n_input in enumerate(inputs):
        color = RAMP[i * (len(RAMP) - 1) // max(1, len(inputs) - 1)]
        out.append(f'<rect x="{10 + 110 * i}" y="30" width="12" height="12" fill="{color}"/><text x="{26 + 110 * i}" y="40">input {n_input}</text>')
    for i, (key, name) in enumerate(PANELS):
        out += panel(rows, key, name, LEFT + i % 2 * (WIDE + GAP), TOP + 25 + i // 2 * (HIGH + GAP))
    out.append(f'<text x="{width - 10}" y="{height - 6}" text-anchor="end">x: streams at a time</text></svg>\n')
    return "\n".join(out)

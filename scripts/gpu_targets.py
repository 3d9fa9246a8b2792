#!/usr/bin/env python3
"""What a card should reach, against what scripts/gpu_check.sh has measured: a table, and the same as "targets" in its report.

usage: gpu_targets.py REPORT.json [--tiny] [--int8-tops N] [--bf16-tflops N]

A target's "model" is what bench/cuda_step.py expects of this card, by arithmetic; null where it says nothing. A target's "measured" is null where nothing was measured, and "why" says so; "met" is null then, and where the figures mean nothing: on the stand-in, at tiny sizes, of a
slice of the model. Shares of peaks are of those that the card's own mma instructions reached in the same rounds, or of the data sheet's where it is given.
"""
import argparse
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import cuda_step  # noqa: E402

STEP_MS, STEP_LAYERS, HANDOVER_US = 6.0, 61, 10.0
LLAMA_MODELS = ("deepseek-v2-lite", "qwen3-30b-a3b")


class Report:
    def __init__(self, report, arguments):
        self.stages = {s["stage"]: s for s in report["stages"]}
        self.peaks = {"int8": arguments.int8_tops, "bf16": arguments.bf16_tflops}
        self.targets = []
        topo = self.stages.get("topo", {}).get("result") or {}
        self.cards = [c["name"] for c in topo.get("cuda_cards", [])]
        rows = [r for s in self.stages.values() for r in s.get("result") or [] if isinstance(r, dict) and "device" in r]
        self.stand_in = any("stand-in" in name for name in self.cards + [r["device"] for r in rows])
        self.model = {} if self.stand_in or arguments.tiny else cuda_step.expected(self.cards[0]) if self.cards else {}
        self.no_verdict = "on a stand-in for the card" if self.stand_in else "at tiny sizes" if arguments.tiny else None

    def rows(self, stage, wanted=lambda r: True):
        return [r for r in self.stages.get(stage, {}).get("result") or [] if "time_us" in r and wanted(r)]

    def why(self, *stages):
        for name in stages:
            if name not in self.stages:
                return f"the stage {name} did not run"
            s = self.stages[name]
            if s["status"] != "passed":
                return f"the stage {name} was {s['status']}: {s['why']}"
        return "there is no such row"

    def add(self, what, at_least, at_most, unit, measured, stages, details=None, no_verdict=None):
        no_verdict = self.no_verdict or no_verdict
        met = None if measured is None or no_verdict else measured >= at_least if at_least is not None else measured <= at_most
        commands = [self.stages[s]["command"] for s in stages if s in self.stages]
        self.targets.append({"what": what, "target": at_least if at_least is not None else at_most, "better": "more" if at_least is not None else "less", "unit": unit,
                             "measured": measured, "model": self.model.get(what), "met": met, "why": self.why(*stages) if measured is None else no_verdict, "commands": commands, "details": details})

    def share(self, row, kind):
        """Of the peak of a kind of products: of the one that was measured beside it, or of the data sheet's."""
        share = row[f"{kind}_fraction"]
        if not self.peaks[kind]:
            return share
        return share * row["int8_bound_gops" if kind == "int8" else "bf16_bound_gflops"] / (1e3 * self.peaks[kind])

    def of(self, *kinds):
        given = [k for k in kinds if self.peaks[k]]
        return f"of the peak, {' and '.join(kinds)}, " + ("by the data sheet" if len(given) == len(kinds) else "partly by the data sheet" if given else "measured with mma instructions")


def over_time(rows, share):
    """The share of all rows run one after the other."""
    time = sum(r["time_us"] for r in rows)
    return sum(share(r) * r["time_us"] for r in rows) / time if rows else None


def linears(x):
    for m, target in ((1, 0.85), (2048, 0.70)):
        rows = x.rows("kernels", lambda r: r["m"] == m and r["kernel"] == "w8a8" and r["shape"].startswith("v3 "))
        share = (lambda r: r["read_fraction"]) if m == 1 else (lambda r: x.share(r, "int8"))
        x.add(f"W8A8, {m} row{'s' if m > 1 else ''}, V3 shapes", target, None, "of the measured read bandwidth" if m == 1 else x.of("int8"), over_time(rows, share), ["kernels"],
              {r["shape"]: share(r) for r in rows} or None)


def attention(x):
    for stage, name in (("attention-mla", "mla v3"), ("attention-gqa", "gqa qwen3-30b")):
        kind = name.split()[0].upper()
        decode = x.rows(stage, lambda r: r["shape"] == f"{name} decode, 16 at 16384")
        x.add(f"{kind} decode, 16 streams at 16K", 0.80, None, "of the measured read bandwidth", over_time(decode, lambda r: r["read_fraction"]), [stage],
              {r["shape"]: {k: r[k] for k in ("time_us", "read_fraction", "int8_fraction", "bf16_fraction")} for r in decode} or None)
        prefill = x.rows(stage, lambda r: r["shape"] == f"{name} prefill 8192")
        x.add(f"{kind} prefill, 8K", 0.50, None, x.of("int8", "bf16"), over_time(prefill, lambda r: x.share(r, "int8") + x.share(r, "bf16")), [stage],
              {r["shape"]: {k: r[k] for k in ("time_us", "read_fraction", "int8_fraction", "bf16_fraction")} for r in prefill} or None)


def layers_of(x):
    """All layers of the steps' model, and those with experts."""
    found = re.search(r'"num_hidden_layers": (\d+)(?:, "first_k_dense_replace": (\d+))?', x.stages.get("step", {}).get("command") or "")
    layers, dense = (int(found[1]), int(found[2] or 3)) if found else (STEP_LAYERS, 3)
    return layers, layers - dense


def steps(x):
    layers, moe = layers_of(x)
    alone, early, handed = x.rows("step"), x.rows("step-early"), x.rows("step-handover")
    handover = (handed[0]["time_us"] - alone[0]["time_us"]) / moe if alone and handed else None
    calls = {f"{r['shape']}, {r['kernel']}": r["time_us"] for r in x.rows("link")}
    x.add("hand-over to the experts and back, per MoE layer", None, HANDOVER_US, "us", handover, ["step", "step-handover"], {"moe_layers": moe, "without_rows_us": calls})
    ms = alone[0]["time_us"] / 1e3 if alone else None
    x.add(f"V3-shaped decode step without experts, {STEP_LAYERS} layers, 1 stream", None, STEP_MS, "ms", ms, ["step"],
          {"layers": layers, "read_fraction": alone[0].get("read_fraction") if alone else None, "kernels_begin_early_ms": early[0]["time_us"] / 1e3 if early else None}, None if layers == STEP_LAYERS else f"of {layers} layers only: the card has no room for more")


def llama(x):
    for model in LLAMA_MODELS:
        theirs = x.stages.get(f"llama-{model}", {}).get("result") or []
        for what, stage, target in (("decode", f"decode-{model}", 1.3), ("prefill", f"prefill-{model}", 2.0)):
            rows = x.rows(stage)
            ours = 1e6 * rows[0]["m"] / rows[0]["time_us"] if rows else None
            other = next((t["avg_ts"] for t in theirs if (t.get("n_gen", 0) > 0 if what == "decode" else t.get("n_prompt", 0) > 0 and t.get("n_gen", 0) == 0)), None)
            x.add(f"{model}, {what}: tokens a second against llama.cpp's", target, None, "times", ours / other if ours and other else None, [stage, f"llama-{model}"],
                  {"tokens_per_s": ours, "llama_tokens_per_s": other})


def shown(v):
    return "-" if v is None else f"{v:.3g}"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("report")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--int8-tops", type=float)
    parser.add_argument("--bf16-tflops", type=float)
    arguments = parser.parse_args()
    with open(arguments.report) as f:
        report = json.load(f)
    x = Report(report, arguments)
    linears(x)
    attention(x)
    steps(x)
    llama(x)
    report["cards"], report["stand_in"], report["targets"] = x.cards, x.stand_in, x.targets
    with open(arguments.report, "w") as f:
        json.dump(report, f, indent=1)
    for t in x.targets:
        verdict = {True: "met", False: "NOT MET", None: t["why"]}[t["met"]]
        says = f"the model says {shown(t['model'])}, " if t["model"] else ""
        print(f"gpu_check: {t['what']}: {shown(t['measured'])} {t['unit']}, {says}target {'>=' if t['better'] == 'more' else '<='} {t['target']:g}: {verdict}")


main()

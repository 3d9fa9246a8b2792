#!/usr/bin/env python3
"""A model of a step on an NVIDIA card, node by node, by arithmetic: no card is needed, and none has been asked.

usage: cuda_step.py [--card NAME] [--rows N] [--context N] [--prompt] [--nodes] [--json]
       cuda_step.py --measured        beside what an H100 took
       cuda_step.py --capture FILE [--model config.json] [--override JSON] [--sm N]    adds steps of a model to FILE, from the stand-in of a build (TD_BUILD)

What goes in:
  bench/cuda/steps.tsv      graphs of one dense layer and one with experts of DeepSeek-V3, as the stand-in for the driver has captured them: kernels, grids, blocks, arguments
  bench/cuda/sass.tsv       what a warp of a kernel does: instructions, clocks, waits for memory, bytes in flight (sass.py)
  bench/cuda/occupancy.tsv  how many of a kernel's blocks a multiprocessor holds (occupancy.py)
  CARDS                     what a card can do; WORK: bytes, rounds of the main loop and blocks with work of a node, from its arguments

How a node's time comes about: START + max(a, first load + max(b, c, d, e)), with
  a  blocks a multiprocessor takes one after the other, each as long as one warp alone takes: clocks + waits x latency of memory. By Little's law that is a bandwidth, too:
     bytes in flight of all threads / latency
  b  its instructions, one a clock and scheduler                c  its matrix instructions at the card's rate
  d  what the node reads from the card's memory / READ x the data sheet's bandwidth
  e  what it reads at all, at 32 bytes a clock and multiprocessor from the second-level cache

Assumptions, none of them fitted to a figure of the page: memory answers in Card.far clocks however busy it is; what the node before has written comes from the second-level cache in
Card.near; weights and cached keys never do; a loop that is not the main one has one round; warps of a scheduler do not wait for each other; code is in the instruction cache; START
is the gap between two nodes of a graph. Each of these makes the model's figure too low rather than too high, but for loops with a branch that is seldom taken. Times are
a guide to what is worth doing, and no measurement.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "cuda"))
import occupancy  # noqa: E402
import sass  # noqa: E402

STEPS = ROOT / "bench" / "cuda" / "steps.tsv"
V3 = ROOT / "configs" / "models" / "deepseek-v3.json"

# sm, multiprocessors, GHz, GB/s of memory (data sheets), clocks until memory and until the second-level cache answers (public measurements, rounded), multiply-adds a clock and
# multiprocessor of mma with bf16 and int8 (data sheets with sums in f32; of Hopper what an H100 reached, docs/cuda.md).
Card = collections.namedtuple("Card", "sm multiprocessors ghz gbps far near bf16 int8")
CARDS = {"A100": Card(80, 108, 1.41, 2039, 470, 210, 1024, 2048), "4090": Card(89, 128, 2.52, 1008, 600, 280, 256, 1024), "5090": Card(120, 170, 2.41, 1792, 700, 350, 256, 1024),
         "H100": Card(90, 132, 1.755, 3350, 500, 270, 1407, 2771), "H200": Card(90, 132, 1.755, 4800, 500, 270, 1407, 2771)}
READ = 0.91          # of the data sheet's bandwidth: 3,050 of 3,350 GB/s (docs/cuda.md)
START_US = 1.0       # from the end of a node to the first instruction of the next
CALL_US = 2.0        # a copy, a host function, a word that the driver writes or waits for
LINK_US = 1.2        # a read of the host's memory over PCIe; a write takes half
CACHE_BYTES = 32     # a clock and multiprocessor, from the second-level cache
LIBRARY = 0.65       # of the int8 peak: cuBLASLt

Node = collections.namedtuple("Node", "name grid threads shared arguments")
Step = collections.namedtuple("Step", "sm kind rows nodes")  # kind: decode, prompt, handover
# What a node does: blocks that have work, rounds of a block's main loop, bytes from the card's memory, and from the cache.
Work = collections.namedtuple("Work", "blocks rounds memory cache")
Price = collections.namedtuple("Price", "node us memory blocks a_multiprocessor in_flight limit")
Point = collections.namedtuple("Point", "rows context")

up = lambda a, b: -(-a // b)


# ---- what a node does ----------------------------------------------------------------------------------


def numbers(node):
    return [0 if a == "memory" else int(a) for a in node.arguments]


def grid_of(node):
    return node.grid[0] * node.grid[1] * node.grid[2]


def variant(node):
    """8 of td_w8a8_8."""
    return int(node.name.rsplit("_", 1)[1])


def w8a8(node, at):
    a, rows = numbers(node), variant(node)
    swiglu = "swiglu" in node.name
    n, k = (2 * a[8], a[3]) if swiglu else (a[8] + a[13] + a[18], a[3])
    a_round = 8 * 64 * {8: 4, 16: 2, 32: 2, 64: 1}[rows]  # eight warps; chunks of 64 k that a warp has on the way (linear_w8a8.cu)
    return Work(grid_of(node), up(k, a_round), n * k, grid_of(node) * min(rows, at.rows) * k + (node.grid[0] - 1) * n * k)


def columns(node, at):
    a = numbers(node)
    bytes_ = node.grid[2] * a[6] * a[7] * 2
    return Work(grid_of(node), up(a[7], 128 if variant(node) == 8 else 32), bytes_, (node.grid[1] - 1) * bytes_)


def bf16_linear(node, at):
    a = numbers(node)
    bytes_ = node.grid[2] * a[7] * a[8] * 2
    return Work(grid_of(node), up(a[8], 1024), bytes_, (node.grid[0] - 1) * bytes_ + grid_of(node) * min(variant(node), at.rows) * a[8] * 2)


def f32_linear(node, at):
    a = numbers(node)
    rows, outputs = (1, 1) if variant(node) == 1 else (8, 4)
    of_thread = a[4] * (outputs * 4 + rows * 2) / 256
    return Work(grid_of(node), max(1, up(of_thread, 192 if rows == 1 else 256)), a[3] * a[4] * 4, grid_of(node) * min(rows, at.rows) * a[4] * 2 + (node.grid[1] - 1) * a[3] * a[4] * 4)


def span_keys(context, most):
    return max(2, up(up(context, 64), most)) * 64  # td_span_keys


def absorbed(node, at):
    a = numbers(node)
    keys = at.context + 1
    span = min(span_keys(keys, a[16]), up(keys, 32) * 32)
    spans = up(keys, span)
    kv = node.grid[2] * keys * (a[12] + a[14]) * 2
    return Work(spans * node.grid[1] * node.grid[2], up(span, 32), kv, (node.grid[1] - 1) * kv + 2 * node.grid[2] * a[11] * (spans * (a[12] + 2) * 4 + (a[12] + a[14]) * 2))


def merge(node, at):
    a = numbers(node)
    spans = up(at.context + 1, span_keys(at.context + 1, a[10]))
    return Work(grid_of(node), up(spans, 8), 0, node.grid[1] * a[8] * spans * (a[9] + 2) * 4)


def expand(node, at):
    a = numbers(node)
    keys = at.context + at.rows
    return Work(up(keys, 64) * node.grid[1], up(a[6], 64), 0, up(keys, 64) * node.grid[1] * (64 + 128) * a[6] * 2)


def prefill(node, at):
    keys = at.context + at.rows / 2
    return Work(up(at.rows, 64) * node.grid[1], up(keys, 64), 0, up(at.rows, 64) * node.grid[1] * keys * 320 * 2)


def head_rows(node, at):
    return Work(grid_of(node), 1, 0, 0)


def rows_of(column, bytes_):
    """A kernel whose blocks each have some of a row's values, which the node before has written."""
    return lambda node, at: Work(grid_of(node), 1, 0, at.rows * numbers(node)[column] * bytes_)


def embed(node, at):
    return Work(grid_of(node), 1, at.rows * numbers(node)[4] * 2, 0)


WORK = [(r"td_w8a8_(swiglu_)?\d+", w8a8), (r"td_bf16_columns_\d+", columns), (r"td_bf16_linear_\d+", bf16_linear), (r"td_f32_linear_\d", f32_linear), (r"td_mla_absorbed_\d+", absorbed),
        (r"td_merge_spans", merge), (r"td_mla_expand", expand), (r"td_mla_prefill", prefill), (r"td_norm_f32", rows_of(4, 6)), (r"td_norm(_middle|_short)?", rows_of(6, 5)),
        (r"td_quantize_f32(_short)?", rows_of(2, 5)), (r"td_quantize_bf16(_short)?", rows_of(2, 3)), (r"td_combine", rows_of(5, 8)), (r"td_w8a8_epilogue", rows_of(8, 8)), (r"td_embed", embed),
        (r"td_(mla_place|route|top_parts|top|list_rows|copy_listed|ring_rows|await_rows)", head_rows)]


def work_of(node, at):
    for pattern, work in WORK:
        if re.fullmatch(pattern, node.name):
            return work(node, at)
    sys.exit(f"cuda_step: nothing is known of the bytes of {node.name}")


# ---- what it takes ---------------------------------------------------------------------------------------


class Model:
    def __init__(self, card, facts=None, held=None):
        self.card = card
        self.facts = facts or sass.read_table()
        self.held = held or {key: row[6] for key, row in occupancy.read_table().items()}  # blocks of a multiprocessor

    def read_us(self, bytes_):
        return bytes_ / (self.card.gbps * READ * 1e3)

    def library_product(self, node):
        n, rows, k = (int(a) for a in node.arguments)
        c = self.card
        compute = n * rows * k / (c.int8 * LIBRARY * c.multiprocessors * c.ghz * 1e3)
        memory = self.read_us(n * k + rows * k + 4 * n * rows)
        return Price(node, START_US + max(compute, memory), n * k, 0, 0, 0, "matrix" if compute > memory else "memory")

    def price(self, node, at):
        if node.name == "cublasLtMatmul":
            return self.library_product(node)
        if not node.threads:
            return Price(node, CALL_US, 0, 0, 0, 0, "call")
        c, f, w = self.card, self.facts[(self.card.sm, node.name)], work_of(node, at)
        clock = c.ghz * 1e3
        answer = c.far if w.memory else c.near
        a_block = f["clocks"] + (f["waits"] - f["loop_waits"]) * c.near + f["loop_waits"] * answer + (w.rounds - 1) * (f["loop_clocks"] + f["loop_waits"] * answer)
        each, held = up(w.blocks, c.multiprocessors), self.held[(c.sm, node.name)]
        warps = each * node.threads / 32
        alone = up(each, min(held, each)) * a_block / clock
        limits = {"issue": warps * (f["instructions"] + (w.rounds - 1) * f["loop_instructions"]) / 4 / clock,
                  "matrix": warps * (f["macs"] + (w.rounds - 1) * f["loop_macs"]) / (c.int8 if "w8a8" in node.name else c.bf16) / clock,
                  "memory": self.read_us(w.memory),
                  "cache": (w.memory + w.cache) / (min(w.blocks, c.multiprocessors) * CACHE_BYTES * clock)}
        most = max(limits, key=limits.get)
        first = ((f["waits"] - f["loop_waits"]) * c.near + answer) / clock
        us = START_US + max(alone, first + limits[most]) + {"td_ring_rows": LINK_US / 2, "td_await_rows": 2 * LINK_US}.get(node.name, 0)
        return Price(node, us, w.memory, w.blocks, min(held, each), int(min(held, each) * node.threads * f["in_flight"]), "latency" if alone > first + limits[most] else most)


# ---- graphs ------------------------------------------------------------------------------------------------


def node_of(columns_):
    if len(columns_) == 5:
        return Node(columns_[0], tuple(map(int, columns_[1].split())), int(columns_[2]), int(columns_[3]), columns_[4].split())
    return Node(columns_[0], (1, 1, 1), 0, 0, columns_[1:])


def graphs(lines):
    """Lists of nodes, of a file that the stand-in has written (cuda_standin_list.c)."""
    found, counts = [], []
    for line in lines:
        columns_ = line.rstrip("\n").split("\t")
        if columns_[0] == "graph":
            found.append([])
            counts.append(int(columns_[1]))
        else:
            found[-1].append(node_of(columns_))
    for nodes, count in zip(found, counts):
        if len(nodes) != count:
            sys.exit(f"cuda_step: a graph of {count} nodes has {len(nodes)} lines")
    return found


def steps_of(sm, captured):
    """Those of a model's steps, the last of each size, and one hand-over of the trial that the start makes."""
    found = {}
    for nodes in captured:
        rows = next((n.grid[1] for n in nodes if n.name == "td_embed"), 0)
        if rows:
            prompt = any(n.name in ("td_mla_prefill", "td_gqa_prefill_64", "td_gqa_prefill_128") for n in nodes)
            found["prompt" if prompt else "decode", rows] = Step(sm, "prompt" if prompt else "decode", rows, nodes)
        elif nodes and nodes[0].name == "td_ring_rows":
            found["handover", 1] = Step(sm, "handover", 1, nodes[:2])
    return list(found.values())


def kept(steps):
    """What bench/cuda/steps.tsv has: of each kind of card decode of these sizes, of one card the rest."""
    return [s for s in steps if s.rows in (1, 4, 16, 32) and s.kind == "decode" or s.sm == 90 and s.kind != "decode"]


def read_steps(path):
    found = []
    for line in pathlib.Path(path).read_text().splitlines():
        columns_ = line.split("\t")
        if columns_[0] == "step":
            found.append(Step(int(columns_[1]), columns_[2], int(columns_[3]), []))
        else:
            found[-1].nodes.append(node_of(columns_))
    return found


def write_steps(path, steps):
    with open(path, "a") as f:
        for s in steps:
            f.write(f"step\t{s.sm}\t{s.kind}\t{s.rows}\t{len(s.nodes)}\n")
            for n in s.nodes:
                f.write("\t".join([n.name, " ".join(map(str, n.grid)), str(n.threads), str(n.shared), " ".join(n.arguments)] if n.threads else [n.name, *n.arguments]) + "\n")


def capture(arguments):
    """Steps of a model that the stand-in captures, at full size: its kernels do not run, its weights are random numbers."""
    card = next(c for c in CARDS.values() if c.sm == arguments.sm)
    override = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, **json.loads(arguments.override)}
    with tempfile.NamedTemporaryFile() as listed:
        env = dict(os.environ, TD_STANDIN_ARCH=str(card.sm), TD_STANDIN_MULTIPROCESSORS=str(card.multiprocessors), TD_STANDIN_MEMORY=str(80 << 30), TD_STANDIN_DELAY_US="0", TD_STANDIN_DRY="1",
                   TD_STANDIN_GRAPHS=listed.name, TD_CUDA_BELLS="kernels")
        for suite, shape in (("decode", "context 16"), ("prefill", "2048")):
            subprocess.run([ROOT / "scripts" / "cuda_emulated.sh", pathlib.Path(os.environ.get("TD_BUILD", ROOT / "build" / "release")) / "cli" / "tandem", "bench", suite, "--device", "cuda",
                            "--skip-experts", "all", "--model-path", arguments.model, "--json-model-override-args", json.dumps(override), "--rounds", "1", "--filter", shape], env=env,
                           check=True, stdout=subprocess.DEVNULL)
        with open(listed.name) as f:
            return steps_of(card.sm, graphs(f))


# ---- a step ------------------------------------------------------------------------------------------------


def parts_of(nodes):
    """(what is there once, a dense layer, one with experts): a layer ends with its second norm's sum."""
    ends = [i for i, n in enumerate(nodes) if n.name == "td_combine"]
    first = next(i for i, n in enumerate(nodes) if n.name == "td_embed") + 1
    assert len(ends) == 2, "a dense layer and one with experts are wanted"
    return nodes[:first] + nodes[ends[1] + 1:], nodes[first:ends[0] + 1], nodes[ends[0] + 1:ends[1] + 1]


Total = collections.namedtuple("Total", "us bytes nodes layer_us layer_nodes layer prices")


def layers_of(config):
    model = json.loads(pathlib.Path(config).read_text())
    return model["num_hidden_layers"], model["first_k_dense_replace"]


def whole_step(model, step, at, layers, dense):
    """All layers of the model, without experts and hand-over."""
    once, first, moe = ([model.price(n, at) for n in part] for part in parts_of(step.nodes))
    sums = [(sum(p.us for p in part), sum(p.memory for p in part), len(part)) for part in (once, first, moe)]
    us, bytes_, nodes = (sums[0][i] + dense * sums[1][i] + (layers - dense) * sums[2][i] for i in range(3))
    return Total(us, bytes_, nodes, sums[2][0], sums[2][2], moe, once + first + moe)


def find(steps, sm, kind, rows):
    """The step of so many rows, for cards of this kind; prompts and hand-overs are kept for one."""
    of_kind = [s for s in steps if s.kind == kind and s.rows == rows]
    found = [s for s in of_kind if s.sm == sm] or of_kind
    if not found:
        sys.exit(f"cuda_step: no step of {rows} rows, {kind}, is in {STEPS.name}: it has {sorted({(s.kind, s.rows) for s in steps})}")
    return found[0]


def figures(name, steps):
    """{what: (figure, unit)} of a card: those that have targets."""
    model = Model(CARDS[name])
    layers, dense = layers_of(V3)
    step = lambda rows, context, kind="decode": whole_step(model, find(steps, model.card.sm, kind, rows), Point(rows, context), layers, dense)
    one, many, prompt = step(1, 4096), step(16, 4096), step(2048, 0, "prompt")
    handover = [model.price(n, Point(1, 0)) for n in find(steps, model.card.sm, "handover", 1).nodes]
    attention = next(p for p in step(16, 16384).layer if p.node.name.startswith("td_mla_absorbed"))
    return {"decode step, 1 stream, 4K": (one.us / 1e3, "ms"), "its weights' and KV's bound": (model.read_us(one.bytes) / 1e3, "ms"), "nodes a layer": (one.layer_nodes, ""),
            "decode step, 1 stream, 1K": (step(1, 1024).us / 1e3, "ms"), "16 streams, 4K, over one": (many.us / one.us, "x"), "hand-over nodes": (len(handover), ""),
            "hand-over": (sum(p.us for p in handover), "us"), "absorbed attention, 16 x 16K, over its KV's time": (attention.us / model.read_us(attention.memory), "x"),
            "nodes of a 2,048-row step": (prompt.nodes, ""), "2,048-row step": (prompt.us / 1e3, "ms")}


def share(model, prices):
    """Of the read bandwidth, of nodes one after the other."""
    return model.read_us(sum(p.memory for p in prices)) / sum(p.us for p in prices)


def expected(text):
    """{target of scripts/gpu_targets.py: figure} for the card whose name a driver tells as `text`; empty where it is none of CARDS."""
    name = next((n for n in CARDS if n in text), None)
    if not name:
        return {}
    steps, model = read_steps(STEPS), Model(CARDS[name])
    layers, dense = layers_of(V3)
    step = lambda rows, context: whole_step(model, find(steps, model.card.sm, "decode", rows), Point(rows, context), layers, dense)
    linear = lambda n, k: model.price(Node("td_w8a8_8", (1, up(n, 16), 1), 256, 0, ["0"] * 3 + [str(k)] + ["0"] * 4 + [str(n)] + ["0"] * 11), Point(1, 0))
    many = step(16, 16384).layer
    attention = many[1:[p.node.name for p in many].index("td_norm_middle", 1)]
    return {"W8A8, 1 row, V3 shapes": share(model, [linear(576, 7168), linear(24576, 1536), linear(7168, 16384), linear(18432, 7168)]),
            "MLA decode, 16 streams at 16K": share(model, attention),
            "hand-over to the experts and back, per MoE layer": sum(model.price(n, Point(1, 0)).us for n in find(steps, model.card.sm, "handover", 1).nodes),
            f"V3-shaped decode step without experts, {layers} layers, 1 stream": step(1, 1024).us / 1e3}


# ---- what is printed ---------------------------------------------------------------------------------------


def print_nodes(model, prices):
    print(f"{'node':22} {'grid':>14} {'blocks':>7} {'an SM':>5} {'in flight':>9} {'MB':>8} {'us':>7} {'bound':>6}  limit")
    for p in prices:
        print(f"{p.node.name:22} {'x'.join(map(str, p.node.grid)):>14} {p.blocks:7} {p.a_multiprocessor:5} {p.in_flight / 1024:6.0f} KB {p.memory / 1e6:8.2f} {p.us:7.2f} {model.read_us(p.memory):6.2f}  {p.limit}")


def print_step(name, arguments, steps):
    model = Model(CARDS[name])
    layers, dense = layers_of(V3)
    kind, at = "prompt" if arguments.prompt else "decode", Point(arguments.rows, arguments.context)
    total = whole_step(model, find(steps, model.card.sm, kind, arguments.rows), at, layers, dense)
    if arguments.nodes:
        print_nodes(model, total.layer)
    print(f"{name}: {arguments.rows} rows, context {arguments.context}: a layer with experts {total.layer_us:.0f} us in {total.layer_nodes} nodes; {layers} layers {total.us / 1e3:.2f} ms in "
          f"{total.nodes} nodes, bound {model.read_us(total.bytes) / 1e3:.2f} ms ({total.bytes / 1e9:.1f} GB)")


# One H100, docs/cuda.md: kernels at bc70a3c0 by ncu, 1 row, context 1024; steps at 1f4576c5, ms; (rows, context, ms).
MEASURED_KERNELS = [("td_f32_linear_1", 0, 6.1), ("td_route", 0, 16), ("td_norm_middle", 0, 7.3), ("td_norm_f32", 0, 5.4), ("td_quantize_f32", 0, 5.1), ("td_mla_place", 0, 3.7),
                    ("td_mla_absorbed_16", 0, 18.9), ("td_merge_spans", 0, 6.6), ("td_bf16_columns_8", 0, 10.4), ("td_bf16_linear_8", 0, 9.7), ("td_w8a8_8", 0, 10.8), ("td_w8a8_8", 1, 17.5),
                    ("td_w8a8_8", 2, 44)]
MEASURED_STEPS = [(1, 16, 9.90), (1, 1024, 10.46), (1, 4096, 11.59), (1, 16384, 15.25), (4, 16, 11.47), (16, 16, 14.48), (16, 1024, 19.77), (32, 16, 18.07)]


def print_measured(steps):
    model = Model(CARDS["H100"])
    layers, dense = layers_of(V3)
    layer = whole_step(model, find(steps, 90, "decode", 1), Point(1, 1024), layers, dense).layer
    print(f"{'kernel, 1 row, context 1024':34} {'measured':>9} {'model':>7} {'model / measured':>17}")
    for name, nth, us in MEASURED_KERNELS:
        p = [p for p in layer if p.node.name == name][nth]
        print(f"{name + (f' ({nth + 1})' if name == 'td_w8a8_8' else ''):34} {us:9.1f} {p.us:7.1f} {p.us / us:17.2f}")
    print(f"\n{'rows, context':34} {'measured':>9} {'model':>7} {'model / measured':>17}")
    for rows, context, ms in MEASURED_STEPS:
        us = whole_step(model, find(steps, 90, "decode", rows), Point(rows, context), layers, dense).us
        print(f"{f'{rows}, {context}, ms':34} {ms:9.2f} {us / 1e3:7.2f} {us / 1e3 / ms:17.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", choices=CARDS)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--prompt", action="store_true")
    parser.add_argument("--nodes", action="store_true", help="each node of a layer with experts")
    parser.add_argument("--json", action="store_true", help="figures that have targets")
    parser.add_argument("--measured", action="store_true")
    parser.add_argument("--capture", metavar="FILE")
    parser.add_argument("--model", default=str(V3))
    parser.add_argument("--override", default="{}")
    parser.add_argument("--sm", type=int, default=90)
    arguments = parser.parse_args()
    if arguments.capture:
        write_steps(arguments.capture, kept(capture(arguments)))
        return
    steps, names = read_steps(STEPS), [arguments.card] if arguments.card else list(CARDS)
    if arguments.measured:
        print_measured(steps)
    elif arguments.json:
        print(json.dumps({name: figures(name, steps) for name in names}, indent=1))
    else:
        for name in names:
            print_step(name, arguments, steps)


if __name__ == "__main__":
    main()

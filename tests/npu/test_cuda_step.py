#!/usr/bin/env python3
"""bench/cuda_step.py: graphs of a small model, captured on the stand-in, and the committed ones of DeepSeek-V3; the arithmetic of made-up nodes on a made-up card; the walk through
machine code.

usage: test_cuda_step.py     TD_BUILD=folder is the build
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "bench" / "cuda")]
import cuda_step  # noqa: E402
import sass  # noqa: E402
from cuda_step import Card, Model, Node, Point  # noqa: E402

SMALL = {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32,
         "n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "vocab_size": 256, "bos_token_id": 0, "eos_token_id": 1}


def near(got, want, what):
    assert abs(got - want) <= 1e-9 * max(1, abs(want)), f"{what}: {got}, not {want}"


def sequence(nodes):
    """Names without the sizes of variants: what a layer launches whatever its shape is."""
    return [re.sub(r"(_short|_middle)?(_\d+)?$", "", n.name) for n in nodes]


def captured():
    """A small model's layer launches what the committed graphs of DeepSeek-V3 have: those are not older than the code."""
    with tempfile.TemporaryDirectory() as folder:
        to = pathlib.Path(folder) / "steps.tsv"
        run = subprocess.run([sys.executable, ROOT / "bench" / "cuda_step.py", "--capture", to, "--override", json.dumps(SMALL)], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        small = cuda_step.read_steps(to)
        counts = [int(line.split("\t")[4]) for line in to.read_text().splitlines() if line.startswith("step\t")]
    assert [len(s.nodes) for s in small] == counts, (counts, small)
    kept = cuda_step.read_steps(cuda_step.STEPS)
    assert {(s.kind, s.rows) for s in small} == {(s.kind, s.rows) for s in kept} == {("handover", 1), ("decode", 1), ("decode", 4), ("decode", 16), ("decode", 32), ("prompt", 2048)}, kept
    for s in small:
        large = cuda_step.find(kept, 90, s.kind, s.rows)
        if s.kind == "decode":
            assert sequence(s.nodes) == sequence(large.nodes), f"{s.rows} rows: bench/cuda/steps.tsv is old: {sequence(large.nodes)} is now {sequence(s.nodes)}"
    assert {s.sm for s in kept if s.kind == "decode"} == {c.sm for c in cuda_step.CARDS.values()}


def wrong_count():
    for lines in (["graph\t2", "td_norm\t1 1 1\t1024\t0\t0 0"], ["graph\t1", "cuLaunchHostFunc\t0", "cuLaunchHostFunc\t0"]):
        try:
            cuda_step.graphs(lines)
        except SystemExit as e:
            assert "nodes" in str(e), e
        else:
            assert False, "a list that is cut off was taken"


def sums():
    """A step's bytes are the model's: by its config. Its time is that of its parts."""
    c = json.loads(cuda_step.V3.read_text())
    hidden, heads, latent, rope = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"], c["qk_rope_head_dim"]
    nope, v, lora = c["qk_nope_head_dim"], c["v_head_dim"], c["q_lora_rank"]
    attention = hidden * (lora + latent + rope) + lora * heads * (nope + rope) + heads * (nope + v) * latent * 2 + heads * v * hidden
    moe = attention + c["n_routed_experts"] * hidden * 4 + 3 * hidden * c["moe_intermediate_size"]
    dense = attention + 3 * hidden * c["intermediate_size"]
    layers, n_dense, keys = c["num_hidden_layers"], c["first_k_dense_replace"], 4097
    steps, model = cuda_step.read_steps(cuda_step.STEPS), Model(cuda_step.CARDS["H100"])
    step = cuda_step.find(steps, 90, "decode", 1)
    total = cuda_step.whole_step(model, step, Point(1, keys - 1), layers, n_dense)
    near(total.bytes, n_dense * dense + (layers - n_dense) * moe + layers * keys * (latent + rope) * 2 + c["vocab_size"] * hidden + 2 * hidden, "bytes of a step")
    once, first, one = cuda_step.parts_of(step.nodes)
    assert len(once) + len(first) + len(one) == len(step.nodes)
    assert total.nodes == len(once) + n_dense * len(first) + (layers - n_dense) * len(one), total.nodes
    near(total.us, sum(model.price(n, Point(1, keys - 1)).us * times for part, times in ((once, 1), (first, n_dense), (one, layers - n_dense)) for n in part), "us of a step")
    assert total.us > model.read_us(total.bytes)
    for name in cuda_step.CARDS:
        for what, (figure, _) in cuda_step.figures(name, steps).items():
            assert figure > 0, (name, what)


def arithmetic():
    """One norm, and one product that memory limits, on a card of round numbers."""
    card = Card(90, 10, 1.0, 1000 / cuda_step.READ, 600, 200, 1000, 2000)
    fact = {"instructions": 400, "clocks": 1000, "waits": 3, "macs": 0, "in_flight": 16, "loop_bytes": 16, "loop_instructions": 100, "loop_clocks": 50, "loop_waits": 1, "loop_macs": 0}
    model = Model(card, {(90, "td_norm"): fact, (90, "td_w8a8_8"): dict(fact, in_flight=128, macs=4096, loop_macs=4096)}, {(90, "td_norm"): 1, (90, "td_w8a8_8"): 2})
    p = model.price(Node("td_norm", (1, 1, 1), 1024, 0, ["0"] * 6 + ["4096"] + ["0"] * 5), Point(1, 0))
    assert (p.blocks, p.a_multiprocessor, p.in_flight, p.memory) == (1, 1, 16384, 0), p
    issue, first, alone = 32 * 400 / 4 / 1e3, (2 * 200 + 200) / 1e3, (1000 + 3 * 200) / 1e3
    near(p.us, cuda_step.START_US + max(alone, first + issue), "a norm")
    assert p.limit == "issue", p
    arguments = ["0"] * 20
    arguments[3], arguments[8] = "8192", "640"
    p = model.price(Node("td_w8a8_8", (1, 40, 1), 256, 0, arguments), Point(1, 0))
    # 40 blocks on 10 multiprocessors are 2 after 2; 4 rounds of 2,048 k; 640 x 8,192 bytes at 1,000 GB/s.
    assert (p.blocks, p.a_multiprocessor, p.in_flight, p.memory) == (40, 2, 2 * 256 * 128, 640 * 8192), p
    alone = 2 * (1000 + 2 * 200 + 600 + 3 * (50 + 600)) / 1e3
    cache = (640 * 8192 + 40 * 8192) / (10 * 32 * 1e3)
    near(p.us, cuda_step.START_US + max(alone, (2 * 200 + 600) / 1e3 + max(640 * 8192 / 1e6, cache, 4 * 8 * 700 / 4 / 1e3)), "a product")
    assert p.limit == "cache", p
    assert model.price(Node("cuLaunchHostFunc", (1, 1, 1), 0, 0, ["0"]), Point(1, 0)).us == cuda_step.CALL_US


CODE = """td_made_up:
        /*0000*/                   LDG.E R2, desc[UR4][R8.64] ;
        /*0010*/              @!P0 BRA `(.L_x_2) ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R8.64] ;
        /*0030*/                   LDG.E.128 R12, desc[UR4][R8.64] ;
.L_x_1:
        /*0040*/                   IADD3 R3, R3, R4, R12 ;
        /*0050*/                   LDG.E.128 R4, desc[UR4][R8.64] ;
        /*0060*/              @P1 BRA `(.L_x_1) ;
.L_x_2:
        /*0070*/                   STG.E desc[UR4][R8.64], R3 ;
        /*0080*/                   EXIT ;
.L_x_3:
        /*0090*/                   BRA `(.L_x_3);
"""


def machine_code():
    """Both loads before the loop are on the way at once; a round waits for the load of the one before."""
    found = dict(zip(sass.HEAD[2:], sass.facts(*sass.functions(CODE)["td_made_up"])))
    assert found["instructions"] == 9 and found["loop_instructions"] == 3 and found["loop_bytes"] == 16 and found["in_flight"] == 4 + 16 + 16, found
    assert round(found["waits"]) == 1 and round(found["loop_waits"]) == 1 and found["macs"] == 0, found


def measured():
    run = subprocess.run([sys.executable, ROOT / "bench" / "cuda_step.py", "--measured"], capture_output=True, text=True)
    assert run.returncode == 0 and "1, 4096, ms" in run.stdout, run.stderr
    run = subprocess.run([sys.executable, ROOT / "bench" / "cuda_step.py", "--rows", "3"], capture_output=True, text=True)
    assert run.returncode == 1 and "no step of 3 rows" in run.stderr, run.stderr


for case in (captured, wrong_count, sums, arithmetic, machine_code, measured):
    case()
print("cuda_step: ok")

#!/usr/bin/env python3
"""scripts/gpu_check.sh without a card, and at tiny sizes on the stand-in for the driver; the verdicts of gpu_targets.py on made-up figures; and the
files of random_gguf.py.

usage: test_gpu_check.py BUILD_FOLDER
"""
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1])
STANDIN = dict(os.environ, TD_STANDIN_DELAY_US="5", LD_LIBRARY_PATH=str(BUILD / "cuda_standin"))
KERNELS = BUILD / "cuda_standin" / "kernels.image"
EMULATED = dict(STANDIN, TD_CUDA_KERNELS=str(KERNELS))
TARGETS = ["W8A8, 1 row, V3 shapes", "W8A8, 2048 rows, V3 shapes", "MLA decode, 16 streams at 16K", "MLA prefill, 8K", "GQA decode, 16 streams at 16K", "GQA prefill, 8K",
           "hand-over to the experts and back, per MoE layer", "V3-shaped decode step without experts, 61 layers, 1 stream",
           *(f"{m}, {w}: tokens a second against llama.cpp's" for m in ("deepseek-v2-lite", "qwen3-30b-a3b") for w in ("decode", "prefill"))]
LLAMA_OF_SHAPES = """#!/bin/sh
[ "$(head -c 4 "$2")" = GGUF ] || exit 1
echo '[{"n_prompt": 128, "n_gen": 0, "avg_ts": 1000}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 0.5}]'
"""
LLAMA = """#!/bin/sh
echo "$@" >&2
[ "$2" = %s ] || exit 1
echo '[{"n_gen": 64, "avg_ts": 12.5}]'
"""


def check(arguments, environment=os.environ):
    with tempfile.TemporaryDirectory() as folder:
        to = pathlib.Path(folder) / "report.json"
        run = subprocess.run([ROOT / "scripts" / "gpu_check.sh", "--build", BUILD, "--output", to, *arguments], capture_output=True, text=True, env=environment)
        return run.returncode, run.stdout + run.stderr, json.loads(to.read_text()) if to.exists() else None


def stages(report):
    return {s["stage"]: s for s in report["stages"]}


def no_card():
    card = subprocess.run(["tandem", "topo", "--json"], executable=BUILD / "cli" / "tandem", capture_output=True, text=True, check=True).stdout
    if json.loads(card)["cuda_cards"]:
        print("this machine has a card: what is said without one is not tried")
        return
    status, said, report = check([])
    assert status == 3 and report is None, said
    assert "gpu_check: no card: the machine has no NVIDIA driver, or the driver finds no card" in said, said


def broken_driver():
    status, said, report = check([], dict(STANDIN, TD_STANDIN_CUDA="11080"))
    assert status == 3 and report is None, said
    assert "gpu_check: no card: NVIDIA's driver serves CUDA 11.8 and is too old" in said, said


def first_stages():
    status, said, report = check(["--only", "topo,llama"], STANDIN)
    found = stages(report)
    assert status == 0 and set(found) == {"topo", "llama"}, said
    assert found["topo"]["status"] == "passed" and len(found["topo"]["result"]["cuda_cards"]) == 2, found["topo"]
    assert found["llama"]["status"] == "skipped" and "name no llama.cpp" in found["llama"]["why"], found["llama"]
    assert "1 passed, 0 failed, 1 skipped" in said and "gpu_check: llama: skipped: " in said, said


def llama():
    with tempfile.TemporaryDirectory() as folder:
        program, model = pathlib.Path(folder) / "llama-bench", pathlib.Path(folder) / "a model.gguf"
        program.write_text(LLAMA % f'"{model}"')
        program.chmod(0o755)
        model.write_text("GGUF")
        given = ["--only", "llama", "--llama-bench", program, "--llama-model", model]
        status, said, report = check(given, STANDIN)
        assert status == 0 and stages(report)["llama"]["result"] == [{"n_gen": 64, "avg_ts": 12.5}], said
        program.write_text("#!/bin/sh\necho 'no such model' >&2\nexit 4\n")
        status, said, report = check(given, STANDIN)
        assert status == 1 and stages(report)["llama"]["why"] == "exit status 4: no such model", said
        program.write_text("#!/bin/sh\nexec sleep 60\n")
        status, said, report = check([*given, "--seconds", "6"], STANDIN)
        assert status == 1 and stages(report)["llama"]["why"] == "not done when the 6 seconds were over", said
        model.unlink()
        status, said, report = check(given, STANDIN)
        assert status == 1 and "cannot be read" in stages(report)["llama"]["why"], said


def tiny_sizes():
    """Every row of the table is there; of what they say nothing means anything."""
    if not KERNELS.exists():
        print("this build has no emulated kernels: the benchmarks on the stand-in are not tried")
        return
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "llama-bench"
        program.write_text(LLAMA_OF_SHAPES)
        program.chmod(0o755)
        status, said, report = check(["--tiny", "--only", "topo,targets,models,llama", "--llama-bench", program], EMULATED)
    assert status == 0, said
    assert report["stand_in"] and report["cards"] == 2 * ["stand-in for a card"], report["cards"]
    targets = {t["what"]: t for t in report["targets"]}
    assert list(targets) == TARGETS, list(targets)
    for what, t in targets.items():
        assert t["met"] is None, t
        if "deepseek-v2-lite" in what:
            assert t["measured"] is None and t["why"] == "the stage decode-deepseek-v2-lite did not run" or "prefill" in what, t
        elif "hand-over" not in what:  # where it is a difference of two noisy times
            assert t["measured"] > 0 and t["why"] == "on a stand-in for the card" and all("tandem' 'bench'" in c or "llama-bench" in c for c in t["commands"]), t
    bounds = [(r["shape"], r["kernel"]) for r in stages(report)["bounds"]["result"]]
    assert bounds == [("memory", "read"), ("memory", "copy"), ("registers", "int8"), ("registers", "bf16")], bounds
    for r in stages(report)["kernels"]["result"]:
        assert min(r[k] for k in ("read_bound_gbps", "int8_bound_gops", "bf16_bound_gflops", "read_fraction", "int8_fraction")) > 0 and "f32_bound_gflops" not in r, r
    assert targets["qwen3-30b-a3b, decode: tokens a second against llama.cpp's"]["details"]["llama_tokens_per_s"] == 0.5, said
    same_work()


def same_work():
    """What a step on the card is said to read and to compute is what the host counts while it does the same step."""
    config = ROOT / "tests" / "data" / "golden" / "deepseek_v2_lite" / "config.json"
    done = []
    for device, environment in (("cuda", EMULATED), ("host", os.environ)):
        run = subprocess.run([BUILD / "cli" / "tandem", "bench", "decode", "--model-path", config, "--device", device, "--skip-experts", "all", "--rounds", "1", "--threads", "1", "--json",
                              "--filter", "4 streams, context 16"], capture_output=True, text=True, env=environment)
        assert run.returncode == 0, run.stderr
        row = json.loads(run.stdout.splitlines()[0])
        done.append([row[k] * row["time_us"] for k in ("gbps", "gops")])
    assert all(abs(a - b) < 1e-3 * b for a, b in zip(*done)), done


def step(time_us):
    return {"time_us": time_us, "shape": "1 streams, context 1024", "m": 1, "device": "a card", "read_fraction": 0.7}


def row(shape, m, **members):
    return {"shape": shape, "m": m, "kernel": "w8a8", "device": "a card", "time_us": 10, "read_fraction": 0, "int8_fraction": 0, "bf16_fraction": 0, "int8_bound_gops": 1000e3,
            "bf16_bound_gflops": 500e3, **members}


def passed(name, result, command="tandem bench"):
    return {"stage": name, "status": "passed", "why": None, "command": command, "result": result}


def judge(stages_given, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "report.json"
        path.write_text(json.dumps({"stages": stages_given}))
        run = subprocess.run([sys.executable, ROOT / "scripts" / "gpu_targets.py", path, *arguments], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return {t["what"]: t for t in json.loads(path.read_text())["targets"]}, run.stdout


def verdicts():
    command = "'tandem' '{\"num_hidden_layers\": 61, \"num_nextn_predict_layers\": 0}'"
    given = [passed("kernels", [row("v3 kv_a", 1, time_us=10, read_fraction=0.5), row("v3 o", 1, time_us=90, read_fraction=0.9), row("v2-lite o", 1, read_fraction=0),
                                row("v3 o", 2048, int8_fraction=0.8), row("v3 dense up, mxfp4", 2048, kernel="fp4g", int8_fraction=0.1)]),
             passed("attention-mla", [row("mla v3 decode, 16 at 16384", 16, read_fraction=0.79), row("mla v3 prefill 8192", 8192, int8_fraction=0.2, bf16_fraction=0.4)]),
             {"stage": "attention-gqa", "status": "failed", "why": "exit status 1: no memory", "command": "tandem bench", "result": []},
             passed("step", [step(5000)], command), passed("step-handover", [step(5000 + 58 * 7)], command),
             passed("decode-qwen3-30b-a3b", [dict(step(10000), shape="1 streams, context 16")]), passed("llama-qwen3-30b-a3b", [{"n_prompt": 2048, "n_gen": 0, "avg_ts": 9}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 80.0}])]
    targets, said = judge(given)
    expected = {TARGETS[0]: (0.86, True), TARGETS[1]: (0.8, True), TARGETS[2]: (0.79, False), TARGETS[3]: (0.6, True), TARGETS[4]: (None, None), TARGETS[5]: (None, None), TARGETS[6]: (7, True),
                TARGETS[7]: (5, True), TARGETS[8]: (None, None), TARGETS[9]: (None, None), TARGETS[10]: (1.25, False), TARGETS[11]: (None, None)}
    for what, (measured, met) in expected.items():
        t = targets[what]
        assert t["met"] is met and (measured is None) == (t["measured"] is None) and (measured is None or abs(t["measured"] - measured) < 1e-9), t
    assert targets[TARGETS[4]]["why"] == "the stage attention-gqa was failed: exit status 1: no memory", targets[TARGETS[4]]
    assert "MLA decode, 16 streams at 16K: 0.79 of the measured read bandwidth, target >= 0.8: NOT MET" in said, said
    by_sheet, said = judge(given, "--int8-tops", "2000", "--bf16-tflops", "1000")
    assert abs(by_sheet[TARGETS[1]]["measured"] - 0.4) < 1e-9 and by_sheet[TARGETS[1]]["met"] is False and abs(by_sheet[TARGETS[3]]["measured"] - 0.3) < 1e-9, by_sheet
    assert "by the data sheet" in by_sheet[TARGETS[1]]["unit"], by_sheet[TARGETS[1]]
    topo = passed("topo", {"cuda_cards": [{"name": "NVIDIA H100 80GB HBM3"}]})
    modelled, said = judge([topo, *given])
    has = [t for t in TARGETS if modelled[t]["model"]]
    assert has == [TARGETS[0], TARGETS[2], TARGETS[6], TARGETS[7]] and 5 < modelled[TARGETS[7]]["model"] < 20 and 0 < modelled[TARGETS[0]]["model"] < 1, modelled
    assert re.search(r"61 layers, 1 stream: 5 ms, the model says [\d.]+, target <= 6: met", said), said
    assert not any(t["model"] for t in targets.values()), targets
    few, _ = judge([passed("step", [step(600)], command.replace("61", "6"))])
    assert few[TARGETS[7]]["met"] is None and "of 6 layers only" in few[TARGETS[7]]["why"], few[TARGETS[7]]


def parse_gguf(path):
    """Keys, and tensors with their bytes, by the specification (ggml's docs/gguf.md)."""
    data, at = path.read_bytes(), 0

    def take(form):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values[0]

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    assert take("4s") == b"GGUF" and take("I") == 3
    n_tensors, n_keys = take("Q"), take("Q")
    kinds = {4: lambda: take("I"), 6: lambda: take("f"), 7: lambda: take("?"), 8: text}
    keys = {}
    for _ in range(n_keys):
        key = text()
        keys[key] = kinds[take("I")]()
    tensors = {}
    for _ in range(n_tensors):
        name = text()
        sides = [take("Q") for _ in range(take("I"))]
        tensors[name] = (take("I"), sides, take("Q"))
    at += -at % keys["general.alignment"]
    block = {0: (1, 4), 2: (32, 18), 8: (32, 34)}
    end = 0
    for kind, sides, offset in tensors.values():
        n = 1
        for side in sides:
            n *= side
        assert offset == end + -end % 32, (offset, end)
        end = offset + n // block[kind][0] * block[kind][1]
    assert len(data) == at + end + -end % 32, (len(data), at, end)
    return keys, tensors


def random_files():
    small = {"hidden_size": 64, "num_attention_heads": 2, "moe_intermediate_size": 32, "vocab_size": 96, "intermediate_size": 64}
    deepseek = {**small, "num_hidden_layers": 3, "first_k_dense_replace": 1, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_routed_experts": 8}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "random.gguf"

        def make(model, override):
            return subprocess.run([sys.executable, ROOT / "scripts" / "random_gguf.py", ROOT / "configs" / "models" / f"{model}.json", path, "--override", json.dumps(override)],
                                  capture_output=True, text=True)

        for model, override in (("deepseek-v2-lite", deepseek), ("deepseek-v3", {**deepseek, "q_lora_rank": 32}),
                                ("qwen3-30b-a3b", {**small, "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 32, "num_experts": 4})):
            made = make(model, override)
            assert made.returncode == 0, made.stderr
            keys, tensors = parse_gguf(path)
            arch = keys["general.architecture"]
            n_experts = keys[f"{arch}.expert_count"]
            assert keys[f"{arch}.block_count"] == override["num_hidden_layers"] and keys[f"{arch}.vocab_size"] == 96, keys
            last = f"blk.{override['num_hidden_layers'] - 1}."
            assert tensors[last + "ffn_up_exps.weight"][:2] == (2, [64, 32, n_experts]) and tensors[last + "ffn_down_exps.weight"][:2] == (2, [32, 64, n_experts]), tensors
            assert tensors["output.weight"][:2] == (8, [64, 96]) and tensors[last + "ffn_gate_inp.weight"][:2] == (0, [64, n_experts]), tensors
            assert ("blk.0.attn_q_b.weight" in tensors) == (model == "deepseek-v3") and ("blk.0.ffn_up.weight" in tensors) == (arch == "deepseek2"), tensors
        said = make("qwen3-30b-a3b", {"moe_intermediate_size": 40}).stderr
        assert "random_gguf: blk.0.ffn_down_exps.weight has rows of 40, no multiple of 32" in said, said
        assert "MiniMaxM2ForCausalLM: only" in make("deepseek-v3", {"architectures": ["MiniMaxM2ForCausalLM"]}).stderr
        said = make("deepseek-v3", {"num_hidden_layers": 2000}).stderr
        assert " GB free" in said, said


def mistakes():
    for arguments, sentence in ((["--only", "topo,dance"], "dance is no stage"), (["--fast"], "--fast is no option"), (["--only"], "--only needs a value"), (["--seconds", "1e3"], "is no number"), (["--int8-tops", "many"], "a peak of many is no number")):
        status, said, report = check(arguments, STANDIN)
        assert status == 2 and sentence in said and "usage: scripts/gpu_check.sh" in said, said


def shell():
    """Only where the checker is: it is no tool of the project's."""
    try:
        run = subprocess.run(["shellcheck", ROOT / "scripts" / "gpu_check.sh"], capture_output=True, text=True)
    except FileNotFoundError:
        return
    assert run.returncode == 0, run.stdout


for case in (no_card, broken_driver, first_stages, llama, tiny_sizes, verdicts, random_files, mistakes, shell):
    case()
print("gpu_check: ok")

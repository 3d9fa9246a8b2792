#!/usr/bin/env python3
"""scripts/gpu_check.sh where there is no card, and its first stages on the stand-in for the driver.

usage: test_gpu_check.py BUILD_FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1])
STANDIN = dict(os.environ, TD_STANDIN_DELAY_US="5", LD_LIBRARY_PATH=str(BUILD / "cuda_standin"))
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
        status, said, report = check([*given, "--seconds", "2"], STANDIN)
        assert status == 1 and stages(report)["llama"]["why"] == "not done when the 2 seconds were over", said
        model.unlink()
        status, said, report = check(given, STANDIN)
        assert status == 1 and "cannot be read" in stages(report)["llama"]["why"], said


def mistakes():
    for arguments, sentence in ((["--only", "topo,dance"], "dance is no stage"), (["--fast"], "--fast is no option"), (["--only"], "--only needs a value"), (["--seconds", "1e3"], "is no number")):
        status, said, report = check(arguments, STANDIN)
        assert status == 2 and sentence in said and "usage: scripts/gpu_check.sh" in said, said


def shell():
    """Only where the checker is: it is no tool of the project's."""
    try:
        run = subprocess.run(["shellcheck", ROOT / "scripts" / "gpu_check.sh"], capture_output=True, text=True)
    except FileNotFoundError:
        return
    assert run.returncode == 0, run.stdout


for case in (no_card, broken_driver, first_stages, llama, mistakes, shell):
    case()
print("gpu_check: ok")

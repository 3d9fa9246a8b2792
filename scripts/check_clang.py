#!/usr/bin/env python3
"""Check that clang's front end reads every C file of a build without a warning, with the build's own options.

usage: scripts/check_clang.py BUILD   (a configured and built folder with compile_commands.json; exit 77 where there is no clang-14)
A third of the files is read, drawn by a seed (TD_TEST_SEED, else the time; it is printed); with TD_TEST_FULL=1 all.
"""
import concurrent.futures
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import time

CLANG = "clang-14"
GCC_ONLY = "-fvect-cost-model"  # what our CMake files give to gcc alone


def check(entry):
    """What clang says of one entry of compile_commands.json: "" when it has nothing to say."""
    words = [w for w in shlex.split(entry["command"])[1:] if not w.startswith(GCC_ONLY)]
    output = words.index("-o")
    del words[output:output + 2]
    run = subprocess.run([CLANG, "-fsyntax-only", "-Werror", *words], cwd=entry["directory"], capture_output=True, text=True)
    return run.stderr or ("" if run.returncode == 0 else f"{entry['file']}: {CLANG} ended with {run.returncode}\n")


def main():
    if not shutil.which(CLANG):
        print(f"skipped: there is no {CLANG}")
        return 77
    with open(os.path.join(sys.argv[1], "compile_commands.json")) as f:
        entries = json.load(f)
    if not os.environ.get("TD_TEST_FULL"):
        seed = int(os.environ.get("TD_TEST_SEED") or time.time_ns())
        print(f"a third of {len(entries)} files: TD_TEST_SEED={seed}", flush=True)
        entries = random.Random(seed).sample(entries, (len(entries) + 2) // 3)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = [s for s in pool.map(check, entries) if s]
    print("".join(said) + f"{len(entries)} files, {len(said)} that {CLANG} refuses")
    return 1 if said or not entries else 0


sys.exit(main())

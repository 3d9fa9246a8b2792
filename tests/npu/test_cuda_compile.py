#!/usr/bin/env python3
"""Every kernel of npu/cuda compiles for every generation of cards, with NVIDIA's own compilers, which need no card: NVRTC from PyPI, and nvcc where there is one.

usage: test_cuda_compile.py [SOURCE.cu...]     exit 77 where neither compiler can be had
Two generations, drawn by a seed (TD_TEST_SEED, else the time; it is printed), NVRTC 12 for both, NVRTC 13 and nvcc for the first of them; with TD_TEST_FULL=1 all six by both.

A warning is an error, too. So are registers that spill, arrays that live in memory, a kernel that the emulation's list (cuda_kernels.cpp) does
not have, or has with another number of threads, and one that NVRTC 12 gives more of a multiprocessor than bench/cuda/occupancy.tsv has.
"""
import concurrent.futures
import os
import pathlib
import random
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench" / "cuda")]
import occupancy  # noqa: E402
from cuda_compilers import ARCHITECTURES as ALL_ARCHITECTURES  # noqa: E402
from cuda_compilers import KERNELS, NVRTC_VERSIONS, compilers  # noqa: E402

FULL = os.environ.get("TD_TEST_FULL") == "1"
SEED = int(os.environ.get("TD_TEST_SEED") or time.time_ns())
ARCHITECTURES = ALL_ARCHITECTURES if FULL else random.Random(SEED).sample(ALL_ARCHITECTURES, 2)
SPILL_BYTES_MAX = 128  # of a thread: some addresses and rows' states, outside of the loops over keys


def defined(text):
    """Kernels of a source, also those that its macros define: name(…) and name_##PARAMETER(…) of a macro's first parameter."""
    names = set(re.findall(r"^TD_KERNEL(?:_BLOCKS)?\([^)\n]*\)\s*(td_\w+)\(", text, re.M))
    for macro, parameter, name in re.findall(r"#define (\w+)\((\w+)[^\n]*\\\n\s*TD_KERNEL(?:_BLOCKS)?\([^)\n]*\)\s*\\\n\s*([\w#]+)\(", text):
        for given in re.findall(r"^%s\((\w+)" % macro, text, re.M):
            names.add(given if name == parameter else name.replace("##" + parameter, given))
    return names


LAUNCHES, TABLE = occupancy.launches(), occupancy.read_table()


def check(compiler, source, architecture):
    log, cubin = compiler.compile(source, architecture)
    if cubin is None:
        return f"{source.name} for sm_{architecture}, {compiler.name}:\n{log}"
    wrong = [line for line in log.splitlines() if re.search(r"\bwarning\b|\berror\b", line) or any(int(n) > SPILL_BYTES_MAX for n in re.findall(r"(\d+) bytes (?:stack|spill)", line))]
    if compiler.name == "NVRTC " + ".".join(NVRTC_VERSIONS[0].split(".")[:2]):
        wrong += occupancy.worse_than_table(architecture, log, LAUNCHES, TABLE)
    wrong += [f"no {name} in the cubin" for name in defined(source.read_text()) if name.encode() not in cubin]
    return "\n".join([f"{source.name} for sm_{architecture}, {compiler.name}:", *wrong]) if wrong else ""


def main():
    sources = [pathlib.Path(p).resolve() for p in sys.argv[1:]] or sorted(KERNELS.glob("*.cu"))
    listed = set(re.findall(r"TD_CUDA_EXPORT\((\w+),", (ROOT / "tests/standins/cuda/cuda_kernels.cpp").read_text()))
    kernels = set().union(*(defined(s.read_text()) for s in KERNELS.glob("*.cu")))
    said = [f"only in one of npu/cuda/kernels and cuda_kernels.cpp: {', '.join(sorted(kernels ^ listed))}"] if kernels != listed else []
    found = compilers()
    jobs = [(c, s, a) for i, c in enumerate(found) for s in sources for a in (ARCHITECTURES[:1] if i and not FULL else ARCHITECTURES)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        said += [s for s in pool.map(lambda j: check(*j), jobs) if s]
    print("\n".join(said))
    print(f"{len(kernels)} kernels in {len(sources)} files, for {', '.join(f'sm_{a}' for a in ARCHITECTURES)} ({'all' if FULL else f'seed {SEED}'}), by {' and '.join(c.name for c in found) or 'no compiler'}: {len(said)} complaints")
    if said:
        return 1
    return 0 if found else 77


sys.exit(main())

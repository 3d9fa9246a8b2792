#!/usr/bin/env python3
"""How many blocks of each kernel of npu/cuda a multiprocessor holds, by NVIDIA's compiler and the cards' limits: bench/cuda/occupancy.tsv.

usage: occupancy.py            prints the table, compiled by NVRTC 12.9
       occupancy.py --write    writes the file, which test_cuda_compile holds the kernels to

Columns: generation of the card, kernel, threads of a block, registers of a thread, bytes that it spills, shared memory of a block (static and dynamic, bytes), blocks of a
multiprocessor, and what limits them. Limits: "CUDA C++ Programming Guide", Technical Specifications per Compute Capability.
"""
import concurrent.futures
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import cuda_compilers  # noqa: E402

TABLE = ROOT / "bench" / "cuda" / "occupancy.tsv"
HEAD = ["sm", "kernel", "threads", "registers", "spilled", "shared", "blocks", "limit"]
REGISTERS = 65536  # of a multiprocessor
# Threads, blocks and shared memory of a multiprocessor; a block's shared memory takes 1 KiB more than it asks for.
LIMITS = {80: (2048, 32, 164 << 10), 86: (1536, 16, 100 << 10), 89: (1536, 24, 100 << 10), 90: (2048, 32, 228 << 10), 100: (2048, 32, 228 << 10), 120: (1536, 24, 100 << 10)}
# Dynamic shared memory of the largest that a launch asks for; 256 experts.
DYNAMIC = {"td_gqa_decode_64": "TD_CUDA_DECODE_SHARED(64)", "td_gqa_decode_128": "TD_CUDA_DECODE_SHARED(128)", "td_gqa_prefill_64": "TD_CUDA_PREFILL_SHARED(64, 64)",
           "td_gqa_prefill_128": "TD_CUDA_PREFILL_SHARED(128, 128)", "td_mla_absorbed_16": "TD_CUDA_LATENT_SHARED(16)", "td_mla_absorbed_64": "TD_CUDA_LATENT_SHARED(64)",
           "td_mla_expand": "TD_CUDA_EXPAND_SHARED", "td_mla_prefill": "TD_CUDA_PREFILL_SHARED(192, 128)", "td_route": "TD_CUDA_ROUTE_SHARED(256)", "td_experts_place": "256 * 4"}


def launches():
    """{kernel: (threads of a block, bytes of dynamic shared memory)}, by the lists of npu/cuda."""
    dynamic = "".join(f'if (!strcmp(name, "{k}")) return {v};\n' for k, v in DYNAMIC.items())
    source = f"""#include <stdio.h>
#include <string.h>
#include "npu/cuda/cuda_kernels.h"
static int dynamic(const char *name) {{ {dynamic} return 0; }}
#define X(id, name, args, threads) printf("%s %d %d\\n", #name, threads, dynamic(#name));
int main(void) {{ TD_CUDA_KERNELS(X) return 0; }}
"""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "launches"
        subprocess.run(["cc", "-x", "c", "-", "-I", ROOT, "-I", ROOT / "include", "-o", program], input=source, text=True, check=True)
        said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: (int(threads), int(shared)) for name, threads, shared in map(str.split, said.splitlines())}


def facts(log):
    """{kernel: (registers, bytes spilled, static shared memory)} of what ptxas -v has written."""
    found = {}
    for name, text in re.findall(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", log, re.S):
        registers = re.search(r"Used (\d+) registers", text)
        found[name] = (int(registers[1]), sum(map(int, re.findall(r"(\d+) bytes spill stores", text))), sum(map(int, re.findall(r"(\d+) bytes smem", text))))
    return found


def blocks(sm, threads, registers, shared):
    """(blocks of a multiprocessor, what limits them). Registers are given to warps, 256 at a time, on four parts of the multiprocessor."""
    of_threads, of_blocks, of_shared = LIMITS[sm]
    warps = -(-threads // 32)
    by = {"threads": of_threads // (32 * warps), "blocks": of_blocks, "registers": REGISTERS // 4 // (-(-registers * 32 // 256) * 256) * 4 // warps,
          "shared": of_shared // (-(-(shared + 1024) // 128) * 128)}
    least = min(by, key=by.get)
    return by[least], least


def row(sm, name, launch, fact):
    threads, dynamic = launch
    registers, spilled, static = fact
    return [sm, name, threads, registers, spilled, static + dynamic, *blocks(sm, threads, registers, static + dynamic)]


def read_table():
    """{(generation, kernel): row}"""
    rows = [line.split("\t") for line in TABLE.read_text().splitlines()[1:]]
    return {(int(r[0]), r[1]): [int(r[0]), r[1], *map(int, r[2:7]), r[7]] for r in rows}


def worse_than_table(sm, log, of_launch, table):
    """Sentences about kernels that need more, or of which fewer blocks fit, than the table has."""
    for name, fact in facts(log).items():
        now, then = row(sm, name, of_launch[name], fact), table.get((sm, name))
        if not then:
            yield f"{name} for sm_{sm} is not in {TABLE.relative_to(ROOT)}: run bench/cuda/occupancy.py --write"
        elif any(now[i] > then[i] for i in (3, 4, 5)) or now[6] < then[6]:
            yield f"{name} for sm_{sm} has {now[3:7]} registers, bytes spilled, bytes shared and blocks; {TABLE.relative_to(ROOT)} has {then[3:7]}"


def main():
    compiler, why = cuda_compilers.nvrtc(cuda_compilers.NVRTC_VERSIONS[0])
    if not compiler:
        sys.exit(f"occupancy: {why}")
    of_launch = launches()
    jobs = [(sm, source) for sm in LIMITS for source in sorted(cuda_compilers.KERNELS.glob("*.cu"))]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        logs = list(pool.map(lambda job: compiler.compile(job[1], job[0])[0], jobs))
    rows = sorted(row(sm, name, of_launch[name], fact) for (sm, _), log in zip(jobs, logs) for name, fact in facts(log).items())
    cuda_compilers.give_table(TABLE, [HEAD, *rows])


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Print what llvm-mca says about the inner loops of the aarch64 kernels: the cycles for 64 products, beside the rate at which the core can issue the
products' instruction. For one row it also prints the weights that a core could take in. It models a core with everything
in its first cache; nothing was measured.

usage: mca_aarch64.py [--build build/aarch64] [--mca llvm-mca-19] [--cpu NAME...] [--beside FILE.o...]
       (apt-get install llvm-19; the preset aarch64 built)

--beside: inner loops of other object files, whose products are counted and whose rows nobody tells.
"""
import argparse
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CPUS = ("tsv110", "neoverse-n1", "neoverse-v1", "neoverse-n2")
GHZ = 2.6
# products of one such instruction, and one with nothing in its way
PRODUCTS = {"sdot": (16, "sdot v{0}.4s, v30.16b, v31.4b[0]"), "smmla": (32, "smmla v{0}.4s, v30.16b, v31.16b"),
            "smmla z": (64, "smmla z{0}.s, z30.b, z31.b")}
STEP_K, OUTPUTS = 16, 16  # of a pass of the loops
# kernel: its file and the set that it is compiled for -> bytes of a weight
KERNELS = {"int4c_dotprod": 0.5, "int8_dotprod": 1, "int4g_dotprod": 0.5, "fp4g_dotprod": 0.5,
           "int4c_i8mm": 0.5, "int8_i8mm": 1, "int4g_i8mm": 0.5, "fp4g_i8mm": 0.5,
           "int4c_sve256": 0.5, "int8_sve256": 1}
CORES_WITH = {"sdot": CPUS, "smmla": ("neoverse-v1", "neoverse-n2"), "smmla z": ("neoverse-v1",)}


def instructions(path):
    """(function, [(address, text)]) of an object file."""
    text = subprocess.run(["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True).stdout
    name, body = None, []
    for line in text.splitlines():
        start = re.match(r"[0-9a-f]+ <(\S+)>:", line)
        if start:
            if name:
                yield name, body
            name, body = start.group(1), []
        step = re.match(r"\s*([0-9a-f]+):\s+(.*)", line)
        if step:
            body.append((int(step.group(1), 16), step.group(2).split("//")[0].strip()))
    if name:
        yield name, body


def inner_loops(body):
    """The instructions of loops that hold no other loop."""
    spans = []
    for at, text in body:
        branch = re.match(r"(?:b\.\w+|cbnz|cbz|tbnz|tbz|b)\s+(?:\S+,\s*)*([0-9a-f]+) <", text)
        if branch and int(branch.group(1), 16) <= at:
            spans.append((int(branch.group(1), 16), at))
    for first, last in spans:
        if not any((f, l) != (first, last) and first <= f and l <= last for f, l in spans):
            yield [text for at, text in body if first <= at <= last]


def cycles(mca, cpu, lines):
    """Of one pass, on the average of many."""
    source = "\n".join(["loop:"] + [re.sub(r"[0-9a-f]+ <.*>$", "loop", text) for text in lines]) + "\n"
    passes = 300
    p = subprocess.run([mca, "-mtriple=aarch64", "-mcpu=" + cpu, "-mattr=+dotprod,+i8mm,+bf16,+sve", "-iterations=%d" % passes, "-instruction-info=0", "-resource-pressure=0"],
                       input=source, capture_output=True, text=True)
    if p.returncode:
        sys.exit("%s: %s" % (mca, p.stderr))
    return int(re.search(r"Total Cycles:\s+(\d+)", p.stdout).group(1)) / passes


def issue_cycles(mca, cpu, instruction):
    """Of one such instruction where nothing else is in the way."""
    return cycles(mca, cpu, [PRODUCTS[instruction][1].format(i) for i in range(24)]) / 24


def products_of(lines):
    """(instruction, products of a pass) of a loop; (None, 0): it multiplies nothing."""
    for instruction, (each, _) in reversed(PRODUCTS.items()):
        n = sum(bool(re.match(instruction.replace(" ", r"\s+"), text)) for text in lines)
        if n:
            return instruction, n * each
    return None, 0


def rows_of(instruction, products, lines):
    """The rows of a loop: `sdot` takes each with every output; `smmla` loads 16 k of each into two general registers, and may take half of the outputs."""
    if instruction == "sdot":
        return products // (STEP_K * OUTPUTS)
    return (sum(bool(re.match(r"ldp\s+x", text)) for text in lines) + 1) // 2 * 2


def loops_of(path):
    """Of an object file: (instruction, products, instructions' text)."""
    for _, body in instructions(path):
        for lines in inner_loops(body):
            yield *products_of(lines), lines


def looks_up(lines):
    return any(re.match(r"tbl\s", text) for text in lines)


def row(args, name, rows, instruction, products, lines, weight_bytes, once=None):
    """once: a loop that makes `codes` codes ready for all `rows` rows: (lines, codes)."""
    cells = []
    for cpu in args.cpu:
        if cpu not in CORES_WITH[instruction]:
            cells.append("")
            continue
        took, bound = cycles(args.mca, cpu, lines) * 64 / products, issue_cycles(args.mca, cpu, instruction) * 64 / PRODUCTS[instruction][0]
        if once:
            took += cycles(args.mca, cpu, once[0]) * 64 / once[1] / rows
        cells.append("%.2f (%.2f)" % (took, bound / took) + (", %.1f GB/s" % (64 * weight_bytes / took * GHZ) if rows == 1 else ""))
    print("| `%s` | %s | %s |" % (name, rows or "", " | ".join(cells)))


def kernel_rows(args, kernel, weight_bytes):
    file, instruction_set = kernel.split("_")
    path = os.path.join(args.build, "kernels/CMakeFiles/kernels_%s.dir/product/%s.c.o" % (instruction_set, file))
    loops, ready, once = {}, {}, None
    for instruction, products, lines in loops_of(path) if os.path.exists(path) else ():
        if not instruction:
            stored = sum(bool(re.match(r"st[rp]\s+q|stur\s+q", text)) * (2 if text.startswith("stp") else 1) for text in lines)
            once = (lines, 16 * stored) if looks_up(lines) else once
            continue
        rows = rows_of(instruction, products, lines)
        if not rows or products not in (rows * STEP_K * OUTPUTS, rows * STEP_K * OUTPUTS // 2):
            continue
        into = ready if kernel.startswith("fp4g") and not looks_up(lines) else loops
        into.setdefault(rows, (instruction, products, lines))
        if instruction != "sdot" and rows == 2:  # a row alone is its own partner
            into.setdefault(1, (instruction, products // 2, lines))
    for rows, loop in sorted(loops.items()):
        row(args, kernel, rows, *loop, weight_bytes)
    if ready and once:  # codes that are made ready once for several passes
        most = max(ready)
        for passes in (2, 4, 10):
            row(args, kernel, passes * most, *ready[most], weight_bytes, once)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build/aarch64"))
    parser.add_argument("--mca", default="llvm-mca-19")
    parser.add_argument("--cpu", nargs="*", default=CPUS)
    parser.add_argument("--beside", nargs="*", default=(), metavar="FILE.o")
    args = parser.parse_args()
    print("Cycles for 64 products; in brackets the fraction of what the core can issue of their instruction; for one row, weights at %.1f GHz." % GHZ)
    print("| kernel | rows | %s |\n|---|---|%s" % (" | ".join(args.cpu), "---|" * len(args.cpu)))
    for kernel, weight_bytes in KERNELS.items():
        kernel_rows(args, kernel, weight_bytes)
    for path in args.beside:
        for instruction, products, lines in loops_of(path):
            if instruction:
                row(args, os.path.basename(path), 0, instruction, products, lines, 0)


if __name__ == "__main__":
    main()

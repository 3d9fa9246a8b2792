#!/usr/bin/env python3
"""What llvm-mca says about the inner loops of the aarch64 kernels: cycles for 64 products, against the rate at which the core can issue the products'
instruction, and for one row the weights that a core could take in. A model of a core with everything in its first cache: nothing of it was measured.

usage: mca_aarch64.py [--build build/aarch64] [--mca llvm-mca-19] [--cpu NAME...]      (apt-get install llvm-19; the preset aarch64 built)
"""
import argparse
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CPUS = ("tsv110", "neoverse-n1", "neoverse-v1", "neoverse-n2")
GHZ = 2.6
# kernel's file -> the products' instruction, products of one, products of a row and step, bytes of weights of a step
KERNELS = {
    "int4c_dotprod": ("sdot", 16, 256, 128), "int8_dotprod": ("sdot", 16, 256, 256),
    "int4g_dotprod": ("sdot", 16, 256, 128), "fp4g_dotprod": ("sdot", 16, 256, 128),
    "int4c_i8mm": ("smmla", 32, 256, 128), "int8_i8mm": ("smmla", 32, 256, 256),
}


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
    p = subprocess.run([mca, "-mtriple=aarch64", "-mcpu=" + cpu, "-mattr=+dotprod,+i8mm,+bf16", "-iterations=%d" % passes, "-instruction-info=0", "-resource-pressure=0"],
                       input=source, capture_output=True, text=True)
    if p.returncode:
        sys.exit("%s: %s" % (mca, p.stderr))
    return int(re.search(r"Total Cycles:\s+(\d+)", p.stdout).group(1)) / passes


def issue_cycles(mca, cpu, instruction):
    """Of one such instruction where nothing else is in the way."""
    arrangement = {"sdot": "v{0}.4s, v30.16b, v31.4b[0]", "smmla": "v{0}.4s, v30.16b, v31.16b"}[instruction]
    return cycles(mca, cpu, ["%s %s" % (instruction, arrangement.format(i)) for i in range(24)]) / 24


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build/aarch64"))
    parser.add_argument("--mca", default="llvm-mca-19")
    parser.add_argument("--cpu", nargs="*", default=CPUS)
    args = parser.parse_args()
    print("| kernel | rows | core | instructions a step | cycles for 64 products | bound | fraction | GB/s of weights at %.1f GHz |" % GHZ)
    print("|---|---|---|---|---|---|---|---|")
    for kernel, (instruction, products, row_products, row_bytes) in KERNELS.items():
        path = os.path.join(args.build, "CMakeFiles/libtandem.dir/kernels/product", kernel + ".c.o")
        if not os.path.exists(path):
            continue
        loops = {}
        for _, body in instructions(path):
            for lines in inner_loops(body):
                n = sum(text.split()[0] == instruction for text in lines)
                if n and n * products % row_products == 0:
                    loops.setdefault(n * products // row_products, lines)
        for rows, lines in sorted(loops.items()):
            for cpu in args.cpu:
                took = cycles(args.mca, cpu, lines)
                for_64, bound = took * 64 / (rows * row_products), issue_cycles(args.mca, cpu, instruction) * 64 / products
                print("| %s | %d | %s | %d | %.2f | %.2f | %.2f | %.1f |" % (kernel, rows, cpu, len(lines), for_64, bound, bound / for_64, row_bytes / took * GHZ))


if __name__ == "__main__":
    main()

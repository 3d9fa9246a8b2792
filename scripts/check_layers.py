#!/usr/bin/env python3
"""Check the layout: dependency directions between folders, where architectures are told apart, unique file names, headers that compile alone.

usage: check_layers.py [--cc CC]     exits 1 and names each offence
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# folder -> folders whose headers it may include, besides its own and include/
MAY_INCLUDE = {
    "core": [],
    "kernels": ["core"],
    "quant": ["core", "kernels"],
    "npu": ["core", "kernels", "quant"],
    "cpu_experts": ["core", "kernels", "quant"],
    "bridge": ["core", "kernels", "quant", "npu", "cpu_experts"],
    "model": ["core", "kernels", "quant", "npu", "cpu_experts", "bridge"],
    "text": ["core"],
    "engine": ["core", "kernels", "quant", "npu", "cpu_experts", "bridge", "model", "text"],
    "eval": ["core", "kernels", "quant", "npu", "cpu_experts", "model", "engine"],
    "quantize": ["core", "kernels", "quant", "npu", "cpu_experts", "model", "text", "engine", "eval"],
    "server": ["core"],
    "bench": ["core", "kernels", "quant", "npu", "cpu_experts", "bridge", "model", "text", "engine"],
    "cli": ["core", "kernels", "server", "bench"],
}
# Only here may code ask which architecture it is compiled for, or use its intrinsics: kernels, what the processor can do, and waiting.
ARCHITECTURE = re.compile(r"\b(__x86_64__|__i386__|__aarch64__|__arm__|__AVX\w*|__ARM_\w+)\b|<(\w*intrin|cpuid|arm_neon|arm_sve|asm/hwcap)\.h>")
MAY_ASK_ARCHITECTURE = ("kernels/", "core/cpu", "core/signal_word.h")
# The same name in several folders is their purpose.
SHARED_NAMES = {"CMakeLists.txt", "README.md"}


def sources():
    for top in MAY_INCLUDE:
        for folder, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                yield top, os.path.join(folder, name)


def check_includes(offences):
    for top, path in sources():
        if not path.endswith((".c", ".h", ".inc")):
            continue
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            m = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if not m:
                continue
            where = "%s:%d" % (os.path.relpath(path, ROOT), number)
            target = m.group(1)
            if target == "tandem.h":
                continue
            folder = target.split("/")[0]
            if folder not in MAY_INCLUDE or not os.path.exists(os.path.join(ROOT, target)):
                offences.append("%s: include \"%s\" by its path from the repository root" % (where, target))
            elif folder != top and folder not in MAY_INCLUDE[top]:
                offences.append("%s: %s/ must not include %s/" % (where, top, folder))


def check_architecture(offences):
    for _, path in sources():
        name = os.path.relpath(path, ROOT)
        if not path.endswith((".c", ".h", ".inc")) or name.startswith(MAY_ASK_ARCHITECTURE):
            continue
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            m = ARCHITECTURE.search(line)
            if m:
                offences.append("%s:%d: %s belongs into kernels/ (docs/kernels.md)" % (name, number, m.group(0)))


def check_names(offences):
    seen = {}
    for _, path in sources():
        name = os.path.basename(path)
        if name in SHARED_NAMES:
            continue
        if name in seen:
            offences.append("%s: the name is taken by %s" % (os.path.relpath(path, ROOT), seen[name]))
        seen[name] = os.path.relpath(path, ROOT)


CROSS = "aarch64-linux-gnu-gcc"  # with the libraries that scripts/deps.sh aarch64 unpacks
SYSROOT = os.path.join(ROOT, "build", "aarch64-sysroot")
SETS = {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"], "neon": []}


def compiler_of(cc, machine, name):
    """Who can compile a header of an instruction set: cc, the cross compiler, or None."""
    word = next((s for s in SETS if s in name), None)
    if word is None or (word == "neon") == machine.startswith("aarch64"):
        return [cc, *SETS.get(word, [])]
    if word == "neon" and shutil.which(CROSS) and os.path.isdir(SYSROOT):
        return [CROSS, "--sysroot=" + SYSROOT]
    return None


def check_headers_alone(cc, offences):
    machine = subprocess.run([cc, "-dumpmachine"], check=True, capture_output=True, text=True).stdout
    headers = [p for _, p in sources() if p.endswith(".h")] + [os.path.join(ROOT, "include", "tandem.h")]
    for path in headers:
        name = os.path.basename(path)
        compiler = compiler_of(cc, machine, name)
        if not compiler:
            continue
        done = subprocess.run([*compiler, "-std=gnu17", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function", "-I", ROOT, "-I",
                               os.path.join(ROOT, "include"), "-x", "c", path], capture_output=True, text=True)
        if done.returncode:
            offences.append("%s does not compile alone:\n%s" % (os.path.relpath(path, ROOT), done.stderr.strip()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cc", default="cc")
    args = parser.parse_args()
    offences = []
    check_includes(offences)
    check_architecture(offences)
    check_names(offences)
    check_headers_alone(args.cc, offences)
    print("\n".join(offences) or "layout: ok")
    sys.exit(1 if offences else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Check the layout of the source: the directions of dependencies between folders, in sources and in objects; files that depend on each other; unique
file names; headers that compile alone. Architectures may be told apart, and vendors named, only in their folders.

usage: check_layers.py [--cc CC] [--archives FILE.a...]     exits 1 and names each offence

With the libraries of a build, an object may only need symbols of the folders that its own may include, or functions that a public header declares.
The server, which links libtandem, can then need nothing of quantize/ and eval/.
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
    "residency": ["core", "kernels", "quant", "npu", "cpu_experts"],
    "model": ["core", "kernels", "quant", "npu", "cpu_experts", "bridge", "residency"],
    "text": ["core"],
    "image": ["core"],
    "engine": ["core", "kernels", "quant", "npu", "cpu_experts", "bridge", "residency", "model", "text", "image"],
    "eval": ["core", "kernels", "quant", "npu", "cpu_experts", "residency", "model", "engine"],
    "quantize": ["core", "kernels", "quant", "npu", "cpu_experts", "model", "text", "engine", "eval"],
    "scale": ["core"],
    "server": ["core"],
    "bench": ["core", "kernels", "quant", "npu", "cpu_experts", "bridge", "residency", "model", "text", "engine"],
    "plan": ["core", "kernels", "quant", "npu", "cpu_experts", "bridge", "residency", "model", "engine"],
    "doctor": ["core", "npu"],
    "cli": ["core", "kernels", "npu", "image", "scale", "server", "bench", "plan", "doctor"],
}
# folder within one of them -> folders of the same, or headers, that it may include, besides its own
WITHIN = {
    "model/arch": ["model/layer_verbs.h"],
    "model/checkpoint": ["model/arch"],
    "npu/card": ["npu"],
    "npu/ascend": ["npu", "npu/card", "npu/host"],
    "npu/cuda": ["npu", "npu/card", "npu/cuda/kernels", "npu/host"],
    "server/api": [],
    "server/request": ["server/api"],
    "server/connection": ["server/api", "server/request"],
    "server/generation": ["server/api", "server/request"],
    "server/answer": ["server/api", "server/request", "server/connection", "server/generation"],
    "server/openai": ["server", "server/api", "server/request", "server/generation", "server/answer"],
    "server/anthropic": ["server", "server/request", "server/answer"],
    "server/sglang": ["server/request", "server/answer"],
    "server/status": ["server", "server/answer"],
    "server/console": ["server", "server/answer"],
}
# Only here may code ask which architecture it is compiled for, or use its intrinsics: kernels, what the processor can do, and waiting.
ARCHITECTURE = re.compile(r"\b(__x86_64__|__i386__|__aarch64__|__arm__|__AVX\w*|__ARM_\w+)\b|<(\w*intrin|cpuid|arm_neon|arm_sve|asm/hwcap)\.h>")
MAY_ASK_ARCHITECTURE = ("kernels/", "core/machine/cpu", "core/threads/signal_word.h")
# A vendor's names stand in its backend's folder only (npu/NAME/); all else goes over the list of backends (td_backend in npu/npu.h).
VENDORS = {
    "ascend": r"ascend(?!ing)|\bcann\b|\baclnn|\bacl_|\bhccl|atlas|davinci|npu-smi|\"npu\"",
    "cuda": r"cuda|nvidia|\bnvcc|nvrtc|nvml|cublas|\bnccl\b|hopper|blackwell",
}
# (file, what it may name): why.
MAY_NAME_A_VENDOR = {
    ("npu/backends.c", "td_ascend_backend"): "the list of backends",
    ("npu/backends.c", "td_cuda_backend"): "the list of backends",
    ("model/arch/quant_config.c", "ascend"): "a checkpoint's quant_method, as its config.json spells it",
    ("model/arch/quant_config.h", "ascend"): "the same",
    ("text/grammar/grammar_pda.h", "ascend"): "the verb",
}
# public header -> folders that may include it, and use what it declares; None: all may include it, for td_status and td_error
PUBLIC_HEADERS = {
    "tandem.h": None,
    "tandem_tools.h": ["eval", "quantize", "cli"],
}
# Who may call what tandem.h declares, wherever it is.
CALLS_THE_ENGINE = ["engine", "eval", "quantize", "server", "bench", "plan", "cli"]
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
            if target in PUBLIC_HEADERS:
                allowed = PUBLIC_HEADERS[target]
                if allowed is not None and top not in allowed:
                    offences.append("%s: %s/ must not include %s" % (where, top, target))
                continue
            folder = target.split("/")[0]
            if folder not in MAY_INCLUDE or not os.path.exists(os.path.join(ROOT, target)):
                offences.append("%s: include \"%s\" by its path from the repository root" % (where, target))
            elif folder != top and folder not in MAY_INCLUDE[top]:
                offences.append("%s: %s/ must not include %s/" % (where, top, folder))
            here, there = os.path.dirname(os.path.relpath(path, ROOT)), os.path.dirname(target)
            if here in WITHIN and folder == top and there != here and there not in WITHIN[here] and target not in WITHIN[here]:
                offences.append("%s: %s/ must not include %s/" % (where, here, there))


def way_back(unit, needs):
    """The files by which what a file needs leads back to it; None: it does not. needs: {file: files}"""
    seen, way = set(), [(t, [t]) for t in sorted(needs.get(unit, ()))]
    while way:
        at, path = way.pop()
        if at == unit:
            return path
        if at not in seen:
            seen.add(at)
            way += [(t, path + [t]) for t in sorted(needs.get(at, ()))]
    return None


def check_circles(offences):
    """Of a .c and its .h together: what they include must not include them, straight or by way of others."""
    includes = {}
    for _, path in sources():
        unit = os.path.relpath(path, ROOT)[:-2]
        if not path.endswith((".c", ".h")):
            continue
        targets = re.findall(r'^\s*#\s*include\s+"([^"]+)\.h"', open(path, encoding="utf-8").read(), re.M)
        includes.setdefault(unit, set()).update(t for t in targets if t != unit)
    for unit in includes:
        path = way_back(unit, includes)
        if path:
            offences.append("a circle: %s -> %s" % (unit, " -> ".join(path)))


def check_architecture(offences):
    for _, path in sources():
        name = os.path.relpath(path, ROOT)
        if not path.endswith((".c", ".h", ".inc")) or name.startswith(MAY_ASK_ARCHITECTURE):
            continue
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            m = ARCHITECTURE.search(line)
            if m:
                offences.append("%s:%d: %s belongs into kernels/ (docs/kernels.md)" % (name, number, m.group(0)))


def check_vendors(offences):
    """Comments count: who reads a folder above npu/ need not know a vendor."""
    unused = set(MAY_NAME_A_VENDOR)
    names = re.compile(r"\w*(?:%s)\w*" % "|".join(VENDORS.values()), re.I)
    for _, path in sources():
        name = os.path.relpath(path, ROOT)
        if not path.endswith((".c", ".h", ".inc")) or name.startswith(tuple("npu/%s/" % vendor for vendor in VENDORS)):
            continue
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            for m in names.finditer(line):
                said = (name, m.group(0))
                unused.discard(said)
                if said not in MAY_NAME_A_VENDOR:
                    offences.append("%s:%d: %s is a vendor's: it belongs into the folder of its backend (docs/devices.md)" % (name, number, m.group(0)))
    offences.extend("%s does not name %s: take it out of MAY_NAME_A_VENDOR" % said for said in sorted(unused))


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
SETS = {"avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"], "neon": [], "i8mm": ["-march=armv8.2-a+i8mm"],
        "sve256": ["-march=armv8.2-a+i8mm+sve", "-msve-vector-bits=256"]}
ARM_SETS = ("neon", "i8mm", "sve256")


def compiler_of(cc, machine, name):
    """Who can compile a header of an instruction set: cc, the cross compiler, or None."""
    word = next((s for s in SETS if s in name), None)
    if word is None or (word in ARM_SETS) == machine.startswith("aarch64"):
        return [cc, *SETS.get(word, [])]
    if word in ARM_SETS and shutil.which(CROSS) and os.path.isdir(SYSROOT):
        return [CROSS, *SETS[word], "--sysroot=" + SYSROOT]
    return None


def check_headers_alone(cc, offences):
    machine = subprocess.run([cc, "-dumpmachine"], check=True, capture_output=True, text=True).stdout
    headers = [p for _, p in sources() if p.endswith(".h")] + [os.path.join(ROOT, "include", name) for name in PUBLIC_HEADERS]
    for path in headers:
        name = os.path.basename(path)
        compiler = compiler_of(cc, machine, name)
        if not compiler:
            continue
        done = subprocess.run([*compiler, "-std=gnu17", "-D_GNU_SOURCE", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function", "-I", ROOT, "-I",
                               os.path.join(ROOT, "include"), "-x", "c", path], capture_output=True, text=True)
        if done.returncode:
            offences.append("%s does not compile alone:\n%s" % (os.path.relpath(path, ROOT), done.stderr.strip()))


def declared(header):
    with open(os.path.join(ROOT, "include", header), encoding="utf-8") as f:
        return set(re.findall(r"\b(td_\w+)\(", f.read()))


def symbols(archives):
    """(folder, object's source, symbol, whether it is defined there) of the td_ and TD_ symbols, functions and tables, in the archives' objects."""
    folder_of = {os.path.basename(path): top for top, path in sources()}
    for archive in archives:
        text = subprocess.run(["nm", "-A", "-g", archive], capture_output=True, text=True, check=True).stdout
        for line in text.splitlines():
            m = re.fullmatch(r"[^:]+:([^:]+)\.o:\s*[0-9a-f]*\s+(\w) ((?:td|TD)_\w+)", line)
            if m:
                yield folder_of[m.group(1)], m.group(1), m.group(3), m.group(2) not in "Uwv"


def check_object_circles(found, offences):
    """Of objects: what a file calls must not call it, straight or by way of others. A header that several files share hides this from check_circles."""
    home, needs = {}, {}
    for _, source, symbol, is_defined in found:
        if is_defined:
            home[symbol] = source
    for _, source, symbol, is_defined in found:
        to = home.get(symbol)
        if not is_defined and to and to != source:
            needs.setdefault(source, {})[to] = symbol
    for source in sorted(needs):
        path = way_back(source, needs)
        if path:
            steps = zip([source, *path], path)
            offences.append("a circle of calls: %s -> %s" % (source, " -> ".join("%s (%s)" % (to, needs[at][to]) for at, to in steps)))


def check_objects(archives, offences):
    found = list(symbols(archives))
    check_object_circles(found, offences)
    home = {symbol: folder for folder, _, symbol, is_defined in found if is_defined}
    engine, tools = declared("tandem.h"), declared("tandem_tools.h")
    for folder, source, symbol, is_defined in found:
        to = home.get(symbol)
        if is_defined or to is None or to == folder or to in MAY_INCLUDE[folder]:
            continue
        if symbol in engine and folder in CALLS_THE_ENGINE or symbol in tools and folder in PUBLIC_HEADERS["tandem_tools.h"]:
            continue
        offences.append("%s/%s: %s/ must not need %s of %s/" % (folder, source, folder, symbol, to))
    missing = {"engine", "server", "eval", "quantize"} - {folder for folder, _, _, is_defined in found if is_defined}
    if missing:
        offences.append("the archives have no objects of %s" % ", ".join(sorted(missing)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cc", default="cc")
    parser.add_argument("--archives", nargs="+", default=[])
    args = parser.parse_args()
    offences = []
    check_includes(offences)
    check_circles(offences)
    check_architecture(offences)
    check_vendors(offences)
    check_names(offences)
    check_headers_alone(args.cc, offences)
    if args.archives:
        check_objects(args.archives, offences)
    print("\n".join(offences) or "layout: ok")
    sys.exit(1 if offences else 0)


if __name__ == "__main__":
    main()

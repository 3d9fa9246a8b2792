#!/usr/bin/env python3
"""Every kernel of npu/cuda compiles for every generation of cards, with NVIDIA's own compilers, which need no card: NVRTC from PyPI, and nvcc where there is one.

usage: test_cuda_compile.py [SOURCE.cu...]     exit 77 where neither compiler can be had
Two generations, drawn by a seed (TD_TEST_SEED, else the time; it is printed), NVRTC 12 for both, NVRTC 13 and nvcc for the first of them; with TD_TEST_FULL=1 all six by both.

A warning is an error, too. So are registers that spill, arrays that live in memory, and a kernel that the emulation's list (cuda_kernels.cpp) does
not have, or has with another number of threads.
"""
import concurrent.futures
import ctypes
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = ROOT / "npu" / "cuda" / "kernels"
FULL = os.environ.get("TD_TEST_FULL") == "1"
SEED = int(os.environ.get("TD_TEST_SEED") or time.time_ns())
ALL_ARCHITECTURES = [80, 86, 89, 90, 100, 120]
ARCHITECTURES = ALL_ARCHITECTURES if FULL else random.Random(SEED).sample(ALL_ARCHITECTURES, 2)
NVRTC_VERSIONS = ["12.9.86", "13.0.88"]  # 13 takes no lambda that is a template, where 12 and nvcc do
SPILL_BYTES_MAX = 128  # of a thread: some addresses and rows' states, outside of the loops over keys
FLAGS = ["--std=c++17", "-fmad=false"]


class Nvrtc:
    """The few calls of NVRTC (NVRTC 12.9 documentation, "Basic Usage")."""

    def __init__(self, path):
        # The library loads its builtins by name: they lie beside it.
        for name in sorted(pathlib.Path(path).parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(name), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(path)
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.name = f"NVRTC {major.value}.{minor.value}"

    def text(self, program, what):
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        out = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, out)
        return out.raw

    def compile(self, source, architecture):
        """The log, and the names of the kernels of the cubin."""
        headers = sorted(KERNELS.glob("*.*h"))
        names = [str(h.relative_to(ROOT)).encode() for h in headers]
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), len(headers), (ctypes.c_char_p * len(headers))(*[h.read_bytes() for h in headers]),
                                        (ctypes.c_char_p * len(headers))(*names))
        options = [f"--gpu-architecture=sm_{architecture}", "--ptxas-options=-v", *FLAGS]
        status = self.library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*[o.encode() for o in options]))
        log = self.text(program, "ProgramLog").rstrip(b"\0").decode()
        if status:
            return log + f"\nnvrtcCompileProgram: {status}", None
        cubin = self.text(program, "CUBIN")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return log, cubin


class Nvcc:
    def __init__(self, path):
        self.path = path
        said = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout
        self.name = "nvcc " + re.search(r"release ([\d.]+)", said).group(1)

    def compile(self, source, architecture):
        to = ROOT / "build" / f"cuda_check_{source.stem}_{architecture}.cubin"
        to.parent.mkdir(exist_ok=True)
        run = subprocess.run([self.path, *FLAGS, "-Xptxas", "-v", "-I", str(ROOT), f"-arch=sm_{architecture}", "-cubin", "-o", str(to), str(source)], capture_output=True, text=True)
        cubin = to.read_bytes() if run.returncode == 0 else None
        to.unlink(missing_ok=True)
        return run.stdout + run.stderr, cubin


def compilers():
    found = []
    for version in NVRTC_VERSIONS:
        fetched = subprocess.run([ROOT / "scripts" / "cuda_nvrtc.sh", version], capture_output=True, text=True)
        if fetched.returncode == 0:
            found.append(Nvrtc(fetched.stdout.strip()))
        else:
            print(f"without NVRTC {version}: " + (fetched.stderr.strip().splitlines() or ["scripts/cuda_nvrtc.sh failed"])[-1])
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc:
        found.append(Nvcc(nvcc))
    else:
        print("without nvcc: there is none")
    return found


def defined(text):
    """Kernels of a source, also those that its macros define: name(…) and name_##PARAMETER(…) of a macro's first parameter."""
    names = set(re.findall(r"^TD_KERNEL(?:_BLOCKS)?\([^)\n]*\)\s*(td_\w+)\(", text, re.M))
    for macro, parameter, name in re.findall(r"#define (\w+)\((\w+)[^\n]*\\\n\s*TD_KERNEL(?:_BLOCKS)?\([^)\n]*\)\s*\\\n\s*([\w#]+)\(", text):
        for given in re.findall(r"^%s\((\w+)" % macro, text, re.M):
            names.add(given if name == parameter else name.replace("##" + parameter, given))
    return names


def check(compiler, source, architecture):
    log, cubin = compiler.compile(source, architecture)
    if cubin is None:
        return f"{source.name} for sm_{architecture}, {compiler.name}:\n{log}"
    wrong = [line for line in log.splitlines() if re.search(r"\bwarning\b|\berror\b", line) or any(int(n) > SPILL_BYTES_MAX for n in re.findall(r"(\d+) bytes (?:stack|spill)", line))]
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

"""NVIDIA's compilers of CUDA C++, which need no card: NVRTC from PyPI, and nvcc where there is one. Each compiles a file of npu/cuda/kernels with the flags that Tandem has."""
import ctypes
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
KERNELS = ROOT / "npu" / "cuda" / "kernels"
NVRTC_VERSIONS = ["12.9.86", "13.0.88"]  # 13 takes no lambda that is a template, where 12 and nvcc do
FLAGS = ["--std=c++17", "-fmad=false"]
ARCHITECTURES = [80, 86, 89, 90, 100, 120]


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


def nvrtc(version):
    """(the compiler, None) or (None, why there is none)"""
    fetched = subprocess.run([ROOT / "scripts" / "cuda_nvrtc.sh", version], capture_output=True, text=True)
    if fetched.returncode == 0:
        return Nvrtc(fetched.stdout.strip()), None
    return None, (fetched.stderr.strip().splitlines() or ["scripts/cuda_nvrtc.sh failed"])[-1]


def compilers():
    """Those that can be had, NVRTC of the first version first; what cannot is said."""
    found = []
    for version in NVRTC_VERSIONS:
        compiler, why = nvrtc(version)
        if compiler:
            found.append(compiler)
        else:
            print(f"without NVRTC {version}: {why}")
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc:
        found.append(Nvcc(nvcc))
    else:
        print("without nvcc: there is none")
    return found


def give_table(path, rows):
    """Print rows with tabs between their fields; with --write among the program's arguments, write them to a file."""
    text = "".join("\t".join(map(str, row)) + "\n" for row in rows)
    if "--write" in sys.argv[1:]:
        path.write_text(text)
    else:
        print(text, end="")

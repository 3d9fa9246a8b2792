#!/usr/bin/env python3
"""npu/cuda's declarations of the CUDA driver, of NVRTC and of cuBLASLt against the vendor's own cuda.h, of the oldest and of the newest CUDA that it serves, nvrtc.h and cublasLt.h.

A program that includes both is generated and compiled: a function type that is not compatible does not compile, constants and structures that
differ are named when it runs. Nothing of ours may be missing in either header. Without the wheels (offline) the test is skipped (77).
cublasLt.h is in no small wheel (that of cuBLAS has 380 MB): it is compared where a toolkit has it (CUDA_HOME, CUDA_PATH, /usr/local/cuda*).
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CC = os.environ.get("CC", "cc")
EMULATOR = os.environ.get("TD_EMULATOR", "").split()  # of a cross build
VERSIONS = ("12.0.146", "13.5.37")
INCLUDE = ["-I", str(ROOT), "-I", str(ROOT / "include")]

LISTS = r"""
#include "npu/cuda/cuda_api.h"
FUNCTIONS
#define FUNCTION(function, symbol, ...) #function #symbol
TD_CUDA_DRIVER(FUNCTION)
CONSTANTS
#define CONSTANT(name, value) #name
TD_CUDA_CONSTANTS(CONSTANT)
TYPES
#define TYPE(ours, theirs) #ours #theirs
TD_CUDA_TYPES(TYPE)
"""

PROGRAM = r"""
#include <stdio.h>
#include "npu/cuda/cuda_types.h"
/* The structures are compared by their layout; in function types theirs stand for them. */
typedef td_cu_update_result our_update_result;
typedef td_cu_launch_attribute our_launch_attribute;
typedef td_cu_launch_config our_launch_config;
struct CUgraphExecUpdateResultInfo_st;
struct CUlaunchConfig_st;
#define td_cu_update_result struct CUgraphExecUpdateResultInfo_st
#define td_cu_launch_config struct CUlaunchConfig_st
#include "npu/cuda/cuda_api.h"
/* Before the header, whose macros rename what has a version. */
%(typedefs)s
#include "cuda.h"
%(asserts)s
int main(void) {
    int wrong = 0;
    static const struct { const char *name; long long ours, theirs; } same[] = {
        {"sizeof(CUgraphExecUpdateResultInfo)", sizeof(our_update_result), sizeof(CUgraphExecUpdateResultInfo)},
        {"result", offsetof(our_update_result, result), offsetof(CUgraphExecUpdateResultInfo, result)},
        {"errorNode", offsetof(our_update_result, node), offsetof(CUgraphExecUpdateResultInfo, errorNode)},
        {"sizeof(CUlaunchAttribute)", sizeof(our_launch_attribute), sizeof(CUlaunchAttribute)},
        {"value", offsetof(our_launch_attribute, value), offsetof(CUlaunchAttribute, value)},
        {"programmaticStreamSerializationAllowed", offsetof(our_launch_attribute, value.programmaticStreamSerializationAllowed),
         offsetof(CUlaunchAttribute, value.programmaticStreamSerializationAllowed)},
        {"sizeof(CUlaunchConfig)", sizeof(our_launch_config), sizeof(CUlaunchConfig)},
        {"gridDimX", offsetof(our_launch_config, grid_x), offsetof(CUlaunchConfig, gridDimX)},
        {"gridDimZ", offsetof(our_launch_config, grid_z), offsetof(CUlaunchConfig, gridDimZ)},
        {"blockDimX", offsetof(our_launch_config, block_x), offsetof(CUlaunchConfig, blockDimX)},
        {"blockDimZ", offsetof(our_launch_config, block_z), offsetof(CUlaunchConfig, blockDimZ)},
        {"sharedMemBytes", offsetof(our_launch_config, shared_bytes), offsetof(CUlaunchConfig, sharedMemBytes)},
        {"hStream", offsetof(our_launch_config, stream), offsetof(CUlaunchConfig, hStream)},
        {"attrs", offsetof(our_launch_config, attributes), offsetof(CUlaunchConfig, attrs)},
        {"numAttrs", offsetof(our_launch_config, n_attributes), offsetof(CUlaunchConfig, numAttrs)},
        {"errorFromNode", offsetof(our_update_result, from), offsetof(CUgraphExecUpdateResultInfo, errorFromNode)},
%(rows)s
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (same[i].ours != same[i].theirs) {
            printf("%%s: %%lld here, %%lld in the header\n", same[i].name, same[i].ours, same[i].theirs);
            wrong = 1;
        }
    return wrong;
}
"""


NVRTC = r"""
#include <stddef.h>
#include "nvrtc.h"
#include "npu/cuda/cuda_nvrtc.h"
#define SAME(ours, theirs) _Static_assert(__builtin_types_compatible_p(ours, theirs), #theirs);
SAME(td_nvrtc_status, nvrtcResult)
SAME(td_nvrtc_program, nvrtcProgram)
#define FUNCTION(type, function, parameters) SAME(__typeof__(&function), __typeof__(((td_nvrtc *)0)->function))
TD_NVRTC(FUNCTION)
_Static_assert(TD_NVRTC_SUCCESS == (int)NVRTC_SUCCESS && TD_NVRTC_ERROR_COMPILATION == (int)NVRTC_ERROR_COMPILATION, "constants");
"""


def check_nvrtc(library):
    include = pathlib.Path(library).parents[1] / "include"
    command = [CC, "-std=gnu17", "-fsyntax-only", "-Werror", *INCLUDE, "-I", str(include), "-x", "c", "-"]
    said = subprocess.run(command, input=NVRTC, capture_output=True, text=True)
    if not said.returncode:
        print("NVRTC: %d functions are the same" % len(re.findall(r"^    X\(", (ROOT / "npu/cuda/cuda_nvrtc.h").read_text(), re.M)))
    return said.stderr if said.returncode else ""


# The vendor's descriptors are pointers to structures without a tag, for which ours have none: theirs stand for them in the functions' types.
CUBLASLT = r"""
#include <stdio.h>
#include <cublasLt.h>
#define SAME(ours, theirs) _Static_assert(__builtin_types_compatible_p(ours, theirs), #theirs);
SAME(td_cublas_status, cublasStatus_t)
SAME(td_cublas_type, cudaDataType)
SAME(td_cublas_compute, cublasComputeType_t)
SAME(td_cublaslt_product_fact, cublasLtMatmulDescAttributes_t)
SAME(td_cublaslt_wish_fact, cublasLtMatmulPreferenceAttributes_t)
SAME(td_cublaslt, cublasLtHandle_t)
#define FUNCTION(type, function, parameters) SAME(__typeof__(&function), __typeof__(((td_cublaslt_api *)0)->function))
TD_CUBLASLT(FUNCTION)
#define CONSTANT(name, value) _Static_assert((int)name == (value), #name);
TD_CUBLASLT_CONSTANTS(CONSTANT)
#define PLACE(ours, theirs) _Static_assert(offsetof(our_answer, ours) == offsetof(cublasLtMatmulHeuristicResult_t, theirs), #theirs);
PLACE(algorithm, algo) PLACE(workspace_bytes, workspaceSize) PLACE(state, state) PLACE(waves, wavesCount)
_Static_assert(sizeof(our_answer) == sizeof(cublasLtMatmulHeuristicResult_t) && sizeof(our_algorithm) == sizeof(cublasLtMatmulAlgo_t), "sizes");
"""
CUBLASLT_THEIRS = {"product": "cublasLtMatmulDesc_t", "matrix": "cublasLtMatrixLayout_t", "wish": "cublasLtMatmulPreference_t",
                   "algorithm": "cublasLtMatmulAlgo_t", "answer": "cublasLtMatmulHeuristicResult_t"}


def check_cublaslt(include):
    header = (ROOT / "npu/cuda/cuda_blas.h").read_text()
    for ours, theirs in CUBLASLT_THEIRS.items():
        functions = header.index("#define TD_CUBLASLT(X)")
        header = header[:functions] + re.sub(r"\btd_cublaslt_%s\b" % ours, theirs, header[functions:])
    structures = "typedef td_cublaslt_algorithm our_algorithm;\ntypedef td_cublaslt_answer our_answer;\n"
    program = "#include <cublasLt.h>\n" + header.replace("td_cu_stream stream", "cudaStream_t stream") + structures + CUBLASLT
    command = [CC, "-std=gnu17", "-fsyntax-only", "-Werror", "-Wno-unused", *INCLUDE, "-isystem", str(include), "-x", "c", "-"]
    said = subprocess.run(command, input=program, capture_output=True, text=True)
    if not said.returncode:
        print("cuBLASLt of %s: %d functions are the same" % (include, len(re.findall(r"^    X\(\w[^,]*, cublasLt", header, re.M))))
    return said.stderr if said.returncode else ""


def toolkits():
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *sorted(map(str, pathlib.Path("/usr/local").glob("cuda*")))]
    found = [pathlib.Path(h) / "include" for h in homes if h]
    return sorted({f.resolve() for f in found if (f / "cublasLt.h").exists() and (f / "cuda_runtime_api.h").exists()})


def our_lists():
    text = subprocess.run([CC, "-std=gnu17", "-E", "-P", *INCLUDE, "-"], input=LISTS, capture_output=True, text=True, check=True).stdout
    functions, rest = text.split("\nFUNCTIONS", 1)[1].split("CONSTANTS", 1)
    constants, types = rest.split("TYPES", 1)
    pairs = r'"(\w+)" "(\w+)"'
    return re.findall(pairs, functions), re.findall(r'"(\w+)"', constants), re.findall(pairs, types)


def compile_and_run(program, folder):
    with tempfile.TemporaryDirectory() as where:
        source = pathlib.Path(where) / "types.c"
        source.write_text(program)
        command = [CC, "-std=gnu17", "-w", *INCLUDE, "-I", str(folder), str(source), "-o", str(source.with_suffix(""))]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            return built.stderr
        return subprocess.run([*EMULATOR, str(source.with_suffix(""))], capture_output=True, text=True).stdout


def symbols_of(functions, folder):
    """What the header's macros make of each name of the manual: the symbol that the library has."""
    program = '#include "cuda.h"\n' + "\n".join('"@%s" %s' % (f, f) for f, _ in functions)
    text = subprocess.run([CC, "-std=gnu17", "-E", "-P", "-I", str(folder), "-"], input=program, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r'"@(\w+)" (\w+)', text))


def check(version, folder):
    functions, constants, types = our_lists()
    assert len(functions) > 40 and len(constants) > 30 and len(types) > 15, "the lists were not read"
    same = '_Static_assert(__builtin_types_compatible_p(%s, %s), "%s");'
    typedefs = ["typedef __typeof__(((td_cuda *)0)->%s) our_%s;" % (f, f) for f, _ in functions]
    asserts = [same % ("__typeof__(&%s)" % f, "our_%s" % f, f) for f, _ in functions]
    asserts += [same % (ours, theirs, theirs) for ours, theirs in types]
    rows = ['        {"%s", (long long)TD_%s, (long long)%s},' % (n, n, n) for n in constants]
    said = compile_and_run(PROGRAM % {"typedefs": "\n".join(typedefs), "asserts": "\n".join(asserts), "rows": "\n".join(rows)}, folder)
    theirs = symbols_of(functions, folder)
    said += "".join("%s is looked up as %s, in the header it is %s\n" % (f, ours, theirs[f]) for f, ours in functions if ours != theirs[f])
    if not said:
        print("CUDA %s: %d functions, %d constants and %d types are the same" % (version, len(functions), len(constants), len(types)))
    return said and "CUDA %s: %s" % (version, said)


def main():
    for version in VERSIONS:
        got = subprocess.run([str(ROOT / "scripts" / "cuda_headers.sh"), version], capture_output=True, text=True)
        if got.returncode:
            print("skipped: the wheel of CUDA %s with the vendor's header cannot be had here: %s" % (version, got.stderr.strip()[-300:]))
            return 77
        wrong = check(version, pathlib.Path(got.stdout.strip()))
        if wrong:
            print(wrong)
            return 1
    for include in toolkits():
        wrong = check_cublaslt(include)
        if wrong:
            print(wrong)
            return 1
    if not toolkits():
        print("cublasLt.h is not compared: no toolkit has it here")
    nvrtc = subprocess.run([str(ROOT / "scripts" / "cuda_nvrtc.sh")], capture_output=True, text=True)
    if nvrtc.returncode:
        print("nvrtc.h is not compared: its wheel cannot be had here: %s" % nvrtc.stderr.strip()[-300:])
        return 0
    wrong = check_nvrtc(nvrtc.stdout.strip())
    print(wrong, end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

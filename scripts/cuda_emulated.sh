#!/usr/bin/env bash
# Run a command with the stand-in for NVIDIA's driver in place of it, and the kernels on the CPU (tests/standins/cuda; its environment is listed in driver/cuda_standin.h there).
# usage: scripts/cuda_emulated.sh COMMAND…      TD_BUILD=folder is the build that has it (build/release); TD_TEST_CARD=own runs the command on the machine's own card
set -euo pipefail
[ "${TD_TEST_CARD:-}" != own ] || [ $# -eq 0 ] || exec "$@"
build=${TD_BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build/release}
standin=$build/cuda_standin
if [ $# -eq 0 ] || [ ! -e "$standin/libcuda.so.1" ] || [ ! -e "$standin/kernels.image" ]; then
    echo "usage: scripts/cuda_emulated.sh COMMAND…   (build the tests first: $standin has no libraries, or there is no command)" >&2
    exit 2
fi
export TD_CUDA_EARLY=${TD_CUDA_EARLY-1} TD_CUDA_KERNELS=${TD_CUDA_KERNELS-$standin/kernels.image} TD_CUBLASLT=${TD_CUBLASLT-$standin}
LD_LIBRARY_PATH=$standin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$@"

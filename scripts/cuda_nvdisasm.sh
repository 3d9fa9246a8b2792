#!/usr/bin/env bash
# Fetch nvdisasm, which shows the machine code of NVIDIA's cards and needs none, from PyPI (5 MB), for bench/cuda/sass.py.
# usage: scripts/cuda_nvdisasm.sh     prints its path; exits 1 with pip's words where the wheel cannot be had
set -euo pipefail
folder=$("$(dirname "$0")/wheel_headers.sh" cuda_nvdisasm nvidia-cuda-nvdisasm 13.5.37 '.*/bin/(nvdisasm)' '\1')
chmod +x "$folder/nvdisasm"
echo "$folder/nvdisasm"

#!/usr/bin/env bash
# Fetch cuda.h, which the PyPI wheels nvidia-cuda-runtime carry, for the checks of npu/cuda's own declarations: into
# build/cuda_headers/VERSION.
# usage: scripts/cuda_headers.sh VERSION     prints that folder, as scripts/wheel_headers.sh
#   12.0.146 (1 MB) is the oldest that npu/cuda serves; 13.5.37 (2 MB) the newest
set -euo pipefail
package=nvidia-cuda-runtime
case $1 in 12.*) package=nvidia-cuda-runtime-cu12 ;; esac
exec "$(dirname "$0")/wheel_headers.sh" cuda_headers "$package" "$1" '.*/include/(cuda\.h)' '\1'

#!/usr/bin/env bash
# Fetch NVRTC, the compiler of CUDA C++ that needs neither a card nor a driver, from PyPI, for the checks of npu/cuda's kernels.
# It goes into build/cuda_nvrtc/VERSION and is never committed.
# usage: scripts/cuda_nvrtc.sh [VERSION]     prints the path of libnvrtc.so.MAJOR; exits 1 with pip's words where the wheel (90 MB) cannot be had
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:-12.9.86}
major=${version%%.*} package=nvidia-cuda-nvrtc # CUDA's version is part of the name up to 12
[ "$major" -gt 12 ] || package=nvidia-cuda-nvrtc-cu$major
folder=$PWD/build/cuda_nvrtc/$version
mkdir -p build
exec 9>build/cuda_nvrtc.lock
flock 9 # two tests may want it at once
if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    pip=build/venv/bin/pip
    [ -x "$pip" ] || scripts/test_venv.sh >&2
    "$pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$folder/wheel" "$package==$version" >&2
    build/venv/bin/python -m zipfile -e "$folder"/wheel/*.whl "$folder"
    rm -rf "$folder/wheel"
    touch "$folder/complete"
fi
echo "$folder"/nvidia/*/lib/libnvrtc.so."$major"

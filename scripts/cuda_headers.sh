#!/usr/bin/env bash
# Fetch cuda.h, which the PyPI wheels nvidia-cuda-runtime carry, for the checks of npu/cuda's own declarations.
# It goes into build/cuda_headers/VERSION and is never committed.
# usage: scripts/cuda_headers.sh VERSION     prints the folder that has cuda.h; exits 1 with pip's words where the wheel cannot be had
#   12.0.146 (1 MB) is the oldest that npu/cuda serves; 13.5.37 (2 MB) the newest
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
folder=$PWD/build/cuda_headers/$version
if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/wheel"
    pip=build/venv/bin/pip
    [ -x "$pip" ] || scripts/test_venv.sh >&2
    package=nvidia-cuda-runtime
    case $version in 12.*) package=nvidia-cuda-runtime-cu12 ;; esac
    # Any of the wheels will do: the headers in them are the same.
    "$pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
        --dest "$folder/wheel" "$package==$version" >&2
    build/venv/bin/python - "$folder" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
with zipfile.ZipFile(next((folder / "wheel").glob("*.whl"))) as wheel:
    header = next(name for name in wheel.namelist() if name.endswith("/include/cuda.h"))
    (folder / "cuda.h").write_bytes(wheel.read(header))
PYTHON
    rm -rf "$folder/wheel"
    touch "$folder/complete"
fi
echo "$folder"

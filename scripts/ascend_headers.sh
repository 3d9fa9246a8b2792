#!/usr/bin/env bash
# Fetch the headers of AscendCL and HCCL that the PyPI wheel torch-npu carries, for the checks of npu/ascend's own declarations.
# They go into build/ascend_headers/VERSION/{acl,hccl} and are never committed.
# usage: scripts/ascend_headers.sh VERSION     prints that folder; exits 1 with pip's words where the wheel cannot be had
#   2.14.0 (44 MB) is the newest; 2.5.1 (16 MB) is the one for CANN 8.1
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
folder=$PWD/build/ascend_headers/$version
if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/wheel"
    pip=build/venv/bin/pip
    [ -x "$pip" ] || scripts/test_venv.sh >&2
    # Any of the wheels will do: the headers in them are the same.
    "$pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --dest "$folder/wheel" "torch-npu==$version" >&2
    build/venv/bin/python - "$folder" <<'PYTHON'
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[1])
parts = {"torch_npu/include/third_party/acl/inc/": "acl", "torch_npu/include/third_party/hccl/inc/": "hccl"}
with zipfile.ZipFile(next((folder / "wheel").glob("*.whl"))) as wheel:
    for name in wheel.namelist():
        for prefix, part in parts.items():
            if name.startswith(prefix) and name.endswith(".h"):
                to = folder / part / name[len(prefix):]
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(wheel.read(name))
PYTHON
    rm -rf "$folder/wheel"
    touch "$folder/complete"
fi
echo "$folder"

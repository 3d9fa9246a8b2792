#!/usr/bin/env bash
# Fetch a vendor's headers, or a program, out of a wheel of PyPI, for the checks of our own declarations and kernels. They are never committed.
# usage: scripts/wheel_headers.sh FOLDER PACKAGE VERSION REGEX TO
#   the files of the wheel PACKAGE==VERSION whose whole name matches REGEX go to build/FOLDER/VERSION/TO, with \1, \2 of the match;
#   prints build/FOLDER/VERSION; exits 1 with pip's words where the wheel cannot be had
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$PWD/build/$1/$3
if [ ! -e "$folder/complete" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/wheel"
    pip=build/venv/bin/pip
    [ -x "$pip" ] || scripts/test_venv.sh >&2
    # Any of the wheels will do: the headers in them are the same.
    "$pip" download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --dest "$folder/wheel" "$2==$3" >&2
    build/venv/bin/python - "$folder" "$4" "$5" <<'PYTHON'
import pathlib, re, sys, zipfile
folder, pattern, to = pathlib.Path(sys.argv[1]), re.compile(sys.argv[2]), sys.argv[3]
found = 0
with zipfile.ZipFile(next((folder / "wheel").glob("*.whl"))) as wheel:
    for name in wheel.namelist():
        match = pattern.fullmatch(name)
        if match:
            path = folder / match.expand(to)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wheel.read(name))
            found += 1
if not found:
    sys.exit("the wheel has no such files")
PYTHON
    rm -rf "$folder/wheel"
    touch "$folder/complete"
fi
echo "$folder"

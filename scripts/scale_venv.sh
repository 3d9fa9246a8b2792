#!/usr/bin/env bash
# Make build/scale-venv: sglang-router and a consumer of KV events, which tests/scale starts as programs, and build/smg-venv: smg, which has programs of
# the same names; and build/mooncake: Mooncake Store. Does nothing where they are there already. Versions are pinned: what a router asks of a worker changes from one to the next.
set -euo pipefail
cd "$(dirname "$0")/.."
make_venv() { # folder, packages
    local folder=$1 stamp="$1/installed: ${*:2}"
    [ ! -e "$stamp" ] || return 0
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "${@:2}"
    touch "$stamp"
}
make_venv build/scale-venv sglang-router==0.3.2 ai-dynamo-runtime==1.6.1 pyzmq==27.1.0 msgspec==0.20.0
make_venv build/smg-venv smg==1.13.0

# Mooncake Store: its master, and the library with its C interface, which of the packages on PyPI only the one for Ascend has (x86-64). On a machine
# without cards the library needs stand-ins for three of Ascend's. A test that wants it is skipped where it is not there.
make_mooncake() { # folder, package
    local folder=$1 stamp="$1/installed: $2" lib
    [ ! -e "$stamp" ] || return 0
    rm -rf "$folder"
    mkdir -p "$folder/standins"
    build/scale-venv/bin/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_35_x86_64 --dest "$folder" "$2"
    python3 -m zipfile -e "$folder"/*.whl "$folder"
    rm "$folder"/*.whl
    chmod +x "$folder/mooncake/mooncake_master"
    for lib in libascendcl libllm_datadist libmetadef; do
        "${CC:-cc}" -shared -fPIC -o "$folder/standins/$lib.so" tests/standins/no_ascend_card.c
    done
    touch "$stamp"
}
if [ "$(uname -m)" = x86_64 ]; then
    make_mooncake build/mooncake mooncake-transfer-engine-npu==0.3.13.post1 || echo "Mooncake Store cannot be installed here: tests with it are skipped" >&2
fi

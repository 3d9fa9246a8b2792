#!/usr/bin/env bash
# Make build/scale-venv: sglang-router and a consumer of KV events, which tests/scale starts as programs, and build/smg-venv: smg, which has programs of
# the same names. Does nothing where they are there already. Versions are pinned: what a router asks of a worker changes from one to the next.
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

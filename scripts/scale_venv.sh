#!/usr/bin/env bash
# Make build/scale-venv: routers and a consumer of KV events, which tests/scale starts as programs; does nothing where it is there already.
# Their versions are pinned: what they ask of a worker changes from one to the next.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(sglang-router==0.3.2 smg==1.13.0 ai-dynamo-runtime==1.6.1 pyzmq==27.1.0 msgspec==0.20.0)
stamp="build/scale-venv/installed: ${packages[*]}"
[ -e "$stamp" ] && exit 0
rm -rf build/scale-venv
python3 -m venv build/scale-venv
build/scale-venv/bin/pip install --quiet --disable-pip-version-check "${packages[@]}"
touch "$stamp"

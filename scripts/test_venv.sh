#!/usr/bin/env bash
# Make build/venv with the Python packages that tests use; does nothing where it is there already.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(openai anthropic prometheus-client numpy jsonschema pillow==12.3.0) # pillow: image/resize.h says why it is this one
stamp="build/venv/installed: ${packages[*]}, schema suite"
[ -e "$stamp" ] && exit 0
python3 -m venv build/venv
build/venv/bin/pip install --quiet --disable-pip-version-check "${packages[@]}"
# The source package of this version carries the public JSON Schema test suite.
build/venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary jsonschema --dest build/venv jsonschema==4.17.3
tar -xzf build/venv/jsonschema-4.17.3.tar.gz -C build/venv jsonschema-4.17.3/json/tests
touch "$stamp"

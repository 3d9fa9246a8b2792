#!/usr/bin/env bash
# Build and run every test: installs what is missing, runs the soak under sanitizers and the aarch64 build's tests under qemu, makes the second
# test model, builds with warnings as errors, runs CTest.
# usage: scripts/test.sh [--full] [ctest options, e.g. -L quick; then without the sanitizers, aarch64 and the second model]
# --full: where a test tries a sample, it tries everything (TD_TEST_FULL=1)
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --full ]; then
    export TD_TEST_FULL=1
    shift
fi
scripts/deps.sh test
scripts/test_venv.sh
if [ $# -eq 0 ]; then
    scripts/test_sanitizers.sh
    scripts/test_aarch64.sh
    echo "== the second test model (build/smollm2-moe)"
    scripts/smollm2/venv.sh
    [ -e build/smollm2-moe ] || build/smollm2-venv/bin/python scripts/smollm2/make_moe.py build/smollm2-moe
fi
echo "== building (release, warnings are errors)"
cmake --preset release -DTD_WERROR=ON >build-configure.log 2>&1 || { cat build-configure.log; exit 1; }
rm -f build-configure.log
cmake --build --preset release
echo "== testing"
ctest --preset release "$@"

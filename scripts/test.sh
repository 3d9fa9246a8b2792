#!/usr/bin/env bash
# Build and run every test: installs what is missing, runs the soak under sanitizers, builds with warnings as errors, runs CTest.
# usage: scripts/test.sh [ctest options, e.g. -L quick; then without the sanitizers]
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/deps.sh test
scripts/test_venv.sh
[ $# -gt 0 ] || scripts/test_sanitizers.sh
echo "== building (release, warnings are errors)"
cmake --preset release -DTD_WERROR=ON >build-configure.log 2>&1 || { cat build-configure.log; exit 1; }
rm -f build-configure.log
cmake --build --preset release
echo "== testing"
ctest --preset release "$@"

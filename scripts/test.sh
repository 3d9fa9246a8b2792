#!/usr/bin/env bash
# Build and run every test: installs what is missing, makes the second test model, builds with warnings as errors, runs CTest; and, on what CTest leaves
# of the processor, the soak under sanitizers and the aarch64 build's tests under qemu.
# usage: scripts/test.sh [--full] [--under-load] [ctest options, e.g. -L quick; then without the sanitizers, aarch64 and the second model]
# --full: where a test tries a sample, it tries everything (TD_TEST_FULL=1), and threads wait as on a machine of their own; and the API suites of vLLM,
# SGLang and llama.cpp
# --under-load: CTest alone, beside two loops that keep two cores busy: no test may depend on the machine's speed
set -euo pipefail
set -m # every stage in the background is a process group, which can be ended whole
cd "$(dirname "$0")/.."

full='' under_load=''
while :; do
    case "${1:-}" in
        --full) full=1 ;;
        --under-load) under_load=1 ;;
        *) break ;;
    esac
    shift
done
# Many programs share the cores here, and a thread that spins while it waits takes time from another test. --full tests spinning everywhere.
if [ -n "$full" ]; then export TD_TEST_FULL=1; else export TD_SHARED_CORES=1; fi

declare -A stage=() # name of each process group that runs in the background
logs=$(mktemp -d)
end_all() {
    local group
    for group in "${!stage[@]}"; do kill -- "-$group" || true; done 2>/dev/null
    wait 2>/dev/null || true
    rm -rf "$logs"
}
trap end_all EXIT

begin() { # name, command…: in the background; what it prints is kept
    "${@:2}" >"$logs/$1" 2>&1 &
    stage[$!]=$1
}

finish() { # waits for all that has begun, and shows what each has printed when it ends; the first that fails ends everything
    local group status
    while [ ${#stage[@]} -gt 0 ]; do
        status=0
        wait -n -p group || status=$?
        echo "==== ${stage[$group]}"
        cat "$logs/${stage[$group]}"
        [ "$status" -eq 0 ] || { echo "scripts/test.sh: ${stage[$group]}: failed with status $status"; exit 1; }
        unset "stage[$group]"
    done
}

second_model() {
    scripts/smollm2/venv.sh
    [ -e build/smollm2-moe ] || build/smollm2-venv/bin/python scripts/smollm2/make_moe.py build/smollm2-moe
}

scripts/deps.sh test
scripts/test_venv.sh
whole=''
[ $# -gt 0 ] || [ -n "$under_load" ] || whole=1
if [ -n "$whole" ]; then # downloads, beside the build
    begin "second test model" second_model
    begin "routers and stores" scripts/scale_venv.sh
    begin "packages for aarch64" scripts/deps.sh aarch64
    [ -z "$full" ] || begin "suites of other engines" scripts/suites_venv.sh
fi
echo "== building (release, warnings are errors)"
# The flags of scripts/package.sh, whose build in test_packages takes what was compiled here.
export CCACHE_DIR=${CCACHE_DIR:-$PWD/build/ccache} # in the tree, unless the user has another
export CMAKE_C_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 CCACHE_SLOPPINESS=locale
cmake --preset release -DTD_WERROR=ON -DCMAKE_C_FLAGS="-ffile-prefix-map=$PWD=." >"$logs/configure" 2>&1 || { cat "$logs/configure"; exit 1; }
cmake --build --preset release
finish
if [ -n "$whole" ]; then
    echo "== beside the tests: sanitizers, aarch64; both are shown behind them"
    export CMAKE_BUILD_PARALLEL_LEVEL
    CMAKE_BUILD_PARALLEL_LEVEL=$(nproc)
    begin "sanitizers" nice scripts/test_sanitizers.sh
    begin "aarch64" env TD_TEST_PATIENCE=10 nice scripts/test_aarch64.sh
fi
if [ -n "$under_load" ]; then
    for loop in 1 2; do begin "busy loop $loop" bash -c 'while :; do :; done'; done
fi
echo "== testing"
# One more at a time than there are cores: tests of servers wait as often as they compute.
tests=0
ctest --preset release -j "$(($(nproc) + 1))" "$@" | tee "$logs/ctest" || tests=$?
if [ -n "$whole" ]; then
    finish
    echo "== the tests' summary"
    sed -n '/tests passed/,$p' "$logs/ctest"
fi
exit "$tests"

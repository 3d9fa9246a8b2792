#!/usr/bin/env bash
# Install the Debian packages that building, testing and fuzzing need. Does nothing where all are there already.
# usage: scripts/deps.sh [build|test|fuzz]   (each includes the ones before it; default: build)
set -euo pipefail

build=(gcc cmake ninja-build pkg-config libhwloc-dev libnuma-dev libopenblas-dev liburing-dev libjemalloc-dev
       libmicrohttpd-dev libjansson-dev libpcre2-dev libutf8proc-dev libcyaml-dev libyaml-dev libxxhash-dev curl)
tests=(libcmocka-dev python3 python3-venv python3-jinja2 spin clang-14 clang-format-14)
fuzz=(libclang-rt-14-dev)

want=("${build[@]}" "${tests[@]}")
case "${1:-build}" in
    build) want=("${build[@]}" libcmocka-dev) ;;
    test) ;;
    fuzz) want+=("${fuzz[@]}") ;;
    *) echo "usage: scripts/deps.sh [build|test|fuzz]" >&2; exit 2 ;;
esac

missing=()
for p in "${want[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "scripts/deps.sh: needs root or sudo to install: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
echo "== installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null

#!/usr/bin/env bash
# Install the packages that building, testing, fuzzing and the cross build need: Debian's, or with dnf openEuler's. Does nothing where all are there already.
# usage: scripts/deps.sh [build|packages|test|fuzz|aarch64]   (each but aarch64 includes those before it; default: build)
# packages: what scripts/package.sh needs.
# aarch64: what builds for aarch64 on another machine and runs the result: compiler and qemu, and Debian's arm64 libraries in build/aarch64-sysroot.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=(gcc cmake ninja-build pkg-config curl python3)
libraries=(libhwloc-dev libnuma-dev libopenblas-dev liburing-dev libjemalloc-dev libmicrohttpd-dev libjansson-dev libpcre2-dev libutf8proc-dev libcyaml-dev
           libyaml-dev libxxhash-dev libjpeg62-turbo-dev libpng-dev libwebp-dev libcmocka-dev)
packages=(dpkg-dev file patchelf rpm)
tests=(g++ ccache python3-venv python3-jinja2 python3-yaml python3-selenium chromium chromium-driver spin clang-14 clang-format-14 debootstrap buildah lintian mandoc groff fish zsh systemd strace procps libzmq5 libopentracing-c-wrapper0 libibverbs1 libnl-3-200 libnl-route-3-200 libcurl4)
# Servers that tests run as programs of theirs: unpacked in build/package-tools, since installing would start them.
servers=(nginx caddy prometheus haproxy)
fuzz=(libclang-rt-14-dev)
aarch64=(gcc-aarch64-linux-gnu qemu-user cmake ninja-build pkg-config)

# openEuler's and Fedora's names of what `build` needs. Never run: no such machine was at hand.
dnf=(gcc cmake ninja-build pkgconf curl python3 hwloc-devel numactl-devel openblas-devel liburing-devel jemalloc-devel libmicrohttpd-devel jansson-devel pcre2-devel
     utf8proc-devel libcyaml-devel libyaml-devel xxhash-devel libjpeg-turbo-devel libpng-devel libwebp-devel libcmocka-devel)

what=${1:-build}
case "$what" in
    build) want=("${tools[@]}" "${libraries[@]}") ;;
    packages) want=("${tools[@]}" "${libraries[@]}" "${packages[@]}") ;;
    test) want=("${tools[@]}" "${libraries[@]}" "${packages[@]}" "${tests[@]}") ;;
    fuzz) want=("${tools[@]}" "${libraries[@]}" "${packages[@]}" "${tests[@]}" "${fuzz[@]}") ;;
    aarch64) want=("${aarch64[@]}") ;;
    *) echo "usage: scripts/deps.sh [build|packages|test|fuzz|aarch64]" >&2; exit 2 ;;
esac

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
need_root() { # what for
    [ ${#as_root[@]} -eq 0 ] || command -v sudo >/dev/null || { echo "scripts/deps.sh: needs root or sudo to install: $*" >&2; exit 1; }
    echo "== installing $*"
}

if ! command -v dpkg-query >/dev/null; then
    command -v dnf >/dev/null || { echo "scripts/deps.sh: neither apt nor dnf here; the lists in this script name what is needed" >&2; exit 1; }
    [ "$what" = build ] || { echo "scripts/deps.sh: on a machine with dnf only 'build' is there" >&2; exit 1; }
    rpm -q "${dnf[@]}" >/dev/null 2>&1 && exit 0
    need_root "${dnf[@]}"
    "${as_root[@]}" dnf install -y -q "${dnf[@]}"
    exit 0
fi

missing=()
for p in "${want[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
    need_root "${missing[@]}"
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
if [ "$what" = test ] || [ "$what" = fuzz ]; then
    for p in "${servers[@]}"; do
        [ -e "build/package-tools/$p" ] && continue
        mkdir -p build/package-tools/archives
        (cd build/package-tools/archives && apt-get download -qq -o APT::Sandbox::User= "$p")
        dpkg-deb -x build/package-tools/archives/"$p"_*.deb build/package-tools/unpacked
        mv build/package-tools/unpacked "build/package-tools/$p"
    done
    rm -rf build/package-tools/archives
fi
if [ "$what" = aarch64 ]; then scripts/aarch64_sysroot.sh libc6-dev "${libraries[@]}"; fi

#!/usr/bin/env bash
# Make build/aarch64-sysroot: Debian's arm64 libraries and headers, unpacked and not installed, for the cross build (preset aarch64) and for
# running its programs under qemu (scripts/arm64_packages.sh says where from). Does nothing where the folder is there already.
# usage: scripts/aarch64_sysroot.sh PACKAGE...   (called by scripts/deps.sh aarch64)
set -euo pipefail
cd "$(dirname "$0")/.."
root=build/aarch64-sysroot
stamp="$root/unpacked: $*"
[ -e "$stamp" ] && exit 0

echo "== fetching arm64 packages for $root"
scripts/arm64_packages.sh "$root" "$@"

# What installing would have done: links to absolute paths stay inside, and update-alternatives chooses the BLAS.
find "$root" -type l -lname '/*' | while read -r link; do ln -snf "$(realpath -m --relative-to="$(dirname "$link")" "$root$(readlink "$link")")" "$link"; done
lib=$root/usr/lib/aarch64-linux-gnu
ln -s openblas-pthread/libopenblas.so "$lib/libopenblas.so"
ln -s openblas-pthread/libopenblas.so.0 "$lib/libopenblas.so.0"
ln -s ../openblas-pthread/pkgconfig/openblas.pc "$lib/pkgconfig/openblas.pc"
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
touch "$stamp"

#!/usr/bin/env bash
# Make build/aarch64-sysroot: Debian's arm64 libraries and headers, unpacked and not installed, for the cross build (preset aarch64) and for
# running its programs under qemu. The packages come from the sources that this machine's apt has; the machine's own packages, its list of
# architectures and its lists of packages stay as they are. Does nothing where the folder is there already.
# usage: scripts/aarch64_sysroot.sh PACKAGE...   (called by scripts/deps.sh aarch64)
set -euo pipefail
cd "$(dirname "$0")/.."
root=build/aarch64-sysroot
stamp="$root/unpacked: $*"
[ -e "$stamp" ] && exit 0

apt=$PWD/build/aarch64-apt
rm -rf "$root" "$apt"
mkdir -p "$root" "$apt"/{lists,archives}/partial
: >"$apt/status"
options=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User= -o Dir::State="$apt" -o Dir::State::lists="$apt/lists"
         -o Dir::State::status="$apt/status" -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives" -o Acquire::Languages=none)
echo "== fetching arm64 packages for $root"
apt-get "${options[@]}" update
apt-get "${options[@]}" install -y --no-install-recommends --download-only "$@" >/dev/null
for deb in "$apt"/archives/*.deb; do dpkg-deb -x "$deb" "$root"; done

# What installing would have done: links to absolute paths stay inside, and update-alternatives chooses the BLAS.
find "$root" -type l -lname '/*' | while read -r link; do ln -snf "$(realpath -m --relative-to="$(dirname "$link")" "$root$(readlink "$link")")" "$link"; done
lib=$root/usr/lib/aarch64-linux-gnu
ln -s openblas-pthread/libopenblas.so "$lib/libopenblas.so"
ln -s openblas-pthread/libopenblas.so.0 "$lib/libopenblas.so.0"
ln -s ../openblas-pthread/pkgconfig/openblas.pc "$lib/pkgconfig/openblas.pc"
[ -e "$root/lib" ] || ln -s usr/lib "$root/lib"
rm -rf "$apt"
touch "$stamp"

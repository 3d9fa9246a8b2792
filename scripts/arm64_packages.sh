#!/usr/bin/env bash
# Fetch Debian's arm64 packages and what they depend on, and unpack them into a folder, without installing: no script of a package is run. The packages
# come from the sources that this machine's apt has; the machine's own packages, its list of architectures and its lists of packages stay as they are.
# usage: scripts/arm64_packages.sh FOLDER PACKAGE...   FOLDER/var/lib/dpkg/status.d/NAME then tells of each package
set -euo pipefail
root=$1
shift
apt=$(realpath -m "$root").apt
trap 'rm -rf "$apt"' EXIT
rm -rf "$root" "$apt"
mkdir -p "$root/var/lib/dpkg/status.d" "$apt"/{lists,archives}/partial
: >"$apt/status"
options=(-qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User= -o Dir::State="$apt" -o Dir::State::lists="$apt/lists"
         -o Dir::State::status="$apt/status" -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives" -o Acquire::Languages=none)
apt-get "${options[@]}" update
apt-get "${options[@]}" install -y --no-install-recommends --download-only "$@" >/dev/null
for deb in "$apt"/archives/*.deb; do
    dpkg-deb -x "$deb" "$root"
    dpkg-deb -f "$deb" >"$root/var/lib/dpkg/status.d/$(dpkg-deb -f "$deb" Package)"
done

#!/usr/bin/env bash
# Make packages of this tree in build/packages/: bit for bit the same from the same commit with the same compiler and libraries.
# usage: scripts/package.sh deb | deb-arm64 | image-arm64 | tarball | rpm
#   deb         tandem_*.deb (program, service, pages) and libtandem-dev_*.deb (headers, libraries, example), for this machine's architecture
#   deb-arm64   the same for arm64, built with the cross compiler (scripts/deps.sh aarch64)
#   image-arm64 tandem_*_arm64.image.tar, a container's image of that (podman load, docker load), with Debian's packages of the day
#   tarball     tandem-*-linux-*.tar.gz: unpack anywhere and run; carries every library but glibc, and the demo model
#   rpm         tandem-*.rpm and tandem-devel-*.rpm (packaging/tandem.spec)
# Environment: TD_PACKAGE_REVISION (1), the package's number within a version; SOURCE_DATE_EPOCH (the commit's time), the time of every file; TD_PACKAGE_COMMIT, where
# the tree is not git's: what 'tandem --version' says; TD_PACKAGE_WERROR=ON: warnings are errors.
set -euo pipefail
cd "$(dirname "$0")/.."
source=$PWD out=$PWD/build/packages
version=$(sed -n 's/^#define TD_VERSION "\(.*\)"/\1/p' include/tandem.h)
revision=${TD_PACKAGE_REVISION:-1}
maintainer="Tandem maintainers <maintainers@tandem.invalid>"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)} LC_ALL=C TZ=UTC

fail() { echo "scripts/package.sh: $*" >&2; exit 1; }
need() { # program, Debian's package
    command -v "$1" >/dev/null || fail "there is no $1; install $2 (scripts/deps.sh packages)"
}

# Build for /usr in a folder of its own; $1 folder, $2 preset, $3 folder of libraries below /usr. Paths of this machine stay out of the program.
build() {
    local log=$1.log
    mkdir -p "$(dirname "$1")"
    { cmake --preset "$2" -B "$1" -DTD_TESTS=OFF -DTD_PAGES=ON -DTD_COMMIT="${TD_PACKAGE_COMMIT:-}" -DTD_WERROR="${TD_PACKAGE_WERROR:-OFF}" -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR="$3" \
        -DCMAKE_C_FLAGS="-ffile-prefix-map=$source=." && cmake --build "$1"; } >"$log" 2>&1 || { tail -n 40 "$log"; fail "the build failed ($log)"; }
}

install_component() { # build folder, component, where
    rm -rf "$3"
    DESTDIR=$3 cmake --install "$1" --component "$2" >/dev/null
}

# ---- deb ----

# The packages of the libraries that a program needs. With the machine's own libraries dpkg-shlibdeps knows them, and their lowest versions; of another
# architecture's only the names are known here, which are the same for all.
depends_of() { # program, architecture
    if [ "$2" = "$(dpkg --print-architecture)" ]; then
        local work=$out/stage/shlibdeps
        mkdir -p "$work/debian"
        printf 'Source: tandem\n\nPackage: tandem\nArchitecture: any\n' >"$work/debian/control"
        (cd "$work" && dpkg-shlibdeps -O "$1" 2>/dev/null) | sed -n 's/^shlibs:Depends=//p'
        return
    fi
    local names=() needed
    for needed in $(needed_of "$1"); do
        case $needed in
            ld-linux-* | libm.so.*) ;;
            libc.so.6) names+=("libc6 (>= $(glibc_of "$1"))") ;;
            *) names+=("$(package_of "$needed")") ;;
        esac
    done
    printf '%s\n' "${names[@]}" | sort -u | paste -sd, | sed 's/,/, /g'
}

package_of() { dpkg-query -S "/*lib/$(uname -m)-linux-gnu*/$1" | sed -n '1s/:.*//p'; } # the name of a library's file
needed_of() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
glibc_of() { readelf -V "$1" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -n 1 | cut -d_ -f2; } # the newest version that it asks for

# Finish a package's tree and pack it; $1 tree, $2 name, $3 architecture, $4 depends, $5 section, $6 short text, $7 long text, its lines as control files
# have them. Calibration loads OpenBLAS when it is asked for.
pack_deb() {
    local tree=$1 name=$2 doc=$1/usr/share/doc/$2
    mkdir -p "$doc" "$tree/DEBIAN"
    cp packaging/debian/copyright "$doc/copyright"
    printf 'tandem (%s-%s) unstable; urgency=medium\n\n  * Version %s; CHANGELOG.md of the sources tells what it has.\n\n -- %s  %s\n' \
        "$version" "$revision" "$version" "$maintainer" "$(date -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.Debian.gz"
    [ ! -d "$tree/usr/share/man" ] || find "$tree/usr/share/man" -type f -exec gzip -9n {} +
    find "$tree" -type d -exec chmod 0755 {} +
    find "$tree" -type f -exec chmod u=rwX,go=rX {} +
    (cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    cat >"$tree/DEBIAN/control" <<TEXT
Package: $name
Source: tandem
Version: $version-$revision
Architecture: $3
Maintainer: $maintainer
Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$tree" | cut -f1)
Depends: $4
Recommends: libopenblas0-pthread
Suggests: libzmq5
Section: $5
Priority: optional
Description: $6
 $7
TEXT
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$out/${name}_$version-${revision}_$3.deb" >/dev/null
    echo "$out/${name}_$version-${revision}_$3.deb"
}

make_deb() { # architecture, build folder, prefix of the tools
    local stage=$out/stage/deb-$1 program=$out/stage/deb-$1/tandem dev=$out/stage/deb-$1/libtandem-dev
    need dpkg-shlibdeps dpkg-dev
    install_component "$2" program "$program"
    install_component "$2" development "$dev"
    "$3strip" --strip-unneeded --remove-section=.comment --remove-section=.note "$program/usr/bin/tandem"
    "$3strip" --strip-debug --enable-deterministic-archives "$dev"/usr/lib/*/*.a
    mkdir -p "$program/DEBIAN"
    install -m 0755 packaging/debian/{postinst,prerm,postrm} "$program/DEBIAN/"
    echo /etc/tandem/tandem.yaml >"$program/DEBIAN/conffiles"
    pack_deb "$program" tandem "$1" "$(depends_of "$program/usr/bin/tandem" "$1"), adduser" utils \
        "inference engine for large Mixture-of-Experts language models" \
        "Serves DeepSeek, Kimi and Qwen models over OpenAI's HTTP API: routed
 experts on the CPU in INT4, everything else on a small device tier."
    pack_deb "$dev" libtandem-dev "$1" "libhwloc-dev, libnuma-dev, liburing-dev, libjansson-dev, libpcre2-dev, libutf8proc-dev, libxxhash-dev, libjpeg62-turbo-dev, libpng-dev, libwebp-dev" libdevel \
        "inference engine for large Mixture-of-Experts language models, for C programs" \
        "Headers, static libraries and pkg-config files of libtandem and
 libtandem_tools, and an example."
    rm -rf "$stage"
}

# ---- the container's image for another architecture ----

# Its files are those of the packages, unpacked, and all else is as packaging/container/Containerfile says, without what that file runs: that needs
# the architecture's machine, or a kernel that hands its programs to an emulator. So there is no apt inside, and the user is made here.
make_image_arm64() { # the .deb
    local deb=$1 stage=$out/stage/image-arm64 root=$out/stage/image-arm64/root image=localhost/tandem:$version
    local file=$out/tandem_$version-${revision}_arm64.image.tar
    local depends
    depends=$(dpkg-deb -f "$deb" Depends | sed 's/ ([^)]*)//g; s/,//g; s/\badduser\b//')
    rm -rf "$stage" "$file"
    mkdir -p "$stage"
    # shellcheck disable=SC2086 # names, one by one; the health check is written for bash
    scripts/arm64_packages.sh "$root" base-files base-passwd bash $depends
    dpkg-deb -x "$deb" "$root"
    dpkg-deb -f "$deb" >"$root/var/lib/dpkg/status.d/tandem"
    { cat "$root/usr/share/base-passwd/passwd.master"; echo "tandem:*:999:999:Tandem inference server:/nonexistent:/usr/sbin/nologin"; } >"$root/etc/passwd"
    { cat "$root/usr/share/base-passwd/group.master"; echo "tandem:*:999:"; } >"$root/etc/group"
    sed '/^FROM .* AS build$/,/^$/d; /^COPY --from=build /d; /^RUN /d' packaging/container/Containerfile >"$stage/Containerfile"
    [ "$(grep -c '^FROM ' "$stage/Containerfile")" = 1 ] || fail "packaging/container/Containerfile has other stages than two"
    local buildah=(buildah --root "$stage/storage" --runroot "$stage/run" --storage-driver vfs) base
    base=$("${buildah[@]}" from --arch arm64 scratch)
    "${buildah[@]}" add --quiet --chown 0:0 "$base" "$root" / >/dev/null
    "${buildah[@]}" config --arch arm64 --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$base"
    "${buildah[@]}" commit --quiet --rm --timestamp "$SOURCE_DATE_EPOCH" "$base" localhost/base >/dev/null
    "${buildah[@]}" bud --quiet --arch arm64 --isolation chroot --format docker --pull-never --timestamp "$SOURCE_DATE_EPOCH" --build-arg BASE=localhost/base \
        -t "$image" -f "$stage/Containerfile" . >/dev/null
    "${buildah[@]}" push --quiet "$image" "docker-archive:$file:$image" >/dev/null
    rm -rf "$stage"
    echo "$file"
}

# ---- tarball ----

make_tarball() { # build folder
    local name=tandem-$version-linux-$(uname -m) tree stage=$out/stage/tarball lib
    tree=$stage/$name
    need patchelf patchelf
    install_component "$1" program "$stage/usr-tree"
    rm -rf "$tree"
    mkdir -p "$tree"/{bin,lib,licenses,configs,models}
    mv "$stage/usr-tree/usr/bin/tandem" "$tree/bin/"
    mv "$stage/usr-tree/usr/share" "$tree/share"
    mv "$tree/share/tandem/configs"/* "$tree/configs/"
    rmdir -p --ignore-fail-on-non-empty "$tree/share/tandem/configs"
    mkdir "$tree/models/tale-v3-14m"
    cp models/tale-v3-14m/{README.md,config.json,generation_config.json,model.safetensors,tokenizer.json,tokenizer_config.json} "$tree/models/tale-v3-14m/"
    cp packaging/TARBALL.md "$tree/README.md"
    strip --strip-unneeded "$tree/bin/tandem"

    # Every library but glibc's, which belongs to the machine's loader, OpenBLAS too, which calibration loads when it is asked for; and each one's terms.
    local blas
    blas=$(ldconfig -p | sed -n 's/^\s*libopenblas\.so\.0 .*=> //p' | head -n 1)
    [ -n "$blas" ] || fail "there is no libopenblas.so.0 (scripts/deps.sh)"
    { ldd "$tree/bin/tandem" "$blas"; echo "libopenblas.so.0 => $blas"; } | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | grep -vE '^(libc|libm|libpthread|libdl|librt|libresolv)\.so' | sort -u |
        while read -r lib path; do
            cp -L "$path" "$tree/lib/$lib"
            chmod 0644 "$tree/lib/$lib"
            local package
            package=$(package_of "$(basename "$(realpath "$path")")")
            [ -n "$package" ] || fail "no package owns $path"
            cp "/usr/share/doc/$package/copyright" "$tree/licenses/$lib.txt"
            echo "$lib from Debian's $package $(dpkg-query -W -f='${Version}' "$package" | head -n 1)"
        done >"$tree/lib/LIBRARIES.txt"
    # RPATH, and not RUNPATH: it is also where the libraries find each other.
    patchelf --force-rpath --set-rpath '$ORIGIN/../lib' "$tree/bin/tandem"
    local needs=0 f v
    for f in "$tree"/bin/tandem "$tree"/lib/*.so*; do
        v=$(glibc_of "$f")
        needs=$(printf '%s\n%s\n' "$needs" "$v" | sort -V | tail -n 1)
    done
    echo "glibc $needs or newer is needed of the machine" >>"$tree/lib/LIBRARIES.txt"
    find "$tree" -exec chmod u=rwX,go=rX {} +
    tar -C "$stage" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -c "$name" | gzip -6n >"$out/$name.tar.gz"
    rm -rf "$stage"
    echo "$out/$name.tar.gz"
}

# ---- rpm ----

make_rpm() { # build folder
    local top=$out/stage/rpm
    need rpmbuild rpm
    rm -rf "$top"
    mkdir -p "$top"/{SPECS,RPMS}
    # Where there is no dnf, BuildRequires cannot be looked up: what builds the .deb builds this.
    local nodeps=()
    command -v dnf >/dev/null || nodeps=(--nodeps)
    rpmbuild -bb "${nodeps[@]}" --build-in-place --define "_topdir $top" --define "td_version $version" --define "td_release $revision" \
        --define "td_build $1" --define "_buildhost reproducible" --define "clamp_mtime_to_source_date_epoch 1" --define "use_source_date_epoch_as_buildtime 1" \
        packaging/tandem.spec >"$out/rpm.log" 2>&1 || { tail -n 40 "$out/rpm.log"; fail "rpmbuild failed ($out/rpm.log)"; }
    find "$top/RPMS" -name '*.rpm' -exec mv -t "$out" {} +
    rm -rf "$top"
    find "$out" -name "*-$version-$revision*.rpm" | sort
}

mkdir -p "$out"
here=$(uname -m)-linux-gnu
case "${1:-}" in
    deb) build build/package release "lib/$here" && make_deb "$(dpkg --print-architecture)" build/package "" ;;
    deb-arm64) build build/package-arm64 aarch64 lib/aarch64-linux-gnu && make_deb arm64 build/package-arm64 aarch64-linux-gnu- ;;
    image-arm64)
        need buildah buildah
        build build/package-arm64 aarch64 lib/aarch64-linux-gnu
        make_deb arm64 build/package-arm64 aarch64-linux-gnu-
        make_image_arm64 "$out/tandem_$version-${revision}_arm64.deb"
        ;;
    tarball) build build/package release "lib/$here" && make_tarball build/package ;;
    rpm) make_rpm "$source/build/package" ;; # it builds there itself
    -h | --help) sed -n '2,10s/^# //p' "$0" ;;
    *) echo "usage: scripts/package.sh deb | deb-arm64 | image-arm64 | tarball | rpm" >&2; exit 2 ;;
esac

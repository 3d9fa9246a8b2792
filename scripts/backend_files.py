#!/usr/bin/env python3
"""List the files outside a backend's folder that name it: what adding or removing it touches.

usage: backend_files.py [--check] [NAME...]   (default: the vendors' backends and the made-up one of tests/npu/soroban)

--check: exit 1 unless the program's sources name it in npu/backends.c alone, and the build in npu/CMakeLists.txt, in the options of CMakeLists.txt and in the tests.
"""
import argparse
import os
import re
import subprocess
import sys

import check_layers

FOLDERS = {"soroban": "tests/npu/soroban/"}
BUILD = ("CMakeLists.txt", ".cmake")
MAY_BUILD = ("CMakeLists.txt", "npu/CMakeLists.txt", "tests/")


def files():
    try:
        out = subprocess.run(["git", "-C", check_layers.ROOT, "ls-files"], check=True, capture_output=True, text=True).stdout
        return out.split("\n")[:-1]
    except (OSError, subprocess.CalledProcessError):  # an unpacked archive
        found = []
        for folder, folders, names in os.walk(check_layers.ROOT):
            folders[:] = [f for f in folders if f not in (".git", "build")]
            found += [os.path.relpath(os.path.join(folder, name), check_layers.ROOT) for name in names]
        return sorted(found)


def touched(name):
    """{"sources" | "build": [file, ...]} that name a backend and are outside its folder; what check_layers.py excuses is left out."""
    words = re.compile(r"\w*(?:%s)\w*" % check_layers.VENDORS.get(name, name), re.I)
    excused = {said for said in check_layers.MAY_NAME_A_VENDOR if said[0] != "npu/backends.c"}
    found = {"sources": [], "build": []}
    for path in files():
        kind = "build" if path.endswith(BUILD) else "sources" if path.split("/")[0] in check_layers.MAY_INCLUDE and path.endswith((".c", ".h", ".inc")) else None
        if not kind or path.startswith(FOLDERS.get(name, "npu/%s/" % name)):
            continue
        with open(os.path.join(check_layers.ROOT, path), encoding="utf-8") as f:
            said = {(path, m.group(0)) for m in words.finditer(f.read())}
        if said - excused:
            found[kind].append(path)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*", default=[*check_layers.VENDORS, "soroban"])
    args = parser.parse_args()
    too_many = []
    for name in args.names:
        found = touched(name)
        print("%s: %s" % (name, ", ".join(found["sources"] + found["build"])))
        too_many += [path for path in found["sources"] if path != "npu/backends.c"] + [path for path in found["build"] if not path.startswith(MAY_BUILD)]
    if args.check and too_many:
        sys.exit("a backend is its folder and a line in npu/backends.c; these name one, too: " + ", ".join(too_many))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""List the files that name a family of models: what adding or removing it touches.

usage: family_files.py [--check] [NAME...]   (NAME as in model/arch/families.h; default: every family)

A family is named by its td_arch (TD_ARCH_NAME) and by its name in config.json ("...ForCausalLM").
--check: exit 1 unless the program's sources name a family in its own file and in model/arch/families.h alone. Tests may name it, too.
"""
import argparse
import os
import re
import sys

import backend_files
import check_layers

LIST = "model/arch/families.h"


def read(path):
    with open(os.path.join(check_layers.ROOT, path), encoding="utf-8") as f:
        return f.read()


def families(sources):
    """{NAME of families.h: (its file, its name in config.json)}"""
    found = {}
    for name in re.findall(r"\bX\((\w+)\)", read(LIST).split("#define TD_DECLARE_FAMILY")[0].split("#define TD_FAMILIES(X)")[1]):
        for path, text in sources.items():
            definition = re.search(r'^const td_arch TD_ARCH_%s = [^"]*"(\w+)"' % name, text, re.M)  # its first string is its name
            if definition:
                found[name] = path, definition.group(1)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    sources = {path: read(path) for path in backend_files.files()
               if path.endswith((".c", ".h", ".inc")) and (path.startswith("tests/") or path.split("/")[0] in check_layers.MAY_INCLUDE)}
    known, too_many = families(sources), []
    unknown = set(args.names) - set(known)
    if unknown:
        sys.exit("no family in %s: %s" % (LIST, ", ".join(sorted(unknown))))
    for name in args.names or known:
        own, config_name = known[name]
        names = re.compile(r'\bTD_ARCH_%s\b|"%s"' % (name, config_name))
        touched = [own, LIST] + [path for path, text in sources.items() if path not in (own, LIST) and names.search(text)]
        print("%s: %s" % (name, ", ".join(touched)))
        too_many += [path for path in touched[2:] if not path.startswith("tests/")]
    if args.check and too_many:
        sys.exit("a family is its file and a line in %s; these name one, too: %s" % (LIST, ", ".join(sorted(set(too_many)))))


if __name__ == "__main__":
    main()

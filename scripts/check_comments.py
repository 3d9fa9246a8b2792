#!/usr/bin/env python3
"""Refuse comments whose lists, tables or drawings were merged into sentences: lines of prose with three blanks or more in a row.

Allowed are lines that begin with @param or another tag, and lines indented behind the comment's margin by two blanks or more: these are
lists, tables and drawings, whose blanks are content.

usage: check_comments.py [FILE...]     default: every .c, .h, .inc, .cu and .cuh file of the repository; exits 1 and names each offence
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Strings and characters are matched first, so that no comment begins within one.
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)
RUN = re.compile(r"\S {3,}\S")


def prose_lines(comment, margin):
    """(line within the comment, its text) of each line of prose; margin: the column at which the comment begins."""
    for i, line in enumerate(comment.split("\n")):
        if i == 0:
            text = re.sub(r"^(/\*\*?|//) ?", "", line)
        elif re.match(r"\s*\*", line):
            text = re.sub(r"^\s*\*/?( |$)", "", line)
        else:
            text = line[margin + 3:] if not line[:margin + 3].strip() else line.lstrip()
        text = re.sub(r"\s*\*/$", "", text)
        if not re.match(r" {2}|@", text):
            yield i, text


def offences(path):
    """(line, text) of each line of prose with a run of blanks."""
    with open(path, encoding="utf-8") as f:
        source = f.read()
    for m in TOKEN.finditer(source):
        if m.group()[:2] not in ("/*", "//"):
            continue
        margin = m.start() - (source.rfind("\n", 0, m.start()) + 1)
        for i, text in prose_lines(m.group(), margin):
            if RUN.search(text):
                yield source.count("\n", 0, m.start()) + 1 + i, text


def repository_files():
    """Every file that git knows; without git, as in an unpacked archive, every file outside build folders."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
        return [f for f in listed if os.path.exists(os.path.join(ROOT, f))]
    except (OSError, subprocess.CalledProcessError):
        return [os.path.relpath(os.path.join(at, f), ROOT) for at, _, names in os.walk(ROOT)
                if "build" not in os.path.relpath(at, ROOT).split(os.sep) for f in names]


def main():
    files = sys.argv[1:] or [os.path.join(ROOT, f) for f in repository_files() if re.search(r"\.(c|h|inc|cuh?)$", f)]
    if not files:
        sys.exit("no file was found")
    found = [f"{os.path.relpath(path, ROOT)}:{line}: {text}" for path in files for line, text in offences(path)]
    print(f"{len(files)} files, {len(found)} lines of prose in comments with three blanks in a row")
    if found:
        sys.exit("\n".join(found + ["indent lists and drawings by two blanks behind the comment's margin"]))


if __name__ == "__main__":
    main()

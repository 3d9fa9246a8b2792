#!/usr/bin/env python3
"""Refuse two kinds of comments: those whose lists, tables or drawings were merged into sentences, and those with a sentence of more than 35 words.

A merged list shows as a line of prose with three blanks or more in a row, merged paragraphs as a star behind a sentence's end. Lines that begin with
@param or another tag may have such blanks. Lines indented behind the comment's margin by two blanks or more are lists, tables and drawings, whose
blanks are content; they are not sentences either.

usage: check_comments.py [FILE...]     default: every .c, .h, .inc, .cu and .cuh file of the repository; exits 1 and names each offence
"""
import os
import re
import subprocess
import sys

from sentences import WORDS_MAX, long_sentences

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Strings and characters are matched first, so that no comment begins within one.
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)
RUN = re.compile(r"\S {3,}\S")
STAR = re.compile(r"[.:] \*( [A-Z]|$)")


def comment_lines(comment, margin):
    """The text of each line of a comment, without what marks it as one; margin: the column at which the comment begins."""
    for i, line in enumerate(comment.split("\n")):
        if i == 0:
            text = re.sub(r"^(/\*\*?|//) ?", "", line)
        elif re.match(r"\s*\*", line):
            text = re.sub(r"^\s*\*/?( |$)", "", line)
        else:
            text = line[margin + 3:] if not line[:margin + 3].strip() else line.lstrip()
        yield re.sub(r"\s*\*/$", "", text)


def merged_lines(lines):
    """(line within the comment, what is wrong) of each line of prose with a run of blanks, or a margin's star, in it."""
    for i, text in enumerate(lines):
        if re.match(r" {2}|@", text):
            continue
        if RUN.search(text):
            yield i, f"three blanks in a row: {text}"
        if STAR.search(text):
            yield i, f"a star behind a sentence: {text}"


def long_paragraphs(lines):
    """(line within the comment, what is wrong) of each paragraph with a sentence of more than WORDS_MAX words."""
    paragraphs, begins = [], True
    for i, text in enumerate(lines):
        drawn = not text.strip() or text.startswith("  ")
        if not drawn and (begins or re.match(r"@| ?- ", text)):
            paragraphs.append((i, []))
        if not drawn:
            paragraphs[-1][1].append(re.sub(r"^@(param\S* +\S+|\w+)", "", text))
        begins = drawn
    for i, texts in paragraphs:
        for _, what in long_sentences(" ".join(texts), also=r"@\w+ "):
            yield i, what


def offences(path):
    """(line, what is wrong) of each offence of a file."""
    with open(path, encoding="utf-8") as f:
        source = f.read()
    for m in TOKEN.finditer(source):
        if m.group()[:2] not in ("/*", "//"):
            continue
        begin = source.count("\n", 0, m.start()) + 1
        lines = list(comment_lines(m.group(), m.start() - (source.rfind("\n", 0, m.start()) + 1)))
        for i, what in (*merged_lines(lines), *long_paragraphs(lines)):
            yield begin + i, what


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
    found = [f"{os.path.relpath(path, ROOT)}:{line}: {what}" for path in files for line, what in offences(path)]
    print(f"{len(files)} files, {len(found)} comments with a merged list or a sentence of more than {WORDS_MAX} words")
    if found:
        sys.exit("\n".join(found + ["indent lists and drawings by two blanks behind the comment's margin; divide long sentences"]))


if __name__ == "__main__":
    main()

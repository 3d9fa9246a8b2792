#!/usr/bin/env python3
"""Refuse a page with a sentence of more than 35 words.

Paragraphs, headings, items of lists and cells of tables are each a text of their own. Inline code and an address are one word each; a link is its
words. Blocks of code, comments and tags of HTML are no sentences.

usage: check_pages.py [FILE...]     default: every English .md file of the repository; exits 1 and names each offence
"""
import os
import re
import sys

from check_comments import ROOT, repository_files
from sentences import WORDS_MAX, long_sentences

FENCE = re.compile(r"^([ >]*)(`{3,}|~{3,})[^\n]*\n.*?(^[ >]*\2[`~]*[ \t]*$|\Z)", re.S | re.M)
CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
INDENTED = re.compile(r"(?:\A|(?<=\n\n))(?: {4}[^\n]*\n)+")
ALONE = re.compile(r"\s*(\||#+ )")
BEGINS = re.compile(r"^\s*(> ?)*\s*([-*+] |\d+[.)] |\[[^\]]*\]: )")
SUBSTITUTES = [
    (FENCE, ""),
    (INDENTED, ""),
    (re.compile(r"<!--.*?-->", re.S), ""),
    (CODE, "code"),
    (re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"<(https?:[^>]*)>"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^<>]*>"), ""),
]


def prose(page):
    """The page, line by line as it was, without what is no sentence."""
    def instead(match, by):
        text = match.expand(by)
        return text + "\n" * (match.group().count("\n") - text.count("\n"))

    for pattern, by in SUBSTITUTES:
        page = pattern.sub(lambda match, by=by: instead(match, by), page)
    return page


def texts(page):
    """(line, text) of each paragraph, heading, item and cell."""
    begin, lines = 0, []
    for i, line in enumerate(prose(page).split("\n") + [""], 1):
        alone = ALONE.match(line)
        if not line.strip(" >") or alone or BEGINS.match(line):
            yield begin, "\n".join(lines)
            lines = []
        if alone:
            yield from ((i, cell) for cell in re.split(r"(?<!\\)\|", line))
        elif line.strip(" >"):
            begin = begin if lines else i
            lines.append(BEGINS.sub("", line))


def offences(path):
    """(line, what is wrong) of each long sentence of a page."""
    with open(path, encoding="utf-8") as f:
        page = f.read()
    for line, text in texts(page):
        for at, what in long_sentences(text):
            yield line + text.count("\n", 0, at), what


def main():
    files = sys.argv[1:] or [os.path.join(ROOT, f) for f in repository_files() if f.endswith(".md") and not f.endswith(".zh.md")]
    if not files:
        sys.exit("no file was found")
    found = [f"{os.path.relpath(path, ROOT)}:{line}: {what}" for path in files for line, what in offences(path)]
    print(f"{len(files)} pages, {len(found)} sentences of more than {WORDS_MAX} words")
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()

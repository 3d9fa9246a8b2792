#!/usr/bin/env python3
"""scripts/check_pages.py on made-up pages: what it refuses, with the line, and what it takes."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/check_pages.py")
WORDS_35 = "one two three four five six seven " * 5
CODE = "```\n" + WORDS_35 + "eight\n```\n"


class CheckPages(unittest.TestCase):
    def check(self, page):
        """The lines of the script's sentences about a page, and its exit status."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "made_up.md")
            with open(path, "w", encoding="utf-8") as f:
                f.write(page)
            run = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False)
        return [int(line.split(":")[1]) for line in run.stderr.splitlines() if "made_up.md:" in line], run.returncode

    def test_a_sentence_of_35_words_is_taken(self):
        self.assertEqual(self.check(f"# Head\n\n{WORDS_35}.\n"), ([], 0))

    def test_a_longer_sentence_is_refused_where_it_begins(self):
        self.assertEqual(self.check(f"{CODE}\nShort. And\nshort. {WORDS_35}\neight. Short.\n"), ([6], 1))

    def test_sentences_end_at_marks_within_bold_and_brackets(self):
        self.assertEqual(self.check(f"**Short and bold.** {WORDS_35}. (Short.) {WORDS_35}\n"), ([], 0))

    def test_items_cells_headings_and_paragraphs_are_texts_of_their_own(self):
        self.assertEqual(self.check(f"- {WORDS_35}\n- {WORDS_35}\n  1. short\n\n# {WORDS_35}\n{WORDS_35}\n\n> {WORDS_35}\n"), ([], 0))
        self.assertEqual(self.check(f"| a | b | c |\n|---|---|---|\n| `x|y` | {WORDS_35} | {WORDS_35} eight |\n"), ([3], 1))

    def test_an_item_goes_on_in_the_next_line(self):
        self.assertEqual(self.check(f"- short\n- {WORDS_35}\n  eight\n"), ([2], 1))

    def test_code_addresses_and_comments_are_no_words(self):
        self.assertEqual(self.check(f"{CODE}\n<!-- {WORDS_35} eight -->\n`{WORDS_35}` `` a`b `` [one two](https://a.b/{'c/' * 40})\n"), ([], 0))
        self.assertEqual(self.check(f"    {WORDS_35} eight\n"), ([], 0))

    def test_a_number_within_a_sentence_does_not_end_it(self):
        self.assertEqual(self.check(f"It is in f32. {WORDS_35} 1.5\n"), ([1], 1))

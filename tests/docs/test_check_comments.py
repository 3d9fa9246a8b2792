#!/usr/bin/env python3
"""scripts/check_comments.py on made-up files: what it refuses, with the line, and what it takes."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/check_comments.py")
WORDS_35 = "one two three four five six seven " * 5
DRAWN = "\n".join([" *   a list   of things, which no sentence is: " + WORDS_35, " *"])


class CheckComments(unittest.TestCase):
    def check(self, source):
        """The lines of the script's sentences about a file, and its exit status."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "made_up.c")
            with open(path, "w", encoding="utf-8") as f:
                f.write(source)
            run = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True, check=False)
        return [int(line.split(":")[1]) for line in run.stderr.splitlines() if "made_up.c:" in line], run.returncode

    def test_a_sentence_of_35_words_is_taken(self):
        self.assertEqual(self.check(f"/* {WORDS_35}. */\n"), ([], 0))

    def test_a_longer_sentence_is_refused(self):
        self.assertEqual(self.check(f"int x;\n/* Short. {WORDS_35} eight. */\n"), ([2], 1))

    def test_a_sentence_over_several_lines_is_refused(self):
        self.assertEqual(self.check(f"/*\n * Head.\n *\n * {WORDS_35}\n * and more.\n */\n"), ([4], 1))

    def test_sentences_end_at_paragraphs_tags_and_items(self):
        self.assertEqual(self.check(f"/**\n * {WORDS_35}\n *\n * next\n * @param a  {WORDS_35}\n * @return b\n *  - {WORDS_35}\n *  - c\n */\n"), ([], 0))

    def test_lists_and_strings_are_no_sentences(self):
        self.assertEqual(self.check(f'/*\n * A list.\n{DRAWN}\n */\nchar *s = "/* {WORDS_35} eight */";\n'), ([], 0))

    def test_a_merged_list_is_refused(self):
        self.assertEqual(self.check("/* one     the first two    the second */\n"), ([1], 1))

    def test_merged_paragraphs_are_refused(self):
        self.assertEqual(self.check("/*\n * One paragraph. * Another; of 2 * x it says nothing.\n */\n"), ([2], 1))

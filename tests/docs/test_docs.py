"""What the documents say can be checked: functions stand in the files named beside them, files that are linked to exist, and marked commands run.

`name` ([path](../path))   in docs/tour.md: the file defines the function
<!-- tested --> before a fence: each line that begins with "tandem" is run from the repository's root, and exits 0"""
import glob
import os
import re
import shlex
import subprocess
import unittest

TANDEM = os.environ["TD_TANDEM"]
SOURCE = os.environ["TD_SOURCE_DIR"]
DOCUMENTS = [SOURCE + "/README.md", *sorted(glob.glob(SOURCE + "/docs/*.md"))]


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def defines(text, name):
    """A line that begins a definition: a type, the name, and no semicolon where the parameters end."""
    for m in re.finditer(r"^[a-z][^\n;=]*\b%s\(" % re.escape(name), text, re.M):
        rest = text[m.end():]
        end = re.search(r"[;{]", rest)
        if end and end[0] == "{":
            return True
    return False


class Documents(unittest.TestCase):
    def test_tour_names_functions_where_they_are(self):
        named = re.findall(r"`(\w+)`\s+\(\[([^\]]+)\]\(\.\./([^)]+)\)\)", read(SOURCE + "/docs/tour.md"))
        self.assertGreater(len(named), 40)
        for name, shown, path in named:
            self.assertEqual(shown, path)
            self.assertTrue(defines(read(os.path.join(SOURCE, path)), name), "%s does not define %s" % (path, name))

    def test_the_check_can_fail(self):
        text = "static int here(int x) {\n    return there(x);\n}\nint declared(void);\n"
        self.assertEqual([defines(text, name) for name in ("here", "there", "declared", "ere")], [True, False, False, False])

    def test_links_lead_somewhere(self):
        """Links within the repository: the file is there, and with a mark, its heading."""
        for document in DOCUMENTS:
            for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", re.sub(r"```.*?```", "", read(document), flags=re.S)):
                path, _, mark = target.partition("#")
                path = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
                self.assertTrue(os.path.exists(path), "%s: %s" % (os.path.relpath(document, SOURCE), target))
                if mark and path.endswith(".md"):
                    marks = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", h)).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", read(path), re.M)]
                    self.assertIn(mark, marks, "%s: %s" % (os.path.relpath(document, SOURCE), target))

    def test_marked_commands_run(self):
        n = 0
        for document in DOCUMENTS:
            for fence in re.findall(r"<!-- tested -->\n```\w*\n(.*?)```", read(document), re.S):
                for line in fence.splitlines():
                    if not line.startswith("tandem "):
                        continue
                    n += 1
                    p = subprocess.run([TANDEM, *shlex.split(line, comments=True)[1:]], capture_output=True, text=True, timeout=240, cwd=SOURCE)
                    self.assertEqual(p.returncode, 0, "%s: %s\n%s" % (os.path.relpath(document, SOURCE), line, p.stderr))
        self.assertGreater(n, 2)

    def test_servers_commands_have_flags_that_exist(self):
        """Every "tandem launch_server ..." of a fence, with --check: the model need not be there."""
        n = 0
        for document in DOCUMENTS:
            for fence in re.findall(r"```\w*\n(.*?)```", read(document), re.S):
                for line in fence.replace("\\\n", " ").splitlines():
                    m = re.match(r"(?:build/\w+/cli/)?tandem launch_server( .*)", line.strip())
                    if not m or "..." in line or "…" in line:
                        continue
                    n += 1
                    p = subprocess.run([TANDEM, "launch_server", *shlex.split(m[1], comments=True), "--check"], capture_output=True, text=True, timeout=60, cwd=SOURCE)
                    self.assertEqual(p.returncode, 0, "%s: %s\n%s" % (os.path.relpath(document, SOURCE), line, p.stderr))
        self.assertGreater(n, 2)


if __name__ == "__main__":
    unittest.main()

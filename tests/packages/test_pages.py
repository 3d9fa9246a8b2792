"""Man pages and completions are made of the tables of flags and are complete. mandoc and groff read the pages without a complaint; completions work
in the three shells."""
import json
import os
import re
import shutil
import sys
import tempfile
import unittest

from package_tools import run
from program import SOURCE, TANDEM


def needs(program):
    return unittest.skipUnless(shutil.which(program), f"there is no {program} (scripts/deps.sh test installs it)")


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        os.environ["SOURCE_DATE_EPOCH"] = "1700000000"
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.out = cls.folder.name
        run(sys.executable, f"{SOURCE}/packaging/make_pages.py", "--out", cls.out, "--", TANDEM)
        cls.commands = [c["name"] for c in json.loads(run(TANDEM, "--help-json").stdout)["commands"]]
        cls.tables = {name: json.loads(run(TANDEM, name, "--help-json").stdout) for name in cls.commands}

    def pages(self):
        return sorted(os.path.join(self.out, "man1", name) for name in os.listdir(f"{self.out}/man1"))

    def test_tables_are_those_of_help(self):
        for name in self.commands:
            lines = re.findall(r"^  (-.*)$", run(TANDEM, name, "--help-all").stdout, re.MULTILINE)
            shown = [re.findall(r"(?<![a-z])--?[a-z0-9-]+", re.sub(r" [A-Z].*$", "", line)) for line in lines]
            self.assertEqual([f["names"] for f in self.tables[name]["flags"]] + [["--help", "-h"]], shown)

    def test_every_flag_has_its_place(self):
        self.assertEqual(len(self.pages()), len(self.commands) + 1)
        for name in self.commands:
            with open(f"{self.out}/man1/tandem-{name}.1") as f:
                text = f.read().replace("\\-", "-")
            for flag in self.tables[name]["flags"]:
                self.assertIn(f".TP\n\\fB{flag['names'][0]}\\fR", text)

    @needs("mandoc")
    def test_mandoc(self):
        for page in self.pages():
            p = run("mandoc", "-T", "lint", "-W", "warning", page, check=False)
            self.assertEqual((p.returncode, p.stdout), (0, ""), page)

    @needs("groff")
    def test_groff(self):
        for page in self.pages():
            p = run("groff", "-man", "-Tutf8", "-ww", "-z", page, check=False)
            self.assertEqual((p.returncode, p.stderr), (0, ""), page)

    @needs("mandoc")
    def test_text(self):
        text = run("mandoc", "-T", "utf8", f"{self.out}/man1/tandem-launch_server.1").stdout
        text = re.sub(r"\s+", " ", re.sub(r".\x08", "", text))
        self.assertRegex(text, r"--port PORT 0 takes a free one\.")
        self.assertRegex(text, r"Default: 30000\.")

    def test_same_again(self):
        with tempfile.TemporaryDirectory() as again:
            run(sys.executable, f"{SOURCE}/packaging/make_pages.py", "--out", again, "--", TANDEM)
            self.assertEqual(run("diff", "-r", self.out, again).stdout, "")

    def bash(self, line):
        script = (f"source {self.out}/completion.bash; COMP_WORDS=({line}\"$1\"); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _tandem; "
                  "printf '%s\\n' \"${COMPREPLY[@]}\"")
        def complete(current):
            return [w for w in run("bash", "-c", script, "bash", current).stdout.split("\n") if w]
        return complete

    def test_bash(self):
        self.assertEqual(self.bash("tandem ")("lau"), ["launch_server"])
        self.assertEqual(sorted(self.bash("tandem ")("")), sorted([*self.commands, "--help", "--version"]))
        self.assertEqual(self.bash("tandem launch_server ")("--por"), ["--port"])
        self.assertEqual(self.bash("tandem launch_server --log-level ")(""), ["debug", "info", "warning", "error"])
        self.assertEqual(self.bash("tandem launch_server --model-path ")("/et"), ["/etc"])
        self.assertEqual(self.bash("tandem launch_server --port ")(""), [])
        for name in self.commands:
            offered = self.bash(f"tandem {name} ")("--")
            self.assertEqual(sorted(offered), sorted([n for f in self.tables[name]["flags"] if f["supported"] for n in f["names"] if n.startswith("--")] + ["--help"]))

    @needs("fish")
    def test_fish(self):
        def complete(line):
            out = run("fish", "--no-config", "-c", f"source {self.out}/completion.fish; complete -C '{line}'").stdout
            return [w.split("\t")[0] for w in out.split("\n") if w]
        self.assertEqual(complete("tandem lau"), ["launch_server"])
        self.assertEqual(complete("tandem launch_server --por"), ["--port"])
        self.assertEqual(sorted(complete("tandem launch_server --log-level ")), ["debug", "error", "info", "warning"])
        self.assertNotIn("--port", complete("tandem quantize --"))

    @needs("zsh")
    def test_zsh(self):
        """A zsh behind a terminal of its own, with what Tab lists. It says itself when the list is shown: what is typed before that would take its place."""
        driver = f"""
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PS1=READY; fpath=({self.out}/zsh $fpath); autoload -U compinit; compinit -u -D; setopt no_list_beep; LISTMAX=10000; zstyle ":completion:*" list-prompt ""; tandem() {{ true }};
complete-and-tell() {{ zle expand-or-complete; zle -R; print -n "LIST""ED" }}; zle -N complete-and-tell; bindkey "^I" complete-and-tell; echo "GO"'
zpty -r -m z out '*GO*READY*'
zpty -w -n z "$1"$'\\t'
zpty -r -m z listed '*LISTED*'
zpty -w z '#END'
zpty -r -m z out '*END*'
print -r -- "$listed$out"
"""
        os.makedirs(f"{self.out}/zsh", exist_ok=True)
        shutil.copy(f"{self.out}/completion.zsh", f"{self.out}/zsh/_tandem")
        self.addCleanup(shutil.rmtree, f"{self.out}/zsh")

        def complete(line):
            return run("zsh", "-f", "-c", driver, "zsh", line, env={**os.environ, "TERM": "dumb"}).stdout
        self.assertIn("launch_server", complete("tandem lau"))
        self.assertIn("--port ", complete("tandem launch_server --por"))
        text = complete("tandem launch_server --log-level ")
        for level in ("debug", "info", "warning", "error"):
            self.assertIn(level, text)

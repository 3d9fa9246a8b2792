"""Promela models that stand beside the code: spin visits every state of one without an error, and finds each fault that can be seeded in it.

A test of a model says its forms: lists of macros. CTest gives TD_SPIN, TD_CC and TD_SOURCE_DIR.
"""
import os
import re
import subprocess
import sys
import tempfile


class Model:
    def __init__(self, *path):
        self.path = os.path.join(os.environ["TD_SOURCE_DIR"], *path)

    def verify(self, *macros, optimise="-O0"):
        """pan's report on the model with these macros."""
        with tempfile.TemporaryDirectory(dir=".") as folder:
            def run(*command):
                p = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if p.returncode:
                    sys.exit(f"{' '.join(command)}: exit status {p.returncode}\n{p.stdout}")
                return p.stdout

            run(os.environ["TD_SPIN"], *(f"-D{m}" for m in macros), "-a", self.path)
            run(os.environ["TD_CC"], optimise, "-w", "-DSAFETY", "-o", "pan", "pan.c")
            return run("./pan", "-m100000", "-w20")

    def check(self, *macros, every_statement=True):
        """No error in any of many states, and every statement reached."""
        report, form = self.verify(*macros, optimise="-O1"), ", ".join(macros)
        complete = "Search not completed" not in report and "depth too small" not in report
        states = re.search(r"(\d+) states, stored", report)
        if "errors: 0" not in report or not complete or int(states[1]) < 100000:
            sys.exit(f"{form}:\n{report}")
        print(f"{form}: {states[1]} states, no error")
        if every_statement and re.findall(r"\((\d+) of \d+ states\)", report) != ["0", "0"]:
            sys.exit(f"a statement of the model is never reached:\n{report}")

    def check_faults(self, *macros, but, least):
        """Each fault of the model is found, except those whose names begin with `but`: at least `least` of them."""
        with open(self.path) as f:
            faults = sorted(set(re.findall(r"\bFAULT_[A-Z_]*[A-Z]\b", f.read())))
        own, form = [fault for fault in faults if not fault.startswith(but)], ", ".join(macros)
        if len(own) < least:
            sys.exit(f"only {len(own)} faults of {form} in {self.path}")
        for fault in own:
            self.check_fault(*macros, fault)

    def check_fault(self, *macros):
        """The fault among the macros is found."""
        report, form = self.verify(*macros), ", ".join(macros)
        found = re.search(r"pan:1: (assertion violated|invalid end state)", report)
        if not found:
            sys.exit(f"{form} is not found:\n{report}")
        print(f"{form}: {found[1]}")

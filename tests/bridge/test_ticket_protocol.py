"""The model bridge/ticket_protocol.pml, in both forms of hand-over. spin visits every state of it without an error, and finds each fault that can be
seeded in it.

usage: test_ticket_protocol.py model|faults     (TD_SPIN, TD_CC, TD_SOURCE_DIR from CTest)
"""
import os
import re
import subprocess
import sys
import tempfile

MODEL = os.path.join(os.environ["TD_SOURCE_DIR"], "bridge", "ticket_protocol.pml")


def verify(*macros, optimise="-O0"):
    """pan's report on the model with these macros."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        def run(*command):
            p = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if p.returncode:
                sys.exit(f"{' '.join(command)}: exit status {p.returncode}\n{p.stdout}")
            return p.stdout

        run(os.environ["TD_SPIN"], *(f"-D{m}" for m in macros), "-a", MODEL)
        run(os.environ["TD_CC"], optimise, "-w", "-DSAFETY", "-o", "pan", "pan.c")
        return run("./pan", "-m100000", "-w20")


FORMS = {"HOST_CALL": "FAULT_BELL_", "DOORBELL": "FAULT_CALL_"}  # and the faults that it cannot have


def check_model():
    for form in FORMS:
        for deferred in (0, 1):
            report = verify(f"FORM={form}", f"DEFER={deferred}", optimise="-O1")
            complete = "Search not completed" not in report and "depth too small" not in report
            states = re.search(r"(\d+) states, stored", report)
            if "errors: 0" not in report or not complete or int(states[1]) < 100000:
                sys.exit(f"{form}, DEFER={deferred}:\n{report}")
            print(f"{form}, DEFER={deferred}: {states[1]} states, no error")
            if deferred and re.findall(r"\((\d+) of \d+ states\)", report) != ["0", "0"]:
                sys.exit(f"a statement of the model is never reached:\n{report}")


def check_faults():
    with open(MODEL) as f:
        faults = sorted(set(re.findall(r"\bFAULT_[A-Z_]*[A-Z]\b", f.read())))
    for form, others in FORMS.items():
        own = [fault for fault in faults if not fault.startswith(others)]
        if len(own) < 15:
            sys.exit(f"only {len(own)} faults of {form} in {MODEL}")
        for fault in own:
            report = verify(f"FORM={form}", "DEFER=1", fault)
            found = re.search(r"pan:1: (assertion violated|invalid end state)", report)
            if not found:
                sys.exit(f"{form}, {fault} is not found:\n{report}")
            print(f"{form}, {fault}: {found[1]}")


{"model": check_model, "faults": check_faults}[sys.argv[1]]()

#!/usr/bin/env python3
"""The report of what the Ascend backend gives the vendor's operations, argument by argument, and which source says that it may.

usage: ascend_calls.py BUILD            write tests/standins/ascend/calls.md
       ascend_calls.py BUILD --check    compare it, and exit 1 if it differs

BUILD is a build with its tests. Its program tests/model/ascend_calls makes every call for the golden models and for DeepSeek-R1's sizes, on the
stand-in, which checks each of them: an operation without facts, or an argument that the table of facts does not have, ends it, and so does a value,
a type or a shape that 910B does not take. Here each argument of the table is put beside what was given.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
REPORT = ROOT / "tests/standins/ascend/calls.md"
ROW = re.compile(r'FACT\((\w+), "(\w+)", (\w+), (\w+), ([^"]*), "([^"]*)", "([^"]+)", "([^"]+)"\)')
SHOWN = 4  # values or types of an argument; of more, the least and the largest
HEAD = """# What is given to each argument

`scripts/ascend_calls.py` makes this page, and the test `test_ascend_calls` compares it. The rows are the table of facts
([op_facts.inc](op_facts.inc)). *Given* is what the backend gives for the golden models and for DeepSeek-R1's sizes, fused and not, in
every bucket of a step. R1 is on 2 cards, on 8 with 4-bit codes, and on 16 with int8. *May be* is what 910B takes; nothing behind
required or optional: anything. The stand-in has checked each call: types, values and nulls by these rows, shapes by the rules of each
operation, as in [standin_op_matmul.c](standin_op_matmul.c).

"""


def facts():
    rows = {}
    for line in (ROOT / "tests/standins/ascend/op_facts.inc").read_text().splitlines():
        if line.startswith("FACT("):
            op, *rest = ROW.fullmatch(line).groups()
            rows.setdefault(op, []).append(rest)
    return rows


def calls(build):
    """{operation: [{argument: what was given}]}"""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "calls")
        subprocess.run([f"{build}/tests/model/ascend_calls"], env={**os.environ, "TD_STANDIN_CALLS": str(path)}, check=True)
        lines = path.read_text().splitlines()
    for line in lines:
        op, *given = line.split(" ")
        found.setdefault(op, []).append(dict(one.split("=", 1) for one in given))
    return found


def of_tensor(values):
    types = sorted({v.split("[")[0].replace("~", "") for v in values})
    shapes = {v.split("[")[1] for v in values if "[" in v}
    gaps = ", some with gaps" if any("~" in v for v in values) else ""
    return ", ".join(types) + (f"; {len(shapes)} shape{'s' * (len(shapes) > 1)}{gaps}" if shapes else "")


def of_numbers(values):
    numbers = sorted(values, key=float)
    return ", ".join(numbers) if len(numbers) <= SHOWN else f"{numbers[0]} to {numbers[-1]}, {len(numbers)} values"


def given_to(what, values):
    if what in ("INPUT", "OUTPUT", "INPUT_LIST", "OUTPUT_LIST"):
        return of_tensor(values)
    if what in ("REAL", "LONG", "INT", "FLAG"):
        return of_numbers(values)
    texts = sorted(v.replace("_values", " values") for v in values)
    return ", ".join(texts) if len(texts) <= SHOWN else f"{len(texts)} numbers of values"


def may_be(kind, types, values):
    allowed = ", ".join(re.findall(r"D\((\w+)\)", types)) or values.replace("|", ", ")
    return " ".join(x for x in (kind.lower(), allowed) if x)


def main():
    if len(sys.argv) < 2 or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    listed, lines = calls(sys.argv[1]), [HEAD]
    table = facts()
    unknown = sorted(set(listed) - set(table))
    called = [op for op in table if op in listed]
    lines.append(f"{len(called)} of {len(table)} operations are called, in {sum(map(len, listed.values()))} ways. "
                 "The others are for libraries that lack one of these: " + ", ".join(op for op in table if op not in listed) + ".\n")
    for op in called:
        lines.append(f"\n## {op}\n\n{len(listed[op])} ways.\n\n| argument | given | may be | source |\n|---|---|---|---|\n")
        for name, what, kind, types, values, repository, where in table[op]:
            given = {call[name] for call in listed[op] if name in call}
            if len([call for call in listed[op] if name not in call]):
                unknown.append(f"{op} {name}")
            lines.append(f"| {name} | {given_to(what, given)} | {may_be(kind, types, values)} | {repository} {where} |\n")
    if unknown:
        sys.exit("not in the table of facts, or not in the calls: " + ", ".join(unknown))
    text = "".join(lines)
    if sys.argv[2:]:
        same = REPORT.exists() and REPORT.read_text() == text
        sys.exit(0 if same else f"{REPORT.relative_to(ROOT)} is not what the calls give: scripts/ascend_calls.py makes it anew")
    REPORT.write_text(text)


if __name__ == "__main__":
    main()

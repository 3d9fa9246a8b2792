"""The table of facts about the vendor's operations has a row for every argument of every operation of the backend, in its order, each with its source."""
import os
import re
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["TD_SOURCE_DIR"], "scripts"))
import ascend_op_facts  # noqa: E402

ROW = re.compile(r'FACT\((\w+), "(\w+)", (\w+), (REQUIRED|OPTIONAL|DYNAMIC|ABSENT), ([^"]*), "([^"]*)", "([\w./@-]+)", "([^"]+)"\)')


class Facts(unittest.TestCase):
    def test_every_argument(self):
        rows = {}
        for line in ascend_op_facts.TABLE.read_text().splitlines():
            if line.startswith("FACT("):
                op, *rest = ROW.fullmatch(line).groups()
                rows.setdefault(op, []).append(rest)
        arguments, _ = ascend_op_facts.prototypes()
        self.assertEqual(set(rows), set(arguments), "operations")
        for op, list_of in arguments.items():
            self.assertEqual([what.replace("OUTPUT", "INPUT") for _, what, *_ in rows[op]], [what for what, _ in list_of], op)
            self.assertEqual(len({name for name, *_ in rows[op]}), len(rows[op]), op)
            for name, what, kind, types, values, repository, where in rows[op]:
                self.assertRegex(where, r":\d+$", f"{op}: {name} has no line")
                self.assertTrue(what in ("FLAG", "REAL", "LONG", "INT") or not values or not types.strip("0"), f"{op}: {name}")
        print(f"{len(rows)} operations, {sum(map(len, rows.values()))} arguments")

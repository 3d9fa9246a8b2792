"""bench/amx_targets.py, run over programs that print made-up rows: which figures it passes, which it fails, and what it does without AMX."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

from program import SOURCE

FAKE = """#!{python}
import json, sys
suite, arguments = sys.argv[2], sys.argv[3:]
wanted = arguments[arguments.index("--filter") + 1] if "--filter" in arguments else ""
for row in json.load(open({rows!r}, encoding="ascii")):
    if row["bench"] == suite and (wanted in row["shape"] or suite == "kernels" and wanted in row["kernel"]):
        print(json.dumps(row))
"""


def row(bench, shape, m, kernel, int8_fraction, time_us=100.0, tier="amx"):
    return {"bench": bench, "shape": shape, "m": m, "threads": 2, "kernel": kernel, "time_us": time_us, "gbps": 10.0, "gops": 100.0, "bound": "int8",
            "fraction": 0.5, "int8_fraction": int8_fraction, "tier": tier}


def good_rows():
    return [row("roofline", "registers", 0, "int8", 1),
            row("kernels", "v3 down 7168x2048", 128, "int4c_amx_32x32", 0.53), row("kernels", "v3 down 7168x2048", 64, "int4c_amx_32x32", 0.2),
            row("kernels", "v3 down 7168x2048", 16, "int4c_amx_32x32", 0.1, 90.0), row("kernels", "v3 down 7168x2048", 16, "int4c_avx512vnni_14x32", 0.1, 100.0),
            row("kernels", "v3 down 7168x2048", 512, "int4c_avx512vnni_14x32", 0.1),
            row("kernels", "v2-lite o 2048x2048", 256, "w8a8", 0.41), row("kernels", "v3 q_b 24576x1536", 1024, "w8a8", 0.45),
            row("experts", "deepseek-v3 7168x2048 top 8 of 48", 2048, "int4c_amx_32x32", 0.42), row("experts", "deepseek-v3 7168x2048 top 8 of 48", 512, "int4c_amx_32x32", 0.1),
            row("experts", "deepseek-v2-lite 2048x1408 top 6", 2048, "int4c_amx_32x32", 0.40),
            row("prefill", "1 prompts of 2048 tokens", 2048, "int4c_amx_32x32", 0.3, 2e6)]


class AmxTargets(unittest.TestCase):
    def judge(self, rows, base=None):
        with tempfile.TemporaryDirectory() as folder:
            arguments = []
            for flag, some in (("--build", rows), ("--base", base)):
                if some is None:
                    continue
                program = os.path.join(folder, flag[2:], "cli/tandem")
                os.makedirs(os.path.dirname(program))
                with open(program + ".json", "w", encoding="ascii") as f:
                    json.dump(some, f)
                with open(program, "w", encoding="ascii") as f:
                    f.write(FAKE.format(python=sys.executable, rows=program + ".json"))
                os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
                arguments += [flag, os.path.join(folder, flag[2:])]
            run = subprocess.run([sys.executable, os.path.join(SOURCE, "bench/amx_targets.py"), "--pairs", "1", *arguments], capture_output=True, text=True, timeout=60)
            self.assertEqual(run.stderr, "")
            return run.returncode, run.stdout

    def test_all_reached(self):
        base = [dict(r, time_us=2.5 * r["time_us"]) for r in good_rows()]
        code, said = self.judge(good_rows(), base)
        self.assertEqual(code, 0, said)
        self.assertIn("all reached", said)
        self.assertIn("1024 tokens/s; 2.50 x the base (2.50 to 2.50)", said)
        self.assertNotIn("FAIL", said)

    def test_each_target_can_be_missed(self):
        def with_row(i, **change):
            rows = good_rows()
            rows[i].update(change)
            return rows

        base = [dict(r, time_us=2.5 * r["time_us"]) for r in good_rows()]
        for rows, name in ((with_row(1, int8_fraction=0.51), "int4c_amx_32x32, v3 down 7168x2048, 128 rows"), (with_row(3, time_us=110.0), "speed beside"),
                           (with_row(6, int8_fraction=0.39), "w8a8, v2-lite o"), (with_row(10, int8_fraction=0.39), "deepseek-v2-lite"),
                           (with_row(11, time_us=2.6e6), "1 prompts of 2048")):
            code, said = self.judge(rows, base)
            self.assertEqual(code, 1, said)
            missed = [line for line in said.splitlines() if line.startswith("FAIL")]
            self.assertEqual(len(missed), 1, said)
            self.assertIn(name, missed[0])

    def test_what_was_not_measured_is_missed(self):
        code, said = self.judge(good_rows())
        self.assertEqual(code, 1)
        self.assertIn("not measured  of 2.00", said)
        self.assertIn("give --base", said)
        code, said = self.judge([r for r in good_rows() if r["bench"] != "experts"], good_rows())
        self.assertEqual(code, 1)
        self.assertIn("no such row was printed", said)

    def test_without_amx_nothing_is_judged(self):
        code, said = self.judge([row("roofline", "registers", 0, "int8", 1, tier="avx512vnni")])
        self.assertEqual((code, said), (77, "nothing to judge: the best kernels that run here are avx512vnni's, not AMX's\n"))

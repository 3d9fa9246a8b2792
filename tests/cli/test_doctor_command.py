"""`tandem doctor`: what it prints and writes, its exit status, and a device whose calls fail. test_doctor tests what its checks find."""
import json
import os
import tempfile
import unittest

from program import tandem


def doctor(*args, **env):
    return tandem("doctor", *args, env={**os.environ, **env})


class Doctor(unittest.TestCase):
    def report(self, *args, **env):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            p = doctor(*args, "--json", path, **env)
            with open(path, encoding="utf-8") as f:
                return p, json.load(f)

    def test_apart(self):
        p, r = self.report("--device", "apart")
        self.assertEqual((p.returncode, p.stderr, r["passed"], r["device"]), (0, "", True, "apart"), p.stdout + p.stderr)
        self.assertEqual({c["outcome"] for c in r["checks"]}, {"ok"})
        parts = {c["part"] for c in r["checks"]}
        self.assertEqual(parts, {"installation", "device", "memory", "link", "stream", "hand-over", "block", "capture", "rows", "cards"})
        # A line for each, and the end.
        lines = p.stdout.splitlines()
        self.assertEqual(len(lines), len(r["checks"]) + 2)
        self.assertRegex(lines[-1], r"^\d+ ok, 0 notes, 0 failed in [\d.]+ s$")
        for c in r["checks"]:
            if c["part"] == "block":
                self.assertLessEqual(c["value"], c["bound"], c)
            if c["part"] in ("link", "hand-over"):
                self.assertGreater(c["value"], 0, c)

    def test_cards(self):
        p, r = self.report("--tp", "1")
        self.assertEqual((p.returncode, r["device"]), (0, "host"), p.stdout)
        self.assertEqual({c["outcome"] for c in r["checks"] if c["part"] == "cards"}, {"note"})
        p, r = self.report("--tp", "3")
        self.assertEqual({c["outcome"] for c in r["checks"] if c["part"] == "cards"}, {"ok"}, p.stdout)

    def test_a_failing_device(self):
        p, r = self.report("--device", "apart", TD_CHAOS_FAIL_DEVICE="1,1000000")
        self.assertEqual((p.returncode, r["passed"]), (1, False), p.stdout)
        self.assertIn("FAILED", p.stdout)
        p, r = self.report("--device", "apart", "--tp", "1", TD_CHAOS_FAIL_DEVICE="40")
        failed = [c for c in r["checks"] if c["outcome"] == "FAILED"]
        self.assertEqual((p.returncode, len(failed)), (1, 1), p.stdout)  # and those behind it pass
        self.assertTrue(failed[0]["found"])
        self.assertTrue(failed[0]["advice"])

    def test_usage(self):
        p = doctor("--device", "abacus")
        self.assertEqual((p.returncode, p.stdout), (2, ""))
        self.assertIn("--device abacus", p.stderr)
        p = doctor("--help")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        for word in ("--device", "--json", "--tensor-parallel-size", "--timeout", "exit status"):
            self.assertIn(word, p.stdout)
        p = doctor("--tp", "1", "--json", "/nowhere/report.json")
        self.assertEqual(p.returncode, 1)
        self.assertIn("cannot write the report", p.stderr)

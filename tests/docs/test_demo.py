"""scripts/demo.sh as README.md has it: it builds the program where the next steps expect it, and its story ends by itself."""
import os
import pathlib
import subprocess
import sys
import unittest

from server_process import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
if os.environ["TD_BUILD_DIR"] != str(ROOT / "build/release"):
    print("the demo builds build/release, which is not the build that is tested: skipped")
    sys.exit(77)


class Demo(unittest.TestCase):
    def test_once(self):
        run = subprocess.run([ROOT / "scripts/demo.sh", "--once", "--port", str(free_port())], capture_output=True, text=True, timeout=500)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertTrue(os.access(ROOT / "build/release/cli/tandem", os.X_OK))
        story = run.stdout[run.stdout.index("Tell me a story about a fox and a crow."):].strip()
        self.assertGreater(len(story.split()), 100, run.stdout)
        self.assertRegex(story, r'[.!?]["\']?$')

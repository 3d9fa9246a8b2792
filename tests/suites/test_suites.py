"""The API suites of vLLM, SGLang and llama.cpp, as far as they speak to a URL, against this server with the demo model. They run with
TD_TEST_FULL=1, as scripts/test.sh --full sets it; scripts/suites_venv.sh fetches them. What is not claimed, and why, is in not_claimed.txt."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from select_claimed import read_list

HERE = pathlib.Path(__file__).resolve().parent
VENV = HERE.parents[1] / "build/suites-venv"
OURS = ("launch.py", "empty_names.py", "select_claimed.py", "not_claimed.txt")
if "TD_TEST_FULL" not in os.environ:
    print("not without TD_TEST_FULL=1 (scripts/test.sh --full)")
    sys.exit(77)


class Suites(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        subprocess.run([HERE.parents[1] / "scripts/suites_venv.sh"], check=True)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "suite"

    def run_suite(self, suite, files, empty):
        """pytest over those of the files that are claimed at least in part. @param empty: packages that are names alone."""
        for name in OURS:
            shutil.copy(HERE / name, self.root)
        listed = read_list(suite)
        outside = {name: {file for file in files if file == name or (name.endswith("/") and file.startswith(name))} for name in listed if "::" not in name}
        self.assertEqual([name for name, found in outside.items() if not found], [], "not_claimed.txt: there is no such file or folder")
        env = {**os.environ, "TD_SUITE": suite, "TD_SUITES_EMPTY": empty, "TD_SUITES_MODEL": str(HERE.parents[1] / "models/tale-v3-14m"), "PYTHONPATH": str(self.root)}
        done = subprocess.run([VENV / "bin/python", "-m", "pytest", "-q", "-p", "empty_names", "-p", "select_claimed", "-p", "no:cacheprovider", "--tb=short",
                               "-W", "ignore", *sorted(set(files).difference(*outside.values()))], cwd=self.root, env=env, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-20000:] + done.stderr[-4000:])
        print(f"{suite}: {done.stdout.strip().splitlines()[-1]}")

    def files_of(self, pattern, speaks=""):
        return [str(file.relative_to(self.root)) for file in self.root.glob(pattern) if speaks in file.read_text()]

    def test_llama_cpp(self):
        shutil.copytree(VENV / "llama.cpp", self.root)
        (self.root / "utils.py").rename(self.root / "their_utils.py")
        shutil.copy(HERE / "llama_cpp_utils.py", self.root / "utils.py")
        self.run_suite("llama.cpp", self.files_of("unit/test_*.py"), "")

    def test_vllm(self):
        """Files that start a server; the others look at classes of vLLM's within the process."""
        shutil.copytree(VENV / "vllm/tests/entrypoints", self.root / "tests/entrypoints")
        (self.root / "tests/__init__.py").touch()
        shutil.copy(HERE / "vllm_utils.py", self.root / "tests/utils.py")
        self.run_suite("vllm", self.files_of("tests/entrypoints/**/test_*.py", "RemoteOpenAIServer"), "vllm torch transformers")

    def test_sglang(self):
        kits = self.root / "sglang/test/kits"
        shutil.copytree(VENV / "sglang/sglang/test/kits", kits)
        for folder in (kits, kits.parent, kits.parents[1]):
            (folder / "__init__.py").touch()
        shutil.copy(HERE / "sglang_kits.py", self.root)
        self.run_suite("sglang", ["sglang_kits.py"], "sglang.srt")

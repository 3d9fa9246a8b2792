"""In documents, links lead somewhere, functions stand in the files named beside them, and commands exist and have the flags that are given. Commands
in blocks are run where the reader of their page stands: in a clone of the repository, or in any folder after the package was installed. NOT_RUN lists
those that cannot run here, with the reason; a new command must run or be put there."""
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest

from documents import ROOT, block_commands, broken_links, broken_tables, defines, named_code, named_functions, outline, pages, span_commands, table_rows
from server_process import Server

TANDEM = os.environ["TD_TANDEM"]
BUILD = os.environ["TD_BUILD_DIR"]
DEMO = str(ROOT / "models/tale-v3-14m")

# Pages whose readers have installed the package: what they type as `tandem` runs in an empty folder.
INSTALLED = {"docs/models.md", "docs/models.zh.md", "docs/quickstart.md", "docs/quickstart.zh.md", "docs/plan.md", "docs/plan.zh.md", "docs/scaling.md", "docs/speculative.md", "docs/deployment.md", "docs/deployment.zh.md"}

# Commands of blocks that this test does not run: a part of the command, and why.
NOT_RUN = {
    "git clone": "the tree is here",
    "scripts/demo.sh": "test_demo runs it",
    "scripts/test.sh": "runs this test",
    "scripts/deps.sh": "run by scripts/test.sh",
    "cmake --preset": "run by scripts/test.sh and scripts/test_aarch64.sh",
    "cmake -B build/plain": "a second build of everything; test_kernel_products_scalar runs what it has",
    "ctest --preset": "this test is part of it",
    "ctest --test-dir": "the same",
    "scripts/run_aarch64.sh": "run by scripts/test_aarch64.sh",
    "apt-get install": "needs root; test_numa_guest says when it is missing",
    "build/release/tests/": "tests of their own in CTest",
    "scripts/ascend_standin.sh COMMAND": "a form, not a command; run by the tests labelled ascend-standin",
    "scripts/mca_aarch64.py": "needs llvm-19 and the aarch64 build",
    "--device npu": "needs cards; test_ascend_command takes these from the pages and runs them on the stand-in",
    "--device cuda": "needs a card; test_cuda_command runs these on the stand-in",
    "localhost:8001": "the answer of that server",
    "tandem bench": "timings; the suites run in test_bench",
    "bench/serve/": "minutes to hours",
    "bench/schema_suite.py": "wants packages of PyPI and minutes; test_schema_suite counts the same groups",
    "bench/console_cost.py": "minutes",
    "bench/amx_targets.py": "needs AMX and half an hour; test_amx_targets runs it over made-up rows",
    "scripts/gpu_check.sh": "needs a card; test_gpu_check runs it without one",
    "scripts/package.sh": "test_packages makes what it makes",
    "cmake --install": "test_install does it, into a folder of its own",
    "python -m sglang": "needs SGLang",
    "bench/kv_store_link.py": "needs root; minutes",
    "bench/phases.py": "test_bench gives it a trace",
    "bench/quantize_speed.py": "minutes",
    "bench/make_checkpoint.py": "needs numpy; writes 2 GB",
    "bench_grammar": "timings, in a minute",
    "bench_jump_ahead": "timings",
    "scripts/quantisation_table.py": "hours",
    "scripts/trace_example.py": "needs matplotlib and minutes",
    "--model-path OUT": "what a line that was not run wrote; test_calibration does it",
    "--model-path SRC": "the same as the line before it, for a checkpoint of 2 GB",
    "run_kv_indexer": "test_kv_events runs it, in build/scale-venv",
    "--kv-store mooncake": "test_shared_cache runs it",
    "127.0.0.1:8090": "asks the program of the line before it",
    "tandem eval": "test_eval has a task to ask",
    "hf download": "needs a network",
    "modelscope download": "the same",
    "tandem quantize --model-path /models/DeepSeek-V2-Lite-Chat": "test_calibration quantises the demo model",
    "tandem quantize --model-path /models/DeepSeek-R1": "test_calibration quantises the demo model",
    "--expert-quantization int4-g64 --method gptq": "a minute; test_calibration does it with less text",
}

# What a command says, and what it is here.
HERE = {
    "build/release/cli/tandem": TANDEM,
    "build/release/": f"{BUILD}/",
    "/models/DeepSeek-V2-Lite-Chat-w8a8": DEMO,
    "/models/DeepSeek-V2-Lite-Chat": DEMO,
    "/usr/share/tandem": None, # of the program that setUpClass installs
    "/models/DeepSeek-R1-w8a8": DEMO,
    "tcp://127.0.0.1:5557": "tcp://127.0.0.1:*",
    "tcp://127.0.0.1:5558": "tcp://127.0.0.1:*",
    "--model-path DIR": f"--model-path {DEMO}",
    "--model-path MODEL": f"--model-path {DEMO}",
    "deepseek-v2-lite.json 5 4096 16": "deepseek-v2-lite.json 2 128 8", # fewer layers and rows than what was measured
    "deepseek-v2-lite.json 5 1 16": "deepseek-v2-lite.json 2 1 8",
}
# Put behind a command, so that it does not take minutes or a port that is in use.
BESIDES = {"launch_server": "--port 0 --context-length 1024 --max-total-tokens 4096", "tandem perplexity": "--limit 256", "tandem trace-routing": "--limit 256"}


def is_form(command):
    """Whether it shows a form (FILE|FILE, [flag], three dots), not something to type."""
    return bool(re.search(r"…|\s\[--|\w\|\w", command))


def words(command):
    """A command's words, without variables, after `tandem` where that is the program; a form's brackets are left out."""
    command = re.sub(r"[\[\]|]", " ", command) if is_form(command) else command
    try:
        found = shlex.split(command, comments=True)
    except ValueError:
        found = command.split()
    while found and re.fullmatch(r"[A-Z][A-Z_]+=.*", found[0]):
        found.pop(0)
    if found and found[0] in ("scripts/ascend_standin.sh", "scripts/cuda_emulated.sh"):
        found.pop(0) # it runs what follows
    ends = [i for i, word in enumerate(found) if word in ("&&", "|", ";", ">")]
    return found[:ends[0]] if ends else found


class Documents(unittest.TestCase):
    help_texts = {}

    @classmethod
    def setUpClass(cls):
        """Install the program, in a folder of this test, as a package does."""
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        root = pathlib.Path(cls.folder.name) / "installed"
        subprocess.run(["cmake", "--install", BUILD, "--component", "program"], env={**os.environ, "DESTDIR": str(root)}, check=True, capture_output=True)
        cls.program = next(file for file in root.rglob("bin/tandem"))
        cls.empty = pathlib.Path(cls.folder.name) / "empty"
        cls.empty.mkdir()
        HERE["/usr/share/tandem"] = str(cls.program.parents[1] / "share/tandem")

    def help_of(self, command):
        if command not in self.help_texts:
            self.help_texts[command] = subprocess.run([TANDEM, command, "--help-all"], capture_output=True, text=True, check=True).stdout
        return self.help_texts[command]

    def check_words(self, found):
        """That the program is there, and has the flags."""
        if found[0] in ("tandem", "build/release/cli/tandem"):
            command = found[1] if len(found) > 1 else ""
            if re.match(r"[0-9-]|(help|version)$", command):
                return # what it prints, or a flag of its own
            self.assertIn(f"\n  {command} ", subprocess.run([TANDEM, "--help"], capture_output=True, text=True).stdout)
            known = self.help_of(command)
        elif found[0].startswith(("scripts/", "bench/")):
            file = ROOT / found[0]
            self.assertTrue(file.exists(), found[0])
            known = "".join(f.read_text() for f in file.parent.glob("*.py")) if file.suffix == ".py" else file.read_text() if file.is_file() else ""
        else:
            return
        for word in found[1:]:
            if re.fullmatch(r"--[a-z][a-z0-9-]*(=.*)?", word):
                self.assertTrue(word.split("=")[0] in known, f"{word}: {found[0]} has no such flag")

    def test_links(self):
        wrong = [f"{page.relative_to(ROOT)}: {link}" for page in pages() for link in broken_links(page)]
        self.assertEqual(wrong, [])

    def test_tables(self):
        wrong = [f"{page.relative_to(ROOT)}:{line}: {what}" for page in pages() for line, what in broken_tables(page)]
        self.assertEqual(wrong, [])

    def test_every_command_is_on_its_page(self):
        commands = re.findall(r"^  (\S+) ", subprocess.run([TANDEM, "--help"], capture_output=True, text=True, check=True).stdout, re.M)
        self.assertEqual(re.findall(r"^\| `([a-z][a-z_-]*)` \|", (ROOT / "docs/commands.md").read_text(), re.M), commands)

    def test_the_version_that_is_shown(self):
        """docs/deployment.md and its translation show what `tandem --version` prints; commit and best tier are others on every machine."""
        printed = subprocess.run([TANDEM, "--version"], capture_output=True, text=True, check=True).stdout
        own = r"(?<=^commit: ).*$|(?<=best here: )\w+"
        for page in ("docs/deployment.md", "docs/deployment.zh.md"):
            shown = re.search(r"^tandem \d.*?(?=^```)", (ROOT / page).read_text(), re.S | re.M)[0]
            self.assertEqual(re.sub(own, "", shown, flags=re.M), re.sub(own, "", printed, flags=re.M), page)

    def test_translations_have_what_their_pages_have(self):
        """The same headings, commands and names in code, and in each section as many rows of tables. A translation may have more rows: words that are
        explained on another page."""
        translations = [page for page in pages() if page.name.endswith(".zh.md")]
        self.assertGreater(len(translations), 4)
        for page in translations:
            of = page.with_name(page.name.replace(".zh.md", ".md"))
            with self.subTest(page=str(page.relative_to(ROOT))):
                self.assertEqual(outline(page), outline(of))
                self.assertEqual(named_code(of) - named_code(page), set())
                self.assertEqual([own for own, its in zip(table_rows(page), table_rows(of)) if own < its], [])

    def test_functions_stand_in_the_files_named(self):
        text = "static int here(int x) {\n    return there(x);\n}\nint declared(void);\n"
        self.assertEqual([defines(text, name) for name in ("here", "there", "declared", "ere")], [True, False, False, False])
        named = named_functions(ROOT / "docs/tour.md")
        self.assertGreater(len(named), 40)
        for name, shown, path in named:
            self.assertEqual(shown, path)
            self.assertTrue(defines((ROOT / path).read_text(), name), f"{path} does not define {name}")

    def test_programs_and_flags(self):
        count = 0
        for page in pages():
            for line, command in [*block_commands(page), *span_commands(page)]:
                found = words(command)
                if found and "\n" not in command:
                    with self.subTest(page=str(page.relative_to(ROOT)), line=line, command=command):
                        self.check_words(found)
                        count += 1
        self.assertGreater(count, 50)

    def run_command(self, command, server, folder, installed):
        """One command of a block, as a reader would type it. installed: who has the package and stands in an empty folder, else in the repository."""
        tandem = str(self.program) if installed else TANDEM
        here = {**HERE, "http://127.0.0.1:30000": f"http://127.0.0.1:{server.port}", "OUT": f"{folder}/out"}
        more = [flags for part, flags in BESIDES.items() if part in command]
        command = " ".join([re.sub("|".join(map(re.escape, here)), lambda said: here[said[0]], command), *more])
        if command.startswith(("from ", "import ")):
            args = [sys.executable, "-c", command]
        elif "launch_server" in command and "--check" not in command:
            args = ["bash", "-c", f"exec {command}".replace("exec tandem ", f"exec {tandem} ")]
        else:
            args = ["bash", "-c", f"set -o pipefail; tandem() {{ {tandem} \"$@\"; }}; curl() {{ command curl --fail-with-body -sS \"$@\"; }}; {command}"]
        process = subprocess.Popen(args, cwd=self.empty if installed else ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if "launch_server" in command and "--check" not in command:
            self.assertIn("serving", process.stdout.readline(), command)
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 0, f"{command}\n{out}\n{err}")
        return out

    def test_commands_run(self):
        reasons_used, ran = set(), set()
        with tempfile.TemporaryDirectory() as folder, Server("--context-length", "1024", program=[TANDEM], model=DEMO) as server:
            for page in pages():
                answer = ""
                for line, command in block_commands(page):
                    reason = next((part for part in NOT_RUN if part in command), None)
                    if reason or is_form(command.replace("resp_…", "")):
                        reasons_used.add(reason)
                        continue
                    name = str(page.relative_to(ROOT))
                    installed = name in INSTALLED and command.startswith("tandem ")
                    if (installed, command) in ran:
                        continue
                    ran.add((installed, command))
                    with self.subTest(page=name, line=line, command=command):
                        said = re.search(r'"id":\s*"(resp_[^"]+)"', answer)
                        answer = self.run_command(command.replace("resp_…", said[1] if said else ""), server, folder, installed)
        self.assertEqual(set(NOT_RUN) - reasons_used, set(), "in NOT_RUN, and in no document")
        self.assertGreater(len(ran), 8)
        self.assertGreater(sum(installed for installed, _ in ran), 5)

"""What the documents' commands for Ascend cards do, on two cards of the stand-in: each server starts and answers, `tandem doctor` passes; and the errors
when cards cannot be opened. The commands are the pages' own; paths and ports alone are others."""
import concurrent.futures
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

from documents import block_commands, pages
from program import SOURCE
from server_process import MODEL, TANDEM, Server, environment

STANDIN = os.path.join(os.environ["TD_BUILD_DIR"], "ascend_standin")
NAME = "DeepSeek-R1-W8A8"
KEY = {"Authorization": "Bearer KEY"}  # the documents' key; a server without one does not look


def on_standin(home=STANDIN, **more):
    """What the environment has, see Server."""
    return {"ASCEND_TOOLKIT_HOME": None, "LD_LIBRARY_PATH": None, "ASCEND_HOME_PATH": home, "TD_STANDIN_DELAY_US": "5", **more}


def run(*args, timeout=300, cwd=None, **more):
    return subprocess.run([TANDEM, *args], capture_output=True, text=True, timeout=timeout, cwd=cwd, env=environment(**on_standin(**more)))


def published():
    """The commands with `--device npu` in the blocks of all pages, each once: {command: [its words behind `tandem`]}. A translation has those of its page."""
    found = {}
    for text in sorted({text for page in pages() for _, text in block_commands(page) if "--device npu" in text}):
        words = shlex.split(text.replace("\\\n", " "))
        found.setdefault(words[1], []).append(words[1:])
    return found


def here(words, model):
    """A published command's words, with the model, the package's files and the port that there are here."""
    found = [word.replace("/models/DeepSeek-R1-w8a8", model).replace("/usr/share/tandem/", f"{SOURCE}/") for word in words]
    return [*found, "--port", "0"]


class Ascend(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.model = os.path.join(cls.folder, "model")
        subprocess.run([TANDEM, "quantize", "--model-path", MODEL, "--output", cls.model], check=True, capture_output=True, timeout=120)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def post(self, server, tokens=8):
        body = {"model": NAME, "messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": tokens, "temperature": 0, "ignore_eos": tokens > 8}
        return server.request("POST", "/v1/chat/completions", body, headers=KEY, timeout=60)

    def ask(self, server):
        status, answer, _ = self.post(server)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["message"]["content"]

    def card_figures(self, server):
        """{figure: [of card 0, of card 1]} of /metrics."""
        found = re.findall(r'^tandem:card_(\w+)\{.*card="(\d)"\} (\S+)$', server.request("GET", "/metrics", headers=KEY)[1], re.MULTILINE)
        figures = {}
        for name, card, value in found:
            self.assertEqual(int(card), len(figures.setdefault(name, [])))
            figures[name].append(float(value))
        return figures

    def check_cards(self, before, after):
        self.assertEqual(after["memory_bytes"], [2 << 30] * 2)
        self.assertTrue(all(0 < free < 2 << 30 for free in after["memory_free_bytes"]))
        self.assertEqual(after["failures_total"], [0, 0])
        self.assertEqual(after["temperature_celsius"], [40, 41])
        grown = {name: [b - a for a, b in zip(before[name], after[name])] for name in after}
        self.assertTrue(all(n >= 7 for n in grown["replays_total"]), grown)  # a step for each token but the first
        self.assertTrue(all(n > r for n, r in zip(grown["launches_total"], grown["replays_total"])), grown)

    def serve(self, words):
        """Starts, answers, stops. @return what it said."""
        with Server(command=[TANDEM, *words], env=on_standin(LD_LIBRARY_PATH=os.path.join(STANDIN, "lib64"))) as server:  # where the driver's libdcmi.so is found
            self.assertEqual(server.model, NAME)
            self.assertRegex(self.ask(server), r"[a-z]+ [a-z]+ [a-z]+")
            before = self.card_figures(server)
            self.ask(server)
            self.check_cards(before, self.card_figures(server))
            self.assertEqual(server.stop(), 0)
            said = server.stderr()
        self.assertNotIn("stand-in: ", said)  # no rule was broken, and nothing is left
        return said

    def test_published_servers(self):
        """The quick start's, the launch file's of the two-card deployment, and the published system's command line."""
        commands = published()
        self.assertEqual({name: len(of) for name, of in commands.items()}, {"doctor": 1, "launch_server": 3}, commands)
        for words in commands["launch_server"]:
            with self.subTest(command=" ".join(words)):
                said = self.serve(here(words, self.model))
                self.assertRegex(said, r"12[08] expert and 0 device threads on \d+ cores|12[08] expert threads")
                self.assertIn("hand-over: ", said)
                self.assertNotIn("attention backend", said)

    def test_experts_on_the_cards(self):
        words = ("launch_server --port 0 --device npu --tensor-parallel-size 2 --num-gpu-experts 16 --served-model-name " + NAME + " --model-path ").split()
        said = self.serve([*words, MODEL])
        self.assertIn("loaded device weights: ", said)
        self.assertNotIn("loaded experts: ", said)
        p = run(*words, self.model)
        self.assertEqual(p.returncode, 1)
        self.assertIn("are packed for the CPU", p.stderr)

    def test_doctor(self):
        (words,) = published()["doctor"]
        p = run(*words, "--timeout", "200", timeout=500, cwd=self.folder)
        self.assertEqual((p.returncode, p.stderr.replace("\n", " ").count("stand-in")), (0, 0), p.stdout + p.stderr)
        with open(os.path.join(self.folder, "report.json"), encoding="utf-8") as f:
            r = json.load(f)
        self.assertEqual((r["passed"], r["device"]), (True, "npu"))
        outcomes = {(c["part"], c["what"]): c for c in r["checks"]}
        self.assertEqual(outcomes["installation", "CANN"]["found"], "9.1.0")
        self.assertIn("2 x Ascend910B4", outcomes["device", "opens"]["found"])
        missing = [f"{what}, {rows}" for what in ("router, softmax of the chosen", "top, with sums for log-softmax")
                   for rows in ("1 row", "2 rows", "20 rows", "320 rows")] + ["gqa, bf16 with a window and sinks"]
        self.assertEqual({c["what"]: c["outcome"] for c in r["checks"] if c["part"] != "installation" and c["outcome"] != "ok"}, dict.fromkeys(missing, "note"))

    def test_a_card_that_is_lost(self):
        """Reset under load: who is running is told so by a 503, /health says why, whoever comes later is told as much, and the end is in order."""
        why = "Ascend card 0 is lost (507010): the card was reset or has broken down, and this process has lost it: see npu-smi info, then start again"
        lost = os.path.join(self.folder, "lost")
        flags = ("--device", "npu", "--cpuinfer", "1", "--max-total-tokens", "4096", "--max-running-requests", "4", "--served-model-name", NAME, "--skip-server-warmup")
        with Server(*flags, program=[TANDEM], model=self.model, env=on_standin(TD_STANDIN_LOST=lost)) as server:
            self.assertTrue(self.ask(server))
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                running = [pool.submit(self.post, server, 2000) for _ in range(3)]
                server.wait_metric("sglang:num_running_reqs", 3)
                with open(lost, "w", encoding="utf-8"):
                    pass
                for answer in running:
                    self.refuses(answer.result(), "device_lost", why)
            for _ in range(2):
                self.refuses(self.post(server), "device_lost", why)
                self.refuses(server.request("GET", "/health"), "lost", why)
                self.refuses(server.request("GET", "/health_generate"), "device_lost", why)
            self.assertEqual(server.metric("tandem:failed_requests_total"), 3)  # the others were not taken
            self.assertGreater(server.metric("tandem:card_failures_total"), 0)
            self.assertNotIn("temperature", server.request("GET", "/metrics")[1])  # no library of the driver's is found
            self.assertEqual(server.metric("sglang:num_used_tokens"), 0)
            self.assertEqual(server.stop(), 1)
            said = server.stderr()
        self.assertEqual(said.count(f"error lost: {why}"), 1, said)
        self.assertLessEqual(said.count("with 507010"), 2, "what fails behind it has the same reason")
        self.assertNotIn("trying once more", said)
        self.assertNotIn("stand-in: ", said)

    def refuses(self, answer, code, why):
        """A 503 of that code, or status, with the sentence."""
        status, body, _ = answer
        said = body["error"] if "error" in body else {"code": body["status"], "message": body["message"]}
        self.assertEqual((status, said["code"], said["message"]), (503, code, why))

    def refused(self, *flags, **env):
        few = ("--cpuinfer", "4")  # each thread is measured at the start
        p = run(*here(published()["launch_server"][0], self.model), *few, *flags, **env)
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        return p.stderr.splitlines()[-1]

    def test_a_type_that_an_operation_lacks(self):
        """The first captured step meets it, before the port opens."""
        p = run("launch_server", "--device", "npu", "--model-path", MODEL, "--port", "0", "--cpuinfer", "4", TD_STANDIN_LACKS="aclnnDynamicQuant:BF16")
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        self.assertRegex(p.stderr, "aclnnDynamicQuantGetWorkspaceSize failed on card 0 with 161002: x of type BF16 is not supported; this CANN's operation does not take .*"
                                   ": CANN 8.5, .* tandem doctor --device npu names the blocks that fail")
        self.assertTrue(p.stderr.splitlines()[-1].startswith("tandem launch_server: a step of 1 tokens cannot be captured"), p.stderr)

    def test_refusals(self):
        self.assertIn("there is no Ascend card 1: this process sees 1", self.refused(TD_STANDIN_DEVICES="1"))
        # aclInit is the first call that can fail, a card's context the second.
        for call, status, sentence in (("1", "", "aclInit failed with 507015: aclInit fails, as TD_STANDIN_FAIL wants it; is the driver installed"),
                                       ("1", "207004", "no card answers: is the driver loaded"),
                                       ("2", "207006", "aclrtCreateContext failed on card 0 with 207006: .*; this user may not use the card"),
                                       ("2", "507033", "; other processes may have the card's memory: see npu-smi info; or driver, firmware and operations are of different versions"),
                                       ("2", "507010", "; the card was reset or has broken down, and this process has lost it")):
            with self.subTest(call=call, status=status):
                self.assertRegex(self.refused(TD_STANDIN_FAIL=call, TD_STANDIN_STATUS=status), sentence)
        self.assertRegex(self.refused(TD_STANDIN_SOC="Ascend310P3"), "the card is an Ascend310P3: this backend computes on the generations 910B")
        self.assertRegex(self.refused(TD_STANDIN_CANN="8.0.RC3"), "CANN 8.0.RC3 in .* is too old: 8.1 or later is needed")
        self.assertRegex(self.refused(TD_STANDIN_MEMORY=str(40 << 20)), "device memory: ")
        self.assertRegex(self.refused(TD_STANDIN_MEMORY=str(300 << 20)), "device memory: max-total-tokens 190000 does not fit: .* the largest is [0-9]+$")
        home = os.path.join(self.folder, "no_hccl")
        os.makedirs(os.path.join(home, "lib64"))
        for name in os.listdir(os.path.join(STANDIN, "lib64")):
            if name != "libhccl.so":
                os.symlink(os.path.join(STANDIN, "lib64", name), os.path.join(home, "lib64", name))
        self.assertIn("has no libhccl.so", self.refused(home=home))
        self.assertIn("was found in none of", self.refused(home=os.path.join(self.folder, "nothing"), HOME="/nowhere"))
        p = run("doctor", "--device", "ascend", home=os.path.join(self.folder, "nothing"), HOME="/nowhere")
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stdout, r"FAILED +installation +CANN +CANN's runtime .* was found in none of")

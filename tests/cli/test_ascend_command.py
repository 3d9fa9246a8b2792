"""The reference deployment's command, as it is, on two cards of the Ascend stand-in; `tandem doctor` there; what is told when cards cannot be had."""
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

TANDEM = os.environ["TD_TANDEM"]
STANDIN = os.environ["TD_ASCEND_STANDIN"]
MODEL = os.path.join(os.environ["TD_SOURCE_DIR"], "models", "tale-v3-14m")
NAME = "DeepSeek-R1-W8A8"


def environment(home=STANDIN, **more):
    drop = ("ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH")
    return {**{k: v for k, v in os.environ.items() if k not in drop}, "ASCEND_HOME_PATH": home, "TD_STANDIN_DELAY_US": "5", **more}


def command(folder):
    """As published, but for the port and the folder."""
    return [TANDEM, *("launch_server --host 0.0.0.0 --port 0 --model-path DIR --attention-backend ascend --chunked-prefill-size 8192 "
                      "--tensor-parallel-size 2 --device npu --trust-remote-code --mem-fraction-static 0.92 --disable-radix-cache "
                      "--max-total-tokens 190000 --cpu-weight-path DIR --cpuinfer 128 --subpool-count 4 --num-gpu-experts 0 "
                      "--quantization w8a8_int8 --served-model-name " + NAME + " --enable-defer").replace("DIR", folder).split()]


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("it did not come about")
        time.sleep(0.02)


class Ascend(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.model = os.path.join(cls.folder, "model")
        subprocess.run([TANDEM, "quantize", "--model-path", MODEL, "--output", cls.model], check=True, capture_output=True, timeout=120)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def ask(self, url, tokens=8):
        body = {"model": NAME, "messages": [{"role": "user", "content": "Tell me a story about a fox."}], "max_tokens": tokens, "temperature": 0, "ignore_eos": tokens > 8}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    def card_figures(self, url):
        """{figure: [of card 0, of card 1]} of /metrics."""
        with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
            found = re.findall(r'^tandem:card_(\w+)\{.*card="(\d)"\} (\S+)$', answer.read().decode(), re.MULTILINE)
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
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment(LD_LIBRARY_PATH=os.path.join(STANDIN, "lib64"))) as p:  # where the driver's libdcmi.so is found
            try:
                line = p.stdout.readline()
                port = re.search(r"serving %s at http://[\d.]+:(\d+)" % NAME, line)
                self.assertTrue(port, line or p.stderr.read())
                url = "http://127.0.0.1:" + port.group(1)
                self.assertRegex(self.ask(url), r"[a-z]+ [a-z]+ [a-z]+")
                before = self.card_figures(url)
                self.ask(url)
                self.check_cards(before, self.card_figures(url))
                p.send_signal(signal.SIGTERM)
                said = p.communicate(timeout=60)[1]
            except BaseException:
                p.kill()
                raise
        self.assertEqual(p.returncode, 0, said)
        self.assertNotIn("stand-in: ", said)  # no rule was broken, and nothing is left
        return said

    def test_reference_command(self):
        said = self.serve(command(self.model))
        self.assertRegex(said, r"128 expert and 0 device threads on \d+ cores|128 expert threads")
        self.assertIn("hand-over: ", said)
        self.assertNotIn("attention backend", said)

    def test_experts_on_the_cards(self):
        words = ("launch_server --port 0 --device npu --tensor-parallel-size 2 --num-gpu-experts 16 --served-model-name " + NAME + " --model-path ").split()
        said = self.serve([TANDEM, *words, MODEL])
        self.assertIn("loaded device weights: ", said)
        self.assertNotIn("loaded experts: ", said)
        p = subprocess.run([TANDEM, *words, self.model], capture_output=True, text=True, timeout=60, env=environment())
        self.assertEqual(p.returncode, 1)
        self.assertIn("are packed for the CPU", p.stderr)

    def test_doctor(self):
        report = os.path.join(self.folder, "report.json")
        p = subprocess.run([TANDEM, "doctor", "--device", "ascend", "--json", report, "--timeout", "200"], capture_output=True, text=True, timeout=500,
                           env=environment())
        self.assertEqual((p.returncode, p.stderr.replace("\n", " ").count("stand-in")), (0, 0), p.stdout + p.stderr)
        with open(report, encoding="utf-8") as f:
            r = json.load(f)
        self.assertEqual((r["passed"], r["device"]), (True, "npu"))
        outcomes = {(c["part"], c["what"]): c for c in r["checks"]}
        self.assertEqual(outcomes["installation", "CANN"]["found"], "9.1.0")
        self.assertIn("2 x Ascend910B4", outcomes["device", "opens"]["found"])
        self.assertEqual({c["outcome"] for c in r["checks"] if c["part"] != "installation"}, {"ok"})

    def test_a_card_that_is_lost(self):
        """Reset under load: who is running is told so by a 503, /health says why, whoever comes later is told as much, and the end is in order."""
        why = "Ascend card 0 is lost (507010): the card was reset or has broken down, and this process has lost it: see npu-smi info, then start again"
        lost = os.path.join(self.folder, "lost")
        small = [TANDEM, "launch_server", "--port", "0", "--model-path", self.model, "--device", "npu", "--cpuinfer", "1", "--max-total-tokens", "4096",
                 "--max-running-requests", "4", "--served-model-name", NAME, "--skip-server-warmup"]
        with subprocess.Popen(small, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(TD_STANDIN_LOST=lost)) as p:
            try:
                url = "http://127.0.0.1:" + re.search(r" at http://127\.0\.0\.1:(\d+)", p.stdout.readline())[1]
                self.assertTrue(self.ask(url))
                with concurrent.futures.ThreadPoolExecutor(4) as pool:
                    running = [pool.submit(self.ask, url, 2000) for _ in range(3)]
                    wait_until(lambda: self.metric(url, "sglang:num_running_reqs") == 3)
                    with open(lost, "w", encoding="utf-8"):
                        pass
                    for answer in running:
                        self.refuses(lambda answer=answer: answer.result(timeout=120), "device_lost", why)
                for _ in range(2):
                    self.refuses(lambda: self.ask(url), "device_lost", why)
                    self.refuses(lambda: urllib.request.urlopen(url + "/health", timeout=60), "lost", why)
                    self.refuses(lambda: urllib.request.urlopen(url + "/health_generate", timeout=60), "device_lost", why)
                self.assertEqual(self.metric(url, "tandem:failed_requests_total"), 3)  # the others were not taken
                self.assertGreater(self.metric(url, "tandem:card_failures_total"), 0)
                with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
                    self.assertNotIn(b"temperature", answer.read())  # no library of the driver's is found
                self.assertEqual(self.metric(url, "sglang:num_used_tokens"), 0)
                p.send_signal(signal.SIGTERM)
                said = p.communicate(timeout=60)[1]
            except BaseException:
                p.kill()
                raise
        self.assertEqual(p.returncode, 1, said)
        self.assertEqual(said.count(f"error lost: {why}"), 1, said)
        self.assertLessEqual(said.count("with 507010"), 2, "what fails behind it has the same reason")
        self.assertNotIn("trying once more", said)
        self.assertNotIn("stand-in: ", said)

    def refuses(self, what, code, why):
        """A 503 of that code, or status, with the sentence."""
        with self.assertRaises(urllib.error.HTTPError) as refused:
            what()
        body = json.load(refused.exception)
        said = body["error"] if "error" in body else {"code": body["status"], "message": body["message"]}
        self.assertEqual((refused.exception.code, said["code"], said["message"]), (503, code, why))

    def metric(self, url, name):
        with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
            return float(re.search(rf"^{name}\{{.*\}} (\S+)$", answer.read().decode(), re.MULTILINE)[1])

    def refused(self, *flags, **env):
        p = subprocess.run(command(self.model) + list(flags), capture_output=True, text=True, timeout=60, env=environment(**env))
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        return p.stderr.splitlines()[-1]

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
        self.assertRegex(self.refused(TD_STANDIN_MEMORY=str(8 << 20)), "device memory: ")
        home = os.path.join(self.folder, "no_hccl")
        os.makedirs(os.path.join(home, "lib64"))
        for name in os.listdir(os.path.join(STANDIN, "lib64")):
            if name != "libhccl.so":
                os.symlink(os.path.join(STANDIN, "lib64", name), os.path.join(home, "lib64", name))
        self.assertIn("has no libhccl.so", self.refused(home=home))
        self.assertIn("was found in none of", self.refused(home=os.path.join(self.folder, "nothing"), HOME="/nowhere"))
        p = subprocess.run([TANDEM, "doctor", "--device", "npu"], capture_output=True, text=True, timeout=60,
                           env=environment(home=os.path.join(self.folder, "nothing"), HOME="/nowhere"))
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stdout, r"FAILED +installation +CANN +CANN's runtime .* was found in none of")


if __name__ == "__main__":
    unittest.main()

"""The commands with the device "cuda", on the stand-in for NVIDIA's driver with the kernels on the CPU. An answer of the server, the demo model's
perplexity beside the host's, `tandem doctor`, and the errors when a card cannot be opened."""
import json
import os
import re
import subprocess
import tempfile
import unittest

from program import MODEL, SOURCE, TANDEM
from server_process import Server, environment

TINY = os.path.join(SOURCE, "tests", "data", "golden", "deepseek_v2_lite", "config.json")
EMULATED = os.path.join(SOURCE, "scripts", "cuda_emulated.sh")
NEAR = 0.02  # of the mean negative log-likelihood: what bf16 in attention costs on 63 tokens is a few thousandths
FLAGS = ("--context-length", "256", "--chunked-prefill-size", "64", "--max-running-requests", "2", "--skip-server-warmup")


def serve(*flags, **env):
    return Server(*FLAGS, *flags, program=[EMULATED, TANDEM], model=MODEL, env={"TD_STANDIN_DELAY_US": "5", **env})


def run(*args, emulated=True, **env):
    return subprocess.run([*([EMULATED] if emulated else []), TANDEM, *args], capture_output=True, text=True, timeout=300, env=environment(TD_STANDIN_DELAY_US="5", **env))


def ask(server, body):
    return server.request("POST", "/v1/completions", body, timeout=60)


class Cuda(unittest.TestCase):
    def test_server(self):
        with serve("--device", "auto", "--base-gpu-id", "1") as server:
            text = ask(server, {"model": "tale-v3-14m", "prompt": "Once upon a time there was a", "max_tokens": 6, "temperature": 0})[1]["choices"][0]["text"]
            figures = {name: float(value) for name, value in re.findall(r'^tandem:card_(\w+)\{.*card="0"\} (\S+)$', server.request("GET", "/metrics")[1], re.M)}
            self.assertEqual(server.stop(), 0)
            said = server.stderr()
        self.assertRegex(text, r"[a-z]+ [a-z]+")
        self.assertIn("device auto: cuda (2 NVIDIA cards, 2 of compute capability 8.0 or later)", said)
        self.assertIn("hand-over: ", said)
        self.assertNotIn("stand-in: ", said)  # no rule was broken, and nothing is left
        self.assertEqual((figures["memory_bytes"], figures["failures_total"], figures["temperature_celsius"]), (2 << 30, 0, 51))  # of card 1
        self.assertTrue(0 < figures["memory_free_bytes"] < 2 << 30 and figures["captures_total"] > 0, figures)
        self.assertTrue(figures["launches_total"] > figures["replays_total"] >= 6, figures)  # a step for each token

    def test_a_card_that_is_lost(self):
        """Under load: who is running is told so by a 503, whoever comes later as well, /health says why, and the end is in order."""
        with tempfile.TemporaryDirectory() as folder:
            lost = os.path.join(folder, "lost")
            with serve("--device", "cuda", TD_STANDIN_LOST=lost, TD_STANDIN_STATUS="214") as server:
                self.assertEqual(server.request("GET", "/health")[0], 200)
                self.assertEqual(ask(server, {"prompt": "Once", "max_tokens": 2})[0], 200)
                with open(lost, "w", encoding="utf-8"):
                    pass
                for _ in range(2):
                    status, body, _ = ask(server, {"prompt": "Once upon a time", "max_tokens": 100})
                    self.assertEqual((status, body["error"]["code"]), (503, "device_lost"), body)
                    self.assertIn("CUDA card 0 is lost (CUDA_ERROR_ECC_UNCORRECTABLE, 214): its memory has an error", body["error"]["message"])
                status, body, _ = server.request("GET", "/health")
                self.assertEqual((status, body["status"]), (503, "lost"))
                self.assertIn("nvidia-smi -q -d ECC", body["message"])
                self.assertEqual(server.request("GET", "/health_generate")[0], 503)
                self.assertEqual(server.stop(), 1)
                said = server.stderr()
        self.assertNotIn("stand-in: ", said)  # all was given back
        self.assertNotIn("trying once more", said)
        self.assertEqual(said.count("error lost: CUDA card 0 is lost"), 1, said)

    def test_a_step_that_fails_twice(self):
        """The driver refuses a call, and the next time, too: that step's requests end with an error, the card is not taken for lost, and what comes then is served."""
        with tempfile.TemporaryDirectory() as folder:
            calls = os.path.join(folder, "calls")
            with serve("--device", "cuda", TD_STANDIN_FAIL_CALLS=calls) as server:
                body = {"prompt": "Once upon a time", "max_tokens": 3, "temperature": 0}
                want = ask(server, body)[1]
                for call in ("cuGraphLaunch", "cuMemcpyDtoHAsync"):
                    with open(calls, "w", encoding="utf-8") as f:
                        f.write(call + "\n")
                    status, answer, _ = ask(server, body)
                    self.assertEqual((status, answer["error"]["message"]), (500, "the step failed twice: accelerator runtime failed"))
                    os.remove(calls)
                    self.assertEqual(server.request("GET", "/health")[0], 200)
                    status, answer, _ = ask(server, body)
                    self.assertEqual((status, answer["choices"]), (200, want["choices"]))
                self.assertEqual(server.stop(), 0)
                said = server.stderr()
        self.assertEqual(said.count("trying once more"), 2, said)
        self.assertNotIn("stand-in: ", said)

    def test_perplexity(self):
        """With no expert on the card near the host; with experts that move, as many as a number says or as fit, no other number."""
        figures = {}
        for device, experts in (("host", "0"), ("cuda", "0"), ("cuda", "8"), ("cuda", "auto")):
            p = run("perplexity", "--model-path", MODEL, "--device", device, "--text", os.path.join(MODEL, "valid.txt"), "--window", "64", "--limit", "64",
                    "--json", "--num-gpu-experts", experts)
            self.assertEqual((p.returncode, p.stderr.count("stand-in: ")), (0, 0), p.stderr)
            figures[device, experts] = json.loads(p.stdout)["nll"]
        self.assertLess(abs(figures["host", "0"] - figures["cuda", "0"]), NEAR, figures)
        self.assertEqual({figures["cuda", experts] for experts in ("0", "8", "auto")}, {figures["cuda", "0"]}, figures)
        self.assertNotEqual(figures["host", "0"], figures["cuda", "0"])  # it was the card

    @unittest.skipUnless(os.environ.get("TD_TEST_FULL"), "a minute and more; with TD_TEST_FULL=1")
    def test_doctor(self):
        p = run("doctor", "--device", "cuda", "--timeout", "200", TD_STANDIN_DEVICES="1")
        self.assertEqual((p.returncode, p.stderr.count("stand-in: ")), (0, 0), p.stdout + p.stderr)
        self.assertNotIn("FAILED", p.stdout)
        for part in ("mla", "gqa", "mlp", "router", "head"):
            self.assertRegex(p.stdout, rf"(?m)^ok .*\b{part}\b")

    def test_bench(self):
        p = run("bench", "link", "--device", "cuda", "--base-gpu-id", "1", "--rounds", "1", "--threads", "1", "--json", TD_CUDA_KERNELS="/nowhere")
        self.assertEqual(p.returncode, 0, p.stderr)
        rows = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual([r["kernel"] for r in rows], ["copy"] * 8 + ["host call", "doorbell"])
        self.assertTrue(all(r["time_us"] > 0 and (r["gbps"] > 0) == (r["kernel"] == "copy") for r in rows), rows)
        p = run("bench", "decode", "--device", "cuda", "--model-path", TINY, "--threads", "1", "--rounds", "1", "--filter", "4 streams, context 16")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertRegex(p.stdout, r"bytes to the device and \d+ from it a step; [1-9]\d* launches, of which 1 are replays")
        self.assertIn("there is no CUDA card 7: this process sees 2", run("bench", "link", "--device", "cuda", "--base-gpu-id", "7", "--threads", "1").stderr)

    def refused(self, *flags, **more):
        p = run("launch_server", "--model-path", MODEL, "--device", "cuda", "--port", "0", *flags, **more)
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        return p.stderr.splitlines()[-1]

    def test_refusals(self):
        self.assertIn("there is no CUDA card 2: this process sees 2", self.refused("--tensor-parallel-size", "4"))
        self.assertIn("there is no CUDA card 5: this process sees 2", self.refused("--base-gpu-id", "5"))
        self.assertIn("num-gpu-experts 7: each of 2 cards has equally many of a layer: take a multiple of 2", self.refused("--num-gpu-experts", "7", "--tensor-parallel-size", "2"))
        self.assertIn("bf16 activations only", self.refused("--quantization", "none"))
        self.assertIn("NVRTC, which compiles the kernels for the card, was not found", self.refused(TD_CUDA_KERNELS="", TD_NVRTC="/nowhere", TD_CUDA_CACHE="/nowhere"))
        self.assertRegex(self.refused(TD_STANDIN_MEMORY=str(8 << 20)), r"device memory: the weights take .* of the 0\.01 GiB available may .* use one with [\d.]+ GiB or more")
        self.assertRegex(self.refused("--max-total-tokens", "100000000"), r"device memory: max-total-tokens 100000000 does not fit: .* the largest is [1-9]\d*")

    def test_another_process_has_the_card(self):
        card = {"TD_STANDIN_MEMORY": str(80 << 30)}
        self.assertRegex(self.refused(**card, TD_STANDIN_OTHERS=str((80 << 30) - (8 << 20))), r"device memory: .* \(other processes have 79\.99 GiB of the device\)")
        for status, said in (("2", "another process fills it, nvidia-smi shows which"), ("46", "another process keeps it for itself"),
                             ("214", r"CUDA card 0 is lost \(CUDA_ERROR_ECC_UNCORRECTABLE, 214\): its memory has an error that ECC cannot correct: nvidia-smi -q")):
            self.assertRegex(self.refused(**card, TD_STANDIN_REFUSE_CONTEXT="1", TD_STANDIN_STATUS=status), said)

    def test_no_driver(self):
        nowhere = self.refused(emulated=False, LD_LIBRARY_PATH="")
        self.assertRegex(nowhere, "NVIDIA's driver is not installed|CUDA")

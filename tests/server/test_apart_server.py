"""The server on the test device `apart`, whose memory the host cannot reach: it gives the host's answers, and its memory holds what it must."""
import os
import re
import subprocess
import unittest

from server_process import MODEL, TANDEM, Server

FLAGS = ("--cpuinfer", "1", "--chunked-prefill-size", "512", "--max-running-requests", "4")
APART = (*FLAGS, "--device", "apart")
ASK = [{"prompt": "Once upon a time there was a", "max_tokens": 24, "temperature": 0, "logprobs": 3},
       {"prompt": "The king gave the youngest son a golden key. " * 30, "max_tokens": 16, "temperature": 0, "logprobs": 1},
       {"prompt": ["A girl", "A boy"], "max_tokens": 12, "n": 2, "seed": 5, "temperature": 1, "logprobs": 1},
       {"prompt": "The fox and the crow", "max_tokens": 12, "seed": 6, "temperature": 1, "top_k": 9, "logprobs": 20},
       {"prompt": "Once upon a time there was a king who had", "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 2}]


def start(*flags, **env):
    return Server(*flags, program=[TANDEM], model=MODEL, env=env)


def answers(server):
    """What it says to each question, twice: the second time from the prefix cache."""
    said = []
    for body in ASK + ASK:
        status, answer, _ = server.request("POST", "/v1/completions", body)
        assert status == 200, answer
        said.append([(c["text"], c["logprobs"], c["finish_reason"]) for c in answer["choices"]])
    return said


class Apart(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with start(*FLAGS) as server:
            cls.right = answers(server)

    def test_the_hosts_answers(self):
        """With every number of threads; 0 is given the one that it cannot do without."""
        for threads in ("0", "1", "2"):
            with self.subTest(threads=threads), start(*APART, "--npu-threads", threads) as server:
                self.assertEqual(answers(server), self.right)
                device = server.request("GET", "/get_server_info")[1]["device"]
                self.assertIn("apart, for tests (2 threads, " if threads == "2" else "apart, for tests (1 thread, ", device)

    def test_card_figures(self):
        """Memory, and what a generated token costs in launches: replays of captured steps. Failed calls are counted."""
        figures = ("memory_bytes", "memory_free_bytes", "launches_total", "captures_total", "replays_total", "failures_total")
        with start(*APART, "--disable-radix-cache", TD_APART_MEMORY=str(1 << 30)) as server:
            def ask(n):
                status, _, _ = server.request("POST", "/v1/completions", {"prompt": "Once", "max_tokens": n, "ignore_eos": True, "temperature": 0})
                self.assertEqual(status, 200)
                return [server.metric(f'tandem:card_{name}') for name in figures]
            start_of = ask(4)
            one, more = ask(4), ask(20)
        self.assertEqual(one[0], 1 << 30)
        self.assertTrue(0 < one[1] < 1 << 30, one)
        self.assertGreater(one[3], 0)
        self.assertEqual((one[3], one[5]), (more[3], 0))  # nothing is captured again
        short, long = ([b - a for a, b in zip(x, y)] for x, y in ((start_of, one), (one, more)))
        steps = 20 - 4  # that the longer answer has more
        self.assertEqual((long[4] - short[4]) % steps, 0, (short, long))
        self.assertGreaterEqual((long[4] - short[4]) // steps, 1)
        self.assertLess((long[2] - short[2]) // steps, 30, "launches of a step")

    def refusal(self, *flags, **env):
        command = [TANDEM, "launch_server", "--model-path", MODEL, "--port", "0", *APART, *flags]
        p = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **env})
        self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
        return p.stderr.splitlines()[-1]

    def test_too_little_memory(self):
        """The figure in the sentence would do, and does."""
        def enough_for(*flags):
            said = self.refusal(*flags, TD_APART_MEMORY=str(5 << 20))
            self.assertRegex(said, "^tandem launch_server: device memory: the weights take")
            return int(float(re.search(r"use one with (\S+) GiB or more", said)[1]) * (1 << 30))
        enough = enough_for()
        self.assertIn("device memory", self.refusal(TD_APART_MEMORY=str(enough - (2 << 20))))
        with start(*APART, TD_APART_MEMORY=str(enough)) as server:
            status, answer, _ = server.request("POST", "/v1/completions", ASK[0])
            self.assertEqual((status, answer["choices"][0]["text"]), (200, self.right[0][0][0]))
        auto = ("--num-gpu-experts", "auto")
        with start(*APART, *auto, TD_APART_MEMORY=str(enough_for(*auto))) as server:
            server.wait_log("num-gpu-experts auto: none: beside weights and KV cache there is no room for 4 of a layer")
            status, answer, _ = server.request("POST", "/v1/completions", ASK[0])
            self.assertEqual((status, answer["choices"][0]["text"]), (200, self.right[0][0][0]))
        said = self.refusal("--num-gpu-experts", "8", TD_APART_MEMORY=str(enough))
        self.assertRegex(said, "^tandem launch_server: device memory: the weights take .* use one with")
        said = self.refusal("--max-total-tokens", "100000000", TD_APART_MEMORY=str(enough))
        self.assertRegex(said, r"device memory: max-total-tokens 100000000 does not fit: .* the largest is \d+$")

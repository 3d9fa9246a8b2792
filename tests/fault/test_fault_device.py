"""Calls of the device that fail, each in its turn: allocations, copies, captures, launches, hand-overs, weights, blocks.

At the start, the server either ends with one sentence or serves as it should. It gives back all memory: the device `apart` ends the process
otherwise. Later, a step that fails is run once more. If it fails again, its requests end with an error, and the next request has the right answer.
Nothing hangs.

By default a sample is tried, with a seed that is printed (TD_FAULT_SEED); TD_TEST_FULL=1 tries every call.
TD_TEST_CARDS=n: of so many cards."""
import os
import random
import re
import subprocess
import tempfile
import unittest

from fault import ASK, MODEL, TANDEM, NoAnswer, Server, answer_to, outcome, texts

FULL = os.environ.get("TD_TEST_FULL") == "1"
SEED = int(os.environ.get("TD_FAULT_SEED") or random.randrange(1 << 32))
draw = random.Random(SEED)
# Two layers, of which one has experts: few calls, of every kind.
SMALL = '{"num_hidden_layers": 2, "num_nextn_predict_layers": 0}'
MODEL_FLAGS = ("--device", "apart", "--json-model-override-args", SMALL, "--quantization", "none", "--cpuinfer", "1")
CARDS = os.environ.get("TD_TEST_CARDS", "1")
FLAGS = (*MODEL_FLAGS, "--max-total-tokens", "1024", "--max-running-requests", "2", "--chunked-prefill-size", "64",
         "--skip-server-warmup", "--tensor-parallel-size", CARDS)
PERPLEXITY = (TANDEM, "perplexity", "--model-path", MODEL, *MODEL_FLAGS, "--text", os.path.join(MODEL, "valid.txt"),
              "--window", "16", "--limit", "40")


def launch(fail, *flags, wait=False, drawn=False):
    """drawn: which experts are on the device is."""
    env = {"TD_CHAOS_FAIL_DEVICE": fail, **({"TD_CHAOS_RESIDENCY": "3"} if drawn else {})}
    return Server(*FLAGS, *flags, program=[TANDEM], model=MODEL, wait=wait, env=env)


def counted(log):
    return int(re.search(r"TD_CHAOS_FAIL_DEVICE: (\d+) calls", log)[1])


def calls(*flags, ask, drawn=False):
    """How many calls there are, and what is right."""
    with launch("0", *flags, wait=True, drawn=drawn) as server:
        right = texts(server) if ask else None
        assert server.stop() == 0, server.stderr()
        return counted(server.stderr()), right


def score(fail):
    env = {**os.environ, "TD_CHAOS_FAIL_DEVICE": fail}
    return subprocess.run(PERPLEXITY, capture_output=True, text=True, timeout=60, env=env)


def sample(numbers, n):
    return list(numbers) if FULL else sorted(draw.sample(numbers, n))


class Device(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print("seed", SEED, flush=True)
        cls.of_start, _ = calls(ask=False)
        cls.of_all, cls.right = calls(ask=True)
        print(f"{cls.of_start} calls of a start, {cls.of_all - cls.of_start} of what is asked", flush=True)

    def test_start(self):
        ends = []
        for count in (1, 2):
            for n in sample(range(1, self.of_start + 1), 20):
                with self.subTest(n=n, count=count):
                    ends.append(outcome(launch(f"{n},{count}"), self.right))
                    self.assertRegex(ends[-1], "as TD_CHAOS_FAIL_DEVICE wants it|cannot be captured|accelerator")
        self.assertGreater(len(set(ends)), 3)

    def serve(self, n, count):
        """How many requests fail when calls n to n + count - 1 do, of which the first is one of the first requests'."""
        errors = 0
        with launch(f"{n},{count}", wait=True) as server:
            try:
                self.assertEqual(texts(server), self.right)
            except NoAnswer as e:
                self.assertEqual(str(e), "500")
                errors = 1
            self.assertEqual(texts(server), self.right)
            for name in ("sglang:num_running_reqs", "sglang:num_queue_reqs"):
                server.wait_metric(name, 0)
            self.assertEqual(server.metric("sglang:num_used_tokens"), 0)
            self.assertEqual(server.metric("tandem:failed_requests_total"), errors)
            self.assertEqual(server.stop(), 0)
            self.assertIn("trying once more", server.stderr())
        return errors

    def test_serving(self):
        """One call that fails is never noticed; of two in a row one request may be the victim, of three it is, and no later
        one. Several cards call at once: three calls may be of one attempt."""
        for count, least, most in ((1, 0, 0), (2, 0, 1), (3, int(CARDS == "1"), 1)):
            for n in sample(range(self.of_start + 1, self.of_all + 1), 14):
                with self.subTest(n=n, count=count):
                    errors = self.serve(n, count)
                    self.assertTrue(least <= errors <= most, f"{errors} requests failed")

    @unittest.skipUnless(CARDS == "1", "experts move on one card")
    def test_experts_that_move(self):
        """Uploads fail among the other calls, from a thread of their own: an expert that does not come stays on the CPU."""
        some = ("--num-gpu-experts", "8")
        of_start, _ = calls(*some, ask=False)
        of_all, right = calls(*some, ask=True)
        self.assertEqual(right, self.right)
        for n in sample(range(1, of_start + 1), 6):
            with self.subTest(start=n):
                self.assertRegex(outcome(launch(str(n), *some), right), "as TD_CHAOS_FAIL_DEVICE wants it|cannot be captured|accelerator")
        # How many uploads there are depends on the clock: the first half of the calls is there in every run.
        uploads_failed, numbers = 0, range(of_start + 1, (of_start + of_all) // 2)
        for tried, n in enumerate(draw.sample(numbers, len(numbers))):
            if tried >= 10 and uploads_failed and not FULL:  # few of the calls are uploads
                break
            with self.subTest(serving=n), launch(f"{n},2", *some, wait=True) as server:
                try:
                    self.assertEqual(texts(server), right)
                except NoAnswer as e:
                    self.assertEqual(str(e), "500")
                self.assertEqual(texts(server), right)
                text = server.request("GET", "/metrics")[1]
                failed = int(re.search(r'tandem:expert_uploads_total\{[^}]*result="failed"\} (\d+)', text)[1])
                uploads_failed += failed
                self.assertEqual(server.stop(), 0)
                self.assertEqual("an expert could not be copied to the device" in server.stderr(), failed > 0)
                self.assertTrue(failed or "trying once more" in server.stderr())
        self.assertGreater(uploads_failed, 0)

    @unittest.skipUnless(CARDS == "1", "experts move on one card")
    def test_experts_that_left_host_memory(self):
        """An upload that fails at the start ends it: host memory need not hold the expert. Later ones leave it there."""
        with tempfile.TemporaryDirectory() as folder:
            packed = os.path.join(folder, "packed")
            subprocess.run([TANDEM, "quantize", "--model-path", MODEL, "--output", packed, "--subpool-count", "1"], check=True, capture_output=True, timeout=120)
            some = ("--quantization", "w8a8_int8", "--num-gpu-experts", "8", "--expert-memory", "drop", "--cpu-weight-path", packed, "--subpool-count", "1")
            of_start, _ = calls(*some, ask=False, drawn=True)
            of_all, right = calls(*some, ask=True, drawn=True)
            ends = [outcome(launch(str(n), *some, drawn=True), right) for n in sample(range(1, of_start + 1), 8)]
            for end in ends:
                self.assertRegex(end, "as TD_CHAOS_FAIL_DEVICE wants it|cannot be captured|accelerator|an expert could not be copied to the device")
            for n in sample(range(of_start + 1, (of_start + of_all) // 2), 6):
                with self.subTest(serving=n), launch(f"{n},2", *some, wait=True, drawn=True) as server:
                    try:
                        self.assertEqual(texts(server), right)
                    except NoAnswer as e:
                        self.assertEqual(str(e), "500")
                    self.assertEqual(texts(server), right)
                    self.assertEqual(server.stop(), 0)

    def test_streamed_experts(self):
        """The same of experts that are streamed, in drawn steps: whatever fails, in whatever thread, and on whichever card."""
        some = ("--num-gpu-experts", "8", "--stream-experts")
        of_start, _ = calls(*some, ask=False, drawn=True)
        of_all, right = calls(*some, ask=True, drawn=True)
        self.assertEqual(right, self.right)
        for n in sample(range(1, of_start + 1), 4):
            with self.subTest(start=n):
                server = launch(str(n), *some, drawn=True)
                end = outcome(server, right)
                if "are streamed through a buffer" in server.stderr():  # memory that cannot be pinned ends no start
                    self.assertEqual(end, "served")
                else:
                    self.assertRegex(end, "as TD_CHAOS_FAIL_DEVICE wants it|cannot be captured|accelerator")
        streamed_failed, numbers = 0, range(of_start + 1, (of_start + of_all) // 2)
        for tried, n in enumerate(draw.sample(numbers, len(numbers))):
            if tried >= 10 and streamed_failed and not FULL: # few of the calls are streamed uploads
                break
            with self.subTest(serving=n), launch(f"{n},2", *some, drawn=True, wait=True) as server:
                try:
                    self.assertEqual(texts(server), right)
                except NoAnswer as e:
                    self.assertEqual(str(e), "500")
                self.assertEqual(texts(server), right)
                failed = int(re.search(r'tandem:streamed_uploads_total\{[^}]*result="failed"\} (\d+)', server.request("GET", "/metrics")[1])[1])
                streamed_failed += failed
                self.assertEqual(server.stop(), 0)
                self.assertEqual("an expert could not be streamed to the device" in server.stderr(), failed > 0)
        self.assertGreater(streamed_failed, 0)

    def test_capture(self):
        """A prompt's first step is captured. Where that fails, log and client are told which step it was."""
        sentence = r"a step of \d+ tokens cannot be captured"
        with launch(f"{self.of_start + 1},{2 * int(CARDS)}", wait=True) as server:
            status, answer, _ = server.request("POST", "/v1/completions", ASK)
            self.assertEqual(status, 500)
            self.assertRegex(answer["error"]["message"], "the step failed twice: " + sentence)
            server.wait_log_match(f"failed \\({sentence}.*\\): trying once more")
            self.assertEqual(texts(server), self.right)
            self.assertEqual(server.stop(), 0)

    def test_perplexity(self):
        """No step is run again there: one sentence, and no figure."""
        for n in sample(range(1, counted(score("0").stderr) + 1), 12):
            with self.subTest(n=n):
                p = score(str(n))
                self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
                self.assertRegex(p.stderr.splitlines()[-1], "^tandem perplexity: .{20,}")

    def test_operations(self):
        """The same for what runs on the stream, found when it is synchronised: twice, and the request is the victim."""
        for count in (1, 2):
            for n in sample(range(1, 40), 6):
                with self.subTest(n=n, count=count), self.failing_operations(n, count) as server:
                    failed = False
                    try:
                        answer_to(server, "/v1/completions", ASK)
                    except NoAnswer as e:
                        failed = str(e) == "500"
                    self.assertEqual(failed, count == 2)
                    self.assertEqual(texts(server), self.right)

    @staticmethod
    def failing_operations(n, count):
        return Server(*FLAGS, program=[TANDEM], model=MODEL, env={"TD_CHAOS_FAIL_OP": f"{n},{count}"})

"""Failures while the server serves: memory that is short for a while, and device operations that fail once or twice.

A failure stays as small as the request it belongs to: each answer is the right one or an error, the server lives, later answers are right."""
import collections
import concurrent.futures
import http.client
import json
import os
import random
import re
import subprocess
import tempfile
import unittest

from fault import CHAT, EIO, END, MODEL, SHORT, TANDEM, Control, launch, texts
from server_process import PATIENCE, wait_until

SEED = int(os.environ.get("TD_FAULT_SEED") or random.randrange(1 << 32))
IN_THE_DRAFTS = "the MTP layer(?:'s head)? failed"  # said where the operation that failed was one of them; other operations' step is run again
FAILURE_SAID = f"trying once more|({IN_THE_DRAFTS})"
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
QUESTIONS = [(COMPLETIONS, {"prompt": "The king", "max_tokens": 20}),
             (COMPLETIONS, {"prompt": "The queen", "max_tokens": 30, "stream": True, "stream_options": {"include_usage": True}}),
             (COMPLETIONS, {"prompt": ["A girl", "A boy"], "max_tokens": 12, "n": 2, "seed": 5, "temperature": 1}),
             (COMPLETIONS, {"prompt": "There was a long road and " * 40, "max_tokens": 6, "echo": True, "logprobs": 3}),
             (COMPLETIONS, {"prompt": "Once upon a time \u2026 \u00e9t\u00e9 \U0001f409", "max_tokens": 16, "logprobs": 5, "stream": True}),
             (COMPLETIONS, {"prompt": "Once", "max_tokens": 40, "stop": ["had", "said"], "stop_token_ids": [7], "logit_bias": {"300": -3}}),
             (CHATS, CHAT), (CHATS, {**CHAT, "stream": True, "logprobs": True, "top_logprobs": 2}),
             (CHATS, {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "word " * 300}], "max_tokens": 10, "n": 2, "seed": 1}),
             ("/tokenize", {"prompt": "To be or not to be. " * 30}), ("/tokenize", {"messages": CHAT["messages"]}),
             ("/detokenize", {"tokens": list(range(5, 200))})]


def said(text):
    """What an answer says, without what differs from one to the next."""
    if isinstance(text, dict):
        return {k: said(v) for k, v in text.items() if k not in ("id", "created", "prompt_tokens_details")}
    if isinstance(text, list):
        return [said(v) for v in text]
    return text


class Error(Exception):
    pass


def ask(server, path, body):
    """The answer, or Error for what may come when memory is short: 500, 503, an error event, a connection that ends."""
    try:
        status, answer, _ = server.request("POST", path, {"temperature": 0, **body})
    except TimeoutError:
        raise AssertionError("no answer") from None
    except (http.client.HTTPException, OSError) as e:
        raise Error(f"connection: {type(e).__name__}") from None
    if status in (500, 503):
        raise Error(f"{status}: {answer['error']['message'] if isinstance(answer, dict) else answer}")  # text: libmicrohttpd's own
    assert status == 200, (status, answer)
    if not body.get("stream"):
        return said(answer)
    events = [json.loads(e.removeprefix("data: ")) for e in answer.split("\n\n") if e.startswith("data: {")]
    if events and "error" in events[-1]:
        raise Error(f"event: {events[-1]['error']['message']}")
    if not answer.endswith("data: [DONE]\n\n"):
        raise Error("connection: a stream that ends without a word")
    return merged(events)


def merged(events):
    """A stream's choices put together: how tokens are spread over events is a matter of timing."""
    choices = collections.defaultdict(lambda: ["", [], None])
    usage = None
    for e in events:
        usage = e.get("usage") or usage
        for c in e["choices"]:
            to = choices[c["index"]]
            to[0] += c.get("text") or c.get("delta", {}).get("content") or ""
            lp = c["logprobs"] or {}
            to[1] += lp.get("content") or lp.get("top_logprobs") or []
            to[2] = c["finish_reason"] or to[2]
    return {"choices": dict(choices), "usage": said(usage)}


class Serving(unittest.TestCase):
    """A model that is asked some questions, with operations of its device that fail."""
    model, questions = MODEL, QUESTIONS

    def start(self, *flags, **env):
        self.control = Control()
        server = launch(self.control, *flags, model=self.model, wait=True, **env)
        self.addCleanup(server.__exit__, RuntimeError, None, None)
        return server

    def assertWell(self, server, right):
        for question, answer in zip(self.questions, right):
            self.assertEqual(ask(server, *question), answer)
        for name in ("sglang:num_running_reqs", "sglang:num_queue_reqs"):
            server.wait_metric(name, 0)
        self.assertEqual(server.metric("sglang:num_used_tokens"), 0)

    def failing_operation(self, count, *flags):
        """Start with an operation that fails `count` times; (right answers, server)."""
        with launch(Control(), *flags, model=self.model, wait=True) as calm:
            right = [ask(calm, *q) for q in self.questions]
        return right, self.start(*flags, TD_CHAOS_FAIL_OP=f"{random.Random(SEED).randrange(700, 1200)},{count}")

    def fails_once(self, *flags):
        right, server = self.failing_operation(1, *flags)
        self.assertWell(server, right)
        server.wait_log_match(FAILURE_SAID)
        self.assertEqual(server.metric("tandem:failed_requests_total"), 0)
        self.assertEqual(server.stop(), 0)

    def fails_twice(self, *flags):
        right, server = self.failing_operation(2, *flags)
        failed = []
        for i, question in enumerate(self.questions):
            try:
                self.assertEqual(ask(server, *question), right[i])
            except Error as e:
                failed.append(str(e))
        in_the_drafts = server.wait_log_match(FAILURE_SAID)[1]
        self.assertEqual(len(failed), 0 if in_the_drafts else 1, failed)  # the first of two fails the draft, the second a step that is run again
        for why in failed:
            self.assertRegex(why, "^(500|event): the step failed twice: accelerator runtime failed")
        self.assertWell(server, right)
        self.assertEqual(server.stop(), 0)

    def fail_for_a_while(self, count, *flags):
        right, server = self.failing_operation(count, *flags)
        ends, n = collections.Counter(), len(self.questions)

        def one(i):
            try:
                self.assertEqual(ask(server, *self.questions[i % n]), right[i % n])
                ends["right"] += 1
            except Error as e:
                ends[str(e)] += 1

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            list(pool.map(one, range(48)))
        print(dict(ends), flush=True)
        self.assertGreater(len(ends), 1)
        for _ in range(40):  # what is left of the failures
            try:
                ask(server, *self.questions[0])
                break
            except Error:
                pass
        self.assertWell(server, right)


class Run(Serving):
    def test_short_of_memory(self):
        print("seed", SEED, flush=True)
        draw = random.Random(SEED)
        server = self.start()
        right = [ask(server, *q) for q in QUESTIONS]
        for one_in in (1000, 200, 50, 20, 5, 1):
            ends = collections.Counter()
            self.control["alloc", "seed"] = draw.randrange(1 << 32)
            self.control["alloc", "one_in"] = one_in

            def client(seed):
                mine = random.Random(seed)
                for _ in range(10):
                    i = mine.randrange(len(QUESTIONS))
                    try:
                        answer = ask(server, *QUESTIONS[i])
                    except Error as e:
                        ends[str(e)] += 1
                        continue
                    self.assertEqual(answer, right[i])
                    ends["right"] += 1

            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                for job in [pool.submit(client, draw.randrange(1 << 32)) for _ in range(6)]:
                    job.result()
            self.control.off()
            self.assertIsNone(server.process.poll(), server.stderr())
            print(f"1 of {one_in} fails, {self.control['alloc', 'injected']} so far:", dict(ends), flush=True)
            self.assertWell(server, right)
        self.assertEqual(server.stop(), 0, "it ends in order: nothing was left hanging")

    def test_operation_fails_once(self):
        """The step is run again, and nobody notices."""
        for flags in ((), ("--cpuinfer", "1", "--npu-threads", "1")):
            with self.subTest(flags=flags):
                self.fails_once(*flags)

    def test_operation_fails_twice(self):
        """The requests of that step end with an error, a stream with an event; the others and all that come later are right."""
        for flags in ((), ("--cpuinfer", "1", "--npu-threads", "1")):
            with self.subTest(flags=flags):
                self.fails_twice(*flags)

    def test_operations_fail_for_a_while(self):
        """Many in a row, among many requests at once."""
        self.fail_for_a_while(40)

    def test_warm_up_fails(self):
        """An operation that fails in the warm-up and again: the server does not pretend to be ready."""
        server = launch(Control(), TD_CHAOS_FAIL_OP="3,2")
        self.assertEqual((server.process.wait(30 * PATIENCE), server.process.stdout.read()), (1, b""))
        self.assertIn("tandem launch_server: the warm-up request failed: the step failed twice", server.stderr())
        with launch(Control(), TD_CHAOS_FAIL_OP="3") as server:
            server.wait_ready()
            texts(server)


class RecurrentStates(Serving):
    """A step that fails has written states in place: its requests begin again, from the states that the prefix cache keeps."""
    model = os.path.join(os.environ["TD_SOURCE_DIR"], "tests/data/golden/qwen3_next")
    questions = [(COMPLETIONS, {"prompt": list(range(first, first + n)), "max_tokens": 40, "ignore_eos": True, "logprobs": 2})
                 for first, n in ((10, 40), (5, 300), (5, 280), (20, 130))]
    flags = ("--tokenizer-path", MODEL)
    drafts = ("--speculative-algorithm", "NEXTN", "--speculative-always")

    def test_operation_fails_once(self):
        for flags in ((), self.drafts, ("--cpuinfer", "1", "--npu-threads", "1")):
            with self.subTest(flags=flags):
                self.fails_once(*self.flags, *flags)

    def test_operation_fails_twice(self):
        self.fails_twice(*self.flags, *self.drafts)

    def test_operations_fail_for_a_while(self):
        self.fail_for_a_while(10, *self.flags)


class ChosenKeys(RecurrentStates):
    """Rows that attend to keys which an indexer chose, in their own layer or in one before: a step that is run again chooses anew."""
    model = os.path.join(os.environ["TD_SOURCE_DIR"], "tests/data/golden/glm_moe_dsa")


class DecaysOfChannels(RecurrentStates):
    """Kimi-Linear: states beside latents, whose generated pages no other request goes on from."""
    model = os.path.join(os.environ["TD_SOURCE_DIR"], "tests/data/golden/kimi_linear")
    drafts = ()


class WindowsAndCompressedRows(RecurrentStates):
    """DeepSeek-V4: a step that fails has written compressed rows and their keys, too."""
    model = os.path.join(os.environ["TD_SOURCE_DIR"], "tests/data/golden/deepseek_v4")


class StreamsAndIndexKeys(RecurrentStates):
    """GLM-5.3-Flash: states, and open blocks of tokens that have no index key yet, which a step that is run again writes over."""
    model = os.path.join(os.environ["TD_SOURCE_DIR"], "tests/data/golden/glm5_next")


class ExpertsReadAgain(unittest.TestCase):
    """With --expert-memory drop experts are read from their files while the server serves. The files cannot be read for a while, and all answers are right."""

    def test_reads(self):
        with tempfile.TemporaryDirectory() as folder:
            packed = os.path.join(folder, "packed")
            subprocess.run([TANDEM, "quantize", "--model-path", MODEL, "--output", packed, "--subpool-count", "1"], check=True, capture_output=True, timeout=120)
            for how in (SHORT, EIO, END):
                with self.subTest(how=how):
                    self.serve(packed, how)

    def serve(self, packed, how):
        control = Control()
        flags = ("--device", "apart", "--num-gpu-experts", "8", "--expert-memory", "drop", "--cpu-weight-path", packed, "--quantization", "w8a8_int8",
                 "--subpool-count", "1")
        with launch(control, *flags, wait=True, TD_CHAOS_RESIDENCY="3") as server:
            def reads(result):
                return int(re.search(r'tandem:expert_reads_total\{[^}]*result="%s"\} (\d+)' % result, server.request("GET", "/metrics")[1])[1])
            right = texts(server)
            control["read", "how"], control["read", "every"], control["read", "first"] = how, 1, 1
            def ask_until(happened):
                """Which experts move, and when, is a matter of timing; the answers are not."""
                def look():
                    self.assertEqual(texts(server), right)
                    return happened()
                wait_until(look, step=0)
            if how == SHORT:  # the rest is read
                ask_until(lambda: control["read", "injected"] > 0)
                self.assertEqual(reads("failed"), 0)
            else:
                ask_until(lambda: reads("failed") > 0)
                server.wait_log("an expert cannot leave the device")
            control.off()
            before = reads("ok")
            self.assertEqual(texts(server), right)
            self.assertGreaterEqual(reads("ok"), before)
            self.assertEqual(server.stop(), 0)

"""Requests that end before their time: /abort_request, clients that leave, and queues that are full. On the fake engine and on the demo model."""
import concurrent.futures
import json
import logging
import os
import random
import re
import socket
import threading
import time
import unittest

import openai
from server_process import MODEL, Gate, Server, ServerTest, demo_server, openai_client, stream_events, wait_until

PATH = "/v1/completions"
SCRIPTED = os.environ["TD_SCRIPTED_TANDEM"]


def send(server, body):
    """A connection with a request on its way; nobody has read an answer yet."""
    data = json.dumps(body).encode()
    s = socket.create_connection(("127.0.0.1", server.port), timeout=120)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return s


def wait_tokens(server, total):
    """Until the server has generated so many in all."""
    wait_until(lambda: server.metric("sglang:generation_tokens_total") >= total, 60, says=f"{total} tokens")


class AbortTest(ServerTest):
    def setUp(self):
        self.pool = concurrent.futures.ThreadPoolExecutor(8)
        self.addCleanup(self.pool.shutdown)
        self.addCleanup(self.abort, {"abort_all": True})  # what a case that has failed has left

    def ask(self, **body):
        return self.pool.submit(self.server.request, "POST", PATH, body)

    def abort(self, body):
        return self.server.request("POST", "/abort_request", body)[:2]


class Abort(AbortTest):
    start = staticmethod(lambda: Server("--max-running-requests", "3"))

    def running(self, n, queued=0):
        self.server.wait_metric("sglang:num_queue_reqs", queued)
        self.server.wait_metric("sglang:num_running_reqs", n)

    def wait_tokens(self, n):
        wait_tokens(self.server, self.before + n)

    def setUp(self):
        super().setUp()
        self.before = self.server.metric("sglang:generation_tokens_total")

    def test_stream(self):
        job = self.ask(prompt="!slow", rid="one", stream=True, max_tokens=3000, ignore_eos=True, stream_options={"include_usage": True})
        self.wait_tokens(3)
        self.assertEqual(self.abort({"rid": "one"}), (200, {"aborted": 1}))
        status, text, _ = job.result()
        chunks = stream_events(text)
        self.assertEqual((status, chunks[-2]["choices"][0]["finish_reason"], chunks[-2]["choices"][0]["matched_stop"]), (200, "abort", None))
        said = "".join(c["choices"][0]["text"] for c in chunks[:-1])
        self.assertTrue(said and ("!slow" * 1000).startswith(said), said)
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], len(said))
        self.assertEqual([c["choices"][0]["finish_reason"] for c in chunks[:-2]], [None] * (len(chunks) - 2))

    def test_whole_answer(self):
        job = self.ask(prompt="!slow", rid="two", max_tokens=3000, ignore_eos=True)
        self.wait_tokens(3)
        self.assertEqual(self.abort({"rid": "two"}), (200, {"aborted": 1}))
        status, answer, _ = job.result()
        self.assertEqual((status, answer["choices"][0]["finish_reason"]), (200, "abort"))
        self.assertGreater(answer["usage"]["completion_tokens"], 0)
        self.assertEqual(len(answer["choices"][0]["text"]), answer["usage"]["completion_tokens"])

    def test_before_the_first_token(self):
        jobs = [self.ask(prompt="!hang", rid="h", stream=s) for s in (False, True)]
        self.running(2)
        self.assertEqual(self.abort({"rid": "h"}), (200, {"aborted": 2}))
        answer = jobs[0].result()[1]
        self.assertEqual((answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]), ("", "abort"))
        self.assertEqual(stream_events(jobs[1].result()[1])[-1]["choices"][0]["finish_reason"], "abort")

    def test_what_runs_is_found(self):
        """A request that the engine has begun is aborted also before the call that submits it has returned."""
        for stream in (False, True):
            job = self.ask(prompt="!hang !linger", rid="early", stream=stream)
            self.running(1)
            self.assertEqual(self.abort({"rid": "early"}), (200, {"aborted": 1}))
            answer = job.result()[1]
            last = stream_events(answer)[-1] if stream else answer
            self.assertEqual(last["choices"][0]["finish_reason"], "abort")

    def test_queued(self):
        jobs = [self.ask(prompt="!hang", rid=f"r{i}") for i in range(3)]
        self.running(3)
        last = self.ask(prompt="!hang", rid="last")
        self.running(3, queued=1)
        self.assertEqual(self.abort({"rid": "last"}), (200, {"aborted": 1}))
        self.assertEqual(last.result()[1]["choices"][0]["finish_reason"], "abort")
        self.assertEqual(self.abort({"abort_all": True}), (200, {"aborted": 3}))
        self.assertEqual([j.result()[1]["choices"][0]["finish_reason"] for j in jobs], ["abort"] * 3)
        self.running(0)

    def test_every_choice(self):
        for stream in (False, True):
            job = self.ask(prompt=["!slow a", "!slow b"], n=2, rid="many", stream=stream, max_tokens=3000, ignore_eos=True)
            self.running(3, queued=1)
            self.assertEqual(self.abort({"rid": "many"}), (200, {"aborted": 1}))
            answer = job.result()[1]
            choices = [c for e in stream_events(answer) for c in e["choices"]] if stream else answer["choices"]
            ends = {c["index"]: c["finish_reason"] for c in choices if c["finish_reason"]}
            self.assertEqual(ends, {i: "abort" for i in range(4)})

    def test_same_rid_twice(self):
        """Every request in flight with the id ends, and no other."""
        jobs = [self.ask(prompt="!hang", rid=r) for r in ("x", "x", "xy")]
        self.running(3)
        self.assertEqual(self.abort({"rid": "x"}), (200, {"aborted": 2}))
        self.assertEqual([j.result()[0] for j in jobs[:2]], [200, 200])
        self.running(1)
        self.assertEqual(self.abort({"rid": "xy"}), (200, {"aborted": 1}))

    def test_drawn_id(self):
        """An answer's own id will do."""
        s = send(self.server, {"prompt": "!slow", "stream": True, "max_tokens": 3000, "ignore_eos": True})
        self.addCleanup(s.close)
        data = b""
        while b"\n\n" not in data[data.find(b"data: "):]:
            data += s.recv(1000)
        rid = json.loads(data[data.find(b"data: ") + 6:].split(b"\n\n")[0])["id"]
        self.assertEqual(self.abort({"rid": rid}), (200, {"aborted": 1}))
        while b"[DONE]" not in data:
            data += s.recv(1000)
        self.assertIn(b'"finish_reason":"abort"', data)

    def test_nothing_matches(self):
        self.assertEqual(self.abort({"rid": "nobody"}), (200, {"aborted": 0}))
        self.assertEqual(self.abort({"abort_all": True}), (200, {"aborted": 0}))
        self.assertEqual(self.abort({"rid": "nobody", "abort_all": False}), (200, {"aborted": 0}))

    def test_refused(self):
        for body, param in (({}, "rid"), ({"rid": None}, "rid"), ({"rid": 7}, "rid"), ({"rid": ["a"]}, "rid"), ({"abort_all": False}, "rid"),
                            ({"abort_all": 1}, "abort_all"), ({"rid": "a", "abort_all": "yes"}, "abort_all")):
            with self.subTest(body):
                status, answer = self.abort(body)
                self.assertEqual((status, answer["error"]["param"]), (400, param))
        self.assertEqual(self.abort([])[0], 400)
        self.assertEqual(self.server.request("GET", "/abort_request")[0], 405)
        with Server("--api-key", "k") as locked:
            self.assertEqual(locked.request("POST", "/abort_request", {"abort_all": True})[0], 401)

    def test_storm(self):
        """Aborts at any moment: every answer is whole, and nothing is left behind."""
        seed = random.randrange(1 << 32)
        print("seed", seed, flush=True)
        draw = random.Random(seed)
        over = threading.Event()

        def client(seed):
            draw = random.Random(seed)
            for _ in range(25):
                status, answer, _ = self.server.request("POST", PATH, {"prompt": draw.choice(["abcdef", "!slow!", "!hang!"]), "n": draw.choice([1, 2]),
                                                                       "rid": draw.choice("abc"), "stream": draw.random() < 0.5, "max_tokens": 6})
                self.assertEqual(status, 200)
                choices = [c for e in stream_events(answer) for c in e["choices"]] if isinstance(answer, str) else answer["choices"]
                ends = [c["finish_reason"] for c in choices if c["finish_reason"]]
                self.assertTrue(ends and set(ends) <= {"abort", "length", "stop"}, ends)

        def aborter():
            while not over.wait(draw.random() * 0.02):
                self.abort({"rid": draw.choice("abc")} if draw.random() < 0.8 else {"abort_all": True})

        with concurrent.futures.ThreadPoolExecutor(7) as pool:
            end = pool.submit(aborter)
            jobs = [pool.submit(client, draw.randrange(1 << 32)) for _ in range(6)]
            try:
                for j in jobs:
                    j.result()
            finally:
                over.set()
            end.result()
        self.running(0)


class DemoModel(AbortTest):
    start = staticmethod(lambda: demo_server("--max-running-requests", "8", "--max-queued-requests", "64", "--chunked-prefill-size", "256"))

    def steps(self):
        return self.server.metric("tandem:prefill_steps_total") + self.server.metric("tandem:decode_steps_total")

    def ended(self):
        """Requests that were aborted, or that had all their tokens before anybody noticed that the client has left."""
        return sum(float(n) for n in re.findall(r'^tandem:requests_finished_total\{[^}]*reason="(?:abort|length)"\} (\S+)$', self.server.request("GET", "/metrics")[1], re.M))

    def wait_idle(self, used):
        self.server.wait_metric("sglang:num_running_reqs", 0)
        self.server.wait_metric("sglang:num_queue_reqs", 0)
        self.assertEqual(self.server.metric("sglang:num_used_tokens"), used)

    def test_abort(self):
        """What was generated so far is the beginning of the whole answer."""
        ask = {"prompt": "Once upon a time", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
        before = self.server.metric("sglang:generation_tokens_total")
        job = self.ask(rid="a", stop=["\n\n\nnever"], **ask)
        wait_tokens(self.server, before + 2)
        self.assertEqual(self.abort({"rid": "a"}), (200, {"aborted": 1}))
        status, answer, _ = job.result()
        self.assertEqual((status, answer["choices"][0]["finish_reason"]), (200, "abort"))
        n = answer["usage"]["completion_tokens"]
        self.assertGreater(n, 1)
        self.assertLess(n, 1900)
        again = self.server.request("POST", PATH, {**ask, "max_tokens": n})[1]
        self.assertEqual(answer["choices"][0]["text"], again["choices"][0]["text"])
        client = openai_client(self.server)
        self.addCleanup(client.close)
        stream = client.chat.completions.create(model="tale-v3-14m", messages=[{"role": "user", "content": "Hello"}], max_tokens=1900, stream=True,
                                                extra_body={"ignore_eos": True, "rid": "b"})
        chunks = [next(iter(stream))]
        self.assertEqual(self.abort({"rid": "b"}), (200, {"aborted": 1}))
        chunks += list(stream)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "abort")

    def test_clients_leave(self):
        """Many at once, while their prompts are computed, while tokens come, and while they wait: all pages are free again."""
        seed = random.randrange(1 << 32)
        print("seed", seed, flush=True)
        draw = random.Random(seed)
        used = self.server.metric("sglang:num_used_tokens")
        for round in range(6):
            ended = self.ended()
            clients = [send(self.server, {"prompt": [draw.randrange(5, 400) for _ in range(draw.choice([3, 200, 1500]))], "max_tokens": 400,
                                          "ignore_eos": True, "stream": draw.random() < 0.5}) for _ in range(20)]
            time.sleep(draw.random() * 0.3)
            for s in clients:
                s.close()
            before = self.steps()
            self.wait_idle(used)
            self.assertEqual(self.ended() - ended, 20)
            print(f"round {round}: {self.steps() - before:g} steps after the last client left", flush=True)
        self.assertEqual(self.server.request("POST", PATH, {"prompt": "Once", "max_tokens": 4})[0], 200)


class Gated(unittest.TestCase):
    """The engine over a model of arithmetic, whose answers have their first token and wait for the second one while the gate is shut."""
    flags = ()

    def setUp(self):
        self.gate = Gate()
        self.server = Server("--skip-server-warmup", *self.flags, program=[SCRIPTED], model=MODEL, env=self.gate.env)
        self.addCleanup(self.server.__exit__, None, None, None)
        self.addCleanup(self.gate.open)

    def begin(self, **more):
        s = send(self.server, {"prompt": "Once", "ignore_eos": True, "stream": True, "max_tokens": 600, **more})
        self.addCleanup(s.close)
        return s


class Leaving(Gated):
    flags = ("--max-running-requests", "8", "--max-queued-requests", "64", "--log-level", "debug")

    def wait_gone(self, n):
        wait_until(lambda: self.server.stderr().count("the client has gone") == n, says=f"{n} have left")

    def test_pages_are_free_at_the_next_step(self):
        """Of those that run and those that wait. The watcher looks at one after the other: the last to leave shows that it is done with the others."""
        clients = [self.begin() for _ in range(20)]
        last = self.begin(max_tokens=2)
        self.gate.wait_reached()
        wait_until(lambda: self.server.request("GET", "/v1/requests")[1]["num_running"] == 21, says="all have come")
        for s in clients:
            s.close()
        self.wait_gone(20)
        last.close()
        self.wait_gone(21)
        self.gate.open()
        for name in ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_used_tokens"):
            self.server.wait_metric(name, 0)
        self.assertGreaterEqual(self.server.metric("sglang:num_aborted_requests_total"), 20)
        # The first tokens, the step that was held, and two of the last client's if nobody had noticed yet.
        self.assertLessEqual(self.server.metric("tandem:decode_steps_total") + self.server.metric("tandem:prefill_steps_total"), 4)


class Queue(Gated):
    flags = ("--max-running-requests", "1", "--max-queued-requests", "3")

    def setUp(self):
        super().setUp()
        self.client = openai_client(self.server)
        self.addCleanup(self.client.close)

    def occupy(self):
        s = self.begin()
        self.gate.wait_reached()
        self.server.wait_metric("sglang:num_running_reqs", 1)
        self.assertEqual(self.server.metric("sglang:num_queue_reqs"), 0)
        return s

    def test_exact(self):
        """However many come at once, as many wait as are allowed; the others are told to come back."""
        running = self.occupy()
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            def ask(i):
                try:
                    self.client.completions.create(model="tale-v3-14m", prompt=f"The {i}", max_tokens=2)
                    return 200
                except openai.InternalServerError as e:
                    self.assertEqual((e.status_code, e.code, e.response.headers["Retry-After"]), (503, "queue_full", "1"))
                    return 503
            jobs = [pool.submit(ask, i) for i in range(24)]
            wait_until(lambda: sum(j.done() for j in jobs) >= 21, says="21 are refused")
            self.assertEqual((self.server.metric("sglang:num_running_reqs"), self.server.metric("sglang:num_queue_reqs")), (1, 3))
            self.assertEqual([j.result() for j in jobs if j.done()], [503] * 21)
            running.close()
            self.gate.open()
            self.assertEqual(sorted(j.result() for j in jobs), [200] * 3 + [503] * 21)

    def test_all_choices_or_none(self):
        """A request of more choices than there is room for is refused before any of them runs or takes another's room."""
        self.occupy()
        waiting = send(self.server, {"prompt": "The", "max_tokens": 1})
        self.addCleanup(waiting.close)
        self.server.wait_metric("sglang:num_queue_reqs", 1)
        with self.assertRaises(openai.InternalServerError):
            self.client.completions.create(model="tale-v3-14m", prompt="The", n=3, max_tokens=2)
        self.assertEqual(self.server.metric("sglang:num_queue_reqs"), 1)
        with self.assertRaises(openai.BadRequestError):  # such a one would never find room
            self.client.completions.create(model="tale-v3-14m", prompt="The", n=4, max_tokens=2)
        self.assertEqual(self.server.metric("sglang:num_running_reqs"), 1)

    def test_client_retries(self):
        """The openai client obeys Retry-After by itself."""
        running = self.occupy()
        waiting = [send(self.server, {"prompt": "The", "max_tokens": 1}) for _ in range(3)]
        self.server.wait_metric("sglang:num_queue_reqs", 3)
        refusals, server, gate = [], self.server, self.gate

        class Refused(logging.Handler):
            def emit(self, record):
                if "Retrying request" in record.getMessage():
                    refusals.append(record)
                    running.close()
                    gate.open()
                    server.wait_metric("sglang:num_queue_reqs", 0)

        log, handler = logging.getLogger("openai"), Refused()
        self.addCleanup(log.setLevel, log.level)
        self.addCleanup(log.removeHandler, handler)
        log.setLevel(logging.INFO)
        log.addHandler(handler)
        start = time.monotonic()
        answer = self.client.with_options(max_retries=3).completions.create(model="tale-v3-14m", prompt="The", max_tokens=2)
        self.assertTrue(refusals)
        self.assertEqual(answer.usage.completion_tokens, 2)
        self.assertGreater(time.monotonic() - start, 0.9, "it came back after the second that Retry-After says")
        for s in waiting:
            self.assertTrue(s.recv(1000).startswith(b"HTTP/1.1 200"))
            s.close()

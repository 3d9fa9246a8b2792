"""Two servers behind each router. Prompts reach the server that has their prefix, answers are one server's to the last bit, and a server that dies or
stops leaves no request without an end.

TD_ROUTER=Nginx (or another class of routers.py) tries one of them.
"""
import concurrent.futures
import http.client
import json
import os
import random
import signal
import threading
import unittest

from routers import HaProxy, Nginx, SglangRouter, Smg, start_worker
from server_process import PATIENCE, wait_until
from stories import SEED, story, what_matters

LONG = {"max_tokens": 800, "ignore_eos": True}


def completion(prompt, **more):
    return {"model": "tale", "prompt": prompt, "max_tokens": 12, "temperature": 0, "logprobs": 1, **more}


def conversations(rng):
    """4 turns of 6 conversations: each a list of (session, body). A turn's prompt begins with the prompt before."""
    texts = [story(rng, 250) for _ in range(6)]
    for _ in range(4):
        texts = [t + " " + story(rng, 60) for t in texts]
        yield [(f"s{i}", completion(t)) for i, t in enumerate(texts)]


class Stream:
    """A streamed completion, read by a thread. `text` so far; `end`: "done", "cut", or the HTTP status that it failed with."""

    def __init__(self, port, body, session):
        self.body, self.text, self.chunks, self.end, self.finish = body, "", 0, None, None
        self.args = port, session
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        port, session = self.args
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        try:
            connection.request("POST", "/v1/completions", json.dumps({**self.body, "stream": True}), {"Content-Type": "application/json", "X-Session-Id": session})
            response = connection.getresponse()
            if response.status != 200:
                self.end = response.status
                return
            for line in response:
                if line == b"data: [DONE]\n":
                    self.end = "done"
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "choices" not in event:
                        self.end = "error event"
                        return
                    self.text += event["choices"][0]["text"]
                    self.finish = event["choices"][0]["finish_reason"] or self.finish
                    self.chunks += 1
            self.end = self.end or "cut"
        except (OSError, http.client.HTTPException):
            self.end = "cut"
        finally:
            connection.close()


class Behind:
    """What every router has to keep; mixed into a TestCase with `router`."""

    @classmethod
    def setUpClass(cls):
        if not cls.router.program:
            raise unittest.SkipTest("it is not there (scripts/deps.sh test unpacks it)")

    def setUp(self):
        self.rng = random.Random(SEED)
        self.workers = []
        self.addCleanup(self.end_workers)
        for _ in range(2):
            self.workers.append(start_worker())
        self.front = self.router(self.workers)
        self.addCleanup(self.front.close)

    def end_workers(self):
        for w in self.workers:
            w.process.kill()  # or it would wait for its --shutdown-delay
            w.process.wait()
            w.process.stdout.close()
            w.log.close()

    def ask(self, body, session="x"):
        return self.front.request("POST", "/v1/completions", body, {"X-Session-Id": session})

    def alone(self, *bodies, at_once=8):
        """What one server answers."""
        with start_worker("--shutdown-delay", "0") as one, concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(lambda b: one.request("POST", "/v1/completions", b, timeout=600), bodies))
        assert all(status == 200 for status, _, _ in answers), answers
        return [answer for _, answer, _ in answers]

    @staticmethod
    def hits(answers):
        return sum(a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers)

    def test_hits_and_bits(self):
        turns = list(conversations(self.rng))
        alone = self.alone(*(body for turn in turns for _, body in turn), at_once=1)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:  # the conversations at the same time, so that a router has a load to spread
            answers = [a for turn in turns for a in pool.map(lambda pair: self.ask(pair[1], pair[0]), turn)]
        self.assertEqual([status for status, _ in answers], [200] * len(alone))
        answers = [a for _, a in answers]
        self.assertEqual([what_matters(a) for a in answers], [what_matters(a) for a in alone])
        print(f"{self.router.__name__}: {self.hits(answers)} prompt tokens found of {self.hits(alone)} on one server", flush=True)
        self.assertGreater(self.hits(alone), 4000)
        self.assertGreaterEqual(self.hits(answers), 0.9 * self.hits(alone))
        if self.router is not Smg:  # it may take one for the best place of all
            self.check_both_serve()

    def check_both_serve(self):
        """Both servers have answered more than two requests, after 32 new sessions at most: a router that hashes their names takes six of them to one server once in thirty times."""
        for i in range(32):
            served = [w.metric("sglang:num_requests_total") for w in self.workers]
            if min(served) > 2:
                return
            self.ask(completion("The", max_tokens=1), f"one more {i}")
        self.fail(f"both serve: {served}")

    def start_streams(self):
        """Streams that run on both workers, eight or more if a router needs more to use both, or if the first ones have ended by then. @return them, and how
        many run on each."""
        streams = []

        def add():
            streams.extend(Stream(self.front.port, completion(story(self.rng, 8), **LONG), f"session {len(streams) + i}") for i in range(8))
            wait_until(lambda: all(s.chunks > 3 for s in streams), 60, step=0.01, says="streams do not begin")
            running = [int(w.metric("sglang:num_running_reqs")) for w in self.workers]
            return running if 0 not in running else None

        return streams, wait_until(add, 60, step=0, says="streams run on both")

    def check_whole(self, streams):
        for s, answer in zip(streams, self.alone(*(s.body for s in streams))):
            self.assertEqual((s.end, s.finish, s.text), ("done", answer["choices"][0]["finish_reason"], answer["choices"][0]["text"]))

    def test_a_worker_is_killed(self):
        streams, running = self.start_streams()
        pool = concurrent.futures.ThreadPoolExecutor(8)
        arrived = lambda: sum(w.metric("sglang:num_requests_total") for w in self.workers)
        before = arrived()
        asked = [completion(story(self.rng, 10), max_tokens=300, ignore_eos=True) for _ in range(8)]
        waiting = [pool.submit(self.ask, body, f"session {i}") for i, body in enumerate(asked)]
        # A server that dies with a request that it has not read resets the connection, and HAProxy says 502 then.
        wait_until(lambda: arrived() >= before + 8, 60, step=0.01, says="all have arrived")
        self.workers[0].process.kill()
        self.workers[0].process.wait()
        after = [completion(story(self.rng, 10)) for _ in range(12)]
        answers = [self.ask(body, f"later {i}") for i, body in enumerate(after)]
        self.assertEqual([status for status, _ in answers], [200] * 12, "the other one answers at once")
        self.assertEqual([what_matters(a) for _, a in answers], [what_matters(a) for a in self.alone(*after)])
        for s in streams:
            s.thread.join(24 * PATIENCE)
        whole = [s for s in streams if s.end == "done"]
        self.assertGreaterEqual(len(whole), running[1], [s.end for s in streams])  # one of the dead may have ended before
        self.check_whole(whole)
        for s in streams:  # those of the dead: nobody takes them for whole
            self.assertTrue(s.end == "done" or (s.end in ("cut", "error event") and s.finish is None), (s.end, s.finish))
        results = [w.result(24 * PATIENCE) for w in waiting]
        # What had not been answered yet is asked of the other one; HAProxy does so when a connection ends, and says 502 when it is reset.
        self.assertLessEqual({status for status, _ in results}, {200, 502} if self.router is HaProxy else {200})
        whole = [(a, b) for (status, a), b in zip(results, asked) if status == 200]
        self.assertGreaterEqual(len(whole), 5)
        self.assertEqual([what_matters(a) for a, _ in whole], [what_matters(a) for a in self.alone(*(b for _, b in whole))])
        pool.shutdown()

    def test_a_worker_is_drained(self):
        streams, _ = self.start_streams()
        ending = threading.Thread(target=self.workers[0].stop, args=(signal.SIGTERM, 120))
        ending.start()
        asked = [completion(story(self.rng, 10)) for _ in range(20)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda pair: self.ask(pair[1], f"meanwhile {pair[0]}"), enumerate(asked)))
        self.assertEqual([status for status, _ in answers], [200] * 20, [a for s, a in answers if s != 200][:1])
        ending.join(120 * PATIENCE)
        self.assertEqual(self.workers[0].process.returncode, 0)
        answers += [self.ask(body, f"after {i}") for i, body in enumerate(asked[:4])]
        self.assertEqual([what_matters(a) for _, a in answers], [what_matters(a) for a in self.alone(*asked, *asked[:4])])
        for s in streams:
            s.thread.join(24 * PATIENCE)
        self.check_whole(streams)


class BehindNginx(Behind, unittest.TestCase):
    router = Nginx


class BehindHaProxy(Behind, unittest.TestCase):
    router = HaProxy


class BehindSglangRouter(Behind, unittest.TestCase):
    router = SglangRouter

    def test_what_it_knows_of_a_worker(self):
        for url, w in self.front.workers().items():
            self.assertEqual((w["model_id"], w["connection_mode"], w["worker_type"], w["is_healthy"]), ("tale", "HTTP", "regular", True))
            self.assertEqual({k: w["metadata"][k] for k in ("tp_size", "dp_size", "served_model_name", "model_type", "architectures", "disaggregation_mode")},
                             {"tp_size": "1", "dp_size": "1", "served_model_name": "tale", "model_type": "deepseek_v3", "architectures": '["DeepseekV3ForCausalLM"]', "disaggregation_mode": "null"})
        status, loads = self.front.request("GET", "/get_loads")
        self.assertEqual((status, {w["worker"]: w["load"] for w in loads["workers"]}), (200, {url: 0 for url in self.front.urls}))


class BehindSmg(Behind, unittest.TestCase):
    router = Smg

    def test_what_it_knows_of_a_worker(self):
        for url, w in self.front.workers().items():
            self.assertEqual((w["model_id"], w["connection_mode"], w["runtime_type"], w["is_healthy"]), ("tale", "http", "sglang", True), "found without /version")
            model = w["models"][0]
            self.assertEqual((model["id"], model["hf_model_type"], model["architectures"], model["context_length"]), ("tale", "deepseek_v3", ["DeepseekV3ForCausalLM"], 2048))
            for label, value in {"tp_size": "1", "dp_size": "1", "max_total_tokens": "32768", "max_running_requests": "32", "is_generation": "true"}.items():
                self.assertEqual(w["labels"][label], value)


def load_tests(loader, tests, pattern):
    only = os.environ.get("TD_ROUTER")
    cases = [BehindNginx, BehindHaProxy, BehindSglangRouter, BehindSmg]
    return unittest.TestSuite(loader.loadTestsFromTestCase(c) for c in cases if not only or c.router.__name__ == only)

"""Three servers that share a prefix cache, behind a router, while servers and the store are killed and started again: every completed answer is the single server's to the last bit, every request ends with an answer or an error,
nothing of a page stays behind. A few seconds for each kind of store; with TD_TEST_FULL=1 five minutes each."""
import http.client
import os
import random
import threading
import time
import unittest

from kv_stores import FakeStore, MooncakeStore, Sharer, free_port
from routers import SglangRouter

SEED = int(os.environ.get("TD_TEST_SEED", random.randrange(1 << 30)))
SECONDS = 300 if os.environ.get("TD_TEST_FULL") else 6
CLIENTS = 3
WORDS = "king queen forest river golden key horse wolf castle night bread stone mill daughter".split()
FAULTS = ["", "seed=%d flip=10", "seed=%d lose=20 fail=20", "seed=%d swap=10 refuse=20", "delay_ms=50", "down=1"]


def story(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def what_matters(answer):
    choice = answer["choices"][0]
    return choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]


class Chaos:
    @classmethod
    def setUpClass(cls):
        print(f"TD_TEST_SEED={SEED}", flush=True)

    def start(self, i):
        self.workers[i] = Sharer(self.store, "--port", str(self.ports[i]), max_tokens=4096, max_wait_ms=500)

    def kill(self, i):
        w = self.workers[i]
        w.process.kill()
        w.process.wait()
        w.process.stdout.close()
        w.log.close()

    def setUp(self):
        self.rng = random.Random(SEED)
        self.store = self.make_store()
        self.addCleanup(self.store.close)
        self.ports, self.workers = [free_port() for _ in range(3)], [None] * 3
        self.addCleanup(lambda: [self.kill(i) for i in range(3) if self.workers[i] and self.workers[i].process.poll() is None])
        for i in range(3):
            self.start(i)
        self.router = SglangRouter(self.workers)
        self.addCleanup(self.router.close)

    def body(self, prompt):
        return {"model": "tale", "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1}

    def client(self, seed):
        rng = random.Random(seed)
        while time.monotonic() < self.end:
            prompt = rng.choice(self.prompts)
            try:
                status, answer = self.router.request("POST", "/v1/completions", self.body(prompt), timeout=60)
            except (OSError, http.client.HTTPException) as why:
                self.problems.append(f"the router gave no answer: {why!r}")  # it lives: each request has to end with an answer or an error
                return
            if status != 200:
                self.failed.append(status)
            elif what_matters(answer) == self.right[prompt]:
                self.completed.append(prompt)
            else:
                self.problems.append(f"another answer to {prompt[:40]!r}: {what_matters(answer)}, not {self.right[prompt]}")

    def do_harm(self):
        """Kill or damage something, and mend it."""
        what = self.rng.randrange(3)
        if what == 0:
            i = self.rng.randrange(3)
            self.kill(i)
            time.sleep(self.rng.random())
            self.start(i)
        elif what == 1:
            self.store.kill()
            time.sleep(self.rng.random())
            self.store.restart()
        else:
            self.disturb()

    def disturb(self):
        time.sleep(0.5)

    def test_chaos(self):
        beginnings = [story(self.rng, n) for n in (120, 200, 300)]
        self.prompts = [self.rng.choice(beginnings) + " " + story(self.rng, self.rng.randrange(80)) for _ in range(12)]
        with Sharer(None) as alone:
            answers = [alone.request("POST", "/v1/completions", self.body(p), timeout=120) for p in self.prompts]
        self.right = {p: what_matters(a[1]) for p, a in zip(self.prompts, answers)}
        self.problems, self.failed, self.completed = [], [], []
        self.end = time.monotonic() + SECONDS
        clients = [threading.Thread(target=self.client, args=(SEED + i,)) for i in range(CLIENTS)]
        for c in clients:
            c.start()
        harms = 0
        while time.monotonic() < self.end:
            self.do_harm()
            harms += 1
        for c in clients:
            c.join()
        self.assertEqual(self.problems, [])
        print(f"{len(self.completed)} completed, {len(self.failed)} failed, {harms} harms", flush=True)
        self.assertGreater(len(self.completed), 3 * len(self.failed))
        for w in self.workers:
            w.wait_metric("tandem:kv_store_up", 1, timeout=90)
            w.settle()
            self.assertEqual(w.metric("sglang:num_used_tokens"), 0)
            self.assertEqual(w.stop(), 0, w.stderr()[-2000:])


class WithFake(Chaos, unittest.TestCase):
    make_store = FakeStore

    def disturb(self):
        text = self.rng.choice(FAULTS)
        self.store.set_faults(text % self.rng.randrange(1000) if "%" in text else text)
        time.sleep(0.5 + self.rng.random())
        self.store.set_faults("")


@unittest.skipIf(MooncakeStore.missing(), MooncakeStore.missing())
class WithMooncake(Chaos, unittest.TestCase):
    make_store = MooncakeStore


del Chaos

if __name__ == "__main__":
    unittest.main(verbosity=2)

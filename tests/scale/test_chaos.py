"""Three servers share a prefix cache, behind a router. Meanwhile servers and the store are killed, frozen and started again, and links are cut or
held. Every completed answer is a single server's to the last bit, every request ends with an answer or an error, and no page or descriptor is left
behind. A few seconds for each kind of store; with TD_TEST_FULL=1 ten minutes."""
import http.client
import json
import os
import random
import signal
import threading
import time
import unittest

from kv_stores import FakeStore, LinkedMooncake, Sharer
from routers import SglangRouter
from server_process import free_port, wait_until
from stories import SEED, story, what_matters

SECONDS = 600 if os.environ.get("TD_TEST_FULL") else 8
CLIENTS = 3


def joined(events):
    """What matters of a stream, or None where it does not end as a stream does."""
    if not events or events[-1] != "[DONE]":
        return None
    text, reason, tokens, logprobs = "", None, [], []
    for event in events[:-1]:
        event = json.loads(event)
        if "choices" not in event:
            return None  # an error, said amid the stream
        choice = event["choices"][0]
        text += choice["text"]
        reason = choice["finish_reason"] or reason
        if choice["logprobs"]:
            tokens += choice["logprobs"]["tokens"]
            logprobs += choice["logprobs"]["token_logprobs"]
    return text, reason, tokens, logprobs


class Chaos:
    def start(self, i):
        w = self.workers[i] = Sharer(self.store, "--port", str(self.ports[i]), number=i, max_tokens=4096, max_wait_ms=500)
        self.descriptors[i] = self.count_descriptors(w)

    def count_descriptors(self, worker):
        """Of a server: files, and connections to its API. The store's library keeps connections of its own, with what it needs to wait for them."""
        pid, sockets, count = worker.process.pid, set(), 0
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                name = os.readlink(f"/proc/{pid}/fd/{fd}")
            except FileNotFoundError:
                continue
            sockets.add(name)
            count += not name.startswith(("socket:", "anon_inode:", "pipe:"))
        with open(f"/proc/{pid}/net/tcp") as f:
            for line in f.read().splitlines()[1:]:
                field = line.split()
                count += field[1].endswith(f":{worker.port:04X}") and f"socket:[{field[9]}]" in sockets
        return count

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
        self.ports, self.workers, self.descriptors = [free_port() for _ in range(3)], [None] * 3, [0] * 3
        self.addCleanup(lambda: [self.kill(i) for i in range(3) if self.workers[i] and self.workers[i].process.poll() is None])
        for i in range(3):
            self.start(i)
        self.router = SglangRouter(self.workers)
        self.addCleanup(lambda: self.router.process.poll() is None and self.router.close())

    def body(self, prompt, **more):
        return {"model": "tale", "prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 1, **more}

    def stream(self, prompt):
        """(status, what matters or None where it was cut)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.router.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(self.body(prompt, stream=True)), {"Content-Type": "application/json"})
        response = connection.getresponse()
        events = []
        try:
            for line in response:
                if line.startswith(b"data: "):
                    events.append(line[6:].decode().strip())
        except (http.client.IncompleteRead, ConnectionError):
            pass
        connection.close()
        return response.status, joined(events)

    def client(self, seed):
        rng = random.Random(seed)
        while not self.over.is_set():
            prompt = rng.choice(self.prompts)
            try:
                if rng.random() < 0.5:
                    status, got = self.stream(prompt)
                else:
                    status, answer = self.router.request("POST", "/v1/completions", self.body(prompt), timeout=60)
                    got = what_matters(answer) if status == 200 else None
            except (OSError, http.client.HTTPException) as why:
                self.problems.append(f"the router gave no answer: {why!r}")  # it lives: each request has to end with an answer or an error
                return
            if got is None:
                self.failed.append(status)
            elif got == self.right[prompt]:
                self.completed.append(prompt)
            else:
                self.problems.append(f"another answer to {prompt[:40]!r}: {got}, not {self.right[prompt]}")

    # ---- harm: each breaks something, and mends it ----

    def pause(self, most=1.0):
        time.sleep(most * self.rng.random())

    def kill_a_server(self):
        i = self.rng.randrange(3)
        self.kill(i)
        self.pause()
        self.start(i)

    def freeze_a_server(self):
        """The others reach it, and it says nothing."""
        w = self.workers[self.rng.randrange(3)]
        w.process.send_signal(signal.SIGSTOP)
        self.pause(2)
        w.process.send_signal(signal.SIGCONT)

    def kill_the_store(self):
        self.store.kill()
        self.pause()
        self.store.restart()

    def cut_a_link(self):
        i = self.rng.choice([None, 0, 1, 2])
        self.store.cut(i)
        self.pause(2)
        self.store.mend(i)

    def hold_a_link(self):
        """Longer than prompts wait; what was held goes on, or its connections end."""
        i = self.rng.choice([None, 0, 1, 2])
        self.store.hold(i)
        self.pause(4)
        if self.rng.random() < 0.5:
            self.store.cut(i)
        self.store.mend(i)

    harms = [kill_a_server, freeze_a_server, kill_the_store, cut_a_link, hold_a_link]

    # ----

    def check_sharing(self):
        """Pages go from the first to the second: Mooncake's clients give their memory to a new master by themselves, after a while."""
        end = time.monotonic() + 300
        for n in range(1000):
            prompt = f"{n} {story(self.rng, 200)}"
            self.workers[0].ask(prompt)
            self.workers[0].settle()
            if self.workers[1].ask(prompt)[1] > 0:
                return
            self.assertLess(time.monotonic(), end, "pages do not go from one to the other any more")
            time.sleep(0.5)

    def test_chaos(self):
        beginnings = [story(self.rng, n) for n in (120, 200, 300)]
        self.prompts = [self.rng.choice(beginnings) + " " + story(self.rng, self.rng.randrange(80)) for _ in range(12)]
        with Sharer(None) as alone:
            answers = [alone.request("POST", "/v1/completions", self.body(p), timeout=600) for p in self.prompts]
        self.right = {p: what_matters(a[1]) for p, a in zip(self.prompts, answers)}
        self.problems, self.failed, self.completed = [], [], []
        self.over = threading.Event()
        clients = [threading.Thread(target=self.client, args=(SEED + i,)) for i in range(CLIENTS)]
        for c in clients:
            c.start()
        done = dict.fromkeys((h.__name__ for h in self.harms), 0)
        end = time.monotonic() + SECONDS
        try:
            while time.monotonic() < end:
                harm = self.rng.choice(self.harms)
                done[harm.__name__] += 1
                harm(self)
                before = len(self.completed)
                wait_until(lambda: len(self.completed) > before + CLIENTS or self.problems, says=f"requests are completed again after {harm.__name__}")
        finally:
            self.over.set()
            for c in clients:
                c.join()
        self.router.close()
        self.assertEqual(self.problems, [])
        print(f"{len(self.completed)} completed, {len(self.failed)} failed, {done}", flush=True)
        for w in self.workers:
            w.wait_metric("tandem:kv_store_up", 1, timeout=90)
        self.check_sharing()
        for w, descriptors in zip(self.workers, self.descriptors):
            w.settle()
            self.assertEqual(w.metric("sglang:num_used_tokens"), 0)
            end = time.monotonic() + 300
            while (now := self.count_descriptors(w)) > descriptors:
                self.assertLess(time.monotonic(), end, f"{now} descriptors, {descriptors} at the beginning")
                time.sleep(0.1)
            self.assertEqual(w.stop(), 0, w.stderr()[-2000:])


class WithFake(Chaos, unittest.TestCase):
    make_store = FakeStore

    def damage_pages(self):
        chances = {name: self.rng.randrange(25) for name in ("flip", "lose", "fail", "swap", "short", "long", "refuse") if self.rng.random() < 0.4}
        self.store.set_faults(" ".join(f"{name}={value}" for name, value in {"seed": self.rng.randrange(1000), "delay_ms": self.rng.choice([0, 0, 50]), **chances}.items()))
        self.pause(2)
        self.store.set_faults("")

    harms = [*Chaos.harms, damage_pages]


@unittest.skipIf(LinkedMooncake.missing(), LinkedMooncake.missing())
class WithMooncake(Chaos, unittest.TestCase):
    @staticmethod
    def make_store():
        return LinkedMooncake(3)


del Chaos

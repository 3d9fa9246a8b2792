"""KV events of the whole program on the demo model: the index of every consumer has each page that the prefix cache holds, and no other."""
import concurrent.futures
import json
import os
import random
import re
import socket
import subprocess
import tempfile
import unittest

import zmq
from kv_consumer import PAGE, Consumer, Dynamo
from kv_stores import listening
from program import MODEL, TANDEM
from server_process import PATIENCE, Server, free_port
from stories import SEED, story

HERE = "tcp://127.0.0.1:*"


class Worker(Server):
    """A server with KV events; `published` and `replay` are its addresses."""

    def __init__(self, *flags, endpoint=HERE, replay_endpoint=HERE, max_tokens=4096, **config):
        config = {"publisher": "zmq", "endpoint": endpoint, **({"replay_endpoint": replay_endpoint} if replay_endpoint else {}), **config}
        super().__init__("--kv-events-config", json.dumps(config), "--max-total-tokens", str(max_tokens), "--context-length", "1024", "--served-model-name", "tale",
                         "--skip-server-warmup", *flags, program=[TANDEM], model=MODEL)
        log = self.stderr()
        self.published = re.search(r"kv events: published at (\S+),", log)[1]
        self.replay = re.search(r"kv events: what was missed is at (\S+)", log)[1] if replay_endpoint else None

    def ask(self, prompt, n=4, **more):
        status, answer, _ = self.request("POST", "/v1/completions", {"model": "tale", "prompt": prompt, "max_tokens": n, "temperature": 0, **more}, timeout=120)
        assert status == 200, answer
        return answer

    def tokens(self, prompt):
        return self.request("POST", "/tokenize", {"prompt": prompt})[1]["tokens"]

    def cached_pages(self):
        """Of an idle server: all that the prefix cache holds."""
        assert self.metric("sglang:num_running_reqs") == 0
        return int(self.metric("tandem:cached_kv_tokens")) // PAGE


def ask_many(worker, rng, n, beginnings):
    """Prompts with common beginnings, two at a time. @return them."""
    prompts = [rng.choice(beginnings) + " " + story(rng, rng.randrange(200)) for _ in range(n)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(worker.ask, prompts))
    return prompts


class Events(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(SEED)
        self.beginnings = [story(self.rng, n) for n in (150, 250, 400)]

    def worker(self, *flags, **more):
        worker = Worker(*flags, **more)
        self.addCleanup(worker.__exit__, None, None, None)
        return worker

    def consumer(self, worker, **more):
        consumer = Consumer(worker.published, more.pop("replay", worker.replay), **more)
        self.addCleanup(consumer.close)
        return consumer

    def dynamo(self, worker):
        dynamo = Dynamo()
        self.addCleanup(dynamo.close)
        dynamo.register(1, worker.published, worker.replay)
        return dynamo

    def check(self, worker, consumer, dynamo=None, prompts=()):
        """The consumers have what the cache holds: as many pages, all of them beginnings of what was asked, and each prompt is found as far as the server finds it."""
        pages = worker.cached_pages()
        consumer.settle(lambda index: len(index.pages) == pages)
        known = consumer.index.pages

        def settle_dynamo():
            if dynamo:
                dynamo.settle(lambda d: d.hashes() == {h % (1 << 64) for h in consumer.index.pages})

        asked = [tuple(worker.tokens(p)) for p in prompts]
        for tokens in known.values():
            self.assertTrue(not asked or any(a[:len(tokens)] == tokens for a in asked), "a page of what nobody asked")
        settle_dynamo()
        by_tokens = set(known.values())
        for p, tokens in list(zip(prompts, asked))[-6:]:
            held = next((n for n in range(0, len(tokens), PAGE) if tokens[:n + PAGE] not in by_tokens), len(tokens))
            if dynamo:
                self.assertEqual(dynamo.matched(tokens), held)
            found = worker.ask(p, n=1)["usage"]["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual(found, min(held, (len(tokens) - 1) // PAGE * PAGE), "what the server finds is what the index had")
            pages = worker.cached_pages()  # asking may have moved pages
            consumer.settle(lambda index: len(index.pages) == pages)
            settle_dynamo()
            by_tokens = set(consumer.index.pages.values())

    def test_evictions_and_flush(self):
        worker = self.worker(max_tokens=1280)
        early, dynamo = self.consumer(worker), self.dynamo(worker)
        prompts = ask_many(worker, self.rng, 40, self.beginnings)
        self.assertGreater(worker.metric("tandem:evicted_pages_total"), 10)
        self.check(worker, early, dynamo, prompts)
        late = self.consumer(worker)  # the server is idle: it is told by number what it missed
        self.check(worker, late)
        self.assertEqual(late.index.pages, early.index.pages)
        self.assertEqual(worker.request("POST", "/flush_cache")[0], 200)
        worker.wait_metric("tandem:cached_kv_tokens", 0)  # the engine does it before its next step, not before the answer
        self.check(worker, early, dynamo)
        self.assertEqual(early.index.pages, {})
        prompts = ask_many(worker, self.rng, 5, self.beginnings)
        self.check(worker, early, dynamo, prompts)
        self.check(worker, late)

    def test_retractions(self):
        worker = self.worker("--max-running-requests", "8", max_tokens=1024)
        consumer = self.consumer(worker)
        prompts = [story(self.rng, 60 + 10 * i) for i in range(8)]
        worker.ask(prompts, n=240, ignore_eos=True)  # of one request, so that all run at the same time
        self.assertGreater(worker.metric("sglang:num_retracted_requests_total"), 0)
        self.check(worker, consumer)

    def test_flush_amid_requests(self):
        worker = self.worker(max_tokens=2048)
        consumer = self.consumer(worker)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(worker.ask, self.rng.choice(self.beginnings) + story(self.rng, 50), 60) for _ in range(10)]
            while not all(a.done() for a in asked):
                worker.request("POST", "/flush_cache")
                consumer.take(0.05)
        worker.ask("the end", n=1)  # comes after every flush
        self.check(worker, consumer)
        self.check(worker, self.consumer(worker))

    def test_a_subscriber_that_reconnects(self):
        worker = self.worker(max_tokens=1536)
        first = self.consumer(worker)
        ask_many(worker, self.rng, 5, self.beginnings)
        self.check(worker, first)
        first.close()
        ask_many(worker, self.rng, 12, self.beginnings)
        again = self.consumer(worker, index=first.index)  # knows what it had, and where it stood
        self.check(worker, again)
        self.assertEqual(again.gaps, 1)

    def test_what_is_kept_is_too_short(self):
        """Messages are gone that a subscriber asks for: everything is told again."""
        worker = self.worker(max_tokens=1024, buffer_steps=4)
        first = self.consumer(worker)
        ask_many(worker, self.rng, 3, self.beginnings)
        self.check(worker, first)
        first.close()
        ask_many(worker, self.rng, 25, self.beginnings)
        self.check(worker, self.consumer(worker, index=first.index))
        self.check(worker, self.consumer(worker))
        ask_many(worker, self.rng, 3, self.beginnings)
        self.check(worker, self.consumer(worker, index=first.index))

    def test_without_replay(self):
        """Nobody can ask, so everything is told to all when somebody comes."""
        worker = self.worker(max_tokens=1536, replay_endpoint=None, topic="kv@127.0.0.1@tale")
        ask_many(worker, self.rng, 8, self.beginnings)
        for _ in range(3):
            self.check(worker, self.consumer(worker, topic=b"kv@127.0.0.1@tale"))
        other = self.consumer(worker, topic=b"other")
        ask_many(worker, self.rng, 2, self.beginnings)
        self.assertFalse(other.take(0.3))

    def test_a_restart(self):
        """A worker that comes back at the same address with an empty cache, for consumers that were there before."""
        ports = free_port(), free_port()
        where = {"endpoint": f"tcp://127.0.0.1:{ports[0]}", "replay_endpoint": f"tcp://127.0.0.1:{ports[1]}"}
        worker = self.worker(**where)
        consumer, dynamo = self.consumer(worker), self.dynamo(worker)
        prompts = ask_many(worker, self.rng, 6, self.beginnings)
        self.check(worker, consumer, dynamo, prompts)
        had = dict(consumer.index.pages)
        worker.stop()
        worker = self.worker(**where)
        prompts = [story(self.rng, 300)]
        worker.ask(prompts[0])
        self.check(worker, consumer, dynamo, prompts)
        self.assertTrue(consumer.index.pages and not consumer.index.pages.keys() & had.keys())

    def test_a_slow_subscriber(self):
        """It takes nothing while requests run: they end all the same, and it finds out by the numbers what it missed."""
        worker = self.worker(max_tokens=1536, hwm=1)
        slow = self.consumer(worker, receive_hwm=1)
        slow.sub.setsockopt(zmq.RCVBUF, 1024)
        fast = self.consumer(worker)
        ask_many(worker, self.rng, 25, self.beginnings)
        fast_pages = worker.cached_pages()
        fast.settle(lambda index: len(index.pages) == fast_pages)
        self.check(worker, slow)
        self.assertEqual(slow.index.pages, fast.index.pages)

    def test_hostile_peers(self):
        worker = self.worker(max_tokens=1536)
        consumer = self.consumer(worker)
        rng = random.Random(SEED + 1)
        for address in (worker.published, worker.replay):
            host, port = address.removeprefix("tcp://").split(":")
            for size in (0, 1, 10, 64, 5000):
                with socket.create_connection((host, int(port))) as s:
                    s.sendall(rng.randbytes(size))
            greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31)
            with socket.create_connection((host, int(port))) as s:  # past the greeting, then a frame of 2^62 bytes
                s.sendall(greeting + b"\x02" + (1 << 62).to_bytes(8, "big") + rng.randbytes(1000))
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(worker.replay)
        for frames in ([b""], [b"x"], [b"", b""], [b"", b"1234567"], [b"", bytes(9)], [b"", bytes(8), b""], [b""] * 40, [b"", bytes(60)]):
            dealer.send_multipart(frames)
        for _ in range(300):  # asks, and does not read
            dealer.send_multipart([b"", bytes(8)])
        ask_many(worker, self.rng, 5, self.beginnings)
        self.check(worker, consumer)
        self.check(worker, self.consumer(worker))
        context.destroy(linger=0)
        subscriber = zmq.Context()
        sub = subscriber.socket(zmq.SUB)
        sub.connect(worker.published)
        for i in range(2000):
            sub.setsockopt(zmq.SUBSCRIBE, b"%d" % i)
        sub.setsockopt(zmq.SUBSCRIBE, bytes(200))
        ask_many(worker, self.rng, 3, self.beginnings)
        self.check(worker, consumer)
        subscriber.destroy(linger=0)


class Refused(unittest.TestCase):
    @staticmethod
    def launch(config, *flags, env=None):
        done = subprocess.run([TANDEM, "launch_server", "--model-path", MODEL, "--port", "0", "--kv-events-config", config if isinstance(config, str) else json.dumps(config), *flags],
                              capture_output=True, text=True, timeout=60 * PATIENCE, env={**os.environ, **(env or {})})
        return done.returncode, done.stderr.strip().splitlines()[-1]

    def test_misuse(self):
        for config, says in (("{", "not JSON"), ({"publisher": "nats"}, "publisher must be"), ({"publisher": "zmq", "endpoint": "5557"}, "no address to bind"),
                             ({"publisher": "zmq", "max_queue_size": 9}, "max_queue_size is not there"), ({"publisher": "zmq", "buffer_steps": 0}, "from 1 to")):
            code, line = self.launch(config)
            self.assertEqual(code, 2, line)
            self.assertIn("--kv-events-config: ", line)
            self.assertIn(says, line)
        code, line = self.launch({"publisher": "zmq"}, "--disable-radix-cache")
        self.assertEqual((code, "nothing to tell" in line), (2, True), line)

    def test_an_address_that_cannot_be_had(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            taken = f"tcp://127.0.0.1:{s.getsockname()[1]}"
            for config, says in (({"endpoint": taken}, f"endpoint {taken} is in use by another program"),
                                 ({"endpoint": HERE, "replay_endpoint": taken}, f"replay_endpoint {taken} is in use by another program"),
                                 ({"endpoint": "tcp://203.0.113.1:5557"}, "endpoint tcp://203.0.113.1:5557 cannot be bound: "),
                                 ({"endpoint": "tcp://127.0.0.1:x"}, "cannot be bound: "), ({"endpoint": "ipc:///nowhere/x"}, "cannot be bound: ")):
                code, line = self.launch({"publisher": "zmq", **config})
                self.assertEqual(code, 1, line)
                self.assertIn("kv-events-config: ", line)
                self.assertIn(says, line)

    def test_binds_to_the_address_that_it_is_given(self):
        for address in ("127.0.0.1", "127.0.0.2", "*"):
            with Worker(endpoint=f"tcp://{address}:*", replay_endpoint=f"tcp://{address}:*") as worker:
                ports = listening(worker.process.pid)
                self.assertEqual(len(ports), 3)
                self.assertEqual({a for a, port in ports if port != worker.port}, {"0.0.0.0" if address == "*" else address})
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", 5557))
                s.listen()
            except OSError:
                pass  # it is taken already
            code, line = self.launch({"publisher": "zmq"})
            self.assertIn("endpoint tcp://127.0.0.1:5557 is in use", line, "the default is this machine")

    def test_without_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            open(f"{folder}/libzmq.so.5", "w").close()
            code, line = self.launch({"publisher": "zmq", "endpoint": HERE}, env={"LD_LIBRARY_PATH": folder})
            self.assertEqual((code, "KV events need ZeroMQ, which cannot be loaded (Debian: libzmq5)" in line), (1, True), line)
            with Server("--skip-server-warmup", program=[TANDEM], model=MODEL, env={"LD_LIBRARY_PATH": folder}) as plain:
                self.assertEqual(plain.request("GET", "/health")[0], 200)

    def test_a_buffer_that_is_too_short_for_the_cache(self):
        code, line = self.launch({"publisher": "zmq", "endpoint": HERE, "buffer_steps": 1}, "--max-total-tokens", str(128 * 64))
        self.assertEqual(code, 1, line)
        self.assertRegex(line, r"for a KV cache of 64 pages buffer_steps must be at least 6$")

    def test_off(self):
        with Server("--kv-events-config", '{"publisher": "null"}', "--skip-server-warmup", program=[TANDEM], model=MODEL) as server:
            self.assertNotIn("kv events", server.stderr())

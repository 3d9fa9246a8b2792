"""The prefix cache that servers share through a store. One server takes what another computed, to the last bit. Whatever happens to the store, every
answer is what a server without a store gives."""
import concurrent.futures
import random
import socket
import subprocess
import time
import unittest

from kv_stores import PAGE, TANDEM, FakeStore, LinkedMooncake, MooncakeStore, Sharer, listening
from stories import SEED, story

PATIENT_MS = 60000  # a prompt waits as long as its pages take: on a busy machine more than the default


class Servers:
    """Servers over `make_store`'s store, and `alone`, one without."""

    @classmethod
    def setUpClass(cls):
        cls.alone = Sharer(None)
        cls.addClassCleanup(cls.alone.__exit__, None, None, None)

    def setUp(self):
        self.rng = random.Random(SEED)
        self.store = self.make_store()
        self.addCleanup(self.store.close)

    def server(self, *flags, **more):
        server = Sharer(self.store, *flags, **more)
        self.addCleanup(server.__exit__, None, None, None)
        return server

    def right(self, server, prompt):
        """Ask; the answer has to be that of a server without a store. @return prompt tokens that were not computed."""
        answer, cached = server.ask(prompt)
        self.assertEqual(answer, self.alone.ask(prompt)[0])
        return cached

    def check_held(self, hold, ends=True):
        """A link of `other` that drops everything, its connections kept: prompts are computed meanwhile, one of them after its deadline. @param ends  the call that hangs ends though nothing was mended."""
        one, other = self.server(number=0, max_wait_ms=300), self.server(number=1, max_wait_ms=300, global_segment_size=0)
        prompts = [story(self.rng, 200) for _ in range(5)]
        for prompt in prompts:
            self.right(one, prompt)
        one.settle()
        self.wait_for_sharing(one, other)  # at once, but where a busy machine is late for the deadline
        late, refused = (other.store("lookups_total", what) for what in ("late", "refused"))
        hold()
        for prompt in prompts[1:4]:
            self.assertEqual(self.right(other, prompt), 0)
        late, refused = other.store("lookups_total", "late") - late, other.store("lookups_total", "refused") - refused
        self.assertGreaterEqual(late, 1)
        self.assertGreaterEqual(late + refused, 3)
        if ends:
            other.settle()
            self.assertGreaterEqual(other.store("failures_total"), 1)
        self.store.mend()
        other.wait_up()
        self.wait_for_sharing(one, other)
        other.settle()

    def wait_for_sharing(self, one, other):
        """Until pages go from one to the other: Mooncake's clients give their memory to a new master by themselves, after a while."""
        end = time.monotonic() + 300
        for n in range(1000):
            prompt = story(self.rng, 200) + f" {n}"
            self.right(one, prompt)
            one.settle()
            if self.right(other, prompt) > 0:
                return
            self.assertLess(time.monotonic(), end, "pages do not go from one to the other any more")
            time.sleep(0.5)


class Shared(Servers):
    """What holds with every store."""

    def test_one_computes_and_the_other_takes(self):
        one, other = (self.server("--device", self.device, max_wait_ms=PATIENT_MS) for _ in range(2))
        prompts = [story(self.rng, 500), story(self.rng, 300)]  # words of a token or two: two pages at least
        pages = 0
        for prompt in prompts:
            self.assertEqual(self.right(one, prompt), 0)
            one.settle()
            cached = self.right(other, prompt)
            self.assertGreater(cached, 2 * PAGE - 1)
            pages += cached // PAGE
        self.assertEqual(other.store("pages_total", "in"), pages)
        self.assertEqual(other.store("pages_total", "bad"), 0)
        self.assertGreaterEqual(one.store("pages_total", "out"), pages)
        self.assertEqual(other.request("POST", "/flush_cache")[0], 200)
        self.assertEqual(self.right(other, prompts[0] + " and then"), self.right(one, prompts[0] + " and then"))

    def test_listens_only_where_it_is_told(self):
        """By default, by listen_address, and everywhere where that is said."""
        for config, address in (({}, "127.0.0.1"), ({"listen_address": "127.0.0.2", "local_hostname": "127.0.0.1"}, "127.0.0.2"), ({"local_hostname": "localhost", "listen_address": "0.0.0.0"}, None)):
            with Sharer(self.store, **config) as server:
                ports = listening(server.process.pid)
                self.assertIn(("127.0.0.1", server.port), ports)
                others = {a for a, port in ports if port != server.port}
                self.assertEqual(others, {"0.0.0.0", "::"} if address is None else {address}, ports)
                self.assertGreaterEqual(len(ports), 3)

    def test_other_numbers_are_not_taken(self):
        one, other = self.server(), self.server("--quantization", "none")
        prompt = story(self.rng, 300)
        self.right(one, prompt)
        one.settle()
        self.assertEqual(other.ask(prompt)[1], 0)
        self.assertEqual(other.store("pages_total", "in"), 0)

    def test_store_dies_and_comes_back(self):
        one, other = self.server(), self.server()
        prompts = [story(self.rng, 200) for _ in range(6)]
        self.wait_for_sharing(one, other)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            running = [pool.submit(other.ask, p) for p in prompts[1:5]]
            self.store.kill()
            for prompt, answer in zip(prompts[1:5], running):
                self.assertEqual(answer.result()[0], self.alone.ask(prompt)[0])
        for server in (one, other):
            server.wait_metric("tandem:kv_store_up", 0, timeout=60)
            self.right(server, prompts[5])
            server.wait_log_match("kv store: (asking|sending|fetching)")
            self.assertEqual(server.stderr().count("kv store: asking") + server.stderr().count("kv store: sending") + server.stderr().count("kv store: fetching"), 1, "one line, not one for each call")
        self.store.restart()
        for server in (one, other):
            server.wait_metric("tandem:kv_store_up", 1, timeout=90)
        self.wait_for_sharing(one, other)
        for server in (one, other):
            server.settle()


class WithFake(Shared, unittest.TestCase):
    make_store = FakeStore
    device = "apart"

    def test_slow_store_costs_its_deadline(self):
        one, other = self.server(), self.server(max_wait_ms=300)
        prompt = story(self.rng, 300)
        self.right(one, prompt)
        one.settle()
        self.store.set_faults("delay_ms=4000")
        answer, cached = other.ask(prompt)
        self.assertEqual((answer, cached), (self.alone.ask(prompt)[0], 0))
        self.assertEqual(other.store("lookups_total", "late"), 1)
        self.store.set_faults("")
        other.settle()

    def test_held_link(self):
        self.check_held(self.store.hold, ends=False)

    def test_faults_and_evictions(self):
        servers = [self.server(max_tokens=2048, max_wait_ms=300) for _ in range(2)]
        beginnings = [story(self.rng, n) for n in (100, 200, 300)]
        faults = ["", "seed=1 flip=20", "seed=2 swap=20 short=10", "seed=3 lose=20 fail=20 refuse=30", "delay_ms=30", "down=1", ""]
        asked = []
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for text in faults:
                self.store.set_faults(text)
                round_ = [self.rng.choice(beginnings) + " " + story(self.rng, self.rng.randrange(60)) for _ in range(8)]
                running = [pool.submit(servers[i % 2].ask, p) for i, p in enumerate(round_)]
                asked += [(p, r.result()[0]) for p, r in zip(round_, running)]
            for server in servers:
                pool.submit(server.request, "POST", "/flush_cache")
        for prompt, answer in asked:
            self.assertEqual(answer, self.alone.ask(prompt)[0])
        for server in servers:
            server.settle()
            self.assertEqual(server.metric("sglang:num_used_tokens"), 0)
        self.wait_for_sharing(*servers)
        print({what: sum(s.store("pages_total", what) for s in servers) for what in ("out", "in", "bad", "unsent")}, flush=True)  # as chance has it

    def test_needs_what_it_needs(self):
        for config, words in (({"master_server_address": ""}, "master_server_address is missing"), ({"library": "/nowhere.so"}, "/nowhere.so")):
            with self.assertRaises(RuntimeError) as refused:
                Sharer(self.store, **config)
            self.assertIn(words, str(refused.exception))
        for flags, words in ((["--kv-store", "mooncake"], "--kv-store-config FILE is missing"), (["--kv-store-config", "x"], "--kv-store mooncake is missing"), (["--kv-store", "redis"], "--kv-store redis is not supported yet"),
                             (["--kv-store", "mooncake", "--kv-store-config", "/nowhere"], "/nowhere"), (["--kv-store", "mooncake", "--kv-store-config", "x", "--disable-radix-cache"], "nothing to share")):
            ended = subprocess.run([TANDEM, "launch_server", "--model-path", "x", *flags, "--check"], capture_output=True, text=True)
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn(words, ended.stderr)


@unittest.skipIf(MooncakeStore.missing(), MooncakeStore.missing())
class WithMooncake(Shared, unittest.TestCase):
    make_store = MooncakeStore
    device = "host"

    def test_master_listens_only_where_it_is_told(self):
        """With the flags of docs/scaling.md."""
        end, ports = time.monotonic() + 300, set()
        while len(ports) < 2 and time.monotonic() < end:
            ports = listening(self.store.process.pid)
            time.sleep(0.1)
        self.assertEqual(ports, {("127.0.0.1", self.store.port), ("127.0.0.1", self.store.metrics_port)})

    def test_ipv6(self):
        with socket.socket(socket.AF_INET6) as s:
            try:
                s.bind(("::1", 0))
            except OSError:
                self.skipTest("this machine has no IPv6")
        one, other = (self.server(local_hostname="::1", max_wait_ms=PATIENT_MS) for _ in range(2))
        self.assertEqual({a for a, port in listening(one.process.pid) if port != one.port} - {"127.0.0.1"}, {"::1"})
        prompt = story(self.rng, 300)
        self.assertEqual(self.right(one, prompt), 0)
        one.settle()
        self.assertGreater(self.right(other, prompt), 0)


@unittest.skipIf(LinkedMooncake.missing(), LinkedMooncake.missing())
class HeldLinks(Servers, unittest.TestCase):
    @staticmethod
    def make_store():
        return LinkedMooncake(2)

    def test_held_link_to_the_master(self):
        self.check_held(lambda: self.store.hold(1, pages=False))

    def test_held_link_to_a_server_with_pages(self):
        self.check_held(lambda: self.store.hold(0, master=False))


del Shared  # it is no test by itself

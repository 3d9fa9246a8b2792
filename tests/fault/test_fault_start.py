"""A start in which one call fails: the server either answers as it should, or ends with one sentence. No crash, no hang, no wrong answer.

By default a sample is tried, with a seed that is printed; TD_FAULT_FULL=1 tries every place in the program that allocates and
every map and read (minutes)."""
import os
import random
import struct
import subprocess
import tempfile
import unittest

from fault import EINTR, EIO, END, MODEL, SHORT, TANDEM, Control, launch, outcome, texts

FULL = os.environ.get("TD_FAULT_FULL") == "1"
SEED = int(os.environ.get("TD_FAULT_SEED") or random.randrange(1 << 32))
draw = random.Random(SEED)


def sample(numbers, n):
    numbers = list(numbers)
    return numbers if FULL or len(numbers) <= n else sorted(draw.sample(numbers, n))


class Start(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        print("seed", SEED, flush=True)
        cls.right, cls.calls, cls.sites = cls.undisturbed()

    @staticmethod
    def undisturbed(*flags, model=MODEL):
        """What is right, how many calls a start makes, and for each place that allocates which allocation is its first."""
        control = Control()
        with tempfile.NamedTemporaryFile() as file, launch(control, *flags, model=model, TD_FAULT_SITES=file.name) as server:
            server.wait_ready()
            calls = {p: control[p, "seen"] for p in ("alloc", "map", "read", "thread", "thread_dies", "uring")}
            hashes = struct.unpack(f"={calls['alloc']}Q", file.read(8 * calls["alloc"]))
            first = {}
            for n, site in enumerate(hashes, 1):
                first.setdefault(site, n)
            return texts(server), calls, sorted(first.values())

    def each(self, point, numbers, *flags, right=None, model=MODEL, **fields):
        """The outcome of one start for each number of the call that fails."""
        ends = []
        for n in numbers:
            with self.subTest(point=point, n=n, flags=flags, **fields):
                control = Control()
                for field, value in {"first": n, **fields}.items():
                    control[point, field] = value
                ends.append(outcome(launch(control, *flags, model=model), right or self.right))
                self.assertGreater(control[point, "injected"], 0)
        return ends

    def test_allocations(self):
        print(f"{self.calls['alloc']} allocations in {len(self.sites)} places", flush=True)
        ends = self.each("alloc", sample(self.sites, 50))
        self.assertTrue(any("memory" in e for e in ends))

    def test_no_memory_from_then_on(self):
        for end in self.each("alloc", sample(self.sites, 12), every=1):
            self.assertNotEqual(end, "served")

    def test_maps(self):
        for end in self.each("map", sample(range(1, self.calls["map"] + 1), 6)):
            self.assertIn("cannot map", end)

    def test_short_and_interrupted_reads(self):
        """Reads that return less than asked for are no failure at all."""
        self.assertEqual(self.each("read", [1], every=1, how=SHORT), ["served"])
        self.assertEqual(self.each("read", [1], every=2, how=EINTR), ["served"])

    def test_failing_reads(self):
        numbers = sample(range(1, self.calls["read"] + 1), 5)
        self.each("read", numbers, how=EIO)
        self.each("read", numbers, how=END)

    def test_threads(self):
        for flags in ((), ("--npu-threads", "1")):
            _, calls, _ = self.undisturbed(*flags) if flags else (None, self.calls, None)
            for end in self.each("thread", range(1, calls["thread"] + 1), *flags):
                self.assertIn("cannot be started", end)
            for end in self.each("thread_dies", range(1, calls["thread_dies"] + 1), *flags):
                self.assertIn("ended before it began", end)

    def test_packed_experts(self):
        """Their files are read with io_uring where there is one, else with pread: the same answers, also when reads come short."""
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "tale-w8a8")
            subprocess.run([TANDEM, "quantize", "--model-path", MODEL, "--output", model, "--subpool-count", "1"], check=True, capture_output=True, timeout=120)
            flags = ("--quantization", "auto", "--weight-loader-disable-mmap")
            right, calls, _ = self.undisturbed(*flags, model=model)
            more = {"right": right, "model": model}
            self.assertGreater(calls["uring"], 0)
            self.assertEqual(self.each("uring", [1], *flags, every=1, **more), ["served"])
            for how, every in ((SHORT, 1), (EINTR, 2)):
                control = Control()
                control["uring", "first"] = control["uring", "every"] = 1
                control["read", "first"], control["read", "every"], control["read", "how"] = 1, every, how
                self.assertEqual(outcome(launch(control, *flags, model=model), right), "served")
                self.assertGreater(control["read", "injected"], calls["read"] // 3)
            control = Control()
            control["uring", "first"] = control["uring", "every"] = 1
            with launch(control, *flags, model=model) as server:
                server.wait_ready()
                n_reads = control["read", "seen"]
            mapping = ("--quantization", "auto")
            self.undisturbed(*mapping, model=model)  # the first start keeps the device's weights, which the others map
            _, mapped, _ = self.undisturbed(*mapping, model=model)
            self.assertEqual(mapped["uring"], 0)
            n_maps = mapped["map"]
            ends = self.each("map", sample(range(1, n_maps + 1), 6), *mapping, **more)
            self.assertTrue(all(e == "served" or "cannot map" in e for e in ends), ends)
            packed = range(calls["read"] + 1, n_reads + 1)
            self.assertTrue(packed, "pread reads the packed files where io_uring does not")
            for how in (EIO, END):
                for n in sample(packed, 2):
                    with self.subTest(n=n, how=how):
                        control = Control()
                        control["uring", "first"] = control["uring", "every"] = 1
                        control["read", "first"], control["read", "how"] = n, how
                        self.assertNotEqual(outcome(launch(control, *flags, model=model), right), "served")

"""`tandem bench` prints rows with the keys that programs rely on, and refuses wrong options. The figures themselves are not tested."""
import json
import os
import struct
import subprocess
import tempfile
import unittest

from program import SOURCE, tandem
from server_process import wait_until

TINY = os.path.join(SOURCE, "tests/data/golden/deepseek_v2_lite/config.json")
KEYS = {"bench", "shape", "m", "threads", "kernel", "time_us", "gbps", "gops", "bound", "fraction", "int8_fraction"}


def bench(*args):
    return tandem("bench", *args)


class Bench(unittest.TestCase):
    def rows(self, *args, bounds=("read", "int8"), zeros=()):
        p = bench(*args, "--rounds", "1", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        rows = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertTrue(rows)
        for r in rows:
            self.assertLessEqual(KEYS, set(r))
            self.assertEqual((r["bench"], r["threads"]), (args[0], 2))
            self.assertIn(r["bound"], bounds)
            for key in ("time_us", "gbps", *(() if args[0] == "load" else ("gops",)), "fraction"):
                self.assertTrue(r[key] > 0 or key in zeros, r)
        return rows

    def test_decode(self):
        rows = self.rows("decode", "--model-path", TINY, "--threads", "2")
        self.assertEqual([r["shape"] for r in rows][:3], ["1 streams, context 16", "1 streams, context 1024", "4 streams, context 16"])
        self.assertIn(16, [r["m"] for r in rows])

    def test_experts_that_move(self):
        """Tokens recur, so a part of the experts has most of the hits; a row of shares follows each row."""
        few = ("--model-path", TINY, "--threads", "2", "--rounds", "1", "--json", "--device", "apart")
        def experts_hit():
            p = bench("decode", *few, "--num-gpu-experts", "4", "--filter", "1 streams, context 16")
            self.assertEqual(p.returncode, 0, p.stderr)
            moved = [r for r in map(json.loads, p.stdout.splitlines()) if "hits" in r]
            self.assertEqual([r["shape"] for r in moved], ["1 streams, context 16"])
            self.assertTrue(0 <= moved[0]["hits"] < 1 and moved[0]["uploads"] >= 0, moved)
            return moved[0]["hits"] > 0
        wait_until(experts_hit, step=0, says="uploads that end while it runs")
        p = bench("prefill", *few, "--num-gpu-experts", "4", "--stream-experts", "--filter", "128 tokens")
        self.assertEqual(p.returncode, 0, p.stderr)
        (moved,) = [r for r in map(json.loads, p.stdout.splitlines()) if "hits" in r]
        self.assertEqual(set(moved), {"bench", "shape", "hits", "streamed", "uploads", "streamed_uploads", "streamed_from_rows"})
        p = bench("decode", *few, "--num-gpu-experts", "0", "--filter", "1 streams, context 16")
        self.assertEqual((p.returncode, [r for r in map(json.loads, p.stdout.splitlines()) if "hits" in r]), (0, []), "the same tokens, all experts on the CPU")
        for args, words in ((("experts", "--num-gpu-experts", "4"), "--num-gpu-experts means nothing to experts"),
                            (("decode", "--model-path", TINY, "--stream-experts"), "--stream-experts means nothing to decode"),
                            (("prefill", "--model-path", TINY, "--stream-experts"), "add num-gpu-experts")):
            p = bench(*args)
            self.assertNotEqual(p.returncode, 0)
            self.assertIn(words, p.stderr)

    def test_prefill(self):
        rows = self.rows("prefill", "--model-path", TINY, "--threads", "2", "--filter", "128 tokens")
        self.assertEqual([(r["shape"], r["m"]) for r in rows], [("1 prompts of 128 tokens", 128)])
        self.assertGreater(rows[0]["gops"], rows[0]["gbps"])
        rows = self.rows("prefill", "--model-path", TINY, "--threads", "2", "--filter", "128 tokens", "--expert-quantization", "int8")
        self.assertTrue(rows[0]["kernel"].startswith("int8c_"), rows)

    def test_a_model_beyond_the_memory_is_refused(self):
        p = bench("decode", "--model-path", TINY, "--threads", "1", "--filter", "4 streams", "--json-model-override-args",
                  '{"n_routed_experts": 2048, "n_group": 1, "hidden_size": 8192, "moe_intermediate_size": 65536, "num_hidden_layers": 100}')
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        said = p.stderr
        p = bench("decode", "--model-path", TINY, "--threads", "1", "--filter", "4 streams", "--json-model-override-args", '{"moe_intermediate_size": 100000}')
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("intermediate size 100000: at most 65536 is supported", p.stderr)
        self.assertRegex(said, r"^tandem bench: the model takes \d+\.\d\d GiB, but only \d+\.\d\d GiB of memory are available\n$")

    def test_vision(self):
        rows = self.rows("vision", "--model-path", SOURCE + "/tests/data/golden/qwen3_vl_moe/config.json", "--threads", "2", "--filter", "256 x 256",
                         bounds=("f32", "bf16"), zeros=("gbps",))
        self.assertEqual([(r["shape"], r["m"]) for r in rows], [("picture of 256 x 256", 64 * 64)])
        p = bench("vision", "--model-path", TINY)
        self.assertEqual((p.returncode, p.stderr), (1, "tandem bench: DeepseekV2ForCausalLM has no vision encoder that is served\n"))

    def test_link(self):
        rows = self.rows("link", "--threads", "2", "--device", "apart", "--filter", "KiB", bounds=("link",), zeros=("gops",))
        self.assertEqual(len(rows), 8)
        p = bench("link", "--threads", "1")
        self.assertEqual((p.returncode, p.stdout, p.stderr), (1, "", "tandem bench: --device host: the device has the host's memory: nothing is copied\n"))
        p = bench("pool", "--device", "cuda")
        self.assertEqual((p.returncode, p.stderr), (2, "tandem bench: --device means nothing to pool\n"))

    def test_left_out_experts(self):
        """A step without its experts computes less; with hand-overs alone as many bytes cross the link as with them."""
        at = ("decode", "--model-path", TINY, "--threads", "1", "--filter", "4 streams, context 16", "--device", "apart", "--rounds", "1", "--json")
        rows = {}
        for left in ("none", "compute", "all"):
            p = bench(*at, "--skip-experts", left)
            self.assertEqual(p.returncode, 0, p.stderr)
            rows[left] = [json.loads(line) for line in p.stdout.splitlines()]
        links = {left: (r[1]["link_down_bytes"], r[1]["link_up_bytes"]) for left, r in rows.items()}
        self.assertEqual(links["none"], links["compute"])
        self.assertLess(links["all"][0], links["none"][0])
        self.assertLess(links["all"][1], links["none"][1])
        self.assertNotEqual(rows["none"][0]["kernel"], "none")
        self.assertEqual((rows["compute"][0]["kernel"], rows["all"][0]["kernel"]), ("none", "none"))
        self.assertLess(rows["all"][0]["gops"] * rows["all"][0]["time_us"], rows["none"][0]["gops"] * rows["none"][0]["time_us"])
        p = bench("attention", "--skip-experts", "all")
        self.assertEqual((p.returncode, p.stderr), (2, "tandem bench: --skip-experts means nothing to attention\n"))

    def test_divided(self):
        """Smaller sizes, the same names."""
        rows = self.rows("attention", "--threads", "2", "--filter", "decode, context 1024", "--divide", "16")
        self.assertEqual([(r["shape"], r["m"]) for r in rows], [("mla v2-lite decode, context 1024", 1)])
        rows = self.rows("kernels", "--threads", "2", "--filter", "kv_a", "--divide", "64", "--device", "apart")
        self.assertEqual([r["m"] for r in rows], [1, 4, 16, 64, 256, 1024])
        p = bench("roofline", "--device", "apart")
        self.assertEqual((p.returncode, p.stderr), (1, "tandem bench: --device apart: this device cannot measure its own bounds\n"))
        p = bench("decode", "--model-path", TINY, "--divide", "2")
        self.assertEqual((p.returncode, p.stderr), (2, "tandem bench: --divide means nothing to decode\n"))

    def test_load(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            tandem("quantize", "--load-format", "dummy", "--model-path", TINY, "--output", model, "--subpool-count", "1", "--expert-quantization", "int8", check=True)
            rows = self.rows("load", "--model-path", model, "--threads", "2", "--filter", "cached")
            self.assertEqual([(r["shape"], r["m"]) for r in rows], [("cached, to memory", 0), ("cached, to the first token", 8)])
            rows = self.rows("load", "--model-path", model, "--threads", "2", "--filter", "from disk", bounds=("disk",))
            self.assertEqual([r["shape"] for r in rows], ["from disk, mapped", "from disk, read"])
        p = bench("load", "--model-path", os.path.dirname(TINY))
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("load wants a folder that tandem quantize has written", p.stderr)

    def test_attention(self):
        rows = self.rows("attention", "--threads", "2", "--filter", "decode, context 1024")
        self.assertEqual([(r["kernel"], r["m"]) for r in rows], [("mla", 1)])

    def test_roofline(self):
        def measured():
            p = bench("roofline", "--rounds", "1", "--threads", "1", "--json")
            self.assertEqual(p.returncode, 0, p.stderr)
            rows = [json.loads(line) for line in p.stdout.splitlines()]
            return rows if rows[1]["gops"] > rows[2]["gops"] else None  # but for a round in which other programs had the core
        rows = wait_until(measured, step=0, says="more operations in int8 than in f32")
        self.assertEqual([(r["kernel"], r["threads"]) for r in rows if r["shape"] in ("memory", "registers") and r["kernel"] != "bf16"],
                         [("read", 1), ("int8", 1), ("f32", 1)])
        with open("/proc/cpuinfo") as f:
            self.assertEqual("bf16" in [r["kernel"] for r in rows], "avx512_bf16" in f.read())
        with open("/sys/devices/system/node/has_cpu") as f:
            first = f.read().strip().replace("-", ",").split(",")[0]
        self.assertIn((f"node {first} reads node {first}", "read"), [(r["shape"], r["kernel"]) for r in rows])
        self.assertGreater(rows[0]["gbps"], 0)

    def test_pool(self):
        p = bench("pool", "--rounds", "1", "--threads", "2", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        rows = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual([(r["kernel"], r["bound"]) for r in rows], [("line", "line")] + 3 * [("run", "line")])
        self.assertEqual({r["threads"] for r in rows}, {2})
        for r in rows:
            self.assertGreater(r["time_us"], 0)
            self.assertAlmostEqual(r["fraction"] * r["time_us"] / rows[0]["time_us"], 1, delta=2e-5)  # both have six digits
        p = bench("pool", "--threads", "1")
        self.assertEqual((p.returncode, p.stdout), (1, ""))

    def test_residency(self):
        p = bench("residency", "--filter", "128 experts", "--json")
        self.assertEqual(p.returncode, 0, p.stderr)
        rows = [json.loads(line) for line in p.stdout.splitlines()]
        self.assertEqual([(r["slots"], r["experts"]) for r in rows], [(16, 128), (32, 128), (64, 128)])
        for r in rows:
            self.assertGreater(r["belady_hits"], r["policy_hits"])
            self.assertAlmostEqual(r["belady_share"], r["policy_hits"] / r["belady_hits"], delta=2e-4)
            self.assertLess(r["policy_uploads"], 0.5)
            self.assertTrue(r["ids_hits"] < r["told_hits"] < r["belady_hits"])
        with tempfile.NamedTemporaryFile() as f:
            ids = [0, 1, 2, 3, 0, 1, 3, 2]
            f.write(b"TDROUTES" + struct.pack("<4IQ8H", 1, 1, 8, 2, 4, *ids))
            f.flush()
            p = bench("residency", "--routing", f.name)
            self.assertEqual((p.returncode, [line.split()[:6] for line in p.stdout.splitlines()[2:]]),
                             (0, [["8", "experts,", "2", "a", "token", "4"]] * 2), p.stderr)
            f.truncate(32)
            p = bench("residency", "--routing", f.name)
        self.assertEqual((p.returncode, p.stdout, p.stderr), (1, "", f"tandem bench: {f.name} is damaged: its 32 bytes are not those of 4 tokens\n"))
        p = bench("pool", "--routing", "x")
        self.assertEqual((p.returncode, p.stderr), (2, "tandem bench: --routing means nothing to pool\n"))

    def test_phases(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace.json")
            self.rows("decode", "--model-path", TINY, "--threads", "2", "--filter", "16 streams, context 16", "--trace", trace)
            p = subprocess.run([os.path.join(SOURCE, "bench/phases.py"), trace], capture_output=True, text=True, timeout=60)
        self.assertEqual(p.returncode, 0, p.stderr)
        names = [line.split("|")[1].strip() for line in p.stdout.splitlines()[2:]]
        self.assertEqual(names[:-2], ["norm 1", "mla", "norm 2", "router", "mlp", "group", "prepare", "up", "down", "combine"])
        self.assertEqual(names[-2], "between phases")

    def test_left_out(self):
        p = bench("decode", "--model-path", TINY, "--threads", "2", "--rounds", "1", "--filter", "context 16384")
        self.assertEqual(p.returncode, 1)
        self.assertRegex(p.stderr, r"^1 streams, context 16384: left out, the model has \d+ positions\ntandem bench: no row is left to measure\n$")

    def test_refusals(self):
        for args, said in [((), "which suite?"), (("decode",), "decode needs --model-path"), (("speed",), "no suite 'speed'"),
                           (("roofline", "experts"), "'experts' is one argument too many, beside 'roofline'"), (("roofline", "--rounds", "0"), "--rounds must be between 1 and 99, not 0"),
                           (("roofline", "--threads", "x"), "--threads needs a whole number"), (("roofline", "--filter", "int8"), "--filter means nothing to roofline"),
                           (("pool", "--model-path", TINY), "--model-path means nothing to pool"),
                           (("attention", "--expert-quantization", "int8"), "--expert-quantization means nothing to attention"),
                           (("experts", "--expert-quantization", "int3"), "--expert-quantization must be one of none, int4, ")]:
            with self.subTest(args=args):
                p = bench(*args)
                self.assertEqual((p.returncode, p.stdout), (2, ""))
                self.assertIn("tandem bench: ", p.stderr)
                self.assertIn(said, p.stderr)
        p = bench("decode", "--model-path", "/nonexistent.json")
        self.assertEqual(p.returncode, 1)
        self.assertIn("/nonexistent.json", p.stderr)
        p = bench("attention", "--filter", "no such row", "--threads", "1")
        self.assertEqual((p.returncode, p.stdout, p.stderr), (1, "", "tandem bench: no row is left to measure\n"))

    def test_a_full_disk_is_told(self):
        for command in (["bench", "prefill", "--model-path", TINY, "--rounds", "1", "--filter", "128 tokens"], ["topo"]):
            with self.subTest(command=command), open("/dev/full", "w") as full:
                p = tandem(*command, stdout=full)
                self.assertEqual((p.returncode, p.stderr), (1, f"tandem {command[0]}: cannot write standard output\n"))

    def test_help(self):
        p = bench("--help")
        self.assertEqual(p.returncode, 0)
        for word in ("roofline", "pool", "kernels", "attention", "experts", "decode", "prefill", "load", "residency", "--json"):
            self.assertIn(word, p.stdout)

"""`tandem plan`: its report and its JSON on example machines and on this one, its refusals, and the server's own refusal in its report. Of times only
what must follow from the machine is tested: more bandwidth is not slower, a part has its bound, and published figures are met within an order of
magnitude."""
import json
import re
import subprocess
import tempfile
import unittest

from program import SOURCE, TANDEM, tandem

TINY = SOURCE + "/tests/data/golden/deepseek_v2_lite/config.json"
R1 = SOURCE + "/configs/models/deepseek-r1.json"
QWEN = SOURCE + "/configs/models/qwen3-30b-a3b.json"
VL = SOURCE + "/configs/models/qwen3-vl-30b-a3b.json"
OSS = SOURCE + "/configs/models/gpt-oss-20b.json"
AK = SOURCE + "/configs/machines/kunpeng920-2x910b4.yaml"
REFERENCE = SOURCE + "/configs/machines/kunpeng920-7263z-2x910b4-1.yaml"
EIGHT = SOURCE + "/configs/machines/kunpeng920-5250-8x910b1.yaml"
EDGE = SOURCE + "/configs/machines/edge-epyc-9534.yaml"
MACHINE = """nodes: 1
node-cores: 2
node-memory-gib: 8
node-read-gbps: 20
node-int8-gops: 1000
node-f32-gflops: 200
"""


def run(*args, **more):
    return tandem("plan", *args, **more)


class Plan(unittest.TestCase):
    def plan(self, *args, status=0):
        p = run(*args, "--json")
        self.assertEqual((p.returncode, p.stderr), (status, ""), p.stderr)
        self.assertEqual(p.stdout.count("\n"), 1)
        return json.loads(p.stdout)

    def machine(self, text):
        f = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        f.write(text)
        f.flush()
        self.addCleanup(f.close)
        return f.name

    def refused(self, *args, status=2):
        p = run(*args)
        self.assertEqual((p.returncode, p.stdout), (status, ""), p.stderr)
        self.assertTrue(p.stderr.startswith("tandem plan: "), p.stderr)
        self.assertEqual(p.stderr.count("\n"), 1, p.stderr)
        return p.stderr

    def test_layers_that_slide(self):
        """Half of gpt-oss's layers read 128 tokens and keep no others; Qwen3's layers keep all."""
        p = self.plan("--model-path", OSS, "--machine", EDGE)
        self.assertTrue(p["fits"])
        self.assertEqual(p["kv_window"], 128)
        self.assertAlmostEqual(p["kv_sliding_bytes"], p["kv_token_bytes"] / 2)
        text = run("--model-path", OSS, "--machine", EDGE).stdout
        self.assertIn("%.1f KiB of a token's are in layers that read the last 128 tokens alone" % (p["kv_sliding_bytes"] / 1024), text)
        # 3 pages for each request, a step's rows, and an eighth of all pages for the ends of prefixes
        pages = 3 * p["model"]["max_running_requests"] + -(-(p["model"]["max_running_requests"] + p["model"]["chunked_prefill_size"]) // 128) + p["kv_tokens"] // 128 // 8
        self.assertEqual(p["kv_sliding_tokens"], 128 * pages)
        self.assertLess(p["kv_sliding_tokens"], p["kv_tokens"] / 2)
        kv = (p["kv_token_bytes"] - p["kv_sliding_bytes"]) * p["kv_tokens"] + p["kv_sliding_bytes"] * p["kv_sliding_tokens"]
        self.assertAlmostEqual(sum(m["kv_bytes"] for m in p["memory"]) / kv, 1, places=6)
        p = self.plan("--model-path", QWEN, "--machine", EDGE)
        self.assertEqual((p["kv_window"], p["kv_sliding_bytes"]), (0, 0))

    def test_images(self):
        """Qwen3-VL's encoder has 0.54 billion weights of 2 bytes. Without images, and on cards yet, it takes nothing."""
        flags = ("--model-path", VL, "--machine", EDGE, "--max-total-tokens", "65536")
        p, text, few = self.plan(*flags), self.plan(*flags, "--max-image-tokens", "0"), self.plan(*flags, "--max-image-tokens", "1024")
        self.assertEqual((p["images"]["max_tokens"], few["images"]["max_tokens"], text["images"]), (4096, 1024, None))
        self.assertAlmostEqual(p["images"]["encoder_weight_bytes"] / 2 / 0.54e9, 1, delta=0.1)
        self.assertLess(few["images"]["encoder_working_bytes"], p["images"]["encoder_working_bytes"] / 2)
        for part, own in (("device_weight_bytes", ("encoder_weight_bytes",)), ("working_bytes", ("encoder_working_bytes", "cache_bytes"))):
            more = sum(m[part] for m in p["memory"]) - sum(m[part] for m in text["memory"])
            self.assertGreaterEqual(more, sum(p["images"][x] for x in own) - 1)
        self.assertIn("the vision encoder takes %.2f GiB of weights" % (p["images"]["encoder_weight_bytes"] / 2**30), run(*flags).stdout)
        self.assertIsNone(self.plan("--model-path", VL, "--machine", AK)["images"])

    def test_kv_in_8_bits(self):
        """Heads of 128 values take 136 bytes for 264; cards do not have it."""
        wide, narrow = (self.plan("--model-path", QWEN, "--machine", EDGE, "--kv-cache-dtype", kv) for kv in ("bf16", "int8"))
        rows = 48 * 2 * 4                           # layers, keys and values, heads
        self.assertAlmostEqual(wide["kv_token_bytes"] - narrow["kv_token_bytes"], rows * 128)
        self.assertAlmostEqual(narrow["kv_token_bytes"] / (rows * 136), 1, places=2)
        self.assertIn("cards keep no KV cache of 8 bits", self.refused("--model-path", R1, "--machine", AK, "--kv-cache-dtype", "int8", status=1))

    def test_published_machine(self):
        """DeepSeek-R1 on two cards and 128 cores: the published 17.3 tokens/s, 35.5 of 16 streams, 2.4 s to the first token of 128."""
        p = self.plan("--model-path", R1, "--machine", AK, "--max-total-tokens", "190000", "--context-length", "65536", "--enable-defer")
        self.assertTrue(p["fits"])
        self.assertEqual([m["memory"] for m in p["memory"]], ["node 0", "node 1", "node 2", "node 3", "card 0", "card 1"])
        self.assertEqual(p["kv_tokens"], 190080)
        for m in p["memory"]:
            self.assertEqual(m["lacks_bytes"], 0)
            self.assertEqual(m["expert_bytes"] > 0, m["memory"].startswith("node"))
            self.assertEqual(m["kv_bytes"] > 0, m["memory"].startswith("card"))
        rate = {d["streams"]: 1e3 * d["streams"] / d["tpot_ms"] for d in p["decode"]}
        self.assertTrue(0.5 < rate[1] / 17.3 < 2, rate)
        self.assertTrue(0.5 < rate[16] / 35.5 < 2, rate)
        self.assertTrue(0.3 < p["prefill"][0]["ttft_ms"] / 2400 < 2, p["prefill"][0]["ttft_ms"])
        parts = {x["part"]: x for x in p["decode"][0]["parts"]}
        self.assertEqual(parts["routed experts"]["bound"], "read")
        self.assertEqual(parts["hand-over"]["bound"], "latency")
        self.assertAlmostEqual(parts["routed experts"]["bytes"] / 10.2e9, 1, delta=0.02)
        self.assertEqual([c["change"] for c in p["changes"]], ["one memory channel more on every node", "4 cards instead of 2"])
        for c in p["changes"]:
            self.assertLess(c["first_tpot_ms"], p["decode"][0]["tpot_ms"])

    def test_reference_machine(self):
        """The same model with experts on cards of 64 GiB, resident and streamed, as docs/plan.md has it: figures of its table, to a twentieth."""
        flags = ("--model-path", R1, "--machine", REFERENCE, "--max-total-tokens", "190000", "--context-length", "65536", "--streams", "1", "--contexts", "128,8192,40960")
        for more, rates, firsts in (((), (23.7, 23.1, 21.1), (0.79, 10.2, 52.1)),
                                    (("--num-gpu-experts", "auto", "--stream-experts", "--expert-hits", "0.67"), (34.6, 33.4, 29.4), (0.69, 5.7, 47.1))):
            p = self.plan(*flags, *more)
            self.assertTrue(p["fits"])
            for d, rate in zip(p["decode"], rates):
                self.assertAlmostEqual(1e3 / d["tpot_ms"] / rate, 1, delta=0.05)
            for x, first in zip(p["prefill"], firsts):
                self.assertAlmostEqual(1e-3 * x["ttft_ms"] / first, 1, delta=0.05)
        self.assertEqual((p["kv_tokens"], p["model"]["experts_on_card"]), (190080, 40))
        self.assertIn("experts do not move on npu yet", run(*flags, *more).stdout)
        self.assertIn("device memory: max-total-tokens 190000 does not fit", self.plan(*flags, "--num-gpu-experts", "48", "--stream-experts", status=3)["lack"], "48 leave no room for streamed ones")

    def card_has(self, p, **gib):
        for name, wanted in gib.items():
            self.assertAlmostEqual(p["memory"][-1][name] / 2**30, wanted, delta=0.06, msg=name)

    def test_two_servers_of_eight_cards(self):
        """Kimi-K2 in groups of 32: eight cards lack 26.8 GiB each, sixteen hold it; figures of docs/plan.md."""
        weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
        config = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}
        with open(EIGHT) as f:
            sixteen = self.machine(re.sub("(?m)^cards: 8", "cards: 16", f.read()))
        flags = ("--model-path", SOURCE + "/configs/models/kimi-k2.json", "--num-gpu-experts", "384", "--context-length", "65536", "--max-total-tokens", "65536", "--streams", "1",
                 "--contexts", "384", "--prompts", "128", "--json-model-override-args", json.dumps({"quantization_config": config}))
        self.card_has(self.plan(*flags, "--machine", EIGHT, status=3), device_weight_bytes=80.5, usable_bytes=54.9, lacks_bytes=26.8)
        p = self.plan(*flags, "--machine", sixteen)
        self.assertEqual((p["fits"], p["kv_tokens"], p["model"]["expert_quantization"]), (True, 65536, "int4-g32"))
        self.card_has(p, device_weight_bytes=42.2, kv_bytes=4.4, working_bytes=1.1)

    def test_eight_cards(self):
        """DeepSeek-R1 wholly on eight cards of 64 GiB: with 4-bit weights it fits beside 128K tokens, in int8 it does not; figures of docs/plan.md."""
        awq = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}}
        flags = ("--model-path", R1, "--machine", EIGHT, "--num-gpu-experts", "256", "--context-length", "131072", "--max-total-tokens", "131072", "--streams", "1,32",
                 "--contexts", "384", "--prompts", "128,8192,61440")
        p = self.plan(*flags, "--json-model-override-args", json.dumps(awq))
        self.assertEqual((p["fits"], p["kv_tokens"], p["model"]["expert_quantization"]), (True, 131072, "int4-g128"))
        self.card_has(p, device_weight_bytes=45.8, kv_bytes=8.7, working_bytes=0.4)
        for d, tpot in zip(p["decode"], (17.4, 42.2)):
            self.assertAlmostEqual(d["tpot_ms"] / tpot, 1, delta=0.05)
        for x, first in zip(p["prefill"], (0.06, 1.13, 16.9)):
            self.assertAlmostEqual(x["ttft_ms"] / 1e3 / first, 1, delta=0.05)
        parts = {x["part"]: x for x in p["decode"][0]["parts"]}
        self.assertAlmostEqual(parts["experts on the card"]["bytes"] / (58 * 8 * 3 * 7168 * 256 * (0.5 + 4 / 128)), 1, delta=0.001)
        int8 = self.plan(*flags, status=3)
        self.assertIn("device memory: the weights take 81.54 GiB", int8["lack"])
        self.assertIn("use one with 90.", int8["lack"])
        groups_of_96 = {"quantization_config": {**awq["quantization_config"], "group_size": 96}}  # divide no matrix: int8
        self.assertFalse(self.plan(*flags, "--json-model-override-args", json.dumps(groups_of_96), status=3)["fits"])

    def test_deferral_and_halves_overlap(self):
        """With cards, deferral shortens a decode step, halves a long prompt's; on the CPU alone the tiers take turns and neither does."""
        for machine, smaller in ((AK, True), (EDGE, False)):
            step = {}
            for name, flags in {"as it is": (), "defer": ("--enable-defer",), "whole": ("--disable-two-chunk-overlap",)}.items():
                p = self.plan("--model-path", R1, "--machine", machine, "--context-length", "16384", "--prompts", "8192", *flags)
                step[name] = (p["decode"][0]["step_ms"], p["prefill"][0]["step_ms"])
            self.assertEqual(step["defer"][0] < step["as it is"][0], smaller)
            self.assertEqual(step["as it is"][1] < step["whole"][1], smaller)

    def test_this_machine(self):
        p = self.plan("--model-path", TINY, "--streams", "1,3", "--contexts", "16,64", "--prompts", "32")
        self.assertTrue(p["machine"]["measured"] and p["fits"])
        self.assertGreater(p["machine"]["spread"], 0)
        self.assertEqual([(d["streams"], d["context"]) for d in p["decode"]], [(1, 16), (3, 16), (1, 64), (3, 64)])
        self.assertIsNone(p["machine"]["cards"])
        for d in p["decode"] + p["prefill"]:
            self.assertAlmostEqual(sum(x["ms"] for x in d["parts"]) / d["step_ms"], 1, delta=1e-6)  # the tiers take turns
            self.assertTrue(d["fits_kv"])
        self.assertEqual([c["change"] for c in p["changes"]], ["a tenth more read bandwidth on every node"])

    def test_streams_at_most(self):
        p = self.plan("--model-path", TINY, "--machine", self.machine(MACHINE), "--max-running-requests", "4", "--contexts", "16", "--prompts", "32")
        self.assertEqual([d["streams"] for d in p["decode"]], [1, 4])
        self.assertEqual([r["tokens"] for r in p["room"]], [16, 32])
        self.assertEqual(p["room"][0]["streams"], p["kv_tokens_most"] // 128)
        # a step of more streams than a chunk has tokens goes in halves too, with cards
        p = self.plan("--model-path", R1, "--machine", AK, "--context-length", "4096", "--chunked-prefill-size", "64", "--max-running-requests", "1024", "--streams", "1024", "--prompts", "64")
        self.assertGreater(p["decode"][0]["step_ms"], 100)

    def test_does_not_fit(self):
        """The server's sentence, what each memory lacks, and times all the same."""
        machine = self.machine(MACHINE)
        p = self.plan("--model-path", R1, "--machine", machine, "--context-length", "16384", status=3)
        self.assertFalse(p["fits"])
        self.assertIn("but only 7.20 GiB of the 8.00 GiB available may be used (mem-fraction-static 0.90)", p["lack"])
        self.assertGreater(p["memory"][0]["lacks_bytes"], 300e9)
        self.assertGreater(p["decode"][0]["tpot_ms"], 100)
        text = run("--model-path", R1, "--machine", machine, "--context-length", "16384")
        self.assertEqual(text.returncode, 3)
        self.assertIn("It does not fit: ", text.stdout)
        p = self.plan("--model-path", TINY, "--machine", machine, "--max-total-tokens", "1000000000", "--prompts", "32", "--contexts", "16", status=3)
        self.assertIn("max-total-tokens 1000000000 does not fit", p["lack"])

    def test_one_node_is_short(self):
        """All nodes together have room; with equal shares, one of them has not."""
        text = MACHINE.replace("nodes: 1", "nodes: 2").replace("node-memory-gib: 8", "node-memory-gib: 1000 100")
        p = self.plan("--model-path", R1, "--machine", self.machine(text), "--context-length", "16384", "--max-total-tokens", "16384", status=3)
        self.assertIn("node 1 lacks", p["lack"])
        self.assertEqual([m["lacks_bytes"] > 0 for m in p["memory"]], [False, True])

    def test_text(self):
        p = run("--model-path", R1, "--machine", AK, "--context-length", "16384")
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        for words in ("4 nodes of 32 cores", "2 cards of 32.0 GiB", "It fits.", "TPOT, ms", "TTFT, s", "routed experts", "hand-over", "waits", "what would change",
                      "1 row left out: the longest sequence is 16384 tokens, and at most 32 streams run at a time", "a step of 1 stream at 1024 tokens of context", "the backend for cards has never run on one"):
            self.assertIn(words, p.stdout)

    def test_text_of_the_smallest_machine(self):
        """Of one thing the report says "1 core", not "1 cores". Without cards the cache takes memory as it is used, and the report says so."""
        used = "The cache takes memory only as tokens fill it."
        p = run("--model-path", TINY, "--machine", self.machine(MACHINE.replace("node-cores: 2", "node-cores: 1")), "--max-running-requests", "1", "--streams", "1",
                "--prompts", "1", "--json-model-override-args", '{"num_hidden_layers": 1, "first_k_dense_replace": 0}')
        self.assertEqual((p.returncode, p.stderr), (0, ""))
        for words in ("  1 node of 1 core, 8.0 GiB", "1 layer, 1 with experts", "; 1 stream at most,", used, "a step of 1 stream at ", "a prompt of 1 token\n",
                      "       1 stream       1 stream        1 token\n"):
            self.assertIn(words, p.stdout)
        self.assertNotRegex(p.stdout, r"\b1 (core|node|stream|token|layer|row)s\b")
        self.assertNotIn(used, run("--model-path", R1, "--machine", AK).stdout)
        with open(AK, encoding="utf-8") as f:
            one_card = self.machine(re.sub(r"(?m)^cards: 2$", "cards: 1", f.read()))
        self.assertIn("the machine has 1 card\n", self.refused("--model-path", R1, "--machine", one_card, "--tensor-parallel-size", "2", status=1))

    def test_experts_in_use(self):
        """Where tokens choose among fewer experts, a step of several reads less."""
        def experts(*args):
            p = self.plan("--model-path", QWEN, "--machine", EDGE, "--streams", "1,16", *args)
            return [next(part["bytes"] for part in d["parts"] if part["part"] == "routed experts") for d in p["decode"]], p["model"]["experts_in_use"]
        (one, many), n = experts()
        self.assertEqual(n, 128)
        self.assertAlmostEqual(many / one, 128 * (1 - (15 / 16) ** 16) / 8, places=4)
        (fewer_one, fewer), n = experts("--experts-in-use", "32")
        self.assertEqual((fewer_one, n), (one, 32))
        self.assertAlmostEqual(fewer / one, 32 * (1 - 0.75 ** 16) / 8, places=4)
        self.assertEqual(experts("--experts-in-use", "128")[0], [one, many])

    def test_experts_on_the_card(self):
        """Half of a layer's experts on the card: half of their bytes lie there too, and half of the reads, or as many as hit."""
        flags = ("--model-path", QWEN, "--machine", AK, "--tensor-parallel-size", "1", "--streams", "1", "--max-total-tokens", "32768", "--context-length", "32768")
        def parts(step):
            bytes_of = {part["part"]: part["bytes"] for part in step["parts"]}
            return bytes_of["routed experts"], bytes_of.get("experts on the card", 0)
        none, half = self.plan(*flags), self.plan(*flags, "--num-gpu-experts", "64")
        all_bytes = sum(m["expert_bytes"] for m in none["memory"])
        card = half["memory"][-1]
        self.assertEqual((card["memory"], half["model"]["experts_on_card"], half["model"]["expert_hits"]), ("card 0", 64, 0.5))
        self.assertAlmostEqual(card["expert_bytes"] / all_bytes, 0.5, delta=0.02)
        whole = parts(none["decode"][0])[0]
        for share, plan in ((0.5, half), (0.8, self.plan(*flags, "--num-gpu-experts", "64", "--expert-hits", "0.8"))):
            cpu, there = parts(plan["decode"][0])
            self.assertAlmostEqual(cpu / whole, 1 - share, places=6)
            self.assertAlmostEqual(there / whole, share, places=6)
            self.assertLess(plan["decode"][0]["tpot_ms"], none["decode"][0]["tpot_ms"])
            self.assertAlmostEqual(parts(plan["prefill"][1])[0] / parts(none["prefill"][1])[0], 0.5, places=3)
        auto = self.plan(*flags, "--num-gpu-experts", "auto")
        self.assertEqual((auto["model"]["experts_on_card"], auto["kv_tokens"]), (128, 32768), "all fit beside the KV cache")
        self.assertIn(", 64 of 128 also on the card, which 50.0 % of decoded tokens' choices find there", run(*flags, "--num-gpu-experts", "64").stdout)
        dropped = self.plan(*flags, "--num-gpu-experts", "64", "--expert-memory", "drop")
        on_hosts = sum(m["expert_bytes"] for m in dropped["memory"][:-1])
        self.assertAlmostEqual((all_bytes - on_hosts) / card["expert_bytes"], 1, delta=0.02, msg="less pages that two experts share")
        self.assertEqual(dropped["decode"], half["decode"], "the work is the same")
        self.assertIn(", 64 of 128 only on the card, which", run(*flags, "--num-gpu-experts", "64", "--expert-memory", "drop").stdout)
        self.assertIn("expert-memory drop: no experts are on the device: add num-gpu-experts", self.refused(*flags, "--expert-memory", "drop", status=1))
        self.assertIn("expert-hits: no experts move", self.refused(*flags, "--expert-hits", "0.5", status=1))
        self.assertIn("each of 2 cards has equally many of a layer", self.refused("--model-path", QWEN, "--machine", AK, "--num-gpu-experts", "63", status=1))
        both = self.plan("--model-path", QWEN, "--machine", AK, "--num-gpu-experts", "64")
        self.assertEqual(both["model"]["experts_on_card"], 64)
        self.assertAlmostEqual(both["memory"][-1]["expert_bytes"], card["expert_bytes"] / 2, msg="half of them on each card")

    def test_streamed_experts(self):
        """Long prompts have others pass through the card's memory, where the link is faster than the CPU."""
        flags = ("--model-path", QWEN, "--machine", AK, "--tensor-parallel-size", "1", "--streams", "1", "--max-total-tokens", "32768", "--context-length", "32768", "--num-gpu-experts", "32")
        plain, streamed = self.plan(*flags), self.plan(*flags, "--stream-experts")
        self.assertIsNone(plain["streaming"])
        self.assertEqual([x["streamed_experts"] for x in plain["prefill"]], [0, 0])
        speeds = streamed["streaming"]
        self.assertTrue(128 < speeds["from_rows"] < 8192)
        self.assertTrue(0 < speeds["card_row_us"] < speeds["cpu_row_us"] < speeds["upload_us"])
        (short, long), (short_before, long_before) = streamed["prefill"], plain["prefill"]
        self.assertEqual((short["streamed_experts"], short["ttft_ms"]), (0, short_before["ttft_ms"]), "too few rows")
        self.assertTrue(0 < long["streamed_experts"] <= 96)
        self.assertLess(long["ttft_ms"], 0.5 * long_before["ttft_ms"])
        uploads = next(part for part in long["parts"] if part["part"] == "uploads of experts")
        expert = sum(m["expert_bytes"] for m in plain["memory"][:-1]) / 48 / 128
        self.assertAlmostEqual(uploads["bytes"] / (48 * long["streamed_experts"] * expert), 1, delta=0.02)
        ring = streamed["memory"][-1]["device_weight_bytes"] - plain["memory"][-1]["device_weight_bytes"]
        self.assertAlmostEqual(ring / (2 * 128 * expert), 1, delta=0.02)
        text = run(*flags, "--stream-experts").stdout
        self.assertIn("they pay from %d rows of a step on" % speeds["from_rows"], text)
        self.assertIn("experts do not move on npu yet", text)
        self.assertIn("%d a layer" % long["streamed_experts"], text)
        self.assertIn("add num-gpu-experts", self.refused(*flags[:-2], "--stream-experts", status=1))
        both, without = self.plan(*flags, "--stream-experts", "--tensor-parallel-size", "2"), self.plan(*flags, "--tensor-parallel-size", "2")
        ring = both["memory"][-1]["device_weight_bytes"] - without["memory"][-1]["device_weight_bytes"]
        self.assertAlmostEqual(ring / (128 * expert), 1, delta=0.02, msg="each card has half of the ring")
        self.assertAlmostEqual(both["streaming"]["upload_us"] / (speeds["upload_us"] / 2), 1, delta=0.01, msg="over two links")

    def test_refusals(self):
        machine = self.machine(MACHINE)
        for args, words in ((("--machine", machine), "--model-path is missing"),
                            (("--model-path", TINY, "--streams", "0"), "--streams needs whole numbers from 1 to 4096"),
                            (("--model-path", TINY, "--contexts", "1,x"), "--contexts needs whole numbers"),
                            (("--model-path", TINY, "--prompts", "1,2,3,4,5,6,7,8,9"), "--prompts takes 8 numbers at most"),
                            (("--model-path", TINY, "--experts-in-use", "0"), "experts-in-use"),
                            (("--model-path", TINY, "--npu-threads", "2"), "there is no flag '--npu-threads'"),
                            (("--config", TINY), "there is no flag '--config'"), # of launch_server alone
                            (("--model-path", TINY, "--mem-fraction-static", "nan"), "needs a number")):
            self.assertIn(words, self.refused(*args))
        for args, words in ((("--model-path", "/nowhere/config.json", "--machine", machine), "/nowhere/config.json"),
                            (("--model-path", TINY, "--machine", "/nowhere.yaml"), "--machine: /nowhere.yaml: No such file"),
                            (("--model-path", TINY, "--machine", machine, "--tensor-parallel-size", "2"), "the machine has 0 cards"),
                            (("--model-path", R1, "--machine", AK, "--experts-in-use", "7"), "256 routed experts a layer, of which a token uses 8"),
                            (("--model-path", R1, "--machine", AK, "--experts-in-use", "257"), "256 routed experts a layer"),
                            (("--model-path", R1, "--machine", AK, "--tensor-parallel-size", "3"), "the machine has 2 cards"),
                            (("--model-path", TINY, "--machine", self.machine(MACHINE + "node-speed: 3\n")), "there is no key 'node-speed'"),
                            (("--model-path", TINY, "--machine", self.machine(MACHINE.replace("20", "-20"))), "'node-read-gbps' must be a number from 0.1 to 10000 GB/s, not '-20'"),
                            (("--model-path", TINY, "--machine", self.machine(MACHINE.replace("1000", "1e30"))), "'node-int8-gops' must be")):
            self.assertIn(words, self.refused(*args, status=1))

    def test_unknown_architecture_as_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/config.json", "w") as f:
                f.write('{"architectures": ["GPT9ForCausalLM"], "model_type": "gpt9"}')
            said = self.refused("--model-path", folder, "--machine", self.machine(MACHINE), status=1)
            server = subprocess.run([TANDEM, "launch_server", "--model-path", folder, "--load-format", "dummy", "--port", "0"], capture_output=True, text=True, timeout=60)
            self.assertIn("GPT9ForCausalLM", said)
            self.assertIn(said.removeprefix("tandem plan: ").strip(), server.stderr)

    def test_memory_is_the_servers(self):
        """The same bytes as the log of a server with the same flags on this machine."""
        flags = ("--max-total-tokens", "4096", "--chunked-prefill-size", "512", "--max-running-requests", "4")
        p = self.plan("--model-path", TINY, "--contexts", "16", "--prompts", "32", *flags)
        gib = {k: sum(m[k] for m in p["memory"]) / 2**30 for k in ("device_weight_bytes", "expert_bytes", "working_bytes", "kv_bytes")}
        server = subprocess.Popen([TANDEM, "launch_server", "--model-path", TINY, "--load-format", "dummy", "--port", "0", "--skip-server-warmup", *flags],
                                  stderr=subprocess.PIPE, text=True)
        try:
            for line in server.stderr:
                m = re.search(r"memory: ([\d.]+) GiB device tier, ([\d.]+) GiB experts, ([\d.]+) GiB working memory, ([\d.]+) GiB KV for (\d+)", line)
                if m:
                    break
            self.assertIsNotNone(m)
        finally:
            server.terminate()
            server.communicate(timeout=60)
        self.assertEqual(int(m[5]), p["kv_tokens"])
        for i, k in enumerate(("device_weight_bytes", "expert_bytes", "working_bytes", "kv_bytes"), 1):
            self.assertAlmostEqual(float(m[i]), gib[k], delta=0.011, msg=k)

    def test_machine_keys_are_documented(self):
        p = run("--machine-keys")
        with open(SOURCE + "/docs/plan.md") as f:
            self.assertIn(p.stdout, f.read())

    def test_more_bandwidth_is_never_slower(self):
        last = None
        for read in (10, 20, 40, 80):
            p = self.plan("--model-path", R1, "--machine", self.machine(MACHINE.replace("gbps: 20", "gbps: %d" % read).replace("gib: 8", "gib: 2000")), "--context-length", "16384")
            times = [d["step_ms"] for d in p["decode"]] + [x["step_ms"] for x in p["prefill"]]
            if last:
                self.assertTrue(all(a <= b for a, b in zip(times, last)))
            last = times

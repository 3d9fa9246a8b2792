"""What the program tells about itself while it serves the demo model: /metrics and the log, as text and as JSON."""
import json
import os
import re
import unittest

from prometheus_client.parser import text_string_to_metric_families
from server_process import MODEL, TANDEM, Server, wait_until

FLAGS = ("--quantization", "none", "--cpuinfer", "2", "--chunked-prefill-size", "64", "--decode-log-interval", "5", "--log-requests")
PROMPT = list(range(100, 300))  # four chunks


def start(*flags, **more):
    return Server(*FLAGS, *flags, program=[TANDEM], model=MODEL, **more)


def values(server):
    _, text, _ = server.request("GET", "/metrics")
    return {(s.name, *(v for k, v in sorted(s.labels.items()) if k not in ("model_name", "le"))): s.value
            for f in text_string_to_metric_families(text) for s in f.samples}


def complete(server, n):
    return server.request("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": n, "ignore_eos": True, "temperature": 0})


class Seeing(unittest.TestCase):
    def test_metrics(self):
        with start() as server:
            before = values(server)
            complete(server, 12)
            after = values(server)
            grown = lambda *name: after[name] - before[name]
            self.assertEqual(grown("sglang:num_requests_total"), 1)
            self.assertEqual(grown("tandem:requests_finished_total", "length"), 1)
            self.assertEqual(grown("sglang:generation_tokens_total"), 12)
            self.assertEqual(grown("sglang:prompt_tokens_total"), len(PROMPT))
            self.assertEqual(grown("tandem:prefill_steps_total"), 4)
            self.assertEqual(grown("tandem:decode_steps_total"), 11)
            for histogram in ("time_to_first_token_seconds", "queue_time_seconds", "e2e_request_latency_seconds"):
                self.assertEqual(grown(f"sglang:{histogram}_count"), 1)
            self.assertEqual(grown("sglang:inter_token_latency_seconds_count"), 11)
            self.assertGreater(grown("sglang:e2e_request_latency_seconds_sum"), grown("sglang:time_to_first_token_seconds_sum"))
            self.assertEqual((after["sglang:num_running_reqs",], after["sglang:num_used_tokens",]), (0, 0))
            self.assertEqual(after["tandem:prefill_tokens_left",], 0)
            self.assertGreater(grown("tandem:expert_pairs_total"), len(PROMPT) + 11)
            for tier in ("device", "experts"):
                self.assertGreater(grown("tandem:tier_bytes_total", tier), 0)
                self.assertGreater(grown("tandem:tier_operations_total", "f32", tier), 0)
                self.assertEqual(grown("tandem:tier_operations_total", "int8", tier), 0)  # --quantization none
                self.assertGreater(grown("tandem:tier_busy_seconds_total", tier), 0)
                self.assertGreater(after["tandem:tier_bound_bytes_per_second", tier], 1e8)
            self.assertFalse([name for name in after if name[0].startswith("tandem:card_")])  # the host is no card

    def test_json_log(self):
        with start("--log-format", "json") as server:
            complete(server, 12)
            self.assertEqual(server.stop(), 0)  # all lines are written then
            lines = [json.loads(line) for line in server.stderr().splitlines()]
        for line in lines:
            self.assertRegex(line["ts"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(line["level"], ("debug", "info", "warn", "error"))
        of = lambda event: [line for line in lines if line.get("event") == event]
        prefill = [(p["done"], p["total"]) for p in of("prefill")]
        self.assertEqual(prefill, [(64, 200), (128, 200), (192, 200), (200, 200)])
        self.assertTrue(all(p["tokens_per_s"] > 0 and p["seconds_left"] >= 0 and p["request"] == 2 for p in of("prefill")))
        self.assertEqual(len(of("decode")), 3)  # 15 steps, 5 a line
        for d in of("decode"):
            self.assertEqual((d["running"], d["queued"], d["retracted"]), (1, 0, 0))
            self.assertIn(f"{d['running']} running", d["msg"])
            self.assertEqual(d["kv_tokens_used"], 256)
        arrival, end = [r for r in of("request") if r["request"] == 2]
        self.assertEqual((arrival["prompt_tokens"], arrival["max_tokens"]), (200, 12))
        self.assertEqual((end["finish"], end["completion_tokens"]), ("length", 12))

    def test_rates_in_the_log(self):
        """A line of a few slow steps may round to 0: another one does not."""
        with start("--log-format", "json") as server:
            def told():
                complete(server, 40)
                lines = [json.loads(line) for line in server.stderr().rpartition("\n")[0].splitlines()]
                return all(any(line[figure] > 0 for line in lines if line.get("event") == "decode")
                           for figure in ("experts_gb_per_s", "experts_bound_percent", "device_gb_per_s", "device_bound_percent"))
            wait_until(told, step=0, says="rates of both tiers")

    def test_log_that_nobody_reads(self):
        """The engine does not wait for who reads its log; what is lost is counted."""
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        with start("--decode-log-interval", "1", "--log-format", "json", log=writer) as server:
            os.close(writer)
            for _ in range(10):
                status, answer, _ = complete(server, 150)
                self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 150))
            self.assertGreater(server.metric("tandem:log_lines_dropped_total"), 0)

    def test_text_log(self):
        with start() as server:
            complete(server, 12)
            self.assertEqual(server.stop(), 0)
            text = server.stderr()
        self.assertRegex(text, r"Z info  prefill: request 2, 128 of 200 tokens, [\d.]+ tokens/s, about \d+ s left\n")
        self.assertRegex(text, r"Z info  decode: 1 running, 0 queued, 0 retracted, KV 256 of \d+ tokens \([\d.]+ %\), [\d.]+ tokens/s, ")
        self.assertFalse(re.search(r"[\x00-\x09\x0b-\x1f]", text))

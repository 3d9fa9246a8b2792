"""/metrics, as prometheus-client reads it."""
import os
import pathlib
import re
import unittest

from prometheus_client.parser import text_string_to_metric_families
from server_process import Server

NAME = 'a "b" \\ c'
DOCS = pathlib.Path(os.environ["TD_SOURCE_DIR"]) / "docs" / "metrics.md"


def read(server):
    """(families by name, a function that gives the value of a sample by its name and labels)"""
    _, text, _ = server.request("GET", "/metrics")
    families = {f.name: f for f in text_string_to_metric_families(text)}
    samples = {(s.name, *sorted((k, v) for k, v in s.labels.items() if k != "model_name")): s.value for f in families.values() for s in f.samples}
    return families, lambda name, **labels: samples[(name, *sorted(labels.items()))]


class Metrics(unittest.TestCase):
    def test_form(self):
        with Server("--served-model-name", NAME) as server:
            status, text, headers = server.request("GET", "/metrics")
            self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "text/plain"))
            families, value = read(server)
            for name, kind in {"sglang:num_running_reqs": "gauge", "sglang:num_queue_reqs": "gauge", "sglang:token_usage": "gauge",
                               "sglang:num_retracted_reqs": "gauge", "sglang:num_retracted_requests": "counter",
                               "sglang:cache_hit_rate": "gauge", "sglang:gen_throughput": "gauge", "sglang:prompt_tokens": "counter",
                               "sglang:generation_tokens": "counter", "sglang:cached_tokens": "counter", "sglang:num_requests": "counter",
                               "sglang:time_to_first_token_seconds": "histogram", "sglang:inter_token_latency_seconds": "histogram",
                               "sglang:time_per_output_token_seconds": "histogram", "sglang:queue_time_seconds": "histogram",
                               "sglang:e2e_request_latency_seconds": "histogram"}.items():
                self.assertEqual(families[name].type, kind, name)
            for family in families.values():
                self.assertTrue(family.documentation)
                self.assertTrue(all(s.labels["model_name"] == NAME for s in family.samples))
            # The Gateway API's endpoint picker and llm-d's router read these, by SGLang's names of now and of before 0.5.11.
            self.assertEqual((value("sglang:page_size"), value("sglang:num_pages"), value("sglang:cache_config_info", page_size="128", num_pages="8192")), (128, 8192, 1))
            buckets = [(s.labels["le"], s.value) for s in families["sglang:time_to_first_token_seconds"].samples if s.name.endswith("_bucket")]
            self.assertEqual(buckets, [("0.01", 1), ("0.1", 3), ("1", 3), ("+Inf", 4)])
            self.assertEqual(value("sglang:time_to_first_token_seconds_sum"), 2.5)
            self.assertEqual(value("sglang:time_to_first_token_seconds_count"), 4)

    def test_values_move(self):
        with Server() as server:
            _, before = read(server)
            server.request("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 3})
            server.request("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 30})
            server.request("POST", "/v1/completions", {"prompt": "!error", "max_tokens": 30})
            _, after = read(server)
            grown = lambda name, **labels: after(name, **labels) - before(name, **labels)
            self.assertEqual(grown("sglang:num_requests_total"), 3)
            self.assertEqual(grown("sglang:generation_tokens_total"), 3 + 6 + 3)
            self.assertEqual(grown("sglang:prompt_tokens_total"), 6 + 6 + 7)
            reasons = {r: grown("tandem:requests_finished_total", reason=r) for r in ("stop", "length", "abort", "error")}
            self.assertEqual(reasons, {"stop": 1, "length": 1, "abort": 0, "error": 1})
            self.assertEqual(grown("tandem:failed_requests_total"), 1)
            self.assertGreater(grown("tandem:decode_steps_total"), 0)
            self.assertEqual(after("tandem:chunked_prefill_size"), 8192)
            self.assertEqual(grown("tandem:expert_pairs_total"), 8 * 12)
            self.assertEqual(grown("tandem:tier_bytes_total", tier="experts"), 1000 * 12)
            self.assertEqual(grown("tandem:tier_bytes_total", tier="device"), 3000 * 12)
            self.assertEqual([grown("tandem:node_expert_bytes_total", node=n) for n in "01"], [750 * 12, 250 * 12], "a node's share of them")
            steps = grown("tandem:decode_steps_total")
            for card in (0, 1):
                one = lambda name: after(f"tandem:card_{name}", card=str(card))
                self.assertEqual((one("memory_bytes"), one("memory_free_bytes")), (32 << 30, (7 << 30) + card))
                self.assertEqual((one("captures_total"), one("failures_total"), one("temperature_celsius")), (3, card, 40.5 + card))
                self.assertEqual((one("streamed_bytes_total"), one("streamed_seconds_total")), (32000, 0.25 * (1 + card)))
                self.assertEqual((grown("tandem:card_launches_total", card=str(card)), grown("tandem:card_replays_total", card=str(card))), (5 * steps, 2 * steps))
            self.assertEqual([after(f"sglang:spec_accept_{n}") for n in ("rate", "length")] + [after("tandem:draft_gain")], [0.6, 1.5, 1.25])
            self.assertEqual([after(f"tandem:{n}_total") for n in ("drafts_verified", "drafts_accepted", "drafted_steps")], [10, 6, 5])
            self.assertEqual([after(f"tandem:expert_{n}_total") for n in ("hits", "misses", "upload_bytes", "upload_seconds")], [62, 38, 9000, 0.25])
            self.assertEqual([after("tandem:expert_uploads_total", result=r) for r in ("ok", "failed")], [9, 1])
            self.assertEqual([after("tandem:expert_reads_total", result=r) for r in ("ok", "failed")] + [after("tandem:expert_dropped_bytes")], [5, 2, 14000])
            self.assertEqual((after("tandem:resident_experts"), after("tandem:resident_expert_slots")), (14, 16))
            self.assertEqual([after(f"tandem:{n}") for n in ("expert_streamed_total", "streamed_steps_total", "streamed_upload_bytes_total",
                              "streamed_upload_seconds_total", "streamed_layer_experts", "streamed_from_rows")], [25, 4, 64000, 0.5, 48, 700])
            self.assertEqual([after("tandem:streamed_uploads_total", result=r) for r in ("ok", "failed")], [64, 2])
            store = lambda name, *whats: [after(f"tandem:kv_store_{name}", what=w) for w in whats]
            self.assertEqual(store("pages_total", "out", "in", "bad", "unsent"), [11, 7, 1, 2])
            self.assertEqual(store("bytes_total", "out", "in") + store("seconds_total", "out", "in"), [11000, 7000, 0.5, 0.25])
            self.assertEqual(store("lookups_total", "begun", "late", "refused"), [9, 3, 4])
            self.assertEqual([after(f"tandem:kv_store_{n}") for n in ("up", "failures_total", "lookups_open", "buffers_used", "buffers")], [1, 5, 1, 6, 8])
            self.assertEqual(grown("tandem:tier_operations_total", tier="experts", kind="int8"), 5000 * 12)
            self.assertEqual(grown("tandem:tier_operations_total", tier="device", kind="f32"), 70 * 12)
            self.assertAlmostEqual(grown("tandem:tier_busy_seconds_total", tier="experts"), 0.002 * 12)
            self.assertEqual(after("tandem:tier_bound_bytes_per_second", tier="device"), 30e9)
            self.assertEqual(after("tandem:tier_bound_operations_per_second", tier="experts", kind="int8"), 2e12)

    def test_bounds_that_were_not_measured_are_left_out(self):
        with Server("--skip-server-warmup") as server:
            families, _ = read(server)
        self.assertIn("tandem:tier_bytes", families)
        self.assertNotIn("tandem:tier_bound_fraction", families)

    def test_every_metric_is_documented(self):
        with Server(model="/models/fake-images") as server:
            families, _ = read(server)
        documented = set(re.findall(r"`((?:sglang|tandem):\w+)", DOCS.read_text()))
        served = {f.name + ("_total" if f.type == "counter" else "") for f in families.values()}
        self.assertEqual(served, documented)

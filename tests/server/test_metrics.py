"""/metrics, as prometheus-client reads it."""
import unittest

from prometheus_client.parser import text_string_to_metric_families
from server_process import Server


class Metrics(unittest.TestCase):
    def test_metrics(self):
        with Server("--served-model-name", 'a "b" \\ c') as server:
            server.request("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 3})
            status, text, headers = server.request("GET", "/metrics")
            self.assertEqual((status, headers["Content-Type"].split(";")[0]), (200, "text/plain"))
            families = {f.name: f for f in text_string_to_metric_families(text)}
            for name, kind in {"sglang:num_running_reqs": "gauge", "sglang:num_queue_reqs": "gauge", "sglang:token_usage": "gauge",
                               "sglang:cache_hit_rate": "gauge", "sglang:gen_throughput": "gauge", "sglang:prompt_tokens": "counter",
                               "sglang:generation_tokens": "counter", "sglang:cached_tokens": "counter", "sglang:num_requests": "counter",
                               "sglang:time_to_first_token_seconds": "histogram", "sglang:inter_token_latency_seconds": "histogram",
                               "sglang:time_per_output_token_seconds": "histogram", "sglang:queue_time_seconds": "histogram"}.items():
                self.assertEqual(families[name].type, kind, name)
                self.assertTrue(families[name].documentation)
                self.assertTrue(all(s.labels["model_name"] == 'a "b" \\ c' for s in families[name].samples))
            value = lambda family, sample: next(s.value for s in families[family].samples if s.name == sample)
            # the warm-up has one token too
            self.assertEqual(value("sglang:generation_tokens", "sglang:generation_tokens_total"), 4)
            self.assertEqual(value("sglang:num_requests", "sglang:num_requests_total"), 2)
            buckets = [(s.labels["le"], s.value) for s in families["sglang:time_to_first_token_seconds"].samples if s.name.endswith("_bucket")]
            self.assertEqual(buckets, [("0.01", 1), ("0.1", 3), ("1", 3), ("+Inf", 4)])
            self.assertEqual(value("sglang:time_to_first_token_seconds", "sglang:time_to_first_token_seconds_sum"), 2.5)
            self.assertEqual(value("sglang:time_to_first_token_seconds", "sglang:time_to_first_token_seconds_count"), 4)


if __name__ == "__main__":
    unittest.main()

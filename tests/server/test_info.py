"""What the server tells about itself to routers: /server_info with every flag in force, /v1/loads and /get_load, by SGLang's names."""
import datetime
import json
import os
import subprocess
import tempfile
import time
import unittest

from prometheus_client.parser import text_string_to_metric_families

from server_process import PATIENCE, Server, ServerTest

FAKE = os.environ["TD_FAKE_TANDEM"]
GIB = 1 << 30
CORE = {"dp_rank", "timestamp", "num_running_reqs", "num_waiting_reqs", "num_total_reqs", "num_waiting_uncached_tokens", "num_used_tokens", "num_total_tokens", "num_cached_tokens", "max_total_num_tokens",
        "max_running_requests", "token_usage", "gen_throughput", "cache_hit_rate", "utilization"}
MEMORY = {"weight_gb": 3, "kv_cache_gb": 0.5, "graph_gb": 0, "token_capacity": 1 << 20}


class Idle(ServerTest):
    """A server that nobody asks anything else."""

    @classmethod
    def start(cls):
        cls.flags = ["--served-model-name", "one,two", "--context-length", "2048", "--max-queued-requests", "7", "--tool-call-parser", "deepseek_v3", "--log-format", "json"]
        return Server(*cls.flags)

    def get(self, path, code=200):
        status, answer, headers = self.server.request("GET", path)
        self.assertEqual(status, code, answer)
        return answer

    def test_server_info(self):
        info = self.get("/server_info")
        self.assertEqual(info, self.get("/get_server_info"))
        self.assertEqual((info["served_model_name"], info["model_path"], info["port"]), ("one", "/models/fake", self.server.port))
        self.assertEqual((info["context_length"], info["max_req_input_len"], info["max_total_tokens"], info["max_total_num_tokens"]), (2048, 2047, 1 << 20, 1 << 20))
        self.assertEqual((info["max_running_requests"], info["max_queued_requests"]), (64, 7))
        self.assertEqual((info["tool_call_parser"], info["reasoning_parser"]), ("deepseekv3", None), "what auto became")
        self.assertEqual((info["device"], info["quantization"], info["expert_kernel"]), ("fake", "none", "none"), "what is loaded")
        self.assertEqual((info["weight_bytes"], info["device_weight_bytes"], info["expert_weight_bytes"], info["kv_bytes"], info["scratch_bytes"]),
                         (3 * GIB, GIB, 2 * GIB, GIB // 2, 1 << 20))
        self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(info["internal_states"], [{
            "last_gen_throughput": 0.0, "effective_max_running_requests_per_dp": 64, "num_running_reqs": 0, "num_queue_reqs": 0, "kv_tokens_used": 0,
            "memory_usage": {"weight": 3.0, "kvcache": 0.5, "graph": 0.0, "token_capacity": 1 << 20}}])

    def test_every_flag_is_there(self):
        told = subprocess.run([FAKE, "launch_server", "--model-path", "/models/fake", *self.flags, "--check"], capture_output=True, text=True, timeout=120)
        flags, info = json.loads(told.stdout), self.get("/server_info")
        self.assertGreater(len(flags), 50)
        changed = {k for k in flags if info[k] != flags[k]}
        self.assertEqual(changed, {"port", "served_model_name", "device", "quantization", "expert_quantization", "max_total_tokens", "max_running_requests", "reasoning_parser"},
                         "what the engine or the server has settled; everything else is as --check has it")
        self.assertEqual((flags["tool_call_parser"], flags["log_format"], flags["nnodes"], flags["disaggregation_mode"]), ("deepseekv3", "json", 1, "null"))

    def test_loads(self):
        begin = time.time()
        loads = self.get("/v1/loads")
        end = time.time()
        self.assertEqual(loads.keys(), {"timestamp", "version", "accelerator", "dp_rank_count", "loads", "aggregate"})
        said = datetime.datetime.fromisoformat(loads["timestamp"])
        self.assertEqual(said.utcoffset(), datetime.timedelta(0))
        self.assertTrue(begin - 1 <= said.timestamp() <= end + 1, (begin, said, end))  # rounded as it may be
        self.assertEqual((loads["dp_rank_count"], loads["accelerator"], len(loads["loads"])), (1, "fake", 1))
        rank = loads["loads"][0]
        self.assertEqual(rank.keys(), CORE | {"memory", "queues", "disaggregation"})
        self.assertTrue(begin - 1 <= rank["timestamp"] <= end + 1, (begin, rank["timestamp"], end))
        self.assertEqual((rank["dp_rank"], rank["num_running_reqs"], rank["max_total_num_tokens"], rank["max_running_requests"]), (0, 0, 1 << 20, 64))
        self.assertEqual((rank["memory"], rank["disaggregation"]), (MEMORY, {"mode": "null"}))
        self.assertEqual(rank["queues"], {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0})
        for field in rank.keys() - {"memory", "queues", "disaggregation", "timestamp", "token_usage", "gen_throughput", "cache_hit_rate", "utilization"}:
            self.assertIsInstance(rank[field], int, field)

    def test_parts_of_loads(self):
        rank = lambda query: self.get("/v1/loads?" + query)["loads"][0].keys()
        self.assertEqual(rank("include=core"), CORE)
        self.assertEqual(rank("include=memory"), {"dp_rank", "timestamp", "memory"})
        self.assertEqual(rank("include=queues,core&dp_rank=0"), CORE | {"queues"})
        self.assertEqual(rank("include=spec,lora,disagg"), {"dp_rank", "timestamp", "disaggregation"})
        self.assertEqual(rank("include=all&format=json"), CORE | {"memory", "queues", "disaggregation"})

    def test_prometheus(self):
        status, text, headers = self.server.request("GET", "/v1/loads?format=prometheus&include=core,memory")
        self.assertEqual((status, headers["Content-Type"]), (200, "text/plain; version=0.0.4; charset=utf-8"))
        families = {f.name: f.samples[0] for f in text_string_to_metric_families(text)}
        self.assertEqual(families.keys(), {"sglang_" + k for k in CORE - {"dp_rank", "timestamp"}} | {"sglang_memory_" + k for k in MEMORY})
        self.assertEqual(families["sglang_memory_weight_gb"].value, 3)
        self.assertEqual(families["sglang_num_running_reqs"].labels, {"dp_rank": "0"})

    def test_misuse(self):
        for query, param in [("include=cores", "include"), ("include=", "include"), ("include=core,", "include"), ("include=%00", "include"), ("include=" + "x" * 3000, "include"),
                             ("dp_rank=1", "dp_rank"), ("dp_rank=", "dp_rank"), ("dp_rank=-0", "dp_rank"), ("format=xml", "format"), ("format=", "format")]:
            with self.subTest(query[:40]):
                error = self.get("/v1/loads?" + query, code=400)["error"]
                self.assertEqual(error["param"], param)
        for path in ("/v1/loads", "/get_load", "/server_info", "/v1/requests"):
            status, _, headers = self.server.request("POST", path, {})
            self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
            connection = self.server.connection()
            connection.request("HEAD", path)
            response = connection.getresponse()
            self.assertEqual((response.status, response.read()), (200, b""))
            connection.close()


class Busy(unittest.TestCase):
    def test_loads_of_requests(self):
        with Server("--max-running-requests", "1", "--max-queued-requests", "2") as server:
            connections = [server.connection() for _ in range(3)]
            for i, c in enumerate(connections):  # the first hangs, the others wait
                c.request("POST", "/v1/completions", json.dumps({"prompt": "!hang", "max_tokens": 5}), {"Content-Type": "application/json"})
                server.wait_metric("sglang:num_queue_reqs" if i else "sglang:num_running_reqs", i or 1)
            prompt = server.request("POST", "/tokenize", {"prompt": "!hang"})[1]["count"]
            answer = server.request("GET", "/v1/loads")[1]
            rank, all_ranks = answer["loads"][0], answer["aggregate"]
            self.assertEqual((rank["num_running_reqs"], rank["num_waiting_reqs"], rank["queues"]["waiting"], rank["utilization"]), (1, 2, 2, 1))
            self.assertEqual((rank["num_total_reqs"], rank["num_waiting_uncached_tokens"]), (3, 2 * prompt))
            self.assertGreaterEqual(rank["num_used_tokens"], prompt)
            self.assertEqual(rank["num_total_tokens"], rank["num_used_tokens"] + 2 * prompt, "those that wait will need theirs")
            self.assertAlmostEqual(rank["token_usage"], rank["num_used_tokens"] / (1 << 20), places=9)
            self.assertEqual(all_ranks, {
                "total_running_reqs": 1, "total_waiting_reqs": 2, "total_reqs": 3, "total_used_tokens": rank["num_used_tokens"], "total_tokens": rank["num_total_tokens"],
                "avg_token_usage": rank["token_usage"], "avg_throughput": rank["gen_throughput"], "avg_utilization": 1})
            load = server.request("GET", "/get_load")[1]
            self.assertEqual(load, [{"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 2, "num_tokens": rank["num_total_tokens"], "num_pending_tokens": 2 * prompt}])
            state = server.request("GET", "/server_info")[1]["internal_states"][0]
            self.assertEqual((state["num_running_reqs"], state["num_queue_reqs"]), (1, 2))
            for c in connections:
                c.close()


class Requests(unittest.TestCase):
    """/v1/requests: those that run, and the last ones that ended."""

    MEMBERS = {"id", "state", "finish_reason", "choices", "prompt_tokens", "cached_tokens", "completion_tokens", "age_s", "ttft_s", "tpot_s"}

    def setUp(self):
        self.server = Server("--max-running-requests", "2")
        self.addCleanup(self.server.__exit__, None, None, None)

    def listed(self):
        status, answer, _ = self.server.request("GET", "/v1/requests")
        self.assertEqual((status, answer.keys()), (200, {"running", "num_running", "ended"}))
        for row in answer["running"] + answer["ended"]:
            self.assertEqual(row.keys(), self.MEMBERS)
        return answer

    def start(self, **body):
        connection = self.server.connection()
        connection.request("POST", "/v1/completions", json.dumps({"max_tokens": 2000, "stream": True, **body}), {"Content-Type": "application/json"})
        self.addCleanup(connection.close)
        return connection

    def wait(self, condition):
        end = time.monotonic() + 20 * PATIENCE
        while not condition(answer := self.listed()):
            self.assertLess(time.monotonic(), end, answer)
            time.sleep(0.02)
        return answer

    def test_none(self):
        self.assertEqual(self.listed(), {"running": [], "num_running": 0, "ended": []})
        self.server.request("GET", "/health_generate")
        self.server.request("POST", "/v1/completions", {"prompt": "!busy"})
        self.server.request("POST", "/v1/completions", {"prompt": 3})
        self.assertEqual(self.listed()["ended"], [], "neither a probe nor what was refused")

    def test_running(self):
        slow = self.start(prompt="!slow " + "word " * 200, rid="talks", n=2)
        waiting = self.start(prompt="!hang", rid="waits")
        self.wait(lambda a: {r["id"]: r["completion_tokens"] > 8 for r in a["running"]} == {"talks": True, "waits": False})  # which arrives first is open
        answer = self.listed()
        talks, waits = sorted(answer["running"], key=lambda r: r["id"])
        self.assertEqual((answer["num_running"], talks["id"], talks["state"], talks["finish_reason"], talks["choices"]), (2, "talks", "generating", None, 2))
        self.assertEqual((talks["prompt_tokens"], waits["prompt_tokens"]), (1 + 6 + 1000, 1 + 5))
        self.assertTrue(0 < talks["ttft_s"] < talks["age_s"], talks)
        self.assertTrue(0.015 < talks["tpot_s"] < talks["age_s"], "20 ms a token at least: " + str(talks))
        self.assertEqual([waits[k] for k in ("id", "state", "completion_tokens", "ttft_s", "tpot_s")], ["waits", "waiting", 0, None, None])
        self.assertGreater(waits["age_s"], 0)
        slow.close()
        waiting.close()
        ended = self.wait(lambda a: a["num_running"] == 0 and len(a["ended"]) == 2)["ended"]
        self.assertEqual({(r["id"], r["state"], r["finish_reason"]) for r in ended}, {("talks", "ended", "abort"), ("waits", "ended", "abort")})

    def answered(self, **body):
        """The request is in the list when this returns: a moment after its answer."""
        self.server.request("POST", "/v1/completions", body)
        self.wait(lambda a: a["ended"] and a["ended"][0]["id"] == body["rid"])

    def test_ended(self):
        self.answered(prompt="four", rid="stop")
        self.answered(prompt="four", max_tokens=2, rid="length")
        self.answered(prompt="!error", rid="error")
        error, length, stop = self.wait(lambda a: len(a["ended"]) == 3)["ended"]
        self.assertEqual([(r["id"], r["finish_reason"], r["completion_tokens"]) for r in (stop, length, error)], [("stop", "stop", 5), ("length", "length", 2), ("error", "error", 3)])
        self.assertTrue(0 < stop["ttft_s"] < stop["age_s"] and 0 < stop["tpot_s"] < stop["age_s"], stop)
        later = self.listed()["ended"][-1]
        self.assertEqual(later["age_s"], stop["age_s"], "its time has ended, too")

    def test_the_list_is_bounded(self):
        for i in range(40):
            self.answered(prompt="x", rid=str(i))
        self.wait(lambda a: [r["id"] for r in a["ended"]] == [str(i) for i in range(39, 7, -1)])


class Secret(unittest.TestCase):
    def test_the_key_is_nowhere(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as f:
            f.write("api-key: hush-hush\n")
            f.flush()
            with Server("--config", f.name, "--log-level", "debug") as server:
                key = {"Authorization": "Bearer hush-hush"}
                for path in ("/server_info", "/get_server_info", "/v1/loads", "/get_load", "/v1/loads?format=prometheus"):
                    self.assertEqual(server.request("GET", path)[0], 401, path)
                    status, answer, _ = server.request("GET", path, headers=key)
                    self.assertEqual(status, 200)
                    self.assertNotIn("hush", json.dumps(answer))
                self.assertNotIn("api_key", server.request("GET", "/server_info", headers=key)[1])
                self.assertNotIn("hush", server.stderr())

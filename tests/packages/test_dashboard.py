"""The files for Prometheus and Grafana. promtool checks them, a real Prometheus that scrapes a real server answers their queries, and compose.yaml
mounts them all."""
import json
import os
import re
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request

from package_tools import run, unpacked
from program import MODEL, SOURCE, TANDEM
from server_process import PATIENCE, Server, free_port, wait_until

PROMETHEUS, PROMTOOL = unpacked("prometheus", "usr/bin/prometheus"), unpacked("prometheus", "usr/bin/promtool")
METRIC = re.compile(r"\b(?:sglang|tandem):[a-z0-9_]+")


def read(name):
    with open(f"{SOURCE}/packaging/{name}") as f:
        return f.read()


def dashboard_queries():
    board = json.loads(read("grafana/tandem.json"))
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def as_grafana_asks(query):
    return query.replace("$model", ".*").replace("$__rate_interval", "10s")


class Dashboard(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--model-path", MODEL, "--cpuinfer", "2", "--device", "apart", "--num-gpu-experts", "8", "--stream-experts", program=[TANDEM], model=MODEL)
        cls.folder = tempfile.TemporaryDirectory()
        cls.port, cls.prometheus = free_port(), None
        if not PROMETHEUS:
            return
        for name in ("prometheus.yml", "tandem.rules.yml"):
            with open(f"{cls.folder.name}/{name}", "w") as f:
                f.write(read(f"prometheus/{name}").replace("tandem:30000", f"127.0.0.1:{cls.server.port}").replace("interval: 5s", "interval: 1s").replace("interval: 15s", "interval: 1s"))
        cls.prometheus = subprocess.Popen([PROMETHEUS, f"--config.file={cls.folder.name}/prometheus.yml", f"--storage.tsdb.path={cls.folder.name}/data",
                                           f"--web.listen-address=127.0.0.1:{cls.port}", "--log.level=warn"], stderr=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        if cls.prometheus:
            cls.prometheus.terminate()
            cls.prometheus.wait(20 * PATIENCE)
        cls.server.__exit__(None, None, None)
        cls.folder.cleanup()

    def complete(self):
        body = {"model": self.server.model, "prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True}
        self.assertEqual(self.server.request("POST", "/v1/completions", body)[0], 200)

    def ask(self, path, **parameters):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=120) as response:
            answer = json.load(response)
        self.assertEqual(answer["status"], "success")
        return answer["data"]

    def test_every_name_is_in_metrics(self):
        self.complete()
        _, text, _ = self.server.request("GET", "/metrics")
        there = set(re.findall(r"^([a-z_:0-9]+)\{", text, re.MULTILINE))
        board = read("grafana/tandem.json")
        names = set(METRIC.findall(" ".join(dashboard_queries()))) | set(METRIC.findall(read("prometheus/tandem.rules.yml"))) | set(METRIC.findall(board))
        self.assertGreater(len(names), 25)
        self.assertEqual(sorted(names - there), [])
        # And what the dashboard does not show is left out on purpose: figures of a past that no plot needs, or the same figure under another name.
        families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
        shown = {re.sub("_bucket$", "", name) for name in names}
        self.assertEqual(sorted(families - shown), sorted([
            "sglang:cache_config_info", "sglang:cache_hit_rate", "sglang:gen_throughput", "sglang:num_aborted_requests_total", "sglang:num_pages",
            "sglang:num_requests_total", "sglang:num_retracted_reqs", "sglang:page_size", "sglang:time_per_output_token_seconds",
            "tandem:background_event_bytes", "tandem:background_responses", "tandem:cached_window_tokens",
            "tandem:card_captures_total", "tandem:card_failures_total", "tandem:card_launches_total", "tandem:card_memory_bytes", "tandem:card_memory_free_bytes", "tandem:card_replays_total", "tandem:card_streamed_bytes_total", "tandem:card_streamed_seconds_total",
            "tandem:chunked_prefill_size", "tandem:expert_dropped_bytes", "tandem:log_lines_dropped_total",
            "tandem:prefill_pieces_total", "tandem:prefill_tokens_done", "tandem:prefill_tokens_left", "tandem:resident_expert_slots", "tandem:resident_experts", "tandem:state_snapshots", "tandem:streamed_steps_total", "tandem:tier_bound_operations_per_second", "tandem:tier_bytes_per_second", "tandem:used_window_tokens", "tandem:window_tokens"]))

    @unittest.skipUnless(PROMTOOL, "there is no promtool (scripts/deps.sh test unpacks it)")
    def test_promtool(self):
        for kind, name in [("config", "prometheus.yml"), ("rules", "tandem.rules.yml")]:
            run(PROMTOOL, "check", kind, f"{SOURCE}/packaging/prometheus/{name}", cwd=f"{SOURCE}/packaging/prometheus")
        _, text, _ = self.server.request("GET", "/metrics")
        p = run(PROMTOOL, "check", "metrics", input=text, check=False)
        self.assertNotIn("error", p.stderr.lower())

    @unittest.skipUnless(PROMETHEUS, "there is no prometheus (scripts/deps.sh test unpacks it)")
    def test_prometheus_answers_every_query(self):
        """Each expression gives samples once the server has answered requests; the alerts are known, healthy and quiet."""
        there = dashboard_queries()
        def answered():
            self.complete()
            return not [q for q in there if not self.ask("query", query=as_grafana_asks(q))["result"]]
        wait_until(answered, seconds=60, step=1, says="every query has samples")
        for query in there:
            for sample in self.ask("query", query=as_grafana_asks(query))["result"]:
                self.assertNotIn("{{", sample["metric"])
        def evaluated():
            rules = [r for g in self.ask("rules")["groups"] for r in g["rules"]]
            return rules if all(r["health"] == "ok" for r in rules) else None
        rules = wait_until(evaluated, says="all rules are evaluated")
        self.assertEqual([r["name"] for r in rules], ["TandemDown", "TandemStuck", "TandemRequestsFail", "TandemQueueGrows", "TandemCacheFull"])
        self.assertEqual([r["name"] for r in rules if r["state"] == "firing"], [])
        self.assertEqual(self.ask("label/model_name/values"), [self.server.model])

    def test_legends_are_labels(self):
        """What a legend names is a label of the samples."""
        _, text, _ = self.server.request("GET", "/metrics")
        labels = set(re.findall(r'[{,]([a-z_]+)="', text))
        for name in re.findall(r"\{\{ ?([a-z]+) ?\}\}", read("grafana/tandem.json")):
            self.assertIn(name, labels)

    def test_dashboard_is_whole(self):
        board = json.loads(read("grafana/tandem.json"))
        uid = re.search(r"uid: (\S+)", read("grafana/datasource.yaml"))[1]
        panels = [p for p in board["panels"] if p["type"] != "row"]
        self.assertEqual({t["datasource"]["uid"] for p in panels for t in p["targets"]} | {p["datasource"]["uid"] for p in panels}, {uid})
        self.assertEqual(len({p["id"] for p in board["panels"]}), len(board["panels"]))
        taken = set()
        for p in board["panels"]:
            g = p["gridPos"]
            cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
            self.assertFalse(cells & taken, p["title"])
            self.assertLessEqual(g["x"] + g["w"], 24)
            taken |= cells

    def test_compose_mounts_what_is_there(self):
        folder = f"{SOURCE}/packaging/container"
        for path in re.findall(r"^ +- (\.\./[^:]+):", read("container/compose.yaml"), re.MULTILINE):
            self.assertTrue(os.path.isfile(os.path.join(folder, path)), path)

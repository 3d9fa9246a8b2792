"""`--trace FILE` on the demo model: every tier leaves its spans, and the spans of a thread nest."""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from server_process import MODEL, TANDEM, Server

PLOT = os.path.join(os.environ["TD_SOURCE_DIR"], "scripts/trace_plot.py")
LAYERS, MOE_LAYERS = 6, 5  # of the demo model
TOKENS = 6
ROUNDING_US = 0.0015  # times have three decimals


def traced(*flags, stream=True, max_tokens=TOKENS, use=json.load):
    """What `use` makes of the file of a server that answered one request: its events."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        with Server("--trace", path, "--skip-server-warmup", *flags, program=[TANDEM], model=MODEL) as server:
            body = {"prompt": "Once upon a time", "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "stream": stream}
            assert server.request("POST", "/v1/completions", body)[0] == 200
            assert server.stop() == 0
        with open(path, encoding="ascii") as f:
            return use(f)


def spans(events, **want):
    return [e for e in events if e["ph"] == "X" and all(e[k] == v for k, v in want.items())]


def overlaps(events):
    """Pairs of spans of one thread of which neither holds the other."""
    found, threads = [], collections.defaultdict(list)
    for e in spans(events):
        threads[e["tid"]].append((e["ts"], -e["dur"], e["name"]))
    for of_thread in threads.values():
        open_spans = []
        for ts, minus_dur, name in sorted(of_thread):
            end = ts - minus_dur
            while open_spans and open_spans[-1][0] <= ts + ROUNDING_US:
                open_spans.pop()
            if open_spans and open_spans[-1][0] < end - ROUNDING_US:
                found.append((open_spans[-1], (end, name)))
            open_spans.append((end, name))
    return found


class Trace(unittest.TestCase):
    def threads(self, events):
        return {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}

    def check_common(self, events):
        self.assertEqual(overlaps(events), [])
        of_operations = [e for e in spans(events) if e["tid"] != self.threads(events).get("experts 1")]  # not of a worker's part in them
        names = collections.Counter((e["cat"], e["name"]) for e in of_operations)
        layers = collections.Counter((e["name"], e["args"]["layer"]) for e in of_operations if "layer" in e.get("args", {}))
        for layer in range(LAYERS):
            self.assertEqual(layers["mla", layer], TOKENS, "one prefill step and one per further token")
        for name in ("experts", "router"):
            self.assertEqual([layers[name, layer] for layer in range(LAYERS)], [0] + [TOKENS] * MOE_LAYERS)
        for name in ("prepare", "up", "down"):
            self.assertEqual(names["cpu", name], TOKENS * MOE_LAYERS)
        for name in ("forward", "sample", "deliver"):
            self.assertEqual(names["engine", name], TOKENS)
        self.assertEqual(names["device", "head"], TOKENS, "part of the forward pass")
        self.assertGreaterEqual(names["engine", "schedule"], TOKENS)
        self.assertGreaterEqual(names["engine", "idle"], 1)
        request = [e for e in events if e["ph"] in "be" and e["name"] == "/v1/completions"]
        self.assertEqual([e["ph"] for e in sorted(request, key=lambda e: e["ts"])], ["b", "e"])
        self.assertEqual(request[0]["id"], request[1]["id"])
        begin, end = sorted(e["ts"] for e in request)
        for e in spans(events, name="forward"):
            self.assertTrue(begin < e["ts"] and e["ts"] + e["dur"] < end)

    def test_two_tiers(self):
        events = traced("--npu-threads", "1", "--cpuinfer", "1")
        self.check_common(events)
        threads = self.threads(events)
        for tier, name, thread in (("device", "mla", "device stream"), ("bridge", "wait for experts", "device stream"), ("cpu", "experts", "experts 0"),
                                   ("cpu", "up", "experts 0"), ("engine", "forward", "engine"), ("engine", "deliver", "engine")):
            of_tier = spans(events, cat=tier, name=name)
            self.assertTrue(of_tier, name)
            self.assertEqual({e["tid"] for e in of_tier}, {threads[thread]}, name)
        self.assertTrue(spans(events, cat="http", name="write events"))
        submits = [e for e in events if e["ph"] == "i" and e["name"] == "submit"]
        tickets, waits = spans(events, name="experts"), spans(events, name="wait for experts")
        self.assertEqual((len(submits), len(waits)), (len(tickets), len(tickets)))
        for submit, ticket, wait in zip(submits, tickets, waits):  # in order: one stream, one expert thread
            self.assertEqual(submit["args"], ticket["args"])
            self.assertEqual(submit["args"], wait["args"])
            self.assertLess(submit["ts"], ticket["ts"])
            self.assertLess(submit["ts"], wait["ts"])

    def test_deferred_passes(self):
        events = traced("--npu-threads", "1", "--cpuinfer", "1", "--enable-defer")
        self.check_common(events)
        self.assertGreaterEqual(len(spans(events, name="deferred up")), TOKENS - 1)
        self.assertEqual(len(spans(events, name="deferred up")), len(spans(events, name="deferred down")))

    def test_one_tier(self):
        events = traced("--cpuinfer", "2", stream=False)
        self.check_common(events)
        threads = self.threads(events)
        self.assertEqual({e["tid"] for e in spans(events, name="mla")}, {threads["engine"], threads["experts 1"]})
        self.assertTrue(spans(events, name="up", tid=threads["experts 1"]), "the other worker is seen too")
        self.assertTrue(spans(events, cat="http", name="write answer"))

    def test_plot(self):
        """The script's figures and picture of a trace, also of one that lacks its end."""
        def plot(f):
            cut, svg = f.name + ".cut", f.name + ".svg"
            with open(cut, "w", encoding="ascii") as g:
                g.write(f.read()[:-40])
            command = [sys.executable, PLOT, cut, "--tokens", "1", "--svg", svg, "--layers", "2-3", "--title", "<layers>"]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            self.assertRegex(text, r"^steps %d, tokens %d, time " % (TOKENS - 1, TOKENS - 1))
            device, experts, both = (float(x) for x in re.search(r"device at work (\S+) %, experts at work (\S+) %, both at once (\S+) %", text).groups())
            self.assertTrue(0 <= both <= min(device, experts) and max(device, experts) < 100)
            shapes = xml.etree.ElementTree.parse(svg).findall(".//{*}text")
            texts = {t.text for t in shapes}
            self.assertLessEqual({"device stream", "experts 0", "<layers>"}, texts)
            # The window ends with the last operation of layer 3. Experts of layer 1 may end within it, attention of layer 4 begin.
            self.assertFalse(texts & {"mla 0", "mla 1", "mla 5", "experts 4", "experts 5"})
            p = subprocess.run([sys.executable, PLOT, cut, "--tokens", "77"], capture_output=True, text=True)
            self.assertIn("no step of 77 tokens", p.stderr)
            return True
        self.assertTrue(traced("--npu-threads", "1", "--cpuinfer", "1", use=plot))

    def test_bad_path(self):
        """Refused before the model is looked at."""
        p = subprocess.run([TANDEM, "launch_server", "--model-path", "/no/such/model", "--port", "0", "--trace", "/no/such/folder/t.json"],
                           capture_output=True, text=True, timeout=120)
        self.assertEqual((p.returncode, p.stdout), (1, ""))
        self.assertIn("the trace file /no/such/folder/t.json cannot be written: No such file", p.stderr)

"""`tandem topo` shows the machine, the bandwidth matrix and the thread layout, as text and as JSON, and refuses wrong options. The figures themselves
are not tested."""
import json
import os
import subprocess
import unittest

from program import TANDEM, tandem

CUDA_STANDIN = os.path.join(os.environ["TD_BUILD_DIR"], "cuda_standin")


def topo(*args, synthetic=None, **more):
    env = {k: v for k, v in os.environ.items() if k != "HWLOC_SYNTHETIC"} | more
    if synthetic:
        env["HWLOC_SYNTHETIC"] = synthetic
    return tandem("topo", *args, env=env)


def facts(*args, synthetic=None, **more):
    p = topo(*args, "--json", synthetic=synthetic, **more)
    assert p.returncode == 0, p.stderr
    assert p.stderr == "", p.stderr
    return json.loads(p.stdout)


class Topo(unittest.TestCase):
    def test_this_machine(self):
        f = facts()
        self.assertTrue(f["real"])
        self.assertEqual(sum(n["cores"] for n in f["nodes"]), f["cores"])
        self.assertGreaterEqual(f["threads"], f["cores"])
        self.assertEqual([len(row) for row in f["read_gbps"]], [len(f["nodes"])] * len(f["nodes"]))
        for i, n in enumerate(f["nodes"]):
            self.assertEqual(len(n["cpus"]), n["cores"])
            if n["cores"] and n["memory_bytes"]:
                self.assertGreater(f["read_gbps"][i][i], 0)
        used = [c for s in f["plan"]["subpools"] for c in s["cpus"]]
        self.assertEqual(sorted(used), sorted(c for n in f["nodes"] for c in n["cpus"]))
        self.assertTrue(f["plan"]["device"]["shares_experts"])

    def test_one_core(self):
        p = topo(synthetic="numa:1 core:1 pu:1")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertIn("1 core, 1 hardware thread, ", p.stdout)
        self.assertNotRegex(p.stdout, r"\b1 (core|thread|node)s\b")

    def test_cards(self):
        """Those of the stand-in for the driver, which is where the dynamic linker finds it first."""
        there = {"LD_LIBRARY_PATH": CUDA_STANDIN}
        f = facts(**there, TD_STANDIN_DEVICES="2", TD_STANDIN_ARCH="120")
        card = {"name": "stand-in for a card", "memory_bytes": 2 << 30, "compute_capability": 120, "node": None}
        for c in f["cuda_cards"]:
            c["node"] = None  # of whatever lies at that place of this machine
            for figure in ("to_card_gbps", "from_card_gbps", "host_call_us", "doorbell_us"):
                self.assertGreater(c.pop(figure), 0)
            self.assertIsNone(c.pop("not_measured"))
        self.assertEqual(f["cuda_cards"], [card | {"pci": "0000:3b:00.0"}, card | {"pci": "0000:3c:00.0"}])
        self.assertIsNone(f["cuda_error"])
        self.assertRegex(topo(**there, TD_STANDIN_ARCH="120").stdout, r"12.0 0000:3b:00.0 ( +\d+\.\d){4}   stand-in for a card")
        self.assertEqual([facts(**there, TD_STANDIN_DEVICES="0")[k] for k in ("cuda_cards", "cuda_error")], [[], None])
        self.assertEqual(facts(synthetic="numa:2 core:4 pu:1", **there)["cuda_cards"], [])
        old = topo(**there, TD_STANDIN_CUDA="11040")
        self.assertEqual(old.returncode, 0)
        self.assertIn("NVIDIA cards: NVIDIA's driver serves CUDA 11.4 and is too old", old.stdout)
        self.assertIn("too old", facts(**there, TD_STANDIN_CUDA="11040")["cuda_error"])
        self.assertIn("does not start (cuInit)", facts(**there, TD_STANDIN_FAIL="1")["cuda_error"])

    def test_cards_that_cannot_be_measured(self):
        """They are listed, with the reason."""
        there = {"LD_LIBRARY_PATH": CUDA_STANDIN, "TD_STANDIN_DEVICES": "1"}
        for more, said in [({"TD_STANDIN_ARCH": "75"}, "compute capability 7.5"), ({"TD_STANDIN_MEMORY": "1048576"}, "of which 1048568 are free"),
                           ({"TD_STANDIN_REFUSE_CONTEXT": "1"}, "busy or unavailable")]:
            p = topo(**there, **more)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertRegex(p.stdout, r"0000:3b:00.0 ( +-){4}   stand-in for a card\n +not measured: CUDA card 0.*" + said)

    def test_affinity_is_kept(self):
        cpu = max(os.sched_getaffinity(0))
        p = subprocess.run(["taskset", "-c", str(cpu), TANDEM, "topo", "--json"], capture_output=True, text=True, timeout=60)
        f = json.loads(p.stdout)
        self.assertEqual((f["cores"], f["plan"]["subpools"][0]["cpus"]), (1, [cpu]))

    def test_two_sockets(self):
        f = facts("--npu-threads", "4", synthetic="package:2 numa:1 l3:2 core:4 pu:2")
        self.assertFalse(f["real"])
        self.assertEqual(f["read_gbps"], [[None, None], [None, None]])
        self.assertEqual([n["cpus"] for n in f["nodes"]], [[0, 8, 2, 10, 4, 12, 6, 14], [16, 24, 18, 26, 20, 28, 22, 30]])
        plan = f["plan"]
        self.assertEqual((plan["cpuinfer"], plan["npu_threads"]), (12, 4))
        self.assertEqual([(s["subpool"], s["node"], s["memory"], s["cpus"], s["unpinned"]) for s in plan["subpools"]],
                         [(0, 0, 0, [0, 8, 2, 10, 4, 12], 0), (1, 1, 1, [16, 24, 18, 26, 20, 28], 0)])
        self.assertEqual(plan["device"], {"cpus": [6, 14, 22, 30], "unpinned": 0, "memory": "spread", "shares_experts": False})

    def test_flags_have_launch_servers_names(self):
        machine = "numa:2 core:4 pu:1"
        ours = facts("--cpuinfer", "4", "--subpool-count", "1", synthetic=machine)
        self.assertEqual(ours, facts("--kt-cpuinfer", "4", "--kt-threadpool-count", "1", synthetic=machine))
        self.assertEqual([s["cpus"] for s in ours["plan"]["subpools"]], [[0, 1, 2, 3]])

    def test_table(self):
        p = topo("--cpuinfer", "8", "--npu-threads", "8", synthetic="numa:2 core:4 pu:2")
        self.assertEqual(p.returncode, 0)
        lines = p.stdout.splitlines()
        self.assertIn("launch_server --cpuinfer 8 --subpool-count 0 --npu-threads 8", lines)
        self.assertIn("subpool 1   node 1    4 threads on cpus 8-14:2; memory on node 1", lines)
        self.assertIn("device                8 threads, 8 of them not pinned; memory where it is touched first", lines)
        self.assertIn("This machine is made up: nothing is measured.", lines)
        self.assertNotIn("Kernels:", p.stdout)
        here = topo().stdout
        self.assertIn("read bandwidth in GB/s", here)
        self.assertRegex(here, r"Kernels: \w+; they fetch memory (4096|8192) bytes ahead into L2 and (512|1024) into L1")

    def test_a_machine_that_hwloc_cannot_make_up_is_told(self):
        p = topo("--json", synthetic="numa:2 core:4")  # it does not end in hardware threads
        self.assertEqual(p.returncode, 0)
        self.assertTrue(json.loads(p.stdout)["real"])
        self.assertIn("hwloc could not read what HWLOC_SYNTHETIC describes; this machine counts", p.stderr)

    def test_refusals(self):
        for args, said in [(("--cpuinfer", "1", "--subpool-count", "2"), "cpuinfer 1 is less than subpool-count 2: every subpool needs a thread")]:
            p = topo(*args)
            self.assertEqual((p.returncode, p.stdout, p.stderr), (1, "", f"tandem topo: {said}\n"))
        for args, said in [(("--cpuinfer", "x"), "--cpuinfer needs a whole number, not 'x'"), (("now",), "'now' is not a flag"),
                           (("--subpool-count", "65"), "--subpool-count must be between 0 and 64, not 65")]:
            p = topo(*args)
            self.assertEqual((p.returncode, p.stdout), (2, ""))
            self.assertIn(f"tandem topo: {said}", p.stderr)

    def test_help(self):
        p = topo("--help")
        self.assertEqual(p.returncode, 0)
        for word in ("--cpuinfer", "--subpool-count", "--npu-threads", "--json", "HWLOC_SYNTHETIC"):
            self.assertIn(word, p.stdout)

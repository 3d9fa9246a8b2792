"""The files for containers, Kubernetes, proxies and systemd: they have the form that their format asks for, and every flag in them is one of `tandem
launch_server`, with a value that it takes."""
import glob
import json
import os
import re
import shlex
import subprocess
import unittest

import yaml
from program import MODEL, SOURCE, TANDEM

FLAGS = {name: flag for flag in json.loads(subprocess.run([TANDEM, "launch_server", "--help-json"], capture_output=True, text=True, check=True).stdout)["flags"] for name in flag["names"]}
OURS = {"tandem", "tandem-router"}  # images that the files build


def read(name):
    with open(f"{SOURCE}/packaging/{name}") as f:
        return f.read()


class Strict(yaml.SafeLoader):
    """Refuses a key that stands twice."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        assert len(keys) == len(set(keys)), f"a key stands twice: {keys}"
        return super().construct_mapping(node, deep)


def parse(name):
    return yaml.load(read(name), Strict)


def value_of(words, flag):
    return words[words.index(flag) + 1]


def listed(line):
    """The words of ENTRYPOINT or CMD."""
    return json.loads(re.search(rf"^{line} (\[.*\])$", read("container/Containerfile"), re.M)[1])


class DeploymentFiles(unittest.TestCase):
    def check_command(self, words):
        """What `launch_server` is given: it takes it, with the demo model in place of the one that is named."""
        for word in words:
            if word.startswith("--"):
                self.assertIn(word, FLAGS)
                self.assertTrue(FLAGS[word]["supported"], word)
        ended = subprocess.run([TANDEM, "launch_server", "--check", *words, "--model-path", MODEL], capture_output=True, text=True)
        self.assertEqual(ended.returncode, 0, ended.stderr)

    def check_keys(self, text):
        """`flag: value` lines, also those that stand as comments."""
        count = 0
        for key in re.findall(r"^#?([a-z][a-z0-9-]*):(?= |$)", text, re.M):
            self.assertIn(f"--{key}", FLAGS)
            count += 1
        self.assertGreater(count, 3)

    def test_the_test_sees_what_is_wrong(self):
        for words in (["--model-path", "m", "--prot", "1"], ["--model-path", "m", "--port", "70000"]):
            with self.assertRaises(AssertionError):
                self.check_command(words)
        with self.assertRaises(AssertionError):
            self.check_keys("host: 1\nport: 2\nhots: 3\n#log-format: json\nmodel-path: x\n")
        with self.assertRaises(AssertionError):
            yaml.load("a: {b: 1, b: 2}", Strict)

    def test_container(self):
        entry = listed("ENTRYPOINT")
        self.assertEqual(entry[:2], ["tandem", "launch_server"])
        self.check_command([*entry[2:], *listed("CMD"), "--allow-no-key"])  # that, or a key, is for whoever runs it to say
        for name in ("compose.yaml", "compose-replicas.yaml"):
            for service in parse(f"container/{name}")["services"].values():
                if service["image"] == "tandem":
                    self.check_command(entry[2:] + service["command"])

    def test_compose(self):
        for name in ("compose.yaml", "compose-replicas.yaml"):
            services = parse(f"container/{name}")["services"]
            published = {}
            for service, said in services.items():
                self.assertTrue(said["image"] in OURS or re.search(r":v?[0-9]+\.[0-9]+", said["image"]), "an image has a version")
                self.assertEqual(said["image"] in OURS, "build" in said)
                if said["image"] == "tandem":
                    self.assertTrue(os.path.isfile(f"{SOURCE}/packaging/container/{said['build']['context']}/{said['build']['dockerfile']}"))
                for port in said.get("ports", ()):
                    address, here, there = port.split(":")
                    self.assertEqual(address, "127.0.0.1", "nothing is open to a network unless somebody says so")
                    published[int(here)] = (service, int(there))
            service, there = published[30000]
            self.assertEqual(there, int(value_of(services[service]["command"], "--port") if service == "router" else FLAGS["--port"]["default"]))
        self.assertIn(f"tandem:{FLAGS['--port']['default']}", read("prometheus/prometheus.yml"))

    def test_compose_router(self):
        services = parse("container/compose-replicas.yaml")["services"]
        router = services["router"]["command"]
        at = router.index("--worker-urls") + 1
        urls = [word for word in router[at : at + 2]]
        self.assertEqual(urls, [f"http://{name}:{FLAGS['--port']['default']}" for name, said in services.items() if said["image"] == "tandem"])
        delay = int(value_of(services["tandem-a"]["command"], "--shutdown-delay"))
        self.assertGreater(delay, int(value_of(router, "--health-check-interval-secs")) * int(value_of(router, "--health-failure-threshold")) + 1)

    def test_kubernetes(self):
        """Names of smg's chart: tests/scale runs smg itself with the same settings as flags."""
        text, router = read("kubernetes/smg-values.yaml"), parse("kubernetes/smg-values.yaml")["router"]
        for flag in re.findall(r"(--[a-z-]+)", text):
            self.assertIn(flag, FLAGS)
        self.check_command(["--model-path", "m", *shlex.split(re.search(r"\((--host [^;]+);", text)[1])])
        self.assertEqual(router["serviceDiscovery"]["port"], int(FLAGS["--port"]["default"]))
        self.assertIn(f"carry the label {router['serviceDiscovery']['selector']} and listen on {router['serviceDiscovery']['port']} ", text)
        self.assertEqual(router["healthCheck"]["endpoint"], "/health")
        delay = int(re.search(r"--shutdown-delay ([0-9]+)", text)[1])
        self.assertGreater(delay, router["healthCheck"]["intervalSecs"] * router["healthCheck"]["failureThreshold"] + 1)

    def test_proxies(self):
        for path in glob.glob(f"{SOURCE}/packaging/proxy/*"):
            with open(path) as f:
                text = f.read()
            for flag in re.findall(r"(--[a-z][a-z-]+)", text):
                self.assertIn(flag, FLAGS, path)

    def test_service(self):
        lines = re.findall(r"^Exec\w*=.*/tandem launch_server (.*)$", read("systemd/tandem.service.in"), re.M)
        self.assertTrue(lines)
        for line in lines:
            for word in line.split():
                self.assertTrue(not word.startswith("--") or word in FLAGS, word)
        self.check_keys(read("tandem.yaml"))
        parse("tandem.yaml")
        for path in glob.glob(f"{SOURCE}/configs/launch/*.yaml"):
            with open(path) as f:
                self.check_keys(f.read())

"""The container: its health check against servers, and its image, built by buildah and run: user, entry point, health check, an answer.

Nothing comes from a registry: the base is made by debootstrap, and the image's first stage, which compiles, is replaced by the .deb that is there already.
The image is made only with TD_TEST_FULL=1, and skipped, with a sentence, where buildah is not there or may not run.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from package_tools import run
from program import MODEL, SOURCE
from server_process import PATIENCE, Gate, Server, free_port, wait_until
from test_packages import PACKAGE, ROOTS, WHY_NOT, depends_archive, story, text_of

CONTAINER = f"{SOURCE}/packaging/container"
FULL = os.environ.get("TD_TEST_FULL")
WHY_NO_IMAGE = WHY_NOT or (None if shutil.which("buildah") else "there is no buildah (scripts/deps.sh test installs it)")


def buildah(*args, **more):
    return run("buildah", "--root", f"{ROOTS}/containers", "--runroot", f"{ROOTS}/containers-run", "--storage-driver", "vfs", *args, timeout=1700, **more)


class HealthCheck(unittest.TestCase):
    def check(self, *words):
        return run(f"{CONTAINER}/healthcheck", *map(str, words), check=False).returncode

    def test_against_servers(self):
        with Server() as server:
            self.assertEqual(self.check(server.port), 0)
            port = server.port
        self.assertEqual(self.check(port), 1, "nobody listens")
        gate = Gate()
        with Server("--port", str(port), model="/models/cold", wait=False, env=gate.env) as server:
            server.port = port
            wait_until(lambda: server.request("GET", "/health")[1]["status"] == "starting", says="it listens while it warms up")
            self.assertEqual(self.check(port), 1, "it is not ready")
            gate.open()
            server.wait_ready()
            self.assertEqual(self.check(port), 0)

    def test_a_card_that_is_lost(self):
        """The check ends the server, with a status on which both compose files start it anew."""
        with Server() as server:
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "!lose abcdefg", "max_tokens": 50})[0], 503)
            self.assertIsNone(server.process.poll())
            self.assertEqual(self.check(server.port, server.process.pid), 1)
            self.assertEqual(server.process.wait(20 * PATIENCE), 1)


@unittest.skipUnless(FULL, "scripts/test.sh --full builds and runs the image")
class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if WHY_NO_IMAGE:
            raise unittest.SkipTest(WHY_NO_IMAGE)
        os.makedirs(ROOTS, exist_ok=True)
        deb = run(PACKAGE, "deb").stdout.split()[0]
        base = buildah("from", "scratch").stdout.strip()
        buildah("add", "--quiet", base, depends_archive(deb), "/")
        buildah("commit", "--quiet", "--rm", base, "localhost/tandem-base")
        cls.context = tempfile.mkdtemp(dir=ROOTS)
        with open(f"{CONTAINER}/Containerfile") as f:
            text = f.read()
        text, n = re.subn(r"(?s)FROM \$\{BASE\} AS build.*?(?=FROM)", "FROM ${BASE} AS build\nCOPY *.deb /src/build/packages/\n", text)
        assert n == 1
        shutil.copy(deb, cls.context)
        shutil.copytree(CONTAINER, f"{cls.context}/packaging/container")
        with open(f"{cls.context}/Containerfile", "w") as f:
            f.write(text)
        buildah("bud", "--isolation", "chroot", "--format", "docker", "--pull-never", "--build-arg", "BASE=localhost/tandem-base", "-t", "localhost/tandem",
                "-f", f"{cls.context}/Containerfile", cls.context)
        cls.container = buildah("from", "--pull-never", "localhost/tandem").stdout.strip()

    @classmethod
    def tearDownClass(cls):
        buildah("rm", "--all")
        buildah("rmi", "--all", "--force")
        shutil.rmtree(cls.context)

    def test_what_it_says_of_itself(self):
        config = json.loads(buildah("inspect", "--type", "image", "localhost/tandem").stdout)["Docker"]["config"]
        self.assertEqual((config["User"], config["Entrypoint"], config["Cmd"]),
                         ("tandem", ["tandem", "launch_server", "--host", "0.0.0.0"], ["--model-path", "/model"]))
        self.assertEqual(config["Healthcheck"]["Test"], ["CMD", "tandem-healthcheck"])
        self.assertEqual(list(config["ExposedPorts"]), ["30000/tcp"])

    def test_it_serves(self):
        port = free_port()
        inside = ["buildah", "--root", f"{ROOTS}/containers", "--runroot", f"{ROOTS}/containers-run", "--storage-driver", "vfs", "run", "--isolation", "chroot"]
        with open(f"{self.context}/log", "w+") as log:
            server = subprocess.Popen([*inside, "--volume", f"{MODEL}:/model:ro", self.container, "--", "tandem", "launch_server", "--host", "0.0.0.0", "--allow-no-key", "--model-path", "/model",
                                       "--served-model-name", "tale", "--port", str(port)], stdout=log, stderr=log)
            try:
                health = lambda: run(*inside, self.container, "--", "tandem-healthcheck", str(port), check=False).returncode == 0
                wait_until(health, seconds=90, step=0.5, says=f"{self.context}/log")
                self.assertGreater(len(text_of(story(port))), 10)
                owner = [line.split()[1] for path in glob.glob("/proc/[0-9]*/status") for line in self.lines(path) if line.startswith("Uid:")
                         and str(port) in " ".join(self.lines(path.replace("status", "cmdline"))) and "Name:\ttandem" in self.lines(path)]
                self.assertTrue(owner)
                self.assertNotIn("0", owner, "not as root")
            finally:
                server.terminate()
                server.wait(30 * PATIENCE)

    def lines(self, path):
        try:
            with open(path, errors="replace") as f:
                return f.read().split("\n")
        except OSError:
            return []

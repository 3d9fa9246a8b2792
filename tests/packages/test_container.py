"""The container: its build, user, health check and answer. Built with buildah on a base made by debootstrap (nothing comes from a registry).

Skipped, with a sentence, where there is no buildah, or where it cannot run containers.
"""
import json
import os
import re
import shutil
import subprocess
import unittest

from package_tools import MODEL, SOURCE, run, wait_until

CONTAINER = f"{SOURCE}/packaging/container"


class HealthCheck(unittest.TestCase):
    def test_against_servers(self):
        from server_process import Server
        with Server() as server:
            self.assertEqual(run(f"{CONTAINER}/healthcheck", str(server.port), check=False).returncode, 0)
            port = server.port
        self.assertEqual(run(f"{CONTAINER}/healthcheck", str(port), check=False).returncode, 1)
        server = Server("--port", str(port), model="/models/cold", wait=False)
        with server:
            said = wait_until(lambda: server.request("GET", "/health")[1], says="it listens while it warms up")
            if said["status"] == "starting":
                self.assertEqual(run(f"{CONTAINER}/healthcheck", str(port), check=False).returncode, 1)
            server.wait_ready()
            self.assertEqual(run(f"{CONTAINER}/healthcheck", str(port), check=False).returncode, 0)


class Files(unittest.TestCase):
    def test_containerfile(self):
        with open(f"{CONTAINER}/Containerfile") as f:
            text = f.read()
        self.assertRegex(text, r"(?m)^USER tandem$")
        self.assertRegex(text, r"(?m)^HEALTHCHECK ")
        for path in re.findall(r"(?m)^COPY (?!--from)(\S+) ", text):
            self.assertTrue(os.path.exists(os.path.join(SOURCE, path)), path)


if __name__ == "__main__":
    unittest.main()

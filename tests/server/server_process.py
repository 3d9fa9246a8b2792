"""Starts a `launch_server` and talks to it: shared by the tests of the server."""
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time

FAKE = os.environ.get("TD_FAKE_TANDEM", "")
PATIENCE = int(os.environ.get("TD_TEST_PATIENCE", "5"))  # times what is waited at most: a limit ends what hangs, and is no measure of speed


def free_port():
    """A port that nobody listens at, and that the kernel gives to nobody who asks for any: it lies below those."""
    while True:
        with socket.socket() as s:
            port = random.randrange(20000, 32000)
            try:
                s.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(what, seconds=20, step=0.05, says=""):
    """The first true value of what(), which may fail with OSError until then."""
    end = time.monotonic() + seconds * PATIENCE
    while True:
        try:
            value = what()
            if value:
                return value
        except OSError:
            pass
        assert time.monotonic() < end, f"not within {seconds * PATIENCE} s: {says}"
        time.sleep(step)


class Gate:
    """Holds a fake server back (fake_engine.c says where) until it is opened; shut from the beginning."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.path = os.path.join(self.folder.name, "gate")
        self.env = {"TD_FAKE_GATE": self.path}
        self.shut()

    def shut(self):
        with open(self.path, "w"):
            pass

    def open(self):
        os.unlink(self.path)

    def wait_reached(self, timeout=20):
        """Until the server waits there, once more with every call."""
        wait_until(lambda: os.path.exists(f"{self.path}.reached"), timeout, says="nothing waits at the gate")
        os.unlink(f"{self.path}.reached")


class Server:
    """A running server; use as a context manager. `stderr()` is what it has logged so far."""

    def __init__(self, *flags, program=None, model="/models/fake", wait=True, timeout=60, env=None, log=None):
        self.log = tempfile.TemporaryFile()
        command = [*(program or [FAKE]), "launch_server", "--model-path", model, *flags]
        if "--port" not in flags:
            command += ["--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log if log is None else log, env={**os.environ, **env} if env else None)
        self.port = None
        if wait:
            self.wait_ready(timeout)

    def wait_ready(self, timeout=60):
        line = self.process.stdout.readline().decode()
        match = re.fullmatch(r"tandem: serving (.+) at http://(.+):(\d+)\n", line)
        if not match:
            raise RuntimeError(f"not ready: {line!r} {self.stderr()}")
        self.model, self.port = match[1], int(match[3])
        return self

    def stderr(self):
        self.log.seek(0)
        return self.log.read().decode()

    def connection(self, timeout=20):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * PATIENCE)

    def request(self, method, path, body=None, headers=None, raw=None, timeout=20):
        """(status, parsed JSON or text, headers)"""
        connection = self.connection(timeout)
        headers = dict(headers or {})
        if body is not None:
            raw = json.dumps(body)
        if raw is not None:
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, path, raw, headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if "json" in response.headers.get("Content-Type", ""):
            return response.status, json.loads(data), response.headers
        return response.status, data.decode(), response.headers

    def metric(self, name, headers=None):
        _, text, _ = self.request("GET", "/metrics", headers=headers)
        return float(re.search(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", text, re.M)[1])

    def wait_metric(self, name, value, timeout=10, headers=None):
        end = time.monotonic() + timeout * PATIENCE
        while (now := self.metric(name, headers)) != value:
            if time.monotonic() > end:
                raise AssertionError(f"{name} is {now}, not {value}, after {timeout * PATIENCE} s")
            time.sleep(0.02)

    def wait_log(self, text, timeout=10):
        end = time.monotonic() + timeout * PATIENCE
        while text not in self.stderr():
            assert time.monotonic() < end, f"{text!r} is not in the log after {timeout * PATIENCE} s: {self.stderr()}"
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM, timeout=30):
        """The exit status after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        alive = self.process.poll() is None
        status = self.stop()
        if kind is None and alive and status != 0:
            raise AssertionError(f"the server ended with {status}: {self.stderr()}")
        self.process.stdout.close()
        self.log.close()

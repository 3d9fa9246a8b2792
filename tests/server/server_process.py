"""Starts a `launch_server` and talks to it: shared by the tests of the server."""
import atexit
import contextlib
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
import unittest

FAKE = os.environ.get("TD_FAKE_TANDEM", "")
TANDEM = os.environ.get("TD_TANDEM", "")
MODEL = os.path.join(os.environ.get("TD_SOURCE_DIR", ""), "models/tale-v3-14m")  # the demo model
PATIENCE = int(os.environ.get("TD_TEST_PATIENCE", "5"))  # times what is waited at most: a limit ends what hangs, and is no measure of speed


def environment(**more):
    """This process's, and these; None: without that one."""
    return {k: v for k, v in {**os.environ, **more}.items() if v is not None}


_TAKEN = []  # sockets with a port's name: while one is there, free_port() of no other process gives that port


def free_port():
    """A port that nobody listens at, and that the kernel gives to nobody who asks for any: it lies below those. It is this process's until it ends."""
    while True:
        mark = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        port = random.randrange(20000, 32000)
        try:
            mark.bind(f"\0tandem-test-port-{port}")  # no file: it goes with the process
            with socket.socket() as s:
                s.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        _TAKEN.append(mark)
        return port


def wait_until(what, seconds=20, step=0.05, says=""):
    """The first true value of what(), which may fail with OSError until then. says: a text for who waited in vain, or what gives one."""
    end = time.monotonic() + seconds * PATIENCE
    while True:
        try:
            value = what()
            if value:
                return value
        except OSError:
            pass
        assert time.monotonic() < end, f"not within {seconds * PATIENCE} s: {says() if callable(says) else says}"
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
        with contextlib.suppress(FileNotFoundError):  # it is open
            os.unlink(self.path)

    def wait_reached(self, timeout=20):
        """Until the server waits there, once more with every call."""
        wait_until(lambda: os.path.exists(f"{self.path}.reached"), timeout, says="nothing waits at the gate")
        os.unlink(f"{self.path}.reached")


class Server:
    """A running server; use as a context manager. `stderr()` is what it has logged so far.

    `env` is what its environment has besides this one's; None: has not. `command` takes the place of program, model and flags."""

    running = set()  # processes that have not been waited for

    def __init__(self, *flags, program=None, model="/models/fake", command=None, wait=True, timeout=60, env=None, log=None):
        self.log = tempfile.TemporaryFile()
        command = list(command or [*(program or [FAKE]), "launch_server", "--model-path", model, *flags])
        if "--port" not in command:
            command += ["--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log if log is None else log, env=environment(**(env or {})))
        self.running.add(self.process)
        self.port = None
        if wait:
            try:
                self.wait_ready(timeout)
            except BaseException:
                self.process.kill()
                self.process.wait()
                raise

    def wait_ready(self, timeout=60):
        line = self.process.stdout.readline().decode()
        match = re.fullmatch(r"tandem: serving (.+) at http://(.+):(\d+)\n", line)
        if not match:
            raise RuntimeError(f"not ready: {line!r} {self.stderr()}")
        self.model, self.port = match[1], int(match[3])
        return self

    def stderr(self):
        """Also of one that was left."""
        if not self.log.closed:
            self.log.seek(0)
            self.said = self.log.read().decode()
        return self.said

    def sockets(self):
        """How many it has open."""
        folder, count = f"/proc/{self.process.pid}/fd", 0
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                count += os.readlink(f"{folder}/{name}").startswith("socket:")
        return count

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

    def wait_metric(self, name, value, timeout=20, headers=None):
        end = time.monotonic() + timeout * PATIENCE
        while (now := self.metric(name, headers)) != value:
            if time.monotonic() > end:
                raise AssertionError(f"{name} is {now}, not {value}, after {timeout * PATIENCE} s")
            time.sleep(0.02)

    def wait_log_match(self, pattern):
        """The match of a pattern in the log, which has a thread of its own: a line may come after the answer that it is about."""
        return wait_until(lambda: re.search(pattern, self.stderr()), says=f"{pattern!r} in the log")

    def wait_log(self, text, timeout=20):
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
        self.stderr()
        self.log.close()


@atexit.register
def end_servers():
    """Those that a test which has failed has left."""
    for process in Server.running:
        if process.poll() is None:
            process.kill()
            process.wait()


def demo_server(*flags, **more):
    """The whole program on the demo model."""
    return Server("--quantization", "none", "--cpuinfer", "2", *flags, program=[TANDEM], model=MODEL, **more)


def openai_client(server):
    import openai
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=60 * PATIENCE)


def stream_events(text):
    """The events of a stream of completions; that it ended properly is checked."""
    assert text.endswith("data: [DONE]\n\n"), text[-200:]
    return [json.loads(e[6:]) for e in text.split("\n\n")[:-2]]


class Client:
    """A server and a client of it, together: a context manager."""

    def __init__(self, server, client):
        self.server, self.client = server, client

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.client.close()
        self.server.__exit__(*error)


class ServerTest(unittest.TestCase):
    """Cases on one server, that start() gives."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.start()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)


class OpenaiTest(ServerTest):
    """The same, with an openai client of it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai_client(cls.server)
        cls.addClassCleanup(cls.client.close)

"""The datagrams that a service manager gets: those of Type=notify from a server's start to its end, and the watchdog's."""
import os
import socket
import subprocess
import tempfile
import time
import unittest

from server_process import FAKE, PATIENCE, Gate, Server


class Manager:
    """The socket of a service manager; what came is a list of {name: value}."""

    def __init__(self, abstract=False):
        self.folder = tempfile.TemporaryDirectory()
        self.name = f"@tandem-test-{os.getpid()}-{id(self)}" if abstract else os.path.join(self.folder.name, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + self.name[1:] if abstract else self.name)
        self.messages = []

    def environment(self, **more):
        return {"NOTIFY_SOCKET": self.name, **more}

    def read(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(4096).decode()
            except TimeoutError:
                return
            self.messages.append(dict(line.split("=", 1) for line in data.split("\n")))
            yield self.messages[-1]

    def wait_for(self, want, seconds=10 * PATIENCE):
        for message in self.read(seconds):
            if want(message):
                return message
        raise AssertionError(f"not told within {seconds} s; what was: {self.messages}")

    def count(self, name, seconds):
        return sum(name in message for message in self.read(seconds))

    def close(self):
        self.socket.close()
        self.folder.cleanup()


class Notify(unittest.TestCase):
    def manager(self, **options):
        manager = Manager(**options)
        self.addCleanup(manager.close)
        return manager

    def test_life(self):
        for abstract in (False, True):
            with self.subTest(abstract=abstract):
                manager = self.manager(abstract=abstract)
                gate = Gate()
                server = Server(model="/models/slow", env={**manager.environment(), **gate.env}, wait=False)
                first = manager.wait_for(lambda m: True)
                self.assertEqual(first, {"STATUS": "loading /models/slow"})
                gate.wait_reached()
                self.assertEqual(manager.count("READY", 0.5), 0, "the model is still being loaded")
                gate.open()
                ready = manager.wait_for(lambda m: "READY" in m)
                server.wait_ready()
                self.assertEqual(ready, {"READY": "1", "STATUS": f"serving slow at http://127.0.0.1:{server.port}"})
                self.assertEqual(server.stop(), 0)
                self.assertEqual(manager.wait_for(lambda m: "STOPPING" in m), {"STOPPING": "1", "STATUS": "stopping: running requests get 30 s"})
                self.assertFalse([m for m in manager.messages if "WATCHDOG" in m], "no watchdog was asked for")
                server.__exit__(None, None, None)

    def test_load_in_the_status(self):
        manager = self.manager()
        with Server(env=manager.environment()) as server:
            connection = server.connection()
            connection.request("POST", "/v1/completions", '{"prompt": "!hang", "model": "fake", "max_tokens": 8}', {"Content-Type": "application/json"})
            manager.wait_for(lambda m: m.get("STATUS") == "serving: 1 request running, 0 waiting")
            connection.close()
            manager.wait_for(lambda m: m.get("STATUS") == "serving: 0 requests running, 0 waiting")

    def test_watchdog(self):
        """Fed each second while all is well; no more once the server's own watchdog finds a step stuck."""
        manager = self.manager()
        with Server("--watchdog-timeout", "2", env=manager.environment(WATCHDOG_USEC="30000000")) as server:
            for _ in range(3):
                manager.wait_for(lambda m: "WATCHDOG" in m)
            connection = server.connection()
            connection.request("POST", "/v1/completions", '{"prompt": "!hang", "model": "fake", "max_tokens": 8}', {"Content-Type": "application/json"})
            manager.wait_for(lambda m: m.get("STATUS", "").startswith("stalled"))
            self.assertEqual(manager.count("WATCHDOG", 3), 0)
            connection.close()
            manager.wait_for(lambda m: "WATCHDOG" in m)

    def test_a_card_that_is_lost(self):
        """Fed no more, so that the service manager starts the server anew; and not again when all requests have ended."""
        manager = self.manager()
        with Server(env=manager.environment(WATCHDOG_USEC="30000000")) as server:
            manager.wait_for(lambda m: "WATCHDOG" in m)
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "!lose abcdefg", "max_tokens": 50})[0], 503)
            manager.wait_for(lambda m: m.get("STATUS") == "a card is lost (/health says which): 0 requests running, 0 waiting")
            self.assertEqual(manager.count("WATCHDOG", 3), 0)
            self.assertEqual(server.stop(), 1)
            manager.wait_for(lambda m: m.get("STATUS") == "card 3 is lost: nobody knows why")

    def test_watchdog_of_another_process(self):
        manager = self.manager()
        with Server(env=manager.environment(WATCHDOG_USEC="30000000", WATCHDOG_PID="1")):
            self.assertEqual(manager.count("WATCHDOG", 2.5), 0)

    def test_failed_start(self):
        manager = self.manager()
        p = subprocess.run([FAKE, "launch_server", "--port", "0", "--model-path", "/models/missing\nREADY=1"], env={**os.environ, **manager.environment()},
                           capture_output=True, text=True, timeout=120)
        self.assertEqual(p.returncode, 1)
        manager.wait_for(lambda m: "no such folder" in m["STATUS"])
        self.assertEqual(manager.count("STATUS", 0.5), 0, "that was the last word")
        self.assertNotIn("READY", {name for m in manager.messages for name in m}, "a line's end in a name is none in a message")

    def test_no_such_socket(self):
        for name, words in [("relative", "neither an absolute path nor '@' and a name"), ("", "neither"), ("@", "neither"), ("vsock:2:1", "neither"),
                            ("/no/such/socket", "cannot be reached: No such file"), ("/" + "x" * 200, "neither an absolute path")]:
            with self.subTest(name):
                p = subprocess.run([FAKE, "launch_server", "--port", "0", "--model-path", "m"], env={**os.environ, "NOTIFY_SOCKET": name},
                                   capture_output=True, text=True, timeout=120)
                self.assertEqual((p.returncode, p.stdout), (1, ""))
                self.assertIn(words, p.stderr)

    def test_manager_that_left(self):
        manager = self.manager()
        with Server(env=manager.environment(WATCHDOG_USEC="2000000")) as server:
            manager.socket.close()
            server.wait_log("the service manager was not told")
            self.assertEqual(server.request("GET", "/health")[0], 200)

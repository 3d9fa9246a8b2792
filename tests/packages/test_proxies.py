"""The files for nginx and Caddy (packaging/proxy), as they are but for ports, names and the certificate: each in front of a server, over TLS and HTTP/2.

Streams come through token by token, a client that leaves ends its request, a long silence ends no stream, keys pass, and requests that are too large
are refused.
"""
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from package_tools import changed, found, nginx_main, run
from program import SOURCE
from server_process import PATIENCE, Gate, Server, free_port, wait_until

SILENT_S = 65  # above nginx's default of 60


class Proxy:
    """A proxy of the committed file, before a server on `upstream`."""

    def __init__(self, upstream):
        self.folder = tempfile.mkdtemp()
        self.port = free_port()
        self.certificate, self.key = f"{self.folder}/cert.pem", f"{self.folder}/key.pem"
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", self.key, "-out", self.certificate)
        self.log = open(f"{self.folder}/log", "w+")
        self.process = subprocess.Popen(self.command(upstream), stdout=self.log, stderr=self.log, env={**os.environ, "HOME": self.folder})
        wait_until(lambda: self.curl("/health").stdout.startswith("{"), says=lambda: open(self.log.name).read())

    def write(self, name, text):
        with open(f"{self.folder}/{name}", "w") as f:
            f.write(text)
        return f"{self.folder}/{name}"

    def arguments(self, path, *more, host="localhost", address="127.0.0.1"):
        return ["curl", "-sSN", "--cacert", self.certificate, "--resolve", f"{host}:{self.port}:{address}", *more, f"https://{host}:{self.port}{path}"]

    def curl(self, path, *more, **where):
        return run(*self.arguments(path, *more, **where), check=False, timeout=120)

    def close(self):
        self.process.terminate()
        self.process.wait(20 * PATIENCE)
        self.log.close()
        shutil.rmtree(self.folder)


class Nginx(Proxy):
    program = found("nginx", "usr/sbin/nginx")

    def command(self, upstream):
        with open(f"{SOURCE}/packaging/proxy/nginx.conf") as f:
            site = changed(f.read(), (r"\[::\]:443", f"[::]:{self.port}"), (r"listen 443", f"listen {self.port}"), (r"127\.0\.0\.1:30000(?=;)", f"127.0.0.1:{upstream}"),
                           (r"/etc/ssl/tandem/fullchain.pem", self.certificate), (r"/etc/ssl/tandem/privkey.pem", self.key),
                           (r"server_name llm.example.org", "server_name localhost"))
        if not os.path.exists("/proc/net/if_inet6"):
            site = re.sub(r" *listen \[::\].*\n", "", site)
        self.write("site.conf", site)
        return [self.program, "-p", self.folder, "-e", f"{self.folder}/errors", "-c", self.write("nginx.conf", nginx_main(self.folder))]


class Caddy(Proxy):
    program = found("caddy", "usr/bin/caddy")

    def command(self, upstream):
        with open(f"{SOURCE}/packaging/proxy/Caddyfile") as f:
            site = changed(f.read(), (r"llm\.example\.org \{", f"https://localhost:{self.port} {{\n\ttls {self.certificate} {self.key}"),
                           (r"reverse_proxy 127\.0\.0\.1:30000", f"reverse_proxy 127.0.0.1:{upstream}"))
        path = self.write("Caddyfile", "{\n\tadmin off\n\tauto_https disable_redirects\n}\n" + site)
        return [self.program, "run", "--adapter", "caddyfile", "--config", path]


def completion(prompt, **more):
    return ["-H", "Content-Type: application/json", "-d", json.dumps({"model": "fake", "prompt": prompt, **more})]


class Cases:
    """What holds before every proxy; `proxy` is its class."""

    server = None

    @classmethod
    def start(cls):
        if not cls.proxy.program:
            return
        cls.gate = Gate()
        cls.gate.open()
        cls.server = Server(env=cls.gate.env)
        cls.front = cls.proxy(cls.server.port)
        # Begins now, is looked at in test_silence.
        cls.silent_since = time.monotonic()
        cls.silent = subprocess.Popen(cls.front.arguments("/v1/completions", *completion("!hang", max_tokens=4)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        cls.server.wait_metric("sglang:num_running_reqs", 1)

    @classmethod
    def stop(cls):
        if not cls.server:
            return
        if cls.silent.poll() is None:
            cls.silent.kill()
        cls.silent.communicate()
        cls.front.close()
        cls.server.__exit__(None, None, None)

    def setUp(self):
        if not self.server:
            self.skipTest(f"there is no {self.proxy.__name__.lower()} (scripts/deps.sh test unpacks it)")

    def test_http_2(self):
        p = self.front.curl("/v1/models", "-o", "/dev/null", "-w", "%{http_version} %{http_code}")
        self.assertEqual(p.stdout, "2 200", p.stderr)

    def test_streaming(self):
        """Events arrive as they are made: three while the server makes no more, and not all in a heap at the end."""
        for version in ("--http2", "--http1.1"):
            self.gate.shut()
            body = completion("!halfway " + "a" * 60, max_tokens=50, stream=True)
            with subprocess.Popen(self.front.arguments("/v1/completions", version, "--max-time", "300", *body), stdout=subprocess.PIPE) as p:
                events = (line for line in p.stdout if line.startswith(b"data: {"))
                early = [next(events, None) for _ in range(3)]  # a proxy that keeps them back ends here, by --max-time
                self.gate.open()
                late = list(events)
            self.assertNotIn(None, early, version)
            self.assertEqual(p.returncode, 0)
            self.assertGreaterEqual(len(late), 45)

    def test_client_leaves(self):
        for version in ("--http2", "--http1.1"):
            aborted = self.server.metric("sglang:num_aborted_requests_total")
            p = subprocess.Popen(self.front.arguments("/v1/completions", version, *completion("!slow " + "a" * 60, max_tokens=2000, ignore_eos=True, stream=True)),
                                 stdout=subprocess.PIPE)
            p.stdout.readline()
            self.server.wait_metric("sglang:num_running_reqs", 2)
            p.kill()
            p.communicate()
            self.server.wait_metric("sglang:num_running_reqs", 1)
            self.assertEqual(self.server.metric("sglang:num_aborted_requests_total"), aborted + 1)

    def test_client_leaves_before_the_answer(self):
        """No byte has come yet that a proxy could fail to write."""
        for version in ("--http2", "--http1.1"):
            p = subprocess.Popen(self.front.arguments("/v1/completions", version, *completion("!hang", max_tokens=4)), stdout=subprocess.PIPE)
            self.server.wait_metric("sglang:num_running_reqs", 2)
            p.kill()
            p.communicate()
            self.server.wait_metric("sglang:num_running_reqs", 1)

    def test_many_streams(self):
        clients = [subprocess.Popen(self.front.arguments("/v1/completions", *completion("!slow hello", max_tokens=20, stream=True)), stdout=subprocess.PIPE) for _ in range(16)]
        for p in clients:
            self.assertIn(b"data: [DONE]", p.communicate(timeout=60 * PATIENCE)[0])

    def test_large_bodies(self):
        with tempfile.NamedTemporaryFile("w") as f:
            json.dump({"model": "fake", "prompt": "a", "max_tokens": 1, "stop": ["x"], "user": "u" * (9 << 20)}, f)
            f.flush()
            self.assertEqual(self.front.curl("/v1/completions", "-H", "Content-Type: application/json", "-d", f"@{f.name}", "-w", " %{http_code}").stdout[-4:], " 200")
            f.write(" " * (9 << 20))
            f.flush()
            # A proxy that answers and closes while the body still comes may reset the connection before curl has read its answer: 000.
            send = ["-H", "Content-Type: application/json", "-d", f"@{f.name}", "-o", "/dev/null", "-w", "%{http_code}"]
            def code():
                code = self.front.curl("/v1/completions", *send).stdout
                self.assertIn(code, ("413", "000"))
                return code
            wait_until(lambda: code() == "413", says="413")

    def test_metrics_stay_at_home(self):
        status = ["-o", "/dev/null", "-w", "%{http_code}"]
        self.assertEqual(self.front.curl("/metrics", *status).stdout, "200")
        addresses = [a for a in run("hostname", "-I", check=False).stdout.split() if "." in a]
        if not addresses:
            self.skipTest("this machine has no address but 127.0.0.1")
        self.assertEqual(self.front.curl("/metrics", *status, address=addresses[0]).stdout, "403")
        self.assertEqual(self.front.curl("/health", *status, address=addresses[0]).stdout, "200")

    def test_key(self):
        with Server("--api-key", "s3cret") as server:
            front = self.proxy(server.port)
            self.addCleanup(front.close)
            for header, code in [((), "401"), (("-H", "Authorization: Bearer s3cret"), "200"), (("-H", "x-api-key: s3cret"), "200"),
                                 (("-H", "Authorization: Bearer other"), "401")]:
                self.assertEqual(front.curl("/v1/models", *header, "-o", "/dev/null", "-w", "%{http_code}").stdout, code)

    def test_server_restarts(self):
        """While it is away clients get 502 at once; afterwards the proxy finds it again."""
        port = free_port()
        server = Server("--port", str(port))
        front = self.proxy(port)
        self.addCleanup(front.close)
        status = ["-o", "/dev/null", "-w", "%{http_code}"]
        server.__exit__(None, None, None)
        self.assertEqual(front.curl("/v1/models", *status).stdout, "502")
        with Server("--port", str(port)):
            wait_until(lambda: front.curl("/v1/models", *status).stdout == "200", says="200 again")

    def test_silence(self):
        """A request that is not answered for longer than proxies wait by default is still there."""
        time.sleep(max(0, self.silent_since + SILENT_S - time.monotonic()))
        self.assertIsNone(self.silent.poll(), "the proxy has given up")
        self.assertEqual(self.server.metric("sglang:num_running_reqs"), 1)


class BehindNginx(Cases, unittest.TestCase):
    proxy = Nginx


class BehindCaddy(Cases, unittest.TestCase):
    proxy = Caddy


BEHIND = (BehindNginx, BehindCaddy)


def setUpModule():
    for behind in BEHIND:
        behind.start()


def tearDownModule():
    for behind in BEHIND:
        behind.stop()

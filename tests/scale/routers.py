"""Routers in front of workers, as users start them: sglang-router and smg from PyPI, nginx and HAProxy with the files of packaging/proxy. All on 127.0.0.1."""
import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
import time

from package_tools import changed, found, nginx_main
from program import MODEL, SOURCE, TANDEM
from server_process import PATIENCE, Server, free_port

PROXY = os.path.join(SOURCE, "packaging/proxy")


def start_worker(*flags):
    return Server("--max-total-tokens", "32768", "--context-length", "2048", "--served-model-name", "tale", "--cpuinfer", "1", "--skip-server-warmup", "--shutdown-delay", "4", *flags,
                  program=[TANDEM], model=MODEL)


class Router:
    """A router in front of workers; `port` is its own."""

    def __init__(self, workers):
        self.folder = tempfile.mkdtemp()
        self.urls = [f"http://127.0.0.1:{w.port}" for w in workers]
        self.log = open(f"{self.folder}/log", "w+")
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise

    def wait_ready(self):
        end = time.monotonic() + 60 * PATIENCE
        while not self.is_ready():
            assert time.monotonic() < end, open(self.log.name).read()[-3000:]
            if self.process.poll() is not None:
                said = open(self.log.name).read()
                assert "in use" in said.lower(), said[-3000:]
                self.start()  # somebody has taken the port since it was free
            time.sleep(0.1)

    def start(self):
        self.port = free_port()
        self.log.truncate(0)
        self.process = subprocess.Popen(self.command(), stdout=self.log, stderr=self.log, env={**os.environ, "HOME": self.folder})

    def is_ready(self):
        try:
            return all(self.request("POST", "/v1/completions", {"model": "tale", "prompt": "The", "max_tokens": 1})[0] == 200 for _ in self.urls)
        except OSError:
            return False

    def request(self, method, path, body=None, headers=None, timeout=120):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        connection.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text

    def write(self, name, text):
        with open(f"{self.folder}/{name}", "w") as f:
            f.write(text)
        return f"{self.folder}/{name}"

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.folder)


class SglangRouter(Router):
    program = f"{SOURCE}/build/scale-venv/bin/python"

    def command(self):
        return [self.program, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(self.port), "--policy", "cache_aware", "--worker-urls", *self.urls, "--prometheus-host", "127.0.0.1",
                "--prometheus-port", str(free_port()), "--health-check-interval-secs", "1", "--health-failure-threshold", "1", "--log-level", "warn"]

    def is_ready(self):
        try:
            status, listed = self.request("GET", "/workers")
            return status == 200 and sum(w["is_healthy"] for w in listed["workers"]) == len(self.urls)
        except OSError:
            return False

    def workers(self):
        return {w["url"]: w for w in self.request("GET", "/workers")[1]["workers"]}


class Smg(SglangRouter):
    """With the flags of packaging/container/compose-replicas.yaml."""

    def command(self):
        with open(f"{SOURCE}/packaging/container/compose-replicas.yaml") as f:
            name, *flags = json.loads(re.search(r'command: (\["smg".*?\])$', f.read(), re.S | re.M)[1])
        ours = {"0.0.0.0": "127.0.0.1", "30000": str(self.port), "http://tandem-a:30000": self.urls[0], "http://tandem-b:30000": self.urls[1]}
        return [f"{SOURCE}/build/smg-venv/bin/{name}", *[ours.get(f, f) for f in flags], "--prometheus-port", str(free_port())]


class Nginx(Router):
    program = found("nginx", "usr/sbin/nginx")

    def command(self):
        with open(f"{PROXY}/nginx-replicas.conf") as f:
            self.write("site.conf", changed(f.read(), (r"127\.0\.0\.1:30000(?=;)", f"127.0.0.1:{self.port}"), (r"127\.0\.0\.1:30001", self.urls[0][7:]), (r"127\.0\.0\.1:30002", self.urls[1][7:])))
        return [self.program, "-p", self.folder, "-e", f"{self.folder}/errors", "-c", self.write("nginx.conf", nginx_main(self.folder))]


class HaProxy(Router):
    program = found("haproxy", "usr/sbin/haproxy")

    def command(self):
        with open(f"{PROXY}/haproxy-replicas.cfg") as f:
            text = changed(f.read(), (r"127\.0\.0\.1:30000", f"127.0.0.1:{self.port}"), (r"127\.0\.0\.1:30001", self.urls[0][7:]), (r"127\.0\.0\.1:30002", self.urls[1][7:]))
        return [self.program, "-db", "-f", self.write("haproxy.cfg", text)]

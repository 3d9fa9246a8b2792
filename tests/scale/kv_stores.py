"""Stores that servers share: the stand-in of fake_mooncake.c, and Mooncake Store as it comes from PyPI (scripts/scale_venv.sh)."""
import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from program import MODEL, SOURCE, TANDEM
from relay import Relay
from server_process import Server, free_port

MOONCAKE = os.path.join(SOURCE, "build/mooncake")
PAGE = 128


def listening(pid):
    """The addresses at which a process listens, as {(address, port)}: what the kernel says, not the process."""
    sockets = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            sockets.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue  # closed meanwhile
    found = set()
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        with open(f"/proc/{pid}/net/{name}") as f:
            for line in f.read().splitlines()[1:]:
                field = line.split()
                if field[3] == "0A" and f"socket:[{field[9]}]" in sockets:
                    address, port = field[1].split(":")
                    words = [int(address[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(address), 8)]
                    found.add((socket.inet_ntop(family, b"".join(words)).removeprefix("::ffff:"), int(port, 16)))
    return found


class Store:
    env = {}

    def of_server(self, i):
        """What only server i has: (configuration, environment)."""
        return {}, {}


class FakeStore(Store):
    """The stand-in: a folder."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        self.set_faults("")

    def config(self):
        return {"library": os.environ["TD_FAKE_MOONCAKE"], "master_server_address": self.folder, "global_segment_size": 0}

    def set_faults(self, text):
        with open(f"{self.folder}/new", "w") as f:
            f.write(text)
        os.rename(f"{self.folder}/new", f"{self.folder}/faults")

    def kill(self):
        self.set_faults("down=1")

    def cut(self, server=None):
        self.set_faults("down=1")

    def hold(self, server=None):
        self.set_faults("hold=1")

    def mend(self, server=None):
        self.set_faults("")

    def restart(self):
        """As a master that has forgotten everything."""
        shutil.rmtree(f"{self.folder}/objects", ignore_errors=True)
        os.makedirs(f"{self.folder}/objects", exist_ok=True)
        self.set_faults("")

    def close(self):
        shutil.rmtree(self.folder)


class MooncakeStore(Store):
    """mooncake_master; the servers give it memory."""

    env = {"LD_LIBRARY_PATH": f"{MOONCAKE}/standins"}

    @staticmethod
    def missing():
        """What keeps it from running here, or None."""
        if not os.path.exists(f"{MOONCAKE}/mooncake/libmooncake_store.so"):
            return "Mooncake Store is not installed: scripts/scale_venv.sh could not (it needs PyPI and x86-64)"
        for name in ("libibverbs.so.1", "libcurl.so.4", "libnl-route-3.so.200"):
            try:
                ctypes.CDLL(name)
            except OSError:
                return f"Mooncake Store needs {name}: scripts/deps.sh test"
        return None

    def __init__(self, prefix=(), host="127.0.0.1"):
        self.prefix, self.host = list(prefix), host
        self.port, self.metrics_port = free_port(), free_port()
        self.process = None
        self.restart()

    def config(self):
        return {"library": f"{MOONCAKE}/mooncake/libmooncake_store.so", "master_server_address": f"{self.host}:{self.port}", "global_segment_size": "64MB"}

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restart(self):
        command = [*self.prefix, f"{MOONCAKE}/mooncake/mooncake_master", f"--rpc_address={self.host}", f"--rpc_port={self.port}", "--metrics_host=127.0.0.1", f"--metrics_port={self.metrics_port}", "--logtostderr"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **self.env})
        if self.prefix:
            time.sleep(3)
            return
        end = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5).read()
                return
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, "mooncake_master did not start"
                time.sleep(0.1)

    def close(self):
        self.kill()


class LinkedMooncake(MooncakeStore):
    """Each server reaches the master, and is reached by the others, through relays of its own: links that can be cut, or hold everything back.

    Server i listens at NET.1i and is known to the others as NET.2i, where its relay is; the master is at NET.3i for it. NET is a part of 127.0.0.0/8 of this process only.
    """

    PORTS = 32  # of a server, of which the library takes two; one that ended keeps its own for a minute

    def __init__(self, n):
        self.net = f"127.{1 + os.getpid() // 254 % 254}.{1 + os.getpid() % 254}"
        super().__init__()
        ports = {p: p for p in range(15000, 15000 + self.PORTS)}
        self.to_master = [Relay(f"{self.net}.{30 + i}", "127.0.0.1", {0: self.port}) for i in range(n)]
        self.to_server = [Relay(f"{self.net}.{20 + i}", f"{self.net}.{10 + i}", ports) for i in range(n)]

    def of_server(self, i):
        """(its configuration, its environment)"""
        config = {"master_server_address": f"{self.net}.{30 + i}:{self.to_master[i].port}", "local_hostname": f"{self.net}.{20 + i}", "listen_address": f"{self.net}.{10 + i}"}
        return config, {"MC_MIN_RPC_PORT": "15000", "MC_MAX_RPC_PORT": str(15000 + self.PORTS - 1)}

    def links(self, server, master=True, pages=True):
        """Of one server, or of all: to the master; on which the others fetch its pages."""
        return [link for kind, wanted in ((self.to_master, master), (self.to_server, pages)) if wanted for i, link in enumerate(kind) if server in (None, i)]

    def cut(self, server=None, **which):
        for link in self.links(server, **which):
            link.cut()

    def hold(self, server=None, **which):
        for link in self.links(server, **which):
            link.hold()

    def mend(self, server=None):
        for link in self.links(server):
            link.mend()

    def close(self):
        super().close()
        for link in self.links(None):
            link.close()


class Sharer(Server):
    """A server with a KV store; without one where `store` is None. `number`: which of them it is, for a store that asks."""

    def __init__(self, store, *flags, max_tokens=8192, program=None, number=0, **config):
        self.file, env = None, None
        if store:
            self.file = tempfile.NamedTemporaryFile("w", suffix=".json")
            ours, env = store.of_server(number)
            json.dump({**store.config(), "page_buffer_size": "16MB", **ours, **config}, self.file)
            self.file.flush()
            flags = ("--kv-store", "mooncake", "--kv-store-config", self.file.name, *flags)
        super().__init__("--max-total-tokens", str(max_tokens), "--context-length", "2048", "--served-model-name", "tale", "--cpuinfer", "1", "--skip-server-warmup", *flags, program=program or [TANDEM],
                         model=MODEL, env={**store.env, **env} if store else None)
        if store:
            self.wait_up()

    def wait_up(self):
        self.wait_metric("tandem:kv_store_up", 1, timeout=90)

    def ask(self, prompt, n=6):
        """What is the same bit by bit wherever it is computed, and how many prompt tokens were not."""
        status, answer, _ = self.request("POST", "/v1/completions", {"model": "tale", "prompt": prompt, "max_tokens": n, "temperature": 0, "logprobs": 2}, timeout=600)
        assert status == 200, answer
        return (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]["token_logprobs"]), answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    def store(self, name, what=None):
        """tandem:kv_store_NAME, with what="WHAT"."""
        text = self.request("GET", "/metrics")[1]
        start = f"tandem:kv_store_{name}{{"
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(start) and (what is None or f'what="{what}"' in line))

    def settle(self, timeout=60):
        """Until nothing is under way to the store or from it."""
        end = time.monotonic() + timeout
        while self.store("buffers_used") or self.store("lookups_open"):
            assert time.monotonic() < end, "page buffers or lookups stay in use"
            time.sleep(0.05)

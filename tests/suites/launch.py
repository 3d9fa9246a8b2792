"""Starts this server where a suite of another engine starts its own."""
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request

TANDEM = os.environ["TD_TANDEM"]
MODEL = os.environ["TD_SUITES_MODEL"]
CONTEXT = 2048 # of models/tale-v3-14m


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launch(port, names, context, *flags):
    """A server of the demo model under these names, when it is ready. The model knows no context beyond CONTEXT."""
    process = subprocess.Popen([TANDEM, "launch_server", "--model-path", MODEL, "--port", str(port), "--served-model-name", *names,
                                "--context-length", str(min(context, CONTEXT)), "--max-total-tokens", "16384", "--skip-server-warmup", *map(str, flags)], stdout=subprocess.DEVNULL,
                               env={**os.environ, "TD_SHARED_CORES": "1"})
    while process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10):
                return process
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise RuntimeError(f"the server ended with status {process.returncode}")

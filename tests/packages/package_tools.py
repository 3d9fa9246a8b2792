"""What the tests of the packages share: running programs, and those that scripts/deps.sh test unpacks in build/package-tools."""
import os
import socket
import subprocess
import time

SOURCE = os.environ["TD_SOURCE_DIR"]
MODEL = os.path.join(SOURCE, "models/tale-v3-14m")
TOOLS = os.path.join(SOURCE, "build/package-tools")


def run(*command, check=True, timeout=600, **more):
    p = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **more)
    assert not check or p.returncode == 0, f"{' '.join(map(str, command))}: {p.returncode}\n{p.stdout[-4000:]}\n{p.stderr[-4000:]}"
    return p


def unpacked(package, path):
    """A program of an unpacked package; None where it is not there."""
    program = os.path.join(TOOLS, package, path)
    return program if os.access(program, os.X_OK) else None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until(what, seconds=20, step=0.05, says=""):
    """The first true value of what(), which may fail with OSError until then."""
    end = time.monotonic() + seconds
    while True:
        try:
            value = what()
            if value:
                return value
        except OSError:
            pass
        assert time.monotonic() < end, f"not within {seconds} s: {says}"
        time.sleep(step)

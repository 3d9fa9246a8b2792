"""Servers whose calls fail: the control file of fault_shim.c, and how a start under it ended."""
import http.client
import mmap
import os
import struct
import subprocess
import tempfile

from server_process import MODEL, PATIENCE, TANDEM, Server

SHIM = os.environ["TD_FAULT_SHIM"]
POINTS = ("alloc", "map", "read", "thread", "thread_dies", "uring", "unlisten")
FIELDS = ("seen", "injected", "first", "every", "one_in", "seed", "how")
SHORT, EINTR, EIO, END = range(4)  # how a read fails
FLAGS = ("--quantization", "none", "--cpuinfer", "2", "--chunked-prefill-size", "512", "--max-total-tokens", "4096", "--max-running-requests", "4")
ASK = {"prompt": "Once upon a time there was a", "max_tokens": 8, "temperature": 0, "logprobs": 2}
CHAT = {"messages": [{"role": "user", "content": "Tell me a story about a fox \u2026 and a crow."}], "max_tokens": 8, "temperature": 0}


class Control:
    """The control file: `control["alloc", "first"] = 7`."""

    def __init__(self):
        self.file = tempfile.NamedTemporaryFile()
        self.file.truncate(4096)
        self.map = mmap.mmap(self.file.fileno(), 4096)

    def at(self, key):
        return POINTS.index(key[0]) * 64 + FIELDS.index(key[1]) * 8

    def __getitem__(self, key):
        return struct.unpack_from("=Q", self.map, self.at(key))[0]

    def __setitem__(self, key, value):
        struct.pack_into("=Q", self.map, self.at(key), value)

    def off(self):
        for point in POINTS:
            for field in ("first", "every", "one_in"):
                self[point, field] = 0

    def env(self):
        return {"LD_PRELOAD": SHIM, "TD_FAULT_CONTROL": self.file.name}


def launch(control, *flags, model=MODEL, wait=False, **env):
    server = Server(*FLAGS, *flags, program=[TANDEM], model=model, wait=wait, env={**control.env(), **env})
    server.control = control  # its file must be there as long as the server
    return server


class NoAnswer(Exception):
    """A request failed in one of the ways that are allowed when a call fails while it is served."""


def answer_to(server, path, body):
    try:
        status, answer, _ = server.request("POST", path, body)
    except TimeoutError:
        raise AssertionError("no answer") from None
    except (http.client.HTTPException, OSError) as e:
        raise NoAnswer(f"connection: {type(e).__name__}") from None
    if status in (500, 503):
        raise NoAnswer(str(status))
    assert status == 200, (status, answer)
    return answer


def texts(server):
    """What a right server answers: text and log-probabilities of a completion, and a chat."""
    choice = answer_to(server, "/v1/completions", ASK)["choices"][0]
    chat = answer_to(server, "/v1/chat/completions", CHAT)
    return choice["text"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], chat["choices"][0]["message"]["content"]


def outcome(server, right, timeout=20):
    """"served", the sentence of the refusal, or "failed: …" when the call that failed came after the start and a request did not get its
    answer. Anything else (a crash, a hang, a wrong answer, no sentence) raises."""
    try:
        server.wait_ready()
    except RuntimeError:
        try:
            code = server.process.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            server.process.kill()
            raise AssertionError(f"it hangs: {server.stderr()}") from None
        log = server.stderr()
        lines = log.strip().split("\n")
        sentences = [line for line in lines if line.startswith("tandem launch_server: ")]
        if code not in (1, 2) or len(sentences) != 1 or lines[-1] != sentences[0] or len(sentences[0]) < 30:
            raise AssertionError(f"exit status {code}: {log}") from None
        server.__exit__(RuntimeError, None, None)
        return sentences[0][len("tandem launch_server: "):]
    with server:
        try:
            got = texts(server)
        except NoAnswer as e:
            return f"failed: {e}"
        if got != right:
            raise AssertionError(f"a wrong answer: {got} is not {right}")
    return "served"

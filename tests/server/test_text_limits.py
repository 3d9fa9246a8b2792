"""Texts that would keep the server's text threads busy: hostile expressions of a tokenizer, texts longer than any context, many grammars."""
import json
import os
import select
import signal
import socket
import tempfile

from server_process import MODEL, TANDEM, Server, ServerTest
from test_http import GateTest, request_bytes

HOSTILE = "(?:a(?=.*b))*|."  # looks at the rest of the text for every byte of it


class HostileTokenizer(ServerTest):
    """The demo model with another expression in its tokenizer.json."""

    @classmethod
    def start(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        for name in os.listdir(MODEL):
            if name != "tokenizer.json":
                os.symlink(os.path.join(MODEL, name), os.path.join(cls.folder.name, name))
        with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as f:
            tokenizer = json.load(f)
        split = {"type": "Split", "pattern": {"Regex": HOSTILE}, "behavior": "Isolated", "invert": False}
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, {**tokenizer["pre_tokenizer"], "use_regex": False}]}
        with open(os.path.join(cls.folder.name, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(tokenizer, f)
        return Server(program=[TANDEM], model=cls.folder.name)

    def refusal(self, path, body):
        status, answer, _ = self.server.request("POST", path, body, timeout=60)
        self.assertEqual(status, 400, answer)
        return answer["error"]

    def test_steps_are_bounded(self):
        """Each would take minutes."""
        text = "a" * 40000
        for path, body in (("/tokenize", {"prompt": text}), ("/v1/completions", {"prompt": text, "truncate_prompt_tokens": 5, "max_tokens": 1}),
                           ("/tokenize", {"messages": [{"role": "user", "content": text}]})):
            self.assertIn("take too many steps on this text", self.refusal(path, body)["message"])
        self.assertEqual(self.server.request("POST", "/tokenize", {"prompt": "aab"})[0], 200)

    def test_texts_longer_than_the_context(self):
        """They are refused before they are encoded, which the expression would show. A count that is no prompt's may be of any length."""
        text = "a" * 500000
        chat = [{"role": "user", "content": text}]
        for path, body in (("/tokenize", {"prompt": text}), ("/tokenize", {"messages": chat}), ("/v1/completions", {"prompt": text}),
                           ("/v1/chat/completions", {"messages": chat}), ("/v1/responses", {"input": text})):
            error = self.refusal(path, body)
            self.assertEqual(error["code"], "context_length_exceeded", path)
            self.assertIn("the fewest tokens", error["message"])
        self.assertIn("too many steps", self.refusal("/v1/messages/count_tokens", {"model": self.server.model, "messages": chat})["message"])


class Held(GateTest):
    """Texts and grammars that are not done while the gate is shut, or until they are stopped."""
    LONG = {"prompt": "!encode " + "x" * 100000}
    SHORT = {"prompt": "x" * 100000}

    def test_clients_that_leave(self):
        """Their texts are given up, so that others have the threads: more clients than threads leave, and the gate stays shut."""
        for _ in range(5):
            s = self.connect()
            s.sendall(request_bytes("/tokenize", self.LONG))
            self.gate.wait_reached()
            s.close()
        status, answer, _ = self.server.request("POST", "/tokenize", self.SHORT)
        self.assertEqual((status, answer["count"]), (200, 100001))

    def test_stop(self):
        """A text does not outlive the grace time, nor a second signal."""
        for grace in ("0.1", "86400"):
            server = Server("--shutdown-grace", grace, env=self.env)
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                s.sendall(request_bytes("/tokenize", self.LONG))
                self.gate.wait_reached()
                server.process.send_signal(signal.SIGTERM)
                server.wait_log("stopping:")
                self.assertEqual(server.stop(), 0)
                self.assertEqual(self.read_all(s)[9:12], b"503")
            server.process.stdout.close()

    def test_texts_do_not_wait_for_grammars(self):
        """More grammars come than there are threads, and none is ready while the gate is shut; a text that comes behind all of them is done."""
        clients = []
        for i in range(12):
            clients.append(self.connect())
            clients[-1].sendall(request_bytes("/v1/completions", {"prompt": "x", "max_tokens": 1, "regex": f"a{{{i + 1}}}"}))
        for s in clients:
            self.wait_read(s)
        self.gate.wait_reached()
        self.assertEqual(self.server.request("POST", "/tokenize", self.SHORT)[0], 200)
        self.assertEqual(select.select(clients, [], [], 0)[0], [])
        self.gate.open()
        for s in clients:
            self.assertIn(b"200 OK", self.read_until(s, b"\r\n\r\n"))

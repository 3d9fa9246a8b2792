"""Requests that are not HTTP, over raw sockets. What libmicrohttpd refuses by itself is answered with the API's JSON, too, and the connection ends."""
import json
import random
import re
import socket
import threading

from server_process import PATIENCE, Server
from test_http import HttpTest, request_bytes

GOOD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def first_line(line):
    return line + b"\r\nHost: localhost\r\n\r\n"


def headers(lines):
    return b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n"


# what is sent, the status
MALFORMED = [
    (first_line(b"GET /health HTTP/9.9"), 505), (first_line(b"GET /health HTTP/2.0"), 505), (first_line(b"GET /health HTTP/0.9"), 505),
    (first_line(b"GET /health HTTX/1.1"), 400), (first_line(b"GET /health http/1.1"), 400), (first_line(b"GET /health HTTP/1.10"), 400),
    (first_line(b"GET /health HTTP/1.1 x"), 400), (first_line(b"GET /health"), 400), (first_line(b"GET "), 400),
    (first_line(b"GET  /health HTTP/1.1"), 400), (first_line(b"GET /health  HTTP/1.1"), 400), (first_line(b"GET /health x HTTP/1.1"), 400),
    (first_line(b"GET /health\tx HTTP/1.1"), 400), (first_line(b"G(T /health HTTP/1.1"), 400), (first_line(b"GET /he\x01lth HTTP/1.1"), 400),
    (first_line(b"GET /health\0 HTTP/1.1"), 400), (first_line(b"GET /health\0HTTP/1.1\0 HTTP/1.1"), 400), (first_line(b"GET\0X /health HTTP/1.1"), 400),
    (first_line(b"GET /" + b"a" * 70000 + b" HTTP/1.1"), 414), (first_line(b"GET /health?" + b"a&" * 20000 + b" HTTP/1.1"), 431),
    (b"GET /health HTTP/1.1\r\nno colon\r\nHost: localhost\r\n\r\n", 400), (headers(b"no colon\r\n"), 400), (headers(b"X\0A: y\r\n"), 400),
    (headers(b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(100))), 431), (headers(b"a:b\r\n" * 5000), 431),
    (headers(b"Cookie: " + b"a=b;" * 10000 + b"\r\n"), 431), (headers(b"X: y\r\n" + (b" " + b"y" * 1000 + b"\r\n") * 100), 431),
    (b"GET /health HTTP/1.1\nHost: localhost\r\n\r\n", 400), (b"GET /health HTTP/1.1\r\nHost: localhost\n\r\n", 400),
    (GOOD[:-2] + b"\n", 400), (GOOD.replace(b"\r\n", b"\n"), 400), (headers(b"X: y\nX-Two: z\r\n"), 400),
    (headers(b"X: y \nX-Two: z\r\n"), 400), (headers(b"X:\nX-Two: z\r\n"), 400), (headers(b"X: y\r\n z\r\n"), 400), (headers(b"X: y\rX-Two: z\r\n"), 400),
    (POST + b"Content-Length: 2\n\r\n{}", 400), (POST + b"Content-Length: 2\r\n\n{}", 400),
    *[(POST + b"Content-Length: " + n + b"\r\n\r\n{}", 400) for n in (b"-5", b"+5", b"five", b"", b"5 5", b"0x5", b"5,5")],
    (POST + b"Content-Length: 99999999999999999999\r\n\r\n{}", 413),
    *[(CHUNKED + chunk, 400) for chunk in (b"zz\r\n", b"\r\n", b"-2\r\n{}\r\n", b"2\r\n{}x\r\n", b"2 3\r\n{}\r\n", b"0\r\nno colon\r\n\r\n")],
    (CHUNKED + b"fffffffffffffffff\r\n", 413),
]


class Raw(HttpTest):
    def send(self, raw, half_close=False):
        s = self.connect()
        try:
            s.sendall(raw)
            if half_close:
                s.shutdown(socket.SHUT_WR)
        except OSError:  # it need not read all of it
            pass
        return s

    def answer(self, s):
        """All that comes until the end of the connection, which the server makes."""
        data = b""
        try:
            while piece := s.recv(65536):
                data += piece
        except ConnectionResetError:
            pass
        s.close()
        return data

    def exchange(self, raw):
        return self.answer(self.send(raw))


class Malformed(Raw):
    def check(self, answer, status):
        head, _, body = answer.partition(b"\r\n\r\n")
        self.assertEqual(head[:13], b"HTTP/1.1 %d " % status, answer[:200])
        self.assertIn(b"\r\nContent-Type: application/json", head)
        self.assertIn(b"\r\nConnection: close", head)
        self.assertIn(b"\r\nContent-Length: %d" % len(body), head)
        return json.loads(body)

    def test_each(self):
        """On a new connection, and on one that has served a request, and together with it."""
        for raw, status in MALFORMED:
            with self.subTest(raw[:80], status=status):
                error = self.check(self.exchange(raw), status)["error"]
                self.assertTrue(error["message"].endswith("."), error)
                self.assertEqual(error["type"], "server_error" if status >= 500 else "invalid_request_error")
                answer = self.exchange(GOOD + raw)
                answers = [m.start() for m in re.finditer(rb"HTTP/1.1 \d\d\d ", answer)]
                self.assertEqual(len(answers), 2, answer[:500])
                self.check(answer[answers[1]:], status)
        self.alive()

    def test_kept_connection(self):
        for raw, status in MALFORMED:
            with self.subTest(raw[:80], status=status):
                s = self.send(GOOD)
                self.read_until(s, b"}")
                try:
                    s.sendall(raw)
                except OSError:
                    pass
                self.check(self.answer(s), status)

    def test_amid_the_stop(self):
        """They come in while the server ends, which it does as ever."""
        for _ in range(10):
            with Server() as self.server:
                sockets = [self.connect() for _ in range(48)]
                ended = threading.Thread(target=self.server.process.terminate)
                for i, s in enumerate(sockets):
                    if i == len(sockets) // 2:
                        ended.start()
                    try:
                        s.sendall(CHUNKED + b"zz\r\n")
                    except OSError:
                        pass
                ended.join()
                self.assertEqual(self.server.process.wait(30 * PATIENCE), 0, self.server.stderr())

    def test_form_of_the_api(self):
        answer = self.exchange(CHUNKED.replace(b"completions", b"messages") + b"zz\r\n")
        self.assertEqual(self.check(answer, 400)["type"], "error")

    def test_no_answer(self):
        """The two that get none: a first line without a space, and one that begins with it."""
        for raw in (b"GET\r\n\r\n", b" /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            self.assertEqual(self.exchange(raw), b"")


class AnyBytes(Raw):
    flags = ("--request-timeout", "1")  # for requests whose end never comes

    def test_any_bytes(self):
        """Good and malformed requests with bytes changed at random: every answer is JSON, if there is one."""
        seed = random.randrange(1 << 32)
        print("seed", seed)
        draw = random.Random(seed)
        bases = [GOOD, request_bytes("/v1/completions", {"prompt": "a"}), CHUNKED + b'e\r\n{"prompt":"a"}\r\n0\r\n\r\n',
                 *[raw for raw, _ in MALFORMED if len(raw) < 1000]]
        for _ in range(20):
            batch = []
            for _ in range(50):
                raw = bytearray(draw.choice(bases))
                for _ in range(draw.randrange(1, 4)):
                    at = draw.randrange(len(raw))
                    raw[at:at + draw.randrange(2)] = draw.choice([b"", b"\0", b" ", b"\n", b"\r\n", b":", bytes([draw.randrange(256)])])
                batch.append((bytes(raw), self.send(bytes(raw), half_close=True)))
            for raw, s in batch:
                answer = self.answer(s)
                with self.subTest(raw, seed=seed):
                    self.assertNotIn(b"<html", answer.lower())
                    if answer:
                        self.assertIn(b"\r\nContent-Type: application/json", answer)
        self.alive()

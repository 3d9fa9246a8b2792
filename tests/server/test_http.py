"""HTTP itself, over raw sockets: clients that send mistakes or attacks, that leave, that do not read, or that have no key."""
import contextlib
import json
import select
import signal
import socket
import threading
import time
import unittest

from server_process import PATIENCE, Gate, Server, wait_until

BODY_MAX = 16 << 20


def request_bytes(path, body, more="", method="POST", version="1.1"):
    body = json.dumps(body).encode() if not isinstance(body, bytes) else body
    return (f"{method} {path} HTTP/{version}\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{more}\r\n").encode() + body


def completion(prompt, **more):
    return request_bytes("/v1/completions", {"prompt": prompt, **more})


class HttpTest(unittest.TestCase):
    flags = ()
    env = None

    def setUp(self):
        self.server = Server(*self.flags, env=self.env)
        self.addCleanup(self.server.__exit__, None, None, None)

    def connect(self, rcvbuf=None):
        s = socket.socket()
        if rcvbuf:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        s.settimeout(20 * PATIENCE)
        s.connect(("127.0.0.1", self.server.port))
        self.addCleanup(s.close)
        return s

    def sent(self, data, rcvbuf=None):
        """A connection on which this was sent."""
        s = self.connect(rcvbuf)
        s.sendall(data)
        return s

    def wait_read(self, s):
        """Until the server has taken all that was sent: the system's receive queue of its side of the connection is empty."""
        ends = tuple("0100007F:%04X" % port for port in (self.server.port, s.getsockname()[1]))
        def unread():
            with open("/proc/net/tcp") as f:
                return [queues.split(":")[1] for _, *two, _, queues, _ in (line.split()[:6] for line in f) if tuple(two) == ends]
        wait_until(lambda: unread() == ["00000000"], says="the server has read")

    def read_all(self, s):
        data = b""
        while piece := s.recv(65536):
            data += piece
        return data

    def read_until(self, s, what):
        data = b""
        while what not in data:
            piece = s.recv(65536)
            if not piece:
                break
            data += piece
        return data

    def alive(self):
        status, answer, _ = self.server.request("POST", "/v1/completions", {"prompt": "ok"})
        self.assertEqual((status, answer["choices"][0]["text"]), (200, "ok"))


class Clients(HttpTest):
    def test_leaving_cancels(self):
        """Streaming or not, suspended or not: a client that leaves frees its request at once."""
        for i, body in enumerate([{"prompt": "!hang"}, {"prompt": "!hang", "stream": True},
                                  {"prompt": "!slow go on", "stream": True, "max_tokens": 4000, "ignore_eos": True},
                                  {"prompt": ["!hang"] * 3, "n": 2}]):
            with self.subTest(body):
                s = self.sent(request_bytes("/v1/completions", body))
                n = 6 if isinstance(body["prompt"], list) else 1
                self.server.wait_metric("sglang:num_running_reqs", n)
                if i == 2:
                    self.read_until(s, b"data: ")
                s.close()
                self.server.wait_metric("sglang:num_running_reqs", 0)
        self.alive()


    def test_reset(self):
        for _ in range(10):
            s = self.connect()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.sendall(completion("!hang", stream=True))
            time.sleep(0.01)
            s.close()
        self.server.wait_metric("sglang:num_running_reqs", 0)
        self.alive()

    def test_slow_reader(self):
        """Nobody reads: the engine goes on, the buffer is bounded, the request is cancelled."""
        s = self.sent(request_bytes("/v1/completions", {"prompt": "!flood", "stream": True, "max_tokens": 1040000, "ignore_eos": True, "logprobs": 20}), rcvbuf=4096)
        self.server.wait_metric("sglang:num_aborted_requests_total", 1, timeout=60)
        self.assertLess(self.server.metric("sglang:generation_tokens_total"), 1040000)
        self.server.wait_log("reader is too slow")
        self.alive()

    def test_reader_of_many_choices_that_pauses(self):
        """What many choices make while nobody reads is kept: it is little for each of them."""
        s = self.connect(rcvbuf=4096)
        before = self.server.metric("sglang:generation_tokens_total")
        prompts = [f"!flood{i:03d}" for i in range(150)]
        s.sendall(request_bytes("/v1/completions", {"prompt": prompts, "stream": True, "max_tokens": 2000, "ignore_eos": True}))
        self.server.wait_metric("sglang:generation_tokens_total", before + 150 * 2000, timeout=60)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        n_ended, tail = 0, b""
        while b"[DONE]" not in tail and (piece := s.recv(1 << 20)):
            tail += piece
            n_ended += tail.count(b'"finish_reason":"length"')
            tail = tail[-23:]
        self.assertEqual(n_ended, 150)
        self.alive()

    flags = ("--context-length", "1048576")

    def test_half_closing_with_the_request(self):
        """A client that will send no more gets its answer and then the end of the connection, not the idle timeout."""
        for _ in range(30):
            for request, status in ((b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"200"), (request_bytes("/v1/completions", b"{"), b"400")):
                s = self.connect()
                s.settimeout(5 * PATIENCE)
                s.sendall(request)
                s.shutdown(socket.SHUT_WR)
                self.assertEqual(self.read_all(s)[9:12], status)

    def test_many_at_once(self):
        results = []

        def one(i):
            status, answer, _ = self.server.request("POST", "/v1/completions", {"prompt": f"number {i}", "n": 2})
            results.append((status, [c["text"] for c in answer["choices"]], i))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(60)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        for status, texts, i in results:
            self.assertEqual((status, texts), (200, [f"number {i}"] * 2))
        self.assertEqual(len(results), 60)


class GateTest(HttpTest):
    def setUp(self):
        self.gate = Gate()
        self.env = self.gate.env
        super().setUp()
        self.addCleanup(self.gate.open)  # or the server would wait for its end


class Others(GateTest):
    def test_leaving_is_not_felt_by_others(self):
        """All are in the midst of their answers when most of them leave."""
        before = self.server.metric("sglang:generation_tokens_total")
        stay = self.sent(completion("!halfway stay here please", stream=True, max_tokens=30))
        leavers = [self.sent(completion("!halfway leave", stream=True, max_tokens=3000, ignore_eos=True)) for _ in range(20)]
        self.server.wait_metric("sglang:num_running_reqs", 21)
        self.server.wait_metric("sglang:generation_tokens_total", before + 21 * 3)
        for s in leavers:
            s.close()
        self.server.wait_metric("sglang:num_aborted_requests_total", 20)
        self.gate.open()
        text = self.read_until(stay, b"[DONE]").decode()
        got = "".join(json.loads(line[6:])["choices"][0]["text"] for line in text.split("\r\n") for line in line.split("\n")
                      if line.startswith("data: {"))
        self.assertEqual(got, "!halfway stay here please")


class LargeBodies(GateTest):
    LONG = "!encode " + "x" * 100000

    def test_others_are_not_held_up(self):
        """Bodies whose text takes as long as the gate is shut, on more connections than there are HTTP threads: meanwhile the others are answered."""
        stream = self.sent(completion("!slow", stream=True, max_tokens=4000, ignore_eos=True))
        self.read_until(stream, b"data: ")
        done = []

        def tokenize(path, body):
            done.append(self.server.request("POST", path, body))

        threads = [threading.Thread(target=tokenize, args=("/tokenize", {"prompt": self.LONG})) for _ in range(6)]
        threads += [threading.Thread(target=tokenize, args=("/v1/completions", {"prompt": self.LONG, "max_tokens": 1})) for _ in range(6)]
        for t in threads:
            t.start()
        self.gate.wait_reached()
        for _ in range(20):
            self.assertEqual(self.server.request("GET", "/health")[0], 200)
            self.read_until(stream, b"data: ")
        self.assertEqual(done, [])
        self.gate.open()
        for t in threads:
            t.join()
        self.assertEqual(sorted(status for status, _, _ in done), [200] * 6 + [400] * 6)  # a completion does not fit the context
        self.assertEqual([r["count"] for status, r, _ in done if status == 200], [len(self.LONG) + 1] * 6)

    def test_clients_that_leave(self):
        for path in ("/tokenize", "/v1/completions"):
            self.gate.shut()
            s = self.sent(request_bytes(path, {"prompt": self.LONG}))
            self.gate.wait_reached()
            s.close()
            self.gate.open()
        self.alive()

    def test_stop(self):
        """What runs on a text thread is finished, a generation too. What waits for one is answered (which way: test_text_work)."""
        kinds = [("/tokenize", {"prompt": self.LONG}), ("/v1/completions", {"prompt": self.LONG, "truncate_prompt_tokens": 5, "max_tokens": 3})]
        running, waiting = [], []
        for path, body in kinds:
            running.append(self.sent(request_bytes(path, body)))
            self.gate.wait_reached()
        for path, body in [kinds[0]] * 3:
            waiting.append(self.sent(request_bytes(path, body)))
        for s in waiting:  # a request that the server has not begun to read has its connection reset
            self.wait_read(s)
        self.server.process.send_signal(signal.SIGTERM)
        self.server.wait_log("stopping:")
        self.gate.open()
        self.assertEqual([self.read_all(s)[9:12] for s in running], [b"200"] * 2)
        self.assertLessEqual({self.read_all(s)[9:12] for s in waiting}, {b"200", b"503"})
        self.assertEqual(self.server.process.wait(20 * PATIENCE), 0)

    def test_a_stop_does_not_wait_for_texts_without_a_limit(self):
        """The first server has no time for them, the second is hurried by another signal; the text is never done, nor can it be stopped."""
        for grace in ("0.1", "86400"):
            server = Server("--shutdown-grace", grace, env=self.env)
            with socket.create_connection(("127.0.0.1", server.port)) as s:
                s.sendall(request_bytes("/tokenize", {"prompt": self.LONG.replace("!encode", "!stuck")}))
                self.gate.wait_reached()
                server.process.send_signal(signal.SIGTERM)
                server.wait_log("stopping:")
                self.assertEqual(server.stop(), 1)
            self.assertIn("the text of a request was still being read", server.stderr())
            server.process.stdout.close()


class Protocol(HttpTest):
    flags = ("--idle-timeout", "3")

    def test_keep_alive_and_pipelining(self):
        s = self.sent(completion("one") + completion("two", stream=True) + request_bytes("/tokenize", {"prompt": "A"}))
        text = self.read_until(s, b'"max_model_len"').decode()
        self.assertEqual(text.count("HTTP/1.1 200"), 3)
        self.assertLess(text.index('"one"'), text.index("[DONE]"))

    def test_http_1_0(self):
        s = self.sent(request_bytes("/v1/completions", {"prompt": "old", "stream": True}, version="1.0"))
        text = self.read_all(s)
        self.assertTrue(text.endswith(b"data: [DONE]\n\n"), text[-100:])

    def test_slow_sender(self):
        s = self.connect()
        for b in completion("slowly"):
            s.sendall(bytes([b]))
        self.assertIn(b'"text":"slowly"', self.read_until(s, b"usage"))

    def test_chunked_request(self):
        body = json.dumps({"prompt": "chunked"}).encode()
        s = self.sent(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n")
        for b in body:
            s.sendall(b"1\r\n" + bytes([b]) + b"\r\n")
        s.sendall(b"0\r\n\r\n")
        self.assertIn(b'"text":"chunked"', self.read_until(s, b"usage"))

    def test_expect_continue(self):
        body = json.dumps({"prompt": "e"}).encode()
        s = self.sent(request_bytes("/v1/completions", body, "Expect: 100-continue\r\n")[:-len(body)])
        self.assertIn(b"100 Continue", s.recv(1000))
        s.sendall(body)
        self.assertIn(b" 200 ", self.read_until(s, b"usage"))

    def test_garbage(self):
        for raw in [b"\0\1\2\3\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n", b"A" * 70000,
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n",
                    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n{}"]:
            with self.subTest(raw[:40]):
                s = self.connect()
                try:
                    s.sendall(raw)
                    s.shutdown(socket.SHUT_WR)
                    answer = self.read_all(s)
                except OSError:  # the server may hang up before all was sent
                    answer = b""
                self.assertNotIn(b" 200 ", answer)
        self.alive()

    def test_large_headers(self):
        s = self.sent(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(100)))
        try:
            self.assertRegex(self.read_all(s).split(b"\r\n")[0], rb"HTTP/1.1 4\d\d")
        except (ConnectionResetError, BrokenPipeError):
            pass
        self.alive()

    def test_large_body(self):
        s = self.sent(f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {BODY_MAX + 1}\r\n\r\n".encode())
        self.assertTrue(self.read_until(s, b"}}").startswith(b"HTTP/1.1 413"))
        s = self.connect()  # a length that is not told
        s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(17):
            s.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        s.sendall(b"0\r\n\r\n")
        self.assertTrue(self.read_until(s, b"}}").startswith(b"HTTP/1.1 413"))
        status, answer, _ = self.server.request("POST", "/tokenize", {"prompt": "x" * 1_000_000})
        self.assertEqual((status, answer["count"]), (200, 1_000_001))
        self.alive()

    def test_body_of_untold_length_is_cut(self):
        """The answer comes when the limit is passed, not at the end that the client chooses; and the connection ends."""
        s = self.sent(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(16):
            s.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        s.sendall(b"1\r\nx\r\n")
        answer = self.read_all(s)
        self.assertTrue(answer.startswith(b"HTTP/1.1 413 "), answer)
        self.assertIn(b"body_too_large", answer)
        self.alive()

    def test_framing(self):
        """What two readers could take for requests of different lengths is refused, as the documented JSON, and the connection ends."""
        body = b'{"prompt":"a"}'
        post = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for raw, status in [(post + b"Content-Length: 14\r\nContent-Length: 14\r\n\r\n" + body, b"400"),
                            (post + b"Content-Length: 14\r\nContent-Length: 2\r\n\r\n" + body, b"400"),
                            (post + b"Content-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\ne\r\n" + body + b"\r\n0\r\n\r\n", b"400"),
                            (post + b"Transfer-Encoding: gzip\r\n\r\n", b"501"), (post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"501"),
                            (post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", b"501"),
                            (post + b"Content-Length : 14\r\n\r\n" + body, b"400"),
                            (b"POST /flush_cache%00x HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
                            (post + b"Content-Encoding: gzip\r\nContent-Length: 14\r\n\r\n" + body, b"415"),
                            (b"GET /health HTTP/1.1\r\n\r\n", b"400"), (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: y\r\n\r\n", b"400"),
                            (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX A: y\r\n\r\n", b"400")]:
            with self.subTest(raw):
                s = self.sent(raw)
                head, _, text = self.read_all(s).partition(b"\r\n\r\n")
                self.assertEqual(head[9:12], status)
                self.assertIn(b"Connection: close", head)
                self.assertTrue(json.loads(text)["error"]["message"])
        s = self.sent(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX\0A: y\r\n\r\n")
        self.assertEqual(self.read_all(s)[9:12], b"400")
        self.alive()

    def test_absolute_uri(self):
        for uri, status in ((b"http://x:1/health", b"200"), (b"HTTPS://x/health?a", b"200"), (b"http://x", b"404"), (b"ftp://x/health", b"404")):
            s = self.sent(b"GET " + uri + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self.assertEqual(self.read_all(s)[9:12], status, uri)

    def test_methods_of_a_path(self):
        for method, path, allow in (("GET", "/v1/completions", "POST"), ("POST", "/v1/models", "GET, HEAD"), ("PUT", "/flush_cache", "POST")):
            status, _, headers = self.server.request(method, path)
            self.assertEqual((status, headers["Allow"]), (405, allow))

    def test_routes(self):
        for method, path, status in [("GET", "/v1/chat/completions", 405), ("DELETE", "/v1/models", 405), ("GET", "/", 404),
                                     ("GET", "/generate", 405), ("POST", "/generate_all", 404), ("GET", "/v1/models/../../etc/passwd", 404)]:
            with self.subTest(path):
                code, answer, _ = self.server.request(method, path)
                self.assertEqual(code, status)
        connection = self.server.connection()
        connection.request("HEAD", "/health")
        response = connection.getresponse()
        self.assertEqual((response.status, response.read()), (200, b""))
        for content_type in ("text/plain", "application/x-www-form-urlencoded", "application/jsonx", ""):
            connection.request("POST", "/v1/completions", '{"prompt":"a"}', {"Content-Type": content_type})
            response = connection.getresponse()
            self.assertEqual(response.status, 415)
            self.assertIn("application/json", json.loads(response.read())["error"]["message"])
        connection.close()

    def test_flush_cache(self):
        for path in ("/flush_cache", "/reset_prefix_cache?reset_running_requests=false"):
            self.assertEqual(self.server.metric("tandem:cached_kv_tokens"), 512 if path == "/flush_cache" else 0)
            status, text, _ = self.server.request("POST", path)
            self.assertEqual((status, text), (200, "Cache flushed.\n"))
        self.server.wait_metric("tandem:cached_kv_tokens", 0)

    def test_pages_of_other_sites(self):
        """They cannot empty the cache by an image or a form, and a name that leads here does not let them read."""
        post = lambda origin: self.server.request("POST", "/flush_cache", headers={"Origin": origin})
        self.assertEqual(self.server.request("GET", "/flush_cache")[0], 405)
        for origin in ("http://evil.example", "null", f"http://evil.example:{self.server.port}"):
            status, answer, _ = post(origin)
            self.assertEqual((status, answer["error"]["code"]), (403, "origin_not_allowed"), origin)
        self.assertEqual(self.server.metric("tandem:cached_kv_tokens"), 512)
        self.assertEqual(post(f"http://127.0.0.1:{self.server.port}")[0], 200)
        for host, status in (("evil.example", 403), (f"evil.example:{self.server.port}", 403), ("127.0.0.1.evil.example", 403), ("", 403),
                             ("LocalHost:1", 200), ("a.localhost", 200), ("[::1]:80", 200), ("127.0.0.1", 200), ("10.0.0.7:1", 200)):
            code, answer, _ = self.server.request("GET", "/v1/models", headers={"Host": host})
            self.assertEqual((code, "error" in answer), (status, status == 403), host)

    def test_hosts_and_gets_that_are_allowed(self):
        with Server("--allowed-hosts", "api.example, b.example", "--allow-get-flush") as server:
            for host, status in (("api.example", 200), ("B.example:80", 200), ("api.example.evil", 403), ("localhost", 403)):
                self.assertEqual(server.request("GET", "/flush_cache", headers={"Host": host})[0], status, host)
        with Server("--api-key", "k") as server:  # a page has no key
            self.assertEqual(server.request("GET", "/health", headers={"Host": "api.example"})[0], 200)

    def test_cors_is_off(self):
        _, _, headers = self.server.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "http://evil.example"})
        self.assertNotIn("Access-Control-Allow-Origin", headers)


class Cors(HttpTest):
    flags = ("--cors-origin", "https://page.example")

    def test_preflight(self):
        code, _, headers = self.server.request("OPTIONS", "/v1/chat/completions", headers={"Origin": "https://page.example"})
        self.assertEqual((code, headers["Access-Control-Allow-Origin"]), (204, "https://page.example"))
        self.assertIn("Authorization", headers["Access-Control-Allow-Headers"])
        _, _, headers = self.server.request("POST", "/v1/completions", {"prompt": "a"})
        self.assertEqual(headers["Access-Control-Allow-Origin"], "https://page.example")

    def test_preflight_of_a_browser_sdk(self):
        """What it wants to send is allowed by name; what is no list of names is not repeated."""
        for asked, allowed in (("authorization,content-type,x-stainless-arch,x-stainless-retry-count",) * 2, ("a<b>", "Authorization, Content-Type"),
                               ("", "Authorization, Content-Type")):
            _, _, headers = self.server.request("OPTIONS", "/v1/chat/completions", headers={
                "Origin": "https://page.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked})
            self.assertEqual(headers["Access-Control-Allow-Headers"], allowed)
            self.assertIn("Access-Control-Request-Headers", headers["Vary"])


class Key(HttpTest):
    flags = ("--api-key", "s3cret-key", "--log-level", "debug")

    def test_key(self):
        auth = lambda value: self.server.request("GET", "/v1/models", headers={"Authorization": value} if value else {})
        self.assertEqual(auth("Bearer s3cret-key")[0], 200)
        self.assertEqual(auth("bearer s3cret-key")[0], 200)
        for wrong in (None, "Bearer", "Bearer ", "Bearer s3cret-ke", "Bearer s3cret-key2", "Bearer s3cret-kez", "s3cret-key", "Basic s3cret-key"):
            with self.subTest(wrong):
                code, answer, headers = auth(wrong)
                self.assertEqual((code, answer["error"]["code"], headers["WWW-Authenticate"]), (401, "invalid_api_key", "Bearer"))
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        for path in ("/health_generate", "/metrics", "/get_server_info", "/nothing"):
            self.assertEqual(self.server.request("GET", path)[0], 401, path)
        self.assertEqual(self.server.request("POST", "/v1/completions", {"prompt": "x" * 100000})[0], 401)
        info = self.server.request("GET", "/server_info", headers={"Authorization": "Bearer s3cret-key"})[1]
        self.assertNotIn("s3cret", json.dumps(info))
        self.assertNotIn("s3cret", self.server.stderr())


class Queue(HttpTest):
    flags = ("--max-running-requests", "1", "--max-queued-requests", "2")

    def test_full_queue(self):
        running = [self.sent(completion("!hang")) for _ in range(3)]
        self.server.wait_metric("sglang:num_running_reqs", 1)  # before that, two may be queued and the third not be there
        self.server.wait_metric("sglang:num_queue_reqs", 2)
        code, answer, headers = self.server.request("POST", "/v1/completions", {"prompt": "x"})
        self.assertEqual((code, answer["error"]["code"], headers["Retry-After"]), (503, "queue_full", "1"))
        code, _, _ = self.server.request("POST", "/v1/completions", {"prompt": ["x"] * 2})
        self.assertEqual(code, 503)
        code, answer, _ = self.server.request("POST", "/v1/completions", {"prompt": ["x"] * 3})
        self.assertEqual((code, answer["error"]["param"]), (400, "prompt"))
        code, answer, _ = self.server.request("POST", "/v1/completions", {"prompt": "x", "n": 3})
        self.assertEqual((code, answer["error"]["param"]), (400, "n"))
        self.assertIn("--max-queued-requests", answer["error"]["message"])
        for s in running:
            s.close()
        self.server.wait_metric("sglang:num_running_reqs", 0)
        self.alive()


class ManyChoices(HttpTest):
    def test_as_many_as_the_api_allows(self):
        """1024 choices are served at default flags."""
        prompts = [f"number {i}" for i in range(1024)]
        status, answer, _ = self.server.request("POST", "/v1/completions", {"prompt": prompts})
        self.assertEqual((status, [c["text"] for c in answer["choices"]]), (200, prompts))
        status, answer, _ = self.server.request("POST", "/v1/completions", {"prompt": [*prompts, "x"]})
        self.assertEqual((status, answer["error"]["param"]), (400, "prompt"))


class UntakenTest(HttpTest):
    """Answers of megabytes that nobody reads."""
    IDS = (1 << 19) - 64  # of a request; they take 2 MiB, and their text 7. A longer body's text would wait until no other program needs the core
    LARGE = b'{"skip_special_tokens":false,"tokens":[' + b",".join([b"3"] * IDS) + b"]}"
    TEXT = "<|assistant|>" * IDS

    def rss(self):
        with open(f"/proc/{self.server.process.pid}/status") as f:
            return 1024 * int(next(line for line in f if line.startswith("VmRSS")).split()[1])

    def ask(self, body=LARGE):
        return self.sent(request_bytes("/detokenize", body), rcvbuf=4096)


class Untaken(UntakenTest):
    def test_memory_is_bounded(self):
        """64 clients: some answers are held, the others refused at once, and who asks for little is served."""
        idle = self.rss()
        clients = [self.ask() for _ in range(64)]
        # Long texts give way to all others, so this takes as long as others are busy.
        wait_until(lambda: self.server.metric("tandem:answers_refused_total") >= 30, 120, says="answers are not refused")
        self.assertLess(self.rss() - idle, 256 << 20)
        self.assertLessEqual(self.server.metric("tandem:answer_bytes"), 64 << 20)
        self.alive()
        for s in clients:
            s.close()
        self.server.wait_metric("tandem:answer_bytes", 0)
        status, answer, _ = self.server.request("POST", "/detokenize", raw=self.LARGE)
        self.assertEqual((status, answer["text"]), (200, self.TEXT))


    def test_made_as_it_is_taken(self):
        """Of 64 answers of 3 MB, each of which repeats a prompt 128 times, the prompts alone are held."""
        idle = self.rss()
        for _ in range(64):
            s = self.sent(completion("\1" * 4000, n=128, echo=True, max_tokens=0), rcvbuf=4096)
            self.assertIn(b" 200 ", self.read_until(s, b"\r\n"))
        self.assertLess(self.server.metric("tandem:answer_bytes"), 24 << 20)
        self.assertLess(self.rss() - idle, 64 << 20)
        self.assertEqual(self.server.metric("tandem:answers_refused_total"), 0)


class UntakenResponses(UntakenTest):
    flags = ("--context-length", "10000")

    def test_made_as_they_are_taken(self):
        """Log-probabilities are held as numbers, and a kept response is held once, however many clients fetch it."""
        body = {"input": "!flood " + "x" * 6000, "include": ["message.output_text.logprobs"], "top_logprobs": 20}
        _, kept, _ = self.server.request("POST", "/v1/responses", body)
        size, idle = len(json.dumps(kept)), self.rss()
        for _ in range(5):
            for s in (self.sent(request_bytes("/v1/responses", {**body, "store": False}), rcvbuf=4096),
                      self.sent(f"GET /v1/responses/{kept['id']} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), rcvbuf=4096)):
                self.assertIn(b" 200 ", self.read_until(s, b"\r\n"))
        self.assertGreater(self.server.metric("tandem:answer_bytes"), 5 * size)
        self.assertLess(self.rss() - idle, 4 * size)
        self.assertEqual(self.server.metric("tandem:answers_refused_total"), 0)


class UntakenTimes(UntakenTest):
    flags = ("--max-answers-mib", "3", "--request-timeout", "1")

    def test_a_client_that_takes_nothing_is_cut_off(self):
        """On a busy machine a request of a megabyte may not arrive within its second: it is sent until one does."""
        wait_until(lambda: self.ask() and self.server.metric("tandem:answers_untaken_total"), step=1, says="no answer is cut off")
        self.server.wait_metric("tandem:answer_bytes", 0)
        wait_until(lambda: self.server.request("POST", "/detokenize", raw=self.LARGE)[0] == 200, says="there is room again")


class UntakenLimits(UntakenTest):
    flags = ("--max-answers-mib", "3")

    def test_memory_is_bounded(self):
        """One answer fits and is refused to the second client, until the first has left."""
        first = self.ask()
        wait_until(lambda: self.server.metric("tandem:answer_bytes") >= 1 << 20)
        status, answer, headers = self.server.request("POST", "/detokenize", raw=self.LARGE)
        self.assertEqual((status, answer["error"]["code"], headers["Retry-After"]), (503, "answers_full", "1"))
        self.assertEqual(self.server.metric("tandem:answers_untaken_total"), 0)
        first.close()
        self.server.wait_metric("tandem:answer_bytes", 0)
        self.assertEqual(self.server.request("POST", "/detokenize", raw=self.LARGE)[0], 200)

    def test_more_values_than_a_body_may_have(self):
        """Empty objects of three bytes would take 200 each."""
        status, answer, _ = self.server.request("POST", "/detokenize", raw=b'{"tokens":[' + b"{}," * (2 << 20) + b"{}]}")
        self.assertEqual((status, "more than 2097152 values" in answer["error"]["message"]), (400, True))

    def test_larger_than_the_room(self):
        """What can never be held is told so: ids, and the whole answer of a completion."""
        twice = self.LARGE[:-2] + b"," + self.LARGE.partition(b"[")[2]
        echo = json.dumps({"prompt": ["\1" * 3500] * 200, "max_tokens": 0, "echo": True}).encode()
        for path, body in (("/detokenize", twice), ("/v1/completions", echo)):
            status, answer, _ = self.server.request("POST", path, raw=body)
            self.assertEqual((status, answer["error"]["code"]), (400, "answer_too_large"), path)


class Deadlines(HttpTest):
    flags = ("--request-timeout", "1")

    def drip(self, request, at_once):
        """The answer to a request whose last bytes come one by one, each well before the idle timeout."""
        s = self.sent(request[:at_once])
        for byte in request[at_once:]:
            if select.select([s], [], [], 0.2)[0]:
                break
            try:
                s.sendall(bytes([byte]))
            except OSError:  # it has answered, and hung up
                break
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := s.recv(10000):
                answer += piece
        return answer

    def test_headers(self):
        answer = self.drip(completion("x", stream=True, user="y" * 100), 20)
        self.assertTrue(answer.startswith(b"HTTP/1.1 408 "), answer)
        self.assertEqual(json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"], "request_timeout")
        self.alive()

    def test_body(self):
        request = completion("x", user="y" * 100)
        answer = self.drip(request, len(request) - 100)
        self.assertTrue(answer.startswith(b"HTTP/1.1 408 "), answer)
        self.alive()

    def test_second_request(self):
        s = self.sent(completion("one"))
        self.read_until(s, b"usage")
        time.sleep(2.5)  # what lies between two requests is no part of either
        s.sendall(completion("two"))
        self.assertIn(b'"two"', self.read_until(s, b"usage"))

    def test_answers_may_take_longer(self):
        status, answer, _ = self.server.request("POST", "/v1/completions", {"prompt": "!slow", "max_tokens": 160, "ignore_eos": True})
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 160))


class Timeouts(GateTest):
    flags = ("--idle-timeout", "1", "--request-timeout", "10000", "--watchdog-timeout", "1", "--max-connections", "4")

    def test_idle_connections_are_closed(self):
        idle = [self.connect() for _ in range(3)]
        with contextlib.suppress(OSError):  # they are closed before that on a machine that has much else to do
            idle[0].sendall(b"GET /health HT")
            idle[1].sendall(completion("half")[:-3])
        for s in idle:
            with contextlib.suppress(ConnectionResetError):
                self.read_all(s)
        self.alive()

    def test_too_many_connections(self):
        """New clients get an answer at once, and the server can still be watched."""
        held = [self.sent(completion("!held", stream=True)) for _ in range(4)]
        self.server.wait_metric("sglang:num_running_reqs", 4)
        status, answer, headers = self.server.request("POST", "/v1/completions", {"prompt": "x"})
        self.assertEqual((status, answer["error"]["code"], headers["Retry-After"], headers["Connection"]), (503, "queue_full", "1", "close"))
        self.assertEqual(self.server.request("GET", "/v1/models")[0], 503)
        for _ in range(100):  # a reserve that is used up and not given back would show
            status, answer, headers = self.server.request("GET", "/health")
            self.assertEqual((status, headers["Connection"]), (200, "close"))
        for s in held:
            s.close()
        wait_until(lambda: self.server.request("GET", "/v1/models")[0] != 503)  # the engine is done with a client before its connection is closed
        self.alive()

    def test_crowd(self):
        """Many more clients than there is room for, who say nothing: they are sent away, and others get their answer."""
        crowd = [self.connect() for _ in range(150)]
        self.assertEqual(self.server.request("GET", "/health")[0], 200)
        for s in crowd:
            s.close()

    def test_waiting_for_tokens_is_not_idle(self):
        status, answer, _ = self.server.request("POST", "/v1/completions", {"prompt": "!slow", "max_tokens": 120, "ignore_eos": True})
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 120))

    def test_a_token_an_event(self):
        """However late the tokens are fetched, --stream-interval of them make an event."""
        for interval in (1, 3):
            with Server("--stream-interval", str(interval), "--context-length", "65536") as server:
                _, text, _ = server.request("POST", "/v1/completions", {
                    "prompt": "!flood é", "stream": True, "max_tokens": 20000, "ignore_eos": True, "logprobs": 0, "return_token_ids": True,
                    "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
                events = [json.loads(e[6:]) for e in text.split("\n\n") if e.startswith("data: {")]
                news = [e for e in events if e["choices"] and e["choices"][0].get("token_ids")]
                sizes = [len(e["choices"][0]["token_ids"]) for e in news]
                self.assertEqual((max(sizes), sum(sizes)), (interval, 20000))
                self.assertEqual([len(e["choices"][0]["logprobs"]["tokens"]) for e in news], sizes)
                done = 0
                for e, size in zip(news, sizes):
                    done += size
                    self.assertEqual(e["usage"]["completion_tokens"], done)
                self.assertEqual("".join(e["choices"][0]["text"] for e in events if e["choices"])[:18], "!flood é!flood é!f")

    def test_stream_interval(self):
        with Server("--stream-interval", "4") as server:
            _, text, _ = server.request("POST", "/v1/completions", {"prompt": "abcdefghij", "stream": True, "logprobs": 0})
            events = [json.loads(e[6:])["choices"][0] for e in text.split("\n\n") if e.startswith("data: {")]
            self.assertEqual("".join(e["text"] for e in events), "abcdefghij")
            self.assertLess(len([e for e in events if e["text"]]), 7)

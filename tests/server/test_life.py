"""The server's life: ports, start, states, signals, grace time."""
import http.client
import json
import re
import signal
import socket
import subprocess
import threading
import time
import unittest

from server_process import FAKE, PATIENCE, Gate, Server, free_port, wait_until


def post(server, body, result):
    try:
        result.append(server.request("POST", "/v1/completions", body))
    except (http.client.HTTPException, OSError) as e:
        result.append(e)


def in_background(server, body):
    result = []
    thread = threading.Thread(target=post, args=(server, body, result))
    thread.start()
    return thread, result


class Life(unittest.TestCase):
    def fails(self, *flags, model="/models/fake"):
        """(exit status, the last line of stderr)"""
        p = subprocess.run([FAKE, "launch_server", "--model-path", model, *flags], capture_output=True, text=True, timeout=20 * PATIENCE)
        return p.returncode, p.stderr.strip().split("\n")[-1]

    def test_busy_port(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = str(s.getsockname()[1])
            code, line = self.fails("--port", port, model="/models/missing")  # loading it would fail: the port is taken before that
        self.assertEqual(code, 1)
        self.assertEqual(line, f"tandem launch_server: port {port} on 127.0.0.1 is in use by another program; stop it or choose another with --port")

    def test_two_servers(self):
        with Server() as first:
            code, line = self.fails("--port", str(first.port))
            self.assertEqual((code, "in use" in line), (1, True))
            self.assertEqual(first.request("GET", "/health")[0], 200)

    def test_bad_host(self):
        for host in ("no.such.host.invalid", "192.0.2.1"):
            code, line = self.fails("--host", host)
            self.assertEqual(code, 1)
            self.assertIn(host, line)

    def test_bad_model(self):
        code, line = self.fails("--port", "0", model="/models/missing")
        self.assertEqual((code, line), (1, "tandem launch_server: /models/missing: no such folder"))

    def test_bad_names(self):
        for names in (",a", "a,,b", "a,", ",".join("abcdefghijklmnopq")):
            code, line = self.fails("--port", "0", "--served-model-name", names)
            self.assertEqual(code, 1)
            self.assertIn("served-model-name", line)

    def test_port_opens_after_loading(self):
        port, gate = free_port(), Gate()
        server = Server("--port", str(port), model="/models/slow", wait=False, env=gate.env)
        gate.wait_reached()
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        gate.open()
        with server:
            server.wait_ready()
            self.assertEqual(server.request("GET", "/health")[0], 200)

    def test_starting(self):
        """The port is open while the engine warms up, and says so; only what generates has to wait."""
        port, gate = free_port(), Gate()
        server = Server("--port", str(port), model="/models/cold", wait=False, env=gate.env)
        server.port = port
        status, answer, headers = wait_until(lambda: server.request("GET", "/health"))
        self.assertEqual((status, answer, headers["Retry-After"]), (503, {"status": "starting"}, "1"))
        status, answer, headers = server.request("GET", "/health_generate")
        self.assertEqual((status, answer, headers["Retry-After"]), (503, {"status": "starting"}, "1"))
        for path, body in (("/v1/completions", {"prompt": "x"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})):
            status, answer, headers = server.request("POST", path, body)
            self.assertEqual((status, answer["error"]["code"], headers["Retry-After"]), (503, "starting", "1"))
        for method, path, body in (("GET", "/v1/models", None), ("GET", "/metrics", None), ("GET", "/get_model_info", None),
                                   ("POST", "/tokenize", {"prompt": "x"}), ("POST", "/abort_request", {"abort_all": True})):
            self.assertEqual(server.request(method, path, body)[0], 200, path)
        gate.open()
        with server:
            server.wait_ready()
            self.assertEqual(server.request("GET", "/health")[:2], (200, {"status": "ready"}))
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "x"})[0], 200)

    def test_signal_while_warming_up(self):
        port, gate = free_port(), Gate()
        server = Server("--port", str(port), model="/models/cold", wait=False, env=gate.env)
        server.port = port
        wait_until(lambda: server.request("GET", "/health")[1]["status"] == "starting")
        self.assertEqual(server.stop(), 0)  # the warm-up itself never ends: the gate stays shut
        self.assertEqual(server.process.stdout.read(), b"", "it was never ready")

    def test_every_address(self):
        """Without a key, others are let in on somebody's word alone; a model is not loaded before that is clear."""
        for host in ("0.0.0.0", "::"):
            code, line = self.fails("--host", host, "--port", "0", model="/models/missing")
            self.assertEqual((code, "--api-key KEY, or --allow-no-key" in line), (1, True), line)
        for flags in (("--allow-no-key",), ("--api-key", "secret")):
            with Server("--host", "0.0.0.0", *flags) as server:
                self.assertEqual(server.request("GET", "/health")[0], 200)
        with Server("--host", "localhost") as server:
            self.assertEqual(server.process.poll(), None)

    def test_signal_while_loading(self):
        gate = Gate()
        server = Server(model="/models/slow", wait=False, env=gate.env)
        gate.wait_reached()
        self.assertEqual(server.stop(signal.SIGINT), 0)  # loading itself never ends

    def test_signals_end_an_idle_server(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            server = Server("--idle-timeout", "10000", "--shutdown-grace", "10000")
            keep = server.connection()
            keep.request("GET", "/health")
            keep.getresponse().read()
            self.assertEqual(server.stop(number), 0)  # sooner than either ends

    def test_other_signals(self):
        """USR1 and USR2 do nothing, and under nohup a hang-up neither."""
        with Server(program=["nohup", FAKE]) as server:
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
                server.process.send_signal(number)
            wait_until(lambda: "ShdPnd:\t0000000000000000\n" in open(f"/proc/{server.process.pid}/status").read(), says="signals stay pending")
            self.assertEqual(server.request("GET", "/health")[0], 200)

    def test_hang_up_lets_streams_finish(self):
        gate = Gate()
        server = Server("--shutdown-grace", "1000", env=gate.env)
        thread, result = in_background(server, {"prompt": "!held", "max_tokens": 30, "ignore_eos": True})
        server.wait_metric("sglang:num_running_reqs", 1)
        server.process.send_signal(signal.SIGHUP)
        server.wait_log("stopping:")
        gate.open()
        self.assertEqual(server.process.wait(20 * PATIENCE), 0)
        thread.join()
        self.assertEqual((result[0][0], result[0][1]["usage"]["completion_tokens"]), (200, 30))

    def wait_stopping(self, server, connection):
        """Until /health says so, on a connection from before."""
        def stops():
            connection.request("GET", "/health")
            return json.loads(connection.getresponse().read())["status"] == "stopping"

        server.wait_log("stopping:")
        wait_until(stops, step=0.01, says="/health says that the server stops")

    def test_grace(self):
        """Running requests finish, streams too; new ones are refused."""
        gate = Gate()
        server = Server("--shutdown-grace", "1000", env=gate.env)
        jobs = [in_background(server, {"prompt": "!held", "max_tokens": 60, "ignore_eos": True, "stream": s}) for s in (False, True)]
        keep = server.connection()
        keep.request("GET", "/health")
        keep.getresponse().read()
        server.wait_metric("sglang:num_running_reqs", 2)
        server.process.send_signal(signal.SIGTERM)
        self.wait_stopping(server, keep)
        for path in ("/health", "/health_generate"):
            keep.request("GET", path)
            refusal = keep.getresponse()
            self.assertEqual((refusal.status, json.loads(refusal.read()), refusal.headers["Retry-After"]), (503, {"status": "stopping"}, "1"))
        keep.request("POST", "/v1/completions", json.dumps({"prompt": "x"}), {"Content-Type": "application/json"})
        refusal = keep.getresponse()
        self.assertEqual((refusal.status, json.loads(refusal.read())["error"]["code"]), (503, "shutting_down"))
        keep.request("GET", "/v1/models")
        self.assertEqual(json.loads(keep.getresponse().read())["object"], "list")
        with self.assertRaises(ConnectionRefusedError):
            for _ in range(10000):  # the port closes a moment after /health says so
                socket.create_connection(("127.0.0.1", server.port), timeout=120).close()
                time.sleep(0.01)
        gate.open()
        self.assertEqual(server.process.wait(20 * PATIENCE), 0)
        for thread, _ in jobs:
            thread.join()
        status, answer, _ = jobs[0][1][0]
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 60))
        self.assertTrue(jobs[1][1][0][1].endswith("data: [DONE]\n\n"))

    def test_grace_ends(self):
        server = Server("--shutdown-grace", "0.5")
        jobs = [in_background(server, {"prompt": "!hang", "stream": s}) for s in (False, True)]
        server.wait_metric("sglang:num_running_reqs", 2)
        self.assertEqual(server.stop(), 0)
        for thread, _ in jobs:
            thread.join()
        status, answer, _ = jobs[0][1][0]
        self.assertEqual((status, answer["error"]["code"]), (503, "shutting_down"))
        self.assertIn("shutting_down", jobs[1][1][0][1])

    def test_abort_in_the_grace_time(self):
        server = Server("--shutdown-grace", "1000")
        keep = server.connection()
        keep.request("GET", "/health")
        keep.getresponse().read()
        thread, result = in_background(server, {"prompt": "!hang"})
        server.wait_metric("sglang:num_running_reqs", 1)
        server.process.send_signal(signal.SIGTERM)
        self.wait_stopping(server, keep)
        keep.request("POST", "/abort_request", '{"abort_all": true}', {"Content-Type": "application/json"})
        self.assertEqual(json.loads(keep.getresponse().read()), {"aborted": 1})
        self.assertEqual(server.process.wait(20 * PATIENCE), 0, "nothing is left to wait for")
        thread.join()
        self.assertEqual(result[0][1]["choices"][0]["finish_reason"], "abort")

    def test_queued_requests_are_served_in_the_grace_time(self):
        gate = Gate()
        server = Server("--max-running-requests", "1", "--shutdown-grace", "1000", env=gate.env)
        jobs = [in_background(server, {"prompt": "!held", "max_tokens": 20, "ignore_eos": True, "stream": s}) for s in (False, True, False)]
        server.wait_metric("sglang:num_running_reqs", 1)
        server.wait_metric("sglang:num_queue_reqs", 2)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("stopping:")
        gate.open()
        self.assertEqual(server.process.wait(20 * PATIENCE), 0)
        for thread, _ in jobs:
            thread.join()
        self.assertEqual([j[1][0][0] for j in jobs], [200] * 3)
        self.assertEqual(jobs[2][1][0][1]["usage"]["completion_tokens"], 20)

    def test_queued_requests_when_the_grace_ends(self):
        server = Server("--max-running-requests", "1", "--shutdown-grace", "0.3")
        jobs = [in_background(server, {"prompt": "!hang", "stream": s}) for s in (False, True, False)]
        server.wait_metric("sglang:num_running_reqs", 1)
        server.wait_metric("sglang:num_queue_reqs", 2)
        self.assertEqual(server.stop(), 0)
        for thread, _ in jobs:
            thread.join()
        for _, result in jobs:
            self.assertIn("shutting_down", json.dumps(result[0][1]))

    def test_a_client_that_reads_nothing(self):
        """It cannot hold up the end by more than the grace time and the two seconds in which errors are written; others get their answers."""
        grace = 5  # enough for the others on a machine with much else to do
        gate = Gate()
        server = Server("--shutdown-grace", str(grace), "--context-length", "65536", "--idle-timeout", "10000", env=gate.env)
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        deaf.connect(("127.0.0.1", server.port))
        self.addCleanup(deaf.close)
        # 5000 tokens are less than has it cancelled; as events of a chat with logprobs they are more than sockets hold.
        body = json.dumps({"messages": [{"role": "user", "content": "!flood"}], "max_tokens": 5000, "ignore_eos": True, "stream": True,
                           "logprobs": True, "top_logprobs": 20}).encode()
        before = server.metric("sglang:generation_tokens_total")
        deaf.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        server.wait_metric("sglang:generation_tokens_total", before + 5000, timeout=60)
        thread, result = in_background(server, {"prompt": "!held", "max_tokens": 20, "ignore_eos": True})
        server.wait_metric("sglang:num_running_reqs", 1, timeout=60)
        gate.open()
        start = time.monotonic()
        self.assertEqual(server.stop(timeout=100), 0)  # sooner than the idle timeout, which would end the connection
        took = time.monotonic() - start
        thread.join()
        self.assertEqual((result[0][0], result[0][1]["usage"]["completion_tokens"]), (200, 20))
        self.assertGreater(took, grace, "the client was not waited for, so this test shows nothing")

    def test_second_signal(self):
        server = Server("--shutdown-grace", "1000")
        thread, result = in_background(server, {"prompt": "!hang"})
        server.wait_metric("sglang:num_running_reqs", 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("stopping:")
        self.assertIsNone(server.process.poll())
        self.assertEqual(server.stop(), 0)
        thread.join()
        self.assertEqual(result[0][0], 503)

    def test_a_second_signal_when_the_engine_is_quicker(self):
        """The engine's last event, which comes while the server still ends the request, does not make its answer a whole one."""
        server = Server("--shutdown-grace", "1000")
        jobs = [in_background(server, {"prompt": "!hang !linger", "stream": s}) for s in (False, True)]
        server.wait_metric("sglang:num_running_reqs", 2)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("stopping:")
        self.assertEqual(server.stop(), 0)
        for thread, _ in jobs:
            thread.join()
        status, answer, _ = jobs[0][1][0]
        self.assertEqual((status, answer.get("error", {}).get("code")), (503, "shutting_down"))
        self.assertIn("shutting_down", jobs[1][1][0][1])

    def test_drain(self):
        """With a delay, requests are taken while /health says that there will be no more."""
        gate = Gate()
        server = Server("--shutdown-delay", "1000", env=gate.env)
        thread, result = in_background(server, {"prompt": "!held", "max_tokens": 200})
        server.wait_metric("sglang:num_running_reqs", 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/health")[:2] == (503, {"status": "draining"}))
        self.assertEqual(server.request("GET", "/health_generate")[0], 503)
        server.process.send_signal(signal.SIGUSR1)  # does not end the delay
        self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 3})[0], 200)
        gate.open()
        thread.join()
        self.assertEqual(result[0][0], 200)
        self.assertNotIn("stopping:", server.stderr())
        self.assertEqual(server.stop(), 0)

    def test_the_delay_ends(self):
        """By itself, and requests that run then are finished."""
        gate = Gate()
        server = Server("--shutdown-delay", "0.2", "--shutdown-grace", "1000", env=gate.env)
        thread, result = in_background(server, {"prompt": "!held", "max_tokens": 200})
        server.wait_metric("sglang:num_running_reqs", 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("stopping:")
        self.assertIn("draining:", server.stderr().split("stopping:")[0])
        gate.open()
        self.assertEqual(server.process.wait(20 * PATIENCE), 0)
        thread.join()
        self.assertEqual(result[0][0], 200)

    def test_a_second_signal_ends_the_delay(self):
        server = Server("--shutdown-delay", "1000", "--shutdown-grace", "1000")
        thread, result = in_background(server, {"prompt": "!hang"})
        server.wait_metric("sglang:num_running_reqs", 1)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("draining:")
        self.assertIsNone(server.process.poll())
        self.assertEqual(server.stop(), 0)
        thread.join()
        self.assertEqual(result[0][0], 503)

    def test_watchdog(self):
        """A step that does not end is named by the log and /health, until it ends."""
        with Server("--watchdog-timeout", "1") as server:
            self.assertEqual(server.request("GET", "/health")[0], 200)
            thread, _ = in_background(server, {"prompt": "!hang", "max_tokens": 5})
            server.wait_metric("sglang:num_running_reqs", 1)

            def wait_status(code):
                for _ in range(4000):
                    status, answer, _ = server.request("GET", "/health")
                    if status == code:
                        return answer
                    time.sleep(0.05)
                raise AssertionError(f"/health says {status}, not {code}")

            answer = wait_status(503)
            self.assertEqual(answer["status"], "stalled")
            self.assertRegex(answer["message"], r"^no step has ended for 1 s: step \d+ \(6 tokens, 1 sequence\) began 7 s ago and is in its "
                             "forward pass, mla of layer 3 on the device$")
            server.wait_log("error stalled: " + answer["message"])
            server.request("POST", "/abort_request", {"abort_all": True})
            thread.join()
            wait_status(200)
            server.wait_log("steps go on")

    def test_a_card_that_is_lost(self):
        """Who runs, streams or comes later is told so by a 503, /health stays unhealthy and says why, and the end has status 1."""
        with Server() as server:
            waiting = [in_background(server, {"prompt": "!hang", "max_tokens": 5})]
            server.wait_metric("sglang:num_running_reqs", 1)
            status, text, _ = server.request("POST", "/v1/completions", {"prompt": "!lose abcdefg", "max_tokens": 50, "stream": True})
            self.assertEqual(status, 200)
            error = json.loads(re.findall(r"^data: (\{.*\})$", text, re.M)[-1])["error"]
            self.assertEqual((error["code"], error["message"]), ("device_lost", "card 3 is lost: nobody knows why"))
            waiting.append(in_background(server, {"prompt": "later"}))
            for thread, answer in waiting:
                thread.join()
                self.assertEqual((answer[0][0], answer[0][1]["error"]["code"]), (503, "device_lost"))
            for _ in range(2):
                status, answer, headers = server.request("GET", "/health")
                self.assertEqual((status, answer), (503, {"status": "lost", "message": "card 3 is lost: nobody knows why"}))
                self.assertTrue(headers["Retry-After"])
                self.assertEqual(server.request("GET", "/health_generate")[0], 503)
            self.assertEqual(server.request("GET", "/v1/models")[0], 200)
            self.assertEqual(server.metric("sglang:num_running_reqs"), 0)
            self.assertEqual(server.stop(), 1)
            self.assertEqual(server.stderr().strip().split("\n")[-1], "tandem launch_server: card 3 is lost: nobody knows why")

    def test_stop_under_load(self):
        """SIGTERM amid clients that come and go: exit 0, no crash, whatever the moment."""
        for wait in (0.05, 0.2, 0.4):
            server = Server("--shutdown-grace", "0.2")
            end = time.monotonic() + wait + 0.5

            def load():
                while time.monotonic() < end:
                    post(server, {"prompt": "!slow", "stream": True, "max_tokens": 50}, [])

            threads = [threading.Thread(target=load) for _ in range(8)]
            for t in threads:
                t.start()
            time.sleep(wait)
            self.assertEqual(server.stop(), 0, server.stderr())
            for t in threads:
                t.join()

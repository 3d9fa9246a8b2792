#!/usr/bin/env python3
"""Many clients against one server: every answer complete and equal to what the same request gets alone; nothing left behind.

The clients ask for random requests of a fixed catalogue, streamed or whole, whose answers were taken from the same server one at a
time. Meanwhile they leave (while queued, in mid-stream, by half-closing, by reset), read late, have responses made in the background,
and send what must be refused.
At the end nothing runs, waits or holds KV pages; the memory is what it was after the warm-up; SIGTERM lets the running streams
finish, and the exit status is 0.

usage: soak.py --program build/release/cli/tandem [--seconds 600] [--clients 200] [--seed N] [-- flags of launch_server]
TD_TEST_FULL=1 doubles the seconds and the requests.
Standard library only.
"""
import argparse
import asyncio
import collections
import json
import math
import os
import random
import re
import sys
import time

import soak_http
import soak_requests
from server_process import Server

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
TALE = os.path.normpath(os.path.join(ROOT, "models/tale-v3-14m"))
IDLE = ("tandem:background_responses", "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_used_tokens")
REPORTS = re.compile(r"ERROR: \w*Sanitizer|WARNING: ThreadSanitizer|runtime error:|\bassert", re.I)

# jemalloc returns freed memory at once in place of keeping it for ten seconds, so that the RSS at idle is what the server holds.
MALLOC = "background_thread:true,dirty_decay_ms:200,muzzy_decay_ms:0"

# What a client does next, and how often.
ACTIONS = {"complete": 66, "leave_in_stream": 8, "leave_early": 6, "half_close": 3, "read_late": 2, "background": 4, "broken": 10, "broken_http": 2, "look": 3}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", default=os.environ.get("TD_TANDEM"))
    p.add_argument("--model", default=TALE)
    p.add_argument("--seconds", type=float, default=600, help="of load after the warm-up")
    p.add_argument("--warm-up", type=float, help="seconds; default: a tenth of --seconds, 5 at least")
    p.add_argument("--clients", type=int, default=200)
    p.add_argument("--running", type=int, default=32)
    p.add_argument("--requests", type=int, default=200, help="distinct requests")
    p.add_argument("--longest", type=int, default=400, help="most tokens of an answer")
    p.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    p.add_argument("--rss-growth", type=float, default=0.01, help="allowed between the warm-up and the end; negative: not checked")
    p.add_argument("--patience", type=float, default=120, help="seconds that one answer may take")
    p.add_argument("flags", nargs="*", help="more flags of launch_server, after --")
    args = p.parse_args()
    if os.environ.get("TD_TEST_FULL"):
        args.seconds, args.requests = 2 * args.seconds, 2 * args.requests
    return args


class QueueFull(Exception):
    """A refusal that asks to come again, after args[0] seconds."""


class Soak:
    def __init__(self, args, server):
        self.args, self.server, self.port = args, server, server.port
        self.draw = random.Random(args.seed)
        with open(os.path.join(TALE, "valid.txt"), encoding="utf-8") as f:
            corpus = f.read()
        self.catalogue = soak_requests.Catalogue(self.draw, args.requests, corpus, args.longest, server.model).requests
        self.broken_rows = soak_requests.broken_requests()
        self.answers = [None] * len(self.catalogue)
        self.done = collections.Counter()
        self.tokens = 0
        self.failures = []

    def fail(self, what, request=None):
        self.failures.append(what)
        print(f"FAILED: {what}", *([f"  request: {json.dumps(self.catalogue[request])}"] if request is not None else []), sep="\n", flush=True)
        if len(self.failures) >= 20:
            raise SystemExit("too many failures")

    # ---- alone ----

    async def alone(self, request):
        path, body = self.catalogue[request]
        status, answer, _ = await soak_http.ask(self.port, "POST", path, body)
        if status != 200:
            raise SystemExit(f"the catalogue has a request that is refused: {status} {answer} {json.dumps(body)}")
        return soak_requests.whole_answer(path, answer)

    async def flush(self):
        """Empty the prefix cache: no page may be left."""
        status, text, _ = await soak_http.ask(self.port, "POST", "/flush_cache")
        if status != 200:
            self.fail(f"/flush_cache: {status} {text!r}")
        await self.idle(*IDLE, "tandem:cached_kv_tokens")

    async def take_answers(self):
        begin = time.monotonic()
        for i in range(len(self.catalogue)):
            self.answers[i] = await self.alone(i)
            await self.flush()
        tokens = sum(len(c["ids"]) for a in self.answers for c in a.values())
        print(f"{len(self.catalogue)} requests alone: {tokens} tokens, {time.monotonic() - begin:.1f} s", flush=True)

    # ---- one client ----

    async def client(self, number, until):
        draw = random.Random(f"{self.args.seed} {number} {until}")
        connection = None
        while time.monotonic() < until and not self.failures[5:]:
            action = draw.choices(list(ACTIONS), list(ACTIONS.values()))[0]
            request = draw.randrange(len(self.catalogue))
            try:
                if connection is None or draw.random() < 0.3:
                    if connection:
                        connection.close()
                    connection = await soak_http.Connection.open(self.port)
                keep = await asyncio.wait_for(getattr(self, action)(connection, draw, request), self.args.patience)
                self.done[action] += 1
            except QueueFull as e:
                self.done["queue full"] += 1
                keep = await asyncio.sleep(e.args[0] * draw.random(), result=True)
            except TimeoutError:
                self.fail(f"{action} did not end within {self.args.patience} s", request)
                keep = False
            except (soak_http.Broken, OSError, ValueError, KeyError, IndexError) as e:
                self.fail(f"{action}: {type(e).__name__}: {e}", request)
                keep = False
            if not keep:
                connection.close()
                connection = None
        if connection:
            connection.close()

    async def begin(self, connection, request, stream, **more):
        """Send; the headers of a 200."""
        path, body = self.catalogue[request]
        await connection.send("POST", path, json.dumps(body | {"stream": stream} | more).encode())
        status, headers = await connection.head()
        if status == 200:
            return headers
        answer, wait = await connection.body(headers), int(headers.get("retry-after", 0))
        if status not in (429, 503) or wait < 1:
            raise soak_http.Broken(f"status {status}: {answer!r}")
        raise QueueFull(wait)

    async def read(self, connection, headers, request, stop_after=None, pause=0.0):
        """The answer; a beginning of it when it is left after stop_after events."""
        path = self.catalogue[request][0]
        if "event-stream" not in headers["content-type"]:
            return soak_requests.whole_answer(path, json.loads(await connection.body(headers)))
        answer, n = {}, 0
        async for event in connection.events(headers):
            if "error" in event or event.get("type") in ("error", "response.failed"):
                raise soak_http.Broken(f"error in a stream: {event}")
            soak_requests.add_event(path, answer, event)
            if pause:
                await asyncio.sleep(pause)
                pause = 0
            n += 1
            if n == stop_after:
                break
        return answer

    async def complete(self, connection, draw, request, pause=0.0):
        headers = await self.begin(connection, request, draw.random() < 0.7)
        answer = await self.read(connection, headers, request, pause=pause)
        if answer != self.answers[request]:
            self.fail("not what it is alone: " + soak_requests.difference(self.answers[request], answer), request)
        self.tokens += sum(len(c["ids"]) for c in answer.values())
        return True

    async def read_late(self, connection, draw, request):
        return await self.complete(connection, draw, request, pause=1.0)

    async def leave_in_stream(self, connection, draw, request):
        headers = await self.begin(connection, request, True)
        part = await self.read(connection, headers, request, stop_after=draw.randrange(1, 20))
        if not soak_requests.is_beginning(part, self.answers[request]):
            self.fail("a stream that was left had begun otherwise", request)
        connection.close(reset=draw.random() < 0.5)
        return False

    async def leave_early(self, connection, draw, request):
        path, body = self.catalogue[request]
        await connection.send("POST", path, json.dumps(body | {"stream": draw.random() < 0.5}).encode())
        await asyncio.sleep(draw.choice([0, 0.01, 0.1, 0.5]))
        connection.close(reset=draw.random() < 0.5)
        return False

    async def half_close(self, connection, draw, request):
        """A client that says it will send no more has left; the server closes too."""
        path, body = self.catalogue[request]
        await connection.send("POST", path, json.dumps(body | {"stream": True}).encode())
        await asyncio.sleep(draw.choice([0, 0.05, 0.5]))
        connection.writer.write_eof()
        while await connection.reader.read(65536):
            pass
        return False

    async def background(self, connection, draw, request):
        """A response that goes on without its client, which comes back for it, or cancels it; nothing of it stays."""
        request = draw.choice([i for i, (path, _) in enumerate(self.catalogue) if path == soak_requests.RESPONSES])
        headers = await self.begin(connection, request, stream := draw.random() < 0.5, background=True, store=True)
        id, answer = await (self.read_on if stream else self.poll)(connection, draw, headers)
        cut = answer[0]["finish"] == "cancelled"
        if cut:
            answer[0]["finish"] = None
        if not (soak_requests.is_beginning(answer, self.answers[request]) if cut else answer == self.answers[request]):
            self.fail("in the background not what it is alone: " + soak_requests.difference(self.answers[request], answer), request)
        status, gone, _ = await soak_http.ask(self.port, "DELETE", f"{soak_requests.RESPONSES}/{id}")
        if (status, gone["id"]) != (200, id):
            self.fail(f"a response in the background was not there any more: {status} {gone}", request)
        return not stream

    async def read_on(self, connection, draw, headers):
        """(id, answer): the events are read on where they were left."""
        answer, id, number, leaves_after = {}, None, -1, draw.randrange(1, 20)
        async for event in connection.events(headers):
            id, number = id or event["response"]["id"], event["sequence_number"]
            soak_requests.add_event(soak_requests.RESPONSES, answer, event)
            if number + 1 == leaves_after:
                break
        connection.close(reset=draw.random() < 0.5)
        if answer.get(0, {}).get("finish"):
            return id, answer
        connection = await soak_http.Connection.open(self.port)
        await connection.send("GET", f"{soak_requests.RESPONSES}/{id}?stream=true&starting_after={number}")
        status, headers = await connection.head()
        if status != 200:
            raise soak_http.Broken(f"status {status}: {await connection.body(headers)!r}")
        async for event in connection.events(headers):
            soak_requests.add_event(soak_requests.RESPONSES, answer, event)
        connection.close()
        return id, answer

    async def poll(self, connection, draw, headers):
        """(id, answer): it is asked for until it has ended, or is cancelled."""
        response = json.loads(await connection.body(headers))
        path = f"{soak_requests.RESPONSES}/{response['id']}"
        if draw.random() < 0.3:
            _, response, _ = await soak_http.ask(self.port, "POST", path + "/cancel")
        while response["status"] in ("queued", "in_progress"):
            await asyncio.sleep(0.05)
            _, response, _ = await soak_http.ask(self.port, "GET", path)
        return response["id"], soak_requests.whole_answer(soak_requests.RESPONSES, response)

    async def broken_one(self, connection, row):
        method, path, raw, want, field = row
        await connection.send(method, path, raw)
        status, headers = await connection.head()
        error = json.loads(await connection.body(headers))["error"]
        if (status, error.get("param")) != (want, field) or not error["message"]:
            self.fail(f"{method} {path} {raw[:100]!r}: {status} {error}, expected {want} that names {field}")
        return headers.get("connection", "").lower() != "close"

    async def broken(self, connection, draw, request):
        return await self.broken_one(connection, draw.choice(self.broken_rows))

    async def broken_http(self, connection, draw, request):
        """Half a request, or none."""
        path, body = self.catalogue[request]
        raw = json.dumps(body).encode()
        whole = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw
        connection.writer.write(draw.choice([whole[:draw.randrange(1, len(whole))], b"\x16\x03\x01\x02\x00", b"GARBAGE\r\n\r\n", b"GET " + b"/" * 40000]))
        await asyncio.sleep(draw.choice([0, 0.05]))
        return False

    async def look(self, connection, draw, request):
        path = draw.choice(["/health", "/metrics", "/v1/models", "/get_server_info", "/get_load"])
        await connection.send("GET", path)
        status, headers = await connection.head()
        body = await connection.body(headers)
        if status != 200 or not body:
            self.fail(f"GET {path}: {status} {body[:200]!r}")
        return True

    # ---- phases ----

    async def load(self, seconds):
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(i, until) for i in range(self.args.clients)))
        await self.idle()

    def metrics(self, text):
        return {m[1]: float(m[2]) for m in re.finditer(r"^([\w:]+)\{[^}]*\} (\S+)$", text, re.M)}

    async def idle(self, *zeros):
        """Wait until these gauges (those of IDLE) are 0; all metrics."""
        zeros, end = zeros or IDLE, time.monotonic() + self.args.patience
        while True:
            metrics = self.metrics((await soak_http.ask(self.port, "GET", "/metrics"))[1])
            busy = {name: metrics[name] for name in zeros if metrics[name] != 0}
            if not busy:
                return metrics
            if time.monotonic() > end:
                self.fail(f"left behind: {busy}")
                return metrics
            await asyncio.sleep(0.01)

    async def rss(self, most=math.inf):
        """Bytes, when they are `most` or fewer, or stay above that: a thread of the allocator's gives back what is free, see MALLOC."""
        end = time.monotonic() + min(self.args.patience, 60)
        while True:
            await asyncio.sleep(1)
            with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as f:
                now = int(re.search(r"VmRSS:\s+(\d+) kB", f.read())[1]) * 1024
            if now <= most or time.monotonic() > end:
                return now

    async def last_streams(self):
        """SIGTERM while streams run: they finish, and are right."""
        longest = sorted(range(len(self.catalogue)), key=lambda i: -len(self.answers[i][0]["ids"]))[:8]
        running = []
        for request in longest:
            connection = await soak_http.Connection.open(self.port)
            running.append((request, connection, await self.begin(connection, request, True)))
        self.server.process.terminate()
        for request, connection, headers in running:
            if await asyncio.wait_for(self.read(connection, headers, request), self.args.patience) != self.answers[request]:
                self.fail("a stream that ran during SIGTERM is not what it is alone", request)
            connection.close()
        return len(running)

    async def run(self):
        args = self.args
        await self.take_answers()
        for row in self.broken_rows:
            await self.broken_one(await soak_http.Connection.open(self.port), row)

        warm_up = args.warm_up if args.warm_up is not None else max(5, args.seconds / 10)
        await self.load(warm_up)
        rss_before = await self.rss()
        print(f"warm-up of {warm_up:.0f} s: RSS {rss_before / 2**20:.1f} MiB", flush=True)
        self.done.clear()
        self.tokens, begin = 0, time.monotonic()
        await self.load(args.seconds)
        seconds = time.monotonic() - begin
        most = (1 + args.rss_growth) * rss_before if args.rss_growth >= 0 else math.inf
        rss_after, metrics = await self.rss(most), await self.idle()
        print(f"{seconds:.0f} s, {args.clients} clients: {dict(self.done)}; {self.tokens} tokens of complete answers, {self.tokens / seconds:.0f} a second")
        print(f"retractions {metrics['sglang:num_retracted_requests_total']:.0f}, "
              f"cached prompt tokens {metrics['sglang:cached_tokens_total']:.0f}, aborted {metrics['sglang:num_aborted_requests_total']:.0f}")
        growth = rss_after / rss_before - 1
        print(f"RSS at the end {rss_after / 2**20:.1f} MiB: {100 * growth:+.2f} %", flush=True)
        if rss_after > most:
            self.fail(f"memory grew by {100 * growth:.2f} %")
        if metrics["tandem:failed_requests_total"]:
            self.fail(f"{metrics['tandem:failed_requests_total']:.0f} requests failed")
        for action in ACTIONS:
            if not self.done[action] and sum(self.done.values()) > 1000:
                self.fail(f"{action} never happened")
        for request in self.draw.sample(range(len(self.catalogue)), min(10, len(self.catalogue))):
            if await self.alone(request) != self.answers[request]:
                self.fail("alone again, not what it was", request)
        await self.flush()
        print(f"SIGTERM during {await self.last_streams()} streams", flush=True)


def main():
    args = arguments()
    print(f"seed {args.seed}", flush=True)
    flags = ["--quantization", "none", "--cpuinfer", "2", "--max-running-requests", str(args.running), "--max-queued-requests", "200",
             "--max-total-tokens", "3072", "--chunked-prefill-size", "512", "--log-level", "warning", "--shutdown-grace", str(args.patience), *args.flags]
    os.environ.setdefault("MALLOC_CONF", MALLOC)
    server = Server(*flags, program=[args.program], model=args.model, timeout=300)
    soak = Soak(args, server)
    try:
        asyncio.run(soak.run())
    except BaseException:
        print(server.stderr(), file=sys.stderr)
        server.process.kill()
        raise
    status = server.process.wait(args.patience)
    log = server.stderr()
    if status != 0:
        soak.fail(f"the server ended with {status}")
    if REPORTS.search(log):
        soak.fail("a report in the server's log")
    if soak.failures:
        sys.exit(f"{len(soak.failures)} failures, seed {args.seed}; the server's log:\n{log[-20000:]}")
    print("ok")


if __name__ == "__main__":
    main()

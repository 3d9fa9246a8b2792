"""Responses in the background (`background` of /v1/responses), by the real openai client and as raw HTTP, over the fake engine."""
import concurrent.futures
import http.client
import json
import random
import signal
import unittest

import openai
import pydantic
from openai.types.responses import Response, ResponseStreamEvent
from server_process import Gate, OpenaiTest, Server, wait_until

EVENT = pydantic.TypeAdapter(ResponseStreamEvent)
PATH = "/v1/responses"
ENDED = ("completed", "failed", "cancelled", "incomplete")


def without_times(response):
    return {k: v for k, v in response.items() if k not in ("id", "created_at", "completed_at", "background")}


class Base(OpenaiTest):
    """A server whose answers to !held and !halfway wait at a gate, which each test finds shut."""
    FLAGS = ()

    @classmethod
    def start(cls):
        cls.gate = Gate()
        return Server("--served-model-name", "fake", "--context-length", "4096", *cls.FLAGS, env=cls.gate.env)

    def setUp(self):
        self.gate.shut()

    def tearDown(self):
        self.gate.open()
        try:
            self.server.wait_metric("tandem:background_responses", 0)
        except AssertionError:  # this case's failure is no other's
            self.server.request("POST", "/abort_request", {"abort_all": True})
            raise

    def create(self, input, **more):
        return self.client.responses.create(model="fake", input=input, background=True, **more)

    def ask(self, method, path="", body=None, status=200):
        code, answer, _ = self.server.request(method, PATH + path, body)
        self.assertEqual(code, status, answer)
        return answer

    def begin(self, input, **more):
        return self.ask("POST", "", {"input": input, "background": True, **more})

    def poll(self, id, *states):
        """The response when its status is one of the states."""
        def look():
            answer = self.ask("GET", "/" + id)
            return answer if answer["status"] in (states or ENDED) else None
        return wait_until(look, says=f"{id} is not {states or ENDED}")

    def wait_halfway(self, id):
        """Until a !halfway has come to where it is held back."""
        wait_until(lambda: any(r["id"] == id and r["completion_tokens"] == 3 for r in self.server.request("GET", "/v1/requests")[1]["running"]))

    def refused(self, method, path, body=None, status=400, param=None):
        error = self.ask(method, path, body, status)["error"]
        self.assertEqual((set(error), error["param"]), ({"message", "type", "param", "code"}, param), error)
        self.assertTrue(error["message"].endswith("."), error)
        return error


class Stream:
    """The events of an answer, as they come."""

    def __init__(self, server, method, path, body=None):
        self.connection = server.connection()
        self.connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()

    def event(self):
        """The next one; None at the end."""
        name = self.response.readline().decode().removesuffix("\n")
        if not name:
            return None
        event = json.loads(self.response.readline().decode().removeprefix("data: "))
        assert self.response.readline() == b"\n" and name == "event: " + event["type"]
        EVENT.validate_python(event)
        return event

    def until(self, kind):
        events = [self.event()]
        while events[-1]["type"] != kind:
            events.append(self.event())
        return events

    def rest(self):
        return list(iter(self.event, None))

    def __del__(self):
        self.close()

    def close(self):
        self.response.close()
        self.connection.close()


class Polls(Base):
    def test_client(self):
        """The loop of OpenAI's guide."""
        r = self.create("Hello")
        self.assertEqual((r.status, r.background, r.output, r.usage, r.error), ("queued", True, [], None, None))
        self.assertRegex(r.id, "^resp_[0-9a-f]{32}$")
        id = r.id
        while r.status in {"queued", "in_progress"}:
            r = self.client.responses.retrieve(r.id)
        self.assertEqual((r.id, r.status, r.output_text, r.background, r.usage.output_tokens), (id, "completed", "Hello", True, 6))
        self.assertEqual([i.content[0].text for i in self.client.responses.input_items.list(id)], ["Hello"])
        then = self.client.responses.create(model="fake", input="Then", previous_response_id=id)
        self.assertGreater(then.usage.input_tokens, r.usage.input_tokens)

    def test_is_the_answer_of_the_foreground(self):
        tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
        for body in ({}, {"max_output_tokens": 3}, {"temperature": 1, "seed": 5}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
                     {"metadata": {"a": "b"}, "user": "me", "tools": [tool]}):
            with self.subTest(body=body):
                front = self.ask("POST", "", {"input": "Hello", **body})
                back = self.poll(self.begin("Hello", **body)["id"])
                Response.model_validate(back)
                without_ids = json.loads(json.dumps([without_times(front), without_times(back)]).replace(front["id"][5:], "").replace(back["id"][5:], ""))
                self.assertEqual(*without_ids)

    def test_states(self):
        id = self.begin("!halfway there")["id"]
        self.poll(id, "in_progress")
        self.refused("GET", f"/{id}/input_items")
        self.refused("POST", "", {"input": "x", "previous_response_id": id}, param="previous_response_id")
        row = next(r for r in self.server.request("GET", "/v1/requests")[1]["running"] if r["id"] == id)
        self.assertEqual(row["state"], "generating")
        self.assertEqual(self.server.metric("tandem:background_responses"), 1)
        self.gate.open()
        self.assertEqual(self.poll(id)["status"], "completed")
        held = self.gate.shut() or self.begin("!held")["id"]
        self.server.wait_metric("sglang:num_running_reqs", 1)
        self.assertEqual(self.ask("GET", "/" + held)["status"], "queued")

    def test_incomplete(self):
        r = self.poll(self.begin("A long text", max_output_tokens=4)["id"])
        self.assertEqual((r["status"], r["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))

    def test_failed(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                if stream:
                    with self.create("!error", stream=True) as events:
                        *_, error, last = events
                    self.assertEqual((error.type, last.type), ("error", "response.failed"))
                    id = last.response.id
                else:
                    id = self.begin("!error")["id"]
                r = Response.model_validate(self.poll(id))
                self.assertEqual((r.status, r.error.code, r.usage), ("failed", "server_error", None))
                self.assertIn("the fake device broke", r.error.message)

    def test_a_full_engine_refuses_it(self):
        for stream in (False, True):
            error = self.ask("POST", "", {"input": "!busy", "background": True, "stream": stream}, 503)["error"]
            self.assertEqual(error["code"], "queue_full")
        self.server.wait_metric("tandem:background_responses", 0)

    def test_long_text(self):
        """One that is read on a thread for texts."""
        body = {"input": [{"role": "user", "content": "x" * 2_000_000}, {"role": "user", "content": "Hi"}], "truncate_prompt_tokens": 100}
        self.assertEqual(self.poll(self.begin(**body)["id"])["output"][0]["content"][0]["text"], "Hi")


class Streams(Base):
    def test_client(self):
        """The stream is dropped, and picked up by its cursor, as in OpenAI's guide."""
        seen = []
        stream = self.create("!halfway and the rest", stream=True)
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
        stream.close()
        id, cursor = seen[0].response.id, seen[-1].sequence_number
        self.gate.open()
        self.assertEqual(self.poll(id)["status"], "completed")
        seen += self.client.responses.retrieve(id, stream=True, starting_after=cursor)
        self.assertEqual([e.sequence_number for e in seen], list(range(len(seen))))
        self.assertEqual("".join(e.delta for e in seen if e.type == "response.output_text.delta"), "!halfway and the rest")
        self.assertEqual((seen[-1].type, seen[-1].response.output_text), ("response.completed", "!halfway and the rest"))
        self.assertEqual(seen[-1].response.model_dump(), self.client.responses.retrieve(id).model_dump())

    def test_events(self):
        """Those of a stream in the foreground, but for its beginning."""
        types = [e["type"] for e in Stream(self.server, "POST", PATH, {"input": "Hi", "stream": True, "background": True}).rest()]
        front = [e["type"] for e in Stream(self.server, "POST", PATH, {"input": "Hi", "stream": True}).rest()]
        self.assertEqual(types, ["response.created", "response.queued", *front[1:]])
        self.assertEqual(front[:2], ["response.created", "response.in_progress"])

    def test_resumed_while_it_runs(self):
        first = Stream(self.server, "POST", PATH, {"input": "!halfway x", "stream": True, "background": True})
        events = first.until("response.output_text.delta")
        id = events[0]["response"]["id"]
        path = f"{PATH}/{id}?stream=true"
        readers = [Stream(self.server, "GET", path), *(Stream(self.server, "GET", f"{path}&starting_after={n}") for n in (0, 3, len(events) - 1))]
        whole = events + (self.gate.open() or first.rest())
        self.assertEqual(whole[-1]["type"], "response.completed")
        for reader, begin in zip(readers, (0, 1, 4, len(events))):
            self.assertEqual(reader.rest(), whole[begin:])
        self.assertEqual(Stream(self.server, "GET", f"{path}&starting_after={len(whole) - 1}").rest(), [])
        self.assertIn(f"only {len(whole)} events", self.refused("GET", f"/{id}?stream=true&starting_after={len(whole)}", param="starting_after")["message"])

    def test_client_leaves(self):
        """The work goes on, and nothing is cancelled."""
        aborted = self.server.metric("sglang:num_aborted_requests_total")
        stream = Stream(self.server, "POST", PATH, {"input": "!halfway there", "stream": True, "background": True})
        id = stream.until("response.output_text.delta")[0]["response"]["id"]
        stream.close()
        self.gate.open()
        self.assertEqual(self.poll(id)["output"][0]["content"][0]["text"], "!halfway there")
        self.assertEqual(self.server.metric("sglang:num_aborted_requests_total"), aborted)

    def test_misuses(self):
        plain = self.ask("POST", "", {"input": "x"})["id"]
        whole = self.begin("!halfway x")["id"]
        stream = Stream(self.server, "POST", PATH, {"input": "!held x", "stream": True, "background": True}).event()["response"]["id"]
        for path, param in ((f"/{plain}?stream=true", "stream"), (f"/{whole}?stream=true", "stream"), (f"/{stream}?starting_after=0", "starting_after"),
                            (f"/{stream}?stream=yes", "stream"), (f"/{stream}?stream=true&include_obfuscation=true", "include_obfuscation"),
                            *((f"/{stream}?stream=true&starting_after={n}", "starting_after") for n in ("2", "18446744073709551615", "1" * 30, "-1", "+1", "x", "", "1x"))):
            with self.subTest(path=path):
                self.refused("GET", path, param=param)
        self.assertIn("not created with 'stream'", self.refused("GET", f"/{whole}?stream=true", param="stream")["message"])
        with self.assertRaisesRegex(openai.NotFoundError, "no 'resp_none"):
            self.client.responses.retrieve("resp_none", stream=True)

    def test_head(self):
        id = Stream(self.server, "POST", PATH, {"input": "!held", "stream": True, "background": True}).event()["response"]["id"]
        self.assertEqual(self.server.request("HEAD", f"{PATH}/{id}?stream=true")[0], 200)


class Cancels(Base):
    def test_cancel(self):
        for input, state in (("!held", "queued"), ("!halfway x", "in_progress"), ("!hang", "queued")):
            with self.subTest(input=input):
                id = self.create(input).id
                self.poll(id, state)
                if state == "in_progress":
                    self.wait_halfway(id)
                r = self.client.responses.cancel(id)
                self.assertEqual((r.id, r.status), (id, "cancelled"))
                if state == "in_progress":
                    self.assertEqual((r.output_text, r.output[0].status), ("!ha", "incomplete"))
                self.assertEqual(self.client.responses.cancel(id).model_dump(), r.model_dump(), "twice is once")
                self.assertEqual(self.client.responses.retrieve(id).model_dump(), r.model_dump())
                self.server.wait_metric("sglang:num_running_reqs", 0)

    def test_stream(self):
        stream = Stream(self.server, "POST", PATH, {"input": "!halfway x", "stream": True, "background": True})
        events = stream.until("response.output_text.delta")
        id = events[0]["response"]["id"]
        self.assertEqual(self.ask("POST", f"/{id}/cancel")["status"], "cancelled")
        last = stream.rest()[-1]
        self.assertEqual((last["type"], last["response"]["status"]), ("response.incomplete", "cancelled"))
        self.assertEqual(last["response"], self.ask("GET", "/" + id))

    def test_ended(self):
        r = self.poll(self.begin("Hello")["id"])
        self.assertEqual(self.ask("POST", f"/{r['id']}/cancel"), r, "what has ended stays as it is")

    def test_misuses(self):
        front = self.ask("POST", "", {"input": "x"})["id"]
        self.assertIn("'background'", self.refused("POST", f"/{front}/cancel")["message"])
        self.refused("POST", "/resp_none/cancel", status=404)
        self.refused("POST", "/resp_none/other", status=404)
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.cancel(front)

    def test_abort_request(self):
        id = self.begin("!halfway x")["id"]
        self.poll(id, "in_progress")
        self.assertEqual(self.server.request("POST", "/abort_request", {"rid": id})[1], {"aborted": 1})
        self.assertEqual(self.poll(id)["status"], "cancelled")

    def test_delete(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                if stream:
                    id = Stream(self.server, "POST", PATH, {"input": "!halfway", "stream": True, "background": True}).event()["response"]["id"]
                else:
                    id = self.begin("!halfway")["id"]
                self.assertEqual(self.ask("DELETE", "/" + id), {"id": id, "object": "response.deleted", "deleted": True})
                for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "?stream=true"), ("GET", "/input_items")):
                    self.refused(method, f"/{id}{path}", status=404)
                self.server.wait_metric("sglang:num_running_reqs", 0)

    def test_delete_when_it_has_ended(self):
        events = Stream(self.server, "POST", PATH, {"input": "Hi", "stream": True, "background": True}).rest()
        id = events[0]["response"]["id"]
        self.ask("DELETE", "/" + id)
        self.refused("GET", f"/{id}?stream=true", status=404)


class Bounds(Base):
    FLAGS = ("--max-background-responses", "3", "--background-events-mib", "1", "--background-events-age", "1", "--context-length", "100000",
             "--max-connections", "12")

    def test_misuses(self):
        self.refused("POST", "", {"input": "x", "background": True, "store": False}, param="store")
        self.refused("POST", "", {"input": "x", "background": "yes"}, param="background")
        self.refused("POST", "", {"input": "x", "background": True, "background_options": {"completion_window": "2h"}}, param="background_options")

    def test_too_many(self):
        ids = [self.begin("!held")["id"] for _ in range(3)]
        for stream in (False, True):
            error = self.refused("POST", "", {"input": "x", "background": True, "stream": stream}, 503)
            self.assertIn("--max-background-responses", error["message"])
        self.assertEqual(self.ask("POST", "", {"input": "Hello"})["status"], "completed", "others have their own room")
        self.ask("POST", f"/{ids[1]}/cancel")
        self.gate.open()
        self.assertEqual(self.poll(self.begin("x")["id"])["status"], "completed")

    def test_events_age(self):
        id = Stream(self.server, "POST", PATH, {"input": "Hi", "stream": True, "background": True}).event()["response"]["id"]
        self.poll(id)
        wait_until(lambda: self.server.request("GET", f"{PATH}/{id}?stream=true")[0] == 400, says="the events stay")
        self.refused("GET", f"/{id}?stream=true", param="stream")
        self.assertEqual(self.ask("GET", "/" + id)["status"], "completed")

    def test_events_that_nobody_reads(self):
        """The response goes on without them; a reader sees that the stream is not whole."""
        body = {"input": "!halfway !flood", "stream": True, "background": True, "max_output_tokens": 20_000, "ignore_eos": True}
        stream = Stream(self.server, "POST", PATH, body)
        id = stream.event()["response"]["id"]
        self.gate.open()
        self.assertEqual(self.poll(id)["usage"]["output_tokens"], 20_000)
        self.server.wait_log(f"{id}: there is no room for its events")
        with self.assertRaises((http.client.IncompleteRead, ConnectionError)):
            while stream.response.read(1 << 20):
                pass
        self.refused("GET", f"/{id}?stream=true", param="stream")
        self.assertEqual(self.server.metric("tandem:background_event_bytes"), 0)

    def test_no_room_from_the_beginning(self):
        """What a client would never see the id of is not begun."""
        tool = {"type": "function", "name": "f", "description": "x" * 800_000, "parameters": {"type": "object"}}
        error = self.refused("POST", "", {"input": "!hang", "tools": [tool], "background": True, "stream": True}, 503)
        self.assertIn("--background-events-mib", error["message"])
        self.server.wait_metric("sglang:num_running_reqs", 0)

    def test_room_for_events(self):
        """Those of ended responses go for others."""
        body = {"input": "!flood", "stream": True, "background": True, "max_output_tokens": 2000, "ignore_eos": True}
        for _ in range(4):
            events = Stream(self.server, "POST", PATH, body).rest()
            self.assertEqual(events[-1]["response"]["usage"]["output_tokens"], 2000)
            self.assertLessEqual(self.server.metric("tandem:background_event_bytes"), 1 << 20)

    def test_readers_that_leave(self):
        """Their connections end, although nothing comes that would be sent to them."""
        id = Stream(self.server, "POST", PATH, {"input": "!held", "stream": True, "background": True}).event()["response"]["id"]
        open_before = self.server.sockets()
        for reader in [Stream(self.server, "GET", f"{PATH}/{id}?stream=true&starting_after=1") for _ in range(9)]:
            reader.close()
        wait_until(lambda: self.server.sockets() <= open_before, says="connections stay open")


class Life(unittest.TestCase):
    def test_off(self):
        for flag in ("--max-background-responses", "--max-stored-responses"):
            with Server(flag, "0") as server:
                status, answer, _ = server.request("POST", PATH, {"input": "x", "background": True})
                self.assertEqual((status, answer["error"]["param"], f"{flag} 0" in answer["error"]["message"]), (400, "background", True))

    def test_timeout(self):
        with Server("--background-timeout", "1") as server:
            id = server.request("POST", PATH, {"input": "!hang", "background": True})[1]["id"]
            *_, failed = Stream(server, "POST", PATH, {"input": "!hang", "background": True, "stream": True}).rest()
            self.assertEqual(failed["type"], "response.failed")
            wait_until(lambda: server.request("GET", f"{PATH}/{id}")[1]["status"] == "failed")
            for answer in (failed["response"], server.request("GET", f"{PATH}/{id}")[1]):
                self.assertIn("--background-timeout", answer["error"]["message"])
            server.wait_metric("sglang:num_running_reqs", 0)

    def test_large_answer(self):
        """What has no room among the answers is not begun."""
        with Server("--max-answers-mib", "1") as server:
            body = {"input": "!hang", "background": True, "tools": [{"type": "function", "name": "f", "description": "x" * 2_000_000, "parameters": {}}]}
            status, answer, _ = server.request("POST", PATH, body)
            self.assertEqual((status, answer["error"]["code"]), (400, "answer_too_large"))
            self.assertEqual([server.metric(f"{name}") for name in ("tandem:background_responses", "sglang:num_running_reqs", "tandem:answer_bytes")], [0, 0, 0])

    def test_restart(self):
        """A server knows nothing of the one before."""
        with Server() as server:
            id = server.request("POST", PATH, {"input": "x", "background": True})[1]["id"]
        with Server() as server:
            for method, path in (("GET", id), ("GET", f"{id}?stream=true"), ("POST", f"{id}/cancel"), ("DELETE", id)):
                self.assertEqual(server.request(method, f"{PATH}/{path}")[0], 404)

    def test_key(self):
        with Server("--api-key", "secret") as server:
            key = {"Authorization": "Bearer secret"}
            id = server.request("POST", PATH, {"input": "!hang", "background": True}, headers=key)[1]["id"]
            for method, path in (("GET", id), ("GET", f"{id}?stream=true"), ("POST", f"{id}/cancel"), ("DELETE", id)):
                self.assertEqual(server.request(method, f"{PATH}/{path}", headers={"Authorization": "Bearer other"})[0], 401)
            self.assertEqual(server.request("POST", f"{PATH}/{id}/cancel", headers=key)[1]["status"], "cancelled")

    def test_grace(self):
        """A server that stops lets what runs end, and its readers have the rest."""
        gate = Gate()
        server = Server("--shutdown-grace", "1000", env=gate.env)
        server.request("POST", PATH, {"input": "!held", "background": True})
        stream = Stream(server, "POST", PATH, {"input": "!held", "background": True, "stream": True})
        keep = server.connection()
        keep.request("POST", PATH, json.dumps({"input": "!held", "background": True}), {"Content-Type": "application/json"})
        id = json.loads(keep.getresponse().read())["id"]
        server.wait_metric("sglang:num_running_reqs", 3)
        server.process.send_signal(signal.SIGTERM)
        server.wait_log("stopping:")
        keep.request("GET", f"{PATH}/{id}")
        self.assertEqual(json.loads(keep.getresponse().read())["status"], "queued")
        gate.open()
        self.assertEqual(stream.rest()[-1]["type"], "response.completed")
        self.assertEqual(server.stop(), 0)

    def test_grace_ends(self):
        server = Server("--shutdown-grace", "0.5")
        server.request("POST", PATH, {"input": "!hang", "background": True})
        streams = [Stream(server, "POST", PATH, {"input": "!hang", "background": True, "stream": True})]
        id = streams[0].event()["response"]["id"]
        streams += [Stream(server, "GET", f"{PATH}/{id}?stream=true") for _ in range(3)]
        server.wait_metric("sglang:num_running_reqs", 2)
        self.assertEqual(server.stop(), 0)
        for stream in streams:
            error, last = stream.rest()[-2:]
            self.assertEqual((error["code"], last["type"], last["response"]["status"]), ("shutting_down", "response.failed", "failed"))

    def test_many_at_once(self):
        """Clients that begin, stream, leave, cancel and delete, in room for few."""
        with Server("--max-background-responses", "4", "--background-events-mib", "1", "--max-connections", "64") as server:
            def begin_and_leave(body):
                try:
                    stream = Stream(server, "POST", PATH, {**body, "stream": True})
                except AssertionError:
                    return None
                first = stream.event()
                stream.close()
                return first["response"]["id"]

            def read_again(id):
                try:
                    status, text, _ = server.request("GET", f"{PATH}/{id}?stream=true")
                    self.assertTrue(status == 400 or "event: response.completed" in text, text)
                except (http.client.IncompleteRead, ConnectionError):
                    pass  # the events had to go meanwhile

            def client(seed):
                draw, done = random.Random(seed), 0
                for _ in range(40):
                    body = {"input": "!flood" + "x" * draw.randrange(300), "background": True}
                    id = begin_and_leave(body) if draw.random() < 0.5 else server.request("POST", PATH, body)[1].get("id")
                    if not id:
                        continue  # too many
                    act = draw.choice(("delete", "cancel", "stream", "poll"))
                    if act == "delete":
                        server.request("DELETE", f"{PATH}/{id}")
                        continue
                    if act == "cancel":
                        self.assertIn(server.request("POST", f"{PATH}/{id}/cancel")[1]["status"], ("cancelled", "completed"))
                    elif act == "stream":
                        read_again(id)
                    wait_until(lambda: server.request("GET", f"{PATH}/{id}")[1]["status"] in ENDED)
                    done += 1
                return done
            with concurrent.futures.ThreadPoolExecutor(5) as pool:
                self.assertGreater(sum(pool.map(client, range(5))), 20)
            server.wait_metric("tandem:background_responses", 0)
            server.wait_metric("sglang:num_running_reqs", 0)

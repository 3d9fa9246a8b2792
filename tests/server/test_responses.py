"""OpenAI's /v1/responses, by the real openai client and as raw HTTP: over the fake engine, which repeats what the user (or a tool) said
last, and on the demo model, which holds to a schema."""
import concurrent.futures
import enum
import json
import threading
import time
import unittest

import openai
import pydantic
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from server_process import OpenaiTest, Server, demo_server, openai_client, wait_until

EVENT = pydantic.TypeAdapter(ResponseStreamEvent)
ITEM = pydantic.TypeAdapter(ResponseItem)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "name": "get_weather", "description": "Weather", "parameters": CITY, "strict": True},
         {"type": "function", "name": "get_time", "parameters": CITY, "strict": False}]
ECHO = "[tools:2]"  # what the fake's template adds to the last turn when there are tools


def call(name, city):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


def without_ids(items):
    """Items as dictionaries that two responses to the same request have in common."""
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def events_of(text):
    """The events of a stream's bytes, each checked against the client's own model of it."""
    blocks = text.split("\n\n")
    assert blocks[-1] == "", blocks[-1]
    events = []
    for number, block in enumerate(blocks[:-1]):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"], block
        assert event["sequence_number"] == number, block
        EVENT.validate_python(event)
        events.append(event)
    return events


class Base(OpenaiTest):
    FLAGS = ("--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3")

    @classmethod
    def start(cls):
        return Server("--served-model-name", "fake", "--context-length", "4096", *cls.FLAGS)

    def create(self, input="Hello", **more):
        return self.client.responses.create(model="fake", input=input, **more)

    def post(self, body, status=200, path="/v1/responses"):
        code, answer, _ = self.server.request("POST", path, body)
        self.assertEqual(code, status, answer)
        return answer

    def stream(self, body):
        return events_of(self.post({**body, "stream": True}))

    def refused(self, param, body, status=400):
        error = self.post(body, status)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["param"], param, error)
        self.assertTrue(error["message"].endswith((".", "…")), error)
        return error


class Answers(Base):
    def test_whole(self):
        body = self.post({"input": "Hello", "metadata": {"a": "b"}, "user": "me", "instructions": "Be kind.", "max_output_tokens": 50,
                          "safety_identifier": "s", "prompt_cache_key": "k", "service_tier": "auto", "max_tool_calls": 3, "tools": TOOLS[:0],
                          "temperature": 0.5, "top_p": 0.25, "truncation": "disabled", "store": True, "include": [], "background": False})
        r = Response.model_validate(body)
        self.assertRegex(r.id, "^resp_[0-9a-f]{32}$")
        self.assertEqual((r.object, r.status, r.error, r.incomplete_details, r.model), ("response", "completed", None, None, "fake"))
        self.assertEqual((r.metadata, r.user, r.instructions, r.max_output_tokens, r.max_tool_calls), ({"a": "b"}, "me", "Be kind.", 50, 3))
        self.assertEqual((r.safety_identifier, r.prompt_cache_key, r.service_tier, r.temperature, r.top_p), ("s", "k", "default", 0.5, 0.25))
        self.assertEqual((r.truncation, r.tool_choice, r.tools, r.parallel_tool_calls, r.background), ("disabled", "auto", [], True, False))
        self.assertEqual(r.text.format.type, "text")
        self.assertLessEqual(abs(r.created_at - time.time()), 60)
        [message] = r.output
        self.assertEqual((message.type, message.role, message.status), ("message", "assistant", "completed"))
        self.assertEqual(r.output_text.lower(), "hello")
        # BOS, <|user|>[system]Be kind., <|user|>Hello, <|assistant|>; the answer's letters and EOS
        self.assertEqual((r.usage.input_tokens, r.usage.output_tokens, r.usage.total_tokens), (1 + 17 + 6 + 1, 6, 31))
        self.assertEqual((r.usage.input_tokens_details.cached_tokens, r.usage.output_tokens_details.reasoning_tokens), (0, 0))

    def test_client(self):
        r = self.create()
        self.assertEqual((r.output_text, r.temperature, r.previous_response_id), ("Hello", 0, None))
        self.assertNotEqual(r.id, self.create().id)
        self.assertEqual(self.create(input=[{"role": "user", "content": "Hi"}]).output_text, "Hi")

    def test_events(self):
        """The events of one message, in OpenAI's order."""
        events = self.stream({"input": "añ😀"})
        self.assertEqual([e["type"] for e in events],
                         ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                          *["response.output_text.delta"] * 3, "response.output_text.done", "response.content_part.done", "response.output_item.done",
                          "response.completed"])
        self.assertEqual([e["delta"] for e in events if e["type"].endswith("delta")], ["a", "ñ", "😀"])
        self.assertEqual(len({e["response"]["id"] for e in events if "response" in e}), 1)
        self.assertEqual([e["response"]["status"] for e in events if "response" in e], ["in_progress", "in_progress", "completed"])
        self.assertEqual({e.get("item_id") or e["item"]["id"] for e in events[2:-1]}, {events[-1]["response"]["output"][0]["id"]})
        self.assertEqual({(e["output_index"], e.get("content_index", 0)) for e in events[2:-1]}, {(0, 0)})
        self.assertEqual(events[-2]["item"], events[-1]["response"]["output"][0])

    def test_events_of_every_kind(self):
        events = self.stream({"input": "<think>why</think>Hi" + call("get_weather", "Rome") + call("get_time", "Oslo"), "tools": TOOLS})
        items = events[-1]["response"]["output"]
        self.assertEqual([(i["type"], i["status"]) for i in items],
                         [("reasoning", "completed"), ("message", "completed"), ("function_call", "completed"), ("function_call", "completed"),
                          ("message", "completed")])
        self.assertEqual([e["item"] for e in events if e["type"] == "response.output_item.done"], items)
        self.assertEqual([e["output_index"] for e in events if e["type"] == "response.output_item.added"], [0, 1, 2, 3, 4])
        joined = {}
        for e in events:
            if e["type"].endswith(".delta"):
                joined[e["item_id"]] = joined.get(e["item_id"], "") + e["delta"]
        whole = {i["id"]: i["arguments"] if i["type"] == "function_call" else i["content"][0]["text"] for i in items}
        self.assertEqual(joined, whole)
        self.assertEqual([whole[i["id"]] for i in items], ["why", "Hi", '{"city": "Rome"}', '{"city": "Oslo"}', ECHO])
        done = {e["item_id"]: e.get("text", e.get("arguments")) for e in events if e["type"] in
                ("response.reasoning_text.done", "response.output_text.done", "response.function_call_arguments.done")}
        self.assertEqual(done, whole)

    def test_stream_equals_whole(self):
        texts = ("plain", "", "<think>only</think>", "<think>why</think>A" + call("get_time", "X") + "B", call("get_time", "X") * 3, "a <tool_call> b",
                 "<think>cut", call("get_time", "X")[:-9], "<tool_call>\nno JSON\n</tool_call>")
        for text in texts:
            for more in ({}, {"tools": TOOLS}, {"tools": TOOLS, "max_output_tokens": 60}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}):
                body = {"input": "x" + text if not text else text, **more}
                with self.subTest(body=body):
                    whole, streamed = self.post(body), self.stream(body)[-1]["response"]
                    for key in ("status", "incomplete_details", "usage"):
                        self.assertEqual(whole[key], streamed[key])
                    Response.model_validate(whole)
                    dropped = [i for i in streamed["output"] if i["type"] == "function_call" and i["status"] == "incomplete"]
                    if dropped:  # it was sent before it turned out to be none
                        self.assertEqual([i for i in whole["output"] if i["type"] == "function_call"], [])
                        continue
                    self.assertEqual(without_ids(whole["output"]), without_ids(streamed["output"]))

    def test_intervals(self):
        """However many tokens an event has, their items and log-probabilities are the same."""
        body = {"input": "<think>why not</think>Answer" + call("get_time", "X") + "end", "tools": TOOLS,
                "include": ["message.output_text.logprobs"], "top_logprobs": 1}
        whole = self.post(body)
        tokens = ["".join(p["token"] for p in i["content"][0]["logprobs"]) for i in whole["output"] if i["type"] == "message"]
        self.assertEqual(tokens, ["Answer", "end" + ECHO + "<|eos|>"])
        self.assertEqual([len(p["top_logprobs"]) for p in whole["output"][1]["content"][0]["logprobs"]], [1] * 6)
        for interval in ("1", "3", "100"):
            with Server("--stream-interval", interval, *self.FLAGS) as server:
                events = events_of(server.request("POST", "/v1/responses", {**body, "stream": True})[1])
            self.assertEqual(without_ids(events[-1]["response"]["output"]), without_ids(whole["output"]), interval)
            for item in events[-1]["response"]["output"]:
                sent = [p for e in events if e["type"] == "response.output_text.delta" and e["item_id"] == item["id"] for p in e["logprobs"]]
                self.assertEqual(sent, item["content"][0]["logprobs"] if item["type"] == "message" else [])

    def test_client_accumulates(self):
        text = "<think>why</think>Hi" + call("get_weather", "Rome")
        with self.client.responses.stream(model="fake", input=text, tools=TOOLS) as stream:
            snapshots = [e.snapshot for e in stream if e.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        self.assertEqual(snapshots[-1], '{"city": "Rome"}')
        whole = self.create(text, tools=TOOLS)
        self.assertEqual((final.output_text, [i.type for i in final.output]), (whole.output_text, [i.type for i in whole.output]))
        self.assertEqual(final.output[2].parsed_arguments, {"city": "Rome"})
        self.assertEqual(self.client.responses.retrieve(final.id).output_text, final.output_text)

    def test_limits_and_ends(self):
        r = self.create("Hello", max_output_tokens=3)
        self.assertEqual((r.status, r.incomplete_details.reason, r.output_text), ("incomplete", "max_output_tokens", "Hel"))
        self.assertEqual(r.output[0].status, "incomplete")
        last = self.stream({"input": "Hello", "max_output_tokens": 3})[-1]
        self.assertEqual((last["type"], last["response"]["status"], last["response"]["usage"]["output_tokens"]), ("response.incomplete", "incomplete", 3))
        self.assertEqual(self.create("Hello", extra_body={"stop": "l"}).output_text, "He")
        self.assertEqual(self.create("Hello", extra_body={"seed": 1, "min_p": 0.5, "top_k": 1}).output_text, "Hello")

    def test_abort(self):
        for stream in (False, True):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                tokens = self.server.metric("sglang:generation_tokens_total")
                answer = pool.submit(self.server.request, "POST", "/v1/responses", {"input": "!slow" + "x" * 2000, "stream": stream})
                wait_until(lambda: self.server.metric("sglang:generation_tokens_total") > tokens)
                self.server.request("POST", "/abort_request", {"abort_all": True})
                status, body, _ = answer.result()
            self.assertEqual(status, 200)
            last = events_of(body)[-1] if stream else {"type": "response.incomplete", "response": body}
            self.assertEqual((last["type"], last["response"]["status"], last["response"]["output"][0]["status"]),
                             ("response.incomplete", "cancelled", "incomplete"))

    def test_abort_by_id(self):
        """A stream says its id before the first token."""
        with self.client.responses.create(model="fake", input="!hang", stream=True) as stream:
            created = next(iter(stream))
            self.assertEqual(created.type, "response.created")
            self.assertEqual(self.server.request("POST", "/abort_request", {"rid": created.response.id})[1], {"aborted": 1})
            self.assertEqual([e.type for e in stream][-1], "response.incomplete")

    def test_engine_fails(self):
        self.assertEqual(self.post({"input": "!error Hello"}, 500)["error"]["code"], "internal_error")
        events = self.stream({"input": "!error Hello"})
        self.assertEqual([e["type"] for e in events[-3:]], ["response.output_item.done", "error", "response.failed"])
        self.assertIn("the fake device broke", events[-2]["message"])
        failed = events[-1]["response"]
        self.assertEqual((failed["status"], failed["error"]["code"], failed["output"][0]["status"]), ("failed", "server_error", "incomplete"))
        self.assertEqual(self.server.request("GET", "/v1/responses/" + failed["id"])[0], 404)
        self.assertEqual(self.post({"input": "!busy"}, 503)["error"]["code"], "queue_full")

    def test_forced_call(self):
        text = '[{"name": "get_weather", "arguments": {"city": "Paris"}}]'
        for choice in ("required", {"type": "function", "name": "get_weather"}):
            r = self.create(text, tools=TOOLS, tool_choice=choice, extra_body={"stop": ECHO})
            self.assertEqual([(i.type, i.name, i.arguments) for i in r.output], [("function_call", "get_weather", '{"city": "Paris"}')])
            self.assertEqual(r.tool_choice if isinstance(choice, str) else r.tool_choice.to_dict(), choice)
        self.assertEqual(self.create(call("get_time", "X"), tools=TOOLS, tool_choice="none").output[0].type, "message")
        r = self.create(call("get_time", "X") * 3, tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual(([i.type for i in r.output], r.parallel_tool_calls), (["function_call"], False))

    def test_custom_tools(self):
        """A custom tool takes a text that is no JSON. The model sees a function with that text as its one argument."""
        tools = [{"type": "custom", "name": "patch", "description": "Edits"}, *TOOLS]
        said = '*** "Begin"\n+\tä\0'
        text = "Hi<tool_call>\n" + json.dumps({"name": "patch", "arguments": {"input": said}}) + "\n</tool_call>" + call("get_time", "X")
        whole = self.post({"input": text, "tools": tools})
        self.assertEqual(Response.model_validate(whole).output[1].input, said)
        self.assertEqual([(i["type"], i["status"]) for i in whole["output"][:3]], [("message", "completed"), ("custom_tool_call", "completed"), ("function_call", "completed")])
        self.assertRegex(whole["output"][1]["id"], "^ctc_")
        self.assertEqual(whole["tools"][0], {**tools[0], "format": {"type": "text"}})
        events = self.stream({"input": text, "tools": tools})
        self.assertEqual(without_ids(events[-1]["response"]["output"]), without_ids(whole["output"]))
        sent = [(e["type"], e.get("delta", e.get("input"))) for e in events if e["type"].startswith("response.custom_tool_call_input")]
        self.assertEqual(sent, [("response.custom_tool_call_input.delta", said), ("response.custom_tool_call_input.done", said)])
        self.assertEqual(next(e["item"]["input"] for e in events if e["type"] == "response.output_item.added" and e["item"]["type"] == "custom_tool_call"), "")
        # arguments of another form are the text themselves; a call that is cut off is none
        self.assertEqual(self.post({"input": '<tool_call>\n{"name": "patch", "arguments": {"x": 1}}\n</tool_call>', "tools": tools})["output"][0]["input"], '{"x": 1}')
        cut = self.stream({"input": text, "tools": tools, "max_output_tokens": 50})[-1]["response"]["output"]
        self.assertEqual([(i["type"], i["status"], i.get("input", "")) for i in cut], [("message", "completed", ""), ("custom_tool_call", "incomplete", ""), ("message", "incomplete", "")])
        forced = self.create('[{"name": "patch", "arguments": {"input": "x"}}]', tools=tools, tool_choice={"type": "custom", "name": "patch"}, extra_body={"stop": "[tools:3]"})
        self.assertEqual([(i.type, i.input) for i in forced.output], [("custom_tool_call", "x")])
        # the conversation goes on, kept here or sent again
        output = {"type": "custom_tool_call_output", "call_id": whole["output"][1]["call_id"], "output": "done"}
        other = {"type": "function_call_output", "call_id": whole["output"][2]["call_id"], "output": "late"}
        kept = self.post({"input": [output, other], "previous_response_id": whole["id"], "tools": tools})
        again = self.post({"input": [{"role": "user", "content": text}, *whole["output"], output, other], "tools": tools})
        self.assertEqual((kept["usage"]["input_tokens"], kept["output"][0]["content"]), (again["usage"]["input_tokens"], again["output"][0]["content"]))
        listed = self.server.request("GET", f"/v1/responses/{kept['id']}/input_items?order=asc")[1]["data"]
        self.assertEqual([ITEM.validate_python(i).type for i in listed][-2:], ["custom_tool_call_output", "function_call_output"])
        grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
        self.assertIn("not held to it", self.post({"input": "x", "tools": [{**tools[0], "format": grammar}] * 2})["warnings"][0])

    def test_parse(self):
        class Colour(enum.Enum):
            red = "red"

        class Thing(pydantic.BaseModel):
            name: str
            colour: Colour
        text = '{"name": "ball", "colour": "red"}'
        r = self.client.responses.parse(model="fake", input=text, text_format=Thing)
        self.assertEqual(r.output_parsed, Thing(name="ball", colour=Colour.red))
        self.assertEqual(r.text.format.type, "json_schema")
        with self.client.responses.stream(model="fake", input=text, text_format=Thing) as stream:
            self.assertEqual(stream.get_final_response().output_parsed.name, "ball")
        self.assertEqual(self.create("{}", text={"format": {"type": "json_object"}}).text.format.type, "json_object")

    def test_logprobs_are_those_of_a_chat(self):
        """Also where all tokens come at once, and with a stop string, whose tokens are in the list though not in the text."""
        for stop in ([], ["lo"]):
            _, r, _ = self.server.request("POST", "/v1/responses", {"input": "Hello", "stop": stop, "include": ["message.output_text.logprobs"], "top_logprobs": 1})
            _, chat, _ = self.server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}], "stop": stop,
                                                                               "logprobs": True, "top_logprobs": 1})
            wanted = [t["token"] for t in chat["choices"][0]["logprobs"]["content"]]
            self.assertEqual([t["token"] for t in r["output"][0]["content"][0]["logprobs"]], wanted)
            self.assertEqual(wanted[:5], list("Hello"))

    def test_warnings(self):
        """A template that shows no effort says so."""
        r = self.post({"input": "x", "reasoning": {"effort": "low", "summary": "auto"}})
        self.assertEqual(r["reasoning"]["effort"], "low")
        self.assertEqual(len(r["warnings"]), 1)


class Input(Base):
    """What becomes of items: the same prompt as the chat's."""

    def same_as_chat(self, input, messages, tools=None, **more):
        chat = self.client.chat.completions.create(
            model="fake", messages=messages, tools=[{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in tools or []] or openai.omit)
        answer = self.create(input, tools=tools or openai.omit, **more)
        self.assertEqual((answer.usage.input_tokens, answer.output_text), (chat.usage.prompt_tokens, chat.choices[0].message.content or ""))

    def test_messages(self):
        parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
        self.same_as_chat([{"role": "developer", "content": "D"}, {"type": "message", "role": "user", "content": parts}],
                          [{"role": "system", "content": "D"}, {"role": "user", "content": "one\ntwo"}])
        self.same_as_chat("Q", [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], instructions="S")
        self.same_as_chat([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "R"}],
                          [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, {"role": "assistant", "content": "B"}, {"role": "user", "content": "R"}])

    def test_turns(self):
        """Reasoning, text and calls of one turn are one message."""
        calls = [{"id": f"c{i}", "type": "function", "function": {"name": "get_time", "arguments": "{}"}} for i in (1, 2)]
        items = [{"role": "user", "content": "Q"},
                 {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "R"}]},
                 {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "T", "annotations": []}]},
                 *({"type": "function_call", "call_id": c["id"], "name": "get_time", "arguments": "{}"} for c in calls),
                 {"type": "function_call_output", "call_id": "c1", "output": "now"},
                 {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "later"}]}]
        self.same_as_chat(items, [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "T", "reasoning_content": "R", "tool_calls": calls},
                                  {"role": "tool", "tool_call_id": "c1", "content": "now"}, {"role": "tool", "tool_call_id": "c2", "content": "later"}], tools=TOOLS)

    def test_reasoning_that_says_nothing(self):
        items = [{"role": "user", "content": "Q"}, {"type": "reasoning", "summary": [], "encrypted_content": None}, {"role": "user", "content": "R"}]
        self.same_as_chat(items, [{"role": "user", "content": "Q"}, {"role": "user", "content": "R"}])


class Conversations(Base):
    def test_previous(self):
        first = self.create("One", instructions="Not carried over")
        second = self.create("Two", previous_response_id=first.id)
        third = self.create([{"role": "user", "content": "Three"}], previous_response_id=second.id)
        self.assertEqual((second.previous_response_id, third.output_text), (first.id, "Three"))
        # BOS, <|user|>One, <|assistant|>One<|eos|>, <|user|>Two, <|assistant|>
        self.assertEqual(second.usage.input_tokens, 1 + 4 + 5 + 4 + 1)
        self.assertEqual(third.usage.input_tokens, 1 + 4 + 5 + 4 + 5 + 6 + 1)
        branch = self.create("Other", previous_response_id=first.id)
        self.assertEqual(branch.usage.input_tokens, 1 + 4 + 5 + 6 + 1)

    def test_input_items(self):
        first = self.create("One")
        second = self.create([{"role": "user", "content": "Two", "id": "mine"}], previous_response_id=first.id)
        items = list(self.client.responses.input_items.list(second.id, order="asc"))
        self.assertEqual([i.content[0].text for i in items], ["One", "One", "Two"])
        self.assertEqual([i.role for i in items], ["user", "assistant", "user"])
        self.assertEqual(items[2].id, "mine")
        self.assertEqual(len({i.id for i in items}), 3)
        self.assertEqual([i.id for i in self.client.responses.input_items.list(second.id)], [i.id for i in items[::-1]])
        path = f"/v1/responses/{second.id}/input_items"
        _, page, _ = self.server.request("GET", path + "?limit=2&order=asc")
        for item in page["data"]:
            ITEM.validate_python(item)
        self.assertEqual((page["object"], page["has_more"], page["first_id"], page["last_id"]), ("list", True, items[0].id, items[1].id))
        _, page, _ = self.server.request("GET", path + f"?limit=2&order=asc&after={page['last_id']}")
        self.assertEqual(([i["id"] for i in page["data"]], page["has_more"]), ([items[2].id], False))
        for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("limit=-1", "limit"), ("limit=", "limit"), ("order=up", "order"),
                             ("after=msg_none", "after")):
            status, answer, _ = self.server.request("GET", path + "?" + query)
            self.assertEqual((status, answer["error"]["param"]), (400, param), query)

    def test_every_item_of_a_conversation(self):
        """What was generated is listed again as it was given."""
        first = self.create("<think>why</think>Hi" + call("get_weather", "Rome"), tools=TOOLS)
        second = self.create([{"type": "function_call_output", "call_id": first.output[2].call_id, "output": "sunny"}], previous_response_id=first.id)
        _, page, _ = self.server.request("GET", f"/v1/responses/{second.id}/input_items?order=asc")
        self.assertEqual([i["type"] for i in page["data"]], ["message", "reasoning", "message", "function_call", "message", "function_call_output"])
        for item in page["data"]:
            ITEM.validate_python(item)
        self.assertEqual([i["id"] for i in page["data"][1:5]], [i.id for i in first.output])

    def agent(self, resend, stream=False):
        """Two tools until there is no call: the fake repeats what a tool says, so a tool can have it call the other one."""
        results = {"get_weather": "Rain. " + call("get_time", "Oslo"), "get_time": "Noon."}
        conversation, asked, r = [{"role": "user", "content": call("get_weather", "Oslo")}], [], None
        new = conversation
        for _ in range(5):
            more = {} if resend else {"previous_response_id": r.id if r else None}
            if stream:
                with self.client.responses.stream(model="fake", input=conversation if resend else new, tools=TOOLS, store=not resend, **{k: v for k, v in more.items() if v}) as s:
                    r = s.get_final_response()
            else:
                r = self.create(conversation if resend else new, tools=TOOLS, store=not resend, **more)
            calls = [i for i in r.output if i.type == "function_call"]
            if not calls:
                return asked, r
            new = []
            for c in calls:
                asked.append((c.name, json.loads(c.arguments)))
                new.append({"type": "function_call_output", "call_id": c.call_id, "output": results[c.name]})
            conversation = conversation + [{k: v for k, v in i.to_dict().items() if k not in ("parsed_arguments", "parsed")} for i in r.output] + new
        self.fail("the agent never ended")

    def test_agent(self):
        ends = []
        for resend in (False, True):
            for stream in (False, True):
                with self.subTest(resend=resend, stream=stream):
                    asked, last = self.agent(resend, stream)
                    self.assertEqual(asked, [("get_weather", {"city": "Oslo"}), ("get_time", {"city": "Oslo"})])
                    self.assertEqual(last.output_text, "Noon." + ECHO)
                    ends.append(last.usage.input_tokens)
        self.assertEqual(len(set(ends)), 1, "the model saw the same conversation each time")

    def test_references(self):
        first = self.create("One")
        for item in ({"type": "item_reference", "id": first.output[0].id}, {"id": first.output[0].id}):
            r = self.create([{"role": "user", "content": "Q"}, item, {"role": "user", "content": "R"}])
            self.assertEqual(r.usage.input_tokens, 1 + 2 + 5 + 2 + 1)
        asked = list(self.client.responses.input_items.list(first.id))[0]
        self.assertEqual(self.create([{"type": "item_reference", "id": asked.id}]).output_text, "One")
        for id in ("msg_none", "msg_", "none", first.output[0].id + "1", "msg_" + "f" * 32 + "_0", "msg_" + "f" * 200 + "_0"):
            self.refused("input[0].id", {"input": [{"type": "item_reference", "id": id}]})
        self.refused("input[1024]", {"input": [{"id": asked.id}] * 1025})

    def test_not_stored(self):
        r = self.create(store=False)
        self.assertFalse(r.store)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(r.id)
        error = self.refused("previous_response_id", {"input": "x", "previous_response_id": r.id})
        self.assertEqual(error["code"], "previous_response_not_found")

    def test_delete(self):
        first = self.create("One")
        second = self.create("Two", previous_response_id=first.id)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, "One")
        self.assertEqual(self.server.request("DELETE", "/v1/responses/" + first.id)[:2],
                         (200, {"id": first.id, "object": "response.deleted", "deleted": True}))
        self.assertEqual(self.server.request("DELETE", "/v1/responses/" + first.id)[0], 404)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        self.refused("previous_response_id", {"input": "x", "previous_response_id": first.id})
        third = self.create("Three", previous_response_id=second.id)  # which still knows what was said
        self.assertEqual(third.usage.input_tokens, 1 + 4 + 5 + 4 + 5 + 6 + 1)
        self.client.responses.delete(second.id)
        self.client.responses.delete(third.id)

    def test_retrieve(self):
        body = self.post({"input": "Hello", "metadata": {"k": "v"}})
        status, again, _ = self.server.request("GET", "/v1/responses/" + body["id"])
        self.assertEqual((status, again), (200, body))
        streamed = self.stream({"input": "Hello"})[-1]["response"]
        self.assertEqual(self.server.request("GET", "/v1/responses/" + streamed["id"])[1], streamed)
        status, answer, _ = self.server.request("GET", f"/v1/responses/{body['id']}?stream=true")
        self.assertEqual((status, answer["error"]["param"]), (400, "stream"))
        self.assertEqual(self.server.request("GET", f"/v1/responses/{body['id']}?stream=false")[0], 200)

    def test_cancel(self):
        r = self.create()
        with self.assertRaises(openai.BadRequestError):
            self.client.responses.cancel(r.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.cancel("resp_none")

    def test_paths(self):
        r = self.create()
        for method, path, status in (("GET", "/v1/responses", 405), ("GET", "/v1/responses/", 404), ("GET", "/v1/responses/none", 404),
                                     ("GET", f"/v1/responses/{r.id}/", 404), ("GET", f"/v1/responses/{r.id}/other", 404),
                                     ("GET", f"/v1/responses/{r.id}/input_items/x", 404), ("GET", "/v1/responses/" + "x" * 300, 404),
                                     ("DELETE", "/v1/responses/", 404), ("DELETE", f"/v1/responses/{r.id}/input_items", 404),
                                     ("POST", "/v1/responses/compact", 404), ("PUT", f"/v1/responses/{r.id}", 405)):
            got, answer, headers = self.server.request(method, path)
            self.assertEqual(got, status, (method, path, answer))
            if status == 405:
                self.assertEqual(headers["Allow"], "POST" if path.endswith("responses") else "GET, HEAD, DELETE, POST")


class Store(unittest.TestCase):
    """What is kept is bounded."""

    def post(self, server, body, status=200):
        code, answer, _ = server.request("POST", "/v1/responses", body, timeout=120)
        self.assertEqual(code, status, answer)
        return answer

    def is_kept(self, server, id):
        return server.request("GET", "/v1/responses/" + id)[0] == 200

    def test_count(self):
        with Server("--max-stored-responses", "3") as server:
            ids = [self.post(server, {"input": "x"})["id"] for _ in range(3)]
            self.assertTrue(self.is_kept(server, ids[0]))  # which makes it the most recently used
            ids.append(self.post(server, {"input": "x"})["id"])
            self.assertEqual([self.is_kept(server, i) for i in ids], [True, False, True, True])

    def test_bytes(self):
        with Server("--stored-responses-mib", "1", "--context-length", "1000000") as server:
            big = "x" * 300_000
            ids = [self.post(server, {"input": [{"role": "user", "content": big}, {"role": "user", "content": "x"}]})["id"] for _ in range(4)]
            self.assertEqual([self.is_kept(server, i) for i in ids], [False, True, True, True])
            huge = self.post(server, {"input": [{"role": "user", "content": "x" * 1_100_000}, {"role": "user", "content": "x"}], "truncate_prompt_tokens": 10})
            self.assertEqual([self.is_kept(server, i) for i in [*ids, huge["id"]]], [False] * 5)
            self.assertTrue(self.is_kept(server, self.post(server, {"input": "x"})["id"]))

    def test_conversation_counts_while_it_is_needed(self):
        with Server("--stored-responses-mib", "1", "--context-length", "1000000") as server:
            r, n = None, 0
            while n < 40:
                body = {"input": [{"role": "user", "content": "x" * 50_000}, {"role": "user", "content": "x"}], "truncate_prompt_tokens": 100}
                if r:
                    body["previous_response_id"] = r
                status, answer, _ = server.request("POST", "/v1/responses", body)
                self.assertEqual(status, 200, answer)
                if not self.is_kept(server, answer["id"]):
                    break
                r, n = answer["id"], n + 1
            self.assertEqual(n, 20, "a conversation that does not fit is not kept, nor any part of it")
            self.assertFalse(self.is_kept(server, r))

    def test_conversation_is_bounded_as_a_body(self):
        """A short body must not stand for more than a long one."""
        with Server() as server:
            r = None
            for _ in range(3):
                body = {"input": [{"role": "user", "content": "x" * 5_700_000}, {"role": "user", "content": "x"}], "truncate_prompt_tokens": 100}
                r = self.post(server, {**body, **({"previous_response_id": r} if r else {})})["id"]
            error = self.post(server, {"input": "x", "previous_response_id": r}, 400)["error"]
            self.assertEqual(error["param"], "previous_response_id")

    def test_off(self):
        with Server("--max-stored-responses", "0") as server:
            r = self.post(server, {"input": "x", "store": True})
            self.assertFalse(r["store"])
            self.assertFalse(self.is_kept(server, r["id"]))
            error = self.post(server, {"input": "x", "previous_response_id": r["id"]}, 400)["error"]
            self.assertEqual(error["param"], "previous_response_id")
            self.assertIn("--max-stored-responses 0", error["message"])

    def test_many_at_once(self):
        """Conversations that grow, branch, are fetched and deleted by several clients, in room for few."""
        with Server("--max-stored-responses", "8", "--max-connections", "64") as server:
            shared, lock = [], threading.Lock()

            def client(seed):
                n_known = 0
                for i in range(60):
                    with lock:
                        previous = shared[(seed * 7 + i * 5) % len(shared)] if shared and i % 3 else None
                    body = {"input": "x" * (i % 5 + 1), "stream": i % 2 == 0}
                    if previous:
                        body["previous_response_id"] = previous
                    status, answer, _ = server.request("POST", "/v1/responses", body)
                    self.assertIn(status, (200, 400), answer)
                    if status == 400:
                        self.assertIn(answer["error"]["code"], ("previous_response_not_found", "context_length_exceeded"))
                        continue
                    id = events_of(answer)[-1]["response"]["id"] if i % 2 == 0 else answer["id"]
                    n_known += 1
                    with lock:
                        shared.append(id)
                    if i % 10 == 9:
                        server.request("DELETE", "/v1/responses/" + id)
                    if i % 7 == 6:
                        server.request("GET", f"/v1/responses/{id}/input_items")
                return n_known
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                self.assertGreater(sum(pool.map(client, range(6))), 60)
            self.assertLessEqual(sum(self.is_kept(server, i) for i in shared), 8)

    def test_key(self):
        with Server("--api-key", "secret") as server:
            for method, path in (("POST", "/v1/responses"), ("GET", "/v1/responses/x"), ("DELETE", "/v1/responses/x")):
                self.assertEqual(server.request(method, path, {} if method == "POST" else None)[0], 401)


class Misuse(Base):
    WRONG = {"string": "x", "number": 1.5, "integer": 7, "bool": True, "list": [], "list of one": [1], "object": {}, "object of one": {"a": 1}}
    # field -> the kinds of value that are not of a wrong type
    FIELDS = {
        "model": {"string"}, "input": {"string", "list", "list of one"}, "instructions": {"string"}, "previous_response_id": {"string"}, "store": {"bool"},
        "background": {"bool"}, "stream": {"bool"}, "truncation": {"string"}, "metadata": {"object", "object of one"}, "include": {"list", "list of one"},
        "tools": {"list", "list of one"}, "tool_choice": {"string", "object", "object of one"}, "text": {"object", "object of one"},
        "text.format": {"object", "object of one"}, "text.verbosity": {"string"}, "reasoning": {"object", "object of one"}, "reasoning.effort": {"string"},
        "reasoning.summary": {"string"}, "reasoning.generate_summary": {"string"}, "stream_options": {"object", "object of one"},
        "stream_options.include_obfuscation": {"bool"}, "max_output_tokens": {"integer"}, "max_tool_calls": {"integer"}, "top_logprobs": {"integer"},
        "parallel_tool_calls": {"bool"}, "temperature": {"number", "integer"}, "top_p": {"number", "integer"}, "user": {"string"},
        "safety_identifier": {"string"}, "prompt_cache_key": {"string"}, "prompt_cache_retention": {"string"}, "prompt_cache_options": {"object", "object of one"},
        "service_tier": {"string"}, "seed": {"integer"}, "stop": {"string", "list"}, "top_k": {"integer"}, "logit_bias": {"object"},
        "chat_template_kwargs": {"object", "object of one"}, "ignore_eos": {"bool"}, "priority": {"integer"}, "n": {"integer"},
    }

    def test_types(self):
        for field, right in self.FIELDS.items():
            for kind, value in self.WRONG.items():
                if kind in right:
                    continue
                outer, _, inner = field.partition(".")
                with self.subTest(field=field, value=value):
                    self.refused(field, {"input": "x", **({outer: {inner: value}} if inner else {outer: value})})

    def test_null_is_not_given(self):
        body = {field: None for field in self.FIELDS if "." not in field}
        self.assertEqual(self.post({**body, "input": "Hello"})["status"], "completed")
        nulls = {"text": {"format": None, "verbosity": None}, "reasoning": {"effort": None, "summary": None}, "stream_options": {"include_obfuscation": None}}
        Response.model_validate(self.post({"input": "Hello", **nulls}))

    def test_values(self):
        for param, fields in (
                ("input", {"input": None}), ("input", {"input": []}), ("input", {"input": "x" * 5000}), ("truncation", {"truncation": "auto"}),
                ("prompt_logprobs", {"prompt_logprobs": 1}), ("conversation", {"conversation": "conv_1"}), ("conversation", {"conversation": {"id": "c"}}),
                ("prompt", {"prompt": {"id": "p"}}), ("context_management", {"context_management": [{"type": "compaction"}]}),
                ("moderation", {"moderation": {"x": 1}}), ("image", {"image": {"context_compression": "enabled"}}),
                ("previous_response_id", {"previous_response_id": "resp_none"}), ("previous_response_id", {"previous_response_id": ""}),
                ("include[0]", {"include": ["other"]}), ("include[1]", {"include": ["reasoning.encrypted_content", 1]}),
                ("top_logprobs", {"top_logprobs": 2}), ("top_logprobs", {"top_logprobs": 21, "include": ["message.output_text.logprobs"]}),
                ("top_logprobs", {"top_logprobs": -1, "include": ["message.output_text.logprobs"]}),
                ("reasoning.summary", {"reasoning": {"summary": "whole"}}), ("reasoning.generate_summary", {"reasoning": {"generate_summary": "x"}}), ("reasoning.summary", {"reasoning": {"summary": "none"}}),
                ("reasoning.mode", {"reasoning": {"mode": "pro"}}), ("reasoning.context", {"reasoning": {"context": "all_turns"}}),
                ("text.verbosity", {"text": {"verbosity": "loud"}}), ("text.format", {"text": {"format": {"type": "grammar"}}}),
                ("text.format", {"text": {"format": {}}}), ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x"}}}),
                ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "x", "schema": False}}}),
                ("text.format", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}),
                ("stream_options.include_obfuscation", {"stream": True, "stream_options": {"include_obfuscation": True}}),
                ("metadata", {"metadata": {"a": 1}}), ("metadata", {"metadata": {"a": None}}), ("metadata", {"metadata": {"k" * 65: "v"}}),
                ("metadata", {"metadata": {"k": "v" * 513}}), ("metadata", {"metadata": {str(i): "" for i in range(17)}}),
                ("max_output_tokens", {"max_output_tokens": 0}), ("input", {"max_output_tokens": 5000}), ("temperature", {"temperature": 3}),
                ("top_p", {"top_p": 0}), ("n", {"n": 2}), ("messages", {"messages": [{"role": "user", "content": "x"}]}), ("max_tokens", {"max_tokens": 5}),
                ("max_completion_tokens", {"max_completion_tokens": 5}), ("response_format", {"response_format": {"type": "json_object"}}),
                ("reasoning_effort", {"reasoning_effort": "low"}), ("logprobs", {"logprobs": True}), ("input_ids", {"input_ids": [5]}), ("rid", {"rid": "mine"}),
                ("verbosity", {"verbosity": "medium"}), ("return_token_ids", {"return_token_ids": True}), ("lora_path", {"lora_path": "x"}),
                ("functions", {"functions": [{}]}), ("enable_thinking", {"enable_thinking": True})):
            with self.subTest(fields=fields):
                self.refused(param, {"input": "x", **fields})
        for fields, mine, chats in (({"max_output_tokens": 0}, "max_output_tokens", "max_completion_tokens"), ({"text": {"verbosity": "loud"}}, "text.verbosity", "'verbosity'"),
                                    ({"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}}, "text.format", "response_format")):
            sentence = self.refused(mine, {"input": "x", **fields})["message"]
            self.assertIn(f"'{mine}'", sentence)
            self.assertNotIn(chats, sentence)
        Response.model_validate(self.post({"input": "x", "metadata": {"ä" * 64: "ö" * 512}}))
        self.refused("model", {"input": "x", "model": "other"}, 404)

    def test_tools(self):
        tool = {"type": "function", "name": "f", "parameters": {}}
        for bad in (1, None, {}, {"type": "function"}, {"type": "function", "name": 1}, {"type": "web_search"}, {"type": "custom"}, {"type": "custom", "name": "x", "format": {"type": "grammar"}},
                    {"type": "custom", "name": "x", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}, {**tool, "parameters": 1},
                    {**tool, "strict": "yes"}, {**tool, "description": 1}, {**tool, "defer_loading": True}, {**tool, "async": True}, {**tool, "allowed_callers": ["programmatic"]},
                    {"type": "function", "function": {"name": "f"}}):
            with self.subTest(tool=bad):
                self.refused("tools[1]", {"input": "x", "tools": [tool, bad]})
        self.assertRegex(self.refused("tools[0]", {"input": "x", "tools": [{"type": "web_search"}]})["message"], "'web_search' is not supported: this server has no tools of its own")
        for choice in ("any", {}, {"type": "function"}, {"type": "function", "name": 1}, {"type": "allowed_tools", "mode": "auto", "tools": []}, {"type": "function", "name": "g"},
                       {"type": "function", "function": {"name": "f"}}):
            with self.subTest(choice=choice):
                self.refused("tool_choice", {"input": "x", "tools": [tool], "tool_choice": choice})
        self.refused("tool_choice", {"input": "x", "tool_choice": "required"})

    def test_fields_that_clients_always_send(self):
        """What OpenAI's SDKs and agents send: taken, with a warning where it changes nothing."""
        answer = self.post({"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, {"role": "user", "content": "b"}],
                            "reasoning": {"summary": "detailed"}, "text": {"verbosity": "low"}, "background": False})
        self.assertEqual((answer["status"], answer["background"]), ("completed", False))
        self.assertIn("'verbosity' has no effect", answer["warnings"][0])
        self.assertEqual(self.client.responses.input_tokens.count(model="fake", input="Hello").input_tokens, self.create("Hello").usage.input_tokens)
        self.assertEqual(self.post({"input": "x" * 9000}, path="/v1/responses/input_tokens")["object"], "response.input_tokens")
        self.assertEqual(self.post({"input": 5}, 400, path="/v1/responses/input_tokens")["error"]["param"], "input")
        tools = [{"type": "function", "name": n, "parameters": {"type": "object"}} for n in ("f", "g")]
        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
        self.assertEqual(self.post({"input": "x", "tools": tools, "tool_choice": allowed})["tool_choice"], allowed)

    def test_items(self):
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "x"}
        reasoning = {"type": "reasoning", "summary": []}
        for param, item in (
                ("", 1), ("", None), ("", "x"), ("", []), (".type", {}), (".type", {"content": "x"}), (".type", {"type": 1}), ("", {"type": "web_search_call", "id": "x"}),
                ("", {"type": "computer_call_output"}), ("", {"type": "input_text", "text": "x"}),
                (".role", {"role": 1, "content": "x"}), (".role", {"role": "tool", "content": "x"}), (".role", {"type": "message", "content": "x"}),
                (".content", {"role": "user"}), (".content", {"role": "user", "content": None}), (".content", {"role": "user", "content": 1}),
                (".content", {"role": "user", "content": {}}), (".content[0]", {"role": "user", "content": [1]}), (".content[0]", {"role": "user", "content": [{}]}),
                (".content[0]", {"role": "user", "content": [{"type": "input_text"}]}), (".content[0]", {"role": "user", "content": [{"type": "input_text", "text": 1}]}),
                (".content[1].image_url", {"role": "user", "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "data:"}]}),
                (".content[0]", {"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}),
                (".content[0]", {"role": "assistant", "content": [{"type": "refusal", "refusal": 1}]}),
                (".id", {"role": "user", "content": "x", "id": 1}), (".status", {"role": "user", "content": "x", "status": 1}),
                (".call_id", {**call, "call_id": None}), (".call_id", {**call, "call_id": ""}), (".name", {**call, "name": 1}), (".name", {**call, "name": "a\0b"}),
                (".input", {"type": "custom_tool_call", "call_id": "c", "name": "f"}), (".call_id", {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}),
                (".arguments", {**call, "arguments": {}}), (".call_id", {**output, "call_id": 1}), (".output", {**output, "output": None}),
                (".output", {**output, "output": 1}), (".output[0].image_url", {**output, "output": [{"type": "input_image"}]}), (".call_id", output),
                (".summary", {**reasoning, "summary": "x"}), (".summary[0]", {**reasoning, "summary": [{"type": "x", "text": "y"}]}),
                (".content", {**reasoning, "content": "x"}), (".content[0]", {**reasoning, "content": [{"type": "reasoning_text"}]}),
                (".encrypted_content", {**reasoning, "encrypted_content": 1}), (".encrypted_content", {**reasoning, "encrypted_content": "gAAA"})):
            with self.subTest(item=item):
                self.refused("input[1]" + param, {"input": [{"role": "user", "content": "x"}, item]})

    def test_bodies(self):
        for raw in ("", "x", "[]", "{", '{"input": "x"', '{"input": "\\ud800"}', '{"input": "x", "input": "y"}', '{"input": 1e999}', "[" * 100000):
            status, answer, _ = self.server.request("POST", "/v1/responses", raw=raw)
            self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"), raw[:40])
        self.assertEqual(self.server.request("POST", "/v1/responses", raw="{}", headers={"Content-Type": "text/plain"})[0], 415)
        self.assertEqual(self.post({"input": [{"role": "user", "content": "a\0b"}]})["output"][0]["content"][0]["text"], "a\0b")

    def test_a_great_many_items(self):
        code, answer, _ = self.server.request("POST", "/v1/responses", {"input": [{"role": "user", "content": ""}] * 70000})
        self.assertEqual((code, answer["error"]["param"]), (400, "input"), answer)


class Demo(unittest.TestCase):
    """On a model that writes tales: what a schema demands is what comes."""

    def test_structured(self):
        class Home(pydantic.BaseModel):
            kind: str = pydantic.Field(max_length=8)
            rooms: int = pydantic.Field(ge=1, le=9)

        with demo_server("--served-model-name", "tale") as server, openai_client(server) as client:
            ask = {"model": "tale", "input": "Where does the fox live?", "max_output_tokens": 60}
            home = client.responses.parse(text_format=Home, **ask).output_parsed
            self.assertTrue(1 <= home.rooms <= 9)
            forced = client.responses.create(tools=TOOLS, tool_choice={"type": "function", "name": "get_time"}, extra_body={"seed": 3}, **{**ask, "max_output_tokens": 200})
            [item] = [i for i in forced.output if i.type == "function_call"] or [None]
            self.assertIsNotNone(item, forced.output)
            self.assertEqual(list(json.loads(item.arguments)), ["city"])
            told = client.responses.create(**ask)
            more = client.responses.create(previous_response_id=told.id, **{**ask, "input": "And the crow?"})
            self.assertGreater(more.usage.input_tokens, told.usage.total_tokens)
            self.assertEqual(more.usage.output_tokens, 60 if more.status == "incomplete" else more.usage.output_tokens)

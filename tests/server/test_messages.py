"""/v1/messages and its count_tokens with the real anthropic client, over the fake engine, which repeats what the user says, and on the demo model."""
import concurrent.futures
import json
import os
import unittest

import anthropic
from anthropic import beta_tool
from server_process import MODEL, PATIENCE, TANDEM, Client, Server

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}]


def call(name, **arguments):
    return '<tool_call>\n' + json.dumps({"name": name, "arguments": arguments}) + '\n</tool_call>'


ONE = call("get_weather", city="Paris")
TWO = ONE + "\n" + call("get_weather", city="Rome", days=3)
ECHO = "[tools:1]"  # what the fake's template adds to the user's text when there are tools
PATH = "/v1/messages"


def user(content):
    return [{"role": "user", "content": content}]


def blocks(message):
    """The content, without ids."""
    say = {"thinking": lambda b: ("thinking", b.thinking), "text": lambda b: ("text", b.text), "tool_use": lambda b: ("tool_use", b.name, b.input)}
    return [say[b.type](b) for b in message.content]


def events_of(text):
    """[(name, data)] of a stream."""
    found = []
    for event in text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), event
        found.append((name[7:], json.loads(data[6:])))
        assert found[-1][1]["type"] == found[-1][0], event
    return found


class Tandem(Client):
    def __init__(self, *flags, key="none", **more):
        server = Server("--served-model-name", "fake", *flags, **more)
        super().__init__(server, anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key=key, max_retries=0, timeout=60 * PATIENCE))

    @staticmethod
    def arguments(text, tools=TOOLS, **more):
        if tools:
            more["tools"] = tools
        return {"model": "fake", "max_tokens": 1500, "messages": user(text) if isinstance(text, str) else text, **more}

    def ask(self, text, **more):
        return self.client.messages.create(**self.arguments(text, **more))

    def stream(self, text, **more):
        """(the client's own accumulated message, its events)"""
        with self.client.messages.stream(**self.arguments(text, **more)) as stream:
            events = list(stream)
            return stream.get_final_message(), events

    def raw(self, text, **more):
        status, answer, _ = self.server.request("POST", PATH, self.arguments(text, stream=True, **more))
        assert status == 200, answer
        return events_of(answer)


def demo(*flags):
    return Tandem("--quantization", "none", "--cpuinfer", "2", *flags, program=[TANDEM], model=MODEL)


class Messages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Tandem("--context-length", "4096", "--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3")
        cls.addClassCleanup(cls.c.__exit__, None, None, None)

    def test_message(self):
        m = self.c.ask("Hello", tools=None, system="Be brief.")
        self.assertEqual((m.type, m.role, m.model, m.stop_reason, m.stop_sequence), ("message", "assistant", "fake", "end_turn", None))
        self.assertEqual(blocks(m), [("text", "Hello")])
        self.assertRegex(m.id, r"^msg_[0-9a-f]{32}$")
        self.assertEqual((m.usage.output_tokens, m.usage.cache_read_input_tokens, m.usage.cache_creation_input_tokens), (6, 0, 0))
        self.assertEqual(self.c.ask([{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
                                                                  {"type": "text", "text": "b"}]}], tools=None).content[0].text, "a\nb")
        self.assertEqual(blocks(self.c.ask(user("x") + [{"role": "assistant", "content": "y"}], tools=None,
                                                  extra_body={"top_k": 5, "top_p": 0.5, "temperature": 0})), [("text", "x")])

    def test_nothing_to_say(self):
        m = self.c.ask("Hello", tools=None, stop_sequences=["Hello"])
        self.assertEqual((m.content, m.stop_reason, m.stop_sequence), ([], "stop_sequence", "Hello"))
        self.assertEqual(self.c.stream("Hello", tools=None, stop_sequences=["Hello"])[0].content, [])

    def test_stop(self):
        m = self.c.ask("one two three", tools=None, stop_sequences=["three", "two"])
        self.assertEqual((blocks(m), m.stop_reason, m.stop_sequence), ([("text", "one ")], "stop_sequence", "two"))
        m = self.c.ask("one two three", tools=None, max_tokens=5)
        self.assertEqual((blocks(m), m.stop_reason, m.usage.output_tokens), ([("text", "one t")], "max_tokens", 5))

    def test_end_of_the_context(self):
        """max_tokens above what the context has left is no error, and the answer tells which of them ended it."""
        m = self.c.ask("a" * 2000, tools=None, max_tokens=1 << 20, extra_body={"ignore_eos": True})
        self.assertEqual((m.stop_reason, m.usage.input_tokens + m.usage.output_tokens), ("model_context_window_exceeded", 4096))
        self.assertEqual(self.c.ask("a" * 2000, tools=None, max_tokens=1 << 20).stop_reason, "end_turn")
        with self.assertRaises(anthropic.BadRequestError) as e:
            self.c.ask("a" * 5000, tools=None, max_tokens=10)
        self.assertEqual(e.exception.body["error"]["message"], "prompt is too long: 5003 tokens > 4096 maximum")
        self.assertEqual(self.c.client.messages.count_tokens(model="fake", messages=user("a" * 5000)).input_tokens, 5003)

    def test_events(self):
        """Their order, and the indices of the blocks."""
        events = self.c.raw("<think>why</think>I look." + ONE, stop_sequences=[ECHO])
        names = [(name, data.get("index"), data.get("delta", data.get("content_block", {})).get("type")) for name, data in events]
        short = [n for i, n in enumerate(names) if n[0] != "ping" and (i == 0 or n != names[i - 1])]
        self.assertEqual(short, [("message_start", None, None),
                                 ("content_block_start", 0, "thinking"), ("content_block_delta", 0, "thinking_delta"),
                                 ("content_block_delta", 0, "signature_delta"), ("content_block_stop", 0, None),
                                 ("content_block_start", 1, "text"), ("content_block_delta", 1, "text_delta"), ("content_block_stop", 1, None),
                                 ("content_block_start", 2, "tool_use"), ("content_block_delta", 2, "input_json_delta"), ("content_block_stop", 2, None),
                                 ("message_delta", None, None), ("message_stop", None, None)])
        self.assertEqual(names[1][0], "ping")
        self.assertGreater(sum(n[0] == "ping" for n in names), 10, "a call that is being written keeps the connection awake")
        start, delta = events[0][1]["message"], events[-2][1]
        self.assertEqual((start["content"], start["stop_reason"], start["usage"]["output_tokens"]), ([], None, 0))
        self.assertEqual(start["usage"]["input_tokens"], delta["usage"]["input_tokens"])
        self.assertEqual(delta["delta"], {"stop_reason": "tool_use", "stop_sequence": ECHO})
        self.assertEqual([e[1]["delta"]["text"] for e in events if e[0] == "content_block_delta" and e[1]["delta"]["type"] == "text_delta"], list("I look."))

    def test_stream_equals_whole(self):
        for text in ("plain", "", "<think>why</think>" + TWO + "end", "a <tool_call> b", "<think>cut", "x<tool_call>\n{\"name\": 1}\n</tool_call>y" + ONE,
                     ONE + " <tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"", "\u00e9<think>\u2603</think>\U0001f98a"):
            for more in ({}, {"max_tokens": 60}):
                with self.subTest(text=text, **more):
                    whole, (streamed, _) = self.c.ask(text, **more), self.c.stream(text, **more)
                    self.assertEqual((blocks(streamed), streamed.stop_reason, streamed.stop_sequence, streamed.usage),
                                     (blocks(whole), whole.stop_reason, whole.stop_sequence, whole.usage))
                    self.assertTrue(all(a.type != b.type or a.type == "tool_use" for a, b in zip(whole.content, whole.content[1:])))

    def test_thinking(self):
        m = self.c.ask("<think>Hm.</think>Yes", tools=None)
        self.assertEqual(blocks(m), [("thinking", "Hm."), ("text", "Yes")])
        self.assertTrue(m.content[0].signature)
        self.assertEqual(m.usage.output_tokens_details.thinking_tokens, len("Hm.</think>") + 1)
        # It goes back as it came, signature and all.
        again = self.c.ask(user("<think>Hm.</think>Yes") + [{"role": "assistant", "content": m.content}] + user("Sure?"), tools=None)
        self.assertEqual(blocks(again), [("text", "Sure?")])
        for thinking in ({"type": "adaptive", "display": "omitted"}, {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}):
            m = self.c.ask("<think>Hm.</think>Yes", tools=None, thinking=thinking)
            self.assertEqual(blocks(m), [("thinking", ""), ("text", "Yes")])
            self.assertEqual(blocks(self.c.stream("<think>Hm.</think>Yes", tools=None, thinking=thinking)[0]), blocks(m))
            self.assertIn("no switch", m.warnings[0])

    def test_the_templates_switch(self):
        """What thinking says reaches the template as its variables."""
        folder = os.path.join(os.environ["TD_SOURCE_DIR"], "tests/data/templates")
        with demo("--chat-template", os.path.join(folder, "Qwen-Qwen3-0.6B.jinja")) as c:
            counts = {t: c.client.messages.count_tokens(model="fake", messages=user("Hi"), thinking={"type": t}).input_tokens for t in ("adaptive", "disabled")}
            self.assertGreater(counts["disabled"], counts["adaptive"], "Qwen3 writes an empty thought where it is off")
            self.assertFalse(hasattr(c.ask("Hi", tools=None, max_tokens=1, thinking={"type": "disabled"}), "warnings"))

    def test_warnings(self):
        m = self.c.ask([{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "?"}, {"type": "text", "text": "y"}]},
                        {"role": "user", "content": "z"}], tools=None)
        self.assertEqual((blocks(m), len(m.warnings)), ([("text", "z")], 1))
        self.assertIn("redacted_thinking", m.warnings[0])
        self.assertFalse(hasattr(self.c.ask("x", tools=None), "warnings"))

    def test_calls(self):
        m = self.c.ask("I look." + TWO, stop_sequences=[ECHO])
        self.assertEqual(blocks(m), [("text", "I look."), ("tool_use", "get_weather", {"city": "Paris"}), ("tool_use", "get_weather", {"city": "Rome", "days": 3})])
        self.assertEqual((m.stop_reason, len({b.id for b in m.content[1:]})), ("tool_use", 2))
        m = self.c.ask(TWO + "x" * 500, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        self.assertEqual((blocks(m), m.stop_reason), ([("tool_use", "get_weather", {"city": "Paris"})], "tool_use"))
        m = self.c.ask(ONE, tool_choice={"type": "none"})
        self.assertEqual((blocks(m), m.stop_reason), ([("text", ONE)], "end_turn"))

    def test_forced(self):
        text = json.dumps([{"name": "get_weather", "arguments": {"city": "Paris"}}])
        for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}, {"type": "any", "disable_parallel_tool_use": True}):
            for m in (self.c.ask(text, tool_choice=choice, stop_sequences=[ECHO]), self.c.stream(text, tool_choice=choice, stop_sequences=[ECHO])[0]):
                self.assertEqual((blocks(m), m.stop_reason), ([("tool_use", "get_weather", {"city": "Paris"})], "tool_use"))
        for choice in ({"type": "tool", "name": "other"}, {"type": "any"}):
            with self.assertRaises(anthropic.BadRequestError):
                self.c.ask(text, tools=TOOLS if "name" in choice else None, tool_choice=choice)

    def loop(self, ask):
        """An agent with two tools: what the first one says has the fake call the second."""
        tools = TOOLS + [{"name": "get_time", "input_schema": {"type": "object"}}]
        run = {"get_weather": lambda city: "Sunny in " + city + "." + call("get_time"), "get_time": lambda: "Noon."}
        messages, trail = user("<think>Hm.</think>Let me see." + call("get_weather", city="Paris")), []
        for _ in range(5):
            m = ask(messages, tools=tools, stop_sequences=["[tools:2]"])
            messages.append({"role": "assistant", "content": m.content})
            trail.append([b.type for b in m.content])
            results = [{"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": run[b.name](**b.input)}]} for b in m.content if b.type == "tool_use"]
            if m.stop_reason != "tool_use":
                return m, trail
            messages.append({"role": "user", "content": results})
        self.fail("no end")

    def test_agent_loop(self):
        for ask in (self.c.ask, lambda *a, **k: self.c.stream(*a, **k)[0]):
            m, trail = self.loop(ask)
            self.assertEqual((blocks(m), trail), ([("text", "Noon.")], [["thinking", "text", "tool_use"], ["text", "tool_use"], ["text"]]))

    def test_the_clients_own_loop(self):
        """anthropic's tool runner, which runs the functions itself."""
        seen = []

        @beta_tool
        def get_weather(city: str) -> str:
            """Weather.

            Args:
                city: where
            """
            seen.append(city)
            return "Sunny." + call("get_time")

        @beta_tool
        def get_time() -> str:
            """Time."""
            seen.append("time")
            return "Noon."

        for stream in (False, True):
            seen.clear()
            runner = self.c.client.beta.messages.tool_runner(model="fake", max_tokens=500, tools=[get_weather, get_time], stop_sequences=["[tools:2]"],
                                                             messages=user(ONE), stream=stream)
            last = None
            for m in runner:
                last = m.get_final_message() if stream else m
            self.assertEqual((seen, last.content[0].text, last.stop_reason), (["Paris", "time"], "Noon.", "stop_sequence"))

    def test_results_of_tools(self):
        """Several in one turn, one of them an error, and text behind them."""
        m = self.c.ask(TWO, stop_sequences=[ECHO])
        results = [{"type": "tool_result", "tool_use_id": b.id, "content": "R", "is_error": i == 1} for i, b in enumerate(m.content)]
        history = user(TWO) + [{"role": "assistant", "content": m.content}, {"role": "user", "content": results}]
        self.assertEqual(self.c.ask(history, stop_sequences=[ECHO]).content[0].text, "Error:\nR")
        history[-1]["content"] = results + [{"type": "text", "text": "And?"}]
        self.assertEqual(self.c.ask(history, stop_sequences=[ECHO]).content[0].text, "And?")

    def test_form_of_the_answer(self):
        """The engine holds to it in test_structured; here its text is text."""
        form = {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
        m = self.c.ask('{"a": 1}', tools=None, output_config=form)
        self.assertEqual(blocks(m), [("text", '{"a": 1}')])
        with self.assertRaises(anthropic.BadRequestError) as e:
            self.c.ask("x", tools=None, output_config={"format": {"type": "json_schema", "schema": {"not": {}}}})
        self.assertIn("'output_config.format' cannot be followed", e.exception.message)

    def test_count_tokens(self):
        history = user(TWO) + [{"role": "assistant", "content": self.c.ask(TWO, stop_sequences=[ECHO]).content}]
        history += [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": b["id"] if isinstance(b, dict) else b.id, "content": "R"} for b in history[1]["content"]]}]
        for messages, more in ((user("Hi"), {}), (user("Hi"), {"system": "S"}), (history, {"tools": TOOLS}), (user("Hi"), {"tools": TOOLS, "tool_choice": {"type": "none"}}),
                               (user("Hi") + [{"role": "assistant", "content": "So"}], {})):
            n = self.c.client.messages.count_tokens(model="fake", messages=messages, **more).input_tokens
            self.assertEqual(n, self.c.client.messages.create(model="fake", max_tokens=9, messages=messages, **more).usage.input_tokens)
        status, answer, _ = self.c.server.request("POST", PATH + "/count_tokens", {"model": "fake", "messages": [], "max_tokens": 1})
        self.assertEqual((status, answer["error"]["type"]), (400, "invalid_request_error"))
        with self.assertRaises(anthropic.NotFoundError):
            self.c.client.messages.count_tokens(model="other", messages=user("x"))

    def test_models(self):
        """In OpenAI's form; anthropic's client reads the names from it."""
        self.assertEqual([m.id for m in self.c.client.models.list()], ["fake"])
        self.assertEqual(self.c.client.models.retrieve("fake").id, "fake")

    def error(self, *request, code=None, **more):
        status, answer, headers = self.c.server.request(*request, **more)
        self.assertEqual((answer["type"], sorted(answer), sorted(answer["error"])), ("error", ["error", "request_id", "type"], ["details", "message", "type"] if code else ["message", "type"]))
        self.assertEqual(answer["error"].get("details"), {"error_code": code} if code else None)
        return status, answer["error"]["type"], headers

    def test_errors(self):
        good = Tandem.arguments("x", tools=None)
        bad = "invalid_request_error"
        self.assertEqual(self.error("POST", PATH, {**good, "model": "other"}, code="model_not_found")[:2], (404, "not_found_error"))
        self.assertEqual(self.error("POST", PATH, {**good, "max_tokens": "x"})[:2], (400, bad))
        self.assertEqual(self.error("POST", PATH, raw="{")[:2], (400, bad))
        self.assertEqual(self.error("POST", PATH, raw="[]")[:2], (400, bad))
        self.assertEqual(self.error("POST", PATH, raw="")[:2], (400, bad))
        self.assertEqual(self.error("POST", PATH, raw='{"model": "a", "model": "b"}')[:2], (400, bad))
        self.assertEqual(self.error("POST", PATH, raw="x", headers={"Content-Type": "text/plain"}, code="unsupported_media_type")[:2], (415, bad))
        status, kind, headers = self.error("GET", PATH, code="method_not_allowed")
        self.assertEqual((status, kind, headers["Allow"]), (405, bad, "POST"))
        self.assertEqual(self.error("POST", PATH, {**good, "messages": user("!error")}, code="internal_error")[:2], (500, "api_error"))
        status, kind, headers = self.error("POST", PATH, {**good, "messages": user("!busy")}, code="queue_full")
        self.assertEqual((status, kind, headers["Retry-After"]), (503, "overloaded_error", "1"))
        self.assertEqual(self.error("POST", PATH + "/count_tokens", raw="{}")[:2], (400, bad))
        self.assertEqual(self.error("POST", PATH, {**good, "thread": {"type": "create"}}, code="thread_unsupported_request")[:2], (400, bad))

    def test_wrong_types(self):
        """Every field with values that it does not take: a 400 that names it. (test_messages_read has what the blocks may be.)"""
        good = Tandem.arguments("x")
        anything = [1, -1.5, True, "x", [], [1], {"a": 1}]
        takes = {"model": str, "max_tokens": 1, "messages": None, "system": (str, []), "tools": [], "tool_choice": None, "stop_sequences": [], "thinking": None,
                 "output_config": None, "context_management": {"a": 1}, "metadata": {"a": 1}, "service_tier": str, "speed": str, "cache_control": {"a": 1},
                 "diagnostics": {"a": 1}, "user_profile_id": str, "workspace_id": str, "inference_geo": str, "stream": True, "temperature": 1, "top_p": 1, "top_k": 1, "seed": 1,
                 "min_tokens": 1, "min_p": 1, "frequency_penalty": (1, -1.5), "presence_penalty": (1, -1.5), "repetition_penalty": 1, "logit_bias": None,
                 "stop_token_ids": ([], [1]), "ignore_eos": True, "skip_special_tokens": True, "priority": 1, "rid": str, "chat_template_kwargs": {"a": 1}}
        n = 0
        for field, right in takes.items():
            right = right if isinstance(right, tuple) else (right,)
            for value in anything:
                if any(type(value) is type(r) and value == r or r is str and isinstance(value, str) for r in right):
                    continue
                status, answer, _ = self.c.server.request("POST", PATH, {**good, field: value})
                if field == "model" and status == 404:
                    continue
                with self.subTest(**{field: value}):
                    self.assertEqual((status, answer["type"], answer["error"]["type"]), (400, "error", "invalid_request_error"))
                    self.assertIn(f"'{field}", answer["error"]["message"])
                    n += 1
        self.assertGreater(n, 180)

    def test_taken_though_they_change_nothing(self):
        for more in ({"mcp_servers": []}, {"mcp_servers": None}, {"inference_geo": "us"}, {"inference_geo": "global", "mcp_servers": []}):
            status, answer, _ = self.c.server.request("POST", PATH, {**Tandem.arguments("Hi", tools=None), **more})
            self.assertEqual((status, answer["content"][0]["text"]), (200, "Hi"), more)

    def test_as_claude_code_sends_it(self):
        tool = {"name": "Bash", "description": "Runs a command", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
                "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": False}, "eager_input_streaming": True,
                "cache_control": {"type": "ephemeral", "ttl": "1h"}}
        mark = {"type": "ephemeral"}
        body = {"model": "fake", "max_tokens": 32000, "stream": True, "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "tools": [tool],
                "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.0.abc; cc_entrypoint=cli; cch=12345;"},
                           {"type": "text", "text": "You are a coding agent.", "cache_control": mark}, {"type": "text", "text": "Be brief.", "cache_control": mark}],
                "messages": [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>Today.</system-reminder>"}, {"type": "text", "text": "List the files."}]},
                             {"role": "assistant", "content": [{"type": "thinking", "thinking": "ls", "signature": "unsigned"},
                                                               {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}, "caller": {"type": "direct"}}]},
                             {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.c", "is_error": False, "cache_control": mark},
                                                          {"type": "text", "text": "And now?" + call("Bash", command="cat a.c"), "cache_control": mark}]}]}
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "interleaved-thinking-2025-05-14,context-management-2025-06-27"}
        status, answer, _ = self.c.server.request("POST", PATH + "?beta=true", body, headers=headers)
        self.assertEqual(status, 200, answer)
        events = events_of(answer)
        [use] = [e[1]["content_block"] for e in events if e[0] == "content_block_start" and e[1]["content_block"]["type"] == "tool_use"]
        self.assertEqual((use["name"], events[-2][1]["delta"]["stop_reason"]), ("Bash", "tool_use"))
        counts = []
        for changing in ("12345", "67890abc", None):
            body["system"][0]["text"] = f"x-anthropic-billing-header: cch={changing};"
            counts.append(self.c.server.request("POST", PATH + "/count_tokens?beta=true", {**body, "system": body["system"][changing is None:]})[1]["input_tokens"])
        self.assertEqual(len(set(counts)), 1, "the line for billing is no part of the prompt")
        self.assertEqual(counts[0], events[0][1]["message"]["usage"]["input_tokens"])

    def test_too_large(self):
        """Told by Content-Length, and found out in a chunked body."""
        def send(head, body=b""):
            c = self.c.server.connection()
            c.connect()
            try:
                c.sock.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + head + b"\r\n\r\n")
                chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
                for _ in range(17 if body else 0):
                    c.sock.sendall(chunk)
            except OSError:
                pass
            data = b""
            while b'"request_id":null}' not in data and (more := c.sock.recv(65536)):
                data += more
            c.close()
            return data.decode()
        for answer in (send(b"Content-Length: 99999999"), send(b"Transfer-Encoding: chunked", b"x")):
            self.assertTrue(answer.startswith("HTTP/1.1 413 "), answer)
            self.assertEqual(json.loads(answer.split("\r\n\r\n")[1])["error"]["type"], "request_too_large")

    def test_error_amid_a_stream(self):
        with self.assertRaises(anthropic.APIStatusError) as e:
            self.c.stream("!error", tools=None)
        self.assertIn("the fake device broke", str(e.exception))
        events = self.c.raw("!error", tools=None)
        self.assertEqual((events[-1][0], events[-1][1]["error"]["type"], events[-1][1]["request_id"]), ("error", "api_error", events[0][1]["message"]["id"]))
        self.assertNotIn("message_stop", [name for name, _ in events])

    def test_abort(self):
        for stream in (False, True):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                body = {"extra_body": {"rid": "mine"}, "tools": None}
                answer = pool.submit((lambda *a, **k: self.c.stream(*a, **k)[0]) if stream else self.c.ask, "!hang", **body)
                self.c.server.wait_metric("sglang:num_running_reqs", 1)
                self.assertEqual(self.c.server.request("POST", "/abort_request", {"rid": "mine"})[1], {"aborted": 1})
                m = answer.result()
                self.assertEqual((m.id, m.stop_reason), ("mine", "abort"))

    def test_slow_reader_and_many_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            texts = [f"<think>{i}</think>no {i} " + TWO + "!flood" for i in range(40)]
            for text, (m, _) in zip(texts, pool.map(lambda t: self.c.stream(t, stop_sequences=["!flood"]), texts)):
                self.assertEqual([b[0] for b in blocks(m)], ["thinking", "text", "tool_use", "tool_use"])
                self.assertIn(blocks(m)[0][1], text)


class NoParsers(unittest.TestCase):
    def test_text_is_text(self):
        with Tandem() as c:
            for m in (c.ask("<think>a</think>" + ONE), c.stream("<think>a</think>" + ONE)[0]):
                self.assertEqual((blocks(m), m.stop_reason), ([("text", "<think>a</think>" + ONE + ECHO)], "end_turn"))
                self.assertIsNone(m.usage.output_tokens_details)


class Late(unittest.TestCase):
    def test_body_that_does_not_come(self):
        with Tandem("--request-timeout", "1") as c:
            connection = c.server.connection()
            for path, form in ((PATH, '"type":"invalid_request_error"'), ("/v1/completions", '"param":null')):
                connection.connect()
                connection.sock.sendall(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{".encode())
                response = b""
                while more := connection.sock.recv(65536):
                    response += more
                connection.close()
                self.assertTrue(response.startswith(b"HTTP/1.1 408 "), response)
                self.assertIn(form, response.decode())
                self.assertEqual('"type":"error"' in response.decode(), path == PATH)


class Keys(unittest.TestCase):
    def test_both_ways(self):
        with Tandem("--api-key", "secret", "--cors-origin", "https://page.example", key="secret") as c:
            self.assertEqual(c.ask("Hi", tools=None).content[0].text, "Hi")
            bearer = anthropic.Anthropic(base_url=c.client.base_url, auth_token="secret", max_retries=0)
            self.assertEqual(bearer.messages.create(**Tandem.arguments("Hi", tools=None)).content[0].text, "Hi")
            bearer.close()
            for headers in ({}, {"x-api-key": "secre"}, {"x-api-key": ""}, {"x-api-key": "secret2"}, {"Authorization": "secret"}, {"Authorization": "Bearer no"}):
                for path in (PATH, PATH + "/count_tokens"):
                    status, answer, sent = c.server.request("POST", path, Tandem.arguments("Hi", tools=None), headers=headers)
                    self.assertEqual((status, answer["type"], answer["error"]["type"]), (401, "error", "authentication_error"))
                    self.assertEqual(sent["Access-Control-Allow-Origin"], "https://page.example")
            for headers in ({"x-api-key": "secret"}, {"x-api-key": "no", "Authorization": "Bearer secret"}, {"x-api-key": "secret", "Authorization": "Bearer no"}):
                self.assertEqual(c.server.request("POST", PATH, Tandem.arguments("Hi", tools=None), headers=headers)[0], 200)
            self.assertEqual(c.server.request("GET", "/v1/models", headers={"x-api-key": "secret"})[0], 200)
            asked = "anthropic-beta,anthropic-version,content-type,x-api-key,x-stainless-lang"
            status, _, sent = c.server.request("OPTIONS", PATH, headers={"Origin": "https://page.example", "Access-Control-Request-Method": "POST",
                                                                         "Access-Control-Request-Headers": asked})
            self.assertEqual((status, sent["Access-Control-Allow-Headers"]), (204, asked))


class Demo(unittest.TestCase):
    """The whole program: prefix cache, and a grammar that the engine holds to."""

    def test_cached_tokens_and_forms(self):
        with demo() as c:
            messages = user("Tell me a story about a dragon. " * 60)
            n = c.client.messages.count_tokens(model="fake", messages=messages).input_tokens
            for i in range(2):
                used = c.client.messages.create(model="fake", max_tokens=4, messages=messages).usage
                self.assertEqual(used.input_tokens + used.cache_read_input_tokens + used.cache_creation_input_tokens, n)
                self.assertEqual(used.cache_read_input_tokens > 0, i == 1)
            schema = {"type": "object", "properties": {"city": {"enum": ["Rome", "Paris"]}}, "required": ["city"], "additionalProperties": False}
            tools = [{"name": "go", "input_schema": schema}]
            for m in (c.ask("Go.", tools=tools, tool_choice={"type": "any"}), c.stream("Go.", tools=tools, tool_choice={"type": "tool", "name": "go"})[0]):
                self.assertEqual((m.stop_reason, m.content[0].name), ("tool_use", "go"))
                self.assertIn(m.content[0].input, ({"city": "Rome"}, {"city": "Paris"}))
            m = c.ask("Go.", tools=None, output_config={"format": {"type": "json_schema", "schema": schema}})
            self.assertIn(json.loads(m.content[0].text)["city"], ("Rome", "Paris"))

"""Tool calls and reasoning over the fake engine, which repeats what the user says: with the real openai client, whole and streamed."""
import json
import os
import unittest

import openai
from server_process import PATIENCE, Client, Gate, Server, openai_client

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}]
ONE = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TWO = ONE + '\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>'
KIMI = ('<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|>'
        "<|tool_calls_section_end|>")


def user(text):
    return [{"role": "user", "content": text}]


class Tandem(Client):
    """A server with these flags, and an openai client of it."""

    def __init__(self, *flags, **more):
        server = Server("--served-model-name", "fake", "--context-length", "4096", *flags, **more)
        super().__init__(server, openai_client(server))

    def chat(self, text, tools=TOOLS, **more):
        if tools:
            more["tools"] = tools
        # The fake shows its tools in the prompt after the user's text, and would repeat that too.
        return self.client.chat.completions.create(model="fake", messages=user(text), **more)

    def streamed(self, text, **more):
        """A stream put together: (content, reasoning, {index: [id, name, arguments]}, finish reason, chunks)"""
        chunks = list(self.chat(text, stream=True, **more))
        content, reasoning, calls, finish = "", "", {}, None
        for chunk in chunks:
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                finish = choice.finish_reason or finish
                for call in choice.delta.tool_calls or []:
                    if call.index not in calls:
                        assert call.id and call.type == "function" and call.function.name and call.function.arguments == "", call
                        calls[call.index] = [call.id, call.function.name, ""]
                    else:
                        assert call.id is None and call.function.name is None, call
                        calls[call.index][2] += call.function.arguments
        return content, reasoning, calls, finish, chunks


# What the fake's template adds to the user's text when there are tools.
ECHO = "[tools:1]"


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.c = Tandem("--tool-call-parser", "qwen25", "--reasoning-parser", "qwen3")
        cls.addClassCleanup(cls.c.__exit__, None, None, None)

    def test_call(self):
        choice = self.c.chat("I look." + ONE + "So").choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertEqual(choice.message.content, "I look.So" + ECHO)
        [call] = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name, call.function.arguments), ("function", "get_weather", '{"city": "Paris"}'))
        self.assertRegex(call.id, r"^call_[0-9a-f]{24}$")
        self.assertNotEqual(call.id, self.c.chat(ONE).choices[0].message.tool_calls[0].id)

    def test_several_and_no_content(self):
        choice = self.c.chat(TWO, stop=ECHO).choices[0]
        self.assertIsNone(choice.message.content)
        self.assertEqual([json.loads(c.function.arguments) for c in choice.message.tool_calls], [{"city": "Paris"}, {"city": "Rome", "days": 3}])
        self.assertEqual(len({c.id for c in choice.message.tool_calls}), 2)

    def test_stream(self):
        content, _, calls, finish, chunks = self.c.streamed("I look.\n" + TWO)
        self.assertEqual((content, finish), ("I look.\n" + ECHO, "tool_calls"))
        self.assertEqual([(c[1], c[2]) for c in calls.values()],
                         [("get_weather", '{"city": "Paris"}'), ("get_weather", '{"city": "Rome", "days": 3}')])
        self.assertEqual(list(calls), [0, 1])
        arguments = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or [] if c.function.name is None]
        self.assertGreater(len(arguments), 20, "arguments come as they are generated")
        first = next(i for i, chunk in enumerate(chunks) if chunk.choices[0].delta.tool_calls)
        self.assertTrue(all(chunk.choices[0].delta.content is None for chunk in chunks[first:-1] if chunk.choices[0].delta.tool_calls))

    def test_stream_equals_whole(self):
        for text in ("plain", "<think>why</think>" + TWO + "end", "a <tool_call> b", ONE + " <tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"",
                     "<think>cut"):
            whole = self.c.chat(text).choices[0]
            content, reasoning, calls, finish, _ = self.c.streamed(text)
            self.assertEqual((content, reasoning, finish),
                             (whole.message.content or "", getattr(whole.message, "reasoning_content", None) or "", whole.finish_reason))
            complete = [json.loads(c.function.arguments) for c in whole.message.tool_calls or []]
            self.assertEqual([json.loads(c[2]) for c in list(calls.values())[:len(complete)]], complete)

    def test_not_a_call(self):
        text = "<tool_call>\nno JSON\n</tool_call>"
        choice = self.c.chat(text).choices[0]
        self.assertEqual((choice.message.content, choice.message.tool_calls, choice.finish_reason), (text + ECHO, None, "stop"))
        cut = self.c.chat(ONE, max_tokens=50).choices[0]
        self.assertEqual((cut.message.content, cut.message.tool_calls, cut.finish_reason), (ONE[:50], None, "length"))

    def test_no_tools(self):
        """Without tools, or with tool_choice none, the text is as it is."""
        self.assertEqual(self.c.chat(ONE, tools=None).choices[0].message.content, ONE)
        choice = self.c.chat(ONE, tool_choice="none").choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), (ONE, "stop"))
        self.assertEqual(self.c.chat(ONE, tool_choice="auto").choices[0].finish_reason, "tool_calls")

    def test_forced(self):
        """The engine's text is calls as a JSON list; test_structured and test_reasoned_forms have the engine hold to it."""
        call = '[{"name": "get_weather", "arguments": {"city": "Paris"}}]'
        named = {"type": "function", "function": {"name": "get_weather"}}
        for forced in ("required", named):
            choice = self.c.chat(call, tool_choice=forced, stop=ECHO).choices[0]
            self.assertEqual((choice.message.content, choice.finish_reason), (None, "tool_calls"))
            self.assertEqual([(c.function.name, c.function.arguments) for c in choice.message.tool_calls], [("get_weather", '{"city": "Paris"}')])
            _, _, calls, finish, _ = self.c.streamed(call, tool_choice=forced, stop=ECHO)
            self.assertEqual(([c[1:] for c in calls.values()], finish), ([["get_weather", '{"city": "Paris"}']], "tool_calls"))
        two = '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_weather", "arguments": {"days": 3}}]'
        for text, reasoning in ((two, ""), ("<think>Hm. [{}]</think>" + two, "Hm. [{}]")):
            content, thought, calls, finish, _ = self.c.streamed(text, tool_choice="required", stop=ECHO)
            self.assertEqual((content, thought, list(calls), finish), ("", reasoning, [0, 1], "tool_calls"))
            self.assertEqual([c[2] for c in calls.values()], ['{"city": "Paris"}', '{"days": 3}'])
            message = self.c.chat(text, tool_choice="required", stop=ECHO).choices[0].message
            self.assertEqual([c.function.arguments for c in message.tool_calls], ['{"city": "Paris"}', '{"days": 3}'])
            self.assertEqual(getattr(message, "reasoning_content", None) or "", reasoning)
        stays = self.c.chat("<think>Hm.</think>" + two, tool_choice="required", stop=ECHO, extra_body={"separate_reasoning": False}).choices[0]
        self.assertEqual((stays.message.content, len(stays.message.tool_calls), hasattr(stays.message, "reasoning_content")), ("Hm.", 2, False))
        odd = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "not": {}}}}]
        for refused in ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, {"tool_choice": "any"}, {"tool_choice": 1},
                        {"tool_choice": "required", "tools": None}, {"tool_choice": "required", "tools": odd},
                        {"tool_choice": "required", "extra_body": {"regex": "a"}}):
            with self.subTest(refused=refused), self.assertRaises(openai.BadRequestError) as e:
                self.c.chat("x", **refused)
            self.assertEqual(e.exception.param, "tool_choice")

    def test_allowed_tools(self):
        """Of the tools only those that tool_choice allows are called; assistant's refusals are text."""
        tools = [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in ("get_weather", "other")]
        def allow(mode, *names):
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": n}} for n in names]}}
        text = '[{"name": "get_weather", "arguments": {}}]' + ECHO
        forced = self.c.chat(text, tools=tools, tool_choice=allow("required", "get_weather"), stop=ECHO).choices[0].message
        self.assertEqual([c.function.name for c in forced.tool_calls], ["get_weather"])
        self.assertEqual(self.c.chat("x", tools=tools, tool_choice=allow("auto", "other")).choices[0].finish_reason, "stop")
        for choice in (allow("auto"), allow("auto", "none"), allow("some", "other"), {"type": "allowed_tools"}):
            with self.subTest(choice=choice), self.assertRaises(openai.BadRequestError) as e:
                self.c.chat("x", tools=tools, tool_choice=choice)
            self.assertEqual(e.exception.param, "tool_choice")

    def test_form_of_the_answer(self):
        """Text that follows a schema is content, whatever it looks like, behind a reasoning."""
        for reasoning in (None, "why"):
            text = f"<think>{reasoning}</think>{ONE}" if reasoning else ONE
            message = self.c.chat(text, response_format={"type": "json_object"}, stop=ECHO).choices[0].message
            self.assertEqual((message.content, message.tool_calls, getattr(message, "reasoning_content", None)), (ONE, None, reasoning))
            message = self.c.chat(text, response_format={"type": "json_object"}, stop=ECHO, extra_body={"separate_reasoning": False}).choices[0].message
            self.assertEqual((message.content, message.tool_calls, getattr(message, "reasoning_content", None)), (text, None, None))

    def test_one_at_a_time(self):
        gate = Gate()
        with Tandem("--tool-call-parser", "qwen25", env=gate.env) as c:
            for n in (1, 3):  # the engine waits behind both calls: only who has enough of it ends the answer
                r = c.chat(TWO + "!halt and so on", parallel_tool_calls=False, n=n)
                self.assertEqual([len(c.message.tool_calls) for c in r.choices], [1] * n)
                self.assertEqual({(c.message.content, c.finish_reason) for c in r.choices}, {(None, "tool_calls")})
                self.assertLessEqual(r.usage.completion_tokens, n * (len(TWO) + len("!halt")))
        content, _, calls, finish, _ = self.c.streamed(TWO + "x" * 500, parallel_tool_calls=False)
        self.assertEqual((content, len(calls), finish), ("", 1, "tool_calls"))
        self.assertEqual(len(self.c.chat(TWO, parallel_tool_calls=True).choices[0].message.tool_calls), 2)
        status, answer, _ = self.c.server.request("POST", "/v1/chat/completions", {"messages": user("x"), "parallel_tool_calls": 1})
        self.assertEqual((status, answer["error"]["param"]), (400, "parallel_tool_calls"))

    def test_reasoning(self):
        r = self.c.chat("<think>Hm.</think>Yes", tools=None)
        self.assertEqual((r.choices[0].message.reasoning_content, r.choices[0].message.content), ("Hm.", "Yes"))
        # A byte is a token here: those after <think>, to the > that ends </think>.
        self.assertEqual(r.usage.completion_tokens_details.reasoning_tokens, len("Hm.</think>") + 1)
        content, reasoning, _, finish, chunks = self.c.streamed("<think>Hm.</think>Yes", tools=None, stream_options={"include_usage": True})
        self.assertEqual((content, reasoning, finish), ("Yes", "Hm.", "stop"))
        self.assertEqual(chunks[-1].usage.completion_tokens_details.reasoning_tokens, len("Hm.</think>") + 1)
        self.assertEqual([c.choices[0].delta.reasoning_content for c in chunks[:-1] if getattr(c.choices[0].delta, "reasoning_content", None)], list("Hm."))
        r = self.c.chat("Yes", tools=None)
        self.assertFalse(hasattr(r.choices[0].message, "reasoning_content"))
        self.assertEqual(r.usage.completion_tokens_details.reasoning_tokens, 0)

    def test_forced_among_many(self):
        """600 tools compile; what is too large is refused in a sentence; shown to the model they are no matter."""
        tools = [{"type": "function", "function": {"name": f"tool_{i}", "parameters": {"type": "object", "properties": {
            "a": {"type": "string"}, "b": {"type": "integer"}}}}} for i in range(2000)]
        for n, choice, status in ((600, "required", 200), (2000, "required", 400), (1000, "auto", 200)):
            got, answer, _ = self.c.server.request("POST", "/v1/chat/completions", {"messages": user("x"), "tools": tools[:n], "tool_choice": choice, "max_tokens": 1})
            self.assertEqual(got, status, answer)
        self.assertIn("too large", self.c.server.request("POST", "/v1/chat/completions", {"messages": user("x"), "tools": tools, "tool_choice": "required"})[1]["error"]["message"])

    def test_separate_reasoning(self):
        r = self.c.chat("<think>Hm.</think>Yes", tools=None, extra_body={"separate_reasoning": False})
        self.assertEqual(r.choices[0].message.content, "<think>Hm.</think>Yes")
        self.assertIsNone(r.usage.completion_tokens_details)
        status, answer, _ = self.c.server.request("POST", "/v1/chat/completions", {"messages": user("x"), "separate_reasoning": "no"})
        self.assertEqual((status, answer["error"]["param"]), (400, "separate_reasoning"))

    def test_prompt_opens_the_reasoning(self):
        for suffix, want in (("<|assistant|><think>\n", ("Hm.", "Yes")), ("<|assistant|><think></think>", (None, "Hm.</think>Yes"))):
            r = self.c.chat("Hm.</think>Yes", tools=None, extra_body={"add_generation_prompt": False, "chat_template_kwargs": {"suffix": suffix}})
            message = r.choices[0].message
            self.assertEqual((getattr(message, "reasoning_content", None), message.content), want)
        messages = user("a</think>b") + [{"role": "assistant", "content": "<think>so "}]
        r = self.c.client.chat.completions.create(model="fake", messages=messages, extra_body={"continue_final_message": True})
        self.assertEqual((r.choices[0].message.reasoning_content, r.choices[0].message.content), ("a", "b"))

    def test_logprobs_and_ids(self):
        """Every token's are there once, however the text is divided."""
        text = "<think>a</think>b" + ONE
        more = {"logprobs": True, "extra_body": {"return_token_ids": True}}
        whole = self.c.chat(text, **more).choices[0]
        self.assertEqual(len(whole.logprobs.content), len(text + ECHO) + 1)
        chunks = self.c.streamed(text, **more)[4]
        tokens = [t.token for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
        self.assertEqual(tokens, [t.token for t in whole.logprobs.content])
        self.assertEqual([i for c in chunks for i in getattr(c.choices[0], "token_ids", None) or []], whole.token_ids)

    def test_a_token_an_event(self):
        """Also when the client reads late: what gathered meanwhile is not joined."""
        text = "<think>" + "a" * 50 + "</think>" + "b" * 50 + ONE
        sizes = lambda chunks: [len(getattr(c.choices[0].delta, "reasoning_content", None) or c.choices[0].delta.content or "") for c in chunks]
        self.assertEqual(sizes(self.c.streamed(text + "!flood")[4]).count(1), 50 + 50 + len("!flood" + ECHO))
        with Tandem("--stream-interval", "5", "--reasoning-parser", "qwen3") as c:
            self.assertLessEqual(max(sizes(c.streamed(text + "!flood", tools=None)[4])), 5)

    def test_the_clients_own_accumulator(self):
        """openai's stream helper puts the deltas together and reads the arguments by a strict schema."""
        strict = {**SCHEMA, "required": list(SCHEMA["properties"]), "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": strict}}]
        with self.c.client.chat.completions.stream(model="fake", messages=user("<think>a</think>Hi\n" + TWO), tools=tools) as stream:
            choice = stream.get_final_completion().choices[0]
        self.assertEqual((choice.message.content, choice.finish_reason), ("Hi\n" + ECHO, "tool_calls"))
        self.assertEqual([c.function.parsed_arguments for c in choice.message.tool_calls], [{"city": "Paris"}, {"city": "Rome", "days": 3}])

    def test_loop(self):
        """An agent's loop: the call's id goes back with its result."""
        messages = user(ONE)
        message = self.c.client.chat.completions.create(model="fake", messages=messages, tools=TOOLS).choices[0].message
        messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
        done = self.c.client.chat.completions.create(model="fake", messages=messages, tools=TOOLS).choices[0]
        self.assertEqual((done.message.content, done.finish_reason), ("sunny" + ECHO, "stop"))

    def test_completions_are_as_they_are(self):
        text = "<think>x</think>" + ONE
        self.assertEqual(self.c.client.completions.create(model="fake", prompt=text, max_tokens=len(text)).choices[0].text, text)

    def test_many_choices_with_large_tools(self):
        tools = [{"type": "function", "function": {"name": f"tool_{i}", "parameters": SCHEMA}} for i in range(1000)]
        r = self.c.client.chat.completions.create(model="fake", messages=user("<tool_call>{\"name\": \"tool_999\", \"arguments\": {}}</tool_call>"), tools=tools, n=20)
        self.assertEqual({c.message.tool_calls[0].function.name for c in r.choices}, {"tool_999"})

    def test_errors(self):
        with self.assertRaises(openai.InternalServerError):
            self.c.chat("!error" + ONE)


class Formats(unittest.TestCase):
    def test_kimi_ids(self):
        with Tandem("--tool-call-parser", "kimi_k2") as c:
            [call] = c.chat(KIMI).choices[0].message.tool_calls
            self.assertEqual((call.id, call.function.name), ("functions.get_weather:0", "get_weather"))
            self.assertEqual([call[0] for call in c.streamed(KIMI)[2].values()], ["functions.get_weather:0"])

    def test_typed_arguments(self):
        text = "<tool_call>\n<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
        with Tandem("--tool-call-parser", "qwen3_coder") as c:
            [call] = c.chat(text).choices[0].message.tool_calls
            self.assertEqual(json.loads(call.function.arguments), {"city": "12", "days": 3})

    def test_harmony(self):
        text = ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
                '{"city": "Paris"}<|call|>')
        with Tandem("--tool-call-parser", "gpt-oss", "--reasoning-parser", "gpt-oss") as c:
            message = c.chat(text, stop=ECHO).choices[0].message
            self.assertEqual((message.content, message.reasoning_content), (None, "Hm."))
            self.assertEqual(message.tool_calls[0].function.arguments, '{"city": "Paris"}')

    def test_by_template(self):
        folder = os.path.join(os.environ["TD_SOURCE_DIR"], "tests/data/templates")
        with Tandem("--chat-template", os.path.join(folder, "Kimi-K2-Thinking.jinja")) as c:
            c.server.wait_log("--tool-call-parser kimi_k2, by the chat template")
            c.server.wait_log("--reasoning-parser kimi_k2, by the chat template")
            message = c.chat("<think>Hm.</think>" + KIMI).choices[0].message
            self.assertEqual((message.reasoning_content, message.tool_calls[0].function.name), ("Hm.", "get_weather"))
        with Tandem("--chat-template", os.path.join(folder, "Kimi-K2-Thinking.jinja"), "--tool-call-parser", "none", "--reasoning-parser", "none") as c:
            self.assertEqual(c.chat("<think>Hm.</think>" + KIMI).choices[0].message.content, "<think>Hm.</think>" + KIMI + ECHO)
        with Tandem() as c:
            self.assertNotIn("by the chat template", c.server.stderr())
            self.assertEqual(c.chat(ONE).choices[0].message.content, ONE + ECHO)

    def test_formats_that_do_not_go_together(self):
        server = Server("--tool-call-parser", "gpt-oss", "--reasoning-parser", "qwen3", wait=False)
        self.assertEqual(server.process.wait(20 * PATIENCE), 1)
        self.assertIn("goes with no other", server.stderr())
        server.__exit__(None, None, None)

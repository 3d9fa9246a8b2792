"""Answers of a form from models that reason, and forced calls: the real engine over a model that says what the test wants and then
noise, so that only the grammar makes what follows right. With the real openai client, whole and streamed."""
import concurrent.futures
import json
import os
import tempfile
import unittest

import jsonschema
from server_process import MODEL, Client, Server, openai_client

PROGRAM = os.environ["TD_SCRIPTED_TANDEM"]
MOOD = {"type": "object", "properties": {"mood_of_the_dragon": {"enum": ["glad", "grim"]}, "heads": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["mood_of_the_dragon", "heads"], "additionalProperties": False}
FORM = {"type": "json_schema", "json_schema": {"name": "mood", "schema": MOOD}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": MOOD}} for name in ("meet", "greet")]
THINKS = "<think>Is it a dragon? </thin </think>"
THOUGHT = "Is it a dragon? </thin "
# Qwen3's way: thinking is closed at once when it is not wanted, and the model opens it otherwise. With `opens` the prompt does.
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|>"
            "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% elif opens is defined %}<think>\n{% endif %}")


class Scripted(Client):
    def __init__(self, says, *flags):
        self.template = tempfile.NamedTemporaryFile("w", suffix=".jinja")
        self.template.write(TEMPLATE)
        self.template.flush()
        server = Server("--served-model-name", "scripted", "--chat-template", self.template.name, *flags, program=[PROGRAM], model=MODEL, env={"TD_SAYS": says})
        super().__init__(server, openai_client(server))

    def __exit__(self, *error):
        super().__exit__(*error)
        self.template.close()

    def chat(self, extra=None, **more):
        return self.client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "A dragon?"}], extra_body=extra,
                                                   **{"max_tokens": 400, "seed": 1, "temperature": 1, **more})

    def answer(self, extra=None, **more):
        """(reasoning, content, [(name, arguments)], finish reason), the same whole and streamed"""
        choice = self.chat(extra, **more).choices[0]
        message = choice.message
        whole = (getattr(message, "reasoning_content", None) or "", message.content or "",
                 [(c.function.name, c.function.arguments) for c in message.tool_calls or []], choice.finish_reason)
        reasoning, content, calls, finish = "", "", [], None
        for chunk in self.chat(extra, stream=True, **more):
            for c in chunk.choices:
                reasoning += getattr(c.delta, "reasoning_content", None) or ""
                content += c.delta.content or ""
                finish = c.finish_reason or finish
                for call in c.delta.tool_calls or []:
                    if call.id:
                        assert call.index == len(calls), call
                        calls.append([call.function.name, ""])
                    else:
                        assert call.index == len(calls) - 1, call
                        calls[-1][1] += call.function.arguments
        assert whole == (reasoning, content, [tuple(c) for c in calls], finish), (whole, reasoning, content, calls, finish)
        return whole


class Reasoned(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Scripted(THINKS, "--reasoning-parser", "qwen3")
        cls.addClassCleanup(cls.s.__exit__, None, None, None)

    def check_mood(self, text):
        jsonschema.validate(json.loads(text), MOOD)

    def test_form_behind_the_reasoning(self):
        for seed in range(5):
            reasoning, content, calls, finish = self.s.answer(response_format=FORM, seed=seed)
            self.assertEqual((reasoning, calls, finish), (THOUGHT, [], "stop"))
            self.check_mood(content)
        usage = self.s.chat(response_format=FORM).usage
        self.assertGreater(usage.completion_tokens_details.reasoning_tokens, 5)
        self.assertGreater(usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens)

    def test_every_kind_of_form(self):
        for extra, pattern in (({"regex": "[0-9]{3}-(dragon|drake)"}, r"[0-9]{3}-(dragon|drake)"), ({"guided_choice": ["yes", "no"]}, "yes|no"),
                               ({"ebnf": 'root ::= "<" [a-z]{3} ">"'}, "<[a-z]{3}>"), ({"structured_outputs": {"regex": "ok"}}, "ok")):
            reasoning, content, _, finish = self.s.answer(extra)
            self.assertEqual((reasoning, finish), (THOUGHT, "stop"))
            self.assertRegex(content, f"^({pattern})$")

    def test_reasoning_that_stays(self):
        reasoning, content, _, finish = self.s.answer({"separate_reasoning": False}, response_format=FORM)
        self.assertEqual((reasoning, finish), ("", "stop"))
        self.assertTrue(content.startswith(THINKS), content)
        self.check_mood(content[len(THINKS):])

    def test_cut_in_the_reasoning(self):
        reasoning, content, _, finish = self.s.answer(response_format=FORM, max_tokens=6)
        self.assertEqual((content, finish), ("", "length"))
        self.assertTrue(reasoning and THOUGHT.startswith(reasoning), reasoning)

    def test_not_wanted_or_opened_by_the_prompt(self):
        reasoning, content, _, finish = self.s.answer({"chat_template_kwargs": {"enable_thinking": False}}, response_format=FORM)
        self.assertEqual((reasoning, finish), ("", "stop"))
        self.check_mood(content)
        reasoning, content, _, finish = self.s.answer({"chat_template_kwargs": {"opens": True}}, response_format=FORM)
        self.assertEqual((reasoning, finish), (THOUGHT, "stop"))
        self.check_mood(content)

    def test_completions_do_not_reason(self):
        answer = self.s.client.completions.create(model="scripted", prompt="A dragon?", max_tokens=300, seed=3, extra_body={"guided_json": MOOD})
        self.check_mood(answer.choices[0].text)

    def test_forced_calls(self):
        counts = set()
        for seed in range(8):
            reasoning, content, calls, finish = self.s.answer(tools=TOOLS, tool_choice="required", seed=seed)
            self.assertEqual((reasoning, content, finish), (THOUGHT, "", "tool_calls"))
            counts.add(len(calls))
            for name, arguments in calls:
                self.assertIn(name, ("meet", "greet"))
                self.check_mood(arguments)
        self.assertGreater(max(counts), 1)
        self.assertLessEqual(max(counts), 16)
        for seed in range(6):
            one = self.s.answer(tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=seed)
            named = self.s.answer(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "greet"}}, seed=seed)
            for reasoning, content, calls, finish in (one, named):
                self.assertEqual((reasoning, content, len(calls), finish), (THOUGHT, "", 1, "tool_calls"))
                self.check_mood(calls[0][1])
            self.assertEqual(named[2][0][0], "greet")
        reasoning, content, calls, finish = self.s.answer({"separate_reasoning": False}, tools=TOOLS, tool_choice="required")
        self.assertEqual((reasoning, content, finish), ("", THOUGHT, "tool_calls"))
        self.assertGreaterEqual(len(calls), 1)

    def test_same_in_company_and_logprobs(self):
        alone = self.s.answer(response_format=FORM, seed=9)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            others = [pool.submit(self.s.answer, {"regex": f"[a-z ]{{{i},60}}"}, seed=i) for i in range(6)]
            again = [pool.submit(self.s.answer, response_format=FORM, seed=9) for _ in range(2)]
            self.assertEqual([a.result() for a in again], [alone, alone])
            for o in others:
                self.assertEqual(o.result()[0], THOUGHT)
        answer = self.s.chat(response_format=FORM, seed=9, n=3, logprobs=True, top_logprobs=2)
        for i, choice in enumerate(answer.choices):
            text = "<think>" + choice.message.reasoning_content + "</think>" + choice.message.content
            self.assertEqual("".join(t.token for t in choice.logprobs.content), text)
            if i == 0:
                self.assertEqual(choice.message.content, alone[1])


class Others(unittest.TestCase):
    def test_format_that_begins_in_the_reasoning(self):
        with Scripted("Let me see.</think>", "--reasoning-parser", "deepseek-r1") as s:
            reasoning, content, _, finish = s.answer(response_format=FORM)
            self.assertEqual((reasoning, finish), ("Let me see.", "stop"))
            jsonschema.validate(json.loads(content), MOOD)

    def test_model_that_does_not_reason(self):
        """What has begun as text of the grammar stays it; a thought that is not opened is none."""
        with Scripted("Let me see.</think>", "--reasoning-parser", "qwen3") as s:
            reasoning, content, _, finish = s.answer(response_format=FORM)
            self.assertEqual((reasoning, finish), ("", "stop"))
            jsonschema.validate(json.loads(content), MOOD)

    def test_without_a_format(self):
        with Scripted(THINKS, "--reasoning-parser", "none") as s:
            reasoning, content, _, finish = s.answer(response_format=FORM)
            self.assertEqual((reasoning, finish), ("", "stop"))
            jsonschema.validate(json.loads(content), MOOD)

    def test_messages_of_harmony_have_the_form_from_their_first_token(self):
        with Scripted("<|channel|>analysis", "--reasoning-parser", "gpt-oss", "--tool-call-parser", "gpt-oss") as s:
            reasoning, content, _, finish = s.answer(response_format=FORM)
            self.assertEqual((reasoning, finish), ("", "stop"))
            jsonschema.validate(json.loads(content), MOOD)
            self.assertGreaterEqual(len(s.answer(tools=TOOLS, tool_choice="required")[2]), 1)

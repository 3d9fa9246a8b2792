"""OpenAI's API over the fake engine, driven by the real openai client: each feature, and how it may be misused."""
import json
import socket
import unittest

import openai
from server_process import PATIENCE, OpenaiTest, Server

USER = [{"role": "user", "content": "Hello"}]


class ApiTest(OpenaiTest):
    start = staticmethod(lambda: Server("--served-model-name", "fake", "--context-length", "2048"))

    def chat(self, messages=USER, **more):
        return self.client.chat.completions.create(model="fake", messages=messages, **more)

    def complete(self, prompt, **more):
        return self.client.completions.create(model="fake", prompt=prompt, **more)

    def refused(self, path, body, param, status=400):
        """The body is refused with one sentence that names the field; returns the sentence."""
        code, answer, _ = self.server.request("POST", path, body)
        self.assertEqual(code, status, answer)
        error = answer["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["param"], param, error)
        self.assertTrue(error["message"].endswith((".", "…")) or ":" in error["message"], error)
        return error["message"]

    def refused_chat(self, param, **fields):
        return self.refused("/v1/chat/completions", {"messages": USER, **fields}, param)

    def refused_completion(self, param, **fields):
        return self.refused("/v1/completions", {"prompt": "Hello", **fields}, param)

    def refused_values(self, refused, field, *values):
        for value in values:
            refused(field, **{field: value})


class Chat(ApiTest):
    def test_answer(self):
        r = self.chat()
        self.assertEqual(r.object, "chat.completion")
        self.assertTrue(r.id.startswith("chatcmpl-"))
        self.assertEqual(r.model, "fake")
        self.assertEqual(r.choices[0].message.role, "assistant")
        self.assertEqual(r.choices[0].message.content, "Hello")
        self.assertEqual(r.choices[0].finish_reason, "stop")
        # BOS, <|user|>, 5 letters, <|assistant|>; the answer's letters and EOS
        self.assertEqual((r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens), (8, 6, 14))
        self.assertEqual(r.usage.prompt_tokens_details.cached_tokens, 0)

    def test_ids_differ(self):
        self.assertNotEqual(self.chat().id, self.chat().id)
        self.assertEqual(self.chat(extra_body={"rid": "mine"}).id, "mine")

    def test_stream(self):
        chunks = list(self.chat([{"role": "user", "content": "añ日😀"}], stream=True))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual([c.choices[0].delta.content for c in chunks[1:-1]], ["a", "ñ", "日", "😀"])
        self.assertEqual([c.choices[0].finish_reason for c in chunks], [None] * (len(chunks) - 1) + ["stop"])
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertTrue(all(c.usage is None for c in chunks))

    def test_stream_usage(self):
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 6)
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}))
        self.assertTrue(all(c.usage.prompt_tokens == 8 for c in chunks))
        # The role is no token, each later chunk of a choice counts more than the one before it, and the last event counts all.
        self.assertEqual([c.usage.completion_tokens for c in chunks], [0, 1, 2, 3, 4, 5, 6, 6])
        chunks = list(self.chat(stream=True, max_tokens=3, stream_options={"include_usage": True, "continuous_usage_stats": True}))
        self.assertEqual([(c.usage.completion_tokens, c.choices[0].finish_reason if c.choices else "") for c in chunks],
                         [(0, None), (1, None), (2, None), (3, "length"), (3, "")])
        chunks = list(self.complete("Hello", stream=True, max_tokens=2, stream_options={"include_usage": True, "continuous_usage_stats": True}))
        self.assertEqual([(c.usage.completion_tokens, c.choices[0].finish_reason if c.choices else "") for c in chunks], [(1, None), (2, "length"), (2, "")])

    def test_stream_bytes(self):
        """What is on the wire: events of one JSON line, [DONE] last."""
        _, text, headers = self.server.request("POST", "/v1/chat/completions", {"messages": USER, "stream": True})
        self.assertIn("text/event-stream", headers["Content-Type"])
        events = text.split("\n\n")
        self.assertEqual(events[-2:], ["data: [DONE]", ""])
        for event in events[:-2]:
            self.assertTrue(event.startswith("data: {"))
            json.loads(event[6:])

    def test_n(self):
        r = self.chat(n=3, temperature=1, seed=5)
        self.assertEqual([c.index for c in r.choices], [0, 1, 2])
        self.assertEqual({c.message.content.lower() for c in r.choices}, {"hello"})
        self.assertGreater(len({c.message.content for c in r.choices}), 1)
        self.assertEqual((r.usage.prompt_tokens, r.usage.completion_tokens), (8, 18))
        chunks = list(self.chat(n=3, temperature=1, seed=5, stream=True))
        for i in range(3):
            mine = [c.choices[0] for c in chunks if c.choices[0].index == i]
            self.assertEqual(mine[0].delta.role, "assistant")
            self.assertEqual([c.finish_reason for c in mine if c.finish_reason], ["stop"])
            self.assertEqual("".join(c.delta.content or "" for c in mine), r.choices[i].message.content)
        self.refused_values(self.refused_chat, "n", 0, 129, "two", 1.5)

    def test_seed(self):
        first, second, other = (self.chat(temperature=1, seed=s).choices[0].message.content for s in (1, 1, 2))
        self.assertEqual(first, second)
        self.assertNotEqual(first, other)
        self.chat(temperature=1, seed=-5)
        self.refused_values(self.refused_chat, "seed", "x", 1.5)

    def test_stop(self):
        r = self.chat(stop="lo")
        self.assertEqual((r.choices[0].message.content, r.choices[0].finish_reason), ("Hel", "stop"))
        self.assertEqual(r.choices[0].matched_stop, "lo")
        self.assertEqual(self.chat(stop=["x", "l"]).choices[0].message.content, "He")
        self.assertEqual(self.chat(stop="lo", extra_body={"no_stop_trim": True}).choices[0].message.content, "Hello")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in self.chat(stop="lo", stream=True)), "Hel")
        self.refused_values(self.refused_chat, "stop", "", ["a", 1], 5, ["a"] * 17)

    def test_stop_token_ids_and_eos(self):
        r = self.chat(extra_body={"stop_token_ids": [4 + ord("l")]})
        self.assertEqual(r.choices[0].matched_stop, 4 + ord("l"))
        r = self.chat(max_tokens=12, extra_body={"ignore_eos": True})
        self.assertEqual((r.choices[0].message.content, r.choices[0].finish_reason), ("HelloHelloHe", "length"))
        self.refused_values(self.refused_chat, "stop_token_ids", [260], [-1], "x")
        self.refused_chat("ignore_eos", ignore_eos="yes")

    def test_max_tokens(self):
        r = self.chat(max_tokens=2)
        self.assertEqual((r.choices[0].message.content, r.choices[0].finish_reason), ("He", "length"))
        self.assertEqual(self.chat(max_tokens=2, max_completion_tokens=3).choices[0].message.content, "Hel")
        r = self.chat(extra_body={"ignore_eos": True})
        self.assertEqual(r.usage.total_tokens, 2048, "the default is what is left of the context")
        self.refused_values(self.refused_chat, "max_tokens", 0, -1, "many")
        self.refused_chat("messages", max_tokens=3000)

    def test_logprobs(self):
        content = self.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
        self.assertEqual([c.token for c in content], ["H", "e", "l", "l", "o", "<|eos|>"])
        self.assertEqual(content[0].logprob, -0.5)
        self.assertEqual(content[0].bytes, [72])
        self.assertEqual([(t.token, t.logprob) for t in content[0].top_logprobs], [("H", -0.5), ("I", -1.5)])
        self.assertEqual(self.chat(logprobs=True).choices[0].logprobs.content[0].top_logprobs, [])
        self.assertIsNone(self.chat().choices[0].logprobs)
        streamed = [e for c in self.chat(logprobs=True, top_logprobs=2, stream=True) if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
        self.assertEqual([c.token for c in streamed], [c.token for c in content])
        content = self.chat([{"role": "user", "content": "ñ"}], logprobs=True).choices[0].logprobs.content
        self.assertEqual([c.bytes for c in content[:2]], [[0xc3], [0xb1]])
        self.refused_chat("top_logprobs", top_logprobs=2)
        self.refused_chat("top_logprobs", logprobs=True, top_logprobs=21)
        self.refused_chat("top_logprobs", logprobs=True, top_logprobs=-1)
        self.refused_chat("logprobs", logprobs=3)

    def test_token_ids(self):
        r = self.chat(extra_body={"return_token_ids": True})
        self.assertEqual(r.choices[0].token_ids, [4 + b for b in b"Hello"] + [1])
        streamed = [t for c in self.chat(stream=True, extra_body={"return_token_ids": True}) for t in getattr(c.choices[0], "token_ids", None) or []]
        self.assertEqual(streamed, r.choices[0].token_ids)
        self.assertEqual(r.prompt_token_ids, [0, 2, *(4 + b for b in b"Hello"), 3])
        first, *others = self.chat(stream=True, extra_body={"return_token_ids": True})
        self.assertEqual((first.prompt_token_ids, [hasattr(c, "prompt_token_ids") for c in others]), (r.prompt_token_ids, [False] * len(others)))
        for stream in (False, True):
            made = self.client.completions.create(model="fake", prompt=["AB", "C"], stream=stream, extra_body={"return_token_ids": True})
            chunks = [c for chunk in made for c in chunk.choices] if stream else made.choices
            ids = [(c.index, c.prompt_token_ids) for c in chunks if hasattr(c, "prompt_token_ids")]
            self.assertEqual(sorted(ids), [(0, [0, 69, 70]), (1, [0, 71])])
        self.refused_chat("return_token_ids", return_token_ids=1)

    def test_tokens_as_ids(self):
        shown = {"return_tokens_as_token_ids": True}
        tokens = [f"token_id:{4 + b}" for b in b"Hello"] + ["token_id:1"]
        content = self.chat(logprobs=True, top_logprobs=2, extra_body=shown).choices[0].logprobs.content
        self.assertEqual([t.token for t in content], tokens)
        self.assertEqual(([t.token for t in content[0].top_logprobs], content[0].bytes), (["token_id:76", "token_id:77"], [72]))
        lists = self.client.completions.create(model="fake", prompt="Hello", logprobs=1, echo=True, max_tokens=1, extra_body=shown).choices[0].logprobs
        self.assertEqual(lists.tokens[:3], ["token_id:0", "token_id:76", "token_id:105"])
        self.assertEqual(set(lists.top_logprobs[1]) - {"token_id:76"}, set())

    def test_prompt_logprobs(self):
        """As vLLM has them: a list with null for the first token, of a chat beside the choices."""
        [choice] = self.client.completions.create(model="fake", prompt=[0, 69, 70], max_tokens=1, extra_body={"prompt_logprobs": 2}).choices
        self.assertIsNone(choice.logprobs)
        first, *others = choice.prompt_logprobs
        self.assertIsNone(first)
        for of, token in zip(others, ("69", "70")):
            self.assertEqual((next(iter(of)), of[token]["decoded_token"]), (token, chr(int(token) - 4)))
            self.assertEqual({t["rank"] for t in of.values()} - {None}, {1, 2})
        r = self.chat(extra_body={"prompt_logprobs": 0})
        self.assertEqual([len(p or {}) for p in r.prompt_logprobs], [0] + [1] * 7)
        both = self.client.completions.create(model="fake", prompt="AB", logprobs=1, max_tokens=1, extra_body={"prompt_logprobs": 3}).choices[0]
        self.assertEqual((len(both.logprobs.tokens), len(both.prompt_logprobs)), (1, 3))
        for value, more in ((-1, {}), (21, {}), (True, {}), (1, {"stream": True})):
            self.refused_chat("prompt_logprobs", prompt_logprobs=value, **more)
        self.refused("/v1/completions", {"prompt": "x", "echo": True, "logprobs": 1, "prompt_logprobs": 2}, "prompt_logprobs")

    def test_logit_bias(self):
        r = self.chat(max_tokens=2, logit_bias={str(4 + ord("z")): 100})
        self.assertEqual(r.choices[0].message.content, "zz")
        self.refused_values(self.refused_chat, "logit_bias", {"x": 1}, {"300": 1}, {"5": 101}, [1])

    def test_numbers(self):
        self.chat(temperature=0.5, top_p=0.9, frequency_penalty=1, presence_penalty=-1,
                  extra_body={"top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1, "priority": 3})
        for field, bad in {"temperature": [-1, 2.1, "hot", True], "top_p": [0, 1.1, "x", []], "min_p": [-0.1, 1.1, "x", {}],
                           "top_k": [-2, 1.5, "x", True], "frequency_penalty": [-3, 3, "x", []], "presence_penalty": [-3, 3, "x", []],
                           "repetition_penalty": [0, 3, "x", []], "min_tokens": [-1, "x", 1.5, []], "priority": ["x", 2**40, 1.5, []],
                           "stream": [1, "true", [], {}]}.items():
            for value in bad:
                with self.subTest(field=field, value=value):
                    self.refused_chat(field, **{field: value})

    def test_messages(self):
        self.assertEqual(self.chat([{"role": "user", "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "y"}]}]).choices[0].message.content, "He\ny")
        self.assertEqual(self.chat([{"role": "developer", "content": "d"}]).choices[0].message.content, "[system]d")
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}, {"role": "user", "content": "b"}]
        self.assertEqual(self.chat(talk).choices[0].message.content, "b")
        self.refused("/v1/chat/completions", {}, "messages")
        for messages, param in [([], "messages"), ("Hello", "messages"), ([{"content": "x"}], "messages[0].role"),
                                ([{"role": "robot", "content": "x"}], "messages[0].role"), ([{"role": "user"}], "messages[0].content"),
                                ([{"role": "user", "content": 5}], "messages[0].content"), (["x"], "messages[0].role"),
                                ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
                                ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
                                ([{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}], "messages[0].tool_calls[0]"),
                                ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}], "messages[0].tool_calls[0]"),
                                ([{"role": "tool", "content": "x"}], "messages")]:
            with self.subTest(messages=messages):
                self.refused("/v1/chat/completions", {"messages": messages}, param)

    def test_other_content_is_refused(self):
        for part in ({"type": "input_audio", "input_audio": {}}, {"type": "video_url"}, {"type": "image"}):
            with self.subTest(part=part):
                content = [{"type": "text", "text": "Look:"}, part]
                sentence = self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}, "messages[0].content[1]")
                self.assertIn(f"'{part['type']}' is not supported; text is, and images as 'image_url'", sentence)

    def test_template_arguments(self):
        r = self.chat(extra_body={"chat_template_kwargs": {"suffix": "!"}})
        self.assertEqual(r.choices[0].message.content, "Hello!")
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        self.assertEqual(self.chat(tools=[tool]).choices[0].message.content, "Hello[tools:1]")
        self.assertEqual(self.chat(tools=[tool], tool_choice="none").choices[0].message.content, "Hello")
        self.refused_chat("chat_template_kwargs", chat_template_kwargs=[])
        self.refused_chat("tools", tools={})
        self.refused_chat("tools[0]", tools=[{"type": "retrieval"}])
        self.refused_chat("tool_choice", tools=[tool], tool_choice="always")

    def test_continue_final_message(self):
        talk = [*USER, {"role": "assistant", "content": "Hel"}]
        r = self.chat(talk, extra_body={"continue_final_message": True})
        self.assertEqual(r.usage.prompt_tokens, 8 + 3)
        _, with_header, _ = self.server.request("POST", "/tokenize", {"messages": talk, "continue_final_message": True})
        self.assertEqual(with_header["tokens"], [0, 2, *(4 + b for b in b"Hello"), 3, *(4 + b for b in b"Hel")])
        _, r, _ = self.server.request("POST", "/tokenize", {"messages": talk, "continue_final_message": True, "add_generation_prompt": False})
        self.assertEqual(r["tokens"], with_header["tokens"])
        self.refused("/v1/chat/completions", {"messages": talk, "continue_final_message": True, "add_generation_prompt": True}, "continue_final_message")
        self.refused("/v1/chat/completions", {"messages": USER, "continue_final_message": True}, "continue_final_message")
        self.refused("/v1/chat/completions", {"messages": talk[1:], "continue_final_message": True}, "continue_final_message")
        self.refused("/v1/chat/completions", {"messages": talk, "continue_final_message": 1}, "continue_final_message")

    def test_input_ids(self):
        _, r, _ = self.server.request("POST", "/v1/chat/completions", {"input_ids": [0, 2, 69, 70, 3]})
        self.assertEqual(r["choices"][0]["message"]["content"], "AB")
        self.refused("/v1/chat/completions", {"input_ids": ["a"]}, "input_ids")

    def test_refused_fields(self):
        for field, value in {"response_format": {"type": "xml"}, "regex": "a(", "ebnf": "root ::= x", "audio": {}, "functions": [{}],
                             "function_call": "auto", "lora_path": "x", "modalities": ["text", "audio"], "web_search_options": {},
                             "best_of": 2, "guided_json": {"type": "a"}, "grammar": 1, "echo": True}.items():
            with self.subTest(field=field):
                self.assertIn(field, self.refused_chat(field, **{field: value}))

    def test_fields_of_other_engines(self):
        """What would change the answer is refused, with the field's own way to say off let through."""
        for field, (on, off) in {"allowed_token_ids": ([1], []), "bad_words": (["x"], None), "lora_name": ("x", ""), "chat_template": ("x", None),
                                 "typical_p": (0.9, 1), "tfs_z": (0.5, 1.0), "top_n_sigma": (1, -1), "repeat_penalty": (1.1, 1), "mirostat": (2, 0),
                                 "dynatemp_range": (0.5, 0), "xtc_probability": (0.1, 0.0), "dry_multiplier": (0.8, 0), "samplers": (["top_k"], []),
                                 "n_predict": (5, -1), "max_new_tokens": (5, None), "length_penalty": (2, 1), "random_seed": (1, None),
                                 "enable_thinking": (True, None), "thinking": ({"type": "enabled"}, None), "verbosity": ("loud", "medium")}.items():
            with self.subTest(field=field):
                self.assertIn(field, self.refused_chat(field, **{field: on}))
                self.assertEqual(self.chat(extra_body={field: off}).choices[0].message.content, "Hello")
        self.assertIn("'max_tokens'", self.refused_chat("max_new_tokens", max_new_tokens=5))

    def test_warnings(self):
        """A field that this model's template does not use: the answer says so."""
        effort = {"messages": USER, "reasoning_effort": "high"}
        _, r, _ = self.server.request("POST", "/v1/chat/completions", effort)
        self.assertEqual(r["warnings"], ["'reasoning_effort' has no effect: the chat template does not use it."])
        self.server.wait_log(f"request {r['id']}: 'reasoning_effort' has no effect")
        _, text, _ = self.server.request("POST", "/v1/chat/completions", {**effort, "stream": True, "n": 2})
        self.assertEqual([len(json.loads(e[6:]).get("warnings", [])) for e in text.split("\n\n") if '"warnings"' in e], [1])
        _, r, _ = self.server.request("POST", "/v1/chat/completions", {"messages": USER})
        self.assertNotIn("warnings", r)

    def test_tools_beside_a_form(self):
        """The form has no calls in it, and the answer says so; a call that is forced, or no tool, is no such case."""
        tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
        for more, warned in (({"tools": tools}, True), ({"tools": tools, "tool_choice": "none"}, False), ({}, False)):
            _, r, _ = self.server.request("POST", "/v1/chat/completions", {"messages": USER, "response_format": {"type": "json_object"}, **more})
            self.assertEqual(any("cannot call them" in w for w in r.get("warnings", [])), warned, r)
        _, r, _ = self.server.request("POST", "/v1/chat/completions", {"messages": USER, "tools": tools, "tool_choice": "required"})
        self.assertFalse(any("cannot call them" in w for w in r.get("warnings", [])), r)

    def test_truncated_prompt(self):
        ids = [0, 2, *(4 + b for b in b"Hello"), 3]
        for k, kept in ((4, ids[-4:]), (8, ids), (100, ids)):
            r = self.chat(extra_body={"truncate_prompt_tokens": k})
            self.assertEqual(r.usage.prompt_tokens, len(kept))
        self.assertEqual(self.complete("Hello", extra_body={"truncate_prompt_tokens": 3}).choices[0].text, "llo")
        self.assertEqual(self.complete("Hello", echo=True, max_tokens=2, extra_body={"truncate_prompt_tokens": 3}).choices[0].text, "llo" + "ll")
        for bad in (0, -1, 1.5, "x"):
            self.refused_chat("truncate_prompt_tokens", truncate_prompt_tokens=bad)

    def test_special_tokens_of_prompts(self):
        self.assertEqual(self.complete("Hello").usage.prompt_tokens, 6)
        self.assertEqual(self.complete("Hello", extra_body={"add_special_tokens": False}).usage.prompt_tokens, 5)
        self.assertEqual(self.chat(extra_body={"add_special_tokens": True}).usage.prompt_tokens, 9)

    def test_ignored_fields(self):
        r = self.chat(user="me", metadata={"a": "b"}, store=False, response_format={"type": "text"}, parallel_tool_calls=True,
                      modalities=["text"], extra_body={"never_heard_of": 1, "best_of": 1, "regex": None, "n": None, "stop": None})
        self.assertEqual(r.choices[0].message.content, "Hello")

    def test_stream_options(self):
        self.refused_chat("stream_options", stream_options={"include_usage": True})
        self.refused_chat("stream_options", stream=True, stream_options=True)
        self.refused_chat("stream_options.include_usage", stream=True, stream_options={"include_usage": 1})

    def test_errors_of_the_engine(self):
        with self.assertRaises(openai.InternalServerError) as e:
            self.chat([{"role": "user", "content": "!error"}])
        self.assertEqual(e.exception.status_code, 500)
        self.assertIn("the fake device broke", str(e.exception))
        with self.assertRaises(openai.APIError) as e:
            list(self.chat([{"role": "user", "content": "!error"}], stream=True))
        self.assertIn("the fake device broke", str(e.exception))
        with self.assertRaises(openai.InternalServerError) as e:
            self.chat([{"role": "user", "content": "!busy"}])
        self.assertEqual((e.exception.status_code, e.exception.response.headers["retry-after"]), (503, "1"))
        self.assertEqual(self.chat().choices[0].message.content, "Hello")

    def test_whole_numbers(self):
        """3.0 is an integer to some clients; a number that no integer holds gets a sentence about numbers."""
        r = self.chat(max_tokens=3.0, n=2.0, seed=5.0, extra_body={"top_k": -1.0, "min_tokens": 1.0})
        self.assertEqual([c.message.content for c in r.choices], ["Hel", "Hel"])
        self.refused_values(self.refused_chat, "max_tokens", 3.5, 1e300)
        self.assertEqual(self.chat(seed=2**63 - 1).choices[0].message.content, "Hello")
        self.assertIn("'seed' too, go from -2^63 to 2^63 - 1", self.refused_chat(None, seed=2**64 - 1))

    def test_aliases(self):
        with Server("--served-model-name", "x", "y", "z,zz", "--stream-interval", "1") as server: # words, as vLLM takes them
            self.assertEqual([m["id"] for m in server.request("GET", "/v1/models")[1]["data"]], ["x", "y", "z", "zz"])
        with Server("--served-model-name", "a,org/b") as server:
            models = server.request("GET", "/v1/models")[1]["data"]
            self.assertEqual([(m["id"], m["root"]) for m in models], [("a", "a"), ("org/b", "a")])
            for name in ("a", "org/b"):
                for path in (name, name.replace("/", "%2F")):
                    status, model, _ = server.request("GET", f"/v1/models/{path}")
                    self.assertEqual((status, model["id"]), (200, name))
                status, r, _ = server.request("POST", "/v1/chat/completions", {"model": name, "messages": USER})
                self.assertEqual((status, r["model"]), (200, name))
            self.assertEqual(server.request("POST", "/v1/chat/completions", {"messages": USER})[1]["model"], "a")
            for name in ("a,org/b", "b", "org"):
                self.assertEqual(server.request("POST", "/v1/chat/completions", {"model": name, "messages": USER})[0], 404)
                self.assertEqual(server.request("GET", f"/v1/models/{name}")[0], 404)

    def test_unknown_model(self):
        with self.assertRaises(openai.NotFoundError) as e:
            self.client.chat.completions.create(model="gpt-9", messages=USER)
        self.assertEqual(e.exception.code, "model_not_found")
        self.refused_chat("model", model=5)

    def test_long_prompt(self):
        message = self.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 3000}]}, "messages")
        self.assertEqual(message, "This model's maximum context length is 2048 tokens. However, your messages resulted in 3003 tokens. "
                                  "Please reduce the length of the messages.")
        with self.assertRaises(openai.BadRequestError) as e:
            self.chat([{"role": "user", "content": "x" * 2000}], max_completion_tokens=100)
        self.assertEqual(e.exception.code, "context_length_exceeded")
        self.assertIn("This model's maximum context length is 2048 tokens. However, you requested 2103 tokens (2003 in the messages, 100 in the completion).",
                      e.exception.message)


class Completions(ApiTest):
    def test_prompt_forms(self):
        self.assertEqual(self.complete("Hello").choices[0].text, "Hello")
        r = self.complete(["ab", "cd"])
        self.assertEqual([(c.index, c.text) for c in r.choices], [(0, "ab"), (1, "cd")])
        self.assertEqual(r.usage.prompt_tokens, 6)
        self.assertEqual(self.complete([69, 70]).choices[0].text, "AB")
        self.assertEqual([c.text for c in self.complete([[69], [70, 71]]).choices], ["A", "BC"])
        for bad in [None, [], 5, {}, [1.5], ["a", 1], [1, "a"], [["a"]], [[]], [260], [-1], [[1], "a"], True]:
            with self.subTest(prompt=bad):
                self.refused("/v1/completions", {"prompt": bad}, "prompt")

    def test_nul(self):
        """U+0000 is text like any other, but no part of a name or of a stop string."""
        self.assertEqual(self.complete("a\0b").choices[0].text, "a\0b")
        self.assertEqual(self.complete("a\0b", echo=True).choices[0].text, "a\0ba\0b")
        for field in ("stop", "rid", "model"):
            self.refused("/v1/completions", {"prompt": "x", field: "a\0"}, field)
        chat = self.client.chat.completions.create
        self.assertEqual(chat(model="fake", messages=[{"role": "user", "content": "a\0b"}]).choices[0].message.content, "a\0b")
        talk = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a\0b"}]
        self.assertEqual(chat(model="fake", messages=talk, extra_body={"continue_final_message": True}).usage.prompt_tokens, 4 + 3)
        self.refused("/v1/chat/completions", {"messages": [{"role": "user\0", "content": "x"}]}, "messages[0].role")

    def test_default_length(self):
        r = self.complete("x" * 40)
        self.assertEqual((len(r.choices[0].text), r.choices[0].finish_reason), (16, "length"))

    def test_n_of_prompts(self):
        r = self.complete(["ab", "cd"], n=2)
        self.assertEqual([(c.index, c.text) for c in r.choices], [(0, "ab"), (1, "ab"), (2, "cd"), (3, "cd")])
        self.refused("/v1/completions", {"prompt": ["a"] * 10, "n": 128}, "n")

    def test_stream(self):
        chunks = list(self.complete(["ab", "cd"], stream=True, stream_options={"include_usage": True}))
        for i, text in enumerate(["ab", "cd"]):
            mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == i]
            self.assertEqual("".join(c.text for c in mine), text)
            self.assertEqual([c.finish_reason for c in mine], [None] * (len(mine) - 1) + ["stop"])
        self.assertEqual(chunks[-1].usage.total_tokens, 12)

    def test_echo(self):
        self.assertEqual(self.complete("Hello", echo=True).choices[0].text, "HelloHello")
        self.assertEqual("".join(c.choices[0].text for c in self.complete("Hello", echo=True, stream=True)), "HelloHello")
        r = self.complete("Hello", echo=True, max_tokens=0)
        self.assertEqual((r.choices[0].text, r.choices[0].finish_reason, r.usage.completion_tokens), ("Hello", "length", 0))
        self.refused_completion("echo", echo="yes")

    def test_echo_logprobs(self):
        for more in ({}, {"stream": True}):
            with self.subTest(more):
                r = self.complete("añb", echo=True, logprobs=1, max_tokens=0, **more)
                lp = (next(c for c in r if c.choices[0].logprobs) if more else r).choices[0].logprobs
                self.assertEqual(lp.tokens, ["<|bos|>", "a", "bytes:\\xc3", "bytes:\\xb1", "b"])
                self.assertEqual(lp.token_logprobs, [None, -1, -1, -1, -1])
                self.assertIsNone(lp.top_logprobs[0])
                self.assertEqual(lp.top_logprobs[1], {"a": -0.5})
                self.assertEqual(lp.text_offset, [0, 0, 1, 2, 2])

    def test_echo_ids(self):
        r = self.complete([0, 69, 70], echo=True, logprobs=0, max_tokens=1)
        self.assertEqual(r.choices[0].text, "ABA")
        self.assertEqual(r.choices[0].logprobs.text_offset, [0, 0, 1, 2])
        r = self.complete([0, 69, 70], echo=True, logprobs=0, max_tokens=1, extra_body={"skip_special_tokens": False})
        self.assertEqual(r.choices[0].text, "<|bos|>ABA")
        self.assertEqual(r.choices[0].logprobs.text_offset, [0, 7, 8, 9])

    def test_logprobs(self):
        lp = self.complete("ab", logprobs=2).choices[0].logprobs
        self.assertEqual(lp.tokens, ["a", "b", "<|eos|>"])
        self.assertEqual(lp.token_logprobs, [-0.5] * 3)
        self.assertEqual(lp.top_logprobs[0], {"a": -0.5, "b": -1.5})
        self.assertEqual(lp.text_offset, [0, 1, 2])
        self.assertEqual(self.complete("ab", logprobs=0).choices[0].logprobs.top_logprobs[0], {"a": -0.5})
        self.refused_values(self.refused_completion, "logprobs", 21, -1, True, "1")

    def test_max_tokens_zero(self):
        r = self.complete("Hello", max_tokens=0)
        self.assertEqual((r.choices[0].text, r.choices[0].finish_reason), ("", "length"))
        self.refused_completion("min_tokens", max_tokens=1, min_tokens=2)

    def test_refused_fields(self):
        for field, value in {"suffix": "x", "best_of": 3, "prompt_embeds": "x"}.items():
            with self.subTest(field=field):
                self.refused_completion(field, **{field: value})
        self.complete("a", suffix=None, best_of=1)

    def test_long_prompt(self):
        message = self.refused_completion("prompt", prompt="x" * 3000)
        self.assertIn("maximum context length is 2048 tokens. However, you requested 3017 tokens (3001 in the prompt, 16 in the completion).", message)
        self.assertEqual(self.complete("x" * 2000, max_tokens=1).usage.prompt_tokens, 2001)
        self.assertIn("100 in the completion", self.refused_completion("prompt", prompt="x" * 2000, max_tokens=100))


class LargeAnswers(ApiTest):
    """Whole answers of more than one piece, beside the small answers and the streams that say the same."""
    start = staticmethod(lambda: Server("--context-length", "200000"))
    TEXT = "!flood " + "😀" * 5000 + "añ 日\"\\ 😀\n{[:," * 2000  # slices of it would end within characters
    SHOWN = {"logprobs": 2, "prompt_logprobs": 2, "return_token_ids": True, "echo": True, "max_tokens": 40}

    def answer(self, path, body):
        """A body and its length as a head tells it; None: in chunks."""
        code, answer, headers = self.server.request("POST", path, body)
        self.assertEqual(code, 200, answer)
        return answer, headers.get("Content-Length")

    def events(self, path, body):
        code, text, _ = self.server.request("POST", path, {**body, "stream": True})
        self.assertEqual(code, 200, text)
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]

    def test_many_choices(self):
        prompts = [f"{i} {self.TEXT[-60 - i:]}" for i in range(40)]
        large, length = self.answer("/v1/completions", {"prompt": prompts, **self.SHOWN})
        self.assertIsNone(length)
        for i, prompt in enumerate(prompts):
            small, length = self.answer("/v1/completions", {"prompt": prompt, **self.SHOWN})
            self.assertIsNotNone(length)
            self.assertEqual(large["choices"][i], {**small["choices"][0], "index": i})
        self.assertEqual(large["usage"]["completion_tokens"], 40 * 40)

    def test_one_large_choice(self):
        body = {"prompt": self.TEXT, **self.SHOWN}
        del body["prompt_logprobs"]  # a stream has none
        (large, length), events = self.answer("/v1/completions", body), self.events("/v1/completions", body)
        self.assertIsNone(length)
        parts, choice = [e["choices"][0] for e in events], large["choices"][0]
        self.assertTrue(choice["text"].startswith(self.TEXT))
        self.assertEqual(choice["text"], "".join(c["text"] for c in parts))
        self.assertEqual(choice["token_ids"], [i for c in parts for i in c.get("token_ids", [])])
        self.assertEqual(choice["prompt_token_ids"], parts[0]["prompt_token_ids"])
        for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            self.assertEqual(choice["logprobs"][key], [t for c in parts if c["logprobs"] for t in c["logprobs"][key]], key)

    def test_echo_of_ids(self):
        """Ids that the tokenizer does not have leave no text; characters that lie in two ids stay whole."""
        ids = list(b + 4 for b in self.TEXT.encode())
        large, length = self.answer("/v1/completions", {"prompt": ids, "echo": True, "max_tokens": 0})
        self.assertEqual((large["choices"][0]["text"], length), (self.TEXT, None))

    def test_chat(self):
        path = "/v1/chat/completions"
        (large, length) = self.answer(path, {"messages": [{"role": "user", "content": self.TEXT}]})
        choice = large["choices"][0]
        self.assertEqual((choice["message"]["content"], choice["finish_reason"], length), (self.TEXT, "stop", None))
        body = {"messages": [{"role": "user", "content": self.TEXT[:1000]}], "logprobs": True, "top_logprobs": 1}
        (large, length), events = self.answer(path, body), self.events(path, body)
        told = [t for e in events if (lp := e["choices"][0]["logprobs"]) for t in lp["content"]]
        self.assertEqual((large["choices"][0]["logprobs"]["content"], length), (told, None))

    def test_messages(self):
        body = {"model": "fake", "messages": [{"role": "user", "content": self.TEXT}], "max_tokens": 70000}
        large, length = self.answer("/v1/messages", body)
        self.assertEqual(large["content"], [{"type": "text", "text": self.TEXT}])
        self.assertEqual((large["stop_reason"], length), ("end_turn", None))

    def test_generate(self):
        body = {"text": [self.TEXT[:2000], self.TEXT[:70]], "return_logprob": True, "logprob_start_len": 3, "top_logprobs_num": 2,
                "sampling_params": {"max_new_tokens": 10000}}
        large, length = self.answer("/generate", body)
        self.assertEqual((len(large), length), (2, None))
        last = {e["index"]: e for e in self.events("/generate", body)}
        for i, one in enumerate(large):
            for answer in (one, last[i]):
                del answer["meta_info"]["e2e_latency"], answer["meta_info"]["id"]
            self.assertEqual({**one, "index": i}, last[i])

    def test_responses(self):
        path = "/v1/responses"
        for body in ({"input": self.TEXT},
                     {"input": self.TEXT[:1000], "include": ["message.output_text.logprobs"], "top_logprobs": 1},
                     {"input": "<think>" + self.TEXT[:30000] + "</think>" + self.TEXT[:30000]}):
            with self.subTest(len(body["input"])):
                large, length = self.answer(path, body)
                last = self.events(path, body)[-1]["response"]
                self.assertIsNone(length)
                of_stream = lambda r: [{**item, "id": None} for item in r["output"]]
                self.assertEqual(of_stream(large), of_stream(last))
                self.assertEqual(large["usage"], last["usage"])
                self.assertEqual(self.server.request("GET", f"{path}/{large['id']}")[:2], (200, large))
                unkept, length = self.answer(path, {**body, "store": False})
                self.assertEqual((of_stream(unkept), length), (of_stream(large), None))

    def test_old_clients(self):
        """HTTP/1.0 knows no chunks: the answer ends with the connection."""
        body = json.dumps({"prompt": self.TEXT, "echo": True, "max_tokens": 0})
        head = f"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20 * PATIENCE) as s:
            s.sendall(f"{head}\r\n\r\n{body}".encode())
            head, _, text = b"".join(iter(lambda: s.recv(65536), b"")).partition(b"\r\n\r\n")
        self.assertNotIn(b"chunked", head)
        self.assertEqual(json.loads(text)["choices"][0]["text"], self.TEXT)


class Others(ApiTest):
    def test_models(self):
        models = self.client.models.list()
        self.assertEqual([m.id for m in models], ["fake"])
        self.assertEqual(self.server.request("GET", "/models")[1], self.server.request("GET", "/v1/models")[1])
        self.assertEqual(self.server.request("POST", "/chat/completions", {"messages": USER})[1]["choices"][0]["message"]["content"], "Hello")
        self.assertEqual(self.server.request("POST", "/responses", {"input": "Hello"})[1]["output"][0]["content"][0]["text"], "Hello")
        _, listed, _ = self.server.request("GET", "/v1/models")
        self.assertEqual((listed["has_more"], listed["first_id"], listed["last_id"]), (False, "fake", "fake"))
        self.assertEqual([(m["type"], m["display_name"]) for m in listed["data"]], [("model", "fake")])
        self.assertEqual(self.client.models.retrieve("fake").max_model_len, 2048)
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("other")
        for name, status in (("%ffx", 404), ("%ff%00x", 400)):
            self.assertEqual(self.server.request("GET", f"/v1/models/{name}")[0], status)
        code, _, _ = self.server.request("GET", "/v1/models/")
        self.assertEqual(code, 404)
        code, _, headers = self.server.request("POST", "/v1/models", {})
        self.assertEqual(code, 405)

    def test_tokenize(self):
        post = lambda body: self.server.request("POST", "/tokenize", body)
        self.assertEqual(post({"prompt": "AB"})[1], {"tokens": [0, 69, 70], "count": 3, "max_model_len": 2048})
        self.assertEqual(post({"prompt": "AB", "add_special_tokens": False})[1]["tokens"], [69, 70])
        self.assertEqual(post({"prompt": ["A", "BC"]})[1]["count"], [2, 3])
        self.assertEqual(post({"messages": [{"role": "user", "content": "A"}]})[1]["tokens"], [0, 2, 69, 3])
        self.assertEqual(post({"prompt": ""})[1]["tokens"], [0])
        self.refused("/tokenize", {}, "prompt")
        self.refused("/tokenize", {"prompt": 5}, "prompt")
        self.refused("/tokenize", {"prompt": ["a", 5]}, "prompt")
        self.refused("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens")
        self.refused("/tokenize", {"prompt": "a", "model": "x"}, "model", 404)

    def test_detokenize(self):
        post = lambda body: self.server.request("POST", "/detokenize", body)
        self.assertEqual(post({"tokens": [0, 69, 70]})[1], {"text": "AB"})
        self.assertEqual(post({"tokens": [0, 69], "skip_special_tokens": False})[1], {"text": "<|bos|>A"})
        self.assertEqual(post({"tokens": [[69], [70]]})[1], {"text": ["A", "B"]})
        self.assertEqual(post({"tokens": [4 + 0xc3]})[1], {"text": "\ufffd"})
        self.refused("/detokenize", {}, "tokens")
        self.refused("/detokenize", {"tokens": [260]}, "tokens")
        self.refused("/detokenize", {"tokens": "A"}, "tokens")
        self.refused("/detokenize", {"tokens": [[69], 70]}, "tokens")

    def test_info(self):
        self.assertEqual(self.server.request("GET", "/health")[:2], (200, {"status": "ready"}))
        self.assertEqual(self.server.request("GET", "/health_generate")[:2], (200, {"status": "ready"}))
        info = self.server.request("GET", "/get_model_info")[1]
        self.assertEqual((info["architectures"], info["model_type"]), ([info["architecture"]], "fake"))
        self.assertEqual((info["model_path"], info["is_generation"]), ("/models/fake", True))
        for path in ("/get_server_info", "/server_info"):
            self.assertEqual(self.server.request("GET", path)[1]["context_length"], 2048)

    def test_malformed_json(self):
        for raw in ["", "{", "[]", "null", '{"a":1,"a":2}', '{"prompt":"\\ud800"}', "{'a':1}",
                    '{"seed": 1e400, "prompt": "a"}', '{"max_tokens": 99999999999999999999, "prompt": "a"}', "[" * 100000, '{"prompt": "\xff"}'.encode("latin-1")]:
            for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
                with self.subTest(raw=raw[:40], path=path):
                    code, answer, _ = self.server.request("POST", path, raw=raw)
                    self.assertEqual(code, 400)
                    self.assertIn("message", answer["error"])


class NoText(unittest.TestCase):
    """A model without a tokenizer serves ids; one without a template serves completions."""

    def test_no_tokenizer(self):
        with Server(model="/models/notok") as server:
            post = lambda path, body: server.request("POST", path, body)[:2]
            status, answer = post("/v1/completions", {"prompt": [70, 71], "return_token_ids": True, "logprobs": 1, "echo": True})
            self.assertEqual((status, answer["choices"][0]["token_ids"]), (200, [70, 71, 1]))
            self.assertEqual(post("/v1/chat/completions", {"input_ids": [70]})[0], 200)
            self.assertEqual(server.request("GET", "/health_generate")[0], 200)
            for path, body in [("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": USER}), ("/tokenize", {"prompt": "a"}),
                               ("/detokenize", {"tokens": [1]})]:
                status, answer = post(path, body)
                self.assertEqual(status, 400)
                self.assertIn("no tokenizer", answer["error"]["message"])

    def test_no_template(self):
        with Server("--chat-template", "none") as server:
            status, answer, _ = server.request("POST", "/v1/chat/completions", {"messages": USER})
            self.assertEqual((status, answer["error"]["param"]), (400, "messages"))
            self.assertIn("no chat template", answer["error"]["message"])
            self.assertEqual(server.request("POST", "/v1/completions", {"prompt": "a"})[0], 200)

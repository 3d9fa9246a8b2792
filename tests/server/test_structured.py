"""Structured output as clients ask for it, on the demo model, which is a storyteller and would never write JSON by itself."""
import concurrent.futures
import json
import unittest

import jsonschema
import openai
from server_process import Gate, OpenaiTest, Server, demo_server

ASK = [{"role": "user", "content": "Tell me a story about a dragon."}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 120},
                   "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
                   "home": {"$ref": "#/$defs/home"}},
    "required": ["name", "age", "colours", "home"], "additionalProperties": False,
    "$defs": {"home": {"type": "object", "properties": {"kind": {"const": "cave"}, "dry": {"type": "boolean"}}, "required": ["kind", "dry"],
                       "additionalProperties": False}},
}
ARITHMETIC = 'root ::= term (("+" | "-") term){1,3}\nterm ::= [0-9]{1,2} | "(" term "*" term ")"\n'


class Structured(OpenaiTest):
    start = staticmethod(lambda: demo_server("--served-model-name", "tale"))

    def chat(self, **more):
        return self.client.chat.completions.create(model="tale", messages=ASK, **{"max_tokens": 200, "seed": 5, **more})

    def text(self, extra=None, **more):
        choice = self.chat(extra_body=extra, **more).choices[0]
        self.assertEqual(choice.finish_reason, "stop", choice.message.content)
        return choice.message.content

    def refused(self, param, extra):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(extra_body=extra)
        self.assertEqual(caught.exception.param, param)
        return caught.exception.message

    def test_json_schema(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
        for seed in range(5):
            value = json.loads(self.text(response_format=form, seed=seed))
            jsonschema.validate(value, PERSON)
            self.assertEqual(list(value), list(PERSON["properties"]))  # in the schema's order
        chunks = list(self.chat(response_format=form, stream=True))
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        self.assertEqual(streamed, self.text(response_format=form))

    def test_json_object(self):
        choice = self.chat(response_format={"type": "json_object"}, max_tokens=40).choices[0]
        if choice.finish_reason == "stop":
            self.assertIsInstance(json.loads(choice.message.content), dict)
        self.assertEqual(choice.message.content[0], "{")

    def test_every_name(self):
        for extra in ({"guided_json": PERSON}, {"guided_json": json.dumps(PERSON)}, {"json_schema": json.dumps(PERSON)},
                      {"structured_outputs": {"json": PERSON}}):
            with self.subTest(extra=list(extra)):
                jsonschema.validate(json.loads(self.text(extra)), PERSON)
        for extra in ({"guided_regex": "[a-z]{3}-[0-9]{2}"}, {"regex": "[a-z]{3}-[0-9]{2}"}, {"structured_outputs": {"regex": "[a-z]{3}-[0-9]{2}"}}):
            with self.subTest(extra=extra):
                self.assertRegex(self.text(extra), r"^[a-z]{3}-[0-9]{2}$")
        for extra in ({"guided_choice": ["yes", "no"]}, {"structured_outputs": {"choice": ["yes", "no"]}}):
            with self.subTest(extra=extra):
                self.assertIn(self.text(extra), ("yes", "no"))
        for extra in ({"guided_grammar": ARITHMETIC}, {"ebnf": ARITHMETIC}, {"grammar": ARITHMETIC}, {"structured_outputs": {"grammar": ARITHMETIC}}):
            with self.subTest(extra=list(extra)):
                self.assertRegex(self.text(extra), r"^[0-9()*+-]+$")

    def test_completions_choices_and_logprobs(self):
        answer = self.client.completions.create(model="tale", prompt="The answer is", n=3, max_tokens=60, logprobs=2, seed=1,
                                                extra_body={"regex": "[0-9]{4}\\."})
        for choice in answer.choices:
            self.assertRegex(choice.text, r"^[0-9]{4}\.$")
            self.assertEqual("".join(choice.logprobs.tokens), choice.text)

    def test_same_in_company(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
        alone = self.text(response_format=form, temperature=1, seed=11)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            others = [pool.submit(self.chat, extra_body={"regex": f"[a-z ]{{{i},60}}"}, seed=i) for i in range(6)]
            crowd = pool.submit(self.text, response_format=form, temperature=1, seed=11)
            self.assertEqual(crowd.result(), alone)
            for o in others:
                self.assertRegex(o.result().choices[0].message.content, r"^[a-z ]*$")

    def test_forced_call(self):
        tools = [{"type": "function", "function": {"name": "meet", "parameters": PERSON}}, {"type": "function", "function": {"name": "wait"}}]
        for choice, names in (("required", {"meet", "wait"}), ({"type": "function", "function": {"name": "meet"}}, {"meet"})):
            for seed in range(4):
                answer = self.chat(tools=tools, tool_choice=choice, seed=seed, max_tokens=300).choices[0]
                if answer.finish_reason == "length": continue  # {} of any length is a call of `wait`
                self.assertEqual((answer.finish_reason, answer.message.content), ("tool_calls", None))
                calls = answer.message.tool_calls
                self.assertTrue(len(calls) == 1 or (choice == "required" and len(calls) <= 16), calls)
                for call in calls:
                    self.assertIn(call.function.name, names)
                    if call.function.name == "meet":
                        jsonschema.validate(json.loads(call.function.arguments), PERSON)

    def test_what_is_not_followed(self):
        """Formats and keywords that nobody knows are annotations, and the answer says so; the rest of the schema holds."""
        schema = {"type": "object", "properties": {"a": {"type": "string", "format": "semver", "maxLength": 5}, "n": {"type": "integer", "enumNames": ["x"], "multipleOf": 7, "maximum": 70,
                  "minimum": 0}}, "required": ["a", "n"], "additionalProperties": False, "strict": True}
        for fields in ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
                       {"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]}):
            answer = self.chat(**fields)
            self.assertEqual(answer.warnings[0], "The schema is not followed in all: these have no effect: 'format': 'semver', 'enumNames'.")
            message = answer.choices[0].message
            value = json.loads(message.content or message.tool_calls[0].function.arguments)
            self.assertEqual((value["n"] % 7, list(value)), (0, ["a", "n"]))

    def test_references_in_tools(self):
        """Each tool's references are within its own schema, also by $anchor and $id."""
        def tool(name, constant, ref, **more):
            return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"v": {"$ref": ref}}, "required": ["v"],
                    "additionalProperties": False, "$defs": {"v": {"const": constant, **more}}}}}
        tools = [tool("one", 1, "#/$defs/v"), tool("two", 2, "#/$defs/v"), tool("three", 3, "#here", **{"$anchor": "here"})]
        for name, value in (("one", 1), ("two", 2), ("three", 3)):
            call = self.chat(tools=tools, tool_choice={"type": "function", "function": {"name": name}}).choices[0].message.tool_calls[0]
            self.assertEqual(json.loads(call.function.arguments), {"v": value})

    def test_refused(self):
        self.assertIn("both given", self.refused("regex", {"guided_json": PERSON, "regex": "a"}) + self.refused("guided_json", {"response_format": {"type": "json_object"}, "guided_json": PERSON}))
        self.assertIn("'$dynamicRef'", self.refused("guided_json", {"guided_json": {"$dynamicRef": "#x"}}))
        # A lookahead: the pattern is named, so that it is found in a large schema.
        strong = {"type": "object", "properties": {"password": {"type": "string", "pattern": "^.(?=.*[A-Z]).{8,}$"}}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": strong}}
        self.assertIn("'pattern': '^.(?=.*[A-Z]).{8,}$'", self.refused("response_format", {"response_format": form}))
        self.refused("response_format.json_schema.schema", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}})
        self.refused("response_format", {"response_format": {"type": "structural_tag"}})
        self.refused("guided_choice", {"guided_choice": [1]})
        self.refused("structured_outputs.whitespace_pattern", {"structured_outputs": {"json": PERSON, "whitespace_pattern": " "}})
        self.assertIn("byte", self.refused("regex", {"regex": "a("}))
        self.refused("ebnf", {"ebnf": "root ::= nothing"})
        self.refused("json_schema", {"json_schema": "{"})
        self.refused("grammar", {"grammar": 7})
        self.text({"regex": "ok", "guided_json": None, "guided_json_object": False})  # not given
        # A form that is empty is a mistake of the client, who would read free text as an answer of the form.
        for field, empty in {"grammar": "", "ebnf": "", "regex": "", "guided_choice": [], "structured_outputs": {}}.items():
            self.assertIn(f"'{field}'" if field != "guided_choice" else "at least one", self.refused(field, {field: empty}))

    def test_formats_beside_others(self):
        """`schema` beside json_object is followed, and a forced call has its tool's schema whatever the format of texts is."""
        self.assertEqual(json.loads(self.text(response_format={"type": "json_object", "schema": {"const": {"a": [1]}}})), {"a": [1]})
        tool = {"name": "f", "parameters": {"type": "object", "properties": {"n": {"const": 5}}, "required": ["n"], "additionalProperties": False}}
        text = {"format": {"type": "json_schema", "name": "x", "schema": {"const": 1}}}
        answer = self.client.responses.create(model="tale", input="Tell me.", tools=[{"type": "function", **tool}], text=text,
                                              tool_choice={"type": "function", "name": "f"}, max_output_tokens=100)
        self.assertEqual([json.loads(i.arguments) for i in answer.output if i.type == "function_call"], [{"n": 5}])
        answer = self.chat(tools=[{"type": "function", "function": tool}], tool_choice="required", response_format={"type": "json_object"}).choices[0]
        self.assertEqual(json.loads(answer.message.tool_calls[0].function.arguments), {"n": 5})

    def test_hostile_sources_do_not_stall(self):
        deep = '{"items":' * 1000 + "{}" + "}" * 1000
        hostile = [{"regex": "(a|b)*a(a|b){30}"}, {"regex": "((a{1,1000}){1,1000}){1,1000}"}, {"regex": "a{1,1000000}"}, {"json_schema": deep},
                   {"guided_json": {"$ref": "#"}}, {"guided_json": {"enum": ["x" * 10] * 100000}}, {"ebnf": "root ::= root"}, {"regex": "(" * 5000}]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            bad = [pool.submit(self.refused, list(h)[0], h) for h in hostile]
            while not all(b.done() for b in bad):
                self.assertEqual(self.server.request("GET", "/health")[0], 200)
            for b in bad:
                b.result()


class Compiling(unittest.TestCase):
    def test_grammars_that_compile_hold_up_nobody(self):
        """While grammars are made on the text threads, for as long as the gate is shut, other connections are served, those of the same HTTP threads too."""
        gate = Gate()
        with Server(env=gate.env) as server, concurrent.futures.ThreadPoolExecutor(14) as pool:
            others = [server.connection() for _ in range(16)]  # more than there are HTTP threads
            streamed = server.connection()
            streamed.request("POST", "/v1/completions", json.dumps({"prompt": "!slow", "max_tokens": 4000, "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
            stream = streamed.getresponse()
            jobs = [pool.submit(server.request, "POST", "/v1/completions", {"prompt": "x", "regex": f"(a|b)*x{i}"}) for i in range(6)]
            jobs += [pool.submit(server.request, "POST", "/v1/completions", {"prompt": "x", "regex": f"(a|b)*a(a|b){{30}}x{i}"}) for i in range(6)]  # compiling fails
            gate.wait_reached()
            for _ in range(5):
                for connection in others:
                    connection.request("GET", "/health")
                    answer = connection.getresponse()
                    answer.read()
                    self.assertEqual(answer.status, 200)
                self.assertTrue(stream.readline())
            self.assertFalse(any(job.done() and job.result()[0] == 200 for job in jobs))
            gate.open()
            self.assertEqual([job.result()[0] for job in jobs], [200] * 6 + [400] * 6)
            for connection in [streamed, *others]:
                connection.close()

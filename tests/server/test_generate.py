"""SGLang's /generate over the fake engine, which repeats its prompt, and on the demo model."""
import concurrent.futures
import json

from server_process import Gate, Server, ServerTest, demo_server, stream_events

BASE = 4  # the fake's id of byte 0
EOS = 1


def ids(text):
    return [BASE + b for b in text.encode()]


class Generate(ServerTest):
    def generate(self, **body):
        status, answer, _ = self.server.request("POST", "/generate", body)
        self.assertEqual(status, 200, answer)
        return answer

    def events(self, **body):
        """The events of a stream, in order."""
        status, answer, headers = self.server.request("POST", "/generate", {**body, "stream": True})
        self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream; charset=utf-8"), answer)
        return stream_events(answer)

    def error(self, status=400, **body):
        got, answer, _ = self.server.request("POST", "/generate", body)
        self.assertEqual(got, status, answer)
        return answer["error"]["message"]


def without_time(answer):
    if isinstance(answer, list):
        return [without_time(a) for a in answer]
    meta = {k: v for k, v in answer["meta_info"].items() if k not in ("e2e_latency", "id")}
    return {**answer, "meta_info": meta}


class Fake(Generate):
    start = staticmethod(lambda: Server("--served-model-name", "fake", "--context-length", "2048"))

    def test_one(self):
        a = self.generate(text="Hello")
        self.assertEqual((a["text"], a["output_ids"]), ("Hello", ids("Hello") + [EOS]))
        meta = a["meta_info"]
        self.assertEqual((meta["finish_reason"], meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]),
                         ({"type": "stop", "matched": EOS}, 6, 6, 0))
        self.assertRegex(meta["id"], r"^[0-9a-f]{32}$")
        self.assertTrue(0 < meta["e2e_latency"] < 60)
        self.assertNotIn("output_token_logprobs", meta)
        b = self.generate(input_ids=[0] + ids("Hello"), rid="mine", sampling_params={}, log_metrics=True, lora_path=None, image_data=[])
        self.assertEqual((without_time(b), b["meta_info"]["id"]), (without_time(a), "mine"))

    def test_sampling_params(self):
        def ends(text="one two three", **params):
            a = self.generate(text=text, sampling_params=params)
            return a["text"], a["meta_info"]["finish_reason"]
        self.assertEqual(ends(max_new_tokens=5), ("one t", {"type": "length", "length": 5}))
        self.assertEqual(ends(text="a" * 300, ignore_eos=True)[1], {"type": "length", "length": 128})
        self.assertEqual(ends(stop="two"), ("one ", {"type": "stop", "matched": "two"}))
        self.assertEqual(ends(stop=["three", "two"], no_stop_trim=True), ("one two", {"type": "stop", "matched": "two"}))
        self.assertEqual(ends(stop_token_ids=ids("w"))[1], {"type": "stop", "matched": ids("w")[0]})
        self.assertEqual(ends(max_new_tokens=0), ("", {"type": "length", "length": 0}))
        self.assertEqual(ends(logit_bias={str(ids("x")[0]): 100}, max_new_tokens=3)[0], "xxx")
        self.assertEqual(ends(temperature=1, sampling_seed=7), ends(temperature=1, sampling_seed=7))
        self.assertNotEqual(ends("a" * 60, temperature=1, sampling_seed=7), ends("a" * 60, temperature=1, sampling_seed=8))
        self.assertEqual(ends(text="x<|eos|>", skip_special_tokens=False, spaces_between_special_tokens=False, min_new_tokens=1, n=1, top_k=-1, top_p=1.0, min_p=0.0,
                              frequency_penalty=0, presence_penalty=0, repetition_penalty=1.0, structural_tag=None)[0], "x")

    def test_batch(self):
        a = self.generate(text=["one", "two", "three"])
        self.assertEqual([x["text"] for x in a], ["one", "two", "three"])
        self.assertEqual([x["meta_info"]["prompt_tokens"] for x in a], [4, 4, 6])
        self.assertEqual([x["text"] for x in self.generate(input_ids=[ids("ab"), ids("c")])], ["ab", "c"])
        self.assertEqual([x["text"] for x in self.generate(text=["one"])], ["one"])
        a = self.generate(text=["one", "two"], sampling_params={"n": 2, "max_new_tokens": 2})
        self.assertEqual([x["text"] for x in a], ["on", "on", "tw", "tw"])
        self.assertEqual([x["text"] for x in self.generate(text="one", sampling_params={"n": 2})], ["one"] * 2)

    def test_parameters_for_each(self):
        params = [{"max_new_tokens": 2}, {"stop": "r"}, {"temperature": 1, "sampling_seed": 3, "max_new_tokens": 60}]
        texts = ["one", "three", "a" * 60]
        a = self.generate(text=texts, sampling_params=params)
        self.assertEqual([x["text"] for x in a[:2]], ["on", "th"])
        self.assertEqual([x["meta_info"]["finish_reason"] for x in a[:2]], [{"type": "length", "length": 2}, {"type": "stop", "matched": "r"}])
        self.assertEqual(without_time(a), [without_time(self.generate(text=t, sampling_params=p)) for t, p in zip(texts, params)])
        self.assertEqual(without_time(self.generate(input_ids=[[0] + ids(t) for t in texts], sampling_params=params)), without_time(a))
        self.assertIn("2 items for 3 prompts", self.error(text=texts, sampling_params=params[:2]))
        self.assertIn("'max_new_tokens'", self.error(text=texts, sampling_params=[{}, {}, {"max_new_tokens": -1}]))
        self.assertIn("maximum context length of 2048 tokens", self.error(text=texts, sampling_params=[{}, {}, {"max_new_tokens": 4000}]))
        self.assertIn("same for all", self.error(text=texts, sampling_params=[{}, {}, {"n": 2}]))

    def test_stream(self):
        """Each event has all of the text so far; the last one is the whole answer."""
        for body in ({"text": "Hello \u2603"}, {"text": "Hello", "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0},
                     {"text": "one two", "sampling_params": {"stop": "two"}}, {"text": "Hello", "sampling_params": {"max_new_tokens": 3}}):
            whole, events = self.generate(**body), self.events(**body)
            self.assertEqual(without_time(events[-1]), without_time(whole))
            for a, b in zip(events, events[1:]):
                self.assertTrue(b["text"].startswith(a["text"]))
                self.assertEqual(b["output_ids"][:len(a["output_ids"])], a["output_ids"])
                self.assertGreater(b["meta_info"]["completion_tokens"], a["meta_info"]["completion_tokens"])
                self.assertEqual((a["meta_info"]["finish_reason"], "e2e_latency" in a["meta_info"]), (None, False))
                self.assertEqual(a["meta_info"]["prompt_tokens"], whole["meta_info"]["prompt_tokens"])
            self.assertNotIn("index", events[0])

    def test_events_come_before_the_end(self):
        gate = Gate()
        with Server(env=gate.env) as server:
            connection = server.connection()
            connection.request("POST", "/generate", json.dumps({"text": "!halfway", "stream": True}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            first = b""
            while b"!ha" not in first:  # all that comes while the gate is shut; how many events it takes is a matter of timing
                first += response.readline()
            gate.open()
            events = stream_events((first + response.read()).decode())
            connection.close()
        self.assertIn("!ha", [e["text"] for e in events[:-1]])
        self.assertEqual((events[-1]["text"], events[-1]["meta_info"]["completion_tokens"]), ("!halfway", 9))

    def test_stream_of_a_batch(self):
        body = {"text": ["one", "three"], "sampling_params": {"n": 2}}
        events = self.events(**body)
        last = {e["index"]: {k: v for k, v in e.items() if k != "index"} for e in events}
        self.assertEqual(without_time([last[i] for i in range(4)]), without_time(self.generate(**body)))
        self.assertEqual(len({e["meta_info"]["id"] for e in events}), 1)

    def test_many_long_choices(self):
        """More than is written at once."""
        texts = [f"!flood{i:03d}" for i in range(150)]
        events = self.events(text=texts, sampling_params={"max_new_tokens": 1500, "ignore_eos": True})
        last = {e["index"]: e for e in events}
        self.assertEqual(sorted(last), list(range(150)))
        for i, text in enumerate(texts):
            self.assertEqual((last[i]["text"], last[i]["meta_info"]["finish_reason"]), ((text * 200)[:1500], {"type": "length", "length": 1500}))
        self.assertEqual([e["index"] for e in events if e["meta_info"]["finish_reason"]].count(7), 1)

    def test_what_gathers_is_one_event(self):
        events = self.events(text="!flood", sampling_params={"max_new_tokens": 1600, "ignore_eos": True})
        self.assertLess(len(events), 1600)
        self.assertEqual(len(events[-1]["output_ids"]), 1600)

    def test_logprobs(self):
        meta = self.generate(text="Hi", return_logprob=True)["meta_info"]
        self.assertEqual(meta["output_token_logprobs"], [[-0.5, i, None] for i in ids("Hi") + [EOS]])
        self.assertEqual(meta["input_token_logprobs"], [])
        self.assertNotIn("output_top_logprobs", meta)
        meta = self.generate(text="Hi", return_logprob=True, logprob_start_len=0, top_logprobs_num=2, return_text_in_logprobs=True)["meta_info"]
        self.assertEqual(meta["input_token_logprobs"], [[None, 0, "<|bos|>"], [-1, ids("H")[0], "H"], [-1, ids("i")[0], "i"]])
        self.assertEqual(meta["input_top_logprobs"][0], None)
        self.assertEqual(meta["input_top_logprobs"][1], [[-0.5, ids("H")[0], "H"], [-1.5, ids("I")[0], "I"]])
        self.assertEqual(meta["output_token_logprobs"], [[-0.5, ids("H")[0], "H"], [-0.5, ids("i")[0], "i"], [-0.5, EOS, "<|eos|>"]])
        self.assertEqual([len(t) for t in meta["output_top_logprobs"]], [2, 2, 2])
        for start, n in ((1, 2), (2, 1), (3, 0), (100, 0)):
            meta = self.generate(text="Hi", return_logprob=True, logprob_start_len=start)["meta_info"]
            self.assertEqual(len(meta["input_token_logprobs"]), n)
        a = self.generate(text=["Hi", "Ho"], return_logprob=[True, True], top_logprobs_num=[1, 1], logprob_start_len=[0, 0])
        self.assertEqual([len(x["meta_info"]["input_top_logprobs"]) for x in a], [3, 3])
        self.assertIn("'return_logprob'", self.error(text=["Hi", "Ho"], return_logprob=[True, False]))

    def test_misuse(self):
        for body, named in (({}, "'text'"), ({"text": None, "input_ids": None}, "'text'"), ({"text": "a", "input_ids": [5]}, "not both"), ({"text": 1}, "'text'"), ({"text": []}, "'text'"),
                            ({"text": ["a", 1]}, "'text'"), ({"text": [["a"]]}, "'text'"), ({"input_ids": []}, "'input_ids'"), ({"input_ids": "a"}, "'input_ids'"),
                            ({"input_ids": [5, "a"]}, "'input_ids'"), ({"input_ids": [9999]}, "'input_ids'"), ({"input_ids": [[5], 5]}, "'input_ids'"), ({"input_ids": [[5], [-1]]}, "'input_ids'"),
                            ({"input_ids": [[]]}, "empty"), ({"sampling_params": 1}, "'sampling_params'"), ({"sampling_params": [{}]}, "'sampling_params'"),
                            ({"text": ["a"], "sampling_params": [1]}, "'sampling_params'"), ({"sampling_params": {"max_tokens": 3}}, "'sampling_params.max_tokens'"),
                            ({"sampling_params": {"max_new_tokens": "3"}}, "'max_new_tokens'"), ({"sampling_params": {"max_new_tokens": -1}}, "'max_new_tokens'"),
                            ({"sampling_params": {"min_new_tokens": 3, "max_new_tokens": 2}}, "'min_new_tokens'"), ({"sampling_params": {"sampling_seed": "x"}}, "'sampling_seed'"),
                            ({"sampling_params": {"temperature": -1}}, "'temperature'"), ({"sampling_params": {"top_p": 2}}, "'top_p'"), ({"sampling_params": {"n": 0}}, "'n'"),
                            ({"sampling_params": {"stop": 1}}, "'stop'"), ({"sampling_params": {"stop_token_ids": [-1]}}, "'stop_token_ids'"),
                            ({"sampling_params": {"regex": "a", "ebnf": "root ::= \"a\""}}, "'ebnf'"), ({"sampling_params": {"json_schema": 1}}, "'json_schema'"),
                            ({"sampling_params": {"structural_tag": "x"}}, "'sampling_params.structural_tag'"), ({"sampling_params": {"stop_regex": "x"}}, "'sampling_params.stop_regex'"),
                            ({"sampling_params": {"custom_params": {"a": 1}}}, "'sampling_params.custom_params'"), ({"sampling_params": {"no_such": 1}}, "'sampling_params.no_such'"),
                            ({"return_logprob": 1}, "'return_logprob'"), ({"top_logprobs_num": 21}, "'top_logprobs_num'"), ({"top_logprobs_num": "1"}, "'top_logprobs_num'"),
                            ({"logprob_start_len": -2}, "'logprob_start_len'"), ({"return_text_in_logprobs": "x"}, "'return_text_in_logprobs'"), ({"token_ids_logprob": [1]}, "'token_ids_logprob'"),
                            ({"stream": 1}, "'stream'"), ({"rid": 1}, "'rid'"), ({"rid": ["a", "b"]}, "'rid'"), ({"image_data": "x"}, "'image_data'"), ({"lora_path": "x"}, "'lora_path'"),
                            ({"return_hidden_states": True}, "'return_hidden_states'"), ({"input_embeds": [[0.5]]}, "'input_embeds'"), ({"prompt": "x"}, "'prompt'"), ({"max_new_tokens": 1}, "'max_new_tokens'")):
            if not {"text", "input_ids"} & set(body) and body:
                body["text"] = "x"
            with self.subTest(**body):
                self.assertIn(named, self.error(**body))
        for field, prompt in (("text", "a" * 3000), ("input_ids", [5] * 3001)):
            self.assertIn(f"The input (3001 tokens in '{field}') is longer than the model's context length (2048 tokens)", self.error(**{field: prompt}))
        self.assertIn("does not exist", self.error(404, text="a", model="other"))
        self.assertEqual(self.server.request("GET", "/generate")[0], 405)
        self.assertEqual(self.server.request("POST", "/generate", raw="{")[0], 400)

    def test_errors(self):
        self.assertIn("the fake device broke", self.error(500, text="!error"))
        self.assertIn("queue", self.error(503, text="!busy"))
        _, answer, _ = self.server.request("POST", "/generate", {"text": "!error", "stream": True})
        last = answer.split("\n\n")
        self.assertIn("the fake device broke", json.loads(last[-3][6:])["error"]["message"])
        self.assertEqual(last[-2], "data: [DONE]")

    def test_abort(self):
        for stream in (False, True):
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                body = {"text": ["!hang"] * 2, "rid": "mine"}
                answer = pool.submit(self.events if stream else self.generate, **body)
                self.server.wait_metric("sglang:num_running_reqs", 2)
                self.assertEqual(self.server.request("POST", "/abort_request", {"rid": "mine"})[1], {"aborted": 1})
                self.assertEqual({a["meta_info"]["finish_reason"]["type"] for a in answer.result()[-2:]}, {"abort"})


class Demo(Generate):
    start = staticmethod(lambda: demo_server("--served-model-name", "tale"))

    def complete(self, **body):
        status, answer, _ = self.server.request("POST", "/v1/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["choices"]

    def test_logprobs_are_those_of_completions(self):
        texts = ["Once upon a time there was a", "The fox said to the crow"]
        whole = self.complete(prompt=texts, max_tokens=12, temperature=0, logprobs=3, echo=True, return_token_ids=True)
        mine = self.generate(text=texts, sampling_params={"max_new_tokens": 12, "temperature": 0}, return_logprob=True, top_logprobs_num=3, logprob_start_len=0)
        for a, b, text in zip(mine, whole, texts):
            meta, told = a["meta_info"], b["logprobs"]
            self.assertEqual((text + a["text"], a["output_ids"]), (b["text"], b["token_ids"]))
            positions = meta["input_token_logprobs"] + meta["output_token_logprobs"]
            self.assertEqual([p[0] for p in positions], told["token_logprobs"])
            self.assertEqual(positions[0][0], None)
            tops = meta["input_top_logprobs"] + meta["output_top_logprobs"]
            for top, want in zip(tops[1:], told["top_logprobs"][1:]):
                self.assertTrue(set(t[0] for t in top) <= set(want.values()))
            later = self.generate(text=text, sampling_params={"max_new_tokens": 1, "temperature": 0}, return_logprob=True, logprob_start_len=3)["meta_info"]
            self.assertEqual(later["input_token_logprobs"], meta["input_token_logprobs"][3:])
        events = self.events(text=texts[0], sampling_params={"max_new_tokens": 12, "temperature": 0}, return_logprob=True, top_logprobs_num=3, logprob_start_len=0)
        self.assertEqual(without_time(events[-1])["meta_info"]["output_token_logprobs"], mine[0]["meta_info"]["output_token_logprobs"])

    def test_forms(self):
        """One for each prompt."""
        schema = json.dumps({"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False})
        a = self.generate(text=["One", "Two", "Three"], sampling_params=[{"regex": "[0-9]{3}"}, {"json_schema": schema, "max_new_tokens": 40}, {"ebnf": 'root ::= "yes" | "no"'}])
        self.assertRegex(a[0]["text"], r"^[0-9]{3}$")
        self.assertEqual(json.loads(a[1]["text"]), {"a": "x"})
        self.assertIn(a[2]["text"], ("yes", "no"))
        self.assertIn("'regex' cannot be followed", self.error(text=["One", "Two"], sampling_params=[{}, {"regex": "("}]))

    def test_cached_tokens(self):
        text = "Once upon a time there was a dragon. " * 30
        first, second = (self.generate(text=text, sampling_params={"max_new_tokens": 2})["meta_info"] for _ in range(2))
        self.assertEqual((first["cached_tokens"], second["cached_tokens"] > 0), (0, True))

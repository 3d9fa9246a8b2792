"""What the soak asks for: random valid requests, broken ones with the answer they must get, and the form in which answers are compared."""
import json

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
MESSAGES, GENERATE = "/v1/messages", "/generate"
STOPS = [" the", ".", ", and", "\n", "ing", "e", "never in a tale", '"', "you", "\u00e9"]
VOCAB = 4096  # of the demo model
FORMS = [{"regex": "[A-Z][a-z ,]{5,120}[.!]"}, {"response_format": {"type": "json_object"}}, {"guided_choice": ["the fox", "the crow", "then"]},
         {"ebnf": 'root ::= item (", " item){1,9}\nitem ::= [a-z]+ | "(" root ")"'},
         {"guided_json": {"type": "object", "properties": {"who": {"type": "string", "maxLength": 30}, "n": {"type": "integer", "maximum": 99},
                                                          "more": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
                          "required": ["who"], "additionalProperties": False}}]
FIRST_TEXT_ID = 4


class Catalogue:
    """n distinct requests. Some prompts share a beginning, as the turns of a chat do; some are ids that are no text at all."""

    def __init__(self, draw, n, corpus, longest, model):
        self.draw, self.corpus, self.longest, self.model = draw, corpus, longest, model
        self.openings = [self.passage(draw.randrange(200, 1500)) for _ in range(6)]
        self.id_openings = [self.ids(draw.choice([100, 128, 256, 300])) for _ in range(3)]
        self.requests = [(RESPONSES, self.response()), *(self.request() for _ in range(n - 1))]

    def passage(self, chars):
        at = self.draw.randrange(len(self.corpus) - chars)
        return self.corpus[at:at + chars]

    def ids(self, n):
        return [self.draw.randrange(FIRST_TEXT_ID, VOCAB) for _ in range(n)]

    def chars(self):
        return min(int(self.draw.expovariate(1 / 400)) + 1, 3000)

    def prompt(self):
        kind = self.draw.random()
        if kind < 0.3:
            return self.passage(self.chars())
        if kind < 0.6:
            return self.draw.choice(self.openings) + self.passage(self.draw.randrange(1, 200))
        if kind < 0.8:
            return self.ids(min(self.chars() // 3 + 1, 900))
        if kind < 0.9:
            return self.draw.choice(self.id_openings) + self.ids(self.draw.randrange(1, 40))
        return [self.passage(self.draw.randrange(1, 200)) for _ in range(self.draw.randrange(2, 4))]

    def messages(self):
        talk = [{"role": "system", "content": self.draw.choice(self.openings)}] if self.draw.random() < 0.5 else []
        for _ in range(self.draw.randrange(3)):
            talk += [{"role": "user", "content": self.passage(60)}, {"role": "assistant", "content": self.passage(self.draw.randrange(1, 200))}]
        return talk + [{"role": "user", "content": self.passage(self.draw.randrange(1, 300))}]

    def sampling(self):
        draw = self.draw
        if draw.random() < 0.4:
            return {"temperature": 0}
        fields = {"temperature": draw.choice([0.3, 0.7, 1, 1.7]), "seed": draw.randrange(1 << 40)}
        for name, values in {"top_k": [1, 5, 50], "top_p": [0.5, 0.95], "min_p": [0.02, 0.2], "n": [2, 3, 4]}.items():
            if draw.random() < 0.25:
                fields[name] = draw.choice(values)
        return fields

    def message(self):
        """A body of /v1/messages."""
        system, talk = None, self.messages()
        if talk[0]["role"] == "system":
            system, *talk = talk
        fields = {k: v for k, v in self.sampling().items() if k != "n"}
        body = {"model": self.model, "messages": talk, "max_tokens": self.draw.randrange(self.longest) + 1} | fields
        if system:
            body["system"] = [{"type": "text", "text": system["content"]}]
        if self.draw.random() < 0.3:
            body["stop_sequences"] = self.draw.sample(STOPS, self.draw.randrange(1, 5))
        if self.draw.random() < 0.3:
            body["ignore_eos"] = True
        return body

    def generation(self):
        """A body of /generate."""
        draw, prompt = self.draw, self.prompt()
        params = self.sampling() | {"max_new_tokens": draw.randrange(self.longest // 2) + 1, "ignore_eos": draw.random() < 0.3}
        if "seed" in params:
            params["sampling_seed"] = params.pop("seed")
        if draw.random() < 0.3:
            params["stop"] = draw.sample(STOPS, draw.randrange(1, 5))
        each = isinstance(prompt[0], str) and len(prompt) < 4 and not isinstance(prompt, str) and draw.random() < 0.5
        body = {"input_ids" if isinstance(prompt[0], int) else "text": prompt,
                "sampling_params": [params | {"max_new_tokens": draw.randrange(self.longest // 2) + 1} for _ in prompt] if each else params}
        if draw.random() < 0.4:
            body |= {"return_logprob": True, "top_logprobs_num": draw.randrange(4), "logprob_start_len": draw.choice([-1, 0, 5])}
        return body

    def response(self):
        """A body of /v1/responses: what is kept of its answers stays within bounds too."""
        body = {"input": self.messages(), "store": self.draw.random() < 0.7, "max_output_tokens": min(int(self.draw.expovariate(1 / 24)) + 1, self.longest)}
        body |= {k: v for k, v in self.sampling().items() if k != "n"}
        if self.draw.random() < 0.3:
            body |= {"include": ["message.output_text.logprobs"], "top_logprobs": self.draw.randrange(6)}
        if self.draw.random() < 0.3:
            body["stop"] = self.draw.sample(STOPS, self.draw.randrange(1, 5))
        return body

    def request(self):
        """(path, body without "stream")"""
        draw, kind = self.draw, self.draw.random()
        if kind < 0.1:
            return MESSAGES, self.message()
        if kind < 0.2:
            return RESPONSES, self.response()
        if kind < 0.35:
            return GENERATE, self.generation()
        chat = kind < 0.55
        body = {"messages": self.messages()} if chat else {"prompt": self.prompt()}
        body |= self.sampling() | {"max_tokens": min(int(draw.expovariate(1 / 24)) + 1, self.longest), "return_token_ids": True}
        if draw.random() < 0.2:  # grows over several pages, so that some must wait again for room
            body |= {"max_tokens": draw.randrange(self.longest // 2, self.longest) + 1, "ignore_eos": True}
        if draw.random() < 0.3:
            body |= {"logprobs": True, "top_logprobs": draw.randrange(6)} if chat else {"logprobs": draw.randrange(6), "echo": draw.random() < 0.4}
        if draw.random() < 0.3:
            body["stop"] = draw.sample(STOPS, draw.randrange(1, 5))
        if draw.random() < 0.1:
            body["stop_token_ids"] = self.ids(50)
        if draw.random() < 0.3:
            body["ignore_eos"] = True
        if draw.random() < 0.15:
            return (CHAT if chat else COMPLETIONS), body | draw.choice(FORMS)
        if draw.random() < 0.1:
            body |= {"min_tokens": draw.randrange(1, body["max_tokens"] + 1), "no_stop_trim": True}
        for name, values in {"frequency_penalty": [-0.5, 0.7], "presence_penalty": [0.5], "repetition_penalty": [1.1, 1.3],
                             "logit_bias": [{str(i): draw.randrange(-50, 5) for i in self.ids(8)}]}.items():
            if draw.random() < 0.08:
                body[name] = draw.choice(values)
        return (CHAT if chat else COMPLETIONS), body


def broken_requests():
    """[(method, path, raw body, status, name of the field or None)]"""
    user = [{"role": "user", "content": "Hello"}]
    rows = [(COMPLETIONS, {"prompt": "x", "temperature": -1}, "temperature"), (COMPLETIONS, {"prompt": "x", "top_p": 0}, "top_p"),
            (COMPLETIONS, {"prompt": [VOCAB]}, "prompt"), (COMPLETIONS, {"prompt": "word " * 4000}, "prompt"), (COMPLETIONS, {}, "prompt"),
            (COMPLETIONS, {"prompt": "x", "n": 129}, "n"), (COMPLETIONS, {"prompt": "x", "stop": [""]}, "stop"),
            (COMPLETIONS, {"prompt": "x", "logit_bias": {"x": 1}}, "logit_bias"), (COMPLETIONS, {"prompt": "x", "logprobs": 21}, "logprobs"),
            (COMPLETIONS, {"prompt": "x", "stream": "yes"}, "stream"), (COMPLETIONS, {"prompt": ["a", 1]}, "prompt"),
            (COMPLETIONS, {"prompt": "x", "best_of": 3}, "best_of"), (CHAT, {"messages": []}, "messages"), (CHAT, {"messages": user, "seed": "x"}, "seed"),
            (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"), (CHAT, {"messages": user, "max_tokens": 0}, "max_tokens"),
            (CHAT, {"messages": user, "top_logprobs": 3}, "top_logprobs"), (CHAT, {"messages": user, "regex": "(a"}, "regex"),
            (CHAT, {"messages": user, "response_format": {"type": "json"}}, "response_format"), (GENERATE, {}, "text"),
            (GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"), (GENERATE, {"input_ids": [VOCAB]}, "input_ids"),
            (MESSAGES, {"messages": user}, None), (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}], "model": "x", "max_tokens": 1}, None),
            (RESPONSES, {"input": [{"role": "robot"}]}, "input[0].role"),
            (RESPONSES, {"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"), (RESPONSES, {"input": "x", "tools": [1]}, "tools[0]")]
    table = [("POST", path, json.dumps(body).encode(), 400, field) for path, body, field in rows]
    table += [("POST", CHAT, b"{", 400, None), ("POST", COMPLETIONS, b"\xff\xfe", 400, None), ("POST", CHAT, b"[" * 5000, 400, None),
              ("POST", COMPLETIONS, b'{"prompt": "x", "model": "gpt-9"}', 404, "model"), ("GET", "/no/such/path", b"", 404, None),
              ("GET", CHAT, b"", 405, None), ("POST", "/detokenize", b'{"tokens": [-1]}', 400, "tokens")]
    return table


# ---- answers: {index: {"text", "ids", "finish", "stop", "logprobs"}} -----------------------------


def choice_of(answer, index):
    return answer.setdefault(index, {"text": "", "ids": [], "finish": None, "stop": None, "logprobs": []})


def add_choice(answer, choice, chat, streamed):
    c = choice_of(answer, choice["index"])
    c["text"] += (choice["delta" if streamed else "message"].get("content") or "") if chat else choice["text"]
    c["ids"] += choice.get("token_ids") or []
    logprobs = choice.get("logprobs")
    if logprobs and chat:
        c["logprobs"] += logprobs["content"]
    elif logprobs:
        c["logprobs"] += zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], logprobs["text_offset"])
    if choice["finish_reason"]:
        c["finish"], c["stop"] = choice["finish_reason"], choice["matched_stop"]


def generated(item):
    """What an object of /generate says, which is all of its choice so far."""
    meta, finish = item["meta_info"], item["meta_info"]["finish_reason"] or {}
    logprobs = [meta[k] for k in ("input_token_logprobs", "input_top_logprobs") if k in meta]
    return {"text": item["text"], "ids": item["output_ids"], "finish": finish.get("type"), "stop": finish.get("matched"),
            "logprobs": logprobs + list(zip(meta.get("output_token_logprobs", []), meta.get("output_top_logprobs", meta.get("output_token_logprobs", []))))}


def add_event(path, answer, event):
    """An event of a stream becomes part of the answer."""
    if path == GENERATE:
        answer[event.get("index", 0)] = generated(event)
    elif path == MESSAGES:
        c = answer.setdefault(0, {"text": "", "ids": [], "finish": None, "stop": None, "logprobs": []})
        delta = event.get("delta", {})
        c["text"] += delta.get("text", "")
        if event["type"] == "message_delta":
            c["finish"], c["stop"] = delta["stop_reason"], delta["stop_sequence"]
    elif path == RESPONSES:
        if event["type"] == "response.output_text.delta":
            c = choice_of(answer, 0)
            c["text"] += event["delta"]
            c["logprobs"] += event["logprobs"]
        elif event["type"] in ("response.completed", "response.incomplete"):
            choice_of(answer, 0)["finish"] = event["response"]["status"]
    else:
        for choice in event["choices"]:
            add_choice(answer, choice, path == CHAT, True)


def whole_answer(path, response):
    answer = {}
    if path == GENERATE:
        return {i: generated(item) for i, item in enumerate(response if isinstance(response, list) else [response])}
    if path == MESSAGES:
        text = "".join(block["text"] for block in response["content"])
        return {0: {"text": text, "ids": [], "finish": response["stop_reason"], "stop": response["stop_sequence"], "logprobs": []}}
    if path == RESPONSES:
        c = choice_of(answer, 0)
        parts = [p for item in response["output"] for p in item["content"]]
        c |= {"text": "".join(p["text"] for p in parts), "logprobs": sum((p["logprobs"] for p in parts), []), "finish": response["status"]}
        return answer
    for choice in response["choices"]:
        add_choice(answer, choice, path == CHAT, False)
    return answer


def is_beginning(part, answer):
    """Whether a stream that was left early had, so far, what the answer has."""
    return all(index in answer and answer[index]["text"].startswith(c["text"]) and
               all(answer[index][k][:len(c[k])] == c[k] for k in ("ids", "logprobs")) and
               (c["finish"] is None or c["finish"] == answer[index]["finish"]) for index, c in part.items())


def difference(want, got):
    """One line about the first thing that differs."""
    if want.keys() != got.keys():
        return f"choices {sorted(want)} became {sorted(got)}"
    for index in want:
        for key in want[index]:
            a, b = want[index][key], got[index][key]
            if a != b:
                at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b))) if hasattr(a, "__len__") and hasattr(b, "__len__") else 0
                show = lambda v: repr(v[at:at + 8] if hasattr(v, "__len__") else v)
                return f"choice {index}: {key} differs at {at}: {show(a)} became {show(b)}"
    return "no difference"

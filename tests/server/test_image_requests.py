"""Images in requests of all APIs, by the real clients and as raw HTTP, over a fake engine whose model takes images. They are decoded as they are for
real, each in a process of its own. An answer repeats the last turn, with "[n]" where an image of n tokens is: one for each 32 x 32 pixels."""
import base64
import io
import json
import os
import re
import socket
import struct
import tempfile
import unittest
import zlib

import anthropic
from PIL import Image
from server_process import PATIENCE, TANDEM, Gate, OpenaiTest, Server

SOURCE = os.environ.get("TD_SOURCE_DIR", "")
MODEL = "/models/fake-images"
IMAGE = 260  # the token
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def file_of(width=64, height=64, kind="PNG", mode="RGB"):
    out = io.BytesIO()
    Image.new(mode, (width, height), 7).save(out, kind)
    return out.getvalue()


def b64(data):
    return base64.b64encode(data).decode()


def url(data, media="image/png"):
    return f"data:{media};base64,{b64(data)}"


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, rows=b""):
    """A grey PNG that says to be of this size, whatever its rows are."""
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


SMALL, WIDE = file_of(), file_of(96, 64)  # 4 and 6 tokens

# Files that no image is made of, and what the sentence says.
BAD_FILES = {
    "truncated": (SMALL[:-20], "cannot be used"),
    "of a size that nobody has memory for": (png(100000, 100000), "cannot be used"),
    "with more pixels than are taken, in few bytes": (png(20000, 20000, bytes(1 << 20)), "cannot be used"),
    "a GIF": (file_of(kind="GIF", mode="L"), "GIF"),
    "an SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "cannot be used"),
    "empty": (b"", "cannot be used"),
}


class ImagesTest(OpenaiTest):
    start = staticmethod(lambda: Server("--served-model-name", "fake", "--context-length", "4096", "--tool-call-parser", "qwen25", model=MODEL))

    def post(self, path, body, status=200):
        code, answer, _ = self.server.request("POST", path, body)
        self.assertEqual(code, status, answer)
        return answer

    def refused(self, path, body, param, says):
        """With one sentence that names the field."""
        error = self.post(path, body, 400)["error"]
        self.assertEqual(set(error), {"message", "type", "param", "code"})
        self.assertEqual(error["param"], param, error)
        self.assertIn(says, error["message"])
        self.assertTrue(error["message"].endswith((".", "…")), error)


def part(data, **more):
    return {"type": "image_url", "image_url": {"url": data if isinstance(data, str) else url(data), **more}}


def text(s):
    return {"type": "text", "text": s}


def user(*parts):
    return {"role": "user", "content": list(parts)}


class Chat(ImagesTest):
    def chat(self, *messages, **more):
        return self.client.chat.completions.create(model="fake", messages=messages, **more)

    def answer(self, *messages, **more):
        return self.chat(*messages, **more).choices[0].message.content

    def refused_chat(self, messages, param, says, **more):
        self.refused("/v1/chat/completions", {"messages": messages, **more}, param, says)

    def test_places(self):
        """Each image where its part is; usage counts its tokens."""
        r = self.chat(user(text("a"), part(SMALL), text("b"), part(WIDE), text("c")))
        self.assertEqual(r.choices[0].message.content, "a[4]b[6]c")
        self.assertEqual(r.usage.prompt_tokens, 3 + 4 + 6 + 3)  # BOS, two turns' marks; the images; three letters

    def test_files(self):
        for data in (file_of(kind="JPEG"), file_of(kind="WEBP"), file_of(kind="PNG", mode="LA"), b64(SMALL), url(SMALL, "text/plain")):
            self.assertEqual(self.answer(user(part(data))), "[4]")
        self.assertEqual(self.answer({"role": "user", "content": [{"type": "image_url", "image_url": url(SMALL)}]}), "[4]")

    def test_text_alone_is_joined(self):
        """As before, also in a conversation that has images elsewhere."""
        self.assertEqual(self.answer(user(text("a"), text("b"))), "a\nb")
        self.assertEqual(self.answer(user(part(SMALL)), user(text("a"), text("b"))), "a\nb")

    def test_turns(self):
        """Images of earlier turns are in the prompt, and in the same order."""
        said = {"role": "assistant", "content": "x"}
        r = self.chat(user(part(SMALL)), said, user(part(WIDE), text("?")))
        self.assertEqual((r.choices[0].message.content, r.usage.prompt_tokens), ("[6]?", 1 + 1 + 4 + 1 + 1 + 1 + 1 + 6 + 1 + 1))

    def test_tool_result(self):
        call = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
        result = {"role": "tool", "tool_call_id": "c1", "content": [text("seen"), part(SMALL)]}
        self.assertEqual(self.answer(user(text("look")), call, result, tools=[TOOL]), "seen[4][tools:1]")

    def test_choices_and_streams(self):
        r = self.chat(user(part(SMALL), text("a")), n=3, temperature=0)
        self.assertEqual([c.message.content for c in r.choices], ["[4]a"] * 3)
        chunks = self.chat(user(part(SMALL), text("a")), stream=True, temperature=0)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), "[4]a")

    def test_detail(self):
        """It changes nothing, and a warning says so once."""
        for detail in (None, "auto"):
            body = {"messages": [user(part(SMALL, detail=detail))]}
            self.assertNotIn("warnings", self.post("/v1/chat/completions", body))
        warnings = self.post("/v1/chat/completions", {"messages": [user(part(SMALL, detail="low"), part(SMALL, detail="high"))]})["warnings"]
        self.assertEqual(len(warnings), 1)
        self.assertIn("'detail'", warnings[0])
        self.refused_chat([user(part(SMALL, detail="tiny"))], "messages[0].content[0].image_url.url", "'detail'")

    def test_the_marker_as_text_stays_text(self):
        """Wherever a client writes it: in texts, names and arguments; with images and without; and the character that hides it, too."""
        mark, hides = "<|image|>", "\ufdd0"
        self.assertEqual(self.answer({"role": "user", "content": mark}), mark)
        self.assertEqual(self.answer({"role": "user", "content": f"{hides}{mark}{mark}\ufdd1"}), f"{hides}{mark}{mark}\ufdd1")
        self.assertEqual(self.answer(user(text(f"a{mark}"), part(SMALL), text(f"{mark}b"))), f"a{mark}[4]{mark}b")
        self.assertEqual(self.answer(user(part(SMALL)), extra_body={"chat_template_kwargs": {"suffix": mark}}), f"[4]{mark}")
        self.assertEqual(self.answer(user(text("q")), {"role": "assistant", "content": f"{mark} and"}, extra_body={"continue_final_message": True}), "q")
        ids = self.post("/tokenize", {"messages": [{"role": "user", "content": mark}], "add_generation_prompt": False})["tokens"]
        self.assertEqual(ids, [0, 2] + [4 + b for b in mark.encode()])
        every = "".join(chr(0xfdd0 + i) for i in range(32))
        self.assertEqual(self.answer({"role": "user", "content": every}), every)
        self.refused_chat([{"role": "user", "content": every + mark}], "messages", "noncharacters")

    def test_tokenize(self):
        r = self.post("/tokenize", {"messages": [user(text("a"), part(SMALL))], "add_generation_prompt": False})
        self.assertEqual(r["tokens"], [0, 2, 4 + ord("a")] + [IMAGE] * 4)
        self.refused("/tokenize", {"messages": [user(part(SMALL[:-20]))]}, "messages[0].content[0].image_url.url", "cannot be used")

    def test_bad_files(self):
        for name, (data, says) in BAD_FILES.items():
            with self.subTest(name):
                self.refused_chat([user(text("Look:"), part(SMALL), part(data))], "messages[0].content[2].image_url.url", says)

    def test_misuse(self):
        at = "messages[0].content[0].image_url"
        for value, param, says in [({"url": "https://example.com/a.png"}, f"{at}.url", "fetches nothing"), ({"url": "file:///etc/passwd"}, f"{at}.url", "fetches nothing"),
                                   ({"url": "data:image/png,abc"}, f"{at}.url", "base64"), ({"url": "data:image/png;base64"}, f"{at}.url", "comma"),
                                   ({"url": "data:image/png;base64,%%%"}, f"{at}.url", "cannot be used"), ({}, f"{at}.url", "must be a string"),
                                   ({"url": 5}, f"{at}.url", "must be a string"), ({"url": {"url": "x"}}, f"{at}.url", "must be a string"),
                                   (None, at, "must be a string"), (5, at, "must be a string"), ([], at, "must be a string")]:
            with self.subTest(value):
                self.refused_chat([{"role": "user", "content": [{"type": "image_url", "image_url": value}]}], param, says)
        for kind in ("video_url", "input_audio", "image", "file"):
            self.refused_chat([{"role": "user", "content": [part(SMALL), {"type": kind}]}], "messages[0].content[1]", f"'{kind}' is not supported")

    def test_where_a_template_has_no_place(self):
        self.refused_chat([{"role": "system", "content": [part(SMALL)]}], "messages", "System message cannot contain images.")
        said = {"role": "assistant", "content": [text("x"), part(SMALL)]}
        self.refused_chat([user(part(SMALL)), said], "messages", "shows 1 of the 2 images")

    def test_too_many(self):
        body = {"messages": [user(*[part("AAAA")] * 1001)]}
        self.refused("/v1/chat/completions", body, "messages[0].content[1000].image_url.url", "more than 1000 images")

    def test_context(self):
        """Images are not loaded beyond what the context holds: the last file is not looked at."""
        large = file_of(1024, 1024)  # 1024 tokens
        body = {"messages": [user(*[part(large)] * 5, part(b"no image"))]}
        error = self.post("/v1/chat/completions", body, 400)["error"]
        self.assertEqual((error["code"], error["param"]), ("context_length_exceeded", "messages"), error)
        self.refused_chat([user(part(SMALL))], "truncate_prompt_tokens", "not supported with images", truncate_prompt_tokens=3)

    def test_tokens_that_the_client_sends(self):
        """The token of images is for images alone."""
        self.refused("/v1/completions", {"prompt": [5, IMAGE]}, "prompt", "1 places for images")
        self.refused("/v1/completions", {"prompt": "a<|image|>"}, "prompt", "1 places for images")
        self.refused("/v1/chat/completions", {"input_ids": [5, IMAGE]}, "messages", "1 places for images")


class Responses(ImagesTest):
    def create(self, *parts, **more):
        return self.client.responses.create(model="fake", input=[{"role": "user", "content": list(parts)}], **more)

    @staticmethod
    def image(data, **more):
        return {"type": "input_image", "image_url": url(data), "detail": "auto", **more}

    def test_places(self):
        r = self.create({"type": "input_text", "text": "a"}, self.image(SMALL), {"type": "input_text", "text": "b"}, self.image(WIDE))
        self.assertEqual((r.output_text, r.usage.input_tokens), ("a[4]b[6]", 3 + 4 + 6 + 2))

    def test_goes_on(self):
        """An image of a response that is kept belongs to what follows it."""
        first = self.create({"type": "input_text", "text": "a"}, self.image(SMALL))
        second = self.client.responses.create(model="fake", input="b", previous_response_id=first.id)
        self.assertEqual((second.output_text, second.usage.input_tokens), ("b", 3 + 4 + 1 + 1 + 4 + 1 + 1 + 1))
        listed = self.client.responses.input_items.list(second.id).data
        self.assertIn("input_image", json.dumps([item.model_dump() for item in listed]))

    def test_tool_result(self):
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "seen"}, self.image(SMALL)]}
        r = self.client.responses.create(model="fake", input=[{"role": "user", "content": "q"}, call, output])
        self.assertEqual(r.output_text, "seen[4]")

    def test_count(self):
        n = self.client.responses.input_tokens.count(model="fake", input=[{"role": "user", "content": [self.image(SMALL)]}]).input_tokens
        self.assertEqual(n, 3 + 4)

    def test_misuse(self):
        for member, value, says in [("content[0].image_url", self.image(SMALL[:-20]), "cannot be used"), ("content[0].image_url", self.image(png(100000, 100000)), "cannot be used"),
                                    ("content[0].image_url", {"type": "input_image", "image_url": "https://example.com/a.png"}, "fetches nothing"),
                                    ("content[0].image_url", {"type": "input_image", "image_url": {"url": "x"}}, "must be a string"),
                                    ("content[0].file_id", {"type": "input_image", "file_id": "file-1"}, "no files are kept"),
                                    ("content[0]", {"type": "input_file"}, "only text is ('input_text'), and images ('input_image')")]:
            with self.subTest(value):
                for path in ("/v1/responses", "/v1/responses/input_tokens"):
                    self.refused(path, {"input": [{"role": "user", "content": "q"}, {"role": "user", "content": [value]}]}, f"input[1].{member}", says)
        call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": [self.image(b"GIF89a")]}
        self.refused("/v1/responses", {"input": [call, output]}, "input[1].output[0].image_url", "cannot be used")
        said = {"role": "assistant", "content": [self.image(SMALL)]}
        self.refused("/v1/responses", {"input": [said]}, "input[0].content[0]", "only text is")


class Messages(ImagesTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.anthropic = anthropic.Anthropic(base_url=f"http://127.0.0.1:{cls.server.port}", api_key="none", max_retries=0, timeout=60 * PATIENCE)
        cls.addClassCleanup(cls.anthropic.close)

    @staticmethod
    def image(data, kind="base64", media="image/png"):
        return {"type": "image", "source": {"type": kind, "media_type": media, "data": b64(data)}}

    def ask(self, content, **more):
        return self.anthropic.messages.create(model="fake", max_tokens=100, messages=[{"role": "user", "content": content}], **more)

    def refused_message(self, body, says):
        """In Anthropic's form, with a sentence that names the field."""
        answer = self.post("/v1/messages", {"model": "fake", "max_tokens": 9, **body}, 400)
        self.assertEqual((answer["type"], answer["error"]["type"]), ("error", "invalid_request_error"), answer)
        self.assertIn(says, answer["error"]["message"])

    def test_places(self):
        r = self.ask([text("a"), self.image(SMALL), text("b"), self.image(WIDE, media="image/jpeg")])
        self.assertEqual((r.content[0].text, r.usage.input_tokens), ("a[4]b[6]", 3 + 4 + 6 + 2))

    def test_tool_result(self):
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [text("seen"), self.image(SMALL)]}]}]
        r = self.anthropic.messages.create(model="fake", max_tokens=100, messages=messages)
        self.assertEqual(r.content[0].text, "seen[4]")

    def test_count(self):
        n = self.anthropic.messages.count_tokens(model="fake", messages=[{"role": "user", "content": [self.image(SMALL)]}]).input_tokens
        self.assertEqual(n, 3 + 4)
        long = "x" * (1 << 21)  # read, and then encoded, on the threads for long texts; its images on theirs
        n = self.anthropic.messages.count_tokens(model="fake", messages=[{"role": "user", "content": [self.image(SMALL), text(long), self.image(WIDE)]}]).input_tokens
        self.assertEqual(n, 3 + 4 + 6 + len(long))
        with self.assertRaises(anthropic.BadRequestError):
            self.anthropic.messages.count_tokens(model="fake", messages=[{"role": "user", "content": [self.image(SMALL[:-20])]}])

    def test_misuse(self):
        at = "'messages[0].content[0].source"
        for block, says in [(self.image(SMALL[:-20]), f"{at}.data' cannot be used"), (self.image(png(100000, 100000)), f"{at}.data' cannot be used"),
                            (self.image(b"", kind="url"), f"{at}' is of type 'url'"), (self.image(b"", kind="file"), f"{at}' is of type 'file'"),
                            ({"type": "image"}, "'messages[0].content[0]' must have a 'source'"), ({"type": "image", "source": {"type": "base64"}}, f"{at}.data' must be a string"),
                            ({"type": "document"}, "is of type 'document'")]:
            with self.subTest(block):
                self.refused_message({"messages": [{"role": "user", "content": [block]}]}, says)
        self.refused_message({"messages": [{"role": "user", "content": "q"}], "system": [self.image(SMALL)]}, "'system[0]' is of type 'image'")
        call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [self.image(b"x")]}]}
        self.refused_message({"system": "s", "messages": [{"role": "user", "content": "q"}, call, result]}, "'messages[2].content[0].content[0].source.data' cannot be used")


class Generate(ImagesTest):
    def generate(self, **body):
        return self.post("/generate", body)

    def test_places(self):
        """Where the text has the marker."""
        a = self.generate(text="a<|image|>b<|image|>", image_data=[url(SMALL), b64(WIDE)])
        self.assertEqual((a["text"], a["meta_info"]["prompt_tokens"]), ("a[4]b[6]", 1 + 4 + 6 + 2))
        self.assertEqual(self.generate(text="<|image|>", image_data=b64(SMALL))["text"], "[4]")
        self.assertEqual(self.generate(input_ids=[7, IMAGE], image_data=[b64(SMALL)])["meta_info"]["prompt_tokens"], 5)

    def test_batch(self):
        answers = self.generate(text=["a", "<|image|>b", "<|image|><|image|>"], image_data=[None, b64(SMALL), [b64(SMALL), b64(WIDE)]])
        self.assertEqual([a["text"] for a in answers], ["a", "[4]b", "[4][6]"])

    def test_misuse(self):
        one = "<|image|>"
        for body, param, says in [({"text": one}, "text", "1 places for images"), ({"text": "a", "image_data": b64(SMALL)}, "text", "0 places for images"),
                                  ({"text": one, "image_data": [b64(SMALL)] * 2}, "text", "2 images"), ({"text": one, "image_data": "https://a.b/c"}, "image_data", "fetches nothing"),
                                  ({"text": one, "image_data": [5]}, "image_data[0]", "must be a string"), ({"text": one, "image_data": {"url": "x"}}, "image_data", "must be a string"),
                                  ({"text": [one, one], "image_data": b64(SMALL)}, "image_data", "for each of the 2 prompts"),
                                  ({"text": [one, one], "image_data": [b64(SMALL), [b64(SMALL[:-20])]]}, "image_data[1][0]", "cannot be used"),
                                  ({"text": one, "image_data": b64(SMALL[:-20])}, "image_data", "cannot be used")]:
            with self.subTest(body):
                self.refused("/generate", body, param, says)


class TextOnly(OpenaiTest):
    """A model that takes none, and a template that has no place for one."""
    start = staticmethod(lambda: Server("--served-model-name", "fake"))

    def test_every_api(self):
        said = "this model is served for text only"
        bodies = {"/v1/chat/completions": {"messages": [user(part(SMALL))]}, "/tokenize": {"messages": [user(part(SMALL))]},
                  "/v1/responses": {"input": [{"role": "user", "content": [Responses.image(SMALL)]}]},
                  "/v1/messages": {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": [Messages.image(SMALL)]}]},
                  "/generate": {"text": "a", "image_data": [b64(SMALL)]}}
        for path, body in bodies.items():
            with self.subTest(path):
                status, answer, _ = self.server.request("POST", path, body)
                self.assertEqual(status, 400, answer)
                self.assertIn(said, answer["error"]["message"])

    def test_blind_template(self):
        with Server(model="/models/fake-images-blind") as server:
            status, answer, _ = server.request("POST", "/v1/chat/completions", {"messages": [user(part(SMALL))]})
            self.assertEqual(status, 400, answer)
            self.assertIn("no places for images", answer["error"]["message"])


class Counts(ImagesTest):
    def test_metrics(self):
        def now():
            _, page, _ = self.server.request("GET", "/metrics")
            return {name: float(re.search(rf"^tandem:{name} (\S+)$", re.sub(r'model_name="[^"]*",?', "", page).replace("{}", ""), re.M)[1])
                    for name in ('images_total{result="ok"}', 'images_total{result="refused"}', "image_tokens_total", "image_load_seconds_total", "image_tokens_held")}
        before = now()
        self.post("/v1/chat/completions", {"messages": [user(part(SMALL), part(WIDE))]})
        self.post("/v1/chat/completions", {"messages": [user(part(SMALL), part(SMALL[:-20]))]}, 400)
        self.post("/tokenize", {"messages": [user(part(SMALL))]})
        self.server.wait_metric("tandem:image_tokens_held", 0)  # a request may end a little behind its answer
        after = now()
        self.assertEqual([self.server.metric(f"tandem:{n}") for n in ("images_encoded_total", "image_encode_seconds_total", "image_cache_bytes", "image_cache_bytes_max",
                                                                     "image_cache_evictions_total")], [3, 1.5, 7000, 9000, 1])
        more = {name: after[name] - before[name] for name in after}
        self.assertGreater(more.pop("image_load_seconds_total"), 0)
        self.assertEqual(more, {'images_total{result="ok"}': 4, 'images_total{result="refused"}': 1, "image_tokens_total": 4 + 6 + 4 + 4, "image_tokens_held": 0})

    def test_info(self):
        self.assertIs(self.server.request("GET", "/get_model_info")[1]["has_image_understanding"], True)


class Threads(unittest.TestCase):
    """Loading waits at the gate."""

    def setUp(self):
        self.gate = Gate()
        self.addCleanup(self.gate.open)
        self.server = Server("--served-model-name", "fake", model=MODEL, env=self.gate.env)
        self.addCleanup(self.server.__exit__, None, None, None)

    def sent(self, *parts):
        body = json.dumps({"messages": [user(*parts)]}).encode()
        s = socket.create_connection(("127.0.0.1", self.server.port), timeout=20 * PATIENCE)
        self.addCleanup(s.close)
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        return s

    def answer(self, s):
        data = b""
        while piece := s.recv(65536):
            data += piece
        return data

    def test_others_are_served_meanwhile(self):
        """Many requests whose images are being loaded hold up no text, whatever HTTP thread it comes to."""
        waiting = [self.sent(part(SMALL)) for _ in range(12)]
        self.gate.wait_reached()
        for _ in range(12):
            status, answer, _ = self.server.request("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
            self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "hi"))
        self.gate.open()
        for s in waiting:
            self.assertIn(b'"content":"[4]"', self.answer(s))

    def test_a_client_that_leaves(self):
        """What is left of its images is not loaded, and nothing is generated for it."""
        before = self.server.metric("sglang:num_requests_total")
        s = self.sent(*[part(SMALL)] * 3)
        self.gate.wait_reached()
        s.close()
        self.gate.open()
        status, answer, _ = self.server.request("POST", "/v1/chat/completions", {"messages": [user(part(WIDE))]})
        self.assertEqual((status, answer["choices"][0]["message"]["content"]), (200, "[6]"))
        self.assertEqual(self.server.metric("sglang:num_requests_total"), before + 1)


class Program(unittest.TestCase):
    """The whole program: a small Qwen3-VL-MoE with random weights, and the demo model's tokens with one more."""
    TEMPLATE = ("{% for m in messages %}<|user|>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
                "{% if p.type == 'image' %}<|image_pad|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}<|assistant|>")

    def folder(self):
        d = tempfile.TemporaryDirectory()
        self.addCleanup(d.cleanup)
        def write(name, value):
            with open(f"{d.name}/{name}", "w") as f:
                json.dump(value, f)
        def read(name):
            with open(f"{SOURCE}/{name}") as f:
                return json.load(f)
        config, tokens = read("tests/data/golden/qwen3_vl_moe/config.json"), read("models/tale-v3-14m/tokenizer.json")
        n = len(tokens["model"]["vocab"])
        config["text_config"]["vocab_size"] = n + 8
        config["image_token_id"] = n
        tokens["added_tokens"].append({**tokens["added_tokens"][-1], "id": n, "content": "<|image_pad|>"})
        write("config.json", config)
        write("tokenizer.json", tokens)
        write("tokenizer_config.json", {"chat_template": self.TEMPLATE})
        write("preprocessor_config.json", {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2,
                                           "size": {"shortest_edge": 256, "longest_edge": 16384}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
        return d.name

    def test_images_are_seen(self):
        """The same images give the same answer, others another one; an image is encoded once, and pages are those of its content."""
        def picture(colour):
            out = io.BytesIO()
            Image.new("RGB", (64, 64), colour).save(out, "PNG")
            return part(out.getvalue())
        red, blue = picture("red"), picture("blue")
        with Server("--load-format", "dummy", "--cpuinfer", "2", "--context-length", "512", "--skip-server-warmup", program=[TANDEM], model=self.folder()) as server:
            def ask(*pictures):
                status, answer, _ = server.request("POST", "/v1/chat/completions", {"messages": [user(*[p for one in pictures for p in (text("a story"), one)])], "temperature": 0,
                                                                                   "max_tokens": 4, "logprobs": True})
                self.assertEqual(status, 200, answer)
                said = [token["logprob"] for token in answer["choices"][0]["logprobs"]["content"]]
                return said, answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            one = ask(red)
            self.assertEqual(ask(red), one)
            other = ask(blue)
            self.assertNotEqual(other[0], one[0])
            self.assertEqual(other[1], one[1])
            said, n, cached = ask(red, blue)
            self.assertEqual((n - one[1] > 64, cached), (True, 0))
            self.assertEqual(ask(red, blue), (said, n, 128))
            self.assertEqual(ask(red, red)[2], 0)
            self.assertEqual(server.metric("tandem:images_encoded_total"), 2)
            server.wait_metric("tandem:image_tokens_held", 0)


if __name__ == "__main__":
    unittest.main()

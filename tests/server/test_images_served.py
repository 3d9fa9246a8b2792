"""Pictures through the whole of it: a real picture file, the decoder's process, the encoder and the model (a tiny one with random weights). What an
answer is may depend on the picture alone: not on the API, on what else runs, on the chunks or on what the caches have."""
import base64
import concurrent.futures
import json
import os
import shutil
import tempfile
import unittest

from server_process import TANDEM, Server, ServerTest

SOURCE = os.environ["TD_SOURCE_DIR"]
GOLDEN = f"{SOURCE}/tests/data/golden/qwen3_vl_moe"
PICTURES = f"{SOURCE}/tests/data/images"
SPECIAL = ["<s>", "</s>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
TEMPLATE = ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}"
            "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{{ '\\n' }}{% endfor %}")
with open(f"{GOLDEN}_images/pictures.json") as golden:
    EXPECTED = json.load(golden)


def byte_characters():
    """The character that byte-level BPE writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def make_folder(folder):
    """The golden model with a tokenizer of bytes, a template and an image processor."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(f"{GOLDEN}/{name}", folder)
    vocabulary = {c: 6 + b for b, c in byte_characters().items()}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "added_tokens": [{"id": i, "content": s, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
                                  for i, s in enumerate(SPECIAL)],
                 "model": {"type": "BPE", "vocab": {**{s: i for i, s in enumerate(SPECIAL)}, **vocabulary}, "merges": []}}
    for name, content in (("tokenizer.json", tokenizer), ("preprocessor_config.json", EXPECTED["processor"]),
                          ("tokenizer_config.json", {"chat_template": TEMPLATE, "bos_token": "<s>", "eos_token": "</s>"})):
        with open(f"{folder}/{name}", "w") as f:
            json.dump(content, f)


def data_url(name):
    with open(f"{PICTURES}/{name}", "rb") as f:
        return "data:;base64," + base64.b64encode(f.read()).decode()


def chat(*parts, **more):
    content = [{"type": "text", "text": p} if not p.startswith("data:") else {"type": "image_url", "image_url": {"url": p}} for p in parts]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": True, "top_logprobs": 3,
            **more}


class ServedTest(ServerTest):
    flags = ("--quantization", "none")

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        make_folder(cls.folder)
        cls.start = staticmethod(lambda: cls.server_with())
        super().setUpClass()
        cls.photo, cls.other = data_url("photo"), data_url("jpeg-420")

    @classmethod
    def server_with(cls, *flags):
        return Server("--cpuinfer", "2", "--max-total-tokens", "4096", *cls.flags, *flags, program=[TANDEM], model=cls.folder)

    def answer(self, body, server=None):
        status, answer, _ = (server or self.server).request("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        return answer

    def told(self, body, server=None):
        """Tokens and log-probabilities, and how many prompt tokens there were."""
        answer = self.answer(body, server)
        return answer["choices"][0]["logprobs"]["content"], answer["usage"]["prompt_tokens"]


class Golden(ServedTest):
    def test_answers_are_transformers(self):
        """Tokens and log-probabilities, of pictures in several formats (scripts/golden/make_picture_answers.py)."""
        for prompt in EXPECTED["prompts"]:
            parts = [p["text"] if "text" in p else data_url(p["image"]) for p in prompt["parts"]]
            answer = self.answer(chat(*parts, max_tokens=len(prompt["tokens"]), return_token_ids=True))
            self.assertEqual(answer["usage"]["prompt_tokens"], prompt["prompt_tokens"])
            choice = answer["choices"][0]
            self.assertEqual(choice["token_ids"], prompt["tokens"])
            for got, want in zip(choice["logprobs"]["content"], prompt["logprobs"]):
                self.assertAlmostEqual(got["logprob"], want, delta=1e-4)


class Served(ServedTest):
    def test_the_picture_counts(self):
        """Two pictures are two prompts, of which the first is not taken for the second; the same one again is in the caches."""
        first, second = chat("What is ", self.photo, " here?"), chat("What is ", self.other, " here?")
        one, n = self.told(first)
        self.assertGreater(n, 16)
        other, _ = self.told(second)
        self.assertNotEqual(one, other)
        self.assertEqual(self.told(first), (one, n))
        self.assertEqual(self.told(second)[0], other)

    def test_in_company(self):
        """Many at a time, with pictures and without."""
        bodies = [chat("Look: ", self.photo, str(i % 3), self.other if i % 2 else "none") for i in range(12)] + [chat(f"text {i}") for i in range(6)]
        alone = [self.told(body) for body in bodies]
        with self.server_with("--disable-radix-cache", "--image-cache-gib", "0.0002") as server, concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            self.assertEqual(list(pool.map(lambda body: self.told(body, server), bodies)), alone)

    def test_in_chunks(self):
        """A chunk may end within an image."""
        body = chat("Before. ", self.photo, " Between. ", self.other, " After.")
        with self.server_with("--chunked-prefill-size", "7", "--disable-radix-cache") as server:
            self.assertEqual(self.told(body, server), self.told(body))

    def test_all_apis_show_the_same_prompt(self):
        body = chat("Say ", self.photo, ".")
        text = self.answer(body)["choices"][0]["message"]["content"]
        n = self.answer(body)["usage"]["prompt_tokens"]
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": self.photo.partition(",")[2]}}
        status, message, _ = self.server.request("POST", "/v1/messages", {
            "model": self.server.model, "max_tokens": 12, "temperature": 0,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Say "}, block, {"type": "text", "text": "."}]}]})
        self.assertEqual(status, 200, message)
        self.assertEqual(message["usage"]["input_tokens"], n)
        self.assertTrue(text.startswith(message["content"][0]["text"]) if message["content"] else True)
        status, made, _ = self.server.request("POST", "/generate", {
            "text": "Say <|vision_start|><|image_pad|><|vision_end|>.\n", "image_data": self.photo,
            "sampling_params": {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}})
        self.assertEqual(status, 200, made)
        self.assertEqual((made["text"], made["meta_info"]["prompt_tokens"]), (text, n))

    def test_images_are_refused_when_they_are_off(self):
        with self.server_with("--max-image-tokens", "0") as server:
            status, answer, _ = server.request("POST", "/v1/chat/completions", chat("See ", self.photo))
            self.assertEqual(status, 400)
            self.assertIn("served for text only", answer["error"]["message"])
            self.assertEqual(self.told(chat("See."), server)[1], 5)


class ServedInts(Served):
    """In 8 bits, on a device with a memory of its own."""
    flags = ("--device", "apart")


if __name__ == "__main__":
    unittest.main()

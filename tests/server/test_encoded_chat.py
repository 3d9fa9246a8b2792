"""A chat with DeepSeek-V4 over HTTP: the model's folder has no chat template, and its encoding makes the prompt."""
import json
import os
import tarfile
import tempfile
import unittest

from server_process import TANDEM, Server

DATA = os.path.join(os.environ.get("TD_SOURCE_DIR", ""), "tests/data")
FLAGS = ("--load-format", "dummy", "--cpuinfer", "1", "--max-running-requests", "2", "--skip-server-warmup")


def make_folder(folder):
    """A small DeepSeek-V4's config.json beside a tokenizer of DeepSeek's without its template."""
    with open(os.path.join(DATA, "golden/deepseek_v4/config.json")) as f:
        config = json.load(f)
    config.update(vocab_size=129280, max_position_embeddings=4096)
    source = os.path.join(DATA, "tokenizers/deepseek_v3")
    with open(os.path.join(source, "tokenizer_config.json")) as f:
        tokenizer = json.load(f)
    del tokenizer["chat_template"]
    for name, value in (("config.json", config), ("tokenizer_config.json", tokenizer)):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f)
    with tarfile.open(os.path.join(source, "tokenizer.json.tar.xz")) as tar:
        tar.extractall(folder, filter="data")


class EncodedChat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        make_folder(cls.folder)

    def prompt_of(self, server, request):
        status, answer, _ = server.request("POST", "/tokenize", request)
        self.assertEqual(status, 200, answer)
        return server.request("POST", "/detokenize", {"tokens": answer["tokens"], "skip_special_tokens": False})[1]["text"]

    def test_prompts(self):
        with open(os.path.join(DATA, "encodings/deepseek.jsonl")) as f:
            rows = {row["name"]: row for row in map(json.loads, f) if row["model_type"] == "deepseek_v4"}
        with Server(*FLAGS, program=[TANDEM], model=self.folder) as server:
            for name in ("published 1", "published 2", "results in the order of the calls", "thinking switched off"):
                with self.subTest(name):
                    self.assertEqual(self.prompt_of(server, rows[name]["request"]), rows[name]["text"])
            info = server.request("GET", "/get_server_info")[1]
            self.assertEqual((info["tool_call_parser"], info["reasoning_parser"]), ("deepseekv4", "deepseek-v4"))
            ask = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}
            status, answer, _ = server.request("POST", "/v1/chat/completions", ask)
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["usage"]["completion_tokens"], 2)
            broken = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "[1"}}]}
            status, answer, _ = server.request("POST", "/v1/chat/completions", {**ask, "messages": [*ask["messages"], broken]})
            self.assertEqual(status, 400, answer)
            self.assertIn("messages[1].tool_calls[0].function.arguments is not a JSON object", answer["error"]["message"])

    def test_a_template_wins(self):
        template = os.path.join(self.folder, "own.jinja")
        with open(template, "w") as f:
            f.write("{{ messages[0].content }}!")
        with Server(*FLAGS, "--chat-template", template, program=[TANDEM], model=self.folder) as server:
            self.assertEqual(self.prompt_of(server, {"messages": [{"role": "user", "content": "Hello"}]}), "Hello!")

"""A chat of 30 turns on models whose layers have recurrent states, windows or chosen keys: a turn computes its new tokens, and at most a page."""
import json
import os
import unittest

from chat_turns import generate, turns
from server_process import MODEL, TANDEM, Server

GOLDEN = os.path.join(os.environ["TD_SOURCE_DIR"], "tests/data/golden")
PAGE, LONGEST = 128, {"max_position_embeddings": 8192}
MODELS = {"qwen3_next": LONGEST, "qwen3_5_moe": {"text_config": LONGEST}, "gpt_oss": LONGEST, "deepseek_v4": LONGEST, "deepseek_v32": LONGEST, "glm_moe_dsa": LONGEST, "kimi_linear": {"model_max_length": 8192},
          "glm5_next": {"text_config": LONGEST}}
WITHOUT_DRAFTS = ("gpt_oss", "kimi_linear")
LATENTS = ("kimi_linear",)  # generated tokens are computed in another form than a prompt's: a turn computes the last answer again
FLAGS = ("--tokenizer-path", MODEL, "--quantization", "none", "--cpuinfer", "1", "--max-running-requests", "2", "--max-total-tokens", "8192",
         "--chunked-prefill-size", "512")


class ChatTurns(unittest.TestCase):
    def serve(self, model, *flags):
        return Server(*FLAGS, "--json-model-override-args", json.dumps(MODELS[model]), *flags, program=[TANDEM], model=os.path.join(GOLDEN, model))

    def test_thirty_turns(self):
        for model in MODELS:
            for drafts in ((), ("--speculative-algorithm", "NEXTN", "--speculative-always")):
                if drafts and model in WITHOUT_DRAFTS:
                    continue
                with self.subTest(model=model, drafts=drafts), self.serve(model, *drafts) as server:
                    computed = [t.prompt - t.cached - t.new for t in turns(server, 30, new=75, answer=41, vocab=320)]
                    self.assertEqual(computed[0], 0)
                    self.assertLessEqual(max(computed[1:]), PAGE + 41 * (model in LATENTS), computed)
                    self.assertGreater(max(computed[1:]), PAGE // 2)  # turns that end in the middle of a page are among them

    def test_prompts_of_whole_pages(self):
        """Prompts and answers that end where a page does, or just behind it."""
        for model in ("qwen3_next", "gpt_oss", "deepseek_v4", "glm_moe_dsa", "glm5_next"):
            with self.subTest(model=model), self.serve(model) as server:
                for new, answer in ((128, 4), (256, 128), (127, 1)):
                    computed = [t.prompt - t.cached - t.new for t in turns(server, 8, new, answer, vocab=320, seed=new)]
                    self.assertLessEqual(max(computed), PAGE, (new, answer, computed))

    def test_retry_and_branch(self):
        """The same prompt again finds all its pages; one that leaves the chat behind an earlier turn finds those of that turn's prompt."""
        with self.serve("qwen3_next") as server:
            first, branch = list(range(10, 310)), list(range(5, 55))
            answer = generate(server, first, 60)[0]["output_ids"]
            second = first + answer + branch
            for prompt, cached in ((second, 256), (second, 384), (first + branch, 256), (first, 256)):
                self.assertEqual(generate(server, prompt, 20)[0]["meta_info"]["cached_tokens"], cached)

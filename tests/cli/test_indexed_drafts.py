"""Drafts of families whose rows choose their keys (DeepSeek-V3.2, GLM-5), on random weights of their shapes made small: answers are those without drafts.

No draft of a random layer is right, so each answer depends on what a rejected one leaves behind: nothing. Prompts are shorter and longer than the keys
that a row chooses."""
import json
import unittest

from program import MODEL, SOURCE, TANDEM
from server_process import Server

CHOSEN = 32  # keys
SHAPE = {"num_hidden_layers": 3, "hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 64, "n_routed_experts": 16, "num_attention_heads": 4,
         "num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
         "index_n_heads": 4, "index_head_dim": 32, "index_topk": CHOSEN, "vocab_size": 512, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
         "eos_token_id": 2}
DRAFTS = ("--speculative-algorithm", "NEXTN", "--speculative-always")


def answers(shape, *flags):
    """(tokens and log-probabilities of each answer, drafts that were verified)"""
    flags = ("--load-format", "dummy", "--tokenizer-path", MODEL, "--max-total-tokens", "4096", "--context-length", "1024",
             "--json-model-override-args", json.dumps({**SHAPE, **shape[1]}), *flags)
    with Server(*flags, program=[TANDEM], model=f"{SOURCE}/configs/models/{shape[0]}.json") as server:
        said = []
        for n in (5, CHOSEN - 1, 200):
            body = {"prompt": list(range(5, 5 + n)), "max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 1}
            choice = server.request("POST", "/v1/completions", body)[1]["choices"][0]
            said.append((choice["token_ids"], choice["logprobs"]["token_logprobs"]))
        return said, server.metric("tandem:drafts_verified_total") if DRAFTS[0] in flags else 0


class IndexedDrafts(unittest.TestCase):
    def test_answers(self):
        for shape in (("deepseek-v3.2", {"n_group": 4, "topk_group": 2}), ("glm-5", {}), ("glm-5", {"index_topk_freq": 2, "index_skip_topk_offset": 1})):
            with self.subTest(shape=shape):
                plain, _ = answers(shape)
                drafted, verified = answers(shape, *DRAFTS)
                self.assertEqual([len(tokens) for tokens, _ in plain], [60] * 3)
                self.assertEqual(drafted, plain)
                self.assertGreater(verified, 100)

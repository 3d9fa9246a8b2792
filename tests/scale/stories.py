"""Prompts of drawn words, and what is the same bit by bit of the answers to them, whichever server gives them. Each case draws from
random.Random(SEED), so a failure comes back with the TD_TEST_SEED that is printed."""
import os
import random

SEED = int(os.environ.get("TD_TEST_SEED", random.randrange(1 << 30)))
print(f"TD_TEST_SEED={SEED}", flush=True)
WORDS = "king queen forest river golden key horse wolf castle night bread stone mill daughter".split()


def story(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def what_matters(answer):
    """The text, why it ended, and every log-probability."""
    choice = answer["choices"][0]
    return choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]

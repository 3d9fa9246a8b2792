#!/usr/bin/env python3
"""A tokenizer folder with a made-up vocabulary of the size that large models have, to time what goes through one: bench_grammar.

usage: make_vocabulary.py OUT [--tokens N] [--seed S]

Byte-level BPE. Pieces are joined two by two, as training would, so every token can come out of a text. Syllables become words of several scripts;
words get a space or a capital before them, or a mark behind. There are also runs of one sign and of white space, numbers, and marks of code. How many
tokens there are of each kind is about what Qwen3's vocabulary has; which words they are has no meaning.
"""
import argparse
import json
import os
import random

CONSONANTS = "b c d f g h j k l m n p r s t v w z ch sh th st tr br pl cr gr qu".split()
VOWELS = "a e i o u ai ea ee ou io".split()
ENDINGS = "n r s t l m d ck ng st ty ly ed er".split()
CYRILLIC = "абвгдежзийклмнопрстуфхцчшщыьэюя"
ARABIC = "ابتثجحخدذرزسشصضطظعغفقكلمنهوي"
MARKS = list("()[]{}<>=+-*/.,:;!?'\"\\_#@$%&|~^`")


def byte_letters():
    """GPT-2's letters for bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return {b: chr(b) if b in kept else chr(next(spare)) for b in range(256)}


class Vocabulary:
    def __init__(self):
        self.letters = byte_letters()
        self.ids = {c: i for i, c in enumerate(sorted(self.letters.values()))}
        self.merges = []

    def join(self, left, right):
        """The token of two tokens; what is there already stays."""
        if left + right not in self.ids:
            self.ids[left + right] = len(self.ids)
            self.merges.append(f"{left} {right}")
        return left + right

    def token(self, *parts):
        """The token of these texts one after another, and those of each of them."""
        whole = None
        for part in parts:
            token = None
            for byte in part.encode():
                token = self.letters[byte] if token is None else self.join(token, self.letters[byte])
            whole = token if whole is None else self.join(whole, token)
        return whole


def syllable(rng):
    return rng.choice(CONSONANTS) + rng.choice(VOWELS) + (rng.choice(ENDINGS) if rng.random() < 0.4 else "")


def word(rng):
    return [syllable(rng) for _ in range(rng.choices((1, 2, 3, 4, 5), (2, 6, 6, 3, 1))[0])]


def code_piece(rng):
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(MARKS)
    if kind < 6:
        return rng.choice((syllable(rng), syllable(rng).capitalize()))
    return str(rng.randrange(100)) if kind == 6 else rng.choice(" \t\n")


def han(rng, n):
    return [chr(0x4E00 + int(rng.triangular(0, 0x51A5, 0))) for _ in range(n)]


def draw(rng, v):
    kind = rng.choices(("word", "spaced", "capital", "upper", "han", "cyrillic", "arabic", "code", "space"), (21, 34, 11, 3, 15, 5, 3, 12, 1))[0]
    if kind == "word":
        v.token(*word(rng))
    elif kind == "spaced":
        v.token(" ", *word(rng))
    elif kind == "capital":
        parts = word(rng)
        v.token(*[" "] * rng.randrange(2), parts[0].capitalize(), *parts[1:])
    elif kind == "upper":
        v.token(*[" "] * rng.randrange(2), *[part.upper() for part in word(rng)[:2]])
    elif kind == "han":
        v.token(*han(rng, rng.choices((1, 2, 3, 4), (2, 6, 2, 1))[0]))
    elif kind == "cyrillic":
        v.token(*[" "] * rng.randrange(2), *rng.choices(CYRILLIC, k=rng.randint(2, 7)))
    elif kind == "arabic":
        v.token(*rng.choices(ARABIC, k=rng.randint(2, 5)))
    elif kind == "code":
        v.token(*[code_piece(rng) for _ in range(rng.randint(2, 4))])
    else:
        v.token(*["\n"] * rng.randint(0, 3), *[rng.choice(" \t")] * rng.randint(1, 20))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--tokens", type=int, default=150000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng, v = random.Random(args.seed), Vocabulary()
    for sign in " -=*#_./":
        v.token(*[sign] * 128)
    for n in range(1000):
        v.token(*str(n))
    while len(v.ids) < args.tokens:
        draw(rng, v)
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
                 "post_processor": None, "decoder": level, "model": {"type": "BPE", "vocab": v.ids, "merges": v.merges}}
    os.makedirs(args.out, exist_ok=True)
    with open(os.path.join(args.out, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer, f, ensure_ascii=False)
    with open(os.path.join(args.out, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump({}, f)
    print(f"{args.out}: {len(v.ids)} tokens")


if __name__ == "__main__":
    main()

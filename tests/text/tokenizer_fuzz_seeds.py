#!/usr/bin/env python3
"""Write the seed corpus of fuzz_tokenizer: tests/fuzz/corpus/tokenizer/. Small vocabularies, one for each kind of part."""
import json
import pathlib

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers"
OUT = DATA.parent.parent / "fuzz" / "corpus" / "tokenizer"


def alphabet():
    shown = [b for b in range(256) if 0x21 <= b <= 0x7E or 0xA1 <= b <= 0xAC or b >= 0xAE]
    hidden = [b for b in range(256) if b not in shown]
    return [chr(b) for b in shown] + [chr(256 + i) for i in range(len(hidden))]


def base():
    vocab = {c: i for i, c in enumerate(alphabet())}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("l", "l"), ("Ġ", "Ġ")]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    n = len(vocab)
    flags = dict(single_word=False, lstrip=True, rstrip=True, normalized=False, special=True)
    added = [{"id": n, "content": "<|user|>", **flags}, {"id": n + 1, "content": "world", **dict(flags, normalized=True, single_word=True, special=False)}]
    return {"normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}, "decoder": {"type": "ByteLevel"},
            "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|user|>"}}, {"Sequence": {"id": "A"}}],
                               "special_tokens": {"<|user|>": {"ids": [n]}}},
            "added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": [f"{a} {b}" for a, b in merges]}}


def save(name, *parts):
    (OUT / name).write_bytes(b"\0".join(p if isinstance(p, bytes) else json.dumps(p, ensure_ascii=False, separators=(",", ":")).encode() for p in parts))


OUT.mkdir(parents=True, exist_ok=True)
rows = [json.loads(line) for line in open(DATA / "variants.jsonl")]
config = {"bos_token": "<|user|>", "eos_token": {"content": "the"}, "add_bos_token": True, "add_eos_token": True,
          "tokenizer_class": "LlamaTokenizerFast", "chat_template": [{"name": "default", "template": "x"}]}
for row in rows[1:]:
    spec = dict(base(), **{k: row[k] for k in ("pre_tokenizer", "normalizer") if k in row})
    save(row["name"], spec, config, "aA1é中 the".encode())
pairs = base()
pairs["model"]["merges"] = [m.split(" ") for m in pairs["model"]["merges"]]
pairs["model"]["ignore_merges"] = True
save("pairs", pairs)
model = b"".join((DATA / "kimi" / "tiktoken.model").read_bytes().splitlines(True)[:280])
save("tiktoken", model, {"tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "added_tokens_decoder": {"280": {"content": "[BOS]", "special": True}}},
     "Ünï中[BOS] 1234".encode())

#!/usr/bin/env python3
"""Write token vectors with independent libraries: `tokenizers` for the Hugging Face files, `tiktoken` for Kimi's format.

usage: tests/text/tokenizer_vectors.py TOKENIZERS_DIR
TOKENIZERS_DIR holds <name>/tokenizer.json as unpacked by the build (build/<preset>/tests/text/tokenizers). Writes, in
tests/data/tokenizers: <name>/random.jsonl, and kimi/{tiktoken.model,tokenizer_config.json,vectors.jsonl}.
Made with tokenizers 0.23.3 and tiktoken 0.14.0; the seed is fixed, so a rerun with these gives the same files.
"""
import base64
import json
import pathlib
import random
import sys
import unicodedata

import tiktoken
from tokenizers import Tokenizer

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers"
ROOT = DATA.parent.parent.parent
SEED = 20250601

ENGLISH = (DATA.parent.parent.parent / "models/tale-v3-14m/valid.txt").read_text()[:40000]
SNIPPETS = [
    "", " ", "  ", "\n", "\r\n", "\t", "\u180e", "\u200b", "\u00a0", "\u3000", "\u0085", "\u2028", "\ufeff", "\x00", "\x7f",
    "don't", "I'LL", "we\u017f 'ſ 'S", "'\u017f", "x'Re", "e\u0301", "\u00e9", "A\u030a\u0323", "\u212b", "\u1e9b\u0323", "ﬁ", "각", "\u1100\u1161\u11a8",
    "\u0958", "\u0915\u093c", "\u2126", "가\u11a8", "\u0344", "q\u0307\u0323", "ก็", "ภาษาไทย", "अनुच्छेद", "العربية",
    "עברית", "中文字符", "日本語テスト", "〆〇々ー、。", "한국어", "ｆｕｌｌ", "１２３", "٣٤٥", "Ⅷ", "½", "123456789", "3.14159", "1,000,000", "0x1F",
    "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "🫨", "🛜", "👍🏽", "\U00031350\U000323af", "\U0002ebf0", "\U0001f6dc", "\U000105c0x",
    "def f(x):\n    return x\n", "<|user|>", "<|im_start|>", "<think>", "</think>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>",
    "<|begin_of_sentence|>", "<｜begin▁of▁sentence｜>", "<｜tool▁call▁begin｜>", "<tool_call>", "<|endoftext|>", "<|im", "im_end|>", "[BOS]", "[EOT]",
    "<|reserved_token_300|>", "_", "--", "==", "...", "#!/bin/sh", "C:\\a", "a@b.c", "\\n", "{}[]()", "ÀÉÎ", "ǅ", "ʰ", "ß", "ẞ", "Ǆ", "İı",
]


def random_text(rng):
    kind = rng.randrange(8)
    if kind == 0:  # any assigned characters
        out = []
        while len(out) < rng.randrange(1, 40):
            c = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x20000)])
            if not 0xD800 <= c < 0xE000 and unicodedata.category(chr(c)) != "Cn":
                out.append(chr(c))
        return "".join(out)
    if kind == 1:  # white space and little else
        return "".join(rng.choice(" \t\n\r\u00a0\u3000\u180e\u2003ab1!'") * rng.choice([1, 1, 2, 5, 20]) for _ in range(rng.randrange(1, 12)))
    if kind == 2:  # combining marks out of order
        marks = "\u0300\u0301\u0323\u0327\u031b\u0345\u05b0\u0f71\u3099\u1161\u11a8\u093c"
        return "".join(rng.choice("aeoAE가ᄀkかक") + "".join(rng.choice(marks) for _ in range(rng.randrange(5))) for _ in range(6))
    if kind == 3:  # one long word
        return "".join(rng.choice("ab") for _ in range(rng.randrange(30, 400))) if rng.random() < 0.5 else rng.choice("aZ=-中0 ") * rng.randrange(30, 900)
    if kind == 4:
        at = rng.randrange(len(ENGLISH))
        return ENGLISH[at : at + rng.randrange(300)]
    return "".join(rng.choice(SNIPPETS) + rng.choice(["", "", " ", "\n", "a"]) for _ in range(rng.randrange(1, 10)))


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=True) + "\n")


def hugging_face(name, path, n):
    """text, ids as encoded, ids with the post-processor's tokens, ids with special tokens left as text, text of ids."""
    rng = random.Random(SEED)
    tok = Tokenizer.from_file(str(path))
    rows = []
    texts = SNIPPETS + [random_text(rng) for _ in range(n)]
    for text in texts:
        tok.encode_special_tokens = False
        row = {"text": text, "ids": tok.encode(text, add_special_tokens=False).ids}
        row["special"] = tok.encode(text, add_special_tokens=True).ids
        tok.encode_special_tokens = True
        row["plain"] = tok.encode(text, add_special_tokens=False).ids
        row["decoded"] = tok.decode(row["ids"], skip_special_tokens=False)
        row["skipped"] = tok.decode(row["ids"], skip_special_tokens=True)
        rows.append({k: v for k, v in row.items() if k in ("text", "ids") or v != row["ids" if isinstance(v, list) else "text"]})
    ids = [i for i in range(tok.get_vocab_size()) if tok.id_to_token(i) is not None]
    for _ in range(40):  # ids that no text gives: characters cut anywhere
        some = [rng.choice(ids) for _ in range(rng.randrange(1, 20))]
        rows.append({"decode": some, "decoded": tok.decode(some, skip_special_tokens=False), "skipped": tok.decode(some, skip_special_tokens=True)})
    (DATA / name).mkdir(exist_ok=True)
    write(DATA / name / "random.jsonl", rows)


def added_tokens():
    """A small tokenizer whose added tokens use every flag, pre-tokenizer behaviour by behaviour."""
    rng = random.Random(SEED)
    base = json.loads((ROOT / "models/tale-v3-14m/tokenizer.json").read_text())
    n = len(base["model"]["vocab"])
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    specs = [("[L]", dict(lstrip=True)), ("[R]", dict(rstrip=True)), ("[LR]", dict(lstrip=True, rstrip=True)), ("wo", dict(single_word=True)),
             ("[N\u00e9]", dict(normalized=True, special=False)), ("[P]", dict(special=False)), ("[PP]", {}), ("[P][P]", dict(special=False)),
             ("e\u0301x", dict(normalized=True, special=False)), ("\u3000", dict(special=False)), ("ab cd", dict(special=False, single_word=True))]
    base["added_tokens"] += [{"id": n + i, "content": c, **flags, **f} for i, (c, f) in enumerate(specs)]
    base["normalizer"] = {"type": "NFC"}
    base["model"]["vocab"] = {k: v for k, v in base["model"]["vocab"].items()}
    # A tenth of the merges keeps the file small; the rest of the vocabulary then has no use.
    base["model"]["merges"] = base["model"]["merges"][:300]
    used = {b for b in base["model"]["vocab"] if base["model"]["vocab"][b] < 4 + 256 + 300}
    base["model"]["vocab"] = {k: v for k, v in base["model"]["vocab"].items() if k in used}
    for i, t in enumerate(base["added_tokens"]):
        t["id"] = i if i < 4 else len(used) + i - 4
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    pattern = {"Regex": "[A-Z0-9]+"}
    variants = {"behaviour_" + b: [{"type": "Split", "pattern": pattern, "behavior": b, "invert": False}, whole]
                for b in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")}
    variants |= {"invert_" + b: [{"type": "Split", "pattern": pattern, "behavior": b, "invert": True}, whole]
                 for b in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")}
    variants |= {
        "literal": [{"type": "Split", "pattern": {"String": "a."}, "behavior": "MergedWithPrevious", "invert": False}, whole],
        "digits": [{"type": "Digits", "individual_digits": False}, whole],
        "individual_digits": [{"type": "Digits", "individual_digits": True}, whole],
        "prefix_space": [{"type": "Digits", "individual_digits": True}, dict(whole, add_prefix_space=True, use_regex=True)],
        "kimi": [{"type": "Split", "pattern": {"Regex": KIMI_PATTERN}, "behavior": "Isolated", "invert": False}, whole],
    }
    tag = {"type": "NFKC"}
    normalizers = {"nfkc": tag, "nfd": {"type": "NFD"}, "nfkd": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}]}}
    pieces = ["[L]", "[R]", "[LR]", "wo", "w", "o", "_", "[N\u00e9]", "[Ne\u0301]", "[P]", "[PP]", "[P][P]", "e\u0301x", "\u00e9x", "\u3000", "ab cd", " ", "  ",
              "\n", "\u00a0", "A", "B1", "12", "a.", "the", "中文", "Ünï", "\u1e9b\u0323", "ﬁ", "\u0301", "!", "<|user|>", "가\u11a8", "ⓐ", "\u200d"]
    texts = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 12))) for _ in range(60)]
    rows = [{"base": base}]
    for name, pre in variants.items():
        rows.append({"name": name, "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre}})
    rows += [{"name": name, "normalizer": spec} for name, spec in normalizers.items()]
    for row in rows[1:]:
        spec = dict(base, **{k: v for k, v in row.items() if k != "name"})
        tok = Tokenizer.from_str(json.dumps(spec))
        row["texts"] = rng.sample(texts, 30)
        tok.encode_special_tokens = False
        row["ids"] = [tok.encode(t, add_special_tokens=False).ids for t in row["texts"]]
        tok.encode_special_tokens = True
        row["plain"] = [tok.encode(t, add_special_tokens=False).ids for t in row["texts"]]
    write(DATA / "variants.jsonl", rows)


# As published in tokenization_kimi.py of Kimi K2; Oniguruma and Rust read the intersections as meant.
KIMI_PATTERN = "|".join([
    r"""[\p{Han}]+""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
    r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+""",
])


def slices(text):
    """How the published tokenizer cuts long text: every 400,000 characters, and runs of one kind after 25,000."""
    for at in range(0, len(text), 400_000):
        chunk, start, run = text[at : at + 400_000], 0, 0
        for i, c in enumerate(chunk):
            run = run + 1 if i and c.isspace() == chunk[i - 1].isspace() else 1
            if run > 25_000:
                yield chunk[start:i]
                start, run = i, 1
        yield chunk[start:]


def kimi():
    """A small vocabulary in Kimi's format, trained here by plain byte-pair counting over the demo text and the snippets."""
    rng = random.Random(SEED)
    enc = tiktoken.Encoding("bytes", pat_str=KIMI_PATTERN, mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={})
    import regex

    text = ENGLISH[:12000] + " ".join(SNIPPETS) * 3
    words = [[bytes([b]) for b in w.encode()] for w in regex.findall(KIMI_PATTERN, text, flags=regex.V1)]
    ranks = {bytes([i]): i for i in range(256)}
    while len(ranks) < 1000:
        counts = {}
        for w in words:
            for pair in zip(w, w[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        (a, b), _ = max(counts.items(), key=lambda kv: (kv[1], kv[0]))
        ranks.setdefault(a + b, len(ranks))
        for w in words:
            i = 0
            while i + 1 < len(w):
                if w[i] == a and w[i + 1] == b:
                    w[i : i + 2] = [a + b]
                i += 1
    out = DATA / "kimi"
    out.mkdir(exist_ok=True)
    with open(out / "tiktoken.model", "wb") as f:
        for token, rank in ranks.items():
            f.write(base64.b64encode(token) + b" %d\n" % rank)
    n = len(ranks)
    names = {n: "[BOS]", n + 1: "[EOS]", n + 2: "<|im_end|>", n + 3: "<|im_user|>", n + 9: "[EOT]", n + 255: "[PAD]"}
    flags = dict(lstrip=False, rstrip=False, normalized=False, single_word=False, special=True)
    config = {"added_tokens_decoder": {str(i): {"content": c, **flags} for i, c in names.items()},
              "bos_token": "[BOS]", "eos_token": "[EOS]", "tokenizer_class": "TikTokenTokenizer",
              "chat_template": [{"name": "other", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}"}]}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    special = {names.get(i, f"<|reserved_token_{i}|>"): i for i in range(n, n + 256)}
    enc = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=special)
    more = list(special)[:12]
    rows = []
    for text in SNIPPETS + [random_text(rng) + rng.choice([""] * 3 + more) + random_text(rng) for _ in range(220)]:
        row = {"text": text, "ids": enc.encode(text, allowed_special="all"), "plain": enc.encode(text, disallowed_special=())}
        row["decoded"] = enc.decode(row["ids"])
        rows.append({k: v for k, v in row.items() if k in ("text", "ids") or v != row["ids" if isinstance(v, list) else "text"]})
    for unit, times in (("abc", 30000), ("ab, ", 110000), (" \u3000", 20000), ("\x1c", 60000), ("the中!\n", 90000), ("Xy[EOT]", 12000)):
        ids = [i for part in slices(unit * times) for i in enc.encode(part, allowed_special="all")]
        rows.append({"unit": unit, "times": times, "n": len(ids), "weighted": sum((k + 1) * i for k, i in enumerate(ids))})
    for _ in range(40):
        some = [rng.randrange(n + 256) for _ in range(rng.randrange(1, 20))]
        rows.append({"decode": some, "decoded": enc.decode(some)})
    write(out / "vectors.jsonl", rows)


if __name__ == "__main__":
    unpacked = pathlib.Path(sys.argv[1])
    hugging_face("deepseek_v3", unpacked / "deepseek_v3" / "tokenizer.json", 220)
    hugging_face("qwen3", unpacked / "qwen3" / "tokenizer.json", 220)
    hugging_face("tale", ROOT / "models/tale-v3-14m/tokenizer.json", 120)
    added_tokens()
    kimi()

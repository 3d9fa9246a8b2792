#!/usr/bin/env python3
"""Expected figures of tandem perplexity and tandem eval on the demo model, from the plain numpy forward pass that came with the model.

usage: make_perplexity.py        writes tests/data/perplexity/expected.json

The protocol (docs/evaluation.md) is written down here a second time, in its simplest form: each token's context is looked up by itself.
"""
import json
import math
import os
import sys

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, "models", "tale-v3-14m")
DATA = os.path.join(ROOT, "tests", "data", "perplexity")
sys.path[:0] = [MODEL, os.path.join(ROOT, "scripts", "golden")]
import reference  # noqa: E402
from bpe import Tokenizer  # noqa: E402
from make_deferral import Deferring  # noqa: E402

BOS = 0


def contexts(n, window, stride):
    """{window's begin: [tokens it scores]}: a token belongs to the first window that has it."""
    out, begin = {}, 0
    for i in range(n):
        while i >= begin + window:
            begin += stride
        out.setdefault(begin, []).append(i)
    return out


def log_probs(model, documents, window, stride, prefix=(BOS,)):
    """[windows] of (log-probabilities of every token at every scored position, the tokens that come)."""
    out = []
    for ids in documents:
        for begin, scored in contexts(len(ids), window, stride).items():
            fed = list(prefix) + list(ids[begin:scored[-1]])
            scored = [i for i in scored if prefix or i > begin]  # something must stand before a token
            logits = reference.log_softmax(model.logits(np.array(fed)).astype(np.float64))
            out.append((logits[[len(prefix) + i - begin - 1 for i in scored]], [ids[i] for i in scored]))
    return out


def standard_error(sums, counts):
    sums, counts = np.array(sums), np.array(counts)
    n, mean = len(sums), sum(sums) / sum(counts)
    return math.sqrt(n / (n - 1) * ((sums - mean * counts) ** 2).sum()) / counts.sum()


def of_tokens(windows, figure):
    """Mean and standard error of figure(log-probabilities, token) over all tokens."""
    per = [[figure(row, t) for row, t in zip(rows, tokens)] for rows, tokens in windows]
    return sum(map(sum, per)) / sum(map(len, per)), standard_error(list(map(sum, per)), list(map(len, per)))


def main():
    tok = Tokenizer(MODEL)
    valid = tok.encode_plain(open(os.path.join(MODEL, "valid.txt")).read())
    lines = [json.loads(x) for x in open(os.path.join(DATA, "documents.jsonl")) if x.strip()]
    documents = [tok.encode_plain(x["text"]) for x in lines]
    plain, expected = reference.DeepSeekV3(MODEL), {"cases": []}
    for name, text, window, stride, limit, bos in (("valid.txt", [valid], 128, 48, 1000, True), ("valid.txt", [valid], 200, 200, 1000, True),
                                                   ("valid.txt", [valid], 64, 1, 100, True), ("documents.jsonl", documents, 24, 12, 0, True),
                                                   ("valid.txt", [valid], 100, 30, 400, False), ("valid.txt", [valid], 90, 90, 400, False)):
        windows = log_probs(plain, [t[:limit or None] for t in text], window, stride, (BOS,) if bos else ())
        nll, error = of_tokens(windows, lambda row, t: -row[t])
        expected["cases"].append({"text": name, "window": window, "stride": stride, "limit": limit, "bos": bos, "tokens": sum(len(t) for _, t in windows),
                                  "windows": len(windows), "nll": nll, "nll_error": error})

    # a model that is another function: two experts a token are deferred
    window, stride, limit = 128, 64, 600
    ref, own = (log_probs(m, [valid[:limit]], window, stride) for m in (plain, Deferring(MODEL, 2)))
    both = [((list(zip(a, b))), tokens) for (a, tokens), (b, _) in zip(ref, own)]
    figures = {"kl": lambda row, t: float((np.exp(row[0]) * (row[0] - row[1])).sum()), "top1_agreement": lambda row, t: float(row[0].argmax() == row[1].argmax()),
               "logprob_change": lambda row, t: abs(row[0][t] - row[1][t]), "nll_difference": lambda row, t: row[0][t] - row[1][t]}
    compared = {"text": "valid.txt", "window": window, "stride": stride, "limit": limit, "max_deferred": 2}
    for name, figure in figures.items():
        compared[name], compared[name + "_error"] = of_tokens(both, figure)
    kls = sorted(figures["kl"](row, t) for rows, tokens in both for row, t in zip(rows, tokens))
    compared["kl_99"] = kls[int(0.99 * (len(kls) - 1))]

    # signal to noise of the hidden state after each layer, over the rows of one window
    fed = np.array([BOS] + list(valid[:limit])[:window - 1])
    states = []
    for model in (plain, Deferring(MODEL, 2)):
        x, kept = model.w["model.embed_tokens.weight"][fed], []
        for i in range(model.c["num_hidden_layers"]):
            x = model.layer(x, i)
            kept.append(x.astype(np.float64))
        states.append(kept)
    compared["one_window_hidden_db"] = [None if not (a - b).any() else 10 * math.log10((a ** 2).sum() / ((a - b) ** 2).sum()) for a, b in zip(*states)]
    expected["deferred"] = compared

    # choices: the sum of the log-probabilities of " choice" after the question
    questions = [("Once upon a time there lived a", ["king", "queen of the fairies", "theorem"], 0), ("The princess and the", ["prince", "carburettor"], "B"),
                 ("\"Where are you going?\" asked the old", ["spoon", "woman", "xylophone"], "woman")]
    expected["choices"] = []
    for question, choices, answer in questions:
        scores = []
        for choice in choices:
            context, whole = tok.encode_plain(question), tok.encode_plain(question + " " + choice)
            assert whole[:len(context)] == context
            logits = reference.log_softmax(plain.logits(np.array([BOS] + whole[:-1])).astype(np.float64))
            scores.append(float(sum(logits[i, whole[i]] for i in range(len(context), len(whole)))))
        expected["choices"].append({"question": question, "choices": choices, "answer": answer, "scores": scores})
    json.dump(expected, open(os.path.join(DATA, "expected.json"), "w"), indent=1)


if __name__ == "__main__":
    main()

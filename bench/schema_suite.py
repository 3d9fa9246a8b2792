#!/usr/bin/env python3
"""How much of the JSON-Schema-Test-Suite, and of the tests of xgrammar and llguidance, the grammars of all three follow, as tables of Markdown.

usage: schema_suite.py --tandem build/release/cli/tandem [--suite .../JSON-Schema-Test-Suite/tests/draft2020-12] [--xgrammar .../xgrammar-0.2.8]
                       [--llguidance .../llguidance-1.9.1]

The last two are folders of source packages of PyPI (schema_corpora.py), which want xgrammar, pytest and jsonschema installed. Engines that are not
installed are left out. Instances are written with their members in the schema's order. A group is a schema with its instances.
"""
import argparse
import collections
import glob
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/text/grammar"))
import schema_corpora
import test_schema_suite


def suite(folder):
    """@return [(schema, [(value, valid)])]"""
    return [(case["schema"], [(t["data"], t["valid"]) for t in case["tests"]])
            for path in sorted(glob.glob(os.path.join(folder, "*.json"))) for case in json.load(open(path, encoding="utf-8"))]


def tandem(program):
    def decide(schema, texts):
        accepted, error = test_schema_suite.run(program, schema, texts)
        return [False] * len(texts) if error and "no text matches" in error else accepted
    return decide


def xgrammar():
    import xgrammar as xg
    compiler = xg.GrammarCompiler(xg.TokenizerInfo([bytes([i]) for i in range(256)] + ["</s>"], stop_token_ids=[256]))

    def decide(schema, texts):
        try:
            compiled = compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        except Exception:
            return None
        out = []
        for text in texts:
            m = xg.GrammarMatcher(compiled, terminate_without_stop_token=False)
            out.append(m.accept_string(text) and m.accept_token(256))
        return out
    return decide


def llguidance():
    import llguidance as ll
    tokens = [bytes([i]) for i in range(256)] + [b"\xff<eos>"]

    class Bytes:
        eos_token_id, bos_token_id, special_token_ids = 256, None, [256]

        def __init__(self):
            self.tokens = tokens

        def __call__(self, text):
            return list(text.encode() if isinstance(text, str) else text)
    tokenizer = ll.LLTokenizer(ll.TokenizerWrapper(Bytes()))

    def decide(schema, texts):
        try:
            grammar = ll.LLMatcher.grammar_from_json_schema(schema)
        except Exception:
            return None
        out = []
        for text in texts:
            m = ll.LLMatcher(tokenizer, grammar)
            if m.is_error():
                return None
            ids = list(text.encode())
            out.append(m.try_consume_tokens(ids) == len(ids) and m.is_accepting())
        return out
    return decide


CORPORA = {"suite": suite, "xgrammar": schema_corpora.xgrammar, "llguidance": schema_corpora.llguidance}


def print_row(name, decide, groups):
    n = collections.Counter()
    for schema, tests in groups:
        got = decide(schema, [json.dumps(test_schema_suite.in_order(schema, value, schema)) for value, _ in tests])
        if got is None:
            continue
        wrong = [(valid, g) for (_, valid), g in zip(tests, got, strict=True) if valid != g]
        n["followed"] += 1
        n["right"] += not wrong
        n["invalid"] += sum(g for _, g in wrong)
        n["valid"] += sum(v for v, _ in wrong)
    print(f"| {name} | {n['followed']} of {len(groups)} | {n['right']} | {n['invalid']} | {n['valid']} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tandem", required=True)
    for name in CORPORA:
        parser.add_argument(f"--{name}", metavar="FOLDER")
    args = parser.parse_args()
    deciders = {"tandem": tandem(args.tandem)}
    for name, make in (("xgrammar", xgrammar), ("llguidance", llguidance)):
        try:
            deciders[name] = make()
        except ImportError as e:
            print(f"{name} is left out: {e}", file=sys.stderr)
    for corpus, read in CORPORA.items():
        folder = getattr(args, corpus)
        if folder:
            groups = read(folder)
            print(f"\n{corpus}: {len(groups)} groups with {sum(len(tests) for _, tests in groups)} instances\n")
            print("| | groups followed | groups right in all instances | accepted invalid | refused valid |\n|---|---|---|---|---|")
            for name, decide in deciders.items():
                print_row(name, decide, groups)


if __name__ == "__main__":
    main()

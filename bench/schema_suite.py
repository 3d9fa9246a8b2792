#!/usr/bin/env python3
"""How much of the JSON-Schema-Test-Suite the grammars of tandem, xgrammar and llguidance follow, as a table of Markdown.

usage: schema_suite.py --suite .../JSON-Schema-Test-Suite/tests/draft2020-12 --tandem build/release/cli/tandem

xgrammar and llguidance come from PyPI; a package that is not installed is left out. Instances are written with their members in the
schema's order. A group is a schema with its instances.
"""
import argparse
import collections
import glob
import json
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/text/grammar"))
import test_schema_suite


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


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--suite", required=True)
    parser.add_argument("--tandem", required=True)
    args = parser.parse_args()
    deciders = {"tandem": tandem(args.tandem)}
    for name, make in (("xgrammar", xgrammar), ("llguidance", llguidance)):
        try:
            deciders[name] = make()
        except ImportError as e:
            print(f"{name} is left out: {e}", file=sys.stderr)
    print("| | groups followed | groups right in all instances | accepted invalid | refused valid |\n|---|---|---|---|---|")
    for name, decide in deciders.items():
        n = collections.Counter()
        for path in sorted(glob.glob(os.path.join(args.suite, "*.json"))):
            for case in json.load(open(path, encoding="utf-8")):
                texts = [json.dumps(test_schema_suite.in_order(case["schema"], t["data"], case["schema"])) for t in case["tests"]]
                n["groups"] += 1
                got = decide(case["schema"], texts)
                if got is None:
                    continue
                wrong = [(t["valid"], g) for t, g in zip(case["tests"], got, strict=True) if t["valid"] != g]
                n["followed"] += 1
                n["right"] += not wrong
                n["invalid"] += sum(g for _, g in wrong)
                n["valid"] += sum(v for v, _ in wrong)
        print(f"| {name} | {n['followed']} of {n['groups']} | {n['right']} | {n['invalid']} | {n['valid']} |")


if __name__ == "__main__":
    main()

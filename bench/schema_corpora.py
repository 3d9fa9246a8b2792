"""Schemas and instances of the tests of xgrammar and llguidance, read from the folders of their source packages (PyPI) for schema_suite.py.

A corpus is a list of (schema, [(value, valid)]). Kept are instances of which the tests and the standard (the package jsonschema) say the same, so
that rules of one engine about white space, the order of members or 1.0 as an integer count for nobody; of schemas with a `format`, which the
standard does not enforce, what the tests say. Tests that need a tokenizer, or whose values are computed in Rust, are left out.
"""
import collections
import contextlib
import glob
import itertools
import json
import os
import re
import sys


def agreed(cases):
    """@param cases (schema, value, valid) of one corpus."""
    import jsonschema
    groups = collections.OrderedDict()
    for schema, value, valid in cases:
        try:
            standard = jsonschema.Draft202012Validator(schema).is_valid(value)
        except Exception:  # a reference that leads nowhere, a pattern that Python does not know
            continue
        if standard == valid or '"format"' in json.dumps(schema):
            tests = groups.setdefault(json.dumps(schema), (schema, []))[1]
            if not any(json.dumps(v) == json.dumps(value) for v, _ in tests):
                tests.append((value, valid))
    return list(groups.values())


# ---- xgrammar: its tests run, with a function that notes what it is given in place of the one that checks it ----

def strict(schema):
    """The schema with what xgrammar's strict mode takes for granted: no members and items beside those that are named."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    out = {k: v if k in ("enum", "const", "default", "examples") else strict(v) for k, v in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type", "object") == "object":
        out.setdefault("additionalProperties", False)
    if isinstance(schema.get("prefixItems"), list):
        out.setdefault("items", False)
    return out


def xgrammar(folder):
    import pytest
    cases = []

    def note(schema, instance, is_accepted=True, strict_mode=True, **_):
        if hasattr(instance, "model_dump"):
            value = instance.model_dump(mode="json", round_trip=True)
        elif isinstance(instance, str):
            try:
                value = json.loads(instance)
            except ValueError:
                return  # not JSON, so nobody takes it
        else:
            value = instance
        cases.append((strict(schema) if strict_mode else schema, value, is_accepted))

    class Notes:
        def pytest_collection_modifyitems(self, items):
            for item in items:
                item.module.check_schema_with_instance = note
                item.module.check_schema_grammar_builds = lambda *_, **__: None
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main([os.path.join(folder, "tests/python/test_json_schema_converter.py"), "-qq", "--no-summary", "--noconftest", "-c", os.devnull,
                     "-p", "no:cacheprovider"], plugins=[Notes()])
    return agreed(cases)


# ---- llguidance: functions of Rust that check json!(…) against json!(…) ----

TOKEN = re.compile(r"""\s+|//[^\n]*|/\*.*?\*/|(?P<raw>r(?P<hash>\#*)"(?P<body>.*?)"(?P=hash))|(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>-?\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?)
                        |(?P<word>[A-Za-z_]\w*!?)|(?P<mark>.)""", re.VERBOSE | re.DOTALL)
WORDS = {"true": True, "false": False, "null": None}


class Computed(Exception):
    """What stands there is not a literal."""


class Rust:
    """Values at the beginning of a text: literals, json!(…) with names of `known` in it, and &."""

    def __init__(self, text, known):
        self.known = known
        self.tokens = [m for m in TOKEN.finditer(text) if m.lastgroup]
        self.at = 0

    def peek(self):
        return self.tokens[self.at].group() if self.at < len(self.tokens) else ""

    def take(self, wanted):
        if self.peek() != wanted:
            raise Computed(self.peek())
        self.at += 1

    def list(self, end, item):
        out = []
        while self.peek() != end:
            out.append(item())
            if self.peek() != end:
                self.take(",")
        self.take(end)
        return out

    def member(self):
        name = self.value()
        self.take(":")
        return name, self.value()

    def value(self):
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if not token:
            raise Computed("the end")
        self.at += 1
        kind, text = ("raw" if token.group("raw") else token.lastgroup), token.group()
        if kind == "raw":
            return token.group("body")
        if kind == "text":
            return json.loads(re.sub(r"\\u\{([0-9a-fA-F]+)\}", lambda m: json.dumps(chr(int(m[1], 16)))[1:-1], text), strict=False)
        if kind == "number":
            return json.loads(text.replace("_", ""))
        if text == "&":
            return self.value()
        if text == "json!":
            self.take("(")
            value = self.value()
            self.take(")")
            return value
        if text == "[":
            return self.list("]", self.value)
        if text == "{":
            return dict(self.list("}", self.member))
        if text in WORDS:
            return WORDS[text]
        if text in self.known:
            return self.known[text]
        raise Computed(text)


def balanced(text, at):
    """Where the bracket at `at` ends."""
    depth = 0
    for m in TOKEN.finditer(text, at):
        if m.lastgroup == "mark":
            depth += (m.group() in "([{") - (m.group() in ")]}")
            if not depth:
                return m.end()
    raise Computed("no end")


def arguments(text, known):
    """The values of what stands in brackets."""
    r = Rust(text, known)
    r.take("(")
    return r.list(")", r.value)


def function_cases(attributes, parameters, body, statics):
    """(schema, value, valid) of a test: for its cases, and for all values of parameters that have #[values]."""
    names = re.findall(r"(\w+)\s*:", re.sub(r"#\[values\(.*?\)\]", "", parameters, flags=re.DOTALL))
    values = {}
    for m in re.finditer(r"#\[values\(", parameters):
        end = balanced(parameters, m.end() - 1)
        values[re.match(r"\s*\]\s*(\w+)", parameters[end:])[1]] = arguments(parameters[m.end() - 1:end], {})
    rows = [arguments(attributes[m.end() - 1:balanced(attributes, m.end() - 1)], statics) for m in re.finditer(r"#\[case(?:::\w+)?\(", attributes)] or [[]]
    free = [n for n in names if n not in values]
    for row, chosen in itertools.product(rows, itertools.product(*values.values())):
        known = {**statics, **dict(zip(free, row)), **dict(zip(values, chosen))}
        for m in re.finditer(r"let (\w+)(?:: \w+)? = (?=&?json!\()", body):
            known[m[1]] = Rust(body[m.end():], known).value()
        for m in re.finditer(r"json_schema_check\(", body):
            yield tuple(arguments(body[m.end() - 1:balanced(body, m.end() - 1)], known))


def llguidance(folder):
    cases = []
    for path in sorted(glob.glob(os.path.join(folder, "parser/tests/test_json_*.rs"))):
        with open(path, encoding="utf-8") as f:
            text = f.read()
        statics = {}
        for m in re.finditer(r"static ref (\w+): Value =", text):
            try:
                statics[m[1]] = Rust(text[m.end():], {}).value()
            except Computed:
                continue
        for m in re.finditer(r"((?:#\[[^\n]*\n|//[^\n]*\n)(?:(?!\n(?:pub )?fn ).)*?)\n?(?:pub )?fn (\w+)(?=\()", text, re.DOTALL):
            try:
                end = balanced(text, m.end())
                start = text.index("{", end)
                cases += function_cases(m[1], text[m.end() + 1:end - 1], text[start:balanced(text, start)], statics)
            except (Computed, TypeError, ValueError):
                continue
    return agreed(c for c in cases if len(c) == 3 and isinstance(c[2], bool))

#!/usr/bin/env python3
"""`tandem grammar --json-schema` on the public JSON Schema test suite, as PyPI's source package of jsonschema carries it, and on schemas of clients.

usage: test_schema_suite.py TANDEM

Each schema is refused by the name of what it has that is not supported, or decides every instance as the suite says; what differs by design is
listed here. Instances are written with the members in the schema's order, which is what a grammar can ask for.
"""
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

SUITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../build/venv/jsonschema-4.17.3/json/tests")
CLIENTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../data/client_schemas.jsonl")
FOLLOWED_LEAST = 1100  # schemas of all drafts
FOLLOWED_2020_12_LEAST = 260  # groups of 2020-12, of 339 here; one that no text matches is followed, too, as bench/schema_suite.py counts
DRAFTS = ["draft4", "draft6", "draft7", "draft2019-09", "draft2020-12"]

# (file, part of the case's or the instance's description): why the grammar says otherwise.
BY_DESIGN = [
    ("oneOf", "", "oneOf is anyOf"),
    ("unevaluatedProperties", "ref inside allOf / oneOf: ", "oneOf is anyOf"),
    ("unevaluatedProperties", "dynamic evalation inside nested refs: ", "oneOf is anyOf"),
    ("uniqueItems", "", "values that cannot be listed are not compared"),
    ("type", "a float with zero fractional part is an integer", "integers are written without fraction"),
    ("dependencies", "with escaped characters", "members that only conditions name come in the order of these"),
    ("dependentRequired", "with escaped characters", "likewise"),
    ("vocabulary", "no validation", "meta-schemas are not read"),
    ("enum", "float", "a number of enum is written as in the schema"),
    ("const", "float", "so is one of const"),
    ("const", "same object with different property order is valid", "and the members of an object in its order"),
    ("ref", "$ref prevents a sibling $id", "an $id beside $ref counts, likewise"),
    ("ref", "ref valid, maxItems ignored", "what stands beside $ref counts, as from draft 2019-09 on"),
]


def in_order(schema, value, root, depth=0):
    """The value with its members in the order of the schema's properties."""
    if not isinstance(schema, dict) or depth > 20:
        return value
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target = root
        for name in reference[1:].split("/")[1:]:
            name = name.replace("~1", "/").replace("~0", "~").replace("%25", "%").replace("%22", '"')
            target = target[int(name)] if isinstance(target, list) else target.get(name, {})
        value = in_order(target, value, root, depth + 1)
    for key in ("allOf", "anyOf", "oneOf"):
        for branch in reversed(schema.get(key) or []):
            value = in_order(branch, value, root, depth + 1)
    if isinstance(value, dict):
        properties = schema.get("properties") or {}
        names = [n for n in properties if n in value] + [n for n in schema.get("required") or [] if n in value and n not in properties]
        rest = [n for n in value if n not in names]
        value = {n: in_order(properties.get(n, schema.get("additionalProperties")), value[n], root, depth + 1) for n in [*dict.fromkeys(names), *rest]}
    if isinstance(value, list):
        items = schema.get("items")
        value = [in_order(items, v, root, depth + 1) if isinstance(items, dict) else v for v in value]
    return value


def run(tandem, schema, texts):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(schema, f)
        f.flush()
        lines = "".join(json.dumps({"text": t}) + "\n" for t in texts)
        done = subprocess.run([tandem, "grammar", "--json-schema", f.name], input=lines, capture_output=True, text=True, timeout=240)
    if done.returncode:
        return None, done.stderr.strip()
    return [json.loads(line)["accepted"] for line in done.stdout.splitlines()], None


def client_schemas(tandem):
    """The schemas of tests/data/client_schemas.jsonl, as pydantic, zod and MCP servers write them. Each is followed on its instances, or is
    refused in words that say what stands in it. @return what is wrong."""
    wrong = []
    with open(CLIENTS, encoding="utf-8") as f:
        for case in map(json.loads, f):
            texts = [json.dumps(in_order(case["schema"], v, case["schema"])) for v in [*case["accepted"], *case["refused"]]]
            accepted, error = run(tandem, case["schema"], texts)
            wanted = [True] * len(case["accepted"]) + [False] * len(case["refused"])
            if case.get("says", "") not in (error or "") or (error and "says" not in case) or (not error and ("says" in case or accepted != wanted)):
                wrong.append(f"{case['from']}: {case['name']}: {error or accepted}")
    return wrong


def main():
    tandem, counts, wrong, refusals, followed = sys.argv[1], collections.Counter(), [], collections.Counter(), collections.Counter()
    for draft in DRAFTS:
        folder = os.path.join(SUITE, draft)
        for name in sorted(os.listdir(folder)):
            if not name.endswith(".json"):
                continue
            for case in json.load(open(os.path.join(folder, name), encoding="utf-8")):
                texts = [json.dumps(in_order(case["schema"], t["data"], case["schema"])) for t in case["tests"]]
                accepted, error = run(tandem, case["schema"], texts)
                followed[draft] += error is None or "no text matches" in error
                if error is not None:
                    counts["schemas refused"] += 1
                    refusals[re.sub(r"^tandem grammar: ", "", error)[:70]] += 1
                    if "'" not in error and "no text matches" not in error:
                        wrong.append(f"{draft}/{name}: {case['description']}: refused without a name: {error}")
                    elif "no text matches" in error and any(t["valid"] for t in case["tests"]):
                        wrong.append(f"{draft}/{name}: {case['description']}: {error}")
                    continue
                counts["schemas followed"] += 1
                for test, text, got in zip(case["tests"], texts, accepted, strict=True):
                    counts["instances"] += 1
                    if got == test["valid"]:
                        continue
                    where = f"{case['description']}: {test['description']}"
                    if any(name == f + ".json" and part in where for f, part, _ in BY_DESIGN):
                        counts["instances that differ by design"] += 1
                    else:
                        wrong.append(f"{draft}/{name}: {where}: {text[:80]} accepted is {got}")
    wrong += client_schemas(tandem)
    print(dict(counts), dict(followed))
    if "-v" in sys.argv:
        print("\n".join(f"{n:4} {what}" for what, n in refusals.most_common()))
    print("\n".join(wrong))
    sys.exit(1 if wrong or counts["schemas followed"] < FOLLOWED_LEAST or followed["draft2020-12"] < FOLLOWED_2020_12_LEAST else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""`tandem tokenize` as a process. usage: test_tokenize_cli.py TANDEM SOURCE_DIR"""
import json
import subprocess
import sys

TANDEM, SOURCE = sys.argv[1:3]
KIMI = SOURCE + "/tests/data/tokenizers/kimi"


def run(args, text, **kw):
    return subprocess.run([TANDEM, "tokenize", *args], input=text, capture_output=True, text=True, encoding="utf-8", timeout=60, **kw)


rows = [r for r in map(json.loads, open(KIMI + "/vectors.jsonl", encoding="utf-8")) if "text" in r]
done = run(["--tokenizer-path", KIMI], "".join(json.dumps({"text": r["text"]}) + "\n" for r in rows))
assert done.returncode == 0 and done.stderr == "", done
assert [json.loads(line) for line in done.stdout.splitlines()] == [{"ids": r["ids"]} for r in rows]
back = run(["--tokenizer-path", KIMI, "--decode"], done.stdout)
assert back.returncode == 0
# by "\n" alone: the text holds other line separators
assert [json.loads(line) for line in back.stdout.split("\n")[:-1]] == [{"text": r["text"]} for r in rows]
plain = run(["--tokenizer-path", KIMI, "--no-parse-special"], "".join(json.dumps({"text": r["text"]}) + "\n" for r in rows))
assert [json.loads(line)["ids"] for line in plain.stdout.splitlines()] == [r.get("plain", r["ids"]) for r in rows]

skip = run(["--tokenizer-path", KIMI, "--decode", "--skip-special"], '{"ids": [1000, 72, 105, 1001]}\n')
assert json.loads(skip.stdout) == {"text": "Hi"}, skip
bos = run(["--model-path", SOURCE + "/models/tale-v3-14m", "--add-special"], '{"text": ""}')  # the last line needs no newline
assert json.loads(bos.stdout) == {"ids": [0]}, bos

# Lines that cannot be done: an error each, the others go on, exit status 1.
bad = ["", "{", "[]", '{"text": 5}', '{"ids": [1]}', '{"text": "\\ud800"}', '{"text": "a", "text": "b"}', '{"text": "ok"}']
done = run(["--tokenizer-path", KIMI], "\n".join(bad) + "\n")
out = [json.loads(line) for line in done.stdout.splitlines()]
assert done.returncode == 1 and len(out) == len(bad), done
assert all(list(o) == ["error"] and o["error"] for o in out[:-1]) and list(out[-1]) == ["ids"], out
bad = ['{"ids": [5000]}', '{"ids": [-1]}', '{"ids": [4294967296]}', '{"ids": [1e3]}', '{"ids": ["1"]}', '{"ids": 1}', '{"text": "a"}',
       '{"ids": [99999999999999999999]}', '{"ids": [65]}']
done = run(["--tokenizer-path", KIMI, "--decode"], "\n".join(bad) + "\n")
out = [json.loads(line) for line in done.stdout.splitlines()]
assert done.returncode == 1 and [list(o) for o in out] == [["error"]] * (len(bad) - 1) + [["text"]], out

# Each answer comes before the next line is asked for.
with subprocess.Popen([TANDEM, "tokenize", "--tokenizer-path", KIMI], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
    for _ in range(3):
        p.stdin.write('{"text": "A"}\n')
        p.stdin.flush()
        assert json.loads(p.stdout.readline()) == {"ids": [65]}
    p.stdin.close()
    assert p.wait(timeout=240) == 0

assert run([], "").returncode == 2
assert run(["--tokenizer-path", KIMI, "--no-such"], "").returncode == 2
assert run(["--tokenizer-path", KIMI, "extra"], "").returncode == 2
help_text = run(["--help"], "")
assert help_text.returncode == 0 and "--add-special" in help_text.stdout
missing = run(["--tokenizer-path", SOURCE + "/core"], "")
assert missing.returncode == 1 and "tokenizer.json" in missing.stderr
with open("/dev/full", "w") as full:
    done = subprocess.run([TANDEM, "tokenize", "--tokenizer-path", KIMI], input=b'{"text": "A"}\n', stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"standard output" in done.stderr, done

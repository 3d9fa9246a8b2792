#!/usr/bin/python3
"""`tandem render-chat` as a program: its options, template files, answers and exit statuses.

usage: test_template_cli.py TANDEM
"""
import json
import pathlib
import subprocess
import sys
import tempfile

TANDEM = sys.argv[1]


def run(args, lines=""):
    r = subprocess.run([TANDEM, "render-chat", *args], input=lines, capture_output=True, text=True, timeout=60)
    return r.returncode, [json.loads(line) for line in r.stdout.split("\n")[:-1]] if "usage" not in r.stdout else r.stdout, r.stderr


def check(got, want):
    if got != want:
        sys.exit(f"got {got!r}, wanted {want!r}")


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    (folder / "t.jinja").write_text("{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m['content'] }}{{ eos_token }}{% endfor %}")
    (folder / "bad.jinja").write_text("a\n{% include 'x' %}")
    template = (folder / "t.jinja").read_text()
    config = {"bos_token": {"__type": "AddedToken", "content": "<B>"}, "eos_token": "<E>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    config["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
    (folder / "named.json").write_text(json.dumps(config))
    (folder / "none.json").write_text("{}")
    hello = json.dumps({"messages": [{"role": "user", "content": "Hé"}]})

    check(run(["--chat-template", str(folder / "t.jinja")], hello), (0, [{"text": "user: Hé"}], ""))
    check(run(["--chat-template", str(folder / "t.jinja"), "--bos-token", "<s>", "--eos-token=</s>"], hello), (0, [{"text": "<s>user: Hé</s>"}], ""))
    check(run(["--chat-template", str(folder / "tokenizer_config.json")], hello), (0, [{"text": "<B>user: Hé<E>"}], ""))
    check(run(["--chat-template", str(folder / "named.json"), "--eos-token", ""], hello), (0, [{"text": "<B>user: Hé"}], ""))

    code, answers, _ = run(["--chat-template", str(folder / "t.jinja")], hello + "\n{\n" + '{"messages": [1]}\n' + hello + "\n")
    check((code, [list(a) for a in answers]), (1, [["text"], ["error"], ["text"], ["text"]]))

    for file, words in (("bad.jinja", "line 2: the tag 'include'"), ("none.json", "no chat_template"), ("missing.jinja", "No such file")):
        code, answers, err = run(["--chat-template", str(folder / file)], hello)
        check((code, answers, words in err), (1, [], True))
    check(run([])[0], 2)
    check(run(["--nonsense"])[0], 2)
    check(run(["--chat-template", "x", "y"])[0], 2)
    code, out, err = run(["--help"])
    check((code, out.startswith("usage: tandem render-chat"), err), (0, True, ""))

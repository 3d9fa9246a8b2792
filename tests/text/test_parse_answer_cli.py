#!/usr/bin/env python3
"""tandem parse-answer: transcripts of each format of tool calls and reasoning, whole and cut at every place.

The transcripts follow the models' own documents: their chat templates, Kimi's tool_call_guidance.md, MiniMax' tool_calling_guide.md,
DeepSeek-V3.2's encoding, OpenAI's harmony guide, Llama's and Mistral's prompt formats.
"""
import json
import random
import subprocess
import sys

TANDEM = sys.argv[1]

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}, "tags": {"type": "array"},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "size": {"type": ["integer", "string"]}}}}}
WRITE = {"type": "function", "function": {"name": "write_file", "parameters": {"type": "object", "properties": {
    "path": {"type": "string"}, "text": {"type": "string"}}}}}
TOOLS = [WEATHER, WRITE]


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


PARIS, ROME = call("get_weather", city="Paris"), call("get_weather", city="Rome", days=3)

# Calls of PARIS and ROME in DSML.
DSML_PARIS = '<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
DSML_ROME = ('<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Rome</｜DSML｜parameter>\n'
             '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n')

# (tool format, reasoning format, text, content, reasoning, calls)
CASES = [
    # ---- deepseek_v3, v31, v32
    ("deepseekv3", None, "Looking.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n"
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Rome\", \"days\": 3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "Looking.", "", [PARIS, ROME]),
    ("deepseekv3", "deepseek-r1", "Which city?</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{}\n```<｜tool▁call▁end｜>",
     "", "Which city?", [call("get_weather")]),
    ("deepseekv31", "deepseek-v3", "<think>Hm.</think>Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>"
     "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Rome\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "Let me see.", "Hm.", [PARIS, ROME]),
    ("deepseekv32", "deepseek-v3", "<think>Hm.</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Rome</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_weather\">\n"
     "{\"city\": \"Paris\"}\n</｜DSML｜invoke>\n</｜DSML｜function_calls>", "", "Hm.", [ROME, PARIS]),
    ("deepseekv32", None, "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
     "</｜DSML｜function_calls>", "", "", [call("get_weather", city="3")]),
    # Without the mark these are tags of a text, as of one about such calls.
    ("deepseekv32", None, "<function_calls>\n<invoke name=\"f\">\n</invoke>\n</function_calls>", "<function_calls>\n<invoke name=\"f\">\n</invoke>\n</function_calls>", "", []),
    ("deepseekv32", None, f"I look.\n\n<｜DSML｜function_calls>\n{DSML_PARIS}</｜DSML｜function_calls>", "I look.", "", [PARIS]),
    # ---- deepseek_v4
    ("deepseekv4", "deepseek-v4", f"<think>Hm.</think>I look.\n\n<｜DSML｜tool_calls>\n{DSML_PARIS}{DSML_ROME}</｜DSML｜tool_calls>", "I look.", "Hm.", [PARIS, ROME]),
    ("deepseekv4", "deepseek-v4", f"<think>Hm.\n\n<｜DSML｜tool_calls>\n{DSML_PARIS}</｜DSML｜tool_calls>", "", "Hm.", [PARIS]),
    ("deepseekv4", None, f"\n\n\n<｜DSML｜toolcalls>\n{DSML_PARIS}</｜DSML｜tool_calls>", "", "", [PARIS]),
    ("deepseekv4", None, f"I look.<｜DSML｜tool>\n{DSML_PARIS}</｜DSML｜tool_calls>", "I look.", "", [PARIS]),
    ("deepseekv4", None, f"I look.\n{DSML_PARIS}", "I look.\n", "", [PARIS]),
    ("deepseekv4", None, f"<｜DSML｜tool_calls>\n{DSML_PARIS}</｜DSML｜tool_calls>\n\nI have called.\n\n<｜DSML｜tool_calls>\n{DSML_ROME}</｜DSML｜tool_calls>", "", "", [PARIS, ROME]),
    ("deepseekv4", None, '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city">Rome</｜DSML｜parameter>\n'
     '<｜DSML｜parameter name="days">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', "", "", [ROME]),
    ("deepseekv4", None, '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Rome'
     '<｜DSML｜parameter name="days" string="false">3</｜DSML｜invoke>\n</｜DSML｜tool_calls>', "", "", [ROME]),
    ("deepseekv4", None, "See:\n\n<｜DSML｜tool_calls> are no calls.\n\n", "See:\n\n<｜DSML｜tool_calls> are no calls.\n\n", "", []),
    # ---- kimi
    ("kimi_k2", "kimi_k2", "<think>The user wants the weather.</think>I check.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
     "{\"city\": \"Paris\"}<|tool_call_end|><|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{\"city\": \"Rome\", \"days\": 3}"
     "<|tool_call_end|><|tool_calls_section_end|>", "I check.", "The user wants the weather.", [PARIS, ROME]),
    ("kimi_k2", "kimi_k2", "<think>Thinking<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}"
     "<|tool_call_end|><|tool_calls_section_end|>", "", "Thinking", [PARIS]),
    (None, "kimi", "◁think▷Let me think◁/think▷The answer", "The answer", "Let me think", []),
    # ---- qwen
    ("qwen25", "qwen3", "<think>\nOkay.\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n<tool_call>\n"
     "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}\n</tool_call>", "", "\nOkay.\n", [PARIS, ROME]),
    ("qwen25", "qwen3", "<think>\n\n</think>\n\nHello!", "\n\nHello!", "\n\n", []),
    ("qwen25", None, "One:\n<tool_call>\n{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}\n</tool_call>\nand done.", "One:\n\nand done.", "", [PARIS]),
    ("hermes", None, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\"}\n</tool_call>", "", "", [PARIS]),
    ("hermes", None, "<tool_call>{\"name\": \"get_weather\"}</tool_call>", "", "", [call("get_weather")]),
    ("qwen3_coder", None, "I write it.\n\n<tool_call>\n<function=write_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=text>\nif a < b:\n    print(\"\\\\n<b>\")\n\n</parameter>\n"
     "</function>\n</tool_call>", "I write it.\n\n", "", [call("write_file", path="a.py", text="if a < b:\n    print(\"\\\\n<b>\")\n")]),
    ("qwen3_coder", None, "<function=get_weather>\n<parameter=city>\n12\n</parameter>\n<parameter=days>\n12\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n<parameter=tags>\n"
     "[\"a\", 1]\n</parameter>\n<parameter=note>\nnull\n</parameter>\n<parameter=size>\nbig\n</parameter>\n<parameter=other>\n{\"a\": 1}\n</parameter>\n</function>\n</tool_call>", "", "",
     [call("get_weather", city="12", days=12, metric=True, tags=["a", 1], note=None, size="big", other={"a": 1})]),
    # Qwen3.5, whose prompt opens the reasoning: two calls behind it, a value that is an object, a parameter that is not closed
    ("qwen3_coder", "qwen3-thinking", "Both cities.\n</think>\n\nI look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", "\n\nI look.\n\n", "Both cities.\n", [PARIS, ROME]),
    ("qwen3_coder", "qwen3", "<think>\n\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=other>\n{\"a\": [1, \"b\"]}\n</parameter>\n</function>\n</tool_call>", "", "\n\n",
     [call("get_weather", other={"a": [1, "b"]})]),
    ("qwen3_coder", None, "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n\n</parameter>\n</function>\n</tool_call>",
     "", "", [call("get_weather"), call("get_weather", city="")]),
    ("qwen3_coder", None, "<function=get_weather>\n<parameter=city>Paris\n<parameter=days>3\n</function>", "", "", [call("get_weather", city="Paris", days=3)]),
    ("qwen3_coder", None, "<function=get_weather>\n<parameter=tags>\n[\n {\"a\": 'b'},\n True\n]\n</parameter>\n<parameter=city>\na <parameter=b>\n</parameter>\n</function>", "", "",
     [call("get_weather", tags=[{"a": "b"}, True], city="a <parameter=b>")]),
    # ---- glm
    ("glm45", "glm45", "<think>I need it.</think>\nI will look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>", "\nI will look.\n",
     "I need it.", [ROME, PARIS]),
    ("glm47", "glm45", "<think>I need it.</think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
     "<tool_call>get_weather</tool_call>", "", "I need it.", [ROME, call("get_weather")]),
    # GLM-5.3: strings bare, all else JSON, and a call that ends the reasoning
    ("glm47", "glm45", "<think>Both.<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
     "<tool_call>get_weather<arg_key>tags</arg_key><arg_value>[\"a\", {\"b\": null}]</arg_value></tool_call>", "", "Both.", [ROME, call("get_weather", tags=["a", {"b": None}])]),
    ("glm45", None, "<tool_call>ls <arg_key>dirPath</arg_key> <arg_value>backend</arg_value> </tool_call>", "", "", [call("ls", dirPath="backend")]),
    # ---- minimax
    ("minimax-m2", "minimax", "Let me see.</think>\n\n<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome</parameter>\n<parameter name=\"days\">3</parameter>\n"
     "</invoke>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\n</minimax:tool_call>", "", "Let me see.", [ROME, PARIS]),
    # ---- llama, mistral, python
    ("llama3", None, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}", "", "", [PARIS]),
    ("llama3", None, "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\", \"days\": 3}}", "",
     "", [PARIS, ROME]),
    ("llama3", None, "{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}", "", "", [PARIS]),
    ("llama3", None, "{\"name\": \"Bob\", \"age\": 3}", "{\"name\": \"Bob\", \"age\": 3}", "", []),
    ("llama3", None, "{\"name\": \"nobody\", \"parameters\": {}}", "{\"name\": \"nobody\", \"parameters\": {}}", "", []),
    ("llama3", None, "See {\"name\": \"get_weather\", \"parameters\": {}}", "See {\"name\": \"get_weather\", \"parameters\": {}}", "", []),
    ("mistral", None, "Sure.[TOOL_CALLS] [{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}, {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}]", "Sure.", "",
     [PARIS, ROME]),
    ("mistral", None, "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}[TOOL_CALLS]get_weather[CALL_ID]aB3dE6gH9[ARGS]{\"city\": \"Rome\", \"days\": 3}", "", "", [PARIS, ROME]),
    ("mistral", None, "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}", "", "", [PARIS]),
    ("json-list", None, "[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}},\n  {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}} ]", "", "", [PARIS, ROME]),
    ("json-list", "qwen3", "<think>[{\"name\": \"get_weather\", \"arguments\": {}}]</think>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]", "",
     "[{\"name\": \"get_weather\", \"arguments\": {}}]", [PARIS]),
    ("json-list", None, "[1, 2]", "[1, 2]", "", []),
    ("json-list", None, "See [{\"name\": \"get_weather\", \"arguments\": {}}]", "See [{\"name\": \"get_weather\", \"arguments\": {}}]", "", []),
    ("pythonic", None, "[get_weather(city='Paris'), get_weather(city=\"Rome\", days=3)]", "", "", [PARIS, ROME]),
    ("pythonic", None, "<|python_start|>[get_weather(city='it\\'s', days=-2, tags=[1, (True, None)], other={'a': 1.5})]<|python_end|>", "", "",
     [call("get_weather", city="it's", days=-2, tags=[1, [True, None]], other={"a": 1.5})]),
    ("pythonic", None, "[get_weather(days=123456789012345678901234567890)]", "", "", [call("get_weather", days=123456789012345678901234567890)]),
    ("pythonic", None, "See:\n[1] and [get_weather()]\n[unknown(a=1)]", "See:\n[1] and [get_weather()]\n[unknown(a=1)]", "", []),
    # ---- harmony
    ("gpt-oss", "gpt-oss", "<|channel|>analysis<|message|>Need the weather.<|end|><|start|>assistant<|channel|>commentary<|message|>I check.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>", "I check.", "Need the weather.", [PARIS]),
    ("gpt-oss", "gpt-oss", "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>It is 4.<|return|>", "It is 4.", "Easy.", []),
    ("gpt-oss", "gpt-oss", " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\":\"Paris\"}<|call|>", "", "", [PARIS]),
    ("gpt-oss", None, "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>4", "<|channel|>analysis<|message|>Easy.<|end|>4", "", []),
    (None, "gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>", "",
     []),
    # ---- reasoning alone
    (None, "deepseek-r1", "<think>\nA</think>B", "B", "\nA", []),
    (None, "deepseek-r1", "cut before its end", "", "cut before its end", []),
    (None, "qwen3", "no reasoning, <think> later</think>", "no reasoning, <think> later</think>", "", []),
    (None, "qwen3", "\n<think>a</think>", "", "a", []),
    (None, None, "<think>a</think><tool_call>{}</tool_call>", "<think>a</think><tool_call>{}</tool_call>", "", []),
    # ---- what is no call
    ("qwen25", None, "<tool_call>\nnot JSON\n</tool_call>", "<tool_call>\nnot JSON\n</tool_call>", "", []),
    ("qwen25", None, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": Paris}}\n</tool_call> x", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": Paris}}\n</tool_call> x", "",
     []),
    ("qwen25", None, "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par", "", []),
    ("qwen25", None, "<tool_call>oops<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool_call>", "<tool_call>oops", "", [PARIS]),
    ("qwen25", None, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</tool", "", "", [PARIS]),
    ("qwen25", None, "  \n ", "  \n ", "", []),
    ("qwen25", None, "a <tool_cal and <tool_", "a <tool_cal and <tool_", "", []),
    ("qwen3_coder", None, "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar", "", []),
    ("qwen25", "qwen3", "<think>use <tool_call> tags</think>ok", "ok", "use <tool_call> tags", []),
    ("glm45", None, "the <tool_call> tag is (not) a call", "the <tool_call> tag is (not) a call", "", []),
    ("gpt-oss", "gpt-oss", "plain text", "plain text", "", []),
    ("gpt-oss", "gpt-oss", "<|channel|>commentary to=python<|message|>print(1)<|call|>", "<|channel|>commentary to=python<|message|>print(1)<|call|>", "", []),
    ("mistral", None, "[TOOL_CALLS] are not these", "[TOOL_CALLS] are not these", "", []),
    ("kimi_k2", None, "<|tool_calls_section_begin|><|tool_calls_section_end|>", "<|tool_calls_section_begin|><|tool_calls_section_end|>", "", []),
    ("qwen25", None, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"days\": 123456789012345678901234567890}}</tool_call>", "", "",
     [call("get_weather", days=123456789012345678901234567890)]),
]


# Reasoning formats whose answers begin in the reasoning.
OPEN = ("deepseek-r1", "deepseek_r1", "qwen3-thinking", "minimax")


def parse(tool_format, reasoning_format, lines, status=0):
    flags = ([] if tool_format is None else ["--tool-call-parser", tool_format]) + ([] if reasoning_format is None else ["--reasoning-parser", reasoning_format])
    done = subprocess.run([TANDEM, "parse-answer", *flags], input="\n".join(map(json.dumps, lines)), capture_output=True, text=True)
    assert done.returncode == status, (done.returncode, done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


COUNT = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
    "n": {"type": "integer"}, "list": {"type": "array"}, "map": {"type": "object"}}}}}

# A call f(n=N, list=[N], map={"k": N}) in each format; every N is replaced.
J = '{"n": N, "list": [N], "map": {"k": N}}'
NUMBERED = [
    ("deepseekv3", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{J}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("deepseekv31", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{J}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
    ("deepseekv32", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="n" string="false">N</｜DSML｜parameter>\n'
     '<｜DSML｜parameter name="list" string="false">[N]</｜DSML｜parameter>\n<｜DSML｜parameter name="map" string="false">{"k": N}</｜DSML｜parameter>\n'
     "</｜DSML｜invoke>\n</｜DSML｜function_calls>"),
    ("deepseekv4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="n">N</｜DSML｜parameter>\n'
     '<｜DSML｜parameter name="list" string="false">[N]</｜DSML｜parameter>\n<｜DSML｜parameter name="map" string="false">{"k": N}</｜DSML｜parameter>\n'
     "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"),
    ("kimi_k2", f"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{J}<|tool_call_end|><|tool_calls_section_end|>"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\nN\n</parameter>\n<parameter=list>\n[N]\n</parameter>\n"
     '<parameter=map>\n{"k": N}\n</parameter>\n</function>\n</tool_call>'),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\nN\n</parameter>\n<parameter=list>\n(N,)\n</parameter>\n"
     "<parameter=map>\n{'k': N}\n</parameter>\n</function>\n</tool_call>"),
    ("glm45", "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>N</arg_value>\n<arg_key>list</arg_key>\n<arg_value>[N]</arg_value>\n"
     "<arg_key>map</arg_key>\n<arg_value>{'k': N}</arg_value>\n</tool_call>"),
    ("glm47", "<tool_call>f<arg_key>n</arg_key><arg_value>N</arg_value><arg_key>list</arg_key><arg_value>[N]</arg_value>"
     '<arg_key>map</arg_key><arg_value>{"k": N}</arg_value></tool_call>'),
    ("minimax-m2", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="n">N</parameter>\n<parameter name="list">[N]</parameter>\n'
     '<parameter name="map">{"k": N}</parameter>\n</invoke>\n</minimax:tool_call>'),
    ("qwen25", f'<tool_call>\n{{"name": "f", "arguments": {J}}}\n</tool_call>'),
    ("hermes", f'<tool_call>{{"arguments": {J}, "name": "f"}}</tool_call>'),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {json.dumps(J)}}}</tool_call>'),
    ("llama3", f'{{"name": "f", "parameters": {J}}}'), ("llama3", f'{{"parameters": {J}, "name": "f"}}'),
    ("mistral", f'[TOOL_CALLS] [{{"arguments": {J}, "name": "f"}}]'), ("mistral", f"[TOOL_CALLS]f[ARGS]{J}"),
    ("json-list", f'[{{"name": "f", "arguments": {J}}}]'),
    ("pythonic", "[f(n=N, list=(N,), map={'k': N})]"), ("pythonic", '<|python_start|>[f(n=N, list=[N], map={"k": N,},)]<|python_end|>'),
    ("gpt-oss", f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{J}<|call|>"),
]


def digits_are_kept():
    """Numbers that no machine word holds come out digit for digit, in every format."""
    spelled = {"parse_int": lambda digits: ("number", digits), "parse_float": lambda digits: ("number", digits)}
    numbers = [str(2**64), str(-2**63 - 1), "1234567890" * 4, "-" + "9" * 400, "1" + "0" * 39 + ".50", "1e999"]
    for tool_format, text in NUMBERED:
        lines = [{"pieces": [text.replace("N", number)], "tools": [COUNT]} for number in numbers]
        done = subprocess.run([TANDEM, "parse-answer", "--tool-call-parser", tool_format], input="\n".join(map(json.dumps, lines)), capture_output=True, text=True)
        for number, out in zip(numbers, done.stdout.splitlines(), strict=True):
            calls = json.loads(out, **spelled)["tool_calls"]
            assert calls == [{"name": "f", "arguments": json.loads(J.replace("N", number), **spelled)}], (tool_format, text, number, out)


def main():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    random.seed(seed)
    for tool_format, reasoning_format, text, content, reasoning, calls in CASES:
        want = {"content": content, "reasoning_content": reasoning, "tool_calls": calls}
        lines = [{"pieces": pieces, "tools": TOOLS} for pieces in
                 [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]]
        cuts = sorted(random.sample(range(len(text) + 1), min(5, len(text))))
        lines.append({"pieces": [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])], "tools": TOOLS})
        for line, got in zip(lines, parse(tool_format, reasoning_format, lines)):
            assert got == want, f"\n{tool_format} {reasoning_format} {line['pieces']}\n got {got}\nwant {want}"
    # Without tools arguments have the types that their texts have, and any name is a call.
    [got] = parse("qwen3_coder", None, [{"pieces": ["<tool_call><function=f><parameter=a>1</parameter><parameter=b>x</parameter></function></tool_call>"]}])
    assert got["tool_calls"] == [call("f", a=1, b="x")], got
    [got] = parse("pythonic", None, [{"pieces": ["[f(a=1)]"], "tools": None}])
    assert got["tool_calls"] == [call("f", a=1)], got
    # Numbers are written as they came.
    for tool_format, text, spelled in (
            ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 0.1, "b": 1.50, "c": 9007199254740993,\n "d": 18446744073709551617, "e": 1E-7}}</tool_call>',
             ('"a": 0.1,', '"b": 1.50,', '"c": 9007199254740993,', '"d": 18446744073709551617,', '"e": 1E-7')),
            ("pythonic", "[f(a=0.1, b=1.50, c=9007199254740993, d=-2.5e-7, e=100000.0)]",
             ('"a": 0.1,', '"b": 1.50,', '"c": 9007199254740993,', '"d": -2.5e-7,', '"e": 100000.0')),
            ("qwen3_coder", "<tool_call><function=f><parameter=a>0.1</parameter><parameter=b>[0.3, {\"x\": 4.35}]</parameter></function></tool_call>",
             ("0.1", "0.3,", "4.35"))):
        done = subprocess.run([TANDEM, "parse-answer", "--tool-call-parser", tool_format], input=json.dumps({"pieces": [text]}), capture_output=True, text=True)
        assert done.stdout.count("\n") == 1 and all(number in done.stdout for number in spelled), (tool_format, done.stdout)
    digits_are_kept()
    # A tool's name of 10 KB; a call of more than 1 MiB is content.
    name = "n" * 10240
    [got] = parse("hermes", None, [{"pieces": ["<tool_call>" + json.dumps({"name": name, "arguments": {}}) + "</tool_call>"]}])
    assert got["tool_calls"] == [call(name)]
    text = "<tool_call>" + json.dumps({"name": "f", "arguments": {"a": "x" * (1 << 20)}}) + "</tool_call>"
    [got] = parse("hermes", None, [{"pieces": [text]}])
    assert got == {"content": text, "reasoning_content": "", "tool_calls": []}
    deep = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": " + "[" * 5000 + "]" * 5000 + "}}</tool_call>"
    [got] = parse("hermes", None, [{"pieces": [deep]}])
    assert got["content"] == deep and not got["tool_calls"]
    deep = "[f(a=" + "[" * 5000 + "]" * 5000 + ")]"
    [got] = parse("pythonic", None, [{"pieces": [deep]}])
    assert got["content"] == deep and not got["tool_calls"]
    # Bad lines are told, and the rest goes on.
    got = parse("hermes", None, [[], {"pieces": "x"}, {"pieces": ["x", 1]}, {"pieces": ["x"], "tools": 3}, {"pieces": ["x"]}], status=1)
    assert ["error" in line for line in got] == [True, True, True, True, False], got
    for flags in (["--tool-call-parser", "nope"], ["--reasoning-parser", "nope"], ["--tool-call-parser", "gpt-oss", "--reasoning-parser", "qwen3"], ["x"]):
        done = subprocess.run([TANDEM, "parse-answer", *flags], input="", capture_output=True, text=True)
        assert done.returncode == 2 and done.stderr, (flags, done)
    # The values of the server's flags are the formats.
    flags = json.loads(subprocess.run([TANDEM, "launch_server", "--help-json"], capture_output=True, text=True).stdout)["flags"]
    for flag in ("tool-call-parser", "reasoning-parser"):
        names = next(row["values"] for row in flags if row["names"][0] == f"--{flag}")
        assert len(names) > 10 and names[0] == "auto", names
        for name in names[1:]:
            assert parse(*((name, None) if flag == "tool-call-parser" else (None, name)), [{"pieces": ["x"]}])[0]["content"] == ("" if name in OPEN else "x"), name
    print(len(CASES), "transcripts")


main()

"""Chat templates as Hugging Face transformers renders them: the oracle of the template tests.

The environment is that of transformers.utils.chat_template_utils: an immutable sandbox with trim_blocks, lstrip_blocks, loop
controls, {% generation %}, tojson without HTML escapes, raise_exception and strftime_now. One thing differs, as it does in
Tandem: list.append and list.pop are allowed, because Kimi-K2's templates cannot render a tool call without them.

Run with the interpreter that has python3-jinja2 (Debian: /usr/bin/python3).
"""
import copy
import datetime
import json

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Environment(ImmutableSandboxedEnvironment):
    def is_safe_attribute(self, obj, attr, value):
        if isinstance(obj, list) and attr in ("append", "pop"):
            return True
        return super().is_safe_attribute(obj, attr, value)


class Generation(jinja2.ext.Extension):
    """{% generation %} of transformers' AssistantTracker, without the tracking."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("_render")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _render(self, caller):
        return caller()


def _raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def _tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return env


def variables(request, bos=None, eos=None):
    """What apply_chat_template passes: special tokens, the request, tools and documents (None), add_generation_prompt."""
    v = {"tools": None, "documents": None, "add_generation_prompt": False}
    if bos is not None:
        v["bos_token"] = bos
    if eos is not None:
        v["eos_token"] = eos
    v.update(copy.deepcopy(request))  # a template may append to a list
    v.update(request.get("chat_template_kwargs") or {})
    return v


def render(env, source, request, bos=None, eos=None):
    """{"text"}, or {"error", "type"} with the class of the exception."""
    try:
        text = env.from_string(source).render(**variables(request, bos, eos))
        text.encode()
        return {"text": text}
    except Exception as e:
        return {"error": str(e), "type": type(e).__name__}

#!/usr/bin/python3
"""Random templates, rendered by `tandem render-chat` and by python3-jinja2: the texts must be the same, or both must fail.

usage: /usr/bin/python3 tests/text/test_template_jinja2.py TANDEM [--count N] [--seed S]

Needs python3-jinja2 (scripts/deps.sh test). Prints its seed. Left out is what differs on purpose (docs/templates.md): integers beyond 64 bits, and
what is refused as not supported. So are names set only after an inner scope has read them, and texts in which Python prints an address.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import template_reference as reference

REQUEST = {
    "s": "Hello, Wörld", "u": "你好 é\n ß", "e": "", "w": "  a  b,c , ", "n": 7, "z": 0, "neg": -3, "f": 2.5, "t": True, "no": None,
    "l": [3, 1, 2, 3], "ls": ["b", "A", "", "a c"], "le": [], "mix": [1, "1", 1.0, None, True, [1]], "d": {"b": 1, "A": "x", "k": [1, 2]}, "de": {},
    "people": [{"name": "Bo", "age": 5, "tags": ["x"]}, {"name": "al", "age": 3}, {"name": "Cy", "age": 5, "tags": []}],
}


class Generator:
    def __init__(self, rng):
        self.rng = rng

    def pick(self, *options):
        return self.rng.choice(options)

    def expr(self, depth):
        r = self.rng
        if depth <= 0 or r.random() < 0.12:
            return self.atom()
        kind = r.randrange(16)
        sub = lambda: self.expr(depth - 1)
        if kind == 0:
            return f"({sub()} {self.pick('+', '-', '*', '/', '//', '%', '~', '~')} {sub()})"
        if kind == 1:
            return f"({sub()} {self.pick('==', '!=', '<', '<=', '>', '>=', 'in', 'not in')} {sub()})"
        if kind == 2:
            return f"({sub()} {self.pick('and', 'or')} {sub()})"
        if kind == 3:
            return f"({sub()} if {sub()} else {sub()})"
        if kind == 4:
            return f"({self.pick('not ', '-', '+')}{sub()})"
        if kind == 5:
            return f"{sub()}[{self.index(depth)}]"
        if kind == 6:
            return f"({sub()}).{self.pick('name', 'age', 'b', 'k', 'items()', 'keys()', 'missing', 'tags', 'get')}"
        if kind in (7, 8, 9):
            return f"({sub()} | {self.filter(depth)})"
        if kind in (10, 11):
            return f"({sub()} is {self.pick('', 'not ')}{self.test(depth)})"
        if kind == 12 and r.random() < 0.3:
            text = self.pick("{}", "{} {}", "{0}{1}{0}", "a{x}b", "{x!r}", "{0.name}", "{0[b]}", "{0[0]}", "{0[k][1]}", "{{{}}}", "{", "{}{0}", "{1}", "{:}")
            return f"'{text}'.format({sub()}" + self.pick("", f", {sub()}") + self.pick("", f", x={sub()}") + ")"
        if kind in (12, 13):
            return f"({self.string(depth)}).{self.method(depth)}"
        if kind == 14:
            return self.pick(f"[{sub()}, {sub()}]", f"({sub()}, {sub()})", f"{{'a': {sub()}, 'b': {sub()}}}", f"[{sub()}]", f"({sub()},)")
        return f"range({self.pick('3', '1, 6', '5, 0, -2', '0')})" + self.pick("", "|list", "|sum")

    def string(self, depth):
        return self.pick("s", "u", "e", "w", "'a-b_c'", "'aXbXX'", f"({self.expr(depth - 1)} | string)")

    def index(self, depth):
        part = lambda: self.pick("", "", "0", "1", "-1", "2", "-3", "9", "n", "no")
        return self.pick("0", "-1", "'name'", "'b'", "1", "20", f"{part()}:{part()}", f"{part()}:{part()}:{self.pick('', '1', '2', '-1', '-2')}", self.expr(depth - 2))

    def atom(self):
        names = list(REQUEST) + ["missing"]
        literals = ["0", "1", "2", "-1", "10", "1.5", "0.1", "2.0", "1e20", "1e-7", "''", "'a'", "'b'", "'it\\'s \"q\"'", "\"\\n\\t\\\\\\u00e9\"", "true", "false", "none", "[]", "{}", "()",
                    "123456789012", "'12'", "' 3.5 '", "'Abc dEF'"]
        return self.rng.choice(names if self.rng.random() < 0.6 else literals)

    def filter(self, depth):
        x = lambda: self.expr(depth - 2)
        return self.pick(
            "upper", "lower", "title", "capitalize", "trim", f"trim({x()})", "length", "string", "int", "float", f"int({x()})", "abs", "round", "round(1)", "round(1, 'floor')", "round(method='ceil')", "list",
            "first", "last", "join", "join('-')", f"join({x()})", "join(',', attribute='name')", "sort", "sort(reverse=true)", "sort(attribute='age')", "sort(case_sensitive=true)", "reverse|list", "unique|list", "sum",
            "sum(attribute='age')", "min", "max", "tojson", "tojson(indent=2)", "tojson(sort_keys=true)", "tojson(ensure_ascii=true)", "dictsort", "dictsort(by='value')", "items|list", f"default({x()})", f"default({x()}, true)",
            f"replace('a', {x()})", "replace('l', 'LL', 1)", "replace('', '.')", "indent", "indent(2, true)", "indent('>', blank=true)", "batch(2)|list", "batch(2, 0)|list", "map('string')|list", "map('upper')|list",
            "map(attribute='name')|list", "map(attribute='tags', default='q')|list", "map('default', 1)|list", "select|list", "reject|list", "select('number')|list", "select('string')|list", "reject('none')|list",
            "selectattr('age')|list", "selectattr('age', 'gt', 4)|list", "rejectattr('tags', 'defined')|list", f"select('eq', {x()})|list", f"select('in', {x()})|list", "escape", "center(12)", "length|string", "attr('upper') is callable")

    def test(self, depth):
        return self.pick("defined", "undefined", "none", "string", "number", "integer", "float", "boolean", "mapping", "iterable", "sequence", "callable", "true", "false", "odd", "even", "divisibleby 3", "lower", "upper",
                         f"eq({self.expr(depth - 2)})", f"in({self.expr(depth - 2)})", f"lt({self.expr(depth - 2)})", f"ge {self.atom().replace('-', '')}", f"ne({self.atom()})")

    def method(self, depth):
        x = lambda: self.expr(depth - 2)
        text = lambda: self.pick("'a'", "'l'", "' '", "','", "''", "'Xb'", "s", "'\\n'")
        return self.pick(
            "strip()", f"strip({text()})", "lstrip()", "rstrip()", f"rstrip({text()})", "upper()", "lower()", "title()", "capitalize()", "split()", f"split({text()})", f"split({text()}, 1)", f"rsplit({text()}, 1)", "split(none, 1)",
            "rsplit(none, 1)", "splitlines()", f"startswith({text()})", f"endswith({text()})", f"startswith(('a', {text()}))", f"replace({text()}, {text()})", f"replace({text()}, 'q', 2)", f"find({text()})", f"find({text()}, 2)",
            f"rfind({text()})", f"find({text()}, -3, -1)", f"count({text()})", f"index({text()})", "isdigit()", "isalpha()", "isalnum()", "isspace()", "islower()", "isupper()", f"join({x()})", f"partition({text()})", f"rpartition({text()})",
            f"removeprefix({text()})", f"removesuffix({text()})", "center(9)", f"split({x()})")

    def space(self):
        return self.pick("", "", " ", "\n", "\n  ", " x\n", "\t", "\n\n")

    def tag(self, body):
        left, right = self.pick("", "", "-", "+"), self.pick("", "", "-", "+")
        return f"{{%{left} {body} {right}%}}"

    def block(self, depth):
        r, e = self.rng, self.expr
        kind = r.randrange(10) if depth > 0 else r.randrange(3)
        if kind == 0:
            return r.choice(["text", "Ünï", "{# note #}", "{#- note -#}", "{% raw %} {{ raw }} {% endraw %}", "{ % }", "  "])
        if kind in (1, 2):
            return f"{{{{{self.pick('', '-')} {e(r.randrange(4))} {self.pick('', '-')}}}}}"
        body = lambda: self.space() + "".join(self.block(depth - 1) + self.space() for _ in range(r.randrange(1, 3)))
        if kind == 3:
            return self.tag(f"if {e(2)}") + body() + self.pick("", self.tag(f"elif {e(2)}") + body()) + self.pick("", self.tag("else") + body()) + self.tag("endif")
        if kind in (4, 5):
            inside = self.pick("{{ x }}", "{{ loop.index }}{{ x }}", "{{ loop.last }}{{ loop.first }}", "{{ loop.length }},{{ loop.revindex }}", "{{ loop.previtem }}>{{ loop.nextitem }}", "{{ loop.cycle('a', 'b') }}", "{% set y = x %}{{ y }}")
            control = self.pick("", "", "", self.tag(f"if {e(1)}") + self.tag(self.pick("break", "continue")) + self.tag("endif"))
            return self.tag(f"for x in {e(2)}" + self.pick("", "", f" if {self.pick('x', 'x is odd', 'loop is defined', e(1))}")) + inside + control + body() + self.pick("", self.tag("else") + body()) + self.tag("endfor")
        if kind == 6:
            return self.tag(f"set {self.pick('x', 'fresh', 'a, b')} = {e(2)}") + "{{ n }}{{ x }}{{ fresh }}{{ a }}"
        if kind == 7:
            return self.tag("set " + self.pick("fresh", "x", "x | upper", "fresh | trim | length")) + body() + self.tag("endset") + "{{ x }}{{ fresh }}"
        if kind == 8:
            return self.tag(f"macro m(p, q={e(1)})") + "{{ p }}{{ q }}" + self.pick("", "{{ varargs }}", "{{ kwargs }}") + body() + self.tag("endmacro") + f"{{{{ m({self.pick('', '1', '1, 2', 'q=3', '1, 2, 3', 'p=1, r=2', 's, q=l')}) }}}}"
        return self.pick(self.tag(f"with x = {e(2)}, y = x") + "{{ y }}" + body() + self.tag("endwith"), self.tag("filter " + self.pick("upper", "trim", "replace('e', '3')|lower", "indent")) + body() + self.tag("endfilter"),
                         self.tag("generation") + body() + self.tag("endgeneration"), self.tag("set ns = namespace(v=0)") + self.tag("for x in l") + self.tag("set ns.v = ns.v + x") + self.tag("endfor") + "{{ ns.v }}")

    def template(self):
        return self.space() + "".join(self.block(3) + self.space() for _ in range(self.rng.randrange(1, 4)))


def render_with_tandem(tandem, path):
    run = subprocess.run([tandem, "render-chat", "--chat-template", str(path)], input=json.dumps(REQUEST), capture_output=True, text=True, timeout=60)
    if not run.stdout:
        if run.returncode != 1:
            sys.exit(f"tandem ended with status {run.returncode}: {run.stderr}")
        return {"error": run.stderr.strip()}
    return json.loads(run.stdout)


def differs_on_purpose(want, got):
    error = got.get("error", "")
    refused = "not supported" in error and "instances" not in error
    folded = "cannot be sliced" in error  # jinja2 makes a slice of a constant number undefined, of a variable an error
    return "64 bits" in error or refused or folded or " at 0x" in want.get("text", "")


def main():
    warnings.simplefilter("ignore")  # Python's compiler on constants that are called or indexed
    options = argparse.ArgumentParser()
    options.add_argument("tandem")
    options.add_argument("--count", type=int, default=500)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    o = options.parse_args()
    print(f"seed {o.seed}, {o.count} templates")
    generator, env = Generator(random.Random(o.seed)), reference.environment()
    compared = texts = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "random.jinja"
        for _ in range(o.count):
            source = generator.template()
            path.write_text(source, encoding="utf-8", newline="")
            want, got = reference.render(env, source, REQUEST), render_with_tandem(o.tandem, path)
            if differs_on_purpose(want, got):
                continue
            compared += 1
            texts += "text" in want
            if want.get("text") != got.get("text"):
                wrong += 1
                print(f"--- {source!r}\n  jinja2: {want}\n  tandem: {got}")
    print(f"{compared} compared, {texts} of them texts, {wrong} differ")
    if compared < o.count / 2 or texts < compared / 10:
        sys.exit("too few templates could be compared")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""Write tests/data/templates/fixtures.json: requests and what python3-jinja2 makes of them, for test_chat_template.

usage: /usr/bin/python3 tests/text/make_template_fixtures.py

{"requests": [...], "sources": [...], "cases": [{"template": file or "source": index, "request": index, "bos"?, "eos"?, and "text", or "error" (with
"raised": true where the words are the template's own)}]}
"""
import json
import pathlib

import template_cases
import template_reference as reference

DATA = pathlib.Path(__file__).resolve().parent.parent / "data" / "templates"


def cases():
    """(what to render, request)"""
    for path in sorted(DATA.glob("*.jinja")):
        for request in template_cases.REQUESTS:
            yield {"template": path.name, "bos": "<s>", "eos": "</s>"}, request
        yield {"template": path.name}, template_cases.REQUESTS[0]
    for source in template_cases.STYLES:
        for request in template_cases.REQUESTS:
            yield {"source": source, "bos": "<s>", "eos": "</s>"}, request
    for source in template_cases.CONSTRUCTS:
        yield {"source": source}, template_cases.CONSTRUCT_REQUEST


def main():
    env = reference.environment()
    requests, sources, lines = [], [], []
    for case, request in cases():
        source = case["source"] if "source" in case else (DATA / case["template"]).read_text(encoding="utf-8")
        got = reference.render(env, source, request, case.get("bos"), case.get("eos"))
        if request not in requests:
            requests.append(request)
        if source not in sources:
            sources.append(source)
        if "source" in case:
            case["source"] = sources.index(source)
        case["request"] = requests.index(request)
        if "text" in got:
            case["text"] = got["text"]
        else:
            case["error"] = got["error"]
            case["raised"] = got["type"] == "TemplateError"
        lines.append(case)
    with open(DATA / "fixtures.json", "w", encoding="utf-8") as out:
        out.write("{")
        for name, items in (("requests", requests), ("sources", sources), ("cases", lines)):
            rows = ",\n".join(json.dumps(item, ensure_ascii=False) for item in items)
            out.write(f"{',' if name != 'requests' else ''}\n\"{name}\": [\n{rows}\n]")
        out.write("\n}\n")


if __name__ == "__main__":
    main()

"""The documents as data: their links, and the commands that they tell a reader to type."""
import functools
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = re.compile(r"(?:[A-Z][A-Z_]+=\S+\s+)*(tandem(?! \d)|build/release/\S+|scripts/\S+|bench/\S+|python3?|curl|cmake|ctest|ninja|git|apt-get|hf|modelscope)\s")

# A block of code: the blanks before its fences (it may stand in a list), its language, its text.
BLOCK = re.compile(r"^([ \t]*)```(\w*)\n(.*?)^\1```", re.S | re.M)


def pages():
    """Every page of the project, but data that tests keep."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed]


def without_code(text):
    return re.sub(r"`[^`\n]*`", "", BLOCK.sub("", text))


def without_blocks(page):
    return BLOCK.sub("", page.read_text())


def blank_blocks(page):
    """A page's text with nothing in its blocks, each line where it was."""
    return BLOCK.sub(lambda block: "\n" * block[0].count("\n"), page.read_text())


@functools.cache
def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    found = set()
    for title in re.findall(r"^#+ (.*)$", without_blocks(page), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


def broken_links(page):
    """The relative links of a page that lead nowhere."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{target}: there is no such file"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{target}: no heading of that name"


def whole(text):
    """Whether bash takes it as it is, or waits for more."""
    run = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    return run.returncode == 0 and not text.rstrip().endswith("\\") and "here-document" not in run.stderr


def block_commands(page):
    """The commands in a page's blocks, comments taken off: (line of the page, command). Python blocks are one command each."""
    text = page.read_text()
    for block in BLOCK.finditer(text):
        line = text[:block.start()].count("\n") + 2
        rows = [row.removeprefix(block[1]) for row in block[3].split("\n")]
        if block[2] == "python":
            yield line, "\n".join(rows)
            continue
        command = ""
        for i, row in enumerate(rows):
            if not command and not PROGRAMS.match(row + " "):
                continue
            first = first if command else line + i
            command += row + "\n"
            if whole(command):
                yield first, re.sub(r"\s+#\s.*$", "", command).strip()
                command = ""


def span_commands(page):
    """The commands of this project named within sentences: (line, command)."""
    for n, row in enumerate(blank_blocks(page).split("\n"), 1):
        for span in re.findall(r"`([^`]+)`", row):
            if re.match(r"(?:[A-Z][A-Z_]+=\S+\s+)*(tandem [a-z]|scripts/\S+|bench/\S+|build/release/\S+)", span):
                yield n, span


def outline(page):
    """What a page and its translation have in common: the levels of its headings, and its commands' first words."""
    text = without_blocks(page)
    return re.findall(r"^#+(?= )", text, re.M), [command.split()[:1] for _, command in block_commands(page)]


def table_rows(page):
    """The number of rows of tables below each heading."""
    text = without_blocks(page)
    return [len(re.findall(r"^ *\|", section, re.M)) for section in re.split(r"^#+ .*$", text, flags=re.M)]


def named_code(page):
    """The spans of code without blanks on a page: fields, flags, files and commands, which are the same in every language."""
    text = without_blocks(page)
    return {span for span in re.findall(r"`([^`\n]+)`", text) if re.fullmatch(r"[!-~]+", span)}


def broken_tables(page):
    """Lines of tables that are not as Markdown wants them: (line, what is wrong). The second row of a table divides its head from its body, and every
    row has as many cells as the head."""
    text = blank_blocks(page)
    for table in re.finditer(r"(?:^[ \t]*\|.*\n?)+", text, re.M):
        first = text[:table.start()].count("\n") + 1
        rows = table[0].splitlines()
        counts = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
        if len(rows) < 2 or not re.fullmatch(r"[ \t]*\|(?:\s*:?-+:?\s*\|)+\s*", rows[1]):
            yield first, "a table without a head"
        for i, count in enumerate(counts):
            if count != counts[0]:
                yield first + i, f"{count - 1} cells, and the head has {counts[0] - 1}"


def defines(text, name):
    """Whether C has the function's body: a type, the name, and no semicolon where the parameters end."""
    for m in re.finditer(r"^[a-z][^\n;=]*\b%s\(" % re.escape(name), text, re.M):
        end = re.search(r"[;{]", text[m.end():])
        if end and end[0] == "{":
            return True
    return False


def named_functions(page):
    """The functions that a page names with their files, `name` ([path](../path)): (name, path shown, path)."""
    return re.findall(r"`(\w+)`\s+\(\[([^\]]+)\]\(\.\./([^)]+)\)\)", page.read_text())

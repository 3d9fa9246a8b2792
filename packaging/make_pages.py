#!/usr/bin/env python3
"""Write man pages and shell completions of what a tandem program says of its commands and flags (--help-json).

usage: make_pages.py --out FOLDER -- PROGRAM...     FOLDER/man1/*.1, FOLDER/completion.bash, .zsh, .fish, and FOLDER/stamp at the end

The pages carry the day of SOURCE_DATE_EPOCH (without it, today's); nothing else depends on the time or the machine.
"""
import argparse
import json
import os
import re
import subprocess
import time

FOLDER_ARGS = {"DIR"}


def ask(program, *command):
    return json.loads(subprocess.run([*program, *command, "--help-json"], check=True, capture_output=True, text=True).stdout)


def takes_folder(flag):
    return flag["arg"] in FOLDER_ARGS


def takes_file(flag):
    return bool(flag["arg"]) and flag["arg"].startswith("FILE")


# ---- man pages ----

def roff(text):
    """Text as troff reads it: backslashes and dashes are themselves, and no line begins with a control character."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("~", "\\(ti").replace("^", "\\(ha").replace("`", "\\(ga")
    text = "".join(c if ord(c) < 128 else f"\\[u{ord(c):04X}]" for c in text)
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def quoted(text):
    return '"' + roff(text).replace('"', "\\(dq") + '"'


def sentences(text):
    """A paragraph, a line of input a sentence; lines that begin with two spaces stay as they are."""
    out = []
    for block in re.split(r"\n\n+", text.strip("\n")):
        lines = block.split("\n")
        if all(line.startswith("  ") for line in lines):
            out += [".PP", ".nf", *[roff(line[2:]) for line in lines], ".fi"]
        else:
            out += [".PP", *split_sentences(" ".join(line.strip() for line in lines))]
    return out


def split_sentences(text):
    return roff(re.sub(r"(?<=[.;:]) (?=[A-Z0-9{])", "\n", text)).split("\n")


def man_flag(flag):
    names = [f"\\fB{roff(name)}\\fR" for name in flag["names"]]
    out = [".TP", ", ".join(names) + (f" \\fI{roff(flag['arg'])}\\fR" if flag["arg"] else "")]
    said = (flag["help"] or "See the same flag without its prefix.") if flag["supported"] else "Not supported yet. " + (flag["help"] or "")
    out += split_sentences(said)
    if flag["values"]:
        out += split_sentences("One of " + ", ".join(flag["values"]) + ".")
    if flag["default"]:
        out += split_sentences(f"Default: {flag['default']}.")
    if flag["repeats"]:
        out += ["May be given several times."]
    return out


def man_head(name, summary, version):
    day = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    return [f".TH {quoted(name.upper())} 1 {day} {quoted('tandem ' + version)} \"User Commands\"", ".SH NAME", f"{roff(name)} \\- {roff(summary)}", ".SH SYNOPSIS"]


def command_page(version, summary, command):
    out = man_head(f"tandem-{command['name']}", summary, version)
    out += [".B tandem " + roff(command["name"]), roff(command["synopsis"]), ".SH DESCRIPTION"]
    out += sentences(command["about"])[1:]
    out += [".SH OPTIONS"]
    title = None
    for flag in command["flags"]:
        if flag["title"] and flag["title"] != title:
            title = flag["title"]
            out += [".SS " + quoted(title)]
        out += man_flag(flag)
    out += [".TP", "\\fB\\-\\-help\\fR, \\fB\\-h\\fR", "Print the flags.", ".TP", "\\fB\\-\\-help\\-json\\fR", "Print them as a JSON object."]
    if command["after"]:
        out += [".SH NOTES", *sentences(command["after"])[1:]]
    if command["name"] == "launch_server":
        out += [".SH FILES", ".TP", "\\fI/etc/tandem/tandem.yaml\\fR", "What the service of the packages passes as \\fB\\-\\-config\\fR.",
                ".SH ENVIRONMENT", ".TP", "\\fBNOTIFY_SOCKET\\fR, \\fBWATCHDOG_USEC\\fR", "Set by systemd for a service of Type=notify; see \\fBsd_notify\\fR(3)."]
    out += [".SH EXIT STATUS", "0 is success, 1 a failure, 2 a mistake in the flags.", ".SH SEE ALSO", "\\fBtandem\\fR(1)"]
    return out


def main_page(overview):
    out = man_head("tandem", "inference engine for large Mixture-of-Experts language models", overview["version"])
    out += [".B tandem", "\\fICOMMAND\\fR [\\fIoptions\\fR]", ".SH DESCRIPTION",
            "Routed experts run on the CPU in INT4, everything else on a small device tier, which may be the CPU, too.",
            "The commands:"]
    for command in overview["commands"]:
        out += [".TP", f"\\fB{roff(command['name'])}\\fR", roff(command["help"]) + "; see \\fBtandem\\-" + roff(command["name"]) + "\\fR(1)"]
    out += [".SH OPTIONS", ".TP", "\\fB\\-\\-help\\fR, \\fB\\-h\\fR", "List the commands.", ".TP", "\\fB\\-\\-version\\fR",
            "Print the version, the commit, the tiers of kernels in this build and the best one for this processor, and the devices.",
            ".TP", "\\fB\\-\\-help\\-json\\fR", "List the commands as a JSON object.",
            ".SH ENVIRONMENT", ".TP", "\\fBTD_CPU_MASK\\fR", "The highest tier of kernels that may be used.",
            ".SH SEE ALSO", ",\n".join(f"\\fBtandem\\-{roff(c['name'])}\\fR(1)" for c in overview["commands"])]
    return out


# ---- completions ----

def first_sentence(text):
    return re.split(r"(?<=[.;]) ", text)[0].rstrip(".;") if text else ""


def offered(command):
    """What completion proposes: what is there."""
    return [flag for flag in command["flags"] if flag["supported"]]


def bash(commands):
    out = ["# bash completion of tandem; made from its table of flags", "_tandem() {",
           "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words=",
           "    COMPREPLY=()",
           "    if [ \"$COMP_CWORD\" -eq 1 ]; then",
           f"        mapfile -t COMPREPLY < <(compgen -W '{' '.join(c['name'] for c in commands)} --help --version' -- \"$current\")",
           "        return", "    fi",
           "    case \"$command $previous\" in"]
    for command in commands:
        for flag in offered(command):
            pattern = " | ".join(f"'{command['name']} {name}'" for name in flag["names"])
            if flag["values"]:
                out.append(f"        {pattern}) words='{' '.join(flag['values'])}' ;;")
            elif takes_folder(flag):
                out.append(f"        {pattern}) mapfile -t COMPREPLY < <(compgen -d -- \"$current\"); return ;;")
            elif takes_file(flag):
                out.append(f"        {pattern}) mapfile -t COMPREPLY < <(compgen -f -- \"$current\"); return ;;")
            elif flag["arg"]:
                out.append(f"        {pattern}) return ;;")
    out += ["    esac", "    if [ -z \"$words\" ]; then", "        case \"$command\" in"]
    for command in commands:
        names = [name for flag in offered(command) for name in flag["names"]] + ["--help"]
        out.append(f"            {command['name']}) words='{' '.join(names)}' ;;")
    out += ["        esac", "    fi", "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")", "}",
            "complete -o filenames -F _tandem tandem"]
    return out


def zsh_text(text):
    return text.replace("\\", "\\\\").replace("'", "'\\''").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")


def zsh_flag(flag):
    action = ""
    if flag["arg"]:
        way = f"({' '.join(flag['values'])})" if flag["values"] else "_files -/" if takes_folder(flag) else "_files" if takes_file(flag) else ""
        action = f":{zsh_text(flag['arg'])}:{way}"
    star = "*" if flag["repeats"] else ""
    return [f"'{star}{name}[{zsh_text(first_sentence(flag['help']))}]{action}'" for name in flag["names"]]


def zsh(commands):
    out = ["#compdef tandem", "# made from the program's table of flags", "local curcontext=$curcontext state line", "local -a commands", "commands=("]
    out += [f"    '{c['name']}:{zsh_text(c['help'])}'" for c in commands]
    out += [")", "_arguments -C '--help[list the commands]' '--version[print version, commit and tiers]' '1:command:->command' '*::argument:->argument'",
            "case $state in", "command) _describe command commands ;;", "argument)", "    case $line[1] in"]
    for command in commands:
        specs = [spec for flag in offered(command) for spec in zsh_flag(flag)] + ["'--help[print the flags]'"]
        if command["operand"]:
            specs.append("'1:argument:'")
        out.append(f"    {command['name']})")
        out.append("        _arguments \\\n            " + " \\\n            ".join(specs) + " ;;")
    return out + ["    esac ;;", "esac"]


def fish_text(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def fish(commands):
    out = ["# made from the program's table of flags", "complete -c tandem -f",
           "complete -c tandem -n __fish_use_subcommand -l help -d 'list the commands'",
           "complete -c tandem -n __fish_use_subcommand -l version -d 'print version, commit and tiers'"]
    for command in commands:
        out.append(f"complete -c tandem -n __fish_use_subcommand -a {command['name']} -d {fish_text(command['help'])}")
        for flag in offered(command):
            way = ""
            if flag["values"]:
                way = f" -x -a {fish_text(' '.join(flag['values']))}"
            elif takes_folder(flag):
                way = " -x -a '(__fish_complete_directories)'"
            elif takes_file(flag):
                way = " -r -F"
            elif flag["arg"]:
                way = " -x"
            for name in flag["names"]:
                option = f"-l {name[2:]}" if name.startswith("--") else f"-{'s' if len(name) == 2 else 'o'} {name[1:]}"
                out.append(f"complete -c tandem -n '__fish_seen_subcommand_from {command['name']}' {option}{way} -d {fish_text(first_sentence(flag['help']))}")
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("program", nargs="+")
    args = parser.parse_args()
    overview = ask(args.program)
    commands = [{**ask(args.program, c["name"]), "help": c["help"]} for c in overview["commands"]]
    files = {"man1/tandem.1": main_page(overview), "completion.bash": bash(commands), "completion.zsh": zsh(commands), "completion.fish": fish(commands)}
    for command in commands:
        files[f"man1/tandem-{command['name']}.1"] = command_page(overview["version"], command["help"], command)
    os.makedirs(os.path.join(args.out, "man1"), exist_ok=True)
    for name, lines in {**files, "stamp": []}.items():
        with open(os.path.join(args.out, name), "w", encoding="utf-8") as f:
            f.write("".join(line + "\n" for line in lines))


if __name__ == "__main__":
    main()

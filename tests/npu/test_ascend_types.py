#!/usr/bin/env python3
"""npu/ascend's declarations of AscendCL and HCCL against the vendor's own headers, of the oldest and of the newest CANN.

A program that includes both is generated and compiled: a function type that is not compatible does not compile, constants and structures that
differ are named when it runs. What the headers do not have is listed. Without the wheels (offline) the test is skipped (77).
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CC = os.environ.get("CC", "cc")
EMULATOR = os.environ.get("TD_EMULATOR", "").split()  # of a cross build
OLDEST, NEWEST = "2.5.1", "2.14.0"
INCLUDE = ["-I", str(ROOT), "-I", str(ROOT / "include")]

LISTS = r"""
#include "npu/ascend/acl_api.h"
#define SYMBOL(symbol, without, since, document, ...) "@symbol" #symbol since
#define CONSTANT(name, value) "@constant" #name
#define STRUCT(ours, theirs) "@struct" #ours #theirs
#define INTEGER(ours, theirs) "@integer" #ours #theirs
TD_ACL_RUNTIME(SYMBOL) TD_ACL_META(SYMBOL) TD_ACL_HCCL(SYMBOL)
TD_ACL_CONSTANTS(CONSTANT) TD_ACL_STRUCTS(STRUCT) TD_ACL_INTEGERS(INTEGER)
"""

PROGRAM = r"""
#include <stdio.h>
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include "acl/acl.h"
#include "third_party/hccl/inc/hccl/hccl.h"
#include "npu/ascend/acl_types.h"
/* Our structures are compared by layout; in function types theirs stand for them. */
%(structs)s
#include "npu/ascend/acl_api.h"
%(asserts)s
int main(void) {
    int wrong = 0;
    static const struct { const char *name; long long ours, theirs; } same[] = {
%(rows)s
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (same[i].ours != same[i].theirs) {
            printf("%%s: %%lld here, %%lld in the header\n", same[i].name, same[i].ours, same[i].theirs);
            wrong = 1;
        }
    return wrong;
}
"""


def our_lists():
    text = subprocess.run([CC, "-std=gnu17", "-E", "-P", *INCLUDE, "-"], input=LISTS, capture_output=True, text=True, check=True).stdout
    found = {"symbol": {}, "constant": [], "struct": [], "integer": []}
    for name, since in re.findall(r'"@symbol" "(\w+)" (\d+)', text):
        found["symbol"][name] = int(since)
    found["constant"] = re.findall(r'"@constant" "(\w+)"', text)
    for kind in ("struct", "integer"):
        found[kind] = re.findall(r'"@%s" "(\w+)" "(\w+)"' % kind, text)
    return found


def without_comments(folder):
    text = "\n".join(p.read_text(errors="replace") for p in sorted(folder.rglob("*.h")))
    return re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)


def check(version, folder, ours, problems):
    text = without_comments(folder)
    words = set(re.findall(r"\w+", text))
    has = {s for s in ours["symbol"] if re.search(r"\b%s\s*\(" % s, text)}
    asserts, rows, structs = [], [], []
    for s in sorted(has):
        asserts.append('_Static_assert(__builtin_types_compatible_p(__typeof__(&%s), __typeof__(((td_acl *)0)->%s)), "%s");' % (s, s, s))
    for ours_type, theirs in ours["integer"]:
        if theirs in words:
            asserts.append('_Static_assert(__builtin_types_compatible_p(%s, %s), "%s");' % (ours_type, theirs, theirs))
    for name in ours["constant"]:
        if name in words:
            rows.append('        {"%s", (long long)TD_%s, (long long)%s},' % (name, name, name))
    for ours_type, theirs in ours["struct"]:
        if theirs in words:
            structs.append("typedef %s our_%s;\n#define %s %s" % (ours_type, theirs, ours_type, theirs))
            rows.append('        {"sizeof(%s)", sizeof(our_%s), sizeof(%s)},' % (theirs, theirs, theirs))
    if "aclCANNPackageVersion" in words:
        for ours_field, theirs in (("major", "majorVersion"), ("minor", "minorVersion"), ("release", "releaseVersion"), ("patch", "patchVersion")):
            rows.append('        {"%s", offsetof(our_aclCANNPackageVersion, %s), offsetof(aclCANNPackageVersion, %s)},' % (theirs, ours_field, theirs))
    with tempfile.TemporaryDirectory() as where:
        source = pathlib.Path(where) / "types.c"
        source.write_text(PROGRAM % {"structs": "\n".join(structs), "asserts": "\n".join(asserts), "rows": "\n".join(rows)})
        make_c(folder, pathlib.Path(where))
        command = [CC, "-std=gnu17", "-w", "-Dconstexpr=const", "-Dnullptr=((void *)0)", *INCLUDE, "-I", where, "-I", str(folder / "acl"), str(source), "-o", str(source.with_suffix(""))]
        built = subprocess.run(command, capture_output=True, text=True)
        if built.returncode:
            problems.append("%s: %s" % (version, built.stderr))
            return has
        ran = subprocess.run([*EMULATOR, str(source.with_suffix(""))], capture_output=True, text=True)
        if ran.returncode:
            problems.append("%s: %s" % (version, ran.stdout))
    missing = [n for n in ours["constant"] if n not in words]
    print("torch-npu %s: %d functions, %d constants and sizes, %d integer types are the same" % (version, len(has), len(rows), len(ours["integer"])))
    print("  its headers do not have: %s" % (", ".join(sorted(set(ours["symbol"]) - has) + missing) or "nothing missing"))
    return has


def make_c(folder, where):
    """HCCL's headers are C++: `const uint32_t NAME = 1;` becomes `enum { NAME = 1 };` so that it can bound an array, and tags become types."""
    to = where / "third_party" / "hccl" / "inc" / "hccl"
    to.mkdir(parents=True)
    (where / "third_party" / "acl").mkdir()
    (where / "third_party" / "acl" / "inc").symlink_to(folder / "acl")
    for name in ("hccl_types.h", "hccl.h"):
        text = (folder / "hccl" / "hccl" / name).read_text(errors="replace")
        text = re.sub(r"^(?:static )?const u?int\d+_t (\w+) =\s*([^;]+);", r"enum { \1 = (int)(\2) };", text, flags=re.M)
        tags = re.findall(r"\b(struct|union)\s+(\w+)\s*\{", text)
        (to / name).write_text("".join("typedef %s %s %s;\n" % (kind, tag, tag) for kind, tag in tags) + text)


def main():
    ours = our_lists()
    assert len(ours["symbol"]) > 50 and len(ours["constant"]) > 40, "the lists were not read"
    problems, found = [], {}
    for version in (OLDEST, NEWEST):
        got = subprocess.run([str(ROOT / "scripts" / "ascend_headers.sh"), version], capture_output=True, text=True)
        if got.returncode:
            print("skipped: the wheel torch-npu %s with the vendor's headers cannot be had here: %s" % (version, got.stderr.strip()[-300:]))
            return 77
        found[version] = check(version, pathlib.Path(got.stdout.strip()), ours, problems)
    for symbol, since in ours["symbol"].items():
        if since and symbol not in found[OLDEST]:
            problems.append("%s is said to be there since CANN 8.1, whose headers do not have it" % symbol)
        if not since and symbol in found[OLDEST]:
            problems.append("%s is in the headers of CANN 8.1: its `since` can say so" % symbol)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

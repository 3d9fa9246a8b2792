#!/usr/bin/env python3
"""Compare npu/ascend's declarations of aclnn with the vendor's documents, where somebody has the repositories.

usage: ascend_op_docs.py FOLDER…     checkouts of hicann/ops-nn, ops-math, ops-transformer and opbase (or mirrors), in any order
Every prototype of ours is looked up in a file SYMBOL.md (or A&SYMBOL.md) below the folders and compared type by type; names do not matter.
exits 1 when one differs, 2 when one has no document there
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LISTS = """
#include "npu/ascend/acl_api.h"
#include "npu/ascend/aclnn_api.h"
#define OPERATION(op, ladder, document, ...) @@ op##GetWorkspaceSize ( __VA_ARGS__ , uint64_t *workspace_bytes, td_acl_executor **executor ) @@
#define FUNCTION(symbol, without, since, document, result, parameters) @@ symbol parameters @@
TD_ACLNN_OPS(OPERATION)
TD_ACL_META(FUNCTION)
"""
VENDOR = {"td_acl_tensor_list": "aclTensorList", "td_acl_tensor": "aclTensor", "td_acl_scalar": "aclScalar", "td_acl_int_array": "aclIntArray",
          "td_acl_executor": "aclOpExecutor", "td_acl_dtype": "aclDataType", "td_acl_format": "aclFormat", "_Bool": "bool"}


def types(parameters):
    """'const aclTensor *x, int64_t dim' -> ['const aclTensor*', 'int64_t']"""
    found = []
    for one in re.sub(r"\s+", " ", parameters).split(","):
        words = re.findall(r"\w+|\*", one)
        if len(words) > 1 and words[-1] not in ("*", "const"):
            words.pop()  # its name
        found.append(" ".join(VENDOR.get(w, w) for w in words).replace(" *", "*"))
    return found


def ours():
    text = subprocess.run(["cc", "-std=gnu17", "-E", "-P", "-I", str(ROOT), "-"], input=LISTS, capture_output=True, text=True, check=True).stdout
    return {name: types(parameters) for name, parameters in re.findall(r"@@ (\w+) \((.*?)\) @@", text, flags=re.S)}


def documented(folders, name):
    """All prototypes of `name` in the documents, with their files."""
    stem = re.sub(r"GetWorkspaceSize$", "", name)
    for folder in folders:
        for path in sorted(folder.rglob("*%s*.md" % stem)):
            if stem not in path.stem.split("&") or "experimental" in path.parts:
                continue
            for parameters in re.findall(r"\b%s\s*\(([^()]*)\)" % name, path.read_text(errors="replace")):
                if "const" in parameters or "*" in parameters:
                    yield path, types(parameters)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folders = [pathlib.Path(f) for f in sys.argv[1:]]
    status, same = 0, 0
    for name, mine in ours().items():
        found = [(path, theirs) for path, theirs in documented(folders, name) if re.match(r"(const )?\w+", theirs[0])]
        if not found:
            print("%s: no document has it" % name)
            status = max(status, 2) if status != 1 else 1
        elif not any(mine == theirs for _, theirs in found):
            path, theirs = found[0]
            print("%s:\n  here      %s\n  document  %s\n            (%s)" % (name, ", ".join(mine), ", ".join(theirs), path))
            status = 1
        else:
            same += 1
    print("%d prototypes are as documented" % same)
    sys.exit(status)


if __name__ == "__main__":
    main()

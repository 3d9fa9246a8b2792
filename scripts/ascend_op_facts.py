#!/usr/bin/env python3
"""The table of facts about the vendor's operations: what their definitions (*_def.cpp) say of each tensor that the backend gives them.

usage: ascend_op_facts.py FOLDER...          checkouts of hicann/ops-nn, ops-math and ops-transformer, in any order, folders named so
       ascend_op_facts.py --write FOLDER...  write tests/standins/ascend/op_facts.inc anew

Without --write it prints what differs from the table, and exits 1 if anything does. A definition of an operation that none of the folders has leaves
the table's rows as they are, and is named. A row is a fact: operation, tensor (as the stand-in names it), input or output, required or not, the
data types that 910B takes, and where that stands. The stand-in holds every call of the backend to it.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/standins/ascend/op_facts.inc"
HEAD = """/* What the vendor's definitions say of the tensors of its operations: facts, a row a tensor, by scripts/ascend_op_facts.py.
 * FACT(operation, tensor, INPUT or OUTPUT, REQUIRED, OPTIONAL or DYNAMIC (a list), types of 910B, repository of hicann, file:line) */
/* clang-format off */
"""
KNOWN = {"FLOAT16", "BF16", "FLOAT", "INT4", "INT8", "UINT8", "BOOL", "INT16", "INT32", "INT64", "UINT64"}  # of the types that the stand-in tells apart
ONE_INPUT, TWO_INPUTS = {"self": "x", "selfRef": "x", "out": "y"}, {"self": "x1", "selfRef": "x1", "other": "x2", "mat2": "x2", "out": "y"}
# Where a definition's name is another than the function's, but for its case and an ending Optional, Out or Ref.
NAMES = {
    "aclnnMm": TWO_INPUTS, "aclnnBatchMatMul": TWO_INPUTS, "aclnnAdd": TWO_INPUTS, "aclnnInplaceAdd": TWO_INPUTS, "aclnnInplaceMul": TWO_INPUTS,
    "aclnnSigmoid": ONE_INPUT, "aclnnCast": ONE_INPUT, "aclnnSwiGlu": ONE_INPUT, "aclnnRotaryPositionEmbedding": ONE_INPUT, "aclnnCumsum": ONE_INPUT,
    "aclnnEmbedding": {"weight": "x", "out": "y"}, "aclnnGather": ONE_INPUT, "aclnnGatherV2": {**ONE_INPUT, "index": "indices"},
    "aclnnTransposeBatchMatMul": {"out": "y"}, "aclnnGroupedMatmulV5": {"out": "y"}, "aclnnMoeFinalizeRoutingV2": {"out": "y"},
    "aclnnGroupedMatmulSwigluQuantWeightNZ": {"output": "y", "outputScale": "y_scale"},
    "aclnnQuantMatmulV4": {"the scale of x2": "scale", "the scale of x1": "pertoken_scale", "out": "y"},
    "aclnnQuantMatmulV5": {"the scale of x2": "x2_scale", "the scale of x1": "x1_scale", "out": "y"},
    "aclnnQuantMatmulWeightNz": {"the scale of x2": "scale", "the scale of x1": "pertoken_scale", "out": "y"},
    **{f"aclnnFusedInferAttentionScoreV{i}": {"attentionOut": "attention_out"} for i in (3, 4, 5)},
}
# Operations that several functions of the stand-in declare together, and those whose function is another operation's.
MATMUL = ("x1", "x2", "the scale of x2", "the scale of x1", "bias", "out")
ATTENTION = ("query", "key", "value", "attenMask", "blockTable", "queryRope", "keyRope", "attentionOut")
SHARED = {"aclnnQuantMatmulV4": MATMUL, "aclnnQuantMatmulV5": MATMUL, "aclnnQuantMatmulWeightNz": MATMUL, "aclnnFusedInferAttentionScoreV3": ATTENTION,
          "aclnnFusedInferAttentionScoreV4": ATTENTION, "aclnnFusedInferAttentionScoreV5": ATTENTION, "aclnnMm": ("self", "mat2", "out"),
          "aclnnMlaPrologV2WeightNz": ("tokenX", "weightDq", "weightUqQr", "weightUk", "weightDkvKr", "rmsnormGammaCq", "rmsnormGammaCkv", "ropeSin", "ropeCos",
                                       "cacheIndex", "kvCacheRef", "krCacheRef", "dequantScaleX", "dequantScaleWDq", "dequantScaleWUqQr",
                                       "dequantScaleWDkvKr", "smoothScalesCq", "queryOut", "queryRopeOut")}
DEFINED = {"aclnnGather": "index/gather_elements"}  # where it is not the folder of the function's document


def plain(name):
    """A name without case, underscores and what functions add to it."""
    return re.sub(r"(Optional|Out|Ref)$", "", name).replace("_", "").lower()


def calls():
    """(operation, folder of its definition, tensors that the stand-in declares)"""
    listed = re.findall(r'X\((aclnn\w+), \w+, "(\w+) ([^"]*)"', (ROOT / "npu/ascend/aclnn_api.h").read_text())
    text = "".join(p.read_text() for p in sorted((ROOT / "tests/standins/ascend").glob("standin_op_*.c")))
    tensors = {op: re.findall(r'standin_add\(x, [^"]*?"(\w+)"', body) for op, body in
               re.findall(r'standin_begin\("(\w+)"(.*?)(?=STANDIN_SECOND|\Z)', text, flags=re.S)}
    return [(op, "ops-" + repository, DEFINED.get(op, folder), list(dict.fromkeys(SHARED.get(op) or tensors.get(op, [])))) for op, repository, folder in listed]


def definition(path):
    """Its tensors up to the first configuration of a chip: {plain name: (INPUT or OUTPUT, kind, types, line)}."""
    found = {}
    text = path.read_text(errors="replace")
    for match in re.finditer(r'this->(Input|Output)\("(\w+)"\)(.*?);', text, flags=re.S):
        kind = re.search(r"ParamType\((?:ge::)?(\w+)\)", match[3])
        types = re.search(r"DataType(?:List)?\(\{(.*?)\}\)", match[3], flags=re.S)
        names = re.findall(r"DT_(\w+)", types[1]) if types else []
        found.setdefault(plain(match[2]), (match[1].upper(), kind[1] if kind else "REQUIRED", sorted(set(names) & KNOWN), text[:match.start()].count("\n") + 1))
    return found


def row(op, tensor, fact, repository, where):
    direction, kind, types, line = fact
    return 'FACT(%s, "%s", %s, %s, %s, "%s", "%s:%d")' % (op, tensor, direction, kind, " | ".join(f"D({t})" for t in types) or "0", repository, where, line)


def facts(folders):
    """({operation: its rows}, what no definition is there for)"""
    rows, missing = {}, []
    for op, repository, folder, tensors in calls():
        root = folders.get(repository)
        paths = sorted((root / folder).glob("op_host/*_def.cpp")) if root else []
        if not paths:
            missing.append(f"{op}: no definition in {repository}/{folder}")
            continue
        defined = definition(paths[0])
        for tensor in tensors:
            fact = defined.get(plain(NAMES.get(op, {}).get(tensor, tensor)))
            if fact:
                rows.setdefault(op, []).append(row(op, tensor, fact, repository, paths[0].relative_to(root)))
            else:
                missing.append(f"{op}: {tensor} is not among {', '.join(defined)}")
    return rows, missing


def main():
    write = sys.argv[1:2] == ["--write"]
    folders = {pathlib.Path(f).name: pathlib.Path(f) for f in sys.argv[1 + write:]}
    if not folders:
        sys.exit(__doc__)
    rows, missing = facts(folders)
    there = {}
    for line in TABLE.read_text().splitlines() if TABLE.exists() else []:
        if line.startswith("FACT("):
            there.setdefault(re.match(r"FACT\((\w+)", line)[1], []).append(line)
    for text in missing:
        print(text)
    if write:
        kept = {op: rows.get(op) or there.get(op, []) for op, *_ in calls()}
        TABLE.write_text(HEAD + "".join(line + "\n" for lines in kept.values() for line in lines))
    differ = 0
    for op, lines in rows.items():
        for line in () if write else set(lines) ^ set(there.get(op, [])):
            print(f"{'source' if line in lines else 'table '}  {line}")
            differ += 1
    print(f"{sum(map(len, rows.values()))} tensors of {len(rows)} operations, {differ} rows differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()

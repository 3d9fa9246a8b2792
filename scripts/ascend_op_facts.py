#!/usr/bin/env python3
"""The table of facts about the vendor's operations: a row for every argument of every call that the backend may make.

usage: ascend_op_facts.py FOLDER...          checkouts of hicann/ops-nn, ops-math and ops-transformer, in any order, folders named so
       ascend_op_facts.py --write FOLDER...  write tests/standins/ascend/op_facts.inc anew

Without --write it prints what differs from the table, and exits 1 if anything does. A definition of an operation that none of the folders has leaves
the table's rows as they are, and is named. A row is a fact: operation, argument (as the vendor's document names it), what it is, required or not, the
data types or values that 910B takes, and where that stands. Rows are in the order of the function's arguments (npu/ascend/aclnn_api.h). The stand-in
holds every call of the backend to them.

Sources, the first that has it: the operation's definition (*_def.cpp), the vendor's document; for values, the line of the vendor's checks that VALUES
names. What neither checkout has is in BY_HAND, with the commit of the file that was read.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/standins/ascend/op_facts.inc"
HEAD = """/* What the vendor's sources say of each argument of its operations, in the arguments' order: facts, by scripts/ascend_op_facts.py.
 * FACT(operation, argument, what it is, REQUIRED, OPTIONAL, DYNAMIC (a list) or ABSENT (has to be null), types of 910B, values of 910B, repository, file:line)
 * Values: numbers and ranges ("-1|0..3", "1.." without an end), words ("PA_NZ|Norm"), "3 values"; "" any. */
/* clang-format off */
"""
KNOWN = {"FLOAT16", "BF16", "FLOAT", "INT4", "INT8", "UINT8", "BOOL", "INT16", "INT32", "INT64", "UINT64"}  # of the types that the stand-in tells apart
CLASSES = {"td_acl_tensor*": "INPUT", "td_acl_tensor_list*": "INPUT_LIST", "td_acl_int_array*": "INTS", "td_acl_scalar*": "SCALAR", "td_acl_dtype": "DTYPE",
           "double": "REAL", "_Bool": "FLAG", "char*": "TEXT", "int64_t": "LONG", "int": "INT", "int8_t": "INT", "int32_t": "INT"}

FIA = """query key value pseShift attenMask actualSeqLengths actualSeqLengthsKv dequantScale1 quantScale1 dequantScale2 quantScale2 quantOffset2 antiquantScale
antiquantOffset blockTable queryPaddingSize kvPaddingSize keyAntiquantScale keyAntiquantOffset valueAntiquantScale valueAntiquantOffset keySharedPrefix
valueSharedPrefix actualSharedPrefixLen queryRope keyRope keyRopeAntiquantScale """
FIA_NUMBERS = """numHeads scale preTokens nextTokens inputLayout numKeyValueHeads sparseMode innerPrecise blockSize antiquantMode softmaxLseFlag keyAntiquantMode
valueAntiquantMode """
# Arguments of functions whose document the checkouts do not have, or have in another edition.
ARGUMENTS = {
    "aclnnRopeWithSinCosCache": "positions queryIn keyIn cosSinCache mropeSection headSize isNeoxStyle queryOut keyOut",
    "aclnnFusedInferAttentionScoreV3": FIA + FIA_NUMBERS + "attentionOut softmaxLse",
    "aclnnFusedInferAttentionScoreV4": FIA + "dequantScaleQuery learnableSink " + FIA_NUMBERS + "queryQuantMode attentionOut softmaxLse",
    "aclnnFusedInferAttentionScoreV5": FIA + "dequantScaleQuery learnableSink qStartIdx kvStartIdx " + FIA_NUMBERS +
                                       "queryQuantMode pseType attentionOut softmaxLse",
    "aclnnMoeGatingTopKSoftmaxV2": "x finished k renorm outputSoftmaxResultFlag y expertIdx softmaxResult",
    "aclnnMoeInitRoutingV2": "x expertIdx activeNum expertCapacity expertNum dropPadMode expertTokensCountOrCumsumFlag expertTokensBeforeCapacityFlag "
                             "expandedXOut expandedRowIdxOut expertTokensCountOrCumsumOut expertTokensBeforeCapacityOut",
    "aclnnGroupedMatmulV5": "x weight bias scale offset antiquantScale antiquantOffset perTokenScale groupList activationInput activationQuantScale "
                            "activationQuantOffset splitItem groupType groupListType actType tuningConfig out activationFeatureOut dynQuantScaleOut",
    "aclnnGroupedMatmulSwigluQuantWeightNZ": "x weight bias offset weightScale xScale groupList output outputScale outputOffset",
    "aclnnMoeFinalizeRoutingV2": "expandedX expandedRowIdx x1 x2 bias scales expertIdx dropPadMode out",
}
ONE_INPUT, TWO_INPUTS = {"self": "x", "selfRef": "x", "out": "y"}, {"self": "x1", "selfRef": "x1", "other": "x2", "mat2": "x2", "out": "y"}
# Where a definition's name is another than the function's, but for its case and an ending Optional, Out or Ref.
NAMES = {
    "aclnnMm": TWO_INPUTS, "aclnnBatchMatMul": TWO_INPUTS, "aclnnAdd": TWO_INPUTS, "aclnnInplaceAdd": TWO_INPUTS, "aclnnInplaceMul": TWO_INPUTS,
    "aclnnSigmoid": ONE_INPUT, "aclnnCast": ONE_INPUT, "aclnnSwiGlu": ONE_INPUT, "aclnnRotaryPositionEmbedding": ONE_INPUT, "aclnnCumsum": ONE_INPUT,
    "aclnnEmbedding": {"weight": "x", "out": "y"}, "aclnnGatherV2": {**ONE_INPUT, "index": "indices"},
    "aclnnTransposeBatchMatMul": {"out": "y"}, "aclnnGroupedMatmulV5": {"out": "y"}, "aclnnMoeFinalizeRoutingV2": {"out": "y"},
    "aclnnGroupedMatmulSwigluQuantWeightNZ": {"output": "y", "outputScale": "y_scale", "bias": "weight_assistance_matrix"},
    "aclnnQuantMatmulV4": {"out": "y"}, "aclnnQuantMatmulV5": {"out": "y"},
    "aclnnQuantMatmulWeightNz": {"x2Scale": "scale", "x1Scale": "pertoken_scale", "x2Offset": "offset", "out": "y"},
}
for i in (3, 4, 5):
    NAMES[f"aclnnFusedInferAttentionScoreV{i}"] = {"attentionOut": "attention_out"}
LISTS_OF_DEFINITION = {"actualseqlengths", "actualseqlengthskv", "actualsharedprefixlen", "qstartidx", "kvstartidx"}  # inputs there, arrays of the function

TF_TILING = "moe/%s/op_host/%s_tiling.cpp:"
V3, V2, TOP = (TF_TILING % (f, f) for f in ("moe_init_routing_v3", "moe_init_routing_v2", "moe_gating_top_k"))
GMM = "gmm/grouped_matmul/op_host/op_api/aclnn_grouped_matmul.cpp:"
DIM, FLAG = ("-8..7", None), ("0|1", None)
# Values that 910B takes, and the line of the vendor's checks that says so; None: the argument's own line in document or definition.
VALUES = {
    "aclnnQuantMatmulWeightNz": {"groupSize": ("0", None)}, "aclnnQuantMatmulV5": {"groupSize": ("0", None)},
    "aclnnWeightQuantBatchMatmulV2": {"antiquantGroupSize": ("0|32..65504", None)},
    "aclnnMm": {"cubeMathType": ("0..3", None)}, "aclnnBatchMatMul": {"cubeMathType": ("0..3", None)},
    "aclnnTransposeBatchMatMul": {"permX1": ("3 values", None), "permX2": ("3 values", None), "permY": ("3 values", None), "cubeMathType": ("0..3", None),
                                  "batchSplitFactor": ("1..", None)},
    "aclnnSwiGlu": {"dim": DIM}, "aclnnGatherV2": {"dim": DIM}, "aclnnCumsum": {"dim": DIM},
    "aclnnDequantSwigluQuant": {"quantModeOptional": ("static|dynamic", None)},
    "aclnnMlaPrologV2WeightNz": {"cacheModeOptional": ("PA_BSND|PA_NZ", None), "rmsnormEpsilonCq": ("0..", None), "rmsnormEpsilonCkv": ("0..", None)},
    "aclnnRopeWithSinCosCache": {"headSize": ("1..", None)}, "aclnnRotaryPositionEmbedding": {"mode": ("0|1", None)},
    **{f"aclnnFusedInferAttentionScoreV{i}": {"numHeads": ("1..256", None), "numKeyValueHeads": ("0..256", None), "sparseMode": ("0..4", None),
                                              "inputLayout": ("BSH|BSND|BNSD|BNSD_BSND|BNSD_NBSD|BSND_NBSD|BSH_NBSD|TND|TND_NTD|NTD_TND", None), "innerPrecise": ("0..3", None),
                                              "blockSize": ("0..512", None), "antiquantMode": ("0|1", None)} for i in (3, 4, 5)},
    "aclnnMoeGatingTopK": {"k": ("1..2048", TOP + "178"), "kGroup": ("1..", TOP + "180"), "groupCount": ("1..", TOP + "187"),
                           "groupSelectMode": ("0|1", TOP + "195"), "renorm": ("0", TOP + "200"), "normType": ("0|1", TOP + "190")},
    "aclnnMoeGatingTopKSoftmaxV2": {"k": ("1..1024", None),
                                    "renorm": ("0|1", "moe/moe_gating_top_k_softmax_v2/op_host/moe_gating_top_k_softmax_v2_tiling_base.cpp:149")},
    "aclnnTopk": {"k": ("0..", None), "dim": DIM, "sorted": ("1", None)},
    "aclnnMoeInitRoutingV3": {"activeNum": ("0..", V3 + "256"), "expertCapacity": ("0..", None), "expertNum": ("1..10240", V3 + "261"),
                              "dropPadMode": ("0", V3 + "264"), "expertTokensNumType": ("1|2", V3 + "269"), "expertTokensNumFlag": ("1", V3 + "274"),
                              "quantMode": ("-1|1", V3 + "293"), "activeExpertRangeOptional": ("2 values", None), "rowIdxType": ("0|1", None)},
    "aclnnMoeInitRoutingV2": {"activeNum": ("0..", V2 + "266"), "expertCapacity": ("0..", V2 + "234"), "expertNum": ("0..", None),
                              "dropPadMode": ("0|1", V2 + "236"), "expertTokensCountOrCumsumFlag": ("0..2", V2 + "239")},
    "aclnnGroupedMatmulV5": {"splitItem": ("2|3", GMM + "1061"), "groupType": ("-1|0|2", GMM + "218"), "groupListType": ("0..2", GMM + "346"),
                             "actType": ("0..5", None)},
    "aclnnDequantSwigluQuantV2": {"quantModeOptional": ("static|dynamic", None), "dstType": ("2|34..41", None),
                                  "roundModeOptional": ("rint|round|floor|ceil|trunc", None), "activateDim": DIM, "swigluMode": ("0..2", None)},
    "aclnnMoeFinalizeRoutingV2": {"dropPadMode": ("0..3", None)},
    **{op: {"epsilon": ("0..", None)} for op in ("aclnnRmsNorm", "aclnnAddRmsNorm", "aclnnAddRmsNormDynamicQuant", "aclnnAddRmsNormCast")},
}
# What the operation's function itself checks, where that is not what its definition says: (kind, line). ABSENT: it has to be null.
SWIGLU = "gmm/grouped_matmul_swiglu_quant/op_host/op_api/aclnn_grouped_matmul_swiglu_quant.cpp:"
FUNCTION = {
    **{(f"aclnnFusedInferAttentionScoreV{i}", "softmaxLse"): ("OPTIONAL", "attention/fused_infer_attention_score/op_host/op_api/"
                                                              "aclnn_fused_infer_attention_score_inner.cpp:123") for i in (3, 4, 5)},
    **{("aclnnGroupedMatmulV5", name): ("ABSENT", GMM + line) for name, line in (
        ("activationInput", "1375"), ("activationQuantScale", "1377"), ("activationQuantOffset", "1379"), ("activationFeatureOut", "1381"),
        ("dynQuantScaleOut", "1383"))},
    ("aclnnGroupedMatmulSwigluQuantWeightNZ", "offset"): ("ABSENT", SWIGLU + "96"),
    ("aclnnGroupedMatmulSwigluQuantWeightNZ", "outputOffset"): ("ABSENT", SWIGLU + "101"),
}
RESERVED = {"yScale", "x1Offset", "yOffset"}  # by the document of QuantMatmul alone: not used by 910B

KV, QKV, PA = ("posembedding/kv_rms_norm_rope_cache/op_host/kv_rms_norm_rope_cache_def.cpp:",
               "posembedding/qkv_rms_norm_rope_cache/op_host/qkv_rms_norm_rope_cache_def.cpp:",
               "attention/scatter_pa_kv_cache/op_host/scatter_pa_kv_cache_def.cpp:")
HALF, CACHE, FLOAT, LONG, INDEX = ("BF16", "FLOAT16"), ("BF16", "FLOAT16", "INT8"), ("FLOAT",), ("INT64",), ("INT32", "INT64")
PLUGIN = "op_plugin/ops/opapi/QkvRmsNormRopeCacheNpuOpApi.cpp:88"
# (argument, required, types, values, repository, where): definitions of later commits, which were read file by file.
BY_HAND = {
    "aclnnKvRmsNormRopeCache": [(a, r, t, v, "yuanfang-chen/ops-transformer@2a8b613", KV + str(n)) for a, r, t, v, n in (
        ("kv", 1, HALF, "", 66), ("gamma", 1, HALF, "", 78), ("cos", 1, HALF, "", 90), ("sin", 1, HALF, "", 102), ("index", 1, LONG, "", 114),
        ("kCacheRef", 1, CACHE, "", 211), ("ckvCacheRef", 1, CACHE, "", 222), ("kRopeScale", 0, FLOAT, "", 150), ("cKvScale", 0, FLOAT, "", 162),
        ("kRopeOffset", 0, FLOAT, "", 174), ("cKvOffset", 0, FLOAT, "", 186), ("epsilon", 0, (), "0..", 255), ("cacheMode", 0, (), "", 256),
        ("isOutputKv", 0, (), "0|1", 257), ("kRopeOut", 1, HALF, "", 233), ("cKvOut", 1, HALF, "", 244))],
    "aclnnQkvRmsNormRopeCache": [(a, r, t, v, "hicann/ops-transformer@3c7c35b", QKV + str(n)) for a, r, t, v, n in (
        ("qkv", 1, HALF, "", 22), ("qGamma", 1, HALF, "", 34), ("kGamma", 1, HALF, "", 46), ("cos", 1, HALF, "", 58), ("sin", 1, HALF, "", 70),
        ("index", 1, LONG, "", 82), ("qOut", 1, HALF, "", 182), ("kCache", 1, CACHE, "", 193), ("vCache", 1, CACHE, "", 204),
        ("kScale", 0, FLOAT, "", 132), ("vScale", 0, FLOAT, "", 144), ("kOffset", 0, FLOAT, "", 157), ("vOffset", 0, FLOAT, "", 169),
        ("qkvSize", 1, (), "4 values", 249), ("headNums", 1, (), "3 values", 250), ("epsilon", 0, (), "0..", 251), ("cacheMode", 0, (), "PA_NZ", 252))] + [
        (a, 0, HALF, "", "Ascend/op-plugin", PLUGIN) for a in ("qOutBeforeQuant", "kOutBeforeQuant", "vOutBeforeQuant")],
    "aclnnScatterPaKvCache": [(a, r, t, v, "hicann/ops-transformer@51c4221", PA + str(n)) for a, r, t, v, n in (
        ("key", 1, CACHE, "", 280), ("keyCacheRef", 1, CACHE, "", 316), ("slotMapping", 1, INDEX, "", 286), ("value", 1, CACHE, "", 291),
        ("valueCacheRef", 1, CACHE, "", 321), ("compressLens", 0, INDEX, "", 301), ("compressSeqOffset", 0, INDEX, "", 306),
        ("seqLens", 0, INDEX, "", 311), ("cacheMode", 0, (), "Norm|PA_NZ", 326), ("scatterMode", 0, (), "", 327), ("strides", 0, (), "2 values", 328),
        ("offsets", 0, (), "2 values", 329))],
}


def plain(name):
    """A name without case, underscores and what functions add to it."""
    return re.sub(r"(Optional|Out|Ref)$", "", name).replace("_", "").lower()


def prototypes():
    """{operation: [(class, our name)]}, and {operation: (repository, folder)}, by aclnn_api.h."""
    source = '#include "npu/ascend/aclnn_api.h"\n#define OPERATION(op, ladder, document, ...) @@ op document ( __VA_ARGS__ ) @@\nTD_ACLNN_OPS(OPERATION)\n'
    text = subprocess.run(["cc", "-std=gnu17", "-E", "-P", "-I", str(ROOT), "-"], input=source, capture_output=True, text=True, check=True).stdout
    arguments, folders = {}, {}
    for op, repository, folder, parameters in re.findall(r'@@ (\w+) "(\w+) ([^"]*)" \((.*?)\) @@', text, flags=re.S):
        folders[op] = "ops-" + repository, folder
        arguments[op] = []
        for one in re.sub(r"\s+", " ", parameters).split(","):
            words = [w for w in re.findall(r"\w+|\*", one) if w != "const"]
            arguments[op].append((CLASSES["".join(words[:-1])], words[-1]))
    return arguments, folders


def definition(path):
    """Its arguments up to the first configuration of a chip: {plain name: [(class, kind, types, line)]}; attributes without class."""
    found = {}
    text = path.read_text(errors="replace")
    for match in re.finditer(r'this->(Input|Output|Attr)\("(\w+)"\)(.*?);', text, flags=re.S):
        kind = re.search(r"(?:Param|Attr)Type\((?:ge::)?(\w+)\)", match[3])
        types = re.search(r"DataType(?:List)?\(\{(.*?)\}\)", match[3], flags=re.S)
        names = re.findall(r"DT_(\w+)", types[1]) if types else []
        found.setdefault(plain(match[2]), []).append((match[1].upper(), kind[1] if kind else "REQUIRED", sorted(set(names) & KNOWN),
                                                      text[:match.start()].count("\n") + 1))
    return found


def document(folders, op, n):
    """The vendor's page of a function with n arguments: (repository, path, names, lines), or None."""
    for repository, root in folders.items():
        for path in sorted(root.rglob("*%s*.md" % op)):
            if op not in path.stem.split("&") or "experimental" in path.parts:
                continue
            text = path.read_text(errors="replace")
            for match in re.finditer(r"\b%sGetWorkspaceSize\s*\(([^()]*)\)" % op, text):
                names = [re.findall(r"\w+", one)[-1] for one in match[1].split(",")][:-2]
                if "*" in match[1] and len(names) == n:
                    return repository, path.relative_to(root), names, text.splitlines()
    return None


def line_of(lines, name):
    """Where the document's table or list has the argument."""
    for number, line in enumerate(lines, 1):
        if re.search(r"(<td>|\||\*|-\s+)\s*\*?\*?`?%s`?(<|（|\(|\s|\*|\|)" % re.escape(name), line) and "aclTensor *" not in line:
            return number
    return None


def types_at(lines, number):
    """The types that a table of HTML has for the argument whose row begins at that line."""
    row = " ".join(lines[number - 1:number + 9]).split("</tr>")[0]
    words = {w.replace("BFLOAT16", "BF16").replace("FLOAT32", "FLOAT") for w in re.findall(r"[A-Z]+[0-9]*", row)}
    return sorted(words & KNOWN)


def row(op, name, what, kind, types, values, repository, where):
    return 'FACT(%s, "%s", %s, %s, %s, "%s", "%s", "%s")' % (op, name, what, kind, " | ".join(f"D({t})" for t in types) or "0", values, repository, where)


def by_hand(op, arguments):
    outputs = {"Ref", "Out"}
    for (what, _), (name, required, types, values, repository, where) in zip(arguments, BY_HAND[op], strict=True):
        is_output = name[-3:] in outputs or name in ("kCache", "vCache") or name.endswith("BeforeQuant")
        what = what.replace("INPUT", "OUTPUT") if is_output else what
        yield row(op, name, what, "REQUIRED" if required else "OPTIONAL", types, values, repository, where)


def rows_of(op, arguments, defined, file, page):
    """Rows of an operation, and what neither definition nor document has."""
    repository, page_file, names, lines = page or (file[0], None, ARGUMENTS[op].split(), [])
    names = ARGUMENTS[op].split() if op in ARGUMENTS else names
    for (what, _), name in zip(arguments, names, strict=True):
        key = plain(NAMES.get(op, {}).get(name, name))
        is_tensor = what.startswith("INPUT")
        found = defined.get(key, [])
        if is_tensor and name.endswith(("Out", "Ref")):
            found = [f for f in found if f[0] == "OUTPUT"] or found
        found = [f for f in found if (f[0] != "ATTR") == (is_tensor or key in LISTS_OF_DEFINITION)]
        number = line_of(lines, name)
        values, check = VALUES.get(op, {}).get(name, ("0|1", None) if what == "FLAG" else ("", None))
        if found:
            side, kind, types, line = found[0]
            what = what.replace("INPUT", side) if is_tensor else what
            where, source = f"{file[1]}:{line}", file[0]
        elif number:
            kind = "OPTIONAL" if name.endswith("Optional") or name in RESERVED else "REQUIRED"
            what = what.replace("INPUT", "OUTPUT") if is_tensor and "Out" in name else what
            types, where, source = types_at(lines, number) if is_tensor else [], f"{page_file}:{number}", repository
        elif (op, name) in FUNCTION:
            types, source = [], file[0]
        else:
            yield None, f"{op}: {name} is neither among {', '.join(defined)} nor in a document"
            continue
        if (op, name) in FUNCTION:
            kind, where = FUNCTION[op, name]
        if check:
            where = check
        yield row(op, name, what, kind, types, values, "hicann/" + source, where), None


def facts(folders):
    """({operation: its rows}, what no source is there for)"""
    arguments, places = prototypes()
    rows, missing = {}, []
    for op, (repository, folder) in places.items():
        if op in BY_HAND:
            rows[op] = list(by_hand(op, arguments[op]))
            continue
        root = folders.get(repository)
        paths = sorted((root / folder).glob("op_host/*_def.cpp")) if root else []
        page = None if op in ARGUMENTS else document(folders, op, len(arguments[op]))
        if not paths and not page:
            missing.append(f"{op}: no definition in {repository}/{folder}, and no document")
            continue
        file = repository, paths[0].relative_to(root) if paths else None
        for line, text in rows_of(op, arguments[op], definition(paths[0]) if paths else {}, file, page):
            rows.setdefault(op, []).extend([line] if line else [])
            missing.extend([text] if text else [])
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
        kept = {op: rows.get(op) or there.get(op, []) for op in prototypes()[0]}
        TABLE.write_text(HEAD + "".join(line + "\n" for lines in kept.values() for line in lines))
    differ = 0
    for op, lines in rows.items():
        for line in () if write else set(lines) ^ set(there.get(op, [])):
            print(f"{'source' if line in lines else 'table '}  {line}")
            differ += 1
    print(f"{sum(map(len, rows.values()))} arguments of {len(rows)} operations, {differ} rows differ")
    sys.exit(1 if differ or missing else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The table of what each device serves, in docs/devices.md and its translation: a server of every family's small shape is started on every device,
cards by the stand-ins. And what of it is an Ascend card's, family by family, for pages about that device.

usage: devices_table.py BUILD [--check]     BUILD: a build with its tests; --check: exit 1 unless all pages have their table as it is
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# models, and the folder of tests/data/golden that has their shape in small
FAMILIES = [
    ("DeepSeek V2, V2-Lite", "deepseek_v2_lite"),
    ("DeepSeek V3, V3.1, R1; Kimi K2", "deepseek_v3_noqlora"),
    ("Kimi-K2.5, 2.6, text only", "kimi_k25"),
    ("Kimi-Linear", "kimi_linear"),
    ("Qwen2-MoE", "qwen2_moe"),
    ("Qwen3-MoE", "qwen3_moe"),
    ("Qwen3-VL-MoE, text only", "qwen3_vl_moe"),
    ("Qwen3-Next, Coder-Next", "qwen3_next"),
    ("Qwen3.5-MoE, 3.6, text only", "qwen3_5_moe"),
    ("DeepSeek-V3.2", "deepseek_v32"),
    ("DeepSeek-V4", "deepseek_v4"),
    ("GLM-4.5, 4.6, 4.7, 4.5-Air", "glm4_moe"),
    ("GLM-4.7-Flash", "glm4_moe_lite"),
    ("GLM-5, 5.1, 5.2", "glm_moe_dsa"),
    ("GLM-5.3-Flash, text only", "glm5_next"),
    ("MiniMax-M2", "minimax_m2"),
    ("gpt-oss", "gpt_oss"),
]
DEVICES = [
    ("`host`", "host", 1, []),
    ("`npu`, one card", "npu", 1, ["scripts/ascend_standin.sh"]),
    ("`npu`, two", "npu", 2, ["scripts/ascend_standin.sh"]),
    ("`cuda`, one card", "cuda", 1, ["scripts/cuda_emulated.sh"]),
    ("`cuda`, two", "cuda", 2, ["scripts/cuda_emulated.sh"]),
]
ASCEND = slice(1, 3)  # of DEVICES
TWO_CARDS = "; two cards: "
# The cells of docs/devices.zh.md: a whole cell, or, behind a comma, its end.
CHINESE = {
    "models": "模型", ", one card": "，一张卡", ", two": "，两张卡", ", text only": "，仅文本", "yes": "能", "no: recurrent layers": "不能：递归层",
    "no: attention to chosen keys": "不能：只看选出的键", "no: compressed rows or several residual streams": "不能：压缩行和多条残差流",
    "no: rope on a part of a head": "不能：只旋转一部分头", "no: sliding window": "不能：滑动窗口", "no: norm over all heads": "不能：跨所有头的归一化",
}


def in_chinese(cell):
    for end in (", one card", ", two", ", text only"):
        if cell.endswith(end):
            return cell.removesuffix(end) + CHINESE[end]
    if TWO_CARDS in cell:
        one, two = cell.split(TWO_CARDS)
        return f"{in_chinese(one)}；两张卡：{in_chinese(two)}"
    return CHINESE.get(cell, cell)


def as_table(rows):
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def reason(line):
    """What a refusal says, without what comes before and after it."""
    m = re.search(r"has no ([a-z ]+), which this model needs|has a (norm over all heads)|(attends over compressed rows)", line)
    return (m[1] or m[2] or m[3]) if m else line


def serves(build, shape, device, n_cards, within):
    """"yes", or why not."""
    command = [*within, f"{build}/cli/tandem", "launch_server", "--model-path", f"tests/data/golden/{shape}/config.json", "--load-format", "dummy",
               "--device", device, "--tensor-parallel-size", str(n_cards), "--port", "0", "--skip-server-warmup", "--context-length", "128",
               "--max-total-tokens", "256", "--max-running-requests", "1", "--chunked-prefill-size", "32"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TD_BUILD": build})
    if "serving" in process.stdout.readline():
        process.terminate()
        process.communicate(timeout=240)
        return "yes"
    return f"no: {reason(process.communicate(timeout=240)[1].strip().splitlines()[-1])}"


def on_ascend(rows):
    """What Ascend cards serve, and for each reason what they do not. Where one card and two differ, one card's reason is told."""
    told = {}
    for name, *cells in rows:
        one, two = cells[ASCEND]
        told.setdefault(one if "yes" not in (one, two) or one == two else one + TWO_CARDS + two, []).append(name)
    return [["`npu`", "models"], ["---", "---"]] + [[cell, "; ".join(told[cell])] for cell in sorted(told, key=lambda cell: not cell.startswith("yes"))]


def names_in_chinese(cell):
    return "；".join(in_chinese(name) for name in cell.split("; "))


def pages(rows):
    """(page, its table)"""
    yield "docs/devices.md", as_table(rows)
    yield "docs/devices.zh.md", as_table([[in_chinese(cell) for cell in row] for row in rows])
    ascend = on_ascend(rows[2:])
    for page in ("README.md", "docs/ascend.md"):
        yield page, as_table(ascend)
    for page in ("README.zh.md", "docs/ascend.zh.md"):
        yield page, as_table([[in_chinese(cell), names_in_chinese(models)] for cell, models in ascend])


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("build")
    p.add_argument("--check", action="store_true")
    o = p.parse_args()
    build = os.path.abspath(o.build)
    jobs = [(shape, *device[1:]) for _, shape in FAMILIES for device in DEVICES]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        cells = list(pool.map(lambda job: serves(build, *job), jobs))
    rows = [["models", *(title for title, *_ in DEVICES)], ["---"] * (len(DEVICES) + 1)]
    rows += [[name, *cells[i * len(DEVICES):(i + 1) * len(DEVICES)]] for i, (name, _) in enumerate(FAMILIES)]
    for page, table in pages(rows):
        if not o.check:
            print(f"{page}\n{table}")
            continue
        with open(f"{ROOT}/{page}", encoding="utf-8") as f:
            if table not in f.read():
                sys.exit(f"{page} has another table than this:\n{table}")


if __name__ == "__main__":
    main()

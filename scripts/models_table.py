#!/usr/bin/env python3
"""The table of docs/models.md, computed by `tandem plan` from the shapes and machines in configs/.

usage: models_table.py TANDEM [--language en|zh] [--check en|zh]     --check: exit 1 unless docs/models.md, or docs/models.zh.md, has it as it is

DRAM is the plan's: experts, weights, working memory, and a KV cache of 32768 tokens. A plan's working memory is that of the kernels of the machine that
computes it; here the scalar ones, so that the table is the same on each (AMX wants somewhat more). Disk is what `tandem quantize` writes: experts and weights. Tokens
a second are of one stream with 1024 tokens in the cache.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# shape, a model of it by its name on the hub, GB to download (parameters in their published form), whether the backend for Ascend serves it
MODELS = [
    ("gpt-oss-20b", "openai/gpt-oss-20b", 14, False),
    ("deepseek-v2-lite", "deepseek-ai/DeepSeek-V2-Lite-Chat", 31, True),
    ("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 61, True),
    ("glm-4.7-flash", "zai-org/GLM-4.7-Flash", 62, True),
    ("gpt-oss-120b", "openai/gpt-oss-120b", 65, False),
    ("qwen3.5-35b-a3b", "Qwen/Qwen3.5-35B-A3B", 70, False),
    ("kimi-linear-48b-a3b", "moonshotai/Kimi-Linear-48B-A3B-Instruct", 98, False),
    ("deepseek-v4-flash", "deepseek-ai/DeepSeek-V4-Flash", 160, False),
    ("qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct", 163, False),
    ("glm-4.5-air", "zai-org/GLM-4.5-Air", 221, True),
    ("minimax-m2", "MiniMaxAI/MiniMax-M2", 230, False),
    ("glm-5.3-flash", "zai-org/GLM-5.3-Flash", 328, False),
    ("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 470, True),
    ("deepseek-r1", "deepseek-ai/DeepSeek-R1", 690, True),
    ("deepseek-v3.2", "deepseek-ai/DeepSeek-V3.2", 690, False),
    ("glm-5", "zai-org/GLM-5-FP8", 756, False),
    ("kimi-k2", "moonshotai/Kimi-K2-Instruct", 1030, True),
]
MACHINES = ["edge-epyc-9534", "xeon-8480-amx-2s", "kunpeng920-2x910b4"]
PAGES = {
    "en": ("docs/models.md", ["model", "download", "DRAM", "disk, quantised", "EPYC 9534", "2 x Xeon 8480+, AMX", "2 x Kunpeng 920, 2 x 910B4"]),
    "zh": ("docs/models.zh.md", ["模型", "下载", "内存", "量化后的磁盘", "EPYC 9534", "2 x Xeon 8480+，AMX", "2 x Kunpeng 920，2 x 910B4"]),
}
KV_TOKENS = 32768


def plan(tandem, shape, machine):
    run = subprocess.run([tandem, "plan", "--json", "--model-path", f"{ROOT}/configs/models/{shape}.json", "--machine", f"{ROOT}/configs/machines/{machine}.yaml",
                          "--streams", "1", "--contexts", "1024", "--prompts", "1024", "--context-length", "8192", "--max-total-tokens", str(KV_TOKENS)],
                         capture_output=True, text=True, check=False, env={**os.environ, "TD_CPU_MASK": "scalar"})
    if run.returncode not in (0, 3):
        sys.exit(run.stderr)
    return json.loads(run.stdout)


def memory(p):
    """(bytes of experts and weights, bytes of all) of a machine without cards."""
    stored = sum(m["expert_bytes"] + m["device_weight_bytes"] for m in p["memory"])
    return stored, stored + sum(m["working_bytes"] + m["kv_bytes"] for m in p["memory"])


def speed(p):
    return f"{1000 / p['decode'][0]['tpot_ms']:.0f}" if p["fits"] else "-"


def row(tandem, model):
    shape, name, download, on_ascend = model
    plans = [plan(tandem, shape, machine) for machine in (MACHINES if on_ascend else MACHINES[:-1])]
    stored, needed = memory(plans[1])
    speeds = [*map(speed, plans), *([] if on_ascend else ["-"])]
    return [f"`{name}`", f"{download} GB", f"{needed / 1e9:.0f} GB", f"{stored / 1e9:.0f} GB", *speeds]


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("tandem")
    p.add_argument("--language", choices=PAGES, default="en")
    p.add_argument("--check", choices=PAGES)
    o = p.parse_args()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        rows = list(pool.map(lambda model: row(o.tandem, model), MODELS))
    page, titles = PAGES[o.check or o.language]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in [titles, ["---"] * len(titles), *rows])
    if not o.check:
        print(table, end="")
        return
    with open(f"{ROOT}/{page}", encoding="utf-8") as f:
        if table not in f.read():
            sys.exit(f"{page} has another table than this:\n{table}")


if __name__ == "__main__":
    main()

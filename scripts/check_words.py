#!/usr/bin/env python3
"""Refuse words that the glossary of docs/architecture.md has retired: each has one other word that is used instead.

usage: check_words.py     (C files, CUDA files and Python files of the repository, outside tests/data)"""
import os
import re
import sys

from check_comments import ROOT, repository_files

# a retired word, and what is said instead; in folders where the word is right for something else it is not looked for
RETIRED = [
    (r"\b(TD_OP_TURN|ended_turn)\b", "a stage of a pass (TD_OP_STAGE)", ()),
    (r"\b(td_turning|td_turn|TD_TURN_\w+|\w*_?turned_stream\w*|mtp_turned|MTP_UNTURN|\w*UNLESS_TURNED)\b", "rotation of the residual stream", ()),
    (r"\b(turned|unturn\w*)\b", "rotated, or what else is done to it", ("text/", "tests/", "server/", "cli/", "scripts/", "bench/", "models/")),
    (r"->turn\b", "lock, round, meeting, or what else it is", ("text/", "tests/", "server/", "scripts/")),
    (r"\bTD_ROUTE_\w+", "TD_SCORE_… and TD_GROUP_… (npu/npu.h)", ()),
    (r"\b(td_engine_plan\w*|td_thread_plan|td_plan_threads|td_topology_plan|td_round_plan\w*|td_host_plan|td_host_attn_plan|td_model_plan\w*|td_model_get_plan|td_experts_plan)\b|\bthread plan\b", "config, layout, rounding, place or memory (td_engine_config, td_thread_layout, …)", ()),
    (r"\b(td_card_info|list_cards|TD_CARDS_LISTED_MAX)\b", "accelerator (td_accelerator, list_accelerators, TD_ACCELERATORS_MAX)", ()),
    (r"\btd_(placement|model_options|layer_op_kind)\b", "td_model_spec, or the verbs of model/layer_verbs.h", ()),
]


def main():
    files = [f for f in repository_files() if re.search(r"\.(c|h|inc|cu|cuh|py)$", f) and not f.startswith("tests/data/") and f != "scripts/check_words.py"]
    if not files:
        sys.exit("no file was found")
    found = []
    for path in files:
        words = [(re.compile(word), instead) for word, instead, right_in in RETIRED if not path.startswith(right_in)]
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                found += ["%s:%d: '%s' is retired: %s" % (path, number, m.group(0), instead) for word, instead in words for m in [word.search(line)] if m]
    print("%d files, %d retired words" % (len(files), len(found)))
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Turn models/tale-v3-14m/reference.npz into tests/data/golden/tale/, which C tests read without numpy.

The npz holds no top-1/top-2 gaps, so the greedy path is walked again with the model's own reference.py; the walk must
give the tokens that the npz has.  Needs numpy.  Run from the repository root.
"""
import json, os, sys
import numpy as np

from golden_io import Writer

MODEL, OUT = "models/tale-v3-14m", "tests/data/golden/tale"


def gaps(model, ids, greedy):
    seq, out = list(ids), []
    for t in greedy:
        logits = model.logits(np.array(seq))[-1]
        assert int(logits.argmax()) == t, "reference.py and reference.npz disagree"
        top = np.sort(logits)[-2:]
        out.append(top[1] - top[0])
        seq.append(int(t))
    return out


def main():
    sys.path.insert(0, MODEL)
    from reference import DeepSeekV3
    model, z = DeepSeekV3(MODEL), np.load(os.path.join(MODEL, "reference.npz"))
    info = json.load(open(os.path.join(MODEL, "reference.json")))
    config = json.load(open(os.path.join(MODEL, "config.json")))
    layers = list(range(config["first_k_dense_replace"], config["num_hidden_layers"] + 1))
    w = Writer(OUT, model=MODEL, dtype="bf16", layout="single file", router_layers=layers,
               router_note="the last router is the MTP layer's")
    for n, one in enumerate(info):
        p = "p%d_" % n
        weight, ranked = z[p + "router_weight"], z[p + "router_ranked"].astype(np.int32)
        order = np.argsort(-weight, -1, kind="stable")
        w.prompt(z[p + "ids"], z[p + "greedy"], gaps(model, z[p + "ids"], z[p + "greedy"]), {
            "logits": ("f32", z[p + "logits"]),
            "hidden": ("f32", z[p + "hidden"]),
            "router_ids": ("i32", np.take_along_axis(ranked[..., :weight.shape[-1]], order, -1)),
            "router_weights": ("f32", np.take_along_axis(weight, order, -1)),
            "router_ranked": ("i32", ranked),
            "router_choice": ("f32", z[p + "router_choice"]),
            "mtp_logits": ("f32", z[p + "mtp_logits"])}, text=one["prompt"], greedy_text=one["greedy_text"])
    w.close()


if __name__ == "__main__":
    main()

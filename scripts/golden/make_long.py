#!/usr/bin/env python3
"""Expected logits at the end of long prompts (tests/data/long, for tests/model/test_golden.c).

  make_long.py        run from the repository root; needs torch, transformers 4.57 and numpy

The tiny checkpoints of make_golden.py far beyond the length that their rope scaling starts from, computed by transformers with
every float32 of it made float64 (make_rope.py says why) and checked with reference_numpy.py.  Prompts come from a formula, so that only
the last logits are stored.
"""
import json, os
import numpy as np
from transformers.utils import logging

import golden_io
from make_golden import Reference
from make_rope import in_double
from reference_numpy import Model

OUT, FOLDER = "tests/data/long", "tests/data/golden/%s"
LAST = 4
CASES = {"deepseek_v2_lite": 5000, "deepseek_v3_yarn": 6000, "qwen3_moe_tied": 9000}    # tokens; training lengths 64, 64, 128
LEAST_MARGIN = 1e-6          # between two sets of experts, in float32


def prompt(seed, n, vocab):
    """The ids of a linear congruential generator; test_golden.c has the same."""
    ids, x = [], seed
    for _ in range(n):
        x = (1103515245 * x + 12345) % 2 ** 31
        ids.append(2 + (x >> 8) % (vocab - 2))
    return ids


def last_logits(reference, ids):
    """In double, the rotary embedding made anew."""
    model = reference.model.double()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return reference.forward(ids)["logits"][-LAST:]


def main():
    os.makedirs(OUT, exist_ok=True)
    manifest = {"cases": []}
    for name, n in CASES.items():
        folder = FOLDER % name
        vocab = json.load(open(os.path.join(folder, "config.json")))["vocab_size"]
        check = Model(folder)
        for seed in range(1, 100):
            ids = prompt(seed, n, vocab)
            numpy_out = check.forward(ids)
            if numpy_out["router_margin"].min() > LEAST_MARGIN:
                break
        else:
            raise SystemExit("no clear prompt for " + name)
        reference = Reference(folder, attention="sdpa")
        want = in_double(lambda: last_logits(reference, ids))
        differs = np.abs(want - numpy_out["logits"][-LAST:]).max() / np.abs(want).max()
        assert differs < 2e-5, (name, differs)
        want.astype("<f4").tofile(os.path.join(OUT, name + ".f32"))
        manifest["cases"].append({"model": folder, "seed": seed, "tokens": n, "last": LAST, "file": name + ".f32"})
        print("%-18s %d tokens, seed %d, least margin %.1e, numpy differs by %.1e of the largest logit" % (
            name, n, seed, numpy_out["router_margin"].min(), differs), flush=True)
    with open(os.path.join(OUT, "manifest.json"), "w") as f:
        f.write(golden_io.dump(manifest) + "\n")


if __name__ == "__main__":
    logging.set_verbosity_error()
    main()

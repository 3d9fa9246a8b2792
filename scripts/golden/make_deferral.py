#!/usr/bin/env python3
"""Expected outputs of the demo model with deferred experts, from the plain numpy forward pass that came with the model.

usage: make_deferral.py        writes tests/data/tale_deferral/

The rule (docs/architecture.md): per token, the k - D experts of highest weight are added in their own layer. The output of the other D is added at
the next MoE layer, together with that layer's own experts. The last MoE layer defers nothing. "At" means in the sum that leaves the layer, so the
next layer's attention and router do not see what was deferred.
"""
import json
import os
import sys

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODEL = os.path.join(ROOT, "models", "tale-v3-14m")
OUT = os.path.join(ROOT, "tests", "data", "tale_deferral")
sys.path.insert(0, MODEL)
import reference  # noqa: E402


class Deferring(reference.DeepSeekV3):
    def __init__(self, path, deferred):
        super().__init__(path)
        self.deferred, self.carried = deferred, None

    def hidden(self, ids):
        self.carried = None
        return super().hidden(ids)

    def moe(self, x, name):
        c, k = self.c, self.c["num_experts_per_tok"]
        last = int(name.split(".")[2]) == c["num_hidden_layers"] - 1
        kept = self.routed
        self.routed = []
        super().moe(x, name)                     # for the routing only
        ranked, _, w = self.routed[0]
        self.routed = kept
        y, later = self.mlp(x, name + ".shared_experts"), np.zeros_like(x)
        now = k if last else k - self.deferred
        for t in range(len(x)):
            order = sorted(range(k), key=lambda j: (-w[t, j], ranked[t, j]))
            for place, j in enumerate(order):
                out = self.mlp(x[t:t + 1], "%s.experts.%d" % (name, ranked[t, j]))[0] * w[t, j]
                (y if place < now else later)[t] += out
        if self.carried is not None:
            y = y + self.carried
        self.carried = later
        return y


def main():
    os.makedirs(OUT, exist_ok=True)
    prompts = [p["ids"] for p in json.load(open(os.path.join(MODEL, "reference.json")))]
    manifest = {"model": "models/tale-v3-14m", "prompts": prompts, "deferred": []}
    plain = reference.DeepSeekV3(MODEL)
    for deferred in range(0, 4):
        model, files = Deferring(MODEL, deferred), []
        for n, ids in enumerate(prompts):
            logits = model.logits(np.array(ids)).astype("<f4")
            if deferred == 0:                    # the rule with D = 0 is the model itself
                assert np.abs(logits - plain.logits(np.array(ids))).max() < 1e-3
                continue
            name = "d%d_p%d_last_logits.f32" % (deferred, n)
            logits[-1].tofile(os.path.join(OUT, name))
            files.append(name)
        if files:
            manifest["deferred"].append({"max_deferred": deferred, "last_logits": files})
    json.dump(manifest, open(os.path.join(OUT, "manifest.json"), "w"), indent=1)


if __name__ == "__main__":
    main()

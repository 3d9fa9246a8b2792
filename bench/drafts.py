#!/usr/bin/env python3
"""What drafting with the MTP layer gains: servers without drafts, with the gate, and with the gate kept open, in turns.

usage: drafts.py [--rounds N] [--tokens N] [--streams N,...] [--models NAME,...]

demo is models/tale-v3-14m, whose layer was trained with it. v3 and glm-air are shapes cut in layers, with random weights, so that the layer hardly ever
guesses right: what the gate is there for. All three servers of a model are up at once; in a round each answers the same prompts, greedy, one after the
other in another order. A row has the answers' tokens per second as a median over the rounds. Then it has the ratio to the server without drafts in
the same round, with the least and the largest. The last two figures, over all measured rounds, are the share of verified drafts that were accepted,
and the share of the answers' tokens that came as drafts. The answers of the three have to be the same. Leave the machine alone meanwhile; the load is
printed."""
import argparse
import concurrent.futures
import json
import os
import random
import statistics
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests/server"))
from server_process import Server  # noqa: E402

CUT = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "n_routed_experts": 32, "vocab_size": 16384, "eos_token_id": 1}
# name -> model, flags, ids of a prompt are below this
MODELS = {
    "demo": ("models/tale-v3-14m", (), 4000),
    "v3": ("configs/models/deepseek-v3.json", ("--load-format", "dummy", "--json-model-override-args", json.dumps(CUT)), 16000),
    "glm-air": ("configs/models/glm-4.5-air.json", ("--load-format", "dummy", "--json-model-override-args", json.dumps(CUT)), 16000),
}
NEXTN = ("--speculative-algorithm", "NEXTN")
WAYS = {"without": (), "gate": NEXTN, "always": (*NEXTN, "--speculative-always")}


def answer(server, prompt, tokens):
    status, said, _ = server.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0}, timeout=600)
    if status != 200:
        sys.exit("%d: %s" % (status, said))
    return said["choices"][0]["logprobs"]["token_logprobs"]


def answers(server, prompts, tokens):
    """Seconds, and what was said to each."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        said = list(pool.map(lambda p: answer(server, p, tokens), prompts))
    return time.monotonic() - begin, said


def counts(server, way):
    """Drafts verified and accepted so far."""
    return [server.metric("tandem:drafts_%s_total" % what) for what in ("verified", "accepted")] if way != "without" else [0, 0]


def measure(name, streams, args):
    model, flags, ids = MODELS[name]
    rng = random.Random(1)
    rates, ratios = {w: [] for w in WAYS}, {w: [] for w in WAYS}
    servers = {}
    try:
        for w, more in WAYS.items():
            servers[w] = Server(*flags, *more, "--max-running-requests", str(streams), "--context-length", str(args.tokens + 256), "--served-model-name", "m",
                                program=[os.path.join(ROOT, "build/release/cli/tandem")], model=os.path.join(ROOT, model), timeout=600)
        for n in range(args.rounds + 2):  # the first two capture steps and let the gate measure
            if n == 2:
                before = {w: counts(servers[w], w) for w in WAYS}
            prompts = [[rng.randrange(1, ids) for _ in range(32)] for _ in range(streams)]
            order = random.sample(list(WAYS), len(WAYS))
            print("%s, %d streams, round %d: %s, load %.2f" % (name, streams, n, ", ".join(order), os.getloadavg()[0]), file=sys.stderr)
            seconds, said = {}, {}
            for w in order:
                seconds[w], said[w] = answers(servers[w], prompts, args.tokens)
            if any(said[w] != said["without"] for w in WAYS):
                sys.exit("%s: drafts change an answer" % name)
            for w in WAYS if n >= 2 else ():
                rates[w].append(streams * args.tokens / seconds[w])
                ratios[w].append(seconds["without"] / seconds[w])
        for w in WAYS:
            verified, accepted = (after - b for after, b in zip(counts(servers[w], w), before[w]))
            print("| %s | %d | %s | %.1f | %.2f (%.2f to %.2f) | %s | %d of %d |" % (
                name, streams, w, statistics.median(rates[w]), statistics.median(ratios[w]), min(ratios[w]), max(ratios[w]),
                "%.2f" % (accepted / verified) if verified else "", accepted, args.rounds * streams * args.tokens), flush=True)
    finally:
        for s in servers.values():
            s.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--streams", default="1,4")
    parser.add_argument("--models", default=",".join(MODELS))
    args = parser.parse_args()
    print("| model | streams | drafts | tokens/s | of without | accepted | tokens that came as drafts |\n|---|---|---|---|---|---|---|")
    for name in args.models.split(","):
        for streams in args.streams.split(","):
            measure(name, int(streams), args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What a step of generating should cost on Ascend cards, operation by operation, from a config.json: the tables of docs/ascend-internals.md.

Nothing here was measured by this project. An operation takes the largest of: its bytes over the memory's bandwidth, its multiply-adds over the
matrix unit's peak, and the time that operations of its kind take when they are small. The constants and where they are from:

  HBM        of the card, of which 60 % are reached      910B4-1 and 910B1: 1600 GB/s, 910B4: 800; the share is assumed
  int8       cores x MHz x 16384, bf16 half of it        20 cores of 1500 MHz (910B4, 910B4-1), 24 of 1850 (910B1): logs of such cards
  a product  12 us when it is small                      TransposeBatchMatMul 12.5, BatchMatMul 8.4, attention 15.5, QuantMatmul 26 with large ones
                                                         among them, of DeepSeek-V3 on a 910C die: github.com/Horacehxw/msModeling, dsv3_compute_ops.csv
  other      5 us when it is small                       SwiGlu 4.0, DynamicQuant 4.3, AddRmsNorm 4.7, RmsNorm 5.6, MoeGatingTopK 6.6: the same
  a sum      20 us for two cards, in a replay            assumed; as calls, 443 us were reported: github.com/lvyufeng/PocketLLM/pull/269
  the link   20 GB/s, 5 us for a copy                    PCIe 4.0 x16 less its overhead; assumed
  host call  30 us                                       three tasks of the runtime; the time is assumed: `tandem doctor --device npu` measures it
  an update  60 us of the host                           of an attention's lengths, while the replay runs up to it; assumed. From Python 184 and
                                                         218 us were reported: vllm-ascend issue 13058 (20 in 3.68 ms), pull 15471 (11 in 2.4 ms)
  an event   2 us                                        ahead of each attention, two tasks: a wait and a reset; assumed
  before it  20 us: one copy that the host waits for     a step's rows, slots and block tables, while the card has nothing to do; assumed

A launch may be several kernels: by the published sources Topk casts its indices (ops-math, topk.cpp). The copies and host calls of a hand-over are no
kernels.

With --experts-on-cards all routed experts lie on the cards: nothing is handed over, and each card reads its stretch of every expert that some row
chose. Rows are taken to choose at random: m rows with k of E experts each read E (1 - (1 - k / E)^m) of them. What the experts take of each card's
memory is printed first.

usage: ascend_cost.py CONFIG.json [--card 910B4-1] [--context 4096] [--operations] [--cards 1,2] [--experts-on-cards]
"""
import argparse
import itertools
import json
import sys

CARDS = {"910B4": (800e9, 20 * 1500e6), "910B4-1": (1600e9, 20 * 1500e6), "910B1": (1600e9, 24 * 1850e6)}  # bytes/s, cores x Hz
REACHED, INT8_A_CYCLE, LINK = 0.6, 16384, 20e9
PRODUCT_US, OTHER_US, SUM_US, COPY_US, CALL_US, UPDATE_US, EVENT_US, BEFORE_US = 12, 5, 20, 5, 30, 60, 2, 20
KERNELS = {"Topk": 2}  # of launches that are more than one
STREAMS = (1, 16, 32)


class Step:
    """The operations of one step: m rows, one of every stream, on one of n cards."""

    def __init__(self, config, card, m, n, fused, context, experts=False):
        self.c, self.m, self.n, self.fused, self.context, self.experts = config, m, n, fused, context, experts
        bandwidth, cycles = CARDS[card]
        self.hbm, self.int8, self.bf16 = bandwidth * REACHED, cycles * INT8_A_CYCLE, cycles * INT8_A_CYCLE / 2

    def op(self, name, weights=0, rows=0, int8=0, bf16=0, least=OTHER_US):
        """Bytes of weights (or keys), bytes of rows, multiply-adds times two."""
        size = weights + rows
        return name, size, max(least, 1e6 * size / self.hbm, 1e6 * int8 / self.int8, 1e6 * bf16 / self.bf16)

    def rowwise(self, name, values):
        return self.op(name, rows=2 * 2 * self.m * values)

    def product(self, name, n, k):
        return self.op(name, n * k, self.m * (k + 2 * n), int8=2.0 * self.m * n * k, least=PRODUCT_US)

    def per_head(self, name, heads, n, k):
        return self.op(name, 2 * heads * n * k, 2 * self.m * heads * (n + k), bf16=2.0 * self.m * heads * n * k, least=PRODUCT_US)

    def sum_over_cards(self):
        return [self.op("sum over cards", rows=4 * self.m * self.c["hidden_size"], least=SUM_US)] if self.n > 1 else []

    def attention(self):
        c, m, heads = self.c, self.m, self.c["num_attention_heads"] // self.n
        h, q, kv, rope = c["hidden_size"], c["q_lora_rank"], c["kv_lora_rank"], c["qk_rope_head_dim"]
        nope, v = c["qk_nope_head_dim"], c["v_head_dim"]
        front = [self.product("QuantMatmul q_a, kv_a", q + kv + rope, h), self.rowwise("RmsNorm q", q),
                 self.rowwise("DynamicQuant", q), self.product("QuantMatmul q_b", heads * (nope + rope), q),
                 self.per_head("TransposeBatchMatMul W_UK", heads, kv, nope), self.rowwise("rope of q", heads * rope),
                 self.rowwise("RmsNorm latent", kv), self.rowwise("rope of k", rope), self.rowwise("write of the latent", kv + rope)]
        if self.fused:  # one launch reads the same weights
            size = sum(b for _, b, _ in front)
            front = [self.op("MlaPrologV2", size, least=PRODUCT_US)]
        keys = m * self.context
        norm = [self.rowwise("AddRmsNormDynamicQuant", h)] if self.fused else [self.rowwise("RmsNorm", h), self.rowwise("DynamicQuant", h)]
        return norm + front + [
            self.op("attention", 2 * keys * (kv + rope), bf16=2.0 * keys * heads * (2 * kv + rope), least=PRODUCT_US),
            self.per_head("TransposeBatchMatMul W_UV", heads, v, kv), self.rowwise("DynamicQuant", heads * v),
            self.product("QuantMatmul o", h, heads * v)] + self.sum_over_cards()

    def norm_of_sum(self, codes_alone):
        """The residual's sum, its norm and codes; where the router reads the norm, too, no operation has norm and codes: one has the router's f32 besides."""
        h = self.c["hidden_size"]
        norm = self.op("AddRmsNormCast", rows=(2 * 2 + 2 * 2 + 4) * self.m * h) if self.fused else self.rowwise("RmsNorm", h)
        rest = [self.rowwise("AddRmsNormDynamicQuant", h)] if self.fused and codes_alone else [norm, self.rowwise("DynamicQuant", h)]
        return [self.rowwise("InplaceAdd", h)] + rest

    def mlp(self, inter):
        h, inter = self.c["hidden_size"], inter // self.n
        fits = 2 * inter * 2 * 10 < 192 << 10  # the operation's own rule: dense layers are too wide
        middle = [self.rowwise("DequantSwigluQuant", inter)] if self.fused and fits else [self.rowwise("SwiGlu", inter), self.rowwise("DynamicQuant", inter)]
        return [self.product("QuantMatmul gate, up", 2 * inter, h)] + middle + [self.product("QuantMatmul down", h, inter)]

    def routed(self):
        """Routed experts on the card: 5 launches, or 8; among several cards the first one's choice, two copies and a message, comes first."""
        c, m, k, n_experts = self.c, self.m, self.c["num_experts_per_tok"], self.c["n_routed_experts"]
        h, inter = c["hidden_size"], c["moe_intermediate_size"] // self.n
        read, rows = n_experts * (1 - (1 - k / n_experts) ** m), m * k
        ids = 2 * [self.op("copy of ids, weights", rows=8 * rows)] + [self.op("broadcast of ids", rows=16 * rows, least=SUM_US)] if self.n > 1 else []
        if self.fused:
            send, middle = [self.op("MoeInitRoutingV3", rows=2 * rows * h), self.op("Cumsum of counts", rows=16 * n_experts)], []
        else:
            send = [self.op("MoeInitRoutingV2", rows=4 * rows * h), self.op("Cast of counts", rows=12 * n_experts), self.op("DynamicQuant", rows=3 * rows * h)]
            middle = [self.op("SwiGlu", rows=6 * rows * inter), self.op("DynamicQuant", rows=3 * rows * inter)]

        def product(name, n, k, out):
            return self.op(name, read * n * k, rows * (k + out * n), int8=2.0 * rows * n * k, least=PRODUCT_US)
        gate_up = product("GroupedMatmulSwigluQuant", 2 * inter, h, 0.5) if self.fused else product("GroupedMatmul gate, up", 2 * inter, h, 2)
        return (ids + send + [gate_up] + middle +
                [product("GroupedMatmul down", h, inter, 2), self.op("MoeFinalizeRoutingV2", rows=2 * (rows + m) * h)])

    def moe_layer(self):
        c, h = self.c, self.c["hidden_size"]
        router = ([] if self.fused else [self.rowwise("Cast", h)]) + [self.op("Mm of the router, f32", 4 * c["n_routed_experts"] * h, 4 * self.m * h, least=PRODUCT_US),
                  self.rowwise("MoeGatingTopK", c["n_routed_experts"])]  # on card 0, which is the one that is counted
        return (self.attention() + self.norm_of_sum(False) + router + self.mlp(c["moe_intermediate_size"] * c["n_shared_experts"]) +
                (self.routed() if self.experts else []) +
                [self.rowwise("Add", h), self.rowwise("InplaceAdd", h)] + self.sum_over_cards())

    def dense_layer(self):
        h = self.c["hidden_size"]
        return self.attention() + self.norm_of_sum(True) + self.mlp(self.c["intermediate_size"]) + [self.rowwise("InplaceAdd", h)] + self.sum_over_cards()

    def ends(self):
        c = self.c
        h = c["hidden_size"]  # the rope rows are gathered once for all layers
        return [self.rowwise("Embedding", h)] + 2 * [self.rowwise("Gather", c["qk_rope_head_dim"])] + [
                self.rowwise("Gather", h), self.rowwise("RmsNorm", h), self.rowwise("DynamicQuant", h),
                self.product("head", c["vocab_size"] // self.n, c["hidden_size"]), self.rowwise("Cast", c["vocab_size"] // self.n), self.rowwise("Topk", c["vocab_size"] // self.n)]

    def handover(self):
        """Bytes over the link of a layer with experts, and microseconds: five copies and two host calls. Experts on the cards need none."""
        if self.experts:
            return 0, 0
        size = self.m * (self.c["hidden_size"] + 4 + 8 * self.c["num_experts_per_tok"] + 2 * self.c["hidden_size"])
        return size, 5 * COPY_US + 1e6 * size / LINK + 2 * CALL_US


    def host_waits(self, n_layers):
        """Microseconds that a step takes longer for the host: the copy before it, the events, and what the card waits for updates. The host brings
        the layers their lengths one after the other from the launch on; the card comes to their attentions after what is ahead of them."""
        ops = self.ends()[:3] + self.attention()
        names = [name for name, _, _ in ops]
        at, waited = sum(us for _, _, us in ops[:names.index("attention")]), 0
        layer = total(self.moe_layer())[3] + self.handover()[1]
        for i in range(n_layers):
            waited += max(0, (i + 1) * UPDATE_US - at - waited)
            at += layer
        return BEFORE_US + waited + 2 * EVENT_US * n_layers


def total(ops):
    """Launches, kernels, bytes, us."""
    return len(ops), sum(KERNELS.get(name, 1) for name, _, _ in ops), sum(b for _, b, _ in ops), sum(us for _, _, us in ops)


def print_operations(config, card, context, cards, experts):
    print("| operation | kernels | MB | us |\n|---|---|---|---|")
    for name, size, us in Step(config, card, 1, cards[0], True, context, experts).moe_layer():
        print("| %s | %d | %.2f | %.0f |" % (name, KERNELS.get(name, 1), size / 1e6, us))


def print_layouts(config, card, context, all_cards, experts):
    dense = config["first_k_dense_replace"]
    moe = config["num_hidden_layers"] - dense
    if experts:
        size = moe * config["n_routed_experts"] * 3 * config["hidden_size"] * config["moe_intermediate_size"]
        print("GB of routed experts on each card: %s\n" % ", ".join("%.1f of %d" % (size / n / 1e9, n) for n in all_cards))
    print("| operations | cards | streams | launches a layer | kernels a layer | us a layer | hand-over, us a layer | launches a step | for the host, ms a step | "
          "GB of HBM a step | MB over the link a step | ms a step |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for fused, cards, streams in itertools.product((False, True), all_cards, STREAMS):
        s = Step(config, card, streams, cards, fused, context, experts)
        layer, other, ends = total(s.moe_layer()), total(s.dense_layer()), total(s.ends())
        launches, _, size, us = (moe * a + dense * b + c for a, b, c in zip(layer, other, ends))
        link, link_us = s.handover()
        host_us = s.host_waits(moe + dense)
        print("| %s | %d | %d | %d | %d | %.0f | %.0f | %d | %.1f | %.1f | %.2f | %.1f |" % ("fused" if fused else "unfused", cards, streams, layer[0], layer[1],
              layer[3], link_us, launches, host_us / 1e3, size / 1e9, moe * link / 1e6, (us + moe * link_us + host_us) / 1e3))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--card", choices=CARDS, default="910B4-1")
    parser.add_argument("--context", type=int, default=4096, help="keys of every stream")
    parser.add_argument("--operations", action="store_true", help="the operations of one layer with experts, one stream, fused, on the first number of cards")
    parser.add_argument("--cards", default="1,2", help="how many share the layers")
    parser.add_argument("--experts-on-cards", action="store_true", help="all routed experts on the cards")
    args = parser.parse_args()
    with open(args.config, encoding="utf-8") as f:
        config = json.load(f)
    missing = [k for k in ("q_lora_rank", "kv_lora_rank", "n_routed_experts", "first_k_dense_replace") if not config.get(k)]
    if missing:
        sys.exit("ascend_cost.py: %s has no %s: only models with compressed MLA and experts (DeepSeek-V3) are counted here" % (args.config, ", ".join(missing)))
    cards = [int(n) for n in args.cards.split(",")]
    (print_operations if args.operations else print_layouts)(config, args.card, args.context, cards, args.experts_on_cards)


if __name__ == "__main__":
    main()

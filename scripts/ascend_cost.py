#!/usr/bin/env python3
"""What a step of generating should cost on Ascend cards, operation by operation, from a config.json: the tables of docs/ascend.md.

Nothing here was measured by this project. An operation takes the largest of: its bytes over the memory's bandwidth, its multiply-adds over the
matrix unit's peak, and the time that operations of its kind take when they are small. The constants and where they are from:

  HBM        800 GB/s, of which 60 % are reached         the 910B4's figure; the share is assumed
  int8       512 tera-operations/s, bf16 256             of a 910B in general: jishuzhan.net/article/1872432607539499010
  a product  12 us when it is small                      QuantBatchMatmulV3 with 4 MB of weights took 14.8 us on a 950PR, whose memory needs 3 of
                                                         them: github.com/hw-native-sys/pypto-lib/issues/1054
  other      4 us when it is small                       assumed
  a sum      20 us for two cards, in a replay            assumed; as calls, 443 us were reported: github.com/lvyufeng/PocketLLM/pull/269
  the link   20 GB/s, 5 us for a copy                    PCIe 4.0 x16 less its overhead; assumed
  host call  10 us                                       assumed; `tandem doctor --device npu` measures it

usage: ascend_cost.py CONFIG.json [--context 4096] [--operations]
"""
import argparse
import json
import sys

HBM, INT8, BF16, LINK = 800e9 * 0.6, 512e12, 256e12, 20e9
PRODUCT_US, OTHER_US, SUM_US, COPY_US, CALL_US = 12, 4, 20, 5, 10
LAYOUTS = [(fused, cards, streams) for fused in (False, True) for cards in (1, 2) for streams in (1, 16, 32)]


class Step:
    """The operations of one step: m rows, one of every stream, on one of n cards."""

    def __init__(self, config, m, n, fused, context):
        self.c, self.m, self.n, self.fused, self.context = config, m, n, fused, context

    def op(self, name, weights=0, rows=0, int8=0, bf16=0, least=OTHER_US):
        """Bytes of weights (or keys), bytes of rows, multiply-adds times two."""
        size = weights + rows
        return name, size, max(least, 1e6 * size / HBM, 1e6 * int8 / INT8, 1e6 * bf16 / BF16)

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
        """The residual's sum, its norm and codes; where the router reads the norm, too, no operation has norm and codes."""
        h = self.c["hidden_size"]
        rest = [self.rowwise("AddRmsNormDynamicQuant", h)] if self.fused and codes_alone else [self.rowwise("RmsNorm", h), self.rowwise("DynamicQuant", h)]
        return [self.rowwise("InplaceAdd", h)] + rest

    def mlp(self, inter):
        h, inter = self.c["hidden_size"], inter // self.n
        fits = 2 * inter * 2 * 10 < 192 << 10  # the operation's own rule: dense layers are too wide
        middle = [self.rowwise("DequantSwigluQuant", inter)] if self.fused and fits else [self.rowwise("SwiGlu", inter), self.rowwise("DynamicQuant", inter)]
        return [self.product("QuantMatmul gate, up", 2 * inter, h)] + middle + [self.product("QuantMatmul down", h, inter)]

    def moe_layer(self):
        c, h = self.c, self.c["hidden_size"]
        router = [self.rowwise("Cast", h), self.op("Mm of the router, f32", 4 * c["n_routed_experts"] * h, 4 * self.m * h, least=PRODUCT_US),
                  self.rowwise("MoeGatingTopK", c["n_routed_experts"]), self.rowwise("Topk", c["num_experts_per_tok"]),
                  self.rowwise("Gather", c["num_experts_per_tok"])]  # on card 0, which is the one that is counted
        return (self.attention() + self.norm_of_sum(False) + router + self.mlp(c["moe_intermediate_size"] * c["n_shared_experts"]) +
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
        """Bytes over the link of a layer with experts, and microseconds: five copies and two host calls."""
        size = self.m * (self.c["hidden_size"] + 4 + 6 * self.c["num_experts_per_tok"] + 2 * self.c["hidden_size"])
        return size, 5 * COPY_US + 1e6 * size / LINK + 2 * CALL_US


def total(ops):
    return len(ops), sum(b for _, b, _ in ops), sum(us for _, _, us in ops)


def print_operations(config, context):
    print("| operation | MB | us |\n|---|---|---|")
    for name, size, us in Step(config, 1, 1, True, context).moe_layer():
        print("| %s | %.2f | %.0f |" % (name, size / 1e6, us))


def print_layouts(config, context):
    dense = config["first_k_dense_replace"]
    moe = config["num_hidden_layers"] - dense
    print("| operations | cards | streams | launches a layer | us a layer | hand-over, us a layer | launches a step | GB of HBM a step | MB over the link a step | ms a step |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for fused, cards, streams in LAYOUTS:
        s = Step(config, streams, cards, fused, context)
        layer, other, ends = total(s.moe_layer()), total(s.dense_layer()), total(s.ends())
        launches, size, us = (moe * a + dense * b + c for a, b, c in zip(layer, other, ends))
        link, link_us = s.handover()
        print("| %s | %d | %d | %d | %.0f | %.0f | %d | %.1f | %.2f | %.1f |" % ("fused" if fused else "unfused", cards, streams, layer[0], layer[2],
              link_us, launches, size / 1e9, moe * link / 1e6, (us + moe * link_us) / 1e3))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--context", type=int, default=4096, help="keys of every stream")
    parser.add_argument("--operations", action="store_true", help="the operations of one layer with experts, one stream on one card, fused")
    args = parser.parse_args()
    with open(args.config, encoding="utf-8") as f:
        config = json.load(f)
    missing = [k for k in ("q_lora_rank", "kv_lora_rank", "n_routed_experts", "first_k_dense_replace") if not config.get(k)]
    if missing:
        sys.exit("ascend_cost.py: %s has no %s: only models with compressed MLA and experts (DeepSeek-V3) are counted here" % (args.config, ", ".join(missing)))
    (print_operations if args.operations else print_layouts)(config, args.context)


if __name__ == "__main__":
    main()

"""GLM-5.3-Flash in numpy, float32: the part of reference_numpy.py for this family.  It follows the formulas of tests/data/golden/README.md.

Every token has several residual streams X [streams, hidden], mixed as DeepSeek-V4's, whose mean goes to the head.  Most layers are Kimi delta
attention, whose decays have a floor; the others attend to the tokens of the index keys that are chosen, of which each stands for several tokens.
"""
import json, os
import numpy as np

from reference_numpy import Model, load_weights, recurrence, sigmoid, softmax, unit
from reference_v4 import ModelV4


class ModelGlm5(Model):
    mix = ModelV4.mix

    def __init__(self, folder):
        config = json.load(open(os.path.join(folder, "config.json")))["text_config"]
        weights = {name.replace("model.language_model.", "model."): w for name, w in load_weights(folder).items() if not name.startswith("model.visual.")}
        self.c = dict(config, model_type="glm_moe_dsa")                            # whose router it has
        self.w, self.kimi, self.minimax, self.gated = weights, True, False, False
        self.moe_name, self.expert_parts = "mlp", ("gate_proj", "up_proj", "down_proj")

    def norm(self, x, name=None, eps=None):
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.c["rms_norm_eps"]))
        return y * self.w[name + ".weight"] if name else y

    def mlp(self, x, name, parts=("gate_proj", "up_proj", "down_proj")):
        limit, (gate, up, down) = np.float32(self.c["swiglu_limit"]), (name + "." + part for part in parts)
        g = np.minimum(self.linear(x, gate), limit)
        return self.linear(g * sigmoid(g) * np.clip(self.linear(x, up), -limit, limit), down)

    def is_delta(self, i):
        return i < self.c["num_hidden_layers"] and self.c["layer_types"][i] == "linear_attention"

    def kda(self, x, n):
        T, heads, floor = len(x), self.c["linear_attn_config"]["num_heads"], np.float32(self.c["linear_attn_config"]["gate_lower_bound"])
        of_heads = lambda y: y.reshape(T, heads, -1)
        through_low = lambda part: self.linear(self.linear(x, n + ".%s_a_proj" % part), n + ".%s_b_proj" % part)
        q, k, v = (of_heads(self.convolve(self.linear(x, n + ".%s_proj" % part), n + ".%s_conv1d" % part)) for part in "qkv")
        step = of_heads(through_low("f") + self.w[n + ".dt_bias"])
        decay = np.exp(floor * sigmoid(np.exp(self.w[n + ".A_log"].reshape(heads, 1)) * step))
        out = recurrence(unit(q), unit(k), v, decay, sigmoid(self.linear(x, n + ".b_proj")))
        return self.linear((self.norm(out, n + ".o_norm") * sigmoid(of_heads(through_low("g")))).reshape(T, -1), n + ".o_proj")

    def mla_attention(self, x, n):
        c, T, H, dn = self.c, len(x), self.c["num_attention_heads"], self.c["qk_nope_head_dim"]
        low = self.norm(self.linear(x, n + ".q_a_proj"), n + ".q_a_layernorm")
        q = self.linear(low, n + ".q_b_proj").reshape(T, H, dn)
        latent = self.norm(self.linear(x, n + ".kv_a_proj_with_mqa"), n + ".kv_a_layernorm")
        kv = self.linear(latent, n + ".kv_b_proj").reshape(T, H, -1)
        if n + ".indexer.wk.weight" in self.w:                      # a layer without an indexer has the choice of the one before it
            self.chosen = self.choose(x, low, n + ".indexer")
        return self.linear(self.attend(q, kv[..., :dn], kv[..., dn:], dn ** -0.5, chosen=self.chosen), n + ".o_proj")

    def choose(self, x, low, n):
        """[T, T] the tokens of each row: those of its best index keys, and those behind its last one."""
        c, T, H, D, P = self.c, len(x), self.c["index_n_heads"], self.c["index_head_dim"], self.c["index_kpool"]
        k = self.linear(x, n + ".wk")
        k = k - k.mean(-1, keepdims=True)
        k = k / np.sqrt((k * k).mean(-1, keepdims=True) + np.float32(1e-6)) * self.w[n + ".k_norm.weight"] + self.w[n + ".k_norm.bias"]
        gate = x @ self.w[n + ".index_kpool_compress_gate"].T
        keys, K = np.zeros((T // P, D), np.float32), c["index_topk"] // P
        for w in range(T // P):
            of = slice(w * P, w * P + P)
            keys[w] = (softmax((gate[of] + self.w[n + ".index_kpool_compress_ape"]).T).T * k[of]).sum(0)
        q = self.linear(low, n + ".wq_b").reshape(T, H, D)
        score = np.einsum("ths,th->ts", np.maximum(np.einsum("thd,sd->ths", q, keys), 0), self.linear(x, n + ".weights_proj")) * np.float32((H * D) ** -0.5)
        out = np.zeros((T, T), bool)
        for t in range(T):
            seen = (t + 1) // P
            order = np.argsort(-score[t, :seen], kind="stable")
            if seen > K:
                self.index_margin = min(self.index_margin, float(score[t, order[K - 1]] - score[t, order[K]]))
            for w in order[:K]:
                out[t, w * P:w * P + P] = True
            out[t, seen * P:t + 1] = True
        return out

    def streams_layer(self, X, i):
        n = "model.layers.%d." % i
        attention = self.kda if self.is_delta(i) else self.mla_attention
        feed = self.moe if self.is_moe(i) else self.mlp
        for part, before, inner in (("attn", "input_layernorm", lambda x: attention(x, n + "self_attn")),
                                    ("ffn", "post_attention_layernorm", lambda x: feed(x, n + "mlp"))):
            x, post, comb = self.mix(X, n + "hc_" + part)
            X = post[:, :, None] * inner(self.norm(x, n + before))[:, None] + np.einsum("tij,tid->tjd", comb, X)
        return X

    def is_moe(self, i):
        return i >= self.c["num_hidden_layers"] or self.c["mlp_layer_types"][i] == "sparse"

    def layer(self, x, i):
        """The multi-token-prediction layer, which has one residual stream."""
        n = "model.layers.%d." % i
        x = x + self.mla_attention(self.norm(x, n + "input_layernorm"), n + "self_attn")
        return x + self.moe(self.norm(x, n + "post_attention_layernorm"), n + "mlp")

    def forward(self, ids):
        """As Model.forward, without layer_hidden."""
        self.routed, self.index_margin = [], np.inf
        X = np.repeat(self.w["model.embed_tokens.weight"][np.asarray(ids)][:, None], self.c["hc_mult"], 1)
        for i in range(self.c["num_hidden_layers"]):
            X = self.streams_layer(X, i)
        hidden = self.norm(X.mean(1), "model.norm")
        routed = [np.stack(part) for part in zip(*self.routed)]
        return {"logits": hidden @ self.w["lm_head.weight"].T, "hidden": hidden, "router_ids": routed[0], "router_weights": routed[1],
                "router_margin": routed[2]}

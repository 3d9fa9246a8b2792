#!/usr/bin/env python3
"""A plain numpy float32 forward pass of every architecture that Tandem serves, and a check of the golden outputs with it.

  reference_numpy.py            check every folder of tests/data/golden/ (run from the repository root)
  reference_numpy.py DIR ...    check these

It shares no code with transformers.  It follows the models' own publications: DeepSeek's published modeling and
inference programs (V2: arXiv 2405.04434, V3: arXiv 2412.19437), the YaRN paper (arXiv 2309.00071), and Qwen's model
cards.  The formulas in words: tests/data/golden/README.md.  The whole sequence is computed at once, one token's meaning
at a time; clarity over speed.  Needs numpy.
"""
import json, math, os, sys
import numpy as np

import golden_io

GOLDEN = "tests/data/golden"
INDEXED = ("deepseek_v32", "glm_moe_dsa")    # a row attends to keys that an indexer chooses
LATENT_NORM_EPS = 1e-6           # q_a_layernorm and kv_a_layernorm ignore rms_norm_eps in DeepSeek's own code


def load_file(path):
    raw = open(path, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name == "__metadata__":
            continue
        a, b = t["data_offsets"]
        data = raw[8 + n + a:8 + n + b]
        if t["dtype"] == "BF16":
            v = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
        elif t["dtype"] in ("U8", "I8", "F8_E4M3", "F8_E8M0"):    # codes, decoded below or in reference_v4.py
            v = np.frombuffer(data, "u1")
        else:
            v = np.frombuffer(data, {"F16": "<f2", "F32": "<f4", "I64": "<i8"}[t["dtype"]])
        out[name] = v.reshape(t["shape"]).astype(np.float32)
    return out


def decode_mxfp4(weights):
    """X_blocks [experts, out, groups, 16] and X_scales [experts, out, groups] become X [experts, in, out]: OCP Microscaling Formats 1.0."""
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    e2m1 = np.concatenate((e2m1, -e2m1))
    for name in [n[:-len("_blocks")] for n in weights if n.endswith("_blocks")]:
        codes, scales = weights.pop(name + "_blocks").astype(int), weights.pop(name + "_scales")
        values = np.stack((e2m1[codes & 15], e2m1[codes >> 4]), -1).reshape(*codes.shape[:3], 32) * np.exp2(scales - 127)[..., None]
        weights[name] = values.reshape(*codes.shape[:2], -1).transpose(0, 2, 1).astype(np.float32)
    return weights


def load_weights(folder):
    index = os.path.join(folder, "model.safetensors.index.json")
    if not os.path.exists(index):
        return decode_mxfp4(load_file(os.path.join(folder, "model.safetensors")))
    where, out = json.load(open(index))["weight_map"], {}
    for file in sorted(set(where.values())):
        part = load_file(os.path.join(folder, file))
        assert all(where[name] == file for name in part)
        out.update(part)
    assert set(out) == set(where)
    return out


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + np.float32(1e-6))


def recurrence(q, k, v, decay, beta):
    """One token after the other.  q, k [T, heads, dk], v [T, heads, dv], decay [T, heads, dk or 1], beta [T, heads]."""
    state, out, q = np.zeros((*q.shape[1:], v.shape[-1]), np.float32), np.empty_like(v), q * np.float32(q.shape[-1] ** -0.5)
    for t in range(len(q)):
        state = state * decay[t][..., None]
        change = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * change[:, None]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out


def yarn_mscale(factor, mscale):
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def rope_table(dim, theta, scaling):
    """(inverse frequencies [dim/2], factor on cos and sin) of plain or YaRN rope."""
    plain = theta ** (-np.arange(0, dim, 2) / dim)
    if scaling is None:
        return plain, 1.0
    assert scaling.get("rope_type", scaling.get("type")) == "yarn"
    s, length = scaling["factor"], scaling["original_max_position_embeddings"]

    def pair_that_turns(times):      # the (real) pair index that makes `times` full turns within the original length
        return dim * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_that_turns(scaling.get("beta_fast", 32)), pair_that_turns(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low if high > low else 0.001), 0, 1)
    on_cos_sin = yarn_mscale(s, 1.0)
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        on_cos_sin = yarn_mscale(s, scaling["mscale"]) / yarn_mscale(s, scaling["mscale_all_dim"])
    return plain / s * ramp + plain * (1 - ramp), on_cos_sin


def mtp_name(name, n):
    """A tensor of Qwen3-Next's and Qwen3.5's multi-token-prediction layer, as DeepSeek-V3 calls that of layer n."""
    for of, to in (("layers.0", ""), ("fc", "eh_proj"), ("pre_fc_norm_embedding", "enorm"), ("pre_fc_norm_hidden", "hnorm"), ("norm", "shared_head.norm")):
        if name.startswith("mtp.%s." % of):
            return "model.layers.%d." % n + (to + "." if to else "") + name[len("mtp.%s." % of):]
    return name


def with_names_of_v3(config):
    """Kimi-Linear's config.json with DeepSeek-V3's keys, too."""
    names = {"num_experts_per_tok": "num_experts_per_token", "n_group": "num_expert_group", "norm_topk_prob": "moe_renormalize"}
    return dict(config, scoring_func="sigmoid", topk_method="noaux_tc", **{to: config[of] for to, of in names.items()})


class Model:
    def __init__(self, folder):
        config, weights = json.load(open(os.path.join(folder, "config.json"))), load_weights(folder)
        if config["model_type"] == "qwen3_5_moe":
            config = config["text_config"]
            weights = {name.replace("model.language_model.", "model."): w for name, w in weights.items() if not name.startswith("model.visual.")}
        elif config["model_type"] == "qwen3_vl_moe":    # the language model is a Qwen3-MoE
            config = dict(config["text_config"], tie_word_embeddings=config["tie_word_embeddings"])
            weights = {name.replace("model.language_model.", "model."): w.transpose(0, 2, 1) if ".experts." in name else w
                       for name, w in weights.items() if not name.startswith("model.visual.")}
        elif "text_config" in config:    # Kimi-K2.5: the language model is a DeepSeek-V3
            config = dict(config["text_config"], model_type="deepseek_v3")
            weights = {name.removeprefix("language_model."): w for name, w in weights.items() if name.startswith("language_model.")}
        if config["model_type"] == "kimi_linear":
            config = with_names_of_v3(config)
        if config["model_type"] in ("qwen3_next", "qwen3_5_moe_text"):
            weights = {mtp_name(name, config["num_hidden_layers"]): w for name, w in weights.items()}
        self.hold(config, weights)

    def hold(self, c, weights):
        self.c, self.w = c, weights
        self.kimi = c["model_type"] == "kimi_linear"
        self.mla = c["model_type"] in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_linear") + INDEXED
        self.minimax = c["model_type"] == "minimax_m2"
        self.gpt_oss = c["model_type"] == "gpt_oss"
        self.gated = c["model_type"] in ("qwen3_next", "qwen3_5_moe_text")
        self.moe_name = "block_sparse_moe" if self.minimax or self.kimi else "mlp"
        self.expert_parts = ("w1", "w3", "w2") if self.minimax or self.kimi else ("gate_proj", "up_proj", "down_proj")
        self.head_dim = c["qk_rope_head_dim"] if self.mla else c.get("head_dim", c["hidden_size"] // c["num_attention_heads"])
        rope = dict(c, **c.get("rope_parameters", {}))
        self.rotated = self.head_dim if self.mla else rope.get("rotary_dim", int(self.head_dim * rope.get("partial_rotary_factor", 1)))
        self.freq, self.rope_gain = rope_table(self.rotated, rope["rope_theta"], c.get("rope_scaling"))

    def is_moe(self, i):
        c = self.c
        if self.minimax or self.gpt_oss:
            return True
        if "mlp_layer_types" in c:
            return c["mlp_layer_types"][i] == "sparse"
        if c["model_type"] == "qwen3_5_moe_text":
            return True
        if "first_k_dense_replace" in c:
            return i >= c["first_k_dense_replace"] and i % c.get("moe_layer_freq", 1) == 0
        return i not in c.get("mlp_only_layers", []) and (i + 1) % c["decoder_sparse_step"] == 0

    # small parts

    def norm(self, x, name, eps=None):
        eps = self.c["rms_norm_eps"] if eps is None else eps
        gain = self.w[name + ".weight"] + np.float32(self.gated and not name.endswith("linear_attn.norm"))
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * gain

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def mlp(self, x, name, parts=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = (name + "." + part for part in parts)
        g = self.linear(x, gate)
        return self.linear(g * sigmoid(g) * self.linear(x, up), down)

    def rope(self, x, pairs=None):
        """x [T, heads, dim], position = first index, the first d elements.  With pairs, as MLA has them, pair i is elements (2i, 2i+1); else
        (i, i + d/2)."""
        d = self.rotated
        if self.kimi:                    # nothing is rotated
            return x
        pairs = self.mla if pairs is None else pairs
        first, second = (np.s_[..., 0:d:2], np.s_[..., 1:d:2]) if pairs else (np.s_[..., :d // 2], np.s_[..., d // 2:d])
        angle = np.arange(len(x))[:, None, None] * self.freq
        cos, sin = (np.cos(angle) * self.rope_gain).astype(np.float32), (np.sin(angle) * self.rope_gain).astype(np.float32)
        out = x.copy()
        out[first], out[second] = x[first] * cos - x[second] * sin, x[second] * cos + x[first] * sin
        return out

    # attention

    def attend(self, q, k, v, scale, window=None, sinks=None, chosen=None):
        """q [T, H, d], k [T, Hkv, d], v [T, Hkv, dv]: causal softmax(q k^T scale) v, query head h reading kv head h / (H / Hkv).  With a window only
        the last `window` keys, the own one included; a sink [H] is a score whose value is zero; chosen [T, T]: the keys of each row."""
        T, H, share = len(q), q.shape[1], q.shape[1] // k.shape[1]
        out = np.empty((T, H, v.shape[-1]), np.float32)
        unseen = np.triu(np.ones((T, T), bool), 1)
        if window:
            unseen |= np.tril(np.ones((T, T), bool), -window)
        if chosen is not None:
            unseen |= ~chosen
        for h in range(H):
            s = q[:, h] @ k[:, h // share].T * np.float32(scale)
            s[unseen] = -np.inf
            if sinks is not None:
                s = np.concatenate((s, np.full((T, 1), sinks[h], np.float32)), 1)
            out[:, h] = softmax(s)[:, :T] @ v[:, h // share]
        return out.reshape(T, -1)

    def mla_attention(self, x, n):
        c, T, H = self.c, len(x), self.c["num_attention_heads"]
        dn, dr, dv, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        if c.get("q_lora_rank"):
            low = self.norm(self.linear(x, n + ".q_a_proj"), n + ".q_a_layernorm", LATENT_NORM_EPS)
            q = self.linear(low, n + ".q_b_proj")
        else:
            q = self.linear(x, n + ".q_proj")
        q = q.reshape(T, H, dn + dr)
        kv = self.linear(x, n + ".kv_a_proj_with_mqa")
        latent, k_rope = kv[:, :rank], self.rope(kv[:, None, rank:])
        kv = self.linear(self.norm(latent, n + ".kv_a_layernorm", LATENT_NORM_EPS), n + ".kv_b_proj").reshape(T, H, dn + dv)
        q = np.concatenate((q[..., :dn], self.rope(q[..., dn:])), -1)
        k = np.concatenate((kv[..., :dn], np.broadcast_to(k_rope, (T, H, dr))), -1)
        scale, yarn = (dn + dr) ** -0.5, c.get("rope_scaling")
        if yarn and yarn.get("mscale_all_dim"):
            scale *= yarn_mscale(yarn["factor"], yarn["mscale_all_dim"]) ** 2
        if n + ".indexer.wk.weight" in self.w:                      # a layer without an indexer has the choice of the last one that had one
            self.chosen = self.choose(x, low, n + ".indexer")
        return self.linear(self.attend(q, k, kv[..., dn:], scale, chosen=self.chosen if c["model_type"] in INDEXED else None), n + ".o_proj")

    def choose(self, x, low, n):
        """[T, T] the keys of each row: those of the best scores at or before it, of equal ones the first (DeepSeek-V3.2, section 2.1)."""
        c, T, H, D, K = self.c, len(x), self.c["index_n_heads"], self.c["index_head_dim"], self.c["index_topk"]
        k = self.linear(x, n + ".wk")
        k = k - k.mean(-1, keepdims=True)
        k = k / np.sqrt((k * k).mean(-1, keepdims=True) + np.float32(1e-6)) * self.w[n + ".k_norm.weight"] + self.w[n + ".k_norm.bias"]
        pairs = c["model_type"] == "glm_moe_dsa"
        q, k = self.rope(self.linear(low, n + ".wq_b").reshape(T, H, D), pairs), self.rope(k[:, None], pairs)[:, 0]
        score = np.einsum("ths,th->ts", np.maximum(np.einsum("thd,sd->ths", q, k), 0), self.linear(x, n + ".weights_proj")) * np.float32((H * D) ** -0.5)
        out = np.zeros((T, T), bool)
        for t in range(T):
            order = np.argsort(-score[t, :t + 1], kind="stable")
            if t >= K:
                self.index_margin = min(self.index_margin, float(score[t, order[K - 1]] - score[t, order[K]]))
            out[t, order[:K]] = True
        return out

    def gqa_attention(self, x, n):
        c, T, d = self.c, len(x), self.head_dim
        q, k, v = (self.linear(x, n + part) for part in (".q_proj", ".k_proj", ".v_proj"))
        if self.minimax:                 # over the whole row
            q, k = self.norm(q, n + ".q_norm"), self.norm(k, n + ".k_norm")
        if self.gated:                   # per head a query and a gate
            q, gate = np.split(q.reshape(T, -1, 2 * d), 2, -1)
        q, k, v = (y.reshape(T, -1, d) for y in (q, k, v))
        if not self.minimax and n + ".q_norm.weight" in self.w:
            q, k = self.norm(q, n + ".q_norm"), self.norm(k, n + ".k_norm")
        kind = c["layer_types"][int(n.split(".")[2])] if self.gpt_oss else "full_attention"
        window = c["sliding_window"] if kind == "sliding_attention" else None
        out = self.attend(self.rope(q), self.rope(k), v, d ** -0.5, window, self.w.get(n + ".sinks"))
        return self.linear(out * sigmoid(gate).reshape(T, -1) if self.gated else out, n + ".o_proj")

    # gated DeltaNet (arXiv 2412.06464, equation 10), one token after the other

    def is_delta(self, i):
        c = self.c
        if self.kimi:
            return i + 1 in c["linear_attn_config"]["kda_layers"]
        if not self.gated or i == c["num_hidden_layers"]:              # the multi-token-prediction layer has attention
            return False
        return c["layer_types"][i] == "linear_attention" if "layer_types" in c else (i + 1) % c["full_attention_interval"] != 0

    def delta_projections(self, x, n):
        """q, k, v side by side (each of all heads), z [T, value heads, dv], b and a [T, value heads]."""
        c, T = self.c, len(x)
        nk, nv, dk, dv = (c["linear_" + k] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        if c["model_type"] == "qwen3_5_moe_text":
            qkv, z, b, a = (self.linear(x, n + ".in_proj_" + part) for part in ("qkv", "z", "b", "a"))
            return qkv, z.reshape(T, nv, dv), b, a
        v = nv // nk * dv
        parts = np.split(self.linear(x, n + ".in_proj_qkvz").reshape(T, nk, -1), (dk, 2 * dk, 2 * dk + v), -1)
        b, a = np.split(self.linear(x, n + ".in_proj_ba").reshape(T, nk, -1), 2, -1)
        return np.concatenate([p.reshape(T, -1) for p in parts[:3]], -1), parts[3].reshape(T, nv, dv), b.reshape(T, nv), a.reshape(T, nv)

    def delta(self, x, n):
        c, T = self.c, len(x)
        nk, nv, dk, dv = (c["linear_" + k] for k in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))
        qkv, z, b, a = self.delta_projections(x, n)
        q, k, v = np.split(self.convolve(qkv, n + ".conv1d"), (nk * dk, 2 * nk * dk), -1)
        q, k = (np.repeat(unit(y.reshape(T, nk, dk)), nv // nk, 1) for y in (q, k))
        decay = np.exp(-np.exp(self.w[n + ".A_log"]) * np.logaddexp(np.float32(0), a + self.w[n + ".dt_bias"]))
        out = recurrence(q, k, v.reshape(T, nv, dv), decay[..., None], sigmoid(b))
        return self.linear((self.norm(out, n + ".norm") * z * sigmoid(z)).reshape(T, -1), n + ".out_proj")

    def convolve(self, x, name):
        taps = self.w[name + ".weight"][:, 0].T                        # [taps, channels], the token's own last
        padded = np.concatenate((np.zeros((len(taps) - 1, x.shape[1]), np.float32), x))
        y = sum(padded[j:j + len(x)] * tap for j, tap in enumerate(taps))
        return y * sigmoid(y)

    def kda(self, x, n):
        """Kimi delta attention (arXiv 2510.26692): decays of each key channel."""
        T, heads = len(x), self.c["linear_attn_config"]["num_heads"]
        of_heads = lambda y: y.reshape(T, heads, -1)
        through_low = lambda part: self.linear(self.linear(x, n + ".%s_a_proj" % part), n + ".%s_b_proj" % part)
        q, k, v = (of_heads(self.convolve(self.linear(x, n + ".%s_proj" % part), n + ".%s_conv1d" % part)) for part in "qkv")
        step = np.logaddexp(np.float32(0), of_heads(through_low("f") + self.w[n + ".dt_bias"]))
        decay = np.exp(-np.exp(self.w[n + ".A_log"].reshape(heads, 1)) * step)
        out = recurrence(unit(q), unit(k), v, decay, sigmoid(self.linear(x, n + ".b_proj")))
        return self.linear((self.norm(out, n + ".o_norm") * sigmoid(of_heads(through_low("g")))).reshape(T, -1), n + ".o_proj")

    # experts

    def route(self, x, n):
        """(ids [T, K] and weights [T, K], heaviest first; margin [T]: how far the choice is from another one)."""
        c, T, K = self.c, len(x), self.c["num_experts_per_tok"]
        logits = self.linear(x, n + ".gate")
        E = logits.shape[1]
        glm = c["model_type"] in ("glm4_moe", "glm4_moe_lite", "minimax_m2") + INDEXED                    # whose config.json need not name them
        score = sigmoid(logits) if glm or c.get("scoring_func") == "sigmoid" else softmax(logits)
        method = "noaux_tc" if glm else c.get("topk_method", "greedy")
        choice, margin = score, np.full(T, np.inf, np.float32)
        if method == "noaux_tc":
            choice = score + self.w[n + (".e_score_correction_bias" if self.minimax else ".gate.e_score_correction_bias")]
        if method != "greedy":
            G, keep = c.get("n_group", 1), c.get("topk_group", 1)
            inside = np.sort(choice.reshape(T, G, E // G), -1)
            group = inside[..., -2:].sum(-1) if method == "noaux_tc" else inside[..., -1]
            order = np.argsort(-group, -1, kind="stable")
            if keep < G:
                ranked = np.take_along_axis(group, order, -1)
                margin = ranked[:, keep - 1] - ranked[:, keep]
            allowed = np.zeros((T, G), bool)
            np.put_along_axis(allowed, order[:, :keep], True, -1)
            choice = np.where(np.repeat(allowed, E // G, -1), choice, -np.inf)
        order = np.argsort(-choice, -1, kind="stable")
        ranked = np.take_along_axis(choice, order, -1)
        assert method == "greedy" or ranked[:, K - 1].min() > 0, "masking with 0 (DeepSeek's Python) and with -inf would differ"
        margin = np.minimum(margin, ranked[:, K - 1] - ranked[:, K])
        ids = order[:, :K]
        weights = np.take_along_axis(score, ids, -1)
        if c.get("norm_topk_prob", True):
            weights = weights / (weights.sum(-1, keepdims=True) + np.float32(1e-20))
        if glm or c["model_type"] in ("deepseek_v3", "kimi_linear") or (c["model_type"] == "deepseek_v2" and not c["norm_topk_prob"]):
            weights = weights * np.float32(c.get("routed_scaling_factor", 1))
        order = np.argsort(-weights, -1, kind="stable")
        return np.take_along_axis(ids, order, -1), np.take_along_axis(weights, order, -1), margin

    def route_gpt_oss(self, x, n):
        """The best logits, and the softmax over these alone."""
        logits, K = self.linear(x, n + ".router"), self.c["num_experts_per_tok"]
        order = np.argsort(-logits, -1, kind="stable")
        ranked = np.take_along_axis(logits, order, -1)
        return order[:, :K], softmax(ranked[:, :K]), ranked[:, K - 1] - ranked[:, K]

    def moe_gpt_oss(self, x, n):
        ids, weights, margin = self.route_gpt_oss(x, n)
        self.routed.append((ids, weights, margin))
        w = {k: self.w["%s.experts.%s" % (n, k)] for k in ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")}
        y, limit = np.zeros_like(x), np.float32(self.c["swiglu_limit"])
        for e in np.unique(ids):
            t, k = np.nonzero(ids == e)
            both = x[t] @ w["gate_up_proj"][e] + w["gate_up_proj_bias"][e]
            gate, up = np.minimum(both[:, 0::2], limit), np.clip(both[:, 1::2], -limit, limit)
            y[t] += (((up + 1) * gate * sigmoid(np.float32(1.702) * gate)) @ w["down_proj"][e] + w["down_proj_bias"][e]) * weights[t, k, None]
        return y

    def expert(self, x, n, e):
        if n + ".experts.gate_up_proj" not in self.w:
            return self.mlp(x, "%s.experts.%d" % (n, e), self.expert_parts)
        gate, up = np.split(x @ self.w[n + ".experts.gate_up_proj"][e].T, 2, -1)            # Qwen3.5: all experts in one tensor, gate first
        return (gate * sigmoid(gate) * up) @ self.w[n + ".experts.down_proj"][e].T

    def moe(self, x, n):
        ids, weights, margin = self.route(x, n)
        self.routed.append((ids, weights, margin))
        y = np.zeros_like(x)
        for e in np.unique(ids):
            t, k = np.nonzero(ids == e)
            y[t] += self.expert(x[t], n, e) * weights[t, k, None]
        if n + ".shared_experts.gate_proj.weight" in self.w:
            y = y + self.mlp(x, n + ".shared_experts")
        if n + ".shared_expert.gate_proj.weight" in self.w:
            y = y + sigmoid(self.linear(x, n + ".shared_expert_gate")) * self.mlp(x, n + ".shared_expert")
        return y

    def head(self):
        return "model.embed_tokens" if self.c.get("tie_word_embeddings") else "lm_head"

    def layer(self, x, i):
        n = "model.layers.%d." % i
        h = self.norm(x, n + "input_layernorm")
        if self.is_delta(i):
            x = x + (self.kda(h, n + "self_attn") if self.kimi else self.delta(h, n + "linear_attn"))
        else:
            x = x + (self.mla_attention if self.mla else self.gqa_attention)(h, n + "self_attn")
        mixture = self.moe_gpt_oss if self.gpt_oss else self.moe
        h = self.norm(x, n + "post_attention_layernorm")
        return x + (mixture(h, n + self.moe_name) if self.is_moe(i) else self.mlp(h, n + "mlp"))

    def mtp_logits(self, got, next_ids):
        """The multi-token-prediction layer (arXiv 2412.19437, section 2.2): [T, V].  got: what forward gave; next_ids [T]: row t
        predicts the token behind next_ids[t]."""
        self.routed, self.index_margin = [], np.inf
        n = "model.layers.%d." % self.c["num_hidden_layers"]
        e = self.norm(self.w["model.embed_tokens.weight"][np.asarray(next_ids)], n + "enorm")
        x = self.linear(np.concatenate((e, self.norm(got["hidden"], n + "hnorm")), -1), n + "eh_proj")
        x = self.layer(x, self.c["num_hidden_layers"])
        return self.norm(x, n + "shared_head.norm") @ self.w[self.head() + ".weight"].T

    def forward(self, ids):
        """A dict of logits [T, V], hidden [T, D], layer_hidden [L, T, D], router_ids and router_weights [M, T, K], router_margin [M, T].
        self.index_margin is how far a choice of keys is from another one."""
        self.routed, layers, self.index_margin = [], [], np.inf
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(x, i)
            layers.append(x)
        hidden = self.norm(x, "model.norm")
        head = self.head()
        routed = [np.stack(part) for part in zip(*self.routed)]
        return {"logits": hidden @ self.w[head + ".weight"].T, "hidden": hidden, "layer_hidden": np.stack(layers),
                "router_ids": routed[0], "router_weights": routed[1], "router_margin": routed[2]}


def model_of(folder):
    """The class that computes a checkpoint."""
    kind = json.load(open(os.path.join(folder, "config.json")))["model_type"]
    if kind == "deepseek_v4":
        from reference_v4 import ModelV4           # which takes functions from here
        return ModelV4(folder)
    if kind == "glm5_next":
        from reference_glm5 import ModelGlm5       # likewise
        return ModelGlm5(folder)
    return Model(folder)


def check(folder):
    m = golden_io.read(folder)
    model, worst = model_of(m["model"]), {}
    for p in m["prompts"]:
        got = model.forward(p["ids"])
        count = len(got["router_ids"])          # tale's arrays have one router more, that of the MTP layer
        assert np.array_equal(got["router_ids"], p["router_ids"][:count]), "another routing in " + folder
        for name in ("logits", "hidden", "layer_hidden", "router_weights"):
            if name in p:
                want = p[name][:count] if name == "router_weights" else p[name]
                assert got[name].shape == want.shape
                worst[name] = max(worst.get(name, 0.0), float(np.abs(got[name] - want).max() / np.abs(want).max()))
        if "mtp_logits" in p:
            draft = model.mtp_logits(got, p["ids"][1:] + [p["greedy"][0]])
            worst["mtp_logits"] = max(worst.get("mtp_logits", 0.0), float(np.abs(draft - p["mtp_logits"]).max() / np.abs(p["mtp_logits"]).max()))
        seq = list(p["ids"])
        for t in p["greedy"]:
            assert int(model.forward(seq)["logits"][-1].argmax()) == t, "another greedy path in " + folder
            seq.append(t)
    print("%-40s %s" % (folder, "  ".join("%s %.1e" % kv for kv in worst.items())))
    assert max(worst.values()) < 2e-5, "differs by more than float32 rounding"


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(os.path.join(GOLDEN, d) for d in os.listdir(GOLDEN) if os.path.exists(os.path.join(GOLDEN, d, "manifest.json")))
    print("largest difference over the largest magnitude; routing and greedy tokens equal")
    for name in names:
        check(name)

"""DeepSeek-V4 in numpy, float32: the part of reference_numpy.py for this family.  It follows the published inference program of the checkpoint.

Every token has several residual streams X [streams, hidden], which hyper-connections mix before and behind each sublayer.  Attention has one
key-value head whose keys are its values, over a window and over rows that stand for several tokens each.
"""
import json, os
import numpy as np

from reference_numpy import load_weights, rope_table, sigmoid, softmax


def e4m3(code):
    """float8_e4m3fn: OCP 8-bit Floating Point Specification, without infinities."""
    exponent, mantissa = code >> 3 & 15, code & 7
    return np.where(code & 128, -1, 1) * np.where(exponent == 0, mantissa * 2.0 ** -9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


def decode(weights):
    """X.weight with X.scale, 2^(code - 127): e4m3 in blocks of 128 x 128, or two e2m1 a byte with a scale for each 32 columns."""
    magnitude = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    e2m1 = np.concatenate((magnitude, -magnitude))
    for name in [n[:-len("scale")] for n in weights if n.endswith(".scale")]:
        codes, scale = weights[name + "weight"].astype(int), np.exp2(weights.pop(name + "scale") - 127)
        if ".experts." in name:
            values, scale = np.stack((e2m1[codes & 15], e2m1[codes >> 4]), -1).reshape(len(codes), -1), np.repeat(scale, 32, 1)
        else:
            values, scale = e4m3(codes), np.repeat(np.repeat(scale, 128, 0), 128, 1)[:codes.shape[0], :codes.shape[1]]
        weights[name + "weight"] = (values * scale).astype(np.float32)
    return weights


class ModelV4:
    def __init__(self, folder):
        self.c, self.w = json.load(open(os.path.join(folder, "config.json"))), decode(load_weights(folder))
        c, yarn = self.c, self.c.get("rope_scaling")
        self.rotated = c["qk_rope_head_dim"]
        self.near = rope_table(self.rotated, c["rope_theta"], None)[0]
        self.far = rope_table(self.rotated, c["compress_rope_theta"], yarn)[0]              # cos and sin are not scaled

    def norm(self, x, name=None):
        y = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(self.c["rms_norm_eps"]))
        return y * self.w[name] if name else y

    def rope(self, x, pos, freq, sign=1):
        """The last values of x [T, ..., D], in pairs that lie side by side."""
        n, x = self.rotated, x.copy()
        angle = (sign * pos[:, None] * freq).reshape((len(pos),) + (1,) * (x.ndim - 2) + (-1,))
        cos, sin, part = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32), x[..., -n:]
        even, odd = part[..., 0::2].copy(), part[..., 1::2].copy()
        part[..., 0::2], part[..., 1::2] = even * cos - odd * sin, odd * cos + even * sin
        return x

    def mix(self, X, n):
        """(the sublayer's input, post [T, S], comb [T, S, S])"""
        c, S, T = self.c, self.c["hc_mult"], len(X)
        fn, base, scale = (self.w[n + part] for part in ("_fn", "_base", "_scale"))
        f, eps = self.norm(X.reshape(T, -1)) @ fn.T, np.float32(c["hc_eps"])
        pre = sigmoid(f[:, :S] * scale[0] + base[:S]) + eps
        if len(fn) == S:
            return (pre[:, :, None] * X).sum(1), None, None
        post = 2 * sigmoid(f[:, S:2 * S] * scale[1] + base[S:2 * S])
        comb = softmax((f[:, 2 * S:] * scale[2] + base[2 * S:]).reshape(T, S, S)) + eps
        comb = comb / (comb.sum(1, keepdims=True) + eps)
        for _ in range(c["hc_sinkhorn_iters"] - 1):
            comb = comb / (comb.sum(2, keepdims=True) + eps)
            comb = comb / (comb.sum(1, keepdims=True) + eps)
        return (pre[:, :, None] * X).sum(1), post, comb

    def compress(self, x, n, ratio, dim):
        """A row for each whole run of `ratio` tokens: per channel a softmax over the run's rows, of ratio 4 over those of the run before, too."""
        kv, gate, ape = x @ self.w[n + "wkv.weight"].T, x @ self.w[n + "wgate.weight"].T, self.w[n + "ape"]
        runs = len(x) // ratio
        out = np.zeros((runs, dim), np.float32)
        for i in range(runs):
            run, before = slice(i * ratio, (i + 1) * ratio), slice((i - 1) * ratio, i * ratio)
            k, g = kv[run], gate[run] + ape
            if ratio == 4:
                k, g = k[:, dim:], g[:, dim:]
                if i:
                    k, g = np.concatenate((kv[before, :dim], k)), np.concatenate((gate[before, :dim] + ape[:, :dim], g))
            out[i] = (softmax(g.T).T * k).sum(0)
        return self.rope(self.norm(out, n + "norm.weight"), np.arange(runs) * ratio, self.far) if runs else out

    def chosen(self, x, qr, pos, n, visible):
        """Of the visible compressed rows [T, rows] those with the best scores."""
        c, T = self.c, len(x)
        k = self.compress(x, n + "compressor.", 4, c["index_head_dim"])
        q = self.rope((qr @ self.w[n + "wq_b.weight"].T).reshape(T, c["index_n_heads"], -1), pos, self.far)
        score = np.maximum(np.einsum("thd,sd->ths", q, k), 0) * np.float32(c["index_head_dim"] ** -0.5)
        score = np.einsum("ths,th->ts", score, x @ self.w[n + "weights_proj.weight"].T * np.float32(c["index_n_heads"] ** -0.5))
        score[~visible] = -np.inf
        out, K = np.zeros_like(visible), c["index_topk"]
        for t in range(T):
            order = np.argsort(-score[t], kind="stable")
            if visible[t].sum() > K:
                self.index_margin = min(self.index_margin, float(score[t, order[K - 1]] - score[t, order[K]]))
            out[t, order[:K]] = True
        return out & visible

    def attention(self, x, n, ratio):
        c, T, D, H = self.c, len(x), self.c["head_dim"], self.c["num_attention_heads"]
        pos, freq = np.arange(T), self.far if ratio else self.near
        qr = self.norm(x @ self.w[n + "wq_a.weight"].T, n + "q_norm.weight")
        q = self.rope(self.norm((qr @ self.w[n + "wq_b.weight"].T).reshape(T, H, D)), pos, freq)
        keys = self.rope(self.norm(x @ self.w[n + "wkv.weight"].T, n + "kv_norm.weight"), pos, freq)
        seen = (pos <= pos[:, None]) & (pos > pos[:, None] - c["sliding_window"])
        if ratio:
            rows = self.compress(x, n + "compressor.", ratio, D)
            visible = np.arange(len(rows)) < ((pos + 1) // ratio)[:, None]
            if ratio == 4 and len(rows):
                visible = self.chosen(x, qr, pos, n + "indexer.", visible)
            seen, keys = np.concatenate((seen, visible), 1), np.concatenate((keys, rows))
        score = np.einsum("thd,sd->hts", q, keys) * np.float32(D ** -0.5)
        score[:, ~seen] = -np.inf
        sinks = np.broadcast_to(self.w[n + "attn_sink"][:, None, None], (H, T, 1))
        o = np.einsum("hts,sd->thd", softmax(np.concatenate((score, sinks), 2))[..., :-1], keys)
        o = self.rope(o, pos, freq, -1).reshape(T, c["o_groups"], -1)
        low = np.einsum("tgi,goi->tgo", o, self.w[n + "wo_a.weight"].reshape(c["o_groups"], c["o_lora_rank"], -1))
        return low.reshape(T, -1) @ self.w[n + "wo_b.weight"].T

    def mlp(self, x, n):
        limit = np.float32(self.c["swiglu_limit"])
        gate, up = np.minimum(x @ self.w[n + "w1.weight"].T, limit), np.clip(x @ self.w[n + "w3.weight"].T, -limit, limit)
        return (gate * sigmoid(gate) * up) @ self.w[n + "w2.weight"].T

    def moe(self, x, ids, n):
        c, K = self.c, self.c["num_experts_per_tok"]
        score = np.sqrt(np.logaddexp(np.float32(0), x @ self.w[n + "gate.weight"].T))
        margin = np.full(len(x), 1e9, np.float32)
        if n + "gate.tid2eid" in self.w:                                                    # chosen by the token
            chosen = self.w[n + "gate.tid2eid"][ids].astype(int)
        else:
            choice = score + self.w[n + "gate.bias"]
            order = np.argsort(-choice, -1, kind="stable")
            ranked = np.take_along_axis(choice, order, -1)
            chosen, margin = order[:, :K], ranked[:, K - 1] - ranked[:, K]
        weights = np.take_along_axis(score, chosen, -1)
        weights = weights / (weights.sum(-1, keepdims=True) + np.float32(1e-20)) * np.float32(c["routed_scaling_factor"])
        order = np.argsort(-weights, -1, kind="stable")
        chosen, weights = np.take_along_axis(chosen, order, -1), np.take_along_axis(weights, order, -1)
        self.routed.append((chosen, weights, margin))
        y = self.mlp(x, n + "shared_experts.")
        for e in np.unique(chosen):
            t, k = np.nonzero(chosen == e)
            y[t] += self.mlp(x[t], "%sexperts.%d." % (n, e)) * weights[t, k, None]
        return y

    def layer(self, X, ids, n, ratio):
        for part, inner in (("attn", lambda x: self.attention(x, n + "attn.", ratio)), ("ffn", lambda x: self.moe(x, ids, n + "ffn."))):
            x, post, comb = self.mix(X, n + "hc_" + part)
            y = inner(self.norm(x, n + part + "_norm.weight"))
            X = post[:, :, None] * y[:, None] + np.einsum("tij,tid->tjd", comb, X)
        return X

    def forward(self, ids):
        """As Model.forward, without layer_hidden, and with the last streams; self.index_margin is how far a choice of compressed rows is from
        another one."""
        self.routed, self.index_margin, ids = [], np.inf, np.asarray(ids)
        X = np.repeat(self.w["embed.weight"][ids][:, None], self.c["hc_mult"], 1)
        for i in range(self.c["num_hidden_layers"]):
            X = self.layer(X, ids, "layers.%d." % i, self.c["compress_ratios"][i])
        hidden = self.norm(self.mix(X, "hc_head")[0], "norm.weight")
        routed = [np.stack(part) for part in zip(*self.routed)]
        return {"logits": hidden @ self.w["head.weight"].T, "hidden": hidden, "streams": X, "router_ids": routed[0], "router_weights": routed[1],
                "router_margin": routed[2]}

    def mtp_logits(self, got, next_ids):
        """As Model.mtp_logits: MTPBlock of the published program, over the streams before they are mixed."""
        self.routed, self.index_margin, n, ids = [], np.inf, "mtp.0.", np.asarray(next_ids)
        e = self.norm(self.w["embed.weight"][ids], n + "enorm.weight") @ self.w[n + "e_proj.weight"].T
        X = e[:, None] + self.norm(got["streams"], n + "hnorm.weight") @ self.w[n + "h_proj.weight"].T
        X = self.layer(X, ids, n, 0)
        return self.norm(self.mix(X, n + "hc_head")[0], n + "norm.weight") @ self.w["head.weight"].T

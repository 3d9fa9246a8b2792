#!/usr/bin/env python3
"""Make expected results of the rounding methods (tests/data/rounding, for tests/quant/test_matrix_round.c).

  make_rounding.py        run from the repository root; needs numpy

GPTQ as the paper has it (arXiv 2210.17323, algorithm 1), in float64 and without blocks. It takes the upper Cholesky factor of the inverse of the
damped Hessian, and subtracts the error of each column from the columns that follow. The engine works with a factor of the Hessian itself, in float32.
Raw little-endian files: weights w, inputs x, codes q_CASE as int8, scales s_CASE as f32; errors.f32: tr((W-Q) H (W-Q)^T) / tr(W H W^T) of each case.
"""
import numpy as np

OUT, N, K, TOKENS, SEED, DAMPING = "tests/data/rounding/", 48, 96, 160, 7, 0.01
# name: (bits, group or 0, act-order)
CASES = {"int4": (4, 0, False), "int4_act": (4, 0, True), "int4_g32": (4, 32, True), "int8": (8, 0, True)}


def nearest_scales(w, bits, group):
    """Codes of 4 bits are in [-8, 7], and a scale's sign gives the -8 to the weight of largest magnitude."""
    w = w.reshape(N, -1, group or K)
    if bits == 8:
        return np.abs(w).max(axis=2) / np.float32(127)
    most, least = w.max(axis=2), w.min(axis=2)
    assert (least < 0).all() and (most > 0).all()
    long, short = np.maximum(most, -least) / np.float32(8), np.minimum(most, -least) / np.float32(7)
    return np.maximum(long, short) * np.where(most > -least, np.float32(-1), np.float32(1))


def damped(h):
    return h + DAMPING * np.trace(h) / K * np.eye(K)


def gptq(w, h, scales, bits, group, act_order):
    lo, hi = (-127, 127) if bits == 8 else (-8, 7)
    order = np.argsort(-np.diag(h), kind="stable") if act_order else np.arange(K)
    u = np.linalg.cholesky(np.linalg.inv(damped(h)[np.ix_(order, order)])).T
    w, codes = w.astype(np.float64)[:, order], np.zeros((N, K), np.int8)
    for i, column in enumerate(order):
        s = scales[:, column // group if group else 0].astype(np.float64)
        q = np.clip(np.rint(w[:, i] / s), lo, hi)
        codes[:, column] = q
        w[:, i + 1:] -= np.outer((w[:, i] - q * s) / u[i, i], u[i, i + 1:])
    return codes


def error(w, h, codes, scales):
    e = w - codes * np.repeat(scales, K // scales.shape[1], axis=1).astype(np.float64)
    return np.sum((e @ h) * e) / np.sum((w @ h) * w)


def main():
    rng = np.random.default_rng(SEED)
    mix = rng.standard_normal((24, K)) / (1 + np.arange(24))[:, None]
    x = (rng.standard_normal((TOKENS, 24)) @ mix + 0.1 * rng.standard_normal((TOKENS, K))) * np.exp(0.7 * rng.standard_normal(K))
    x = x.astype(np.float32)
    w = (rng.standard_t(5, (N, K)) * 0.05).astype(np.float32)
    h = x.astype(np.float64).T @ x
    arrays, errors = {"w": w, "x": x}, []
    for name, (bits, group, act_order) in CASES.items():
        s = nearest_scales(w, bits, group)
        q = gptq(w, h, s, bits, group, act_order)
        arrays["s_" + name], arrays["q_" + name] = s, q
        errors.append(error(w, h, q, s))
        print(name, errors[-1])
    arrays["errors"] = np.array(errors, np.float32)
    for name, a in arrays.items():
        a.tofile(OUT + name + (".i8" if a.dtype == np.int8 else ".f32"))


main()

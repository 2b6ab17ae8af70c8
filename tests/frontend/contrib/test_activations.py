"""Gelu and its variants, additions of biases, against ONNX Runtime or numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from contrib_models import Case, build, compare, compiled, normal, run

RNG = np.random.default_rng(5)


def test_gelu_in_all_spellings(tmp_path: Path) -> None:
    x, bias, shape = normal(RNG, 3, 5, 24) * 3, normal(RNG, 24), ("n", "s", 24)
    cases = [
        Case("Gelu").feed(x, shape),
        Case("BiasGelu").feed(x, shape).constant(bias),
        Case("FastGelu").feed(x, shape).feed(bias),
        Case("FastGelu").feed(x, shape),
        *(Case("QuickGelu", {"alpha": alpha}).feed(x, shape) for alpha in (1.702, 1.0, -0.3)),
        Case("QuickGelu").feed(x, shape),
    ]
    compare(cases, tmp_path)


def test_what_onnx_runtime_has_on_gpus_only(tmp_path: Path) -> None:
    x, bias, skip = normal(RNG, 2, 3, 8), normal(RNG, 8), normal(RNG, 2, 3, 8)
    data, mask = normal(RNG, 2, 3, 4, 5), normal(RNG, 2, 1, 1, 5)
    cases = [
        Case("BiasSplitGelu").feed(x, ("n", "s", 8)).constant(bias),
        Case("BiasAdd").feed(x, ("n", "s", 8)).constant(bias).feed(skip, ("n", "s", 8)),
        Case("BiasSoftmax", {"axis": 3, "is_inner_broadcast": 1}).feed(data).feed(mask),
        Case("BiasSoftmax", {"axis": 2, "is_inner_broadcast": 0}).feed(data).feed(data[0]),
    ]
    model, feeds = build(cases)
    got = run(compiled(model, tmp_path)[1], feeds)
    y = (x + bias).astype("float64")
    erf = np.vectorize(__import__("math").erf)
    right = y[..., 4:]
    rows = (data + data[0]).reshape(6, 20).astype("float64")
    want = [
        y[..., :4] * right * 0.5 * (1 + erf(right / np.sqrt(2))),
        y + skip,
        _softmax((data + mask).astype("float64")),
        _softmax(rows).reshape(data.shape),
    ]
    for actual, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))

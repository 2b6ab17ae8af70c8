"""Operators in float64, float16 and bfloat16 that TVM computes in float32 only, or not at all."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from compiled_runner import compiled, run
from onnx import helper
from relax_vm import build

UNARY = ("Asin", "Acos", "Atan", "Asinh", "Atanh", "Sinh", "Cosh", "IsNaN")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_against_float64(tmp_path: Path, dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(0.1, 0.9, (3, 20)).astype(kind) for _ in range(2))
    nodes = [helper.make_node(name, ["x"], [name]) for name in UNARY]
    nodes += [
        helper.make_node("Mod", ["x", "w"], ["Mod"], fmod=1),
        helper.make_node("LayerNormalization", ["x", "g"], ["Norm"]),
        helper.make_node("ArgMax", ["x"], ["ArgMax"], axis=1),
    ]
    names = [node.output[0] for node in nodes]
    inputs = {"x": (kind, ("n", 20)), "w": (kind, ("n", 20))}
    model = build(nodes, inputs, names, {"g": np.ones(20, kind)}, opset=22)
    found = dict(zip(names, run(compiled(model, tmp_path), {"x": x, "w": w}), strict=True))
    wide = x.astype("float64")
    step = float(ml_dtypes.finfo(kind).eps) * 4
    centred = wide - wide.mean(-1, keepdims=True)
    expected = {
        **{n: getattr(np, n.lower().replace("asin", "arcsin").replace("acos", "arccos")
                      .replace("atan", "arctan"))(wide) for n in UNARY},
        "Mod": np.fmod(wide, w.astype("float64")),
        "Norm": centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5),
        "ArgMax": wide.argmax(1, keepdims=True),
    }  # fmt: skip
    for name, want in expected.items():
        got = found[name]
        assert got.dtype == (kind if want.dtype.kind == "f" else want.dtype), name
        tolerance = 1e-6 if dtype == "float64" else step
        np.testing.assert_allclose(got.astype("float64"), want, rtol=tolerance, atol=tolerance,
                                   err_msg=name)  # fmt: skip

"""Rows of activations as uint8, against the definition in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from plan_runner import Compiled
from relax_models import make
from tvm import relax

from graphc.passes.quantized_rows import quantize_rows_function
from graphc.targets import load as targets


def quantized(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low = np.minimum(x.min(-1, keepdims=True), 0).astype("float32")
    high = np.maximum(x.max(-1, keepdims=True), 0).astype("float32")
    span = high - low
    with np.errstate(divide="ignore"):
        inverse = np.where(span == 0, 1, np.float32(255) / span).astype("float32")
    scale = np.where(span == 0, 1, span * np.float32(1 / 255)).astype("float32")
    zero = np.rint(-low * inverse)
    codes = np.clip(np.rint(x * inverse) + zero, 0, 255).astype("uint8")
    return codes, scale, zero.astype("int32")


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3", "x86-64-v4-vnni"])
@pytest.mark.parametrize("depth", [1, 15, 16, 37, 96])
def test_rows(depth: int, target: str) -> None:
    device = targets.get(target)
    if not device.features <= targets.get("host").features:
        pytest.skip(f"this machine lacks instructions of {target}")

    def body(dims: object, x: relax.Var) -> list[relax.Expr]:
        inner = relax.BlockBuilder.current()
        function = quantize_rows_function((*x.ty.shape.values[:2], depth))
        gvar = inner.add_func(function, "quantize_rows")
        whole = inner.emit(tvm.ir.Call(gvar, [x]))
        return [inner.emit(relax.TupleGetItem(whole, part)) for part in range(3)]

    run = Compiled(make({"x": (("b", "s", depth), "float32")}, {}, body), device)
    assert run.templates == {"quantize_rows"}
    for batch, rows in ((1, 1), (2, 3), (1, 17)):
        x = np.random.default_rng(rows).standard_normal((batch, rows, depth)).astype("float32")
        x[0, 0] = 0  # a row without a range
        codes, scale, zero = run([x])
        expected = quantized(x)
        np.testing.assert_allclose(scale, expected[1], rtol=1e-6)
        np.testing.assert_array_equal(zero, expected[2])
        assert np.abs(codes.astype(int) - expected[0]).max() <= 1
        assert (codes != expected[0]).mean() < 0.01

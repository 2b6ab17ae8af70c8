"""8-bit weights with one scale per column: codes in the product, float or int8 activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plan_runner import Compiled
from relax_models import apply, make, op

from graphc.passes.keep_quantized import keep_quantized
from graphc.passes.quantized_products import quantized_products, with_activations
from graphc.passes.recognise_quantized_weights import recognise_quantized_weights


@pytest.mark.parametrize(("activation", "template"), [("float", "gemm"), ("int8", "gemm_int8")])
@pytest.mark.parametrize("first", ["codes", "scale"])
def test_a_cast_and_a_product_keep_the_codes(activation: str, template: str, first: str) -> None:
    random = np.random.default_rng(5)
    codes = random.integers(-128, 128, (40, 33), dtype=np.int8)
    scale = random.uniform(0.01, 0.02, (1, 33)).astype("float32")

    def body(_, x, w, s):
        wide = op.astype(w, "float32")
        return op.matmul(x, op.multiply(wide, s) if first == "codes" else op.multiply(s, wide))

    model = make({"x": (("b", "s", 40), "float32")}, {"w": codes, "s": scale}, body)
    model, _ = apply(model, recognise_quantized_weights, keep_quantized)
    model = with_activations(model, activation)
    model, report = apply(model, quantized_products)
    assert report.hits["quantized_products"] == 1
    run = Compiled(model)
    assert template in run.templates
    packed = [value for value in run.built.weights.values() if value.size >= codes.size]
    assert [value.dtype for value in packed] == [np.int8]
    for rows in (1, 3, 17):
        x = random.standard_normal((2, rows, 40)).astype("float32")
        expected = x.astype(float) @ (codes * scale)
        bound = 2e-5 if activation == "float" else 0.02
        error = np.linalg.norm(run([x])[0] - expected) / np.linalg.norm(expected)
        assert error < bound


def test_scales_along_the_depth_are_a_row_gather_s() -> None:
    """A table with a scale for each row stays 8-bit where rows are gathered, and only there."""
    codes = np.arange(-60, 60, dtype=np.int8).reshape(10, 12)
    scale = np.linspace(0.1, 0.2, 10, dtype="float32").reshape(10, 1)

    def table(w, s):
        return op.multiply(op.astype(w, "float32"), s)

    params = {"w": codes, "s": scale}
    gather = make(
        {"i": (("n",), "int64")}, params, lambda _, i, w, s: op.take(table(w, s), i, axis=0)
    )
    product = make(
        {"x": (("n", 10), "float32")}, params, lambda _, x, w, s: op.matmul(x, table(w, s))
    )
    for model, kept in ((gather, 1), (product, 0)):
        found, _ = apply(replace(model), recognise_quantized_weights, keep_quantized)
        assert len(found.quantized) == kept

"""Quantised weights: which stay so, and the composites that their products become."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from relax_models import apply, assert_same_numbers, make, nn, op, operators

from graphc.ir import QuantizedWeight, Weights
from graphc.passes.fold_constants import fold_constants
from graphc.passes.fold_scales import fold_scales
from graphc.passes.keep_quantized import keep_quantized
from graphc.passes.merge_duplicates import merge_duplicates
from graphc.passes.quantized_products import quantized_products

GENERATOR = np.random.default_rng()
DEPTH, WIDTH, GROUP = 32, 5, 16


def weight(asymmetric, transposed=True, depth=DEPTH, width=WIDTH, group=GROUP):
    low, high, dtype = (0, 16, np.uint8) if asymmetric else (-8, 8, np.int8)
    groups = (depth // group, width)
    return QuantizedWeight(
        codes=GENERATOR.integers(low, high, (depth, width)).astype(dtype),
        scales=GENERATOR.standard_normal(groups).astype(np.float32),
        minima=GENERATOR.standard_normal(groups).astype(np.float32) if asymmetric else None,
        group=group,
        bits=4,
        transposed=transposed,
    )


def model_of(body, quantized, inputs):
    """A model over one quantised weight, which is made plain only when it is read."""
    model = make(inputs, {"w": quantized.plain()}, body)
    return dataclasses.replace(
        model, params=Weights({"w": quantized.plain}), quantized={"w": quantized}
    )


X = {"x": (("batch", "length", DEPTH), "float32")}
DIMS = {"batch": 2, "length": 3}
CLEAN = (keep_quantized, fold_constants, fold_scales, merge_duplicates)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_a_linear_layer(asymmetric):
    model = model_of(lambda dims, x, w: op.matmul(x, op.permute_dims(w)), weight(asymmetric), X)
    found, report = apply(model, *CLEAN, quantized_products)
    assert operators(found) == ["quantized_matmul"]
    assert report.hits["quantized_products"] == 1
    assert set(found.params) == {"w.T.codes", "w.T.scales"} | (
        {"w.T.minima"} if asymmetric else set()
    )
    assert_same_numbers(model, found, DIMS)


@pytest.mark.parametrize("asymmetric", [False, True])
def test_an_embedding_and_the_head_tied_to_it_share_their_codes(asymmetric):
    def body(dims, rows, w):
        return op.matmul(nn.relu(op.take(w, rows, axis=0)), op.permute_dims(w))

    model = model_of(body, weight(asymmetric), {"rows": (("batch", "length"), "int64")})
    found, _ = apply(model, *CLEAN, quantized_products)
    assert operators(found) == ["quantized_take", "nn.relu", "quantized_matmul"]
    assert len(found.params) == (3 if asymmetric else 2)
    assert_same_numbers(model, found, DIMS)


def test_a_product_with_a_plain_orientation_stays():
    quantized = weight(True, transposed=False)
    model = model_of(lambda dims, x, w: op.matmul(x, w), quantized, X)
    found, _ = apply(model, *CLEAN, quantized_products)
    assert operators(found) == ["quantized_matmul"]
    assert_same_numbers(model, found, DIMS)


def test_a_scale_behind_a_product_is_not_folded_into_the_codes():
    quantized = weight(False)

    def body(dims, x, w):
        scale = op.astype(op.arange(0, WIDTH, 1, "int64"), "float32")
        return op.multiply(op.matmul(x, op.permute_dims(w)), scale)

    found, _ = apply(model_of(body, quantized, X), *CLEAN, quantized_products)
    assert "quantized_matmul" in operators(found)


def test_a_weight_that_something_else_reads_becomes_plain():
    model = model_of(lambda dims, x, w: op.matmul(x, op.permute_dims(op.exp(w))), weight(True), X)
    found, report = apply(model, keep_quantized)
    assert found.quantized == {}
    assert "becomes float32: it is read by exp" in report.misses[0]
    found, _ = apply(found, fold_constants, quantized_products)
    assert operators(found) == ["matmul"]
    assert_same_numbers(model, found, DIMS)

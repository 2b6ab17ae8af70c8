"""merge_duplicates: equal weights and equal operators."""

from __future__ import annotations

import numpy as np
from relax_models import apply, assert_same_module, const, make, op, operators

from graphc.passes.merge_duplicates import merge_duplicates

X = {"x": (("b", 8), "float32")}
W = np.arange(64, dtype=np.float32).reshape(8, 8)


def test_equal_operators_are_computed_once():
    def before(dims, x):
        left, right = op.reshape(x, (dims["b"] * 8,)), op.reshape(x, (dims["b"] * 8,))
        return op.add(op.exp(left), op.exp(right))

    def expected(dims, x):
        from tvm import relax

        y = relax.BlockBuilder.current().emit(op.exp(op.reshape(x, (dims["b"] * 8,))))
        return op.add(y, y)

    found, report = apply(make(X, {}, before), merge_duplicates)
    assert_same_module(found, make(X, {}, expected))
    assert report.hits["merge_operators"] == 2


def test_different_attributes_constants_and_shapes_are_kept_apart():
    def before(dims, x):
        return [
            op.sum(x, [1], True),
            op.sum(x, [1], False),
            op.add(x, const(1.0, "float32")),
            op.add(x, const(2.0, "float32")),
            op.reshape(x, (dims["b"], 4, 2)),
            op.reshape(x, (dims["b"], 2, 4)),
        ]

    model = make(X, {}, before)
    found, report = apply(model, merge_duplicates)
    assert_same_module(found, model)
    assert report.hits.total() == 0


def test_equal_weights_are_stored_once_and_what_reads_them_meets():
    def before(dims, x, first, second, third):
        return [op.matmul(x, first), op.matmul(x, second), op.matmul(x, third)]

    almost = W.copy()
    almost[3, 3] += 1
    found, report = apply(
        make(X, {"first": W, "second": W.copy(), "third": almost}, before), merge_duplicates
    )
    assert list(found.params) == ["first", "third"]
    assert operators(found) == ["matmul", "matmul"]
    assert report.hits == {"merge_weights": 1, "merge_operators": 1}


def test_weights_with_nan_and_signed_zeros_are_compared_bit_by_bit():
    def before(dims, x, *weights):
        return [op.matmul(x, weight) for weight in weights]

    zeros, nans = np.zeros((8, 8), np.float32), np.full((8, 8), np.nan, np.float32)
    weights = {"a": zeros, "b": -zeros, "c": nans, "d": nans.copy()}
    found, _ = apply(make(X, weights, before), merge_duplicates)
    assert list(found.params) == ["a", "b", "c"]


def test_equal_bytes_of_another_type_or_shape_are_other_weights():
    def before(dims, x, first, second):
        return [op.matmul(x, first), op.matmul(x, op.reshape(second, (8, 8)))]

    weights = {"first": W, "second": W.reshape(4, 16)}
    found, _ = apply(make(X, weights, before), merge_duplicates)
    assert len(found.params) == 2

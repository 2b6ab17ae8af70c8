"""fold_scales: batch norm and layer scale, into weights or into a scale and a shift."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import apply, assert_same_module, assert_same_numbers, make, nn, op, operators
from tvm import relax

from graphc.passes.fold_constants import fold_constants
from graphc.passes.fold_scales import fold_scales

GENERATOR = np.random.default_rng(0)
X = {"x": ((1, 3, 5, 5), "float32")}


def random(*shape):
    return GENERATOR.standard_normal(shape).astype(np.float32)


STATISTICS = {
    "gamma": random(4),
    "beta": random(4),
    "mean": random(4),
    "variance": np.abs(random(4)),
}
CONV = {"w": random(4, 3, 3, 3), "bias": random(1, 4, 1, 1), **STATISTICS}
TRANSPOSE = {**CONV, "w": random(3, 4, 4, 4)}


def batch_norm(x, *statistics, training=False, axis=1):
    y = nn.batch_norm(x, *statistics, axis, 1e-5, training=training)
    return relax.TupleGetItem(relax.BlockBuilder.current().emit(y), 0)


def conv(dims, x, w, bias, *statistics):
    return batch_norm(op.add(nn.conv2d(x, w), bias), *statistics)


def conv_without_bias(dims, x, w, bias, *statistics):
    return batch_norm(nn.conv2d(x, w), *statistics)


def transposed(dims, x, w, bias, *statistics):
    y = nn.conv2d_transpose(x, w, (2, 2), (1, 1))
    return nn.relu(batch_norm(op.add(y, bias), *statistics))


@pytest.mark.parametrize(
    ("body", "params", "expected"),
    [
        (conv, CONV, ["nn.conv2d", "add"]),
        (conv_without_bias, CONV, ["nn.conv2d", "add"]),
        (transposed, TRANSPOSE, ["nn.conv2d_transpose", "add", "nn.relu"]),
    ],
)
def test_folded_into_the_convolution(body, params, expected):
    model = make(X, params, body)
    found, report = apply(model, fold_scales)
    assert operators(found) == expected
    assert report.hits == {"fold_batch_norm": 1}
    assert_same_numbers(model, found)


def test_without_a_convolution_it_is_a_scale_and_a_shift():
    def body(dims, x, *statistics):
        return batch_norm(x, *statistics)

    model = make({"x": (("b", 4, 2), "float32")}, STATISTICS, body)
    found, report = apply(model, fold_scales)
    assert operators(found) == ["multiply", "add"]
    assert report.hits == {"decompose_batch_norm": 1}
    assert_same_numbers(model, found, {"b": 2})


def test_a_scale_per_channel_is_folded_too():
    def body(dims, x, w, bias, scale):
        return op.multiply(op.add(nn.conv2d(x, w), bias), scale)

    params = {"w": CONV["w"], "bias": CONV["bias"], "scale": random(4, 1, 1)}
    model = make(X, params, body)
    found, report = apply(model, fold_scales)
    assert operators(found) == ["nn.conv2d", "add"]
    assert report.hits == {"fold_scale": 1}
    assert_same_numbers(model, found)


def test_a_scale_per_column_is_not():
    def body(dims, x, w, scale):
        return op.multiply(nn.conv2d(x, w), scale)

    model = make(X, {"w": CONV["w"], "scale": random(3)}, body)
    found, _report = apply(model, fold_scales)
    assert_same_module(found, model)


def test_a_convolution_that_others_read_keeps_its_weights():
    def body(dims, x, w, bias, *statistics):
        y = relax.BlockBuilder.current().emit(nn.conv2d(x, w))
        return [batch_norm(y, *statistics), y]

    model = make(X, CONV, body)
    found, _report = apply(model, fold_scales)
    assert sorted(operators(found)) == ["add", "multiply", "nn.conv2d"]
    assert_same_numbers(model, found)


def test_training_is_a_near_miss():
    def body(dims, x, w, bias, *statistics):
        return batch_norm(nn.conv2d(x, w), *statistics, training=True)

    model = make(X, CONV, body)
    found, report = apply(model, fold_scales)
    assert "updates its statistics" in report.misses[0]
    assert "nn.batch_norm" in operators(found)


L = {"x": (("b", "s", 6), "float32")}
LINEAR = {"w": random(6, 4), "bias": random(4), "scale": random(4)}


def test_layer_scale_goes_into_a_matmul():
    def body(dims, x, w, bias, scale, shift):
        return op.add(op.multiply(op.add(bias, op.matmul(x, w)), scale), shift)

    model = make(L, {**LINEAR, "shift": random(1, 1, 4)}, body)
    found, report = apply(model, fold_scales)
    assert operators(found) == ["matmul", "add"]
    assert report.hits == {"fold_scale": 1, "fold_shift": 1}
    assert_same_numbers(model, found, {"b": 2, "s": 3})


LINEAR_MISSES = {
    "one number for all": lambda x, w, bias, scale: op.multiply(
        op.matmul(x, w), op.sum(scale, keepdims=True)
    ),
    "a matrix of numbers": lambda x, w, bias, scale: op.multiply(
        op.matmul(x, w), op.reshape(scale, (4, 1))
    ),
    "shared weights": lambda x, w, bias, scale: op.add(
        op.multiply(op.matmul(x, w), scale), op.matmul(op.exp(x), w)
    ),
    "between two tensors": lambda x, w, bias, scale: op.multiply(
        op.matmul(x, w), op.matmul(op.exp(x), op.multiply(w, scale))
    ),
}


@pytest.mark.parametrize("name", LINEAR_MISSES)
def test_what_is_not_layer_scale_stays(name):
    def body(dims, *values):
        return LINEAR_MISSES[name](*values)

    model = make({"x": (("b", 4, 6), "float32")}, LINEAR, body)
    found, report = apply(model, fold_constants)
    found, report = apply(found, fold_scales)
    assert report.hits.total() == 0

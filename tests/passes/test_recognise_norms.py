"""recognise_softmax, recognise_layer_norm and recognise_rms_norm: spellings and near misses."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import (
    apply,
    assert_same_module,
    assert_same_numbers,
    const,
    make,
    nn,
    op,
    operators,
)
from tvm import relax

from graphc.passes.merge_duplicates import merge_duplicates
from graphc.passes.recognise_layer_norm import recognise_layer_norm
from graphc.passes.recognise_rms_norm import recognise_rms_norm
from graphc.passes.recognise_softmax import recognise_softmax

X = {"x": (("b", "s", 24), "float32")}
GENERATOR = np.random.default_rng(0)
SCALES = {
    "gamma": GENERATOR.standard_normal(24).astype(np.float32),
    "beta": GENERATOR.standard_normal(24).astype(np.float32),
}


def number(value):
    return const(value, "float32")


def emit(value):
    return relax.BlockBuilder.current().emit(value)


def centred(x, axes=(-1,), keepdims=True):
    return emit(op.subtract(x, op.mean(x, list(axes), keepdims)))


SQUARES = {
    "product": lambda x: op.multiply(x, x),
    "power": lambda x: op.power(x, number(2.0)),
    "square": op.square,
}


def variance(x, square="product", axes=(-1,), eps=1e-5):
    return op.add(op.mean(SQUARES[square](x), list(axes), True), number(eps))


QUOTIENTS = {
    "divide": lambda x, v: op.divide(x, op.sqrt(v)),
    "rsqrt": lambda x, v: op.multiply(x, op.rsqrt(v)),
    "rsqrt first": lambda x, v: op.multiply(op.rsqrt(v), x),
    "reciprocal": lambda x, v: op.multiply(x, op.divide(number(1.0), op.sqrt(v))),
    "power": lambda x, v: op.multiply(x, op.power(v, number(-0.5))),
}


def layer_norm(x, gamma, beta, square="product", quotient="divide"):
    c = centred(x)
    return op.add(beta, op.multiply(QUOTIENTS[quotient](c, variance(c, square)), gamma))


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_layer_norm(square, quotient):
    def before(dims, x, gamma, beta):
        return layer_norm(x, gamma, beta, square, quotient)

    def expected(dims, x, gamma, beta):
        return nn.layer_norm(x, gamma, beta, [-1], 1e-5)

    found, report = apply(make(X, SCALES, before), recognise_layer_norm)
    eps = float(np.float32(1e-5))
    assert report.hits == {"recognise_layer_norm": 1}
    assert_same_module(
        found,
        make(X, SCALES, lambda d, x, gamma, beta: nn.layer_norm(x, gamma, beta, [-1], eps)),
    )


def test_layer_norm_without_scale_or_shift_and_with_one_of_them():
    def before(dims, x, gamma, beta):
        c = centred(x)
        plain = emit(op.divide(c, op.sqrt(variance(c))))
        d = centred(op.exp(x))
        scaled = op.multiply(op.divide(d, op.sqrt(variance(d))), op.reshape(gamma, (1, 1, 24)))
        return [plain, op.exp(plain), scaled]

    model = make(X, {"gamma": SCALES["gamma"], "beta": SCALES["beta"]}, before)
    found, report = apply(model, recognise_layer_norm)
    assert report.hits["recognise_layer_norm"] == 2
    assert operators(found).count("nn.layer_norm") == 2
    assert_same_numbers(model, found, {"b": 2, "s": 3})


def test_layer_norm_numbers():
    model = make(X, SCALES, lambda d, x, gamma, beta: layer_norm(x, gamma, beta, "power"))
    found, _ = apply(model, recognise_layer_norm)
    assert operators(found) == ["nn.layer_norm"]
    assert_same_numbers(model, found, {"b": 2, "s": 3})


def test_a_scale_from_an_input_stays_outside():
    inputs = {**X, "scale": ((24,), "float32")}

    def before(dims, x, scale):
        c = centred(x)
        return op.multiply(op.divide(c, op.sqrt(variance(c))), scale)

    found, _ = apply(make(inputs, {}, before), recognise_layer_norm)
    assert operators(found) == ["nn.layer_norm", "multiply"]


def test_a_shift_per_position_stays_outside():
    def before(dims, x, shift):
        c = centred(x)
        return op.add(op.divide(c, op.sqrt(variance(c))), shift)

    params = {"shift": np.ones((7, 24), np.float32)}
    found, _ = apply(make({"x": ((2, 7, 24), "float32")}, params, before), recognise_layer_norm)
    assert operators(found) == ["nn.layer_norm", "add"]


LAYER_NORM_MISSES = {
    "an epsilon of higher rank": (
        lambda x: op.divide(
            c := centred(x),
            op.sqrt(
                op.add(
                    op.mean(op.multiply(c, c), [-1], True),
                    const(np.full((1, 1, 1, 1), 1e-5, np.float32)),
                )
            ),
        ),
        None,
    ),
    "mean over positions": (
        lambda x: op.divide(c := centred(x, (1,)), op.sqrt(variance(c, axes=(1,)))),
        "not over the last ones",
    ),
    "variance over other axes": (
        lambda x: op.divide(c := centred(x), op.sqrt(variance(c, axes=(-2, -1)))),
        "symbolic extent",
    ),
    "variance of x": (lambda x: op.divide(centred(x), op.sqrt(variance(x))), None),
    "sum instead of mean": (
        lambda x: op.divide(
            c := centred(x),
            op.sqrt(op.add(op.sum(op.multiply(c, c), [-1], True), number(1e-5))),
        ),
        None,
    ),
}


@pytest.mark.parametrize("name", LAYER_NORM_MISSES)
def test_what_is_not_layer_norm_stays(name):
    spell, reason = LAYER_NORM_MISSES[name]
    model = make(X, {}, lambda dims, x: spell(x))
    found, report = apply(model, recognise_layer_norm)
    assert_same_module(found, model)
    assert report.hits.total() == 0
    assert reason is None or (len(report.misses) == 1 and reason in report.misses[0])


@pytest.mark.parametrize("square", SQUARES)
@pytest.mark.parametrize("quotient", QUOTIENTS)
def test_rms_norm(square, quotient):
    def before(dims, x, gamma):
        return op.multiply(gamma, QUOTIENTS[quotient](x, variance(x, square, eps=1e-6)))

    params = {"gamma": SCALES["gamma"]}
    eps = float(np.float32(1e-6))
    found, report = apply(make(X, params, before), recognise_layer_norm, recognise_rms_norm)
    assert report.hits == {"recognise_rms_norm": 1}
    assert_same_module(found, make(X, params, lambda d, x, gamma: nn.rms_norm(x, gamma, [-1], eps)))


def test_rms_norm_numbers():
    def before(dims, x, gamma):
        y = emit(op.multiply(gamma, op.multiply(x, op.rsqrt(variance(x)))))
        return op.multiply(y, op.rsqrt(variance(y)))

    model = make(X, {"gamma": SCALES["gamma"]}, before)
    found, _report = apply(model, recognise_rms_norm)
    assert operators(found) == ["nn.rms_norm", "nn.rms_norm"]
    assert_same_numbers(model, found, {"b": 2, "s": 3})


def test_rms_norm_over_positions_is_a_near_miss():
    model = make(X, {}, lambda d, x: op.multiply(x, op.rsqrt(variance(x, axes=(1,)))))
    found, report = apply(model, recognise_rms_norm)
    assert_same_module(found, model)
    assert "not over the last ones" in report.misses[0]


def softmax(x, axis=-1, top_axis=None, keepdims=True):
    top = op.max(x, [axis if top_axis is None else top_axis], True)
    e = emit(op.exp(op.subtract(x, top)))
    return op.divide(e, op.sum(e, [axis], keepdims))


def test_softmax():
    model = make(X, {}, lambda dims, x: softmax(x))
    found, report = apply(model, recognise_softmax)
    assert_same_module(found, make(X, {}, lambda dims, x: nn.softmax(x, 2)))
    assert report.hits == {"recognise_softmax": 1}
    assert_same_numbers(model, found, {"b": 2, "s": 3})


def test_softmax_by_reciprocal_over_a_middle_axis():
    def before(dims, x):
        e = emit(op.exp(op.subtract(x, op.max(x, [1], True))))
        return op.multiply(e, op.divide(number(1.0), op.sum(e, [1], True)))

    found, _ = apply(make(X, {}, before), recognise_softmax)
    assert_same_module(found, make(X, {}, lambda dims, x: nn.softmax(x, 1)))


def without_maximum(x):
    e = emit(op.exp(x))
    return op.divide(e, op.sum(e, [-1], True))


SOFTMAX_MISSES = {
    "no maximum": (without_maximum, "no maximum is subtracted"),
    "another axis": (lambda x: softmax(x, -1, 1), "both must be one and the same"),
}


@pytest.mark.parametrize("name", SOFTMAX_MISSES)
def test_what_is_not_softmax_stays(name):
    spell, reason = SOFTMAX_MISSES[name]
    model = make(X, {}, lambda dims, x: spell(x))
    found, report = apply(model, merge_duplicates, recognise_softmax)
    assert_same_module(found, model)
    assert reason in report.misses[0]

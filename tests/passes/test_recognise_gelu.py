"""recognise_gelu: every order of multiplication, and near misses."""

from __future__ import annotations

import math

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

from graphc.passes.recognise_gelu import recognise_gelu

X = {"x": (("b", 24), "float32")}
ROOT, HALF, CUBIC = math.sqrt(2), math.sqrt(2 / math.pi), 0.044715


def n(value):
    return const(value, "float32")


def mul(*factors):
    product, *rest = factors
    for factor in rest:
        product = op.multiply(product, factor)
    return product


def one_plus(curve):
    return op.add(n(1.0), curve)


def erf(x):
    return op.erf(op.divide(x, n(ROOT)))


def cube(x):
    return op.power(x, n(3.0))


EXACT = {
    "0.5 x (1 + erf)": lambda x: mul(n(0.5), x, one_plus(erf(x))),
    "x 0.5 (1 + erf)": lambda x: mul(x, n(0.5), one_plus(erf(x))),
    "x (1 + erf) 0.5": lambda x: mul(x, one_plus(erf(x)), n(0.5)),
    "x (0.5 (1 + erf))": lambda x: mul(x, mul(n(0.5), one_plus(erf(x)))),
    "(1 + erf) x / 2": lambda x: op.divide(mul(one_plus(erf(x)), x), n(2.0)),
    "erf(x * 0.707)": lambda x: mul(n(0.5), x, op.add(op.erf(op.multiply(x, n(1 / ROOT))), n(1.0))),
}
TANH = {
    "power": lambda x: mul(
        n(0.5), x, one_plus(op.tanh(mul(n(HALF), op.add(x, mul(n(CUBIC), cube(x))))))
    ),
    "products": lambda x: mul(
        x, one_plus(op.tanh(mul(op.add(mul(mul(x, x, x), n(CUBIC)), x), n(HALF)))), n(0.5)
    ),
    "x taken out": lambda x: mul(
        n(0.5), x, one_plus(op.tanh(mul(n(HALF), x, one_plus(mul(n(CUBIC), x, x)))))
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_gelu(name):
    found, report = apply(make(X, {}, lambda d, x: EXACT[name](x)), recognise_gelu)
    assert_same_module(found, make(X, {}, lambda d, x: nn.gelu(x)))
    assert report.hits == {"recognise_gelu": 1}


@pytest.mark.parametrize("name", TANH)
def test_gelu_tanh(name):
    found, _ = apply(make(X, {}, lambda d, x: TANH[name](x)), recognise_gelu)
    assert_same_module(found, make(X, {}, lambda d, x: nn.gelu_tanh(x)))


def test_silu_also_inside_a_gate():
    inputs = {**X, "up": (("b", 24), "float32")}

    def before(dims, x, up):
        return mul(mul(x, op.sigmoid(x)), up)

    found, report = apply(make(inputs, {}, before), recognise_gelu)
    expected = make(inputs, {}, lambda d, x, up: op.multiply(nn.silu(x), up))
    assert_same_module(found, expected)
    assert report.hits == {"recognise_silu": 1}


def test_numbers_of_all_at_once():
    spellings = [*EXACT.values(), *TANH.values()]
    spellings.append(lambda x: mul(x, op.sigmoid(x)))
    spellings.append(lambda x: mul(op.sigmoid(mul(x, n(1.702))), x))
    model = make(X, {}, lambda d, x: [spell(x) for spell in spellings])
    found, report = apply(model, recognise_gelu)
    assert report.hits == {"recognise_gelu": 9, "recognise_silu": 2}
    assert "sigmoid" not in operators(found)
    assert_same_numbers(model, found, {"b": 4})


MISSES = {
    "another slope": lambda x: mul(n(0.5), x, one_plus(op.erf(op.divide(x, n(1.4))))),
    "erf of something else": lambda x: mul(n(0.5), x, one_plus(erf(op.exp(x)))),
    "another cubic": lambda x: mul(
        n(0.5), x, one_plus(op.tanh(mul(n(HALF), op.add(x, mul(n(0.0447), cube(x))))))
    ),
    "not one plus": lambda x: mul(n(0.5), x, op.add(n(2.0), erf(x))),
    "not a half": lambda x: mul(n(0.6), x, one_plus(erf(x))),
    "sigmoid of something else": lambda x: mul(x, op.sigmoid(op.exp(x))),
}


@pytest.mark.parametrize("name", MISSES)
def test_what_is_not_gelu_stays(name):
    model = make(X, {}, lambda d, x: MISSES[name](x))
    found, report = apply(model, recognise_gelu)
    assert_same_module(found, model)
    assert report.hits.total() == 0
    almost = name in ("another slope", "erf of something else", "another cubic")
    assert bool(report.misses) is almost


def test_the_gate_may_have_other_users():
    def before(dims, x):
        gate = relax.BlockBuilder.current().emit(op.sigmoid(x))
        return [mul(x, gate), gate]

    found, _ = apply(make(X, {}, before), recognise_gelu)
    assert sorted(operators(found)) == ["nn.silu", "sigmoid"]

"""The pattern language."""

from __future__ import annotations

import pytest
from relax_models import const, make, nn, op

from graphc.passes.graph import Graph
from graphc.passes.pattern import Pattern, close, number, wild
from graphc.passes.pattern import op as operator

X = {"x": ((4,), "float32"), "y": ((4,), "float32")}
x, y = wild("x"), wild("y")


def find(pattern, body):
    graph = Graph(make(X, {}, body))
    return pattern.find(graph, graph.outputs[0])


def n(value):
    return const(value, "float32")


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        (x * operator("sigmoid", x), lambda d, x, y: op.multiply(x, op.sigmoid(x))),
        (x * operator("sigmoid", x), lambda d, x, y: op.multiply(op.sigmoid(x), x)),
        (x + 1.0, lambda d, x, y: op.add(n(1.0), x)),
        (1.0 / x, lambda d, x, y: op.divide(n(1.0), x)),
        (x - y, lambda d, x, y: op.subtract(x, y)),
        (x / y | x - y, lambda d, x, y: op.subtract(x, y)),
        ((x + y) * x, lambda d, x, y: op.multiply(y, op.add(x, y))),
        (2.0 * x + number(name="c"), lambda d, x, y: op.add(n(9.0), op.multiply(x, n(2.0)))),
    ],
)
def test_matches(pattern, body):
    assert find(pattern, body) is not None


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        (x * operator("sigmoid", x), lambda d, x, y: op.multiply(y, op.sigmoid(x))),
        (x - y, lambda d, x, y: op.add(x, y)),
        (x - operator("exp", y), lambda d, x, y: op.subtract(op.exp(x), y)),
        (x + 1.0, lambda d, x, y: op.add(n(1.1), x)),
        (1.0 / x, lambda d, x, y: op.divide(x, n(1.0))),
        (x + number(name="c"), lambda d, x, y: op.add(x, y)),
        (operator("exp", x), lambda d, x, y: nn.relu(x)),
    ],
)
def test_misses(pattern, body):
    assert find(pattern, body) is None


def test_names_give_the_nodes():
    match = find(operator("add", x, y, name="sum"), lambda d, x, y: op.add(op.exp(x), y))
    assert match is not None
    assert {name: node.op for name, node in match.items()} == {
        "sum": "add",
        "x": "exp",
        "y": "input",
    }


def test_backtracking_tries_the_other_order_inside():
    pattern = (x + y) * (x + operator("exp", y))

    def body(dims, a, b):
        return op.multiply(op.add(b, a), op.add(b, op.exp(a)))

    match = find(pattern, body)
    assert match is not None
    assert match["x"].name == "y"


def test_close():
    assert close(1.4142135, 2**0.5)
    assert not close(1.4142, 2**0.5)
    assert close(0.0, 0.0)


def test_a_bare_pattern_does_not_match():
    with pytest.raises(NotImplementedError):
        find(Pattern(), lambda d, x, y: x)

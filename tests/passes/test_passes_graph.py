"""Reading a Relax function into a Graph and building it again."""

from __future__ import annotations

import numpy as np
import pytest
from relax_models import apply, assert_same_module, const, make, nn, op, operators
from tvm import relax

from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report

X = {"x": (("b", 4), "float32")}
W = {"w": np.arange(16, dtype=np.float32).reshape(4, 4)}


def untouched(model, report):
    return rewrite(model, lambda graph: None)


def test_nothing_changes_without_a_rewrite():
    def body(dims, x, w):
        y = op.matmul(x, w)
        return [op.concat([y, x], 0), op.add(y, const(0.5, "float32"))]

    model = make(X, W, body)
    after, _ = apply(model, untouched)
    assert_same_module(after, model)
    assert after.signatures == model.signatures


def test_dead_code_and_unread_weights_are_dropped():
    def body(dims, x, w, unread):
        builder = relax.BlockBuilder.current()
        builder.emit(op.matmul(x, unread))
        return op.matmul(x, w)

    after, _ = apply(make(X, {**W, "unread": W["w"]}, body), untouched)
    assert operators(after) == ["matmul"]
    assert list(after.params) == ["w"]


def test_inputs_stay_even_if_unread():
    inputs = {**X, "ignored": ((3,), "int64")}
    after, _ = apply(make(inputs, {}, lambda dims, x, ignored: nn.relu(x)), untouched)
    assert [param.name for param in after.mod["main"].params] == ["x", "ignored"]


def test_outputs_may_be_inputs_weights_and_repeated():
    model = make(X, W, lambda dims, x, w: [x, w, x])
    after, _ = apply(model, untouched)
    assert_same_module(after, model)


def test_tuples_and_match_casts_are_kept():
    def body(dims, x, w):
        builder = relax.BlockBuilder.current()
        left, right = (
            builder.emit(relax.TupleGetItem(halves, part))
            for halves in [builder.emit(op.split(x, 2, axis=1))]
            for part in (0, 1)
        )
        cast = builder.match_cast(left, relax.TensorType((dims["b"], 2), "float32"))
        return op.add(cast, right)

    model = make(X, W, body)
    after, _ = apply(model, untouched)
    assert operators(after) == ["split", "tuple_get_item", "tuple_get_item", "match_cast", "add"]


def test_replace_spares_what_the_new_value_is_made_of():
    def double(graph: Graph) -> None:
        for node in graph.walk():
            if node.op == "nn.relu":
                graph.replace(node, graph.emit(op.multiply(node.var, const(2.0, "float32"))))

    model = make(X, {}, lambda dims, x: op.add(nn.relu(x), x))
    after, _ = apply(model, lambda model, report: rewrite(model, double))
    expected = make(
        X, {}, lambda dims, x: op.add(op.multiply(nn.relu(x), const(2.0, "float32")), x)
    )
    assert_same_module(after, expected)


def test_users_count_live_ones_only():
    graph = Graph(make(X, W, lambda dims, x, w: op.add(op.matmul(x, w), op.exp(op.matmul(x, w)))))
    first, second = (node for node in graph.nodes() if node.op == "matmul")
    weight = first.inputs[1]
    assert len(weight.users) == 2
    graph.at(second)
    graph.replace(second, first)
    assert list(weight.users) == [first]
    assert graph.used_once(first) is False


def test_large_constants_become_weights_with_unique_names():
    graph = Graph(make(X, W, lambda dims, x, w: op.matmul(x, w)))
    made = [graph.constant(np.zeros(17, np.float32), "w") for _ in range(2)]
    assert [node.name for node in made] == ["w.1", "w.2"]
    assert graph.constant(np.zeros(16, np.float32), "w").op == "const"


def test_bfloat16_constants_keep_their_type():
    import ml_dtypes

    graph = Graph(make(X, {}, lambda dims, x: nn.relu(x)))
    node = graph.constant(np.ones(3, ml_dtypes.bfloat16), "c")
    assert node.dtype == "bfloat16"
    assert graph.value(node).dtype == ml_dtypes.bfloat16


def test_a_node_prints_what_it_is():
    graph = Graph(make(X, {}, lambda dims, x: nn.relu(x)))
    (node,) = graph.walk()
    assert isinstance(node, Node)
    assert str(node).endswith("= nn.relu(x)")


@pytest.mark.parametrize("name", ["hit", "miss"])
def test_reports_count_and_keep_sentences_once(name):
    report = Report()
    for _ in range(2):
        getattr(report, name)("gelu: x not recognised")
    assert report.hits["gelu: x not recognised"] == (2 if name == "hit" else 0)
    assert len(report.misses) == (1 if name == "miss" else 0)

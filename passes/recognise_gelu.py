"""Recognise GELU (exact, tanh, and the 1.702 approximation) and SiLU that are spelled out.

    0.5 * x * (1 + erf(x / sqrt(2)))                               ----->   nn.gelu(x)
    0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))     ----->   nn.gelu_tanh(x)
    x * sigmoid(x)                                                 ----->   nn.silu(x)
    x * sigmoid(1.702 * x)                                ----->   nn.silu(1.702 * x) / 1.702

Products are compared as a number times a bag of factors, so every order of multiplication is one
case. Constants may differ from the exact ones by 1e-6 (they are float32 in the file).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import relax

from graphc.ir import Model
from graphc.passes.cancel_arithmetic import scalar_like
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.pattern import close
from graphc.passes.report import Report

_GATES = frozenset({"sigmoid", "add"})
_CUBIC = 0.044715


@dataclass(frozen=True)
class Product:
    """A number times factors that are not products themselves."""

    number: float
    factors: tuple[Node, ...]


def product(graph: Graph, node: Node, root: bool = True) -> Product:
    """The factors of a value; what others use too, apart from the root, is a factor itself."""
    value = graph.scalar(node)
    if value is not None:
        return Product(value, ())
    if not root and not graph.used_once(node):
        return Product(1.0, (node,))
    if node.op == "multiply":
        left, right = (product(graph, source, False) for source in node.inputs)
        return Product(left.number * right.number, left.factors + right.factors)
    if node.op == "divide":
        divisor = graph.scalar(node.inputs[1])
        if divisor:
            inner = product(graph, node.inputs[0], False)
            return Product(inner.number / divisor, inner.factors)
    if node.op == "power" and graph.scalar(node.inputs[1]) in (2.0, 3.0):
        inner = product(graph, node.inputs[0], False)
        power = int(graph.scalar(node.inputs[1]) or 1)
        return Product(inner.number**power, inner.factors * power)
    return Product(1.0, (node,))


def recognise_gelu(model: Model, report: Report) -> Model:
    """Recognise the GELU family in every function of the model."""
    return rewrite(model, lambda graph: _recognise(graph, report))


def _recognise(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        new = _activation(graph, node, report) if node.op in ("multiply", "divide") else None
        if new is not None:
            graph.replace(node, new)


def _activation(graph: Graph, node: Node, report: Report) -> Node | None:
    whole = product(graph, node)
    for gate in whole.factors:
        if gate.op not in _GATES:
            continue
        rest = list(whole.factors)
        rest.remove(gate)
        if not all(graph.shapes.same_all(factor.shape, node.shape) for factor in whole.factors):
            continue  # a constant of higher rank
        if gate.op == "sigmoid" and len(rest) == 1:
            new = _silu(graph, gate, rest[0], whole.number, node)
        elif len(rest) == 1 and close(whole.number, 0.5):
            new = _gelu(graph, gate, rest[0], node, report)
        else:
            continue
        if new is not None:
            report.hit("recognise_silu" if gate.op == "sigmoid" else "recognise_gelu")
            return new
    return None


def _silu(graph: Graph, gate: Node, x: Node, number: float, node: Node) -> Node | None:
    inside = product(graph, gate.inputs[0])
    if gate.inputs[0] is x:
        slope = 1.0
    elif inside.factors == (x,) and inside.number != 0:
        slope = inside.number
    else:
        return None
    argument = x if slope == 1 else _scaled(graph, x, slope)
    result = graph.emit(relax.op.nn.silu(argument.var), node.name)
    return result if close(number, slope) else _scaled(graph, result, number / slope)


def _scaled(graph: Graph, node: Node, factor: float) -> Node:
    return graph.emit(relax.op.multiply(node.var, scalar_like(graph, factor, node).var))


def _gelu(graph: Graph, gate: Node, x: Node, node: Node, report: Report) -> Node | None:
    ones = [source for source in gate.inputs if graph.scalar(source) == 1.0]
    curves = [source for source in gate.inputs if source.op in ("erf", "tanh")]
    if len(ones) != 1 or len(curves) != 1:
        return None
    curve = curves[0]
    if curve.op == "erf":
        wanted = (_is_product(graph, curve.inputs[0], math.sqrt(0.5), x),)
        operator = relax.op.nn.gelu
    else:
        wanted = (_is_cubic(graph, curve.inputs[0], x),)
        operator = relax.op.nn.gelu_tanh
    if not all(wanted):
        report.miss(
            f"gelu: {node.name} not recognised: the argument of {curve.op} is not that of GELU "
            f"for {x.name}"
        )
        return None
    return graph.emit(operator(x.var), node.name)


def _is_product(graph: Graph, node: Node, number: float, *factors: Node) -> bool:
    found = product(graph, node)
    return close(found.number, number) and found.factors == factors


def _is_cubic(graph: Graph, node: Node, x: Node) -> bool:
    """Whether the value is sqrt(2/pi) (x + 0.044715 x^3), with or without x taken out."""
    whole = product(graph, node)
    if not close(whole.number, math.sqrt(2 / math.pi)):
        return False
    taken_out = len(whole.factors) == 2 and x in whole.factors
    sums = [factor for factor in whole.factors if factor.op == "add"]
    if len(sums) != 1 or len(whole.factors) != 1 + taken_out:
        return False
    for linear, cubic in (sums[0].inputs, sums[0].inputs[::-1]):
        starts = graph.scalar(linear) == 1.0 if taken_out else linear is x
        if starts and _is_product(graph, cubic, _CUBIC, *[x] * (2 if taken_out else 3)):
            return True
    return False

"""Rewrites that remove arithmetic with neutral constants; used by `simplify`.

    x + 0, x - 0, x * 1, x / 1, power(x, 1), and(x, true), or(x, false), not(not(x))   ----->   x
    where(true, x, y), where(c, x, x)                                                  ----->   x
    x / 2**n                                                                    ----->   x * 2**-n
    power(x, 2)                                                                    ----->   x * x

Exactness: nothing here changes a bit of the result except that -0.0 + 0 becomes -0.0 instead of
0.0. A division becomes a multiplication only if the reciprocal is exact, which it is for powers of
two; power(x, 2) and x * x are the same correctly rounded product.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax

from graphc.passes.evaluate import numpy_dtype
from graphc.passes.graph import Graph
from graphc.passes.node import Node

_NEUTRAL_LEFT = {"add": 0.0, "multiply": 1.0, "logical_and": 1.0, "logical_or": 0.0}
_NEUTRAL_RIGHT = {**_NEUTRAL_LEFT, "subtract": 0.0, "divide": 1.0, "power": 1.0}
_ABSORBING = {"logical_and": 0.0, "logical_or": 1.0}


def uniform(graph: Graph, node: Node) -> float | None:
    """The one value that all elements have, if the graph says so plainly."""
    if node.op in ("broadcast_to", "reshape", "full"):
        return uniform(graph, node.inputs[0])
    if node.op in ("ones", "zeros"):
        return 1.0 if node.op == "ones" else 0.0
    return graph.scalar(node)


def scalar_like(graph: Graph, value: float, node: Node) -> Node:
    """A constant of the type of `node`."""
    return graph.emit(relax.const(np.asarray(value, numpy_dtype(node.dtype)), node.dtype))


def broadcast_like(graph: Graph, node: Node, like: Node) -> Node:
    """The node itself if it has the shape of `like`, else its broadcast."""
    if graph.shapes.same_all(node.shape, like.shape):
        return node
    return graph.emit(relax.op.broadcast_to(node.var, like.shape))


def cancel_neutral(graph: Graph, node: Node) -> Node | None:
    """Drop an operand that changes nothing; a boolean that decides everything stands alone."""
    left, right = node.inputs
    for other, constant, neutral in (
        (left, right, _NEUTRAL_RIGHT.get(node.op)),
        (right, left, _NEUTRAL_LEFT.get(node.op)),
    ):
        value = uniform(graph, constant)
        if value is None or other.dtype != node.dtype:
            continue
        if value == neutral:
            return broadcast_like(graph, other, node)
        if value == _ABSORBING.get(node.op):
            return broadcast_like(graph, scalar_like(graph, value, node), node)
    return None


def multiply_by_exact_reciprocal(graph: Graph, node: Node) -> Node | None:
    """Divide by a power of two by multiplying."""
    value = graph.scalar(node.inputs[1])
    if value is None or value == 0 or not math.isfinite(value) or "float" not in node.dtype:
        return None
    mantissa, exponent = math.frexp(value)
    if not graph.shapes.same_all(node.inputs[0].shape, node.shape):
        return None
    if abs(mantissa) != 0.5 or abs(exponent) > 14:
        return None
    factor = scalar_like(graph, 1 / value, node.inputs[1])
    return graph.emit(relax.op.multiply(node.inputs[0].var, factor.var), node.name)


def square_by_multiplying(graph: Graph, node: Node) -> Node | None:
    """Spell power(x, 2) and square(x) as x * x: the power function is slow."""
    base = node.inputs[0]
    if node.op == "power" and (
        graph.scalar(node.inputs[1]) != 2.0 or not graph.shapes.same_all(base.shape, node.shape)
    ):
        return None
    return graph.emit(relax.op.multiply(base.var, base.var), node.name)


def cancel_double(graph: Graph, node: Node) -> Node | None:
    """Drop not(not(x)) and -(-x)."""
    source = node.inputs[0]
    return source.inputs[0] if source.op == node.op else None


def choose_branch(graph: Graph, node: Node) -> Node | None:
    """Drop a where whose condition is constant or whose branches are one value."""
    condition, yes, no = node.inputs
    if yes is no:
        return broadcast_like(graph, yes, node)
    value = uniform(graph, condition)
    if value is None:
        return None
    return broadcast_like(graph, yes if value else no, node)

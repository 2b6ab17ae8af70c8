"""Compute what depends on weights and constants only, once, while compiling.

    y = x @ (astype(w_int8, float32) * scale)   ----->   y = x @ w_float32

The result becomes a weight, or a constant if it has at most 16 elements. Only values that the rest
of the graph reads are computed, with what lies between them and the weights freed as soon as
nothing needs it. A result may not be larger than 16 MiB or 4.5 times the weights it is made of
(int8 weights with their scales become four times as large in float32), and a value that merely
repeats another (broadcast, full) or unpacks it is not written out: reading it would cost more than
making it.
"""

from __future__ import annotations

import math

from graphc.ir import Model
from graphc.passes.evaluate import Array, can_evaluate, evaluate, numpy_dtype
from graphc.passes.evaluate_kernel import can_run_kernel, run_kernel
from graphc.passes.graph import SMALL, Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report

_ALWAYS = 16 << 20
_GROWTH = 4.5
_REPEATS = frozenset({"broadcast_to", "full", "ones", "zeros", "repeat", "tile"})


def fold_constants(model: Model, report: Report) -> Model:
    """Fold every function of the model; weights that nothing reads any more are dropped."""
    return rewrite(model, lambda graph: _fold(graph, report))


def _fold(graph: Graph, report: Report) -> None:
    foldable = _foldable(graph, report)
    kept: dict[Node, Array] = {}
    for node in graph.walk():
        if node not in foldable or not _is_read(graph, node, foldable):
            continue
        folded = graph.constant(_value(graph, node, kept), node.name)
        graph.replace(node, folded)
        report.hit("fold_constants")


def _foldable(graph: Graph, report: Report) -> set[Node]:
    """Nodes to compute while compiling, each either read by the rest or by one of them."""
    leaves: dict[Node, frozenset[Node]] = {}
    found: list[Node] = []
    for node in graph.nodes():
        if node.is_constant:
            if node.name not in graph.quantized:
                leaves[node] = frozenset((node,))
        elif all(source in leaves for source in node.inputs) and (
            can_evaluate(node) or can_run_kernel(graph, node)
        ):
            made_of = frozenset[Node]().union(*(leaves[source] for source in node.inputs))
            limit = max(_ALWAYS, _GROWTH * sum(_bytes(leaf) for leaf in made_of))
            if _bytes(node) > limit:
                report.miss(
                    f"fold_constants: {node.name} ({node.op}) not folded: {_bytes(node)} bytes "
                    f"from {sum(_bytes(leaf) for leaf in made_of)}"
                )
                continue
            leaves[node] = made_of
            found.append(node)
    foldable = set(found)
    for node in reversed(found):
        if _repeats(graph, node) and _elements(node) > SMALL and _is_read(graph, node, foldable):
            foldable.discard(node)
    return foldable


def _repeats(graph: Graph, node: Node) -> bool:
    """Whether making the value anew costs less than reading it would."""
    if node.op in _REPEATS:
        return True
    attrs = graph.kernel(node).attrs if node.op == "call_tir" else None
    return attrs is not None and "graphc.unpacks" in attrs


def _is_read(graph: Graph, node: Node, foldable: set[Node]) -> bool:
    """Whether something that is not folded itself reads the value."""
    return node in graph.outputs or any(user not in foldable for user in node.users)


def _value(graph: Graph, node: Node, kept: dict[Node, Array]) -> Array:
    if node.is_constant:
        return graph.value(node)
    if node in kept:
        return kept[node]
    arrays = [_value(graph, source, kept) for source in node.inputs]
    kernel = node.op == "call_tir"
    value = run_kernel(graph, node, arrays) if kernel else evaluate(node, arrays)
    if len(node.users) > 1:
        kept[node] = value
    for source in node.inputs:
        if source in kept and all(user is node or user in kept for user in source.users):
            del kept[source]
    return value


def _elements(node: Node) -> int:
    return math.prod(node.static_shape or ())


def _bytes(node: Node) -> int:
    return _elements(node) * numpy_dtype(node.dtype).itemsize

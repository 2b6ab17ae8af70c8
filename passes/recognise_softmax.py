"""Recognise a softmax that is spelled out.

    e = exp(x - max(x)); e / sum(e)   ----->   nn.softmax(x)

The maximum must be subtracted: without it the exporter's program overflows where softmax does not.
"""

from __future__ import annotations

from tvm import relax

from graphc.ir import Model
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.pattern import op, wild
from graphc.passes.report import Report

_x, _e = wild("x"), wild("e")
_SOFTMAX = op("divide", _e, op("sum", _e, name="sum")) | op(
    "multiply", _e, op("divide", 1.0, op("sum", _e, name="sum"))
)
_POWERS = op("exp", op("subtract", _x, op("max", _x, name="max")))


def recognise_softmax(model: Model, report: Report) -> Model:
    """Recognise softmax in every function of the model."""
    return rewrite(model, lambda graph: _recognise(graph, report))


def _recognise(graph: Graph, report: Report) -> None:
    for node in graph.walk():
        new = _softmax(graph, node, report) if node.op in ("divide", "multiply") else None
        if new is not None:
            graph.replace(node, new)
            report.hit("recognise_softmax")


def _softmax(graph: Graph, node: Node, report: Report) -> Node | None:
    outer = _SOFTMAX.find(graph, node)
    if outer is None or outer["e"].op != "exp":
        return None
    inner = _POWERS.find(graph, outer["e"])
    if inner is None:
        report.miss(f"softmax: exp / sum at {node.name} not recognised: no maximum is subtracted")
        return None
    if not graph.shapes.same_all(inner["x"].shape, node.shape):
        return None
    axes = [reduced_axes(reduction) for reduction in (outer["sum"], inner["max"])]
    if axes[0] != axes[1] or len(axes[0]) != 1:
        report.miss(
            f"softmax: exp / sum at {node.name} not recognised: the sum is over axes {axes[0]}, "
            f"the maximum over {axes[1]}, and both must be one and the same"
        )
        return None
    if not all(bool(found.attrs.keepdims) for found in (outer["sum"], inner["max"])):
        report.miss(f"softmax: exp / sum at {node.name} not recognised: reduced axes are dropped")
        return None
    return graph.emit(relax.op.nn.softmax(inner["x"].var, axes[0][0]), node.name)


def reduced_axes(reduction: Node) -> tuple[int, ...]:
    """The axes of a reduction, counted from the front and sorted; all of them if none is given."""
    rank = reduction.inputs[0].rank
    axes = reduction.attrs.axis
    return tuple(range(rank) if axes is None else sorted(int(axis) % rank for axis in axes))

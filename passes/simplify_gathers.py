"""Replace gathers whose indices are plainly known by slices, or gather less.

    gather_nd(x, grid of 0..b-1 and 0..s-1)       ----->   x, reshaped and broadcast
    take(table, 0..s-1)                           ----->   table[0:s]
    gather_elements(x, 0..s-1 along the axis)     ----->   x[:, 0:s]
    take(table, broadcast(index))                 ----->   broadcast(take(table, index))

torch.export writes masks as x[b_index, s_index] with indices made by arange, and position
embeddings as a table indexed by 0..s-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax

from graphc.ir import Expr, Model
from graphc.passes.cancel_arithmetic import broadcast_like
from graphc.passes.cancel_layout import permute_to, reshape_to
from graphc.passes.evaluate import integers
from graphc.passes.graph import Graph, rewrite
from graphc.passes.node import Node
from graphc.passes.report import Report

_READ_AT_MOST = 1 << 20


@dataclass(frozen=True)
class Count:
    """A tensor whose element at position p is `start + p[axis]`."""

    axis: int
    start: int


def simplify_gathers(model: Model, report: Report) -> Model:
    """Simplify the gathers of every function of the model."""
    return rewrite(model, lambda graph: _simplify(graph, report))


def _simplify(graph: Graph, report: Report) -> None:
    rules = {
        "take": (_take_count, _take_broadcast),
        "gather_nd": (_gather_grid,),
        "gather_elements": (_gather_count,),
    }
    for node in graph.walk():
        for rule in rules.get(node.op, ()):
            new = rule(graph, node)
            if new is not None:
                graph.replace(node, new)
                report.hit(rule.__name__.removeprefix("_"))
                break


def count_of(graph: Graph, node: Node) -> Count | None:
    """How an index tensor counts along one of its axes, if it does."""
    if node.op == "arange":
        start, _, step = (getattr(arg, "value", None) for arg in node.expr.args)
        return Count(0, start) if isinstance(start, int) and step == 1 else None
    if node.is_constant:
        return _constant_count(graph.value(node))
    if not node.inputs or node.op not in ("astype", "broadcast_to", "reshape", "strided_slice"):
        return None
    source = node.inputs[0]
    count = count_of(graph, source)
    if count is None or node.dtype[0] not in "iu":
        return None
    if node.op == "astype":
        return count
    if node.op == "broadcast_to":
        return Count(count.axis + node.rank - source.rank, count.start)
    if node.op == "strided_slice":
        return _sliced_count(node, count)
    return _reshaped_count(graph, node, source, count)


def _constant_count(array: np.ndarray) -> Count | None:
    solid = [axis for axis, extent in enumerate(array.shape) if extent > 1]
    if array.dtype.kind not in "iu" or len(solid) != 1 or array.size > _READ_AT_MOST:
        return None
    flat = array.reshape(-1)
    start = int(flat[0])
    if not np.array_equal(flat, np.arange(start, start + flat.size)):
        return None
    return Count(solid[0], start)


def _sliced_count(node: Node, count: Count) -> Count | None:
    axes, begin = integers(node.args[1]), integers(node.args[2])
    steps = integers(node.args[4]) if len(node.args) > 4 else []
    if axes is None or begin is None or steps is None or any(step != 1 for step in steps):
        return None
    skipped = dict(zip(axes, begin, strict=True)).get(count.axis, 0)
    return Count(count.axis, count.start + skipped) if skipped >= 0 else None


def _reshaped_count(graph: Graph, node: Node, source: Node, count: Count) -> Count | None:
    """A reshape keeps counting if it only adds or drops axes of extent one."""
    before = [axis for axis in range(source.rank) if source.shape[axis] != 1]
    after = [axis for axis in range(node.rank) if node.shape[axis] != 1]
    kept = graph.shapes.same_all(
        [source.shape[axis] for axis in before], [node.shape[axis] for axis in after]
    )
    if not kept or count.axis not in before:
        return None
    return Count(after[before.index(count.axis)], count.start)


def _sliced(graph: Graph, node: Node, ranges: Sequence[tuple[int, int, Expr]]) -> Node:
    """The slice of (axis, start, extent) ranges."""
    cut = [
        (axis, start, start + extent)
        for axis, start, extent in ranges
        if start != 0 or not graph.shapes.same(extent, node.shape[axis])
    ]
    if not cut:
        return node
    axes, begin, end = (list(column) for column in zip(*cut, strict=True))
    # A gather reads inside the tensor only, so what replaces it does.
    return graph.emit(relax.op.strided_slice(node.var, axes, begin, end, assume_inbound=True))


def _take_count(graph: Graph, node: Node) -> Node | None:
    data, index = node.inputs
    count = count_of(graph, index)
    if count is None or count.start < 0:
        return None
    axis = 0 if node.attrs.axis is None else int(node.attrs.axis) % data.rank
    part = _sliced(graph, data, [(axis, count.start, index.shape[count.axis])])
    spread: list[Expr] = [1] * index.rank
    spread[count.axis] = index.shape[count.axis]
    shape = [*data.shape[:axis], *spread, *data.shape[axis + 1 :]]
    return broadcast_like(graph, reshape_to(graph, part, shape), node)


def _take_broadcast(graph: Graph, node: Node) -> Node | None:
    data, index = node.inputs
    if index.op != "broadcast_to":
        return None
    source = index
    while source.op == "broadcast_to":
        source = source.inputs[0]
    source = reshape_to(graph, source, [1] * (index.rank - source.rank) + list(source.shape))
    axis = 0 if node.attrs.axis is None else int(node.attrs.axis)
    few = graph.emit(relax.op.take(data.var, source.var, axis=axis, mode=node.attrs.mode))
    return broadcast_like(graph, few, node)


def _gather_count(graph: Graph, node: Node) -> Node | None:
    data, index = node.inputs
    count = count_of(graph, index)
    axis = int(node.attrs.axis) % data.rank
    if count is None or count.axis != axis or count.start < 0:
        return None
    return _sliced(
        graph,
        data,
        [
            (other, count.start if other == axis else 0, extent)
            for other, extent in enumerate(index.shape)
        ],
    )


def _gather_grid(graph: Graph, node: Node) -> Node | None:
    data, index = node.inputs
    if int(node.attrs.batch_dims) != 0:
        return None
    columns = _columns(graph, index)
    if columns is None or len({count.axis for count in columns}) != len(columns):
        return None
    if any(count.start < 0 for count in columns):
        return None
    lead = index.rank - 1
    extents = [index.shape[count.axis] for count in columns]
    part = _sliced(
        graph,
        data,
        [(axis, count.start, extents[axis]) for axis, count in enumerate(columns)],
    )
    order = sorted(range(len(columns)), key=lambda axis: columns[axis].axis)
    part = permute_to(graph, part, [*order, *range(len(columns), data.rank)])
    spread: list[Expr] = [1] * lead
    for count, extent in zip(columns, extents, strict=True):
        spread[count.axis] = extent
    shape = [*spread, *data.shape[len(columns) :]]
    return broadcast_like(graph, reshape_to(graph, part, shape), node)


def _columns(graph: Graph, index: Node) -> list[Count] | None:
    """The columns of an index tensor [..., k], each counting along an axis."""
    last = index.rank - 1
    parts = [index]
    if index.op == "concat" and int(index.attrs.axis) % index.rank == last:
        parts = list(index.inputs)
    if any(part.shape[last] != 1 for part in parts):
        return None
    counts = [count_of(graph, part) for part in parts]
    found = [count for count in counts if count is not None and count.axis != last]
    return found if len(found) == len(parts) else None

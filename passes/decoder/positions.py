"""What depends on positions only: how it is recomputed for any positions, and its value for some.

    arange(start, start + sequence)     ----->   positions + start
    cumsum(ones [1, sequence])          ----->   positions + 1
    table[k : k + sequence]             ----->   table[positions + k]
    table[n - sequence : n]             ----->   table[positions + n - total]    (for `Probe` only)
    tril(x), triu(x)                    ----->   where(column - row <= k, x, 0)
    arange(sequence, sequence + 1), sum(ones [1, sequence])     ----->   total

Everything else that is made of these is emitted as it is.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from tvm import relax, tirx

from graphc.ir import Expr
from graphc.passes.cancel_arithmetic import uniform
from graphc.passes.decoder.replay import Replay, Rule
from graphc.passes.decoder.specialise import NotADecoder, variables
from graphc.passes.evaluate import integers
from graphc.passes.graph import Graph
from graphc.passes.node import Node
from graphc.passes.shapes import dims_of

_TRIANGLES = ("tril", "triu")


def dependent(graph: Graph) -> set[Node]:
    """The nodes that depend on the tokens."""
    found = {node for node in graph.nodes() if node.op == "input"}
    for node in graph.nodes():
        if any(source in found for source in node.inputs):
            found.add(node)
    return found


def position_rule(graph: Graph, length: tirx.Var, positions: Any, total: int | None = None) -> Rule:
    """The rule that replays counting, stretches of tables and triangles for `positions` [t].

    `total` is the length of the sequence where it is known, which in a step it is not.
    """

    def rule(replay: Replay, node: Node) -> Any | None:
        if node.op == "arange":
            if is_total(graph, node, length):
                return _totals(replay, node, node.expr.args[0], length, total)
            start = counted(graph, node, length)
            return None if start is None else _shifted(replay, positions, start, node.dtype)
        if node.op == "sum" and length in free_dims(node.inputs[0]) - free_dims(node):
            value = uniform(graph, node.inputs[0])
            each = graph.shapes.product(node.inputs[0].shape)
            if value is not None and free_dims(node) == set():
                return _totals(replay, node, each * int(value), length, total)
        if node.op == "cumsum" and length in variables(node.shape[_axis(node)]):
            return _sum_of_ones(graph, replay, node, positions)
        if node.op == "strided_slice":
            return _stretch(graph, replay, node, length, positions, total)
        if node.op in _TRIANGLES:
            return _triangle(replay, node, positions)
        return None

    return rule


def free_dims(node: Node) -> set[Any]:
    """The variables of a node's shape."""
    return set().union(*(variables(extent) for extent in node.shape))


def is_total(graph: Graph, node: Node, length: tirx.Var) -> bool:
    """Whether it is the one number from the length on."""
    start, _, _ = dims_of(node.expr.args)
    return length in variables(start) and node.static_shape == (1,)


def _totals(
    replay: Replay, node: Node, value: Expr, length: tirx.Var, total: int | None
) -> Any | None:
    """A number made of the length of the whole sequence, None where that is not known."""
    if total is None:
        return None
    number = Replay(replay.builder, {length: total}).dim(value)
    return relax.const(np.full(node.static_shape or (), number, node.dtype), node.dtype)


def counted(graph: Graph, node: Node, length: tirx.Var) -> int | None:
    """The start of an arange over as many numbers as there are tokens; None if fixed."""
    start, stop, step = (getattr(arg, "value", arg) for arg in node.expr.args)
    if not any(length in variables(value) for value in (start, stop, step)):
        return None
    if not isinstance(start, int) or step != 1 or not graph.shapes.same(stop, start + length):
        raise NotADecoder(f"{node.name} counts from {start} to {stop}, not over the tokens")
    return start


def stretch_of(graph: Graph, node: Node, length: tirx.Var) -> list[tuple[int, Expr]] | None:
    """(axis, first row) of every axis along which a slice is as long as the tokens are."""
    source = node.inputs[0]
    if any(length in variables(extent) for extent in source.shape):
        return None
    axes, steps = integers(node.args[1]), integers(node.args[4]) if len(node.args) > 4 else None
    begin = dims_of(cast(Any, node.args[2]).fields)
    found: list[tuple[int, Expr]] = []
    for number, axis in enumerate(axes or ()):
        if length not in variables(node.shape[axis]):
            continue
        regular = steps is None or steps[number] == 1
        if not regular or not _is_length(node.shape[axis], length, source.shape[axis]):
            return None
        found.append((axis % node.rank, begin[number]))
    return found or None


def _is_length(extent: Expr, length: tirx.Var, rows: Expr) -> bool:
    """Whether an extent is that of the tokens while a table has rows for them."""
    samples = (1, 2, rows) if isinstance(rows, int) else (1, 2, 1000)
    builder = relax.BlockBuilder()
    return all(Replay(builder, {length: n}).dim(extent) == n for n in samples)


# -- the rules -----------------------------------------------------------------------------


def _axis(node: Node) -> int:
    axis = node.attrs.axis
    return 0 if axis is None else int(axis) % node.rank


def _shifted(replay: Replay, positions: Any, start: int, dtype: str) -> Any:
    numbers = replay.emit(relax.op.astype(positions, dtype))
    if not start:
        return numbers
    return replay.emit(relax.op.add(numbers, relax.const(start, dtype)))


def _sum_of_ones(graph: Graph, replay: Replay, node: Node, positions: Any) -> Any:
    value = uniform(graph, node.inputs[0])
    if value is None or bool(node.attrs.exclusive):
        raise NotADecoder(f"{node.name} adds up what is not the same for every token")
    if any(extent != 1 for axis, extent in enumerate(node.shape) if axis != _axis(node)):
        raise NotADecoder(f"{node.name} adds up several rows")
    numbers = _shifted(replay, positions, 1, node.dtype)
    if value != 1:
        numbers = replay.emit(relax.op.multiply(numbers, relax.const(value, node.dtype)))
    return replay.emit(relax.op.reshape(numbers, replay.shape(node)))


def _stretch(
    graph: Graph,
    replay: Replay,
    node: Node,
    length: tirx.Var,
    positions: Any,
    total: int | None,
) -> Any | None:
    ranges = stretch_of(graph, node, length)
    if ranges is None:
        return None
    if len(ranges) < len(integers(node.args[1]) or ()):
        raise NotADecoder(f"{node.name} cuts a table along other axes too")
    value = replay.values[node.inputs[0]]
    for axis, first in ranges:
        if not isinstance(first, int):
            if total is None:
                raise NotADecoder(f"{node.name} takes rows that depend on the whole length")
            first = Replay(replay.builder, {length: total}).dim(first)
        rows = _shifted(replay, positions, first, "int32")
        value = replay.emit(relax.op.take(value, rows, axis=axis), node.name)
    return value


def _triangle(replay: Replay, node: Node, positions: Any) -> Any:
    op = relax.op
    offset = int(getattr(node.args[1], "value", 0)) if len(node.args) > 1 else int(node.attrs.k)
    beyond = replay.emit(
        op.subtract(op.expand_dims(positions, [0]), op.expand_dims(positions, [1]))
    )
    compare = op.less_equal if node.op == "tril" else op.greater_equal
    kept = replay.emit(compare(beyond, relax.const(offset, "int32")))
    value = replay.values[node.inputs[0]]
    return replay.emit(op.where(kept, value, relax.const(0, node.dtype)), node.name)

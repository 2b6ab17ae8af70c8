"""Slice: bounds are clamped as ONNX says, symbolically where they depend on dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.extents import known
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import MAX_ELEMENTS, same
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import KnownValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr

Cut: TypeAlias = "tuple[Expr, Expr, int]"
"""First element, number of elements, step."""


def _slice(context: Context, node: Node) -> Result:
    value = node.input(0)
    return sliced(context, value, _cuts(context, node, value.shape), node.outputs[0])


def sliced(context: Context, value: Value, cuts: Mapping[int, Cut], name: str) -> Value:
    """The value with each axis of `cuts` cut; itself when nothing is cut off."""
    shape = list(value.shape)
    axes, begins, ends, steps, turned = [], [], [], [], []
    for axis, (start, length, step) in cuts.items():
        if step == 1 and same(start, 0) and same(length, value.shape[axis]):
            continue
        shape[axis] = length
        if step < 0:  # cut forwards, then turn round
            start, step = context.symbols.simplify(start + (length - 1) * step), -step
            start = 0 if same(length, 0) else start
            turned.append(axis)
        axes.append(axis)
        begins.append(start)
        ends.append(context.symbols.simplify(start + length * step))
        steps.append(step)
    if not axes:
        return value
    call = op.strided_slice(context.expr(value), axes, begins, ends, steps, assume_inbound=True)
    for number, axis in enumerate(turned):
        part = context.emit(call, f"{name}.cut{number}", shape)
        call = op.flip(part.var, axis)
    return context.emit(call, name, shape)


def _cuts(context: Context, node: Node, shape: Sequence[Expr]) -> dict[int, Cut]:
    """Starts, ends, axes and steps: attributes before opset 10, inputs from then on."""
    starts: Sequence[Expr]
    ends: Sequence[Expr]
    if node.version < 10:
        starts, ends = node.integers("starts"), node.integers("ends")
        axes = node.integers("axes", tuple(range(len(starts))))
        steps: Sequence[int] = [1] * len(starts)
    else:
        count = node.input(1).shape[0] if node.input(1).rank else 1
        if not isinstance(count, int):
            raise node.unsupported("the number of its starts is not known")
        given = node.optional(3)
        axes = tuple(context.fixed_ints(node, 3)) if given else tuple(range(count))
        steps = context.fixed_ints(node, 4) if node.optional(4) else [1] * count
        if not all(isinstance(node.input(index), KnownValue) for index in (1, 2)):
            return _measured(context, node, shape, node.axes(axes, len(shape)), steps)
        starts, ends = context.known_ints(node, 1), context.known_ints(node, 2)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.error(
            f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes, {len(steps)} steps"
        )
    return {
        axis: _cut(context, node, shape[axis], start, end, step)
        for axis, start, end, step in zip(
            node.axes(axes, len(shape)), starts, ends, steps, strict=True
        )
    }


def _measured(
    context: Context, node: Node, shape: Sequence[Expr], axes: Sequence[int], steps: Sequence[int]
) -> dict[int, Cut]:
    """Cuts whose bounds a run computes: clamped in the run, then measured."""
    if 0 in steps or len(steps) != len(axes):
        raise node.error(f"its steps are {list(steps)}, it has {len(axes)} axes")
    w, name = Writer(context, node), node.outputs[0]
    steps = [max(min(step, MAX_ELEMENTS), -MAX_ELEMENTS) for step in steps]
    extent = known([shape[axis] for axis in axes], f"{name}.extents")
    backward = [step < 0 for step in steps]
    sizes = known([abs(step) for step in steps], f"{name}.steps")
    signs = known([-1 if turned else 1 for turned in backward], f"{name}.signs")
    low = known([-1 if turned else 0 for turned in backward], f"{name}.low")
    last = w.binary(op.add, extent, low)
    ends = []
    for index, least in ((1, known([0] * len(steps), f"{name}.zero")), (2, low)):
        given = w.reshape(w.cast(node.input(index), "int64"), [len(steps)])
        front = w.where(w(op.less, given, 0), w.binary(op.add, given, extent), given)
        ends.append(w.binary(op.minimum, w.binary(op.maximum, front, least), last))
    span = w.binary(op.multiply, w.binary(op.subtract, ends[1], ends[0]), signs)
    whole = w.binary(op.add, span, w(op.subtract, sizes, 1))
    lengths = w(op.maximum, w.binary(op.floor_divide, whole, sizes), 0)
    starts = w(op.maximum, ends[0], 0)
    begins = context.measured(node, starts, name=f"{name}.start")
    counts = context.measured(node, lengths, name=f"{name}.length")
    return {
        axis: (begin, count, step)
        for axis, begin, count, step in zip(axes, begins, counts, steps, strict=True)
    }


def _cut(context: Context, node: Node, extent: Expr, start: Expr, end: Expr, step: int) -> Cut:
    symbols = context.symbols
    if step == 0:
        raise node.error("a step is 0")
    step = max(min(step, MAX_ELEMENTS), -MAX_ELEMENTS)  # longer ones take one element as well
    start, end = _from_front(context, node, start, extent), _from_front(context, node, end, extent)
    if step > 0:
        start = symbols.minimum(symbols.maximum(start, 0), extent)
        end = symbols.minimum(symbols.maximum(end, 0), extent)
        span = symbols.simplify(end - start)
    else:
        last = symbols.simplify(extent - 1)
        start = symbols.minimum(symbols.maximum(start, 0), last)
        end = symbols.minimum(symbols.maximum(end, -1), last)
        span = symbols.simplify(start - end)
    size = abs(step)
    length = symbols.maximum(symbols.floordiv(symbols.simplify(span + (size - 1)), size), 0)
    return start, length, step


def _from_front(context: Context, node: Node, position: Expr, extent: Expr) -> Expr:
    """Negative positions count from the end."""
    if context.symbols.at_most(0, position):
        return position
    if context.symbols.at_most(position, -1):
        return context.symbols.simplify(position + extent)
    raise node.unsupported(f"whether {position} is negative depends on the inputs' dimensions")


def _fold(context: Context, node: Node, arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    data = arrays[0]
    if data is None:
        return None
    for axis, (start, length, step) in _cuts(context, node, data.shape).items():
        if not isinstance(start, int) or not isinstance(length, int):
            return None
        data = data.take(np.arange(start, start + length * step, step, dtype=np.int64), axis)
    return data


_SLICE = Operator(_slice, fold=_fold, moves="some")

TABLE: Table = {("", "Slice", 1): _SLICE}

"""Operators on shapes: Shape, Size, Reshape, Flatten, Squeeze, Unsqueeze."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.extents import known
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.symbols import same
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import KnownValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


def _shape(context: Context, node: Node) -> Result:
    value = node.input(0)
    start, end = node.integer("start", 0), node.integer("end", value.rank)
    rank = value.rank
    start = min(max(start + rank if start < 0 else start, 0), rank)
    end = min(max(end + rank if end < 0 else end, 0), rank)
    return known(value.shape[start:end], node.outputs[0])


def _size(context: Context, node: Node) -> Result:
    total = known([context.symbols.product(node.input(0).shape)], node.outputs[0])
    return KnownValue(total.name, total.dtype, total.data.reshape(()))


# -- Reshape -------------------------------------------------------------------------------


def _reshape(context: Context, node: Node) -> Result:
    value = node.input(0)
    target = _target(context, node, value.shape)
    return reshaped(context, node, value, target)


def reshaped(context: Context, node: Node, value: Value, target: Sequence[Expr]) -> Result:
    """The value with as many elements in another shape; itself when the shape is the same."""
    context.symbols.unify(
        context.symbols.product(value.shape),
        context.symbols.product(list(target)),
        f"{node.label} keeps the number of elements",
    )
    if len(target) == value.rank and all(
        same(a, b) for a, b in zip(target, value.shape, strict=True)
    ):
        return value
    if any(same(extent, 0) for extent in target):  # nothing in it; Relax would copy the dimension
        call = op.zeros(tuple(target), value.dtype)
    else:
        call = op.reshape(context.expr(value), tuple(target))
    return context.emit(call, node.outputs[0], target, node.label)


def _target(context: Context, node: Node, shape: Sequence[Expr]) -> list[Expr]:
    """The new shape, with 0 (copy) and -1 (what is left) resolved."""
    zero_is_zero = bool(node.integer("allowzero", 0))
    given = node.input(1)
    if not isinstance(given, KnownValue):
        resolved = _resolved(context, node, shape, given, zero_is_zero)
        return context.measured(node, resolved, name=f"{node.outputs[0]}.shape")
    target = context.known_ints(node, 1)
    free: int | None = None
    for axis, extent in enumerate(target):
        if same(extent, 0) and not zero_is_zero:
            if axis >= len(shape):
                raise node.error(f"dimension {axis} of its shape is 0, the input has no such one")
            target[axis] = shape[axis]
        elif same(extent, -1):
            if free is not None:
                raise node.error("its shape has -1 twice")
            free = axis
        elif isinstance(extent, int) and extent < 0:
            raise node.error(f"its shape has the negative dimension {extent}")
    if free is not None:
        target[free] = _left(context, node, shape, target[:free] + target[free + 1 :])
    return target


def _resolved(
    context: Context, node: Node, shape: Sequence[Expr], given: Value, zero_is_zero: bool
) -> Value:
    """A new shape that a run computes, with 0 and -1 resolved in the run."""
    node.need_rank(given, 1, 1)
    rank = given.shape[0]
    if not isinstance(rank, int):
        raise node.unsupported("its result has an unknown number of dimensions")
    w = Writer(context, node)
    target = w.cast(given, "int64")
    if not zero_is_zero:
        copied = known([*shape[:rank], *[0] * (rank - len(shape))], f"{node.outputs[0]}.copied")
        target = w.where(w(op.equal, target, 0), copied, target)
    free = w(op.equal, target, -1)
    one = w.full(1, "int64")
    others = w(op.prod, w.where(free, one, target), axis=[0], keepdims=True)
    total = known([context.symbols.product(list(shape))], f"{node.outputs[0]}.total")
    left = w.binary(op.floor_divide, total, w(op.maximum, others, 1))
    return w.where(free, left, target)


def _left(context: Context, node: Node, shape: Sequence[Expr], others: list[Expr]) -> Expr:
    total, taken = context.symbols.product(list(shape)), context.symbols.product(others)
    if same(taken, 0):
        raise node.error("its shape has -1 beside a dimension of 0")
    quotient = context.symbols.exact_quotient(total, taken)
    if quotient is not None:
        return quotient
    if isinstance(total, int) and isinstance(taken, int):
        raise node.error(f"{total} elements cannot be divided by {taken}")
    return context.symbols.floordiv(total, taken)


def _fold_reshape(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    data = arrays[0]
    if data is None:
        return None
    target = _target(context, node, data.shape)
    if not all(isinstance(extent, int) for extent in target):
        return None
    return data.reshape([int(extent) for extent in target if isinstance(extent, int)])


# -- Flatten, Squeeze, Unsqueeze -----------------------------------------------------------


def _flatten(context: Context, node: Node) -> Result:
    value = node.input(0)
    axis = node.integer("axis", 1)
    if not -value.rank <= axis <= value.rank:
        raise node.error(f"axis {axis} is out of range for {value.rank} dimensions")
    axis = axis + value.rank if axis < 0 else axis
    target = [
        context.symbols.product(value.shape[:axis]),
        context.symbols.product(value.shape[axis:]),
    ]
    return reshaped(context, node, value, target)


def _given_axes(context: Context, node: Node) -> tuple[int, ...] | None:
    """Axes: an attribute before opset 13, an input from then on."""
    if node.version < 13:
        return node.integers("axes") if node.has("axes") else None
    if node.optional(1) is None:
        return None
    return tuple(context.fixed_ints(node, 1))


def _squeezed_axes(context: Context, node: Node, shape: Sequence[Expr]) -> tuple[int, ...]:
    given = _given_axes(context, node)
    if given is None:
        return tuple(axis for axis, extent in enumerate(shape) if same(extent, 1))
    return node.axes(given, len(shape))


def _squeeze(context: Context, node: Node) -> Result:
    value = node.input(0)
    axes = _squeezed_axes(context, node, value.shape)
    for axis in axes:
        context.symbols.unify(value.shape[axis], 1, f"{node.label} removes the dimension")
    target = [extent for axis, extent in enumerate(value.shape) if axis not in axes]
    return reshaped(context, node, value, target)


def _fold_squeeze(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    data = arrays[0]
    if data is None:
        return None
    axes = _squeezed_axes(context, node, data.shape)
    if any(data.shape[axis] != 1 for axis in axes):
        raise node.error(f"axes {list(axes)} of shape {list(data.shape)} are not all 1")
    return np.squeeze(data, axes)


def _unsqueezed_axes(context: Context, node: Node, rank: int) -> tuple[int, ...]:
    given = _given_axes(context, node)
    if given is None:
        raise node.error("its axes are missing")
    if rank + len(given) > 32:
        raise node.error(f"its result would have {rank + len(given)} dimensions")
    return node.axes(given, rank + len(given))


def _unsqueeze(context: Context, node: Node) -> Result:
    value = node.input(0)
    axes = _unsqueezed_axes(context, node, value.rank)
    rest = iter(value.shape)
    target = [1 if axis in axes else next(rest) for axis in range(value.rank + len(axes))]
    return reshaped(context, node, value, target)


def _fold_unsqueeze(
    context: Context, node: Node, arrays: Sequence[np.ndarray | None]
) -> np.ndarray | None:
    data = arrays[0]
    if data is None:
        return None
    return np.expand_dims(data, _unsqueezed_axes(context, node, data.ndim))


TABLE: Table = {
    ("", "Shape", 1): Operator(_shape),
    ("", "Size", 1): Operator(_size),
    ("", "Reshape", 5): Operator(_reshape, fold=_fold_reshape, moves="all"),
    ("", "Flatten", 1): Operator(_flatten, moves="all"),
    ("", "Squeeze", 1): Operator(_squeeze, fold=_fold_squeeze, moves="all"),
    ("", "Unsqueeze", 1): Operator(_unsqueeze, fold=_fold_unsqueeze, moves="all"),
}

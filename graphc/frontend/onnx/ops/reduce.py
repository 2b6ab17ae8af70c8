"""Reductions over axes, ArgMax, ArgMin and CumSum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op

from graphc.frontend.onnx import fold
from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Convert, Fold, Operator, Result, Table
from graphc.frontend.onnx.values import FLOATS, Interval, KnownValue

_Reduce = Callable[..., relax.Expr]


def _axes(context: Context, node: Node, rank: int, as_input: int) -> tuple[int, ...] | None:
    """The axes to reduce, None for nothing at all (noop_with_empty_axes)."""
    if node.version < as_input:
        given = node.integers("axes", ())
    else:
        given = () if node.optional(1) is None else tuple(context.fixed_ints(node, 1))
    if not given:
        return None if node.integer("noop_with_empty_axes", 0) else tuple(range(rank))
    return node.axes(given, rank)


def _reduce(reduce: _Reduce, as_input: int = 18) -> Convert:
    """`as_input`: the operator set from which the axes are an input."""

    def convert(context: Context, node: Node) -> Result:
        value = node.input(0)
        axes = _axes(context, node, value.rank, as_input)
        keep = bool(node.integer("keepdims", 1))
        if axes is None:
            axes = ()
        if value.dtype == "bool" and node.op_type in ("ReduceMax", "ReduceMin"):
            name = node.outputs[0]
            wide = context.emit(op.astype(context.expr(value), "uint8"), f"{name}.wide").var
            found = reduce(context, node, wide, "uint8", list(axes), keep)
            found = context.emit(found, f"{name}.found").var
            return op.not_equal(found, context.constant(0, "uint8"))
        node.need_number(value)
        return reduce(context, node, context.expr(value), value.dtype, list(axes), keep)

    return convert


def _plain(operation: Callable[..., relax.Expr]) -> _Reduce:
    def reduce(
        context: Context, node: Node, x: relax.Expr, dtype: str, axes: list[int], keep: bool
    ) -> relax.Expr:
        if not axes:
            return x
        return operation(x, axes, keepdims=keep)

    return reduce


def _wide(operation: Callable[..., relax.Expr]) -> _Reduce:
    """float16 is summed in float32, as ONNX Runtime does."""

    def reduce(
        context: Context, node: Node, x: relax.Expr, dtype: str, axes: list[int], keep: bool
    ) -> relax.Expr:
        if not axes:
            return x
        if dtype not in ("float16", "bfloat16"):
            return operation(x, axes, keepdims=keep)
        name = node.outputs[0]
        wide = context.emit(op.astype(x, "float32"), f"{name}.wide").var
        total = context.emit(operation(wide, axes, keepdims=keep), f"{name}.total").var
        return op.astype(total, dtype)

    return reduce


_sum, _mean = _wide(op.sum), _wide(op.mean)


def _integer_mean(
    context: Context, node: Node, x: relax.Expr, dtype: str, axes: list[int], keep: bool
) -> relax.Expr:
    if dtype not in FLOATS:
        raise node.unsupported(f"a mean of {dtype} is not compiled")
    return _mean(context, node, x, dtype, axes, keep)


def _composed(
    before: Callable[[relax.Expr], relax.Expr] | None,
    after: Callable[[relax.Expr], relax.Expr] | None,
) -> _Reduce:
    """after(sum(before(x)))."""

    def reduce(
        context: Context, node: Node, x: relax.Expr, dtype: str, axes: list[int], keep: bool
    ) -> relax.Expr:
        name = node.outputs[0]
        if after is not None and dtype not in FLOATS:
            raise node.unsupported(f"it is not compiled for {dtype}")
        if before is not None:
            x = context.emit(before(x), f"{name}.terms").var
        total = _sum(context, node, x, dtype, axes, keep)
        return total if after is None else after(context.emit(total, f"{name}.sum").var)

    return reduce


def _log_sum_exp(
    context: Context, node: Node, x: relax.Expr, dtype: str, axes: list[int], keep: bool
) -> relax.Expr:
    """m + log(sum(exp(x - m))) with m the maximum, which does not overflow."""
    if dtype not in FLOATS:
        raise node.unsupported(f"it is not compiled for {dtype}")
    name = node.outputs[0]
    if not axes:
        return x
    top = context.emit(op.max(x, axes, keepdims=True), f"{name}.max").var
    moved = context.emit(op.exp(context.emit(op.subtract(x, top), f"{name}.moved").var),
                         f"{name}.exp").var  # fmt: skip
    total = context.emit(op.sum(moved, axes, keepdims=True), f"{name}.sum").var
    result = context.emit(op.add(context.emit(op.log(total), f"{name}.log").var, top),
                          f"{name}.kept").var  # fmt: skip
    return result if keep else op.squeeze(result, axes)


# -- ArgMax, ArgMin ------------------------------------------------------------------------


def _arg(operation: Callable[..., relax.Expr]) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        value = node.input(0)
        node.need_number(value)
        axis = node.axis(node.integer("axis", 0), value.rank)
        keep = bool(node.integer("keepdims", 1))
        x = context.expr(value)
        name = node.outputs[0]
        if value.dtype == "bfloat16":  # every value of it is a float32
            x = context.emit(op.astype(x, "float32"), f"{name}.float").var
        if not node.integer("select_last_index", 0):
            return op.astype(context.emit(operation(x, axis, keep), f"{name}.first").var, "int64")
        extent = value.shape[axis]
        if not isinstance(extent, int):
            raise node.unsupported("select_last_index needs an axis of fixed length")
        turned = context.emit(op.flip(x, axis), f"{name}.turned").var
        found = context.emit(operation(turned, axis, keep), f"{name}.found").var
        found = context.emit(op.astype(found, "int64"), f"{name}.wide").var
        return op.subtract(context.constant(extent - 1, "int64"), found)

    return convert


def _arg_interval(context: Context, node: Node) -> Interval | None:
    value = node.input(0)
    extent = value.shape[node.axis(node.integer("axis", 0), value.rank)]
    return Interval(0, context.symbols.simplify(extent - 1))


# -- CumSum --------------------------------------------------------------------------------


def _cumsum(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_number(value)
    axes = context.fixed_ints(node, 1)
    if len(axes) != 1:
        raise node.error(f"it has {len(axes)} axes, it needs one")
    axis = node.axis(axes[0], value.rank)
    exclusive, reverse = bool(node.integer("exclusive", 0)), node.integer("reverse", 0)
    x, name = context.expr(value), node.outputs[0]
    if reverse:
        x = context.emit(op.flip(x, axis), f"{name}.turned", value.shape).var
    total = op.cumsum(x, axis, value.dtype, exclusive)
    if not reverse:
        return context.emit(total, name, value.shape)
    summed = context.emit(total, f"{name}.summed", value.shape).var
    return context.emit(op.flip(summed, axis), name, value.shape)


# -- folds ---------------------------------------------------------------------------------


def _fold(numeric: Callable[..., Any], symbolic: Any, as_input: int = 18) -> Fold:
    def folded(
        context: Context, node: Node, arrays: Sequence[np.ndarray | None]
    ) -> np.ndarray | KnownValue | None:
        data = arrays[0]
        if data is None or not data.size:
            return None
        axes = _axes(context, node, data.ndim, as_input)
        if axes is None:
            return data
        keep = bool(node.integer("keepdims", 1))
        if data.dtype != object:
            return np.asarray(numeric(data, axis=axes, keepdims=keep)).astype(data.dtype)

        def pair(a: Any, b: Any) -> Any:
            return symbolic(context.symbols, a, b)

        try:
            for axis in sorted(axes, reverse=True):
                parts = np.split(data, data.shape[axis], axis)
                data = parts[0]
                for part in parts[1:]:
                    data = fold.each(pair, data, part)
        except fold.UndecidedError:
            return None
        return data if keep else np.squeeze(data, axes)

    return folded


TABLE: Table = {
    ("", "ReduceSum", 1): Operator(_reduce(_sum, 13), _fold(np.sum, fold.add, 13)),
    ("", "ReduceProd", 1): Operator(_reduce(_wide(op.prod)), _fold(np.prod, fold.multiply)),
    ("", "ReduceMax", 1): Operator(_reduce(_plain(op.max)), _fold(np.max, fold.maximum)),
    ("", "ReduceMin", 1): Operator(_reduce(_plain(op.min)), _fold(np.min, fold.minimum)),
    ("", "ReduceMean", 1): Operator(_reduce(_integer_mean)),
    ("", "ReduceL1", 1): Operator(_reduce(_composed(op.abs, None))),
    ("", "ReduceL2", 1): Operator(_reduce(_composed(op.square, op.sqrt))),
    ("", "ReduceSumSquare", 1): Operator(_reduce(_composed(op.square, None))),
    ("", "ReduceLogSum", 1): Operator(_reduce(_composed(None, op.log))),
    ("", "ReduceLogSumExp", 1): Operator(_reduce(_log_sum_exp)),
    ("", "ArgMax", 1): Operator(_arg(op.argmax), interval=_arg_interval),
    ("", "ArgMin", 1): Operator(_arg(op.argmin), interval=_arg_interval),
    ("", "CumSum", 11): Operator(_cumsum),
}

"""Pooling: maximum, average, Lp, and over everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.loops import cell, emit_loops, get, load, nest, number, put, store, when
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.windows import Window, positions, spatial, window
from graphc.frontend.onnx.table import Convert, Operator, Result, Table
from graphc.frontend.onnx.values import FLOATS, Value
from graphc.ir import Expr


def _input(node: Node) -> Value:
    value = node.input(0)
    node.need_rank(value, 3, 5)
    if value.dtype not in FLOATS and not (node.op_type == "MaxPool" and value.dtype != "bool"):
        raise node.error(f"it is not defined for {value.dtype}")
    return value


def _window(context: Context, node: Node, value: Value) -> tuple[Window, list[Expr]]:
    count = value.rank - 2
    kernel = spatial(node, "kernel_shape", count, 0)
    given = window(context, node, kernel, value.shape[2:])
    for axis in range(count):
        if given.before[axis] >= given.reach(axis) or given.after[axis] >= given.reach(axis):
            raise node.error(f"pads {given.padding} are as large as the kernel {list(kernel)}")
    ceil = bool(node.integer("ceil_mode", 0)) and node.text("auto_pad", "NOTSET") == "NOTSET"
    return given, positions(context, node, given, value.shape[2:], ceil)


def _max_pool(context: Context, node: Node) -> Result:
    value = _input(node)
    given, extents = _window(context, node, value)
    if any(node.outputs[1:]):
        return _max_with_places(context, node, value, given, extents)
    lowest = tirx.min_value(value.dtype)
    if value.dtype in FLOATS:
        lowest = tirx.const(-np.inf, value.dtype)

    def max_pool(x: te.Tensor) -> te.Tensor:
        return _reduced(x, value.shape, given, extents, te.max, lowest)

    shape = [*value.shape[:2], *extents]
    return context.emit_te(node.outputs[0], max_pool, [value], shape, "max_pool")


def _max_with_places(
    context: Context, node: Node, value: Value, given: Window, extents: Sequence[Expr]
) -> Result:
    """The first largest element of each window, and where it lies in the flattened tensor.

    With storage_order 1 the place counts the spatial axes with the first one innermost.
    """
    spatial_axes = list(range(value.rank - 2))
    if node.integer("storage_order", 0):
        spatial_axes.reverse()
    shape, dtype = [*value.shape[:2], *extents], value.dtype
    lowest = tirx.const(-np.inf, dtype) if dtype in FLOATS else tirx.min_value(dtype)

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x,), (y, places) = inputs, outputs
        with nest(shape) as (batch, channel, *at):
            top, found = cell(dtype, lowest), cell("int64", number(-1))
            with nest(given.kernel) as taps:
                index = [
                    at[k] * given.strides[k] + taps[k] * given.dilations[k] - given.before[k]
                    for k in range(len(at))
                ]
                inside = tirx.all(
                    *(t for k, i in enumerate(index) for t in (i >= 0, i < value.shape[k + 2]))
                )
                with when(inside):
                    new = load(x, [batch, channel, *index])
                    with when(tirx.any(get(found) < 0, new > get(top))):
                        put(top, new)
                        place: Any = batch * value.shape[1] + channel
                        for k in spatial_axes:
                            place = place * value.shape[k + 2] + index[k]
                        put(found, place)
            store(y, [batch, channel, *at], get(top))
            store(places, [batch, channel, *at], get(found))

    return emit_loops(
        context, node.outputs[:2], [value], [(dtype, shape), ("int64", shape)], body,
        "max_pool_indices",
    )  # fmt: skip


def _reduced(
    x: te.Tensor,
    shape: Sequence[Expr],
    given: Window,
    extents: Sequence[Expr],
    reduce: Callable[..., tirx.Expr],
    outside: tirx.Expr,
    term: Callable[[tirx.Expr], tirx.Expr] = lambda element: element,
) -> te.Tensor:
    """reduce(term(x)) over each window; elements in the padding are `outside`."""
    axes = [te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(given.kernel)]

    def element(batch: tirx.Var, channel: tirx.Var, *at: tirx.Var) -> tirx.Expr:
        where, inside = [], []
        for axis, position in enumerate(at):
            index = position * given.strides[axis] + axes[axis] * given.dilations[axis]
            index = index - given.before[axis]
            where.append(index)
            if given.before[axis]:
                inside.append(index >= 0)
            inside.append(index < shape[axis + 2])
        value = term(x(batch, channel, *where))
        return reduce(tirx.if_then_else(tirx.all(*inside), value, outside), axis=axes)

    return te.compute((*x.shape[:2], *extents), element, name="pool")


def _average_pool(context: Context, node: Node) -> Result:
    """The sum of a window over the number of elements that count."""
    value = _input(node)
    given, extents = _window(context, node, value)
    with_padding = bool(node.integer("count_include_pad", 0))

    def average_pool(x: te.Tensor) -> te.Tensor:
        total = _reduced(x, value.shape, given, extents, te.sum, tirx.const(0, value.dtype))

        def divided(batch: tirx.Var, channel: tirx.Var, *at: tirx.Var) -> tirx.Expr:
            count: Expr = 1
            for axis, position in enumerate(at):
                count = count * _counted(given, axis, position, value.shape[axis + 2], with_padding)
            return total(batch, channel, *at) / tirx.Cast(value.dtype, count)

        return te.compute(total.shape, divided, name="average")

    shape = [*value.shape[:2], *extents]
    return context.emit_te(node.outputs[0], average_pool, [value], shape, "average_pool")


def _counted(given: Window, axis: int, position: Expr, extent: Expr, padding: bool) -> Expr:
    """How many taps of a window lie in the tensor, or in the tensor with its padding."""
    start = position * given.strides[axis] - given.before[axis]
    low = -given.before[axis] if padding else 0
    high = extent + given.after[axis] if padding else extent
    step = given.dilations[axis]
    first = tirx.max(tirx.floordiv(low - start + step - 1, step), 0)
    last = tirx.min(tirx.floordiv(high - 1 - start, step), given.kernel[axis] - 1)
    return tirx.max(last - first + 1, 1)


def _lp_pool(context: Context, node: Node) -> Result:
    value = _input(node)
    given, extents = _window(context, node, value)
    p = node.integer("p", 2)
    if p < 1:
        raise node.error(f"p is {p}, it must be positive")
    dtype = value.dtype

    def lp_pool(x: te.Tensor) -> te.Tensor:
        def term(element: tirx.Expr) -> tirx.Expr:
            if p == 2:
                return element * element
            return tirx.abs(element) if p == 1 else tirx.power(tirx.abs(element),
                                                               tirx.const(p, dtype))  # fmt: skip

        total = _reduced(x, value.shape, given, extents, te.sum, tirx.const(0, dtype), term)

        def root(*at: tirx.Var) -> tirx.Expr:
            if p == 1:
                return total(*at)
            if p == 2:
                return tirx.sqrt(total(*at))
            return tirx.power(total(*at), tirx.const(1 / p, dtype))

        return te.compute(total.shape, root, name="root")

    shape = [*value.shape[:2], *extents]
    return context.emit_te(node.outputs[0], lp_pool, [value], shape, "lp_pool")


def _global(operation: Callable[..., relax.Expr]) -> Convert:
    def convert(context: Context, node: Node) -> Result:
        value = node.input(0)
        node.need_float(value)
        node.need_rank(value, 3)
        return operation(context.expr(value), list(range(2, value.rank)), keepdims=True)

    return convert


def _global_lp(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_float(value)
    node.need_rank(value, 3)
    p, name = node.integer("p", 2), node.outputs[0]
    if p not in (1, 2):
        raise node.unsupported(f"p = {p} is not compiled")
    x = context.expr(value)
    terms = context.emit(op.abs(x) if p == 1 else op.square(x), f"{name}.terms")
    total = op.sum(terms.var, list(range(2, value.rank)), keepdims=True)
    return total if p == 1 else op.sqrt(context.emit(total, f"{name}.sum").var)


TABLE: Table = {
    ("", "MaxPool", 1): Operator(_max_pool),
    ("", "AveragePool", 7): Operator(_average_pool),
    ("", "LpPool", 2): Operator(_lp_pool),
    ("", "GlobalAveragePool", 1): Operator(_global(op.mean)),
    ("", "GlobalMaxPool", 1): Operator(_global(op.max)),
    ("", "GlobalLpPool", 2): Operator(_global_lp),
}

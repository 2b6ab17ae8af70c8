"""Operators whose results are as long as the values say: NonZero, Compress."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.loops import cell, emit_loops, get, load, nest, number, put, store, when
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.points import measure
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import Interval, KnownValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


def places_of(context: Context, node: Node, chosen: Value, name: str) -> Value:
    """The flat positions [count] of the true elements of a boolean tensor, in order."""
    total = context.symbols.product(chosen.shape)
    flat = context.reshape(chosen, (total,), f"{name}.flat")
    w = Writer(context, node)
    ones = w.cast(flat, "int64")
    count = context.emit(op.sum(context.expr(ones), axis=[0]), f"{name}.number")
    limit = total if isinstance(total, int) else None
    (length,) = measure(context, count, [f"{name}.count"], [(0, limit)], node.label)

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x,), (y,) = inputs, outputs
        found = cell("int64", number(0))
        with nest([total]) as (at,), when(load(x, [at])):
            store(y, [get(found)], at)
            put(found, get(found) + 1)

    (places,) = emit_loops(
        context, [f"{name}.places"], [flat], [("int64", (length,))], body, "compact"
    )
    return places


def _nonzero(context: Context, node: Node) -> Result:
    """[rank, count]: the coordinates of the elements that are not zero, in order."""
    value = node.input(0)
    name = node.outputs[0]
    if isinstance(value, KnownValue) and not value.symbolic:
        return KnownValue(name, "int64", np.array(np.nonzero(value.data), "int64"))
    w = Writer(context, node)
    chosen = value if value.dtype == "bool" else w(op.not_equal, value, 0)
    places = places_of(context, node, chosen, name)
    rank, shape = max(value.rank, 1), value.shape or (1,)

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x,), (y,) = inputs, outputs
        with nest(places.shape) as (at,):
            rest = load(x, [at])
            for axis in reversed(range(rank)):
                extent = shape[axis]
                store(y, [number(axis), at], tirx.floormod(rest, extent))
                rest = tirx.floordiv(rest, extent)

    made = emit_loops(
        context, [name], [places], [("int64", (rank, *places.shape))], body, "coordinates", shape
    )
    return made[0] if value.rank else context.reshape(made[0], (0, *places.shape), name)


def _bounds(context: Context, node: Node) -> Interval | None:
    """A coordinate is below the largest dimension; each axis has its own row, not its own part."""
    shape = node.input(0).shape
    top: Expr = 0
    for extent in shape:
        top = context.symbols.maximum(top, extent)
    return Interval(0, context.symbols.simplify(top - 1))


def _compress(context: Context, node: Node) -> Result:
    """The slices whose condition is true."""
    value, condition = node.input(0), node.input(1)
    node.need_bool(condition)
    node.need_rank(condition, 1, 1)
    w = Writer(context, node)
    name, axis = node.outputs[0], 0
    if node.has("axis"):
        axis = node.axis(node.integer("axis"), value.rank)
    else:
        value = w.reshape(value, [context.symbols.product(value.shape)])
    extent = value.shape[axis]
    if isinstance(condition, KnownValue) and not condition.symbolic:
        kept = np.flatnonzero(condition.data)
        if kept.size:
            context.symbols.require_at_most(
                int(kept[-1]) + 1, extent, f"{node.label} keeps elements"
            )
        if isinstance(value, KnownValue):
            return KnownValue(name, value.dtype, np.take(value.data, kept, axis))
        places: Value = KnownValue(f"{name}.places", "int64", kept.astype("int64"))
    else:
        context.symbols.require_at_most(condition.shape[0], extent, f"{node.label} keeps elements")
        places = places_of(context, node, condition, name)
    shape = [*value.shape[:axis], places.shape[0], *value.shape[axis + 1 :]]
    call = op.take(context.expr(value), context.expr(places), axis=axis, mode="fast")
    return context.emit(call, name, shape)


TABLE: Table = {
    ("", "NonZero", 9): Operator(_nonzero, interval=_bounds),
    ("", "Compress", 9): Operator(_compress),
}

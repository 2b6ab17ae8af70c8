"""Writes at computed places: ScatterElements, ScatterND, TensorScatter, MaxUnpool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.loops import emit_loops, load, nest, number, store
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.gather import safe_rows
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import TensorValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr

_Join = Callable[[Any, Any], Any]
_JOINS: dict[str, _Join] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": tirx.max,
    "min": tirx.min,
}


def _join(node: Node, dtype: str) -> _Join:
    reduction = node.choice("reduction", "none", tuple(_JOINS))
    if dtype == "bool" and reduction != "none":
        raise node.unsupported(f"reduction {reduction} of booleans is not compiled")
    return _JOINS[reduction]


def _copy(x: Any, y: Any, shape: tuple[Expr, ...]) -> None:
    with nest(shape) as at:
        store(y, at, load(x, at))


def _scatter_elements(context: Context, node: Node) -> Result:
    """y = x, then y[index[i, j], j] = updates[i, j] along axis 0, in order."""
    value, indices, updates = node.input(0), node.input(1), node.input(2)
    node.same_dtype(value, updates)
    node.need_rank(value, 1)
    node.need_rank(indices, value.rank, value.rank)
    axis = node.axis(node.integer("axis", 0), value.rank)
    updates = context.cast_shape(updates, indices.shape, node.label)
    for other in range(value.rank):
        if other != axis:
            context.symbols.require_at_most(
                indices.shape[other], value.shape[other], f"{node.label} writes at its indices"
            )
    places = _checked(context, node, indices, value.shape[axis])
    join = _join(node, value.dtype)

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x, where, new), (y,) = inputs, outputs
        _copy(x, y, value.shape)
        with nest(indices.shape) as at:
            place = tirx.Cast("int64", load(where, at))
            target = [*at[:axis], place, *at[axis + 1 :]]
            store(y, target, join(load(y, target), load(new, at)))

    return emit_loops(
        context, node.outputs[:1], [value, places, updates], [(value.dtype, value.shape)], body,
        "scatter_elements",
    )  # fmt: skip


def _checked(context: Context, node: Node, indices: Value, extent: Expr) -> Value:
    safe = context.indices(node, indices, extent)
    return TensorValue(f"{indices.name}.safe", indices.dtype, indices.shape, safe)


def _scatter_nd(context: Context, node: Node) -> Result:
    """y = x, then y[index[i]] = updates[i] for each row of indices, in order."""
    value, indices, updates = node.input(0), node.input(1), node.input(2)
    node.same_dtype(value, updates)
    node.need_rank(value, 1)
    node.need_rank(indices, 1)
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise node.unsupported("the number of indexed axes depends on the inputs")
    if not 1 <= depth <= value.rank:
        raise node.error(f"{depth} indices do not fit {value.rank} dimensions")
    rows, slices = indices.shape[:-1], value.shape[depth:]
    updates = context.cast_shape(updates, (*rows, *slices), node.label)
    safe = safe_rows(context, node, indices, value.shape[:depth])
    places = TensorValue(f"{indices.name}.safe", "int64", indices.shape, safe)
    join = _join(node, value.dtype)

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x, where, new), (y,) = inputs, outputs
        _copy(x, y, value.shape)
        with nest((*rows, *slices)) as at:
            row = at[: len(rows)]
            target = [*(load(where, [*row, number(k)]) for k in range(depth)), *at[len(rows) :]]
            store(y, target, join(load(y, target), load(new, at)))

    return emit_loops(
        context, node.outputs[:1], [value, places, updates], [(value.dtype, value.shape)], body,
        "scatter_nd",
    )  # fmt: skip


def _tensor_scatter(context: Context, node: Node) -> Result:
    """The cache with `update` written from write_indices[b] on, around the end if circular."""
    cache, update, start = node.input(0), node.input(1), node.optional(2)
    node.same_dtype(cache, update)
    node.need_rank(cache, 2)
    axis = node.axis(node.integer("axis", -2), cache.rank)
    if axis == 0:
        raise node.error("its axis must not be the batch")
    circular = node.choice("mode", "linear", ("linear", "circular")) == "circular"
    length, room = update.shape[axis], cache.shape[axis]
    update = context.cast_shape(
        update, (*cache.shape[:axis], length, *cache.shape[axis + 1 :]), node.label
    )
    context.symbols.require_at_most(length, room, f"{node.label} writes to its cache")
    w = Writer(context, node)
    if start is None:
        start = context.broadcast_to(w.full(0, "int64"), (cache.shape[0],), f"{cache.name}.start")
    start = context.cast_shape(start, (cache.shape[0],), node.label)
    last = context.symbols.simplify(room - 1 if circular else room - length)
    safe = context.checked(node, context.tensor(start), 0, last)

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x, new, first), (y,) = inputs, outputs
        _copy(x, y, cache.shape)
        with nest(update.shape) as at:
            place = tirx.Cast("int64", load(first, [at[0]])) + at[axis]
            if circular:
                place = tirx.floormod(place, room)
            store(y, [*at[:axis], place, *at[axis + 1 :]], load(new, at))

    return emit_loops(
        context, node.outputs[:1], [cache, update, safe], [(cache.dtype, cache.shape)], body,
        "tensor_scatter",
    )  # fmt: skip


def _max_unpool(context: Context, node: Node) -> Result:
    """Zeros, with each value at its index in the flattened result."""
    value, indices = node.input(0), node.input(1)
    node.need_rank(value, 3, 5)
    indices = context.cast_shape(indices, value.shape, node.label)
    count = value.rank - 2
    kernel = node.integers("kernel_shape")
    strides = node.integers("strides", (1,) * count)
    pads = node.integers("pads", (0,) * (2 * count))
    if len(kernel) != count or len(strides) != count or len(pads) != 2 * count:
        raise node.error(f"its kernel, strides or pads do not fit {count} spatial dimensions")
    inner = [
        context.symbols.simplify((extent - 1) * strides[k] + kernel[k] - pads[k] - pads[count + k])
        for k, extent in enumerate(value.shape[2:])
    ]
    inferred = [*value.shape[:2], *inner]
    shape = context.known_ints(node, 2) if node.optional(2) is not None else inferred
    if len(shape) != value.rank:
        raise node.error(f"its output shape has {len(shape)} dimensions, not {value.rank}")
    # Indices count in the tensor that was pooled, even when a larger result is asked for.
    size = context.symbols.product(inferred)
    safe = context.checked(node, context.tensor(indices), 0, context.symbols.simplify(size - 1))
    for small, large in zip(inferred, shape, strict=True):
        context.symbols.require_at_most(small, large, f"{node.label} spreads its values")

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x, where), (y,) = inputs, outputs
        with nest(shape) as at:
            store(y, at, tirx.const(0, value.dtype))
        with nest(value.shape) as at:
            rest = load(where, at)
            target: list[Any] = []
            for extent in reversed(inferred[1:]):
                target.insert(0, tirx.floormod(rest, extent))
                rest = tirx.floordiv(rest, extent)
            store(y, [rest, *target], load(x, at))

    return emit_loops(
        context, node.outputs[:1], [value, safe], [(value.dtype, shape)], body, "max_unpool"
    )


TABLE: Table = {
    ("", "Scatter", 9): Operator(_scatter_elements),
    ("", "ScatterElements", 11): Operator(_scatter_elements),
    ("", "ScatterND", 11): Operator(_scatter_nd),
    ("", "TensorScatter", 24): Operator(_tensor_scatter),
    ("", "MaxUnpool", 9): Operator(_max_unpool),
}

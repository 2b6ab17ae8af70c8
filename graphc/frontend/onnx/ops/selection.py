"""TopK, Hardmax, ReverseSequence and CumProd."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.loops import (
    FALSE,
    cell,
    emit_loops,
    get,
    load,
    loop,
    nest,
    put,
    store,
    when,
)
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import FLOATS, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


def _top_k(context: Context, node: Node) -> Result:
    """The k largest (or smallest) along an axis in order; the first of equal elements first.

    Each element is inserted into the sorted ones found before it, unless it is smaller than the
    last of k: about n comparisons and k log(n) insertions for a row in no order.
    """
    value = node.input(0)
    node.need_number(value)
    node.need_rank(value, 1)
    axis = node.axis(node.integer("axis", -1), value.rank)
    count = _count(context, node, value.shape[axis])
    largest = bool(node.integer("largest", 1))
    outer = [*value.shape[:axis], *value.shape[axis + 1 :]]
    shape = [*value.shape[:axis], count, *value.shape[axis + 1 :]]
    dtype = value.dtype

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x,), (found, places) = inputs, outputs
        with nest(outer) as row, nest([value.shape[axis]]) as (j,):

            def at(k: Any) -> list[Any]:
                return [*row[:axis], k, *row[axis:]]

            # NaN counts as the largest element, as in numpy.
            def before(a: Any, b: Any) -> Any:
                ordered = a > b if largest else a < b
                if dtype not in FLOATS:
                    return ordered
                first, second = (a, b) if largest else (b, a)
                nan, other = tirx.isnan(first), tirx.isnan(second)
                return tirx.any(tirx.all(nan, tirx.Not(other)), tirx.all(tirx.Not(other), ordered))

            new = cell(dtype, load(x, at(j)))
            # Where the new element may go: behind all that are held, or in the last one's place.
            slot = cell("int64", tirx.min(j, count))
            with loop(
                tirx.if_then_else(
                    get(slot) > 0, before(get(new), load(found, at(get(slot) - 1))), FALSE
                )
            ):
                above = get(slot) - 1
                with when(get(slot) < count):
                    store(found, at(get(slot)), load(found, at(above)))
                    store(places, at(get(slot)), load(places, at(above)))
                put(slot, above)
            with when(get(slot) < count):
                store(found, at(get(slot)), get(new))
                store(places, at(get(slot)), j)

    return emit_loops(
        context, [*node.outputs, f"{node.outputs[0]}.places"][:2], [value],
        [(dtype, shape), ("int64", shape)], body, "top_k",
    )[: len(node.outputs)]  # fmt: skip


def _count(context: Context, node: Node, extent: Expr) -> Expr:
    if node.version < 10:
        count: Expr = node.integer("k")
    else:
        given = context.known_ints(node, 1)
        if len(given) != 1:
            raise node.error(f"k has {len(given)} elements, it must have one")
        count = given[0]
    context.symbols.require_at_most(1, count, f"{node.label} finds k elements")
    context.symbols.require_at_most(count, extent, f"{node.label} finds k elements")
    return count


def _hardmax(context: Context, node: Node) -> Result:
    """1 at the first largest element along an axis, 0 elsewhere."""
    value = node.input(0)
    node.need_float(value)
    w = Writer(context, node)
    shape, axis = value.shape, node.axis(node.integer("axis", -1 if node.version >= 13 else 1),
                                         value.rank)  # fmt: skip
    given: Value = value
    if node.version < 13:
        rows = context.symbols.product(shape[:axis])
        given, axis = w.reshape(value, [rows, context.symbols.product(shape[axis:])]), 1
    first = w(lambda x: op.argmax(x, axis, True), given)
    along: list[Expr] = [1] * given.rank
    along[axis] = given.shape[axis]
    places = w.reshape(w.arange(given.shape[axis]), along)
    hit = w.binary(op.equal, w.cast(first, "int64"), places)
    return w.reshape(w.cast(hit, value.dtype), shape)


def _reverse_sequence(context: Context, node: Node) -> Result:
    """The first length[b] elements along the time axis in reverse, the others as they are."""
    value = node.input(0)
    node.need_rank(value, 2)
    batch, time = node.integer("batch_axis", 1), node.integer("time_axis", 0)
    if {batch, time} != {0, 1}:
        raise node.error(f"its axes are {batch} and {time}, they must be 0 and 1")
    lengths = context.cast_shape(node.input(1), (value.shape[batch],), node.label)
    safe = context.checked(node, context.tensor(lengths), 0, value.shape[time])

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x, ends), (y,) = inputs, outputs
        with nest(value.shape) as at:
            end = load(ends, [at[batch]])
            place = tirx.if_then_else(at[time] < end, end - 1 - at[time], at[time])
            source = list(at)
            source[time] = place
            store(y, at, load(x, source))

    return emit_loops(
        context, node.outputs[:1], [value, safe], [(value.dtype, value.shape)], body,
        "reverse_sequence",
    )  # fmt: skip


def _cumulative_product(context: Context, node: Node) -> Result:
    value = node.input(0)
    node.need_number(value)
    axes = context.fixed_ints(node, 1)
    if len(axes) != 1:
        raise node.error(f"it has {len(axes)} axes, it needs one")
    axis = node.axis(axes[0], value.rank)
    exclusive, reverse = bool(node.integer("exclusive", 0)), bool(node.integer("reverse", 0))
    extent = value.shape[axis]
    outer = [*value.shape[:axis], *value.shape[axis + 1 :]]

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x,), (y,) = inputs, outputs
        with nest(outer) as row:
            total = cell(value.dtype, tirx.const(1, value.dtype))
            with nest([extent]) as (step,):
                place = extent - 1 - step if reverse else step
                at = [*row[:axis], place, *row[axis:]]
                if exclusive:
                    store(y, at, get(total))
                put(total, get(total) * load(x, at))
                if not exclusive:
                    store(y, at, get(total))

    return emit_loops(
        context, node.outputs[:1], [value], [(value.dtype, value.shape)], body, "cumulative_product"
    )


TABLE: Table = {
    ("", "TopK", 1): Operator(_top_k),
    ("", "Hardmax", 1): Operator(_hardmax),
    ("", "ReverseSequence", 10): Operator(_reverse_sequence),
    ("", "CumProd", 26): Operator(_cumulative_product),
}

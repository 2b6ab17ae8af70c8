"""Unique: the slices of an axis that differ, by a stable merge sort of their places.

One kernel sorts the places, a second one numbers the groups of equal slices; both write as many
elements as there are slices, and what is more than the groups is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    number,
    put,
    store,
    when,
)
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import FLOATS, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


def _unique(context: Context, node: Node) -> Result:
    value, name = node.input(0), node.outputs[0]
    w = Writer(context, node)
    axis = 0
    if node.has("axis"):
        axis = node.axis(node.integer("axis"), value.rank)
    else:
        value = w.reshape(value, [context.symbols.product(value.shape)])
    order = [axis, *(other for other in range(value.rank) if other != axis)]
    count = value.shape[axis]
    width = context.symbols.product([value.shape[other] for other in order[1:]])
    turned = value if axis == 0 else w.transpose(value, order)
    rows = w.reshape(turned, [count, width])
    sorted_places = _sort(context, f"{name}.order", rows)
    groups = _group(context, name, rows, sorted_places, bool(node.integer("sorted", 1)))
    first, inverse, sizes, found = groups
    limit = count if isinstance(count, int) else None
    (length,) = context.measured(node, found, 0, limit, f"{name}.count")
    places, counted = (
        sliced(context, part, {0: (0, length, 1)}, f"{name}.{label}")
        for part, label in ((first, "places"), (sizes, "counts"))
    )
    shape = [*value.shape[:axis], length, *value.shape[axis + 1 :]]
    call = op.take(context.expr(value), context.expr(places), axis=axis, mode="fast")
    made = context.emit(call, name, shape)
    return [made, places, inverse, counted][: len(node.outputs)]


def _sort(context: Context, name: str, rows: Value) -> Value:
    """The places of the rows [count, width] in ascending order, equal ones as they come."""
    count = rows.shape[0]

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x,), (y, spare) = inputs, outputs
        less = _Compare(x, rows)
        with nest([count]) as (at,):
            store(y, [at], at)
        width = cell("int64", number(1))
        with loop(get(width) < _number(count)):
            _merge_all(y, spare, _number(count), get(width), less)
            with nest([count]) as (at,):
                store(y, [at], load(spare, [at]))
            put(width, get(width) * 2)

    places, _ = emit_loops(
        context, [name, f"{name}.spare"], [rows], [("int64", (count,))] * 2, body, "sort_rows"
    )
    return places


def _merge_all(source: Any, target: Any, count: Any, width: Any, less: _Compare) -> None:
    """Merges each two sorted runs of `width` places."""
    start = cell("int64", number(0))
    with loop(get(start) < count):
        middle = cell("int64", tirx.min(get(start) + width, count))
        end = cell("int64", tirx.min(get(start) + 2 * width, count))
        left, right = cell("int64", get(start)), cell("int64", get(middle))
        at = cell("int64", get(start))
        with loop(get(at) < get(end)):
            # The left one unless it is used up or the right one is smaller.
            takes_right = cell("int64", number(0))
            with when(get(right) < get(end)):
                put(takes_right, number(1))
                with when(get(left) < get(middle)):
                    less(load(source, [get(right)]), load(source, [get(left)]), takes_right)
            with when(get(takes_right) == 1):
                store(target, [get(at)], load(source, [get(right)]))
                put(right, get(right) + 1)
            with when(get(takes_right) == 0):
                store(target, [get(at)], load(source, [get(left)]))
                put(left, get(left) + 1)
            put(at, get(at) + 1)
        put(start, get(end))


class _Compare:
    """Whether row i of x [count, width] comes before row j; NaN is the largest number."""

    def __init__(self, x: Any, rows: Value) -> None:
        self.x, self.width, self.dtype = x, rows.shape[1], rows.dtype

    def __call__(self, i: Any, j: Any, result: Any) -> None:
        """Puts 1 or 0 into the cell `result`."""
        first, second = cell("int64", i), cell("int64", j)
        decided, column = cell("int64", number(0)), cell("int64", number(0))
        put(result, number(0))
        going = tirx.if_then_else(get(column) < _number(self.width), get(decided) == 0, FALSE)
        with loop(going):
            a = load(self.x, [get(first), get(column)])
            b = load(self.x, [get(second), get(column)])
            with when(self._below(a, b)):
                put(result, number(1))
                put(decided, number(1))
            with when(self._below(b, a)):
                put(decided, number(1))
            put(column, get(column) + 1)

    def _below(self, a: Any, b: Any) -> Any:
        if self.dtype == "bool":
            return a.astype("int32") < b.astype("int32")
        if self.dtype not in FLOATS:
            return a < b
        if self.dtype == "bfloat16":  # of which TVM does not know NaN
            a, b = a.astype("float32"), b.astype("float32")
        return tirx.any(
            tirx.all(tirx.isnan(b), tirx.Not(tirx.isnan(a))),
            tirx.all(tirx.Not(tirx.isnan(b)), a < b),
        )


def _group(
    context: Context, name: str, rows: Value, order: Value, keeps_sorted: bool
) -> Sequence[Value]:
    """[first place], [group of each row], [rows in it], [number of groups]."""
    count = rows.shape[0]

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x, places), (first, inverse, sizes, found) = inputs, outputs
        less = _Compare(x, rows)
        groups, differs = cell("int64", number(0)), cell("int64", number(1))
        with nest([count]) as (at,):
            with when(at > 0):
                less(load(places, [at - 1]), load(places, [at]), differs)
            with when(get(differs) == 1):
                store(first, [get(groups)], load(places, [at]))
                store(sizes, [get(groups)], number(0))
                put(groups, get(groups) + 1)
            group = get(groups) - 1
            store(inverse, [load(places, [at])], group)
            store(sizes, [group], load(sizes, [group]) + 1)
        store(found, [number(0)], get(groups))

    names = [f"{name}.{part}" for part in ("first", "inverse", "sizes", "found")]
    shapes: list[tuple[str, Sequence[Expr]]] = [*[("int64", (count,))] * 3, ("int64", (1,))]
    made = emit_loops(context, names, [rows, order], shapes, body, "group_rows")
    return made if keeps_sorted else _as_they_come(context, name, made)


def _as_they_come(context: Context, name: str, groups: Sequence[Value]) -> Sequence[Value]:
    """The groups numbered by their first rows."""
    first, inverse, sizes, found = groups
    count = first.shape[0]

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (old_first, old_inverse, old_sizes), (new_first, new_inverse, new_sizes, names) = (
            inputs, outputs
        )  # fmt: skip
        made = cell("int64", number(0))
        with nest([count]) as (at,):
            group = load(old_inverse, [at])
            with when(load(old_first, [group]) == at):
                store(names, [group], get(made))
                store(new_first, [get(made)], at)
                store(new_sizes, [get(made)], load(old_sizes, [group]))
                put(made, get(made) + 1)
            store(new_inverse, [at], load(names, [group]))

    labels = [f"{name}.{part}" for part in ("first1", "inverse1", "sizes1", "names")]
    made = emit_loops(
        context, labels, [first, inverse, sizes], [("int64", (count,))] * 4, body, "as_they_come"
    )
    return [*made[:3], found]


def _number(extent: Expr) -> Any:
    return number(extent) if isinstance(extent, int) else extent


TABLE: Table = {("", "Unique", 11): Operator(_unique)}

"""NonMaxSuppression: the best box of a class, then those that overlap the chosen little enough."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx

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
from graphc.frontend.onnx.values import KnownValue, Value
from graphc.frontend.onnx.writer import Writer
from graphc.ir import Expr


def _suppress(context: Context, node: Node) -> Result:
    """[count, 3]: batch, class and box of what is chosen, by batch, class and score."""
    boxes, scores = node.input(0), node.input(1)
    node.need_rank(boxes, 3, 3)
    node.need_rank(scores, 3, 3)
    batches, classes, count = scores.shape
    boxes = context.cast_shape(boxes, (batches, count, 4), node.label)
    w, name = Writer(context, node), node.outputs[0]
    numbers = [
        w.reshape(w.cast(_setting(node, index, dtype), dtype), [1])
        for index, dtype in ((2, "int64"), (3, "float32"), (4, "float32"))
    ]
    centred = bool(node.integer("center_point_box", 0))
    most = context.symbols.product([batches, classes, _most(context, node, count)])

    def body(inputs: list[Any], outputs: list[Any]) -> None:
        (x, s, limit, overlap, least), (chosen, found, dropped) = inputs, outputs
        rows = cell("int64", number(0))
        with nest([batches, classes]) as (batch, kind):
            with nest([count]) as (at,):
                low = load(s, [batch, kind, at]) <= load(least, [number(0)])
                store(dropped, [at], tirx.Cast("int8", low))
            made, going = cell("int64", number(0)), cell("int64", number(1))
            running = tirx.if_then_else(
                get(going) == 1, get(made) < load(limit, [number(0)]), FALSE
            )
            with loop(running):
                best = cell("int64", number(-1))
                with nest([count]) as (at,), when(load(dropped, [at]) == 0):
                    held = tirx.max(get(best), number(0))
                    better = load(s, [batch, kind, at]) > load(s, [batch, kind, held])
                    with when(tirx.any(get(best) < 0, better)):
                        put(best, at)
                with when(get(best) < 0):
                    put(going, number(0))
                with when(get(best) >= 0):
                    for column, part in enumerate((batch, kind, get(best))):
                        store(chosen, [get(rows), number(column)], part)
                    put(rows, get(rows) + 1)
                    put(made, get(made) + 1)
                    store(dropped, [get(best)], tirx.const(1, "int8"))
                    with nest([count]) as (at,), when(load(dropped, [at]) == 0):
                        share = _overlap(x, batch, get(best), at, centred)
                        with when(share > load(overlap, [number(0)])):
                            store(dropped, [at], tirx.const(1, "int8"))
        store(found, [number(0)], get(rows))

    chosen, found, _ = emit_loops(
        context, [f"{name}.all", f"{name}.found", f"{name}.dropped"], [boxes, scores, *numbers],
        [("int64", (most, 3)), ("int64", (1,)), ("int8", (count,))], body, "suppress",
    )  # fmt: skip
    (length,) = context.measured(
        node, found, 0, most if isinstance(most, int) else None, f"{name}.count"
    )
    return sliced(context, chosen, {0: (0, length, 1)}, name)


def _setting(node: Node, index: int, dtype: str) -> Value:
    """A scalar input: no box is chosen, none is too close, no score too low without it."""
    value = node.optional(index)
    if value is not None:
        return value
    default = 0.0 if index < 4 else -np.inf
    return KnownValue("", dtype, np.array(default, dtype))


def _most(context: Context, node: Node, count: Expr) -> Expr:
    """The most boxes of a class that can be chosen."""
    given = node.optional(2)
    if isinstance(given, KnownValue) and not given.symbolic:
        return context.symbols.minimum(count, max(int(given.data.reshape(())), 0))
    return count


def _overlap(x: Any, batch: Any, i: Any, j: Any, centred: bool) -> Any:
    """Intersection over union of two boxes."""
    first, second = _corners(x, batch, i, centred), _corners(x, batch, j, centred)
    zero = tirx.const(0, "float32")
    sides = []
    for axis in range(2):
        low = tirx.max(first[axis], second[axis])
        high = tirx.min(first[axis + 2], second[axis + 2])
        sides.append(tirx.max(high - low, zero))
    shared = sides[0] * sides[1]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    union = areas[0] + areas[1] - shared
    valid = tirx.all(areas[0] > zero, areas[1] > zero, union > zero)
    return tirx.if_then_else(valid, shared / union, zero)


def _corners(x: Any, batch: Any, at: Any, centred: bool) -> list[Any]:
    """The smaller coordinates of a box, then the larger ones."""
    a, b, c, d = (load(x, [batch, at, number(k)]) for k in range(4))
    if centred:
        half = tirx.const(0.5, "float32")
        return [a - c * half, b - d * half, a + c * half, b + d * half]
    return [tirx.min(a, c), tirx.min(b, d), tirx.max(a, c), tirx.max(b, d)]


TABLE: Table = {("", "NonMaxSuppression", 10): Operator(_suppress)}

"""Pad in its four modes; negative padding cuts off."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import te, tirx

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.slice import sliced
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import Value
from graphc.ir import Expr


def _pad(context: Context, node: Node) -> Result:
    value = node.input(0)
    mode = node.choice("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    before, after = _pads(context, node, value.rank)
    value = _cut(context, node, value, before, after)
    before = [extent if not _negative(extent) else 0 for extent in before]
    after = [extent if not _negative(extent) else 0 for extent in after]
    shape = [
        context.symbols.simplify(left + extent + right)
        for left, extent, right in zip(before, value.shape, after, strict=True)
    ]
    padded = [
        axis for axis in range(value.rank) if not (_zero(before[axis]) and _zero(after[axis]))
    ]
    if not padded:
        return value
    if mode == "reflect":
        for axis in padded:
            room = context.symbols.simplify(value.shape[axis] - 1)
            for extent in (before[axis], after[axis]):
                context.symbols.require_at_most(extent, room, f"{node.label} reflects them")
    fill = _fill(context, node, value)

    def pad(x: te.Tensor, outside: te.Tensor | None = None) -> te.Tensor:
        def element(*at: tirx.Var) -> tirx.Expr:
            where, inside = list(at), []
            for axis in padded:
                index, extent = at[axis] - before[axis], value.shape[axis]
                where[axis] = _source(mode, index, extent)
                inside += [index >= 0, index < extent]
            if mode != "constant":
                return x(*where)
            filler = outside() if outside is not None else tirx.const(0, value.dtype)
            return tirx.if_then_else(tirx.all(*inside), x(*where), filler)

        return te.compute(tuple(shape), element, name="pad")

    args: list[Value] = [value]
    if mode == "constant" and fill is not None:
        args.append(fill)
    return context.emit_te(node.outputs[0], pad, args, shape, "pad")


def _source(mode: str, index: tirx.Expr, extent: Expr) -> tirx.Expr:
    """Where the element at `index` of an axis comes from."""
    if mode == "reflect":
        behind = tirx.if_then_else(index >= extent, 2 * (extent - 1) - index, index)
        return tirx.if_then_else(index < 0, -index, behind)
    if mode == "edge":
        return tirx.max(tirx.min(index, extent - 1), 0)
    if mode == "wrap":
        return tirx.floormod(index, extent)
    return index


def _pads(context: Context, node: Node, rank: int) -> tuple[list[Expr], list[Expr]]:
    """Pads before and after each axis: an attribute before opset 11, an input from then on."""
    given: Sequence[Expr]
    if node.version < 11:
        given, axes = node.integers("pads"), tuple(range(rank))
    else:
        given = context.shape_ints(node, 1)
        axes = tuple(range(rank))
        if node.version >= 18 and node.optional(3) is not None:
            axes = node.axes(tuple(context.fixed_ints(node, 3)), rank)
    if len(given) != 2 * len(axes):
        raise node.error(f"{len(given)} pads for {len(axes)} axes")
    before: list[Expr] = [0] * rank
    after: list[Expr] = [0] * rank
    for number, axis in enumerate(axes):
        before[axis], after[axis] = given[number], given[number + len(axes)]
    return before, after


def _cut(
    context: Context, node: Node, value: Value, before: Sequence[Expr], after: Sequence[Expr]
) -> Value:
    cuts = {}
    for axis, extent in enumerate(value.shape):
        first = -before[axis] if _negative(before[axis]) else 0
        last = -after[axis] if _negative(after[axis]) else 0
        if _zero(first) and _zero(last):
            continue
        length = context.symbols.simplify(extent - first - last)
        cut = context.symbols.simplify(extent - length)
        context.symbols.require_at_most(cut, extent, f"{node.label} cuts them off")
        cuts[axis] = (first, length, 1)
    return sliced(context, value, cuts, f"{node.outputs[0]}.cut")


def _fill(context: Context, node: Node, value: Value) -> Value | None:
    """The constant around the tensor: an attribute before opset 11, an input from then on."""
    if node.version < 11:
        number = node.number("value", 0.0)
        if number == 0.0:
            return None
        return context.scalar(number, value.dtype)
    given = node.optional(2)
    if given is None:
        return None
    node.same_dtype(value, given)
    if context.symbols.product(given.shape) != 1:
        raise node.error(f"its constant has shape {list(given.shape)}, it must be a scalar")
    return context.reshape(given, (), f"{node.outputs[0]}.constant")


def _negative(extent: Expr) -> bool:
    return isinstance(extent, int) and extent < 0


def _zero(extent: Expr) -> bool:
    return isinstance(extent, int) and extent == 0


TABLE: Table = {("", "Pad", 2): Operator(_pad)}

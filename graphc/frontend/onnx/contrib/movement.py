"""Operators that move elements; most of them later became ONNX's own."""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.contrib.formula import DOMAIN, Formula, entry
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops import gather, generate, pad
from graphc.frontend.onnx.table import Result, Table
from graphc.frontend.onnx.values import KnownValue, Value


def _trilu(context: Context, node: Node) -> Result:
    given = dict(node.attributes)
    return Formula(context, node).standard(generate.TABLE, "Trilu", 14, node.inputs, **given)


def _gather_nd(context: Context, node: Node) -> Result:
    f, indices = Formula(context, node), node.input(1)
    node.need_integer(indices)
    if indices.dtype != "int64":
        indices = f.value(op.astype(context.expr(indices), "int64"))
    return f.standard(gather.TABLE, "GatherND", 12, [node.input(0), indices])


def _expand_dims(context: Context, node: Node) -> Result:
    f, value = Formula(context, node), node.input(0)
    axes = context.fixed_ints(node, 1)
    if len(axes) != 1:
        raise node.error(f"it has {len(axes)} axes, it needs one")
    axis = node.axis(axes[0], value.rank + 1)
    shape = [*value.shape[:axis], 1, *value.shape[axis:]]
    return context.reshape(value, shape, f.name)


def _unfold(context: Context, node: Node) -> Result:
    """out[.., i, .., j] = x[.., i * step + j, ..] for the windows along one axis."""
    f, value = Formula(context, node), node.input(0)
    axis = node.axis(node.integer("dim", -1), value.rank)
    size, step = node.integer("size"), node.integer("step", 1)
    if size < 1 or step < 1:
        raise node.error(f"size is {size} and step {step}, both must be positive")
    symbols, extent = context.symbols, value.shape[axis]
    symbols.require_at_most(size, extent, f"{node.label} has windows of {size}")
    count = symbols.simplify(symbols.floordiv(symbols.simplify(extent - size), step) + 1)
    shape = [*value.shape[:axis], count, *value.shape[axis + 1 :], size]

    def windows(x: te.Tensor) -> te.Tensor:
        def element(*at: Any) -> Any:
            return x(*at[:axis], at[axis] * step + at[-1], *at[axis + 1 : -1])

        return te.compute(shape, element, name="unfold")

    return context.emit_te(f"{f.name}.windows", windows, [value], shape, "unfold")


def _range(context: Context, node: Node) -> Result:
    values: list[Value] = []
    for index in range(3):
        value = node.optional(index)
        if value is None:
            value = context.scalar(1, node.input(0).dtype)
        values.append(value)
    return Formula(context, node).standard(generate.TABLE, "Range", 11, values)


def _pad(context: Context, node: Node) -> Result:
    pads = node.input(1)
    if isinstance(pads, KnownValue) and pads.rank == 2:
        pads = KnownValue(pads.name, pads.dtype, pads.data.reshape(-1))
    inputs = [node.input(0), pads, node.optional(2)]
    given = dict(node.attributes)
    return Formula(context, node).standard(pad.TABLE, "Pad", 13, inputs, **given)


TABLE: Table = {
    (DOMAIN, "Trilu", 1): entry(_trilu, "upper", inputs=2),
    (DOMAIN, "GatherND", 1): entry(_gather_nd, inputs=2),
    (DOMAIN, "ExpandDims", 1): entry(_expand_dims, inputs=2),
    (DOMAIN, "UnfoldTensor", 1): entry(_unfold, "dim size step", inputs=1),
    (DOMAIN, "Range", 1): entry(_range, inputs=3),
    (DOMAIN, "Pad", 1): entry(_pad, "mode", inputs=3),
}

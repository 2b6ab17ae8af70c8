"""ConvInteger and QLinearConv: 8-bit convolutions in exact int32, padding adds nothing.

one group, known weight    ----->   patches [batch, places, channels * kernel], then a product
otherwise                  ----->   plain loops
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.relax import op

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.ops.integer import (
    OUT_ELEMENTWISE,
    Arguments,
    operand,
    point,
    requantised,
    sums_of,
    zero_point,
)
from graphc.frontend.onnx.ops.windows import Window, positions, window
from graphc.frontend.onnx.table import Operator, Result, Table
from graphc.frontend.onnx.values import KnownValue, TensorValue, Value
from graphc.ir import Expr


def _convolved(
    context: Context,
    node: Node,
    value: Value,
    weight: Value,
    zeros: tuple[Value | None, Value | None],
    bias: Value | None,
) -> TensorValue:
    """The convolution of (value - zero) with (weight - zero) in int32; padding adds nothing."""
    node.need_rank(value, 3)
    node.need_rank(weight, value.rank, value.rank)
    fixed = [extent for extent in weight.shape if isinstance(extent, int)]
    if len(fixed) != weight.rank:
        raise node.unsupported("a weight whose shape is not fixed")
    outputs, each, *kernel = fixed
    groups = node.integer("group", 1)
    if groups < 1 or outputs % groups:
        raise node.error(f"{outputs} channels cannot be split into {groups} groups")
    if node.integers("kernel_shape", tuple(kernel)) != tuple(kernel):
        raise node.error(f"kernel_shape is not the weight's {kernel}")
    context.symbols.unify(value.shape[1], each * groups, f"{node.label} convolves channels")
    value = context.cast_shape(value, [value.shape[0], each * groups, *value.shape[2:]], node.label)
    given = window(context, node, kernel, value.shape[2:])
    shape = [value.shape[0], outputs, *positions(context, node, given, value.shape[2:])]
    for zero, size in ((zeros[0], 1), (zeros[1], outputs), (bias, outputs)):
        if zero is not None and tuple(zero.shape) not in ((), (1,), (size,)):
            raise node.error(f"{list(zero.shape)} zero points or biases, not {size}")
    inside = _inside(given, value.shape[2:])
    if groups == 1 and isinstance(weight, KnownValue) and not weight.symbolic:
        patches = _patches(context, node, value, zeros[0], inside, (each, *kernel), shape)
        return _matrix_product(context, node, patches, weight, zeros, bias)
    arguments = Arguments(value, weight, *zeros, bias)

    def compute(*tensors: te.Tensor) -> te.Tensor:
        x, w, x_zero, w_zero, added = arguments.tensors(tensors)
        channel = te.reduce_axis((0, each), name="channel")
        places = [te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(kernel)]

        def element(batch: Any, output: Any, *at: Any) -> Any:
            spots, there = inside(at, places)
            source = channel if groups == 1 else output // (outputs // groups) * each + channel
            read = x(batch, source, *spots).astype("int32")
            if x_zero is not None:
                read = read - point(x_zero, output)
            if there is not None:
                read = tirx.if_then_else(there, read, tirx.const(0, "int32"))
            factor = w(output, channel, *places).astype("int32")
            if w_zero is not None:
                factor = factor - point(w_zero, output)
            return te.sum(read * factor, axis=[channel, *places])

        total = te.compute(shape, element, name="conv_integer")
        if added is None:
            return total
        return te.compute(shape, lambda *at: total(*at) + point(added, at[1]), name="biased")

    return context.emit_te(
        node.outputs[0], compute, arguments.present, shape, "conv_integer", OUT_ELEMENTWISE
    )


def _patches(
    context: Context,
    node: Node,
    value: Value,
    zero: Value | None,
    inside: Callable[[Any, Any], tuple[Any, Any]],
    window: Sequence[int],
    shape: Sequence[Expr],
) -> TensorValue:
    """What each place of the result sums, as a row: [batch, *places, channels * kernel]."""
    arguments = Arguments(value, zero)
    batch, _, *places = shape
    rows = [batch, *places, math.prod(window)]

    def compute(*tensors: te.Tensor) -> te.Tensor:
        x, x_zero = arguments.tensors(tensors)

        def element(image: Any, *at: Any) -> Any:
            *spot, column = at
            steps: list[Any] = []
            for size in reversed(window):
                steps.insert(0, column % size)
                column = column // size
            spots, there = inside(spot, steps[1:])
            read = x(image, steps[0], *spots)
            if there is None:
                return read
            outside = tirx.const(0, value.dtype)
            if x_zero is not None:
                outside = x_zero(*[tirx.const(0, "int64")] * len(x_zero.shape))
            return tirx.if_then_else(there, read, outside)

        return te.compute(rows, element, name="patches")

    return context.emit_te(
        f"{node.outputs[0]}.patches", compute, arguments.present, rows, "patches"
    )


def _matrix_product(
    context: Context,
    node: Node,
    patches: TensorValue,
    weight: KnownValue,
    zeros: tuple[Value | None, Value | None],
    bias: Value | None,
) -> TensorValue:
    """The convolution as the product of its patches with the weight, channels moved in front."""
    matrix = np.ascontiguousarray(weight.data.reshape(weight.data.shape[0], -1).T)
    right = KnownValue(f"{weight.name}.matrix", weight.dtype, matrix)
    sums = sums_of(context, node, patches, right, zeros)
    total = sums.var
    if bias is not None:
        total = op.add(total, op.reshape(context.expr(bias), [-1]))
    batch, *places, channels = sums.shape
    order = [0, sums.rank - 1, *range(1, sums.rank - 1)]
    moved = op.permute_dims(total, order)
    return context.emit(moved, node.outputs[0], [batch, channels, *places])


def _inside(given: Window, extents: Sequence[Expr]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Where a window reads for an output place, and whether that is inside (None: always)."""

    def spots(at: Sequence[Any], places: Sequence[Any]) -> tuple[list[Any], Any]:
        found, conditions = [], []
        for axis, (place, step) in enumerate(zip(at, places, strict=True)):
            spot = place * given.strides[axis] + step * given.dilations[axis] - given.before[axis]
            found.append(spot)
            if given.before[axis]:
                conditions.append(spot >= tirx.const(0, "int64"))
            if given.after[axis]:
                conditions.append(spot < extents[axis])
        if not conditions:
            return found, None
        return found, conditions[0] if len(conditions) == 1 else tirx.all(*conditions)

    return spots


def _conv_integer(context: Context, node: Node) -> Result:
    value, weight = operand(node, 0), operand(node, 1)
    zeros = (zero_point(node, 2, value), zero_point(node, 3, weight))
    return _convolved(context, node, value, weight, zeros, None)


def _qlinear_conv(context: Context, node: Node) -> Result:
    value, weight, bias = operand(node, 0), operand(node, 3), node.optional(8)
    if bias is not None and bias.dtype != "int32":
        raise node.error(f"its bias is {bias.dtype}, it must be int32")
    zeros = (zero_point(node, 2, value), zero_point(node, 5, weight))
    sums = _convolved(context, node, value, weight, zeros, bias)
    scales = (node.input(1), node.input(4), node.input(6))
    return requantised(context, node, sums, scales, node.input(7), 1, weight.shape[0])


TABLE: Table = {
    ("", "ConvInteger", 10): Operator(_conv_integer),
    ("", "QLinearConv", 10): Operator(_qlinear_conv),
}
